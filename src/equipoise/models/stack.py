"""The paper's network for tables (Table `tab:arch`), and many equal ones as one stack: the same layers with a leading axis of replicates.

A single 32-unit layer spends nearly all of its time on overhead. Activations of a stack are (replicates, units, rows), so that a layer is
one batched matrix product and batch norm is one fused call over replicates x units channels. Parameters and gradients each lie in one flat
buffer, so that an optimiser's step is a few operations. Every replicate draws its dropout masks from its own generator, so its result does
not depend on the other replicates.

A stack lies on one device, where all of its steps run without waiting for a value. Dropout masks are the same on every device: they are
drawn on the CPU and copied. On a GPU a step's 300 small kernels are recorded once and replayed (see devices), and sums are computed in
another order. A step there equals one on a CPU up to rounding, which training amplifies: after a few dozen steps single networks differ,
as they do on a CPU after a change of the initial weights in the last digit.
"""

import copy
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from equipoise.models.devices import Captured, Pool, device_of, to_device

MOMENTUM, EPS = 0.1, 1e-5  # of batch norm, the defaults of torch.nn
CPU_CHUNK = 512  # rows of one evaluation step: activations of a chunk stay in the processor's cache
CHUNK = 2**14  # on other devices, which are faster in few large steps
RECORD_AFTER = 8  # occurrences of a step before it is recorded, since a recording takes as long as a hundred steps


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


