"""Comparisons of methods that are tried first: each on the repair set, for one label or for several, then on the same held-out rows.

`try_methods` repairs a network. `try_rules` needs scores alone: each label has its own scores and gets its own rule, and what is served is
the rule, on new scores in the same columns.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from torch import nn

from equipoise.data import Cohort, Images, Rows, Scores
from equipoise.errors import BadInput, EquipoiseError, TooFewPatients, raise_all
from equipoise.measures import Settings
from equipoise.methods import ALL_AT_ONCE, METHODS, STANDARD, Goal, check_cells, check_method, debias, recalibrated
from equipoise.models import Predictor, chosen_outputs, encoding
from equipoise.repair.comparison import Comparison, Probes, baseline_of
from equipoise.repair.provenance import Provenance
from equipoise.repair.trial import Bars, Tried, check_methods, choose, choose_for_all, goal_arguments, left, no_bars, scored, try_method

SHOWN = 24  # thumbnails of the patients whose score changed most
Methods = Mapping[str, Mapping[str, Any]]  # settings by name
Found = TypeVar("Found")


@dataclass(frozen=True)
class Request:
    """What `try_methods` is asked for besides the methods: names for the report, images and probes."""

    label: str = "the finding"  # of one label; several have their own names
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


def check_labels(methods: Sequence[str], labels: Sequence[str], kind: str = "labels") -> None:
    """Raises every problem of a repair of several labels, or classes, that is known before anything is run."""
    problems: list[str] = []
    for method in methods:
        try:
            check_method(method, kind, labels[0])
        except BadInput as error:
            problems += error.problems
    raise_all(problems)


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

    `methods` maps a name to its settings. A method that cannot be run is in `failures`; if none can, that is an error. With several
    labels one method is chosen for all of them; `goals` gives each of them a goal of its own, in place of `goal`. All methods together
    end within about `budget` seconds. Too few patients in a cell that a goal needs are an error before any work, unless `force`d.
    """
    check_methods(network, methods, train is not None)
    if repair.labels:
        check_labels(list(methods), repair.labels, repair.kind)
    short = _too_few(repair, test, [goal] if repair.targets is None else [(goals or {}).get(label, goal) for label in repair.labels])
    if short and not force:
        raise TooFewPatients(*short)
    axis = _labels(network, repair, test, request.label, outputs or {})
    deadline = None if budget is None else time.monotonic() + budget
    runs = _Runs(network, repair, test, axis, goal, goals, outputs or {}, seed, train, recalibrate, deadline, bars)
    originals = runs.of(STANDARD, {})
    tried, failures = _all_tried(methods, lambda method, settings: runs.of(method, settings, originals))
    found = {label: tuple(each[label] for each in tried) for label in axis}
    if repair.labels:
        best = choose_for_all(list(found.values()))
    else:
        best = choose(found[request.label], originals[request.label].candidate.goal)
    settings = Settings(seed=seed)

    def compared(label: str, original: Tried) -> Comparison:
        (_, known, held_out), result = axis[label], found[label][best]
        return Comparison(
            original,
            found[label],
            best,
            request.title_of(label, several=bool(repair.labels)),
            label,
            request.provenance,
            settings,
            failures,
            most_changed(original.test, result.test, held_out) if request.thumbnails else {},
            _probes(original, result, held_out, request.draws, seed, bars) if request.probe else None,
            baseline=baseline_of(original, result, held_out, known, _of_label(train, repair, label), settings),
            together=len(axis),
            forced=bool(short),
        )

    return {label: compared(label, original) for label, original in originals.items()}


def _too_few(repair: Rows, test: Rows, goals: Sequence[Goal], label: str = "") -> tuple[str, ...]:
    """The cells that a goal needs and that have too few patients, each in words."""
    try:
        check_cells({"the repair set": repair, "the test set": test}, goals, label=label)
    except TooFewPatients as error:
        return tuple(error.problems)
    return ()


