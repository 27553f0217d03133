"""The command line as users type it: what it prints, what it writes, and one clear message with exit code 2 for everything wrong."""

import gzip
import hashlib
import io
import json
import os
import re
import subprocess
import sys
import urllib.error
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import save_file

from equipoise import __version__, cli
from equipoise.data import CATALOGUE, Cohort, File, Recipe, catalogue, sha256
from equipoise.measures import GAPS
from equipoise.measures.performance import PERFORMANCE
from support.facts import says

COLUMNS = 80  # of the terminal
AUDIT = ["--label", "y", "--score", "p", "--group", "sex"]
SHORT = [*AUDIT, "--measure", "spd"]


def _frame(n: int = 80) -> pd.DataFrame:
    """Two rows a patient; both sexes and both labels in plenty."""
    rng = np.random.default_rng(0)
    half = n // 2
    frame = pd.DataFrame(
        {"id": np.arange(n), "pid": np.arange(n) // 2, "y": np.tile([0, 1, 1, 0], n)[:n], "sex": ["F"] * half + ["M"] * half}
    )
    return frame.assign(race=np.repeat(["a", "b", "a", "b"], n // 4), p=np.clip(rng.normal(0.4 + 0.2 * frame.y, 0.2), 0, 1).round(3))


def _csv(path: Path | str, frame: pd.DataFrame | None = None) -> Path:
    (_frame() if frame is None else frame).to_csv(path, index=False)
    return Path(path)


def _words(text: str) -> str:
    """The text without line ends and frames, which depend on the width."""
    return " ".join(text.replace("│", " ").split())


# what is printed and written


def test_an_audit_is_a_table_that_names_the_gap_its_groups_and_the_decision(run):
    _csv("scores.csv")
    code, out, err = run("audit", "scores.csv", *AUDIT, "--reference", "M", "--patient", "pid", "--id", "id")
    assert (code, err) == (0, "")
    assert says(out, "scores.csv", "80 rows", "40 patients")
    assert "M (ref.)" in out
    assert "F vs M" in out
    assert max(map(len, out.splitlines())) <= 80
    assert len(out.splitlines()) <= 24  # one screen
    every = run("audit", "scores.csv", *AUDIT, "--reference", "M", "--verbose").out
    assert "M (reference)" in every
    assert all(name in every for name in GAPS)


def test_json_is_the_whole_of_stdout_and_holds_value_low_high(run):
    _csv("scores.csv")
    code, out, err = run("audit", "scores.csv", *AUDIT, "--reference", "M", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["schema_version"] == 5
    assert {"value", "low", "high"} <= found["eod"].keys()
    assert set(found) >= {*GAPS, *PERFORMANCE}
    frame = _frame()
    rate = (frame["p"] >= 0.5).groupby(frame["sex"]).mean()
    assert found["spd"]["value"] == pytest.approx(rate["F"] - rate["M"])


def test_out_holds_what_json_prints_and_where_it_comes_from(run, tmp_path):
    _csv("scores.csv")
    assert run("audit", "scores.csv", *AUDIT, "--out", "new/result.json").code == 0
    printed = run("audit", "scores.csv", *AUDIT, "--json").out
    saved = json.loads((tmp_path / "new" / "result.json").read_text())
    origin = saved.pop("provenance")  # with the time, which would make two equal audits print different JSON
    assert saved == json.loads(printed)
    assert origin["files"] == {"scores.csv": hashlib.sha256((tmp_path / "scores.csv").read_bytes()).hexdigest()}


def test_one_seed_one_result(run):
    _csv("scores.csv")
    one, two, other = (run("audit", "scores.csv", *AUDIT, "--json", "--seed", seed).out for seed in (1, 1, 2))
    assert one == two != other


def test_figures_are_written_and_named(run, tmp_path):
    _csv("scores.csv")
    code, out, err = run("audit", "scores.csv", *SHORT, "--figures", "figures")
    assert (code, err) == (0, "")
    assert says(out, "figures")
    expected = {f"{name}.{kind}" for name in ("rates", "gaps", "thresholds", "calibration", "decision-curves") for kind in ("png", "svg")}
    assert {p.name for p in (tmp_path / "figures").iterdir()} == expected


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("excel.csv", lambda f, p: f.to_csv(p, index=False, sep=";", decimal=",", encoding="utf-8-sig")),
        ("scores.csv.gz", lambda f, p: p.write_bytes(gzip.compress(f.to_csv(index=False).encode()))),
        ("scores.parquet", lambda f, p: f.to_parquet(p)),
    ],
)
def test_every_kind_of_file_gives_the_same_audit(run, tmp_path, name, write):
    write(_frame(), tmp_path / name)
    _csv("plain.csv")
    found, expected = (json.loads(run("audit", file, *SHORT, "--json").out) for file in (name, "plain.csv"))
    assert found["spd"] == expected["spd"]


def test_a_column_called_group_is_a_column_like_any_other(run):
    _csv("scores.csv", _frame().rename(columns={"sex": "group"}))
    code, out, _ = run("audit", "scores.csv", "--label", "y", "--score", "p", "--group", "group", "--json")
    assert code == 0
    assert {row["group"] for row in json.loads(out)["groups"]} == {"F", "M"}


def test_words_as_labels_with_their_positive_value(run):
    _csv("scores.csv", _frame().assign(y=lambda d: d["y"].map({0: "no", 1: "yes"})))
    assert json.loads(run("audit", "scores.csv", *SHORT, "--positive", "yes", "--json").out)["groups"][0]["positives"] == 20


def test_several_groups_and_their_intersection(run):
    _csv("scores.csv")
    arguments = ["--group", "race", "--reference", "M", "--reference", "b", "--min-patients", 1]
    found = json.loads(run("audit", "scores.csv", *SHORT, *arguments, "--json").out)
    assert found["references"] == {"sex": "M", "race": "b", "sex & race": "M & b"}
    assert {row["attribute"] for row in found["groups"]} == {"sex", "race", "sex & race"}


def test_the_threshold_is_given_or_chosen_on_validation_rows_or_the_default(run):
    _csv("scores.csv")
    _csv("valid.csv", _frame(40).assign(p=lambda d: 0.2 + 0.1 * d["y"]))
    given = json.loads(run("audit", "scores.csv", *SHORT, "--threshold", 0.3, "--json").out)
    assert (given["threshold"], given["decision"]) == (0.3, "score >= 0.3 (given)")
    chosen = json.loads(run("audit", "scores.csv", *SHORT, "--valid", "valid.csv", "--json").out)
    assert 0.2 < chosen["threshold"] <= 0.3
    assert says(chosen["decision"], "balanced accuracy", 40, "valid.csv")
    assert says(json.loads(run("audit", "scores.csv", *SHORT, "--json").out)["decision"], 0.5, "default")


def test_rows_without_a_group_are_counted_and_said(run):
    frame = _frame()
    frame.loc[:7, "sex"] = None
    _csv("scores.csv", frame)
    code, out, _ = run("audit", "scores.csv", *SHORT)
    assert code == 0
    assert says(out, "sex", "10.0%")


# a network and a data file

NETWORK = """
from torch import nn

def network():
    return nn.Linear(2, 1)
"""
WITH_MODEL = ["--label", "y", "--group", "sex", "--reference", "M", "--id", "id", "--model", "net.py:network"]


@pytest.fixture
def network(run, tmp_path) -> torch.nn.Linear:
    """A network's code and weights, and a data file, in the current folder."""
    (tmp_path / "net.py").write_text(NETWORK)
    rng = np.random.default_rng(0)
    _csv("data.csv", _frame().drop(columns=["pid", "race", "p"]).assign(x1=rng.normal(size=80), x2=rng.normal(size=80)))
    torch.manual_seed(0)  # some of its logits lie outside [0, 1]; those of another start may not
    model = torch.nn.Linear(2, 1)
    save_file(model.state_dict(), "w.safetensors")
    torch.save(model.state_dict(), "w.pt")
    return model


@pytest.mark.parametrize("weights", ["w.safetensors", "w.pt"])
def test_a_network_is_audited_on_its_inputs_as_they_are(run, network, weights):
    code, out, err = run("audit", "data.csv", *WITH_MODEL, "--weights", weights, "--json")
    assert (code, err) == (0, "")
    frame = pd.read_csv("data.csv")
    with torch.no_grad():
        decided = torch.sigmoid(network(torch.tensor(frame[["x1", "x2"]].to_numpy(), dtype=torch.float32)))[:, 0].numpy() >= 0.5
    assert json.loads(out)["accuracy"]["value"] == pytest.approx((decided == frame["y"]).mean())


def test_what_a_network_prints_while_it_runs_is_no_part_of_the_result(run, network):
    Path("net.py").write_text(
        NETWORK.replace("return nn.Linear(2, 1)", "return Loud(2, 1)")
        + "\n\nclass Loud(nn.Linear):\n    def forward(self, x):\n        print('rows:', len(x))\n        return super().forward(x)\n"
    )
    code, out, err = run("audit", "data.csv", *WITH_MODEL, "--weights", "w.pt", "--json")
    assert (code, json.loads(out)["rows"]) == (0, 80)
    assert "rows: 80" in err
    for more in ("--dry-run", "--no-onnx"):
        repair = run("debias", "data.csv", *WITH_MODEL, "--weights", "w.pt", "--method", "reject-option", "--out", "new", more, "--json")
        assert repair.code == 0
        assert json.loads(repair.out)
        assert "rows: " in repair.err


def test_inputs_may_be_listed_in_the_networks_order(run, network):
    plain = json.loads(run("audit", "data.csv", *WITH_MODEL, "--weights", "w.pt", "--json").out)
    listed = json.loads(run("audit", "data.csv", *WITH_MODEL, "--weights", "w.pt", "--feature", "x2", "--feature", "x1", "--json").out)
    assert plain["auroc"]["value"] != listed["auroc"]["value"]


def test_what_the_network_gives_may_be_said(run, network):
    logit, probability = (
        run("audit", "data.csv", *WITH_MODEL, "--weights", "w.pt", "--output-type", kind, "--json") for kind in ("logit", "probability")
    )
    assert logit.code == 0
    assert probability.code == 2
    assert says(probability.err, "[0, 1]")


def test_an_exported_program_is_a_network_too(run, network):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, of its export
        program = torch.export.export(network, (torch.randn(4, 2),), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))
        torch.export.save(program, "net.pt2")
    arguments = [argument if argument != "net.py:network" else "net.pt2" for argument in WITH_MODEL]
    exported = run("audit", "data.csv", *arguments, "--json")
    assert exported.code == 0
    assert str(Path("net.pt2").absolute()) in exported.err  # it is code, and that it is run is shown
    assert hashlib.sha256(Path("net.pt2").read_bytes()).hexdigest() in exported.err
    plain = run("audit", "data.csv", *WITH_MODEL, "--weights", "w.pt", "--json")
    assert json.loads(exported.out)["auroc"] == json.loads(plain.out)["auroc"]


# everything that can be wrong with what is handed in


def _holding(**columns) -> pd.DataFrame:
    return _frame().assign(**columns)


def _put(value: object, column: str, rows: slice = slice(3, 4)) -> pd.DataFrame:
    frame = _frame()
    frame[column] = frame[column].astype(object)
    frame.loc[frame.index[rows], column] = value
    return frame


FULL = [*AUDIT, "--patient", "pid", "--id", "id"]
BAD_ROWS = {
    "missing column": (_frame().drop(columns="sex"), FULL, ["no column 'sex'", "The columns are: id, pid, y, race, p"]),
    "label not binary": (_put(2, "y"), FULL, ["label column 'y'", "1 of 80 rows", "0, 1, 2"]),
    "label in words": (_holding(y=["yes", "no"] * 40), FULL, ["label column 'y'", "no, yes", "--positive yes"]),
    "label missing": (_put(None, "y"), FULL, ["label column 'y'", "1 of 80 rows have no label"]),
    "one label": (_holding(y=1), FULL, ["label column 'y'", "only positives in all 80 rows"]),
    "score above 1": (_put(1.5, "p"), FULL, ["score column 'p'", "1 of 80 rows", "row 4", "outside [0, 1]"]),
    "score below 0": (_put(-0.5, "p"), FULL, ["score column 'p'", "1 of 80 rows", "outside [0, 1]", "logits"]),
    "scores as percentages": (_frame().assign(p=lambda d: d["p"] * 100), FULL, ["score column 'p'", "percentages: divide by 100"]),
    "score missing": (_put(None, "p"), FULL, ["score column 'p'", "1 of 80 rows", "empty (NaN)"]),
    "score in words": (_put("high", "p"), FULL, ["score column 'p'", "1 of 80 rows", "not numbers", "'high'"]),
    "a single group": (_holding(sex="F"), FULL, ["column 'sex'", "single group, 'F' (80 rows)"]),
    "no group at all": (_holding(sex=None), FULL, ["column 'sex'", "all 80 values are missing"]),
    "duplicate ids": (_put(0, "id"), FULL, ["id column 'id'", "1 ids occur more than once in 80 rows: 0"]),
    "a patient with two sexes": (
        _put("M", "sex"),
        [*FULL, "--conflicts", "error"],
        ["patient column 'pid'", "1 of 40 patients have more than one 'sex': 1"],
    ),
    "no positives for eod": (
        _frame().assign(y=lambda d: d["y"] * (d["sex"] == "M")),
        [*AUDIT, "--measure", "eod"],
        ["'F' has none of 40 rows"],
    ),
    "unknown reference": (_frame(), [*AUDIT, "--reference", "m"], ["'m'", "Did you mean 'M'?", "Valid: F, M"]),
    "unknown measure": (_frame(), [*AUDIT, "--measure", "EOD"], ["'EOD'", "Did you mean 'eod'?", "spd", "balanced_accuracy"]),
    "too few references": (_frame(), [*AUDIT, "--group", "race", "--reference", "M"], ["2 group columns need 2 references"]),
    "a column twice": (_frame(), [*AUDIT, "--group", "sex"], ["column 'sex' is named for more than one thing"]),
    "bad numbers": (
        _frame(),
        [*AUDIT, "--threshold", "50", "--level", "95", "--seed", "-1"],
        ["--threshold", "got 50", "--level", "--seed"],
    ),
    "draws without probes": (
        _frame(),
        [*AUDIT, "--draws", "1", "--min-patients", "0"],
        ["--draws requires --probe", "got 1", "--min-patients"],
    ),
    "threshold and valid": (_frame(), [*AUDIT, "--threshold", "0.5", "--valid", "scores.csv"], ["not both"]),
    "threshold is nan": (_frame(), [*AUDIT, "--threshold", "nan"], ["--threshold must be between 0 and 1; got nan"]),
    "weights without a model": (_frame(), [*AUDIT, "--weights", "w.pt"], ["--weights requires --model"]),
    "neither scores nor a model": (_frame(), ["--label", "y", "--group", "sex"], ["--score", "--model"]),
}


@pytest.mark.parametrize("case", BAD_ROWS)
def test_bad_rows_or_options_get_one_message_and_nothing_is_written(run, tmp_path, case):
    frame, arguments, expected = BAD_ROWS[case]
    _csv("scores.csv", frame)
    (tmp_path / "result.json").write_text("old")
    code, out, err = run("audit", "scores.csv", *arguments, "--out", "result.json", "--figures", "figures")
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("error: ") == 1
    assert "Traceback" not in err
    for part in expected:
        assert part in err
    assert (tmp_path / "result.json").read_text() == "old"
    assert {p.name for p in tmp_path.iterdir()} == {"scores.csv", "result.json"}


BAD_FILES = {
    "missing": ("score.csv", None, ["no such file: score.csv", "Did you mean 'scores.csv'?"]),
    "an empty folder": ("nothing", "folder", ["nothing is a folder"]),
    "empty": ("empty.csv", b"", ["empty.csv is empty"]),
    "header alone": ("header.csv", b"y,p,sex\n", ["header.csv has a header and no rows"]),
    "corrupt parquet": ("bad.parquet", b"PAR1 and then nothing", ["bad.parquet cannot be read"]),
    "a workbook": ("book.xlsx", b"PK\x03\x04...", ["book.xlsx is an Excel workbook"]),
    "a column twice": ("twice.csv", b"y,p,p,sex\n1,0.5,0.5,F\n", ["'p' more than once"]),
}


@pytest.mark.parametrize("case", BAD_FILES)
@pytest.mark.parametrize("role", ["file", "valid"])
def test_a_bad_file_gets_one_message_and_nothing_is_written(run, tmp_path, case, role):
    name, content, expected = BAD_FILES[case]
    _csv("scores.csv")
    if content == "folder":
        (tmp_path / name).mkdir()
    elif content is not None:
        (tmp_path / name).write_bytes(content)
    before = {p.name for p in tmp_path.iterdir()}
    arguments = [name, *SHORT] if role == "file" else ["scores.csv", *SHORT, "--valid", name]
    code, out, err = run("audit", *arguments, "--out", "result.json")
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    for part in expected:
        assert part in err
    assert {p.name for p in tmp_path.iterdir()} == before


def test_all_problems_of_one_file_come_in_one_message(run):
    frame = _put("high", "p").assign(y=2, sex="F", id=1)
    _csv("scores.csv", frame)
    code, _, err = run("audit", "scores.csv", *FULL)
    assert code == 2
    lines = err.splitlines()
    assert says(lines[0], "error", 4, "scores.csv")
    assert [line.split("'")[1] for line in lines[1:]] == ["y", "p", "sex", "id"]


BAD_MODELS = {
    "no file": (["--model", "none.py:network"], ["no such file: none.py"]),
    "no such factory": (["--model", "net.py:netwrk"], ["net.py defines no 'netwrk'", "Did you mean 'network'?"]),
    "no weights file": (["--weights", "none.pt"], ["no such file: none.pt"]),
    "weights that do not fit": (["--weights", "other.pt"], ["other.pt", "weight (1, 5), not (1, 2)"]),
    "inputs that do not fit": (["--feature", "x1"], ["shape (1,)", "the inputs that it was trained on"]),
    "input not there": (["--feature", "x1", "--feature", "x3"], ["data.csv: no feature column 'x3'"]),
    "input in words": (["--feature", "x1", "--feature", "sex"], ["data.csv: input column 'sex' holds no numbers"]),
    "input with a gap": (["--feature", "x1", "--feature", "hole"], ["'hole': 1 of 80 rows are empty or infinite"]),
    "unknown output": (["--output-type", "logits"], ["'logits'", "Did you mean 'logit'?"]),
    "a score as well": (["--score", "x1"], ["either", "--score", "--model"]),
}


@pytest.mark.parametrize("case", BAD_MODELS)
def test_a_bad_network_gets_one_message(run, network, tmp_path, case):
    arguments, expected = BAD_MODELS[case]
    torch.save(torch.nn.Linear(5, 1).state_dict(), "other.pt")
    _csv("data.csv", pd.read_csv("data.csv").assign(hole=[np.nan] + [0.0] * 79))
    features = [] if "--feature" in arguments else ["--feature", "x1", "--feature", "x2"]
    code, out, err = run("audit", "data.csv", *WITH_MODEL, *features, *arguments, "--out", "result.json")
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    for part in expected:
        assert part in err
    assert not (tmp_path / "result.json").exists()


def test_problems_of_inputs_and_of_columns_come_in_one_message(run, network):
    arguments = ["--label", "ill", "--group", "sex", "--model", "net.py:network", "--feature", "sex", "--feature", "x3"]
    code, _, err = run("audit", "data.csv", *arguments)
    assert code == 2
    assert says(err.splitlines()[0], "error", 3, "data.csv")


@pytest.mark.parametrize("option", ["--out", "--figures"])
def test_a_place_that_cannot_be_written_is_refused_before_the_work(run, tmp_path, monkeypatch, option):
    _csv("scores.csv")
    (tmp_path / "file").write_text("old")
    monkeypatch.setattr("equipoise.data.read_table", lambda *_, **__: pytest.fail("the rows were read"))
    code, out, err = run("audit", "scores.csv", *SHORT, option, "file/inside")
    assert (code, out) == (2, "")
    assert says(err, "error", "file/inside")
    assert (tmp_path / "file").read_text() == "old"


def test_a_name_in_a_file_cannot_steer_the_terminal(run):
    _csv("scores.csv", _frame().rename(columns={"sex": "\x1b[31msex", "race": "[red]race[/red]"}))
    code, _, err = run("audit", "scores.csv", *SHORT)
    assert code == 2
    assert "\x1b" not in err
    assert "[red]race[/red]" in err


def test_an_interruption_is_not_a_success(run, monkeypatch):
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    _csv("scores.csv")
    monkeypatch.setattr("equipoise.data.read_scores", interrupted)
    assert run("audit", "scores.csv", *SHORT) == (130, "", "Stopped.\n")


# the other commands


def test_the_version(run):
    assert run("--version") == (0, f"{__version__}\n", "")


@pytest.mark.parametrize("command", ["", "audit", "debias", "apply", "demo", "data", "data list", "data check", "data fetch", "data cache"])
def test_help_shows_an_example_of_the_command(run, command):
    code, out, _ = run(*command.split(), "--help")
    assert code == 0
    assert says(_words(out), f"equipoise {command}".strip())
    assert run(*command.split(), "-h").out == out


@pytest.mark.parametrize(
    ("command", "default"),
    [
        ("audit", "the largest group"),
        ("audit", "0.5"),
        ("data check", "EQUIPOISE_DATA"),
        ("data check", "all with files"),
    ],
)
def test_help_says_what_happens_by_default(run, command, default):
    assert any(default in shown for shown in re.findall(r"\[default: \(([^)]*)\)\]", _words(run(*command.split(), "--help").out)))


@pytest.mark.parametrize("arguments", [["adit"], ["audit"], ["audit", "x.csv", "--lable", "y"], ["data", "lst"]])
def test_a_wrong_command_or_option_is_bad_input(run, arguments):
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert says(err, "equipoise", "-h")


def test_data_list_names_every_data_set_with_its_source(run):
    out = run("data", "list").out
    for recipe in CATALOGUE.values():
        assert recipe.name in out
        assert recipe.citation in out
    assert says(out, "35,993 x 43")
    listed = json.loads(run("data", "list", "--json").out)
    assert [entry["name"] for entry in listed] == list(CATALOGUE)
    assert all(entry["rows"] and entry["licence"] for entry in listed)


CONTENT = b"0,x\n1,z\n1,x\n"


def _read_tiny(root: Path) -> Cohort:
    rows = [line.split(",") for line in (root / "a.csv").read_text().split()]
    return Cohort.from_arrays(np.ones((3, 1)), [int(y) for y, _ in rows], [g for _, g in rows])


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> str:
    """A data set of one small file in the catalogue, and a network that answers with it."""
    file = File("a.csv", sha256(CONTENT), "https://example.org/a.csv")
    monkeypatch.setitem(CATALOGUE, "tiny", Recipe("tiny", _read_tiny, (file,), "group", "three rows", "nobody", "none", 3, 1))
    monkeypatch.setattr(catalogue, "_open_url", lambda _: io.BytesIO(CONTENT))
    return "tiny"


def test_fetch_then_check(run, tiny, tmp_path):
    code, out, err = run("data", "fetch", tiny, "--root", "here")
    assert (code, err) == (0, "")
    assert out == "tiny: here/tiny\n"
    assert (tmp_path / "here" / "tiny" / "a.csv").read_bytes() == CONTENT
    assert run("data", "check", tiny, "--root", "here") == (0, "tiny: a.csv: ok (here/tiny/a.csv)\n", "")
    [state] = json.loads(run("data", "check", tiny, "--root", "here", "--json").out)
    assert state == {"data": "tiny", "file": "a.csv", "path": "here/tiny/a.csv", "status": "ok"}


@pytest.mark.parametrize("content", [None, b"tampered"])
def test_missing_files_and_wrong_checksums_fail_the_check_with_the_remedy(run, tiny, tmp_path, content):
    if content:
        (tmp_path / "tiny").mkdir()
        (tmp_path / "tiny" / "a.csv").write_bytes(content)
    code, out, err = run("data", "check", tiny, "--root", ".")
    assert code == 2
    assert says(out, "tiny", "a.csv", sha256(content) if content else "missing")
    assert says(err, "error", "tiny", "equipoise data fetch tiny --root .")


def test_a_simulation_needs_no_files(run):
    assert run("data", "check", "loh") == (0, "loh: simulated, needs no files\n", "")
    code, out, err = run("data", "fetch", "loh")
    assert (code, out) == (2, "")
    assert says(err, "loh")


def test_fetch_without_a_network_says_what_to_do_and_writes_nothing(run, tiny, tmp_path, monkeypatch):
    def offline(_: str) -> None:
        raise urllib.error.URLError("Name or service not known")

    monkeypatch.setattr(catalogue, "_open_url", offline)
    code, out, err = run("data", "fetch", tiny)
    assert (code, out) == (2, "")
    assert says(err, "error", "https://example.org/a.csv")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["check", "fetch"])
