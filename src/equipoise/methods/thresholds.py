"""Exact thresholds: the original's, with which every method is compared (standard), one for everybody, and one per group.

`single-threshold` needs no group. Gap and performance at every threshold come from one sweep. If the groups' score distributions are
shifted against each other, no single threshold closes a gap without a loss; if the threshold in use was never tuned, or tuned for another
purpose, another one often improves both. Thresholds with constant decisions are left out.

`group-thresholds` needs each patient's group.

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

from equipoise import measures
from equipoise.data import MISSING, Attribute, FloatArray, IntArray, Scores
from equipoise.errors import BadInput
from equipoise.measures import RATES, Rule, Threshold, cells_at, measure_of, ratio, sums_at, sweep
from equipoise.methods.choosing import select, selected
from equipoise.methods.contract import ALL_AT_ONCE, ONE_BY_ONE, STANDARD, Fit, FitStep, Kind, NoSettings, Work, method, rule_work
from equipoise.methods.evaluation import RATE_NOISE, highest_threshold, kept_rates, least_rates
from equipoise.methods.goal import Goal, Note
from equipoise.methods.rules import (
    REMOVED_SHARES,
    Cut,
    Groups,
    RuleByGroup,
    gap_windows,
    half_rows,
    of_every_group,
    original_rule,
    rule_trace,
    windows,
)

SINGLE_THRESHOLD = "single-threshold"
GROUP_THRESHOLDS = "group-thresholds"
SUM_TOLERANCE = 1e-10  # tolerance in comparisons of sums of counts; two different gaps of a million rows are further apart


@method(
    STANDARD,
    title="the original network, threshold by best performance",
    kind=Kind.RULE,
    selects=False,
    labels=ALL_AT_ONCE,
    weights=True,
    cost=lambda speed, _: Work(len(speed.repair), 1, "the original"),
    effort=0.1,
    in_auto=0,
    in_auto_scores=0,
)
def standard(scores: Scores, goal: Goal, _settings: NoSettings = NoSettings()) -> Fit:
    """The threshold in use, or that of best performance."""
    rule, settled = original_rule(STANDARD, scores, goal)
    trace = rule_trace([rule], scores, settled.derived(keep={}))  # its own rates are no limit
    selection = select(trace, settled)
    why = (Note("original"), *(() if selection.met else selection.why))
    return Fit(rule, trace, 0, why, selection.met, settled, steps=(FitStep(rule),))


@method(
    SINGLE_THRESHOLD,
    title="another threshold for everybody, exactly the best",
    kind=Kind.RULE,
    labels=ONE_BY_ONE,
    weights=True,
    cost=lambda speed, _: Work(len(speed.repair), 1, "another threshold for everybody; no group is needed"),
    effort=0.1,
    in_auto_scores=1,
)
def single_threshold(scores: Scores, goal: Goal, _settings: NoSettings = NoSettings()) -> Fit:
    """The best threshold by the goal for these scores, which should be validation scores."""
    original, settled = original_rule(SINGLE_THRESHOLD, scores, goal)
    if goal.capacity is not None:
        raise BadInput(f"{SINGLE_THRESHOLD} has nothing to choose: a capacity leaves one threshold")
    attribute, wanted = scores.attribute, (goal.measure, goal.performance)
    swept = sweep(scores.score, scores.y, attribute, wanted, measures.normalise_weights(scores.weight))
    points = pd.DataFrame({"gap": swept.values[goal.measure], "performance": swept.values[goal.performance], "threshold": swept.thresholds})
    points = points.iloc[1:-1] if len(points) > 2 else points  # without constant decisions
    if goal.keep:
        least = least_rates(goal.keep, kept_rates(goal.keep, cells_at(scores, original.value)))
        highest = highest_threshold(goal.keep, scores.score, scores.y, attribute, least)
        points = points.assign(spare=np.where(points["threshold"] <= highest + RATE_NOISE, 0.0, -1.0))
    points = points.reset_index(drop=True)
    picked = select(points, settled)
    origin, rows = f"chosen by {SINGLE_THRESHOLD} with {settled}", f"on {len(scores):,} rows of {scores.name}"
    rule = Threshold(float(points["threshold"].iloc[picked.row]), f"{origin} {rows}")

    def grid() -> list[Rule]:
        gap, performance, cuts = (points[column].to_numpy() for column in ("gap", "performance", "threshold"))
        kept = points["spare"].to_numpy() >= 0 if "spare" in points else np.ones(len(points), bool)
        kept = kept | ~kept.any()  # if no threshold keeps the rates, all count
        size = np.where(np.isnan(gap) | ~kept, np.inf, np.abs(gap))
        rules: list[Rule] = []
        for share, low, high in gap_windows(scores, goal, original.value):  # the best performance within; or the smallest |gap|
            inside = kept & (gap >= low - RATE_NOISE) & (gap <= high + RATE_NOISE)
            at = np.where(inside, performance, -np.inf).argmax() if inside.any() else size.argmin()
            rules.append(Threshold(float(cuts[at]), f"{SINGLE_THRESHOLD} that removes {share:.0%} of the gap {rows}"))
        return rules

    return Fit(rule, rule_trace([original, rule], scores, settled), 1, picked.why, picked.met, settled, grid=grid)


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
    others: tuple[str, ...] = ()
    KIND: ClassVar[str] = GROUP_THRESHOLDS

    def problems(self) -> list[str]:
        return [*super().problems(), *of_every_group(self.groups, thresholds=self.thresholds)]

    def describe(self) -> str:
        parts = [f">= {cut:.4g} for {group}" for group, cut in zip(self.groups, self.thresholds, strict=True)]
        return f"score {', '.join(parts)}; >= {self.missing:.4g} {self.without} ({self.origin})"

    def cuts(self, group: str) -> tuple[float, ...]:
        return (self.thresholds[self.groups.index(group)],) if group in self.groups else (self.missing,) if group in self.others else ()


@method(
    GROUP_THRESHOLDS,
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
def group_thresholds(scores: Scores, goal: Goal, _settings: NoSettings = NoSettings()) -> Fit:
    """The best thresholds for these scores, which should be validation scores."""
    original, settled = original_rule(GROUP_THRESHOLDS, scores, goal)
    levels, before = scores.attribute.levels, cells_at(scores, original.value)
    rows = f"on {len(scores):,} rows of {scores.name}"
    if goal.capacity is not None:
        return _at_capacity(scores, goal.capacity, original, settled, rows)
    least = least_rates(goal.keep, kept_rates(goal.keep, before)) if goal.keep else None
    search = ThresholdSearch(scores, settled, original.value, least)
    rule = GroupThresholds(levels, tuple(search.best().tolist()), original.value, f"chosen by {GROUP_THRESHOLDS} with {settled} {rows}")

    def grid() -> list[Rule]:
        gaps, slack = before.gaps(goal.measure), half_rows(goal.measure, before)
        origin = f"{GROUP_THRESHOLDS} that removes {{:.0%}} of the gaps {rows}"
        cuts = [search.best_within(*windows(gaps, share, slack)).tolist() for share in REMOVED_SHARES]
        return [
            GroupThresholds(levels, tuple(own), original.value, origin.format(share))
            for share, own in zip(REMOVED_SHARES, cuts, strict=True)
        ]

    trace = rule_trace([original, rule], scores, settled)
    floor, most = settled.min_performance, settled.max_gap
    eased = settled.derived(  # by the numerical tolerance
        min_performance=None if floor is None else max(0.0, floor - SUM_TOLERANCE),
        max_gap=None if most is None else min(1.0, most + SUM_TOLERANCE),
    )
    (_, gap, performance, *_), what, count = trace.iloc[1], "set of thresholds", len(levels)
    if floor is not None and performance < floor - SUM_TOLERANCE:
        why = selected(what, "performance", settled.derived(max_gap=None), 0, count, performance)
    elif most is not None and abs(gap) > most + SUM_TOLERANCE:
        why = selected(what, "gap", settled, 0, count, abs(gap))
    elif floor is None:
        why = selected(what, "performance", settled, None, count)
    else:
        why = selected(what, "gap", settled.derived(max_gap=None), None, count)
    return Fit(rule, trace, 1, (why,), select(trace.iloc[1:], eased).met, settled, (Note("needs_group"),), grid=grid)


def _at_capacity(scores: Scores, capacity: float, original: Threshold, settled: Goal, rows: str) -> Fit:
    """Thresholds by group that flag a share of all rows, and bring the groups' rates ever closer to one level.

    With the share s of the gaps removed, the rate of each group is the share s of the way from its own to the level, which is the highest
    one that the capacity allows.
    """
    (rate, *more), levels, codes = measure_of(settled.measure).rates, scores.attribute.levels, scores.attribute.codes
    if more or measure_of(settled.measure).is_quotient:
        raise BadInput(f"{GROUP_THRESHOLDS} with a capacity compares one rate, as eod, spd or fpr_gap do; got {settled.measure}")
    weight = measures.normalise_weights(scores.weight)
    mass, rated = np.ones(len(scores)) if weight is None else weight, scores.y == RATES[rate] if RATES[rate] is not None else codes >= 0
    before, stray = cells_at(scores, original.value).rate(rate), mass[(codes == MISSING) & (scores.score >= original.value)].sum()
    groups = [(codes == k, rated & (codes == k)) for k in range(len(levels))]

    def cuts_at(share: float, level: float) -> FloatArray:
        """The threshold of each group, at this level."""
        wanted = np.clip((1 - share) * before + share * level, 0.0, 1.0)
        own = zip(groups, wanted, strict=True)
        return np.array([measures.threshold_at_capacity(scores.score[some], goal_rate, mass[some]) for (_, some), goal_rate in own])

    def rule_at(share: float) -> GroupThresholds:
        low, high = -1.0, 2.0
        for _ in range(40):
            middle = (low + high) / 2
            at = cuts_at(share, middle)
            flagged = stray + sum(mass[own & (scores.score >= cut)].sum() for (own, _), cut in zip(groups, at, strict=True))
            low, high = (middle, high) if flagged <= (capacity + 1e-9) * mass.sum() else (low, middle)
        origin = f"{GROUP_THRESHOLDS} that flags {capacity:.1%} and removes {share:.0%} of the gaps {rows}"
        return GroupThresholds(levels, tuple(cuts_at(share, low).tolist()), original.value, origin)

    rule = rule_at(1.0)
    trace = rule_trace([original, rule], scores, settled)
    chosen = select(trace.iloc[1:], settled)
    notes = (Note("needs_group"),)
    return Fit(rule, trace, 1, chosen.why, chosen.met, settled, notes, grid=lambda: [rule_at(share) for share in REMOVED_SHARES])


@dataclass(frozen=True, eq=False)
class GroupCuts:
    """The thresholds of one group in the order of their values, with the counts at each."""

    cuts: FloatArray  # (m,)
    value: FloatArray  # (m,) ascending: the rate or sum of rates that the gap compares
    counted: FloatArray  # (m, 2) false and true positives


class ThresholdSearch:
    """All thresholds of all groups, and the best of them for a goal."""

    def __init__(self, scores: Scores, goal: Goal, original: float, least: FloatArray | None) -> None:
        attribute, y, weight = scores.attribute, scores.y, measures.normalise_weights(scores.weight)
        mass = np.ones(len(scores)) if weight is None else weight
        self.goal = goal
        self.groups: list[GroupCuts] = []
        for code in range(len(attribute.levels)):  # all distinct thresholds of a group that keep its rates, in the order of their values
            own = attribute.codes == code
            score, own_y, own_mass = scores.score[own], y[own], mass[own]
            cuts = sweep(score, own_y, Attribute("", ("all",), np.zeros(len(own_y), np.int64)), ()).thresholds
            order = np.argsort(-score, kind="stable")
            above = np.searchsorted(-score[order], -cuts, side="right")  # rows at or above each cut
            counted = np.concatenate([np.zeros((1, 2)), np.cumsum((np.eye(2)[own_y] * own_mass[:, None])[order], axis=0)])[above]
            n = sums_at(own_y, own_mass, 2)
            # The share of positive decisions given a label at each threshold; 0 if the group has no such rows.
            shares: dict[int | None, FloatArray] = {label: counted[:, label] / (n[label] or 1.0) for label in (0, 1)}
            shares[None] = counted.sum(-1) / n.sum()
            fine = np.ones(len(cuts), bool)
            if measures.measure_of(goal.measure).is_quotient:
                label = measure_of(goal.measure).decided
                side = counted if label else n - counted
                value = ratio(side[:, label], side.sum(-1))
                fine = side.sum(-1) >= min(measures.MIN_DECIDED, n.sum()) - SUM_TOLERANCE  # undefined with fewer such decisions
            else:
                value = np.sum([sign * shares[RATES[name]] for name, sign in measure_of(goal.measure).rates.items()], axis=0)
            if least is not None:
                for k, name in enumerate(goal.keep):
                    fine &= ~(shares[RATES[name]] < least[k * len(attribute.levels) + code] - 1e-9)
            place = np.flatnonzero(fine)[np.argsort(value[fine], kind="stable")]
            self.groups.append(GroupCuts(cuts[place], value[place], counted[place]))
        decided = (attribute.codes == MISSING) & (scores.score >= original)
        self.strays = sums_at(y[decided], mass[decided], 2)  # rows without a group count for performance
        self.totals = sums_at(y, mass, 2)
        if goal.performance != "f1":
            functional = measures.performance_functional(goal.performance, self.totals[None])
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
            enough = top >= goal.min_performance - SUM_TOLERANCE
            return self._cuts(self._narrowed(goal.min_performance if enough else top, places, sharpen=bool(enough)))
        assert goal.max_gap is not None  # a settled goal has one of them
        top, inside = self._best(-goal.max_gap, goal.max_gap)
        none = np.isneginf(top)  # no thresholds are that close, which is possible if rates are kept
        return self._cuts(self._narrowed(top, places if none else inside, sharpen=bool(none)))

    def _cuts(self, places: IntArray) -> FloatArray:
        """The threshold of each group at these places."""
        return np.array([group.cuts[place] for group, place in zip(self.groups, places, strict=True)])

    def _narrowed(self, min_performance: float, places: IntArray, sharpen: bool) -> IntArray:
        """The places with the smallest largest |gap| that reach the minimum performance, starting from `places`, which reach it."""
        low, high, bound = 0.0, self._largest(places), 0.0
        while True:
            if self.goal.performance == "f1" and np.isfinite(min_performance):  # a single sum tells whether F1 can reach a level
                top, better = self._best_sum(self._f1_worth(min_performance), -bound, bound)
                reached = top >= -SUM_TOLERANCE * self.totals.sum()
            else:
                top, better = self._best(-bound, bound)
                reached = top >= min_performance - SUM_TOLERANCE and not np.isneginf(top)
            if not reached:
                low = bound
            else:
                places, high = better, min(bound, self._largest(better))
            if high - low <= SUM_TOLERANCE:
                return self._best(-high, high)[1] if sharpen else places
            bound = (low + high) / 2

    def _largest(self, places: IntArray) -> float:
        """The largest |gap| at these places."""
        value = np.array([group.value[place] for group, place in zip(self.groups, places, strict=True)])
        return float(np.abs(value[1:] - value[0]).max())

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
            if reached <= level + SUM_TOLERANCE:
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
            first = np.searchsorted(group.value, reference.value + least - SUM_TOLERANCE / 2, side="left")
            last = np.searchsorted(group.value, reference.value + most + SUM_TOLERANCE / 2, side="right")
            gains = group.counted @ values
            # The index of the largest of gains[first:last] for all windows, arbitrary for an empty one, by tables of doubling lengths.
            tables = [np.arange(len(gains))]
            while 2 ** len(tables) <= len(gains):
                half = 2 ** (len(tables) - 1)
                left, right = tables[-1][:-half], tables[-1][half:]
                tables.append(np.where(gains[left] >= gains[right], left, right))
            length = np.maximum(last - first, 1)
            level = np.frexp(length)[1] - 1  # the longest table that fits
            at = np.zeros(len(total), np.int64)
            start = np.minimum(first, len(gains) - 1)
            for k, table in enumerate(tables):
                here = level == k
                if here.any():
                    left, right = table[start[here]], table[np.maximum(start[here], np.minimum(last[here], len(gains)) - 2**k)]
                    at[here] = np.where(gains[left] >= gains[right], left, right)
            total = total + np.where(first < last, gains[at], -np.inf)
            chosen.append(at)
        row = int(total.argmax())
        return float(total[row]), np.array([at[row] for at in chosen])
