"""`equipoise report`: the report of a saved audit or repair, as HTML or PDF."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from pydantic import Field

from equipoise import case as cases
from equipoise import report as pages
from equipoise.cli.console import check_paths, place_problems, say
from equipoise.cli.options import takes_case
from equipoise.errors import raise_all
from equipoise.specification import Specification


class ReportCase(Specification):
    """What a report that is written again may change."""

    report: pages.ReportSpec = Field(default_factory=pages.ReportSpec)


@takes_case(ReportCase)
def report_command(
    source: Annotated[Path, typer.Argument(help="JSON of `equipoise audit --out`, or folder of `equipoise debias --out`.")],
    page: Annotated[
        Path | None, typer.Option("--report", metavar="FILE.html", help="Page to write (.html).", show_default="next to the JSON")
    ] = None,
    pdf: Annotated[
        Path | None, typer.Option(metavar="FILE.pdf", help="Short report to write as PDF; needs Chromium, Chrome, Edge or WeasyPrint.")
    ] = None,
    *,
    case: Callable[[], ReportCase],
) -> None:
    """Write the report of a saved audit or repair again, as HTML or PDF. Patient data are not needed.

    [bold]Example:[/bold] equipoise report audit.json --report audit.html --pdf audit.pdf

    [bold]A repair:[/bold] equipoise report repaired/ --pdf repaired.pdf
    """
    names = case().report.words
    raise_all(place_problems({"--report": page, "--pdf": pdf}))
    check_paths(source, write=(page,), pdf=pdf)
    for path in cases.write_again(source, page=page, pdf=pdf, group_names=names):
        say(f"{'PDF' if path.suffix.lower() == '.pdf' else 'report'}: {path}")
