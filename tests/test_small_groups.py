"""Nothing that leaves the machine depends on the label or the score of a patient in a group that is too small to be shown.

Two tables differ only in these; every output of both must be the same. Numbers of rows are no secret, labels, decisions and scores are.
"""

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

import equipoise as eq
from support.command import ran
from support.facts import says

ROLES = ["--label", "y", "--score", "p", "--group", "sex", "--reference", "M", "--patient", "pid"]
BOTH = [*ROLES, "--group", "age", "--reference", "old"]
SECRETS = [(1, 0.8317), (0, 0.1234)]
OF_THE_TABLE = ("digest", "checksum", "provenance")  # hashes of all rows, which nobody can compute who has not got them


def _table(kind: str, secret: tuple[int, float]) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    n = 200
    frame = pd.DataFrame({"y": rng.integers(0, 2, n), "sex": rng.choice(["F", "M"], n), "age": rng.choice(["old", "young"], n)})
    frame["p"] = np.clip(0.3 + 0.3 * frame["y"] + rng.normal(0, 0.2, n), 0, 1).round(4)
    frame["q"] = np.clip(frame["p"] + rng.normal(0, 0.1, n), 0, 1).round(4)
    frame["pid"] = [f"p{k}" for k in range(n)]
    match kind:
        case "a group of one patient":
            frame.loc[7, "sex"] = "X"
        case "one patient without a group":
            frame.loc[7, "sex"] = None
        case "two patients in two groups":
            frame.loc[[7, 8], "sex"] = ["X", "Y"]
    frame.loc[7, ["y", "p", "q"]] = [secret[0], secret[1], secret[1]]
    return frame


KINDS = ["a group of one patient", "one patient without a group", "two patients in two groups"]


def _plain(document: object) -> object:
    if isinstance(document, dict):
        return {key: _plain(value) for key, value in document.items() if key not in OF_THE_TABLE}
    return [_plain(each) for each in document] if isinstance(document, list) else document


@pytest.mark.parametrize("kind", KINDS)
def test_audits_and_histories_are_the_same_whatever_its_label_and_score(kind, tmp_path, monkeypatch):
    found = []
    for k, secret in enumerate(SECRETS):
        folder = tmp_path / str(k)
        folder.mkdir()
        monkeypatch.chdir(folder)
        _table(kind, secret).to_csv("t.csv", index=False)
        files = ["--out", "a.json", "--report", "a.html", "--append", "h.parquet", "--date", "2026-11"]
        result = ran("audit", "t.csv", *BOTH, "--threshold", "0.5", *files, "--verbose", "--set", "audit.shrink=true")
        assert result.code == 0, result.err
        page = re.sub(
            r"sha256|[0-9a-f]{12,64}|\d{4}-\d\d-\d\d[ T][\d:+.]*|\d\d:\d\d|nonce-\S+", "", Path("a.html").read_text(encoding="utf-8")
        )
        rows = pq.read_table("h.parquet").to_pandas().drop(columns="audit_digest")
        found.append((_plain(json.loads(Path("a.json").read_text())), rows, result.out, page))
    (first, rows, out, page), (second, other_rows, other_out, other_page) = found
    assert first == second
    pd.testing.assert_frame_equal(rows, other_rows)
    assert out == other_out
    assert page == other_page


def test_figures_are_the_same_whatever_its_label_and_score(tmp_path):
    found = []
    for k, secret in enumerate(SECRETS):
        path = tmp_path / f"{k}.csv"
        _table(KINDS[0], secret).to_csv(path, index=False)
        result = ran("audit", path, *ROLES, "--threshold", "0.5", "--set", f"report.figures={tmp_path / str(k)}")
        assert result.code == 0, result.err
        found.append({each.name: each.read_text().replace(f"{k}.csv", "") for each in sorted((tmp_path / str(k)).glob("*.svg"))})
    assert len(found[0]) == 4
    assert found[0] == found[1]


@pytest.mark.parametrize("kind", KINDS)
def test_comparisons_of_two_models_are_the_same(kind, tmp_path):
    found = []
    for secret in SECRETS:
        path = tmp_path / "t.csv"
        _table(kind, secret).to_csv(path, index=False)
        result = ran("compare", path, *BOTH[:2], *BOTH[4:], "--score", "p", "--score", "q", "--json")
        assert result.code == 0, result.err
        found.append(json.loads(result.out))
    assert found[0] == found[1]


def test_the_other_groups_are_shown_and_the_rows_left_out_are_counted(tmp_path):
    path = tmp_path / "t.csv"
    _table(KINDS[0], SECRETS[0]).to_csv(path, index=False)
    result = ran("audit", path, *ROLES, "--threshold", "0.5", "--out", tmp_path / "a.json")
    assert says(result.out, "1 row", "left out", 5)
    audit = eq.read_audit(tmp_path / "a.json")
    rest = eq.audit(
        eq.Scores.from_frame(_table(KINDS[0], SECRETS[0]).query("sex != 'X'"), label="y", score="p", group="sex", reference="M")
    )
    assert audit["eod"].value == pytest.approx(rest["eod"].value)
    assert audit["accuracy"].value == pytest.approx(rest["accuracy"].value)
    assert audit.groups.loc["X", "n"] == 1
    assert audit.groups.loc["X", ["positives", "negatives"]].isna().all()
    assert audit.groups.loc[["F", "M"], "n"].sum() == 199


def test_small_groups_that_are_large_together_stay_in_the_numbers_of_all_patients():
    frame = _table(KINDS[0], SECRETS[0])
    frame.loc[:2, "sex"], frame.loc[3:6, "sex"] = "Y", "Z"
    audit = eq.audit(eq.Scores.from_frame(frame, label="y", score="p", group="sex", reference="M"))
    assert audit["accuracy"].value == pytest.approx(((frame["p"] >= 0.5) == frame["y"]).mean())
    assert audit.groups.loc[["X", "Y", "Z"], "positives"].isna().all()


def test_an_intersection_is_withheld_only_where_another_would_follow():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"sex": np.repeat(["F", "M"], 300), "age": np.tile(np.repeat(["a", "b", "c"], 100), 2), "y": rng.integers(0, 2, 600)}
    )
    frame["p"] = rng.random(600)
    frame = frame.drop(index=[k for k in range(100) if k > 1])  # two patients of F & a
    audit = eq.audit(eq.Scores.from_frame(frame, label="y", score="p", group=["sex", "age"], reference=["M", "c"]))
    known = audit.groups["tpr"].notna()
    crossed = known[audit.groups["attribute"] == "sex & age"]
    assert known[audit.groups["attribute"] != "sex & age"].all()
    assert not crossed[["F & a", "M & a"]].any()
    assert crossed.sum() == 2  # one more group of F and of M is withheld, of the same age
    assert "withheld" in audit.groups.loc["M & a", "note"]


def test_groups_that_are_large_enough_are_monitored(tmp_path):
    months = {}
    for month in (1, 2, 3):
        frame = _table(KINDS[0], SECRETS[0]).assign(pid=lambda d, m=month: d["pid"] + f"-{m}", sex=lambda d, m=month: d["sex"])
        months[f"2026-{month:02}"] = eq.audit(eq.Scores.from_frame(frame, label="y", score="p", group="sex", reference="M", patient="pid"))
    gaps = eq.history(months).monitor(["eod"]).gaps.set_index("group")["value"]
    assert np.isfinite(gaps["F"])
    assert np.isnan(gaps["X"])
