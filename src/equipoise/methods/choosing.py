"""The choice among the steps of a method, and among methods: by expected loss (`choose_step`), or by the paper's rule (`merit`).

The paper's rule takes values on the rows that a step was fitted to. The rest of this page is about the expected loss.

The gap in the data is the true gap and chance. What is known of the true rates of the groups is a posterior distribution: rates of groups
vary by N(mu, tau^2), mu is anything, and tau is on a grid from 0, no gap at all, to 0.15. That tau is 0 has a prior probability of 0.2, and
of 0.5 for a rule that needs each patient's group: such a rule turns all of chance into a new gap, while a rule that needs no group does so
only as far as the inputs separate the groups. The standard errors of the rates are those of the audit, so repeated patients count less.

A step changes the rates by D, which is estimated with the correction for optimism. D is added to draws of the true rates, not to the
observed ones, so that a step that removes all of an observed gap is seen to overshoot. The expected gap of a step is the mean over draws of
the largest |gap|; with a maximum gap, only what exceeds it counts. The net gain is

    (expected gap of the original - that of the step) + (performance gained) - (largest loss of any group) - (0.02 if randomised)

where a group's loss is a fall of its sensitivity, of its share decided positive if the measure compares these, or a rise of its false
positive rate if the measure compares only these. A step is eligible if its expected gap is smaller by at least half a point, its loss of
performance plus one standard error is within the limit, the kept rates reach theirs with one standard error to spare, and false positive
rate and share decided positive of no group rise by more than 0.1 (upper 95 % limit). Of the eligible steps, the one with the
largest net gain is taken; the original stays if none has any. Several labels: means over labels, and every label must be within its limits.

Methods are compared by the net gain of the step that was chosen for each.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from equipoise.data import BoolArray, FloatArray, IntArray, Rows, generator
from equipoise.measures import RATES, Threshold
from equipoise.methods.candidate import Expected, HeldOutDecisions, LabelCandidate
from equipoise.methods.contract import MethodRun
from equipoise.methods.evaluation import RATE_NOISE, LabelResult
from equipoise.methods.goal import BEFORE, Goal, Note, Why, unharmed
from equipoise.methods.step_estimates import StepEstimates

SURE = 1.0  # standard errors between an estimate and its confidence bound
RISE_SURE = 1.645  # the same for rises: 95 %
DRAWS = 400  # of the true rates
SPREADS = np.array([0.0, 0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.08, 0.1, 0.15])  # tau: standard deviations of the rates of groups
NO_GAP, NO_GAP_BY_GROUP = 0.2, 0.5  # prior probability that tau is 0, for rules without and with each patient's group
LEAST_GAIN = 0.005  # of the expected gap, below which nothing changes
RANDOMISED_PRICE = 0.02
WORST = [np.nan, -1.0]  # gap and performance of a refused step, with which it is never chosen
IN_USE = "in use today, as given"  # origin of a threshold that was not chosen
Merit = tuple[int, float]  # of a step: first its tier (1 if the rates are kept, 2 if all goals are met too), then its value within the tier


# The expected loss.


@dataclass(frozen=True, eq=False)
class TrueRates:
    """The posterior distribution of the true rates of groups, a mixture over tau.

    >>> two = TrueRates.of(np.array([0.8, 0.6]), np.array([0.01, 0.01]), 0.5)
    >>> two.means.round(2).tolist(), two.draws(np.random.default_rng(0)).shape
    ([0.71, 0.69], (400, 2))
    """

    rate: FloatArray  # (groups,) estimates
    variance: FloatArray  # (groups,)
    chance: FloatArray  # (taus,)
    centre: FloatArray  # (taus,) means of mu
    total: FloatArray  # (taus,) precisions of mu
    shrunk: FloatArray  # (taus, groups) the share of the way from the estimate to mu

    @classmethod
    def of(cls, rate: FloatArray, variance: FloatArray, no_gap: float) -> "TrueRates":
        """The distribution after these estimates, with the prior probability that tau is 0."""
        prior = np.append(no_gap, np.full(len(SPREADS) - 1, (1 - no_gap) / (len(SPREADS) - 1)))
        weight = 1 / (variance + SPREADS[:, None] ** 2)  # (taus, groups)
        total = weight.sum(1)
        centre = weight @ rate / total
        fit = (np.log(weight).sum(1) - np.log(total) - (weight * (rate - centre[:, None]) ** 2).sum(1)) / 2
        chance = prior * np.exp(fit - fit.max())
        return cls(rate, variance, chance / chance.sum(), centre, total, variance * weight)

    @property
    def means(self) -> FloatArray:
        """The means (groups,)."""
        means: FloatArray = self.chance @ (self.shrunk * self.centre[:, None] + (1 - self.shrunk) * self.rate)
        return means

    def draws(self, rng: np.random.Generator) -> FloatArray:
        """Draws (draws, groups)."""
        taken = np.searchsorted(self.chance.cumsum()[:-1], (np.arange(DRAWS) + 0.5) / DRAWS)  # of each draw, its tau
        normal, shrunk = rng.normal(size=(DRAWS, len(self.rate) + 1)), self.shrunk[taken]
        mu = (self.centre[taken] + normal[:, 0] / np.sqrt(self.total[taken]))[:, None]
        draws: FloatArray = shrunk * mu + (1 - shrunk) * self.rate + np.sqrt((1 - shrunk) * self.variance) * normal[:, 1:]
        return draws


@dataclass(frozen=True, eq=False)
class Prospects:
    """The expectation of each step (steps,) for one label, next to the original, which is the first step."""

    gap: FloatArray  # expected largest |gap|
    gain: FloatArray  # decrease of the expected gap, or of what exceeds the maximum gap
    room: FloatArray  # what an ideal change of the rates could still gain
    performance: FloatArray  # change
    performance_error: FloatArray
    fall: FloatArray  # largest loss of any group
    rise: Mapping[str, FloatArray]  # largest rise of any group's false positive rate and share decided positive
    net: FloatArray  # net gain
    lacks: Mapping[str, BoolArray]  # the steps beyond each limit: performance, rates, fpr, selection, capacity

    @classmethod
    def of(cls, own: StepEstimates, seed: int, needs_group: bool, randomised: bool) -> "Prospects":
        """The prospects of steps whose rules need each patient's group, or decide at random."""
        goal, before = own.goal, own.original
        known, beyond = own.compared & ~np.isnan(before.total + before.variance), goal.max_gap or 0.0
        gap, loss, least = *np.full((2, len(own.f)), np.nan), np.nan
        if known[0] and known.sum() > 1:
            prior = NO_GAP_BY_GROUP if needs_group else NO_GAP
            true = TrueRates.of(before.total[known], before.variance[known], prior).draws(generator(seed, "expected loss"))
            gaps = true[:, 1:] - true[:, :1]
            moved = own.values[:, known] - own.values[0, known]
            moved = moved[:, 1:] - moved[:, :1]
            for k, each in enumerate(moved):
                size = np.abs(gaps + each).max(1)
                gap[k], loss[k] = size.mean(), np.maximum(size - beyond, 0.0).mean()
            least = float(np.maximum(np.abs(gaps - np.median(gaps, axis=0)).max(1) - beyond, 0.0).mean())
        change, error = own.performance - own.performance[0], own.performance_se(change=True)
        minimum = goal.settled(float(own.performance[0])).min_performance  # a relative one is counted from the original's
        assert minimum is not None  # cross-fitted selection always keeps performance
        lacks = {"performance": change - SURE * error < minimum - own.performance[0] - RATE_NOISE, "rates": np.zeros(len(own.f), bool)}
        for name, kept in goal.keep.items():
            rate, same = own.cells.rate(name), kept == BEFORE
            lower = rate - (rate[0] if same else float(kept)) - SURE * own.rate_se(name, change=same)
            lacks["rates"] |= (lower < -RATE_NOISE).any(-1)  # groups whose rate is undefined do not count
        changes, rise = {name: own.cells.rate(name) - own.cells.rate(name)[0] for name in RATES}, {}
        for name, most in {**dict.fromkeys(goal.max_rate, 1.0), **goal.rises}.items():
            rise[name] = np.nan_to_num(changes[name]).max(1)
            upper = changes[name] + RISE_SURE * own.rate_se(name, change=True)
            lacks[name] = (upper > most + RATE_NOISE).any(1)
            if name in goal.max_rate:
                before_rate = own.cells.rate(name)[0]
                lacks[name] |= (before_rate + upper > np.maximum(before_rate, goal.max_rate[name]) + RATE_NOISE).any(1)
        if goal.capacity is not None:  # the share flagged is that of the original, but for chance
            shares = own.cells.s.sum((-2, -1)) / own.cells.n.sum((-2, -1))
            chance = np.sqrt(goal.capacity * (1 - goal.capacity) / (own.units.max() + 1))
            lacks["capacity"] = np.abs(shares - shares[0]) > RISE_SURE * chance
        benefits, harms = unharmed(goal.measure)
        losses = [*(-changes[name] for name in benefits), *(changes[name] for name in harms)]
        fall = np.nan_to_num(np.stack(losses)).clip(min=0.0).max((0, 2)) if losses else np.zeros(len(own.f))
        gain = loss[0] - loss
        net = gain + change - fall - RANDOMISED_PRICE * randomised
        return cls(gap, gain, loss - least, change, error, fall, rise, net, lacks)

    def at(self, step: int) -> Expected:
        """The prospects of one step."""
        names = ("gap", "gain", "room", "performance", "performance_error", "fall", "net")
        values: dict[str, Any] = {name: float(getattr(self, name)[step]) for name in names}
        values["rise"] = {name: float(own[step]) for name, own in self.rise.items()}
        return Expected(gap_before=float(self.gap[0]), lacks=tuple(name for name, own in self.lacks.items() if own[step]), **values)


