"""The choice among the steps of a method, and among methods: by cross-fitted values (`choose`), or by the paper's rule (`merit`).

The paper's rule takes values on the rows that a step was fitted to. The rest of this page is about cross-fitted values.

An option qualifies for a label if its estimated performance reaches the minimum and the kept rates reach their limits. Of the options that
qualify for every label, the one with the smallest upper limit, |gap| plus one standard error, is chosen; the largest upper limit of any
label counts. A randomised rule, or one that needs each patient's group, must be better by two standard errors than the best of the others.

Steps. A relative minimum of performance is counted from the original, at thresholds and on rows that are cross-fitted too. The estimate
must reach it before smoothing as well, since the outcome is judged by it. Kept rates must reach their limits with one standard error to
spare. With "one-se", the best performing of all steps whose |gap| differs from the chosen one by at most the standard error of the
difference is taken. The original is kept if no step has a smaller |gap| by more than half the standard error of its change, if the original
is clearly within the maximum gap, and if its gap is too small relative to its standard error.

How large the gap must be depends on the rule. A fit that removes an observed gap g + e, where e is chance, leaves -e, and cross-fitting
cannot detect this: whatever rows are left out, the errors of the parts cancel in the sum. A rule that needs each patient's group turns all
of e into a new gap, so it requires a gap of three standard errors. A rule that needs no group does so only as far as the inputs separate
the groups, so half a standard error is enough. Another threshold for all groups requires one standard error, since it may have to move far
for a small gap. (Measured with 59 networks of Adult, Bank and COMPAS and 200 to 30,000 rows: removing only the share z^4 / (1 + z^4) of a
gap of z standard errors left more of it on new patients, and in 12 simulations without a gap it made no difference. The seeds are none of
those in experiments/anywhere.)

Methods. Each is the step that was chosen for it. Its |gap| is the root mean square of two estimates: the corrected value of the fit to all
rows, and that of decisions not fitted to their rows. If a method overfits its patients, the first is too small; the second, from fits to
fewer rows, is too large and more variable. A method for which both are small is better than one whose estimates disagree. Methods within
half a standard error of the best count as equally good, and the first of them is taken; with few rows, probes, which have many
coefficients, come last. The original is taken only if no other method changes anything.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from equipoise.data import BoolArray, FloatArray, IntArray, Rows
from equipoise.measures import Threshold
from equipoise.methods.candidate import HeldOutDecisions, LabelCandidate
from equipoise.methods.contract import LEAST_GAP, METHODS, PROBED_ROWS, Kind, MethodRun
from equipoise.methods.evaluation import RATE_NOISE, LabelResult
from equipoise.methods.goal import BEFORE, Goal, Note, Why
from equipoise.methods.outcome import performance_limit
from equipoise.methods.step_estimates import StepEstimates

SURE = 1.0  # standard errors between an estimate and its confidence bound
CHANGE = 0.5  # standard errors of a change of the gap, below which it counts as chance
SAME = 0.5  # methods whose gaps differ by fewer standard errors than this count as equally good
CLEARLY = 2.0  # standard errors by which a randomised rule, or one that needs each patient's group, must be better
WORST = [np.nan, -1.0]  # gap and performance of a refused step, with which it is never chosen
IN_USE = "in use today, as given"  # origin of a threshold that was not chosen
Merit = tuple[int, float]  # of a step: first its tier (1 if the rates are kept, 2 if all goals are met too), then its value within the tier


def choose(
    size: FloatArray, error: FloatArray, fine: BoolArray, needs: Sequence[tuple[bool, bool]] = (), later: FloatArray | None = None
) -> int | None:
    """The position of the best option; None if none is fine.

    `size` and `error` (labels, options) are |gap| and its standard error. `needs` says whether the rule is randomised, and whether it needs
    each patient's group; without it, no rule differs from the others. With `later`, options within half a standard error of the best are
    equally good, and this is their rank, the smallest first.
    """
    needs = needs or [(False, False)] * len(fine)
    upper = size + SURE * error
    worst, options = upper.argmax(0), np.arange(len(fine))
    loss, loss_error = upper[worst, options], error[worst, options]  # of the label where the upper limit is largest
    taken, least = None, float("inf")  # `least` is the smallest loss of options that need less, whether it was taken or not
    for own in sorted({needs[k] for k in np.flatnonzero(fine).tolist()}):
        eligible = fine & np.array([other == own for other in needs])
        best = int(np.where(eligible, loss, np.inf).argmin())
        same = loss - loss[best] <= SAME * loss_error[best] + RATE_NOISE
        first = best if later is None else int(np.where(eligible & same, later, np.inf).argmin())
        if taken is None or least - loss[first] > CLEARLY * loss_error[first] + RATE_NOISE:
            taken = first
        least = min(least, float(loss[best]))
    return taken


# Methods.


def choose_method(tried: Sequence[Sequence[LabelCandidate]], parts: Sequence[Rows] | None) -> int:
    """The position of the best of several methods; each has one candidate per label, and `parts` has the rows of each label.

    By cross-fitted values if every candidate has them, otherwise by the paper's rule on the values of the rows that it was fitted to.
    """
    if parts is None or any(own.held_out is None for each in tried for own in each):
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
    values = [[cross_fitted_values(own, part) for own, part in zip(each, parts, strict=True)] for each in tried]
    size, error, holds, few = np.array(values, dtype=np.float64).transpose(2, 1, 0)  # (labels, methods)
    needs = [(any(own.rule.randomised for own in each), any(own.rule.needs_group for own in each)) for each in tried]
    fine = holds.all(0) & ~np.isnan(size).any(0)
    changed = np.array([any(own.chosen for own in each) for each in tried])
    fine = fine & changed if (fine & changed).any() else fine
    best = choose(size, error, fine, needs, later=few.max(0))
    if best is None:
        best = int(np.argmax([min(own.trace["performance_honest"].iloc[own.chosen] for own in each) for each in tried]))
    return best


def cross_fitted_values(candidate: LabelCandidate, rows: Rows) -> tuple[float, float, bool, bool]:
    """|gap| of a candidate as the root mean square of its two estimates, its standard error, and two facts.

    The facts are whether performance reaches its minimum, which is counted from that of the original, and whether the candidate is the
    result of probes, which have many coefficients, on few rows.
    """
    row, held, before = candidate.trace.iloc[candidate.chosen], candidate.held_out, float(candidate.trace["performance_honest"].iloc[0])
    assert held is not None  # the caller compares cross-fitted candidates
    held_out_gap = float(StepEstimates.of(held.after[None], rows, candidate.goal).gap[0])
    size = float(np.sqrt((row["gap_honest"] ** 2 + held_out_gap**2) / 2))
    holds = bool(row["performance_honest"] >= performance_limit(candidate.goal, before) - RATE_NOISE)
    few = METHODS[candidate.method].kind == Kind.PROBES and len(rows) < PROBED_ROWS
    return size, float(row["gap_se"]), holds, few


# Steps, by cross-fitted values.


@dataclass(frozen=True)
class ChosenStep:
    """The step that is chosen, its position, and for each label the reasons, whether it meets its goal, and that goal."""

    at: int
    step: int
    why: tuple[Why, ...]
    met: tuple[bool, ...]
    goals: tuple[Goal, ...]


def choose_step(
    each: Sequence[StepEstimates],
    steps: Sequence[int],
    least: float = LEAST_GAP,
    without: BoolArray | None = None,
    originals: Sequence[float] | None = None,
) -> ChosenStep:
    """The step to keep, from the estimates of each label; the first step is the original.

    `least` is the smallest gap, in standard errors, on which the method may act. Steps in `without` are not chosen. `originals` has the
    performance of the original on the rows of each label, from which the goal of the result counts a relative minimum; by default the
    estimate of the first step, which differs from it only if the original's threshold was chosen on these rows.
    """
    goals = [own.goal for own in each]
    originals = [float(own.performance[0]) for own in each] if originals is None else originals
    settled = tuple(goal.settled(original) for original, goal in zip(originals, goals, strict=True))
    size, error = np.abs([own.gap for own in each]), np.array([own.gap_se() for own in each])  # (labels, steps)
    needed: list[list[tuple[FloatArray, float]]] = []  # of each label, the performances (steps,) that must reach a limit, with that limit
    kept: list[BoolArray] = []  # the steps that clearly keep the rates of every group
    for own in each:
        needed.append([])
        for f in (own.f, own.held):  # the estimates; and the held-out decisions, for which the original's performance is enough
            if f is not None:
                reached = own.performance if f is own.f else replace(own, f=f).performance
                limit = own.goal.settled(float(reached[0])).min_performance  # a relative one is counted from the original's
                assert limit is not None  # cross-fitted selection always keeps performance
                needed[-1].append((reached, limit if f is own.f else min(limit, float(reached[0]))))
        kept.append(np.ones(len(own.f), bool))
        for name, minimum in own.goal.keep.items():
            rate, before = own.cells.rate(name), minimum == BEFORE
            lower = rate - (rate[0] if before else float(minimum)) - SURE * own.rate_se(name, against=0 if before else None)
            kept[-1] &= ~(lower < -RATE_NOISE).any(-1)  # groups whose rate is undefined do not count
    enough = [np.logical_and.reduce([reached >= limit - RATE_NOISE for reached, limit in limits]) for limits in needed]
    varied = np.ones(len(steps), bool) if without is None else ~without
    fine = varied & np.logical_and.reduce([*enough, *kept, *~np.isnan(size)])
    row = choose(size, error, fine)  # steps have the rule of their method
    if row is not None and goals[0].selection == "one-se":
        same = [own - own[row] <= SURE * found.gap_se(against=row) + RATE_NOISE for own, found in zip(size, each, strict=True)]
        performance = np.mean([own.performance for own in each], axis=0)
        row = int(np.where(fine & np.logical_and.reduce(same), performance, -np.inf).argmax())
    if row is None:
        none: list[Why] = []  # how many steps meet each constraint, and the best performance
        for own, goal, enough_own, kept_own in zip(each, settled, enough, kept, strict=True):
            best = int(own.performance.argmax())
            numbers = {"best": float(own.performance[best]), "error": float(own.performance_se()[best])}
            counts = {"enough": int(enough_own.sum()), "kept": int(kept_own.sum()), "of": len(steps)}
            limits = {"min_performance": goal.min_performance, "keep": goal.keep}
            none.append((Note("none_surely", goal.performance, {**counts, **numbers, **limits}),))
        return ChosenStep(0, steps[0], tuple(none), (False,) * len(each), settled)
    # The qualified steps that are clearly within a label's maximum gap; without one, all of them.
    upper = size + SURE * error
    certain = [
        fine if goal.max_gap is None else fine & (own <= goal.max_gap + RATE_NOISE) for own, goal in zip(upper, settled, strict=True)
    ]
    worst = int(size[:, 0].argmax())
    within = all(goal.max_gap is not None and own[0] for goal, own in zip(settled, certain, strict=True))
    z = float(size[worst, 0]) / max(each[worst].cautious_se(), RATE_NOISE)
    if fine[0] and row:
        first, after = each[worst].gap[0], each[worst].gap[row]
        better = abs(after) < abs(first) - RATE_NOISE and abs(after - first) > CHANGE * each[worst].gap_se(against=0, signed=True)[row]
        if within or not better or z < least:
            row = 0
    why: list[Why] = []
    for k, own in enumerate(each):
        lacks = {"performance": ~enough[k], "rates": ~kept[k], "varied": ~varied, "labels": ~fine, "sure": fine}
        too_small = (z, least) if least > SURE and z < least else None
        why.append(_reason(own, settled[k], steps, row, certain[k], too_small, lacks, needed[k]))
    # An original whose gap is not clear meets a goal without a maximum gap.
    met = [
        bool(own[row]) if row or goal.max_gap is not None else note[0].kind == "nothing_to_repair"
        for own, goal, note in zip(certain, settled, why, strict=True)
    ]
    return ChosenStep(row, steps[row], tuple(why), tuple(met), settled)


def _reason(
    evidence: StepEstimates,
    goal: Goal,
    steps: Sequence[int],
    row: int,
    certain: BoolArray,
    too_small: tuple[float, float] | None,
    lacks: dict[str, BoolArray],
    needed: Sequence[tuple[FloatArray, float]],
) -> Why:
    """The reason for choosing a step for a label, or for keeping the original."""
    size, error = np.abs(evidence.gap), evidence.gap_se()
    # Estimates are corrected for optimism; those of the original at a threshold in use are not.
    corrected = not np.isin(evidence.f[row], (0.0, 1.0)).all()
    estimate = {"gap": float(evidence.gap[row]), "error": float(error[row]), "corrected": corrected}
    rows, unsure = len(evidence.y), tuple[Note, ...]()
    if goal.max_gap is not None and not certain[row]:
        # The approximate number of rows for which such a gap would be clearly within the maximum gap; None if no number suffices.
        room = goal.max_gap - size[row]
        more = int(np.ceil(rows * (SURE * error[row] / room) ** 2 / 100) * 100) if room > 0 else None
        upper = float(size[row] + SURE * error[row])
        unsure = (Note("not_surely_within", goal.measure, {"value": upper, "most": goal.max_gap, "rows": more}),)
    if row:
        qualified = int(lacks["sure"].sum())
        return (Note("cross_fitted_choice", goal.measure, {"of": len(steps), "qualified": qualified, **estimate}), *unsure)
    if goal.max_gap is not None and certain[0]:
        return (Note("original_within", goal.measure, {"max_gap": goal.max_gap, **estimate}),)
    if too_small is not None:
        return (Note("not_surely_there", goal.measure, {"z": too_small[0], "least": too_small[1], **estimate}), *unsure)
    if size[0] <= SURE * error[0]:
        return (Note("nothing_to_repair", goal.measure, {"rows": rows, **estimate}), *unsure)
    # No step is better: how many have a smaller |gap|, and the first thing that each of these lacks: performance, kept rates, decisions
    # that vary within a group, the limits of other labels, or a change that is more than chance.
    smaller = size < size[0] - RATE_NOISE
    counts, left = dict[str, int](), smaller
    for what, missing in lacks.items():
        counts[what], left = int((left & missing).sum()), left & ~missing
    about = {"of": len(steps), "smaller": int(smaller.sum()), "lack": counts, "performance": goal.performance, "keep": goal.keep}
    nearest = None  # the step with the smallest |gap| of those whose performance is too low
    if counts["performance"]:
        at = int(np.where(smaller & lacks["performance"], size, np.inf).argmin())
        value, least = next((float(own[at]), limit) for own, limit in needed if own[at] < limit - RATE_NOISE)
        nearest = {"step": int(steps[at]), "gap": float(evidence.gap[at]), "performance": value, "least": least}
    return (Note("declined", goal.measure, {**estimate, **about, "nearest": nearest}),)


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
    given. With cross-fitted selection, the values are those that the choice was based on: upper limits of |gap|, estimated performance.
    """
    trace, honest = candidate.trace, "gap_honest" in candidate.trace
    limits_goal = goal if honest else candidate.goal  # with a derived minimum performance, which honest selection does not have
    size, performance = trace["gap"].abs().to_numpy(), trace["performance"].to_numpy()  # NaN if a quotient is undefined
    if honest:
        trace = trace[trace["gap_honest"].notna() | (np.arange(len(trace)) == candidate.chosen)]
        size, performance = (trace["gap_honest"].abs() + SURE * trace["gap_se"]).to_numpy(), trace["performance_honest"].to_numpy()
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
        "surely": honest,
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
