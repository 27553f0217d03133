"""The tables of a study: bold and italics as in the paper, published numbers beside, nothing lost in CSV and LaTeX."""

import io
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from equipoise.studies import StudyPlan, make_plan, narrow, published, read_plan, save_csv, save_latex, study_text, study_view
from equipoise.studies.summary import study_table
from support.facts import says


def rows_of(plan: StudyPlan, gaps: dict[str, float], performances: dict[str, float], data: tuple[str, ...] = ("adult",)) -> pd.DataFrame:
    """Two splits around the given means."""
    rows = [
        {"data": d, "measure": m, "method": method, "seed": seed, "gap": gap + 0.01 * (2 * seed - 1), "performance": performances[method]}
        for d in data
        for m in plan.measures
        for method, gap in gaps.items()
        for seed in (0, 1)
    ]
    return pd.DataFrame(rows).assign(met=True, seconds=1.0)


@pytest.fixture
def plan() -> StudyPlan:
    return narrow(
        read_plan("paper-tabular"), data=["adult"], measures=["spd"], methods=["standard", "random", "pruning", "bias-gda"], splits=2
    )


def test_best_and_second_best_of_all_but_the_original(plan: StudyPlan) -> None:
    gaps = {"standard": 0.001, "random": -0.05, "pruning": 0.02, "bias-gda": -0.03}
    performances = {"standard": 0.9, "random": 0.6, "pruning": 0.8, "bias-gda": 0.7}
    table = study_table(plan, rows_of(plan, gaps, performances)).set_index("method")
    assert dict(table["gap_rank"]) == {"standard": 0, "random": 0, "pruning": 1, "bias-gda": 2}
    assert dict(table["performance_rank"]) == {"standard": 0, "random": 0, "pruning": 1, "bias-gda": 2}


def test_ties_at_the_printed_digits_share_a_place(plan: StudyPlan) -> None:
    gaps = {"standard": 0.3, "random": -0.0101, "pruning": 0.0099, "bias-gda": -0.03}
    table = study_table(plan, rows_of(plan, gaps, dict.fromkeys(gaps, 0.8))).set_index("method")
    assert dict(table["gap_rank"]) == {"standard": 0, "random": 1, "pruning": 1, "bias-gda": 2}
    assert dict(table["performance_rank"]) == {"standard": 0, "random": 1, "pruning": 1, "bias-gda": 1}


def test_a_signed_mean_does_not_hide_scatter(plan: StudyPlan) -> None:
    table = study_table(plan, rows_of(plan, {"pruning": 0.0}, {"pruning": 0.8})).iloc[0]
    assert table["gap_mean"] == pytest.approx(0)
    assert table["abs_gap_mean"] == pytest.approx(0.01)


def test_the_published_number_and_the_difference(plan: StudyPlan) -> None:
    table = study_table(plan, rows_of(plan, {"pruning": -0.01}, {"pruning": 0.58})).iloc[0]
    assert (table["published_gap"], table["published_gap_sd"]) == (-0.04, 0.05)
    assert table["gap_difference"] == pytest.approx(0.03)
    assert table["performance_difference"] == pytest.approx(0.02)


def test_a_study_without_published_numbers_has_no_such_columns_and_no_word_on_them(tmp_path: Path) -> None:
    plan = make_plan({"name": "x", "data": ["loh"], "methods": ["standard", "pruning"], "measures": ["spd"], "splits": 2})
    rows = rows_of(plan, {"standard": 0.1, "pruning": 0.02}, {"standard": 0.8, "pruning": 0.8}, ("loh",))
    assert not [name for name in study_table(plan, rows).columns if "published" in name or "difference" in name]
    text = study_text(plan, rows)
    assert "published" not in text.lower()
    assert "diff." not in text.lower()
    save_csv(plan, rows, tmp_path)
    assert "published_gap" not in pd.read_csv(tmp_path / "table.csv").columns


def test_sizes_stand_next_to_the_papers_and_few_rows_are_warned_of(plan: StudyPlan) -> None:
    rows = rows_of(plan, {"pruning": -0.01}, {"pruning": 0.58})
    assert "27,133" not in study_text(plan, rows)  # rows from before sizes were kept
    whole = study_text(plan, rows.assign(train_rows=27_133, valid_rows=9_044, test_rows=9_045))
    assert "27,133 / 9,044 / 9,045" in whole
    assert "Warning" not in whole
    few = " ".join(study_text(plan, rows.assign(train_rows=60.0, valid_rows=20.0, test_rows=20.0)).split())
    assert "60 / 20 / 20" in few
    assert says(few, "Warning", "Adult: sex", "0.2%")


