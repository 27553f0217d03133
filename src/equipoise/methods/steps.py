"""Methods with steps: every step is evaluated, the trace and a copy of the best state are kept, limits are applied, and a step is chosen.

A method yields the steps of one model (see `contract`); everything else is done here, once for all methods. A single label is the case of
length one.
"""

import copy
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import pandas as pd

from equipoise.data import UNKNOWN, BoolArray, Cohort, IntArray
from equipoise.errors import BadInput, EmptyCell
from equipoise.measures import ARGMAX_RULE, Rule
from equipoise.methods.candidate import Candidate, LabelCandidate
from equipoise.methods.choosing import (
    WORST,
    ChosenStep,
    Merit,
    choose_step,
    cross_fitted,
    is_constant,
    merit,
    missed_limits,
    newly_constant,
    plain_rule,
    select,
    too_low,
)
from equipoise.methods.contract import PART_TOO_SMALL, Kind, MethodRun, Rng, Step, Steps, is_adaptive
from equipoise.methods.evaluation import DECISION_CUT, RATE_NOISE, Data, Evaluation, LabelResult, decisions_at, trace_of
from equipoise.methods.goal import Note, Why
from equipoise.methods.rules import REMOVED_SHARES
from equipoise.methods.step_estimates import StepEstimates, correct_optimism

if TYPE_CHECKING:
    from torch import nn


# Shares of the remaining time for the runs on halves, then for all rows; the rest is for repeating.
TIME_FOR_HALVES, TIME_FOR_ALL_ROWS = 0.45, 0.5


@dataclass(frozen=True, eq=False)
class HalfSet:
    """A part of the rows to repair on, and the rows that are held out from it."""

    cohort: Cohort  # the rows to repair on, possibly repeated
    own: IntArray  # their positions in the whole set, each once
    held: IntArray  # the positions of the held-out rows
    elsewhere: Cohort | None = None  # the held-out rows, repeated to the same length; None if no rows are held out


class StepRecord(NamedTuple):
    """A step of the trace with the results of each label, its row in the trace of all labels, and its merit."""

    step: Step
    each: tuple[LabelResult, ...]
    joint: dict[str, Any]
    merit: Merit
    refused: bool  # for constant decisions, unlike the original's


def run_steps(run: MethodRun, half: HalfSet | None = None, until: ChosenStep | None = None) -> tuple[Candidate, list[BoolArray]]:
    """The candidate of a method with steps; on a half, with the decisions (rows, labels) of each step on all rows of the whole set.

    With `until`, the method runs up to that step, which is chosen.
    """
    search = StepSearch(run if half is None else replace(run, rows=half.cohort), half, until)
    search.run_to_end()
    return search.candidate(), search.decisions


