"""Blockwise Adam: the size of its steps, and equal steps for a flat MLP and for any module."""

import copy

import pytest
import torch

from equipoise.models import MLP
from equipoise.models.mlp import Blockwise, FlatAdam, FlatBlockwise, FlatMLP


def _network() -> MLP:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return MLP(5, width=4, depth=1).eval()


def _slope(logits: torch.Tensor) -> torch.Tensor:
    return logits - 1


def test_the_first_step_is_as_large_as_the_rate_in_each_tensor_and_lies_along_the_gradient():
    weight = torch.nn.Parameter(torch.zeros(2, 2))
    weight.grad = torch.tensor([[3.0, 0.0], [0.0, 1e-3]])
    gradient = weight.grad.clone()
    Blockwise([weight], 0.1).step()
    assert weight.detach().square().mean().sqrt() == pytest.approx(0.1, rel=1e-5)
    torch.testing.assert_close(weight.detach() / weight.detach()[0, 0], gradient / 3.0)  # Adam would move both entries alike


def test_a_flat_mlp_takes_the_steps_of_the_network_and_a_rate_of_zero_freezes_it():
    model = _network()
    x = torch.randn(20, 5, generator=torch.Generator().manual_seed(1))
    flat, alone = FlatMLP(model), copy.deepcopy(model)
    steps, single = FlatBlockwise(flat, 0.01), Blockwise(alone.parameters(), 0.01)
    for number in range(4):
        for optimiser in (steps, single):
            optimiser.set_rate(0.0 if number == 2 else 0.01)
        flat.fill_gradient(x, _slope)
        z = alone(x)
        z.backward(_slope(z.detach()))
        for optimiser in (steps, single):
            optimiser.step()
    for a, b in zip(flat.trained().parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_after_a_restoration_steps_are_the_same_up_to_rounding():
    x = torch.randn(20, 5, generator=torch.Generator().manual_seed(1))
    for kind in (FlatAdam, FlatBlockwise):
        plain, detour = FlatMLP(_network()), FlatMLP(_network())
        for flat in (plain, detour):
            steps = kind(flat, 0.01)
            for number in range(4):
                if number == 2 and flat is detour:
                    steps.mark()
                    steps.restore()
                flat.fill_gradient(x, _slope)
                steps.step()
        torch.testing.assert_close(detour.theta, plain.theta, rtol=1e-5, atol=1e-6)
