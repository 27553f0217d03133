"""Small experiments that docs/reproduction.md quotes. Usage: EQUIPOISE_DATA=... python benchmarks/checks.py NAME

rotation: Zafar's simulation turned as in the paper's text and as in its code. evaluations: bias GD/A on COMPAS with fewer looks an epoch.
grid: random perturbation on Bank with a 101-point grid of thresholds.
"""

import os
import sys
from collections.abc import Sequence

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from scipy.stats import multivariate_normal

import equipoise as eq
from equipoise.data.synthetic import zafar_chance, zafar_plane
from equipoise.measures.cells import tabulate, tabulate_codes
from equipoise.measures.functional import gap_values, performance_functional
from equipoise.methods.looks import Labels, Look
from equipoise.methods.registry import run_many
from equipoise.models.score import predict
from equipoise.models.train import train_stack
from equipoise.study.paper import BIAS_GDA_FLOORS


def prepared(name: str, splits: int) -> tuple[list[eq.Parts], list[torch.nn.Module]]:
    parts = [eq.split(eq.load(name), seed=seed) for seed in range(splits)]
    return parts, list(train_stack([(p.train, p.valid, seed) for seed, p in enumerate(parts)]))


def report(what: str, candidates: Sequence[eq.Candidate], parts: Sequence[eq.Parts], measure: str) -> None:
    rows = []
    for candidate, part in zip(candidates, parts, strict=True):
        scores = predict(candidate.model, part.test)
        cells = tabulate(candidate.rule.decide(scores), scores.y, scores.attribute)
        rows.append((gap_values(measure, cells)[0], float(performance_functional("balanced_accuracy", cells.n)(cells))))
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


def evaluations() -> None:
    parts, models = prepared("compas", 20)
    for measure in ("spd", "eod"):
        goal = eq.Goal(measure, floor=BIAS_GDA_FLOORS["compas"][measure])
        for count in (3, 1):
            found = run_many("bias-gda", models, [p.valid for p in parts], goal, seeds=range(20), settings={"evaluations": count})
            report(f"COMPAS, bias-gda, evaluations={count}", found, parts, measure)


def grid() -> None:
    parts, models = prepared("bank", 20)
    exact = Labels.look

    def on_grid(self: Labels, scores: np.ndarray, bound: float | None = None) -> Look:
        if bound is None:
            return exact(self, scores, bound)
        thresholds = np.linspace(0, 1, 101)
        tables = [tabulate_codes((scores > t).astype(float), self.y, self.codes, self.levels) for t in thresholds]
        gaps = np.array([gap_values(self.measure, c)[:, 0] for c in tables])
        performances = np.array([performance_functional(self.performance, c.n)(c) for c in tables])
        best, r = np.where(np.abs(gaps) < bound, performances, 0).argmax(0), np.arange(len(scores))
        return Look(gaps[best, r], performances[best, r], np.nextafter(thresholds[best], 2))  # theirs decides by >, ours by >=

    for what, look in (("exact", exact), ("101-point grid", on_grid)):
        Labels.look = look  # type: ignore[method-assign]
        found = run_many("random", models, [p.valid for p in parts], eq.Goal("spd", bound=0.05), seeds=range(20))
        report(f"Bank, random, {what}", found, parts, "spd")


if __name__ == "__main__":
    torch.set_num_threads(1)
    {"rotation": rotation, "evaluations": evaluations, "grid": grid}[sys.argv[1]]()
