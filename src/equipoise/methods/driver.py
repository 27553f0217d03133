"""The driver: `eq.debias`, which checks its arguments, and a run of one method (`run_method`); several of them are run by `auto`.

A network with several outputs is repaired for all of its labels or classes at once. Methods that change the network change it for all
labels together; methods that fit a rule or probes do so for one label after another, and the results are joined. Classes are decided by
argmax, without one rule per class, so they need a method that changes the network.

Cross-fitted selection: a step is chosen by decisions on rows that it was not fitted to, or none is. The paper's rule takes the smallest
|gap| of hundreds of steps on the rows that they were fitted to, so that the winner is worse on new patients than it seemed. Here a method
is also run on parts of the repair set, split by patient: rules and probes leave out one of five parts in turn, fine-tuning one of two
halves. Steps are compared on a grid that is comparable between sets of rows: the share of the original gap that is removed on the rows of
the fit (`rungs`). Every row then has decisions by fits that include it and by fits that do not, at the same share. Their difference is the
optimism of the fit. It is inversely proportional to the number of rows, and a fit that leaves out one part has 1 - 1/K of them, so the
corrected decisions of a step are

    f = f(all rows) + (1 - 1/K) (f(not fitted to the row) - f(fitted to it))

Gaps, rates and balanced accuracy are affine in f, so their corrected values and standard errors are those of this f. This is the optimism
correction of Efron and Harrell with cross-validation in place of the bootstrap. The correction of a single step is mostly noise (thresholds
that jump from part to part), which with 200 rows hid losses of 0.08 of balanced accuracy. It is therefore smoothed over the steps: for a
rule of a few thresholds, which is equally optimistic at every share, by the mean over all steps; for probes and networks, whose optimism
grows with the share, by a line. The decisions that were not fitted to their row are kept as `HeldOutDecisions`; they
determine the outcome without a test set. The choice among the steps is in `choosing`.
"""

import copy
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from numbers import Integral
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pandas as pd

from equipoise.data import (
    UNKNOWN,
    Cohort,
    FloatArray,
    Identities,
    LabelKind,
    Rows,
    Scores,
    assign_folds,
    check_apart,
    check_cohort,
    generator,
)
from equipoise.errors import BadInput, EmptyCell, Misuse, UnknownName, raise_all
from equipoise.measures import Cells, Gap, at_threshold
from equipoise.methods.candidate import Candidate, HeldOutDecisions, LabelCandidate, Progress
from equipoise.methods.choosing import ChosenStep, choose_step, cross_fitted, nearness, newly_constant, too_low
from equipoise.methods.contract import (
    METHODS,
    ONE_BY_ONE,
    PART_TOO_SMALL,
    Fit,
    FitStep,
    Kind,
    MethodRun,
    Rng,
    check_method,
    cross_fitting_parts,
)
from equipoise.methods.evaluation import RATE_NOISE, Data, kept_rates, least_rates
from equipoise.methods.goal import DEFAULT_MEASURE, DEFAULT_SELECTION, Goal, keeping, raise_together
from equipoise.methods.nested import OUTER_FOLDS, spread_of_folds
from equipoise.methods.recalibration import recalibrate_result
from equipoise.methods.rules import fit_steps, not_constant, with_steps
from equipoise.methods.small_cells import advice, check_cells, note_rows
from equipoise.methods.step_estimates import StepEstimates, correct_optimism
from equipoise.models import predict
from equipoise.specification import is_real

