"""Selection: the paper's rule, bounds, both, and what happens when nothing will do."""

import numpy as np
import pandas as pd
import pytest

from equipoise.methods.base import Goal
from equipoise.methods.selection import Look, better, keep_best, select


def _trace(gaps: list[float], performances: list[float]) -> pd.DataFrame:
    return pd.DataFrame({"step": range(len(gaps)), "gap": gaps, "performance": performances, "threshold": 0.5})


def test_the_papers_rule_is_the_smallest_gap_with_enough_performance():
    chosen = select(_trace([-0.3, 0.1, 0.01, -0.05], [0.8, 0.75, 0.6, 0.72]), Goal("spd", floor=0.7))
    assert (chosen.row, chosen.met) == (3, True)


def test_a_floor_that_nothing_reaches_gives_the_best_performance_and_says_so():
    chosen = select(_trace([-0.3, 0.0], [0.6, 0.55]), Goal("spd", floor=0.7))
    assert (chosen.row, chosen.met) == (0, False)
    assert "0.7" in chosen.why


def test_a_bound_gives_the_best_performance_within_it():
    trace = _trace([-0.3, 0.04, 0.01], [0.8, 0.75, 0.7])
    assert select(trace, Goal("spd", bound=0.05)).row == 1
    missed = select(trace, Goal("spd", bound=0.001))
    assert (missed.row, missed.met) == (2, False)


def test_floor_and_bound_together_are_both_needed():
    trace = _trace([-0.3, 0.04, 0.01], [0.8, 0.75, 0.6])
    assert select(trace, Goal("spd", floor=0.7, bound=0.05)).met
    assert not select(trace, Goal("spd", floor=0.7, bound=0.02)).met


def test_a_goal_without_either_may_lose_two_hundredths():
    assert Goal("spd").settled(0.8).floor == pytest.approx(0.78)
    assert Goal("spd", floor=0.6).settled(0.8).floor == 0.6
    assert Goal("spd", bound=0.1).settled(0.8).floor is None


@pytest.mark.parametrize("goal", [Goal("spd", floor=0.6), Goal("spd", bound=0.1), Goal("spd", floor=0.95)])
def test_keeping_the_best_so_far_ends_where_selection_points(goal: Goal):
    rng = np.random.default_rng(0)
    for _ in range(50):
        gaps, performances = rng.normal(0, 0.2, 20), rng.uniform(0.5, 0.9, 20)
        best, kept = None, -1
        for k in range(20):
            look = Look(gaps[k : k + 1], performances[k : k + 1], np.array([0.5]))
            improved = better(look, best, [goal])
            best = keep_best(best, look, improved)
            kept = k if improved[0] else kept
        assert kept == select(_trace(list(gaps), list(performances)), goal).row
