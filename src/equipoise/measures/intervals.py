"""Confidence intervals that keep their level in small cells and at rates of 0 or 1. All functions work elementwise on arrays.

A percentile bootstrap cannot resample an outcome that never occurred: ten of ten detected gives [1, 1], perfect separation an AUROC of
1 [1, 1]. Score intervals do not have this defect, and for large samples they agree with value ± z standard errors. Each takes an
effective sample size, so that correlated rows of one patient are not counted as independent (see `moments`).

- a proportion: Wilson 1927, with the limits of Brown, Cai and DasGupta 2001 (Stat Sci 16:101) next to 0 and 1
- a signed sum of proportions, such as a gap: square-and-add, Newcombe 1998 (Stat Med 17:873), with correlations as in Zou and Donner 2008
- the difference of two proportions of the same patients: Tango 1998 (Stat Med 17:891)
- AUROC: Newcombe 2006 (Stat Med 25:559), method 5, with the numbers of rows reduced if the observed variance is larger
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import gamma
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt

from equipoise.data import FloatArray
from equipoise.measures.cells import ratio

HALVINGS = 40  # of an interval of length 1, to a width of 1e-12
POISSON_STEPS = 8  # steps at most; five or six give all digits
NEGLIGIBLE = 1e-17  # relative to a sum that it does not change
POINTS_AT_ONCE = 4096  # elements up to which a NumPy call takes about as long as for one
DETECTION_POWER = 0.8  # of the minimum detectable gap
_quantiles = np.vectorize(NormalDist().inv_cdf, otypes=[np.float64])
INSUFFICIENT_DATA = "insufficient data"
GAP_NUMBERS = ("simultaneous_low", "simultaneous_high", "p_value", "p_adjusted", "detectable")
NEAR_END = (2, 3, 50)  # Poisson limits are used for up to 2 events, or up to 3 events in more than 50 patients


@dataclass(frozen=True)
class Estimate:
    """A value with its interval. If the data are insufficient, `value` is NaN and `note` gives the reason."""

    value: float
    low: float
    high: float
    note: str = ""
    group: str = ""
    reference: str = ""
    detectable: float = float("nan")  # minimum gap detectable with 80 % power; NaN if even the largest possible gap is not detectable
    p_value: float = float("nan")  # of a gap: one minus the level at which its interval ends at zero
    p_adjusted: float = float("nan")  # for all comparisons of the audit
    simultaneous_low: float = float("nan")  # limits that hold simultaneously with those of all other gaps of the audit
    simultaneous_high: float = float("nan")
    clear: bool = False  # whether the adjusted p-value makes the gap a finding
    patients: int = 0  # in the smaller of the two groups compared
    few: bool = False  # fewer than 30 patients in one of them; effective patients, if their rows or weights are unequal
    direction: str = "group minus reference"

    @classmethod
    def each(cls, ends: Iterable[FloatArray]) -> "list[Estimate]":
        """The estimates in arrays of values, lower and upper limits (n,)."""
        return [cls(float(value), float(low), float(high)) for value, low, high in zip(*ends, strict=True)]

    @classmethod
    def of_gap(cls, row: Mapping[str, Any], note: str | None = None) -> "Estimate":
        """The estimate in one row of `Audit.gaps`."""
        fields: dict[str, Any] = {name: float(row[name]) for name in ("value", "low", "high", *GAP_NUMBERS)}
        fields |= {"group": str(row["group"]), "reference": str(row["reference"]), "note": str(row["note"]) if note is None else note}
        return cls(**fields, clear=bool(row["clear"]), patients=int(row["patients"]), few=bool(row["few"]))

    def __float__(self) -> float:
        return self.value

    def __str__(self) -> str:
        if np.isnan(self.value):
            return self.note or INSUFFICIENT_DATA
        named = self.direction.replace("group", self.group).replace("reference", self.reference) if self.reference else self.group
        versus, sign = f" ({named})" if self.group else "", "+" if self.group and "minus" in self.direction else ""
        return f"{self.value:{sign}.3f} [{self.low:{sign}.3f}, {self.high:{sign}.3f}]{versus}"

    def to_dict(self) -> dict[str, object]:
        """Plain values for JSON, None for NaN."""
        numbers = {"value": self.value, "low": self.low, "high": self.high}
        if self.group:
            numbers |= {name: getattr(self, name) for name in GAP_NUMBERS}
        plain: dict[str, object] = {k: None if np.isnan(v) else v for k, v in numbers.items()}
        if self.group:
            plain |= {"group": self.group, "reference": self.reference, "direction": self.direction}
            plain |= {"clear": self.clear, "patients": self.patients, "few": self.few}
        return plain | ({"note": self.note} if self.note else {})


@dataclass(frozen=True, eq=False)
class Limits:
    """A measure of each group with its interval (groups,); NaN if `why` (a key of `calibration.REASONS`) is not empty."""

    value: FloatArray
    low: FloatArray
    high: FloatArray
    patients: FloatArray  # that it rests on; of the rarer label, if both labels are needed
    why: tuple[str, ...] = ()

    def where(self, chosen: npt.NDArray[np.bool_], other: "Limits") -> "Limits":
        """These limits in the chosen groups, and the other limits elsewhere."""
        value, low, high, patients = (
            np.where(chosen, getattr(self, name), getattr(other, name)) for name in ("value", "low", "high", "patients")
        )
        return Limits(value, low, high, patients)


Ends = tuple[FloatArray, FloatArray, FloatArray]  # values, lower and upper limits


def quantile(level: float | FloatArray) -> FloatArray:
    """The number of standard errors on each side of a value in an interval of this level, or of each of these levels.

    >>> quantile(0.95).round(2).tolist()
    1.96
    """
    return np.asarray(_quantiles((1 + np.asarray(level, dtype=np.float64)) / 2), dtype=np.float64)


def fewer_clusters(n: npt.ArrayLike, degrees: npt.ArrayLike, level: float | FloatArray) -> FloatArray:
    """The effective sample size n, reduced if its variance was estimated from few clusters (Korn and Graubard 1998).

    >>> fewer_clusters(100.0, [4, np.inf], 0.95).round(1).tolist()
    [49.8, 100.0]
    """
    reduced: FloatArray = np.asarray(n, dtype=np.float64) * (quantile(level) / student(degrees, level)) ** 2
    return reduced


def student(degrees: npt.ArrayLike, level: float | FloatArray) -> FloatArray:
    """`quantile` of Student's t distribution (Hill 1970, algorithm 396; importing SciPy would take longer than an audit).

    >>> student([1, 2, 10, np.inf], 0.95).round(3).tolist()
    [12.706, 4.303, 2.228, 1.96]
    """
    df = np.asarray(degrees, dtype=np.float64)
    tails, z = 1 - np.asarray(level, dtype=np.float64), quantile(level)
    if not np.isfinite(df).any():
        return z + np.zeros_like(df)
    n = np.where(np.isfinite(df), np.maximum(df, 3.0), 3.0)
    a = 1 / (n - 0.5)
    b = 48 / a**2
    c = ((20700 * a / b - 98) * a - 16) * a + 96.36
    d = ((94.5 / (b + c) - 3) / b + 1) * np.sqrt(a * np.pi / 2) * n
    y = (d * tails) ** (2 / n)
    c = c + np.where(n < 5, 0.3 * (n - 4.5) * (0.6 - z), 0.0)
    c = (((-0.05 * d * z - 5) * -z - 7) * -z - 2) * -z + b + c
    x = (((((0.4 * z**2 + 6.3) * z**2 + 36) * z**2 + 94.5) / c - z**2 - 3) / b + 1) * z
    middle = np.expm1(np.minimum(a * x * x, 50.0))
    outer = ((1 / (((n + 6) / (n * y) - 0.089 * d - 0.822) * (n + 2) * 3) + 0.5 / (n + 4)) * y - 1) * (n + 1) / (n + 2) + 1 / y
    found = np.sqrt(n * np.where(y > 0.05 + a, middle, outer))
    found = np.where(df < 2, 1 / np.tan(tails * np.pi / 2), np.where(df < 3, np.sqrt(2 / (tails * (2 - tails)) - 2), found))
    return np.where(np.isfinite(df), found, z)


def wilson(value: npt.ArrayLike, n: npt.ArrayLike, level: float | FloatArray = 0.95) -> tuple[FloatArray, FloatArray]:
    """The lower and the upper limit of proportions of n patients; NaN if n is 0.

    >>> [end.round(3).tolist() for end in wilson([1.0, 0.3], [10, 10])]
    [[0.722, 0.108], [1.0, 0.603]]
    """
    p, size = np.broadcast_arrays(np.asarray(value, dtype=np.float64), np.asarray(n, dtype=np.float64))
    z = quantile(level)
    with np.errstate(invalid="ignore", divide="ignore"):
        known = ~np.isnan(p) & (size > 0)
        size = np.where(known, size, np.nan)
        per = z * z / size
        middle = (p + per / 2) / (1 + per)
        half = z / (1 + per) * np.sqrt(np.maximum(p * (1 - p), 0.0) / size + per / (4 * size))
        near_zero, near_one = _poisson(np.stack([p, 1 - p]), size, level)
        low = np.minimum(np.where(p <= 0, 0.0, middle - half), near_zero)
        high = np.maximum(np.where(p >= 1, 1.0, middle + half), 1 - near_one)
    return np.where(known, np.clip(low, 0.0, p), np.nan), np.where(known, np.clip(high, p, 1.0), np.nan)


def _poisson(p: FloatArray, n: FloatArray, level: float | FloatArray) -> FloatArray:
    """The lower limit of a proportion with one to three events, for which Wilson's limit is too high; 1 elsewhere."""
    n = np.broadcast_to(n, p.shape)
    events = p * n
    few, more, size = NEAR_END
    close = (events > 0) & (events <= np.where(n > size, more, few) + 0.5)
    limit = np.ones_like(p)
    k = np.maximum(events[close], 1.0)
    if len(k):  # the mean of the Poisson distribution for which P(X >= k) = 1 - level
        inverse = 1 / np.array(list(map(gamma, k + 1)))
        tails = np.broadcast_to(1 - np.asarray(level), p.shape)[close]
        mean = (tails / inverse) ** (1 / k)  # too small: Newton's steps in logarithms increase to the solution
        for _ in range(POISSON_STEPS):
            term = np.exp(k * np.log(mean) - mean) * inverse  # the series of the regularised incomplete gamma function P(k, mean)
            tail = term.copy()
            for j in range(1, 20):
                term = term * mean / (k + j)
                tail += term
                if j % 4 == 0 and (term < NEGLIGIBLE * tail).all():
                    break
            slope = k * np.exp(k * np.log(mean) - mean) * inverse / tail
            before, mean = mean, mean * np.exp((np.log(tails) - np.log(tail)) / slope)
            if (mean == before).all():
                break
        limit[close] = mean / n[close]
    return limit


