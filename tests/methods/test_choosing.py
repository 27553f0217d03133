"""The choice among steps by cross-fitted values: what is taken, what is declined, and the reason that is given."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from equipoise.methods import METHODS, Goal
from equipoise.methods.choosing import choose_step
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


def _choose(goal: Goal, *rates: tuple[float, float, float, float], n: int = 4000):
    evidence = _steps(ORIGINAL, *rates, n=n)
    return _verdict(evidence, [10 * k for k in range(len(evidence.f))], goal)


def _verdict(evidence: StepEstimates, steps: list[int], goal: Goal) -> SimpleNamespace:
    """The verdict of one label."""
    goal = goal.changed(selection="honest" if goal.selection == "paper" else goal.selection)
    found = choose_step([replace(evidence, goal=goal)], steps)
    return SimpleNamespace(step=found.step, why=found.why[0], met=found.met[0], goal=found.goals[0])


def test_a_sure_repair_is_taken_and_a_lucky_one_declined():
    repaired = (0.2, 0.79, 0.2, 0.78)
    sure = _choose(Goal("eod", min_performance=0.6, allow_worse=True), repaired)
    assert (sure.step, sure.met) == (10, True)
    # One more of 50 is found when 20 others are missed that were found before: that may be luck.
    two = _steps(ORIGINAL, (0.2, 0.8, 0.2, 0.62), n=200)
    women = np.flatnonzero((two.codes == 1) & (two.y == 1))
    two.f[1, women] = np.roll(two.f[1, women], 20)
    lucky = _verdict(two, [0, 10], Goal("eod", min_performance=0.6, allow_worse=True))
    assert (lucky.step, lucky.met) == (0, False)
    assert note_of(lucky.why, "declined").subject == "eod"


def test_a_step_that_crosses_zero_by_a_hair_is_as_good_as_one_that_stays_before_it():
    before, across = (0.2, 0.8, 0.2, 0.79), (0.2, 0.8, 0.2, 0.81)
    for repaired in (before, across):
        assert _choose(Goal("eod", min_performance=0.6, allow_worse=True), repaired, n=100).step == 10  # of a gap of 1.6 standard errors


def test_a_rule_that_needs_the_group_asks_for_a_gap_that_is_surely_there():
    two = _steps(ORIGINAL, (0.2, 0.8, 0.2, 0.8), n=160)
    two = replace(two, goal=Goal("eod", min_performance=0.6, allow_worse=True, selection="honest"))
    assert choose_step([two], [0, 10], METHODS["bias-score"].least_gap).step == 10
    declined = choose_step([two], [0, 10], METHODS["group-thresholds"].least_gap)
    note = note_of(declined.why[0], "not_surely_there")
    assert (declined.step, note.numbers["least"]) == (0, 3.0)
    assert 1 < note.numbers["z"] < 3


def test_an_original_that_is_surely_within_the_maximum_gap_stays():
    verdict = _verdict(_steps((0.2, 0.8, 0.2, 0.75), (0.2, 0.8, 0.2, 0.8)), [0, 10], Goal("eod", max_gap=0.1, allow_worse=True))
    assert (verdict.step, verdict.met) == (0, True)
    assert note_of(verdict.why, "original_within").numbers["max_gap"] == 0.1


def test_of_steps_that_cannot_be_told_apart_one_se_takes_the_better_performing():
    best, nearly, apart = (0.2, 0.75, 0.2, 0.750), (0.1, 0.76, 0.1, 0.75), (0.1, 0.80, 0.1, 0.65)
    for selection, step in (("honest", 10), ("one-se", 20)):
        assert _choose(Goal("eod", min_performance=0.6, allow_worse=True, selection=selection), best, nearly, n=400).step == step
        assert _choose(Goal("eod", min_performance=0.6, allow_worse=True, selection=selection), best, apart).step == 10


def test_performance_is_judged_by_its_estimate_and_a_maximum_gap_by_its_upper_limit():
    repaired = (0.2, 0.75, 0.2, 0.749)  # balanced accuracy 0.775, standard error 0.0066
    assert _choose(Goal("eod", min_performance=0.772, allow_worse=True), repaired).step == 10
    missed = _choose(Goal("eod", min_performance=0.778, allow_worse=True), repaired)
    assert (missed.step, missed.met) == (0, False)
    assert note_of(missed.why, "none_surely").numbers["min_performance"] == 0.778
    within = _choose(Goal("eod", max_gap=0.05, allow_worse=True), repaired)
    assert (within.step, within.met) == (10, True)
    tight = _choose(Goal("eod", max_gap=0.01, allow_worse=True), repaired)  # the standard error is 0.019
    assert (tight.step, tight.met) == (10, False)
    assert note_of(tight.why, "not_surely_within").numbers["rows"] > 4000


def test_a_goal_that_may_lose_more_takes_a_step_that_others_decline():
    repaired = (0.2, 0.62, 0.2, 0.62)  # 0.04 less of the balanced accuracy
    assert _choose(Goal("eod", allow_worse=True), repaired).step == 0
    chosen = _choose(Goal("eod", max_loss=0.06, allow_worse=True), repaired)
    assert (chosen.step, chosen.met, chosen.goal.min_performance) == (10, True, pytest.approx(0.69))


def test_a_goal_without_either_judges_what_is_lost_against_the_original():
    """Performance less the original's is known far better than either: a loss of 0.005 surely is within 0.02."""
    repaired = (0.21, 0.76, 0.21, 0.64)
    chosen = _choose(Goal("eod", allow_worse=True), repaired, n=1000)
    assert chosen.step == 10
    assert chosen.goal.min_performance == pytest.approx(0.75 - 0.02)


