"""What is known of a method: its registration, its cost, and the methods that there are.

A method is one module of this folder. Its function is registered by `@method(...)`, which holds everything that other parts of Equipoise
ask about it: title, paper, cost, what it needs, and how it treats several labels. No other file lists methods by name.
"""

import importlib
import math
import pkgutil
from collections.abc import Callable, Generator, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from equipoise.data import BoolArray, Cohort, Rows, Scores, generator
from equipoise.errors import BadInput, UnknownName, pick, raise_all
from equipoise.measures import FloatArray, Rule, is_quotient
from equipoise.methods.evaluation import Evaluation
from equipoise.methods.goal import Goal, Note, Why

COUNTS = ("batch", "evals_per_epoch", "trials", "critic_steps", "actor_steps", "width", "folds")  # settings that must be at least 1
STANDARD = "standard"  # the name of the original network with its best threshold, with which every method is compared
ALL_AT_ONCE, ONE_BY_ONE = "all at once", "one by one"  # how a method treats the labels of a multi-label network


@dataclass(frozen=True)
class Task:
    """What a method would be run on, for an estimate of its cost."""

    model: nn.Module | None  # None: scores alone
    repair: Rows
    goal: Goal
    train: Cohort | None
    backward: float  # how many forward passes one pass with gradients costs

    @property
    def network(self) -> nn.Module:
        """The network, or an error where there are scores alone."""
        if self.model is None:
            raise BadInput("this method changes a network, and scores have none")
        return self.model

    @property
    def inputs(self) -> Tensor:
        """What the network is shown of the repair set."""
        if isinstance(self.repair, Scores):
            raise BadInput("this method shows rows to a network, and scores have none")
        return self.repair.inputs


@dataclass(frozen=True)
class Work:
    """The work of one run of a method: rows shown to the network, evaluations of all thresholds, and seconds of anything else."""

    rows: float | None  # counted as forward passes; None where it is not known in advance
    evaluations: int
    what: str
    seconds: float = 0.0


def unknown_work(_task: Task, _settings: Any) -> Work:
    """The work of a method that does not say."""
    return Work(None, 0, "not known in advance")


def rule_work(task: Task, _settings: Any) -> Work:
    """The work of a method that only fits a decision rule to the scores."""
    of = "scores" if isinstance(task.repair, Scores) else "network"
    return Work(len(task.repair), 1, f"another decision rule for the same {of}; it will need each patient's group")


