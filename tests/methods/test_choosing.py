"""The choice among steps by expected loss: what is taken, what is declined, the reason that is given, and laws that any choice obeys."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import equipoise as eq
from equipoise.methods import Goal
from equipoise.methods.choosing import RANDOMISED_PRICE, TrueRates, choose_step
from equipoise.methods.goal import DEFAULT_MAX_RISE
from equipoise.methods.step_estimates import StepEstimates
from support.notes import note_of


def _steps(*rates: tuple[float, float, float, float], n: int = 4000) -> StepEstimates:
    """Steps with these rates: FPR and TPR of the reference, FPR and TPR of the other group. The same rows are decided first in each."""
    y, codes = np.tile([0, 1], n // 2), np.repeat([0, 1], n // 2)
    f = np.zeros((len(rates), n))
    for k, four in enumerate(rates):
        for cell, rate in enumerate(four):
            rows = np.flatnonzero((codes == cell // 2) & (y == cell % 2))
            f[k, rows[: round(rate * len(rows))]] = 1
    return StepEstimates(f, y, codes, ("M", "F"), np.arange(n), Goal("eod", allow_worse=True))


ORIGINAL = (0.2, 0.8, 0.2, 0.6)


def _choose(goal: Goal, *rates: tuple[float, float, float, float], n: int = 4000, original=ORIGINAL, **about) -> SimpleNamespace:
    """The choice for one label."""
    evidence = _steps(original, *rates, n=n)
    goal = goal.changed(selection="honest")
    found = choose_step([replace(evidence, goal=goal)], [10 * k for k in range(len(evidence.f))], **about)
    return SimpleNamespace(step=found.step, why=found.why[0], met=found.met[0], goal=found.goals[0], prospects=found.prospects[0])


def test_a_clear_repair_is_taken_and_one_of_a_few_patients_declined():
    repaired = (0.2, 0.79, 0.2, 0.73)
    clear = _choose(Goal("eod", allow_worse=True), repaired)
    assert (clear.step, clear.met) == (10, True)
    reason = note_of(clear.why, "expected_gain").numbers
    assert reason["gap_before"] > 0.15 > 0.07 > reason["gap"]
    assert reason["fall"] == pytest.approx(0.01)
    few = _choose(Goal("eod", allow_worse=True), repaired, n=60, needs_group=True)
    assert few.step == 0
    assert few.prospects.net[1] < clear.prospects.net[1]


def test_a_step_that_removes_all_of_a_doubtful_gap_overshoots():
    """Of a gap of 1.4 standard errors, a part is chance: half of it is the better step, though the other leaves no gap in these data."""
    all_of_it, half = (0.2, 0.8, 0.2, 0.8), (0.2, 0.8, 0.2, 0.76)
    doubtful = _choose(Goal("eod"), all_of_it, half, n=400, original=(0.2, 0.8, 0.2, 0.72)).prospects
    assert doubtful.gap[2] < doubtful.gap[1]
    certain = _choose(Goal("eod"), all_of_it, half, n=40_000, original=(0.2, 0.8, 0.2, 0.72)).prospects
    assert certain.gap[1] < certain.gap[2]


def test_more_patients_with_the_same_rates_never_gain_less():
    gains = [_choose(Goal("eod"), (0.2, 0.8, 0.2, 0.78), n=n, needs_group=True).prospects.gain[1] for n in (80, 200, 800, 4000, 40_000)]
    assert gains == sorted(gains)
    assert gains[0] < 0.05
    assert gains[-1] == pytest.approx(0.18, abs=0.01)


def test_nothing_is_done_where_nothing_is_clear():
    """No gap, and a step that makes one: the original stays, whatever performance it would gain."""
    same = (0.2, 0.8, 0.2, 0.8)
    found = _choose(Goal("eod"), (0.1, 0.8, 0.1, 0.72), original=same)
    assert (found.step, found.met) == (0, True)
    assert note_of(found.why, "nothing_to_repair").numbers["rows"] == 4000
    small = _choose(Goal("eod"), same, n=400, original=(0.2, 0.8, 0.2, 0.79))
    assert small.step == 0
    assert small.prospects.room[0] < 0.005


def test_a_rule_that_needs_the_group_must_be_more_certain_of_the_gap():
    repaired, before = (0.2, 0.8, 0.2, 0.76), (0.2, 0.8, 0.2, 0.70)
    gains = [_choose(Goal("eod"), repaired, n=400, original=before, needs_group=needs).prospects.gain[1] for needs in (False, True)]
    assert gains[0] > gains[1]


def test_a_goal_that_is_already_met_changes_nothing():
    within = _choose(Goal("eod", max_gap=0.1), (0.2, 0.8, 0.2, 0.8), original=(0.2, 0.8, 0.2, 0.75))
    assert (within.step, within.met) == (0, True)
    assert note_of(within.why, "nothing_to_repair").numbers["max_gap"] == 0.1
    beyond = _choose(Goal("eod", max_gap=0.1), (0.2, 0.8, 0.2, 0.72), original=(0.2, 0.8, 0.2, 0.55))
    assert (beyond.step, beyond.met) == (10, True)
    nearer = _choose(Goal("eod", max_gap=0.01), (0.2, 0.8, 0.2, 0.75))
    assert (nearer.step, nearer.met) == (10, False)
    assert note_of(nearer.why, "too_large").numbers["most"] == 0.01


def test_a_loss_of_performance_counts_with_its_standard_error():
    costly = (0.23, 0.79, 0.23, 0.73)
    assert _choose(Goal("eod", max_loss=0.02, allow_worse=True), costly, original=(0.2, 0.8, 0.2, 0.68)).step == 10
    lower = (0.2, 0.66, 0.2, 0.62)  # 0.03 less of the balanced accuracy
    declined = _choose(Goal("eod", allow_worse=True), lower)
    assert declined.step == 0
    assert note_of(declined.why, "declined").numbers["lack"]["performance"] == 1
    assert "performance" in note_of(declined.why, "declined").numbers["lacks"]


def test_what_a_group_loses_is_the_price_of_the_gap():
    """Levelling down closes the gap as far as levelling up, and gains nothing: the loss of a group is as large as the gain."""
    down, up = (0.2, 0.7, 0.2, 0.6), (0.2, 0.8, 0.2, 0.7)
    found = _choose(Goal("eod", max_loss=0.2, allow_worse=True), down, up)
    assert found.step == 20
    assert found.prospects.fall.tolist() == pytest.approx([0.0, 0.1, 0.0])
    assert found.prospects.net[1] < 0
    assert _choose(Goal("eod", max_loss=0.2, allow_worse=True), down).step == 0


def test_of_false_alarms_the_group_whose_alarms_rise_pays():
    alarmed = (0.2, 0.8, 0.35, 0.8)
    rising, falling = (0.3, 0.8, 0.35, 0.8), (0.2, 0.8, 0.28, 0.8)
    found = _choose(Goal("fpr_gap", allow_worse=True), rising, falling, original=alarmed)
    assert found.step == 20
    assert found.prospects.fall.tolist() == pytest.approx([0.0, 0.1, 0.0])


def test_a_group_is_not_flooded_with_false_alarms_to_close_a_gap():
    flooded = (0.2, 0.8, 0.2 + DEFAULT_MAX_RISE["fpr"] + 0.02, 0.8)
    found = _choose(Goal("eod"), flooded)
    assert found.step == 0
    reason = note_of(found.why, "declined").numbers
    assert (reason["lacks"], reason["lack"]["fpr"]) == (("fpr", "selection"), 1)
    few = (0.2, 0.8, 0.2 + DEFAULT_MAX_RISE["fpr"] - 0.01, 0.64)
    assert "fpr" in _choose(Goal("eod"), few, n=400).prospects.at(1).lacks  # not certain enough with 100 patients per cell
    assert "fpr" not in _choose(Goal("eod"), few, n=40_000).prospects.at(1).lacks


def test_a_randomised_rule_is_worth_less_by_its_price():
    plain, randomised = (_choose(Goal("eod"), (0.2, 0.8, 0.2, 0.7), randomised=random).prospects for random in (False, True))
    assert plain.net[1] - randomised.net[1] == pytest.approx(RANDOMISED_PRICE)


def test_kept_rates_rule_out_steps_that_take_from_a_group():
    taking, giving = (0.2, 0.75, 0.2, 0.74), (0.2, 0.8, 0.2, 0.68)
    assert _choose(Goal("eod", max_loss=0.1, allow_worse=True), taking, giving).step == 10
    assert _choose(Goal("eod", max_loss=0.1), taking, giving).step == 20  # by default, no group may be worse off
    excluded = _choose(Goal("eod", keep={"tpr": 0.9}), taking, giving)
    assert excluded.step == 0
    assert note_of(excluded.why, "declined").numbers["lack"]["rates"] == 2


def test_of_several_labels_none_may_get_worse():
    better, worse = (0.2, 0.8, 0.2, 0.74), (0.2, 0.8, 0.2, 0.74)
    first = replace(_steps(ORIGINAL, better), goal=Goal("eod"))
    same = replace(_steps((0.2, 0.8, 0.2, 0.8), (0.2, 0.8, 0.2, 0.8)), goal=Goal("eod"))
    harmed = replace(_steps((0.2, 0.8, 0.2, 0.8), worse), goal=Goal("eod"))
    assert choose_step([first, same], (0, 1)).at == 1
    assert choose_step([first, harmed], (0, 1)).at == 0


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(0.05, 0.95), min_size=3, max_size=5), st.integers(20, 2000), st.integers(0, 1000))
def test_draws_of_true_rates_are_closer_together_than_the_rates_and_do_not_depend_on_the_order_of_groups(rates, patients, seed):
    rate = np.array(rates)
    variance = rate * (1 - rate) / patients
    draws = TrueRates.of(rate, variance, 0.5).draws(np.random.default_rng(seed))
    assert np.isfinite(draws).all()
    assert np.ptp(draws.mean(0)) <= np.ptp(rate) + 4 * np.sqrt(variance.max() / len(draws))
    order = np.random.default_rng(seed).permutation(len(rate))
    other = TrueRates.of(rate[order], variance[order], 0.5).draws(np.random.default_rng(seed))
    np.testing.assert_allclose(other.mean(0), draws.mean(0)[order], atol=5 * np.sqrt(variance.max() / len(draws)))


def test_the_posterior_of_two_groups_is_that_of_numerical_integration():
    """An independent computation on a grid of the difference: a mixture of a point at zero and normal priors."""
    from scipy.stats import norm

    from equipoise.methods.choosing import SPREADS

    difference, variance = -0.1, 0.0016
    draws = TrueRates.of(np.array([0.8, 0.7]), np.array([variance, variance]), 0.5).draws(np.random.default_rng(0))
    found = draws[:, 1] - draws[:, 0]
    chances = np.append(0.5, np.full(len(SPREADS) - 1, 0.5 / (len(SPREADS) - 1)))
    spread = np.sqrt(2 * SPREADS**2 + 2 * variance)  # of the observed difference, whatever the mean
    weight = chances * norm.pdf(difference, 0, spread)
    weight /= weight.sum()
    expected = (weight * difference * 2 * SPREADS**2 / (2 * SPREADS**2 + 2 * variance)).sum()
    assert found.mean() == pytest.approx(expected, abs=0.006)
    assert (np.abs(found) < 1e-9).mean() == pytest.approx(weight[0], abs=0.01)


# The commands of a hospital.


def _vendor(rng: np.random.Generator, n: int = 5000) -> eq.Scores:
    """A vendor's scores at a threshold far above the prevalence: 40 % of cases are found, and a little fewer in one group."""
    y, view = (rng.random(n) < 0.12).astype(int), np.where(rng.random(n) < 0.4, "AP", "PA")
    logit = rng.normal(np.where(y == 1, -0.2, -3.0) - 0.3 * ((view == "AP") & (y == 1)) + 0.5 * (view == "AP"), 1.0)
    return eq.Scores.from_arrays(y, 1 / (1 + np.exp(-logit)), view, reference="PA")


