"""Levelling up: groups that are behind get a lower threshold until the expected rates meet; no threshold rises."""

import numpy as np
import pytest

import equipoise as eq
from equipoise.measures import Cells
from equipoise.methods import METHODS, Goal, make_settings
from equipoise.methods.choosing import TrueRates
from equipoise.methods.rules import with_steps


def world(n: int, seed: int, behind: float = 0.8, groups: str = "MF") -> eq.Scores:
    """Scores of groups, each shifted down by `behind` per place among the positives; one row in four is positive."""
    rng = np.random.default_rng(seed)
    code, y = rng.integers(0, len(groups), n), rng.random(n) < 0.25
    logit = rng.normal(size=n) + np.where(y, 2.0 - behind * code, 0.0)
    return eq.Scores.from_arrays(y.astype(int), 1 / (1 + np.exp(1 - logit)), np.array(list(groups))[code], reference="M")


def fitted(scores: eq.Scores, goal: Goal):
    method = METHODS["level-up"]
    return with_steps(method.run(scores, goal.for_steps(), make_settings("level-up", {})), "level-up", scores)


def rates(scores: eq.Scores, rule, name: str = "tpr") -> np.ndarray:
    return Cells.of(rule.decide(scores), scores.y, scores.attribute).rate(name)


@pytest.mark.parametrize(("measure", "rate"), [("eod", "tpr"), ("spd", "selection"), ("aod", "tpr")])
@pytest.mark.parametrize("groups", ["MF", "MFXY"])
def test_no_threshold_rises_and_rates_of_those_behind_rise_step_by_step(measure: str, rate: str, groups: str):
    scores = world(4000, 1, groups=groups)
    fit = fitted(scores, Goal(measure, threshold=0.5))
    steps = np.array([step.rule.thresholds for step in fit.steps[1:]])
    assert (steps <= 0.5).all()
    assert (np.diff(steps, axis=0) <= 0).all()
    reached = np.array([rates(scores, step.rule, rate) for step in fit.steps])
    assert (np.diff(reached, axis=0) >= 0).all()
    assert np.ptp(reached[-1]) < 0.25 * np.ptp(reached[0])  # by chance they differ, so the expected rates meet before the observed ones


def test_the_last_step_leaves_the_share_of_the_gap_that_chance_explains():
    """With few patients the groups' expected rates are close to each other, so that less is moved than was observed."""
    small = world(200, 3)
    fit = fitted(small, Goal("eod", threshold=0.5))
    before, after = rates(small, fit.steps[0].rule), rates(small, fit.rule)
    assert before.min() < after.min() < before.max()


def test_expected_rates_are_pulled_together_by_their_uncertainty():
    rate = np.array([0.8, 0.6])
    sure, unsure = (TrueRates.of(rate, np.full(2, variance), 0.5).means for variance in (1e-6, 0.02))
    assert sure == pytest.approx(rate, abs=1e-3)
    assert np.ptp(unsure) < 0.4 * np.ptp(rate)
    assert unsure.mean() == pytest.approx(0.7)


def test_a_measure_of_harm_leaves_the_original():
    scores = world(1000, 4)
    fit = fitted(scores, Goal("fpr_gap", threshold=0.5))
    assert {step.rule.thresholds for step in fit.steps[1:]} == {(0.5, 0.5)}


def test_debias_levels_up_and_makes_no_group_worse():
    result = eq.debias(world(6000, 5), method="level-up", measure="eod", threshold=0.5, max_rise={"fpr": 0.3, "selection": 0.3})
    assert result.chosen > 0
    new = world(20000, 6)
    before, after = (new.score >= 0.5).astype(float), result.rule.decide(new)
    assert (after >= before).all()
    gaps = [abs(float(Cells.of(f, new.y, new.attribute).gaps("eod")[0])) for f in (before, after)]
    assert gaps[1] < gaps[0] / 2
