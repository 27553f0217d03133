"""`data.merge`: groups that count as one, the same as in a table where they were renamed; a repair merges them in new rows too."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import equipoise as eq
from equipoise.data import scan
from equipoise.errors import BadInput
from support.command import ran
from support.facts import says

ROLES = {"label": "y", "score": "p", "group": "race", "reference": "white"}
FLAGS = ["--label", "y", "--score", "p", "--group", "race", "--reference", "white", "--threshold", "0.5"]
MERGE = {"other": ["tiny", "small"]}
SET = ["--set", 'data.merge={ other = ["tiny", "small"] }']


def table(merged: bool, rows: int = 1500) -> pd.DataFrame:
    rng = np.random.default_rng(2)
    race, y = rng.choice(["white", "black", "small", "tiny"], rows, p=[0.6, 0.3, 0.08, 0.02]), rng.integers(0, 2, rows)
    p = (0.5 * y + 0.6 * rng.random(rows) - 0.2 * (race == "black") * y).clip(0, 1).round(4)
    frame = pd.DataFrame({"y": y, "race": race, "p": p})
    return frame.replace({"race": {"tiny": "other", "small": "other"}}) if merged else frame


def test_frames_arrays_and_batches_count_merged_groups_as_one(tmp_path: Path):
    one, frame = eq.audit(eq.Scores.from_frame(table(merged=True), **ROLES), threshold=0.5), table(merged=False)
    assert set(one.groups.index) >= {"white", "black", "other"}
    arrays = eq.Scores.from_arrays(frame["y"], frame["p"], frame["race"], reference="white", attribute="race", merge=MERGE)
    for kind in ("csv", "parquet"):
        (tmp_path / kind).mkdir()
        frame.to_csv(tmp_path / kind / "a.csv", index=False) if kind == "csv" else frame.to_parquet(tmp_path / kind / "a.parquet")
    read = [eq.Scores.from_frame(frame, **ROLES, merge=MERGE), arrays]
    read += [scan(tmp_path / kind, **ROLES, merge=MERGE) for kind in ("csv", "parquet")]
    for rows in read:
        pd.testing.assert_frame_equal(eq.audit(rows, threshold=0.5).groups, one.groups)


def test_a_group_of_numbers_and_a_merged_reference_are_merged_too():
    rows = eq.Scores.from_arrays([0, 1, 0, 1], [0.1, 0.9, 0.2, 0.8], [1, 2, 3, 1], reference="low", merge={"low": [1, "2"]})
    assert rows.groups.tolist() == ["low", "low", "3", "low"]


def test_every_wrong_merge_is_named_at_once(caplog):
    merge = {"other": ["tiny", "white"], "rest": ["tiny"], "none": []}
    with pytest.raises(BadInput) as error:
        eq.Scores.from_frame(table(merged=False), **ROLES, merge=merge, missing="tiny")
    assert says(error.value, "'tiny' is merged more than once", "'white' is merged", "reference", "'none'", "no group", "read as missing")
    eq.Scores.from_frame(table(merged=False), **ROLES, merge={"other": "tinny"})
    assert says(caplog.text, "'tinny'", "Did you mean 'tiny'?")


def test_a_repair_merges_the_groups_of_new_rows(tmp_path: Path):
    freely = ["--allow-worse", "--set", "goal.max_rise.fpr=1", "--set", "goal.max_rise.selection=1"]
    how = [*FLAGS, "--method", "group-thresholds", "--measure", "eod", *freely]
    for name, merged in {"apart": False, "merged": True}.items():
        (tmp_path / name).mkdir()
        table(merged).to_csv(tmp_path / name / "scores.csv", index=False)
        done = ran("debias", tmp_path / name / "scores.csv", *how, *(() if merged else SET), "--out", tmp_path / name / "rule")
        assert done.code == 0, done.err
    apart, merged = tmp_path / "apart", tmp_path / "merged"
    assert (apart / "rule" / "rule.json").read_bytes() == (merged / "rule" / "rule.json").read_bytes()
    assert json.loads((apart / "rule" / "run.json").read_text())["inputs"]["merge"] == MERGE
    decided = [ran("apply", place / "rule", place / "scores.csv", "--json") for place in (apart, merged)]
    assert [done.code for done in decided] == [0, 0], decided[0].err
    assert json.loads(decided[0].out)["decisions"] == json.loads(decided[1].out)["decisions"]
