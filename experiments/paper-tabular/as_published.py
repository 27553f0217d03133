"""Experiments on cells of the paper's main table that our arms as published do not reach.

Usage: EQUIPOISE_DATA=... python experiments/paper-tabular/as_published.py NAME [splits]

favourable: the reject option on COMPAS as AIF360 runs it where the favourable label is 0, as its COMPAS data have it, while the scores are
those of label 1. adversarial: adversarial fine-tuning on Adult by SPD, its last epoch evaluated in eval mode and in training mode.
critic: the same with a critic that learns the gap by the counts of the whole split (ours) or of the mini-batch, from features in eval mode
(ours) or in training mode.
"""

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch

import equipoise as eq
from equipoise import models  # whose parts are replaced
from equipoise.methods import baselines, run_method
from equipoise.models import predict

PUBLISHED = eq.Training(restore="last", patience=110)
BOUND = 0.05


def prepared(name: str, splits: int) -> tuple[list[eq.Parts], list[torch.nn.Module]]:
    """Splits and the networks that the published training leaves."""
    parts = [eq.split(eq.load(name), seed=seed) for seed in range(splits)]
    return parts, [eq.train(p.train, p.valid, seed=seed, settings=PUBLISHED) for seed, p in enumerate(parts)]


def balanced(f: np.ndarray, y: np.ndarray) -> float:
    return float((f[y == 1].mean() + 1 - f[y == 0].mean()) / 2)


def gap(f: np.ndarray, y: np.ndarray, a: np.ndarray, measure: str, label: int = 1) -> float:
    """Rate of decision 1 of A = 0 minus that of A = 1: of all (spd), or of those with the label (eod)."""
    seen = np.ones(len(y), bool) if measure == "spd" else y == label
    return float(f[seen & (a == 0)].mean() - f[seen & (a == 1)].mean())


def decided(score: np.ndarray, a: np.ndarray, threshold: float, margin: float) -> np.ndarray:
    """AIF360's reject option: 1 where it gives the favourable label."""
    favourable = score > threshold
    band = (score <= threshold + margin) & (score > threshold - margin)
    return np.where(band, a == 0, favourable).astype(float)


def rejecting(score: np.ndarray, y: np.ndarray, a: np.ndarray, measure: str, favourable: int) -> tuple[float, float]:
    """AIF360's threshold and margin for these validation scores of label 1, where it takes high scores for the favourable label."""
    good = (y == favourable).astype(int)
    points = []
    for threshold in np.linspace(0.01, 0.99, 100):
        for margin in np.linspace(0, min(threshold, 1 - threshold), 50):
            f = decided(score, a, threshold, margin)
            bias = gap(f, good, a, measure)
            points.append((abs(bias) <= BOUND, balanced(f, good) if abs(bias) <= BOUND else -bias, threshold, margin))
    _, _, threshold, margin = max(points, key=lambda point: point[:2])
    return threshold, margin


def favourable(splits: int) -> None:
    parts, networks = prepared("compas", splits)
    for measure in ("spd", "eod"):
        for label in (1, 0):
            rows = []
            for part, model in zip(parts, networks, strict=True):
                valid, test = (predict(model, p) for p in (part.valid, part.test))
                a_valid, a_test = (np.asarray(s.attribute.codes == 0, int) for s in (valid, test))  # A = 1: the reference, code 0
                threshold, margin = rejecting(valid.score, valid.y, a_valid, measure, label)
                f = decided(test.score, a_test, threshold, margin)
                positive = f if label == 1 else 1 - f  # a decision for label 1
                rows.append((gap(positive, test.y, a_test, measure), balanced(positive, test.y)))
            told(f"COMPAS, reject option, favourable label {label}, {measure}", rows)


