"""Comparisons of methods that are tried first: each on the repair set, for one label or for several, then on the same held-out rows."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import nn

from equipoise.data import Cohort, Images, Scores
from equipoise.errors import BadInput, EquipoiseError, TooFewPatients, raise_all
from equipoise.measures import Settings
from equipoise.methods import ALL_AT_ONCE, METHODS, STANDARD, Goal, check_cells, check_method, debias, recalibrated
from equipoise.models import chosen_outputs, encoding
from equipoise.repair.comparison import Comparison, Probes, baseline_of
from equipoise.repair.provenance import Provenance
from equipoise.repair.trial import Bars, Tried, check_methods, choose, choose_for_all, goal_arguments, left, no_bars, scored, try_method

SHOWN = 24  # thumbnails of the patients whose score changed most


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
    methods: Mapping[str, Mapping[str, Any]],
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
    each_goal = [goal] if repair.targets is None else [(goals or {}).get(label, goal) for label in repair.labels]
    forced = False
    try:
        check_cells({"the repair set": repair, "the test set": test}, each_goal)
    except TooFewPatients:
        if not force:
            raise
        forced = True
    axis = _labels(network, repair, test, request.label, outputs or {})
    deadline = None if budget is None else time.monotonic() + budget

    def tried(method: str, settings: Mapping[str, Any], originals: Mapping[str, Tried] | None = None) -> dict[str, Tried]:
        """A method for every label: one repair for all of them, or one label after another."""
        # Without originals this is the original itself; argmax leaves it no threshold to choose for a class alone.
        at_once = METHODS[method].labels == ALL_AT_ONCE and (originals is not None or repair.kind == "classes")
        if not (repair.labels and at_once):
            return {
                label: try_method(
                    *(method, settings, view, known, held_out, (goals or {}).get(label, goal)),
                    seed=seed,
                    train=_of_label(train, repair, label),
                    original=None if originals is None else originals[label],
                    recalibrate=recalibrate,
                    budget=left(deadline),
                    bars=bars,
                )
                for label, (view, known, held_out) in axis.items()
            }
        asked = goal_arguments(goal) if goals is None else {"goals": goals, "selection": goal.selection}
        with bars(method) as step:
            start = time.perf_counter()
            named: dict[str, Any] = {"outputs": outputs or {}, "seed": seed, "train": train, "progress": step}
            limits: dict[str, Any] = {"recalibrate": False, "force": True, "budget": left(deadline)}  # cells were checked above
            result = debias(network, repair, method=method, **named, **limits, **asked, **settings)
            if recalibrate:
                result = recalibrated(result, {label: view for label, (view, *_) in axis.items()}, repair, also=[test])
            seconds = time.perf_counter() - start
        return {label: scored(candidate, *axis[label][1:], seconds, bars) for label, candidate in result.labels.items()}

    originals = tried(STANDARD, {})
    found: dict[str, list[Tried]] = {label: [] for label in axis}
    failures: dict[str, str] = {}
    for method, settings in methods.items():
        try:
            each = tried(method, settings, originals)
        except EquipoiseError as error:
            failures[method] = str(error)
            continue
        for label, one in each.items():
            found[label].append(one)
    if not any(found.values()):
        raise BadInput(*(f"{method}: {reason}" for method, reason in failures.items()))
    if repair.labels:
        best = choose_for_all(list(found.values()))
    else:
        best = choose(found[request.label], originals[request.label].candidate.goal)
    return {
        label: Comparison(
            original,
            tuple(found[label]),
            best,
            request.title_of(label, several=bool(repair.labels)),
            label,
            request.provenance,
            Settings(seed=seed),
            failures,
            most_changed(original.test, found[label][best].test, axis[label][2]) if request.thumbnails else {},
            _probes(original, found[label][best], axis[label][2], request.draws, seed, bars) if request.probe else None,
            baseline=baseline_of(
                original, found[label][best], axis[label][2], axis[label][1], _of_label(train, repair, label), Settings(seed=seed)
            ),
            together=len(axis),
            forced=forced,
        )
        for label, original in originals.items()
    }


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
