"""Stacks of tabular networks on a CPU and on a GPU: seconds of training, bias GD/A and pruning, and how far their scores lie apart.

    OMP_NUM_THREADS=1 python benchmarks/stack_device.py [--rows 30000] [--sizes 5 10 20] [--devices cpu cuda] [--epochs 3] [--steps 40]

The data are those of `paper-sensitivity` (Zafar, vartheta 0.7, 501 inputs). Training: seconds per epoch, the first not counted (a GPU
records its steps in it). bias-gda: seconds per epoch on the validation set, three evaluations included. Pruning: seconds per step times
352, one for every unit. The differences are the largest between scores on the validation set and those of the first device, from the same
seeds: after 5 steps of training, and after one epoch of bias GD/A from the same networks. They are of 5 steps because training amplifies
rounding: after a few dozen, the networks of two devices differ, as do those of one CPU from initial weights that differ in the last
digit.
"""

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from equipoise.data import Cohort, Parts, split
from equipoise.methods import Goal, run_many
from equipoise.models import MLP, Training, computing_on, outputs, sigmoid, train_stack
from equipoise.study import read_plan

UNITS = 352  # of the paper's network
STEPS = 5  # of training, after which scores are compared
Scores = np.typing.NDArray[np.float64]


@dataclass(frozen=True)
class Timed:
    """Seconds on one device, and scores (R, rows) after a few steps of training and after one epoch of bias GD/A."""

    training: float
    bias_gda: float
    pruning: float
    trained: Scores
    repaired: Scores


def measure(parts: Sequence[Parts], models: Sequence[MLP], device: str, epochs: int, steps: int) -> Timed:
    """The timings on a device; methods start from the networks that are given."""
    seeds, valids = list(range(len(parts))), [p.valid for p in parts]
    three = [(p.train, p.valid, seed) for seed, p in enumerate(parts)]

    def seconds(method: str, settings: dict[str, object]) -> tuple[float, Scores]:
        start = time.perf_counter()
        found = run_many(
            method, models, valids, Goal(measure="spd", min_performance=0.55, selection="paper"), seeds=seeds, settings=settings
        )
        return time.perf_counter() - start, scores([c.model for c in found], valids)

    with computing_on(device):
        ends: list[float] = []
        train_stack(three, settings=Training(epochs=1 + epochs), progress=lambda *_: ends.append(time.perf_counter()))
        few_steps = [(p.train.take(np.arange(STEPS * 64)), p.valid, seed) for seed, p in enumerate(parts)]
        trained = train_stack(few_steps, settings=Training(epochs=1, restore="last"))
        first, repaired = seconds("bias-gda", {"schedule": "paper", "epochs": 1})
        more, _ = seconds("bias-gda", {"schedule": "paper", "epochs": 1 + 5 * epochs})
        few, _ = seconds("pruning", {"units": 1, "max_steps": 1})
        many, _ = seconds("pruning", {"units": 1, "max_steps": 1 + steps})
    gda, pruning = (more - first) / (5 * epochs), (many - few) / steps * UNITS
    return Timed((ends[-1] - ends[0]) / epochs, gda, pruning, scores(trained, valids), repaired)


def scores(models: Sequence[torch.nn.Module], cohorts: Sequence[Cohort]) -> Scores:
    """The scores (R, rows) of the networks, computed on the CPU."""
    with computing_on("cpu"):
        return np.stack([sigmoid(outputs(m, c.inputs)).numpy() for m, c in zip(models, cohorts, strict=True)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=30_000)
    parser.add_argument("--sizes", type=int, nargs="+", default=[5, 10, 20])
    parser.add_argument("--devices", nargs="+", default=["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"])
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=40)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    name = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    print(f"torch {torch.__version__}{name}; one compute thread; Zafar, vartheta 0.7, {asked.rows:,} rows", flush=True)
    cohort = read_plan("paper-sensitivity").named("zafar-0.7").load(n=asked.rows)
    print("| R | device | training, s per epoch | bias-gda, s per epoch | pruning, s | scores: training | scores: bias-gda |")
    print("|---|---|---|---|---|---|---|")
    for size in asked.sizes:
        parts = [split(cohort, seed=seed) for seed in range(size)]
        with computing_on(asked.devices[0]):
            models = train_stack([(p.train, p.valid, seed) for seed, p in enumerate(parts)], settings=Training(epochs=2))
        base: Timed | None = None
        for device in asked.devices:
            found = measure(parts, models, device, asked.epochs, asked.steps)
            base = base or found
            apart = [np.abs(found.trained - base.trained).max(), np.abs(found.repaired - base.repaired).max()]
            times = f"{found.training:.3f} | {found.bias_gda:.3f} | {found.pruning:.1f}"
            print(f"| {size} | {device} | {times} | {apart[0]:.1e} | {apart[1]:.1e} |", flush=True)


if __name__ == "__main__":
    main()
