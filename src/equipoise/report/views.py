"""What the template of the report of a repair is given: rows, axes, words and images, ready to be placed."""

import base64
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from PIL import Image

from equipoise.measures import Estimate, FloatArray, IntArray, gap_margin, performance_margin
from equipoise.methods import Goal, select
from equipoise.models import GIVEN
from equipoise.repair import Comparison, Findings, GapRow, GroupRate, Probes, RateBlock, Tried, below_limit, limit_at
from equipoise.report.measure_words import HEADLINE, RATES, SHOWN, distinct, mirrors
from equipoise.report.panels import Scale
from equipoise.report.text import number, plain, short

PICTURES = 12
MOST_POINTS = 600  # of the explorer, drawn per method, about
FARTHEST, BEYOND = 0.06, 1.06  # the axis of gaps: its smallest width, and the space behind the last point
LINE = 61  # points of the line of the upper bound


@dataclass(frozen=True)
class RateView:
    """A block of rates with its axis."""

    rate: str
    kind: str
    scale: Scale
    rows: Sequence[GroupRate]

    @property
    def headline(self) -> bool:
        """Whether it is shown at once."""
        return self.rate in HEADLINE


@dataclass(frozen=True)
class GapView:
    """All gaps of an attribute on one axis, by measure, and the measures that mirror each."""

    scale: Scale
    measures: dict[str, list[GapRow]]
    mirrors: dict[str, list[str]]


def rate_views(blocks: Sequence[RateBlock]) -> list[RateView]:
    """The blocks of rates that the page shows."""
    views = []
    for block in blocks:
        if block.rate in SHOWN:
            kind = RATES[block.rate].kind
            ends = [e for row in block.rows for e in (row.before, row.after)]
            views.append(RateView(block.rate, kind, Scale.of(ends, kind), block.rows))
    return views


def gap_view(rows: Sequence[GapRow]) -> GapView:
    """The gaps of an attribute by measure. One that mirrors another is not repeated."""
    named = list(dict.fromkeys(row.measure for row in rows))
    measures = {name: [row for row in rows if row.measure == name] for name in distinct(named)}
    scale = Scale.of([e for kept in measures.values() for row in kept for e in (row.before, row.after)], "points")
    return GapView(scale, measures, mirrors(named))


def widest_change(found: Findings) -> float:
    """The largest share of a group's patients with or without the finding whose decision changed one way."""
    shares = [
        part / n
        for c in found.affected[-1].counts
        for n, good, bad in ((c.positives, c.detected, c.missed), (c.negatives, c.cleared, c.alarmed))
        for part in (good, bad)
        if n
    ]
    return max(0.01, *shares) if shares else 1.0


def choice(tried: Tried, case: Comparison) -> dict[str, Any]:
    """The chosen step of a method on the repair set."""
    row, valid = tried.chosen_row, case.original.valid
    threshold, gap, performance = (float(row[name]) for name in ("threshold", "gap", "performance"))
    return {
        "name": tried.name,
        "step": f"{int(row['step']):,}",
        "gap": gap,
        "performance": performance,
        "threshold": "—" if math.isnan(threshold) else number(threshold, 3),
        "below": None if valid is None else below_limit(valid, case.goal, gap, performance),
        "reached": select(tried.candidate.trace.iloc[[tried.candidate.chosen]], tried.candidate.goal).met,
        "result": tried is case.result,
    }


@dataclass(frozen=True)
class ProbeRow:
    """How well a group can be predicted from one layer, before and after."""

    layer: str
    width: int
    before: Estimate
    after: Estimate


@dataclass(frozen=True)
class ProbeBlock:
    """The layers for one kind of rows, on the axis that all blocks of an attribute share."""

    among: str
    rows: Sequence[ProbeRow]


@dataclass(frozen=True)
class ProbeView:
    """What can be predicted of one attribute."""

    scale: Scale
    blocks: Sequence[ProbeBlock]
    notes: Sequence[str]


AMONG = {None: "Among all patients", 1: "Among those with the finding", 0: "Among those without it"}
UNREAD = Estimate(math.nan, math.nan, math.nan)


