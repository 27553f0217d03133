"""`equipoise debias --fail-if`: a repair that does harm on held-out patients ends with exit code 1, after everything is written."""

import json

import numpy as np
import pandas as pd
import pytest

from support.facts import says

ROLES = ("--score", "p", "--label", "y", "--group", "sex", "--reference", "M", "--threshold", "0.5", "--method", "group-thresholds")


@pytest.fixture
def sets(tmp_path):
    """A repair set in which the scores of women are too low, and a test set in which they are as high as those of men."""
    rng = np.random.default_rng(0)
    for name, lower in (("repair.csv", 0.3), ("same.csv", 0.3), ("test.csv", 0.0)):
        y, sex = np.tile([0, 1], 400), np.repeat(["F", "M"], 400)
        score = np.clip(0.25 + 0.45 * y + rng.uniform(-0.25, 0.25, 800) - lower * (sex == "F"), 0, 1)
        pd.DataFrame({"p": score.round(4), "y": y, "sex": sex}).to_csv(tmp_path / name, index=False)


def test_harm_fails_after_the_folder_is_written(run, sets, tmp_path):
    ran = run("debias", "repair.csv", *ROLES, "--test", "test.csv", "--out", "rule", "--fail-if", "harm")
    assert json.loads((tmp_path / "rule" / "audit.json").read_text())["outcome"] == "harm"
    assert (ran.code, says(ran.err, "failed", "harm", "--fail-if")) == (1, True)
    assert "Written to rule" in ran.out


def test_a_repair_without_harm_passes(run, sets):
    ran = run(
        "debias", "repair.csv", *ROLES, "--test", "same.csv", "--out", "rule", "--fail-if", "harm", "--fail-if", "unchanged", "--json"
    )
    assert json.loads(ran.out)["outcome"] in ("closed", "reduced")
    assert ran.code == 0


def test_a_condition_that_no_repair_has_is_an_error_before_any_work(run, sets, tmp_path):
    ran = run("debias", "repair.csv", *ROLES, "--test", "test.csv", "--out", "rule", "--fail-if", "harmful", "--max-gap", "7")
    assert (ran.code, says(ran.err, "harmful", "max_gap")) == (2, True)
    ran = run("debias", "repair.csv", *ROLES, "--test", "test.csv", "--out", "rule", "--fail-if", "eod > 0.1")
    assert (ran.code, says(ran.err, "eod", "outcome")) == (2, True)
    assert not (tmp_path / "rule").exists()
