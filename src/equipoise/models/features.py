"""Features of a network: the inputs of linear and convolutional layers (after activation and norm; the mean over positions of a
convolution or over tokens), and the inputs of the network: the columns of a table, or for images a small picture and its edges.

Hooks read them while the network runs, so that any module can be probed, exporters can trace it, and no hook remains. `FeatureCache` caches
them for cross-fitting, which needs them for different subsets of the same rows.

Modules that a repair wraps around a network read them too. A bias score is the probability of the label minus a cost for the posteriors of
the groups. The network itself runs unchanged and the probes are small linear heads next to it, so that the whole is an ordinary module: it
can be saved, copied and exported, and does not need the group.

A recalibration is folded into the last linear layer if possible, and is a module around the network otherwise: slope * (w x + b) +
intercept is a linear layer again, so that the network keeps its keys and shapes, and its weights can be loaded as before. That needs a
linear layer with a bias whose outputs are the network's logits, or the logits of its probabilities, which is determined by running the
network on a few rows.
"""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from sys import maxsize
from threading import get_ident
from typing import Any, cast

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from equipoise.data import BoolArray, Cohort, FloatArray, Images, IntArray, Tensors, check_cohort
from equipoise.errors import BadInput, pick, raise_all
from equipoise.measures import BLOCK_ELEMENTS, INSUFFICIENT_DATA, Ranking, percentile_interval, resample_counts, units_of
from equipoise.models import score
from equipoise.models.devices import Feed, compute_device, device_of, on_device, product_device
from equipoise.models.probes import AUROC_LABELS, DEPTHS, SCORE_SLOPE, Heads, Probe, fit_probe, folds_of
from equipoise.models.score import OneOutput, as_matrix, evaluating, logit_of, output_kind, outputs, single_output
from equipoise.models.units import MASKED_KINDS

READ_LAYERS: tuple[type[nn.Module], ...] = (nn.Linear, *MASKED_KINDS)
WIDEST_LAYER = 2048  # largest input of a layer that is read; excludes the 25,088 of VGG's first linear layer
PICTURE_SIDE = 16  # approximate side of the small picture
EDGE_PLACES = 8  # approximate side of the grid of edge strengths
ROOT_2 = 2.0**0.5


@dataclass(frozen=True)
class FeatureChoice:
    """The features to read: the inputs of the named layers, and optionally the inputs of the network."""

    layers: tuple[str, ...]
    inputs: bool

    @classmethod
    def of(cls, model: nn.Module, inputs: Tensor | Images, depth: str = "auto", max_layers: int = 6) -> "FeatureChoice":
        """The features of a network at a depth, which is one of DEPTHS.

        `inputs` are rows of its inputs. `depth` is "inputs", the "last" layer, all "hidden" layers (at most `max_layers`, evenly spaced)
        or "all"; "auto" is the inputs and the last layer for a table, and the inputs for images, as small pictures and their edges.
        """
        table = len(inputs.shape) == 2
        chosen = pick("depth", depth, DEPTHS)
        if chosen == "auto":
            chosen = "inputs and last" if table else "inputs"
        layers: list[str] = []
        if chosen != "inputs":  # those that a row passes through once, in execution order
            named = list(score.modules_of(model, *READ_LAYERS))
            device = compute_device(model, inputs)
            few, network = Feed(inputs, device)(torch.arange(min(len(inputs), 2))), on_device(model, device)
            with evaluating(network), torch.no_grad(), _recorded_inputs(network, named) as recorded:
                network(few)
            layers = [name for name, x in recorded.items() if x.ndim == 2 and len(x) == len(few) and x.shape[1] <= WIDEST_LAYER]
            layers = layers[1:] if table else layers  # the input of the first is the table
        if chosen in ("last", "inputs and last"):
            layers = layers[-1:]
        elif len(layers) > max_layers:
            layers = [layers[k] for k in np.linspace(0, len(layers) - 1, max_layers).round().astype(int)]
        if not layers and chosen not in ("inputs", "inputs and last", "all"):
            raise BadInput(
                'this network has no linear or convolutional layer whose inputs could be read; use depth="inputs". '
                "Or use a method that reads no features, such as bias-gda."
            )
        return cls(tuple(layers), chosen in ("inputs", "inputs and last", "all"))

    def __str__(self) -> str:
        parts = ["the inputs"] if self.inputs else []
        parts += [f"what enters {', '.join(self.layers)}"] if self.layers else []
        return " and ".join(parts)


