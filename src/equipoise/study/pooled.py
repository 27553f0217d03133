"""Pooled folds: every patient is decided on once per cross-validation, by a network trained without them; all test folds count as one set.

Each row of a study by folds stores its decisions: the cell and the patient of every test row, the patient by a number that only this study
has. Where the cross-validation is repeated, an estimate is the mean over the repeats, and its interval resamples the same patients in all
of them.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from equipoise.data import FOLDS, Scores
from equipoise.measures import (
    Cells,
    FloatArray,
    IntArray,
    by_unit,
    cell_index,
    gap_values,
    interval,
    largest,
    largest_gap_p_value,
    multiplicities,
    performance_values,
    tabulate_codes,
)
from equipoise.study.rows import POOLED
from equipoise.study.summary import ORIGINAL, combined_p

Fold = tuple[IntArray, FloatArray, IntArray]  # cells, decisions and patients of all test rows of one cross-validation


def to_row(scores: Scores, decisions: FloatArray, salt: str) -> dict[str, Any]:
    """What a row of a study by folds stores of each test row."""
    attribute = scores.attribute
    names = scores.ids if scores.patients is None else scores.patients
    patients = [int(hashlib.sha256(f"{salt}:{name}".encode()).hexdigest()[:15], 16) for name in names]
    values = cell_index(scores.y, attribute.codes, len(attribute.levels)).tolist(), decisions.tolist(), patients
    return dict(zip(POOLED, values, strict=True))


def pooled(rows: pd.DataFrame, *, draws: int = 1000, seed: int = 0, level: float = 0.95) -> pd.DataFrame:
    """One line per (data, measure, method) from the rows of a study by folds, over the cross-validations that are complete.

    Columns: gap, performance, the signed change of the gap from the original's (`gap_change`), `performance_lost`, each with its interval
    (_low, _high) by resampling patients; the mean |gap| of a cross-validation and its p-value (see `combined_p`); repeats, patients, rows.
    """
    lines = []
    for (data, measure), here in rows.groupby(["data", "measure"], sort=False):
        complete = {method: repeats for method, some in here.groupby("method", sort=False) if (repeats := _repeats(some))}
        original = complete.get(ORIGINAL)
        performance = str(here["performance_measure"].iloc[0])
        for method, repeats in complete.items():
            paired = original if original is not None and method != ORIGINAL and original.keys() == repeats.keys() else None
            numbers = _line(repeats, paired, str(measure), performance, draws, seed, level)
            lines.append({"data": data, "measure": measure, "method": method, **numbers})
    return pd.DataFrame(lines)


def _repeats(rows: pd.DataFrame) -> dict[int, Fold]:
    """The cross-validations of one method that have all folds."""
    found: dict[int, Fold] = {}
    for repeat, folds in rows.groupby(rows["seed"] // FOLDS):
        if set(folds["seed"] % FOLDS) == set(range(FOLDS)) and folds["test_cell"].notna().all():
            cells, decisions, patients = (np.concatenate(folds[name].to_list()) for name in POOLED)
            found[int(repeat)] = cells.astype(np.int64), decisions.astype(np.float64), patients.astype(np.int64)
    return found


def _line(
    repeats: Mapping[int, Fold], original: Mapping[int, Fold] | None, measure: str, performance: str, draws: int, seed: int, level: float
) -> dict[str, float]:
    everyone = np.unique(np.concatenate([patients for _, _, patients in repeats.values()]))
    groups = max(int(cells.max()) for cells, _, _ in repeats.values()) // 2 + 1  # one may be patients without a group, who are left out
    levels = tuple(str(k) for k in range(groups))
    gap, performances = _resampled(list(repeats.values()), everyone, levels, measure, performance, draws, seed)
    values = {"gap": gap, "performance": performances}
    if original is not None:
        before = _resampled(list(original.values()), everyone, levels, measure, performance, draws, seed)
        values |= {"gap_change": gap - before[0], "performance_lost": before[1] - performances}
    line = {f"{name}{end}": np.nan for name in ("gap_change", "performance_lost") for end in ("", "_low", "_high")}
    for name, drawn in values.items():
        low, high = interval(drawn[1:, None], drawn[:1], level)
        line |= {name: float(drawn[0]), f"{name}_low": float(low[0]), f"{name}_high": float(high[0])}
    sizes, ps = [], []
    for cells, decisions, patients in repeats.values():
        sizes.append(abs(float(largest(gap_values(measure, tabulate_codes(decisions, cells % 2, cells // 2, levels))))))
        ps.append(largest_gap_p_value(decisions, cells % 2, cells // 2, levels, patients.astype(object), measure, seed=seed))
    rows = int(np.mean([len(cells) for cells, _, _ in repeats.values()]))
    counts = {"repeats": len(repeats), "patients": len(everyone), "rows": rows}
    return line | {"mean_abs": float(np.mean(sizes)), "p_value": combined_p(ps), **counts}


def _resampled(
    repeats: Sequence[Fold], everyone: IntArray, levels: tuple[str, ...], measure: str, performance: str, draws: int, seed: int
) -> tuple[FloatArray, FloatArray]:
    """Gap and performance (1 + draws,), means over the repeats: first of all patients, then of the resampled ones."""
    width, grid = 2 * len(levels), (1 + draws, len(levels), 2)
    gaps, performances = np.zeros(1 + draws), np.zeros(1 + draws)
    counts = [np.ones((1, len(everyone))), *multiplicities(len(everyone), draws, seed)]
    missing = np.zeros((1 + draws, 1, 2))  # a cell table ends with the rows without a group, of which `fold_parts` leaves none
    for cells, decisions, patients in repeats:
        unit = np.append(np.searchsorted(everyone, patients), len(everyone) - 1)  # so that the table has a line for every patient
        cell = np.append(cells, 0)
        table = np.concatenate([by_unit(unit, cell, np.append(v, 0.0), width) for v in (np.ones(len(cells)), decisions)], axis=1)
        sums = np.concatenate([count @ table for count in counts])
        n, s = (np.concatenate([half.reshape(grid), missing], axis=1) for half in (sums[:, :width], sums[:, width:]))
        drawn = Cells(levels, n, s)
        gaps += largest(gap_values(measure, drawn)) / len(repeats)
        performances += performance_values(performance, drawn) / len(repeats)
    return gaps, performances
