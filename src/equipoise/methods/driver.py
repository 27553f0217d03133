"""The driver of all methods: it evaluates every step, keeps the trace and a copy of the best state, applies the constraints and chooses.

A method yields the steps of one model (see `contract`); everything else is done here, once for all methods. Equal small networks go through
a method as one stack: arrays then have a leading axis, which only the driver indexes. (Measured on tables of 500 features: bias GD/A takes
0.19 s per epoch alone and 0.09 s per network in a stack of 5 to 10; pruning 1.6 s and 1.2 s.) A single label is the case of length one.
"""

import copy
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
from torch import nn

from equipoise.data import BoolArray, Cohort
from equipoise.errors import BadInput
from equipoise.measures import ARGMAX, LabelRules, Rule
from equipoise.methods.candidate import Candidate
from equipoise.methods.constant import WORST, constant, not_constant
from equipoise.methods.contract import Fit, Kind, Rng, Step, Steps
from equipoise.methods.evaluation import HALF, Data, Evaluation, LabelResult, Limits, decided_at, frame, trace_row
from equipoise.methods.goal import Goal, JointGoal, Note, Why
from equipoise.methods.job import Job, Record, Run
from equipoise.methods.kept_rates import spare
from equipoise.methods.selection import Merit, lacking, merit, plain_rule, select, selected_for_all, too_low
from equipoise.models import MLP, ChosenOutputs, Predictor, check, first_decides, predict, replicas


def run(job: Job) -> list[Run]:
    """The result of a method for each network: all at once if they can be stacked, otherwise one by one."""
    by_steps = job.method.kind == Kind.STEPS or job.cohorts[0].targets is not None  # `standard` of several labels is a search of no steps
    count = len(job.models)
    groups = [range(count)] if by_steps and stackable(job.networks, job.inputs) else [range(k, k + 1) for k in range(count)]
    runs: list[Run] = []
    for k, group in enumerate(groups):
        part = job.take(group).within(1 / (len(groups) - k))
        runs += _Search(part).run() if by_steps else [Run(_fitted(part), Record())]
    return runs


def stackable(models: Sequence[nn.Module], cohorts: Sequence[Cohort]) -> bool:
    """Whether these networks can go through a method as one stack: equal MLPs on sets of equal size, nothing frozen."""
    if not all(type(m) is MLP for m in models):
        return len(models) == 1
    shapes = {tuple((tuple(p.shape), p.dtype, p.requires_grad, p.device.type) for p in m.parameters()) for m in models}
    sizes = {c.inputs.shape for c in cohorts}
    return len(shapes) == 1 and len(sizes) == 1


def _fitted(job: Job) -> Candidate:
    """The candidate of a method that leaves the network unchanged and fits a rule, or probes, to it."""
    (model,), (cohort,), (goal,), (seed,) = job.models, job.cohorts, job.goals, job.seeds
    Data.of([cohort], [goal])  # raises an error if the set lacks rows that the measure needs
    if job.method.kind == Kind.RULE:
        scores = predict(model, cohort)
        fit: Fit = job.method.run(scores, goal, job.settings)
        fit = not_constant(fit, job.method, scores, goal, job.settings) if job.refuse_constant else fit
    else:
        if model is not None and isinstance(cohort, Cohort):
            check(model, cohort, changed=False)
        fit = job.method.run(model, cohort, goal, job.settings, Rng((seed,)), None if job.trains is None else job.trains[0])
    if job.progress:
        job.progress(1, 1)
    network = copy.deepcopy(model) if fit.model is None else fit.model
    settings, notes = asdict(job.settings), (*(fit.steps[fit.chosen].notes if fit.steps else ()), *fit.notes)
    return Candidate(job.method.name, network, fit.rule, fit.trace, fit.chosen, fit.why, fit.met, fit.goal, seed, settings, notes)


@dataclass
class _Track:
    """All steps of one network so far, and the best of them."""

    settled: list[Goal]  # per label, the goal that steps are chosen by
    steps: list[Step] = field(default_factory=list)
    results: list[tuple[LabelResult, ...]] = field(default_factory=list)
    joint_rows: list[dict[str, Any]] = field(default_factory=list)  # of the trace of all labels
    merits: list[Merit] = field(default_factory=list)
    refused: list[bool] = field(default_factory=list)  # steps with constant decisions, unlike the original
    best: int | None = None  # row of the trace
    record: Record = field(default_factory=Record)


