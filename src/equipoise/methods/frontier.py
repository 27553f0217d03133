"""Rules along the frontier between gap and performance, on a grid that means the same on any rows: shares of the original gap removed.

Step k of the grid is the rule of best performance whose gaps keep at most the share 1 - k/20 of what the original has, on its side of
zero. A bound on |gap| only would let a rule trade one group's disadvantage for another's; and a bound in points would mean one thing on
half of the rows and another on all of them. After the grid comes one more step, the rule that the goal itself asks for. Cross-fitted
selection fits all of them on halves of the repair set, and chooses among steps of the same number.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
from torch import nn

from equipoise.data import Rows, Scores
from equipoise.measures import (
    RATES,
    Cells,
    FloatArray,
    Rule,
    cells_at,
    furthest,
    is_quotient,
    normalised,
    performance_values,
    tabulate,
    terms,
)
from equipoise.methods.contract import Fit, FitStep
from equipoise.methods.goal import Goal, kept_rates, limits_of, spare
from equipoise.methods.selection import plain_rule
from equipoise.models import BiasScore, ReadOnce, bias_scores, predict

STEPS = 20  # of the grid: 5 % of the original gap each
SHARES: tuple[float, ...] = tuple(k / STEPS for k in range(1, STEPS + 1))  # of the original gap that is removed, from step 1 on


def windows(gaps: FloatArray, share: float, slack: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The lowest and highest gap of each group (groups - 1,) with this share of the original gaps removed.

    >>> [edge.tolist() for edge in windows(np.array([-0.2, 0.1]), 0.5, np.zeros(2))]
    [[-0.1, 0.0], [0.0, 0.05]]
    """
    left = (1.0 - share) * np.nan_to_num(gaps)
    return np.minimum(left, 0.0) - slack, np.maximum(left, 0.0) + slack


def half_rows(measure: str, cells: Cells) -> FloatArray:
    """What half a row more or less does to the gap of each group but the reference (groups - 1,): rates can come no closer than that."""
    n = cells.n[:-1]
    labels = {None} if is_quotient(measure) else {RATES[rate] for rate in terms(measure)}
    counts = np.min([n.sum(-1) if label is None else n[:, label] for label in labels], axis=0)
    half: FloatArray = 0.5 / np.maximum(counts[1:], 1.0)
    return half


def gap_windows(scores: Scores, goal: Goal, original: float) -> Iterator[tuple[float, float, float]]:
    """For each share of the original threshold's largest gap to remove: that share, and the lowest and highest gap that it leaves."""
    before = cells_at(scores, original)
    gap, slack = np.array([furthest(goal.measure, before)]), np.array([half_rows(goal.measure, before).min()])
    for share in SHARES:
        low, high = (float(edge[0]) for edge in windows(gap, share, slack))
        if len(scores.attribute.levels) > 2:  # the largest of several gaps, which may change sides as another group takes its place
            low, high = -max(-low, high), max(-low, high)
        yield share, low, high


def along(own: Fit, method: str, scores: Scores, rules: Sequence[Rule]) -> Fit:
    """The fit of a goal with all rules of the grid before it: step 0 is the original, the last one is the goal's own rule."""
    goal, attribute, weight = own.goal, scores.attribute, normalised(scores.weight)
    original = plain_rule(method, own.trace, 0, scores, goal)
    every: list[Rule] = [original, *rules, own.rule]
    tables = [tabulate(rule.decide(scores), scores.y, attribute, weight) for rule in every]
    rows = {
        "step": np.arange(len(every)),
        "gap": [float(furthest(goal.measure, cells)) for cells in tables],
        "performance": [float(performance_values(goal.performance, cells)) for cells in tables],
        "threshold": [original.value, *[np.nan] * (len(every) - 1)],
    }
    if goal.keep:
        least = limits_of(goal.keep, kept_rates(goal.keep, tables[0]))
        rows["spare"] = [float(spare(kept_rates(goal.keep, cells), least)) for cells in tables]
    return replace(own, trace=pd.DataFrame(rows), chosen=len(every) - 1, steps=tuple(FitStep(rule) for rule in every))


def step_decisions(steps: Sequence[FitStep], model: nn.Module | None, cohort: Rows, network: ReadOnce | None = None) -> FloatArray:
    """How every step of a fit decides on these rows (steps, n), by the network and rule that it would deliver.

    The network runs once for all steps that leave it as it is and for all bias scores around it, unless `network`, the same on these rows,
    was read before.
    """
    if isinstance(cohort, Scores):
        return np.stack([step.rule.decide(cohort) for step in steps])
    probes = [step.model for step in steps if isinstance(step.model, BiasScore)]
    at_once: dict[int, FloatArray] = {}
    if probes:
        first = probes[0]
        read = network if network is not None and network.of(first.network) else ReadOnce(first.network, cohort.inputs)
        at_once = dict(zip(map(id, probes), bias_scores(probes, read.shown(first.reading)), strict=True))
    plain = None
    if any(step.model is None for step in steps):
        plain = predict(model, cohort, raw=network.raw() if network is not None and model is not None and network.of(model) else None)
    made = []
    for step in steps:
        if step.model is None:
            assert plain is not None
            scores = plain
        else:
            scores = Scores.of(cohort, at_once[id(step.model)]) if id(step.model) in at_once else predict(step.model, cohort)
        made.append(step.rule.decide(scores))
    return np.stack(made)
