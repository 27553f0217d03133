"""Bias gradient descent/ascent: Algorithm 2 of Marcinkevics, Ozkan and Vogt (2022).

The network is fine-tuned on the differentiable proxy of the gap alone, down or up by the sign of the original's gap, with a small
learning rate; of all the states seen, the one with the smallest |gap| and enough performance is returned. As in the published code, a
network of a table is fine-tuned in training mode, with dropout and batch statistics: on 20 splits of Adult, Bank and COMPAS that left
smaller gaps than eval mode at no lower balanced accuracy (results/departures). The running statistics then move with the weights, and a
kept state includes them. A network of images is fine-tuned in eval mode, with the batch norm it was trained with, since no such comparison
has been made there. `mode` sets either. We depart from the published
code in three places: mini-batches are weighted by the counts of the whole split, so that a batch without a group is no problem; every
step is evaluated in eval mode, as the network will be used (theirs in training mode); and thresholds are swept exactly. With more
than two groups the gap is that of the group which is furthest from the reference, chosen anew at every look; the weights of a
quotient, such as the gap in PPV, are those around the decisions of the last look.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from equipoise.data import Cohort, generator
from equipoise.errors import pick
from equipoise.methods.base import Candidate, Goal, Progress
from equipoise.methods.contract import ALL_AT_ONCE, fine_tuning_work, method
from equipoise.methods.papers import MARCINKEVICS
from equipoise.methods.selection import search_for
from equipoise.models import replicas


@dataclass(frozen=True)
class Settings:
    """The settings of Table `tab:hyperparams`. `stop_below` ends a replicate whose performance nears chance."""

    learning_rate: float = 1e-5
    batch: int = 256
    epochs: int = 200
    evals_per_epoch: int = 3
    optimiser: str = "adam"  # or sgd
    stop_below: float = 0.52
    mode: str = "auto"  # train, with dropout and batch statistics, for tables, and eval for images; or eval or train for both

    def __post_init__(self) -> None:
        pick("optimiser", self.optimiser, ("adam", "sgd"))
        pick("mode of bias-gda", self.mode, ("auto", "eval", "train"))


@method(
    "bias-gda",
    settings=Settings,
    title="fine-tuning on the gap alone, down or up (the paper's Algorithm 2)",
    paper=MARCINKEVICS,
    counts="epochs",
    labels=ALL_AT_ONCE,
    classes=True,
    cost=lambda task, settings: fine_tuning_work(task, settings, "at most "),
    effort=8.0,
    in_auto=5,
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
    """The fine-tuned networks."""
    networks = replicas(models, cohorts)
    search = search_for(networks, cohorts, goal)
    scores = networks.evaluate()
    look = search.begin(scores)
    weights = torch.from_numpy(search.labels.weights(scores, look.threshold)).float()
    direction = torch.from_numpy(np.sign(look.gap)).float()[:, None]

    optimiser = networks.optimiser(settings.optimiser, settings.learning_rate)
    shuffles = [generator(seed, "bias-gda") for seed in seeds]
    training = settings.mode == "train" or (settings.mode == "auto" and len(cohorts[0].inputs.shape) == 2)
    dropouts = [generator(seed, "bias-gda dropout") for seed in seeds] if training else None
    least = 2 if training else 1  # batch norm has no variance of one row
    search.active = look.gap != 0
    optimiser.stop(~search.active)
    step = 0
    for epoch in range(settings.epochs):
        if not search.active.any():
            break
        batches = list(networks.batches(shuffles, settings.batch, least))
        every = max(1, len(batches) // settings.evals_per_epoch)
        search.pace = 1 / max(1, len(batches))
        for k, index in enumerate(batches):
            networks.tilt(index, direction * weights.gather(1, index) * (networks.rows / index.shape[1]), generators=dropouts)
            optimiser.step()
            step += 1
            if (k + 1) % every:
                continue
            scores = networks.evaluate()
            look = search.step(step, scores)
            if search.labels.moving:
                weights = torch.from_numpy(search.labels.weights(scores, look.threshold)).float()
                direction = torch.from_numpy(np.sign(look.gap)).float()[:, None]
            search.active &= look.performance > settings.stop_below
            optimiser.stop(~search.active)
        if progress:
            progress(epoch + 1, settings.epochs)
    return search.candidates("bias-gda", seeds, settings)
