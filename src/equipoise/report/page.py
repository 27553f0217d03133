"""The report of a case as one HTML file for a committee: complete in itself, light and dark, on a phone and on paper.

Words stand in the templates, numbers come from `findings`. Everything is escaped; the one script may run by its hash alone, so that no
name in a user's file could become a script even if an escape were missed.
"""

import base64
import hashlib
import json
import math
from collections.abc import Mapping
from datetime import datetime
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from equipoise.data import write_text
from equipoise.methods import ALL_AT_ONCE, METHODS
from equipoise.models import READ_IS_NOT_USED
from equipoise.report.case import Case
from equipoise.report.explorer import explorer_data
from equipoise.report.findings import Findings, find, headline
from equipoise.report.limits import LIMIT_WORDS, limit_words
from equipoise.report.panels import calibration_panel, roc_panel, score_panel, trajectory_panel
from equipoise.report.terminal import percent
from equipoise.report.views import (
    Book,
    changed_pictures,
    choice,
    explorer_notes,
    gap_view,
    goal_words,
    part_words,
    probe_views,
    rate_views,
    unit_maps,
    widest_change,
)
from equipoise.report.words import ALMOST, PERFORMANCE, RATES, amount, count, gap_words, plain, share_words, short, span

if TYPE_CHECKING:
    from equipoise.report.repaired import Written

TEMPLATES = Path(__file__).parent / "templates"
SCRIPTS = ("select.js", "page.js", "explorer.js")
COLOURS = 7  # of groups, with a dash of its own each
DRAWN = 12  # groups with a panel of scores
MAPS = 24
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
    "probes": "What the layers hold",
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


def write_page(case: Case, path: Path, *, draws: int = 1000, thumbnails: bool = False, found: Findings | None = None) -> None:
    """Writes the report, whole or not at all. Images of patients go into it only with `thumbnails`. `found` is not computed again."""
    write_text(path, page(case, draws=draws, thumbnails=thumbnails, found=found))


def page(case: Case, *, draws: int = 1000, thumbnails: bool = False, found: Findings | None = None) -> str:
    """The report as HTML."""
    return _environment().get_template("report.html").render(_context(case, found or find(case, draws=draws), thumbnails))


@cache
def _environment() -> Environment:
    """The templates: everything is escaped, and a name that is not there is an error."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {
        "amount": amount,
        "count": count,
        "plain": plain,
        "short": short,
        "span": span,
        "sentence": _sentence,
        "limit_words": limit_words,
    }
    environment.tests["nan"] = math.isnan
    return environment


def _sentence(text: str) -> str:
    """With a capital first letter, the others as they are: F1 stays F1."""
    return text[:1].upper() + text[1:]


def _context(case: Case, found: Findings, thumbnails: bool) -> dict[str, Any]:
    candidate, goal = case.result.candidate, case.result.candidate.goal
    attribute = case.original.test.attribute
    performance = PERFORMANCE[goal.performance]
    style, script = (_read("report.css"), "".join(map(_read, SCRIPTS)))
    data = explorer_data(case, performance)
    pictures = changed_pictures(case) if thumbnails and case.thumbnails else []
    maps = unit_maps(case)
    absent = {"images": not (pictures or maps), "probes": case.probes is None}
    shown = [anchor for anchor in CONTENTS if not absent.get(anchor)]
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
        "min_patients": found.settings.min_patients,
        "patients": case.original.test.patients is not None and case.original.valid.patients is not None,
        "performance": performance,
        "share_words": share_words,
        "best_rule": LIMIT_WORDS,
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
        "forests": {name: rate_views(blocks) for name, blocks in found.rates.items()},
        "gap_forests": {name: gap_view(rows) for name, rows in found.gaps.items()},
        "widest_change": widest_change(found),
        "calibration": [calibration_panel(t, r.test, attribute, found.settings.min_patients) for t, r in sides],
        "roc": [roc_panel(t, r.test, r.decisions(), attribute) for t, r in sides],
        "distributions": [
            score_panel(f"{short(attribute.levels[code])}, {title.lower()}", r.test, r.candidate.rule, attribute, code)
            for code in codes
            for title, r in sides
        ],
        "left_out": max(0, len(attribute.levels) - DRAWN),
        "trajectories": [trajectory_panel(repair, goal) for repair in case.repairs if len(repair.candidate.trace) > SHORT_PATH],
        "one_step": [repair.name for repair in case.repairs if len(repair.candidate.trace) <= SHORT_PATH],
        "choices": [choice(repair, case.result, case.original) for repair in case.repairs],
        "result_below": choice(case.result, case.result, case.original)["below"],
        "has_limit": data["limit"] is not None,
        "probes": probe_views(case.probes),
        "read_is_not_used": READ_IS_NOT_USED,
        "step_total": f"{sum(len(r.candidate.trace) for r in case.repairs):,}",
        "explorer_notes": explorer_notes(data),
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


def labels_page(title: str, cases: Mapping[str, Case], written: Mapping[str, "Written"], places: Mapping[str, Path]) -> str:
    """The page that leads to the reports of several labels, as HTML."""
    first = next(iter(cases.values()))
    goal, attribute, method = first.result.candidate.goal, first.original.test.attribute, first.result.name
    rows: list[dict[str, Any]] = []
    for label, case in cases.items():
        audits = (written[label].found.before, written[label].found.after)
        rows.append(
            {
                "label": label,
                "href": f"{quote(places[label].name)}/report.html" if "report.html" in written[label].files else "",
                "gap": [headline(found, goal.measure, attribute.name) for found in audits],
                "performance": [found[goal.performance] for found in audits],
                "met": case.result.candidate.met,
                "goal": goal_words(case.result.candidate.goal),
            }
        )
    sides = [[SimpleNamespace(label=row["label"], value=row["gap"][k].value) for row in rows] for k in (0, 1)]
    sides = [[gap for gap in side if not math.isnan(gap.value)] for side in sides]
    unmet = [(label, case.result.candidate.why) for label, case in cases.items() if not case.result.candidate.met]
    return (
        _environment()
        .get_template("labels.html")
        .render(
            title=title,
            rows=rows,
            unmet=unmet,
            met=sum(case.result.candidate.met for case in cases.values()),
            method=method,
            together=METHODS[method].labels == ALL_AT_ONCE,
            attribute=attribute.name,
            reference=attribute.reference,
            many=len(attribute.levels) > 2,
            goal=goal,
            worst=[max(side, key=lambda gap: abs(gap.value)) for side in sides] if all(sides) else [],
            gap_words=gap_words,
            performance=PERFORMANCE[goal.performance],
            level=percent(next(iter(written.values())).found.settings.level),
            provenance=first.provenance,
            when=_date(first.provenance.when),
            book=Book(),
            style=Markup(_read("report.css")),
        )
    )


def script_data(data: object) -> Markup:
    """JSON for inside a <script> element, which no name in it can end."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))  # ASCII: line separators are written out too
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


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
