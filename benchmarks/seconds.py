"""Seconds of each step on one COMPAS split, alone and as one of a stack of 20. Usage: EQUIPOISE_DATA=... python benchmarks/seconds.py"""

import os
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

import equipoise as eq
from equipoise.methods import METHODS, run_many
from equipoise.models import train_stack
from equipoise.study import read_plan

BIAS_GDA_FLOORS = read_plan("paper-tabular").arm("bias-gda").min_performance
PRUNING_FLOORS = read_plan("paper-tabular").arm("pruning").min_performance

PUBLISHED = {  # seconds of the published code for one COMPAS split and measure on such a machine
    "train": 86, "pruning": 19, "bias-gda": 50, "reject-option": 6, "random": 25, "adversarial-finetune": 31, "adversarial-training": 500,
}  # fmt: skip


def main() -> None:
    torch.set_num_threads(1)
    parts = [eq.split(eq.load("compas"), seed=seed) for seed in range(20)]
    print("| step | published code, s | alone, s | one of 20, s | times faster, alone | one of 20 |\n|---|---|---|---|---|---|")
    models: list[torch.nn.Module] = []
    for step in ("train", *[m for m in METHODS if m != "standard"]):
        seconds = []
        for count in (1, 20):
            some = parts[:count]
            start = time.perf_counter()
            if step == "train":
                models = list(train_stack([(p.train, p.valid, seed) for seed, p in enumerate(some)]))
            else:
                floors = {"pruning": PRUNING_FLOORS, "bias-gda": BIAS_GDA_FLOORS}.get(step)
                goal = (
                    eq.Goal("spd", min_performance=floors["compas"]["spd"], selection="paper")
                    if floors
                    else eq.Goal("spd", max_gap=0.05, selection="paper")
                )
                settings = {"schedule": "paper"} if "schedule" in METHODS[step].settings.__dataclass_fields__ else {}
                trains = [p.train for p in some] if METHODS[step].needs_train else None
                run_many(step, models[:count], [p.valid for p in some], goal, seeds=range(count), trains=trains, settings=settings)
            seconds.append((time.perf_counter() - start) / count)
        theirs = PUBLISHED.get(step)
        ratios = [f"{theirs / s:.0f}" if theirs else "" for s in seconds]
        print(f"| {step} | {theirs or ''} | {seconds[0]:.2f} | {seconds[1]:.3f} | {ratios[0]} | {ratios[1]} |", flush=True)


if __name__ == "__main__":
    main()
