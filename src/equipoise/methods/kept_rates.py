"""The rates that a goal keeps in every group: their values, their limits, and the thresholds at which they are kept."""

import numpy as np

from equipoise.measures import RATES, Cells, FloatArray, IntArray
from equipoise.methods.goal import BEFORE, Keep

NOISE = 1e-9  # tolerance in comparisons of rates, which are counts over counts


def kept_rates(keep: Keep, cells: Cells) -> FloatArray:
    """The kept rates of every group (..., rates * groups)."""
    return np.concatenate([cells.rate(name) for name in keep], axis=-1)


def limits_of(keep: Keep, before: FloatArray) -> FloatArray:
    """The lower limits of the kept rates (..., rates * groups), from their values for the original network."""
    minimum = np.repeat([np.nan if least == BEFORE else float(least) for least in keep.values()], before.shape[-1] // len(keep))
    return np.where(np.isnan(minimum), before, minimum)


def spare(rates: FloatArray, least: FloatArray) -> FloatArray:
    """The smallest margin (...) of the rates over their limits; negative if one is too low. Undefined rates do not count."""
    margin = rates - least
    smallest: FloatArray = np.where(np.isnan(margin), np.inf, margin).min(-1)
    return smallest


def highest_threshold(keep: Keep, scores: FloatArray, y: IntArray, codes: IntArray, groups: int, least: FloatArray) -> float:
    """The highest threshold at which no rate of scores (n,) is below its limit (rates * groups,).

    Every rate is a share of positive decisions and can only rise as the threshold falls, so limits on rates are a limit on the threshold.

    >>> highest_threshold({"tpr": 0.5}, np.array([0.9, 0.4, 0.2]), np.array([1, 1, 0]), np.zeros(3, int), 1, np.array([0.5]))
    0.9
    """
    highest = np.inf
    for at, (name, group) in enumerate((name, group) for name in keep for group in range(groups)):
        label = RATES[name]
        group_scores = scores[(codes == group) & ((y == label) if label is not None else True)]
        count = len(group_scores)
        needed = int(np.ceil(least[at] * count - NOISE)) if count else 0
        if needed > 0:
            highest = min(highest, float(np.partition(group_scores, count - needed)[count - needed]))
    return highest