def fine_tuning_work(task: Task, batch: int, epochs: int, evals_per_epoch: int, most: str = "") -> Work:
    """The work of some epochs of fine-tuning with a few evaluations per epoch."""
    rows = len(task.repair)
    batches = -(-rows // batch)
    each = batches // max(1, batches // evals_per_epoch)
    what = f"{most}{epochs} epochs of fine-tuning with {each} evaluations each"
    return Work(epochs * rows * (task.backward + each), epochs * each, what)


@dataclass(frozen=True, eq=False)
class Step:
    """A state of the network to be evaluated. `yield Step(...)` hands it to the driver, which answers with its `Evaluation`."""

    number: int
    progress: tuple[int, int] | None = None  # how much is done, and of how much
    pace: float = 1.0  # of one step, in the unit that the method counts
    scores: FloatArray | None = None  # (..., rows), where the method has them already; otherwise the driver asks the network
    stop_below: float | None = None  # the performance at which a network is given up
    notes: tuple[Note, ...] = ()  # what to report if this step is chosen
    of: BoolArray | None = None  # the networks of a stack that this is a step of; None: all. A trial, which is only evaluated, is of none
    seen: Evaluation | None = None  # where a trial has been evaluated and becomes a step


Steps = Generator[Step, Evaluation, None]


@dataclass(frozen=True, eq=False)
class FitStep:
    """What one step of a fit would deliver: its rule, and its network."""

    rule: Rule
    model: nn.Module | None = None  # None: the original
    notes: tuple[Note, ...] = ()  # what to report if this step is chosen


@dataclass(frozen=True, eq=False)
class Fit:
    """What a method found that fits a rule, or probes, to a network as it is."""

    rule: Rule
    trace: pd.DataFrame  # step, gap, performance, threshold, and what else there is of a step; the first row is the original
    chosen: int  # the row that was chosen
    why: Why
    met: bool
    goal: Goal  # with its minimum performance, where none was given
    notes: tuple[Note, ...] = ()
    model: nn.Module | None = None  # the network with its probes; None: the original
    steps: tuple[
        FitStep, ...
    ] = ()  # one per row of the trace, where every step can be delivered; a step of one number means the same on any rows


@dataclass(frozen=True)
class Objective:
    """How steps are chosen: by the goal; or by the best performance within a maximum |gap|, the original excluded; or the last one."""

    max_gap: float | None = None
    last: bool = False


def by_goal(_goals: Sequence[Goal], _settings: Any) -> Objective:
    """The goal decides, and the original counts as a step."""
    return Objective()


def within_gap(goals: Sequence[Goal], settings: Any) -> Objective:
    """The constrained objective of Savani et al.: best performance with |gap| within the maximum of goal or settings, less a margin."""
    given = [goal.max_gap for goal in goals if goal.max_gap is not None]
    limit = min(given) if given else settings.max_gap
    return Objective(max(0.0, limit - settings.margin))


class Draws(tuple[np.random.Generator, ...]):
    """The generators of one use, one per network of a stack: methods only pass them on."""

    __slots__ = ()

    def rows(self, count: int, size: int) -> Tensor:
        """Rows drawn with replacement (..., size) out of so many."""
        return torch.from_numpy(np.stack([rng.integers(0, count, size) for rng in self]))


@dataclass(frozen=True)
class Rng:
    """The random numbers of a method: `rng("shuffle")` are the generators of one use, which depend on the seed and the name only."""

    seeds: tuple[int, ...]

    def __call__(self, name: str) -> Draws:
        return Draws(generator(seed, name) for seed in self.seeds)


LEAST = 0.5  # standard errors of a gap that a rule which does not need each patient's group is allowed to act on
GROUP_SURE = 3.0  # ... and one that does


class Kind(StrEnum):
    """How the function of a method is called, and what it gives."""

    STEPS = "steps"  # (model, data, goal, settings, rng) yields a Step for every state of the network that is to be evaluated
    RULE = "rule"  # (scores, goal, settings) returns a Fit: a decision rule for the scores of the original network
    PROBES = "probes"  # (model, cohort, goal, settings, rng, train, the network as read before) returns a Fit with a network of its own
    OTHERS = "others"  # (models, cohorts, goals, ...) returns candidates: it chooses among other methods, which do the selecting


@dataclass(frozen=True)
class Method:
    """A registered method."""

    name: str
    run: Callable[..., Any]
    settings: type[Any]  # a frozen dataclass whose fields have defaults
    title: str  # what it does, in one line
    kind: Kind = Kind.STEPS
    paper: str = ""  # BibTeX; empty where the method is our own
    needs_train: bool = False  # trains from scratch, so it needs the training set as well
    takes_train: bool = False  # can learn from the training set too, where there is one
    needs_group: bool = False  # its rule needs each patient's group
    selects: bool = True  # chooses among steps, so that cross-fitted selection runs it on halves of the rows too
    quotients: bool = True  # can lower a gap in PPV or NPV, whose weights change with the decisions
    objective: Callable[[Sequence[Goal], Any], Objective] = by_goal  # how its steps are chosen
    start: Callable[[nn.Module, int], nn.Module] | None = None  # the network to begin with, from the original and a seed
    needs_gap: bool = False  # there is nothing for it to do where the gap is zero
    needs_layers: bool = False  # needs the layers of the network, which an exported program no longer has
    without_group: str = ""  # how its rule decides on a row whose group is missing
    counts: str | Callable[[Any], str] = ""  # the unit of its steps, by its settings, where each follows from the one before; empty: tries
    labels: str = ""  # of a multi-label network: ALL_AT_ONCE, ONE_BY_ONE, or empty where it repairs one label only
    classes: bool = False  # can repair the classes of one label, which are decided by argmax
    frontier: Callable[..., Fit] | None = None  # as `run` of a method that fits, but the Fit has steps to choose among; None: `run` has
    rules: tuple[type[Any], ...] = ()  # the kinds of rule that it fits, beyond a plain threshold
    cost: Callable[[Task, Any], Work] = unknown_work
    effort: float = 5.0  # rough time per split of a study, where training a small network is 10: only for scheduling
    weights: bool = False  # takes sample weights
    in_auto: int | None = None  # its place in the order in which auto tries methods; None: auto does not try it unless asked
    in_auto_scores: int | None = None  # the same for scores alone, without a network
    acts_from: float | None = None  # standard errors of a gap that it acts on; None: by whether its rule needs the group

    @property
    def least_gap(self) -> float:
        """The gap, in standard errors, from which on the original is given up for what it finds."""
        if self.acts_from is not None:
            return self.acts_from
        return GROUP_SURE if self.needs_group else LEAST

    @property
    def on_scores(self) -> bool:
        """Whether it can be run on scores alone: it fits a rule, or probes, or chooses among such methods."""
        return self.kind != Kind.STEPS

    @property
    def runs_others(self) -> bool:
        """Whether it chooses among other methods."""
        return self.kind == Kind.OTHERS

    def unit(self, settings: Mapping[str, Any]) -> str:
        """What its steps count with these settings; empty where steps are independent tries."""
        return self.counts if isinstance(self.counts, str) else self.counts(self.settings(**settings))

    @property
    def stepwise(self) -> bool:
        """Whether each step follows from the one before, so that the trace is a path."""
        return bool(self.counts)


class _Methods(MutableMapping[str, Method]):
    """Methods by name, in alphabetical order; the modules of this folder are imported when the first one is asked for."""

    def __init__(self) -> None:
        self._registered: dict[str, Method] = {}
        self._complete = False

    def _all(self) -> dict[str, Method]:
        if not self._complete:
            self._complete = True
            package = importlib.import_module("equipoise.methods")
            for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
                importlib.import_module(module.name)
        return self._registered

    def __getitem__(self, name: str) -> Method:
        return self._all()[name]

    def __setitem__(self, name: str, known: Method) -> None:
        self._registered[name] = known

    def __delitem__(self, name: str) -> None:
        del self._all()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._all()))

    def __len__(self) -> int:
        return len(self._all())

    def registered(self, name: str) -> Method | None:
        """The method of a name so far, without importing any module."""
        return self._registered.get(name)

    def copy(self) -> dict[str, Method]:
        """A plain copy."""
        return dict(self._all())


