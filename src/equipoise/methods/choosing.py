"""The choice by cross-fitted values: among the steps of a method, and among methods, by the same criterion (`choose`).

An option qualifies for a label if its estimated performance reaches the minimum and the kept rates reach their limits. Of the options that
qualify for every label, the one with the smallest upper limit, |gap| plus one standard error, is chosen; the largest upper limit of any
label counts. A randomised rule, or one that needs each patient's group, must be better by two standard errors than the best of the others.

Steps. A relative minimum of performance is counted from the original, at thresholds and on rows that are cross-fitted too. The estimate
must reach it before smoothing as well, since the outcome is judged by it. Kept rates must reach their limits with one standard error to
spare. With "one-se", the best performing of all steps whose |gap| differs from the chosen one by at most the standard error of the
difference is taken. The original is kept if no step has a smaller |gap| by more than half the standard error of its change, if the original
is clearly within the maximum gap, and if its gap is too small relative to its standard error. `why` gives the reason.

How large the gap must be depends on the rule. A fit that removes an observed gap g + e, where e is chance, leaves -e, and cross-fitting
cannot detect this: whatever rows are left out, the errors of the parts cancel in the sum. A rule that needs each patient's group turns all
of e into a new gap, so it requires a gap of three standard errors. A rule that needs no group does so only as far as the inputs separate
the groups, so half a standard error is enough. Another threshold for all groups requires one standard error, since it may have to move far
for a small gap. (Measured with 59 networks of Adult, Bank and COMPAS and 200 to 30,000 rows: removing only the share z^4 / (1 + z^4) of a
gap of z standard errors left more of it on new patients, and in 12 simulations without a gap it made no difference. The seeds are none of
those in results/anywhere.)

Methods. Each is the step that was chosen for it. Its |gap| is the root mean square of two estimates: the corrected value of the fit to all
rows, and that of decisions not fitted to their rows. If a method overfits its patients, the first is too small; the second, from fits to
fewer rows, is too large and more variable. A method for which both are small is better than one whose estimates disagree. Methods within
half a standard error of the best count as equally good, and the first of them is taken; with few rows, probes, which have many
coefficients, come last. The original is taken only if no other method changes anything.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from equipoise.data import BoolArray, Rows
from equipoise.measures import FloatArray
from equipoise.methods.candidate import LabelCandidate
from equipoise.methods.contract import LEAST, METHODS, PROBED_ROWS, Kind
from equipoise.methods.evidence import Evidence
from equipoise.methods.goal import BEFORE, Goal, Note, Why
from equipoise.methods.kept_rates import NOISE
from equipoise.methods.outcome import performance_limit
from equipoise.methods.selection import choose_in_sample

SURE = 1.0  # standard errors between an estimate and its confidence bound
CHANGE = 0.5  # standard errors of a change of the gap, below which it counts as chance
SAME = 0.5  # methods whose gaps differ by fewer standard errors than this count as equally good
CLEARLY = 2.0  # standard errors by which a randomised rule, or one that needs each patient's group, must be better


@dataclass(frozen=True, eq=False)
class LabelOptions:
    """The options to choose among for one label, each value (options,)."""

    size: FloatArray  # |gap|; NaN if it is undefined
    error: FloatArray  # the standard error of the gap
    performance: FloatArray
    enough: BoolArray  # whether performance reaches its minimum
    kept: BoolArray  # whether the kept rates reach their limits

    @property
    def upper(self) -> FloatArray:
        """The upper limit of |gap|."""
        return self.size + SURE * self.error


@dataclass(frozen=True, eq=False)
class Options:
    """The options to choose among, for every label."""

    labels: Sequence[LabelOptions]
    allowed: BoolArray
    needs: Sequence[tuple[bool, bool]]  # whether the rule is randomised, and whether it needs each patient's group
    later: FloatArray  # rank among equals, the smallest first

    @cached_property
    def qualified(self) -> BoolArray:
        """The options that qualify for every label; an undefined gap is not a small one."""
        return self.allowed & _all(label.enough & label.kept & ~np.isnan(label.size) for label in self.labels)

    @cached_property
    def loss(self) -> FloatArray:
        """What the chosen option has least of: the upper limit of |gap|, for the label where it is largest."""
        largest: FloatArray = np.max([label.upper for label in self.labels], axis=0)
        return largest

    @cached_property
    def error(self) -> FloatArray:
        """The standard error of the gap whose upper limit is the loss."""
        worst = np.argmax([label.upper for label in self.labels], axis=0)
        errors: FloatArray = np.array([label.error for label in self.labels])[worst, np.arange(len(worst))]
        return errors


def choose(options: Options, equal: Callable[[int], BoolArray]) -> int | None:
    """The position of the best option; None if none qualifies. `equal` are the options that count as as good as the one at a position."""
    taken, least = None, float("inf")  # `least` is the smallest loss of options that need less, whether it was taken or not
    for needs in sorted({options.needs[k] for k in np.flatnonzero(options.qualified).tolist()}):
        eligible = options.qualified & np.array([own == needs for own in options.needs])
        best = int(np.where(eligible, options.loss, np.inf).argmin())
        first = int(np.where(eligible & equal(best), options.later, np.inf).argmin())
        if taken is None or least - options.loss[first] > CLEARLY * options.error[first] + NOISE:
            taken = first
        least = min(least, float(options.loss[best]))
    return taken


# Methods.


def choose_method(tried: Sequence[Sequence[LabelCandidate]], parts: Sequence[Rows] | None) -> int:
    """The position of the best of several methods; each has one candidate per label, and `parts` has the rows of each label.

    By cross-fitted values if every candidate has them, otherwise by the paper's rule on the values of the rows that it was fitted to.
    """
    if parts is None or any(own.held_out is None for each in tried for own in each):
        return choose_in_sample(tried)
    labels = [_label_options(candidates, part) for candidates, part in zip(zip(*tried, strict=True), parts, strict=True)]
    rules = [[own.rule for own in each] for each in tried]
    needs = [(any(rule.randomised for rule in own), any(rule.needs_group for rule in own)) for own in rules]
    later = [any(few_rows_for_probes(own, part) for own, part in zip(each, parts, strict=True)) for each in tried]
    options = Options(labels, np.ones(len(tried), bool), needs, np.array(later, dtype=np.float64))
    changed = np.array([any(own.chosen for own in each) for each in tried])
    if (options.qualified & changed).any():
        options = replace(options, allowed=changed)
    best = choose(options, lambda best: options.loss - options.loss[best] <= SAME * options.error[best] + NOISE)
    return int(np.min([label.performance for label in labels], axis=0).argmax()) if best is None else best


def _label_options(candidates: Sequence[LabelCandidate], rows: Rows) -> LabelOptions:
    """The candidates of several methods for one label."""
    sizes, errors = np.array([size_and_error(own, rows) for own in candidates]).T
    performance = np.array([float(own.trace["performance_honest"].iloc[own.chosen]) for own in candidates])
    return LabelOptions(sizes, errors, performance, np.array([performance_holds(own) for own in candidates]), np.ones(len(sizes), bool))


def size_and_error(candidate: LabelCandidate, rows: Rows) -> tuple[float, float]:
    """|gap| of a candidate as the root mean square of its two estimates, and its standard error."""
    row, held = candidate.trace.iloc[candidate.chosen], candidate.held_out
    assert held is not None  # the caller compares cross-fitted candidates
    held_out_gap = float(Evidence.of(held.after[None], rows, candidate.goal).gap[0])
    return float(np.sqrt((row["gap_honest"] ** 2 + held_out_gap**2) / 2)), float(row["gap_se"])


def performance_holds(candidate: LabelCandidate) -> bool:
    """Whether the cross-fitted performance of the chosen step reaches its minimum, which is counted from that of the original."""
    values = candidate.trace["performance_honest"]
    least = performance_limit(candidate.goal, float(values.iloc[0]))
    return bool(values.iloc[candidate.chosen] >= least - NOISE)


def few_rows_for_probes(candidate: LabelCandidate, rows: Rows) -> bool:
    """Whether a candidate is the result of probes, which have many coefficients, on few rows."""
    return METHODS[candidate.method].kind == Kind.PROBES and len(rows) < PROBED_ROWS


# Steps.


@dataclass(frozen=True)
class Verdict:
    """The step that is chosen, its position, and for each label the reasons, whether it meets its goal, and that goal."""

    at: int
    step: int
    why: tuple[Why, ...]
    met: tuple[bool, ...]
    goals: tuple[Goal, ...]


def choose_step(
    each: Sequence[Evidence],
    steps: Sequence[int],
    goals: Sequence[Goal],
    least: float = LEAST,
    without: BoolArray | None = None,
    held: Sequence[FloatArray] | None = None,
    originals: Sequence[float] | None = None,
) -> Verdict:
    """The step to keep, from the evidence of each label; the first step is the original.

    `least` is the smallest gap, in standard errors, on which the method may act. Steps in `without` are not chosen. `held` has the held-out
    decisions (steps, n) of each label, by which the outcome will be judged. `originals` has the performance of the original on the rows of
    each label, from which the goal of the result counts a relative minimum; by default the estimate of the first step, which differs from
    it only if the original's threshold was chosen on these rows.
    """
    originals = [float(own.performance[0]) for own in each] if originals is None else originals
    settled = [goal.settled(original) for original, goal in zip(originals, goals, strict=True)]
    needed = [_needed(own, goal, None if held is None else held[at]) for at, (own, goal) in enumerate(zip(each, goals, strict=True))]
    labels = [
        LabelOptions(
            np.abs(own.gap), own.gap_se(), own.performance, _all(reached >= least - NOISE for reached, least in limits), _kept(own, goal)
        )
        for own, goal, limits in zip(each, goals, needed, strict=True)
    ]
    varied = np.ones(len(steps), bool) if without is None else ~without
    one_se = goals[0].selection == "one-se"
    later = -np.mean([label.performance for label in labels], axis=0) if one_se else np.zeros(len(steps))
    options = Options(labels, varied, [(False, False)] * len(steps), later)  # steps have the rule of their method

    def equal(best: int) -> BoolArray:
        if not one_se:
            smallest: BoolArray = options.loss <= options.loss[best]
            return smallest
        pairs = zip(each, labels, strict=True)
        return _all(label.size - label.size[best] <= SURE * own.gap_se(against=best) + NOISE for own, label in pairs)

    row = choose(options, equal)
    if row is None:
        lacking = tuple((_lacking(own, goal, label),) for own, goal, label in zip(each, settled, labels, strict=True))
        return Verdict(0, steps[0], lacking, (False,) * len(each), tuple(settled))
    fine = options.qualified
    certain = [_certain(fine, label.upper, goal) for label, goal in zip(labels, settled, strict=True)]
    worst = int(np.argmax([label.size[0] for label in labels]))
    within = all(goal.max_gap is not None and own[0] for goal, own in zip(settled, certain, strict=True))
    z = float(labels[worst].size[0]) / max(each[worst].cautious_se(), NOISE)
    if fine[0] and row and (within or not _better(each[worst], row) or z < least):
        row = 0
    too_small = (z, least) if least > SURE and z < least else None
    reasons: list[tuple[Why, bool]] = []
    for own, label, goal, sure, limits in zip(each, labels, settled, certain, needed, strict=True):
        why, met = _reason(row, len(steps), int(fine.sum()), own, label, sure, goal, too_small)
        if why is None:
            lacks = {"performance": ~label.enough, "rates": ~label.kept, "varied": ~varied, "labels": ~fine, "sure": fine}
            why = (_declined(own, float(label.error[0]), goal, steps, lacks, limits),)
        reasons.append((why, met))
    return Verdict(row, steps[row], tuple(why for why, _ in reasons), tuple(met for _, met in reasons), tuple(settled))


def _better(evidence: Evidence, row: int) -> bool:
    """Whether a step has a smaller |gap| than the original, by a change of the signed gap that is more than chance."""
    before, after = evidence.gap[0], evidence.gap[row]
    return bool(abs(after) < abs(before) - NOISE and abs(after - before) > CHANGE * evidence.change_se()[row])


def _all(conditions: Iterable[BoolArray]) -> BoolArray:
    """The steps for which all conditions hold."""
    hold: BoolArray = np.logical_and.reduce(list(conditions))
    return hold


def _certain(fine: BoolArray, upper: FloatArray, goal: Goal) -> BoolArray:
    """The qualified steps that are clearly within a label's maximum gap; without one, all of them."""
    return fine & (upper <= goal.max_gap + NOISE) if goal.max_gap is not None else fine


