"""The sections of an audit of several labels: the overview with a matrix of labels by groups, and one row per label in a terminal."""

import math
from collections.abc import Mapping
from dataclasses import replace

from equipoise.measures import Audit, Estimate, LabelAudit
from equipoise.report import document as doc
from equipoise.report.audits import FIRST_MEASURES, UNKNOWN, LabelSections, between, page_values
from equipoise.report.document import Called, Cell, Column, Fixed, Part, Section, Span, Table, Text, Words, table
from equipoise.report.origin import Origin
from equipoise.report.text import amount, p_value_words, percent, plural, rows_counted, sentence
from equipoise.report.wording import audits as wording
from equipoise.report.wording.names import GroupNames, distinct, gap_words

LEAST_WIDTH = 0.05  # of the colour scale of a matrix


def labels_table(audit: Audit, links: Mapping[str, str], names: GroupNames, most: int | None = None) -> Table:
    """One row per label: its answer, balanced accuracy, rows, and largest gap."""
    rows = []
    for label, own in list(audit.labels.items())[:most]:
        style, text = wording.answer(own, names, brief=True)
        estimate, gap = own.estimates.get("balanced_accuracy", UNKNOWN), wording.largest_gap(own)
        largest: list[Cell | Words] = ["", ""]
        if gap is not None:
            found = Estimate.of_gap(gap)
            words = (f"{gap_words(str(gap['measure']))}: ", *between(found, names.full))
            largest = [words, Cell(value=found, kind="points", style="shown" if found.clear else "")]
        first = Cell((Span(label),), href=links.get(label, ""))
        accuracy = "" if math.isnan(estimate.value) else f"{100 * estimate.value:.1f}"
        rows.append((first, Cell(text, style=f"outcome-{style}"), Cell(value=estimate), f"{own.rows:,}", accuracy, *largest))
    heads = [sentence(audit.kind.one), Column("Answer", style="text"), "Balanced accuracy", "rows"]
    heads += ["balanced accuracy, %", Column("largest gap", style="text"), "points"]
    level = percent(next(iter(audit.labels.values())).settings.level)
    caption = f"The answer for each, with the balanced accuracy over all patients and its {level} interval"
    return table(caption, heads, rows, style="labels stack")


def audit_screen(audit: Audit, names: Mapping[str, str] | None = None, *, most: int | None = None) -> list[Part]:
    """The audit on one screen; of several labels, of which at most so many are shown, the answer and one row per label."""
    first = LabelSections(next(iter(audit.labels.values())), names)
    if len(audit.labels) == 1:
        return first.screen()
    one, warning = audit.kind.one, wording.unflagged_words(audit.labels, audit.kind)
    notes = (
        f"{first.interval_words().partition('.')[0]}. *: clear of 0 after adjustment for {first.comparisons} of all {audit.kind} (Holm). "
        "Largest gap: of the clear ones if there are any, and among these of single attributes before intersections. "
        f"--verbose shows the audit of each {one}."
    )
    left_out = [f"The first {most} of {len(audit.labels)} {audit.kind}."] if most is not None and len(audit.labels) > most else []
    made = labels_table(audit, {}, first.names, most).only(0, 3, 4, 5, 6)
    return [
        Text(("Audit of ", Span(audit.name), f", {len(audit.labels)} {audit.kind}. {wording.decisions_words(audit.labels)}")),
        doc.outcome(*wording.overview_answer(audit)),
        *([Text(warning, "callout")] if warning else []),
        *(Text(""), replace(made, caption=f"{len(audit.labels)} {audit.kind}, with {first.level} intervals")),
        doc.Items([notes, *left_out]),
    ]


def audit_whole(audit: Audit, names: Mapping[str, str] | None = None) -> list[Part]:
    """The whole audit, label by label."""
    labels = audit.prefixed.items()
    return [part for label, own in labels for part in (*([doc.Heading(label)] if label else ()), *LabelSections(own, names).whole())]


def shrunken_parts(audit: Audit) -> list[Part]:
    """Shrunken gaps next to the plain ones, of attributes with at least four groups, of each label."""
    parts: list[Part] = []
    for label, own in audit.prefixed.items():
        none = Text(
            f"No shrunken differences{f' of {label}' if label else ''}: they need an attribute with at least four groups that have a rate."
        )
        parts += [*([doc.Heading(label)] if label else []), *(LabelSections(own).shrunken() or [none])]
    return parts


