"""`eq.debias`: checks its arguments, repairs a network, another classifier or scores by one method (see `driver`), and recalibrates.

Recalibration: the scores of a repaired network become probabilities again, and no decision changes.

A repair moves scores until the groups' decisions agree, and scores are no longer calibrated risks. An increasing map of the score that is
fitted on the repair set restores calibration (see measures.calibration): ranks do not change, and neither do decisions by thresholds that
are mapped too. The map is folded into the last layer of the network if possible (models.readings).

The target of the map is not the label but each patient's risk by the original network, itself recalibrated on the labels. A network that
was repaired on these rows is partly fitted to their labels, so a map to the labels would make it overconfident: on COMPAS, with 1,233 rows,
maps to the labels of fine-tuned networks and of probes had slopes of 1.4 to 1.9 and were worse than none on new patients.

Decisions are checked: the recalibrated network is run on the repair set and on other given sets, and each threshold is placed between the
scores above and below it. If no threshold separates them, because rounding made two scores equal, or if any decision differs, the network
is not recalibrated, with a note. Labels of other sets are not used. Classes, which are decided by argmax, are not recalibrated, nor are
networks for which a method only fitted a rule.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from numbers import Integral
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from equipoise.data import Cohort, Identities, LabelKind, Rows, Scores, check_apart, check_cohort
from equipoise.errors import BadInput, Misuse, UnknownName, raise_all
from equipoise.measures import NEVER, Calibration, FloatArray, Gap, LogitMap, Threshold, logit_map, normalised
from equipoise.methods.candidate import Candidate, LabelCandidate, Progress, Recalibration
from equipoise.methods.contract import METHODS, Kind, check_method
from equipoise.methods.driver import label_by_label, run_method
from equipoise.methods.goal import DEFAULT_MEASURE, DEFAULT_PERFORMANCE, DEFAULT_SELECTION, Goal, Note, keeping, raise_together
from equipoise.methods.small_cells import check_cells
from equipoise.specification import is_real

if TYPE_CHECKING:
    from torch import nn

RECALIBRATION_FOLDS = 5
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
    given, errors, asked, number = model, list[BadInput](), cast(object, method), cast(object, seed)
    thresholds = threshold if isinstance(threshold, Mapping) else None  # one per label
    if not isinstance(asked, str):
        advice = ". To try several, use method='auto' with methods=(...)" if isinstance(asked, (list, tuple, set)) else ""
        errors.append(BadInput(f"method must be the name of one method, such as 'auto'; got {asked!r}{advice}"))
    if budget is not None and not (is_real(budget) and budget > 0):
        errors.append(BadInput(f"budget must be a positive number of seconds, or None for no limit; got {budget!r}"))
    if not (is_real(number) and isinstance(number, Integral)):
        errors.append(BadInput(f"seed must be an integer; got {number!r}"))
    with keeping(errors):
        limits_of_goal: dict[str, Any] = {"min_performance": min_performance, "max_gap": max_gap, "max_loss": max_loss}
        named = {"performance": performance, "keep": keep or {}, "selection": selection}
        parts_of_goal = Goal(measure, **named, **limits_of_goal, threshold=threshold if thresholds is None else None)
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
        return label_by_label(method, dict.fromkeys(parts), parts, by_label, None, seed, limits)
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
            predict(model, cohort), method=method, goal=goal, force=force, seed=seed, budget=budget, progress=progress, **settings
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
    return recalibrate_result(result, label_views(network, by_label), cohort) if recalibrate else result


def goals_of(labels: Sequence[str], kind: LabelKind, goal: Goal, goals: Mapping[str, Goal] | None) -> dict[str, Goal]:
    """The goal of each label: one goal for all of them, or the goals given by name."""
    problems: list[str] = []
    if goals is not None:
        word = kind.one
        for name in goals:
            if name not in labels:
                problems += UnknownName(f"{word} in goals", name, labels).problems
        missing = [name for name in labels if name not in goals]
        if missing:
            problems.append(f"goals has none for {', '.join(missing)}; give every {word} a goal, or leave goals out to use one for all")
        if goal.derived(selection=DEFAULT_SELECTION) != Goal():
            problems.append(f"a goal for all ({goal}) was given next to goals; put it into the goal of each {word}")
        if len({own.selection for own in (goal, *goals.values()) if own.selection != DEFAULT_SELECTION}) > 1:
            problems.append(f"one selection serves every {word}; the goals have several")
    raise_all(problems)
    each = {name: (goals or {}).get(name, goal) for name in labels}
    chosen = next((own.selection for own in (goal, *each.values()) if own.selection != DEFAULT_SELECTION), DEFAULT_SELECTION)
    return {name: own.derived(selection=chosen) for name, own in each.items()}


# Recalibration.


def recalibrate_result(
    result: Candidate, originals: "Mapping[str, nn.Module | None]", cohort: Cohort, also: Sequence[Cohort] = ()
) -> Candidate:
    """The result with recalibrated scores and unchanged decisions on these rows; the same result if its scores are the original's.

    `originals` is the network of each label before the repair, with one output. `cohort` is the repair set; `also` are further rows on
    which no decision may change, whose labels are not used. The outputs of one network are recalibrated each by its own map, which must
    fold into the network's layers.
    """
    from equipoise.models import OneOutput, output_kind, predict, recalibrated_network

    changed = [
        name
        for name, own in result.labels.items()
        if own.chosen != 0 and not own.rule_only and METHODS[own.ran].kind in (Kind.STEPS, Kind.PROBES)
    ]
    if not changed or cohort.kind.argmax:
        return result
    parts, others = cohort.by_label, [rows.by_label for rows in also]
    scores, maps, done = dict[str, Scores](), dict[str, Recalibration](), dict(result.labels)
    for name in changed:
        own, part = result.labels[name], parts[name]
        scores[name] = predict(own.model, part)
        fitted = _fit_map(scores[name], predict(originals[name], part), part, own)
        if fitted is None:
            done[name] = _without_map(own, "no_increasing_map")
        else:
            maps[name] = fitted
    first, several = next(iter(result.labels.values())).network, cohort.several
    network = cast("nn.Module", result.model) if several else first  # with the outputs of all labels
    output = output_kind(first, cohort.inputs)
    columns = {name: int(own.model.which) if several and isinstance(own.model, OneOutput) else None for name, own in result.labels.items()}
    while maps:
        pairs = {columns[name] or 0: (own.map.slope, own.map.intercept) for name, own in maps.items()}
        new, folded = recalibrated_network(network, cohort.inputs, pairs, output, wrap=not several)
        maps = {name: replace(own, folded=folded) for name, own in maps.items()}
        if new is None:
            done |= {name: _without_map(result.labels[name], "no_layer_for_it") for name in maps}
            break
        views = {name: new if own is None else OneOutput(new, own, output=output) for name, own in columns.items()}
        tried = {}
        for name, about in maps.items():
            sets = [parts[name], *(rows[name] for rows in others)]
            tried[name] = _with_network(result.labels[name], views[name], about, scores[name], sets)
        refused = [name for name, own in tried.items() if own.recalibration is None]
        if not refused:  # the other labels have the new network too
            network, done = new, {name: replace(own, model=views[name]) for name, own in done.items()} | tried
            break
        done |= {name: tried[name] for name in refused}
        maps = {name: own for name, own in maps.items() if name not in refused}
    return replace(result, labels=done, model=network)


def _fit_map(scores: Scores, original: Scores, cohort: Cohort, candidate: LabelCandidate) -> Recalibration | None:
    """The map of these scores to the risk by the original's scores, with cross-fitted calibration; None if no increasing map fits."""
    from equipoise.models import folds_of

    weight, folds = normalised(cohort.weight), folds_of(cohort, RECALIBRATION_FOLDS, candidate.seed)
    original_map = logit_map(original.score, original.y, weight)
    if original_map is None:
        return None
    risk = original_map(original.score)
    whole_map, cross_fitted = logit_map(scores.score, risk, weight), np.empty(len(scores))
    if whole_map is None:
        return None
    for fold in range(RECALIBRATION_FOLDS):
        inside = folds == fold
        fold_map = logit_map(scores.score[~inside], risk[~inside], None if weight is None else weight[~inside]) or whole_map
        cross_fitted[inside] = fold_map(scores.score[inside])
    before, after = (Calibration.of(own, risk, weight) for own in (scores.score, cross_fitted))
    return Recalibration(whole_map, before, after, len(cohort), 0, True, candidate.rule)


