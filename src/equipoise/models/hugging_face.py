"""Image classifiers of Hugging Face's transformers, from a local folder: config.json and model.safetensors, nothing downloaded.

Nothing in the folder is run: custom code (`auto_map`) is refused, and so are weights in a pickle. The network has an
architecture of transformers and is repaired like any other.
"""

import importlib.util
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from equipoise.data import ImageFolder
from equipoise.errors import BadInput, MissingExtra, first_line
from equipoise.models.vision import prepare_torchvision

CONFIG, WEIGHTS, PREPARED = "config.json", "model.safetensors", "preprocessor_config.json"
STEPS = {"do_resize", "do_center_crop", "do_rescale", "do_normalize", "do_convert_rgb", "do_reduce_labels"}  # the last is for masks
RESAMPLING = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box"}  # Pillow's numbers
FAMILIES = {
    *("Beit", "Bit", "CLIP", "ConvNext", "DeiT", "DINOv3ViT", "EfficientNet"),
    *("MobileNetV1", "MobileNetV2", "PoolFormer", "Siglip", "ViT"),
}
WHOLE_FROM = 384  # image size from which ConvNeXT's preprocessor does not crop
OTHER_WAYS = (
    "Give the preprocessing yourself: --set images.transform=file.py:transform, or images.size, resize, crop, channels and normalise."
)


class HuggingFaceNetwork(nn.Module):
    """An image classifier of transformers as a network that returns its logits; for two labels, the log odds of the second."""

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
    """Whether a name is that of a folder with a network of transformers."""
    return (Path(named) / CONFIG).is_file()


def config_in(folder: str | Path) -> dict[str, Any]:
    """The configuration in a folder, or an error with the reason why it cannot be used."""
    config = _json_object(Path(folder) / CONFIG, "a configuration of transformers")
    if "auto_map" in config:
        raise BadInput(f"{folder} needs Python code of its own (auto_map in {CONFIG}), which is not run. Name a factory: file.py:factory.")
    return config


def _json_object(path: Path, what: str) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise ValueError("it holds no object")
    except (OSError, ValueError) as error:
        raise BadInput(f"{path} cannot be read as {what}: {error}") from error
    return content


def load_hugging_face(folder: str | Path, *, weights: bool = True) -> HuggingFaceNetwork:
    """The image classifier in a folder, in eval mode; without `weights`, with random ones to be replaced."""
    folder = Path(folder)
    config_in(folder)
    if importlib.util.find_spec("transformers") is None:
        raise MissingExtra("transformers", "huggingface", f"loading {folder}")
    if weights and not (folder / WEIGHTS).is_file() and not (folder / f"{WEIGHTS}.index.json").is_file():
        raise BadInput(
            f"{folder} has no {WEIGHTS}. Weights in a pickle (pytorch_model.bin) are not read: save the model again with "
            "model.save_pretrained(folder)."
        )
    prepare_torchvision()  # transformers imports torchvision
    from transformers import AutoConfig, AutoModelForImageClassification
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        with torch.random.fork_rng(devices=[]):
            if weights:
                inner = AutoModelForImageClassification.from_pretrained(folder, local_files_only=True, use_safetensors=True)
            else:
                inner = AutoModelForImageClassification.from_config(AutoConfig.from_pretrained(folder, local_files_only=True))
    except Exception as error:  # transformers raises many kinds
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise BadInput(f"{folder} is not an image classifier that transformers can load: {reason}") from error
    finally:
        if shown:
            logging.enable_progress_bar()
    return HuggingFaceNetwork(inner).eval()


def preparation_in(folder: str | Path) -> dict[str, Any]:
    """The image preprocessing of the folder as arguments of `Cohort.from_images`; empty if the folder has no preprocessor.

    The keys are `resize`, `crop`, `interpolation`, `centre`, `channels`, and `mean` and `std` of pixels in [0, 1]. A step that these cannot
    express is refused, since the network would get other pixels than it was trained on.
    """
    path = Path(folder) / PREPARED
    if not path.is_file():
        return {}
    config = _json_object(path, "JSON")
    if problems := _unsupported_steps(config):
        raise BadInput(*(f"{path}: {problem}" for problem in problems), advice=OTHER_WAYS)
    channels = config_in(folder).get("num_channels", 3)  # outside of the block: its errors are about another file
    try:
        return _geometry(config) | _normalisation(config, int(channels))
    except (KeyError, TypeError, ValueError, IndexError) as error:
        problem = f"{error.args[0]} is missing" if isinstance(error, KeyError) else str(error)
        raise BadInput(f"{path}: {problem}. Write it again: AutoImageProcessor.from_pretrained(folder).save_pretrained(folder).") from error


