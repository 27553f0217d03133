"""What the commands share: printing (results on standard output, the rest on standard error), and the files that they read and write."""

from __future__ import annotations

import glob
import json
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from rich.console import Console
from rich.text import Text

from equipoise import measures, report
from equipoise.disk import check_writable, is_database, no_such_file
from equipoise.errors import collecting

if TYPE_CHECKING:
    from equipoise.measures import Condition, Fact
    from equipoise.models import Code

out, err = Console(), Console(stderr=True)
ENDINGS = {"--report": (".html", ".htm"), "--pdf": (".pdf",), "--out": (".json",)}
NOT_JSON = (".html", ".htm", ".pdf", ".csv", ".tsv", ".xlsx", ".parquet", ".png", ".svg", ".md", ".docx")  # refused by --out of a JSON

JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON and nothing else.")]
PdfOption = Annotated[
    Path | None,
    typer.Option(
        "--pdf", metavar="FILE.pdf", help="Also write a short report as PDF to this file; needs Chromium, Chrome, Edge or WeasyPrint."
    ),
]
SaveOption = Annotated[Path | None, typer.Option("--out", metavar="FILE.json", help="Also write the result as JSON to this file.")]
RootOption = Annotated[
    Path | None, typer.Option(help="Folder with one folder per data set.", show_default="EQUIPOISE_DATA, then the user cache")
]
FailIfOption = Annotated[
    list[str] | None,
    typer.Option(
        help="Exit with code 1 if this holds for any group: 'eod > 0.1', '|eod| > 0.1 and eod.clear', 'tpr[F] < 0.8', 'auroc.low < 0.7', "
        "'findings > 0', of a repair 'harm' or 'unclear'; repeat it for more.",
        rich_help_panel="Pipelines",
    ),
]


def say(text: str, style: str = "", console: Console = out) -> None:
    """Prints text without markup or wrapping, with control characters written out, since it may contain names from files."""
    console.print(Text(report.printable(text), style=style), soft_wrap=True)


def say_bad(what: str, text: str) -> None:
    """Prints an error or a failure on stderr."""
    err.print(Text.assemble((f"{what}: ", "bold red"), report.printable(text)), soft_wrap=True)


def say_places(places: Mapping[str, Path | None]) -> None:
    """Prints where each result was written."""
    for what, place in places.items():
        if place:
            say(f"{what}: {place}")


def say_code(code: Code | None) -> None:
    """Shows on stderr which code is about to run, with its checksum. A backbone has none, since it is part of Equipoise."""
    if code is not None:
        say(f"running {code} (SHA-256 {code.sha256})", "dim", err)


def to_json(document: object) -> str:
    """The document as indented JSON; NaN is an error, since JSON has none."""
    return json.dumps(document, indent=2, allow_nan=False)


@contextmanager
def bar(what: str, total: int = 100) -> Iterator[Callable[..., None]]:
    """A progress bar on stderr, if that is a terminal. Yields a function of the work done, the total and, if it changes, what is done."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn  # not needed for help or for bad input

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as progress:
        task = progress.add_task(what, total=total)
        yield lambda done, of, now=what: progress.update(task, completed=done, total=of, description=now)


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


def typed(ctx: typer.Context) -> list[str]:
    """The command as it was typed, for the provenance of a result."""
    return ["equipoise", *(ctx.obj or ())]


def place_problems(places: Mapping[str, Path | None], save: Path | None = None, folder: Path | None = None) -> list[str]:
    """One problem for each of --report, --pdf, a JSON --out and a folder --out whose name has the extension of another format."""
    problems = []
    if folder is not None and folder.suffix.lower() in (*NOT_JSON, ".json") and not folder.is_dir():
        problems.append(f"--out is the folder of the result; {folder.name!r} names a file. Use --out {folder.with_suffix('')}/.")
    for option, place in places.items():
        if place is not None and place.suffix.lower() not in ENDINGS[option]:
            right = place.with_suffix(ENDINGS[option][0])
            problems.append(f"{option} writes {right.suffix}; got {place.name!r}. Use {option} {right.name}.")
    if save is not None and save.suffix.lower() in NOT_JSON:
        page = next((option for option, endings in ENDINGS.items() if save.suffix.lower() in endings), None)
        instead = f"{page} {save.name}" if page else "--set report.figures=FOLDER for figures (SVG)"
        problems.append(f"--out writes JSON; {save.name!r} is another format. Use --out {save.with_suffix('.json').name}, or {instead}.")
    return problems


def print_queries() -> None:
    """Prints each query to a database to stderr."""
    queries = logging.getLogger("equipoise.sql")
    queries.setLevel(logging.INFO)
    queries.addHandler(logging.StreamHandler(sys.stderr))
    queries.propagate = False


def check_paths(*read: Path | None, write: Iterable[Path | None] = (), pdf: Path | None = None) -> None:
    """Raises an error before any work if a file to read does not exist, if one cannot be written, or if no program can print the PDF."""
    for path in read:
        if path is not None and not path.exists() and not is_database(path) and not glob.has_magic(str(path)):
            raise no_such_file(path)
    for place in (*write, pdf):
        if place:
            check_writable(place)
    if pdf:
        report.check_printer()


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


def exit_failed(failures: Sequence[str]) -> NoReturn:
    """Prints the failures and ends the command with exit code 1."""
    for words in failures:
        say_bad("failed", words)
    raise typer.Exit(1)
