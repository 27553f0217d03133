"""The HTML report of a repair for a committee: one file, for screens, phones and paper.

Fixed text is in the templates; numbers come from the findings.
"""

import base64
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pandas as pd
from PIL import Image

from equipoise import models  # imports torch for probes only
from equipoise.comparison import Comparison, Findings, GapRow, Probes, RateBlock
from equipoise.measures import NEGLIGIBLE_CHANGE, AuditSpec, Estimate, FloatArray, steps_by_group
from equipoise.report.explorer import chosen_step, explorer_data, explorer_notes
from equipoise.report.panels import PANELS, RateView, Scale, calibration_panel, decision_panels, roc_panel, score_panel, trajectory_panel
from equipoise.report.paper import write_by_ending
from equipoise.report.templating import LIMITS, numbered, page_of, script_data
from equipoise.report.text import date_words, how_many, number, percent, short
from equipoise.report.wording.audits import BY_ROW, DETECTABLE, MARK_AND_INTERVAL, baseline_words, few_words
from equipoise.report.wording.names import (
    PERFORMANCE,
    RATES,
    SHOWN,
    GroupNames,
    distinct,
    gap_words,
    mirrors,
    rate_title,
    share_words,
)
from equipoise.report.wording.notes import note_words, why_words
from equipoise.report.wording.repairs import (
    SMALL_CHANGE,
    balance_words,
    contribution_words,
    error_unit,
    goal_words,
    groups_called,
    is_original,
    met_words,
    method_words,
    outcome_words,
    repair_answer,
)

Value = TypeVar("Value")
SCRIPTS = ("select.js", "svg.js", "page.js", "explorer.js")
COLOURS = 7  # of groups, each with a dash pattern
MOST_DISTRIBUTIONS = 12  # groups with a panel of scores
MOST_MAPS, MOST_PICTURES = 24, 12
SHORT_TRACE = 2  # steps, the original and the result, which need no figure
CONTENTS = {  # the sections for a committee, then the folded ones
    "verdict": "The outcome",
    "affected": "Who is better, who is worse",
    "gaps": "The differences",
    "groups": "Each group",
    "cohort": "The patients",
    "signoff": "Decision",
    "limits": "Limits",
    "explorer": "Explore the trade-off",
    "trajectories": "The steps of the methods",
    "curves": "Scores and thresholds",
    "probes": "What the layers encode",
    "images": "Images and units",
    "method": "Method and settings",
}
DECISIONS = ("use the repaired classifier", "use it under conditions", "keep the original", "use neither")  # to tick on paper
AMONG = {None: "Among all patients", 1: "Among those with the finding", 0: "Among those without it"}  # rows of a probe, by label


def write_repair_page(case: Comparison, path: Path, *, thumbnails: bool = False, group_names: Mapping[str, str] | None = None) -> Path:
    """Writes the report, HTML or PDF by the ending of its path, whole or not at all; returns the path.

    Images of patients are included only with `thumbnails`, and never in a PDF, which is the short report for a committee.
    """
    return write_by_ending(path, lambda paper: report_page(case, thumbnails=thumbnails and not paper, names=group_names, paper=paper))


def report_page(case: Comparison, *, thumbnails: bool = False, names: Mapping[str, str] | None = None, paper: bool = False) -> str:
    """The report of a comparison as HTML; `names` are words for groups, such as {"F": "women"}."""
    called = groups_called(case, names)
    context = _shared(case, called) | _outcome(case, called) | _groups(case) | _scores(case, called) | _steps(case)
    maps = unit_maps(case)
    context |= {
        "pictures": changed_pictures(case) if thumbnails and case.thumbnails else [],
        "maps": maps[:MOST_MAPS],
        "maps_left_out": max(0, len(maps) - MOST_MAPS),
    }
    absent = {"images": not (context["pictures"] or maps), "probes": case.probes is None}
    context |= numbered({anchor: heading for anchor, heading in CONTENTS.items() if not absent.get(anchor)})
    return page_of("report.html", context, SCRIPTS, paper=paper)


