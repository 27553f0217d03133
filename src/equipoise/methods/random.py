"""Random perturbation: the baseline of Savani, White and Govindarajulu (2020) as used in the paper.

Every parameter is multiplied by a draw from N(1, 0.01), 101 times over; of these networks, each with its best threshold, the one that is
best by the constrained objective is returned: the best performance with |gap| within the maximum gap less a margin.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from equipoise.data import Cohort, generator
from equipoise.methods.base import Candidate, Goal, Progress
from equipoise.methods.contract import ALL_AT_ONCE, Work, method
from equipoise.methods.papers import SAVANI
from equipoise.methods.selection import search_for
from equipoise.models import replicas


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
    labels=ALL_AT_ONCE,
    classes=True,
    cost=lambda task, settings: Work(len(task.repair) * (1 + settings.trials), settings.trials, f"{settings.trials} perturbed networks"),
    effort=2.0,
)
def run(
    models: Sequence[nn.Module],
    cohorts: Sequence[Cohort],
    goal: Goal,
    *,
    seeds: Sequence[int],
    settings: Settings,
    progress: Progress | None = None,
) -> list[Candidate]:
    """The best of the perturbed networks."""
    networks = replicas(models, cohorts)
    max_gap = goal.max_gap if goal.max_gap is not None else settings.max_gap
    search = search_for(networks, cohorts, goal, within=max(0.0, max_gap - settings.margin))
    search.begin(networks.evaluate())
    generators = [generator(seed, "random") for seed in seeds]
    for trial in range(1, settings.trials + 1):
        networks.perturb(generators, settings.noise_sd)
        search.step(trial, networks.evaluate())
        if progress:
            progress(trial, settings.trials)
    return search.candidates("random", seeds, settings)
