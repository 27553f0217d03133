"""What the templates of the page are given: the rows, axes, words and images of a case, ready to be put in their place."""

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

from equipoise.measures import Estimate, FloatArray
from equipoise.methods import Goal
from equipoise.models import GIVEN
from equipoise.report.affected import Part, most_changed
from equipoise.report.case import Case, Probes, Repair
from equipoise.report.findings import Findings, GapRow, GroupRate, RateBlock
from equipoise.report.limits import below_limit
from equipoise.report.panels import Tick, forest_range
from equipoise.report.words import LONGEST, PERFORMANCE, RATES, amount, gap_words, number, plain

PICTURES = 12


class Book:
    """The names that are too long for a table, in the order of their first use; the page lists them whole at its end."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def place(self, value: object) -> int | None:
        """Where a long name stands in the list; None for one that is short enough."""
        text = str(value)
        if len(plain(text)) <= LONGEST:
            return None
        if text not in self.names:
            self.names.append(text)
        return self.names.index(text)


@dataclass(frozen=True)
class Scale:
    """The axis of a forest plot, in percent of its width."""

    low: float
    high: float
    kind: str

    @classmethod
    def of(cls, estimates: Sequence[Estimate], kind: str) -> "Scale":
        """An axis that holds all of them."""
        return cls(*forest_range([end for e in estimates for end in (e.low, e.high)], kind), kind)

    def place(self, value: float) -> str:
        """Where a value stands, from 1 to 99 so that no dot is cut off."""
        share = (value - self.low) / (self.high - self.low)
        return f"{1 + 98 * min(max(share, 0.0), 1.0):.2f}"

    @property
    def ticks(self) -> list[Tick]:
        """The ends and the middle."""
        values = (self.low, (self.low + self.high) / 2, self.high)
        return [Tick(float(self.place(v)), self._text(v)) for v in values]

    def _text(self, value: float) -> str:
        if self.kind == "area":
            return number(value, 2)
        text = number(100 * value, 0 if math.isclose(100 * value, round(100 * value), abs_tol=1e-6) else 1, sign=self.kind == "points")
        return f"{text}%" if self.kind == "share" else text


@dataclass(frozen=True)
class RateView:
    """A block of rates with its axis."""

    rate: str
    kind: str
    scale: Scale
    rows: Sequence[GroupRate]


@dataclass(frozen=True)
class GapView:
    """All gaps of an attribute on one axis, by measure."""

    scale: Scale
    measures: dict[str, list[GapRow]]


def rate_views(blocks: Sequence[RateBlock]) -> list[RateView]:
    views = []
    for block in blocks:
        if block.rate in RATES:
            kind = RATES[block.rate][2]
            ends = [e for row in block.rows for e in (row.before, row.after)]
            views.append(RateView(block.rate, kind, Scale.of(ends, kind), block.rows))
    return views


def gap_view(rows: Sequence[GapRow]) -> GapView:
    measures: dict[str, list[GapRow]] = {}
    for row in rows:
        measures.setdefault(row.measure, []).append(row)
    return GapView(Scale.of([e for row in rows for e in (row.before, row.after)], "points"), measures)


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


def choice(repair: Repair, result: Repair, original: Repair) -> dict[str, Any]:
    row = repair.candidate.trace.iloc[repair.candidate.chosen]
    threshold = float(row["threshold"])
    return {
        "name": repair.name,
        "step": f"{int(row['step']):,}",
        "gap": float(row["gap"]),
        "performance": float(row["performance"]),
        "threshold": "—" if math.isnan(threshold) else number(threshold, 3),
        "below": below_limit(original.valid, result.candidate.goal, float(row["gap"]), float(row["performance"])),
        "met": repair.candidate.met,
        "result": repair is result,
    }


@dataclass(frozen=True)
class ProbeRow:
    """How well a group can be read from one layer, before and after."""

    layer: str
    width: int
    before: Estimate
    after: Estimate


@dataclass(frozen=True)
class ProbeBlock:
    """The layers among one kind of rows, on the axis that all blocks of an attribute share."""

    among: str
    rows: Sequence[ProbeRow]


@dataclass(frozen=True)
class ProbeView:
    """What can be read of one attribute."""

    scale: Scale
    blocks: Sequence[ProbeBlock]
    notes: Sequence[str]


AMONG = {None: "Among everybody", 1: "Among those with the finding", 0: "Among those without it"}
UNREAD = Estimate(math.nan, math.nan, math.nan)


def probe_views(probes: Probes | None) -> dict[str, ProbeView]:
    """By attribute: each layer that was read in the network before or after the repair, among everybody and among rows of one label."""
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


def explorer_notes(data: dict[str, Any]) -> list[str]:
    notes = ["“± … at most” beside a step: half of the widest 95% interval that this many patients of the validation part allow."]
    if data["limit"] is None:
        notes.append(
            "There is no line of the best rule that knows the group: it needs patients of every group with and without the finding, and a "
            "difference and a performance that are sums of rates, which predictive values and F1 are not."
        )
    for method in data["methods"]:
        drawn = sum(method["drawn"])
        if drawn < method["total"]:
            notes.append(
                f"{method['name']}: {drawn:,} of {method['total']:,} steps are drawn. "
                "Every step that some minimum performance or maximum gap would choose is in the file, so that no choice is lost."
            )
        if method["own_rule"]:
            notes.append(f"{method['name']} chose its step in this run by a rule of its own; moved lines choose by the rule above.")
    return notes


def goal_words(goal: Goal) -> str:
    """A goal in words.

    >>> goal_words(Goal("eod", min_performance=0.75))
    'the smallest difference in sensitivity with balanced accuracy of at least 75.0%'
    """
    what, performance = gap_words(goal.measure), PERFORMANCE[goal.performance]
    also = "" if goal.min_performance is None else f" with {performance} of at least {amount(goal.min_performance)}"
    if goal.max_gap is None:
        return f"the smallest difference in {what}{also}"
    within = f"a difference in {what} of at most {amount(goal.max_gap, 'size')} points"
    return f"{within}{also}" if also else f"the best {performance} with {within}"


def part_words(part: Part) -> str:
    """What happened to a rate, in words."""
    more = part.change > 0
    return {
        "tpr": "more of those with the finding are detected" if more else "fewer of those with the finding are detected",
        "fpr": "more of those without the finding get a false alarm" if more else "fewer of those without the finding get a false alarm",
        "selection": "more patients are flagged" if more else "fewer patients are flagged",
    }[part.rate]


def changed_pictures(case: Case) -> list[dict[str, Any]]:
    """The most changed rows that have an image."""
    before, after = case.original.test, case.result.test
    old, new = case.original.decisions(), case.result.decisions()
    groups = before.groups
    found: list[dict[str, Any]] = []
    for row in most_changed(case, len(before)):
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


def unit_maps(case: Case) -> list[dict[str, Any]]:
    off, on = np.array([120.0, 45.0, 8.0]), np.array([246.0, 243.0, 238.0])
    found = []
    for repair in case.repairs:
        for unit in repair.units:
            kept: FloatArray = np.clip(unit.kept, 0.0, 1.0)[..., None]
            image = (off + (on - off) * kept).round().astype(np.uint8)
            found.append(
                {
                    "method": repair.name,
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
