"""Experiments with bias-score that docs/beyond.md quotes.

Usage: EQUIPOISE_DATA=... python experiments/bias-score/bias_score.py NAME SPLITS [DATA ...]

table: bias-score beside the original and one threshold a group. floors: what a higher minimum performance costs. depths: which features the
probes need. without: no cross-fitting, the network's own score alone for the label, no correction of the gaps. groups: seconds of the
multipliers for 2 to 8 groups at 9,000 rows. boosting: how much more gradient boosting would read from a table. Networks are trained once
and kept in the folder EQUIPOISE_NETWORKS (runs/networks).
"""

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parents[1] / "peers"))  # libraries.py

import numpy as np
import torch
from libraries import measured

import equipoise as eq
import equipoise.models
from equipoise.methods import blind_rule as bias_problem
from equipoise.methods import run_method
from equipoise.methods.blind_rule import solve
from equipoise.models import FeatureCache, FeatureChoice, Probe, fit_probe, folds_of, predict

DATA: dict[str, tuple[str, dict[str, Any]]] = {
    "adult": ("adult", {}),
    "bank": ("bank", {}),
    "compas": ("compas", {}),
    "adult-blind": ("adult", {"attribute_as_input": False}),
    "bank-blind": ("bank", {"attribute_as_input": False}),
    "compas-blind": ("compas", {"attribute_as_input": False}),
    "loh": ("loh", {"alpha": 2.5, "n": 10_000}),
    "zafar": ("zafar", {"vartheta": 0.7, "n": 10_000, "clockwise": True, "mapping": "gaussian"}),
}
FLOORS = {"adult": {"spd": 0.78, "eod": 0.81}, "bank": {"spd": 0.85, "eod": 0.85}, "compas": {"spd": 0.62, "eod": 0.62},
          "loh": {"spd": 0.60}, "zafar": {"spd": 0.60}}  # fmt: skip
Parts = list[eq.Parts]
HEAD = (
    "| data | measure | method | gap (sd) | mean absolute gap | BA (sd) | its gap, BA on validation | s a split |\n"
    "|---|---|---|---|---|---|---|---|"
)


def prepared(name: str, splits: int) -> tuple[Parts, list[torch.nn.Module]]:
    source, options = DATA[name]
    drawn = source in ("loh", "zafar")  # anew for each split
    whole = None if drawn else eq.load(source, **options)
    parts = [eq.split(whole if whole is not None else eq.load(source, seed=seed, **options), seed=seed) for seed in range(splits)]
    kept = Path(os.environ.get("EQUIPOISE_NETWORKS", "runs/networks")) / f"{name}.pt"
    models: list[torch.nn.Module] = torch.load(kept, weights_only=False) if kept.exists() else []
    if len(models) < splits:
        models += [eq.train(part.train, part.valid, seed=seed) for seed, part in enumerate(parts)][len(models) :]
        kept.parent.mkdir(parents=True, exist_ok=True)
        torch.save(models, kept)
    return parts, models[:splits]


def report(name: str, measure: str, what: str, found: Sequence[eq.Candidate], parts: Parts, seconds: float) -> None:
    rows, seen = [], []
    for candidate, part in zip(found, parts, strict=True):
        scores = predict(candidate.model, part.test)
        rows.append(tuple(measured(measure, candidate.rule.decide(scores), scores).values()))
        row = candidate.trace.iloc[candidate.chosen]
        seen.append((row.get("held_out_gap", row["gap"]), row.get("held_out_performance", row["performance"])))
    (gap, performance), (spread, performance_spread) = np.mean(rows, 0), np.std(rows, 0, ddof=1)
    there = np.abs(seen).mean(0)
    print(
        f"| {name} | {measure} | {what} | {gap:+.3f} ({spread:.3f}) | {np.abs(rows).mean(0)[0]:.3f} "
        f"| {performance:.3f} ({performance_spread:.3f}) | {there[0]:.3f}, {there[1]:.3f} | {seconds / len(rows):.2f} |",
        flush=True,
    )


def tried(name: str, measure: str, what: str, parts: Parts, models: Sequence[torch.nn.Module], method: str = "bias-score",
          min_performance: float | None = None, **settings: Any) -> None:  # fmt: skip
    goal = eq.Goal(
        measure, min_performance=FLOORS[DATA[name][0]][measure] if min_performance is None else min_performance, selection="paper"
    )
    start = time.process_time()
    found = [
        run_method(method, m, rows, {"": goal}, seed=seed, settings=settings)
        for m, rows, seed in zip(models, [part.valid for part in parts], range(len(parts)), strict=True)
    ]
    report(name, measure, what, found, parts, time.process_time() - start)


def table(splits: int, names: Sequence[str]) -> None:
    print(HEAD)
    for name in names:
        parts, models = prepared(name, splits)
        for measure, min_performance in FLOORS[DATA[name][0]].items():
            tried(name, measure, "standard", parts, models, "standard", 0.0)
            tried(name, measure, f"bias-score, minimum performance {min_performance:g}", parts, models)
            tried(name, measure, "group thresholds (need the group)", parts, models, "group-thresholds")


