"""Shrunken gaps of many small groups, such as intersections: rates are drawn towards their mean, the more the less is known of each.

Parametric empirical Bayes (Morris 1983, J Am Stat Assoc 78:47): the rates of the groups of an attribute vary around a common mean with a
variance that is estimated from them (Paule and Mandel 1982), and each observed rate varies around its own with its standard error. The
largest of many noisy gaps is mostly too large; a shrunken one is better on average, and is biased towards no gap for a group that really
is different. So shrunken gaps are shown next to the plain ones, labelled as such, and never replace them.
"""

from statistics import NormalDist

import numpy as np
import pandas as pd

from equipoise.measures.cells import FloatArray
from equipoise.measures.gaps import MEASURES, is_quotient, terms

LEAST_GROUPS = 4  # with a rate: with fewer, the variance between groups is unknown
HALVINGS = 60
COLUMNS = ["measure", "attribute", "group", "reference", "value", "shrunken", "low", "high"]


def shrunken_gaps(groups: pd.DataFrame, gaps: pd.DataFrame, level: float = 0.95) -> pd.DataFrame:
    """One row per gap: its value, the shrunken value and the interval of that, NaN where the attribute has fewer than four groups.

    `groups` and `gaps` are those of an audit with intervals of this level.
    """
    rows = []
    for attribute, own in groups.groupby("attribute", sort=False):
        place = {str(name): k for k, name in enumerate(own.index)}
        shrunken = {}
        for rate in ("selection_rate", "tpr", "fpr", "ppv", "npv"):
            shrunken[rate] = shrunken_rates(*(own[f"{rate}{end}"].to_numpy(dtype=np.float64) for end in ("", "_low", "_high")), level=level)
        for row in gaps[gaps["attribute"] == attribute].itertuples():
            measure = str(row.measure)
            signed = {MEASURES[measure].rate: 1.0} if is_quotient(measure) else terms(measure)
            k, reference = place[str(row.group)], place[str(row.reference)]
            value, variance = 0.0, 0.0
            for rate, sign in signed.items():
                mean, error = shrunken["selection_rate" if rate == "selection" else rate]
                value += sign * (mean[k] - mean[reference])
                variance += sign**2 * (error[k] ** 2 + error[reference] ** 2)
            half = NormalDist().inv_cdf((1 + level) / 2) * variance**0.5
            known = not np.isnan(row.value)
            ends = (value, value - half, value + half) if known else (np.nan,) * 3
            rows.append((measure, attribute, row.group, row.reference, row.value, *ends))
    return pd.DataFrame(rows, columns=COLUMNS)


def shrunken_rates(value: FloatArray, low: FloatArray, high: FloatArray, *, level: float = 0.95) -> tuple[FloatArray, FloatArray]:
    """The shrunken rates of groups and their standard errors (groups,), from rates with intervals; NaN where there is no rate.

    >>> rate = np.array([0.5, 0.6, 0.7, 0.8, 0.9])
    >>> sharp, vague = (shrunken_rates(rate, rate - width, rate + width)[0] for width in (0.01, 0.5))
    >>> sharp.round(2).tolist(), vague.round(2).tolist()
    ([0.5, 0.6, 0.7, 0.8, 0.9], [0.6, 0.65, 0.7, 0.75, 0.8])
    """
    known = ~(np.isnan(value) | np.isnan(low) | np.isnan(high))
    count = int(known.sum())
    shrunken, error = np.full(value.shape, np.nan), np.full(value.shape, np.nan)
    if count < LEAST_GROUPS:
        return shrunken, error
    q = value[known]
    variance = np.maximum(((high - low)[known] / (2 * NormalDist().inv_cdf((1 + level) / 2))) ** 2, 1e-12)
    between = _between(q, variance)
    weight = 1 / (variance + between)
    mean = (weight * q).sum() / weight.sum()
    share = (count - 3) / (count - 1) * variance * weight  # of the distance from the mean that is taken away
    shrunken[known] = q - share * (q - mean)
    error[known] = np.sqrt(variance * (1 - (count - 1) / count * share) + 2 / (count - 3) * (share * (q - mean)) ** 2)
    return shrunken, error


def _between(q: FloatArray, variance: FloatArray) -> float:
    """The variance between groups for which the weighted squares around the mean are as large as expected; 0 if they are smaller."""

    def surplus(between: float) -> float:
        weight = 1 / (variance + between)
        mean = (weight * q).sum() / weight.sum()
        return float((weight * (q - mean) ** 2).sum() - (len(q) - 1))

    low, high = 0.0, float((q.max() - q.min()) ** 2) + 1e-12
    if surplus(low) <= 0:
        return 0.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if surplus(middle) > 0 else (low, middle)
    return high
