"""The sections of a repair: its outcome, who is better and who is worse, every step of every method; and the overview of several labels."""

import base64
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import numpy as np
import numpy.typing as npt
import pandas as pd
from PIL import Image

from equipoise import models  # imports torch for probes only
from equipoise.comparison import Comparison
from equipoise.measures import NEGLIGIBLE_CHANGE, Estimate, steps_by_group
from equipoise.methods import ALL_AT_ONCE, METHODS, Candidate, joint_outcome
from equipoise.report import document as doc
from equipoise.report.audits import gap_table, rate_table
from equipoise.report.document import Block, Called, Cell, Column, Figures, Fixed, Folded, Part, Scale, Span, Table, Text, Words, table
from equipoise.report.explorer import explorer_data, explorer_parts
from equipoise.report.pages import page_of
from equipoise.report.panels import PANELS, calibration_panel, decision_panels, roc_panel, score_panel, trajectory_panel
from equipoise.report.report_spec import ReportSpec
from equipoise.report.text import (
    count,
    date_words,
    how_many,
    number,
    p_value_words,
    percent,
    plain,
    plural,
    rows_counted,
    sentence,
    short,
    thousand,
)
from equipoise.report.wording import audits as wording
from equipoise.report.wording import repairs as words
from equipoise.report.wording.names import (
    HEADLINE,
    PERFORMANCE_WORDS,
    RATE_WORDS,
    SHOWN_RATES,
    distinct,
    gap_words,
    mirrors,
    share_words,
    upper_bound_words,
)
from equipoise.report.wording.notes import note_words, why_words

Value = TypeVar("Value")
COLOURS = 7  # of groups, each with a dash pattern
MANY_GROUPS = 3  # more have only the measure and the rates of the goal at first sight
MOST_DISTRIBUTIONS = 12  # groups with a panel of scores
MOST_MAPS, MOST_PICTURES, MOST_LABELS = 24, 12, 20
SHORT_TRACE = 2  # steps, the original and the result, which need no figure
REPAIR_SECTIONS = {  # the heading of each section and, of folded ones, a hint
    "verdict": ("The outcome", ""),
    "affected": ("Who is better and who is worse", ""),
    "gaps": ("The differences", ""),
    "groups": ("Each group", ""),
    "cohort": ("The patients", ""),
    "signoff": ("Decision", ""),
    "limits": ("What these measures do not show", ""),
    "explorer": ("Explore the trade-off", "every step of every method, and all methods on the test set"),
    "trajectories": ("The steps of the methods", "how each method moved on the patients it was fitted to"),
    "curves": ("Scores and thresholds", "ROC curves, scores by group, decision curves"),
    "probes": ("What the layers encode", "how well the group can be predicted from each layer"),
    "images": ("Images and units", "the most changed images, and units that were switched off"),
    "method": ("Method, settings and provenance", "rules, settings, notes of the run, checksums"),
}
FOR_THE_SCREEN = ("explorer", "trajectories", "curves", "probes", "images")
REPAIR_DECISIONS = ("use the repaired classifier", "use it under conditions", "keep the original", "use neither")  # to tick on paper
PROBED_AMONG = {None: "among all patients", 1: "among those with the finding", 0: "among those without it"}  # rows of a probe, by label


