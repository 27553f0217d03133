"""The report of a case as one HTML file for a committee: complete in itself, light and dark, on a phone and on paper.

Words stand in the templates, numbers come from `findings`. Everything is escaped; the one script may run by its hash alone, so that no
name in a user's file could become a script even if an escape were missed.
"""

import base64
import hashlib
import io
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from PIL import Image

from equipoise.data.files import write_text
from equipoise.measures.cells import FloatArray
from equipoise.measures.estimates import Estimate
from equipoise.methods.base import Goal
from equipoise.report.affected import Part, most_changed
from equipoise.report.case import Case, Repair
from equipoise.report.explorer import explorer_data
from equipoise.report.findings import Findings, GapRow, GroupRate, RateBlock, find
from equipoise.report.panels import Tick, calibration_panel, forest_range, roc_panel, score_panel, trajectory_panel
from equipoise.report.terminal import percent
from equipoise.report.words import (
    ALMOST,
    LONGEST,
    PERFORMANCE,
    RATES,
    amount,
    count,
    gap_words,
    number,
    plain,
    share_words,
    short,
    span,
)

TEMPLATES = Path(__file__).parent / "templates"
SCRIPTS = ("select.js", "page.js", "explorer.js")
COLOURS = 7  # of groups, with a dash of its own each
DRAWN = 12  # groups with a panel of scores
PICTURES, MAPS = 12, 24
SHORT_PATH = 2  # steps, the original and the result, that need no figure
CONTENTS = {
    "verdict": "The question and the answer",
    "cohort": "The patients",
    "groups": "Each group, before and after",
    "gaps": "The differences",
    "affected": "Who is affected",
    "explorer": "The trade-off, to explore",
    "trajectories": "How the methods went",
    "curves": "Scores and thresholds",
    "images": "Images and units",
    "method": "Method, settings and limits",
}
RATE_WORDS = {
    "tpr": "sensitivity",
    "tnr": "specificity",
    "fpr": "the false alarm rate",
    "fnr": "the miss rate",
    "selection_rate": "the share flagged",
}
LIMITS = (
    "A small difference in one measure does not mean that the classifier is equally good for everybody. Other measures may differ, and "
    "some cannot be equal at the same time where the finding is more frequent in one group than in another.",
    "Labels are taken as the truth. Where a group's disease is missed or over-called in the records themselves, these measures inherit it.",
    "Groups are those of the columns given. Differences inside a group, and groups that nobody recorded, are not seen.",
    "The patients are those of these data, at this place and time. A new scanner, clinic or population asks for a new audit.",
    "Intervals say how far chance in the choice of patients may move a number, not how far errors of labels, recording or selection may.",
    "Nothing here says that a difference was caused by the group, nor that a decision is lawful or clinically right. "
    "That is for clinicians, patients and the committee.",
)


def write_page(case: Case, path: Path, *, draws: int = 1000, thumbnails: bool = False) -> None:
    """Writes the report, whole or not at all. Images of patients go into it only with `thumbnails`."""
    write_text(path, page(case, draws=draws, thumbnails=thumbnails))


def page(case: Case, *, draws: int = 1000, thumbnails: bool = False) -> str:
    """The report as HTML."""
    return _environment().get_template("report.html").render(_context(case, find(case, draws=draws), thumbnails))


@cache
def _environment() -> Environment:
    """The templates: everything is escaped, and a name that is not there is an error."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"amount": amount, "count": count, "plain": plain, "short": short, "span": span, "sentence": _sentence}
    environment.tests["nan"] = math.isnan
    return environment


def _sentence(text: str) -> str:
    """With a capital first letter, the others as they are: F1 stays F1."""
    return text[:1].upper() + text[1:]


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


def _context(case: Case, found: Findings, thumbnails: bool) -> dict[str, Any]:
    candidate, goal = case.result.candidate, case.result.candidate.goal
    attribute = case.original.test.attribute
    performance = PERFORMANCE[goal.performance]
    style, script = (_read("report.css"), "".join(map(_read, SCRIPTS)))
    data = explorer_data(case, performance)
    pictures = _pictures(case) if thumbnails and case.thumbnails else []
    maps = _maps(case)
    shown = [anchor for anchor in CONTENTS if anchor != "images" or pictures or maps]
    codes = range(min(len(attribute.levels), DRAWN))
    sides = (("Before", case.original), ("After", case.result))
    return {
        "case": case,
        "found": found,
        "candidate": candidate,
        "goal": goal,
        "book": Book(),
        "levels": attribute.levels,
        "level": percent(found.settings.level),
        "minimum": found.settings.minimum,
        "patients": case.original.test.patients is not None and case.original.valid.patients is not None,
        "performance": performance,
        "share_words": share_words,
        "gap_words": gap_words,
        "rates": RATES,
        "rate_words": RATE_WORDS.get(found.rate or "", ""),
        "almost": ALMOST,
        "part_words": part_words,
        "goal_words": goal_words(goal),
        "size_words": _how_many(found.after.rows, found.after.patients, "test"),
        "valid_words": _how_many(len(case.original.valid), _patients(case), "validation"),
        "total": found.affected[0].counts[-1],
        "trace_first": case.original.candidate.trace.iloc[0],
        "trace_chosen": candidate.trace.iloc[candidate.chosen],
        "forests": {name: _rate_views(blocks) for name, blocks in found.rates.items()},
        "gap_forests": {name: _gap_view(rows) for name, rows in found.gaps.items()},
        "widest_change": _widest_change(found),
        "calibration": [calibration_panel(t, r.test, attribute, found.settings.minimum) for t, r in sides],
        "roc": [roc_panel(t, r.test, r.decisions(), attribute) for t, r in sides],
        "distributions": [
            score_panel(f"{short(attribute.levels[code])}, {title.lower()}", r.test, r.candidate.rule, attribute, code)
            for code in codes
            for title, r in sides
        ],
        "left_out": max(0, len(attribute.levels) - DRAWN),
        "trajectories": [trajectory_panel(repair, goal) for repair in case.repairs if len(repair.candidate.trace) > SHORT_PATH],
        "one_step": [repair.name for repair in case.repairs if len(repair.candidate.trace) <= SHORT_PATH],
        "choices": [_choice(repair, case.result) for repair in case.repairs],
        "step_total": f"{sum(len(r.candidate.trace) for r in case.repairs):,}",
        "explorer_notes": _explorer_notes(data),
        "pictures": pictures,
        "maps": maps[:MAPS],
        "maps_left_out": max(0, len(maps) - MAPS),
        "limits": LIMITS,
        "notes": [(r.name, note) for r in case.repairs for note in r.candidate.notes],
        "contents": [(anchor, CONTENTS[anchor]) for anchor in shown],
        "sections": {anchor: k + 1 for k, anchor in enumerate(shown)},
        "when": _date(case.provenance.when),
        "most_colours": COLOURS,
        "style": Markup(style),
        "script": Markup(script),
        "script_hash": base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        "data": script_data(data),
    }


def script_data(data: object) -> Markup:
    """JSON for inside a <script> element, which no name in it can end."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))  # ASCII: line separators are written out too
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def goal_words(goal: Goal) -> str:
    """A goal in words.

    >>> goal_words(Goal("eod", floor=0.75))
    'the smallest difference in sensitivity with balanced accuracy of at least 75.0%'
    """
    what, performance = gap_words(goal.measure), PERFORMANCE[goal.performance]
    floor = "" if goal.floor is None else f" with {performance} of at least {amount(goal.floor)}"
    if goal.bound is None:
        return f"the smallest difference in {what}{floor}"
    within = f"a difference in {what} of at most {amount(goal.bound, 'size')} points"
    return f"{within}{floor}" if floor else f"the best {performance} with {within}"


