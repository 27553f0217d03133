"""Rules along the frontier between gap and performance, on a grid that is comparable between sets of rows: removed shares of the gap.

Step k of the grid is the rule of best performance whose gaps are at most the share 1 - k/20 of the original gaps, on the same side of zero.
A bound on |gap| only would let a rule trade one group's disadvantage for another's, and an absolute bound would not be comparable between
a part of the rows and all rows. The last step, after the grid, is the rule for the goal itself. Cross-fitted selection fits all of them on
parts of the repair set, and compares steps of the same number.
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
    is_quotient,
    normalised,
    performance_values,
    tabulate,
    terms,
    worst_gap,
)
from equipoise.methods.contract import Fit, FitStep
from equipoise.methods.goal import Goal
from equipoise.methods.kept_rates import kept_rates, limits_of, spare
from equipoise.methods.selection import plain_rule
from equipoise.models import BiasScore, ReadOnce, bias_scores, predict

STEPS = 20  # of the grid: 5 % of the original gap each
SHARES: tuple[float, ...] = tuple(k / STEPS for k in range(1, STEPS + 1))  # removed shares of the original gap, from step 1 on


def windows(gaps: FloatArray, share: float, slack: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The lowest and highest gap of each group (groups - 1,) with this share of the original gaps removed.

    >>> [edge.tolist() for edge in windows(np.array([-0.2, 0.1]), 0.5, np.zeros(2))]
    [[-0.1, 0.0], [0.0, 0.05]]
    """
    left = (1.0 - share) * np.nan_to_num(gaps)
    return np.minimum(left, 0.0) - slack, np.maximum(left, 0.0) + slack


def half_rows(measure: str, cells: Cells) -> FloatArray:
    """The change of the gap of each group but the reference (groups - 1,) by half a row: rates cannot be matched more closely."""
    n = cells.n[:-1]
    labels = {None} if is_quotient(measure) else {RATES[rate] for rate in terms(measure)}
    counts = np.min([n.sum(-1) if label is None else n[:, label] for label in labels], axis=0)
    half: FloatArray = 0.5 / np.maximum(counts[1:], 1.0)
    return half


def gap_windows(scores: Scores, goal: Goal, original: float) -> Iterator[tuple[float, float, float]]:
    """For each removed share of the original threshold's largest gap: the share, and the lowest and highest remaining gap."""
    before = cells_at(scores, original)
    gap, slack = np.array([worst_gap(goal.measure, before)]), np.array([half_rows(goal.measure, before).min()])
    for share in SHARES:
        low, high = (float(edge[0]) for edge in windows(gap, share, slack))
        if len(scores.attribute.levels) > 2:  # the largest of several gaps may change sides when another group becomes the worst
            low, high = -max(-low, high), max(-low, high)
        yield share, low, high


def along(fit: Fit, method: str, scores: Scores, rules: Sequence[Rule]) -> Fit:
    """The fit of a goal with the rules of the grid as steps: step 0 is the original, the last one the rule of the fit."""
    goal, attribute, weight = fit.goal, scores.attribute, normalised(scores.weight)
    original = plain_rule(method, fit.trace, 0, scores, goal)
    all_rules: list[Rule] = [original, *rules, fit.rule]
    tables = [tabulate(rule.decide(scores), scores.y, attribute, weight) for rule in all_rules]
    columns = {
        "step": np.arange(len(all_rules)),
        "gap": [float(worst_gap(goal.measure, cells)) for cells in tables],
        "performance": [float(performance_values(goal.performance, cells)) for cells in tables],
        "threshold": [original.value, *[np.nan] * (len(all_rules) - 1)],
    }
    if goal.keep:
        least = limits_of(goal.keep, kept_rates(goal.keep, tables[0]))
        columns["spare"] = [float(spare(kept_rates(goal.keep, cells), least)) for cells in tables]
    return replace(fit, trace=pd.DataFrame(columns), chosen=len(all_rules) - 1, steps=tuple(FitStep(rule) for rule in all_rules))


def step_decisions(steps: Sequence[FitStep], model: nn.Module | None, cohort: Rows, network: ReadOnce | None = None) -> FloatArray:
    """The decisions of every step of a fit on these rows (steps, n), by the network and rule that it would deliver.

    The network is run once for all steps that do not change it and for all bias scores around it, unless `network` holds its outputs on
    these rows.
    """
    if isinstance(cohort, Scores):
        return np.stack([step.rule.decide(cohort) for step in steps])
    probes = [step.model for step in steps if isinstance(step.model, BiasScore)]
    probe_scores: dict[int, FloatArray] = {}
    if probes:
        first = probes[0]
        read = network if network is not None and network.of(first.network) else ReadOnce(first.network, cohort.inputs)
        probe_scores = dict(zip(map(id, probes), bias_scores(probes, read.shown(first.reading)), strict=True))
    plain = None
    if any(step.model is None for step in steps):
        plain = predict(model, cohort, raw=network.raw() if network is not None and model is not None and network.of(model) else None)
    decisions = []
    for step in steps:
        if step.model is None:
            assert plain is not None
            scores = plain
        else:
            scores = Scores.of(cohort, probe_scores[id(step.model)]) if id(step.model) in probe_scores else predict(step.model, cohort)
        decisions.append(step.rule.decide(scores))
    return np.stack(decisions)
