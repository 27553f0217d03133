"""`data.missing`: a table with codes for what is not known gives the same results as one with empty cells, wherever it is read."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import equipoise as eq
from equipoise.data import read_scores, scan
from equipoise.data.columns import Columns
from equipoise.errors import BadInput
from support.command import ran
from support.facts import says

COLUMNS = 200
ROLES = {"label": "y", "score": "p", "group": ["race", "age"], "reference": ["white", "<50"], "bins": {"age": [50]}, "patient": "pid"}
FLAGS = ["--label", "y", "--score", "p", "--group", "race", "--reference", "white", "--patient", "pid", "--threshold", "0.5"]
CODES = ["?", "NA", -9, "Unknown/Invalid"]
SET = [word for code in CODES for word in ("--set", f"data.missing={code}")]


def table(coded: bool, rows: int = 1200) -> pd.DataFrame:
    """Rows with codes for what is missing, or with empty cells. The id NA is a patient in both."""
    rng = np.random.default_rng(4)
    race, y = rng.choice(["white", "black", None], rows, p=[0.6, 0.33, 0.07]), rng.integers(0, 2, rows)
    age, expert = pd.Series(rng.integers(20, 90, rows)).astype(object), pd.Series(y.astype(object))
    view, lost = pd.Series(rng.choice(["AP", "PA"], rows)).astype(object), rng.random((4, rows)) < 0.05
    patients = [["NA", "?", "x3"][k] if k < 3 else f"{k:04d}" for k in np.arange(rows) // 2]
    fill = dict(zip(("race", "age", "expert", "view"), ("?", -9, "NA", "Unknown/Invalid"), strict=True))
    frame = pd.DataFrame({"y": y, "pid": patients, "race": race, "age": age, "expert": expert, "view": view})
    frame["p"] = (0.5 * y + 0.6 * rng.random(rows) - 0.2 * (frame["race"] == "black") * y).clip(0, 1).round(4)
    for at, name in enumerate(fill):
        frame[name] = frame[name].mask(lost[at] | frame[name].isna(), fill[name] if coded else None)
    return frame


def same(one: eq.Scores, other: eq.Scores) -> None:
    for left, right in zip(one.attributes, other.attributes, strict=True):
        assert (left.levels, left.codes.tolist()) == (right.levels, right.codes.tolist())
    assert (one.y.tolist(), one.score.tolist(), list(one.patients)) == (other.y.tolist(), other.score.tolist(), list(other.patients))


def test_frames_and_files_read_codes_as_empty_cells_and_identifiers_as_they_are(tmp_path: Path):
    more = {"within": "view", "audit_label": "expert"}
    plain = eq.Scores.from_frame(table(coded=False), **ROLES, **more)
    coded = eq.Scores.from_frame(table(coded=True), **ROLES, **more, missing=CODES)
    same(plain, coded)
    assert plain.strata.codes.tolist() == coded.strata.codes.tolist()
    assert plain.adjudicated.tolist() == coded.adjudicated.tolist()
    assert {"NA", "?"} <= set(coded.patients)
    for kind in ("csv", "parquet"):
        path, frame = tmp_path / f"coded.{kind}", table(coded=True).astype({"age": str, "expert": str})
        frame.to_csv(path, index=False) if kind == "csv" else frame.to_parquet(path)
        (read,) = read_scores(path, Columns(**ROLES, **more, missing=CODES)).values()
        same(plain, read)
        assert plain.adjudicated.tolist() == read.adjudicated.tolist()


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_table_in_batches_is_audited_as_in_memory(tmp_path: Path, kind: str):
    (tmp_path / "visits").mkdir()
    frame = table(coded=True).astype({"age": str, "expert": str, "view": "category"})
    path = tmp_path / "visits" / f"part.{kind}"
    frame.to_csv(path, index=False) if kind == "csv" else frame.to_parquet(path)
    batches = eq.audit(scan(tmp_path / "visits", **ROLES, missing=CODES), threshold=0.5)
    whole = eq.audit(eq.Scores.from_frame(table(coded=False), **ROLES), threshold=0.5)
    pd.testing.assert_frame_equal(batches.groups, whole.groups)


def test_arrays_and_cohorts_take_codes_and_keep_inputs_as_they_are():
    groups, y = ["F", "M", "?", "F", "M", 9], [0, 1, 0, 1, 0, 1]
    rows = eq.Scores.from_arrays(y, [0.1, 0.9, 0.3, 0.8, 0.2, 0.7], groups, reference="M", missing=["?", 9])
    assert rows.groups.tolist() == ["F", "M", None, "F", "M", None]
    cohort = eq.Cohort.from_arrays(np.zeros((6, 2), np.float32), y, groups, reference="M", missing=["?", "9"])
    assert cohort.groups.tolist() == rows.groups.tolist()
    frame = pd.DataFrame({"y": y, "sex": groups, "ward": ["a", "?", "b", "a", "?", "b"]})
    read = eq.Cohort.from_frame(frame, label="y", group="sex", reference="M", missing="?", attribute_as_input=True)
    assert read.groups.tolist() == ["F", "M", None, "F", "M", "9"]
    assert read.source.frame["ward"].tolist() == frame["ward"].tolist()
    assert read.source.frame["sex"].tolist() == frame["sex"].tolist()


def test_codes_in_a_label_or_a_score_are_what_empty_cells_are():
    frame = table(coded=False).astype({"y": object, "p": object})
    frame.loc[3, "y"], frame.loc[5, "p"] = "NA", "?"
    with pytest.raises(BadInput) as error:
        eq.Scores.from_frame(frame, **ROLES, missing=CODES)
    assert says(error.value, "'y'", "1 of 1,200", "row 4", "no label", "'p'", "row 6", "empty")


def test_every_wrong_code_is_named_at_once():
    with pytest.raises(BadInput) as error:
        eq.Scores.from_frame(table(coded=True), **ROLES, positive=1, missing=["white", "1", None])
    assert says(
        error.value, "3 problems", "'white' is read as missing", "data.reference", "'1' is read as missing", "data.positive", "got None"
    )


@pytest.mark.parametrize("python", [False, True])
def test_a_repair_decides_new_rows_with_codes_as_rows_without_a_group(tmp_path: Path, python: bool):
    """Its folder records the codes, whether the command or Python made it."""
    table(coded=True).to_csv(tmp_path / "coded.csv", index=False)
    table(coded=False).to_csv(tmp_path / "plain.csv", index=False)
    new = tmp_path / "coded.csv"
    freely = ["--allow-worse", "--set", "goal.max_rise.fpr=1", "--set", "goal.max_rise.selection=1"]
    how = [*FLAGS, "--method", "group-thresholds", "--measure", "eod", *freely, "--set", "repair.seed=0"]
    if python:
        rows = eq.Scores.from_frame(
            pd.read_csv(new, keep_default_na=False), **ROLES | {"group": "race", "reference": "white", "bins": {}}, missing=CODES
        )
        repair, test = rows.hold_out(0.3, seed=0)
        limits = {"threshold": 0.5, "allow_worse": True, "max_rise": {"fpr": 1, "selection": 1}}
        done = eq.debias(repair, method="group-thresholds", measure="eod", **limits)
        eq.compare({"original": 0.5, "repaired": done}, test, valid=repair).save(tmp_path / "rule", score="p")
    else:
        done = ran("debias", new, *how, *SET, "--out", tmp_path / "rule")
        plain = ran("debias", tmp_path / "plain.csv", *how, "--out", tmp_path / "other")
        assert (done.code, plain.code) == (0, 0), done.err + plain.err
        rules = [(tmp_path / name / "rule.json").read_text() for name in ("rule", "other")]
        assert rules[0].replace("coded.csv", "plain.csv") == rules[1]
    assert json.loads((tmp_path / "rule" / "run.json").read_text())["inputs"]["missing"] == list(map(str, CODES))
    applied = ran("apply", tmp_path / "rule", new, "--out", tmp_path / "coded_decisions.csv")
    emptied = ran("apply", tmp_path / "rule", tmp_path / "plain.csv", "--out", tmp_path / "plain_decisions.csv")
    assert (applied.code, emptied.code) == (0, 0), applied.err + emptied.err
    assert says(applied.err + applied.out, "rows have no group")
    assert (tmp_path / "coded_decisions.csv").read_bytes() == (tmp_path / "plain_decisions.csv").read_bytes()


def test_a_case_file_and_the_flag_give_the_same_audit(tmp_path: Path):
    path = tmp_path / "coded.csv"
    table(coded=True).to_csv(path, index=False)
    roles = 'label = "y"\nscore = "p"\ngroup = "race"\nreference = "white"\npatient = "pid"'
    (tmp_path / "case.toml").write_text(
        f'model.threshold = 0.5\n[data]\ntable = "{path}"\n{roles}\nmissing = {json.dumps(list(map(str, CODES)))}\n'
    )
    typed, written = ran("audit", path, *FLAGS, *SET, "--json"), ran("audit", tmp_path / "case.toml", "--json")
    assert (typed.code, written.code) == (0, 0), typed.err + written.err
    assert json.loads(typed.out)["groups"] == json.loads(written.out)["groups"]
    assert {row["group"] for row in json.loads(typed.out)["groups"]} >= {"white", "black"}
    assert "?" not in {row["group"] for row in json.loads(typed.out)["groups"]}
