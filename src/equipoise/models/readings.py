"""Features of a network: the inputs of linear and convolutional layers (after activation and norm; the mean over positions of a
convolution or over tokens), and the inputs of the network: the columns of a table, or for images a small picture and its edges.

They are read by hooks while the network runs, so that any module can be probed, exporters can trace it, and no hook remains. `ReadOnce`
keeps what was read of the rows of a repair, of which some are left out in turn.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from threading import get_ident

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from equipoise.data import Images, IntArray
from equipoise.errors import BadInput, pick
from equipoise.models.devices import Feed, compute_device, on_device
from equipoise.models.protocol import FloatArray
from equipoise.models.score import evaluating, in_pieces, output_kind, outputs, rows_at_once, single_output
from equipoise.models.units import MASKED

KINDS: tuple[type[nn.Module], ...] = (nn.Linear, *MASKED)
WIDEST = 2048  # largest input of a layer that is read; excludes the 25,088 of VGG's first linear layer
DEPTHS = ("auto", "inputs", "last", "inputs and last", "hidden", "all")
EDGE = 1e-6  # probabilities are clipped to [EDGE, 1 - EDGE], so that their logits are finite
PIXELS = 16  # approximate side of the small picture
PLACES = 8  # approximate side of the grid of edge strengths
ROOT_2 = 2.0**0.5


@dataclass(frozen=True)
class Reading:
    """The features that are read: names of layers whose inputs are read, and whether the network's inputs are."""

    layers: tuple[str, ...]
    inputs: bool

    def __str__(self) -> str:
        parts = ["the inputs"] if self.inputs else []
        parts += [f"what enters {', '.join(self.layers)}"] if self.layers else []
        return " and ".join(parts)


def reading_of(model: nn.Module, inputs: Tensor | Images, depth: str = "auto", max_layers: int = 6) -> Reading:
    """Which features to read: `inputs`, the `last` layer, all `hidden` ones (evenly spaced where they are more than `max_layers`), or
    `all`.

    `auto` is the inputs and the last layer of a table, and of images the inputs, which are read as small pictures and their edges.
    """
    table = len(inputs.shape) == 2
    chosen = pick("depth", depth, DEPTHS)
    if chosen == "auto":
        chosen = "inputs and last" if table else "inputs"
    layers = [] if chosen == "inputs" else _layers(model, inputs, table)
    if chosen in ("last", "inputs and last"):
        layers = layers[-1:]
    elif len(layers) > max_layers:
        layers = [layers[k] for k in np.linspace(0, len(layers) - 1, max_layers).round().astype(int)]
    found = Reading(tuple(layers), chosen in ("inputs", "inputs and last", "all"))
    if not found.layers and not found.inputs:
        raise BadInput(
            'this network has no linear or convolutional layer whose inputs could be read; use depth="inputs". '
            "Or use a method that reads no features, such as bias-gda."
        )
    return found


def _layers(model: nn.Module, inputs: Tensor | Images, table: bool) -> list[str]:
    """The layers that a row passes through once, in execution order; for a table without the first, whose input is the table."""
    named = {name: module for name, module in model.named_modules() if isinstance(module, KINDS)}
    device = compute_device(model, inputs)
    few, working = Feed(inputs, device)(torch.arange(min(len(inputs), 2))), on_device(model, device)
    with evaluating(working), torch.no_grad(), _reading(working, list(named)) as seen:
        working(few)
    fit = [name for name, found in seen.items() if found.ndim == 2 and len(found) == len(few) and found.shape[1] <= WIDEST]
    return fit[1:] if table and fit else fit


