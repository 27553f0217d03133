"""Rules for scores alone, without a network: methods tried on the repair set, judged on held-out rows, and how the rule is served.

Each label has its own scores, and gets its own rule; they are judged together. What is served is the rule: new scores come in the same
columns as those of the repair.
"""

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from equipoise.data import Scores
from equipoise.errors import BadInput, EquipoiseError, TooFewPatients, raise_all
from equipoise.measures import Settings
from equipoise.methods import METHODS, STANDARD, Goal, check_cells, debias
from equipoise.models import Predictor
from equipoise.repair.comparison import Comparison
from equipoise.repair.trial import Bars, Tried, check_methods, choose, goal_arguments, left, no_bars
from equipoise.repair.trying import Request


def check_rules(methods: Mapping[str, Mapping[str, Any]], features: bool) -> None:
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
    methods: Mapping[str, Mapping[str, Any]],
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
    short: list[str] = []
    for label, own in repair.items():
        sets = {"the repair set": own, "the test set": test[label]}
        try:
            check_cells(sets, [(goals or {}).get(label, goal)], label=label if len(repair) > 1 else "")
        except TooFewPatients as error:
            short += error.problems
    if short and not force:
        raise TooFewPatients(*short)
    forced = bool(short)
    deadline = None if budget is None else time.monotonic() + budget
    return {
        label: _tried(label, own, test[label], methods, (goals or {}).get(label, goal), request, seed, deadline, len(repair), forced, bars)
        for label, own in repair.items()
    }


def _tried(
    label: str,
    repair: Scores,
    test: Scores,
    methods: Mapping[str, Mapping[str, Any]],
    goal: Goal,
    request: Request,
    seed: int,
    deadline: float | None,
    labels: int,
    forced: bool,
    bars: Bars,
) -> Comparison:
    """The comparison of one label."""

    def run(method: str, settings: Mapping[str, Any]) -> Tried:
        with bars(method if labels == 1 else f"{label}, {method}") as step:
            start = time.perf_counter()
            limits: dict[str, Any] = {"force": True, "budget": left(deadline), "progress": step}
            found = debias(repair, method=method, seed=seed, **limits, **goal_arguments(goal), **settings)
            return Tried(found, repair, test, time.perf_counter() - start)

    original = run(STANDARD, {})
    tried, failures = [], {}
    for method, settings in methods.items():
        try:
            tried.append(run(method, settings))
        except EquipoiseError as error:
            failures[method] = str(error)
    if not tried:
        raise BadInput(*(f"{method}: {reason}" for method, reason in failures.items()))
    best = choose(tried, original.candidate.goal)
    title = request.title_of(label, several=labels > 1)
    more: dict[str, Any] = {"together": labels, "forced": forced}
    return Comparison(original, tuple(tried), best, title, label, request.provenance, Settings(seed=seed), failures, **more)
