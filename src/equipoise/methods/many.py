"""Repairing a network with several outputs: several labels, or the classes of one label, by one repair for all of them.

Methods that change the network (constrained, bias-gda, pruning, random) change it for all labels together: their steps are those of one
label, with a multiplier or a weight for each gap of each label (see many_labels). Methods that leave the network as it is and put a rule or
heads beside it do so for one label after another, and what they found is put together. Classes are decided by argmax, which leaves no room
for a rule a class, so that they are for methods that change the network.
"""

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from torch import nn

from equipoise.data import Cohort
from equipoise.errors import BadInput, EmptyCell, UnknownName, pick, raise_all
from equipoise.methods.base import Candidate, Goal, Progress
from equipoise.methods.contract import METHODS, ONE_BY_ONE, settings_of
from equipoise.methods.level_up import levelled
from equipoise.methods.many_labels import ManySearch, joined, unmet
from equipoise.methods.registry import run_many
from equipoise.methods.remarks import advice, remarked
from equipoise.methods.selection import JointGoal
from equipoise.models import WRAPPED, BiasScore, ChosenOutputs, ManyBiasScores, chosen_outputs, replicas


def goals_of(cohort: Cohort, goal: Goal, goals: Mapping[str, Goal] | None) -> JointGoal:
    """The goal of each label: the same for all, or those that are given by name."""
    problems: list[str] = []
    if goals is not None:
        one = "class" if cohort.kind == "classes" else "label"
        for name in goals:
            if name not in cohort.labels:
                problems += UnknownName(f"{one} in goals", name, cohort.labels).problems
        missing = [name for name in cohort.labels if name not in goals]
        if missing:
            problems.append(f"goals has none for {', '.join(missing)}; give every {one} a goal, or leave goals out for the same for all")
        if replace(goal, selection="paper") != Goal():
            problems.append(f"a goal for all ({goal.describe()}) was given beside goals; put it into the goal of each {one}")
    each = tuple((goals or {}).get(name, goal) for name in cohort.labels)
    if any(own.selection != "paper" for own in (goal, *each)):
        problems.append('several labels or classes are chosen with selection="paper" alone; honest selection is for one label')
    raise_all(problems)
    bounds = [own.max_gap for own in each if own.max_gap is not None]
    first = each[0]
    return JointGoal(
        first.measure, first.performance, max_gap=min(bounds, default=None), names=cohort.labels, goals=each, search=ManySearch
    )


def repair(
    model: nn.Module,
    cohort: Cohort,
    method: str,
    goal: JointGoal,
    outputs: Mapping[str, int | str],
    *,
    seed: int,
    settings: Mapping[str, Any],
    train: Cohort | None = None,
    progress: Progress | None = None,
) -> Candidate:
    """One repair of all labels of a cohort; `labels` of what comes back has an ordinary candidate for each."""
    check_method(method, cohort.kind, cohort.labels[0])
    if not isinstance(model, nn.Module):
        raise BadInput(f"{method} repairs a torch.nn.Module; got {type(model).__name__}")
    chosen = chosen_outputs(model, cohort.inputs, cohort.labels, cohort.kind, outputs)
    try:
        if METHODS[method].labels == ONE_BY_ONE:
            return _apart(chosen, cohort, method, goal, seed, settings, train, progress)
        found = _together(chosen, cohort, method, goal, seed, settings, progress)
    except EmptyCell as error:
        more = (
            []
            if METHODS[method].labels == ONE_BY_ONE
            else [text for name, own in _goals(goal) for text in advice([cohort.labelled(name)], own)]
        )
        raise EmptyCell(*error.problems, *more) from error
    each = {}
    for at, (name, own) in enumerate(_goals(goal)):
        candidate, part = found.labels[name], cohort.labelled(name)
        if own.keep:
            candidate = levelled(candidate, chosen.view(at), part)
        each[name] = remarked(candidate, part, own)
    why = f"{found.why.removesuffix(unmet(found.labels))}{unmet(each)}"
    return replace(found, labels=each, met=not unmet(each), why=why)


def check_method(method: str, kind: str, example: str) -> None:
    """Raises where a method cannot repair several labels, or classes, and says which can."""
    able = [name for name, own in METHODS.items() if (own.classes if kind == "classes" else own.labels)]
    if pick("method", method, METHODS) in able:
        return
    what = "classes, which are decided by argmax" if kind == "classes" else "labels"
    raise BadInput(f"{method} cannot repair several {what}. Use one of: {', '.join(able)}; or one label: cohort.labelled({example!r})")


def _goals(goal: JointGoal) -> list[tuple[str, Goal]]:
    return list(zip(goal.names, goal.goals, strict=True))


def _together(
    chosen: ChosenOutputs, cohort: Cohort, method: str, goal: JointGoal, seed: int, settings: Mapping[str, Any], progress: Progress | None
) -> Candidate:
    own = settings_of(method, settings)
    if method == "standard":
        networks = replicas([chosen], [cohort])
        search = ManySearch(networks, [cohort], goal)
        search.begin(networks.evaluate())
        if progress:
            progress(1, 1)
        return search.candidates(method, [seed], own)[0]
    found: list[Candidate] = METHODS[method].run([chosen], [cohort], goal, seeds=[seed], settings=own, progress=progress)
    return found[0]


def _apart(
    chosen: ChosenOutputs,
    cohort: Cohort,
    method: str,
    goal: JointGoal,
    seed: int,
    settings: Mapping[str, Any],
    train: Cohort | None,
    progress: Progress | None,
) -> Candidate:
    """One label after another, put together."""
    alone: dict[str, Candidate] = {}
    for at, (name, own) in enumerate(_goals(goal)):
        trains = None if train is None else [train.labelled(name)]
        alone[name] = run_many(method, [chosen.view(at)], [cohort.labelled(name)], own, seeds=[seed], trains=trains, settings=settings)[0]
        if progress:
            progress(at + 1, len(goal.names))
    model = _put_together(chosen, alone)
    whole = ChosenOutputs(model, chosen.columns, chosen.kind, chosen.output, chosen.flat)
    each = {name: replace(own, model=whole.view(at)) for at, (name, own) in enumerate(alone.items())}
    rows = []
    for step in (0, 1):
        here = [own.trace.iloc[own.chosen if step else 0] for own in each.values()]
        gaps = np.array([row["gap"] for row in here])
        worst = int(np.abs(np.where(np.isnan(gaps), np.inf, gaps)).argmax())
        rows.append((step, gaps[worst], float(np.mean([row["performance"] for row in here])), np.nan, goal.names[worst]))
    trace = pd.DataFrame(rows, columns=["step", "gap", "performance", "threshold", "label"])
    settled = replace(goal, goals=tuple(own.goal for own in each.values()))
    return joined(method, model, each, settled, trace, 1, "each label for itself", cohort.kind)


def _put_together(chosen: ChosenOutputs, alone: Mapping[str, Candidate]) -> nn.Module:
    """The network with the heads that were found for its outputs; a copy of it where there are none."""
    network = copy.deepcopy(chosen.inner)
    heads = {column: own.model for column, own in zip(chosen.columns, alone.values(), strict=True) if isinstance(own.model, BiasScore)}
    if not heads:
        return network
    if chosen.flat:
        return next(iter(heads.values()))
    return ManyBiasScores.of(network, heads, chosen.output, WRAPPED).eval()
