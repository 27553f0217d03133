"""The cell table: for each group and label, the number of rows and the sum of their decisions f. Everything additive starts here.

f is in [0, 1]: a soft score, a hard decision, or the probability of a randomised one. Tables of shards, batches or ranks can be added; a
rate is a quotient taken last, linear-fractional in the sums: (a0 + sum a_i f_i) / (b0 + sum b_i f_i), see `gaps.RATIOS`.

The one idea: a gap, and a performance measure, is offset + sum_i w_i f_i with w fixed by the cell counts of the whole split, if no b_i
counts. With hard f it is the measure, with soft f its differentiable proxy (equations 3 and 4 of the paper): the same w. The gradient of
the proxy with respect to the scores is w; a mini-batch estimate is (N / M) * sum over the batch of w_i f_i, unbiased and never NaN.
Predictive values have a denominator that depends on the decisions. `linearised` is the first-order approximation at the current decisions,
with the same value and the same slopes; for a signed sum of rates it is the gap itself.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from equipoise.data import Attribute
from equipoise.data import FloatArray as FloatArray
from equipoise.data import IntArray as IntArray
from equipoise.errors import BadInput, EmptyCell, UnknownName
from equipoise.measures.gaps import QUOTIENTS, RATIOS, Gap, coefficients, is_quotient, labels_needed

SPARSE = 16  # a lookup table may have this many entries per key


@dataclass(frozen=True, eq=False)
class Cells:
    """Counts and sums per cell. The last group holds the rows whose group is missing: they count for performance only.

    >>> sex = Attribute.of(["F", "F", "M", "M"], reference="M")
    >>> table = tabulate([1, 0, 1, 1], [1, 1, 1, 0], sex)
    >>> table.n.tolist(), table.s.tolist()
    ([[1.0, 1.0], [0.0, 2.0], [0.0, 0.0]], [[1.0, 1.0], [0.0, 1.0], [0.0, 0.0]])
    """

    levels: tuple[str, ...]
    n: FloatArray  # (..., groups + 1, 2): rows, or their weight
    s: FloatArray  # (..., groups + 1, 2): sum of f over them

    def __add__(self, other: "Cells") -> "Cells":
        if self.levels != other.levels:
            raise ValueError(f"cell tables of different groups cannot be added: {self.levels} and {other.levels}")
        return Cells(self.levels, self.n + other.n, self.s + other.s)

    def rate(self, name: str) -> FloatArray:
        """A rate of each group, by its name in `gaps.RATIOS`: (..., groups); NaN if its denominator is empty."""
        top, bottom = _sides(name, self.n[..., :-1, :], self.s[..., :-1, :])
        return ratio(top, bottom)


def tabulate(f: npt.ArrayLike, y: npt.ArrayLike, attribute: Attribute, weight: npt.ArrayLike | None = None) -> Cells:
    """The cell table of decisions f (..., n) with labels y and groups; `weight` counts a row several times or partly."""
    return tabulate_codes(f, y, attribute.codes, attribute.levels, weight)


def tabulate_codes(
    f: npt.ArrayLike, y: npt.ArrayLike, codes: npt.ArrayLike, levels: tuple[str, ...], weight: npt.ArrayLike | None = None
) -> Cells:
    """The cell table for group codes that may differ between replicates: all arguments broadcast to (..., n)."""
    cell = cell_index(y, codes, len(levels))
    values = np.asarray(f, dtype=np.float64)
    weights = np.ones(()) if weight is None else np.asarray(weight, dtype=np.float64)
    shape = np.broadcast_shapes(cell.shape, values.shape, weights.shape)
    lead, size = shape[:-1], 2 * (len(levels) + 1)
    replicates = int(np.prod(lead))
    offset = (np.arange(replicates) * size).reshape(*lead, 1)
    flat = (np.broadcast_to(cell, shape) + offset).ravel()
    counts = np.bincount(flat, None if weight is None else np.broadcast_to(weights, shape).ravel(), replicates * size).astype(np.float64)
    sums = np.bincount(flat, np.broadcast_to(values * weights, shape).ravel(), replicates * size)
    grid = (*lead, len(levels) + 1, 2)
    return Cells(levels, counts.reshape(grid), sums.reshape(grid))


def normalised(weight: npt.ArrayLike | None) -> FloatArray | None:
    """Sample weights with a mean of 1, so that their sums count rows; None without weights.

    >>> normalised([1, 3]).tolist()
    [0.5, 1.5]
    """
    if weight is None:
        return None
    values = np.asarray(weight, dtype=np.float64)
    scaled: FloatArray = values / values.mean()
    return scaled


def cell_index(y: npt.ArrayLike, codes: npt.ArrayLike, groups: int) -> IntArray:
    """The cell of each row, 2 * group + label; rows without a group (code -1) are in the last group."""
    code = np.asarray(codes, dtype=np.int64)
    return np.where(code < 0, groups, code) * 2 + np.asarray(y, dtype=np.int64)


def sums_at(place: npt.NDArray[np.integer], values: npt.ArrayLike, size: int) -> FloatArray:
    """The sum of the values at each place 0 .. size-1, in floating point.

    >>> sums_at(np.array([0, 2, 2]), [1, 2, 3], 4).tolist()
    [1.0, 0.0, 5.0, 0.0]
    """
    weights = np.asarray(values, dtype=np.float64)
    if weights.shape != place.shape:
        weights = np.broadcast_to(weights, place.shape)
    return np.bincount(place, weights, size).astype(np.float64, copy=False)


def grouped(keys: IntArray, size: int) -> tuple[IntArray, IntArray]:
    """The distinct keys in 0 .. size-1, sorted, and the position of each key among them.

    Like `np.unique(keys, return_inverse=True)`, but with a lookup table unless it is too large: 10 million keys take 1 s instead of 10.

    >>> [array.tolist() for array in grouped(np.array([5, 2, 5]), 6)]
    [[2, 5], [1, 0, 1]]
    """
    if size > SPARSE * len(keys):
        distinct, position = np.unique(keys, return_inverse=True)
        return np.asarray(distinct, dtype=np.int64), np.asarray(position, dtype=np.int64)
    present = np.zeros(size, bool)
    present[keys] = True
    distinct = np.flatnonzero(present)
    rank = np.empty(size, np.int32 if len(distinct) < 2**31 else np.int64)
    rank[distinct] = np.arange(len(distinct))
    return distinct, rank[keys].astype(np.int64)


def ratio(numerator: FloatArray, denominator: FloatArray) -> FloatArray:
    """The quotient; NaN, without a warning, where the denominator is not positive."""
    top, bottom = np.shape(numerator), np.shape(denominator)
    out = np.full(top if top == bottom else np.broadcast_shapes(top, bottom), np.nan)
    np.divide(numerator, denominator, out=out, where=np.asarray(denominator) > 0)
    return out


def kish(total: FloatArray, squares: FloatArray) -> FloatArray:
    """The effective number of units, from the sum of their weights and the sum of the squared weights (Kish 1965).

    It is the number of units if their weights are equal.
    """
    return ratio(total**2, squares)


AFFINE_PERFORMANCE = ("balanced_accuracy", "accuracy")
PERFORMANCE_RATES = {"balanced_accuracy": {"tpr": 0.5, "tnr": 0.5}, "accuracy": {"accuracy": 1.0}, "f1": {"f1": 1.0}}
MIN_DECIDED = 5  # rows decided positive (negative) in a group; with fewer, methods treat its PPV (NPV) as unknown, as the audit does


def _sides(name: str, n: FloatArray, s: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The numerator and the denominator of a rate (...), from counts and sums of decisions by label (..., 2)."""
    top, bottom = ((np.array(side[:2]) * n + np.array(side[2:]) * s).sum(-1) for side in RATIOS[name][:2])
    return top, bottom


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
        """One weight per row (..., n)."""
        cell = cell_index(y, codes, self.w.shape[-2] - 1)
        flat = self.w.reshape(*self.w.shape[:-2], -1)
        rows: FloatArray = flat[..., cell] if cell.ndim == 1 else np.take_along_axis(flat, cell, axis=-1)
        return rows


