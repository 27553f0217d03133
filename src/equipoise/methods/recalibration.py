"""Recalibration of a repaired network: its scores become probabilities again, and no decision changes.

A repair moves scores until the groups' decisions agree; what a score says of a patient's risk is lost on the way. An increasing map of the
score that is fitted on the repair set gives it back (see measures.recalibration): ranks are the same, and so are decisions by thresholds
that are mapped too. The map is part of the last layer of the network where that is possible (models.heads).

What the map is fitted to is the risk of each patient by the original network, itself recalibrated on the labels, rather than the label.
A network that was repaired on these rows knows something of their labels, and would seem to be less sure than it may be: on COMPAS, with
1,233 rows, maps to the labels of fine-tuned networks and of probes had slopes of 1.4 to 1.9, and were worse than none on new patients.

That decisions are the same is checked, not believed: the recalibrated network is run on the rows of the repair set, and of other sets
that are at hand, and a threshold is put between the scores of those above it and those below. Where no threshold is between them, since
two scores became one by rounding, or where any decision differs, the network stays as it was, with a note. Labels of other sets are not
used. Classes, which are decided by argmax, are left as they are; and so are networks that a method only fitted a rule to.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from torch import nn

from equipoise.data import Cohort, Scores
from equipoise.measures import NEVER, Calibration, FloatArray, LabelRules, LogitMap, Rule, Threshold, logit_map, normalised
from equipoise.methods.candidate import Candidate, Recalibration
from equipoise.methods.contract import METHODS, Kind
from equipoise.methods.equalised_odds import EqualisedOdds, Steps
from equipoise.methods.goal import Note
from equipoise.methods.group_thresholds import GroupThresholds
from equipoise.methods.reject_option import RejectOption
from equipoise.models import OneClass, OneOutput, folded_outputs, folds_of, output_kind, predict, recalibrated_network

FOLDS = 5
NOT = "not_recalibrated"  # the kind of note that says why: its subject


class _Collision(Exception):
    """No threshold on the new scores decides as the old one did."""


def recalibrated(
    candidate: Candidate, original: nn.Module | Mapping[str, nn.Module], cohort: Cohort, also: Sequence[Cohort] = ()
) -> Candidate:
    """The candidate with recalibrated scores, every decision on these rows being the same; itself where its scores are the original's.

    `original` is the network before the repair; of several labels, one with one output for each. `cohort` is the repair set; `also` are
    further rows on which no decision may change, whose labels are not used.
    """
    if not isinstance(candidate.model, nn.Module) or not _moved(candidate) or cohort.kind == "classes":
        return candidate
    if not isinstance(original, nn.Module):
        return _labels(candidate, original, cohort, also)
    scores = predict(candidate.model, cohort)
    fitted = _fitted(scores, predict(original, cohort), cohort, candidate.seed)
    if fitted is None:
        return _not(candidate, "no_increasing_map")
    output = output_kind(candidate.model, cohort.inputs)
    network, folded = recalibrated_network(candidate.model, cohort.inputs, fitted.map.slope, fitted.map.intercept, output)
    return _with(candidate, network, fitted, folded, scores, cohort, also)


def _moved(candidate: Candidate) -> bool:
    """Whether the scores are others than the original's."""
    return candidate.chosen != 0 and METHODS[candidate.ran].kind in (Kind.STEPS, Kind.PROBES)


@dataclass(frozen=True, eq=False)
class _Fitted:
    """The map of a network's scores to the patients' risk, and how far they are from it before and after."""

    map: LogitMap
    before: Calibration
    after: Calibration  # of all rows, each by a map of other patients


def _fitted(scores: Scores, original: Scores, cohort: Cohort, seed: int) -> _Fitted | None:
    """The map of these scores to the risk by the original's; None where no increasing map fits."""
    weight, folds = normalised(cohort.weight), folds_of(cohort, FOLDS, seed)
    trusted = logit_map(original.score, original.y, weight)
    if trusted is None:
        return None
    risk = trusted(original.score)
    found, apart = logit_map(scores.score, risk, weight), np.empty(len(scores))
    if found is None:
        return None
    for own in (folds == fold for fold in range(FOLDS)):
        other = logit_map(scores.score[~own], risk[~own], None if weight is None else weight[~own]) or found
        apart[own] = other(scores.score[own])
    return _Fitted(found, Calibration.of(scores.score, risk, weight), Calibration.of(apart, risk, weight))


def _not(candidate: Candidate, reason: str) -> Candidate:
    return replace(candidate, notes=(*candidate.notes, Note(NOT, reason)))


