"""Margins of error known before the decisions are: half of the widest 95 % interval of a gap or of a performance measure.

The decisions of a repair step are not kept, so its rates are unknown. These are the intervals of rates of one half, for the number of
patients, not of rows; with sample weights, for the effective number of patients (Kish).
"""

import numpy as np

from equipoise.data import BoolArray, Scores
from equipoise.measures.cells import sums_at
from equipoise.measures.clusters import units_of
from equipoise.measures.gaps import RATES, is_quotient, terms

WIDEST = 0.25  # the variance of a rate of one half
Z = 1.96


def gap_margin(scores: Scores, measure: str) -> float | None:
    """Half of the widest interval of a gap; None if a cell is empty, or for a quotient, whose patients are selected by the decisions.

    >>> scores = Scores.from_arrays([1, 0] * 800, [0.5] * 1600, ["F"] * 800 + ["M"] * 800, reference="M")
    >>> round(gap_margin(scores, "eod"), 4), round(performance_margin(scores, "balanced_accuracy"), 4)  # 1.96 * sqrt(0.5 / 400), ...
    (0.0693, 0.0245)
    """
    if is_quotient(measure):
        return None
    codes, widest = scores.attribute.codes, 0.0
    for other in range(1, len(scores.attribute.levels)):
        cells = [
            (weight, (codes == code) & _has_label(scores, RATES[rate])) for rate, weight in terms(measure).items() for code in (0, other)
        ]
        margin = _margin(scores, cells)
        if margin is None:
            return None
        widest = max(widest, margin)
    return widest


def performance_margin(scores: Scores, performance: str) -> float | None:
    """Half of the widest interval of balanced accuracy or accuracy; None for other performance measures, which are no means of rates."""
    shares = {"balanced_accuracy": ((0.5, 1), (0.5, 0)), "accuracy": ((1.0, None),)}.get(performance)
    return None if shares is None else _margin(scores, [(weight, _has_label(scores, label)) for weight, label in shares])


def _margin(scores: Scores, cells: list[tuple[float, BoolArray]]) -> float | None:
    """Half of the widest interval of a signed sum of rates, given the coefficient and the rows of each; None if one has no rows."""
    counts = [(weight, _effective_patients(scores, rows)) for weight, rows in cells]
    return None if any(n == 0 for _, n in counts) else Z * float(sum(weight**2 * WIDEST / n for weight, n in counts) ** 0.5)


def _has_label(scores: Scores, label: int | None) -> BoolArray:
    return np.ones(len(scores), bool) if label is None else scores.y == label


def _effective_patients(scores: Scores, rows: BoolArray) -> float:
    """The effective number of patients with these rows; the weight of a patient is the mean weight of their rows."""
    units = units_of(scores.patients, len(scores))[rows]
    if not len(units):
        return 0.0
    count = np.bincount(units)
    weight = count.astype(np.float64) if scores.weight is None else sums_at(units, scores.weight[rows], len(count))
    mean = weight[count > 0] / count[count > 0]
    return float(mean.sum() ** 2 / (mean**2).sum())
