"""The networks of a study: the paper's MLP, a backbone by name with or without pretrained weights, or a factory of the user's own."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import nn

from equipoise.data import child_seed, sha256
from equipoise.errors import BadInput
from equipoise.models import build, initial_mlp

MLP = "mlp"
IMAGENET = "imagenet"  # in place of a file: the published weights of the backbone


def backbones() -> tuple[str, ...]:
    """The names of the vision networks; asked for late, since tables need none of them."""
    from equipoise.models import BACKBONES

    return tuple(BACKBONES)


def checked(model: str) -> str:
    """The name of a network itself, or an error that says what it may be."""
    if model != MLP and model not in backbones() and not all(model.rpartition(":")[::2]):
        named = ", ".join(map(repr, backbones()))
        raise BadInput(f"a model is {MLP!r} (the paper's network), file.py:factory, or for images one of {named}; got {model!r}")
    return model


@dataclass(frozen=True)
class Network:
    """Which network a study trains on some data, and the weights that it starts from: a file, or "imagenet" for the published ones."""

    model: str = MLP
    pretrained: str = ""

    @property
    def stacks(self) -> bool:
        """Whether many of them train and are repaired as one."""
        return self.model == MLP

    def build(self, shape: Sequence[int], seed: int, *, pretrained: bool = True) -> nn.Module:
        """An untrained network for inputs of this shape; what is drawn at random depends on the seed alone.

        `pretrained=False` spares reading weights that would be replaced anyway.
        """
        self.check(shape)
        if self.model == MLP:
            return initial_mlp(shape[1], seed)
        with torch.random.fork_rng():
            torch.manual_seed(child_seed(seed, "weights"))
            if self.model not in backbones():
                return build(self.model)
            from equipoise.models import backbone

            start = self.pretrained if pretrained else ""
            weights = None if start == IMAGENET else start or None
            model = backbone(self.model, channels=shape[1], weights=weights, pretrained=start == IMAGENET)
        if self.pretrained:
            model.__dict__["untrained"] = partial(self.build, tuple(shape))  # what trains anew starts from the same weights
        return model

    def fetch(self) -> None:
        """Puts the published weights into the cache that all processes read; raises an error where they cannot be had."""
        if self.pretrained == IMAGENET:
            from equipoise.models import backbone

            backbone(self.model, pretrained=True)

    def content(self) -> str:
        """What tells it from other networks: names without folders, and checksums of the files."""
        place, _, factory = self.model.rpartition(":")
        code = Path(place)
        known = f"{code.name}:{factory} {sha256(code.read_bytes())}" if place and code.is_file() else self.model
        if self.pretrained == IMAGENET:
            from equipoise.models import published_checksum

            return f"{known} from {IMAGENET} {published_checksum(self.model)}"
        weights = Path(self.pretrained)
        return f"{known} from {weights.name} {sha256(weights.read_bytes())}" if self.pretrained else known

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