# Methods.


def choose_method(tried: Sequence[Sequence[LabelCandidate]]) -> int:
    """The position of the best of several methods, each with one candidate per label: the first of those with the largest net gain.

    By cross-fitted values if every candidate has them, otherwise by the paper's rule on the values of the rows that it was fitted to.

    - `tried`: for each method, the candidates of all labels.
    """
    if any(own.expected is None for each in tried for own in each):
        in_sample = []
        for each in tried:
            rows = [own.trace.iloc[own.chosen] for own in each]
            broken = {"too_low", "rate_too_low"}  # of a rate, which belongs to a group
            lost = [any(note.kind in broken and note.numbers.get("group", True) is not None for note in own.why) for own in each]
            results = [
                LabelResult(row["gap"], row["performance"], np.nan, -1.0 if low else None) for row, low in zip(rows, lost, strict=True)
            ]
            in_sample.append(merit(results, [own.goal for own in each]))
        return in_sample.index(max(in_sample))
    return int(np.argmax([np.mean([own.expected.net if own.chosen and own.expected else 0.0 for own in each]) for each in tried]))


# Steps, by cross-fitted values.


@dataclass(frozen=True)
class ChosenStep:
    """The step that is chosen, its position, and for each label the reasons, whether it meets its goal, that goal, and its prospects."""

    at: int
    step: int
    why: tuple[Why, ...]
    met: tuple[bool, ...]
    goals: tuple[Goal, ...]
    prospects: tuple[Prospects, ...] = ()
    best: int = 0  # the step that is chosen, or if the original stays, the declined step of the largest net gain