def repair_document(case: Comparison, names: Mapping[str, str] | None = None, *, thumbnails: bool = False) -> doc.Document:
    """The report of a comparison; `names` are words for groups, such as {"F": "women"}; images of patients only with `thumbnails`."""
    called = words.groups_called(case, names)
    findings, goal, candidate, judgement, valid = case.found, case.goal, case.result.candidate, case.judgement, case.original.valid
    rows, patients, attribute = findings.after.rows, findings.after.patients, case.original.test.attribute
    patients_known = case.original.test.patients is not None and (valid is None or valid.patients is not None)
    unit, digits = words.error_unit(case), _digits(case)
    pictures, maps = changed_pictures(case) if thumbnails and case.thumbnails else [], unit_map_rows(case)
    data = explorer_data(case, PERFORMANCE_WORDS[goal.performance])
    trajectories = [trajectory_panel(tried, goal) for tried in case.candidates if len(tried.candidate.trace) > SHORT_TRACE]
    one_step = [tried.name for tried in case.candidates if len(tried.candidate.trace) <= SHORT_TRACE]
    single = [Text((Span(name), " finds its rule in one step, so there is nothing to draw."), "notes") for name in one_step]
    made: dict[str, list[Part] | None] = {
        "verdict": [doc.outcome(case.outcome, words.repair_answer(case, called)), Fixed("outcome_text")],
        "affected": [
            *_folded_parts(_balances(case, called.full, digits, unit)),
            Fixed("levelling"),
            Folded("Numbers of decisions", affected_tables(case, called.full)),
        ],
        "gaps": gap_parts(case, called.full),
        "groups": group_parts(case, called.full),
        "cohort": [*_folded_parts(_cohort_tables(case, called.full, patients_known)), Fixed("cohort_notes")],
        "signoff": [],
        "limits": [],
        "explorer": [
            *explorer_parts(case, data),
            Fixed("methods"),
            methods_table(case).only(0, 1, 2, *([3] if data["limit"] else []), 4, 5),
        ],
        "trajectories": [Figures(trajectories), *single],
        "curves": [],
        "probes": probe_parts(case.probes) if case.probes is not None else None,
        "images": [] if pictures or maps else None,
        "method": [],
    }
    sides = [
        (title, tried, steps_by_group(tried.test, attribute, tried.candidate.rule, findings.settings.min_patients))
        for title, tried in (("Before", case.original), ("After", case.result))
    ]
    distributions = [
        score_panel(f"{short(called.full(level))}, {title.lower()}", tried.test, tried.candidate.rule, attribute, code, steps)
        for code, level in enumerate(attribute.levels[:MOST_DISTRIBUTIONS])
        for title, tried, steps in sides
    ]
    shares = [
        changed / (row.positives + row.negatives)  # the share of a group's rows with a decision that changed in one of four ways
        for row in findings.affected[-1].counts
        for changed in (row.detected, row.missed, row.cleared, row.alarmed)
        if row.positives + row.negatives
    ]
    widest = max(0.001, *shares) if shares else 1.0
    repair_patients = None if valid is None or valid.patients is None else len(set(valid.patients))
    values = {
        "case": case,
        "found": findings,
        "candidate": candidate,
        "judgement": judgement,
        "goal": goal,
        "levels": case.original.test.attribute.levels,
        "most_colours": COLOURS,
        "level": percent(findings.settings.level),
        "unit": unit,
        "by_row": wording.BY_ROW if patients is None else "",
        "detectable": wording.DETECTABLE,
        "mark_and_interval": wording.MARK_AND_INTERVAL,
        "limit_words": wording.LIMITS,
        "decisions": REPAIR_DECISIONS,
        "when": date_words(case.provenance.when),
        "method_name": words.method_words(case.result),
        "performance": PERFORMANCE_WORDS[goal.performance],
        "gap_name": gap_words(goal.measure),
        "goal_words": words.goal_words(goal),
        "why_words": why_words,
        "notes": [(tried.name, note_words(note)) for tried in case.candidates for note in tried.candidate.notes],
        "is_original": words.is_original(case),
        "met_words": words.met_words(judgement),
        "cross_fitted": "" if candidate.judgement is None else words.outcome_words(candidate.judgement, names=called),
        "baseline_words": wording.baseline_words(case.baseline, findings.settings.level),
        "balance_words": words.balance_words(findings.balances[findings.main], unit, digits, called),
        "share_words": share_words(goal.measure),
        "rate_words": "" if findings.rate is None else RATE_WORDS[findings.rate].name,
        "almost": NEGLIGIBLE_CHANGE,
        "contribution_words": words.contribution_words,
        "size_words": how_many(rows, patients, "test"),
        "valid_words": "" if valid is None else how_many(len(valid), repair_patients, "repair"),
        "total": findings.affected[0].counts[-1],
        "trace_first": case.original.candidate.trace.iloc[0] if valid is not None else candidate.trace.iloc[0],
        "trace_chosen": candidate.trace.iloc[candidate.chosen],
        "widest_change": widest,
        "change_digits": 0 if widest >= words.SMALL_CHANGE else 1,
        "patients": patients_known,
        "step_total": f"{sum(len(tried.candidate.trace) for tried in case.candidates):,}",
        "read_is_not_used": "" if case.probes is None else models.READ_IS_NOT_USED,
        "calibration": [calibration_panel(title, attribute, steps, called.full) for title, _, steps in sides],
        "roc": [roc_panel(title, tried.test, tried.decisions(), attribute, steps, called.full) for title, tried, steps in sides],
        "distributions": distributions,
        "left_out": max(0, len(attribute.levels) - MOST_DISTRIBUTIONS),
        "decision_curves": decision_panels(attribute.name, (("before", findings.before), ("after", findings.after)), called.full),
        "further_panels": {heading: draw(case) for heading, draw in PANELS.items()},
        "has_bound": data["limit"] is not None,
        "pictures": pictures,
        "maps": maps[:MOST_MAPS],
        "maps_left_out": max(0, len(maps) - MOST_MAPS),
    }
    few = wording.few_words(findings.after.rows, findings.after.patients, findings.after.weighted)
    sections = [
        doc.Section(anchor, *REPAIR_SECTIONS[anchor], parts, anchor not in FOR_THE_SCREEN)
        for anchor, parts in made.items()
        if parts is not None
    ]
    version, scripts = case.provenance.versions.get("equipoise", ""), ("select.js", "svg.js", "page.js", "explorer.js")
    return doc.Document("repair.html", "report", case.title, sections, values, called.full, few, scripts, data, version=version)