def tango(gained: npt.ArrayLike, lost: npt.ArrayLike, n: npt.ArrayLike, level: float | FloatArray = 0.95) -> tuple[FloatArray, FloatArray]:
    """The limits of the share gained minus the share lost, of n patients observed before and after; NaN if n is 0.

    They are the differences at which the squared score statistic, with the maximum likelihood share lost, equals z^2. Three gained of 100
    and none lost do not exclude a difference of zero; 100 patients without a change do not exclude a change of up to four either way.

    >>> [end.round(3).tolist() for end in tango([0.03, 0.0, 0.2], [0.0, 0.0, 0.1], 100)]
    [[-0.008, -0.037, -0.008], [0.085, 0.037, 0.208]]
    """
    plus, minus, size = np.broadcast_arrays(*(np.asarray(x, dtype=np.float64) for x in (gained, lost, n)))
    known = ~np.isnan(plus) & ~np.isnan(minus) & (size > 0)
    b, c, count = np.where(known, plus, 0.0), np.where(known, minus, 0.0), np.where(known, size, 1.0)
    z = quantile(level)

    def outside(d: FloatArray) -> npt.NDArray[np.bool_]:
        half = (-b - c + (2 - b + c) * d) / 4
        fewer = np.sqrt(np.maximum(half**2 + c * d * (1 - d) / 2, 0.0)) - half  # the share lost, given the difference
        spread = np.maximum(2 * fewer + d * (1 - d), 0.0) / count
        beyond: npt.NDArray[np.bool_] = (b - c - d) ** 2 > z * z * spread
        return beyond

    low, high = (np.where(known, bisect(outside, b - c, np.full(b.shape, end), HALVINGS)[0], np.nan) for end in (-1.0, 1.0))
    return low, high


