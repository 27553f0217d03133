"""How far an estimate may be off on these patients, whatever the decisions: half of the widest 95 % interval.

The decisions of a step of a repair are not kept, so its rates are unknown. These are the intervals of rates of a half, the widest possible,
for the number of patients, not of rows; with sample weights, for as many patients of equal weight as they amount to (Kish).
"""

import numpy as np
import numpy.typing as npt

from equipoise.data import Scores
from equipoise.measures.bootstrap import units_of
from equipoise.measures.cells import sums_at
from equipoise.measures.gaps import RATES, is_quotient, terms

WIDEST = 0.25  # the variance of a rate of a half
Z = 1.96


def gap_margin(scores: Scores, measure: str) -> float | None:
    """Half of the widest interval of a gap; None if a cell is empty, or if decisions select the patients.

    >>> four = Scores.from_arrays([1, 0] * 800, [0.5] * 1600, ["F"] * 800 + ["M"] * 800, reference="M")
    >>> round(gap_margin(four, "eod"), 4), round(performance_margin(four, "balanced_accuracy"), 4)  # 1.96 * sqrt(0.5 / 400), ...
    (0.0693, 0.0245)
    """
    if is_quotient(measure):
        return None
    codes, widest = scores.attribute.codes, 0.0
    for other in range(1, len(scores.attribute.levels)):
        cells = [
            (weight, (codes == code) & _of_label(scores, RATES[rate])) for rate, weight in terms(measure).items() for code in (0, other)
        ]
        found = _margin(scores, cells)
        if found is None:
            return None
        widest = max(widest, found)
    return widest


def performance_margin(scores: Scores, performance: str) -> float | None:
    """The same for balanced accuracy and accuracy; None for a performance that is not a mean of rates."""
    shares = {"balanced_accuracy": ((0.5, 1), (0.5, 0)), "accuracy": ((1.0, None),)}.get(performance)
    return None if shares is None else _margin(scores, [(weight, _of_label(scores, label)) for weight, label in shares])


def _margin(scores: Scores, cells: list[tuple[float, npt.NDArray[np.bool_]]]) -> float | None:
    """Half of the widest interval of a signed sum of rates, each over some rows; None where one has no rows."""
    counts = [(weight, _patients(scores, rows)) for weight, rows in cells]
    return None if any(n == 0 for _, n in counts) else Z * float(sum(weight**2 * WIDEST / n for weight, n in counts) ** 0.5)


def _of_label(scores: Scores, label: int | None) -> npt.NDArray[np.bool_]:
    return np.ones(len(scores), bool) if label is None else scores.y == label


def _patients(scores: Scores, rows: npt.NDArray[np.bool_]) -> float:
    """How many patients of equal weight have these rows; a patient weighs as much as their rows do in the mean."""
    units = units_of(scores.patients, len(scores))[rows]
    if not len(units):
        return 0.0
    count = np.bincount(units)
    weight = count.astype(np.float64) if scores.weight is None else sums_at(units, scores.weight[rows], len(count))
    mean = weight[count > 0] / count[count > 0]
    return float(mean.sum() ** 2 / (mean**2).sum())
