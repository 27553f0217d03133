"""The paper's network for tables (Table `tab:arch`), a copy of it that trains fast, and the optimisers of any network under repair.

A 32-unit layer spends nearly all of its time on overhead. In `FlatMLP`, activations are (1, units, rows), so that batch norm is one fused
call over units as channels; parameters and gradients each lie in one flat buffer, so that an optimiser's step is a few operations; and the
gradient is computed without autograd. Dropout masks come from a generator of their own, drawn on the CPU, so that they are the same on
every device. On a GPU a step's 300 small kernels are recorded once and replayed (see devices), and sums are computed in another order: a
step there equals one on a CPU up to rounding, which training amplifies.

Adam gives every weight a step of the same size, including weights of an input that is nonzero in only two rows: fine-tuning on a few
thousand rows then memorises these rows. Blockwise Adam has one second moment per tensor: a step is as large as Adam's on average over a
tensor, and follows the gradient within it.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from equipoise.data import child_seed
from equipoise.models.devices import Recorder, device_of, to_device

MOMENTUM, EPS = 0.1, 1e-5  # of batch norm, the defaults of torch.nn
CPU_CHUNK = 512  # rows of one evaluation step: activations of a chunk stay in the processor's cache
DEVICE_CHUNK = 2**14  # on other devices, which are faster in few large steps
NORM_BACKWARD = torch.ops.aten.native_batch_norm_backward.default  # named in full: choosing the variant takes as long as the operation
RELU_BACKWARD = torch.ops.aten.threshold_backward.default
RECORD_AFTER = 8  # small steps before one is recorded, since a recording takes as long as a hundred of them
OPTIMISERS: dict[str, type[torch.optim.Adam] | type[torch.optim.AdamW]] = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
BLOCKWISE_BETAS = (0.9, 0.99)  # of blockwise Adam
NEAR_ZERO = 1e-12


class MLP(nn.Module):
    """Linear, ReLU, dropout, batch norm: once from the inputs and `depth` times more, then one logit.

    The paper's network ends in a sigmoid; this one returns the logit, whose sigmoid is the score.

    >>> MLP(98)(torch.zeros(4, 98)).shape
    torch.Size([4])
    """

    output = "logit"

    def __init__(self, inputs: int, width: int = 32, depth: int = 10, dropout: float = 0.05) -> None:
        super().__init__()
        self.inputs, self.width, self.depth = inputs, width, depth
        sizes = [inputs, *[width] * (depth + 1)]
        self.linears = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))
        self.norms = nn.ModuleList(nn.BatchNorm1d(width) for _ in range(depth + 1))
        self.out = nn.Linear(width, 1)
        self.dropout = nn.Dropout(dropout)
        self.threshold: float | None = None  # chosen on validation data by `train`

    def forward(self, x: Tensor) -> Tensor:
        for linear, norm in zip(self.linears, self.norms, strict=True):
            x = norm(self.dropout(torch.relu(linear(x))))
        logit: Tensor = self.out(x)[:, 0]
        return logit


def initial_mlp(inputs: int, seed: int) -> MLP:
    """A new MLP whose weights depend only on the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(child_seed(seed, "weights"))
        return MLP(inputs)


@dataclass(frozen=True, eq=False)
class _Linear:
    """The views of a linear layer that a step needs, made once: of its parameters, and of their gradients."""

    bias: Tensor  # (1, out, 1)
    weight: Tensor  # (1, out, in)
    transposed: Tensor  # (1, in, out)
    bias_gradient: Tensor  # (out,)
    weight_gradient: Tensor  # (1, out, in)

    def __call__(self, h: Tensor) -> Tensor:
        """The outputs (1, out, rows) for inputs (1, in, rows)."""
        return torch.baddbmm(self.bias, self.weight, h)

    def set_gradient(self, d: Tensor, h: Tensor) -> None:
        """Sets the gradients from the gradient of the output (1, out, rows) and the input (1, in, rows)."""
        torch.bmm(d, h.transpose(1, 2), out=self.weight_gradient)
        torch.sum(d[0], 1, out=self.bias_gradient)


@dataclass(frozen=True, eq=False)
class _Norm:
    """The views of a batch norm that a step needs: of its parameters, their gradients and the running statistics."""

    weight: Tensor  # (width,)
    shift: Tensor  # (width, 1)
    weight_gradient: Tensor
    bias_gradient: Tensor
    mean: Tensor
    variance: Tensor


