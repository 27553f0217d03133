"""Results across splits: means and standard deviations, ranks, the results of the paper, and paired differences from a baseline.

A signed mean hides scatter (gaps of -0.1 and +0.1 average to 0), so the mean |gap| is reported as well, and methods are compared by |gap|.

Splits of the same rows share most of their training sets and some of their test sets, so they are not independent, and the variance of
their mean is larger than variance / splits. Intervals and p-values of differences use the corrected variance of Nadeau and Bengio (2003,
Mach Learn 52:239): variance * (1 / splits + test rows / other rows). P-values of gaps are combined over splits by twice their median, which
is valid under any dependence.

Folds are also pooled: in each cross-validation, every patient is in one test fold, decided by a network trained without them, and all test
folds are evaluated as one set. For that, a row of a study by folds stores the cell, the decision and the patient (as a pseudonym specific
to the study) of every test row. If the cross-validation is repeated, an estimate is the mean over the repeats, and its interval resamples
the same patients in all of them.
"""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from equipoise.data import Attribute, FloatArray, IntArray
from equipoise.errors import pick
from equipoise.measures import Cells, largest_gap, largest_gap_p_value, p_values, percentile_interval, resample_counts, sums_by_unit
from equipoise.studies.plan import StudyPlan
from equipoise.studies.results import POOLED_COLUMNS, SET_SIZES, STUDY_SCHEMA, StudyFolder, read_rows, read_timings, read_whole
from equipoise.studies.worker import STUDY_FOLDS

CELL_KEYS = ["data", "measure", "method"]
SET_PREFIXES = {"test": "", "validation": "valid_"}  # by set of the split: the prefix of its columns
TABLE_DIGITS = 3  # that tables show; methods that are equal after rounding share a rank
VARIANCE_NOTE = "corrected for splits of the same rows (Nadeau and Bengio 2003): variance * (1 / splits + shared)"  # of a comparison
ORIGINAL_METHOD = "standard"  # the method that does not change the network
PooledFolds = tuple[IntArray, FloatArray, IntArray]  # cells, decisions and patients of all test rows of one cross-validation


def _rows_of_set(rows: pd.DataFrame, part: str) -> pd.DataFrame:
    """The rows with the gap, p-value and performance of the test set or of the validation set, and with |gap|."""
    prefix = SET_PREFIXES[pick("set of the split", part, SET_PREFIXES)]
    present = [name for name in ("gap", "performance", "p_value") if f"{prefix}{name}" in rows]
    chosen = rows.assign(**{name: rows[f"{prefix}{name}"] for name in present})
    return chosen.assign(abs_gap=chosen["gap"].abs())


def summarise(rows: pd.DataFrame, part: str = "test") -> pd.DataFrame:
    """One line per (data, measure, method): number of splits, mean and sd of gap, |gap| and performance, p-value (see `combined_p`),
    share of splits that met the goal, mean seconds.

    - `rows`: of `read_rows`.
    - `part`: "test" or "validation", the set that the results are of.

    >>> rows = pd.DataFrame({"data": "d", "measure": "eod", "method": "m", "seed": [0, 1], "gap": [-0.1, 0.1],
    ...                      "performance": [0.7, 0.9], "met": [True, False], "seconds": [1.0, 3.0]})
    >>> summarise(rows)[["splits", "gap_mean", "abs_gap_mean", "performance_mean", "met"]].values.tolist()
    [[2.0, 0.0, 0.1, 0.8, 0.5]]
    """
    chosen = _rows_of_set(rows, part)
    chosen["met"] = chosen["met"].astype(float)
    if "p_value" not in chosen:
        chosen["p_value"] = np.nan
    return (
        chosen.groupby(CELL_KEYS, sort=False)
        .agg(
            splits=("seed", "size"),
            gap_mean=("gap", "mean"),
            gap_sd=("gap", "std"),
            abs_gap_mean=("abs_gap", "mean"),
            abs_gap_sd=("abs_gap", "std"),
            p_value=("p_value", combined_p),
            performance_mean=("performance", "mean"),
            performance_sd=("performance", "std"),
            met=("met", "mean"),
            seconds=("seconds", "mean"),
        )
        .reset_index()
    )


def combined_p(p_values: npt.ArrayLike) -> float:
    """One p-value from those of several splits of the same rows: twice their median, at most 1; NaN if there are none.

    Valid under any dependence between splits (Meinshausen, Meier and Buehlmann 2009, J Am Stat Assoc 104:1671). A single p-value stays
    unchanged.

    >>> round(combined_p([0.01, 0.02, 0.6]), 3), combined_p([0.04])
    (0.04, 0.04)
    """
    p = np.asarray(p_values, dtype=np.float64)
    known = p[~np.isnan(p)]
    if not len(known):
        return float("nan")
    return float(known[0]) if len(known) == 1 else min(1.0, 2 * float(np.median(known)))