def underdiagnosis_parts(audit: LabelAudit, called: Called = str) -> list[Part]:
    """Underdiagnosis by group, from the audit of "no finding": of patients with a finding, the share decided to have none."""
    rows = []
    for row in audit.underdiagnosis.itertuples():
        gap = Estimate(row.gap, row.gap_low, row.gap_high, clear=bool(row.clear), few=bool(row.few))
        name = Cell((Span(row.attribute), ": ", Span(called(row.group))), tag="reference" if row.reference else "")
        difference = Cell() if row.reference else Cell(value=gap, kind="points", style="shown" if gap.clear else "")
        rate = Cell(value=Estimate(row.rate, row.low, row.high))
        rows.append((name, rows_counted(row.with_finding), rate, difference, p_value_words(row.p_adjusted)))
    level, comparisons = percent(audit.settings.level), plural(audit.comparisons, "comparison")
    caption = (
        f"Rows with a finding, the share decided to have none, and the difference from the reference in points, with {level} intervals"
    )
    about = f"Of the patients who have a finding, the share that is decided to have none. Here “no finding” means: {audit.rule.describe()}."
    heads = ["Group", "with a finding", "underdiagnosed", "difference", "adjusted p"]
    return [Text(about), table(caption, heads, rows), Text(f"Bold: clear of zero after adjustment for {comparisons} (Holm).", "notes")]


def matrix(audit: Audit, measure: str, links: Mapping[str, str], called: Called) -> Table:
    """The gap of each group by label, in colours; without intersections."""
    first, found = next(iter(audit.labels.values())), dict[str, dict[tuple[str, str], Estimate]]()
    single = [attribute for attribute in first.references if attribute not in first.intersections]
    for label, own in audit.labels.items():
        gaps = own.gaps[own.gaps["attribute"].isin(single) & (own.gaps["measure"] == measure)].to_dict("records")
        found[label] = {(str(gap["attribute"]), str(gap["group"])): Estimate.of_gap(gap) for gap in gaps}
    keys = sorted(dict.fromkeys(key for row in found.values() for key in row), key=lambda key: single.index(key[0]))
    parts = ["part" if k == 0 or keys[k - 1][0] != key[0] else "" for k, key in enumerate(keys)]
    widest = max([LEAST_WIDTH, *(abs(gap.value) for row in found.values() for gap in row.values() if not math.isnan(gap.value))])
    rows = []
    for label, row in found.items():
        line = [Cell((Span(label),), href=links.get(label, ""))]
        for gap in (row.get(key, UNKNOWN) for key in keys):
            style = f"{'less' if gap.value < 0 else 'more-of'}{' shown' if gap.clear else ''}"
            marks = f"{' ●' if gap.clear else ''}{' †' if gap.few else ''}"
            known = not math.isnan(gap.value)
            drawn = (Span(amount(gap.value, "points"), "value"), marks)
            line.append(Cell(drawn, style=style, deep=round(60 * abs(gap.value) / widest)) if known else Cell("—", style="quiet"))
        rows.append(line)
    one = sentence(audit.kind.one)
    heads = [one, *(Column((Span(called(key[1])),), style=part) for key, part in zip(keys, parts, strict=True))]
    over = [
        ((Span(name), " ", Span("minus ", "means"), Span(called(first.references[name]))), sum(key[0] == name for key in keys), "part")
        for name in single
    ]
    return table((f"{sentence(gap_words(measure))} ", Span(measure, "means")), heads, rows, style="matrix", over=over)


def audit_document(
    audit: Audit,
    names: Mapping[str, str] | None = None,
    origin: Origin | None = None,
    links: Mapping[str, str] = {},
    *,
    paper: bool = False,
) -> doc.Document:
    """The report of an audit: the page of its label, or the overview of several, whose pages are `links`; shorter on `paper`."""
    first = LabelSections(next(iter(audit.labels.values())), names)
    if len(audit.labels) == 1:
        return first.page(origin, paper=paper)
    unflagged = wording.unflagged_words(audit.labels, audit.kind)
    measures = distinct(first.audit.gaps["measure"].unique())
    measures.sort(key=lambda measure: [*FIRST_MEASURES, measure].index(measure))
    matrices = [matrix(audit, measure, links, first.called) for measure in measures]
    more = [doc.Folded(sentence(gap_words(measure)), [each]) for measure, each in zip(measures[2:], matrices[2:], strict=True)]
    verdict = [doc.outcome(*wording.overview_answer(audit)), *([Text(unflagged, "callout", "unflagged")] if unflagged else [])]
    sections = [
        Section("labels", "", "", [*verdict, Fixed("decided"), labels_table(audit, links, first.names).only(0, 1, 2)]),
        Section("matrix", f"{sentence(audit.kind)} by groups", "", [*matrices[:2], *more]),
        *(
            [Section("underdiagnosis", "Underdiagnosis", "", underdiagnosis_parts(audit.no_finding, first.called))]
            if audit.no_finding
            else []
        ),
        Section("signoff", "Decision", "", []),
        Section("limits", "What these measures do not show", "", []),
    ]
    values = page_values(first, origin) | {"s": first, "all": audit, "decisions_words": wording.decisions_words(audit.labels)}
    return doc.Document("audits.html", "audit", audit.name, sections, values, first.called, first.few, contents=False)
