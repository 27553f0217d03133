"""The columns of a user's frame: every problem named with its column and its rows, all of them in one message."""

import numpy as np
import pandas as pd
import pytest

from equipoise.data import Roles, read_columns
from equipoise.errors import BadInput
from support.facts import facts


def _frame(**replaced) -> pd.DataFrame:
    columns = {"y": [0, 1, 1, 0], "p": [0.1, 0.9, 0.4, 0.6], "sex": ["F", "F", "M", "M"], "pid": [1, 1, 2, 3], "id": ["a", "b", "c", "d"]}
    return pd.DataFrame(columns | replaced)


def _read(frame: pd.DataFrame, **names):
    return read_columns(frame, Roles(**({"label": "y", "group": "sex", "score": "p", "patient": "pid", "id": "id"} | names)))


def _problems(frame: pd.DataFrame, **names) -> tuple[str, ...]:
    with pytest.raises(BadInput) as caught:
        _read(frame, **names)
    return caught.value.problems


def test_good_columns_come_back_as_arrays():
    found = _read(_frame(), reference="M")
    assert found.y.tolist() == [0, 1, 1, 0]
    assert found.score.tolist() == [0.1, 0.9, 0.4, 0.6]
    assert found.attributes[0].levels == ("M", "F")
    assert found.patients.tolist() == [1, 1, 2, 3]
    assert found.ids.tolist() == ["a", "b", "c", "d"]


def test_rows_are_taken_by_position_whatever_the_index():
    found = _read(_frame().set_axis([7, 7, 7, 7]))
    assert found.y.tolist() == [0, 1, 1, 0]
    assert found.attributes[0].names.tolist() == ["F", "F", "M", "M"]
    assert "2 of 4 rows" in _problems(_frame(y=[0, 5, 5, 1]).set_axis([7, 7, 7, 7]))[0]


def test_a_missing_column_names_the_closest_and_all_the_others():
    [problem] = _problems(_frame(), group="Sex")
    assert problem == "no column 'Sex'. Did you mean 'sex'? The columns are: y, p, sex, pid, id."


def test_many_columns_are_not_all_listed():
    wide = _frame().assign(**{f"x{i}": 0.0 for i in range(30)})
    assert _problems(wide, label="label")[0].endswith(", and 15 more.")


def test_every_problem_is_in_one_message():
    frame = _frame(y=[0, 1, 2, np.nan], p=[0.5, 1.5, None, 0.2], sex="F", pid=[1, 2, 3, None], id=["a", "a", "b", "c"])
    with pytest.raises(BadInput) as caught:
        read_columns(frame, Roles("y", "sex", score="p", patient="pid", id="id"), "scores.csv")
    assert len(caught.value.problems) == 7
    assert str(caught.value).startswith("7 problems in scores.csv:\n- label column 'y': 1 of 4 rows have no label")


def test_one_column_has_one_role():
    assert _problems(_frame(), group="y") == ("column 'y' is named for more than one thing: label, group. Give each a column of its own.",)
    assert "group, group" in _problems(_frame(), group=["sex", "sex"])[0]
    assert _read(_frame(), patient="id").patients.tolist() == ["a", "b", "c", "d"]  # a row a patient


def test_a_column_that_is_there_twice_is_an_error():
    frame = _frame()
    frame.columns = ["y", "p", "sex", "p", "id"]
    assert "column 'p' is there 2 times. Rename all but one." in _problems(frame, patient=None)


@pytest.mark.parametrize("values", [[0, 1, 1, 0], [0.0, 1.0, 1.0, 0.0], [False, True, True, False], ["0", "1", "1", "0"]])
def test_zeros_and_ones_of_any_type_are_labels(values):
    assert _read(_frame(y=values)).y.tolist() == [0, 1, 1, 0]


