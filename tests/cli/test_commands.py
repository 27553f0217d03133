"""The command line: what it prints and writes, and one clear message with exit code 2 for bad input."""

import gzip
import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from equipoise import __version__, cli
from equipoise.measures import GAPS
from equipoise.measures.measure_table import PERFORMANCE
from support.facts import says
from support.scores_file import AUDIT, SHORT, scores_frame, scores_with, write_csv

COLUMNS = 80  # of the terminal


def _words(text: str) -> str:
    """The text without line ends and frames, which depend on the width."""
    return " ".join(text.replace("│", " ").split())


# what is printed and written


def test_an_audit_is_a_table_that_names_the_gap_its_groups_and_the_decision(run):
    write_csv("scores.csv")
    code, out, err = run("audit", "scores.csv", *AUDIT, "--reference", "M", "--patient", "pid", "--set", "data.id=id")
    assert (code, err) == (0, "")
    assert says(out, "scores.csv", "80 rows", "40 patients")
    assert "M (reference)" in out
    assert "F minus M" in out
    assert max(map(len, out.splitlines())) <= 80
    assert len(out.splitlines()) <= 24  # one screen
    every = run("audit", "scores.csv", *AUDIT, "--reference", "M", "--verbose").out
    assert "M (reference)" in every
    assert all(name in every for name in GAPS)


def test_json_is_the_whole_of_stdout_and_holds_value_low_high(run):
    write_csv("scores.csv")
    code, out, err = run("audit", "scores.csv", *AUDIT, "--reference", "M", "--patient", "pid", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["schema_version"] == 7
    assert {"value", "low", "high"} <= found["eod"].keys()
    assert set(found) >= {*GAPS, *PERFORMANCE}
    frame = scores_frame()
    rate = (frame["p"] >= 0.5).groupby(frame["sex"]).mean()
    assert found["spd"]["value"] == pytest.approx(rate["F"] - rate["M"])


def test_out_holds_what_json_prints_and_where_it_comes_from(run, tmp_path):
    write_csv("scores.csv")
    assert run("audit", "scores.csv", *AUDIT, "--out", "new/result.json").code == 0
    printed = run("audit", "scores.csv", *AUDIT, "--json").out
    saved = json.loads((tmp_path / "new" / "result.json").read_text())
    origin = saved.pop("provenance")  # with the time, which would make two equal audits print different JSON
    shown = json.loads(printed)
    assert saved.pop("checksum") != shown.pop("checksum")  # which covers the provenance
    assert saved == shown
    assert origin["hashes"] == {"scores.csv": hashlib.sha256((tmp_path / "scores.csv").read_bytes()).hexdigest()}


def test_the_seed_determines_the_result(run):
    write_csv("scores.csv")
    one, two, other = (run("audit", "scores.csv", *AUDIT, "--json", "--set", f"audit.seed={seed}").out for seed in (1, 1, 2))
    assert one == two != other


def test_figures_are_written_and_named(run, tmp_path):
    write_csv("scores.csv")
    code, out, err = run("audit", "scores.csv", *SHORT, "--patient", "pid", "--set", "report.figures=figures")
    assert (code, err) == (0, "")
    assert says(out, "figures")
    expected = {"rates.svg", "gaps.svg", "calibration.svg", "decision-curves.svg"}
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
    write(scores_frame(), tmp_path / name)
    write_csv("plain.csv")
    found, expected = (json.loads(run("audit", file, *SHORT, "--json").out) for file in (name, "plain.csv"))
    assert found["spd"] == expected["spd"]


def test_a_column_called_group_is_a_column_like_any_other(run):
    write_csv("scores.csv", scores_frame().rename(columns={"sex": "group"}))
    code, out, _ = run("audit", "scores.csv", "--label", "y", "--score", "p", "--group", "group", "--json")
    assert code == 0
    assert {row["group"] for row in json.loads(out)["groups"]} == {"F", "M"}


def test_words_as_labels_with_their_positive_value(run):
    write_csv("scores.csv", scores_frame().assign(y=lambda d: d["y"].map({0: "no", 1: "yes"})))
    assert json.loads(run("audit", "scores.csv", *SHORT, "--set", "data.positive=yes", "--json").out)["groups"][0]["positives"] == 20


def test_several_groups_and_their_intersection(run):
    write_csv("scores.csv")
    arguments = ["--group", "race", "--reference", "M", "--reference", "b", "--set", "audit.min_patients=1"]
    found = json.loads(run("audit", "scores.csv", *SHORT, *arguments, "--json").out)
    assert found["references"] == {"sex": "M", "race": "b", "sex & race": "M & b"}
    assert {row["attribute"] for row in found["groups"]} == {"sex", "race", "sex & race"}


def test_the_threshold_is_given_or_chosen_on_validation_rows_or_the_default(run):
    write_csv("scores.csv")
    write_csv("valid.csv", scores_frame(40).assign(p=lambda d: 0.2 + 0.1 * d["y"]))
    given = json.loads(run("audit", "scores.csv", *SHORT, "--threshold", 0.3, "--json").out)
    assert (given["threshold"], given["decision"]) == (0.3, "score >= 0.3 (given)")
    chosen = json.loads(run("audit", "scores.csv", *SHORT, "--valid", "valid.csv", "--json").out)
    assert 0.2 < chosen["threshold"] <= 0.3
    assert says(chosen["decision"], "balanced accuracy", 40, "valid.csv")
    assert says(json.loads(run("audit", "scores.csv", *SHORT, "--json").out)["decision"], 0.5, "default")


def test_rows_without_a_group_are_counted_and_reported(run):
    frame = scores_frame()
    frame.loc[:7, "sex"] = None
    write_csv("scores.csv", frame)
    code, out, _ = run("audit", "scores.csv", *SHORT)
    assert code == 0
    assert says(out, "sex", "10.0%")


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


# a real process


def _process(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "equipoise.cli", *arguments]
    environment = os.environ | {"PYTHONPATH": str(Path(cli.__file__).parents[2])}  # the package under test, from any folder
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=120)


def test_in_a_process_json_is_all_there_is_on_stdout(tmp_path):
    write_csv(tmp_path / "scores.csv")
    ran = _process("audit", "scores.csv", *SHORT, "--patient", "pid", "--json", folder=tmp_path)
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
    write_csv(tmp_path / "scores.csv", scores_with(sex="F"))
    ran = _process("audit", "scores.csv", *SHORT, "--out", "result.json", folder=tmp_path)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert says(ran.stderr, "error", "scores.csv", "'sex'")
    assert len(ran.stderr.splitlines()) == 1
    assert not (tmp_path / "result.json").exists()
