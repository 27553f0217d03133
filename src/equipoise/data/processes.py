"""Other processes of this interpreter, for work of which Python's lock would let one thread do a part at a time.

Pillow frees the lock while it decodes, but opening a small image takes about as long, so that 16 threads decode hardly more than two. A
process that was forked from one with threads or a GPU may hang, and one that multiprocessing starts runs the user's script again; these
are started from the command line of the interpreter, import nothing of the user's, and end when the pipe to them is closed.
"""

import logging
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from equipoise.errors import first_line

Found = TypeVar("Found")
COMMAND = "from equipoise.data.processes import serve; serve()"
log = logging.getLogger(__name__)


class Gone(Exception):
    """A process could not be started, or ended before it answered."""


class Processes:
    """Processes that call functions of importable modules, as many as there are calls at a time; they end with the block."""

    def __init__(self) -> None:
        self._all: list[subprocess.Popen[bytes]] = []
        self._idle: list[subprocess.Popen[bytes]] = []
        self._gone = False

    def __enter__(self) -> "Processes":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for process in self._all:
            with suppress(OSError):
                _pipes(process)[0].close()
            if kind is not None:
                process.kill()
        for process in self._all:
            process.wait()
            _pipes(process)[1].close()

    def call(self, function: Callable[..., Found], *given: Any) -> Found:
        """What the function returns in another process, or raises. `Gone` where that ended without an answer, and from then on."""
        if self._gone:
            raise Gone
        try:
            process = self._free()
            there, back = _pipes(process)
            pickle.dump((function, given), there)
            there.flush()
            fine, found = pickle.load(back)
        except (OSError, EOFError, pickle.PickleError) as error:
            self._gone = True
            log.info("a process of this interpreter could not be used (%s); its work is done by threads", first_line(error))
            raise Gone from error
        self._idle.append(process)
        if not fine:
            raise found
        answer: Found = found
        return answer

    def _free(self) -> "subprocess.Popen[bytes]":
        try:
            return self._idle.pop()
        except IndexError:
            self._all.append(process := _started())
            return process


def _started() -> "subprocess.Popen[bytes]":
    if not sys.executable or getattr(sys, "frozen", False):
        raise OSError("there is no interpreter to start")
    path = os.pathsep.join(place or str(Path.cwd()) for place in sys.path)
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-P", "-c", COMMAND]  # -P: no module from the folder that it happens to start in
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment)


def _pipes(process: "subprocess.Popen[bytes]") -> tuple[Any, Any]:
    assert process.stdin is not None
    assert process.stdout is not None
    return process.stdin, process.stdout


def serve() -> None:
    """The loop of such a process: calls what it is sent, and sends back what came of it, until the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of a terminal; the caller ends this one
    there, back = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not get into the pipe
    with there, back:
        while True:
            try:
                function, given = pickle.load(there)
            except EOFError:
                return
            try:
                answer = True, function(*given)
            except Exception as error:
                answer = False, error
            back.write(pickle.dumps(answer))
            back.flush()
