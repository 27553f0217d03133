"""`equipoise debias --choose`: another candidate of a repair is taken without fitting again, on the command line and in Python."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import equipoise as eq
from equipoise.case import repair as case_repair
from support.facts import says

ROLES = ("--score", "p", "--label", "y", "--group", "sex", "--reference", "M", "--threshold", "0.5")
TWO = ("--method", "single-threshold", "--method", "group-thresholds")
COMMAND = ("debias", "scores.csv", *ROLES, *TWO, "--set", "repair.test=test.csv", "--out", "rule")


@pytest.fixture
def scores(tmp_path: Path) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    frames = []
    for name in ("scores.csv", "test.csv"):
        y, sex, mass = np.tile([0, 1], 500), np.repeat(["F", "M"], 500), rng.integers(0, 2, 1000)
        score = np.clip(0.3 + 0.4 * y + rng.normal(0, 0.2, 1000) - 0.2 * (sex == "F"), 0, 1)
        other = np.clip(0.3 + 0.4 * mass + rng.normal(0, 0.2, 1000) - 0.2 * (sex == "F"), 0, 1)
        rows = [f"{name[0]}{k}" for k in range(1000)]
        frames.append(pd.DataFrame({"row": rows, "p": score.round(4), "q": other.round(4), "y": y, "mass": mass, "sex": sex}))
        frames[-1].to_csv(tmp_path / name, index=False)
    return frames[1]


def _read(place: Path) -> dict:
    return json.loads(place.read_text())


def test_another_candidate_is_taken_as_it_was_fitted(run, scores, tmp_path, monkeypatch):
    first = run(*COMMAND, "--json")
    assert first.code == 0, first.err
    default = json.loads(first.out)["chosen"]
    other = next(name for name in ("single-threshold", "group-thresholds") if name != default)
    rule = (tmp_path / "rule" / "rule.json").read_bytes()
    assert run("debias", "scores.csv", *ROLES, "--method", other, "--set", "repair.test=test.csv", "--out", "alone").code == 0

    monkeypatch.setattr(case_repair.methods, "run_methods", None)  # nothing is fitted from here on
    ran = run(*COMMAND, "--choose", other)
    assert ran.code == 0, ran.err
    assert says(ran.out, other, "rule")
    alone, chosen = _read(tmp_path / "alone" / "rule.json"), _read(tmp_path / "rule" / "rule.json")
    assert chosen == alone
    assert (_read(tmp_path / "rule" / "audit.json")["chosen"], _read(tmp_path / "rule" / "run.json")["method"]) == (other, other)
    assert default in (tmp_path / "rule" / "README.txt").read_text() + (tmp_path / "rule" / "report.html").read_text()
    frame = scores.drop(columns="y")
    assert eq.Bundle.load(tmp_path / "rule").decide(frame).equals(eq.Bundle.load(tmp_path / "alone").decide(frame))

    assert run(*COMMAND, "--choose", default, "--fail-if", "harm").code == 0
    assert (tmp_path / "rule" / "rule.json").read_bytes() == rule
    assert run(*COMMAND, "--choose", "original", "--json").code == 0
    decided = eq.Bundle.load(tmp_path / "rule").decide(frame)
    assert (decided["decision"] == (frame["p"] >= 0.5)).all()
    assert _read(tmp_path / "rule" / "audit.json")["outcome"] == "unchanged"


def test_a_candidate_is_chosen_for_all_labels(run, scores, tmp_path):
    command = ["debias", "scores.csv", "--label", "y", "--label", "mass", "--score", "p", "--score", "q", *ROLES[4:], *TWO]
    command += ["--set", "repair.test=test.csv", "--out", "rules"]
    assert run(*command).code == 0
    ran = run(*command, "--choose", "group-thresholds", "--json")
    assert set(json.loads(ran.out)["files"]) == {"y", "mass"}
    assert {_read(tmp_path / "rules" / label / "run.json")["method"] for label in ("y", "mass")} == {"group-thresholds"}
    assert {each["chosen"] for each in _read(tmp_path / "rules" / "audit.json")["labels"].values()} == {"group-thresholds"}


def test_what_cannot_be_chosen_is_an_error(run, scores, tmp_path):
    assert says(run(*COMMAND, "--choose", "original").err, "rule", "debias")
    assert run(*COMMAND).code == 0
    before = (tmp_path / "rule" / "run.json").read_bytes()
    ran = run(*COMMAND, "--choose", "group-threshold")
    assert (ran.code, says(ran.err, "group-thresholds", "original")) == (2, True)
    ran = run(*COMMAND, "--choose", "original", "--max-gap", "0.01")
    assert (ran.code, says(ran.err, "goal.max_gap", "debias")) == (2, True)
    assert (tmp_path / "rule" / "run.json").read_bytes() == before
    rule = next((tmp_path / "rule" / "candidates").glob("*/rule.json"))
    rule.write_text(rule.read_text().replace("0.", "0.9"))
    assert any(run(*COMMAND, "--choose", name).code == 2 for name in ("group-thresholds", "single-threshold", "original"))


def test_a_new_repair_leaves_no_old_candidate(run, scores, tmp_path):
    assert run(*COMMAND).code == 0
    assert run("debias", "scores.csv", *ROLES, "--method", "group-thresholds", "--out", "rule", "--overwrite").code == 0
    assert not (tmp_path / "rule" / "candidates").exists()


def test_python_chooses_the_same(run, scores, tmp_path):
    assert run(*COMMAND).code == 0
    assert run(*COMMAND, "--choose", "original").code == 0
    case = eq.Case(**_read(tmp_path / "rule" / "run.json")["case"])
    repaired = case.debias().choose("original")
    assert repaired.comparisons["y"].outcome == "unchanged"
    repaired.save(tmp_path / "python")
    assert (tmp_path / "python" / "rule.json").read_text() == (tmp_path / "rule" / "rule.json").read_text()
    with pytest.raises(eq.BadInput, match="group-thresholds"):
        case.debias().choose("nothing")


def test_a_rule_for_the_originals_scores_is_taken_without_the_methods(run, scores, tmp_path, monkeypatch):
    command = ("debias", "scores.csv", *ROLES, "--method", "single-threshold", "--set", "repair.test=test.csv", "--out", "rule")
    assert says(run(*command, "--choose", "level up").err, "debias")
    assert run(*command).code == 0
    first = (tmp_path / "rule" / "rule.json").read_text()
    for name in ("level up", "smallest gap", "original"):
        ran = run(*command, "--choose", name, "--json")
        assert (ran.code, json.loads(ran.out)["chosen"]) == (0, name), ran.err
        rule = _read(tmp_path / "rule" / "rule.json")
        assert rule["needs_group"] == (name != "original")
        if name == "level up":
            assert all(cut <= 0.5 for cut in rule["thresholds"])
        assert "taken in place of" in (tmp_path / "rule" / "report.html").read_text()
    assert (run(*command, "--choose", "level up", "--max-gap", "0.01").code, rule["value"]) == (2, 0.5)
    assert says(run(*command, "--choose", "levelup").err, "'level up'")
    assert run(*command, "--choose", "single-threshold").code == 0
    assert (tmp_path / "rule" / "rule.json").read_text() == first


def test_a_rule_is_not_judged_on_the_rows_that_it_was_fitted_to(run, scores, tmp_path):
    command = ("debias", "scores.csv", *ROLES, "--method", "group-thresholds", "--test", "cross", "--out", "rule")
    ran = run(*command, "--verbose")
    assert ran.code == 0, ran.err
    assert "smallest gap" not in ran.out
    ran = run(*command, "--choose", "smallest gap")
    assert (ran.code, says(ran.err, "smallest gap", "--method", "group-thresholds")) == (2, True)
    assert run(*command, "--choose", "original").code == 0
