"""Candidates of a comparison: each with its scores on the repair set and on the test set, and the choice among them.

Everything is chosen on the repair set. The test set is scored once per candidate and has no influence on the choice.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pandas as pd
from torch import nn

from equipoise.data import Rows, Scores
from equipoise.measures import FloatArray, Rule, gap_values, largest_gap, performance_values, tabulate
from equipoise.methods import Goal, LabelCandidate, Note, choose_method, select
from equipoise.models import MASKED, is_network, predict
from equipoise.repair.progress import Bars

ROUNDING = 1e-9  # gaps and performances that differ by less are equal up to rounding


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


def scored(
    candidate: LabelCandidate, repair: Rows, test: Rows, seconds: float, bars: Bars, known: ScoredCandidate | None = None
) -> ScoredCandidate:
    """A candidate with its scores on both sets: those of its classifier, or of another candidate with the same one."""
    if known is not None and known.valid is not None:
        return ScoredCandidate(rescored(candidate, known.valid), known.valid, known.test, seconds)
    with bars(f"scores of {candidate.method}") as step:
        valid = predict(candidate.model, repair)
        step(1, 2)
        held_out = predict(candidate.model, test)
    return ScoredCandidate(rescored(candidate, valid), valid, held_out, seconds, unit_maps(candidate.model))


def rescored(candidate: LabelCandidate, scores: Scores) -> LabelCandidate:
    """The candidate, with its chosen step re-evaluated on the scores of the network that is saved.

    During a repair a network may be evaluated in another precision, or in batches that round differently; the final network counts.
    """
    goal, row = candidate.goal, candidate.chosen
    gap, performance = evaluate_rule(candidate.rule, scores, goal)
    recorded = candidate.trace.iloc[row]
    if abs(recorded["gap"] - gap) <= ROUNDING and abs(recorded["performance"] - performance) <= ROUNDING:
        return candidate
    trace = candidate.trace.copy()
    trace.loc[trace.index[row], ["gap", "performance"]] = [gap, performance]
    before = {"gap_before": float(recorded["gap"]), "performance_before": float(recorded["performance"])}
    note = Note("rescored", goal.measure, {**before, "gap": gap, "performance": performance, "of": goal.performance})
    met = candidate.met_in_sample and select(trace.iloc[[row]], goal).met
    why = () if met == candidate.met_in_sample else (Note("final_network_misses"),)
    return replace(candidate, trace=trace, met_in_sample=met, why=(*candidate.why, *why), notes=(*candidate.notes, note))


def evaluate_rule(rule: Rule, scores: Scores, goal: Goal) -> tuple[float, float]:
    """The largest gap and the performance of a rule on these scores, by the goal's measures."""
    cells = tabulate(rule.decide(scores), scores.y, scores.attribute, scores.weight)
    return float(largest_gap(gap_values(goal.measure, cells))), float(performance_values(goal.performance, cells))


def unit_maps(model: object) -> tuple[UnitMap, ...]:
    """For each convolution of images with units switched off, the share of channels that is still on at each position."""
    if not is_network(model):
        return ()
    masked = [(name, module) for name, module in model.named_modules() if type(module) is MASKED[nn.Conv2d]]
    return tuple(UnitMap(name, module.get_buffer("unit_mask").double().mean(0).cpu().numpy()) for name, module in masked)


def choose(tried: Sequence[Mapping[str, ScoredCandidate]]) -> int:
    """The position of the best method, on the repair set only, as `auto` chooses it; each has a candidate for every label."""
    repair_sets = [own.valid for own in tried[0].values() if own.valid is not None]
    parts = repair_sets if len(repair_sets) == len(tried[0]) else None
    return choose_method([[own.candidate for own in labels.values()] for labels in tried], parts)