@contextmanager
def _recorded_inputs(model: nn.Module, names: Sequence[str]) -> Iterator[dict[str, Tensor]]:
    """Records the inputs of these layers during the block, one vector per row, by name in execution order; no hook remains afterwards.

    The vector is the mean over tokens or positions, and never a view, since later layers may write in place.
    """
    recorded: dict[str, Tensor] = {}
    thread = get_ident()  # a network may serve several threads at once

    def record(name: str, layer: nn.Module, args: tuple[object, ...]) -> None:
        if get_ident() == thread and args and name not in recorded:
            x = cast(Tensor, args[0])
            positions = (1, -2, 1) if isinstance(layer, nn.Linear) else (2, -1, 2)  # first, last, and where they are once flattened
            recorded[name] = x.clone() if x.ndim <= 2 else x.flatten(*positions[:2]).mean(positions[2])

    with ExitStack() as hooks:
        for name in names:
            hooks.enter_context(model.get_submodule(name).register_forward_pre_hook(partial(record, name)))
        yield recorded


def read(model: nn.Module, x: Tensor, *readings: FeatureChoice) -> tuple[Tensor, ...]:
    """The network's raw output and the features (rows, d) of each reading, in one pass."""
    with _recorded_inputs(model, list(dict.fromkeys(name for reading in readings for name in reading.layers))) as recorded:
        raw: Tensor = model(x)
    inputs = [_input_features(x)] if any(reading.inputs for reading in readings) else []
    return raw, *(torch.cat([*(inputs if r.inputs else []), *(recorded[name] for name in r.layers)], dim=1) for r in readings)


def _input_features(x: Tensor) -> Tensor:
    return picture(x) if x.ndim == 4 else x.flatten(1)


@dataclass(frozen=True, eq=False)
class RowFeatures:
    """A network's outputs for some rows, their logits, and the chosen features, on the CPU."""

    choice: FeatureChoice
    output: str  # what the network returns: logit or probability
    device: torch.device  # where it was computed
    raw: Tensor  # outputs (n,)
    logit: Tensor  # (n,)
    features: Tensor  # (n, d)

    def take(self, rows: IntArray) -> "RowFeatures":
        """The same for some of the rows."""
        index = torch.from_numpy(rows)
        return replace(self, raw=self.raw[index], logit=self.logit[index], features=self.features[index])

    def arrays(self) -> tuple[FloatArray, FloatArray]:
        """The logit (n,) and the features (n, d)."""
        return self.logit.double().numpy(), self.features.double().numpy()


def _read_rows(model: nn.Module, inputs: Tensor | Images, choice: FeatureChoice, known: Tensor | None = None) -> RowFeatures:
    """The outputs and features of all rows. If only the inputs are read and the outputs (n,) are `known`, the network does not run."""
    device = compute_device(model, inputs)
    network, feed = on_device(model, device), Feed(inputs, device)
    output = output_kind(model, inputs)
    batches: list[tuple[Tensor, Tensor, Tensor]] = []

    def read_batch(rows: Tensor) -> None:
        x = feed(rows)
        raw, features = read(network, x, choice) if known is None or choice.layers else (known[rows].to(device), _input_features(x))
        raw = single_output(raw, len(rows))
        batches.append((raw.cpu(), logit_of(raw, output == "probability").cpu(), features.cpu()))

    with evaluating(network), torch.no_grad():
        score.in_pieces(read_batch, torch.arange(len(inputs)), feed, score.rows_at_once(feed))
    return RowFeatures(choice, output, device, *(torch.cat(parts) for parts in zip(*batches, strict=True)))