def test_two_arms_of_one_method_are_both_compared() -> None:
    methods = ["standard", {"method": "pruning", "name": "slow"}, {"method": "pruning", "name": "fast"}]
    plan = make_plan({"name": "x", "data": [{"source": "adult", "published": "adult/sex"}], "methods": methods, "measures": ["spd"]})
    table = study_table(plan, rows_of(plan, {"slow": -0.01, "fast": 0.02}, {"slow": 0.5, "fast": 0.6}))
    assert list(table["published_gap"]) == [-0.04, -0.04]


def test_the_terminal_shows_bold_and_italics(plan: StudyPlan) -> None:
    gaps = {"standard": 0.001, "random": -0.05, "pruning": 0.02, "bias-gda": -0.03}
    rows = rows_of(plan, gaps, dict.fromkeys(gaps, 0.8))
    buffer = io.StringIO()
    Console(file=buffer, force_terminal=True, width=120, color_system="standard").print(study_view(plan, rows, 120))
    shown = buffer.getvalue()
    assert "\x1b[1m+0.020 ± 0.014" in shown
    assert "\x1b[3m-0.030 ± 0.014" in shown
    assert "\x1b[1m+0.001" not in shown
    text = study_text(plan, rows)
    for words in ("Adult: sex", "-0.04 ± 0.05", "published", "|bias|", "SPD", "balanced accuracy"):
        assert words in text


@pytest.mark.parametrize("width", [80, 120, 200])
def test_no_number_is_cut_off(width: int) -> None:
    plan = narrow(read_plan("paper-tabular"), splits=2)
    gaps = {arm.name: 0.1 for arm in plan.methods}
    rows = rows_of(plan, gaps, dict.fromkeys(gaps, 0.8), ("adult", "bank", "compas")).assign(p_value=0.0385)
    buffer = io.StringIO()
    Console(file=buffer, width=width).print(study_view(plan, rows, width))
    assert "…" not in buffer.getvalue()
    cells = len(("adult", "bank", "compas")) * len(plan.measures) * len(plan.methods)
    assert len(plan.methods) == 15
    assert buffer.getvalue().count("+0.100 ± 0.014") == cells
    assert buffer.getvalue().count(" 0.077 ") == cells


def test_many_data_go_down_the_side_as_in_the_sensitivity_table() -> None:
    plan = narrow(read_plan("paper-sensitivity"), measures=["spd"])
    names = tuple(d.name for d in plan.data)
    gaps = {arm.name: 0.1 for arm in plan.methods}
    lines = study_text(plan, rows_of(plan, gaps, dict.fromkeys(gaps, 0.8), names)).splitlines()
    assert any("data" in line and "standard" in line and "pruning" in line for line in lines)
    assert sum(line.strip().startswith("Loh, alpha = 0.1") for line in lines) >= 2


def test_what_is_missing_or_unmet_is_said(plan: StudyPlan) -> None:
    rows = rows_of(plan, {"standard": 0.1, "pruning": 0.1}, {"standard": 0.8, "pruning": 0.8})
    rows["met"] = (rows["method"] != "pruning") | (rows["seed"] == 0)
    text = study_text(plan, rows)
    assert says(text, "4 rows of 8", "pruning in 50%")


def test_the_p_value_is_next_to_the_gap(plan: StudyPlan, tmp_path: Path) -> None:
    rows = rows_of(plan, {"pruning": 0.02}, {"pruning": 0.8})
    assert " p " not in study_text(plan, rows).partition("Bold")[0]  # rows without p-values
    rows = rows.assign(p_value=[0.1, 0.3])
    lines = [line for line in study_text(plan, rows).splitlines() if "pruning" in line]
    assert lines[0].split()[:6] == ["pruning", "+0.020", "±", "0.014", "0.020", "0.400"]
    assert study_table(plan, rows)["p_value"].tolist() == pytest.approx([0.4])
    save_csv(plan, rows, tmp_path)
    table = pd.read_csv(tmp_path / "table.csv")
    assert table["p_value"].iloc[0] == pytest.approx(0.4)
    assert table["below_limit"].isna().all()
    save_latex(plan, rows, tmp_path)
    text = (tmp_path / "spd-bias.tex").read_text()
    assert "0.400" not in text


