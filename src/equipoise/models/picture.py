"""What can be read of an image without a network: the picture made small, and how strongly and which way its edges run, place by place.

Training removes from a network what does not serve its task, and pooling over positions removes where things are. Sex, for one, is read
better from these numbers of a chest X-ray than from any layer of a network that was trained on a finding (docs/beyond.md has the figures).
All of it is a convolution, comparisons and means, so that exporters can follow.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

PIXELS = 16  # a side of the small picture, about
PLACES = 8  # a side of the grid in which edges are counted, about
SOBEL = ((-1.0, 0.0, 1.0), (-2.0, 0.0, 2.0), (-1.0, 0.0, 1.0))  # how much brighter it gets to the right; its transpose, downwards


def picture(x: Tensor) -> Tensor:
    """The numbers (rows, d) of images (rows, channels, height, width); colours are averaged.

    >>> picture(torch.zeros(2, 1, 112, 112)).shape
    torch.Size([2, 768])
    """
    gray = x.mean(1, keepdim=True)
    return torch.cat([_pooled(gray, PIXELS), _pooled(_edges(gray), PLACES)], dim=1)


def _edges(gray: Tensor) -> Tensor:
    """The strength of the edge at each place, in one of eight channels by its direction (rows, 8, height - 2, width - 2)."""
    kernel = gray.new_tensor(SOBEL)
    slopes = F.conv2d(gray, torch.stack([kernel, kernel.T])[:, None] / 8)
    across, down = slopes[:, :1], slopes[:, 1:]
    strength = (across * across + down * down).sqrt()
    right, below, flat = across > 0, down > 0, across.abs() > down.abs()
    eighths = [a & b & c for a in (right, ~right) for b in (below, ~below) for c in (flat, ~flat)]
    return torch.cat([strength * eighth for eighth in eighths], dim=1)


def _pooled(x: Tensor, places: int) -> Tensor:
    """Means over squares, about so many a side, as one vector a row."""
    return F.avg_pool2d(x, max(1, min(x.shape[2:]) // places)).flatten(1)
