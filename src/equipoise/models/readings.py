"""Features of a network: the inputs of linear and convolutional layers (after activation and norm; the mean over positions of a
convolution or over tokens), and the inputs of the network: the columns of a table, or for images a small picture and its edges.

Hooks read them while the network runs, so that any module can be probed, exporters can trace it, and no hook remains. `ReadOnce` caches
them for cross-fitting, which needs them for different subsets of the same rows.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from threading import get_ident

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from equipoise.data import FloatArray, Images, IntArray
from equipoise.errors import BadInput, pick
from equipoise.models.devices import Feed, compute_device, on_device
from equipoise.models.score import evaluating, in_pieces, logit_of, output_kind, outputs, rows_at_once, single_output
from equipoise.models.units import MASKED

KINDS: tuple[type[nn.Module], ...] = (nn.Linear, *MASKED)
WIDEST = 2048  # largest input of a layer that is read; excludes the 25,088 of VGG's first linear layer
DEPTHS = ("auto", "inputs", "last", "inputs and last", "hidden", "all")
PIXELS = 16  # approximate side of the small picture
PLACES = 8  # approximate side of the grid of edge strengths
ROOT_2 = 2.0**0.5


@dataclass(frozen=True)
class Reading:
    """The features to read: the inputs of the named layers, and optionally the inputs of the network."""

    layers: tuple[str, ...]
    inputs: bool

    def __str__(self) -> str:
        parts = ["the inputs"] if self.inputs else []
        parts += [f"what enters {', '.join(self.layers)}"] if self.layers else []
        return " and ".join(parts)


def reading_of(model: nn.Module, inputs: Tensor | Images, depth: str = "auto", max_layers: int = 6) -> Reading:
    """The features to read: `inputs`, the `last` layer, all `hidden` layers (at most `max_layers`, evenly spaced), or `all`.

    `auto` is the inputs and the last layer for a table, and for images the inputs, which are read as small pictures and their edges.
    """
    table = len(inputs.shape) == 2
    chosen = pick("depth", depth, DEPTHS)
    if chosen == "auto":
        chosen = "inputs and last" if table else "inputs"
    layers = [] if chosen == "inputs" else _readable_layers(model, inputs, table)
    if chosen in ("last", "inputs and last"):
        layers = layers[-1:]
    elif len(layers) > max_layers:
        layers = [layers[k] for k in np.linspace(0, len(layers) - 1, max_layers).round().astype(int)]
    reading = Reading(tuple(layers), chosen in ("inputs", "inputs and last", "all"))
    if not reading.layers and not reading.inputs:
        raise BadInput(
            'this network has no linear or convolutional layer whose inputs could be read; use depth="inputs". '
            "Or use a method that reads no features, such as bias-gda."
        )
    return reading


def _readable_layers(model: nn.Module, inputs: Tensor | Images, table: bool) -> list[str]:
    """The layers that a row passes through once, in execution order; for a table without the first, whose input is the table."""
    named = {name: module for name, module in model.named_modules() if isinstance(module, KINDS)}
    device = compute_device(model, inputs)
    few, network = Feed(inputs, device)(torch.arange(min(len(inputs), 2))), on_device(model, device)
    with evaluating(network), torch.no_grad(), _recorded_inputs(network, list(named)) as recorded:
        network(few)
    readable = [name for name, x in recorded.items() if x.ndim == 2 and len(x) == len(few) and x.shape[1] <= WIDEST]
    return readable[1:] if table and readable else readable


@contextmanager
def _recorded_inputs(model: nn.Module, names: Sequence[str]) -> Iterator[dict[str, Tensor]]:
    """Records the inputs of these layers during the block, one vector per row, by name in execution order; no hook remains afterwards."""
    recorded: dict[str, Tensor] = {}
    thread = get_ident()  # a network may serve several threads at once

    def record(name: str, layer: nn.Module, args: tuple[object, ...]) -> None:
        if get_ident() == thread and args and isinstance(args[0], Tensor) and name not in recorded:
            recorded[name] = _pooled(args[0], isinstance(layer, nn.Linear))

    with ExitStack() as hooks:
        for name in names:
            hooks.enter_context(model.get_submodule(name).register_forward_pre_hook(partial(record, name)))
        yield recorded


def _pooled(x: Tensor, linear: bool) -> Tensor:
    """One vector per row: the mean over tokens or positions. Never a view, since later layers may write in place."""
    if x.ndim <= 2:
        return x.clone()
    return x.flatten(1, -2).mean(1) if linear else x.flatten(2).mean(2)


def read(model: nn.Module, x: Tensor, reading: Reading) -> tuple[Tensor, Tensor]:
    """The network's raw output (rows,) or (rows, 1) and the features (rows, d)."""
    raw, (features,) = read_all(model, x, [reading])
    return raw, features


