"""Patients as the unit of sampling: sums over the rows of each patient, and bootstrap samples of patients as multiplicities.

Signed sums of estimated ratios with limits and p-values, such as a gap, or the difference between the gaps of two sets of patients.

Sums over the rows of each patient and their second moments, per group. Additive, and sufficient for rates, gaps and their intervals.

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

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import erf, erfc, sqrt
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from equipoise.data import Attribute, Scores, generator, patient_codes
from equipoise.measures.cells import Cells, FloatArray, IntArray, cell_index, grouped, ratio, sums_at
from equipoise.measures.intervals import combined, fewer_clusters, tango, wilson


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


FURTHEST, STEPS = 7.0, 14  # largest number of standard errors in the search for a p-value (2.6e-12), and the steps of that search
_erf, _erfc = (np.vectorize(each, otypes=[np.float64]) for each in (erf, erfc))


def level_of(z: npt.ArrayLike) -> FloatArray:
    """The level of an interval of z standard errors on each side, with z limited to 7.

    >>> level_of([1.96, 3.0]).round(4).tolist()
    [0.95, 0.9973]
    """
    level: FloatArray = _erf(np.clip(np.asarray(z, dtype=np.float64), 1e-6, FURTHEST) / sqrt(2))
    return level


@dataclass(frozen=True, eq=False)
class SignedSum:
    """Signed sums of k ratios, one per row. `a.minus(b)` is the difference between sums that share no patients.

    >>> rates = SignedSum.of([[1.0], [1.0]], [[0.9], [0.7]], [[100.0], [100.0]])
    >>> gap = rates[1:].minus(rates[:1])
    >>> [float(end[0].round(3)) for end in gap.limits(0.95)], float(gap.p_values()[0].round(4))
    ([-0.2, -0.306, -0.09], 0.0005)
    """

    signs: FloatArray  # (..., k)
    value: FloatArray  # (..., k)
    size: FloatArray  # (..., k): effective sample sizes
    degrees: FloatArray  # (..., k): degrees of freedom of the variances between patients
    correlation: FloatArray  # (..., k, k)
    either: FloatArray | None = None  # (..., k): share of decisions gained or lost, if a ratio is a change on the same rows; NaN elsewhere

    @classmethod
    def of(cls, signs: npt.ArrayLike, value: npt.ArrayLike, size: npt.ArrayLike) -> "SignedSum":
        """Sums of independent ratios of independent rows."""
        c, v, n = np.broadcast_arrays(*(np.asarray(x, dtype=np.float64) for x in (signs, value, size)))
        return cls(c, v, n, np.full(v.shape, np.inf), np.broadcast_to(np.eye(v.shape[-1]), (*v.shape, v.shape[-1])))

    def __getitem__(self, rows: slice) -> "SignedSum":
        either = None if self.either is None else self.either[rows]
        return SignedSum(self.signs[rows], self.value[rows], self.size[rows], self.degrees[rows], self.correlation[rows], either)

    def minus(self, other: "SignedSum") -> "SignedSum":
        """This sum minus that of other patients; rows broadcast."""
        rows = np.broadcast_shapes(self.value.shape[:-1], other.value.shape[:-1])

        def both(first: FloatArray, second: FloatArray) -> FloatArray:
            return np.concatenate([np.broadcast_to(x, (*rows, x.shape[-1])) for x in (first, second)], axis=-1)

        k, m = self.value.shape[-1], other.value.shape[-1]
        correlation = np.zeros((*rows, k + m, k + m))
        correlation[..., :k, :k], correlation[..., k:, k:] = self.correlation, other.correlation
        either = None if self.either is None and other.either is None else both(self._either(), other._either())
        signs, value = both(self.signs, -other.signs), both(self.value, other.value)
        return SignedSum(signs, value, both(self.size, other.size), both(self.degrees, other.degrees), correlation, either)

    def _either(self) -> FloatArray:
        return np.full(self.value.shape, np.nan) if self.either is None else self.either

    @property
    def total(self) -> FloatArray:
        """The sums (...,)."""
        total: FloatArray = np.where(self.signs == 0, 0.0, self.signs * self.value).sum(-1)
        return total

    @property
    def variance(self) -> FloatArray:
        """The variances of the sums (...,), with one success and one failure added, because an observed 0 or 1 is not certain."""
        shrunk = ratio(self.value * self.size + 1, self.size + 2)
        sd = self.signs * np.sqrt(np.maximum(ratio(shrunk * (1 - shrunk), self.size), 0.0))
        variance: FloatArray = np.einsum("...i,...ij,...j->...", sd, self.correlation, sd)
        return variance

    def limits(self, level: float | FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """The sums and their limits (...,), at one level or at one level per sum."""
        levels: float | FloatArray = level if isinstance(level, float) else np.asarray(level, dtype=np.float64)[..., None]
        sizes = fewer_clusters(self.size, self.degrees, levels)
        low, high = self._term_limits(sizes, levels)
        return combined(self.signs, self.value, low, high, self.correlation)

    def _term_limits(self, sizes: FloatArray, levels: float | FloatArray) -> tuple[FloatArray, FloatArray]:
        """The limits of each ratio (..., k): Tango's of a change on the same rows, Wilson's of a proportion."""
        if self.either is None:
            return wilson(self.value, sizes, levels)
        low, high = tango((self.either + self.value) / 2, (self.either - self.value) / 2, sizes, levels)
        proportion = np.isnan(self.either) & ~np.isnan(self.value)
        if proportion.any():
            ends = wilson(np.where(proportion, self.value, np.nan), sizes, levels)
            low, high = (np.where(proportion, end, change) for end, change in zip(ends, (low, high), strict=True))
        return low, high

    def p_values(self) -> FloatArray:
        """One minus the level at which the interval of each sum ends at zero (...,).

        That level is found by regula falsi, halving the value at an end that stays (the Illinois method).
        """
        total = self.total

        def nearer_limit(z: FloatArray) -> FloatArray:
            """The limit nearer to zero of the interval of z standard errors, positive if the interval excludes zero."""
            _, below, above = self.limits(level_of(z))
            return np.where(total > 0, below, -above)

        inner, outer = np.zeros(total.shape), np.full(total.shape, FURTHEST)
        limit_inner, limit_outer = np.abs(total), nearer_limit(outer)
        z = inner
        for _ in range(STEPS):  # few, because the limit is nearly linear in z
            with np.errstate(invalid="ignore", divide="ignore"):
                z = np.clip(np.nan_to_num(inner + (outer - inner) * limit_inner / (limit_inner - limit_outer)), inner, outer)
            limit = nearer_limit(z)
            excluded = limit > 0
            limit_inner, limit_outer = np.where(excluded, limit, limit_inner / 2), np.where(excluded, limit_outer / 2, limit)
            inner, outer = np.where(excluded, z, inner), np.where(excluded, outer, z)
        return np.where(np.isnan(total), np.nan, np.where(total == 0, 1.0, _erfc(z / sqrt(2))))


def concatenate_sums(sums: Sequence[SignedSum]) -> SignedSum:
    """All rows of several sums in order, for one call to `limits` or `p_values`; shorter sums are padded with terms of sign 0."""
    width = max(each.value.shape[-1] for each in sums)

    def padded(values: FloatArray, fill: float) -> FloatArray:
        return np.pad(values, ((0, 0), (0, width - values.shape[-1])), constant_values=fill)

    correlation = np.zeros((sum(len(each.value) for each in sums), width, width))
    start = 0
    for each in sums:
        k = each.value.shape[-1]
        correlation[start : (start := start + len(each.value)), :k, :k] = each.correlation
    fills = {"signs": 0.0, "value": 0.0, "size": 1.0, "degrees": np.inf}
    terms = {name: np.concatenate([padded(getattr(each, name), fill) for each in sums]) for name, fill in fills.items()}
    changes = any(each.either is not None for each in sums)
    either = np.concatenate([padded(each._either(), 0.0) for each in sums]) if changes else None
    return SignedSum(**terms, correlation=correlation, either=either)


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
