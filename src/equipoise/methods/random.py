"""Random perturbation: the baseline of Savani, White and Govindarajulu (2020) as used in the paper.

Every parameter is multiplied by a draw from N(1, 0.01), in 101 trials. Of these networks, each with its best threshold, the best by the
constrained objective is returned: the best performance with |gap| within the maximum gap less a margin.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from equipoise.methods.contract import ALL_AT_ONCE, Rng, Step, Steps, Work, method, within_gap
from equipoise.methods.evaluation import Data
from equipoise.methods.goal import Goal

if TYPE_CHECKING:
    from equipoise.models import Repairable

SAVANI = """@inproceedings{savani2020intra,
  title     = {Intra-Processing Methods for Debiasing Neural Networks},
  author    = {Savani, Yash and White, Colin and Govindarajulu, Naveen Sundar},
  booktitle = {Advances in Neural Information Processing Systems},
  year      = {2020}
}"""


@dataclass(frozen=True)
class Settings:
    """`noise_sd` is a standard deviation: N(1, 0.01) has 0.1. A maximum gap of the goal takes the place of `max_gap`."""

    trials: int = 101
    noise_sd: float = 0.1
    max_gap: float = 0.05
    margin: float = 0.01


@method(
    "random",
    settings=Settings,
    title="the best of 101 random perturbations of the weights (Savani et al.)",
    paper=SAVANI,
    objective=within_gap,
    labels=ALL_AT_ONCE,
    cost=lambda speed, settings: Work(len(speed.repair) * (1 + settings.trials), settings.trials, f"{settings.trials} perturbed networks"),
    effort=2.0,
)
def random(model: Repairable, data: Data, goal: Goal, settings: Settings, rng: Rng) -> Steps:
    """A step per perturbed network."""
    noise = rng("random")
    for trial in range(1, settings.trials + 1):
        model.perturb(noise, settings.noise_sd)
        yield Step(trial, (trial, settings.trials))
