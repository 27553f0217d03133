"""Running a method by name: `debias` repairs a network or scores; `run_method` is one run of one method on checked arguments.

A network with several outputs is repaired for all of its labels or classes at once. Methods that change the network change it for all
labels together; methods that fit a rule or probes do so for one label after another, and the results are joined. Classes are decided by
argmax, without one rule per class, so they need a method that changes the network.
"""

import copy
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from numbers import Integral
from typing import Any, cast

import numpy as np
import pandas as pd
from torch import nn

from equipoise.data import Cohort, Identities, Rows, Scores, check_apart, check_cohort
from equipoise.errors import BadInput, EmptyCell, Misuse, pick
from equipoise.measures import Gap
from equipoise.methods.candidate import Candidate, Progress
from equipoise.methods.contract import METHODS, ONE_BY_ONE, Kind, Method, make_settings, takes
from equipoise.methods.cross_fitted import run_cross_fitted
from equipoise.methods.driver import joined, run
from equipoise.methods.goal import (
    DEFAULT_MEASURE,
    DEFAULT_PERFORMANCE,
    DEFAULT_SELECTION,
    Goal,
    Note,
    given_goal,
    goals_at,
    goals_of,
    keeping,
    raise_together,
)
from equipoise.methods.job import Job
from equipoise.methods.recalibration import recalibrated
from equipoise.methods.remarks import advice, check_cells, kept_or_not, remarked
from equipoise.models import WRAPPED, BiasScore, ChosenOutputs, ManyBiasScores, Predictor, chosen_outputs, classifier, predict
from equipoise.specification import is_real

NO_NETWORK = {  # advice by the type of an argument that is not a network
    "Cohort": "The network comes first, then the cohort.",
    "DataFrame": "Make a cohort of the frame: eq.debias(model, eq.Cohort.from_frame(frame, label=..., group=...)).",
    "type": "Give a fitted instance of it, not the class.",
    "str": "A file is a model if its name ends in .onnx, .pt2 or .skops; other networks in files are repaired by `equipoise debias`.",
}