class Stack:
    """R MLPs of one shape. `Stack(models)` copies them in, `unstack()` copies them out."""

    def __init__(self, models: Sequence[MLP], dtype: torch.dtype = torch.float32, device: torch.device | None = None) -> None:
        first = self._first = models[0]
        self.device = device or device_of(first)
        self.chunk = CPU_CHUNK if self.device.type == "cpu" else CHUNK
        self.size = len(models)
        self.inputs, self.width, self.depth = first.inputs, first.width, first.depth
        self.dropout = first.dropout.p
        self._template = [(n, tuple(p.shape)) for n, p in first.named_parameters()]
        shapes = [(self.size, *shape) for _, shape in self._template]
        sizes = [int(np.prod(s)) for s in shapes]
        self.theta = torch.empty(sum(sizes), dtype=dtype, device=self.device)
        self.gradient = torch.zeros_like(self.theta)
        self.parameters: dict[str, Tensor] = {}
        self._gradients: dict[str, Tensor] = {}  # each parameter's view of the gradient
        lengths = torch.tensor(sizes) // self.size
        self.lengths = lengths.repeat_interleave(self.size).to(self.device)  # of every tensor of every replicate, in theta's order
        block = torch.arange(len(self.lengths)).repeat_interleave(lengths.repeat_interleave(self.size))
        self.block = block.to(self.device)  # for each number in theta, the position of its tensor in `lengths`
        self.owner = (block % self.size).to(self.device)  # for each number in theta, its replicate
        self.numbers = [n.to(self.device) for n in (block % self.size).argsort(stable=True).view(self.size, -1)]  # positions per replicate
        for (name, _), shape, size, start in zip(self._template, shapes, sizes, np.cumsum([0, *sizes[:-1]]), strict=True):
            where = slice(int(start), int(start) + size)
            view = self.theta[where].view(shape)
            view.copy_(torch.stack([m.get_parameter(name).detach() for m in models]))
            view.requires_grad_(True)
            view.grad = self.gradient[where].view(shape)
            self.parameters[name] = view
            self._gradients[name] = self.gradient[where].view(shape)
        self.means, self.variances = (
            [torch.stack([m.get_buffer(f"norms.{k}.{name}") for m in models]).to(self.device, dtype) for k in range(self.depth + 1)]
            for name in ("running_mean", "running_var")
        )

    def logits(self, x: Tensor, *, masks: Tensor | None = None, training: bool = False, kept: list[Tensor] | None = None) -> Tensor:
        """The logits (R, rows) of inputs (R, rows, features).

        `training` normalises by the batch and updates the running statistics; `masks` (layers, R, width, rows) are
        dropout masks, already scaled. `kept` receives the pre-activations (R, width, rows) of every hidden layer and, last, the
        features (R, width, rows) that enter the output layer.
        """
        h = x.transpose(1, 2)
        rows = x.shape[1]
        for k in range(self.depth + 1):
            weight, bias = self.parameters[f"linears.{k}.weight"], self.parameters[f"linears.{k}.bias"]
            z = torch.baddbmm(bias.unsqueeze(-1), weight, h)
            if kept is not None:
                kept.append(z)
            h = torch.relu(z)
            if masks is not None:
                h = h * masks[k]
            channels = self.size * self.width
            h = F.batch_norm(
                h.reshape(1, channels, rows),
                self.means[k].view(channels),
                self.variances[k].view(channels),
                self.parameters[f"norms.{k}.weight"].reshape(channels),
                self.parameters[f"norms.{k}.bias"].reshape(channels),
                training=training,
            ).view(self.size, self.width, rows)
        if kept is not None:
            kept.append(h)
        return torch.baddbmm(self.parameters["out.bias"].unsqueeze(-1), self.parameters["out.weight"], h)[:, 0]

    @torch.no_grad()
    def fill_gradient(self, x: Tensor, slope: Callable[[Tensor], Tensor], *, masks: Tensor | None = None, training: bool = False) -> None:
        """Sets `gradient` to that of a loss whose derivative with respect to the logits (R, rows) is `slope(logits)`.

        Equal to autograd through `logits`, with half the operations, since nothing is recorded, zeroed or accumulated.
        """
        rows, channels = x.shape[1], self.size * self.width
        h, forward = x.transpose(1, 2), []
        for k in range(self.depth + 1):
            z = torch.baddbmm(self.parameters[f"linears.{k}.bias"].unsqueeze(-1), self.parameters[f"linears.{k}.weight"], h)
            a = z.relu_()
            if masks is not None:
                a.mul_(masks[k])
            mean, inverse = self._moments(k, a, training)
            forward.append((h, a, mean, inverse))
            scale = self.parameters[f"norms.{k}.weight"] * inverse
            h = (a - mean.unsqueeze(-1)).mul_(scale.unsqueeze(-1)).add_(self.parameters[f"norms.{k}.bias"].unsqueeze(-1))
        weight = self.parameters["out.weight"]
        d = slope(torch.baddbmm(self.parameters["out.bias"].unsqueeze(-1), weight, h)[:, 0]).unsqueeze(1)
        self._set_linear_gradient("out", d, h)
        g = torch.bmm(weight.transpose(1, 2), d)
        for k in range(self.depth, -1, -1):
            h, a, mean, inverse = forward[k]
            g, scale, shift = torch.ops.aten.native_batch_norm_backward(
                g.view(1, channels, rows),
                a.view(1, channels, rows),
                self.parameters[f"norms.{k}.weight"].view(channels),
                self.means[k].view(channels),
                self.variances[k].view(channels),
                mean.view(channels),
                inverse.view(channels),
                training,
                EPS,
                [True, True, True],
            )
            self._gradients[f"norms.{k}.weight"].copy_(scale.view(self.size, self.width))
            self._gradients[f"norms.{k}.bias"].copy_(shift.view(self.size, self.width))
            # No gradient where the unit was off or dropped.
            g = torch.ops.aten.threshold_backward(g.view(self.size, self.width, rows), a, 0)
            if masks is not None:
                g.mul_(1 / (1 - round(self.dropout * 65536) / 65536))
            self._set_linear_gradient(f"linears.{k}", g, h)
            if k:
                g = torch.bmm(self.parameters[f"linears.{k}.weight"].transpose(1, 2), g)

    def _moments(self, k: int, a: Tensor, training: bool) -> tuple[Tensor, Tensor]:
        """Mean and inverse deviation (R, width) of batch norm k; in training those of the batch, which update the running ones."""
        if not training:
            return self.means[k], torch.rsqrt(self.variances[k] + EPS)
        rows = a.shape[2]
        mean = a.sum(2).div_(rows)
        centred = a - mean.unsqueeze(-1)
        variance = torch.linalg.vecdot(centred, centred).div_(rows)
        self.means[k].lerp_(mean, MOMENTUM)
        self.variances[k].lerp_(variance * (rows / (rows - 1)), MOMENTUM)
        return mean, torch.rsqrt(variance + EPS)

    def _set_linear_gradient(self, layer: str, d: Tensor, h: Tensor) -> None:
        """Sets the gradients of a linear layer from the gradient of its output (R, out, rows) and its input (R, in, rows)."""
        torch.bmm(d, h.transpose(1, 2), out=self._gradients[f"{layer}.weight"])
        torch.sum(d, 2, out=self._gradients[f"{layer}.bias"])

    @torch.no_grad()
    def evaluate(self, x: Tensor) -> Tensor:
        """The logits (R, rows) in eval mode, in chunks."""
        return torch.cat([self.logits(part) for part in x.split(self.chunk, dim=1)], dim=1)

    def masks(self, rows: int, generators: Sequence[np.random.Generator]) -> Tensor | None:
        """Dropout masks for one batch (layers, R, width, rows), each replicate's from its own generator."""
        if self.dropout == 0:
            return None
        shape = (self.depth + 1, self.width, rows)
        limit = round(self.dropout * 65536)
        drawn = np.empty((self.size, int(np.prod(shape))), np.uint16)
        for row, generator in zip(drawn, generators, strict=True):
            row[:] = np.frombuffer(generator.bytes(2 * row.size), np.uint16)
        keep = to_device(torch.from_numpy(drawn >= limit), self.device).view(self.size, *shape).transpose(0, 1)
        masks: Tensor = keep.to(self.theta.dtype).mul_(1 / (1 - limit / 65536))
        return masks

    def load(self, source: "Snapshot", replicates: Tensor) -> None:
        """Restores the parameters and statistics of some replicates from a snapshot."""
        self._copy_replicates(source, self, replicates)

    @torch.no_grad()
    def _copy_replicates(self, source: "Stack | Snapshot", target: "Stack | Snapshot", replicates: Tensor) -> None:
        """Copies the parameters and statistics of some replicates of this stack from or to a snapshot."""
        chosen = self.marked(replicates)
        torch.where(chosen[self.owner], source.theta, target.theta, out=target.theta)
        for old, new in zip((*target.means, *target.variances), (*source.means, *source.variances), strict=True):
            torch.where(chosen[:, None], new, old, out=old)

    def marked(self, replicates: Tensor) -> Tensor:
        """A mask of these replicates (R,) on the stack's device, from their positions on the CPU."""
        chosen = torch.zeros(self.size, dtype=torch.bool)
        chosen[replicates] = True
        return to_device(chosen, self.device)

    def block_sums(self, numbers: Tensor) -> Tensor:
        """Sums over every tensor of every replicate (tensors * R,) of numbers in theta's layout."""
        if self.device.type == "cpu":
            return numbers.new_zeros(len(self.lengths)).index_add_(0, self.block, numbers)
        # In a fixed order, unlike index_add_ on a GPU; unsafe: without checks that wait for it.
        return torch.segment_reduce(numbers, "sum", lengths=self.lengths, unsafe=True)

    def replicate_sums(self, numbers: Tensor) -> Tensor:
        """Sums over every replicate (R,) of numbers in theta's layout."""
        if self.device.type == "cpu":
            return numbers.new_zeros(self.size).index_add_(0, self.owner, numbers)
        return self.block_sums(numbers).view(-1, self.size).sum(0)

    def unstack(self) -> list[MLP]:
        """The replicates as separate MLPs, in eval mode, on the device of the first original."""
        models = []
        device = device_of(self._first)
        parameters = {name: value.detach().to(device) for name, value in self.parameters.items()}
        means, variances = ([value.to(device) for value in values] for values in (self.means, self.variances))
        for r in range(self.size):
            model = copy.deepcopy(self._first).to(self.theta.dtype)  # a new MLP would draw from the global generator
            with torch.no_grad():
                for name, _ in self._template:
                    model.get_parameter(name).copy_(parameters[name][r])
                for k, (mean, variance) in enumerate(zip(means, variances, strict=True)):
                    model.get_buffer(f"norms.{k}.running_mean").copy_(mean[r])
                    model.get_buffer(f"norms.{k}.running_var").copy_(variance[r])
            models.append(model.eval())
        return models


