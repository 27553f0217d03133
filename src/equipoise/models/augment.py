"""Random augmentation of chest X-rays during training, as the paper has it: centre crop, horizontal flip, translation, rotation.

Everything is one affine map a row, drawn from a seeded generator on the CPU and applied on the device. The paper names the kinds and not
the sizes: the ones here are ours.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True)
class Augmentation:
    """How far rows may be changed."""

    crop: float = 0.875  # the smallest share of height and width that is kept, around the centre
    flip: float = 0.5  # the probability of a mirror image
    shift: float = 0.05  # of height and width, either way
    turn: float = 10.0  # degrees, either way

    def draw(self, rows: int, rng: np.random.Generator) -> Tensor:
        """A map for each of so many rows (rows, 2, 3)."""
        angle = np.deg2rad(rng.uniform(-self.turn, self.turn, rows))
        scale = rng.uniform(self.crop, 1.0, rows)
        mirror = np.where(rng.random(rows) < self.flip, -1.0, 1.0)
        shift = rng.uniform(-2 * self.shift, 2 * self.shift, (rows, 2))  # the grid goes from -1 to 1
        cos, sin = scale * np.cos(angle), scale * np.sin(angle)
        maps = np.stack([np.stack([cos * mirror, -sin, shift[:, 0]], 1), np.stack([sin * mirror, cos, shift[:, 1]], 1)], 1)
        return torch.from_numpy(maps.astype(np.float32))


def moved(x: Tensor, maps: Tensor) -> Tensor:
    """Images (b, c, h, w) seen through their maps (b, 2, 3); what comes from outside has the image's darkest value."""
    lowest = x.amin((1, 2, 3), keepdim=True)
    grid = F.affine_grid(maps, list(x.shape), align_corners=False)
    return F.grid_sample(x - lowest, grid, mode="bilinear", padding_mode="zeros", align_corners=False) + lowest