def _with(
    candidate: Candidate, network: nn.Module, fitted: _Fitted, folded: bool, scores: Scores, cohort: Cohort, also: Sequence[Cohort]
) -> Candidate:
    """The candidate with the recalibrated network and its rule on the new scores; as it was, with a note, where a decision would differ.

    `scores` are those of the candidate's own network on the cohort.
    """
    sets = [cohort, *also]
    before = [scores, *(predict(candidate.model, rows) for rows in also)]
    now = [predict(network, rows) for rows in sets]
    try:
        rule = moved(candidate.rule, before, now, fitted.map)
    except _Collision:
        return _not(candidate, "scores_collide")
    if any(not np.array_equal(candidate.rule.decide(old), rule.decide(new)) for old, new in zip(before, now, strict=True)):
        return _not(candidate, "decisions_differ")
    trace = candidate.trace.copy()
    if isinstance(rule, Threshold):
        trace.loc[trace.index[candidate.chosen], "threshold"] = rule.value
    checked = sum(map(len, sets))
    about = Recalibration(fitted.map, fitted.before, fitted.after, len(cohort), checked, folded, candidate.rule)
    note = Note("recalibrated", numbers={"before": about.before.error, "after": about.after.error})
    return replace(candidate, model=network, rule=rule, trace=trace, recalibration=about, notes=(*candidate.notes, note))


def moved(rule: Rule, before: Sequence[Scores], now: Sequence[Scores], found: LogitMap) -> Rule:
    """The rule on new scores that decides as the rule on the old ones, row by row."""
    old, new = (np.concatenate([scores.score for scores in sets]) for sets in (before, now))
    groups = np.concatenate([_names(scores) for scores in before])

    def move(cut: float, group: str | None) -> float:
        own = groups == ("" if group is None else group)
        return _between(cut, old[own], new[own], found)

    if isinstance(rule, Threshold):
        return replace(rule, value=_between(rule.value, old, new, found))
    if isinstance(rule, GroupThresholds):
        cuts = tuple(move(cut, group) for cut, group in zip(rule.thresholds, rule.groups, strict=True))
        return replace(rule, thresholds=cuts, missing=move(rule.missing, None))
    if isinstance(rule, RejectOption):  # a band that is even on the old scores is not on the new ones
        cuts = tuple(move(rule.cuts(group)[0], group) for group in rule.groups)
        return GroupThresholds(rule.groups, cuts, move(rule.threshold, None), rule.origin)
    if isinstance(rule, EqualisedOdds):  # a row without a group is decided by all groups' steps
        each = []
        for group, steps in zip(rule.groups, rule.steps, strict=True):
            own = (groups == group) | (groups == "")
            each.append(Steps(tuple(_between(cut, old[own], new[own], found) for cut in steps.thresholds), steps.probabilities))
        return replace(rule, steps=tuple(each))
    raise _Collision


def _names(scores: Scores) -> np.ndarray:
    """The group of each row; empty where it is missing."""
    return np.array([*scores.attribute.levels, ""], dtype=object)[scores.attribute.codes]


def _between(cut: float, old: FloatArray, new: FloatArray, found: LogitMap) -> float:
    """The threshold on the new scores at the place of `cut` on the old ones: its image, if that is between the same rows."""
    if not 0.0 < cut < 1.0:
        return min(max(cut, 0.0), NEVER)
    above = old >= cut
    low, high = new[~above].max(initial=-np.inf), new[above].min(initial=np.inf)
    image = float(found(np.array([cut]))[0])
    if low < image <= high:
        return image
    if not low < high:
        raise _Collision
    middle = float(low + (high - low) / 2)
    return middle if middle > low else float(high)


def _labels(candidate: Candidate, originals: Mapping[str, nn.Module], cohort: Cohort, also: Sequence[Cohort]) -> Candidate:
    """All labels of one network, each with a map of its own, which must fit into the network's layers."""
    network, first = candidate.network, next(iter(candidate.labels.values())).network
    if isinstance(first, OneClass):
        return candidate
    maps: dict[str, _Fitted] = {}
    scores: dict[str, Scores] = {}
    done = dict(candidate.labels)
    for name, own in candidate.labels.items():
        if not _moved(own):
            continue
        part = cohort.labelled(name)
        scores[name] = predict(own.model, part)
        fitted = _fitted(scores[name], predict(originals[name], part), part, own.seed)
        if fitted is not None:
            maps[name] = fitted
        else:
            done[name] = _not(own, "no_increasing_map")
    while maps:
        columns = {_column(candidate.labels[name].network): (own.map.slope, own.map.intercept) for name, own in maps.items()}
        output = output_kind(first, cohort.inputs)
        changed = folded_outputs(network, cohort.inputs, columns, output)
        if changed is None:
            done |= {name: _not(candidate.labels[name], "no_layer_for_it") for name in maps}
            break
        tried = {}
        for name, found in maps.items():
            own = candidate.labels[name]
            view = OneOutput(changed, _column(own.model), output=output) if isinstance(own.model, OneOutput) else changed
            others = [rows.labelled(name) for rows in also]
            tried[name] = _with(own, view, found, True, scores[name], cohort.labelled(name), others)
        refused = [name for name, own in tried.items() if own.recalibration is None]
        if not refused:
            for name, own in candidate.labels.items():
                if name not in tried and isinstance(own.model, OneOutput):
                    done[name] = replace(done[name], model=OneOutput(changed, _column(own.model), output=output))
            network, done = changed, done | tried
            break
        for name in refused:
            done[name] = tried[name]
            del maps[name]
    return replace(candidate, model=network, rule=LabelRules({name: own.rule for name, own in done.items()}, cohort.kind), labels=done)


def _column(view: nn.Module) -> int:
    return int(view.which) if isinstance(view, OneOutput) else 0
