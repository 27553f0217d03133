"""Figures of an audit: rates by group and gaps with their intervals, and both at every threshold. Altair, so static or interactive."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from equipoise.data import Scores, replacing
from equipoise.errors import BadInput
from equipoise.measures import Audit, Threshold, sweep
from equipoise.repair import with_enough_data
from equipoise.report.wording import RATE_NAMES, percent, short_name

FORMATS = ("png", "svg", "html")
SHOWN = ("selection_rate", "tpr", "tnr", "ppv", "npv", "auroc")
BLUE, RED = "#2e5496", "#b6311e"


def rates_figure(audit: Audit) -> Any:
    """A figure with one row per rate, with a dot and an interval per group. A group with insufficient data has no dot."""
    import altair as alt

    several = len(audit.references) > 1  # 'yes' of one attribute is not 'yes' of another
    order, rows = [], []
    for group, row in audit.groups.iterrows():
        label = f"{short_name(row['attribute'])}: {short_name(group)}" if several else short_name(group)
        order.append(label)
        for measure in SHOWN:
            ends = {"value": row[measure], "low": row[f"{measure}_low"], "high": row[f"{measure}_high"]}
            rows.append({"group": label, "rate": RATE_NAMES[measure]} | ends)
    frame = pd.DataFrame(rows)
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
        facet.facet(row=alt.Row("rate:N", sort=[RATE_NAMES[m] for m in SHOWN], title=None, header=header))
        .properties(title=f"{short_name(audit.name)}: rates by group, {percent(audit.settings.level)} intervals")
        .resolve_scale(x="shared")
    )


def gaps_figure(audit: Audit) -> Any:
    """A figure with every gap and its interval, and the line of no gap. A gap with insufficient data has no dot."""
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
        *[alt.Tooltip(f"{name}:Q", format=".3f") for name in ("detectable", "noise", "excess")],
    ]
    zero = alt.Chart(pd.DataFrame({"x": [0]})).mark_rule(strokeDash=[4, 4], color="#777").encode(x="x:Q")
    whiskers = base.mark_rule(strokeWidth=2, color=BLUE).encode(x=alt.X("low:Q", title="group's rate minus the reference's"), x2="high:Q")
    dots = base.mark_point(filled=True, size=70, color=BLUE).encode(x="value:Q", tooltip=tooltip)
    title = f"{short_name(audit.name)}: gaps, {percent(audit.settings.level)} intervals"
    return (zero + whiskers + dots).properties(width=460, title=title)


def thresholds_figure(scores: Scores, audit: Audit, gap: str = "eod", points: int = 400) -> Any:
    """A figure with a gap and the balanced accuracy at every threshold (thinned for drawing), and the threshold in use."""
    import altair as alt

    attribute = with_enough_data(scores.attribute, audit, gap)
    swept = sweep(scores.score, scores.y, attribute.codes, attribute.levels, (gap, "balanced_accuracy"))
    # A value holds for every threshold above the next lower score, up to and including its own; at the first, no one is positive.
    upto = np.concatenate([[np.inf], np.unique(scores.score)[::-1]]).clip(0, 1)
    if upto[1] == 1:
        upto[0] = np.nan  # someone is decided positive at every threshold
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
    zero = alt.Chart(pd.DataFrame({"y": [0]})).mark_rule(strokeDash=[4, 4], color="#777").encode(y="y:Q")
    layers = zero + lines
    if isinstance(audit.rule, Threshold):
        used = pd.DataFrame({"x": [min(max(audit.rule.value, 0), 1)]})
        layers += alt.Chart(used).mark_rule(color="#333").encode(x=alt.X("x:Q", title="threshold"))
    title = f"{short_name(audit.name)}: every threshold; the vertical line is the one in use"
    return layers.properties(width=460, height=260, title=title)


class _ScriptSafe(json.JSONEncoder):
    """JSON for inside a <script> element, which a name such as '</script>' must not end."""

    def encode(self, o: object) -> str:
        return super().encode(o).replace("<", "\\u003c")


def save_figure(chart: Any, path: str | Path) -> Path:
    """The path of the figure, written as PNG, SVG or a self-contained interactive HTML file, by the ending of its name."""
    path = Path(path)
    kind = path.suffix.lstrip(".").lower()
    if kind not in FORMATS:
        raise BadInput(f"a figure is written as {', '.join(FORMATS)}; got {path.name!r}. Give its name one of these endings.")
    options: dict[str, dict[str, Any]] = {
        "png": {"scale_factor": 2},
        "svg": {},
        "html": {"inline": True, "json_kwds": {"cls": _ScriptSafe}},
    }
    with replacing(path) as temporary:
        chart.save(str(temporary), format=kind, **options[kind])
    return path


def save_audit_figures(scores: Scores, audit: Audit, folder: str | Path, formats: tuple[str, ...] = ("png", "svg")) -> list[Path]:
    """The figures of an audit in a folder: rates, gaps (if the audit has any) and thresholds."""
    gap = next((m for m in ("eod", "spd") if m in audit.estimates and not np.isnan(audit[m].value)), "spd")
    charts = {"rates": rates_figure(audit), "thresholds": thresholds_figure(scores, audit, gap)}
    if len(audit.gaps):
        charts["gaps"] = gaps_figure(audit)
    return [save_figure(chart, Path(folder) / f"{name}.{kind}") for name, chart in charts.items() for kind in formats]
