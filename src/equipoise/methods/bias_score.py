"""Bias score: the best attribute-blind rule, u(x) - sum over gaps of lambda_k g_k(x) > 0, with probes on a frozen network for u and g.

Performance and gaps are affine in the decisions, so that given x a positive decision is worth u(x) to performance and adds g_k(x) to gap k:
u(x) is the expected weight of a row in the performance (for balanced accuracy P(1|x) / 2 pi_1 - P(0|x) / 2 pi_0), and g_k(x) that in the
gap, P(label|x) (P(k|x, label) / P(k, label) - P(ref|x, label) / P(ref, label)) for each rate of the measure. The rule of best performance
with all gaps within a bound is a threshold on u - lambda g (Menon and Williamson 2018 for two groups; OxonFair searches a grid of
multipliers instead, which grows as a power of the number of groups). Here:

- P(label|x) is a logistic regression on the features and the network's own logit, which is hardly penalised: with little data it is the
  network recalibrated (Platt), with more it also corrects the network where groups differ. P(group|x, label) is a multinomial one on the
  features of the rows with the label; where these are few, of all rows, or of the training set's too, if that does better on held-out rows.
  A measure on selection rates needs no label. Penalties are chosen by log loss on held-out rows.
- All of it is cross-fitted, by patient: multipliers, thresholds and the step are chosen on probabilities from models that had not seen the
  row. The final probes are fitted on all rows. In the trace, `held_out_gap` and `held_out_performance` are what the choice was made by;
  `gap` and `performance` are those of the network that would come out, on the very rows that its probes were fitted on.
- The multipliers of any number of gaps come from a linear program (see bias_programs), for one bound after another from the gap at the
  start down to zero: the steps of the trace. The gaps that the program bounds are those of the probabilities plus what decisions by the
  last multipliers show on the rows beyond that, so that a probe that is not well calibrated does not leave a gap behind.
- Predictive parity is a quotient; how it becomes a program of the same kind is there too.
- For each bound the threshold is swept on the held-out scores: the best performance within the bound.

The network that comes out is an ordinary module (models.heads) and needs no group.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from torch import nn

from equipoise.data import Cohort, Rows, Scores
from equipoise.errors import BadInput, pick
from equipoise.measures import QUOTIENTS, FloatArray, Rule, furthest, is_quotient, performance_values, terms
from equipoise.methods.bias_problem import Problem, probe_inputs, probed
from equipoise.methods.bias_programs import parity_path, path
from equipoise.methods.bias_score_rule import BiasScoreRule, rule_of
from equipoise.methods.constant import WORST, refused
from equipoise.methods.contract import ONE_BY_ONE, Fit, FitStep, Kind, Rng, Task, Work, method
from equipoise.methods.evaluation import Found, Label, frame, trace_row
from equipoise.methods.goal import Goal, Note, limits_of, spare
from equipoise.methods.papers import MENON
from equipoise.methods.selection import plain_rule, select
from equipoise.models import (
    DEPTHS,
    BiasScore,
    Heads,
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
COLUMNS = ("step", "gap", "performance", "threshold")
MEASURED = {True: 128, False: 2000}  # rows to measure probes on, images or a table: their time grows with the rows only where they are many
FINEST = 0.003  # a bound on |gap| at a threshold; less is within the noise of any data


@dataclass(frozen=True)
class Settings:
    """`depth` says which features the probes read; auto is the inputs and the last layer for tables, the inputs for images."""

    depth: str = "auto"
    layers: int = 6  # at most so many, evenly spaced
    folds: int = 5
    steps: int = 24  # bounds, from the gap at the start to zero

    def __post_init__(self) -> None:
        pick("depth", self.depth, DEPTHS)
        if self.folds < 2 or self.steps < 1 or self.layers < 1:
            raise BadInput(f"bias-score needs at least 2 folds, 1 step and 1 layer; got {self.folds}, {self.steps} and {self.layers}")


def cost(task: Task, settings: Settings) -> Work:
    """The work: probes next to the network; its scores and its features; an evaluation and a program per bound."""
    measure = task.goal.measure
    probes = 1 + (2 if is_quotient(measure) else len(terms(measure)))  # the label, and the groups given each
    seconds = probes_seconds(task.model, task.repair, settings, probes)
    original = "score" if isinstance(task.repair, Scores) else "network"
    what = f"{probes} probes in {settings.folds} folds next to the original {original}, and {settings.steps} bounds"
    return Work(2 * len(task.repair), 3 * settings.steps, what, seconds)


def probes_seconds(model: nn.Module | None, cohort: Rows, settings: Settings, probes: int) -> float:
    """How long it takes to fit so many probes, one of the label and the others of the groups, on all rows; measured on a few of them."""
    images = isinstance(cohort, Cohort) and len(cohort.inputs.shape) > 2
    few = cohort.take(range(min(len(cohort), MEASURED[images])))
    network = None if model is None or isinstance(few, Scores) else ReadOnce(model, few.inputs)
    x, _ = probe_inputs(few, read_by(model, few, settings), network)
    folds, rows, groups = settings.folds, len(cohort), len(cohort.attribute.levels)
    device = None if network is None else product_device(network.model, network.inputs, rows * x.shape[1])
    label = probe_seconds(x, few.y, 2, folds, rows, device)
    each = label if groups == 2 else probe_seconds(x, few.attribute.codes, groups, folds, rows, device)
    return label + (probes - 1) * each


def read_by(model: nn.Module | None, rows: Rows, settings: Settings) -> Reading:
    """What the probes read: the network's inputs and layers by the settings; of scores alone, the named columns."""
    if model is None or isinstance(rows, Scores):
        return Reading((), inputs=True)
    return reading_of(model, rows.inputs, settings.depth, settings.layers)


