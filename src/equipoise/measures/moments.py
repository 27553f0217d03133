"""Patients as the unit of sampling: sums over the rows of each patient, and what follows from them: rates, gaps, limits and p-values.

A rate is a ratio of two sums over patients, R = sum a / sum b, so its variance between patients follows from e = a - R b and from the share
of the rows that each patient has, h = b / sum b. A patient with a large share pulls the rate towards its own, which makes e too small:

    V = (G - 1) / G * sum (e / (1 - h))^2 / (sum b)^2          CR3, G patients (Bell and McCaffrey 2002)

The sum follows from sum e^2, sum e^2 h and sum e^2 h^2, exactly if the shares are equal or if one patient has most of a rate's rows, and so
from power sums of a and b that add up over disjoint sets of patients. If few patients have most rows, V rests on these few. Its degrees of
freedom are Satterthwaite's under a common correlation rho of the rows of a patient:

    rho = (sum e^2 / (R (1 - R)) - sum b) / sum b (b - 1), between 0 and 1        v = h^2 (rho + (1 - rho) / b)
    degrees = (sum v)^2 / sum v^2

The effective sample size is the number of independent rows that would estimate the rate as precisely. With one row per patient and unequal
weights, it is the effective number of patients at most (see `kish`). If the rate is the same in all patients, as a rate of 0 or 1 is, V is
0 up to rounding errors, which depend on the order of the rows, and counts as 0.

A patient with rows in a group and in the reference has one influence on the gap between them: the covariance of both rates is subtracted.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from math import erf, erfc, sqrt
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from equipoise.data import Attribute, FloatArray, IntArray, Rows, generator, patient_codes
from equipoise.measures.cells import distinct_keys, kish, ratio, sums_at
from equipoise.measures.intervals import Ends, combine_limits, fewer_clusters, quotient, tango, wilson
from equipoise.measures.measure_table import ESTIMATED_RATES, RATIOS, Ratio

BLOCK_ELEMENTS = 4_000_000  # elements of one block of multiplicities: memory is O(block), whatever the number of draws
FURTHEST, P_VALUE_STEPS = 7.0, 14  # largest number of standard errors in the search for a p-value (2.6e-12), and the steps of that search
LEAST_REST = 1e-3  # share of the rows of all other patients: a patient with nearly all rows counts as having no more than the rest
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
    unit: IntArray | None = None  # (clusters,) the patient of each cluster; None if every row is its own cluster

    @classmethod
    def of(cls, codes: IntArray, groups: int, units: IntArray) -> "Clusters":
        """The clusters of rows with these groups (-1: none) and patients (codes 0 .. P-1)."""
        rows = np.flatnonzero(codes >= 0)
        code = codes[rows]
        width = int(units.max(initial=0)) + 1
        if width == len(units):
            return cls(rows, code, groups, None, code)
        pairs, place = distinct_keys(code * width + units[rows], groups * width)
        return cls(rows, code, groups, place, *np.divmod(pairs, width))

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
        """The small-sample factor (P - 1) / P of a variance between the patients of each group (groups,); NaN for one patient."""
        patients = self.patients()
        return np.where(patients > 1, ratio(patients - 1, patients), np.nan)

    def spread(self, contributions: FloatArray, share: FloatArray) -> FloatArray:
        """The variance of the sum of the contributions of the patients of each group (CR3), with the share of each in its group."""
        return sums_at(self.group, (contributions / np.maximum(1 - share, LEAST_REST)) ** 2, self.groups) * self.finite

    def degrees(self, contributions: FloatArray, deviations: FloatArray) -> FloatArray:
        """Satterthwaite's degrees of freedom of `spread` (groups,), under a common correlation of the rows of a patient.

        `contributions` are those of patients, and `deviations` the standard deviations of the contributions of rows, signed. Infinite if no
        patient has several rows and all deviations are equal.

        >>> four = Clusters.of(np.zeros(8, int), 1, np.arange(8) // 2)
        >>> four.degrees(np.array([2.0, -2.0, 2.0, -2.0]), np.ones(8)).tolist()
        [4.0]
        """
        apart, joint = self.by_patient(deviations**2), self.by_patient(deviations) ** 2
        return satterthwaite(
            *(sums_at(self.group, each, self.groups) for each in (contributions**2, apart, joint, apart**2, apart * joint, joint**2))
        )

    def mean(self, values: FloatArray, weight: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """The weighted mean of row values in each group, its variance between patients and the degrees of freedom of that (groups,)."""
        total = self.sum(weight)
        value = ratio(self.sum(weight * values), total)
        residual, mass = weight * (values - value[self.code]), self.by_patient(weight)
        own = self.by_patient(residual)
        deviation = np.sqrt(np.nan_to_num(ratio(self.sum(weight * (values - value[self.code]) ** 2), total)))
        variance = ratio(self.spread(own, mass / total[self.group]), total**2)
        return value, variance, self.degrees(own, weight * deviation[self.code])


def satterthwaite(
    observed: FloatArray, apart: FloatArray, joint: FloatArray, apart2: FloatArray, both: FloatArray, joint2: FloatArray
) -> FloatArray:
    """Degrees of freedom of a sum of squares over patients, under a common correlation of the rows of a patient.

    `apart` and `joint` are the expected sums of squares if rows of a patient are independent, or perfectly correlated; the correlation is
    the one at which the expected sum is the one `observed`. The others are sums over patients of squares and products of their parts.

    >>> satterthwaite(*(np.array(x) for x in (8.0, 4.0, 8.0, 4.0, 8.0, 16.0))).tolist()  # four patients with two equal rows each
    4.0
    """
    repeated = joint > apart * (1 + 1e-9)
    rho = np.clip(np.where(repeated, ratio(observed - apart, np.where(repeated, joint - apart, 1.0)), 0.0), 0.0, 1.0)
    rho = np.where(observed > 0, rho, 1.0)  # if nothing varies, a patient counts as one row
    rest = 1 - rho
    degrees = ratio((rho * joint + rest * apart) ** 2, rho**2 * joint2 + 2 * rho * rest * both + rest**2 * apart2)
    return np.maximum(np.nan_to_num(degrees, nan=1.0), 1.0)


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

    - `draws`: (draws, ...).
    - `level`: of the interval.
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

    def minus(self, other: "SignedSum", between: FloatArray | None = None) -> "SignedSum":
        """This sum minus another; rows broadcast. `between` are the correlations of their ratios (..., k, m) if they share patients."""
        rows = np.broadcast_shapes(self.value.shape[:-1], other.value.shape[:-1])
        sides = self, replace(other, signs=-other.signs)
        k, m = (side.value.shape[-1] for side in sides)
        terms = [
            np.concatenate([np.broadcast_to(getattr(side, each.name), (*rows, side.value.shape[-1])) for side in sides], axis=-1)
            for each in fields(self)[:-1]
        ]
        correlation = np.zeros((*rows, k + m, k + m))
        correlation[..., :k, :k], correlation[..., k:, k:] = self.correlation, other.correlation
        if between is not None:
            correlation[..., :k, k:], correlation[..., k:, :k] = between, np.swapaxes(between, -1, -2)
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

    def quotient(self, level: float | FloatArray) -> Ends:
        """The first ratio of each sum divided by the second, of which it is the difference, with limits (...,)."""
        low, high = self.term_limits(np.asarray(level, dtype=np.float64)[..., None])
        first, second = ((self.value[..., k], low[..., k], high[..., k]) for k in (0, 1))
        return quotient(first, second, self.correlation[..., 0, 1])

    def p_values(self) -> FloatArray:
        """One minus the level at which the interval of each sum ends at zero (...,).

        >>> rows = moments_of(np.repeat([1, 0, 1, 0], [90, 10, 70, 30]), np.ones(200), np.arange(200) // 100, 2, np.arange(200))
        >>> gap = rows.gap({"tpr": 1.0})
        >>> low, high = (float(end[0]) for end in gap.limits(1 - float(gap.p_values()[0]))[1:])
        >>> low < 0.0, abs(high) < 1e-4
        (True, True)
        """
        p: FloatArray = _erfc(self.z_values() / sqrt(2))
        return p

    def z_values(self) -> FloatArray:
        """The number of standard errors at which the interval of each sum ends at zero (...,), at most `FURTHEST`.

        It is found by regula falsi, halving the value at an end that stays (the Illinois method).
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
        return np.where(np.isnan(total), np.nan, np.where(total == 0, 0.0, z))


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
DECISION_RATIOS: Columns = {name: RATIOS[name] for name in (*ESTIMATED_RATES, "accuracy", "jaccard")}
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


POWERS = ((2, 1), (1, 2), (0, 3), (2, 2), (1, 3), (0, 4))  # of a patient's numerator and denominator
SUM_SHAPES = {  # of one group, in JSON and in histories
    "total": (4,),
    "second": (4, 4),
    "rows": (len(DECISION_RATIOS),),
    "units": (len(DECISION_RATIOS),),
    "powers": (len(DECISION_RATIOS), len(POWERS)),
    "shared": (4, 4),
}


class RatioEstimates(NamedTuple):
    """A ratio of each group, and what it rests on (groups,)."""

    value: FloatArray  # NaN if the denominator is empty
    size: FloatArray  # effective sample size: rows / design effect, which is at least 1; of a ratio of 0 or 1, a patient counts as one row
    degrees: FloatArray  # of freedom of the variance (Satterthwaite); infinite if each patient has one row of the same weight
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
    powers: FloatArray  # (groups, ratios, 6): sums over patients of the POWERS of a and b, their parts of numerator and denominator
    shared: FloatArray  # (groups, columns, columns): sums over patients of the products of their sums in the group and in the reference

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any], groups: int) -> "Moments":
        """The moments written by `to_dict`; raises a ValueError if their shapes do not fit the number of groups."""
        arrays = {name: np.array(plain[name], dtype=np.float64) for name in SUM_SHAPES}
        for name, shape in SUM_SHAPES.items():
            if arrays[name].shape != (groups, *shape) or not (np.isfinite(arrays[name]) & (arrays[name] >= 0)).all():
                raise ValueError(f"sums: expected finite sums of {groups} groups")
        return cls(DECISION_RATIOS, **arrays)

    def to_dict(self) -> dict[str, list[Any]]:
        """Plain values for JSON."""
        return {name: array.tolist() for name, array in zip(SUM_SHAPES, self.arrays(), strict=True)}

    def taken(self, groups: Sequence[int] | IntArray) -> "Moments":
        """The moments of these groups, in this order."""
        return Moments(self.ratios, *(array[list(groups)] for array in self.arrays()))

    def normalised(self) -> "Moments":
        """The moments with sample weights of mean 1, so that they can be added to moments whose weights have another scale."""
        rows, weight = float(self["selection_rate"].rows.sum()), float(self.total[:, :2].sum())
        scale = rows / weight if weight > 0 else 1.0
        powers = self.powers * scale ** np.array([each[0] + each[1] for each in POWERS])
        return replace(self, total=self.total * scale, second=self.second * scale**2, powers=powers, shared=self.shared * scale**2)

    def __add__(self, other: "Moments") -> "Moments":
        if self.ratios != other.ratios:
            raise ValueError("moments of different ratios do not add up")
        return Moments(self.ratios, *(first + second for first, second in zip(self.arrays(), other.arrays(), strict=True)))

    def arrays(self) -> tuple[FloatArray, ...]:
        """The sums, without the names of the ratios."""
        return self.total, self.second, self.rows, self.units, self.powers, self.shared

    @cached_property
    def _estimated(self) -> tuple[RatioEstimates, FloatArray, FloatArray]:
        """All ratios (groups, ratios), their cluster-robust covariances, and their slopes by column, scaled like the covariances.

        Covariances are NaN if a denominator has one patient, and 0 for a ratio that is the same in all patients.
        """
        ratios = list(self.ratios.values())
        sides = zip(*((each.top, each.bottom, each.either or each.top) for each in ratios), strict=True)
        top, bottom, sum_of_both = (np.array(side, dtype=np.float64) for side in sides)
        is_difference = np.array([each.either is not None for each in ratios])
        tops, bottoms = self.total @ top.T, self.total @ bottom.T
        value = ratio(np.minimum(np.maximum(tops, np.where(is_difference, -bottoms, 0.0)), bottoms), bottoms)
        either = ratio(np.clip(self.total @ sum_of_both.T, 0.0, bottoms), bottoms)
        b2 = np.einsum("kc,gcd,kd->gk", bottom, self.second, bottom)
        whole = kish(bottoms, b2)
        effective = np.where(whole < self.units * (1 - 1e-9), whole, self.units)  # all patients, unless their rows or weights are unequal
        unequal, single = effective < self.units, self.rows <= self.units + 1e-9  # one row per patient

        slope = ratio(top - value[..., None] * bottom, bottoms[..., None])  # (groups, ratios, columns)
        terms = ((np.abs(slope) @ self.second) * np.abs(slope)).sum(-1)
        covariances = slope @ self.second @ slope.swapaxes(-1, -2)
        squares = np.diagonal(covariances, axis1=-2, axis2=-1)  # sum e^2 / (sum b)^2
        varies = ~(squares <= VARIANCE_ROUNDING * terms)
        aab, abb, b3, aabb, ab3, b4 = np.moveaxis(self.powers, -1, 0)
        by_share = np.clip(ratio(aab - 2 * value * abb + value**2 * b3, bottoms**3), 0.0, squares)  # sum e^2 h / (sum b)^2
        by_square = np.clip(ratio(aabb - 2 * value * ab3 + value**2 * b4, bottoms**4), 0.0, by_share)
        h = np.minimum(np.nan_to_num(ratio(by_square, by_share)), 1 - LEAST_REST)
        # sum e^2 / (1 - h)^2 = sum e^2 + 2 sum e^2 h + sum e^2 h^2 (3 - 2 h) / (1 - h)^2, the last with the mean share h
        raised = 1 + ratio(2 * by_share + by_square * (3 - 2 * h) / (1 - h) ** 2, np.where(varies, squares, np.nan))
        finite = np.where(self.units > 1, ratio(self.units - 1, self.units), np.nan)
        factor = np.where(varies, np.sqrt(raised * finite), finite * 0.0)
        covariances, slope = covariances * factor[..., None] * factor[..., None, :], slope * factor[..., None]

        variance = np.nan_to_num(np.diagonal(covariances, axis1=-2, axis2=-1))
        of_row = np.nan_to_num(either - value**2)  # the variance of a row
        unclustered = np.nan_to_num(ratio(of_row, np.maximum(self.rows - 1, 0.0)))
        spread = (unclustered > 0) & (variance > 0)
        effect = np.maximum(np.divide(variance, unclustered, out=np.ones_like(variance), where=spread), 1.0)
        size = np.where(spread, self.rows / effect, np.minimum(whole, self.rows))
        size = np.where(single & unequal, np.minimum(size, effective), size)
        mean = np.nan_to_num(ratio(bottoms, self.rows))  # the weight of a row
        observed = np.where(varies, np.nan_to_num(ratio(squares * bottoms**2, of_row)), 0.0)
        apart = ((b2, b4, b4), (mean * bottoms, mean**2 * b2, mean * b3))  # with one row per patient, and with several
        first, second, product = (np.where(single, one, several) for one, several in zip(*apart, strict=True))
        degrees = satterthwaite(observed, first, b2, second, product, b4)
        degrees = np.where(single & ~unequal, np.inf, degrees)
        either = np.where(is_difference, either, np.nan)
        return RatioEstimates(value, size, degrees, either, self.rows, self.units, effective), covariances, slope

    def __getitem__(self, name: str) -> RatioEstimates:
        """A ratio of each group."""
        place = list(self.ratios).index(name)
        return RatioEstimates(*(each[:, place] for each in self._estimated[0]))

    def covariance(self, names: Sequence[str]) -> FloatArray:
        """The cluster-robust covariances of ratios (groups, names, names), linearised; NaN if a denominator has one patient."""
        places = [list(self.ratios).index(name) for name in names]
        covariances: FloatArray = self._estimated[1][:, places][:, :, places]
        return covariances

    def standard_error(self, coefficients: Mapping[str, float]) -> FloatArray:
        """The cluster-robust standard error of a signed sum of ratios of each group (groups,); 0 if it is the same in all patients."""
        signs = np.array([*coefficients.values()])
        variance: FloatArray = np.einsum("k,gkl,l->g", signs, self.covariance([*coefficients]), signs)
        return np.sqrt(np.maximum(variance, 0.0))

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
        """A signed sum of ratios of every group but the first, minus that of the first (groups - 1,), with one influence per patient."""
        signed = self.signed(coefficients)
        between = None
        if self.shared[1:].any():
            names = list(coefficients)
            covariance, sd = self._with_reference(names), np.sqrt(np.diagonal(self.covariance(names), axis1=-2, axis2=-1))
            between = np.clip(np.nan_to_num(ratio(covariance, np.nan_to_num(sd[1:, :, None] * sd[0]))), -1.0, 1.0)
        return signed[1:].minus(signed[:1], between)

    def _with_reference(self, names: Sequence[str]) -> FloatArray:
        """The covariances of ratios of each group but the first with those of the first (groups - 1, names, names)."""
        slope = np.nan_to_num(self._estimated[2][:, [list(self.ratios).index(name) for name in names]])
        covariances: FloatArray = slope[1:] @ self.shared[1:] @ slope[0].T
        return covariances

    def gap_correlation(self, gaps: Mapping[str, Mapping[str, float]]) -> FloatArray:
        """The correlations of gaps, flattened measure by measure, group by group ((measures * (groups - 1)) squared).

        Gaps are correlated because the groups of an attribute share the reference and measures share rows. Patients with rows in two groups
        other than the reference are left out of it.
        """
        names = tuple(dict.fromkeys(name for coefficients in gaps.values() for name in coefficients))
        signs = np.array([[coefficients.get(name, 0.0) for name in names] for coefficients in gaps.values()])
        of_ratios = np.nan_to_num(self.covariance(names))
        covariance = np.einsum("ak,gkl,bl->gab", signs, of_ratios, signs)  # (groups, a, b)
        others = len(covariance) - 1
        whole = np.einsum("gab,gh->agbh", covariance[1:], np.eye(others)) + covariance[0][:, None, :, None]
        if self.shared[1:].any():
            joint = np.einsum("ak,gkl,bl->gab", signs, self._with_reference(names), signs)
            whole = whole - joint.transpose(1, 0, 2)[..., None] - np.einsum("hba->abh", joint)[:, None]
        flat = whole.reshape(len(gaps) * others, len(gaps) * others)
        terms = np.einsum("ak,gkl,al->ag", np.abs(signs), np.abs(of_ratios), np.abs(signs))  # (a, groups)
        variance = np.diag(flat)
        sd = np.sqrt(np.where(variance > VARIANCE_ROUNDING * (terms[:, 1:] + terms[:, :1]).ravel(), variance, 0.0))
        correlation = np.clip(np.nan_to_num(ratio(flat, sd[:, None] * sd)), -1.0, 1.0)
        np.fill_diagonal(correlation, 1.0)
        return correlation


