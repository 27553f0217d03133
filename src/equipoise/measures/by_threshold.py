"""Decisions at other thresholds, by group and label, in steps that no small number of patients can be read from.

The page of an audit lets its reader move the threshold. Two neighbouring thresholds differ by the patients whose scores lie between them:
a fine grid would single out patients, such as the one woman with the finding who scores between 0.41 and 0.42. Therefore, of a group and
label, only thresholds are kept between which there are no rows or rows of at least `least` patients, also next to the threshold in use,
whose rates the audit reports anyway, and at both ends. Between two kept thresholds a rate lies between its values at these two. A group
and label with fewer patients in all is left out, and so is the mean score of fewer.

With several attributes, the sum over the groups of one is the sum over those of another. A group's count could be found by subtraction
where only its own is left out, so the groups of all attributes then share their thresholds; attributes that would make them too few, or
whose unknown rows are others, are left out, the last first.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from equipoise.data import Attribute, IntArray, Scores
from equipoise.measures.cells import FloatArray, normalised, ratio
from equipoise.measures.clusters import units_of
from equipoise.measures.rules import Rule, Threshold

COLUMNS = ["attribute", "group", "label", "threshold", "above", "score"]
LEAST = 5  # patients between two thresholds; more where the audit asks for more in each cell
HUNDREDTHS = tuple(round(k / 100, 2) for k in range(1, 100))
QUANTILES = 100  # further thresholds where most scores are small or large
ROWS_EACH = 20  # rows at least between two of them
SHARED = 15  # thresholds at least that several attributes have in common; otherwise the last attribute is left out


@dataclass(frozen=True, eq=False)
class _Cell:
    """The rows of one group and label, counted between the thresholds of the grid."""

    attribute: str
    group: str
    label: int
    rows: IntArray  # (bins,)
    patients: IntArray  # (bins,) each patient in one bin of those they have rows in: no sum is more than the number of patients
    mass: FloatArray  # (bins,) by weight
    score: FloatArray  # (bins,) sum of the scores, by weight


def by_threshold(scores: Scores, rule: Rule, units: IntArray, least: int) -> pd.DataFrame:
    """One row per attribute, group, label and threshold: `above`, how many rows (by weight) score at least that much, and the mean
    `score` of those below the next threshold. The first threshold of each is 0.

    >>> rng = np.random.default_rng(0)
    >>> scores = Scores.from_arrays(rng.integers(0, 2, 400), rng.random(400), rng.choice(["F", "M"], 400))
    >>> found = by_threshold(scores, Threshold(0.5), np.arange(400), 5)
    >>> cell = found[(found["group"] == "F") & (found["label"] == 1)]
    >>> fewer = -cell["above"].diff().dropna()
    >>> bool(((fewer == 0) | (fewer >= 5)).all()), float(cell["threshold"].iloc[0]), 0.5 in cell["threshold"].values
    (True, 0.0, True)
    """
    attributes = [a for a in scores.attributes if np.array_equal(a.codes < 0, scores.attributes[0].codes < 0)]
    shared = (float(rule.value),) if isinstance(rule, Threshold) else ()
    while True:
        single = len(attributes) == 1
        forced = {level: shared or _reported(rule, level) for level in attributes[0].levels} if single else {}
        grid = grid_of(scores.score, [cut for cuts in ([shared] if not single else forced.values()) for cut in cuts])
        cells = [cell for a in attributes for cell in _cells(scores, a, units, grid)]
        if single:
            kept = [kept_in([cell], _places(grid, forced[cell.group]), max(least, LEAST)) for cell in cells]
            break
        by_label = {y: kept_in([c for c in cells if c.label == y], _places(grid, shared), max(least, LEAST)) for y in (0, 1)}
        if min(map(len, by_label.values())) >= SHARED:
            kept = [by_label[cell.label] for cell in cells]
            break
        attributes = attributes[:-1]
    enough = max(least, LEAST)
    shown = [(cell, _numbers(cell, grid, at, enough)) for cell, at in zip(cells, kept, strict=True) if cell.patients.sum() >= enough]
    if not shown:
        return pd.DataFrame(columns=COLUMNS)
    lengths = [len(numbers[0]) for _, numbers in shown]
    names = {name: np.repeat(np.array([getattr(cell, name) for cell, _ in shown], object), lengths) for name in ("attribute", "group")}
    label = np.repeat([cell.label for cell, _ in shown], lengths)
    columns = (np.concatenate(each) for each in zip(*(numbers for _, numbers in shown), strict=True))
    return pd.DataFrame({**names, "label": label, **dict(zip(COLUMNS[3:], columns, strict=True))}, columns=COLUMNS)


STEPS = ["group", "threshold", "above_positive", "above_negative", "score"]


def steps_by_group(scores: Scores, attribute: Attribute, rule: Rule, least: int) -> pd.DataFrame:
    """One row per group and threshold, for figures: how many rows (by weight) of each label score at least that much, and the sum of the
    scores below the next threshold.

    Between two thresholds of a group, each label has no rows or those of at least `least` patients; a group with fewer patients of a label
    is left out. Figures of the same scores share these steps, so that they do not differ by a few patients either.
    """
    enough, units = max(least, LEAST), units_of(scores.patients, len(scores))
    grid = grid_of(scores.score, [cut for level in attribute.levels for cut in _reported(rule, level)])
    cells, frames = _cells(scores, attribute, units, grid), []
    for positive, negative in zip(cells[::2], cells[1::2], strict=True):
        if min(positive.patients.sum(), negative.patients.sum()) < enough:
            continue
        kept = kept_in([positive, negative], _places(grid, _reported(rule, positive.group)), enough)
        starts = np.array([0, *(place + 1 for place in kept)], dtype=np.int64)
        above = [np.add.reduceat(cell.mass, starts)[::-1].cumsum()[::-1] for cell in (positive, negative)]
        sums = np.add.reduceat(positive.score + negative.score, starts)
        frames.append(
            pd.DataFrame(dict(zip(STEPS, (positive.group, np.append(0.0, grid[list(kept)]), *above, sums), strict=True)), columns=STEPS)
        )
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=STEPS)


def grid_of(score: FloatArray, cuts: Sequence[float]) -> FloatArray:
    """The thresholds that are considered: hundredths, round quantiles of the scores, and the cuts of the rule, above 0 and up to 1."""
    count = min(QUANTILES, len(score) // ROWS_EACH)
    quantiles = np.quantile(score, np.arange(1, count) / count) if count > 1 else np.zeros(0)
    round_ = (float(f"{q:.2g}") if q <= 0.5 else round(1 - float(f"{1 - q:.2g}"), 12) for q in quantiles)
    return np.array(sorted({t for t in (*HUNDREDTHS, *round_, *map(float, cuts)) if 0 < t <= 1}), dtype=np.float64)


def _reported(rule: Rule, group: str) -> tuple[float, ...]:
    """The threshold of a group whose rates the audit reports; none where there are several, whose rates it reports only mixed."""
    cuts = rule.cuts(group)
    return cuts if len(cuts) == 1 and not rule.randomised else ()


def _places(grid: FloatArray, cuts: Sequence[float]) -> list[int]:
    """Where the cuts of the rule stand in the grid; those that decide all patients alike are ends already."""
    return [int(np.searchsorted(grid, cut)) for cut in cuts if 0 < cut <= 1]


def _cells(scores: Scores, attribute: Attribute, units: IntArray, grid: FloatArray) -> list[_Cell]:
    weight = normalised(scores.weight)
    bins, size = np.searchsorted(grid, scores.score, side="right"), len(grid) + 1
    found = []
    for code, level in enumerate(attribute.levels):
        for label in (1, 0):
            rows = np.flatnonzero((attribute.codes == code) & (scores.y == label))
            first = rows[np.unique(units[rows], return_index=True)[1]]
            w = np.ones(len(rows)) if weight is None else weight[rows]
            mass, score = (np.bincount(bins[rows], values, size).astype(np.float64) for values in (w, w * scores.score[rows]))
            held, patients = (np.bincount(bins[own], minlength=size) for own in (rows, first))
            found.append(_Cell(attribute.name, level, label, held, patients, mass, score))
    return found


def kept_in(cells: Sequence[_Cell], forced: Sequence[int], least: int) -> list[int]:
    """The places in the grid that are kept for all of these cells: the forced ones, and those that part enough patients on both sides."""
    rows, patients = (np.stack([np.append(0, getattr(cell, name).cumsum()) for cell in cells]) for name in ("rows", "patients"))
    last = rows.shape[1] - 1
    held = [list(zip(*each, strict=True)) for each in zip(rows.T.tolist(), patients.T.tolist(), strict=True)]  # by bin: each cell's two

    def enough(low: int, high: int) -> bool:
        """Whether every cell has no row, or enough patients, in the bins from `low` to below `high`."""
        return all(above == below or more - fewer >= least for (below, fewer), (above, more) in zip(held[low], held[high], strict=True))

    kept: list[int] = []
    ends = sorted({0, *(place + 1 for place in forced), last})  # bin k + 1 begins at the threshold k
    for start, stop in pairwise(ends):
        if start:
            kept.append(start - 1)
        at = start
        for edge in range(start + 1, stop):
            if enough(at, edge) and enough(edge, stop):
                kept.append(edge - 1)
                at = edge
    nothing = rows[:, 1:] == rows[:, :-1]
    edges = [0, *(place + 1 for place in kept), last]
    empty = [bool(nothing[:, low:high].all()) for low, high in pairwise(edges)]
    return [place for place, left, right in zip(kept, empty, empty[1:], strict=False) if place in forced or not (left and right)]


def _numbers(cell: _Cell, grid: FloatArray, kept: Sequence[int], least: int) -> tuple[FloatArray, FloatArray, FloatArray]:
    """The thresholds of a cell, how many rows (by weight) score at least that much, and the mean score of those below the next one."""
    starts = np.array([0, *(place + 1 for place in kept)], dtype=np.int64)
    mass, score, patients = (np.add.reduceat(values, starts) for values in (cell.mass, cell.score, cell.patients))
    mean = np.where(patients >= least, ratio(score, mass), np.nan)
    return np.append(0.0, grid[list(kept)]), mass[::-1].cumsum()[::-1], mean


def table_to_dict(table: pd.DataFrame) -> dict[str, dict[str, dict[str, dict[str, list[float | None]]]]]:
    """The table as plain values: by attribute, group and label, a list each of thresholds, rows above and mean scores."""
    found: dict[str, dict[str, dict[str, dict[str, list[float | None]]]]] = {}
    for (attribute, group, label), rows in table.groupby(["attribute", "group", "label"], sort=False):
        lists = {name: [None if np.isnan(v) else float(v) for v in rows[name]] for name in ("threshold", "above", "score")}
        found.setdefault(str(attribute), {}).setdefault(str(group), {})[str(label)] = lists
    return found


def table_from(plain: Mapping[str, Any]) -> pd.DataFrame:
    """The table from its plain values."""
    frames = [
        pd.DataFrame({"attribute": attribute, "group": group, "label": int(label), **lists}, columns=COLUMNS)
        for attribute, groups in plain.items()
        for group, labels in groups.items()
        for label, lists in labels.items()
    ]
    found = pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=COLUMNS)
    return found.astype(dict.fromkeys(("threshold", "above", "score"), float)) if frames else found
