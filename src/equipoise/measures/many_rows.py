"""Measures of the scores of any number of rows: from sums over patients, from binned scores, or from a sample of whole patients.

Brier score and calibration in the large are means over rows, so value and cluster-robust standard error follow from the sums of each
patient and their second moments. The intervals are those of large samples; smaller groups have the intervals of `calibration`.

AUROC and average precision come from counts of scores in narrow bins. Scores in one bin count as ties, so that AUROC is off by at most half
the sum over bins of (share of positives) * (share of negatives), which is reported: about 1e-5. The variances are those of DeLong between
patients, from each row's placement among the bins.

Calibration intercept, slope and error, operating points and decision curves take many passes over the rows. From `SAMPLED` rows a share of
one half is known to 0.002, which no reader tells from the value of all rows. Rates, gaps, tests, performance, AUROC, Brier score and
calibration in the large always use all rows.
"""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from equipoise.data import Attribute, Scores, mixed
from equipoise.measures.calibration import ENOUGH, Scored, expit, logit
from equipoise.measures.cells import FloatArray, IntArray, grouped, ratio, sums_at
from equipoise.measures.intervals import Limits, quantile
from equipoise.measures.score_measures import ScoreMeasures


@dataclass(frozen=True, eq=False)
class Losses:
    """Sums of weights, squared errors and errors over patients, per group. Those of disjoint sets of patients add up."""

    total: FloatArray  # (groups, 3)
    second: FloatArray  # (groups, 3, 3): sums over patients of the products of their sums
    patients: FloatArray  # (groups,)

    def __add__(self, other: "Losses") -> "Losses":
        return Losses(self.total + other.total, self.second + other.second, self.patients + other.patients)

    def taken(self, groups: IntArray) -> "Losses":
        """Those of some groups."""
        return Losses(self.total[groups], self.second[groups], self.patients[groups])

    def limits(self, level: float) -> dict[str, Limits]:
        """The Brier score, on the logit scale, which keeps it inside 0 and 1, and calibration in the large, mean score minus prevalence."""
        z, found = quantile(level), {}
        for name, k in (("brier", 1), ("calibration_in_the_large", 2)):
            value = ratio(self.total[:, k], self.total[:, 0])
            squares = self.second[:, k, k] - 2 * value * self.second[:, k, 0] + value**2 * self.second[:, 0, 0]
            half = z * np.sqrt(np.maximum(squares, 0.0)) / np.where(self.total[:, 0] > 0, self.total[:, 0], np.nan)
            low, high = value - half, value + half
            if name == "brier":
                inside = (value > 0) & (value < 1)
                p = np.where(inside, value, 0.5)
                low, high = (np.where(inside, expit(logit(p) + sign * half / (p * (1 - p))), value) for sign in (-1, 1))
            found[name] = Limits(value, low, high, self.patients, tuple(ENOUGH for _ in value))
        return found


def losses_of(rows: Scored) -> Losses:
    """The losses of the rows of every group.

    >>> two = losses_of(Scored.of([0.5, 0.5], [1, 0], np.zeros(2, int), 1, np.arange(2)))
    >>> float(two.limits(0.95)["brier"].value[0])
    0.25
    """
    of, error = rows.clusters, rows.score - rows.y
    sums = [of.by_patient(rows.weight * values) for values in (1.0, error**2, error)]
    total = np.stack([sums_at(of.group, own, of.groups) for own in sums], axis=-1)
    second = np.stack([np.stack([sums_at(of.group, a * b, of.groups) for b in sums], axis=-1) for a in sums], axis=-2)
    return Losses(total, second, of.patients())


MANTISSA = 13  # bits of a score, or of its distance from 1 if that is nearer, that its bin keeps: 8,192 bins from 0.25 to 0.5
SMALLEST = 24  # scores closer than 2 ** -24 to 0 or 1 share a bin, except those that are exactly 0 or 1
BINS = 2 * (SMALLEST * 2**MANTISSA + 2)


def score_bins(score: FloatArray) -> npt.NDArray[np.int32]:
    """The bin of each score (n,): narrower towards 0 and 1, where scores of rare findings lie close together. Higher scores, higher bins.

    >>> score_bins(np.array([0.0, 0.25, 0.5, 0.75, 1.0])).tolist() == sorted(score_bins(np.array([0.0, 0.25, 0.5, 0.75, 1.0])).tolist())
    True
    """
    upper = score > 0.5
    near = np.where(upper, 1 - score, score).astype(np.float32)  # the distance from the nearer end
    bits = near.view(np.int32) >> (23 - MANTISSA)
    lowest = (127 - SMALLEST) << MANTISSA
    place = np.where(near == 0, 0, np.clip(bits - lowest, 0, SMALLEST * 2**MANTISSA) + 1).astype(np.int32)
    found: npt.NDArray[np.int32] = np.where(upper, BINS - 1 - place, place)
    return found


