"""`equipoise debias --score`: a rule is fitted to scores, and decides new scores on the command line and in Python."""

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import equipoise as eq
from equipoise.data import Columns, read_scores
from support.command import ran
from support.facts import says

COLUMNS = 200
FREELY = ("--allow-worse", "--set", "goal.max_rise.fpr=1", "--set", "goal.max_rise.selection=1")  # whatever it costs a group
ROLES = ("--label", "y", "--group", "sex", "--reference", "M", "--patient", "id")


def _table(n: int = 900, seed: int = 1) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    sex = rng.choice(["F", "M"], n // 2).repeat(2)
    y, mass = rng.integers(0, 2, n), rng.integers(0, 2, n)
    score = {name: 1 / (1 + np.exp(0.5 - rng.normal(2 * of - 1.4 * (sex == "F") * of, 1))) for name, of in (("p", y), ("score_mass", mass))}
    plain = {"id": [f"{k // 2:04d}" for k in range(n)], "sex": sex, "weight": 70 + 9 * (sex == "M") + rng.normal(0, 3, n)}
    return pd.DataFrame({**plain, "y": y, "mass": mass, "score_y": score["p"], **score}).round(4)


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Path:
    """The files of a vendor, and the folder of one repair."""
    place = tmp_path_factory.mktemp("vendor")
    table = _table()
    table.to_csv(place / "scores.csv", index=False)
    table.drop(columns=["y", "mass"]).to_csv(place / "new.csv", index=False)
    done = ran(
        *("debias", place / "scores.csv", "--score", "p", *ROLES, "--threshold", 0.5, "--method", "group-thresholds", *FREELY),
        *("--out", place / "rule"),
    )
    assert done.code == 0, done.err
    return place


def test_the_folder_holds_a_rule_and_no_weights(files):
    names = {path.name for path in (files / "rule").iterdir()}
    cards = {"card.md", "card.xml", "card.fhir.json"}
    assert names == {"README.txt", "audit.json", "report.html", "rule.json", "run.json", "trace.csv"} | cards
    run = json.loads((files / "rule" / "run.json").read_text())
    assert (run["predictor"], run["model"], run["inputs"]["score"]) == (None, None, ["p"])
    for name in ("report.html", "card.md", "card.xml", "README.txt"):
        text = (files / "rule" / name).read_text()
        assert "network" not in text.split("<body")[-1].lower().replace("neural network", "")


def test_the_outcome_is_that_of_held_out_patients_at_the_threshold_in_use(files):
    found = json.loads((files / "rule" / "audit.json").read_text())
    assert found["original"]["in_use"]
    assert found["judgement"]["source"] == "held-out"
    assert found["outcome"] in ("closed", "reduced")
    assert found["before"]["rows"] == pytest.approx(0.3 * 900, abs=4)


def test_the_declared_family_of_comparisons_is_that_of_the_audits_of_a_repair(files, tmp_path):
    case = f'''data = {{ table = "{files / "scores.csv"}", label = "y", score = "p", group = "sex", reference = "M", patient = "id" }}
model.threshold = 0.5
audit.primary = "ppv_gap"
'''
    (tmp_path / "case.toml").write_text(case)
    how = ("--method", "group-thresholds", *FREELY, "--measure", "eod")
    done = ran("debias", tmp_path / "case.toml", *how, "--out", tmp_path / "rule")
    assert done.code == 0, done.err
    after = json.loads((tmp_path / "rule" / "audit.json").read_text())["after"]
    tested = {gap["measure"] for gap in after["gaps"] if gap["p_adjusted"] is not None}
    assert tested == {"ppv_gap", "eod", "fnr_gap"}  # as declared, with that of the goal, and its mirror
    assert after["comparisons"] == 2


def test_new_scores_are_decided_alike_by_the_command_and_in_python(files):
    table = pd.read_csv(files / "new.csv", dtype={"id": str})
    by_command = ran("apply", files / "rule", files / "new.csv", "--out", files / "decisions.csv")
    assert by_command.code == 0, by_command.err
    decided = pd.read_csv(files / "decisions.csv", dtype={"id": str})
    bundle = eq.Bundle.load(files / "rule")
    pd.testing.assert_frame_equal(bundle.decide(table), decided)
    cuts = dict(zip(bundle.rule.groups, bundle.rule.thresholds, strict=True))
    assert decided["decision"].tolist() == [int(p >= cuts[sex]) for p, sex in zip(table["p"], table["sex"], strict=True)]
    scores = eq.Scores.from_frame(_table(), label="y", score="p", group="sex", reference="M")
    assert bundle.decide(scores)["decision"].tolist() == decided["decision"].tolist()


def test_python_makes_the_same_rule(files):
    run = json.loads((files / "rule" / "run.json").read_text())
    scores = eq.Scores.from_frame(
        pd.read_csv(files / "scores.csv", dtype={"id": str}),
        label="y",
        score="p",
        group="sex",
        reference="M",
        patient="id",
        name="scores.csv",
    )
    repair, _ = scores.hold_out(seed=run["provenance"]["seed"])
    goal = eq.Goal("eod", threshold=0.5, allow_worse=True, max_rise={"fpr": 1, "selection": 1})
    found = eq.debias(repair, method="group-thresholds", goal=goal)
    assert found.rule == eq.Bundle.load(files / "rule").rule


@pytest.mark.parametrize("how", [{"sep": ";", "decimal": ","}, {"sep": "\t", "decimal": ","}, {"sep": "|"}], ids=str)
def test_a_file_with_other_separators_holds_the_same_scores(files, tmp_path, how):
    _table().to_csv(tmp_path / "scores.csv", index=False, **how)
    reading = Columns(label="y", group="sex", score="p", patient="id", features="weight")
    plain, other = (read_scores(place / "scores.csv", reading)["y"] for place in (files, tmp_path))
    np.testing.assert_array_equal(plain.score, other.score)
    pd.testing.assert_frame_equal(plain.features.frame, other.features.frame)


def test_bias_score_on_named_columns_needs_no_group_for_new_rows(files, tmp_path):
    arguments = (
        "--score",
        "p",
        *ROLES,
        "--set",
        "data.features=weight",
        "--method",
        "bias-score",
        "--max-loss",
        0.1,
        "--threshold",
        0.5,
        *FREELY,
    )
    done = ran("debias", files / "scores.csv", *arguments, "--out", tmp_path / "rule")
    assert done.code == 0, done.err
    new = pd.read_csv(files / "new.csv").drop(columns="sex")
    decided = eq.Bundle.load(tmp_path / "rule").decide(new)
    assert set(decided["decision"]) == {0, 1}
    with pytest.raises(eq.BadInput, match="weight"):
        eq.Bundle.load(tmp_path / "rule").decide(new.drop(columns="weight"))


def test_labels_and_scores_are_paired_by_a_prefix_and_each_label_has_its_folder(files, tmp_path):
    table = _table()
    table["mass"] = table["mass"].astype(object).where(table.index >= 40, "")  # missing in the first rows
    table.to_csv(tmp_path / "scores.csv", index=False)
    arguments = ("--score-prefix", "score_", "--group", "sex", "--patient", "id", "--threshold", 0.5, "--method", "group-thresholds")
    done = ran("debias", tmp_path / "scores.csv", *arguments, "--out", tmp_path / "rules", "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert set(found["labels"]) == {"y", "mass"}
    assert found["labels"]["mass"]["before"]["rows"] < found["labels"]["y"]["before"]["rows"]
    new = pd.read_csv(files / "new.csv")
    assert len(eq.Bundle.load(tmp_path / "rules" / "mass").decide(new)) == len(new)
    assert "network" not in (tmp_path / "rules" / "README.txt").read_text()
    assert "network" not in (tmp_path / "rules" / "report.html").read_text().split("<body")[-1].lower()


def test_every_label_with_too_few_patients_is_listed_before_any_work(files, tmp_path):
    rare = _table().assign(a=lambda t: (t.index < 2).astype(int), b=lambda t: (t.index < 3).astype(int))
    rare.assign(score_a=rare["p"], score_b=rare["p"], score_y=rare["p"]).to_csv(tmp_path / "rare.csv", index=False)
    done = ran(
        "debias", tmp_path / "rare.csv", "--score-prefix", "score_", "--group", "sex", "--patient", "id", "--out", tmp_path / "rules"
    )
    assert done.code == 2
    assert says(done.err, "a: eod", "b: eod", "Leave 'a' out", "Leave 'b' out")
    assert "y: eod" not in done.err


def test_logits_give_the_rule_of_their_scores(files, tmp_path):
    table = _table()
    table.assign(p=np.log(table["p"] / (1 - table["p"]))).to_csv(tmp_path / "scores.csv", index=False)
    arguments = ("--score", "p", *ROLES, "--threshold", 0.5, "--method", "group-thresholds", *FREELY, "--out", tmp_path / "rule")
    refused = ran("debias", tmp_path / "scores.csv", *arguments)
    assert refused.code == 2
    assert says(refused.err, "p", "--set", "data.logits=true")
    assert ran("debias", tmp_path / "scores.csv", *arguments, "--set", "data.logits=true").code == 0
    bundle, plain = eq.Bundle.load(tmp_path / "rule"), eq.Bundle.load(files / "rule")
    assert bundle.rule.thresholds == pytest.approx(plain.rule.thresholds)
    new = pd.read_csv(tmp_path / "scores.csv", dtype={"id": str})
    assert bundle.decide(new)["decision"].tolist() == plain.decide(table)["decision"].tolist()


def test_the_dry_run_writes_nothing(files, tmp_path):
    done = ran("debias", files / "scores.csv", "--score", "p", *ROLES, "--dry-run", "--json", "--out", tmp_path / "rule")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert {row["set"] for row in found["sets"]} == {"repair", "test"}
    assert [row["method"] for row in found["methods"]] == ["standard", "auto"]
    assert not (tmp_path / "rule").exists()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((*ROLES,), ["--score", "--model"]),
        (("--score", "p", "--model", "x.py:f", *ROLES), ["--score", "--model"]),
        (("--score", "p", "--score", "score_y", *ROLES), ["1", "2", "--score"]),
        (("--score", "p", "--label", "mass", "--score", "p", *ROLES), ["p", "twice"]),
        (("--score", "q", *ROLES), ["q"]),
        (("--score", "p", "--label", "y", "--group", "p"), ["p", "more than one"]),
        (("--score", "p", *ROLES, "--set", "data.features=sex"), ["sex", "group-thresholds"]),
        (("--score", "p", *ROLES, "--method", "bias-score"), ["bias-score", "data.features"]),
        (("--score", "p", *ROLES, "--method", "pruning"), ["pruning", "group-thresholds"]),
        (("--score", "p", *ROLES, "--set", "repair.probe=true"), ["repair.probe", "--model"]),
        (("--score", "p", "--score-prefix", "score_", *ROLES), ["--score-prefix"]),
        (("--score-prefix", "risk_", *ROLES), ["risk_"]),
        (("--score-prefix", "score_", *ROLES, "--label", "sex"), ["sex", "score_sex"]),
        (("--score", "p", "--group", "sex"), ["--label"]),
    ],
)
def test_bad_options_are_one_message(files, tmp_path, arguments, told):
    done = ran("debias", files / "scores.csv", *arguments, "--out", tmp_path / "rule")
    assert done.code == 2
    assert "Traceback" not in done.err
    assert all(fact in done.err for fact in told), done.err


