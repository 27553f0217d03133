"""The geometry of small figures: ROC curves, score distributions, calibration and decision curves as SVG paths on a canvas of 320 by 220.

Panels are small and placed side by side, so that their text stays readable on a phone and on paper. Templates draw them.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from equipoise.data import Attribute, FloatArray, Scores
from equipoise.measures import LabelAudit, Rule
from equipoise.plugins import Registry
from equipoise.report.text import amount, number, short
from equipoise.report.wording.audits import counted_unit

if TYPE_CHECKING:  # an audit of scores has a page without importing torch
    from equipoise.comparison import Comparison

WIDTH, HEIGHT = 320, 220
LEFT, RIGHT, TOP, BOTTOM = 48, 18, 12, 38
SCORE_BARS = 30  # of a distribution
CALIBRATION_BINS = 10  # of a calibration curve
MOST_SAID = 8  # groups in the text for screen readers
MOST_PICTURES = 12
Called = Callable[[str], str]  # from a group to the user's words for it


Tick = tuple[float, str]  # a position on an axis and its label


@dataclass(frozen=True)
class Mark:
    """A path, dot, bar or rule: `style` is its class in the style sheet, `colour` the group it belongs to. A text is `title` at a place."""

    style: str
    d: str = ""
    colour: int = -1
    title: str = ""
    at: tuple[float, float] | None = None


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


PANELS = Registry[Callable[["Comparison"], Sequence[Panel]]]("panels")  # added figures of the section "Scores and thresholds", by heading


def add_panels(heading: str, draw: Callable[[Comparison], Sequence[Panel]]) -> None:
    """Adds figures to every report of a repair.

    - `heading`: what stands above them, in the section "Scores and thresholds".
    - `draw`: a function from the comparison of a repair to its panels.
    """
    PANELS.registered[heading] = draw


@dataclass(frozen=True)
class Axes:
    """The ranges of the two axes of a panel, by which values become marks; values that are NaN interrupt a curve."""

    low: float = 0.0  # of y
    high: float = 1.0
    left: float = 0.0  # of x
    right: float = 1.0

    def x(self, value: float) -> float:
        """The x coordinate of a value."""
        return LEFT + (WIDTH - RIGHT - LEFT) * (value - self.left) / (self.right - self.left)

    def y(self, value: float) -> float:
        """The y coordinate of a value."""
        return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * (value - self.low) / (self.high - self.low)

    def curve(self, style: str, points: Iterable[tuple[float, float]], colour: int = -1, title: str = "", end: str = "") -> Mark:
        """A line through points; with the `end` "Z", the area inside it.

        >>> Axes().curve("curve", [(0, 0), (0.5, 1)]).d
        'M48 182L175 12'
        """
        parts, pen = [], "M"
        for x, y in points:
            known = not (np.isnan(x) or np.isnan(y))
            parts += [f"{pen}{_coordinate(self.x(x))} {_coordinate(self.y(y))}"] if known else []
            pen = "L" if known else "M"
        return Mark(style, "".join(parts) + end, colour, title)

    def dot(self, style: str, x: float, y: float, radius: float = 4, colour: int = -1, title: str = "") -> Mark:
        """A dot at a point."""
        start = f"M{_coordinate(self.x(x) - radius)} {_coordinate(self.y(y))}"
        return Mark(style, f"{start}a{radius} {radius} 0 1 0 {2 * radius} 0a{radius} {radius} 0 1 0 {-2 * radius} 0", colour, title)

    def level(self, style: str, y: float, title: str = "") -> Mark:
        """A line from the left to the right."""
        return self.curve(style, [(self.left, y), (self.right, y)], title=title)

    def upright(self, style: str, x: float, title: str = "") -> Mark:
        """A line from the top to the bottom."""
        return self.curve(style, [(x, self.high), (x, self.low)], title=title)

    def x_ticks(self, values: Iterable[float], text: Callable[[float], str]) -> tuple[Tick, ...]:
        """Values on the horizontal axis, with their labels."""
        return tuple((self.x(value), text(value)) for value in values)

    def y_ticks(self, values: Iterable[float], text: Callable[[float], str]) -> tuple[Tick, ...]:
        """Values on the vertical axis, with their labels."""
        return tuple((self.y(value), text(value)) for value in values)


def _coordinate(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def steps_within(low: float, high: float, most: int, sizes: Sequence[float] = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)) -> FloatArray:
    """Round values from `low` to `high`, at most so many."""
    step = next(size for size in sizes if (high - low) / size <= most)
    return np.asarray(np.arange(np.ceil(low / step), high / step + 1e-9) * step)


SHARES = Axes()  # both from 0 to 1
DIAGONAL = SHARES.curve("diagonal", [(0, 0), (1, 1)])
PERCENTS_X, PERCENTS_Y = (ticks(np.linspace(0, 1, 5), lambda v: f"{100 * v:.0f}%") for ticks in (SHARES.x_ticks, SHARES.y_ticks))


def share_panel(title: str, says: str, x_title: str, y_title: str, marks: Iterable[Mark]) -> Panel:
    """A panel whose axes are shares in percent."""
    return Panel(title, says, PERCENTS_X, PERCENTS_Y, x_title, y_title, tuple(marks))


def roc_panel(title: str, scores: Scores, f: FloatArray, attribute: Attribute, steps: pd.DataFrame, called: Called = str) -> Panel:
    """The ROC curve of every group in `steps` (see `steps_by_group`), and the operating point of the rule with decisions `f`."""
    curves, points, words = [], [], []
    for k, level in enumerate(attribute.levels):
        group, rows = steps[steps["group"] == level], attribute.codes == k
        if not len(group):
            continue
        name = short(called(level))
        fpr, tpr = (np.append(0.0, group[side].to_numpy()[::-1] / group[side].iloc[0]) for side in ("above_negative", "above_positive"))
        curves.append(SHARES.curve("curve", zip(fpr, tpr, strict=True), k, name))
        false_positives, sensitivity = (_mean(f, scores.weight, rows & (scores.y == label)) for label in (0, 1))
        words.append(f"{name}: sensitivity {amount(sensitivity)} at a false positive rate of {amount(false_positives)}")
        points.append(SHARES.dot("at", false_positives, sensitivity, 4.5, k, words[-1]))
    says = f"ROC curves by group, {title}. Where the rule decides: {'; '.join(words[:MOST_SAID])}."
    return share_panel(title, says, "false positive rate", "sensitivity", (DIAGONAL, *curves, *points))


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
        spots = [(s / r, p / r) for r, s, p in zip(rows, scores, positives, strict=True) if r > 0]
        marks += [SHARES.curve("curve", spots, k, name), *(SHARES.dot("spot", x, y, 2.5, k) for x, y in spots)]
        words.append(f"{name}: mean score {amount(float(score.sum() / n.sum()))}, share {amount(float(positive.sum() / n.sum()))}")
    says = f"Calibration by group, {title}: share with the finding against the score. {'; '.join(words[:MOST_SAID])}."
    return share_panel(title, says, "mean score", "share with the finding", marks)


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
        axes, cuts = Axes(low, high, first, end), list(last["threshold"])
        treat_all = [b if low <= b <= high else np.nan for b in last["treat_all"]]
        edge = [*zip(cuts, last["high"], strict=True), *reversed(list(zip(cuts, last["low"], strict=True)))]
        marks = [axes.level("base", 0, "treating none"), axes.curve("diagonal", zip(cuts, treat_all, strict=True), title="treating all")]
        marks.append(axes.curve("area benefit", edge, end="Z"))
        for k, (title, frame) in enumerate(sides):
            style = "benefit" if k == len(sides) - 1 else "benefit before"
            marks.append(axes.curve(style, zip(frame["threshold"], frame["net_benefit"], strict=True), title=title))
        middle, name = last.iloc[len(last) // 2], short(called(group))
        unit = counted_unit(audits[-1][1].rows, audits[-1][1].patients)
        says = (
            f"Decision curve of {name}: at the threshold {number(middle['threshold'], 2)} the net benefit is "
            f"{number(1000 * middle['net_benefit'], 0)} per 1,000 {unit}; treating all has {number(1000 * middle['treat_all'], 0)}."
        )
        ticks_x = axes.x_ticks(np.linspace(first, end, 4), lambda v: number(v, 2))
        ticks_y = axes.y_ticks(steps_within(low, high, 5), lambda v: number(1000 * v, 0))
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
    axes, marks = Axes(-top, top), []
    for sign, style, heights in zip((1, -1), ("with", "without"), shares, strict=False):
        corners = [
            point for low, high, share in zip(edges[:-1], edges[1:], heights, strict=True) for point in ((low, share), (high, share))
        ]
        outline = [(0.0, 0.0), *((x, sign * share) for x, share in corners), (1.0, 0.0)]
        marks.append(axes.curve(f"area {style}", outline, end="Z"))
    marks.append(axes.level("base", 0))
    cuts = rule.cuts(level)
    for cut in cuts:
        marks.append(axes.upright("cut", min(max(cut, 0.0), 1.0), f"threshold {number(cut, 3)}"))
    says = f"{title}: too few patients to show their scores."
    if len(group):
        flagged = [amount(_mean(rule.decide(scores), scores.weight, rows & (scores.y == label))) for label in (1, 0)]
        says = f"{title}: scores of those with the finding (up) and without (down). Flagged: {flagged[0]} with it, {flagged[1]} without."
    if cuts:
        says += f" Threshold {', '.join(number(cut, 3) for cut in cuts[:5])}."
    ticks, sides = axes.x_ticks(np.linspace(0, 1, 5), lambda v: number(v, 2)), ((axes.y(top / 2), "with"), (axes.y(-top / 2), "without"))
    return Panel(title, says, ticks, sides, "score", "", tuple(marks))


# Images


def changed_pictures(repair: Comparison) -> list[dict[str, Any]]:
    """The rows of the test set with an image and the largest change of decision, then of score."""
    before, after = repair.original.test, repair.result.test
    old, new = repair.original.decisions(), repair.result.decisions()
    decision_change, score_change = np.abs(new - old), np.abs(after.score - before.score)
    pictures: list[dict[str, Any]] = []
    for row in np.lexsort((-score_change, -decision_change)):
        unchanged = decision_change[row] == 0 and score_change[row] == 0
        if unchanged or before.ids[row] not in repair.thumbnails:
            continue
        flagged = ["flagged" if decision >= 0.5 else "not flagged" for decision in (old[row], new[row])]
        pictures.append(
            {
                "group": before.groups[row] or "",
                "positive": bool(before.y[row]),
                "before": number(float(before.score[row]), 3),
                "after": number(float(after.score[row]), 3),
                "change": f"{flagged[0]} → {flagged[1]}" if flagged[0] != flagged[1] else f"{flagged[0]}, as before",
                "png": _png(np.asarray(repair.thumbnails[before.ids[row]], dtype=np.uint8)),
            }
        )
        if len(pictures) == MOST_PICTURES:
            break
    return pictures


def unit_map_rows(repair: Comparison) -> list[dict[str, Any]]:
    """Images of the units that pruning switched off: light where all channels are on, dark where none is."""
    off, on = np.array([120.0, 45.0, 8.0]), np.array([246.0, 243.0, 238.0])
    maps = []
    for tried in repair.candidates:
        for layer, kept in tried.units.items():
            png = _png((off + (on - off) * np.clip(kept, 0.0, 1.0)[..., None]).round().astype(np.uint8))
            maps.append({"method": tried.name, "layer": layer, "mean": float(kept.mean()), "least": float(kept.min()), "png": png})
    return maps


def _png(image: npt.NDArray[np.uint8]) -> str:
    from PIL import Image  # late: an audit has no images

    out = io.BytesIO()
    Image.fromarray(image).save(out, "PNG", optimize=True)
    return base64.b64encode(out.getvalue()).decode()
