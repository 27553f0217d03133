"""Cross-fitted selection: a step is chosen by what its decisions do on rows that it was not fitted to; or the original stays.

The paper's rule takes the smallest |gap| of hundreds of steps on the very rows that they were tuned on, so that the winner is worse on new
patients than it seemed. Here a method is run on parts of the repair set as well, split by patient: rules and probes leave out one of five
parts in turn, fine-tuning one of two halves. Steps are compared on a grid that means the same on any rows: the share of the original gap
that is removed on the rows of the fit (`rungs`). Of every row there are then decisions by fits that have not seen it and by fits that have,
at the same share. What is lost between the two is the optimism of fitting. It falls as one over the number of rows, and a part has
1 - 1/K of them, so that the corrected decisions of a step are

    f = f(all rows) + (1 - 1/K) (f(not fitted to the row) - f(fitted to it))

Gaps, rates and balanced accuracy are affine in f: the corrected ones are those of this f, and so are their standard errors. It is the
optimism correction of Efron and Harrell with cross-validation in place of the bootstrap. The correction of a single step is mostly noise
(thresholds that jump from part to part), which with 200 rows hid losses of 0.08 of balanced accuracy. So it is smoothed over the steps: a
rule of a few thresholds is as optimistic at every share, and the mean over all steps is taken; that of probes and networks grows with the
share, and a line is. The decisions not fitted to their row are kept as `HeldOut`, by which the outcome is judged without a test set.

How a step is chosen by them is in `cross_fitted_choice`.
"""

import copy
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
import pandas as pd
from torch import nn

from equipoise.data import UNKNOWN, BoolArray, Cohort, IntArray, Rows, Scores, assign_folds, generator, hold_out
from equipoise.errors import EmptyCell
from equipoise.measures import FloatArray
from equipoise.methods.candidate import Candidate, HeldOut
from equipoise.methods.constant import refused
from equipoise.methods.contract import Fit, FitStep, Kind, Rng, adaptive, parts_of
from equipoise.methods.cross_fitted_choice import choose
from equipoise.methods.driver import joined, run
from equipoise.methods.evaluation import Data
from equipoise.methods.evidence import Evidence
from equipoise.methods.frontier import SHARES, step_decisions
from equipoise.methods.goal import NOISE, Goal, Note
from equipoise.methods.job import Half, Job, Run, Verdict
from equipoise.methods.selection import plain_rule
from equipoise.models import ChosenOutputs, ReadOnce, check, predict

HALVES, ALL_ROWS = 0.45, 0.5  # of the time that is left: for the runs on halves, and then for that on all rows; the rest is to run it again


def run_cross_fitted(job: Job, selection: str) -> list[Candidate]:
    """The candidates of a method by cross-fitted selection: it is run on parts of the rows and on all of them."""
    goals = [replace(goal, selection=selection) for goal in job.goals]
    try:
        if job.method.kind in (Kind.RULE, Kind.PROBES) and job.cohorts[0].targets is None:
            return [_fitted(job.take([k]), goals[0]) for k in range(len(job.models))]
        return _stepped(job, goals)
    except PartTooSmall as error:
        advice = "a part of the repair set is too small for cross-fitted selection: use more data, merge groups, or selection='paper'"
        raise EmptyCell(*error.problems, advice) from error


class PartTooSmall(EmptyCell):
    """A part of the rows lacks what the measure needs, though all of them have it."""


@dataclass(frozen=True, eq=False)
class SeenLabel:
    """One label: its name, its rows, what is to be believed of all steps on them, and decisions by fits that have not seen the row."""

    name: str
    part: Rows
    evidence: Evidence
    held: FloatArray  # (steps, n)


@dataclass(frozen=True, eq=False)
class Seen:
    """The steps of one network that can be chosen, as rows of its trace, and what is to be believed of them for each label."""

    labels: tuple[SeenLabel, ...]
    rows: tuple[int, ...]  # the first is 0, the original
    refused: BoolArray  # steps that decide the same for everybody


