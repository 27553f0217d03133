"""`equipoise init`: looks at a table, proposes who is what in it, and writes a commented case file that every command reads."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from equipoise import case as cases
from equipoise import report
from equipoise.cli import console
from equipoise.cli.console import out, say
from equipoise.cli.options import takes_case
from equipoise.disk import check_writable, write_text
from equipoise.errors import raise_all
from equipoise.specification import fields_of

if TYPE_CHECKING:
    from equipoise.case import Proposal

SCHEMA = "case.schema.json"


@takes_case(cases.Draft, "data", "images", "model", "goal")
def init_command(
    table: Annotated[Path, typer.Argument(help="CSV or Parquet file with one row per sample.")],
    *,
    case: Callable[[], cases.Draft],
    file: Annotated[Path, typer.Option("--out", metavar="FILE.toml", help="Case file to write.")] = Path("case.toml"),
    yes: Annotated[bool, typer.Option("--yes", help="Take the guesses without asking, as where there is no terminal.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a case file.")] = False,
) -> None:
    """Look at a table, guess its columns and write a case file, which audit and debias read. Nothing is guessed that an option names.

    [bold]Example:[/bold] equipoise init scores.csv

    [bold]A network:[/bold] equipoise init local.csv --images xrays/ --model net.py, whose function that builds it, transform and weights
    next to it are found too

    [bold]Then:[/bold] equipoise audit case.toml
    """
    problems = [] if file.suffix == ".toml" else [f"--out writes a case file (.toml); got {file.name!r}"]
    if file.exists() and not overwrite:
        problems.append(f"{file} is there already. Replace it with --overwrite, or name another with --out.")
    given = case().places()
    if other := given.pop("data.table", None):
        problems.append(f"{table} and --table {other} are two tables. Name one.")
    raise_all(problems)
    console.check_paths(table)
    check_writable(file)
    with console.notes():
        made = cases.propose(table, given)
    if not yes and sys.stdin.isatty():
        with console.notes():
            made = _ask(made, table, given)
    raise_all(made.lacking, table.name)
    cases.Case(**made.sections())  # one error with everything that does not go together
    rows = [(place, report.short_name(_shown(value)), made.why[place]) for place, value in made.values.items() if place != "data.table"]
    style = [report.Column(name, style="text") for name in ("setting", "value", "why")]
    out.print("", report.in_terminal([report.table(f"{table.name}", style, rows)]), "", sep="\n")
    for remark in made.remarks:
        say(f"note: {remark}", "yellow", console.err)
    for place in ("data.table", "images.folder", "model.load", "images.transform", "model.weights"):  # relative to the case file
        if place in made.values:
            made.values[place] = _relative(str(made.values[place]), file.parent)
    write_text(file, cases.case_text(made, SCHEMA))
    write_text(file.parent / SCHEMA, json.dumps(cases.case_schema(), indent=1, default=str) + "\n")
    say(f"Written: {file}. Check it, then: equipoise audit {file}")


def _ask(made: Proposal, table: Path, given: dict[str, object]) -> Proposal:
    """The proposal after each guess was shown, and taken or replaced; an answer changes the guesses that follow."""
    for place in cases.ASKED:
        if place in given or (place == "data.score" and "model.load" in made.values):
            continue
        section, _, key = place.partition(".")
        help = fields_of(cases.Case, section)[key].description
        guess = made.values.get(place)
        shown = "" if guess is None else _shown(guess)
        answer = typer.prompt(f"{key} ({help})", default=shown, show_default=bool(shown), err=True).strip()
        if answer and answer != shown:
            kind = fields_of(cases.Draft)[section].annotation
            parts = [part.strip() for part in answer.split(",")]
            values = {key: parts if key not in ("patient",) else answer}
            given |= {place: kind(**values).model_dump(mode="json", exclude_unset=True)[key]}  # type: ignore[misc]
            made = cases.propose(table, given)
    return made


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name}={_shown(own)}" for name, own in value.items())
    return ", ".join(map(_shown, value)) if isinstance(value, list) else str(value)


def _relative(path: str, folder: Path) -> str:
    """A path, or the code in a file, as seen from a folder."""
    place, colon, name = path.partition(":")
    if not Path(place).exists():
        return path
    return f"{os.path.relpath(place, folder)}{colon}{name}"
