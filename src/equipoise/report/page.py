"""HTML reports for a committee: of a comparison, of an audit, and of several labels. Each is one file, for screens, phones and paper.

Words stand in the templates, numbers come from findings. Everything is escaped; the only script may run because of its hash, so no name
in a user's file could become a script even if an escape were missed.
"""

import base64
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from equipoise import __version__
from equipoise.data import write_text
from equipoise.measures import ALMOST, OF_ALL, UPPER_BOUND, Audit, Audits
from equipoise.methods import ALL_AT_ONCE, METHODS, joint_outcome
from equipoise.models import READ_IS_NOT_USED
from equipoise.repair import Comparison, Saved, folders
from equipoise.report.explorer import explorer_data
from equipoise.report.measure_words import PERFORMANCE, RATES, gap_words, rate_title, share_words, upper_bound_words
from equipoise.report.notes import note_words, why_words
from equipoise.report.panels import PANELS, calibration_panel, decision_panels, roc_panel, score_panel, trajectory_panel
from equipoise.report.text import amount, count, p_words, percent, plain, sentence, short, span, thousand
from equipoise.report.views import (
    Book,
    audit_views,
    changed_pictures,
    choice,
    explorer_notes,
    gap_view,
    probe_views,
    rate_views,
    underdiagnosis_rows,
    unit_maps,
    widest_change,
)
from equipoise.report.wording import (
    attributes_of,
    balance_words,
    baseline_words,
    comparison_words,
    conclusion,
    contribution_words,
    goal_words,
    group_words,
    met_words,
    outcome_words,
    outcomes_words,
    sampled_words,
)

Each = TypeVar("Each")
TEMPLATES = Path(__file__).parent / "templates"
SCRIPTS = ("select.js", "page.js", "explorer.js")
COLOURS = 7  # of groups, each with a dash pattern
DRAWN = 12  # groups with a panel of scores
MAPS = 24
SHORT_PATH = 2  # steps, the original and the result, that need no figure
CONTENTS = {  # what a committee reads, then what is folded
    "verdict": "The outcome",
    "affected": "Who is better, who is worse",
    "gaps": "The differences",
    "groups": "Each group",
    "cohort": "The patients",
    "signoff": "Decision",
    "limits": "Limits",
    "explorer": "The trade-off, to explore",
    "trajectories": "The steps of the methods",
    "curves": "Scores and thresholds",
    "probes": "What the layers encode",
    "images": "Images and units",
    "method": "Method and settings",
}
DECISIONS = ("use the repaired classifier", "use it under conditions", "keep the original", "use neither")  # to tick on paper
FINE = 0.01  # where no change is larger than 10 in 1,000, numbers per 1,000 have a decimal place
LIMITS = (
    "A small difference in one measure does not mean that the classifier is equally good for every group. Other measures may differ, and "
    "some cannot be equal at the same time if the finding is more frequent in one group than in another.",
    "Labels are taken as the truth. If a group's disease is missed or over-diagnosed in the records, these measures inherit it.",
    "Groups are those of the given columns. Differences within a group, and groups that were not recorded, are not seen.",
    "The patients are those of these data, at this place and time. A new scanner, clinic or population needs a new audit.",
    "Intervals cover the sampling of patients, not errors of labels, recording or selection.",
    "Nothing here shows that a difference was caused by the group, nor that a decision is lawful or clinically right. "
    "That is for clinicians, patients and the committee.",
)


def write_page(case: Comparison, path: Path, *, thumbnails: bool = False, group_names: Mapping[str, str] | None = None) -> Path:
    """The path of the report, which is written whole or not at all. Images of patients are included only with `thumbnails`."""
    return write_text(path, report_page(case, thumbnails=thumbnails, names=group_names))


def write_audit_page(audit: Audit, path: Path, *, follow: bool = True, group_names: Mapping[str, str] | None = None) -> Path:
    """The path of an audit's report, which is written whole or not at all; `follow`: through a link, as fits a path that the user named."""
    return write_text(path, audit_page(audit, group_names), follow=follow)


