"""Cohorts from frames and arrays: inputs, columns that are never inputs, and errors."""

import numpy as np
import pandas as pd
import pytest
import torch

from equipoise.data import Cohort, Encoder, Scores
from equipoise.errors import BadInput
from support.facts import facts, says


def _frame() -> pd.DataFrame:
    return pd.DataFrame(
        {"age": [30, 50, 40, 60], "ward": ["a", "b", "a", "b"], "sex": ["F", "F", "M", "M"], "sick": [0, 1, 1, 0], "pid": [9, 9, 8, 7]}
    )


def _cohort(**names) -> Cohort:
    return Cohort.from_frame(_frame(), **({"label": "sick", "group": "sex", "reference": "M", "patient": "pid"} | names))


def test_the_features_are_the_columns_that_have_no_other_role():
    cohort = _cohort()
    assert cohort.encoder.columns == ("age", "ward=a", "ward=b")
    assert cohort.inputs.shape == (4, 3)
    assert cohort.y.tolist() == [0, 1, 1, 0]
    assert cohort.groups.tolist() == ["F", "F", "M", "M"]
    assert cohort.patients.tolist() == [9, 9, 8, 7]


def test_the_attribute_is_an_input_only_on_request():
    assert _cohort(attribute_as_input=True).encoder.columns == ("age", "ward=a", "ward=b", "sex=F", "sex=M")
    assert _cohort(features=["sex"]).encoder.columns == ("sex=F", "sex=M")


def test_features_keep_the_listed_order():
    assert _cohort(features=["ward", "age"]).encoder.order == ("ward", "age")


def test_numbers_pass_through_without_scaling():
    assert _cohort(features=["age"], scale=False).inputs[:, 0].tolist() == [30, 50, 40, 60]


def test_the_frame_is_not_changed_and_later_changes_have_no_effect():
    frame = _frame()
    cohort = Cohort.from_frame(frame, label="sick", group="sex", features=["age"], scale=False)
    frame["age"] = 0
    assert cohort.inputs[:, 0].tolist() == [30, 50, 40, 60]


def test_problems_of_features_and_columns_are_in_one_error():
    with pytest.raises(BadInput) as caught:
        _cohort(label="ill", features=["agee", "ward"], name="ward.csv")
    assert says(caught.value, 2, "ward.csv")
    label, feature = caught.value.problems
    assert says(label, "'ill'")
    assert says(feature, "'agee'", "'age'")


def test_a_frame_without_features_is_an_error():
    with pytest.raises(BadInput, match=facts("sex", "sick", "feature")):
        Cohort.from_frame(_frame()[["sex", "sick"]], label="sick", group="sex")


def test_arrays_make_a_cohort():
    cohort = Cohort.from_arrays(torch.zeros(3, 2), [0, 1, 0], ["F", "M", "M"], reference="M", patients=["p", "q", "q"])
    assert (len(cohort), cohort.attribute.reference, cohort.encoder) == (3, "M", None)
    assert cohort.patients.tolist() == ["p", "q", "q"]
    assert cohort.ids.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("inputs", "y", "groups", "expected"),
    [
        (np.zeros((2, 1)), [0, 1, 0], ["F", "M", "M"], facts("inputs", 2, "y", 3)),
        (np.zeros((3, 1)), [0, 1, 0], ["F", "M"], facts("group", 2, "y", 3)),
    ],
)
def test_arrays_of_different_lengths_are_refused(inputs, y, groups, expected):
    with pytest.raises(BadInput, match=expected):
        Cohort.from_arrays(inputs, y, groups)


@pytest.mark.parametrize("index", [[3, 0], np.array([True, False, False, True])])
def test_take_selects_the_same_rows_of_every_field(index):
    part = _cohort(features=["age"], scale=False).take(index, "part")
    rows = np.arange(4)[np.asarray(index)]
    assert part.name == "part"
    assert part.inputs[:, 0].tolist() == _frame()["age"].iloc[rows].tolist()
    assert part.y.tolist() == _frame()["sick"].iloc[rows].tolist()
    assert part.groups.tolist() == _frame()["sex"].iloc[rows].tolist()
    assert part.patients.tolist() == _frame()["pid"].iloc[rows].tolist()
    assert part.ids.tolist() == rows.tolist()


def test_several_attributes_are_audited_by_their_intersection():
    cohort = _cohort(group=["sex", "ward"], reference=["M", "a"], patient=None)
    assert [a.name for a in cohort.attributes] == ["sex", "ward"]
    assert cohort.groups.tolist() == ["F & a", "F & b", "M & a", "M & b"]


def test_new_rows_are_encoded_by_the_encoder_of_the_training_set():
    encoder = Encoder.fit(pd.DataFrame({"age": [0.0, 20.0]}))
    assert _cohort(features=["age"]).encoded_by(encoder).inputs[:, 0].tolist() == [2, 4, 3, 5]
    with pytest.raises(BadInput, match=facts("arrays", "tensor")):
        Cohort.from_arrays(torch.zeros(2, 1), [0, 1], ["F", "M"]).encoded_by(encoder)


def test_scores_of_a_cohort_have_its_rows():
    scores = Scores.of(_cohort(), [0.1, 0.2, 0.3, 0.4])
    assert scores.score.tolist() == [0.1, 0.2, 0.3, 0.4]
    assert scores.groups.tolist() == ["F", "F", "M", "M"]
    assert scores.patients.tolist() == [9, 9, 8, 7]


@pytest.mark.parametrize(("values", "expected"), [([0.1], facts(1, "scores", 4)), ([0.1, 2.0, np.nan, 0.3], facts(2, 4, "scores", "NaN"))])
def test_scores_that_do_not_fit_the_cohort_are_refused(values, expected):
    with pytest.raises(BadInput, match=expected):
        Scores.of(_cohort(), values)


@pytest.mark.parametrize("features", [["a", "b", "a"], None])
def test_a_repeated_feature_is_refused(features):
    frame = pd.DataFrame({"a": [0.0, 1, 2, 3], "b": [0.0, 1, 2, 3], "y": [0, 1] * 2, "sex": ["F", "F", "M", "M"]})
    frame = frame if features else pd.concat([frame, frame[["a"]]], axis=1)
    with pytest.raises(BadInput, match="'a'"):
        Cohort.from_frame(frame, label="y", group="sex", features=features)


@pytest.mark.parametrize("column", ["y", "w"])
def test_the_label_and_the_weight_are_refused_as_inputs(column):
    frame = pd.DataFrame({"y": [0, 1, 0, 1], "sex": list("FMFM"), "a": [0.1, 0.2, 0.3, 0.4], "w": [1.0, 2.0, 1.0, 2.0]})
    with pytest.raises(BadInput, match=f"feature column '{column}'"):
        Cohort.from_frame(frame, label="y", group="sex", weight="w", features=["a", column])
