"""Figures of an audit in Altair, static or interactive: rates, calibration, gaps, every threshold and decision curves."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd

from equipoise.comparison import with_sufficient_data
from equipoise.data import Scores, atomic_path
from equipoise.errors import BadInput
from equipoise.measures import ALL_ROWS, LabelAudit, group_estimate, shared_thresholds, shown_scores, sweep
from equipoise.report.text import percent, short_name
from equipoise.report.wording.names import RATE_WORDS

FIGURE_RATES = ("selection_rate", "tpr", "tnr", "ppv", "npv", "auroc")
CALIBRATION_TARGETS = {"calibration_intercept": 0.0, "calibration_slope": 1.0, "calibration_error": None}
BLUE, RED, GREY = "#2e5496", "#b6311e", "#777"
PANELS_PER_LINE = 4


def _group_names(attributes: Iterable[object], groups: Iterable[object], audit: LabelAudit) -> list[str]:
    """The names of groups, with their attributes if there are several: 'yes' of one attribute is not 'yes' of another."""
    if len(audit.references) <= 1:
        return [short_name(group) for group in groups]
    return [f"{short_name(attribute)}: {short_name(group)}" for attribute, group in zip(attributes, groups, strict=True)]


def _forest(frame: pd.DataFrame, title: str | None, *, line: float | None = None, whisker: str = BLUE, **dots: Any) -> Any:
    """A dot and an interval for each `name` of a frame with value, low and high, and a dashed line. A row without a value has no dot."""
    import altair as alt

    base = alt.Chart(frame).encode(y=alt.Y("name:N", sort=list(frame["name"]), title=None, axis=alt.Axis(labelLimit=500)))
    whiskers = base.mark_rule(strokeWidth=2, color=whisker).encode(x=alt.X("low:Q", title=title), x2="high:Q")
    layers = whiskers + base.mark_point(filled=True, size=70, color=BLUE).encode(**{"x": alt.X("value:Q")} | dots)
    if line is None:
        return layers
    return alt.Chart(pd.DataFrame({"x": [line]})).mark_rule(strokeDash=[4, 4], color=GREY).encode(x="x:Q") + layers


def _title(audit: LabelAudit, what: str) -> str:
    return f"{short_name(audit.name)}: {what}, {percent(audit.settings.level)} intervals"


def rates_figure(audit: LabelAudit) -> Any:
    """A figure with one row per rate, with a dot and an interval per group. A group with insufficient data has no dot."""
    import altair as alt

    order = _group_names(audit.groups["attribute"], audit.groups.index, audit)
    rows = []
    for name, (_, row) in zip(order, audit.groups.iterrows(), strict=True):
        for rate in FIGURE_RATES:
            rows.append(
                {"group": name, "rate": RATE_WORDS[rate].name, "value": row[rate], "low": row[f"{rate}_low"], "high": row[f"{rate}_high"]}
            )
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
    header = alt.Header(labelAngle=0, labelAlign="left", labelAnchor="middle")
    facets = alt.Row("rate:N", sort=[RATE_WORDS[rate].name for rate in FIGURE_RATES], title=None, header=header)
    made = (whiskers + dots).properties(width=420, height=20 * len(order) + 10).facet(row=facets)
    return made.properties(title=_title(audit, "rates by group")).resolve_scale(x="shared")


def calibration_figure(audit: LabelAudit) -> Any:
    """A figure with the calibration intercept, slope and error of each group; the bar of the error is the range of a calibrated model."""
    import altair as alt

    names = _group_names(audit.groups["attribute"], audit.groups.index, audit)
    panels = []
    for measure, target in CALIBRATION_TARGETS.items():
        estimates = [group_estimate(row, measure) for _, row in audit.groups.iterrows()]
        frame = pd.DataFrame([(name, e.value, e.low, e.high) for name, e in zip(names, estimates, strict=True)])
        frame.columns = pd.Index(["name", "value", "low", "high"])
        name = RATE_WORDS[measure].name
        title, whisker = (name, BLUE) if target is not None else (f"{name} and range if calibrated", "#999")
        layers = _forest(frame, title, line=target, whisker=whisker, x=alt.X("value:Q", scale=alt.Scale(zero=False)))
        panels.append(layers.properties(width=230, height=20 * len(names) + 10))
    return alt.hconcat(*panels, title=_title(audit, "calibration by group"))


def underdiagnosis_figure(audit: LabelAudit) -> Any:
    """A figure with the underdiagnosis of each group, from the audit of "no finding"."""
    rows = audit.underdiagnosis
    names = _group_names(rows["attribute"], rows["group"], audit)
    frame = rows[["rate", "low", "high"]].rename(columns={"rate": "value"}).assign(name=names)
    layers = _forest(frame, "share with a finding that is decided to have none")
    return layers.properties(width=420, title=f"Underdiagnosis by group, {percent(audit.settings.level)} intervals")


def gaps_figure(audit: LabelAudit) -> Any:
    """A figure with every gap and its interval, and a line at zero. A gap with insufficient data has no dot."""
    import altair as alt

    names = []
    for row in audit.gaps.itertuples():
        attribute = f" ({short_name(row.attribute)})" if len(audit.references) > 1 else ""
        names.append(f"{row.measure}: {short_name(row.group)} minus {short_name(row.reference)}{attribute}")
    numbers = ["value", "low", "high", "detectable", "p_value", "p_adjusted"]
    tooltip = ["name:N", *(alt.Tooltip(f"{column}:Q", format="+.3f" if k < 3 else ".3f") for k, column in enumerate(numbers))]
    layers = _forest(audit.gaps[numbers].assign(name=names), "group's rate minus the reference's", line=0.0, tooltip=tooltip)
    return layers.properties(width=460, title=_title(audit, "gaps"))


def curves_figure(audit: LabelAudit) -> Any:
    """A figure with the decision curve of each group, with its interval, next to treating all and treating none."""
    import altair as alt

    known = audit.curves[audit.curves["net_benefit"].notna()]
    panels = []
    for (attribute, group), rows in known.groupby(["attribute", "group"], sort=False):
        name = "all patients" if attribute == ALL_ROWS else f"{short_name(attribute)}: {short_name(group)}"
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
    lines = [alt.hconcat(*panels[k : k + PANELS_PER_LINE]) for k in range(0, len(panels), PANELS_PER_LINE)]
    title = alt.TitleParams(
        _title(audit, "decision curves"),
        subtitle="Blue: deciding by the score. Dashed: treating all. Solid grey: treating none.",
    )
    return alt.vconcat(*lines, title=title)


def thresholds_figure(scores: Scores, audit: LabelAudit, gap: str = "eod") -> Any:
    """A figure with a gap and the balanced accuracy by threshold, and the threshold in use.

    Between two thresholds, every group has no patients of a label, or several: the figure does not show the score of any one.
    """
    import altair as alt

    shown, least = shown_scores(scores, audit.settings.min_patients), audit.settings.min_patients
    attribute, scores = with_sufficient_data(shown.attributes[-1], audit, gap), shown.scores
    swept = sweep(scores.score, scores.y, attribute.codes, attribute.levels, (gap, "balanced_accuracy"), weight=scores.weight)
    cuts = shared_thresholds(scores, attribute, audit.rule, least)
    reached = np.searchsorted(-np.unique(scores.score)[::-1], -cuts, side="right")  # different scores that reach each threshold
    cuts, reached = np.append(cuts, 1.0), np.append(reached, 0)  # the line ends where no row is decided positive
    between = f"{short_name(attribute.others[0])} minus {short_name(attribute.reference)}"
    names = {
        gap: f"{gap} ({'largest, group minus reference' if len(attribute.levels) > 2 else between})",
        "balanced_accuracy": "balanced accuracy",
    }
    frame = pd.concat(
        [pd.DataFrame({"threshold": cuts, "value": swept.values[m][reached], "measure": label}) for m, label in names.items()]
    )
    colour = alt.Color(
        "measure:N",
        scale=alt.Scale(domain=list(names.values()), range=[RED, BLUE]),
        legend=alt.Legend(orient="top", title=None, labelLimit=400),
    )
    x = alt.X("threshold:Q", title="threshold", scale=alt.Scale(domain=[0, 1]))
    lines = alt.Chart(frame).mark_line().encode(x=x, y=alt.Y("value:Q", title=None), color=colour)
    zero = alt.Chart(pd.DataFrame({"y": [0]})).mark_rule(strokeDash=[4, 4], color=GREY).encode(y="y:Q")
    layers = zero + lines
    if audit.rule.shared is not None:
        used = pd.DataFrame({"x": [min(max(audit.rule.shared, 0), 1)]})
        layers += alt.Chart(used).mark_rule(color="#333").encode(x=alt.X("x:Q", title="threshold"))
    title = f"{short_name(audit.name)}: by threshold; the vertical line is the one in use"
    return layers.properties(width=460, height=260, title=title)


class _ScriptSafe(json.JSONEncoder):
    """JSON for a <script> element, which a name such as '</script>' must not end."""

    def encode(self, o: object) -> str:
        return super().encode(o).replace("<", "\\u003c")


def save_figures(charts: Mapping[str, Any], folder: str | Path, formats: Sequence[str]) -> list[Path]:
    """Writes figures by name into a folder as PNG, SVG or self-contained interactive HTML; returns their paths."""
    import altair as alt
    from altair.utils.mimebundle import spec_to_mimebundle

    versions = {"vega_version": alt.VEGA_VERSION, "vegalite_version": alt.VEGALITE_VERSION, "vegaembed_version": alt.VEGAEMBED_VERSION}
    options: dict[str, dict[str, Any]] = {
        "png": {"scale_factor": 2},
        "svg": {},
        "html": {"template": "inline", "json_kwds": {"cls": _ScriptSafe}, **versions},
    }
    if unknown := [kind for kind in formats if kind not in options]:
        raise BadInput(f"unknown format of a figure: {', '.join(unknown)}. Choose from {', '.join(options)}.")
    paths = []
    for name, chart in charts.items():
        with alt.data_transformers.enable("default"), alt.data_transformers.disable_max_rows():
            specification = chart.to_dict(context={"pre_transform": False})  # once, because it takes as long as drawing
        for kind in formats:
            bundle: Any = spec_to_mimebundle(specification, format=cast(Any, kind), mode="vega-lite", **options[kind])
            (content,) = (bundle[0] if kind == "png" else bundle).values()  # a PNG comes with its size
            path = Path(folder) / f"{name}.{kind}"
            with atomic_path(path, follow=False) as temporary:
                temporary.write_bytes(content if isinstance(content, bytes) else content.encode())
            paths.append(path)
    return paths


def save_audit_figures(
    scores: Scores | None, audit: LabelAudit, folder: str | Path, formats: tuple[str, ...] = ("png", "svg")
) -> list[Path]:
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
    return save_figures(charts, folder, formats)


def save_underdiagnosis_figure(audit: LabelAudit, folder: str | Path, formats: tuple[str, ...] = ("png", "svg")) -> list[Path]:
    """Writes the figure of underdiagnosis into a folder, from the audit of "no finding"."""
    return save_figures({"underdiagnosis": underdiagnosis_figure(audit)}, folder, formats)