def test_an_unknown_data_set_stops_before_anything_is_fetched(run, tiny, tmp_path, command):
    code, out, err = run("data", command, tiny, "COMPAS")
    assert (code, out) == (2, "")
    assert says(err, "error", "'COMPAS'", "'compas'", "adult")
    assert list(tmp_path.iterdir()) == []


# a real process


def _process(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "equipoise.cli", *arguments]
    environment = os.environ | {"PYTHONPATH": str(Path(cli.__file__).parents[2])}  # this very package, from any folder
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=120)


def test_in_a_process_json_is_all_there_is_on_stdout(tmp_path):
    _csv(tmp_path / "scores.csv")
    ran = _process("audit", "scores.csv", *SHORT, "--json", folder=tmp_path)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "spd" in json.loads(ran.stdout)


@pytest.mark.parametrize("module", ["equipoise", "equipoise.cli"])
def test_in_a_process_a_module_in_the_current_folder_is_not_imported(tmp_path, module):
    for name in ("typer", "rich", "numpy", "pandas", "torch"):  # a folder that came with them
        (tmp_path / f"{name}.py").write_text("open('it_ran', 'w')\nraise SystemExit(3)\n")
    environment = os.environ | {"PYTHONPATH": str(Path(cli.__file__).parents[2])}
    ran = subprocess.run(
        [sys.executable, "-m", module, "--version"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert not (tmp_path / "it_ran").exists()


def test_in_a_process_bad_input_is_exit_code_2_without_a_traceback(tmp_path):
    _csv(tmp_path / "scores.csv", _holding(sex="F"))
    ran = _process("audit", "scores.csv", *SHORT, "--out", "result.json", folder=tmp_path)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert says(ran.stderr, "error", "scores.csv", "'sex'")
    assert len(ran.stderr.splitlines()) == 1
    assert not (tmp_path / "result.json").exists()