def _digits(case: Comparison) -> int:
    """Decimal places of numbers per 1,000."""
    balances = [balance for of_attribute in case.found.balances.values() for balance in of_attribute]
    changes = [abs(change.value) for b in balances for change in (b.corrected, b.spoiled, b.missed, b.alarms)]
    return 0 if max([change for change in changes if not math.isnan(change)], default=0.0) >= words.SMALL_CHANGE else 1


# Tables


def _main_first(by_attribute: Mapping[str, Value]) -> dict[str, Value]:
    """The attribute that the goal compares first; it is the last one, the intersection if there are several."""
    main = next(reversed(list(by_attribute)))
    return {main: by_attribute[main], **by_attribute}


def _folded_parts(tables: Mapping[str, Part]) -> list[Part]:
    """The tables of all attributes, of which all but the first are folded."""
    return [part if k == 0 else Folded(("By ", Span(name)), [part]) for k, (name, part) in enumerate(tables.items())]


def _group(value: str | None, called: Called, reference: bool = False, **more: Any) -> Cell:
    """The name of a group: nothing stands for all patients, and an empty name for those whose group is unknown."""
    name: Words = "all patients" if value is None else (Span(called(value)) if value else Span("unknown", "em"),)
    return Cell(name, tag="reference" if reference else "", style="total" if value is None else "", **more)


def _balances(case: Comparison, called: Called, digits: int, unit: str) -> dict[str, Part]:
    """Decisions that changed, and errors before and after, of each group per 1,000."""
    same, kind, tables = words.is_original(case), f"thousand{digits}", dict[str, Part]()
    for attribute, balances in _main_first(case.found.balances).items():
        rows = []
        for b in balances:
            row = [_group(b.group, called, b.reference, means=f"{b.rows:,} {unit}")]
            errors = ((b.missed_before, b.missed_after, b.missed), (b.alarms_before, b.alarms_after, b.alarms))
            if math.isnan(b.net.value):
                row.append(Cell((Span("insufficient data", "insufficient"),), wide=4))
            elif same:
                row.append(Cell("no change", wide=2))
                row += [Cell((f"{thousand(before, digits)} ", Span("no change", "span"))) for before, _, _ in errors]
            else:
                row += [Cell(value=Estimate(each.value, each.low, each.high), kind=kind) for each in (b.corrected, b.spoiled)]
                for before, after, change in errors:
                    value, low, high = (thousand(end, digits, sign=True) for end in (change.value, change.low, change.high))
                    style = "gain" if change.high < 0 else "loss" if change.low > 0 else ""
                    moved = f"{thousand(before, digits)} → {thousand(after, digits)} "
                    row.append(Cell((moved, Span(f"{value}: {low} to {high}", "span")), style=style))
            rows.append(row)
        expected = " (expected, the rule is randomised)" if case.found.affected[0].expected else ""
        level = percent(case.found.settings.level)
        caption = f"Per 1,000 {unit} of each group{expected}" + (
            "" if same else f", with {level} intervals of the change on the same {unit}"
        )
        over = (("Decisions", 2, ""), ("Errors, before → after", 2, "part"))
        heads = ["Group", "corrected", "newly wrong", Column("missed findings", style="part"), "false alarms"]
        tables[attribute] = table(caption, heads, rows, style="balance stack", over=over)
    return tables


