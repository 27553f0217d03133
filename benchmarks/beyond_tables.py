"""The table of docs/beyond.md from the folder of a finished study, as Markdown: every method beside the network as it came, split by split.

    equipoise study run benchmarks/beyond.toml --out results
    python benchmarks/beyond_tables.py results

Intervals are 95 % t intervals of the mean over splits, which share rows. "Paired": the original's figure minus the method's, on the
same splits. "Excess": the mean absolute gap minus its noise floor. "Below the limit": the best balanced accuracy that any rule which knows
the group reaches with the original network's scores on the same test rows, at the method's own gap, minus the method's; a negative figure
is above it. Rows from before there was such a column have none.
"""

import argparse

import numpy as np
import pandas as pd
from scipy import stats

from equipoise.study import opened, read_rows

ORIGINAL = "standard"


def interval(values: pd.Series) -> str:
    """A mean with its interval."""
    half = stats.t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values))
    return f"{values.mean():+.3f} [{values.mean() - half:+.3f}, {values.mean() + half:+.3f}]"


def number(value: float, sign: str = "") -> str:
    """A number; nothing where rows from before its column have none."""
    return "" if np.isnan(value) else f"{value:{sign}.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    study = opened(parser.parse_args().folder)
    rows = read_rows(study)
    print("| data, measure | method (minimum performance) | test gap | mean abs. | noise floor | excess | BA ", end="")
    print("| below the limit, mean | abs. gap closed, paired | BA lost, paired | s a split |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for data in study.plan.data:
        for measure in study.plan.measures:
            here = rows[(rows["data"] == data.name) & (rows["measure"] == measure)]
            before = here[here["method"] == ORIGINAL].set_index("seed")
            for arm in study.plan.methods:
                one = here[here["method"] == arm.name].set_index("seed")
                min_performance = arm.goal(data.name, measure, study.plan.performance).min_performance
                closed = lost = ""
                if arm.name != ORIGINAL:
                    both = before.index.intersection(one.index)
                    closed = interval(before.loc[both, "gap"].abs() - one.loc[both, "gap"].abs())
                    lost = interval(before.loc[both, "performance"] - one.loc[both, "performance"])
                size, noise = one["gap"].abs().mean(), one["noise"].mean()
                below = (one["limit"] - one["performance"]).mean()
                method = arm.name if min_performance is None else f"{arm.name} ({min_performance:g})"
                print(
                    f"| {data.title or data.name}, {measure} | {method} | {interval(one['gap'])} "
                    f"| {size:.3f} | {number(noise)} | {number(size - noise, '+')} | {one['performance'].mean():.3f} "
                    f"| {number(below, '+')} | {closed} | {lost} | {one['seconds'].mean():.1f} |"
                )


if __name__ == "__main__":
    main()
