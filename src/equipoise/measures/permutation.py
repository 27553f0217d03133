"""Permutations of the groups: how large a gap is on these rows, on average, if the groups have nothing to do with the decisions.

On a small test set even a classifier without any gap shows one. The groups are permuted over the patients, with decisions and labels as
they are: a |gap| at or below the mean over permutations is no sign of bias, nor of a repair.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from equipoise.data import generator
from equipoise.measures.bootstrap import BLOCK, by_unit, units_of
from equipoise.measures.cells import Cells, FloatArray, IntArray
from equipoise.measures.functional import gap_values, largest
from equipoise.measures.gaps import Gap

MOST_KINDS = 2000  # of patients, times the groups to assign: with more, permuting the patients is faster
MOST_PERMUTATIONS = 100  # of patients one by one


def mean_permuted_gap(
    decisions: npt.ArrayLike,
    y: npt.ArrayLike,
    codes: npt.ArrayLike,
    levels: tuple[str, ...],
    patients: npt.NDArray[np.object_] | None,
    measure: Gap,
    draws: int = 200,
    seed: int = 0,
) -> float:
    """The mean |gap| of decisions f (n,) over random permutations of the groups; of several groups, the largest |gap| of each.

    Patients are permuted, so that all rows of one stay together; rows, where there are no patient ids. A patient with rows in several
    groups counts as several, one per group. Group sizes stay. Rows without a group are left out. Permutations in which a group lacks the
    rows that the measure needs are skipped; NaN if all do.

    >>> round(mean_permuted_gap([1, 0, 1, 0], [1, 1, 1, 1], [0, 0, 1, 1], ("M", "F"), None, "eod", draws=5000), 1)  # 1 in a third
    0.3
    """
    code = np.asarray(codes, dtype=np.int64)
    known = code >= 0
    if not known.any():
        return float("nan")
    f, label = np.asarray(decisions, dtype=np.float64)[known], np.asarray(y, dtype=np.int64)[known]
    unit, group = _units(units_of(patients, len(code))[known], code[known], len(levels))
    tables = np.concatenate([by_unit(unit, label, 1.0, 2), by_unit(unit, label, f, 2)], axis=1)  # (units, 4): n and s by label
    sizes = [
        np.abs(largest(gap_values(measure, cells))) for cells in _permuted(tables, group, levels, draws, generator(seed, "noise floor"))
    ]
    return mean_size(np.concatenate(sizes)[:, None])


def permuted_gaps(
    decisions: npt.ArrayLike,
    y: npt.ArrayLike,
    codes: npt.ArrayLike,
    levels: tuple[str, ...],
    patients: npt.NDArray[np.object_] | None,
    measures: Sequence[str],
    draws: int = 200,
    seed: int = 0,
) -> dict[str, FloatArray]:
    """The gaps of every group but the reference in the same permutations, for each measure (draws, groups - 1); NaN for an empty cell.

    As for `mean_permuted_gap`, and faster where patients are of few kinds, as with hard decisions: which patient of a kind gets which group
    does not matter, so it is enough to draw how many do. Otherwise at most 100 permutations are made. Where no row has a group, every gap
    is NaN.

    >>> found = permuted_gaps([1, 0, 1, 0], [1, 1, 1, 1], [0, 0, 1, 1], ("M", "F"), None, ["eod", "spd"], draws=5000)
    >>> round(float(np.abs(found["eod"]).mean()), 1), found["spd"].shape
    (0.3, (5000, 1))
    """
    code = np.asarray(codes, dtype=np.int64)
    known = code >= 0
    if not known.any():
        return {measure: np.full((draws, len(levels) - 1), np.nan) for measure in measures}
    f, label = np.asarray(decisions, dtype=np.float64)[known], np.asarray(y, dtype=np.int64)[known]
    unit, group = _units(units_of(patients, len(code))[known], code[known], len(levels))
    tables = np.concatenate([by_unit(unit, label, 1.0, 2), by_unit(unit, label, f, 2)], axis=1)
    kinds, counts = _kinds(tables)
    rng = generator(seed, "noise floor")
    if len(kinds) * (len(levels) - 1) <= MOST_KINDS:
        blocks = [_permuted_kinds(kinds, counts, np.bincount(group, minlength=len(levels)), levels, draws, rng)]
    else:
        blocks = list(_permuted(tables, group, levels, min(draws, MOST_PERMUTATIONS), rng))
    return {measure: np.concatenate([gap_values(measure, cells) for cells in blocks]) for measure in measures}


def mean_size(gaps: FloatArray) -> float:
    """The mean |gap| over permutations (draws, groups), of several groups the largest of each; NaN where none has one.

    >>> mean_size(np.array([[0.1, -0.3], [np.nan, 0.1]]))
    0.2
    """
    if not gaps.shape[-1]:
        return float("nan")
    sizes = np.abs(largest(gaps))
    seen = ~np.isnan(sizes)
    return float(sizes[seen].mean()) if seen.any() else float("nan")


def _kinds(tables: FloatArray) -> tuple[FloatArray, IntArray]:
    """The different lines of a table (kinds, columns), and how often each is there."""
    key = np.zeros(len(tables), np.int64)
    for column in tables.T:
        values, place = np.unique(column, return_inverse=True)
        key = np.unique(key * len(values) + place, return_inverse=True)[1]  # again from 0, so that products of many columns stay small
    _, first, counts = np.unique(key, return_index=True, return_counts=True)
    return tables[first], np.asarray(counts, dtype=np.int64)


def _permuted_kinds(
    kinds: FloatArray, counts: IntArray, sizes: IntArray, levels: tuple[str, ...], draws: int, rng: np.random.Generator
) -> Cells:
    """The cell tables of random permutations, by how many of each kind get each group."""
    cells = np.zeros((draws, len(levels) + 1, kinds.shape[1]))
    left = np.broadcast_to(counts, (draws, len(counts)))
    for group in range(len(levels) - 1, 0, -1):
        taken = np.zeros_like(left)
        wanted, rest = np.full(draws, sizes[group]), left.sum(axis=1)
        for kind in range(len(counts)):  # a hypergeometric number of this kind, given those of the kinds before
            rest = rest - left[:, kind]
            taken[:, kind] = rng.hypergeometric(left[:, kind], rest, wanted)
            wanted = wanted - taken[:, kind]
        cells[:, group] = taken @ kinds
        left = left - taken
    cells[:, 0] = left @ kinds
    return Cells(levels, cells[..., :2], cells[..., 2:])


def _units(patient: IntArray, code: IntArray, groups: int) -> tuple[IntArray, IntArray]:
    """The unit of each row, 0 .. U-1, a (patient, group); and the group of each unit."""
    pairs, unit = np.unique(patient * groups + code, return_inverse=True)
    return np.asarray(unit, dtype=np.int64), np.asarray(pairs % groups, dtype=np.int64)


def _permuted(tables: FloatArray, group: IntArray, levels: tuple[str, ...], draws: int, rng: np.random.Generator) -> Iterator[Cells]:
    """The cell tables of random permutations, in blocks whose memory does not grow with the number of draws."""
    block = max(1, min(draws, BLOCK // len(group)))
    for start in range(0, draws, block):
        b = min(block, draws - start)
        shuffled = rng.permuted(np.broadcast_to(group, (b, len(group))), axis=1)
        cells = np.zeros((b, len(levels) + 1, 4))
        for code in range(len(levels)):
            cells[:, code] = (shuffled == code) @ tables
        yield Cells(levels, cells[..., :2], cells[..., 2:])
