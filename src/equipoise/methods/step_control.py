"""The adaptive schedule of fine-tuning: the learning rate follows from the effect of the last steps on the gap and on performance.

A fixed learning rate and a fixed number of evaluations suit one network and one size of data. Here a trial is a few mini-batches, followed
by an evaluation of all rows. It is accepted if it reduced the gap by a moderate share of the original gap and performance holds. Otherwise
weights, running statistics and the optimiser's moments are restored and the learning rate is lowered. The learning rate is raised if the
gap hardly moves, and interpolated if the gap changes its sign, so the initial learning rate is only the start of the search.

Accepted states are steps on a common grid: step k has removed k times 5 % of the original gap, so that step 12 on one half of the rows is
comparable to step 12 on the other half and on all rows. Step 20 is a gap within 0.01 of zero. With a single gap, a few further steps go
beyond zero, since a zero gap on the repair set does not mean a zero gap on other rows. A run ends there, when performance no longer holds,
when nothing moves the gap, or after `max_steps` evaluations.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from equipoise.data import FloatArray
from equipoise.errors import BadInput, pick
from equipoise.measures import largest_gap, sweep
from equipoise.methods.contract import Speed, Step, Steps, Work
from equipoise.methods.evaluation import ZERO_GAP, Data, Evaluation, decisions_at

if TYPE_CHECKING:
    from torch import Tensor

    from equipoise.models import Optimiser, Repairable

SCHEDULES = ("adaptive", "paper")
ADAPTIVE_UNIT = "% of the gap removed"  # unit of the steps of the adaptive schedule
STEP_SHARE = 0.05  # of the original gap: one step of the grid, and the aim of a trial
LEAST_CHANGE, MOST_CHANGE = 0.02, 0.15  # smallest and largest change by an accepted trial, as shares of the original gap
EQUAL_PERFORMANCE = 1e-3  # thresholds within this of the best performance count as equally good, however many rows there are
CHANCE_PERFORMANCE = 0.5  # performance of random decisions
OVERSHOOT = 0.2  # how far a run goes beyond zero, as a share of the original gap
EVALS_PER_EPOCH = 3  # of the paper's schedule
TRIAL_BATCHES = 4  # mini-batches per trial
FIRST_RATE_GROWTH = 10.0  # factor of the learning rate until a trial moves the gap
LARGEST_RATE_GROWTH, SMALLEST_RATE_GROWTH = 2.0, 0.1  # largest and smallest factor of the learning rate after that
RATE_LIMIT_GROWTH = 2.0  # factor by which the limit on the learning rate is relaxed after each accepted trial
TRIALS_BEYOND_ZERO = 8  # trials allowed beyond zero
TRIALS_WITHOUT_STEP = 15  # trials without a new step, after which a run ends
MOST_FALLS = 8  # trials after which performance did not hold, before a run ends
MOST_REJECTIONS = 3  # in a row for one reason, after which a trial is accepted anyway, or the run ends
LARGEST_RATE = 10.0  # at this learning rate, a network that has not moved will not move


@dataclass
class Control:
    """The learning rate of a run, and the progress of the state that it would be restored to."""

    rate: float
    start: float  # the original gap
    signed: bool  # whether there is a single gap, so that its sign has a meaning
    onwards: bool = True  # whether further steps go beyond zero
    coarse: float = 0.0  # the share of the original gap that one decision can move
    share: float = 0.0  # of the original gap, removed in the marked state
    number: int = 0  # of the last step
    too_high: float = np.inf  # the lowest learning rate that recently went too far
    moved: bool = False  # whether any trial has moved the gap
    worked: float | None = None  # the learning rate of the last trial that reduced the gap
    rejected: dict[str, int] = field(default_factory=dict)  # number of rejections since then, by reason
    after: int = 0  # trials since the gap was zero
    stalled: int = 0  # trials since the last step
    falls: int = 0  # trials after which performance did not hold
    done: bool = False

    def removed(self, gap: float) -> float:
        """The removed share of the original gap; more than 1 beyond zero."""
        return 1 - (gap * np.sign(self.start) if self.signed else abs(gap)) / abs(self.start)

    @property
    def close(self) -> float:
        """The share of the original gap that counts as zero."""
        return ZERO_GAP / abs(self.start)

    def judge(self, gap: float, holds: bool) -> tuple[bool, int | None]:
        """Whether a trial is accepted, and its step number if it is a new step; sets the next learning rate."""
        share = self.removed(gap)
        self.after += self.share >= 1 - self.close
        self.stalled += 1
        self.done = self.after > TRIALS_BEYOND_ZERO or self.stalled > TRIALS_WITHOUT_STEP
        if not holds or not np.isfinite(share):  # shorter trials, until these move nothing either
            self.falls += 1
            self.done |= not self._reject("fell", 0.25) or self.falls > MOST_FALLS
            return False, None
        change = share - self.share
        if self.share < 1 - self.close and share > 1 + self.close:
            if self._reject("crossed", max(SMALLEST_RATE_GROWTH, min(0.7, (1 - self.share) / change))):
                return False, None
            self.done = True  # no state was found between the two sides of zero
            return self._accept(share)
        if change > max(MOST_CHANGE, 2 * self.coarse) and self._reject("far", max(SMALLEST_RATE_GROWTH, min(0.5, STEP_SHARE / change))):
            return False, None
        if change <= -max(LEAST_CHANGE, self.coarse / 2) and self._reject("back", 0.3):
            return False, None
        return self._accept(share)

    def _reject(self, reason: str, factor: float) -> bool:
        """Lowers the learning rate; False if that has been done too often."""
        count = self.rejected.get(reason, 0) + 1
        self.rejected[reason] = count
        if count > (2 * MOST_REJECTIONS if reason in ("crossed", "fell") or not self.moved else MOST_REJECTIONS):
            return False
        self.too_high = self.rate
        self.rate *= factor
        return True

    def _accept(self, share: float) -> tuple[bool, int | None]:
        """Sets the next learning rate, and returns the number of the step if it is a new one."""
        change, self.share = share - self.share, share
        if max(self.rejected.values(), default=0) > MOST_REJECTIONS and self.worked is not None:
            # Shorter trials did not help: many decisions change at once here, whatever the learning rate.
            self.rate, self.too_high = self.worked, np.inf
            self.rejected.clear()
        else:
            if change >= LEAST_CHANGE:
                self.moved, self.worked = True, self.rate
                self.rejected.clear()
            factor = (
                min(LARGEST_RATE_GROWTH, max(0.5, STEP_SHARE / abs(change)))
                if abs(change) >= LEAST_CHANGE
                else LARGEST_RATE_GROWTH
                if self.moved
                else FIRST_RATE_GROWTH
            )
            higher = self.rate * factor
            self.rate = higher if higher < self.too_high else max(self.rate, float(np.sqrt(self.rate * self.too_high)))
            self.too_high *= RATE_LIMIT_GROWTH
        at_zero = abs(1 - share) <= self.close
        if self.rate > LARGEST_RATE or (at_zero and not self.onwards) or share >= 1 + OVERSHOOT:
            self.done = True
        number = int(np.floor(share / STEP_SHARE + 0.5))
        if at_zero:
            number = max(number, round(1 / STEP_SHARE))
        elif share < 1:
            number = min(number, round(1 / STEP_SHARE) - 1)
        if number <= self.number:
            return True, None
        self.number, self.stalled = number, 0
        return True, number


def trials(
    model: Repairable, shuffle: np.random.Generator, batch: int, epochs: int | None, step: Callable[[Tensor], None], least: int = 1
) -> Callable[[], bool]:
    """A function that runs one trial, a few mini-batches of successive epochs, and returns whether there are any left for another."""
    waiting: list[Tensor] = []
    left = np.inf if epochs is None else epochs

    def advance() -> bool:
        nonlocal waiting, left
        for _ in range(TRIAL_BATCHES):
            if not waiting and left > 0:
                waiting, left = list(model.batches(shuffle, batch, least)), left - 1
            if waiting:
                step(waiting.pop(0))
        return bool(waiting) or left > 0

    return advance


def smooth_gap(data: Data, evaluation: Evaluation) -> float:
    """The largest expected gap of any label and group, with a threshold drawn at random among those about as good as the best.

    With a few hundred rows, the best threshold and its gap jump when a network hardly changes. The expected gap of a threshold drawn among
    those within a standard error of the best performance changes smoothly with the network.
    """
    if data.classes:
        return evaluation.gap
    gaps = []
    for rows, label in data.parts:
        scores = evaluation.scores[rows]
        if label.capacity is not None:
            gaps.append(label.cells(decisions_at(scores, label.evaluate(scores).threshold)).gaps(label.measure))
            continue
        swept = sweep(scores, label.y, label.attribute, (label.performance,), weight=label.weight)
        performance = np.nan_to_num(swept.values[label.performance], nan=-np.inf)
        best = min(performance.max(), 1.0)  # a perfect network may exceed 1 by rounding
        positives = label.y.sum()
        error = np.sqrt(best * (1 - best) * (1 / positives + 1 / (len(label.y) - positives))) / 2
        chance = np.clip(1 - (best - performance) / max(error, EQUAL_PERFORMANCE), 0, None)
        chance /= chance.sum()
        below = np.searchsorted(swept.thresholds[::-1], scores, side="right")
        decided = np.concatenate([[0.0], np.cumsum(chance[::-1])])[below]  # the probability of a positive decision
        gaps.append(label.cells(decided).gaps(label.measure))
    return float(largest_gap(np.concatenate(gaps)))


def check_schedule(method: str, settings: Any) -> None:
    """Raises an error for an unknown schedule, and for a setting of the paper's schedule that is given to the adaptive one."""
    pick(f"schedule of {method}", settings.schedule, SCHEDULES)
    if settings.schedule == "adaptive" and getattr(settings, "evals_per_epoch", None) is not None:
        raise BadInput(
            f"{method}.evals_per_epoch={settings.evals_per_epoch} is for the fixed schedule: the adaptive one evaluates after "
            f'{TRIAL_BATCHES} mini-batches. Leave it out, or use schedule="paper"'
        )


