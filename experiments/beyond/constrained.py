"""Constrained fine-tuning beside bias GD/A on the same networks and splits, or its own settings beside each other.

Usage: EQUIPOISE_DATA=... python experiments/beyond/constrained.py [--splits 5] [--first 0] [--data adult bank compas loh zafar]
           [--methods standard bias-gda constrained] [--measures spd eod] [--selection paper] [--set teacher=0 optimiser=adam]
Networks are trained once and kept in the folder EQUIPOISE_NETWORKS, or where temporary files go.
"""

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch

import equipoise as eq
from equipoise.measures import Cells
from equipoise.methods import run_method
from equipoise.models import MLP, predict
from equipoise.studies import read_plan

BIAS_GDA_FLOORS = read_plan("paper-tabular").arm("bias-gda").min_performance
SIMULATED_FLOORS = {"bias-gda": read_plan("paper-sensitivity").arm("bias-gda").min_performance}

SIMULATED: dict[str, dict[str, Any]] = {
    "loh": {"alpha": 2.5, "n": 10_000},
    "zafar": {"vartheta": 0.7, "n": 10_000, "clockwise": True, "mapping": "gaussian"},
}
FLOORS = {  # of constrained fine-tuning: what it is to keep
    "adult": {"spd": 0.78, "eod": 0.82},
    "bank": {"spd": 0.86, "eod": 0.86},
    "compas": {"spd": 0.64, "eod": 0.64},
    "loh": {"spd": 0.66},
    "zafar": {"spd": 0.70},
}


def parts_of(name: str, seeds: range) -> list[eq.Parts]:
    if name in SIMULATED:
        return [eq.split(eq.load(name, **SIMULATED[name], seed=seed), seed=seed) for seed in seeds]
    cohort = eq.load(name)
    return [eq.split(cohort, seed=seed) for seed in seeds]


def networks_of(name: str, parts: list[eq.Parts], seeds: range) -> list[torch.nn.Module]:
    """One a split, trained as one stack, or as they were kept."""
    folder = Path(os.environ.get("EQUIPOISE_NETWORKS", Path(tempfile.gettempdir()) / "equipoise-networks"))
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{name}-{seeds.start}-{seeds.stop}.pt"
    if not file.exists():
        models = [eq.train(p.train, p.valid, seed=seed) for seed, p in zip(seeds, parts, strict=True)]
        torch.save([m.state_dict() for m in models], file)
    found: list[torch.nn.Module] = []
    for state, part in zip(torch.load(file), parts, strict=True):
        model = MLP(part.train.inputs.shape[1])
        model.load_state_dict(state)
        found.append(model.eval())
    return found


def floor_of(method: str, name: str, measure: str) -> float | None:
    if method == "bias-gda":
        return SIMULATED_FLOORS["bias-gda"] if name in SIMULATED else BIAS_GDA_FLOORS[name][measure]
    return FLOORS[name][measure] if method == "constrained" else None


def main() -> None:
    asked = argparse.ArgumentParser(usage=__doc__)
    asked.add_argument("--splits", type=int, default=5)
    asked.add_argument("--first", type=int, default=0)
    asked.add_argument("--data", nargs="+", default=list(FLOORS))
    asked.add_argument("--methods", nargs="+", default=["standard", "bias-gda", "constrained"])
    asked.add_argument("--measures", nargs="+", default=["spd", "eod"])
    asked.add_argument("--selection", default="paper")
    asked.add_argument("--set", nargs="*", default=[], help="settings of constrained: name=value")
    given = asked.parse_args()
    settings = {k: v if k in ("optimiser", "schedule") else json.loads(v) for k, v in (pair.split("=") for pair in given.set)}
    given_to = {"constrained": {"schedule": "paper", **settings}, "bias-gda": {"schedule": "paper"}}
    torch.set_num_threads(1)
    seeds = range(given.first, given.first + given.splits)
    print("| data | measure | method | minimum performance | gap (sd) | mean abs. gap | BA (sd) | gap and BA on validation | s a split |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name in given.data:
        parts = parts_of(name, seeds)
        models = networks_of(name, parts, seeds)
        for measure in (m for m in given.measures if m in FLOORS[name]):
            for method in given.methods:
                min_performance = floor_of(method, name, measure)
                start = time.perf_counter()
                goal = eq.Goal(measure, min_performance=min_performance, selection=given.selection)
                valids = [p.valid for p in parts]
                found = [
                    run_method(method, m, rows, {"": goal}, seed=seed, settings=given_to.get(method, {}))
                    for m, rows, seed in zip(models, valids, seeds, strict=True)
                ]
                took = (time.perf_counter() - start) / len(seeds)
                rows = []
                for candidate, part in zip(found, parts, strict=True):
                    scores = predict(candidate.model, part.test)
                    cells = Cells.of(candidate.rule.decide(scores), scores.y, scores.attribute)
                    chosen = candidate.trace.iloc[candidate.chosen]
                    performance = float(cells.performance("balanced_accuracy"))
                    rows.append((cells.gaps(measure)[0], performance, chosen["gap"], chosen["performance"]))
                gap, performance, valid_gap, valid_performance = np.array(rows).T
                print(
                    f"| {name} | {measure} | {method} | {min_performance or ''} | {gap.mean():+.3f} ({gap.std(ddof=1):.3f}) "
                    f"| {np.abs(gap).mean():.3f} | {performance.mean():.3f} ({performance.std(ddof=1):.3f}) "
                    f"| {np.mean(valid_gap):+.3f}, {np.mean(valid_performance):.3f} | {took:.2f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
