"""Candidates of a comparison: each with its scores on the repair set and on the test set, and the choice among them.

Everything is chosen on the repair set. The test set is scored once per candidate and has no influence on the choice.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from equipoise.data import Scores
from equipoise.measures import FloatArray, Rule, gap_values, largest_gap, performance_values, tabulate
from equipoise.methods import Goal, LabelCandidate, choose_method


@dataclass(frozen=True, eq=False)
class UnitMap:
    """The units of one convolution that pruning switched off: the share of channels still on at each position."""

    layer: str
    kept: FloatArray  # (height, width), from 0 to 1


@dataclass(frozen=True, eq=False)
class ScoredCandidate:
    """A candidate under its name, with its scores on the repair set (None if unknown) and on the test set."""

    candidate: LabelCandidate
    valid: Scores | None
    test: Scores
    seconds: float = 0.0
    units: tuple[UnitMap, ...] = ()
    called: str = ""  # default: the method

    @property
    def name(self) -> str:
        """The name in tables and reports."""
        return self.called or self.candidate.method

    @property
    def chosen_row(self) -> "pd.Series[float]":
        """The chosen step on the repair set."""
        row: pd.Series[float] = self.candidate.trace.iloc[self.candidate.chosen]
        return row

    def decisions(self) -> FloatArray:
        """The decisions on the test set, or the probabilities of a randomised 1."""
        return self.candidate.rule.decide(self.test)


def evaluate_rule(rule: Rule, scores: Scores, goal: Goal) -> tuple[float, float]:
    """The largest gap and the performance of a rule on these scores, by the goal's measures."""
    cells = tabulate(rule.decide(scores), scores.y, scores.attribute, scores.weight)
    return float(largest_gap(gap_values(goal.measure, cells))), float(performance_values(goal.performance, cells))


def choose(tried: Sequence[Mapping[str, ScoredCandidate]]) -> int:
    """The position of the best method, on the repair set only, as `auto` chooses it; each has a candidate for every label."""
    repair_sets = [own.valid for own in tried[0].values() if own.valid is not None]
    parts = repair_sets if len(repair_sets) == len(tried[0]) else None
    return choose_method([[own.candidate for own in labels.values()] for labels in tried], parts)
