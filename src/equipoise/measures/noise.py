"""The noise floor of a gap: how large it is on these rows, on average, for groups that have nothing to do with the decisions.

On a small test part even a classifier without any gap shows one. Dealing the groups out to patients at random, with the decisions and
labels as they are, says how much: a |gap| at or below that floor is no sign of bias, nor of a repair.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from equipoise.data.seeds import generator
from equipoise.measures.bootstrap import BLOCK, by_unit, units_of
from equipoise.measures.cells import Cells, FloatArray, IntArray
from equipoise.measures.functional import gap_values, largest
from equipoise.measures.gaps import Gap


def noise_floor(
    decisions: npt.ArrayLike,
    y: npt.ArrayLike,
    codes: npt.ArrayLike,
    levels: tuple[str, ...],
    patients: npt.NDArray[np.object_] | None,
    measure: Gap,
    draws: int = 200,
    seed: int = 0,
) -> float:
    """The mean |gap| of decisions f (n,) over random deals of the groups; of several groups, the largest |gap| of each deal.

    What is dealt to is a patient, so that all rows of one stay together; a row, where there are no patient ids. A patient with rows in
    several groups counts as several, one a group. As many get each group as have it. Rows without a group keep out of it. Deals in which a
    group lacks the rows that the measure needs are passed over; NaN if all do.

    >>> round(noise_floor([1, 0, 1, 0], [1, 1, 1, 1], [0, 0, 1, 1], ("M", "F"), None, "eod", draws=5000), 1)  # a third of all deals gives 1
    0.3
    """
    code = np.asarray(codes, dtype=np.int64)
    known = code >= 0
    if not known.any():
        return float("nan")
    f, label = np.asarray(decisions, dtype=np.float64)[known], np.asarray(y, dtype=np.int64)[known]
    unit, group = _units(units_of(patients, len(code))[known], code[known], len(levels))
    tables = np.concatenate([by_unit(unit, label, 1.0, 2), by_unit(unit, label, f, 2)], axis=1)  # (units, 4): n and s by label
    sizes = [np.abs(largest(gap_values(measure, cells))) for cells in _dealt(tables, group, levels, draws, generator(seed, "noise floor"))]
    values = np.concatenate(sizes)
    seen = ~np.isnan(values)
    return float(values[seen].mean()) if seen.any() else float("nan")


def _units(patient: IntArray, code: IntArray, groups: int) -> tuple[IntArray, IntArray]:
    """The unit of each row, 0 .. U-1, a (patient, group); and the group of each unit."""
    pairs, unit = np.unique(patient * groups + code, return_inverse=True)
    return np.asarray(unit, dtype=np.int64), np.asarray(pairs % groups, dtype=np.int64)


def _dealt(tables: FloatArray, group: IntArray, levels: tuple[str, ...], draws: int, rng: np.random.Generator) -> Iterator[Cells]:
    """The cell tables of random deals, in blocks whose memory does not grow with the number of draws."""
    block = max(1, min(draws, BLOCK // len(group)))
    for start in range(0, draws, block):
        b = min(block, draws - start)
        deal = rng.permuted(np.broadcast_to(group, (b, len(group))), axis=1)
        cells = np.zeros((b, len(levels) + 1, 4))
        for code in range(len(levels)):
            cells[:, code] = (deal == code) @ tables
        yield Cells(levels, cells[..., :2], cells[..., 2:])
