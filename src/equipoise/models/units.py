"""Units of any module: listing them and switching them off.

A unit is one component of a layer's pre-activation: an output of a linear layer, a component of the C x H x W output of a convolution.
With `channels`, it is a whole channel of a convolution. Switching one off sets its pre-activation to zero: for a linear layer or a
channel its incoming weights and bias, which keeps the state dict as it was; for a convolution a mask, a buffer that is saved with the
module.

A unit may also be a column of the input of a table (switched off in the weights of the first linear layer) or a head of attention
(switched off in its columns of the output projection); both leave the keys of the state dict unchanged.

Their influence on a gap is in `influence`.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial

import torch
from torch import Tensor, nn

from equipoise.errors import BadInput
from equipoise.models.devices import device_of
from equipoise.models.score import evaluating

GRANULARITIES = ("unit", "channel", "input", "head")
MASK = ".unit_mask"  # suffix of the key of a convolution's mask


class _Masked(nn.Module):
    """A convolution with some of its units switched off."""

    unit_mask: Tensor

    def forward(self, input: Tensor) -> Tensor:
        raw: Tensor = super().forward(input)
        return raw * self.unit_mask.to(raw.dtype)  # bfloat16 stays bfloat16


class MaskedConv1d(_Masked, nn.Conv1d): ...


class MaskedConv2d(_Masked, nn.Conv2d): ...


class MaskedConv3d(_Masked, nn.Conv3d): ...


MASKED: dict[type[nn.Module], type[nn.Module]] = {nn.Conv1d: MaskedConv1d, nn.Conv2d: MaskedConv2d, nn.Conv3d: MaskedConv3d}


@dataclass(frozen=True)
class Layer:
    """A layer with units: its name in the module, the shape of its pre-activation without rows, and where its units start.

    `kind` is what they are: outputs of the layer, columns of its input, or heads of attention.
    """

    name: str
    shape: tuple[int, ...]
    start: int
    kind: str = "output"

    @property
    def size(self) -> int:
        return int(torch.tensor(self.shape).prod())


def find_units(
    model: nn.Module, sample: Tensor, pattern: str | Sequence[str] = "*", granularity: str = "unit", outputs: int = 1
) -> list[Layer]:
    """The layers that match a pattern with units of a granularity: unit, channel, input (of the whole network, a table) or head.

    A last layer as wide as the network's `outputs` is its output layer and has no units.
    """
    if granularity == "input":
        return [_input_layer(model, sample[:2].to(device_of(model)))]
    if granularity == "head":
        return _attentions(model, [pattern] if isinstance(pattern, str) else list(pattern))
    return find_layers(model, sample, pattern, granularity == "channel", outputs)


def _input_layer(model: nn.Module, sample: Tensor) -> Layer:
    """The one linear layer that takes the input; an error if the input also bypasses it."""
    linears = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    found: list[str] = []

    def seen(name: str, _module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        came = inputs[0]
        if found or came.ndim != 2 or came.shape != sample.shape or came.data_ptr() != sample.data_ptr():
            return None
        found.append(name)
        return (came.detach(),)  # from here on only a bypass carries a gradient to the input

    advice = 'granularity="input" needs a table that goes straight into one nn.Linear, whose weights for a column can be set to zero'
    with ExitStack() as hooks, evaluating(model), frozen(model), torch.enable_grad():
        hooks.callback(sample.requires_grad_, False)
        for name, module in linears.items():
            hooks.enter_context(module.register_forward_pre_hook(partial(seen, name)))
        out = model(sample.requires_grad_(True) if sample.is_leaf and sample.is_floating_point() else sample)
    if not found:
        shape = tuple(sample.shape[1:])
        raise BadInput(f"{advice}; no linear layer of this {type(model).__name__} takes its inputs of shape {shape} as they are")
    if out.requires_grad:
        raise BadInput(f"{advice}; in this {type(model).__name__} the input reaches the output around its layer {found[0]!r} as well")
    return Layer(found[0], (sample.shape[1],), 0, "input")


def _attentions(model: nn.Module, patterns: Sequence[str]) -> list[Layer]:
    """The nn.MultiheadAttention modules whose name matches, with their heads as units."""
    there = {name: module for name, module in model.named_modules() if isinstance(module, nn.MultiheadAttention)}
    layers: list[Layer] = []
    for name, module in there.items():
        if any(fnmatchcase(name, p) for p in patterns):
            layers.append(Layer(name, (module.num_heads,), layers[-1].start + layers[-1].size if layers else 0, "head"))
    if not layers:
        names = ", ".join(there) or "none"
        wanted = " or ".join(map(repr, patterns))
        raise BadInput(f'granularity="head" needs layers of nn.MultiheadAttention; none matches {wanted}; the network\'s are: {names}')
    return layers


def find_layers(
    model: nn.Module, sample: Tensor, pattern: str | Sequence[str] = "*", channels: bool = False, width: int = 1
) -> list[Layer]:
    """The linear and convolutional layers whose name matches a pattern, in execution order, without the output layer.

    `sample` is a few rows of input, to determine the shapes of the pre-activations. With `channels`, a unit of a convolution is a whole
    channel.
    """
    patterns = [pattern] if isinstance(pattern, str) else list(pattern)
    seen: dict[str, Tensor] = {}

    def see(name: str, _module: nn.Module, _inputs: object, output: Tensor) -> None:
        seen.setdefault(name, output)

    kinds: tuple[type[nn.Module], ...] = (nn.Linear, *MASKED, *MASKED.values())
    candidates = {name: module for name, module in model.named_modules() if isinstance(module, kinds)}
    with ExitStack() as hooks, evaluating(model), torch.no_grad():
        for name, module in candidates.items():
            hooks.enter_context(module.register_forward_hook(partial(see, name)))
        model(sample[:2].to(device_of(model)))
    ran = [(name, tuple(out.shape[-1:] if isinstance(candidates[name], nn.Linear) else out.shape[1:])) for name, out in seen.items()]
    hidden = ran[:-1] if ran and ran[-1][1][0] == width else ran
    chosen = [(name, shape) for name, shape in hidden if any(fnmatchcase(name, p) for p in patterns)]
    if not chosen:
        names = ", ".join(name for name, _ in hidden) or "none"
        raise BadInput(f"no linear or convolutional layer matches {' or '.join(map(repr, patterns))}; the network's are: {names}")
    layers, start = [], 0
    for name, shape in chosen:
        layers.append(Layer(name, shape[:1] if channels else shape, start))
        start += layers[-1].size
    return layers


def switch_off(model: nn.Module, layers: Sequence[Layer], units: Tensor) -> None:
    """Sets the pre-activation of the marked units (units,) of a module to zero, in place."""
    for layer in layers:
        marked = units[layer.start : layer.start + layer.size]
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
        if type(module) in MASKED:
            module.__class__ = MASKED[type(module)]
            module.register_buffer("unit_mask", kept)
        else:
            module.get_buffer("unit_mask").mul_(kept)


@contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """No parameter requires a gradient during the block."""
    wanted = [p for p in model.parameters() if p.requires_grad]
    for p in wanted:
        p.requires_grad_(False)
    try:
        yield
    finally:
        for p in wanted:
            p.requires_grad_(True)
