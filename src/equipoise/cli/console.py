"""Printing for every command: results on standard output, progress and messages on standard error."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Iterator, Mapping
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


def say(text: str, style: str = "", console: Console = out) -> None:
    """Prints text without markup or wrapping, with control characters written out, since it may contain names from files."""
    console.print(Text(report.printable(text), style=style), soft_wrap=True)


def say_places(places: Mapping[str, Path | None]) -> None:
    """Prints where each result was written."""
    for what, place in places.items():
        if place:
            say(f"{what}: {place}")


def to_json(document: object) -> str:
    """The document as indented JSON; NaN is an error, since JSON has none."""
    return json.dumps(document, indent=2, allow_nan=False)


@contextmanager
def bar(what: str, total: int = 100) -> Iterator[Callable[[int, int], None]]:
    """A progress bar on stderr, if that is a terminal. Yields a function of the work done and the total."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn  # not needed for help or for bad input

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as progress:
        task = progress.add_task(what, total=total)
        yield lambda done, of: progress.update(task, completed=done, total=of)


@contextmanager
def notes(*quiet: str) -> Iterator[None]:
    """Prints the library's warnings on stderr, each once, except those of the loggers in `quiet`, which the command reports itself.

    Whatever a user's network prints is redirected to stderr too: only the result belongs on standard output.
    """
    handler = logging.Handler(logging.WARNING)
    printed: set[str] = set()  # a table of several labels is read for each of them

    def emit(record: logging.LogRecord) -> None:
        if (text := record.getMessage()) not in printed:
            printed.add(text)
            say(f"note: {text}", "yellow", err)

    handler.addFilter(lambda record: record.name not in quiet)
    handler.emit = emit  # type: ignore[method-assign]
    logger = logging.getLogger("equipoise")
    logger.addHandler(handler)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        logger.removeHandler(handler)


def say_code(code: Code | None) -> None:
    """Shows on stderr which code is about to run, with its checksum. A backbone has none, since it is part of Equipoise."""
    if code is not None:
        say(f"running {code} (SHA-256 {code.sha256})", "dim", err)


def typed(ctx: typer.Context) -> list[str]:
    """The command as it was typed, for the provenance of a result."""
    return ["equipoise", *(ctx.obj if isinstance(ctx.obj, list) else [])]


_stop_messages: list[str] = []


def say_stopped(message: str = "Stopped.") -> None:
    """Prints one line on stderr after Ctrl-C; repeated calls print nothing."""
    if not _stop_messages:
        _stop_messages.append(message)
        say(message, console=err)


def forget_stopped() -> None:
    """Lets the next command report an interruption again."""
    _stop_messages.clear()
