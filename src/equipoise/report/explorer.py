"""The steps of the methods in the report of a repair: as trajectories, and in the explorer of the trade-off, as data for explorer.js.

Long traces are thinned without losing a possible choice. `select` can choose a step, for some minimum performance and maximum gap, only if
no other step is better in both. Those steps are always kept, in their order, so the page chooses among the kept steps exactly what `select`
chooses among all.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from equipoise.comparison import Comparison, ScoredCandidate, below_upper_bound, upper_bound_at
from equipoise.data import FloatArray, IntArray
from equipoise.measures import margin
from equipoise.methods import METHODS, Goal, select
from equipoise.report.document import Cell, Column, Items, Part, Words, table
from equipoise.report.panels import Axes, Panel
from equipoise.report.text import Span, amount, number, plain, sentence, short
from equipoise.report.wording.names import upper_bound_words

MOST_DRAWN = 240  # of a trajectory
MOST_POINTS = 600  # drawn per method, approximately
SMALLEST_AXIS, BEYOND = 0.06, 1.06  # the smallest width of the axis of gaps, and the space behind the last point
BOUND_POINTS = 61  # on the line of the upper bound


def selectable(trace: pd.DataFrame) -> IntArray:
    """The rows that `select` chooses for some minimum performance or maximum gap.

    >>> selectable(pd.DataFrame({"gap": [-0.2, 0.1, 0.3], "performance": [0.8, 0.7, 0.6]})).tolist()
    [0, 1]
    """
    size, performance = trace["gap"].abs().to_numpy(), trace["performance"].to_numpy()
    complete = np.flatnonzero(~np.isnan(size) & ~np.isnan(performance))
    by_min_performance = _best_so_far(-performance[complete], size[complete])
    by_max_gap = _best_so_far(size[complete], -performance[complete])
    return complete[np.union1d(by_min_performance, by_max_gap)]


def _best_so_far(limit: FloatArray, cost: FloatArray) -> IntArray:
    """The rows with the lowest cost, the first of equals, among all rows whose limit is no higher than their own."""
    order = np.lexsort((np.arange(len(cost)), cost, limit))
    best, kept = (np.inf, -1), []
    for row in order:
        if (cost[row], row) < best:
            best = (cost[row], row)
            kept.append(row)
    return np.array(sorted(kept), dtype=np.int64)


def thin(trace: pd.DataFrame, chosen: int, shown: int = MOST_POINTS) -> tuple[IntArray, npt.NDArray[np.bool_]]:
    """All rows of a short trace; of a long one the selectable rows, the chosen one, and others evenly spaced; and which are drawn."""
    complete = np.flatnonzero(trace[["gap", "performance"]].notna().all(axis=1).to_numpy())
    if len(complete) <= shown:
        return complete, np.ones(len(complete), bool)
    front = selectable(trace)
    even = complete[np.unique(np.linspace(0, len(complete) - 1, shown).astype(int))]
    even_in_front = front[np.unique(np.linspace(0, len(front) - 1, min(len(front), shown)).astype(int))]
    drawn = np.unique(np.concatenate([even, even_in_front, [chosen]]))
    rows = np.union1d(front, drawn)
    return rows, np.isin(rows, drawn)


def explorer_data(repair: Comparison, performance: str) -> dict[str, Any]:
    """Plain values for the page's script: the goal and the points of each method, without any patient's data.

    `performance` is the name of the performance measure in words.
    """
    goal, valid = repair.goal, repair.result.valid
    halves = (None, None) if valid is None else (margin(valid, goal.measure), margin(valid, goal.performance))
    gap_error, performance_error = (None if half is None else round(half, 4) for half in halves)
    scores, methods = repair.original.valid, list[dict[str, Any]]()
    for tried in repair.candidates:
        candidate = tried.candidate
        kept, drawn = thin(candidate.trace, candidate.chosen)
        rows = candidate.trace.iloc[kept]
        columns = {name: [None if np.isnan(v) else float(v) for v in rows[name]] for name in ("gap", "performance", "threshold")}
        at_gaps = None if scores is None else upper_bound_at(scores, goal, rows["gap"].to_numpy())
        methods.append(
            {
                "name": short(tried.name),
                "full": plain(tried.name),
                "steps": [int(step) for step in rows["step"]],
                **columns,
                "limit": None if at_gaps is None else _rounded(at_gaps),  # the upper bound at the same size of the gap
                "drawn": drawn.tolist(),
                "total": len(candidate.trace),
                "chosen": int(np.searchsorted(kept, candidate.chosen)),
                "met": select(candidate.trace.iloc[[candidate.chosen]], goal).met,  # of the values shown, as for every other row
                "own_rule": select(candidate.trace, goal).row != candidate.chosen,
                "result": tried is repair.result,
            }
        )
    drawn_gaps = [abs(gap) for method in methods for gap, drawn in zip(method["gap"], method["drawn"], strict=True) if drawn]
    widest = max([SMALLEST_AXIS, goal.max_gap or 0.0, *drawn_gaps])
    line = np.linspace(0, min(1.0, widest * BEYOND), BOUND_POINTS)
    bound = None if scores is None else upper_bound_at(scores, goal, line)
    return {
        "goal": {"min_performance": goal.min_performance, "max_gap": goal.max_gap, "measure": goal.measure, "performance": performance},
        "margin": {"gap": gap_error, "performance": performance_error},
        "limit": None if bound is None or np.isnan(bound).any() else {"gap": _rounded(line), "performance": _rounded(bound)},
        "methods": methods,
    }


def _rounded(values: FloatArray) -> list[float | None]:
    """Six digits are more than a page can show, and keep the file small."""
    return [None if np.isnan(value) else round(float(value), 6) for value in values]


def explorer_parts(repair: Comparison, data: Mapping[str, Any]) -> list[Part]:
    """The chosen step of each method on the repair set, and notes on the figure."""
    performance, bound, rows, notes = data["goal"]["performance"], data["limit"] is not None, [], list[Words]()
    valid = repair.original.valid
    for tried in repair.candidates:
        row = tried.chosen_row
        threshold, gap, reached = (float(row[name]) for name in ("threshold", "gap", "performance"))
        below = None if valid is None else below_upper_bound(valid, repair.goal, gap, reached)
        name = Cell((Span(tried.name),), tag="this report" if tried is repair.result else "")
        numbers = (f"{int(row['step']):,}", amount(gap, "points"), amount(reached), "—" if math.isnan(threshold) else number(threshold, 3))
        met = select(tried.candidate.trace.iloc[[tried.candidate.chosen]], tried.candidate.goal).met
        rows.append((name, *numbers, "yes" if met else "no", *((upper_bound_words(below),) if bound else ())))
        if tried is repair.result and below is not None:
            about = f"Upper bound: how many points of {performance} a step is below or above the group-aware upper bound, at the same size"
            distance = f" as chosen in this run is {upper_bound_words(below, performance)}."
            notes.append((f"{about} of the difference. ", Span(tried.name), distance))
    heads = ["Method", "Step", "Difference", sentence(performance), "Threshold", "Reached", *(["Upper bound"] if bound else [])]
    caption = "The chosen step of each method, on the patients it was fitted to"
    made = table(caption, [Column(head, head.lower()) for head in heads], rows, style="stack fitted", id="choices")
    notes.append("“± … at most” next to a step: half of the widest 95% interval possible with this many patients of the repair set.")
    if not bound:
        notes.append(
            "The group-aware upper bound is not shown: it needs the scores of patients of every group with and without the finding, and a "
            "difference and a performance that are sums of rates, which predictive values and F1 are not."
        )
    for method in data["methods"]:
        if (drawn := sum(method["drawn"])) < method["total"]:
            notes.append(
                f"{method['name']}: {drawn:,} of {method['total']:,} steps are drawn. "
                "Every step that some minimum or maximum would choose is in the file, so no choice is lost."
            )
        if method["own_rule"]:
            notes.append(f"{method['name']} chose its step in this run by its own rule; moved lines choose by the rule above.")
    return [made, Items(notes)]


def trajectory_panel(tried: ScoredCandidate, goal: Goal) -> Panel:
    """The gap and the performance of a method against its step on the repair set, with the chosen step."""
    candidate = tried.candidate
    trace = candidate.trace
    stepwise = candidate.ran in METHODS and bool(METHODS[candidate.ran].counts)  # each step builds on the last
    step, gap, performance = (trace[name].to_numpy(dtype=np.float64) for name in ("step", "gap", "performance"))
    chosen = candidate.chosen
    drawn = np.arange(len(gap))
    if len(gap) > MOST_DRAWN:  # of every section of a long trace, the lowest and highest gap and performance, and the chosen row
        rows = [0, len(gap) - 1, chosen]
        for part in np.array_split(drawn, MOST_DRAWN // 4):
            for values in (gap, performance):
                if not np.isnan(values[part]).all():
                    rows += [int(part[np.nanargmin(values[part])]), int(part[np.nanargmax(values[part])])]
        drawn = np.unique(rows)
    first, last = float(np.nanmin(step)), float(max(np.nanmax(step), np.nanmin(step) + 1))
    low = min(-0.05, float(np.nanmin(gap)) - 0.03) if len(gap) else -0.05
    low = -np.ceil(-low * 10) / 10
    axes = Axes(low, 1.0, first, last)
    ticks = axes.y_ticks(np.arange(np.ceil(low * 4) / 4, 1.01, 0.25), lambda v: number(100 * v, 0))
    marks = [axes.level("base", 0)]
    if goal.min_performance is not None:
        marks.append(axes.level("min_performance", goal.min_performance, f"minimum {amount(goal.min_performance)}"))
    if goal.max_gap is not None:
        marks += [axes.level("max_gap", end, "maximum gap") for end in (goal.max_gap, -goal.max_gap) if end >= low]
    marks.append(axes.upright("chosen", step[chosen], f"chosen: step {int(step[chosen])}"))
    for style, values in (("gap", gap), ("performance", performance)):
        spots = list(zip(step[drawn], values[drawn], strict=True))
        if stepwise:
            marks.append(axes.curve(f"track {style}", spots))
        else:
            marks += [axes.dot(f"try {style}", x, y, 1.6) for x, y in spots if not np.isnan(y)]
        marks.append(axes.dot(f"end {style}", step[chosen], values[chosen], 3.5))
    count = min(5, int(last - first) + 1)
    axis = axes.x_ticks(np.unique(np.linspace(first, last, count).round()), lambda v: number(v, 0))
    says = (
        f"{short(tried.name)}: {len(trace):,} {'steps' if stepwise else 'points tried'} on the repair set. "
        f"At the first the gap is {amount(gap[0], 'points')} points and performance {amount(performance[0])}; "
        f"at the chosen step {int(step[chosen])} they are {amount(gap[chosen], 'points')} points and {amount(performance[chosen])}."
    )
    return Panel(short(tried.name), says, axis, ticks, "step" if stepwise else "try", "percent", tuple(marks))
