"""Does honest selection bring the test gap nearer to what the validation part promised? The same networks, chosen from in three ways.

Usage: EQUIPOISE_DATA=... python experiments/beyond/selection.py [splits] [data ...]
Networks are trained once and kept in EQUIPOISE_NETWORKS (the system's folder for temporary files if that is not set).
"""

import os
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parents[1] / "peers"))  # libraries.py

import numpy as np
import torch
from libraries import measured

import equipoise as eq
from equipoise.methods import SELECTIONS, run_method
from equipoise.models import predict
from equipoise.studies import read_plan

BIAS_GDA_FLOORS = read_plan("paper-tabular").arm("bias-gda").min_performance
PRUNING_FLOORS = read_plan("paper-tabular").arm("pruning").min_performance

FLOORS = {"bias-gda": BIAS_GDA_FLOORS, "pruning": PRUNING_FLOORS}
SETTINGS = {  # with fewer looks than in the paper's tables, since honest selection runs a method up to four times
    ("bias-gda", "compas"): {"schedule": "paper", "evals_per_epoch": 1},
    ("bias-gda", "bank"): {"schedule": "paper", "evals_per_epoch": 1, "epochs": 60, "learning_rate": 3e-5},  # as far in fewer, longer steps
    ("pruning", "compas"): {"units": 1},
    ("pruning", "bank"): {"units": 2},
}
MEASURES = ("spd", "eod")
HEAD = """| data, measure | method | selection | promised, mean | promised, mean absolute | test, mean | test, mean absolute \
| test less promised, mean of absolute values | mean absolute difference | BA | original kept | s a split |"""


def networks(name: str, parts: list[eq.Parts]) -> list[torch.nn.Module]:
    """The networks of these splits, from the file of an earlier run where there is one."""
    folder = Path(os.environ.get("EQUIPOISE_NETWORKS", tempfile.gettempdir()))
    file = folder / f"equipoise-selection-{name}-{len(parts)}.pt"
    if not file.exists():
        torch.save([eq.train(p.train, p.valid, seed=seed) for seed, p in enumerate(parts)], file)
    return list(torch.load(file, weights_only=False))


def row(candidate: eq.Candidate, test: eq.Cohort, measure: str) -> tuple[float, float, float, bool]:
    """What was promised on validation, what is so on test, the balanced accuracy there, and whether the original was kept."""
    scores = predict(candidate.model, test)
    gap, accuracy = measured(measure, candidate.rule.decide(scores), scores).values()
    chosen = candidate.trace.iloc[candidate.chosen]
    promised = chosen["gap_honest" if "gap_honest" in chosen else "gap"]
    return float(promised), gap, accuracy, candidate.chosen == 0


def main() -> None:
    torch.set_num_threads(1)
    splits = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    print(HEAD + "\n" + "|---" * 12 + "|")
    for name in sys.argv[2:] or ("compas", "bank"):
        parts = [eq.split(eq.load(name), seed=seed) for seed in range(splits)]
        models = networks(name, parts)
        for measure in MEASURES:
            for method, floors in FLOORS.items():
                for selection in SELECTIONS:
                    goal, given = eq.Goal(measure, min_performance=floors[name][measure], selection=selection), SETTINGS[method, name]
                    start = time.perf_counter()
                    found = [
                        run_method(method, m, rows, {"": goal}, seed=seed, settings=given)
                        for m, rows, seed in zip(models, [p.valid for p in parts], list(range(splits)), strict=True)
                    ]
                    seconds = (time.perf_counter() - start) / splits
                    rows = [row(c, p.test, measure) for c, p in zip(found, parts, strict=True)]
                    promised, test, accuracy, kept = np.array(rows).T
                    print(
                        f"| {name}, {measure} | {method} | {selection} | {promised.mean():+.3f} | {np.abs(promised).mean():.3f} "
                        f"| {test.mean():+.3f} | {np.abs(test).mean():.3f} | {(np.abs(test) - np.abs(promised)).mean():+.3f} "
                        f"| {np.abs(test - promised).mean():.3f} | {accuracy.mean():.3f} | {int(kept.sum())} | {seconds:.1f} |",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
