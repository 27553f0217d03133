"""Results as files and in notebooks: pages as HTML or PDF, figures as SVG, and pages written again from a saved result."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import singledispatch
from pathlib import Path
from typing import Any
from urllib.parse import quote

from equipoise.comparison import Comparison, Provenance
from equipoise.disk import folders, write_text
from equipoise.measures import Audit, Monitoring, Plan, read_audit
from equipoise.methods import Candidate
from equipoise.report.audit_pages import audit_document
from equipoise.report.audits import LabelSections, audit_screen, underdiagnosis_parts
from equipoise.report.changes import changes_document, changes_screen, monitoring_document, monitoring_screen
from equipoise.report.document import Document, Part, Scale, text_of
from equipoise.report.pages import in_notebook, page_of, picture_of
from equipoise.report.pdf import check_ending, is_paper, print_page, short_page
from equipoise.report.plans import plan_document, plan_screen
from equipoise.report.text import percent, short_name

Names = Mapping[str, str] | None
MOST_LABELS = 20  # in a notebook
FIGURES = {  # sections of an audit's page that are drawn: the name of the file, and what it shows
    "groups": ("rates", "Rates by group, in percent."),
    "gaps": ("gaps", "Group minus reference in percentage points; thin: simultaneous intervals; * and bold: clear after adjustment."),
    "calibration": (
        "calibration",
        "Share with the finding against the mean score. The line of the calibration error is its range if calibrated.",
    ),
    "curves": ("decision-curves", "Net benefit by threshold; solid: deciding by the score; dotted: treating all; straight: treating none."),
}


def _written(path: Path, document: Callable[[bool], Document]) -> Path:
    """Writes a page, HTML or PDF by the ending of its path, whole or not at all; `document(True)` is the short one for paper."""
    check_ending(path)
    paper = is_paper(path)
    html = page_of(document(paper), paper=paper)
    return print_page(html, path) if paper else write_text(path, html)


@singledispatch
def write_page(value: object, path: Path, **_: Any) -> Path:
    """Writes the report of a result, HTML or PDF by the ending of its path, whole or not at all; returns the path."""
    raise TypeError(f"{type(value).__name__} has no page: {path}")


@write_page.register
def write_audit_page(audit: Audit, path: Path, *, group_names: Names = None, provenance: Provenance | None = None) -> Path:
    """Writes an audit's report and returns its path.

    Of several labels, it is an overview, and the page of each label is written next to it; a PDF has the overview only.

    - `path`: a name that ends in .html or .pdf.
    - `group_names`: words for groups, such as {"F": "women"}.
    - `provenance`: the command, versions and files of the audit, which its page lists.
    """
    check_ending(path)
    links: dict[str, str] = {}
    if len(audit.labels) > 1 and not is_paper(path):
        for label, place in folders(path.parent, [*audit.labels]).items():
            own = Audit({label: replace(audit.labels[label], name=f"{label}, {audit.name}")}, audit.kind, audit.name)
            page = path.with_name(f"{path.stem}-{place.name}.html")
            write_text(page, page_of(audit_document(own, group_names, provenance)), follow=False)
            links[label] = quote(page.name)
    return _written(path, lambda paper: audit_document(audit, group_names, provenance, links, paper=paper))


@write_page.register
def _comparison_page(comparison: Comparison, path: Path, *, thumbnails: bool = False, group_names: Names = None) -> Path:
    """Writes the report of a comparison and returns its path; images of patients only with `thumbnails`, and never in a PDF."""
    from equipoise.report.repairs import repair_document

    if comparison.chosen is None:
        return _written(path, lambda _: changes_document(comparison.changes, group_names))
    return _written(path, lambda paper: repair_document(comparison, group_names, thumbnails=thumbnails and not paper))


@write_page.register
def _monitoring_page(monitoring: Monitoring, path: Path, *, group_names: Names = None) -> Path:
    """Writes the report of gaps over time and returns its path."""
    return _written(path, lambda paper: monitoring_document(monitoring, group_names, paper=paper))


@write_page.register
def _plan_page(plan: Plan, path: Path, *, group_names: Names = None) -> Path:
    """Writes the page of a plan and returns its path."""
    return _written(path, lambda _: plan_document(plan, group_names))


def write_figures(audit: Audit, folder: Path, *, group_names: Names = None) -> list[Path]:
    """Writes the figures of an audit's page as SVG into a folder, those of several labels into a folder for each; returns their paths.

    No file is written through a link, which could replace any file.
    """
    drawn: dict[Path, str] = {}
    for label, place in folders(folder, [*audit.labels]).items():
        own = audit.labels[label]
        for section in audit_document(Audit({label: own}, audit.kind, own.name), group_names).sections:
            if section.anchor in FIGURES:
                name, about = FIGURES[section.anchor]
                what = section.heading.lower().removeprefix("the ")
                title = f"{short_name(own.name)}: {what}, with {percent(own.settings.level)} intervals"
                drawn[place / f"{name}.svg"] = picture_of(title, about, section.parts)
    if audit.no_finding is not None:
        meaning, shares, _ = underdiagnosis_parts(audit.no_finding, LabelSections(audit.no_finding, group_names).called)
        scale = Scale.of([row[2].value for row in shares.blocks[0].rows if row[2].value], "share")
        title = f"Underdiagnosis by group, with {percent(audit.no_finding.settings.level)} intervals"
        drawn[folder / "underdiagnosis.svg"] = picture_of(title, text_of(meaning.words), [replace(shares.only(0, 2), scale=scale)])
    return [write_text(path, svg, follow=False) for path, svg in drawn.items()]


def write_audit_again(
    source: str | Path, *, page: str | Path | None = None, pdf: str | Path | None = None, group_names: Names = None
) -> list[Path]:
    """Writes a page, a PDF or both from the JSON of an audit; returns their paths.

    Without either, the page is written next to the JSON. Words for groups are those of the audit unless others are given.
    """
    source = Path(source)
    audit = read_audit(source)
    provenance = Provenance.of(json.loads(source.read_text(encoding="utf-8")).get("provenance"))
    names = group_names or (None if provenance is None else provenance.group_names)
    paths = [Path(name) for name in (page, pdf) if name is not None] or [source.with_suffix(".html")]
    return [write_audit_page(audit, path, group_names=names, provenance=provenance) for path in paths]


def copy_report(content: bytes, source: Path, page: str | Path | None, pdf: str | Path | None) -> list[Path]:
    """Copies the report of a repair to `page`, or prints it to `pdf`, or both; returns their paths."""
    if page is not None:
        check_ending(Path(page))
    short = short_page(content, str(source))
    written = [] if page is None else [write_text(Path(page), content.decode("utf-8"))]
    return written if pdf is None else [*written, print_page(short, Path(pdf))]


# Notebooks


@singledispatch
def html_of(value: object) -> str:
    """A result as HTML, for a notebook: of an audit, a candidate, a comparison or a history."""
    raise TypeError(f"{type(value).__name__} is not shown in notebooks")


html_of.register(Audit, lambda audit: in_notebook(audit_screen(audit, most=MOST_LABELS)))
html_of.register(Plan, lambda plan: in_notebook(plan_screen(plan)))
html_of.register(Monitoring, lambda monitoring: _to_first_table(monitoring_screen(monitoring)))


def _to_first_table(parts: list[Part]) -> str:
    return in_notebook(parts[: 1 + next(k for k, part in enumerate(parts) if part.part == "table")])


@html_of.register
def _comparison_html(comparison: Comparison) -> str:
    from equipoise.report.repairs import comparison_screen

    if comparison.chosen is None:
        return _to_first_table(changes_screen(comparison.changes))
    return in_notebook(comparison_screen(comparison))


@html_of.register
def _candidate_html(candidate: Candidate) -> str:
    from equipoise.report.repairs import candidate_screen

    return in_notebook(candidate_screen(candidate))
