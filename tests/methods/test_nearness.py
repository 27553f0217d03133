"""Which demands of a goal stand against each other, from a trace that can be checked by eye."""

import pandas as pd
import pytest
from torch import nn

from equipoise.measures import Threshold
from equipoise.methods import Goal, LabelCandidate
from equipoise.methods.choosing import nearness
from equipoise.report.wording.notes import note_words
from support.goals import paper_goal


def _near(goal: Goal, chosen: int = 0, **columns: list[float]) -> str:
    trace = pd.DataFrame({"step": range(len(columns["gap"])), "threshold": 0.5, **columns})
    found = nearness(LabelCandidate("test", nn.Identity(), Threshold(0.5), trace, chosen, (), False, goal, 0), goal)
    return "" if found is None else note_words(found)


GAPS, PERFORMANCE = [-0.20, 0.10, 0.04], [0.80, 0.75, 0.60]


def test_demands_that_some_steps_have_but_none_together():
    assert _near(paper_goal("eod", min_performance=0.7, max_gap=0.05), gap=GAPS, performance=PERFORMANCE) == (
        "of 3 steps 2 have balanced accuracy >= 0.7, 1 has |eod| <= 0.05, but none meets the whole goal; "
        "the nearest: balanced accuracy 0.750, |eod| 0.100 or balanced accuracy 0.600, |eod| 0.040"
    )


def test_a_demand_that_no_step_has():
    assert _near(paper_goal("eod", min_performance=0.9, max_gap=0.05), gap=GAPS, performance=PERFORMANCE) == (
        "of 3 steps none has balanced accuracy >= 0.9, 1 has |eod| <= 0.05; "
        "the nearest: balanced accuracy 0.800, |eod| 0.200 or balanced accuracy 0.600, |eod| 0.040"
    )
    assert (
        _near(paper_goal("eod", max_gap=0.01), gap=GAPS, performance=PERFORMANCE)
        == "of 3 steps none has |eod| <= 0.01; the nearest: |eod| 0.040"
    )


def test_rates_that_are_kept_are_a_demand_as_well():
    goal = paper_goal("eod", min_performance=0.7, keep={"tpr": "before", "fpr": 0.1})
    assert _near(goal, chosen=2, gap=GAPS, performance=PERFORMANCE, spare=[-0.1, -0.03, 0.0]) == (
        "of 3 steps 2 have balanced accuracy >= 0.7, 1 has tpr as before, fpr >= 0.1 in every group, but none meets the whole goal; "
        "the nearest: balanced accuracy 0.750, a rate 0.030 too low or balanced accuracy 0.600, all rates kept"
    )


def test_honest_steps_are_judged_by_their_expected_gaps():
    columns = {"gap_honest": [-0.2, 0.05, None], "expected_gap": [0.2, 0.07, None], "performance_honest": [0.8, 0.7, None]}
    said = _near(Goal("eod", max_gap=0.06, selection="honest"), gap=GAPS, performance=PERFORMANCE, performance_se=[0.01] * 3, **columns)
    assert said == "of 2 steps none has expected |eod| <= 0.06; the nearest: |eod| about 0.070"


def test_a_step_without_a_value_is_not_near():
    said = _near(paper_goal("ppv_gap", max_gap=0.01), gap=[float("nan"), 0.3], performance=[0.5, 0.5])
    assert said == "of 2 steps none has |ppv_gap| <= 0.01; the nearest: |ppv_gap| 0.300"


@pytest.mark.parametrize("chosen", [0, 1])
def test_nothing_is_said_where_the_chosen_step_has_all_or_the_method_left_one_that_has(chosen: int):
    assert _near(paper_goal("eod", min_performance=0.7), chosen=chosen, gap=GAPS, performance=PERFORMANCE) == ""
    assert _near(paper_goal("eod", min_performance=0.7), chosen=2, gap=GAPS, performance=PERFORMANCE) == ""
