"""Constrained fine-tuning: the task loss keeps performance, and multipliers, one per gap, drive the gaps of all groups to zero.

An augmented Lagrangian: class-balanced cross-entropy + sum_k (lambda_k G_k + rho / 2 G_k^2), with G_k the gap of group k against the
reference, started from the trained weights. Bias GD/A minimises the gap only and lets performance fall; here each step accounts for both.
The networks take steps on the differentiable proxy of G_k, at the threshold of the last evaluation; the multipliers follow the gap of the
hard decisions (the proxy-Lagrangian of Cotter, Jiang and Sridharan, 2019, "Two-Player Games for Efficient Non-Convex Constrained
Optimization").

The risk is overfitting the repair set, with a zero gap there but not for other patients. Two things prevent it. The original network is a
teacher: its score, shifted so that each group's scores add up to its positives, replaces the label in the weights of the proxy (with the
label itself, the EOD moves the positives of this set and no others) and a share of the label in the task loss. And steps are `blockwise`:
Adam would change weights for an input of two rows as much as for one of all rows. Dropout is off, and batch norm uses its running
statistics. The number of steps is fixed, so that step 100 is comparable between folds of the data. With several labels, each has its own
task loss, teacher and multipliers, which are added up.

By default the steps are adaptive (see step_control), and a multiplier moves with every accepted trial. `schedule="paper"` is a fixed
learning rate for 15 epochs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import logit

from equipoise.data import FloatArray
from equipoise.errors import BadInput, pick
from equipoise.measures import Cells, linearise, match_positives, measure_of
from equipoise.methods.contract import ALL_AT_ONCE, Rng, Steps, method
from equipoise.methods.evaluation import Data, Evaluation, Label, decisions_at, single_precision
from equipoise.methods.goal import Goal
from equipoise.methods.step_control import check_schedule, schedule_steps, schedule_unit, schedule_work

if TYPE_CHECKING:
    from torch import Tensor

    from equipoise.models import Repairable

COTTER = """@inproceedings{cotter2019two,
  title     = {Two-Player Games for Efficient Non-Convex Constrained Optimization},
  author    = {Cotter, Andrew and Jiang, Heinrich and Sridharan, Karthik},
  booktitle = {International Conference on Algorithmic Learning Theory},
  year      = {2019}
}"""
EDGE_OF_SCORES = 1e-6  # scores are clipped to this distance from 0 and 1, which have no finite logit
FIXED_EPOCHS = 15  # of the paper's schedule
STEPS_PER_TRIAL = 20  # number of steps that an accepted trial of the adaptive schedule counts as
RESPONSE_STEPS = 20  # steps in which a constant gap adds itself, times the penalty, to its multiplier: networks need time to respond


@dataclass(frozen=True)
class ConstrainedSettings:
    """Tuned on Adult, Bank, COMPAS and two simulations. `penalty` is rho, `teacher` the teacher's share in the labels of the task loss."""

    learning_rate: float = 1e-3  # of the adaptive schedule: the first one tried
    batch: int = 256
    epochs: int | None = None  # passes over the rows at most: 15 in the paper's schedule, no limit in the adaptive one
    evals_per_epoch: int | None = None  # of the paper's schedule: 3
    max_steps: int = 45  # of the adaptive schedule: evaluations at most
    penalty: float = 1.0  # rho of the augmented Lagrangian
    teacher: float = 0.8  # share of the original's scores in the labels
    optimiser: str = "blockwise"  # or adam, sgd
    schedule: str = "adaptive"  # adaptive learning rate (see step_control); or paper, a fixed one for a number of epochs

    def __post_init__(self) -> None:
        check_schedule("constrained", self)
        pick("optimiser", self.optimiser, ("blockwise", "adam", "sgd"))
        if not 0 <= self.teacher <= 1:
            raise BadInput(f"the teacher's share in the labels lies in [0, 1]; got {self.teacher}")


@method(
    "constrained",
    settings=ConstrainedSettings,
    title="fine-tuning on the task with one multiplier per gap, all groups at once",
    paper=COTTER,
    counts=schedule_unit,
    needs_gap=True,
    labels=ALL_AT_ONCE,
    cost=lambda speed, settings: schedule_work(speed, settings, FIXED_EPOCHS),
    effort=0.5,
    in_auto=3,
)
def constrained(model: Repairable, data: Data, goal: Goal, settings: ConstrainedSettings, rng: Rng) -> Steps:
    """A step every few mini-batches of the augmented Lagrangian."""
    balance = LagrangianState(data, settings)
    balance.update(data.start, steps=0)
    optimiser = model.optimiser(settings.optimiser, settings.learning_rate)

    def descend(rows: Tensor) -> None:
        model.logit_gradient(rows, slope, *balance.of(rows))
        optimiser.step()

    def follow(now: Evaluation, batches: int | None) -> None:
        balance.update(now, batches or STEPS_PER_TRIAL)

    def restart() -> None:
        nonlocal balance, optimiser
        model.perturb(rng("restart"), 0.0)  # the original weights
        balance, optimiser = LagrangianState(data, settings), model.optimiser(settings.optimiser, settings.learning_rate)
        balance.update(data.start, steps=0)

    yield from schedule_steps(model, data, rng("constrained"), optimiser, descend, follow, settings, FIXED_EPOCHS, restart=restart)


