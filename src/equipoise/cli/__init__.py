"""The command line: reads arguments, calls the library and prints. One file per command.

Nothing heavy is imported here, so that Ctrl-C prints one line from the start, also while torch and pandas are being imported.
"""

import gc
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from equipoise.errors import STOPPED

__all__ = ["main", "run"]


def main() -> None:
    """The entry point of the `equipoise` command."""
    try:
        code = run(sys.argv[1:])
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # no traceback from an interruption during Python's shutdown
    except KeyboardInterrupt:
        code = STOPPED
    if "duckdb" not in sys.modules:  # whose objects must be gone at the end
        gc.freeze()  # else the end of Python goes through every object for garbage, which takes a tenth of a small audit
    sys.exit(code)


def run(arguments: list[str]) -> int:
    """The exit code of one command: 0 on success, 2 on bad input, 130 after Ctrl-C."""
    if arguments == ["--version"]:  # without the parser, whose import takes ten times as long
        from equipoise import __version__

        print(__version__)
        return 0
    with _recorded_interrupts() as interrupts:
        try:
            from equipoise.cli import app

            shared = "RANK" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1
            code = app.run_shared(arguments) if shared else app.run_command(arguments)
        except BaseException as error:
            # Some libraries turn an interruption of their import into another error.
            if not (interrupts or isinstance(error, KeyboardInterrupt)):
                raise
            print("Stopped.", file=sys.stderr)
            code = STOPPED
    return STOPPED if interrupts and code else code


@contextmanager
def _recorded_interrupts() -> Iterator[list[int]]:
    """A list that is not empty once Ctrl-C was pressed. If interrupts are ignored, as in a background shell, they stay ignored."""
    interrupts: list[int] = []
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield interrupts
        return

    def record(number: int, _: object) -> None:
        interrupts.append(number)
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, record)
    try:
        yield interrupts
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
