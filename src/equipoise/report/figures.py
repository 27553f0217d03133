"""Figures in Altair, static or interactive: of an audit (rates, gaps, every threshold) and of the trajectories of a study's methods.

Trajectories follow the paper's Figure 3: every split thin, the median over splits bold. The horizontal axis is in the unit of the method
(units pruned, epochs). Bias is solid and dark, performance dashed and light, so that they differ in grayscale. The limits of the goal are
dotted, and the chosen step of every split is marked on both of its lines.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd

from equipoise.data import Scores, replacing
from equipoise.errors import BadInput
from equipoise.measures import EVERYONE, Audit, Threshold, group_estimate, sweep
from equipoise.methods import METHODS
from equipoise.repair import with_enough_data
from equipoise.report.text import percent, short_name
from equipoise.report.wording.names import RATES
from equipoise.study import Plan

FORMATS = ("png", "svg", "html")
SHOWN = ("selection_rate", "tpr", "tnr", "ppv", "npv", "auroc")
BLUE, RED = "#2e5496", "#b6311e"
GREY = "#777"
PER_LINE = 4  # panels
MOST_STEPS = 150  # drawn; a panel has a line per split, so more would only make the file large
KEYS = ["data", "seed", "method", "measure"]
DARK, LIGHT, DARK_GREY = "#8c3a00", "#3bb08f", "#444444"  # dark orange and light green, as different in lightness as in hue
DASHES = {"gap": [1, 0], "performance": [6, 3]}
SHAPES = {"gap": "circle", "performance": "triangle-up"}


def _group_names(attributes: Iterable[object], groups: Iterable[object], audit: Audit) -> list[str]:
    """The names of groups, with their attributes if there are several: 'yes' of one attribute is not 'yes' of another."""
    if len(audit.references) == 1:
        return [short_name(group) for group in groups]
    return [f"{short_name(attribute)}: {short_name(group)}" for attribute, group in zip(attributes, groups, strict=True)]


def rates_figure(audit: Audit) -> Any:
    """A figure with one row per rate, with a dot and an interval per group. A group with insufficient data has no dot."""
    import altair as alt

    order = _group_names(audit.groups["attribute"], audit.groups.index, audit)
    frame = pd.DataFrame(
        [
            {
                "group": name,
                "rate": RATES[measure].name,
                "value": row[measure],
                "low": row[f"{measure}_low"],
                "high": row[f"{measure}_high"],
            }
            for name, (_, row) in zip(order, audit.groups.iterrows(), strict=True)
            for measure in SHOWN
        ]
    )
    base = alt.Chart(frame).encode(
        y=alt.Y("group:N", sort=order, title=None, scale=alt.Scale(padding=0.6), axis=alt.Axis(labelLimit=300)),
        color=alt.Color("group:N", sort=order, legend=None),
    )
    known = frame.dropna()
    low, high = (max(0.0, known["low"].min() - 0.05), min(1.0, known["high"].max() + 0.05)) if len(known) else (0.0, 1.0)
    scale = alt.Scale(domain=[float(low), float(high)], zero=False)
    values = [alt.Tooltip(f"{end}:Q", format=".3f") for end in ("value", "low", "high")]
    whiskers = base.mark_rule(strokeWidth=2).encode(x=alt.X("low:Q", title=None, scale=scale), x2="high:Q")
    dots = base.mark_point(filled=True, size=70).encode(x=alt.X("value:Q", scale=scale), tooltip=["group:N", "rate:N", *values])
    facet = (whiskers + dots).properties(width=420, height=20 * len(order) + 10)
    header = alt.Header(labelAngle=0, labelAlign="left", labelAnchor="middle")
    return (
        facet.facet(row=alt.Row("rate:N", sort=[RATES[m].name for m in SHOWN], title=None, header=header))
        .properties(title=f"{short_name(audit.name)}: rates by group, {percent(audit.settings.level)} intervals")
        .resolve_scale(x="shared")
    )


def calibration_figure(audit: Audit) -> Any:
    """A figure with the calibration intercept, slope and error of each group; the bar of the error is the range of a calibrated model."""
    import altair as alt

    names = _group_names(audit.groups["attribute"], audit.groups.index, audit)
    targets = {"calibration_intercept": 0.0, "calibration_slope": 1.0, "calibration_error": None}
    panels = []
    for measure, target in targets.items():
        estimates = [group_estimate(row, measure) for _, row in audit.groups.iterrows()]
        frame = pd.DataFrame(
            [{"group": name, "value": e.value, "low": e.low, "high": e.high} for name, e in zip(names, estimates, strict=True)]
        )
        y = alt.Y("group:N", sort=names, title=None, axis=alt.Axis(labelLimit=300))
        base = alt.Chart(frame).encode(y=y)
        name = RATES[measure].name + (" and range if calibrated" if target is None else "")
        layers = base.mark_rule(strokeWidth=2, color=BLUE if target is not None else "#999").encode(
            x=alt.X("low:Q", title=name), x2="high:Q"
        )
        layers += base.mark_point(filled=True, size=70, color=BLUE).encode(x=alt.X("value:Q", scale=alt.Scale(zero=False)))
        if target is not None:
            layers += alt.Chart(pd.DataFrame({"x": [target]})).mark_rule(strokeDash=[4, 4], color=GREY).encode(x="x:Q")
        panels.append(layers.properties(width=230, height=20 * len(names) + 10))
    title = f"{short_name(audit.name)}: calibration by group, {percent(audit.settings.level)} intervals"
    return alt.hconcat(*panels, title=title)


def underdiagnosis_figure(audit: Audit) -> Any:
    """A figure with the underdiagnosis of each group, from the audit of "no finding"."""
    import altair as alt

    rows = audit.underdiagnosis
    frame = rows[["rate", "low", "high"]].assign(name=_group_names(rows["attribute"], rows["group"], audit))
    base = alt.Chart(frame).encode(y=alt.Y("name:N", sort=list(frame["name"]), title=None, axis=alt.Axis(labelLimit=300)))
    x = alt.X("low:Q", title="share with a finding that is decided to have none")
    whiskers = base.mark_rule(strokeWidth=2, color=BLUE).encode(x=x, x2="high:Q")
    dots = base.mark_point(filled=True, size=70, color=BLUE).encode(x=alt.X("rate:Q"))
    return (whiskers + dots).properties(width=420, title=f"Underdiagnosis by group, {percent(audit.settings.level)} intervals")


def curves_figure(audit: Audit) -> Any:
    """A figure with the decision curve of each group, with its interval, next to treating all and treating none."""
    import altair as alt

    known = audit.curves[audit.curves["net_benefit"].notna()]
    panels = []
    for (attribute, group), rows in known.groupby(["attribute", "group"], sort=False):
        name = "all patients" if attribute == EVERYONE else f"{short_name(attribute)}: {short_name(group)}"
        lowest = min(float(rows["low"].min()), 0.0) - 0.01
        top = max(float(rows["high"].max()), float(rows["treat_all"].max())) + 0.01
        y = alt.Y("net_benefit:Q", title="net benefit", scale=alt.Scale(domain=[lowest, top]))
        base = alt.Chart(rows).encode(x=alt.X("threshold:Q", title="threshold", scale=alt.Scale(zero=False)))
        band = base.mark_area(opacity=0.2, color=BLUE, clip=True).encode(
            y=alt.Y("low:Q", scale=alt.Scale(domain=[lowest, top])), y2="high:Q"
        )
        line = base.mark_line(color=BLUE).encode(y=y)
        treat_all = base.mark_line(color=GREY, strokeDash=[6, 3], clip=True).encode(y=alt.Y("treat_all:Q"))
        treat_none = base.mark_line(color=GREY).encode(y=alt.Y("treat_none:Q"))
        panels.append(alt.layer(band, line, treat_all, treat_none).properties(width=200, height=150, title=name))
    lines = [alt.hconcat(*panels[k : k + PER_LINE]) for k in range(0, len(panels), PER_LINE)]
    title = alt.TitleParams(
        f"{short_name(audit.name)}: decision curves, {percent(audit.settings.level)} intervals",
        subtitle="Blue: deciding by the score. Dashed: treating all. Solid grey: treating none.",
    )
    return alt.vconcat(*lines, title=title)


def gaps_figure(audit: Audit) -> Any:
    """A figure with every gap and its interval, and a line at zero. A gap with insufficient data has no dot."""
    import altair as alt

    several = len(audit.references) > 1
    frame = audit.gaps.drop(columns=["group", "reference", "note"]).assign(
        label=[
            f"{row.measure}: {short_name(row.group)} minus {short_name(row.reference)}"
            + (f" ({short_name(row.attribute)})" if several else "")
            for row in audit.gaps.itertuples()
        ]
    )
    base = alt.Chart(frame).encode(y=alt.Y("label:N", sort=list(frame["label"]), title=None, axis=alt.Axis(labelLimit=500)))
    tooltip = [
        "label:N",
        *[alt.Tooltip(f"{end}:Q", format="+.3f") for end in ("value", "low", "high")],
        *[alt.Tooltip(f"{name}:Q", format=".3f") for name in ("detectable", "p_value", "p_adjusted")],
    ]
    zero = alt.Chart(pd.DataFrame({"x": [0]})).mark_rule(strokeDash=[4, 4], color=GREY).encode(x="x:Q")
    whiskers = base.mark_rule(strokeWidth=2, color=BLUE).encode(x=alt.X("low:Q", title="group's rate minus the reference's"), x2="high:Q")
    dots = base.mark_point(filled=True, size=70, color=BLUE).encode(x="value:Q", tooltip=tooltip)
    title = f"{short_name(audit.name)}: gaps, {percent(audit.settings.level)} intervals"
    return (zero + whiskers + dots).properties(width=460, title=title)


def thresholds_figure(scores: Scores, audit: Audit, gap: str = "eod", points: int = 400) -> Any:
    """A figure with a gap and the balanced accuracy at every threshold (thinned for drawing), and the threshold in use."""
    import altair as alt

    attribute = with_enough_data(scores.attribute, audit, gap)
    swept = sweep(scores.score, scores.y, attribute.codes, attribute.levels, (gap, "balanced_accuracy"), weight=scores.weight)
    # A value holds for every threshold above the next lower score, up to and including its own; at the first, no row is positive.
    upto = np.concatenate([[np.inf], np.unique(scores.score)[::-1]]).clip(0, 1)
    if upto[1] == 1:
        upto[0] = np.nan  # at least one row is positive at every threshold
    inside = np.flatnonzero(~np.isnan(upto))
    keep = inside[np.unique(np.linspace(0, len(inside) - 1, points).astype(int))]
    between = f"{short_name(attribute.others[0])} minus {short_name(attribute.reference)}"
    names = {
        gap: f"{gap} ({'largest, group minus reference' if len(attribute.levels) > 2 else between})",
        "balanced_accuracy": "balanced accuracy",
    }
    frame = pd.concat(
        [
            pd.DataFrame({"threshold": [0.0, *upto[keep]], "value": [swept.values[m][-1], *swept.values[m][keep]], "measure": label})
            for m, label in names.items()
        ]
    )
    colour = alt.Color(
        "measure:N",
        scale=alt.Scale(domain=list(names.values()), range=[RED, BLUE]),
        legend=alt.Legend(orient="top", title=None, labelLimit=400),
    )
    x = alt.X("threshold:Q", title="threshold", scale=alt.Scale(domain=[0, 1]))
    lines = alt.Chart(frame).mark_line(interpolate="step-before").encode(x=x, y=alt.Y("value:Q", title=None), color=colour)
    zero = alt.Chart(pd.DataFrame({"y": [0]})).mark_rule(strokeDash=[4, 4], color=GREY).encode(y="y:Q")
    layers = zero + lines
    if isinstance(audit.rule, Threshold):
        used = pd.DataFrame({"x": [min(max(audit.rule.value, 0), 1)]})
        layers += alt.Chart(used).mark_rule(color="#333").encode(x=alt.X("x:Q", title="threshold"))
    title = f"{short_name(audit.name)}: every threshold; the vertical line is the one in use"
    return layers.properties(width=460, height=260, title=title)


class _ScriptSafe(json.JSONEncoder):
    """JSON for a <script> element, which a name such as '</script>' must not end."""

    def encode(self, o: object) -> str:
        return super().encode(o).replace("<", "\\u003c")


def save_figure(chart: Any, path: str | Path, *, follow: bool = True) -> Path:
    """Writes the figure as PNG, SVG or a self-contained interactive HTML file, by the ending of its path; returns the path.

    `follow`: whether a symbolic link is followed, as for a path that the user named, or replaced.
    """
    path = Path(path)
    kind = path.suffix.lstrip(".").lower()
    if kind not in FORMATS:
        raise BadInput(f"a figure is written as {', '.join(FORMATS)}; got {path.name!r}. Give its name one of these endings.")
    return _write(_specification(chart), path, kind, follow=follow)


def _save(charts: Mapping[str, Any], folder: str | Path, formats: Sequence[str]) -> list[Path]:
    """Writes figures by name into a folder. Each is converted to a specification once, which takes as long as drawing it."""
    figures = {name: _specification(chart) for name, chart in charts.items()}
    return [_write(figure, Path(folder) / f"{name}.{kind}", kind, follow=False) for name, figure in figures.items() for kind in formats]


def _specification(chart: Any) -> dict[str, Any]:
    """The figure in Vega-Lite, with its data."""
    import altair as alt

    with alt.data_transformers.enable("default"), alt.data_transformers.disable_max_rows():
        specification: dict[str, Any] = chart.to_dict(context={"pre_transform": False})
    return specification


def _write(figure: dict[str, Any], path: Path, kind: str, *, follow: bool) -> Path:
    import altair as alt
    from altair.utils.mimebundle import spec_to_mimebundle

    versions = {"vega_version": alt.VEGA_VERSION, "vegalite_version": alt.VEGALITE_VERSION, "vegaembed_version": alt.VEGAEMBED_VERSION}
    options: dict[str, dict[str, Any]] = {
        "png": {"scale_factor": 2},
        "svg": {},
        "html": {"template": "inline", "json_kwds": {"cls": _ScriptSafe}, **versions},
    }
    bundle: Any = spec_to_mimebundle(figure, format=cast(Any, kind), mode="vega-lite", **options[kind])
    (content,) = (bundle[0] if kind == "png" else bundle).values()  # a PNG comes with its size
    with replacing(path, follow=follow) as temporary:
        temporary.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def save_audit_figures(scores: Scores | None, audit: Audit, folder: str | Path, formats: tuple[str, ...] = ("png", "svg")) -> list[Path]:
    """Writes the figures of an audit into a folder: rates, calibration, thresholds, and gaps and decision curves if the audit has any.

    Without the scores, as for a table that was read in batches, the figure of thresholds is left out.
    """
    gap = next((m for m in ("eod", "spd") if m in audit.estimates and not np.isnan(audit[m].value)), "spd")
    charts = {"rates": rates_figure(audit)} | ({} if scores is None else {"thresholds": thresholds_figure(scores, audit, gap)})
    if len(audit.gaps):
        charts["gaps"] = gaps_figure(audit)
    if "calibration_slope" in audit.groups:
        charts["calibration"] = calibration_figure(audit)
    if audit.curves["net_benefit"].notna().any():
        charts["decision-curves"] = curves_figure(audit)
    return _save(charts, folder, formats)


def save_underdiagnosis_figure(audit: Audit, folder: str | Path, formats: tuple[str, ...] = ("png", "svg")) -> list[Path]:
    """Writes the figure of underdiagnosis into a folder, from the audit of "no finding"."""
    return _save({"underdiagnosis": underdiagnosis_figure(audit)}, folder, formats)


# Trajectories of a study's methods


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
    lines = [alt.hconcat(*panels[k : k + PER_LINE]).resolve_scale(y="shared") for k in range(0, len(panels), PER_LINE)]
    return alt.vconcat(*lines, title=title)


def save_trajectories(
    plan: Plan, rows: pd.DataFrame, traces: pd.DataFrame, folder: str | Path, formats: tuple[str, ...] = ("png", "svg")
) -> list[Path]:
    """Writes a figure for each data set with a stepwise method."""
    written = []
    for data in dict.fromkeys(_stepwise(plan, rows, traces)["data"]):
        written += _save({f"trajectories-{data}": trajectories_figure(plan, rows, traces, data)}, folder, formats)
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
