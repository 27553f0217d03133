"""The driver of all methods: it evaluates every step, keeps the trace and a copy of the best state, applies the constraints and chooses.

A method yields the steps of one model (see `contract`); everything else is done here, once for all methods. A single label is the case of
length one.
"""

import copy
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
from torch import Tensor, nn

from equipoise.data import BoolArray, Cohort, Images, IntArray, Rows
from equipoise.errors import BadInput
from equipoise.measures import ARGMAX, Rule
from equipoise.methods.candidate import Candidate, LabelCandidate, Progress
from equipoise.methods.choosing import Verdict
from equipoise.methods.contract import Fit, Kind, Method, Rng, Step, Steps
from equipoise.methods.evaluation import HALF, Data, Evaluation, LabelResult, Limits, decided_at, frame, trace_row
from equipoise.methods.goal import Goal, Note, Why
from equipoise.methods.kept_rates import spare
from equipoise.methods.selection import WORST, Merit, constant, lacking, merit, not_constant, plain_rule, select, selected_for_all, too_low
from equipoise.models import check, first_decides, label_views, outputs_like, predict, under_repair, whole_network


@dataclass(frozen=True, eq=False)
class Half:
    """A half of the rows to repair on, and the rows that are held out from it."""

    cohort: Cohort  # the rows to repair on, possibly repeated
    own: IntArray  # their positions in the whole set, each once
    held: IntArray  # the positions of the held-out rows
    elsewhere: Cohort | None = None  # the held-out rows, repeated to the same length; None if no rows are held out


@dataclass(frozen=True, eq=False)
class Record:
    """The decisions of each step on all rows of the whole set, in its order."""

    steps: list[int] = field(default_factory=list)
    decisions: list[BoolArray] = field(default_factory=list)  # one (rows, labels) per step


@dataclass(frozen=True, eq=False)
class Run:
    """The candidate of a job, and the decisions of its steps on a half and on the rows held out from it."""

    candidate: Candidate
    record: Record


@dataclass(frozen=True, eq=False)
class Job:
    """The input of a run: a method, a network with its repair set, the goal of each label, a seed, settings, and the training set."""

    method: Method
    model: nn.Module | None  # None: scores without a network
    rows: Rows
    goals: Mapping[str, Goal]  # by label
    seed: int
    settings: Any
    train: Cohort | None = None
    progress: Progress | None = None
    half: Half | None = None
    verdict: Verdict | None = None
    deadline: float | None = None  # by time.monotonic(), after which no further step is taken; None: no limit
    refuse_constant: bool = False  # steps with constant decisions are not chosen

    @property
    def network(self) -> nn.Module:
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


def run(job: Job) -> Run:
    """The result of a method."""
    by_steps = job.method.kind == Kind.STEPS or job.rows.several  # `standard` of several labels is a search of no steps
    return _Search(job).run() if by_steps else Run(Candidate.of(_fitted(job)), Record())


def _fitted(job: Job) -> LabelCandidate:
    """The candidate of a method that leaves the network unchanged and fits a rule, or probes, to it."""
    (goal,) = job.goals.values()
    Data.of(job.rows, job.goals)  # raises an error if the set lacks rows that the measure needs
    if job.method.kind == Kind.RULE:
        scores = predict(job.model, job.rows)
        fit: Fit = job.method.run(scores, goal, job.settings)
        fit = not_constant(fit, job.method, scores, goal, job.settings) if job.refuse_constant else fit
    else:
        if job.model is not None:
            check(job.model, job.cohort, changed=False)
        fit = job.method.run(job.model, job.rows, goal, job.settings, Rng(job.seed), job.train)
    if job.progress:
        job.progress(1, 1)
    network = copy.deepcopy(job.model) if fit.model is None else fit.model
    settings, notes = asdict(job.settings), (*(fit.steps[fit.chosen].notes if fit.steps else ()), *fit.notes)
    return LabelCandidate(job.method.name, network, fit.rule, fit.trace, fit.chosen, fit.why, fit.met, fit.goal, job.seed, settings, notes)


