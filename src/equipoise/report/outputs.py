"""Results as files and in notebooks: pages as HTML or PDF, and pages written again from a saved audit or repair."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from equipoise.data import write_text
from equipoise.errors import BadInput
from equipoise.measures import Audit, read_audit
from equipoise.report.document import Document, Part, Table
from equipoise.report.labels import audit_document, audit_screen
from equipoise.report.origin import Origin
from equipoise.report.pages import in_notebook, page_of
from equipoise.report.pdf import check_ending, is_paper, print_page
from equipoise.report.short_page import short_page

if TYPE_CHECKING:  # an audit of scores has a page without importing torch
    from equipoise.measures import Monitoring
    from equipoise.methods import Candidate
    from equipoise.repair import Comparison, ScoreComparison

Names = Mapping[str, str] | None
MOST_LABELS = 20  # in a notebook
REPORT = "report.html"


def write_page(path: Path, document: Callable[[bool], Document]) -> Path:
    """Writes a page, HTML or PDF by the ending of its path, whole or not at all; `document(True)` is the short one for paper."""
    check_ending(path)
    paper = is_paper(path)
    html = page_of(document(paper), paper=paper)
    return print_page(html, path) if paper else write_text(path, html)


def write_audit_page(audit: Audit, path: Path, *, group_names: Names = None, origin: Origin | None = None) -> Path:
    """Writes an audit's report and returns its path; `origin` is where the audit comes from.

    Of several labels, it is an overview, and the page of each label is written next to it; a PDF has the overview only.
    """
    check_ending(path)
    links: dict[str, str] = {}
    if len(audit.labels) > 1 and not is_paper(path):
        from equipoise.repair import folders  # imports torch

        for label, place in folders(path.parent, [*audit.labels]).items():
            own = Audit({label: replace(audit.labels[label], name=f"{label}, {audit.name}")}, audit.kind, audit.name)
            page = path.with_name(f"{path.stem}-{place.name}.html")
            write_text(page, page_of(audit_document(own, group_names, origin)), follow=False)
            links[label] = quote(page.name)
    return write_page(path, lambda paper: audit_document(audit, group_names, origin, links, paper=paper))


def write_repair_page(case: Comparison, path: Path, *, thumbnails: bool = False, group_names: Names = None) -> Path:
    """Writes the report of a repair and returns its path; images of patients only with `thumbnails`, and never in a PDF."""
    from equipoise.report.repairs import repair_document

    return write_page(path, lambda paper: repair_document(case, group_names, thumbnails=thumbnails and not paper))


def write_contrast_page(contrast: ScoreComparison, path: Path, *, group_names: Names = None) -> Path:
    """Writes the report of a comparison and returns its path."""
    from equipoise.report.changes import contrast_document

    return write_page(path, lambda _: contrast_document(contrast, group_names))


def write_monitoring_page(monitoring: Monitoring, path: Path, *, group_names: Names = None) -> Path:
    """Writes the report of gaps over time and returns its path."""
    from equipoise.report.changes import monitoring_document

    return write_page(path, lambda paper: monitoring_document(monitoring, group_names, paper=paper))


def write_again(
    source: str | Path, *, page: str | Path | None = None, pdf: str | Path | None = None, group_names: Names = None
) -> list[Path]:
    """Writes a page, a PDF or both from the JSON of an audit or from the folder of a repair; returns their paths.

    Without either, the page of an audit is written next to its JSON. Words for groups are those of the audit unless others are given. The
    report of a repair needs the rows of its patients, which are not saved, so the page in the folder is copied or printed.
    """
    source = Path(source)
    if source.is_dir():
        return _from_folder(source, page, pdf, group_names)
    audit = read_audit(source)
    origin = Origin.of(json.loads(source.read_text(encoding="utf-8")).get("provenance"))
    names = group_names or (None if origin is None else origin.group_names)
    paths = [Path(name) for name in (page, pdf) if name is not None] or [source.with_suffix(".html")]
    return [write_audit_page(audit, path, group_names=names, origin=origin) for path in paths]


def _from_folder(folder: Path, page: str | Path | None, pdf: str | Path | None, group_names: Names) -> list[Path]:
    from equipoise.repair import verified_report  # imports torch

    report = folder / REPORT
    if not report.is_file():
        raise BadInput(f"{folder} has no {REPORT}. Name a folder that `equipoise debias --out` wrote, or the JSON of an audit.")
    if page is None and pdf is None:
        raise BadInput(f"{folder} has its page already: {report}. Give --pdf FILE.pdf to print it, or --report FILE.html to copy it.")
    if group_names:
        raise BadInput(f"the words for groups in {report} were given to `equipoise debias` and cannot be changed here. Omit report.words.")
    if page is not None:
        check_ending(Path(page))
    content = verified_report(folder)
    short = short_page(content, str(report))
    written = [] if page is None else [write_text(Path(page), content.decode("utf-8"))]
    return written if pdf is None else [*written, print_page(short, Path(pdf))]


# Notebooks


def audit_html(audit: Audit) -> str:
    """An audit for a notebook: the conclusion, its groups and its gaps; of several labels, the largest gap of each."""
    return in_notebook(audit_screen(audit, most=MOST_LABELS))


def comparison_html(case: Comparison) -> str:
    """A comparison for a notebook: the outcome, and every method on the held-out rows."""
    from equipoise.report.repairs import comparison_screen

    return in_notebook(comparison_screen(case))


def candidate_html(candidate: Candidate) -> str:
    """A candidate for a notebook: its outcome, and the original and the chosen step."""
    from equipoise.report.repairs import candidate_screen

    return in_notebook(candidate_screen(candidate))


def contrast_html(contrast: ScoreComparison) -> str:
    """A comparison of scores or audits for a notebook: the conclusion, and the change of every gap."""
    from equipoise.report.changes import contrast_screen

    return in_notebook(_to_first_table(contrast_screen(contrast)))


def monitoring_html(monitoring: Monitoring) -> str:
    """Gaps over time for a notebook: the conclusion, and the state of every gap."""
    from equipoise.report.changes import monitoring_screen

    return in_notebook(_to_first_table(monitoring_screen(monitoring)))


def _to_first_table(parts: list[Part]) -> list[Part]:
    return parts[: 1 + next(k for k, part in enumerate(parts) if isinstance(part, Table))]
