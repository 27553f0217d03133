"""Folds that are pooled: every patient judged once, by a network that has not seen them, and all of them counted as one test part.

Each row of a study by folds keeps its decisions, so that they can be put together again: the cell and the patient of every test row, the
patient by a number that only this study knows. Where patients were dealt to folds several times, the figure is the mean over the deals,
and its interval comes from drawing the same patients for all of them.
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
    multiplicities,
    noise_floor,
    performance_values,
    tabulate_codes,
)
from equipoise.study.rows import POOLED

BASELINE = "standard"


def to_row(scores: Scores, decisions: FloatArray, salt: str) -> dict[str, Any]:
    """What a row of a study by folds keeps of each test row."""
    attribute = scores.attribute
    names = scores.ids if scores.patients is None else scores.patients
    patients = [int(hashlib.sha256(f"{salt}:{name}".encode()).hexdigest()[:15], 16) for name in names]
    values = cell_index(scores.y, attribute.codes, len(attribute.levels)).tolist(), decisions.tolist(), patients
    return dict(zip(POOLED, values, strict=True))


def pooled(rows: pd.DataFrame, *, draws: int = 1000, seed: int = 0, level: float = 0.95) -> pd.DataFrame:
    """One line a (data, measure, method) from the rows of a study by folds, of the deals that are complete for it.

    Columns: gap, performance, the network's as it came less these (`gap_closed` of absolute values, `performance_lost`), each with its
    interval (_low, _high) by drawing patients; the mean absolute gap of a deal, its noise floor and the excess; deals, patients, rows.
    """
    lines = []
    for (data, measure), here in rows.groupby(["data", "measure"], sort=False):
        whole = {method: deals for method, some in here.groupby("method", sort=False) if (deals := _deals(some))}
        before = whole.get(BASELINE)
        for method, deals in whole.items():
            performance = str(here["performance_measure"].iloc[0])
            paired = before if before is not None and method != BASELINE and before.keys() == deals.keys() else None
            lines.append(
                {"data": data, "measure": measure, "method": method, **_line(deals, paired, str(measure), performance, draws, seed, level)}
            )
    return pd.DataFrame(lines)


Deal = tuple[IntArray, FloatArray, IntArray]  # cells, decisions and patients of all test rows


def _deals(rows: pd.DataFrame) -> dict[int, Deal]:
    """The deals of one method of which all folds are there."""
    found: dict[int, Deal] = {}
    for deal, folds in rows.groupby(rows["seed"] // FOLDS):
        if set(folds["seed"] % FOLDS) == set(range(FOLDS)) and folds["test_cell"].notna().all():
            cells, decisions, patients = (np.concatenate(folds[name].to_list()) for name in POOLED)
            found[int(deal)] = cells.astype(np.int64), decisions.astype(np.float64), patients.astype(np.int64)
    return found


def _line(
    deals: Mapping[int, Deal], before: Mapping[int, Deal] | None, measure: str, performance: str, draws: int, seed: int, level: float
) -> dict[str, float]:
    everyone = np.unique(np.concatenate([patients for _, _, patients in deals.values()]))
    groups = max(int(cells.max()) for cells, _, _ in deals.values()) // 2 + 1  # one of them may be those without a group, who stay out
    after = _drawn(list(deals.values()), everyone, groups, measure, performance, draws, seed)
    values = {"gap": after[0], "performance": after[1]}
    if before is not None:
        first = _drawn(list(before.values()), everyone, groups, measure, performance, draws, seed)
        values |= {"gap_closed": np.abs(first[0]) - np.abs(after[0]), "performance_lost": first[1] - after[1]}
    line = {f"{name}{end}": np.nan for name in ("gap_closed", "performance_lost") for end in ("", "_low", "_high")}
    for name, drawn in values.items():
        low, high = interval(drawn[1:, None], drawn[:1], level)
        line |= {name: float(drawn[0]), f"{name}_low": float(low[0]), f"{name}_high": float(high[0])}
    levels = tuple(str(k) for k in range(groups))
    tables = [tabulate_codes(decisions, cells % 2, cells // 2, levels) for cells, decisions, _ in deals.values()]
    sizes = [abs(float(largest(gap_values(measure, table)))) for table in tables]
    noise = float(np.mean([_noise(deal, groups, measure, seed) for deal in deals.values()]))
    size = float(np.mean(sizes))
    rows = int(np.mean([len(cells) for cells, _, _ in deals.values()]))
    return line | {"mean_abs": size, "noise": noise, "excess": size - noise, "deals": len(deals), "patients": len(everyone), "rows": rows}


def _drawn(
    deals: Sequence[Deal], everyone: IntArray, groups: int, measure: str, performance: str, draws: int, seed: int
) -> tuple[FloatArray, FloatArray]:
    """Gap and performance (1 + draws,), means over the deals: first of all patients, then of those drawn."""
    width = 2 * groups
    gaps, performances = np.zeros(1 + draws), np.zeros(1 + draws)
    counts = [np.ones((1, len(everyone))), *multiplicities(len(everyone), draws, seed)]
    for cells, decisions, patients in deals:
        unit = np.searchsorted(everyone, patients)
        unit, cell = np.append(unit, len(everyone) - 1), np.append(cells, 0)  # so that the table has a line for everyone
        table = np.concatenate([by_unit(unit, cell, np.append(v, 0.0), width) for v in (np.ones(len(cells)), decisions)], axis=1)
        sums = np.concatenate([count @ table for count in counts])
        grid = (1 + draws, groups, 2)
        drawn = _with_missing(sums[:, :width].reshape(grid), sums[:, width:].reshape(grid))
        gaps += largest(gap_values(measure, drawn)) / len(deals)
        performances += performance_values(performance, drawn) / len(deals)
    return gaps, performances


def _with_missing(n: FloatArray, s: FloatArray) -> Cells:
    """A cell table of known groups; `fold_parts` leaves out rows without one."""
    empty = np.zeros((*n.shape[:-2], 1, 2))
    levels = tuple(str(k) for k in range(n.shape[-2]))
    return Cells(levels, np.concatenate([n, empty], axis=-2), np.concatenate([s, empty], axis=-2))


def _noise(deal: Deal, groups: int, measure: str, seed: int) -> float:
    cells, decisions, patients = deal
    levels = tuple(str(k) for k in range(groups))
    return noise_floor(decisions, cells % 2, cells // 2, levels, patients.astype(object), measure, seed=seed)
