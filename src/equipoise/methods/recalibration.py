"""Recalibration: the scores of a repaired network become probabilities again, and no decision changes.

A repair moves scores until the groups' decisions agree, and scores are no longer calibrated risks. An increasing map of the score that is
fitted on the repair set restores calibration (see measures.calibration): ranks do not change, and neither do decisions by thresholds that
are mapped too. The map is folded into the last layer of the network if possible (models.features).

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
from typing import TYPE_CHECKING, cast

import numpy as np

from equipoise.data import Cohort, FloatArray, Rows, Scores
from equipoise.measures import NEVER_REACHED, Calibration, LogitMap, Threshold, logit_map, normalise_weights
from equipoise.methods.candidate import Candidate, LabelCandidate, Recalibration
from equipoise.methods.contract import METHODS, Kind
from equipoise.methods.goal import Note

if TYPE_CHECKING:
    from torch import nn

RECALIBRATION_FOLDS = 5


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

    weight, folds = normalise_weights(cohort.weight), folds_of(cohort, RECALIBRATION_FOLDS, candidate.seed)
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
        return min(max(cut, 0.0), NEVER_REACHED)
    above = old >= cut
    low, high = new[~above].max(initial=-np.inf), new[above].min(initial=np.inf)
    image = float(new_score(np.array([cut]))[0])
    if low < image <= high:
        return image
    if not low < high:
        return None
    middle = float(low + (high - low) / 2)
    return middle if middle > low else float(high)
