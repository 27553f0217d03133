"""Random samples of whole patients, where a group has more rows than a measure of its scores needs.

Calibration intercept, slope and error, operating points and decision curves take many passes over the rows. From `SAMPLED` rows a share of
one half is known to 0.002, which no reader tells from the value of all rows. Rates, gaps, tests, performance, AUROC, Brier score and
calibration in the large always use all rows.
"""

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from equipoise.data import Attribute, IntArray, Scores, mixed
from equipoise.measures.calibration import Limits
from equipoise.measures.cells import grouped
from equipoise.measures.losses import Losses
from equipoise.measures.score_measures import ScoreMeasures

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
    weight = None if scores.weight is None else scores.weight[rows]
    patients = None if scores.patients is None else scores.patients[rows]
    fewer = Scores(scores.y[rows], scores.score[rows], (own,), patients, scores.ids[rows], scores.name, weight)
    return fewer, own, kept


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