def read_all(model: nn.Module, x: Tensor, readings: Sequence[Reading]) -> tuple[Tensor, list[Tensor]]:
    """The network's raw output and the features (rows, d) of several readings, in one pass."""
    with _recorded_inputs(model, list(dict.fromkeys(name for reading in readings for name in reading.layers))) as recorded:
        raw: Tensor = model(x)
    inputs = [_input_features(x)] if any(reading.inputs for reading in readings) else []
    return raw, [torch.cat([*(inputs if r.inputs else []), *(recorded[name] for name in r.layers)], dim=1) for r in readings]


def _input_features(x: Tensor) -> Tensor:
    return picture(x) if x.ndim == 4 else x.flatten(1)


@dataclass(frozen=True, eq=False)
class Shown:
    """A network's outputs for some rows, their logits, and the features of a reading, on the CPU."""

    reading: Reading
    output: str  # what the network returns: logit or probability
    device: torch.device  # where it was computed
    raw: Tensor  # outputs (n,)
    logit: Tensor  # (n,)
    seen: Tensor  # features (n, d)

    def take(self, rows: IntArray) -> "Shown":
        """The same for some of the rows."""
        index = torch.from_numpy(rows)
        return replace(self, raw=self.raw[index], logit=self.logit[index], seen=self.seen[index])

    def arrays(self) -> tuple[FloatArray, FloatArray]:
        """The logit (n,) and the features (n, d)."""
        return self.logit.double().numpy(), self.seen.double().numpy()


def features(model: nn.Module, inputs: Tensor | Images, reading: Reading) -> tuple[FloatArray, FloatArray]:
    """The logit (n,) and the features (n, d) of all rows, in eval mode and full precision."""
    return _read_rows(model, inputs, reading).arrays()


def _read_rows(model: nn.Module, inputs: Tensor | Images, reading: Reading, known: Tensor | None = None) -> Shown:
    """The outputs and features of all rows. If only the inputs are read and the outputs (n,) are `known`, the network does not run."""
    device = compute_device(model, inputs)
    network, feed = on_device(model, device), Feed(inputs, device)
    output = output_kind(model, inputs)
    batches: list[tuple[Tensor, Tensor, Tensor]] = []

    def read_batch(rows: Tensor) -> None:
        x = feed(rows)
        raw, features = read(network, x, reading) if known is None or reading.layers else (known[rows].to(device), _input_features(x))
        raw = single_output(raw, len(rows))
        batches.append((raw.cpu(), logit_of(raw, output == "probability").cpu(), features.cpu()))

    with evaluating(network), torch.no_grad():
        in_pieces(read_batch, torch.arange(len(inputs)), feed, rows_at_once(feed))
    return Shown(reading, output, device, *(torch.cat(parts) for parts in zip(*batches, strict=True)))


@dataclass(frozen=True, eq=False)
class ReadOnce:
    """One network on the rows of one cohort: its outputs and its features, each computed when first needed and cached.

    Objects made by `take` share the cache. Changes of the network do not invalidate it, so use an object only as long as the network
    stays unchanged.
    """

    model: nn.Module
    inputs: Tensor | Images
    rows: IntArray | None = None  # positions among the inputs; None: all
    _cache: dict[Reading | None, Tensor | Shown] = field(default_factory=dict, repr=False)  # for all rows; None: the outputs

    def take(self, rows: IntArray) -> "ReadOnce":
        """The same for some of the rows."""
        return replace(self, rows=rows if self.rows is None else self.rows[rows])

    def raw(self) -> Tensor:
        """The network's outputs (n,), as returned by `outputs`."""
        whole = self._outputs()
        return whole if self.rows is None else whole[torch.from_numpy(self.rows)]

    def shown(self, reading: Reading) -> Shown:
        """The network's outputs and the features of a reading for these rows."""
        whole = self._cache.get(reading)
        if not isinstance(whole, Shown):
            whole = self._cache[reading] = _read_rows(self.model, self.inputs, reading, None if reading.layers else self._outputs())
        return whole if self.rows is None else whole.take(self.rows)

    def of(self, network: nn.Module) -> bool:
        """Whether a network is the one that was read, or a copy of it: of the same class, with the same numbers."""
        if network is self.model:
            return True
        a, b = self.model.state_dict(), network.state_dict()
        same = type(network) is type(self.model) and a.keys() == b.keys()
        return same and all(torch.equal(a[name].to(b[name].device), b[name]) for name in a)

    def _outputs(self) -> Tensor:
        whole = self._cache.get(None)
        if not isinstance(whole, Tensor):
            whole = self._cache[None] = outputs(self.model, self.inputs)
        return whole


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
    """Yields the edge strength at each position (rows, 1, height - 2, width - 2) for eight directions, one at a time to save memory.

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
