"""The driver: one run of one method on checked arguments (`run_method`), and cross-fitted selection among its steps.

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
grows with the share, by a line. The decisions that were not fitted to their row are kept as `HeldOut`; they determine the outcome without
a test set. The choice among the steps is in `choosing`.
"""

import copy
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from equipoise.data import Cohort, Identities, Rows, Scores, assign_folds, generator
from equipoise.errors import BadInput, EmptyCell, pick
from equipoise.measures import FloatArray, at_threshold, tabulate
from equipoise.methods.candidate import Candidate, LabelCandidate, Progress
from equipoise.methods.choosing import ChosenStep, choose_step, cross_fitted, nearness, refused, too_low
from equipoise.methods.contract import (
    METHODS,
    ONE_BY_ONE,
    PART_TOO_SMALL,
    Fit,
    FitStep,
    Kind,
    MethodRun,
    Rng,
    cross_fitting_parts,
    make_settings,
)
from equipoise.methods.evaluation import NOISE, Data, kept_rates, limits_of
from equipoise.methods.goal import Goal
from equipoise.methods.rules import along, fit_steps, not_constant
from equipoise.methods.small_cells import advice, note_rows
from equipoise.methods.step_estimates import StepEstimates, corrected

if TYPE_CHECKING:
    from torch import nn

    from equipoise.models import ChosenOutputs, ReadOnce


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
    if isinstance(cohort, Scores) and not method.on_scores:
        able = ", ".join(other for other in METHODS if METHODS[other].on_scores)
        raise BadInput(f"{name} changes a network, and {cohort.name!r} holds scores alone. Use one of: {able}")
    for own_goal in goals.values():
        if not method.takes(own_goal.measure):
            able = ", ".join(other for other in METHODS if METHODS[other].takes(own_goal.measure))
            quotient = f"{own_goal.measure}, a quotient whose denominator depends on the decisions"
            raise BadInput(f"{name} cannot reduce {quotient}. Use one of: {able}")
    if cohort.weight is not None and not (method.weights or method.kind == Kind.OTHERS):
        able = ", ".join(other for other in METHODS if METHODS[other].weights)
        raise BadInput(f"{name} does not take sample weights, which {cohort.name!r} has. Use one of: {able}; or leave the weights out.")
    if method.needs_train and train is None:
        raise BadInput(f"{name} trains from scratch and needs the training set: train=parts.train")
    fitted_to = {"repair": Identities.of(cohort)} | ({} if train is None else {"training": Identities.of(train)})
    views: Mapping[str, Any] = dict.fromkeys(goals)
    if not isinstance(cohort, Scores):
        from equipoise.models import ChosenOutputs, is_network, label_views

        if not is_network(model):
            raise BadInput(f"{name} repairs a torch.nn.Module; got {type(model).__name__}")
        views = label_views(model, goals)
        if isinstance(model, ChosenOutputs) and method.labels == ONE_BY_ONE:
            limits = {"settings": settings, "progress": progress, "budget": None, "refuse_constant": refuse_constant}
            each = label_by_label(name, views, cohort.by_label, goals, train, seed, limits).labels
            network = _with_heads(model, each)
            views = label_views(model, goals, network)
            return joined({label: replace(own, model=views[label], fitted_to=fitted_to) for label, own in each.items()}, network)
    deadline = None if budget is None else time.monotonic() + budget
    result: Candidate
    if method.kind == Kind.OTHERS:  # it calls this function for each of its methods
        result = method.run(model, cohort, goals, seed=seed, train=train, settings=chosen, progress=progress, deadline=deadline)
        return result
    used_train, parts = train if method.takes_train else None, cohort.by_label
    run = MethodRun(method, model, cohort, goals, seed, chosen, used_train, progress, deadline, refuse_constant)
    try:
        Data.of(cohort, goals)  # raises an error if the set lacks rows that the measure needs
        if method.kind != Kind.STEPS and not cohort.several:
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
        if goal.keep and run.selection == "paper":
            own = _check_kept_rates(own, views[label], part)
        near = None if own.met_in_sample else nearness(own, goal)
        own = replace(own, why=own.why if near is None else (*own.why, near), fitted_to=fitted_to)
        noted[label] = note_rows(own, part, method.without_group)
    return result.with_labels(noted)


