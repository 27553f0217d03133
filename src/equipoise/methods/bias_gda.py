"""Bias gradient descent/ascent: Algorithm 2 of Marcinkevics, Ozkan and Vogt (2022).

The network is fine-tuned on the differentiable proxy of the gap alone, down or up by the sign of the original's gap, with a small
learning rate; of all the states seen, the one with the smallest |gap| and enough performance is returned. We depart from the published
code in three places: mini-batches are weighted by the counts of the whole split, so that a batch without a group is no problem; the
network is fine-tuned in eval mode, without dropout and with the batch norm it was trained with; thresholds are swept exactly. With more
than two groups the gap is that of the group which is furthest from the reference at the start.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
import torch
from torch import nn

from equipoise.data.cohort import Cohort
from equipoise.data.seeds import generator
from equipoise.errors import pick
from equipoise.methods.base import Candidate, Goal, Progress
from equipoise.methods.selection import Labels, Traces, better, keep_best, plain_rule, select
from equipoise.models.replicas import replicas


@dataclass(frozen=True)
class Settings:
    """The settings of Table `tab:hyperparams`. `stop` ends a replicate whose performance nears chance."""

    rate: float = 1e-5
    batch: int = 256
    epochs: int = 200
    evaluations: int = 3  # an epoch
    optimiser: str = "adam"  # or sgd
    stop: float = 0.52

    def __post_init__(self) -> None:
        pick("optimiser", self.optimiser, ("adam", "sgd"))


def run(
    models: Sequence[nn.Module],
    cohorts: Sequence[Cohort],
    goal: Goal,
    *,
    seeds: Sequence[int],
    settings: Settings,
    progress: Progress | None = None,
) -> list[Candidate]:
    """The fine-tuned networks."""
    labels = Labels.of(cohorts, goal)
    networks = replicas(models, cohorts)
    scores = networks.evaluate()
    look = best = labels.look(scores)
    goals = [goal.settled(float(p)) for p in look.performance]
    weights = torch.from_numpy(labels.weights(scores, look.threshold)).float()
    direction = torch.from_numpy(np.sign(look.gap)).float()[:, None]
    traces = Traces(networks.size)
    traces.add(0, look)

    optimiser = networks.optimiser(settings.optimiser, settings.rate)
    shuffles = [generator(seed, "bias-gda") for seed in seeds]
    active = look.gap != 0
    optimiser.stop(~active)
    batches = -(-networks.rows // settings.batch)
    every = max(1, batches // settings.evaluations)
    step = 0
    for epoch in range(settings.epochs):
        if not active.any():
            break
        order = torch.from_numpy(np.stack([g.permutation(networks.rows) for g in shuffles]))
        for k, index in enumerate(order.split(settings.batch, dim=1)):
            networks.tilt(index, direction * weights.gather(1, index) * (networks.rows / index.shape[1]))
            optimiser.step()
            step += 1
            if (k + 1) % every:
                continue
            look = labels.look(networks.evaluate())
            traces.add(step, look, active)
            improved = better(look, best, goals) & active
            best = keep_best(best, look, improved)
            networks.keep(improved)
            active &= look.performance > settings.stop
            optimiser.stop(~active)
        if progress:
            progress(epoch + 1, settings.epochs)
    found = []
    for r, (model, cohort, seed) in enumerate(zip(networks.kept(), cohorts, seeds, strict=True)):
        trace = traces.frame(r)
        selection = select(trace, goals[r])
        rule = plain_rule("bias-gda", trace, selection.row, cohort, goals[r])
        found.append(
            Candidate(
                "bias-gda",
                model,
                rule,
                trace,
                selection.row,
                selection.why,
                selection.met,
                goals[r],
                seed,
                asdict(settings),
                networks.notes,
            )
        )
    return found
