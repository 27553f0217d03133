"""Bootstrap draws as matrices of multiplicities: how often each patient was drawn. Patients, not rows, are resampled."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from equipoise.data import generator, patient_codes
from equipoise.measures.cells import Cells, FloatArray, IntArray, cell_index

BLOCK = 4_000_000  # elements of one block of multiplicities: memory is O(block), whatever the number of draws


def units_of(patients: npt.NDArray[np.object_] | None, rows: int) -> IntArray:
    """What is resampled, as codes 0 .. P-1: patients where there are ids, rows otherwise."""
    if patients is None:
        return np.arange(rows)
    return patient_codes(patients)


def multiplicities(units: int, draws: int, seed: int, name: str = "bootstrap") -> Iterator[FloatArray]:
    """Blocks (b, units) of how often each unit is drawn; every row sums to `units`. The blocks do not change the draws; the name does."""
    rng = generator(seed, name)
    block = max(1, min(draws, BLOCK // max(units, 1)))
    done = 0
    while done < draws:
        b = min(block, draws - done)
        out = np.empty((b, units))
        for row in out:  # a draw at a time keeps the stream of random numbers independent of the block
            row[:] = np.bincount(rng.integers(0, units, units, dtype=np.uint32), minlength=units)
        yield out
        done += b


def by_unit(units: IntArray, columns: IntArray, values: npt.ArrayLike, width: int) -> FloatArray:
    """Row values summed into a matrix (P, width): row i adds values[i] at (units[i], columns[i])."""
    count = int(units.max()) + 1
    weights = np.broadcast_to(np.asarray(values, dtype=np.float64), units.shape)
    return np.bincount(units * width + columns, weights, count * width).reshape(count, width).astype(np.float64, copy=False)


def bootstrap_cells(
    f: FloatArray,
    y: IntArray,
    codes: IntArray,
    levels: tuple[str, ...],
    units: IntArray,
    *,
    weight: FloatArray | None = None,
    draws: int = 1000,
    seed: int = 0,
) -> Cells:
    """The cell tables (draws, groups + 1, 2) of bootstrap samples; gaps and rates of each draw follow from them."""
    size = 2 * (len(levels) + 1)
    cell = cell_index(y, codes, len(levels))
    w = np.ones(len(f)) if weight is None else weight
    table = np.concatenate([by_unit(units, cell, w, size), by_unit(units, cell, w * f, size)], axis=1)
    drawn = np.concatenate([block @ table for block in multiplicities(len(table), draws, seed)])
    grid = (draws, len(levels) + 1, 2)
    return Cells(levels, drawn[:, :size].reshape(grid), drawn[:, size:].reshape(grid))


def interval(draws: FloatArray, value: npt.ArrayLike, level: float = 0.95) -> tuple[FloatArray, FloatArray]:
    """The percentile interval over the first axis, always around the value itself; NaN where the value is.

    Draws in which a cell came out empty are passed over.
    """
    point = np.asarray(value, dtype=np.float64)
    tail = (1 - level) / 2
    low, high = np.full(point.shape, np.nan), np.full(point.shape, np.nan)
    usable = ~np.isnan(point) & ~np.isnan(draws).all(0)
    if usable.any():
        low[usable], high[usable] = np.nanquantile(draws[:, usable], [tail, 1 - tail], axis=0)
    return np.fmin(low, point), np.fmax(high, point)
