"""One threshold for everybody: the original's, with which every method is compared (standard), and the one of the smallest gap.

`single-threshold` needs no group. Gap and performance at every threshold come from one sweep. If the groups' score distributions are
shifted against each other, no single threshold closes a gap without a loss; if the threshold in use was never tuned, or tuned for another
purpose, another one often improves both. Thresholds with constant decisions are left out.
"""

import numpy as np
import pandas as pd

from equipoise.data import Scores
from equipoise.measures import Rule, Threshold, cells_at, sweep_scores
from equipoise.methods.choosing import select
from equipoise.methods.contract import ALL_AT_ONCE, ONE_BY_ONE, STANDARD, Fit, FitStep, Kind, NoSettings, Work, method
from equipoise.methods.evaluation import NOISE, highest_threshold, kept_rates, limits_of
from equipoise.methods.frontier import gap_windows, original_rule, rule_trace
from equipoise.methods.goal import Goal, Note

NAME = "single-threshold"
SURE = 1.0  # smallest gap to act on, in standard errors: in simulations without a gap, half of it moved thresholds twice as often


@method(
    STANDARD,
    title="the original network, threshold by best performance",
    kind=Kind.RULE,
    selects=False,
    labels=ALL_AT_ONCE,
    weights=True,
    cost=lambda speed, _: Work(len(speed.repair), 1, "the original"),
    effort=0.1,
    in_auto=0,
    in_auto_scores=0,
)
def standard(scores: Scores, goal: Goal, _settings: NoSettings = NoSettings()) -> Fit:
    """The threshold in use, or that of best performance."""
    rule, settled = original_rule(STANDARD, scores, goal)
    trace = rule_trace([rule], scores, settled.derived(keep={}))  # its own rates are no limit
    selection = select(trace, settled)
    why = (Note("original"), *(() if selection.met else selection.why))
    return Fit(rule, trace, 0, why, selection.met, settled, steps=(FitStep(rule),))


@method(
    NAME,
    title="another threshold for everybody, exactly the best",
    kind=Kind.RULE,
    labels=ONE_BY_ONE,
    weights=True,
    cost=lambda speed, _: Work(len(speed.repair), 1, "another threshold for everybody; no group is needed"),
    effort=0.1,
    in_auto_scores=1,
    acts_from=SURE,
)
def fit(scores: Scores, goal: Goal, _settings: NoSettings = NoSettings()) -> Fit:
    """The best threshold by the goal for these scores, which should be validation scores."""
    original, settled = original_rule(NAME, scores, goal)
    points = _points(scores, goal, original.value)
    picked = select(points, settled)
    origin, rows = f"chosen by {NAME} with {settled}", f"on {len(scores):,} rows of {scores.name}"
    rule = Threshold(float(points["threshold"].iloc[picked.row]), f"{origin} {rows}")

    def grid() -> list[Rule]:
        within = gap_windows(scores, goal, original.value)
        return [
            Threshold(_best_within(points, low, high), f"{NAME} that removes {share:.0%} of the gap {rows}") for share, low, high in within
        ]

    return Fit(rule, rule_trace([original, rule], scores, settled), 1, picked.why, picked.met, settled, grid=grid)


def _points(scores: Scores, goal: Goal, original: float) -> pd.DataFrame:
    """Gap and performance at every threshold without constant decisions, and whether rates are kept there."""
    attribute, swept = scores.attribute, sweep_scores(scores, (goal.measure, goal.performance))
    points = pd.DataFrame({"gap": swept.values[goal.measure], "performance": swept.values[goal.performance], "threshold": swept.thresholds})
    points = points.iloc[1:-1] if len(points) > 2 else points
    if goal.keep:
        least = limits_of(goal.keep, kept_rates(goal.keep, cells_at(scores, original)))
        highest = highest_threshold(goal.keep, scores.score, scores.y, attribute.codes, len(attribute.levels), least)
        points = points.assign(spare=np.where(points["threshold"] <= highest + NOISE, 0.0, -1.0))
    return points.reset_index(drop=True)


def _best_within(points: pd.DataFrame, low: float, high: float) -> float:
    """The threshold of best performance with the gap between two limits; if there is none, that of the smallest |gap|."""
    gap, performance = points["gap"].to_numpy(), points["performance"].to_numpy()
    inside = (gap >= low - NOISE) & (gap <= high + NOISE)
    if "spare" in points and (kept := points["spare"].to_numpy() >= 0).any():
        inside, gap = inside & kept, np.where(kept, gap, np.inf)
    size = np.where(np.isnan(gap), np.inf, np.abs(gap))
    at = np.where(inside, performance, -np.inf).argmax() if inside.any() else size.argmin()
    return float(points["threshold"].iloc[int(at)])