def _shared(case: Comparison, called: GroupNames) -> dict[str, Any]:
    """The frame of the page, values that several sections use, and how to reproduce the run."""
    return {
        "title": case.title,
        "kind": "report",
        "version": case.provenance.versions.get("equipoise", ""),
        "when": date_words(case.provenance.when),
        "case": case,
        "found": case.found,
        "candidate": case.result.candidate,
        "method": method_words(case.result),
        "goal": case.goal,
        "levels": case.original.test.attribute.levels,
        "called": called.full,
        "level": percent(case.found.settings.level),
        "by_row": BY_ROW if case.found.after.patients is None else "",
        "detectable": DETECTABLE,
        "mark_and_interval": MARK_AND_INTERVAL,
        "min_patients": case.found.settings.min_patients,
        "performance": PERFORMANCE[case.goal.performance],
        "gap_words": gap_words,
        "rates": RATES,
        "goal_words": goal_words(case.goal),
        "most_colours": COLOURS,
        "decisions": DECISIONS,
        "limits": LIMITS,
        "why_words": why_words,
        "notes": [(tried.name, note_words(note)) for tried in case.candidates for note in tried.candidate.notes],
    }


def _outcome(case: Comparison, called: GroupNames) -> dict[str, Any]:
    """The outcome, and who is better and who is worse."""
    findings, candidate, judgement, valid = case.found, case.result.candidate, case.judgement, case.original.valid
    rows, patients, unit = findings.after.rows, findings.after.patients, error_unit(case)
    balances = [balance for of_attribute in findings.balances.values() for balance in of_attribute]
    changes = [abs(change.value) for b in balances for change in (b.corrected, b.spoiled, b.missed, b.alarms)]
    digits = 0 if max([change for change in changes if not math.isnan(change)], default=0.0) >= SMALL_CHANGE else 1
    repair_patients = None if valid is None or valid.patients is None else len(set(valid.patients))
    return {
        "judgement": judgement,
        "outcome_words": repair_answer(case, called),
        "is_original": is_original(case),
        "met_words": met_words(judgement),
        "cross_fitted": "" if candidate.judgement is None else outcome_words(candidate.judgement, names=called),
        "baseline": case.baseline,
        "baseline_words": baseline_words(case.baseline, findings.settings.level),
        "unit": unit,
        "few_words": few_words(rows, patients, findings.after.weighted),
        "digits": digits,
        "balances": _main_first(findings.balances),
        "balance_words": balance_words(findings.balances[findings.main], unit, digits, called),
        "share_words": share_words,
        "rate_words": "" if findings.rate is None else RATES[findings.rate].name,
        "almost": NEGLIGIBLE_CHANGE,
        "contribution_words": contribution_words,
        "size_words": how_many(rows, patients, "test"),
        "valid_words": "" if valid is None else how_many(len(valid), repair_patients, "repair"),
        "total": findings.affected[0].counts[-1],
        "trace_first": case.original.candidate.trace.iloc[0] if valid is not None else candidate.trace.iloc[0],
        "trace_chosen": candidate.trace.iloc[candidate.chosen],
        "widest_change": widest_change(findings),
        "change_digits": 0 if widest_change(findings) >= SMALL_CHANGE else 1,
    }


def _main_first(by_attribute: Mapping[str, Value]) -> dict[str, Value]:
    """The attribute that the goal compares first; it is the last one, the intersection if there are several."""
    main = next(reversed(list(by_attribute)))
    return {main: by_attribute[main], **by_attribute}


def widest_change(findings: Findings) -> float:
    """The largest share of a group's rows with a decision that changed in one of four ways."""
    shares = [
        changed / (row.positives + row.negatives)
        for row in findings.affected[-1].counts
        for changed in (row.detected, row.missed, row.cleared, row.alarmed)
        if row.positives + row.negatives
    ]
    return max(0.001, *shares) if shares else 1.0


# Differences, rates and patients