def floors(splits: int, names: Sequence[str]) -> None:
    print(HEAD)
    for name in names:
        parts, models = prepared(name, splits)
        for measure, min_performance in FLOORS[DATA[name][0]].items():
            for more in (-0.02, 0.0, 0.005, 0.01):
                tried(name, measure, f"floor {min_performance + more:g}", parts, models, min_performance=min_performance + more)


def depths(splits: int, names: Sequence[str]) -> None:
    print(HEAD)
    for name in names:
        parts, models = prepared(name, splits)
        for measure in FLOORS[DATA[name][0]]:
            for depth in ("last", "hidden", "inputs", "inputs and last", "all"):
                tried(name, measure, f"probes on {depth}", parts, models, depth=depth, layers=11)


@contextmanager
def changed(where: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(where, name)
    setattr(where, name, value)
    try:
        yield
    finally:
        setattr(where, name, before)


def without(splits: int, names: Sequence[str]) -> None:
    probed, gaps = bias_problem.fit_probes, bias_problem.Problem.gaps

    def in_sample(*given: Any) -> bias_problem.Problem:
        problem = probed(*given)
        return replace(problem, held_out=problem.fitted)

    def recalibrated(x: Any, target: Any, classes: int, folds: Any, rows: Any = None, free: int = 0, **others: Any) -> Probe:
        if not free:
            return fit_probe(x, target, classes, folds, rows, **others)
        alone = np.zeros_like(x)
        alone[:, -free:] = x[:, -free:]  # features that are constant say nothing
        return fit_probe(alone, target, classes, folds, rows, free, **others)

    def believed(problem: bias_problem.Problem, decisions: Any) -> Any:
        found = problem.worth(problem.held_out)[1] @ decisions / len(decisions)
        return found if np.abs(found).max() else gaps(problem, decisions)

    variants = {
        "as it is": (bias_problem, "fit_probes", probed),
        "no cross-fitting": (bias_problem, "fit_probes", in_sample),
        "the label from the network's score alone": (eq.models, "fit_probe", recalibrated),
        "gaps as the probes believe them": (bias_problem.Problem, "gaps", believed),
    }
    print(HEAD)
    for name in names:
        parts, models = prepared(name, splits)
        for measure in FLOORS[DATA[name][0]]:
            for what, change in variants.items():
                with changed(*change):
                    tried(name, measure, what, parts, models)


def groups(repeats: int, _names: Sequence[str]) -> None:
    rows = 9_000
    print("| groups | s for one bound | s for 24 bounds |\n|---|---|---|")
    for count in (2, 3, 4, 8):
        one, all_ = [], []
        for seed in range(repeats):
            rng = np.random.default_rng(seed)
            group = rng.choice(count, rows, p=np.arange(count, 0, -1) / np.arange(count + 1).sum())
            chance = 1 / (1 + np.exp(-rng.normal(0.8 * group / count, 1.0)))
            posterior = 0.5 * rng.dirichlet(np.ones(count), rows)
            posterior[np.arange(rows), group] += 0.5
            share = posterior / posterior.mean(0)
            u, g = (chance - chance.mean()) / (2 * chance.mean() * (1 - chance.mean())), (share[:, 1:] - share[:, :1]).T
            bounds = np.linspace(np.abs(g @ (u > 0)).max(), 0.0, 25)[1:]
            multipliers, start = None, time.process_time()
            for max_gap in bounds:
                found = solve(u, g, np.full(count - 1, -max_gap), np.full(count - 1, max_gap), multipliers)
                assert found is not None
                multipliers = found.multipliers
            all_.append(time.process_time() - start)
            start = time.process_time()
            solve(u, g, np.zeros(count - 1), np.zeros(count - 1))
            one.append(time.process_time() - start)
        print(f"| {count} | {np.mean(one):.2f} | {np.mean(all_):.2f} |")


def boosting(splits: int, names: Sequence[str]) -> None:
    from sklearn.ensemble import HistGradientBoostingClassifier

    print("| data | log loss of the group, logistic | boosting | of the label, logistic | boosting |\n|---|---|---|---|---|")
    for name in names:
        losses = []
        for part, model in zip(*prepared(name, splits), strict=True):
            cohort, folds = part.valid, folds_of(part.valid, 5, 0)
            logit, x = FeatureCache(model, cohort.inputs).read(FeatureChoice.of(model, cohort.inputs)).arrays()
            beside = np.column_stack([x, logit])
            row = []
            for seen, target, free in ((x, cohort.attribute.codes, 0), (beside, cohort.y, 1)):
                chance = np.empty((len(seen), 2))
                for fold in range(5):
                    own = folds != fold
                    boosted = HistGradientBoostingClassifier(max_iter=60, learning_rate=0.1, random_state=0, early_stopping=True)
                    chance[~own] = boosted.fit(seen[own], target[own]).predict_proba(seen[~own])
                row += [fit_probe(seen, target, 2, folds, free=free).loss, -np.log(chance[np.arange(len(seen)), target].clip(1e-12)).mean()]
            losses.append(row)
        print(f"| {name} | {' | '.join(f'{value:.4f}' for value in np.mean(losses, 0))} |", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    chosen = {"table": table, "floors": floors, "depths": depths, "without": without, "groups": groups, "boosting": boosting}[sys.argv[1]]
    chosen(int(sys.argv[2]), sys.argv[3:] or list(DATA))