def affected_tables(case: Comparison, called: Called) -> list[Part]:
    """Numbers of decisions that changed."""
    over = (("With the finding", 3, ""), ("Without it", 3, "part"))
    heads = [
        "Group",
        Column("all", "with the finding", "quiet"),
        Column("newly detected", style="gain"),
        Column("newly missed", style="loss"),
    ]
    heads += [Column("all", "without it", "quiet part"), Column("no longer a false positive", style="gain")]
    heads += [Column("newly a false positive", style="loss")]
    tables: list[Part] = []
    for view in case.found.affected:
        rows = []
        for c in view.counts:
            detected, missed, cleared, alarmed = (count(n, view.expected, exact=True) for n in (c.detected, c.missed, c.cleared, c.alarmed))
            rows.append((_group(c.group, called), f"{c.positives:,}", detected, missed, f"{c.negatives:,}", cleared, alarmed))
        caption = ("By ", Span(view.attribute), f": {'expected ' if view.expected else ''}decisions that changed")
        tables.append(table(caption, heads, rows, style="affected stack", over=over))
    return tables


def gap_parts(case: Comparison, called: Called) -> list[Part]:
    """The differences before and after; of many groups, at first sight only those in the measure of the goal."""
    parts: list[Part] = []
    for k, (attribute, found) in enumerate(_main_first(case.found.gaps).items()):
        mirrored, target = mirrors(list(found)), case.goal.measure if attribute == case.found.main else ""

        def means(measure: str, mirrored: Mapping[str, list[str]] = mirrored, target: str = target) -> str:
            others = f", mirrored by {', '.join(mirrored[measure])}" if mirrored[measure] else ""
            return f"{measure}{others}{' · the measure of the goal' if measure == target else ''}"

        gaps = {name: list(found[name].values()) for name in distinct(list(found))}
        caption = ("Differences by ", Span(attribute), " before and after repair, test set")
        made = gap_table(caption, gaps, called, ["Before", "After"], means)
        blocks = dict(zip(gaps, made.blocks, strict=True))
        first = [replace(block, style="target") for name, block in blocks.items() if name == target]
        rest = [block for name, block in blocks.items() if name != target]
        if k == 0 and len(case.original.test.attribute.levels) > MANY_GROUPS:
            parts += [replace(made, blocks=first), Folded("Differences in other measures", [replace(made, blocks=rest)])]
            continue
        ordered = [replace(block, style="target" if name == target else "") for name, block in blocks.items()]
        whole = replace(made, blocks=ordered)
        parts.append(whole if k == 0 else Folded(("By ", Span(attribute)), [whole]))
    return parts


def group_parts(case: Comparison, called: Called) -> list[Part]:
    """The rates of each group before and after; those of scores are folded, with calibration curves."""
    many, parts, scores = len(case.original.test.attribute.levels) > MANY_GROUPS, list[Part](), list[Part]()
    forests = _main_first(case.found.rates)

    def made(attribute: str, rates: Sequence[str]) -> Table:
        rows = {
            rate: [(_group(group, called, k == 0), *(Cell(value=side) for side in sides)) for k, (group, sides) in enumerate(of.items())]
            for rate, of in forests[attribute].items()
            if rate in rates
        }
        caption = ("Rates by ", Span(attribute), " before and after repair, test set")
        return rate_table(caption, rows, case.found.settings, ["Before", "After"])

    for k, attribute in enumerate(forests):
        if k == 0 and many:
            parts += [made(attribute, HEADLINE[:2]), Folded("Predictive values", [made(attribute, HEADLINE[2:])])]
        else:
            parts.append(made(attribute, HEADLINE) if k == 0 else Folded(("By ", Span(attribute)), [made(attribute, HEADLINE)]))
        scores += [Text(("By ", Span(attribute)), "heading")] if len(forests) > 1 else []
        scores.append(made(attribute, [rate for rate in SHOWN_RATES if rate not in HEADLINE]))
    return [*parts, Folded("Scores: AUROC, fixed operating points and calibration", [*scores, Fixed("recalibration")])]


