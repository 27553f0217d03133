"""Blockwise Adam: the size of its steps, frozen replicates, and equal steps for a stack and for single modules."""

import copy

import pytest
import torch

from equipoise.models import MLP
from equipoise.models.optimisers import Blockwise, StackedBlockwise
from equipoise.models.stack import Stack


def _networks() -> list[MLP]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return [MLP(5, width=4, depth=1).eval() for _ in range(3)]


def _slope(logits: torch.Tensor) -> torch.Tensor:
    return logits - 1


def test_the_first_step_is_as_large_as_the_rate_in_each_tensor_and_lies_along_the_gradient():
    weight = torch.nn.Parameter(torch.zeros(2, 2))
    weight.grad = torch.tensor([[3.0, 0.0], [0.0, 1e-3]])
    Blockwise([weight], 0.1).step()
    assert weight.detach().square().mean().sqrt() == pytest.approx(0.1, rel=1e-5)
    torch.testing.assert_close(weight.detach() / weight.detach()[0, 0], weight.grad / 3.0)  # Adam would move both entries alike


def test_a_stack_takes_the_steps_of_each_network_and_a_rate_of_zero_freezes_one():
    models = _networks()
    x = torch.randn(3, 20, 5, generator=torch.Generator().manual_seed(1))
    stack = Stack(models)
    steps = StackedBlockwise(stack, 0.01)
    alone = [copy.deepcopy(m) for m in models]
    singles = [Blockwise(m.parameters(), 0.01) for m in alone]
    for number in range(4):
        if number == 2:
            steps.set_rate(torch.tensor([0.01, 0.0, 0.01]))
        stack.fill_gradient(x, _slope)
        steps.step()
        for r, (model, single) in enumerate(zip(alone, singles, strict=True)):
            if number >= 2 and r == 1:
                continue
            single.zero_grad()
            z = model(x[r])
            z.backward(_slope(z.detach()))
            single.step()
    for found, expected in zip(stack.unstack(), alone, strict=True):
        for a, b in zip(found.parameters(), expected.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