def _all_tried(methods: Methods, run: Callable[[str, Mapping[str, Any]], Found]) -> tuple[list[Found], dict[str, str]]:
    """What each method found, and why others could not be run; an error if none could."""
    found, failures = [], {}
    for method, settings in methods.items():
        try:
            found.append(run(method, settings))
        except EquipoiseError as error:
            failures[method] = str(error)
    if not found:
        raise BadInput(*(f"{method}: {reason}" for method, reason in failures.items()))
    return found, failures


@dataclass(frozen=True, eq=False)
class _Runs:
    """What every method is given: the network, the rows, the goals and the limits."""

    network: nn.Module
    repair: Cohort
    test: Cohort
    axis: Mapping[str, tuple[nn.Module, Cohort, Cohort]]  # of each label: its output of the network, and the rows in which it is known
    goal: Goal
    goals: Mapping[str, Goal] | None
    outputs: Mapping[str, int | str]
    seed: int
    train: Cohort | None
    recalibrate: bool
    deadline: float | None
    bars: Bars

    def of(self, method: str, settings: Mapping[str, Any], originals: Mapping[str, Tried] | None = None) -> dict[str, Tried]:
        """A method for every label: one repair for all of them, or one label after another."""
        # Without originals this is the original itself; argmax leaves it no threshold to choose for a class alone.
        at_once = METHODS[method].labels == ALL_AT_ONCE and (originals is not None or self.repair.kind == "classes")
        if self.repair.labels and at_once:
            return self._at_once(method, settings)
        return {
            label: try_method(
                *(method, settings, view, known, held_out, (self.goals or {}).get(label, self.goal)),
                seed=self.seed,
                train=_of_label(self.train, self.repair, label),
                original=None if originals is None else originals[label],
                recalibrate=self.recalibrate,
                budget=left(self.deadline),
                bars=self.bars,
            )
            for label, (view, known, held_out) in self.axis.items()
        }

    def _at_once(self, method: str, settings: Mapping[str, Any]) -> dict[str, Tried]:
        goals = {"goals": self.goals, "selection": self.goal.selection}
        asked = goal_arguments(self.goal) if self.goals is None else goals
        with self.bars(method) as step:
            start = time.perf_counter()
            named: dict[str, Any] = {"outputs": self.outputs, "seed": self.seed, "train": self.train, "progress": step}
            limits: dict[str, Any] = {"recalibrate": False, "force": True, "budget": left(self.deadline)}  # cells were checked before
            result = debias(self.network, self.repair, method=method, **named, **limits, **asked, **settings)
            if self.recalibrate:
                result = recalibrated(result, {label: view for label, (view, *_) in self.axis.items()}, self.repair, also=[self.test])
            seconds = time.perf_counter() - start
        return {label: scored(candidate, *self.axis[label][1:], seconds, self.bars) for label, candidate in result.labels.items()}


def _of_label(train: Cohort | None, repair: Cohort, label: str) -> Cohort | None:
    """The training set with one of the repair set's labels, where it has several."""
    return train.labelled(label) if train is not None and repair.labels else train


def _labels(
    network: nn.Module, repair: Cohort, test: Cohort, label: str, outputs: Mapping[str, int | str]
) -> dict[str, tuple[nn.Module, Cohort, Cohort]]:
    """The network with the output of each label, and the repair and test rows in which that label is known."""
    if not repair.labels:
        return {label: (network, repair, test)}
    chosen = chosen_outputs(network, repair.inputs, repair.labels, repair.kind, outputs)
    return {name: (chosen.view(at), repair.labelled(name), test.labelled(name)) for at, name in enumerate(repair.labels)}


