"""The method bias-score: its settings, its cost, and one step per bound on the gap."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from torch import nn

from equipoise.data import Cohort, Rows, Scores
from equipoise.errors import BadInput, pick
from equipoise.measures import QUOTIENTS, FloatArray, Rule, is_quotient, performance_values, terms, worst_gap
from equipoise.methods.bias_score.problem import Problem, probe_inputs, probed
from equipoise.methods.bias_score.programs import parity_path, path
from equipoise.methods.bias_score.rule import BiasScoreRule, rule_of
from equipoise.methods.constant import WORST, refused
from equipoise.methods.contract import ONE_BY_ONE, Fit, FitStep, Kind, Rng, Task, Work, method
from equipoise.methods.evaluation import Label, LabelResult, frame, trace_row
from equipoise.methods.goal import Goal, Note
from equipoise.methods.kept_rates import limits_of, spare
from equipoise.methods.selection import plain_rule, select
from equipoise.models import (
    DEPTHS,
    BiasScore,
    Reading,
    ReadOnce,
    bias_scores,
    folds_of,
    output_kind,
    predict,
    probe_seconds,
    product_device,
    reading_of,
)

NAME = "bias-score"
PAPER = """@inproceedings{menon2018cost,
  title     = {The Cost of Fairness in Binary Classification},
  author    = {Menon, Aditya Krishna and Williamson, Robert C.},
  booktitle = {Conference on Fairness, Accountability and Transparency},
  year      = {2018}
}"""
MEASURED = {True: 128, False: 2000}  # rows to time probes on, for images and tables: the time is linear in the rows only for many rows
FINEST = 0.003  # smallest bound on |gap| used for choosing a threshold; less is within the noise of any data


@dataclass(frozen=True)
class Settings:
    """`depth` selects the features that the probes read; auto is the inputs and the last layer for tables, the inputs for images."""

    depth: str = "auto"
    layers: int = 6  # maximum number, evenly spaced
    folds: int = 5
    steps: int = 24  # bounds, from the original gap to zero

    def __post_init__(self) -> None:
        pick("depth", self.depth, DEPTHS)
        if self.folds < 2 or self.steps < 1 or self.layers < 1:
            raise BadInput(f"bias-score needs at least 2 folds, 1 step and 1 layer; got {self.folds}, {self.steps} and {self.layers}")


def cost(task: Task, settings: Settings) -> Work:
    """The work: fitting the probes; the network's scores and features; an evaluation and a linear program per bound."""
    measure = task.goal.measure
    probes = 1 + (2 if is_quotient(measure) else len(terms(measure)))  # one of the label, and one of the groups per rate
    seconds = probes_seconds(task.model, task.repair, settings, probes)
    original = "score" if isinstance(task.repair, Scores) else "network"
    what = f"{probes} probes in {settings.folds} folds next to the original {original}, and {settings.steps} bounds"
    return Work(2 * len(task.repair), 3 * settings.steps, what, seconds)


def probes_seconds(model: nn.Module | None, cohort: Rows, settings: Settings, probes: int) -> float:
    """Seconds to fit this number of probes (one of the label, the others of the groups) on all rows; extrapolated from a few rows."""
    images = isinstance(cohort, Cohort) and len(cohort.inputs.shape) > 2
    few = cohort.take(range(min(len(cohort), MEASURED[images])))
    network = None if model is None or isinstance(few, Scores) else ReadOnce(model, few.inputs)
    x, _ = probe_inputs(few, read_by(model, few, settings), network)
    folds, rows, groups = settings.folds, len(cohort), len(cohort.attribute.levels)
    device = None if network is None else product_device(network.model, network.inputs, rows * x.shape[1])
    label_seconds = probe_seconds(x, few.y, 2, folds, rows, device)
    group_seconds = label_seconds if groups == 2 else probe_seconds(x, few.attribute.codes, groups, folds, rows, device)
    return label_seconds + (probes - 1) * group_seconds


