"""The signed distance of a repair from the group-aware upper bound."""

import numpy as np
import pytest

import equipoise as eq
from equipoise.comparison import below_upper_bound, upper_bound_at
from equipoise.comparison.findings import with_sufficient_data
from equipoise.data import Attribute, Scores
from equipoise.measures import upper_bound
from support.cases import small_case
from support.goals import paper_goal


def test_the_bound_is_that_of_the_original_test_scores():
    case = small_case(rows=1500)
    scores, goal = case.original.test, case.result.candidate.goal
    for row in case.found.methods:
        size = [abs(row.gap.value)]
        [best] = upper_bound(scores.score, scores.y, scores.attribute.codes, scores.attribute.levels, goal.measure, goal.performance, size)
        assert row.below == pytest.approx(best - row.performance.value)
    kept = {row.name: row.below for row in case.found.methods}
    for name in ("standard", "reject-option", "equalised-odds"):  # the same scores, so that nothing is above
        assert kept[name] >= -1e-12


def test_a_repair_with_better_scores_may_be_above_the_bound():
    scores = small_case(rows=1500).original.test
    assert below_upper_bound(scores, paper_goal("eod", min_performance=0.6), 0.0, 0.99) < 0


def test_without_a_bound_or_a_gap_there_is_no_distance():
    scores = small_case().original.test
    assert below_upper_bound(scores, paper_goal("eod", "f1", min_performance=0.2), 0.1, 0.7) is None
    assert below_upper_bound(scores, paper_goal("ppv_gap", min_performance=0.2), 0.1, 0.7) is None
    assert below_upper_bound(scores, paper_goal("eod", min_performance=0.2), float("nan"), 0.7) is None
    found = upper_bound_at(scores, paper_goal("eod", min_performance=0.2), [np.nan, -0.1, 0.1])
    assert np.isnan(found[0])
    assert found[1] == found[2]


def test_groups_with_too_few_patients_are_left_out_of_the_comparison():
    rng = np.random.default_rng(0)
    y, group = rng.integers(0, 2, 203), np.array(["M", "F"] * 100 + ["X"] * 3)
    scores = Scores.from_arrays(y, rng.random(203), group, reference="M")
    found = eq.audit(scores, threshold=0.5)
    kept = with_sufficient_data(scores.attribute, found, "eod")
    assert kept.levels == ("M", "F")
    assert (kept.codes[-3:] == -1).all()
    assert with_sufficient_data(Attribute("g", ("a", "b"), np.array([0, 1])), found, "eod").levels == ("a", "b")
