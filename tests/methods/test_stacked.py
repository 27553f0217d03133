"""A law: many networks through a method as one stack give what each gives alone."""

import numpy as np
import pytest
import torch

from equipoise.methods import METHODS, run_many
from equipoise.methods.driver import stackable
from support.goals import paper_goal
from support.networks import trained

SETTINGS = {
    "bias-gda": {"schedule": "paper", "epochs": 8, "learning_rate": 3e-3, "batch": 32, "stop_below": 0.6},
    "pruning": {"units": 1, "stop_below": 0.6},
    "random": {"trials": 6},
    "adversarial-finetune": {"schedule": "paper", "epochs": 2, "critic_steps": 4, "actor_steps": 4},
    "adversarial-training": {"epochs": 2},
}


@pytest.fixture(scope="module")
def replicates():
    return [trained("mlp", seed) for seed in range(3)]


@pytest.mark.parametrize("method", METHODS)
def test_stacked_equals_looped_each_ending_on_its_own(method: str, replicates):
    models, cohorts = [m for m, _ in replicates], [p.valid for _, p in replicates]
    trains = [p.train for _, p in replicates] if METHODS[method].needs_train else None
    goal = paper_goal("spd", min_performance=0.55) if method in ("bias-gda", "pruning", "standard") else paper_goal("spd", max_gap=0.1)
    assert stackable(models, cohorts)
    settings = SETTINGS.get(method, {})
    together = run_many(method, models, cohorts, goal, seeds=[5, 6, 7], trains=trains, settings=settings)
    for k in range(3):
        part = None if trains is None else [trains[k]]
        alone = run_many(method, [models[k]], [cohorts[k]], goal, seeds=[5 + k], trains=part, settings=settings)[0]
        assert len(together[k].trace) == len(alone.trace)
        assert together[k].chosen == alone.chosen
        np.testing.assert_allclose(together[k].trace["gap"], alone.trace["gap"], atol=0.02)
        np.testing.assert_allclose(together[k].trace["performance"], alone.trace["performance"], atol=0.02)
        x = cohorts[k].inputs
        with torch.no_grad():
            torch.testing.assert_close(together[k].model(x), alone.model(x), rtol=1e-3, atol=1e-3)
    if method in ("bias-gda", "pruning"):
        assert len({len(c.trace) for c in together}) > 1


def test_a_user_module_gives_what_the_stack_gives(replicates):
    """The single path (hooks, torch.optim) and the stacked path are two ways to the same numbers."""
    model, parts = replicates[0]

    class Wrapped(torch.nn.Module):
        output = "logit"

        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x)

    for method in ("bias-gda", "pruning", "random"):
        settings = {**SETTINGS[method], **({"mode": "eval"} if method == "bias-gda" else {})}  # dropout is another there
        stack, single = (
            run_many(method, [m], [parts.valid], paper_goal("eod", min_performance=0.55), seeds=[1], settings=settings)[0]
            for m in (model, Wrapped())
        )
        np.testing.assert_allclose(stack.trace["gap"], single.trace["gap"], atol=0.02)
        assert stack.chosen == single.chosen