def evaluated(parts: Sequence[eq.Parts], found: Sequence[eq.Candidate], mode: str) -> Iterator[tuple[float, float]]:
    """Bias and balanced accuracy on the test sets by SPD, at the best of 101 thresholds within the published limit on validation."""
    for seed, (part, candidate) in enumerate(zip(parts, found, strict=True)):
        network = candidate.model
        network.train(mode == "training")
        torch.manual_seed(seed)
        with torch.no_grad():
            valid, test = (torch.sigmoid(network(p.inputs).double()).numpy().ravel() for p in (part.valid, part.test))
        a_valid, a_test = (np.asarray(p.attribute.codes == 0, int) for p in (part.valid, part.test))
        grid = np.linspace(0, 1, 101)
        decisions = [(valid > t).astype(float) for t in grid]
        worth = [balanced(f, part.valid.y) if abs(gap(f, part.valid.y, a_valid, "spd")) < BOUND - 0.01 else 0.0 for f in decisions]
        f = (test > grid[int(np.argmax(worth))]).astype(float)
        yield gap(f, part.test.y, a_test, "spd"), balanced(f, part.test.y)


def finetuned(parts: Sequence[eq.Parts], networks: Sequence[torch.nn.Module]) -> list[eq.Candidate]:
    """The last epoch of adversarial fine-tuning by SPD."""
    goal, seeds = eq.Goal("spd", max_gap=BOUND, selection="paper"), range(len(parts))
    settings = {"schedule": "paper", "restore": "last"}
    runs = zip(networks, parts, seeds, strict=True)
    return [run_method("adversarial-finetune", model, p.valid, {"": goal}, seed=seed, settings=settings) for model, p, seed in runs]


def adversarial_modes(splits: int) -> None:
    parts, networks = prepared("adult", splits)
    found = finetuned(parts, networks)
    for mode in ("eval", "training"):
        told(f"Adult, adversarial fine-tuning, last epoch, 101 thresholds, evaluated in {mode} mode, spd", evaluated(parts, found, mode))


def train_in_training_mode(turns: Any, steps: int) -> None:
    """The critic's turn, with the features that the network has in training mode."""
    turns.critic.train().requires_grad_(True)
    for _ in range(steps):
        index = turns._index()
        with torch.no_grad():
            f, features = turns.model.scores_and_features(index, generator=turns.dropout)
            target = models.proxy(f, turns.weights[index]) * turns.model.rows / turns.batch + turns.offset
        turns.critic_optimiser.zero_grad()
        ((turns._verdict(features) - target) ** 2).backward()
        turns.critic_optimiser.step()


def critic(splits: int) -> None:
    parts, networks = prepared("adult", splits)
    rows = len(parts[0].valid.y)

    def in_batch(f: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """The gap with the mini-batch's own counts, scaled as the method expects it; weights are positive where A = 0."""
        means = [(f * side).sum() / side.sum().clamp(min=1) for side in ((weights > 0).to(f), (weights < 0).to(f))]
        return (means[0] - means[1]) * len(f) / rows

    turns = {"eval": baselines._Turns.train_critic, "training": train_in_training_mode}
    for counts, proxy in (("the whole split", models.proxy), ("the mini-batch", in_batch)):
        for mode, turn in turns.items():
            models.proxy, baselines._Turns.train_critic = proxy, turn  # type: ignore[assignment,method-assign]
            found = finetuned(parts, networks)
            told(f"Adult, critic with the counts of {counts} and features in {mode} mode, spd", evaluated(parts, found, "eval"))


def told(what: str, rows: Iterable[tuple[float, float]]) -> None:
    numbers = np.array(list(rows))
    (bias, accuracy), spread = numbers.mean(0), numbers.std(0, ddof=1)
    print(f"{what}, {len(numbers)} splits: bias {bias:+.3f} ({spread[0]:.3f}), BA {accuracy:.3f} ({spread[1]:.3f})", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    {"favourable": favourable, "adversarial": adversarial_modes, "critic": critic}[sys.argv[1]](
        int(sys.argv[2]) if len(sys.argv) > 2 else 20
    )
