"""The trajectories: a thin line per split, a bold median, the minimum performance and the chosen steps; only for methods whose steps follow
on.
"""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from equipoise.methods.step_control import ADAPTIVE_UNIT
from equipoise.studies import make_plan, save_trajectories
from equipoise.studies.tables import axis_title, median_line, trajectories_figure

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


def panels_of(rows: pd.DataFrame, traces: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """Each panel by its title, with the data of its layers by the mark that draws them."""
    chart = trajectories_figure(PLAN, rows, traces, "loh").to_dict()
    found = {}
    for panel in (panel for line in chart["vconcat"] for panel in line["hconcat"]):
        layers = {}
        for layer in panel["layer"]:
            mark = layer["mark"]
            name = f"{mark['type']} {mark.get('strokeWidth', '')}" if mark["type"] in ("line", "rule") else mark["type"]
            layers[name.strip()] = {"data": chart["datasets"][layer["data"]["name"]], "encoding": layer["encoding"]}
        found[panel["title"]] = layers
    return found


@pytest.fixture(scope="module")
def panels() -> dict[str, dict[str, Any]]:
    """Ten steps of every method; Altair takes a second for them."""
    return panels_of(rows_of(), traces_of())


def test_one_panel_per_method_and_measure() -> None:
    panels = panels_of(rows_of(), traces_of(200))  # more steps than are drawn
    assert list(panels) == [f"{method}, {measure}" for method in PACES for measure in ("SPD", "EOD")]
    thin, bold = (panels["pruning, SPD"][f"line {width}"]["data"] for width in (0.6, 2.5))
    assert {row["seed"] for row in thin} == set(range(5))
    assert len({row["x"] for row in thin}) == 150
    assert {row["value"] for row in bold if row["quantity"] == "bias"} == {0.2}
    assert {row["quantity"] for row in bold} == {"bias", "balanced accuracy"}


@pytest.mark.parametrize(
    ("panel", "title", "last"),
    [("pruning, SPD", "units pruned", 18), ("bias-gda, EOD", "epochs", 2.25), ("adversarial-finetune, SPD", "epochs", 9)],
)
def test_the_axis_counts_what_the_method_counts(panels, panel: str, title: str, last: float) -> None:
    line = panels[panel]["line 2.5"]
    assert line["encoding"]["x"]["title"] == title
    assert max(row["x"] for row in line["data"]) == last


def test_rows_from_before_the_pace_are_drawn_by_step() -> None:
    line = panels_of(rows_of(pace=None), traces_of())["bias-gda, SPD"]["line 2.5"]
    assert line["encoding"]["x"]["title"] == "step"
    assert max(row["x"] for row in line["data"]) == 9


def test_a_grey_print_tells_the_lines_apart(panels) -> None:
    encoding = panels["pruning, SPD"]["line 2.5"]["encoding"]
    solid, dashed = encoding["strokeDash"]["scale"]["range"]
    assert solid[1] == 0 < dashed[1]
    dark, light = (
        sum(int(c[k : k + 2], 16) * w for k, w in ((1, 0.299), (3, 0.587), (5, 0.114))) for c in encoding["color"]["scale"]["range"]
    )
    assert light - dark > 50  # of 255, in grey


def test_the_chosen_step_of_every_split_is_marked(panels) -> None:
    marks = panels["pruning, EOD"]["point"]["data"]
    assert {(row["seed"], row["x"]) for row in marks} == {(seed, 2.0 * (seed + 1)) for seed in range(5)}
    assert {row["value"] for row in marks if row["quantity"] == "bias"} == {0.0, 0.1, 0.2, 0.3, 0.4}


def test_the_constraint_is_marked(panels) -> None:
    assert panels["pruning, SPD"]["rule 1.4"]["data"] == [{"y": 0.6, "text": "minimum 0.60"}]
    assert [row["y"] for row in panels["adversarial-finetune, SPD"]["rule 1.4"]["data"]] == [0.05, -0.05]
    own = rows_of()
    own["min_performance"] = 0.6 + 0.01 * own["seed"]
    assert panels_of(own, traces_of(2))["bias-gda, SPD"]["rule 1.4"]["data"][0]["y"] == 0.62  # the median of the splits' own
    assert "rule 1.4" not in panels_of(rows_of(min_performance=None, max_gap=None), traces_of(2))["bias-gda, SPD"]


def test_files_for_the_data_that_have_steps(tmp_path: Path) -> None:
    traces = pd.concat([traces_of(3), traces_of(3).query("method == 'standard'").assign(data="adult")])
    rows = pd.concat([rows_of(), rows_of().query("method == 'standard'").assign(data="adult")])
    written = save_trajectories(PLAN, rows, traces, tmp_path)
    assert [path.name for path in written] == ["trajectories-loh.png", "trajectories-loh.svg"]
    assert written[0].read_bytes().startswith(b"\x89PNG")
    assert "<svg" in written[1].read_text()


def test_the_median_ends_where_half_of_the_splits_have_ended() -> None:
    traces = pd.DataFrame({"seed": [0, 1, 2, 0, 1, 0], "x": [0, 0, 0, 1, 1, 2], "gap": [1.0, 2.0, 6.0, 3.0, 5.0, 9.0], "performance": 0.7})
    assert median_line(traces)[["x", "gap"]].to_numpy().tolist() == [[0, 2], [1, 4]]


def test_the_axis_of_the_adaptive_schedule_counts_what_is_removed() -> None:
    plan = make_plan({"name": "x", "data": ["loh"], "methods": ["bias-gda", {"method": "pruning"}]})
    assert axis_title(plan, pd.DataFrame({"pace": [5.0]}), "bias-gda") == ADAPTIVE_UNIT
    assert axis_title(plan, pd.DataFrame({"pace": [None]}), "bias-gda") == "step"