def _cohort_tables(case: Comparison, called: Called, patients: bool) -> dict[str, Part]:
    """The rows, patients and labels of each group in the repair set and the test set."""
    least, tables = case.found.settings.min_patients, dict[str, Part]()
    parts = ("Repair set", "Test set") if case.original.valid is not None else ("Test set",)
    for attribute, cohort in _main_first(case.found.cohort).items():
        rows = []
        for row in cohort:
            line = [_group(row.group, called, row.reference)]
            for size in filter(None, (row.valid, row.test)):
                line += [Cell(f"{size.rows:,}"), *([Cell(f"{size.patients:,}")] if patients else [])]
                for labelled in (size.positives, size.negatives):
                    few = row.group and (labelled is None or labelled < least)
                    line.append(Cell(rows_counted(labelled), style="few" if few else ""))
            rows.append(line)
        heads = ["rows", *(["patients"] if patients else []), "with", "without"]
        columns = [Column(head, style="part" if part == "Test set" and k == 0 else "") for part in parts for k, head in enumerate(heads)]
        over = [(part, len(heads), "part" if part == "Test set" else "") for part in parts]
        tables[attribute] = table(("By ", Span(attribute)), ["Group", *columns], rows, style="cohort", over=over)
    return tables


def methods_table(case: Comparison) -> Table:
    """Every method on the held-out rows."""
    rows = []
    for k, row in enumerate(case.found.methods):
        name = Cell((Span(row.name if k else case.original.called or "original"),), tag="chosen" if row.chosen else "")
        values = (Cell(value=row.gap, kind="points"), Cell(value=row.performance), upper_bound_words(row.below))
        changed, needs = count(row.changed, row.expected), f"{'yes' if row.needs_group else 'no'}{', randomised' if row.expected else ''}"
        p_values = (p_value_words(row.gap.p_value), p_value_words(row.gap.p_adjusted))
        rows.append((name, *values, changed, needs, "" if row.judgement is None else str(row.judgement.outcome), *p_values))
    performance, measure = PERFORMANCE_WORDS[case.goal.performance], gap_words(case.goal.measure)
    heads = [Column("Method"), Column(f"Difference in {measure}", "difference"), Column(sentence(performance), performance)]
    further = ("Upper bound", "Decisions changed", "Needs the group", "Outcome", "p", "adjusted p")
    heads += [Column(head, head.lower().replace("decisions ", "")) for head in further]
    return table("All methods on the test set", heads, rows, style="stack")


def methods_screen(case: Comparison, *, verbose: bool = False) -> list[Part]:
    """Every method on the held-out rows, for a terminal or a notebook; with `verbose`, p-values and the upper bound."""
    after, methods, attribute, made = case.found.after, case.found.methods, case.result.test.attribute, methods_table(case)
    group = Span(attribute.others[0]) if len(attribute.others) == 1 else f"the largest of {len(attribute.others)} groups"
    size = f"{how_many(after.rows, after.patients, 'held-out')}: "
    units = f" in points, {PERFORMANCE_WORDS[case.goal.performance]} in percent, {percent(case.settings.level)} intervals"
    caption = (size, group, " minus ", Span(attribute.reference), units)
    heads = [Column("Method"), Column("Difference"), made.columns[2], Column("Outcome")]
    heads.append(Column("Needs the group", style="text narrow"))
    rows = [
        (*row, Cell("yes" if each.needs_group else "no")) for row, each in zip(made.only(0, 1, 2, 6).blocks[0].rows, methods, strict=True)
    ]
    parts: list[Part] = [table(caption, heads, rows)]
    marks = {f"*: clear after adjustment for {plural(after.comparisons, 'comparison')} (Holm).": any(row.gap.clear for row in methods)}
    marks[f"†: {wording.few_words(after.rows, after.patients, after.weighted)}."] = any(row.gap.few for row in methods)
    parts += [Text(" ".join(shown), "notes")] if (shown := [text for text, needed in marks.items() if needed]) else []
    if verbose:
        bound = "Upper bound: not defined, since this gap or performance is not a sum of rates, or a cell is empty."
        if methods[0].below is not None:
            bound = (
                "Upper bound: points of performance below or above the group-aware upper bound (linear program), computed on these rows "
                "with the original scores, at the same |gap|."
            )
        tests = "Permutation p-values (adjusted for all comparisons: Holm), and the group-aware upper bound"
        parts += [Text(""), replace(made.only(0, 7, 8, 3), caption=tests), Text(bound, "notes")]
    return parts


