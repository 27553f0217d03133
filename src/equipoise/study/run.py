"""Runs a study: the tasks that are not finished, trainings before the methods that need them, the most expensive first."""

import logging
import pickle
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import torch

from equipoise.data import Images, counted
from equipoise.errors import EquipoiseError
from equipoise.models import computing_on, requested_device
from equipoise.study.plan import Outcome, Plan, Task, Work, cost, tasks_of
from equipoise.study.results import Folder, claimed, finished
from equipoise.study.runners import Runner, cores, started

log = logging.getLogger(__name__)
LIVES = 3  # how many workers may die in one task
ON_GPU = 10 * 2**30  # bytes of its memory that one worker may need: VGG-16 in training, and rows kept there
TABLES_ON_GPU = 4 * 2**30  # the same for tables: a CUDA context, and ten splits of 30,000 rows of 501 numbers


class TasksFailed(EquipoiseError):
    """Some tasks of a study failed; the results of all others are stored."""


@dataclass(frozen=True)
class Event:
    """The progress of a run."""

    done: int  # tasks, with those of earlier runs
    total: int
    share: float  # of this run's work, from 0 to 1
    seconds: float  # since this run began
    running: tuple[str, ...]
    note: str = ""

    @property
    def left(self) -> float | None:
        """Roughly how many seconds are left; None before anything is finished."""
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
) -> Folder:
    """The folder with the study's rows. Finished tasks are not run again; the rows do not depend on the runner.

    `device` says where networks are computed, such as cpu or cuda. Without it tables stay on the CPU, and images go to a GPU if there is
    one. Training amplifies the rounding of a device, so single rows from a GPU differ from those from a CPU; rows name their device.
    Several workers share one GPU.
    """
    with computing_on(device):
        pass  # an error at once, where there is no such device
    with claimed(folder, plan, root) as place:
        done = finished(place)
        pending = _pending(plan, done)
        if not plan.keep_networks:  # an earlier run may have stopped just before removing them
            for training in {task for task in done if not task.method} - {task.training for task in pending}:
                place.drop(training)
        if pending:
            for network in dict.fromkeys(plan.network(data.name) for data in plan.data):
                network.fetch()  # before the workers, which would all fetch or all fail
            with started(runner, workers or _share_of_gpu(plan, device), address) as made:
                _Run(place, pending, root, progress, device).drive(made)
        elif progress:
            total = len(tasks_of(plan))
            progress(Event(total, total, 1.0, 0.0, ()))
        return place


