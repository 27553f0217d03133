"""The contract of a method: its registration with all metadata, the steps or the fit that it returns, its cost, and the registry.

A method is one module (or folder) next to this file. Its function is registered by `@method(...)` with its title, paper, cost, requirements
and treatment of multi-label networks. No other file lists methods by name.
"""

import copy
import importlib
import math
import pkgutil
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast, get_type_hints

import numpy as np
import pandas as pd

from equipoise.data import Cohort, FloatArray, LabelKind, Rows, generator
from equipoise.errors import BadInput, UnknownName, pick, raise_all
from equipoise.measures import Rule, measure_of
from equipoise.methods.candidate import Progress
from equipoise.methods.evaluation import Evaluation, Label
from equipoise.methods.goal import Goal, Note, Why, keeping, raise_together
from equipoise.plugins import Registry
from equipoise.specification import is_real

if TYPE_CHECKING:
    from torch import nn

# Settings that must be at least 1.
POSITIVE_SETTINGS = ("batch", "evals_per_epoch", "trials", "critic_steps", "actor_steps", "width", "folds")
WITHOUT_METHODS = ("blind_rule", "nested", "recalibration", "steps")  # modules that register none: imported by those who use them
MARCINKEVICS = """@inproceedings{marcinkevics2022debiasing,
  title     = {Debiasing Deep Chest {X}-Ray Classifiers using Intra- and Post-processing Methods},
  author    = {Marcinkevics, Ricards and Ozkan, Ece and Vogt, Julia E.},
  booktitle = {Proceedings of the 7th Machine Learning for Healthcare Conference},
  year      = {2022}
}"""  # the paper of this package
PART_TOO_SMALL = (
    "a part of the repair set is too small for cross-fitted selection: use more data, merge groups (data.merge), or selection='paper'"
)
STANDARD = "standard"  # the original network with its best threshold, with which every method is compared
ALL_AT_ONCE, ONE_BY_ONE = "all at once", "one by one"  # treatment of the labels of a multi-label network
FOLDS = 5  # cross-fitting folds of methods that fit a decision rule, which is cheap
TIMED_BATCH = {True: 32, False: 256}  # rows to time, for images and tables: about one mini-batch of a method
PROBED_ROWS = 2_000  # number of rows up to which probes use as many folds; with more rows optimism is small, and two halves suffice


@dataclass(frozen=True)
class Work:
    """The work of one run of a method: rows through the network, evaluations of all thresholds, and seconds of anything else."""

    rows: float | None  # in forward passes; None if not known in advance
    evaluations: int
    what: str
    seconds: float = 0.0


def unknown_work(_speed: "Speed", _settings: Any) -> Work:
    """The work of a method without a cost model."""
    return Work(None, 0, "not known in advance")


def rule_work(speed: "Speed", _settings: Any) -> Work:
    """The work of a method that only fits a decision rule to the scores."""
    unchanged = "scores" if speed.model is None else "network"
    return Work(len(speed.repair), 1, f"another decision rule for the same {unchanged}; it will need each patient's group")


@dataclass(frozen=True, eq=False)
class Step:
    """A state of the network to be evaluated. `yield Step(...)` passes it to the driver, which sends back its `Evaluation`."""

    number: int
    progress: tuple[int, int] | None = None  # steps done, steps in total
    pace: float = 1.0  # of one step, in the unit that the method counts
    scores: FloatArray | None = None  # (rows,) if the method has computed them; otherwise the driver runs the network
    stop_below: float | None = None  # the run ends when performance falls below this
    notes: tuple[Note, ...] = ()  # reported if this step is chosen
    trial: bool = False  # only evaluated, and no part of the trace
    seen: Evaluation | None = None  # the evaluation of a trial that becomes a step


Steps = Generator[Step, Evaluation, None]


@dataclass(frozen=True, eq=False)
class FitStep:
    """The rule and the network that one step of a fit would deliver."""

    rule: Rule
    model: "nn.Module | None" = None  # None: the original
    notes: tuple[Note, ...] = ()  # reported if this step is chosen


