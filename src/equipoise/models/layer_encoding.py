"""The accuracy with which a group can be read from each layer of a network, by a linear probe fitted without the patient.

Information in a layer is not necessarily used: a layer may encode the group and the decision ignore it, and decisions may differ between
groups whatever a probe finds. The gaps of the audit describe the decisions; this table describes where the group can be read.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from sys import maxsize

import numpy as np
import pandas as pd
import torch
from torch import nn

from equipoise.data import Attribute, BoolArray, Cohort, FloatArray, Tensors
from equipoise.errors import BadInput, raise_all
from equipoise.measures import BLOCK, INSUFFICIENT, IntArray, Ranking, interval, multiplicities, units_of
from equipoise.models.probes import fit_probe, folds_of
from equipoise.models.readings import Reading, features, reading_of
from equipoise.models.score import outputs

READ_IS_NOT_USED = "What a layer holds is not necessarily used: the gaps describe the decisions, this table describes the layers."
CHANCE = 0.5  # AUROC of a random score, whatever the sizes of the groups
AUROC_LABELS: dict[str, int | None] = {
    "auroc": None,
    "auroc_positives": 1,
    "auroc_negatives": 0,
}  # column: the label that its rows must have
COLUMNS = [
    "attribute",
    "layer",
    "depth",
    "width",
    *(f"{name}{bound}" for name in AUROC_LABELS for bound in ("", "_low", "_high")),
    "chance",
    "note",
]


@dataclass(frozen=True)
class _Settings:
    """The settings of the intervals, and the smallest number of patients of a group that is included."""

    draws: int
    level: float
    seed: int
    min_patients: int


@dataclass(frozen=True, eq=False)
class _Layer:
    """The inputs of one layer, or the output of the network."""

    name: str
    depth: int
    features: FloatArray  # (n, width)


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

    Depth 0 is the inputs (for images, their mean over positions), and the last row is the network's output; if there are more than
    `max_layers` layers in between, evenly spaced ones are read. Convolutions are read by the means of their channels, so the probes miss
    positions, and anything that is not a linear function of the layer. Probes are cross-fitted by patient. Intervals are from a bootstrap
    of the patients, widened for the variation of the fitted probes. Values below 0.5 are chance too, since a probe fitted to noise is as
    often wrong as right. Rows without a group are excluded, and so are groups with fewer than `min_patients` patients (with that label);
    the note reports it. The network is not changed. Information in a layer is not necessarily used.

    >>> group = np.tile(["M", "M", "F", "F"], 50)
    >>> x = torch.from_numpy(np.stack([group == "F", np.tile([0, 1], 100)], 1)).float()
    >>> found = encoding(nn.Linear(2, 1), Cohort.from_arrays(x, np.tile([0, 1], 100), group), draws=20)
    >>> found["layer"].tolist(), float(found["auroc"][0])
    (['inputs', 'output'], 1.0)
    """
    _check(model, cohort, folds, draws, level, min_patients, max_layers)
    layers = _read_layers(model, cohort, max_layers)
    settings = _Settings(draws, level, seed, min_patients)
    rows: list[dict[str, object]] = []
    steps = len(layers) * len(cohort.attributes)
    for attribute in cohort.attributes:
        known = np.flatnonzero(attribute.codes >= 0)
        part = replace(cohort, source=Tensors(torch.empty(len(cohort), 0)), attributes=(attribute,)).take(known)
        fold = folds_of(part, folds, seed)
        for layer in layers:
            values, note = _layer_aurocs(layer.features[known], part, fold, settings)
            place = {"attribute": attribute.name, "layer": layer.name, "depth": layer.depth, "width": layer.features.shape[1]}
            rows.append({**place, **values, "chance": CHANCE, "note": note})
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


def _read_layers(model: nn.Module, cohort: Cohort, max_layers: int) -> list[_Layer]:
    """The inputs of a table, the inputs of some layers, and the output, from a single pass over the rows."""
    inputs = cohort.inputs
    few = inputs[torch.arange(min(2, len(cohort)))]
    outputs(model, few)  # raises an error if the network cannot take these inputs, or returns another shape
    try:
        whole = reading_of(model, inputs, "all" if len(inputs.shape) == 2 else "hidden", max_layers=maxsize)
    except BadInput:  # no layer that can be read: the output still can
        return [_Layer("output", 1, outputs(model, inputs).double().numpy()[:, None])]
    names = [*(["inputs"] if whole.inputs else []), *whole.layers]
    # The first and the last are always read: the inputs, and the layer that the decision depends on.
    chosen = np.unique(np.linspace(0, len(names) - 1, min(len(names), max_layers + whole.inputs)).round().astype(int))
    reading = Reading(tuple(names[k] for k in chosen if k or not whole.inputs), whole.inputs)
    logit, read = features(model, inputs, reading)
    widths = [inputs.shape[1]] if reading.inputs else []
    widths += [features(model, few, Reading((name,), False))[1].shape[1] for name in reading.layers]
    parts = np.split(read, np.cumsum(widths)[:-1], axis=1)
    layers = [_Layer(names[k], int(k), part) for k, part in zip(chosen, parts, strict=True)]
    return [*layers, _Layer("output", len(names), logit[:, None])]


