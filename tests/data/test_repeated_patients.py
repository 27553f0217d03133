"""A warning where rows without a named patient column seem to be of the same patients."""

import logging

import numpy as np
import pandas as pd
import pytest

import equipoise as eq
from equipoise.data import Columns, read_scores
from support.facts import says

ROLES = {"label": "y", "group": "sex"}


def _frame(**more) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    columns = {"y": rng.integers(0, 2, 60), "p": rng.random(60), "sex": rng.choice(["F", "M"], 60), "x": rng.normal(size=60)}
    return pd.DataFrame(columns | more)


def _warnings(caplog) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


@pytest.mark.parametrize("name", ["patient", "patient_id", "Patient ID", "subject_id", "pid"])
def test_a_column_of_repeated_patients_is_named(caplog, name):
    frame = _frame(**{name: np.arange(60) // 2})
    eq.Scores.from_frame(frame, score="p", **ROLES)
    eq.Cohort.from_frame(frame, features=["x"], **ROLES)
    found = _warnings(caplog)
    assert len(found) == 2
    assert all(says(text, "independent", repr(name), 30, 60, "--patient", "patient=") for text in found)


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"patient": np.arange(60)},  # every row is another patient
        {"patient": [0, 1] * 30},  # a yes or no
        {"patients_seen": np.arange(60) // 2},
        {"patient": [[1]] * 60},
    ],
)
def test_other_columns_are_not_reported(caplog, more):
    eq.Scores.from_frame(_frame(**more), score="p", **ROLES)
    assert _warnings(caplog) == []


def test_no_warning_if_the_patients_are_named(caplog):
    eq.Scores.from_frame(_frame(pid=np.arange(60) // 2), score="p", patient="pid", **ROLES)
    assert _warnings(caplog) == []


def test_duplicates_are_counted_if_a_column_tells_patients_apart(caplog):
    frame = _frame()
    eq.Scores.from_frame(pd.concat([frame, frame[:7]]), score="p", **ROLES)
    assert says(_warnings(caplog)[0], 7, 67, "duplicates")
    caplog.clear()
    rounded = frame.assign(p=frame["p"].round(1), x=0)  # equal rows may be of different patients
    eq.Scores.from_frame(pd.concat([rounded, rounded[:7]]), score="p", **ROLES)
    assert _warnings(caplog) == []


def test_one_warning_for_several_labels_of_a_file(caplog, tmp_path):
    _frame(z=[0, 1] * 30, q=np.linspace(0, 1, 60), patient=np.arange(60) // 2).to_csv(tmp_path / "scores.csv", index=False)
    read_scores(tmp_path / "scores.csv", Columns(label=["y", "z"], group="sex", score=["p", "q"]))
    assert len(_warnings(caplog)) == 1
