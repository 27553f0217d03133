"""Commands run in this process, as a user types them."""

import io
from contextlib import redirect_stderr, redirect_stdout
from typing import NamedTuple

from equipoise import cli


class Ran(NamedTuple):
    """What a command left: its exit code, standard output and standard error."""

    code: int
    out: str
    err: str


def ran(*arguments: object) -> Ran:
    """Runs one command."""
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        code = cli.run([str(a) for a in arguments])
    return Ran(code, out.getvalue(), err.getvalue())
