"""Runs tasks in this process, in several processes on this machine, or on a Ray cluster. All of them call `attempt`.

A runner takes tasks and returns outcomes in any order. The death of a worker is reported in the outcome, not raised.

Processes are not left to concurrent.futures, where a worker that dies fails every running task of its pool. One pool per worker with the
same guarantees (which task died and how, no orphans, Ctrl-C only in the parent, nothing imported from the current folder) was as long and
needed private attributes of the pool.
"""

import importlib
import logging
import multiprocessing
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Protocol

import torch

from equipoise.data import uninterrupted
from equipoise.errors import BadInput, MissingExtra, first_line, pick
from equipoise.studies.plan import Outcome, Work
from equipoise.studies.worker import attempt

RUNNERS = ("serial", "processes", "ray")
RETRIES = 3  # by Ray, before the worker of a task counts as dead
USABLE = 0.94  # share of the memory of a GPU for tensors; each process needs some for itself


class Runner(Protocol):
    """Runs at most `slots` tasks at a time."""

    @property
    def slots(self) -> int: ...

    @property
    def local(self) -> bool:
        """Whether workers can read the files of this machine."""

    def submit(self, work: Work, cohort: bytes | None, trained: bytes | Path | None) -> None:
        """Starts a task."""

    def next(self) -> tuple[Work, Outcome]:
        """Waits for the next task to end, and returns it with its outcome."""

    def close(self) -> None:
        """Ends every worker, busy or idle."""


@contextmanager
def started_runner(name: str, workers: int | None = None, address: str | None = None) -> Iterator[Runner]:
    """The runner with this name. Its workers are stopped at the end of the block, also after Ctrl-C."""
    pick("runner", name, RUNNERS)
    if workers is not None and workers < 1:
        raise BadInput(f"workers must be at least 1; got {workers}")
    if address is not None and name != "ray":
        raise BadInput(f"expected no address with the runner {name!r}; got {address!r}. Use --runner ray, or leave it out.")
    runner: Runner = Serial() if name == "serial" else Processes(workers) if name == "processes" else OnRay(workers, address)
    try:
        yield runner
    finally:
        runner.close()