@dataclass(frozen=True)
class GapView:
    """All gaps of an attribute on one axis, by measure, and the measures that mirror each."""

    scale: Scale
    measures: dict[str, list[GapRow]]
    mirrors: dict[str, list[str]]


def _groups(case: Comparison) -> dict[str, Any]:
    """The differences, the rates of each group, and the patients."""
    findings, valid = case.found, case.original.valid
    return {
        "forests": {name: rate_views(blocks, findings.settings) for name, blocks in _main_first(findings.rates).items()},
        "gap_forests": {name: gap_view(rows) for name, rows in _main_first(findings.gaps).items()},
        "cohort": _main_first(findings.cohort),
        "patients": case.original.test.patients is not None and (valid is None or valid.patients is not None),
    }


def rate_views(blocks: Sequence[RateBlock], settings: AuditSpec) -> list[RateView]:
    """The blocks of rates on the page."""
    views = []
    for block in blocks:
        if block.rate in SHOWN:
            scale = Scale.of([estimate for row in block.rows for estimate in (row.before, row.after)], RATES[block.rate].kind)
            views.append(RateView(block.rate, rate_title(block.rate, settings), scale, block.rows))
    return views


def gap_view(rows: Sequence[GapRow]) -> GapView:
    """The gaps of an attribute by measure; measures that mirror another are not repeated."""
    names = list(dict.fromkeys(row.measure for row in rows))
    measures = {name: [row for row in rows if row.measure == name] for name in distinct(names)}
    estimates = [estimate for kept in measures.values() for row in kept for estimate in (row.before, row.after)]
    return GapView(Scale.of(estimates, "points"), measures, mirrors(names))


# Scores, steps and layers


def _scores(case: Comparison, called: GroupNames) -> dict[str, Any]:
    """Figures of the scores before and after: calibration, ROC, distributions and decision curves."""
    findings, attribute = case.found, case.original.test.attribute
    sides = [
        (title, tried, steps_by_group(tried.test, attribute, tried.candidate.rule, findings.settings.min_patients))
        for title, tried in (("Before", case.original), ("After", case.result))
    ]
    distributions = [
        score_panel(f"{short(called.full(level))}, {title.lower()}", tried.test, tried.candidate.rule, attribute, code, steps)
        for code, level in enumerate(attribute.levels[:MOST_DISTRIBUTIONS])
        for title, tried, steps in sides
    ]
    return {
        "calibration": [calibration_panel(title, attribute, steps, called.full) for title, _, steps in sides],
        "roc": [roc_panel(title, tried.test, tried.decisions(), attribute, steps, called.full) for title, tried, steps in sides],
        "distributions": distributions,
        "left_out": max(0, len(attribute.levels) - MOST_DISTRIBUTIONS),
        "decision_curves": decision_panels(attribute.name, (("before", findings.before), ("after", findings.after)), called.full),
        "further_panels": {heading: draw(case) for heading, draw in PANELS.items()},
    }


def _steps(case: Comparison) -> dict[str, Any]:
    """Every step of every method: the trade-off explorer, trajectories, and the probes of layers."""
    data = explorer_data(case, PERFORMANCE[case.goal.performance])
    return {
        "trajectories": [trajectory_panel(tried, case.goal) for tried in case.candidates if len(tried.candidate.trace) > SHORT_TRACE],
        "one_step": [tried.name for tried in case.candidates if len(tried.candidate.trace) <= SHORT_TRACE],
        "choices": [chosen_step(tried, case) for tried in case.candidates],
        "result_below": chosen_step(case.result, case)["below"],
        "has_bound": data["limit"] is not None,
        "step_total": f"{sum(len(tried.candidate.trace) for tried in case.candidates):,}",
        "explorer_notes": explorer_notes(data),
        "data": script_data(data),
        "probes": probe_views(case.probes),
        "read_is_not_used": "" if case.probes is None else models.READ_IS_NOT_USED,
    }


@dataclass(frozen=True)
class ProbeRow:
    """The AUROC of a probe of one layer, before and after."""

    layer: str
    width: int
    before: Estimate
    after: Estimate


