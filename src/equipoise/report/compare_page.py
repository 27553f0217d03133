"""The HTML reports of a comparison and of gaps over time. Each is one file, for screens, phones and paper."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from equipoise import __version__
from equipoise.measures import Estimate, Monitoring
from equipoise.repair import Contrast
from equipoise.report.compare_words import contrast_conclusion, differ_words, monitoring_conclusion, state_words
from equipoise.report.measure_words import PERFORMANCE, RATES, crossed, distinct, gap_words
from equipoise.report.panels import LEFT, RIGHT, WIDTH, Called, Mark, Panel, Tick, along, dot, line, up
from equipoise.report.paper import write_by_ending
from equipoise.report.templating import how_many, numbered, page_of
from equipoise.report.text import amount, number, percent, short
from equipoise.report.wording import group_words

SCRIPTS = ("page.js",)
CONTRAST = {"verdict": "The answer", "gaps": "Changes of differences", "rates": "Changes in each group", "performance": "Performance"}
CONTRAST |= {"method": "Method and limits"}
MONITORING = {"verdict": "The answer", "charts": "Over time", "periods": "Every period", "method": "Method and limits"}
SMALLEST, MOST_TICKS, MOST_POINTS = 0.05, 3, 60  # of the height of a chart on each side of zero; periods with a label; and with a dot


def write_contrast_page(found: Contrast, path: Path, *, group_names: Mapping[str, str] | None = None) -> Path:
    """The path of the report of a comparison, HTML or PDF by its ending, which is written whole or not at all."""
    return write_by_ending(path, lambda paper: contrast_page(found, group_names, paper=paper))


def write_monitoring_page(found: Monitoring, path: Path, *, group_names: Mapping[str, str] | None = None) -> Path:
    """The path of the report of gaps over time, HTML or PDF by its ending, which is written whole or not at all."""
    return write_by_ending(path, lambda paper: monitoring_page(found, group_names, paper=paper))


def contrast_page(found: Contrast, names: Mapping[str, str] | None = None, *, paper: bool = False) -> str:
    """The report of a comparison as HTML; `names` are words for groups, such as {"F": "women"}; on `paper` without scripts."""
    words = _words(found.rates, names)
    gaps = found.gaps[found.gaps["measure"].isin(distinct(found.gaps["measure"].unique()))]
    context = _shared(words, "comparison", found.level) | {
        "title": f"{', '.join(found.others)} compared with {found.first}",
        "found": found,
        "conclusion": contrast_conclusion(found, words),
        "differ": list(differ_words(found, words)),
        "sizes": {name: how_many(rows, patients) for name, (rows, patients) in found.sizes.items()},
        "gaps": _blocks([_change(row, gap_words(str(row["measure"]))) for row in gaps.to_dict("records")]),
        "rates": _blocks([_change(row, RATES[str(row["rate"])].name) for row in found.rates.to_dict("records")]),
        "performance": [_change(row, PERFORMANCE[str(row["measure"])]) for row in found.performance.to_dict("records")],
        "several": len(found.others) > 1,
        "labels": len(set(found.gaps["label"])) > 1,
    }
    return page_of("contrast.html", context | numbered(CONTRAST), SCRIPTS, paper=paper)


def monitoring_page(found: Monitoring, names: Mapping[str, str] | None = None, *, paper: bool = False) -> str:
    """The report of gaps over time as HTML; `names` are words for groups, such as {"F": "women"}; on `paper` without every period."""
    words = _words(found.gaps, names)

    def called(group: str) -> str:
        return words.get(group, group)

    keys = ["label", "measure", "attribute", "group"]
    courses = dict(list(found.frame.groupby(keys, sort=False)))
    rows = [
        {
            **row,
            "words": gap_words(str(row["measure"])),
            "estimate": Estimate(row["value"], row["low"], row["high"]),
            "state": state_words(row),
            "panel": chart(courses[tuple(row[k] for k in keys)], row, called),
            "course": courses[tuple(row[k] for k in keys)].to_dict("records"),
        }
        for row in found.gaps.to_dict("records")
    ]
    context = _shared(words, "monitoring", found.level) | {
        "title": f"Differences from {found.periods[0]} to {found.periods[-1]}",
        "found": found,
        "conclusion": monitoring_conclusion(found, words),
        "rows": rows,
        "alpha": percent(1 - found.level),
        "expected": amount(found.expected_change, "size"),
        "labels": len(set(found.gaps["label"])) > 1,
    }
    contents = {anchor: heading for anchor, heading in MONITORING.items() if not (paper and anchor == "periods")}
    return page_of("monitoring.html", context | numbered(contents), SCRIPTS, paper=paper)


def chart(course: pd.DataFrame, row: Mapping[Any, Any], called: Called = str) -> Panel:
    """One gap over time: the gap of each period, the confidence sequence of all so far, and the limits of a single period."""
    columns = ["value", "so_far", "so_far_low", "so_far_high", "limit_low", "limit_high"]
    numbers = course[columns].to_numpy(np.float64)
    inner = numbers[:, :2][~np.isnan(numbers[:, :2])]
    outer = np.abs(numbers[:, 4:][~np.isnan(numbers[:, 4:])])
    widest = max(SMALLEST, 1.6 * float(np.abs(inner).max(initial=0.0)), 1.05 * float(np.median(outer)) if len(outer) else 0.0)
    low, high = -min(widest, 1.0), min(widest, 1.0)
    last = max(len(course) - 1, 1)
    x = [along(k, -0.4, last + 0.4) for k in range(len(course))]
    value, so_far, band_low, band_high = (
        [up(min(max(v, low), high), low, high) if not np.isnan(v) else np.nan for v in numbers[:, k]] for k in range(4)
    )
    limits = [[up(v, low, high) if low <= v <= high else np.nan for v in numbers[:, k]] for k in (4, 5)]  # none at the edge of the chart
    marks = [Mark("base", line([(LEFT, up(0, low, high)), (WIDTH - RIGHT, up(0, low, high))]), title="no difference")]
    known = [k for k in range(len(course)) if not np.isnan(band_low[k])]
    edge = [*((x[k], band_high[k]) for k in known), *((x[k], band_low[k]) for k in reversed(known))]
    if len(known) > 1:
        marks.append(Mark("area benefit", line(edge) + "Z", title="limits of the difference over all periods so far"))
    marks += [Mark("diagonal", line(zip(x, side, strict=True)), title="limits of a single period") for side in limits]
    marks.append(Mark("benefit", line(zip(x, so_far, strict=True)), title="all periods so far"))
    for k, period in enumerate(course["period"]):
        if not np.isnan(value[k]) and len(course) <= MOST_POINTS:
            alarm = bool(row["changed"]) and str(period) >= str(row["since"])
            said = f"{period}: {amount(numbers[k, 0], 'points')} points"
            marks.append(Mark("spot", dot(x[k], value[k], 4 if alarm else 3), 1 if alarm else 0, said))
    shown = np.unique(np.linspace(0, len(course) - 1, min(MOST_TICKS, len(course))).round().astype(int))
    ticks_x = tuple(Tick(x[k], str(course["period"].iloc[k])) for k in shown)
    step = next(size for size in (0.02, 0.05, 0.1, 0.2, 0.5, 1.0) if (high - low) / size <= 6)
    ticks_y = tuple(
        Tick(up(v, low, high), number(100 * v, 0, sign=True)) for v in np.arange(np.ceil(low / step), high / step + 1e-9) * step
    )
    title = f"{gap_words(str(row['measure']))}: {short(called(str(row['group'])))} minus {short(called(str(row['reference'])))}"
    course_words = "; ".join(
        f"{p} {amount(v, 'points')}" for p, v in zip(course["period"].tail(6), course["value"].tail(6), strict=True) if not np.isnan(v)
    )
    says = f"{title}, in points. {state_words(row)}. The last periods: {course_words}."
    return Panel(title, says, ticks_x, ticks_y, "period", "points", tuple(marks))


def _change(row: Mapping[Any, Any], words: str) -> dict[str, Any]:
    return {**row, "words": words, "estimate": Estimate(row["value"], row["low"], row["high"], few=bool(row.get("few", False)))}


def _blocks(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of each attribute, those of its intersections folded."""
    attributes = list(dict.fromkeys(str(row["attribute"]) for row in rows))
    folded = crossed(attributes)
    return [{"attribute": name, "folded": name in folded, "rows": [row for row in rows if row["attribute"] == name]} for name in attributes]


def _words(rows: pd.DataFrame, names: Mapping[str, str] | None) -> dict[str, str]:
    """The user's words for groups, checked against those of the result."""
    found = {str(name): list(dict.fromkeys([*own["reference"], *own["group"]])) for name, own in rows.groupby("attribute", sort=False)}
    return group_words(names, {name: groups for name, groups in found.items() if name not in crossed(list(found))})


def _shared(words: Mapping[str, str], kind: str, level: float) -> dict[str, Any]:
    called: Called = lambda group: words.get(group, group)  # noqa: E731 (for the templates)
    return {"kind": kind, "version": __version__, "called": called, "level": percent(level)}
