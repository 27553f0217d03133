"""`equipoise report`: the report of a saved audit or repair, as HTML or PDF."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from equipoise import data
from equipoise import report as pages
from equipoise.cli.console import say
from equipoise.cli.inputs import check_places, group_names_of, page_problems
from equipoise.cli.options import GroupNameOption
from equipoise.errors import raise_all


def report(
    source: Annotated[Path, typer.Argument(help="JSON of `equipoise audit --out`, or folder of `equipoise debias --out`.")],
    page: Annotated[Path | None, typer.Option("--report", help="Page to write (.html).", show_default="next to the JSON")] = None,
    pdf: Annotated[Path | None, typer.Option(help="Short report to write as PDF; needs Chromium, Chrome, Edge or WeasyPrint.")] = None,
    group_name: GroupNameOption = None,
) -> None:
    """Write the report of a saved audit or repair again, as HTML or PDF. Patient data are not needed.

    [bold]Example:[/bold] equipoise report audit.json --report audit.html --pdf audit.pdf

    [bold]A repair:[/bold] equipoise report repaired/ --pdf repaired.pdf
    """
    names = group_names_of(group_name)
    raise_all(page_problems({"--report": page, "--pdf": pdf}))
    if not source.exists():
        raise data.no_such_file(source)
    check_places(page, pdf=pdf)
    for path in pages.write_again(source, page=page, pdf=pdf, group_names=names):
        say(f"{'PDF' if path.suffix.lower() == '.pdf' else 'report'}: {path}")
