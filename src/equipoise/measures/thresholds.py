"""All thresholds at once: gaps and performance as cumulative sums of w in score order. Exact, O(n log n), no grid.

The numerator and denominator of a quotient, such as the gap in PPV, are two sums each. It is NaN at thresholds at which no row, or fewer
than a handful, of some group is decided so.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from equipoise.data import Scores
from equipoise.errors import pick
from equipoise.measures.cells import Cells, FloatArray, IntArray, cell_index, normalised, tabulate, tabulate_codes
from equipoise.measures.functional import AFFINE_PERFORMANCE, gap_functional, largest_gap, performance_functional, worst_gap
from equipoise.measures.gaps import AT_THRESHOLD, GAPS, Gap, canonical_name, is_quotient
from equipoise.measures.performance import f1

# Relative differences up to which the order of two scores of a network depends on the processor and the batch, such as after pruning.
SINGLE_PRECISION = 16 * float(np.finfo(np.float32).eps)


@dataclass(frozen=True, eq=False)
class Sweep:
    """Values at each threshold, from the highest (no row is decided positive) to the lowest (all are).

    The threshold between two neighbouring scores is their midpoint, so that rounding cannot flip a decision. Without leading axes
    there is one entry per distinct decision; with them, entries inside a run of equal scores are NaN.
    """

    thresholds: FloatArray  # (..., m)
    values: dict[str, FloatArray]  # by measure, (..., m); with more than two groups, the gap with the largest absolute value

    def best(self, performance: str = "balanced_accuracy", *, gap: str | None = None, max_gap: float | None = None) -> "Choice":
        """The threshold with the best performance; with `max_gap`, the best among those whose |gap| does not exceed it.

        If no threshold satisfies `max_gap`, the one with the smallest |gap|, and `met` is False.
        """
        score = self.values[pick("performance measure in this sweep", performance, self.values)]
        size = np.zeros_like(score) if gap is None else np.abs(self.values[pick("measure in this sweep", gap, self.values)])
        defined = ~np.isnan(score) & ~np.isnan(size)
        allowed = defined if max_gap is None or gap is None else defined & (size <= max_gap)
        met = np.asarray(allowed.any(-1))
        # Ties in performance go to the smaller gap: sums of counts, so the last bits are noise.
        best = np.where(allowed, score, -np.inf).max(-1, keepdims=True)
        tied = np.where(allowed & (score >= best - 1e-12), -size, -np.inf)
        nearest = np.where(defined, -size, -np.inf)
        index = np.where(met, tied.argmax(-1), nearest.argmax(-1))[..., None]

        def pick_values(values: FloatArray) -> FloatArray:
            picked: FloatArray = np.take_along_axis(values, index, axis=-1)[..., 0]
            return picked

        return Choice(pick_values(self.thresholds), {name: pick_values(values) for name, values in self.values.items()}, met)


@dataclass(frozen=True, eq=False)
class Choice:
    """One threshold per replicate, the values there, and whether `max_gap` could be met."""

    threshold: FloatArray  # (...)
    values: dict[str, FloatArray]
    met: npt.NDArray[np.bool_]


def sweep(
    score: npt.ArrayLike,
    y: npt.ArrayLike,
    codes: npt.ArrayLike,
    levels: tuple[str, ...],
    measures: Sequence[str] = ("spd", "eod", "balanced_accuracy"),
    own: dict[str, Gap] | None = None,
    weight: FloatArray | None = None,
    rounding: float = 0.0,
) -> Sweep:
    """The measures at every distinct threshold of scores (..., n); y, codes and weights broadcast. `own` adds signed sums of rates.

    Scores whose relative difference is at most `rounding` count as equal.
    """
    s = np.asarray(score, dtype=np.float64)
    gaps: dict[str, Gap] = {**{name: name for name in GAPS}, **(own or {})}
    for name in measures:
        if name not in gaps and name not in AT_THRESHOLD:
            gaps[name] = canonical_name(name, also=[*(own or ()), *AT_THRESHOLD])
    order = np.argsort(-s, axis=-1)  # half the time of a sweep
    ranked = np.take_along_axis(s, order, -1)
    cell = cell_index(y, codes, len(levels))
    n = _counts(cell, len(levels)) if weight is None else tabulate_codes(np.zeros(()), y, codes, levels, weight).n
    narrow = cell.astype(np.min_scalar_type(2 * len(levels) + 1))  # one byte per row fits the cache during reordering
    cell = np.take_along_axis(np.broadcast_to(narrow, s.shape), order, -1)
    weights = None if weight is None else np.take_along_axis(np.broadcast_to(weight, s.shape), order, -1)
    thresholds, ends = _thresholds(ranked, rounding)
    values = {}
    for name in measures:
        if name in AFFINE_PERFORMANCE:
            functional = performance_functional(name, n)
            values[name] = _cumulative(functional.w, functional.offset, cell, weights)
        elif name == "f1":
            positive = np.broadcast_to(np.arange(2) == 1, (*n.shape[-2:],)).astype(float)
            tp, fp = (_cumulative(w, np.zeros(()), cell, weights) for w in (positive, 1 - positive))
            values[name] = f1(tp, fp, n[..., 1].sum(-1)[..., None])
        elif is_quotient(gaps[name]):
            indicators = np.eye(2 * (len(levels) + 1))
            above = np.stack([_cumulative(w.reshape(n.shape[-2:]), np.zeros(()), cell, weights) for w in indicators], axis=-1)
            values[name] = worst_gap(gaps[name], Cells(levels, n[..., None, :, :], above.reshape(*above.shape[:-1], *n.shape[-2:])))
        else:
            by_group = []
            for k in range(1, len(levels)):
                functional = gap_functional(gaps[name], n, k)
                by_group.append(_cumulative(functional.w, functional.offset, cell, weights))
            values[name] = by_group[0] if len(by_group) == 1 else largest_gap(np.stack(by_group, axis=-1))
    if s.ndim == 1:
        return Sweep(thresholds, values) if ends.all() else Sweep(thresholds[ends], {k: v[ends] for k, v in values.items()})
    return Sweep(thresholds, {k: np.where(ends, v, np.nan) for k, v in values.items()})


def sweep_scores(scores: Scores, measures: Sequence[str]) -> Sweep:
    """The sweep of scores with their groups and weights."""
    attribute = scores.attribute
    return sweep(scores.score, scores.y, attribute.codes, attribute.levels, measures, weight=normalised(scores.weight))


def _counts(cell: IntArray, groups: int) -> FloatArray:
    """The number of rows in each cell (..., groups + 1, 2)."""
    size = 2 * (groups + 1)
    lead = cell.shape[:-1]
    replicates = int(np.prod(lead))
    flat = cell if not lead else cell + (np.arange(replicates) * size).reshape(*lead, 1)
    return np.bincount(flat.ravel(), minlength=replicates * size).reshape(*lead, groups + 1, 2).astype(np.float64)


def _thresholds(ranked: FloatArray, rounding: float) -> tuple[FloatArray, npt.NDArray[np.bool_]]:
    """A threshold below each row in descending order (..., n + 1), and whether the scores around it differ by more than rounding."""
    upper, lower = ranked[..., :-1], ranked[..., 1:]
    thresholds = np.empty((*ranked.shape[:-1], ranked.shape[-1] + 1))
    thresholds[..., 0] = np.nextafter(np.maximum(ranked[..., 0], 1.0), np.inf)
    thresholds[..., -1] = np.minimum(ranked[..., -1], 0.0)
    middle = thresholds[..., 1:-1]
    np.subtract(upper, lower, out=middle)
    ends = np.ones(thresholds.shape, dtype=bool)
    np.greater(middle, rounding * upper, out=ends[..., 1:-1])
    middle /= 2
    middle += lower
    np.copyto(middle, upper, where=middle <= lower)  # two neighbouring floats have nothing between them
    return thresholds, ends


def _cumulative(w: FloatArray, offset: FloatArray, cell: npt.NDArray[np.integer], weights: FloatArray | None) -> FloatArray:
    """offset + the cumulative sum of the weight w of each row's cell (..., n + 1), times the sample weights."""
    flat = w.reshape(*w.shape[:-2], -1)
    rows = flat[cell] if flat.ndim == 1 else np.take_along_axis(np.broadcast_to(flat, (*cell.shape[:-1], flat.shape[-1])), cell, -1)
    if weights is not None:
        rows = rows * weights
    out = np.empty((*cell.shape[:-1], cell.shape[-1] + 1))
    out[..., 0] = 0.0
    np.cumsum(rows, axis=-1, out=out[..., 1:])
    out += np.asarray(offset)[..., None]
    return out


def at_threshold(score: npt.ArrayLike, threshold: npt.ArrayLike) -> FloatArray:
    """Hard decisions, 1.0 where score >= threshold (..., n)."""
    return (np.asarray(score, dtype=np.float64) >= np.asarray(threshold, dtype=np.float64)[..., None]).astype(np.float64)


def cells_at(scores: Scores, threshold: float) -> Cells:
    """The cell table of the decisions at a threshold, with the weights of the scores."""
    return tabulate(at_threshold(scores.score, threshold), scores.y, scores.attribute, normalised(scores.weight))