def schedule_unit(settings: Any) -> str:
    """The unit of the steps of fine-tuning."""
    return ADAPTIVE_UNIT if settings.schedule == "adaptive" else "epochs"


def schedule_work(speed: Speed, settings: Any, epochs: int, most: str = "") -> Work:
    """The work of fine-tuning: epochs with a few evaluations each, or trials of a few mini-batches and one evaluation each.

    `epochs` is the number in the paper, used if the settings have none.
    """
    rows = len(speed.repair)
    if settings.schedule == "paper":
        epochs, batches = epochs if settings.epochs is None else settings.epochs, -(-rows // settings.batch)
        evaluations = batches // max(1, batches // (settings.evals_per_epoch or EVALS_PER_EPOCH))
        what = f"{most}{epochs} epochs of fine-tuning with {evaluations} evaluations each"
        return Work(epochs * rows * (speed.backward + evaluations), epochs * evaluations, what)
    steps, per_trial = settings.max_steps, TRIAL_BATCHES * min(settings.batch, rows) * speed.backward
    return Work(steps * (rows + per_trial), steps, f"at most {steps} evaluations, each after {TRIAL_BATCHES} mini-batches")


def schedule_steps(
    model: Repairable,
    data: Data,
    shuffle: np.random.Generator,
    optimiser: Optimiser,
    step: Callable[[Tensor], None],
    follow: Callable[[Evaluation, int | None], None],
    settings: Any,
    epochs: int,
    least: int = 1,
    stop_below: float | None = None,
    restart: Callable[[], None] | None = None,
) -> Steps:
    """The steps of fine-tuning by mini-batches, with the schedule of the settings.

    `follow` gets each accepted evaluation and, in the paper's schedule, the number of mini-batches before it. `epochs` is the number in the
    paper, used if the settings have none; its schedule has a few evaluations per epoch.
    """
    if settings.schedule == "adaptive":
        advance = trials(model, shuffle, settings.batch, settings.epochs, step, least)

        def accepted_only(now: Evaluation, accepted: bool, _slow: bool) -> None:
            if accepted:
                follow(now, None)

        left, control = yield from adaptive(model, data, optimiser, advance, accepted_only, settings, stop_below or 0.0)
        if restart is not None and control.falls and control.share < 1 - control.close:
            restart()
            yield from _fixed(model, data, shuffle, step, follow, settings, control, least, left)
        return
    done, epochs = 0, epochs if settings.epochs is None else settings.epochs
    for epoch in range(epochs):
        batches = list(model.batches(shuffle, settings.batch, least))
        every = max(1, len(batches) // (settings.evals_per_epoch or EVALS_PER_EPOCH))
        for k, rows in enumerate(batches):
            step(rows)
            done += 1
            if (k + 1) % every == 0:
                follow((yield Step(done, (epoch + 1, epochs), 1 / len(batches), stop_below=stop_below)), every)


def _fixed(
    model: Repairable,
    data: Data,
    shuffle: np.random.Generator,
    step: Callable[[Tensor], None],
    follow: Callable[[Evaluation, int | None], None],
    settings: Any,
    control: Control,
    least: int,
    left: int,
) -> Steps:
    """The further steps of a run that ended where performance did not hold: the paper's schedule, from the original network again.

    Short trials that keep performance at every evaluation may find no way to a smaller gap. A loss that includes the task has one through
    states whose performance is too low, from which it recovers. The evaluations that are left are spent on it.
    """
    limits = _least_performance(data, 0.0)
    while left > 0:
        batches = list(model.batches(shuffle, settings.batch, least))
        every = max(1, len(batches) // EVALS_PER_EPOCH)
        for k, rows in enumerate(batches):
            step(rows)
            if (k + 1) % every or not left:
                continue
            left -= 1
            progress = (settings.max_steps - left, settings.max_steps)
            evaluation = yield Step(0, progress, trial=True)
            follow(evaluation, every)
            share = control.removed(smooth_gap(data, evaluation))
            number = round(1 / STEP_SHARE) if abs(1 - share) <= control.close else int(np.floor(share / STEP_SHARE + 0.5))
            holds = all(np.array([result.performance for result in evaluation.each]) >= limits)
            if holds and number >= control.number and control.share < share <= 1 + control.close:
                control.number, control.share = number, share
                yield Step(number, progress, 100 * STEP_SHARE, seen=evaluation)


def _least_performance(data: Data, stop_below: float) -> FloatArray:
    """The minimum performance of each label: the goal's, or halfway between chance and the original's; never above the original's."""
    original = np.array([result.performance for result in data.start.each])
    halfway = (original + CHANCE_PERFORMANCE) / 2
    least = halfway if data.least is None else np.where(np.isnan(data.least), halfway, data.least)
    limits: FloatArray = np.minimum(np.maximum(least, stop_below), original)
    return limits


def adaptive(
    model: Repairable,
    data: Data,
    optimiser: Optimiser,
    advance: Callable[[], bool],
    follow: Callable[[Evaluation, bool, bool], None],
    settings: Any,
    stop_below: float = 0.0,
) -> Generator[Step, Evaluation, tuple[int, Control]]:
    """The steps of fine-tuning whose trials are run by `advance`, which returns False when there are no more epochs.

    It returns the number of evaluations that are left, and the state of the control.

    `follow` gets the evaluation of every trial, whether it was accepted, and whether the gap hardly decreased.
    """
    least = _least_performance(data, stop_below)
    start, signed = smooth_gap(data, data.start), len(data.labels) == 1 and len(data.labels[0].attribute.levels) == 2
    coarse = float(np.abs(data.functional(data.start)[1]).max()) / max(abs(start), ZERO_GAP)
    control = Control(settings.learning_rate, start, signed, not data.moving, coarse, done=not abs(start) > 0)
    model.mark()
    for trial in range(1, settings.max_steps + 1):
        optimiser.set_rate(0.0 if control.done else control.rate)
        more = advance()
        progress = (trial, settings.max_steps)
        evaluation = yield Step(0, progress, trial=True)
        accepted = slow = False
        if not control.done:
            gap, holds = smooth_gap(data, evaluation), all(np.array([result.performance for result in evaluation.each]) >= least)
            slow = control.removed(gap) - control.share < LEAST_CHANGE
            accepted, number = control.judge(gap, holds)
            if number is not None:
                yield Step(number, progress, 100 * STEP_SHARE, seen=evaluation)
        if accepted:
            model.mark()
        else:
            model.restore()
        follow(evaluation, accepted, slow)
        if not more or control.done:
            return settings.max_steps - trial, control
    return 0, control
