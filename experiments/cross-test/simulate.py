"""Whether intervals of nested cross-fitting contain the change that the delivered repair makes: simulated scores with known truth.

python experiments/cross-test/simulate.py --repetitions 60 --out experiments/cross-test/rows.csv
python experiments/cross-test/simulate.py --repetitions 10 --methods level-up --sizes 600 --out cell.csv
"""

import argparse
import time
from typing import Any

import numpy as np
import pandas as pd

import equipoise as eq
from equipoise.measures import AuditSpec, Cells, PairedDecisions
from equipoise.methods import widened

CUT, OPEN = 0.5, {"allow_worse": True, "max_rise": {"fpr": 1, "selection": 1}}


def world(n: int, seed: int, behind: float = 0.7) -> eq.Scores:
    """Two groups; the scores of positives in F are lower by `behind` logits."""
    rng = np.random.default_rng(seed)
    code, y = rng.integers(0, 2, n), rng.random(n) < 0.3
    logit = rng.normal(size=n) + np.where(y, 1.8 - behind * code, 0.0)
    return eq.Scores.from_arrays(y.astype(int), 1 / (1 + np.exp(1 - logit)), np.array(["M", "F"])[code], reference="M")


def change(scores: eq.Scores, after: np.ndarray) -> dict[str, float]:
    """The change of gap and balanced accuracy from the original threshold."""
    before = (scores.score >= CUT).astype(float)
    old, new = (Cells.of(f, scores.y, scores.attribute) for f in (before, after))
    performance = float(new.performance("balanced_accuracy") - old.performance("balanced_accuracy"))
    return {"gap": float(new.gaps("eod")[0] - old.gaps("eod")[0]), "performance": performance}


def repetition(method: str, n: int, seed: int, truth: eq.Scores) -> list[dict[str, Any]]:
    """For each statistic: the true change by the delivered rule, the estimate, and its intervals with and without the widening."""
    scores, start = world(n, seed), time.perf_counter()
    result = eq.debias(scores, method=method, threshold=CUT, test="cross", **OPEN)
    seconds, held = time.perf_counter() - start, result.held_out
    exact, rows = change(truth, result.rule.decide(truth)), []
    for statistic in ("gap", "performance"):
        row = {
            "method": method,
            "n": n,
            "seed": seed,
            "statistic": statistic,
            "truth": exact[statistic],
            "seconds": seconds,
        }
        pair = PairedDecisions(scores, (held.before, held.after), AuditSpec())
        found = pair.gap_change("eod", "F") if statistic == "gap" else pair.performance_change("balanced_accuracy")
        wide = widened(found, held.spread["F" if statistic == "gap" else ""])
        row |= {"value": found.value, "plain_low": found.low, "plain_high": found.high, "wider_low": wide.low, "wider_high": wide.high}
        rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repetitions", type=int, default=60)
    parser.add_argument("--methods", nargs="+", default=["level-up", "group-thresholds", "single-threshold"])
    parser.add_argument("--sizes", nargs="+", type=int, default=[600, 2000])
    parser.add_argument("--out", default="rows.csv")
    asked, truth = parser.parse_args(), world(200_000, 999_999)
    rows = [
        row
        for method in asked.methods
        for n in asked.sizes
        for seed in range(asked.repetitions)
        for row in repetition(method, n, seed, truth)
    ]
    found = pd.DataFrame(rows)
    found.to_csv(asked.out, index=False, float_format="%.5f")
    for (method, n, statistic), part in found.groupby(["method", "n", "statistic"], sort=False):
        ends = [(part[f"{name}_low"], part[f"{name}_high"]) for name in ("plain", "wider")]
        covered = [((low <= part["truth"] + 1e-9) & (part["truth"] <= high + 1e-9)).mean() for low, high in ends]
        widths = [(high - low).mean() for low, high in ends]
        acted = (part["truth"] != 0).mean()
        print(f"{method:17} {n:5} {statistic:12} acted {acted:.2f}", end=", ")
        print(f"coverage {covered[0]:.3f} -> {covered[1]:.3f}, width {widths[0]:.3f} -> {widths[1]:.3f}")


if __name__ == "__main__":
    main()
