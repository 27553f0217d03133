"""Features of a network: the inputs of linear and convolutional layers (after activation and norm; the mean over positions of a
convolution or over tokens), and the inputs of the network: the columns of a table, or for images a small picture and its edges.

They are read by hooks while the network runs, so that any module can be probed, exporters can trace it, and no hook remains.

`encoding` measures how well a group can be read from each layer, by a linear probe that never saw the patient. What a layer holds is not
necessarily used: a layer may hold the group and the decision ignore it, and a decision may differ between groups whatever a probe finds.
The gaps of the audit describe the decisions; this shows where in the network the group can be read.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from sys import maxsize
from threading import get_ident

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from equipoise.data import Attribute, Cohort, Images
from equipoise.errors import BadInput, pick, raise_all
from equipoise.measures import BLOCK, INSUFFICIENT, IntArray, Ranking, interval, multiplicities, units_of
from equipoise.models.devices import Feed, compute_device, on_device
from equipoise.models.probes import fit_probe, folds_of
from equipoise.models.protocol import BoolArray, FloatArray
from equipoise.models.score import evaluating, in_pieces, output_kind, outputs, rows_at_once, single_output
from equipoise.models.units import MASKED

KINDS: tuple[type[nn.Module], ...] = (nn.Linear, *MASKED)
WIDEST = 2048  # largest input of a layer that is read; excludes the 25,088 of VGG's first linear layer
DEPTHS = ("auto", "inputs", "last", "inputs and last", "hidden", "all")
EDGE = 1e-6  # probabilities are clipped to [EDGE, 1 - EDGE], so that their logits are finite
PIXELS = 16  # approximate side of the small picture
PLACES = 8  # approximate side of the grid of edge strengths
SOBEL = ((-1.0, 0.0, 1.0), (-2.0, 0.0, 2.0), (-1.0, 0.0, 1.0))  # brightness gradient to the right; its transpose: downwards
ROOT_2 = 2.0**0.5
READ_IS_NOT_USED = "What a layer holds is not necessarily used: the gaps describe the decisions, this table describes the layers."
CHANCE = 0.5  # of an AUROC, whatever the sizes of the groups
GIVEN: dict[str, int | None] = {"auroc": None, "auroc_positives": 1, "auroc_negatives": 0}  # column: the label of the rows that it is of
COLUMNS = [
    "attribute",
    "layer",
    "depth",
    "width",
    *(f"{name}{bound}" for name in GIVEN for bound in ("", "_low", "_high")),
    "chance",
    "note",
]


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
    shown = [picture(x) if x.ndim == 4 else x.flatten(1)] if any(reading.inputs for reading in readings) else []
    return raw, [torch.cat([*(shown if r.inputs else []), *(seen[name] for name in r.layers)], dim=1) for r in readings]


def features(model: nn.Module, inputs: Tensor | Images, reading: Reading) -> tuple[FloatArray, FloatArray]:
    """The logit (n,) and the features (n, d) of all rows, in eval mode and full precision."""
    device = compute_device(model, inputs)
    working, feed = on_device(model, device), Feed(inputs, device)
    probability = output_kind(model, inputs) == "probability"
    found: list[tuple[Tensor, Tensor]] = []

    def show(rows: Tensor) -> None:
        raw, seen = read(working, feed(rows), reading)
        found.append((logit_of(single_output(raw, len(rows)), probability).double().cpu(), seen.double().cpu()))

    with evaluating(working), torch.no_grad():
        in_pieces(show, torch.arange(len(inputs)), feed, rows_at_once(feed))
    logits, seen = (torch.cat(parts).numpy() for parts in zip(*found, strict=True))
    return logits, seen


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
    return torch.cat([_averaged(gray, PIXELS), _averaged(_edges(gray), PLACES)], dim=1)


def _edges(gray: Tensor) -> Tensor:
    """Edge strength at each position in eight directions (rows, 8, height - 2, width - 2).

    A brightness gradient is the sum of a part along the nearest axis and one along the nearest diagonal: (3, 1) is 2 to the right and 1
    diagonally. Both are continuous, so that rounding moves none of them: in images with few levels of gray, gradients lie exactly along
    axes and diagonals, where one direction ends and the next begins.
    """
    kernel = gray.new_tensor(SOBEL)
    slopes = F.conv2d(gray, torch.stack([kernel, kernel.T])[:, None] / 8)
    across, down = slopes[:, :1], slopes[:, 1:]
    axes = [F.relu(along - other.abs()) for along, other in ((across, down), (-across, down), (down, across), (-down, across))]
    diagonals = [ROOT_2 * torch.minimum(F.relu(a), F.relu(b)) for a in (across, -across) for b in (down, -down)]
    return torch.cat([*axes, *diagonals], dim=1)


def _averaged(x: Tensor, places: int) -> Tensor:
    """Means over about places x places squares, as one vector per row."""
    return F.avg_pool2d(x, max(1, min(x.shape[2:]) // places)).flatten(1)


@dataclass(frozen=True)
class _Settings:
    """How the intervals are made, and the fewest patients of a group that has one."""

    draws: int
    level: float
    seed: int
    min_patients: int


@dataclass(frozen=True, eq=False)
class _Layer:
    """What one layer takes in, or what the network puts out."""

    name: str
    depth: int
    seen: FloatArray  # (n, width)


def encoding(
    model: nn.Module,
    cohort: Cohort,
    *,
    folds: int = 5,
    draws: int = 1000,
    level: float = 0.95,
    seed: int = 0,
    min_patients: int = 5,
    max_layers: int = 12,
    progress: Callable[[int, int], None] | None = None,
) -> pd.DataFrame:
    """One row per layer and attribute: the AUROC with which a linear probe reads the group from what enters the layer, with its interval.

    Of more than two groups, the mean of each against the rest. `auroc_positives` and `auroc_negatives` are of probes learnt and tried
    among rows of one label: a difference in prevalence alone makes the group readable wherever the label is, and these leave it out.
    Chance is 0.5.

    Depth 0 is the inputs (of images, their mean over the positions), the last row the network's own output; of more than `max_layers`
    layers between, some are read, evenly spaced. Convolutions are read by their channels' means, so what only the place tells stays
    unseen, as does what is no linear function of the layer. Probes are cross-fitted by patient. The intervals are a bootstrap of the
    patients that they are tried on, widened for those that they learn from. Below 0.5 is chance too: what a probe learns from noise is
    as often wrong as right. Rows without a group are left out, and so are groups with fewer than `min_patients` patients (of that label);
    the note says so. The network is not changed. What a layer holds is not necessarily used.

    >>> group = np.tile(["M", "M", "F", "F"], 50)
    >>> x = torch.from_numpy(np.stack([group == "F", np.tile([0, 1], 100)], 1)).float()
    >>> found = encoding(nn.Linear(2, 1), Cohort.from_arrays(x, np.tile([0, 1], 100), group), draws=20)
    >>> found["layer"].tolist(), float(found["auroc"][0])
    (['inputs', 'output'], 1.0)
    """
    _check(model, cohort, folds, draws, level, min_patients, max_layers)
    layers = _seen_by_layers(model, cohort, max_layers)
    settings = _Settings(draws, level, seed, min_patients)
    rows, steps = [], len(layers) * len(cohort.attributes)
    for attribute in cohort.attributes:
        known = np.flatnonzero(attribute.codes >= 0)
        own = replace(cohort, source=torch.empty(len(cohort), 0), attributes=(attribute,)).take(known)
        fold = folds_of(own, folds, seed)
        for layer in layers:
            found, notes = _row(layer.seen[known], own, fold, settings)
            rows.append({"attribute": attribute.name, "layer": layer.name, "depth": layer.depth, "width": layer.seen.shape[1]} | found)
            rows[-1] |= {"chance": CHANCE, "note": notes}
            if progress:
                progress(len(rows), steps)
    return pd.DataFrame(rows, columns=COLUMNS)


def _check(model: object, cohort: object, folds: int, draws: int, level: float, min_patients: int, max_layers: int) -> None:
    if not isinstance(model, nn.Module):
        raise BadInput(
            f"encoding reads the layers of a torch.nn.Module; got {type(model).__name__}. Of a debiasing result, give its .model."
        )
    if not isinstance(cohort, Cohort):
        raise BadInput(f"encoding reads a network on a Cohort; got {type(cohort).__name__}")
    checks = {
        f"folds must be at least 2; got {folds}": folds >= 2,
        f"draws must be at least 2; got {draws}": draws >= 2,
        f"level must be at least 0.01 and at most 0.9999; got {level}": 0.01 <= level <= 0.9999,
        f"min_patients must be at least 1; got {min_patients}": min_patients >= 1,
        f"max_layers must be at least 1; got {max_layers}": max_layers >= 1,
        "the cohort has no rows": len(cohort) > 0,
    }
    raise_all([problem for problem, fine in checks.items() if not fine])


def _seen_by_layers(model: nn.Module, cohort: Cohort, max_layers: int) -> list[_Layer]:
    """The inputs of a table, what enters some layers, and the output, from a single run over the rows."""
    inputs = cohort.inputs
    few = inputs[torch.arange(min(2, len(cohort)))]
    outputs(model, few)  # says what is wrong where the network cannot take these inputs, or gives another shape
    try:
        whole = reading_of(model, inputs, "all" if len(inputs.shape) == 2 else "hidden", max_layers=maxsize)
    except BadInput:  # no layer that can be read: the output still can
        return [_Layer("output", 1, outputs(model, inputs).double().numpy()[:, None])]
    names = [*(["inputs"] if whole.inputs else []), *whole.layers]
    # The first and the last are always read: the inputs and what the decision is made from.
    chosen = np.unique(np.linspace(0, len(names) - 1, min(len(names), max_layers + whole.inputs)).round().astype(int))
    reading = Reading(tuple(names[k] for k in chosen if k or not whole.inputs), whole.inputs)
    logit, seen = features(model, inputs, reading)
    widths = [inputs.shape[1]] if reading.inputs else []
    widths += [features(model, few, Reading((name,), False))[1].shape[1] for name in reading.layers]
    parts = np.split(seen, np.cumsum(widths)[:-1], axis=1)
    found = [_Layer(names[k], int(k), part) for k, part in zip(chosen, parts, strict=True)]
    return [*found, _Layer("output", len(names), logit[:, None])]


def _row(seen: FloatArray, cohort: Cohort, fold: IntArray, settings: _Settings) -> tuple[dict[str, float], str]:
    """The AUROCs from one layer with their intervals, and what to mind."""
    values: dict[str, float] = {}
    notes: list[str] = []
    unit = "rows" if cohort.patients is None else "patients"
    for name, label in GIVEN.items():
        rows = np.ones(len(cohort), bool) if label is None else cohort.y == label
        kept, small = _groups(cohort.attributes[0], cohort, rows, settings.min_patients)
        if small:
            where = "" if label is None else " with positives" if label else " with negatives"
            what = INSUFFICIENT if len(kept) < 2 else "left out"
            notes.append(f"{what}: fewer than {settings.min_patients} {unit}{where} in {', '.join(map(repr, small))}")
        found = _readable(seen, cohort, fold, rows, kept, settings) if len(kept) > 1 else (np.nan, np.nan, np.nan)
        values |= dict(zip((name, f"{name}_low", f"{name}_high"), found, strict=True))
    return values, "; ".join(notes)


def _groups(attribute: Attribute, cohort: Cohort, rows: BoolArray, min_patients: int) -> tuple[list[int], list[str]]:
    """The codes of groups with enough patients in these rows, and the names of the others."""
    units = units_of(cohort.patients, len(cohort))
    counts = [len(np.unique(units[rows & (attribute.codes == code)])) for code in range(len(attribute.levels))]
    kept = [code for code, count in enumerate(counts) if count >= min_patients]
    return kept, [name for name, count in zip(attribute.levels, counts, strict=True) if count < min_patients]


def _readable(
    seen: FloatArray, cohort: Cohort, fold: IntArray, rows: BoolArray, kept: list[int], settings: _Settings
) -> tuple[float, float, float]:
    """The AUROC of these groups among these rows, by scores of probes that had not seen the patient, with its interval."""
    codes = cohort.attributes[0].codes
    tried = np.flatnonzero(rows & np.isin(codes, kept))
    target = np.searchsorted(kept, codes[tried])
    held_out = fit_probe(seen[tried], target, len(kept), fold[tried]).held_out
    units = units_of(None if cohort.patients is None else cohort.patients[tried], len(tried))
    one = range(1, 2) if len(kept) == 2 else range(len(kept))  # of two groups, one against the other says it all
    rankings = [Ranking(held_out[:, k], target == k, units) for k in one]
    value = float(np.mean([ranking.auroc() for ranking in rankings]))
    drawn: list[FloatArray] = []
    for block in multiplicities(int(units.max()) + 1, settings.draws, settings.seed):
        pieces = -(-len(block) * len(tried) // BLOCK)  # patients with many rows would need much memory at once
        drawn += [np.mean([ranking.auroc(part) for ranking in rankings], axis=0) for part in np.array_split(block, max(1, pieces))]
    low, high = (float(bound) for bound in interval(np.concatenate(drawn), value, settings.level))
    wider = _widening(int(fold.max()) + 1)
    return value, max(0.0, value - wider * (value - low)), min(1.0, value + wider * (high - value))


def _widening(folds: int) -> float:
    """How much wider an interval of cross-fitted scores must be than the bootstrap of these scores, in which the probes stand still.

    Probes of different folds learn from the same patients, so their errors go together: by Nadeau and Bengio (Inference for the
    generalization error, 2003) the variance is 1 + folds * (rows tried on / rows learnt from) times as large. Without it, intervals of 95 %
    for groups that cannot be read held 0.5 in 75 to 85 of 100 trials (400 to 600 rows), with it in 95 to 97.
    """
    return float(np.sqrt(1 + folds / (folds - 1)))