class FlatMLP:
    """A copy of an MLP whose parameters and gradients each lie in one buffer; `model` is the network itself, which reads them there."""

    def __init__(self, model: MLP, device: torch.device | None = None) -> None:
        self.device = device or device_of(model)
        self.original_device = device_of(model)
        self.chunk = CPU_CHUNK if self.device.type == "cpu" else DEVICE_CHUNK
        self.model = copy.deepcopy(model).to(self.device).eval()
        self.width, self.depth = model.width, model.depth
        self.limit = round(model.dropout.p * 65536)  # below which 16 random bits drop a unit
        self.kept = 1 / (1 - self.limit / 65536)  # the factor of the units that are not dropped
        self.parameters = dict(self.model.named_parameters())
        sizes = [p.numel() for p in self.parameters.values()]
        self.theta = torch.cat([p.detach().reshape(-1) for p in self.parameters.values()])
        self.gradient = torch.zeros_like(self.theta)
        self.gradients: dict[str, Tensor] = {}  # each parameter's view of the gradient
        for (name, p), values, gradient in zip(self.parameters.items(), self.theta.split(sizes), self.gradient.split(sizes), strict=True):
            p.data = values.view(p.shape)
            p.grad = self.gradients[name] = gradient.view(p.shape)
        lengths = torch.tensor(sizes)
        self.lengths = lengths.to(self.device)  # of every tensor, in theta's order
        self.block = torch.arange(len(sizes)).repeat_interleave(lengths).to(self.device)  # the tensor of each number in theta
        self.linears = [self._linear(f"linears.{k}") for k in range(self.depth + 1)]
        self.out, self.norms = self._linear("out"), [self._norm(f"norms.{k}") for k in range(self.depth + 1)]
        self.means, self.variances = [norm.mean for norm in self.norms], [norm.variance for norm in self.norms]

    def state(self) -> list[Tensor]:
        """Everything that training changes: the parameters in one tensor, and running statistics."""
        return [self.theta, *self.means, *self.variances]

    def recorder(self) -> Recorder:
        """Runs the steps of this network, which set the gradient and, in training, update the running statistics."""
        return Recorder(self.device, [*self.means, *self.variances], after=RECORD_AFTER)

    def trained(self) -> MLP:
        """A copy of the network in its present state, on its original device."""
        return copy.deepcopy(self.model).to(self.original_device)

    def _linear(self, name: str) -> _Linear:
        bias, weight = (self.parameters[f"{name}.{kind}"].data for kind in ("bias", "weight"))
        gradients = self.gradients[f"{name}.bias"], self.gradients[f"{name}.weight"][None]
        return _Linear(bias[None, :, None], weight[None], weight.T[None], *gradients)

    def _norm(self, name: str) -> _Norm:
        weight, bias = (self.parameters[f"{name}.{kind}"].data for kind in ("weight", "bias"))
        running = (self.model.get_buffer(f"{name}.running_{kind}") for kind in ("mean", "var"))
        return _Norm(weight, bias[:, None], self.gradients[f"{name}.weight"], self.gradients[f"{name}.bias"], *running)

    def logits(self, x: Tensor, *, masks: Tensor | None = None, training: bool = False, kept: list[Tensor] | None = None) -> Tensor:
        """The logits (rows,) of inputs (rows, features).

        `training` normalises by the batch and updates the running statistics; `masks` (layers, width, rows) are dropout masks, already
        scaled. `kept` receives the pre-activations (1, width, rows) of every hidden layer and, last, the features (1, width, rows) that
        enter the output layer.
        """
        h = x.T[None]
        for k in range(self.depth + 1):
            z = self._recorded(f"linears.{k}", h)
            if kept is not None:
                kept.append(z)
            h = torch.relu(z)
            if masks is not None:
                h = h * masks[k]
            scale, shift = self.parameters[f"norms.{k}.weight"], self.parameters[f"norms.{k}.bias"]
            h = F.batch_norm(h, self.means[k], self.variances[k], scale, shift, training=training)
        if kept is not None:
            kept.append(h)
        return self._recorded("out", h)[0, 0]

    def _recorded(self, layer: str, h: Tensor) -> Tensor:
        """The outputs (1, out, rows) of a linear layer for inputs (1, in, rows), differentiable by its parameters."""
        return torch.baddbmm(self.parameters[f"{layer}.bias"][None, :, None], self.parameters[f"{layer}.weight"][None], h)

    @torch.no_grad()
    def fill_gradient(self, x: Tensor, slope: Callable[[Tensor], Tensor], *, masks: Tensor | None = None, training: bool = False) -> None:
        """Sets `gradient` to that of a loss whose derivative with respect to the logits (rows,) is `slope(logits)`.

        Equal to autograd through `logits`, with half the operations, since nothing is recorded, zeroed or accumulated.
        """
        h, forward = x.T[None], []
        for k, (linear, norm) in enumerate(zip(self.linears, self.norms, strict=True)):
            a = linear(h).relu_()
            if masks is not None:
                a.mul_(masks[k])
            if training:  # normalised by the batch, which updates the running statistics
                rows = a.shape[2]
                mean = a[0].sum(1).div_(rows)
                centred = a[0] - mean[:, None]
                variance = torch.linalg.vecdot(centred, centred).div_(rows)
                norm.mean.lerp_(mean, MOMENTUM)
                norm.variance.lerp_(variance * (rows / (rows - 1)), MOMENTUM)
            else:
                mean, variance, centred = norm.mean, norm.variance, a[0] - norm.mean[:, None]
            inverse = torch.rsqrt(variance + EPS)
            forward.append((linear, norm, h, a, mean, inverse))
            h = centred.mul_((norm.weight * inverse)[:, None]).add_(norm.shift)[None]
        d = slope(self.out(h)[0, 0])[None, None]
        self.out.set_gradient(d, h)
        g = torch.bmm(self.out.transposed, d)
        for linear, norm, h, a, mean, inverse in reversed(forward):
            arguments = (norm.weight, norm.mean, norm.variance, mean, inverse, training, EPS, [True, True, True])
            g, scale, shift = NORM_BACKWARD(g, a, *arguments)
            norm.weight_gradient.copy_(scale)
            norm.bias_gradient.copy_(shift)
            # No gradient where the unit was off or dropped.
            g = RELU_BACKWARD(g, a, 0)
            if masks is not None:
                g.mul_(self.kept)
            linear.set_gradient(g, h)
            if linear is not self.linears[0]:
                g = torch.bmm(linear.transposed, g)

    @torch.no_grad()
    def evaluate(self, x: Tensor) -> Tensor:
        """The logits (rows,) in eval mode, in chunks."""
        return torch.cat([self.logits(part) for part in x.split(self.chunk)])

    def masks(self, rows: int, generator: np.random.Generator) -> Tensor | None:
        """Dropout masks for one batch (layers, width, rows)."""
        if not self.limit:
            return None
        shape = (self.depth + 1, self.width, rows)
        drawn = np.frombuffer(generator.bytes(2 * int(np.prod(shape))), np.uint16)
        keep = to_device(torch.from_numpy(drawn >= self.limit), self.device).view(shape)
        return keep.to(self.theta.dtype).mul_(self.kept)

    def block_sums(self, numbers: Tensor) -> Tensor:
        """Sums over every tensor (tensors,) of numbers in theta's layout."""
        if self.device.type == "cpu":
            return numbers.new_zeros(len(self.lengths)).index_add_(0, self.block, numbers)
        # In a fixed order, unlike index_add_ on a GPU; unsafe: without checks that wait for it.
        return torch.segment_reduce(numbers, "sum", lengths=self.lengths, unsafe=True)

    def total(self, numbers: Tensor) -> Tensor:
        """The sum (1,) of numbers in theta's layout, in a fixed order."""
        if self.device.type == "cpu":
            return numbers.new_zeros(1).index_add_(0, torch.zeros_like(self.block), numbers)
        return self.block_sums(numbers).sum(0, keepdim=True)


