"""The HTML report of an audit: the page of its label, or the overview of several and the page of each; also from the JSON of an audit."""

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from equipoise import __version__
from equipoise.data import folders, write_text
from equipoise.measures import Audit, Estimate, LabelAudit, group_estimate, read_audit
from equipoise.report.label_page import DECISIONS, FIRST_MEASURES, UNKNOWN, label_page
from equipoise.report.origin import Origin
from equipoise.report.paper import check_ending, is_paper, write_by_ending
from equipoise.report.templating import LIMITS, page_of
from equipoise.report.text import date_words, how_many, percent, plural
from equipoise.report.wording.audits import BY_ROW, DETECTABLE, answer, decisions_words, few_words, overview_answer, unflagged_words
from equipoise.report.wording.names import attributes_of, distinct, gap_words, group_words

LEAST_WIDTH = 0.05  # of the colour scale of a matrix


def write_audit_again(
    source: str | Path, *, page: str | Path | None = None, pdf: str | Path | None = None, group_names: Mapping[str, str] | None = None
) -> list[Path]:
    """Writes a page, a PDF or both from the JSON of an audit; returns their paths.

    Without either, the page is written next to the JSON. Words for groups are those of the audit unless others are given.
    """
    source = Path(source)
    audit = read_audit(source)
    origin = Origin.of(json.loads(source.read_text(encoding="utf-8")).get("provenance"))
    names = group_names or (None if origin is None else origin.group_names)
    paths = [Path(name) for name in (page, pdf) if name is not None] or [source.with_suffix(".html")]
    for path in paths:
        write_audit_page(audit, path, group_names=names, origin=origin)
    return paths


def write_audit_page(audit: Audit, path: Path, *, group_names: Mapping[str, str] | None = None, origin: Origin | None = None) -> Path:
    """Writes an audit's report, HTML or PDF by the ending of its path, whole or not at all; returns the path.

    Of several labels, it is an overview, and the page of each label is written next to it; a PDF has the overview only. `origin` is where
    the audit comes from.
    """
    check_ending(path)
    if len(audit.labels) == 1:
        return write_by_ending(path, lambda paper: label_page(audit.only, group_names, origin, paper=paper))
    pages: dict[str, Path] = {}
    if not is_paper(path):
        pages = {label: path.with_name(f"{path.stem}-{place.name}.html") for label, place in folders(path.parent, [*audit.labels]).items()}
    for label, page in pages.items():
        own = replace(audit.labels[label], name=f"{label}, {audit.name}")
        write_text(page, label_page(own, group_names, origin), follow=False)
    links = {label: quote(page.name) for label, page in pages.items()}
    return write_by_ending(path, lambda paper: overview_page(audit, links, group_names, origin, paper=paper))


def overview_page(
    audit: Audit,
    links: Mapping[str, str],
    given: Mapping[str, str] | None = None,
    origin: Origin | None = None,
    *,
    paper: bool = False,
) -> str:
    """The overview of several labels as HTML: the answer for each, and a matrix of labels by groups; `links` are their pages."""
    first, no_finding = next(iter(audit.labels.values())), audit.no_finding
    called = group_words(given, attributes_of(first))
    rows = []
    for label, own in audit.labels.items():
        style, text = answer(own, called, brief=True)
        rows.append({"label": label, "href": links.get(label, ""), "style": style, "answer": text, "audit": own})
    style_of_all, answer_of_all = overview_answer(audit)
    context: dict[str, Any] = {
        "style_of_answer": style_of_all,
        "answer": answer_of_all,
        "decided": decisions_words(audit.labels),
        "unflagged": unflagged_words(audit.labels, audit.kind),
        "by_row": BY_ROW if first.patients is None else "",
        "few_words": few_words(first.rows, first.patients, first.weighted),
        "detectable": DETECTABLE,
        "title": audit.name,
        "kind": "audit",
        "kind_words": audit.kind,
        "version": __version__,
        "origin": origin,
        "when": "" if origin is None else date_words(origin.when),
        "rows": rows,
        "matrices": matrices(audit.labels),
        "findings": audit.findings,
        "comparisons": plural(first.comparisons, "comparison"),
        "size_words": how_many(first.rows, first.patients),
        "gap_words": gap_words,
        "called": called.full,
        "level": percent(first.settings.level),
        "underdiagnosis": [] if no_finding is None else underdiagnosis_rows(no_finding),
        "no_finding": no_finding,
        "limits": LIMITS,
        "decisions": DECISIONS,
        "sections": {"signoff": ""},
    }
    return page_of("audits.html", context, ("page.js",), paper=paper)


def matrices(audits: Mapping[str, LabelAudit]) -> list[dict[str, Any]]:
    """One matrix per measure, missed findings and false alarms first: the gap of each group, by label; without intersections."""
    first = next(iter(audits.values()))
    single = [attribute for attribute in first.references if attribute not in first.intersections]
    measures = distinct(first.gaps["measure"].unique())
    tables = []
    for measure in sorted(measures, key=lambda name: FIRST_MEASURES.index(name) if name in FIRST_MEASURES else len(FIRST_MEASURES)):
        cells: dict[str, dict[tuple[str, str], Estimate]] = {}
        for label, audit in audits.items():
            gaps = audit.gaps[audit.gaps["attribute"].isin(single) & (audit.gaps["measure"] == measure)].to_dict("records")
            cells[label] = {(str(gap["attribute"]), str(gap["group"])): Estimate.of_gap(gap) for gap in gaps}
        groups = list(dict.fromkeys(key for row in cells.values() for key in row))
        columns = [(name, first.references[name], [group for attribute, group in groups if attribute == name]) for name in single]
        sizes = [abs(gap.value) for row in cells.values() for gap in row.values() if not math.isnan(gap.value)]
        tables.append({"measure": measure, "columns": columns, "cells": cells, "widest": max([LEAST_WIDTH, *sizes])})
    return tables


def underdiagnosis_rows(audit: LabelAudit) -> list[dict[str, Any]]:
    """Underdiagnosis by group and its gap to the reference, from the audit of "no finding"."""
    gaps = {(g["attribute"], g["group"]): Estimate.of_gap(g) for g in audit.gaps.to_dict("records") if g["measure"] == "fpr_gap"}
    return [
        {
            "attribute": str(row["attribute"]),
            "group": str(group),
            "reference": bool(row["reference"]),
            "with_finding": row["negatives"],
            "rate": group_estimate(row, "fpr"),
            "gap": gaps.get((row["attribute"], group), UNKNOWN),
        }
        for group, row in audit.groups.iterrows()
    ]