def slope(logits: Tensor, weight: Tensor, target: Tensor, pull: Tensor, centre: Tensor, threshold: Tensor) -> Tensor:
    """The derivative of the Lagrangian by the logit of each row: centred cross-entropy, and the pull on scores at the threshold."""
    f = (logits - threshold).sigmoid()
    return weight * (logits - centre).sigmoid() - target + pull * f * (1 - f)


class LagrangianState:
    """The task loss and the gaps with their multipliers, as numbers per row."""

    pull: Tensor  # both are set by `update`
    threshold: Tensor

    def __init__(self, data: Data, settings: ConstrainedSettings) -> None:
        self.penalty = settings.penalty
        scores, thresholds = data.start.scores, data.start.threshold
        original, decisions = logit(scores.clip(EDGE_OF_SCORES, 1 - EDGE_OF_SCORES)), decisions_at(scores, thresholds)
        target, against = np.zeros(scores.shape), np.zeros(scores.shape)
        self.sides: list[LabelState] = []
        for rows, own in data.parts:
            taught = match_positives(original[rows], own.y, own.attribute.codes, len(own.attribute.levels))
            side = LabelState(rows, own, taught, np.zeros(len(own.attribute.levels) - 1))
            side.weigh(own.cells(decisions[rows]))
            self.sides.append(side)
            # Both classes have half of the weight, and all labels the same: the mean over the rows where the label is known.
            share, say = own.y.mean(), len(scores) / len(own.y)
            mixed = (1 - settings.teacher) * own.y + settings.teacher * taught
            target[rows] = say * (0.5 * mixed / share)
            against[rows] = say * (0.5 * (1 - mixed) / (1 - share))
        self.target = single_precision(target)
        self.weight = self.target + single_precision(against)
        # The loss is centred on the original threshold, so that it does not move it.
        self.centre = _logits(data.centre(thresholds))

    def update(self, now: Evaluation, steps: int) -> None:
        """Updates the multipliers by the gaps of the current decisions and the steps since the last update, and the pull on each row."""
        decisions, pull = decisions_at(now.scores, now.threshold), np.zeros(now.scores.shape)
        for side in self.sides:
            cells = side.labels.cells(decisions[side.rows])
            gaps = cells.gaps(side.labels.measure)
            if measure_of(side.labels.measure).is_quotient:  # its weights are those around these decisions
                side.weigh(cells)
            side.multipliers = side.multipliers + steps / RESPONSE_STEPS * self.penalty * gaps
            force = side.multipliers + self.penalty * gaps
            pull[side.rows] = (force[:, None] * side.weights).sum(0) * len(pull)
        self.pull = single_precision(pull)
        self.threshold = _logits(now.threshold)

    def of(self, index: Tensor) -> tuple[Tensor, ...]:
        """The arguments of `slope` for some rows (b,): means over the batch, and the centre and threshold of each row."""
        means = (numbers[index] / len(index) for numbers in (self.weight, self.target, self.pull))
        return (*means, self.centre[index], self.threshold[index])


@dataclass
class LabelState:
    """The gaps of one label: its rows, the teacher's probabilities, one multiplier per gap, and the weights of the gaps."""

    rows: slice | np.typing.NDArray[np.int64]
    labels: Label
    taught: FloatArray  # (n,)
    multipliers: FloatArray  # (gaps,)
    weights: FloatArray = field(default_factory=lambda: np.empty(0))  # (gaps, n)

    def weigh(self, cells: Cells) -> None:
        """Sets the weights of every gap from the teacher's probabilities."""
        measure, groups = self.labels.measure, self.labels.attribute
        codes, others = groups.codes, range(1, len(groups.levels))
        self.weights = np.stack([expected_weights(measure, cells, k, codes, self.taught) for k in others])


def expected_weights(measure: str, cells: Cells, group: int, codes: np.typing.NDArray[np.int64], p: FloatArray) -> FloatArray:
    """The expected weights w (n,) of a group's gap if a row is positive with probability p."""
    functional = linearise(measure, cells, group)
    positive, negative = (functional.weights(np.full_like(codes, label), codes) for label in (1, 0))
    mixed: FloatArray = p * positive + (1 - p) * negative
    return mixed


def _logits(thresholds: FloatArray) -> Tensor:
    """The logits of the threshold of each row."""
    return single_precision(logit(np.clip(thresholds, EDGE_OF_SCORES, 1 - EDGE_OF_SCORES)))
