"""The geometry of small figures: ROC curves, score distributions, calibration and decision curves as SVG paths on a canvas of 320 by 220.

Panels are small and placed side by side, so that their text stays readable on a phone and on paper. Templates draw them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pandas as pd

from equipoise.data import Attribute, Scores
from equipoise.measures import FloatArray, LabelAudit, Rule
from equipoise.report.text import amount, number, short
from equipoise.report.wording.audits import counted_unit

if TYPE_CHECKING:  # an audit of scores has a page without importing torch
    from equipoise.comparison import Comparison

WIDTH, HEIGHT = 320, 220
LEFT, RIGHT, TOP, BOTTOM = 48, 18, 12, 38
SCORE_BARS = 30  # of a distribution
CALIBRATION_BINS = 10  # of a calibration curve
MOST_SAID = 8  # groups in the text for screen readers
Called = Callable[[str], str]  # from a group to the user's words for it


Tick = tuple[float, str]  # a position on an axis and its label


@dataclass(frozen=True)
class Mark:
    """A path, dot, bar or rule: `style` is its class in the style sheet, `colour` the group it belongs to."""

    style: str
    d: str
    colour: int = -1
    title: str = ""


@dataclass(frozen=True)
class Panel:
    """One small figure with axes. `says` is its content in words, for screen readers."""

    title: str
    says: str
    x: tuple[Tick, ...]
    y: tuple[Tick, ...]
    x_title: str
    y_title: str
    marks: tuple[Mark, ...]
    width: int = WIDTH
    height: int = HEIGHT
    left: int = LEFT
    right: int = WIDTH - RIGHT
    top: int = TOP
    bottom: int = HEIGHT - BOTTOM


PANELS: dict[str, Callable[[Comparison], Sequence[Panel]]] = {}  # added figures of the section "Scores and thresholds", by heading


def add_panels(heading: str, draw: Callable[[Comparison], Sequence[Panel]]) -> None:
    """Adds figures to every report under a heading: `draw` returns the panels of a comparison."""
    PANELS[heading] = draw


def x_at(value: float, low: float, high: float) -> float:
    """The x coordinate of a value on an axis from `low` to `high`."""
    return LEFT + (WIDTH - RIGHT - LEFT) * (value - low) / (high - low)


def y_at(value: float, low: float, high: float) -> float:
    """The y coordinate of a value on an axis from `low` to `high`."""
    return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * (value - low) / (high - low)


def path_through(points: Iterable[tuple[float, float]]) -> str:
    """The path through points, interrupted at NaN.

    >>> path_through([(0, 1), (2.04, 3)])
    'M0 1L2 3'
    """
    parts, pen = [], "M"
    for x, y in points:
        if np.isnan(x) or np.isnan(y):
            pen = "M"
            continue
        parts.append(f"{pen}{_coordinate(x)} {_coordinate(y)}")
        pen = "L"
    return "".join(parts)


def dot(x: float, y: float, radius: float = 4) -> str:
    """A circle as a path."""
    return f"M{_coordinate(x - radius)} {_coordinate(y)}a{radius} {radius} 0 1 0 {2 * radius} 0a{radius} {radius} 0 1 0 {-2 * radius} 0"


def _coordinate(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def level_line(style: str, y: float, title: str = "") -> Mark:
    """A line from the left to the right of a panel."""
    return Mark(style, path_through([(LEFT, y), (WIDTH - RIGHT, y)]), title=title)


def upright_line(style: str, x: float, title: str = "") -> Mark:
    """A line from the top to the bottom of a panel."""
    return Mark(style, path_through([(x, TOP), (x, HEIGHT - BOTTOM)]), title=title)


DIAGONAL = Mark("diagonal", path_through([(x_at(0, 0, 1), y_at(0, 0, 1)), (x_at(1, 0, 1), y_at(1, 0, 1))]))


def percents(position: object, low: float = 0.0, high: float = 1.0, count: int = 5) -> tuple[Tick, ...]:
    """The ticks of the axis "x" or "y" in percent."""
    place = x_at if position == "x" else y_at
    return tuple((place(v, low, high), number(100 * v, 0) + "%") for v in np.linspace(low, high, count))


def roc_panel(title: str, scores: Scores, f: FloatArray, attribute: Attribute, steps: pd.DataFrame, called: Called = str) -> Panel:
    """The ROC curve of every group in `steps` (see `steps_by_group`), and the operating point of the rule with decisions `f`."""
    curves, points, words = [], [], []
    for k, level in enumerate(attribute.levels):
        group, rows = steps[steps["group"] == level], attribute.codes == k
        if not len(group):
            continue
        name = short(called(level))
        fpr, tpr = (np.append(0.0, group[side].to_numpy()[::-1] / group[side].iloc[0]) for side in ("above_negative", "above_positive"))
        curves.append(Mark("curve", path_through((x_at(a, 0, 1), y_at(b, 0, 1)) for a, b in zip(fpr, tpr, strict=True)), k, name))
        false_positives, sensitivity = (_mean(f, scores.weight, rows & (scores.y == label)) for label in (0, 1))
        words.append(f"{name}: sensitivity {amount(sensitivity)} at a false positive rate of {amount(false_positives)}")
        points.append(Mark("at", dot(x_at(false_positives, 0, 1), y_at(sensitivity, 0, 1), 4.5), k, words[-1]))
    says = f"ROC curves by group, {title}. Where the rule decides: {'; '.join(words[:MOST_SAID])}."
    return Panel(title, says, percents("x"), percents("y"), "false positive rate", "sensitivity", (DIAGONAL, *curves, *points))


def _mean(values: FloatArray, weight: FloatArray | None, rows: npt.NDArray[np.bool_]) -> float:
    """The mean of the selected rows, with sample weights if there are any; NaN if no row is selected."""
    mass = np.ones(int(rows.sum())) if weight is None else weight[rows]
    return float(values[rows] @ mass / mass.sum()) if rows.any() else float("nan")


def calibration_panel(title: str, attribute: Attribute, steps: pd.DataFrame, called: Called = str) -> Panel:
    """The share with the finding against the mean score, in about ten bins of the scores of each group in `steps`."""
    marks, words = [DIAGONAL], []
    for k, level in enumerate(attribute.levels):
        group, name = steps[steps["group"] == level], short(called(level))
        if not len(group):
            continue
        positive, negative, score = (_between_thresholds(group, column) for column in ("above_positive", "above_negative", "score"))
        n = positive + negative
        bins = np.minimum((CALIBRATION_BINS * (np.cumsum(n) - n / 2) / n.sum()).astype(int), CALIBRATION_BINS - 1)
        rows, scores, positives = (np.bincount(bins, values, CALIBRATION_BINS) for values in (n, score, positive))
        spots = [(x_at(s / r, 0, 1), y_at(p / r, 0, 1)) for r, s, p in zip(rows, scores, positives, strict=True) if r > 0]
        marks.append(Mark("curve", path_through(spots), k, name))
        marks += [Mark("spot", dot(x, y, 2.5), k) for x, y in spots]
        words.append(f"{name}: mean score {amount(float(score.sum() / n.sum()))}, share {amount(float(positive.sum() / n.sum()))}")
    says = f"Calibration by group, {title}: share with the finding against the score. {'; '.join(words[:MOST_SAID])}."
    return Panel(title, says, percents("x"), percents("y"), "mean score", "share with the finding", tuple(marks))


def _between_thresholds(steps: pd.DataFrame, column: str) -> FloatArray:
    """The amount between neighbouring thresholds of a group: differences of the amounts above; `score` is stored by bin already."""
    values: FloatArray = steps[column].to_numpy(np.float64)
    differences: FloatArray = values if column == "score" else values - np.append(values[1:], 0.0)
    return differences


def decision_panels(attribute: str, audits: Sequence[tuple[str, LabelAudit]], called: Called = str) -> list[Panel]:
    """The decision curve of each group of an attribute, of one audit or before and after, next to treating all and treating none."""
    curves = [
        (title, audit.curves[(audit.curves["attribute"] == attribute) & audit.curves["net_benefit"].notna()]) for title, audit in audits
    ]
    panels = []
    for group in dict.fromkeys(curves[-1][1]["group"]):
        sides = [(title, frame[frame["group"] == group]) for title, frame in curves]
        last = sides[-1][1]
        first, end = float(last["threshold"].min()), float(last["threshold"].max())
        if end <= first:
            continue
        values = np.concatenate([frame[["net_benefit", "low", "high"]].to_numpy().ravel() for _, frame in sides])
        low, high = min(float(np.nanmin(values)), 0.0) - 0.01, max(float(np.nanmax(values)), 0.02) + 0.01
        marks = [level_line("base", y_at(0, low, high), "treating none")]
        x = [x_at(threshold, first, end) for threshold in last["threshold"]]
        treat_all = [(a, y_at(b, low, high) if low <= b <= high else np.nan) for a, b in zip(x, last["treat_all"], strict=True)]
        marks.append(Mark("diagonal", path_through(treat_all), title="treating all"))
        edge = [*zip(x, last["high"], strict=True), *reversed(list(zip(x, last["low"], strict=True)))]
        marks.append(Mark("area benefit", path_through((a, y_at(b, low, high)) for a, b in edge) + "Z"))
        for k, (title, frame) in enumerate(sides):
            spots = [(x_at(t, first, end), y_at(b, low, high)) for t, b in zip(frame["threshold"], frame["net_benefit"], strict=True)]
            marks.append(Mark("benefit" if k == len(sides) - 1 else "benefit before", path_through(spots), title=title))
        middle, name = last.iloc[len(last) // 2], short(called(group))
        unit = counted_unit(audits[-1][1].rows, audits[-1][1].patients)
        says = (
            f"Decision curve of {name}: at the threshold {number(middle['threshold'], 2)} the net benefit is "
            f"{number(1000 * middle['net_benefit'], 0)} per 1,000 {unit}; treating all has {number(1000 * middle['treat_all'], 0)}."
        )
        ticks_x = tuple((x_at(v, first, end), number(v, 2)) for v in np.linspace(first, end, 4))
        step = next(size for size in (0.02, 0.05, 0.1, 0.2, 0.5) if (high - low) / size < 5)
        ticks_y = tuple((y_at(v, low, high), number(1000 * v, 0)) for v in np.arange(np.ceil(low / step), high / step) * step)
        panels.append(Panel(name, says, ticks_x, ticks_y, "threshold", "net benefit per 1,000", tuple(marks)))
    return panels


def score_panel(title: str, scores: Scores, rule: Rule, attribute: Attribute, code: int, steps: pd.DataFrame) -> Panel:
    """The scores of one group: those with the finding upwards, those without downwards, and the thresholds of the rule.

    Bars are as wide as the steps (see `steps_by_group`), and their area is the share of rows; a group without steps has none.
    """
    level = attribute.levels[code]
    rows, group = attribute.codes == code, steps[steps["group"] == level]
    edges = np.append(group["threshold"].to_numpy(np.float64), 1.0)
    widths = np.maximum(np.diff(edges), 1 / SCORE_BARS / 10)
    counts = [_between_thresholds(group, column) for column in ("above_positive", "above_negative")]
    shares = [count / count.sum() / widths / SCORE_BARS for count in counts] if len(group) else []
    top = max([0.05, *(float(heights.max()) for heights in shares)])
    marks = []
    for sign, style, heights in zip((1, -1), ("with", "without"), shares, strict=False):
        outline = [(x_at(0, 0, 1), y_at(0, -top, top))]
        for low, high, height in zip(edges[:-1], edges[1:], heights, strict=True):
            outline += [(x_at(low, 0, 1), y_at(sign * height, -top, top)), (x_at(high, 0, 1), y_at(sign * height, -top, top))]
        outline.append((x_at(1, 0, 1), y_at(0, -top, top)))
        marks.append(Mark(f"area {style}", path_through(outline) + "Z"))
    marks.append(level_line("base", y_at(0, -1, 1)))
    cuts = rule.cuts(level)
    for cut in cuts:
        marks.append(upright_line("cut", x_at(min(max(cut, 0.0), 1.0), 0, 1), f"threshold {number(cut, 3)}"))
    says = f"{title}: too few patients to show their scores."
    if len(group):
        flagged = [amount(_mean(rule.decide(scores), scores.weight, rows & (scores.y == label))) for label in (1, 0)]
        says = f"{title}: scores of those with the finding (up) and without (down). Flagged: {flagged[0]} with it, {flagged[1]} without."
    if cuts:
        says += f" Threshold {', '.join(number(cut, 3) for cut in cuts[:5])}."
    ticks = tuple((x_at(v, 0, 1), number(v, 2)) for v in np.linspace(0, 1, 5))
    sides = ((y_at(0.5 * top, -top, top), "with"), (y_at(-0.5 * top, -top, top), "without"))
    return Panel(title, says, ticks, sides, "score", "", tuple(marks))
