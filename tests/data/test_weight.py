"""Sample weights: read from a column, validated, and kept by cohorts, sets and scores."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import equipoise as eq
from equipoise.data import Columns, read_cohort, read_scores
from equipoise.errors import BadInput
from support.facts import facts

ROLES = {"label": "y", "group": "sex", "reference": "M"}


def frame(rows: int = 40) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "y": np.arange(rows) % 2,
            "p": rng.random(rows),
            "sex": np.where(np.arange(rows) % 3 == 0, "F", "M"),
            "x": rng.normal(size=rows),
            "w": rng.integers(1, 5, rows) / 2,
        }
    )


def test_scores_have_the_weights_of_the_column() -> None:
    rows = frame()
    scores = eq.Scores.from_frame(rows, score="p", weight="w", **ROLES)
    assert scores.weight is not None
    assert scores.weight.tolist() == rows["w"].tolist()
    assert eq.Scores.from_frame(rows, score="p", **ROLES).weight is None
    arrays = eq.Scores.from_arrays(rows["y"], rows["p"], rows["sex"], reference="M", weights=rows["w"])
    assert arrays.weight is not None
    assert arrays.weight.tolist() == rows["w"].tolist()


def test_sets_and_scores_of_a_cohort_have_its_weights_but_inputs_do_not() -> None:
    rows = frame()
    cohort = eq.Cohort.from_frame(rows.drop(columns="p"), weight="w", **ROLES)
    assert cohort.inputs.shape == (len(rows), 1)
    taken = cohort.take([3, 5])
    assert taken.weight is not None
    assert taken.weight.tolist() == rows["w"].iloc[[3, 5]].tolist()
    scores = eq.Scores.of(cohort, rows["p"])
    assert scores.weight is not None
    assert scores.weight.tolist() == rows["w"].tolist()
    arrays = eq.Cohort.from_arrays(rows[["x"]].to_numpy(copy=True), rows["y"], rows["sex"], weights=rows["w"])
    assert arrays.weight is not None
    assert arrays.weight.tolist() == rows["w"].tolist()


@pytest.mark.parametrize("bad", [0.0, -1.0, np.nan, np.inf, "heavy"])
def test_a_weight_that_is_not_a_positive_number_is_reported_with_its_row(bad: object) -> None:
    rows = frame().astype({"w": object})
    rows.loc[6, "w"] = bad
    with pytest.raises(BadInput, match=facts("weight", "'w'", "row 7", "1 of 40")):
        eq.Scores.from_frame(rows, score="p", weight="w", **ROLES)


def test_a_weight_column_with_another_role_is_refused() -> None:
    with pytest.raises(BadInput, match="'p'"):
        eq.Scores.from_frame(frame(), score="p", weight="p", **ROLES)
    with pytest.raises(BadInput, match="'weigth'"):
        eq.Scores.from_frame(frame(), score="p", weight="weigth", **ROLES)


def test_files_are_read_with_weights(tmp_path: Path) -> None:
    rows = frame()
    rows.to_csv(tmp_path / "rows.csv", index=False)
    reading = Columns(label="y", group="sex", reference="M", weight="w")
    scores = read_scores(tmp_path / "rows.csv", reading.changed(score="p"))["y"]
    assert scores.weight is not None
    assert scores.weight.tolist() == rows["w"].tolist()
    cohort = read_cohort(tmp_path / "rows.csv", reading).cohort
    assert cohort.weight is not None
    assert cohort.inputs.shape == (len(rows), 2)
