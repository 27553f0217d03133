"""The explorer's data: thinning keeps every step that some goal would choose."""

import json

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.measures import upper_bound
from equipoise.methods import Goal, select
from equipoise.report.explorer import explorer_data, selectable, thin
from support.cases import small_case
from support.goals import paper_goal


@st.composite
def traces(draw) -> pd.DataFrame:
    rows = draw(st.integers(1, 40))
    rng = np.random.default_rng(draw(st.integers(0, 10_000)))
    digits = draw(st.integers(1, 3))
    frame = pd.DataFrame({"step": range(rows), "gap": rng.normal(0, 0.3, rows), "performance": rng.uniform(0.4, 1, rows)})
    return frame.round(digits).assign(threshold=0.5)


def _goals(trace: pd.DataFrame) -> list[Goal]:
    """Every goal that can make a difference: the values of the trace, and just beyond them."""
    floors = np.clip([v + d for v in trace["performance"] for d in (-1e-6, 0, 1e-6)], 0, 1)
    bounds = np.clip([abs(v) + d for v in trace["gap"] for d in (-1e-6, 0, 1e-6)], 0, 1)
    return (
        [paper_goal(min_performance=float(f)) for f in floors]
        + [paper_goal(max_gap=float(b)) for b in bounds]
        + [paper_goal(min_performance=0.7, max_gap=0.1)]
    )


@given(traces())
def test_the_selectable_rows_are_exactly_those_that_a_goal_chooses(trace: pd.DataFrame):
    assert set(selectable(trace)) == {select(trace, goal).row for goal in _goals(trace)}


@given(traces(), st.integers(1, 8))
def test_a_thinned_trace_gives_the_same_choices(trace: pd.DataFrame, shown: int):
    kept, _ = thin(trace, len(trace) - 1, shown)
    assert len(trace) - 1 in kept
    for goal in _goals(trace):
        whole, part = select(trace, goal), select(trace.iloc[kept], goal)
        assert (kept[part.row], part.met) == (whole.row, whole.met)


def test_a_long_trace_is_thinned_to_what_can_be_seen():
    rng = np.random.default_rng(0)
    trace = pd.DataFrame({"step": range(20_000), "gap": rng.normal(0, 0.2, 20_000), "performance": rng.uniform(0.5, 0.9, 20_000)})
    kept, drawn = thin(trace, 7, shown=100)
    assert drawn.sum() < 250
    assert 7 in kept[drawn]
    assert set(selectable(trace)) <= set(kept)


def test_a_front_of_every_step_stays_whole_but_is_not_all_drawn():
    falling = np.linspace(0.3, 0, 5000)
    trace = pd.DataFrame({"step": range(5000), "gap": falling, "performance": 0.6 + falling})
    kept, drawn = thin(trace, 10, shown=100)
    assert len(kept) == 5000
    assert drawn.sum() <= 201


def test_steps_without_a_gap_are_left_out():
    trace = pd.DataFrame({"step": [0, 1], "gap": [np.nan, 0.1], "performance": [0.9, 0.8], "threshold": 0.5})
    assert thin(trace, 1)[0].tolist() == [1]


def test_the_data_are_plain_and_the_chosen_point_is_the_candidates():
    case = small_case(steps=700)
    data = json.loads(json.dumps(explorer_data(case, "balanced accuracy"), allow_nan=False))
    for method, repair in zip(data["methods"], case.candidates, strict=True):
        row = repair.candidate.trace.iloc[repair.candidate.chosen]
        at = method["chosen"]
        assert (method["steps"][at], method["gap"][at], method["performance"][at]) == (row["step"], row["gap"], row["performance"])
        assert method["total"] == len(repair.candidate.trace)
        goal = case.goal
        met = row["performance"] >= (goal.min_performance or 0) and abs(row["gap"]) <= (1 if goal.max_gap is None else goal.max_gap)
        assert method["met"] == met  # of the values that are shown, not of those a step was chosen by
    assert [m["own_rule"] for m in data["methods"]][:2] == [False, False]
    assert [m["result"] for m in data["methods"]] == [True, False, False, False]


def test_the_line_is_that_of_the_validation_scores_as_they_came_and_reaches_the_last_point():
    case = small_case(steps=700)
    data = json.loads(json.dumps(explorer_data(case, "balanced accuracy"), allow_nan=False))
    scores, goal = case.original.valid, case.result.candidate.goal

    def best(gaps: list[float]) -> np.ndarray:
        codes, levels = scores.attribute.codes, scores.attribute.levels
        return upper_bound(scores.score, scores.y, codes, levels, goal.measure, goal.performance, np.abs(gaps))

    line = data["limit"]
    assert line["performance"] == pytest.approx(best(line["gap"]), abs=1e-6)
    assert line["gap"][0] == 0
    assert line["gap"][-1] > max(abs(gap) for method in data["methods"] for gap in method["gap"])
    for method in data["methods"]:
        assert method["limit"] == pytest.approx(best(method["gap"]), abs=1e-6)


def test_f1_has_no_line():
    data = explorer_data(small_case(goal=paper_goal("eod", "f1", min_performance=0.4)), "F1")
    assert data["limit"] is None
    assert {method["limit"] for method in data["methods"]} == {None}