def test_the_distance_to_the_limit_is_that_of_the_test_part(plan: StudyPlan) -> None:
    rows = rows_of(plan, {"pruning": 0.02, "standard": 0.1}, {"pruning": 0.8, "standard": 0.8})
    rows["limit"] = rows["performance"] + np.where(rows["method"] == "pruning", 0.03, -0.01)
    below = study_table(plan, rows).set_index("method")["below_limit"]
    assert below.to_dict() == pytest.approx({"pruning": 0.03, "standard": -0.01})
    assert (
        study_table(plan, rows.assign(valid_gap=0.1, valid_performance=0.7, p_value=0.1, valid_p_value=0.1), "validation")["below_limit"]
        .isna()
        .all()
    )


def test_the_validation_part_beside_its_published_numbers(tmp_path: Path) -> None:
    name = "mimic-cxr-ethnicity-resnet-18"
    plan = narrow(read_plan("paper-mimic-cxr"), data=[name], methods=["pruning"], splits=2)
    rows = rows_of(plan, {"pruning": 0.3}, {"pruning": 0.6}, (name,))
    rows = rows.assign(valid_gap=-0.02, valid_performance=0.7, p_value=0.05, valid_p_value=0.06)
    test, valid = (study_table(plan, rows, part).iloc[0] for part in ("test", "validation"))
    for line, part in ((test, "test"), (valid, "validation")):
        paper = published("mimic-cxr/ethnicity/resnet-18", "eod", "pruning", part)
        assert paper is not None
        assert (line["published_gap"], line["published_performance"]) == (paper.bias, paper.performance)
    assert (valid["gap_mean"], valid["performance_mean"], valid["p_value"]) == pytest.approx((-0.02, 0.7, 0.12))
    buffer = io.StringIO()
    Console(file=buffer, width=100).print(study_view(plan, rows, 100, "validation"))
    assert says(buffer.getvalue(), "validation")
    assert "-0.020 ± 0.000" in buffer.getvalue()
    save_csv(plan, rows, tmp_path, "validation")
    assert pd.read_csv(tmp_path / "table.csv")["gap_mean"].tolist() == pytest.approx([-0.02])
    assert pd.read_csv(tmp_path / "rows.csv")["gap"].tolist() == pytest.approx([0.29, 0.31])


def test_files(plan: StudyPlan, tmp_path: Path) -> None:
    gaps = {"standard": 0.001, "random": -0.05, "pruning": 0.02, "bias-gda": -0.03}
    rows = rows_of(plan, gaps, dict.fromkeys(gaps, 0.8))
    assert [path.name for path in save_csv(plan, rows, tmp_path / "csv")] == ["rows.csv", "table.csv", "comparison.csv"]
    assert len(pd.read_csv(tmp_path / "csv/rows.csv")) == len(rows)
    assert set(pd.read_csv(tmp_path / "csv/comparison.csv")["method"]) == {"random", "pruning", "bias-gda"}
    assert [path.name for path in save_latex(plan, rows, tmp_path)] == ["spd-bias.tex", "spd-performance.tex"]
    latex = (tmp_path / "spd-bias.tex").read_text()
    assert "pruning & \\textbf{$+$0.020 $\\pm$ 0.014} & 0.020 & $-$0.04 $\\pm$ 0.05 & $+$0.060 \\\\" in latex
    assert "\\textit{$-$0.030" in latex
    assert latex.count("{") == latex.count("}")


def test_names_are_text_everywhere(tmp_path: Path) -> None:
    data = [{"source": "loh", "title": "50% of [red]A_1 & {B}\x1b[31m"}]
    plan = make_plan({"name": "x", "data": data, "methods": ["standard"], "measures": ["spd"], "splits": 2})
    rows = rows_of(plan, {"standard": 0.1}, {"standard": 0.8}, ("loh",))
    assert "50% of [red]A_1 & {B}\\x1b[31m" in study_text(plan, rows)
    save_latex(plan, rows, tmp_path)
    assert "50\\% of [red]A\\_1 \\& \\{B\\}" in (tmp_path / "spd-bias.tex").read_text()
