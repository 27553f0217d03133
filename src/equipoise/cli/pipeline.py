"""Options for pipelines: conditions that decide the exit code, and the history that an audit is added to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from equipoise import measures, report
from equipoise.cli.console import err
from equipoise.cli.inputs import collected

if TYPE_CHECKING:
    from equipoise.measures import Condition, Fact

RETURNING = ("first", "all")
FAILED = 1  # the exit code where a condition of --fail-if holds
PANEL = "Pipelines"

FailIfOption = Annotated[
    list[str] | None,
    typer.Option(
        help="Exit with code 1 if this holds for any group: 'eod > 0.1', '|eod| > 0.1 and eod.clear', 'tpr[F] < 0.8', 'auroc.low < 0.7', "
        "'findings > 0'; repeat it for more.",
        rich_help_panel=PANEL,
    ),
]


@dataclass(frozen=True)
class HistoryOptions:
    """The history that an audit is added to."""

    append: Annotated[
        Path | None,
        typer.Option(help="Add the audit to this history (.parquet), which `equipoise compare` follows over time.", rich_help_panel=PANEL),
    ] = None
    date: Annotated[
        str | None,
        typer.Option(
            help="Period of --append: a year, quarter, month, week or day, as in 2026, 2026-Q4, 2026-11, 2026-W46 or 2026-11-16.",
            rich_help_panel=PANEL,
        ),
    ] = None
    replace_period: Annotated[
        bool, typer.Option("--replace", help="Replace the period if the history of --append has it.", rich_help_panel=PANEL)
    ] = False
    new_group: Annotated[
        list[str] | None,
        typer.Option(help="Group to accept although it is new to the history of --append; repeat it for more.", rich_help_panel=PANEL),
    ] = None
    earlier: Annotated[
        list[Path] | None,
        typer.Option(
            help="Table of an earlier period with the same --patient column: its patients are left out, so that each is in one period "
            "of the history; repeat it for more. Nothing about patients is stored.",
            rich_help_panel=PANEL,
        ),
    ] = None
    returning: Annotated[
        str,
        typer.Option(
            help="Patients of --earlier: first (only their first period counts) or all (they count again, with a warning).",
            rich_help_panel=PANEL,
        ),
    ] = "first"


def conditions_of(texts: list[str] | None, problems: list[str]) -> list[Condition]:
    """The conditions of --fail-if; those that cannot be read are added to the problems."""
    read: list[Any] = [collected(problems, partial(measures.read_condition, text)) for text in texts or []]
    return [condition for condition in read if condition is not None]


def append_problems(given: HistoryOptions) -> list[str]:
    """Options of a history that do not go together."""
    append = given.append
    if given.returning not in RETURNING:
        return [f"--returning must be {' or '.join(RETURNING)}; got {given.returning!r}"]
    if given.returning != RETURNING[0] and not given.earlier:
        return [f"--returning {given.returning} requires the tables of earlier periods. Add --earlier FILE, or omit --returning."]
    if append is None:
        used = {"--date": given.date is not None, "--replace": given.replace_period, "--new-group": bool(given.new_group)}
        return [f"{option} requires --append FILE. Add it, or omit {option}." for option, is_used in used.items() if is_used]
    if given.date is None:
        return ["--append requires the period of the audit. Add --date, as in --date 2026-11."]
    if append.suffix.lower() not in (".parquet", ".pq"):
        return [f"--append writes Parquet; got {append.name!r}. Use --append {append.with_suffix('.parquet').name}."]
    return []


def exit_if(conditions: Sequence[Condition], facts: Sequence[Fact]) -> None:
    """Ends the command with code 1, and one sentence for each condition that holds or cannot be checked."""
    said = [words for each in conditions if (words := report.condition_words(each, each.check(facts)))]
    for words in said:
        err.print(Text.assemble(("failed: ", "bold red"), report.printable(words)), soft_wrap=True)
    if said:
        raise typer.Exit(FAILED)