def debias(
    model: nn.Module | Scores | Mapping[str, Scores] | object,
    cohort: Cohort | None = None,
    *,
    method: str = "auto",
    goal: Goal | None = None,
    measure: Gap = DEFAULT_MEASURE,
    performance: str = DEFAULT_PERFORMANCE,
    min_performance: float | None = None,
    max_gap: float | None = None,
    keep: Mapping[str, float | str] | None = None,
    selection: str = DEFAULT_SELECTION,
    max_loss: float | None = None,
    budget: float | None = 600.0,
    recalibrate: bool = True,
    threshold: float | Mapping[str, float] | None = None,
    force: bool = False,
    seed: int = 0,
    train: Cohort | None = None,
    goals: Mapping[str, Goal] | None = None,
    outputs: Mapping[str, int | str] | None = None,
    features: object = None,
    progress: Progress | None = None,
    **settings: Any,
) -> Candidate:
    """A repaired network, or a decision rule for the same classifier, found on validation data. The arguments are not changed.

    `model` is a network, a scikit-learn estimator or pipeline, a function from rows to probabilities (see `eq.predictor`), or scores. Only
    a network can get new weights; the others get a decision rule. With scores, `eq.debias(scores)`, there is no cohort, `result.model` is
    None, and new scores are decided by `result.rule.decide(new_scores)`. A mapping of labels to scores gets one rule per label.

    The goal, `goal=eq.Goal(...)` or its parts:

    - `measure`: the name of a gap, or a signed sum of rates: "tpr-fpr", {"tpr": 1, "fpr": -1}.
    - `min_performance`: the lowest performance to accept. Without it, performance may fall by `max_loss` (0.02).
    - `max_gap`: the largest |gap| to accept. `result.met` then states whether all limits are kept on rows not used for fitting.
    - `keep={"tpr": "before"}`: no group's sensitivity may fall; `keep={"tpr": 0.8}` sets a minimum instead.
    - `threshold`: the threshold in use today, at which the original is evaluated; of several labels, one number or one per label,
      {"Effusion": 0.2, "Mass": 0.08}. Without it, the one of best performance on the cohort.
    - `goals`: goals of single labels, where a cohort has several.

    How it is reached:

    - `method`: "auto" tries cheap methods first, then costly ones, and takes the best by cross-fitting. Further keywords are settings of
      the method.
    - `selection`: "honest" chooses a step by cross-fitted values, which also decide `result.outcome`; "paper" chooses on the rows that the
      method was fitted to.
    - `budget`: approximate limit in seconds, None for no limit. Rules and probes are always finished; notes state what was not tried or cut
      short.
    - `train`: the training set, required by methods that train from scratch. bias-score also learns from it what separates the groups.
    - `features`: further columns of the same rows as the scores (a frame or an array), for bias-score.
    - `recalibrate`: maps the scores of a changed network back to probabilities, without changing a decision (`result.recalibration`).
    - `force`: continues if a cell (group, label) has fewer than 5 patients, which is an error otherwise. The outcome is then unclear, harm
      or unchanged.

    A cohort of several labels or classes is repaired at once: `result.labels` has the result of each, and `outputs` maps labels to outputs
    of the network, by number or name.
    """
    given = model
    errors = _argument_errors(method, budget, seed)
    with keeping(errors):
        plain = None if isinstance(threshold, Mapping) else threshold
        bounds = {"min_performance": min_performance, "max_gap": max_gap, "max_loss": max_loss, "threshold": plain}
        goal = given_goal(goal, measure=measure, performance=performance, keep=keep or {}, selection=selection, **bounds)
    raise_together(errors)
    assert goal is not None
    if isinstance(threshold, Mapping):
        labels = list(model) if isinstance(model, Mapping) else cohort.labels if isinstance(cohort, Cohort) else ()
        goal, goals = Goal(selection=goal.selection), goals_at(threshold, labels, goal, goals)
    limits: dict[str, Any] = {"settings": settings, "progress": progress, "budget": budget, "refuse_constant": True}
    if isinstance(model, Scores) or (isinstance(model, Mapping) and model and all(isinstance(own, Scores) for own in model.values())):
        with_network = {"cohort": cohort, "train": train, "outputs": outputs}
        if unused := [name for name, value in with_network.items() if value is not None]:
            raise BadInput(
                f"scores are repaired without a network; {', '.join(unused)} goes with one: eq.debias(model, cohort). Leave it out"
            )
        return _with_fitted_rows(_scores_alone(model, method, goal, goals, features, seed, force, limits), model)
    model = classifier(model)
    if model is None:
        raise Misuse("eq.debias", "a network and a cohort, eq.debias(model, parts.valid), or scores, eq.debias(scores)", given, NO_NETWORK)
    if cohort is None:
        raise BadInput("eq.debias takes a network and a cohort of patients to repair it on: eq.debias(model, parts.valid)")
    if features is not None:
        raise BadInput("features goes with scores alone, eq.debias(scores, features=...); a network has the inputs of its cohort")
    check_cohort("eq.debias, after the network,", cohort)
    if isinstance(model, Predictor):
        if train is not None:
            raise BadInput("train is for methods that change a network; a repair of other classifiers is a decision rule. Leave it out")
        rule_only = _scores_alone(predict(model, cohort), method, goal, None, None, seed, force, limits)
        return _with_fitted_rows(replace(rule_only, model=model), cohort)
    network, goal = _label_outputs(model, cohort, method, goal, goals, outputs)
    if not force:
        check_cells({"the repair set": cohort}, goal.each)
    if train is not None:
        check_cohort("eq.debias, as train,", train)
    check_apart(training=train, repair=cohort)
    candidate = run_method(method, network, cohort, goal, seed=seed, train=train, **limits)
    candidate = _with_fitted_rows(candidate, cohort, train)
    if not recalibrate:
        return candidate
    views = {name: network.view(at) for at, name in enumerate(candidate.labels)} if isinstance(network, ChosenOutputs) else network
    return recalibrated(candidate, views, cohort)


