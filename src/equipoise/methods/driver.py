"""The driver of all methods: it evaluates every step, keeps the trace and a copy of the best state, applies the constraints and chooses.

A method yields the steps of one model (see `contract`); everything else is done here, once for all of them. Equal small networks go through
a method as one stack: arrays then have a leading axis, which only the driver indexes. (Measured on tables of 500 features: bias GD/A takes
0.19 s per epoch alone and 0.09 s per network in a stack of 5 to 10; pruning 1.6 s against 1.2 s.) One label is the case of length one.
"""

import copy
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pandas as pd
from torch import nn

from equipoise.data import BoolArray, Cohort
from equipoise.errors import BadInput
from equipoise.measures import ARGMAX, FloatArray, LabelRules, Rule, Threshold
from equipoise.methods.candidate import Candidate, Job, Record, Run
from equipoise.methods.constant import WORST, constant, not_constant
from equipoise.methods.contract import Fit, Kind, Rng, Step, Steps
from equipoise.methods.evaluation import HALF, Data, Evaluation, Found, Limits, decided_at, frame, trace_row
from equipoise.methods.goal import Goal, JointGoal, Note, Why, spare
from equipoise.methods.selection import Merit, lacking, merit, plain_rule, select, selected_for_all, too_low
from equipoise.models import MLP, ChosenOutputs, Predictor, check, predict, replicas


def run(job: Job) -> list[Run]:
    """What a method finds for each network: all at once where they can be stacked, one by one otherwise."""
    by_steps = job.method.kind == Kind.STEPS or job.cohorts[0].targets is not None  # the original of several labels has no step
    at_once = by_steps and stackable(job.networks, job.inputs)
    found: list[Run] = []
    slices = [slice(0, len(job.models))] if at_once else [slice(k, k + 1) for k in range(len(job.models))]
    for k, some in enumerate(slices):
        part = job.some(some).within(1 / (len(slices) - k))
        found += _Search(part).run() if by_steps else [Run(_fitted(part), Record())]
    return found


def stackable(models: Sequence[nn.Module], cohorts: Sequence[Cohort]) -> bool:
    """Whether these networks can go through a method as one: equal MLPs on sets of equal size, nothing frozen."""
    if not all(type(m) is MLP for m in models):
        return len(models) == 1
    shapes = {tuple((tuple(p.shape), p.dtype, p.requires_grad, p.device.type) for p in m.parameters()) for m in models}
    sizes = {c.inputs.shape for c in cohorts}
    return len(shapes) == 1 and len(sizes) == 1


def _fitted(job: Job) -> Candidate:
    """The candidate of a method that leaves the network as it is and fits a rule, or probes, to it."""
    (model,), (cohort,), (goal,), (seed,) = job.models, job.cohorts, job.goals, job.seeds
    Data.of([cohort], [goal])  # raises where the set lacks what the measure needs
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
    told, notes = asdict(job.settings), (*(fit.steps[fit.chosen].notes if fit.steps else ()), *fit.notes)
    return Candidate(job.method.name, network, fit.rule, fit.trace, fit.chosen, fit.why, fit.met, fit.goal, seed, told, notes)