def part_words(part: Part) -> str:
    """What happened to a rate, in words."""
    more = part.change > 0
    return {
        "tpr": "more of those with the finding are detected" if more else "fewer of those with the finding are detected",
        "fpr": "more of those without the finding get a false alarm" if more else "fewer of those without the finding get a false alarm",
        "selection": "more patients are flagged" if more else "fewer patients are flagged",
    }[part.rate]


def _rate_views(blocks: Sequence[RateBlock]) -> list[RateView]:
    views = []
    for block in blocks:
        if block.rate in RATES:
            kind = RATES[block.rate][2]
            ends = [e for row in block.rows for e in (row.before, row.after)]
            views.append(RateView(block.rate, kind, Scale.of(ends, kind), block.rows))
    return views


def _gap_view(rows: Sequence[GapRow]) -> GapView:
    measures: dict[str, list[GapRow]] = {}
    for row in rows:
        measures.setdefault(row.measure, []).append(row)
    return GapView(Scale.of([e for row in rows for e in (row.before, row.after)], "points"), measures)


def _widest_change(found: Findings) -> float:
    """The largest share of a group's patients with or without the finding whose decision changed one way."""
    shares = [
        part / n
        for c in found.affected[-1].counts
        for n, good, bad in ((c.positives, c.detected, c.missed), (c.negatives, c.cleared, c.alarmed))
        for part in (good, bad)
        if n
    ]
    return max(0.01, *shares) if shares else 1.0


def _choice(repair: Repair, result: Repair) -> dict[str, Any]:
    row = repair.candidate.trace.iloc[repair.candidate.chosen]
    threshold = float(row["threshold"])
    return {
        "name": repair.name,
        "step": f"{int(row['step']):,}",
        "gap": float(row["gap"]),
        "performance": float(row["performance"]),
        "threshold": "—" if math.isnan(threshold) else number(threshold, 3),
        "met": repair.candidate.met,
        "result": repair is result,
    }


def _explorer_notes(data: dict[str, Any]) -> list[str]:
    notes = ["“± … at most” beside a step: half of the widest 95% interval that this many patients of the validation part allow."]
    for method in data["methods"]:
        drawn = sum(method["drawn"])
        if drawn < method["total"]:
            notes.append(
                f"{method['name']}: {drawn:,} of {method['total']:,} steps are drawn. "
                "Every step that some floor or bound would choose is in the file, so that no choice is lost."
            )
        if method["own_rule"]:
            notes.append(f"{method['name']} chose its step in this run by a rule of its own; moved lines choose by the rule above.")
    return notes


def _pictures(case: Case) -> list[dict[str, Any]]:
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
                "id": before.ids[row],
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


def _maps(case: Case) -> list[dict[str, Any]]:
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


def _how_many(rows: int, patients: int | None, part: str) -> str:
    return (
        f"{rows:,} {part} rows" if patients is None else f"{patients:,} {part} patients" + ("" if patients == rows else f" ({rows:,} rows)")
    )


def _patients(case: Case) -> int | None:
    patients = case.original.valid.patients
    return None if patients is None else len(set(patients))


def _date(when: str) -> str:
    try:
        moment = datetime.fromisoformat(when)
    except ValueError:
        return short(when)
    return f"{moment.day} {moment:%B %Y, %H:%M} {moment.tzname() or ''}".rstrip()


def _read(name: str) -> str:
    return (TEMPLATES / name).read_text(encoding="utf-8")
