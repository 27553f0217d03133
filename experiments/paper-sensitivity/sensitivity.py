"""What explains differences to the published sensitivity table: Algorithms 1 and 2 again in plain PyTorch, as published and changed.

Usage: python experiments/paper-sensitivity/sensitivity.py [--splits 5] [--data loh-2.0 ...] [--rows 30000] \
      [--weights best last] [--workers 16] [--out FILE]

One line per data, measure, weights, variant and minimum performance: mean test gap and balanced accuracy over splits, next to the
published. Networks have the `best` weights by validation loss (ours) or the `last` ones, 110 epochs later (published). Variants of bias
GD/A: train mode with evaluations in train mode (published), train mode with evaluations in eval mode, and eval mode (ours). Whole
trajectories are kept, so every minimum performance is applied to the same ones. Thresholds are the published 101 points. About 5 minutes of
one core per job.
"""

import argparse
import copy
import os
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

import equipoise as eq
from equipoise.studies import published, read_plan

MEASURES = {"loh-2.0": ("spd",), "loh-2.5": ("spd",), "zafar-0.9": ("eod",), "zafar-0.7": ("spd", "eod")}
FLOORS = (0.50, 0.52, 0.55, 0.60, 0.65, 0.70, 0.75, 0.80)
GRID = np.linspace(0, 1, 101)
TRAINING = {"best": {}, "last": {"restore": "last", "patience": 110}}
MODES = {"train": (True, True), "train, evaluated in eval mode": (True, False), "eval": (False, False)}
RATE, BATCH, EPOCHS, EVALUATIONS, STOP = 1e-5, 256, 200, 3, 0.52


class Rows:
    """A part as tensors: inputs, label, A (1 in the reference)."""

    def __init__(self, part: eq.Cohort) -> None:
        self.x = part.inputs
        self.y = part.y
        self.a = (part.groups == part.attribute.reference).astype(int)

    def rates(self, scores: np.ndarray, threshold: float, measure: str) -> tuple[float, float]:
        """The gap, A = 0 minus A = 1, and balanced accuracy."""
        decided = scores > threshold
        among = np.ones_like(self.y, bool) if measure == "spd" else self.y == 1
        gap = decided[among & (self.a == 0)].mean() - decided[among & (self.a == 1)].mean()
        return float(gap), float((decided[self.y == 1].mean() + (~decided[self.y == 0]).mean()) / 2)

    def threshold(self, scores: np.ndarray) -> float:
        """The grid point with the best balanced accuracy, the first of equals."""
        above = [1 - np.searchsorted(np.sort(scores[self.y == k]), GRID, side="right") / (self.y == k).sum() for k in (0, 1)]
        return float(GRID[np.argmax(above[1] + 1 - above[0])])

    def proxy(self, f: Tensor, measure: str, index: Tensor | slice = slice(None)) -> Tensor:
        """The difference of mean scores."""
        a, among = self.a[index], np.ones_like(self.a[index], bool) if measure == "spd" else self.y[index] == 1
        return f[torch.from_numpy(among & (a == 0))].mean() - f[torch.from_numpy(among & (a == 1))].mean()


def scored(model: nn.Module, x: Tensor) -> np.ndarray:
    with torch.no_grad():
        return torch.sigmoid(model(x).reshape(-1)).double().numpy()


def evaluated(model: nn.Module, valid: Rows, test: Rows, measure: str, in_train: bool) -> dict[str, float]:
    """Gap and performance on validation as the search sees them, and on test in eval mode, each at the best threshold of its mode."""
    if in_train:
        model.train()
    else:
        model.eval()
    scores = scored(model, valid.x)
    gap, performance = valid.rates(scores, valid.threshold(scores), measure)
    final = copy.deepcopy(model).eval()
    threshold = valid.threshold(scored(final, valid.x))
    test_gap, test_performance = test.rates(scored(final, test.x), threshold, measure)
    return {"gap": gap, "performance": performance, "test_gap": test_gap, "test_performance": test_performance}


