"""Units of any module: listing them, switching them off, and their influence on a gap.

A unit is one component of a layer's pre-activation: an output of a linear layer, a component of the C x H x W output of a convolution, or a
whole channel of it. Switching one off sets its pre-activation to zero: by its incoming weights and bias, so that the keys of the state dict
stay the same, or, for a single unit of a convolution, by a mask, a buffer that is saved with the module. A unit may also be a column of the
input of a table (switched off in the weights of the first linear layer) or a head of attention (in its columns of the output projection).

The influence of units on a gap takes one backward pass per batch. In all CRITERIA f_i is the score of row i, w_i its weight in the gap's
proxy P = sum_i w_i f_i, a_i the unit's pre-activation and g_i the derivative of f_i with respect to it:

gradient      sum_i w_i g_i: equation (5) of the paper. How P moves if the pre-activation of every row grows by the same small amount.
taylor        sum_i w_i a_i g_i: how much P falls, to first order, if the unit is set to zero.
second-order  sum_i w_i (a_i g_i - a_i^2 h_i / 2) with h_i = (1 - 2 f_i) g_i^2 / (f_i (1 - f_i)), the second derivative of f_i where the
              logit is linear in the unit: between two kinks of ReLU, with batch norm of fixed statistics. Interactions of two units are
              left out; those within a unit of many positions (a channel) are included, since the row's derivative is along all of them.
difference    sum_i w_i a_i times the sign of sum_i |w_i| g_i: the difference of the unit's mean between the groups that the gap compares,
              with its sign reversed if the unit lowers scores overall.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial

import torch
from torch import Tensor, nn

from equipoise.data import FloatArray
from equipoise.errors import BadInput
from equipoise.models.devices import device_of, mixed_precision
from equipoise.models.score import evaluating, modules_of, recorded_outputs

GRANULARITIES = ("unit", "channel", "input", "head")
MASK_SUFFIX = ".unit_mask"  # suffix of the key of a convolution's mask
CRITERIA = ("gradient", "taylor", "difference", "second-order")
TINY_VARIANCE = 1e-12  # smallest f (1 - f), for a score that rounds to 0 or 1; its derivatives are zero anyway


class _Masked(nn.Module):
    """A convolution with some of its units switched off."""

    unit_mask: Tensor

    def forward(self, input: Tensor) -> Tensor:
        raw: Tensor = super().forward(input)
        return raw * self.unit_mask.to(raw.dtype)  # bfloat16 stays bfloat16


class MaskedConv1d(_Masked, nn.Conv1d): ...


class MaskedConv2d(_Masked, nn.Conv2d): ...


class MaskedConv3d(_Masked, nn.Conv3d): ...


MASKED_KINDS: dict[type[nn.Module], type[nn.Module]] = {nn.Conv1d: MaskedConv1d, nn.Conv2d: MaskedConv2d, nn.Conv3d: MaskedConv3d}


@dataclass(frozen=True)
class Layer:
    """A layer with units: its name in the module, the shape of its pre-activation without rows, and the number of its first unit."""

    name: str
    shape: tuple[int, ...]
    start: int
    kind: str = "output"  # what its units are: outputs of the layer, columns of its input ("input"), or heads of attention ("head")
    linear: bool = True  # whether the last axis is that of the units, as of nn.Linear; otherwise the second, as of a convolution

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def end(self) -> int:
        return self.start + self.size


def find_units(
    model: nn.Module, sample: Tensor, pattern: str | Sequence[str] = "*", granularity: str = "unit", outputs: int = 1, prefix: str = ""
) -> list[Layer]:
    """The layers that match a pattern with units of a granularity: unit, channel, input (of the whole network, a table) or head.

    `sample` is a few rows of input, to determine shapes and the order of execution. A last layer as wide as the network's `outputs` is its
    output layer and has no units. `prefix` stands before the names of the layers, which the patterns lack.
    """
    sample = sample[:2].to(device_of(model))
    if granularity == "input":
        return [_input_layer(model, sample)]
    patterns = [f"{prefix}{one}" for one in ([pattern] if isinstance(pattern, str) else pattern)]
    shapes, linears = dict[str, tuple[int, ...]](), modules_of(model, nn.Linear)
    if granularity == "head":
        kind, advice = "head", 'granularity="head" needs layers of nn.MultiheadAttention; none'
        shapes = {name: (module.num_heads,) for name, module in modules_of(model, nn.MultiheadAttention).items()}
    else:
        kind, advice = "output", "no linear or convolutional layer"
        with recorded_outputs(model, (nn.Linear, *MASKED_KINDS, *MASKED_KINDS.values())) as calls, evaluating(model), torch.no_grad():
            model(sample)
        for name, output in calls:
            shapes.setdefault(name, tuple(output.shape[-1:] if name in linears else output.shape[1:]))
        if shapes and next(reversed(shapes.values()))[0] == outputs:
            shapes.popitem()
    layers: list[Layer] = []
    for name, shape in shapes.items():
        if any(fnmatchcase(name, p) for p in patterns):
            own_shape, start = shape[:1] if granularity == "channel" else shape, layers[-1].end if layers else 0
            layers.append(Layer(name, own_shape, start, kind, name in linears))
    if not layers:
        raise BadInput(f"{advice} matches {' or '.join(map(repr, patterns))}; the network's are: {', '.join(shapes) or 'none'}")
    return layers


def _input_layer(model: nn.Module, sample: Tensor) -> Layer:
    """The one linear layer that takes the input; an error if the input also bypasses it."""
    takes_input: list[str] = []

    def find(name: str, _module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        x = inputs[0]
        if takes_input or x.ndim != 2 or x.shape != sample.shape or x.data_ptr() != sample.data_ptr():
            return None
        takes_input.append(name)
        return (x.detach(),)  # from here on only a bypass carries a gradient to the input

    advice = 'granularity="input" needs a table that goes straight into one nn.Linear, whose weights for a column can be set to zero'
    with ExitStack() as hooks, evaluating(model), frozen(model), torch.enable_grad():
        hooks.callback(sample.requires_grad_, False)
        for name, module in modules_of(model, nn.Linear).items():
            hooks.enter_context(module.register_forward_pre_hook(partial(find, name)))
        out = model(sample.requires_grad_(True) if sample.is_leaf and sample.is_floating_point() else sample)
    if not takes_input:
        shape = tuple(sample.shape[1:])
        raise BadInput(f"{advice}; no linear layer of this {type(model).__name__} takes its inputs of shape {shape} as they are")
    name = takes_input[0]
    if out.requires_grad:
        raise BadInput(f"{advice}; in this {type(model).__name__} the input reaches the output around its layer {name!r} as well")
    return Layer(name, (sample.shape[1],), 0, "input")


def switch_off(model: nn.Module, layers: Sequence[Layer], units: Tensor) -> None:
    """Sets the pre-activation of the marked units (units,) of a module to zero, in place."""
    for layer in layers:
        marked = units[layer.start : layer.end]
        if not bool(marked.any()):
            continue
        module = model.get_submodule(layer.name)
        if layer.kind != "output":  # columns of the input layer's weight, or of the output projection of heads
            with torch.no_grad():
                weight = module.get_parameter("weight" if layer.kind == "input" else "out_proj.weight")
                weight[:, marked.to(weight.device).repeat_interleave(weight.shape[1] // layer.size)] = 0
            continue
        if len(layer.shape) == 1:  # an output of a linear layer, or a channel: its weights suffice, no mask is needed
            with torch.no_grad():
                for parameter in module.parameters(recurse=False):
                    parameter[marked.to(parameter.device)] = 0
            continue
        kept = (~marked).reshape(layer.shape).to(module.get_parameter("weight"))
        if type(module) in MASKED_KINDS:
            module.__class__ = MASKED_KINDS[type(module)]
            module.register_buffer("unit_mask", kept)
        else:
            module.get_buffer("unit_mask").mul_(kept)


def unit_maps(model: nn.Module) -> dict[str, FloatArray]:
    """By layer: for each convolution of images with units switched off, the share of channels that is still on at each position."""
    masked = modules_of(model, MaskedConv2d)
    return {name: module.unit_mask.double().mean(0).cpu().numpy() for name, module in masked.items()}


@contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """No parameter requires a gradient during the block."""
    trainable = [p for p in model.parameters() if p.requires_grad]
    for p in trainable:
        p.requires_grad_(False)
    try:
        yield
    finally:
        for p in trainable:
            p.requires_grad_(True)


def gap_gradients(
    model: nn.Module, layers: Sequence[Layer], x: Tensor, weight: Tensor, probability: bool, criterion: str = "gradient"
) -> tuple[Tensor, Tensor]:
    """Raw outputs (rows, outputs) of a batch, and the sums over its rows that make up a criterion (sums, units), for `combine_sums`.

    Parameters get no gradient: the graph starts at the first of the layers. A layer's gradient is summed up during the backward pass and
    not kept; its pre-activations are copied, for this batch, if the criterion needs them. Of the weights (rows, outputs), only one column
    is used: the gap is that of one output.
    """
    if layers[0].kind == "head":
        return _head_gradients(model, layers, x, weight, probability, criterion)
    column = int(weight.abs().sum(0).argmax())
    w, total = weight[:, column].to(x.device), torch.zeros(sum_count(criterion), layers[-1].end, device=x.device)
    leaves: list[Tensor] = []
    scores = torch.empty(0)  # without a graph, which would never be freed if its own hooks held it

    def add(layer: Layer, a: Tensor | None, gradient: Tensor) -> None:
        """Adds a layer's contribution from its gradient and its pre-activation, or its input if the units are columns of the input."""
        where = slice(layer.start, layer.end)
        if a is None or criterion == "taylor":  # needs no row axis
            total[0, where] += _by_unit(gradient if a is None else a.float() * gradient, layer)
            return
        if len(gradient) != len(w):
            raise BadInput(
                f"layer {layer.name!r} gives {tuple(gradient.shape)} for {len(w)} rows, so its rows cannot be separated, which "
                f'criterion={criterion!r} needs; name other layers, or use criterion="taylor" or "gradient"'
            )
        # As (rows, units, positions).
        shape = (len(w), -1, layer.size) if layer.linear else (len(w), layer.size, -1)
        own, slopes = (t.float().reshape(shape).transpose(1, 2) if layer.linear else t.float().reshape(shape) for t in (a, gradient))
        total[:, where] += row_parts(criterion, own, slopes, w[:, None], scores[:, column, None]).sum(1)

    def watched(layer: Layer, value: Tensor) -> Tensor:
        """The same value; its gradient is added to the sums during the backward pass."""
        # A copy, since an activation may overwrite the value in place.
        a = None if criterion == "gradient" else value.detach().clone()
        copied = value
        if not value.requires_grad:
            leaves.append(value.requires_grad_(True))
            copied = value.clone()  # an activation in place must not overwrite a leaf
        copied.register_hook(partial(add, layer, a))
        return copied

    def before(layer: Layer, _module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor]:
        return (watched(layer, inputs[0].detach()),)

    def after(layer: Layer, _module: nn.Module, _inputs: object, output: Tensor) -> Tensor:
        return watched(layer, output)

    with ExitStack() as hooks, evaluating(model), frozen(model), torch.enable_grad(), mixed_precision(x.device):
        for layer in layers:
            module = model.get_submodule(layer.name)
            if layer.kind == "input":
                hooks.enter_context(module.register_forward_pre_hook(partial(before, layer)))
            else:
                hooks.enter_context(module.register_forward_hook(partial(after, layer)))
        raw = model(x).reshape(weight.shape).float()
        f = raw if probability else torch.sigmoid(raw)
        scores = f.detach()
        torch.autograd.grad((f * weight.to(f)).sum(), leaves, allow_unused=True)
    return raw.detach(), total