def test_other_labels_need_their_positive_value():
    words = _frame(y=["no", "yes", "yes", "no"])
    [problem] = _problems(words)
    assert "'y' must hold 0 and 1; 4 of 4 rows hold something else. It holds 2 different values: no, yes." in problem
    assert "--positive yes (in Python positive='yes')" in problem
    assert _read(words, positive="yes").y.tolist() == [0, 1, 1, 0]
    assert _read(_frame(y=[1.0, 2.0, 3.0, 1.0]), positive="2").y.tolist() == [0, 1, 0, 0]


def test_a_positive_value_that_never_occurs_is_an_error():
    [problem] = _problems(_frame(), positive="yes")
    assert "never holds the positive value 'yes'; it holds 2 different values: 0, 1" in problem


@pytest.mark.parametrize(
    ("labels", "positive", "found"), [([1, 1, 1, 1], None, "only positives"), ([0] * 4, None, "only negatives"), (["a"] * 4, "a", "only")]
)
def test_one_label_in_all_rows_is_an_error(labels, positive, found):
    [problem] = _problems(_frame(y=labels), positive=positive)
    assert f"'y' holds {found}" in problem
    assert "in all 4 rows" in problem


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([0.1, np.nan, 0.2, np.nan], facts("p", 2, 4, "row 2", "empty")),
        ([0.1, "high", 0.2, 0.3], facts("p", 1, 4, "row 2", "'high'")),
        (["12%", "90%", "5%", "1%"], facts("p", "percentages")),
        (["0,5", "0,1", "0,2", "1"], facts("p", "commas")),
        (
            [12.0, 90.0, 0.5, 100.0],
            facts("p", 3, 4, "0.5", 100, "percentages"),
        ),
        ([-3.0, 2.5, 0.0, 1.0], facts("p", "logits", "sigmoid")),
        ([0.1, 1.2, 0.3, 0.4], facts("p", "probability")),
        ([0.1, np.inf, 0.3, 0.4], facts("p", "0.1", "inf", "probability")),
    ],
)
def test_a_bad_score_says_how_many_rows_which_and_what_to_do(scores, expected):
    with pytest.raises(BadInput, match=expected):
        _read(_frame(p=pd.Series(scores, dtype=object)))


def test_the_ends_of_the_unit_interval_are_scores():
    assert _read(_frame(p=[0, 1, 0, 1])).score.tolist() == [0.0, 1.0, 0.0, 1.0]


def test_a_patient_with_two_values_of_the_attribute_is_refused_where_that_is_asked_for():
    [problem] = _problems(_frame(pid=[1, 2, 2, 3]), conflicts="error")
    assert problem.startswith("patient column 'pid': 1 of 3 patients have more than one 'sex': 2.")


def test_a_patient_whose_attribute_is_sometimes_missing_is_fine():
    found = _read(_frame(sex=["F", None, "M", "M"]))
    assert found.attributes[0].names.tolist() == ["F", None, "M", "M"]


def test_repeated_ids_are_listed_in_full_up_to_five():
    [problem] = _problems(_frame(id=[7, 7, 8, 8]))
    assert problem == "id column 'id': 2 ids occur more than once in 4 rows: 7, 8. Keep one row each."
    many = pd.concat([_frame().assign(id=i, pid=range(4)) for i in range(6)])
    assert "6 ids occur more than once in 24 rows: 0, 1, 2, 3, 4 ..." in _problems(many, patient=None)[0]


def test_each_group_needs_its_reference():
    frame = _frame(race=["a", "b", "a", "b"])
    with pytest.raises(BadInput, match=facts(2, 1, "M")):
        _read(frame, group=["sex", "race"], reference="M")
    found = _read(frame, group=["sex", "race"], reference=["M", "b"], patient=None)
    assert [a.reference for a in found.attributes] == ["M", "b"]


def test_no_rows_and_no_group_are_errors():
    assert _problems(_frame().iloc[:0], group=[]) == ("the table has no rows", "no group column was named")


def test_a_value_of_any_length_is_clipped_in_the_message():
    [problem] = _problems(_frame(y=["x" * 5000, "no", "no", "no"]))
    assert len(problem) < 500