class StepSearch:
    """The steps of a method, and the best of them so far."""

    def __init__(self, run: MethodRun, half: HalfSet | None, until: ChosenStep | None) -> None:
        from equipoise.models import under_repair

        self.run, self.method, self.half, self.until = run, run.method, half, until
        self.model, self.cohort = cast("nn.Module", run.model), cast(Cohort, run.rows)  # scores without a network have no steps
        self.goals, self.parts = list(run.in_sample.values()), list(self.cohort.by_label.values())
        self.data = Data.of(self.cohort, run.in_sample)  # raises an error if the set lacks rows that a measure needs
        self.within, self.last = run.method.within(self.goals, run.settings), run.method.last(run.settings)
        self.network = original = under_repair(self.model, self.cohort)
        self.elsewhere = None  # inputs to evaluate, if the network is not trained on the repair set
        if run.method.start is not None and run.train is not None:
            if (levels := self.cohort.attribute.levels) != (train_levels := run.train.attribute.levels):
                raise BadInput(f"{run.train.name!r} has the groups {train_levels}, {self.cohort.name!r} has {levels}")
            fresh = run.method.start(self.model, run.seed)
            self.network, self.elsewhere = under_repair(fresh, run.train), self.cohort.inputs
        self.past: list[StepRecord] = []
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

    def run_to_end(self) -> None:
        """Runs the method to its end, to the chosen step or to the deadline."""
        from equipoise.models import first_decides

        deadline, progress, steps = self.run.deadline, self.run.progress, self._steps()
        total, evaluation = 1, None
        while evaluation is None or self.active:  # started even without a gap, so that a method can reject its settings
            if evaluation is not None and deadline is not None and first_decides(time.monotonic() > deadline):
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
            run = self.run
            least = np.array([np.nan if goal.min_performance is None else goal.min_performance for goal in self.settled])
            train = None if run.train is None else Data.of(run.train, run.in_sample)
            data = replace(self.data, begun=self.start, train=train, images=len(self.cohort.inputs.shape) > 2, least=least)
            yield from self.method.run(self.network, data, self.goals[0], run.settings, Rng(run.seed))

    def _step(self, step: Step) -> Evaluation:
        """Evaluates one more step, and keeps the best state."""
        evaluation = step.seen
        if evaluation is None:
            scores = self.network.evaluate(self.elsewhere) if step.scores is None else step.scores
            evaluation = self.data.evaluate(scores, self.within)
        if step.trial:
            return evaluation
        improved = self._add(step, evaluation)
        if self.half is not None:  # its decisions on the rows of the half and on those held out
            own, held, elsewhere = self.half.own, self.half.held, self.half.elsewhere
            decisions = np.empty((len(own) + len(held), len(self.goals)), bool)
            decisions[own] = self.data.decide(evaluation.scores, evaluation)[: len(own)]
            if elsewhere is not None:
                decisions[held] = self.data.decide(self.network.evaluate(elsewhere.inputs), evaluation)[: len(held)]
            self.decisions.append(decisions)
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
        now = StepRecord(step, evaluation.each, joint, merit(evaluation.each, self.settled), self._constant(evaluation))
        self.past.append(now)
        if eligible and not now.refused and (self.best is None or now.merit > self.past[self.best].merit):
            self.best = len(self.past) - 1
            return True
        return False

    def _constant(self, evaluation: Evaluation) -> bool:
        """Whether the decisions on any label are constant, unlike the original's. Classes may be empty and are not checked."""
        if not self.run.refuse_constant or self.data.classes or self.constant_before:
            return False
        parts = zip(self.data.parts, evaluation.each, strict=True)
        return any(is_constant(decisions_at(evaluation.scores[rows], own.threshold), label.attribute.codes) for (rows, label), own in parts)

    def candidate(self) -> Candidate:
        """The candidate with the chosen step."""
        from equipoise.models import label_views, predict, whole_network

        row, model = self.best or 0, self.network.kept()
        if self.until is not None:
            row = sum(past.step.number <= self.until.step for past in self.past) - 1
        elif self.last:
            row = max(k for k, past in enumerate(self.past) if not past.refused)
        if row == 0 and any(past.refused for past in self.past):  # no state was kept, and the network may have changed since the original
            model = copy.deepcopy(whole_network(self.model))
        views = label_views(self.model, self.run.goals, model)
        each = {}
        for at, (name, view) in enumerate(views.items()):
            result = self.past[row].each[at]
            if self.network.reduced or self.data.classes:  # evaluated in full precision on the network that is delivered
                label, scores = self.data.labels[at], predict(view, self.parts[at]).score
                if self.data.classes:
                    result = label.decided(decisions_at(scores, DECISION_CUT))
                else:
                    result = label.evaluate(scores, self.within) if row or label.threshold is None else label.original(scores)
            each[name] = self._label_candidate(at, row, view, result)
        return Candidate(each, model, pd.DataFrame([past.joint for past in self.past]), row)

    def _label_candidate(self, at: int, row: int, model: "nn.Module | None", result: LabelResult) -> LabelCandidate:
        """The candidate of one label."""
        given, settled, step = self.goals[at], self.settled[at], self.past[row].step
        results = [result if k == row else past.each[at] for k, past in enumerate(self.past)]
        trace = trace_of(results, [past.step.number for past in self.past])
        missing = missed_limits(result, settled, settled if self.within is None else given)
        met, kept = not missing, tuple[Note, ...]()
        if self.until is not None:
            why, met = self.until.why[at], self.until.met[at] and (met or not self.network.reduced)
        else:
            why = self._why(row, trace, missing)
            merits = [past.merit for past in self.past if past.refused]
            if merits and (self.last or self.best is None or max(merits) > self.past[row].merit):  # it would be the best
                kept = (Note("constant"),) if row else (Note("original_kept"), Note("constant"))
                why = (*kept, *(why if row else ()))
        has_goal = given.min_performance is not None or given.max_gap is not None
        goal, name = given if self.within is not None and has_goal else settled, self.method.name
        threshold = trace["threshold"].iloc[row]
        rule: Rule = ARGMAX_RULE if self.data.classes else plain_rule(name, threshold, self.parts[at], goal, original=row == 0)
        steps, (frozen, tensors) = len(self.past) - 1, self.network.frozen
        notes = [Note("frozen_parameters", numbers={"frozen": frozen, "of": tensors})] if frozen else []
        notes += [*step.notes, *kept]
        if not steps and self.trials:
            notes.append(Note("no_step", name, {"trials": self.trials}))
        if self.cut_short:
            notes.append(Note("cut_short", name, {"steps": steps}))
        settings, pace = asdict(self.run.settings), self.past[-1].step.pace
        return LabelCandidate(name, model, rule, trace, row, why, met, goal, self.run.seed, settings, tuple(notes), pace=pace)

    def _why(self, row: int, trace: pd.DataFrame, missing: Why) -> Why:
        """The reasons for choosing a row for one label, or for all labels together, and the parts of the goal that it misses."""
        first = 0 if self.within is None else 1  # the original is no step of the constrained objective
        if self.cohort.several:
            if len(self.past) == 1:
                return (Note("original"), *missing)
            tiers = [past.merit[0] for past in self.past[first:]]
            limits = {"max_gap" if goal.min_performance is None else "min_performance" for goal in self.settled}
            numbers = {
                "qualified": tiers.count(2) if self.past[row].merit[0] == 2 else 0,
                "of": len(tiers),
                "by": "performance" if limits == {"max_gap"} else "gap",
                "performance": self.settled[0].performance,
                "asked": tuple(sorted(limits, reverse=True)),
                "keeps": any(goal.keep for goal in self.goals),
            }
            return (Note("selected_for_all", "class" if self.data.classes else "label", numbers), *missing)
        usable, (settled,) = trace.copy(), self.settled
        usable.loc[[past.refused for past in self.past], ["gap", "performance"]] = WORST
        if len(usable) == 1:
            return (Note("original"), *(select(usable, settled).why if missing else ()))
        if self.last:
            return (Note("last_step", numbers={"steps": row}),)
        why = select(usable.iloc[first:], settled).why
        minimum, performance = self.goals[0].min_performance if first else None, float(usable["performance"].iloc[row])
        return why if minimum is None or performance >= minimum else (*why, too_low(settled.performance, performance, minimum))


