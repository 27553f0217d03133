"""Printing for every command: results on standard output, progress and messages on standard error."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from equipoise import report

if TYPE_CHECKING:
    from equipoise.models import Code

out, err = Console(), Console(stderr=True)

JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON and nothing else.")]
RootOption = Annotated[
    Path | None, typer.Option(help="Folder with one folder per data set.", show_default="EQUIPOISE_DATA, then the user cache")
]


@contextmanager
def bar(what: str, total: int = 100) -> Iterator[Callable[[int, int], None]]:
    """A progress bar on stderr; nothing where stderr is not a terminal."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn  # not needed for help or for bad input

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as progress:
        task = progress.add_task(what, total=total)
        yield lambda done, of: progress.update(task, completed=done, total=of)


@contextmanager
def counting(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """The same bar for work that reports increments."""
    done = 0
    with bar(what, total) as step:

        def more(count: int) -> None:
            nonlocal done
            done += count
            step(done, total)

        yield more


@contextmanager
def notes(*quiet: str) -> Iterator[None]:
    """Prints the library's warnings on stderr, one line each, except those of the loggers in `quiet`, which the command reports itself.

    What a user's network prints while it runs goes there too: only the result belongs on standard output.
    """
    handler = logging.Handler(logging.WARNING)
    handler.addFilter(lambda record: record.name not in quiet)
    handler.emit = lambda record: err.print(  # type: ignore[method-assign]
        Text(f"note: {report.printable(record.getMessage())}", style="yellow"), soft_wrap=True
    )
    logger = logging.getLogger("equipoise")
    logger.addHandler(handler)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        logger.removeHandler(handler)


def say_code(code: Code | None) -> None:
    """Shows on stderr which code is about to run, with its checksum; nothing for a backbone, which is part of Equipoise."""
    if code is not None:
        err.print(Text(f"running {report.printable(str(code))} (SHA-256 {code.sha256})", style="dim"), soft_wrap=True)


def typed(ctx: typer.Context) -> list[str]:
    """The command as it was typed, for the record of a result."""
    return ["equipoise", *(ctx.obj if isinstance(ctx.obj, list) else [])]


_said: list[str] = []


def say_stopped(message: str = "Stopped.") -> None:
    """One line on stderr after Ctrl-C, printed once."""
    if not _said:
        _said.append(message)
        err.print(Text(report.printable(message)), soft_wrap=True)


def forget_stopped() -> None:
    """Lets the next command report an interruption again."""
    _said.clear()