class Critic(nn.Module):
    """A perceptron (ReLU, dropout between layers) for adversarial methods, initialised and regularised by its own generator.

    >>> Critic([4, 8, 1], np.random.default_rng(0))(torch.zeros(5, 4)).shape
    torch.Size([5, 1])
    """

    def __init__(self, sizes: Sequence[int], generator: np.random.Generator, dropout: float = 0.0) -> None:
        super().__init__()
        self.generator, self.p = generator, dropout
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for inputs, outputs in pairwise(sizes):
            limit = inputs**-0.5
            drawn = torch.from_numpy(generator.uniform(-limit, limit, (inputs + 1, outputs)).astype(np.float32))
            self.weights.append(nn.Parameter(drawn[:-1].clone()))
            self.biases.append(nn.Parameter(drawn[-1:].clone()))

    def forward(self, x: Tensor) -> Tensor:
        """Outputs (rows, last size) of inputs (rows, first size)."""
        for k, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = torch.baddbmm(bias.unsqueeze(0), x.unsqueeze(0), weight.unsqueeze(0)).squeeze(0)
            if k + 1 < len(self.weights):
                x = torch.relu(x)
                if self.training and self.p:
                    mask = self.generator.random(x.shape, dtype=np.float32) >= self.p
                    x = x * torch.from_numpy(mask).to(x) / (1 - self.p)
        return x


