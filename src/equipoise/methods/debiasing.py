"""Running a method by name: `debias` repairs a network or scores; `run_method` is one run of one method on checked arguments.

A network with several outputs is repaired for all of its labels or classes at once. Methods that change the network change it for all
labels together; methods that fit a rule or probes do so for one label after another, and the results are joined. Classes are decided by
argmax, without one rule per class, so they need a method that changes the network.
"""

import copy
import time
from collections.abc import Mapping
from dataclasses import replace
from numbers import Integral
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pandas as pd

from equipoise.data import Cohort, Identities, LabelKind, Rows, Scores, check_apart, check_cohort
from equipoise.errors import BadInput, EmptyCell, Misuse, pick
from equipoise.measures import Gap
from equipoise.methods.candidate import Candidate, LabelCandidate, Progress
from equipoise.methods.contract import METHODS, ONE_BY_ONE, Kind, Method, make_settings, takes
from equipoise.methods.cross_fitted import run_cross_fitted_steps, run_fit
from equipoise.methods.driver import Job, run_steps
from equipoise.methods.evaluation import Data
from equipoise.methods.goal import (
    DEFAULT_MEASURE,
    DEFAULT_PERFORMANCE,
    DEFAULT_SELECTION,
    Goal,
    given_goal,
    goals_at,
    goals_of,
    keeping,
    raise_together,
)
from equipoise.methods.remarks import advice, check_cells, kept_or_not, remarked
from equipoise.specification import is_real

if TYPE_CHECKING:
    from torch import nn

    from equipoise.models import ChosenOutputs

NO_NETWORK = {  # advice by the type of an argument that is not a network
    "Cohort": "The network comes first, then the cohort.",
    "DataFrame": "Make a cohort of the frame: eq.debias(model, eq.Cohort.from_frame(frame, label=..., group=...)).",
    "type": "Give a fitted instance of it, not the class.",
    "str": "A file is a model if its name ends in .onnx, .pt2 or .skops; other networks in files are repaired by `equipoise debias`.",
}


