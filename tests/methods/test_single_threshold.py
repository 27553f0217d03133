"""The single threshold is the best of all thresholds, and decides by the score only."""

import numpy as np
import pytest

from equipoise.data import Scores
from equipoise.measures import Cells, Threshold, largest_gap
from equipoise.methods import Goal
from equipoise.methods.rules import with_steps
from equipoise.methods.thresholds import single_threshold as fit
from support.goals import paper_goal

GOALS = [{"max_gap": 0.1}, {"min_performance": 0.55}, {"min_performance": 0.99}, {"max_gap": 0.2, "keep": {"tpr": "before"}}]


def _scores(seed: int, n: int = 40) -> Scores:
    rng = np.random.default_rng(seed)
    group = np.array(["a", "b"], dtype=object)[np.arange(n) % 2]
    y = (np.arange(n) // 2) % 2
    score = np.round(np.clip(0.5 + 0.15 * (2 * y - 1) + 0.1 * (group == "b") * y + rng.normal(0, 0.2, n), 0, 1), 2)
    return Scores.from_arrays(y, score, group, reference="a")


def _at(scores: Scores, goal: Goal, cut: float) -> tuple[float, float, float]:
    cells = Cells.of((scores.score >= cut).astype(float), scores.y, scores.attribute)
    return (
        float(np.abs(largest_gap(cells.gaps(goal.measure)))),
        float(cells.performance(goal.performance)),
        cells.rate("tpr").min(),
    )


@pytest.mark.parametrize("limits", GOALS, ids=str)
@pytest.mark.parametrize("measure", ["eod", "spd"])
def test_it_is_the_best_of_all_thresholds(measure, limits):
    for seed in range(4):
        scores, goal = _scores(seed), paper_goal(measure, **limits, threshold=0.6)
        found = fit(scores, goal)
        assert isinstance(found.rule, Threshold)
        size, performance, kept = _at(scores, goal, found.rule.value)
        lowest, highest = scores.score.min(), scores.score.max()
        cuts = [cut for cut in np.unique(scores.score) if lowest < cut <= highest]  # none that decides the same for all
        every = np.array([_at(scores, goal, cut) for cut in cuts])
        if goal.keep:
            before = Cells.of((scores.score >= 0.6).astype(float), scores.y, scores.attribute).rate("tpr")
            every = np.array(
                [
                    own
                    for cut, own in zip(cuts, every, strict=True)
                    if (Cells.of((scores.score >= cut).astype(float), scores.y, scores.attribute).rate("tpr") >= before - 1e-9).all()
                ]
            )
            assert kept >= before.min() - 1e-9
        if "max_gap" in limits and (every[:, 0] <= goal.max_gap + 1e-9).any():
            within = every[every[:, 0] <= goal.max_gap + 1e-9]
            assert size <= goal.max_gap + 1e-9
            assert performance == pytest.approx(within[:, 1].max())
        elif "min_performance" in limits and (every[:, 1] >= goal.min_performance - 1e-9).any():
            assert size == pytest.approx(every[every[:, 1] >= goal.min_performance - 1e-9][:, 0].min())
        else:
            assert not found.met


def test_the_grid_begins_with_the_threshold_in_use_and_every_step_can_be_delivered():
    scores, goal = _scores(1, 200), paper_goal("eod", threshold=0.6)
    found = with_steps(fit(scores, goal), "single-threshold", scores)
    assert found.steps[0].rule.value == 0.6
    assert len(found.steps) == len(found.trace) == 22
    for step, row in zip(found.steps, found.trace.itertuples(), strict=True):
        assert step.rule.value == row.threshold
        size, performance, _ = _at(scores, goal, row.threshold)
        assert (size, performance) == (pytest.approx(abs(row.gap)), pytest.approx(row.performance))
        assert not step.rule.needs_group
