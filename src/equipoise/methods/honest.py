"""Honest selection: steps are chosen by confidence bounds on values that rows held out have corrected; or the original stays.

The paper's rule takes the smallest |gap| of hundreds of steps on the very rows that they were tuned on, so that the winner is worse on new
patients than it seemed. How much worse is seen in two folds of the validation part, made by patient: the method is run on either half, and
each step's decisions on the half it was tuned on are compared with those on the half held out. All rows are in both sums, once under the
network that knew them and once under the one that did not, so that what is left is the optimism of tuning and little noise. Optimism falls
as one over the number of rows, and a fold has half of them, so that half of the difference is what the whole part is due:

    f = f(whole) + 1/2 (f(held out) - f(tuned on))

Gaps, rates and balanced accuracy are affine in f: the corrected ones are those of this f, and so are their standard errors. It is the
optimism correction of Efron and Harrell with cross-validation in place of the bootstrap. Optimism grows slowly with the steps while noise
does not, so the correction of a step is the mean over it and its neighbours. What was tried instead and was worse: choosing the
number of steps by the held-out halves alone (step 10 of one run is not step 10 of another, in pruning least of all), and choosing among the
steps of one half by the other (half of the rows to tune on, half to choose by).

A step will do if its performance less one standard error is at the minimum performance, and so for the rates that are to be kept. Of those
the one with the smallest upper bound, |gap| plus one standard error, is taken; with "one-se" the best performing of all steps whose |gap|
cannot be told from its, by the standard error of the difference. With a maximum gap alone: the best performing of those surely within it.
Where the |gap| is not surely smaller than the original's, the original stays and `why` says what could not be told.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pandas as pd
from torch import nn

from equipoise.data import Cohort, Scores
from equipoise.errors import EmptyCell
from equipoise.measures import FloatArray, units_of
from equipoise.methods.base import BEFORE, Candidate, Goal
from equipoise.methods.evidence import Evidence
from equipoise.methods.folds import Fold, Verdict, as_inputs, decided, two_folds, whole_fold
from equipoise.methods.selection import plain_rule
from equipoise.models import predict

SURE = 1.0  # standard errors between an estimate and its confidence bound
DUE = 0.5  # of the optimism of half of the rows: what all of them have
NEARBY = 5  # steps to either side over which the correction is averaged
NOISE = 1e-9
Run = Callable[[Sequence[int], Sequence[Cohort]], list[Candidate]]  # which of the networks, and what to repair each on
BoolArray = npt.NDArray[np.bool_]


def run_honestly(run: Run, models: Sequence[nn.Module], cohorts: Sequence[Cohort], goal: Goal, seeds: Sequence[int]) -> list[Candidate]:
    """The candidates of a method, chosen honestly. `run` runs it: on both folds, on all rows, and again up to the steps chosen."""
    whole = [as_inputs(cohort) for cohort in cohorts]
    pairs = two_folds(whole, seeds)
    count = range(len(models))
    try:
        halves = run([k for k in count for _ in (0, 1)], [fold for pair in pairs for fold in pair])
    except EmptyCell as error:
        advice = "half of the validation part is too small for honest selection: use more data, merge groups, or selection='paper'"
        raise EmptyCell(*error.problems, advice) from error
    folds = [whole_fold(cohort) for cohort in whole]
    found = run(list(count), folds)
    seen = [_seen(models[k], whole[k], [*pairs[k], folds[k]], [*halves[2 * k : 2 * k + 2], found[k]], goal) for k in count]
    verdicts = [choose(s.evidence, s.steps, goal) for s in seen]
    again = [k for k in count if seen[k].recorded and verdicts[k].step]  # the network of the chosen step is to be had once more
    kept = run(again, [decided(whole[k], verdicts[k]) for k in again]) if again else []
    for k, candidate in zip(again, kept, strict=True):
        found[k] = _at_step(found[k], candidate)
    return [_finished(found[k], models[k], cohorts[k], seen[k], verdicts[k]) for k in count]


@dataclass(frozen=True, eq=False)
class Seen:
    """The steps of one network and what is to be believed of them."""

    evidence: Evidence
    steps: tuple[int, ...]
    recorded: bool  # step by step; otherwise there is the original and what came out


def _seen(model: nn.Module, cohort: Cohort, folds: Sequence[Fold], tried: Sequence[Candidate], goal: Goal) -> Seen:
    """The corrected decisions of every step that both folds and the whole part reached."""
    scores = predict(model, cohort)
    recorded = any(fold.record.steps for fold in folds)
    steps = sorted(set.intersection(*(set(fold.record.steps) for fold in folds))) if recorded else [1]
    first, second, everything = (_decisions(scores, cohort, fold, candidate, steps) for fold, candidate in zip(folds, tried, strict=True))
    lost = np.empty_like(everything)
    for decided_on, fold, other in ((first, folds[0], second), (second, folds[1], first)):
        lost[:, fold.held] = decided_on[:, fold.held] - other[:, fold.held]  # the other fold was tuned on these rows
    attribute, f = cohort.attribute, everything + DUE * averaged(lost)
    evidence = Evidence(f, cohort.y, attribute.codes, attribute.levels, units_of(cohort.patients, len(cohort)), goal)
    return Seen(evidence, (0, *steps), recorded)


def averaged(lost: FloatArray, nearby: int = NEARBY) -> FloatArray:
    """The mean of each row (steps, n) and its neighbours; the first row, the original, stands for itself.

    >>> averaged(np.array([[9.0], [1.0], [2.0], [6.0]]), nearby=1)[:, 0].tolist()
    [9.0, 1.5, 3.0, 4.0]
    """
    steps = len(lost) - 1
    running = np.concatenate([np.zeros((1, lost.shape[1])), np.cumsum(lost[1:], axis=0)])
    first, last = np.maximum(np.arange(steps) - nearby, 0), np.minimum(np.arange(steps) + nearby + 1, steps)
    means: FloatArray = np.concatenate([lost[:1], (running[last] - running[first]) / (last - first)[:, None]])
    return means


def _decisions(scores: Scores, cohort: Cohort, fold: Fold, candidate: Candidate, steps: Sequence[int]) -> FloatArray:
    """How the original with a fold's threshold and the fold's steps decide on all rows, (1 + steps, n)."""
    original = (scores.score >= candidate.trace["threshold"].iloc[0])[None]
    if not fold.record.steps:
        made = candidate.rule.decide(predict(candidate.model, cohort))[None]
        return np.concatenate([original, made]) if len(steps) == 1 else original.astype(np.float64)
    at = {step: k for k, step in enumerate(fold.record.steps)}
    rows = [fold.record.decisions[at[step]] for step in steps]
    return np.concatenate([original, np.stack(rows)] if rows else [original]).astype(np.float64)


def choose(evidence: Evidence, steps: Sequence[int], goal: Goal) -> Verdict:
    """The step to keep by what is to be believed of all of them; the first is the original."""
    settled = goal.settled(float(evidence.performance[0]))
    size, error = np.abs(evidence.gap), evidence.gap_se()
    upper = size + SURE * error
    enough, kept = _enough(evidence, goal), _kept(evidence, goal)
    fine = enough & kept & ~np.isnan(size)  # a quotient without a value is no small gap
    if not fine.any():
        return Verdict(steps[0], f"{_lacking(evidence, settled, enough, kept)}; the original was kept", False, settled)
    certain = fine & (upper <= settled.max_gap + NOISE) if settled.max_gap is not None else fine
    if settled.min_performance is None and certain.any():
        row = int(np.where(certain, evidence.performance, -np.inf).argmax())
    else:
        row = int(np.where(fine, upper, np.inf).argmin())
        if goal.selection == "one-se":
            level = fine & (size - size[row] <= SURE * evidence.gap_se(against=row) + NOISE)
            row = int(np.where(level, evidence.performance, -np.inf).argmax())
        if fine[0] and row and size[0] - size[row] <= SURE * evidence.gap_se(against=0)[row]:
            row = 0
    seen = f"{goal.measure} {evidence.gap[row]:+.3f} (standard error {error[row]:.3f}) after correction by rows held out"
    met = bool(certain[row])
    if row == 0:
        return Verdict(steps[0], *_original(evidence, size[0], error[0], settled, met, seen), settled)
    why = f"honest choice among {len(steps)} steps, {int(fine.sum())} of which surely keep what the goal asks: {seen}"
    if settled.max_gap is not None and not met:
        more = _more_rows(size[row], error[row], settled.max_gap, evidence)
        why += f", whose upper bound {upper[row]:.3f} is above {settled.max_gap:g}{more}"
    return Verdict(steps[row], why, met, settled)


def _original(evidence: Evidence, size: float, error: float, goal: Goal, certain: bool, seen: str) -> tuple[str, bool]:
    """Why the original was kept, and whether that is all right."""
    if goal.max_gap is not None and certain:
        return f"the original network is surely within the maximum gap already: {seen}", True
    if size <= SURE * error:
        what = f"nothing to repair that these {len(evidence.y):,} rows could tell: the original network has {seen}"
        if goal.max_gap is None:
            return what, True
        return f"{what}, and is not surely within {goal.max_gap:g} either{_more_rows(size, error, goal.max_gap, evidence)}", False
    return f"declined: no step has a surely smaller |{goal.measure}| than the original network, which has {seen}; it was kept", False


def _more_rows(size: float, error: float, max_gap: float, evidence: Evidence) -> str:
    """How many rows such a gap would need to be surely within the maximum gap."""
    if size >= max_gap:
        return ""
    rows = len(evidence.y) * (SURE * error / (max_gap - size)) ** 2
    return f" (about {np.ceil(rows / 100) * 100:,.0f} rows would tell)"


def _enough(evidence: Evidence, goal: Goal) -> BoolArray:
    """Which steps surely reach the minimum performance; a minimum performance under the original's performance is one on the difference
    from it.
    """
    performance = evidence.performance
    if goal.min_performance is not None:
        reached: BoolArray = performance - SURE * evidence.performance_se() >= goal.min_performance - NOISE
        return reached
    if goal.max_gap is not None:
        return np.ones(len(performance), bool)
    lost: BoolArray = performance[0] - performance + SURE * evidence.performance_se(against=0) <= goal.allowed_loss + NOISE
    return lost


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


def _lacking(evidence: Evidence, goal: Goal, enough: BoolArray, kept: BoolArray) -> str:
    """What no step surely has, and whether the constraints are against each other."""
    name = goal.performance.replace("_", " ")
    best = int(evidence.performance.argmax())
    had = f"the best has {evidence.performance[best]:.3f}, standard error {evidence.performance_se()[best]:.3f}"
    wanted = f"{name} {goal.min_performance:.3g}" if goal.min_performance is not None else name
    rates = ", ".join(f"{rate} {'as before' if least == BEFORE else f'at {least:g}'}" for rate, least in goal.keep.items())
    if enough.any() and kept.any():
        return f"{int(enough.sum())} steps surely reach {wanted}, {int(kept.sum())} surely keep {rates} in every group, but none does both"
    lacking = [] if enough.any() else [f"reaches {wanted} ({had})"]
    lacking += [] if kept.any() else [f"keeps {rates} in every group"]
    return f"no step of {len(kept)} surely {', nor surely '.join(lacking)}"


def _at_step(found: Candidate, kept: Candidate) -> Candidate:
    """The network of the chosen step, with the trace of all steps."""
    trace = found.trace.copy()
    last = kept.trace.iloc[kept.chosen]
    row = int(np.flatnonzero(trace["step"] == last["step"])[0])
    trace.loc[trace.index[row], kept.trace.columns] = last.to_numpy()
    return replace(kept, trace=trace, chosen=row)


def _finished(candidate: Candidate, model: nn.Module, cohort: Cohort, seen: Seen, verdict: Verdict) -> Candidate:
    """The candidate with what is to be believed of its steps, and the original in its place if that was kept."""
    evidence = seen.evidence
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
    note = f"gaps and performance were corrected by how much worse the steps are on rows held out, in two folds of {len(cohort):,} rows"
    goal = replace(verdict.goal, selection=evidence.goal.selection)
    found = replace(candidate, trace=trace, why=verdict.why, met=verdict.met, goal=goal, notes=(*candidate.notes, note))
    if verdict.step != 0 and candidate.chosen != 0:
        return found
    rule = plain_rule(candidate.method, trace, 0, cohort, verdict.goal)
    return replace(found, model=copy.deepcopy(model), rule=rule, chosen=0)