def with_saved_preprocessing(model: str, images: ImageFolder) -> tuple[ImageFolder, str]:
    """The images with the preprocessing saved in a folder of transformers, except for the options that were given.

    Also returns the origin of the preprocessing in words, which are empty for any other model.
    """
    if images.folder is None or not is_folder(model) or not (Path(model) / PREPARED).is_file():
        return images, ""
    if images.preset is not None or images.transform is not None:
        return images, f"instead of {PREPARED} in {model}"
    prepared, overridden = images.with_preprocessing(preparation_in(model), model)
    exceptions = f", but for {', '.join(f'images.{name}' for name in overridden)}" if overridden else ""
    return prepared, f"as in {PREPARED} of the model{exceptions}"


def _unsupported_steps(config: Mapping[str, Any]) -> list[str]:
    """The steps of the preprocessor that are not supported."""
    kind = str(config.get("image_processor_type") or config.get("feature_extractor_type") or "")
    family = re.sub(r"(ImageProcessor|FeatureExtractor)(Fast|Pil)?$", "", kind)
    problems = [] if not kind or family in FAMILIES else [f"images are prepared by {kind}, whose steps are not known"]
    if "auto_map" in config:
        problems.append("auto_map names Python code of its own, which is not run")
    problems += [f"{key} is not supported" for key, value in config.items() if key.startswith("do_") and value and key not in STEPS]
    if (resample := config.get("resample", 2)) not in RESAMPLING and config.get("do_resize", True):
        problems.append(f"resample {resample!r} is not one of {', '.join(f'{k} ({name})' for k, name in RESAMPLING.items())}")
    return problems


def _geometry(config: Mapping[str, Any]) -> dict[str, Any]:
    """Resize, crop and interpolation; transformers resizes first and then crops the centre."""
    resize = _sides(config["size"]) if config.get("do_resize", True) else None
    crop = _sides(config["crop_size"]) if config.get("do_center_crop") else None
    if isinstance(crop, tuple):
        if crop[0] != crop[1]:
            raise ValueError(f"crop_size is {crop[0]} x {crop[1]} pixels, and only a square can be cropped")
        crop = crop[0]
    if (share := config.get("crop_pct")) and isinstance(resize, int):
        if crop is None and resize >= WHOLE_FROM:  # ConvNeXT stretches large images
            resize = (resize, resize)
        else:
            resize, crop = int(resize / share), crop or resize
    return {"resize": resize, "crop": crop, "interpolation": RESAMPLING[config.get("resample", 2)], "centre": "floor"}


def _sides(size: Any) -> int | tuple[int, int]:
    """The shorter side, or height and width."""
    if isinstance(size, dict):
        return int(size["shortest_edge"]) if "shortest_edge" in size else (int(size["height"]), int(size["width"]))
    height, width = size if isinstance(size, list) else (size, size)  # in files of earlier versions, one number is a square
    return int(height), int(width)


def _normalisation(config: Mapping[str, Any], channels: int) -> dict[str, Any]:
    """Channels, mean and standard deviation of pixels in [0, 1]; they include a rescaling by another factor than 1/255."""
    factor = 255.0 * float(config.get("rescale_factor", 1 / 255)) if config.get("do_rescale", True) else 255.0
    pair = (config["image_mean"], config["image_std"]) if config.get("do_normalize", True) else (0.0, 1.0)
    mean, std = (_per_channel(value, channels) for value in pair)
    shift = 1.0 if config.get("rescale_offset") and config.get("do_rescale", True) else 0.0  # EfficientNet: pixels from -1
    if len(mean) != channels or len(std) != channels:
        raise ValueError(f"image_mean and image_std have {len(mean)} and {len(std)} numbers, and the network takes {channels} channels")
    again = _per_channel(config["image_std"] if config.get("include_top") else 1.0, channels)  # EfficientNet divides by it twice
    mean, scale = [(m + shift) / factor for m in mean], [s * t / factor for s, t in zip(std, again, strict=True)]
    return {"channels": channels, "mean": tuple(mean), "std": tuple(scale)}


def _per_channel(value: Any, channels: int) -> list[float]:
    """One number per channel."""
    numbers = [float(v) for v in (value if isinstance(value, list) else [value])]
    return numbers * channels if len(numbers) == 1 else numbers
