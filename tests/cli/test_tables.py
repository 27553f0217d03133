"""Tables on the command line: unchanged identifiers, binned ages, groups that vary within patients, limits of size."""

import csv
import gzip
import hashlib
import io
import json
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from equipoise import cli
from support import hospital
from support.facts import says

ODD = ["007", "7", "00017", "123456789012345678", "123456789012345679", "NA", "null", "1e5", "True", "2026-11-15", "Zoë 李", " a ", "=1+1"]
ODD += ["-2", "@x", "+y", "\ttab", 'quo"te', "a,b"]
DATA = os.environ.get("EQUIPOISE_DATA")  # before `run` unsets it
NETWORK = ["--model", "net.py:build", "--weights", "net.safetensors", "--set", "report.onnx=false", "--set", "repair.draws=10"]


def _write(path: str, frame: pd.DataFrame) -> str:
    frame.to_parquet(path, index=False) if path.endswith(".parquet") else frame.to_csv(path, index=False)
    return path


def _scores(n: int = 240) -> pd.DataFrame:
    """Two rows per patient, of whom every tenth passes an age of 60 between them."""
    rng = np.random.default_rng(0)
    patient = np.arange(n) // 2
    age = np.where(patient % 10 == 0, 59 + np.arange(n) % 2, rng.integers(20, 95, n // 2)[patient])
    frame = pd.DataFrame({"pid": [f"{k:04d}" for k in patient], "age": age, "sex": np.where(patient % 3, "F", "M"), "y": np.arange(n) % 2})
    return frame.assign(p=np.clip(rng.normal(0.4 + 0.2 * frame.y, 0.2), 0, 1).round(3))


AUDIT = ["--label", "y", "--score", "p"]


# audit


def test_a_folder_is_audited_as_one_table(run):
    frame = _scores(400)
    Path("visits/sex=F").mkdir(parents=True)
    Path("visits/sex=M").mkdir()
    for sex, part in frame.groupby("sex"):
        part.drop(columns="sex").to_parquet(f"visits/sex={sex}/rows.parquet")
    options = [*AUDIT, "--group", "sex", "--group", "age", "--bins", "age=40,60", "--patient", "pid", "--json"]
    whole, parts = (json.loads(run("audit", place, *options).out) for place in (_write("s.csv", frame), "visits"))
    assert (parts["rows"], parts["patients"], parts["comparisons"]) == (whole["rows"], whole["patients"], whole["comparisons"])
    assert [row["value"] for row in parts["gaps"]] == pytest.approx([row["value"] for row in whole["gaps"]], nan_ok=True)
    assert [row["group"] for row in parts["groups"]] == [row["group"] for row in whole["groups"]]


def test_a_folder_has_all_figures_and_refuses_ids_and_unknown_columns(run):
    Path("visits").mkdir()
    frame = _scores(40)
    _write("visits/a.parquet", frame)
    rest = [*AUDIT, "--group", "sex"]
    ran = run("audit", "visits", *rest, "--set", "report.figures=figures")
    assert (ran.code, ran.err) == (0, "")
    assert run("audit", _write("s.csv", frame), *rest, "--set", "report.figures=whole").code == 0
    drawn, whole = ({path.name for path in Path(name).iterdir()} for name in ("figures", "whole"))
    assert {"rates.svg", "gaps.svg", "calibration.svg", "decision-curves.svg"} == drawn == whole
    for more, named in ((["--set", "data.id=pid"], "data.id"), (["--group", "ward"], "'ward'")):
        ran = run("audit", "visits", *rest, *more)
        assert ran.code == 2
        assert says(ran.err, named)


@pytest.mark.parametrize("name", ["s.csv", "s.parquet"])
def test_an_audit_distinguishes_007_and_7(run, name):
    frame = _scores(80).assign(
        pid=np.repeat(["007", "7", "07", "7.0"] + [f"p{k}" for k in range(36)], 2), ward=["1", "01", "1.0", "NA"] * 20
    )
    found = run("audit", _write(name, frame), *AUDIT, "--group", "ward", "--reference", "01", "--patient", "pid", "--json")
    told = json.loads(found.out)
    assert told["patients"] == 40
    assert {row["group"]: row["n"] for row in told["groups"]} == {"01": 20, "1": 20, "1.0": 20, "NA": 20}
    assert told["missing_attribute_share"] == {"ward": 0}


def test_ages_are_binned_and_patients_may_change_bins(run):
    frame = _scores()
    arguments = ["audit", _write("s.csv", frame), *AUDIT, "--group", "age", "--bins", "age=40,60,80", "--patient", "pid"]
    told = json.loads(run(*arguments, "--reference", "<40", "--json").out)
    expected = pd.cut(frame["age"], [0, 39, 59, 79, 120], labels=["<40", "40-59", "60-79", "80+"]).value_counts(sort=False)
    assert {row["group"]: row["n"] for row in told["groups"]} == expected.to_dict()
    assert [row["group"] for row in told["groups"]] == ["<40", "40-59", "60-79", "80+"]
    assert (told["patients_in_several_groups"], told["conflicts"]) == ({"age": 12}, "row")
    shown = run(*arguments)
    assert shown.code == 0
    assert " ".join(shown.out.split()).count("age: 12 patients") == 1


@pytest.mark.parametrize("rule", ["first", "majority", "blank"])
def test_conflicts_are_resolved_by_a_rule(run, rule):
    frame = _scores(480).assign(band=lambda f: np.select([f["age"] < 60, f["age"] < 80], ["young", "old"], "oldest"))
    by_patient = frame.groupby("pid")["band"]
    settled = by_patient.transform("first") if rule != "blank" else frame["band"].where(by_patient.transform("nunique") == 1)
    arguments = [
        "audit",
        _write("s.csv", frame),
        *AUDIT,
        "--group",
        "band",
        "--reference",
        "old",
        "--patient",
        "pid",
        "--set",
        f"data.conflicts={rule}",
    ]
    told = json.loads(run(*arguments, "--json").out)
    assert {row["group"]: row["n"] for row in told["groups"]} == settled.value_counts().to_dict()  # two rows each: a majority is the first
    assert (told["patients_in_several_groups"], told["conflicts"]) == ({"band": 24}, rule)
    assert says(" ".join(run(*arguments).out.split()), "24 patients")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--group", "age", "--bins", "age"], ["COLUMN=EDGE"]),
        (["--group", "age", "--bins", "age=60,40"], ["ascending"]),
        (["--group", "sex", "--bins", "age=40"], ["'age'", "--group"]),
        (["--group", "age", "--bins", "age=40", "--bins", "age=50"], ["--bins", "age"]),
        (["--group", "sex", "--bins", "sex=40"], ["240 of 240", "row 1", "'M'"]),
        (["--group", "age"], ["--bins age="]),
        (["--group", "sex", "--set", "data.conflicts=last", "--patient", "pid"], ["data.conflicts", "'last'"]),
        (["--group", "sex", "--set", "data.conflicts=first"], ["--patient"]),
        (["--group", "age", "--bins", "age=60", "--patient", "pid", "--set", "data.conflicts=error"], ["12 of 120", "'age'"]),
        (["--group", "sex", "--set", "data.max_table_bytes=100"], ["s.csv", 100]),
        (["--group", "sex", "--out", "audit.pdf"], ["--out audit.json", "--pdf audit.pdf"]),
        (["--group", "sex", "--out", "audit.csv"], ["--out audit.json"]),
    ],
)
def test_bad_options_get_one_message(run, options, said):
    _write("s.csv", _scores())
    code, out, err = run("audit", "s.csv", *AUDIT, *options)
    assert (code, out) == (2, "")
    assert says(" ".join(err.split()), *said)
    assert "Traceback" not in err


