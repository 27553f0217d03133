"""Selection: the paper's rule, bounds, both, levelling up, and what happens when nothing will do."""

import numpy as np
import pandas as pd
import pytest

from equipoise.data import Attribute
from equipoise.errors import BadInput, EmptyCell, UnknownName
from equipoise.measures import Cells, at_threshold
from equipoise.methods import METHODS, Goal, select
from equipoise.methods.choosing import merit, missed_limits
from equipoise.methods.evaluation import RATE_NOISE, LabelResult, highest_threshold
from equipoise.models import predict
from support.facts import facts, says, suggests
from support.goals import paper_goal
from support.networks import trained
from support.published import debias


def _trace(gaps: list[float], performances: list[float]) -> pd.DataFrame:
    return pd.DataFrame({"step": range(len(gaps)), "gap": gaps, "performance": performances, "threshold": 0.5})


def test_the_papers_rule_is_the_smallest_gap_with_enough_performance():
    chosen = select(_trace([-0.3, 0.1, 0.01, -0.05], [0.8, 0.75, 0.6, 0.72]), paper_goal("spd", min_performance=0.7))
    assert (chosen.row, chosen.met) == (3, True)


def test_a_floor_that_nothing_reaches_gives_the_best_performance_and_says_so():
    chosen = select(_trace([-0.3, 0.0], [0.6, 0.55]), paper_goal("spd", min_performance=0.7))
    assert (chosen.row, chosen.met) == (0, False)
    assert (chosen.why[0].numbers["qualified"], chosen.why[0].numbers["min_performance"]) == (0, 0.7)


def test_a_bound_gives_the_best_performance_within_it():
    trace = _trace([-0.3, 0.04, 0.01], [0.8, 0.75, 0.7])
    assert select(trace, paper_goal("spd", max_gap=0.05)).row == 1
    missed = select(trace, paper_goal("spd", max_gap=0.001))
    assert (missed.row, missed.met) == (2, False)


def test_floor_and_bound_together_are_both_needed():
    trace = _trace([-0.3, 0.04, 0.01], [0.8, 0.75, 0.6])
    assert select(trace, paper_goal("spd", min_performance=0.7, max_gap=0.05)).met
    assert not select(trace, paper_goal("spd", min_performance=0.7, max_gap=0.02)).met


def test_a_goal_without_either_may_lose_two_hundredths():
    assert paper_goal("spd").settled(0.8).min_performance == pytest.approx(0.78)
    assert paper_goal("spd", min_performance=0.6).settled(0.8).min_performance == 0.6
    assert paper_goal("spd", max_gap=0.1).settled(0.8).min_performance is None


def test_a_goal_says_how_much_may_be_lost():
    goal = paper_goal("spd", max_loss=0.05)
    settled = goal.settled(0.8)
    assert (settled.min_performance, settled.max_loss) == (pytest.approx(0.75), None)
    assert settled.settled(0.6) == settled
    assert paper_goal("spd", max_loss=0).settled(0.8).min_performance == 0.8
    assert paper_goal("spd", max_loss=0.5).settled(0.3).min_performance == 0
    assert says(str(goal), "|spd|", "balanced_accuracy", 0.05)
    with pytest.raises(BadInput, match=facts("max_loss", -1)):
        paper_goal(max_loss=-1)
    for limits in ({"min_performance": 0.7}, {"min_performance": 0.7, "max_gap": 0.1}):
        with pytest.raises(BadInput, match=facts("max_loss=0.02", "min_performance=0.7")):
            paper_goal(max_loss=0.02, **limits)


def test_a_maximum_gap_and_a_loss_go_together_and_only_the_published_goal_keeps_no_performance():
    both = paper_goal("spd", max_gap=0.05, max_loss=0.03).settled(0.8)
    assert (both.max_gap, both.min_performance) == (0.05, pytest.approx(0.77))
    assert paper_goal("spd", max_gap=0.05).settled(0.8).min_performance is None
    honest = Goal("spd", max_gap=0.05, selection="honest")
    assert honest.settled(0.8).min_performance == pytest.approx(0.78)
    inside = honest.for_steps()  # the method's own choice is in-sample, within the same limits
    assert (inside.selection, inside.settled(0.8).min_performance) == ("paper", pytest.approx(0.78))
    assert paper_goal("spd", max_gap=0.05).for_steps() == paper_goal("spd", max_gap=0.05)


