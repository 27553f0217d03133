"""The choice among steps by cross-fitted values, or the original where none is surely better.

A step qualifies if its performance, so estimated, reaches the minimum, which is counted from the original's where it is relative: the
original at the threshold of a part, on rows that this threshold was not chosen on. Before smoothing it must do so as well, since that is
what the outcome will be judged by. Rates that are kept must be kept less one standard error. Of the steps that qualify, the one with the
smallest upper limit, |gap| plus one standard error, is the full repair; with "one-se" the best performing of all steps whose |gap| does not
differ from it by more than the standard error of the difference. Where its |gap| is not surely smaller than the original's, the original
stays, and `why` gives the reason.

With few patients a full repair is too much. A fit that removes the share s of an observed gap g + e, of which e is chance, leaves
(1 - s) g - s e, and cross-fitting cannot tell: whatever rows are left out, the errors of the parts cancel in the sum. The squared error
(1 - s)^2 g^2 + s^2 var(e) is smallest at s = g^2 / (g^2 + var(e)). So the share is shrunk towards the original by what is known of g,
instead of all or nothing (`worthwhile`). A rule that needs each patient's group turns all of e into a gap of its own, a rule that does not
only as far as the inputs tell the groups apart, so that the former asks for a gap that is surely there. With several labels a step must
qualify for every label; the largest upper limit of any label counts, and the mean performance.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from equipoise.data import BoolArray
from equipoise.measures import FloatArray
from equipoise.methods.evidence import Evidence
from equipoise.methods.goal import BEFORE, Goal, Note, Why
from equipoise.methods.job import Verdict

SURE = 1.0  # standard errors between an estimate and its confidence bound
GROUP_SURE = 3.0  # standard errors of a gap that a rule which needs each patient's group is allowed to act on
NOISE = 1e-9


def choose(
    each: Sequence[Evidence],
    steps: Sequence[int],
    goals: Sequence[Goal],
    needs_group: bool = False,
    without: BoolArray | None = None,
    held: Sequence[FloatArray] | None = None,
) -> tuple[Verdict, int]:
    """The step to keep by what is to be believed of all of them, and its place; the first is the original; not one of `without`.

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
    if fine[0] and row and sizes[worst][0] - sizes[worst][row] <= SURE * each[worst].gap_se(against=0)[row]:
        row = 0  # what the repair does may be chance
    if fine[0] and row:
        row = shrunk(sizes[worst], each[worst].cautious_se(), fine, row, needs_group)
    reasons = [
        _reason(row, len(steps), int(fine.sum()), *own, settle)
        for own, settle in zip(zip(each, sizes, errors, certain, strict=True), settled, strict=True)
    ]
    return Verdict(steps[row], tuple(why for why, _ in reasons), tuple(met for _, met in reasons), tuple(settled)), row


def shrunk(size: FloatArray, error: float, fine: BoolArray, row: int, needs_group: bool) -> int:
    """The step nearest to the share of a repair that is worth its error, between the original and the step of this row."""
    left = (1 - worthwhile(float(size[0]) / max(error, NOISE), needs_group)) * size[0]
    if size[row] >= left:
        return row
    near = np.where(fine, np.abs(size - left), np.inf)[: row + 1]
    return int(near.argmin())


def worthwhile(z: float, needs_group: bool) -> float:
    """The share of an observed gap to remove, from how many standard errors it is.

    In a world without a gap, whatever is removed is chance. A rule that needs the group makes all of it a true gap, so it is left out below
    three standard errors.

    >>> [round(worthwhile(z, needs_group=False), 2) for z in (0.5, 1.0, 2.0, 3.0)]
    [0.06, 0.5, 0.94, 0.99]
    """
    if needs_group and z < GROUP_SURE:
        return 0.0
    return z**4 / (1.0 + z**4)


def _all(each: Any) -> BoolArray:
    """Where all of these hold."""
    together: BoolArray = np.logical_and.reduce(list(each))
    return together


def _certain(fine: BoolArray, upper: FloatArray, goal: Goal) -> BoolArray:
    """Which steps are surely within a label's maximum gap; where it has none, all that qualify."""
    return fine & (upper <= goal.max_gap + NOISE) if goal.max_gap is not None else fine


def _reason(
    row: int, steps: int, qualified: int, evidence: Evidence, size: FloatArray, error: FloatArray, certain: BoolArray, goal: Goal
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
