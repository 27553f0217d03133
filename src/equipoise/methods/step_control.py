"""The adaptive schedule of fine-tuning: the length of a step follows from what the last ones did to the gap and to performance.

A fixed learning rate and a fixed number of evaluations suit one network and one size of data. Here a trial is a few mini-batches, after
which all rows are evaluated. It is accepted if the gap became smaller by a reasonable part of the original gap and performance holds;
otherwise weights, running statistics and the optimiser's moments are restored and the learning rate is lowered. It is raised where the
gap hardly moves, and interpolated where the gap changes its sign. So the learning rate given is only where the search begins.

Accepted states are steps on a common grid: step k has removed k times 5 % of the original gap, so that step 12 on one half of the rows
means the same as step 12 on another, and on all of them. Step 20 is a gap within 0.01 of zero; with one gap only, a few further steps go
beyond zero, since a gap of zero on the rows of the repair set is not yet one of zero on others. A run ends there, where performance no
longer holds, where nothing moves the gap, or after `max_steps` evaluations.

Each network of a stack has a control of its own; they share the number of mini-batches per trial only.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from equipoise.data import BoolArray
from equipoise.errors import BadInput, pick
from equipoise.measures import FloatArray, gap_values, largest, sweep
from equipoise.methods.contract import Draws, Step, Steps, Task, Work, fine_tuning_work
from equipoise.methods.evaluation import Data, Evaluation
from equipoise.models import Optimiser, Replicas

SCHEDULES = ("adaptive", "paper")
UNIT = "% of the gap removed"  # what steps of the adaptive schedule count
SHARE = 0.05  # of the original gap: one step of the grid, and what a trial is to remove
LEAST, MOST = 0.02, 0.15  # what an accepted trial removes, as shares of the original gap
FLAT = 1e-3  # of performance: thresholds within this of the best are as good, however many rows there are
CHANCE = 0.5  # the performance of a network that decides at random
CLOSE = 0.01  # a gap that counts as zero
BEYOND = 0.2  # how far a run goes beyond zero, as a share of the original gap
EVALS_PER_EPOCH = 3  # of the paper's schedule
FEW = 4  # mini-batches per trial
GROWTH, FASTER, SLOWER = (
    10.0,
    2.0,
    0.1,
)  # of the learning rate: in the search for the first that moves the gap, later, and at most downwards
ROOM = 2.0  # how much more than the last learning rate that was too high may be tried again after each accepted trial
AFTER = 8  # trials to go beyond zero
STALLED = 15  # trials without a new step, after which a run ends
FALLS = 8  # trials after which performance did not hold, before a run ends
REJECTIONS = 3  # in a row for one reason, after which a trial is accepted as it is, or the run ends
FASTEST = 10.0  # a learning rate at which a network that has not moved will not move


@dataclass
class Control:
    """The learning rate of one network, and what is known of the state that it would be restored to."""

    rate: float
    start: float  # the original gap
    signed: bool  # whether there is one gap, whose sign tells on which side of zero it is
    onwards: bool = True  # whether further steps go beyond zero
    coarse: float = 0.0  # the share of the original gap that one decision can move
    share: float = 0.0  # of the original gap that the marked state has removed
    number: int = 0  # of the last step
    too_high: float = np.inf  # the lowest learning rate that went too far lately
    moved: bool = False  # whether a trial has moved the gap yet
    worked: float | None = None  # the learning rate of the last trial that moved the gap as it should
    rejected: dict[str, int] = field(default_factory=dict)  # how often since then, by reason
    after: int = 0  # trials since the gap was zero
    stalled: int = 0  # trials since the last step
    falls: int = 0  # trials after which performance did not hold
    done: bool = False

    def removed(self, gap: float) -> float:
        """The share of the original gap that is removed; more than 1 beyond zero."""
        return 1 - (gap * np.sign(self.start) if self.signed else abs(gap)) / abs(self.start)

    @property
    def close(self) -> float:
        """The share of the original gap that counts as zero."""
        return CLOSE / abs(self.start)

    def judge(self, gap: float, holds: bool) -> tuple[bool, int | None]:
        """Whether a trial is accepted, and the number of the step that it is, if it is a new one; sets the next learning rate."""
        share = self.removed(gap)
        self.after += self.share >= 1 - self.close
        self.stalled += 1
        self.done = self.after > AFTER or self.stalled > STALLED
        if not holds or not np.isfinite(share):
            return self._fell()
        change = share - self.share
        if self.share < 1 - self.close and share > 1 + self.close:
            if self._reject("crossed", max(SLOWER, min(0.7, (1 - self.share) / change))):
                return False, None
            self.done = True  # no state between the two sides of zero
            return self._accepted(share)
        if change > max(MOST, 2 * self.coarse) and self._reject("far", max(SLOWER, min(0.5, SHARE / change))):
            return False, None
        if change <= -max(LEAST, self.coarse / 2) and self._reject("back", 0.3):
            return False, None
        return self._accepted(share)

    def _settled(self, share: float) -> bool:
        return abs(1 - share) <= self.close

    def _fell(self) -> tuple[bool, None]:
        """A trial after which performance does not hold: shorter ones, and the end once they move nothing either."""
        self.falls += 1
        self.done |= not self._reject("fell", 0.25) or self.falls > FALLS
        return False, None

    def _reject(self, reason: str, factor: float) -> bool:
        """Lowers the learning rate; False where that has been done often enough."""
        count = self.rejected.get(reason, 0) + 1
        self.rejected[reason] = count
        if count > (2 * REJECTIONS if reason in ("crossed", "fell") or not self.moved else REJECTIONS):
            return False
        self.too_high = self.rate
        self.rate *= factor
        return True

    def _accepted(self, share: float) -> tuple[bool, int | None]:
        change, self.share = share - self.share, share
        if max(self.rejected.values(), default=0) > REJECTIONS and self.worked is not None:
            # Shorter trials did not help: decisions change all at once here, and the learning rate is not the reason.
            self.rate, self.too_high = self.worked, np.inf
            self.rejected.clear()
        else:
            if change >= LEAST:
                self.moved, self.worked = True, self.rate
                self.rejected.clear()
            factor = min(FASTER, max(0.5, SHARE / abs(change))) if abs(change) >= LEAST else FASTER if self.moved else GROWTH
            higher = self.rate * factor
            self.rate = higher if higher < self.too_high else max(self.rate, float(np.sqrt(self.rate * self.too_high)))
            self.too_high *= ROOM
        if self.rate > FASTEST or (self._settled(share) and not self.onwards) or share >= 1 + BEYOND:
            self.done = True
        number = int(np.floor(share / SHARE + 0.5))
        if self._settled(share):
            number = max(number, round(1 / SHARE))
        elif share < 1:
            number = min(number, round(1 / SHARE) - 1)
        if number <= self.number:
            return True, None
        self.number, self.stalled = number, 0
        return True, number


class Trials:
    """Mini-batches of one epoch after another, a few per trial."""

    def __init__(self, model: Replicas, shuffle: Draws, batch: int, epochs: int | None, least: int = 1) -> None:
        self.epoch: Callable[[], list[Tensor]] = lambda: list(model.batches(shuffle, batch, least))
        self.waiting: list[Tensor] = []
        self.left = np.inf if epochs is None else epochs

    def each(self, step: Callable[[Tensor], None]) -> Callable[[], bool]:
        """A function that makes a trial of such steps, and returns whether there are mini-batches left for another."""

        def advance() -> bool:
            for rows in self.next():
                step(rows)
            return bool(self.waiting) or self.left > 0

        return advance

    def next(self) -> Iterator[Tensor]:
        """The mini-batches of the next trial."""
        for _ in range(FEW):
            if not self.waiting and self.left > 0:
                self.waiting, self.left = self.epoch(), self.left - 1
            if self.waiting:
                yield self.waiting.pop(0)


def smooth_gaps(data: Data, now: Evaluation) -> FloatArray:
    """The largest gap (R,) of any label and group by thresholds that are drawn among those about as good as the best.

    The best threshold of a few hundred rows jumps, and the gap with it, when a network hardly changes. The gap of a threshold that is drawn
    among those within a standard error of the best performance follows the network.
    """
    if data.classes:
        return now.gap
    each = []
    for rows, label in data.parts:
        scores = now.scores[:, rows]
        swept = sweep(scores, label.y, label.codes, label.levels, (label.performance,), weight=label.weight)
        performance = np.nan_to_num(swept.values[label.performance], nan=-np.inf)
        best = np.minimum(performance.max(-1, keepdims=True), 1.0)  # a perfect network may exceed it by rounding
        positives = label.y.sum(-1, keepdims=True)
        error = np.sqrt(best * (1 - best) * (1 / positives + 1 / (label.y.shape[-1] - positives))) / 2
        chance = np.clip(1 - (best - performance) / np.maximum(error, FLAT), 0, None)
        chance /= chance.sum(-1, keepdims=True)
        decided = np.empty(scores.shape)  # the probability of a positive decision
        for r in range(len(scores)):
            below = np.searchsorted(swept.thresholds[r, ::-1], scores[r], side="right")
            decided[r] = np.concatenate([[0.0], np.cumsum(chance[r, ::-1])])[below]
        each.append(gap_values(label.measure, label.cells(decided)))
    return largest(np.concatenate(each, axis=-1))


def lowest(data: Data, stop_below: float) -> FloatArray:
    """The performance (labels, R) that must hold: the goal's minimum, or half of what the original has above chance where it has none.

    Where the original has less, what it has.
    """
    start = np.stack([own.performance for own in data.start.each])
    none = (start + CHANCE) / 2
    least = none if data.least is None else np.where(np.isnan(data.least), none, data.least)
    found: FloatArray = np.minimum(np.maximum(least, stop_below), start)
    return found


def check_schedule(method: str, settings: Any) -> None:
    """Raises an error where the settings name an unknown schedule, or give the adaptive one what belongs to the paper's."""
    pick(f"schedule of {method}", settings.schedule, SCHEDULES)
    if settings.schedule == "adaptive" and getattr(settings, "evals_per_epoch", None) is not None:
        raise BadInput(
            f"{method}.evals_per_epoch={settings.evals_per_epoch} is for the fixed schedule: the adaptive one evaluates after "
            f'{FEW} mini-batches. Leave it out, or use schedule="paper"'
        )


