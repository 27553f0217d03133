"""AUROC and average precision of any number of rows, from counts of scores in narrow bins, with standard errors by patient.

Scores in one bin count as ties, so that AUROC is off by at most half the sum over bins of (share of positives) * (share of negatives),
which is reported: about 1e-5. The variances are those of DeLong between patients, from each row's placement among the bins.
"""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from equipoise.measures.cells import FloatArray, IntArray, grouped, ratio

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
