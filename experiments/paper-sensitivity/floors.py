"""What methods would have chosen under other minimum performances, on the validation set, from the traces of a finished study.

Usage: python experiments/paper-sensitivity/floors.py FOLDER > experiments/paper-sensitivity/floors.csv

One line per data, measure, method and minimum performance: means over splits of the gap and the balanced accuracy of the step with the
smallest |gap| at or above the minimum, and the share of splits that have such a step.
"""

import sys
from pathlib import Path

import pandas as pd

from equipoise.methods import Goal, select
from equipoise.studies import open_study, read_traces

LEAST = (0.52, 0.55, 0.60, 0.65, 0.70, 0.75, 0.80, 0.82, 0.84)


def chosen(traces: pd.DataFrame, measure: str, least: float) -> dict[str, float]:
    """The means over splits of the steps chosen under a minimum performance."""
    goal = Goal(measure, min_performance=least, selection="paper")
    steps = pd.DataFrame([trace.iloc[select(trace.reset_index(drop=True), goal).row] for _, trace in traces.groupby("seed")])
    able = (traces.groupby("seed")["performance"].max() >= least).mean()
    return {"min_performance": least, "gap": steps["gap"].mean(), "performance": steps["performance"].mean(), "met": able}


def main() -> None:
    study = open_study(Path(sys.argv[1]))
    traces = read_traces(study)
    keys = ["data", "measure", "method"]
    cells = [
        {**dict(zip(keys, key, strict=True)), **chosen(some, str(key[1]), least)}
        for key, some in traces.groupby(keys, sort=False)
        if study.plan.arm(str(key[2])).method != "standard"
        for least in LEAST
    ]
    print(pd.DataFrame(cells).to_csv(index=False, float_format="%.4f"), end="")


if __name__ == "__main__":
    main()
