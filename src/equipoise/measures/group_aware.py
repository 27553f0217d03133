"""The upper bound (group-aware) on given scores: the highest performance of any rule that uses the group, for each `max_gap`.

The rule may randomise between thresholds, separately in each group. Its rates in a group are then a point in the convex hull of the group's
ROC curve, gap and performance are linear in them, and the best rule is the solution of a linear program. No solver is needed: a gap depends
on one number v per group, a signed sum of its rates, so the hull of a group reduces to a concave function of v with few corners. Only the v
of the reference remains to be chosen, and its best value is at a corner of one of these functions.

The bound is computed on the rows that it is reported for, with their labels and groups, so no rule for new rows reaches it. A network with
better scores may exceed it.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from equipoise.errors import BadInput
from equipoise.measures.cells import AFFINE_PERFORMANCE, FloatArray, IntArray, gap_functional, performance_functional, tabulate_codes
from equipoise.measures.gaps import Gap, is_quotient

UPPER_BOUND = "upper bound (group-aware, by a linear program)"
CLOSE = 1e-12  # rounding error of sums of shares
BLOCK = 1_000_000  # elements in an array of bounds and corners, so that memory does not grow with the number of bounds


@dataclass(frozen=True)
class _Hull:
    """The largest contribution of a group to the performance at each v: a concave function, given by its corners."""

    v: FloatArray  # ascending
    best: FloatArray

    def best_between(self, low: FloatArray, high: FloatArray) -> FloatArray:
        """The largest contribution for a v between two ends; minus infinity if the group has no v there."""
        peak = self.v[self.best.argmax()]
        at = np.clip(peak, low, high)  # a concave function is largest at its peak, or as near to it as allowed
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
    """The highest performance of a group-aware rule at each bound on |gap|, for all groups against the reference at once (m,).

    None if there is no such bound: a quotient such as a gap in PPV, or F1, is not linear in the rates. NaN if the rows lack a cell that all
    gaps or the performance need. Groups that lack a cell have no gap, so the bound does not constrain them, nor rows without a group.

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
    hulls: list[_Hull | None] = []
    unconstrained = float(merit.offset)  # the contribution of groups and rows that no bound constrains
    for group in range(-1, len(levels)):
        rows = code == group
        if not rows.any():
            hulls.append(None)
            continue
        sums = _decided_positive(score[rows], label[rows], mass[rows])
        contributions = sums @ merit.w[group]
        weights = _weights(measure, n, group) if group >= 0 else None
        if weights is None or np.isnan(weights).any():
            unconstrained += float(contributions.max())
            hulls.append(None)
        else:
            hulls.append(_hull(sums @ weights, contributions))
    reference, others = hulls[1], [hull for hull in hulls[2:] if hull is not None]
    if np.isnan(merit.w).any() or reference is None or not others:
        return np.full(len(allowed), np.nan)
    return unconstrained + _best(reference, others, allowed)


def has_upper_bound(measure: Gap, performance: str) -> bool:
    """Whether gap and performance are linear in the rates of the groups, so that the bound can be computed."""
    return performance in AFFINE_PERFORMANCE and not is_quotient(measure)


def _weights(measure: Gap, n: FloatArray, group: int) -> FloatArray:
    """The weight in v of a positive decision in a group, by its label (2,)."""
    # The rates of the reference are subtracted in a gap.
    weights: FloatArray = gap_functional(measure, n, group).w[group] if group else -gap_functional(measure, n, 1).w[0]
    return weights


def _decided_positive(score: FloatArray, y: IntArray, weight: FloatArray) -> FloatArray:
    """The weight of negatives and positives that are decided positive at each threshold (thresholds, 2), from none to all."""
    order = np.argsort(-score, kind="stable")
    ends = np.flatnonzero(np.append(np.diff(score[order]) != 0, True))
    by_label = np.stack([np.cumsum((weight * (y == label))[order])[ends] for label in (0, 1)], axis=1)
    return np.concatenate([np.zeros((1, 2)), by_label])


def _hull(v: FloatArray, contributions: FloatArray) -> _Hull:
    """The corners of the smallest concave function above these points."""
    order = np.lexsort((contributions, v))
    x, top = v[order], contributions[order]
    last = np.append(np.diff(x) > CLOSE, True)  # the highest of the points at one v
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
    """The largest joint contribution of the groups for each bound: concave in the reference's v, so largest at a corner of some group."""
    corners = np.concatenate([hull.v for hull in others])
    best = []
    for block in np.array_split(bounds, 1 + len(bounds) * (len(reference.v) + 2 * len(corners)) // BLOCK):
        b = block[:, None]
        candidates = np.concatenate([np.broadcast_to(reference.v, (len(block), len(reference.v))), corners - b, corners + b], axis=1)
        v = np.clip(candidates, reference.v[0], reference.v[-1])
        total = np.interp(v, reference.v, reference.best)
        for hull in others:
            total = total + hull.best_between(v - b, v + b)
        best.append(total.max(axis=1))
    return np.concatenate(best)
