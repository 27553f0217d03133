"""Choosing a step by the goal: which of two steps is better, which row of a trace is best, and what a chosen step lacks."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from equipoise.data import Rows
from equipoise.measures import Threshold
from equipoise.methods.evaluation import LabelResult
from equipoise.methods.goal import NOISE, Goal, Note, Why

IN_USE = "in use today, as given"  # where a threshold comes from that was not chosen


@dataclass(frozen=True)
class Selection:
    """Which row of a trace was chosen, why, and whether it meets the goal."""

    row: int
    why: Why
    met: bool


def selected(what: str, by: str, goal: Goal, qualified: int | None, of: int, taken: float | None = None) -> Note:
    """The note on a choice: the smallest gap, or the best performance, of those of so many that have what this goal asks for.

    Where none qualifies (0), `taken` is what the one that was taken has. None: of all that there are.
    """
    asked = {name: getattr(goal, name) for name in ("measure", "performance", "min_performance", "max_gap", "keep")}
    return Note("selected", what, {"by": by, "qualified": qualified, "of": of, "taken": None if taken is None else float(taken), **asked})


def too_low(name: str, value: float, least: float, group: str | None = None) -> Note:
    """The note on a performance, or a rate of a group, that is below its minimum."""
    return Note("too_low", name, {"value": float(value), "least": float(least), "group": group})


def too_large(measure: str, size: float, most: float) -> Note:
    """The note on a |gap| that is above its maximum."""
    return Note("too_large", measure, {"value": float(size), "most": float(most)})


@dataclass(frozen=True, order=True)
class Merit:
    """How good a step is: first whether the rates are kept (1) and all goals met as well (2), then its value among its like."""

    tier: int
    value: float


def merit(each: Sequence[LabelResult], goals: Sequence[Goal], network: int = 0) -> Merit:
    """How good a step of one network is by the settled goals of its labels.

    The smallest of the labels' largest |gap| where every label has its minimum performance (and, where that is all it has, its maximum
    |gap|); with maximum gaps only, the best mean performance. Where a label misses its goal, the step that misses by the least.
    """
    kept = all(own.spare is None or own.spare[network] >= -NOISE for own in each)
    left: list[float] = []
    counted: list[float] = []
    for own, goal in zip(each, goals, strict=True):
        size = float(own.size[network])
        if goal.min_performance is not None:
            left.append(float(own.performance[network]) - goal.min_performance)
            counted.append(size)
        else:
            assert goal.max_gap is not None  # a settled goal has one of them
            left.append(goal.max_gap - size)
    feasible = kept and min(left) >= -NOISE
    best = -max(counted) if counted else float(np.mean([own.performance[network] for own in each]))
    return Merit(int(kept) + int(feasible), best if feasible else min(left))


def lacking(found: LabelResult, settled: Goal, given: Goal, network: int = 0) -> Why:
    """What the chosen step of one label misses of its goal; empty where it meets it.

    `settled` is the goal that steps were chosen by, `given` the one whose minimum performance counts.
    """
    performance, size = float(found.performance[network]), float(found.size[network])
    missed = []
    if given.min_performance is not None and performance < given.min_performance - NOISE:
        missed.append(too_low(given.performance, performance, given.min_performance))
    if settled.max_gap is not None and size > settled.max_gap + NOISE:
        missed.append(too_large(settled.measure, size, settled.max_gap))
    if found.spare is not None and found.spare[network] < -NOISE:
        missed.append(Note("rate_too_low", numbers={"by": float(-found.spare[network])}))
    return tuple(missed)


def selected_for_all(merits: Sequence[Merit], chosen: Merit, goals: Sequence[Goal], classes: bool, keeps: bool) -> Note:
    """The note on a step that was chosen for all labels, from the merits of the steps that could be."""
    asked = {"max_gap" if goal.min_performance is None else "min_performance" for goal in goals}
    qualified = sum(each.tier == 2 for each in merits) if chosen.tier == 2 else 0
    by = "performance" if asked == {"max_gap"} else "gap"
    told = {"by": by, "performance": goals[0].performance, "asked": tuple(sorted(asked, reverse=True)), "keeps": keeps}
    return Note("selected_for_all", "class" if classes else "label", {"qualified": qualified, "of": len(merits), **told})


def select(trace: pd.DataFrame, goal: Goal) -> Selection:
    """The paper's rule on the trace of one label: the smallest |gap| among steps with at least the minimum performance.

    With a maximum |gap| only: the best performance among steps within it. Where no step qualifies: the best performance, or the smallest
    |gap|, and `met` is False. Where rates are kept, steps that do not keep them come last.
    """
    size, performance = trace["gap"].abs().fillna(np.inf).to_numpy(), trace["performance"].to_numpy()  # no value is not a small gap
    kept = trace["spare"].to_numpy() >= -NOISE if "spare" in trace and goal.keep else np.ones(len(trace), bool)
    pool = kept if kept.any() else np.ones(len(trace), bool)
    if goal.min_performance is None:
        assert goal.max_gap is not None  # a settled goal has one of them
        fine = (size <= goal.max_gap + NOISE) & kept
        best = np.where(fine, -performance, np.inf) if fine.any() else np.where(pool, size, np.inf)
        row, by = int(best.argmin()), "performance" if fine.any() else "gap"
        return Selection(row, (selected("step", by, goal, int(fine.sum()), len(trace), size[row]),), bool(fine.any()))
    fine = (performance >= goal.min_performance - NOISE) & kept
    asked = replace(goal, max_gap=None)
    if not fine.any():
        row = int(np.nanargmax(np.where(pool, performance, -np.inf)))
        return Selection(row, (selected("step", "performance", asked, 0, len(trace), performance[row]),), False)
    row = int(np.where(fine, size, np.inf).argmin())
    why = selected("step", "gap", asked, int(fine.sum()), len(trace))
    if goal.max_gap is not None and size[row] > goal.max_gap + NOISE:
        return Selection(row, (why, too_large(goal.measure, size[row], goal.max_gap)), False)
    return Selection(row, (why,), True)


def plain_rule(method: str, trace: pd.DataFrame, row: int, cohort: Rows, goal: Goal) -> Threshold:
    """The threshold of the chosen step; that of the original where it is the one in use."""
    if row == 0 and goal.threshold is not None:
        return Threshold(goal.threshold, IN_USE)
    origin = f"chosen by {method} with {goal} on {len(cohort):,} rows of {cohort.name}"
    return Threshold(float(trace["threshold"].iloc[row]), origin)
