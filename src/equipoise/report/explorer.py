"""The data of the trade-off explorer: every step of every method, thinned if there are many, without losing a possible choice.

`select` can choose a step, for some minimum performance and maximum gap, only if no other step is better in both. Those steps are always
kept, in their order, so the page chooses among the kept steps exactly what `select` chooses among all.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from equipoise.measures import FloatArray, IntArray, gap_margin, performance_margin
from equipoise.methods import Goal, select
from equipoise.repair import Comparison, Tried, limit_at
from equipoise.report.text import plain, short

SHOWN = 600  # points drawn per method, about
FARTHEST, BEYOND = 0.06, 1.06  # the axis of gaps: its smallest width, and the space behind the last point
LINE = 61  # points of the line of the upper bound


@dataclass(frozen=True, eq=False)
class Thinned:
    """Rows of a trace that are kept, and which of them are drawn as points."""

    rows: IntArray
    drawn: npt.NDArray[np.bool_]


def selectable(trace: pd.DataFrame) -> IntArray:
    """The rows that `select` chooses for some minimum performance or maximum gap.

    >>> selectable(pd.DataFrame({"gap": [-0.2, 0.1, 0.3], "performance": [0.8, 0.7, 0.6]})).tolist()
    [0, 1]
    """
    size, performance = trace["gap"].abs().to_numpy(), trace["performance"].to_numpy()
    known = np.flatnonzero(~np.isnan(size) & ~np.isnan(performance))
    by_floor = _best_so_far(-performance[known], size[known])
    by_bound = _best_so_far(size[known], -performance[known])
    return known[np.union1d(by_floor, by_bound)]


def _best_so_far(limit: FloatArray, cost: FloatArray) -> IntArray:
    """Those that have the lowest cost, the first of equals, among all whose limit is no higher than their own."""
    order = np.lexsort((np.arange(len(cost)), cost, limit))
    best, kept = (np.inf, -1), []
    for row in order:
        if (cost[row], row) < best:
            best = (cost[row], row)
            kept.append(row)
    return np.array(sorted(kept), dtype=np.int64)


def thin(trace: pd.DataFrame, chosen: int, shown: int = SHOWN) -> Thinned:
    """All rows of a short trace; of a long one those that can be chosen, the chosen one, and others evenly spaced."""
    known = np.flatnonzero(trace[["gap", "performance"]].notna().all(axis=1).to_numpy())
    if len(known) <= shown:
        return Thinned(known, np.ones(len(known), bool))
    front = selectable(trace)
    even = known[np.unique(np.linspace(0, len(known) - 1, shown).astype(int))]
    marked = front[np.unique(np.linspace(0, len(front) - 1, min(len(front), shown)).astype(int))]
    drawn = np.unique(np.concatenate([even, marked, [chosen]]))
    rows = np.union1d(front, drawn)
    return Thinned(rows, np.isin(rows, drawn))


def explorer_data(case: Comparison, unit: str) -> dict[str, object]:
    """Plain values for the page's script: the goal and the points of each method, without any patient's data."""
    goal, valid = case.goal, case.result.valid
    methods = [_method(tried, case) for tried in case.candidates]
    widest = max([FARTHEST, goal.max_gap or 0.0, *(abs(gap) for method in methods for gap in _drawn(method))])
    line = np.linspace(0, min(1.0, widest * BEYOND), LINE)
    best = _upper_bound(case, goal, line)
    return {
        "goal": {"min_performance": goal.min_performance, "max_gap": goal.max_gap, "measure": goal.measure, "performance": unit},
        "margin": {
            "gap": None if valid is None else _brief(gap_margin(valid, goal.measure)),
            "performance": None if valid is None else _brief(performance_margin(valid, goal.performance)),
        },
        "limit": None if best is None or np.isnan(best).any() else {"gap": _rounded(line), "performance": _rounded(best)},
        "methods": methods,
    }


def _brief(margin: float | None) -> float | None:
    return None if margin is None else round(margin, 4)


def _drawn(method: dict[str, Any]) -> list[float]:
    return [gap for gap, drawn in zip(method["gap"], method["drawn"], strict=True) if drawn]


def _rounded(values: FloatArray) -> list[float | None]:
    """Six digits are more than a page can show, and make a small file."""
    return [None if np.isnan(v) else round(float(v), 6) for v in values]


def _upper_bound(case: Comparison, goal: Goal, gaps: FloatArray) -> FloatArray | None:
    """The group-aware upper bound on the repair set; None if it is not defined or the repair set is unknown."""
    return None if case.original.valid is None else limit_at(case.original.valid, goal, gaps)


def _method(tried: Tried, case: Comparison) -> dict[str, Any]:
    candidate = tried.candidate
    kept = thin(candidate.trace, candidate.chosen)
    rows = candidate.trace.iloc[kept.rows]
    picked = select(candidate.trace, case.goal)
    columns = {name: [None if np.isnan(v) else float(v) for v in rows[name]] for name in ("gap", "performance", "threshold")}
    best = _upper_bound(case, case.goal, rows["gap"].to_numpy())
    return {
        "name": short(tried.name),
        "full": plain(tried.name),
        "steps": [int(step) for step in rows["step"]],
        **columns,
        "limit": None if best is None else _rounded(best),  # the upper bound at the same size of the gap
        "drawn": [bool(drawn) for drawn in kept.drawn],
        "total": len(candidate.trace),
        "chosen": int(np.searchsorted(kept.rows, candidate.chosen)),
        "met": select(candidate.trace.iloc[[candidate.chosen]], case.goal).met,  # of the values shown, as for every other row
        "own_rule": picked.row != candidate.chosen,
        "result": tried is case.result,
    }
