"""More than two groups: the largest gap is what is minimised, whichever group has it at the time."""

import numpy as np
import pytest
import torch

from equipoise.data import Cohort, split
from equipoise.models import Training, train
from support.published import debias


def three_groups(n: int = 1800, seed: int = 0) -> Cohort:
    """Two groups stand on opposite sides of the reference, so that mending one of them alone leaves a large gap."""
    rng = np.random.default_rng(seed)
    group = rng.integers(0, 3, n)
    shift = np.array([0.0, 0.9, -0.8])[group]
    y = (rng.random(n) < 0.5).astype(int)
    x = rng.normal(size=(n, 6)).astype(np.float32)
    x[:, 0] += y * 1.2
    x[:, 1] += shift  # tells the group
    x[:, 2] += shift + y * 0.3
    names = np.array(["ref", "high", "low"])[group]
    return Cohort.from_arrays(
        torch.from_numpy(x), (rng.random(n) < 1 / (1 + np.exp(-(2 * y - 1 + shift)))).astype(int), names, reference="ref"
    )


@pytest.fixture(scope="module")
def problem():
    parts = split(three_groups(), seed=0)
    return train(parts.train, parts.valid, seed=0, settings=Training(epochs=30, patience=10)), parts


@pytest.mark.parametrize(("method", "settings"), [("bias-gda", {"learning_rate": 3e-4, "epochs": 30}), ("pruning", {"units": 4})])
def test_both_groups_come_nearer_to_the_reference(problem, method: str, settings: dict[str, object]):
    model, parts = problem
    result = debias(model, parts.valid, method=method, measure="spd", min_performance=0.52, seed=0, **settings)
    start, end = abs(result.trace["gap"].iloc[0]), abs(result.trace["gap"].iloc[result.chosen])
    sides = np.sign(result.trace["gap"])
    assert len(sides[sides != 0].unique()) == 2  # the group with the largest gap changed on the way
    assert end < 0.5 * start
