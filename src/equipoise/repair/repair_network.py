"""Methods tried on a network: each on the repair set, for one label or for several, then compared on the same held-out rows."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from torch import nn

from equipoise.data import Cohort, Images, Rows, Scores
from equipoise.errors import BadInput, EquipoiseError, TooFewPatients, pick, raise_all
from equipoise.measures import AuditSpec
from equipoise.methods import ALL_AT_ONCE, METHODS, STANDARD, Goal, check_cells, check_method, debias, make_settings, recalibrated
from equipoise.models import ExportedNetwork, chosen_outputs, encoding
from equipoise.repair.candidates import ScoredCandidate, choose, choose_for_all, rescored, scored
from equipoise.repair.compare_models import Comparison, Probes, baseline_of
from equipoise.repair.progress import Bars, no_bars
from equipoise.repair.provenance import Provenance

THUMBNAILS = 24  # of the patients whose score changed most
Methods = Mapping[str, Mapping[str, Any]]  # settings by name
Result = TypeVar("Result")


@dataclass(frozen=True)
class Request:
    """The contents of the report besides the methods: names, thumbnails and probes."""

    label: str = "the finding"  # used with one label; several labels have names
    title: str | None = None  # default: the label and the model
    provenance: Provenance = field(default_factory=Provenance)
    draws: int = 1000  # bootstrap resamples of probes
    thumbnails: bool = False
    probe: bool = False

    def title_of(self, label: str, several: bool) -> str:
        """The title of the report of a label."""
        if self.title is None:
            return f"{label}, {self.provenance.model}"
        return f"{self.title}: {label}" if several else self.title


# Checks before anything is run


def check_methods(model: nn.Module | None, methods: Methods, train: bool) -> None:
    """Raises every problem of these methods and their settings that is known before anything is run."""
    problems = [] if methods else ["no method was given. Name at least one."]
    for name, settings in methods.items():
        try:
            make_settings(pick("method", name, METHODS), settings)
        except BadInput as error:
            problems += error.problems
            continue
        if METHODS[name].needs_train and not train:
            problems.append(f"{name} trains from scratch and needs a training set: --train train.csv (in Python train=)")
        if METHODS[name].needs_layers and isinstance(model, ExportedNetwork):
            problems.append(
                f"{name} needs the layers of a network, which an exported program no longer has. Give the architecture as file.py:factory."
            )
    raise_all(problems)


def check_labels(methods: Sequence[str], labels: Sequence[str], kind: str = "labels") -> None:
    """Raises every problem of a repair of several labels, or classes, that is known before anything is run."""
    problems: list[str] = []
    for method in methods:
        try:
            check_method(method, kind, labels[0])
        except BadInput as error:
            problems += error.problems
    raise_all(problems)


def small_cells(repair: Rows, test: Rows, goals: Sequence[Goal], label: str = "") -> tuple[str, ...]:
    """Messages about the cells that a goal needs and that have too few patients."""
    try:
        check_cells({"the repair set": repair, "the test set": test}, goals, label=label)
    except TooFewPatients as error:
        return tuple(error.problems)
    return ()


# The repair


def try_methods(
    network: nn.Module,
    repair: Cohort,
    test: Cohort,
    methods: Methods,
    goal: Goal,
    *,
    request: Request = Request(),
    outputs: Mapping[str, int | str] | None = None,
    goals: Mapping[str, Goal] | None = None,
    seed: int = 0,
    train: Cohort | None = None,
    budget: float | None = 600.0,
    recalibrate: bool = True,
    force: bool = False,
    bars: Bars = no_bars,
) -> dict[str, Comparison]:
    """The comparison of each label: every method on the repair set, the best by the goal, and the scores of the test set with each.

    `methods` maps a name to its settings. A method that fails is listed in `failures`; if all fail, that is an error. With several labels
    one method is chosen for all of them; `goals` sets the goal of single labels. All methods together end within about `budget` seconds.
    Too few patients in a cell that a goal needs are an error before any work, unless `force` is set.
    """
    check_methods(network, methods, train is not None)
    if repair.labels:
        check_labels(list(methods), repair.labels, repair.kind)
    too_small = small_cells(repair, test, [(goals or {}).get(label, goal) for label in repair.labels] or [goal])
    if too_small and not force:
        raise TooFewPatients(*too_small)
    tasks = _label_tasks(network, repair, test, train, request.label, outputs or {})
    deadline = None if budget is None else time.monotonic() + budget
    repairs = _Repairs(network, repair, test, tasks, goal, goals, outputs or {}, seed, train, recalibrate, deadline, bars)
    originals = repairs.run(STANDARD, {})
    results, failures = run_all(methods, lambda method, settings: repairs.run(method, settings, originals))
    candidates = {label: tuple(result[label] for result in results) for label in tasks}
    if repair.labels:
        best = choose_for_all(list(candidates.values()))
    else:
        best = choose(candidates[request.label], originals[request.label].candidate.goal)
    settings = AuditSpec(seed=seed)

    def comparison_of(label: str, task: _LabelTask) -> Comparison:
        original, chosen = originals[label], candidates[label][best]
        return Comparison(
            original,
            candidates[label],
            best,
            request.title_of(label, several=bool(repair.labels)),
            label,
            request.provenance,
            settings,
            failures,
            most_changed(original.test, chosen.test, task.test) if request.thumbnails else {},
            _probes(original, chosen, task.test, request.draws, seed, bars) if request.probe else None,
            baseline=baseline_of(original, chosen, task.test, task.repair, task.train, settings),
            together=len(tasks),
            forced=bool(too_small),
        )

    return {label: comparison_of(label, task) for label, task in tasks.items()}


def run_all(methods: Methods, run: Callable[[str, Mapping[str, Any]], Result]) -> tuple[list[Result], dict[str, str]]:
    """The results of the methods that succeeded, and the error messages of those that failed; an error if all failed."""
    results, failures = [], {}
    for method, settings in methods.items():
        try:
            results.append(run(method, settings))
        except EquipoiseError as error:
            failures[method] = str(error)
    if not results:
        raise BadInput(*(f"{method}: {reason}" for method, reason in failures.items()))
    return results, failures


def seconds_left(deadline: float | None) -> float | None:
    """The seconds left before the deadline, at least one; None without a deadline."""
    return None if deadline is None else max(1.0, deadline - time.monotonic())


def goal_arguments(goal: Goal) -> dict[str, Any]:
    """A goal as the keywords of `debias`."""
    names = ("measure", "performance", "min_performance", "max_gap", "selection", "max_loss", "keep", "threshold")
    return {name: getattr(goal, name) for name in names}


@dataclass(frozen=True, eq=False)
class _LabelTask:
    """One label: the output of the network that predicts it, and the rows in which it is known."""

    model: nn.Module
    repair: Cohort
    test: Cohort
    train: Cohort | None


def _label_tasks(
    network: nn.Module, repair: Cohort, test: Cohort, train: Cohort | None, label: str, outputs: Mapping[str, int | str]
) -> dict[str, _LabelTask]:
    """The task of each label; a cohort with one label has the name `label`."""
    if not repair.labels:
        return {label: _LabelTask(network, repair, test, train)}
    chosen = chosen_outputs(network, repair.inputs, repair.labels, repair.kind, outputs)
    return {
        name: _LabelTask(chosen.view(at), repair.labelled(name), test.labelled(name), None if train is None else train.labelled(name))
        for at, name in enumerate(repair.labels)
    }


@dataclass(frozen=True, eq=False)
class _Repairs:
    """Runs methods on the same network, rows, goals and budget."""

    network: nn.Module
    repair: Cohort
    test: Cohort
    tasks: Mapping[str, _LabelTask]
    goal: Goal
    goals: Mapping[str, Goal] | None
    outputs: Mapping[str, int | str]
    seed: int
    train: Cohort | None
    recalibrate: bool
    deadline: float | None
    bars: Bars

    def run(
        self, method: str, settings: Mapping[str, Any], originals: Mapping[str, ScoredCandidate] | None = None
    ) -> dict[str, ScoredCandidate]:
        """The candidate of each label: from one repair of all labels together, or from one repair per label."""
        # Without originals this is the original itself; argmax leaves it no threshold to choose for a class alone.
        together = METHODS[method].labels == ALL_AT_ONCE and (originals is not None or self.repair.kind == "classes")
        if self.repair.labels and together:
            return self._repair_all_labels(method, settings)
        return {
            label: self._repair_label(method, settings, label, task, None if originals is None else originals[label])
            for label, task in self.tasks.items()
        }

    def _repair_label(
        self, method: str, settings: Mapping[str, Any], label: str, task: _LabelTask, original: ScoredCandidate | None
    ) -> ScoredCandidate:
        goal = (self.goals or {}).get(label, self.goal)
        with self.bars(method) as step:
            start = time.perf_counter()
            arguments = {**goal_arguments(goal), **self._limits(), "seed": self.seed, "train": task.train, "progress": step}
            candidate = debias(task.model, task.repair, method=method, **arguments, **settings)
            if self.recalibrate:
                candidate = recalibrated(candidate, task.model, task.repair, also=[task.test])
            seconds = time.perf_counter() - start
        if original is not None and original.valid is not None and METHODS[method].needs_group:  # the same network with another rule
            return ScoredCandidate(rescored(candidate, original.valid), original.valid, original.test, seconds)
        return scored(candidate, task.repair, task.test, seconds, self.bars)

    def _repair_all_labels(self, method: str, settings: Mapping[str, Any]) -> dict[str, ScoredCandidate]:
        goals = goal_arguments(self.goal) if self.goals is None else {"goals": self.goals, "selection": self.goal.selection}
        with self.bars(method) as step:
            start = time.perf_counter()
            arguments = {**goals, **self._limits(), "seed": self.seed, "train": self.train, "progress": step}
            result = debias(self.network, self.repair, method=method, outputs=self.outputs, **arguments, **settings)
            if self.recalibrate:
                models = {label: task.model for label, task in self.tasks.items()}
                result = recalibrated(result, models, self.repair, also=[self.test])
            seconds = time.perf_counter() - start
        return {
            label: scored(candidate, self.tasks[label].repair, self.tasks[label].test, seconds, self.bars)
            for label, candidate in result.labels.items()
        }

    def _limits(self) -> dict[str, Any]:
        # Recalibration follows where both sets are at hand to check that no decision changes; cells were checked before.
        return {"recalibrate": False, "force": True, "budget": seconds_left(self.deadline)}


def most_changed(before: Scores, after: Scores, cohort: Cohort, count: int = THUMBNAILS) -> dict[object, npt.NDArray[np.uint8]]:
    """The images of the patients whose score changed most, by id, as 8-bit gray (h, w). Empty for a table."""
    if not isinstance(cohort.source, Images) or len(cohort.source.shape) != 4:
        return {}
    order = np.argsort(-np.abs(after.score - before.score), kind="stable")[:count]
    pixels = (cohort.source.gray(order) * 255).round().byte().numpy()
    return {cohort.ids[row]: image for row, image in zip(order, pixels, strict=True)}


def _probes(original: ScoredCandidate, chosen: ScoredCandidate, test: Cohort, draws: int, seed: int, bars: Bars) -> Probes:
    with bars("probes") as step:
        before = encoding(original.candidate.network, test, draws=draws, seed=seed, progress=step)
    if chosen.test is original.test:  # the same network with another rule
        return Probes(before, before)
    with bars("probes after repair") as step:
        return Probes(before, encoding(chosen.candidate.network, test, draws=draws, seed=seed, progress=step))