@pytest.mark.parametrize("limits", [{}, {"max_gap": 0.05}])
def test_a_threshold_is_not_lowered_until_everybody_is_flagged(limits):
    """On a vendor's real scores, one threshold for everybody went from 0.5 to 0.0077, and flagged patients from 8 to 69 %."""
    repair, new = _vendor(np.random.default_rng(0)), _vendor(np.random.default_rng(1), 20_000)
    result = eq.debias(repair, threshold=0.5, **limits)
    before, after = new.score >= 0.5, result.rule.decide(new)
    for group in ("AP", "PA"):
        healthy = (new.groups == group) & (new.y == 0)
        assert after[healthy].mean() <= before[healthy].mean() + DEFAULT_MAX_RISE["fpr"]
        sick = (new.groups == group) & (new.y == 1)
        assert after[sick].mean() >= before[sick].mean() - 0.02


def test_a_vendors_scores_that_meet_the_goal_keep_their_threshold():
    rng = np.random.default_rng(3)
    y, sex = (rng.random(4000) < 0.2).astype(int), np.where(rng.random(4000) < 0.5, "F", "M")
    scores = eq.Scores.from_arrays(y, 1 / (1 + np.exp(-rng.normal(2 * y - 1, 1.0))), sex, reference="M")
    result = eq.debias(scores, threshold=0.5, max_gap=0.05)
    assert (result.chosen, result.outcome) == (0, "unchanged")
    assert note_of(result.why, "nothing_to_repair").numbers["max_gap"] == 0.05
    assert result.expected.gap_before < 0.05