class _Search:
    """The steps of a method on R networks with L labels."""

    def __init__(self, job: Job) -> None:
        self.job, self.method, self.goals, self.models, self.cohorts = job, job.method, job.goals, job.networks, job.inputs
        self.data = Data.of(job.cohorts, job.goals)  # raises an error if a set lacks rows that a measure needs
        objective = job.method.objective(job.goals, job.settings)
        self.within, self.last = objective.max_gap, objective.last
        self.network = self.original = replicas(self.models, self.cohorts)
        self.elsewhere: list[Any] | None = None  # inputs to evaluate, if the network is not trained on the repair set
        if job.method.start is not None and job.trains is not None:
            for cohort, train in zip(self.cohorts, job.trains, strict=True):
                if (levels := cohort.attribute.levels) != (train_levels := train.attribute.levels):
                    raise BadInput(f"{train.name!r} has the groups {train_levels}, {cohort.name!r} has {levels}")
            fresh = [job.method.start(model, seed) for model, seed in zip(self.models, job.seeds, strict=True)]
            self.network, self.elsewhere = replicas(fresh, job.trains), [cohort.inputs for cohort in self.cohorts]
        self.active: BoolArray = np.ones(len(job.models), bool)  # networks that take further steps
        self.tracks: list[_Track] = []
        self.limits: Limits | None = None
        self.constant_before: BoolArray = np.zeros(len(job.models), bool)  # originals whose own decisions are constant
        self.trials = 0  # evaluations after that of the original
        self.cut_short = False  # whether the time was up before the method ended

    def run(self) -> list[Run]:
        """Evaluates the original networks, runs the method, and returns the candidates."""
        job, progress = self.job, self.job.progress
        start = self._start()
        train = None if job.trains is None else Data.of(job.trains, job.goals)
        least = [[np.nan if goal.min_performance is None else goal.min_performance for goal in track.settled] for track in self.tracks]
        images = len(self.cohorts[0].inputs.shape) > 2
        steps = self._steps(replace(self.data, begun=start, train=train, images=images, least=np.array(least).T))
        total, evaluation = 1, None
        while evaluation is None or self.active.any():  # started even if no network has a gap, so that a method can reject its settings
            if evaluation is not None and job.deadline is not None and first_decides(time.monotonic() > job.deadline):
                self.cut_short = True
                break
            try:
                step: Step = next(steps) if evaluation is None else steps.send(evaluation)
            except StopIteration:
                break
            if not self.active.any():
                break
            evaluation, self.trials = self._step(step), self.trials + 1
            if progress and step.progress is not None:
                total = step.progress[1]
                progress(*step.progress)
        steps.close()
        if progress:
            progress(total, total)
        networks = self.network.kept()
        return [Run(self._candidate(r, networks[r]), track.record) for r, track in enumerate(self.tracks)]

    def _steps(self, data: Data) -> Steps:
        """The steps of the method; none if it only fits a threshold, as `standard` with several labels does."""
        if self.method.kind != Kind.STEPS:
            return
        yield from self.method.run(self.network, data, self.goals[0], self.job.settings, Rng(tuple(self.job.seeds)))

    def _start(self) -> Evaluation:
        """The evaluation of the original networks, step 0."""
        evaluation = self.data.evaluate(self.original.evaluate(), original=True)
        self.constant_before = self._constant(evaluation)
        if any(goal.keep for goal in self.goals):
            self.limits, evaluation = self.data.limits(evaluation, self.goals)
        for r in range(len(self.active)):
            if self.within is None:
                settled = [goal.settled(float(own.performance[r])) for goal, own in zip(self.goals, evaluation.each, strict=True)]
            else:
                settled = [goal.changed(min_performance=None, max_gap=self.within, max_loss=None) for goal in self.goals]
            self.tracks.append(_Track(settled))
        self._add(Step(0), evaluation, self.active, eligible=self.within is None)
        if self.method.needs_gap:
            self.active = evaluation.gap != 0
            self.network.freeze(~self.active)
        return evaluation

    def _step(self, step: Step) -> Evaluation:
        """Evaluates one more step of the active networks, and keeps the best states."""
        evaluation = step.seen
        if evaluation is None:
            scores = self.network.evaluate(self.elsewhere) if step.scores is None else step.scores
            evaluation = self.data.evaluate(scores, self.within, self.limits)
        networks = self.active if step.of is None else self.active & step.of
        if not networks.any():
            return evaluation
        improved = self._add(step, evaluation, networks)
        verdicts = self.job.verdicts
        if self.job.halves is not None:
            self._record(step, evaluation, networks)
        if verdicts is not None:
            improved = np.array([step.number <= verdict.step for verdict in verdicts]) & networks
        elif self.last:
            improved = networks & ~np.array([track.refused[-1] for track in self.tracks])
        self.network.keep(improved)
        if verdicts is not None:
            self.active &= ~networks | np.array([step.number < verdict.step for verdict in verdicts])
        if step.stop_below is not None:
            self.active &= evaluation.performance > step.stop_below
            self.network.freeze(~self.active)
        return evaluation

    def _add(self, step: Step, evaluation: Evaluation, networks: BoolArray, eligible: bool = True) -> BoolArray:
        """Adds a step to the tracks of some networks, and returns which of them improved on their best step."""
        improved, constant_now = np.zeros(len(self.active), bool), self._constant(evaluation)
        for r in np.flatnonzero(networks).tolist():
            track = self.tracks[r]
            track.refused.append(bool(constant_now[r]))
            track.steps.append(step)
            track.results.append(evaluation.each)
            track.joint_rows.append(self._joint_row(step, evaluation, r))
            track.merits.append(merit(evaluation.each, track.settled, r))
            if eligible and not constant_now[r] and (track.best is None or track.merits[-1] > track.merits[track.best]):
                improved[r], track.best = True, len(track.merits) - 1
        return improved

    def _constant(self, evaluation: Evaluation) -> BoolArray:
        """The networks (R,) whose decisions on any label are constant, unlike the original's. Classes may be empty and are not checked."""
        constant_now = np.zeros(len(self.active), bool)
        if self.job.refuse_constant and not self.data.classes:
            for (rows, label), result in zip(self.data.parts, evaluation.each, strict=True):
                decisions = decided_at(evaluation.scores[:, rows], result.threshold)
                constant_now |= [bool(constant(f, codes)) for f, codes in zip(decisions, label.codes, strict=True)]
        return constant_now & ~self.constant_before

    def _joint_row(self, step: Step, evaluation: Evaluation, r: int) -> dict[str, Any]:
        """One step of all labels: the largest gap with its label, and the mean performance; for classes, the mean recall."""
        worst = self.data.labels[int(np.argmax([result.size[r] for result in evaluation.each]))].name
        performance = float(evaluation.performance[r]) if evaluation.recall is None else evaluation.recall
        return {"step": step.number, "gap": float(evaluation.gap[r]), "performance": performance, "threshold": np.nan, "label": worst}

    def _record(self, step: Step, evaluation: Evaluation, networks: BoolArray) -> None:
        """Records the decisions of this step on the rows of each half and on those held out."""
        assert self.job.halves is not None
        outside = [half.elsewhere.inputs for half in self.job.halves if half.elsewhere is not None]
        inside_decisions = self.data.decide(evaluation.scores, evaluation)
        outside_decisions = self.data.decide(self.network.evaluate(outside), evaluation) if outside else None
        for r, half in enumerate(self.job.halves):
            if networks[r]:
                decisions = np.empty((len(half.own) + len(half.held), len(self.goals)), bool)
                decisions[half.own] = inside_decisions[r, : len(half.own)]
                if outside_decisions is not None:
                    decisions[half.held] = outside_decisions[r, : len(half.held)]
                self.tracks[r].record.steps.append(step.number)
                self.tracks[r].record.decisions.append(decisions)

    def _chosen_row(self, r: int) -> int:
        """The row of the trace that is chosen."""
        track = self.tracks[r]
        if self.job.verdicts is not None:
            return sum(step.number <= self.job.verdicts[r].step for step in track.steps) - 1
        if self.last:
            return max(k for k, refused in enumerate(track.refused) if not refused)
        return track.best or 0

    def _candidate(self, r: int, model: nn.Module) -> Candidate:
        """The candidate of one network."""
        row, original, track = self._chosen_row(r), self.models[r], self.tracks[r]
        if row == 0 and any(track.refused):  # no state was kept, and the network may have changed since the original
            model = copy.deepcopy(original.inner if isinstance(original, ChosenOutputs) else original)
        views = [model]
        if isinstance(original, ChosenOutputs):
            whole = original.around(model)
            views = [whole.view(at) for at in range(len(self.goals))]
        results = track.results[row]
        if self.network.reduced or self.data.classes:
            results = tuple(self._evaluate_again(r, at, view, row) for at, view in enumerate(views))
        each = [self._label_candidate(r, at, row, view, result) for at, (view, result) in enumerate(zip(views, results, strict=True))]
        if not self.data.several:
            return each[0]
        by_label = {label.name: own for label, own in zip(self.data.labels, each, strict=True)}
        return joined(model, by_label, pd.DataFrame(track.joint_rows), row, (self._joint_why(track, row),), self.cohorts[r].kind)

    def _evaluate_again(self, r: int, at: int, view: nn.Module, row: int) -> LabelResult:
        """The result of the chosen step, evaluated in full precision on the network that is delivered."""
        label, limit = self.data.labels[at].only(r), None
        if self.limits is not None and (limits := self.limits[at]) is not None:
            limit = limits[[r]]
        scores = predict(view, self._part(r, at)).score[None]
        if self.data.classes:
            result = label.decided(decided_at(scores, np.full(1, HALF)), limit)
        elif row == 0 and label.threshold is not None:
            result = label.original(scores)
            if limit is not None:
                result = replace(result, spare=spare(label.rates(scores, result.threshold), limit))
        else:
            result = label.evaluate(scores, self.within, limit)
        return result.at(r, len(self.active))

    def _part(self, r: int, at: int) -> Cohort:
        """The rows of one label."""
        cohort = self.cohorts[r]
        return cohort.labelled(self.data.labels[at].name) if self.data.several else cohort

    def _label_candidate(self, r: int, at: int, row: int, model: nn.Module, result: LabelResult) -> Candidate:
        """The candidate of one label of one network."""
        track, given = self.tracks[r], self.goals[at]
        settled, step = track.settled[at], track.steps[row]
        trace = frame([trace_row(past.number, results[at], r) for past, results in zip(track.steps, track.results, strict=True)])
        final = trace_row(step.number, result, r)
        trace.loc[row, list(final)] = list(final.values())
        trace = trace.astype({"step": int})
        kept: Why
        missing = lacking(result, settled, settled if self.within is None else given, r)
        met, kept = not missing, ()
        if self.job.verdicts is not None:
            verdict = self.job.verdicts[r]
            why, met = verdict.why[at], verdict.met[at] and (met or not self.network.reduced)
        else:
            why = self._why(track, row, trace, settled, missing)
            if self._passed_over_constant(track, row):
                kept = (Note("constant"),) if row else (Note("original_kept"), Note("constant"))
                why = (*kept, *(why if row else ()))
        has_goal = given.min_performance is not None or given.max_gap is not None
        goal = given if self.within is not None and has_goal else settled
        rule: Rule = ARGMAX if self.data.classes else plain_rule(self.method.name, trace, row, self._part(r, at), goal)
        notes, settings = (*step.notes, *kept, *self._run_notes(track)), asdict(self.job.settings)
        frozen, tensors = self.network.frozen
        if frozen:
            notes = (Note("frozen_parameters", numbers={"frozen": frozen, "of": tensors}), *notes)
        seed, pace = self.job.seeds[r], track.steps[-1].pace
        return Candidate(self.method.name, model, rule, trace, row, why, met, goal, seed, settings, notes, pace=pace)

    def _passed_over_constant(self, track: _Track, row: int) -> bool:
        """Whether a step would have been chosen if its decisions were not constant."""
        merits = [own for own, refused in zip(track.merits, track.refused, strict=True) if refused]
        return bool(merits) and (self.last or track.best is None or max(merits) > track.merits[row])

    def _run_notes(self, track: _Track) -> tuple[Note, ...]:
        """Notes on a run without steps, or one that was cut short."""
        steps, notes = len(track.steps) - 1, []
        if not steps and self.trials:
            notes.append(Note("no_step", self.method.name, {"trials": self.trials}))
        if self.cut_short:
            notes.append(Note("cut_short", self.method.name, {"steps": steps}))
        return tuple(notes)

    def _why(self, track: _Track, row: int, trace: pd.DataFrame, settled: Goal, missing: Why) -> Why:
        """The reasons for choosing a row for one label."""
        if self.data.several:
            return (self._joint_why(track, row), *missing)
        usable = trace.copy()
        usable.loc[track.refused, ["gap", "performance"]] = WORST
        if len(usable) == 1:
            return (Note("original"), *(select(usable, settled).why if missing else ()))
        if self.last:
            return (Note("last_step", numbers={"steps": row}),)
        why = select(usable.iloc[0 if self.within is None else 1 :], settled).why
        minimum = self.goals[0].min_performance if self.within is not None else None
        performance = float(usable["performance"].iloc[row])
        return why if minimum is None or performance >= minimum else (*why, too_low(settled.performance, performance, minimum))

    def _joint_why(self, track: _Track, row: int) -> Note:
        """The reason for choosing a row for all labels together."""
        if len(track.steps) == 1:
            return Note("original")
        eligible = track.merits[0 if self.within is None else 1 :]
        return selected_for_all(eligible, track.merits[row], track.settled, self.data.classes, self.limits is not None)


def joined(
    model: nn.Module | Predictor | None, each: dict[str, Candidate], trace: pd.DataFrame, chosen: int, why: Why, kind: str
) -> Candidate:
    """The candidates of all labels as one: the network with all its outputs, and one rule per label."""
    first = next(iter(each.values()))
    rule = LabelRules({name: own.rule for name, own in each.items()}, kind)
    goal = JointGoal.of({name: own.goal for name, own in each.items()})
    met = all(own.met_in_sample for own in each.values())
    return replace(first, model=model, rule=rule, trace=trace, chosen=chosen, why=why, met_in_sample=met, goal=goal, labels=each)