def read_by(model: nn.Module | None, rows: Rows, settings: Settings) -> Reading:
    """The inputs of the probes: the network's inputs and layers, by the settings; for scores without a network, the named columns."""
    if model is None or isinstance(rows, Scores):
        return Reading((), inputs=True)
    return reading_of(model, rows.inputs, settings.depth, settings.layers)


@method(
    NAME,
    settings=Settings,
    title="probes of label and groups, combined by the best attribute-blind rule",
    kind=Kind.PROBES,
    paper=PAPER,
    takes_train=True,
    counts="steps",
    labels=ONE_BY_ONE,
    cost=cost,
    effort=1.0,
    in_auto=1,
    in_auto_scores=2,
    rules=(BiasScoreRule,),
)
def bias_score(
    model: nn.Module | None,
    cohort: Rows,
    goal: Goal,
    settings: Settings,
    rng: Rng,
    train: Cohort | None,
    network: ReadOnce | None = None,
) -> Fit:
    """The network with probes next to it, or for scores a rule. The probes of the groups may also be fitted to the training set.

    `network` holds the outputs of the network on the rows of the cohort, if they were computed before.
    """
    label = Label.of(cohort, goal)
    if network is None and model is not None and isinstance(cohort, Cohort):
        network = ReadOnce(model, cohort.inputs)
    original = predict(model, cohort, raw=None if network is None else network.raw()).score
    start = label.original(original)
    least = None
    if goal.keep:
        before = label.rates(original, start.threshold)
        least = limits_of(goal.keep, before)
        start = replace(start, spare=float(spare(before, least)))
    reading = read_by(model, cohort, settings)
    problem = probed(cohort, goal, reading, folds_of(cohort, settings.folds, rng.seed), network, train)
    # The minimum performance is counted from the held-out probes at no cost: what they lack there is not lost by the repair.
    plain = label.evaluate(problem.held_out.chance).performance
    settled = goal.settled(min(start.performance, plain))
    stated = goal.settled(start.performance)  # the original's value is its value, whatever the probes lack
    narrowest = finest(problem)

    def evaluate(scores: FloatArray, max_gap: float) -> LabelResult:
        return label.evaluate(scores, max(max_gap, narrowest), least)

    steps = _steps(problem, settings.steps, evaluate)
    results = [start, *(evaluate(problem.priced(problem.held_out, step.costs), step.max_gap) for step in steps)]
    held_out = frame([trace_row(number, result) for number, result in enumerate(results)])
    delivery = _delivery(model, network, reading, problem, [step.costs for step in steps], held_out, original, stated)
    eligible = held_out.copy()
    eligible.loc[refused(delivery.decisions, cohort.attribute.codes), ["gap", "performance"]] = WORST  # constant decisions are not chosen
    selection = select(eligible, settled)
    why = (*selection.why, Note("held_out_rows_decide"))  # in-sample values of the chosen row may differ

    trace = held_out.rename(columns={"gap": "held_out_gap", "performance": "held_out_performance"})
    cells = label.cells(delivery.decisions)  # one table per step
    trace.insert(1, "gap", worst_gap(goal.measure, cells))
    trace.insert(2, "performance", performance_values(goal.performance, cells))
    trace.insert(3, "threshold", trace.pop("threshold"))
    trace["max_gap"] = [np.nan, *(step.max_gap for step in steps)]
    fit_steps = [FitStep(plain_rule(NAME, trace, 0, cohort, stated), None, (Note("original_kept"),))]
    for row, step in enumerate(steps, start=1):
        values = held_out.iloc[row]
        held_out_values = {"gap": float(values["gap"]), "performance": float(values["performance"])}
        numbers = {"folds": settings.folds, **held_out_values, "of": goal.performance, "before": plain}
        notes = Note("probes", str(reading), step.about), Note("chosen_on_held_out_rows", goal.measure, numbers)
        rule = delivery.rules[row - 1] if delivery.rules else plain_rule(NAME, trace, row, cohort, stated)
        fit_steps.append(FitStep(rule, delivery.networks[row - 1] if delivery.networks else None, notes))
    chosen = fit_steps[selection.row]
    met = selection.met and select(trace.iloc[[selection.row]], settled).met
    if selection.met and not met:
        why = (*why, Note("final_network_misses"))
    used = () if train is None else (Note("training_set", numbers={"rows": max(probe.more for probe in problem.heads.groups)}),)
    return Fit(chosen.rule, trace, selection.row, why, met, stated, used, chosen.model, tuple(fit_steps))


