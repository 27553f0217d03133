"""A law: the paper's MLP, with its fast steps, gives what the same network gives as a module of a user."""

import numpy as np
import torch

from equipoise.methods import run_method
from support.goals import paper_goal
from support.networks import trained

SETTINGS = {
    "bias-gda": {"schedule": "paper", "epochs": 8, "learning_rate": 3e-3, "batch": 32, "stop_below": 0.6, "mode": "eval"},
    "pruning": {"units": 1, "stop_below": 0.6},
    "random": {"trials": 6},
}  # in eval mode, since dropout is another there


def test_a_user_module_gives_what_the_mlp_gives():
    model, parts = trained("mlp", 0)

    class Wrapped(torch.nn.Module):
        output = "logit"

        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x)

    goal = paper_goal("eod", min_performance=0.55)
    for method, settings in SETTINGS.items():
        mlp, module = (run_method(method, m, parts.valid, {"": goal}, seed=1, settings=settings) for m in (model, Wrapped()))
        np.testing.assert_allclose(mlp.trace["gap"], module.trace["gap"], atol=0.02)
        assert mlp.chosen == module.chosen