def study_table(plan: StudyPlan, rows: pd.DataFrame, part: str = "test") -> pd.DataFrame:
    """The summary of a study with the rank of each method (1 best, 2 second, 0 other), the results of the paper and the differences from
    them.

    Best is the smallest |mean gap|, or the highest mean performance, among all methods but the original network. Methods that are equal to
    three digits share a rank.
    """
    frame = summarise(rows, part)
    methods = {arm.name: arm.method for arm in plan.methods}
    sources = {data.name: data.published for data in plan.data}
    frame.insert(1, "title", [plan.named(name).title or name for name in frame["data"]])
    paper = [published(sources[row.data], row.measure, methods[row.method], part) for row in frame.itertuples()]
    for quantity, field in (("gap", "bias"), ("performance", "performance")) if any(paper) else ():
        frame[f"published_{quantity}"] = [np.nan if p is None else getattr(p, field) for p in paper]
        frame[f"published_{quantity}_sd"] = [np.nan if p is None else getattr(p, f"{field}_sd") for p in paper]
        frame[f"{quantity}_difference"] = frame[f"{quantity}_mean"] - frame[f"published_{quantity}"]
    frame["below_limit"] = np.nan
    if part == "test" and "limit" in rows:  # the mean distance below the upper bound (group-aware)
        below = (rows["limit"] - rows["performance"]).groupby([rows[name] for name in CELL_KEYS]).mean()
        frame["below_limit"] = below.reindex(pd.MultiIndex.from_frame(frame[CELL_KEYS])).to_numpy()
    original = frame["method"].map(methods) == ORIGINAL_METHOD
    for quantity, merit in (("gap", -frame["gap_mean"].abs()), ("performance", frame["performance_mean"])):
        ranks = merit.round(TABLE_DIGITS).where(~original).groupby([frame["data"], frame["measure"]]).rank(method="dense", ascending=False)
        frame[f"{quantity}_rank"] = ranks.where(ranks <= 2, 0).fillna(0).astype(int)
    return frame


def compare_methods(
    rows: pd.DataFrame, baseline: str = ORIGINAL_METHOD, level: float = 0.95, part: str = "test", redrawn: Sequence[str] = ()
) -> pd.DataFrame:
    """One line per (data, measure, method, quantity): the mean difference from the baseline over common splits, its interval and p-value.

    The quantities are |gap| and performance. Interval and p-value come from a t test with the variance corrected for splits of the same
    rows by `shared` (see `ratio_to_training_rows`). `redrawn` names simulations that are drawn again for each split and need no correction.
    There is no interval for fewer than two common splits, or if the sizes of the sets are unknown.
    """
    pick("method to compare with", baseline, list(dict.fromkeys(rows["method"])))
    lines = []
    for (data, measure), group in _rows_of_set(rows, part).groupby(["data", "measure"], sort=False):
        shared = 0.0 if data in redrawn else ratio_to_training_rows(group, part)
        for quantity in ("abs_gap", "performance"):
            table = group.pivot_table(index="seed", columns="method", values=quantity, sort=False)
            for method in dict.fromkeys(group["method"]):
                if method == baseline or baseline not in table:
                    continue
                difference = (table[method] - table[baseline]).dropna().to_numpy(dtype=np.float64)
                line = {"data": data, "measure": measure, "method": method, "quantity": quantity, "splits": len(difference)}
                lines.append({**line, "shared": shared, **corrected_t_test(difference, shared, level)})
    columns = [*CELL_KEYS, "quantity", "splits", "shared", "difference", "low", "high", "p"]
    return pd.DataFrame(lines, columns=columns)


def ratio_to_training_rows(rows: pd.DataFrame, part: str = "test") -> float:
    """The mean number of rows of the set divided by that of the rows that networks were fitted on; NaN if unknown.

    For the test set, these are the training set and the validation set, on which networks are repaired.
    """
    if not set(SET_SIZES) <= set(rows.columns):
        return float("nan")
    train, valid, test = (float(rows[name].mean()) for name in SET_SIZES)
    return test / (train + valid) if part == "test" else valid / train


