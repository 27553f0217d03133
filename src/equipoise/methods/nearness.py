"""How near the steps of a method came to a goal that none of them meets: which of its demands stand against each other, and at what values.

A goal may ask for a performance, for a maximum gap and for rates that are kept, and have no step that does it all. For each of these,
this says how many steps do have it, and how near the nearest of them comes to the others.
"""

from dataclasses import dataclass

import numpy as np

from equipoise.measures import FloatArray
from equipoise.methods.base import BEFORE, Candidate, Goal
from equipoise.methods.cross_fitted import SURE

NOISE = 1e-9  # counts over counts: the last bits say nothing


@dataclass(frozen=True, eq=False)
class Demand:
    """One thing that a goal asks for."""

    words: str
    short: FloatArray  # (steps,) by how much each step misses it, 0 where it does not
    reached: tuple[str, ...]  # what each step has of it


def nearness(candidate: Candidate, goal: Goal) -> str:
    """Which demands of a goal stand against each other in a candidate's steps; empty where the chosen one has all that the trace tells.

    `goal` is the goal as it was given. With honest selection values are confidence bounds, as the steps were chosen by them.
    """
    demands, chosen = _demands(candidate, goal)
    if all(demand.short[chosen] <= NOISE for demand in demands):
        return ""
    have = np.stack([demand.short <= NOISE for demand in demands])  # (demands, steps)
    if len(demands) == 1 and have.any():
        return ""  # the method had reasons of its own to leave those steps behind
    missed = np.sum([demand.short for demand in demands], axis=0)
    # For each demand the step that is nearest to it, and of equals the nearest to the rest.
    rows = dict.fromkeys(int(np.lexsort((missed, demand.short))[0]) for demand in demands)
    counts = [f"{_none(int(count))} {demand.words}" for demand, count in zip(demands, have.sum(1), strict=True)]
    apart = ", none all of it" if len(demands) > 1 and have.any(1).all() and not have.all(0).any() else ""
    nearest = " or ".join(", ".join(demand.reached[row] for demand in demands) for row in rows)
    steps = "1 step" if have.shape[1] == 1 else f"{have.shape[1]} steps"
    return f"of {steps} {', '.join(counts)}{apart}; the nearest: {nearest}"


def _none(count: int) -> str:
    return "none has" if count == 0 else "1 has" if count == 1 else f"{count} have"


def _demands(candidate: Candidate, goal: Goal) -> tuple[list[Demand], int]:
    """What the goal asks for that the trace can tell, and where the chosen step stands."""
    trace = candidate.trace
    honest = "gap_honest" in trace
    if honest:
        trace = trace[trace["gap_honest"].notna() | (np.arange(len(trace)) == candidate.chosen)]
    else:
        goal = candidate.goal  # with its minimum performance, where none was given; honest selection compares with the original instead
    size = trace["gap"].abs().to_numpy()  # NaN where a quotient has no value
    performance = trace["performance"].to_numpy()
    if honest:
        size = (trace["gap_honest"].abs() + SURE * trace["gap_se"]).to_numpy()
        performance = (trace["performance_honest"] - SURE * trace["performance_se"]).to_numpy()
    name = goal.performance.replace("_", " ")
    surely, at_least, at_most = ("surely ", "at least ", "at most ") if honest else ("", "", "")
    found = []
    if goal.min_performance is not None:
        short = np.clip(goal.min_performance - performance, 0.0, None)
        found.append(
            Demand(f"{surely}{name} >= {goal.min_performance:.3g}", short, tuple(f"{name} {at_least}{value:.3f}" for value in performance))
        )
    if goal.max_gap is not None:
        short = np.where(np.isnan(size), np.inf, np.clip(size - goal.max_gap, 0.0, None))
        reached = tuple(f"no {goal.measure}" if np.isnan(value) else f"|{goal.measure}| {at_most}{value:.3f}" for value in size)
        found.append(Demand(f"{surely}|{goal.measure}| <= {goal.max_gap:g}", short, reached))
    if goal.keep and "spare" in trace and not honest:  # otherwise the groups that fall short are named one by one
        spare = trace["spare"].to_numpy()
        words = ", ".join(f"{rate} {'as before' if least == BEFORE else f'>= {least:g}'}" for rate, least in goal.keep.items())
        reached = tuple("all rates kept" if value >= -NOISE else f"a rate {-value:.3f} too low" for value in spare)
        found.append(Demand(f"{words} in every group", np.clip(-spare, 0.0, None), reached))
    return found, int(np.flatnonzero(trace.index == candidate.trace.index[candidate.chosen])[0])
