"""The option --fail-if: conditions on a result that set the exit code, for pipelines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from equipoise import measures, report
from equipoise.cli.console import err
from equipoise.cli.options import pipeline_option
from equipoise.errors import collecting

if TYPE_CHECKING:
    from equipoise.measures import Condition, Fact

FAILED = 1  # the exit code if a condition holds

FailIfOption = Annotated[
    list[str] | None,
    pipeline_option(
        help="Exit with code 1 if this holds for any group: 'eod > 0.1', '|eod| > 0.1 and eod.clear', 'tpr[F] < 0.8', 'auroc.low < 0.7', "
        "'findings > 0'; repeat it for more."
    ),
]


def parse_conditions(texts: list[str] | None, problems: list[str]) -> list[Condition]:
    """The conditions of --fail-if. Those that cannot be parsed are added to `problems`."""
    conditions: list[Condition] = []
    for text in texts or []:
        with collecting(problems):
            conditions.append(measures.read_condition(text))
    return conditions


def failures_of(conditions: Sequence[Condition], facts: Sequence[Fact]) -> list[str]:
    """One sentence per condition that holds or cannot be checked. Raises `BadInput` for a condition about something that there is not.

    Called before anything is written: a misspelt condition must not leave a period in a history.
    """
    return [words for condition in conditions if (words := report.condition_words(condition, condition.check(facts)))]


def exit_if(failures: Sequence[str]) -> None:
    """Prints the failures and ends the command with exit code 1, if there are any."""
    for words in failures:
        err.print(Text.assemble(("failed: ", "bold red"), report.printable(words)), soft_wrap=True)
    if failures:
        raise typer.Exit(FAILED)