@dataclass(frozen=True, eq=False)
class Fit:
    """The result of a method that fits a rule, or probes, and leaves the network's weights unchanged."""

    rule: Rule
    trace: pd.DataFrame  # step, gap, performance, threshold and further columns; the first row is the original
    chosen: int  # row of the trace
    why: Why
    met: bool
    goal: Goal  # with its minimum performance, if none was given
    notes: tuple[Note, ...] = ()
    model: "nn.Module | None" = None  # the network with its probes; None: the original
    steps: tuple[FitStep, ...] = ()  # one per row of the trace; step k is comparable between sets of rows
    grid: Callable[[], Sequence[Rule]] = list  # without steps: makes the rules between the original and `rule` (see `rules.with_steps`)


def within_gap(goals: Sequence[Goal], settings: Any) -> float:
    """The constrained objective of Savani et al.: best performance with |gap| within the maximum of goal or settings, less a margin."""
    limit = min((goal.max_gap for goal in goals if goal.max_gap is not None), default=settings.max_gap)
    return max(0.0, float(limit - settings.margin))


@dataclass(frozen=True)
class Rng:
    """The random generators of a method: `rng("shuffle")` depends only on the seed and the name."""

    seed: int

    def __call__(self, name: str) -> np.random.Generator:
        return generator(self.seed, name)


class Kind(StrEnum):
    """The signature of a method's function, and what it returns."""

    STEPS = "steps"  # (model, data, goal, settings, rng) yields a Step for every state of the network to be evaluated
    RULE = "rule"  # (scores, goal, settings) returns a Fit: a decision rule for the scores of the original network
    PROBES = "probes"  # (model, cohort, goal, settings, rng, train, network outputs if known) returns a Fit with a new network
    OTHERS = "others"  # (run), a `MethodRun`, returns a candidate, chosen among those of other methods


@dataclass(frozen=True)
class Method:
    """A registered method."""

    name: str
    run: Callable[..., Any]
    settings: type[Any]  # a frozen dataclass whose fields have defaults
    title: str  # one line
    kind: Kind = Kind.STEPS
    paper: str = ""  # BibTeX; empty for a method that was developed here
    needs_train: bool = False  # trains from scratch and needs the training set
    takes_train: bool = False  # can use the training set
    needs_group: bool = False  # its rule needs each patient's group
    selects: bool = True  # chooses among steps, so that cross-fitted selection also runs it on parts of the rows
    quotients: bool = True  # can reduce a gap in PPV or NPV, whose weights change with the decisions
    # Steps are chosen by the goal; or by the best performance within this maximum |gap|, without the original; or the last is taken.
    within: Callable[[Sequence[Goal], Any], float | None] = lambda _goals, _settings: None
    last: Callable[[Any], bool] = lambda _settings: False
    start: "Callable[[nn.Module, int], nn.Module] | None" = None  # the initial network, from the original and a seed
    needs_gap: bool = False  # does nothing if the gap is zero
    needs_layers: bool = False  # needs the layers of the network, which an exported program no longer has
    without_group: str = ""  # the decision of its rule for a row whose group is missing
    counts: str | Callable[[Any], str] = ""  # unit of its steps, by its settings, if each step builds on the last; empty: independent
    labels: str = ""  # treatment of a multi-label network: ALL_AT_ONCE, ONE_BY_ONE, or empty if it repairs one label only
    rules: tuple[type[Any], ...] = ()  # the kinds of rule that it fits, beyond a plain threshold
    cost: "Callable[[Speed, Any], Work]" = unknown_work
    effort: float = 5.0  # rough time per split of a study, for scheduling; training a small network is 10
    weights: bool = False  # takes sample weights
    in_auto: int | None = None  # position in the order in which auto tries methods; None: only on request
    in_auto_scores: int | None = None  # the position for scores without a network

    def repairs(self, kind: LabelKind) -> bool:
        """Whether it can repair several labels, or the classes of one label, which are decided by argmax."""
        return self.labels == ALL_AT_ONCE or (bool(self.labels) and not kind.argmax)

    def takes(self, measure: str) -> bool:
        """Whether it can reduce gaps in this measure."""
        return self.quotients or not measure_of(measure).is_quotient

    @property
    def on_scores(self) -> bool:
        """Whether it can be run on scores without a network."""
        return self.kind != Kind.STEPS

    def unit(self, settings: Mapping[str, Any]) -> str:
        """The unit of its steps with these settings; empty if steps are independent."""
        return self.counts(self.settings(**settings)) if callable(self.counts) else self.counts


