"""The cell table: for each group and label, the number of rows and the sum of their decisions f. Everything additive starts here.

f is in [0, 1]: a soft score, a hard decision, or the probability of a randomised one. Tables of shards, batches or ranks can be added; a
rate is a quotient taken last, linear-fractional in the sums: (a0 + sum a_i f_i) / (b0 + sum b_i f_i), see `measure_table.RATIOS`.

The one idea: a gap, and a performance measure, is offset + sum_i w_i f_i with w fixed by the cell counts of the whole split, if no b_i
counts. With hard f it is the measure, with soft f its differentiable proxy (equations 3 and 4 of the paper): the same w. The gradient of
the proxy with respect to the scores is w; a mini-batch estimate is (N / M) * sum over the batch of w_i f_i, unbiased and never NaN.
Predictive values have a denominator that depends on the decisions; see `sweeps.linearise`.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from equipoise.data import Attribute, FloatArray, IntArray
from equipoise.errors import EmptyCell
from equipoise.measures.measure_table import RATIOS, measure_of, missed_case_worth

LOOKUP_PER_KEY = 16  # a lookup table may have this many entries per key


@dataclass(frozen=True, eq=False)
class Cells:
    """Counts and sums per cell. The last group holds the rows whose group is missing: they count for performance only.

    >>> sex = Attribute.of(["F", "F", "M", "M"], reference="M")
    >>> table = Cells.of([1, 0, 1, 1], [1, 1, 1, 0], sex)
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

    @classmethod
    def of(cls, f: npt.ArrayLike, y: npt.ArrayLike, attribute: Attribute, weight: npt.ArrayLike | None = None) -> "Cells":
        """The cell table of decisions f (..., n) with labels y and groups; `weight` counts a row several times or partly."""
        levels = attribute.levels
        cell, size = cell_index(y, attribute.codes, len(levels)), 2 * (len(levels) + 1)
        mass = np.ones(len(cell)) if weight is None else np.asarray(weight, dtype=np.float64)
        values = np.asarray(f, dtype=np.float64) * mass
        grid = (*values.shape[:-1], len(levels) + 1, 2)
        sums = np.array([np.bincount(cell, row, size) for row in values.reshape(int(np.prod(grid[:-2])), -1)])
        return cls(levels, np.broadcast_to(np.bincount(cell, mass, size).reshape(grid[-2:]), grid), sums.reshape(grid))

    def rate(self, name: str) -> FloatArray:
        """A rate of each group, by its name in `measure_table.RATIOS`: (..., groups); NaN if its denominator is empty."""
        return _rate(name, self.n[..., :-1, :], self.s[..., :-1, :])

    def gaps(self, gap: str) -> FloatArray:
        """The gap of every group except the reference, (..., groups - 1); NaN if a denominator is empty."""
        signed = []
        for name, sign in measure_of(gap).coefficients.items():
            rate = self.rate(name)
            signed.append(sign * rate[..., 1:] - sign * rate[..., :1])
        total: FloatArray = np.sum(signed, axis=0)
        return total

    def worst_gap(self, gap: str) -> FloatArray:
        """The signed gap of the group that is furthest from the reference, (...): what a method reduces.

        The gap in PPV is NaN if any group has fewer than a handful of positive decisions: otherwise one true positive in a group would
        close its gap. A group with fewer rows than that must have all of them decided positive. NPV is analogous, with negative
        decisions.
        """
        worst = largest_gap(self.gaps(gap))
        decided = measure_of(gap).decided
        return worst if decided is None else np.where(self.enough_decided(decided).all(-1), worst, np.nan)

    def enough_decided(self, label: int) -> npt.NDArray[np.bool_]:
        """Whether enough rows of a group are decided positive (label 1; 0: negative) for its PPV (NPV) to count, (..., groups)."""
        n, s = self.n[..., :-1, :], self.s[..., :-1, :]
        rows = n.sum(-1)
        enough: npt.NDArray[np.bool_] = ((s if label else n - s).sum(-1) >= np.minimum(rows, MIN_DECIDED) - 1e-9) & (rows > 0)
        return enough

    def performance(self, name: str) -> FloatArray:
        """Accuracy, balanced accuracy, F1 or net benefit of the decisions (...)."""
        n, s = self.n.sum(-2), self.s.sum(-2)
        return np.asarray(sum([sign * _rate(rate, n, s) for rate, sign in performance_rates(name).items()]))

    def require(self, gap: str, where: str = "the data") -> None:
        """Raises `EmptyCell` with one problem for every group that lacks rows that a gap needs."""
        n = self.n[..., :-1, :]
        problems = []
        for code, level in enumerate(self.levels):
            rows = int(n[..., code, :].sum())
            if rows == 0:
                problems.append(f"{gap} needs rows of every group; {level!r} has none in {where}")
            for label in measure_of(gap).labels:
                if rows and not (n[..., code, label] > 0).all():
                    lacking = "positives" if label else "negatives"
                    problems.append(
                        f"{gap} needs {lacking} in every group; {level!r} has none of {rows:,} rows in {where}. "
                        "Use more data, merge groups (data.merge), or a measure without a label condition such as spd"
                    )
        if problems:
            raise EmptyCell(*problems)


