"""Another single threshold for all groups, with the smallest gap that a single threshold can have. It needs no group.

Gap and performance at every threshold come from one sweep. If the groups' score distributions are shifted against each other, no single
threshold closes a gap without a loss; if the threshold in use was never tuned, or tuned for another purpose, another one often improves
both. Thresholds with constant decisions are left out.
"""

from dataclasses import replace

import numpy as np
import pandas as pd

from equipoise.data import Scores
from equipoise.measures import FloatArray, Threshold, cells_at, sweep_scores
from equipoise.methods.contract import ONE_BY_ONE, Fit, Kind, NoSettings, Work, method
from equipoise.methods.evaluation import original_threshold
from equipoise.methods.frontier import along, gap_windows
from equipoise.methods.goal import Goal
from equipoise.methods.kept_rates import NOISE, highest_threshold, kept_rates, limits_of, spare
from equipoise.methods.selection import select

NAME = "single-threshold"
SURE = 1.0  # smallest gap to act on, in standard errors: in simulations without a gap, half of it moved thresholds twice as often


def frontier(scores: Scores, goal: Goal, settings: NoSettings = NoSettings()) -> Fit:
    """The threshold for the goal, and one for each removed share of the original gap."""
    goal_fit = fit(scores, goal, settings)
    original = float(goal_fit.trace["threshold"].iloc[0])
    points = _points(scores, goal, original)
    origin = f"{NAME} that removes {{:.0%}} of the gap on {len(scores):,} rows of {scores.name}"
    rules = [Threshold(_best_within(points, low, high), origin.format(share)) for share, low, high in gap_windows(scores, goal, original)]
    thresholds = [original, *(rule.value for rule in rules), goal_fit.trace["threshold"].iloc[1]]
    grid = along(goal_fit, NAME, scores, rules)
    return replace(grid, trace=grid.trace.assign(threshold=thresholds))


@method(
    NAME,
    title="another threshold for everybody, exactly the best",
    kind=Kind.RULE,
    labels=ONE_BY_ONE,
    frontier=frontier,
    weights=True,
    cost=lambda task, _: Work(len(task.repair), 1, "another threshold for everybody; no group is needed"),
    effort=0.1,
    in_auto_scores=1,
    acts_from=SURE,
)
def fit(scores: Scores, goal: Goal, _settings: NoSettings = NoSettings()) -> Fit:
    """The best threshold by the goal for these scores, which should be validation scores."""
    start = original_threshold(scores, goal)
    original = float(start.threshold)
    first = {"gap": float(start.values[goal.measure]), "performance": float(start.values[goal.performance]), "threshold": original}
    settled = goal.settled(first["performance"])
    points = _points(scores, goal, original)
    picked = select(points, settled)
    row = points.iloc[picked.row]
    trace = pd.DataFrame([first, row[list(first)].to_dict()])
    trace.insert(0, "step", [0, 1])
    if goal.keep:
        trace["spare"] = [_spare(scores, goal, original, float(at)) for at in trace["threshold"]]
    origin = f"chosen by {NAME} with {settled} on {len(scores):,} rows of {scores.name}"
    return Fit(Threshold(float(row["threshold"]), origin), trace, 1, picked.why, picked.met, settled)


def _points(scores: Scores, goal: Goal, original: float) -> pd.DataFrame:
    """Gap and performance at every threshold without constant decisions, and whether rates are kept there."""
    attribute, swept = scores.attribute, sweep_scores(scores, (goal.measure, goal.performance))
    points = pd.DataFrame({"gap": swept.values[goal.measure], "performance": swept.values[goal.performance], "threshold": swept.thresholds})
    points = points.iloc[1:-1] if len(points) > 2 else points
    if goal.keep:
        least = _least(scores, goal, original)
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


def _least(scores: Scores, goal: Goal, original: float) -> FloatArray:
    """The limits of the kept rates."""
    return limits_of(goal.keep, kept_rates(goal.keep, cells_at(scores, original)))


def _spare(scores: Scores, goal: Goal, original: float, threshold: float) -> float:
    """The smallest margin of the kept rates over their limits at a threshold."""
    return float(spare(kept_rates(goal.keep, cells_at(scores, threshold)), _least(scores, goal, original)))
