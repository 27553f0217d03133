"""The cell table: for each group and label, the number of rows and the sum of their decisions f. Everything additive starts here.

f is in [0, 1]: a soft score, a hard decision, or the probability of a randomised one. Tables of shards, batches or ranks can be added; a
rate is a quotient taken last.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from equipoise.data import Attribute
from equipoise.data import FloatArray as FloatArray
from equipoise.data import IntArray as IntArray

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

    def rate(self, label: int | None) -> FloatArray:
        """The share of positive decisions given a label (None: any label), per group: (..., groups); NaN for an empty cell."""
        n, s = (table[..., :-1, :].sum(-1) if label is None else table[..., :-1, label] for table in (self.n, self.s))
        return ratio(s, n)


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
    counts = np.bincount(flat, np.broadcast_to(weights, shape).ravel(), replicates * size)
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
