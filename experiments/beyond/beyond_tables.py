"""The table of docs/beyond.md from the folder of a finished study, as Markdown: every method beside the network as it came, split by split.

    equipoise study run experiments/beyond/beyond.toml --out results
    python experiments/beyond/beyond_tables.py results

Intervals are 95 % t intervals of the mean over splits, with the corrected variance of splits that share rows. "Paired": the original's
figure minus the method's, on the same splits. "P": twice the median p-value over splits. "Below the limit": the best balanced accuracy
that any rule which knows the group reaches with the original network's scores on the same test rows, at the method's own gap, minus the
method's; a negative figure is above it. Rows from before there was such a column have none.
"""

import argparse

import numpy as np
import pandas as pd

from equipoise.studies import combined_p, corrected_t_test, open_study, ratio_to_training_rows, read_rows

ORIGINAL = "standard"


def interval(values: pd.Series, shared: float) -> str:
    """A mean with its interval."""
    found = corrected_t_test(values.to_numpy(dtype=np.float64), shared)
    return f"{found['difference']:+.3f} [{found['low']:+.3f}, {found['high']:+.3f}]"


def number(value: float, sign: str = "") -> str:
    """A number; nothing where rows from before its column have none."""
    return "" if np.isnan(value) else f"{value:{sign}.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    study = open_study(parser.parse_args().folder)
    rows = read_rows(study)
    print("| data, measure | method (minimum performance) | test gap | mean abs. | p | BA ", end="")
    print("| below the limit, mean | abs. gap closed, paired | BA lost, paired | s a split |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for data in study.plan.data:
        for measure in study.plan.measures:
            here = rows[(rows["data"] == data.name) & (rows["measure"] == measure)]
            before = here[here["method"] == ORIGINAL].set_index("seed")
            shared = 0.0 if data.redraw else ratio_to_training_rows(here)
            for arm in study.plan.methods:
                one = here[here["method"] == arm.name].set_index("seed")
                min_performance = arm.goal(data.name, measure, study.plan.performance).min_performance
                closed = lost = ""
                if arm.name != ORIGINAL:
                    both = before.index.intersection(one.index)
                    closed = interval(before.loc[both, "gap"].abs() - one.loc[both, "gap"].abs(), shared)
                    lost = interval(before.loc[both, "performance"] - one.loc[both, "performance"], shared)
                below = (one["limit"] - one["performance"]).mean()
                method = arm.name if min_performance is None else f"{arm.name} ({min_performance:g})"
                print(
                    f"| {data.title or data.name}, {measure} | {method} | {interval(one['gap'], shared)} "
                    f"| {one['gap'].abs().mean():.3f} | {number(combined_p(one['p_value']))} | {one['performance'].mean():.3f} "
                    f"| {number(below, '+')} | {closed} | {lost} | {one['seconds'].mean():.1f} |"
                )


if __name__ == "__main__":
    main()
