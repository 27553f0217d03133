"""How fast the measures are, beside fairlearn and scikit-learn in the same run. Usage: python benchmarks/measures.py

Ratios are medians over interleaved repeats, so that a busy neighbour slows both sides alike. fairlearn's bootstrap is timed with a
few draws and scaled to 1,000, because 1,000 would take half an hour; its row says so.
"""

import json
import os
import statistics
import sys
import time
from collections.abc import Callable

os.environ.setdefault("OMP_NUM_THREADS", "1")

import fairlearn.metrics as fl
import numpy as np
import pandas as pd
from sklearn.metrics import balanced_accuracy_score

from equipoise.comparison import audit
from equipoise.data import Attribute, Scores
from equipoise.measures import Cells, cell_index, resample_counts, sums_by_unit, sweep, units_of


def seconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def compare(
    name: str, ours: Callable[[], object], theirs: Callable[[], object], *, repeats: int, scale: float = 1.0, note: str = ""
) -> dict[str, object]:
    """Seconds of both sides, turn by turn, and the median of their ratios."""
    pairs = [(seconds(ours), seconds(theirs) * scale) for _ in range(repeats)]
    row = {
        "benchmark": name,
        "ours_s": round(statistics.median(a for a, _ in pairs), 4),
        "theirs_s": round(statistics.median(b for _, b in pairs), 2),
        "times_faster": round(statistics.median(b / a for a, b in pairs), 1),
        "repeats": repeats,
        "note": note,
    }
    print(f"{name}: {row['ours_s']} s against {row['theirs_s']} s, {row['times_faster']} times faster {note}", file=sys.stderr)
    return row


def million() -> dict[str, object]:
    rng = np.random.default_rng(0)
    n = 1_000_000
    codes, y = rng.integers(0, 2, n), rng.integers(0, 2, n)
    score = np.clip(rng.normal(0.5 + 0.1 * y - 0.05 * codes, 0.2), 0, 1)

    def ours() -> object:
        return sweep(score, y, Attribute("group", ("ref", "other"), codes), ("spd", "eod", "balanced_accuracy")).best("balanced_accuracy")

    def grid() -> float:
        # What the published code does at each of 101 thresholds: the performance, then the gap.
        best = 0.0
        for t in np.linspace(0, 1, 101):
            decision = score > t
            best = max(best, balanced_accuracy_score(y, decision))
            decision[(codes == 1) & (y == 1)].mean() - decision[(codes == 0) & (y == 1)].mean()
        return best

    return compare("sweep of 1,000,000 scores, every threshold, against 101 thresholds with scikit-learn", ours, grid, repeats=3)


def patients() -> list[dict[str, object]]:
    rng = np.random.default_rng(1)
    n, people = 100_000, 50_000
    patient = rng.integers(0, people, n)
    codes, y = patient % 2, rng.integers(0, 2, n)
    score = np.clip(rng.normal(0.5 + 0.1 * y - 0.05 * codes, 0.2), 0, 1)
    f = (score >= 0.5).astype(float)
    units = units_of(patient.astype(object), n)
    names = np.array(["ref", "other"])[codes]

    def ours() -> object:
        cell = cell_index(y, codes, 2)
        table = np.concatenate([sums_by_unit(units, cell, values, 6) for values in (1.0, f)], axis=1)
        drawn = np.concatenate([block @ table for block in resample_counts(len(table), 1000, 0)]).reshape(1000, 2, 3, 2)
        return Cells(("ref", "other"), drawn[:, 0], drawn[:, 1]).gaps("eod")

    draws = 5

    def theirs() -> object:
        return fl.MetricFrame(
            metrics={"tpr": fl.true_positive_rate, "selection": fl.selection_rate},
            y_true=y,
            y_pred=f,
            sensitive_features=names,
            n_boot=draws,
            ci_quantiles=[0.025, 0.975],
            random_state=0,
        ).difference_ci()

    frame = pd.DataFrame({"y": y, "p": score, "g": np.array(list("ABCDEF"))[patient % 6], "patient": patient})
    scores = Scores.from_frame(frame, label="y", score="p", group="g", reference="A", patient="patient")
    rates = {
        "selection": fl.selection_rate,
        "tpr": fl.true_positive_rate,
        "fpr": fl.false_positive_rate,
        "tnr": fl.true_negative_rate,
        "fnr": fl.false_negative_rate,
    }

    def their_audit() -> object:
        return fl.MetricFrame(
            metrics=rates, y_true=y, y_pred=f, sensitive_features=frame["g"], n_boot=draws, ci_quantiles=[0.025, 0.975], random_state=0
        ).by_group_ci

    note = f"(fairlearn resamples rows, not patients; timed with {draws} draws, scaled to 1,000)"
    return [
        compare("1,000 bootstrap draws, 100,000 rows of 50,000 patients", ours, theirs, repeats=3, scale=1000 / draws, note=note),
        compare(
            "audit of 100,000 rows in 6 groups, 1,000 draws (ours: 9 rates, 6 gaps, 5 performance measures; fairlearn: 5 rates)",
            lambda: audit(scores, threshold=0.5),
            their_audit,
            repeats=3,
            scale=1000 / draws,
            note=note,
        ),
    ]


def main() -> None:
    rows = [million(), *patients()]
    print(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
