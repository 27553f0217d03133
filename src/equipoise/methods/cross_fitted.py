"""Cross-fitted selection: steps are chosen by confidence bounds on values that held-out rows have corrected; or the original stays.

The paper's rule takes the smallest |gap| of hundreds of steps on the very rows that they were tuned on, so that the winner is worse on new
patients than it seemed. How much worse is estimated on two halves of the repair set, split by patient: the method is run on either
half, and each step's decisions on the half it was tuned on are compared with those on the half held out. All rows are in both sums, once
under the network that was tuned on them and once under the other one, so that what is left is the optimism of tuning and little noise.
Optimism falls as one over the number of rows, and a half has half of them, so that half of the difference is what the whole set is due:

    f = f(whole) + 1/2 (f(held out) - f(tuned on))

Gaps, rates and balanced accuracy are affine in f: the corrected ones are those of this f, and so are their standard errors. It is the
optimism correction of Efron and Harrell with cross-validation in place of the bootstrap. Optimism grows slowly with the steps while noise
does not, so the correction of a step is the mean over it and its neighbours. What was tried instead and was worse: choosing the
number of steps by the held-out halves only (step 10 of one run is not step 10 of another, in pruning least of all), and choosing among the
steps of one half by the other (half of the rows to tune on, half to choose by).

A step qualifies if its performance less one standard error reaches the minimum, and likewise for the rates that are kept. Of those the one
with the smallest upper limit, |gap| plus one standard error, is taken; with "one-se" the best performing of all steps whose |gap| does not
differ from it by more than the standard error of the difference. With a maximum gap only: the best performing of those surely within it.
Where the |gap| is not surely smaller than the original's, the original stays, and `why` gives the reason. With several labels a step must
qualify for every label; the largest upper limit of any label counts, and the mean performance.

A half repeats its rows until it is as long as the whole set, so that an epoch has as many mini-batches and step 100 of a half is as far
from the original as step 100 on the whole set; counts double with the rows, so that the weights of gaps and losses stay what they are.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from torch import nn

from equipoise.data import UNKNOWN, Cohort, IntArray, hold_out
from equipoise.errors import EmptyCell
from equipoise.measures import FloatArray
from equipoise.methods.base import BEFORE, Candidate, Goal, Note, Why
from equipoise.methods.driver import Half, Job, Run, Verdict, joined, run
from equipoise.methods.evidence import Evidence
from equipoise.methods.selection import plain_rule
from equipoise.models import ChosenOutputs, predict

SURE = 1.0  # standard errors between an estimate and its confidence bound
DUE = 0.5  # of the optimism of half of the rows: what all of them have
NEARBY = 5  # steps to either side over which the correction is averaged
NOISE = 1e-9
BoolArray = npt.NDArray[np.bool_]


def run_cross_fitted(job: Job, selection: str) -> list[Candidate]:
    """The candidates of a method by cross-fitted selection: it is run on both halves, on all rows, and again up to the steps chosen."""
    whole = [replace(cohort, source=cohort.inputs) for cohort in job.cohorts]  # encoded, so that taking rows cannot change the encoding
    pairs, count = _halves(whole, job.seeds), range(len(job.models))
    goals = [replace(goal, selection=selection) for goal in job.goals]
    try:
        halves = run(_some(job, [k for k in count for _ in (0, 1)], [half for pair in pairs for half in pair]))
    except EmptyCell as error:
        advice = "half of the repair set is too small for cross-fitted selection: use more data, merge groups, or selection='paper'"
        raise EmptyCell(*error.problems, advice) from error
    everything = [Half(cohort, np.arange(len(cohort)), np.empty(0, np.int64)) for cohort in whole]
    found = run(_some(job, count, everything))
    seen = [_seen(job.models[k], whole[k], [*pairs[k], everything[k]], [*halves[2 * k : 2 * k + 2], found[k]], goals) for k in count]
    verdicts = [choose([label.evidence for label in own.labels], own.steps, goals) for own in seen]
    again = [k for k in count if seen[k].recorded and verdicts[k].step]  # the network of the chosen step is needed once more
    chosen = {k: found[k].candidate for k in count}
    if again:
        kept = run(replace(_some(job, again, [everything[k] for k in again]), halves=None, verdicts=[verdicts[k] for k in again]))
        chosen |= {k: _at_step(found[k].candidate, one.candidate) for k, one in zip(again, kept, strict=True)}
    return [_finished(chosen[k], job.models[k], job.cohorts[k], seen[k], verdicts[k]) for k in count]


def _some(job: Job, which: Sequence[int], halves: Sequence[Half]) -> Job:
    """The job of some networks, each on the rows of a half."""
    some: dict[str, Any] = {name: [getattr(job, name)[k] for k in which] for name in ("models", "seeds")}
    trains = None if job.trains is None else [job.trains[k] for k in which]
    return replace(job, **some, trains=trains, cohorts=[half.cohort for half in halves], halves=halves)


def _halves(cohorts: Sequence[Cohort], seeds: Sequence[int]) -> list[tuple[Half, Half]]:
    """Two halves of each cohort, by patient and stratified: each is tuned on one, and the other is held out."""
    split = []
    for cohort, seed in zip(cohorts, seeds, strict=True):
        numbered = replace(cohort, ids=np.arange(len(cohort)).astype(object))
        split.append([part.ids.astype(np.int64) for part in hold_out(numbered, 0.5, seed=seed)])
    longest = max(len(rows) for pair in split for rows in pair)  # one length, so that equal networks can still be stacked
    return [
        (_half(cohort, first, second, longest, 1), _half(cohort, second, first, longest, 2))
        for cohort, (first, second) in zip(cohorts, split, strict=True)
    ]


def _half(cohort: Cohort, own: IntArray, held: IntArray, length: int, number: int) -> Half:
    rows = cohort.take(np.resize(own, len(cohort)), f"{cohort.name}/half {number}")
    return Half(rows, own, held, cohort.take(np.resize(held, length)))


@dataclass(frozen=True, eq=False)
class SeenLabel:
    """One label: its name, its rows and what is to be believed of all steps on them."""

    name: str
    part: Cohort
    evidence: Evidence


@dataclass(frozen=True, eq=False)
class Seen:
    """The steps of one network and what is to be believed of them for each label."""

    labels: tuple[SeenLabel, ...]
    steps: tuple[int, ...]
    classes: bool
    recorded: bool  # step by step; otherwise there is the original and what came out


def _seen(model: nn.Module, cohort: Cohort, halves: Sequence[Half], tried: Sequence[Run], goals: Sequence[Goal]) -> Seen:
    """The corrected decisions of every step that both halves and the whole set reached."""
    recorded = any(one.record.steps for one in tried)
    steps = sorted(set.intersection(*(set(one.record.steps) for one in tried))) if recorded else [1]
    labels = []
    for at, goal in enumerate(goals):
        name = "" if cohort.targets is None else cohort.labels[at]
        rows = np.arange(len(cohort)) if cohort.targets is None else np.flatnonzero(cohort.targets[:, at] != UNKNOWN)
        part = cohort if cohort.targets is None else cohort.labelled(name)
        view = model.view(at) if isinstance(model, ChosenOutputs) else model
        scores = predict(view, part).score
        made = [_decisions(scores, part, rows, at, one, steps) for one in tried]
        lost = np.empty_like(made[2])
        for k, half in enumerate(halves[:2]):
            held = np.isin(rows, half.held)  # the other half was tuned on these rows
            lost[:, held] = made[k][:, held] - made[1 - k][:, held]
        f = made[2] + DUE * averaged(lost)
        labels.append(SeenLabel(name, part, Evidence.of(f, part, goal)))
    return Seen(tuple(labels), (0, *steps), cohort.kind == "classes", recorded)


def _decisions(scores: FloatArray, part: Cohort, rows: IntArray, at: int, tried: Run, steps: Sequence[int]) -> FloatArray:
    """How the original at a half's threshold and the half's steps decide on all rows of a label, (1 + steps, n)."""
    candidate, record = tried.candidate.each[at], tried.record
    original = (scores >= candidate.trace["threshold"].iloc[0])[None]
    if not record.steps:
        made = candidate.rule.decide(predict(candidate.model, part))[None]
        return np.concatenate([original, made]) if len(steps) == 1 else original.astype(np.float64)
    place = {step: k for k, step in enumerate(record.steps)}
    found = [record.decisions[place[step]][rows, at] for step in steps]
    return np.concatenate([original, np.stack(found)] if found else [original]).astype(np.float64)


def averaged(lost: FloatArray, nearby: int = NEARBY) -> FloatArray:
    """The mean of each row (steps, n) and its neighbours; the first row, the original, is left as it is.

    >>> averaged(np.array([[9.0], [1.0], [2.0], [6.0]]), nearby=1)[:, 0].tolist()
    [9.0, 1.5, 3.0, 4.0]
    """
    steps = len(lost) - 1
    running = np.concatenate([np.zeros((1, lost.shape[1])), np.cumsum(lost[1:], axis=0)])
    first, last = np.maximum(np.arange(steps) - nearby, 0), np.minimum(np.arange(steps) + nearby + 1, steps)
    means: FloatArray = np.concatenate([lost[:1], (running[last] - running[first]) / (last - first)[:, None]])
    return means


def choose(each: Sequence[Evidence], steps: Sequence[int], goals: Sequence[Goal]) -> Verdict:
    """The step to keep by what is to be believed of all of them; the first is the original."""
    settled = [goal.settled(float(own.performance[0])) for own, goal in zip(each, goals, strict=True)]
    errors, sizes = [own.gap_se() for own in each], [np.abs(own.gap) for own in each]
    uppers = [size + SURE * error for size, error in zip(sizes, errors, strict=True)]
    enough = [_enough(own, goal) for own, goal in zip(each, goals, strict=True)]
    kept = [_kept(own, goal) for own, goal in zip(each, goals, strict=True)]
    fine = _all(a & b & ~np.isnan(size) for a, b, size in zip(enough, kept, sizes, strict=True))  # no value is not a small gap
    if not fine.any():
        why = tuple((_lacking(*own),) for own in zip(each, settled, enough, kept, strict=True))
        return Verdict(steps[0], why, (False,) * len(each), tuple(settled))
    certain = [_certain(fine, upper, goal) for upper, goal in zip(uppers, settled, strict=True)]
    upper, performance = np.max(uppers, axis=0), np.mean([own.performance for own in each], axis=0)
    if all(goal.min_performance is None for goal in settled) and _all(certain).any():
        row = int(np.where(_all(certain), performance, -np.inf).argmax())
    else:
        row = int(np.where(fine, upper, np.inf).argmin())
        if goals[0].selection == "one-se":
            pairs = zip(each, sizes, strict=True)
            level = fine & _all(size - size[row] <= SURE * own.gap_se(against=row) + NOISE for own, size in pairs)
            row = int(np.where(level, performance, -np.inf).argmax())
        worst = int(np.argmax([size[0] for size in sizes]))
        if fine[0] and row and sizes[worst][0] - sizes[worst][row] <= SURE * each[worst].gap_se(against=0)[row]:
            row = 0
    reasons = [
        _reason(row, len(steps), int(fine.sum()), *own, settle)
        for own, settle in zip(zip(each, sizes, errors, certain, strict=True), settled, strict=True)
    ]
    return Verdict(steps[row], tuple(why for why, _ in reasons), tuple(met for _, met in reasons), tuple(settled))


def _all(each: Any) -> BoolArray:
    """Where all of these hold."""
    together: BoolArray = np.logical_and.reduce(list(each))
    return together


def _certain(fine: BoolArray, upper: FloatArray, goal: Goal) -> BoolArray:
    """Which steps are surely within a label's maximum gap; where it has none, all that qualify."""
    return fine & (upper <= goal.max_gap + NOISE) if goal.max_gap is not None else fine