class Optimiser(ABC):
    """Takes steps along the accumulated gradients and clears them, and keeps the moments that the next step depends on."""

    def __init__(self, rate: float, moments: Sequence[Tensor] = ()) -> None:
        self.rate, self.moments, self.steps = rate, list(moments), 0
        self._marked: list[Tensor] = []
        self._marked_steps = 0

    @abstractmethod
    def step(self) -> None:
        """One update from the gradients, which are then cleared."""

    def set_rate(self, rate: float) -> None:
        """Sets the learning rate."""
        self.rate = rate

    def mark(self) -> None:
        """Copies the moments, for `restore`."""
        self._marked, self._marked_steps = copy_tensors(self.moments, self._marked), self.steps

    def restore(self) -> None:
        """Restores the moments from the last mark."""
        copy_tensors(self._marked, self.moments)
        self.steps = self._marked_steps


class FlatSteps(Optimiser):
    """Plain gradient descent over the flat buffer of an MLP, in single precision."""

    def __init__(self, flat: FlatMLP, rate: float, moments: Sequence[Tensor] = ()) -> None:
        super().__init__(float(np.float32(rate)), moments)
        self.flat, self.restored = flat, False

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
        (mean, square), (b1, b2) = self.moments, BLOCKWISE_BETAS
        mean.lerp_(g, 1 - b1)
        square.lerp_(self.flat.block_sums(g * g) / self.lengths, 1 - b2)
        if self.restored:
            first, second = self.corrections(BLOCKWISE_BETAS)
            size = square.div(second).sqrt_().add_(NEAR_ZERO)
            self.flat.theta.addcmul_(mean, (torch.full_like(size, self.rate) / first / size)[self.flat.block], value=-1)
            return
        size = square.div(1 - b2**self.steps).sqrt_().add_(NEAR_ZERO)
        self.flat.theta.addcmul_(mean, (torch.full_like(size, self.rate) / size)[self.flat.block], value=-1 / (1 - b1**self.steps))


class Blockwise(Optimiser):
    """Blockwise Adam over the parameters of any module."""

    def __init__(self, parameters: Iterable[nn.Parameter], rate: float) -> None:
        self.parameters = list(parameters)
        self.means = [torch.zeros_like(p) for p in self.parameters]
        self.squares = [torch.zeros((), device=p.device) for p in self.parameters]
        super().__init__(rate, [*self.means, *self.squares])

    @torch.no_grad()
    def step(self) -> None:
        self.steps += 1
        b1, b2 = BLOCKWISE_BETAS
        rate = self.rate / (1 - b1**self.steps)
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters]
        torch._foreach_lerp_(self.means, gradients, 1 - b1)
        for p, g, mean, square in zip(self.parameters, gradients, self.means, self.squares, strict=True):
            square.lerp_(g.square().mean().to(square.dtype), 1 - b2)
            p.sub_(mean * (rate / square.div(1 - b2**self.steps).sqrt_().add_(NEAR_ZERO)).to(p.dtype))
        torch._foreach_zero_(gradients)  # in place: a recorded step writes to these tensors


class TorchSteps(Optimiser):
    """An optimiser of torch."""

    def __init__(self, inner: torch.optim.Optimizer, rate: float) -> None:
        super().__init__(rate)
        self.inner = inner

    def mark(self) -> None:
        self.moments = [value for state in self.inner.state.values() for value in state.values()]
        super().mark()  # there are none before the first step

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
def copy_tensors(source: Sequence[Tensor], target: list[Tensor]) -> list[Tensor]:
    """The target with the source's values; new tensors if the target is empty."""
    if len(target) != len(source):
        return [t.detach().clone() for t in source]
    for old, new in zip(target, source, strict=True):
        old.copy_(new)
    return target
