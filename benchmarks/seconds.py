"""Seconds of each step on one COMPAS split. Usage: EQUIPOISE_DATA=... python benchmarks/seconds.py"""

import os
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

import equipoise as eq
from equipoise.methods import METHODS, run_method
from equipoise.studies import read_plan

BIAS_GDA_FLOORS = read_plan("paper-tabular").arm("bias-gda").min_performance
PRUNING_FLOORS = read_plan("paper-tabular").arm("pruning").min_performance

PUBLISHED = {  # seconds of the published code for one COMPAS split and measure on such a machine
    "train": 86, "pruning": 19, "bias-gda": 50, "reject-option": 6, "random": 25, "adversarial-finetune": 31, "adversarial-training": 500,
}  # fmt: skip


def main() -> None:
    torch.set_num_threads(1)
    parts = eq.split(eq.load("compas"), seed=0)
    print("| step | published code, s | seconds | times faster |\n|---|---|---|---|")
    model: torch.nn.Module | None = None
    for step in ("train", *[m for m in METHODS if m != "standard"]):
        start = time.perf_counter()
        if model is None:
            model = eq.train(parts.train, parts.valid, seed=0)
        else:
            floors = {"pruning": PRUNING_FLOORS, "bias-gda": BIAS_GDA_FLOORS}.get(step)
            goal = (
                eq.Goal("spd", min_performance=floors["compas"]["spd"], selection="paper")
                if floors
                else eq.Goal("spd", max_gap=0.05, selection="paper")
            )
            settings = {"schedule": "paper"} if "schedule" in METHODS[step].settings.__dataclass_fields__ else {}
            train = parts.train if METHODS[step].needs_train else None
            run_method(step, model, parts.valid, {"": goal}, seed=0, train=train, settings=settings)
        seconds, theirs = time.perf_counter() - start, PUBLISHED.get(step)
        print(f"| {step} | {theirs or ''} | {seconds:.2f} | {f'{theirs / seconds:.0f}' if theirs else ''} |", flush=True)


if __name__ == "__main__":
    main()
