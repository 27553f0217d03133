"""The choice among steps by cross-fitted values, or the original where none is surely better.

A step qualifies if its performance, so estimated, reaches the minimum, which is counted from the original's where it is relative: the
original at the threshold of a part, on rows that this threshold was not chosen on. Before smoothing it must do so as well, since that is
what the outcome will be judged by. Rates that are kept must be kept less one standard error. Of the steps that qualify, the one with the
smallest upper limit, |gap| plus one standard error, is chosen; with "one-se" the best performing of all steps whose |gap| does not differ
from it by more than the standard error of the difference. The original stays where no step has a smaller |gap|, by more than half the
standard error of its change; where it is surely within the maximum gap; and where its gap is too small next to its error to act on. `why`
gives the reason.

How small that is depends on the rule. A fit that removes an observed gap g + e, of which e is chance, leaves -e, and cross-fitting cannot
tell: whatever rows are left out, the errors of the parts cancel in the sum. A rule that needs each patient's group makes all of e a gap of
its own, so that it asks for a gap of three standard errors. A rule that needs no group does so only as far as the inputs tell the groups
apart: it acts from half a standard error on. Another threshold for everybody asks for one, since it may have to go far for a small gap.
(Measured with 59 networks of Adult, Bank and COMPAS and 200 to 30,000 rows: to remove only
the share z^4 / (1 + z^4) of a gap of z standard errors left more of it on new patients, and in 12 worlds without a gap it made no
difference. The seeds are none of those in results/anywhere.) With several labels a step must qualify for every label; the largest upper
limit of any label counts, and the mean performance.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

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
) -> tuple[Verdict, int]:
    """The step to keep by what is to be believed of all of them, and its place; the first is the original; not one of `without`.

    `least` is the gap, in standard errors, that the method may act on.
    `held` are decisions (steps, n) of each label that were not fitted to their rows, by which the outcome will be judged.
    """
    settled = [goal.settled(float(own.performance[0])) for own, goal in zip(each, goals, strict=True)]
    errors, sizes = [own.gap_se() for own in each], [np.abs(own.gap) for own in each]
    uppers = [size + SURE * error for size, error in zip(sizes, errors, strict=True)]
    enough = [_enough(own, goal) for own, goal in zip(each, settled, strict=True)]
    if held is not None:
        enough = [a & _holds(replace(own, f=f), goal) for a, own, f, goal in zip(enough, each, held, goals, strict=True)]
    kept = [_kept(own, goal) for own, goal in zip(each, goals, strict=True)]
    fine = _all(a & b & ~np.isnan(size) for a, b, size in zip(enough, kept, sizes, strict=True))  # no value is not a small gap
    fine = fine if without is None else fine & ~without
    if not fine.any():
        why = tuple((_lacking(*own),) for own in zip(each, settled, enough, kept, strict=True))
        return Verdict(steps[0], why, (False,) * len(each), tuple(settled)), 0
    certain = [_certain(fine, upper, goal) for upper, goal in zip(uppers, settled, strict=True)]
    performance = np.mean([own.performance for own in each], axis=0)
    row = int(np.where(fine, np.max(uppers, axis=0), np.inf).argmin())
    if goals[0].selection == "one-se":
        pairs = zip(each, sizes, strict=True)
        level = fine & _all(size - size[row] <= SURE * own.gap_se(against=row) + NOISE for own, size in pairs)
        row = int(np.where(level, performance, -np.inf).argmax())
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
    """Whether a step has a smaller |gap| than the original, by a change of the signed gap that is not mere chance."""
    before, after = evidence.gap[0], evidence.gap[row]
    return bool(abs(after) < abs(before) - NOISE and abs(after - before) > CHANGE * evidence.change_se()[row])


def _all(each: Any) -> BoolArray:
    """Where all of these hold."""
    together: BoolArray = np.logical_and.reduce(list(each))
    return together


def _certain(fine: BoolArray, upper: FloatArray, goal: Goal) -> BoolArray:
    """Which steps are surely within a label's maximum gap; where it has none, all that qualify."""
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
    """Why a step was chosen for a label, or the original kept, and whether that meets the label's goal."""
    seen = {"gap": float(evidence.gap[row]), "error": float(error[row])}
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
        return (Note("cross_fitted_choice", goal.measure, {"of": steps, "qualified": qualified, **seen}), *unsure), met
    if goal.max_gap is not None and met:
        return (Note("original_within", goal.measure, {"max_gap": goal.max_gap, **seen}),), True
    if declined is not None:
        return (Note("not_surely_there", goal.measure, {"z": declined[0], "least": declined[1], **seen}), *unsure), False
    if size[0] <= SURE * error[0]:
        return (Note("nothing_to_repair", goal.measure, {"rows": rows, **seen}), *unsure), goal.max_gap is None
    return (Note("declined", goal.measure, seen),), False


def _rows_needed(size: float, error: float, max_gap: float, rows: int) -> int | None:
    """About how many rows such a gap would need to be surely within the maximum gap; None where no number would do."""
    return None if size >= max_gap else int(np.ceil(rows * (SURE * error / (max_gap - size)) ** 2 / 100) * 100)


def _enough(evidence: Evidence, goal: Goal) -> BoolArray:
    """Which steps reach the minimum performance by their held-out estimates; a relative one is counted from the original's."""
    settled = goal.settled(float(evidence.performance[0]))
    assert settled.min_performance is not None  # cross-fitted selection always keeps performance
    reached: BoolArray = evidence.performance >= settled.min_performance - NOISE
    return reached


def _holds(held: Evidence, goal: Goal) -> BoolArray:
    """Which steps do no harm to performance on rows that they were not fitted to: they reach the limit, or what the original has."""
    least = goal.settled(float(held.performance[0])).min_performance
    assert least is not None  # cross-fitted selection always keeps performance
    reached: BoolArray = held.performance >= min(least, float(held.performance[0])) - NOISE
    return reached


def _kept(evidence: Evidence, goal: Goal) -> BoolArray:
    """Which steps surely keep the rates of every group."""
    kept = np.ones(len(evidence.f), bool)
    for name, least in goal.keep.items():
        rate = evidence.rate(name)
        if least == BEFORE:
            lower = rate - rate[0] - SURE * evidence.rate_se(name, against=0)
        else:
            lower = rate - float(least) - SURE * evidence.rate_se(name)
        kept &= ~(lower < -NOISE).any(-1)  # a group without such rows has no say
    return kept


def _lacking(evidence: Evidence, goal: Goal, enough: BoolArray, kept: BoolArray) -> Note:
    """What no step surely has, and whether the constraints are against each other."""
    best = int(evidence.performance.argmax())
    had = {"best": float(evidence.performance[best]), "error": float(evidence.performance_se()[best])}
    counts = {"enough": int(enough.sum()), "kept": int(kept.sum()), "of": len(kept)}
    return Note("none_surely", goal.performance, {**counts, **had, "min_performance": goal.min_performance, "keep": goal.keep})
