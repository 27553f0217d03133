"""Calibration of repaired networks before and after recalibration.

Usage: python experiments/recalibration/recalibration.py --out FILE [--splits 3] [--data compas bank adult]

For each data set, method and split: how far scores on the test set are from the observed frequencies for the original, the repaired and the
recalibrated network, and on how many rows of the repair set and the test set the decision changes. Rows of other
data sets in FILE are kept.
"""

import argparse
import os
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pandas as pd

import equipoise as eq
from equipoise.measures import Calibration
from equipoise.methods import Goal, recalibrate_result, run_method
from equipoise.models import predict

MEASURE = "spd"
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "bias-gda": ("bias-gda", {"schedule": "paper"}),
    "pruning": ("pruning", {}),
    "constrained": ("constrained", {}),
    "bias-score": ("bias-score", {}),
}


def rows_of(data: str, splits: int) -> list[dict[str, object]]:
    """The rows of one data set."""
    parts = [eq.split(eq.load(data), seed=seed) for seed in range(splits)]
    models = [eq.train(part.train, part.valid, seed=seed) for seed, part in enumerate(parts)]
    found: list[dict[str, object]] = []
    for name, (method, settings) in METHODS.items():
        start = time.perf_counter()
        repair, goal = [part.valid for part in parts], Goal(MEASURE, max_loss=0.05, selection="paper")
        candidates = [
            run_method(method, m, rows, {"": goal}, seed=seed, settings=settings)
            for m, rows, seed in zip(models, repair, range(splits), strict=True)
        ]
        seconds = (time.perf_counter() - start) / splits
        for split, (candidate, model, part) in enumerate(zip(candidates, models, parts, strict=True)):
            start = time.perf_counter()
            after = recalibrate_result(
                candidate, model, part.valid
            )  # the test set is not given to it: what follows is what a user would see
            took = time.perf_counter() - start
            changed = 0
            for cohort in (part.valid, part.test):
                old, new = (one.rule.decide(predict(one.model, cohort)) for one in (candidate, after))
                changed += int((old != new).sum())
            told: dict[str, object] = {"data": data, "method": name, "split": split, "gap_before": candidate.trace["gap"].iloc[0]}
            told |= {"gap": candidate.trace["gap"].iloc[candidate.chosen], "changed": changed, "rows": len(part.valid) + len(part.test)}
            about = after.recalibration
            told |= {"folded": about is not None and about.folded, "slope": np.nan if about is None else about.map.slope}
            for which, network in (("original", model), ("repaired", candidate.model), ("recalibrated", after.model)):
                scores = predict(network, part.test)
                own = Calibration.of(scores.score, scores.y)
                told |= {f"{which}_large": own.in_the_large, f"{which}_slope": own.slope, f"{which}_error": own.error}
            found.append({**told, "seconds": took, "repair_seconds": seconds})
        print(pd.DataFrame(found[-splits:]).round(3).to_string(), flush=True)
    return found


def main() -> None:
    """Writes the rows of the data sets that are named, or of all three."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--splits", type=int, default=3)
    parser.add_argument("--data", nargs="+", default=["compas", "bank", "adult"])
    given = parser.parse_args()
    for data in given.data:
        found = pd.DataFrame(rows_of(data, given.splits))
        kept = pd.read_csv(given.out) if given.out.exists() else pd.DataFrame()
        if len(kept):
            kept = kept[kept["data"] != data]
        pd.concat([kept, found]).round(6).to_csv(given.out, index=False)


if __name__ == "__main__":
    main()