def choose_step(
    each: Sequence[StepEstimates],
    steps: Sequence[int],
    *,
    seed: int = 0,
    needs_group: bool = False,
    randomised: bool = False,
    without: BoolArray | None = None,
    originals: Sequence[float] | None = None,
) -> ChosenStep:
    """The step to keep, from the estimates of each label; the first step is the original.

    `needs_group` and `randomised` describe the rules of the other steps. Steps in `without` are not chosen. `originals` has the performance
    of the original on the rows of each label, from which the goal of the result counts a relative minimum; by default the estimate of the
    first step, which differs from it only if the original's threshold was chosen on these rows.
    """
    goals = [own.goal for own in each]
    originals = [float(own.performance[0]) for own in each] if originals is None else originals
    settled = tuple(goal.settled(original) for original, goal in zip(originals, goals, strict=True))
    prospects = tuple(Prospects.of(own, seed, needs_group, randomised) for own in each)
    gain, net = (np.mean([getattr(own, name) for own in prospects], axis=0) for name in ("gain", "net"))
    lacks = {"gain": ~(gain >= LEAST_GAIN) | np.any([own.gain <= -LEAST_GAIN for own in prospects], axis=0)}
    lacks |= {name: np.any([own.lacks[name] for own in prospects], axis=0) for name in prospects[0].lacks}
    lacks |= {"varied": np.zeros(len(steps), bool) if without is None else without, "net": ~(net > RATE_NOISE)}
    fine = ~np.logical_or.reduce([*lacks.values()])
    row = int(np.where(fine, net, -np.inf).argmax())
    others = np.where(np.isnan(net) | (np.arange(len(net)) == 0), -np.inf, net)
    best = row or int(others.argmax())
    why, met = [], []
    for own, goal, about in zip(each, settled, prospects, strict=True):
        short, most = goal.min_performance, goal.max_gap
        missed = (
            [] if short is None or own.performance[row] >= short - RATE_NOISE else [too_low(goal.performance, own.performance[row], short)]
        )
        missed += [] if most is None or about.gap[row] <= most + RATE_NOISE else [too_large(goal.measure, about.gap[row], most)]
        why.append((_reason(own, goal, about, row, best, lacks), *missed))
        met.append(not missed and bool(row or most is not None or about.room[0] < LEAST_GAIN))
    return ChosenStep(row, steps[row], tuple(why), tuple(met), settled, prospects, best)