def write_audits_page(audits: Audits, path: Path, *, group_names: Mapping[str, str] | None = None) -> Path:
    """The path of the overview of several labels, which is written there, and the page of each next to it."""
    places, rows = folders(path.parent, [*audits, ""]), []  # with one name more, so that even one label has a name of its own
    for label, audit in audits.items():
        named = path.with_name(f"{path.stem}-{places[label].name}.html")
        page = write_audit_page(replace(audit, name=f"{label}, {audits.name}"), named, follow=False, group_names=group_names)
        names = group_words(group_names, attributes_of(audit))
        told = {"conclusion": conclusion(audit, names), "performance": audit.estimates.get("balanced_accuracy")}
        rows.append({"label": label, "href": quote(page.name), **told})
    about: dict[str, Any] = {"title": audits.name, "kind": "audit", "kind_words": audits.kind, "rows": rows}
    first = next(iter(audits.values()))
    names = group_words(group_names, attributes_of(first))
    about |= {"version": __version__, "book": Book(), "called": lambda group: names.get(group, group)}
    if audits.no_finding is not None:
        about |= {"no_finding": audits.no_finding, "comparisons": comparison_words(audits.no_finding)}
    about["underdiagnosis"] = [] if audits.no_finding is None else underdiagnosis_rows(audits.no_finding)
    level = percent(first.settings.level)
    page_of_all = _environment().get_template("audits.html").render(**about, level=level, style=Markup(_read("report.css")))
    return write_text(path, page_of_all)


def report_page(case: Comparison, *, thumbnails: bool = False, names: Mapping[str, str] | None = None) -> str:
    """The report of a comparison as HTML; `names` are words for groups, such as {"F": "women"}."""
    attributes = {a.name: a.levels for a in case.original.test.attributes}
    return _environment().get_template("report.html").render(_context(case, thumbnails, group_words(names, attributes)))


def audit_page(audit: Audit, names: Mapping[str, str] | None = None) -> str:
    """The report of an audit as HTML; `names` are words for groups, such as {"F": "women"}."""
    words = group_words(names, attributes_of(audit))

    def called(group: str) -> str:
        return words.get(group, group)

    views = audit_views(audit, called)
    attributes = [(f"attribute-{k}", f"By {short(view.attribute)}") for k, view in enumerate(views)]
    contents = [("verdict", "The answer"), *attributes, ("method", "Method and limits")]
    return (
        _environment()
        .get_template("audit.html")
        .render(
            title=audit.name,
            kind="audit",
            version=__version__,
            contents=contents,
            sections={anchor: k + 1 for k, (anchor, _) in enumerate(contents)},
            audit=audit,
            conclusion=conclusion(audit, words),
            baseline_words=baseline_words(audit.baseline, audit.settings.level),
            comparisons=comparison_words(audit),
            sampled=sampled_words(audit),
            clear=[(measure, e) for view in views for measure, rows in view.gaps.items() for e in rows if e.clear],
            views=views,
            performance=[(words, audit[name]) for name, words in PERFORMANCE.items() if name in audit.estimates],
            of_scores=[(name, audit[name]) for name in OF_ALL if name in audit.estimates],
            size_words=_how_many(audit.rows, audit.patients, ""),
            level=percent(audit.settings.level),
            rates=RATES,
            rate_title=rate_title,
            gap_words=gap_words,
            called=called,
            limits=LIMITS,
            book=Book(),
            style=Markup(_read("report.css")),
        )
    )