def believed(whole: FloatArray, held: FloatArray, tuned: FloatArray, parts: int, at: Sequence[float], grows: bool) -> FloatArray:
    """What to believe of the decisions (steps, n) of a fit to all rows, from those of fits to parts of them."""
    corrected: FloatArray = whole + (1 - 1 / parts) * smoothed(held - tuned, at, grows)
    return corrected


def smoothed(lost: FloatArray, at: Sequence[float], grows: bool) -> FloatArray:
    """The mean over all steps of what is lost (steps, n), or where it grows with the steps, a line through them at these places.

    >>> smoothed(np.array([[0.0], [3.0], [3.0]]), [0, 1, 2], grows=False)[:, 0].tolist()
    [2.0, 2.0, 2.0]
    >>> np.round(smoothed(np.array([[0.0], [3.0], [3.0]]), [0, 1, 2], grows=True)[:, 0], 6).tolist()
    [0.5, 2.0, 3.5]
    """
    if not grows or len(lost) < 2:
        return np.broadcast_to(lost.mean(axis=0), lost.shape)
    places = np.asarray(at, dtype=np.float64)
    basis = np.stack([np.ones(len(places)), places], axis=1)
    line: FloatArray = basis @ (np.linalg.pinv(basis) @ lost)
    return line


# Methods that fit a rule, or probes: every row of their trace can be delivered.


def _fitted(job: Job, goal: Goal) -> Candidate:
    (model,), (cohort,), (seed,) = job.models, job.cohorts, job.seeds
    Data.of([cohort], [goal])  # raises where the set lacks what the measure needs
    whole = encoded(cohort)
    if job.method.kind == Kind.PROBES and model is not None and isinstance(cohort, Cohort):
        check(model, cohort, changed=False)
    network = None if model is None or not isinstance(whole, Cohort) else ReadOnce(model, whole.inputs)
    scores = predict(model, whole, raw=None if network is None else network.raw())
    everyone = np.arange(len(whole))
    fit = _fit(job, whole, scores, everyone, network)
    steps, rows = _deliverable(job, fit, scores)
    parts = parts_of(job.method, len(whole))
    fold = assign_folds(whole, parts, generator(seed, "cross-fitted selection"))
    held, tuned = (np.zeros((len(steps), len(whole))) for _ in range(2))
    for k in range(parts):
        outside = fold == k
        try:
            part, _ = _deliverable(job, _fit(job, whole, scores, everyone[~outside], network), scores)
        except EmptyCell as error:
            raise PartTooSmall(*error.problems) from error
        made = _decisions(job, part, whole, scores, network)[np.minimum(np.arange(len(steps)), len(part) - 1)]  # or as far as it gets
        held[:, outside] = made[:, outside]
        tuned[:, ~outside] += made[:, ~outside] / (parts - 1)
    made = _decisions(job, steps, whole, scores, network)
    grows = job.method.kind == Kind.PROBES  # as coefficients are fitted to the groups; a few thresholds always have as much room
    evidence = Evidence.of(believed(made, held, tuned, parts, range(len(steps)), grows), whole, goal)
    seen = Seen((SeenLabel("", cohort, evidence, held),), rows, refused(made, whole.attribute.codes))
    verdict, at = choose([evidence], range(len(rows)), [goal], job.method.least_gap, seen.refused, [held])
    step = steps[at]
    about = fit.notes if step.rule.needs_group == job.method.needs_group else ()  # not those of a rule that was declined
    candidate = Candidate(
        *(job.method.name, copy.deepcopy(model) if step.model is None else step.model, step.rule, fit.trace, rows[at]),
        *(verdict.why[0], verdict.met[0], verdict.goals[0], seed, asdict(job.settings)),
        *((*step.notes, *about),),
    )
    if job.progress:
        job.progress(1, 1)
    return _labelled(candidate, seen, verdict, 0, len(cohort), at)


def encoded(rows: Rows) -> Rows:
    """The rows with their columns encoded, so that taking some of them cannot change the encoding."""
    if isinstance(rows, Scores):
        return rows if rows.features is None else rows.encoded_by(rows.features.fitted())
    return replace(rows, source=rows.inputs)


