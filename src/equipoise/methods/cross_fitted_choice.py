"""The choice among steps by cross-fitted values; the original is kept if no step is clearly better.

A step qualifies if its estimated performance reaches the minimum. A relative minimum is counted from the original, at thresholds and on
rows that are cross-fitted too. The estimate must do so before smoothing as well, since the outcome is judged by it. Kept rates must reach
their limits with one standard error to spare. Of the steps that qualify, the one with the smallest upper limit, |gap| plus one standard
error, is chosen; with "one-se", the best performing of all steps whose |gap| differs from it by at most the standard error of the
difference. The original is kept if no step has a smaller |gap| by more than half the standard error of its change, if the original is
clearly within the maximum gap, and if its gap is too small relative to its standard error. `why` gives the reason.

How large the gap must be depends on the rule. A fit that removes an observed gap g + e, where e is chance, leaves -e, and cross-fitting
cannot detect this: whatever rows are left out, the errors of the parts cancel in the sum. A rule that needs each patient's group turns all
of e into a new gap, so it requires a gap of three standard errors. A rule that needs no group does so only as far as the inputs separate
the groups, so half a standard error is enough. Another threshold for all groups requires one standard error, since it may have to move far
for a small gap. (Measured with 59 networks of Adult, Bank and COMPAS and 200 to 30,000 rows: removing only the share z^4 / (1 + z^4) of a
gap of z standard errors left more of it on new patients, and in 12 simulations without a gap it made no difference. The seeds are none of
those in results/anywhere.) With several labels, a step must qualify for every label; the largest upper limit of any label and the mean
performance count.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from equipoise.data import BoolArray
from equipoise.measures import FloatArray
from equipoise.methods.contract import LEAST
from equipoise.methods.evidence import Evidence
from equipoise.methods.goal import BEFORE, Goal, Note, Why
from equipoise.methods.job import Verdict
from equipoise.methods.kept_rates import NOISE

SURE = 1.0  # standard errors between an estimate and its confidence bound
CHANGE = 0.5  # standard errors of a change of the gap, below which it counts as chance


def choose(
    each: Sequence[Evidence],
    steps: Sequence[int],
    goals: Sequence[Goal],
    least: float = LEAST,
    without: BoolArray | None = None,
    held: Sequence[FloatArray] | None = None,
    originals: Sequence[float] | None = None,
) -> tuple[Verdict, int]:
    """The step to keep and its position, from the evidence of each label; the first step is the original.

    `least` is the smallest gap, in standard errors, on which the method may act. Steps in `without` are not chosen. `held` has the held-out
    decisions (steps, n) of each label, by which the outcome will be judged. `originals` has the performance of the original on the rows of
    each label, from which the goal of the result counts a relative minimum; by default the estimate of the first step, which differs from
    it only if the original's threshold was chosen on these rows.
    """
    originals = [float(own.performance[0]) for own in each] if originals is None else originals
    settled = [goal.settled(original) for original, goal in zip(originals, goals, strict=True)]
    errors, sizes = [own.gap_se() for own in each], [np.abs(own.gap) for own in each]
    uppers = [size + SURE * error for size, error in zip(sizes, errors, strict=True)]
    needed = [_needed(own, goal, None if held is None else held[at]) for at, (own, goal) in enumerate(zip(each, goals, strict=True))]
    enough = [_all(reached >= least - NOISE for reached, least in own) for own in needed]
    kept = [_kept(own, goal) for own, goal in zip(each, goals, strict=True)]
    fine = _all(a & b & ~np.isnan(size) for a, b, size in zip(enough, kept, sizes, strict=True))  # an undefined gap is not a small one
    fine = fine if without is None else fine & ~without
    if not fine.any():
        lacking = tuple((_lacking(*own),) for own in zip(each, settled, enough, kept, strict=True))
        return Verdict(steps[0], lacking, (False,) * len(each), tuple(settled)), 0
    certain = [_certain(fine, upper, goal) for upper, goal in zip(uppers, settled, strict=True)]
    performance = np.mean([own.performance for own in each], axis=0)
    row = int(np.where(fine, np.max(uppers, axis=0), np.inf).argmin())
    if goals[0].selection == "one-se":
        pairs = zip(each, sizes, strict=True)
        equal = fine & _all(size - size[row] <= SURE * own.gap_se(against=row) + NOISE for own, size in pairs)
        row = int(np.where(equal, performance, -np.inf).argmax())
    worst = int(np.argmax([size[0] for size in sizes]))
    within = all(goal.max_gap is not None and own[0] for goal, own in zip(settled, certain, strict=True))
    z = float(sizes[worst][0]) / max(each[worst].cautious_se(), NOISE)
    if fine[0] and row and (within or not _better(each[worst], row) or z < least):
        row = 0
    too_small = (z, least) if least > SURE and z < least else None
    reasons: list[tuple[Why, bool]] = []
    for at, own in enumerate(each):
        why, met = _reason(row, len(steps), int(fine.sum()), own, sizes[at], errors[at], certain[at], settled[at], too_small)
        if why is None:
            lacks = {"performance": ~enough[at], "rates": ~kept[at], "varied": np.zeros_like(fine) if without is None else without}
            why = (_declined(own, settled[at], steps, lacks | {"labels": ~fine, "sure": fine}, needed[at]),)
        reasons.append((why, met))
    return Verdict(steps[row], tuple(why for why, _ in reasons), tuple(met for _, met in reasons), tuple(settled)), row


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
    size: FloatArray,
    error: FloatArray,
    certain: BoolArray,
    goal: Goal,
    too_small: tuple[float, float] | None,
) -> tuple[Why | None, bool]:
    """The reason for choosing a step for a label, or for keeping the original, and whether that meets the label's goal.

    It is None if the original was kept because no step is better; `_declined` then states what the other steps lack.
    """
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
    evidence: Evidence, goal: Goal, steps: Sequence[int], lacks: Mapping[str, BoolArray], needed: Sequence[tuple[FloatArray, float]]
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
        "error": float(evidence.gap_se()[0]),
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


def _lacking(evidence: Evidence, goal: Goal, enough: BoolArray, kept: BoolArray) -> Note:
    """The note on a choice without any qualified step: how many steps meet each constraint, and the best performance."""
    best = int(evidence.performance.argmax())
    numbers = {
        "enough": int(enough.sum()),
        "kept": int(kept.sum()),
        "of": len(kept),
        "best": float(evidence.performance[best]),
        "error": float(evidence.performance_se()[best]),
        "min_performance": goal.min_performance,
        "keep": goal.keep,
    }
    return Note("none_surely", goal.performance, numbers)