@contextmanager
def _reading(model: nn.Module, names: Sequence[str]) -> Iterator[dict[str, Tensor]]:
    """The inputs of these layers during the block, one vector per row, by name in execution order; no hook remains afterwards."""
    seen: dict[str, Tensor] = {}
    handles, thread = [], get_ident()  # a network may serve several threads at once

    def watch(name: str) -> None:
        layer = model.get_submodule(name)

        def take(_module: nn.Module, args: tuple[object, ...]) -> None:
            if get_ident() == thread and args and isinstance(args[0], Tensor) and name not in seen:
                seen[name] = _pooled(args[0], isinstance(layer, nn.Linear))

        handles.append(layer.register_forward_pre_hook(take))

    try:
        for name in names:
            watch(name)
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def _pooled(x: Tensor, linear: bool) -> Tensor:
    """One vector per row: the mean over tokens or positions. Never a view, since later layers may write in place."""
    if x.ndim <= 2:
        return x.clone()
    return x.flatten(1, -2).mean(1) if linear else x.flatten(2).mean(2)


def read(model: nn.Module, x: Tensor, reading: Reading) -> tuple[Tensor, Tensor]:
    """The network's raw output (rows,) or (rows, 1) and the features (rows, d)."""
    raw, (seen,) = read_all(model, x, [reading])
    return raw, seen


def read_all(model: nn.Module, x: Tensor, readings: Sequence[Reading]) -> tuple[Tensor, list[Tensor]]:
    """The network's raw output and the features (rows, d) of several readings, in one pass."""
    with _reading(model, list(dict.fromkeys(name for reading in readings for name in reading.layers))) as seen:
        raw: Tensor = model(x)
    shown = [_of_inputs(x)] if any(reading.inputs for reading in readings) else []
    return raw, [torch.cat([*(shown if r.inputs else []), *(seen[name] for name in r.layers)], dim=1) for r in readings]


def _of_inputs(x: Tensor) -> Tensor:
    return picture(x) if x.ndim == 4 else x.flatten(1)


@dataclass(frozen=True, eq=False)
class Shown:
    """What a network shows of some rows, on the CPU: its outputs, their logits, and the features of a reading."""

    reading: Reading
    output: str  # what the network returns: logit or probability
    device: torch.device  # where it was computed
    raw: Tensor  # (n,)
    logit: Tensor  # (n,)
    seen: Tensor  # (n, d)

    def take(self, rows: IntArray) -> "Shown":
        """The same of some of the rows."""
        index = torch.from_numpy(rows)
        return replace(self, raw=self.raw[index], logit=self.logit[index], seen=self.seen[index])

    def arrays(self) -> tuple[FloatArray, FloatArray]:
        """The logit (n,) and the features (n, d)."""
        return self.logit.double().numpy(), self.seen.double().numpy()


def features(model: nn.Module, inputs: Tensor | Images, reading: Reading) -> tuple[FloatArray, FloatArray]:
    """The logit (n,) and the features (n, d) of all rows, in eval mode and full precision."""
    return _shown(model, inputs, reading).arrays()


def _shown(model: nn.Module, inputs: Tensor | Images, reading: Reading, known: Tensor | None = None) -> Shown:
    """What the network shows of all rows. Where only the inputs are read and the outputs (n,) are known, it does not run."""
    device = compute_device(model, inputs)
    working, feed = on_device(model, device), Feed(inputs, device)
    output = output_kind(model, inputs)
    found: list[tuple[Tensor, Tensor, Tensor]] = []

    def show(rows: Tensor) -> None:
        x = feed(rows)
        raw, seen = read(working, x, reading) if known is None or reading.layers else (known[rows].to(device), _of_inputs(x))
        raw = single_output(raw, len(rows))
        found.append((raw.cpu(), logit_of(raw, output == "probability").cpu(), seen.cpu()))

    with evaluating(working), torch.no_grad():
        in_pieces(show, torch.arange(len(inputs)), feed, rows_at_once(feed))
    return Shown(reading, output, device, *(torch.cat(parts) for parts in zip(*found, strict=True)))