# Cross-fitted selection among the steps.


def run_cross_fitted_steps(run: MethodRun) -> Candidate:
    """The candidate of a method that yields steps, chosen by cross-fitting."""
    from equipoise.models import label_views, predict, whole_network

    goals = {name: goal.derived(selection=run.selection) for name, goal in run.in_sample.items()}
    model, whole, numbered = cast("nn.Module", run.model), cast(Cohort, run.rows).encoded(), is_adaptive(run.settings)
    halves, on_halves = _halves(whole, run.seed, repeat=not numbered), run.within(TIME_FOR_HALVES)
    try:
        runs = [run_steps(on_halves.within(1 / (len(halves) - k)), half) for k, half in enumerate(halves)]
    except EmptyCell as error:
        raise EmptyCell(*error.problems, PART_TOO_SMALL) from error
    everything = replace(run, rows=whole).within(TIME_FOR_ALL_ROWS)
    runs.append(run_steps(everything, HalfSet(whole, np.arange(len(whole)), np.empty(0, np.int64))))
    candidate = runs[-1][0]
    shares, rows = align([found.trace for found, _ in runs], numbered)
    parts, views = whole.by_label, label_views(model, goals)
    evidence, without = [], np.zeros(len(shares), bool)
    for at, (name, part) in enumerate(parts.items()):
        places = np.flatnonzero(whole.column(name) != UNKNOWN)
        scores, by_run = predict(views[name], part).score, []
        for (found, steps), taken in zip(runs, rows, strict=True):  # row 0 of a trace is the original at the run's threshold
            original = scores >= found.labels[name].trace["threshold"].iloc[0]
            by_run.append(np.stack([steps[row - 1][places, at] if row else original for row in taken]).astype(np.float64))
        first, second, decisions = by_run
        outside = np.isin(places, halves[0].held)  # the second half was tuned on these rows
        held, tuned = np.where(outside, first, second), np.where(outside, second, first)
        evidence.append(StepEstimates.of(correct_optimism(decisions, held, tuned, 2, shares, grows=True), part, goals[name], held))
        if not whole.kind.argmax:  # a class may be assigned to no row
            without |= newly_constant(decisions, part.attribute.codes)
    numbers = candidate.trace["step"].tolist()
    originals = [float(own.trace["performance"].iloc[0]) for own in candidate.labels.values()]
    chosen = choose_step(evidence, [numbers[row] for row in rows[-1]], seed=run.seed, without=without, originals=originals)
    if chosen.at:  # run again up to the chosen step, whose network was not kept; no longer than the run before it, so without a deadline
        last, again, row = run_steps(replace(everything, deadline=None), until=chosen)[0], dict[str, LabelCandidate](), 0
        for name, own in candidate.labels.items():  # the network of the last run, with the trace of all steps
            trace, final = own.trace.copy(), last.labels[name]
            reached = final.trace.iloc[final.chosen]
            row = int(np.abs(trace["step"] - reached["step"]).argmin())  # rounding on a GPU can move a run past the number of a step
            trace.loc[trace.index[row], final.trace.columns] = reached.to_numpy()
            cut = tuple(note for note in own.notes if note.kind == "cut_short")  # the last run has no deadline
            again[name] = replace(final, trace=trace, chosen=row, notes=(*final.notes, *cut))
        candidate = replace(last, labels=again, trace=candidate.trace, chosen=row)
    each = {
        name: cross_fitted(own, evidence[at], chosen, at, rows[-1], parts[name], run)
        for at, (name, own) in enumerate(candidate.labels.items())
    }
    if chosen.at and candidate.chosen:
        return replace(candidate, labels=each)
    network = copy.deepcopy(whole_network(model))
    views = label_views(model, each, network)
    for (name, own), goal in zip(each.items(), chosen.goals, strict=True):
        threshold = own.trace["threshold"].iloc[0]
        rule = own.rule if whole.kind.argmax else plain_rule(own.method, threshold, parts[name], goal, original=True)
        each[name] = replace(own, rule=rule, model=views[name], chosen=0)
    return replace(candidate, labels=each, model=network, chosen=0)