def _fit(job: Job, whole: Rows, scores: Scores, rows: IntArray, network: ReadOnce | None) -> Fit:
    """What the method proposes on some of the rows; `network` is the network on all of them."""
    propose = job.method.frontier or job.method.run
    some = whole if len(rows) == len(whole) else whole.take(rows)
    if job.method.kind == Kind.RULE:
        fit: Fit = propose(some if isinstance(some, Scores) else Scores.of(some, scores.score[rows]), job.goals[0], job.settings)
        return fit
    train = None if job.trains is None else job.trains[0]
    read = None if network is None else network.take(rows)
    probed: Fit = propose(model_of(job), some, job.goals[0], job.settings, Rng((job.seeds[0],)), train, read)
    return probed


def model_of(job: Job) -> nn.Module | None:
    """The only network of a job; None of scores alone."""
    (model,) = job.models
    return model


def _deliverable(job: Job, fit: Fit, scores: Scores) -> tuple[tuple[FitStep, ...], tuple[int, ...]]:
    """The steps of a fit that can be chosen and their rows of its trace; of one that proposes none, the original and what it chose."""
    if fit.steps:
        return fit.steps, tuple(range(len(fit.steps)))
    original = FitStep(plain_rule(job.method.name, fit.trace, 0, scores, fit.goal))
    return (original, FitStep(fit.rule, fit.model)), (0, fit.chosen)


def _decisions(job: Job, steps: Sequence[FitStep], whole: Rows, scores: Scores, network: ReadOnce | None) -> FloatArray:
    """How these steps decide on all rows (steps, n)."""
    if all(step.model is None for step in steps):
        return np.stack([step.rule.decide(scores) for step in steps])
    return step_decisions(steps, model_of(job), whole, network)


# Methods that change the network step by step.


def _stepped(job: Job, goals: Sequence[Goal]) -> list[Candidate]:
    models, whole = job.networks, [replace(cohort, source=cohort.inputs) for cohort in job.inputs]  # encoded, as in `encoded`
    for cohort in whole:
        Data.of([cohort], job.goals)  # raises where the set lacks what the measure needs
    pairs, count = _halves(whole, job.seeds, repeat=not adaptive(job.settings)), range(len(job.models))
    try:
        halves = run(_on_halves(job.within(HALVES), [k for k in count for _ in (0, 1)], [half for pair in pairs for half in pair]))
    except EmptyCell as error:
        raise PartTooSmall(*error.problems) from error
    everything = [Half(cohort, np.arange(len(cohort)), np.empty(0, np.int64)) for cohort in whole]
    found = run(_on_halves(job.within(ALL_ROWS), count, everything))
    seen = [_seen(models[k], whole[k], pairs[k], halves[2 * k : 2 * k + 2], found[k], goals, adaptive(job.settings)) for k in count]
    numbers = [[0, *found[k].record.steps] for k in count]  # of the rows of the trace
    choices = [
        choose(
            [label.evidence for label in own.labels],
            [numbers[k][row] for row in own.rows],
            goals,
            job.method.least_gap,
            own.refused,
            [label.held for label in own.labels],
        )
        for k, own in enumerate(seen)
    ]
    again = [k for k in count if choices[k][1]]  # the network of the chosen step is needed once more
    chosen = {k: found[k].candidate for k in count}
    if again:
        kept = run(
            replace(
                _on_halves(job, again, [everything[k] for k in again]),
                halves=None,
                verdicts=[choices[k][0] for k in again],
                deadline=None,  # it takes no longer than the run before it
            )
        )
        chosen |= {k: _at_step(found[k].candidate, one.candidate) for k, one in zip(again, kept, strict=True)}
    return [_finished(chosen[k], models[k], job.inputs[k], seen[k], *choices[k]) for k in count]


def _on_halves(job: Job, networks: Sequence[int], halves: Sequence[Half]) -> Job:
    """The job of some networks, each on the rows of a half."""
    return replace(job.take(networks), cohorts=[half.cohort for half in halves], halves=halves)


