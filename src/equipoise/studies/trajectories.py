"""Trajectories of a study's methods in Altair, as in the paper's Figure 3: every split thin, the median over splits bold.

The horizontal axis is in the unit of the method (units pruned, epochs). Bias is solid and dark, performance dashed and light, so that they
differ in grayscale. The limits of the goal are dotted, and the chosen step of every split is marked on both of its lines.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from equipoise.methods import METHODS
from equipoise.report import PANELS_PER_LINE, save_figures
from equipoise.studies.plan import Plan

MOST_STEPS = 150  # drawn; a panel has a line per split, so more would only make the file large
KEYS = ["data", "seed", "method", "measure"]
DARK, LIGHT, DARK_GREY = "#8c3a00", "#3bb08f", "#444444"  # dark orange and light green, as different in lightness as in hue
DASHES = {"gap": [1, 0], "performance": [6, 3]}
SHAPES = {"gap": "circle", "performance": "triangle-up"}


def trajectories_figure(plan: Plan, rows: pd.DataFrame, traces: pd.DataFrame, data: str) -> Any:
    """One panel per measure and stepwise method."""
    import altair as alt

    steps = _stepwise(plan, rows, traces[traces["data"] == data])
    panels = [
        _panel(part, plan, arm.name, measure)
        for arm in plan.methods
        for measure in plan.measures
        if len(part := steps[(steps["method"] == arm.name) & (steps["measure"] == measure)])
    ]
    title = alt.TitleParams(
        f"{plan.named(data).title or data}: validation set",
        subtitle="Thin: each split. Bold: median over splits. Marks: each split's chosen step. Dotted: the limits of the goal.",
    )
    lines = [alt.hconcat(*panels[k : k + PANELS_PER_LINE]).resolve_scale(y="shared") for k in range(0, len(panels), PANELS_PER_LINE)]
    return alt.vconcat(*lines, title=title)


def save_trajectories(
    plan: Plan, rows: pd.DataFrame, traces: pd.DataFrame, folder: str | Path, formats: tuple[str, ...] = ("png", "svg")
) -> list[Path]:
    """Writes a figure for each data set with a stepwise method."""
    written = []
    for data in dict.fromkeys(_stepwise(plan, rows, traces)["data"]):
        written += save_figures({f"trajectories-{data}": trajectories_figure(plan, rows, traces, data)}, folder, formats)
    return written


def _stepwise(plan: Plan, rows: pd.DataFrame, traces: pd.DataFrame) -> pd.DataFrame:
    """The traces of stepwise methods, with their coordinate `x`, the chosen step and the limits of the goal."""
    stepwise = [arm.name for arm in plan.methods if METHODS[arm.method].counts]
    chosen = rows[[*KEYS, "step", "pace", "min_performance", "max_gap"]].rename(columns={"step": "chosen"})
    merged = traces[traces["method"].isin(stepwise)].merge(chosen, on=KEYS, how="inner")
    return merged.assign(x=merged["step"] * merged["pace"].fillna(1.0))


def median_line(part: pd.DataFrame) -> pd.DataFrame:
    """The median over splits at each step that at least half of the splits reach: few splits would not be a fair sample.

    >>> steps = pd.DataFrame({"seed": [0, 1, 2, 0], "x": [0, 0, 0, 1], "gap": [1.0, 2.0, 9.0, 5.0], "performance": 0.5})
    >>> median_line(steps).values.tolist()
    [[0.0, 2.0, 0.5]]
    """
    grouped = part.groupby("x")
    enough = grouped.size() * 2 >= part["seed"].nunique()
    return grouped[["gap", "performance"]].median()[enough].reset_index()


def axis_title(plan: Plan, part: pd.DataFrame, arm: str) -> str:
    """The unit of the horizontal axis of an arm; steps if its rows have no pace."""
    return METHODS[plan.arm(arm).method].unit(plan.arm(arm).settings) if part["pace"].notna().all() else "step"


def _panel(part: pd.DataFrame, plan: Plan, arm: str, measure: str) -> Any:
    import altair as alt

    names = {"gap": "bias", "performance": plan.performance.replace("_", " ")}
    labels = list(names.values())
    thin, bold = (_long(frame, names) for frame in (_thinned(part), _thinned(median_line(part).assign(seed=-1))))
    marks = _long(part[part["step"] == part["chosen"]], names)
    legend = alt.Legend(orient="bottom", title=None, symbolType="stroke", symbolOpacity=1, symbolStrokeWidth=2.5, symbolSize=600)
    base = {
        "x": alt.X("x:Q", title=axis_title(plan, part, arm), axis=alt.Axis(tickMinStep=1, format="d"), scale=alt.Scale(nice=False)),
        "y": alt.Y("value:Q", title=None, scale=alt.Scale(zero=True)),
        "color": alt.Color("quantity:N", scale=alt.Scale(domain=labels, range=[DARK, LIGHT]), legend=legend),
    }
    dashed = alt.StrokeDash("quantity:N", scale=alt.Scale(domain=labels, range=list(DASHES.values())), legend=legend)
    # A separate field: with the field of the colour, the legend would show shapes instead of lines.
    shaped = alt.Shape("shape:N", scale=alt.Scale(domain=list(SHAPES), range=list(SHAPES.values())), legend=None)
    # Inline data, because Altair limits the number of rows of frames.
    zero = alt.Chart(alt.InlineData(values=[{"y": 0}])).mark_rule(color="#999", strokeWidth=0.8).encode(y="y:Q")
    lines = (
        alt.Chart(alt.InlineData(values=thin)).mark_line(strokeWidth=0.6, opacity=0.35).encode(detail="seed:N", strokeDash=dashed, **base)
    )
    middle = alt.Chart(alt.InlineData(values=bold)).mark_line(strokeWidth=2.5).encode(strokeDash=dashed, **base)
    chosen = (
        alt.Chart(alt.InlineData(values=marks))
        .mark_point(size=28, filled=True, opacity=0.9, stroke="black", strokeWidth=0.6)
        .encode(shape=shaped, **base)
    )
    limits = _limits(part)
    rules = (
        alt.Chart(alt.InlineData(values=limits)).mark_rule(strokeDash=[2, 3], strokeWidth=1.4, color=DARK_GREY).encode(y="y:Q"),
        alt.Chart(alt.InlineData(values=[limit for limit in limits if limit["text"]]))
        .mark_text(align="right", dx=-2, dy=9, fontSize=10, color=DARK_GREY)
        .encode(y="y:Q", x=alt.value(220), text="text:N"),
    )
    return alt.layer(zero, lines, *(rules if limits else ()), middle, chosen).properties(
        width=220, height=180, title=f"{arm}, {measure.upper()}"
    )


def _limits(part: pd.DataFrame) -> list[dict[str, Any]]:
    """The minimum performance (the median over splits if they differ), and the maximum gap on both sides of zero."""
    limits: list[dict[str, Any]] = []
    splits = part.drop_duplicates("seed")
    least, most = splits["min_performance"], splits["max_gap"]
    if least.notna().any():
        same = bool((least == least.iloc[0]).all())
        limits.append({"y": round(float(least.median()), 5), "text": f"minimum{'' if same else ', median'} {least.median():.2f}"})
    if most.notna().any():
        limits += [{"y": float(most.median()), "text": ""}, {"y": -float(most.median()), "text": f"maximum gap ±{most.median():g}"}]
    return limits


def _thinned(frame: pd.DataFrame) -> pd.DataFrame:
    places = np.sort(frame["x"].unique())
    kept = places[np.unique(np.linspace(0, len(places) - 1, MOST_STEPS).astype(int))] if len(places) else places
    return frame[frame["x"].isin(kept)]


def _long(frame: pd.DataFrame, names: dict[str, str]) -> list[dict[str, Any]]:
    long = frame.melt(["seed", "x"], list(names), var_name="quantity").dropna(subset="value")
    tidy = long.assign(shape=long["quantity"], quantity=long["quantity"].map(names), value=long["value"].round(5), x=long["x"].round(4))
    records: list[dict[str, Any]] = tidy.to_dict("records")
    return records
