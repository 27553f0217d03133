"""Adam with one second moment a tensor instead of one a weight.

Adam gives every weight a step of the same size, also one that leads from an input which two rows have: fine-tuning on a few thousand rows
then learns these rows by heart. Here a step is as large as Adam's on average over a tensor, and lies where the gradient does.
"""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from equipoise.models.feed import sent
from equipoise.models.stack import Stack

BETAS = (0.9, 0.99)
EPS = 1e-12


class StackedBlockwise:
    """Over the flat buffer of a stack, with a learning rate a replicate (0 freezes one)."""

    def __init__(self, stack: Stack, rate: float | Tensor) -> None:
        self.stack = stack
        self.lengths = stack.lengths.to(stack.theta.dtype)
        self.mean, self.square = torch.zeros_like(stack.theta), torch.zeros_like(self.lengths)
        self.steps = 0
        self.set_rate(rate)

    def set_rate(self, rate: float | Tensor) -> None:
        """A new learning rate for all replicates or for each (R,)."""
        each = torch.as_tensor(rate, dtype=self.stack.theta.dtype).expand(self.stack.size)
        self.rate = sent(each.repeat(len(self.lengths) // self.stack.size), self.stack.device)

    @torch.no_grad()
    def step(self) -> None:
        """One update from the gradients, which are then cleared."""
        self.steps += 1
        b1, b2 = BETAS
        g = self.stack.gradient
        self.mean.lerp_(g, 1 - b1)
        self.square.lerp_(self.stack.block_sums(g * g) / self.lengths, 1 - b2)
        size = self.square.div(1 - b2**self.steps).sqrt_().add_(EPS)
        self.stack.theta.addcmul_(self.mean, (self.rate / size)[self.stack.block], value=-1 / (1 - b1**self.steps))
        g.zero_()


class Blockwise(torch.optim.Optimizer):
    """Over the parameters of any one module."""

    def __init__(self, parameters: Iterable[nn.Parameter], rate: float) -> None:
        super().__init__(parameters, {"lr": rate})
        self.wanted = [p for group in self.param_groups for p in group["params"]]
        self.means = [torch.zeros_like(p) for p in self.wanted]
        self.squares = [torch.zeros((), device=p.device) for p in self.wanted]
        self.steps = 0

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One update from the gradients."""
        assert closure is None  # the gradient is there already
        self.steps += 1
        b1, b2 = BETAS
        rate = self.param_groups[0]["lr"] / (1 - b1**self.steps)
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.wanted]
        torch._foreach_lerp_(self.means, gradients, 1 - b1)
        for p, g, mean, square in zip(self.wanted, gradients, self.means, self.squares, strict=True):
            square.lerp_(g.square().mean().to(square.dtype), 1 - b2)
            p.sub_(mean * (rate / square.div(1 - b2**self.steps).sqrt_().add_(EPS)).to(p.dtype))
