"""What pages show of other thresholds: decisions by group and label, and margins of error, without disclosing few patients.

Readers of an audit page can move the threshold. Two neighbouring thresholds differ by the patients whose scores lie between them, so a fine
grid would single out patients, such as the one woman with the finding who scores between 0.41 and 0.42. For each group and label, a
threshold is therefore kept only if no rows, or rows of at least `least` patients, lie between it and its neighbours. The neighbours include
the threshold in use, whose rates the audit reports anyway, and both ends. Between two kept thresholds, a rate lies between its values
there. A group and label with fewer patients in total is left out, and so is the mean score of fewer patients.

With several attributes, the counts of the groups of each add up to the same total, so a count left out for one group could be recovered by
subtraction. The groups of all attributes therefore share their thresholds. Attributes that would leave too few thresholds are left out, the
last one first, and so are attributes that are missing in other rows than the first attribute is.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from equipoise.data import Attribute, IntArray, Scores
from equipoise.measures.cells import FloatArray, kish, normalised, ratio, sums_at
from equipoise.measures.gaps import RATES, is_quotient, terms
from equipoise.measures.moments import units_of
from equipoise.measures.thresholds import Rule

COLUMNS = ["attribute", "group", "label", "threshold", "above", "score"]
LEAST = 5  # patients between two thresholds; more if the audit requires more per cell
HUNDREDTHS = tuple(round(k / 100, 2) for k in range(1, 100))
QUANTILES = 100  # further thresholds at quantiles, in case most scores are small or large
ROWS_EACH = 20  # minimum number of rows between two quantiles
SHARED = 15  # minimum number of thresholds shared by several attributes; with fewer, the last attribute is left out


@dataclass(frozen=True, eq=False)
class _Cell:
    """The rows of one group and label, counted between the thresholds of the grid."""

    attribute: str
    group: str
    label: int
    rows: IntArray  # (bins,)
    patients: IntArray  # (bins,) each patient is counted in one bin only, so that sums do not exceed the number of patients
    mass: FloatArray  # (bins,) sum of the weights
    score: FloatArray  # (bins,) weighted sum of the scores


def by_threshold(scores: Scores, rule: Rule, units: IntArray, least: int) -> pd.DataFrame:
    """One row per attribute, group, label and threshold, the first of which is 0.

    `above` is the number of rows (by weight) with at least that score, `score` the mean score of those below the next threshold.

    >>> from equipoise.measures import Threshold
    >>> rng = np.random.default_rng(0)
    >>> scores = Scores.from_arrays(rng.integers(0, 2, 400), rng.random(400), rng.choice(["F", "M"], 400))
    >>> table = by_threshold(scores, Threshold(0.5), np.arange(400), 5)
    >>> cell = table[(table["group"] == "F") & (table["label"] == 1)]
    >>> steps = -cell["above"].diff().dropna()
    >>> bool(((steps == 0) | (steps >= 5)).all()), float(cell["threshold"].iloc[0]), 0.5 in cell["threshold"].values
    (True, 0.0, True)
    """
    enough = max(least, LEAST)
    attributes = [a for a in scores.attributes if np.array_equal(a.codes < 0, scores.attributes[0].codes < 0)]
    shared = () if rule.shared is None else (float(rule.shared),)
    while True:
        single = len(attributes) == 1
        cuts = {level: shared or _reported_cuts(rule, level) for level in attributes[0].levels} if single else {"": shared}
        grid = grid_of(scores.score, [cut for of_group in cuts.values() for cut in of_group])
        cells = [cell for a in attributes for cell in _cells(scores, a, units, grid)]
        if single:
            kept = [kept_in([cell], _places(grid, cuts[cell.group]), enough) for cell in cells]
            break
        by_label = {y: kept_in([c for c in cells if c.label == y], _places(grid, shared), enough) for y in (0, 1)}
        if min(map(len, by_label.values())) >= SHARED:
            kept = [by_label[cell.label] for cell in cells]
            break
        attributes = attributes[:-1]
    shown = [
        (cell, _numbers(cell, grid, places, enough)) for cell, places in zip(cells, kept, strict=True) if cell.patients.sum() >= enough
    ]
    if not shown:
        return pd.DataFrame(columns=COLUMNS)
    lengths = [len(numbers[0]) for _, numbers in shown]
    names = {name: np.repeat(np.array([getattr(cell, name) for cell, _ in shown], object), lengths) for name in ("attribute", "group")}
    label = np.repeat([cell.label for cell, _ in shown], lengths)
    columns = (np.concatenate(each) for each in zip(*(numbers for _, numbers in shown), strict=True))
    return pd.DataFrame({**names, "label": label, **dict(zip(COLUMNS[3:], columns, strict=True))}, columns=COLUMNS)


STEPS = ["group", "threshold", "above_positive", "above_negative", "score"]


def steps_by_group(scores: Scores, attribute: Attribute, rule: Rule, least: int) -> pd.DataFrame:
    """One row per group and threshold, for figures: the number of rows (by weight) of each label with at least that score, and the sum of
    the scores below the next threshold.

    Between two thresholds of a group, each label has no rows or those of at least `least` patients; a group with fewer patients of a label
    is left out. Figures of the same scores share these steps, so that comparing them does not disclose a few patients either.
    """
    enough, (grid, cells, _) = max(least, LEAST), _counted(scores, attribute, rule)
    frames = [pd.DataFrame(columns=STEPS)]
    for positive, negative in zip(cells[::2], cells[1::2], strict=True):
        if min(positive.patients.sum(), negative.patients.sum()) >= enough:
            kept = kept_in([positive, negative], _places(grid, _reported_cuts(rule, positive.group)), enough)
            (*above, _), (_, _, sums) = _between((positive.mass, negative.mass, positive.score + negative.score), kept)
            frames.append(pd.DataFrame(dict(zip(STEPS, (positive.group, np.append(0.0, grid[kept]), *above, sums), strict=True))))
    return pd.concat(frames[1:] or frames, ignore_index=True)


def shared_thresholds(scores: Scores, attribute: Attribute, rule: Rule, least: int) -> FloatArray:
    """Thresholds from 0 on between which every group and label has no rows, or those of at least `least` patients."""
    grid, cells, cuts = _counted(scores, attribute, rule)
    return np.append(0.0, grid[kept_in(cells, _places(grid, cuts), max(least, LEAST))])


def _counted(scores: Scores, attribute: Attribute, rule: Rule) -> tuple[FloatArray, list[_Cell], list[float]]:
    """The candidate thresholds, the rows between them by group and label, and the thresholds at which the audit reports rates."""
    cuts = [cut for level in attribute.levels for cut in _reported_cuts(rule, level)]
    grid = grid_of(scores.score, cuts)
    return grid, _cells(scores, attribute, units_of(scores.patients, len(scores)), grid), cuts


def _between(values: Iterable[FloatArray | IntArray], kept: Sequence[int]) -> tuple[list[FloatArray], list[FloatArray]]:
    """Numbers in the bins of the grid (bins,), summed from each kept threshold on, and between each and the next."""
    starts = np.array([0, *(place + 1 for place in kept)], dtype=np.int64)
    between = [np.add.reduceat(each, starts) for each in values]
    return [each[::-1].cumsum()[::-1] for each in between], between


def grid_of(score: FloatArray, cuts: Sequence[float]) -> FloatArray:
    """The candidate thresholds: hundredths, rounded quantiles of the scores, and the cuts of the rule, above 0 and up to 1."""
    count = min(QUANTILES, len(score) // ROWS_EACH)
    quantiles = np.quantile(score, np.arange(1, count) / count) if count > 1 else np.zeros(0)
    rounded = (float(f"{q:.2g}") if q <= 0.5 else round(1 - float(f"{1 - q:.2g}"), 12) for q in quantiles)
    return np.array(sorted({t for t in (*HUNDREDTHS, *rounded, *map(float, cuts)) if 0 < t <= 1}), dtype=np.float64)


def _reported_cuts(rule: Rule, group: str) -> tuple[float, ...]:
    """The threshold of a group at which the audit reports rates; empty if the rule has several or is randomised."""
    cuts = rule.cuts(group)
    return cuts if len(cuts) == 1 and not rule.randomised else ()


def _places(grid: FloatArray, cuts: Sequence[float]) -> list[int]:
    """The positions of the cuts in the grid; cuts at which all patients have the same decision are ends already."""
    return [int(np.searchsorted(grid, cut)) for cut in cuts if 0 < cut <= 1]


def _cells(scores: Scores, attribute: Attribute, units: IntArray, grid: FloatArray) -> list[_Cell]:
    weight = normalised(scores.weight)
    bins, size = np.searchsorted(grid, scores.score, side="right"), len(grid) + 1
    cells = []
    for code, level in enumerate(attribute.levels):
        for label in (1, 0):
            rows = np.flatnonzero((attribute.codes == code) & (scores.y == label))
            first = rows[np.unique(units[rows], return_index=True)[1]]
            w = np.ones(len(rows)) if weight is None else weight[rows]
            mass, score = (np.bincount(bins[rows], values, size).astype(np.float64) for values in (w, w * scores.score[rows]))
            counts, patients = (np.bincount(bins[selected], minlength=size) for selected in (rows, first))
            cells.append(_Cell(attribute.name, level, label, counts, patients, mass, score))
    return cells


def kept_in(cells: Sequence[_Cell], forced: Sequence[int], least: int) -> list[int]:
    """The positions in the grid that are kept for all of these cells: the forced ones, and those with enough patients on both sides."""
    rows, patients = (np.stack([np.append(0, getattr(cell, name).cumsum()) for cell in cells]) for name in ("rows", "patients"))
    last = rows.shape[1] - 1
    below = [list(zip(*each, strict=True)) for each in zip(rows.T.tolist(), patients.T.tolist(), strict=True)]  # [bin][cell]: both sums

    def enough(low: int, high: int) -> bool:
        """Whether every cell has no row, or enough patients, in the bins from `low` to below `high`."""
        return all(r1 == r0 or p1 - p0 >= least for (r0, p0), (r1, p1) in zip(below[low], below[high], strict=True))

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
    empty_bins = rows[:, 1:] == rows[:, :-1]
    edges = [0, *(place + 1 for place in kept), last]
    empty = [bool(empty_bins[:, low:high].all()) for low, high in pairwise(edges)]
    return [place for place, left, right in zip(kept, empty, empty[1:], strict=False) if place in forced or not (left and right)]


def _numbers(cell: _Cell, grid: FloatArray, kept: Sequence[int], least: int) -> tuple[FloatArray, FloatArray, FloatArray]:
    """The thresholds of a cell, the rows (by weight) with at least that score, and the mean score of those below the next threshold."""
    (above, *_), (mass, score, patients) = _between((cell.mass, cell.score, cell.patients), kept)
    return np.append(0.0, grid[list(kept)]), above, np.where(patients >= least, ratio(score, mass), np.nan)


def table_to_dict(table: pd.DataFrame) -> dict[str, dict[str, dict[str, dict[str, list[float | None]]]]]:
    """The table as plain values: by attribute, group and label, lists of thresholds, rows above and mean scores."""
    document: dict[str, dict[str, dict[str, dict[str, list[float | None]]]]] = {}
    for (attribute, group, label), rows in table.groupby(["attribute", "group", "label"], sort=False):
        lists = {name: [None if np.isnan(v) else float(v) for v in rows[name]] for name in ("threshold", "above", "score")}
        document.setdefault(str(attribute), {}).setdefault(str(group), {})[str(label)] = lists
    return document


def table_from(plain: Mapping[str, Any]) -> pd.DataFrame:
    """The table from its plain values."""
    frames = [
        pd.DataFrame({"attribute": attribute, "group": group, "label": int(label), **lists}, columns=COLUMNS)
        for attribute, groups in plain.items()
        for group, labels in groups.items()
        for label, lists in labels.items()
    ]
    if not frames:
        return pd.DataFrame(columns=COLUMNS)
    return pd.concat(frames, ignore_index=True).astype(dict.fromkeys(("threshold", "above", "score"), float))


WIDEST = 0.25  # the variance of a rate of one half
Z = 1.96


def gap_margin(scores: Scores, measure: str) -> float | None:
    """Half of the widest interval of a gap, known before the decisions are: of rates of one half, for the effective number of patients.

    None if a cell is empty, or for a quotient, whose patients are selected by the decisions.

    >>> scores = Scores.from_arrays([1, 0] * 800, [0.5] * 1600, ["F"] * 800 + ["M"] * 800, reference="M")
    >>> round(gap_margin(scores, "eod"), 4), round(performance_margin(scores, "balanced_accuracy"), 4)  # 1.96 * sqrt(0.5 / 400), ...
    (0.0693, 0.0245)
    """
    others = range(1, len(scores.attribute.levels))
    by_group = [_margin(scores, [(w, code, RATES[rate]) for rate, w in terms(measure).items() for code in (0, other)]) for other in others]
    return None if is_quotient(measure) or None in by_group else max((each for each in by_group if each is not None), default=0.0)


def performance_margin(scores: Scores, performance: str) -> float | None:
    """Half of the widest interval of balanced accuracy or accuracy; None for other performance measures, which are no means of rates."""
    shares = {"balanced_accuracy": ((0.5, None, 1), (0.5, None, 0)), "accuracy": ((1.0, None, None),)}.get(performance)
    return None if shares is None else _margin(scores, shares)


def _margin(scores: Scores, rates: Sequence[tuple[float, int | None, int | None]]) -> float | None:
    """Half of the widest interval of a signed sum of rates of a group and a label (None: any); None if one of them has no rows.

    The weight of a patient is the mean weight of their rows.
    """
    units, variance = units_of(scores.patients, len(scores)), 0.0
    for sign, code, label in rates:
        rows = np.flatnonzero((code is None or scores.attribute.codes == code) & (label is None or scores.y == label) & (units >= 0))
        if not len(rows):
            return None
        count = np.bincount(units[rows])
        weight = count.astype(np.float64) if scores.weight is None else sums_at(units[rows], scores.weight[rows], len(count))
        mean = weight[count > 0] / count[count > 0]
        variance += sign**2 * WIDEST / float(kish(mean.sum(), (mean**2).sum()))
    return Z * float(variance**0.5)
