"""Gaps and performance as affine functionals of the decisions, and all thresholds at once: cumulative sums of w in score order. Exact,
O(n log n), no grid. `linearise` is a gap to first order around decisions, with the same value and slopes; a signed sum of rates is affine.

The numerator and denominator of a quotient, such as the gap in PPV, are two sums each. It is NaN at thresholds at which no row, or fewer
than a handful, of some group is decided so.

**The upper bound (group-aware)** on given scores is the highest performance of any rule that uses the group, for each `max_gap`. The rule
may randomise between thresholds, separately in each group. Its rates in a group are then a point in the convex hull of the group's ROC
curve, gap and performance are linear in them, and the best rule is the solution of a linear program. No solver is needed: a gap depends on
one number v per group, a signed sum of its rates, so the hull of a group reduces to a concave function of v with few corners. Only the v of
the reference remains to be chosen, and its best value is at a corner of one of these functions.

The bound is computed on the rows that it is reported for, with their labels and groups, so no rule for new rows reaches it. A network with
better scores may exceed it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from equipoise.data import Attribute, FloatArray
from equipoise.errors import BadInput, UnknownName, pick
from equipoise.measures.cells import Cells, cell_index, largest_gap, performance_rates, ratio
from equipoise.measures.measure_table import (
    AFFINE_PERFORMANCE,
    AT_THRESHOLD,
    RATIOS,
    canonical_name,
    is_affine_performance,
    is_performance,
    measure_of,
)

# Relative differences up to which the order of two scores of a network depends on the processor and the batch, such as after pruning.
SINGLE_PRECISION = 16 * float(np.finfo(np.float32).eps)


@dataclass(frozen=True, eq=False)
class Affine:
    """An affine functional of the decisions, with one weight per cell."""

    offset: FloatArray  # (...)
    w: FloatArray  # (..., groups + 1, 2)

    def __call__(self, cells: Cells) -> FloatArray:
        """The value for a cell table: offset + sum over cells of w * s."""
        weighted = np.where(self.w == 0, 0.0, self.w * cells.s)  # a cell of weight 0 does not count even if it is NaN; NaN weights do
        value: FloatArray = self.offset + weighted.sum((-2, -1))
        return value

    def weights(self, y: npt.ArrayLike, codes: npt.ArrayLike) -> FloatArray:
        """One weight per row (n,)."""
        rows: FloatArray = self.w.ravel()[cell_index(y, codes, len(self.w) - 1)]
        return rows


def _slopes(rates: Mapping[str, float], n: FloatArray, s: FloatArray) -> tuple[FloatArray, FloatArray]:
    """A signed sum of rates to first order around sums of decisions s (..., 2): the offset (...) and the weights of labels (..., 2)."""
    offset, w = np.zeros(n.shape[:-1]), np.zeros(n.shape)
    for name, sign in rates.items():
        a, b = np.array(RATIOS[name][:2], dtype=np.float64)
        bottom = (b[:2] * n + b[2:] * s).sum(-1)
        value = ratio((a[:2] * n + a[2:] * s).sum(-1), bottom)[..., None]
        offset += sign * np.nan_to_num(ratio((a[:2] * n + value * b[2:] * s).sum(-1), bottom))  # an empty rate has NaN weights
        w += np.where((a[2:] == 0) & (b[2:] == 0), 0.0, ratio(sign * (a[2:] - value * b[2:]), bottom[..., None]))
    return offset, w


def linearise(gap: str, cells: Cells, group: int) -> Affine:
    """The gap of a group (by its code) against the reference (code 0), to first order around the decisions in a cell table.

    It is exact for a signed sum of rates. d PPV / d f_i = (y_i - PPV) / (positive decisions of the group); NPV is analogous.
    """
    offset, slopes = _slopes(measure_of(gap).coefficients, cells.n[..., [group, 0], :], cells.s[..., [group, 0], :])
    w = np.zeros_like(cells.n)
    w[..., group, :], w[..., 0, :] = slopes[..., 0, :], -slopes[..., 1, :]
    return Affine(offset[..., 0] - offset[..., 1], w)


def gap_functional(gap: str, n: FloatArray, group: int) -> Affine:
    """The gap of a group (by its code) against the reference (code 0), from the cell counts n (..., groups + 1, 2)."""
    if measure_of(gap).is_quotient:
        raise BadInput(f"{gap} is a quotient, so counts do not make it affine; use linearise, with the decisions")
    return linearise(gap, Cells((), n, np.zeros_like(n)), group)


def performance_functional(name: str, n: FloatArray) -> Affine:
    """Accuracy or balanced accuracy of all rows, of any group or none, from the cell counts.

    - `name`: of an affine measure of performance.
    - `n`: cell counts (groups + 1, 2).
    """
    if not is_affine_performance(name):
        raise UnknownName("affine performance measure", name, AFFINE_PERFORMANCE)
    totals = n.sum(-2)  # (..., 2)
    offset, w = _slopes(performance_rates(name), totals, np.zeros_like(totals))
    return Affine(offset, np.broadcast_to(w[..., None, :], n.shape))


@dataclass(frozen=True, eq=False)
class Sweep:
    """Values at each distinct decision, from the highest threshold (no row is decided positive) to the lowest (all are).

    The threshold between two neighbouring scores is their midpoint, so that rounding cannot flip a decision.
    """

    thresholds: FloatArray  # (m,)
    values: dict[str, FloatArray]  # by measure, (m,); with more than two groups, the gap with the largest absolute value

    def best(self, performance: str = "balanced_accuracy", *, gap: str | None = None, max_gap: float | None = None) -> "Choice":
        """The threshold with the best performance; with `max_gap`, the best among those whose |gap| does not exceed it.

        If no threshold satisfies `max_gap`, the one with the smallest |gap|, and `met` is False.
        """
        score = self.values[pick("performance measure in this sweep", performance, self.values)]
        size = np.zeros_like(score) if gap is None else np.abs(self.values[pick("measure in this sweep", gap, self.values)])
        defined = ~np.isnan(score) & ~np.isnan(size)
        allowed = defined if max_gap is None or gap is None else defined & (size <= max_gap)
        # Ties in performance go to the smaller gap: sums of counts, so the last bits are noise.
        tied = allowed & (score >= np.where(allowed, score, -np.inf).max() - 1e-12) if allowed.any() else defined
        index = int(np.where(tied, -size, -np.inf).argmax())
        values = {name: float(each[index]) for name, each in self.values.items()}
        return Choice(float(self.thresholds[index]), values, bool(allowed.any()))


class Choice(NamedTuple):
    """A threshold, the values there, and whether `max_gap` could be met."""

    threshold: float
    values: dict[str, float]
    met: bool


def sweep(
    score: npt.ArrayLike,
    y: npt.ArrayLike,
    attribute: Attribute,
    measures: Sequence[str] = ("spd", "eod", "balanced_accuracy"),
    weight: FloatArray | None = None,
    rounding: float = 0.0,
) -> Sweep:
    """The measures at every distinct threshold of scores (n,).

    Scores whose relative difference is at most `rounding` count as equal.

    - `score`, `y`: of each row (n,).
    - `attribute`: the groups of the rows.
    - `weight`: sample weights.
    """
    s, levels = np.asarray(score, dtype=np.float64), attribute.levels
    order = np.argsort(-s)  # half the time of a sweep
    n = Cells.of(np.zeros(()), y, attribute, weight).n
    cell = cell_index(y, attribute.codes, len(levels)).astype(np.min_scalar_type(2 * len(levels) + 1))[
        order
    ]  # one byte per row fits the cache
    weights = None if weight is None else np.asarray(weight, dtype=np.float64)[order]
    upper, lower = s[order][:-1], s[order][1:]
    middle = (upper - lower) / 2 + lower
    middle = np.where(middle <= lower, upper, middle)  # two neighbouring floats have nothing between them
    thresholds = np.concatenate([[np.nextafter(max(s.max(), 1.0), np.inf)], middle, [min(s.min(), 0.0)]])  # below each row
    ends = np.concatenate([[True], upper - lower > rounding * upper, [True]])  # whether the scores around it differ by more than rounding
    values = {}
    for name in measures:
        gap = name if is_performance(name) else canonical_name(name, also=AT_THRESHOLD)
        if is_affine_performance(name):
            value = _cumulative(performance_functional(name, n), cell, weights)
        elif is_performance(name) or measure_of(gap).is_quotient:  # the sums of all cells at every threshold
            by_label = np.broadcast_to(np.eye(2)[:, None], (2, *n.shape))  # performance needs no groups
            indicators = by_label if is_performance(name) else np.eye(n.size).reshape(-1, *n.shape)
            above = np.stack([_cumulative(Affine(np.zeros(()), w), cell, weights) for w in indicators], axis=-1)
            cells = Cells(levels, n, above.reshape(len(above), -1, 2))
            value = cells.performance(name) if is_performance(name) else cells.worst_gap(gap)
        else:
            by_group = [_cumulative(gap_functional(gap, n, group), cell, weights) for group in range(1, len(levels))]
            value = by_group[0] if len(by_group) == 1 else largest_gap(np.stack(by_group, axis=-1))
        values[name] = value if ends.all() else value[ends]
    return Sweep(thresholds if ends.all() else thresholds[ends], values)


def _cumulative(functional: Affine, cell: npt.NDArray[np.integer], weights: FloatArray | None) -> FloatArray:
    """offset + the cumulative sum of the weight w of each row's cell (n + 1,), times the sample weights."""
    rows = functional.w.ravel()[cell]
    out = np.zeros(len(cell) + 1)
    np.cumsum(rows if weights is None else rows * weights, out=out[1:])
    out += functional.offset
    return out


