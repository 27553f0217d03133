"""Random samples of whole patients, where a group has more rows than a measure of its scores needs.

Calibration, operating points and decision curves take many passes over the rows. From `SAMPLED` rows a share of one half is known to 0.002,
which no reader tells from the value of all rows. Rates, gaps, tests, performance and AUROC always use all rows.
"""

import numpy as np
import pandas as pd

from equipoise.data import Attribute, IntArray, Scores, mixed
from equipoise.measures.cells import grouped

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


def sampled_notes(groups: pd.DataFrame, attribute: Attribute) -> list[str]:
    """The notes of the groups, with how many rows the measures of their scores come from where that is not all; `attribute` has those."""
    used = np.bincount(attribute.codes[attribute.codes >= 0], minlength=len(attribute.levels))
    notes = []
    for note, rows, n in zip(groups["note"], used, groups["n"], strict=True):
        own = f"calibration, Brier score, operating points and decision curve from a random sample of {rows:,} rows (whole patients)"
        notes.append("; ".join(filter(None, (note, own))) if rows < n else note)
    return notes