def debias(
    model: "nn.Module | Scores | Mapping[str, Scores] | object",
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
    scores = {"": model} if isinstance(model, Scores) else model
    if isinstance(scores, Mapping) and scores and all(isinstance(own, Scores) for own in scores.values()):
        with_network = {"cohort": cohort, "train": train, "outputs": outputs}
        if unused := [name for name, value in with_network.items() if value is not None]:
            raise BadInput(
                f"scores are repaired without a network; {', '.join(unused)} goes with one: eq.debias(model, cohort). Leave it out"
            )
        if goals is not None and scores is not model:
            raise BadInput("goals is for the scores of several labels, eq.debias({label: scores, ...}); these are the scores of one")
        parts = {str(name): own if features is None else own.with_features(features) for name, own in scores.items()}
        by_label = goals_of(list(parts), LabelKind.LABELS, goal, goals)
        if not force:
            for name, own in parts.items():
                check_cells({f"the repair set of {name}" if name else "the repair set": own}, {"": by_label[name]})
        return _with_fitted_rows(_together(_label_by_label(method, dict.fromkeys(parts), parts, by_label, None, seed, limits)), parts)
    from equipoise.models import Predictor, classifier, label_views, predict

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
        result = debias(
            predict(model, cohort), method=method, goal=goal, force=force, seed=seed, budget=budget, progress=progress, **settings
        )
        each = {name: replace(own, model=model) for name, own in result.labels.items()}
        return _with_fitted_rows(result.with_labels(each, model=model), {"": cohort})
    network = _label_outputs(model, cohort, method, goal, goals, outputs)
    by_label = goals_of(list(cohort.by_label), cohort.kind, goal, goals)
    if not force:
        check_cells({"the repair set": cohort}, by_label)
    if train is not None:
        check_cohort("eq.debias, as train,", train)
    check_apart(training=train, repair=cohort)
    result = run_method(method, network, cohort, by_label, seed=seed, train=train, **limits)
    result = _with_fitted_rows(result, dict.fromkeys(by_label, cohort), train)
    if not recalibrate:
        return result
    from equipoise.methods.recalibration import recalibrated

    return recalibrated(result, label_views(network, by_label), cohort)


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


def _with_fitted_rows(result: Candidate, rows: Mapping[str, Rows], train: Cohort | None = None) -> Candidate:
    """The result with the identities of the rows that each label was fitted to."""
    sets = {id(own): {"repair": Identities.of(own)} for own in rows.values()}  # labels of one network share their rows
    training = {} if train is None else {"training": Identities.of(train)}
    return result.with_labels({name: replace(own, fitted_to=sets[id(rows[name])] | training) for name, own in result.labels.items()})


def _label_outputs(
    model: "nn.Module",
    cohort: Cohort,
    method: str,
    goal: Goal,
    goals: Mapping[str, Goal] | None,
    outputs: Mapping[str, int | str] | None,
) -> "nn.Module":
    """The network with the outputs of the cohort's labels; with one label, unchanged."""
    from equipoise.models import chosen_outputs

    if not cohort.several:
        if unused := [name for name, value in (("goals", goals), ("outputs", outputs)) if value is not None]:
            raise BadInput(
                f"{' and '.join(unused)} is for cohorts of several labels or classes; {cohort.name!r} has one label. "
                "Give it label=[...] or classes=[...]"
            )
        return model
    check_method(method, cohort.kind, cohort.labels[0])
    if cohort.kind.argmax and any(own.threshold is not None for own in (goal, *(goals or {}).values())):
        raise BadInput("classes are decided by argmax, which has no threshold. Leave it out")
    return chosen_outputs(model, cohort.inputs, cohort.labels, cohort.kind, outputs or {})


def check_method(method: str, kind: LabelKind, example: str) -> None:
    """Raises `BadInput`, which lists the suitable methods, if a method cannot repair several labels or classes."""
    able = [name for name, own in METHODS.items() if own.repairs(kind)]
    if pick("method", method, METHODS) in able:
        return
    what = "classes, which are decided by argmax" if kind.argmax else "labels"
    raise BadInput(f"{method} cannot repair several {what}. Use one of: {', '.join(able)}; or one label: cohort.labelled({example!r})")


def run_method(
    name: str,
    model: "nn.Module | None",
    cohort: Rows,
    goals: Mapping[str, Goal],
    *,
    seed: int,
    train: Cohort | None = None,
    settings: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
    budget: float | None = None,
    refuse_constant: bool = False,
) -> Candidate:
    """The result of one method for a network, within about `budget` seconds.

    `goals` has the goal of each label, with one selection; the goal of a cohort with one label is {"": goal}. The network of a cohort with
    several labels is `ChosenOutputs`. With `refuse_constant`, steps with constant decisions are not chosen; the published selection, which
    studies reproduce, has no such rule, and cross-fitted selection always has it.
    """
    if budget is not None and not budget > 0:
        raise BadInput(f"budget must be a positive number of seconds, or None for no limit; got {budget}")
    method = METHODS[pick("method", name, METHODS)]
    chosen = make_settings(name, settings or {})
    _check_given(method, cohort, goals, train)
    views: dict[str, Any] = dict.fromkeys(goals)
    if not isinstance(cohort, Scores):
        from equipoise.models import ChosenOutputs, is_network, label_views, outputs_like

        if not is_network(model):
            raise BadInput(f"{name} repairs a torch.nn.Module; got {type(model).__name__}")
        views = label_views(model, goals)
        if isinstance(model, ChosenOutputs) and method.labels == ONE_BY_ONE:
            limits = {"settings": settings, "progress": progress, "budget": None, "refuse_constant": refuse_constant}
            each = _label_by_label(name, views, cohort.by_label, goals, train, seed, limits)
            network = _with_heads(model, each)
            views = label_views(outputs_like(model, network), goals)
            return _together({label: replace(own, model=views[label]) for label, own in each.items()}, network)
    deadline = None if budget is None else time.monotonic() + budget
    result: Candidate
    if method.kind == Kind.OTHERS:  # it calls this function for each of its methods
        result = method.run(model, cohort, goals, seed=seed, train=train, settings=chosen, progress=progress, deadline=deadline)
        return result
    for_steps = {label: goal.for_steps() for label, goal in goals.items()}  # cross-fitting happens here, not in the method
    used_train, selection = train if method.takes_train else None, next(iter(goals.values())).selection
    job = Job(method, model, cohort, for_steps, seed, chosen, used_train, progress, deadline, refuse_constant)
    parts = cohort.by_label
    try:
        Data.of(cohort, for_steps)  # raises an error if the set lacks rows that the measure needs
        if method.kind != Kind.STEPS and not cohort.several:
            result = run_fit(job, selection)
        else:  # `standard` of several labels is a run of no steps
            result = run_steps(job)[0] if selection == "paper" else run_cross_fitted_steps(job, selection)
    except EmptyCell as error:
        hints = [text for label, part in parts.items() for text in advice([part], goals[label])]
        raise EmptyCell(*error.problems, *hints[: len(goals)]) from error
    noted = {}
    for label, own in result.labels.items():
        goal, part = goals[label], parts[label]
        if goal.keep and selection == "paper":
            own = kept_or_not(own, views[label], part)
        noted[label] = _judged(remarked(own, part, goal, method.without_group), part, goal, len(goals))
    return result.with_labels(noted)


def _check_given(method: Method, rows: Rows, goals: Mapping[str, Goal], train: Cohort | None) -> None:
    """Raises `BadInput`, which lists the suitable methods, if a method cannot be run on these inputs."""
    name = method.name
    if isinstance(rows, Scores) and not method.on_scores:
        able = ", ".join(other for other in METHODS if METHODS[other].on_scores)
        raise BadInput(f"{name} changes a network, and {rows.name!r} holds scores alone. Use one of: {able}")
    for own in goals.values():
        if not takes(name, own.measure):
            able = ", ".join(other for other in METHODS if takes(other, own.measure))
            raise BadInput(f"{name} cannot reduce {own.measure}, a quotient whose denominator depends on the decisions. Use one of: {able}")
    if rows.weight is not None and not (method.weights or method.kind == Kind.OTHERS):
        able = ", ".join(other for other in METHODS if METHODS[other].weights)
        raise BadInput(f"{name} does not take sample weights, which {rows.name!r} has. Use one of: {able}; or leave the weights out.")
    if method.needs_train and train is None:
        raise BadInput(f"{name} trains from scratch and needs the training set: train=parts.train")


def _judged(candidate: LabelCandidate, rows: Rows, goal: Goal, labels: int) -> LabelCandidate:
    """The candidate with the judgement of its cross-fitted decisions on these rows, by the given goal."""
    held = candidate.held_out
    if held is None:
        return candidate
    scores = rows if isinstance(rows, Scores) else Scores.of(rows, held.before)  # the score itself is not used
    return replace(candidate, held_out=replace(held, judged_on=(scores, goal, labels)))


def _label_by_label(
    method: str,
    models: Mapping[str, "nn.Module | None"],
    parts: Mapping[str, Rows],
    goals: Mapping[str, Goal],
    train: Cohort | None,
    seed: int,
    limits: Mapping[str, Any],
) -> dict[str, LabelCandidate]:
    """The results of a method that repairs one label after another, which share the time and the error rate of their claims."""
    progress, budget, count = limits["progress"], limits["budget"], len(parts)
    deadline = None if budget is None else time.monotonic() + budget
    results: dict[str, LabelCandidate] = {}
    for at, (name, rows) in enumerate(parts.items()):
        left = None if deadline is None else max(0.001, (deadline - time.monotonic()) / (count - at))
        own_limits = {**limits, "budget": left, "progress": progress if count == 1 else None}
        label_train = None if train is None else train.by_label[name]
        result = run_method(method, models[name], rows, {"": goals[name]}, seed=seed, train=label_train, **own_limits)
        results[name] = _judged(result.only, rows, goals[name], count)
        if progress and count > 1:
            progress(at + 1, count)
    return results


def _together(each: dict[str, LabelCandidate], network: "nn.Module | None" = None) -> Candidate:
    """The result of labels that were repaired one by one; the trace of several has two steps, the original and the chosen one."""
    rows = []
    for step in (0, 1):
        values = [own.trace.iloc[own.chosen if step else 0] for own in each.values()]
        gaps = np.array([row["gap"] for row in values])
        worst = int(np.abs(np.where(np.isnan(gaps), np.inf, gaps)).argmax())
        rows.append((step, gaps[worst], float(np.mean([row["performance"] for row in values])), np.nan, list(each)[worst]))
    trace = pd.DataFrame(rows, columns=["step", "gap", "performance", "threshold", "label"])
    return Candidate(each, network, trace, 1).with_labels(each)


def _with_heads(chosen: "ChosenOutputs", by_label: Mapping[str, LabelCandidate]) -> "nn.Module":
    """The network with the heads that were fitted for its outputs; without heads, a copy of the network."""
    from equipoise.models import WRAPPED, BiasScore, ManyBiasScores

    heads = {column: own.model for column, own in zip(chosen.columns, by_label.values(), strict=True) if isinstance(own.model, BiasScore)}
    if not heads:
        return copy.deepcopy(chosen.inner)
    if chosen.flat:
        return next(iter(heads.values()))
    return ManyBiasScores.of(copy.deepcopy(chosen.inner), heads, chosen.output, WRAPPED).eval()
