"""One run of a method, and cross-fitted selection: a step is chosen by decisions on rows that it was not fitted to, or none is.

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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from equipoise.data import UNKNOWN, BoolArray, Cohort, IntArray, Rows, Scores, assign_folds, generator, hold_out
from equipoise.errors import EmptyCell
from equipoise.measures import FloatArray
from equipoise.methods.candidate import Candidate, HeldOut, LabelCandidate
from equipoise.methods.choosing import ChosenStep, choose_step, plain_rule, refused
from equipoise.methods.contract import Fit, FitStep, Kind, Rng, adaptive, cross_fitting_parts
from equipoise.methods.driver import Half, Job, run_steps
from equipoise.methods.evaluation import NOISE
from equipoise.methods.evidence import Evidence
from equipoise.methods.frontier import SHARES, along, fit_steps, not_constant
from equipoise.methods.goal import Note

if TYPE_CHECKING:
    from torch import nn

    from equipoise.models import ReadOnce

# Shares of the remaining time for the runs on halves, and then for the run on all rows; the rest is for repeating.
HALVES, ALL_ROWS = 0.45, 0.5
Run = tuple[Candidate, list[BoolArray]]  # the candidate, and the decisions (rows, labels) of its steps on all rows


@contextmanager
def _part_of_the_rows() -> Iterator[None]:
    """Adds advice to the error of a part that lacks rows which the measure needs, although the whole set has them."""
    try:
        yield
    except EmptyCell as error:
        advice = "a part of the repair set is too small for cross-fitted selection: use more data, merge groups, or selection='paper'"
        raise EmptyCell(*error.problems, advice) from error


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


def _labelled(candidate: LabelCandidate, evidence: Evidence, chosen: ChosenStep, at: int, rows: Sequence[int], n: int) -> LabelCandidate:
    """One label's candidate with its corrected trace and its held-out decisions; `rows` are those of the trace that could be chosen."""
    trace, place = candidate.trace.copy(), chosen.at
    columns = {
        "gap_honest": evidence.gap,
        "gap_se": evidence.gap_se(),
        "performance_honest": evidence.performance,
        "performance_se": evidence.performance_se(),
    }
    places = trace.index[[*rows, rows[place]]]  # if a row stands for several shares, the chosen one is written last
    for name, values in columns.items():
        trace.loc[places, name] = [*values, values[place]]
    assert evidence.held is not None
    return replace(
        candidate,
        trace=trace,
        why=chosen.why[at],
        met_in_sample=chosen.met[at],
        goal=chosen.goals[at].derived(selection=evidence.goal.selection),
        notes=(*candidate.notes, Note("cross_fitted", numbers={"rows": n})),
        held_out=HeldOut(evidence.held[0], evidence.held[place]),
    )


# Methods that fit a rule, or probes: every row of their trace can be delivered.


