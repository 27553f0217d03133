"""Group thresholds are exact: on small problems they equal the best of all combinations of thresholds."""

from itertools import product

import numpy as np
import pytest

from equipoise.data import Scores
from equipoise.errors import BadInput
from equipoise.measures import Cells, largest_gap
from equipoise.methods import Goal, rule_to_dict
from equipoise.methods.rules import rule_from_dict
from equipoise.methods.thresholds import GroupThresholds
from equipoise.methods.thresholds import group_thresholds as fit
from support.facts import facts
from support.goals import paper_goal


def _scores(groups: int, n: int, seed: int, missing: bool = False) -> Scores:
    rng = np.random.default_rng(seed)
    names = np.array(["a", "b", "c"][:groups], dtype=object)
    code = np.concatenate([np.repeat(np.arange(groups), 2), rng.integers(0, groups, n - 2 * groups)])  # two labels of every group at least
    y = np.concatenate([np.tile([0, 1], groups), rng.integers(0, 2, n - 2 * groups)])
    score = np.round(np.clip(0.5 + 0.2 * (2 * y - 1) + 0.15 * code - 0.1 + rng.normal(0, 0.2, n), 0, 1), 1 if seed % 2 else 6)  # with ties
    group = names[code]
    if missing:
        group[-3:] = None
    return Scores.from_arrays(y, score, group, reference="a")


def _all(scores: Scores, goal: Goal, missing: float) -> list[tuple[float, float, np.ndarray]]:
    """|gap|, performance and the tpr of each group, for every combination of thresholds."""
    cuts = [np.append(np.unique(scores.score[scores.attribute.codes == k]), 1.1) for k in range(len(scores.attribute.levels))]
    combinations = np.array([[*combination, missing] for combination in product(*cuts)])
    decisions = scores.score >= combinations[:, scores.attribute.codes]
    cells = Cells.of(decisions.astype(float), scores.y, scores.attribute)
    gaps, performances = np.abs(largest_gap(cells.gaps(goal.measure))), cells.performance(goal.performance)
    return list(zip(gaps.tolist(), performances.tolist(), cells.rate("tpr"), strict=True))


GOALS = [
    {"max_gap": 0.1},
    {"max_gap": 0.0},
    {"min_performance": 0.6},
    {"min_performance": 0.99},
    {"min_performance": 0.6, "max_gap": 0.05},
    {"max_gap": 0.1, "keep": {"tpr": "before"}},
    {"min_performance": 0.55, "keep": {"tpr": 0.8}},
]


@pytest.mark.parametrize("limits", GOALS, ids=str)
@pytest.mark.parametrize("performance", ["balanced_accuracy", "accuracy", "f1"])
@pytest.mark.parametrize("measure", ["spd", "eod", "aod", "tnr_gap"])
@pytest.mark.parametrize(("groups", "n"), [(2, 24), (3, 18)])
def test_it_is_the_best_of_all_combinations(groups, n, measure, performance, limits):
    goal = paper_goal(measure, performance, **limits)
    for seed in (0, 3):
        scores = _scores(groups, n, seed, missing=seed == 3)
        fitted = fit(scores, goal)
        row, before = fitted.trace.iloc[1], fitted.trace.iloc[0]
        got = (abs(row["gap"]), row["performance"])
        everything = _all(scores, goal, fitted.rule.missing)
        if goal.keep:
            start = Cells.of((scores.score >= before["threshold"]).astype(float), scores.y, scores.attribute).rate("tpr")
            least = start if goal.keep["tpr"] == "before" else np.full(groups, goal.keep["tpr"])
            everything = [point for point in everything if (point[2] >= least - 1e-9).all()]
            assert row["spare"] >= -1e-9
        if goal.min_performance is not None:
            able = [point for point in everything if point[1] >= goal.min_performance - 1e-9]
            if able:
                gap = min(point[0] for point in able)
                want = (gap, max(point[1] for point in able if point[0] <= gap + 1e-9))
            else:
                top = max(point[1] for point in everything)
                want = (min(point[0] for point in everything if point[1] >= top - 1e-9), top)
            met = bool(able) and (goal.max_gap is None or want[0] <= goal.max_gap + 1e-9)
        else:
            able = [point for point in everything if point[0] <= goal.max_gap + 1e-9]
            if able:
                top = max(point[1] for point in able)
                want = (min(point[0] for point in able if point[1] >= top - 1e-9), top)
            else:
                gap = min(point[0] for point in everything)
                want = (gap, max(point[1] for point in everything if point[0] <= gap + 1e-9))
            met = bool(able)
        assert got == pytest.approx(want, abs=1e-9)
        assert fitted.met == met


def test_the_rule_is_the_same_after_json_and_refuses_groups_that_it_never_saw():
    scores = _scores(3, 18, 0, missing=True)
    rule = fit(scores, paper_goal("eod", max_gap=0.05)).rule
    again = rule_from_dict(rule_to_dict(rule))
    assert again == rule
    assert (again.decide(scores) == rule.decide(scores)).all()
    assert rule.decide(scores)[-1] == float(scores.score[-1] >= rule.missing)
    assert rule.needs_group
    with pytest.raises(BadInput, match="groups"):
        GroupThresholds(("a", "b"), (0.5, 0.5), 0.5).decide(scores)
    with pytest.raises(BadInput, match=facts("thresholds", 1, "groups", 2)):
        rule_from_dict({**rule_to_dict(rule), "groups": ["a", "b"], "thresholds": [0.5]})


def test_what_cannot_be_had_is_said():
    scores = _scores(2, 24, 0)
    (why,) = fit(scores, paper_goal("eod", min_performance=0.99)).why
    assert (why.numbers["qualified"], why.numbers["min_performance"]) == (0, 0.99)
    both = fit(scores, paper_goal("spd", max_gap=0.0, keep={"tpr": 1.0, "fpr": 0.0}))
    assert both.trace["spare"].iloc[1] >= 0


def test_what_is_kept_is_said_where_it_stands_in_the_way():
    scores = _scores(2, 24, 0)
    for least, keep, qualified in ((0.99, {"tpr": 1.0}, 0), (0.1, {"tpr": 0.5}, None)):
        (why,) = fit(scores, paper_goal("eod", min_performance=least, keep=keep)).why
        assert (why.kind, why.numbers["qualified"], why.numbers["min_performance"], why.numbers["keep"]) == (
            "selected",
            qualified,
            least,
            keep,
        )
