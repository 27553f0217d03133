"""Small biased problems and networks for the tests of methods."""

from copy import deepcopy
from functools import cache

import numpy as np
import torch
from torch import nn

from equipoise.data import Cohort, Parts, split
from equipoise.models import MLP, Training, train


def biased_cohort(n: int = 700, seed: int = 0, images: bool = False, signal: float = 1.0) -> Cohort:
    """Two groups; the label and one input depend on the group. The weaker the signal of the label, the larger the gap of a network."""
    rng = np.random.default_rng(seed)
    a = rng.integers(0, 2, n)
    y = (rng.random(n) < 0.35 + 0.3 * a).astype(int)
    if images:
        x = rng.normal(size=(n, 1, 8, 8)).astype(np.float32)
        x[:, 0, 2:5, 2:5] += signal * y[:, None, None]
        x[:, 0, 6:, 6:] += 1.5 * a[:, None, None]
    else:
        x = rng.normal(size=(n, 6)).astype(np.float32)
        x[:, 0] += signal * y
        x[:, 1] += 1.5 * a
    return Cohort.from_arrays(torch.from_numpy(x), y, np.where(a == 1, "M", "F"), reference="M", name="biased")


def cnn() -> nn.Module:
    """Convolutions, batch norm, an in-place activation and a linear head."""
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Conv2d(4, 4, 3, stride=2), nn.ReLU(inplace=True),
        nn.Flatten(), nn.Linear(36, 8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 1),
    )  # fmt: skip


def perceptron() -> nn.Module:
    """A user's own network that ends in a probability."""
    return nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 1), nn.Sigmoid())


def trained(kind: str, seed: int = 0, signal: float = 1.0) -> tuple[nn.Module, Parts]:
    """A trained network of a kind ('mlp', 'perceptron', 'cnn') and its parts; the network is trained once and copied."""
    model, parts = _trained(kind, seed, signal)
    return deepcopy(model), parts


@cache
def _trained(kind: str, seed: int, signal: float) -> tuple[nn.Module, Parts]:
    parts = split(biased_cohort(seed=seed, images=kind == "cnn", signal=signal), seed=seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = {"mlp": lambda: MLP(6, width=8, depth=2), "perceptron": perceptron, "cnn": cnn}[kind]()
    return train(parts.train, parts.valid, seed=seed, model=model, settings=Training(epochs=8, learning_rate=0.01)), parts
