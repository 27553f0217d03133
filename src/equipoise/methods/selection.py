"""Choosing a step by the goal: which of two steps is better, which row of a trace is best, and what a chosen step lacks."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from equipoise.data import Cohort, Scores
from equipoise.measures import Threshold
from equipoise.methods.base import BEFORE, Goal
from equipoise.methods.evaluation import NOISE, Found


@dataclass(frozen=True)
class Selection:
    """Which row of a trace was chosen, why, and whether it meets the goal."""

    row: int
    why: str
    met: bool


@dataclass(frozen=True, order=True)
class Merit:
    """How good a step is: first whether the rates are kept (1) and all goals met as well (2), then its value among its like."""

    tier: int
    value: float


def merit(each: Sequence[Found], goals: Sequence[Goal], network: int = 0) -> Merit:
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


def lacking(found: Found, settled: Goal, given: Goal, network: int = 0) -> list[str]:
    """What the chosen step of one label misses of its goal, each in a few words; empty where it meets it.

    `settled` is the goal that steps were chosen by, `given` the one whose minimum performance counts.
    """
    performance, size = float(found.performance[network]), float(found.size[network])
    missed = []
    if given.min_performance is not None and performance < given.min_performance - NOISE:
        missed.append(f"its {given.performance.replace('_', ' ')} {performance:.3f} is below the minimum {given.min_performance:.3g}")
    if settled.max_gap is not None and size > settled.max_gap + NOISE:
        missed.append(f"its |{settled.measure}| {size:.3f} is above the maximum {settled.max_gap:g}")
    if found.spare is not None and found.spare[network] < -NOISE:
        missed.append(f"a rate that must be kept is {-found.spare[network]:.3f} too low")
    return missed


def joint_why(merits: Sequence[Merit], chosen: Merit, goals: Sequence[Goal], classes: bool, keeps: bool) -> str:
    """Why a step was chosen for all labels, from the merits of the steps that could be."""
    one, all_of_them = ("class", "classes'") if classes else ("label", "labels'")
    asked = {"minimum performance" if goal.min_performance is not None else "maximum gap" for goal in goals}
    has = f"every {one} has its {' or '.join(sorted(asked, reverse=True))}{' and keeps its rates' if keeps else ''}"
    if chosen.tier < 2:
        return f"in no step of {len(merits)} {has}; the nearest was taken"
    good = sum(each.tier == 2 for each in merits)
    best = f"smallest of the {all_of_them} largest |gap|"
    if asked == {"maximum gap"}:
        best = f"best mean {goals[0].performance.replace('_', ' ')}"
    return f"{best} of {good} step{'' if good == 1 else 's'} in which {has}"


def select(trace: pd.DataFrame, goal: Goal) -> Selection:
    """The paper's rule on the trace of one label: the smallest |gap| among steps with at least the minimum performance.

    With a maximum |gap| only: the best performance among steps within it. Where no step qualifies: the best performance, or the smallest
    |gap|, and `met` is False. Where rates are kept, steps that do not keep them come last.
    """
    size, performance = trace["gap"].abs().fillna(np.inf).to_numpy(), trace["performance"].to_numpy()  # no value is not a small gap
    name = goal.performance.replace("_", " ")
    kept = trace["spare"].to_numpy() >= -NOISE if "spare" in trace and goal.keep else np.ones(len(trace), bool)
    pool = kept if kept.any() else np.ones(len(trace), bool)
    if goal.min_performance is None:
        assert goal.max_gap is not None  # a settled goal has one of them
        inside = size <= goal.max_gap + NOISE
        if (inside & kept).any():
            row = int(np.where(inside & kept, performance, -np.inf).argmax())
            return Selection(row, f"best {name} of {_steps(inside & kept)} with |gap| <= {goal.max_gap:g}{keeping(goal)}", True)
        missed = f"has |gap| <= {goal.max_gap:g}{keeping(goal, 'with')}"
        nearest = int(np.nanargmin(np.where(pool, size, np.inf)))
        return Selection(nearest, f"no step of {len(trace)} {missed}; the smallest |gap| was taken", False)
    enough = performance >= goal.min_performance - NOISE
    if not (enough & kept).any():
        best = int(np.nanargmax(np.where(pool, performance, -np.inf)))
        missed = f"reaches {name} {goal.min_performance:.3g}{keeping(goal, 'with')}"
        which = "the best that keeps this" if goal.keep and kept.any() else "the best"
        return Selection(best, f"no step of {len(trace)} {missed}; {which} has {performance[best]:.3f} and was taken", False)
    row = int(np.where(enough & kept, size, np.inf).argmin())
    why = f"smallest |gap| of {_steps(enough & kept)} with {name} >= {goal.min_performance:.3g}{keeping(goal)}"
    if goal.max_gap is not None and size[row] > goal.max_gap + NOISE:
        return Selection(row, f"{why}, but it is above the maximum {goal.max_gap:g}", False)
    return Selection(row, why, True)


def keeping(goal: Goal, word: str = "and") -> str:
    """The rates that are kept, in words that continue others with `word`; empty where there are none."""
    kept = [f"{rate} not below {'before' if least == BEFORE else f'{least:g}'}" for rate, least in goal.keep.items()]
    return f" {word} {', '.join(kept)} in any group" if kept else ""


def _steps(which: npt.NDArray[np.bool_]) -> str:
    return "1 step" if which.sum() == 1 else f"{int(which.sum())} steps"


def plain_rule(method: str, trace: pd.DataFrame, row: int, cohort: Cohort | Scores, goal: Goal) -> Threshold:
    """The threshold of the chosen step."""
    origin = f"chosen by {method} with {goal.describe()} on {len(cohort):,} rows of {cohort.name}"
    return Threshold(float(trace["threshold"].iloc[row]), origin)