def fine_tuned(
    model: nn.Module, valid: Rows, test: Rows, measure: str, seed: int, train: bool, in_train: bool
) -> Iterator[dict[str, float]]:
    """Algorithm 2 step by step."""
    torch.manual_seed(seed)
    start = evaluated(model.eval(), valid, test, measure, in_train=False)
    sign = 1.0 if start["gap"] > 0 else -1.0
    optimiser = torch.optim.Adam(model.parameters(), lr=RATE)
    for _ in range(EPOCHS):
        batches = torch.randperm(len(valid.x)).split(BATCH)
        every = max(1, len(batches) // EVALUATIONS)  # small data have fewer batches than evaluations
        for k, index in enumerate(batches):
            if train:
                model.train()
            else:
                model.eval()
            optimiser.zero_grad()
            loss = sign * valid.proxy(torch.sigmoid(model(valid.x[index]).reshape(-1)), measure, index)
            if torch.isfinite(loss):
                loss.backward()  # type: ignore[no-untyped-call]
                optimiser.step()
            if k % every == 0:
                yield evaluated(model, valid, test, measure, in_train)


def pruned(model: nn.Module, valid: Rows, test: Rows, measure: str) -> Iterator[dict[str, float]]:
    """Algorithm 1 step by step, one unit each; a unit may be chosen again, as published."""
    layers = [layer for layer in model.modules() if isinstance(layer, nn.Linear)][:-1]
    held: dict[int, Tensor] = {}

    def hold(k: int) -> Callable[[nn.Module, object, Tensor], None]:
        def hook(_: nn.Module, __: object, output: Tensor) -> None:
            if output.requires_grad:
                output.retain_grad()
                held[k] = output

        return hook

    for k, layer in enumerate(layers):
        layer.register_forward_hook(hold(k))
    found = evaluated(model.eval(), valid, test, measure, in_train=False)
    sign = 1.0 if found["gap"] > 0 else -1.0
    for _ in range(sum(layer.out_features for layer in layers)):
        yield found
        if found["performance"] < STOP:
            break
        model.zero_grad()
        (sign * valid.proxy(torch.sigmoid(model(valid.x).reshape(-1)), measure)).backward()  # type: ignore[no-untyped-call]
        influence = torch.stack([held[k].grad.sum(0) for k in range(len(layers))])  # type: ignore[union-attr]
        place, unit = divmod(int(influence.argmax()), influence.shape[1])
        with torch.no_grad():
            layers[place].weight[unit] = 0
            layers[place].bias[unit] = 0
        found = evaluated(model, valid, test, measure, in_train=False)


def chosen(trajectory: list[dict[str, float]], min_performance: float) -> dict[str, float] | None:
    """The step with the smallest |gap| at or above the minimum performance."""
    able = [step for step in trajectory if step["performance"] >= min_performance]
    return min(able, key=lambda step: abs(step["gap"])) if able else None


def job(name: str, weights: str, seed: int, rows: int) -> list[dict[str, object]]:
    """All variants of one split."""
    torch.set_num_threads(1)
    data = read_plan("paper-sensitivity").named(name)
    parts = eq.split(data.load(n=rows, **({"seed": seed} if data.redraw else {})), seed=seed)
    settings = eq.Training(**TRAINING[weights])
    model = eq.train(parts.train, parts.valid, seed=seed, settings=settings)
    valid, test = Rows(parts.valid), Rows(parts.test)
    found: list[dict[str, object]] = []
    for measure in MEASURES.get(name, ("spd", "eod")):
        original = evaluated(copy.deepcopy(model), valid, test, measure, in_train=False)
        runs = {"pruning": lambda m, measure=measure: pruned(m, valid, test, measure)}
        for mode, (train, in_train) in MODES.items():
            runs[f"bias-gda, {mode}"] = lambda m, measure=measure, train=train, in_train=in_train: fine_tuned(
                m, valid, test, measure, seed, train, in_train
            )
        common = {"data": name, "measure": measure, "weights": weights, "seed": seed, "rows": rows}
        found.append({**common, "variant": "standard", "min_performance": np.nan, **original})
        for variant, run in runs.items():
            trajectory = list(run(copy.deepcopy(model)))
            found += [
                {**common, "variant": variant, "min_performance": min_performance, **(chosen(trajectory, min_performance) or original)}
                for min_performance in FLOORS
            ]
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--data", nargs="+", default=list(MEASURES))
    parser.add_argument("--rows", type=int, default=30_000)
    parser.add_argument("--weights", nargs="+", default=list(TRAINING))
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--out", default="sensitivity.csv")
    asked = parser.parse_args()
    start, lines = time.perf_counter(), []
    jobs = [(name, weights, seed, asked.rows) for name in asked.data for weights in asked.weights for seed in range(asked.splits)]
    with ProcessPoolExecutor(asked.workers) as pool:
        for k, rows in enumerate(pool.map(job, *zip(*jobs, strict=True))):
            lines += rows
            print(f"{k + 1} of {len(jobs)}, {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
    frame = pd.DataFrame(lines)
    frame.to_csv(asked.out, index=False)
    print(f"{asked.splits} splits, {asked.rows:,} rows; test, means (sd)\n")
    header = ("data", "measure", "weights", "variant", "min_performance", "bias (sd)", "published", "BA (sd)", "published")
    print(f"| {' | '.join(header)} |\n{'|---' * len(header)}|")
    keys = ["data", "measure", "weights", "variant", "min_performance"]
    for (name, measure, weights, variant, min_performance), cell in frame.groupby(keys, sort=False, dropna=False):
        source = read_plan("paper-sensitivity").named(name).published
        numbers = published(source, measure, variant.split(",")[0])
        assert numbers is not None
        gap, performance = cell["test_gap"], cell["test_performance"]
        cells = (
            *(name, measure, weights, variant, "" if np.isnan(min_performance) else f"{min_performance:.2f}"),
            f"{gap.mean():+.3f} ({gap.std():.3f})",
            f"{numbers.bias:+.2f} ({numbers.bias_sd:.2f})",
            f"{performance.mean():.3f} ({performance.std():.3f})",
            f"{numbers.performance:.2f} ({numbers.performance_sd:.2f})",
        )
        print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
