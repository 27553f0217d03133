"""AUROC and average precision with their intervals, from ranked rows or from counts of scores in narrow bins.

The interval of AUROC is Newcombe's, whose variance is that of a model in which both labels have similar spreads. It takes effective numbers
of positives and negatives: both numbers divided by the larger of two design effects, at least 1: the variance between patients (DeLong's
placements, summed by patient) relative to the same variance of independent rows, and relative to the variance of the model. The
interval is thus never narrower than the observed variance implies, as it would be with unequal spreads and a rare label.

Tables that do not fit into memory have their scores counted in narrow bins. Scores in the same bin count as ties, so the error of AUROC is
at most half the sum over bins of (share of positives) * (share of negatives). This bound, about 1e-5, is reported.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from equipoise.data import Attribute, Scores
from equipoise.measures.calibration import expit
from equipoise.measures.cells import FloatArray, IntArray, grouped, kish, ratio
from equipoise.measures.intervals import Limits, auroc_design_effect, auroc_interval, fewer_clusters, wilson
from equipoise.measures.moments import Clusters


@dataclass(frozen=True, eq=False)
class Ranks:
    """The weight of the negatives and positives at each distinct score, or in each bin of scores, in ascending order (..., bins)."""

    negative: FloatArray
    positive: FloatArray

    @cached_property
    def auroc(self) -> FloatArray:
        """The probability that a positive scores above a negative, ties counting half (...); NaN unless both labels occur."""
        below = np.cumsum(self.negative, axis=-1) - self.negative / 2
        return ratio(np.einsum("...i,...i->...", self.positive, below), self.positive.sum(-1) * self.negative.sum(-1))

    @property
    def auroc_bound(self) -> FloatArray:
        """By how much AUROC may be off because different scores share a bin (...)."""
        return ratio((self.positive * self.negative).sum(-1), 2 * self.positive.sum(-1) * self.negative.sum(-1))

    @cached_property
    def decided(self) -> tuple[FloatArray, FloatArray]:
        """The weight of the positives and of the negatives that score at least as high as each bin (..., bins)."""
        hits, alarms = (np.cumsum(side[..., ::-1], axis=-1)[..., ::-1] for side in (self.positive, self.negative))
        return hits, alarms

    @cached_property
    def average_precision(self) -> FloatArray:
        """The precision at each distinct score, averaged with the sensitivity gained there (...); NaN without positives."""
        hits, alarms = self.decided
        precision = np.nan_to_num(ratio(hits, hits + alarms))
        return ratio(np.einsum("...i,...i->...", self.positive, precision), self.positive.sum(-1))

    def influence(self, measure: str) -> FloatArray:
        """The influence of a row of each label and bin on a measure, centred (..., 2, bins), to first order.

        That on AUROC are the placements of DeLong, DeLong and Clarke-Pearson 1988. The sum of the squares is the variance of the measure;
        those of one patient are added before they are squared (Obuchowski 1997).
        """
        q, p = self.negative, self.positive
        negatives, positives = q.sum(-1, keepdims=True), p.sum(-1, keepdims=True)
        if measure == "auroc":
            above, below = positives - np.cumsum(p, axis=-1) + p / 2, np.cumsum(q, axis=-1) - q / 2
            area = self.auroc[..., None]
            sides = ratio(ratio(above, positives) - area, negatives), ratio(ratio(below, negatives) - area, positives)
        else:
            hits, alarms = self.decided
            decided = hits + alarms
            precision = np.nan_to_num(ratio(hits, decided)) - self.average_precision[..., None]
            raised, lowered = (ratio(np.cumsum(np.nan_to_num(ratio(p * side, decided**2)), axis=-1), positives) for side in (alarms, hits))
            sides = -lowered, ratio(precision, positives) + raised
        return np.nan_to_num(np.stack(sides, axis=-2))

    def unclustered(self, measure: str) -> FloatArray:
        """The variance of a measure if all rows are independent (...)."""
        variance: FloatArray = (np.stack([self.negative, self.positive], axis=-2) * self.influence(measure) ** 2).sum((-2, -1))
        return variance


class Ranking:
    """Scores sorted once, so that AUROC and average precision for many weightings (..., n) are a few cumulative sums.

    `rows` is the position of each score in the weightings, if these are not per score (but per patient, say).

    >>> float(Ranking([0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1]).auroc())
    0.75
    """

    def __init__(self, score: npt.ArrayLike, y: npt.ArrayLike, rows: IntArray | None = None) -> None:
        values = np.asarray(score, dtype=np.float64)
        order = np.argsort(values)
        new = np.append(True, np.diff(values[order]) != 0)[: len(values)]  # whether a score is higher than the one before
        self.starts, self.rows = np.flatnonzero(new), order if rows is None else rows[order]
        self.positive = np.asarray(y)[order] == 1
        self.place = np.empty(len(values), np.int64)  # the bin of each score
        self.place[order] = np.cumsum(new) - 1

    def ranks(self, weight: npt.ArrayLike | None = None) -> Ranks:
        """The weight of both labels at each distinct score."""
        w = np.ones(len(self.rows)) if weight is None else np.asarray(weight, dtype=np.float64)[..., self.rows]
        negative, positive = (np.add.reduceat(np.where(side, w, 0.0), self.starts, axis=-1) for side in (~self.positive, self.positive))
        return Ranks(negative, positive)

    def auroc(self, weight: npt.ArrayLike | None = None) -> FloatArray:
        """The probability that a positive scores above a negative, ties counting half (...); NaN unless both labels occur."""
        return self.ranks(weight).auroc

    def average_precision(self, weight: npt.ArrayLike | None = None) -> FloatArray:
        """The precision at each distinct score, averaged with the sensitivity gained there (...); NaN without positives."""
        return self.ranks(weight).average_precision


class RankedRows:
    """Rows of both labels ranked by score: AUROC and average precision with cluster-robust limits."""

    def __init__(self, score: FloatArray, y: IntArray, units: IntArray, weight: FloatArray | None) -> None:
        self.y, self.units, self.weight = y, units, np.ones(len(y)) if weight is None else weight
        self.ranking = Ranking(score, y)
        self.ranks = self.ranking.ranks(self.weight)
        self.clusters = Clusters.of(y, 2, units)  # by label
        self.effective = kish(self.clusters.sum(self.weight), self.clusters.squares(self.weight))  # patients of each label

    def by_patient(self, influence: FloatArray) -> FloatArray:
        """The sum of the influences (2, bins) of the rows of each patient (patients,)."""
        return np.bincount(self.units, self.weight * influence[self.y, self.ranking.place]).astype(np.float64, copy=False)

    def variance(self, influence: FloatArray) -> float:
        """The variance of a measure between patients, from the influence of each row."""
        variance = float((self.by_patient(influence) ** 2).sum())
        if np.bincount(self.units).max() == 1 and (self.weight == self.weight[0]).all():
            return variance
        patients = float(kish(self.weight.sum(), (np.bincount(self.units, self.weight) ** 2).sum()))
        return variance * (patients / (patients - 1) if patients > 1 else 1.0)

    def reduced(self, size: FloatArray | float, level: float) -> FloatArray:
        """An effective sample size for the interval; degrees are infinite if no patient has several rows of a label or unequal weights."""
        patients = self.clusters.patients()
        single = not self.clusters.several().any() and (self.effective > patients * (1 - 1e-9)).all()
        return fewer_clusters(size, np.inf if single else max(float(self.effective.min()) - 1.0, 1.0), level)

    def area(self, level: float) -> tuple[float, float, float]:
        """AUROC, and the effective numbers of positives and negatives for its interval."""
        area = float(self.ranks.auroc)
        if np.isnan(area):
            return area, np.nan, np.nan
        sizes, unclustered = self.effective, float(self.ranking.ranks().unclustered("auroc"))
        if unclustered > 0 and 0 < area < 1:
            rows = self.clusters.sum(1.0)
            sizes = rows / auroc_design_effect(area, self.variance(self.ranks.influence("auroc")), unclustered, *rows)
        negatives, positives = self.reduced(sizes, level).tolist()
        return area, positives, negatives

    def auroc(self, level: float) -> tuple[float, float, float]:
        """AUROC with its limits (Newcombe's method 5)."""
        area, positives, negatives = self.area(level)
        low, high = auroc_interval(area, positives, negatives, level)
        return area, float(low), float(high)

    def average_precision(self, level: float) -> tuple[float, float, float]:
        """Average precision with the limits of a proportion whose variance is that of average precision between patients.

        Average precision is biased upwards in small samples, because each positive counts among those that score no lower than itself. The
        lower limit therefore allows for the value in which no positive counts for its own precision.
        """
        value, size = float(self.ranks.average_precision), float(self.effective[1])
        variance = self.variance(self.ranks.influence("average_precision"))
        positive = np.flatnonzero(self.y == 1)
        if 0 < value < 1 and variance > 0:
            size = min(len(positive), value * (1 - value) / variance)
        unbiased = value
        if len(positive) > 1:
            w, total = self.weight[positive], float(self.ranks.positive.sum())
            hits, alarms = (side[self.ranking.place[positive]] for side in self.ranks.decided)
            others = (hits - w) * total / (total - w)
            precision = np.divide(others, others + alarms, out=np.ones_like(others), where=others + alarms > 0)
            unbiased = min(value, float((w * precision).sum() / total))
        low, high = wilson([unbiased, value], self.reduced(size, level), level)
        return value, float(low[0]), float(high[1])


def aurocs(scores: Scores, attribute: Attribute, units: IntArray, level: float) -> Limits:
    """The AUROC of each group with its interval."""
    order = np.argsort(attribute.codes, kind="stable")
    rows_by_group = np.split(order, np.searchsorted(attribute.codes[order], np.arange(len(attribute.levels) + 1)))[1:-1]
    found = np.full((len(rows_by_group), 4), np.nan)
    for k, rows in enumerate(rows_by_group):  # one group at a time, to save memory
        found[k, 3] = 0.0
        if len(rows):
            patients = grouped(units[rows], int(units.max(initial=0)) + 1)[1]
            ranked = RankedRows(scores.rank[rows], scores.y[rows], patients, None if scores.weight is None else scores.weight[rows])
            found[k] = *ranked.area(level), ranked.clusters.patients().min()
    area, positives, negatives, patients_of_rarer_label = found.T
    low, high = auroc_interval(area, positives, negatives, level)
    return Limits(area, low, high, patients_of_rarer_label)


MANTISSA = 13  # bits of a score, or of 1 - score if that is smaller, that its bin keeps: 8,192 bins from 0.25 to 0.5
SMALLEST = 24  # scores closer than 2 ** -24 to 0 or 1 share a bin, except those that are exactly 0 or 1
SCORE_BINS = 2 * (SMALLEST * 2**MANTISSA + 2)
FAR, OCTAVES = 16.0, 8  # logits beyond +-16 have further bins, by their size up to 2 ** 8 times that
TAIL = OCTAVES * 2**MANTISSA


def bins_of(scores: Scores) -> IntArray:
    """The bin of each row by its score (one of `SCORE_BINS`), or by its logit (one of `SCORE_BINS + 2 * TAIL`) if there is one."""
    return score_bins(scores.score).astype(np.int64) if scores.logit is None else logit_bins(scores.logit)


def score_bins(score: FloatArray) -> npt.NDArray[np.int32]:
    """The bin of each score (n,), ascending. Bins are narrower towards 0 and 1, where scores of rare findings lie close together.

    >>> score_bins(np.array([0.0, 0.25, 0.5, 0.75, 1.0])).tolist() == sorted(score_bins(np.array([0.0, 0.25, 0.5, 0.75, 1.0])).tolist())
    True
    """
    upper = score > 0.5
    distance = np.where(upper, 1 - score, score).astype(np.float32)  # from the nearer of 0 and 1
    bits = distance.view(np.int32) >> (23 - MANTISSA)
    lowest = (127 - SMALLEST) << MANTISSA
    place = np.where(distance == 0, 0, np.clip(bits - lowest, 0, SMALLEST * 2**MANTISSA) + 1).astype(np.int32)
    bins: npt.NDArray[np.int32] = np.where(upper, SCORE_BINS - 1 - place, place)
    return bins


def logit_bins(logit: FloatArray) -> IntArray:
    """The bin of each logit (n,), ascending: that of its score up to +-16, where different logits begin to have the same score.

    >>> logit_bins(np.array([-90.0, -40.0, 0.0, 2.0, 40.0, 90.0])).argsort().tolist()
    [0, 1, 2, 3, 4, 5]
    """
    size = np.minimum(np.abs(logit), FAR * 2.0**OCTAVES)
    beyond = (size.astype(np.float32).view(np.int32) >> (23 - MANTISSA)) - (np.float32(FAR).view(np.int32) >> (23 - MANTISSA))
    place = np.where(size > FAR, TAIL - 1 - np.minimum(beyond, TAIL - 1), TAIL + score_bins(expit(-size)))  # from the nearer end
    bins: IntArray = np.where(logit > 0, SCORE_BINS + 2 * TAIL - 1 - place, place).astype(np.int64)
    return bins


class Binned:
    """AUROC and average precision of each group from binned scores, with their variances between patients (groups,)."""

    def __init__(self, counts: FloatArray, rows: FloatArray | None = None) -> None:
        """From the weight of the rows by group, label and bin (groups, 2, bins).

        With sample weights, `rows` are the counts without weights, from which the variance of independent rows is taken.
        """
        ranks = Ranks(counts[:, 0], counts[:, 1])
        plain = ranks if rows is None else Ranks(rows[:, 0], rows[:, 1])
        self.value = {"auroc": ranks.auroc, "average_precision": ranks.average_precision}
        self.influence = {name: ranks.influence(name) for name in self.value}
        self.unclustered = {name: plain.unclustered(name) for name in self.value}
        self.variance = {name: np.zeros(len(counts)) for name in self.value}  # accumulated by `add`
        self.bound = ranks.auroc_bound

    def add(self, y: IntArray, bins: IntArray, codes: IntArray, units: IntArray, w: FloatArray | None) -> None:
        """Adds the squared sums of some patients to the variances, given all rows of these patients."""
        clusters = Clusters.of(codes, len(self.bound), units)
        known = clusters.rows
        for name in self.influence if len(self.bound) == 1 else ("auroc",):
            values = self.influence[name][clusters.code, y[known], bins[known]]
            self.variance[name] += clusters.squares(values if w is None else values * w[known])
