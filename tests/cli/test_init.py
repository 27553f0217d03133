"""`equipoise init`: what a table suggests, the case file that it writes, and the commands that read it."""

import json
import tomllib
from pathlib import Path

import jsonschema
import numpy as np
import pandas as pd
import pytest
import typer

from equipoise.case import Case, case_schema
from equipoise.cli import run
from support.command import ran as equipoise


def vendor(n: int = 900) -> pd.DataFrame:
    """A vendor's scores of three findings, their decisions at thresholds of their own, in a table with codes for what is unknown."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"study_id": [f"S{k}" for k in range(n)], "Patient ID": [f"P{k // 2}" for k in range(n)]})
    frame["Sex"] = rng.choice(["F", "M", "?"], n, p=[0.45, 0.5, 0.05])
    frame["PatientAge"], frame["View Position"] = rng.integers(5, 95, n), rng.choice(["PA", "AP"], n)
    frame["study_date"] = [f"2026-{1 + k % 12:02}-03" for k in range(n)]
    for label, cut in (("Effusion", 0.35), ("Mass", 0.6), ("Pneumonia", 0.41)):
        frame[label] = rng.integers(0, 2, n)
        frame[f"{label}_prob"] = (0.6 * rng.random(n) + 0.4 * frame[label] * rng.random(n)).round(3)
        frame[f"{label}_flag"] = (frame[f"{label}_prob"] >= cut).astype(int)
    return frame


def test_a_vendors_table_gives_labels_scores_thresholds_groups_patients_dates_views_and_codes(tmp_path: Path) -> None:
    vendor().to_csv(tmp_path / "vendor.csv", index=False)
    assert equipoise("init", tmp_path / "vendor.csv", "--out", tmp_path / "case.toml").code == 0
    case = tomllib.loads((tmp_path / "case.toml").read_text())
    assert case["data"].pop("reference")[0] == "M"
    assert case["data"] == {
        "table": "vendor.csv",
        "label": ["Effusion", "Mass", "Pneumonia"],
        "score": ["Effusion_prob", "Mass_prob", "Pneumonia_prob"],
        "group": ["Sex", "PatientAge"],
        "bins": {"PatientAge": [40, 60]},
        "patient": "Patient ID",
        "id": "study_id",
        "date": "study_date",
        "within": "View Position",
        "missing": "?",
    }
    thresholds = case["model"]["threshold"]
    for label, cut in (("Effusion", 0.35), ("Mass", 0.6), ("Pneumonia", 0.41)):
        assert abs(thresholds[label] - cut) < 0.01
        scores = vendor()[f"{label}_prob"]
        assert ((scores >= thresholds[label]) == (scores >= cut)).all()
    assert case["report"]["words"] == {"F": "women", "M": "men"}
    assert set(Case.load(tmp_path / "case.toml").audit().labels) == {"Effusion", "Mass", "Pneumonia"}


def test_every_guess_has_its_reason_and_the_first_line_names_the_schema(tmp_path: Path) -> None:
    vendor().to_csv(tmp_path / "vendor.csv", index=False)
    equipoise("init", tmp_path / "vendor.csv", "--patient", "Patient ID", "--out", tmp_path / "case.toml")
    lines = (tmp_path / "case.toml").read_text().splitlines()
    assert lines[0] == "#:schema case.schema.json"
    set_lines = [line for line in lines if line and line[0] not in "#[" and not line.startswith("table")]
    assert [line for line in set_lines if "  # " not in line] == ['patient = "Patient ID"']
    schema = json.loads((tmp_path / "case.schema.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(tomllib.loads("\n".join(lines)))


@pytest.mark.parametrize(
    "wrong", [{"data": {"labels": "y"}}, {"model": {"tolerance": "small"}}, {"elsewhere": {}}, {"repair": {"test_fraction": "half"}}]
)
def test_the_schema_refuses_what_the_case_refuses(wrong: dict[str, object]) -> None:
    assert list(jsonschema.Draft202012Validator(case_schema()).iter_errors(wrong))


def test_texts_as_labels_codes_of_groups_and_a_score_without_a_name(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    sick = rng.random(400) < 0.3
    frame = pd.DataFrame(
        {"mrn": np.arange(400) // 2 + 100_000, "gender": rng.integers(1, 3, 400), "smoker": rng.choice(["yes", "no"], 400)}
    )
    frame["readmitted"], frame["model_a"] = np.where(sick, "Yes", "No"), (0.5 * rng.random(400) + 0.4 * sick).round(3)
    frame.loc[:20, "readmitted"] = "Unknown"
    frame.to_csv(tmp_path / "t.csv", index=False)
    told = equipoise("init", tmp_path / "t.csv", "--out", tmp_path / "case.toml")
    data = tomllib.loads((tmp_path / "case.toml").read_text())["data"]
    assert (data["label"], data["score"], data["positive"], data["patient"], data["group"]) == (
        "readmitted",
        "model_a",
        "Yes",
        "mrn",
        "gender",
    )
    assert data["missing"] == "Unknown"
    assert "gender holds the codes 1, 2" in " ".join(told.err.split())


def test_a_network_and_its_transform_and_weights_are_found_next_to_each_other(tmp_path: Path) -> None:
    (tmp_path / "xrays").mkdir()
    for k in range(60):
        (tmp_path / f"xrays/{k}.png").write_bytes(b"x")
    frame = pd.DataFrame({"file_name": [f"{k}.png" for k in range(60)], "sex": ["F", "M"] * 30, "pneumonia": [0, 1, 1, 0] * 15})
    frame.to_csv(tmp_path / "local.csv", index=False)
    (tmp_path / "net.py").write_text(
        "def helper(x):\n    return x\n\ndef build():\n    return 1\n\ndef transform(image):\n    return image\n"
    )
    (tmp_path / "net.safetensors").write_bytes(b"")
    arguments = ("--images", tmp_path / "xrays", "--model", tmp_path / "net.py", "--out", tmp_path / "case.toml")
    assert equipoise("init", tmp_path / "local.csv", *arguments).code == 0
    case = tomllib.loads((tmp_path / "case.toml").read_text())
    assert case["images"] == {"folder": "xrays", "column": "file_name", "transform": "net.py:transform"}
    assert case["data"]["reference"] == "F"
    assert case["model"] == {"load": "net.py:build", "weights": "net.safetensors"}


def test_what_cannot_be_guessed_is_asked_for_by_its_flag_and_nothing_is_written(tmp_path: Path) -> None:
    pd.DataFrame({"a": [1, 2, 3] * 9, "b": ["x"] * 27}).to_csv(tmp_path / "t.csv", index=False)
    told = equipoise("init", tmp_path / "t.csv", "--out", tmp_path / "case.toml")
    assert told.code == 2
    assert all(flag in told.err for flag in ("--label", "--group", "--score"))
    assert not (tmp_path / "case.toml").exists()


def test_a_case_file_is_not_replaced_without_overwrite(tmp_path: Path) -> None:
    vendor().to_csv(tmp_path / "vendor.csv", index=False)
    (tmp_path / "case.toml").write_text("[data]\n")
    assert equipoise("init", tmp_path / "vendor.csv", "--out", tmp_path / "case.toml").code == 2
    assert (tmp_path / "case.toml").read_text() == "[data]\n"


def test_in_a_terminal_each_guess_can_be_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vendor().to_csv(tmp_path / "vendor.csv", index=False)
    answers = {"label": "Mass", "group": "Sex", "threshold": "0.5"}
    asked = []

    def prompt(text: str, default: str, **_: object) -> str:
        asked.append(text.partition(" ")[0])
        return answers.get(asked[-1], default)

    monkeypatch.setattr(typer, "prompt", prompt)
    monkeypatch.setattr("sys.stdin", type("Terminal", (), {"isatty": lambda _: True})())
    assert run(["init", str(tmp_path / "vendor.csv"), "--out", str(tmp_path / "case.toml")]) == 0
    case = tomllib.loads((tmp_path / "case.toml").read_text())
    assert asked == ["label", "score", "group", "patient", "threshold"]
    assert (case["data"]["label"], case["data"]["score"], case["data"]["group"]) == ("Mass", "Mass_prob", "Sex")
    assert case["model"]["threshold"] == 0.5


def test_the_same_case_audits_another_month_whose_name_is_its_period_and_a_repair_repeats_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    vendor().to_csv("2026-11.csv", index=False)
    vendor(950).to_csv("2026-12.csv", index=False)
    assert equipoise("init", "2026-11.csv", "--label", "Mass", "--group", "Sex").code == 0
    for table in ("2026-11.csv", "2026-12.csv"):
        assert equipoise("audit", "case.toml", "--table", table, "--append", "history.parquet").code == 0
    assert "2026-12" in equipoise("compare", "history.parquet").out
    assert equipoise("audit", "2026-11.csv", "--table", "2026-12.csv").code == 2
    assert equipoise("debias", "case.toml", "--method", "single-threshold", "--out", "first").code == 0
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    again = equipoise("debias", "../first", "--out", "second")
    assert again.code == 0, again.err
    first, second = (json.loads(Path(place, "rule.json").read_text()) for place in ("../first", "second"))
    assert first == second


def test_rare_groups_are_merged_ages_cut_less_often_and_what_stays_too_small_is_left_out_with_a_remark(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    n = 8_000
    frame = pd.DataFrame({"patient": np.arange(n), "sick": rng.integers(0, 2, n), "score": rng.random(n).round(4)})
    frame["race"] = rng.choice(["white", "black", "asian", "other one"], n, p=[0.7, 0.27, 0.02, 0.01])
    frame["age"] = np.r_[rng.integers(20, 65, n - 8), [85] * 8]
    frame["sex"] = ["F"] * 20 + ["M"] * (n - 20)
    frame.to_csv(tmp_path / "t.csv", index=False)
    told = equipoise("init", tmp_path / "t.csv", "--out", tmp_path / "case.toml")
    data = tomllib.loads((tmp_path / "case.toml").read_text())["data"]
    assert data["group"] == ["race", "age"]
    assert data["merge"] == {"other": ["other one", "asian"]}
    assert "sex" in told.err
    assert "sex" not in data["group"]
    assert 80 not in data["bins"]["age"]
    assert equipoise("debias", tmp_path / "case.toml", "--dry-run").code == 0


def test_the_folder_of_several_labels_decides_all_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    vendor().to_csv("vendor.csv", index=False)
    assert equipoise("init", "vendor.csv", "--label", "Mass", "--label", "Effusion", "--group", "Sex").code == 0
    assert equipoise("debias", "case.toml", "--method", "single-threshold").code == 0
    assert equipoise("apply", "repaired", "vendor.csv", "--out", "all.csv").code == 0
    assert equipoise("apply", "repaired/Mass", "vendor.csv", "--out", "mass.csv").code == 0
    both, mass = pd.read_csv("all.csv"), pd.read_csv("mass.csv")
    assert list(both.columns) == [
        "study_id",
        "Patient ID",
        *(f"{label} {what}" for label in ("Effusion", "Mass") for what in ("score", "decision")),
    ]
    assert (both["Mass decision"] == mass["decision"]).all()
    assert json.loads(equipoise("apply", "repaired", "vendor.csv", "--json").out)["Mass"]["positive"] == mass["decision"].sum()


def test_words_for_the_groups_of_one_of_two_attributes_reach_the_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    frame = vendor().assign(site=np.random.default_rng(3).choice(["north", "south"], 900))
    frame.to_csv("vendor.csv", index=False)
    assert equipoise("init", "vendor.csv", "--label", "Mass", "--group", "Sex", "--group", "site").code == 0
    told = equipoise("debias", "case.toml", "--method", "group-thresholds")
    assert (told.code, "not done" in told.err) == (0, False), told.err
    assert "women" in Path("repaired/report.html").read_text()