def _reason(own: StepEstimates, goal: Goal, prospects: Prospects, row: int, best: int, lacks: Mapping[str, BoolArray]) -> Note:
    """The reason for choosing a step for a label, or for keeping the original."""
    numbers = {"of": len(own.f), "rows": len(own.y), "performance_of": goal.performance, **prospects.at(best).to_dict()}
    if row:
        return Note("expected_gain", goal.measure, {**numbers, "qualified": int((~np.logical_or.reduce([*lacks.values()])).sum())})
    if prospects.room[0] < LEAST_GAIN:
        return Note("nothing_to_repair", goal.measure, {**numbers, "max_gap": goal.max_gap})
    counts, left = dict[str, int](), ~np.isnan(prospects.gain)  # of each step, the first thing that it lacks
    left[0] = False
    for what, missing in lacks.items():
        counts[what], left = int((left & missing).sum()), left & ~missing
    least = own.goal.settled(float(own.performance[0])).min_performance
    return Note("declined", goal.measure, {**numbers, "lack": counts, "keep": goal.keep, "least": least, "max_rise": goal.rises})


def cross_fitted(
    candidate: LabelCandidate, evidence: StepEstimates, chosen: ChosenStep, at: int, rows: Sequence[int], part: Rows, run: MethodRun
) -> LabelCandidate:
    """One label's candidate with its corrected trace and its held-out decisions; `rows` are those of the trace that could be chosen."""
    trace, place = candidate.trace.copy(), chosen.at
    columns = {
        "gap_honest": evidence.gap,
        "gap_se": evidence.gap_se(),
        "performance_honest": evidence.performance,
        "performance_se": evidence.performance_se(),
        "expected_gap": chosen.prospects[at].gap,
    }
    places = trace.index[[*rows, rows[place]]]  # if a row stands for several shares, the chosen one is written last
    for name, values in columns.items():
        trace.loc[places, name] = [*values, values[place]]
    assert evidence.held is not None
    return replace(
        candidate,
        trace=trace,
        why=chosen.why[at],
        met_in_sample=chosen.met[at],
        goal=chosen.goals[at],
        expected=chosen.prospects[at].at(chosen.best),
        notes=(*candidate.notes, Note("cross_fitted", numbers={"rows": len(run.rows)})),
        held_out=HeldOutDecisions(evidence.held[0], evidence.held[place], part, list(run.goals.values())[at], len(run.goals)),
    )


# Steps, by the paper's rule.


@dataclass(frozen=True)
class Selection:
    """The chosen row of a trace, the reasons, and whether it meets the goal."""

    row: int
    why: Why
    met: bool


def selected(what: str, by: str, goal: Goal, qualified: int | None, of: int, taken: float | None = None) -> Note:
    """The note on a choice by smallest gap or best performance among the `qualified` of `of` steps that meet this goal.

    `taken` is the value of the chosen step if none qualifies. `qualified` is None if all were considered.
    """
    limits = {name: getattr(goal, name) for name in ("measure", "performance", "min_performance", "max_gap", "keep")}
    return Note("selected", what, {"by": by, "qualified": qualified, "of": of, "taken": None if taken is None else float(taken), **limits})


