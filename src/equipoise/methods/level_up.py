"""Levelling up: no group's rate may fall below its value before, or below a minimum.

A gap can be closed by taking from the group that does better. A goal with `keep` rules that out. Every rate is a share of positive
decisions, so it can only rise as the threshold falls: what a goal asks of the rates is a highest threshold, found exactly from the scores.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from torch import nn

from equipoise.data import Cohort
from equipoise.measures import RATES, Cells, FloatArray, IntArray, at_threshold, tabulate
from equipoise.methods.base import BEFORE, Candidate
from equipoise.models import predict

NOISE = 1e-9  # counts over counts: the last bits say nothing
Keep = Mapping[str, float | str]


def kept_rates(keep: Keep, cells: Cells) -> FloatArray:
    """The rates that are to be kept, of every group, (..., rates * groups)."""
    return np.concatenate([cells.rate(RATES[name]) for name in keep], axis=-1)


def limits(keep: Keep, before: FloatArray) -> FloatArray:
    """What each of these rates must reach (..., rates * groups), from its values before."""
    given = np.repeat([np.nan if least == BEFORE else float(least) for least in keep.values()], before.shape[-1] // len(keep))
    return np.where(np.isnan(given), before, given)


def spare(rates: FloatArray, least: FloatArray) -> FloatArray:
    """How much the scarcest rate has to spare (...); negative where one is too low. Groups without rows for a rate are passed over."""
    left = rates - least
    scarcest: FloatArray = np.where(np.isnan(left), np.inf, left).min(-1)
    return scarcest


def highest_thresholds(keep: Keep, scores: FloatArray, y: IntArray, codes: IntArray, groups: int, least: FloatArray) -> FloatArray:
    """The highest threshold (R,) at which no rate of scores (R, n) is below its limit (R, rates * groups).

    >>> highest_thresholds({"tpr": 0.5}, np.array([[0.9, 0.4, 0.2]]), np.array([[1, 1, 0]]), np.zeros((1, 3), int), 1, np.array([[0.5]]))
    array([0.9])
    """
    highest = np.full(len(scores), np.inf)
    for r in range(len(scores)):
        for at, (name, group) in enumerate((name, group) for name in keep for group in range(groups)):
            label = RATES[name]
            here = (codes[r] == group) & ((y[r] == label) if label is not None else True)
            own = scores[r, here]
            needed = int(np.ceil(least[r, at] * len(own) - NOISE)) if len(own) else 0
            if needed > 0:
                highest[r] = min(highest[r], np.partition(own, len(own) - needed)[len(own) - needed])
    return highest


def levelled(candidate: Candidate, model: nn.Module, cohort: Cohort) -> Candidate:
    """The candidate of any method, with `met` False and the groups named where it does not keep the rates that its goal asks for."""
    keep, attribute = candidate.goal.keep, cohort.attribute
    original = predict(model, cohort)
    threshold = float(candidate.trace["threshold"].iloc[0])
    before = kept_rates(keep, tabulate(at_threshold(original.score, threshold), cohort.y, attribute))
    after = kept_rates(keep, tabulate(candidate.rule.decide(predict(candidate.model, cohort)), cohort.y, attribute))
    least = limits(keep, before)
    places = [(name, level) for name in keep for level in attribute.levels]
    broken = [
        f"{name} of {level!r} is {now:.3f}, not {limit:.3f}"
        for (name, level), now, limit in zip(places, after, least, strict=True)
        if now < limit - NOISE
    ]
    if not broken:
        return candidate
    why = candidate.why if not candidate.met else f"{candidate.why}, but it does not level up"
    return replace(candidate, met=False, why=f"{why}; {', '.join(broken)}")
