"""Optimisers of a network under repair: Adam, a blockwise Adam, plain gradient descent, and those of torch.

Adam gives every weight a step of the same size, including weights of an input that is nonzero in only two rows: fine-tuning on a few
thousand rows then memorises these rows. Blockwise Adam has one second moment per tensor: a step is as large as Adam's on average over a
tensor, and follows the gradient within it.
"""

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from equipoise.models.mlp import FlatMLP

OPTIMISERS: dict[str, type[torch.optim.Adam] | type[torch.optim.AdamW]] = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
BETAS = (0.9, 0.99)  # of blockwise Adam
EPS = 1e-12


class Optimiser(Protocol):
    """Takes steps along the accumulated gradients and clears them. Implementations derive from it, since it keeps their moments."""

    rate: float
    moments: list[Tensor]  # what the next step depends on, besides the gradient and the number of steps
    steps: int
    _marked: list[Tensor]
    _marked_steps: int

    @abstractmethod
    def step(self) -> None:
        """One update from the gradients, which are then cleared."""

    def set_rate(self, rate: float) -> None:
        """Sets the learning rate."""
        self.rate = rate

    def mark(self) -> None:
        """Copies the moments, for `restore`."""
        self._marked, self._marked_steps = copied(self.moments, self._marked), self.steps

    def restore(self) -> None:
        """Restores the moments from the last mark."""
        copied(self._marked, self.moments)
        self.steps = self._marked_steps


class FlatSteps(Optimiser):
    """Plain gradient descent over the flat buffer of an MLP, in single precision."""

    def __init__(self, flat: FlatMLP, rate: float, moments: Sequence[Tensor] = ()) -> None:
        self.flat, self.moments, self.steps = flat, list(moments), 0
        self._marked, self._marked_steps, self.restored = [], 0, False
        self.set_rate(rate)

    def set_rate(self, rate: float) -> None:
        self.rate = float(np.float32(rate))

    def restore(self) -> None:
        super().restore()
        self.restored = True

    def corrections(self, betas: tuple[float, float]) -> list[Tensor]:
        """1 - beta**steps of both moments, in single precision (1,)."""
        steps = torch.tensor([float(self.steps)], dtype=torch.float64)
        return [(1 - b**steps).to(self.flat.theta) for b in betas]

    @torch.no_grad()
    def step(self) -> None:
        self.steps += 1
        self.update(self.flat.gradient)
        self.flat.gradient.zero_()

    def update(self, g: Tensor) -> None:
        """Moves the parameters along a gradient."""
        self.flat.theta.addcmul_(g, torch.full_like(g, self.rate), value=-1)


class FlatAdam(FlatSteps):
    """Adam over the flat buffer of an MLP."""

    betas, eps = (0.9, 0.999), 1e-8

    def __init__(self, flat: FlatMLP, rate: float) -> None:
        super().__init__(flat, rate, [torch.zeros_like(flat.theta), torch.zeros_like(flat.theta)])

    def update(self, g: Tensor) -> None:
        (mean, square), (b1, b2) = self.moments, self.betas
        mean.lerp_(g, 1 - b1)
        square.mul_(b2).addcmul_(g, g, value=1 - b2)
        if self.restored:
            first, second = self.corrections(self.betas)
            rate = torch.full_like(first, self.rate) / first
            denominator = square.sqrt().div_(second.sqrt()).add_(self.eps)
            self.flat.theta.addcmul_(mean.div(denominator), rate.expand_as(g).contiguous(), value=-1)
            return
        denominator = square.sqrt().div_((1 - b2**self.steps) ** 0.5).add_(self.eps)
        self.flat.theta.addcdiv_(mean, denominator, value=-self.rate / (1 - b1**self.steps))


class FlatBlockwise(FlatSteps):
    """Blockwise Adam over the flat buffer of an MLP."""

    def __init__(self, flat: FlatMLP, rate: float) -> None:
        self.lengths = flat.lengths.to(flat.theta.dtype)
        super().__init__(flat, rate, [torch.zeros_like(flat.theta), torch.zeros_like(self.lengths)])

    def update(self, g: Tensor) -> None:
        (mean, square), (b1, b2) = self.moments, BETAS
        mean.lerp_(g, 1 - b1)
        square.lerp_(self.flat.block_sums(g * g) / self.lengths, 1 - b2)
        if self.restored:
            first, second = self.corrections(BETAS)
            size = square.div(second).sqrt_().add_(EPS)
            self.flat.theta.addcmul_(mean, (torch.full_like(size, self.rate) / first / size)[self.flat.block], value=-1)
            return
        size = square.div(1 - b2**self.steps).sqrt_().add_(EPS)
        self.flat.theta.addcmul_(mean, (torch.full_like(size, self.rate) / size)[self.flat.block], value=-1 / (1 - b1**self.steps))


class Blockwise(Optimiser):
    """Blockwise Adam over the parameters of any module."""

    def __init__(self, parameters: Iterable[nn.Parameter], rate: float) -> None:
        self.parameters, self.rate, self.steps = list(parameters), rate, 0
        self.means = [torch.zeros_like(p) for p in self.parameters]
        self.squares = [torch.zeros((), device=p.device) for p in self.parameters]
        self.moments = [*self.means, *self.squares]
        self._marked, self._marked_steps = [], 0

    @torch.no_grad()
    def step(self) -> None:
        self.steps += 1
        b1, b2 = BETAS
        rate = self.rate / (1 - b1**self.steps)
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters]
        torch._foreach_lerp_(self.means, gradients, 1 - b1)
        for p, g, mean, square in zip(self.parameters, gradients, self.means, self.squares, strict=True):
            square.lerp_(g.square().mean().to(square.dtype), 1 - b2)
            p.sub_(mean * (rate / square.div(1 - b2**self.steps).sqrt_().add_(EPS)).to(p.dtype))
        torch._foreach_zero_(gradients)  # in place: a recorded step writes to these tensors


class TorchSteps(Optimiser):
    """An optimiser of torch."""

    def __init__(self, inner: torch.optim.Optimizer, rate: float) -> None:
        self.inner, self.rate, self.steps = inner, rate, 0
        self._marked, self._marked_steps = [], 0

    @property
    def moments(self) -> list[Tensor]:  # type: ignore[override]
        """None before the first step."""
        return [value for state in self.inner.state.values() for value in state.values() if isinstance(value, Tensor)]

    def step(self) -> None:
        self.inner.step()
        self.inner.zero_grad(set_to_none=False)  # a recorded step writes to these tensors

    def set_rate(self, rate: float) -> None:
        self.rate = rate
        for group in self.inner.param_groups:
            group["lr"] = rate

    def restore(self) -> None:
        if self._marked:
            super().restore()
        else:
            self.inner.state.clear()


@torch.no_grad()
def copied(source: Sequence[Tensor], target: list[Tensor]) -> list[Tensor]:
    """The target with the source's values; new tensors if the target is empty."""
    if len(target) != len(source):
        return [t.detach().clone() for t in source]
    for old, new in zip(target, source, strict=True):
        old.copy_(new)
    return target