def cores() -> int:
    """The number of processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Serial:
    """One task after another in this process."""

    slots = 1
    local = True

    def __init__(self) -> None:
        self._queue: list[tuple[Work, bytes | None, bytes | Path | None]] = []

    def submit(self, work: Work, cohort: bytes | None, trained: bytes | Path | None) -> None:
        self._queue.append((work, cohort, trained))

    def next(self) -> tuple[Work, Outcome]:
        work, cohort, trained = self._queue.pop(0)
        return work, attempt(work, cohort, trained)

    def close(self) -> None:
        self._queue.clear()


@dataclass(frozen=True, eq=False)
class _Worker:
    process: BaseProcess
    pipe: "Connection[Any, Any]"


class Processes:
    """Spawned processes with one compute thread each. They end when their parent ends, however it ends."""

    local = True

    def __init__(self, workers: int | None) -> None:
        self.slots = workers or cores()
        self._idle: list[_Worker] = []
        self._busy: dict[_Worker, Work] = {}

    def submit(self, work: Work, cohort: bytes | None, trained: bytes | Path | None) -> None:
        worker = self._idle.pop() if self._idle else self._start()
        self._busy[worker] = work
        with suppress(BrokenPipeError, ConnectionResetError):  # it died while idle; `next` reports it
            worker.pipe.send((work, cohort, trained))

    def next(self) -> tuple[Work, Outcome]:
        ready: Any = wait([worker.pipe for worker in self._busy])[0]
        worker = next(w for w in self._busy if w.pipe is ready)
        work = self._busy.pop(worker)
        try:
            outcome = worker.pipe.recv()
        except (EOFError, ConnectionResetError):
            worker.process.join()
            worker.pipe.close()
            return work, Outcome(problem=f"its process ended with exit code {worker.process.exitcode}", died=True)
        if outcome.content is None:  # the failure may have left the GPU in an unusable state for this process
            self._stop(worker)
        else:
            self._idle.append(worker)
        return work, outcome

    def close(self) -> None:
        for worker in (*self._idle, *self._busy):
            self._stop(worker)
        self._idle.clear()
        self._busy.clear()

    @staticmethod
    def _stop(worker: _Worker) -> None:
        worker.process.kill()
        worker.process.join()
        worker.pipe.close()

    def _start(self) -> _Worker:
        context = multiprocessing.get_context("spawn")
        parent_end, worker_end = context.Pipe()
        process = context.Process(target=_worker_loop, args=(worker_end, self.slots), daemon=True)
        with uninterrupted(), _safe_path():  # a terminal sends Ctrl-C to every process; only the parent handles it
            process.start()
        worker_end.close()
        return _Worker(process, parent_end)


@contextmanager
def _safe_path() -> Iterator[None]:
    """Sets PYTHONSAFEPATH for new processes, so that they import nothing from the current folder before they get the parent's path."""
    before = os.environ.get("PYTHONSAFEPATH")
    os.environ["PYTHONSAFEPATH"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONSAFEPATH"]
        else:
            os.environ["PYTHONSAFEPATH"] = before


def _worker_loop(pipe: "Connection[Any, Any]", processes: int) -> None:
    """The main loop of a worker: receives tasks and sends outcomes until the parent closes the pipe or ends."""
    threading.Thread(target=_die_with_parent, daemon=True).start()
    if torch.cuda.is_available():  # PyTorch caches freed memory, which would be unavailable to the other processes
        torch.cuda.set_per_process_memory_fraction(USABLE / processes)
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            pipe.send(attempt(*pipe.recv()))


def _die_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


class OnRay:
    """Tasks on the Ray cluster at `address` ("auto" for the one this machine belongs to), or on a local cluster started for this run.

    Cohorts and networks are sent with the tasks, so the machines of a cluster need Equipoise but not the data.
    """

    local = False

    def __init__(self, workers: int | None, address: str | None) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no usage statistics are sent
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        try:
            ray: Any = importlib.import_module("ray")
        except ImportError as error:
            raise MissingExtra("ray", "ray", "the runner 'ray'") from error
        self._ray = ray
        self._started_here = not ray.is_initialized()
        if self._started_here:
            try:
                local: dict[str, Any] = {} if address else {"num_cpus": workers or cores(), "include_dashboard": False}
                ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **local)
            except (ConnectionError, ValueError, RuntimeError) as error:
                raise BadInput(
                    f"no Ray cluster at {address!r}: {first_line(error)}. Start one, or leave --address out for a local one."
                ) from error
        self.slots = workers or max(1, int(ray.cluster_resources().get("CPU", 1)))
        self._attempt = ray.remote(num_cpus=1, max_retries=RETRIES)(attempt)
        self._sent: dict[str, Any] = {}  # references to cohorts by name of data; each is sent once
        self._running: dict[Any, Work] = {}

    def submit(self, work: Work, cohort: bytes | None, trained: bytes | Path | None) -> None:
        if cohort is not None and work.task.data not in self._sent:
            self._sent[work.task.data] = self._ray.put(cohort)
        self._running[self._attempt.remote(work, self._sent.get(work.task.data), trained)] = work

    def next(self) -> tuple[Work, Outcome]:
        ready = self._ray.wait(list(self._running), num_returns=1)[0][0]
        work = self._running.pop(ready)
        try:
            return work, self._ray.get(ready)
        except self._ray.exceptions.RayError as error:
            return work, Outcome(problem=f"its Ray worker ended ({first_line(error)})", died=True)

    def close(self) -> None:
        for reference in self._running:
            self._ray.cancel(reference, force=True)
        self._running.clear()
        if self._started_here:
            self._ray.shutdown()
