"""Several labels and classes in frames and arrays."""

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from equipoise.data import Cohort, Scores, split
from equipoise.data.column_values import equals
from equipoise.errors import BadInput
from equipoise.models import train
from support.facts import facts, says, suggests

FRAME = pd.DataFrame(
    {
        "age": [41, 70, 55, 33, 61, 29],
        "sex": ["F", "M", "M", "F", "F", "M"],
        "Effusion": [1, 0, np.nan, 0, 1, 0],
        "Mass": [0, -1, 1, 0, 0, 1],
        "diagnosis": ["none", "effusion", "none", None, "mass", "effusion"],
    }
)


def labels(frame: pd.DataFrame = FRAME, **roles: object) -> Cohort:
    return Cohort.from_frame(frame, label=["Effusion", "Mass"], group="sex", features=["age"], **roles)


def test_unknown_labels_are_minus_one_and_y_is_positive_if_any_label_is():
    cohort = labels()
    assert cohort.targets.tolist() == [[1, 0], [0, -1], [-1, 1], [0, 0], [1, 0], [0, 1]]
    assert cohort.y.tolist() == [1, 0, 1, 0, 1, 1]
    assert (cohort.labels, cohort.kind) == (("Effusion", "Mass"), "labels")


def test_labelled_selects_the_rows_where_one_label_is_known():
    effusion = labels().labelled("Effusion")
    assert effusion.y.tolist() == [1, 0, 0, 1, 0]
    assert effusion.ids.tolist() == [0, 1, 3, 4, 5]
    assert not effusion.several
    with pytest.raises(BadInput, match=suggests("Effusion")):
        labels().labelled("effusions")
    with pytest.raises(BadInput, match="label"):
        effusion.labelled("Effusion")


@pytest.mark.parametrize("column", [FRAME["diagnosis"], FRAME["diagnosis"].map({"none": 0, "mass": 1, "effusion": 2})])
def test_classes_by_name_or_number_keep_the_given_order(column):
    frame = FRAME.assign(diagnosis=column)
    cohort = Cohort.from_frame(frame, label="diagnosis", classes=["none", "mass", "effusion"], group="sex", features=["age"])
    assert cohort.targets.tolist() == [[1, 0, 0], [0, 0, 1], [1, 0, 0], [-1, -1, -1], [0, 1, 0], [0, 0, 1]]
    assert cohort.y.tolist() == [0, 1, 0, 0, 1, 1]
    assert cohort.kind == "classes"
    assert cohort.labelled("effusion").y.tolist() == [0, 1, 0, 0, 1]


def test_arrays_give_the_same_targets_as_frames():
    x, y = torch.zeros(6, 2), labels().targets.astype(float)
    cohort = Cohort.from_arrays(x, np.where(y < 0, np.nan, y), FRAME["sex"], labels=["Effusion", "Mass"])
    assert np.array_equal(cohort.targets, labels().targets)
    rows = [torch.tensor(row) for row in y]
    assert np.array_equal(Cohort.from_arrays(x, rows, FRAME["sex"], labels=["Effusion", "Mass"]).targets, labels().targets)
    by_class = Cohort.from_arrays(x, FRAME["diagnosis"], FRAME["sex"], classes=["none", "mass", "effusion"])
    assert by_class.y.tolist() == [0, 1, 0, 0, 1, 1]
    with pytest.raises(BadInput, match=facts(3, "(n, 3)", "(6, 2)")):
        Cohort.from_arrays(x, y, FRAME["sex"], labels=["a", "b", "c"])
    with pytest.raises(BadInput, match=facts("labels=[")):
        Cohort.from_arrays(x, y, FRAME["sex"])
    with pytest.raises(BadInput, match=facts("labels", "classes")):
        Cohort.from_arrays(x, y, FRAME["sex"], labels=["a"], classes=["b"])


def test_targets_are_kept_by_split_hold_out_and_take():
    big = pd.concat([FRAME.assign(pid=np.arange(6) + 6 * k) for k in range(30)], ignore_index=True)
    cohort = labels(big, patient="pid")
    parts = split(cohort, seed=1)
    for part in (*parts, *cohort.hold_out()):
        assert part.labels == cohort.labels
        assert np.array_equal(part.targets, cohort.targets[part.ids.astype(int)])
    assert np.array_equal(cohort.take([3, 1]).targets, cohort.targets[[3, 1]])