@dataclass(frozen=True, eq=False)
class MethodRun:
    """The input of a run: a method, a network with its repair set, the goal of each label, a seed, settings, and the training set."""

    method: Method
    model: "nn.Module | None"  # None: scores without a network
    rows: Rows
    goals: Mapping[str, Goal]  # by label, with one selection
    seed: int
    settings: Any
    train: Cohort | None = None
    progress: Progress | None = None
    deadline: float | None = None  # by time.monotonic(), after which no further step is taken; None: no limit
    refuse_constant: bool = False  # steps with constant decisions are not chosen

    @cached_property
    def in_sample(self) -> dict[str, Goal]:
        """The goals for the method itself, which chooses in-sample; cross-fitted selection among its steps comes afterwards."""
        return {label: goal.for_steps() for label, goal in self.goals.items()}

    @property
    def selection(self) -> str:
        """The selection of all goals."""
        return next(iter(self.goals.values())).selection

    def within(self, share: float) -> "MethodRun":
        """The run with this share of the remaining time."""
        now = time.monotonic()
        return self if self.deadline is None else replace(self, deadline=now + share * max(0.0, self.deadline - now))


class _Methods(Registry[Method]):
    """Methods by name, in alphabetical order; the modules of this folder are imported on first access."""

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self.data))


def _import_methods() -> None:
    package = importlib.import_module("equipoise.methods")
    for module in pkgutil.iter_modules(package.__path__):
        if module.name not in WITHOUT_METHODS:
            importlib.import_module(f"{package.__name__}.{module.name}")


METHODS = _Methods("methods", _import_methods)


@dataclass(frozen=True)
class NoSettings:
    """The settings of a method that has none."""


