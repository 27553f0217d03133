"""Small experiments that docs/reproduction.md quotes. Usage: EQUIPOISE_DATA=... python experiments/paper-tabular/checks.py NAME

rotation: Zafar's simulation turned as in the paper's text and as in its code. evals_per_epoch: bias GD/A on COMPAS with fewer
evaluations per epoch. grid [splits] [workers]: random perturbation on Bank by SPD, thresholds exact and on the published 101-point grid,
on networks with the best weights (ours) and with the last ones (published). bounds [splits]: the same on the last weights and the grid,
with other maximum gaps, and with the perturbed networks evaluated in training mode; a row for each split.
"""

import copy
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pandas as pd
import torch
from scipy.stats import multivariate_normal

import equipoise as eq
from equipoise.measures import Cells, performance_functional
from equipoise.methods import Label, run_method
from equipoise.methods.evaluation import LabelResult
from equipoise.models import predict
from equipoise.studies import read_plan
from equipoise.studies.sets.tabular import zafar_chance, zafar_plane

BIAS_GDA_FLOORS = read_plan("paper-tabular").arm("bias-gda").min_performance


def prepared(name: str, splits: int) -> tuple[list[eq.Parts], list[torch.nn.Module]]:
    parts = [eq.split(eq.load(name), seed=seed) for seed in range(splits)]
    return parts, [eq.train(p.train, p.valid, seed=seed) for seed, p in enumerate(parts)]


def report(what: str, candidates: Sequence[eq.Candidate], parts: Sequence[eq.Parts], measure: str) -> None:
    rows = []
    for candidate, part in zip(candidates, parts, strict=True):
        scores = predict(candidate.model, part.test)
        cells = Cells.of(candidate.rule.decide(scores), scores.y, scores.attribute)
        rows.append((cells.gaps(measure)[0], float(performance_functional("balanced_accuracy", cells.n)(cells))))
    (gap, performance), (gap_sd, performance_sd) = np.mean(rows, 0), np.std(rows, 0, ddof=1)
    print(f"{what}, {measure}, {len(rows)} splits: bias {gap:+.3f} ({gap_sd:.3f}), BA {performance:.3f} ({performance_sd:.3f})", flush=True)


def rotation() -> None:
    plane, y = zafar_plane(200_000, 0)
    densities = [multivariate_normal(m, c) for m, c in (([-2, -2], [[10, 1], [1, 3]]), ([2, 2], [[5, 1], [1, 5]]))]
    decision = densities[1].logpdf(plane) > densities[0].logpdf(plane)  # the best classifier that does not see A
    drawn = np.random.default_rng(0).random(len(y))
    for angle in (0.7, 0.8, 0.9, 1.0, 1.1, 1.2):
        for way, turned in (("text", angle), ("code", -angle)):
            a = drawn < zafar_chance(plane, turned)
            print(f"vartheta {angle}, as in the {way}: SPD of the Bayes classifier {decision[~a].mean() - decision[a].mean():+.3f}")


def evals_per_epoch() -> None:
    parts, models = prepared("compas", 20)
    for measure in ("spd", "eod"):
        goal = eq.Goal(measure, min_performance=BIAS_GDA_FLOORS["compas"][measure], selection="paper")
        for count in (3, 1):
            given = {"schedule": "paper", "evals_per_epoch": count}
            found = [
                run_method("bias-gda", m, rows, {"": goal}, seed=seed, settings=given)
                for m, rows, seed in zip(models, [p.valid for p in parts], range(20), strict=True)
            ]
            report(f"COMPAS, bias-gda, evals_per_epoch={count}", found, parts, measure)


def on_grid(self: Label, scores: np.ndarray, max_gap: float | None = None, least: np.ndarray | None = None) -> LabelResult:
    """The evaluation of the published code: 101 thresholds, the first of the best; none within the maximum gap is a performance of 0."""
    if max_gap is None or least is not None:
        return EXACT(self, scores, max_gap, least)
    thresholds = np.linspace(0, 1, 101)
    tables = [Cells.of((scores > t).astype(float), self.y, self.attribute) for t in thresholds]
    gaps = np.array([c.gaps(self.measure)[..., 0] for c in tables])  # (thresholds, R)
    performances = np.array([performance_functional(self.performance, c.n)(c) for c in tables])
    best, r = np.where(np.abs(gaps) < max_gap, performances, 0).argmax(0), np.arange(len(scores))
    return LabelResult(gaps[best, r], performances[best, r], np.nextafter(thresholds[best], 2))  # theirs decides by >, ours by >=


EXACT = Label.evaluate
SEARCHES = {"exact": EXACT, "101-point grid": on_grid}
WEIGHTS: dict[str, dict[str, Any]] = {"best": {}, "last (published)": {"restore": "last", "patience": 110}}


