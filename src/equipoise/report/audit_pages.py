"""The page of an audit: of one label, with its figures and controls; or the overview of several, with a matrix of labels by groups."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from equipoise.comparison import Provenance
from equipoise.measures import Audit, Estimate, LabelAudit, group_estimate
from equipoise.report import document as doc
from equipoise.report.audits import (
    FIRST_MEASURES,
    UNKNOWN_ESTIMATE,
    LabelSections,
    between,
    labels_table,
    performance_rows,
    row_notes,
    underdiagnosis_parts,
)
from equipoise.report.document import SIGNOFF, Called, Cell, Column, Facts, Figures, Fixed, Folded, Part, Section, Table, Text, table
from equipoise.report.panels import CALIBRATION_BINS, DIAGONAL, SHARES, Panel, decision_panels, share_panel
from equipoise.report.text import Span, amount, date_words, how_many, plain, rows_counted, sentence, short, span
from equipoise.report.wording import audits as wording
from equipoise.report.wording.names import HEADLINE, RATE_WORDS, SHOWN_RATES, distinct, gap_words, rate_title

AUDIT_DECISIONS = ("use the classifier", "use it under conditions", "repair it first", "do not use it")  # to tick on paper
MOST_CLEAR = 12  # clear differences in the table of the answer
MOST_GROUPS = 40  # of an attribute with rates and differences on axes; attributes with more are in the explorer only
PANELS_ON_PAPER = 6  # figures of an attribute
LEAST_WIDTH = 0.05  # of the colour scale of a matrix


def audit_document(
    audit: Audit,
    names: Mapping[str, str] | None = None,
    provenance: Provenance | None = None,
    links: Mapping[str, str] = {},
    *,
    paper: bool = False,
) -> doc.Document:
    """The report of an audit: the page of its label, or the overview of several, whose pages are `links`; shorter on `paper`."""
    first = LabelSections(next(iter(audit.labels.values())), names)
    return _label_page(first, provenance, paper) if len(audit.labels) == 1 else _overview(audit, first, provenance, links)


def _overview(audit: Audit, first: LabelSections, provenance: Provenance | None, links: Mapping[str, str]) -> doc.Document:
    unflagged = wording.unflagged_words(audit.labels, audit.kind)
    measures = distinct(first.audit.gaps["measure"].unique())
    measures.sort(key=lambda measure: [*FIRST_MEASURES, measure].index(measure))
    matrices = [_matrix(audit, measure, links, first.called) for measure in measures]
    more = [Folded(sentence(gap_words(measure)), [each]) for measure, each in zip(measures[2:], matrices[2:], strict=True)]
    verdict = [doc.outcome(*wording.overview_answer(audit)), *([Text(unflagged, "callout", "unflagged")] if unflagged else [])]
    underdiagnosis = () if audit.no_finding is None else underdiagnosis_parts(audit.no_finding, first.called)
    sections = [
        Section("labels", "", "", [*verdict, Fixed("decided"), labels_table(audit, links, first.names).only(0, 1, 2)]),
        Section("matrix", f"{sentence(audit.kind)} by groups", "", [*matrices[:2], *more]),
        *([Section("underdiagnosis", "Underdiagnosis", "", underdiagnosis)] if underdiagnosis else []),
        *SIGNOFF,
    ]
    values = _page_values(first, provenance) | {"s": first, "all": audit, "decisions_words": wording.decisions_words(audit.labels)}
    values["overview_words"] = wording.overview_words(audit)
    return doc.Document("audits.html", "audit", audit.name, sections, values, first.called, first.few, contents=False)


def _label_page(s: LabelSections, provenance: Provenance | None, paper: bool) -> doc.Document:
    """The report for a committee, shorter on paper."""
    audit, most = s.audit, PANELS_ON_PAPER if paper else None
    threshold = None if paper else threshold_data(audit, s.called)
    drawn = [name for name, groups in s.groups.items() if len(groups) <= MOST_GROUPS]

    def by_attribute(parts: Callable[[str], Sequence[Part]], headed: bool = True, everywhere: bool = False) -> list[Part]:
        """Parts of each attribute: intersections are folded, and on paper only `everywhere`; many groups are only in the explorer."""
        made: list[Part] = []
        for name, groups in s.groups.items():
            crossed, own = name in audit.intersections, list(parts(name))
            if own and name not in drawn:
                where = Span("subgroups|all groups and intersections", "link")
                own = [Text((f"{len(groups)} groups by ", Span(name), " are too many to draw; they are in ", where, "."), "notes")]
            if own and headed and not crossed and len(s.single) > 1:
                own.insert(0, Text(("By ", Span(name)), "heading"))
            if own and (everywhere or not (crossed and paper)):
                made += [Folded((f"{len(groups)} intersections: ", Span(name)), own)] if crossed else own
        return made

    def gaps(name: str) -> list[Part]:
        rows = audit.gaps[audit.gaps["attribute"] == name]
        wanted = {*FIRST_MEASURES, *rows["measure"][rows["clear"].astype(bool)]} if paper else set(rows["measure"])
        shown = [measure for measure in distinct(rows["measure"].unique()) if measure in wanted]
        further = [*s.within(name), *s.adjudicated(name), *(s.shrunken(name) if audit.settings.shrink else [])]
        return [*([s.gaps(rows, name, shown)] if len(rows) else []), *s.summaries(name), *further]

    def groups(name: str) -> list[Part]:
        made = s.rates(name, HEADLINE)
        if not paper:
            return [made]
        heads = [Column("Group"), *(Column(sentence(doc.text_of(block.heading))) for block in made.blocks)]
        rows = [(of_group[0][0], *(row[1] for row in of_group)) for of_group in zip(*(block.rows for block in made.blocks), strict=True)]
        return [table(made.caption, heads, rows, style="compact")]  # without axes, one row per group

    def calibration(name: str) -> list[Part]:
        panels, rest = calibration_panels(s, name)[:most], [rate for rate in SHOWN_RATES if rate not in HEADLINE]
        return [*([Figures(panels)] if panels else []), *([] if paper else [s.rates(name, rest)])] if name in drawn else []

    def curves(name: str) -> list[Part]:
        panels = decision_panels(name, [("", audit)], s.called)[:most] if name in drawn else []
        return [Figures(panels)] if panels else []

    first, *further = s.answer()
    least = audit.settings.min_patients
    notes = [
        "“With the finding” means labelled so in the data, which is not always the truth.",
        f"A group with fewer than {least} patients with the finding (or without it) is shown as “insufficient data”, not as zero.",
        *(["Rates, differences and curves are weighted by the sample weights; counts are rows."] if audit.weighted else []),
        *row_notes(audit, s.called),
    ]
    clear, differ = _clear_gaps(s, drawn), bool(set(drawn) & {*audit.gaps["attribute"], *audit.summaries["attribute"]})
    cohort = [] if paper else by_attribute(lambda name: [s.cohort(name)], headed=False)
    calibrated, useful = by_attribute(calibration), by_attribute(curves)
    about_scores = "does a score mean the same in every group; AUROC and fixed operating points"
    sections = [
        Section("verdict", "The answer", "", [first, Fixed("question"), *further, _facts(s), *clear]),
        Section("worse", "Who is worse off", "", by_attribute(lambda name: [_errors_table(s, name)], headed=False, everywhere=True)),
        *([Section("gaps", "The differences", "", by_attribute(gaps))] if differ else []),
        Section("groups", "Each group", "", [*by_attribute(groups), *s.performance()]),
        *([Section("threshold", "Another threshold")] if threshold else []),
        Section("cohort", "The patients", "", [*cohort, doc.Items(notes)]),
        *SIGNOFF,
        *([Section("calibration", "Calibration", about_scores, calibrated)] if calibrated else []),
        *([Section("curves", "Decision curves", "is deciding by the score better than treating all, or none", useful)] if useful else []),
        *([] if paper else [Section("subgroups", "All groups and intersections", "every group by any rate, sorted and filtered")]),
        Section("method", "Method and provenance", "how intervals and tests are made; command, versions, checksums"),
    ]
    values = {"s": s, "slider": threshold} | _page_values(s, provenance)
    scripts, data = ("svg.js", "page.js", "threshold.js", "subgroups.js"), {"threshold": threshold, "subgroups": subgroup_data(s)}
    return doc.Document("audit.html", "audit", audit.name, sections, values, s.called, s.few, scripts, data)


def _page_values(s: LabelSections, provenance: Provenance | None) -> dict[str, Any]:
    """Values in the fixed text of the pages."""
    audit = s.audit
    return {
        "audit": audit,
        "provenance": provenance,
        "when": "" if provenance is None else date_words(provenance.when),
        "limit_words": wording.LIMITS,
        "size": how_many(audit.rows, audit.patients),
        "decisions": AUDIT_DECISIONS,
        "detectable": wording.DETECTABLE,
        "harms": wording.harms(audit),
        "sampled": wording.sampled_words(audit),
    }


def _facts(s: LabelSections) -> Facts:
    """The number of clear differences, the largest one, the performance, and the size."""
    audit, row = s.audit, wording.largest_gap_row(s.audit)
    clear = (str(audit.findings), Span(f" of {audit.comparisons:,}", "arrow"))
    facts: list[tuple[doc.Words, doc.Words, doc.Words]] = [("Differences clear after adjustment", clear, "comparisons between groups")]
    largest = sentence(wording.largest_words(audit))
    if row is None:
        facts.append((largest, "too few", ""))
    else:
        gap = Estimate.of_gap(row)
        note = (*between(gap, s.called), f"; simultaneous interval {span(gap.simultaneous_low, gap.simultaneous_high, 'points')}")
        facts.append((f"{largest}: {gap_words(str(row['measure']))}", (f"{amount(gap.value, 'points')} ", Span("points", "arrow")), note))
    for words, e, kind in performance_rows(audit)[:1]:
        facts.append((words, amount(e.value, kind), f"over all patients; {s.level} interval {span(e.low, e.high, kind)}"))
    rows = f"{audit.rows:,} rows; " if audit.patients and audit.patients != audit.rows else ""
    groups = doc.joined([(f"{len(s.groups[name])} groups by ", Span(name)) for name in s.single], ", ")
    facts.append((f"{'Patients' if audit.patients else 'Rows'} audited", f"{audit.patients or audit.rows:,}", (rows, *groups)))
    return Facts(facts)


def _clear_gaps(s: LabelSections, drawn: Sequence[str]) -> list[Part]:
    """The differences that are clear after adjustment, of attributes that are drawn."""
    gaps, order = s.audit.gaps, distinct(s.audit.gaps["measure"].unique())
    gaps = gaps[gaps["clear"].astype(bool) & gaps["measure"].isin(order) & gaps["attribute"].isin(drawn)]
    if not len(gaps):
        return []
    places = [(drawn.index(a), order.index(m)) for a, m in zip(gaps["attribute"], gaps["measure"], strict=True)]
    gaps = gaps.loc[[gaps.index[k] for k in sorted(range(len(gaps)), key=lambda k: places[k])]][:MOST_CLEAR]
    tables = [s.gaps(gaps[gaps["attribute"] == name], style="stack").flat() for name in dict.fromkeys(gaps["attribute"])]
    rows = [row for each in tables for block in each.blocks for row in block.rows]
    caption = f"Clear after adjustment for {s.comparisons}, in percentage points"
    return [Table(caption, tables[0].columns, [doc.Block(rows)], style="stack").only(0, 1, 2, 3, 4)]


def _errors_table(s: LabelSections, attribute: str) -> Table:
    """Missed findings and false alarms of each group per 1,000, and their differences from the reference."""
    worse = {"fnr": wording.worse_by(s.audit, wording.MISSED), "fpr": wording.worse_by(s.audit, wording.ALARMS)}
    rows = []
    for group, row in s.groups[attribute].iterrows():
        line = [s.name(group, row, means=f"{rows_counted(row['positives'])} rows with, {rows_counted(row['negatives'])} without")]
        for rate, differences in worse.items():
            more = differences.get((attribute, str(group)), UNKNOWN_ESTIMATE)
            style = f"shown {'loss' if more.value > 0 else 'gain'}" if more.clear else "empty" if row["reference"] else ""
            known = Cell(value=Estimate(more.value, more.low, more.high), kind="thousand0+", style=style)
            unknown = Cell("" if row["reference"] else "—", style=style)
            line += [Cell(value=group_estimate(row, rate), kind="thousand0"), unknown if math.isnan(more.value) else known]
        rows.append(line)
    missed, flagged = Column("missed", "missed of 1,000 with"), Column("flagged", "flagged of 1,000 without", "part")
    over = (("Missed, of 1,000 with the finding", 2, ""), ("Falsely flagged, of 1,000 without it", 2, "part"))
    heads = ["Group", missed, "difference", flagged, "difference"]
    return table(("By ", Span(attribute)), heads, rows, style="balance stack", over=over)


def _matrix(audit: Audit, measure: str, links: Mapping[str, str], called: Called) -> Table:
    """The gap of each group by label, in colours; without intersections."""
    first, found = next(iter(audit.labels.values())), dict[str, dict[tuple[str, str], Estimate]]()
    single = [attribute for attribute in first.references if attribute not in first.intersections]
    for label, own in audit.overview.items():
        gaps = own.gaps[own.gaps["attribute"].isin(single) & (own.gaps["measure"] == measure)].to_dict("records")
        found[label] = {(str(gap["attribute"]), str(gap["group"])): Estimate.of_gap(gap) for gap in gaps}
    keys = sorted(dict.fromkeys(key for row in found.values() for key in row), key=lambda key: single.index(key[0]))
    widest = max([LEAST_WIDTH, *(abs(gap.value) for row in found.values() for gap in row.values() if not math.isnan(gap.value))])
    rows = []
    for label, row in found.items():
        line = [Cell((Span(label),), href=links.get(label, ""))]
        for gap in (row.get(key, UNKNOWN_ESTIMATE) for key in keys):
            style = f"{'less' if gap.value < 0 else 'more-of'}{' shown' if gap.clear else ''}"
            drawn = (Span(amount(gap.value, "points"), "value"), f"{' ●' if gap.clear else ''}{' †' if gap.few else ''}")
            known = not math.isnan(gap.value)
            line.append(Cell(drawn, style=style, deep=round(60 * abs(gap.value) / widest)) if known else Cell("—", style="quiet"))
        rows.append(line)
    starts = {next(key for key in keys if key[0] == name) for name in dict(keys)}
    heads = [Column(sentence(audit.kind.one))]
    for key in keys:
        both = f"{short(called(key[1]))} minus {short(called(first.references[key[0]]))}"
        heads.append(Column((Span(called(key[1])),), both, style="part" if key in starts else ""))
    over = []
    for name in single:
        reference = Span(called(first.references[name]))
        over.append(((Span(name), " ", Span("minus ", "means"), reference), sum(key[0] == name for key in keys), "part"))
    return table((f"{sentence(gap_words(measure))} ", Span(measure, "means")), heads, rows, style="matrix stack", over=over)


# Figures, and data for the scripts


def calibration_panels(s: LabelSections, attribute: str) -> list[Panel]:
    """One panel per group: the share with the finding against the mean score, in bins of the score.

    It is drawn from `Audit.by_threshold`, so that it reveals no more about single patients than the threshold slider does.
    """
    steps, panels = s.audit.by_threshold[s.audit.by_threshold["attribute"] == attribute], []
    for code, group in enumerate(dict.fromkeys(steps["group"])):
        sides = [steps[(steps["group"] == group) & (steps["label"] == label)].set_index("threshold") for label in (1, 0)]
        points = _calibration_points(*sides) if all(len(side) for side in sides) else []
        if not points:
            continue
        marks = [DIAGONAL, SHARES.curve("curve", points, code), *(SHARES.dot("spot", x, y, 2.5, code) for x, y in points)]
        title = short(s.called(str(group)))
        says = f"Calibration of {title}: {'; '.join(f'score {amount(x)}, share {amount(y)}' for x, y in points)}."
        panels.append(share_panel(title, says, "mean score", "share with the finding", marks))
    return panels


def _calibration_points(positive: pd.DataFrame, negative: pd.DataFrame) -> list[tuple[float, float]]:
    """Mean score and share with the finding between thresholds that both labels have, merged into about ten bins of equal size."""
    cuts, sides = sorted(set(positive.index) & set(negative.index)), []
    for steps in (positive, negative):
        mass = steps["above"].to_numpy() - np.append(steps["above"].to_numpy()[1:], 0.0)
        scores = np.where(mass > 0, mass * steps["score"].to_numpy(), 0.0)  # NaN if the score of a bin is unknown
        scores_above = pd.Series(scores[::-1].cumsum()[::-1], index=steps.index)
        sides.append((steps.loc[cuts, "above"].to_numpy(), scores_above.loc[cuts].to_numpy()))
    above = sides[0][0] + sides[1][0]
    places = (int(np.searchsorted(-above, -mass)) for mass in np.linspace(above[0], 0, CALIBRATION_BINS + 1)[:-1])
    starts = sorted({place for place in places if place < len(above)})
    points = []
    for low, high in pairwise([*starts, len(cuts)]):
        masses, scores = (np.array([side[k][low] - (side[k][high] if high < len(cuts) else 0.0) for side in sides]) for k in (0, 1))
        if masses.sum() > 0 and not np.isnan(scores).any():
            points.append((float(scores.sum() / masses.sum()), float(masses[0] / masses.sum())))
    return points


def threshold_data(audit: LabelAudit, called: Called = str) -> dict[str, Any] | None:
    """Data for the threshold slider: by attribute and group, the number of rows at or above each threshold; None if unknown."""

    def exact(values: Iterable[float]) -> list[float]:
        """Numbers in full precision, whole ones without a decimal point."""
        return [int(value) if float(value).is_integer() else float(value) for value in values]

    attributes = []
    for name, rows in audit.by_threshold.groupby("attribute", sort=False):
        groups = []
        for group, own in rows.groupby("group", sort=False):
            by_label = {str(label): [exact(cell["threshold"]), exact(cell["above"])] for label, cell in own.groupby("label")}
            groups.append({"name": short(called(str(group))), "reference": str(group) == audit.references[str(name)], "cells": by_label})
        attributes.append({"name": short(name), "groups": groups})
    positions = sorted(set(audit.by_threshold["threshold"]) - {0.0})
    return {"attributes": attributes, "positions": positions, "used": audit.rule.shared} if attributes else None


def subgroup_data(s: LabelSections) -> dict[str, Any]:
    """Data for the explorer of groups: every group and intersection with its rates and intervals."""
    audit, rows = s.audit, []
    rates = [rate for rate in ("selection_rate", *SHOWN_RATES) if rate in audit.groups]
    for group, row in audit.groups.iterrows():
        estimates = [group_estimate(row, rate) for rate in rates]
        rows.append(
            {
                "attribute": short(row["attribute"]),
                "name": short(s.called(str(group))),
                "full": plain(s.called(str(group)))[:400],
                "reference": bool(row["reference"]),
                "n": int(row["n"]),
                "positives": None if pd.isna(row["positives"]) else int(row["positives"]),
                "values": [[*(None if math.isnan(v) else round(v, 5) for v in (e.value, e.low, e.high)), int(e.few)] for e in estimates],
            }
        )
    measures = [{"name": sentence(rate_title(r, audit.settings)), "means": RATE_WORDS[r].means, "kind": RATE_WORDS[r].kind} for r in rates]
    return {"measures": measures, "groups": rows}