def method(name: str, *, title: str, settings: type[Any] = NoSettings, **about: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator that registers a method under a name, with its metadata (see `Method`).

    - `title`: what it does, in one line.
    - `settings`: a frozen dataclass with a default for each field.
    - `about`: further fields of `Method`.
    """

    def register(run: Callable[..., Any]) -> Callable[..., Any]:
        existing = METHODS.registered.get(name)
        if existing is not None and existing.run.__module__ != run.__module__:
            raise ValueError(f"two methods are named {name!r}: in {existing.run.__module__} and in {run.__module__}")
        METHODS.registered[name] = Method(name, run, settings, title, **about)
        return run

    return register


def cross_fitting_parts(method: Method, rows: int) -> int:
    """The number of parts into which cross-fitted selection splits this number of rows for a method."""
    return FOLDS if method.kind == Kind.RULE or (method.kind == Kind.PROBES and rows <= PROBED_ROWS) else 2


def is_adaptive(settings: Any) -> bool:
    """Whether a method with these settings controls its own steps, so that its work is proportional to the rows."""
    return getattr(settings, "schedule", "") == "adaptive"


def make_settings(name: str, given: Mapping[str, Any]) -> Any:
    """The settings object of a method, with values as the types that it declares: texts are converted, and one value is a list of one.

    Raises one error for all unknown settings, each with the closest valid one, and for all invalid values.

    - `name`: of a method.
    - `given`: values by name of a setting.
    """
    from pydantic import TypeAdapter, ValidationError

    settings = METHODS[pick("method", name, METHODS)].settings
    kinds, values, errors = get_type_hints(settings), dict[str, Any](), list[BadInput]()
    for key, value in given.items():
        with keeping(errors):
            if key not in kinds:
                raise UnknownName(f"setting of {name}", key, kinds)
            plain, declared = value.item() if isinstance(value, np.generic) else value, TypeAdapter[Any](kinds[key])
            try:
                values[key] = declared.validate_python(plain)
            except ValidationError as error:
                try:
                    values[key] = declared.validate_python([plain])
                except ValidationError:
                    problem = error.errors()[0]
                    raise BadInput(f"invalid value {problem['input']!r} for {name}.{key}: {problem['msg']}") from None
            number, least = values[key], 1 if key in POSITIVE_SETTINGS else 0
            if is_real(number) and not (math.isfinite(number) and number >= least):
                raise BadInput(f"invalid value {number} for {name}.{key}: expected a finite number of at least {least}")
    raise_together(errors)
    return settings(**values)


def check_method(
    name: str,
    given: Mapping[str, Any],
    *,
    network: bool = True,
    layers: bool = True,
    features: bool = True,
    train: bool = False,
    labels: Sequence[str] = (),
    kind: LabelKind = LabelKind.LABELS,
    goals: Sequence[Goal] = (),
    weighted: bool = False,
    rows: str = "",
) -> Any:
    """The settings object of a method; raises every reason why it cannot run on a classifier and rows that offer this.

    `train` is whether there is a training set; `labels` are the outputs of a network that are repaired together, with these goals;
    `weighted` is whether the rows have sample weights, and `rows` is their name.

    - `name`, `given`: the method and its settings.
    - `network`, `layers`, `features`: whether there is a network, one with layers, and columns next to the scores.
    - `kind`: whether labels are independent, or classes decided by argmax.
    """
    settings, method, problems = make_settings(name, given), METHODS[name], list[str]()

    def able(suits: Callable[[Method], bool]) -> str:
        return ", ".join(other for other in METHODS if suits(METHODS[other]))

    if labels and not method.repairs(kind):
        what = "classes, which are decided by argmax" if kind.argmax else "labels"
        use = f"Use one of: {able(lambda other: other.repairs(kind))}; or one label: cohort.labelled({labels[0]!r})"
        problems.append(f"{name} cannot repair several {what}. {use}")
    if not network and not method.on_scores:
        use = f"Use one of: {able(lambda other: other.on_scores)}; or give the network with --model (in Python eq.debias(model, cohort))"
        problems.append(f"{name} changes a network, and these are scores without one{f' ({rows!r})' if rows else ''}. {use}")
    elif method.needs_train and not train:
        problems.append(f"{name} trains from scratch and needs a training set: --set data.train=train.csv (in Python train=parts.train)")
    if method.needs_layers and not layers:
        problems.append(
            f"{name} needs the layers of a network, which an exported program no longer has. Give the architecture as file.py:factory."
        )
    if method.kind == Kind.PROBES and not features:
        problems.append(f"{name} reads further columns next to the score. Name them: --set data.features=age (Python: features=[...])")
    for measure in dict.fromkeys(goal.measure for goal in goals if not method.takes(goal.measure)):
        quotient = f"{measure}, a quotient whose denominator depends on the decisions"
        problems.append(f"{name} cannot reduce {quotient}. Use one of: {able(lambda other: other.quotients)}")
    if weighted and not (method.weights or method.kind == Kind.OTHERS):
        use = f"Use one of: {able(lambda other: other.weights)}; or leave the weights out."
        problems.append(f"{name} does not take sample weights, which {rows!r} has. {use}")
    raise_all(problems)
    return settings


# Cost.


@dataclass(frozen=True)
class Speed:
    """The inputs of a run, and the speed of this machine: seconds per row through the network and per evaluation of all labels."""

    model: "nn.Module | None"  # None: scores without a network
    repair: Rows
    goal: Goal
    train: Cohort | None
    backward: float  # cost of one pass with gradients, in forward passes
    per_row: float
    per_evaluation: float
    labels: int = 1

    @classmethod
    def measured(cls, model: "nn.Module | None", repair: Rows, goal: Goal, train: Cohort | None = None, labels: int = 1) -> "Speed":
        """The speed of a network on the rows of one label; scores need no network and take no time per row.

        - `model`: the network; None for scores.
        - `repair`, `train`: the sets of one label.
        - `goal`: what is evaluated.
        - `labels`: how many are repaired.
        """
        per_row, backward = 0.0, 1.0
        if model is not None:
            from equipoise.models import with_weights

            cohort = cast(Cohort, repair)
            with suppress(BadInput):  # of an ONNX file that torch cannot rebuild, the weights stay as they are
                model = with_weights(model, cohort.inputs)
            per_row = seconds_per_row(model, cohort)
            if next(model.parameters(), None) is not None:
                backward = max(1.0, seconds_per_row(copy.deepcopy(model), cohort, gradients=True) / per_row)
        return cls(model, repair, goal, train, backward, per_row, labels * seconds_per_evaluation(repair, goal), labels)

    def work(self, name: str, given: Mapping[str, Any]) -> Work:
        """The work of a method: cross-fitted selection runs it several times, and labels that are repaired one by one once each.

        - `name`, `given`: the method and its settings.
        """
        method, settings, selection = METHODS[name], make_settings(name, given), self.goal.selection
        work = method.cost(self, settings)
        if method.kind != Kind.OTHERS and selection != "paper" and work.rows is not None and method.selects:
            parts = cross_fitting_parts(method, len(self.repair))
            # All fits use the scores of the original network, or one pass of it over all rows; runs of steps are two halves, all rows, and
            # all rows again up to the chosen step.
            runs = 3 if is_adaptive(settings) else 4
            steps, probes = method.kind == Kind.STEPS, method.kind == Kind.PROBES
            what = f"{f'up to {runs} runs' if steps else f'{parts + 1} fits'}, for {selection} selection, of: {work.what}"
            seconds = work.seconds * (runs if steps else parts if probes else 1)
            work = Work(work.rows * (runs if steps else 1), work.evaluations * (runs if steps else parts + 1), what, seconds)
        if self.labels == 1 or method.labels != ONE_BY_ONE:
            return work
        rows = None if work.rows is None else self.labels * work.rows
        return Work(rows, work.evaluations, f"{self.labels} runs, one per label, of: {work.what}", self.labels * work.seconds)

    def seconds(self, work: Work, more_rows: float = 0.0) -> float | None:
        """The approximate time of this work, plus `more_rows` through the network; None if the work is not known."""
        if work.rows is None:
            return None
        return (work.rows + more_rows) * self.per_row + work.evaluations * self.per_evaluation + work.seconds


def seconds_per_row(model: "nn.Module", cohort: Cohort, gradients: bool = False) -> float:
    """Seconds per row of a forward pass, or with gradients of a step of fine-tuning (which changes the network), after a warm-up."""
    import torch

    from equipoise.models import evaluating, outputs

    inputs = cohort.inputs
    few = inputs[: min(len(inputs), TIMED_BATCH[len(inputs.shape) > 2])]
    optimiser = torch.optim.Adam(model.parameters(), lr=0.0) if gradients else None

    def once() -> None:
        if optimiser is None:
            outputs(model, few)
            return
        with evaluating(model):
            model(few.to(next(model.parameters()).device)).float().sum().backward()
        optimiser.step()
        optimiser.zero_grad()

    once()
    start = time.perf_counter()
    once()
    return (time.perf_counter() - start) / len(few)


def seconds_per_evaluation(cohort: Rows, goal: Goal) -> float:
    """Seconds per evaluation of all thresholds."""
    label, scores = Label.of(cohort, goal), np.linspace(0, 1, len(cohort))
    start = time.perf_counter()
    label.evaluate(scores)
    return time.perf_counter() - start
