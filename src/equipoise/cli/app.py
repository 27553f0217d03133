"""The root command and its exit codes. Bad input ends in one message and exit code 2, never in a traceback.

A command refuses an option that takes one value and was given several, of which the parser would silently use the last; an option that is a
setting of a case is refused with the `--set` that reaches it. Not part of `__init__`, which handles Ctrl-C while this file is imported.
"""

from __future__ import annotations

import importlib
import io
import os
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand
from typer.main import get_command

from equipoise import __version__
from equipoise.cli.console import err, out, say, say_bad
from equipoise.errors import STOPPED, BadInput, EquipoiseError, needing, raise_all

COMMANDS = (
    "init",
    "audit",
    "debias",
    "apply",
    "compare",
    "report",
    "plan",
    "demo",
    "data",
    "study",
)  # files in this room and what they define
COMMAND_GROUPS = ("data", "study")  # commands that have commands of their own
SHARED_COMMANDS = ("debias",)  # commands whose processes share their work, under torchrun
APP_HELP = """Audit a trained classifier for group bias and repair it after training.

    [bold]Example:[/bold] equipoise audit scores.csv --label y --score p --group sex

    [bold]Then:[/bold] equipoise debias local.csv --images xrays/ --label pneumonia --group sex --reference M --patient patient_id
    --model my_model.py:build --weights net.safetensors --out repaired/

    [bold]Try it without data:[/bold] equipoise demo"""


class _Reported(SystemExit):
    """The end of a command whose interruption has been reported."""


class Command(TyperCommand):
    """A command whose options occur once, except for those that are made to be repeated, and which Ctrl-C ends in one line."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not ctx.resilient_parsing:  # completion in a shell parses unfinished commands
            try:
                _, _, parsed = self.make_parser(ctx).parse_args(args=list(args))  # the option of each occurrence, in order
            except Exception as error:
                specification = getattr(self.callback, "specification", None)
                if type(error).__name__ == "NoSuchOption" and specification:  # of click, or of the copy of click in typer
                    from equipoise.cli.options import check_option

                    check_option(str(getattr(error, "option_name", "")), *specification)
                raise
            problems = []
            for option, count in Counter(parsed).items():
                if count > 1 and option.param_type_name == "option" and not (option.multiple or option.is_eager):
                    problems.append(f"{'/'.join([*option.opts, *option.secondary_opts])} was given {count} times. Give it once.")
            raise_all(problems)
        return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        if any("--method" in option.opts for option in self.params):  # named when they are asked for, since they have to be imported
            from equipoise.measures import MEASURES
            from equipoise.methods import METHODS

            self.epilog = f"Methods: {', '.join(METHODS)}. Measures: {', '.join(MEASURES)}, and sums such as tpr-fpr."
        super().format_help(ctx, formatter)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as stop:  # a command may say what was done until then
            say(str(stop) or "Stopped.", console=err)
            raise _Reported(STOPPED) from None


@cache
def command_line(*names: str) -> Callable[..., None]:
    """The parser of these commands, or of all of them. Only their files are imported; building one takes 30 ms."""
    app = typer.Typer(
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
        help=APP_HELP,
    )
    for name in names or COMMANDS:
        module = importlib.import_module(f"equipoise.cli.{name}")
        if name in COMMAND_GROUPS:
            app.add_typer(getattr(module, name), name=name)
        else:
            app.command(name, cls=Command)(getattr(module, f"{name}_command"))
    app.callback(invoke_without_command=True)(_version)
    return get_command(app)


def run_command(arguments: list[str]) -> int:
    """The exit code of one command: 0 on success, 2 on bad input, 130 after Ctrl-C."""
    try:
        parsed = _without_plugins(arguments)
        own = set(parsed[:1]) & set(COMMANDS) - {"demo"}  # the demo runs other commands
        with needing("this command"):
            command_line(*own)(parsed, prog_name="equipoise", standalone_mode=True, obj=arguments)  # a command may record its arguments
    except SystemExit as stop:
        if stop.code == STOPPED and not isinstance(stop, _Reported):  # by typer, while it read the arguments
            say("Stopped.", console=err)
        return stop.code if isinstance(stop.code, int) else (0 if stop.code is None else 1)
    except EquipoiseError as error:
        say_bad("error", str(error))
        return 2
    except OSError as error:
        say_bad("error", f"{error.filename or ''}: {error.strerror or error}".lstrip(": "))
        return 2
    return 0


def run_shared(arguments: list[str]) -> int:
    """The exit code of a command in several processes under torchrun, which share the work: the same in all of them.

    Only the first one prints and writes; another prints only an error that is its own.
    """
    from equipoise.models import join_processes, leave_processes, process_count  # which imports torch

    name = next((word for word in arguments if word in COMMANDS), "")
    try:
        if name not in SHARED_COMMANDS or {"-h", "--help"} & set(arguments):
            raise BadInput(
                f"equipoise {name} runs in one process, and {process_count()} were started. Start it without torchrun; of the commands, "
                f"{' and '.join(SHARED_COMMANDS)} can share its work between processes."
            )
        own = join_processes()
    except EquipoiseError as error:
        if os.environ["RANK"] == "0":
            say_bad("error", str(error))
        return 2
    printed = io.StringIO()
    try:
        with redirect_stdout(sys.stdout if own == 0 else io.StringIO()), redirect_stderr(sys.stderr if own == 0 else printed):
            code = run_command(arguments)
    except Exception:
        agreed, failed = leave_processes(None)
        if failed is None:
            raise
        return agreed  # the connection to a process that has failed was lost; that one prints the reason
    agreed, failed = leave_processes(code)
    if own and own == failed:
        sys.stderr.write(f"process {own + 1} of {process_count()}: {printed.getvalue()}")
    return agreed


def _without_plugins(arguments: list[str]) -> list[str]:
    """The arguments without `--plugin FILE`, which may stand anywhere; the files are imported before names are read."""
    if not any(word.partition("=")[0] == "--plugin" for word in arguments):
        return arguments
    from equipoise.plugins import load_plugin

    kept, words = list[str](), iter(arguments)
    for word in words:
        option, _, file = word.partition("=")
        if option != "--plugin":
            kept.append(word)
        elif not (file := file or next(words, "")):
            raise BadInput("--plugin takes a Python file, as in --plugin my_method.py")
        else:
            load_plugin(file)
    return kept


def _version(
    show: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
    plugin: Annotated[  # noqa: ARG001 (taken out before commands are parsed)
        list[Path] | None,
        typer.Option(metavar="FILE.py", help="Also import this file, which adds a method, measure, data set or panel; for every command."),
    ] = None,
) -> None:
    if show:
        out.print(__version__)
        raise typer.Exit
