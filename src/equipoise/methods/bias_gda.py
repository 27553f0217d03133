"""Bias gradient descent/ascent: Algorithm 2 of Marcinkevics, Ozkan and Vogt (2022).

The network is fine-tuned on the differentiable proxy of the gap only, down or up by the sign of the original's gap, with a small learning
rate; of all states, the one with the smallest |gap| and sufficient performance is returned. As in the published code, a network of a table
is fine-tuned in training mode, with dropout and batch statistics: on 20 splits of Adult, Bank and COMPAS this left smaller gaps than eval
mode at no lower balanced accuracy (experiments/departures). The running statistics then change with the weights, and a kept state includes
them. A network of images is fine-tuned in eval mode, with the batch norm it was trained with, since no such comparison exists for images.
`mode` sets either. We depart from the published code in three places: mini-batches are weighted by the counts of the whole split, so that a
batch may lack a group; every step is evaluated in eval mode, as the network will be used (theirs in training mode); thresholds are swept
exactly. With more than two groups, the gap is that of the group furthest from the reference, chosen again at every evaluation; the weights
of a quotient, such as the gap in PPV, are linearised at the decisions of the last evaluation.

By default the steps are adaptive (see step_control), in eval mode, where only the weights change the network, and with blockwise steps,
which cost less balanced accuracy than Adam's. `schedule="paper"` is the published learning rate for 200 epochs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from equipoise.errors import pick
from equipoise.methods.contract import ALL_AT_ONCE, MARCINKEVICS, Rng, Steps, method
from equipoise.methods.evaluation import Data, Evaluation, single_precision
from equipoise.methods.goal import Goal
from equipoise.methods.step_control import check_schedule, schedule_steps, schedule_unit, schedule_work

if TYPE_CHECKING:
    from torch import Tensor

    from equipoise.models import Repairable

PAPER_EPOCHS = 200  # of the paper's schedule


@dataclass(frozen=True)
class BiasGdaSettings:
    """The settings of Table `tab:hyperparams`. `stop_below` ends a run whose performance is close to chance."""

    learning_rate: float = 1e-5  # of the adaptive schedule: the first one tried
    batch: int = 256
    epochs: int | None = None  # passes over the rows at most: 200 in the paper's schedule, no limit in the adaptive one
    evals_per_epoch: int | None = None  # of the paper's schedule: 3
    max_steps: int = 45  # of the adaptive schedule: evaluations at most
    optimiser: str = "auto"  # adam in the paper's schedule, blockwise in the adaptive one; or adam, blockwise or sgd in both
    stop_below: float = 0.52
    mode: str = "auto"  # eval; in the paper's schedule train, with dropout and batch statistics, for tables; or eval or train for all
    schedule: str = "adaptive"  # adaptive learning rate (see step_control); or paper, a fixed one for a number of epochs

    def __post_init__(self) -> None:
        check_schedule("bias-gda", self)
        pick("optimiser", self.optimiser, ("auto", "adam", "blockwise", "sgd"))
        pick("mode of bias-gda", self.mode, ("auto", "eval", "train"))


@method(
    "bias-gda",
    settings=BiasGdaSettings,
    title="fine-tuning on the gap alone, down or up (the paper's Algorithm 2)",
    paper=MARCINKEVICS,
    counts=schedule_unit,
    needs_gap=True,
    labels=ALL_AT_ONCE,
    cost=lambda speed, settings: schedule_work(speed, settings, PAPER_EPOCHS, "at most "),
    effort=8.0,
    in_auto=4,
)
def bias_gda(model: Repairable, data: Data, goal: Goal, settings: BiasGdaSettings, rng: Rng) -> Steps:
    """A step every few mini-batches of gradient descent on |gap|."""
    paper = settings.schedule == "paper"
    training = settings.mode == "train" or (settings.mode == "auto" and paper and not data.images)
    least = 2 if training else 1  # batch norm needs two rows for a variance
    shuffle, dropout = rng("bias-gda"), rng("bias-gda dropout") if training else None
    name = ("adam" if paper else "blockwise") if settings.optimiser == "auto" else settings.optimiser
    optimiser = model.optimiser(name, settings.learning_rate)
    pull = single_precision(data.pull(data.start))

    def descend(rows: Tensor) -> None:
        model.proxy_gradient(rows, pull[rows] * (model.rows / len(rows)), generator=dropout)
        optimiser.step()

    def follow(now: Evaluation, _batches: int | None) -> None:
        nonlocal pull
        if data.moving:
            pull = single_precision(data.pull(now))

    yield from schedule_steps(model, data, shuffle, optimiser, descend, follow, settings, PAPER_EPOCHS, least, settings.stop_below)
