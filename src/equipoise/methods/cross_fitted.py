"""Cross-fitted selection: a step is chosen by the decisions on rows that it was not fitted to, or the original is kept.

The paper's rule takes the smallest |gap| of hundreds of steps on the rows that they were fitted to, so that the winner is worse on new
patients than it seemed. Here a method is also run on parts of the repair set, split by patient: rules and probes leave out one of five
parts in turn, fine-tuning one of two halves. Steps are compared on a grid that is comparable between sets of rows: the share of the
original gap that is removed on the rows of the fit (`rungs`). Every row then has decisions by fits that include it and by fits that do
not, at the same share. Their difference is the optimism of the fit. It is inversely proportional to the number of rows, and a fit that
leaves out one part has 1 - 1/K of them, so the corrected decisions of a step are

    f = f(all rows) + (1 - 1/K) (f(not fitted to the row) - f(fitted to it))

Gaps, rates and balanced accuracy are affine in f, so their corrected values and standard errors are those of this f. This is the optimism
correction of Efron and Harrell with cross-validation in place of the bootstrap. The correction of a single step is mostly noise (thresholds
that jump from part to part), which with 200 rows hid losses of 0.08 of balanced accuracy. It is therefore smoothed over the steps: for a
rule of a few thresholds, which is equally optimistic at every share, by the mean over all steps; for probes and networks, whose optimism
grows with the share, by a line. The decisions that were not fitted to their row are kept as `HeldOut`; they determine the outcome without
a test set.

The choice among the steps is in `choosing`.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
import pandas as pd
from torch import nn

from equipoise.data import UNKNOWN, BoolArray, Cohort, IntArray, Rows, Scores, assign_folds, generator, hold_out
from equipoise.errors import EmptyCell
from equipoise.measures import FloatArray
from equipoise.methods.candidate import Candidate, HeldOut, LabelCandidate
from equipoise.methods.choosing import Verdict, choose_step
from equipoise.methods.contract import Fit, FitStep, Kind, Rng, adaptive, cross_fitting_parts
from equipoise.methods.driver import Half, Job, Run, run
from equipoise.methods.evaluation import Data
from equipoise.methods.evidence import Evidence
from equipoise.methods.frontier import SHARES, step_decisions
from equipoise.methods.goal import Goal, Note
from equipoise.methods.kept_rates import NOISE
from equipoise.methods.selection import plain_rule, refused
from equipoise.models import ReadOnce, check, label_views, outputs_like, predict, whole_network

HALVES, ALL_ROWS = (
    0.45,
    0.5,
)  # shares of the remaining time for the runs on halves, and then for the run on all rows; the rest is for repeating


def run_cross_fitted(job: Job, selection: str) -> Candidate:
    """The candidate of a method by cross-fitted selection: it is run on parts of the rows and on all rows."""
    goals = {name: goal.derived(selection=selection) for name, goal in job.goals.items()}
    try:
        if job.method.kind in (Kind.RULE, Kind.PROBES) and not job.rows.several:
            return Candidate.of(_fitted(job, *goals.values()))
        return _stepped(job, goals)
    except PartTooSmall as error:
        advice = "a part of the repair set is too small for cross-fitted selection: use more data, merge groups, or selection='paper'"
        raise EmptyCell(*error.problems, advice) from error


class PartTooSmall(EmptyCell):
    """A part of the rows lacks rows that the measure needs, although the whole set has them."""


@dataclass(frozen=True, eq=False)
class LabelEstimates:
    """One label: its name and rows, the corrected decisions of all steps, and the decisions by fits without the row."""

    name: str
    part: Rows
    evidence: Evidence
    held: FloatArray  # (steps, n)


@dataclass(frozen=True, eq=False)
class Estimates:
    """The steps that can be chosen, as rows of its trace, and their cross-fitted estimates for each label."""

    labels: tuple[LabelEstimates, ...]
    rows: tuple[int, ...]  # the first is 0, the original
    refused: BoolArray  # steps with constant decisions


def corrected(whole: FloatArray, held: FloatArray, tuned: FloatArray, parts: int, at: Sequence[float], grows: bool) -> FloatArray:
    """The decisions (steps, n) of a fit to all rows, corrected for optimism by those of fits to parts of the rows.

    The first step is the original. If no fit moves its decisions, as with a threshold in use, it was not fitted: it needs no correction,
    and is no evidence of the optimism of the others.
    """
    optimism = held - tuned
    fitted = slice(0 if len(optimism) < 2 or optimism[0].any() else 1, None)
    decisions = whole.copy()
    decisions[fitted] += (1 - 1 / parts) * smoothed(optimism[fitted], at[fitted], grows)
    return decisions


def _originals(traces: Sequence[pd.DataFrame]) -> list[float]:
    """The performance of the original on the rows of each label."""
    return [float(trace["performance"].iloc[0]) for trace in traces]


def smoothed(optimism: FloatArray, at: Sequence[float], grows: bool) -> FloatArray:
    """The optimism (steps, n), smoothed over the steps: its mean or, if it grows with the steps, a line through them at these positions.

    >>> smoothed(np.array([[0.0], [3.0], [3.0]]), [0, 1, 2], grows=False)[:, 0].tolist()
    [2.0, 2.0, 2.0]
    >>> np.round(smoothed(np.array([[0.0], [3.0], [3.0]]), [0, 1, 2], grows=True)[:, 0], 6).tolist()
    [0.5, 2.0, 3.5]
    """
    if not grows or len(optimism) < 2:
        return np.broadcast_to(optimism.mean(axis=0), optimism.shape)
    positions = np.asarray(at, dtype=np.float64)
    basis = np.stack([np.ones(len(positions)), positions], axis=1)
    line: FloatArray = basis @ (np.linalg.pinv(basis) @ optimism)
    return line


# Methods that fit a rule, or probes: every row of their trace can be delivered.


def _fitted(job: Job, goal: Goal) -> LabelCandidate:
    """The candidate of a method that fits a rule or probes."""
    Data.of(job.rows, job.goals)  # raises an error if the set lacks rows that the measure needs
    job = replace(job, rows=job.rows.encoded())  # once, so that a subset has the same encoding
    model, whole = job.model, job.rows
    if job.method.kind == Kind.PROBES and model is not None:
        check(model, job.cohort, changed=False)
    network = None if model is None else ReadOnce(model, job.cohort.inputs)
    scores = predict(model, whole, raw=None if network is None else network.raw())
    everyone = np.arange(len(whole))
    fit = _fit(job, whole, scores, everyone, network)
    steps, rows = _deliverable(job, fit, scores)
    parts = cross_fitting_parts(job.method, len(whole))
    fold = assign_folds(whole, parts, generator(job.seed, "cross-fitted selection"))
    held, tuned = (np.zeros((len(steps), len(whole))) for _ in range(2))
    for k in range(parts):
        outside = fold == k
        try:
            part, _ = _deliverable(job, _fit(job, whole, scores, everyone[~outside], network), scores)
        except EmptyCell as error:
            raise PartTooSmall(*error.problems) from error
        reached = np.minimum(np.arange(len(steps)), len(part) - 1)  # the last step of a fit stands for further ones
        decisions = _decisions(job, part, whole, scores, network)[reached]
        held[:, outside] = decisions[:, outside]
        tuned[:, ~outside] += decisions[:, ~outside] / (parts - 1)
    decisions = _decisions(job, steps, whole, scores, network)
    grows = job.method.kind == Kind.PROBES
    evidence = Evidence.of(corrected(decisions, held, tuned, parts, range(len(steps)), grows), whole, goal)
    estimates = Estimates((LabelEstimates("", whole, evidence, held),), rows, refused(decisions, whole.attribute.codes))
    verdict = choose_step([evidence], range(len(rows)), [goal], job.method.least_gap, estimates.refused, [held], _originals([fit.trace]))
    at, step = verdict.at, steps[verdict.at]
    fit_notes = fit.notes if step.rule.needs_group == job.method.needs_group else ()  # not those of a rule that was declined
    candidate = LabelCandidate(
        method=job.method.name,
        model=copy.deepcopy(model) if step.model is None else step.model,
        rule=step.rule,
        trace=fit.trace,
        chosen=rows[at],
        why=verdict.why[0],
        met_in_sample=verdict.met[0],
        goal=verdict.goals[0],
        seed=job.seed,
        settings=asdict(job.settings),
        notes=(*step.notes, *fit_notes),
    )
    if job.progress:
        job.progress(1, 1)
    return _labelled(candidate, estimates, verdict, 0, len(whole))


def _fit(job: Job, whole: Rows, scores: Scores, rows: IntArray, network: ReadOnce | None) -> Fit:
    """The fit of the method to some of the rows; `network` holds the outputs of the network on all rows."""
    function, (goal,) = job.method.frontier or job.method.run, job.goals.values()
    subset = whole if len(rows) == len(whole) else whole.take(rows)
    fit: Fit
    if job.method.kind == Kind.RULE:
        fit = function(scores if subset is whole else scores.take(rows), goal, job.settings)
        return fit
    outputs = None if network is None else network.take(rows)
    fit = function(job.model, subset, goal, job.settings, Rng(job.seed), job.train, outputs)
    return fit


def _deliverable(job: Job, fit: Fit, scores: Scores) -> tuple[tuple[FitStep, ...], tuple[int, ...]]:
    """The steps of a fit that can be chosen, and their rows of its trace; without steps, the original and the chosen row."""
    if fit.steps:
        return fit.steps, tuple(range(len(fit.steps)))
    original = FitStep(plain_rule(job.method.name, fit.trace, 0, scores, fit.goal))
    return (original, FitStep(fit.rule, fit.model)), (0, fit.chosen)


def _decisions(job: Job, steps: Sequence[FitStep], whole: Rows, scores: Scores, network: ReadOnce | None) -> FloatArray:
    """The decisions of these steps on all rows (steps, n)."""
    if all(step.model is None for step in steps):
        return np.stack([step.rule.decide(scores) for step in steps])
    return step_decisions(steps, job.model, whole, network)


# Methods that change the network step by step.


def _stepped(job: Job, goals: Mapping[str, Goal]) -> Candidate:
    """The candidate of a method that yields steps."""
    model, whole = job.network, job.cohort.encoded()
    Data.of(whole, job.goals)  # raises an error if the set lacks rows that the measure needs
    halves = _halves(whole, job.seed, repeat=not adaptive(job.settings))
    on_halves = job.within(HALVES)
    try:
        half_runs = [run(_on_half(on_halves.within(1 / (len(halves) - k)), half)) for k, half in enumerate(halves)]
    except EmptyCell as error:
        raise PartTooSmall(*error.problems) from error
    everything = _on_half(job.within(ALL_ROWS), Half(whole, np.arange(len(whole)), np.empty(0, np.int64)))
    whole_run = run(everything)
    own = _estimates(model, whole, halves, half_runs, whole_run, goals, adaptive(job.settings))
    numbers = [0, *whole_run.record.steps]  # of the rows of the trace
    evidence, held = [label.evidence for label in own.labels], [label.held for label in own.labels]
    candidate, steps = whole_run.candidate, [numbers[row] for row in own.rows]
    originals = _originals([each.trace for each in candidate.labels.values()])
    verdict = choose_step(evidence, steps, list(goals.values()), job.method.least_gap, own.refused, held, originals)
    if verdict.at:  # run again up to the chosen step, whose network was not kept; no longer than the run before it, so without a deadline
        candidate = _at_step(candidate, run(replace(everything, half=None, verdict=verdict, deadline=None)).candidate)
    return _finished(candidate, model, job.cohort, own, verdict)


def _on_half(job: Job, half: Half) -> Job:
    """The job on the rows of a half."""
    return replace(job, rows=half.cohort, half=half)


def _halves(cohort: Cohort, seed: int, repeat: bool = True) -> tuple[Half, Half]:
    """Two halves of a cohort, stratified and split by patient; for each half, the other one is held out.

    With `repeat`, the rows of a half are repeated to the length of the whole set, so that an epoch has the same number of mini-batches;
    counts grow with the rows, so the weights of gaps and losses do not change. A method that controls its own steps needs no repetition;
    its halves are repeated to the length of the longer one.
    """
    numbered = replace(cohort, ids=np.arange(len(cohort)).astype(object))
    first, second = (part.ids.astype(np.int64) for part in hold_out(numbered, 0.5, seed=seed))
    longest = max(len(first), len(second))
    length = len(cohort) if repeat else longest

    def half(own: IntArray, held: IntArray, number: int) -> Half:
        return Half(cohort.take(np.resize(own, length), f"{cohort.name}/half {number}"), own, held, cohort.take(np.resize(held, longest)))

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
    limits = [(1 - share) * abs(float(trace["gap"].iloc[0])) for share in SHARES]
    best = [int(np.where(size <= limit + NOISE, performance, -np.inf).argmax()) for limit in limits if (size <= limit + NOISE).any()]
    return [0, *(1 + row for row in best), 1 + int(np.lexsort((-performance, size))[0])]


def aligned(traces: Sequence[pd.DataFrame], numbered: bool) -> tuple[list[int], list[list[int]]]:
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


def _estimates(
    model: nn.Module,
    cohort: Cohort,
    halves: Sequence[Half],
    half_runs: Sequence[Run],
    whole: Run,
    goals: Mapping[str, Goal],
    numbered: bool,
) -> Estimates:
    """The cross-fitted estimates of the steps on the whole set that can be chosen."""
    runs = (*half_runs, whole)
    shares, rows = aligned([run.candidate.trace for run in runs], numbered)
    labels, constant = [], []
    for at, ((name, part), view) in enumerate(zip(cohort.by_label.items(), label_views(model, goals).values(), strict=True)):
        places, goal = np.flatnonzero(cohort.column(name) != UNKNOWN), goals[name]
        scores = predict(view, part).score
        decisions = [_step_decisions(scores, places, at, name, run, own) for run, own in zip(runs, rows, strict=True)]
        held, tuned = np.empty_like(decisions[2]), np.empty_like(decisions[2])
        for k, half in enumerate(halves):
            outside = np.isin(places, half.held)  # the other half was tuned on these rows
            held[:, outside], tuned[:, outside] = decisions[k][:, outside], decisions[1 - k][:, outside]
        evidence = Evidence.of(corrected(decisions[2], held, tuned, 2, shares, grows=True), part, goal)
        labels.append(LabelEstimates(name, part, evidence, held))
        constant.append(refused(decisions[2], part.attribute.codes) & (not cohort.kind.argmax))  # a class may be assigned to no row
    return Estimates(tuple(labels), tuple(rows[-1]), np.logical_or.reduce(constant))


def _step_decisions(scores: FloatArray, places: IntArray, at: int, name: str, run: Run, rows: Sequence[int]) -> FloatArray:
    """The decisions (rows, n) of these rows of a run's trace on all rows of a label; row 0 is the original at the run's threshold."""
    record = run.record
    original = scores >= run.candidate.labels[name].trace["threshold"].iloc[0]
    return np.stack([record.decisions[row - 1][places, at] if row else original for row in rows]).astype(np.float64)


# The delivered candidate.


def _at_step(whole: Candidate, last: Candidate) -> Candidate:
    """The network of the chosen step from the last run, with the trace of all steps."""
    each = {name: _label_at_step(own, last.labels[name]) for name, own in whole.labels.items()}
    return replace(last, trace=whole.trace, chosen=next(iter(each.values())).chosen).with_labels(each)


def _label_at_step(whole: LabelCandidate, last: LabelCandidate) -> LabelCandidate:
    """The chosen step of one label from the last run, with the trace of all steps."""
    trace = whole.trace.copy()
    chosen = last.trace.iloc[last.chosen]
    row = int(np.abs(trace["step"] - chosen["step"]).argmin())  # rounding on a GPU can move a run past the number of a step
    trace.loc[trace.index[row], last.trace.columns] = chosen.to_numpy()
    cut = tuple(note for note in whole.notes if note.kind == "cut_short")  # the last run has no deadline
    return replace(last, trace=trace, chosen=row, notes=(*last.notes, *cut))


def _finished(candidate: Candidate, model: nn.Module, cohort: Cohort, estimates: Estimates, verdict: Verdict) -> Candidate:
    """The candidate with the cross-fitted estimates of its steps, or the original if that was kept."""
    each = {name: _labelled(own, estimates, verdict, at, len(cohort)) for at, (name, own) in enumerate(candidate.labels.items())}
    if verdict.at and candidate.chosen:
        return candidate.with_labels(each)
    network = copy.deepcopy(whole_network(model))
    views = label_views(outputs_like(model, network), each)
    for at, (name, own) in enumerate(each.items()):
        restored = own if cohort.kind.argmax else _with_original_rule(own, estimates, verdict, at)
        each[name] = replace(restored, model=views[name], chosen=0)
    return replace(candidate, model=network, chosen=0).with_labels(each)


def _labelled(candidate: LabelCandidate, estimates: Estimates, verdict: Verdict, at: int, rows: int) -> LabelCandidate:
    """One label's candidate with its corrected trace and its held-out decisions."""
    label, place = estimates.labels[at], verdict.at
    evidence, trace = label.evidence, candidate.trace.copy()
    columns = {
        "gap_honest": evidence.gap,
        "gap_se": evidence.gap_se(),
        "performance_honest": evidence.performance,
        "performance_se": evidence.performance_se(),
    }
    places = trace.index[[*estimates.rows, estimates.rows[place]]]  # if a row stands for several shares, the chosen one is written last
    for name, values in columns.items():
        trace.loc[places, name] = [*values, values[place]]
    return replace(
        candidate,
        trace=trace,
        why=verdict.why[at],
        met_in_sample=verdict.met[at],
        goal=verdict.goals[at].derived(selection=evidence.goal.selection),
        notes=(*candidate.notes, Note("cross_fitted", numbers={"rows": rows})),
        held_out=HeldOut(label.held[0], label.held[place]),
    )


def _with_original_rule(candidate: LabelCandidate, estimates: Estimates, verdict: Verdict, at: int) -> LabelCandidate:
    """The candidate with the rule of the original, step 0; the caller sets the original network."""
    return replace(candidate, rule=plain_rule(candidate.method, candidate.trace, 0, estimates.labels[at].part, verdict.goals[at]), chosen=0)
