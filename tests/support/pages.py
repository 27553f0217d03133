"""Pages as HTML, as they would be written."""

from typing import Any

from equipoise.comparison import Comparison, Provenance
from equipoise.measures import Audit
from equipoise.report.audit_pages import audit_document
from equipoise.report.pages import page_of
from equipoise.report.repairs import repair_document


def audit_page(audit: Audit, names: Any = None, provenance: Provenance | None = None, links: Any = (), *, paper: bool = False) -> str:
    """The page of an audit."""
    return page_of(audit_document(audit, names, provenance, dict(links), paper=paper), paper=paper)


def repair_page(case: Comparison, *, thumbnails: bool = False, names: Any = None, paper: bool = False) -> str:
    """The page of a repair."""
    return page_of(repair_document(case, names, thumbnails=thumbnails), paper=paper)
