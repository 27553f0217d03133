"""One threshold per group, exactly optimal for the goal. The rule needs each patient's group.

A group's rates depend only on its own threshold, so every gap (a signed sum of rates) is v_k(t_k) - v_0(t_0), a value of the group less one
of the reference, and accuracy and balanced accuracy are sums of one term per group. Hence, for each threshold of the reference, every other
group takes the best of its thresholds whose value is within the maximum gap of the reference's: a maximum over a window of thresholds
sorted by value. This is exact for any number of groups and any such gap, in O(n log n), because groups interact only through the reference.
F1 is a quotient of two such sums; Dinkelbach's iteration solves a sequence of sums and ends at the exact optimum.

With a maximum gap: the best performance with every |gap| within it and, among equals, the smallest largest |gap|. With a minimum
performance: the smallest largest |gap| with at least this performance, found by bisection of the maximum gap until no two attainable gaps
lie between its ends; then the best performance at that |gap|. With both, the minimum performance comes first, as for every method. Limits
on kept rates exclude thresholds that are too high from each group's list. Rows without a group keep the original threshold.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pandas as pd

from equipoise.data import MISSING, Scores
from equipoise.measures import (
    MIN_DECIDED,
    QUOTIENTS,
    RATES,
    FloatArray,
    IntArray,
    Rule,
    cells_at,
    gap_values,
    is_quotient,
    normalised,
    performance_functional,
    ratio,
    sums_at,
    sweep,
    terms,
)
from equipoise.methods.choosing import select, selected
from equipoise.methods.contract import ONE_BY_ONE, Fit, Kind, NoSettings, method, rule_work
from equipoise.methods.evaluation import kept_rates, limits_of
from equipoise.methods.frontier import SHARES, half_rows, original_rule, rule_trace, windows
from equipoise.methods.goal import Goal, Note, Why
from equipoise.methods.rules import Cut, Groups, RuleByGroup, of_every_group

KIND = "group-thresholds"
NOISE = 1e-10  # tolerance in comparisons of sums of counts; two different gaps of a million rows are further apart


@dataclass(frozen=True)
class GroupThresholds(RuleByGroup):
    """Positive where score >= the threshold of the row's group; a row without a group gets the threshold `missing`.

    >>> GroupThresholds(("M", "F"), (0.5, 0.4), 0.45).describe()
    'score >= 0.5 for M, >= 0.4 for F; >= 0.45 without a group (given)'
    """

    groups: Groups
    thresholds: tuple[Cut, ...]
    missing: Cut
    origin: str = "given"
    KIND: ClassVar[str] = KIND

    def problems(self) -> list[str]:
        return [*super().problems(), *of_every_group(self.groups, thresholds=self.thresholds)]

    def describe(self) -> str:
        parts = [f">= {cut:.4g} for {group}" for group, cut in zip(self.groups, self.thresholds, strict=True)]
        return f"score {', '.join(parts)}; >= {self.missing:.4g} without a group ({self.origin})"

    def cuts(self, group: str) -> tuple[float, ...]:
        return (self.thresholds[self.groups.index(group)],) if group in self.groups else ()


@method(
    KIND,
    title="one threshold per group, exactly the best",
    kind=Kind.RULE,
    needs_group=True,
    without_group="the original threshold",
    labels=ONE_BY_ONE,
    rules=(GroupThresholds,),
    weights=True,
    cost=rule_work,
    effort=0.2,
    in_auto=2,
    in_auto_scores=3,
)
def fit(scores: Scores, goal: Goal, _settings: NoSettings = NoSettings()) -> Fit:
    """The best thresholds for these scores, which should be validation scores."""
    original, settled = original_rule(KIND, scores, goal)
    levels, before = scores.attribute.levels, cells_at(scores, original.value)
    least = limits_of(goal.keep, kept_rates(goal.keep, before)) if goal.keep else None
    search, rows = _Thresholds(scores, settled, original.value, least), f"on {len(scores):,} rows of {scores.name}"
    rule = GroupThresholds(levels, tuple(search.best().tolist()), original.value, f"chosen by {KIND} with {settled} {rows}")

    def grid() -> list[Rule]:
        gaps, slack = gap_values(goal.measure, before), half_rows(goal.measure, before)
        origin = f"{KIND} that removes {{:.0%}} of the gaps {rows}"
        cuts = [search.best_within(*windows(gaps, share, slack)).tolist() for share in SHARES]
        return [GroupThresholds(levels, tuple(own), original.value, origin.format(share)) for share, own in zip(SHARES, cuts, strict=True)]

    trace = rule_trace([original, rule], scores, settled)
    eased = settled.derived(min_performance=_eased(settled.min_performance, -1), max_gap=_eased(settled.max_gap, 1))
    met, why = select(trace.iloc[1:], eased).met, _why(trace.iloc[1], len(levels), settled)
    return Fit(rule, trace, 1, why, met, settled, (Note("needs_group"),), grid=grid)


def _eased(limit: float | None, sign: int) -> float | None:
    """A limit, relaxed by the numerical tolerance."""
    return None if limit is None else min(1.0, max(0.0, limit + sign * NOISE))


def _why(row: "pd.Series[float]", groups: int, goal: Goal) -> Why:
    """The reason for these thresholds: they are the best of all, or no thresholds meet the goal."""
    without_gap, what = goal.derived(max_gap=None), "set of thresholds"
    if goal.min_performance is not None and row["performance"] < goal.min_performance - NOISE:
        return (selected(what, "performance", without_gap, 0, groups, row["performance"]),)
    if goal.max_gap is not None and abs(row["gap"]) > goal.max_gap + NOISE:
        return (selected(what, "gap", goal, 0, groups, abs(row["gap"])),)
    if goal.min_performance is None:
        return (selected(what, "performance", goal, None, groups),)
    return (selected(what, "gap", without_gap, None, groups),)


@dataclass(frozen=True, eq=False)
class _Group:
    """The thresholds of one group in the order of their values, with the counts at each."""

    cuts: FloatArray  # (m,)
    value: FloatArray  # (m,) ascending: the rate or sum of rates that the gap compares
    counted: FloatArray  # (m, 2) false and true positives


class _Thresholds:
    """All thresholds of all groups, and the best of them for a goal."""

    def __init__(self, scores: Scores, goal: Goal, original: float, least: FloatArray | None) -> None:
        attribute, y, weight = scores.attribute, scores.y, normalised(scores.weight)
        mass = np.ones(len(scores)) if weight is None else weight
        self.goal = goal
        self.groups = [_group(scores, mass, code, goal, least) for code in range(len(attribute.levels))]
        decided = (attribute.codes == MISSING) & (scores.score >= original)
        self.strays = sums_at(y[decided], mass[decided], 2)  # rows without a group count for performance
        self.totals = sums_at(y, mass, 2)
        if goal.performance != "f1":
            functional = performance_functional(goal.performance, self.totals[None])
            self.worth = float(functional.offset), functional.w[0]

    def best_within(self, low: FloatArray, high: FloatArray) -> FloatArray:
        """One threshold per group: the best performance with the gap of each group but the reference between two limits (groups - 1,).

        If no thresholds satisfy the limits, those with the smallest gaps.
        """
        top, places = self._best(low, high)
        return self._cuts(self._narrowed(-np.inf, self._best(-np.inf, np.inf)[1], sharpen=True) if np.isneginf(top) else places)

    def best(self) -> FloatArray:
        """One threshold per group: the best for the goal."""
        goal = self.goal
        top, places = self._best(-np.inf, np.inf)
        if goal.min_performance is not None:
            enough = top >= goal.min_performance - NOISE
            return self._cuts(self._narrowed(goal.min_performance if enough else top, places, sharpen=bool(enough)))
        assert goal.max_gap is not None  # a settled goal has one of them
        top, inside = self._best(-goal.max_gap, goal.max_gap)
        none = np.isneginf(top)  # no thresholds are that close, which is possible if rates are kept
        return self._cuts(self._narrowed(top, places if none else inside, sharpen=bool(none)))

    def _cuts(self, places: IntArray) -> FloatArray:
        return np.array([group.cuts[place] for group, place in zip(self.groups, places, strict=True)])

    def _narrowed(self, min_performance: float, places: IntArray, sharpen: bool) -> IntArray:
        """The places with the smallest largest |gap| that reach the minimum performance, starting from `places`, which reach it."""
        low, high, bound = 0.0, self._largest(places), 0.0
        while True:
            better = self._reaching(bound, min_performance)
            if better is None:
                low = bound
            else:
                places, high = better, min(bound, self._largest(better))
            if high - low <= NOISE:
                return self._best(-high, high)[1] if sharpen else places
            bound = (low + high) / 2

    def _largest(self, places: IntArray) -> float:
        """The largest |gap| at these places."""
        value = np.array([group.value[place] for group, place in zip(self.groups, places, strict=True)])
        return float(np.abs(value[1:] - value[0]).max())

    def _reaching(self, max_gap: float, min_performance: float) -> IntArray | None:
        """The places of the best performance within a maximum gap, if it reaches the minimum performance."""
        if self.goal.performance == "f1" and np.isfinite(min_performance):  # a single sum tells whether F1 can reach a level
            top, places = self._best_sum(self._f1_worth(min_performance), -max_gap, max_gap)
            return places if top >= -NOISE * self.totals.sum() else None
        top, places = self._best(-max_gap, max_gap)
        return places if top >= min_performance - NOISE and not np.isneginf(top) else None

    def _best(self, low: FloatArray | float, high: FloatArray | float) -> tuple[float, IntArray]:
        """The best performance with the gap of each group but the reference between two limits, and the place of each group's threshold.

        It is -inf if there is none.
        """
        if self.goal.performance != "f1":
            return self._best_sum(self.worth, low, high)
        level = 0.0
        while True:
            top, places = self._best_sum(self._f1_worth(level), low, high)
            if np.isneginf(top):
                return top, places
            false, true = self.strays + sum(group.counted[place] for group, place in zip(self.groups, places, strict=True))
            reached = float(2 * true / (true + false + self.totals[1]))
            if reached <= level + NOISE:
                return reached, places
            level = reached

    def _f1_worth(self, level: float) -> tuple[float, FloatArray]:
        """A constant, and the values of a false and a true positive for the margin of F1 over a level."""
        return -level * self.totals[1], np.array([-level, 2.0 - level])

    def _best_sum(self, worth: tuple[float, FloatArray], low: FloatArray | float, high: FloatArray | float) -> tuple[float, IntArray]:
        """The largest sum with every gap between its limits: for each threshold of the reference, the best in a window of the others."""
        constant, values = worth
        reference, others = self.groups[0], self.groups[1:]
        total = constant + self.strays @ values + reference.counted @ values
        chosen = [np.arange(len(total))]
        for group, least, most in zip(others, *(np.broadcast_to(limit, len(others)) for limit in (low, high)), strict=True):
            first = np.searchsorted(group.value, reference.value + least - NOISE / 2, side="left")
            last = np.searchsorted(group.value, reference.value + most + NOISE / 2, side="right")
            gains = group.counted @ values
            at = _window_argmax(gains, first, last)
            total = total + np.where(first < last, gains[at], -np.inf)
            chosen.append(at)
        row = int(total.argmax())
        return float(total[row]), np.array([at[row] for at in chosen])


def _group(scores: Scores, mass: FloatArray, code: int, goal: Goal, least: FloatArray | None) -> _Group:
    """All distinct thresholds of one group that keep its rates, in the order of their values."""
    own = scores.attribute.codes == code
    score, y, weight = scores.score[own], scores.y[own], mass[own]
    cuts = sweep(score, y, np.zeros(len(y), np.int64), ("all",), ()).thresholds
    order = np.argsort(-score, kind="stable")
    above = np.searchsorted(-score[order], -cuts, side="right")  # rows at or above each cut
    counted = np.concatenate([np.zeros((1, 2)), np.cumsum((np.eye(2)[y] * weight[:, None])[order], axis=0)])[above]
    n = sums_at(y, weight, 2)
    # The share of positive decisions given a label at each threshold; 0 if the group has no such rows.
    shares: dict[int | None, FloatArray] = {label: counted[:, label] / (n[label] or 1.0) for label in (0, 1)}
    shares[None] = counted.sum(-1) / n.sum()
    fine = np.ones(len(cuts), bool)
    if is_quotient(goal.measure):
        label = QUOTIENTS[goal.measure]
        side = counted if label else n - counted
        value = ratio(side[:, label], side.sum(-1))
        fine = side.sum(-1) >= min(MIN_DECIDED, n.sum()) - NOISE  # undefined with fewer than a handful of such decisions
    else:
        value = np.sum([sign * shares[RATES[name]] for name, sign in terms(goal.measure).items()], axis=0)
    if least is not None:
        for k, name in enumerate(goal.keep):
            fine &= ~(shares[RATES[name]] < least[k * len(scores.attribute.levels) + code] - 1e-9)
    place = np.flatnonzero(fine)[np.argsort(value[fine], kind="stable")]
    return _Group(cuts[place], value[place], counted[place])


def _window_argmax(values: FloatArray, first: IntArray, last: IntArray) -> IntArray:
    """The index of the largest of values[first:last] for many windows, arbitrary for an empty one, by tables of doubling lengths."""
    tables = [np.arange(len(values))]
    while 2 ** len(tables) <= len(values):
        half = 2 ** (len(tables) - 1)
        left, right = tables[-1][:-half], tables[-1][half:]
        tables.append(np.where(values[left] >= values[right], left, right))
    length = np.maximum(last - first, 1)
    level = np.frexp(length)[1] - 1  # the longest table that fits
    at = np.zeros(len(first), np.int64)
    start = np.minimum(first, len(values) - 1)
    for k, table in enumerate(tables):
        here = level == k
        if here.any():
            left, right = table[start[here]], table[np.maximum(start[here], np.minimum(last[here], len(values)) - 2**k)]
            at[here] = np.where(values[left] >= values[right], left, right)
    return at
