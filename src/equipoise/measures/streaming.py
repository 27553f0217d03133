"""Audits of tables on disk, in memory that does not grow with the number of rows.

Several labels of one table are read together and estimated one after another, in the memory of one; they are one family of comparisons.
A table of up to `HELD` rows is audited in memory, exactly. A larger one is written to files that each hold all rows of their patients, and
is audited by sums over these files:

- rates, gaps, their intervals and tests, accuracy, balanced accuracy and F1 follow from sums by patient and their second moments, which
  can be added: the numbers are the same as in memory
- Brier score and calibration in the large are means over rows, so they follow from such sums too
- AUROC and average precision come from counts of scores in narrow bins. Scores in the same bin count as ties, so the error of AUROC is at
  most half the sum over bins of (share of positives) * (share of negatives). This bound, about 1e-5, is reported
- calibration intercept, slope and error, operating points and decision curves, and the test of a group with few patients, use a random
  sample of whole patients of at least `SAMPLED_ROWS` rows of each group, or all rows of a smaller group. Their intervals are those of that
  sample, and the audit states its size (`sampled`).
"""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from equipoise.data import Attribute, FloatArray, IntArray, Scores
from equipoise.measures.calibration import expit
from equipoise.measures.cells import Cells, distinct_keys, ratio
from equipoise.measures.intervals import Estimate, Limits, auroc_design_effect, auroc_interval, fewer_clusters, wilson
from equipoise.measures.moments import LEAST_REST, Clusters, Moments, moments_of
from equipoise.measures.score_measures import RANK_MEASURES, SAMPLED_ROWS, Ranks, aurocs, losses_of

MANTISSA = 13  # bits of a score, or of 1 - score if that is smaller, that its bin keeps: 8,192 bins from 0.25 to 0.5
SMALLEST = 24  # scores closer than 2 ** -24 to 0 or 1 share a bin, except those that are exactly 0 or 1
SCORE_BINS = 2 * (SMALLEST * 2**MANTISSA + 2)
FAR_LOGIT, OCTAVES = 16.0, 8  # logits beyond +-16 have further bins, by their size up to 2 ** 8 times that
FAR_LOGIT_BINS = OCTAVES * 2**MANTISSA
MOST_BINS = 2**22  # of all groups together; with many groups, neighbouring bins are joined


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
    size = np.minimum(np.abs(logit), FAR_LOGIT * 2.0**OCTAVES)
    beyond = (size.astype(np.float32).view(np.int32) >> (23 - MANTISSA)) - (np.float32(FAR_LOGIT).view(np.int32) >> (23 - MANTISSA))
    place = np.where(
        size > FAR_LOGIT, FAR_LOGIT_BINS - 1 - np.minimum(beyond, FAR_LOGIT_BINS - 1), FAR_LOGIT_BINS + score_bins(expit(-size))
    )  # from the nearer end
    bins: IntArray = np.where(logit > 0, SCORE_BINS + 2 * FAR_LOGIT_BINS - 1 - place, place).astype(np.int64)
    return bins


