"""The trade-off explorer of the report of a repair: every step of every method, as data for explorer.js, and the chosen steps.

Long traces are thinned without losing a possible choice. `select` can choose a step, for some minimum performance and maximum gap, only if
no other step is better in both. Those steps are always kept, in their order, so the page chooses among the kept steps exactly what `select`
chooses among all.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from equipoise.comparison import Comparison, ScoredCandidate, below_upper_bound, upper_bound_at
from equipoise.measures import FloatArray, IntArray, gap_margin, performance_margin
from equipoise.methods import select
from equipoise.report.text import number, plain, short

MOST_POINTS = 600  # drawn per method, approximately
SMALLEST_AXIS, BEYOND = 0.06, 1.06  # the smallest width of the axis of gaps, and the space behind the last point
BOUND_POINTS = 61  # on the line of the upper bound


@dataclass(frozen=True, eq=False)
class Thinned:
    """The rows of a trace that are kept, and which of them are drawn as points."""

    rows: IntArray
    drawn: npt.NDArray[np.bool_]


def chosen_step(tried: ScoredCandidate, case: Comparison) -> dict[str, Any]:
    """The chosen step of a method on the repair set, as a row of the page's table."""
    row, valid = tried.chosen_row, case.original.valid
    threshold, gap, performance = (float(row[name]) for name in ("threshold", "gap", "performance"))
    return {
        "name": tried.name,
        "step": f"{int(row['step']):,}",
        "gap": gap,
        "performance": performance,
        "threshold": "—" if math.isnan(threshold) else number(threshold, 3),
        "below": None if valid is None else below_upper_bound(valid, case.goal, gap, performance),
        "reached": select(tried.candidate.trace.iloc[[tried.candidate.chosen]], tried.candidate.goal).met,
        "result": tried is case.result,
    }


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


def thin(trace: pd.DataFrame, chosen: int, shown: int = MOST_POINTS) -> Thinned:
    """All rows of a short trace; of a long one the selectable rows, the chosen one, and others evenly spaced."""
    complete = np.flatnonzero(trace[["gap", "performance"]].notna().all(axis=1).to_numpy())
    if len(complete) <= shown:
        return Thinned(complete, np.ones(len(complete), bool))
    front = selectable(trace)
    even = complete[np.unique(np.linspace(0, len(complete) - 1, shown).astype(int))]
    even_in_front = front[np.unique(np.linspace(0, len(front) - 1, min(len(front), shown)).astype(int))]
    drawn = np.unique(np.concatenate([even, even_in_front, [chosen]]))
    rows = np.union1d(front, drawn)
    return Thinned(rows, np.isin(rows, drawn))


def explorer_data(case: Comparison, performance: str) -> dict[str, Any]:
    """Plain values for the page's script: the goal and the points of each method, without any patient's data.

    `performance` is the name of the performance measure in words.
    """
    goal, valid = case.goal, case.result.valid
    margins = (None, None) if valid is None else (gap_margin(valid, goal.measure), performance_margin(valid, goal.performance))
    gap_error, performance_error = (None if margin is None else round(margin, 4) for margin in margins)
    methods = [_method_data(tried, case) for tried in case.candidates]
    drawn_gaps = [abs(gap) for method in methods for gap, drawn in zip(method["gap"], method["drawn"], strict=True) if drawn]
    widest = max([SMALLEST_AXIS, goal.max_gap or 0.0, *drawn_gaps])
    line = np.linspace(0, min(1.0, widest * BEYOND), BOUND_POINTS)
    bound = _upper_bound(case, line)
    return {
        "goal": {"min_performance": goal.min_performance, "max_gap": goal.max_gap, "measure": goal.measure, "performance": performance},
        "margin": {"gap": gap_error, "performance": performance_error},
        "limit": None if bound is None or np.isnan(bound).any() else {"gap": _rounded(line), "performance": _rounded(bound)},
        "methods": methods,
    }


def _rounded(values: FloatArray) -> list[float | None]:
    """Six digits are more than a page can show, and keep the file small."""
    return [None if np.isnan(value) else round(float(value), 6) for value in values]


def _upper_bound(case: Comparison, gaps: FloatArray) -> FloatArray | None:
    """The group-aware upper bound on the repair set; None if it is not defined or the repair set is unknown."""
    return None if case.original.valid is None else upper_bound_at(case.original.valid, case.goal, gaps)


def _method_data(tried: ScoredCandidate, case: Comparison) -> dict[str, Any]:
    candidate = tried.candidate
    kept = thin(candidate.trace, candidate.chosen)
    rows = candidate.trace.iloc[kept.rows]
    columns = {name: [None if np.isnan(v) else float(v) for v in rows[name]] for name in ("gap", "performance", "threshold")}
    bound = _upper_bound(case, rows["gap"].to_numpy())
    return {
        "name": short(tried.name),
        "full": plain(tried.name),
        "steps": [int(step) for step in rows["step"]],
        **columns,
        "limit": None if bound is None else _rounded(bound),  # the upper bound at the same size of the gap
        "drawn": [bool(drawn) for drawn in kept.drawn],
        "total": len(candidate.trace),
        "chosen": int(np.searchsorted(kept.rows, candidate.chosen)),
        "met": select(candidate.trace.iloc[[candidate.chosen]], case.goal).met,  # of the values shown, as for every other row
        "own_rule": select(candidate.trace, case.goal).row != candidate.chosen,
        "result": tried is case.result,
    }


def explorer_notes(data: dict[str, Any]) -> list[str]:
    """Notes on the trade-off figure."""
    notes = ["“± … at most” next to a step: half of the widest 95% interval possible with this many patients of the repair set."]
    if data["limit"] is None:
        notes.append(
            "The group-aware upper bound is not shown: it needs the scores of patients of every group with and without the finding, and a "
            "difference and a performance that are sums of rates, which predictive values and F1 are not."
        )
    for method in data["methods"]:
        drawn = sum(method["drawn"])
        if drawn < method["total"]:
            notes.append(
                f"{method['name']}: {drawn:,} of {method['total']:,} steps are drawn. "
                "Every step that some minimum or maximum would choose is in the file, so no choice is lost."
            )
        if method["own_rule"]:
            notes.append(f"{method['name']} chose its step in this run by its own rule; moved lines choose by the rule above.")
    return notes