def _argument_errors(method: object, budget: object, seed: object) -> list[BadInput]:
    """The errors of arguments that are not part of the goal; all are raised at once."""
    errors = []
    if not isinstance(method, str):
        several = ". To try several, use method='auto' with methods=(...)" if isinstance(method, (list, tuple, set)) else ""
        errors.append(BadInput(f"method must be the name of one method, such as 'auto'; got {method!r}{several}"))
    if budget is not None and not (is_real(budget) and cast(float, budget) > 0):
        errors.append(BadInput(f"budget must be a positive number of seconds, or None for no limit; got {budget!r}"))
    if isinstance(seed, bool) or not isinstance(seed, Integral):
        errors.append(BadInput(f"seed must be an integer; got {seed!r}"))
    return errors


def _with_fitted_rows(candidate: Candidate, rows: Rows | Mapping[str, Scores], train: Cohort | None = None) -> Candidate:
    """The candidate with the identities of the rows that it, or the candidate of each label, was fitted to."""
    if isinstance(rows, Mapping):
        parts = {str(name): {"repair": Identities.of(scores)} for name, scores in rows.items()}
        each = {name: replace(own, fitted_to=parts[name]) for name, own in candidate.labels.items()}
        return replace(candidate, labels=each)
    fitted_to = {"repair": Identities.of(rows)} | ({} if train is None else {"training": Identities.of(train)})
    return replace(
        candidate, fitted_to=fitted_to, labels={name: replace(own, fitted_to=fitted_to) for name, own in candidate.labels.items()}
    )


def _label_outputs(
    model: nn.Module,
    cohort: Cohort,
    method: str,
    goal: Goal,
    goals: Mapping[str, Goal] | None,
    outputs: Mapping[str, int | str] | None,
) -> tuple[nn.Module, Goal]:
    """The network with the outputs of the cohort's labels, and the joint goal; with one label, both unchanged."""
    if cohort.targets is None:
        if unused := [name for name, value in (("goals", goals), ("outputs", outputs)) if value is not None]:
            raise BadInput(
                f"{' and '.join(unused)} is for cohorts of several labels or classes; {cohort.name!r} has one label. "
                "Give it label=[...] or classes=[...]"
            )
        return model, goal
    check_method(method, cohort.kind, cohort.labels[0])
    if cohort.kind == "classes" and any(own.threshold is not None for own in (goal, *(goals or {}).values())):
        raise BadInput("classes are decided by argmax, which has no threshold. Leave it out")
    joint = goals_of(cohort.labels, cohort.kind, goal, goals)
    return chosen_outputs(model, cohort.inputs, cohort.labels, cohort.kind, outputs or {}), joint


def _scores_alone(
    scores: Scores | Mapping[str, Scores],
    method: str,
    goal: Goal,
    goals: Mapping[str, Goal] | None,
    features: object,
    seed: int,
    force: bool,
    limits: Mapping[str, Any],
) -> Candidate:
    """The rule for scores without a network; with several labels, one rule per label, judged together."""
    several = isinstance(scores, Mapping)
    parts = {str(name): own for name, own in scores.items()} if isinstance(scores, Mapping) else {"": scores}
    if features is not None:
        parts = {name: own.with_features(features) for name, own in parts.items()}
    if goals is not None and not several:
        raise BadInput("goals is for the scores of several labels, eq.debias({label: scores, ...}); these are the scores of one")
    label_goals = goals_of(tuple(parts), "labels", goal, goals).each if several else (goal,)
    if not force:
        for name, label_goal in zip(parts, label_goals, strict=True):
            check_cells({f"the repair set of {name}" if name else "the repair set": parts[name]}, [label_goal])
    deadline = None if limits["budget"] is None else time.monotonic() + limits["budget"]
    candidates: dict[str, Candidate] = {}
    for at, (name, label_goal) in enumerate(zip(parts, label_goals, strict=True)):
        budget = None if deadline is None else max(0.001, (deadline - time.monotonic()) / (len(parts) - at))
        candidate = run_method(method, None, parts[name], label_goal, seed=seed, **{**limits, "budget": budget})
        candidates[name] = judged(candidate, parts[name], label_goal, len(parts))
    return _together(candidates) if several else candidates[""]