@dataclass(eq=False)
class Binned:
    """AUROC and average precision of each group from binned scores, and the variances between patients (groups,)."""

    own: dict[str, FloatArray]  # by measure: what a row of each group, label and bin adds (groups, 2, bins)
    value: dict[str, FloatArray]
    unclustered: dict[str, FloatArray]
    variance: dict[str, FloatArray]
    bound: FloatArray  # by how much AUROC may be off

    @classmethod
    def of(cls, counts: FloatArray, rows: FloatArray | None = None) -> "Binned":
        """AUROC and average precision from the weight of the rows by group, label and bin (groups, 2, bins).

        The variance of unclustered rows is that of `rows`, the same without weights, where there are weights.
        """
        found = cls._of(counts)
        return found if rows is None else replace(found, unclustered=cls._of(rows).unclustered)

    @classmethod
    def _of(cls, counts: FloatArray) -> "Binned":
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
        own = {"auroc": np.nan_to_num(auroc), "average_precision": np.nan_to_num(precisions)}
        rows = np.stack([q, p], axis=1)
        return cls(
            own,
            {"auroc": area[:, 0], "average_precision": average[:, 0]},
            {name: (rows * each**2).sum((-2, -1)) for name, each in own.items()},
            {name: np.zeros(len(counts)) for name in own},
            ratio((p * q).sum(-1), 2 * (total_p * total_q)[:, 0]),
        )

    def add(self, y: IntArray, place: IntArray, codes: IntArray, units: IntArray, w: FloatArray | None) -> None:
        """Adds the squared sums of some patients, all of whose rows these are; `place` is the bin of each."""
        groups = len(self.bound)
        known = np.flatnonzero(codes >= 0)
        width = int(units.max(initial=0)) + 1
        pairs, which = grouped(codes[known] * width + units[known], groups * width)
        for name in self.own if groups == 1 else ("auroc",):
            values = self.own[name][codes[known], y[known], place[known]]
            sums = np.bincount(which, values if w is None else values * w[known], len(pairs))
            self.variance[name] += np.bincount(pairs // width, sums**2, groups)


SAMPLED = 200_000  # rows of a group, in the mean, from which the measures of its scores are estimated; a smaller group is used as it is


def sample_of(scores: Scores, attribute: Attribute, units: IntArray) -> tuple[Scores, Attribute, IntArray]:
    """The rows of whole patients, chosen at random in groups of more than `SAMPLED` rows; all others, and all of a small table."""
    if len(scores) <= SAMPLED:
        return scores, attribute, units
    counts = np.bincount(attribute.codes[attribute.codes >= 0], minlength=len(attribute.levels))
    if (counts <= SAMPLED).all():
        return scores, attribute, units
    share = np.append(SAMPLED / np.maximum(counts, SAMPLED), 0.0)  # rows without a group are in none
    chance = mixed(np.arange(int(units.max()) + 1, dtype=np.uint64)).astype(np.float64) / 2.0**64  # of each patient
    rows = np.flatnonzero(chance[units] < share[attribute.codes])
    own, kept = attribute.take(rows), grouped(units[rows], int(units.max()) + 1)[1]
    return replace(scores.take(rows), attributes=(own,)), own, kept


def rows_used(attribute: Attribute) -> IntArray:
    """How many rows of each group a sample has, whose groups these are (groups,)."""
    return np.bincount(attribute.codes[attribute.codes >= 0], minlength=len(attribute.levels))


def of_all_rows(found: ScoreMeasures, losses: Losses, level: float, sampled: npt.NDArray[np.bool_], least: int) -> ScoreMeasures:
    """The measures of a sample, with those that need none from all rows in the groups that were sampled."""
    known = sampled & (losses.patients >= least)
    limits = dict(found.limits)
    for name, exact in losses.limits(level).items():
        own = limits[name]
        ends = [
            np.where(known, one, other)
            for one, other in zip((exact.value, exact.low, exact.high), (own.value, own.low, own.high), strict=True)
        ]
        limits[name] = Limits(ends[0], ends[1], ends[2], np.where(known, exact.patients, own.patients), own.why)
    return replace(found, limits=limits)
