"""Fits of decision rules: the original's threshold, and rules along the frontier between gap and performance.

The rules form a grid that is comparable between sets of rows: removed shares of the gap. Step k is the rule of best performance whose gaps
are at most the share 1 - k/20 of the original gaps, on the same side of zero. A bound on |gap| only would let a rule trade one group's
disadvantage for another's, and an absolute bound would not be comparable between a part of the rows and all rows. The last step, after the
grid, is the rule for the goal itself. Cross-fitted selection fits all of them on parts of the repair set, and compares steps of the same
number.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from equipoise.data import Scores
from equipoise.measures import (
    RATES,
    Cells,
    FloatArray,
    Rule,
    Threshold,
    cells_at,
    is_quotient,
    normalised,
    performance_values,
    sweep_scores,
    tabulate,
    terms,
    worst_gap,
)
from equipoise.methods.choosing import WORST, plain_rule, refused, select
from equipoise.methods.contract import Fit, FitStep
from equipoise.methods.evaluation import kept_rates, limits_of, spare
from equipoise.methods.goal import Goal, Note

STEPS = 20  # of the grid: 5 % of the original gap each
SHARES: tuple[float, ...] = tuple(k / STEPS for k in range(1, STEPS + 1))  # removed shares of the original gap, from step 1 on


def original_rule(method: str, scores: Scores, goal: Goal) -> tuple[Threshold, Goal]:
    """The original's rule, by the threshold in use or that of best performance, and the goal with its minimum performance."""
    if goal.threshold is not None:
        threshold, performance = goal.threshold, performance_values(goal.performance, cells_at(scores, goal.threshold))
    else:
        swept = sweep_scores(scores, (goal.measure, goal.performance))
        best = swept.best(goal.performance, gap=goal.measure if is_quotient(goal.measure) else None)
        threshold, performance = float(best.threshold), best.values[goal.performance]
    settled = goal.settled(float(performance))
    return plain_rule(method, threshold, scores, settled, original=True), settled


def rule_trace(rules: Sequence[Rule], scores: Scores, goal: Goal) -> pd.DataFrame:
    """The trace of these rules, the original's first."""
    cells = tabulate(np.stack([rule.decide(scores) for rule in rules]), scores.y, scores.attribute, normalised(scores.weight))
    columns = {
        "step": np.arange(len(rules)),
        "gap": worst_gap(goal.measure, cells),
        "performance": performance_values(goal.performance, cells),
        "threshold": [np.nan if rule.shared is None else rule.shared for rule in rules],
    }
    if goal.keep:
        rates = kept_rates(goal.keep, cells)
        columns["spare"] = spare(rates, limits_of(goal.keep, rates[0]))
    return pd.DataFrame(columns)


def fit_steps(fit: Fit, method: str, scores: Scores) -> tuple[FitStep, ...]:
    """The steps of a fit; those of a rule are the original, the rules of its grid, and the rule for the goal."""
    if fit.steps:
        return fit.steps
    original = plain_rule(method, fit.trace["threshold"].iloc[0], scores, fit.goal, original=True)
    return (FitStep(original), *map(FitStep, fit.grid()), FitStep(fit.rule, fit.model))


def along(fit: Fit, method: str, scores: Scores) -> Fit:
    """The fit of a goal with its steps, one per row of the trace."""
    if fit.steps:
        return fit
    steps = fit_steps(fit, method, scores)
    return replace(fit, trace=rule_trace([step.rule for step in steps], scores, fit.goal), chosen=len(steps) - 1, steps=steps)


def not_constant(fit: Fit, method: str, scores: Scores) -> Fit:
    """The fit; if the decisions of its rule are constant, the best of the method's other rules, or the original."""
    original, codes = plain_rule(method, fit.trace["threshold"].iloc[0], scores, fit.goal, original=True), scores.attribute.codes
    if not refused(np.stack([original.decide(scores), fit.rule.decide(scores)]), codes)[1]:
        return fit
    wide = along(fit, method, scores)
    usable = wide.trace.copy()
    usable.loc[refused(np.stack([step.rule.decide(scores) for step in wide.steps]), codes), ["gap", "performance"]] = WORST
    chosen = select(usable, wide.goal)
    if chosen.row:
        return replace(wide, rule=wide.steps[chosen.row].rule, chosen=chosen.row, why=(Note("constant"), *chosen.why), met=chosen.met)
    kept = (Note("original_kept"), Note("constant"))
    return replace(fit, rule=original, trace=wide.trace, chosen=0, why=kept, met=False, notes=kept, steps=())


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
