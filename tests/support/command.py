"""Commands run in this process, as a user types them."""

import io
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from typing import NamedTuple

from equipoise import cli


class Ran(NamedTuple):
    """What a command left: its exit code, standard output and standard error."""

    code: int
    out: str
    err: str


def instead(arguments: Sequence[object], *changed: object) -> list[object]:
    """The arguments with other values for some options, since an option that is given twice is refused.

    >>> instead(["a.csv", "--set", "audit.seed=1", "--json"], "--set", "audit.seed=2")
    ['a.csv', '--json', '--seed', 2]
    """
    options = {argument for argument in changed if str(argument).startswith("--")}
    kept = [
        argument
        for before, argument in zip(["", *arguments], arguments, strict=False)
        if argument not in options and (before not in options or str(argument).startswith("--"))
    ]
    return [*kept, *changed]


def ran(*arguments: object) -> Ran:
    """Runs one command."""
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        code = cli.run([str(a) for a in arguments])
    return Ran(code, out.getvalue(), err.getvalue())