def too_low(name: str, value: float, least: float, group: str | None = None) -> Note:
    """The note on a performance, or a rate of a group, below its minimum."""
    return Note("too_low", name, {"value": float(value), "least": float(least), "group": group})


def too_large(measure: str, size: float, most: float) -> Note:
    """The note on a |gap| above its maximum."""
    return Note("too_large", measure, {"value": float(size), "most": float(most)})


def merits(size: FloatArray, performance: FloatArray, spare: FloatArray, goals: Sequence[Goal]) -> tuple[IntArray, FloatArray]:
    """The tiers and values (steps,) of steps by the settled goals of their labels, from |gap|, performance and margin (labels, steps).

    The largest |gap| of all labels counts, if every label has its minimum performance (or, without one, its maximum |gap|); with maximum
    gaps only, the mean performance. If a label misses its goal, the largest shortfall counts. A goal without limits, as of classifiers that
    are compared without a repair set, is met by every step. The margin over the limits of kept rates is NaN if the goal keeps none.
    """
    kept, limited = ~(spare < -RATE_NOISE).any(0), [goal.min_performance is not None for goal in goals]
    margin = np.full(size.shape[1], np.inf)
    for k, goal in enumerate(goals):
        if goal.min_performance is not None:
            margin = np.minimum(margin, performance[k] - goal.min_performance)
        elif goal.max_gap is not None:
            margin = np.minimum(margin, goal.max_gap - size[k])
    fine = kept & (margin >= -RATE_NOISE)
    value = np.where(fine, -size[limited].max(0) if any(limited) else performance.mean(0), margin)
    return kept.astype(np.int64) + fine, np.where(np.isnan(value), -np.inf, value)


def merit(each: Sequence[LabelResult], goals: Sequence[Goal]) -> Merit:
    """The merit of one step, from the results of its labels."""
    rows = [(own.size, own.performance, np.nan if own.spare is None else own.spare) for own in each]
    size, performance, spare = np.array(rows).T[:, :, None]
    tier, value = merits(size, performance, spare, goals)
    return int(tier[0]), float(value[0])


def missed_limits(result: LabelResult, settled: Goal, given: Goal) -> Why:
    """The parts of its goal that the chosen step of one label misses; empty if it meets the goal.

    `settled` is the goal that steps were chosen by, `given` the one whose minimum performance counts.
    """
    missed = []
    if given.min_performance is not None and result.performance < given.min_performance - RATE_NOISE:
        missed.append(too_low(given.performance, result.performance, given.min_performance))
    if settled.max_gap is not None and result.size > settled.max_gap + RATE_NOISE:
        missed.append(too_large(settled.measure, result.size, settled.max_gap))
    if result.spare is not None and result.spare < -RATE_NOISE:
        missed.append(Note("rate_too_low", numbers={"by": -result.spare}))
    return tuple(missed)


def select(trace: pd.DataFrame, goal: Goal) -> Selection:
    """The step of best merit on the trace of one label: the smallest |gap| among steps with at least the minimum performance.

    With a maximum |gap| only: the best performance among steps within it. If no step qualifies: the best performance, or the smallest
    |gap|, and `met` is False. If the goal keeps rates, steps that do not keep them come last.
    """
    size, performance = trace["gap"].abs().fillna(np.inf).to_numpy(), trace["performance"].to_numpy()
    spare = trace["spare"].to_numpy() if "spare" in trace and goal.keep else np.full(len(trace), np.nan)
    tier, value = merits(size[None], performance[None], spare[None], [goal])
    top = np.flatnonzero(tier == tier.max())
    row, fine = int(top[value[top].argmax()]), int((tier == 2).sum())
    if goal.min_performance is None:
        by = "performance" if fine else "gap"
        return Selection(row, (selected("step", by, goal, fine, len(trace), size[row]),), bool(fine))
    without_gap = goal.derived(max_gap=None)
    if not fine:
        return Selection(row, (selected("step", "performance", without_gap, 0, len(trace), performance[row]),), False)
    why = selected("step", "gap", without_gap, fine, len(trace))
    if goal.max_gap is not None and size[row] > goal.max_gap + RATE_NOISE:
        return Selection(row, (why, too_large(goal.measure, size[row], goal.max_gap)), False)
    return Selection(row, (why,), True)