def _halves(cohort: Cohort, seed: int, repeat: bool = True) -> tuple[HalfSet, HalfSet]:
    """Two halves of a cohort, stratified and split by patient; for each half, the other one is held out.

    With `repeat`, the rows of a half are repeated to the length of the whole set, so that an epoch has the same number of mini-batches;
    counts grow with the rows, so the weights of gaps and losses do not change. A method that controls its own steps needs no repetition;
    its halves are repeated to the length of the longer one.
    """
    numbered = replace(cohort, ids=np.arange(len(cohort)).astype(object))
    first, second = (part.ids.astype(np.int64) for part in numbered.hold_out(0.5, seed=seed))
    longest = max(len(first), len(second))
    length = len(cohort) if repeat else longest

    def half(own: IntArray, held: IntArray, number: int) -> HalfSet:
        return HalfSet(
            cohort.take(np.resize(own, length), f"{cohort.name}/half {number}"), own, held, cohort.take(np.resize(held, longest))
        )

    return half(first, second, 1), half(second, first, 2)


def rungs(trace: pd.DataFrame) -> list[int]:
    """The rows of a trace to choose among: for each share of the original |gap|, the best performing row that removes at least this share.

    The first is the original, the last has the smallest |gap| of all; shares that no step removes are left out.

    >>> rungs(pd.DataFrame({"gap": [-0.2, -0.1, 0.09, -0.01], "performance": [0.8, 0.8, 0.7, 0.75]}))[::8]
    [0, 1, 3]
    """
    size, performance = trace["gap"].abs().fillna(np.inf).to_numpy()[1:], trace["performance"].to_numpy()[1:]
    if not len(size):
        return [0]
    limits = [(1 - share) * abs(float(trace["gap"].iloc[0])) for share in REMOVED_SHARES]
    best = [
        int(np.where(size <= limit + RATE_NOISE, performance, -np.inf).argmax()) for limit in limits if (size <= limit + RATE_NOISE).any()
    ]
    return [0, *(1 + row for row in best), 1 + int(np.lexsort((-performance, size))[0])]


def align(traces: Sequence[pd.DataFrame], numbered: bool) -> tuple[list[int], list[list[int]]]:
    """The shares to choose among, which are those of the last trace (the fit to all rows), and for each trace the rows at these shares.

    If a method controls its own steps, they are numbered by the share that they remove; otherwise `rungs` are used. If a run does not reach
    a share, its last step stands for it.
    """
    if numbered:
        numbers = [trace["step"].to_numpy() for trace in traces]
        shares = numbers[-1].tolist()
        return shares, [[int(np.flatnonzero(own <= share)[-1]) for share in shares] for own in numbers]
    grids = [rungs(trace) for trace in traces]
    whole, last = grids[-1], len(grids[-1]) - 1
    shares = [k for k, row in enumerate(whole) if k == 0 or row != whole[k - 1]]  # the smallest share of a row that stands for several
    return shares, [[own[-1] if k == last else own[min(k, len(own) - 1)] for k in shares] for own in grids]
