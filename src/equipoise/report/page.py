"""The HTML report of a repair for a committee, and the overview of several labels. Each is one file, for screens, phones and paper.

Words stand in the templates, numbers come from findings.
"""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from equipoise.measures import ALMOST, UPPER_BOUND, steps_by_group
from equipoise.methods import ALL_AT_ONCE, METHODS, joint_outcome
from equipoise.models import READ_IS_NOT_USED
from equipoise.repair import Comparison, Saved
from equipoise.report.measure_words import PERFORMANCE, RATES, gap_words, rate_title, share_words
from equipoise.report.notes import note_words, why_words
from equipoise.report.panels import PANELS, calibration_panel, decision_panels, roc_panel, score_panel, trajectory_panel
from equipoise.report.paper import write_by_ending
from equipoise.report.templating import LIMITS, date_words, how_many, numbered, page_of, script_data
from equipoise.report.text import percent, short
from equipoise.report.views import (
    changed_pictures,
    choice,
    explorer_data,
    explorer_notes,
    gap_view,
    probe_views,
    rate_views,
    unit_maps,
    widest_change,
)
from equipoise.report.wording import (
    balance_words,
    baseline_words,
    contribution_words,
    goal_words,
    group_words,
    met_words,
    method_words,
    outcome_words,
    outcomes_words,
)

Each = TypeVar("Each")
SCRIPTS = ("select.js", "svg.js", "page.js", "explorer.js")
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


def write_page(case: Comparison, path: Path, *, thumbnails: bool = False, group_names: Mapping[str, str] | None = None) -> Path:
    """The path of the report, HTML or PDF by its ending, which is written whole or not at all.

    Images of patients are included only with `thumbnails`, and never in a PDF, which is the short report for a committee.
    """
    return write_by_ending(path, lambda paper: report_page(case, thumbnails=thumbnails and not paper, names=group_names, paper=paper))


def report_page(case: Comparison, *, thumbnails: bool = False, names: Mapping[str, str] | None = None, paper: bool = False) -> str:
    """The report of a comparison as HTML; `names` are words for groups, such as {"F": "women"}."""
    words = group_words(names, {a.name: a.levels for a in case.original.test.attributes})

    def called(group: str) -> str:
        return words.get(group, group)

    context = (
        _shared(case, called) | _outcome(case, words) | _groups(case) | _scores(case, called) | _steps(case) | _images(case, thumbnails)
    )
    absent = {"images": not (context["pictures"] or context["maps"]), "probes": case.probes is None}
    context |= numbered({anchor: heading for anchor, heading in CONTENTS.items() if not absent.get(anchor)})
    return page_of("report.html", context, SCRIPTS, paper=paper)


def _shared(case: Comparison, called: Callable[[str], str]) -> dict[str, Any]:
    """What several sections use, the frame of the page, and how to reproduce it."""
    found = case.found
    return {
        "title": case.title,
        "kind": "report",
        "version": case.provenance.versions.get("equipoise", ""),
        "when": date_words(case.provenance.when),
        "case": case,
        "found": found,
        "candidate": case.result.candidate,
        "method": method_words(case.result),
        "goal": case.goal,
        "levels": case.original.test.attribute.levels,
        "called": called,
        "level": percent(found.settings.level),
        "min_patients": found.settings.min_patients,
        "performance": PERFORMANCE[case.goal.performance],
        "gap_words": gap_words,
        "rates": RATES,
        "rate_title": rate_title,
        "goal_words": goal_words(case.goal),
        "most_colours": COLOURS,
        "decisions": DECISIONS,
        "limits": LIMITS,
        "why_words": why_words,
        "notes": [(r.name, note) for r in case.candidates for note in map(note_words, r.candidate.notes)],
    }


def _outcome(case: Comparison, names: Mapping[str, str]) -> dict[str, Any]:
    """The outcome, and who is better and who is worse."""
    found, candidate, judgement, valid = case.found, case.result.candidate, case.judgement, case.original.valid
    rows, people = found.after.rows, found.after.patients
    unit = "patients" if people in (None, rows) else "rows"
    changes = [
        abs(change.value) for each in found.balances.values() for b in each for change in (b.corrected, b.spoiled, b.missed, b.alarms)
    ]
    digits = 0 if max([change for change in changes if not math.isnan(change)], default=0.0) >= FINE else 1
    return {
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
        "share_words": share_words,
        "rate_words": "" if found.rate is None else RATES[found.rate].name,
        "almost": ALMOST,
        "contribution_words": contribution_words,
        "size_words": how_many(rows, people, "test"),
        "valid_words": "" if valid is None else how_many(len(valid), _patients(valid.patients), "repair"),
        "total": found.affected[0].counts[-1],
        "trace_first": case.original.candidate.trace.iloc[0] if valid is not None else candidate.trace.iloc[0],
        "trace_chosen": candidate.trace.iloc[candidate.chosen],
        "widest_change": widest_change(found),
    }


