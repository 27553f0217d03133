"""Values with error bars: every rate of every group, every gap, every performance measure, from the same bootstrap draws of patients."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
import pandas as pd

from equipoise.data import Attribute, IntArray, Scores
from equipoise.measures.bootstrap import by_unit, interval, multiplicities, units_of, widen_extremes
from equipoise.measures.cells import Cells, FloatArray, cell_index, ratio, tabulate
from equipoise.measures.functional import performance_functional
from equipoise.measures.gaps import MEASURES, is_quotient, labels_needed, terms
from equipoise.measures.performance import Ranking, f1

BINS = 10  # of equal width, for the calibration error
INSUFFICIENT = "insufficient data"
GROUP_MEASURES = ("selection_rate", "tpr", "fpr", "tnr", "fnr", "ppv", "npv", "auroc", "calibration_error")
POWER = NormalDist().inv_cdf(0.975) + NormalDist().inv_cdf(0.8)  # a gap this many standard errors wide is found 4 times in 5


GAP_NUMBERS = ("simultaneous_low", "simultaneous_high", "p_value", "p_adjusted", "detectable")
FEW = 30  # patients; estimates of fewer are marked


@dataclass(frozen=True)
class Settings:
    """How intervals are made, and how many patients a cell needs."""

    draws: int = 1000
    level: float = 0.95
    seed: int = 0
    min_patients: int = 5


@dataclass(frozen=True)
class Estimate:
    """A value with its interval. `value` is NaN, and the note says why, where the data are insufficient."""

    value: float
    low: float
    high: float
    note: str = ""
    group: str = ""
    reference: str = ""
    detectable: float = float("nan")  # the smallest gap that this many patients would have shown, 4 times in 5
    p_value: float = float("nan")  # of a gap: by permutation of the groups
    p_adjusted: float = float("nan")  # for all comparisons of the audit
    simultaneous_low: float = float("nan")  # the interval that holds together with those of all other gaps of the audit
    simultaneous_high: float = float("nan")
    clear: bool = False  # whether the adjusted p-value makes the gap a finding
    patients: int = 0  # in the smaller of the two cells that the gap needs
    few: bool = False  # fewer than 30 patients in one of them

    @classmethod
    def of_gap(cls, row: Mapping[str, Any], note: str | None = None) -> "Estimate":
        """The estimate in one row of `Audit.gaps`."""
        known: dict[str, Any] = {name: float(row[name]) for name in ("value", "low", "high", *GAP_NUMBERS)}
        known |= {"group": str(row["group"]), "reference": str(row["reference"]), "note": str(row["note"]) if note is None else note}
        return cls(**known, clear=bool(row["clear"]), patients=int(row["patients"]), few=bool(row["few"]))

    def __float__(self) -> float:
        return self.value

    def __str__(self) -> str:
        if np.isnan(self.value):
            return self.note or INSUFFICIENT
        versus = f" ({self.group} minus {self.reference})" if self.group else ""
        sign = "+" if self.group else ""
        return f"{self.value:{sign}.3f} [{self.low:{sign}.3f}, {self.high:{sign}.3f}]{versus}"

    def to_dict(self) -> dict[str, object]:
        """Plain values, None for NaN."""
        numbers = {"value": self.value, "low": self.low, "high": self.high}
        if self.group:
            numbers |= {name: getattr(self, name) for name in GAP_NUMBERS}
        plain: dict[str, object] = {k: None if np.isnan(v) else v for k, v in numbers.items()}
        if self.group:
            plain |= {"group": self.group, "reference": self.reference, "direction": "group minus reference"}
            plain |= {"clear": self.clear, "patients": self.patients, "few": self.few}
        return plain | ({"note": self.note} if self.note else {})


def estimate_attribute(
    scores: Scores, f: FloatArray, attribute: Attribute, gaps: Sequence[str], settings: Settings
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """One row per group with every rate and its interval, and one row per gap and group."""
    units = units_of(scores.patients, len(scores))
    cells = tabulate(f, scores.y, attribute)
    patients = patients_in_cells(units, scores.y, attribute)
    rankings = _rankings(scores, attribute, units)
    drawn, auroc_draws, calibration_draws = _draw(scores, f, attribute, units, rankings, settings)

    value, draws = _rates(cells), _rates(drawn)
    enough = _denominators(cells, patients)
    for name in draws:
        draws[name] = widen_extremes(draws[name], value[name], enough[name], settings.seed)
    draws["tnr"], draws["fnr"] = 1 - draws["fpr"], 1 - draws["tpr"]  # the same draws, so that intervals mirror each other
    value["auroc"] = np.array([float(ranking.auroc()) for ranking in rankings])
    draws["auroc"] = auroc_draws
    enough["auroc"] = patients[:, :2].min(-1)
    value["calibration_error"] = _calibration(_calibration_sums(scores, attribute), cells.n[:-1].sum(-1))
    draws["calibration_error"] = calibration_draws
    enough["calibration_error"] = patients[:, 2]

    unit = "rows" if scores.patients is None else "patients"
    groups = _group_frame(attribute, cells, value, draws, enough, settings, unit)
    gap_rows = [_gap_rows(name, attribute, value, draws, patients, enough, settings, unit) for name in gaps]
    return groups, pd.DataFrame([row for rows in gap_rows for row in rows], columns=GAP_COLUMNS)


GAP_COLUMNS = [
    *("measure", "attribute", "group", "reference", "value", "low", "high"),
    *("simultaneous_low", "simultaneous_high", "p_value", "p_adjusted", "clear"),
    *("detectable", "patients", "few", "note"),
]


def estimate_performance(scores: Scores, f: FloatArray, names: Sequence[str], settings: Settings) -> dict[str, Estimate]:
    """The performance measures of all rows together, each with its interval."""
    if not names:
        return {}
    everyone = Attribute("all", ("all",), np.zeros(len(scores), np.int64))
    units = units_of(scores.patients, len(scores))
    cells = tabulate(f, scores.y, everyone)
    ranking = Ranking(scores.score, scores.y, units)
    ranked = [name for name in names if name in ("auroc", "average_precision")]
    size = 4
    cell = cell_index(scores.y, everyone.codes, 1)
    table = np.concatenate([by_unit(units, cell, 1.0, size), by_unit(units, cell, f, size)], axis=1)
    blocks: list[FloatArray] = []
    ranked_draws: dict[str, list[FloatArray]] = {name: [] for name in ranked}
    for block in multiplicities(len(table), settings.draws, settings.seed):
        blocks.append(block @ table)
        for name in ranked:
            ranked_draws[name] += [getattr(ranking, name)(part) for part in _pieces(block, len(scores))]
    flat = np.concatenate(blocks)
    drawn = Cells(("all",), flat[:, :size].reshape(-1, 2, 2), flat[:, size:].reshape(-1, 2, 2))
    lacking = [what for what, n in zip(("negatives", "positives"), cells.n[0], strict=True) if n == 0]
    found = {}
    for name in names:
        if name in ranked:
            value, draws = getattr(ranking, name)(), np.concatenate(ranked_draws[name])
        elif name == "f1":
            value, draws = (f1(c.s[..., 0, 1], c.s[..., 0, 0], c.n[..., 0, 1]) for c in (cells, drawn))
        else:
            value, draws = (performance_functional(name, c.n)(c) for c in (cells, drawn))
        point = float(value) if not (lacking and name != "accuracy") else float("nan")
        low, high = interval(draws[:, None], np.array([point]), settings.level)
        note = f"{INSUFFICIENT}: no {' and no '.join(lacking)}" if np.isnan(point) else ""
        found[name] = Estimate(point, float(low[0]), float(high[0]), note)
    return found


def _rates(cells: Cells) -> dict[str, FloatArray]:
    """Every rate of every group (..., groups) that depends on the cells only."""
    n, s = cells.n[..., :-1, :], cells.s[..., :-1, :]
    tpr, fpr = ratio(s[..., 1], n[..., 1]), ratio(s[..., 0], n[..., 0])
    unselected = n - s
    return {
        "selection_rate": ratio(s.sum(-1), n.sum(-1)),
        "tpr": tpr,
        "fpr": fpr,
        "tnr": 1 - fpr,
        "fnr": 1 - tpr,
        "ppv": ratio(s[..., 1], s.sum(-1)),
        "npv": ratio(unselected[..., 0], unselected.sum(-1)),
    }


def _denominators(cells: Cells, patients: FloatArray) -> dict[str, FloatArray]:
    """How many patients each rate of each group rests on (groups,)."""
    rows = np.maximum(cells.n[:-1], 1.0)
    share = np.divide(patients[:, 2], np.maximum(patients[:, :2].sum(-1), 1.0))  # below 1 where patients have rows of both labels
    chosen = (cells.s[:-1] * patients[:, :2] / rows).sum(-1) * share
    return {
        "selection_rate": patients[:, 2],
        "tpr": patients[:, 1],
        "fnr": patients[:, 1],
        "fpr": patients[:, 0],
        "tnr": patients[:, 0],
        "ppv": chosen,
        "npv": patients[:, 2] - chosen,
    }


def patients_in_cells(units: IntArray, y: IntArray, attribute: Attribute) -> FloatArray:
    """Distinct patients of each group (groups, 3): with negative rows, with positive rows, and with either.

    One with rows of both labels, or of several groups, counts once in each cell that they have a row in.
    """
    groups, width = len(attribute.levels), int(units.max(initial=0)) + 1
    cell = cell_index(y, attribute.codes, groups)
    by_label = np.bincount(np.unique(cell * width + units) // width, minlength=2 * groups + 2).reshape(-1, 2)
    either = np.bincount(np.unique(cell // 2 * width + units) // width, minlength=groups + 1)
    return np.column_stack([by_label, either])[:-1].astype(np.float64)


def _rankings(scores: Scores, attribute: Attribute, units: IntArray) -> list[Ranking]:
    rows = [np.flatnonzero(attribute.codes == k) for k in range(len(attribute.levels))]
    return [Ranking(scores.score[r], scores.y[r], units[r]) for r in rows]


def _pieces(block: FloatArray, rows: int) -> list[FloatArray]:
    """A block in pieces, so that one weight per row and draw stays small in memory."""
    return np.array_split(block, max(1, min(len(block), len(block) * rows // 1_000_000)))


def _calibration_columns(scores: Scores, attribute: Attribute) -> IntArray:
    bins = np.minimum((scores.score * BINS).astype(np.int64), BINS - 1)
    code = np.where(attribute.codes < 0, len(attribute.levels), attribute.codes)
    return code * BINS + bins


def _calibration_sums(scores: Scores, attribute: Attribute) -> FloatArray:
    groups = len(attribute.levels)
    sums = np.bincount(_calibration_columns(scores, attribute), scores.score - scores.y, (groups + 1) * BINS)
    return sums.reshape(groups + 1, BINS).astype(np.float64, copy=False)


def _calibration(sums: FloatArray, n: FloatArray) -> FloatArray:
    """Expected calibration error per group: mean over rows of |mean score - share of positives| of their bin."""
    return ratio(np.abs(sums[..., :-1, :]).sum(-1), n)


def _draw(
    scores: Scores, f: FloatArray, attribute: Attribute, units: IntArray, rankings: list[Ranking], settings: Settings
) -> tuple[Cells, FloatArray, FloatArray]:
    """Cell tables, AUROCs and calibration errors of every draw: additive sums by patient, then one product per block."""
    groups = len(attribute.levels)
    size, width = 2 * (groups + 1), BINS * (groups + 1)
    cell = cell_index(scores.y, attribute.codes, groups)
    table = np.concatenate(
        [
            by_unit(units, cell, 1.0, size),
            by_unit(units, cell, f, size),
            by_unit(units, _calibration_columns(scores, attribute), scores.score - scores.y, width),
        ],
        axis=1,
    )
    sums, areas = [], []
    for block in multiplicities(len(table), settings.draws, settings.seed):
        sums.append(block @ table)
        for part in _pieces(block, len(scores)):
            areas.append(np.stack([ranking.auroc(part) for ranking in rankings], axis=-1))
    flat = np.concatenate(sums)
    grid = (settings.draws, groups + 1, 2)
    drawn = Cells(attribute.levels, flat[:, :size].reshape(grid), flat[:, size : 2 * size].reshape(grid))
    calibration = flat[:, 2 * size :].reshape(settings.draws, groups + 1, BINS)
    return drawn, np.concatenate(areas), _calibration(calibration, drawn.n[:, :-1].sum(-1))


def _group_frame(
    attribute: Attribute,
    cells: Cells,
    value: dict[str, FloatArray],
    draws: dict[str, FloatArray],
    enough: dict[str, FloatArray],
    settings: Settings,
    unit: str,
) -> pd.DataFrame:
    n = cells.n[:-1]
    columns: dict[str, object] = {
        "attribute": attribute.name,
        "reference": [level == attribute.reference for level in attribute.levels],
        "n": n.sum(-1).astype(int),
        "positives": n[:, 1].astype(int),
        "negatives": n[:, 0].astype(int),
    }
    short: list[list[str]] = [[] for _ in attribute.levels]
    for name in GROUP_MEASURES:
        usable = enough[name] >= settings.min_patients
        point = np.where(usable, value[name], np.nan)
        low, high = interval(draws[name], point, settings.level)
        columns |= {name: point, f"{name}_low": low, f"{name}_high": high}
        for k in np.flatnonzero(np.isnan(point)):
            short[k].append(name)
    columns["note"] = [
        f"{INSUFFICIENT} (fewer than {settings.min_patients} {unit}): {', '.join(names)}" if names else "" for names in short
    ]
    return pd.DataFrame(columns, index=pd.Index(attribute.levels, name="group"))


def _gap_rows(
    gap: str,
    attribute: Attribute,
    value: dict[str, FloatArray],
    draws: dict[str, FloatArray],
    patients: FloatArray,
    enough: dict[str, FloatArray],
    settings: Settings,
    unit: str,
) -> list[tuple[object, ...]]:
    name_of = {"selection": "selection_rate"}
    quotient = MEASURES[gap].rate if is_quotient(gap) else ""
    signed = [(1.0, quotient)] if quotient else [(sign, name_of.get(rate, rate)) for rate, sign in terms(gap).items()]
    point: FloatArray = np.sum([sign * (value[r][1:] - value[r][0]) for sign, r in signed], axis=0)
    drawn: FloatArray = np.sum([sign * (draws[r][:, 1:] - draws[r][:, :1]) for sign, r in signed], axis=0)
    needed = labels_needed(gap)
    counts = enough[quotient] if quotient else patients[:, list(needed)].min(-1) if needed else patients[:, 2]
    usable = np.minimum(counts[1:], counts[0]) >= settings.min_patients
    point = np.where(usable, point, np.nan)
    low, high = interval(drawn, point, settings.level)
    known = [column[~np.isnan(column)] for column in drawn.T]  # a draw may lack a cell that the rows have
    spread = np.array([column.std(ddof=1) if use and len(column) > 1 else np.nan for column, use in zip(known, usable, strict=True)])
    rows: list[tuple[object, ...]] = []
    for k, level in enumerate(attribute.others):
        short = [lvl for lvl, c in ((level, counts[k + 1]), (attribute.reference, counts[0])) if c < settings.min_patients]
        label = " and ".join("positives" if label else "negatives" for label in needed)
        what = unit if not label else f"{unit} with {label}" if unit == "patients" else label
        if quotient:
            what = f"{unit} decided {'positive' if quotient == 'ppv' else 'negative'}"
        note = f"{INSUFFICIENT}: fewer than {settings.min_patients} {what} in {', '.join(map(repr, short))}" if short else ""
        smaller = int(min(counts[k + 1], counts[0]))
        few = bool(usable[k] and smaller < FEW)
        later = (np.nan, np.nan, np.nan, np.nan, False)  # over all attributes, by `multiplicity`
        rows.append(
            (gap, attribute.name, level, attribute.reference, point[k], low[k], high[k], *later, POWER * spread[k], smaller, few, note)
        )
    return rows
