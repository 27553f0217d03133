"""Intersections of any number of group columns, with any names: headlines lead with single attributes, in every output."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import equipoise as eq
from support.command import Ran

Run = Callable[..., Ran]
LABELS = ("Effusion", "Mass")
THREE = ("sex", "age", "race")
NAMED = ("a & b", "sex")  # as would be an intersection of a and b
SETTINGS = ["--threshold", "0.35", "--measure", "eod", "--set", "audit.thresholds=0.2:0.3"]


def _frame(seed: int = 0, n: int = 1_200) -> pd.DataFrame:
    """Patients of whom old women of race B are missed most, which makes a smaller difference for all women."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {name: rng.choice(levels, n) for name, levels in zip(THREE, (["F", "M"], ["old", "young"], ["A", "B"]), strict=True)}
    )
    frame = frame.assign(pid=[f"{seed}-{k}" for k in range(n)], **{"a & b": frame["race"]})
    worst = (frame["sex"] == "F") & (frame["age"] == "old") & (frame["race"] == "B")
    for name in LABELS:
        sick = rng.random(n) < 0.5
        frame[name] = sick.astype(int)
        frame[f"p {name}"] = np.clip(
            rng.normal(0.2 + 0.35 * sick - 0.3 * (worst & sick) - 0.05 * ((frame["sex"] == "F") & sick), 0.1), 0, 1
        )
    return frame


def _roles(columns: tuple[str, ...], *labels: str) -> list[str]:
    references = {"sex": "M", "age": "young", "race": "A", "a & b": "A"}
    groups = [part for name in columns for part in ("--group", name, "--reference", references[name])]
    return [*groups, "--patient", "pid", *(part for name in labels for part in ("--label", name, "--score", f"p {name}"))]


def _scores(frame: pd.DataFrame, columns: tuple[str, ...] = THREE) -> eq.Scores:
    return eq.Scores.from_frame(frame, label="Mass", score="p Mass", group=list(columns), patient="pid")


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rows") / "scores.csv"
    _frame().to_csv(path, index=False)
    return path


@pytest.mark.parametrize("columns", [THREE, NAMED, ("sex", "age")], ids=["three", "named like an intersection", "two"])
def test_the_headline_names_a_single_attribute(run: Run, table, columns):
    audit = run("audit", table, *_roles(columns, "Mass"), *SETTINGS)
    headline = " ".join(audit.out.split()).partition("(given). ")[2].partition("Groups, with")[0]
    assert (audit.code, "sex is F" in headline, " F &" in headline or "& F" in headline) == (0, True, False), headline


def test_the_table_of_several_labels_leads_with_single_attributes(run: Run, table):
    audits = run("audit", table, *_roles(THREE, *LABELS), *SETTINGS)
    rows = [line for line in audits.out.splitlines() if line.startswith(LABELS)]
    assert audits.code == 0
    assert [(" minus " in row, "&" in row) for row in rows] == [(True, False)] * 2


@pytest.mark.parametrize("columns", [THREE, NAMED], ids=["three", "named like an intersection"])
def test_the_page_folds_the_intersection_and_names_its_groups_in_words(run: Run, table, tmp_path, columns):
    page, saved = tmp_path / "audit.html", tmp_path / "audit.json"
    words = ["--set", "report.words.F=women", "--set", "report.words.B=group B"]
    audit = run("audit", table, *_roles(columns, "Mass"), *SETTINGS, *words, "--report", page, "--out", saved)
    html = page.read_text()
    assert audit.code == 0
    assert html.count("4 intersections:" if columns == NAMED else "8 intersections:") > 0
    assert "women &amp; old &amp; group B" in html if columns == THREE else "group B &amp; women" in html
    assert json.loads(saved.read_text())["intersections"] == ["sex & age & race" if columns == THREE else '"a & b" & sex']


def test_a_saved_audit_knows_its_intersection(run: Run, table, tmp_path):
    saved = tmp_path / "audit.json"
    run("audit", table, *_roles(THREE, "Mass"), *SETTINGS, "--out", saved)
    again = eq.read_audit(saved)
    assert again.intersections == ("sex & age & race",)
    (tmp_path / "again").mkdir()
    html = again.report(tmp_path / "again" / "audit.html").read_text()
    assert "8 intersections:" in html


def test_a_table_read_in_batches_knows_its_intersection(table):
    scan = eq.scan(table, label="Mass", score="p Mass", group=list(THREE), patient="pid")
    assert eq.audit(scan, measures=["eod"]).intersections == ("sex & age & race",)


def test_comparisons_lead_with_single_attributes(run: Run, table, tmp_path):
    for name, seed, worse in (("a", 1, 0.0), ("b", 2, 0.35)):
        frame = _frame(seed)
        missed = (frame["sex"] == "F") & (frame["Mass"] == 1)
        frame["p Mass"] = np.clip(frame["p Mass"] - worse * missed, 0, 1)
        frame.to_csv(tmp_path / f"{name}.csv", index=False)
        run("audit", tmp_path / f"{name}.csv", *_roles(THREE, "Mass"), *SETTINGS, "--out", tmp_path / f"{name}.json")
    page = tmp_path / "sites.html"
    sites = run("compare", tmp_path / "a.json", tmp_path / "b.json", "--report", page, "--json")
    assert (sites.code, json.loads(sites.out)["intersections"]) == (0, ["sex & age & race"])
    assert "between F and M" in " ".join(run("compare", tmp_path / "a.json", tmp_path / "b.json").out.split())
    assert page.read_text().count("<details") > 0


def test_a_history_accepts_new_intersections_of_known_groups(tmp_path):
    """The first period has no patient in one intersection; its groups are known, so the second period may have them."""
    frame, columns = _frame(3), ["sex", "a & b"]
    first = frame[~((frame["sex"] == "F") & (frame["a & b"] == "B"))]
    path = tmp_path / "history.parquet"
    for month, rows in (("2026-01", first), ("2026-02", _frame(4))):
        eq.history(path).append(eq.audit(_scores(rows, tuple(columns)), measures=["eod"], thresholds="0.2:0.3"), month)
    monitoring = eq.history(path).monitor(["eod"])
    assert set(monitoring.gaps["attribute"]) == {"sex", "a & b"}
    every = eq.history(path).monitor(["eod"], intersections=True)
    assert set(every.gaps["attribute"]) == {"sex", "a & b", 'sex & "a & b"'}
    assert every.intersections == ('sex & "a & b"',)


def test_a_new_group_with_an_ampersand_is_still_reported(tmp_path):
    """A single attribute's new group is not taken for an intersection because of its name."""
    frame = _frame(5)
    path = tmp_path / "history.parquet"
    kinds = frame.assign(kind=np.where(frame["age"] == "old", "x", "y"))
    eq.history(path).append(eq.audit(_scores(kinds, ("kind",)), measures=["eod"], thresholds="0.2:0.3"), "2026-01")
    new = _frame(6).assign(kind=np.resize(["x", "y", "x & y"], len(frame)))
    with pytest.raises(eq.errors.BadInput, match="x & y"):
        eq.history(path).append(eq.audit(_scores(new, ("kind",)), measures=["eod"], thresholds="0.2:0.3"), "2026-02")