if TYPE_CHECKING:
    from torch import nn

    from equipoise.models import ChosenOutputs, FeatureCache


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
    max_gap: float | None = None,
    max_loss: float | None = None,
    allow_worse: bool = False,
    budget: float | None = 600.0,
    recalibrate: bool = True,
    threshold: float | Mapping[str, float] | None = None,
    force: bool = False,
    seed: int = 0,
    train: Cohort | None = None,
    test: str | None = None,
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
    - `performance`: what to preserve, "balanced_accuracy", "accuracy" or "f1"; or `missed_case_worth=10`, the number of false alarms that
      one missed case is worth, for net benefit at these odds.
    - `min_performance`: the lowest performance to accept. Without it, performance may fall by `max_loss` (0.02).
    - `max_gap`: the largest |gap| to accept. `result.met` then states whether all limits are kept on rows not used for fitting.
    - `keep={"tpr": "before"}`: no group's sensitivity may fall; `keep={"tpr": 0.8}` sets a minimum instead. By default no group may be
      worse off by the measure, which `allow_worse=True` permits.
    - `max_rise={"fpr": 0.05, "selection": 0.1}`: by how much a rate of any group may rise, 0.1 each where not given, and
      `max_rate={"fpr": 0.25}`: how high it may be.
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
    - `test="cross"`: the outcome is that of nested cross-fitting: every patient is judged by a repair that was fitted and chosen without
      them. It takes six times as long, and needs no test set.
    - `features`: further columns of the same rows as the scores (a frame or an array), for bias-score.
    - `recalibrate`: maps the scores of a changed network back to probabilities, without changing a decision (`result.recalibration`).
    - `force`: continues if a cell (group, label) has fewer than 5 patients, which is an error otherwise. The outcome is then unclear, harm
      or unchanged.

    A cohort of several labels or classes is repaired at once: `result.labels` has the result of each, and `outputs` maps labels to outputs
    of the network, by number or name.
    """
    given, errors, asked, number = model, list[BadInput](), cast(object, method), cast(object, seed)
    thresholds = threshold if isinstance(threshold, Mapping) else None  # one per label
    if not isinstance(asked, str):
        advice = ". To try several, use method='auto' with methods=(...)" if isinstance(asked, (list, tuple, set)) else ""
        errors.append(BadInput(f"method must be the name of one method, such as 'auto'; got {asked!r}{advice}"))
    if budget is not None and not (is_real(budget) and budget > 0):
        errors.append(BadInput(f"budget must be a positive number of seconds, or None for no limit; got {budget!r}"))
    if not (is_real(number) and isinstance(number, Integral)):
        errors.append(BadInput(f"seed must be an integer; got {number!r}"))
    if test not in (None, "cross"):
        errors.append(
            BadInput(f"test must be 'cross', for nested cross-fitting, or None; got {test!r}. Compare on a test set with eq.compare")
        )
    with keeping(errors):
        parts: dict[str, Any] = {name: settings.pop(name) for name in Goal.model_fields if name in settings and name != "original"}
        parts |= {"max_gap": max_gap, "max_loss": max_loss, "allow_worse": allow_worse}
        parts_of_goal = Goal(measure, **parts, threshold=threshold if thresholds is None else None)
        if goal is not None and parts_of_goal != Goal():
            raise BadInput(f"goal ({goal}) was given next to its parts ({parts_of_goal}). Put them into the goal, or leave it out")
        goal = goal or parts_of_goal
    raise_together(errors)
    assert goal is not None
    scores = {"": model} if isinstance(model, Scores) else model if isinstance(model, Mapping) else {}
    if thresholds is not None:
        from equipoise.measures import thresholds_by_name

        labels = list(scores) or list(getattr(cohort, "labels", []))
        if len(labels) < 2 or goals is not None:
            why = "goals was given, which has them too" if goals is not None else "there is one label"
            raise BadInput(f"a threshold for each label is for one goal of several labels; {why}. Give one number, or put it into goals")
        goals = {label: goal.changed(threshold=own) for label, own in thresholds_by_name(thresholds, labels).items()}
        goal = Goal(selection=goal.selection)
    limits: dict[str, Any] = {"settings": settings, "progress": progress, "budget": budget, "refuse_constant": True}
    if scores and all(isinstance(own, Scores) for own in scores.values()):
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
        result = label_by_label(method, dict.fromkeys(parts), parts, by_label, None, seed, limits)
        return result if test is None else _cross_tested(result, None, parts, by_label, settings=settings)
    from equipoise.models import Predictor, chosen_outputs, classifier, label_views, predict

    model = classifier(model)
    if model is None:
        raise Misuse("eq.debias", "a network and a cohort, eq.debias(model, parts.valid), or scores, eq.debias(scores)", given, NO_NETWORK)
    if cohort is None:
        raise BadInput("eq.debias takes a network and a cohort of patients to repair it on: eq.debias(model, parts.valid)")
    if features is not None:
        raise BadInput("features goes with scores alone, eq.debias(scores, features=...); a network has the inputs of its cohort")
    check_cohort("eq.debias, after the network,", cohort)
    if not cohort.several and (unused := [name for name, value in (("goals", goals), ("outputs", outputs)) if value is not None]):
        raise BadInput(
            f"{' and '.join(unused)} is for cohorts of several labels or classes; {cohort.name!r} has one label. "
            "Give it label=[...] or classes=[...]"
        )
    if isinstance(model, Predictor):
        if train is not None:
            raise BadInput("train is for methods that change a network; a repair of other classifiers is a decision rule. Leave it out")
        result = debias(
            predict(model, cohort),
            method=method,
            goal=goal,
            force=force,
            seed=seed,
            budget=budget,
            progress=progress,
            test=test,
            **settings,
        )
        each = {name: replace(own, model=model, fitted_to={"repair": Identities.of(cohort)}) for name, own in result.labels.items()}
        return replace(result, labels=each, model=model)
    network = model  # with the outputs of the cohort's labels; with one label, unchanged
    if cohort.several:
        check_method(method, settings, train=train is not None, labels=cohort.labels, kind=cohort.kind)
        if cohort.kind.argmax and any(own.threshold is not None for own in (goal, *(goals or {}).values())):
            raise BadInput("classes are decided by argmax, which has no threshold. Leave it out")
        network = chosen_outputs(model, cohort.inputs, cohort.labels, cohort.kind, outputs or {})
    by_label = goals_of(list(cohort.by_label), cohort.kind, goal, goals)
    if not force:
        check_cells({"the repair set": cohort}, by_label)
    if train is not None:
        check_cohort("eq.debias, as train,", train)
    check_apart(training=train, repair=cohort)
    result = run_method(method, network, cohort, by_label, seed=seed, train=train, **limits)
    result = result if test is None else _cross_tested(result, network, {"": cohort}, by_label, settings=settings, train=train)
    return recalibrate_result(result, label_views(network, by_label), cohort) if recalibrate else result


def _cross_tested(
    result: Candidate, model: "nn.Module | None", parts: Mapping[str, Rows], goals: Mapping[str, Goal], **limits: Any
) -> Candidate:
    """The result judged by nested cross-fitting: scores of several labels one after another, a network with all of its labels."""
    if model is not None:
        return cross_test(result, model, parts[""], goals, **limits)
    each = {
        name: cross_test(Candidate({"": own}, None), None, parts[name], {"": goals[name]}, **limits).only
        for name, own in result.labels.items()
    }
    return replace(result, labels=each)


def goals_of(labels: Sequence[str], kind: LabelKind, goal: Goal, goals: Mapping[str, Goal] | None) -> dict[str, Goal]:
    """The goal of each label: one goal for all of them, or the goals given by name.

    - `labels`: of the rows.
    - `kind`: labels or classes, for messages.
    """
    problems: list[str] = []
    if goals is not None:
        word = kind.one
        for name in goals:
            if name not in labels:
                problems += UnknownName(f"{word} in goals", name, labels).problems
        missing = [name for name in labels if name not in goals]
        if missing:
            problems.append(f"goals has none for {', '.join(missing)}; give every {word} a goal, or leave goals out to use one for all")
        if goal.changed(selection=DEFAULT_SELECTION) != Goal():
            problems.append(f"a goal for all ({goal}) was given next to goals; put it into the goal of each {word}")
        if len({own.selection for own in (goal, *goals.values()) if own.selection != DEFAULT_SELECTION}) > 1:
            problems.append(f"one selection serves every {word}; the goals have several")
    raise_all(problems)
    each = {name: (goals or {}).get(name, goal) for name in labels}
    chosen = next((own.selection for own in (goal, *each.values()) if own.selection != DEFAULT_SELECTION), DEFAULT_SELECTION)
    return {name: own if own.selection == chosen else own.changed(selection=chosen) for name, own in each.items()}


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

    - `name`, `settings`: the method, and values of its settings.
    - `model`: the network, with all outputs that are repaired; None for scores.
    - `seed`: of every random generator of the run.
    - `train`: the training set, for methods that take it.
    - `progress`: called with the steps done, and all of them.
    """
    on_scores, several = isinstance(cohort, Scores), cohort.several
    offered: dict[str, Any] = {"labels": cohort.labels, "kind": cohort.kind} if several else {}
    offered |= {"goals": list(goals.values()), "weighted": cohort.weight is not None, "rows": cohort.name}
    chosen = check_method(name, settings or {}, network=not on_scores, train=train is not None, **offered)
    own_method, deadline = METHODS[name], None if budget is None else time.monotonic() + budget
    fitted_to = {"repair": Identities.of(cohort)} | ({} if train is None else {"training": Identities.of(train)})
    views: Mapping[str, Any] = dict.fromkeys(goals)
    if not on_scores:
        from equipoise.models import is_network, label_views

        if not is_network(model):
            raise BadInput(f"{name} repairs a torch.nn.Module; got {type(model).__name__}")
        views = label_views(model, goals)
    if several and own_method.labels == ONE_BY_ONE:
        limits: dict[str, Any] = {"settings": settings, "progress": progress, "budget": None, "refuse_constant": refuse_constant}
        result = label_by_label(name, views, cohort.by_label, goals, train, seed, limits)
        network = _with_heads(cast("ChosenOutputs", model), result.labels)
        views = label_views(model, goals, network)
        each = {label: replace(own, model=views[label], fitted_to=fitted_to) for label, own in result.labels.items()}
        return replace(result, labels=each, model=network)
    used_train, parts = train if own_method.takes_train else None, cohort.by_label
    run = MethodRun(own_method, model, cohort, goals, seed, chosen, used_train, progress, deadline, refuse_constant)
    if own_method.kind == Kind.STEPS:
        from equipoise.models import with_weights

        run = replace(run, model=with_weights(cast("nn.Module", model), cast(Cohort, cohort).inputs))
    if own_method.kind == Kind.OTHERS:  # it calls this function for each of its methods
        return cast(Candidate, own_method.run(run))
    try:
        Data.of(cohort, goals)  # raises an error if the set lacks rows that the measure needs
        if own_method.kind != Kind.STEPS and not several:
            result = run_fit(run)
        else:
            from equipoise.methods.steps import run_cross_fitted_steps, run_steps  # late: rules for scores do not need it

            # `standard` of several labels is a run of no steps
            result = run_steps(run)[0] if run.selection == "paper" else run_cross_fitted_steps(run)
    except EmptyCell as error:
        hints = [text for label, part in parts.items() for text in advice(part, goals[label])]
        raise EmptyCell(*error.problems, *hints[: len(goals)]) from error
    noted = {}
    for label, own in result.labels.items():
        goal, part = goals[label], parts[label]
        if goal.keep and run.selection == "paper":  # whatever the method, a candidate that does not keep them is not met
            keep, threshold = own.goal.keep, float(own.trace["threshold"].iloc[0])
            decisions = at_threshold(predict(views[label], part).score, threshold), own.decide(part)
            before, after = (kept_rates(keep, Cells.of(f, part.y, part.attribute, part.weight)) for f in decisions)
            places = [(name, level) for name in keep for level in part.attribute.levels]
            reached = zip(places, after, least_rates(keep, before), strict=True)
            broken = [too_low(rate, now, least, level) for (rate, level), now, least in reached if now < least - RATE_NOISE]
            own = replace(own, met_in_sample=False, why=(*own.why, *broken)) if broken else own
        near = None if own.met_in_sample else nearness(own, goal)
        own = replace(own, why=own.why if near is None else (*own.why, near), fitted_to=fitted_to)
        noted[label] = note_rows(own, part, own_method.without_group)
    return replace(result, labels=noted)


