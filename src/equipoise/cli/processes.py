"""A command in several processes, under torchrun: they share the work, and only the first one prints and writes."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout

from equipoise.errors import BadInput
from equipoise.models import join_processes, launched, leave_processes

SHARED = ("debias",)  # commands whose processes share their work
Run = Callable[[list[str]], int]


def run_shared(arguments: list[str], run: Run) -> int:
    """The exit code of a command, the same in all processes. A process other than the first prints only an error that is its own."""
    name = next((word for word in arguments if not word.startswith("-")), "")
    if name not in SHARED or {"-h", "--help"} & set(arguments):
        raise BadInput(
            f"equipoise {name} runs in one process, and {launched()} were started. Start it without torchrun; of the commands, "
            f"{' and '.join(SHARED)} can share its work between processes."
        )
    printed, own = io.StringIO(), join_processes()
    try:
        if own == 0:
            code = run(arguments)
        else:
            with redirect_stdout(io.StringIO()), redirect_stderr(printed):
                code = run(arguments)
    except Exception:
        agreed, failed = leave_processes(None)
        if failed is None:
            raise
        return agreed  # the connection to a process that has failed was lost; that one prints the reason
    agreed, failed = leave_processes(code)
    if own and own == failed:
        sys.stderr.write(f"process {own + 1} of {launched()}: {printed.getvalue()}")
    return agreed
