"""The gaps of one measure between all groups and their reference, judged together: what a repair is aimed at."""

from dataclasses import replace
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from equipoise.data import Scores
from equipoise.measures.bootstrap import units_of
from equipoise.measures.cells import FloatArray
from equipoise.measures.estimates import FEW, INSUFFICIENT, Estimate, Settings, coefficients
from equipoise.measures.moments import Moments, moments_of
from equipoise.measures.multiplicity import max_t

BoolArray = npt.NDArray[np.bool_]


def gaps_together(scores: Scores, f: FloatArray, measure: str, settings: Settings, labels: int = 1) -> list[Estimate]:
    """The gap of every group but the reference, with its own limits and simultaneous ones; NaN where a group has too few patients.

    All simultaneous intervals of the measure cover with probability `settings.level`, over as many `labels` as are judged together.

    >>> some = Scores.from_arrays([1, 1, 1, 1, 0] * 40, [0.5] * 200, ["F", "M"] * 100, reference="M")
    >>> (gap,) = gaps_together(some, np.tile([0.0, 1.0, 1.0, 1.0], 50), "spd", Settings())
    >>> gap.value, gap.low == gap.simultaneous_low < gap.value
    (-0.5, True)
    """
    attribute = scores.attribute
    sums = _moments(scores, f)
    signed = coefficients(measure)
    value, low, high = sums.gaps(signed, settings.level)
    counts = np.min([sums.patients(name) for name in signed], axis=0)
    patients = np.minimum(counts[1:], counts[0])
    known = (patients >= settings.min_patients) & ~np.isnan(value)
    levels = _levels(sums, measure, known, patients < FEW, 1 - (1 - settings.level) / labels)
    together = {level: sums.gaps(signed, level)[1:] for level in np.unique(levels[known]).tolist()}
    found = []
    for k, group in enumerate(attribute.others):
        estimate = Estimate(np.nan, np.nan, np.nan, INSUFFICIENT)
        if known[k]:
            wide = together[float(levels[k])]
            own = Estimate(float(value[k]), float(low[k]), float(high[k]), few=bool(patients[k] < FEW))
            estimate = replace(own, simultaneous_low=float(wide[0][k]), simultaneous_high=float(wide[1][k]))
        found.append(replace(estimate, group=group, reference=attribute.reference, patients=int(patients[k])))
    return found


def pooled_gaps(scores: Scores, before: FloatArray, after: FloatArray, measure: str, level: float) -> tuple[FloatArray, FloatArray]:
    """The limits of the mean of the gaps before and after of every group but the reference, which is the gap of the pooled decisions.

    |after| is smaller than |before| where the gap moved towards zero and this mean is still on the side of zero that the gap came from.
    """
    _, low, high = _moments(scores, (before + after) / 2).gaps(coefficients(measure), level)
    return low, high


def _moments(scores: Scores, f: FloatArray) -> Moments:
    attribute = scores.attribute
    return moments_of(f, scores.y, attribute.codes, len(attribute.levels), units_of(scores.patients, len(scores)), scores.weight)


def _levels(sums: Moments, measure: str, known: BoolArray, few: BoolArray, level: float) -> FloatArray:
    """The level of each gap's own interval at which all of them cover together, as in `multiplicity`, for one measure."""
    count = int(known.sum())
    levels = np.full(len(known), 1 - (1 - level) / max(count, 1))
    large = np.flatnonzero(known & ~few)
    if len(large) > 1:
        correlation = sums.gap_correlation({measure: coefficients(measure)})[np.ix_(large, large)]
        z = max_t([correlation], 1 - (1 - level) * len(large) / count)
        levels[large] = 2 * NormalDist().cdf(z) - 1
    return levels