def _reason(
    row: int,
    steps: int,
    qualified: int,
    evidence: Evidence,
    label: LabelOptions,
    certain: BoolArray,
    goal: Goal,
    too_small: tuple[float, float] | None,
) -> tuple[Why | None, bool]:
    """The reason for choosing a step for a label, or for keeping the original, and whether that meets the label's goal.

    It is None if the original was kept because no step is better; `_declined` then states what the other steps lack.
    """
    size, error = label.size, label.error
    estimate = {"gap": float(evidence.gap[row]), "error": float(error[row]), "corrected": _corrected(evidence, row)}
    met, rows = bool(certain[row]), len(evidence.y)
    unsure: Why = ()
    if goal.max_gap is not None and not met:
        limits = {
            "value": float(size[row] + SURE * error[row]),
            "most": goal.max_gap,
            "rows": _rows_needed(size[row], error[row], goal.max_gap, rows),
        }
        unsure = (Note("not_surely_within", goal.measure, limits),)
    if row:
        return (Note("cross_fitted_choice", goal.measure, {"of": steps, "qualified": qualified, **estimate}), *unsure), met
    if goal.max_gap is not None and met:
        return (Note("original_within", goal.measure, {"max_gap": goal.max_gap, **estimate}),), True
    if too_small is not None:
        return (Note("not_surely_there", goal.measure, {"z": too_small[0], "least": too_small[1], **estimate}), *unsure), False
    if size[0] <= SURE * error[0]:
        return (Note("nothing_to_repair", goal.measure, {"rows": rows, **estimate}), *unsure), goal.max_gap is None
    return None, False