def _by_unit(gradient: Tensor, layer: Layer) -> Tensor:
    """A gradient summed over rows, and over positions where a unit is a channel (units,)."""
    if layer.linear:
        return gradient.reshape(-1, gradient.shape[-1]).sum(0, dtype=torch.float32)
    if gradient.is_cuda and gradient.ndim == 4:  # channels-last, where a product with ones is many times faster than a sum
        rows, c, h, w = gradient.shape
        flat = gradient.permute(0, 2, 3, 1).reshape(rows, -1)
        summed = (gradient.new_ones(1, rows) @ flat).float().view(h, w, c).permute(2, 0, 1)
    else:
        summed = gradient.sum(0, dtype=torch.float32)
    return summed.reshape(*layer.shape, -1).sum(-1).reshape(-1)


def _head_gradients(
    model: nn.Module, layers: Sequence[Layer], x: Tensor, weight: Tensor, probability: bool, criterion: str
) -> tuple[Tensor, Tensor]:
    """As `gap_gradients`, for heads of attention: torch applies their output projection without calling it, so that no hook runs.

    A gate on a head's columns of the projection's weight has, where it is 1, the derivative sum_i w_i a_i g_i over the head's outputs;
    a number added to all the head's outputs, which is the same as one added to the bias by way of the weight, has sum_i w_i g_i.
    """
    if criterion not in ("gradient", "taylor"):
        raise BadInput(f'with granularity="head", criterion must be gradient or taylor; got {criterion!r}')
    gates, changed = [], {}
    with torch.enable_grad():
        for layer in layers:
            projection = model.get_submodule(layer.name).get_submodule("out_proj")
            w = projection.get_parameter("weight").detach()
            gate = torch.zeros(layer.size, device=w.device, dtype=w.dtype, requires_grad=True)
            spread = gate.repeat_interleave(w.shape[1] // layer.size)
            if criterion == "taylor":
                changed[f"{layer.name}.out_proj.weight"] = w * (1 + spread)
            elif projection.bias is None:
                raise BadInput(f'attention {layer.name!r} has no bias, which criterion="gradient" needs for heads; use criterion="taylor"')
            else:
                changed[f"{layer.name}.out_proj.bias"] = projection.get_parameter("bias").detach() + w @ spread
            gates.append(gate)
        with evaluating(model), frozen(model), mixed_precision(x.device):
            raw = torch.func.functional_call(model, changed, (x,)).reshape(weight.shape).float()
            f = raw if probability else torch.sigmoid(raw)
            gradients = torch.autograd.grad((f * weight.to(f)).sum(), gates, allow_unused=True)
    slopes = [torch.zeros_like(gate) if slope is None else slope for gate, slope in zip(gates, gradients, strict=True)]
    return raw.detach(), torch.cat(slopes).float()[None]


def sum_count(criterion: str) -> int:
    """The number of sums over rows that make up a criterion."""
    return 2 if criterion == "difference" else 1


def combine_sums(criterion: str, total: Tensor) -> Tensor:
    """The criterion (..., units) from its sums over all rows (sums, ..., units)."""
    return total[0] * total[1].sign() if criterion == "difference" else total[0]


def row_parts(criterion: str, a: Tensor, wg: Tensor, weight: Tensor, f: Tensor) -> Tensor:
    """The contribution of each row to the sums of a criterion (sums, ..., rows, units).

    From pre-activations and weighted derivatives w_i g_i, both (..., rows, units, positions), and weights and scores (..., rows, 1).
    """
    if criterion == "difference":
        return torch.stack([weight * a.sum(-1), weight.sign() * wg.sum(-1)])
    fall = (a * wg).sum(-1)
    if criterion == "second-order":
        unweighted = fall / torch.where(weight == 0, 1, weight)  # zero where the weight is zero
        fall = fall * (1 - 0.5 * (1 - 2 * f) * unweighted / (f * (1 - f)).clamp(min=TINY_VARIANCE))
    return fall[None]
