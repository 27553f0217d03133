"""Signed sums of estimated ratios with limits and p-values, such as a gap, or the difference between the gaps of two sets of patients."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import erf, erfc, sqrt

import numpy as np
import numpy.typing as npt

from equipoise.measures.cells import FloatArray, ratio
from equipoise.measures.intervals import combined, fewer_clusters, tango, wilson

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
