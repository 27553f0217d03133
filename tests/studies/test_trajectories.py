"""The trajectories: a thin line per split, a bold median, the minimum performance and the chosen steps; only for methods whose steps follow
on.
"""

from collections import Counter
from pathlib import Path
from xml.etree import ElementTree as ET

import pandas as pd
import pytest

from equipoise.methods.step_control import ADAPTIVE_UNIT
from equipoise.report import Panel
from equipoise.studies import make_plan, save_trajectories
from equipoise.studies.tables import _stepwise, arm_panel, axis_title, median_line

FIXED = [{"method": name, "settings": {"schedule": "paper"}} for name in ("bias-gda", "adversarial-finetune")]
PLAN = make_plan({"name": "x", "data": ["loh", "adult"], "methods": ["standard", "random", "pruning", *FIXED]})
PACES = {"pruning": 2.0, "bias-gda": 0.25, "adversarial-finetune": 1.0}
KEYS = [(m, measure, seed) for m in ("standard", "random", *PACES) for measure in ("spd", "eod") for seed in range(5)]


def traces_of(steps: int = 10) -> pd.DataFrame:
    common = {"data": "loh", "performance": 0.8, "threshold": 0.5}
    return pd.DataFrame(
        [
            {**common, "seed": seed, "method": method, "measure": measure, "step": step, "gap": 0.1 * seed}
            for method, measure, seed in KEYS
            for step in range(steps)
        ]
    )


def rows_of(**changes: object) -> pd.DataFrame:
    return pd.DataFrame(
        [
            {
                **{"data": "loh", "seed": seed, "method": method, "measure": measure, "step": seed + 1, "pace": PACES.get(method, 1.0)},
                **{
                    "min_performance": None if method == "adversarial-finetune" else 0.6,
                    "max_gap": 0.05 if method == "adversarial-finetune" else None,
                },
                **changes,
            }
            for method, measure, seed in KEYS
        ]
    ).astype({"min_performance": float, "max_gap": float, "pace": float})


def panels_of(rows: pd.DataFrame, traces: pd.DataFrame) -> dict[str, Panel]:
    """Each panel by its title."""
    steps = _stepwise(PLAN, rows, traces)
    cells = {(method, measure): steps.query("method == @method and measure == @measure") for method in PACES for measure in ("spd", "eod")}
    return {panel.title: panel for panel in (arm_panel(part, PLAN, *cell) for cell, part in cells.items())}


def styles(panel: Panel) -> Counter[str]:
    return Counter(mark.style for mark in panel.marks)


@pytest.fixture(scope="module")
def panels() -> dict[str, Panel]:
    """Ten steps of every method."""
    return panels_of(rows_of(), traces_of())


def test_a_line_per_split_and_the_median() -> None:
    panel = panels_of(rows_of(), traces_of(200))["pruning, SPD"]  # more steps than are drawn
    assert styles(panel)["track gap thin"] == styles(panel)["track performance thin"] == 5
    (median,) = (mark for mark in panel.marks if mark.style == "track gap")
    assert median.d.count("L") == 149  # and the first
    heights = {point.split(" ")[1] for point in median.d.removeprefix("M").split("L")}
    (middle,) = heights
    (third,) = {point.split(" ")[1] for point in [m.d for m in panel.marks if m.style == "track gap thin"][2].removeprefix("M").split("L")}
    assert middle == third  # of gaps of 0, 0.1, 0.2, 0.3 and 0.4


@pytest.mark.parametrize(
    ("panel", "title", "last"),
    [("pruning, SPD", "units pruned", "18"), ("bias-gda, EOD", "epochs", "2.25"), ("adversarial-finetune, SPD", "epochs", "9")],
)
def test_the_axis_counts_what_the_method_counts(panels, panel: str, title: str, last: str) -> None:
    assert (panels[panel].x_title, panels[panel].x[-1][1]) == (title, last)


def test_rows_from_before_the_pace_are_drawn_by_step() -> None:
    panel = panels_of(rows_of(pace=None), traces_of())["bias-gda, SPD"]
    assert (panel.x_title, panel.x[-1][1]) == ("step", "9")


def test_the_chosen_step_of_every_split_is_marked(panels) -> None:
    assert styles(panels["pruning, EOD"])["end gap"] == styles(panels["pruning, EOD"])["end performance"] == 5


def test_the_constraint_is_marked(panels) -> None:
    def limits(panel: Panel) -> list[str]:
        return [mark.title for mark in panel.marks if mark.style in ("min_performance", "max_gap")]

    assert limits(panels["pruning, SPD"]) == ["minimum 0.60"]
    assert limits(panels["adversarial-finetune, SPD"]) == ["maximum gap 0.05"] * 2
    own = rows_of()
    own["min_performance"] = 0.6 + 0.01 * own["seed"]
    assert limits(panels_of(own, traces_of(2))["bias-gda, SPD"]) == ["minimum 0.62"]  # the median of the splits' own
    assert not limits(panels_of(rows_of(min_performance=None, max_gap=None), traces_of(2))["bias-gda, SPD"])


def test_files_for_the_data_that_have_steps(tmp_path: Path) -> None:
    traces = pd.concat([traces_of(3), traces_of(3).query("method == 'standard'").assign(data="adult")])
    rows = pd.concat([rows_of(), rows_of().query("method == 'standard'").assign(data="adult")])
    (written,) = save_trajectories(PLAN, rows, traces, tmp_path)
    assert written.name == "trajectories-loh.svg"
    picture = ET.fromstring(written.read_text())
    assert len([part for part in picture.iter("{http://www.w3.org/2000/svg}svg") if part.get("class") == "panel"]) == 6


def test_the_median_ends_where_half_of_the_splits_have_ended() -> None:
    traces = pd.DataFrame({"seed": [0, 1, 2, 0, 1, 0], "x": [0, 0, 0, 1, 1, 2], "gap": [1.0, 2.0, 6.0, 3.0, 5.0, 9.0], "performance": 0.7})
    assert median_line(traces)[["x", "gap"]].to_numpy().tolist() == [[0, 2], [1, 4]]


def test_the_axis_of_the_adaptive_schedule_counts_what_is_removed() -> None:
    plan = make_plan({"name": "x", "data": ["loh"], "methods": ["bias-gda", {"method": "pruning"}]})
    assert axis_title(plan, pd.DataFrame({"pace": [5.0]}), "bias-gda") == ADAPTIVE_UNIT
    assert axis_title(plan, pd.DataFrame({"pace": [None]}), "bias-gda") == "step"
