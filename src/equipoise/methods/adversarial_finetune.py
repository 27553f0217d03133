"""Adversarial fine-tuning: Savani, White and Govindarajulu (2020), as the paper uses it (appendix D.4).

A critic learns to tell the gap of a mini-batch from the network's features of it; the network is then fine-tuned on the cross-entropy
times max(1, lambda * (|critic| - bound + margin) + 1), so that predicted bias raises the price of every mistake. In turns, for some epochs.
Departures: the gap of a mini-batch is weighted by the counts of the whole split; after every epoch the network is evaluated in eval
mode with the exact sweep, and the best epoch by the constrained objective is kept, not the last (`restore="last"` keeps that one). The
published code evaluates in training mode. The weights of a quotient, such as the gap in PPV, are those around the decisions after the
last epoch.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch.nn import functional as F

from equipoise.errors import pick
from equipoise.measures import FloatArray, is_quotient
from equipoise.methods.base import Goal
from equipoise.methods.contract import Objective, Rng, Step, Steps, Task, Work, method, within_gap
from equipoise.methods.evaluation import Data
from equipoise.methods.papers import SAVANI
from equipoise.models import Critics, Replicas, proxy


@dataclass(frozen=True)
class Settings:
    """The values of appendix D.4 for tables. `weight` is lambda. A maximum gap of the goal takes the place of `max_gap`."""

    learning_rate: float = 1e-3
    epochs: int = 16
    batch: int = 64
    weight: float = 0.75
    critic_steps: int = 201
    actor_steps: int = 101
    max_gap: float = 0.05
    margin: float = 0.01
    width: int = 32
    restore: str = "best"  # epoch by the constrained objective; or last, as published
    schedule: str = "paper"

    def __post_init__(self) -> None:
        pick("schedule of adversarial-finetune", self.schedule, ("paper",))
        pick("epoch to keep of adversarial-finetune", self.restore, ("best", "last"))


def objective(goals: Sequence[Goal], settings: Settings) -> Objective:
    """The best epoch within the maximum |gap|, or the last one."""
    return replace(within_gap(goals, settings), last=settings.restore == "last")


def cost(task: Task, settings: Settings) -> Work:
    """The work: mini-batches for the critic and for the network, and one evaluation per epoch."""
    rows = len(task.repair)
    shown = min(settings.batch, rows) * (settings.critic_steps + task.backward * settings.actor_steps)
    what = f"{settings.epochs} epochs of fine-tuning against a critic"
    return Work(rows + settings.epochs * (rows + shown), settings.epochs, what)


@method(
    "adversarial-finetune",
    settings=Settings,
    title="fine-tuning against a critic of the gap (Savani et al.)",
    paper=SAVANI,
    objective=objective,
    counts="epochs",
    cost=cost,
    effort=12.0,
)
def adversarial_finetune(model: Replicas, data: Data, goal: Goal, settings: Settings, rng: Rng) -> Steps:
    """A step per epoch of turns between the critic and the network."""
    turns = _Turns(model, data, goal, settings, rng)
    for epoch in range(1, settings.epochs + 1):
        turns.train_critic()
        turns.train_network()
        now = yield Step(epoch, (epoch, settings.epochs))
        if is_quotient(goal.measure):
            turns.follow(data.functional(now))


class _Turns:
    """The critic's and the network's turns."""

    def __init__(self, model: Replicas, data: Data, goal: Goal, settings: Settings, rng: Rng) -> None:
        s = settings
        self.model, self.settings, self.max_gap = model, s, within_gap([goal], s).max_gap or 0.0
        self.follow(data.functional(data.start))
        self.y = torch.from_numpy(data.labels[0].y).float()
        self.batch = min(s.batch, model.rows)
        self.draws, self.dropout = rng("adversarial batches"), rng("adversarial dropout")
        with torch.no_grad():
            f, features = model.scores_and_features(self._index())
        sizes = [self.batch * features.shape[2], s.width, s.width, s.width, 1]
        self.critic = Critics(sizes, rng("critic"), dropout=0.2).to(f.device)
        self.critic_optimiser = torch.optim.Adam(self.critic.parameters())
        self.actor_optimiser = model.optimiser("adam", s.learning_rate)

    def follow(self, gap: tuple[FloatArray, FloatArray]) -> None:
        """Offsets (R,) and weights (R, n) of the gaps that the critic is to tell."""
        self.offset, self.weights = (torch.from_numpy(numbers).float() for numbers in gap)

    def _index(self) -> torch.Tensor:
        return self.draws.rows(self.model.rows, self.batch)

    def _verdict(self, features: torch.Tensor) -> torch.Tensor:
        return self.critic(features.reshape(len(features), 1, -1))[:, 0, 0]  # type: ignore[no-any-return]

    def train_critic(self) -> None:
        self.critic.train().requires_grad_(True)
        read = self.model.fixed_scores_and_features()
        for _ in range(self.settings.critic_steps):
            index = self._index()
            with torch.no_grad():
                f, features = read(index)
                gap = proxy(f, self.weights.gather(1, index).to(f.device)) * self.model.rows / self.batch + self.offset.to(f.device)
            self.critic_optimiser.zero_grad()
            ((self._verdict(features) - gap) ** 2).sum().backward()
            self.critic_optimiser.step()

    def train_network(self) -> None:
        self.critic.eval().requires_grad_(False)
        s = self.settings
        for _ in range(s.actor_steps):
            index = self._index()
            f, features = self.model.scores_and_features(index, generators=self.dropout)
            y = self.y.gather(1, index).to(f.device)
            mistakes = F.binary_cross_entropy(f, y, reduction="none").mean(1)
            price = torch.clamp(s.weight * (self._verdict(features).abs() - self.max_gap) + 1, min=1.0)
            (price * mistakes).sum().backward()
            self.actor_optimiser.step()