def check_method(method: str, kind: str, example: str) -> None:
    """Raises `BadInput`, which lists the suitable methods, if a method cannot repair several labels or classes."""
    able = [name for name, own in METHODS.items() if (own.classes if kind == "classes" else own.labels)]
    if pick("method", method, METHODS) in able:
        return
    what = "classes, which are decided by argmax" if kind == "classes" else "labels"
    raise BadInput(f"{method} cannot repair several {what}. Use one of: {', '.join(able)}; or one label: cohort.labelled({example!r})")


def run_method(
    name: str,
    model: nn.Module | None,
    cohort: Rows,
    goal: Goal,
    *,
    seed: int,
    train: Cohort | None = None,
    settings: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
    budget: float | None = None,
    refuse_constant: bool = False,
) -> Candidate:
    """The candidate of one method for a network, within about `budget` seconds.

    The network of a cohort with several labels is `ChosenOutputs`, and its goal is a `JointGoal`. With `refuse_constant`, steps with
    constant decisions are not chosen; the published selection, which studies reproduce, has no such rule, and cross-fitted selection always
    has it.
    """
    if budget is not None and not budget > 0:
        raise BadInput(f"budget must be a positive number of seconds, or None for no limit; got {budget}")
    method = METHODS[pick("method", name, METHODS)]
    chosen = make_settings(name, settings or {})
    _check_given(method, model, cohort, goal, train)
    deadline = None if budget is None else time.monotonic() + budget
    if method.kind == Kind.OTHERS:  # it calls this function for each of its methods
        best: Candidate = method.run(model, cohort, goal, seed=seed, train=train, settings=chosen, progress=progress, deadline=deadline)
        return best
    if isinstance(model, ChosenOutputs) and isinstance(cohort, Cohort) and method.labels == ONE_BY_ONE:
        return _one_by_one(name, model, cohort, seed, goal.each, settings or {}, train, progress, refuse_constant)
    goals = [own.for_steps() for own in goal.each]  # cross-fitting happens here, not in the method
    used = train if method.takes_train else None
    job = Job(method, model, cohort, goals, seed, chosen, used, progress, deadline=deadline, refuse_constant=refuse_constant)
    try:
        candidate = run_cross_fitted(job, goal.selection) if goal.selection != "paper" else run(job).candidate
    except EmptyCell as error:
        hints = [text for part, own in _parts(cohort, goal) for text in advice([part], own)]
        raise EmptyCell(*error.problems, *hints[: len(goal.each)]) from error
    return _noted(method, candidate, model, cohort, goal)


def _check_given(method: Method, model: nn.Module | None, rows: Rows, goal: Goal, train: Cohort | None) -> None:
    """Raises `BadInput`, which lists the suitable methods, if a method cannot be run on these inputs."""
    name = method.name
    if isinstance(rows, Scores) and not method.on_scores:
        able = ", ".join(other for other in METHODS if METHODS[other].on_scores)
        raise BadInput(f"{name} changes a network, and {rows.name!r} holds scores alone. Use one of: {able}")
    if not isinstance(rows, Scores) and not isinstance(model, nn.Module):
        raise BadInput(f"{name} repairs a torch.nn.Module; got {type(model).__name__}")
    for own in goal.each:
        if not takes(name, own.measure):
            able = ", ".join(other for other in METHODS if takes(other, own.measure))
            raise BadInput(f"{name} cannot reduce {own.measure}, a quotient whose denominator depends on the decisions. Use one of: {able}")
    if rows.weight is not None and not (method.weights or method.kind == Kind.OTHERS):
        able = ", ".join(other for other in METHODS if METHODS[other].weights)
        raise BadInput(f"{name} does not take sample weights, which {rows.name!r} has. Use one of: {able}; or leave the weights out.")
    if method.needs_train and train is None:
        raise BadInput(f"{name} trains from scratch and needs the training set: train=parts.train")