def _groups(case: Comparison) -> dict[str, Any]:
    """The differences, the rates of each group, and the patients."""
    found, valid = case.found, case.original.valid
    return {
        "forests": {name: rate_views(blocks) for name, blocks in _main_first(found.rates).items()},
        "gap_forests": {name: gap_view(rows) for name, rows in _main_first(found.gaps).items()},
        "cohort": _main_first(found.cohort),
        "patients": case.original.test.patients is not None and (valid is None or valid.patients is not None),
    }


def _scores(case: Comparison, called: Callable[[str], str]) -> dict[str, Any]:
    """Figures of the scores before and after: calibration, ROC, distributions and decision curves."""
    found, attribute = case.found, case.original.test.attribute
    least = found.settings.min_patients
    drawn = [
        (title, tried, steps_by_group(tried.test, attribute, tried.candidate.rule, least))
        for title, tried in (("Before", case.original), ("After", case.result))
    ]
    codes = range(min(len(attribute.levels), DRAWN))
    return {
        "calibration": [calibration_panel(title, attribute, steps, called) for title, _, steps in drawn],
        "roc": [roc_panel(title, tried.test, tried.decisions(), attribute, steps, called) for title, tried, steps in drawn],
        "distributions": [
            score_panel(f"{short(called(attribute.levels[code]))}, {title.lower()}", r.test, r.candidate.rule, attribute, code, steps)
            for code in codes
            for title, r, steps in drawn
        ],
        "left_out": max(0, len(attribute.levels) - DRAWN),
        "decision_curves": decision_panels(attribute.name, (("before", found.before), ("after", found.after)), called),
        "further_panels": {heading: draw(case) for heading, draw in PANELS.items()},
    }


def _steps(case: Comparison) -> dict[str, Any]:
    """Every step of every method: the explorer of the trade-off, trajectories, and what layers encode."""
    data = explorer_data(case, PERFORMANCE[case.goal.performance])
    return {
        "upper_bound": UPPER_BOUND,
        "trajectories": [trajectory_panel(tried, case.goal) for tried in case.candidates if len(tried.candidate.trace) > SHORT_PATH],
        "one_step": [tried.name for tried in case.candidates if len(tried.candidate.trace) <= SHORT_PATH],
        "choices": [choice(tried, case) for tried in case.candidates],
        "result_below": choice(case.result, case)["below"],
        "has_bound": data["limit"] is not None,
        "step_total": f"{sum(len(r.candidate.trace) for r in case.candidates):,}",
        "explorer_notes": explorer_notes(data),
        "data": script_data(data),
        "probes": probe_views(case.probes),
        "read_is_not_used": READ_IS_NOT_USED,
    }


def _images(case: Comparison, thumbnails: bool) -> dict[str, Any]:
    """Images of patients, where they are allowed, and maps of pruned units."""
    maps = unit_maps(case)
    pictures = changed_pictures(case) if thumbnails and case.thumbnails else []
    return {"pictures": pictures, "maps": maps[:MAPS], "maps_left_out": max(0, len(maps) - MAPS)}


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
    goal, attribute = first.goal, first.original.test.attribute
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
    context = {
        "title": title,
        "kind": "multi-class report" if first.kind == "classes" else "multi-label report",
        "kind_words": first.kind,
        "one": "class" if first.kind == "classes" else "label",
        "version": first.provenance.versions.get("equipoise", ""),
        "rows": rows,
        "outcome": joint_outcome(case.outcome for case in cases.values()),
        "outcomes_words": outcomes_words(judgements, first.kind),
        "method": "; ".join(dict.fromkeys(method_words(case.result) for case in cases.values())),
        "together": METHODS[first.result.candidate.method].labels == ALL_AT_ONCE,
        "alone": first.result.candidate.rule_only,
        "attribute": attribute.name,
        "reference": attribute.reference,
        "more": len(attribute.levels) > 2,
        "goal": goal,
        "gap_words": gap_words,
        "performance": PERFORMANCE[goal.performance],
        "called": lambda group: names.get(group, group),
        "level": percent(first.found.settings.level),
        "provenance": first.provenance,
        "when": date_words(first.provenance.when),
    }
    return page_of("labels.html", context)


def _patients(patients: Any) -> int | None:
    return None if patients is None else len(set(patients))