def test_all_problems_of_labels_are_in_one_error():
    bad = FRAME.assign(Effusion=["yes"] * 6, Mass=[np.nan, 0, 0, 0, 0, 0])
    with pytest.raises(BadInput) as caught:
        labels(bad)
    text = str(caught.value)
    assert says(text, "'Effusion'", 0, 1)
    assert says(text, "'Mass'", 5)
    with pytest.raises(BadInput, match=suggests("Effusion")):
        Cohort.from_frame(FRAME, label=["Efusion", "Mass"], group="sex")
    with pytest.raises(BadInput, match=facts("label", "group")):
        Cohort.from_frame(FRAME, label=["sex", "Mass"], group="sex")
    with pytest.raises(BadInput, match=suggests("efusion")):
        Cohort.from_frame(FRAME, label="diagnosis", classes=["none", "mass", "efusion"], group="sex")
    with pytest.raises(BadInput, match="nodule"):
        Cohort.from_frame(FRAME, label="diagnosis", classes=["none", "mass", "effusion", "nodule"], group="sex")
    with pytest.raises(BadInput, match=facts("classes", "label")):
        Cohort.from_frame(FRAME, label=["Effusion", "Mass"], classes=["a", "b"], group="sex")


def test_the_error_for_a_column_of_classes_advises_to_name_them():
    with pytest.raises(BadInput, match=facts("argmax", "data.classes=effusion", "classes=['effusion', 'mass', 'none']")):
        Cohort.from_frame(FRAME.dropna(), label="diagnosis", group="sex")


def test_a_positive_value_may_be_named():
    frame = FRAME.assign(Effusion=["yes", "no", None, "no", "yes", "no"], Mass=["no", "no", "yes", None, "no", "yes"])
    assert labels(frame, positive="yes").targets.tolist() == [[1, 0], [0, 0], [-1, 1], [0, -1], [1, 0], [0, 1]]


def test_both_of_two_values_are_suggested_as_the_positive_one():
    frame = pd.DataFrame({"Erguss": ["ja", "nein"] * 4, "Geschlecht": ["F", "F", "M", "M"] * 2, "Score": 0.5})
    with pytest.raises(BadInput) as error:
        Scores.from_frame(frame, label="Erguss", score="Score", group="Geschlecht")
    assert "data.positive=ja or --set data.positive=nein" in str(error.value)


def test_images_may_have_several_labels(tmp_path):
    frame = FRAME.assign(image=[f"{k}.png" for k in range(6)])
    for k, name in enumerate(frame["image"]):
        if k != 2:
            Image.fromarray(np.full((8, 8), 40 * k, np.uint8)).save(tmp_path / name)
    (tmp_path / "2.png").write_bytes(b"no image")
    read = {"folder": tmp_path, "image": "image", "group": "sex", "size": 8, "skip_broken": True}
    cohort = Cohort.from_images(frame, label=["Effusion", "Mass"], **read)
    assert cohort.targets.tolist() == [[1, 0], [0, -1], [0, 0], [1, 0], [0, 1]]  # the broken one is left out
    by_class = Cohort.from_images(frame, label="diagnosis", classes=["none", "mass", "effusion"], **read)
    assert by_class.column("effusion").tolist() == [0, 1, -1, 0, 1]


def test_train_refuses_several_labels():
    frame = pd.DataFrame({"x": np.arange(80.0), "sex": list("FM") * 40, "a": [0, 1] * 40, "b": [0, 0, 1, 1] * 20})
    parts = split(Cohort.from_frame(frame, label=["a", "b"], group="sex", reference="M"), seed=0)
    with pytest.raises(BadInput, match=facts("a, b", "train")):
        train(parts.train, parts.valid)


@pytest.mark.parametrize("dtype", ["string", "object", "category", "string[pyarrow]"])
def test_the_positive_value_in_text_with_missing_cells(dtype):
    column = pd.Series(["yes", None, "no"], dtype=dtype)
    assert equals(column, "yes").tolist() == [True, False, False]


def test_the_positive_value_in_numbers_with_missing_cells():
    assert equals(pd.Series([1, None, 0], dtype="Int64"), "1").tolist() == [True, False, False]
    assert equals(pd.Series([1.0, None, 0.0]), "yes").tolist() == [False, False, False]
    assert equals(pd.Series([True, False]), "True").tolist() == [True, False]
