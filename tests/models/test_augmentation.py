"""Augmentation: each kind of change, the darkest value outside the image, and draws that depend only on the seed."""

import numpy as np
import torch

from equipoise.models.training import Augmentation, transformed_images

STILL = Augmentation(crop=1.0, flip=0.0, shift=0.0, turn=0.0)


def test_zero_ranges_leave_images_unchanged():
    x = torch.randn(3, 1, 9, 9)
    assert torch.allclose(transformed_images(x, STILL.draw(3, np.random.default_rng(0))), x, atol=1e-5)


def test_a_flip_mirrors_left_and_right():
    x = torch.randn(2, 1, 8, 8)
    maps = Augmentation(crop=1.0, flip=1.0, shift=0.0, turn=0.0).draw(2, np.random.default_rng(0))
    assert torch.allclose(transformed_images(x, maps), x.flip(3), atol=1e-5)


def test_a_quarter_turn_rotates_the_image():
    x = torch.randn(1, 1, 8, 8)
    maps = torch.tensor([[[0.0, -1.0, 0.0], [1.0, 0.0, 0.0]]])
    assert torch.allclose(transformed_images(x, maps), torch.rot90(x, 1, (2, 3)), atol=1e-5)
    drawn = Augmentation(crop=1.0, flip=0.0, shift=0.0, turn=10.0).draw(200, np.random.default_rng(0))
    angles = torch.rad2deg(torch.atan2(drawn[:, 1, 0], drawn[:, 0, 0]))
    assert 8 < angles.abs().max() <= 10


def test_pixels_from_outside_have_the_darkest_value():
    x = torch.full((1, 1, 10, 10), 3.0)
    x[0, 0, 4, 4] = 1.5
    shifted = transformed_images(x, torch.tensor([[[1.0, 0.0, 1.0], [0.0, 1.0, 0.0]]]))
    assert shifted.min() == 1.5
    assert torch.allclose(shifted[0, 0, :, -1], torch.tensor(1.5))


def test_a_crop_keeps_the_centre_and_enlarges_it():
    x = torch.zeros(1, 1, 64, 64)
    x[0, 0, 24:40, 24:40] = 1.0
    maps = Augmentation(crop=0.5, flip=0.0, shift=0.0, turn=0.0).draw(100, np.random.default_rng(0))
    scales = maps[:, 0, 0]
    assert 0.5 <= scales.min() < 0.55
    assert 0.95 < scales.max() <= 1
    large = transformed_images(x, maps[scales.argmin()][None])
    assert 1.5 < large.sum() / x.sum() / 2 < 2.1


def test_draws_depend_only_on_the_seed():
    one, two, other = (Augmentation().draw(5, np.random.default_rng(k)) for k in (0, 0, 1))
    assert torch.equal(one, two)
    assert not torch.equal(one, other)
