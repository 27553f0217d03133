"""Performance measures that are not affine: F1, and AUROC and average precision with their intervals.

Accuracy and balanced accuracy are affine (see `functional`).

The interval of AUROC is Newcombe's, whose variance is that of a model in which both labels have similar spreads. It takes effective numbers
of positives and negatives: both numbers divided by the larger of two design effects, at least 1: the variance between patients (DeLong's
placements, summed by patient) relative to the same variance of independent rows, and relative to the variance of the model. The
interval is thus never narrower than the observed variance implies, as it would be with unequal spreads and a rare label.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from equipoise.data import Attribute, Scores
from equipoise.measures.cells import FloatArray, IntArray, grouped, ratio, sums_at
from equipoise.measures.intervals import Limits, auroc_design_effect, auroc_interval, fewer_clusters, wilson


class Ranking:
    """Scores sorted once, so that AUROC and average precision for many weightings (..., n) are a few cumulative sums.

    `rows` is the position of each score in the weightings, if these are not per score (but per patient, say).

    >>> float(Ranking([0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1]).auroc())
    0.75
    """

    def __init__(self, score: npt.ArrayLike, y: npt.ArrayLike, rows: IntArray | None = None) -> None:
        values, label = np.asarray(score, dtype=np.float64), np.asarray(y)
        positions = np.arange(len(values)) if rows is None else rows
        order = np.argsort(-values)
        positive, negative = order[label[order] == 1], order[label[order] == 0]
        self.positive, self.negative = positions[positive], positions[negative]  # from the highest score to the lowest
        high, low = -values[positive], -values[negative]  # ascending, for searchsorted
        self._above = np.searchsorted(high, low, side="left")  # for each negative, the number of positives that score higher
        self._level = np.searchsorted(high, low, side="right")  # ... or the same
        self._hits = np.searchsorted(high, high, side="right")  # for each positive, the number of positives that score no lower
        self._alarms = np.searchsorted(low, high, side="right")  # ... and of negatives
        self._ahead = np.searchsorted(low, high, side="left")  # ... and of negatives that score higher
        self._first = np.searchsorted(high, high, side="left")  # for each positive, the number of positives that score higher

    def _weights(self, weight: npt.ArrayLike | None) -> tuple[FloatArray, FloatArray]:
        if weight is None:
            return np.ones(len(self.positive)), np.ones(len(self.negative))
        w = np.asarray(weight, dtype=np.float64)
        return w[..., self.positive], w[..., self.negative]

    def auroc(self, weight: npt.ArrayLike | None = None) -> FloatArray:
        """The probability that a positive scores above a negative, ties counting half (...); NaN unless both labels occur."""
        positive, negative = self._weights(weight)
        ahead = _cumulative(positive)
        beaten = ahead[..., self._above]
        if not np.array_equal(self._above, self._level):
            beaten = (beaten + ahead[..., self._level]) / 2
        return ratio(np.einsum("...i,...i->...", negative, beaten), ahead[..., -1] * negative.sum(-1))

    def average_precision(self, weight: npt.ArrayLike | None = None) -> FloatArray:
        """The precision at each distinct score, averaged with the sensitivity gained there (...); NaN without positives."""
        positive, negative = self._weights(weight)
        hits, alarms = _cumulative(positive), _cumulative(negative)
        true = hits[..., self._hits]
        decided = true + alarms[..., self._alarms]
        precision = np.divide(true, decided, out=np.zeros_like(true), where=decided > 0)
        return ratio(np.einsum("...i,...i->...", positive, precision), hits[..., -1])

    def average_precision_of_others(self, weight: npt.ArrayLike | None = None) -> float:
        """Average precision in which no positive counts for its own precision; NaN with fewer than two positives."""
        positive, negative = self._weights(weight)
        hits, alarms = _cumulative(positive), _cumulative(negative)
        if len(positive) < 2:
            return float("nan")
        others = (hits[self._hits] - positive) * hits[-1] / (hits[-1] - positive)
        decided = others + alarms[self._alarms]
        precision = np.divide(others, decided, out=np.ones_like(others), where=decided > 0)
        return float((positive * precision).sum() / hits[-1])

    def auroc_influence(self, weight: npt.ArrayLike | None = None) -> tuple[FloatArray, FloatArray]:
        """The influence of each positive and each negative on AUROC, centred: the placements of DeLong, DeLong and Clarke-Pearson 1988.

        The sum of their squares is the variance of AUROC; those of one patient are added before they are squared (Obuchowski 1997).
        """
        positive, negative = self._weights(weight)
        ahead, alarms = _cumulative(positive), _cumulative(negative)
        beaten = (ahead[self._above] + ahead[self._level]) / 2 / ahead[-1]
        beats = 1 - (alarms[self._ahead] + alarms[self._alarms]) / 2 / alarms[-1]
        area = float(self.auroc(weight))
        return positive * (beats - area) / ahead[-1], negative * (beaten - area) / alarms[-1]

    def average_precision_influence(self, weight: npt.ArrayLike | None = None) -> tuple[FloatArray, FloatArray]:
        """The influence of each positive and each negative on average precision, centred, to first order."""
        positive, negative = self._weights(weight)
        hits, alarms = _cumulative(positive), _cumulative(negative)
        true, false = hits[self._hits], alarms[self._alarms]
        decided = true + false
        gain, loss = (_cumulative((positive * side / decided**2)[::-1])[::-1] for side in (false, true))  # from this positive to the last
        precision = true / decided - float(self.average_precision(weight)) + gain[self._first]
        return positive * precision / hits[-1], -negative * loss[self._above] / hits[-1]


def _cumulative(weight: FloatArray) -> FloatArray:
    """Cumulative sums with a leading zero (..., n + 1)."""
    out = np.zeros((*weight.shape[:-1], weight.shape[-1] + 1))
    np.cumsum(weight, axis=-1, out=out[..., 1:])
    return out


@dataclass(frozen=True, eq=False)
class RankedRows:
    """Ranked scores with the patient and the weight of each row: AUROC and average precision with cluster-robust limits."""

    ranking: Ranking
    units: IntArray  # the patient of each row
    weight: FloatArray | None

    @cached_property
    def _rows_by_patient(self) -> tuple[FloatArray, FloatArray]:
        """The number of positive rows of each patient who has any, and likewise of negative rows."""
        patients = int(self.units.max(initial=-1)) + 1
        counts = [np.bincount(self.units[side], minlength=patients) for side in (self.ranking.positive, self.ranking.negative)]
        return counts[0][counts[0] > 0].astype(np.float64), counts[1][counts[1] > 0].astype(np.float64)

    def patients(self) -> tuple[int, int]:
        """The number of patients with positive rows and of patients with negative rows."""
        positive, negative = self._rows_by_patient
        return len(positive), len(negative)

    @cached_property
    def _masses(self) -> tuple[FloatArray, FloatArray]:
        """The weight of the positive rows of each patient, and that of the negative rows (patients,)."""
        patients = int(self.units.max(initial=-1)) + 1
        positive, negative = (
            sums_at(self.units[side], 1.0 if self.weight is None else self.weight[side], patients)
            for side in (self.ranking.positive, self.ranking.negative)
        )
        return positive, negative

    def _effective_patients(self) -> tuple[float, float]:
        """The effective number of patients with positive and with negative rows (Kish)."""
        positive, negative = (_kish(mass) for mass in self._masses)
        return positive, negative

    def variance(self, influence: tuple[FloatArray, FloatArray]) -> float:
        """The variance of a measure between patients, from the influence of each row."""
        by_patient = self.by_patient(influence)
        variance = float((by_patient**2).sum())
        if self._single:
            return variance
        patients = _kish(self._masses[0] + self._masses[1])
        return variance * (patients / (patients - 1) if patients > 1 else 1.0)

    def by_patient(self, influence: tuple[FloatArray, FloatArray]) -> FloatArray:
        """The sum of the influences of the rows of each patient (patients,)."""
        units = self.units[np.concatenate([self.ranking.positive, self.ranking.negative])]
        return np.bincount(units, np.concatenate(influence)).astype(np.float64, copy=False)

    @cached_property
    def _single(self) -> bool:
        """Whether all patients have one row, of equal weights."""
        equal = self.weight is None or bool((self.weight == self.weight[:1]).all())
        return equal and int((self._masses[0] + self._masses[1] > 0).sum()) == len(self.units)

    def _degrees(self) -> float:
        """Degrees of freedom of the variance; infinite if no patient has more than one row of a label, and rows have equal weights."""
        rows, patients = (len(self.ranking.positive), len(self.ranking.negative)), self.patients()
        effective = self._effective_patients()
        if rows == patients and all(kish > n * (1 - 1e-9) for kish, n in zip(effective, patients, strict=True)):
            return float("inf")
        return max(min(effective) - 1.0, 1.0)

    def area(self, level: float) -> tuple[float, float, float]:
        """AUROC, and the effective numbers of positives and negatives for its interval."""
        area = float(self.ranking.auroc(self.weight))
        if np.isnan(area):
            return area, np.nan, np.nan
        sizes = self._effective_patients()
        influence = self.ranking.auroc_influence()
        unclustered = sum(float((side**2).sum()) for side in influence)
        if unclustered > 0 and 0 < area < 1:
            rows = len(self.ranking.positive), len(self.ranking.negative)
            between = self.variance(influence if self.weight is None else self.ranking.auroc_influence(self.weight))
            effect = float(auroc_design_effect(area, between, unclustered, *rows))
            sizes = rows[0] / effect, rows[1] / effect
        positives, negatives = (float(fewer_clusters(size, self._degrees(), level)) for size in sizes)
        return area, positives, negatives

    def auroc(self, level: float) -> tuple[float, float, float]:
        """AUROC with its limits (Newcombe's method 5)."""
        area, positives, negatives = self.area(level)
        low, high = auroc_interval(area, positives, negatives, level)
        return area, float(low), float(high)

    def average_precision(self, level: float) -> tuple[float, float, float]:
        """Average precision with the limits of a proportion whose variance is that of average precision between patients.

        Average precision is biased upwards in small samples, because each positive counts among those that score no lower than itself. The
        lower limit therefore allows for the value without that bias.
        """
        value = float(self.ranking.average_precision(self.weight))
        size = self._effective_patients()[0]
        variance = self.variance(self.ranking.average_precision_influence(self.weight))
        if 0 < value < 1 and variance > 0:
            size = min(len(self.ranking.positive), value * (1 - value) / variance)
        size = float(fewer_clusters(size, self._degrees(), level))
        unbiased = np.fmin(value, self.ranking.average_precision_of_others(self.weight))
        low, high = wilson([unbiased, value], size, level)
        return value, float(low[0]), float(high[1])


def _kish(mass: FloatArray) -> float:
    """The effective number of patients whose rows have these weights (patients,)."""
    return float(mass.sum() ** 2 / (mass**2).sum())


def aurocs(scores: Scores, attribute: Attribute, units: IntArray, level: float) -> Limits:
    """The AUROC of each group with its interval."""
    order = np.argsort(attribute.codes, kind="stable")
    rows_by_group = np.split(order, np.searchsorted(attribute.codes[order], np.arange(len(attribute.levels) + 1)))[1:-1]
    found = []
    for rows in rows_by_group:  # one group at a time, to save memory
        patients = grouped(units[rows], int(units.max(initial=0)) + 1)[1]
        weight = None if scores.weight is None else scores.weight[rows]
        ranked = RankedRows(Ranking(scores.rank[rows], scores.y[rows]), patients, weight)
        found.append((*ranked.area(level), float(min(ranked.patients()))))
    area, positives, negatives, patients_of_rarer_label = np.array(found).reshape(-1, 4).T
    low, high = auroc_interval(area, positives, negatives, level)
    return Limits(area, low, high, patients_of_rarer_label)
