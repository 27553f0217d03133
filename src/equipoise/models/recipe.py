"""The settings of training, and the random augmentation of chest X-rays: centre crop, horizontal flip, translation, rotation.

An augmentation is one affine map per row, drawn from a seeded generator on the CPU and applied on the device. The paper names the kinds but
not their sizes: these are ours.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from equipoise.errors import pick, raise_all
from equipoise.models.optimisers import OPTIMISERS

Progress = Callable[[int, float], None]  # epoch, validation loss


@dataclass(frozen=True)
class Training:
    """The settings of training. `patience` counts epochs without a better validation loss."""

    epochs: int = 1000
    batch: int = 64
    learning_rate: float = 1e-3
    patience: int = 30
    plateau: int = 10  # epochs without improvement after which the rate falls to a tenth
    optimiser: str = "adam"  # or adamw
    schedule: str = "plateau"  # or step: a tenth of the rate after every so many epochs
    step: int = 7
    augment: bool = False  # for images: centre crop, flip, translation and rotation at random
    restore: str = "best"  # the weights with the lowest validation loss; or last: those of the last epoch

    def __post_init__(self) -> None:
        pick("optimiser of training", self.optimiser, OPTIMISERS)
        pick("schedule of training", self.schedule, ("plateau", "step"))
        pick("weights to restore after training", self.restore, ("best", "last"))
        least = {"epochs": 0, "batch": 1, "patience": 1, "plateau": 1, "step": 1}  # no epochs: the network as it was initialised
        counts = {name: getattr(self, name) for name in least}
        problems = [
            f"{name} of training must be at least {least[name]}; got {value}" for name, value in counts.items() if value < least[name]
        ]
        if not (isfinite(self.learning_rate) and self.learning_rate > 0):
            problems.append(f"learning_rate must be a positive number; got {self.learning_rate}")
        raise_all(problems)


IMAGES = Training(epochs=20, batch=32, learning_rate=1e-4, patience=5, optimiser="adamw", schedule="step", augment=True)


@dataclass(frozen=True)
class Augmentation:
    """The ranges of random changes to images."""

    crop: float = 0.875  # the smallest share of height and width that remains, around the centre
    flip: float = 0.5  # the probability of a mirror image
    shift: float = 0.05  # of height and width, in either direction
    turn: float = 10.0  # degrees, in either direction

    def draw(self, rows: int, rng: np.random.Generator) -> Tensor:
        """One random affine map per row (rows, 2, 3)."""
        angle = np.deg2rad(rng.uniform(-self.turn, self.turn, rows))
        scale = rng.uniform(self.crop, 1.0, rows)
        mirror = np.where(rng.random(rows) < self.flip, -1.0, 1.0)
        shift = rng.uniform(-2 * self.shift, 2 * self.shift, (rows, 2))  # the grid goes from -1 to 1
        cos, sin = scale * np.cos(angle), scale * np.sin(angle)
        maps = np.stack([np.stack([cos * mirror, -sin, shift[:, 0]], 1), np.stack([sin * mirror, cos, shift[:, 1]], 1)], 1)
        return torch.from_numpy(maps.astype(np.float32))


def moved(x: Tensor, maps: Tensor) -> Tensor:
    """Images (b, c, h, w) under their maps (b, 2, 3); pixels from outside have the image's darkest value."""
    lowest = x.amin((1, 2, 3), keepdim=True)
    grid = F.affine_grid(maps, list(x.shape), align_corners=False)
    return F.grid_sample(x - lowest, grid, mode="bilinear", padding_mode="zeros", align_corners=False) + lowest