def _halves(cohorts: Sequence[Cohort], seeds: Sequence[int], repeat: bool = True) -> list[tuple[Half, Half]]:
    """Two halves of each cohort, by patient and stratified: each is tuned on one, and the other is held out.

    A half repeats its rows until it is as long as the whole set, so that with a fixed number of epochs it is tuned for as many
    mini-batches; counts double with the rows, so that the weights of gaps and losses stay what they are. A method that controls its own
    steps needs no repetition.
    """
    split = []
    for cohort, seed in zip(cohorts, seeds, strict=True):
        numbered = replace(cohort, ids=np.arange(len(cohort)).astype(object))
        split.append([part.ids.astype(np.int64) for part in hold_out(numbered, 0.5, seed=seed)])
    longest = max(len(rows) for pair in split for rows in pair)  # one length, so that equal networks can still be stacked
    return [
        (_half(cohort, first, second, longest, 1, repeat), _half(cohort, second, first, longest, 2, repeat))
        for cohort, (first, second) in zip(cohorts, split, strict=True)
    ]


def _half(cohort: Cohort, own: IntArray, held: IntArray, length: int, number: int, repeat: bool) -> Half:
    rows = cohort.take(np.resize(own, len(cohort) if repeat else length), f"{cohort.name}/half {number}")
    return Half(rows, own, held, cohort.take(np.resize(held, length)))


def rungs(trace: pd.DataFrame) -> list[int]:
    """The rows of a trace to choose among: for each share of the original |gap| the best performing of those that remove as much.

    The first is the original, the last the smallest |gap| of all; shares that no step removes are left out.

    >>> rungs(pd.DataFrame({"gap": [-0.2, -0.1, 0.09, -0.01], "performance": [0.8, 0.8, 0.7, 0.75]}))[::8]
    [0, 1, 3]
    """
    size, performance = trace["gap"].abs().fillna(np.inf).to_numpy()[1:], trace["performance"].to_numpy()[1:]
    if not len(size):
        return [0]
    limits = [(1 - share) * abs(float(trace["gap"].iloc[0])) for share in SHARES]
    found = [int(np.where(size <= most + NOISE, performance, -np.inf).argmax()) for most in limits if (size <= most + NOISE).any()]
    return [0, *(1 + row for row in found), 1 + int(np.lexsort((-performance, size))[0])]


def aligned(traces: Sequence[pd.DataFrame], numbered: bool) -> tuple[list[int], list[list[int]]]:
    """The shares to choose among, and for each trace the rows that stand for them. The last trace, that of all rows, says which there are.

    The steps of a method that controls them are numbered by the share that they remove; of others, `rungs` are taken. Where a run does not
    get as far, its furthest step stands for the rest.
    """
    if numbered:
        numbers = [trace["step"].to_numpy() for trace in traces]
        shares = numbers[-1].tolist()
        return shares, [[int(np.flatnonzero(own <= share)[-1]) for share in shares] for own in numbers]
    each = [rungs(trace) for trace in traces]
    whole, last = each[-1], len(each[-1]) - 1
    shares = [k for k, row in enumerate(whole) if k == 0 or row != whole[k - 1]]  # the smallest share of a row that stands for several
    return shares, [[own[-1] if k == last else own[min(k, len(own) - 1)] for k in shares] for own in each]


def _seen(
    model: nn.Module, cohort: Cohort, halves: Sequence[Half], tried: Sequence[Run], whole: Run, goals: Sequence[Goal], numbered: bool
) -> Seen:
    """The corrected decisions of the steps of the whole set that can be chosen."""
    shares, rows = aligned([one.candidate.trace for one in (*tried, whole)], numbered)
    labels, same = [], []
    for at, goal in enumerate(goals):
        name = "" if cohort.targets is None else cohort.labels[at]
        places = np.arange(len(cohort)) if cohort.targets is None else np.flatnonzero(cohort.targets[:, at] != UNKNOWN)
        part = cohort if cohort.targets is None else cohort.labelled(name)
        view = model.view(at) if isinstance(model, ChosenOutputs) else model
        scores = predict(view, part).score
        made = [_step_decisions(scores, places, at, one, own) for one, own in zip((*tried, whole), rows, strict=True)]
        held, tuned = np.empty_like(made[2]), np.empty_like(made[2])
        for k, half in enumerate(halves):
            outside = np.isin(places, half.held)  # the other half was tuned on these rows
            held[:, outside], tuned[:, outside] = made[k][:, outside], made[1 - k][:, outside]
        labels.append(SeenLabel(name, part, Evidence.of(believed(made[2], held, tuned, 2, shares, grows=True), part, goal), held))
        same.append(refused(made[2], part.attribute.codes) & (cohort.kind != "classes"))  # a class may well be given to no row
    return Seen(tuple(labels), tuple(rows[-1]), np.logical_or.reduce(same))