def moments_of(
    f: npt.ArrayLike,
    y: npt.ArrayLike,
    codes: IntArray,
    groups: int,
    units: IntArray,
    weight: npt.ArrayLike | None = None,
    names: Sequence[str] = tuple(DECISION_RATIOS),
) -> Moments:
    """The moments of decisions f, by group and patient, for these ratios. Rows without a group (code -1) are left out.

    - `f`, `y`: decisions in [0, 1] and labels (n,).
    - `codes`, `groups`: the group of each row, and their number.
    - `units`: the patient of each row, as codes (see `units_of`).
    - `weight`: sample weights.
    - `names`: of the ratios, by default all.
    """
    ratios = {name: DECISION_RATIOS[name] for name in names}
    return sum_columns(ratios, _rows_by_label(y, f), Clusters.of(codes, groups, units), weight)


def moments_of_scores(scores: Rows, f: FloatArray, attribute: Attribute | None = None) -> Moments:
    """The moments of decisions f on the rows of scores or a cohort, by the groups of an attribute (or of their only attribute)."""
    by = scores.attribute if attribute is None else attribute
    return moments_of(f, scores.y, by.codes, len(by.levels), units_of(scores.patients, len(scores)), scores.weight)


def moments_of_change(
    before: npt.ArrayLike,
    after: npt.ArrayLike,
    y: npt.ArrayLike,
    clusters: Clusters,
    weight: npt.ArrayLike | None = None,
    names: Sequence[str] = tuple(CHANGE_RATIOS),
) -> Moments:
    """The moments of positive decisions gained and lost on the same rows; their ratios are the changes of rates.

    `names` are some of these changes; or of the predictive values and the Jaccard index before and after, which are correlated. If no
    decision changed, decisions on other patients still might: the interval of ten unchanged decisions has a positive width.

    - `before`, `after`: decisions in [0, 1] (n,).
    - `y`: labels (n,).
    - `clusters`: the rows by group and patient.
    - `weight`: sample weights.

    >>> ones = np.ones(10)
    >>> change = moments_of_change(ones, ones, ones, Clusters.of(np.zeros(10, int), 1, np.arange(10)))
    >>> [round(float(x[0]), 2) for x in change.signed({"tpr": 1.0}).limits(0.95)]
    [0.0, -0.28, 0.28]
    """
    first, second = np.asarray(before, dtype=np.float64), np.asarray(after, dtype=np.float64)
    known, columns = CHANGE_RATIOS, (np.maximum(second - first, 0.0), np.maximum(first - second, 0.0))
    if names[0] in BEFORE_AND_AFTER:
        known, columns = BEFORE_AND_AFTER, (first, second)
    return sum_columns({name: known[name] for name in names}, _rows_by_label(y, *columns), clusters, weight)


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
    size, patients, powers = *np.zeros((2, groups, len(ratios))), np.zeros((groups, len(ratios), len(POWERS)))
    binary = clusters.place is None and weight is None and all(((column == 0) | (column == 1)).all() for column in rows)
    for k, each in enumerate(ratios.values()):
        in_denominator = np.sum([c * column for c, column in zip(each.bottom, by_patient, strict=True) if c], axis=0)
        size[:, k] = np.bincount(group, in_denominator, groups)
        patients[:, k] = np.bincount(group, np.minimum(in_denominator, 1.0), groups)
        if binary:  # every power of 0 and 1 is itself, and a is 0 where b is
            top, bottom = np.array(each.top, dtype=np.float64), np.array(each.bottom, dtype=np.float64)
            squares = np.einsum("c,gcd,d->g", top, second, top)
            powers[:, k] = np.stack([squares, total @ top, total @ bottom] * 2, axis=-1)
            continue
        a, b = (np.sum([c * column for c, column in zip(side, weighted, strict=True) if c], axis=0) for side in each[:2])
        squared = b * b
        for place, values in enumerate((a * a * b, a * squared, b * squared, a * a * squared, a * b * squared, squared * squared)):
            powers[:, k, place] = np.bincount(group, values, groups)
    return Moments(ratios, total, second, size, patients, powers, _products_with_reference(clusters, weighted))


def _products_with_reference(clusters: Clusters, columns: Sequence[FloatArray]) -> FloatArray:
    """The products of patients' sums in a group and in the reference, summed (groups, columns, columns); 0 in the reference itself."""
    products = np.zeros((clusters.groups, len(columns), len(columns)))
    if clusters.unit is None or not len(clusters.unit):
        return products
    reference = int(np.searchsorted(clusters.group, 1))  # clusters are in the order of their groups
    place = np.full(int(clusters.unit.max()) + 1, -1)
    place[clusters.unit[:reference]] = np.arange(reference)
    own = reference + np.flatnonzero(place[clusters.unit[reference:]] >= 0)
    if len(own):
        other, group = place[clusters.unit[own]], clusters.group[own]
        for a, first in enumerate(columns):
            for b, second in enumerate(columns):
                products[:, a, b] = np.bincount(group, first[own] * second[other], clusters.groups)
    return products