def _reason(
    row: int, steps: int, qualified: int, evidence: Evidence, size: FloatArray, error: FloatArray, certain: BoolArray, goal: Goal
) -> tuple[Why, bool]:
    """Why a step was chosen for a label, or the original kept, and whether that meets the label's goal."""
    seen = {"gap": float(evidence.gap[row]), "error": float(error[row])}
    met, rows = bool(certain[row]), len(evidence.y)
    unsure: Why = ()
    if goal.max_gap is not None and not met:
        limits = {
            "value": float(size[row] + SURE * error[row]),
            "most": goal.max_gap,
            "rows": _rows_needed(size[row], error[row], goal.max_gap, rows),
        }
        unsure = (Note("not_surely_within", goal.measure, limits),)
    if row:
        return (Note("cross_fitted_choice", goal.measure, {"of": steps, "qualified": qualified, **seen}), *unsure), met
    if goal.max_gap is not None and met:
        return (Note("original_within", goal.measure, {"max_gap": goal.max_gap, **seen}),), True
    if size[0] <= SURE * error[0]:
        return (Note("nothing_to_repair", goal.measure, {"rows": rows, **seen}), *unsure), goal.max_gap is None
    return (Note("declined", goal.measure, seen),), False


def _rows_needed(size: float, error: float, max_gap: float, rows: int) -> int | None:
    """About how many rows such a gap would need to be surely within the maximum gap; None where no number would do."""
    return None if size >= max_gap else int(np.ceil(rows * (SURE * error / (max_gap - size)) ** 2 / 100) * 100)


