"""What methods would have chosen under other floors, on validation. Usage: python benchmarks/floors.py RESULTS MEASURE"""

import sys
from pathlib import Path

import numpy as np

from equipoise.methods import Goal, select
from equipoise.study import opened, read_traces

FLOORS = (0.52, 0.55, 0.60, 0.65, 0.70, 0.75, 0.80)


def main() -> None:
    measure = sys.argv[2]
    traces = read_traces(opened(Path(sys.argv[1]))).query("measure == @measure")
    print("| data | method | " + " | ".join(f"floor {f:g}: gap, BA" for f in FLOORS) + " |\n|---|---|" + "---|" * len(FLOORS))
    for (data, method), rows in traces.groupby(["data", "method"], sort=False):
        if method == "standard":
            continue
        cells = []
        for min_performance in FLOORS:
            picked = [t.iloc[select(t, Goal(measure, min_performance=min_performance)).row] for _, t in rows.groupby("seed")]
            gap, performance = np.mean([p["gap"] for p in picked]), np.mean([p["performance"] for p in picked])
            cells.append(f"{gap:+.3f}, {performance:.3f}")
        print(f"| {data} | {method} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