def cross_test(
    result: Candidate,
    model: "nn.Module | None",
    rows: Rows,
    goals: Mapping[str, Goal],
    *,
    settings: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
    **limits: Any,
) -> Candidate:
    """The result, whose judgement is that of nested cross-fitting on all rows of the repair set.

    - `result`: the repair that was fitted to all `rows`, of `model` (None: scores) and for these `goals`.
    - `settings`, `limits`: the settings of its method, and further arguments of each run, such as `train` or `budget` (see `run_method`).
    """
    if rows.kind.argmax:
        raise BadInput("classes are decided by argmax, and are judged on a test set: leave repair.test out, or name a file")
    views: Mapping[str, Any] = dict.fromkeys(goals)
    if model is not None:
        from equipoise.models import label_views

        views = label_views(model, goals)
    parts = rows.by_label if rows.several else dict.fromkeys(goals, rows)
    known = {label: np.flatnonzero(rows.column(label) != UNKNOWN) if rows.several else np.arange(len(rows)) for label in goals}
    scores = {label: predict(views[label], part) for label, part in parts.items()}
    outer = assign_folds(rows, OUTER_FOLDS, generator(result.seed, "cross test"))
    decided: dict[str, list[FloatArray]] = {label: [] for label in goals}  # of each label, by each fold, on all rows
    before = {label: np.empty(len(part)) for label, part in parts.items()}
    for fold in range(OUTER_FOLDS):
        try:
            inner = rows.take(np.flatnonzero(outer != fold))
            found = run_method(result.method, model, inner, goals, seed=result.seed, settings=settings, refuse_constant=True, **limits)
        except EmptyCell as error:
            raise EmptyCell(
                *error.problems, "Four fifths of the patients are too few for a repair: use more data, or merge groups (data.merge)"
            ) from error
        for label, own in found.labels.items():
            inside = outer[known[label]] == fold
            threshold = float(own.trace["threshold"].iloc[0])
            before[label][inside] = at_threshold(scores[label].score[inside], threshold)
            decided[label].append(own.decide(parts[label]))
        if progress is not None:
            progress(fold + 1, OUTER_FOLDS)
    each = {}
    for label, own in result.labels.items():
        part, old, by_fold = scores[label], before[label], np.stack(decided[label])
        after = by_fold[outer[known[label]], np.arange(len(part))]
        held = HeldOutDecisions(old, after, part, goals[label], len(goals), nested=True)
        each[label] = replace(
            own, held_out=replace(held, spread=spread_of_folds(part, held, by_fold, own.decide(parts[label]), goals[label]))
        )
    return replace(result, labels=each)