UPPER_BOUND = "upper bound (group-aware, by a linear program)"
SAME_SHARE = 1e-12  # rounding error of sums of shares
BOUNDS_AT_ONCE = 1_000_000  # elements in an array of bounds and corners, so that memory does not grow with the number of bounds


def upper_bound(
    scores: npt.ArrayLike,
    y: npt.ArrayLike,
    codes: npt.ArrayLike,
    levels: tuple[str, ...],
    measure: str,
    performance: str,
    bounds: npt.ArrayLike,
    weight: FloatArray | None = None,
) -> FloatArray | None:
    """The highest performance of a group-aware rule at each bound on |gap|, for all groups against the reference at once (m,).

    None if there is no such bound: a quotient such as a gap in PPV, or F1, is not linear in the rates. NaN if the rows lack a cell that all
    gaps or the performance need. Groups that lack a cell have no gap, so the bound does not constrain them, nor rows without a group.

    - `scores`, `y`, `codes`: of each row (n,).
    - `levels`: the groups, the reference first.
    - `measure`: a gap that is a sum of rates.
    - `bounds`: largest |gap| allowed, one or several.
    - `weight`: sample weights.

    >>> float(upper_bound([0.9, 0.1, 0.6, 0.4], [1, 0, 0, 1], [0, 0, 1, 1], ("M", "F"), "eod", "balanced_accuracy", [0.0])[0])
    0.75
    """
    if not is_affine_performance(performance) or measure_of(measure).is_quotient:
        return None
    allowed = np.atleast_1d(np.asarray(bounds, dtype=np.float64))
    if np.isnan(allowed).any() or (allowed < 0).any():
        raise BadInput(f"a bound on |gap| must be at least 0; got {allowed.tolist()}")
    score, label, code = np.asarray(scores, dtype=np.float64), np.asarray(y, dtype=np.int64), np.asarray(codes, dtype=np.int64)
    mass = np.ones(len(score)) if weight is None else weight
    n = Cells.of(np.zeros(()), label, Attribute("", levels, code), mass).n
    merit = performance_functional(performance, n)
    hulls: list[tuple[FloatArray, FloatArray] | None] = []
    unconstrained = float(merit.offset)  # the contribution of groups and rows that no bound constrains
    for group in range(-1, len(levels)):
        rows = code == group
        if not rows.any():
            hulls.append(None)
            continue
        order = np.flatnonzero(rows)[np.argsort(-score[rows], kind="stable")]
        ends = np.flatnonzero(np.append(np.diff(score[order]) != 0, True))
        by_label = [np.cumsum(mass[order] * (label[order] == k))[ends] for k in (0, 1)]
        sums = np.concatenate([np.zeros((1, 2)), np.stack(by_label, axis=1)])  # weight decided positive at each threshold, by label
        contributions = sums @ merit.w[group]
        # The weight in v of a positive decision, by its label. The rates of the reference are subtracted in a gap.
        weights = np.full(2, np.nan) if group < 0 else gap_functional(measure, n, group or 1).w[group] * (1 if group else -1)
        if np.isnan(weights).any():
            unconstrained += float(contributions.max())
            hulls.append(None)
        else:
            hulls.append(_hull(sums @ weights, contributions))
    reference, others = hulls[1], [hull for hull in hulls[2:] if hull is not None]
    if np.isnan(merit.w).any() or reference is None or not others:
        return np.full(len(allowed), np.nan)
    # The joint contribution of the groups is concave in the reference's v, so it is largest at a corner of some group.
    own, corners, best = reference[0], np.concatenate([places for places, _ in others]), []
    for block in np.array_split(allowed, 1 + len(allowed) * (len(own) + 2 * len(corners)) // BOUNDS_AT_ONCE):
        b = block[:, None]
        v = np.clip(np.concatenate([np.broadcast_to(own, (len(block), len(own))), corners - b, corners + b], axis=1), own[0], own[-1])
        total = np.interp(v, *reference)
        for places, top in others:  # a concave function is largest at its peak, or as near to it as allowed
            at = np.clip(places[top.argmax()], v - b, v + b)
            inside = (at >= places[0] - SAME_SHARE) & (at <= places[-1] + SAME_SHARE)
            total = total + np.where(inside, np.interp(at, places, top), -np.inf)
        best.append(total.max(axis=1))
    return unconstrained + np.concatenate(best)


def _hull(v: FloatArray, contributions: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The largest contribution of a group to the performance at each v: the corners, ascending, of the smallest concave function above."""
    order = np.lexsort((contributions, v))
    x, top = v[order], contributions[order]
    last = np.append(np.diff(x) > SAME_SHARE, True)  # the highest of the points at one v
    starts = np.flatnonzero(np.append(True, last[:-1]))
    x, top = x[last], np.maximum.reduceat(top, starts)
    while len(x) > 2:
        # A point at or below the line between its neighbours is no corner, so all such points may go at once.
        left, right = np.diff(top)[:-1] * np.diff(x)[1:], np.diff(top)[1:] * np.diff(x)[:-1]
        keep = np.concatenate([[True], left > right, [True]])
        if keep.all():
            break
        x, top = x[keep], top[keep]
    return x, top
