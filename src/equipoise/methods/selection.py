"""Choosing a step by the goal: the better of two steps, the best row of a trace, and the parts of the goal that a chosen step misses."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from equipoise.data import Rows
from equipoise.measures import Threshold
from equipoise.methods.evaluation import LabelResult
from equipoise.methods.goal import Goal, Note, Why
from equipoise.methods.kept_rates import NOISE

IN_USE = "in use today, as given"  # origin of a threshold that was not chosen


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


@dataclass(frozen=True, order=True)
class Merit:
    """The merit of a step: first its tier (1 if the rates are kept, 2 if all goals are met too), then its value within the tier."""

    tier: int
    value: float


def merit(each: Sequence[LabelResult], goals: Sequence[Goal]) -> Merit:
    """The merit of a step by the settled goals of its labels.

    The largest |gap| of all labels counts, if every label has its minimum performance (or, without one, its maximum |gap|); with maximum
    gaps only, the mean performance. If a label misses its goal, the largest shortfall counts.
    """
    kept = all(result.spare is None or result.spare >= -NOISE for result in each)
    margins: list[float] = []
    sizes: list[float] = []
    for result, goal in zip(each, goals, strict=True):
        if goal.min_performance is not None:
            margins.append(result.performance - goal.min_performance)
            sizes.append(result.size)
        else:
            assert goal.max_gap is not None  # a settled goal has one of them
            margins.append(goal.max_gap - result.size)
    feasible = kept and min(margins) >= -NOISE
    best = -max(sizes) if sizes else float(np.mean([result.performance for result in each]))
    return Merit(int(kept) + int(feasible), best if feasible else min(margins))


def lacking(result: LabelResult, settled: Goal, given: Goal) -> Why:
    """The parts of its goal that the chosen step of one label misses; empty if it meets the goal.

    `settled` is the goal that steps were chosen by, `given` the one whose minimum performance counts.
    """
    missed = []
    if given.min_performance is not None and result.performance < given.min_performance - NOISE:
        missed.append(too_low(given.performance, result.performance, given.min_performance))
    if settled.max_gap is not None and result.size > settled.max_gap + NOISE:
        missed.append(too_large(settled.measure, result.size, settled.max_gap))
    if result.spare is not None and result.spare < -NOISE:
        missed.append(Note("rate_too_low", numbers={"by": -result.spare}))
    return tuple(missed)


def selected_for_all(merits: Sequence[Merit], chosen: Merit, goals: Sequence[Goal], classes: bool, keeps: bool) -> Note:
    """The note on a step that was chosen for all labels, with the merits of all eligible steps."""
    limits = {"max_gap" if goal.min_performance is None else "min_performance" for goal in goals}
    numbers = {
        "qualified": sum(own.tier == 2 for own in merits) if chosen.tier == 2 else 0,
        "of": len(merits),
        "by": "performance" if limits == {"max_gap"} else "gap",
        "performance": goals[0].performance,
        "asked": tuple(sorted(limits, reverse=True)),
        "keeps": keeps,
    }
    return Note("selected_for_all", "class" if classes else "label", numbers)


def select(trace: pd.DataFrame, goal: Goal) -> Selection:
    """The paper's rule on the trace of one label: the smallest |gap| among steps with at least the minimum performance.

    With a maximum |gap| only: the best performance among steps within it. If no step qualifies: the best performance, or the smallest
    |gap|, and `met` is False. If the goal keeps rates, steps that do not keep them come last. A goal without limits, as of classifiers
    that are compared without a repair set, is met by every step.
    """
    size, performance = trace["gap"].abs().fillna(np.inf).to_numpy(), trace["performance"].to_numpy()  # undefined is not a small gap
    kept = trace["spare"].to_numpy() >= -NOISE if "spare" in trace and goal.keep else np.ones(len(trace), bool)
    pool = kept if kept.any() else np.ones(len(trace), bool)
    if goal.min_performance is None:
        fine = (size <= (np.inf if goal.max_gap is None else goal.max_gap + NOISE)) & kept
        best = np.where(fine, -performance, np.inf) if fine.any() else np.where(pool, size, np.inf)
        row, by = int(best.argmin()), "performance" if fine.any() else "gap"
        return Selection(row, (selected("step", by, goal, int(fine.sum()), len(trace), size[row]),), bool(fine.any()))
    fine = (performance >= goal.min_performance - NOISE) & kept
    without_gap = goal.changed(max_gap=None)
    if not fine.any():
        row = int(np.nanargmax(np.where(pool, performance, -np.inf)))
        return Selection(row, (selected("step", "performance", without_gap, 0, len(trace), performance[row]),), False)
    row = int(np.where(fine, size, np.inf).argmin())
    why = selected("step", "gap", without_gap, int(fine.sum()), len(trace))
    if goal.max_gap is not None and size[row] > goal.max_gap + NOISE:
        return Selection(row, (why, too_large(goal.measure, size[row], goal.max_gap)), False)
    return Selection(row, (why,), True)


def plain_rule(method: str, trace: pd.DataFrame, row: int, cohort: Rows, goal: Goal) -> Threshold:
    """The threshold of the chosen step; for the original, the one in use if the goal names it."""
    if row == 0 and goal.threshold is not None:
        return Threshold(goal.threshold, IN_USE)
    origin = f"chosen by {method} with {goal} on {len(cohort):,} rows of {cohort.name}"
    return Threshold(float(trace["threshold"].iloc[row]), origin)
