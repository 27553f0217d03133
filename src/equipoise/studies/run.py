"""Runs the unfinished tasks of a study: trainings before the methods that need them, the most expensive first.

A runner takes tasks and returns their results in any order: in this process, in several processes on this machine, or on a Ray cluster. All
of them call `attempt_task`. The death of a worker is reported in the result, not raised.

Processes are not left to concurrent.futures, where a worker that dies fails every running task of its pool. One pool per worker with the
same guarantees (which task died and how, no orphans, Ctrl-C only in the parent, nothing imported from the current folder) was as long and
needed private attributes of the pool.
"""

import importlib
import logging
import multiprocessing
import os
import pickle
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, TypeAlias

import torch

from equipoise.data import Images
from equipoise.disk import uninterrupted
from equipoise.errors import BadInput, EquipoiseError, MissingExtra, first_line, pick
from equipoise.models import computing_on
from equipoise.plugins import PLUGIN_FILES
from equipoise.studies.networks import MLP
from equipoise.studies.plan import StudyPlan, StudyTask, Task, TaskResult, task_cost, tasks_of
from equipoise.studies.results import StudyFolder, finished, locked_folder
from equipoise.studies.worker import attempt_task

log = logging.getLogger(__name__)
MAX_LOST_WORKERS = 3  # the run stops after this many workers have died in one task
IMAGE_WORKER_BYTES = 10 * 2**30  # GPU memory of a worker on images: training VGG-16, and rows kept there
TABLE_WORKER_BYTES = 2 * 2**30  # on tables: a CUDA context, and 30,000 rows of 501 numbers
RUNNERS = ("serial", "processes", "ray")
RAY_RETRIES = 3  # by Ray, before the worker of a task counts as dead
USABLE_MEMORY = 0.94  # share of the memory of a GPU for tensors; each process needs some for itself


class TasksFailed(EquipoiseError):
    """Some tasks of a study failed; the results of all others are stored."""


@dataclass(frozen=True)
class Event:
    """The progress of a run."""

    done: int  # finished tasks, including those of earlier runs
    total: int
    share: float  # of the work of this run that is done, from 0 to 1
    seconds: float  # since this run began
    running: tuple[str, ...]
    note: str = ""

    @property
    def left(self) -> float | None:
        """The estimated seconds left; None before any task is finished."""
        return self.seconds * (1 - self.share) / self.share if self.share else None


OnEvent = Callable[[Event], None]
# Runs at most `slots` tasks at a time: `submit` starts one, `next` waits for the next one to end, `close` ends every worker, busy or idle.
Runner: TypeAlias = "Serial | Processes | OnRay"
Pipe: TypeAlias = "Connection[Any, Any]"


def run_study(
    plan: StudyPlan,
    folder: str | Path,
    *,
    runner: str = "processes",
    workers: int | None = None,
    address: str | None = None,
    root: str | Path | None = None,
    device: str | None = None,
    progress: OnEvent | None = None,
) -> StudyFolder:
    """Runs a study and returns its folder. Finished tasks are not run again; the rows do not depend on the runner.

    - `plan`: from `read_plan` or `make_plan`, perhaps narrowed; a folder takes any part of one study, one part after another.
    - `folder`: for the results; new, empty, or with an earlier run of the same study, which is resumed.
    - `runner`, `workers`: "serial" runs in this process, "processes" in so many, "ray" so many tasks at a time. By default one per core,
      and for images as many as fit the memory of the GPU.
    - `address`: of a Ray cluster; by default one is started on this machine.
    - `root`: the folder of the data sets, as in `load`.
    - `device`: where networks are computed, such as cpu or cuda; by default, tables on the CPU and images on a GPU if there is one. Rows
      computed on a GPU differ from those computed on a CPU, since training amplifies rounding differences; each row names its device.
    - `progress`: is given an `Event` whenever a task begins or ends.

    Raises `TasksFailed` at the end if tasks failed: all others are stored.
    """
    with computing_on(device):
        pass  # raises an error early if there is no such device
    with locked_folder(folder, plan, root) as place:
        done = finished(place)
        methods = [task for task in tasks_of(plan) if task.method and task not in done]
        trainings = dict.fromkeys(task.training for task in methods)  # only those that a method still needs
        pending = [task for task in trainings if task not in done] + methods
        if not plan.keep_networks:  # an earlier run may have stopped just before deleting them
            for training in {task for task in done if not task.method} - {task.training for task in pending}:
                place.drop(training)
        if pending:
            for network in dict.fromkeys(plan.network(data.name) for data in plan.data):
                network.fetch()  # once, instead of in every worker
            with started_runner(runner, workers or _workers_on_gpu(plan, device), address) as started:
                _Run(place, pending, root, progress, device).run_all(started)
        elif progress:
            total = len(tasks_of(plan))
            progress(Event(total, total, 1.0, 0.0, ()))
        return place