def probe_parts(probes: Mapping[str, pd.DataFrame]) -> list[Part]:
    """By attribute: each probed layer of the network before and after the repair, among all patients and among those of one label."""
    parts: list[Part] = []
    for name in dict.fromkeys(probes["before"]["attribute"]):
        before, after = (frame[frame["attribute"] == name].set_index("layer") for frame in (probes["before"], probes["after"]))
        layers = list(dict.fromkeys([*(layer for layer in before.index if layer != "output"), *after.index, "output"]))
        widths = {**after["width"].to_dict(), **before["width"].to_dict()}
        tables = []
        for measure, label in models.AUROC_LABELS.items():
            rows = []
            for layer in layers:
                places = [f"{measure}{end}" for end in ("", "_low", "_high")]
                sides = [Estimate(*side[places].astype(float).reindex([layer]).iloc[0]) for side in (before, after)]
                values = [Cell(value=e, kind="area", style="shown" if e.low > 0.5 else "") for e in sides]
                rows.append((Cell((Span(layer),), means=f"{int(widths[layer]):,} wide"), *values))
            scale = Scale.of([Estimate(0.5, 0.5, 0.5), *(cell.value for row in rows for cell in row[1:] if cell.value)], "area")
            heads = [Column("Layer"), Column("Before", "before"), Column("After", "after")]
            caption = ("How well ", Span(name), f" can be predicted from each layer, {PROBED_AMONG[label]}")
            tables.append(Table(caption, heads, [Block(rows, (Span(name),), PROBED_AMONG[label])], style="probes", scale=scale))
        parts += [tables[0], Folded(("The same among those with the finding, and among those without it (", Span(name), ")"), tables[1:])]
        notes = dict.fromkeys(note for side in (before, after) for note in side["note"] if note)
        parts += [Text((Span(name), f": {note}."), "notes") for note in notes]
    return [*parts, Fixed("probe_notes")]


# Figures and images


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


def unit_map_rows(case: Comparison) -> list[dict[str, Any]]:
    """Images of the units that pruning switched off: light where all channels are on, dark where none is."""
    off, on = np.array([120.0, 45.0, 8.0]), np.array([246.0, 243.0, 238.0])
    maps = []
    for tried in case.candidates:
        for layer, kept in tried.units.items():
            png = _png((off + (on - off) * np.clip(kept, 0.0, 1.0)[..., None]).round().astype(np.uint8))
            maps.append({"method": tried.name, "layer": layer, "mean": float(kept.mean()), "least": float(kept.min()), "png": png})
    return maps


def _png(image: npt.NDArray[np.uint8]) -> str:
    out = io.BytesIO()
    Image.fromarray(image).save(out, "PNG", optimize=True)
    return base64.b64encode(out.getvalue()).decode()


# Several labels, and notebooks


def overview_document(
    title: str, cases: Mapping[str, Comparison], links: Mapping[str, str], names: Mapping[str, str] | None = None
) -> doc.Document:
    """The overview that links to the reports of several labels; `names` are words for groups."""
    first = next(iter(cases.values()))
    after, called, one = first.found.after, words.groups_called(first, names), first.kind.one
    rows = []
    for label, case in cases.items():
        found = case.found
        gaps = [Cell(value=gap, kind="points") for gap in (found.gap_before, found.gap_after)]
        performance = [Cell(value=each) for each in (found.performance_before, found.performance_after)]
        answer = Cell(words.repair_answer(case, called), style=f"outcome-{case.outcome}")
        rows.append((Cell((Span(label),), href=links.get(label, "")), *gaps, *performance, answer))
    largest = ", the largest" if len(first.original.test.attribute.levels) > 2 else ""
    reference, level = Span(called.full(first.original.test.attribute.reference)), percent(first.found.settings.level)
    performance_name = PERFORMANCE_WORDS[first.goal.performance]
    measured = f"{largest}) and {performance_name}, with {level} intervals"
    caption = (f"Difference in {gap_words(first.goal.measure)} (points, group minus ", reference, measured)
    heads = [sentence(one), "Difference before", "after", f"{sentence(performance_name)} before", "after"]
    made = table(caption, [*heads, Column("Outcome, on held-out patients", style="text")], rows)
    outcome = joint_outcome(case.outcome for case in cases.values())
    answer_of_all = words.outcomes_words({label: case.judgement for label, case in cases.items()}, first.kind)
    sections = [doc.Section("labels", "", "", [doc.outcome(outcome, answer_of_all), made, Fixed("together")])]
    values = {
        "cases": cases,
        "first": first,
        "one": one,
        "outcome": outcome,
        "method_name": "; ".join(dict.fromkeys(words.method_words(case.result) for case in cases.values())),
        "joint": METHODS[first.result.candidate.method].labels == ALL_AT_ONCE,
        "when": date_words(first.provenance.when),
    }
    kind, few = f"multi-{one} report", wording.few_words(after.rows, after.patients, after.weighted)
    version = first.provenance.versions.get("equipoise", "")
    return doc.Document("labels.html", kind, title, sections, values, called.full, few, (), contents=False, version=version)