class _Step(NamedTuple):
    """A step of the path: its bound on |gap|, the costs of the groups' posteriors, and the numbers of its note."""

    max_gap: float
    costs: FloatArray  # (rates, groups)
    about: Mapping[str, Any]


def _steps(problem: Problem, count: int, evaluate: Callable[[FloatArray, float], LabelResult]) -> list[_Step]:
    """The steps for bounds on |gap| from the original gap down to zero."""
    measure = problem.goal.measure
    if is_quotient(measure):
        rate = "PPV" if QUOTIENTS[measure] else "NPV"
        return [_Step(p.max_gap, p.cost, {"rate": rate, "level": p.level}) for p in parity_path(problem, count, evaluate)]
    groups, solutions = problem.cohort.attribute.others, zip(*path(problem, count), strict=True)
    return [_Step(bound, problem.cost(m), {"multipliers": dict(zip(groups, m.tolist(), strict=True))}) for bound, m in solutions]


class _Delivery(NamedTuple):
    """The network or rule of each step, and all decisions (steps + 1, n), those of the original first."""

    networks: list[BiasScore]  # empty for scores without a network
    rules: list[Rule]  # empty for a network
    decisions: FloatArray


def _delivery(
    model: nn.Module | None,
    network: ReadOnce | None,
    reading: Reading,
    problem: Problem,
    costs: Sequence[FloatArray],
    held_out: pd.DataFrame,
    original: FloatArray,
    settled: Goal,
) -> _Delivery:
    """The network or rule that each step would deliver; decisions are those of that very network, in its precision."""
    cohort, cuts = problem.cohort, held_out["threshold"].tolist()
    if model is None or network is None or isinstance(cohort, Scores):
        origins = (plain_rule(NAME, held_out, row, cohort, settled).origin for row in range(1, len(held_out)))
        rules: list[Rule] = [rule_of(problem, *about) for about in zip(costs, cuts[1:], origins, strict=True)]
        scored = predict(None, cohort)
        return _Delivery([], rules, np.stack([original >= cuts[0], *(rule.decide(scored) for rule in rules)]).astype(np.float64))
    model_copy, kind = copy.deepcopy(model), output_kind(model, cohort.inputs)
    networks = [BiasScore(model_copy, reading, problem.heads, cost, kind).eval() for cost in costs]
    scores = bias_scores(networks, network.shown(reading)) if networks else []
    decisions = np.stack([score >= cut for score, cut in zip([original, *scores], cuts, strict=True)]).astype(np.float64)
    return _Delivery(networks, [], decisions)


def finest(problem: Problem) -> float:
    """The smallest bound on |gap| used for choosing a threshold: the change by one row of the smallest group."""
    if is_quotient(problem.goal.measure):
        label, attribute = QUOTIENTS[problem.goal.measure], problem.cohort.attribute
        decided = (problem.held_out.chance > problem.heads.centre) == bool(label)
        counts = np.bincount(attribute.codes[decided & (attribute.codes >= 0)], minlength=len(attribute.levels))
        return max(FINEST, float(1 / max(counts.min(), 1)))
    return max(FINEST, float(np.abs(problem.stakes).max() / (problem.cohort.attribute.codes >= 0).sum()))
