"""Worker processes for work that Python's global lock would let threads do only one at a time.

Pillow releases the lock while it decodes, but opening a small image takes about as long, so 16 threads are hardly faster than two. A
process forked from one with threads or a GPU may hang, and one started by multiprocessing runs the user's script again. These workers are
started from the interpreter's command line, import none of the user's code, and end when their pipe is closed.
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

Result = TypeVar("Result")
Worker = subprocess.Popen[bytes]
COMMAND = "from equipoise.data.processes import serve; serve()"
log = logging.getLogger(__name__)


class Gone(Exception):
    """A worker process could not be started, or ended before it answered."""


class Processes:
    """Worker processes that call functions of importable modules, one for each concurrent call. They end with the block."""

    def __init__(self) -> None:
        self._all: list[Worker] = []
        self._idle: list[Worker] = []
        self._failed = False

    def __enter__(self) -> "Processes":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for worker in self._all:
            with suppress(OSError):
                _pipes(worker)[0].close()
            if kind is not None:
                worker.kill()
        for worker in self._all:
            worker.wait()
            _pipes(worker)[1].close()

    def call(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Returns or raises what the function does in a worker process. Raises `Gone` once any worker has ended without an answer."""
        if self._failed:
            raise Gone
        try:
            try:
                worker = self._idle.pop()
            except IndexError:
                worker = _start_worker()
                self._all.append(worker)
            requests, answers = _pipes(worker)
            pickle.dump((function, arguments), requests)
            requests.flush()
            succeeded, answer = pickle.load(answers)
        except (OSError, EOFError, pickle.PickleError) as error:
            self._failed = True
            log.info("a process of this interpreter could not be used (%s); its work is done by threads", first_line(error))
            raise Gone from error
        self._idle.append(worker)
        if not succeeded:
            raise answer
        result: Result = answer
        return result


def _start_worker() -> Worker:
    if not sys.executable or getattr(sys, "frozen", False):
        raise OSError("there is no interpreter to start")
    path = os.pathsep.join(folder or str(Path.cwd()) for folder in sys.path)
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-P", "-c", COMMAND]  # -P: import no module from the current folder
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment)


def _pipes(worker: Worker) -> tuple[Any, Any]:
    """The pipe for requests and the pipe for answers."""
    assert worker.stdin is not None
    assert worker.stdout is not None
    return worker.stdin, worker.stdout


def serve() -> None:
    """The loop of a worker process: calls each function that it is sent and sends back the result or error, until the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of a terminal; the caller ends this one
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # keeps the output of libraries out of the pipe
    with requests, answers:
        while True:
            try:
                function, arguments = pickle.load(requests)
            except EOFError:
                return
            try:
                answer = True, function(*arguments)
            except Exception as error:
                answer = False, error
            answers.write(pickle.dumps(answer))
            answers.flush()
