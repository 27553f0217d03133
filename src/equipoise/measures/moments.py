"""Patients as the unit of sampling: sums over the rows of each patient, and what follows from them: rates, gaps, limits and p-values.

A rate is a ratio of two sums over patients, so its variance between patients (cluster-robust, linearised) is a quadratic form in the second
moments of the sums. Its effective sample size follows: the number of independent rows that would estimate the rate as precisely.

If some patients have many more rows than others, or much larger sample weights, that variance rests on these few. Its degrees of freedom
are therefore K - 1, with K the effective number of patients in the denominator (see `kish`). The finite-sample factor corrects the bias of
residuals from an estimated rate: with weights w = n / sum of n, n the weight of a patient's rows, their squares are too small by the factor
1 + sum w^2 - 2 sum w^3 / sum w^2. That is 1 - 1 / K for equal n; in general, the last sum is taken from a gamma distribution of n with the
observed variance. With one row per patient and unequal weights, the effective sample size is K at most.

If the rate is the same in all patients, as a rate of 0 or 1 is, that quadratic form is 0 up to rounding errors, which depend on the order
of the rows. Such a variance counts as 0.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from math import erf, erfc, sqrt
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from equipoise.data import Attribute, FloatArray, IntArray, Scores, generator, patient_codes
from equipoise.measures.cells import distinct_keys, kish, ratio, sums_at
from equipoise.measures.intervals import combine_limits, fewer_clusters, tango, wilson
from equipoise.measures.measure_table import RATIOS, Ratio

BLOCK_ELEMENTS = 4_000_000  # elements of one block of multiplicities: memory is O(block), whatever the number of draws
FURTHEST, P_VALUE_STEPS = 7.0, 14  # largest number of standard errors in the search for a p-value (2.6e-12), and the steps of that search
VARIANCE_ROUNDING = 1e-12  # a variance below this share of the terms whose differences make it up is rounding error
_erf, _erfc = (np.vectorize(each, otypes=[np.float64]) for each in (erf, erfc))


def units_of(patients: npt.NDArray[np.object_] | None, rows: int) -> IntArray:
    """The unit of sampling of each row, as codes 0 .. P-1: the patient if there are patient ids, otherwise the row."""
    return np.arange(rows) if patients is None else patient_codes(patients)


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
        pairs, place = distinct_keys(code * width + units[rows], groups * width)
        return cls(rows, code, groups, place, pairs // width)

    def sum(self, values: npt.ArrayLike) -> FloatArray:
        """The sum of row values (k,) in each group (groups,)."""
        return sums_at(self.code, values, self.groups)

    def by_patient(self, values: npt.ArrayLike) -> FloatArray:
        """The sum of row values (k,) in each cluster."""
        return np.asarray(values, dtype=np.float64) if self.place is None else sums_at(self.place, values, len(self.group))

    def squares(self, values: npt.ArrayLike) -> FloatArray:
        """The sum over patients of the squared sum of their row values (groups,)."""
        return sums_at(self.group, self.by_patient(values) ** 2, self.groups)

    def patients(self, among: npt.NDArray[np.bool_] | None = None) -> FloatArray:
        """The number of patients of each group who have a row, or a row among those marked (groups,)."""
        return sums_at(self.group, 1.0 if among is None else self.by_patient(among) > 0, self.groups)

    @cached_property
    def repeated(self) -> npt.NDArray[np.bool_]:
        """Whether some patient of a group has more than one row (groups,)."""
        return np.asarray(self.sum(1.0) > self.patients())

    @cached_property
    def finite(self) -> FloatArray:
        """The small-sample correction P / (P - 1) of a variance between the patients of each group (groups,); NaN for one patient."""
        return ratio(self.patients(), np.maximum(self.patients() - 1, 0.0))

    @cached_property
    def effective_patients(self) -> FloatArray:
        """The effective number of patients given their numbers of rows (groups,); all of them if these are equal."""
        return np.nan_to_num(kish(self.sum(1.0), self.squares(np.ones(len(self.rows)))))

    def degrees(self, contributions: FloatArray) -> FloatArray:
        """Degrees of freedom of the sum of squares of patients' contributions (clusters,), by group (Satterthwaite).

        They are at most the effective number of patients, given their rows, minus 1. If every patient has one row, they are patients - 1.

        >>> four = Clusters.of(np.zeros(8, int), 1, np.arange(8) // 2)
        >>> four.degrees(np.array([1.0, -1.0, 1.0, -1.0])).tolist(), four.degrees(np.array([9.0, -1.0, 1.0, -1.0])).round(1).tolist()
        ([3.0], [2.9])
        """
        most = np.maximum(self.effective_patients - 1, 1.0)
        if self.place is None:
            return most
        second, fourth = (sums_at(self.group, contributions**k, self.groups) for k in (2, 4))
        spread = fourth - ratio(second**2, self.patients())
        return np.clip(np.nan_to_num(ratio(2 * second**2, spread), nan=np.inf), 1.0, most)


def resample_counts(units: int, draws: int, seed: int, name: str = "bootstrap") -> Iterator[FloatArray]:
    """Blocks (b, units) of how often each unit is drawn in a bootstrap sample; every row sums to `units`.

    The draws depend on the seed and on the name of the random stream, not on the size of the blocks.
    """
    rng = generator(seed, name)
    block = max(1, min(draws, BLOCK_ELEMENTS // max(units, 1)))
    for done in range(0, draws, block):
        out = np.empty((min(block, draws - done), units))
        for row in out:  # one draw at a time, so that the random stream does not depend on the block size
            row[:] = np.bincount(rng.integers(0, units, units, dtype=np.uint32), minlength=units)
        yield out


def sums_by_unit(units: IntArray, columns: IntArray, values: npt.ArrayLike, width: int) -> FloatArray:
    """Row values summed into a matrix (P, width): row i adds values[i] at (units[i], columns[i])."""
    return sums_at(units * width + columns, values, (int(units.max()) + 1) * width).reshape(-1, width)


def percentile_interval(draws: FloatArray, value: npt.ArrayLike, level: float = 0.95) -> tuple[FloatArray, FloatArray]:
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


def level_of(z: npt.ArrayLike) -> FloatArray:
    """The level of an interval of z standard errors on each side, with z limited to 7.

    >>> level_of([1.96, 3.0]).round(4).tolist()
    [0.95, 0.9973]
    """
    level: FloatArray = _erf(np.clip(np.asarray(z, dtype=np.float64), 1e-6, FURTHEST) / sqrt(2))
    return level


@dataclass(frozen=True, eq=False)
class SignedSum:
    """Signed sums of k estimated ratios, one per row: rates, gaps, changes of gaps. Limits and p-values are read from it.

    `a.minus(b)` is the difference between sums that share no patients.

    >>> rates = SignedSum.of([[1.0], [1.0]], [[0.9], [0.7]], [[100.0], [100.0]])
    >>> gap = rates[1:].minus(rates[:1])
    >>> [float(end[0].round(3)) for end in gap.limits(0.95)], float(gap.p_values()[0].round(4))
    ([-0.2, -0.306, -0.09], 0.0005)
    """

    signs: FloatArray  # (..., k)
    value: FloatArray  # (..., k)
    size: FloatArray  # (..., k): effective sample sizes
    degrees: FloatArray  # (..., k): degrees of freedom of the variances between patients
    either: FloatArray  # (..., k): share of decisions gained or lost, if a ratio is a change on the same rows; NaN for a proportion
    correlation: FloatArray  # (..., k, k)

    @classmethod
    def of(cls, signs: npt.ArrayLike, value: npt.ArrayLike, size: npt.ArrayLike) -> "SignedSum":
        """Sums of independent ratios of independent rows."""
        c, v, n = np.broadcast_arrays(*(np.asarray(x, dtype=np.float64) for x in (signs, value, size)))
        k = v.shape[-1]
        return cls(c, v, n, np.full(v.shape, np.inf), np.full(v.shape, np.nan), np.broadcast_to(np.eye(k), (*v.shape, k)))

    def __getitem__(self, rows: slice) -> "SignedSum":
        return SignedSum(*(getattr(self, each.name)[rows] for each in fields(self)))

    def minus(self, other: "SignedSum") -> "SignedSum":
        """This sum minus that of other patients; rows broadcast."""
        rows = np.broadcast_shapes(self.value.shape[:-1], other.value.shape[:-1])
        sides = self, replace(other, signs=-other.signs)
        k, m = (side.value.shape[-1] for side in sides)
        terms = [
            np.concatenate([np.broadcast_to(getattr(side, each.name), (*rows, side.value.shape[-1])) for side in sides], axis=-1)
            for each in fields(self)[:-1]
        ]
        correlation = np.zeros((*rows, k + m, k + m))
        correlation[..., :k, :k], correlation[..., k:, k:] = self.correlation, other.correlation
        return SignedSum(*[*terms, correlation])

    @property
    def total(self) -> FloatArray:
        """The sums (...,)."""
        total: FloatArray = np.where(self.signs == 0, 0.0, self.signs * self.value).sum(-1)
        return total

    @property
    def deviation(self) -> FloatArray:
        """The standard errors of the ratios (..., k), with one success and one failure added, because an observed 0 or 1 is not certain."""
        shrunk = ratio(self.value * self.size + 1, self.size + 2)
        return np.sqrt(np.maximum(ratio(shrunk * (1 - shrunk), self.size), 0.0))

    @property
    def variance(self) -> FloatArray:
        """The variances of the sums (...,)."""
        sd = self.signs * self.deviation
        variance: FloatArray = np.einsum("...i,...ij,...j->...", sd, self.correlation, sd)
        return variance

    def term_limits(self, level: float | FloatArray) -> tuple[FloatArray, FloatArray]:
        """The limits of each ratio (..., k): Tango's of a change on the same rows, Wilson's of a proportion."""
        size = fewer_clusters(self.size, self.degrees, level)
        low, high = wilson(self.value, size, level)
        change = ~np.isnan(self.either)
        if change.any():
            ends = tango((self.either + self.value) / 2, (self.either - self.value) / 2, size, level)
            low, high = (np.where(change, end, of_proportion) for end, of_proportion in zip(ends, (low, high), strict=True))
        return low, high

    def limits(self, level: float | FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """The sums and their limits (...,), at one level or at one level per sum."""
        low, high = self.term_limits(np.asarray(level, dtype=np.float64)[..., None])
        return combine_limits(self.signs, self.value, low, high, self.correlation)

    def p_values(self) -> FloatArray:
        """One minus the level at which the interval of each sum ends at zero (...,).

        That level is found by regula falsi, halving the value at an end that stays (the Illinois method).

        >>> rows = moments_of(np.repeat([1, 0, 1, 0], [90, 10, 70, 30]), np.ones(200), np.arange(200) // 100, 2, np.arange(200))
        >>> gap = rows.gap({"tpr": 1.0})
        >>> low, high = (float(end[0]) for end in gap.limits(1 - float(gap.p_values()[0]))[1:])
        >>> low < 0.0, abs(high) < 1e-4
        (True, True)
        """
        total = self.total
        z = inner = np.zeros(total.shape)
        outer = np.full(total.shape, FURTHEST)
        limit_inner, limit_outer = np.abs(total), np.full(total.shape, np.nan)
        for step in range(P_VALUE_STEPS + 1):  # few, because the limit is nearly linear in z; the first finds the limit at the outer end
            with np.errstate(invalid="ignore", divide="ignore"):
                z = np.clip(np.nan_to_num(inner + (outer - inner) * limit_inner / (limit_inner - limit_outer)), inner, outer)
            _, below, above = self.limits(level_of(z if step else outer))
            limit = np.where(total > 0, below, -above)  # the limit nearer to zero, positive if the interval excludes zero
            if not step:
                limit_outer = limit
                continue
            excluded = limit > 0
            limit_inner, limit_outer = np.where(excluded, limit, limit_inner / 2), np.where(excluded, limit_outer / 2, limit)
            inner, outer = np.where(excluded, z, inner), np.where(excluded, outer, z)
        return np.where(np.isnan(total), np.nan, np.where(total == 0, 1.0, _erfc(z / sqrt(2))))


def concatenate_sums(sums: Sequence[SignedSum]) -> SignedSum:
    """All rows of several sums in order, for one call to `limits` or `p_values`; shorter sums are padded with terms of sign 0."""
    width = max(each.value.shape[-1] for each in sums)
    padding = {"signs": 0.0, "value": 0.0, "size": 1.0, "degrees": np.inf, "either": np.nan}
    terms = [
        np.concatenate([np.pad(x := getattr(each, name), ((0, 0), (0, width - x.shape[-1])), constant_values=fill) for each in sums])
        for name, fill in padding.items()
    ]
    missing = [width - each.value.shape[-1] for each in sums]
    correlation = np.concatenate([np.pad(each.correlation, ((0, 0), (0, m), (0, m))) for each, m in zip(sums, missing, strict=True)])
    return SignedSum(*[*terms, correlation])


Columns = Mapping[str, Ratio]
DECISION_RATIOS: Columns = {name: RATIOS[name] for name in ("selection_rate", "tpr", "fpr", "ppv", "npv", "accuracy", "jaccard")}
CHANGE_RATIOS: Columns = {  # columns: n0, n1, and positive decisions gained and lost by label: gained0, gained1, lost0, lost1
    "selection": Ratio((0, 0, 1, 1, -1, -1), (1, 1, 0, 0, 0, 0), (0, 0, 1, 1, 1, 1)),
    "tpr": Ratio((0, 0, 0, 1, 0, -1), (0, 1, 0, 0, 0, 0), (0, 0, 0, 1, 0, 1)),
    "fpr": Ratio((0, 0, 1, 0, -1, 0), (1, 0, 0, 0, 0, 0), (0, 0, 1, 0, 1, 0)),
    "accuracy": Ratio((0, 0, -1, 1, 1, -1), (1, 1, 0, 0, 0, 0), (0, 0, 1, 1, 1, 1)),
    "true": Ratio((0, 0, 0, 1, 0, -1), (1, 1, 0, 0, 0, 0), (0, 0, 0, 1, 0, 1)),  # true positives per row
    "false": Ratio((0, 0, 1, 0, -1, 0), (1, 1, 0, 0, 0, 0), (0, 0, 1, 0, 1, 0)),  # false positives per row
    "corrected": Ratio((0, 0, 0, 1, 1, 0), (1, 1, 0, 0, 0, 0)),  # share of rows that are right now and were wrong before
    "spoiled": Ratio((0, 0, 1, 0, 0, 1), (1, 1, 0, 0, 0, 0)),  # share of rows that are wrong now and were right before
}
BEFORE_AND_AFTER: Columns = {  # columns: n0, n1, and the sums of decisions by label, before and after: s0, s1, s0', s1'
    f"{name}_{when}": Ratio(
        *(side[:2] + ((*side[2:], 0, 0) if when == "before" else (0, 0, *side[2:])) for side in DECISION_RATIOS[name][:2])
    )
    for name in ("ppv", "npv", "jaccard")
    for when in ("before", "after")
}


class RatioEstimates(NamedTuple):
    """A ratio of each group, and what it rests on (groups,)."""

    value: FloatArray  # NaN if the denominator is empty
    size: FloatArray  # effective sample size: rows / design effect, which is at least 1; of a ratio of 0 or 1, a patient counts as one row
    degrees: FloatArray  # of freedom of the variance: effective patients - 1, or infinite if each has one row of the same weight
    either: FloatArray  # the sum of the two ratios that a difference compares; NaN if it is no difference
    rows: FloatArray  # in the denominator
    patients: FloatArray  # in the denominator
    effective: FloatArray  # the effective number of these patients: fewer if some have more rows or larger weights


@dataclass(frozen=True, eq=False)
class Moments:
    """Sums of columns over patients, per group. The moments of disjoint sets of patients can be added.

    >>> moments = moments_of([1, 0, 1], [1, 1, 1], np.array([0, 0, 0]), 1, np.array([0, 0, 1]))  # two rows of one patient, one of another
    >>> rate = moments["tpr"]
    >>> rate.value.round(3).tolist(), rate.patients.tolist(), rate.effective.round(2).tolist()
    ([0.667], [2.0], [1.8])
    """

    ratios: Columns
    total: FloatArray  # (groups, columns): weighted sums
    second: FloatArray  # (groups, columns, columns): sums over patients of the products of their sums
    rows: FloatArray  # (groups, ratios): rows in the denominators, unweighted
    units: FloatArray  # (groups, ratios): patients in the denominators

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any], groups: int) -> "Moments":
        """The moments written by `to_dict`; raises a ValueError if their shapes do not fit the number of groups."""
        columns, ratios = len(next(iter(DECISION_RATIOS.values())).top), len(DECISION_RATIOS)
        shapes = {"total": (groups, columns), "second": (groups, columns, columns), "rows": (groups, ratios), "units": (groups, ratios)}
        arrays = {name: np.array(plain[name], dtype=np.float64) for name in shapes}
        if any(
            arrays[name].shape != shape or not (np.isfinite(arrays[name]) & (arrays[name] >= 0)).all() for name, shape in shapes.items()
        ):
            raise ValueError(f"sums: expected finite sums of {groups} groups")
        return cls(DECISION_RATIOS, **arrays)

    def to_dict(self) -> dict[str, list[Any]]:
        """Plain values for JSON."""
        return {name: array.tolist() for name, array in zip(("total", "second", "rows", "units"), self.arrays(), strict=True)}

    def taken(self, groups: Sequence[int] | IntArray) -> "Moments":
        """The moments of these groups, in this order."""
        return Moments(self.ratios, *(array[list(groups)] for array in self.arrays()))

    def normalised(self) -> "Moments":
        """The moments with sample weights of mean 1, so that they can be added to moments whose weights have another scale."""
        rows, weight = float(self["selection_rate"].rows.sum()), float(self.total[:, :2].sum())
        scale = rows / weight if weight > 0 else 1.0
        return replace(self, total=self.total * scale, second=self.second * scale**2)

    def __add__(self, other: "Moments") -> "Moments":
        if self.ratios != other.ratios:
            raise ValueError("moments of different ratios do not add up")
        return Moments(self.ratios, *(first + second for first, second in zip(self.arrays(), other.arrays(), strict=True)))

    def arrays(self) -> tuple[FloatArray, ...]:
        """The sums, without the names of the ratios."""
        return self.total, self.second, self.rows, self.units

    @cached_property
    def _estimated(self) -> tuple[RatioEstimates, FloatArray]:
        """All ratios (groups, ratios), and their cluster-robust covariances, linearised; NaN if a denominator has one patient.

        The covariances are 0 for a ratio that is the same in all patients.
        """
        ratios = list(self.ratios.values())
        sides = zip(*((each.top, each.bottom, each.either or each.top) for each in ratios), strict=True)
        top, bottom, sum_of_both = (np.array(side, dtype=np.float64) for side in sides)
        is_difference = np.array([each.either is not None for each in ratios])
        tops, bottoms = self.total @ top.T, self.total @ bottom.T
        value = ratio(np.minimum(np.maximum(tops, np.where(is_difference, -bottoms, 0.0)), bottoms), bottoms)
        either = ratio(np.clip(self.total @ sum_of_both.T, 0.0, bottoms), bottoms)
        whole = kish(bottoms, np.einsum("kc,gcd,kd->gk", bottom, self.second, bottom))
        effective = np.where(whole < self.units * (1 - 1e-9), whole, self.units)  # all patients, unless their rows or weights are unequal
        unequal, one = effective < self.units, np.ones_like(effective)

        slope = ratio(top - value[..., None] * bottom, bottoms[..., None])  # (groups, ratios, columns)
        terms = ((np.abs(slope) @ self.second) * np.abs(slope)).sum(-1)
        covariances = slope @ self.second @ slope.swapaxes(-1, -2)
        varies = ~(np.diagonal(covariances, axis1=-2, axis2=-1) <= VARIANCE_ROUNDING * terms)
        finite = ratio(effective, np.maximum(effective - 1, 0.0))  # finite-sample factors; NaN for one patient
        if unequal.any():
            third = np.fmin(ratio(2 - ratio(effective, self.units), effective), ratio(one, np.sqrt(effective)))
            finite = np.where(unequal, ratio(one, 1 + ratio(one, effective) - 2 * third), finite)
        factor = np.where(varies, np.sqrt(finite), finite * 0.0)
        covariances = covariances * factor[..., None] * factor[..., None, :]

        variance = np.nan_to_num(np.diagonal(covariances, axis1=-2, axis2=-1))
        unclustered = np.nan_to_num(ratio(np.nan_to_num(either - value**2), np.maximum(self.rows - 1, 0.0)))
        spread = (unclustered > 0) & (variance > 0)
        effect = np.maximum(np.divide(variance, unclustered, out=np.ones_like(variance), where=spread), 1.0)
        size = np.where(spread, self.rows / effect, np.minimum(whole, self.rows))
        single = self.rows <= self.units + 1e-9  # one row per patient
        size = np.where(single & unequal, np.minimum(size, effective), size)
        degrees = np.where(single & ~unequal, np.inf, np.maximum(effective - 1, 1.0))
        return RatioEstimates(value, size, degrees, np.where(is_difference, either, np.nan), self.rows, self.units, effective), covariances

    def __getitem__(self, name: str) -> RatioEstimates:
        """A ratio of each group."""
        place = list(self.ratios).index(name)
        return RatioEstimates(*(each[:, place] for each in self._estimated[0]))

    def covariance(self, names: Sequence[str]) -> FloatArray:
        """The cluster-robust covariances of ratios (groups, names, names), linearised; NaN if a denominator has one patient."""
        places = [list(self.ratios).index(name) for name in names]
        covariances: FloatArray = self._estimated[1][:, places][:, :, places]
        return covariances

    def signed(self, coefficients: Mapping[str, float]) -> SignedSum:
        """A signed sum of ratios of each group (groups,), with the correlations of the ratios; 0 if one of them has no variance."""
        names = list(coefficients)
        covariance = self.covariance(names)
        sd = np.sqrt(np.maximum(np.diagonal(covariance, axis1=-2, axis2=-1), 0.0))
        correlation = np.clip(np.nan_to_num(ratio(covariance, np.nan_to_num(sd[..., None] * sd[..., None, :]))), -1.0, 1.0)
        correlation = np.where(np.eye(len(names), dtype=bool), 1.0, correlation)
        places = [list(self.ratios).index(name) for name in names]
        signs = np.tile([float(c) for c in coefficients.values()], (len(self.total), 1))
        return SignedSum(*[signs, *(each[:, places] for each in self._estimated[0][:4]), correlation])

    def gap(self, coefficients: Mapping[str, float]) -> SignedSum:
        """A signed sum of ratios of every group but the first, minus that of the first (groups - 1,).

        Groups are treated as independent. If patients have rows in several groups, gaps vary less than that and the interval is
        conservative.
        """
        signed = self.signed(coefficients)
        return signed[1:].minus(signed[:1])

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
        sd = np.sqrt(np.where(variance > VARIANCE_ROUNDING * (terms[:, 1:] + terms[:, :1]).ravel(), variance, 0.0))
        correlation = np.clip(np.nan_to_num(ratio(flat, sd[:, None] * sd)), -1.0, 1.0)
        np.fill_diagonal(correlation, 1.0)
        return correlation


def moments_of(
    f: npt.ArrayLike, y: npt.ArrayLike, codes: IntArray, groups: int, units: IntArray, weight: npt.ArrayLike | None = None
) -> Moments:
    """The moments of decisions f, by group and patient. Rows without a group (code -1) are left out."""
    return sum_columns(DECISION_RATIOS, _rows_by_label(y, f), Clusters.of(codes, groups, units), weight)


def moments_of_scores(scores: Scores, f: FloatArray, attribute: Attribute | None = None) -> Moments:
    """The moments of decisions f on the rows of scores, by the groups of an attribute (or of their only attribute)."""
    by = scores.attribute if attribute is None else attribute
    return moments_of(f, scores.y, by.codes, len(by.levels), units_of(scores.patients, len(scores)), scores.weight)


def moments_of_change(
    before: npt.ArrayLike,
    after: npt.ArrayLike,
    y: npt.ArrayLike,
    clusters: Clusters,
    weight: npt.ArrayLike | None = None,
    ratios: Columns = CHANGE_RATIOS,
) -> Moments:
    """The moments of positive decisions gained and lost on the same rows; their ratios are the changes of rates.

    With the ratios of `BOTH`, they are those of the predictive values and F1 (as `jaccard`) before and after, which are correlated. If no
    decision changed, decisions on other patients still might: the interval of ten unchanged decisions has a positive width.

    >>> ones = np.ones(10)
    >>> change = moments_of_change(ones, ones, ones, Clusters.of(np.zeros(10, int), 1, np.arange(10)))
    >>> [round(float(x[0]), 2) for x in change.signed({"tpr": 1.0}).limits(0.95)]
    [0.0, -0.28, 0.28]
    """
    first, second = np.asarray(before, dtype=np.float64), np.asarray(after, dtype=np.float64)
    columns = (first, second) if ratios is BEFORE_AND_AFTER else (np.maximum(second - first, 0.0), np.maximum(first - second, 0.0))
    return sum_columns(ratios, _rows_by_label(y, *columns), clusters, weight)


def _rows_by_label(y: npt.ArrayLike, *values: npt.ArrayLike) -> list[npt.NDArray[Any]]:
    """The rows of each label, and each of the values in these rows."""
    label = np.asarray(y, dtype=np.int64)
    return [label == 0, label == 1, *(np.where(label == k, np.asarray(each, dtype=np.float64), 0.0) for each in values for k in (0, 1))]


def sum_columns(ratios: Columns, columns: Sequence[npt.NDArray[Any]], clusters: Clusters, weight: npt.ArrayLike | None) -> Moments:
    """The moments of row-wise columns, summed by group and patient."""
    rows = [np.asarray(column, dtype=np.float64)[clusters.rows] for column in columns]
    by_patient = [clusters.by_patient(column) for column in rows]
    weighted = by_patient
    if weight is not None:
        w = np.asarray(weight, dtype=np.float64)[clusters.rows]
        weighted = [clusters.by_patient(column * w) for column in rows]
    group, groups, width = clusters.group, clusters.groups, len(columns)
    total, second = np.zeros((groups, width)), np.zeros((groups, width, width))
    for a in range(width):
        total[:, a] = np.bincount(group, weighted[a], groups)
        for b in range(a + 1):
            second[:, a, b] = second[:, b, a] = np.bincount(group, weighted[a] * weighted[b], groups)
    size, patients = np.zeros((groups, len(ratios))), np.zeros((groups, len(ratios)))
    for k, each in enumerate(ratios.values()):
        in_denominator = np.sum([c * column for c, column in zip(each.bottom, by_patient, strict=True) if c], axis=0)
        size[:, k] = np.bincount(group, in_denominator, groups)
        patients[:, k] = np.bincount(group, np.minimum(in_denominator, 1.0), groups)
    return Moments(ratios, total, second, size, patients)
