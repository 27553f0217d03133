"""Features of an image without a network: small pictures, and edges by strength and direction, compared with a loop in NumPy."""

import numpy as np
import pytest
import torch

from equipoise.models.features import picture


def by_hand(image: np.ndarray) -> np.ndarray:
    """Features of one grey image, one position at a time."""
    h, w = image.shape
    side = max(1, min(h, w) // 16)
    small = [image[r : r + side, c : c + side].mean() for r in range(0, h - side + 1, side) for c in range(0, w - side + 1, side)]
    strength = np.zeros((8, h - 2, w - 2))
    for r in range(h - 2):
        for c in range(w - 2):
            p = image[r : r + 3, c : c + 3]
            across = (p[0, 2] + 2 * p[1, 2] + p[2, 2] - p[0, 0] - 2 * p[1, 0] - p[2, 0]) / 8
            down = (p[2, 0] + 2 * p[2, 1] + p[2, 2] - p[0, 0] - 2 * p[0, 1] - p[0, 2]) / 8
            # As a sum of an axis and a diagonal next to each other: (3, 1) is 2 to the right and 1 diagonally.
            axis, diagonal = abs(abs(across) - abs(down)), min(abs(across), abs(down))
            sideways = abs(across) > abs(down)
            strength[(0 if across > 0 else 1) if sideways else (2 if down > 0 else 3), r, c] = axis
            strength[4 + 2 * (across <= 0) + (down <= 0), r, c] = np.sqrt(2) * diagonal
    cell = max(1, min(h - 2, w - 2) // 8)
    edges = [
        one[r : r + cell, c : c + cell].mean()
        for one in strength
        for r in range(0, h - 2 - cell + 1, cell)
        for c in range(0, w - 2 - cell + 1, cell)
    ]
    return np.array([*small, *edges])


@pytest.mark.parametrize("shape", [(34, 34), (40, 57), (8, 8), (3, 5)])
def test_features_equal_a_loop_over_positions(shape: tuple[int, int]) -> None:
    images = torch.from_numpy(np.random.default_rng(0).normal(size=(3, 1, *shape)))
    assert picture(images).numpy() == pytest.approx(np.stack([by_hand(image[0].numpy()) for image in images]), abs=1e-12)


def test_colours_are_averaged() -> None:
    images = torch.randn(2, 3, 32, 32)
    assert torch.equal(picture(images), picture(images.mean(1, keepdim=True)))


def test_every_edge_has_a_direction() -> None:
    """The eight directions of a rotated picture are the rotated directions of the picture."""
    images = torch.randn(2, 1, 50, 50).double()
    one_way = picture(images)[:, 256:].reshape(2, 8, 64).sum(1)
    turned = picture(images.rot90(2, (2, 3)))[:, 256:].reshape(2, 8, 8, 8).sum(1).rot90(2, (1, 2)).reshape(2, 64)
    assert one_way.numpy() == pytest.approx(turned.numpy(), abs=1e-12)


def test_pixels_that_differ_by_rounding_give_the_same_features() -> None:
    """Edges of images with few levels of gray are exactly horizontal, vertical or diagonal, where a direction ends and the next begins."""
    rng = np.random.default_rng(0)
    images = torch.from_numpy(np.repeat(np.repeat(rng.integers(0, 4, (6, 1, 16, 16)), 4, 2), 4, 3).astype(np.float32) / 4)
    moved = images + torch.from_numpy(rng.uniform(-2e-7, 2e-7, images.shape).astype(np.float32))
    assert (picture(images) - picture(moved)).abs().max() < 1e-6