def _corrected(evidence: Evidence, row: int) -> bool:
    """Whether the estimates of a step are corrected for optimism; those of the original at a threshold in use are not."""
    return not np.isin(evidence.f[row], (0.0, 1.0)).all()


def _declined(
    evidence: Evidence,
    error: float,
    goal: Goal,
    steps: Sequence[int],
    lacks: Mapping[str, BoolArray],
    needed: Sequence[tuple[FloatArray, float]],
) -> Note:
    """The note on an original that was kept because no step is better: how many steps have a smaller |gap|, and what these lack.

    A step counts for the first thing that it lacks: performance, kept rates, decisions that vary within a group, the limits of other
    labels, or a change that is more than chance. `nearest` is the step with the smallest |gap| of those whose performance is too low.
    """
    size = np.abs(evidence.gap)
    smaller = size < size[0] - NOISE
    counts, left = dict[str, int](), smaller
    for what, missing in lacks.items():
        counts[what], left = int((left & missing).sum()), left & ~missing
    numbers = {
        "gap": float(evidence.gap[0]),
        "error": error,
        "corrected": _corrected(evidence, 0),
        "of": len(steps),
        "smaller": int(smaller.sum()),
        "lack": counts,
        "performance": goal.performance,
        "keep": goal.keep,
        "nearest": None,
    }
    if counts["performance"]:
        row = int(np.where(smaller & lacks["performance"], size, np.inf).argmin())
        value, least = next((float(own[row]), least) for own, least in needed if own[row] < least - NOISE)
        numbers["nearest"] = {"step": int(steps[row]), "gap": float(evidence.gap[row]), "performance": value, "least": least}
    return Note("declined", goal.measure, numbers)


