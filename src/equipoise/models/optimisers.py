"""Optimisers for one module and for a stack: Adam, a blockwise Adam, and plain gradient descent.

Adam gives every weight a step of the same size, including weights of an input that is nonzero in only two rows: fine-tuning on a few
thousand rows then memorises these rows. Blockwise Adam has one second moment per tensor: a step is as large as Adam's on average over a
tensor, and follows the gradient within it.
"""

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn

from equipoise.errors import BadInput
from equipoise.models.devices import to_device
from equipoise.models.protocol import BoolArray, FloatArray
from equipoise.models.stack import Stack

OPTIMISERS: dict[str, type[torch.optim.Adam] | type[torch.optim.AdamW]] = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
BETAS = (0.9, 0.99)
EPS = 1e-12


class StackedAdam:
    """Adam over the flat buffer of a stack, with one learning rate per replicate (0 freezes it)."""

    def __init__(self, stack: Stack, rate: float | Tensor, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8) -> None:
        self.stack, self.betas, self.eps = stack, betas, eps
        self.mean, self.square = torch.zeros_like(stack.theta), torch.zeros_like(stack.theta)
        self.steps = 0
        self.own_steps: Tensor | None = None  # (R,) after a restoration, when replicates have taken different numbers of steps
        self.set_rate(rate)

    def set_rate(self, rate: float | Tensor) -> None:
        """Sets the learning rate of all replicates, or of each (R,), on the CPU."""
        self.rate = torch.as_tensor(rate, dtype=self.stack.theta.dtype).expand(self.stack.size)
        uniform = bool((self.rate == self.rate[0]).all())
        self._rate_of_numbers: Tensor | float = (
            float(self.rate[0]) if uniform else to_device(self.rate, self.stack.device)[self.stack.owner]
        )

    @torch.no_grad()
    def step(self) -> None:
        """One update from the gradients, which are then cleared."""
        self.steps += 1
        b1, b2 = self.betas
        g = self.stack.gradient
        self.mean.lerp_(g, 1 - b1)
        self.square.mul_(b2).addcmul_(g, g, value=1 - b2)
        if self.own_steps is not None:
            self.own_steps += 1
            first, second = (to_device(1 - b**self.own_steps, self.stack.device).to(g.dtype) for b in self.betas)
            denominator = self.square.sqrt().div_(second.sqrt()[self.stack.owner]).add_(self.eps)
            rate = to_device(self.rate, self.stack.device) / first
            self.stack.theta.addcmul_(self.mean.div(denominator), rate[self.stack.owner], value=-1)
            g.zero_()
            return
        scale = (1 - b2**self.steps) ** 0.5
        denominator = self.square.sqrt().div_(scale).add_(self.eps)
        if isinstance(self._rate_of_numbers, float):
            self.stack.theta.addcdiv_(self.mean, denominator, value=-self._rate_of_numbers / (1 - b1**self.steps))
        else:
            self.stack.theta.addcmul_(self.mean.div(denominator), self._rate_of_numbers, value=-1 / (1 - b1**self.steps))
        g.zero_()


