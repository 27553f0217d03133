"""Units of any module: list them, attribute a gap to them, and switch them off.

A unit is one component of a layer's pre-activation: an output of a linear layer, a component of the C x H x W output of a convolution.
With `channels`, it is a whole channel of a convolution. Switching one off sets its pre-activation to zero: for a linear layer or a
channel its incoming weights and bias, which keeps the state dict as it was; for a convolution a mask, a buffer that is saved with the
module.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn

from equipoise.errors import BadInput
from equipoise.models.feed import device_of, half
from equipoise.models.score import evaluating


class MaskedConv1d(nn.Conv1d):
    """A convolution some of whose units are switched off."""

    unit_mask: Tensor

    def forward(self, input: Tensor) -> Tensor:
        raw = super().forward(input)
        return raw * self.unit_mask.to(raw.dtype)  # which may be bfloat16, and is to stay so


class MaskedConv2d(nn.Conv2d):
    """A convolution some of whose units are switched off."""

    unit_mask: Tensor

    def forward(self, input: Tensor) -> Tensor:
        raw = super().forward(input)
        return raw * self.unit_mask.to(raw.dtype)  # which may be bfloat16, and is to stay so


class MaskedConv3d(nn.Conv3d):
    """A convolution some of whose units are switched off."""

    unit_mask: Tensor

    def forward(self, input: Tensor) -> Tensor:
        raw = super().forward(input)
        return raw * self.unit_mask.to(raw.dtype)  # which may be bfloat16, and is to stay so


MASKED: dict[type[nn.Module], type[nn.Module]] = {nn.Conv1d: MaskedConv1d, nn.Conv2d: MaskedConv2d, nn.Conv3d: MaskedConv3d}


@dataclass(frozen=True)
class Layer:
    """A layer with units: its name in the module, the shape of its pre-activation without rows, and where its units start."""

    name: str
    shape: tuple[int, ...]
    start: int

    @property
    def size(self) -> int:
        return int(torch.tensor(self.shape).prod())


def find_layers(model: nn.Module, sample: Tensor, pattern: str | Sequence[str] = "*", channels: bool = False) -> list[Layer]:
    """The linear and convolutional layers whose name matches a pattern, in the order they run, less the output layer.

    `sample` is a few rows of input, to learn the shapes of the pre-activations. With `channels`, a unit of a convolution is a whole
    channel.
    """
    patterns = [pattern] if isinstance(pattern, str) else list(pattern)
    ran: list[tuple[str, tuple[int, ...]]] = []
    kinds: tuple[type[nn.Module], ...] = (nn.Linear, *MASKED, *MASKED.values())
    candidates = {name: module for name, module in model.named_modules() if isinstance(module, kinds)}
    with evaluating(model), torch.no_grad(), _watching(candidates) as seen:
        model(sample[:2].to(device_of(model)))
        for name, outputs in seen.items():
            full = tuple(outputs[0].shape)
            ran.append((name, full[-1:] if isinstance(candidates[name], nn.Linear) else full[1:]))
    hidden = ran[:-1] if ran and ran[-1][1][0] == 1 else ran
    chosen = [(name, shape) for name, shape in hidden if any(fnmatchcase(name, p) for p in patterns)]
    if not chosen:
        names = ", ".join(name for name, _ in hidden) or "none"
        raise BadInput(f"no linear or convolutional layer matches {' or '.join(map(repr, patterns))}; the network's are: {names}")
    layers, start = [], 0
    for name, shape in chosen:
        layers.append(Layer(name, shape[:1] if channels else shape, start))
        start += layers[-1].size
    return layers


def gap_gradients(model: nn.Module, layers: Sequence[Layer], x: Tensor, weight: Tensor, probability: bool) -> tuple[Tensor, Tensor]:
    """Raw outputs (rows,) of a batch, and the gradient of sum_i w_i f_i with respect to each unit, summed over the rows (units,).

    Parameters get no gradient: the graph starts at the first of the layers. A layer's gradient is summed up as the backward pass comes
    by and is not kept.
    """
    total = torch.zeros(layers[-1].start + layers[-1].size, device=x.device)
    with evaluating(model), _frozen(model), _tapped(model, layers, total) as leaves, torch.enable_grad(), half(x.device):
        raw = model(x).reshape(len(x)).float()
        f = raw if probability else torch.sigmoid(raw)
        torch.autograd.grad((f * weight.to(f)).sum(), leaves, allow_unused=True)
    return raw.detach(), total


def _by_unit(gradient: Tensor, module: nn.Module, layer: Layer) -> Tensor:
    """A gradient summed over rows, and over positions where a unit is a channel (units,)."""
    if isinstance(module, nn.Linear):
        return gradient.reshape(-1, gradient.shape[-1]).sum(0, dtype=torch.float32)
    summed = _over_rows(gradient) if gradient.is_cuda and gradient.ndim == 4 else gradient.sum(0, dtype=torch.float32)
    return summed.reshape(*layer.shape, -1).sum(-1).reshape(-1)


def _over_rows(gradient: Tensor) -> Tensor:
    """The sum over rows of (rows, c, h, w) in channels-last layout, as a product with ones: many times faster there than a sum."""
    rows, c, h, w = gradient.shape
    flat = gradient.permute(0, 2, 3, 1).reshape(rows, -1)
    return (gradient.new_ones(1, rows) @ flat).float().view(h, w, c).permute(2, 0, 1)


def switch_off(model: nn.Module, layers: Sequence[Layer], units: Tensor) -> None:
    """Sets the pre-activation of the marked units (units,) of a module to zero, in place."""
    for layer in layers:
        marked = units[layer.start : layer.start + layer.size]
        if not bool(marked.any()):
            continue
        module = model.get_submodule(layer.name)
        if len(layer.shape) == 1:  # an output of a linear layer, or a channel: its weights make it, so nothing else is left behind
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
def _watching(modules: dict[str, nn.Module]) -> Iterator[dict[str, list[Tensor]]]:
    """The outputs of these modules during the block, in the order they run; every hook is gone afterwards."""
    seen: dict[str, list[Tensor]] = {}
    handles = []

    def watch(name: str) -> None:
        handles.append(modules[name].register_forward_hook(lambda _module, _inputs, output: seen.setdefault(name, []).append(output)))

    try:
        for name in modules:
            watch(name)
        yield seen
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _tapped(model: nn.Module, layers: Sequence[Layer], total: Tensor) -> Iterator[list[Tensor]]:
    """Adds the gradient of every unit to `total` (units,) in a backward pass to the leaves that come back; no hook stays."""
    leaves: list[Tensor] = []
    handles = []

    def tap(layer: Layer) -> None:
        module = model.get_submodule(layer.name)

        def add(gradient: Tensor) -> None:
            total[layer.start : layer.start + layer.size] += _by_unit(gradient, module, layer)

        def hook(_module: nn.Module, _inputs: object, output: Tensor) -> Tensor | None:
            if output.requires_grad:
                output.register_hook(add)  # for its value as it is now, even if an activation overwrites it in place
                return None
            leaves.append(output.requires_grad_(True))
            copied = output.clone()  # a leaf must not be overwritten by an activation in place
            copied.register_hook(add)
            return copied

        handles.append(module.register_forward_hook(hook))

    try:
        for layer in layers:
            tap(layer)
        yield leaves
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _frozen(model: nn.Module) -> Iterator[None]:
    """No parameter asks for a gradient during the block."""
    wanted = [p for p in model.parameters() if p.requires_grad]
    for p in wanted:
        p.requires_grad_(False)
    try:
        yield
    finally:
        for p in wanted:
            p.requires_grad_(True)
