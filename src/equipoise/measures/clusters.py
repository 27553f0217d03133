"""The patients of each group: sums over the rows of a patient, from which cluster-robust variances follow."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from equipoise.measures.cells import FloatArray, IntArray, grouped, ratio, sums_at


@dataclass(frozen=True, eq=False)
class Clusters:
    """Rows by group and patient. A patient with rows in two groups is a cluster of each.

    >>> two = Clusters.of(np.array([0, 0, 1, -1]), 2, np.array([0, 0, 0, 1]))
    >>> two.rows.tolist(), two.patients().tolist(), two.squares(np.array([1.0, 2.0, 3.0])).tolist()
    ([0, 1, 2], [1.0, 1.0], [9.0, 9.0])
    """

    rows: IntArray  # (k,) positions of the rows that have a group
    code: IntArray  # (k,) the group of each
    groups: int
    place: IntArray | None  # (k,) the cluster of each row; None where every row is one
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
        given = np.asarray(values, dtype=np.float64)
        return given if self.place is None else sums_at(self.place, given, len(self.group))

    def squares(self, values: npt.ArrayLike) -> FloatArray:
        """The sum over patients of the squared sum of their row values (groups,)."""
        return sums_at(self.group, self.by_patient(values) ** 2, self.groups)

    def patients(self, among: npt.NDArray[np.bool_] | None = None) -> FloatArray:
        """How many patients of each group have a row, or a row among those marked (groups,)."""
        return sums_at(self.group, 1.0 if among is None else self.by_patient(among) > 0, self.groups)

    def several(self) -> npt.NDArray[np.bool_]:
        """Whether some patient of a group has more than one row (groups,)."""
        several: npt.NDArray[np.bool_] = self.sum(1.0) > self.patients()
        return several

    def degrees(self, contributions: FloatArray) -> FloatArray:
        """Degrees of freedom of a sum of squared contributions of patients (clusters,), by group (Satterthwaite), at most patients - 1.

        Where every patient has one row, they are patients - 1.

        >>> four = Clusters.of(np.zeros(8, int), 1, np.arange(8) // 2)
        >>> four.degrees(np.array([1.0, -1.0, 1.0, -1.0])).tolist(), four.degrees(np.array([9.0, -1.0, 1.0, -1.0])).round(1).tolist()
        ([3.0], [2.9])
        """
        most = np.maximum(self.patients() - 1, 1.0)
        if self.place is None:
            return most
        second, fourth = (sums_at(self.group, contributions**k, self.groups) for k in (2, 4))
        spread = fourth - ratio(second**2, self.patients())
        return np.clip(np.nan_to_num(ratio(2 * second**2, spread), nan=np.inf), 1.0, most)

    def effective(self, weight: FloatArray) -> FloatArray:
        """The effective number of rows by weight, after Kish (groups,): as many as there are if all weigh the same."""
        return ratio(self.sum(weight) ** 2, self.sum(weight**2))