@dataclass(frozen=True)
class ProbeBlock:
    """The layers for one subset of the rows: all, or those of one label."""

    among: str
    rows: Sequence[ProbeRow]


@dataclass(frozen=True)
class ProbeView:
    """The probes of one attribute, on one axis."""

    scale: Scale
    blocks: Sequence[ProbeBlock]
    notes: Sequence[str]


def probe_views(probes: Probes | None) -> dict[str, ProbeView]:
    """By attribute: each probed layer of the network before or after the repair, among all patients and among those of one label."""
    if probes is None:
        return {}
    views = {}
    for name in dict.fromkeys(probes.before["attribute"]):
        before, after = (frame[frame["attribute"] == name].set_index("layer") for frame in (probes.before, probes.after))
        layers = list(dict.fromkeys([*(layer for layer in before.index if layer != "output"), *after.index, "output"]))
        widths = {**after["width"].to_dict(), **before["width"].to_dict()}
        blocks = []
        for measure, label in models.AUROC_LABELS.items():
            pairs = {layer: [_probe_estimate(side, layer, measure) for side in (before, after)] for layer in layers}
            blocks.append(ProbeBlock(AMONG[label], [ProbeRow(layer, int(widths[layer]), *pair) for layer, pair in pairs.items()]))
        estimates = [estimate for block in blocks for row in block.rows for estimate in (row.before, row.after)]
        notes = dict.fromkeys(note for side in (before, after) for note in side["note"] if note)
        views[str(name)] = ProbeView(Scale.of([*estimates, Estimate(0.5, 0.5, 0.5)], "area"), blocks, list(notes))
    return views


def _probe_estimate(side: pd.DataFrame, layer: str, measure: str) -> Estimate:
    if layer not in side.index:
        return Estimate(math.nan, math.nan, math.nan)
    value, low, high = (float(side.loc[layer, f"{measure}{end}"]) for end in ("", "_low", "_high"))
    return Estimate(value, low, high)


# Images


def changed_pictures(case: Comparison) -> list[dict[str, Any]]:
    """The rows of the test set with an image and the largest change of decision, then of score."""
    before, after = case.original.test, case.result.test
    old, new = case.original.decisions(), case.result.decisions()
    decision_change, score_change = np.abs(new - old), np.abs(after.score - before.score)
    pictures: list[dict[str, Any]] = []
    for row in np.lexsort((-score_change, -decision_change)):
        unchanged = decision_change[row] == 0 and score_change[row] == 0
        if unchanged or before.ids[row] not in case.thumbnails:
            continue
        flagged = ["flagged" if decision >= 0.5 else "not flagged" for decision in (old[row], new[row])]
        pictures.append(
            {
                "group": before.groups[row] or "",
                "positive": bool(before.y[row]),
                "before": number(float(before.score[row]), 3),
                "after": number(float(after.score[row]), 3),
                "change": f"{flagged[0]} → {flagged[1]}" if flagged[0] != flagged[1] else f"{flagged[0]}, as before",
                "png": _png(np.asarray(case.thumbnails[before.ids[row]], dtype=np.uint8)),
            }
        )
        if len(pictures) == MOST_PICTURES:
            break
    return pictures


def unit_maps(case: Comparison) -> list[dict[str, Any]]:
    """Images of the units that pruning switched off: light where all channels are on, dark where none is."""
    off, on = np.array([120.0, 45.0, 8.0]), np.array([246.0, 243.0, 238.0])
    maps = []
    for tried in case.candidates:
        for unit in tried.units:
            kept: FloatArray = np.clip(unit.kept, 0.0, 1.0)[..., None]
            png = _png((off + (on - off) * kept).round().astype(np.uint8))
            maps.append(
                {"method": tried.name, "layer": unit.layer, "mean": float(unit.kept.mean()), "least": float(unit.kept.min()), "png": png}
            )
    return maps


def _png(image: npt.NDArray[np.uint8]) -> str:
    out = io.BytesIO()
    Image.fromarray(image).save(out, "PNG", optimize=True)
    return base64.b64encode(out.getvalue()).decode()