def _step_decisions(scores: FloatArray, places: IntArray, at: int, tried: Run, rows: Sequence[int]) -> FloatArray:
    """How the original at a run's threshold and these rows of its trace decide on all rows of a label, (rows, n)."""
    candidate, record = tried.candidate.each[at], tried.record
    original = scores >= candidate.trace["threshold"].iloc[0]
    return np.stack([record.decisions[row - 1][places, at] if row else original for row in rows]).astype(np.float64)


# What is delivered.


def _at_step(found: Candidate, kept: Candidate) -> Candidate:
    """The network of the chosen step, with the trace of all steps."""
    if found.labels:
        each = {name: _at_step(own, kept.labels[name]) for name, own in found.labels.items()}
        return replace(kept, trace=found.trace, chosen=next(iter(each.values())).chosen, labels=each)
    trace = found.trace.copy()
    last = kept.trace.iloc[kept.chosen]
    row = int(np.abs(trace["step"] - last["step"]).argmin())  # rounding on a GPU can move a run past the number of a step
    trace.loc[trace.index[row], kept.trace.columns] = last.to_numpy()
    return replace(kept, trace=trace, chosen=row)


def _finished(candidate: Candidate, model: nn.Module, cohort: Cohort, seen: Seen, verdict: Verdict, place: int) -> Candidate:
    """The candidate with what is to be believed of its steps, and the original in its place if that was kept."""
    original = place == 0 or candidate.chosen == 0
    if not candidate.labels:
        done = _labelled(candidate, seen, verdict, 0, len(cohort), place)
        return replace(_back(done, seen, verdict, 0), model=copy.deepcopy(model)) if original else done
    each = {name: _labelled(own, seen, verdict, at, len(cohort), place) for at, (name, own) in enumerate(candidate.labels.items())}
    network = candidate.model
    if original:
        assert isinstance(model, ChosenOutputs)  # several labels are outputs of one network
        network = copy.deepcopy(model.inner)
        views = model.around(network)
        each = {
            name: replace(own if cohort.kind == "classes" else _back(own, seen, verdict, at), model=views.view(at), chosen=0)
            for at, (name, own) in enumerate(each.items())
        }
    why = tuple(dict.fromkeys(note for own in each.values() for note in own.why))
    return joined(network, each, candidate.trace, 0 if original else candidate.chosen, why, cohort.kind)


def _labelled(candidate: Candidate, seen: Seen, verdict: Verdict, at: int, rows: int, place: int) -> Candidate:
    """One label's candidate with its corrected trace and the decisions that were not fitted to their rows."""
    label = seen.labels[at]
    evidence, trace = label.evidence, candidate.trace.copy()
    columns = {
        "gap_honest": evidence.gap,
        "gap_se": evidence.gap_se(),
        "performance_honest": evidence.performance,
        "performance_se": evidence.performance_se(),
    }
    places = trace.index[[*seen.rows, seen.rows[place]]]  # one row may stand for several shares: the one that was chosen counts
    for name, values in columns.items():
        trace.loc[places, name] = [*values, values[place]]
    note = Note("cross_fitted", numbers={"rows": rows})
    goal = replace(verdict.goals[at], selection=evidence.goal.selection)
    held = HeldOut(label.held[0], label.held[place])
    notes, why, met = (*candidate.notes, note), verdict.why[at], verdict.met[at]
    return replace(candidate, trace=trace, why=why, met_in_sample=met, goal=goal, notes=notes, held_out=held)


def _back(candidate: Candidate, seen: Seen, verdict: Verdict, at: int) -> Candidate:
    """The candidate with the rule of the original, step 0; the caller puts the original network in its place."""
    return replace(candidate, rule=plain_rule(candidate.method, candidate.trace, 0, seen.labels[at].part, verdict.goals[at]), chosen=0)
