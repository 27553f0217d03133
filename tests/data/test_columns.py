"""The columns of a user's frame: all problems in one error, each with its column and rows."""

import numpy as np
import pandas as pd
import pytest

from equipoise.data import Cohort, Scores
from equipoise.errors import BadInput
from support.facts import facts, says


def _frame(**replaced) -> pd.DataFrame:
    columns = {"y": [0, 1, 1, 0], "p": [0.1, 0.9, 0.4, 0.6], "sex": ["F", "F", "M", "M"], "pid": [1, 1, 2, 3], "id": ["a", "b", "c", "d"]}
    return pd.DataFrame(columns | replaced)


def _read(frame: pd.DataFrame, **names):
    return Scores.from_frame(frame, **({"label": "y", "group": "sex", "score": "p", "patient": "pid", "id": "id"} | names))


def _problems(frame: pd.DataFrame, **names) -> tuple[str, ...]:
    with pytest.raises(BadInput) as caught:
        _read(frame, **names)
    return caught.value.problems


def test_valid_columns_are_returned_as_arrays():
    found = _read(_frame(), reference="M")
    assert found.y.tolist() == [0, 1, 1, 0]
    assert found.score.tolist() == [0.1, 0.9, 0.4, 0.6]
    assert found.attributes[0].levels == ("M", "F")
    assert found.patients.tolist() == [1, 1, 2, 3]
    assert found.ids.tolist() == ["a", "b", "c", "d"]


def test_the_index_of_the_frame_is_ignored():
    found = _read(_frame().set_axis([7, 7, 7, 7]))
    assert found.y.tolist() == [0, 1, 1, 0]
    assert found.attributes[0].names.tolist() == ["F", "F", "M", "M"]
    assert says(_problems(_frame(y=[0, 5, 5, 1]).set_axis([7, 7, 7, 7]))[0], "'y'", 2, 4)


def test_a_missing_column_is_reported_with_the_closest_and_all_others():
    [problem] = _problems(_frame(), group="Sex")
    assert says(problem, "'Sex'", "'sex'", "y, p, sex, pid, id")


def test_many_columns_are_not_all_listed():
    wide = _frame().assign(**{f"x{i}": 0.0 for i in range(30)})
    problem = _problems(wide, label="label")[0]
    assert says(problem, "'label'", "x14", 15)
    assert not says(problem, "x15")


def test_all_problems_are_in_one_error():
    frame = _frame(y=[0, 1, 2, np.nan], p=[0.5, 1.5, None, 0.2], sex="F", pid=[1, 2, 3, None], id=["a", "a", "b", "c"])
    with pytest.raises(BadInput) as caught:
        Scores.from_frame(frame, label="y", group="sex", score="p", patient="pid", id="id", name="scores.csv")
    assert len(caught.value.problems) == 7
    assert says(caught.value, 7, "scores.csv")
    assert says(caught.value.problems[0], "'y'", 1, 4)


def test_one_column_has_one_role():
    [problem] = _problems(_frame(), group="y")
    assert says(problem, "'y'", "label", "group")
    assert says(_problems(_frame(), group=["sex", "sex"])[0], "'sex'", "group, group")
    assert _read(_frame(), patient="id").patients.tolist() == ["a", "b", "c", "d"]  # one row per patient


def test_a_repeated_column_is_an_error():
    frame = _frame()
    frame.columns = ["y", "p", "sex", "p", "id"]
    assert any(says(problem, "'p'", 2) for problem in _problems(frame, patient=None))


@pytest.mark.parametrize("values", [[0, 1, 1, 0], [0.0, 1.0, 1.0, 0.0], [False, True, True, False], ["0", "1", "1", "0"]])
def test_zeros_and_ones_of_any_type_are_labels(values):
    assert _read(_frame(y=values)).y.tolist() == [0, 1, 1, 0]


def test_other_labels_need_their_positive_value():
    words = _frame(y=["no", "yes", "yes", "no"])
    [problem] = _problems(words)
    assert says(problem, "'y'", "4 of 4", 2, "no, yes", "data.positive=yes", "positive='yes'")
    assert _read(words, positive="yes").y.tolist() == [0, 1, 1, 0]
    assert _read(_frame(y=[1.0, 2.0, 3.0, 1.0]), positive="2").y.tolist() == [0, 1, 0, 0]


