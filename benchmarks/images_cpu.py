"""Speed on a CPU, one thread: a pruning step and an epoch of bias-gda of ResNet-18 on 1,000 phantoms at 64 px, beside the bare network.

    OMP_NUM_THREADS=1 python benchmarks/images_cpu.py

The ceilings are a plain forward pass, and a forward and backward pass, of the bare network over all images in batches of 32, on inputs
that lie ready in memory. Everything takes turns, so that a busy neighbour slows all alike; the median of the turns is printed.
"""

import argparse
import copy
import statistics
import time
from collections.abc import Callable

import torch

from equipoise.methods import Goal, Label, run_method
from equipoise.methods.pruning import most_influential
from equipoise.models import backbone, under_repair
from equipoise.studies import phantom

BATCH = 32
FINE_TUNING = {"schedule": "paper", "batch": BATCH, "stop_below": 0.0}  # two epochs less one of them


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    cohort = phantom(n=options.rows, size=options.size, seed=0)
    model = backbone("resnet-18").eval()
    bare = copy.deepcopy(model)
    x = cohort.inputs[torch.arange(options.rows)]

    networks = under_repair(model, cohort)
    networks.units("conv1")
    label = Label.of(cohort, Goal("eod", min_performance=0.0, selection="paper"))
    scores = networks.evaluate()
    weights = label.functional(scores >= label.evaluate(scores).threshold)[1]
    state = {"influence": networks.influence(weights)[1]}

    def forward() -> None:
        with torch.no_grad():
            for part in x.split(BATCH):
                bare(part)

    def both() -> None:
        for part in x.split(BATCH):
            bare(part).sum().backward()
            bare.zero_grad()

    def step() -> None:
        networks.prune(most_influential(state["influence"], torch.zeros_like(state["influence"], dtype=torch.bool), 150))
        found, state["influence"] = networks.influence(weights)
        label.evaluate(found)

    def longer() -> None:
        run_method(
            "bias-gda",
            model,
            cohort,
            {"": Goal("eod", min_performance=0.0, selection="paper")},
            seed=0,
            settings={**FINE_TUNING, "epochs": 2},
        )

    def shorter() -> None:
        run_method(
            "bias-gda",
            model,
            cohort,
            {"": Goal("eod", min_performance=0.0, selection="paper")},
            seed=0,
            settings={**FINE_TUNING, "epochs": 1},
        )

    jobs: dict[str, Callable[[], None]] = {"forward": forward, "both": both, "step": step, "longer": longer, "shorter": shorter}
    took: dict[str, list[float]] = {name: [] for name in jobs}
    for _ in range(options.turns):
        for name, job in jobs.items():
            start = time.perf_counter()
            job()
            took[name].append(time.perf_counter() - start)
    median = {name: statistics.median(seconds) for name, seconds in took.items()}
    gda = median["longer"] - median["shorter"]
    print(f"ResNet-18, {options.rows:,} phantoms at {options.size} px, one thread, medians of {options.turns} turns")
    print("| what | seconds | images/s | by the ceiling |\n|---|---|---|---|")
    plain = median["forward"] + median["both"]
    for name, seconds, ceiling in (
        ("bare forward", median["forward"], None),
        ("bare forward + backward", median["both"], None),
        ("pruning step (ceiling: forward + backward, and forward)", median["step"], plain),
        ("bias-gda epoch, 3 looks (ceiling: forward + backward, and 3 times forward)", gda, median["both"] + 3 * median["forward"]),
    ):
        print(f"| {name} | {seconds:.1f} | {options.rows / seconds:,.0f} | {'' if ceiling is None else f'{seconds / ceiling:.2f}'} |")


if __name__ == "__main__":
    main()