def normalise_weights(weight: npt.ArrayLike | None) -> FloatArray | None:
    """Sample weights with a mean of 1, so that their sums count rows; None without weights.

    >>> normalise_weights([1, 3]).tolist()
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


def distinct_keys(keys: IntArray, size: int) -> tuple[IntArray, IntArray]:
    """The distinct keys in 0 .. size-1, sorted, and the position of each key among them.

    Like `np.unique(keys, return_inverse=True)`, but with a lookup table unless it is too large: 10 million keys take 1 s instead of 10.

    >>> [array.tolist() for array in distinct_keys(np.array([5, 2, 5]), 6)]
    [[2, 5], [1, 0, 1]]
    """
    if size > LOOKUP_PER_KEY * len(keys):
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
    return ratio(np.square(total), squares)


PERFORMANCE_RATES = {"balanced_accuracy": {"tpr": 0.5, "tnr": 0.5}, "accuracy": {"accuracy": 1.0}, "f1": {"f1": 1.0}}
MIN_DECIDED = 5  # rows decided positive (negative) in a group; with fewer, methods treat its PPV (NPV) as unknown, as the audit does


def performance_rates(name: str) -> dict[str, float]:
    """The rates over all rows whose signed sum is a measure of performance."""
    return PERFORMANCE_RATES.get(name, {name: 1.0})


def estimated_rates(name: str, n: FloatArray) -> dict[str, float]:
    """The rates, less a constant, whose signed sum is an affine measure of performance with these counts of labels (2,)."""
    worth = missed_case_worth(name)
    if worth is not None:
        return {"tpr": 1.0, "fpr": -float(n[0]) / (worth * max(float(n[1]), 1.0))}
    return {"tpr": 0.5, "fpr": -0.5} if name == "balanced_accuracy" else {name: 1.0}


def _rate(name: str, n: FloatArray, s: FloatArray) -> FloatArray:
    """A rate (...) from counts and sums of decisions by label (..., 2); NaN if its denominator is empty."""
    a, b = np.array(RATIOS[name][:2])
    return ratio((a[:2] * n + a[2:] * s).sum(-1), (b[:2] * n + b[2:] * s).sum(-1))


def largest_gap(gaps: FloatArray) -> FloatArray:
    """The signed gap with the largest absolute value over the last axis, ignoring NaN."""
    size = np.where(np.isnan(gaps), -1.0, np.abs(gaps))
    picked: FloatArray = np.take_along_axis(gaps, size.argmax(-1)[..., None], axis=-1)[..., 0]
    return picked