@cache
def _environment() -> Environment:
    """The templates: everything is escaped, and an unknown name is an error."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    for make in (amount, count, p_words, plain, sentence, short, span, thousand, upper_bound_words, why_words):
        environment.filters[make.__name__] = make
    environment.tests["nan"] = math.isnan
    return environment


def _context(case: Comparison, thumbnails: bool, names: Mapping[str, str]) -> dict[str, Any]:
    found, candidate, goal = case.found, case.result.candidate, case.goal
    attribute = case.original.test.attribute
    performance = PERFORMANCE[goal.performance]
    style, script = (_read("report.css"), "".join(map(_read, SCRIPTS)))
    data = explorer_data(case, performance)
    pictures = changed_pictures(case) if thumbnails and case.thumbnails else []
    maps = unit_maps(case)
    absent = {"images": not (pictures or maps), "probes": case.probes is None}
    shown = [anchor for anchor in CONTENTS if not absent.get(anchor)]
    codes = range(min(len(attribute.levels), DRAWN))
    drawn = (("Before", case.original), ("After", case.result))
    valid = case.original.valid
    judgement = case.judgement
    rows, people = found.after.rows, found.after.patients

    def called(group: str) -> str:
        return names.get(group, group)

    unit = "patients" if people in (None, rows) else "rows"
    changes = [
        abs(change.value) for each in found.balances.values() for b in each for change in (b.corrected, b.spoiled, b.missed, b.alarms)
    ]
    digits = 0 if max([change for change in changes if not math.isnan(change)], default=0.0) >= FINE else 1
    return {
        "title": case.title,
        "kind": "report",
        "version": case.provenance.versions.get("equipoise", ""),
        "case": case,
        "found": found,
        "candidate": candidate,
        "goal": goal,
        "book": Book(),
        "levels": attribute.levels,
        "called": called,
        "judgement": judgement,
        "outcome_words": outcome_words(judgement, names=names),
        "met_words": met_words(judgement),
        "cross_fitted": "" if candidate.judgement is None else outcome_words(candidate.judgement, names=names),
        "baseline": case.baseline,
        "baseline_words": baseline_words(case.baseline, found.settings.level),
        "unit": unit,
        "digits": digits,
        "balances": _main_first(found.balances),
        "balance_words": balance_words(found.balances[found.main], unit, digits, names),
        "decisions": DECISIONS,
        "cohort": _main_first(found.cohort),
        "level": percent(found.settings.level),
        "min_patients": found.settings.min_patients,
        "patients": case.original.test.patients is not None and (valid is None or valid.patients is not None),
        "performance": performance,
        "share_words": share_words,
        "upper_bound": UPPER_BOUND,
        "gap_words": gap_words,
        "rates": RATES,
        "rate_title": rate_title,
        "rate_words": "" if found.rate is None else RATES[found.rate].name,
        "almost": ALMOST,
        "contribution_words": contribution_words,
        "goal_words": goal_words(goal),
        "size_words": _how_many(found.after.rows, found.after.patients, "test"),
        "valid_words": "" if valid is None else _how_many(len(valid), _patients(valid.patients), "repair"),
        "total": found.affected[0].counts[-1],
        "trace_first": case.original.candidate.trace.iloc[0] if valid is not None else candidate.trace.iloc[0],
        "trace_chosen": candidate.trace.iloc[candidate.chosen],
        "forests": {name: rate_views(blocks) for name, blocks in _main_first(found.rates).items()},
        "gap_forests": {name: gap_view(rows) for name, rows in _main_first(found.gaps).items()},
        "widest_change": widest_change(found),
        "calibration": [calibration_panel(t, r.test, attribute, found.settings.min_patients, called) for t, r in drawn],
        "roc": [roc_panel(t, r.test, r.decisions(), attribute, called) for t, r in drawn],
        "distributions": [
            score_panel(f"{short(called(attribute.levels[code]))}, {title.lower()}", r.test, r.candidate.rule, attribute, code)
            for code in codes
            for title, r in drawn
        ],
        "left_out": max(0, len(attribute.levels) - DRAWN),
        "decision_curves": decision_panels(attribute.name, (("before", found.before), ("after", found.after)), called),
        "further_panels": {heading: draw(case) for heading, draw in PANELS.items()},
        "trajectories": [trajectory_panel(tried, goal) for tried in case.candidates if len(tried.candidate.trace) > SHORT_PATH],
        "one_step": [tried.name for tried in case.candidates if len(tried.candidate.trace) <= SHORT_PATH],
        "choices": [choice(tried, case) for tried in case.candidates],
        "result_below": choice(case.result, case)["below"],
        "has_bound": data["limit"] is not None,
        "probes": probe_views(case.probes),
        "read_is_not_used": READ_IS_NOT_USED,
        "step_total": f"{sum(len(r.candidate.trace) for r in case.candidates):,}",
        "explorer_notes": explorer_notes(data),
        "pictures": pictures,
        "maps": maps[:MAPS],
        "maps_left_out": max(0, len(maps) - MAPS),
        "limits": LIMITS,
        "notes": [(r.name, note) for r in case.candidates for note in map(note_words, r.candidate.notes)],
        "contents": [(anchor, CONTENTS[anchor]) for anchor in shown],
        "sections": {anchor: k + 1 for k, anchor in enumerate(shown)},
        "when": _date(case.provenance.when),
        "most_colours": COLOURS,
        "style": Markup(style),
        "script": Markup(script),
        "script_hash": base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        "data": script_data(data),
    }


def _main_first(by_attribute: Mapping[str, Each]) -> dict[str, Each]:
    """The same by attribute, beginning with the one that the goal compares: the last, which is the intersection where there are several."""
    main = next(reversed(list(by_attribute)))
    return {main: by_attribute[main], **by_attribute}


def labels_page(
    title: str,
    cases: Mapping[str, Comparison],
    saved: Mapping[str, Saved],
    places: Mapping[str, Path],
    given: Mapping[str, str] | None = None,
) -> str:
    """The overview that links to the reports of several labels, as HTML; `given` are words for groups."""
    first = next(iter(cases.values()))
    names = group_words(given, {a.name: a.levels for a in first.original.test.attributes})
    goal, attribute, method = first.goal, first.original.test.attribute, first.result.name
    rows: list[dict[str, Any]] = [
        {
            "label": label,
            "href": f"{quote(places[label].name)}/report.html" if "report.html" in saved[label].files else "",
            "gap": [case.found.gap_before, case.found.gap_after],
            "performance": [case.found.performance_before, case.found.performance_after],
            "outcome": case.outcome,
            "words": outcome_words(case.judgement, names=names),
        }
        for label, case in cases.items()
    ]
    judgements = {label: case.judgement for label, case in cases.items()}
    return (
        _environment()
        .get_template("labels.html")
        .render(
            title=title,
            kind="multi-class report" if first.kind == "classes" else "multi-label report",
            kind_words=first.kind,
            one="class" if first.kind == "classes" else "label",
            version=first.provenance.versions.get("equipoise", ""),
            rows=rows,
            outcome=joint_outcome(case.outcome for case in cases.values()),
            outcomes_words=outcomes_words(judgements, first.kind),
            method=method,
            together=METHODS[first.result.candidate.method].labels == ALL_AT_ONCE,
            attribute=attribute.name,
            reference=attribute.reference,
            more=len(attribute.levels) > 2,
            goal=goal,
            gap_words=gap_words,
            performance=PERFORMANCE[goal.performance],
            called=lambda group: names.get(group, group),
            level=percent(first.found.settings.level),
            provenance=first.provenance,
            when=_date(first.provenance.when),
            book=Book(),
            style=Markup(_read("report.css")),
        )
    )


def script_data(data: object) -> Markup:
    """JSON for inside a <script> element, which no name in it can end."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))  # ASCII: line separators are escaped too
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def _how_many(rows: int, patients: int | None, kind: str) -> str:
    of = f"{kind} " if kind else ""
    return f"{rows:,} {of}rows" if patients is None else f"{patients:,} {of}patients" + ("" if patients == rows else f" ({rows:,} rows)")


def _patients(patients: Any) -> int | None:
    return None if patients is None else len(set(patients))


def _date(when: str) -> str:
    try:
        moment = datetime.fromisoformat(when)
    except ValueError:
        return short(when)
    return f"{moment.day} {moment:%B %Y, %H:%M} {moment.tzname() or ''}".rstrip()


def _read(name: str) -> str:
    return (TEMPLATES / name).read_text(encoding="utf-8")