def overview(
    title: str,
    cases: Mapping[str, Comparison],
    written: Mapping[str, Sequence[str]],
    places: Mapping[str, Path],
    options: ReportSpec = ReportSpec(),
) -> dict[str, str]:
    """The report.html and README.txt above the folders of several labels."""
    first = next(iter(cases.values()))
    method, one, rule_only = words.method_words(first.result), first.kind.one, first.result.candidate.rule_only
    rules = [
        f"The scores of {len(cases)} labels, each with a decision rule of its own. Each folder here is complete: the rule, the audits, the",
        "report and the model card.",
    ]
    network = [
        f"One network, {len(cases)} {first.kind}, repaired by {method}. Each folder here is complete: the network's weights, the rule for",
        f"its {one}, the audits, the report and the model card. The weights are the same in all of them; heads around the",
        f"network (heads.safetensors), if any, are those of the {one}.",
    ]
    lines = [
        title,
        "",
        *(rules if rule_only else network),
        "",
        *(f"  {place.name}: {label}; equipoise apply {place} new.csv{'' if rule_only else ' --trust'}" for label, place in places.items()),
        "",
        f"report.html links to the report of each {one}; audit.json holds the audits of all.",
        "",
    ]
    links = {label: f"{quote(place.name)}/report.html" for label, place in places.items() if "report.html" in written[label]}
    page = page_of(overview_document(title, cases, links, options.words))
    return {"report.html": page, "README.txt": "\n".join(map(plain, lines))}


def comparison_screen(case: Comparison) -> list[Part]:
    """A comparison: the outcome, and every method on the held-out rows."""
    return [Text(words.repair_answer(case), "lead"), Text(f"Goal: {words.goal_words(case.goal)}."), *methods_screen(case)]


def candidate_screen(candidate: Candidate) -> list[Part]:
    """A candidate: the outcome on cross-fitted rows, if there is any, and the original and the chosen step on the repair set."""
    judgements = {label: each.judgement for label, each in candidate.labels.items() if each.judgement is not None}
    answer = "In-sample: there are no held-out rows to judge it by. Audit it on a test set."
    if judgements:
        answer = words.outcomes_words(judgements) if len(judgements) > 1 else words.outcome_words(*judgements.values())
    rows, goals = [], {}
    for label, each in list(candidate.labels.items())[:MOST_LABELS]:
        prefix = (Span(label), ": ") if label else ()
        for step, name in ((0, "original"), (each.chosen, f"{each.ran}, step {each.chosen}")):
            row = each.trace.iloc[step]
            rows.append(((*prefix, name), f"{100 * row['gap']:+.1f}", f"{100 * row['performance']:.1f}"))
        goals[(*prefix, words.goal_words(each.goal))] = each
    goal = next(iter(goals.values())).goal
    why = [Text(sentence(why_words(candidate.only.why)))] if len(goals) == 1 else []
    heads = ["step", f"{gap_words(goal.measure)}, points", f"{PERFORMANCE_WORDS[goal.performance]}, %"]
    made = table("On the repair set, to which it was fitted", heads, rows)
    return [Text(answer, "lead"), *why, Text(("Goal: ", *doc.joined(list(goals)), ".")), made]