def _workers_on_gpu(plan: StudyPlan, device: str | None) -> int | None:
    """The number of workers that fit into the memory of the GPU; None if networks are not computed on one."""
    tables = all(plan.network(data.name).model == MLP for data in plan.data)
    with computing_on(device) as requested:
        pass
    if not torch.cuda.is_available() or (requested is None and tables) or (requested is not None and requested.type != "cuda"):
        return None
    memory = torch.cuda.get_device_properties(requested or 0).total_memory
    return max(1, min(cores(), memory // (TABLE_WORKER_BYTES if tables else IMAGE_WORKER_BYTES)))


@dataclass
class _Run:
    """The task queue of a run, and its state."""

    folder: StudyFolder
    pending: list[Task]
    root: str | Path | None
    progress: OnEvent | None
    device: str | None = None
    running: list[Task] = field(default_factory=list)
    deaths: Counter[Task] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    cohorts: dict[str, bytes] = field(default_factory=dict)
    uses_left: Counter[Task] = field(default_factory=Counter)  # by training: the number of methods that still need its networks
    failed: int = 0
    start: float = field(default_factory=time.perf_counter)

    def __post_init__(self) -> None:
        plan = self.folder.plan
        self.total = len(tasks_of(plan))
        self.costs = {task: task_cost(plan, task) for task in self.pending}
        # Splits are run in order, so that a worker finds the sets of its last task, and a run that is stopped early has complete splits.
        self.pending = sorted(self.pending, key=lambda task: (task.seed, task.data, -self.costs[task], task.key))
        self.uses_left.update(task.training for task in self.pending if task.method)

    def run_all(self, runner: Runner) -> None:
        """Runs all pending tasks."""
        note, folder = "", self.folder
        while self.pending or self.running:
            while len(self.running) < runner.slots and (task := self._next_task()):
                self.running.append(task)
                try:
                    cohort = self._cohort(task.data)
                except EquipoiseError as error:
                    self.running.remove(task)
                    self._fail(task, str(error), others=[t for t in self.pending if t.data == task.data])
                    continue
                trained = folder.file(task.training).absolute().read_bytes if task.method else None
                runner.submit(StudyTask(folder.plan, folder.fingerprint, folder.version, task, self.device, PLUGIN_FILES, trained), cohort)
            if not self.running:
                break  # the remaining tasks could not be started
            self._report_progress(note)
            work, outcome = runner.next()
            self.running.remove(work.task)
            note = self._handle(work.task, outcome)
        self._report_progress(note)
        if self.problems:
            listed = "\n".join(f"- {problem}" for problem in self.problems)
            raise TasksFailed(
                f"{len(self.problems)} tasks of {self.folder.plan.name!r} failed; the results of all others are stored:\n{listed}"
            )

    def _next_task(self) -> Task | None:
        """The next task whose network exists; trainings first, since other tasks wait for them.

        If networks are deleted after use, trainings come last, so that few networks exist at a time.
        """
        unfinished = {task for task in (*self.pending, *self.running) if not task.method}
        candidates = [task for task in self.pending if not task.method or task.training not in unfinished]
        if not candidates:
            return None
        keep = self.folder.plan.keep_networks
        task = next((t for t in candidates if bool(t.method) != keep), candidates[0])
        self.pending.remove(task)
        return task

    def _handle(self, task: Task, outcome: TaskResult) -> str:
        """Stores the result of a task, or handles its failure. Returns a note about a failure."""
        if outcome.content is not None:
            self.folder.store(task, outcome.content)
            if task.method:
                self.uses_left[task.training] -= 1  # not after a failure: the method still needs its networks
                if not self.uses_left[task.training] and not self.folder.plan.keep_networks:
                    self.folder.drop(task.training)
            return ""
        if not outcome.died:
            if outcome.details:
                log.error("%s\n%s", task, outcome.details)
            self._fail(task, outcome.problem, others=[t for t in self.pending if not task.method and t.training == task])
            return f"{task}: {outcome.problem}"
        self.deaths[task] += 1
        note = f"{task}: {outcome.problem}; worker {self.deaths[task]} of {MAX_LOST_WORKERS} lost in this task"
        log.warning(note)
        if self.deaths[task] >= MAX_LOST_WORKERS:
            raise TasksFailed(f"{note}. The results of all finished tasks are stored. Check the memory: use fewer --workers.")
        self.pending.insert(0, task)
        return note

    def _fail(self, task: Task, problem: str, others: list[Task]) -> None:
        """Records a failed task; `others` cannot run without it."""
        self.failed += 1 + len(others)
        self.pending = [t for t in self.pending if t not in others]
        left_out = f" ({len(others)} tasks that need it were left out)" if others else ""
        self.problems.append(f"{task}: {problem}{left_out}")

    def _cohort(self, name: str) -> bytes | None:
        """The pickled data, loaded once; None for a simulation that is drawn again for each split."""
        data = self.folder.plan.named(name)
        if data.redraw:
            return None
        if name not in self.cohorts:
            counts = Counter[str]()

            def more(images: int) -> None:
                counts[name] += images
                self._report_progress("", f"{name}: {counts[name]:,} images decoded")

            cohort = data.load(self.root, more)
            if isinstance(cohort.source, Images) and cohort.source.broken:
                self.folder.note_broken(name, cohort.source.broken_kinds)
            self.cohorts[name] = pickle.dumps(cohort, protocol=5)
        return self.cohorts[name]

    def _report_progress(self, note: str, *doing: str) -> None:
        if self.progress is None:
            return
        left = [*self.pending, *self.running]
        total_cost = sum(self.costs.values()) or 1.0
        share = (total_cost - sum(self.costs[task] for task in left)) / total_cost if len(left) < len(self.costs) else 0.0
        names = (*doing, *map(str, self.running))
        self.progress(Event(self.total - len(left) - self.failed, self.total, share, time.perf_counter() - self.start, names, note))


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

    def __init__(self) -> None:
        self._queue: list[tuple[StudyTask, bytes | None]] = []

    def submit(self, work: StudyTask, cohort: bytes | None) -> None:
        self._queue.append((work, cohort))

    def next(self) -> tuple[StudyTask, TaskResult]:
        work, cohort = self._queue.pop(0)
        return work, attempt_task(work, cohort)

    def close(self) -> None:
        self._queue.clear()


class Processes:
    """Spawned processes with one compute thread each. They end when their parent ends, however it ends."""

    def __init__(self, workers: int | None) -> None:
        self.slots = workers or cores()
        self._processes: dict[Pipe, BaseProcess] = {}
        self._busy: dict[Pipe, StudyTask] = {}

    def submit(self, work: StudyTask, cohort: bytes | None) -> None:
        pipe = next((idle for idle in self._processes if idle not in self._busy), None) or self._start()
        self._busy[pipe] = work
        with suppress(BrokenPipeError, ConnectionResetError):  # it died while idle; `next` reports it
            pipe.send((work, cohort))

    def next(self) -> tuple[StudyTask, TaskResult]:
        pipe: Any = wait(list(self._busy))[0]
        work = self._busy.pop(pipe)
        try:
            outcome: TaskResult = pipe.recv()
        except (EOFError, ConnectionResetError):
            process = self._processes[pipe]
            process.join()  # first, since killing it would change its exit code
            self._stop(pipe)
            return work, TaskResult(problem=f"its process ended with exit code {process.exitcode}", died=True)
        if outcome.content is None:  # the failure may have left the GPU in an unusable state for this process
            self._stop(pipe)
        return work, outcome

    def close(self) -> None:
        for pipe in list(self._processes):
            self._stop(pipe)
        self._busy.clear()

    def _stop(self, pipe: Pipe) -> None:
        process = self._processes.pop(pipe)
        process.kill()
        process.join()
        pipe.close()

    def _start(self) -> Pipe:
        context = multiprocessing.get_context("spawn")
        parent_end, worker_end = context.Pipe()
        process = context.Process(target=_worker_loop, args=(worker_end, self.slots), daemon=True)
        with uninterrupted(), _safe_path():  # a terminal sends Ctrl-C to every process; only the parent handles it
            process.start()
        worker_end.close()
        self._processes[parent_end] = process
        return parent_end


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


def _worker_loop(pipe: Pipe, processes: int) -> None:
    """The main loop of a worker: receives tasks and sends outcomes until the parent closes the pipe or ends."""
    threading.Thread(target=_die_with_parent, daemon=True).start()
    if torch.cuda.is_available():  # PyTorch caches freed memory, which would be unavailable to the other processes
        torch.cuda.set_per_process_memory_fraction(USABLE_MEMORY / processes)
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            pipe.send(attempt_task(*pipe.recv()))


def _die_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


class OnRay:
    """Tasks on the Ray cluster at `address` ("auto" for the one this machine belongs to), or on a local cluster started for this run.

    Cohorts and networks are sent with the tasks, so the machines of a cluster need Equipoise but not the data.
    """

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
        self._attempt = ray.remote(num_cpus=1, max_retries=RAY_RETRIES)(attempt_task)
        self._sent: dict[str, Any] = {}  # references to cohorts by name of data; each is sent once
        self._running: dict[Any, StudyTask] = {}

    def submit(self, work: StudyTask, cohort: bytes | None) -> None:
        if cohort is not None and work.task.data not in self._sent:
            self._sent[work.task.data] = self._ray.put(cohort)
        read = replace(work, trained=partial(bytes, work.trained())) if work.trained else work
        self._running[self._attempt.remote(read, self._sent.get(work.task.data))] = work

    def next(self) -> tuple[StudyTask, TaskResult]:
        ready = self._ray.wait(list(self._running), num_returns=1)[0][0]
        work = self._running.pop(ready)
        try:
            return work, self._ray.get(ready)
        except self._ray.exceptions.RayError as error:
            return work, TaskResult(problem=f"its Ray worker ended ({first_line(error)})", died=True)

    def close(self) -> None:
        for reference in self._running:
            self._ray.cancel(reference, force=True)
        self._running.clear()
        if self._started_here:
            self._ray.shutdown()
