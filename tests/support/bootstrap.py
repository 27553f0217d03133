"""Bootstrap samples of patients as cell tables: the oracle of intervals."""

import numpy as np

from equipoise.data import FloatArray, IntArray
from equipoise.measures import Cells, cell_index, resample_counts, sums_by_unit


def bootstrap_cells(
    f: FloatArray, y: IntArray, codes: IntArray, levels: tuple[str, ...], units: IntArray, *, draws: int = 1000, seed: int = 0
) -> Cells:
    """The cell tables (draws, groups + 1, 2) of bootstrap samples, from which the rates and gaps of each sample follow."""
    size = 2 * (len(levels) + 1)
    cell = cell_index(y, codes, len(levels))
    table = np.concatenate([sums_by_unit(units, cell, values, size) for values in (1.0, f)], axis=1)
    drawn = np.concatenate([block @ table for block in resample_counts(len(table), draws, seed)])
    grid = (draws, len(levels) + 1, 2)
    return Cells(levels, drawn[:, :size].reshape(grid), drawn[:, size:].reshape(grid))