def _check_kept_rates(candidate: LabelCandidate, model: "nn.Module | None", cohort: Rows) -> LabelCandidate:
    """The candidate of any method; if it does not keep the rates of its goal, with `met` False and a note for each rate."""
    from equipoise.models import predict

    keep, attribute = candidate.goal.keep, cohort.attribute
    original = predict(model, cohort)
    threshold = float(candidate.trace["threshold"].iloc[0])
    before = kept_rates(keep, tabulate(at_threshold(original.score, threshold), cohort.y, attribute, cohort.weight))
    after = kept_rates(keep, tabulate(candidate.decide(cohort), cohort.y, attribute, cohort.weight))
    least = limits_of(keep, before)
    places = [(name, level) for name in keep for level in attribute.levels]
    broken = [
        too_low(name, now, limit, level) for (name, level), now, limit in zip(places, after, least, strict=True) if now < limit - NOISE
    ]
    return replace(candidate, met_in_sample=False, why=(*candidate.why, *broken)) if broken else candidate


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
    for at, (name, rows) in enumerate(parts.items()):
        left = None if deadline is None else max(0.001, (deadline - time.monotonic()) / (count - at))
        own_limits = {**limits, "budget": left, "progress": progress if count == 1 else None}
        label_train = None if train is None else train.by_label[name]
        own = run_method(method, models[name], rows, {"": goals[name]}, seed=seed, train=label_train, **own_limits).only
        results[name] = own if own.held_out is None else replace(own, held_out=replace(own.held_out, labels=count))
        if progress and count > 1:
            progress(at + 1, count)
    return joined(results)


def joined(each: dict[str, LabelCandidate], network: "nn.Module | None" = None) -> Candidate:
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
    method, model, whole = run.method, run.model, run.rows.encoded()  # once, so that a subset has the same encoding
    ((name, goal),) = run.in_sample.items()
    network, scores = None, whole
    if model is not None and isinstance(whole, Cohort):
        from equipoise.models import ReadOnce, check, predict

        if method.kind == Kind.PROBES:
            check(model, whole, changed=False)
        network = ReadOnce(model, whole.inputs)
        scores = predict(model, whole, raw=network.raw())
    assert isinstance(scores, Scores)  # rows without a network are scores
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
        found = along(found, method.name, scores)
        steps = [found.steps, *(fit_steps(own, method.name, scores) for own in fits[1:])]
        decisions, *by_part = (step_decisions(own, model, whole, network, scores) for own in steps)
        count = len(found.steps)
        held, tuned = (np.zeros((count, len(whole))) for _ in range(2))
        for k, own in enumerate(by_part):
            outside, reached = fold == k, own[np.minimum(np.arange(count), len(own) - 1)]  # the last step of a fit stands for further ones
            held[:, outside] = reached[:, outside]
            tuned[:, ~outside] += reached[:, ~outside] / (parts - 1)
        estimate = corrected(decisions, held, tuned, parts, range(count), grows=method.kind == Kind.PROBES)
        evidence = StepEstimates.of(estimate, whole, goal.derived(selection=run.selection), held)
        original = float(found.trace["performance"].iloc[0])
        chosen = choose_step([evidence], range(count), method.least_gap, refused(decisions, whole.attribute.codes), [original])
        step = found.steps[chosen.at]
        notes = found.notes if step.rule.needs_group == method.needs_group else ()  # not those of a rule that was declined
    candidate = LabelCandidate(
        method=method.name,
        model=copy.deepcopy(model) if step.model is None else step.model,
        rule=step.rule,
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
    return Candidate.of(candidate, name)


def step_decisions(
    steps: Sequence[FitStep], model: "nn.Module | None", rows: Rows, network: "ReadOnce | None" = None, scores: Scores | None = None
) -> FloatArray:
    """The decisions of every step of a fit on these rows (steps, n), by the network and rule that it would deliver.

    `scores` are those of the model on these rows, if they are known. The network is run once for all bias scores around it, unless
    `network` holds its outputs on these rows.
    """
    if isinstance(rows, Scores):
        return np.stack([step.rule.decide(rows) for step in steps])
    if scores is not None and all(step.model is None for step in steps):
        return np.stack([step.rule.decide(scores) for step in steps])
    from equipoise.models import BiasScore, ReadOnce, bias_scores, predict

    probes = [step.model for step in steps if isinstance(step.model, BiasScore)]
    by_network = {id(None): predict(model, rows) if scores is None else scores}
    if probes:
        first = probes[0]
        read = network if network is not None and network.of(first.network) else ReadOnce(first.network, rows.inputs)
        for probe, own in zip(probes, bias_scores(probes, read.shown(first.reading)), strict=True):
            by_network[id(probe)] = Scores.of(rows, own)
    return np.stack([step.rule.decide(by_network.get(id(step.model)) or predict(step.model, rows)) for step in steps])
