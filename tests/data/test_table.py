"""Tables as inputs: levels and scales are learned only from the rows that the encoder was fitted to."""

import numpy as np
import pandas as pd
import pytest
import torch

from equipoise.data import Encoder, FeatureTable
from equipoise.errors import BadInput
from support.facts import facts

TRAIN = pd.DataFrame({"age": [30.0, 50.0], "ward": ["a", "b"], "smokes": [True, False]})


def test_columns_stay_in_order_with_one_column_per_level():
    assert Encoder.fit(TRAIN).columns == ("age", "ward=a", "ward=b", "smokes")


def test_numbers_become_z_scores_of_the_fitted_rows():
    encoder = Encoder.fit(TRAIN[["age"]])
    assert encoder.transform(pd.DataFrame({"age": [30, 40, 70]})).tolist() == [[-1.0], [0.0], [3.0]]


def test_without_scaling_numbers_are_unchanged():
    assert Encoder.fit(TRAIN[["age"]], scale=False).transform(TRAIN).tolist() == [[30.0], [50.0]]


def test_a_constant_column_is_zero_and_not_nan():
    assert Encoder.fit(pd.DataFrame({"x": [5, 5]})).transform(pd.DataFrame({"x": [5, 6]})).tolist() == [[0.0], [1.0]]


def test_a_missing_number_is_the_mean_of_the_fitted_rows():
    encoder = Encoder.fit(pd.DataFrame({"age": [30, 50, None]}))
    assert encoder.transform(pd.DataFrame({"age": [None, 50.0]})).tolist() == [[0.0], [1.0]]


def test_a_missing_category_is_a_separate_level():
    encoder = Encoder.fit(pd.DataFrame({"ward": ["a", None]}))
    assert encoder.columns == ("ward=(missing)", "ward=a")
    assert encoder.transform(pd.DataFrame({"ward": [np.nan, "a"]})).tolist() == [[1.0, 0.0], [0.0, 1.0]]


def test_an_unseen_level_is_all_zeros_and_reported_with_its_number_of_rows():
    encoder = Encoder.fit(TRAIN)
    new = pd.DataFrame({"age": [40, 40, 40], "ward": ["c", "c", "a"], "smokes": [True] * 3})
    assert encoder.transform(new)[:, 1:3].tolist() == [[0, 0], [0, 0], [1, 0]]
    assert encoder.unseen(new) == {"ward": {"c": 2}}
    assert encoder.unseen(TRAIN) == {}


def test_inputs_are_float32_and_rows_are_kept():
    encoded = Encoder.fit(TRAIN).transform(TRAIN)
    assert encoded.dtype == torch.float32
    assert encoded.shape == (2, 4)


def test_other_columns_are_ignored_and_missing_ones_are_reported():
    encoder = Encoder.fit(TRAIN)
    assert torch.equal(encoder.transform(TRAIN.assign(extra=1)[["extra", "smokes", "ward", "age"]]), encoder.transform(TRAIN))
    with pytest.raises(BadInput, match=facts("age", "ward")):
        encoder.transform(TRAIN[["smokes"]])


def test_text_or_infinity_in_a_numeric_column_is_reported():
    encoder = Encoder.fit(TRAIN)
    with pytest.raises(BadInput, match=facts("age")):
        encoder.transform(TRAIN.assign(age=["old", "young"]))
    with pytest.raises(BadInput, match=facts("age", 1, 2)):
        encoder.transform(TRAIN.assign(age=[np.inf, 1.0]))


def test_columns_that_cannot_be_inputs_are_in_one_error():
    frame = pd.DataFrame(
        {
            "born": pd.to_datetime(["1950-01-01"] * 60),
            "name": [f"patient {i}" for i in range(60)],
            "dose": np.inf,
            "empty": np.nan,
            "fine": 1.0,
        }
    )
    with pytest.raises(BadInput) as caught:
        Encoder.fit(frame)
    assert len(caught.value.problems) == 4
    for column, expected in (("born", "dates"), ("name", "60 different texts in 60 rows"), ("dose", "infinite"), ("empty", "none at all")):
        assert any(f"'{column}'" in problem and expected in problem for problem in caught.value.problems)


def test_a_table_without_an_encoder_is_fitted_to_its_rows():
    table = FeatureTable(TRAIN[["age"]])
    assert table.tensor().tolist() == [[-1.0], [1.0]]
    elsewhere = Encoder.fit(pd.DataFrame({"age": [0.0, 20.0]}))
    assert table.encoded_by(elsewhere).tensor().tolist() == [[2.0], [4.0]]
    assert table.encoded_by(elsewhere).take(np.array([1])).tensor().tolist() == [[4.0]]