def run_fit(job: Job, selection: str) -> Candidate:
    """The candidate of a method that fits a rule or probes: the rule that it chose itself ("paper"), or a step chosen by cross-fitting."""
    method, model, whole = job.method, job.model, job.rows.encoded()  # once, so that a subset has the same encoding
    ((name, goal),) = job.goals.items()
    network, scores = None, whole
    if model is not None and isinstance(whole, Cohort):
        from equipoise.models import ReadOnce, check, predict

        if method.kind == Kind.PROBES:
            check(model, whole, changed=False)
        network = ReadOnce(model, whole.inputs)
        scores = predict(model, whole, raw=network.raw())
    assert isinstance(scores, Scores)  # rows without a network are scores

    def fit(rows: IntArray | None = None) -> Fit:
        """The fit to some of the rows, or to all."""
        if method.kind == Kind.RULE:
            return method.run(scores if rows is None else scores.take(rows), goal, job.settings)  # type: ignore[no-any-return]
        inputs, outputs = whole if rows is None else whole.take(rows), network if network is None or rows is None else network.take(rows)
        return method.run(model, inputs, goal, job.settings, Rng(job.seed), job.train, outputs)  # type: ignore[no-any-return]

    found, evidence = fit(), None
    if selection == "paper":
        found = not_constant(found, method.name, scores) if job.refuse_constant and method.kind == Kind.RULE else found
        step, notes = FitStep(found.rule, found.model, found.steps[found.chosen].notes if found.steps else ()), found.notes
        chosen = ChosenStep(found.chosen, found.chosen, (found.why,), (found.met,), (found.goal,))
    else:
        found = along(found, method.name, scores)
        parts = cross_fitting_parts(method, len(whole))
        fold = assign_folds(whole, parts, generator(job.seed, "cross-fitted selection"))
        fits = []
        for k in range(parts):
            with _part_of_the_rows():
                fits.append(fit_steps(fit(np.flatnonzero(fold != k)), method.name, scores))
        decisions, *by_part = (step_decisions(steps, model, whole, network, scores) for steps in (found.steps, *fits))
        count = len(found.steps)
        held, tuned = (np.zeros((count, len(whole))) for _ in range(2))
        for k, own in enumerate(by_part):
            outside, reached = fold == k, own[np.minimum(np.arange(count), len(own) - 1)]  # the last step of a fit stands for further ones
            held[:, outside] = reached[:, outside]
            tuned[:, ~outside] += reached[:, ~outside] / (parts - 1)
        estimate = corrected(decisions, held, tuned, parts, range(count), grows=method.kind == Kind.PROBES)
        evidence = Evidence.of(estimate, whole, goal.derived(selection=selection), held)
        original = float(found.trace["performance"].iloc[0])
        chosen = choose_step([evidence], range(count), method.least_gap, refused(decisions, whole.attribute.codes), [original])
        step = found.steps[chosen.at]
        notes = found.notes if step.rule.needs_group == method.needs_group else ()  # not those of a rule that was declined
    candidate = LabelCandidate(
        method=method.name,
        model=copy.deepcopy(model) if step.model is None else step.model,
        rule=step.rule,
        trace=found.trace,
        chosen=chosen.at,
        why=chosen.why[0],
        met_in_sample=chosen.met[0],
        goal=chosen.goals[0],
        seed=job.seed,
        settings=asdict(job.settings),
        notes=(*step.notes, *notes),
    )
    if job.progress:
        job.progress(1, 1)
    if evidence is not None:
        candidate = _labelled(candidate, evidence, chosen, 0, range(len(found.steps)), len(whole))
    return Candidate.of(candidate, name)


def step_decisions(
    steps: Sequence[FitStep], model: "nn.Module | None", rows: Rows, network: "ReadOnce | None" = None, scores: Scores | None = None
) -> FloatArray:
    """The decisions of every step of a fit on these rows (steps, n), by the network and rule that it would deliver.

    `scores` are those of the model on these rows, if they are known. The network is run once for all bias scores around it, unless
    `network` holds its outputs on these rows.
    """
    if isinstance(rows, Scores):
        return np.stack([step.rule.decide(rows) for step in steps])
    if scores is not None and all(step.model is None for step in steps):
        return np.stack([step.rule.decide(scores) for step in steps])
    from equipoise.models import BiasScore, ReadOnce, bias_scores, predict

    probes = [step.model for step in steps if isinstance(step.model, BiasScore)]
    by_network = {id(None): predict(model, rows) if scores is None else scores}
    if probes:
        first = probes[0]
        read = network if network is not None and network.of(first.network) else ReadOnce(first.network, rows.inputs)
        for probe, own in zip(probes, bias_scores(probes, read.shown(first.reading)), strict=True):
            by_network[id(probe)] = Scores.of(rows, own)
    return np.stack([step.rule.decide(by_network.get(id(step.model)) or predict(step.model, rows)) for step in steps])


# Methods that change the network step by step.