def _enough(evidence: Evidence, goal: Goal) -> BoolArray:
    """Which steps reach the minimum performance by their held-out estimates; a relative one is counted from the original's."""
    settled = goal.settled(float(evidence.performance[0]))
    assert settled.min_performance is not None  # cross-fitted selection always keeps performance
    reached: BoolArray = evidence.performance >= settled.min_performance - NOISE
    return reached


def _kept(evidence: Evidence, goal: Goal) -> BoolArray:
    """Which steps surely keep the rates of every group."""
    kept = np.ones(len(evidence.f), bool)
    for name, least in goal.keep.items():
        rate = evidence.rate(name)
        if least == BEFORE:
            lower = rate - rate[0] - SURE * evidence.rate_se(name, against=0)
        else:
            lower = rate - float(least) - SURE * evidence.rate_se(name)
        kept &= ~(lower < -NOISE).any(-1)  # a group without such rows has no say
    return kept


def _lacking(evidence: Evidence, goal: Goal, enough: BoolArray, kept: BoolArray) -> Note:
    """What no step surely has, and whether the constraints are against each other."""
    best = int(evidence.performance.argmax())
    had = {"best": float(evidence.performance[best]), "error": float(evidence.performance_se()[best])}
    counts = {"enough": int(enough.sum()), "kept": int(kept.sum()), "of": len(kept)}
    return Note("none_surely", goal.performance, {**counts, **had, "min_performance": goal.min_performance, "keep": goal.keep})


