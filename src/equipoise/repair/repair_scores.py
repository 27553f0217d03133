"""Decision rules fitted to scores alone: each label has its own scores and gets its own rule.

A bundle of such a repair holds the rule only; it decides on new scores in the same columns.
"""

import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from equipoise.data import Scores
from equipoise.errors import TooFewPatients, raise_all
from equipoise.measures import AuditSpec
from equipoise.methods import METHODS, STANDARD, Goal, Kind, debias
from equipoise.models import Predictor
from equipoise.repair.candidates import ScoredCandidate, choose
from equipoise.repair.compare_models import Comparison
from equipoise.repair.progress import Bars, no_bars
from equipoise.repair.repair_network import Methods, Request, check_methods, goal_arguments, run_all, seconds_left, small_cells


def check_rules(methods: Methods, features: bool) -> None:
    """Raises every problem of these methods for scores alone that is known before anything is run."""
    check_methods(None, methods, train=False)
    available = ", ".join(name for name, method in METHODS.items() if method.on_scores)
    problems = [
        f"{name} changes a network, and these are scores without one. Use one of: {available}; or give the network with --model"
        for name in methods
        if not METHODS[name].on_scores
    ]
    problems += [
        f"{name} reads further columns next to the score. Name them: --feature age (Python: features=[...])"
        for name in methods
        if not features and METHODS[name].kind == Kind.PROBES
    ]
    raise_all(problems)


def with_predictor(case: Comparison, model: Predictor) -> Comparison:
    """The comparison of rules for the scores of a classifier, with that classifier in every candidate, to be saved with its rule."""

    def with_model(tried: ScoredCandidate) -> ScoredCandidate:
        return replace(tried, candidate=replace(tried.candidate, model=model))

    return replace(case, original=with_model(case.original), candidates=tuple(map(with_model, case.candidates)))


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

    `methods` maps a name to its settings. A method that fails is listed in `failures`; if all fail, that is an error. `goals` sets the goal
    of single labels. Too few patients in a cell that a goal needs are an error before any work, unless `force` is set.
    """
    check_rules(methods, all(scores.features is not None for scores in repair.values()))
    several = len(repair) > 1
    label_goals = {label: (goals or {}).get(label, goal) for label in repair}
    too_small: list[str] = []
    for label, scores in repair.items():
        too_small += small_cells(scores, test[label], [label_goals[label]], label if several else "")
    if too_small and not force:
        raise TooFewPatients(*too_small)
    deadline = None if budget is None else time.monotonic() + budget

    def fit_rule(label: str, method: str, settings: Mapping[str, Any]) -> ScoredCandidate:
        with bars(f"{label}, {method}" if several else method) as step:
            start = time.perf_counter()
            limits: dict[str, Any] = {"force": True, "budget": seconds_left(deadline), "progress": step}
            candidate = debias(repair[label], method=method, seed=seed, **limits, **goal_arguments(label_goals[label]), **settings)
            return ScoredCandidate(candidate, repair[label], test[label], time.perf_counter() - start)

    def comparison_of(label: str) -> Comparison:
        original = fit_rule(label, STANDARD, {})
        tried, failures = run_all(methods, partial(fit_rule, label))
        return Comparison(
            original,
            tuple(tried),
            choose(tried, original.candidate.goal),
            request.title_of(label, several),
            label,
            request.provenance,
            AuditSpec(seed=seed),
            failures,
            together=len(repair),
            forced=bool(too_small),
        )

    return {label: comparison_of(label) for label in repair}