def test_an_audit_is_written_as_a_page_and_as_json(run):
    ran = run("audit", _write("s.csv", _scores()), *AUDIT, "--group", "sex", "--report", "audit.html", "--out", "audit.json")
    assert ran.code == 0
    told = json.loads(Path("audit.json").read_text())
    assert told["provenance"]["hashes"] == {"s.csv": hashlib.sha256(Path("s.csv").read_bytes()).hexdigest()}
    assert says(Path("audit.html").read_text(), "equipoise audit s.csv", told["provenance"]["hashes"]["s.csv"])
    page = Path("audit.html").read_text()
    assert page.startswith("<!doctype html>")
    for row in told["groups"]:
        assert f"{100 * row['tpr']:.1f}%" in page
    _write("s.csv", _scores().assign(z=lambda f: 1 - f["y"]))
    assert run("audit", "s.csv", *AUDIT, "--label", "z", "--score", "p", "--group", "sex", "--report", "both.html").code == 0
    overview = Path("both.html").read_text()
    assert all(f'href="both-{label}.html"' in overview and Path(f"both-{label}.html").is_file() for label in ("y", "z"))


def test_labels_are_compared_with_the_positive_value_as_text(run):
    frame = _scores().assign(y=lambda f: np.where(f["y"] == 1, "1.0", "0"))
    _write("s.csv", frame)
    found = run("audit", "s.csv", *AUDIT, "--group", "sex", "--set", "data.positive=1.0", "--json")
    assert json.loads(found.out)["groups"][0]["positives"] == int(((frame["y"] == "1.0") & (frame["sex"] == "F")).sum())
    code, _, err = run("audit", "s.csv", *AUDIT, "--group", "sex", "--set", "data.positive=1")
    assert code == 2
    assert says(err, "'y'", "'1'")
    _write("s.csv", frame.assign(y=lambda f: np.where(f.index == 3, "NA", f["y"])))
    code, _, err = run("audit", "s.csv", *AUDIT, "--group", "sex", "--set", "data.positive=1.0")
    assert code == 2
    assert says(err, "1 of 240", "label")


