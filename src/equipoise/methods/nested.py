"""Nested cross-fitting: every patient is judged by a repair that was fitted, and chosen, without them.

A repair set and a test set each hold a part of the patients, and with few patients neither is enough. Here the patients are divided into
outer folds. The whole procedure, with its own cross-fitted choice among steps and methods, is run without each fold in turn and decides on
that fold. All patients are judged by these decisions, while the repair that is delivered is fitted to all of them.

The delivered repair is not one of those that were judged: with another fifth of the patients it may change more, or act where they kept
the original. So intervals are wider than those of the decisions alone. The variance of a change is increased by the mean squared difference
between the change by the repair of each fold and that by the delivered one, both on all rows. (Simulations: experiments/cross-test.)
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from equipoise.data import FloatArray, Scores
from equipoise.measures import AuditSpec, PairedDecisions, Rule
from equipoise.methods.candidate import HeldOutDecisions
from equipoise.methods.goal import Goal

OUTER_FOLDS = 5


@dataclass(frozen=True, eq=False)
class FoldRule:
    """The rule of a repair on the rows that it was fitted to, each decided by the repair of the folds that hold it out."""

    rule: Rule
    ids: np.typing.NDArray[np.object_]
    decisions: FloatArray

    def decide(self, scores: Scores) -> FloatArray:
        """The decisions on some of these rows."""
        decisions: FloatArray = self.decisions[pd.Index(self.ids).get_indexer(pd.Index(scores.ids))]
        return decisions

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rule, name)


def spread_of_folds(scores: Scores, held: HeldOutDecisions, by_fold: FloatArray, delivered: FloatArray, goal: Goal) -> dict[str, float]:
    """The root mean square differences between the changes by the repair of each fold (folds, n) and by the delivered one, on all rows.

    They are those of the gap of each group, and of the performance ("").
    """

    def changes(after: FloatArray) -> FloatArray:
        pair = PairedDecisions(scores, (held.before, after), AuditSpec())
        gaps = [pair.gap_change(goal.measure, group).value for group in scores.attribute.others]
        return np.array([*gaps, pair.performance_change(goal.performance).value])

    apart = np.stack([changes(after) for after in by_fold]) - changes(delivered)
    return dict(zip((*scores.attribute.others, ""), np.sqrt(np.nan_to_num((apart**2).mean(0))).tolist(), strict=True))
