"""The paper's rule: the choice among steps, or among methods, by values on the rows that they were fitted to (`merit`).

The choice by cross-fitted values, which is the default, is in `choosing`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from equipoise.data import Rows
from equipoise.measures import Threshold
from equipoise.methods.candidate import LabelCandidate
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
    gaps only, the mean performance. If a label misses its goal, the largest shortfall counts. A goal without limits, as of classifiers that
    are compared without a repair set, is met by every step.
    """
    kept = all(result.spare is None or result.spare >= -NOISE for result in each)
    margins: list[float] = []
    sizes: list[float] = []
    for result, goal in zip(each, goals, strict=True):
        if goal.min_performance is not None:
            margins.append(result.performance - goal.min_performance)
            sizes.append(result.size)
        else:
            margins.append(np.inf if goal.max_gap is None else goal.max_gap - result.size)
    feasible = kept and min(margins) >= -NOISE
    best = -max(sizes) if sizes else float(np.mean([result.performance for result in each]))
    value = best if feasible else min(margins)
    return Merit(int(kept) + int(feasible), -np.inf if np.isnan(value) else value)


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
    """The step of best merit on the trace of one label: the smallest |gap| among steps with at least the minimum performance.

    With a maximum |gap| only: the best performance among steps within it. If no step qualifies: the best performance, or the smallest
    |gap|, and `met` is False. If the goal keeps rates, steps that do not keep them come last.
    """
    spare = trace["spare"].tolist() if "spare" in trace and goal.keep else [None] * len(trace)
    columns = (trace["gap"].tolist(), trace["performance"].tolist(), [np.nan] * len(trace), spare)
    results = [LabelResult(*row) for row in zip(*columns, strict=True)]
    merits = [merit([result], [goal]) for result in results]
    row, fine = merits.index(max(merits)), sum(own.tier == 2 for own in merits)
    size, performance = results[row].size, results[row].performance
    if goal.min_performance is None:
        by = "performance" if fine else "gap"
        return Selection(row, (selected("step", by, goal, fine, len(trace), size),), bool(fine))
    without_gap = goal.derived(max_gap=None)
    if not fine:
        return Selection(row, (selected("step", "performance", without_gap, 0, len(trace), performance),), False)
    why = selected("step", "gap", without_gap, fine, len(trace))
    if goal.max_gap is not None and size > goal.max_gap + NOISE:
        return Selection(row, (why, too_large(goal.measure, size, goal.max_gap)), False)
    return Selection(row, (why,), True)


def choose_in_sample(tried: Sequence[Sequence[LabelCandidate]]) -> int:
    """The position of the method of best merit, the first of equals; each has one candidate per label."""
    merits = [merit([_chosen_result(own) for own in each], [own.goal for own in each]) for each in tried]
    return merits.index(max(merits))


def _chosen_result(candidate: LabelCandidate) -> LabelResult:
    """The chosen step of a candidate; `spare` is negative if it does not keep the rates of its goal."""
    row = candidate.trace.iloc[candidate.chosen]
    broken = any(note.kind == "rate_too_low" or (note.kind == "too_low" and note.numbers["group"] is not None) for note in candidate.why)
    return LabelResult(float(row["gap"]), float(row["performance"]), float(row["threshold"]), -1.0 if broken else None)


def plain_rule(method: str, trace: pd.DataFrame, row: int, cohort: Rows, goal: Goal) -> Threshold:
    """The threshold of the chosen step; for the original, the one in use if the goal names it."""
    if row == 0 and goal.threshold is not None:
        return Threshold(goal.threshold, IN_USE)
    origin = f"chosen by {method} with {goal} on {len(cohort):,} rows of {cohort.name}"
    return Threshold(float(trace["threshold"].iloc[row]), origin)
