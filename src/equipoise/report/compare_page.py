"""The HTML reports of a comparison and of gaps over time. Each is one file, for screens, phones and paper."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from equipoise import __version__
from equipoise.comparison import ScoreComparison
from equipoise.measures import Estimate, FloatArray, Monitoring
from equipoise.report.panels import LEFT, RIGHT, WIDTH, Called, Mark, Panel, Tick, dot, path_through, x_at, y_at
from equipoise.report.paper import write_by_ending
from equipoise.report.templating import numbered, page_of
from equipoise.report.text import amount, how_many, number, percent, short
from equipoise.report.wording.comparisons import contrast_conclusion, differ_words, few_changes_words, monitoring_conclusion, state_words
from equipoise.report.wording.names import PERFORMANCE, RATES, GroupNames, distinct, gap_words, group_words

SCRIPTS = ("page.js",)
CONTRAST = {
    "verdict": "The answer",
    "gaps": "Changes in differences",
    "rates": "Changes in each group",
    "performance": "Performance",
    "method": "Method and limits",
}
MONITORING = {"verdict": "The answer", "charts": "Over time", "periods": "Every period", "method": "Method and limits"}
KEYS = ["label", "measure", "attribute", "group"]  # of one gap over time
LEAST_HEIGHT = 0.05  # of a chart, on each side of zero
MOST_TICKS, MOST_POINTS = 3, 60  # periods with a label, and with a dot


def write_contrast_page(contrast: ScoreComparison, path: Path, *, group_names: Mapping[str, str] | None = None) -> Path:
    """Writes the report of a comparison, HTML or PDF by the ending of its path, whole or not at all; returns the path."""
    return write_by_ending(path, lambda paper: contrast_page(contrast, group_names, paper=paper))


def write_monitoring_page(monitoring: Monitoring, path: Path, *, group_names: Mapping[str, str] | None = None) -> Path:
    """Writes the report of gaps over time, HTML or PDF by the ending of its path, whole or not at all; returns the path."""
    return write_by_ending(path, lambda paper: monitoring_page(monitoring, group_names, paper=paper))


def contrast_page(contrast: ScoreComparison, names: Mapping[str, str] | None = None, *, paper: bool = False) -> str:
    """The report of a comparison as HTML; `names` are words for groups, such as {"F": "women"}; on `paper` without scripts."""
    called = _group_names(contrast.rates, contrast.intersections, names)
    gaps = contrast.gaps[contrast.gaps["measure"].isin(distinct(contrast.gaps["measure"].unique()))]
    folded = contrast.intersections
    context = _shared(called, "comparison", contrast.level) | {
        "title": f"{', '.join(contrast.others)} compared with {contrast.first}",
        "found": contrast,
        "conclusion": contrast_conclusion(contrast, called),
        "differ": list(differ_words(contrast, called)),
        "sizes": {name: how_many(rows, patients) for name, (rows, patients) in contrast.sizes.items()},
        "gaps": _blocks([_change(row, gap_words(str(row["measure"]))) for row in gaps.to_dict("records")], folded),
        "rates": _blocks([_change(row, RATES[str(row["rate"])].name) for row in contrast.rates.to_dict("records")], folded),
        "performance": [_change(row, PERFORMANCE[str(row["measure"])]) for row in contrast.performance.to_dict("records")],
        "several": len(contrast.others) > 1,
        "few_words": few_changes_words(contrast),
        "labels": len(set(contrast.gaps["label"])) > 1,
    }
    return page_of("contrast.html", context | numbered(CONTRAST), SCRIPTS, paper=paper)


def monitoring_page(monitoring: Monitoring, names: Mapping[str, str] | None = None, *, paper: bool = False) -> str:
    """The report of gaps over time as HTML; `names` are words for groups, such as {"F": "women"}; on `paper` without every period."""
    called = _group_names(monitoring.gaps, monitoring.intersections, names)
    courses = dict(list(monitoring.frame.groupby(KEYS, sort=False)))
    rows = [
        {
            **row,
            "words": gap_words(str(row["measure"])),
            "estimate": Estimate(row["value"], row["low"], row["high"]),
            "state": state_words(row),
            "panel": chart(courses[tuple(row[key] for key in KEYS)], row, called.full),
            "course": courses[tuple(row[key] for key in KEYS)].to_dict("records"),
        }
        for row in monitoring.gaps.to_dict("records")
    ]
    context = _shared(called, "monitoring", monitoring.level) | {
        "title": f"Differences from {monitoring.periods[0]} to {monitoring.periods[-1]}",
        "found": monitoring,
        "conclusion": monitoring_conclusion(monitoring, called),
        "rows": rows,
        "alpha": percent(1 - monitoring.level),
        "expected": amount(monitoring.expected_change, "size"),
        "labels": len(set(monitoring.gaps["label"])) > 1,
    }
    contents = {anchor: heading for anchor, heading in MONITORING.items() if not (paper and anchor == "periods")}
    return page_of("monitoring.html", context | numbered(contents), SCRIPTS, paper=paper)


def chart(course: pd.DataFrame, row: Mapping[Any, Any], called: Called = str) -> Panel:
    """One gap over time: the gap of each period, the confidence sequence of all so far, and the limits of a single period."""
    value, so_far, so_far_low, so_far_high, *limits = (
        course[column].to_numpy(np.float64) for column in ("value", "so_far", "so_far_low", "so_far_high", "limit_low", "limit_high")
    )
    largest = float(np.nanmax(np.abs([*value, *so_far, 0.0])))
    known_limits = np.abs(np.concatenate(limits))[~np.isnan(np.concatenate(limits))]
    high = min(max(LEAST_HEIGHT, 1.6 * largest, 1.05 * float(np.median(known_limits)) if len(known_limits) else 0.0), 1.0)
    low, last = -high, max(len(course) - 1, 1)
    x = [x_at(k, -0.4, last + 0.4) for k in range(len(course))]

    def clipped(values: FloatArray) -> list[float]:
        return [y_at(min(max(v, low), high), low, high) if not np.isnan(v) else np.nan for v in values]

    marks = [Mark("base", path_through([(LEFT, y_at(0, low, high)), (WIDTH - RIGHT, y_at(0, low, high))]), title="no difference")]
    known = np.flatnonzero(~np.isnan(so_far_low))
    band_low, band_high = clipped(so_far_low), clipped(so_far_high)
    if len(known) > 1:
        edge = [*((x[k], band_high[k]) for k in known), *((x[k], band_low[k]) for k in reversed(known))]
        marks.append(Mark("area benefit", path_through(edge) + "Z", title="limits of the difference over all periods so far"))
    for limit in limits:  # not drawn outside the chart
        inside = [y_at(v, low, high) if low <= v <= high else np.nan for v in limit]
        marks.append(Mark("diagonal", path_through(zip(x, inside, strict=True)), title="limits of a single period"))
    marks.append(Mark("benefit", path_through(zip(x, clipped(so_far), strict=True)), title="all periods so far"))
    if len(course) <= MOST_POINTS:
        for period, gap, place, y in zip(course["period"], value, x, clipped(value), strict=True):
            if not np.isnan(gap):
                alarm = bool(row["changed"]) and str(period) >= str(row["since"])
                marks.append(Mark("spot", dot(place, y, 4 if alarm else 3), int(alarm), f"{period}: {amount(gap, 'points')} points"))
    labelled = np.unique(np.linspace(0, len(course) - 1, min(MOST_TICKS, len(course))).round().astype(int))
    ticks_x = tuple(Tick(x[k], str(course["period"].iloc[k])) for k in labelled)
    step = next(size for size in (0.02, 0.05, 0.1, 0.2, 0.5, 1.0) if (high - low) / size <= 6)
    ticks = np.arange(np.ceil(low / step), high / step + 1e-9) * step
    ticks_y = tuple(Tick(y_at(v, low, high), number(100 * v, 0, sign=True)) for v in ticks)
    title = f"{gap_words(str(row['measure']))}: {short(called(str(row['group'])))} minus {short(called(str(row['reference'])))}"
    recent = "; ".join(f"{p} {amount(v, 'points')}" for p, v in zip(course["period"][-6:], value[-6:], strict=True) if not np.isnan(v))
    says = f"{title}, in points. {state_words(row)}. The last periods: {recent}."
    return Panel(title, says, ticks_x, ticks_y, "period", "points", tuple(marks))


def _change(row: Mapping[Any, Any], words: str) -> dict[str, Any]:
    return {**row, "words": words, "estimate": Estimate(row["value"], row["low"], row["high"], few=bool(row.get("few", False)))}


def _blocks(rows: list[dict[str, Any]], folded: Collection[str]) -> list[dict[str, Any]]:
    """The rows of each attribute; intersections are folded."""
    attributes = list(dict.fromkeys(str(row["attribute"]) for row in rows))
    return [{"attribute": name, "folded": name in folded, "rows": [row for row in rows if row["attribute"] == name]} for name in attributes]


def _group_names(rows: pd.DataFrame, intersections: Collection[str], names: Mapping[str, str] | None) -> GroupNames:
    """The user's words for groups, checked against the groups of the result."""
    groups = {str(name): list(dict.fromkeys([*own["reference"], *own["group"]])) for name, own in rows.groupby("attribute", sort=False)}
    return group_words(names, {name: levels for name, levels in groups.items() if name not in intersections})


def _shared(called: GroupNames, kind: str, level: float) -> dict[str, Any]:
    return {"kind": kind, "version": __version__, "called": called.full, "level": percent(level)}