class Recorder:
    """Runs steps of a stack. On a GPU a step that occurs often enough with tensors of the same shapes is recorded, then replayed.

    A step sets the stack's gradient and, in training, updates the running statistics; it may depend only on its tensors and constants.
    """

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self._steps: dict[tuple[object, ...], Captured] = {}
        self._occurrences: Counter[tuple[object, ...]] = Counter()
        self._pool: Pool | None = None

    def __call__(self, step: Callable[..., None], *tensors: Tensor | None, key: object = None) -> None:
        """Runs the step. `key` identifies it if the function is a new object each time. Tensors may be on the CPU."""
        inputs = [to_device(t, self.stack.device) for t in tensors if t is not None]
        if self.stack.device.type != "cuda":
            step(*inputs)
            return
        name = (step if key is None else key, *(t.shape for t in inputs))
        self._occurrences[name] += 1
        if self._occurrences[name] <= RECORD_AFTER:
            step(*inputs)
            return
        if name not in self._steps:
            self._pool = self._pool or torch.cuda.graph_pool_handle()
            self._steps[name] = Captured(step, inputs, [*self.stack.means, *self.stack.variances], self._pool)
        self._steps[name](*inputs)


@dataclass(frozen=True, eq=False)
class Snapshot:
    """A copy of a stack's state, updated replicate by replicate as each improves."""

    theta: Tensor
    means: list[Tensor]
    variances: list[Tensor]

    @classmethod
    def of(cls, stack: Stack) -> "Snapshot":
        """The present state."""
        return cls(stack.theta.detach().clone(), [m.clone() for m in stack.means], [v.clone() for v in stack.variances])

    def update(self, stack: Stack, replicates: Tensor) -> None:
        """Copies the present state of some replicates."""
        stack._copy_replicates(stack, self, replicates)