def corrected_t_test(difference: FloatArray, shared: float, level: float = 0.95) -> dict[str, float]:
    """The mean of differences over splits, its interval and p-value, with the variance of Nadeau and Bengio.

    - `difference`: one value per split.
    - `shared`: of `ratio_to_training_rows`; 0 for independent samples, such as simulations that are drawn again.
    - `level`: of the interval.

    >>> plain, corrected = (corrected_t_test(np.array([0.1, 0.2, 0.3]), shared) for shared in (0.0, 0.25))
    >>> round(plain["low"], 3), round(corrected["low"], 3)
    (-0.048, -0.129)
    """
    from scipy import stats

    n = len(difference)
    mean = float(difference.mean()) if n else np.nan
    if n < 2 or np.isnan(shared):
        return {"difference": mean, "low": np.nan, "high": np.nan, "p": np.nan}
    error = float(difference.std(ddof=1) * np.sqrt(1 / n + shared))
    half = float(stats.t.ppf(0.5 + level / 2, n - 1)) * error
    p = 2 * float(stats.t.sf(abs(mean) / error, n - 1)) if error > 0 else float(mean == 0)
    return {"difference": mean, "low": mean - half, "high": mean + half, "p": p}


def study_document(folder: StudyFolder, baseline: str = ORIGINAL_METHOD, part: str = "test") -> dict[str, Any]:
    """The results of a study as plain values: its table, timings, a comparison with the baseline, and pooled folds, if any.

    - `baseline`: the method that the others are compared with, split by split; without rows of it there is no comparison.
    - `part`: "test" or "validation", the set that the results are of.
    """
    rows = read_rows(folder)
    frames = {"table": study_table(folder.plan, rows, part), "timings": read_timings(folder)}
    if baseline in set(rows["method"]):
        frames["comparison"] = compare_methods(rows, baseline, part=part, redrawn=[data.name for data in folder.plan.data if data.redraw])
    if folder.plan.protocol == "folds":
        frames["pooled"] = read_pooled(folder)
    return {
        "schema": STUDY_SCHEMA,
        "schema_version": 1,
        "study": folder.plan.name,
        **{"fingerprint": folder.fingerprint, "version": folder.version},
        **{"splits": folder.plan.splits, "rows": len(rows), "part": part, "baseline": baseline, "comparison_variance": VARIANCE_NOTE},
        **{name: json.loads(frame.to_json(orient="records")) for name, frame in frames.items()},
    }


# Results of the paper, and the sizes of its data sets

PAPER_SIZES = {  # rows of training, validation and test sets (Table `tab:datasets`); the paper gives none for its simulations
    "adult": (27_133, 9_044, 9_045),
    "bank": (18_292, 6_098, 6_098),
    "compas": (3_700, 1_233, 1_234),
    "mimic-iii": (21_595, 7_199, 7_199),
    "mimic-cxr/sex": (5_528, 3_368, 3_426),
    "mimic-cxr/ethnicity": (3_984, 930, 1_122),
}


class Published(NamedTuple):
    """One cell of a table of the paper: means and standard deviations over its splits."""

    bias: float
    bias_sd: float
    performance: float
    performance_sd: float


def published(data: str, measure: str, method: str, part: str = "test") -> Published | None:
    """The results of the paper on data such as adult/sex, mimic-iii/age, loh/0.1 or mimic-cxr/sex/vgg-16, or None.

    >>> published("adult/sex", "spd", "standard")
    Published(bias=-0.32, bias_sd=0.02, performance=0.82, performance_sd=0.01)
    """
    numbers = _paper_tables()[part].get(data, {}).get(measure, {}).get(method)
    return None if numbers is None else Published(*numbers)


def published_sizes(data: str) -> tuple[int, int, int] | None:
    """The sizes of the training, validation and test set in the paper for data such as adult/sex or mimic-iii/age, or None.

    >>> published_sizes("mimic-iii/age"), published_sizes("loh/0.1")
    ((21595, 7199, 7199), None)
    """
    first, _, rest = data.partition("/")
    return PAPER_SIZES.get(first) or PAPER_SIZES.get(f"{first}/{rest.partition('/')[0]}")


@cache
def _paper_tables() -> dict[str, dict[str, dict[str, dict[str, list[float]]]]]:
    tables: dict[str, Any] = json.loads((files("equipoise.studies") / "published.json").read_text(encoding="utf-8"))
    return {part: tables[part] for part in ("test", "validation")}


def pooled(rows: pd.DataFrame, *, draws: int = 1000, seed: int = 0, level: float = 0.95) -> pd.DataFrame:
    """One line per (data, measure, method) from the rows of a study by folds, over all complete cross-validations.

    Columns: gap, performance, `gap_change` (signed) and `performance_lost` compared with the original, each with an interval (_low, _high)
    from resampled patients; the mean |gap| of a cross-validation and its p-value (see `combined_p`); repeats, patients, rows.
    """
    lines = []
    for (data, measure), here in rows.groupby(["data", "measure"], sort=False):
        complete = {method: repeats for method, group in here.groupby("method", sort=False) if (repeats := _complete_repeats(group))}
        original = complete.get(ORIGINAL_METHOD)
        performance = str(here["performance_measure"].iloc[0])
        for method, repeats in complete.items():
            paired = original if original is not None and method != ORIGINAL_METHOD and original.keys() == repeats.keys() else None
            estimates = _pooled_estimates(repeats, paired, str(measure), performance, draws, seed, level)
            lines.append({"data": data, "measure": measure, "method": method, **estimates})
    return pd.DataFrame(lines)


