"""Scores from arrays and from a cohort."""

import numpy as np
import pandas as pd
import pytest
import torch

from equipoise.comparison import audit
from equipoise.data import Cohort, Columns, Scores, read_scores
from equipoise.errors import BadInput
from support.facts import facts


def test_arrays_and_frames_give_the_same_scores():
    rng = np.random.default_rng(0)
    y, p, sex = rng.integers(0, 2, 200), rng.random(200), np.repeat(rng.choice(["F", "M"], 100), 2)
    found = audit(Scores.from_arrays(y, p, sex, reference="M", patients=np.arange(200) // 2, attribute="sex"), threshold=0.5)
    assert found["spd"].value == pytest.approx((p[sex == "F"] >= 0.5).mean() - (p[sex == "M"] >= 0.5).mean())
    assert found.patients == 100


def test_arrays_of_different_lengths_or_bad_scores_are_refused():
    with pytest.raises(BadInput, match=facts("y", 2, "score", 3, "group")):
        Scores.from_arrays([0, 1], [0.1, 0.2, 0.3], ["a", "b"])
    with pytest.raises(BadInput, match="percentages"):
        Scores.from_arrays([0, 1, 1], [10, 20, 30], ["a", "b", "a"])


def test_scores_of_a_cohort_must_be_one_probability_per_row():
    cohort = Cohort.from_arrays(np.zeros((4, 1), np.float32), [0, 1, 0, 1], ["a", "a", "b", "b"])
    with pytest.raises(BadInput, match=facts(3, "scores", 4, "rows")):
        Scores.of(cohort, [0.1, 0.2, 0.3])
    with pytest.raises(BadInput, match=facts(2, 4, "scores")):
        Scores.of(cohort, [0.1, np.nan, 1.2, 0.4])


def test_tensors_are_read_as_values_and_not_as_objects():
    rng = np.random.default_rng(0)
    y, score, group, patients = torch.arange(60) % 2, torch.tensor(rng.random(60)), torch.arange(60) % 3 % 2, torch.arange(60) // 3
    variants = [Scores.from_arrays(y, score.requires_grad_(), group, patients=patients)]
    variants += [Scores.from_arrays(list(y), list(score.detach()), list(group), patients=list(patients))]
    for scores in variants:
        assert len(set(scores.patients)) == 20
        assert set(scores.attribute.levels) == {"0", "1"}
        assert scores.y.tolist() == y.tolist()
        assert np.array_equal(scores.score, score.detach().numpy())
    cohort = Cohort.from_arrays(torch.zeros(60, 2), list(y), list(group), patients=list(patients))
    assert len(set(cohort.patients)) == 20
    assert cohort.groups.tolist() == variants[0].groups.tolist()


def test_a_tensor_type_that_numpy_lacks_is_refused():
    with pytest.raises(BadInput, match="score"):
        Scores.from_arrays([0, 1], torch.tensor([0.1, 0.9]).bfloat16(), ["F", "M"])


def test_tensors_in_the_cells_of_a_frame_are_refused():
    frame = pd.DataFrame({"y": [0, 1] * 2, "p": [0.1, 0.9] * 2, "sex": ["F", "M"] * 2, "id": list(torch.arange(4) // 2)})
    with pytest.raises(BadInput, match=facts("id", 4)):
        Scores.from_frame(frame, label="y", score="p", group="sex", patient="id")


def test_an_array_with_more_than_one_value_per_row_is_refused():
    y, score, groups = np.array([0, 1]), np.array([0.1, 0.9]), np.array(["F", "M"])
    for name, values in {
        "y": (y[:, None], score, groups),
        "score": (y, score[:, None], groups),
        "group": (y, score, groups[:, None]),
    }.items():
        with pytest.raises(BadInput, match=name):
            Scores.from_arrays(*values)
    with pytest.raises(BadInput, match="patient"):
        Scores.from_arrays(y, score, groups, patients=np.zeros((2, 2)))


@pytest.mark.parametrize("reference", [1, 1.0, "1", np.int64(1), np.float32(1)])
def test_a_reference_may_be_a_number_of_any_type(reference):
    frame = pd.DataFrame({"y": [0, 1, 0, 1], "p": [0.1, 0.9, 0.2, 0.8], "group": [0, 0, 1, 1]})
    assert Scores.from_frame(frame, label="y", score="p", group="group", reference=reference).attribute.reference == "1"


def test_scores_of_several_labels_have_the_groups_of_all_rows_and_two_of_them_at_least(tmp_path):
    frame = pd.DataFrame({"a": [0, 1] * 6, "b": [0, 1, None] * 4, "p": np.linspace(0.1, 0.9, 12), "q": 0.5, "sex": ["F"] * 4 + ["M"] * 8})
    columns = Columns(label=["a", "b"], score=["p", "q"], group="sex")
    frame.assign(q=frame["q"].where(frame["b"].notna())).to_csv(tmp_path / "scores.csv", index=False)  # no score where b is unknown
    scores = read_scores(tmp_path / "scores.csv", columns)
    assert [len(rows) for rows in scores.values()] == [12, 8]
    assert scores["b"].ids.tolist() == [0, 1, 3, 4, 6, 7, 9, 10]
    assert scores["b"].attribute.reference == "M"
    frame.assign(b=frame["b"].where(frame["sex"] == "F")).to_csv(tmp_path / "scores.csv", index=False)
    with pytest.raises(BadInput, match=facts("'sex'", "'F'", "'b'", "'M'")):
        read_scores(tmp_path / "scores.csv", columns)
    with pytest.raises(BadInput, match=facts(2, 1, "label")):
        Scores.from_frame(frame, label=["a", "b"], score="p", group="sex")
    with pytest.raises(BadInput, match=facts("a, b")):
        Scores.from_frame(frame.fillna(0), label=["a", "b"], score=["p", "q"], group="sex")