@pytest.mark.parametrize(
    "goal", [paper_goal("spd", min_performance=0.6), paper_goal("spd", max_gap=0.1), paper_goal("spd", min_performance=0.95)]
)
def test_keeping_the_best_so_far_ends_where_selection_points(goal: Goal):
    rng = np.random.default_rng(0)
    for _ in range(50):
        gaps, performances = rng.normal(0, 0.2, 20), rng.uniform(0.5, 0.9, 20)
        best, kept = None, -1
        for k in range(20):
            now = merit([LabelResult(gaps[k], performances[k], 0.5)], [goal])
            if best is None or now > best:
                best, kept = now, k
        assert kept == select(_trace(list(gaps), list(performances)), goal).row


@pytest.mark.parametrize(
    "goal", [paper_goal("spd", min_performance=0.6, keep={"tpr": "before"}), paper_goal("spd", max_gap=0.1, keep={"tpr": "before"})]
)
def test_keeping_the_best_so_far_ends_where_selection_points_when_rates_are_kept(goal: Goal):
    rng = np.random.default_rng(0)
    for _ in range(50):
        gaps, performances = rng.normal(0, 0.2, 20), rng.uniform(0.5, 0.9, 20)
        spare = rng.normal(-0.1, 0.1, 20)
        best, kept = None, -1
        for k in range(20):
            now = merit([LabelResult(gaps[k], performances[k], 0.5, spare[k])], [goal])
            if best is None or now > best:
                best, kept = now, k
        trace = _trace(list(gaps), list(performances)).assign(spare=spare)
        chosen = select(trace, goal)
        assert kept == chosen.row
        enough = (spare >= 0) & ((performances >= 0.6) if goal.min_performance else (np.abs(gaps) <= 0.1))
        assert chosen.met == enough.any()
        if chosen.met:
            assert spare[chosen.row] >= 0


@pytest.mark.parametrize(("short", "kept"), [(0.0, True), (RATE_NOISE, True), (2 * RATE_NOISE, False)])
def test_a_rate_is_kept_up_to_the_tolerance(short: float, kept: bool):
    goal = paper_goal("eod", min_performance=0.6, keep={"tpr": "before"})
    assert select(_trace([0.1], [0.8]).assign(spare=[-short]), goal).met is kept
    result = LabelResult(0.1, 0.8, 0.5, -short)
    assert merit([result], [goal])[0] == 2 * kept
    assert (missed_limits(result, goal, goal) == ()) is kept


def test_a_performance_at_its_minimum_and_a_gap_at_its_maximum_lack_nothing():
    goal = paper_goal("eod", min_performance=0.75, max_gap=0.125)
    assert missed_limits(LabelResult(-0.125, 0.75, 0.5), goal, goal) == ()
    kinds = [note.kind for note in missed_limits(LabelResult(-0.126, 0.74, 0.5), goal, goal)]
    assert kinds == ["too_low", "too_large"]


def test_a_goal_without_limits_is_met_by_a_step_whose_gap_is_undefined():
    chosen = select(_trace([np.nan, np.nan], [0.7, 0.8]), paper_goal("spd"))
    assert (chosen.row, chosen.met) == (1, True)


def test_constraints_that_exclude_each_other_are_named():
    trace = _trace([-0.3, 0.1, 0.0], [0.8, 0.6, 0.6]).assign(spare=[-0.1, 0.1, 0.2])
    chosen = select(trace, paper_goal("eod", min_performance=0.7, keep={"tpr": 0.9}))
    assert (chosen.row, chosen.met) == (1, False)
    (why,) = chosen.why
    expected = {"by": "performance", "qualified": 0, "of": 3, "taken": 0.6, "min_performance": 0.7, "max_gap": None, "keep": {"tpr": 0.9}}
    assert {key: why.numbers[key] for key in expected} == expected


def test_what_counts_over_counts_make_of_a_limit_is_no_miss():
    third = 0.1 + 0.2  # a little more than 0.3
    trace = _trace([0.5, third], [0.9, 0.8])
    for goal in (
        paper_goal("spd", max_gap=0.3),
        paper_goal("spd", max_gap=0.3, min_performance=0.5),
        paper_goal("spd", min_performance=0.8 + 1e-12),
    ):
        chosen = select(trace, goal)
        assert chosen.met
        first, second = (LabelResult(trace["gap"].iloc[k], trace["performance"].iloc[k], 0.5) for k in (0, 1))
        assert (merit([second], [goal]) > merit([first], [goal])) == (chosen.row == 1)
    (why,) = select(trace, paper_goal("spd", max_gap=0.3)).why
    assert (why.numbers["by"], why.numbers["qualified"], why.numbers["max_gap"]) == ("performance", 1, 0.3)
    assert not select(trace, paper_goal("spd", max_gap=0.2999)).met


