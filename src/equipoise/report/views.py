"""What the templates of the reports are given: rows, axes, words and images, ready to be placed."""

import base64
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from PIL import Image

from equipoise.measures import Audit, Estimate, FloatArray, group_estimate
from equipoise.methods import select
from equipoise.models import GIVEN
from equipoise.repair import Comparison, Findings, GapRow, GroupRate, Probes, RateBlock, Tried, below_limit
from equipoise.report.measure_words import RATES, crossed, distinct, mirrors
from equipoise.report.panels import Called, Panel, Tick, decision_panels, forest_range
from equipoise.report.text import LONGEST, number, plain

PICTURES = 12
HEADLINE = ("tpr", "tnr", "ppv", "npv")  # rates that are shown at once; those of the scores are shown on demand
SHOWN = (  # rates on the pages
    *(*HEADLINE, "auroc", "sensitivity_at_specificity", "specificity_at_sensitivity"),
    *("brier", "calibration_in_the_large", "calibration_intercept", "calibration_slope", "calibration_error"),
)


class Book:
    """The names that are too long for a table, in the order of their first use; the page lists them in full at its end."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def place(self, value: object) -> int | None:
        """The position of a long name in the list; None for a short name."""
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
        """An axis that includes all of them, with their simultaneous intervals."""
        return cls(
            *forest_range([end for e in estimates for end in (e.value, e.low, e.high, e.simultaneous_low, e.simultaneous_high)], kind), kind
        )

    def place(self, value: float) -> str:
        """The position of a value, from 1 to 99 so that no dot is cut off."""
        share = (value - self.low) / (self.high - self.low)
        return f"{1 + 98 * min(max(share, 0.0), 1.0):.2f}"

    @property
    def ticks(self) -> list[Tick]:
        """The ends and the middle."""
        values = (self.low, (self.low + self.high) / 2, self.high)
        return [Tick(float(self.place(v)), self._text(v)) for v in values]

    def _text(self, value: float) -> str:
        if self.kind in ("area", "number", "signed"):
            return number(value, 2, sign=self.kind == "signed")
        text = number(100 * value, 0 if math.isclose(100 * value, round(100 * value), abs_tol=1e-6) else 1, sign=self.kind == "points")
        return f"{text}%" if self.kind == "share" else text


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


@dataclass(frozen=True)
class AuditView:
    """One attribute of an audit: its groups, each rate on an axis of its own, and all gaps on one axis."""

    attribute: str
    folded: bool  # an intersection, which is shown on demand
    groups: pd.DataFrame
    rates: Sequence[tuple[str, Scale, Sequence[tuple[str, bool, Estimate]]]]
    scale: Scale
    gaps: Mapping[str, Sequence[Estimate]]
    curves: Sequence[Panel]  # decision curves
    shrunken: Sequence[Mapping[str, Any]] = ()  # gaps by empirical Bayes, where they were asked for


def audit_views(audit: Audit, called: Called = str) -> list[AuditView]:
    """The tables of an audit, one view per attribute and intersection. A measure that mirrors another is not repeated."""
    views = []
    folded = crossed(list(audit.groups["attribute"].unique()))
    shrunken = _shrunken(audit)
    for name, groups in audit.groups.groupby("attribute", sort=False):
        rates = []
        for rate in SHOWN:
            if rate in groups:
                rows = [(str(g), bool(r["reference"]), group_estimate(r, rate)) for g, r in groups.iterrows()]
                rates.append((rate, Scale.of([e for _, _, e in rows], RATES[rate].kind), rows))
        own = audit.gaps[audit.gaps["attribute"] == name]
        gaps = {m: [Estimate.of_gap(row) for row in own[own["measure"] == m].to_dict("records")] for m in distinct(own["measure"].unique())}
        scale = Scale.of([e for rows in gaps.values() for e in rows], "points")
        curves = decision_panels(str(name), [("", audit)], called)
        views.append(AuditView(str(name), name in folded, groups, rates, scale, gaps, curves, shrunken.get(str(name), ())))
    return views


def _shrunken(audit: Audit) -> dict[str, list[dict[str, Any]]]:
    """The shrunken gaps of each attribute that has them; empty where they were not asked for."""
    if not audit.shrink:
        return {}
    gaps = audit.shrunken()
    gaps = gaps[gaps["shrunken"].notna() & gaps["measure"].isin(distinct(gaps["measure"].unique()))]
    return {str(name): [{str(k): v for k, v in row.items()} for row in own.to_dict("records")] for name, own in gaps.groupby("attribute")}


@dataclass(frozen=True)
class UnderdiagnosisRow:
    """Underdiagnosis of one group, and its gap to the reference."""

    attribute: str
    group: str
    reference: bool
    with_finding: int
    rate: Estimate
    gap: Estimate


def underdiagnosis_rows(audit: Audit) -> list[UnderdiagnosisRow]:
    """The rows of underdiagnosis of the audit of "no finding", one per group."""
    gaps = {(g["attribute"], g["group"]): Estimate.of_gap(g) for g in audit.gaps.to_dict("records") if g["measure"] == "fpr_gap"}
    none, rows = Estimate(math.nan, math.nan, math.nan), []
    for group, row in audit.groups.iterrows():
        gap = gaps.get((row["attribute"], group), none)
        counts = str(row["attribute"]), str(group), bool(row["reference"]), int(row["negatives"])
        rows.append(UnderdiagnosisRow(*counts, group_estimate(row, "fpr"), gap))
    return rows
