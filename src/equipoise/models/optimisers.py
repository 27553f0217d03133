"""Steps down a gradient, for one module and for a stack: Adam, a blockwise Adam, and plain gradient descent.

Adam gives every weight a step of the same size, including weights of an input that only two rows have: fine-tuning on a few thousand rows
then memorises these rows. The blockwise kind has one second moment per tensor: a step is as large as Adam's on average over a tensor, and
follows the gradient within it.
"""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from equipoise.errors import BadInput
from equipoise.models.devices import to_device
from equipoise.models.protocol import BoolArray
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
        self.set_rate(rate)

    def set_rate(self, rate: float | Tensor) -> None:
        """A new learning rate for all replicates or for each (R,), on the CPU."""
        self.rate = torch.as_tensor(rate, dtype=self.stack.theta.dtype).expand(self.stack.size)
        uniform = bool((self.rate == self.rate[0]).all())
        self._spread: Tensor | float = float(self.rate[0]) if uniform else to_device(self.rate, self.stack.device)[self.stack.owner]

    @torch.no_grad()
    def step(self) -> None:
        """One update from the gradients, which are then cleared."""
        self.steps += 1
        b1, b2 = self.betas
        g = self.stack.gradient
        self.mean.lerp_(g, 1 - b1)
        self.square.mul_(b2).addcmul_(g, g, value=1 - b2)
        scale = (1 - b2**self.steps) ** 0.5
        denominator = self.square.sqrt().div_(scale).add_(self.eps)
        if isinstance(self._spread, float):
            self.stack.theta.addcdiv_(self.mean, denominator, value=-self._spread / (1 - b1**self.steps))
        else:
            self.stack.theta.addcmul_(self.mean.div(denominator), self._spread, value=-1 / (1 - b1**self.steps))
        g.zero_()


class StackedBlockwise:
    """Blockwise Adam over the flat buffer of a stack, with one learning rate per replicate (0 freezes it)."""

    def __init__(self, stack: Stack, rate: float | Tensor) -> None:
        self.stack = stack
        self.lengths = stack.lengths.to(stack.theta.dtype)
        self.mean, self.square = torch.zeros_like(stack.theta), torch.zeros_like(self.lengths)
        self.steps = 0
        self.set_rate(rate)

    def set_rate(self, rate: float | Tensor) -> None:
        """A new learning rate for all replicates or for each (R,)."""
        each = torch.as_tensor(rate, dtype=self.stack.theta.dtype).expand(self.stack.size)
        self.rate = to_device(each.repeat(len(self.lengths) // self.stack.size), self.stack.device)

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
    """Blockwise Adam over the parameters of one module."""

    def __init__(self, parameters: Iterable[nn.Parameter], rate: float) -> None:
        super().__init__(parameters, {"lr": rate})
        self.wanted = [p for group in self.param_groups for p in group["params"]]
        self.means = [torch.zeros_like(p) for p in self.wanted]
        self.squares = [torch.zeros((), device=p.device) for p in self.wanted]
        self.steps = 0

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One update from the gradients."""
        assert closure is None  # the gradient has been computed
        self.steps += 1
        b1, b2 = BETAS
        rate = self.param_groups[0]["lr"] / (1 - b1**self.steps)
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.wanted]
        torch._foreach_lerp_(self.means, gradients, 1 - b1)
        for p, g, mean, square in zip(self.wanted, gradients, self.means, self.squares, strict=True):
            square.lerp_(g.square().mean().to(square.dtype), 1 - b2)
            p.sub_(mean * (rate / square.div(1 - b2**self.steps).sqrt_().add_(EPS)).to(p.dtype))


class StackedSteps:
    """Steps of a stack: Adam, blockwise Adam or plain gradient descent."""

    def __init__(self, stack: Stack, name: str, rate: float) -> None:
        if name == "adamw":
            raise BadInput("adamw steps one network at a time, and these are a stack of the paper's MLP; use adam")
        self.stack = stack
        self.rate = torch.full((stack.size,), rate)
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
        self.rate = torch.where(torch.from_numpy(replicates), 0.0, self.rate)
        if self.adam is not None:
            self.adam.set_rate(self.rate)


class SingleSteps:
    """Steps of one module by a torch optimiser."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner, self.stopped = inner, False

    def step(self) -> None:
        if not self.stopped:
            self.inner.step()
        self.inner.zero_grad(set_to_none=False)  # a recorded step writes to these tensors

    def stop(self, replicates: BoolArray) -> None:
        self.stopped = self.stopped or bool(replicates[0])