def _parts(cohort: Rows, goal: Goal) -> list[tuple[Rows, Goal]]:
    """The rows of each label, with its goal."""
    return list(zip(cohort.by_label.values(), goal.each, strict=True))


def _noted(method: Method, candidate: Candidate, model: nn.Module | None, cohort: Rows, goal: Goal, labels: int = 1) -> Candidate:
    """The candidate with notes on its repair set, and the judgement of its cross-fitted decisions, if it has any."""
    if candidate.labels:
        assert isinstance(model, ChosenOutputs)  # several labels are outputs of one network
        parts = _parts(cohort, goal)
        each = {
            name: _noted(method, own, model.view(at), *parts[at], labels=len(parts))
            for at, (name, own) in enumerate(candidate.labels.items())
        }
        return replace(candidate, labels=each, met_in_sample=all(own.met_in_sample for own in each.values()))
    if goal.keep and goal.selection == "paper":
        candidate = kept_or_not(candidate, model, cohort)
    return judged(remarked(candidate, cohort, goal, method.without_group), cohort, goal, labels)


def judged(candidate: Candidate, cohort: Rows, goal: Goal, labels: int = 1) -> Candidate:
    """The candidate with the judgement of its cross-fitted decisions on these rows, by the given goal."""
    held = candidate.held_out
    if held is None:
        return candidate
    rows = cohort if isinstance(cohort, Scores) else Scores.of(cohort, held.before)  # the score itself is not used
    return replace(candidate, held_out=replace(held, judged_on=(rows, goal, labels)))


def _one_by_one(
    method: str,
    model: ChosenOutputs,
    cohort: Cohort,
    seed: int,
    goals: Sequence[Goal],
    settings: Mapping[str, Any],
    train: Cohort | None,
    progress: Progress | None,
    refuse_constant: bool,
) -> Candidate:
    """The joint candidate of a method that repairs one label after another."""
    by_label: dict[str, Candidate] = {}
    for at, (name, goal) in enumerate(zip(cohort.labels, goals, strict=True)):
        rows, label_train = cohort.labelled(name), None if train is None else train.labelled(name)
        limits: dict[str, Any] = {"settings": settings, "refuse_constant": refuse_constant}
        candidate = run_method(method, model.view(at), rows, goal, seed=seed, train=label_train, **limits)
        by_label[name] = judged(candidate, rows, goal, len(goals))  # the labels share the error rate of their claims
        if progress:
            progress(at + 1, len(goals))
    network = _with_heads(model, by_label)
    whole = model.around(network)
    each = {name: replace(own, model=whole.view(at)) for at, (name, own) in enumerate(by_label.items())}
    return _together(each, network)


def _together(each: dict[str, Candidate], network: nn.Module | None = None) -> Candidate:
    """The joint candidate of labels that were repaired one by one, with a trace of two steps: the original and the chosen one."""
    rows = []
    for step in (0, 1):
        values = [own.trace.iloc[own.chosen if step else 0] for own in each.values()]
        gaps = np.array([row["gap"] for row in values])
        worst = int(np.abs(np.where(np.isnan(gaps), np.inf, gaps)).argmax())
        rows.append((step, gaps[worst], float(np.mean([row["performance"] for row in values])), np.nan, list(each)[worst]))
    trace = pd.DataFrame(rows, columns=["step", "gap", "performance", "threshold", "label"])
    return joined(network, each, trace, 1, (Note("each_label_alone"),), "labels")


def _with_heads(chosen: ChosenOutputs, by_label: Mapping[str, Candidate]) -> nn.Module:
    """The network with the heads that were fitted for its outputs; without heads, a copy of the network."""
    heads = {column: own.model for column, own in zip(chosen.columns, by_label.values(), strict=True) if isinstance(own.model, BiasScore)}
    if not heads:
        return copy.deepcopy(chosen.inner)
    if chosen.flat:
        return next(iter(heads.values()))
    return ManyBiasScores.of(copy.deepcopy(chosen.inner), heads, chosen.output, WRAPPED).eval()