def test_goals_that_make_no_sense_are_refused_all_at_once():
    with pytest.raises(BadInput, match=facts(2, "max_gap", 80, "tpr")):
        paper_goal(max_gap=2, keep={"tpr": 80})
    with pytest.raises(UnknownName, match=suggests("tpr")):
        paper_goal(keep={"trp": 0.8})
    with pytest.raises(UnknownName, match=suggests("honest")):
        Goal(selection="onest")
    asked = {"tpr": "before"}
    goal = paper_goal(keep=asked)
    asked["fpr"] = 0.1
    assert goal.keep == {"tpr": "before"}
    assert hash(goal) == hash(paper_goal(keep={"tpr": "before"}))


def test_the_highest_threshold_that_keeps_rates_is_exact():
    rng = np.random.default_rng(0)
    for _ in range(20):
        scores, y, codes = np.round(rng.random(60), 1), rng.integers(0, 2, 60), rng.integers(0, 2, 60)
        least, fine = rng.random(4), []
        found = highest_threshold({"tpr": 0.0, "selection": 0.0}, scores, y, Attribute("sex", ("M", "F"), codes), least)
        for cut in np.unique(scores):
            decided = scores >= cut
            rates = [decided[(codes == g) & (y == 1)].mean() for g in (0, 1)] + [decided[codes == g].mean() for g in (0, 1)]
            fine += [cut] if (np.array(rates) >= least - 1e-9).all() else []
        assert found == max(fine)


LEVEL_UP = {
    "bias-gda": {"epochs": 6, "learning_rate": 2e-3, "batch": 64},
    "pruning": {"steps": 10},
    "random": {"trials": 10},
    "adversarial-finetune": {"epochs": 2, "critic_steps": 3, "actor_steps": 3},
    "adversarial-training": {"epochs": 2},
    "auto": {"methods": ("pruning",), "settings": {"pruning": {"steps": 10}}},
}


@pytest.fixture(scope="module")
def problem():
    return trained("mlp")


@pytest.mark.parametrize("asked", [{"tpr": "before"}, {"tpr": 0.7}], ids=str)
@pytest.mark.parametrize("method", METHODS)
def test_a_goal_that_was_met_levels_up_whatever_the_method(method: str, asked, problem):
    model, parts = problem
    train = {"train": parts.train} if METHODS[method].needs_train else {}
    settings = LEVEL_UP.get(method, {})
    result = debias(model, parts.valid, method=method, measure="spd", min_performance=0.52, keep=asked, seed=2, **train, **settings)
    valid = parts.valid

    def tpr(network, decide):
        scores = predict(network, valid)
        return Cells.of(decide(scores), scores.y, scores.attribute).rate("tpr")

    before = tpr(model, lambda scores: at_threshold(scores.score, result.trace["threshold"].iloc[0]))
    after = tpr(result.model, result.rule.decide)
    least = before if asked["tpr"] == "before" else np.full(2, 0.7)
    if result.met_in_sample:
        assert (after >= least - 1e-6).all()
    else:
        assert any(note.subject == "tpr" or "tpr" in note.numbers.get("keep", {}) for note in result.why)
    assert result.goal.keep == asked


def test_levelling_up_is_possible_here_and_changes_what_is_chosen(problem):
    model, parts = problem
    plain, up = (
        debias(model, parts.valid, method="pruning", measure="spd", min_performance=0.52, keep=keep, steps=10)
        for keep in ({}, {"tpr": "before"})
    )
    assert up.met_in_sample
    assert up.chosen > 0
    assert "spare" in up.trace
    assert "spare" not in plain.trace
    assert up.trace["spare"].iloc[up.chosen] >= 0


@pytest.mark.parametrize("method", METHODS)
def test_what_may_be_lost_is_each_methods_floor(method: str, problem):
    model, parts = problem
    train = {"train": parts.train} if METHODS[method].needs_train else {}
    result = debias(model, parts.valid, method=method, measure="spd", max_loss=0.1, seed=2, **train, **LEVEL_UP.get(method, {}))
    if result.goal.min_performance is None:  # these keep to a maximum gap of their own
        own = METHODS[method]
        assert own.within([result.goal], own.settings(**result.settings)) is not None
    else:
        assert result.goal.min_performance == pytest.approx(result.trace["performance"].iloc[0] - 0.1)


def test_a_rate_that_a_group_cannot_have_is_an_error(problem):
    model, parts = problem
    lone = parts.valid.take((parts.valid.groups == "M") | (parts.valid.y == 0))
    with pytest.raises(EmptyCell, match=facts("F")):
        debias(model, lone, method="pruning", measure="spd", keep={"tpr": "before"})