@dataclass(frozen=True, eq=False)
class ReadOnce:
    """One network on the rows of one cohort: its outputs and its features, each read when first needed and kept for the next time.

    What is kept belongs to this object and to those that `take` makes of it. It does not follow a network that is changed: make one for a
    piece of work that leaves the network as it is, and let it go with that.
    """

    model: nn.Module
    inputs: Tensor | Images
    rows: IntArray | None = None  # of the inputs; None: all
    _kept: dict[Reading | None, Tensor | Shown] = field(default_factory=dict, repr=False)  # of all rows; None: the outputs

    def take(self, rows: IntArray) -> "ReadOnce":
        """The same of some of the rows."""
        return replace(self, rows=rows if self.rows is None else self.rows[rows])

    def raw(self) -> Tensor:
        """The network's outputs (n,), as `outputs` gives them."""
        whole = self._outputs()
        return whole if self.rows is None else whole[torch.from_numpy(self.rows)]

    def shown(self, reading: Reading) -> Shown:
        """What the network shows of these rows."""
        whole = self._kept.get(reading)
        if not isinstance(whole, Shown):
            whole = self._kept[reading] = _shown(self.model, self.inputs, reading, None if reading.layers else self._outputs())
        return whole if self.rows is None else whole.take(self.rows)

    def of(self, network: nn.Module) -> bool:
        """Whether a network is the one that was read, or a copy of it: of one class, with the same numbers."""
        if network is self.model:
            return True
        own, other = self.model.state_dict(), network.state_dict()
        same = type(network) is type(self.model) and own.keys() == other.keys()
        return same and all(torch.equal(own[name].to(other[name].device), other[name]) for name in own)

    def _outputs(self) -> Tensor:
        whole = self._kept.get(None)
        if not isinstance(whole, Tensor):
            whole = self._kept[None] = outputs(self.model, self.inputs)
        return whole


def logit_of(raw: Tensor, probability: bool) -> Tensor:
    """The logit of a raw output."""
    return torch.logit(raw, EDGE) if probability else raw


def picture(x: Tensor) -> Tensor:
    """Features (rows, d) of images (rows, channels, height, width): the picture made small, and strength and direction of its edges.

    Training removes from a network what does not serve its task, and pooling removes positions: sex, for one, can be predicted better from
    these features of a chest X-ray than from any layer of a network trained on a finding. Channels are averaged. Only convolutions,
    comparisons and means are used, so that exporters can trace it.

    >>> picture(torch.zeros(2, 1, 112, 112)).shape
    torch.Size([2, 768])
    """
    gray = x.mean(1, keepdim=True)
    return torch.cat([_averaged(gray, PIXELS), *(_averaged(edges, PLACES) for edges in _edges(gray))], dim=1)


def _edges(gray: Tensor) -> Iterator[Tensor]:
    """Edge strength at each position (rows, 1, height - 2, width - 2), in one of eight directions after the other, to spare memory.

    A brightness gradient is the sum of a part along the nearest axis and one along the nearest diagonal: (3, 1) is 2 to the right and 1
    diagonally. Both are continuous, so that rounding moves none of them: in images with few levels of gray, gradients lie exactly along
    axes and diagonals, where one direction ends and the next begins.
    """
    step = torch.arange(-1, 2, dtype=gray.dtype, device=gray.device)  # made there: a copy from the CPU would wait for the GPU
    kernel = (2 - step.abs())[:, None] * step  # Sobel's: the brightness gradient to the right; its transpose: downwards
    slopes = F.conv2d(gray, torch.stack([kernel, kernel.T])[:, None] / 8)
    across, down = slopes[:, :1], slopes[:, 1:]
    for along, other in ((across, down.abs()), (down, across.abs())):
        yield F.relu(along - other)
        yield F.relu(-along - other)
    for a in (F.relu(across), F.relu(-across)):
        for b in (F.relu(down), F.relu(-down)):
            yield ROOT_2 * torch.minimum(a, b)


def _averaged(x: Tensor, places: int) -> Tensor:
    """Means over about places x places squares, as one vector per row."""
    return F.avg_pool2d(x, max(1, min(x.shape[2:]) // places)).flatten(1)
