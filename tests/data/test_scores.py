"""Scores from arrays and from a cohort."""

import numpy as np
import pytest

from equipoise.data.cohort import Cohort
from equipoise.data.scores import Scores
from equipoise.errors import BadInput
from equipoise.measures.audit import audit


def test_arrays_and_frames_give_the_same_scores():
    rng = np.random.default_rng(0)
    y, p, sex = rng.integers(0, 2, 200), rng.random(200), np.repeat(rng.choice(["F", "M"], 100), 2)
    found = audit(Scores.from_arrays(y, p, sex, reference="M", patients=np.arange(200) // 2, attribute="sex"), threshold=0.5, draws=10)
    assert found["spd"].value == pytest.approx((p[sex == "F"] >= 0.5).mean() - (p[sex == "M"] >= 0.5).mean())
    assert found.patients == 100


def test_arrays_of_other_lengths_or_bad_scores_are_refused():
    with pytest.raises(BadInput, match=r"same length; got \{'y': 2, 'score': 3, 'group': 2\}"):
        Scores.from_arrays([0, 1], [0.1, 0.2, 0.3], ["a", "b"])
    with pytest.raises(BadInput, match="percentages"):
        Scores.from_arrays([0, 1, 1], [10, 20, 30], ["a", "b", "a"])


def test_scores_of_a_cohort_must_be_one_probability_a_row():
    cohort = Cohort.from_arrays(np.zeros((4, 1), np.float32), [0, 1, 0, 1], ["a", "a", "b", "b"])
    with pytest.raises(BadInput, match="3 scores for 4 rows"):
        Scores.of(cohort, [0.1, 0.2, 0.3])
    with pytest.raises(BadInput, match="2 of 4 scores"):
        Scores.of(cohort, [0.1, np.nan, 1.2, 0.4])