def run_cross_fitted_steps(job: Job, selection: str) -> Candidate:
    """The candidate of a method that yields steps, chosen by cross-fitting."""
    from equipoise.models import label_views, outputs_like, predict, whole_network

    goals = {name: goal.derived(selection=selection) for name, goal in job.goals.items()}
    model, whole, numbered = job.network, job.cohort.encoded(), adaptive(job.settings)
    halves, on_halves = _halves(whole, job.seed, repeat=not numbered), job.within(HALVES)
    with _part_of_the_rows():
        runs = [run_steps(on_halves.within(1 / (len(halves) - k)), half) for k, half in enumerate(halves)]
    everything = replace(job, rows=whole).within(ALL_ROWS)
    runs.append(run_steps(everything, Half(whole, np.arange(len(whole)), np.empty(0, np.int64))))
    candidate = runs[-1][0]
    shares, rows = aligned([run.trace for run, _ in runs], numbered)
    parts, views = whole.by_label, label_views(model, goals)
    evidence, without = [], np.zeros(len(shares), bool)
    for at, (name, part) in enumerate(parts.items()):
        places = np.flatnonzero(whole.column(name) != UNKNOWN)
        scores = predict(views[name], part).score
        first, second, decisions = (_decided(scores, places, at, name, run, own) for run, own in zip(runs, rows, strict=True))
        outside = np.isin(places, halves[0].held)  # the second half was tuned on these rows
        held, tuned = np.where(outside, first, second), np.where(outside, second, first)
        evidence.append(Evidence.of(corrected(decisions, held, tuned, 2, shares, grows=True), part, goals[name], held))
        if not whole.kind.argmax:  # a class may be assigned to no row
            without |= refused(decisions, part.attribute.codes)
    numbers = candidate.trace["step"].tolist()
    originals = [float(own.trace["performance"].iloc[0]) for own in candidate.labels.values()]
    chosen = choose_step(evidence, [numbers[row] for row in rows[-1]], job.method.least_gap, without, originals)
    if chosen.at:  # run again up to the chosen step, whose network was not kept; no longer than the run before it, so without a deadline
        candidate = _at_step(candidate, run_steps(replace(everything, deadline=None), until=chosen)[0])
    each = {name: _labelled(own, evidence[at], chosen, at, rows[-1], len(whole)) for at, (name, own) in enumerate(candidate.labels.items())}
    if chosen.at and candidate.chosen:
        return candidate.with_labels(each)
    network = copy.deepcopy(whole_network(model))
    views = label_views(outputs_like(model, network), each)
    for (name, own), goal in zip(each.items(), chosen.goals, strict=True):
        threshold = own.trace["threshold"].iloc[0]
        rule = own.rule if whole.kind.argmax else plain_rule(own.method, threshold, parts[name], goal, original=True)
        each[name] = replace(own, rule=rule, model=views[name], chosen=0)
    return replace(candidate, model=network, chosen=0).with_labels(each)


def _decided(scores: FloatArray, places: IntArray, at: int, name: str, run: Run, rows: Sequence[int]) -> FloatArray:
    """The decisions (rows, n) of these rows of a run's trace on all rows of a label; row 0 is the original at the run's threshold."""
    candidate, decisions = run
    original = scores >= candidate.labels[name].trace["threshold"].iloc[0]
    return np.stack([decisions[row - 1][places, at] if row else original for row in rows]).astype(np.float64)


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


def _at_step(whole: Candidate, last: Candidate) -> Candidate:
    """The network of the chosen step from the last run, with the trace of all steps."""
    each, row = {}, 0
    for name, own in whole.labels.items():
        trace, final = own.trace.copy(), last.labels[name]
        chosen = final.trace.iloc[final.chosen]
        row = int(np.abs(trace["step"] - chosen["step"]).argmin())  # rounding on a GPU can move a run past the number of a step
        trace.loc[trace.index[row], final.trace.columns] = chosen.to_numpy()
        cut = tuple(note for note in own.notes if note.kind == "cut_short")  # the last run has no deadline
        each[name] = replace(final, trace=trace, chosen=row, notes=(*final.notes, *cut))
    return replace(last, trace=whole.trace, chosen=row).with_labels(each)
