"""Patients as the unit of sampling: sums over the rows of each patient, and bootstrap samples of patients as multiplicities."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from equipoise.data import generator, patient_codes
from equipoise.measures.cells import Cells, FloatArray, IntArray, cell_index, grouped, ratio, sums_at


@dataclass(frozen=True, eq=False)
class Clusters:
    """Rows by group and patient. A patient with rows in two groups is a cluster of each.

    >>> clusters = Clusters.of(np.array([0, 0, 1, -1]), 2, np.array([0, 0, 0, 1]))
    >>> clusters.rows.tolist(), clusters.patients().tolist(), clusters.squares(np.array([1.0, 2.0, 3.0])).tolist()
    ([0, 1, 2], [1.0, 1.0], [9.0, 9.0])
    """

    rows: IntArray  # (k,) positions of the rows that have a group
    code: IntArray  # (k,) the group of each row
    groups: int
    place: IntArray | None  # (k,) the cluster of each row; None if every row is its own cluster
    group: IntArray  # (clusters,) the group of each cluster

    @classmethod
    def of(cls, codes: IntArray, groups: int, units: IntArray) -> "Clusters":
        """The clusters of rows with these groups (-1: none) and patients (codes 0 .. P-1)."""
        rows = np.flatnonzero(codes >= 0)
        code = codes[rows]
        width = int(units.max(initial=0)) + 1
        if width == len(units):
            return cls(rows, code, groups, None, code)
        pairs, place = grouped(code * width + units[rows], groups * width)
        return cls(rows, code, groups, place, pairs // width)

    def sum(self, values: npt.ArrayLike) -> FloatArray:
        """The sum of row values (k,) in each group (groups,)."""
        return sums_at(self.code, values, self.groups)

    def by_patient(self, values: npt.ArrayLike) -> FloatArray:
        """The sum of row values (k,) in each cluster."""
        by_row = np.asarray(values, dtype=np.float64)
        return by_row if self.place is None else sums_at(self.place, by_row, len(self.group))

    def squares(self, values: npt.ArrayLike) -> FloatArray:
        """The sum over patients of the squared sum of their row values (groups,)."""
        return sums_at(self.group, self.by_patient(values) ** 2, self.groups)

    def patients(self, among: npt.NDArray[np.bool_] | None = None) -> FloatArray:
        """The number of patients of each group who have a row, or a row among those marked (groups,)."""
        return sums_at(self.group, 1.0 if among is None else self.by_patient(among) > 0, self.groups)

    def several(self) -> npt.NDArray[np.bool_]:
        """Whether some patient of a group has more than one row (groups,)."""
        several: npt.NDArray[np.bool_] = self.sum(1.0) > self.patients()
        return several

    def degrees(self, contributions: FloatArray) -> FloatArray:
        """Degrees of freedom of the sum of squares of patients' contributions (clusters,), by group (Satterthwaite).

        They are at most the effective number of patients, given their rows, minus 1. If every patient has one row, they are patients - 1.

        >>> four = Clusters.of(np.zeros(8, int), 1, np.arange(8) // 2)
        >>> four.degrees(np.array([1.0, -1.0, 1.0, -1.0])).tolist(), four.degrees(np.array([9.0, -1.0, 1.0, -1.0])).round(1).tolist()
        ([3.0], [2.9])
        """
        most = np.maximum(self.effective_patients() - 1, 1.0)
        if self.place is None:
            return most
        second, fourth = (sums_at(self.group, contributions**k, self.groups) for k in (2, 4))
        spread = fourth - ratio(second**2, self.patients())
        return np.clip(np.nan_to_num(ratio(2 * second**2, spread), nan=np.inf), 1.0, most)

    def effective_patients(self) -> FloatArray:
        """The effective number of patients given their numbers of rows (groups,), after Kish; all of them if these are equal."""
        if self.place is None:
            return self.patients()
        return np.nan_to_num(ratio(self.sum(1.0) ** 2, self.squares(np.ones(len(self.rows)))))

    def effective(self, weight: FloatArray) -> FloatArray:
        """The effective number of rows given their weights (groups,), after Kish; all rows if the weights are equal."""
        return ratio(self.sum(weight) ** 2, self.sum(weight**2))


BLOCK = 4_000_000  # elements of one block of multiplicities: memory is O(block), whatever the number of draws


def units_of(patients: npt.NDArray[np.object_] | None, rows: int) -> IntArray:
    """The unit of sampling of each row, as codes 0 .. P-1: the patient if there are patient ids, otherwise the row."""
    if patients is None:
        return np.arange(rows)
    return patient_codes(patients)


def multiplicities(units: int, draws: int, seed: int, name: str = "bootstrap") -> Iterator[FloatArray]:
    """Blocks (b, units) of how often each unit is drawn in a bootstrap sample; every row sums to `units`.

    The draws depend on the seed and on the name of the random stream, not on the size of the blocks.
    """
    rng = generator(seed, name)
    block = max(1, min(draws, BLOCK // max(units, 1)))
    done = 0
    while done < draws:
        b = min(block, draws - done)
        out = np.empty((b, units))
        for row in out:  # one draw at a time, so that the random stream does not depend on the block size
            row[:] = np.bincount(rng.integers(0, units, units, dtype=np.uint32), minlength=units)
        yield out
        done += b


def sums_by_unit(units: IntArray, columns: IntArray, values: npt.ArrayLike, width: int) -> FloatArray:
    """Row values summed into a matrix (P, width): row i adds values[i] at (units[i], columns[i])."""
    count = int(units.max()) + 1
    weights = np.broadcast_to(np.asarray(values, dtype=np.float64), units.shape)
    return np.bincount(units * width + columns, weights, count * width).reshape(count, width).astype(np.float64, copy=False)


def bootstrap_cells(
    f: FloatArray, y: IntArray, codes: IntArray, levels: tuple[str, ...], units: IntArray, *, draws: int = 1000, seed: int = 0
) -> Cells:
    """The cell tables (draws, groups + 1, 2) of bootstrap samples, from which the rates and gaps of each sample follow."""
    size = 2 * (len(levels) + 1)
    cell = cell_index(y, codes, len(levels))
    table = np.concatenate([sums_by_unit(units, cell, values, size) for values in (1.0, f)], axis=1)
    drawn = np.concatenate([block @ table for block in multiplicities(len(table), draws, seed)])
    grid = (draws, len(levels) + 1, 2)
    return Cells(levels, drawn[:, :size].reshape(grid), drawn[:, size:].reshape(grid))


def interval(draws: FloatArray, value: npt.ArrayLike, level: float = 0.95) -> tuple[FloatArray, FloatArray]:
    """The percentile interval over the first axis, extended to contain the value itself; NaN where the value is NaN.

    Draws that are NaN, because a cell was empty, are ignored.
    """
    point = np.asarray(value, dtype=np.float64)
    tail = (1 - level) / 2
    low, high = np.full(point.shape, np.nan), np.full(point.shape, np.nan)
    usable = ~np.isnan(point) & ~np.isnan(draws).all(0)
    if usable.any():
        low[usable], high[usable] = np.nanquantile(draws[:, usable], [tail, 1 - tail], axis=0)
    return np.fmin(low, point), np.fmax(high, point)
