"""Criteria and units of pruning for docs/beyond.md.

Usage: EQUIPOISE_DATA=... python experiments/pruning/pruning_criteria.py SPLITS [DATA ...]

Every criterion with hidden units and with columns of the input, on the same networks (trained once), chosen on validation with the paper's
floors and looked at on test. Seconds are of the processor, a split.
"""

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parents[1] / "peers"))  # libraries.py

import numpy as np
import torch
from libraries import measured

import equipoise as eq
from equipoise.methods import run_method
from equipoise.models import predict
from equipoise.models.units import CRITERIA
from equipoise.studies import read_plan

PRUNING_FLOORS = read_plan("paper-tabular").arm("pruning").min_performance

DATA = ("compas", "bank")
HEAD = (
    "| data | measure | units | criterion | test gap (sd) | mean absolute gap | BA (sd) | on validation: mean absolute gap, BA "
    "| switched off | s a split |\n|---|---|---|---|---|---|---|---|---|---|"
)


def looked(measure: str, found: Sequence[eq.Candidate], parts: Sequence[eq.Parts]) -> tuple[np.ndarray, np.ndarray]:
    """Gap and balanced accuracy (splits, 2) on test, and the chosen step, gap and balanced accuracy (splits, 3) on validation."""
    test, valid = [], []
    for candidate, part in zip(found, parts, strict=True):
        scores = predict(candidate.model, part.test)
        test.append(tuple(measured(measure, candidate.rule.decide(scores), scores).values()))
        row = candidate.trace.iloc[candidate.chosen]
        valid.append((row["step"], row["gap"], row["performance"]))
    return np.array(test), np.array(valid)


def tried(data: str, measure: str, units: str, criterion: str, parts: Sequence[eq.Parts], models: Sequence[torch.nn.Module]) -> None:
    """One line of the table."""
    settings = {} if units == "none" else {"granularity": units, "criterion": criterion, "units": 1}
    start = time.process_time()
    valids, goal = [part.valid for part in parts], eq.Goal(measure, min_performance=PRUNING_FLOORS[data][measure], selection="paper")
    found = [
        run_method("pruning" if settings else "standard", m, rows, {"": goal}, seed=seed, settings=settings)
        for m, rows, seed in zip(models, valids, range(len(parts)), strict=True)
    ]
    seconds = (time.process_time() - start) / len(parts)
    test, valid = looked(measure, found, parts)
    (gap, ba), (spread, ba_spread) = test.mean(0), test.std(0, ddof=1)
    print(
        f"| {data} | {measure} | {units} | {criterion} | {gap:+.3f} ({spread:.3f}) | {np.abs(test[:, 0]).mean():.3f} "
        f"| {ba:.3f} ({ba_spread:.3f}) | {np.abs(valid[:, 1]).mean():.3f}, {valid[:, 2].mean():.3f} | {valid[:, 0].mean():.0f} "
        f"| {seconds:.2f} |",
        flush=True,
    )


def main() -> None:
    splits, names = int(sys.argv[1]), sys.argv[2:] or DATA
    print(HEAD)
    for data in names:
        whole = eq.load(data)
        parts = [eq.split(whole, seed=seed) for seed in range(splits)]
        models = [eq.train(part.train, part.valid, seed=seed) for seed, part in enumerate(parts)]
        for measure in PRUNING_FLOORS[data]:
            tried(data, measure, "none", "original", parts, models)
            for units in ("unit", "input"):
                for criterion in CRITERIA:
                    tried(data, measure, units, criterion, parts, models)


if __name__ == "__main__":
    main()
