"""The page of the paper's numbers: made from the rows in experiments/, and every cell that is off has its explanation."""

import json
from pathlib import Path

import pandas as pd
import pytest
import reproduction
from reproduction import Cell, Stale, Study, cells_of, collect, differences, explanations_of, filled, table

from equipoise.studies import make_plan, run_study
from support.facts import facts

ADULT = {"source": "adult", "title": "Adult: sex", "published": "adult/sex"}
PLAN = {
    "name": "small",
    "data": [ADULT],
    "methods": ["standard", {"method": "standard", "name": "standard-published"}],
    "measures": ["spd"],
    "splits": 2,
}
KEY = "adult spd standard default bias"


def written(folder: Path, gaps: dict[str, list[float]], explanations: str = "") -> Study:
    """A study in experiments/ whose rows have these gaps per arm; published are -0.32 (0.02) and 0.82 (0.01)."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "study.json").write_text(json.dumps({"definition": PLAN}))
    lines = [
        {"data": "adult", "measure": "spd", "method": arm, "seed": k, "gap": gap, "performance": 0.82}
        for arm, own in gaps.items()
        for k, gap in enumerate(own)
    ]
    pd.DataFrame(lines).to_csv(folder / "rows.csv", index=False)
    (folder / "explanations.toml").write_text(explanations)
    return Study.read(folder)


def test_the_pages_are_as_new_as_the_rows() -> None:
    """And every cell beyond one published standard deviation is explained, once, and nothing else is."""
    for page, found in reproduction.pages().items():
        text = page.read_text(encoding="utf-8")
        assert filled(text, found) == text, "run python docs/_build/reproduction.py"


def test_no_number_of_the_rows_is_missing() -> None:
    there = [name for name in reproduction.TABLES.values() if (reproduction.EXPERIMENTS / name / "rows.csv").is_file()]
    assert "paper-tabular" in there
    for name in there:
        study = Study.read(reproduction.EXPERIMENTS / name)
        arms, data = [arm.name for arm in study.plan.methods], [d.name for d in study.plan.data]
        counts = study.rows.groupby(["data", "measure", "method"]).size()
        assert set(counts) == {study.plan.splits}
        assert len(counts) == len(arms) * len(data) * len(study.plan.measures)
        assert {cell.method for cell in cells_of(study)} == {arm.method for arm in study.plan.methods}


@pytest.mark.parametrize(
    ("mean", "paper", "sd", "beyond"),
    [
        (-0.344, -0.32, 0.02, False),
        (-0.346, -0.32, 0.02, True),
        (0.664, 0.66, 0.0, False),
        (0.666, 0.66, 0.0, True),
        (0.81, 0.82, 0.01, False),
    ],
)
def test_a_cell_is_compared_at_the_digits_that_the_paper_prints(mean: float, paper: float, sd: float, beyond: bool) -> None:
    assert Cell("adult", "spd", "standard", "default", "bias", mean, 0.0, paper, sd).beyond == beyond


def test_numbers_of_the_tables(tmp_path: Path) -> None:
    study = written(tmp_path / "small", {"standard": [-0.40, -0.50], "standard-published": [-0.30, -0.32]})
    cells = cells_of(study)
    line = list(table(study, cells))[-1]
    assert line == (
        "| Adult: sex | SPD | standard | -0.32 ± 0.02, 0.82 ± 0.01 | -0.31 ± 0.01, 0.82 ± 0.00 | **-0.45 ± 0.07**, 0.82 ± 0.00 |"
    )
    assert list(differences(cells))[-1] == "| standard | 0.010 | 0.000 | 0.130 | 0.000 | 0 of 2 | 1 of 2 |"


def test_every_cell_that_is_off_needs_its_explanation(tmp_path: Path) -> None:
    gaps = {"standard": [-0.40, -0.50], "standard-published": [-0.30, -0.32]}
    study = written(tmp_path / "none", gaps)
    with pytest.raises(Stale, match=facts(KEY)):
        explanations_of(study, cells_of(study))
    fine = f'[[explanation]]\nbecause = "for a\\n reason"\ncells = ["{KEY}"]\n'
    study = written(tmp_path / "fine", gaps, fine)
    [(because, [cell])] = explanations_of(study, cells_of(study))
    assert (because, cell.key) == ("for a reason", KEY)
    for more, problem in (
        (fine + fine, f"{KEY} is explained more than once"),
        (fine.replace(KEY, f'{KEY}", "adult spd standard published bias'), "adult spd standard published bias is explained and within"),
        (fine.replace(KEY, f'{KEY}", "adlt spd standard default bias'), "adlt spd standard default bias is explained and within"),
    ):
        study = written(tmp_path / "wrong", gaps, more)
        with pytest.raises(Stale, match=problem):
            explanations_of(study, cells_of(study))


def test_blocks_are_replaced_and_text_around_them_stays() -> None:
    text = "# A\n\n[//]: # (begin one)\n\nold\n\n[//]: # (end)\n\nprose\n"
    new = filled(text, {"one": "new | \\d"})
    assert new == "# A\n\n[//]: # (begin one)\n\nnew | \\d\n\n[//]: # (end)\n\nprose\n"
    assert filled(new, {"one": "new | \\d"}) == new
    for found in ({"two": "x"}, {}, {"one": "x", "two": "y"}):
        with pytest.raises(Stale, match="blocks"):
            filled(text, found)
    with pytest.raises(Stale, match="does not end"):
        filled(text.replace("(end)", "(fin)"), {"one": "x"})


def test_a_finished_study_is_collected_and_an_unfinished_one_is_not(tmp_path: Path) -> None:
    plan = make_plan({**PLAN, "data": [{"source": "loh", "options": {"n": 200}}], "training": {"epochs": 1}})
    run_study(plan, tmp_path / "run", runner="serial")
    folder = collect(tmp_path / "run", "one core", tmp_path / "results")
    assert sorted(path.name for path in folder.iterdir()) == ["rows.csv", "study.json", "timings.csv"]
    study = Study.read(folder)
    assert study.plan == plan
    assert list(study.rows.columns) == reproduction.COLUMNS
    assert len(study.rows) == 4
    next((tmp_path / "run" / "rows").glob("*standard-published*")).unlink()
    with pytest.raises(Stale, match=facts(3, 4, "rows")):
        collect(tmp_path / "run", "one core", tmp_path / "results")