@method(
    NAME,
    settings=Settings,
    title="probes of label and groups, combined by the best attribute-blind rule",
    kind=Kind.PROBES,
    paper=MENON,
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
    """The network with probes next to it, or of scores alone the rule. What tells the groups apart may be learnt from the training set.

    `network` is the network on the rows of the cohort, where it was read before.
    """
    label = Label.of([cohort], goal)
    if network is None and model is not None and isinstance(cohort, Cohort):
        network = ReadOnce(model, cohort.inputs)
    original = predict(model, cohort, raw=None if network is None else network.raw()).score[None]
    start = label.original(original)
    least = None
    if goal.keep:
        before = label.rates(original, start.threshold)
        least = limits_of(goal.keep, before)
        start = replace(start, spare=spare(before, least))
    reading = read_by(model, cohort, settings)
    problem = probed(cohort, goal, reading, folds_of(cohort, settings.folds, rng.seeds[0]), network, train)
    # Steps are judged on held-out rows, by probes of some of the rows. What these lack before any cost is not lost by the repair.
    plain = float(label.evaluate(problem.held_out.chance[None]).performance[0])
    settled = goal.settled(min(float(start.performance[0]), plain))

    narrowest = finest(problem)

    def evaluate(scores: FloatArray, max_gap: float) -> Found:
        return label.evaluate(scores[None], max(max_gap, narrowest), least)

    steps = _steps(problem, settings.steps, evaluate)
    each = [evaluate(problem.priced(problem.held_out, step.prices), step.max_gap) for step in steps]
    held_out = frame([trace_row(number, found, 0) for number, found in enumerate([start, *each])])
    made = _made(model, network, reading, problem, [step.prices for step in steps], held_out, original[0], settled)
    choosable = held_out.copy()
    choosable.loc[refused(made.decisions, cohort.attribute.codes), ["gap", "performance"]] = WORST  # the same for everybody: chosen never
    selection = select(choosable, settled)
    why = (*selection.why, Note("held_out_rows_decide"))  # the chosen row's own values, on the rows it was fitted on, may differ

    trace = held_out.rename(columns={"gap": "held_out_gap", "performance": "held_out_performance"})
    cells = label.cells(made.decisions[:, None])  # (steps, 1, ...)
    trace["gap"], trace["performance"] = furthest(goal.measure, cells)[:, 0], performance_values(goal.performance, cells)[:, 0]
    trace["max_gap"] = [np.nan, *(step.max_gap for step in steps)]
    trace = trace[[*COLUMNS, *(name for name in trace.columns if name not in COLUMNS)]]
    first = plain_rule(NAME, trace, 0, cohort, settled)
    rules = made.rules or [plain_rule(NAME, trace, row, cohort, settled) for row in range(1, len(trace))]
    words = [_notes(plain, reading, step.told, held_out.iloc[row], goal, settings.folds) for row, step in enumerate(steps, start=1)]
    delivered_by: list[BiasScore | None] = [*made.networks] if made.networks else [None] * len(rules)
    deliveries = [FitStep(first, None, (Note("original_kept"),)), *map(FitStep, rules, delivered_by, words)]
    chosen, notes = selection.row, () if train is None else (_learnt(problem.heads),)
    delivered, met = deliveries[chosen], selection.met and select(trace.iloc[[chosen]], settled).met
    if selection.met and not met:
        why = (*why, Note("final_network_misses"))
    return Fit(delivered.rule, trace, chosen, why, met, settled, notes, delivered.model, tuple(deliveries))


class _Step(NamedTuple):
    """A step of the path: the largest |gap| that it was asked for, the prices of the groups' posteriors, and what its note tells."""

    max_gap: float
    prices: FloatArray  # (rates, groups)
    told: Mapping[str, Any]


def _steps(problem: Problem, count: int, evaluate: Callable[[FloatArray, float], Found]) -> list[_Step]:
    """The steps for bounds on |gap| from that at the start down to zero."""
    measure = problem.goal.measure
    if is_quotient(measure):
        rate = "PPV" if QUOTIENTS[measure] else "NPV"
        return [_Step(p.max_gap, p.cost, {"rate": rate, "level": p.level}) for p in parity_path(problem, count, evaluate)]
    others, found = problem.cohort.attribute.others, zip(*path(problem, count), strict=True)
    return [_Step(most, problem.cost(m), {"multipliers": dict(zip(others, m.tolist(), strict=True))}) for most, m in found]


class _Made(NamedTuple):
    """What each step would deliver, and the decisions (steps + 1, n) of all of it, those of the original first."""

    networks: list[BiasScore]  # none of scores alone
    rules: list[Rule]  # of scores alone
    decisions: FloatArray


def _made(
    model: nn.Module | None,
    network: ReadOnce | None,
    reading: Reading,
    problem: Problem,
    prices: Sequence[FloatArray],
    held_out: pd.DataFrame,
    original: FloatArray,
    settled: Goal,
) -> _Made:
    """What each step would deliver is a network of its own, and its values are those of that network: of its heads, in its precision."""
    cohort, cuts = problem.cohort, held_out["threshold"].tolist()
    if model is None or network is None or isinstance(cohort, Scores):
        origins = (plain_rule(NAME, held_out, row, cohort, settled).origin for row in range(1, len(held_out)))
        rules: list[Rule] = [rule_of(problem, *own) for own in zip(prices, cuts[1:], origins, strict=True)]
        scored = predict(None, cohort)
        return _Made([], rules, np.stack([original >= cuts[0], *(rule.decide(scored) for rule in rules)]).astype(np.float64))
    own_copy, kind = copy.deepcopy(model), output_kind(model, cohort.inputs)
    networks = [BiasScore(own_copy, reading, problem.heads, each, kind).eval() for each in prices]
    scores = bias_scores(networks, network.shown(reading)) if networks else []
    decisions = np.stack([own >= cut for own, cut in zip([original, *scores], cuts, strict=True)]).astype(np.float64)
    return _Made(networks, [], decisions)


def finest(problem: Problem) -> float:
    """The smallest bound on |gap| that a threshold is asked to keep: one row of the smallest group more or less."""
    if is_quotient(problem.goal.measure):
        label, attribute = QUOTIENTS[problem.goal.measure], problem.cohort.attribute
        decided = (problem.held_out.chance > problem.heads.centre) == bool(label)
        counts = np.bincount(attribute.codes[decided & (attribute.codes >= 0)], minlength=len(attribute.levels))
        return max(FINEST, float(1 / max(counts.min(), 1)))
    return max(FINEST, float(np.abs(problem.stakes).max() / (problem.cohort.attribute.codes >= 0).sum()))


def _notes(plain: float, reading: Reading, told: Mapping[str, Any], row: "pd.Series[float]", goal: Goal, folds: int) -> tuple[Note, ...]:
    chosen = {"folds": folds, "gap": float(row["gap"]), "performance": float(row["performance"]), "of": goal.performance, "before": plain}
    return Note("probes", str(reading), told), Note("chosen_on_held_out_rows", goal.measure, chosen)


def _learnt(heads: Heads) -> Note:
    return Note("training_set", numbers={"rows": max(probe.more for probe in heads.groups)})