def most_changed(before: Scores, after: Scores, cohort: Cohort, count: int = SHOWN) -> dict[object, npt.NDArray[np.uint8]]:
    """The images of the patients whose score changed most, by id, as 8-bit gray (h, w). Empty for a table."""
    if not isinstance(cohort.source, Images) or len(cohort.source.shape) != 4:
        return {}
    order = np.argsort(-np.abs(after.score - before.score), kind="stable")[:count]
    pixels = (cohort.source.gray(order) * 255).round().byte().numpy()
    return {cohort.ids[row]: image for row, image in zip(order, pixels, strict=True)}


def _probes(original: Tried, result: Tried, test: Cohort, draws: int, seed: int, bars: Bars) -> Probes:
    with bars("probes") as step:
        before = encoding(original.candidate.network, test, draws=draws, seed=seed, progress=step)
    if result.test is original.test:  # the same network with another rule
        return Probes(before, before)
    with bars("probes after repair") as step:
        return Probes(before, encoding(result.candidate.network, test, draws=draws, seed=seed, progress=step))


def check_rules(methods: Methods, features: bool) -> None:
    """Raises every problem of these methods for scores alone that is known before anything is run."""
    check_methods(None, methods, train=False)
    able = ", ".join(name for name, own in METHODS.items() if own.on_scores)
    problems = [
        f"{name} changes a network, and these are scores without one. Use one of: {able}; or give the network with --model"
        for name in methods
        if not METHODS[name].on_scores
    ]
    if not features and "bias-score" in methods:
        problems.append("bias-score reads further columns next to the score. Name them: --feature age (Python: features=[...])")
    raise_all(problems)


def with_predictor(case: Comparison, model: Predictor) -> Comparison:
    """The comparison of rules for the scores of a classifier, with that classifier in every candidate, to be saved with its rule."""

    def of(tried: Tried) -> Tried:
        return replace(tried, candidate=replace(tried.candidate, model=model))

    return replace(case, original=of(case.original), candidates=tuple(map(of, case.candidates)))


def try_rules(
    repair: Mapping[str, Scores],
    test: Mapping[str, Scores],
    methods: Methods,
    goal: Goal,
    *,
    request: Request = Request(),
    goals: Mapping[str, Goal] | None = None,
    seed: int = 0,
    budget: float | None = 600.0,
    force: bool = False,
    bars: Bars = no_bars,
) -> dict[str, Comparison]:
    """The comparison of each label: every method on its repair set, the best by the goal, and the decisions on its test set.

    `methods` maps a name to its settings. A method that cannot be run is in `failures`; if none can, that is an error. `goals` gives
    labels goals of their own. Too few patients in a cell that a goal needs are an error before any work, unless `force`d.
    """
    check_rules(methods, all(own.features is not None for own in repair.values()))
    asked = {label: (goals or {}).get(label, goal) for label in repair}
    short: list[str] = []
    for label, own in repair.items():
        short += _too_few(own, test[label], [asked[label]], label if len(repair) > 1 else "")
    if short and not force:
        raise TooFewPatients(*short)
    deadline = None if budget is None else time.monotonic() + budget

    def run(label: str, method: str, settings: Mapping[str, Any]) -> Tried:
        with bars(method if len(repair) == 1 else f"{label}, {method}") as step:
            start = time.perf_counter()
            limits: dict[str, Any] = {"force": True, "budget": left(deadline), "progress": step}
            found = debias(repair[label], method=method, seed=seed, **limits, **goal_arguments(asked[label]), **settings)
            return Tried(found, repair[label], test[label], time.perf_counter() - start)

    def compared(label: str) -> Comparison:
        original = run(label, STANDARD, {})
        tried, failures = _all_tried(methods, partial(run, label))
        best, title = choose(tried, original.candidate.goal), request.title_of(label, several=len(repair) > 1)
        more: dict[str, Any] = {"together": len(repair), "forced": bool(short)}
        return Comparison(original, tuple(tried), best, title, label, request.provenance, Settings(seed=seed), failures, **more)

    return {label: compared(label) for label in repair}