def _slopes(rates: Mapping[str, float], n: FloatArray, s: FloatArray) -> tuple[FloatArray, FloatArray]:
    """A signed sum of rates to first order around sums of decisions s (..., 2): the offset (...) and the weights of labels (..., 2)."""
    offset, w = np.zeros(n.shape[:-1]), np.zeros(n.shape)
    for name, sign in rates.items():
        a, b = (np.array(side, dtype=np.float64) for side in RATIOS[name][:2])
        top, bottom = _sides(name, n, s)
        value = ratio(top, bottom)[..., None]
        offset += sign * np.nan_to_num(ratio((a[:2] * n + value * b[2:] * s).sum(-1), bottom))  # an empty rate has NaN weights
        w += np.where((a[2:] == 0) & (b[2:] == 0), 0.0, ratio(sign * (a[2:] - value * b[2:]), bottom[..., None]))
    return offset, w


def linearised(gap: Gap, cells: Cells, group: int) -> Affine:
    """The gap of a group (by its code) against the reference (code 0), to first order around the decisions in a cell table.

    It is exact for a signed sum of rates. d PPV / d f_i = (y_i - PPV) / (positive decisions of the group); NPV is analogous.
    """
    (offset, of_group), (of_reference, w0) = (_slopes(coefficients(gap), cells.n[..., k, :], cells.s[..., k, :]) for k in (group, 0))
    w = np.zeros_like(cells.n)
    w[..., group, :], w[..., 0, :] = of_group, -w0
    return Affine(offset - of_reference, w)


