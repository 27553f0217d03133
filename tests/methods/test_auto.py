"""auto: the best of several methods, with the reasons; never a rule that needs the group unless that is allowed."""

from dataclasses import replace

import numpy as np
import pytest

from equipoise.data import Cohort
from equipoise.errors import BadInput, UnknownName
from equipoise.methods import METHODS, Note, choose_method, run_method
from equipoise.methods.auto import AutoSettings
from equipoise.models import predict
from support.facts import says
from support.goals import paper_goal
from support.networks import trained
from support.notes import note_of
from support.published import any_debias, debias

QUICK = {"bias-gda": {"epochs": 4, "learning_rate": 2e-3, "batch": 64}, "pruning": {"steps": 10}}
METHODS_TRIED = ("standard", "pruning", "bias-gda")


@pytest.fixture(scope="module")
def problem():
    return trained("mlp")


def _auto(problem, measure="spd", **options):
    model, parts = problem
    options = {"settings": QUICK, "methods": METHODS_TRIED, **options}
    return debias(model, parts.valid, method="auto", measure=measure, **options)


def test_it_takes_what_the_same_rule_takes_of_the_methods_alone(problem):
    model, parts = problem
    result = _auto(problem, min_performance=0.53)
    alone = {
        name: debias(model, parts.valid, method=name, measure="spd", min_performance=0.53, **QUICK.get(name, {})) for name in METHODS_TRIED
    }
    gaps = {name: abs(c.trace["gap"].iloc[c.chosen]) for name, c in alone.items() if c.met_in_sample}
    told = [note for note in result.notes if note.kind == "tried"]
    tried = [note.subject for note in told]
    assert result.ran == min((name for name in gaps if name in tried), key=gaps.get)
    assert [note.subject for note in told if note.numbers["taken"]] == [result.ran]
    assert result.met_in_sample
    assert result.method == "auto"
    assert abs(result.trace["gap"].iloc[result.chosen]) == gaps[result.ran]
    # What was not tried is said as well, with the reason.
    if len(tried) < len(METHODS_TRIED):
        assert any(note.kind == "not_tried" for note in result.notes)


def test_it_stops_once_the_goal_is_met_with_room(problem):
    easy = _auto(problem, max_gap=1.0)
    assert easy.ran == "standard"
    assert Note("not_tried", "standard", {"methods": ("pruning", "bias-gda")}) in easy.notes


def test_nothing_that_meets_the_goal_gives_the_nearest_and_the_list(problem):
    result = _auto(problem, min_performance=0.999)
    assert not result.met_in_sample
    head = note_of(result.why, "best_of_methods")
    assert (head.subject, head.numbers["tried"], head.numbers["met"]) == (result.ran, 3, False)
    reached = head.numbers["reached"]  # what each has
    assert list(reached) == list(METHODS_TRIED)
    best = max(own["performance"] for own in reached.values())
    assert result.trace["performance"].iloc[result.chosen] == pytest.approx(best)
    assert [note.subject for note in result.notes if note.kind == "tried"] == list(METHODS_TRIED)


def test_the_group_is_needed_only_where_that_is_allowed(problem):
    model, parts = problem
    plain = debias(model, parts.valid, method="auto", measure="spd", max_gap=0.01, settings=QUICK, allow_group=False)
    assert not plain.rule.needs_group
    assert not any(note.subject == "group-thresholds" for note in plain.notes)
    allowed = debias(model, parts.valid, method="auto", measure="spd", max_gap=0.01, settings=QUICK)
    assert allowed.rule.needs_group
    assert allowed.ran == "group-thresholds"
    with pytest.raises(BadInput, match="allow_group=True"):
        debias(model, parts.valid, method="auto", methods=("reject-option",), allow_group=False)
    with pytest.raises(UnknownName, match="'pruning'"):
        debias(model, parts.valid, method="auto", methods=("prunning",))


def test_cheap_methods_come_first_and_those_that_exist_alone():
    order = AutoSettings(allow_group=True).order()
    assert order[0] == "standard"
    assert set(order) <= set(METHODS)
    assert order.index("level-up") < order.index("bias-score") < order.index("group-thresholds") < order.index("constrained")
    assert "pruning" not in order  # many steps that few patients cannot tell apart; it is tried where it is named
    assert ("bias-score" in order) == ("bias-score" in METHODS)


def test_a_method_that_cannot_be_run_is_named_and_the_others_go_on(problem):
    result = _auto(problem, min_performance=0.53, settings={**QUICK, "pruning": {"layers": "nowhere"}})
    assert [note.subject for note in result.notes if note.kind == "could_not_run"] == ["pruning"]
    assert result.ran in ("standard", "bias-gda")


def test_a_network_without_a_gap_to_speak_of_stops_after_the_original():
    goal, ended = paper_goal("eod", max_gap=1.0), []
    cases = [trained("mlp", seed) for seed in range(3)]
    gaps = [abs(run_method("standard", m, p.valid, {"": goal}, seed=1).trace["gap"].iloc[0]) for m, p in cases]
    max_gap = 2 * sorted(gaps)[0] + 1e-6  # one original is within half of it
    for model, parts in cases:
        settings = {"settings": QUICK, "methods": METHODS_TRIED}
        found = run_method("auto", model, parts.valid, {"": paper_goal("eod", max_gap=max_gap)}, seed=1, settings=settings)
        ended.append(any((note.kind, note.subject) == ("not_tried", "standard") for note in found.notes))
    assert ended[gaps.index(min(gaps))]
    assert not all(ended)


