"""Recalibration of a repaired network: its scores become probabilities again, and no decision changes.

A repair moves scores until the groups' decisions agree, and scores are no longer calibrated risks. An increasing map of the score that is
fitted on the repair set restores calibration (see measures.calibration): ranks do not change, and neither do decisions by thresholds that
are mapped too. The map is folded into the last layer of the network if possible (models.heads).

The target of the map is not the label but each patient's risk by the original network, itself recalibrated on the labels. A network that
was repaired on these rows is partly fitted to their labels, so a map to the labels would make it overconfident: on COMPAS, with 1,233 rows,
maps to the labels of fine-tuned networks and of probes had slopes of 1.4 to 1.9 and were worse than none on new patients.

Decisions are checked: the recalibrated network is run on the repair set and on other given sets, and each threshold is placed between the
scores above and below it. If no threshold separates them, because rounding made two scores equal, or if any decision differs, the network
is not recalibrated, with a note. Labels of other sets are not used. Classes, which are decided by argmax, are not recalibrated, nor are
networks for which a method only fitted a rule.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

import numpy as np

from equipoise.data import Cohort, Scores
from equipoise.measures import NEVER, Calibration, FloatArray, LogitMap, Rule, Threshold, logit_map, normalised
from equipoise.methods.candidate import Candidate, LabelCandidate, Recalibration
from equipoise.methods.contract import METHODS, Kind
from equipoise.methods.goal import Note

if TYPE_CHECKING:
    from torch import nn

FOLDS = 5


class _Collision(Exception):
    """No threshold on the new scores gives the same decisions as the old one."""


def recalibrated(result: Candidate, originals: Mapping[str, nn.Module | None], cohort: Cohort, also: Sequence[Cohort] = ()) -> Candidate:
    """The result with recalibrated scores and unchanged decisions on these rows; the same result if its scores are the original's.

    `originals` is the network of each label before the repair, with one output. `cohort` is the repair set; `also` are further rows on
    which no decision may change, whose labels are not used.
    """
    from equipoise.models import output_kind, predict, recalibrated_network

    if not any(_changed_scores(own) for own in result.labels.values()) or cohort.kind.argmax:
        return result
    if cohort.several:
        return _outputs(result, originals, cohort, also)
    ((name, candidate),) = result.labels.items()
    network = candidate.network
    scores = predict(network, cohort)
    fitted = _fitted(scores, predict(originals[name], cohort), cohort, candidate.seed)
    if fitted is None:
        return result.with_labels({name: _not_recalibrated(candidate, "no_increasing_map")})
    output = output_kind(network, cohort.inputs)
    network, folded = recalibrated_network(network, cohort.inputs, fitted.map.slope, fitted.map.intercept, output)
    done = _with_network(candidate, network, fitted, folded, scores, cohort, also)
    return result.with_labels({name: done}, model=done.model)


def _changed_scores(candidate: LabelCandidate) -> bool:
    """Whether the repair changed the scores."""
    return candidate.chosen != 0 and not candidate.rule_only and METHODS[candidate.ran].kind in (Kind.STEPS, Kind.PROBES)


@dataclass(frozen=True, eq=False)
class _Fitted:
    """The map of a network's scores to the patients' risk, and the calibration before and after."""

    map: LogitMap
    before: Calibration
    after: Calibration  # cross-fitted by patient


def _fitted(scores: Scores, original: Scores, cohort: Cohort, seed: int) -> _Fitted | None:
    """The map of these scores to the risk by the original's scores; None if no increasing map fits."""
    from equipoise.models import folds_of

    weight, folds = normalised(cohort.weight), folds_of(cohort, FOLDS, seed)
    original_map = logit_map(original.score, original.y, weight)
    if original_map is None:
        return None
    risk = original_map(original.score)
    whole_map, cross_fitted = logit_map(scores.score, risk, weight), np.empty(len(scores))
    if whole_map is None:
        return None
    for fold in range(FOLDS):
        inside = folds == fold
        fold_map = logit_map(scores.score[~inside], risk[~inside], None if weight is None else weight[~inside]) or whole_map
        cross_fitted[inside] = fold_map(scores.score[inside])
    return _Fitted(whole_map, Calibration.of(scores.score, risk, weight), Calibration.of(cross_fitted, risk, weight))


def _not_recalibrated(candidate: LabelCandidate, reason: str) -> LabelCandidate:
    """The candidate with a note on the reason."""
    return replace(candidate, notes=(*candidate.notes, Note("not_recalibrated", reason)))


