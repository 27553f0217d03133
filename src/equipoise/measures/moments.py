"""Sums over the rows of each patient and their second moments, per group. Additive, and sufficient for rates, gaps and their intervals.

A rate is a ratio of two sums over patients, so its variance between patients (cluster-robust, linearised) is a quadratic form in the second
moments of the sums. Its effective sample size follows: the number of independent rows that would estimate the rate as precisely.

If some patients have many more rows than others, or much larger sample weights, that variance rests on these few. Its degrees of freedom
are therefore K - 1, with K the effective number of patients in the denominator (Kish 1965): (sum of n)^2 / sum of n^2, with n the weight of
a patient's rows. K is the number of patients U if they have equally many rows. The finite-sample factor corrects the bias of residuals from
an estimated rate: with weights w = n / sum of n and strongly correlated rows of a patient, their squares are too small by the factor
1 + sum w^2 - 2 sum w^3 / sum w^2. That is 1 - 1 / K for equal n; in general, the last sum is taken from a gamma distribution of n with the
observed variance. With one row per patient and unequal weights, the effective sample size is K at most.

If the rate is the same in all patients, as a rate of 0 or 1 is, that quadratic form is 0 up to rounding errors, which depend on the order
of the rows. Such a variance counts as 0.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from equipoise.data import Attribute, Scores
from equipoise.measures.cells import FloatArray, IntArray, ratio
from equipoise.measures.clusters import Clusters, units_of
from equipoise.measures.intervals import fewer_clusters, tango, wilson
from equipoise.measures.signed_sums import SignedSum


class Ratio(NamedTuple):
    """The coefficients of the columns in the numerator and denominator of a ratio.

    For the difference of two ratios with the same denominator, `either` is the numerator of their sum.
    """

    top: tuple[float, ...]
    bottom: tuple[float, ...]
    either: tuple[float, ...] | None = None


Columns = Mapping[str, Ratio]
ROUNDING = 1e-12  # a variance below this share of the terms whose differences make it up is rounding error
DECISIONS: Columns = {  # columns: n0, n1 (rows with label 0, 1), s0, s1 (sums of their decisions)
    "selection_rate": Ratio((0, 0, 1, 1), (1, 1, 0, 0)),
    "tpr": Ratio((0, 0, 0, 1), (0, 1, 0, 0)),
    "fpr": Ratio((0, 0, 1, 0), (1, 0, 0, 0)),
    "ppv": Ratio((0, 0, 0, 1), (0, 0, 1, 1)),
    "npv": Ratio((1, 0, -1, 0), (1, 1, -1, -1)),
    "accuracy": Ratio((1, 0, -1, 1), (1, 1, 0, 0)),
    "jaccard": Ratio((0, 0, 0, 1), (0, 1, 1, 0)),  # true positives among rows that are positive or decided positive; F1 = 2 J / (1 + J)
}
CHANGES: Columns = {  # columns: n0, n1, and positive decisions gained and lost by label: gained0, gained1, lost0, lost1
    "selection": Ratio((0, 0, 1, 1, -1, -1), (1, 1, 0, 0, 0, 0), (0, 0, 1, 1, 1, 1)),
    "tpr": Ratio((0, 0, 0, 1, 0, -1), (0, 1, 0, 0, 0, 0), (0, 0, 0, 1, 0, 1)),
    "fpr": Ratio((0, 0, 1, 0, -1, 0), (1, 0, 0, 0, 0, 0), (0, 0, 1, 0, 1, 0)),
    "accuracy": Ratio((0, 0, -1, 1, 1, -1), (1, 1, 0, 0, 0, 0), (0, 0, 1, 1, 1, 1)),
    "true": Ratio((0, 0, 0, 1, 0, -1), (1, 1, 0, 0, 0, 0), (0, 0, 0, 1, 0, 1)),  # true positives per row
    "false": Ratio((0, 0, 1, 0, -1, 0), (1, 1, 0, 0, 0, 0), (0, 0, 1, 0, 1, 0)),  # false positives per row
    "corrected": Ratio((0, 0, 0, 1, 1, 0), (1, 1, 0, 0, 0, 0)),  # share of rows that are right now and were wrong before
    "spoiled": Ratio((0, 0, 1, 0, 0, 1), (1, 1, 0, 0, 0, 0)),  # share of rows that are wrong now and were right before
}
BOTH: Columns = {  # columns: n0, n1, and the sums of decisions by label, before and after: s0, s1, s0', s1'
    f"{name}_{when}": Ratio(*(side[:2] + ((*side[2:], 0, 0) if when == "before" else (0, 0, *side[2:])) for side in DECISIONS[name][:2]))
    for name in ("ppv", "npv", "jaccard")
    for when in ("before", "after")
}


@dataclass(frozen=True, eq=False)
class Moments:
    """Sums of columns over patients, per group. The moments of disjoint sets of patients can be added.

    >>> moments = moments_of([1, 0, 1], [1, 1, 1], np.array([0, 0, 0]), 1, np.array([0, 0, 1]))  # two rows of one patient, one of another
    >>> moments.value("tpr").round(3).tolist(), moments.patients("tpr").tolist()
    ([0.667], [2.0])
    """

    ratios: Columns
    total: FloatArray  # (groups, columns): weighted sums
    second: FloatArray  # (groups, columns, columns): sums over patients of the products of their sums
    rows: FloatArray  # (groups, ratios): rows in the denominators, unweighted
    units: FloatArray  # (groups, ratios): patients in the denominators

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any], groups: int) -> "Moments":
        """The moments written by `to_dict`; raises a ValueError if their shapes do not fit the number of groups."""
        columns, ratios = len(next(iter(DECISIONS.values())).top), len(DECISIONS)
        shapes = {"total": (groups, columns), "second": (groups, columns, columns), "rows": (groups, ratios), "units": (groups, ratios)}
        arrays = {name: np.array(plain[name], dtype=np.float64) for name in shapes}
        if any(
            arrays[name].shape != shape or not (np.isfinite(arrays[name]) & (arrays[name] >= 0)).all() for name, shape in shapes.items()
        ):
            raise ValueError(f"sums: expected finite sums of {groups} groups")
        return cls(DECISIONS, **arrays)

    def taken(self, groups: Sequence[int] | IntArray) -> "Moments":
        """The moments of these groups, in this order."""
        return Moments(self.ratios, *(array[list(groups)] for array in self._arrays()))

    def normalised(self) -> "Moments":
        """The moments with sample weights of mean 1, so that they can be added to moments whose weights have another scale."""
        rows, weight = float(self.rows_of("selection_rate").sum()), float(self.total[:, :2].sum())
        scale = rows / weight if weight > 0 else 1.0
        return Moments(self.ratios, self.total * scale, self.second * scale**2, self.rows, self.units)

    def to_dict(self) -> dict[str, list[Any]]:
        """Plain values for JSON."""
        return {name: array.tolist() for name, array in zip(("total", "second", "rows", "units"), self._arrays(), strict=True)}

    def __add__(self, other: "Moments") -> "Moments":
        if self.ratios != other.ratios:
            raise ValueError("moments of different ratios do not add up")
        return Moments(self.ratios, *(first + second for first, second in zip(self._arrays(), other._arrays(), strict=True)))

    def _arrays(self) -> tuple[FloatArray, ...]:
        return self.total, self.second, self.rows, self.units

    def _place(self, name: str) -> int:
        return list(self.ratios).index(name)

    @cached_property
    def _sides(self) -> tuple[FloatArray, FloatArray]:
        """The coefficients of numerators and denominators (ratios, columns)."""
        sides = np.array([each[:2] for each in self.ratios.values()], dtype=np.float64)
        return sides[:, 0], sides[:, 1]

    @cached_property
    def _values(self) -> FloatArray:
        """All ratios (groups, ratios)."""
        top, bottom = (self.total @ side.T for side in self._sides)
        lowest = np.where([each.either is None for each in self.ratios.values()], 0.0, -bottom)
        return ratio(np.minimum(np.maximum(top, lowest), bottom), bottom)

    @cached_property
    def _either(self) -> FloatArray:
        """The sum of the two ratios that a difference compares (groups, ratios); the ratio itself if it is no difference."""
        sides = np.array([each.either or each.top for each in self.ratios.values()], dtype=np.float64)
        bottom = self.total @ self._sides[1].T
        return ratio(np.clip(self.total @ sides.T, 0.0, bottom), bottom)

    @cached_property
    def _covariances(self) -> FloatArray:
        """The cluster-robust covariances of all ratios (groups, ratios, ratios), linearised; NaN if a denominator has one patient.

        They are 0 for a ratio that is the same in all patients.
        """
        top, bottom = self._sides
        slope = ratio(top - self._values[..., None] * bottom, (self.total @ bottom.T)[..., None])  # (groups, ratios, columns)
        terms = ((np.abs(slope) @ self.second) * np.abs(slope)).sum(-1)
        covariances = slope @ self.second @ slope.swapaxes(-1, -2)
        varies = ~(np.diagonal(covariances, axis1=-2, axis2=-1) <= ROUNDING * terms)
        _, clusters = self._effective
        finite = ratio(clusters, np.maximum(clusters - 1, 0.0))  # finite-sample factors; NaN for one patient
        unequal = clusters < self.units
        if unequal.any():
            third = np.fmin(ratio(2 - ratio(clusters, self.units), clusters), ratio(np.ones_like(clusters), np.sqrt(clusters)))
            finite = np.where(unequal, ratio(np.ones_like(clusters), 1 + ratio(np.ones_like(clusters), clusters) - 2 * third), finite)
        factor = np.where(varies, np.sqrt(finite), finite * 0.0)
        return covariances * factor[..., None] * factor[..., None, :]

    @cached_property
    def _effective(self) -> tuple[FloatArray, FloatArray]:
        """(sum of n)^2 / sum of n^2 over the patients' denominators n of all ratios (groups, ratios), and the effective patients.

        These are all patients, unless their rows or weights are unequal.
        """
        bottom = self._sides[1]
        kish = ratio((self.total @ bottom.T) ** 2, np.einsum("kc,gcd,kd->gk", bottom, self.second, bottom))
        return kish, np.where(kish < self.units * (1 - 1e-9), kish, self.units)

    @cached_property
    def _sizes(self) -> FloatArray:
        """The effective sample sizes of all ratios (groups, ratios)."""
        variance = np.nan_to_num(np.diagonal(self._covariances, axis1=-2, axis2=-1))
        unclustered = np.nan_to_num(ratio(np.nan_to_num(self._either - self._values**2), np.maximum(self.rows - 1, 0.0)))
        spread = (unclustered > 0) & (variance > 0)
        effect = np.maximum(np.divide(variance, unclustered, out=np.ones_like(variance), where=spread), 1.0)
        kish, clusters = self._effective
        size = np.where(spread, self.rows / effect, np.minimum(kish, self.rows))
        weighted = (self.rows <= self.units + 1e-9) & (clusters < self.units)  # one row per patient, unequal weights
        return np.where(weighted, np.minimum(size, clusters), size)

    @cached_property
    def _degrees(self) -> FloatArray:
        _, clusters = self._effective
        single = (self.rows <= self.units + 1e-9) & ~(clusters < self.units)
        return np.where(single, np.inf, np.maximum(clusters - 1, 1.0))

    def value(self, name: str) -> FloatArray:
        """The ratio of each group (groups,); NaN if the denominator is empty."""
        return self._column(self._values, name)

    def rows_of(self, name: str) -> FloatArray:
        """The number of rows in the denominator of a ratio (groups,)."""
        return self._column(self.rows, name)

    def patients(self, name: str) -> FloatArray:
        """The number of patients in the denominator of a ratio (groups,)."""
        return self._column(self.units, name)

    def effective_patients(self, name: str) -> FloatArray:
        """The effective number of patients in the denominator of a ratio (groups,): fewer if some have more rows or larger weights.

        >>> moments_of([1, 0, 1], [1, 1, 1], np.array([0, 0, 0]), 1, np.array([0, 0, 1])).effective_patients("tpr").round(2).tolist()
        [1.8]
        """
        return self._column(self._effective[1], name)

    def _column(self, values: FloatArray, name: str) -> FloatArray:
        column: FloatArray = values[:, self._place(name)]
        return column

    def covariance(self, names: tuple[str, ...]) -> FloatArray:
        """The cluster-robust covariances of ratios (groups, names, names), linearised; NaN if a denominator has one patient."""
        places = [self._place(name) for name in names]
        covariances: FloatArray = self._covariances[:, places][:, :, places]
        return covariances

    def correlation(self, names: tuple[str, ...]) -> FloatArray:
        """The correlations of ratios (groups, names, names); 0 if one of them has no variance."""
        covariance = self.covariance(names)
        sd = np.sqrt(np.maximum(np.diagonal(covariance, axis1=-2, axis2=-1), 0.0))
        scale = sd[..., None] * sd[..., None, :]
        correlation = np.clip(np.nan_to_num(ratio(covariance, np.nan_to_num(scale))), -1.0, 1.0)
        return np.where(np.eye(len(names), dtype=bool), 1.0, correlation)

    def size(self, name: str) -> FloatArray:
        """The effective sample size of a ratio in each group (groups,): rows divided by the design effect, which is at least 1.

        If the ratio is 0 or 1, no variance between patients is observed, so the rows of a patient count as one.
        """
        return self._column(self._sizes, name)

    def degrees(self, name: str) -> FloatArray:
        """Degrees of freedom of the variance (groups,): effective patients - 1, or infinite if each has one row of the same weight."""
        return self._column(self._degrees, name)

    def interval(self, name: str, level: float = 0.95) -> tuple[FloatArray, FloatArray]:
        """The limits of a ratio in each group (groups,)."""
        value, either = self.value(name), self._column(self._either, name)
        size = fewer_clusters(self.size(name), self.degrees(name), level)
        if self.ratios[name].either is None:
            return wilson(value, size, level)
        return tango((either + value) / 2, (either - value) / 2, size, level)

    def sums(self, coefficients: Mapping[str, float], level: float = 0.95) -> tuple[FloatArray, FloatArray, FloatArray]:
        """A signed sum of ratios of each group with its limits (groups,)."""
        return self.signed(coefficients).limits(level)

    def gaps(self, coefficients: Mapping[str, float], level: float = 0.95) -> tuple[FloatArray, FloatArray, FloatArray]:
        """A signed sum of ratios of every group but the first, minus that of the first, with its limits (groups - 1,).

        Groups are treated as independent. If patients have rows in several groups, gaps vary less than that and the interval is
        conservative.
        """
        signed = self.signed(coefficients)
        return signed[1:].minus(signed[:1]).limits(level)

    def gap_p_values(self, coefficients: Mapping[str, float]) -> FloatArray:
        """The p-value of the gap of every group but the first (groups - 1,): one minus the level at which its interval ends at zero.

        >>> rows = moments_of(np.repeat([1, 0, 1, 0], [90, 10, 70, 30]), np.ones(200), np.arange(200) // 100, 2, np.arange(200))
        >>> low, high = (float(end[0]) for end in rows.gaps({"tpr": 1.0}, 1 - float(rows.gap_p_values({"tpr": 1.0})[0]))[1:])
        >>> low < 0.0, abs(high) < 1e-4
        (True, True)
        """
        signed = self.signed(coefficients)
        return signed[1:].minus(signed[:1]).p_values()

    def signed(self, coefficients: Mapping[str, float]) -> SignedSum:
        """A signed sum of ratios of each group (groups,), from which differences between groups can be made."""
        names = tuple(coefficients)
        places = [self._place(name) for name in names]
        value, size, degrees, either = (x[:, places] for x in (self._values, self._sizes, self._degrees, self._either))
        paired = all(self.ratios[name].either is not None for name in names)
        signs = np.tile([float(c) for c in coefficients.values()], (len(self.total), 1))
        return SignedSum(signs, value, size, degrees, self.correlation(names), either if paired else None)

    def gap_correlation(self, gaps: Mapping[str, Mapping[str, float]]) -> FloatArray:
        """The correlations of gaps, flattened measure by measure, group by group ((measures * (groups - 1)) squared).

        Gaps are correlated because the groups of an attribute share the reference and measures share rows.
        """
        names = tuple(dict.fromkeys(name for coefficients in gaps.values() for name in coefficients))
        signs = np.array([[coefficients.get(name, 0.0) for name in names] for coefficients in gaps.values()])
        of_ratios = np.nan_to_num(self.covariance(names))
        covariance = np.einsum("ak,gkl,bl->gab", signs, of_ratios, signs)  # (groups, a, b)
        others = len(covariance) - 1
        whole = np.einsum("gab,gh->agbh", covariance[1:], np.eye(others)) + covariance[0][:, None, :, None]
        flat = whole.reshape(len(gaps) * others, len(gaps) * others)
        terms = np.einsum("ak,gkl,al->ag", np.abs(signs), np.abs(of_ratios), np.abs(signs))  # (a, groups)
        variance = np.diag(flat)
        sd = np.sqrt(np.where(variance > ROUNDING * (terms[:, 1:] + terms[:, :1]).ravel(), variance, 0.0))
        correlation = np.clip(np.nan_to_num(ratio(flat, sd[:, None] * sd)), -1.0, 1.0)
        np.fill_diagonal(correlation, 1.0)
        return correlation


def moments_of(
    f: npt.ArrayLike, y: npt.ArrayLike, codes: IntArray, groups: int, units: IntArray, weight: npt.ArrayLike | None = None
) -> Moments:
    """The moments of decisions f, by group and patient. Rows without a group (code -1) are left out."""
    label, decided = np.asarray(y, dtype=np.int64), np.asarray(f, dtype=np.float64)
    columns = [label == 0, label == 1, np.where(label == 0, decided, 0.0), np.where(label == 1, decided, 0.0)]
    return _sum_columns(DECISIONS, columns, codes, groups, units, weight)


def moments_of_scores(scores: Scores, f: FloatArray, attribute: Attribute | None = None) -> Moments:
    """The moments of decisions f on the rows of scores, by the groups of an attribute (or of their only attribute)."""
    by = scores.attribute if attribute is None else attribute
    return moments_of(f, scores.y, by.codes, len(by.levels), units_of(scores.patients, len(scores)), scores.weight)


def moments_of_change(
    before: npt.ArrayLike,
    after: npt.ArrayLike,
    y: npt.ArrayLike,
    codes: IntArray,
    groups: int,
    units: IntArray,
    weight: npt.ArrayLike | None = None,
) -> Moments:
    """The moments of positive decisions gained and lost on the same rows; their ratios are the changes of rates.

    If no decision changed, decisions on other patients still might: the interval of ten unchanged decisions has a positive width.

    >>> ones = np.ones(10)
    >>> change = moments_of_change(ones, ones, ones, np.zeros(10, int), 1, np.arange(10))
    >>> [round(float(x[0]), 2) for x in change.sums({"tpr": 1.0})]
    [0.0, -0.28, 0.28]
    """
    label = np.asarray(y, dtype=np.int64)
    step = np.asarray(after, dtype=np.float64) - np.asarray(before, dtype=np.float64)
    gained, lost = np.maximum(step, 0.0), np.maximum(-step, 0.0)
    columns = [label == 0, label == 1, *(np.where(label == k, side, 0.0) for side in (gained, lost) for k in (0, 1))]
    return _sum_columns(CHANGES, columns, codes, groups, units, weight)


def moments_before_and_after(
    before: npt.ArrayLike,
    after: npt.ArrayLike,
    y: npt.ArrayLike,
    codes: IntArray,
    groups: int,
    units: IntArray,
    weight: npt.ArrayLike | None = None,
) -> Moments:
    """The moments of the predictive values and F1 (as `jaccard`) of two sets of decisions on the same rows, which are correlated."""
    label = np.asarray(y, dtype=np.int64)
    decisions = [np.asarray(f, dtype=np.float64) for f in (before, after)]
    columns = [label == 0, label == 1, *(np.where(label == k, f, 0.0) for f in decisions for k in (0, 1))]
    return _sum_columns(BOTH, columns, codes, groups, units, weight)


def _sum_columns(
    ratios: Columns, columns: list[npt.NDArray[np.generic]], codes: IntArray, groups: int, units: IntArray, weight: npt.ArrayLike | None
) -> Moments:
    """The moments of row-wise columns, summed by group and patient."""
    clusters = Clusters.of(codes, groups, units)
    rows = [np.asarray(column, dtype=np.float64)[clusters.rows] for column in columns]
    by_patient = [clusters.by_patient(column) for column in rows]
    weighted = by_patient
    if weight is not None:
        w = np.asarray(weight, dtype=np.float64)[clusters.rows]
        weighted = [clusters.by_patient(column * w) for column in rows]
    group = clusters.group
    total = np.zeros((groups, len(columns)))
    for a, column in enumerate(weighted):
        total[:, a] = np.bincount(group, column, groups)
    second = np.zeros((groups, len(columns), len(columns)))
    for a in range(len(weighted)):
        for b in range(a + 1):
            second[:, a, b] = second[:, b, a] = np.bincount(group, weighted[a] * weighted[b], groups)
    size, patients = np.zeros((groups, len(ratios))), np.zeros((groups, len(ratios)))
    for k, each in enumerate(ratios.values()):
        in_denominator = np.sum([c * column for c, column in zip(each.bottom, by_patient, strict=True) if c], axis=0)
        size[:, k] = np.bincount(group, in_denominator, groups)
        patients[:, k] = np.bincount(group, np.minimum(in_denominator, 1.0), groups)
    return Moments(ratios, total, second, size, patients)