def nearness(candidate: LabelCandidate, goal: Goal) -> Note | None:
    """The note on the steps that came nearest to a goal that the chosen one misses; None if it meets all limits in the trace.

    For each limit of the goal: the number of steps that meet it, and the values of the step that is nearest to it. `goal` is the goal as
    given. With cross-fitted selection, the values are those that the choice was based on: expected |gap|, estimated performance.
    """
    trace, honest = candidate.trace, "gap_honest" in candidate.trace
    limits_goal = goal if honest else candidate.goal  # with a derived minimum performance, which honest selection does not have
    size, performance = trace["gap"].abs().to_numpy(), trace["performance"].to_numpy()  # NaN if a quotient is undefined
    if honest:
        trace = trace[trace["gap_honest"].notna() | (np.arange(len(trace)) == candidate.chosen)]
        size, performance = trace["expected_gap"].to_numpy(), trace["performance_honest"].to_numpy()
    # For each limit: the value of each step (for rates, the smallest margin over their limits), and the amount by which it misses it.
    demands: dict[str, tuple[FloatArray, FloatArray]] = {}
    if limits_goal.min_performance is not None:
        demands["performance"] = performance, np.clip(limits_goal.min_performance - performance, 0.0, None)
    if limits_goal.max_gap is not None:
        demands["gap"] = size, np.where(np.isnan(size), np.inf, np.clip(size - limits_goal.max_gap, 0.0, None))
    if limits_goal.keep and "spare" in trace and not honest:  # otherwise there is a note for each rate that is too low
        demands["rates"] = trace["spare"].to_numpy(), np.clip(-trace["spare"].to_numpy(), 0.0, None)
    if not demands:
        return None
    short = np.stack([own for _, own in demands.values()])  # (demands, steps)
    have, chosen = short <= RATE_NOISE, int(np.flatnonzero(trace.index == candidate.trace.index[candidate.chosen])[0])
    if have[:, chosen].all() or (len(demands) == 1 and have.any()):
        return None  # with one limit, the method had other reasons not to choose those steps
    # For each limit, the step nearest to it; among equals, the one nearest to the other limits.
    rows = dict.fromkeys(int(np.lexsort((short.sum(0), own))[0]) for own in short)
    numbers = {
        "of": have.shape[1],
        "expected": honest,
        "have": {what: int(own.sum()) for what, own in zip(demands, have, strict=True)},
        "apart": len(demands) > 1 and bool(have.any(1).all() and not have.all(0).any()),
        "nearest": [{what: float(reached[row]) for what, (reached, _) in demands.items()} for row in rows],
    }
    limits = {name: getattr(limits_goal, name) for name in ("measure", "performance", "min_performance", "max_gap", "keep")}
    return Note("nearest", "steps", {**numbers, **limits})


def plain_rule(method: str, threshold: float, rows: Rows, goal: Goal, original: bool = False) -> Threshold:
    """The threshold of a chosen step; for the original, the one in use if the goal names it."""
    if original and goal.threshold is not None:
        return Threshold(goal.threshold, IN_USE)
    return Threshold(float(threshold), f"chosen by {method} with {goal} on {len(rows):,} rows of {rows.name}")


# Constant decisions: the same for every row of a group. They have no gap but are useless, so no repair may end in them, unless the
# decisions of the original are constant already. Such a step is refused, and the best of the others is chosen.


def is_constant(decisions: FloatArray, codes: IntArray) -> BoolArray:
    """Whether decisions (..., n) are constant within every group (...); rows without a group count as a group.

    >>> is_constant(np.array([[0, 0, 1, 1], [0, 0, 0, 0], [0, 1, 1, 1]]), np.array([0, 0, 1, 1])).tolist()
    [True, True, False]
    """
    same: BoolArray = np.logical_and.reduce([np.ptp(decisions[..., codes == code], axis=-1) == 0 for code in np.unique(codes)])
    return same


def newly_constant(decisions: FloatArray, codes: IntArray) -> BoolArray:
    """The steps (steps,) that are refused for their constant decisions (steps, n); the first step is the original."""
    constant_steps = is_constant(decisions, codes)
    newly_constant: BoolArray = constant_steps & ~constant_steps[0]
    return newly_constant