def probe_views(probes: Probes | None) -> dict[str, ProbeView]:
    """By attribute: each probed layer of the network before or after the repair, among all patients and among those of one label."""
    if probes is None:
        return {}
    views = {}
    for name in dict.fromkeys(probes.before["attribute"]):
        sides = [frame[frame["attribute"] == name].set_index("layer") for frame in (probes.before, probes.after)]
        layers = list(dict.fromkeys([*(layer for layer in sides[0].index if layer != "output"), *sides[1].index, "output"]))
        widths = {**sides[1]["width"].to_dict(), **sides[0]["width"].to_dict()}
        blocks = []
        for measure, label in GIVEN.items():
            rows = [ProbeRow(layer, int(widths[layer]), *(_probed(side, layer, measure) for side in sides)) for layer in layers]
            blocks.append(ProbeBlock(AMONG[label], rows))
        ends = [e for block in blocks for row in block.rows for e in (row.before, row.after)]
        notes = dict.fromkeys(note for side in sides for note in side["note"] if note)
        views[str(name)] = ProbeView(Scale.of([*ends, Estimate(0.5, 0.5, 0.5)], "area"), blocks, list(notes))
    return views


def _probed(side: pd.DataFrame, layer: str, measure: str) -> Estimate:
    if layer not in side.index:
        return UNREAD
    value, low, high = (float(side.loc[layer, f"{measure}{end}"]) for end in ("", "_low", "_high"))
    return Estimate(value, low, high)


# The data of the trade-off explorer: every step of every method, thinned if there are many, without losing a possible choice. `select` can
# choose a step, for some minimum performance and maximum gap, only if no other step is better in both. Those steps are always kept, in
# their order, so the page chooses among the kept steps exactly what `select` chooses among all.


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


def thin(trace: pd.DataFrame, chosen: int, shown: int = MOST_POINTS) -> Thinned:
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


def explorer_notes(data: dict[str, Any]) -> list[str]:
    """What to know about the trade-off figure."""
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


def changed_pictures(case: Comparison) -> list[dict[str, Any]]:
    """The most changed rows that have an image."""
    before, after = case.original.test, case.result.test
    old, new = case.original.decisions(), case.result.decisions()
    groups = before.groups
    found: list[dict[str, Any]] = []
    for row in _most_changed(case):
        if before.ids[row] not in case.thumbnails:
            continue
        flagged = ["flagged" if f >= 0.5 else "not flagged" for f in (old[row], new[row])]
        change = f"{flagged[0]} → {flagged[1]}" if flagged[0] != flagged[1] else f"{flagged[0]}, as before"
        found.append(
            {
                "group": groups[row] or "",
                "positive": bool(before.y[row]),
                "before": number(float(before.score[row]), 3),
                "after": number(float(after.score[row]), 3),
                "change": change,
                "png": _png(np.asarray(case.thumbnails[before.ids[row]], dtype=np.uint8)),
            }
        )
        if len(found) == PICTURES:
            break
    return found


def _most_changed(case: Comparison) -> list[int]:
    """The rows of the test set whose decision, and then whose score, changed most."""
    decision = np.abs(case.result.decisions() - case.original.decisions())
    score = np.abs(case.result.test.score - case.original.test.score)
    order = np.lexsort((-score, -decision))
    return [int(row) for row in order if decision[row] > 0 or score[row] > 0]


def unit_maps(case: Comparison) -> list[dict[str, Any]]:
    """Images of the units that pruning switched off: light where all channels are on, dark where none is."""
    off, on = np.array([120.0, 45.0, 8.0]), np.array([246.0, 243.0, 238.0])
    found = []
    for tried in case.candidates:
        for unit in tried.units:
            kept: FloatArray = np.clip(unit.kept, 0.0, 1.0)[..., None]
            image = (off + (on - off) * kept).round().astype(np.uint8)
            found.append(
                {
                    "method": tried.name,
                    "layer": unit.layer,
                    "mean": float(unit.kept.mean()),
                    "least": float(unit.kept.min()),
                    "png": _png(image),
                }
            )
    return found


def _png(image: npt.NDArray[np.uint8]) -> str:
    out = io.BytesIO()
    Image.fromarray(image).save(out, "PNG", optimize=True)
    return base64.b64encode(out.getvalue()).decode()
