"""Across splits: means and standard deviations, and differences to a baseline, paired by split.

A signed mean hides scatter (gaps of -0.1 and +0.1 average to none), so the mean |gap| stands beside it, and it is |gap| that is compared.
Beside it stands the mean noise floor: what |gap| would be on the same rows if the groups had nothing to do with the decisions.
"""

import warnings

import numpy as np
import numpy.typing as npt
import pandas as pd

from equipoise.errors import pick

CELL = ["data", "measure", "method"]
PARTS = {"test": "", "validation": "valid_"}  # part of the split: how the columns of its numbers begin
FloatArray = npt.NDArray[np.float64]


def of_part(rows: pd.DataFrame, part: str) -> pd.DataFrame:
    """The rows with gap, performance and noise of the test part or of the validation part."""
    start = PARTS[pick("part", part, PARTS)]
    return rows.assign(**{name: rows[f"{start}{name}"] for name in ("gap", "performance", "noise")}) if start else rows


def summarise(rows: pd.DataFrame, part: str = "test") -> pd.DataFrame:
    """One line a (data, measure, method): splits, mean and sd of the gap and of performance, mean |gap| and its noise floor, share that met
    the goal, seconds.

    >>> rows = pd.DataFrame({"data": "d", "measure": "eod", "method": "m", "seed": [0, 1], "gap": [-0.1, 0.1],
    ...                      "performance": [0.7, 0.9], "met": [True, False], "seconds": [1.0, 3.0]})
    >>> summarise(rows)[["splits", "gap_mean", "abs_gap_mean", "performance_mean", "met"]].values.tolist()
    [[2.0, 0.0, 0.1, 0.8, 0.5]]
    """
    chosen = of_part(rows, part)
    sized = chosen.assign(abs_gap=chosen["gap"].abs(), met=chosen["met"].astype(float))
    if "noise" not in sized:
        sized["noise"] = np.nan
    return (
        sized.groupby(CELL, sort=False)
        .agg(
            splits=("seed", "size"),
            gap_mean=("gap", "mean"),
            gap_sd=("gap", "std"),
            abs_gap_mean=("abs_gap", "mean"),
            abs_gap_sd=("abs_gap", "std"),
            noise=("noise", "mean"),
            performance_mean=("performance", "mean"),
            performance_sd=("performance", "std"),
            met=("met", "mean"),
            seconds=("seconds", "mean"),
        )
        .reset_index()
    )


def compare(rows: pd.DataFrame, baseline: str = "standard", level: float = 0.95, part: str = "test") -> pd.DataFrame:
    """One line a (data, measure, method, quantity): the mean difference to the baseline over common splits, its t interval, a p value.

    The quantities are |gap| and performance. The test is Wilcoxon's signed rank, two-sided. Fewer than two common splits give no interval.
    """
    pick("method to compare with", baseline, list(dict.fromkeys(rows["method"])))
    chosen = of_part(rows, part)
    sized = chosen.assign(abs_gap=chosen["gap"].abs())
    lines = []
    for (data, measure), group in sized.groupby(["data", "measure"], sort=False):
        for quantity in ("abs_gap", "performance"):
            table = group.pivot_table(index="seed", columns="method", values=quantity, sort=False)
            for method in dict.fromkeys(group["method"]):
                if method == baseline or baseline not in table:
                    continue
                difference = (table[method] - table[baseline]).dropna().to_numpy(dtype=np.float64)
                lines.append({"data": data, "measure": measure, "method": method, "quantity": quantity, **_paired(difference, level)})
    columns = [*CELL, "quantity", "splits", "difference", "low", "high", "p"]
    return pd.DataFrame(lines, columns=columns)


def _paired(difference: FloatArray, level: float) -> dict[str, float]:
    """Mean, t interval and signed-rank p value of paired differences."""
    from scipy import stats

    n = len(difference)
    mean = float(difference.mean()) if n else np.nan
    half = float(stats.t.ppf(0.5 + level / 2, n - 1) * difference.std(ddof=1) / np.sqrt(n)) if n > 1 else np.nan
    if n < 2:
        p = np.nan
    elif not difference.any():
        p = 1.0  # nothing differs, and the test is not defined
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # ties and zeros, as in small samples of shares
            p = float(stats.wilcoxon(difference).pvalue)
    return {"splits": n, "difference": mean, "low": mean - half, "high": mean + half, "p": p}
