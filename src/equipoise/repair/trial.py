"""Methods tried on the repair set: each candidate with its scores on the repair set and on the test set, and the choice among them.

Everything is chosen on the repair set. The test set is scored once per candidate and has no influence on the choice.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from torch import nn

from equipoise.data import Cohort, Scores
from equipoise.errors import BadInput, pick, raise_all
from equipoise.measures import FloatArray, gap_values, largest, performance_values, tabulate
from equipoise.methods import METHODS, Candidate, Goal, Note, Progress, best_of, debias, recalibrated, select, settings_of
from equipoise.models import MASKED, ExportedNetwork, output_kind, predict

EQUAL = 0.005  # methods that differ by less count as equally good
SAME = 1e-9  # sums of counts that differ by less are the same
Bars = Callable[[str], AbstractContextManager[Progress]]


def no_bars(_: str) -> AbstractContextManager[Progress]:
    """No progress bars."""
    return nullcontext(lambda _done, _of: None)


@dataclass(frozen=True, eq=False)
class UnitMap:
    """The units of one convolution that pruning switched off: the share of channels still on at each position."""

    layer: str
    kept: FloatArray  # (height, width), from 0 to 1


@dataclass(frozen=True, eq=False)
class Tried:
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


def check_methods(model: nn.Module | None, methods: Mapping[str, Mapping[str, Any]], train: bool) -> None:
    """Raises every problem of these methods and their settings that is known before anything is run."""
    problems = [] if methods else ["no method was given. Name at least one."]
    for name, settings in methods.items():
        try:
            settings_of(pick("method", name, METHODS), settings)
        except BadInput as error:
            problems += error.problems
            continue
        if METHODS[name].needs_train and not train:
            problems.append(f"{name} trains from scratch and needs a training set: --train train.csv (in Python train=)")
        if METHODS[name].needs_layers and isinstance(model, ExportedNetwork):
            problems.append(
                f"{name} needs the layers of a network, which an exported program no longer has. Give the architecture as file.py:factory."
            )
    raise_all(problems)


def set_output(model: nn.Module, asked: str) -> None:
    """Marks the network's output as a logit or a probability, so that every method reads it the same way; `auto` changes nothing."""
    if asked == "auto":
        return
    if not isinstance(getattr(model, "output", ""), str):
        raise BadInput(f"the network cannot be marked as returning a {asked}: its attribute `output` is something else. Wrap it.")
    model.output = asked  # type: ignore[assignment]


def settled_output(model: nn.Module, inputs: Any, asked: str = "auto") -> str:
    """What the network returns, logit or probability: auto-detected, or as the user says, which is then marked on the network."""
    found = output_kind(model, inputs)
    if asked in ("auto", found):
        return found
    set_output(model, asked)
    return output_kind(model, inputs, asked)


def try_method(
    name: str,
    settings: Mapping[str, Any],
    model: nn.Module,
    repair: Cohort,
    test: Cohort,
    goal: Goal,
    *,
    seed: int = 0,
    train: Cohort | None = None,
    original: Tried | None = None,
    recalibrate: bool = True,
    budget: float | None = None,
    bars: Bars = no_bars,
) -> Tried:
    """One method on the repair set, and the scores of both sets with what it found."""
    with bars(name) as step:
        start = time.perf_counter()
        arguments = {**goal_arguments(goal), "recalibrate": False}  # below, where both sets are at hand to check that no decision changes
        arguments |= {"force": True, "budget": budget}  # the caller has checked the cells of both sets
        candidate = debias(model, repair, method=name, seed=seed, train=train, progress=step, **arguments, **settings)
        if recalibrate:
            candidate = recalibrated(candidate, model, repair, also=[test])
        seconds = time.perf_counter() - start
    if original is not None and original.valid is not None and METHODS[name].needs_group:  # the same network with another rule
        return Tried(rescored(candidate, original.valid), original.valid, original.test, seconds)
    return scored(candidate, repair, test, seconds, bars)


def left(deadline: float | None) -> float | None:
    """The seconds that are left of a budget, at least one; None without one."""
    return None if deadline is None else max(1.0, deadline - time.monotonic())


def goal_arguments(goal: Goal) -> dict[str, Any]:
    """A goal as the keywords of `debias`."""
    names = ("measure", "performance", "min_performance", "max_gap", "selection", "max_loss", "keep", "threshold")
    return {name: getattr(goal, name) for name in names}


def scored(candidate: Candidate, repair: Cohort, test: Cohort, seconds: float = 0.0, bars: Bars = no_bars) -> Tried:
    """A candidate with the scores of its network on both sets."""
    with bars(f"scores of {candidate.method}") as step:
        valid = predict(candidate.model, repair)
        step(1, 2)
        held_out = predict(candidate.model, test)
    return Tried(rescored(candidate, valid), valid, held_out, seconds, unit_maps(candidate.network))