def gap_functional(gap: Gap, n: FloatArray, group: int) -> Affine:
    """The gap of a group (by its code) against the reference (code 0), from the cell counts n (..., groups + 1, 2)."""
    if is_quotient(gap):
        raise BadInput(f"{gap} is a quotient, so counts do not make it affine; use linearised, with the decisions")
    return linearised(gap, Cells((), n, np.zeros_like(n)), group)


def performance_functional(name: str, n: FloatArray) -> Affine:
    """Accuracy or balanced accuracy of all rows, of any group or none, from the cell counts."""
    if name not in AFFINE_PERFORMANCE:
        raise UnknownName("affine performance measure", name, AFFINE_PERFORMANCE)
    totals = n.sum(-2)  # (..., 2)
    offset, w = _slopes(PERFORMANCE_RATES[name], totals, np.zeros_like(totals))
    return Affine(offset, np.broadcast_to(w[..., None, :], n.shape))


def performance_values(name: str, cells: Cells) -> FloatArray:
    """Accuracy, balanced accuracy or F1 of the decisions in a cell table (...)."""
    n, s = cells.n.sum(-2), cells.s.sum(-2)
    return np.asarray(sum(sign * ratio(*_sides(rate, n, s)) for rate, sign in PERFORMANCE_RATES[name].items()))


def gap_values(gap: Gap, cells: Cells) -> FloatArray:
    """The gap of every group except the reference, (..., groups - 1); NaN if a denominator is empty."""
    signed = [sign * (rate := cells.rate(name))[..., 1:] - sign * rate[..., :1] for name, sign in coefficients(gap).items()]
    total: FloatArray = np.sum(signed, axis=0)
    return total


def largest_gap(gaps: FloatArray) -> FloatArray:
    """The signed gap with the largest absolute value over the last axis, ignoring NaN."""
    size = np.where(np.isnan(gaps), -1.0, np.abs(gaps))
    picked: FloatArray = np.take_along_axis(gaps, size.argmax(-1)[..., None], axis=-1)[..., 0]
    return picked


def worst_gap(gap: Gap, cells: Cells) -> FloatArray:
    """The signed gap of the group that is furthest from the reference, (...): what a method reduces.

    The gap in PPV is NaN if any group has fewer than a handful of positive decisions: otherwise one true positive in a group would close
    its gap. A group with fewer rows than that must have all of them decided positive. NPV is analogous, with negative decisions.
    """
    worst = largest_gap(gap_values(gap, cells))
    return np.where(enough_decided(QUOTIENTS[str(gap)], cells).all(-1), worst, np.nan) if is_quotient(gap) else worst


def enough_decided(label: int, cells: Cells) -> npt.NDArray[np.bool_]:
    """Whether enough rows of a group are decided positive (label 1) or negative (label 0) for its PPV or NPV to count, (..., groups)."""
    n, s = cells.n[..., :-1, :], cells.s[..., :-1, :]
    rows = n.sum(-1)
    enough: npt.NDArray[np.bool_] = ((s if label else n - s).sum(-1) >= np.minimum(rows, MIN_DECIDED) - 1e-9) & (rows > 0)
    return enough


def require_cells(gap: Gap, cells: Cells, where: str = "the data") -> None:
    """Raises `EmptyCell` with one problem for every group that lacks rows that a gap needs."""
    name = gap if isinstance(gap, str) else "this gap"
    n = cells.n[..., :-1, :]
    problems = []
    for code, level in enumerate(cells.levels):
        rows = int(n[..., code, :].sum())
        if rows == 0:
            problems.append(f"{name} needs rows of every group; {level!r} has none in {where}")
        for label in labels_needed(gap):
            if rows and not (n[..., code, label] > 0).all():
                lacking = "positives" if label else "negatives"
                problems.append(
                    f"{name} needs {lacking} in every group; {level!r} has none of {rows:,} rows in {where}. "
                    "Use more data, merge groups, or a measure without a label condition such as spd"
                )
    if problems:
        raise EmptyCell(*problems)
