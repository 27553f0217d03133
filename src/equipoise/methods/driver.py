"""The driver of methods with steps: it evaluates every step, keeps the trace and a copy of the best state, applies limits, chooses.

A method yields the steps of one model (see `contract`); everything else is done here, once for all methods. A single label is the case of
length one.
"""

import copy
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from equipoise.data import BoolArray, Cohort, IntArray, Rows
from equipoise.errors import BadInput
from equipoise.measures import ARGMAX, Rule
from equipoise.methods.candidate import Candidate, LabelCandidate, Progress
from equipoise.methods.choosing import WORST, ChosenStep, Merit, constant, lacking, merit, plain_rule, select, selected_for_all, too_low
from equipoise.methods.contract import Kind, Method, Rng, Step, Steps
from equipoise.methods.evaluation import HALF, Data, Evaluation, LabelResult, decided_at, frame, trace_row
from equipoise.methods.goal import Goal, Note, Why

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, eq=False)
class Half:
    """A part of the rows to repair on, and the rows that are held out from it."""

    cohort: Cohort  # the rows to repair on, possibly repeated
    own: IntArray  # their positions in the whole set, each once
    held: IntArray  # the positions of the held-out rows
    elsewhere: Cohort | None = None  # the held-out rows, repeated to the same length; None if no rows are held out


@dataclass(frozen=True, eq=False)
class Job:
    """The input of a run: a method, a network with its repair set, the goal of each label, a seed, settings, and the training set."""

    method: Method
    model: "nn.Module | None"  # None: scores without a network
    rows: Rows
    goals: Mapping[str, Goal]  # by label
    seed: int
    settings: Any
    train: Cohort | None = None
    progress: Progress | None = None
    deadline: float | None = None  # by time.monotonic(), after which no further step is taken; None: no limit
    refuse_constant: bool = False  # steps with constant decisions are not chosen

    @property
    def network(self) -> "nn.Module":
        """The network; raises `BadInput` for scores without a network."""
        if self.model is None:
            raise BadInput(f"{self.method.name} changes a network, and scores have none")
        return self.model

    @property
    def cohort(self) -> Cohort:
        """The rows that the network takes; raises `BadInput` for scores without a network."""
        if not isinstance(self.rows, Cohort):
            raise BadInput(f"{self.method.name} shows rows to a network, and scores have none")
        return self.rows

    def within(self, share: float) -> "Job":
        """The job with this share of the remaining time."""
        now = time.monotonic()
        return self if self.deadline is None else replace(self, deadline=now + share * max(0.0, self.deadline - now))


class _Past(NamedTuple):
    """A step of the trace with the results of each label, its row in the trace of all labels, and its merit."""

    step: Step
    each: tuple[LabelResult, ...]
    joint: dict[str, Any]
    merit: Merit
    refused: bool  # for constant decisions, unlike the original's


def run_steps(job: Job, half: Half | None = None, until: ChosenStep | None = None) -> tuple[Candidate, list[BoolArray]]:
    """The candidate of a method with steps; on a half, with the decisions (rows, labels) of each step on all rows of the whole set.

    With `until`, the method runs up to that step, which is chosen.
    """
    search = _Search(job if half is None else replace(job, rows=half.cohort), half, until)
    search.run()
    return search.candidate(), search.decisions


