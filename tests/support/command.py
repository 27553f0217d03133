"""Commands run in this process, as a user types them."""

import io
import itertools
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
    ['a.csv', '--json', '--set', 'audit.seed=2']
    """
    given = {_option(pair) for pair in itertools.pairwise([*changed, ""]) if str(pair[0]).startswith("--")}
    kept: list[object] = []
    left_out = False
    for pair in itertools.pairwise([*arguments, ""]):
        if str(pair[0]).startswith("--"):
            left_out = _option(pair) in given
        if not left_out:
            kept.append(pair[0])
        elif not str(pair[0]).startswith("--"):
            left_out = False
    return [*kept, *changed]


def _option(pair: tuple[object, object]) -> str:
    """The name of an option; of `--set`, with the setting."""
    return f"--set {str(pair[1]).partition('=')[0]}" if pair[0] == "--set" else str(pair[0])


def ran(*arguments: object) -> Ran:
    """Runs one command."""
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        code = cli.run([str(a) for a in arguments])
    return Ran(code, out.getvalue(), err.getvalue())
