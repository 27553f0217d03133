"""Performance measures. Accuracy and balanced accuracy are affine (see functional); F1, AUROC and average precision are not."""

import numpy as np
import numpy.typing as npt

from equipoise.measures.cells import FloatArray, IntArray, ratio

PERFORMANCE = ("balanced_accuracy", "accuracy", "f1", "auroc", "average_precision")
AT_THRESHOLD = ("balanced_accuracy", "accuracy", "f1")  # those that depend on the decisions


def f1(true_positives: FloatArray, false_positives: FloatArray, positives: FloatArray) -> FloatArray:
    """The harmonic mean of precision and sensitivity, from sums of decisions; 0 where no row is decided positive."""
    return ratio(2.0 * true_positives, true_positives + false_positives + positives)


class Ranking:
    """Scores in order, once, so that AUROC and average precision of many weightings (..., n) are a few cumulative sums.

    `rows` says where each score stands in the weightings, if they are of other things (patients) than the scores.

    >>> float(Ranking([0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1]).auroc())
    0.75
    """

    def __init__(self, score: npt.ArrayLike, y: npt.ArrayLike, rows: IntArray | None = None) -> None:
        values, label = np.asarray(score, dtype=np.float64), np.asarray(y)
        where = np.arange(len(values)) if rows is None else rows
        order = np.argsort(-values)
        positive, negative = order[label[order] == 1], order[label[order] == 0]
        self.positive, self.negative = where[positive], where[negative]  # from the highest score to the lowest
        high, low = -values[positive], -values[negative]  # ascending, for searchsorted
        self._above = np.searchsorted(high, low, side="left")  # for each negative, the positives that score higher
        self._level = np.searchsorted(high, low, side="right")  # ... or the same
        self._hits = np.searchsorted(high, high, side="right")  # for each positive, the positives that score no lower
        self._alarms = np.searchsorted(low, high, side="right")  # ... and the negatives
        self._ahead = np.searchsorted(low, high, side="left")  # ... and the negatives that score higher
        self._first = np.searchsorted(high, high, side="left")  # for each positive, the positives that score higher

    def _weights(self, weight: npt.ArrayLike | None) -> tuple[FloatArray, FloatArray]:
        if weight is None:
            return np.ones(len(self.positive)), np.ones(len(self.negative))
        w = np.asarray(weight, dtype=np.float64)
        return w[..., self.positive], w[..., self.negative]

    def auroc(self, weight: npt.ArrayLike | None = None) -> FloatArray:
        """The chance that a positive scores above a negative, ties counting half; NaN without both. (...)"""
        positive, negative = self._weights(weight)
        ahead = _running(positive)
        beaten = ahead[..., self._above]
        if not np.array_equal(self._above, self._level):
            beaten = (beaten + ahead[..., self._level]) / 2
        return ratio(np.einsum("...i,...i->...", negative, beaten), ahead[..., -1] * negative.sum(-1))

    def average_precision(self, weight: npt.ArrayLike | None = None) -> FloatArray:
        """The precision at each distinct score, averaged with the sensitivity gained there; NaN without positives. (...)"""
        positive, negative = self._weights(weight)
        hits, alarms = _running(positive), _running(negative)
        true = hits[..., self._hits]
        decided = true + alarms[..., self._alarms]
        precision = np.divide(true, decided, out=np.zeros_like(true), where=decided > 0)
        return ratio(np.einsum("...i,...i->...", positive, precision), hits[..., -1])

    def average_precision_of_others(self, weight: npt.ArrayLike | None = None) -> float:
        """Average precision with the sensitivity at each positive taken from the other positives; NaN with fewer than two."""
        positive, negative = self._weights(weight)
        hits, alarms = _running(positive), _running(negative)
        if len(positive) < 2:
            return float("nan")
        others = (hits[self._hits] - positive) * hits[-1] / (hits[-1] - positive)
        decided = others + alarms[self._alarms]
        precision = np.divide(others, decided, out=np.ones_like(others), where=decided > 0)
        return float((positive * precision).sum() / hits[-1])

    def auroc_influence(self, weight: npt.ArrayLike | None = None) -> tuple[FloatArray, FloatArray]:
        """What each positive and each negative adds to AUROC, around 0: the placements of DeLong, DeLong and Clarke-Pearson 1988.

        The sum of their squares is the variance of AUROC; rows of one patient are added before they are squared (Obuchowski 1997).
        """
        positive, negative = self._weights(weight)
        ahead, alarms = _running(positive), _running(negative)
        beaten = (ahead[self._above] + ahead[self._level]) / 2 / ahead[-1]
        beats = 1 - (alarms[self._ahead] + alarms[self._alarms]) / 2 / alarms[-1]
        area = float(self.auroc(weight))
        return positive * (beats - area) / ahead[-1], negative * (beaten - area) / alarms[-1]

    def average_precision_influence(self, weight: npt.ArrayLike | None = None) -> tuple[FloatArray, FloatArray]:
        """What each positive and each negative adds to average precision, to first order, around 0."""
        positive, negative = self._weights(weight)
        hits, alarms = _running(positive), _running(negative)
        true, false = hits[self._hits], alarms[self._alarms]
        decided = true + false
        gain, loss = (_running((positive * side / decided**2)[::-1])[::-1] for side in (false, true))  # from this positive to the last one
        own = true / decided - float(self.average_precision(weight)) + gain[self._first]
        return positive * own / hits[-1], -negative * loss[self._above] / hits[-1]


def _running(weight: FloatArray) -> FloatArray:
    """Cumulative sums with a zero in front (..., n + 1)."""
    out = np.zeros((*weight.shape[:-1], weight.shape[-1] + 1))
    np.cumsum(weight, axis=-1, out=out[..., 1:])
    return out
