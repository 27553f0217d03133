"""Networks of a study: the paper's MLP, a vision backbone with or without pretrained weights, or a factory in the user's code.

The trained network of a split is stored in a safetensors file, which is verified when read and cannot run code.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from equipoise.data import child_seed
from equipoise.disk import sha256
from equipoise.errors import BadInput
from equipoise.models import Backbone, initial_mlp, load_model

MLP = "mlp"
PUBLISHED_WEIGHTS = "imagenet"  # in place of a file: the published weights of the backbone


def backbones() -> dict[str, Backbone]:
    """The vision networks by name, imported late because tables do not need them."""
    from equipoise.models import BACKBONES
    from equipoise.studies.efficientnet_lite import EFFICIENTNET_LITE

    return BACKBONES | EFFICIENTNET_LITE


def check_model(model: str) -> str:
    """Returns the name of a network unchanged, or raises an error that lists the valid names."""
    if model != MLP and model not in backbones() and not all(model.rpartition(":")[::2]):
        listed = ", ".join(map(repr, backbones()))
        raise BadInput(f"expected {MLP!r} (the paper's network), file.py:factory, or for images one of {listed}; got {model!r}")
    return model


@dataclass(frozen=True)
class Network:
    """The network that a study trains on a data set, and its initial weights: a file, or "imagenet" for the published ones."""

    model: str = MLP
    pretrained: str = ""

    def build(self, shape: Sequence[int], seed: int, *, pretrained: bool = True) -> nn.Module:
        """An untrained network for inputs of this shape, the same for the same seed. `pretrained=False` skips reading initial weights."""
        self.check(shape)
        if self.model == MLP:
            return initial_mlp(shape[1], seed)
        with torch.random.fork_rng():
            torch.manual_seed(child_seed(seed, "weights"))
            if self.model not in backbones():
                return load_model(self.model)
            start = self.pretrained if pretrained else ""
            weights = None if start == PUBLISHED_WEIGHTS else start or None
            model = backbones()[self.model].network(channels=shape[1], weights=weights, pretrained=start == PUBLISHED_WEIGHTS)
        if self.pretrained:
            model.__dict__["untrained"] = partial(self.build, tuple(shape))  # for methods that train from scratch
        return model

    def fetch(self) -> None:
        """Downloads published weights into the cache shared by all processes; raises an error if that fails."""
        if self.pretrained == PUBLISHED_WEIGHTS:
            backbones()[self.model].network(pretrained=True)

    def content(self) -> str:
        """A text that identifies the network: names without folders, and checksums of its files."""
        place, _, factory = self.model.rpartition(":")
        code = Path(place)
        model = f"{code.name}:{factory} {sha256(code.read_bytes())}" if place and code.is_file() else self.model
        if self.pretrained == PUBLISHED_WEIGHTS:
            return f"{model} from {PUBLISHED_WEIGHTS} {backbones()[self.model].checksum(self.model)}"
        weights = Path(self.pretrained)
        return f"{model} from {weights.name} {sha256(weights.read_bytes())}" if self.pretrained else model

    def check(self, shape: Sequence[int]) -> None:
        """Raises an error if the network cannot take inputs of this shape."""
        if self.model == MLP and len(shape) != 2:
            raise BadInput(
                f"{MLP!r} takes tables, and these inputs have the shape {tuple(shape[1:])}. Name a network for images: "
                f"model = one of {', '.join(map(repr, backbones()))}, or file.py:factory."
            )
        if self.model in backbones() and len(shape) != 4:
            raise BadInput(
                f"{self.model!r} takes images, and these inputs have the shape {tuple(shape[1:])}. Use {MLP!r} or file.py:factory."
            )


def to_bytes(model: nn.Module, about: Mapping[str, Any]) -> bytes:
    """A safetensors file with the weights of a network, and a description."""
    from safetensors.torch import save

    tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in model.state_dict().items()}
    notes = {**about, "threshold": getattr(model, "threshold", None), "sha256": _digest(tensors)}
    return bytes(save(tensors, {"equipoise": json.dumps(notes)}))


def from_bytes(content: bytes, source: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The state dict, and the description. Raises an error that names `source` if the content is damaged."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    about = _description(content, source)
    try:
        tensors = load(content)
        if about["sha256"] != _digest(tensors):
            raise ValueError("its checksum is wrong")
    except (SafetensorError, ValueError, KeyError) as error:
        raise BadInput(f"{source} is damaged ({error}). Run the study again to replace it.") from error
    return tensors, about


def read_about(path: Path) -> dict[str, Any]:
    """The description in the file of a network, without reading their weights."""
    with path.open("rb") as file:
        length = file.read(8)
        return _description(length + file.read(min(int.from_bytes(length, "little"), path.stat().st_size)), str(path))


def _description(content: bytes, source: str) -> dict[str, Any]:
    try:
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        about: dict[str, Any] = json.loads(header["__metadata__"]["equipoise"])
    except (ValueError, KeyError, TypeError) as error:
        raise BadInput(f"{source} is damaged ({error}). Run the study again to replace it.") from error
    return about


def _digest(tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