def test_missing_labels_and_empty_scores_name_the_column_and_the_count(files, tmp_path):
    table = _table()
    table.astype({"y": object}).assign(y=lambda t: t["y"].where(t.index > 6, "")).to_csv(tmp_path / "labels.csv", index=False)
    table.assign(p=table["p"].where(table.index > 3)).to_csv(tmp_path / "holes.csv", index=False)
    for name, column, count in (("labels", "y", 7), ("holes", "p", 4)):
        done = ran("debias", tmp_path / f"{name}.csv", "--score", "p", *ROLES, "--out", tmp_path / "rule")
        assert done.code == 2
        assert says(done.err, column, count)


def test_a_damaged_folder_and_wrong_new_rows_are_refused(files, tmp_path):
    shutil.copytree(files / "rule", tmp_path / "rule")
    rule = tmp_path / "rule" / "rule.json"
    rule.write_text(rule.read_text().replace("0.", "0.1", 1))
    assert ran("apply", tmp_path / "rule", files / "new.csv").code == 2
    new = pd.read_csv(files / "new.csv", dtype={"id": str})
    bundle = eq.Bundle.load(files / "rule")
    for bad, told in ((new.drop(columns="p"), "p"), (new.drop(columns="sex"), "sex"), (new.assign(p=new["p"] * 100), r"\[0, 1\]")):
        with pytest.raises(eq.BadInput, match=told):
            bundle.decide(bad)
    with pytest.raises(eq.BadInput, match="--model"):
        eq.Bundle.load(files / "rule", model="my.py:build")
    assert says(ran("apply", files / "rule", files / "new.csv", "--images", tmp_path).err, "--images")


def test_audit_takes_logits_and_a_prefix_as_well(tmp_path):
    table = _table()
    logit = {c: np.log(table[c] / (1 - table[c])) for c in ("score_y", "score_mass")}
    table.assign(**logit).to_csv(tmp_path / "logits.csv", index=False)
    table.to_csv(tmp_path / "scores.csv", index=False)
    roles = ("--score-prefix", "score_", "--group", "sex", "--patient", "id", "--json")
    plain, mapped = (
        ran("audit", tmp_path / "scores.csv", *roles),
        ran("audit", tmp_path / "logits.csv", *roles, "--set", "data.logits=true"),
    )
    assert (plain.code, mapped.code) == (0, 0), mapped.err
    first, second = json.loads(plain.out), json.loads(mapped.out)
    assert [row["value"] for row in first["labels"]["y"]["gaps"]] == pytest.approx(
        [row["value"] for row in second["labels"]["y"]["gaps"]], nan_ok=True
    )