class StackedBlockwise:
    """Blockwise Adam over the flat buffer of a stack, with one learning rate per replicate (0 freezes it)."""

    def __init__(self, stack: Stack, rate: float | Tensor) -> None:
        self.stack = stack
        self.lengths = stack.lengths.to(stack.theta.dtype)
        self.mean, self.square = torch.zeros_like(stack.theta), torch.zeros_like(self.lengths)
        self.steps = 0
        self.own_steps: Tensor | None = None  # (R,) after a restoration
        self.set_rate(rate)

    def set_rate(self, rate: float | Tensor) -> None:
        """Sets the learning rate of all replicates, or of each (R,)."""
        rates = torch.as_tensor(rate, dtype=self.stack.theta.dtype).expand(self.stack.size)
        self.rate = to_device(rates.repeat(len(self.lengths) // self.stack.size), self.stack.device)

    @torch.no_grad()
    def step(self) -> None:
        """One update from the gradients, which are then cleared."""
        self.steps += 1
        b1, b2 = BETAS
        g = self.stack.gradient
        self.mean.lerp_(g, 1 - b1)
        self.square.lerp_(self.stack.block_sums(g * g) / self.lengths, 1 - b2)
        if self.own_steps is not None:
            self.own_steps += 1
            tensors = len(self.lengths) // self.stack.size
            first, second = (to_device(1 - b**self.own_steps, self.stack.device).to(g.dtype).repeat(tensors) for b in BETAS)
            size = self.square.div(second).sqrt_().add_(EPS)
            self.stack.theta.addcmul_(self.mean, (self.rate / first / size)[self.stack.block], value=-1)
            g.zero_()
            return
        size = self.square.div(1 - b2**self.steps).sqrt_().add_(EPS)
        self.stack.theta.addcmul_(self.mean, (self.rate / size)[self.stack.block], value=-1 / (1 - b1**self.steps))
        g.zero_()


class Blockwise(torch.optim.Optimizer):
    """Blockwise Adam over the parameters of one module."""

    def __init__(self, parameters: Iterable[nn.Parameter], rate: float) -> None:
        super().__init__(parameters, {"lr": rate})
        self.parameters = [p for group in self.param_groups for p in group["params"]]
        self.means = [torch.zeros_like(p) for p in self.parameters]
        self.squares = [torch.zeros((), device=p.device) for p in self.parameters]
        self.steps = 0

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One update from the gradients."""
        assert closure is None  # the gradient has been computed
        self.steps += 1
        b1, b2 = BETAS
        rate = self.param_groups[0]["lr"] / (1 - b1**self.steps)
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters]
        torch._foreach_lerp_(self.means, gradients, 1 - b1)
        for p, g, mean, square in zip(self.parameters, gradients, self.means, self.squares, strict=True):
            square.lerp_(g.square().mean().to(square.dtype), 1 - b2)
            p.sub_(mean * (rate / square.div(1 - b2**self.steps).sqrt_().add_(EPS)).to(p.dtype))


class StackedSteps:
    """The optimiser of a stack: Adam, blockwise Adam or plain gradient descent."""

    def __init__(self, stack: Stack, name: str, rate: float) -> None:
        if name == "adamw":
            raise BadInput("adamw steps one network at a time, and these are a stack of the paper's MLP; use adam")
        self.stack = stack
        self.rate = torch.full((stack.size,), rate)
        self.stopped = torch.zeros(stack.size, dtype=torch.bool)
        self._marked: list[Tensor] = []
        kinds: dict[str, type[StackedAdam] | type[StackedBlockwise]] = {"adam": StackedAdam, "blockwise": StackedBlockwise}
        self.adam = kinds[name](stack, self.rate) if name in kinds else None

    def step(self) -> None:
        if self.adam is not None:
            self.adam.step()
            return
        with torch.no_grad():
            self.stack.theta.addcmul_(self.stack.gradient, to_device(self.rate, self.stack.device)[self.stack.owner], value=-1)
            self.stack.gradient.zero_()

    def stop(self, replicates: BoolArray) -> None:
        self.stopped = self.stopped | torch.from_numpy(replicates)
        self._apply_rates(self.rate)

    def set_rates(self, rates: FloatArray) -> None:
        self._apply_rates(torch.from_numpy(rates).float())

    def _apply_rates(self, rates: Tensor) -> None:
        self.rate = torch.where(self.stopped, 0.0, rates)
        if self.adam is not None:
            self.adam.set_rate(self.rate)

    def mark(self, replicates: BoolArray) -> None:
        if self.adam is None:
            return
        present = _moments(self.adam)
        self._marked = self._marked or [t.clone() for t in present]
        for chosen, marked, value in zip(_moment_masks(self.adam, replicates), self._marked, present, strict=True):
            torch.where(chosen, value, marked, out=marked)

    def restore(self, replicates: BoolArray) -> None:
        if self.adam is None or not replicates.any():
            return
        present = _moments(self.adam)
        for chosen, marked, value in zip(_moment_masks(self.adam, replicates), self._marked, present, strict=True):
            torch.where(chosen, marked, value, out=value)
        self.adam.own_steps = present[2]


def _moments(adam: StackedAdam | StackedBlockwise) -> list[Tensor]:
    """The first and second moments, and the number of steps that each replicate has taken (R,), on the CPU."""
    steps = torch.full((adam.stack.size,), float(adam.steps), dtype=torch.float64) if adam.own_steps is None else adam.own_steps
    return [adam.mean, adam.square, steps]


def _moment_masks(adam: StackedAdam | StackedBlockwise, replicates: BoolArray) -> list[Tensor]:
    """Masks of the numbers in `_moments` that belong to these replicates."""
    chosen = torch.from_numpy(replicates)
    on_device = to_device(chosen, adam.stack.device)
    numbers = on_device[adam.stack.owner]
    return [numbers, numbers if isinstance(adam, StackedAdam) else on_device.repeat(len(adam.square) // adam.stack.size), chosen]


class SingleSteps:
    """The optimiser of one module, around an optimiser of torch."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner, self.stopped = inner, False
        self._marked: list[Tensor] = []
        self._steps = 0

    def step(self) -> None:
        if not self.stopped:
            self.inner.step()
        self.inner.zero_grad(set_to_none=False)  # a recorded step writes to these tensors

    def stop(self, replicates: BoolArray) -> None:
        self.stopped = self.stopped or bool(replicates[0])

    def set_rates(self, rates: FloatArray) -> None:
        for group in self.inner.param_groups:
            group["lr"] = float(rates[0])

    def _moments(self) -> list[Tensor]:
        """The tensors that the next step depends on, besides the gradient; none before the first step."""
        if isinstance(self.inner, Blockwise):
            return [*self.inner.means, *self.inner.squares]
        return [value for state in self.inner.state.values() for value in state.values() if isinstance(value, Tensor)]

    def mark(self, replicates: BoolArray) -> None:
        if replicates[0]:
            self._marked = copied(self._moments(), self._marked)
            self._steps = getattr(self.inner, "steps", 0)

    def restore(self, replicates: BoolArray) -> None:
        if not replicates[0]:
            return
        if isinstance(self.inner, Blockwise):
            self.inner.steps = self._steps
        if self._marked:
            copied(self._marked, self._moments())
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
