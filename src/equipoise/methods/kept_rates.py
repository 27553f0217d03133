"""The rates that a goal keeps in every group: their values, their limits, and the thresholds that hold them."""

from collections.abc import Mapping

import numpy as np

from equipoise.measures import RATES, Cells, FloatArray, IntArray
from equipoise.methods.goal import BEFORE

NOISE = 1e-9  # rates are counts over counts: the last bits carry no information
Keep = Mapping[str, float | str]


def kept_rates(keep: Keep, cells: Cells) -> FloatArray:
    """The rates that are kept, of every group, (..., rates * groups)."""
    return np.concatenate([cells.rate(RATES[name]) for name in keep], axis=-1)


def limits_of(keep: Keep, before: FloatArray) -> FloatArray:
    """What each of these rates must reach (..., rates * groups), from its values under the original network."""
    given = np.repeat([np.nan if least == BEFORE else float(least) for least in keep.values()], before.shape[-1] // len(keep))
    return np.where(np.isnan(given), before, given)


def spare(rates: FloatArray, least: FloatArray) -> FloatArray:
    """By how much the scarcest rate exceeds its limit (...); negative where one is too low. Groups without rows for a rate do not count."""
    left = rates - least
    scarcest: FloatArray = np.where(np.isnan(left), np.inf, left).min(-1)
    return scarcest


def highest_thresholds(keep: Keep, scores: FloatArray, y: IntArray, codes: IntArray, groups: int, least: FloatArray) -> FloatArray:
    """The highest threshold (R,) at which no rate of scores (R, n) is below its limit (R, rates * groups).

    Every rate is a share of positive decisions, so it can only rise as the threshold falls: limits on rates are a highest threshold.

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
