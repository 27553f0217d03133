"""The upper bound (group-aware) on given scores: the highest performance of any rule that knows the group, within each `max_gap`.

The rule may mix thresholds at random, in each group as it likes. Its rates in a group are then a point in the convex hull of the group's
ROC curve, gap and performance are linear in them, and the best rule is the solution of a linear program. This one needs no solver: a gap
takes one number v from each group, a signed sum of its rates, so a group's hull comes down to a concave function of v with few corners,
and all that is left to choose is the v of the reference, whose best value is at a corner of one of them.

The bound is computed on the rows that it is reported for, with their labels and groups: no rule for new rows reaches it.
A network with better scores may go beyond it.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from equipoise.errors import BadInput
from equipoise.measures.cells import FloatArray, IntArray, tabulate_codes
from equipoise.measures.functional import AFFINE_PERFORMANCE, gap_functional, performance_functional
from equipoise.measures.gaps import Gap, is_quotient

UPPER_BOUND = "upper bound (group-aware, by a linear program)"
CLOSE = 1e-12  # what sums of shares may differ by
BLOCK = 1_000_000  # elements of an array of bounds and corners: memory does not grow with the number of bounds


@dataclass(frozen=True)
class _Hull:
    """The most that a group can add to the performance at each v: a concave function, by its corners."""

    v: FloatArray  # ascending
    best: FloatArray

    def within(self, low: FloatArray, high: FloatArray) -> FloatArray:
        """The most for a v between two ends; minus infinity where the group has none there."""
        peak = self.v[self.best.argmax()]
        at = np.clip(peak, low, high)  # a concave function is best at its peak, or as near to it as it may be
        inside = (at >= self.v[0] - CLOSE) & (at <= self.v[-1] + CLOSE)
        return np.where(inside, np.interp(at, self.v, self.best), -np.inf)


def upper_bound(
    scores: npt.ArrayLike,
    y: npt.ArrayLike,
    codes: npt.ArrayLike,
    levels: tuple[str, ...],
    measure: Gap,
    performance: str,
    bounds: npt.ArrayLike,
    weight: FloatArray | None = None,
) -> FloatArray | None:
    """The highest performance of a group-aware rule at each bound on |gap|, of all groups against the reference at once (m,).

    None where there is no such line: a quotient such as a gap in PPV, or F1, is not linear in the rates. NaN where the rows lack a cell
    that all gaps or the performance need. A group that lacks one has no gap and is decided at its best, as are rows without a group.

    >>> float(upper_bound([0.9, 0.1, 0.6, 0.4], [1, 0, 0, 1], [0, 0, 1, 1], ("M", "F"), "eod", "balanced_accuracy", [0.0])[0])
    0.75
    """
    if not has_upper_bound(measure, performance):
        return None
    allowed = np.atleast_1d(np.asarray(bounds, dtype=np.float64))
    if np.isnan(allowed).any() or (allowed < 0).any():
        raise BadInput(f"a bound on |gap| must be at least 0; got {allowed.tolist()}")
    score, label, code = np.asarray(scores, dtype=np.float64), np.asarray(y, dtype=np.int64), np.asarray(codes, dtype=np.int64)
    mass = np.ones(len(score)) if weight is None else weight
    n = tabulate_codes(np.zeros(()), label, code, levels, mass).n
    merit = performance_functional(performance, n)
    found: list[_Hull | None] = []
    free = float(merit.offset)  # what groups that no bound holds back add
    for group in range(-1, len(levels)):
        rows = code == group
        if not rows.any():
            found.append(None)
            continue
        sums = _sums(score[rows], label[rows], mass[rows])  # (thresholds, 2): decided positive, by label
        adds = sums @ merit.w[group]
        weights = _weights(measure, n, group) if group >= 0 else None
        if weights is None or np.isnan(weights).any():
            free += float(adds.max())
            found.append(None)
        else:
            found.append(_hull(sums @ weights, adds))
    reference, others = found[1], [hull for hull in found[2:] if hull is not None]
    if np.isnan(merit.w).any() or reference is None or not others:
        return np.full(len(allowed), np.nan)
    return free + _best(reference, others, allowed)


def has_upper_bound(measure: Gap, performance: str) -> bool:
    """Whether gap and performance are linear in the rates of the groups, so that there is a line."""
    return performance in AFFINE_PERFORMANCE and not is_quotient(measure)


def _weights(measure: Gap, n: FloatArray, group: int) -> FloatArray:
    """What a decision in a group, by its label, adds to its v (2,)."""
    # The reference's rates count against those of the others.
    found: FloatArray = gap_functional(measure, n, group).w[group] if group else -gap_functional(measure, n, 1).w[0]
    return found


def _sums(score: FloatArray, y: IntArray, weight: FloatArray) -> FloatArray:
    """How many negatives and positives, by weight, are decided positive at each threshold, from none to all."""
    order = np.argsort(-score, kind="stable")
    ends = np.flatnonzero(np.append(np.diff(score[order]) != 0, True))
    by_label = np.stack([np.cumsum((weight * (y == label))[order])[ends] for label in (0, 1)], axis=1)
    return np.concatenate([np.zeros((1, 2)), by_label])


def _hull(v: FloatArray, adds: FloatArray) -> _Hull:
    """The corners of the smallest concave function over these points."""
    order = np.lexsort((adds, v))
    x, top = v[order], adds[order]
    last = np.append(np.diff(x) > CLOSE, True)  # of points at one v, the highest
    starts = np.flatnonzero(np.append(True, last[:-1]))
    x, top = x[last], np.maximum.reduceat(top, starts)
    while len(x) > 2:
        # A point at or below the line between its neighbours is no corner, so all such points may go at once.
        left, right = np.diff(top)[:-1] * np.diff(x)[1:], np.diff(top)[1:] * np.diff(x)[:-1]
        keep = np.concatenate([[True], left > right, [True]])
        if keep.all():
            break
        x, top = x[keep], top[keep]
    return _Hull(x, top)


def _best(reference: _Hull, others: list[_Hull], bounds: FloatArray) -> FloatArray:
    """The most that the groups add together, for each bound: concave in the reference's v, so best at a corner of one of the groups."""
    corners = np.concatenate([hull.v for hull in others])
    found = []
    for some in np.array_split(bounds, 1 + len(bounds) * (len(reference.v) + 2 * len(corners)) // BLOCK):
        b = some[:, None]
        tried = np.concatenate([np.broadcast_to(reference.v, (len(some), len(reference.v))), corners - b, corners + b], axis=1)
        at = np.clip(tried, reference.v[0], reference.v[-1])
        total = np.interp(at, reference.v, reference.best)
        for hull in others:
            total = total + hull.within(at - b, at + b)
        found.append(total.max(axis=1))
    return np.concatenate(found)