def test_honest_selection_goes_through_to_the_methods(problem):
    result = _auto(problem, min_performance=0.52, selection="honest", seed=3)
    assert "gap_honest" in result.trace
    assert result.goal.selection == "honest"


def test_where_nothing_meets_the_goal_one_that_keeps_the_rates_is_nearer_than_one_that_reaches_the_floor(problem):
    parts = problem[1]
    result = _auto(problem, min_performance=0.7, keep={"tpr": 0.99})
    assert not result.met_in_sample
    assert result.ran != "standard"  # whose tpr is far below, though it reaches the minimum performance
    decisions = result.rule.decide(predict(result.model, parts.valid))
    for group in ("M", "F"):
        assert decisions[(parts.valid.groups == group) & (parts.valid.y == 1)].mean() >= 0.99


def test_what_meets_the_goal_is_compared_by_the_goal_whatever_else_it_has(problem):
    model, parts = problem
    standard = debias(model, parts.valid, method="standard", measure="spd", min_performance=0.5).only
    near, far = (
        replace(standard, trace=standard.trace.assign(gap=gap, performance=performance)) for gap, performance in ((0.01, 0.52), (0.4, 0.47))
    )
    assert choose_method([[far], [near]]) == 1


def test_all_problems_of_a_method_that_cannot_be_run_are_told(problem):
    model, parts = problem
    groups = parts.valid.groups.astype(object)
    groups[np.flatnonzero((groups == "F") & (parts.valid.y == 0))[:20]] = "X"
    cohort = Cohort.from_arrays(parts.valid.inputs, parts.valid.y, groups, reference="M")
    result = debias(model, cohort, method="auto", measure="spd", min_performance=0.5, methods=("equalised-odds",), allow_group=True)
    [note] = [note.numbers["problem"] for note in result.notes if (note.kind, note.subject) == ("could_not_run", "equalised-odds")]
    assert says(note, "'X'", 0, 20, "'X' (0 positives)", "'F'")


def test_with_no_time_left_the_original_comes_back_and_what_was_not_tried_is_named(problem):
    result = _auto(problem, selection="honest", budget=1e-6)
    assert result.ran == "standard"
    late = {note.subject: note.numbers for note in result.notes if note.kind == "no_time"}
    assert set(late) == {"pruning", "bias-gda"}
    assert all(numbers["seconds"] > 0 and numbers["left"] == 0 for numbers in late.values())
    with pytest.raises(BadInput, match="budget"):
        _auto(problem, budget=0)


def test_fine_tuning_ends_with_the_steps_that_it_has_when_its_time_is_up(problem):
    model, parts = problem
    free, cut = (
        debias(model, parts.valid, method="pruning", measure="spd", min_performance=0.5, steps=10, budget=budget) for budget in (None, 1e-6)
    )
    assert len(cut.trace) == 2 < len(free.trace)
    assert [note.numbers["steps"] for note in cut.notes if note.kind == "cut_short"] == [1]
    assert not any(note.kind == "cut_short" for note in free.notes)
    np.testing.assert_array_equal(cut.trace["gap"], free.trace["gap"].iloc[:2])


def test_methods_are_compared_by_the_net_gain_of_their_steps(problem):
    model, parts = problem
    standard = debias(model, parts.valid, method="standard", measure="spd", min_performance=0.5, selection="honest").only

    def candidate(net: float, chosen: int = 1):
        return [replace(standard, chosen=chosen, expected=replace(standard.expected, net=net))]

    original, small, large = candidate(0.0, chosen=0), candidate(0.01), candidate(0.03)
    declined = candidate(0.5, chosen=0)  # a step that is beyond a limit
    assert choose_method([original, small, large, declined]) == 2
    assert choose_method([original, small, candidate(0.01)]) == 1  # the cheapest of equals
    assert choose_method([original, declined]) == 0
    assert choose_method([[*small, *original], [*large, *candidate(0.01)]]) == 1  # means of labels


def test_an_original_that_is_kept_names_the_best_step_that_was_declined(problem):
    result = _auto(problem, methods=("group-thresholds",), min_performance=0.999, max_gap=0.01, selection="honest")
    assert result.chosen == 0
    assert result.expected.lacks
    assert note_of(result.why, "declined").numbers["net"] == result.expected.net
    offered = {note.subject: note.numbers["expected"][""] for note in result.notes if note.kind == "tried"}
    assert offered["group-thresholds"]["net"] == result.expected.net


def test_the_default_repairs_without_a_setting_and_is_judged_without_a_test_set(problem):
    model, parts = problem
    result = any_debias(model, parts.valid, measure="spd", settings=QUICK)
    assert (result.method, result.goal.selection) == ("auto", "honest")
    assert result.outcome is not None
    assert result.held_out.after.shape == (len(parts.valid),)
    assert {note.kind for note in result.notes} >= {"tried", "cross_fitted"}