@dataclass(frozen=True, eq=False)
class FeatureCache:
    """One network on the rows of one cohort: its outputs and its features, each computed when first needed and cached.

    Objects made by `take` share the cache. Changes of the network do not invalidate it, so use an object only as long as the network
    stays unchanged.
    """

    model: nn.Module
    inputs: Tensor | Images
    rows: IntArray | None = None  # positions among the inputs; None: all
    _cache: dict[FeatureChoice | None, Any] = field(default_factory=dict, repr=False)  # what is read of all rows; None: the outputs

    def take(self, rows: IntArray) -> "FeatureCache":
        """The same for some of the rows."""
        return replace(self, rows=rows if self.rows is None else self.rows[rows])

    def raw(self) -> Tensor:
        """The network's outputs (n,), as returned by `outputs`."""
        if None not in self._cache:
            self._cache[None] = outputs(self.model, self.inputs)
        whole: Tensor = self._cache[None]
        return whole if self.rows is None else whole[torch.from_numpy(self.rows)]

    def read(self, choice: FeatureChoice) -> RowFeatures:
        """The network's outputs and the chosen features for these rows."""
        if choice not in self._cache:
            known = None if choice.layers else replace(self, rows=None).raw()
            self._cache[choice] = _read_rows(self.model, self.inputs, choice, known)
        whole: RowFeatures = self._cache[choice]
        return whole if self.rows is None else whole.take(self.rows)

    def product_device(self, numbers: int) -> torch.device | None:
        """The GPU for products with a matrix of this size next to this network; None if numpy is the better choice."""
        return product_device(compute_device(self.model, self.inputs), numbers)

    def of(self, network: nn.Module) -> bool:
        """Whether a network is the one that was read, or a copy of it: of the same class, with the same numbers."""
        if network is self.model:
            return True
        a, b = self.model.state_dict(), network.state_dict()
        same = type(network) is type(self.model) and a.keys() == b.keys()
        return same and all(torch.equal(a[name].to(b[name].device), b[name]) for name in a)


def picture(x: Tensor) -> Tensor:
    """Features (rows, d) of images (rows, channels, height, width): the picture made small, and strength and direction of its edges.

    Training removes from a network what does not serve its task, and pooling removes positions: sex, for one, can be predicted better from
    these features of a chest X-ray than from any layer of a network trained on a finding. Channels are averaged. Only convolutions,
    comparisons and means are used, so that exporters can trace it.

    >>> picture(torch.zeros(2, 1, 112, 112)).shape
    torch.Size([2, 768])
    """
    gray = x.mean(1, keepdim=True)
    return torch.cat([_averaged(gray, PICTURE_SIDE), *(_averaged(edges, EDGE_PLACES) for edges in _edges(gray))], dim=1)


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


CHANCE_AUROC = 0.5  # AUROC of a random score, whatever the sizes of the groups
AUROCS = [f"{name}{bound}" for name in AUROC_LABELS for bound in ("", "_low", "_high")]
ENCODING_COLUMNS = ["attribute", "layer", "depth", "width", *AUROCS, "chance", "note"]


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
    """One row per layer and attribute: the AUROC with which a linear probe reads the group from the inputs of the layer, with its interval.

    For more than two groups it is the mean over each group against the rest. `auroc_positives` and `auroc_negatives` are for probes fitted
    and evaluated on rows of one label: a difference in prevalence makes the group readable wherever the label is, and these exclude it.
    Chance is 0.5.

    folds: of the cross-fitted probes, by patient, which are assigned by `seed`.
    draws, level: bootstrap samples of the patients, and the level of the intervals.
    min_patients: groups with fewer (with that label) are left out.
    max_layers: of more layers, evenly spaced ones are read.
    progress: called with the number of finished probes, and of all.

    Depth 0 is the inputs (for images, their mean over positions), and the last row is the network's output. Convolutions are read by the
    means of their channels, so the probes miss positions, and anything that is not a linear function of the layer. Intervals are widened
    for the variation of the fitted probes. Values below 0.5 are chance too, since a probe fitted to noise is as often wrong as right. Rows
    without a group are excluded; the note reports groups that are left out.

    >>> group = np.tile(["M", "M", "F", "F"], 50)
    >>> x = torch.from_numpy(np.stack([group == "F", np.tile([0, 1], 100)], 1)).float()
    >>> found = encoding(nn.Linear(2, 1), Cohort.from_arrays(x, np.tile([0, 1], 100), group), draws=20)
    >>> found["layer"].tolist(), float(found["auroc"][0])
    (['inputs', 'output'], 1.0)
    """
    if not isinstance(model, nn.Module):
        raise BadInput(
            f"encoding reads the layers of a torch.nn.Module; got {type(model).__name__}. Of a debiasing result, give its .model."
        )
    check_cohort("encoding", cohort)
    least = {"folds": (folds, 2), "draws": (draws, 2), "min_patients": (min_patients, 1), "max_layers": (max_layers, 1)}
    problems = [f"{name} must be at least {low}; got {value}" for name, (value, low) in least.items() if value < low]
    if not 0.01 <= level <= 0.9999:
        problems.append(f"level must be at least 0.01 and at most 0.9999; got {level}")
    raise_all([*problems, *(["the cohort has no rows"] if not len(cohort) else [])])
    layers = _read_layers(model, cohort, max_layers)
    rows: list[dict[str, object]] = []
    steps = len(layers) * len(cohort.attributes)
    for attribute in cohort.attributes:
        known = np.flatnonzero(attribute.codes >= 0)
        part = replace(cohort, source=Tensors(torch.empty(len(cohort), 0)), attributes=(attribute,)).take(known)
        fold = folds_of(part, folds, seed)
        large = {name: _large_groups(part, label, min_patients) for name, label in AUROC_LABELS.items()}
        note = "; ".join(note for _, _, note in large.values() if note)
        for name, depth, values in layers:
            found = [_probe_auroc(values[known], part, fold, *own[:2], draws, level, seed) for own in large.values()]
            place = {"attribute": attribute.name, "layer": name, "depth": depth, "width": values.shape[1]}
            rows.append({**place, **dict(zip(AUROCS, np.ravel(found).tolist(), strict=True)), "chance": CHANCE_AUROC, "note": note})
            if progress:
                progress(len(rows), steps)
    return pd.DataFrame(rows, columns=ENCODING_COLUMNS)


