"""Adversarial in-processing: Zhang, Lemoine and Mitchell (2018). A baseline that trains from scratch, on the training set.

An adversary predicts the protected attribute from the predictor's logit. The predictor follows the gradient of its own loss, without the
component that would help the adversary, less `weight` times the adversary's gradient. For parity of selection (spd) the adversary sees all
rows; for eod the positives, for fpr_gap and tnr_gap the negatives, for aod and other sums of both rates all rows together with the label.
The predictor has the network's architecture with new weights; a network that started from pretrained weights has an attribute `untrained`,
a function of a seed that returns the network as it was before training. After every epoch the constrained objective (best performance with
|gap| within the maximum gap less a margin) is evaluated on the repair set, and the best epoch is kept.
"""

import copy
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from equipoise.data import child_seed
from equipoise.errors import BadInput, pick
from equipoise.measures import labels_needed
from equipoise.methods.contract import Rng, Step, Steps, Task, Work, method, unknown_work, within_gap
from equipoise.methods.evaluation import Data, Label
from equipoise.methods.goal import Goal
from equipoise.models import MLP, OPTIMISERS, Critic, Repairable, initial_mlp

PAPER = """@inproceedings{zhang2018mitigating,
  title     = {Mitigating Unwanted Biases with Adversarial Learning},
  author    = {Zhang, Brian Hu and Lemoine, Blake and Mitchell, Margaret},
  booktitle = {AAAI/ACM Conference on AI, Ethics, and Society},
  year      = {2018}
}"""


@dataclass(frozen=True)
class Settings:
    """`weight` is alpha of Zhang et al. A maximum gap of the goal takes the place of `max_gap`."""

    learning_rate: float = 1e-3
    epochs: int = 30
    batch: int = 128
    weight: float = 1.0
    width: int = 32
    max_gap: float = 0.05
    margin: float = 0.01
    optimiser: str = "adam"  # or adamw, for networks other than the paper's MLP

    def __post_init__(self) -> None:
        pick("optimiser", self.optimiser, OPTIMISERS)


def fresh(model: nn.Module, seed: int) -> nn.Module:
    """An untrained network of the same architecture: with its pretrained weights, or with new ones that depend only on the seed."""
    if type(model) is MLP and (model.width, model.depth) == (32, 10):
        return initial_mlp(model.inputs, seed)
    if callable(untrained := getattr(model, "untrained", None)):
        pretrained: nn.Module = untrained(seed)
        return pretrained
    new = copy.deepcopy(model).requires_grad_(True)
    lacking = []
    with torch.random.fork_rng():
        torch.manual_seed(child_seed(seed, "weights"))
        for name, module in new.named_modules():
            if callable(reset := getattr(module, "reset_parameters", None)):
                reset()
            elif any(True for _ in module.parameters(recurse=False)):
                lacking.append(f"{name or 'the network itself'} ({type(module).__name__})")
    if lacking:
        raise BadInput(f"adversarial-training cannot draw new weights for {', '.join(lacking[:5])}: no reset_parameters()")
    return new


def cost(task: Task, settings: Settings) -> Work:
    """The work: the training set in every epoch, and one evaluation."""
    if task.train is None:
        return unknown_work(task, settings)
    rows, trained = len(task.repair), len(task.train)
    what = f"{settings.epochs} epochs of training from scratch on {trained:,} rows"
    return Work(rows + settings.epochs * (rows + task.backward * trained), settings.epochs, what)


@method(
    "adversarial-training",
    settings=Settings,
    title="training from scratch against an adversary (Zhang et al.)",
    paper=PAPER,
    objective=within_gap,
    start=fresh,
    needs_train=True,
    takes_train=True,
    quotients=False,
    counts="epochs",
    cost=cost,
    effort=10.0,
)
def adversarial_training(model: Repairable, data: Data, goal: Goal, settings: Settings, rng: Rng) -> Steps:
    """A step per epoch of training from scratch."""
    assert data.train is not None  # the method needs the training set
    game = _Game(model, data.train.labels[0], settings, rng)
    for epoch in range(1, settings.epochs + 1):
        game.epoch()
        yield Step(epoch, (epoch, settings.epochs))


class _Game:
    """The training of predictor and adversary."""

    def __init__(self, model: Repairable, labels: Label, settings: Settings, rng: Rng) -> None:
        self.model, self.settings = model, settings
        self.y = torch.from_numpy(labels.y).float()
        self.group = torch.from_numpy(labels.codes)
        self.seen = torch.from_numpy(_audience(labels)).float() * (self.group >= 0)
        self.conditional = len(labels_needed(labels.measure)) == 2
        levels = len(labels.levels)
        self.shuffle, self.dropout = rng("shuffle"), rng("dropout")
        inputs = 4 if self.conditional else 2
        with torch.no_grad():
            device = model.scores_and_features(torch.zeros(2, dtype=torch.int64))[0].device
        self.adversary = Critic([inputs, settings.width, levels], rng("adversary")).to(device)
        self.adversary_optimiser = OPTIMISERS[settings.optimiser](self.adversary.parameters(), lr=settings.learning_rate)
        self.optimiser = model.optimiser(settings.optimiser, settings.learning_rate)

    def epoch(self) -> None:
        for index in self.model.batches(self.shuffle, self.settings.batch, 2):  # batch norm has no variance of one row
            self._step(index)

    def _step(self, index: Tensor) -> None:
        f, _ = self.model.scores_and_features(index, generator=self.dropout)
        y = self.y[index].to(f.device)
        loss = F.binary_cross_entropy(f, y, reduction="none").mean()
        adversary_loss = self._adversary_loss(f, y, index)
        self.model.adversarial_gradient(loss, adversary_loss, list(self.adversary.parameters()), self.settings.weight)
        self.optimiser.step()
        self.adversary_optimiser.step()

    def _adversary_loss(self, f: Tensor, y: Tensor, index: Tensor) -> Tensor:
        """The mean cross-entropy of the attribute, over the rows that the measure is about."""
        logit = torch.logit(f.clamp(1e-6, 1 - 1e-6))
        inputs = [f, logit, f * y, logit * y] if self.conditional else [f, logit]
        prediction = self.adversary(torch.stack(inputs, dim=1)).T[None]  # (1, groups, rows)
        seen = self.seen[index].to(f.device)
        group = self.group[index].clamp(min=0).to(f.device)
        loss = F.cross_entropy(prediction, group[None], reduction="none")[0]
        return (loss * seen).sum() / seen.sum().clamp(min=1.0)


def _audience(labels: Label) -> np.typing.NDArray[np.bool_]:
    """The rows that the adversary sees: those whose label the measure is about."""
    needed = labels_needed(labels.measure)
    return np.isin(labels.y, needed) if len(needed) == 1 else np.ones_like(labels.y, bool)