def _with_network(
    candidate: LabelCandidate, network: nn.Module, fitted: _Fitted, folded: bool, scores: Scores, cohort: Cohort, also: Sequence[Cohort]
) -> LabelCandidate:
    """The candidate with the recalibrated network and its rule on the new scores; unchanged, with a note, if a decision would differ.

    `scores` are those of the candidate's network on the cohort.
    """
    from equipoise.models import predict

    sets = [cohort, *also]
    before = [scores, *(predict(candidate.model, rows) for rows in also)]
    after = [predict(network, rows) for rows in sets]
    try:
        rule = moved(candidate.rule, before, after, fitted.map)
    except _Collision:
        return _not_recalibrated(candidate, "scores_collide")
    if any(not np.array_equal(candidate.rule.decide(old), rule.decide(new)) for old, new in zip(before, after, strict=True)):
        return _not_recalibrated(candidate, "decisions_differ")
    trace = candidate.trace.copy()
    if isinstance(rule, Threshold):
        trace.loc[trace.index[candidate.chosen], "threshold"] = rule.value
    checked = sum(map(len, sets))
    about = Recalibration(fitted.map, fitted.before, fitted.after, len(cohort), checked, folded, candidate.rule)
    note = Note("recalibrated", numbers={"before": about.before.error, "after": about.after.error})
    return replace(candidate, model=network, rule=rule, trace=trace, recalibration=about, notes=(*candidate.notes, note))


def moved(rule: Rule, before: Sequence[Scores], after: Sequence[Scores], new_score: LogitMap) -> Rule:
    """The threshold on the new scores with the same decision on every row."""
    if not isinstance(rule, Threshold):  # the rules of methods that change a network are thresholds
        raise _Collision
    old, new = (np.concatenate([scores.score for scores in sets]) for sets in (before, after))
    return replace(rule, value=_between(rule.value, old, new, new_score))


def _between(cut: float, old: FloatArray, new: FloatArray, new_score: LogitMap) -> float:
    """The threshold on the new scores that separates the same rows as `cut` on the old ones: its image if possible."""
    if not 0.0 < cut < 1.0:
        return min(max(cut, 0.0), NEVER)
    above = old >= cut
    low, high = new[~above].max(initial=-np.inf), new[above].min(initial=np.inf)
    image = float(new_score(np.array([cut]))[0])
    if low < image <= high:
        return image
    if not low < high:
        raise _Collision
    middle = float(low + (high - low) / 2)
    return middle if middle > low else float(high)


def _outputs(candidate: Candidate, originals: Mapping[str, nn.Module | None], cohort: Cohort, also: Sequence[Cohort]) -> Candidate:
    """The result with all outputs of one network recalibrated, each by its own map, which must fold into the network's layers."""
    from equipoise.models import OneOutput, folded_outputs, output_kind, predict

    def column(view: object) -> int:
        return int(view.which) if isinstance(view, OneOutput) else 0

    first, network = next(iter(candidate.labels.values())).network, cast("nn.Module", candidate.model)  # with the outputs of all labels
    maps: dict[str, _Fitted] = {}
    scores: dict[str, Scores] = {}
    done = dict(candidate.labels)
    for name, own in candidate.labels.items():
        if not _changed_scores(own):
            continue
        part = cohort.labelled(name)
        scores[name] = predict(own.model, part)
        label_map = _fitted(scores[name], predict(originals[name], part), part, own.seed)
        if label_map is not None:
            maps[name] = label_map
        else:
            done[name] = _not_recalibrated(own, "no_increasing_map")
    while maps:
        columns = {column(candidate.labels[name].network): (own.map.slope, own.map.intercept) for name, own in maps.items()}
        output = output_kind(first, cohort.inputs)
        changed = folded_outputs(network, cohort.inputs, columns, output)
        if changed is None:
            done |= {name: _not_recalibrated(candidate.labels[name], "no_layer_for_it") for name in maps}
            break
        tried = {}
        for name, fitted in maps.items():
            own = candidate.labels[name]
            view = OneOutput(changed, column(own.model), output=output) if isinstance(own.model, OneOutput) else changed
            others = [rows.labelled(name) for rows in also]
            tried[name] = _with_network(own, view, fitted, True, scores[name], cohort.labelled(name), others)
        refused = [name for name, own in tried.items() if own.recalibration is None]
        if not refused:
            for name, own in candidate.labels.items():
                if name not in tried and isinstance(own.model, OneOutput):
                    done[name] = replace(done[name], model=OneOutput(changed, column(own.model), output=output))
            network, done = changed, done | tried
            break
        for name in refused:
            done[name] = tried[name]
            del maps[name]
    return candidate.with_labels(done, model=network)
