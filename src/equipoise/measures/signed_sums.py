"""Signed sums of estimated ratios with limits and p-values: a gap is one, and so is the difference of two gaps of different patients."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import erf, erfc, sqrt

import numpy as np
import numpy.typing as npt

from equipoise.measures.cells import FloatArray, ratio
from equipoise.measures.intervals import combined, fewer_clusters, tango, wilson

FURTHEST, STEPS = 7.0, 14  # standard errors at which the search for a p-value ends (2.6e-12), and its steps
_erf, _erfc = (np.vectorize(each, otypes=[np.float64]) for each in (erf, erfc))


def level_of(z: npt.ArrayLike) -> FloatArray:
    """The level of an interval of z standard errors on each side; beyond 7 it counts as 7.

    >>> level_of([1.96, 3.0]).round(4).tolist()
    [0.95, 0.9973]
    """
    found: FloatArray = _erf(np.clip(np.asarray(z, dtype=np.float64), 1e-6, FURTHEST) / sqrt(2))
    return found


@dataclass(frozen=True, eq=False)
class SignedSum:
    """Sums of k ratios with signs, one per row: `one.minus(other)` is the difference of two that share no patients.

    >>> two = SignedSum.of([[1.0], [1.0]], [[0.9], [0.7]], [[100.0], [100.0]])
    >>> gap = two[1:].minus(two[:1])
    >>> [float(end[0].round(3)) for end in gap.limits(0.95)], float(gap.p_values()[0].round(4))
    ([-0.2, -0.306, -0.09], 0.0005)
    """

    signs: FloatArray  # (..., k)
    value: FloatArray  # (..., k)
    size: FloatArray  # (..., k): effective sample sizes
    degrees: FloatArray  # (..., k): degrees of freedom of the variances between patients
    correlation: FloatArray  # (..., k, k)
    either: FloatArray | None = None  # (..., k): decisions gained or lost, where the ratios are changes on the same rows

    @classmethod
    def of(cls, signs: npt.ArrayLike, value: npt.ArrayLike, size: npt.ArrayLike) -> "SignedSum":
        """Sums of independent ratios of unrelated rows."""
        c, v, n = np.broadcast_arrays(*(np.asarray(x, dtype=np.float64) for x in (signs, value, size)))
        return cls(c, v, n, np.full(v.shape, np.inf), np.broadcast_to(np.eye(v.shape[-1]), (*v.shape, v.shape[-1])))

    def __getitem__(self, rows: slice) -> "SignedSum":
        either = None if self.either is None else self.either[rows]
        return SignedSum(self.signs[rows], self.value[rows], self.size[rows], self.degrees[rows], self.correlation[rows], either)

    def minus(self, other: "SignedSum") -> "SignedSum":
        """This minus another of other patients; one row of the other may stand for all."""
        rows = np.broadcast_shapes(self.value.shape[:-1], other.value.shape[:-1])

        def both(mine: FloatArray, theirs: FloatArray) -> FloatArray:
            return np.concatenate([np.broadcast_to(x, (*rows, x.shape[-1])) for x in (mine, theirs)], axis=-1)

        k, m = self.value.shape[-1], other.value.shape[-1]
        correlation = np.zeros((*rows, k + m, k + m))
        correlation[..., :k, :k], correlation[..., k:, k:] = self.correlation, other.correlation
        either = None if self.either is None or other.either is None else both(self.either, other.either)
        signs, value = both(self.signs, -other.signs), both(self.value, other.value)
        return SignedSum(signs, value, both(self.size, other.size), both(self.degrees, other.degrees), correlation, either)

    @property
    def total(self) -> FloatArray:
        """The sums (...,)."""
        found: FloatArray = np.where(self.signs == 0, 0.0, self.signs * self.value).sum(-1)
        return found

    @property
    def variance(self) -> FloatArray:
        """The variances of the sums (...,). A proportion of 0 or 1 is no certainty: one more of each is added to what was seen."""
        shrunk = ratio(self.value * self.size + 1, self.size + 2)
        sd = self.signs * np.sqrt(np.maximum(ratio(shrunk * (1 - shrunk), self.size), 0.0))
        found: FloatArray = np.einsum("...i,...ij,...j->...", sd, self.correlation, sd)
        return found

    def limits(self, level: float | FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """The sums and their limits (...,), at one level or at one of each."""
        wide: float | FloatArray = level if isinstance(level, float) else np.asarray(level, dtype=np.float64)[..., None]
        sizes = fewer_clusters(self.size, self.degrees, wide)
        if self.either is None:
            low, high = wilson(self.value, sizes, wide)
        else:
            low, high = tango((self.either + self.value) / 2, (self.either - self.value) / 2, sizes, wide)
        return combined(self.signs, self.value, low, high, self.correlation)

    def p_values(self) -> FloatArray:
        """One minus the level at which the interval of each sum ends at zero (...,)."""
        total = self.total

        def end(z: FloatArray) -> FloatArray:
            """The end of the interval of z standard errors that is closer to zero, positive where zero is outside."""
            _, below, above = self.limits(level_of(z))
            return np.where(total > 0, below, -above)

        return _inverted(total, end)


def stacked(each: Sequence[SignedSum]) -> SignedSum:
    """All rows of several, in order, so that limits and p-values are found for all at once; shorter sums get terms that do not count."""
    width = max(one.value.shape[-1] for one in each)

    def padded(values: FloatArray, fill: float) -> FloatArray:
        return np.pad(values, ((0, 0), (0, width - values.shape[-1])), constant_values=fill)

    correlation = np.zeros((sum(len(one.value) for one in each), width, width))
    start = 0
    for one in each:
        k = one.value.shape[-1]
        correlation[start : (start := start + len(one.value)), :k, :k] = one.correlation
    fills = {"signs": 0.0, "value": 0.0, "size": 1.0, "degrees": np.inf}
    terms = {name: np.concatenate([padded(getattr(one, name), fill) for one in each]) for name, fill in fills.items()}
    eithers = [one.either for one in each if one.either is not None]
    either = np.concatenate([padded(own, 0.0) for own in eithers]) if len(eithers) == len(each) else None
    return SignedSum(**terms, correlation=correlation, either=either)


def _inverted(total: FloatArray, end: Callable[[FloatArray], FloatArray]) -> FloatArray:
    """The p-values at which the ends of intervals reach zero: regula falsi, halving the weight of an end that stays."""
    inner, outer = np.zeros(total.shape), np.full(total.shape, FURTHEST)
    there, beyond = np.abs(total), end(outer)
    z = inner
    for _ in range(STEPS):  # the end is nearly linear in z
        with np.errstate(invalid="ignore", divide="ignore"):
            z = np.clip(np.nan_to_num(inner + (outer - inner) * there / (there - beyond)), inner, outer)
        reached = end(z)
        outside = reached > 0
        there, beyond = np.where(outside, reached, there / 2), np.where(outside, beyond / 2, reached)
        inner, outer = np.where(outside, z, inner), np.where(outside, outer, z)
    found = _erfc(z / sqrt(2))
    return np.where(np.isnan(total), np.nan, np.where(total == 0, 1.0, found))
