"""Goals of `equipoise debias`: auto, honest selection, kept rates, the threshold in use, and the test set."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

from equipoise import Cohort
from equipoise.methods import Note
from equipoise.models import predict
from equipoise.models.export import HEADS_FILE
from equipoise.report.wording.notes import note_words
from support import hospital
from support.bundles import rule_in_file
from support.facts import says
from support.hospital import FAST, TABLE


@pytest.mark.parametrize("chosen", ["bias-score", "group-thresholds", "bias-gda"])
def test_auto_writes_the_folder_of_the_chosen_method(table, tmp_path, chosen):
    options = [
        "--set",
        "auto.methods=standard",
        "--set",
        f"auto.methods={chosen}",
        "--set",
        "auto.allow_group=true",
        "--set",
        "goal.min_performance=0.6",
        "--set",
        "report.onnx=false",
        "--set",
        "repair.draws=20",
    ]
    own = {"bias-gda": {"schedule": "paper", "epochs": 3, "learning_rate": 0.01}}
    code, out, err = table(*TABLE, "--method", "auto", *options, "--set", f"auto.settings={json.dumps(own)}")
    assert (code, err) == (0, "")
    assert says(out, f"Method: {chosen}, chosen by auto.", "eod")
    run = json.loads(Path("repaired/run.json").read_text())
    assert (run["method"], run["ran"]) == ("auto", chosen)
    assert (HEADS_FILE in run["files"]) == (tmp_path / "repaired" / HEADS_FILE).exists() == (chosen == "bias-score")
    assert json.loads(Path("repaired/rule.json").read_text())["needs_group"] == (chosen == "group-thresholds")
    assert set(load_file("repaired/repaired.safetensors")) == set(load_file("net.safetensors"))
    page = Path("repaired/report.html").read_text()
    assert says(page, f"repaired by {chosen}, chosen by auto", f"tried {chosen}", "tried standard")
    assert f"with {chosen}, chosen by auto\n" in Path("repaired/card.md").read_text()
    assert table("apply", "repaired", "new.csv", "--trust").code == 0


@pytest.mark.parametrize(
    ("measure", "name", "words"),
    [
        ("tpr - fpr", "tpr-fpr", "sensitivity - false positive rate"),
        ("ppv_gap", "ppv_gap", "positive predictive value"),
    ],
)
def test_a_sum_of_rates_and_a_quotient_are_named_in_words(table, measure, name, words):
    code, out, err = table(*TABLE, *FAST, "--measure", measure)
    assert (code, err) == (0, "")
    assert name in out
    assert words in Path("repaired/card.md").read_text()

    assert words in Path("repaired/report.html").read_text()


def test_notes_about_the_rows_are_printed_once(table, tmp_path):
    frame = pd.read_csv("local.csv")
    frame.loc[:9, "sex"] = None
    frame = frame[(frame["sex"] != "F") | (frame["sick"] == 0) | (frame["pid"] < 22)]
    frame.to_csv("local.csv", index=False)
    code, out, _ = table(
        *TABLE,
        *FAST,
        "--method",
        "bias-gda",
        "--method",
        "reject-option",
        "--method",
        "equalised-odds",
        "--verbose",
        "--set",
        "repair.force=true",
    )
    assert code == 0
    chosen = next(line.split()[0] for line in out.splitlines() if "(chosen)" in line)
    notes = json.loads(Path("repaired/audit.json").read_text())["methods"][chosen]["notes"]
    assert notes
    out = " ".join(out.split())  # lines are wrapped
    for note in notes:
        numbers = {name: value for name, value in note.items() if name not in ("kind", "subject")}
        assert f"{chosen}: {note_words(Note(note['kind'], note['subject'], numbers))}" in out
    assert out.count("too few to distinguish a gap from chance") == 1
    ways = [way for way in ("its threshold without the band", "the mean of all groups' probabilities") if way in out]
    assert len(ways) == 2  # how either rule decides a row without a group


def test_names_of_methods_are_not_broken_within_a_word_in_80_columns(table, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    methods = [part for name in ("bias-gda", "equalised-odds", "group-thresholds") for part in ("--method", name)]
    code, out, _ = table(*TABLE, *FAST, *methods)
    assert code == 0
    rows = out[out.index("held-out") :].split("\n\n\n")[0].splitlines()[1:]  # the tables
    assert max(map(len, rows)) <= 80
    heads = [row.split("  ")[0].strip() for row in rows]
    assert {"original", "bias-gda"} <= {head.removesuffix(" (chosen)") for head in heads}
    assert any(head.startswith("equalised-odds") for head in heads)
    assert any(head.startswith("group-thresholds") for head in heads) or heads[heads.index("group-") + 1].startswith("thresholds")


@pytest.mark.parametrize("method", ["group-thresholds", "reject-option", "equalised-odds"])
def test_a_declined_rule_is_not_reported_to_need_the_group(table, method):
    code, out, err = table(*TABLE, "--method", method, "--set", "goal.selection=honest", "--set", "report.onnx=false")
    assert (code, err) == (0, "")
    assert out.startswith("Unchanged")
    assert json.loads(Path("repaired/rule.json").read_text())["needs_group"] is False
    notes = json.loads(Path("repaired/audit.json").read_text())["methods"][method]["notes"]
    assert [note["kind"] for note in notes if note["kind"] in ("needs_group", "band", "randomised")] == []
    assert f"{method}: needs each patient's group" not in out


def test_max_loss_sets_the_minimum_performance(table):
    quick = ["--set", "repair.draws=20", "--set", "bias-gda.schedule=paper", "--set", "bias-gda.epochs=3", "--set", "report.onnx=false"]
    assert table(*TABLE, *quick, "--max-loss", 0.1).code == 0
    goal, trace = json.loads(Path("repaired/run.json").read_text())["goal"], pd.read_csv("repaired/trace.csv")
    assert goal["min_performance"] == pytest.approx(trace["performance"].iloc[0] - 0.1)


def test_honest_selection_reports_the_cross_fitted_correction(table):
    assert table(*TABLE, *FAST, "--set", "goal.selection=honest").code == 0
    assert json.loads(Path("repaired/run.json").read_text())["goal"]["selection"] == "honest"
    trace = pd.read_csv("repaired/trace.csv").query("method == 'bias-gda'")
    assert trace[["gap_honest", "gap_se", "performance_honest", "performance_se", "expected_gap"]].iloc[[0, -1]].notna().all(axis=None)


@pytest.mark.parametrize(("option", "least"), [(["--set", "goal.keep.tpr=before"], None), (["--set", "goal.keep.tpr=0.8"], 0.8)])
def test_no_group_falls_below_the_kept_rate(table, option, least):
    assert table(*TABLE, "--method", "group-thresholds", "--set", "report.onnx=false", "--set", "repair.draws=20", *option).code == 0
    run, rule = json.loads(Path("repaired/run.json").read_text()), rule_in_file(Path("repaired/rule.json"))
    assert run["met"] is None  # the goal has no maximum gap
    assert run["goal"]["keep"] == {"tpr": least or "before"}
    model, (frame, x, _) = hospital.network("build").eval(), hospital.patients()
    model.load_state_dict(load_file("net.safetensors"))
    cohort = Cohort.from_arrays(torch.from_numpy(x), frame["sick"], frame["sex"], reference="M", patients=frame["pid"])
    scores = predict(model, cohort.hold_out(0.3)[0])
    before = scores.score >= pd.read_csv("repaired/trace.csv").query("method == 'standard'")["threshold"].iloc[0]
    for group in ("M", "F"):
        sick = (scores.attribute.codes == scores.attribute.levels.index(group)) & (scores.y == 1)
        assert rule.decide(scores)[sick].mean() >= (before[sick].mean() if least is None else least)


# the rule in use, an official test set, and too few patients


FEW = ["--method", "group-thresholds", "--set", "report.onnx=false"]


def test_the_original_is_evaluated_at_the_threshold_in_use(table):
    code, out, _ = table(*TABLE, *FEW, "--threshold", 0.3)
    assert (code, "0.3" in next(line for line in out.splitlines() if "original decides" in line)) == (0, True)
    found, trace = json.loads(Path("repaired/audit.json").read_text()), pd.read_csv("repaired/trace.csv")
    assert found["before"]["threshold"] == 0.3
    assert found["original"]["in_use"] is True
    assert trace.groupby("method")["threshold"].first().to_dict() == {"standard": 0.3, "group-thresholds": 0.3}
    assert table(*TABLE, *FEW, "--threshold", 1.3, "--overwrite").code == 2


def test_an_official_test_set_is_used_unchanged(table, tmp_path):
    frame = pd.read_csv("local.csv")
    test = frame["pid"] >= frame["pid"].max() - 40
    frame[test].to_csv("official.csv", index=False)
    frame[~test].to_csv("first.csv", index=False)
    command = ["debias", "first.csv", *TABLE[2:], *FEW, "--test", "official.csv"]
    assert table(*command).code == 0
    run = json.loads(Path("repaired/run.json").read_text())
    assert run["sets"] == {
        "repair": {"rows": int((~test).sum()), "patients": int(frame.loc[~test, "pid"].nunique())},
        "test": {"rows": int(test.sum()), "patients": int(frame.loc[test, "pid"].nunique())},
    }
    assert "official.csv" in run["provenance"]["hashes"]
    code, _, err = table(*command, "--set", "repair.test_fraction=0.2", "--overwrite")
    assert (code, says(err, "repair.test_fraction")) == (2, True)
    both = ["debias", "local.csv", *TABLE[2:], *FEW, "--test", "official.csv", "--overwrite"]
    code, _, err = table(*both)
    shared = frame.loc[test, "pid"].nunique()
    assert (code, says(err, f"{shared} of {shared}")) == (2, True)
    other = frame[test].assign(sex=lambda rows: rows["sex"].where(rows.index % 9 > 0, "X"))
    other.to_csv("official.csv", index=False)
    code, _, err = table(*command, "--overwrite")
    assert (code, says(err, "'X'", "sex")) == (2, True)


def test_too_few_patients_stop_the_repair_unless_forced(table):
    frame = pd.read_csv("local.csv")
    kept = (
        (frame["sex"] != "F")
        | (frame["sick"] == 0)
        | frame["pid"].isin(frame.loc[(frame["sex"] == "F") & (frame["sick"] == 1), "pid"].unique()[:6])
    )
    frame[kept].to_csv("local.csv", index=False)
    code, _, err = table(*TABLE, *FEW)
    assert code == 2
    assert says(err, "'F' positives", "in the repair set", "in the test set", "--set", "repair.force=true", "spd")
    assert not Path("repaired").exists()
    code, out, _ = table(*TABLE, *FEW, "--set", "repair.force=true", "--json")
    assert code == 0
    found = json.loads(out)
    assert found["forced"] is True
    assert found["outcome"] in ("unclear", "harm", "unchanged")


def test_the_default_is_honest_and_lists_the_methods_tried(table):
    code, out, _ = table(
        *TABLE,
        "--set",
        "goal.selection=honest",
        "--set",
        "report.onnx=false",
        "--set",
        "repair.group_rules=false",
        "--set",
        "repair.budget=0.04",
        "--json",
    )
    assert code == 0
    found = json.loads(out)
    assert found["chosen"] == "auto"
    assert not found["methods"]["auto"]["needs_group"]
    assert found["goal"]["selection"] == "honest"
    assert found["outcome"] == found["judgement"]["outcome"]
    code, _, err = table(*TABLE, *FEW, "--set", "repair.group_rules=false", "--overwrite")
    assert (code, says(err, "group-thresholds")) == (2, True)


def test_the_reason_for_keeping_the_original_is_what_the_other_steps_lack(run, tmp_path):
    """Scores without an error: every other threshold flags more equal shares of the groups, and loses performance."""
    sick = {"F": 0.2, "M": 0.8}
    rows = [(g, int(k < 200 * sick[g]), k) for g in sick for k in range(200)]
    lines = [f"{y},{0.5 + (0.1 + k % 100 / 250) * (1 if y else -1):.3f},{g}" for g, y, k in rows]
    (tmp_path / "scores.csv").write_text("\n".join(["y,p,sex", *lines]))
    columns = ["--score", "p", "--label", "y", "--group", "sex", "--reference", "M"]
    method = ["--method", "single-threshold", "--measure", "spd", "--max-loss", 0.01, "--set", "goal.selection=honest"]
    code, out, _ = run("debias", "scores.csv", *columns, *method, "--out", "rule")
    assert (code, out.startswith("Unchanged")) == (0, True)
    assert not says(out, "no step has a smaller |spd|")
    assert says(" ".join(out.split()), "balanced accuracy that may be below 0.990")  # the minimum, which the others miss


def test_net_benefit_at_the_stated_odds_goes_through_to_the_bundle(run, tmp_path):
    rng = np.random.default_rng(0)
    y, sex = rng.integers(0, 2, 1200), rng.choice(["F", "M"], 1200)
    score = np.clip(0.3 + 0.4 * y - 0.15 * (sex == "F") + rng.normal(0, 0.2, 1200), 0, 1).round(4)
    pd.DataFrame({"p": score, "y": y, "sex": sex}).to_csv(tmp_path / "scores.csv", index=False)
    command = ("debias", "scores.csv", "--score", "p", "--label", "y", "--group", "sex", "--threshold", "0.5", "--out", "rule")
    limits = ("--set", "goal.max_rise.fpr=0.04", "--set", "goal.max_rate.selection=0.9", "--set", "goal.max_loss=0.05")
    ran = run(*command, "--missed-case-worth", "10", *limits, "--method", "level-up", "--verbose")
    assert ran.code == 0, ran.err
    assert "10 false alarms" in ran.out.replace("\n", " ")
    goal = json.loads((tmp_path / "rule" / "run.json").read_text())["goal"]
    assert (goal["missed_case_worth"], goal["max_rise"], goal["max_rate"]) == (10, {"fpr": 0.04}, {"selection": 0.9})
    assert "net benefit" in (tmp_path / "rule" / "report.html").read_text().lower()


def test_all_that_is_wrong_with_a_goal_is_reported_at_once(run, tmp_path):
    pd.DataFrame({"p": [0.1, 0.9], "y": [0, 1], "sex": ["F", "M"]}).to_csv(tmp_path / "scores.csv", index=False)
    command = ("debias", "scores.csv", "--score", "p", "--label", "y", "--group", "sex", "--pdf", "x.html", "--fail-if", "harmful")
    wrong = ("--set", "goal.max_rise.fpr=7", "--set", "goal.max_rate.fp=0.2", "--missed-case-worth", "-1.0")
    ran = run(*command, *wrong)
    assert ran.code == 2
    assert says(ran.err, "x.html", "harmful", "7 for fpr", "'fpr'", "--missed-case-worth", "-1.0", "max_rise", "max_rate")
