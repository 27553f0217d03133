"""The paper's Figure 3: bias and performance against the step of a method, every split thin, the median over splits bold."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from equipoise.report.figures import save_figure
from equipoise.study.schema import Plan

TRIES = ("standard", "random", "reject-option", "equalised-odds", "group-thresholds", "auto")  # their steps do not follow from one another
A_LINE = 4  # panels
STEPS = 150  # drawn at most; a panel has a line a split, so more would only make the file large
ORANGE, GREEN = "#d95f02", "#1b9e77"


def trajectories_figure(plan: Plan, traces: pd.DataFrame, data: str) -> Any:
    """One panel a method and measure, for the methods that go step by step."""
    import altair as alt

    here = _followed(plan, traces[traces["data"] == data])
    panels = [
        _panel(part, f"{arm.name}, {measure.upper()}", plan)
        for arm in plan.methods
        for measure in plan.measures
        if len(part := here[(here["method"] == arm.name) & (here["measure"] == measure)])
    ]
    title = f"{plan.named(data).title or data}: validation part, each split thin, median bold"
    lines = [alt.hconcat(*panels[k : k + A_LINE]).resolve_scale(y="shared") for k in range(0, len(panels), A_LINE)]
    return alt.vconcat(*lines, title=title)


def save_trajectories(plan: Plan, traces: pd.DataFrame, folder: str | Path, formats: tuple[str, ...] = ("png", "svg")) -> list[Path]:
    """A figure for each of the data on which a method went step by step."""
    written = []
    for data in dict.fromkeys(_followed(plan, traces)["data"]):
        chart = trajectories_figure(plan, traces, data)
        written += [save_figure(chart, Path(folder) / f"trajectories-{data}.{kind}") for kind in formats]
    return written


def _followed(plan: Plan, traces: pd.DataFrame) -> pd.DataFrame:
    """The traces in which one step follows from another."""
    followed = [arm.name for arm in plan.methods if arm.method not in TRIES]
    return traces[traces["method"].isin(followed)]


def median_line(part: pd.DataFrame) -> pd.DataFrame:
    """The median over splits at each step that at least half of the splits reach: what is left later is no fair sample.

    >>> steps = pd.DataFrame({"seed": [0, 1, 2, 0], "step": [0, 0, 0, 1], "gap": [1.0, 2.0, 9.0, 5.0], "performance": 0.5})
    >>> median_line(steps).values.tolist()
    [[0.0, 2.0, 0.5]]
    """
    grouped = part.groupby("step")
    enough = grouped.size() * 2 >= part["seed"].nunique()
    return grouped[["gap", "performance"]].median()[enough].reset_index()


def _panel(part: pd.DataFrame, title: str, plan: Plan) -> Any:
    import altair as alt

    names = {"gap": "bias", "performance": plan.performance.replace("_", " ")}
    median = median_line(part)
    thin, bold = (_long(frame, names) for frame in (_thinned(part), _thinned(median.assign(seed=-1))))
    base = {
        "x": alt.X("step:Q", title="step"),
        "y": alt.Y("value:Q", title=None, scale=alt.Scale(zero=True)),
        "color": alt.Color(
            "quantity:N",
            scale=alt.Scale(domain=list(names.values()), range=[ORANGE, GREEN]),
            legend=alt.Legend(orient="bottom", title=None, symbolOpacity=1, symbolStrokeWidth=2.5),
        ),
    }
    # Inline data: the limit on rows that altair puts on frames is meant for notebooks.
    lines = alt.Chart(alt.InlineData(values=thin)).mark_line(strokeWidth=0.6, opacity=0.35).encode(detail="seed:N", **base)
    middle = alt.Chart(alt.InlineData(values=bold)).mark_line(strokeWidth=2.5).encode(**base)
    zero = alt.Chart(alt.InlineData(values=[{"y": 0}])).mark_rule(strokeDash=[4, 4], color="#777").encode(y="y:Q")
    return (zero + lines + middle).properties(width=220, height=180, title=title)


def _thinned(frame: pd.DataFrame) -> pd.DataFrame:
    steps = np.sort(frame["step"].unique())
    kept = steps[np.unique(np.linspace(0, len(steps) - 1, STEPS).astype(int))] if len(steps) else steps
    return frame[frame["step"].isin(kept)]


def _long(frame: pd.DataFrame, names: dict[str, str]) -> list[dict[str, Any]]:
    long = frame.melt(["seed", "step"], list(names), var_name="quantity").dropna(subset="value")
    records: list[dict[str, Any]] = long.assign(quantity=long["quantity"].map(names), value=long["value"].round(5)).to_dict("records")
    return records
