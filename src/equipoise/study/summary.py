"""Numbers across splits: means and standard deviations, ranks, the paper's numbers, and differences from a baseline, paired by split.

A signed mean hides scatter (gaps of -0.1 and +0.1 average to 0), so the mean |gap| is next to it, and |gap| is what is compared. `noise` is
the mean |gap| of the permutation distribution: the same decisions with the groups permuted among patients.
"""

import warnings

import numpy as np
import numpy.typing as npt
import pandas as pd

from equipoise.errors import pick
from equipoise.study.paper import published
from equipoise.study.plan import Plan
from equipoise.study.rows import LIMIT

CELL = ["data", "measure", "method"]
SETS = {"test": "", "validation": "valid_"}  # set of the split: the prefix of its columns
DIGITS = 3  # at which ranks are shared
ORIGINAL = "standard"  # the method that leaves the network as it is
FloatArray = npt.NDArray[np.float64]


def of_set(rows: pd.DataFrame, part: str) -> pd.DataFrame:
    """The rows with gap, performance and noise of the test set or of the validation set."""
    start = SETS[pick("set of the split", part, SETS)]
    return rows.assign(**{name: rows[f"{start}{name}"] for name in ("gap", "performance", "noise")}) if start else rows


def summarise(rows: pd.DataFrame, part: str = "test") -> pd.DataFrame:
    """One line per (data, measure, method): splits, mean and sd of the gap and of performance, mean |gap| and noise, the share of splits
    that met the goal, seconds.

    >>> rows = pd.DataFrame({"data": "d", "measure": "eod", "method": "m", "seed": [0, 1], "gap": [-0.1, 0.1],
    ...                      "performance": [0.7, 0.9], "met": [True, False], "seconds": [1.0, 3.0]})
    >>> summarise(rows)[["splits", "gap_mean", "abs_gap_mean", "performance_mean", "met"]].values.tolist()
    [[2.0, 0.0, 0.1, 0.8, 0.5]]
    """
    chosen = of_set(rows, part)
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


def study_table(plan: Plan, rows: pd.DataFrame, part: str = "test") -> pd.DataFrame:
    """The summary of a study with each method's rank (1 best, 2 second, 0 other) and, where the paper has numbers, those and the
    differences from them.

    Best is the smallest |mean gap|, or the highest mean performance, of all methods but the original network; ties at three digits share.
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
    frame["excess"] = frame["abs_gap_mean"] - frame["noise"]
    frame["below_limit"] = _below_limit(frame, rows) if part == "test" and LIMIT in rows else np.nan
    original = frame["method"].map(methods) == ORIGINAL
    for quantity, merit in (("gap", -frame["gap_mean"].abs()), ("performance", frame["performance_mean"])):
        places = merit.round(DIGITS).where(~original).groupby([frame["data"], frame["measure"]]).rank(method="dense", ascending=False)
        frame[f"{quantity}_rank"] = places.where(places <= 2, 0).fillna(0).astype(int)
    return frame


def _below_limit(frame: pd.DataFrame, rows: pd.DataFrame) -> list[float]:
    """How far each method is on average below the upper bound (group-aware)."""
    below = (rows[LIMIT] - rows["performance"]).groupby([rows[name] for name in CELL]).mean()
    return [float(below[tuple(row)]) for row in frame[CELL].itertuples(index=False)]


def compare(rows: pd.DataFrame, baseline: str = ORIGINAL, level: float = 0.95, part: str = "test") -> pd.DataFrame:
    """One line per (data, measure, method, quantity): the mean difference from the baseline over common splits, its t interval, a p-value.

    The quantities are |gap| and performance. The test is Wilcoxon's signed-rank test, two-sided. Fewer than two common splits give no
    interval.
    """
    pick("method to compare with", baseline, list(dict.fromkeys(rows["method"])))
    chosen = of_set(rows, part)
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
    """Mean, t interval and signed-rank p-value of paired differences."""
    from scipy import stats

    n = len(difference)
    mean = float(difference.mean()) if n else np.nan
    half = float(stats.t.ppf(0.5 + level / 2, n - 1) * difference.std(ddof=1) / np.sqrt(n)) if n > 1 else np.nan
    if n < 2:
        p = np.nan
    elif not difference.any():
        p = 1.0  # no difference at all: the test is not defined
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # ties and zeros, which are common in small samples of proportions
            p = float(stats.wilcoxon(difference).pvalue)
    return {"splits": n, "difference": mean, "low": mean - half, "high": mean + half, "p": p}
