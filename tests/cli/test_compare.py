"""`equipoise compare`, `audit --append` and `--fail-if`, as a user types them: results, exit codes and refusals."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import equipoise as eq
from equipoise.report import pdf
from support.command import Ran
from support.facts import says
from support.printer import browser_at

ROLES = ["--label", "y", "--group", "sex", "--reference", "M", "--patient", "pid"]
QUICK = ["--measure", "eod", "--set", "audit.thresholds=0.2:0.3"]
Run = Callable[..., Ran]


def rows(seed: int, gap: float = 0.0, count: int = 160) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    found = pd.DataFrame(
        {"y": rng.integers(0, 2, count), "sex": rng.choice(["F", "M"], count), "pid": [f"{seed}-{k}" for k in range(count)]}
    )
    old = np.clip(0.3 + 0.4 * found.y - gap * ((found.sex == "F") & (found.y == 1)) + rng.normal(0, 0.2, count), 0, 1)
    return found.assign(old=old, new=np.clip(old - 0.2 * (found.sex == "F"), 0, 1))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("sites")
    for k, name in enumerate("ab"):
        rows(k, 0.4 * k).to_csv(found / f"{name}.csv", index=False)
        scores = eq.Scores.from_frame(rows(k, 0.4 * k), label="y", score="old", group="sex", reference="M", patient="pid")
        audit = eq.audit(scores, measures=["eod", "auroc"], thresholds="0.2:0.3")
        (found / f"{name}.json").write_text(json.dumps(audit.to_dict()))
    return found


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("history") / "history.parquet"
    for month in range(1, 6):
        table = rows(month, 0.0 if month < 4 else 0.4, 600)
        scores = eq.Scores.from_frame(table, label="y", score="old", group="sex", reference="M", patient="pid")
        eq.history(path).append(eq.audit(scores, measures=["eod"], thresholds="0.2:0.3"), f"2026-{month:02}")
    return path


def test_two_columns_of_one_table_are_two_models(run: Run, folder):
    ran = run("compare", folder / "a.csv", *ROLES, "--score", "old", "--score", "new", "--json")
    plain = json.loads(ran.out)
    table = rows(0)
    wanted = eq.compare(
        {name: eq.Scores.from_frame(table, label="y", score=name, group="sex", reference="M", patient="pid") for name in ("old", "new")}
    )
    assert (ran.code, plain["first"], plain["others"], plain["paired"]) == (0, "old", ["new"], True)
    assert plain["gaps"][1]["value"] == pytest.approx(wanted.changes.gaps["value"][1])
    assert plain["decided_differently"]["new"][0]["patients"] == ((table.old >= 0.5) != (table.new >= 0.5)).sum()


def test_the_terminal_leads_with_the_conclusion_and_a_condition_sets_the_exit_code(run: Run, folder):
    ran = run("compare", folder / "a.csv", *ROLES, "--score", "old", "--score", "new", "--fail-if", "eod < -0.1", "--measure", "eod")
    assert ran.code == 1
    assert says(ran.err, "failed", "eod", "F", "M", "eod < -0.1")
    assert says(ran.out, "sensitivity", "old", "new", "clear")
    assert (
        run("compare", folder / "a.csv", *ROLES, "--score", "old", "--score", "new", "--fail-if", "eod > 0.1", "--measure", "eod").code == 0
    )


def test_two_sites_by_their_audits_or_their_tables(run: Run, folder, tmp_path):
    by_audit = json.loads(run("compare", folder / "a.json", folder / "b.json", "--json").out)
    by_table = json.loads(run("compare", folder / "a.csv", folder / "b.csv", *ROLES, "--score", "old", "--measure", "eod", "--json").out)
    assert by_audit["gaps"][0]["value"] == pytest.approx(by_table["gaps"][0]["value"])
    assert (by_audit["paired"], by_audit["gaps"][0]["clear"]) == (False, True)
    ran = run(
        "compare", folder / "a.json", folder / "b.json", "--report", "page.html", "--out", "found.json", "--set", "report.words.F=women"
    )
    assert ran.code == 0
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "women" in page
    clear = [row["clear"] for table in ("gaps", "rates") for row in json.loads((tmp_path / "found.json").read_text())[table]]
    assert page.count('class="shown"') == sum(clear) < len(clear)
    assert json.loads((tmp_path / "found.json").read_text())["gaps"] == by_audit["gaps"]


def test_a_history_is_followed_and_reported(run: Run, history, tmp_path):
    ran = run("compare", history, "--fail-if", "changed", "--report", "page.html", "--verbose")
    assert ran.code == 1
    assert says(ran.out, "2026-04", "changed")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "2026-04" in page
    assert page.count("<figure") == 3
    found = json.loads(run("compare", history, "--measure", "eod", "--since", "2026-04", "--json").out)
    assert (found["periods"], found["comparisons"]) == (["2026-04", "2026-05"], 1)


def test_options_for_tables_are_refused_for_a_history(run: Run, history):
    ran = run("compare", history, "--label", "y")
    assert ran.code == 2
    assert says(ran.err, "--label", "is a history")


def test_the_pdf_of_a_comparison_and_of_a_history(run: Run, folder, history, monkeypatch, tmp_path):
    monkeypatch.setenv(pdf.VARIABLE, str(browser_at(tmp_path / "browser")))
    for files, fact in (((folder / "a.json", folder / "b.json"), "Simultaneous interval"), ((history,), "2026-04")):
        ran = run("compare", *files, "--pdf", "page.pdf", "--set", "report.words.F=women")
        assert ran.code == 0, ran.err
        assert says(ran.out, "page.pdf")
        page = (tmp_path / "page.pdf").read_text(encoding="utf-8")
        assert "data-paper" in page
        assert "women" in page
        assert fact in page
        assert "<script" not in page


def test_an_audit_is_added_to_a_history_once(run: Run, tmp_path):
    rows(7).to_csv(tmp_path / "t.csv", index=False)
    audit = ["audit", "t.csv", *ROLES, "--score", "old", *QUICK, "--append", "h.parquet"]
    assert run(*audit, "--date", "2026-11", "--json").code == 0
    again = run(*audit, "--date", "2026-11")
    assert again.code == 2
    assert says(again.err, "2026-11", "--set", "history.replace=true")
    assert run(*audit, "--date", "2026-11", "--set", "history.replace=true").code == 0
    assert list(eq.history(tmp_path / "h.parquet").periods) == ["2026-11"]


@pytest.mark.parametrize(
    ("options", "code", "expected"),
    [
        (["--fail-if", "|eod| >= 0"], 1, ("eod", "F", "M")),
        (["--fail-if", "|eod| > 1"], 0, ()),
        (["--fail-if", "eod >"], 2, ("eod >",)),
        (["--fail-if", "eodd > 1"], 2, ("eodd", "eod")),
        (["--date", "2026-11"], 2, ("--date", "--append")),
        (["--append", "h.parquet"], 2, ("--append", "--date")),
        (["--append", "h.csv", "--date", "2026-11"], 2, ("h.csv", "h.parquet")),
        (["--append", "h.parquet", "--date", "November"], 2, ("November", "2026-11")),
    ],
)
def test_options_for_pipelines(run: Run, folder, options, code, expected):
    ran = run("audit", folder / "a.csv", *ROLES, "--score", "old", *QUICK, "--json", *options)
    assert ran.code == code
    assert says(ran.err, *expected)


def test_a_misspelt_condition_is_reported_before_anything_is_written(run, folder):
    ran = run(
        *("audit", folder / "a.csv", *ROLES, "--score", "old", *QUICK, "--append", "history.parquet", "--date", "2026-07"),
        *("--out", "audit.json", "--fail-if", "eodd > 1"),
    )
    assert (ran.code, ran.out) == (2, "")
    assert not Path("history.parquet").exists()
    assert not Path("audit.json").exists()


def test_a_condition_that_cannot_be_checked_fails(run: Run, tmp_path):
    rows(1, count=12).to_csv(tmp_path / "few.csv", index=False)
    ran = run("audit", "few.csv", *ROLES, "--score", "old", *QUICK, "--fail-if", "eod > 0.1")
    assert ran.code == 1
    assert says(ran.err, "sufficient", "eod > 0.1")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["a.json"], ("a.json",)),
        (["a.json", "a.csv"], ("a.json", "a.csv")),
        (["a.json", "b.json", "--score", "old"], ("--score",)),
        (["a.csv", "--score", "old"], ("--label", "--group", "--score")),
        (["a.csv", "--score", "old", *ROLES], ("--score", 1)),
        (["a.csv", "b.csv", "--score", "old", "--score", "new", *ROLES], ("--score", 2)),
        (["a.json", "a.json"], ("names", 2)),
        (["a.json", "a.json", "--name", "x", "--name", "y"], ("same", 160)),
        (["a.json", "b.json", "--since", "2026-11"], ("--since",)),
        (["a.csv", "a.csv", "--score", "old", "--set", "compare.paired=false", "--name", "x", "--name", "y", *ROLES], (160,)),
        (
            ["a.csv", "--score", "old", "--score", "new", "--threshold", "0.4", "--threshold", "0.5", "--threshold", "1", *ROLES],
            (3, "--threshold"),
        ),
        (["a.json", "b.json", "--report", "page.pdf"], ("page.pdf", "page.html")),
        (["a.json", "b.json", "--pdf", "page.html"], ("page.html", "page.pdf")),
        (["a.json", "none.json"], ("none.json",)),
    ],
)
def test_bad_input_is_one_message(run: Run, folder, arguments, expected):
    ran = run("compare", *(folder / name if str(name).endswith((".csv", ".json")) else name for name in arguments))
    assert ran.code == 2
    assert says(ran.err, *expected)
    assert "Traceback" not in ran.err


def test_patients_of_earlier_periods_are_clusters_of_a_history(run: Run, tmp_path):
    first, second = rows(1, count=200), rows(2, count=200)
    first.to_csv(tmp_path / "oct.csv", index=False)
    pd.concat([second, first.head(60)]).to_csv(tmp_path / "nov.csv", index=False)
    audit = ["audit", "nov.csv", *ROLES, "--score", "old", *QUICK]
    found, plain = (json.loads(run(*audit, *more, "--json").out) for more in (["--set", "history.earlier=oct.csv"], []))
    assert found["gaps"] == plain["gaps"]
    assert found["returning"] == {"patients": 60, "of_patients": 260, "rows": 60, "of_rows": 260}
    widths = []
    for name, more in (("apart.parquet", []), ("h.parquet", ["--set", "history.earlier=oct.csv"])):
        assert run("audit", "oct.csv", *audit[2:], "--append", name, "--date", "2026-10").code == 0
        ran = run(*audit, *more, "--append", name, "--date", "2026-11")
        assert says(ran.out, "60 of 260", "23.1%") if more else says(ran.out, "history.earlier")
        gap = json.loads(run("compare", name, "--json").out)["gaps"][0]
        widths.append(gap["high"] - gap["low"])
    assert widths[0] < widths[1]
    assert b"1-59" not in (tmp_path / "h.parquet").read_bytes()


def test_a_gap_that_is_not_watched_fails_a_pipeline(run: Run, tmp_path):
    for month in (1, 2, 3):
        table = rows(month, count=400)
        sick = table[(table.sex == "F") & (table.y == 1)]
        (table if month < 3 else table.drop(index=sick.index[2:])).to_csv(tmp_path / f"{month}.csv", index=False)
        ran = run("audit", f"{month}.csv", *ROLES, "--score", "old", *QUICK, "--append", "h.parquet", "--date", f"2026-Q{month}")
        assert ran.code == 0
        ran = run("compare", "h.parquet", "--fail-if", "unwatched")
        assert ran.code == (month == 3)
    assert says(ran.out, "sensitivity", "2026-Q2")
    assert says(ran.err, "eod", "unwatched")
    assert run("compare", "h.parquet", "--fail-if", "fpr_gap.unwatched").code == 0


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--set", "history.earlier=t.csv"], ("history.earlier", "t.csv")),
        (["--set", "history.earlier=none.csv"], ("none.csv",)),
        (["--set", "history.earlier=other.csv"], ("pid", "other.csv", "patient_id")),
    ],
)
def test_earlier_periods_that_cannot_be_used(run: Run, tmp_path, options, expected):
    rows(1).to_csv(tmp_path / "t.csv", index=False)
    rows(1).rename(columns={"pid": "patient_id"}).to_csv(tmp_path / "other.csv", index=False)
    ran = run("audit", "t.csv", *ROLES, "--score", "old", *QUICK, *options)
    assert ran.code == 2
    assert says(ran.err, *expected)
    without = run("audit", "t.csv", "--label", "y", "--group", "sex", "--score", "old", *QUICK, "--set", "history.earlier=t.csv")
    assert without.code == 2
    assert says(without.err, "--patient")