class _Search:
    """The steps of a method, and the best of them so far."""

    def __init__(self, job: Job) -> None:
        self.job, self.method, self.model, self.cohort = job, job.method, job.network, job.cohort
        self.goals, self.parts = list(job.goals.values()), list(job.cohort.by_label.values())
        self.data = Data.of(self.cohort, job.goals)  # raises an error if the set lacks rows that a measure needs
        objective = job.method.objective(self.goals, job.settings)
        self.within, self.last = objective.max_gap, objective.last
        self.network = self.original = under_repair(self.model, self.cohort)
        self.elsewhere: Tensor | Images | None = None  # inputs to evaluate, if the network is not trained on the repair set
        if job.method.start is not None and job.train is not None:
            if (levels := self.cohort.attribute.levels) != (train_levels := job.train.attribute.levels):
                raise BadInput(f"{job.train.name!r} has the groups {train_levels}, {self.cohort.name!r} has {levels}")
            fresh = job.method.start(self.model, job.seed)
            self.network, self.elsewhere = under_repair(fresh, job.train), self.cohort.inputs
        self.active = True  # whether it takes further steps
        self.settled: list[Goal] = []  # per label, the goal that steps are chosen by
        self.steps: list[Step] = []
        self.results: list[tuple[LabelResult, ...]] = []
        self.joint_rows: list[dict[str, Any]] = []  # of the trace of all labels
        self.merits: list[Merit] = []
        self.refused: list[bool] = []  # steps with constant decisions, unlike the original
        self.best: int | None = None  # row of the trace
        self.record = Record()
        self.limits: Limits | None = None
        self.constant_before = False  # whether the original's own decisions are constant
        self.trials = 0  # evaluations after that of the original
        self.cut_short = False  # whether the time was up before the method ended

    def run(self) -> Run:
        """Evaluates the original network, runs the method, and returns the candidate."""
        job, progress = self.job, self.job.progress
        start = self._start()
        train = None if job.train is None else Data.of(job.train, job.goals)
        least = np.array([np.nan if goal.min_performance is None else goal.min_performance for goal in self.settled])
        steps = self._steps(replace(self.data, begun=start, train=train, images=len(self.cohort.inputs.shape) > 2, least=least))
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
        return Run(self._candidate(), self.record)

    def _steps(self, data: Data) -> Steps:
        """The steps of the method; none if it only fits a threshold, as `standard` with several labels does."""
        if self.method.kind != Kind.STEPS:
            return
        yield from self.method.run(self.network, data, self.goals[0], self.job.settings, Rng(self.job.seed))

    def _start(self) -> Evaluation:
        """The evaluation of the original network, step 0."""
        evaluation = self.data.evaluate(self.original.evaluate(), original=True)
        self.constant_before = self._constant(evaluation)
        if any(goal.keep for goal in self.goals):
            self.limits, evaluation = self.data.limits(evaluation, self.goals)
        if self.within is None:
            self.settled = [goal.settled(own.performance) for goal, own in zip(self.goals, evaluation.each, strict=True)]
        else:
            self.settled = [goal.derived(min_performance=None, max_gap=self.within, max_loss=None) for goal in self.goals]
        self._add(Step(0), evaluation, eligible=self.within is None)
        if self.method.needs_gap:
            self.active = evaluation.gap != 0
        return evaluation

    def _step(self, step: Step) -> Evaluation:
        """Evaluates one more step, and keeps the best state."""
        evaluation = step.seen
        if evaluation is None:
            scores = self.network.evaluate(self.elsewhere) if step.scores is None else step.scores
            evaluation = self.data.evaluate(scores, self.within, self.limits)
        if step.trial:
            return evaluation
        improved, verdict = self._add(step, evaluation), self.job.verdict
        if self.job.half is not None:
            self._record(step, evaluation, self.job.half)
        if verdict is not None:
            improved, self.active = step.number <= verdict.step, step.number < verdict.step
        elif self.last:
            improved = not self.refused[-1]
        if improved:
            self.network.keep()
        if step.stop_below is not None and not evaluation.performance > step.stop_below:
            self.active = False
        return evaluation

    def _add(self, step: Step, evaluation: Evaluation, eligible: bool = True) -> bool:
        """Adds a step to the trace, and returns whether it improved on the best one."""
        constant_now = self._constant(evaluation)
        self.refused.append(constant_now)
        self.steps.append(step)
        self.results.append(evaluation.each)
        self.joint_rows.append(self._joint_row(step, evaluation))
        self.merits.append(merit(evaluation.each, self.settled))
        if eligible and not constant_now and (self.best is None or self.merits[-1] > self.merits[self.best]):
            self.best = len(self.merits) - 1
            return True
        return False

    def _constant(self, evaluation: Evaluation) -> bool:
        """Whether the decisions on any label are constant, unlike the original's. Classes may be empty and are not checked."""
        if not self.job.refuse_constant or self.data.classes or self.constant_before:
            return False
        parts = zip(self.data.parts, evaluation.each, strict=True)
        return any(bool(constant(decided_at(evaluation.scores[rows], own.threshold), label.codes)) for (rows, label), own in parts)

    def _joint_row(self, step: Step, evaluation: Evaluation) -> dict[str, Any]:
        """One step of all labels: the largest gap with its label, and the mean performance; for classes, the mean recall."""
        worst = self.data.labels[int(np.argmax([result.size for result in evaluation.each]))].name
        performance = evaluation.performance if evaluation.recall is None else evaluation.recall
        return {"step": step.number, "gap": evaluation.gap, "performance": performance, "threshold": np.nan, "label": worst}

    def _record(self, step: Step, evaluation: Evaluation, half: Half) -> None:
        """Records the decisions of this step on the rows of a half and on those held out."""
        decisions = np.empty((len(half.own) + len(half.held), len(self.goals)), bool)
        decisions[half.own] = self.data.decide(evaluation.scores, evaluation)[: len(half.own)]
        if half.elsewhere is not None:
            decisions[half.held] = self.data.decide(self.network.evaluate(half.elsewhere.inputs), evaluation)[: len(half.held)]
        self.record.steps.append(step.number)
        self.record.decisions.append(decisions)

    def _chosen_row(self) -> int:
        """The row of the trace that is chosen."""
        if self.job.verdict is not None:
            return sum(step.number <= self.job.verdict.step for step in self.steps) - 1
        if self.last:
            return max(k for k, refused in enumerate(self.refused) if not refused)
        return self.best or 0

    def _candidate(self) -> Candidate:
        """The candidate with the chosen step."""
        row, model = self._chosen_row(), self.network.kept()
        if row == 0 and any(self.refused):  # no state was kept, and the network may have changed since the original
            model = copy.deepcopy(whole_network(self.model))
        views = label_views(outputs_like(self.model, model), self.job.goals)
        results = self.results[row]
        if self.network.reduced or self.data.classes:
            results = tuple(self._evaluate_again(at, view, row) for at, view in enumerate(views.values()))
        each = {name: self._label_candidate(at, row, view, results[at]) for at, (name, view) in enumerate(views.items())}
        return Candidate(each, model, pd.DataFrame(self.joint_rows), row).with_labels(each)

    def _evaluate_again(self, at: int, view: nn.Module | None, row: int) -> LabelResult:
        """The result of the chosen step, evaluated in full precision on the network that is delivered."""
        label, limit = self.data.labels[at], None if self.limits is None else self.limits[at]
        scores = predict(view, self.parts[at]).score
        if self.data.classes:
            return label.decided(decided_at(scores, HALF), limit)
        if row or label.threshold is None:
            return label.evaluate(scores, self.within, limit)
        result = label.original(scores)
        return result if limit is None else replace(result, spare=float(spare(label.rates(scores, result.threshold), limit)))

    def _label_candidate(self, at: int, row: int, model: nn.Module | None, result: LabelResult) -> LabelCandidate:
        """The candidate of one label."""
        given, settled, step = self.goals[at], self.settled[at], self.steps[row]
        trace = frame([trace_row(past.number, results[at]) for past, results in zip(self.steps, self.results, strict=True)])
        final = trace_row(step.number, result)
        trace.loc[row, list(final)] = list(final.values())
        trace = trace.astype({"step": int})
        kept: Why
        missing = lacking(result, settled, settled if self.within is None else given)
        met, kept = not missing, ()
        if self.job.verdict is not None:
            why, met = self.job.verdict.why[at], self.job.verdict.met[at] and (met or not self.network.reduced)
        else:
            why = self._why(row, trace, settled, missing)
            if self._passed_over_constant(row):
                kept = (Note("constant"),) if row else (Note("original_kept"), Note("constant"))
                why = (*kept, *(why if row else ()))
        has_goal = given.min_performance is not None or given.max_gap is not None
        goal = given if self.within is not None and has_goal else settled
        rule: Rule = ARGMAX if self.data.classes else plain_rule(self.method.name, trace, row, self.parts[at], goal)
        notes, settings = (*step.notes, *kept, *self._run_notes()), asdict(self.job.settings)
        frozen, tensors = self.network.frozen
        if frozen:
            notes = (Note("frozen_parameters", numbers={"frozen": frozen, "of": tensors}), *notes)
        seed, pace = self.job.seed, self.steps[-1].pace
        return LabelCandidate(self.method.name, model, rule, trace, row, why, met, goal, seed, settings, notes, pace=pace)

    def _passed_over_constant(self, row: int) -> bool:
        """Whether a step would have been chosen if its decisions were not constant."""
        merits = [own for own, refused in zip(self.merits, self.refused, strict=True) if refused]
        return bool(merits) and (self.last or self.best is None or max(merits) > self.merits[row])

    def _run_notes(self) -> tuple[Note, ...]:
        """Notes on a run without steps, or one that was cut short."""
        steps, notes = len(self.steps) - 1, []
        if not steps and self.trials:
            notes.append(Note("no_step", self.method.name, {"trials": self.trials}))
        if self.cut_short:
            notes.append(Note("cut_short", self.method.name, {"steps": steps}))
        return tuple(notes)

    def _why(self, row: int, trace: pd.DataFrame, settled: Goal, missing: Why) -> Why:
        """The reasons for choosing a row for one label."""
        if self.cohort.several:
            return (self._joint_why(row), *missing)
        usable = trace.copy()
        usable.loc[self.refused, ["gap", "performance"]] = WORST
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
        if len(self.steps) == 1:
            return Note("original")
        eligible = self.merits[0 if self.within is None else 1 :]
        return selected_for_all(eligible, self.merits[row], self.settled, self.data.classes, self.limits is not None)
