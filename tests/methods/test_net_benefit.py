"""Net benefit: the odds that a clinician states, one missed case for so many false alarms, in choosing, judging and reporting."""

import numpy as np
import pytest

import equipoise as eq
from equipoise.errors import BadInput
from equipoise.measures import AuditSpec, Cells, PairedDecisions, estimate_performance, performance_functional, sweep
from equipoise.methods import METHODS, Goal
from equipoise.report.wording.names import performance_words

NAME = "net_benefit_10"


def world(n: int = 3000, seed: int = 0) -> eq.Scores:
    rng = np.random.default_rng(seed)
    code, y = rng.integers(0, 2, n), rng.random(n) < 0.05
    score = 1 / (1 + np.exp(2 - rng.normal(size=n) - np.where(y, 1.8 - 0.8 * code, 0.0)))
    return eq.Scores.from_arrays(y.astype(int), score, np.array(["M", "F"])[code], reference="M")


def by_hand(scores: eq.Scores, f: np.ndarray, worth: float = 10) -> float:
    """Vickers and Elkin's net benefit at the odds 1 : worth, as a share of the prevalence."""
    return float((f @ scores.y - f @ (1 - scores.y) / worth) / scores.y.sum())


def test_net_benefit_is_that_of_decision_curve_analysis():
    scores = world()
    f, g = ((scores.score >= cut).astype(float) for cut in (0.3, 0.2))
    expected = by_hand(scores, f)
    cells = Cells.of(f, scores.y, scores.attribute)
    assert cells.performance(NAME) == pytest.approx(expected)
    functional = performance_functional(NAME, cells.n)
    assert functional.offset + f @ functional.weights(scores.y, scores.attribute.codes) == pytest.approx(expected)
    swept = sweep(scores.score, scores.y, scores.attribute, ("eod", NAME))
    best = swept.best(NAME)
    assert best.values[NAME] == pytest.approx(by_hand(scores, (scores.score >= best.threshold).astype(float)))
    assert best.values[NAME] == pytest.approx(max(by_hand(scores, (scores.score >= cut).astype(float)) for cut in np.unique(scores.score)))
    estimate = estimate_performance(scores, f, [NAME], AuditSpec())[NAME]
    assert estimate.value == pytest.approx(expected)
    assert estimate.low < expected < estimate.high
    change = PairedDecisions(scores, (f, g), AuditSpec()).performance_change(NAME)
    assert change.value == pytest.approx(by_hand(scores, g) - expected)


def test_every_rule_of_scores_serves_it():
    for name in METHODS:
        if METHODS[name].on_scores and name not in ("auto", "bias-score"):
            result = eq.debias(world(), method=name, missed_case_worth=10, threshold=0.3, selection="paper", max_loss=0.3)
            assert result.goal.performance == NAME
            assert result.trace["performance"].iloc[result.chosen] == pytest.approx(by_hand(world(), result.decide(world())))


def test_the_intervals_cover_at_a_fixed_prevalence():
    truth = by_hand(big := world(400_000, 9), (big.score >= 0.3).astype(float))
    inside = 0
    for seed in range(200):
        scores = world(2000, 100 + seed)
        estimate = estimate_performance(scores, (scores.score >= 0.3).astype(float), [NAME], AuditSpec())[NAME]
        inside += estimate.low <= truth <= estimate.high
    assert inside >= 180


def test_it_may_be_negative_and_its_limit_is_below_it_then():
    goal = Goal("eod", missed_case_worth=10)
    assert goal.settled(-0.3).min_performance == pytest.approx(-0.32)
    assert Goal("eod").settled(0.01).min_performance == 0


def test_the_odds_are_part_of_the_goal_and_of_its_words():
    goal = Goal("eod", missed_case_worth=10)
    assert goal.performance == NAME
    assert Goal(**goal.model_dump(exclude={"original"})) == goal
    assert "10 false alarms" in performance_words(goal.performance)
    for wrong in ({"performance": "accuracy", "missed_case_worth": 10}, {"missed_case_worth": 0}, {"performance": "net_benefit"}):
        with pytest.raises(BadInput):
            Goal("eod", **wrong)
