"""Speed on a GPU beside its ceilings: 3,368 images at 224 px, the size of the paper's validation set. Prints a Markdown table.

    python benchmarks/gpu.py [--networks resnet-18,vgg-16] [--rows 3368] [--size 224]

A ceiling is the bare network on inputs that lie ready on the GPU, in bfloat16, channels-last and compiled: a plain forward pass, and a
forward and backward pass, over all images; in batches of 256, and in mini-batches of 32 with recorded steps for bias-gda, which takes
mini-batches of 32. All in one run, each time the median of several.
"""

import argparse
import copy
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import nn

from equipoise.data import Cohort, Images
from equipoise.methods import Goal, Label, run_method
from equipoise.methods.pruning import most_influential
from equipoise.models import backbone, under_repair

LAYERS = {"resnet-18": "conv1", "vgg-16": "features.*", "densenet-121": "features.conv0", "squeezenet": "features.*"}
UNITS, BATCH, MINI = 1500, 256, 32


def simulated(rows: int, size: int) -> Cohort:
    """Noise with labels and groups: what the pixels show does not matter to a clock."""
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (rows, size, size), dtype=np.uint8)
    y, groups = np.arange(rows) % 2, np.where(np.arange(rows) // 2 % 2, "F", "M")
    plain = Cohort.from_arrays(torch.zeros(rows, 0), y, groups, reference="M", name="noise")
    return Cohort(Images(pixels), plain.y, plain.attributes, name="noise")


def seconds(work: Callable[[], object], repeats: int) -> float:
    """The median of some repeats, after one that does not count."""
    work()
    found = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        torch.cuda.synchronize()
        found.append(time.perf_counter() - start)
    return statistics.median(found)


def ceilings(model: nn.Module, inputs: Images, repeats: int) -> dict[str, float]:
    """Seconds of the bare, compiled network over all images."""
    net = copy.deepcopy(model).eval().cuda().to(memory_format=torch.channels_last)
    x = torch.cat([inputs[torch.arange(k, min(k + 512, len(inputs)))].bfloat16() for k in range(0, len(inputs), 512)])
    x = x.cuda().contiguous(memory_format=torch.channels_last)
    fast = torch.compile(net)
    other = copy.deepcopy(net)
    recorded = torch.compile(other, mode="reduce-overhead")

    def forward() -> None:
        with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
            for part in x[: len(x) // BATCH * BATCH].split(BATCH):
                fast(part)

    def both(network: Callable[[torch.Tensor], torch.Tensor], owner: nn.Module, batch: int) -> Callable[[], None]:
        def work() -> None:
            for part in x[: len(x) // batch * batch].split(batch):
                torch.compiler.cudagraph_mark_step_begin()
                with torch.autocast("cuda", torch.bfloat16):
                    raw = network(part)
                raw.sum().backward()
                for p in owner.parameters():
                    p.grad = None

        return work

    whole, mini = len(x) / (len(x) // BATCH * BATCH), len(x) / (len(x) // MINI * MINI)
    return {
        "forward": seconds(forward, repeats) * whole,
        "both": seconds(both(fast, net, BATCH), repeats) * whole,
        "mini": seconds(both(recorded, other, MINI), repeats) * mini,
    }


def pruning_step(model: nn.Module, cohort: Cohort, layers: str, repeats: int) -> float:
    """Seconds of one step: prune 1,500 units, influence of all, scores of all, and their evaluation."""
    networks = under_repair(model, cohort)
    networks.units(layers)
    label = Label.of(cohort, Goal("eod", min_performance=0.0, selection="paper"))
    scores = networks.evaluate()
    weights = label.functional(scores >= label.evaluate(scores).threshold)[1]
    state = {"influence": networks.influence(weights)[1]}
    pruned = torch.zeros_like(state["influence"], dtype=torch.bool)

    def step() -> None:
        chosen = most_influential(state["influence"], pruned, UNITS)
        networks.prune(chosen)
        pruned.logical_or_(chosen)
        found, state["influence"] = networks.influence(weights)
        label.evaluate(found)
        networks.keep()

    return seconds(step, repeats)


def gda_epoch(model: nn.Module, cohort: Cohort) -> float:
    """Seconds of one epoch of bias-gda with mini-batches of 32 and 3 evaluations: what 4 epochs take more than 1, by 3."""
    took = []
    for epochs in (1, 1, 4):
        torch.cuda.synchronize()
        start = time.perf_counter()
        settings = {"schedule": "paper", "batch": MINI, "epochs": epochs, "stop_below": 0.0}
        run_method("bias-gda", model, cohort, {"": Goal("eod", min_performance=0.0, selection="paper")}, seed=0, settings=settings)
        torch.cuda.synchronize()
        took.append(time.perf_counter() - start)
    return (took[2] - took[1]) / 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", default="resnet-18,vgg-16")
    parser.add_argument("--rows", type=int, default=3368)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("this benchmark needs a GPU that PyTorch can use")
    cohort = simulated(options.rows, options.size)
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, {options.rows:,} images at {options.size} px")
    print("| network | forward | forward + backward | at 32 | pruning step | by their sum | bias-gda epoch | by its ceiling | peak GiB |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name in options.networks.split(","):
        torch.manual_seed(0)
        model = backbone(name).eval()
        torch.cuda.reset_peak_memory_stats()
        step = pruning_step(model, cohort, LAYERS[name], options.repeats)
        pruning_peak = torch.cuda.max_memory_allocated() / 2**30
        torch.cuda.reset_peak_memory_stats()
        epoch = gda_epoch(model, cohort)
        gda_peak = torch.cuda.max_memory_allocated() / 2**30
        top = ceilings(model, cohort.inputs, options.repeats)  # type: ignore[arg-type]
        rate = {k: f"{v:.3f} s ({options.rows / v:,.0f}/s)" for k, v in top.items()}
        plain, gda = top["forward"] + top["both"], top["mini"] + 3 * top["forward"]
        print(
            f"| {name} | {rate['forward']} | {rate['both']} | {rate['mini']} | {step:.3f} s | {step / plain:.2f} "
            f"| {epoch:.3f} s | {epoch / gda:.2f} | {pruning_peak:.1f}, {gda_peak:.1f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