def _read_layers(model: nn.Module, cohort: Cohort, max_layers: int) -> list[tuple[str, int, FloatArray]]:
    """Name, depth and values (n, width) of the inputs of a table, of some layers, and of the output, from a single pass over the rows."""
    inputs = cohort.inputs
    few = inputs[torch.arange(min(2, len(cohort)))]
    outputs(model, few)  # raises an error if the network cannot take these inputs, or returns another shape
    try:
        whole = FeatureChoice.of(model, inputs, "all" if len(inputs.shape) == 2 else "hidden", max_layers=maxsize)
    except BadInput:  # no layer that can be read: the output still can
        return [("output", 1, outputs(model, inputs).double().numpy()[:, None])]
    names = [*(["inputs"] if whole.inputs else []), *whole.layers]
    # The first and the last are always read: the inputs, and the layer that the decision depends on.
    chosen = np.unique(np.linspace(0, len(names) - 1, min(len(names), max_layers + whole.inputs)).round().astype(int))
    reading = FeatureChoice(tuple(names[k] for k in chosen if k or not whole.inputs), whole.inputs)
    logit, values = _read_rows(model, inputs, reading).arrays()
    widths = [inputs.shape[1]] if reading.inputs else []
    widths += [_read_rows(model, few, FeatureChoice((name,), False)).features.shape[1] for name in reading.layers]
    parts = np.split(values, np.cumsum(widths)[:-1], axis=1)
    layers = [(names[k], int(k), part) for k, part in zip(chosen, parts, strict=True)]
    return [*layers, ("output", len(names), logit[:, None])]


def _large_groups(cohort: Cohort, label: int | None, min_patients: int) -> tuple[BoolArray, list[int], str]:
    """The rows with a label, the codes of groups with enough patients in them, and a note about the others."""
    (attribute,) = cohort.attributes
    rows = np.ones(len(cohort), bool) if label is None else cohort.y == label
    units = units_of(cohort.patients, len(cohort))
    counts = {code: len(np.unique(units[rows & (attribute.codes == code)])) for code in range(len(attribute.levels))}
    kept = [code for code, count in counts.items() if count >= min_patients]
    small = ", ".join(repr(attribute.levels[code]) for code in counts if code not in kept)
    where = "" if label is None else " with positives" if label else " with negatives"
    unit = "rows" if cohort.patients is None else "patients"
    what = INSUFFICIENT_DATA if len(kept) < 2 else "left out"
    return rows, kept, f"{what}: fewer than {min_patients} {unit}{where} in {small}" if small else ""


