"""`write_page`: the report of any result, by its type."""

from functools import singledispatch
from pathlib import Path
from typing import Any

from equipoise.comparison import Comparison, ScoreComparison
from equipoise.measures import Audit, Monitoring
from equipoise.report.audit_page import write_audit_page
from equipoise.report.compare_page import write_contrast_page, write_monitoring_page
from equipoise.report.repair_page import write_repair_page


@singledispatch
def write_page(value: object, path: Path, **_: Any) -> Path:
    """Writes the report of a result, HTML or PDF by the ending of its path, whole or not at all; returns the path."""
    raise TypeError(f"{type(value).__name__} has no page: {path}")


write_page.register(Audit, write_audit_page)
write_page.register(Monitoring, write_monitoring_page)
write_page.register(Comparison, write_repair_page)
write_page.register(ScoreComparison, write_contrast_page)