def label_by_label(
    method: str,
    models: Mapping[str, "nn.Module | None"],
    parts: Mapping[str, Rows],
    goals: Mapping[str, Goal],
    train: Cohort | None,
    seed: int,
    limits: Mapping[str, Any],
) -> Candidate:
    """The result of a method that repairs one label after another, which share the time and the error rate of their claims."""
    progress, budget, count = limits["progress"], limits["budget"], len(parts)
    deadline = None if budget is None else time.monotonic() + budget
    results: dict[str, LabelCandidate] = {}
    for at, (name, part) in enumerate(parts.items()):
        left = None if deadline is None else max(0.001, (deadline - time.monotonic()) / (count - at))
        own_limits = {**limits, "budget": left, "progress": progress if count == 1 else None}
        label_train = None if train is None else train.by_label[name]
        own = run_method(method, models[name], part, {"": goals[name]}, seed=seed, train=label_train, **own_limits).only
        results[name] = own if own.held_out is None else replace(own, held_out=replace(own.held_out, labels=count))
        if progress and count > 1:
            progress(at + 1, count)
    rows = []  # of the trace of several labels: the original and the chosen steps
    for step in (0, 1):
        values = [own.trace.iloc[own.chosen if step else 0] for own in results.values()]
        gaps = np.array([row["gap"] for row in values])
        worst = int(np.abs(np.where(np.isnan(gaps), np.inf, gaps)).argmax())
        performance = float(np.mean([row["performance"] for row in values]))
        rows.append({"step": step, "gap": gaps[worst], "performance": performance, "threshold": np.nan, "label": list(results)[worst]})
    return Candidate(results, None, pd.DataFrame(rows), 1)