def _probe_auroc(
    x: FloatArray, cohort: Cohort, fold: IntArray, rows: BoolArray, kept: list[int], draws: int, level: float, seed: int
) -> tuple[float, float, float]:
    """The AUROC of these groups among these rows, by scores of probes fitted without the patient, with its interval."""
    if len(kept) < 2:
        return np.nan, np.nan, np.nan
    codes = cohort.attributes[0].codes
    chosen = np.flatnonzero(rows & np.isin(codes, kept))
    target = np.searchsorted(kept, codes[chosen])
    held_out = fit_probe(x[chosen], target, len(kept), fold[chosen]).held_out
    units = units_of(None if cohort.patients is None else cohort.patients[chosen], len(chosen))
    groups = range(1, 2) if len(kept) == 2 else range(len(kept))  # for two groups, both rankings are the same
    rankings = [Ranking(held_out[:, k], target == k) for k in groups]
    value = float(np.mean([ranking.ranks().auroc for ranking in rankings]))
    resampled: list[FloatArray] = []
    for block in resample_counts(int(units.max()) + 1, draws, seed):
        pieces = max(1, -(-len(block) * len(chosen) // BLOCK_ELEMENTS))  # patients with many rows would need much memory at once
        for part in np.array_split(block, pieces):
            resampled.append(np.mean([ranking.ranks(part[:, units]).auroc for ranking in rankings], axis=0))
    low, high = (float(bound) for bound in percentile_interval(np.concatenate(resampled), value, level))
    # A bootstrap of cross-fitted scores holds the probes fixed. Probes of different folds are fitted to the same patients, so their errors
    # are correlated: by Nadeau and Bengio (Inference for the generalization error, 2003) the variance is 1 + folds * (test rows / training
    # rows) times as large. Without it, 95 % intervals for groups that cannot be read covered 0.5 in 75 to 85 of 100 simulations (400 to
    # 600 rows), with it in 95 to 97.
    folds = int(fold.max()) + 1
    wider = float(np.sqrt(1 + folds / (folds - 1)))
    return value, max(0.0, value - wider * (value - low)), min(1.0, value + wider * (high - value))


# Modules that a repair wraps around a network

NEVER_BIAS = -1e4  # the bias of a class without rows: not every file format can hold minus infinity
FOLDED_ROWS = 64  # rows on which a folded network is compared with the expected outputs
SCORED_AT_ONCE = 4096  # rows whose features are scored at a time
SAME_OUTPUT = 1e-5  # relative to the outputs, or to 1 if these are smaller
Maps = Mapping[int, tuple[float, float]]  # slope and intercept of an output, by its number


class BiasScore(nn.Module):
    """A network whose score is P(y=1|x) minus the cost of the groups' posteriors; at 1/2 a positive decision breaks even.

    score = sigmoid(4 (P(1|x) - centre - sum over rates and groups of cost * P(label|x) P(group|x, label))), with probes for the
    probabilities, until it is recalibrated. It returns a logit or a probability, as the network does, and of the same shape.
    """

    kind = "bias-score"
    cost: Tensor
    centre: Tensor
    slope: Tensor
    shift: Tensor

    def __init__(self, network: nn.Module, reading: FeatureChoice, heads: Heads, cost: FloatArray, output: str) -> None:
        super().__init__()
        self.network, self.reading, self.output = network, reading, output
        self.labels = heads.labels
        like = next((p for p in network.parameters()), torch.empty(0))
        # Two classes: the label's logit is the difference of the two rows, so that one output is enough.
        self.task = _linear_layer(np.diff(heads.task.weight, axis=0), np.diff(heads.task.bias), like)
        self.groups = nn.ModuleList(_linear_layer(probe.weight, probe.bias, like) for probe in heads.groups)
        self.register_buffer("cost", torch.from_numpy(cost).to(like))  # (rates, groups)
        self.register_buffer("centre", torch.tensor(heads.centre).to(like))
        self.register_buffer("slope", torch.tensor(SCORE_SLOPE).to(like))
        self.register_buffer("shift", torch.tensor(0.0).to(like))

    @property
    def heads_by_output(self) -> dict[int, "BiasScore"]:
        """The head of the only output."""
        return {0: self}

    def recalibrate(self, slope: float, intercept: float) -> None:
        """Replaces the logit by slope * logit + intercept, in place."""
        self.shift.copy_(self.shift.double() * slope + intercept)
        self.slope.copy_(self.slope.double() * slope)

    def to_dict(self) -> dict[str, object]:
        """The structure as plain values for JSON; the numbers are in the state dict."""
        shape = {"features": self.task.in_features - 1, "groups": self.cost.shape[1]}
        reading = {"layers": list(self.reading.layers), "inputs": self.reading.inputs}
        return {"kind": self.kind, **reading, "labels": list(self.labels), "output": self.output, **shape}

    @classmethod
    def from_dict(cls, network: nn.Module, plain: Mapping[str, Any]) -> "BiasScore":
        """A module of the structure in `plain` around a network; load its state dict afterwards."""
        size, groups, labels = int(plain["features"]), int(plain["groups"]), tuple(plain["labels"])
        empty = np.empty((0, 0))
        task = Probe(np.zeros((2, size + 1)), np.zeros(2), empty, 0.0, 0.0)
        group = Probe(np.zeros((groups, size)), np.zeros(groups), empty, 0.0, 0.0)
        heads = Heads(task, (group,) * len(labels), labels, 0.0)
        reading = FeatureChoice(tuple(plain["layers"]), bool(plain["inputs"]))
        return cls(network, reading, heads, np.zeros((len(labels), groups)), str(plain["output"]))

    def forward(self, x: Tensor) -> Tensor:
        raw, features = read(self.network, x, self.reading)
        return self.score(raw, features)

    def score(self, raw: Tensor, features: Tensor) -> Tensor:
        """The module's output, in the shape of the network's raw output, from that and the features (rows, d)."""
        features = features.to(self.task.weight.dtype)
        logit = logit_of(raw.reshape(features.shape[0], 1).to(features.dtype), self.output == "probability")
        p = torch.sigmoid(self.task(torch.cat([features, logit], dim=1)))[:, 0]
        value = p - self.centre
        for label, head, cost in zip(self.labels, self.groups, self.cost, strict=True):
            label_p = 1.0 if label is None else p if label == 1 else 1 - p
            value = value - label_p * (F.softmax(head(features), dim=1) * cost).sum(1)
        z = (self.slope * value + self.shift).reshape(raw.shape)
        return torch.sigmoid(z) if self.output == "probability" else z

    @staticmethod
    def all_scores(networks: "Sequence[BiasScore]", rows: RowFeatures) -> list[FloatArray]:
        """The scores (n,) of bias scores around one network, from what was read of its `rows`: the network does not run again."""
        first = networks[0]
        if any(b.network is not first.network or b.reading != rows.choice or b.output != rows.output for b in networks):
            raise BadInput("scores at once are for bias scores around one network with one reading; use predict for each of them")
        modules = list(networks)
        if device_of(first) != rows.device:
            modules = [module.to(rows.device) for module in copy.deepcopy(modules)]  # in one copy, so that they still share one network
        batches: list[Tensor] = []
        with torch.no_grad():
            for raw, features in zip(rows.raw.split(SCORED_AT_ONCE), rows.features.split(SCORED_AT_ONCE), strict=True):
                raw, features = raw.to(rows.device), features.to(rows.device)
                batches.append(torch.stack([module.score(raw, features).float() for module in modules]).cpu())
        return list(score.as_scores(torch.cat(batches, dim=1), first.output).numpy())


def _linear_layer(weight: FloatArray, bias: FloatArray, like: Tensor) -> nn.Linear:
    # skip_init draws no random numbers.
    layer: nn.Linear = nn.utils.skip_init(nn.Linear, weight.shape[1], weight.shape[0], device=like.device, dtype=like.dtype)
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(weight))
        layer.bias.copy_(torch.from_numpy(np.maximum(bias, NEVER_BIAS)))
    return layer


class ManyBiasScores(nn.Module):
    """A multi-label network in which the heads of bias scores replace some outputs; the others are unchanged.

    The network runs once. Shape and names of the outputs are unchanged. The heads are those of one bias score per output, whose layers are
    named as in the network inside `OneOutput`.
    """

    def __init__(self, network: nn.Module, scores: Mapping[int, BiasScore], output: str) -> None:
        super().__init__()
        self.network, self.output, self.columns = network, output, list(scores)
        self.heads = nn.ModuleList(copy.deepcopy(score) for score in scores.values())
        for head in self.heads_by_output.values():
            head.network = nn.Identity()  # they share the network
            head.reading = replace(head.reading, layers=tuple(name.removeprefix(score.INNER_PREFIX) for name in head.reading.layers))
        for name in ("pathologies", "targets"):
            if (names := getattr(network, name, None)) is not None:
                setattr(self, name, names)

    @property
    def heads_by_output(self) -> dict[int, BiasScore]:
        """The head of each output that has one."""
        return dict(zip(self.columns, cast(Sequence[BiasScore], self.heads), strict=True))

    def forward(self, x: Tensor) -> Tensor:
        heads = self.heads_by_output
        raw, *readings = read(self.network, x, *(head.reading for head in heads.values()))
        columns = list(raw.unbind(1))
        for (column, head), features in zip(heads.items(), readings, strict=True):
            columns[column] = head.score(columns[column], features)
        return torch.stack(columns, dim=1)


class Recalibrated(nn.Module):
    """A network whose logit is replaced by slope * logit + intercept. It returns a logit or a probability, as the network does."""

    kind, reading = "recalibrated", ""  # it reads no features
    slope: Tensor
    intercept: Tensor

    def __init__(self, network: nn.Module, slope: float, intercept: float, output: str) -> None:
        super().__init__()
        self.network, self.output = network, output
        like = next((p for p in network.parameters() if p.is_floating_point()), torch.empty(0))
        self.register_buffer("slope", torch.tensor(slope).to(like))
        self.register_buffer("intercept", torch.tensor(intercept).to(like))

    def forward(self, x: Tensor) -> Tensor:
        raw: Tensor = self.network(x)
        z = self.slope * logit_of(raw, self.output == "probability") + self.intercept
        return torch.sigmoid(z) if self.output == "probability" else z

    def to_dict(self) -> dict[str, object]:
        """The structure as plain values for JSON; the numbers are in the state dict."""
        return {"kind": self.kind, "layers": [], "output": self.output}

    @classmethod
    def from_dict(cls, network: nn.Module, plain: Mapping[str, Any]) -> "Recalibrated":
        """A module of the structure in `plain` around a network; load its state dict afterwards."""
        return cls(network, 1.0, 0.0, str(plain["output"]))


def recalibrated_network(
    network: nn.Module, inputs: Tensor | Images, maps: Maps, output: str, *, wrap: bool
) -> tuple[nn.Module | None, bool]:
    """A copy of a network with the logits slope * logit + intercept of some outputs, and whether its keys and shapes are unchanged.

    inputs: rows on which a changed network is checked.
    maps: slope and intercept by the number of the output, which is 0 for a network with one.
    output: what the network returns, logit or probability.
    wrap: if no layer can absorb the map, a network with one output is wrapped; otherwise there is none.
    """
    folded = _folded(network, inputs, maps, output)
    if folded is not None or not wrap:
        return folded, folded is not None
    return Recalibrated(copy.deepcopy(network), *maps[0], output).train(network.training), False


def _folded(network: nn.Module, inputs: Tensor | Images, maps: Maps, output: str) -> nn.Module | None:
    """A copy of a network with recalibrated logits of some outputs, with the same keys and shapes; None if that is impossible."""
    changed = copy.deepcopy(network)
    which = int(changed.which) if isinstance(changed, OneOutput) else None
    inner = changed if which is None else changed.inner
    if isinstance(inner, (BiasScore, ManyBiasScores)):
        by_output = maps if which is None else {which: maps[0]}
        if not by_output.keys() <= inner.heads_by_output.keys():
            return None
        for column, pair in by_output.items():
            inner.heads_by_output[column].recalibrate(*pair)
        return changed
    few = inputs[: min(FOLDED_ROWS, len(inputs))]
    with score.recorded_outputs(changed, (nn.Linear,)) as calls:
        before = outputs(changed, few, taken=as_matrix)
    name, last = calls[-1] if calls else ("", before)
    if sum(called == name for called, _ in calls) != 1 or last.ndim != 2 or len(last) != len(before):
        return None  # no linear layer ran last, or it ran several times
    layer, sums = cast(nn.Linear, changed.get_submodule(name)), last.float().cpu()
    if layer.bias is None:
        return None  # type: ignore[unreachable]
    expected = before.clone()
    for column, (slope, intercept) in maps.items():
        layer_outputs = torch.sigmoid(sums) if output == "probability" else sums
        matches = [k for k in range(sums.shape[1]) if _close(layer_outputs[:, k], before[:, column])]
        if len(matches) != 1:
            return None
        row = matches[0]
        with torch.no_grad():  # in double precision, so that each number is rounded once
            layer.weight[row] = (layer.weight[row].double() * slope).to(layer.weight.dtype)
            layer.bias[row] = (layer.bias[row].double() * slope + intercept).to(layer.bias.dtype)
        z = slope * sums[:, row] + intercept
        expected[:, column] = torch.sigmoid(z) if output == "probability" else z
    return changed if _close(outputs(changed, few, taken=as_matrix), expected) else None


def _close(a: Tensor, b: Tensor) -> bool:
    return bool(torch.allclose(a, b, rtol=SAME_OUTPUT, atol=SAME_OUTPUT))
