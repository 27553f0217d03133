"""`equipoise audit --set audit.probe=true`: the table, its explanation, and the JSON."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from equipoise.report.wording.audits import READ_IS_NOT_USED
from support.command import Ran
from support.facts import says

COLUMNS = 80  # of the terminal
BUILD = """
import torch
from torch import nn

def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
"""
AUDIT = ["--label", "y", "--group", "sex", "--reference", "M", "--patient", "pid", "--model", "net.py:build"]


@pytest.fixture
def run(run: Callable[..., Ran]) -> Callable[..., Ran]:
    """Runs one command in a folder with a data file and a network. The group is one of the two inputs."""
    rng, n = np.random.default_rng(0), 120
    sex = np.repeat(["F", "M"], n // 2)
    frame = pd.DataFrame(
        {"pid": np.arange(n) // 2, "y": rng.integers(0, 2, n), "sex": sex, "a": (sex == "F") * 1.0, "b": rng.normal(size=n)}
    )
    frame.to_csv("data.csv", index=False)
    frame.loc[(frame["sex"] == "F") & (np.arange(n) >= 3), "y"] = 0
    frame.to_csv("few.csv", index=False)
    Path("net.py").write_text(BUILD)
    return run


def _words(text: str) -> str:
    return " ".join(text.split())


def test_the_table_names_every_layer_and_explains_probes(run):
    code, out, err = run("audit", "data.csv", *AUDIT, "--set", "audit.probe=true", "--set", "audit.draws=20")
    assert (code, err) == (0, "")
    words = _words(out)
    assert says(words, "sex", "inputs 0 2 all patients 1.000 [1.000, 1.000]")
    assert says(words, "2 1 3 all patients", "output 2 1 all patients")
    assert READ_IS_NOT_USED in words
    assert says(words, 0.5)
    assert max(map(len, out.splitlines())) <= 80


def test_json_holds_one_record_per_layer_and_nothing_else_changes(run):
    plain = json.loads(run("audit", "data.csv", *AUDIT, "--json").out)
    code, out, err = run(
        "audit", "data.csv", *AUDIT, "--set", "audit.probe=true", "--set", "audit.draws=20", "--json", "--out", "result.json"
    )
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found == json.loads(Path("result.json").read_text())
    layers, origin = found.pop("encoding"), found.pop("provenance")  # of --out
    assert list(origin["hashes"]) == ["data.csv"]
    assert found | {"checksum": ""} == plain | {"checksum": ""}
    assert [row["layer"] for row in layers] == ["inputs", "2", "output"]
    assert layers[0]["auroc"] == 1.0
    for row in layers:
        assert 0 <= row["auroc_low"] <= row["auroc"] <= row["auroc_high"] <= 1


def test_few_patients_are_reported(run):
    ran = run("audit", "few.csv", *AUDIT, "--set", "audit.probe=true", "--set", "audit.draws=20")
    assert ran.code == 0
    assert says(_words(ran.out), "sex", 5, "positives", "'F'")
    layers = json.loads(run("audit", "few.csv", *AUDIT, "--set", "audit.probe=true", "--set", "audit.draws=20", "--json").out)["encoding"]
    assert [row["auroc_positives"] for row in layers] == [None] * 3


def test_scores_have_no_layers(run):
    code, _, err = run(
        "audit", "data.csv", "--label", "y", "--group", "sex", "--score", "a", "--set", "audit.probe=true", "--set", "audit.draws=20"
    )
    assert code == 2
    assert says(_words(err.replace("│", " ")), "audit.probe", "--model")