def rescored(candidate: Candidate, scores: Scores) -> Candidate:
    """The candidate, with its chosen step re-evaluated on the scores of the network that is handed over.

    During a repair a network may be evaluated in another precision, or in batches that round differently; the final network counts.
    """
    goal, row = candidate.goal, candidate.chosen
    cells = tabulate(candidate.rule.decide(scores), scores.y, scores.attribute, scores.weight)
    gap, performance = float(largest(gap_values(goal.measure, cells))), float(performance_values(goal.performance, cells))
    seen = candidate.trace.iloc[row]
    if abs(seen["gap"] - gap) <= SAME and abs(seen["performance"] - performance) <= SAME:
        return candidate
    trace = candidate.trace.copy()
    trace.loc[trace.index[row], ["gap", "performance"]] = [gap, performance]
    before = {"gap_before": float(seen["gap"]), "performance_before": float(seen["performance"])}
    note = Note("rescored", goal.measure, {**before, "gap": gap, "performance": performance, "of": goal.performance})
    met = candidate.met_in_sample and select(trace.iloc[[row]], goal).met
    why = () if met == candidate.met_in_sample else (Note("final_network_misses"),)
    return replace(candidate, trace=trace, met_in_sample=met, why=(*candidate.why, *why), notes=(*candidate.notes, note))


def choose(tried: Sequence[Tried], goal: Goal) -> int:
    """The position of the best candidate by a settled goal, on the repair set only: by cross-fitted values where all have them.

    Otherwise those that meet the goal come first: with a minimum performance by the smallest |gap|, with only a maximum gap by the best
    performance. If none does, the best performance (minimum) or the smallest |gap| (maximum gap). Within 0.005 of the best, a rule that
    needs no group.
    """
    if all(each.candidate.held_out is not None for each in tried) and tried[0].valid is not None:
        return best_of([(each.candidate,) for each in tried], [tried[0].valid])
    rows = [each.chosen_row for each in tried]
    gap = np.array([abs(float(row["gap"])) for row in rows])
    performance = np.array([float(row["performance"]) for row in rows])
    enough = np.ones(len(rows), bool) if goal.min_performance is None else performance >= goal.min_performance - 1e-12
    within = np.ones(len(rows), bool) if goal.max_gap is None else gap <= goal.max_gap + 1e-12
    more = bool(goal.keep) or goal.selection != "paper"  # a goal that gap and performance do not decide
    sure = np.array([each.candidate.met_in_sample or not more for each in tried])
    pool = next(some for some in (enough & within & sure, enough & within, enough, np.ones_like(enough)) if some.any())
    met = bool((enough & within).any())
    by_performance = (goal.min_performance is None and met) or not enough.any()
    worse = np.where(pool, -performance if by_performance else gap, np.inf)
    level = worse <= worse.min() + EQUAL
    order = [(each.candidate.rule.needs_group, value) for each, value in zip(tried, worse, strict=True)]
    return min(np.flatnonzero(level).tolist(), key=lambda k: order[k])


def choose_for_all(tried: Sequence[Sequence[Tried]]) -> int:
    """The position of the method that is best for all labels, from the candidates of each label in the same order.

    By cross-fitted values where all have them. Otherwise most labels whose goal is met, then the smallest largest |gap|, on the repair
    set; within 0.005 of that, a rule that needs no group.
    """
    parts = [each[0].valid for each in tried if each[0].valid is not None]
    if len(parts) == len(tried) and all(one.candidate.held_out is not None for each in tried for one in each):
        return best_of([[one.candidate for one in same] for same in zip(*tried, strict=True)], parts)
    met = [sum(one.candidate.met_in_sample for one in same) for same in zip(*tried, strict=True)]
    worst = []
    for same in zip(*tried, strict=True):
        gaps = [abs(float(one.chosen_row["gap"])) for one in same]
        worst.append(float(np.where(np.isnan(gaps), np.inf, gaps).max()))
    pool = [k for k, count in enumerate(met) if count == max(met)]
    least = min(worst[k] for k in pool)
    return min((k for k in pool if worst[k] <= least + EQUAL), key=lambda k: (tried[0][k].candidate.rule.needs_group, worst[k]))


def unit_maps(model: nn.Module) -> tuple[UnitMap, ...]:
    """For each convolution of images with units switched off, the share of channels that is still on at each position."""
    masked = [(name, module) for name, module in model.named_modules() if type(module) is MASKED[nn.Conv2d]]
    return tuple(UnitMap(name, module.get_buffer("unit_mask").double().mean(0).cpu().numpy()) for name, module in masked)
