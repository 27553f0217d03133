"""The gap of one group before and after a repair, and the tests of whether gaps are clearly smaller or larger.

The largest |gap| is smaller if every |after_k| is below the largest |before|. With j the group that was worst before, each group k must
pass one of two one-sided tests (an intersection-union test, whose level is shared by groups and labels):

- its own gap is smaller: the interval of its change excludes zero, and the mean of the gaps before and after is clearly on the original
  side of zero, so that the gap has not merely changed sides;
- its gap is below that of j before (k other than j), by the MOVER limit of the difference of two estimates (Zou and Donner 2008):
  |before_j| - |after_k| is larger than the root of the sum of squares of the distances from |before_j| down to its lower limit and from
  |after_k| up to its upper limit. That treats the estimates as independent. The reference, which both share, makes the difference less
  variable if both gaps have the same sign; otherwise more, and the distances are added instead.

A gap is clearly larger if the interval of its change excludes zero. A gap that changed sides moved by |before| + |after|, so its change
does not show that it is larger; then the mean of before and after must also lie at least one standard error on the new side.

Each test is expressed as the factor by which its intervals must shrink to pass it, which is below 1 if it is passed already.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

from equipoise.data import Scores
from equipoise.measures import Estimate, FloatArray, pooled_gaps
from equipoise.methods.evaluation import NOISE

ONE_SE = 2 * NormalDist().cdf(1.0) - 1  # level of an interval of plus and minus one standard error


@dataclass(frozen=True)
class JudgedGap:
    """The gap of one group before and after on the same rows, and its change; NaN if the group has too few patients.

    Each has a confidence interval, and a simultaneous one for all groups and labels together.
    """

    group: str
    reference: str
    before: Estimate
    after: Estimate
    change: Estimate  # signed: after minus before

    @property
    def known(self) -> bool:
        """Whether there are enough patients for a value before and after."""
        return not (math.isnan(self.before.value) or math.isnan(self.after.value) or math.isnan(self.change.value))

    @property
    def clear(self) -> bool:
        """Whether the simultaneous interval of the change excludes zero."""
        return self.change.simultaneous_low > 0 or self.change.simultaneous_high < 0

    @property
    def larger(self) -> bool:
        """Whether the gap is further from zero than before."""
        return abs(self.after.value) > abs(self.before.value) + NOISE

    @property
    def factor_to_show_change(self) -> float:
        """The factor by which the simultaneous interval of the change must shrink to exclude zero."""
        change = self.change
        half = change.simultaneous_high - change.value if change.value < 0 else change.value - change.simultaneous_low
        return half / abs(change.value)

    def to_dict(self) -> dict[str, object]:
        """Plain values for JSON."""
        sides = {name: getattr(self, name).to_dict() for name in ("before", "after", "change")}
        return {"group": self.group, "reference": self.reference, **sides}


@dataclass(frozen=True, eq=False)
class Limits:
    """Lower and upper limits, each (groups - 1,), of the gaps before and after and of their mean."""

    before: tuple[FloatArray, FloatArray]  # at the level of one-sided tests
    after: tuple[FloatArray, FloatArray]
    mean: tuple[FloatArray, FloatArray]
    mean_one_se: tuple[FloatArray, FloatArray]  # plus and minus one standard error

    @classmethod
    def of(cls, scores: Scores, before: FloatArray, after: FloatArray, measure: str, level: float) -> "Limits":
        """The limits by these decisions, with one-sided tests by the ends of intervals at this level."""

        def limits(first: FloatArray, second: FloatArray, level: float) -> tuple[FloatArray, FloatArray]:
            return pooled_gaps(scores, first, second, measure, level)

        return cls(limits(before, before, level), limits(after, after, level), limits(before, after, level), limits(before, after, ONE_SE))


def factors_to_increase(gaps: Sequence[JudgedGap], limits: Limits) -> list[float]:
    """For each gap, the factor by which intervals must shrink to show that it is larger than before; infinite if it is not larger."""
    factors = []
    for k, gap in enumerate(gaps):
        factor = math.inf
        if gap.known and gap.larger:
            factor = gap.factor_to_show_change
            if gap.before.value * gap.after.value < 0:
                factor = max(factor, _factor_from_zero(gap, *_at(limits.mean_one_se, k)))
        factors.append(factor)
    return factors


def factors_to_reduce(gaps: Sequence[JudgedGap], limits: Limits) -> list[float]:
    """For each gap, the factor by which intervals must shrink to show that it is below the largest |gap| before; infinite if it is not.

    Every gap must be known.
    """
    worst = max(range(len(gaps)), key=lambda k: abs(gaps[k].before.value))
    return [
        min(_factor_below_itself(gap, *_at(limits.mean, k)), math.inf if k == worst else _factor_below_worst(gaps, limits, worst, k))
        for k, gap in enumerate(gaps)
    ]


def _at(ends: tuple[FloatArray, FloatArray], k: int) -> tuple[float, float]:
    return float(ends[0][k]), float(ends[1][k])


def _factor_from_zero(gap: JudgedGap, mean_low: float, mean_high: float) -> float:
    """The factor by which the interval of the mean of before and after must shrink to exclude zero; |before| and |after| differ."""
    mean = (gap.before.value + gap.after.value) / 2
    return (mean - mean_low if mean > 0 else mean_high - mean) / abs(mean)


def _factor_below_itself(gap: JudgedGap, mean_low: float, mean_high: float) -> float:
    """The factor by which intervals must shrink to show that |after| is below |before|."""
    if abs(gap.after.value) >= abs(gap.before.value) - NOISE:
        return math.inf
    return max(gap.factor_to_show_change, _factor_from_zero(gap, mean_low, mean_high))  # the mean is on the side of `before`


def _factor_below_worst(gaps: Sequence[JudgedGap], limits: Limits, worst: int, k: int) -> float:
    """The factor by which intervals must shrink to show that |after| of gap k is below |before| of the worst."""
    before, after = gaps[worst].before.value, gaps[k].after.value
    difference = abs(before) - abs(after)
    if difference <= NOISE:
        return math.inf
    (before_low, before_high), (after_low, after_high) = _at(limits.before, worst), _at(limits.after, k)
    down = before - before_low if before > 0 else before_high - before
    up = after_high - after if after > 0 else after - after_low
    distance = math.hypot(down, up) if before * after > 0 else down + up
    return distance / difference
