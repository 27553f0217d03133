"""Bad tables: an audit ends in one clear message and exit code 2, and writes nothing."""

import pandas as pd
import pytest

from support.facts import says
from support.scores_file import AUDIT, SHORT, scores_frame, scores_with, write_csv

COLUMNS = 80  # of the terminal


def _put(value: object, column: str, rows: slice = slice(3, 4)) -> pd.DataFrame:
    frame = scores_frame()
    frame[column] = frame[column].astype(object)
    frame.loc[frame.index[rows], column] = value
    return frame


FULL = [*AUDIT, "--patient", "pid", "--set", "data.id=id"]
BAD_ROWS = {
    "missing column": (scores_frame().drop(columns="sex"), FULL, ["no column 'sex'", "The columns are: id, pid, y, race, p"]),
    "label not binary": (_put(2, "y"), FULL, ["label column 'y'", "1 of 80 rows", "0, 1, 2"]),
    "label in words": (scores_with(y=["yes", "no"] * 40), FULL, ["label column 'y'", "no, yes", "data.positive=yes"]),
    "label missing": (_put(None, "y"), FULL, ["label column 'y'", "1 of 80 rows have no label"]),
    "one label": (scores_with(y=1), FULL, ["label column 'y'", "only positives in all 80 rows"]),
    "score above 1": (_put(1.5, "p"), FULL, ["score column 'p'", "1 of 80 rows", "row 4", "outside [0, 1]"]),
    "score below 0": (_put(-0.5, "p"), FULL, ["score column 'p'", "1 of 80 rows", "outside [0, 1]", "logits"]),
    "scores as percentages": (scores_frame().assign(p=lambda d: d["p"] * 100), FULL, ["score column 'p'", "percentages: divide by 100"]),
    "score missing": (_put(None, "p"), FULL, ["score column 'p'", "1 of 80 rows", "empty (NaN)"]),
    "score in words": (_put("high", "p"), FULL, ["score column 'p'", "1 of 80 rows", "not numbers", "'high'"]),
    "a single group": (scores_with(sex="F"), FULL, ["column 'sex'", "single group, 'F' (80 rows)"]),
    "no group at all": (scores_with(sex=None), FULL, ["column 'sex'", "all 80 values are missing"]),
    "duplicate ids": (_put(0, "id"), FULL, ["id column 'id'", "1 ids occur more than once in 80 rows: 0"]),
    "a patient with two sexes": (
        _put("M", "sex"),
        [*FULL, "--set", "data.conflicts=error"],
        ["patient column 'pid'", "1 of 40 patients have more than one 'sex': 1"],
    ),
    "no positives for eod": (
        scores_frame().assign(y=lambda d: d["y"] * (d["sex"] == "M")),
        [*AUDIT, "--measure", "eod"],
        ["'F' has none of 40 rows"],
    ),
    "unknown reference": (scores_frame(), [*AUDIT, "--reference", "m"], ["'m'", "Did you mean 'M'?", "Valid: F, M"]),
    "unknown measure": (scores_frame(), [*AUDIT, "--measure", "EOD"], ["'EOD'", "Did you mean 'eod'?", "spd", "balanced_accuracy"]),
    "too few references": (scores_frame(), [*AUDIT, "--group", "race", "--reference", "M"], ["2 group columns need 2 references"]),
    "a column twice": (scores_frame(), [*AUDIT, "--group", "sex"], ["column 'sex' has more than one role"]),
    "bad numbers": (
        scores_frame(),
        [*AUDIT, "--threshold", "50", "--set", "audit.level=95", "--set", "audit.seed=-1"],
        ["--threshold", "got 50", "audit.level", "audit.seed"],
    ),
    "draws without probes": (
        scores_frame(),
        [*AUDIT, "--set", "audit.draws=1", "--set", "audit.min_patients=0"],
        ["audit.draws", "got 1", "audit.min_patients"],
    ),
    "threshold and valid": (scores_frame(), [*AUDIT, "--threshold", "0.5", "--valid", "scores.csv"], ["not both"]),
    "threshold is nan": (scores_frame(), [*AUDIT, "--threshold", "nan"], ["must be a number between 0 and 1; got nan"]),
    "weights without a model": (scores_frame(), [*AUDIT, "--weights", "w.pt"], ["(--weights) requires"]),
    "neither scores nor a model": (scores_frame(), ["--label", "y", "--group", "sex"], ["--score", "--model"]),
}


@pytest.mark.parametrize("case", BAD_ROWS)
def test_bad_rows_or_options_get_one_message_and_nothing_is_written(run, tmp_path, case):
    frame, arguments, expected = BAD_ROWS[case]
    write_csv("scores.csv", frame)
    (tmp_path / "result.json").write_text("old")
    code, out, err = run("audit", "scores.csv", *arguments, "--out", "result.json", "--set", "report.figures=figures")
    assert (code, out) == (2, "")
    assert next(line for line in err.splitlines() if not line.startswith("note: rows are")).startswith("error: ")
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
    write_csv("scores.csv")
    if content == "folder":
        (tmp_path / name).mkdir()
    elif content is not None:
        (tmp_path / name).write_bytes(content)
    before = {p.name for p in tmp_path.iterdir()}
    arguments = [name, *SHORT] if role == "file" else ["scores.csv", *SHORT, "--valid", name]
    code, out, err = run("audit", *arguments, "--out", "result.json")
    assert (code, out) == (2, "")
    assert next(line for line in err.splitlines() if not line.startswith("note: rows are")).startswith("error: ")
    for part in expected:
        assert part in err
    assert {p.name for p in tmp_path.iterdir()} == before


def test_all_problems_of_one_file_come_in_one_message(run):
    frame = _put("high", "p").assign(y=2, sex="F", id=1)
    write_csv("scores.csv", frame)
    code, _, err = run("audit", "scores.csv", *FULL)
    assert code == 2
    lines = err.splitlines()
    assert says(lines[0], "error", 4, "scores.csv")
    assert [line.split("'")[1] for line in lines[1:]] == ["y", "p", "sex", "id"]


@pytest.mark.parametrize("option", ["--out", "report.figures"])
def test_a_place_that_cannot_be_written_is_refused_before_the_work(run, tmp_path, monkeypatch, option):
    write_csv("scores.csv")
    (tmp_path / "file").write_text("old")
    monkeypatch.setattr("equipoise.data.read_table", lambda *_, **__: pytest.fail("the rows were read"))
    code, out, err = run("audit", "scores.csv", *SHORT, *(("--set", f"{option}=file/inside") if "." in option else (option, "file/inside")))
    assert (code, out) == (2, "")
    assert says(err, "error", "file/inside")
    assert (tmp_path / "file").read_text() == "old"


def test_control_characters_in_a_file_do_not_reach_the_terminal(run):
    write_csv("scores.csv", scores_frame().rename(columns={"sex": "\x1b[31msex", "race": "[red]race[/red]"}))
    code, _, err = run("audit", "scores.csv", *SHORT)
    assert code == 2
    assert "\x1b" not in err
    assert "[red]race[/red]" in err


def test_an_interruption_is_not_a_success(run, monkeypatch):
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    write_csv("scores.csv")
    monkeypatch.setattr("equipoise.data.read_scores", interrupted)
    assert run("audit", "scores.csv", *SHORT) == (130, "", "Stopped.\n")
