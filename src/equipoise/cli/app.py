"""The root command and its exit codes. Bad input ends in one message and exit code 2, never in a traceback.

Not part of `__init__`, which handles Ctrl-C while the imports of this file are still running.
"""

from __future__ import annotations

import importlib
import os
import signal
from collections.abc import Callable
from functools import cache
from typing import Annotated

import typer
from rich.text import Text
from typer.main import get_command

from equipoise import __version__, report
from equipoise.cli.commands import App
from equipoise.cli.console import err, forget_stopped, out, say_stopped
from equipoise.errors import EquipoiseError

COMMANDS = {  # by file in this room: the name of its function, or of its app of several commands
    **{name: name for name in ("audit", "debias", "apply", "compare", "report", "demo")},
    "data": "data_app",
    "study": "study_app",
}
ABOUT = """Audit a trained classifier for group bias and repair it after training.

    [bold]Example:[/bold] equipoise audit scores.csv --label y --score p --group sex

    [bold]Then:[/bold] equipoise debias local.csv --images xrays/ --label pneumonia --group sex --reference M --patient patient_id
    --model my_model.py:build --weights net.safetensors --out repaired/

    [bold]Try it without data:[/bold] equipoise demo"""


def command_line(*names: str) -> typer.Typer:
    """The app with these commands, or with all of them. Only their files are imported."""
    app = App(
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
        help=ABOUT,
    )
    for name in names or COMMANDS:
        command = getattr(importlib.import_module(f"equipoise.cli.{name}"), COMMANDS[name])
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name)
        else:
            app.command()(command)
    app.callback(invoke_without_command=True)(_version)
    return app


@cache
def _parser(*names: str) -> Callable[..., None]:
    """The command-line parser, built once per set of commands, since building one takes 30 ms."""
    return get_command(command_line(*names))


def run(arguments: list[str]) -> int:
    """The exit code of one command: 0 on success, 2 on bad input; typer adds 130 for an interruption, reported in one line."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or "RANK" not in os.environ:
        return _run(arguments)
    from equipoise.cli.processes import run_shared  # which imports torch

    try:
        return run_shared(arguments, _run)
    except EquipoiseError as error:
        if os.environ["RANK"] == "0":
            _print_error(str(error))
        return 2


def _run(arguments: list[str]) -> int:
    forget_stopped()
    try:
        names = [name for name in arguments[:1] if name in COMMANDS and name != "demo"]  # the demo runs other commands
        _parser(*names)(arguments, prog_name="equipoise", standalone_mode=True, obj=arguments)  # a command may record its arguments
    except SystemExit as stop:
        if stop.code == 128 + signal.SIGINT:
            say_stopped()
        return stop.code if isinstance(stop.code, int) else (0 if stop.code is None else 1)
    except EquipoiseError as error:
        _print_error(str(error))
        return 2
    except OSError as error:
        _print_error(f"{error.filename or ''}: {error.strerror or error}".lstrip(": "))
        return 2
    return 0


def _print_error(message: str) -> None:
    err.print(Text.assemble(("error: ", "bold red"), report.printable(message)), soft_wrap=True)


def _version(show: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    if show:
        out.print(__version__)
        raise typer.Exit
