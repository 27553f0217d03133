"""Clinical options of an audit: weights, operating points, decision curves, underdiagnosis."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from support.audits import frame_of
from support.command import Ran
from support.facts import says

ROLES = ("--label", "a", "--score", "pa", "--group", "sex", "--reference", "M")
BOTH = ("--label", "a", "--score", "pa", "--label", "b", "--score", "pb", "--group", "sex", "--reference", "M")
Run = Callable[..., Ran]


@pytest.fixture
def table(tmp_path: Path) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    n = 300
    frame = pd.DataFrame({"sex": rng.choice(["F", "M"], n), "w": rng.integers(1, 4, n)})
    for name, mean in (("a", -0.8), ("b", -1.5)):
        x = rng.normal(mean, 1.4, n)
        frame[f"p{name}"] = (1 / (1 + np.exp(-x))).round(4)
        frame[name] = (rng.random(n) < 1 / (1 + np.exp(-x))).astype(int)
    frame.to_csv(tmp_path / "rows.csv", index=False)
    return frame


def test_weights_count_rows_several_times(run: Run, table: pd.DataFrame) -> None:
    table.loc[np.repeat(table.index, table["w"])].to_csv("copies.csv", index=False)
    weighted = json.loads(run("audit", "rows.csv", *ROLES, "--set", "data.weight=w", "--json").out)
    copies = json.loads(run("audit", "copies.csv", *ROLES, "--json").out)
    assert weighted["weighted"]
    for name in ("eod", "spd", "balanced_accuracy", "auroc", "brier", "calibration_slope"):
        assert weighted[name]["value"] == pytest.approx(copies[name]["value"], abs=1e-7)
    assert says(run("audit", "rows.csv", *ROLES, "--set", "data.weight=w").out, "weights")


def test_a_bad_weight_is_one_message_with_its_row(run: Run, table: pd.DataFrame) -> None:
    table.assign(w=np.where(table.index == 4, -1, 1)).to_csv("bad.csv", index=False)
    ran = run("audit", "bad.csv", *ROLES, "--set", "data.weight=w")
    assert ran.code == 2
    assert says(ran.err, "'w'", "row 5")


def test_points_and_thresholds_are_options(run: Run, table: pd.DataFrame) -> None:
    told = json.loads(
        run("audit", "rows.csv", *ROLES, "--set", "audit.specificity=0.8", "--set", "audit.thresholds=0.1:0.2:0.05", "--json").out
    )
    assert told["settings"]["specificity"] == 0.8
    assert sorted({row["threshold"] for row in told["curves"]}) == [0.1, 0.15, 0.2]
    shown = run("audit", "rows.csv", *ROLES, "--set", "audit.specificity=0.8", "--verbose").out
    assert says(shown, "sensitivity at 80% specificity", "calibration slope", "Net benefit")
    short = run("audit", "rows.csv", *ROLES).out
    assert "alibration slope" in short
    assert "Net benefit" not in short
    assert len(short.splitlines()) <= 30
    ran = run(
        "audit", "rows.csv", *ROLES, "--set", "audit.specificity=1", "--set", "audit.sensitivity=0", "--set", "audit.thresholds=0.5:0.1"
    )
    assert ran.code == 2
    assert says(ran.err, "specificity", "sensitivity", "0.5:0.1")


def test_underdiagnosis_is_derived_from_all_labels(run: Run, table: pd.DataFrame) -> None:
    told = json.loads(run("audit", "rows.csv", *BOTH, "--threshold", "0.3", "--set", "audit.no_finding=none of the labels", "--json").out)
    found = {row["group"]: row for row in told["no_finding"]["underdiagnosis"]}
    sick = (table["a"] == 1) | (table["b"] == 1)
    missed = (table["pa"] < 0.3) & (table["pb"] < 0.3)
    for sex in ("F", "M"):
        own = sick & (table["sex"] == sex)
        assert found[sex]["with_finding"] == own.sum()
        assert found[sex]["rate"] == pytest.approx(missed[own].mean())
    shown = run("audit", "rows.csv", *BOTH, "--threshold", "0.3", "--set", "audit.no_finding=none of the labels").out
    assert f"{100 * found['F']['rate']:.1f}" in shown
    named = json.loads(run("audit", "rows.csv", *BOTH, "--set", "audit.no_finding=b", "--json").out)
    assert [row["rate"] for row in named["no_finding"]["underdiagnosis"]] == [row["fpr"] for row in named["labels"]["b"]["groups"]]


@pytest.mark.parametrize(("roles", "name"), [(BOTH, "c"), (ROLES, "none of the labels")])
def test_a_missing_label_is_refused(run: Run, table: pd.DataFrame, roles: tuple[str, ...], name: str) -> None:
    ran = run("audit", "rows.csv", *roles, "--set", f"audit.no_finding={name}")
    assert ran.code == 2
    assert says(ran.err, "audit.no_finding", name)


def test_figures_and_page_have_the_curves(run: Run, table: pd.DataFrame) -> None:
    ran = run("audit", "rows.csv", *ROLES, "--set", "report.figures=figures", "--report", "audit.html")
    assert ran.code == 0
    assert {"calibration.svg", "decision-curves.svg"} <= {path.name for path in Path("figures").iterdir()}
    page = Path("audit.html").read_text(encoding="utf-8")
    assert page.count('class="benefit"') == 2
    assert says(page, "Brier score", "Calibration slope")


def test_shrunken_gaps_are_shown_next_to_the_plain_ones_for_enough_groups(run: Run, table: pd.DataFrame) -> None:
    table.assign(age=np.arange(len(table)) % 3).to_csv("rows.csv", index=False)
    both = ("--group", "age", "--reference", "0")
    told = json.loads(run("audit", "rows.csv", *ROLES, *both, "--set", "audit.shrink=true", "--json").out)
    shrunken = pd.DataFrame(told["shrunken_gaps"])
    assert [row["value"] for row in told["gaps"]] == shrunken["value"].tolist()
    assert shrunken.groupby("attribute")["shrunken"].count().to_dict() == {"sex": 0, "age": 0, "sex & age": 5 * 6}
    shown = run("audit", "rows.csv", *ROLES, *both, "--set", "audit.shrink=true").out
    row = shrunken[(shrunken["measure"] == "eod") & shrunken["shrunken"].notna()].iloc[0]
    assert says(shown, "empirical Bayes", f"{100 * row['shrunken']:+.1f} [{100 * row['low']:+.1f}, {100 * row['high']:+.1f}]")
    assert "shrunken_gaps" not in json.loads(run("audit", "rows.csv", *ROLES, *both, "--json").out)
    assert says(run("audit", "rows.csv", *ROLES, "--set", "audit.shrink=true").out, "four groups")


def test_a_group_with_a_line_separator_or_a_character_that_xml_forbids_is_drawn_escaped(run: Run) -> None:
    frame_of(["F", "M\u2028x", "N\uffff"], n=20).to_csv("names.csv", index=False)
    ran = run("audit", "names.csv", "--label", "y", "--score", "p", "--group", "sex", "--reference", "F", "--set", "report.figures=figures")
    assert ran.code == 0, ran.err
    drawn = Path("figures/rates.svg").read_text(encoding="utf-8")
    assert says(drawn, "M\\u2028x", "N\\uffff")
    assert not {"\u2028", "\uffff"} & set(drawn + ran.out)


def test_underdiagnosis_is_on_the_page_and_among_the_figures(run: Run, table: pd.DataFrame) -> None:
    both = ("audit", "rows.csv", *BOTH, "--threshold", "0.3", "--set", "audit.no_finding=none of the labels")
    assert run(*both, "--report", "audits.html", "--set", "report.figures=figures").code == 0
    found = json.loads(run(*both, "--json").out)["no_finding"]["underdiagnosis"]
    page = Path("audits.html").read_text(encoding="utf-8")
    assert all(f"{100 * row['rate']:.1f}%" in page for row in found)
    assert Path("figures/underdiagnosis.svg").is_file()
    assert "nderdiagnosis" not in _page_without(run)


def _page_without(run: Run) -> str:
    run("audit", "rows.csv", *BOTH, "--report", "plain.html")
    return Path("plain.html").read_text(encoding="utf-8")


def test_a_folder_of_files_is_audited_as_its_rows_in_one_file(run: Run, table: pd.DataFrame, tmp_path: Path) -> None:
    """Read in batches: several labels, no finding, figures; row ids are refused."""
    folder = tmp_path / "visits"
    folder.mkdir()
    for k in range(2):
        table.iloc[k::2].to_parquet(folder / f"{k}.parquet")
    whole = json.loads(run("audit", "rows.csv", *BOTH, "--set", "audit.no_finding=none of the labels", "--json").out)
    ran = run("audit", folder, *BOTH, "--set", "audit.no_finding=none of the labels", "--set", "report.figures=figures", "--json")
    assert (ran.code, ran.err) == (0, "")
    told = json.loads(ran.out)
    assert told["comparisons"] == whole["comparisons"]
    for label in ("a", "b"):
        for mine, other in zip(told["labels"][label]["gaps"], whole["labels"][label]["gaps"], strict=True):
            assert mine["value"] == pytest.approx(other["value"], abs=1e-12)
            assert mine["p_adjusted"] == pytest.approx(other["p_adjusted"], abs=0.05)
        assert "rates.svg" in {path.name for path in (tmp_path / "figures" / label).iterdir()}
    rates = [row["rate"] for row in told["no_finding"]["underdiagnosis"]]
    assert rates == pytest.approx([row["rate"] for row in whole["no_finding"]["underdiagnosis"]])
    ran = run("audit", folder, *ROLES, "--set", "data.id=w")
    assert ran.code == 2
    assert says(ran.err, "added up", "data.id")


def test_figures_are_not_written_through_a_link_to_another_folder(run: Run, table: pd.DataFrame, tmp_path: Path) -> None:
    elsewhere, figures = tmp_path / "elsewhere", tmp_path / "figures"
    elsewhere.mkdir()
    figures.mkdir()
    (figures / "a").symlink_to(elsewhere)
    ran = run("audit", "rows.csv", *BOTH, "--set", f"report.figures={figures}")
    assert ran.code == 2
    assert says(ran.err, "link", "report.figures")
    assert not list(elsewhere.iterdir())