def read_pooled(folder: StudyFolder) -> pd.DataFrame:
    """The pooled results of a study by folds, one line per (data, measure, method)."""
    return pooled(read_whole(folder))


def _complete_repeats(rows: pd.DataFrame) -> dict[int, PooledFolds]:
    """The complete cross-validations of one method."""
    repeats: dict[int, PooledFolds] = {}
    for repeat, folds in rows.groupby(rows["seed"] // STUDY_FOLDS):
        if set(folds["seed"] % STUDY_FOLDS) == set(range(STUDY_FOLDS)) and folds["test_cell"].notna().all():
            cells, decisions, patients = (np.concatenate(folds[name].to_list()) for name in POOLED_COLUMNS)
            repeats[int(repeat)] = cells.astype(np.int64), decisions.astype(np.float64), patients.astype(np.int64)
    return repeats


def _pooled_estimates(
    repeats: Mapping[int, PooledFolds],
    original: Mapping[int, PooledFolds] | None,
    measure: str,
    performance: str,
    draws: int,
    seed: int,
    level: float,
) -> dict[str, float]:
    everyone = np.unique(np.concatenate([patients for _, _, patients in repeats.values()]))
    groups = max(int(cells.max()) for cells, _, _ in repeats.values()) // 2 + 1  # the last may be rows without a group, which are left out
    levels = tuple(str(k) for k in range(groups))
    gap, performances = _resampled(list(repeats.values()), everyone, levels, measure, performance, draws, seed)
    values = {"gap": gap, "performance": performances}
    if original is not None:
        before = _resampled(list(original.values()), everyone, levels, measure, performance, draws, seed)
        values |= {"gap_change": gap - before[0], "performance_lost": before[1] - performances}
    line = {f"{name}{end}": np.nan for name in ("gap_change", "performance_lost") for end in ("", "_low", "_high")}
    for name, resampled in values.items():
        low, high = percentile_interval(resampled[1:, None], resampled[:1], level)
        line |= {name: float(resampled[0]), f"{name}_low": float(low[0]), f"{name}_high": float(high[0])}
    sizes, ps = [], []
    for cells, decisions, patients in repeats.values():
        y, codes = cells % 2, cells // 2
        sizes.append(abs(float(largest_gap(Cells.of(decisions, y, Attribute("", levels, codes)).gaps(measure)))))
        found = p_values(decisions, y, codes, levels, patients.astype(object), [measure], seed=seed)
        ps.append(largest_gap_p_value(found[measure]))
    rows = int(np.mean([len(cells) for cells, _, _ in repeats.values()]))
    counts = {"repeats": len(repeats), "patients": len(everyone), "rows": rows}
    return line | {"mean_abs": float(np.mean(sizes)), "p_value": combined_p(ps), **counts}


def _resampled(
    repeats: Sequence[PooledFolds], everyone: IntArray, levels: tuple[str, ...], measure: str, performance: str, draws: int, seed: int
) -> tuple[FloatArray, FloatArray]:
    """Gap and performance (1 + draws,), as means over the repeats: first for all patients, then for each resample."""
    width, grid = 2 * len(levels), (1 + draws, len(levels), 2)
    gaps, performances = np.zeros(1 + draws), np.zeros(1 + draws)
    counts = [np.ones((1, len(everyone))), *resample_counts(len(everyone), draws, seed)]
    missing = np.zeros((1 + draws, 1, 2))  # the last row of a cell table is for rows without a group, which `fold_parts` leaves out
    for cells, decisions, patients in repeats:
        unit = np.append(np.searchsorted(everyone, patients), len(everyone) - 1)  # so that the table has a row for every patient
        cell = np.append(cells, 0)
        table = np.concatenate([sums_by_unit(unit, cell, np.append(v, 0.0), width) for v in (np.ones(len(cells)), decisions)], axis=1)
        sums = np.concatenate([count @ table for count in counts])
        n, s = (np.concatenate([half.reshape(grid), missing], axis=1) for half in (sums[:, :width], sums[:, width:]))
        tables = Cells(levels, n, s)
        gaps += largest_gap(tables.gaps(measure)) / len(repeats)
        performances += tables.performance(performance) / len(repeats)
    return gaps, performances
