"""Figures of an audit: rates by group and gaps with their intervals, and both at every threshold. Altair, so static or interactive."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from equipoise.data.files import replacing
from equipoise.data.scores import Scores
from equipoise.errors import BadInput
from equipoise.measures.audit import Audit
from equipoise.measures.decision import Threshold
from equipoise.measures.sweep import sweep
from equipoise.report.terminal import ROW_NAMES

FORMATS = ("png", "svg", "html")
SHOWN = ("selection_rate", "tpr", "tnr", "ppv", "npv", "auroc")
BLUE, RED = "#2e5496", "#b6311e"


def rates_figure(audit: Audit) -> Any:
    """A dot and a whisker a group, one row of them a rate."""
    import altair as alt

    rows = []
    for group, row in audit.groups.iterrows():
        for measure in SHOWN:
            rows.append(
                {
                    "group": str(group),
                    "rate": ROW_NAMES[measure],
                    "value": row[measure],
                    "low": row[f"{measure}_low"],
                    "high": row[f"{measure}_high"],
                }
            )
    frame = pd.DataFrame(rows).dropna()
    order = [str(g) for g in audit.groups.index]
    base = alt.Chart(frame).encode(
        y=alt.Y("group:N", sort=order, title=None, scale=alt.Scale(padding=0.6)), color=alt.Color("group:N", sort=order, legend=None)
    )
    low, high = max(0.0, float(frame["low"].min()) - 0.05), min(1.0, float(frame["high"].max()) + 0.05)
    scale = alt.Scale(domain=[low, high], zero=False)
    layers = base.mark_rule(strokeWidth=2).encode(x=alt.X("low:Q", title=None, scale=scale), x2="high:Q") + base.mark_point(
        filled=True, size=70
    ).encode(
        x=alt.X("value:Q", scale=scale),
        tooltip=["group", "rate", alt.Tooltip("value", format=".3f"), alt.Tooltip("low", format=".3f"), alt.Tooltip("high", format=".3f")],
    )
    facet = layers.properties(width=420, height=20 * len(order) + 10).facet(
        row=alt.Row(
            "rate:N",
            sort=[ROW_NAMES[m] for m in SHOWN],
            title=None,
            header=alt.Header(labelAngle=0, labelAlign="left", labelAnchor="middle"),
        )
    )
    return facet.properties(title=f"{audit.name}: rates by group, {audit.settings.level:.0%} intervals").resolve_scale(x="shared")


def gaps_figure(audit: Audit) -> Any:
    """Every gap with its interval, beside the line of no gap."""
    import altair as alt

    frame = audit.gaps.dropna(subset=["value"]).copy()
    frame["label"] = frame["measure"] + ": " + frame["group"] + " minus " + frame["reference"]
    base = alt.Chart(frame).encode(y=alt.Y("label:N", sort=list(frame["label"]), title=None))
    tooltip = ["label", *[alt.Tooltip(c, format="+.3f") for c in ("value", "low", "high")], alt.Tooltip("detectable", format=".3f")]
    zero = alt.Chart(pd.DataFrame({"x": [0]})).mark_rule(strokeDash=[4, 4], color="#777").encode(x="x:Q")
    whiskers = base.mark_rule(strokeWidth=2, color=BLUE).encode(x=alt.X("low:Q", title="group's rate minus the reference's"), x2="high:Q")
    dots = base.mark_point(filled=True, size=70, color=BLUE).encode(x="value:Q", tooltip=tooltip)
    return (zero + whiskers + dots).properties(width=460, title=f"{audit.name}: gaps, {audit.settings.level:.0%} intervals")


def thresholds_figure(scores: Scores, audit: Audit, gap: str = "eod", points: int = 400) -> Any:
    """A gap and the balanced accuracy at every threshold (thinned for drawing), with the threshold in use."""
    import altair as alt

    attribute = scores.attribute
    swept = sweep(scores.score, scores.y, attribute.codes, attribute.levels, (gap, "balanced_accuracy"))
    inside = np.flatnonzero((swept.thresholds >= 0) & (swept.thresholds <= 1))
    keep = inside[np.unique(np.linspace(0, len(inside) - 1, points).astype(int))]
    names = {
        gap: f"{gap} (largest, group minus reference)"
        if len(attribute.levels) > 2
        else f"{gap} ({attribute.others[0]} minus {attribute.reference})",
        "balanced_accuracy": "balanced accuracy",
    }
    frame = pd.concat(
        [
            pd.DataFrame({"threshold": swept.thresholds[keep], "value": swept.values[m][keep], "measure": label})
            for m, label in names.items()
        ]
    )
    lines = (
        alt.Chart(frame)
        .mark_line(interpolate="step-after")
        .encode(
            x=alt.X("threshold:Q", title="threshold", scale=alt.Scale(domain=[0, 1])),
            y=alt.Y("value:Q", title=None),
            color=alt.Color(
                "measure:N",
                scale=alt.Scale(domain=list(names.values()), range=[RED, BLUE]),
                legend=alt.Legend(orient="top", title=None, labelLimit=400),
            ),
        )
    )
    zero = alt.Chart(pd.DataFrame({"y": [0]})).mark_rule(strokeDash=[4, 4], color="#777").encode(y="y:Q")
    layers = zero + lines
    if isinstance(audit.rule, Threshold):
        layers += (
            alt.Chart(pd.DataFrame({"x": [min(max(audit.rule.value, 0), 1)]}))
            .mark_rule(color="#333")
            .encode(x=alt.X("x:Q", title="threshold"))
        )
    return layers.properties(width=460, height=260, title=f"{audit.name}: every threshold; the upright line is the one in use")


def save_figure(chart: Any, path: str | Path) -> Path:
    """The figure as PNG, SVG or a self-contained interactive HTML file, by the ending of its name."""
    path = Path(path)
    kind = path.suffix.lstrip(".").lower()
    if kind not in FORMATS:
        raise BadInput(f"a figure is written as {', '.join(FORMATS)}; got {path.name!r}")
    options: dict[str, dict[str, Any]] = {"png": {"scale_factor": 2}, "svg": {}, "html": {"inline": True}}
    with replacing(path) as temporary:
        chart.save(str(temporary), format=kind, **options[kind])
    return path


def save_audit_figures(scores: Scores, audit: Audit, folder: str | Path, formats: tuple[str, ...] = ("png", "svg")) -> list[Path]:
    """The three figures of an audit in a folder."""
    gap = next((m for m in ("eod", "spd") if m in audit.estimates and not np.isnan(audit[m].value)), "spd")
    charts = {"rates": rates_figure(audit), "gaps": gaps_figure(audit), "thresholds": thresholds_figure(scores, audit, gap)}
    return [save_figure(chart, Path(folder) / f"{name}.{kind}") for name, chart in charts.items() for kind in formats]
