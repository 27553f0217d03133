"""What every command prints with: standard output for results, standard error for progress and complaints."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

out, err = Console(), Console(stderr=True)

JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON and nothing else.")]
RootOption = Annotated[
    Path | None, typer.Option(help="Folder with one folder a data set.", show_default="EQUIPOISE_DATA, then the user's cache")
]


@contextmanager
def bar(what: str, total: int = 100) -> Iterator[Callable[[int, int], None]]:
    """A progress bar on stderr, silent where that is not a terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as progress:
        task = progress.add_task(what, total=total)
        yield lambda done, of: progress.update(task, completed=done, total=of)