def test_several_labels_with_a_positive_value_leave_out_unknown_labels(run):
    frame = _scores().assign(
        z=lambda f: np.where(f.index % 5 == 0, "-1", np.where(f["y"] == 1, "yes", "no")), y=lambda f: f["y"].map({1: "yes", 0: "no"})
    )
    frame.loc[7, "z"] = ""
    two = ["--label", "y", "--score", "p", "--label", "z", "--score", "p", "--group", "sex", "--set", "data.positive=yes", "--json"]
    told = json.loads(run("audit", _write("s.csv", frame), *two).out)["labels"]
    assert (told["y"]["rows"], told["z"]["rows"]) == (240, 240 - 48 - 1)


@pytest.mark.parametrize("rule", ["first", "majority", "blank"])
def test_the_group_of_a_patient_does_not_depend_on_which_labels_are_known(run, rule):
    n = 120
    frame = pd.DataFrame({"pid": np.arange(n) // 3, "y": np.arange(n) % 2, "z": (np.arange(n) // 2 % 2).astype(float)})
    # The first two rows of every fourth patient are of one race and have no z, the third is of another.
    third, changed = np.arange(n) % 3 == 2, frame["pid"] % 4 == 0
    frame = frame.assign(race=np.where(frame["pid"] % 2 ^ (third & changed), "b", "w"), p=0.5, age=50.0)
    frame.loc[changed & ~third, ["z", "age"]] = [np.nan, 50.5]  # a whole number wherever z is known
    two = ["--label", "y", "--score", "p", "--label", "z", "--score", "p", "--patient", "pid", "--json"]
    told = json.loads(run("audit", _write("s.csv", frame), *two, "--group", "race", "--set", f"data.conflicts={rule}").out)["labels"]
    settled = frame["race"].where(~changed, "w" if rule != "blank" else None)
    for name in ("y", "z"):
        counts = settled[frame[name].notna()].value_counts()
        assert {row["group"]: row["n"] for row in told[name]["groups"]} == counts.to_dict()
        assert told[name]["patients_in_several_groups"] == {"race": int(frame.loc[changed, "pid"].nunique())}
    ages = frame.assign(age=frame["age"] + 20 * (frame["pid"] % 2))
    told = json.loads(run("audit", _write("s.csv", ages), *two, "--group", "age", "--bins", "age=60").out)["labels"]
    assert {row["group"] for name in ("y", "z") for row in told[name]["groups"]} == {"<60", ">=60"}


def test_a_table_beyond_the_limit_is_refused_and_the_option_raises_it(run, monkeypatch):
    Path("s.csv.gz").write_bytes(gzip.compress(_scores().to_csv(index=False).encode()))
    arguments = ["audit", "s.csv.gz", *AUDIT, "--group", "sex"]
    monkeypatch.setenv("EQUIPOISE_MAX_TABLE_BYTES", "1000")
    assert run(*arguments).code == 2
    assert run(*arguments, "--set", f"data.max_table_bytes={10**6}").code == 0


@pytest.mark.parametrize("score", [0.9127555772777217, 0.016527635528529094])
def test_scores_of_17_digits_are_decided_the_same_in_csv_and_parquet(run, score):
    """Whatever the version of pandas: before 3.1, its default reads these scores as a neighbour on the other side of the threshold."""
    frame = _scores().assign(p=np.where(np.arange(240) % 3, score, np.nextafter(score, 0)))
    flagged = (frame["p"] >= score).groupby(frame["sex"]).mean().to_dict()
    Path("folder").mkdir()
    _write("folder/s.csv", frame)
    frame.to_csv("semicolon.csv", index=False, sep=";", decimal=",")
    for name in (_write("s.csv", frame), _write("s.parquet", frame), "semicolon.csv", "folder"):
        code, out, err = run("audit", name, *AUDIT, "--group", "sex", "--threshold", score, "--json")
        assert code == 0, err
        assert {row["group"]: row["selection_rate"] for row in json.loads(out)["groups"]} == flagged


@pytest.mark.parametrize("role", ["--patient", "--group", "data.id", "--label", "--score"])
def test_a_list_in_parquet_has_no_role(run, role):
    table = pa.Table.from_pandas(_scores().assign(id=np.arange(240)), preserve_index=False).append_column("l", pa.array([[1], [2]] * 120))
    pq.write_table(table, "s.parquet")
    roles = {"--label": "y", "--score": "p", "--group": "sex"} | {role: "l"}
    words = [("--set", f"{name}={value}") if "." in name else (name, value) for name, value in roles.items()]
    code, _, err = run("audit", "s.parquet", *(word for pair in words for word in pair))
    assert code == 2
    assert says(err, "'l'", "lists")


# the real scores of a published network


def test_the_chexnet_scores_are_audited_without_any_preparation(run):
    path = Path(DATA or "") / "chexnet-nih" / "scores.csv.gz"
    if not DATA or not path.is_file():
        pytest.skip("EQUIPOISE_DATA has no chexnet-nih/scores.csv.gz")
    groups = ["--group", "sex", "--group", "age", "--group", "view", "--bins", "age=40,60,80"]
    ran = run("audit", path, "--label", "Effusion", "--score", "score_Effusion", *groups, "--patient", "patient", "--json")
    assert (ran.code, ran.err) == (0, "")
    told = json.loads(ran.out)
    frame = pd.read_csv(path, dtype={"patient": str, "image": str})
    frame["age"] = pd.cut(frame["age"], [-1, 39, 59, 79, 200], labels=["<40", "40-59", "60-79", "80+"]).astype(str)
    assert (told["rows"], told["patients"]) == (len(frame), frame["patient"].nunique()) == (11425, 3093)
    for attribute in ("sex", "age", "view"):
        found = {row["group"]: (row["n"], row["positives"]) for row in told["groups"] if row["attribute"] == attribute}
        expected = frame.groupby(attribute)["Effusion"].agg(["size", "sum"])
        assert found == {group: tuple(counts) for group, counts in expected.iterrows()}
        varying = int((frame.groupby("patient")[attribute].nunique() > 1).sum())  # noqa: PD101
        assert told["patients_in_several_groups"].get(attribute, 0) == varying
    crossed = {row["group"]: row["n"] for row in told["groups"] if row["attribute"] == "sex & age & view"}
    expected = frame.groupby(["sex", "age", "view"]).size()
    assert crossed == {" & ".join(names): count for names, count in expected.items()}
    positives = frame[frame["Effusion"] == 1].assign(found=lambda f: f["score_Effusion"] >= 0.5).groupby("sex")["found"].mean()
    by_sex = next(row for row in told["gaps"] if row["attribute"] == "sex" and row["measure"] == "eod")
    assert by_sex["value"] == pytest.approx(positives["F"] - positives["M"])


# debias and apply


@pytest.fixture(scope="module")
def repaired(tmp_path_factory) -> Path:
    """A hospital whose rule decides by age band; its ids have leading zeros and its patients grow older."""
    folder = tmp_path_factory.mktemp("repaired")
    hospital.table(folder)
    frame = pd.read_csv(folder / "local.csv", dtype={"pid": str})
    rng = np.random.default_rng(0)
    age = np.where(np.arange(len(frame)) % 20 < 2, 59 + np.arange(len(frame)) % 2, rng.integers(20, 95, len(frame) // 2).repeat(2))
    frame = frame.assign(pid=frame["pid"].str.zfill(6), age=age, id=[f"{k:06d}" for k in range(len(frame))])
    frame.to_csv(folder / "local.csv", index=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        roles = ["--label", "sick", "--group", "age", "--bins", "age=60", "--reference", "<60", "--patient", "pid", "--set", "data.id=id"]
        inputs = ["--set", "data.features=a", "--set", "data.features=b", "--set", "data.features=c"]
        by_group = ["--method", "group-thresholds", "--set", "goal.selection=paper"]  # honest selection keeps the original for so few rows
        assert cli.run(["debias", "local.csv", *roles, *inputs, *NETWORK, *by_group, "--out", "repaired"]) == 0
    return folder


def test_a_repair_stores_its_bins_and_reports_varying_patients(repaired):
    told = json.loads((repaired / "repaired" / "run.json").read_text())
    assert told["inputs"]["bins"] == {"age": {"edges": [60.0], "whole": True}}
    assert says((repaired / "repaired" / "report.html").read_text(), "12 patients")
    assert says((repaired / "repaired" / "card.md").read_text(), "12 patients")


@pytest.mark.parametrize("name", ["new.csv", "new.parquet"])
def test_new_rows_are_binned_like_those_of_the_repair(repaired, run, monkeypatch, tmp_path, name):
    monkeypatch.chdir(repaired)
    new = pd.DataFrame(
        {"id": ["00012", "12", "1e5", "NA"], "pid": ["007", "7", "07", "7.0"], "age": [59.9, 60, 20, 94], "a": 0.3, "b": 0.1, "c": 0.0}
    )
    found = run("apply", "repaired", "--model", "net.py:build", _write(str(tmp_path / name), new), "--json")
    assert found.code == 0
    assert [line for line in found.err.splitlines() if "the outcome of this repair" not in line] == []
    rows = json.loads(found.out)["decisions"]
    assert [(row["id"], row["pid"]) for row in rows] == list(zip(new["id"], new["pid"], strict=True))
    rule = json.loads((repaired / "repaired" / "rule.json").read_text())
    cut = dict(zip(rule["groups"], rule["thresholds"], strict=True))
    assert [row["decision"] for row in rows] == [
        int(row["score"] >= cut[band]) for row, band in zip(rows, ["<60", "60+", "<60", "60+"], strict=True)
    ]


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("column", ["id", "pid"])
def test_ids_are_written_as_they_were_read(repaired, run, monkeypatch, tmp_path, kind, column):
    monkeypatch.chdir(repaired)
    n = len(ODD)
    new = pd.DataFrame({"id": [str(k) for k in range(n)], "pid": "p", "age": 50, "a": 0.3, "b": 0.1, "c": 0.0}).assign(**{column: ODD})
    out = tmp_path / "decisions.csv"
    assert run("apply", "repaired", "--model", "net.py:build", _write(str(tmp_path / f"new.{kind}"), new), "--out", out).code == 0
    written = list(csv.DictReader(io.StringIO(out.read_text(encoding="utf-8"), newline="")))
    assert [row[column] for row in written] == ODD
    assert list(written[0]) == ["id", "pid", "score", "decision"]


def test_integers_with_gaps_in_parquet_are_written_exactly(repaired, run, monkeypatch, tmp_path):
    monkeypatch.chdir(repaired)
    ids = pa.array([123456789012345678, None, 123456789012345679])
    numbers = {name: pa.array([0.1, 0.2, 0.3]) for name in "abc"}
    pq.write_table(pa.table({"id": ids, "age": pa.array([30, 70, None]), **numbers}), tmp_path / "new.parquet")
    found = run("apply", "repaired", "--model", "net.py:build", tmp_path / "new.parquet")
    assert [line.split(",")[0] for line in found.out.splitlines()] == ["id", "123456789012345678", "", "123456789012345679"]


def test_cells_that_a_spreadsheet_would_run_are_escaped_on_request(repaired, run, monkeypatch, tmp_path):
    monkeypatch.chdir(repaired)
    new = pd.DataFrame({"id": ODD, "age": 50, "a": -0.3, "b": 0.1, "c": 0.0})
    out = tmp_path / "decisions.csv"
    _write(str(tmp_path / "new.csv"), new)
    assert (
        run("apply", "repaired", "--model", "net.py:build", tmp_path / "new.csv", "--out", out, "--set", "apply.spreadsheet_safe=true").code
        == 0
    )
    written = list(csv.DictReader(io.StringIO(out.read_text(encoding="utf-8"), newline="")))
    assert [row["id"] for row in written] == [f"'{text}" if text[0] in "=+-@\t\r\n" else text for text in ODD]
    assert all(0 <= float(row["score"]) <= 1 for row in written)
    assert (
        run("apply", "repaired", "--model", "net.py:build", tmp_path / "new.csv", "--json", "--set", "apply.spreadsheet_safe=true").code
        == 2
    )


def test_an_id_column_with_a_name_of_the_output_is_refused(run, tmp_path):
    hospital.table(tmp_path)
    for name in ("local.csv", "new.csv"):
        pd.read_csv(name).rename(columns={"id": "score"}).to_csv(name, index=False)
    roles = [
        "--label",
        "sick",
        "--group",
        "sex",
        "--set",
        "data.id=score",
        "--set",
        "data.features=a",
        "--set",
        "data.features=b",
        "--set",
        "data.features=c",
    ]
    assert run("debias", "local.csv", *roles, *NETWORK, "--method", "standard", "--out", "repaired").code == 0
    code, out, err = run("apply", "repaired", "new.csv", "--model", "net.py:build")
    assert (code, out) == (2, "")
    assert "'score'" in err


def test_a_group_that_is_also_an_input_is_read_both_ways(run, tmp_path):
    hospital.table(tmp_path)
    frame = pd.read_csv("local.csv").assign(sex=lambda f: np.where(f["sex"] == "M", "1", "0"))
    frame.to_csv("local.csv", index=False)
    arguments = [
        "--label",
        "sick",
        "--group",
        "sex",
        "--set",
        "data.features=a",
        "--set",
        "data.features=sex",
        "--set",
        "data.features=c",
        *NETWORK[:4],
        "--json",
    ]
    told = json.loads(run("audit", "local.csv", *arguments).out)
    assert told["rows"] == len(frame)
    assert {row["group"] for row in told["groups"]} == {"0", "1"}


def test_ids_with_line_breaks_are_written_as_they_were_read(repaired, run, monkeypatch, tmp_path):
    monkeypatch.chdir(repaired)
    ids = ["a\rb", "\r", "c\nd", "e\r\nf", 'g"h', "007"]
    new = pd.DataFrame({"id": ids, "age": 50, "a": 0.3, "b": 0.1, "c": 0.0})
    new.to_parquet(tmp_path / "new.parquet")
    out = tmp_path / "decisions.csv"
    assert run("apply", "repaired", "--model", "net.py:build", tmp_path / "new.parquet", "--out", out).code == 0
    with out.open(encoding="utf-8", newline="") as file:
        assert [row["id"] for row in csv.DictReader(file)] == ids
    assert pd.read_csv(out, dtype={"id": str})["id"].tolist() == ids


def test_missing_and_duplicate_ids_are_reported(repaired, run, monkeypatch, tmp_path):
    monkeypatch.chdir(repaired)
    new = pd.DataFrame({"id": ["01", "1", "01"], "pid": "p", "age": 50, "a": 0.3, "b": 0.1, "c": 0.0})
    apply = ["apply", "repaired", "--model", "net.py:build"]
    code, out, err = run(*apply, _write(str(tmp_path / "new.csv"), new))
    assert (code, len(out.splitlines())) == (0, 4)
    assert says(err, 1, "'id'")
    code, out, err = run(*apply, _write(str(tmp_path / "new.csv"), new.drop(columns=["id", "pid"])))
    assert (code, out.splitlines()[0]) == (0, "row,score,decision")
    assert says(err, "'id'")
    assert "'id'" not in run(*apply, _write(str(tmp_path / "new.csv"), new.assign(id=["01", "1", "001"]))).err