def test_an_original_without_a_gap_that_could_be_told_is_left_alone():
    evidence = _steps((0.2, 0.8, 0.2, 0.79), (0.2, 0.8, 0.2, 0.8), n=400)
    verdict = _verdict(evidence, [0, 1], Goal("eod", min_performance=0.6, allow_worse=True))
    assert (verdict.step, verdict.met) == (0, True)
    assert note_of(verdict.why, "nothing_to_repair").numbers["rows"] == len(evidence.y)


def test_levelling_up_rules_out_steps_that_take_from_a_group_and_names_what_excludes_what():
    taking, giving = (0.2, 0.7, 0.2, 0.7), (0.2, 0.8, 0.2, 0.72)
    assert _choose(Goal("eod", min_performance=0.6, allow_worse=True), taking, giving).step == 10
    assert _choose(Goal("eod", min_performance=0.6, keep={"tpr": "before"}), taking, giving).step == 20
    assert _choose(Goal("eod", min_performance=0.6, keep={"tpr": 0.75}), taking, giving).step == 0
    generous = (0.9, 0.99, 0.9, 0.99)
    excluded = _choose(Goal("eod", min_performance=0.7, keep={"tpr": 0.9}), taking, generous)
    assert not excluded.met
    both = note_of(excluded.why, "none_surely").numbers
    assert both["enough"] > 0
    assert both["kept"] > 0
    assert both["keep"] == {"tpr": 0.9}


def test_a_gap_that_may_be_chance_is_removed_by_no_rule_that_needs_the_group():
    women = [0.8 - 0.1 * (1 - share) for share in np.linspace(0, 1, 21)]
    steps = _steps(*((0.2, 0.8, 0.2, rate) for rate in women), n=400)  # 100 of either: a gap of 1.6 standard errors
    goal = Goal("eod", min_performance=0.6, allow_worse=True, selection="honest")
    places = {least > 1: choose_step([replace(steps, goal=goal)], range(21), least).at for least in (0.5, 3.0)}
    assert places[True] == 0
    assert places[False] >= 15
    many = _steps(*((0.2, 0.8, 0.2, rate) for rate in women), n=40_000)
    assert [choose_step([replace(many, goal=goal)], range(21), needs).at for needs in (False, True)] == [20, 20]


def test_a_threshold_for_everybody_is_moved_only_for_a_gap_of_a_standard_error():
    small = _steps((0.2, 0.8, 0.2, 0.77), (0.2, 0.8, 0.2, 0.8), n=400)  # 100 of either: a gap of about half a standard error
    goal, least = Goal("eod", min_performance=0.6, allow_worse=True, selection="honest"), METHODS["single-threshold"].least_gap
    assert choose_step([replace(small, goal=goal)], (0, 1), 0.4).at == 1
    kept = choose_step([replace(small, goal=goal)], (0, 1), least)
    assert kept.at == 0
    assert note_of(kept.why[0], "nothing_to_repair").numbers["rows"] == 400
    large = _steps((0.2, 0.8, 0.2, 0.7), (0.2, 0.8, 0.2, 0.8), n=400)
    assert choose_step([replace(large, goal=goal)], (0, 1), least).at == 1
    assert [METHODS[name].least_gap for name in ("bias-score", "group-thresholds")] == [0.5, 3.0]
