"""Adversarial fine-tuning: Savani, White and Govindarajulu (2020), as the paper uses it (appendix D.4).

A critic learns to predict the gap of a mini-batch from the network's features; the network is then fine-tuned on the cross-entropy times
max(1, lambda * (|critic| - bound + margin) + 1), so that predicted bias makes every mistake more costly. Both take turns for some epochs.
Departures: the gap of a mini-batch is weighted by the counts of the whole split; after every epoch the network is evaluated in eval mode
with the exact sweep (the published code evaluates in training mode), and the best epoch by the constrained objective is kept, not the last
(`restore="last"` keeps the last). The weights of a quotient, such as the gap in PPV, are linearised at the decisions after the last epoch.

By default, turns are short and their steps are adaptive (see step_control): steps are chosen by the goal, the critic predicts each row's
contribution to the gap, and its weight is raised if the gap does not fall. That keeps performance, but the critic is often not accurate
enough, and a run then ends with a part of the gap left. `schedule="paper"` is the published schedule.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch.nn import functional as F

from equipoise.errors import pick
from equipoise.measures import FloatArray, is_quotient
from equipoise.methods.contract import Objective, Rng, Step, Steps, Task, Work, by_goal, method, within_gap
from equipoise.methods.evaluation import Data, Evaluation
from equipoise.methods.goal import Goal
from equipoise.methods.papers import SAVANI
from equipoise.methods.step_control import adaptive, check_schedule, scheduled_unit
from equipoise.models import Critic, Repairable, proxy

EPOCHS = 16  # of the paper's schedule
TURN = 8  # mini-batches of the network per trial of the adaptive schedule
HARDER = 3.0  # factor of the critic's weight after a trial that did not reduce the gap
AGAIN = 8  # after a trial, the critic is trained for 1 / AGAIN of its steps


@dataclass(frozen=True)
class Settings:
    """The values of appendix D.4 for tables. `weight` is lambda. A maximum gap of the goal takes the place of `max_gap`."""

    learning_rate: float = 1e-3  # of the adaptive schedule: the first one tried
    epochs: int | None = None  # turns of critic and network at most: 16 in the paper's schedule, no limit in the adaptive one
    max_steps: int = 45  # of the adaptive schedule: evaluations at most
    batch: int = 64
    weight: float = 0.75
    critic_steps: int = 201
    actor_steps: int = 101
    max_gap: float = 0.05
    margin: float = 0.01
    width: int = 32
    restore: str = "best"  # epoch by the constrained objective; or last, as published
    schedule: str = "adaptive"  # steps of adaptive length, chosen by the goal; or paper, a number of epochs with long turns

    def __post_init__(self) -> None:
        check_schedule("adversarial-finetune", self)
        pick("epoch to keep of adversarial-finetune", self.restore, ("best", "last"))


def objective(goals: Sequence[Goal], settings: Settings) -> Objective:
    """The best epoch within the maximum |gap|, or the last one; in the adaptive schedule, the best step by the goal."""
    if settings.schedule == "adaptive":
        return by_goal(goals, settings)
    return replace(within_gap(goals, settings), last=settings.restore == "last")


def cost(task: Task, settings: Settings) -> Work:
    """The work: mini-batches for the critic and for the network, and one evaluation per epoch, or per trial of the adaptive schedule."""
    rows, batch = len(task.repair), min(settings.batch, len(task.repair))
    if settings.schedule == "adaptive":
        turn = rows + batch * task.backward * TURN  # the critic reads features that are computed once per turn
        what = f"at most {settings.max_steps} evaluations of fine-tuning against a critic"
        return Work(settings.max_steps * (rows + turn), settings.max_steps, what)
    epochs = EPOCHS if settings.epochs is None else settings.epochs
    shown = batch * (settings.critic_steps + task.backward * settings.actor_steps)
    return Work(rows + epochs * (rows + shown), epochs, f"{epochs} epochs of fine-tuning against a critic")


@method(
    "adversarial-finetune",
    settings=Settings,
    title="fine-tuning against a critic of the gap (Savani et al.)",
    paper=SAVANI,
    objective=objective,
    counts=scheduled_unit,
    cost=cost,
    effort=12.0,
)
def adversarial_finetune(model: Repairable, data: Data, goal: Goal, settings: Settings, rng: Rng) -> Steps:
    """A step per epoch of turns between the critic and the network."""
    turns = _Turns(model, data, goal, settings, rng)
    if settings.schedule == "adaptive":
        yield from _adaptive(turns, data, goal, settings)
        return
    epochs = EPOCHS if settings.epochs is None else settings.epochs
    for epoch in range(1, epochs + 1):
        turns.train_critic(settings.critic_steps)
        turns.train_network(settings.actor_steps, turns.dropout)
        now = yield Step(epoch, (epoch, epochs))
        if is_quotient(goal.measure):
            turns.follow(data.functional(now))


def _adaptive(turns: "_Turns", data: Data, goal: Goal, settings: Settings) -> Steps:
    """Short turns, each of which is a trial; the critic is trained further after each of them."""
    left = np.inf if settings.epochs is None else settings.epochs
    turns.train_critic(settings.critic_steps)

    def advance() -> bool:
        nonlocal left
        left -= 1
        turns.train_network(TURN, None)
        return left > 0

    def follow(now: Evaluation, accepted: bool, slow: bool) -> None:
        if slow:
            turns.weight *= HARDER
        if is_quotient(goal.measure) and accepted:
            turns.follow(data.functional(now))
        turns.train_critic(max(1, settings.critic_steps // AGAIN))

    yield from adaptive(turns.model, data, turns.actor_optimiser, advance, follow, settings)


class _Turns:
    """The critic's and the network's turns."""

    def __init__(self, model: Repairable, data: Data, goal: Goal, settings: Settings, rng: Rng) -> None:
        s = settings
        self.model, self.settings = model, s
        self.max_gap = (within_gap([goal], s).max_gap or 0.0) if s.schedule == "paper" else 0.0
        self.weight = s.weight
        self.follow(data.functional(data.start))
        self.y = torch.from_numpy(data.labels[0].y).float()
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
        self.offset, self.weights = gap[0], torch.from_numpy(gap[1]).float()

    def _index(self) -> torch.Tensor:
        return torch.from_numpy(self.draws.integers(0, self.model.rows, self.batch))

    def _verdict(self, features: torch.Tensor) -> torch.Tensor:
        """The predicted gap of a mini-batch: from all its features, or the mean of the predictions for each row."""
        if self.by_row:
            return self.critic(features)[:, 0].mean()  # type: ignore[no-any-return]
        return self.critic(features.reshape(1, -1))[0, 0]  # type: ignore[no-any-return]

    def train_critic(self, steps: int) -> None:
        self.critic.train().requires_grad_(True)
        read = self.model.fixed_scores_and_features()
        for _ in range(steps):
            index = self._index()
            with torch.no_grad():
                f, features = read(index)
                weights = self.weights[index].to(f.device)
                gap = proxy(f, weights) * self.model.rows / self.batch + self.offset
            self.critic_optimiser.zero_grad()
            if self.by_row:
                contributions = f * weights * self.model.rows + self.offset  # their mean is the gap
                ((self.critic(features)[:, 0] - contributions) ** 2).mean().backward()
            else:
                ((self._verdict(features) - gap) ** 2).backward()
            self.critic_optimiser.step()

    def train_network(self, steps: int, dropout: np.random.Generator | None) -> None:
        self.critic.eval().requires_grad_(False)
        for _ in range(steps):
            index = self._index()
            f, features = self.model.scores_and_features(index, generator=dropout)
            mistakes = F.binary_cross_entropy(f, self.y[index].to(f.device), reduction="none").mean()
            price = torch.clamp(self.weight * (self._verdict(features).abs() - self.max_gap) + 1, min=1.0)
            (price * mistakes).backward()
            self.actor_optimiser.step()
