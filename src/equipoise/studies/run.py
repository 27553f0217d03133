"""Runs the unfinished tasks of a study: trainings before the methods that need them, the most expensive first."""

import logging
import pickle
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch

from equipoise.data import Images, count_by_kind
from equipoise.errors import EquipoiseError
from equipoise.models import computing_on, requested_device
from equipoise.studies.networks import MLP
from equipoise.studies.plan import Outcome, Plan, Task, Work, cost, tasks_of
from equipoise.studies.results import StudyFolder, finished, locked_folder
from equipoise.studies.runners import Runner, cores, started_runner

log = logging.getLogger(__name__)
LIVES = 3  # the run stops after this many workers have died in one task
IMAGE_WORKER_BYTES = 10 * 2**30  # GPU memory of a worker on images: training VGG-16, and rows kept there
TABLE_WORKER_BYTES = 2 * 2**30  # on tables: a CUDA context, and 30,000 rows of 501 numbers


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


Progress = Callable[[Event], None]


def run_study(
    plan: Plan,
    folder: str | Path,
    *,
    runner: str = "processes",
    workers: int | None = None,
    address: str | None = None,
    root: str | Path | None = None,
    device: str | None = None,
    progress: Progress | None = None,
) -> StudyFolder:
    """Runs a study and returns its folder. Finished tasks are not run again; the rows do not depend on the runner.

    `device` is where networks are computed, such as cpu or cuda; by default, tables on the CPU and images on a GPU if there is one. Rows
    computed on a GPU differ from those computed on a CPU, since training amplifies rounding differences; each row names its device.
    Several workers share one GPU.
    """
    with computing_on(device):
        pass  # raises an error early if there is no such device
    with locked_folder(folder, plan, root) as place:
        done = finished(place)
        pending = _pending_tasks(plan, done)
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


def _workers_on_gpu(plan: Plan, device: str | None) -> int | None:
    """The number of workers that fit into the memory of the GPU; None if networks are not computed on one."""
    tables = all(plan.network(data.name).model == MLP for data in plan.data)
    with computing_on(device):
        requested = requested_device()
    if not torch.cuda.is_available() or (requested is None and tables) or (requested is not None and requested.type != "cuda"):
        return None
    memory = torch.cuda.get_device_properties(requested or 0).total_memory
    return max(1, min(cores(), memory // (TABLE_WORKER_BYTES if tables else IMAGE_WORKER_BYTES)))


def _pending_tasks(plan: Plan, done: set[Task]) -> list[Task]:
    """The tasks to run; a training only if a method still needs it."""
    methods = [task for task in tasks_of(plan) if task.method and task not in done]
    trainings = dict.fromkeys(task.training for task in methods)
    return [task for task in trainings if task not in done] + methods


@dataclass
class _Run:
    """The task queue of a run, and its state."""

    folder: StudyFolder
    pending: list[Task]
    root: str | Path | None
    progress: Progress | None
    device: str | None = None
    running: dict[str, Task] = field(default_factory=dict)
    deaths: dict[str, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    cohorts: dict[str, bytes] = field(default_factory=dict)
    uses_left: Counter[str] = field(default_factory=Counter)  # by training: the number of methods that still need its networks
    failed: int = 0
    start: float = field(default_factory=time.perf_counter)

    def __post_init__(self) -> None:
        plan = self.folder.plan
        self.total = len(tasks_of(plan))
        self.costs = {task.key: cost(plan, task) for task in self.pending}
        # Splits are run in order, so that a worker finds the sets of its last task, and a run that is stopped early has complete splits.
        self.pending = sorted(self.pending, key=lambda task: (task.seed, task.data, -self.costs[task.key], task.key))
        self.uses_left.update(task.training.key for task in self.pending if task.method)

    def run_all(self, runner: Runner) -> None:
        """Runs all pending tasks."""
        note = ""
        while self.pending or self.running:
            while len(self.running) < runner.slots and (task := self._next_task()):
                self._submit(runner, task)
            if not self.running:
                break  # the remaining tasks could not be started
            self._report_progress(note)
            work, outcome = runner.next()
            del self.running[work.task.key]
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
        unfinished = {task.key for task in (*self.pending, *self.running.values()) if not task.method}
        candidates = [task for task in self.pending if not task.method or task.training.key not in unfinished]
        if not candidates:
            return None
        keep = self.folder.plan.keep_networks
        task = next((t for t in candidates if bool(t.method) != keep), candidates[0])
        self.pending.remove(task)
        return task

    def _submit(self, runner: Runner, task: Task) -> None:
        folder = self.folder
        self.running[task.key] = task
        try:
            cohort = self._cohort(task.data)
        except EquipoiseError as error:
            del self.running[task.key]
            self._fail(task, str(error), others=[t for t in self.pending if t.data == task.data])
            return
        file = folder.file(task.training)
        # Weights can be half a gigabyte, so they are sent only to a worker that cannot read the file.
        trained = None if not task.method else file.absolute() if runner.local else file.read_bytes()
        runner.submit(Work(folder.plan, folder.fingerprint, folder.version, task, self.device), cohort, trained)

    def _handle(self, task: Task, outcome: Outcome) -> str:
        """Stores the result of a task, or handles its failure. Returns a note about a failure."""
        if outcome.content is not None:
            self.folder.store(task, outcome.content)
            if task.method:
                self.uses_left[task.training.key] -= 1  # not after a failure: the method still needs its networks
                if not self.uses_left[task.training.key] and not self.folder.plan.keep_networks:
                    self.folder.drop(task.training)
            return ""
        if not outcome.died:
            if outcome.details:
                log.error("%s\n%s", task, outcome.details)
            self._fail(task, outcome.problem, others=[t for t in self.pending if not task.method and t.training == task])
            return f"{task}: {outcome.problem}"
        self.deaths[task.key] = self.deaths.get(task.key, 0) + 1
        note = f"{task}: {outcome.problem}; worker {self.deaths[task.key]} of {LIVES} lost in this task"
        log.warning(note)
        if self.deaths[task.key] >= LIVES:
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
            cohort = data.load(self.root, self._decoding_progress(name))
            if isinstance(cohort.source, Images) and cohort.source.broken:
                self.folder.note_broken(name, count_by_kind(cohort.source.broken.values()))
            self.cohorts[name] = pickle.dumps(cohort, protocol=5)
        return self.cohorts[name]

    def _decoding_progress(self, name: str) -> Callable[[int], None]:
        """A callback that reports how many images have been decoded."""
        total = 0

        def more(count: int) -> None:
            nonlocal total
            total += count
            self._report_progress("", f"{name}: {total:,} images decoded")

        return more

    def _report_progress(self, note: str, *doing: str) -> None:
        if self.progress is None:
            return
        left = [*self.pending, *self.running.values()]
        total_cost = sum(self.costs.values()) or 1.0
        share = (total_cost - sum(self.costs[task.key] for task in left)) / total_cost if len(left) < len(self.costs) else 0.0
        names = (*doing, *(str(task) for task in self.running.values()))
        self.progress(Event(self.total - len(left) - self.failed, self.total, share, time.perf_counter() - self.start, names, note))