def test_a_positive_value_that_never_occurs_is_an_error():
    [problem] = _problems(_frame(), positive="yes")
    assert says(problem, "'y'", "'yes'", 2, "0, 1")


@pytest.mark.parametrize(
    ("labels", "positive", "found"), [([1, 1, 1, 1], None, "only positives"), ([0] * 4, None, "only negatives"), (["a"] * 4, "a", "only")]
)
def test_a_constant_label_is_an_error(labels, positive, found):
    [problem] = _problems(_frame(y=labels), positive=positive)
    assert f"'y' holds {found}" in problem
    assert says(problem, 4)


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
        ([-3.0, 2.5, 0.0, 1.0], facts("p", "data.logits=true", "exp")),
        ([0.1, 1.2, 0.3, 0.4], facts("p", "probability")),
        ([0.1, 2.0, 0.3, 0.4], facts("p", 2, "probability")),  # a percentage would be larger
        ([0.1, np.inf, 0.3, 0.4], facts("p", "0.1", "inf", "probability")),
    ],
)
def test_bad_scores_are_reported_with_their_number_the_first_row_and_advice(scores, expected):
    with pytest.raises(BadInput, match=expected):
        _read(_frame(p=pd.Series(scores, dtype=object)))


def test_0_and_1_are_valid_scores():
    assert _read(_frame(p=[0, 1, 0, 1])).score.tolist() == [0.0, 1.0, 0.0, 1.0]


def test_a_patient_in_two_groups_is_refused_if_conflicts_are_errors():
    [problem] = _problems(_frame(pid=[1, 2, 2, 3]), conflicts="error")
    assert says(problem, "'pid'", "1 of 3", "'sex'", 2)


def test_an_attribute_missing_in_some_rows_of_a_patient_is_not_a_conflict():
    found = _read(_frame(sex=["F", None, "M", "M"]))
    assert found.attributes[0].names.tolist() == ["F", None, "M", "M"]


def test_up_to_five_repeated_ids_are_listed():
    [problem] = _problems(_frame(id=[7, 7, 8, 8]))
    assert says(problem, "'id'", 2, 4, "7, 8")
    many = pd.concat([_frame().assign(id=i, pid=range(4)) for i in range(6)])
    problem = _problems(many, patient=None)[0]
    assert says(problem, "'id'", 6, 24, "0, 1, 2, 3, 4")
    assert not says(problem, 5)


def test_each_group_needs_its_reference():
    frame = _frame(race=["a", "b", "a", "b"])
    with pytest.raises(BadInput, match=facts(2, 1, "M")):
        _read(frame, group=["sex", "race"], reference="M")
    found = _read(frame, group=["sex", "race"], reference=["M", "b"], patient=None)
    assert [a.reference for a in found.attributes] == ["M", "b"]


def test_no_rows_and_no_group_are_errors():
    assert _problems(_frame().iloc[:0], group=[]) == ("the table has no rows", "no group column was named (group=, --group)")


def test_long_values_are_shortened_in_messages():
    [problem] = _problems(_frame(y=["x" * 5000, "no", "no", "no"]))
    assert len(problem) < 500


def test_the_columns_are_listed_once_for_all_missing_ones():
    problems = _problems(_frame(), label="ill", group="Sex", patient="patients")
    assert [problem.split("'")[1] for problem in problems] == ["ill", "Sex", "patients"]
    assert sum("y, p, sex, pid, id" in problem for problem in problems) == 1
    assert "Did you mean 'sex'?" in problems[1]


def test_rows_without_a_label_are_counted_with_the_first_and_the_remedy():
    [problem] = _problems(_frame(y=[0, 1, None, 1]))
    assert says(problem, "'y'", 1, 4, "row 3", "leave those rows out")