class _Search:
    """The steps of a method on R networks with L labels."""

    def __init__(self, job: Job) -> None:
        self.job, self.method, self.goals, self.models, self.cohorts = job, job.method, job.goals, job.networks, job.inputs
        self.data = Data.of(job.cohorts, job.goals)  # raises where a set lacks what a measure needs
        objective = job.method.objective(job.goals, job.settings)
        self.within, self.last = objective.max_gap, objective.last
        self.network = self.original = replicas(self.models, self.cohorts)
        self.elsewhere: list[Any] | None = None  # where the network is not trained on the repair set
        if job.method.start is not None and job.trains is not None:
            for cohort, train in zip(self.cohorts, job.trains, strict=True):
                if (own := cohort.attribute.levels) != (other := train.attribute.levels):
                    raise BadInput(f"{train.name!r} has the groups {other}, {cohort.name!r} has {own}")
            fresh = [job.method.start(model, seed) for model, seed in zip(self.models, job.seeds, strict=True)]
            self.network, self.elsewhere = replicas(fresh, job.trains), [cohort.inputs for cohort in self.cohorts]
        count = len(job.models)
        self.active = np.ones(count, bool)  # networks that go on
        self.records = [Record() for _ in range(count)]
        self.steps: list[list[Step]] = [[] for _ in range(count)]  # per network, as all that follows
        self.found: list[list[tuple[Found, ...]]] = [[] for _ in range(count)]
        self.joint: list[list[dict[str, Any]]] = [[] for _ in range(count)]
        self.merits: list[list[Merit]] = [[] for _ in range(count)]
        self.best: list[int | None] = [None] * count  # row of the trace
        self.refused: list[list[bool]] = [[] for _ in range(count)]  # steps that decide the same for everybody, unlike the original
        self.settled: list[list[Goal]] = []
        self.limits: Limits | None = None
        self.usual: BoolArray = np.zeros(count, bool)  # originals that decide the same for everybody themselves
        self.trials = 0  # evaluations after the original's
        self.cut = False  # whether the time was up before the method came to its end

    def run(self) -> list[Run]:
        """Everything from the original networks to the candidates."""
        job, progress = self.job, self.job.progress
        start = self._begin()
        train = None if job.trains is None else Data.of(job.trains, job.goals)
        data = replace(self.data, begun=start, train=train, images=len(self.cohorts[0].inputs.shape) > 2, least=self._least())
        steps = self._steps(data)
        total, now = 1, None
        while now is None or self.active.any():  # a method is begun even where no network has a gap, so that it can refuse its settings
            if now is not None and job.deadline is not None and time.monotonic() > job.deadline:
                self.cut = True
                break
            try:
                step: Step = next(steps) if now is None else steps.send(now)
            except StopIteration:
                break
            if not self.active.any():
                break
            now, self.trials = self._step(step), self.trials + 1
            if progress and step.progress is not None:
                total = step.progress[1]
                progress(*step.progress)
        steps.close()
        if progress:
            progress(total, total)
        networks = self.network.kept()
        return [Run(self._candidate(r, networks[r]), self.records[r]) for r in range(len(job.models))]

    def _steps(self, data: Data) -> Steps:
        """The steps of the method; none of one that only fits a threshold, as the original with several labels does."""
        if self.method.kind != Kind.STEPS:
            return
        yield from self.method.run(self.network, data, self.goals[0], self.job.settings, Rng(tuple(self.job.seeds)))

    def _begin(self) -> Evaluation:
        """The original networks, step 0."""
        now = self.data.original(self.original.evaluate())
        self.usual = self._constant(now)
        if any(goal.keep for goal in self.goals):
            self.limits, now = self.data.limits(now, self.goals)
        for r in range(len(self.active)):
            if self.within is None:
                settled = [goal.settled(float(own.performance[r])) for goal, own in zip(self.goals, now.each, strict=True)]
            else:
                settled = [replace(goal, min_performance=None, max_gap=self.within, max_loss=None) for goal in self.goals]
            self.settled.append(settled)
        self._write(Step(0), now, self.active, counts=self.within is None)
        if self.method.needs_gap:
            self.active = now.gap != 0
            self.network.freeze(~self.active)
        return now

    def _least(self) -> FloatArray:
        """The minimum performance of every label of every network (labels, R); NaN where its goal has none."""
        least = [[np.nan if goal.min_performance is None else goal.min_performance for goal in settled] for settled in self.settled]
        return np.array(least).T

    def _step(self, step: Step) -> Evaluation:
        """One more step of the networks that go on; the best states are kept."""
        now = step.seen
        if now is None:
            scores = self.network.evaluate(self.elsewhere) if step.scores is None else step.scores
            now = self.data.evaluate(scores, self.within, self.limits)
        mine = self.active if step.of is None else self.active & step.of
        if not mine.any():
            return now
        improved = self._write(step, now, mine)
        verdicts = self.job.verdicts
        if self.job.halves is not None:
            self._record(step, now, mine)
        if verdicts is not None:
            improved = np.array([step.number <= verdict.step for verdict in verdicts]) & mine
        elif self.last:
            improved = mine & ~np.array([own[-1] for own in self.refused])
        self.network.keep(improved)
        if verdicts is not None:
            self.active &= ~mine | np.array([step.number < verdict.step for verdict in verdicts])
        if step.stop_below is not None:
            self.active &= now.performance > step.stop_below
            self.network.freeze(~self.active)
        return now

    def _write(self, step: Step, now: Evaluation, of: BoolArray, counts: bool = True) -> BoolArray:
        """Adds a row to the traces of some networks, and says which of them are better than ever before."""
        improved, same = np.zeros(len(self.active), bool), self._constant(now)
        for r in np.flatnonzero(of).tolist():
            self.refused[r].append(bool(same[r]))
            self.steps[r].append(step)
            self.found[r].append(now.each)
            self.joint[r].append(self._joint_row(step, now, r))
            self.merits[r].append(merit(now.each, self.settled[r], r))
            best = self.best[r]
            usable = counts and not same[r]
            improved[r] = usable and (best is None or self.merits[r][-1] > self.merits[r][best])
            if improved[r]:
                self.best[r] = len(self.merits[r]) - 1
        return improved

    def _constant(self, now: Evaluation) -> BoolArray:
        """Which networks (R,) decide the same for everybody, for any label; none where that is not refused. Classes may be empty."""
        found = np.zeros(len(self.active), bool)
        if self.job.refuse_constant and not self.data.classes:
            for (rows, label), own in zip(self.data.parts, now.each, strict=True):
                made = decided_at(now.scores[:, rows], own.threshold)
                found |= [bool(constant(f, codes)) for f, codes in zip(made, label.codes, strict=True)]
        return found & ~self.usual

    def _joint_row(self, step: Step, now: Evaluation, r: int) -> dict[str, Any]:
        """One step of all labels: the largest gap and whose it is, and the mean performance; of classes, the mean recall."""
        worst = self.data.labels[int(np.argmax([own.size[r] for own in now.each]))].name
        performance = float(now.performance[r]) if now.recall is None else now.recall
        return {"step": step.number, "gap": float(now.gap[r]), "performance": performance, "threshold": np.nan, "label": worst}

    def _record(self, step: Step, now: Evaluation, of: BoolArray) -> None:
        """How this step decides on the rows of each half and on those held out."""
        assert self.job.halves is not None
        outside = [half.elsewhere.inputs for half in self.job.halves if half.elsewhere is not None]
        own = self.data.decide(now.scores, now)
        held = self.data.decide(self.network.evaluate(outside), now) if outside else None
        for r, half in enumerate(self.job.halves):
            if of[r]:
                decisions = np.empty((len(half.own) + len(half.held), len(self.goals)), bool)
                decisions[half.own] = own[r, : len(half.own)]
                if held is not None:
                    decisions[half.held] = held[r, : len(half.held)]
                self.records[r].steps.append(step.number)
                self.records[r].decisions.append(decisions)

    def _row(self, r: int) -> int:
        """The row of the trace that is chosen."""
        if self.job.verdicts is not None:
            return sum(step.number <= self.job.verdicts[r].step for step in self.steps[r]) - 1
        if self.last:
            return max(k for k, refusal in enumerate(self.refused[r]) if not refusal)
        return self.best[r] or 0

    def _candidate(self, r: int, model: nn.Module) -> Candidate:
        row, given = self._row(r), self.models[r]
        if row == 0 and any(self.refused[r]):  # nothing was kept, and the network may be another one than the original
            model = copy.deepcopy(given.inner if isinstance(given, ChosenOutputs) else given)
        views = [model]
        if isinstance(given, ChosenOutputs):
            whole = given.around(model)
            views = [whole.view(at) for at in range(len(self.goals))]
        found = self.found[r][row]
        if self.network.reduced or self.data.classes:
            found = tuple(self._again(r, at, view, row) for at, view in enumerate(views))
        each = [self._labelled(r, at, row, view, own) for at, (view, own) in enumerate(zip(views, found, strict=True))]
        if not self.data.several:
            return each[0]
        named = {label.name: own for label, own in zip(self.data.labels, each, strict=True)}
        return joined(model, named, pd.DataFrame(self.joint[r]), row, (self._why(r, row),), self.cohorts[r].kind)

    def _again(self, r: int, at: int, view: nn.Module, row: int) -> Found:
        """The chosen step evaluated once more in full precision, on the network as it will be used."""
        label, limit = self.data.labels[at].only(r), None
        if self.limits is not None and (own := self.limits[at]) is not None:
            limit = own[[r]]
        scores = predict(view, self._part(r, at)).score[None]
        if self.data.classes:
            found = label.decided(decided_at(scores, np.full(1, HALF)), limit)
        elif row == 0 and label.threshold is not None:
            found = label.original(scores)
            if limit is not None:
                found = replace(found, spare=spare(label.rates(scores, found.threshold), limit))
        else:
            found = label.evaluate(scores, self.within, limit)
        return found.at(r, len(self.active))

    def _part(self, r: int, at: int) -> Cohort:
        """The rows of one label."""
        cohort = self.cohorts[r]
        return cohort.labelled(self.data.labels[at].name) if self.data.several else cohort

    def _labelled(self, r: int, at: int, row: int, model: nn.Module, found: Found) -> Candidate:
        """The candidate of one label of one network."""
        given, settled, step = self.goals[at], self.settled[r][at], self.steps[r][row]
        trace = frame([trace_row(one.number, own[at], r) for one, own in zip(self.steps[r], self.found[r], strict=True)])
        again = trace_row(step.number, found, r)
        trace.loc[row, list(again)] = list(again.values())
        trace = trace.astype({"step": int})
        own_goal = self.within is not None and (given.min_performance is not None or given.max_gap is not None)
        missing = lacking(found, settled, settled if self.within is None else given, r)
        met = not missing
        if self.job.verdicts is not None:
            verdict = self.job.verdicts[r]
            why, met = verdict.why[at], verdict.met[at] and (met or not self.network.reduced)
        elif self.data.several:
            why = (self._why(r, row), *missing)
        else:
            usable = trace.copy()
            usable.loc[self.refused[r], ["gap", "performance"]] = WORST
            why = self._single_why(row, usable, settled, missing)
        asked = given if own_goal else settled
        rule: Rule = Threshold(HALF, ARGMAX) if self.data.classes else plain_rule(self.method.name, trace, row, self._part(r, at), asked)
        frozen, tensors = self.network.frozen
        fixed = (Note("frozen_parameters", numbers={"frozen": frozen, "of": tensors}),) if frozen else ()
        cut = (Note("cut_short", self.method.name, {"steps": len(self.steps[r]) - 1}),) if self.cut else ()
        kept: Why = ()
        merits = [self.merits[r][k] for k in np.flatnonzero(self.refused[r])]
        if self.job.verdicts is None and merits and (self.last or self.best[r] is None or max(merits) > self.merits[r][row]):
            kept = (Note("constant"),) if row else (Note("original_kept"), Note("constant"))
            why = (*kept, *(why if row else ()))
        none = (Note("no_step", self.method.name, {"trials": self.trials}),) if len(self.steps[r]) == 1 and self.trials else ()
        notes, told = (*fixed, *step.notes, *kept, *none, *cut), asdict(self.job.settings)
        seed, pace = self.job.seeds[r], self.steps[r][-1].pace
        return Candidate(self.method.name, model, rule, trace, row, why, met, asked, seed, told, notes, pace=pace)

    def _single_why(self, row: int, trace: pd.DataFrame, settled: Goal, missing: Why) -> Why:
        if len(trace) == 1:
            return (Note("original"), *(select(trace, settled).why if missing else ()))
        if self.last:
            return (Note("last_step", numbers={"steps": row}),)
        why = select(trace.iloc[0 if self.within is None else 1 :], settled).why
        given = self.goals[0].min_performance if self.within is not None else None
        performance = float(trace["performance"].iloc[row])
        return why if given is None or performance >= given else (*why, too_low(settled.performance, performance, given))

    def _why(self, r: int, row: int) -> Note:
        if len(self.steps[r]) == 1:
            return Note("original")
        tried = self.merits[r][0 if self.within is None else 1 :]
        return selected_for_all(tried, self.merits[r][row], self.settled[r], self.data.classes, self.limits is not None)


def joined(
    model: nn.Module | Predictor | None, each: dict[str, Candidate], trace: pd.DataFrame, chosen: int, why: Why, kind: str
) -> Candidate:
    """The candidates of all labels as one: the network with all its outputs, and one rule per label."""
    first = next(iter(each.values()))
    rule = LabelRules({name: own.rule for name, own in each.items()}, kind)
    goal = JointGoal.of({name: own.goal for name, own in each.items()})
    met = all(own.met_in_sample for own in each.values())
    return replace(first, model=model, rule=rule, trace=trace, chosen=chosen, why=why, met_in_sample=met, goal=goal, labels=each)