def _layer_aurocs(x: FloatArray, cohort: Cohort, fold: IntArray, settings: _Settings) -> tuple[dict[str, float], str]:
    """The AUROCs from the features of one layer with their intervals, and a note about excluded groups."""
    values: dict[str, float] = {}
    notes: list[str] = []
    unit = "rows" if cohort.patients is None else "patients"
    for name, label in AUROC_LABELS.items():
        rows = np.ones(len(cohort), bool) if label is None else cohort.y == label
        kept, small = _large_groups(cohort.attributes[0], cohort, rows, settings.min_patients)
        if small:
            where = "" if label is None else " with positives" if label else " with negatives"
            what = INSUFFICIENT if len(kept) < 2 else "left out"
            notes.append(f"{what}: fewer than {settings.min_patients} {unit}{where} in {', '.join(map(repr, small))}")
        estimate = _probe_auroc(x, cohort, fold, rows, kept, settings) if len(kept) > 1 else (np.nan, np.nan, np.nan)
        values |= dict(zip((name, f"{name}_low", f"{name}_high"), estimate, strict=True))
    return values, "; ".join(notes)


def _large_groups(attribute: Attribute, cohort: Cohort, rows: BoolArray, min_patients: int) -> tuple[list[int], list[str]]:
    """The codes of groups with enough patients in these rows, and the names of the others."""
    units = units_of(cohort.patients, len(cohort))
    counts = [len(np.unique(units[rows & (attribute.codes == code)])) for code in range(len(attribute.levels))]
    kept = [code for code, count in enumerate(counts) if count >= min_patients]
    return kept, [name for name, count in zip(attribute.levels, counts, strict=True) if count < min_patients]


def _probe_auroc(
    x: FloatArray, cohort: Cohort, fold: IntArray, rows: BoolArray, kept: list[int], settings: _Settings
) -> tuple[float, float, float]:
    """The AUROC of these groups among these rows, by scores of probes fitted without the patient, with its interval."""
    codes = cohort.attributes[0].codes
    chosen = np.flatnonzero(rows & np.isin(codes, kept))
    target = np.searchsorted(kept, codes[chosen])
    held_out = fit_probe(x[chosen], target, len(kept), fold[chosen]).held_out
    units = units_of(None if cohort.patients is None else cohort.patients[chosen], len(chosen))
    groups = range(1, 2) if len(kept) == 2 else range(len(kept))  # for two groups, both rankings are the same
    rankings = [Ranking(held_out[:, k], target == k, units) for k in groups]
    value = float(np.mean([ranking.auroc() for ranking in rankings]))
    draws: list[FloatArray] = []
    for block in multiplicities(int(units.max()) + 1, settings.draws, settings.seed):
        pieces = -(-len(block) * len(chosen) // BLOCK)  # patients with many rows would need much memory at once
        draws += [np.mean([ranking.auroc(part) for ranking in rankings], axis=0) for part in np.array_split(block, max(1, pieces))]
    low, high = (float(bound) for bound in interval(np.concatenate(draws), value, settings.level))
    wider = _widening(int(fold.max()) + 1)
    return value, max(0.0, value - wider * (value - low)), min(1.0, value + wider * (high - value))


def _widening(folds: int) -> float:
    """The factor by which an interval of cross-fitted scores is wider than a bootstrap of these scores, in which the probes are fixed.

    Probes of different folds are fitted to the same patients, so their errors are correlated: by Nadeau and Bengio (Inference for the
    generalization error, 2003) the variance is 1 + folds * (test rows / training rows) times as large. Without it, 95 % intervals for
    groups that cannot be read covered 0.5 in 75 to 85 of 100 simulations (400 to 600 rows), with it in 95 to 97.
    """
    return float(np.sqrt(1 + folds / (folds - 1)))