def _with_heads(chosen: "ChosenOutputs", by_label: Mapping[str, LabelCandidate]) -> "nn.Module":
    """The network with the heads that were fitted for its outputs; without heads, a copy of the network."""
    from equipoise.models import BiasScore, ManyBiasScores

    heads = {column: own.model for column, own in zip(chosen.columns, by_label.values(), strict=True) if isinstance(own.model, BiasScore)}
    if not heads:
        return copy.deepcopy(chosen.inner)
    if chosen.flat:
        return next(iter(heads.values()))
    return ManyBiasScores(copy.deepcopy(chosen.inner), heads, chosen.output).eval()


# Methods that fit a rule, or probes: every row of their trace can be delivered.


def run_fit(run: MethodRun) -> Candidate:
    """The candidate of a method that fits a rule or probes: the rule that it chose itself ("paper"), or a step chosen by cross-fitting."""
    ((name, goal),), every = run.in_sample.items(), run.rows.encoded()  # once, so that a subset has the same encoding
    method, model, whole = run.method, run.model, every.comparing(goal.groups)
    network = None
    if model is not None:
        from equipoise.models import FeatureCache, check_repairable

        cohort = cast(Cohort, whole)
        if method.kind == Kind.PROBES:
            check_repairable(model, cohort, changed=False)
        network = FeatureCache(model, cohort.inputs)
    scores = predict(model, whole, raw=None if network is None else network.raw())
    parts = 1 if run.selection == "paper" else cross_fitting_parts(method, len(whole))
    fold = assign_folds(whole, parts, generator(run.seed, "cross-fitted selection")) if parts > 1 else np.zeros(len(whole), np.int64)
    fits: list[Fit] = []  # to all rows, then without one part in turn
    for k in range(parts + 1 if parts > 1 else 1):
        rows = np.flatnonzero(fold != k - 1) if k else None
        inputs: list[Any] = [scores if rows is None else scores.take(rows), goal, run.settings]
        if method.kind == Kind.PROBES:
            outputs = network if network is None or rows is None else network.take(rows)
            inputs = [model, whole if rows is None else whole.take(rows), goal, run.settings, Rng(run.seed), run.train, outputs]
        try:
            fits.append(method.run(*inputs))
        except EmptyCell as error:
            raise EmptyCell(*error.problems, *([PART_TOO_SMALL] if k else [])) from error
    found, evidence = fits[0], None
    if run.selection == "paper":
        found = not_constant(found, method.name, scores) if run.refuse_constant and method.kind == Kind.RULE else found
        step, notes = FitStep(found.rule, found.model, found.steps[found.chosen].notes if found.steps else ()), found.notes
        chosen = ChosenStep(found.chosen, found.chosen, (found.why,), (found.met,), (found.goal,))
    else:
        found = with_steps(found, method.name, scores)
        steps = [found.steps, *(fit_steps(own, method.name, scores) for own in fits[1:])]
        decisions, *by_part = (step_decisions(own, model, whole, network, scores) for own in steps)
        count = len(found.steps)
        held, tuned = (np.zeros((count, len(whole))) for _ in range(2))
        for k, own in enumerate(by_part):
            outside, reached = fold == k, own[np.minimum(np.arange(count), len(own) - 1)]  # the last step of a fit stands for further ones
            held[:, outside] = reached[:, outside]
            tuned[:, ~outside] += reached[:, ~outside] / (parts - 1)
        estimate = correct_optimism(decisions, held, tuned, parts, range(count), grows=method.kind == Kind.PROBES)
        evidence = StepEstimates.of(estimate, every, goal.derived(selection=run.selection), held)
        original = float(found.trace["performance"].iloc[0])
        chosen = choose_step(
            [evidence],
            range(count),
            seed=run.seed,
            needs_group=any(step.rule.needs_group for step in found.steps[1:]),
            randomised=any(step.rule.randomised for step in found.steps[1:]),
            without=newly_constant(decisions, whole.attribute.codes),
            originals=[original],
        )
        step = found.steps[chosen.at]
        notes = found.notes if step.rule.needs_group == method.needs_group else ()  # not those of a rule that was declined
    rule, others = step.rule, tuple(level for level in every.attribute.levels if level not in whole.attribute.levels)
    candidate = LabelCandidate(
        method=method.name,
        model=copy.deepcopy(model) if step.model is None else step.model,
        rule=replace(cast(Any, rule), others=others) if rule.needs_group and others else rule,
        trace=found.trace,
        chosen=chosen.at,
        why=chosen.why[0],
        met_in_sample=chosen.met[0],
        goal=chosen.goals[0],
        seed=run.seed,
        settings=asdict(run.settings),
        notes=(*step.notes, *notes),
    )
    if run.progress:
        run.progress(1, 1)
    if evidence is not None:
        candidate = cross_fitted(candidate, evidence, chosen, 0, range(len(found.steps)), run.rows, run)
    return Candidate({name: candidate}, candidate.model)


def step_decisions(
    steps: Sequence[FitStep], model: "nn.Module | None", rows: Rows, network: "FeatureCache | None" = None, scores: Scores | None = None
) -> FloatArray:
    """The decisions of every step of a fit on these rows (steps, n), by the network and rule that it would deliver.

    `scores` are those of the model on these rows, if they are known. The network is run once for all bias scores around it, unless
    `network` holds its outputs on these rows.
    """
    scores = predict(model, rows) if scores is None else scores
    if all(step.model is None for step in steps):
        return np.stack([step.rule.decide(scores) for step in steps])
    from equipoise.models import BiasScore, FeatureCache

    by_network, cohort = {id(None): scores}, cast(Cohort, rows)
    if probes := [step.model for step in steps if isinstance(step.model, BiasScore)]:
        first = probes[0]
        read = network if network is not None and network.of(first.network) else FeatureCache(first.network, cohort.inputs)
        for probe, own in zip(probes, BiasScore.all_scores(probes, read.read(first.reading)), strict=True):
            by_network[id(probe)] = Scores.of(cohort, own)
    return np.stack([step.rule.decide(by_network.get(id(step.model)) or predict(step.model, rows)) for step in steps])
