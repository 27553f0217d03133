"""Units of any module: listing them, switching them off, and their influence on a gap.

A unit is one component of a layer's pre-activation: an output of a linear layer, a component of the C x H x W output of a convolution, or a
whole channel of it. Switching one off sets its pre-activation to zero: by its incoming weights and bias, so that the keys of the state dict
stay the same, or, for a single unit of a convolution, by a mask, a buffer that is saved with the module.

The influence of units on a gap takes one backward pass per batch: the sum over rows of w_i g_i (equation 5 of the paper), with w_i the
weight of row i in the gap's proxy sum_i w_i f_i, and g_i the derivative of its score f_i with respect to the unit's pre-activation.
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

GRANULARITIES = ("unit", "channel")
MASK_SUFFIX = ".unit_mask"  # suffix of the key of a convolution's mask


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
    """The layers that match a pattern, with units of a granularity: unit, or channel of convolutions.

    `sample` is a few rows of input, to determine shapes and the order of execution. A last layer as wide as the network's `outputs` is its
    output layer and has no units. `prefix` stands before the names of the layers, which the patterns lack.
    """
    patterns = [f"{prefix}{one}" for one in ([pattern] if isinstance(pattern, str) else pattern)]
    shapes, linears = dict[str, tuple[int, ...]](), modules_of(model, nn.Linear)
    with recorded_outputs(model, (nn.Linear, *MASKED_KINDS, *MASKED_KINDS.values())) as calls, evaluating(model), torch.no_grad():
        model(sample[:2].to(device_of(model)))
    for name, output in calls:
        shapes.setdefault(name, tuple(output.shape[-1:] if name in linears else output.shape[1:]))
    if shapes and next(reversed(shapes.values()))[0] == outputs:
        shapes.popitem()
    layers: list[Layer] = []
    for name, shape in shapes.items():
        if any(fnmatchcase(name, p) for p in patterns):
            own_shape, start = shape[:1] if granularity == "channel" else shape, layers[-1].end if layers else 0
            layers.append(Layer(name, own_shape, start, name in linears))
    if not layers:
        matched = " or ".join(map(repr, patterns))
        raise BadInput(f"no linear or convolutional layer matches {matched}; the network's are: {', '.join(shapes) or 'none'}")
    return layers


def switch_off(model: nn.Module, layers: Sequence[Layer], units: Tensor) -> None:
    """Sets the pre-activation of the marked units (units,) of a module to zero, in place."""
    for layer in layers:
        marked = units[layer.start : layer.end]
        if not bool(marked.any()):
            continue
        module = model.get_submodule(layer.name)
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


def gap_gradients(model: nn.Module, layers: Sequence[Layer], x: Tensor, weight: Tensor, probability: bool) -> tuple[Tensor, Tensor]:
    """Raw outputs (rows, outputs) of a batch, and the sums over its rows of weight times derivative (units,).

    Parameters get no gradient: the graph starts at the first of the layers. A layer's gradient is summed up during the backward pass and
    not kept.
    """
    total, leaves = torch.zeros(layers[-1].end, device=x.device), list[Tensor]()

    def add(layer: Layer, gradient: Tensor) -> None:
        total[layer.start : layer.end] += _by_unit(gradient, layer)

    def after(layer: Layer, _module: nn.Module, _inputs: object, output: Tensor) -> Tensor:
        """The same output; its gradient is added to the sums during the backward pass."""
        if not output.requires_grad:
            leaves.append(output.requires_grad_(True))
            output = output.clone()  # an activation in place must not overwrite a leaf
        output.register_hook(partial(add, layer))
        return output

    with ExitStack() as hooks, evaluating(model), frozen(model), torch.enable_grad(), mixed_precision(x.device):
        for layer in layers:
            hooks.enter_context(model.get_submodule(layer.name).register_forward_hook(partial(after, layer)))
        raw = model(x).reshape(weight.shape).float()
        f = raw if probability else torch.sigmoid(raw)
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
