"""Candidates of a comparison: each with its scores on the repair set and on the test set, and the choice among them.

Everything is chosen on the repair set. The test set is scored once per candidate and has no influence on the choice.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from torch import nn

from equipoise.data import Rows, Scores
from equipoise.measures import FloatArray, Rule, gap_values, largest_gap, performance_values, tabulate
from equipoise.methods import Candidate, Goal, Note, best_of, select
from equipoise.models import MASKED, predict
from equipoise.repair.progress import Bars

EQUAL = 0.005  # methods that differ by less count as equally good
ROUNDING = 1e-9  # gaps and performances that differ by less are equal up to rounding


@dataclass(frozen=True, eq=False)
class UnitMap:
    """The units of one convolution that pruning switched off: the share of channels still on at each position."""

    layer: str
    kept: FloatArray  # (height, width), from 0 to 1


@dataclass(frozen=True, eq=False)
class ScoredCandidate:
    """A candidate under its name, with its scores on the repair set (None if unknown) and on the test set."""

    candidate: Candidate
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
    candidate: Candidate, repair: Rows, test: Rows, seconds: float, bars: Bars, known: ScoredCandidate | None = None
) -> ScoredCandidate:
    """A candidate with its scores on both sets: those of its classifier, or of another candidate with the same one."""
    if known is not None and known.valid is not None:
        return ScoredCandidate(rescored(candidate, known.valid), known.valid, known.test, seconds)
    with bars(f"scores of {candidate.method}") as step:
        valid = predict(candidate.model, repair)
        step(1, 2)
        held_out = predict(candidate.model, test)
    return ScoredCandidate(rescored(candidate, valid), valid, held_out, seconds, unit_maps(candidate.model))


def rescored(candidate: Candidate, scores: Scores) -> Candidate:
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
    if not isinstance(model, nn.Module):
        return ()
    masked = [(name, module) for name, module in model.named_modules() if type(module) is MASKED[nn.Conv2d]]
    return tuple(UnitMap(name, module.get_buffer("unit_mask").double().mean(0).cpu().numpy()) for name, module in masked)


def choose(tried: Sequence[ScoredCandidate], goal: Goal) -> int:
    """The position of the best candidate by a settled goal, on the repair set only: by cross-fitted values if all have them.

    Otherwise candidates that meet the goal come first: with a minimum performance by the smallest |gap|, with only a maximum gap by the
    best performance. If none does, the best performance (minimum) or the smallest |gap| (maximum gap). Among candidates within 0.005 of
    the best, a rule that needs no group is preferred.
    """
    if all(entry.candidate.held_out is not None for entry in tried) and tried[0].valid is not None:
        return best_of([(entry.candidate,) for entry in tried], [tried[0].valid])
    rows = [entry.chosen_row for entry in tried]
    gap = np.nan_to_num([abs(float(row["gap"])) for row in rows], nan=np.inf)  # undefined is not a small gap
    performance = np.nan_to_num([float(row["performance"]) for row in rows], nan=-np.inf)
    anything = np.ones(len(rows), bool)
    enough = anything if goal.min_performance is None else performance >= goal.min_performance - 1e-12
    within = anything if goal.max_gap is None else gap <= goal.max_gap + 1e-12
    further_limits = bool(goal.keep) or goal.selection != "paper"  # limits that gap and performance alone do not decide
    goal_met = np.array([entry.candidate.met_in_sample or not further_limits for entry in tried])
    eligible = next(pool for pool in (enough & within & goal_met, enough & within, enough, anything) if pool.any())
    by_performance = (goal.min_performance is None and bool((enough & within).any())) or not enough.any()
    loss = np.where(eligible, -performance if by_performance else gap, np.inf)
    ties = np.flatnonzero(loss <= loss.min() + EQUAL).tolist()
    return min(ties, key=lambda k: (tried[k].candidate.rule.needs_group, loss[k]))


def choose_for_all(tried: Sequence[Sequence[ScoredCandidate]]) -> int:
    """The position of the method that is best for all labels, from the candidates of each label in the same order.

    By cross-fitted values if all have them. Otherwise most labels whose goal is met, then the smallest largest |gap|, on the repair set;
    among methods within 0.005 of that, a rule that needs no group is preferred.
    """
    by_method = list(zip(*tried, strict=True))
    repair_sets = [entries[0].valid for entries in tried if entries[0].valid is not None]
    if len(repair_sets) == len(tried) and all(entry.candidate.held_out is not None for entries in tried for entry in entries):
        return best_of([[entry.candidate for entry in entries] for entries in by_method], repair_sets)
    met = [sum(entry.candidate.met_in_sample for entry in entries) for entries in by_method]
    worst = []
    for entries in by_method:
        gaps = [abs(float(entry.chosen_row["gap"])) for entry in entries]
        worst.append(float(np.where(np.isnan(gaps), np.inf, gaps).max()))
    eligible = [k for k, count in enumerate(met) if count == max(met)]
    least = min(worst[k] for k in eligible)
    return min((k for k in eligible if worst[k] <= least + EQUAL), key=lambda k: (tried[0][k].candidate.rule.needs_group, worst[k]))