def scheduled_unit(settings: Any) -> str:
    """What the steps of fine-tuning count."""
    return UNIT if settings.schedule == "adaptive" else "epochs"


def scheduled_work(task: Task, settings: Any, epochs: int, most: str = "") -> Work:
    """The work of fine-tuning: of the adaptive schedule, trials of a few mini-batches and one evaluation of all rows, at most."""
    rows = len(task.repair)
    if settings.schedule == "paper":
        return fine_tuning_work(
            task, settings.batch, epochs if settings.epochs is None else settings.epochs, settings.evals_per_epoch or EVALS_PER_EPOCH, most
        )
    shown = FEW * min(settings.batch, rows) * task.backward
    return Work(
        settings.max_steps * (rows + shown), settings.max_steps, f"at most {settings.max_steps} evaluations, each after {FEW} mini-batches"
    )


def fixed(
    model: Replicas,
    shuffle: Draws,
    step: Callable[[Tensor], None],
    follow: Callable[[Evaluation, int], None],
    settings: Any,
    epochs: int,
    least: int = 1,
    stop_below: float | None = None,
) -> Steps:
    """The steps of the paper's schedule: a few evaluations per epoch, of each of which `follow` gets the mini-batches before it too.

    `epochs` are those of the paper, where the settings have none.
    """
    done, epochs = 0, epochs if settings.epochs is None else settings.epochs
    for epoch in range(epochs):
        batches = list(model.batches(shuffle, settings.batch, least))
        every = max(1, len(batches) // (settings.evals_per_epoch or EVALS_PER_EPOCH))
        for k, rows in enumerate(batches):
            step(rows)
            done += 1
            if (k + 1) % every == 0:
                now = yield Step(done, (epoch + 1, epochs), 1 / len(batches), stop_below=stop_below)
                follow(now, every)


def adaptive(
    model: Replicas,
    data: Data,
    optimiser: Optimiser,
    advance: Callable[[], bool],
    follow: Callable[[Evaluation, BoolArray, BoolArray], None],
    settings: Any,
    stop_below: float = 0.0,
) -> Steps:
    """The steps of fine-tuning whose trials are made by `advance`, which returns False once there are no more epochs.

    `follow` gets the evaluation of every trial, the networks for which it was accepted, and those whose gap did not become smaller.
    """
    start, everyone, none = data.start, np.ones(model.size, bool), np.zeros(model.size, bool)
    least = lowest(data, stop_below)
    begun, signed = smooth_gaps(data, start), len(data.labels) == 1 and len(data.labels[0].levels) == 2
    coarse = np.abs(data.functional(start)[1]).max(-1) / np.maximum(np.abs(begun), CLOSE)
    controls = [
        Control(settings.learning_rate, float(gap), signed, not data.moving, float(one)) for gap, one in zip(begun, coarse, strict=True)
    ]
    for control in controls:
        control.done = not abs(control.start) > 0
    model.mark(everyone)
    for tried in range(1, settings.max_steps + 1):
        optimiser.set_rates(np.array([0.0 if control.done else control.rate for control in controls]))
        going = advance()
        progress = (tried, settings.max_steps)
        now = yield Step(0, progress, of=none)
        gaps = smooth_gaps(data, now)
        holds: BoolArray = np.logical_and.reduce(np.stack([own.performance for own in now.each]) >= least, axis=0)
        accepted, slow, numbers = none.copy(), none.copy(), dict[int, BoolArray]()
        for r, control in enumerate(controls):
            if control.done:
                continue
            slow[r] = control.removed(float(gaps[r])) - control.share < LEAST
            accepted[r], number = control.judge(float(gaps[r]), bool(holds[r]))
            if number is not None:
                numbers[number] = numbers.get(number, none) | (np.arange(model.size) == r)
        for number, of in numbers.items():
            yield Step(number, progress, 100 * SHARE, of=of, seen=now)
        model.mark(accepted)
        model.restore(~accepted)
        follow(now, accepted, slow)
        if not going or all(control.done for control in controls):
            return