class _Search:
    """The steps of a method, and the best of them so far."""

    def __init__(self, job: Job, half: Half | None, until: ChosenStep | None) -> None:
        from equipoise.models import under_repair

        self.job, self.method, self.model, self.cohort, self.half, self.until = job, job.method, job.network, job.cohort, half, until
        self.goals, self.parts = list(job.goals.values()), list(job.cohort.by_label.values())
        self.data = Data.of(self.cohort, job.goals)  # raises an error if the set lacks rows that a measure needs
        objective = job.method.objective(self.goals, job.settings)
        self.within, self.last = objective.max_gap, objective.last
        self.network = original = under_repair(self.model, self.cohort)
        self.elsewhere = None  # inputs to evaluate, if the network is not trained on the repair set
        if job.method.start is not None and job.train is not None:
            if (levels := self.cohort.attribute.levels) != (train_levels := job.train.attribute.levels):
                raise BadInput(f"{job.train.name!r} has the groups {train_levels}, {self.cohort.name!r} has {levels}")
            fresh = job.method.start(self.model, job.seed)
            self.network, self.elsewhere = under_repair(fresh, job.train), self.cohort.inputs
        self.past: list[_Past] = []
        self.best: int | None = None  # row of the trace
        self.decisions: list[BoolArray] = []
        self.trials = 0  # evaluations after that of the original
        self.cut_short = self.constant_before = False  # the time was up before the method ended; the original's decisions are constant
        start = self.data.evaluate(original.evaluate(), original=True)
        self.constant_before = self._constant(start)
        self.data, start = self.data.keeping(start)
        if self.within is None:
            self.settled = [goal.settled(own.performance) for goal, own in zip(self.goals, start.each, strict=True)]
        else:
            self.settled = [goal.derived(min_performance=None, max_gap=self.within, max_loss=None) for goal in self.goals]
        self._add(Step(0), start, eligible=self.within is None)
        self.start, self.active = start, start.gap != 0 or not self.method.needs_gap  # whether it takes further steps

    def run(self) -> None:
        """Runs the method to its end, to the chosen step or to the deadline."""
        from equipoise.models import first_decides

        job, progress, steps = self.job, self.job.progress, self._steps()
        total, evaluation = 1, None
        while evaluation is None or self.active:  # started even without a gap, so that a method can reject its settings
            if evaluation is not None and job.deadline is not None and first_decides(time.monotonic() > job.deadline):
                self.cut_short = True
                break
            try:
                step: Step = next(steps) if evaluation is None else steps.send(evaluation)
            except StopIteration:
                break
            if not self.active:
                break
            evaluation, self.trials = self._step(step), self.trials + 1
            if progress and step.progress is not None:
                total = step.progress[1]
                progress(*step.progress)
        steps.close()
        if progress:
            progress(total, total)

    def _steps(self) -> Steps:
        """The steps of the method; none if it only fits a threshold, as `standard` with several labels does."""
        if self.method.kind == Kind.STEPS:
            job = self.job
            least = np.array([np.nan if goal.min_performance is None else goal.min_performance for goal in self.settled])
            train = None if job.train is None else Data.of(job.train, job.goals)
            data = replace(self.data, begun=self.start, train=train, images=len(self.cohort.inputs.shape) > 2, least=least)
            yield from self.method.run(self.network, data, self.goals[0], job.settings, Rng(job.seed))

    def _step(self, step: Step) -> Evaluation:
        """Evaluates one more step, and keeps the best state."""
        evaluation = step.seen
        if evaluation is None:
            scores = self.network.evaluate(self.elsewhere) if step.scores is None else step.scores
            evaluation = self.data.evaluate(scores, self.within)
        if step.trial:
            return evaluation
        improved = self._add(step, evaluation)
        if self.half is not None:
            self._record(evaluation, self.half)
        if self.until is not None:
            improved, self.active = step.number <= self.until.step, step.number < self.until.step
        elif self.last:
            improved = not self.past[-1].refused
        if improved:
            self.network.keep()
        if step.stop_below is not None and not evaluation.performance > step.stop_below:
            self.active = False
        return evaluation

    def _add(self, step: Step, evaluation: Evaluation, eligible: bool = True) -> bool:
        """Adds a step to the trace, and returns whether it improved on the best one."""
        # Of all labels: the largest gap with its label, and the mean performance; for classes, the mean recall.
        worst = self.data.labels[int(np.argmax([result.size for result in evaluation.each]))].name
        performance = evaluation.performance if evaluation.recall is None else evaluation.recall
        joint = {"step": step.number, "gap": evaluation.gap, "performance": performance, "threshold": np.nan, "label": worst}
        now = _Past(step, evaluation.each, joint, merit(evaluation.each, self.settled), self._constant(evaluation))
        self.past.append(now)
        if eligible and not now.refused and (self.best is None or now.merit > self.past[self.best].merit):
            self.best = len(self.past) - 1
            return True
        return False

    def _constant(self, evaluation: Evaluation) -> bool:
        """Whether the decisions on any label are constant, unlike the original's. Classes may be empty and are not checked."""
        if not self.job.refuse_constant or self.data.classes or self.constant_before:
            return False
        parts = zip(self.data.parts, evaluation.each, strict=True)
        return any(bool(constant(decided_at(evaluation.scores[rows], own.threshold), label.codes)) for (rows, label), own in parts)

    def _record(self, evaluation: Evaluation, half: Half) -> None:
        """Records the decisions of this step on the rows of a half and on those held out."""
        decisions = np.empty((len(half.own) + len(half.held), len(self.goals)), bool)
        decisions[half.own] = self.data.decide(evaluation.scores, evaluation)[: len(half.own)]
        if half.elsewhere is not None:
            decisions[half.held] = self.data.decide(self.network.evaluate(half.elsewhere.inputs), evaluation)[: len(half.held)]
        self.decisions.append(decisions)

    def candidate(self) -> Candidate:
        """The candidate with the chosen step."""
        from equipoise.models import label_views, outputs_like, whole_network

        row, model = self.best or 0, self.network.kept()
        if self.until is not None:
            row = sum(past.step.number <= self.until.step for past in self.past) - 1
        elif self.last:
            row = max(k for k, past in enumerate(self.past) if not past.refused)
        if row == 0 and any(past.refused for past in self.past):  # no state was kept, and the network may have changed since the original
            model = copy.deepcopy(whole_network(self.model))
        views = label_views(outputs_like(self.model, model), self.job.goals)
        results = self.past[row].each
        if self.network.reduced or self.data.classes:
            results = tuple(self._evaluate_again(at, view, row) for at, view in enumerate(views.values()))
        each = {name: self._label_candidate(at, row, view, results[at]) for at, (name, view) in enumerate(views.items())}
        return Candidate(each, model, pd.DataFrame([past.joint for past in self.past]), row).with_labels(each)

    def _evaluate_again(self, at: int, view: "nn.Module | None", row: int) -> LabelResult:
        """The result of the chosen step, evaluated in full precision on the network that is delivered."""
        from equipoise.models import predict

        label, scores = self.data.labels[at], predict(view, self.parts[at]).score
        if self.data.classes:
            return label.decided(decided_at(scores, HALF))
        return label.evaluate(scores, self.within) if row or label.threshold is None else label.original(scores)

    def _label_candidate(self, at: int, row: int, model: "nn.Module | None", result: LabelResult) -> LabelCandidate:
        """The candidate of one label."""
        given, settled, step = self.goals[at], self.settled[at], self.past[row].step
        trace = frame([trace_row(past.step.number, past.each[at]) for past in self.past])
        final = trace_row(step.number, result)
        trace.loc[row, list(final)] = list(final.values())
        trace = trace.astype({"step": int})
        missing = lacking(result, settled, settled if self.within is None else given)
        met, kept = not missing, tuple[Note, ...]()
        if self.until is not None:
            why, met = self.until.why[at], self.until.met[at] and (met or not self.network.reduced)
        else:
            why = (self._joint_why(row), *missing) if self.cohort.several else self._why(row, trace, missing)
            merits = [past.merit for past in self.past if past.refused]
            if merits and (self.last or self.best is None or max(merits) > self.past[row].merit):  # it would be the best
                kept = (Note("constant"),) if row else (Note("original_kept"), Note("constant"))
                why = (*kept, *(why if row else ()))
        has_goal = given.min_performance is not None or given.max_gap is not None
        goal, name = given if self.within is not None and has_goal else settled, self.method.name
        threshold = trace["threshold"].iloc[row]
        rule: Rule = ARGMAX if self.data.classes else plain_rule(name, threshold, self.parts[at], goal, original=row == 0)
        steps, (frozen, tensors) = len(self.past) - 1, self.network.frozen
        notes = [Note("frozen_parameters", numbers={"frozen": frozen, "of": tensors})] if frozen else []
        notes += [*step.notes, *kept]
        if not steps and self.trials:
            notes.append(Note("no_step", name, {"trials": self.trials}))
        if self.cut_short:
            notes.append(Note("cut_short", name, {"steps": steps}))
        seed, settings, pace = self.job.seed, asdict(self.job.settings), self.past[-1].step.pace
        return LabelCandidate(name, model, rule, trace, row, why, met, goal, seed, settings, tuple(notes), pace=pace)

    def _why(self, row: int, trace: pd.DataFrame, missing: Why) -> Why:
        """The reasons for choosing a row for a single label."""
        usable, (settled,) = trace.copy(), self.settled
        usable.loc[[past.refused for past in self.past], ["gap", "performance"]] = WORST
        if len(usable) == 1:
            return (Note("original"), *(select(usable, settled).why if missing else ()))
        if self.last:
            return (Note("last_step", numbers={"steps": row}),)
        why = select(usable.iloc[0 if self.within is None else 1 :], settled).why
        minimum = self.goals[0].min_performance if self.within is not None else None
        performance = float(usable["performance"].iloc[row])
        return why if minimum is None or performance >= minimum else (*why, too_low(settled.performance, performance, minimum))

    def _joint_why(self, row: int) -> Note:
        """The reason for choosing a row for all labels together."""
        if len(self.past) == 1:
            return Note("original")
        eligible = [past.merit for past in self.past[0 if self.within is None else 1 :]]
        return selected_for_all(eligible, self.past[row].merit, self.settled, self.data.classes, any(goal.keep for goal in self.goals))