METHODS = _Methods()


@dataclass(frozen=True)
class NoSettings:
    """Nothing to set."""


def method(name: str, *, title: str, settings: type[Any] = NoSettings, **about: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator that registers a method under a name, with everything that is known about it (see `Method`)."""

    def register(run: Callable[..., Any]) -> Callable[..., Any]:
        known = METHODS.registered(name)
        if known is not None and known.run.__module__ != run.__module__:
            raise ValueError(f"two methods are named {name!r}: in {known.run.__module__} and in {run.__module__}")
        METHODS[name] = Method(name, run, settings, title, **about)
        return run

    return register


FOLDS = 5  # parts of the rows for methods that fit a rule, which cost next to nothing
PROBED_ROWS = 2_000  # up to which probes are fitted as often; beyond, on halves, since optimism is small there


def parts_of(known: Method, rows: int) -> int:
    """Into how many parts cross-fitted selection splits so many rows for a method."""
    return FOLDS if known.kind == Kind.RULE or (known.kind == Kind.PROBES and rows <= PROBED_ROWS) else 2


def adaptive(settings: Any) -> bool:
    """Whether a method with these settings controls its own steps, so that a part of the rows takes a part of the work."""
    return getattr(settings, "schedule", "") == "adaptive"


def work_of(name: str, task: Task, settings: Any) -> Work:
    """The work of a method with the goal's selection: cross-fitted selection runs it several times."""
    known = METHODS[name]
    once = known.cost(task, settings)
    if known.kind == Kind.OTHERS or task.goal.selection == "paper" or once.rows is None or not known.selects:
        return once
    parts = parts_of(known, len(task.repair))
    what = f"{parts + 1} fits, for {task.goal.selection} selection, of: {once.what}"
    if known.kind == Kind.RULE:  # the scores are those of the original, whatever rows are left out
        return Work(once.rows, (parts + 1) * once.evaluations, what, once.seconds)
    if known.kind == Kind.PROBES:  # on all rows, and as often on all but one part; the network is read once for all of them
        return Work(once.rows, (parts + 1) * once.evaluations, what, parts * once.seconds)
    runs = 3 if adaptive(settings) else 4  # two halves, all rows, and all rows again up to the step that was chosen
    what = f"up to {runs} runs, for {task.goal.selection} selection, of: {once.what}"
    return Work(runs * once.rows, runs * once.evaluations, what, runs * once.seconds)


def takes(name: str, measure: str) -> bool:
    """Whether a method can lower this measure."""
    return METHODS[name].quotients or not is_quotient(measure)


def settings_of(name: str, given: Mapping[str, Any]) -> Any:
    """The settings object of a method, or an error that names an unknown setting and the closest valid one."""
    known = METHODS[pick("method", name, METHODS)].settings
    valid = [f.name for f in fields(known)]
    for key in given:
        if key not in valid:
            raise UnknownName(f"setting of {name}", key, valid)
    raise_all(list(_number_problems(name, given)))
    return known(**given)


def _number_problems(name: str, given: Mapping[str, Any]) -> Iterator[str]:
    """The numbers that no method can work with: not finite, negative, or a count of none."""
    for key, value in given.items():
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            least = 1 if key in COUNTS else 0
            if not (math.isfinite(value) and value >= least):
                yield f"invalid value {value} for {name}.{key}: expected a finite number of at least {least}"
