"""Baselines of the paper: random perturbation, fine-tuning against a critic of the gap, and training from scratch against an adversary.

Random perturbation: Savani, White and Govindarajulu (2020). Every parameter is multiplied by a draw from N(1, 0.01), in 101 trials. Of
these networks, each with its best threshold, the best by the constrained objective is returned: the best performance with |gap| within the
maximum gap less a margin.

Adversarial fine-tuning: Savani, White and Govindarajulu (2020), as the paper uses it (appendix D.4).

A critic learns to predict the gap of a mini-batch from the network's features; the network is then fine-tuned on the cross-entropy times
max(1, lambda * (|critic| - bound + margin) + 1), so that predicted bias makes every mistake more costly. Both take turns for some epochs.
Departures: the gap of a mini-batch is weighted by the counts of the whole split; after every epoch the network is evaluated in eval mode
with the exact sweep (the published code evaluates in training mode), and the best epoch by the constrained objective is kept, not the last
(`restore="last"` keeps the last). The weights of a quotient, such as the gap in PPV, are linearised at the decisions after the last epoch.

By default, turns are short and their steps are adaptive (see step_control): steps are chosen by the goal, the critic predicts each row's
contribution to the gap, and its weight is raised if the gap does not fall. That keeps performance, but the critic is often not accurate
enough, and a run then ends with a part of the gap left. `schedule="paper"` is the published schedule.

Adversarial in-processing: Zhang, Lemoine and Mitchell (2018). A baseline that trains from scratch, on the training set.

An adversary predicts the protected attribute from the predictor's logit. The predictor follows the gradient of its own loss, without the
component that would help the adversary, less `weight` times the adversary's gradient. For parity of selection (spd) the adversary sees all
rows; for eod the positives, for fpr_gap and tnr_gap the negatives, for aod and other sums of both rates all rows together with the label.
The predictor has the network's architecture with new weights; a network that started from pretrained weights has an attribute `untrained`,
a function of a seed that returns the network as it was before training. After every epoch the constrained objective (best performance with
|gap| within the maximum gap less a margin) is evaluated on the repair set, and the best epoch is kept.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from equipoise.data import FloatArray, child_seed
from equipoise.errors import BadInput, pick
from equipoise.measures import measure_of
from equipoise.methods.contract import ALL_AT_ONCE, Rng, Speed, Step, Steps, Work, method, unknown_work, within_gap
from equipoise.methods.evaluation import Data, Evaluation, single_precision
from equipoise.methods.goal import Goal
from equipoise.methods.step_control import adaptive, check_schedule, schedule_unit

if TYPE_CHECKING:
    from torch import Tensor, nn

    from equipoise.models import Repairable

SAVANI = """@inproceedings{savani2020intra,
  title     = {Intra-Processing Methods for Debiasing Neural Networks},
  author    = {Savani, Yash and White, Colin and Govindarajulu, Naveen Sundar},
  booktitle = {Advances in Neural Information Processing Systems},
  year      = {2020}
}"""
ZHANG = """@inproceedings{zhang2018mitigating,
  title     = {Mitigating Unwanted Biases with Adversarial Learning},
  author    = {Zhang, Brian Hu and Lemoine, Blake and Mitchell, Margaret},
  booktitle = {AAAI/ACM Conference on AI, Ethics, and Society},
  year      = {2018}
}"""
FINETUNE_EPOCHS = 16  # of the paper's schedule
NETWORK_BATCHES = 8  # mini-batches of the network per trial of the adaptive schedule
CRITIC_WEIGHT_GROWTH = 3.0  # factor of the critic's weight after a trial that did not reduce the gap
CRITIC_RETRAINING = 8  # after a trial, the critic is trained for one eighth of its steps


@dataclass(frozen=True)
class RandomSettings:
    """`noise_sd` is a standard deviation: N(1, 0.01) has 0.1. A maximum gap of the goal takes the place of `max_gap`."""

    trials: int = 101  # perturbed networks
    noise_sd: float = 0.1  # standard deviation of the factors of the weights
    max_gap: float = 0.05
    margin: float = 0.01


@method(
    "random",
    settings=RandomSettings,
    title="the best of 101 random perturbations of the weights (Savani et al.)",
    paper=SAVANI,
    within=within_gap,
    labels=ALL_AT_ONCE,
    cost=lambda speed, settings: Work(len(speed.repair) * (1 + settings.trials), settings.trials, f"{settings.trials} perturbed networks"),
    effort=2.0,
)
def random(model: Repairable, data: Data, goal: Goal, settings: RandomSettings, rng: Rng) -> Steps:
    """A step per perturbed network."""
    noise = rng("random")
    for trial in range(1, settings.trials + 1):
        model.perturb(noise, settings.noise_sd)
        yield Step(trial, (trial, settings.trials))


@dataclass(frozen=True)
class FinetuneSettings:
    """The values of appendix D.4 for tables. `weight` is lambda. A maximum gap of the goal takes the place of `max_gap`."""

    learning_rate: float = 1e-3  # of the adaptive schedule: the first one tried
    epochs: int | None = None  # turns of critic and network at most: 16 in the paper's schedule, no limit in the adaptive one
    max_steps: int = 45  # of the adaptive schedule: evaluations at most
    batch: int = 64
    weight: float = 0.75  # of the critic's part of the loss: lambda
    critic_steps: int = 201  # mini-batches in which the critic alone learns
    actor_steps: int = 101  # mini-batches in which the network learns
    max_gap: float = 0.05
    margin: float = 0.01
    width: int = 32
    restore: str = "best"  # epoch by the constrained objective; or last, as published
    schedule: str = "adaptive"  # steps of adaptive length, chosen by the goal; or paper, a number of epochs with long turns

    def __post_init__(self) -> None:
        check_schedule("adversarial-finetune", self)
        pick("epoch to keep of adversarial-finetune", self.restore, ("best", "last"))


def finetune_cost(speed: Speed, settings: FinetuneSettings) -> Work:
    """The work: mini-batches for the critic and for the network, and one evaluation per epoch, or per trial of the adaptive schedule."""
    rows, batch = len(speed.repair), min(settings.batch, len(speed.repair))
    if settings.schedule == "adaptive":
        turn = rows + batch * speed.backward * NETWORK_BATCHES  # the critic reads features that are computed once per turn
        what = f"at most {settings.max_steps} evaluations of fine-tuning against a critic"
        return Work(settings.max_steps * (rows + turn), settings.max_steps, what)
    epochs = FINETUNE_EPOCHS if settings.epochs is None else settings.epochs
    shown = batch * (settings.critic_steps + speed.backward * settings.actor_steps)
    return Work(rows + epochs * (rows + shown), epochs, f"{epochs} epochs of fine-tuning against a critic")


@method(
    "adversarial-finetune",
    settings=FinetuneSettings,
    title="fine-tuning against a critic of the gap (Savani et al.)",
    paper=SAVANI,
    within=lambda goals, settings: within_gap(goals, settings) if settings.schedule == "paper" else None,
    last=lambda settings: settings.schedule == "paper" and settings.restore == "last",
    counts=schedule_unit,
    cost=finetune_cost,
    effort=12.0,
)
def adversarial_finetune(model: Repairable, data: Data, goal: Goal, settings: FinetuneSettings, rng: Rng) -> Steps:
    """A step per epoch of turns between the critic and the network."""
    turns = CriticTurns(model, data, goal, settings, rng)
    if settings.schedule == "adaptive":  # short turns, each of which is a trial; the critic is trained further after each of them
        left = np.inf if settings.epochs is None else settings.epochs
        turns.train_critic(settings.critic_steps)

        def advance() -> bool:
            nonlocal left
            left -= 1
            turns.train_network(NETWORK_BATCHES, None)
            return left > 0

        def follow(now: Evaluation, accepted: bool, slow: bool) -> None:
            if slow:
                turns.weight *= CRITIC_WEIGHT_GROWTH
            if measure_of(goal.measure).is_quotient and accepted:
                turns.follow(data.functional(now))
            turns.train_critic(max(1, settings.critic_steps // CRITIC_RETRAINING))

        yield from adaptive(turns.model, data, turns.actor_optimiser, advance, follow, settings)
        return
    epochs = FINETUNE_EPOCHS if settings.epochs is None else settings.epochs
    for epoch in range(1, epochs + 1):
        turns.train_critic(settings.critic_steps)
        turns.train_network(settings.actor_steps, turns.dropout)
        now = yield Step(epoch, (epoch, epochs))
        if measure_of(goal.measure).is_quotient:
            turns.follow(data.functional(now))


class CriticTurns:
    """The critic's and the network's turns."""

    def __init__(self, model: Repairable, data: Data, goal: Goal, settings: FinetuneSettings, rng: Rng) -> None:
        import torch

        from equipoise.models import Critic

        s = settings
        self.model = model
        self.max_gap = within_gap([goal], s) if s.schedule == "paper" else 0.0
        self.weight = s.weight
        self.follow(data.functional(data.start))
        self.y = single_precision(data.labels[0].y)
        self.batch = min(s.batch, model.rows)
        self.draws, self.dropout = rng("adversarial batches"), rng("adversarial dropout")
        with torch.no_grad():
            f, features = model.scores_and_features(self._index())
        self.by_row = s.schedule == "adaptive"
        sizes = [features.shape[1] * (1 if self.by_row else self.batch), s.width, s.width, s.width, 1]
        self.critic = Critic(sizes, rng("critic"), dropout=0.2).to(f.device)
        self.critic_optimiser = torch.optim.Adam(self.critic.parameters())
        self.actor_optimiser = model.optimiser("adam", s.learning_rate)

    def follow(self, gap: tuple[float, FloatArray]) -> None:
        """Sets offset and weights (n,) of the gap that the critic predicts."""
        self.offset, self.weights = gap[0], single_precision(gap[1])

    def _index(self) -> Tensor:
        import torch

        return torch.from_numpy(self.draws.integers(0, self.model.rows, self.batch))

    def _verdict(self, features: Tensor) -> Tensor:
        """The predicted gap of a mini-batch: from all its features, or the mean of the predictions for each row."""
        if self.by_row:
            return self.critic(features)[:, 0].mean()  # type: ignore[no-any-return]
        return self.critic(features.reshape(1, -1))[0, 0]  # type: ignore[no-any-return]

    def train_critic(self, steps: int) -> None:
        """Trains the critic on mini-batches of the network as it is."""
        import torch

        self.critic.train().requires_grad_(True)
        read = self.model.fixed_scores_and_features()
        for _ in range(steps):
            index = self._index()
            with torch.no_grad():
                f, features = read(index)
                weights = self.weights[index].to(f.device)
                gap = (weights.to(f.dtype) * f).sum() * self.model.rows / self.batch + self.offset
            self.critic_optimiser.zero_grad()
            if self.by_row:
                contributions = f * weights * self.model.rows + self.offset  # their mean is the gap
                ((self.critic(features)[:, 0] - contributions) ** 2).mean().backward()
            else:
                ((self._verdict(features) - gap) ** 2).backward()
            self.critic_optimiser.step()

    def train_network(self, steps: int, dropout: np.random.Generator | None) -> None:
        """Trains the network against the critic as it is."""
        from torch.nn import functional as F

        self.critic.eval().requires_grad_(False)
        for _ in range(steps):
            index = self._index()
            f, features = self.model.scores_and_features(index, generator=dropout)
            mistakes = F.binary_cross_entropy(f, self.y[index].to(f.device), reduction="none").mean()
            price = (self.weight * (self._verdict(features).abs() - self.max_gap) + 1).clamp(min=1.0)
            (price * mistakes).backward()
            self.actor_optimiser.step()


@dataclass(frozen=True)
class TrainingSettings:
    """`weight` is alpha of Zhang et al. A maximum gap of the goal takes the place of `max_gap`."""

    learning_rate: float = 1e-3
    epochs: int = 30
    batch: int = 128
    weight: float = 1.0  # of the adversary: alpha of Zhang et al.
    width: int = 32
    max_gap: float = 0.05
    margin: float = 0.01
    optimiser: str = "adam"  # or adamw, for networks other than the paper's MLP

    def __post_init__(self) -> None:
        from equipoise.models import Repairable

        pick("optimiser", self.optimiser, Repairable.optimisers)


def fresh(model: nn.Module, seed: int) -> nn.Module:
    """An untrained network of the same architecture: with its pretrained weights, or with new ones that depend only on the seed."""
    import torch

    from equipoise.models import MLP, initial_mlp

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


def training_cost(speed: Speed, settings: TrainingSettings) -> Work:
    """The work: the training set in every epoch, and one evaluation."""
    if speed.train is None:
        return unknown_work(speed, settings)
    rows, trained = len(speed.repair), len(speed.train)
    what = f"{settings.epochs} epochs of training from scratch on {trained:,} rows"
    return Work(rows + settings.epochs * (rows + speed.backward * trained), settings.epochs, what)


@method(
    "adversarial-training",
    settings=TrainingSettings,
    title="training from scratch against an adversary (Zhang et al.)",
    paper=ZHANG,
    within=within_gap,
    start=fresh,
    needs_train=True,
    takes_train=True,
    quotients=False,
    counts="epochs",
    cost=training_cost,
    effort=10.0,
)
def adversarial_training(model: Repairable, data: Data, goal: Goal, settings: TrainingSettings, rng: Rng) -> Steps:
    """A step per epoch of training from scratch."""
    import torch
    from torch.nn import functional as F

    from equipoise.models import Critic

    assert data.train is not None  # the method needs the training set
    labels = data.train.labels[0]
    needed, all_y, groups = measure_of(labels.measure).labels, single_precision(labels.y), torch.from_numpy(labels.attribute.codes)
    about = np.isin(labels.y, needed) if len(needed) == 1 else np.ones_like(labels.y, bool)  # rows that the measure is about
    all_seen, conditional = single_precision(about) * (groups >= 0), len(needed) == 2
    shuffle, dropout = rng("shuffle"), rng("dropout")
    with torch.no_grad():
        device = model.scores_and_features(torch.zeros(2, dtype=torch.int64))[0].device
    adversary = Critic([4 if conditional else 2, settings.width, len(labels.attribute.levels)], rng("adversary")).to(device)
    adversary_optimiser = model.optimisers[settings.optimiser](adversary.parameters(), lr=settings.learning_rate)
    optimiser = model.optimiser(settings.optimiser, settings.learning_rate)
    for epoch in range(1, settings.epochs + 1):
        for index in model.batches(shuffle, settings.batch, 2):  # batch norm has no variance of one row
            f, _ = model.scores_and_features(index, generator=dropout)
            y = all_y[index].to(f.device)
            loss = F.binary_cross_entropy(f, y, reduction="none").mean()
            logit = f.clamp(1e-6, 1 - 1e-6).logit()
            inputs = [f, logit, f * y, logit * y] if conditional else [f, logit]
            prediction = adversary(torch.stack(inputs, dim=1)).T[None]  # (1, groups, rows)
            # The mean cross-entropy of the attribute, over the rows that the measure is about.
            seen, group = all_seen[index].to(f.device), groups[index].clamp(min=0).to(f.device)
            entropy = F.cross_entropy(prediction, group[None], reduction="none")[0]
            adversary_loss = (entropy * seen).sum() / seen.sum().clamp(min=1.0)
            model.adversarial_gradient(loss, adversary_loss, list(adversary.parameters()), settings.weight)
            optimiser.step()
            adversary_optimiser.step()
        yield Step(epoch, (epoch, settings.epochs))
