"""The sections of a repair: its outcome, who is better and who is worse, every step of every method; and the overview of several labels."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pandas as pd

from equipoise import models  # imports torch for probes only
from equipoise.comparison import Balance, Comparison
from equipoise.measures import NEGLIGIBLE_CHANGE, Estimate, steps_by_group
from equipoise.methods import ALL_AT_ONCE, METHODS, Candidate, joint_outcome
from equipoise.report import document as doc
from equipoise.report.audits import gap_table, rate_table, row_notes
from equipoise.report.changes import period_parts
from equipoise.report.choices import limit_parts, options_parts, options_table
from equipoise.report.document import Called, Cell, Column, Fixed, Folded, Part, Section, Text, Words, table
from equipoise.report.explorer import explorer_data, explorer_parts, trajectory_panel
from equipoise.report.pages import page_of, render
from equipoise.report.panels import PANELS, calibration_panel, changed_pictures, decision_panels, roc_panel, score_panel, unit_map_rows
from equipoise.report.report_spec import ReportSpec
from equipoise.report.text import (
    Span,
    amount,
    count,
    date_words,
    how_many,
    p_value_words,
    percent,
    plural,
    rows_counted,
    sentence,
    short,
    span,
)
from equipoise.report.wording import audits as wording
from equipoise.report.wording import names as terms
from equipoise.report.wording import repairs as words
from equipoise.report.wording.names import HEADLINE, SHOWN_RATES, GroupNames, gap_words, performance_words, upper_bound_words
from equipoise.report.wording.notes import SEARCH_NOTES, note_words, why_words

COLOURS = 7  # of groups, each with a dash pattern
MANY_GROUPS = 3  # more have only the measure and the rates of the goal at first sight
MOST_DISTRIBUTIONS = 12  # groups with a panel of scores
MOST_MAPS, MOST_LABELS = 24, 20
SHORT_TRACE = 2  # steps, the original and the result, which need no figure
REPAIR_DECISIONS = ("use the repaired classifier", "use it under conditions", "keep the original", "use neither")  # to tick on paper
PROBED_AMONG = {None: "among all patients", 1: "among those with the finding", 0: "among those without it"}  # rows of a probe, by label


def repair_document(repair: Comparison, names: Mapping[str, str] | None = None, *, thumbnails: bool = False) -> doc.Document:
    """The report of a comparison, as a document.

    - `repair`: the original, its candidates and the chosen one, on the same held-out rows.
    - `names`: words for groups, such as {"F": "women"}; a group without any keeps its name.
    - `thumbnails`: also show images of the patients whose decision or score changed most.
    """
    called = words.groups_called(repair, names)
    findings, goal, candidate, valid = repair.found, repair.goal, repair.result.candidate, repair.original.valid
    patients, attribute = findings.after.patients, repair.original.test.attribute
    patients_known = repair.original.test.patients is not None and (valid is None or valid.patients is not None)
    pictures, maps = changed_pictures(repair) if thumbnails and repair.thumbnails else [], unit_map_rows(repair)
    data = explorer_data(repair, performance_words(goal.performance))
    trajectories = [trajectory_panel(tried, goal) for tried in repair.candidates if len(tried.candidate.trace) > SHORT_TRACE]
    one_step = [tried.name for tried in repair.candidates if len(tried.candidate.trace) <= SHORT_TRACE]
    single = [Text((Span(name), " finds its rule in one step, so there is nothing to draw."), "notes") for name in one_step]
    methods: list[Part] = [Fixed("methods"), methods_table(repair).only(0, 1, 2, *([3] if data["limit"] else []), 4, 5)]
    changed = [*change_parts(repair, called), Fixed("changes")]
    probes = [] if repair.probes is None else probe_parts(repair.probes)
    of_steps = "every step of every method, and all methods on the test set"
    of_probes = "how well the group can be predicted from each layer"
    of_traces = "how each method moved on the patients it was fitted to"
    of_images = "the most changed images, and units that were switched off"
    before = (repair.original.test, repair.original.decisions(), attribute)
    steps_before = steps_by_group(repair.original.test, attribute, repair.original.candidate.rule, findings.settings.min_patients)
    curves: list[Part] = [Fixed("colours"), doc.Figures([roc_panel("ROC curves of the original", *before, steps_before, called.full)])]
    separation, folded = limit_parts(repair, called, curves), not words.is_original(repair)
    about = "AUROC by group, and the price of finding more cases" if folded else ""
    limits = [Section("separation", "What limits a repair", about, separation)] if separation else []
    answer = [doc.outcome(repair.outcome, words.repair_answer(repair, called)), *outcome_parts(repair, called)]
    numbers = Folded("Numbers of decisions", affected_tables(repair, called.full))
    sections = [
        Section("verdict", "The outcome", "", answer),
        Section("affected", "Who is better and who is worse", "", [*changed, numbers]),
        Section("options", "The options side by side", "", options_parts(repair, called)),
        *([] if folded else limits),
        Section("gaps", "The differences", "", [*gap_parts(repair, called.full), *period_parts(repair, called)]),
        Section("groups", "Each group", "", group_parts(repair, called.full)),
        Section("cohort", "The patients", "", cohort_parts(repair, called.full, patients_known)),
        *doc.SIGNOFF,
        Section("explorer", "Explore the trade-off", of_steps, [*explorer_parts(repair, data), *methods], on_paper=False),
        Section("trajectories", "The steps of the methods", of_traces, [doc.Figures(trajectories), *single], on_paper=False),
        Section("curves", "Scores and thresholds", "ROC curves, scores by group, decision curves", on_paper=False),
        *(limits if folded else []),
        *([Section("probes", "What the layers encode", of_probes, probes, on_paper=False)] if probes else []),
        *([Section("images", "Images and units", of_images, on_paper=False)] if pictures or maps else []),
        Section("method", "Method, settings and provenance", "rules, settings, notes of the run, checksums"),
    ]
    sides = [
        (title, tried, steps_by_group(tried.test, attribute, tried.candidate.rule, findings.settings.min_patients))
        for title, tried in (("Before", repair.original), ("After", repair.result))
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
    values = {
        "repair": repair,
        "found": findings,
        "candidate": candidate,
        "goal": goal,
        "levels": repair.original.test.attribute.levels,
        "most_colours": COLOURS,
        "level": percent(findings.settings.level),
        "unit": words.error_unit(repair),
        "by_row": wording.BY_ROW if patients is None else "",
        "detectable": wording.DETECTABLE,
        "limit_words": wording.LIMITS,
        "decisions": REPAIR_DECISIONS,
        "when": date_words(repair.provenance.when),
        "method_name": words.method_words(repair.result),
        "performance": performance_words(goal.performance),
        "gap_name": gap_words(goal.measure),
        "goal_words": words.goal_words(goal),
        "why_words": why_words,
        "notes": [(tried.name, note_words(note)) for tried in repair.candidates for note in tried.candidate.notes],
        "total": findings.affected[0].counts[-1],
        "widest_change": widest,
        "change_kind": "thousand0" if widest >= words.SMALL_CHANGE else "thousand1",
        "patients": patients_known,
        "step_total": f"{sum(len(tried.candidate.trace) for tried in repair.candidates):,}",
        "read_is_not_used": "" if repair.probes is None else wording.READ_IS_NOT_USED,
        "calibration": [calibration_panel(title, attribute, steps, called.full) for title, _, steps in sides],
        "roc": [roc_panel(title, tried.test, tried.decisions(), attribute, steps, called.full) for title, tried, steps in sides],
        "distributions": distributions,
        "left_out": max(0, len(attribute.levels) - MOST_DISTRIBUTIONS),
        "decision_curves": decision_panels(attribute.name, (("before", findings.before), ("after", findings.after)), called.full),
        "further_panels": {heading: draw(repair) for heading, draw in PANELS.items()},
        "has_bound": data["limit"] is not None,
        "pictures": pictures,
        "maps": maps[:MOST_MAPS],
        "maps_left_out": max(0, len(maps) - MOST_MAPS),
    }
    few = wording.few_words(findings.after.rows, findings.after.patients, findings.after.weighted)
    version, scripts = repair.provenance.versions.get("equipoise", ""), ("select.js", "svg.js", "page.js", "explorer.js")
    return doc.Document("repair.html", "report", repair.title, sections, values, called.full, few, scripts, data, version=version)


def outcome_parts(repair: Comparison, called: GroupNames) -> list[Part]:
    """What follows the sentence of the outcome: what is compared, facts, rates and change on the test set, and values on the repair set."""
    found, judgement, goal, attribute, valid = (
        repair.found,
        repair.judgement,
        repair.goal,
        repair.original.test.attribute,
        repair.original.valid,
    )
    result, old, new = repair.result.candidate, found.gap_before, found.gap_after
    performance, level, arrow = performance_words(goal.performance), percent(found.settings.level), Span(" → ", "arrow")
    size, reference = how_many(found.after.rows, found.after.patients, "test"), Span(called.full(attribute.reference))
    between: Words = ("between the groups of ", Span(found.main))
    if len(attribute.levels) == 2:
        between = ("between ", Span(called.full(attribute.others[0])), " and ", reference)
    question = Span(short(repair.label).join(terms.share_words(goal.measure)), "em")
    held_out = f". Unless marked otherwise, numbers are for {size} held out from the repair."
    about = ("What is compared ", *between, ": ", question, ". A difference is the group minus the reference, ", reference, held_out)
    total, expected = found.affected[0].counts[-1], found.affected[0].expected
    before, after = found.performance_before, found.performance_after
    limit = "" if math.isnan(after.value) else f"; limit {amount(judgement.performance_limit)}"
    known = f"points; {level} interval {span(old.low, old.high, 'points')} before, {span(new.low, new.high, 'points')} after"
    corrected, spoiled = (count(n, expected) for n in (total.detected + total.cleared, total.missed + total.alarmed))
    needs: Words = ("score and ", Span(found.main)) if result.rule.needs_group else "the score only"
    facts: list[tuple[Words, Words, Words]] = [
        (
            f"Difference in {gap_words(goal.measure)}{'' if len(attribute.levels) == 2 else ', the largest'}",
            "too few" if math.isnan(old.value) else (amount(old.value, "points"), arrow, amount(new.value, "points")),
            old.note if math.isnan(new.value) else known,
        ),
        (
            sentence(performance),
            (amount(before.value), arrow, amount(after.value)),
            f"{level} interval {span(after.low, after.high)}% after{limit}",
        ),
        (
            "Decisions changed",
            (count(total.changed, expected), Span(f" of {total.positives + total.negatives:,}", "arrow")),
            f"{'expected; ' if expected else ''}{corrected} corrected, {spoiled} newly wrong",
        ),
        (
            "To decide, the repaired rule needs",
            needs,
            f"repaired by {words.method_words(repair.result)}{'; decisions are randomised' if result.rule.randomised else ''}",
        ),
    ]
    first, chosen = (result if valid is None else repair.original.candidate).trace.iloc[0], result.trace.iloc[result.chosen]
    patients = None if valid is None or valid.patients is None else len(set(valid.patients))
    rows = "" if valid is None else f", {how_many(len(valid), patients, 'repair')},"
    cross_fitted = ""
    if result.judgement is not None:
        judged = words.outcome_words(result.judgement, names=called)
        cross_fitted = f" By cross-fitting, with each of those patients judged by a fit to others: {judged}"
    fitted = (
        f"The goal was {words.goal_words(goal)}. On the patients it was fitted to{rows} the difference went from "
        f"{amount(first['gap'], 'points')} to {amount(chosen['gap'], 'points')} points and {performance} from "
        f"{amount(first['performance'])} to {amount(chosen['performance'])}; such numbers are too optimistic, and the outcome does not use "
        f"them.{cross_fitted}"
    )
    baseline = wording.baseline_words(repair.baseline, found.settings.level)
    return [
        Text(about),
        doc.Facts(facts),
        Text(words.evidence_words(repair, called, size), "verdict", "verdict-text", ("conclusion", found.seen)),
        *(Text(each, "callout", "" if k else "baseline") for k, each in enumerate(baseline)),
        Text(fitted, "fitted"),
    ]


def change_parts(repair: Comparison, called: GroupNames) -> list[Part]:
    """Who is clearly better or worse, errors per 1,000 of each group, and whether a group got worse so that the difference got smaller."""
    every = [balance for of_attribute in repair.found.balances.values() for balance in of_attribute]
    changes = [abs(change.value) for b in every for change in (b.corrected, b.spoiled, b.missed, b.alarms)]
    digits = 0 if max([change for change in changes if not math.isnan(change)], default=0.0) >= words.SMALL_CHANGE else 1
    said = words.balance_words(repair.found.balances[repair.found.main], words.error_unit(repair), digits, called)
    titles = {"gain": "Better:", "loss": "Worse:"}
    parts: list[Part] = [Text((Span(titles[way], "strong"), f" {'; '.join(each)}."), way) for way, each in said.items() if each]
    if words.is_original(repair):
        parts.append(Text("The result is the original model with its original rule, so nothing changes for any patient."))
    elif not parts:
        parts.append(Text("No group has clearly more or clearly fewer missed findings or false alarms than before."))
    return [*parts, *balance_parts(repair, called.full, f"thousand{digits}"), *levelling_parts(repair, called, bool(said["loss"]))]


def levelling_parts(repair: Comparison, called: GroupNames, others_worse: bool) -> list[Part]:
    """From which groups the difference got smaller, and whether they got better or worse; nothing if it did not get smaller."""
    found, pair = (
        repair.found,
        (Span(called.full(repair.found.gap_before.group)), " and ", Span(called.full(repair.found.gap_before.reference))),
    )

    def came(part: Any, style: str = "", end: str = "") -> Words:
        return (
            *(Span(f"{amount(part.towards, 'size')} points", style) if style else f"{amount(part.towards, 'size')} points", " came from "),
            *(Span(called.full(part.group)), f", where {words.contribution_words(part)} than before{end}"),
        )

    better = [part for part in found.contributions if part.towards > NEGLIGIBLE_CHANGE and not part.worse]
    if found.levelled:
        unclear = {True: ".", False: "; the interval of that change includes zero."}
        items = [*(came(part, "strong", unclear[part.clear]) for part in found.levelled), *(came(part, end=".") for part in better)]
        lead = (Span("Levelling down.", "strong"), " On the test set the difference between ", *pair)
        return [doc.Items(items, "", (*lead, " got smaller in part because a group got worse:"), "levelling")]
    if found.seen not in ("smaller", "unclear"):
        return []
    unsure = found.seen == "unclear" or repair.outcome == "unclear"
    smaller: Words = ("The difference between ", *pair, " got smaller without making either group worse")
    if unsure:
        smaller = ("On these rows the difference between ", *pair, " is smaller and neither group is worse")
    shares = doc.joined([came(part) for part in better])
    end = f". Neither is shown for other patients: the outcome is {repair.outcome}." if unsure else "."
    worse = (" ", Span("What got worse in other respects is listed above.", "strong")) if others_worse else ()
    return [
        Text((*smaller, f" in {gap_words(repair.goal.measure)}", *((": ", *shares) if shares else ()), end, *worse), id="levelling-none")
    ]


# Tables


def _by_attribute(found: Mapping[str, Any], parts: Callable[[str, Any], Sequence[Part]]) -> list[Part]:
    """Parts of each attribute: first of the one that the goal compares, which is the last (an intersection, if any); others are folded."""
    *others, main = found
    return [*parts(main, found[main]), *(Folded(("By ", Span(name)), parts(name, found[name])) for name in others)]


def _group(value: str | None, called: Called, reference: bool = False, **more: Any) -> Cell:
    """The name of a group: nothing stands for all patients, and an empty name for those whose group is unknown."""
    name: Words = "all patients" if value is None else (Span(called(value)) if value else Span("unknown", "em"),)
    return Cell(name, tag="reference" if reference else "", style="total" if value is None else "", **more)


def balance_parts(repair: Comparison, called: Called, kind: str) -> list[Part]:
    """Decisions that changed, and errors before and after, of each group per 1,000; `kind` is that of the numbers."""
    same, unit, level = words.is_original(repair), words.error_unit(repair), percent(repair.found.settings.level)

    def made(_: str, balances: Iterable[Balance]) -> list[Part]:
        rows = []
        for b in balances:
            row = [_group(b.group, called, b.reference, means=f"{b.rows:,} {unit}")]
            errors = ((b.missed_before, b.missed_after, b.missed), (b.alarms_before, b.alarms_after, b.alarms))
            if math.isnan(b.net.value):
                row.append(Cell((Span("insufficient data", "insufficient"),), wide=4))
            elif same:
                row.append(Cell("no change", wide=2))
                row += [Cell((f"{amount(before, kind)} ", Span("no change", "span"))) for before, _, _ in errors]
            else:
                row += [Cell(value=Estimate(each.value, each.low, each.high), kind=kind) for each in (b.corrected, b.spoiled)]
                for before, after, change in errors:
                    value, low, high = (amount(end, f"{kind}+") for end in (change.value, change.low, change.high))
                    style = "gain" if change.high < 0 else "loss" if change.low > 0 else ""
                    moved = f"{amount(before, kind)} → {amount(after, kind)} "
                    row.append(Cell((moved, Span(f"{value}: {low} to {high}", "span")), style=style))
            rows.append(row)
        expected = " (expected, the rule is randomised)" if repair.found.affected[0].expected else ""
        intervals = "" if same else f", with {level} intervals of the change on the same {unit}"
        over = (("Decisions", 2, ""), ("Errors, before → after", 2, "part"))
        heads = ["Group", "corrected", "newly wrong", Column("missed findings", style="part"), "false alarms"]
        return [table(f"Per 1,000 {unit} of each group{expected}{intervals}", heads, rows, style="balance stack", over=over)]

    return _by_attribute(repair.found.balances, made)


def affected_tables(repair: Comparison, called: Called) -> list[Part]:
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
    for view in repair.found.affected:
        rows = []
        for c in view.counts:
            detected, missed, cleared, alarmed = (count(n, view.expected, exact=True) for n in (c.detected, c.missed, c.cleared, c.alarmed))
            rows.append((_group(c.group, called), f"{c.positives:,}", detected, missed, f"{c.negatives:,}", cleared, alarmed))
        caption = ("By ", Span(view.attribute), f": {'expected ' if view.expected else ''}decisions that changed")
        tables.append(table(caption, heads, rows, style="affected stack", over=over))
    return tables


def gap_parts(repair: Comparison, called: Called) -> list[Part]:
    """The differences before and after; of many groups, at first sight only those in the measure of the goal."""

    def made(attribute: str, found: Mapping[str, Any]) -> list[Part]:
        mirrored, target = terms.mirrors(list(found)), repair.goal.measure if attribute == repair.found.main else ""

        def means(measure: str) -> str:
            others = f", mirrored by {', '.join(mirrored[measure])}" if mirrored[measure] else ""
            return f"{measure}{others}{' · the measure of the goal' if measure == target else ''}"

        gaps = {name: list(found[name].values()) for name in terms.distinct(list(found))}
        caption = ("Differences by ", Span(attribute), " before and after repair, test set")
        whole = gap_table(caption, gaps, called, ["Before", "After"], means, once=True)
        blocks = [replace(block, style="target" if name == target else "") for name, block in zip(gaps, whole.blocks, strict=True)]
        if attribute != repair.found.main or len(repair.original.test.attribute.levels) <= MANY_GROUPS:
            return [replace(whole, blocks=blocks)]
        first, rest = ([block for block in blocks if bool(block.style) == of_goal] for of_goal in (True, False))
        return [replace(whole, blocks=first), Folded("Differences in other measures", [replace(whole, blocks=rest)])]

    return _by_attribute(repair.found.gaps, made)


def group_parts(repair: Comparison, called: Called) -> list[Part]:
    """The rates of each group before and after; those of scores are folded, with calibration curves."""
    found, scores = repair.found.rates, list[Part]()

    def made(attribute: str, rates: Sequence[str]) -> doc.Table:
        rows = {
            rate: [(_group(group, called, k == 0), *(Cell(value=side) for side in sides)) for k, (group, sides) in enumerate(of.items())]
            for rate, of in found[attribute].items()
            if rate in rates
        }
        caption = ("Rates by ", Span(attribute), " before and after repair, test set")
        return rate_table(caption, rows, repair.found.settings, ["Before", "After"])

    def decisions(attribute: str, _: object) -> list[Part]:
        if attribute != repair.found.main or len(repair.original.test.attribute.levels) <= MANY_GROUPS:
            return [made(attribute, HEADLINE)]
        return [made(attribute, HEADLINE[:2]), Folded("Predictive values", [made(attribute, HEADLINE[2:])])]

    for attribute in (repair.found.main, *(name for name in found if name != repair.found.main)):
        scores += [Text(("By ", Span(attribute)), "heading")] if len(found) > 1 else []
        scores.append(made(attribute, [rate for rate in SHOWN_RATES if rate not in HEADLINE]))
    of_scores = Folded("Scores: AUROC, fixed operating points and calibration", [*scores, Fixed("recalibration")])
    return [*_by_attribute(found, decisions), of_scores]


def cohort_parts(repair: Comparison, called: Called, patients: bool) -> list[Part]:
    """The rows, patients and labels of each group in the repair set and the test set."""
    least, sets = repair.found.settings.min_patients, ("Repair set", "Test set") if repair.original.valid is not None else ("Test set",)

    def made(attribute: str, cohort: Iterable[Any]) -> list[Part]:
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
        columns = [Column(head, style="part" if part == "Test set" and k == 0 else "") for part in sets for k, head in enumerate(heads)]
        over = [(part, len(heads), "part" if part == "Test set" else "") for part in sets]
        return [table(("By ", Span(attribute)), ["Group", *columns], rows, style="cohort", over=over)]

    weighted = "Rates, differences, curves and figures are weighted by the sample weights; counts of rows and patients are not."
    notes: list[Words] = [weighted] if repair.found.before.weighted else []
    notes += ["A patient may have several rows, and be in both columns “with” and “without”."] if patients else []
    marked = "with the finding (or without it) is marked ▵ and shown as “insufficient data”, not as zero."
    notes.append(f"A group with fewer than {least} patients {marked}")
    return [*_by_attribute(repair.found.cohort, made), doc.Items([*notes, *row_notes(repair.found.before, called)])]


def methods_table(repair: Comparison) -> doc.Table:
    """Every method on the held-out rows."""
    rows = []
    for k, row in enumerate(repair.found.methods):
        name = Cell((Span(row.name if k else repair.original.called or "original"),), tag="chosen" if row.chosen else "")
        values = (Cell(value=row.gap, kind="points"), Cell(value=row.performance), upper_bound_words(row.below))
        changed, needs = count(row.changed, row.expected), f"{'yes' if row.needs_group else 'no'}{', randomised' if row.expected else ''}"
        p_values = (p_value_words(row.gap.p_value), p_value_words(row.gap.p_adjusted))
        rows.append((name, *values, changed, needs, "" if row.judgement is None else str(row.judgement.outcome), *p_values))
    performance, measure = performance_words(repair.goal.performance), gap_words(repair.goal.measure)
    heads = [Column("Method"), Column(f"Difference in {measure}", "difference"), Column(sentence(performance), performance)]
    further = ("Upper bound", "Decisions changed", "Needs the group", "Outcome", "p", "adjusted p")
    heads += [Column(head, head.lower().replace("decisions ", "")) for head in further]
    return table("All methods on the test set", heads, rows, style="stack")


def methods_screen(repair: Comparison, *, verbose: bool = False) -> list[Part]:
    """Every method on the held-out rows, for a terminal or a notebook; with `verbose`, p-values and the upper bound."""
    after, methods, made = repair.found.after, repair.found.methods, methods_table(repair)
    attribute = repair.result.test.attribute.only(repair.goal.groups)
    group = Span(attribute.others[0]) if len(attribute.others) == 1 else f"the largest of {len(attribute.others)} groups"
    size = f"{how_many(after.rows, after.patients, 'held-out')}: "
    units = f" in points, {performance_words(repair.goal.performance)} in percent, {percent(repair.settings.level)} intervals"
    caption = (size, group, " minus ", Span(attribute.reference), units)
    heads = [Column("Method"), Column("Difference"), made.columns[2], Column("Outcome")]
    heads.append(Column("Needs the group", style="text narrow"))
    rows = [
        (*row, Cell("yes" if each.needs_group else "no")) for row, each in zip(made.only(0, 1, 2, 6).blocks[0].rows, methods, strict=True)
    ]
    parts: list[Part] = [table(caption, heads, rows)]
    marks = {f"*: clear after adjustment for {plural(after.comparisons, 'comparison')}.": any(row.gap.clear for row in methods)}
    marks[f"†: {wording.few_words(after.rows, after.patients, after.weighted)}."] = any(row.gap.few for row in methods)
    parts += [Text(" ".join(shown), "notes")] if (shown := [text for text, needed in marks.items() if needed]) else []
    if verbose:
        bound = "Upper bound: not defined, since this gap or performance is not a sum of rates, or a cell is empty."
        if methods[0].below is not None:
            bound = (
                "Upper bound: points of performance below or above the group-aware upper bound (linear program), computed on these rows "
                "with the original scores, at the same |gap|."
            )
        tests = "P-values (adjusted for all comparisons), and the group-aware upper bound"
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
            scale = doc.Scale.of([Estimate(0.5, 0.5, 0.5), *(cell.value for row in rows for cell in row[1:] if cell.value)], "area")
            heads = [Column("Layer"), Column("Before", "before"), Column("After", "after")]
            caption = ("How well ", Span(name), f" can be predicted from each layer, {PROBED_AMONG[label]}")
            tables.append(doc.Table(caption, heads, [doc.Block(rows, (Span(name),), PROBED_AMONG[label])], style="probes", scale=scale))
        parts += [tables[0], Folded(("The same among those with the finding, and among those without it (", Span(name), ")"), tables[1:])]
        notes = dict.fromkeys(note for side in (before, after) for note in side["note"] if note)
        parts += [Text((Span(name), f": {note}."), "notes") for note in notes]
    about = "Bold: the interval is above chance. The first line is the inputs where they are a table, the last the network's own output; "
    return [*parts, Text(f"{about}convolutions are summarised by the means of their channels.", "notes")]


# Several labels, and notebooks


def overview(
    title: str,
    repairs: Mapping[str, Comparison],
    written: Mapping[str, Sequence[str]],
    places: Mapping[str, Path],
    options: ReportSpec = ReportSpec(),
) -> dict[str, str]:
    """The report.html and README.txt above the folders of several labels."""
    first = next(iter(repairs.values()))
    after, called, one, attribute = (
        first.found.after,
        words.groups_called(first, options.words),
        first.kind.one,
        first.original.test.attribute,
    )
    rows = []
    for label, repair in repairs.items():
        found, page = repair.found, f"{quote(places[label].name)}/report.html" if "report.html" in written[label] else ""
        gaps = [Cell(value=gap, kind="points") for gap in (found.gap_before, found.gap_after)]
        performance = [Cell(value=each) for each in (found.performance_before, found.performance_after)]
        answer = Cell(words.repair_answer(repair, called), style=f"outcome-{repair.outcome}")
        rows.append((Cell((Span(label),), href=page), *gaps, *performance, answer))
    measure, performance_name = gap_words(first.goal.measure), performance_words(first.goal.performance)
    largest = ", the largest" if len(attribute.levels) > 2 else ""
    measured = f"{largest}) and {performance_name}, with {percent(first.found.settings.level)} intervals"
    caption = (f"Difference in {measure} (points, group minus ", Span(called.full(attribute.reference)), measured)
    heads = [sentence(one), "Difference before", "after", f"{sentence(performance_name)} before", "after"]
    made = table(caption, [*heads, Column("Outcome, on held-out patients", style="text")], rows)
    outcome = joint_outcome(repair.outcome for repair in repairs.values())
    answer_of_all = words.outcomes_words({label: repair.judgement for label, repair in repairs.items()}, first.kind)
    values = {
        "repairs": repairs,
        "first": first,
        "kind": first.kind,
        "one": one,
        "outcome": outcome,
        "method_name": "; ".join(dict.fromkeys(words.method_words(repair.result) for repair in repairs.values())),
        "joint": (used := METHODS.get(first.result.candidate.method)) is not None and used.labels == ALL_AT_ONCE,
        "when": date_words(first.provenance.when),
    }
    document = doc.Document(
        template="labels.html",
        kind=f"multi-{one} report",
        title=title,
        sections=[Section("labels", "", "", [doc.outcome(outcome, answer_of_all), made, Fixed("together")])],
        values=values,
        called=called.full,
        few=wording.few_words(after.rows, after.patients, after.weighted),
        scripts=(),
        contents=False,
        version=first.provenance.versions.get("equipoise", ""),
    )
    context = values | {"title": title, "places": places, "rule_only": first.result.candidate.rule_only}
    return {"report.html": page_of(document), "README.txt": render("README_labels.txt.j2", context)}


def repair_screen(
    repair: Comparison, names: Mapping[str, str] | None = None, lines: Iterable[str] = (), *, verbose: bool = False
) -> list[Part]:
    """The result of a repair in a terminal: its outcome, every method on the held-out rows, the given lines and notes on the repair.

    Notes on the search are counted, and shown if `verbose`, with notes of other methods about rows that differ from the chosen one's.
    """
    result, every = repair.result, list(dict.fromkeys(repair.result.candidate.notes))
    printed = [note for note in every if verbose or note.kind not in SEARCH_NOTES]
    notes = [f"{result.name}: {note_words(note)}" for note in printed]
    hidden = len(every) - len(printed)
    for tried in repair.candidates if verbose else ():
        for note in tried.candidate.notes:
            # Notes on small cells are similar for all methods, so one of them is enough.
            small = note.kind == "small_cells" and not any(other.kind == note.kind for other in printed)
            if small or (note.kind == "missing_group" and note not in printed):
                printed.append(note)
                notes.append(f"{tried.name}: {note_words(note)}")
    limits = [words.met_words(repair.judgement), words.period_words(repair, names), words.original_words(repair)]
    limits.append(words.repair_set_words(repair))
    about = [f"Method: {words.method_words(result)}.", *filter(None, limits), f"Chosen: {why_words(result.candidate.why)}."]
    more = [Text(f"How it was found: {plural(hidden, 'more note')} with --verbose and in report.html.", "notes")] if hidden else []
    answer = Text(words.repair_answer(repair, words.groups_called(repair, names)), f"outcome-{repair.outcome}")
    called = words.groups_called(repair, names)
    options: list[Part] = [Text(""), options_table(repair, called, brief=True), Text("")] if len(repair.options) > 1 else []
    options += limit_parts(repair, called) if verbose or words.is_original(repair) else []
    return [answer, *map(Text, about), *methods_screen(repair, verbose=verbose), *options, Text(""), *map(Text, [*lines, *notes]), *more]


def comparison_screen(repair: Comparison) -> list[Part]:
    """A comparison: the outcome, and every method on the held-out rows."""
    options = options_table(repair, words.groups_called(repair, None))
    return [Text(words.repair_answer(repair), "lead"), Text(f"Goal: {words.goal_words(repair.goal)}."), *methods_screen(repair), options]


def candidate_screen(candidate: Candidate) -> list[Part]:
    """A candidate: the outcome on cross-fitted rows, if there is any, and the original and the chosen step on the repair set."""
    judgements = {label: each.judgement for label, each in candidate.labels.items() if each.judgement is not None}
    answer = "In-sample: there are no held-out rows to judge it by. Audit it on a test set."
    if judgements:
        answer = words.outcomes_words(judgements)
    rows, goals = [], {}
    for label, each in list(candidate.labels.items())[:MOST_LABELS]:
        prefix = (Span(label), ": ") if label else ()
        for step, name in ((0, "original"), (each.chosen, f"{each.ran}, step {each.chosen}")):
            row = each.trace.iloc[step]
            rows.append(((*prefix, name), f"{100 * row['gap']:+.1f}", f"{100 * row['performance']:.1f}"))
        goals[(*prefix, words.goal_words(each.goal))] = each
    goal = next(iter(goals.values())).goal
    why = [Text(sentence(why_words(candidate.only.why)))] if len(goals) == 1 else []
    heads = ["step", f"{gap_words(goal.measure)}, points", f"{performance_words(goal.performance)}, %"]
    made = table("On the repair set, to which it was fitted", heads, rows)
    return [Text(answer, "lead"), *why, Text(("Goal: ", *doc.joined(list(goals)), ".")), made]
