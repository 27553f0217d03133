"""Brier score and calibration in the large from sums over patients, which add up: of any number of rows, without a sample of them.

They are means over rows, so value and cluster-robust standard error follow from the sums of each patient and their second moments. The
intervals are those of large samples; smaller groups have the intervals of `calibration`.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from equipoise.measures.calibration import ENOUGH, Limits, expit, logit
from equipoise.measures.cells import FloatArray, IntArray, ratio, sums_at
from equipoise.measures.clusters import Clusters
from equipoise.measures.intervals import quantile


class Rows(NamedTuple):
    """Rows by label, score, group and patient, with their weights."""

    y: IntArray
    score: FloatArray
    codes: IntArray
    groups: int
    units: IntArray
    weight: FloatArray | None


@dataclass(frozen=True, eq=False)
class Losses:
    """Sums of weights, squared errors and errors over patients, per group. Those of disjoint sets of patients add up."""

    total: FloatArray  # (groups, 3)
    second: FloatArray  # (groups, 3, 3): sums over patients of the products of their sums
    patients: FloatArray  # (groups,)

    def __add__(self, other: "Losses") -> "Losses":
        return Losses(self.total + other.total, self.second + other.second, self.patients + other.patients)

    def taken(self, groups: IntArray) -> "Losses":
        """Those of some groups."""
        return Losses(self.total[groups], self.second[groups], self.patients[groups])

    def limits(self, level: float) -> dict[str, Limits]:
        """The Brier score, on the logit scale, which keeps it inside 0 and 1, and calibration in the large, mean score minus prevalence."""
        z, found = quantile(level), {}
        for name, k in (("brier", 1), ("calibration_in_the_large", 2)):
            value = ratio(self.total[:, k], self.total[:, 0])
            squares = self.second[:, k, k] - 2 * value * self.second[:, k, 0] + value**2 * self.second[:, 0, 0]
            half = z * np.sqrt(np.maximum(squares, 0.0)) / np.where(self.total[:, 0] > 0, self.total[:, 0], np.nan)
            low, high = value - half, value + half
            if name == "brier":
                inside = (value > 0) & (value < 1)
                p = np.where(inside, value, 0.5)
                low, high = (np.where(inside, expit(logit(p) + sign * half / (p * (1 - p))), value) for sign in (-1, 1))
            found[name] = Limits(value, low, high, self.patients, tuple(ENOUGH for _ in value))
        return found


def losses_of(rows: Rows) -> Losses:
    """The losses of rows; those without a group (code -1) are left out.

    >>> two = losses_of(Rows(np.array([1, 0]), np.array([0.5, 0.5]), np.zeros(2, int), 1, np.arange(2), None))
    >>> float(two.limits(0.95)["brier"].value[0])
    0.25
    """
    of = Clusters.of(rows.codes, rows.groups, rows.units)
    error = rows.score[of.rows] - rows.y[of.rows]
    w: npt.NDArray[np.float64] = np.ones(len(error)) if rows.weight is None else rows.weight[of.rows]
    sums = [of.by_patient(w * values) for values in (1.0, error**2, error)]
    total = np.stack([sums_at(of.group, own, rows.groups) for own in sums], axis=-1)
    second = np.stack([np.stack([sums_at(of.group, a * b, rows.groups) for b in sums], axis=-1) for a in sums], axis=-2)
    return Losses(total, second, of.patients())