def _without_map(candidate: LabelCandidate, reason: str) -> LabelCandidate:
    """The candidate with a note on the reason."""
    return replace(candidate, notes=(*candidate.notes, Note("not_recalibrated", reason)))


def _with_network(
    candidate: LabelCandidate, network: "nn.Module", about: Recalibration, scores: Scores, sets: Sequence[Rows]
) -> LabelCandidate:
    """The candidate with the recalibrated network and its rule on the new scores; unchanged, with a note, if a decision would differ.

    `scores` are those of the candidate's network on the first of these sets, the repair set.
    """
    from equipoise.models import predict

    before = [scores, *(predict(candidate.model, rows) for rows in sets[1:])]
    after = [predict(network, rows) for rows in sets]
    cut = None  # the rules of methods that change a network are thresholds
    if isinstance(candidate.rule, Threshold):
        old, new = (np.concatenate([own.score for own in each]) for each in (before, after))
        cut = _between(candidate.rule.value, old, new, about.map)
    if cut is None:
        return _without_map(candidate, "scores_collide")
    rule = replace(cast("Threshold", candidate.rule), value=cut)
    if any(not np.array_equal(candidate.rule.decide(old), rule.decide(new)) for old, new in zip(before, after, strict=True)):
        return _without_map(candidate, "decisions_differ")
    trace = candidate.trace.copy()
    trace.loc[trace.index[candidate.chosen], "threshold"] = rule.value
    about = replace(about, checked=sum(map(len, sets)))
    note = Note("recalibrated", numbers={"before": about.before.error, "after": about.after.error})
    return replace(candidate, model=network, rule=rule, trace=trace, recalibration=about, notes=(*candidate.notes, note))


def _between(cut: float, old: FloatArray, new: FloatArray, new_score: LogitMap) -> float | None:
    """The threshold on the new scores that separates the same rows as `cut` on the old ones: its image if possible; None if none does."""
    if not 0.0 < cut < 1.0:
        return min(max(cut, 0.0), NEVER)
    above = old >= cut
    low, high = new[~above].max(initial=-np.inf), new[above].min(initial=np.inf)
    image = float(new_score(np.array([cut]))[0])
    if low < image <= high:
        return image
    if not low < high:
        return None
    middle = float(low + (high - low) / 2)
    return middle if middle > low else float(high)
