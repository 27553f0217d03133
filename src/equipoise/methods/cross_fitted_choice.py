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

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from equipoise.data import BoolArray
from equipoise.measures import FloatArray
from equipoise.methods.contract import LEAST
from equipoise.methods.evidence import Evidence
from equipoise.methods.goal import BEFORE, NOISE, Goal, Note, Why
from equipoise.methods.job import Verdict

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
    enough = [_enough(own, goal) for own, goal in zip(each, goals, strict=True)]
    if held is not None:
        enough = [a & _holds(replace(own, f=f), goal) for a, own, f, goal in zip(enough, each, held, goals, strict=True)]
    kept = [_kept(own, goal) for own, goal in zip(each, goals, strict=True)]
    fine = _all(a & b & ~np.isnan(size) for a, b, size in zip(enough, kept, sizes, strict=True))  # an undefined gap is not a small one
    fine = fine if without is None else fine & ~without
    if not fine.any():
        why = tuple((_lacking(*own),) for own in zip(each, settled, enough, kept, strict=True))
        return Verdict(steps[0], why, (False,) * len(each), tuple(settled)), 0
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
    declined = (z, least) if least > SURE and z < least else None
    reasons = [
        _reason(row, len(steps), int(fine.sum()), *own, settle, declined)
        for own, settle in zip(zip(each, sizes, errors, certain, strict=True), settled, strict=True)
    ]
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
    declined: tuple[float, float] | None,
) -> tuple[Why, bool]:
    """The reason for choosing a step for a label, or for keeping the original, and whether that meets the label's goal."""
    corrected = not np.isin(evidence.f[row], (0.0, 1.0)).all()  # the original at a threshold in use is not
    estimate = {"gap": float(evidence.gap[row]), "error": float(error[row]), "corrected": corrected}
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
    if declined is not None:
        return (Note("not_surely_there", goal.measure, {"z": declined[0], "least": declined[1], **estimate}), *unsure), False
    if size[0] <= SURE * error[0]:
        return (Note("nothing_to_repair", goal.measure, {"rows": rows, **estimate}), *unsure), goal.max_gap is None
    return (Note("declined", goal.measure, estimate),), False


def _rows_needed(size: float, error: float, max_gap: float, rows: int) -> int | None:
    """The approximate number of rows for which such a gap would be clearly within the maximum gap; None if no number suffices."""
    return None if size >= max_gap else int(np.ceil(rows * (SURE * error / (max_gap - size)) ** 2 / 100) * 100)


def _enough(evidence: Evidence, goal: Goal) -> BoolArray:
    """The steps that reach the minimum performance by their estimates; a relative minimum is counted from the original's."""
    settled = goal.settled(float(evidence.performance[0]))
    assert settled.min_performance is not None  # cross-fitted selection always keeps performance
    reached: BoolArray = evidence.performance >= settled.min_performance - NOISE
    return reached


def _holds(held: Evidence, goal: Goal) -> BoolArray:
    """The steps whose held-out performance reaches the limit, or that of the original."""
    least = goal.settled(float(held.performance[0])).min_performance
    assert least is not None  # cross-fitted selection always keeps performance
    reached: BoolArray = held.performance >= min(least, float(held.performance[0])) - NOISE
    return reached


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
