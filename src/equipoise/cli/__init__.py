"""The command line: reads arguments, calls the library and prints. One file per command.

Nothing heavy is imported here: Ctrl-C ends in one line from the first moment on, also while torch and pandas are being imported.
"""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["main", "run"]
STOPPED = 128 + signal.SIGINT  # the exit code of an interruption


def main() -> None:
    """The entry point of the `equipoise` command."""
    try:
        code = run(sys.argv[1:])
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # an interruption during Python's shutdown has no handler
    except KeyboardInterrupt:
        code = STOPPED
    sys.exit(code)


def run(arguments: list[str]) -> int:
    """The exit code of one command: 0 on success, 2 on bad input, 130 after Ctrl-C."""
    if arguments == ["--version"]:  # needs no parser, which takes ten times as long to import as this takes
        from equipoise import __version__

        print(__version__)
        return 0
    with _heard() as heard:
        try:
            from equipoise.cli.app import run as run_command

            code = run_command(arguments)
        except KeyboardInterrupt:
            code = _stopped()
        except BaseException:
            if not heard:
                raise
            code = _stopped()  # some libraries turn an interruption of their import into another error
    return STOPPED if heard and code else code


def _stopped() -> int:
    print("Stopped.", file=sys.stderr)
    return STOPPED


@contextmanager
def _heard() -> Iterator[list[int]]:
    """A list that is not empty once Ctrl-C was pressed. Where it is ignored, as in a background shell, it stays ignored."""
    heard: list[int] = []
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield heard
        return

    def note(number: int, _: object) -> None:
        heard.append(number)
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, note)
    try:
        yield heard
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