def random_on_bank(weights: str, seed: int) -> list[dict[str, Any]]:
    """The rows of one split: standard, and random with each way to choose thresholds."""
    torch.set_num_threads(1)
    parts = eq.split(eq.load("bank"), seed=seed)
    model = eq.train(parts.train, parts.valid, seed=seed, settings=eq.Training(**WEIGHTS[weights]))
    scores = predict(model, parts.valid).score
    common = {"weights": weights, "seed": seed, "saturated": float(((scores < 0.01) | (scores > 0.99)).mean())}
    found = []
    for method, search in (("standard", "exact"), ("random", "exact"), ("random", "101-point grid")):
        Label.evaluate = SEARCHES[search]  # type: ignore[method-assign]
        goal = eq.Goal("spd", max_gap=0.05 if method == "random" else None, selection="paper")
        candidate = run_method(method, model, parts.valid, {"": goal}, seed=seed)
        test = predict(candidate.model, parts.test)
        cells = Cells.of(candidate.rule.decide(test), test.y, test.attribute)
        gap, performance = cells.gaps("spd")[0], float(performance_functional("balanced_accuracy", cells.n)(cells))
        found.append({**common, "variant": f"{method}, {search}", "gap": gap, "performance": performance})
    Label.evaluate = EXACT  # type: ignore[method-assign]
    return found


def grid() -> None:
    splits, workers = (int(sys.argv[k]) if len(sys.argv) > k else default for k, default in ((2, 20), (3, os.cpu_count() or 1)))
    jobs = [(weights, seed) for weights in WEIGHTS for seed in range(splits)]
    with ProcessPoolExecutor(workers) as pool:
        rows = [row for found in pool.map(random_on_bank, *zip(*jobs, strict=True)) for row in found]
    print("| weights | variant | splits | SPD (sd) | BA (sd) | scores below 0.01 or above 0.99 |\n|---|---|---|---|---|---|")
    for (weights, variant), cell in pd.DataFrame(rows).groupby(["weights", "variant"], sort=False):
        numbers = [f"{cell[name].mean():{sign}.3f} ({cell[name].std():.3f})" for name, sign in (("gap", "+"), ("performance", ""))]
        print(f"| {weights} | {variant} | {len(cell)} | {' | '.join(numbers)} | {cell['saturated'].mean():.2f} |", flush=True)
    print("| published | random | 20 | +0.03 (0.04) | 0.60 (0.10) | |")


def bounds() -> None:
    for seed in range(int(sys.argv[2]) if len(sys.argv) > 2 else 20):
        parts = eq.split(eq.load(sys.argv[3] if len(sys.argv) > 3 else "bank"), seed=seed)
        model = eq.train(parts.train, parts.valid, seed=seed, settings=eq.Training(**WEIGHTS["last (published)"]))
        for mode in ("eval", "train"):
            for bound, (gap, performance) in perturbed(model, parts, seed, mode == "train").items():
                print(f"{seed},{mode},{bound},{gap:.6g},{performance:.6g}", flush=True)


def perturbed(model: torch.nn.Module, parts: eq.Parts, seed: int, training: bool) -> dict[float, tuple[float, float]]:
    """SPD and balanced accuracy on the test set of the best of 101 perturbed networks, for each bound of the validation set's |SPD|."""
    torch.manual_seed(seed)
    thresholds = np.linspace(0, 1, 101)
    best: dict[float, tuple[float, torch.nn.Module, float]] = {}
    for _ in range(101):
        trial = copy.deepcopy(model)
        with torch.no_grad():
            for weight in trial.parameters():
                weight.mul_(1 + 0.1 * torch.randn_like(weight))
        gaps, performances = rates(trial.train(training), parts.valid, thresholds)
        for bound in (0.01, 0.02, 0.03, 0.04):
            able = np.where(np.abs(gaps) < bound, performances, 0)
            k = int(able.argmax())
            if bound not in best or able[k] > best[bound][0]:
                best[bound] = float(able[k]), trial, thresholds[k]
    found = {bound: rates(trial.eval(), parts.test, np.array([t])) for bound, (_, trial, t) in best.items()}
    return {bound: (float(gap[0]), float(performance[0])) for bound, (gap, performance) in found.items()}


def rates(model: torch.nn.Module, cohort: eq.Cohort, thresholds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """SPD and balanced accuracy at each threshold, written without the library's measures."""
    with torch.no_grad():
        scores = torch.sigmoid(model(cohort.inputs).reshape(-1)).double().numpy()
    reference = cohort.groups == cohort.attribute.reference

    def above(rows: np.ndarray) -> np.ndarray:
        return 1 - np.searchsorted(np.sort(scores[rows]), thresholds, side="right") / rows.sum()

    return above(~reference) - above(reference), (above(cohort.y == 1) + 1 - above(cohort.y == 0)) / 2


if __name__ == "__main__":
    torch.set_num_threads(1)
    {"rotation": rotation, "evals_per_epoch": evals_per_epoch, "grid": grid, "bounds": bounds}[sys.argv[1]]()
