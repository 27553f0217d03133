"""Measures of scores for any number of rows: from sums over patients, from binned scores, or from a sample of whole patients.

Brier score and calibration in the large are means over rows, so value and cluster-robust standard error follow from the sums of each
patient and their second moments. The intervals are those of large samples; smaller groups have the intervals of `calibration`.

AUROC and average precision come from counts of scores in narrow bins. Scores in the same bin count as ties, so the error of AUROC is at
most half the sum over bins of (share of positives) * (share of negatives). This bound, about 1e-5, is reported. The variances are those of
DeLong between patients, from each row's placement among the bins.

Calibration intercept, slope and error, operating points and decision curves take many passes over the rows, so they are estimated from
`SAMPLED` rows, which determine a share of one half to within 0.002. Rates, gaps, tests, performance, AUROC, Brier score and calibration in
the large always use all rows.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from equipoise.data import Attribute, Scores, splitmix64
from equipoise.measures.audit_spec import AuditSpec
from equipoise.measures.calibration import ENOUGH, Scored, expit, logit
from equipoise.measures.cells import FloatArray, IntArray, grouped, ratio, sums_at
from equipoise.measures.intervals import Limits, quantile
from equipoise.measures.score_measures import ScoreMeasures, estimate_scores, rows_by_group


@dataclass(frozen=True, eq=False)
class Losses:
    """Sums of weights, squared errors and errors over patients, per group. The sums of disjoint sets of patients can be added."""

    total: FloatArray  # (groups, 3)
    second: FloatArray  # (groups, 3, 3): sums over patients of the products of their sums
    patients: FloatArray  # (groups,)

    @classmethod
    def zeros(cls, groups: int) -> "Losses":
        """The sums of no rows."""
        return cls(np.zeros((groups, 3)), np.zeros((groups, 3, 3)), np.zeros(groups))

    def __add__(self, other: "Losses") -> "Losses":
        return Losses(self.total + other.total, self.second + other.second, self.patients + other.patients)

    def limits(self, level: float) -> dict[str, Limits]:
        """The Brier score, with limits on the logit scale to keep it between 0 and 1, and calibration in the large."""
        z, limits = quantile(level), {}
        for name, k in (("brier", 1), ("calibration_in_the_large", 2)):
            value = ratio(self.total[:, k], self.total[:, 0])
            squares = self.second[:, k, k] - 2 * value * self.second[:, k, 0] + value**2 * self.second[:, 0, 0]
            half = z * np.sqrt(np.maximum(squares, 0.0)) / np.where(self.total[:, 0] > 0, self.total[:, 0], np.nan)
            low, high = value - half, value + half
            if name == "brier":
                inside = (value > 0) & (value < 1)
                p = np.where(inside, value, 0.5)
                low, high = (np.where(inside, expit(logit(p) + sign * half / (p * (1 - p))), value) for sign in (-1, 1))
            limits[name] = Limits(value, low, high, self.patients, tuple(ENOUGH for _ in value))
        return limits


def losses_of(rows: Scored) -> Losses:
    """The losses of the rows of every group.

    >>> losses = losses_of(Scored.of([0.5, 0.5], [1, 0], np.zeros(2, int), 1, np.arange(2)))
    >>> float(losses.limits(0.95)["brier"].value[0])
    0.25
    """
    clusters, error = rows.clusters, rows.score - rows.y
    sums = [clusters.by_patient(rows.weight * values) for values in (1.0, error**2, error)]
    total = np.stack([sums_at(clusters.group, by_patient, clusters.groups) for by_patient in sums], axis=-1)
    second = np.stack([np.stack([sums_at(clusters.group, a * b, clusters.groups) for b in sums], axis=-1) for a in sums], axis=-2)
    return Losses(total, second, clusters.patients())


MANTISSA = 13  # bits of a score, or of 1 - score if that is smaller, that its bin keeps: 8,192 bins from 0.25 to 0.5
SMALLEST = 24  # scores closer than 2 ** -24 to 0 or 1 share a bin, except those that are exactly 0 or 1
BINS = 2 * (SMALLEST * 2**MANTISSA + 2)


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
    bins: npt.NDArray[np.int32] = np.where(upper, BINS - 1 - place, place)
    return bins


FAR, OCTAVES = 16.0, 8  # logits beyond +-16 have further bins, by their size up to 2 ** 8 times that
TAIL = OCTAVES * 2**MANTISSA


def bins_of(scores: Scores) -> IntArray:
    """The bin of each row by its score (one of `BINS`), or by its logit (one of `BINS + 2 * TAIL`) if there is one."""
    return score_bins(scores.score).astype(np.int64) if scores.logit is None else logit_bins(scores.logit)


def logit_bins(logit: FloatArray) -> IntArray:
    """The bin of each logit (n,), ascending: that of its score up to +-16, where different logits begin to have the same score.

    >>> logit_bins(np.array([-90.0, -40.0, 0.0, 2.0, 40.0, 90.0])).argsort().tolist()
    [0, 1, 2, 3, 4, 5]
    """
    size = np.minimum(np.abs(logit), FAR * 2.0**OCTAVES)
    beyond = (size.astype(np.float32).view(np.int32) >> (23 - MANTISSA)) - (np.float32(FAR).view(np.int32) >> (23 - MANTISSA))
    place = np.where(size > FAR, TAIL - 1 - np.minimum(beyond, TAIL - 1), TAIL + score_bins(expit(-size)))  # from the nearer end
    bins: IntArray = np.where(logit > 0, BINS + 2 * TAIL - 1 - place, place).astype(np.int64)
    return bins


@dataclass(eq=False)
class Binned:
    """AUROC and average precision of each group from binned scores, with their variances between patients (groups,)."""

    influence: dict[str, FloatArray]  # by measure: the influence of a row of each group, label and bin (groups, 2, bins)
    value: dict[str, FloatArray]
    unclustered: dict[str, FloatArray]  # variance of independent rows
    variance: dict[str, FloatArray]  # accumulated by `add`
    bound: FloatArray  # on the error of AUROC

    @classmethod
    def of(cls, counts: FloatArray, rows: FloatArray | None = None) -> "Binned":
        """AUROC and average precision from the weight of the rows by group, label and bin (groups, 2, bins).

        With sample weights, `rows` are the counts without weights, from which the variance of independent rows is taken.
        """
        binned = cls._from_counts(counts)
        return binned if rows is None else replace(binned, unclustered=cls._from_counts(rows).unclustered)

    @classmethod
    def _from_counts(cls, counts: FloatArray) -> "Binned":
        q, p = counts[:, 0], counts[:, 1]
        total_q, total_p = q.sum(-1, keepdims=True), p.sum(-1, keepdims=True)
        below = np.cumsum(q, axis=-1) - q / 2
        above = total_p - np.cumsum(p, axis=-1) + p / 2
        area = ratio((p * below).sum(-1), (total_p * total_q)[:, 0])[:, None]
        auroc = np.stack([ratio(ratio(above, total_p) - area, total_q), ratio(ratio(below, total_q) - area, total_p)], axis=1)
        hits, alarms = (np.cumsum(side[:, ::-1], axis=-1)[:, ::-1] for side in (p, q))
        decided = hits + alarms
        precision = np.nan_to_num(ratio(hits, decided))
        average = ratio((p * precision).sum(-1), total_p[:, 0])[:, None]
        raised, lowered = (ratio(np.cumsum(np.nan_to_num(ratio(p * side, decided**2)), axis=-1), total_p) for side in (alarms, hits))
        precisions = np.stack([-lowered, ratio(precision - average, total_p) + raised], axis=1)
        influence = {"auroc": np.nan_to_num(auroc), "average_precision": np.nan_to_num(precisions)}
        rows = np.stack([q, p], axis=1)
        return cls(
            influence,
            {"auroc": area[:, 0], "average_precision": average[:, 0]},
            {name: (rows * each**2).sum((-2, -1)) for name, each in influence.items()},
            {name: np.zeros(len(counts)) for name in influence},
            ratio((p * q).sum(-1), 2 * (total_p * total_q)[:, 0]),
        )

    def add(self, y: IntArray, bins: IntArray, codes: IntArray, units: IntArray, w: FloatArray | None) -> None:
        """Adds the squared sums of some patients to the variances, given all rows of these patients."""
        groups = len(self.bound)
        known = np.flatnonzero(codes >= 0)
        width = int(units.max(initial=0)) + 1
        pairs, pair_of_row = grouped(codes[known] * width + units[known], groups * width)
        for name in self.influence if groups == 1 else ("auroc",):
            values = self.influence[name][codes[known], y[known], bins[known]]
            sums = np.bincount(pair_of_row, values if w is None else values * w[known], len(pairs))
            self.variance[name] += np.bincount(pairs // width, sums**2, groups)


SAMPLED = 200_000  # expected rows in the sample of a larger group; smaller groups are used in full


def sample_of(scores: Scores, attribute: Attribute, units: IntArray) -> tuple[Scores, Attribute, IntArray]:
    """A random sample of whole patients of each group with more than `SAMPLED` rows, with all rows of the other groups."""
    counts = rows_by_group(attribute)
    if (counts <= SAMPLED).all():
        return scores, attribute, units
    share = np.append(SAMPLED / np.maximum(counts, SAMPLED), 0.0)  # the last is of rows without a group
    uniform = splitmix64(np.arange(int(units.max()) + 1, dtype=np.uint64)).astype(np.float64) / 2.0**64  # one number per patient
    rows = np.flatnonzero(uniform[units] < share[attribute.codes])
    groups, patients = attribute.take(rows), grouped(units[rows], int(units.max()) + 1)[1]
    return replace(scores.take(rows), attributes=(groups,)), groups, patients


def estimate_sampled_scores(scores: Scores, attribute: Attribute, units: IntArray, settings: AuditSpec) -> ScoreMeasures:
    """The measures of the scores of each group, from a sample of large groups."""
    sample = sample_of(scores, attribute, units)
    measures = estimate_scores(*sample, settings)
    if sample[0] is scores:
        return measures
    rows = Scored.of(scores.score, scores.y, attribute.codes, len(attribute.levels), units, scores.weight)
    return with_losses(measures, losses_of(rows), rows_by_group(attribute), settings)


def with_losses(measures: ScoreMeasures, losses: Losses, rows: npt.NDArray[Any], settings: AuditSpec) -> ScoreMeasures:
    """The measures of a sample, with Brier score and calibration in the large from all `rows` of the groups that were sampled."""
    replaced = (measures.rows < rows) & (losses.patients >= settings.min_patients)
    limits = dict(measures.limits)
    for name, exact in losses.limits(settings.level).items():
        limits[name] = replace(exact.where(replaced, limits[name]), why=limits[name].why)
    return replace(measures, limits=limits)
