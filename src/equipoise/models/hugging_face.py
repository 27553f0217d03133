"""Image classifiers of Hugging Face's transformers, from a local folder: config.json and model.safetensors, nothing downloaded.

Nothing in the folder is run: custom code (`auto_map`) is refused, and so are weights in a pickle. The network is one of transformers' own
and is repaired like any other.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from equipoise.errors import BadInput, MissingExtra
from equipoise.models.vision import declare_operators

CONFIG, WEIGHTS, PREPARED = "config.json", "model.safetensors", "preprocessor_config.json"


class HuggingFaceNetwork(nn.Module):
    """An image classifier of transformers as a network that returns its logits: of two labels the log odds of the second."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        labels: Mapping[int, str] = getattr(inner.config, "id2label", {})
        names = [str(labels[key]) for key in sorted(labels)]
        self.output = "logit"
        if len(names) > 2 and not all(name.startswith("LABEL_") for name in names):
            self.targets = names

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.inner(pixel_values=x).logits
        if logits.shape[1] == 2:
            return logits[:, 1] - logits[:, 0]
        return logits[:, 0] if logits.shape[1] == 1 else logits


def is_folder(named: str) -> bool:
    """Whether a name is that of a folder of transformers."""
    return (Path(named) / CONFIG).is_file()


def is_classifier(model: nn.Module) -> bool:
    """Whether a network is one of transformers, which returns an object instead of a tensor."""
    return any(kind.__name__ == "PreTrainedModel" and kind.__module__.startswith("transformers.") for kind in type(model).__mro__)


def config_in(folder: str | Path) -> dict[str, Any]:
    """The configuration in a folder, or an error with the reason why it cannot be used."""
    folder = Path(folder)
    try:
        found = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        if not isinstance(found, dict):
            raise ValueError("it holds no object")
    except (OSError, ValueError) as error:
        raise BadInput(f"{folder / CONFIG} cannot be read as a configuration of transformers: {error}") from error
    if "auto_map" in found:
        raise BadInput(f"{folder} needs Python code of its own (auto_map in {CONFIG}), which is not run. Name a factory: file.py:factory.")
    return found


def load_hugging_face(folder: str | Path, *, weights: bool = True) -> HuggingFaceNetwork:
    """The image classifier in a folder, in eval mode; without `weights`, with random ones to be replaced."""
    from importlib.util import find_spec

    folder = Path(folder)
    config_in(folder)
    if find_spec("transformers") is None:
        raise MissingExtra("transformers", "huggingface", f"loading {folder}")
    if weights and not (folder / WEIGHTS).is_file() and not (folder / f"{WEIGHTS}.index.json").is_file():
        raise BadInput(
            f"{folder} has no {WEIGHTS}. Weights in a pickle (pytorch_model.bin) are not read: save the model again with "
            "model.save_pretrained(folder)."
        )
    declare_operators()  # transformers imports torchvision
    from transformers import AutoConfig, AutoModelForImageClassification

    try:
        with torch.random.fork_rng(devices=[]):
            if weights:
                inner = AutoModelForImageClassification.from_pretrained(folder, local_files_only=True, use_safetensors=True)
            else:
                inner = AutoModelForImageClassification.from_config(AutoConfig.from_pretrained(folder, local_files_only=True))
    except Exception as error:  # transformers raises many kinds
        reason = (str(error).splitlines() or [""])[0]
        raise BadInput(f"{folder} is not an image classifier that transformers can load: {type(error).__name__}: {reason}") from error
    return HuggingFaceNetwork(inner).eval()


def preparation_in(folder: str | Path) -> dict[str, Any]:
    """What the folder says of the images: `size`, `mean` and `std` of pixels in [0, 1]; empty where it says nothing."""
    path = Path(folder) / PREPARED
    if not path.is_file():
        return {}
    try:
        plain = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadInput(f"{path} cannot be read as JSON: {error}") from error
    size = plain.get("crop_size") if plain.get("do_center_crop") else plain.get("size")
    side = (
        size if isinstance(size, int) else next((size[key] for key in ("height", "shortest_edge") if key in size), None) if size else None
    )
    found: dict[str, Any] = {} if side is None else {"size": int(side)}
    if plain.get("do_normalize", True) and plain.get("image_mean"):
        found |= {"mean": tuple(map(float, plain["image_mean"])), "std": tuple(map(float, plain["image_std"]))}
    return found