def bisect(
    outside: Callable[[FloatArray], npt.NDArray[np.bool_]], inner: FloatArray, outer: FloatArray, halvings: int, each: int = 1
) -> tuple[FloatArray, FloatArray]:
    """Bisection: the inner and outer ends of intervals after `halvings` steps, each of which keeps the half in which `outside` changes.

    `outside` takes points (points, ...) of all intervals (...) and works on `each` numbers per point. A call on a small array takes as
    long as one on a few thousand numbers, so all points that the next few steps may need are evaluated in one call.

    >>> [end.tolist() for end in bisect(lambda x: x > 0.3, np.array([0.0]), np.array([1.0]), 4)]
    [[0.25], [0.3125]]
    """
    index = np.arange(inner.size)
    steps_at_once = max((POINTS_AT_ONCE // max(inner.size * each, 1) + 1).bit_length() - 1, 1)
    while halvings > 0:
        steps = min(steps_at_once, halvings)
        points = np.empty((2**steps + 1, *inner.shape))
        points[0], points[-1] = inner, outer
        for width in (2**k for k in range(steps, 0, -1)):
            points[width // 2 :: width] = (points[:-1:width] + points[width::width]) / 2
        beyond = outside(points[1:-1]).reshape(len(points) - 2, -1)
        low = np.zeros(inner.size, np.int64)  # positions of the inner ends; the outer ends are one width away
        for width in (2**k for k in range(steps, 0, -1)):
            low += (width // 2) * ~beyond[low + (width // 2 - 1), index]
        flat = points.reshape(len(points), -1)
        inner, outer = (flat[low + side, index].reshape(inner.shape) for side in (0, 1))
        halvings -= steps
    return inner, outer


def combine_limits(
    coefficients: npt.ArrayLike, value: FloatArray, low: FloatArray, high: FloatArray, correlation: FloatArray | None = None
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """A signed sum of estimates (..., k) with its limits, from the limits of each estimate and their correlations (..., k, k).

    The distances from the values to the limits are added like standard errors, each in its own direction, so that a proportion of 1 makes
    the sum uncertain on one side only. Without correlations the estimates are independent.

    - `coefficients`, `value`, `low`, `high`: of the terms (..., k).
    - `correlation`: of the estimates (..., k, k).

    >>> [round(float(x), 3) for x in combine_limits([1, -1], *(np.array(v) for v in ([1.0, 1.0], [0.722, 0.722], [1.0, 1.0])))]
    [0.0, -0.278, 0.278]
    """
    c = np.asarray(coefficients, dtype=np.float64)
    below = np.where(c >= 0, c * (value - low), c * (value - high))  # distance of each term from its lower limit, >= 0
    above = np.where(c >= 0, c * (high - value), c * (low - value))
    total: FloatArray = np.where(c == 0, 0.0, c * value).sum(-1)
    ends = []
    for distance in (below, above):
        used = np.where(c == 0, 0.0, distance)
        if correlation is None:
            square = (used**2).sum(-1)
        else:
            signed = used * np.sign(c)
            square = np.einsum("...i,...ij,...j->...", signed, correlation, signed)
        ends.append(np.sqrt(np.maximum(square, 0.0)))
    return total, total - ends[0], total + ends[1]


def quotient(first: Ends, second: Ends, correlation: FloatArray | float = 0.0) -> Ends:
    """The ratios of two rates with their limits; NaN if the second is 0.

    >>> rates = [tuple(np.array([x]) for x in ends) for ends in ((0.4, 0.3, 0.51), (0.5, 0.4, 0.6))]
    >>> [float(end[0].round(3)) for end in quotient(*rates)]
    [0.8, 0.57, 1.113]
    """
    (p, low, high), (q, below, above) = first, second
    value, ends = ratio(p, q), list[FloatArray]()
    for own, other in ((p - low, above - q), (high - p, q - below)):  # the distances that move the ratio down, and up
        a, b, c = q**2 - other**2, p * q - correlation * own * other, p**2 - own**2
        root = np.sqrt(np.maximum(b**2 - a * c, 0.0))
        if not ends:  # the smaller root of a t^2 - 2 b t + c
            ends.append(np.where(c <= 0, 0.0, ratio(c, b + root)))
        else:
            ends.append(np.where(a > 0, ratio(b + root, a), np.inf))
    known = q > 0
    return np.where(known, value, np.nan), np.where(known, ends[0], np.nan), np.where(known, ends[1], np.nan)


def auroc_interval(value: npt.ArrayLike, m: npt.ArrayLike, n: npt.ArrayLike, level: float = 0.95) -> tuple[FloatArray, FloatArray]:
    """The limits of AUROCs of m positives and n negatives: the solutions t of (t - value)^2 = z^2 V(t); NaN if m or n is 0.

    >>> [round(float(end), 3) for end in auroc_interval(1.0, 6, 200)]
    [0.835, 1.0]
    """
    area, positives, negatives = np.broadcast_arrays(*(np.asarray(x, dtype=np.float64) for x in (value, m, n)))
    known = ~np.isnan(area) & (positives > 0) & (negatives > 0)
    a, pairs = np.where(known, area, 0.5), np.where(known, positives * negatives, 1.0)
    mean = np.maximum(np.where(known, positives + negatives, 2.0) / 2 - 1, 0.0)
    z = quantile(level)

    def outside(t: FloatArray) -> npt.NDArray[np.bool_]:
        spread = _auroc_spread(t, mean) / pairs
        beyond: npt.NDArray[np.bool_] = (t - a) ** 2 > z * z * spread
        return beyond

    low, high = bisect(outside, a, np.zeros(a.shape), HALVINGS)[0], bisect(outside, a, np.ones(a.shape), HALVINGS)[0]
    return np.where(known, np.where(a == 0, 0.0, low), np.nan), np.where(known, np.where(a == 1, 1.0, high), np.nan)


def _auroc_spread(t: FloatArray, mean: FloatArray) -> FloatArray:
    """The variance of an AUROC of t times the number of pairs; `mean` is the mean number of rows of a label, minus 1."""
    spread: FloatArray = t * (1 - t) * (1 + mean * (1 - t) / (2 - t) + mean * t / (1 + t))
    return spread


def auroc_design_effect(
    value: npt.ArrayLike, between: npt.ArrayLike, unclustered: npt.ArrayLike, m: npt.ArrayLike, n: npt.ArrayLike
) -> FloatArray:
    """By how much the numbers of positives m and negatives n are divided for `auroc_interval`, at least 1.

    `between` is the observed variance between patients. It is compared with that of independent rows, `unclustered`, and with the
    variance at the value that `auroc_interval` assumes.

    >>> [float(auroc_design_effect(0.9, between, 1e-3, 50, 1000).round(2)) for between in (5e-4, 1e-3, 2e-3)]
    [1.0, 1.87, 3.74]
    """
    area, variance, rows, positives, negatives = (np.asarray(x, dtype=np.float64) for x in (value, between, unclustered, m, n))
    with np.errstate(invalid="ignore", divide="ignore"):
        model = _auroc_spread(area, np.maximum((positives + negatives) / 2 - 1, 0.0)) / (positives * negatives)
        effect: FloatArray = np.fmax(variance / np.fmin(rows, model), 1.0)
    return np.where(np.isfinite(effect), effect, 1.0)


def detectable_gap(
    coefficients: npt.ArrayLike, reference: FloatArray, n_reference: FloatArray, n_group: FloatArray, level: float = 0.95
) -> FloatArray:
    """The minimum detectable gap with 80 % power, in the less favourable direction; NaN if even the largest possible gap is too small.

    With p0 the rates (..., k) of the reference and p1 those of a group whose gap is d, the estimated gap is smaller than d by 0.84 standard
    errors or more in 20 % of samples. The likeliest of these samples is the one in which each rate deviates in proportion to its variance;
    d is such that the interval of that sample ends at zero, for p1 above and below p0. A direction without a solution, as above a rate of
    0.98, is left out. The sizes are effective sample sizes, and no coefficient (k, or ..., k) is zero.

    >>> rate, size = np.array([[0.5], [0.9], [0.5]]), np.array([[200.0], [50.0], [4.0]])
    >>> detectable_gap([1.0], rate, size, size).round(3).tolist()
    [0.138, 0.231, nan]
    """
    c = np.asarray(coefficients, dtype=np.float64)
    n0, n1 = np.broadcast_arrays(n_reference, n_group)
    sizes = np.concatenate([n1, n0], axis=-1)
    z_power = NormalDist().inv_cdf(DETECTION_POWER)
    middle = (reference * n0 + 1) / (n0 + 2)  # shrunk: an observed 0 or 1 is not certain
    step = c / (c**2).sum(-1, keepdims=True)  # the change of each rate for a gap of size 1
    variance0 = middle * (1 - middle) / n0
    signs = np.concatenate([c, -c], axis=-1)
    up = np.array([True, False]).reshape(2, *(1 for _ in middle.shape[:-1]))
    direction = np.where(up, 1.0, -1.0)[..., None]

    def detected(d: FloatArray) -> npt.NDArray[np.bool_]:
        p1 = np.clip(middle + direction * d[..., None] * step, 0.0, 1.0)
        variance1 = p1 * (1 - p1) / n1
        deviation = direction * z_power / np.sqrt((c**2 * (variance0 + variance1)).sum(-1, keepdims=True))
        observed = [np.clip(p1 - deviation * c * variance1, 0.0, 1.0), np.clip(middle + deviation * c * variance0, 0.0, 1.0)]
        rates = np.concatenate(observed, axis=-1)
        _, below, above = combine_limits(signs, rates, *wilson(rates, sizes, level))
        return np.where(up, below > 0, above < 0)

    most = (np.where(direction * step > 0, 1 - middle, middle) / np.abs(step)).min(-1)  # (2, ...): above the reference and below it
    smallest = bisect(detected, np.zeros_like(most), most, HALVINGS // 2, each=2 * c.shape[-1])[1]
    by_direction = np.where(detected(most), smallest, np.nan)
    larger: FloatArray = np.fmax(by_direction[0], by_direction[1])
    return larger
