"""Sensitivity at a fixed specificity, and the reverse, per group: each group at a threshold of its own.

The ROC curve of a group's rows is read at the given point, linearly between its corners. Two things are uncertain, each with a Wilson
interval of its effective sample size: the rate that is read, and, since the threshold comes from the same rows, the rate at which it is
read. Both distances are added like standard errors (Zou and Donner 2008), as the rows of the two labels are different ones.
"""

import itertools
from dataclasses import dataclass

import numpy as np

from equipoise.measures.calibration import ENOUGH, FEW, Limits, Scored
from equipoise.measures.cells import FloatArray
from equipoise.measures.intervals import fewer_clusters, wilson
from equipoise.measures.moments import moments_of

CLOSE = 1e-12  # positions on a curve are sums of shares: the last bits say nothing


@dataclass(frozen=True, eq=False)
class _Curve:
    """The ROC curve of a group, from no patient decided positive to all; the score of a corner is the lowest that is."""

    fpr: FloatArray
    tpr: FloatArray
    score: FloatArray


def operating_points(rows: Scored, specificity: float, sensitivity: float, level: float, least: int) -> tuple[Limits, Limits]:
    """The sensitivity of each group at this specificity, and its specificity at this sensitivity."""
    curves = _curves(rows)
    first = _read(rows, [(c.fpr, c.tpr, c.score) for c in curves], 1 - specificity, ("fpr", "tpr"), level, least)
    found = _read(rows, [(c.tpr, c.fpr, c.score) for c in curves], sensitivity, ("tpr", "fpr"), level, least)
    return first, Limits(1 - found.value, 1 - found.high, 1 - found.low, found.patients, found.why)


def _read(
    rows: Scored, curves: list[tuple[FloatArray, FloatArray, FloatArray]], at: float, rates: tuple[str, str], level: float, least: int
) -> Limits:
    """The second rate of each group where the first is `at`."""
    of = rows.clusters
    known = rows.rarer >= least
    value, cut = np.full(of.groups, np.nan), np.zeros(of.groups)
    for k in np.flatnonzero(known):
        across, up, score = curves[k]
        value[k] = _height(at, across, up, lowest=rates[1] == "fpr")
        cut[k] = score[min(int(np.searchsorted(across, at - CLOSE, side="left")), len(score) - 1)]
    decided = (rows.score >= cut[of.code]).astype(np.float64)
    units = np.arange(len(of.code)) if of.place is None else of.place
    sums = moments_of(decided, rows.y, of.code, of.groups, units, rows.weight)
    size, other = (fewer_clusters(sums.size(rate), sums.degrees(rate), level) for rate in rates)
    low, high = wilson(value, other, level)
    near = wilson(np.where(known, at, np.nan), size, level)
    ends = []
    for rate, own, sign in zip(near, (low, high), (-1.0, 1.0), strict=True):
        reached = value.copy()
        for k in np.flatnonzero(known):
            across, up, _ = curves[k]
            reached[k] = np.interp(rate[k], *_smoothed(across, up, size[k]))
        ends.append(np.clip(value + sign * np.hypot(own - value, reached - value), 0.0, 1.0))
    why = tuple(ENOUGH if enough else FEW for enough in known)
    return Limits(value, ends[0], ends[1], rows.rarer, why)


def _height(at: float, across: FloatArray, up: FloatArray, *, lowest: bool) -> float:
    """The height of a curve at a position, linearly between its corners; where it rises straight, its lower or its upper end."""
    first, last = int(np.searchsorted(across, at - CLOSE, side="left")), int(np.searchsorted(across, at + CLOSE, side="right"))
    if first < last:  # corners at this very position
        return float(up[first] if lowest else up[last - 1])
    return float(np.interp(at, across, up))


def _smoothed(across: FloatArray, up: FloatArray, size: float) -> tuple[FloatArray, FloatArray]:
    """The curve through the middles of its steps, the i-th of m at i / (m + 1), so that it says something beyond the outermost scores.

    The next patient's score lies above the highest of m once in m + 1 times: where a curve starts and ends, few rows cannot tell.
    """
    moves = np.flatnonzero(np.diff(across) > 0)
    middle = ((across[moves] + across[moves + 1]) / 2 * size + 0.5) / (size + 1)
    height = (up[moves] + up[moves + 1]) / 2
    return np.concatenate([[0.0], middle, [1.0]]), np.concatenate([[0.0], height, [1.0]])


def _curves(rows: Scored) -> list[_Curve]:
    """The ROC curve of each group."""
    of = rows.clusters
    order = np.argsort(-rows.score)
    narrow = of.code.astype(np.int16) if of.groups < 2**15 else of.code  # which NumPy sorts by radix
    order = order[np.argsort(narrow[order], kind="stable")]
    starts = np.searchsorted(of.code[order], np.arange(of.groups + 1))
    found = []
    for first, last in itertools.pairwise(starts):
        own = order[first:last]
        score, y, w = rows.score[own], rows.y[own], rows.weight[own]
        ends = np.flatnonzero(np.append(np.diff(score) != 0, True)) if len(own) else np.zeros(0, np.int64)
        sides = []
        for label in (0.0, 1.0):
            sums = np.append(0.0, np.cumsum(w * (y == label))[ends])
            sides.append(sums / sums[-1] if sums[-1] > 0 else sums)
        found.append(_Curve(sides[0], sides[1], np.append(np.inf, score[ends])))
    return found
