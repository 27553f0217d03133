"""Ratios, ranges, worst groups and differences in measures of scores: the same numbers in every output of the commands."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import equipoise as eq
from support.command import ran

ROLES = ["--label", "sick", "--score", "p", "--group", "region", "--reference", "north", "--patient", "pid", "--threshold", "0.5"]
NAMES = ("tpr_worst", "selection_rate_min_ratio", "auroc_gap", "fpr_ratio")


def table(folder: Path, seed: int = 0) -> Path:
    """Decisions in three regions, of which the south is flagged less often."""
    rng, n = np.random.default_rng(seed), 900
    region, sick = rng.choice(["north", "south", "west"], n, p=[0.5, 0.3, 0.2]), rng.integers(0, 2, n)
    p = np.clip(0.35 + 0.3 * sick - 0.12 * (region == "south") + rng.normal(0, 0.2, n), 0, 1).round(3)
    pd.DataFrame({"sick": sick, "p": p, "region": region, "pid": np.arange(n) // 2 + 1000 * seed}).to_csv(folder / f"rows{seed}.csv")
    return folder / f"rows{seed}.csv"


def asked(names: tuple[str, ...] = NAMES) -> list[str]:
    return [word for name in names for word in ("--measure", name)]


def test_terminal_json_and_page_hold_what_python_computes(tmp_path: Path):
    path = table(tmp_path)
    code, out, err = ran("audit", path, *ROLES, *asked(), "--out", tmp_path / "audit.json", "--report", tmp_path / "audit.html")
    assert code == 0, err
    frame = pd.read_csv(path, dtype={"pid": str})
    scores = eq.Scores.from_frame(frame, label="sick", score="p", group="region", reference="north", patient="pid")
    audit = eq.audit(scores, threshold=0.5, measures=NAMES)
    document, page = json.loads((tmp_path / "audit.json").read_text()), (tmp_path / "audit.html").read_text()
    for name in NAMES:
        assert document[name]["value"] == pytest.approx(audit[name].value)
    for row in audit.summaries.itertuples():
        ratio, share = row.measure.endswith("ratio"), row.measure == "tpr_worst"
        shown = f"{row.value:.2f}" if ratio else f"{100 * row.value:.1f}" if share else f"{100 * row.value:+.1f}"
        assert f"{shown} [" in out, row
        assert shown.replace("-", "\N{MINUS SIGN}") in page, row


def test_without_a_gap_the_page_does_not_claim_that_data_were_insufficient(tmp_path: Path):
    code, _, err = ran("audit", table(tmp_path), *ROLES, *asked(("tpr_worst",)), "--report", tmp_path / "audit.html")
    assert code == 0, err
    page = (tmp_path / "audit.html").read_text()
    assert "other measures were asked for" in page
    assert "Insufficient data: no difference" not in page


def test_a_case_file_a_condition_and_a_comparison_take_them(tmp_path: Path):
    first, second = table(tmp_path), table(tmp_path, seed=1)
    for path in (first, second):
        code, _, err = ran("audit", path, *ROLES, *asked(), "--out", path.with_suffix(".json"))
        assert code == 0, err
    code, out, err = ran("compare", first.with_suffix(".json"), second.with_suffix(".json"), "--out", tmp_path / "changes.json")
    assert code == 0, err
    assert "Sensitivity, worst" in out
    assert {row["measure"] for row in json.loads((tmp_path / "changes.json").read_text())["summaries"]} == set(NAMES)
    data = 'table = "rows0.csv"\nlabel = "sick"\nscore = "p"\ngroup = "region"\nreference = "north"\npatient = "pid"\n'
    (tmp_path / "case.toml").write_text(f'[data]\n{data}[model]\nthreshold = 0.5\n[audit]\nalso = ["selection_rate_min_ratio"]\n')
    code, _, err = ran("audit", tmp_path / "case.toml", "--fail-if", "selection_rate_min_ratio < 0.8")
    assert (code, "divided by" in err) == (1, True)
    code, _, err = ran("audit", tmp_path / "case.toml", "--fail-if", "selection_rate_min_ratio < 0.1")
    assert code == 0, err


@pytest.mark.parametrize(
    "command",
    [["debias", *ROLES, "--method", "group-thresholds", "--measure", "tpr_worst"], ["audit", *ROLES, "--set", "audit.primary=tpr_worst"]],
)
def test_they_are_no_goal_and_not_tested_and_the_error_names_what_is(tmp_path: Path, command):
    code, _, err = ran(command[0], table(tmp_path), *command[1:])
    assert code == 2
    assert "keep = { tpr = 0.8 }" in " ".join(err.split())
    assert "Possible are spd, eod" in " ".join(err.split())