def _at_step(found: Candidate, kept: Candidate) -> Candidate:
    """The network of the chosen step, with the trace of all steps."""
    if found.labels:
        each = {name: _at_step(own, kept.labels[name]) for name, own in found.labels.items()}
        return replace(kept, trace=found.trace, chosen=next(iter(each.values())).chosen, labels=each)
    trace = found.trace.copy()
    last = kept.trace.iloc[kept.chosen]
    row = int(np.flatnonzero(trace["step"] == last["step"])[0])
    trace.loc[trace.index[row], kept.trace.columns] = last.to_numpy()
    return replace(kept, trace=trace, chosen=row)


def _finished(candidate: Candidate, model: nn.Module, cohort: Cohort, seen: Seen, verdict: Verdict) -> Candidate:
    """The candidate with what is to be believed of its steps, and the original in its place if that was kept."""
    original = verdict.step == 0 or candidate.chosen == 0
    if not candidate.labels:
        done = _labelled(candidate, seen, verdict, 0, len(cohort))
        return replace(_back(done, seen, verdict, 0), model=copy.deepcopy(model)) if original else done
    each = {name: _labelled(own, seen, verdict, at, len(cohort)) for at, (name, own) in enumerate(candidate.labels.items())}
    network = candidate.model
    if original:
        assert isinstance(model, ChosenOutputs)  # several labels are outputs of one network
        network = copy.deepcopy(model.inner)
        views = model.around(network)
        each = {name: replace(_back(own, seen, verdict, at), model=views.view(at)) for at, (name, own) in enumerate(each.items())}
    why = tuple(dict.fromkeys(note for own in each.values() for note in own.why))
    return joined(network, each, candidate.trace, 0 if original else candidate.chosen, why, cohort.kind)


def _labelled(candidate: Candidate, seen: Seen, verdict: Verdict, at: int, rows: int) -> Candidate:
    """One label's candidate with its corrected trace."""
    evidence = seen.labels[at].evidence
    columns = pd.DataFrame(
        {
            "step": seen.steps,
            "gap_honest": evidence.gap,
            "gap_se": evidence.gap_se(),
            "performance_honest": evidence.performance,
            "performance_se": evidence.performance_se(),
        }
    )
    if not seen.recorded:  # what came out is one of the method's own steps
        columns["step"] = [0, int(candidate.trace["step"].iloc[candidate.chosen])]
        columns = columns.drop_duplicates("step")
    trace = candidate.trace.merge(columns, on="step", how="left")
    note = Note("cross_fitted", numbers={"rows": rows})
    goal = replace(verdict.goals[at], selection=evidence.goal.selection)
    return replace(candidate, trace=trace, why=verdict.why[at], met_in_sample=verdict.met[at], goal=goal, notes=(*candidate.notes, note))


def _back(candidate: Candidate, seen: Seen, verdict: Verdict, at: int) -> Candidate:
    """The candidate with the rule of the original, step 0; the caller puts the original network in its place."""
    rule = candidate.rule if seen.classes else plain_rule(candidate.method, candidate.trace, 0, seen.labels[at].part, verdict.goals[at])
    return replace(candidate, rule=rule, chosen=0)