class Critics(nn.Module):
    """R equal perceptrons (ReLU, dropout between layers) for adversarial methods, each initialised and regularised by its own generator.

    >>> Critics([4, 8, 1], [np.random.default_rng(0)])(torch.zeros(1, 5, 4)).shape
    torch.Size([1, 5, 1])
    """

    def __init__(self, sizes: Sequence[int], generators: Sequence[np.random.Generator], dropout: float = 0.0) -> None:
        super().__init__()
        self.generators, self.p = generators, dropout
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for inputs, outputs in pairwise(sizes):
            limit = inputs**-0.5
            drawn = np.stack([g.uniform(-limit, limit, (inputs + 1, outputs)) for g in generators]).astype(np.float32)
            self.weights.append(nn.Parameter(torch.from_numpy(drawn[:, :-1]).contiguous()))
            self.biases.append(nn.Parameter(torch.from_numpy(drawn[:, -1:]).contiguous()))

    def forward(self, x: Tensor) -> Tensor:
        """Outputs (R, rows, last size) of inputs (R, rows, first size)."""
        for k, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = torch.baddbmm(bias, x, weight)
            if k + 1 < len(self.weights):
                x = torch.relu(x)
                if self.training and self.p:
                    mask = np.stack([g.random(x.shape[1:], dtype=np.float32) >= self.p for g in self.generators])
                    x = x * torch.from_numpy(mask).to(x) / (1 - self.p)
        return x