@pytest.mark.parametrize("role", ["label", "group"])
@pytest.mark.parametrize("given", [pd.Series(["F", "M", "F", "M"]), [0, 1], np.array([1.5, 2.5])], ids=["Series", "list", "ndarray"])
def test_a_role_is_the_name_of_a_column_and_not_its_values(role: str, given: object):
    with pytest.raises(BadInput, match=facts(role, type(given).__name__)):
        Scores.from_frame(_frame(), **{"label": "y", "score": "p", "group": "sex", role: given})


def test_rows_are_described_with_their_patients_where_these_are_known():
    known, unknown = (repr(Scores.from_frame(_frame(), label="y", score="p", group="sex", patient=name)) for name in ("pid", None))
    assert says(known, "4 rows of 3 patients", "2 positive")
    assert says(unknown, "4 rows", "2 positive")
    assert "patients" not in unknown


def test_a_feature_that_the_frame_lacks_is_named_with_the_closest():
    frame = _frame(age=[40, 50, 60, 70])
    assert len(Cohort.from_frame(frame, label="y", group="sex", patient="pid", features=["age"])) == 4
    with pytest.raises(BadInput, match=facts("'aeg'", "'age'")):
        Cohort.from_frame(frame, label="y", group="sex", features=["aeg"])


@pytest.mark.parametrize(("others", "more"), [(15, None), (16, 1)])
def test_twenty_columns_are_all_listed(others: int, more: int | None):
    problem = _problems(_frame().assign(**{f"x{i}": 0.0 for i in range(others)}), label="label")[0]
    assert says(problem, "x14")
    assert says(problem, f"{more} more") if more else "more" not in problem


@pytest.mark.parametrize("repeated", [5, 6])
def test_dots_stand_for_the_ids_that_are_not_listed(repeated: int):
    frame = pd.concat([_frame()] * 6, ignore_index=True).assign(id=[k % 12 if k % 12 < repeated else 100 + k for k in range(24)])
    [problem] = _problems(frame, patient=None)
    assert says(problem, repeated, "0, 1, 2, 3, 4")
    assert ("..." in problem) == (repeated > 5)


def test_empty_identifiers_are_counted_in_the_words_of_their_role():
    [patient] = _problems(_frame(pid=[1, None, 2, 3]))
    assert says(patient, "'pid'", "1 of 4", "row 2", "no patient id")
    [own] = _problems(_frame(id=["a", "b", "c", " "]))
    assert says(own, "'id'", "1 of 4", "row 4", "no id")


def test_a_patient_who_is_a_number_in_some_rows_and_text_in_others_is_refused_with_its_id():
    [problem] = _problems(_frame(pid=pd.Series([7, "7", 8, 9], dtype=object)))
    assert says(problem, "'pid'", 7, "text", "dtype=str")
    assert not says(problem, 8)
    kept = _read(_frame(pid=pd.Series([7, "8", np.int64(9), np.float64(10)], dtype=object)))
    assert kept.patients.tolist() == [7, "8", 9, 10]
    large = float(2**60)
    [problem] = _problems(_frame(pid=pd.Series([7, "7", large, 9], dtype=object)))
    assert says(problem, "'pid'", large)  # an id that is not exact comes first: as text it may be another


def test_cells_with_several_values_are_refused_and_scalars_of_numpy_are_not():
    [problem] = _problems(_frame(pid=pd.Series([1, [1, 2], np.array([3]), 4], dtype=object)))
    assert says(problem, "'pid'", "2 of 4", "row 2")
    assert _read(_frame(y=pd.Series([np.int64(0), np.int64(1), np.int64(1), np.int64(0)], dtype=object))).y.tolist() == [0, 1, 1, 0]


def test_arrays_have_one_value_per_row_and_equal_lengths():
    with pytest.raises(BadInput, match=facts("score", "(2, 2)")):
        Scores.from_arrays([0, 1], np.full((2, 2), 0.5), ["F", "M"])
    with pytest.raises(BadInput, match=facts("2 in y", "3 in score")):
        Scores.from_arrays([0, 1], [0.5, 0.6, 0.7], ["F", "M"])
    assert Scores.from_arrays([0, 1], np.array([0.5, 0.6]), ["F", "M"]).score.tolist() == [0.5, 0.6]
