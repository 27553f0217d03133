"""The trajectories: a thin line a split, a bold median, only for methods whose steps follow from one another."""

from pathlib import Path

import pandas as pd

from equipoise.report.trajectories import median_line, save_trajectories, trajectories_figure
from equipoise.study.plan import make_plan

PLAN = make_plan({"name": "x", "data": ["loh", "adult"], "methods": ["standard", "random", "pruning", "bias-gda"]})


def traces_of(steps: int = 400) -> pd.DataFrame:
    lines = [
        {
            "data": "loh",
            "seed": seed,
            "method": method,
            "measure": measure,
            "step": step,
            "gap": 0.1 * seed,
            "performance": 0.8,
            "threshold": 0.5,
        }
        for method in ("standard", "random", "pruning", "bias-gda")
        for measure in ("spd", "eod")
        for seed in range(5)
        for step in range(steps)
    ]
    return pd.DataFrame(lines)


def test_one_panel_a_method_and_measure() -> None:
    chart = trajectories_figure(PLAN, traces_of(), "loh").to_dict()
    (line,) = chart["vconcat"]
    assert [panel["title"] for panel in line["hconcat"]] == ["pruning, SPD", "pruning, EOD", "bias-gda, SPD", "bias-gda, EOD"]
    thin, bold = (chart["datasets"][layer["data"]["name"]] for layer in line["hconcat"][0]["layer"][1:])
    assert {row["seed"] for row in thin} == set(range(5))
    assert len({row["step"] for row in thin}) == 150
    assert {row["value"] for row in bold if row["quantity"] == "bias"} == {0.2}
    assert {row["quantity"] for row in bold} == {"bias", "balanced accuracy"}


def test_files_for_the_data_that_have_steps(tmp_path: Path) -> None:
    traces = pd.concat([traces_of(3), traces_of(3).query("method == 'standard'").assign(data="adult")])
    written = save_trajectories(PLAN, traces, tmp_path)
    assert [path.name for path in written] == ["trajectories-loh.png", "trajectories-loh.svg"]
    assert written[0].read_bytes().startswith(b"\x89PNG")
    assert "<svg" in written[1].read_text()


def test_the_median_ends_where_half_of_the_splits_have_ended() -> None:
    traces = pd.DataFrame(
        {"seed": [0, 1, 2, 0, 1, 0], "step": [0, 0, 0, 1, 1, 2], "gap": [1.0, 2.0, 6.0, 3.0, 5.0, 9.0], "performance": 0.7}
    )
    assert median_line(traces)[["step", "gap"]].to_numpy().tolist() == [[0, 2], [1, 4]]
