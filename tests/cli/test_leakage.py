"""Patients, or rows, that are in two of the training, repair and test sets are an error of every command that gets both."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from support import hospital
from support.command import ran
from support.facts import says

MODEL = ["--model", "net.py:build", "--weights", "net.safetensors"]
ROLES = ["--label", "sick", "--group", "sex", "--reference", "M"]
METHOD = ["--method", "bias-score", "--set", "report.onnx=false", "--out", "repaired"]


@pytest.fixture
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pd.DataFrame:
    """The working folder of a hospital, and its table of patients."""
    hospital.table(tmp_path)
    monkeypatch.chdir(tmp_path)
    return pd.read_csv("local.csv")


def _as_csv(frame: pd.DataFrame, name: str) -> str:
    frame.to_csv(name, index=False)
    return name


def test_training_patients_that_are_in_the_table_are_an_error(local):
    """As many as there are: with the table itself as the training set, all held-out patients were seen in training."""
    patients = local["pid"].nunique()
    table = ["debias", "local.csv", *ROLES, "--patient", "pid", "--set", "data.id=id", *MODEL, *METHOD]
    code, out, err = ran(*table, "--set", "data.train=local.csv")
    assert (code, out, Path("repaired").exists()) == (2, "", False)
    assert says(err, "patients", "training set", "repair set", "test set", round(0.3 * patients))
    one = _as_csv(local.assign(pid=lambda f: f["pid"].where(f["pid"] == 7, f["pid"] + 1000)), "train.csv")
    code, _, err = ran(*table, "--set", f"data.train={one}")
    assert (code, says(err, "1 of", "patients", "(7)", "training set 'train.csv'")) == (2, True)
    others = _as_csv(local.assign(pid=local["pid"] + 1000), "others.csv")
    assert ran(*table, "--set", f"data.train={others}", "--dry-run").code == 0  # the patient ids decide, if there are any


@pytest.mark.parametrize("ids", [[], ["--set", "data.id=id"]])
def test_without_patient_ids_equal_rows_are_an_error(local, ids):
    rows = local.drop(columns=["pid"] if ids else ["pid", "id"])
    others = rows.assign(a=rows["a"] + 1, **({"id": "t" + rows["id"]} if ids else {}))
    table, apart = _as_csv(rows, "table.csv"), _as_csv(others, "apart.csv")
    one = _as_csv(pd.concat([others, rows[40:41].assign(**({"id": "t"} if ids else {}))]), "one.csv")
    command = ["debias", table, *ROLES, *ids, *MODEL, *METHOD]
    assert ran(*command, "--set", f"data.train={apart}", "--dry-run").code == 0
    code, _, err = ran(*command, "--set", f"data.train={one}")
    assert (code, says(err, "1 of", "rows", "training set 'one.csv'", "--patient")) == (2, True)


def test_a_test_file_and_the_training_set_of_an_audit_are_compared_too(local):
    rows = local.drop(columns=["pid", "id"])
    table, test = _as_csv(rows[:200], "table.csv"), _as_csv(rows[150:], "test.csv")
    code, _, err = ran("debias", table, *ROLES, *MODEL, *METHOD, "--test", test)
    assert (code, says(err, "50 of 90 rows", "test set 'test.csv'", "repair set 'table.csv'")) == (2, True)
    code, out, err = ran("audit", table, *ROLES, *MODEL, "--set", f"data.train={test}")
    assert (code, out, says(err, "50 of 200 rows", "training set 'test.csv'")) == (2, "", True)


def test_scores_are_compared_with_those_of_the_test_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    y, sex = rng.integers(0, 2, 400), rng.choice(["F", "M"], 400)
    frame = pd.DataFrame({"y": y, "p": rng.uniform(0, 1, 400), "sex": sex})
    options = ["--score", "p", "--label", "y", "--group", "sex", "--method", "group-thresholds", "--out", "rule"]
    one, two = _as_csv(frame[:220], "one.csv"), _as_csv(frame[217:], "two.csv")
    code, _, err = ran("debias", one, "--test", two, *options)
    assert (code, says(err, "3 of 183 rows", "test set 'two.csv'")) == (2, True)
    # Scores of two digits are equal by chance in different patients.
    one, two = _as_csv(frame[:220].round(2), "one.csv"), _as_csv(frame[220:].round(2), "two.csv")
    assert len(pd.read_csv(one).merge(pd.read_csv(two))) > 50
    assert ran("debias", one, "--test", two, *options, "--dry-run").code == 0


def test_equal_images_under_other_names_are_an_error(tmp_path, monkeypatch):
    hospital.images(tmp_path)
    monkeypatch.chdir(tmp_path)
    frame = pd.read_csv("images.csv").drop(columns=["pid"])
    command = ["debias", "images.csv", *ROLES, "--images", "xrays", "--set", f"images.size={hospital.SIDE}", "--model", "net.py:cnn"]
    command += ["--weights", "cnn.safetensors", "--method", "bias-score", "--set", "report.onnx=false", "--out", "repaired"]
    train = frame.head(40).assign(image=[f"train{k}.png" for k in range(40)])
    rng = np.random.default_rng(0)
    for name in train["image"]:
        pixels = rng.integers(0, 255, (hospital.SIDE, hospital.SIDE)).astype(np.uint8)
        Image.fromarray(pixels).save(Path("xrays") / name)
    _as_csv(frame, "images.csv")
    assert ran(*command, "--set", f"data.train={_as_csv(train, 'train.csv')}", "--dry-run").code == 0
    original = next(Path("xrays").rglob(Path(frame["image"].iloc[3]).name))
    Image.open(original).save(Path("xrays") / train["image"].iloc[0], optimize=True)
    code, _, err = ran(*command, "--set", "data.train=train.csv")
    assert (code, says(err, "1 of", "training set 'train.csv'", Path(frame["image"].iloc[3]).name)) == (2, True)