def _share_of_gpu(plan: Plan, device: str | None) -> int | None:
    """How many workers a GPU has memory for, where networks are computed on one; None where cores decide."""
    tables = all(plan.network(data.name).stacks for data in plan.data)
    with computing_on(device):
        asked = requested_device()
    if not torch.cuda.is_available() or (asked is None and tables) or (asked is not None and asked.type != "cuda"):
        return None
    memory = torch.cuda.get_device_properties(asked or 0).total_memory
    return max(1, min(cores(), memory // (TABLES_ON_GPU if tables else ON_GPU)))


def _pending(plan: Plan, done: set[Task]) -> list[Task]:
    """The tasks to run; a training only where one of its methods needs it."""
    methods = [task for task in tasks_of(plan) if task.method and task not in done]
    trainings = dict.fromkeys(task.training for task in methods)
    return [task for task in trainings if task not in done] + methods


@dataclass
class _Run:
    """One run of a study: the queue and its state."""

    folder: Folder
    pending: list[Task]
    root: str | Path | None
    progress: Progress | None
    device: str | None = None
    running: dict[str, Task] = field(default_factory=dict)
    deaths: dict[str, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    cohorts: dict[str, bytes] = field(default_factory=dict)
    owed: Counter[str] = field(default_factory=Counter)  # how many methods still need the networks of a training
    failed: int = 0
    start: float = field(default_factory=time.perf_counter)

    def __post_init__(self) -> None:
        plan = self.folder.plan
        self.total = len(tasks_of(plan))
        self.costs = {task.key: cost(plan, task) for task in self.pending}
        # Where networks are removed, split by split, so that a run that is stopped early has complete splits of all data.
        early = {task.key: () if plan.keep_networks else task.seeds for task in self.pending}
        self.pending = sorted(self.pending, key=lambda task: (early[task.key], -self.costs[task.key], task.key))
        self.owed.update(task.training.key for task in self.pending if task.method)

    def drive(self, runner: Runner) -> None:
        """Runs everything that is pending."""
        note = ""
        while self.pending or self.running:
            while len(self.running) < runner.slots and (task := self._ready()):
                self._submit(runner, task)
            if not self.running:
                break  # the remaining tasks could not be started
            self._tell(note)
            work, outcome = runner.next()
            del self.running[work.task.key]
            note = self._settle(work.task, outcome)
        self._tell(note)
        if self.problems:
            listed = "\n".join(f"- {problem}" for problem in self.problems)
            raise TasksFailed(
                f"{len(self.problems)} tasks of {self.folder.plan.name!r} failed; the results of all others are stored:\n{listed}"
            )

    def _ready(self) -> Task | None:
        """The most expensive task whose networks exist; trainings first, because everything else waits for them.

        Where networks are removed after use, trainings last, so that few exist at a time.
        """
        waiting = {task.key for task in (*self.pending, *self.running.values()) if not task.method}
        candidates = [task for task in self.pending if not task.method or task.training.key not in waiting]
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
            self._fail([task, *self._of_data(task.data)], str(error))
            return
        file = folder.file(task.training)
        # Weights can be half a gigabyte: they go through a pipe only where the worker cannot read the file.
        trained = None if not task.method else file.absolute() if runner.local else file.read_bytes()
        runner.submit(Work(folder.plan, folder.fingerprint, folder.version, task, self.device), cohort, trained)

    def _settle(self, task: Task, outcome: Outcome) -> str:
        """Stores the result of a task, or handles its problem and returns a note on it."""
        if outcome.content is not None:
            self.folder.store(task, outcome.content)
            self._release(task)
            return ""
        if not outcome.died:
            if outcome.details:
                log.error("%s\n%s", task, outcome.details)
            waiting = [t for t in self.pending if not task.method and t.training == task]
            self._fail([task, *waiting], outcome.problem)
            return f"{task}: {outcome.problem}"
        self.deaths[task.key] = self.deaths.get(task.key, 0) + 1
        note = f"{task}: {outcome.problem}; worker {self.deaths[task.key]} of {LIVES} lost in this task"
        log.warning(note)
        if self.deaths[task.key] >= LIVES:
            raise TasksFailed(
                f"{note}. The results of all finished tasks are stored. Check the memory: use fewer --workers, or a smaller stack."
            )
        self.pending.insert(0, task)
        return note

    def _release(self, task: Task) -> None:
        """Removes networks that no method needs any more, where the study does not keep them. A method that failed still needs them."""
        self.owed[task.training.key] -= bool(task.method)
        if task.method and not self.owed[task.training.key] and not self.folder.plan.keep_networks:
            self.folder.drop(task.training)

    def _of_data(self, name: str) -> list[Task]:
        return [task for task in self.pending if task.data == name]

    def _fail(self, tasks: Iterable[Task], problem: str) -> None:
        first, *others = tasks
        self.failed += 1 + len(others)
        self.pending = [task for task in self.pending if task not in others]
        waiting = f" ({len(others)} tasks that need it were left out)" if others else ""
        self.problems.append(f"{first}: {problem}{waiting}")

    def _cohort(self, name: str) -> bytes | None:
        """The data of a task, loaded once and sent with it; None where every split is a simulation of its own."""
        data = self.folder.plan.named(name)
        if data.redraw:
            return None
        if name not in self.cohorts:
            cohort = data.load(self.root, self._decoding(name))
            if isinstance(cohort.source, Images) and cohort.source.broken:
                self.folder.note_broken(name, counted(cohort.source.broken.values()))
            self.cohorts[name] = pickle.dumps(cohort, protocol=5)
        return self.cohorts[name]

    def _decoding(self, name: str) -> Callable[[int], None]:
        """Reports how many images of some data have been decoded."""
        total = 0

        def more(count: int) -> None:
            nonlocal total
            total += count
            self._tell("", f"{name}: {total:,} images decoded")

        return more

    def _tell(self, note: str, *doing: str) -> None:
        if self.progress is None:
            return
        left = [*self.pending, *self.running.values()]
        whole = sum(self.costs.values())
        share = (whole - sum(self.costs[task.key] for task in left)) / whole if len(left) < len(self.costs) else 0.0
        names = (*doing, *(str(task) for task in self.running.values()))
        self.progress(Event(self.total - len(left) - self.failed, self.total, share, time.perf_counter() - self.start, names, note))