def _rows_needed(size: float, error: float, max_gap: float, rows: int) -> int | None:
    """The approximate number of rows for which such a gap would be clearly within the maximum gap; None if no number suffices."""
    return None if size >= max_gap else int(np.ceil(rows * (SURE * error / (max_gap - size)) ** 2 / 100) * 100)


def _needed(evidence: Evidence, goal: Goal, held: FloatArray | None) -> list[tuple[FloatArray, float]]:
    """The performances (steps,) that must reach a limit, each with that limit; a relative one is counted from the original's.

    They are the estimates and, by held-out decisions (steps, n), the held-out performance, for which that of the original is enough.
    """
    least = goal.settled(float(evidence.performance[0])).min_performance
    assert least is not None  # cross-fitted selection always keeps performance
    if held is None:
        return [(evidence.performance, least)]
    held_out = replace(evidence, f=held).performance
    least_held_out = goal.settled(float(held_out[0])).min_performance
    assert least_held_out is not None
    return [(evidence.performance, least), (held_out, min(least_held_out, float(held_out[0])))]


def _kept(evidence: Evidence, goal: Goal) -> BoolArray:
    """The steps that clearly keep the rates of every group."""
    kept = np.ones(len(evidence.f), bool)
    for name, least in goal.keep.items():
        rate = evidence.rate(name)
        if least == BEFORE:
            lower = rate - rate[0] - SURE * evidence.rate_se(name, against=0)
        else:
            lower = rate - float(least) - SURE * evidence.rate_se(name)
        kept &= ~(lower < -NOISE).any(-1)  # groups whose rate is undefined do not count
    return kept


def _lacking(evidence: Evidence, goal: Goal, label: LabelOptions) -> Note:
    """The note on a choice without any qualified step: how many steps meet each constraint, and the best performance."""
    best = int(evidence.performance.argmax())
    numbers = {
        "enough": int(label.enough.sum()),
        "kept": int(label.kept.sum()),
        "of": len(label.kept),
        "best": float(evidence.performance[best]),
        "error": float(evidence.performance_se()[best]),
        "min_performance": goal.min_performance,
        "keep": goal.keep,
    }
    return Note("none_surely", goal.performance, numbers)