@dataclass(eq=False)
class Tally:
    """Running sums for the groups of one attribute, with a sample of the rows."""

    groups: int
    logits: bool  # whether scores are logits, whose bins reach further
    moments: Moments = field(init=False)
    losses: Moments = field(init=False)
    bin_width: int = 1  # number of neighbouring bins that are joined
    bin_weights: FloatArray = field(init=False)  # (groups, 2, bins): weight of the rows by label and bin of the score
    bin_counts: FloatArray | None = None  # (groups, 2, bins): number of rows, if there are weights
    ranks: Ranks = field(init=False)  # of the bins, for AUROC and average precision
    influence: dict[str, FloatArray] = field(init=False)  # of a row of each group, label and bin on these two
    variance: dict[str, FloatArray] = field(init=False)  # between patients (groups,), which needs a second pass
    sample: Scores = field(init=False)
    units: IntArray = field(init=False)  # patients of the sample
    decisions: FloatArray = field(init=False)  # on the sample

    def __post_init__(self) -> None:
        none = np.zeros(0, np.int64)
        self.moments, self.losses = moments_of(none, none, none, self.groups, none), losses_of(none, none, none, self.groups, none)
        bins = SCORE_BINS + 2 * FAR_LOGIT_BINS if self.logits else SCORE_BINS
        while 2 * self.groups * (bins // self.bin_width + 1) > MOST_BINS:
            self.bin_width *= 2
        self.bin_weights = np.zeros((self.groups, 2, bins // self.bin_width + 1))
        self._sampled: list[tuple[Any, ...]] = []
        self._sampled_rows = np.zeros(self.groups, np.int64)
        self._patients = 0

    def add(self, part: Scores, f: FloatArray, bins: IntArray, codes: IntArray, units: IntArray) -> None:
        """Adds the rows of one part, in the first pass."""
        y, score, w = part.y, part.score, part.weight
        self.moments += moments_of(f, y, codes, self.groups, units, w)
        self.losses += losses_of(score, y, codes, self.groups, units, w)
        known, shape = codes >= 0, self.bin_weights.shape
        cell = ((codes * 2 + y) * shape[-1] + bins // self.bin_width)[known]
        self.bin_weights += np.bincount(cell, None if w is None else w[known], self.bin_weights.size).reshape(shape)
        if w is not None:
            counts = np.bincount(cell, minlength=self.bin_weights.size).reshape(shape).astype(np.float64)
            self.bin_counts = counts if self.bin_counts is None else self.bin_counts + counts
        needs_more = np.append(self._sampled_rows < SAMPLED_ROWS, False)  # the last is of rows without a group
        rows = np.flatnonzero(needs_more[codes])
        weight, logit = (None if values is None else values[rows] for values in (w, part.logit))
        self._sampled.append((y[rows], score[rows], f[rows], codes[rows], units[rows] + self._patients, weight, logit))
        self._sampled_rows += np.bincount(codes[rows], minlength=self.groups)
        self._patients += int(units.max(initial=-1)) + 1

    def rank(self) -> None:
        """Ranks the bins, once all rows were added."""
        self.ranks = Ranks(self.bin_weights[:, 0], self.bin_weights[:, 1])
        self.influence = {name: self.ranks.influence(name) for name in RANK_MEASURES}
        self.variance = {name: np.zeros(self.groups) for name in RANK_MEASURES}

    def add_variance(self, part: Scores, bins: IntArray, codes: IntArray, units: IntArray) -> None:
        """Adds the squared sums of the patients of one part to the variances, in the second pass."""
        clusters = Clusters.of(codes, self.groups, units)
        known = clusters.rows
        weight = np.ones(len(known)) if part.weight is None else part.weight[known]
        by_label = Clusters.of(np.where(codes < 0, -1, codes * 2 + part.y), 2 * self.groups, units)
        mass = by_label.by_patient(weight)
        share = mass / self.bin_weights.sum(-1).ravel()[by_label.group]
        raised = weight / np.maximum(1 - (share if by_label.place is None else share[by_label.place]), LEAST_REST)
        for name in RANK_MEASURES if self.groups == 1 else RANK_MEASURES[:1]:
            values = self.influence[name][clusters.code, part.y[known], bins[known] // self.bin_width]
            self.variance[name] += clusters.squares(values * raised)

    @property
    def unclustered(self) -> FloatArray:
        """The variance of AUROC for independent rows, without sample weights (groups,)."""
        counts = self.bin_weights if self.bin_counts is None else self.bin_counts
        return Ranks(counts[:, 0], counts[:, 1]).unclustered("auroc")

    def finish(self, attribute: Attribute, name: str, *, has_patients: bool) -> None:
        """Makes the sample, once all rows were added."""
        columns: list[Any] = [None if column[0] is None else np.concatenate(column) for column in zip(*self._sampled, strict=True)]
        y, score, self.decisions, codes, units, weight, logit = columns
        self.units = distinct_keys(units, self._patients)[1]
        patients: Any = self.units if has_patients else None  # numbers instead of ids
        self.sample = Scores(y, score, (replace(attribute, codes=codes),), patients, name=name, weight=weight, logit=logit)

    @property
    def cells(self) -> Cells:
        """The cell table in the moments; no rows are counted without a group."""
        n, s = (np.vstack([self.moments.total[:, columns], np.zeros((1, 2))]) for columns in (slice(0, 2), slice(2, 4)))
        return Cells(self.sample.attribute.levels, n, s)

    def aurocs(self, level: float) -> Limits:
        """The AUROC of each group: exact if all its rows are in the sample, else from binned scores."""
        moments = self.moments
        exact = aurocs(self.sample, self.sample.attribute, self.units, level)
        codes = self.sample.attribute.codes
        complete = np.bincount(codes[codes >= 0], minlength=self.groups) == moments["selection_rate"].rows
        patients = moments["selection_rate"].patients
        positives, negatives = self._label_sizes(level)
        approximate = Limits(self.ranks.auroc, *auroc_interval(self.ranks.auroc, positives, negatives, level), patients)
        return replace(exact.where(complete, approximate), patients=np.minimum(moments["tpr"].patients, moments["fpr"].patients))

    def ranked(self, name: str, level: float) -> Estimate:
        """AUROC or average precision of all rows together, if these are the sums of all rows."""
        value, variance = float(getattr(self.ranks, name)[0]), float(self.variance[name][0])
        if name == "auroc":
            positives, negatives = self._label_sizes(level)
            low, high = auroc_interval(value, positives[0], negatives[0], level)
            return Estimate(value, float(low), float(high), f"from binned scores: off by at most {float(self.ranks.auroc_bound[0]):.0e}")
        found = self.moments["tpr"]
        size = min(float(found.rows[0]), value * (1 - value) / variance) if variance > 0 else float(found.effective[0])
        low, high = wilson(value, fewer_clusters(size, found.degrees[0], level), level)
        return Estimate(value, float(low), float(high), "from binned scores")

    def _label_sizes(self, level: float) -> list[FloatArray]:
        """The effective numbers of positives and negatives of each group for AUROC: of patients, if the scores separate the labels."""
        sides, count = [self.moments[name] for name in ("tpr", "fpr")], self.moments["selection_rate"].patients
        between = self.variance["auroc"] * np.where(np.isinf(self.moments["selection_rate"].degrees), 1.0, ratio(count - 1, count))
        effect = auroc_design_effect(self.ranks.auroc, between, self.unclustered, *(side.rows for side in sides))
        varies = (self.unclustered > 0) & (between > 0)
        degrees = np.minimum(*(side.degrees for side in sides))
        return [fewer_clusters(np.where(varies, side.rows / effect, side.effective), degrees, level) for side in sides]
