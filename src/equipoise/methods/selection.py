"""Choosing a step by the goal, and the search of a method: it looks at each step and keeps the best state of each replicate."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from torch import nn

from equipoise.data import Cohort
from equipoise.measures import FloatArray, Threshold
from equipoise.methods.base import BEFORE, Candidate, Goal
from equipoise.methods.folds import Decided, Fold, Verdict
from equipoise.methods.level_up import NOISE, limits, spare
from equipoise.methods.looks import Labels, Look, Traces
from equipoise.models import Replicas, predict


@dataclass(frozen=True)
class Selection:
    """Which row of a trace was chosen, why, and whether it meets the goal."""

    row: int
    why: str
    met: bool


def select(trace: pd.DataFrame, goal: Goal) -> Selection:
    """The paper's rule: the smallest |gap| among steps whose performance is at least the minimum performance.

    With a maximum gap alone: the best performance among steps within it. Where no step will do: the best performance (minimum performance)
    or the smallest |gap| (maximum gap), and `met` is False. Where rates are to be kept, steps that do not keep them are out, and come last
    if all are.
    """
    size, performance = trace["gap"].abs().fillna(np.inf).to_numpy(), trace["performance"].to_numpy()  # no value is no small gap
    name = goal.performance.replace("_", " ")
    kept = trace["spare"].to_numpy() >= -NOISE if "spare" in trace and goal.keep else np.ones(len(trace), bool)
    pool = kept if kept.any() else np.ones(len(trace), bool)
    if goal.min_performance is None:
        assert goal.max_gap is not None  # a settled goal has one of them
        inside = size <= goal.max_gap + NOISE
        if (inside & kept).any():
            row = int(np.where(inside & kept, performance, -np.inf).argmax())
            return Selection(row, f"best {name} of {_steps(inside & kept)} with |gap| <= {goal.max_gap:g}{keeping(goal)}", True)
        lacking = f"has |gap| <= {goal.max_gap:g}{keeping(goal, 'with')}"
        nearest = int(np.nanargmin(np.where(pool, size, np.inf)))
        return Selection(nearest, f"no step of {len(trace)} {lacking}; the smallest |gap| was taken", False)
    enough = performance >= goal.min_performance - NOISE
    if not (enough & kept).any():
        best = int(np.nanargmax(np.where(pool, performance, -np.inf)))
        lacking = f"reaches {name} {goal.min_performance:.3g}{keeping(goal, 'with')}"
        which = "the best that keeps this" if goal.keep and kept.any() else "the best"
        return Selection(best, f"no step of {len(trace)} {lacking}; {which} has {performance[best]:.3f} and was taken", False)
    row = int(np.where(enough & kept, size, np.inf).argmin())
    why = f"smallest |gap| of {_steps(enough & kept)} with {name} >= {goal.min_performance:.3g}{keeping(goal)}"
    if goal.max_gap is not None and size[row] > goal.max_gap + NOISE:
        return Selection(row, f"{why}, but it is above the maximum gap {goal.max_gap:g}", False)
    return Selection(row, why, True)


def keeping(goal: Goal, word: str = "and") -> str:
    """The rates that are kept, in words that go on after others with `word`; empty where there are none."""
    kept = [f"{rate} not below {'before' if least == BEFORE else f'{least:g}'}" for rate, least in goal.keep.items()]
    return f" {word} {', '.join(kept)} in any group" if kept else ""


def _steps(which: npt.NDArray[np.bool_]) -> str:
    return "1 step" if which.sum() == 1 else f"{int(which.sum())} steps"


def better(look: Look, best: "Look | None", goals: Sequence[Goal]) -> npt.NDArray[np.bool_]:
    """Which replicates (R,) are now better, by the rule of `select`, than the best so far, so that a copy is to be kept."""
    if best is None:
        return np.ones(len(look.gap), bool)
    now, before = (_merit(x, goals) for x in (look, best))
    improved: npt.NDArray[np.bool_] = (now[:, 0] > before[:, 0]) | ((now[:, 0] == before[:, 0]) & (now[:, 1] > before[:, 1]))
    return improved


def _merit(look: Look, goals: Sequence[Goal]) -> FloatArray:
    """(R, 2): feasible, or at least keeping the rates, or neither; and how good among its like."""
    rows = []
    kept = np.ones(len(look.gap), bool) if look.spare is None else look.spare >= -NOISE
    for gap, performance, goal, keeps in zip(_size(look.gap), look.performance, goals, kept, strict=True):
        if goal.min_performance is None:
            feasible = keeps and goal.max_gap is not None and gap <= goal.max_gap + NOISE
            rows.append((float(keeps) + feasible, performance if feasible else -gap))
        else:
            feasible = keeps and performance >= goal.min_performance - NOISE
            rows.append((float(keeps) + feasible, -gap if feasible else performance))
    return np.array(rows)


def _size(gap: FloatArray) -> FloatArray:
    """|gap|; a quotient without a value is no small one."""
    size: FloatArray = np.where(np.isnan(gap), np.inf, np.abs(gap))
    return size


def keep_best(best: "Look | None", look: Look, improved: npt.NDArray[np.bool_]) -> Look:
    """The best look so far, replicate by replicate."""
    if best is None:
        return look
    return Look(
        np.where(improved, look.gap, best.gap),
        np.where(improved, look.performance, best.performance),
        np.where(improved, look.threshold, best.threshold),
        None if look.spare is None or best.spare is None else np.where(improved, look.spare, best.spare),
    )


def plain_rule(method: str, trace: pd.DataFrame, row: int, cohort: Cohort, goal: Goal) -> Threshold:
    """The threshold of the chosen step."""
    origin = f"chosen by {method} with {goal.describe()} on {len(cohort):,} rows of {cohort.name}"
    return Threshold(float(trace["threshold"].iloc[row]), origin)


class Search:
    """The steps that a method tries on R networks: looks at them, keeps a copy of the best state of each, and makes the candidates.

    With `within`, a maximum |gap|, the method maximises performance inside it (the constrained objective of Savani et al.) and must
    leave the original behind; without, the goal decides, and the original counts as a step too. On a fold the decisions of each step are
    written down as well; on a part whose verdict is known the state of that step is kept, and nothing is done after it. With `last`, the
    last step is what is chosen and kept, however good it is.
    """

    def __init__(
        self, networks: Replicas, cohorts: Sequence[Cohort], goal: Goal, within: float | None = None, *, last: bool = False
    ) -> None:
        self.networks, self.cohorts, self.goal, self.within, self.last = networks, cohorts, goal, within, last
        self.labels = self._labelled()
        self.traces = Traces(networks.size)
        self.active = np.ones(networks.size, bool)  # replicates that go on
        self.pace = 1.0  # of one step, in what the method counts
        self.goals: list[Goal] = []
        self._least: FloatArray | None = None  # of each rate that is kept
        self._best: Look | None = None
        self._folds = [c for c in cohorts if isinstance(c, Fold)]
        self._elsewhere = [fold.elsewhere.inputs for fold in self._folds if fold.elsewhere is not None]
        self._verdicts = [c.verdict for c in cohorts if isinstance(c, Decided) and c.verdict is not None]

    def _labelled(self) -> Labels:
        return Labels.of(self.cohorts, self.goal)

    def begin(self, scores: FloatArray) -> Look:
        """The look at the original networks, step 0."""
        look = self.labels.look(scores)
        if self.goal.keep:
            before = self.labels.rates(scores, look.threshold)
            self._least = limits(self.goal.keep, before)
            look = replace(look, spare=spare(before, self._least))
        self.traces.add(0, look)
        if self.within is None:
            self.goals = [self.goal.settled(float(p)) for p in look.performance]
            self._best = look
        else:
            self.goals = [replace(self.goal, min_performance=None, max_gap=self.within, max_loss=None)] * self.networks.size
        return look

    def step(self, number: int, scores: FloatArray) -> Look:
        """The look at one more step of the replicates that go on; those that improved are kept."""
        look = self.labels.look(scores, self.within, self._least)
        self.traces.add(number, look, self.active)
        if self._folds:
            self._write_down(number, scores, look)
        if self._verdicts:
            improved = np.array([number <= verdict.step for verdict in self._verdicts]) & self.active
        else:
            improved = self.active.copy() if self.last else better(look, self._best, self.goals) & self.active
        self._best = keep_best(self._best, look, improved)
        self.networks.keep(improved)
        if self._verdicts:
            self.active &= np.array([number < verdict.step for verdict in self._verdicts])
        return look

    def _write_down(self, number: int, scores: FloatArray, look: Look) -> None:
        """How this step decides on the rows of each fold and on those held out."""
        cut = look.threshold[:, None]
        own = scores >= cut
        held = self.networks.evaluate(self._elsewhere) >= cut if self._elsewhere else None
        for r, fold in enumerate(self._folds):
            if self.active[r]:
                fold.add(number, own[r], None if held is None else held[r])

    def _exact(self, trace: pd.DataFrame, row: int, model: nn.Module, cohort: Cohort, replicate: int) -> pd.DataFrame:
        """The trace with its chosen row looked at again in full precision, which is how the network will be used."""
        least = None if self._least is None else self._least[[replicate]]
        look = self.labels.look(predict(model, cohort).score[None], self.within, least)
        exact = trace.copy()
        exact.loc[row, ["gap", "performance", "threshold"]] = [look.gap[0], look.performance[0], look.threshold[0]]
        return exact

    def _selected(self, replicate: int, trace: pd.DataFrame) -> Selection:
        """What the goal or the verdict picks from a trace."""
        if self._verdicts:
            verdict: Verdict = self._verdicts[replicate]
            return Selection(int((trace["step"] <= verdict.step).sum()) - 1, verdict.why, verdict.met)
        if self.last:
            row = len(trace) - 1
            return Selection(row, f"the last of {row} steps", select(trace.iloc[[row]], self.goals[replicate]).met)
        first = 0 if self.within is None else 1
        selection = select(trace.iloc[first:], self.goals[replicate])
        return replace(selection, row=selection.row + first)

    def candidates(self, method: str, seeds: Sequence[int], settings: Any, note: Callable[[int], str] | None = None) -> list[Candidate]:
        """What was found for each network; `note` makes a remark from the number of the chosen step."""
        found = []
        for r, (model, cohort, seed) in enumerate(zip(self.networks.kept(), self.cohorts, seeds, strict=True)):
            trace, goal = self.traces.frame(r), self.goals[r]
            selection = self._selected(r, trace)
            row, met, why = selection.row, selection.met, selection.why
            if self.networks.reduced:
                trace = self._exact(trace, row, model, cohort, r)
                met = select(trace.iloc[[row]], goal).met and (met or not self._verdicts)
            performance = float(trace["performance"].iloc[row])
            if (
                not self._verdicts
                and self.within is not None
                and self.goal.min_performance is not None
                and performance < self.goal.min_performance
            ):
                met = False
                why += f", but its {goal.performance.replace('_', ' ')} {performance:.3f} is below {self.goal.min_performance:g}"
            asked = goal if (self.goal.min_performance is None and self.goal.max_gap is None) or self.within is None else self.goal
            notes = (*self.networks.notes, note(int(trace["step"].iloc[row]))) if note else self.networks.notes
            rule = plain_rule(method, trace, row, cohort, goal)
            found.append(Candidate(method, model, rule, trace, row, why, met, asked, seed, asdict(settings), notes, pace=self.pace))
        return found


@dataclass(frozen=True)
class JointGoal(Goal):
    """The goals of several labels at once, and the search that looks at all of them."""

    names: tuple[str, ...] = ()
    goals: tuple[Goal, ...] = ()
    search: type[Search] = Search

    def describe(self) -> str:
        """One line in words."""
        told = {name: goal.describe() for name, goal in zip(self.names, self.goals, strict=True)}
        return next(iter(told.values())) if len(set(told.values())) == 1 else "; ".join(f"{name}: {text}" for name, text in told.items())


def search_for(networks: Replicas, cohorts: Sequence[Cohort], goal: Goal, within: float | None = None) -> Search:
    """The search for a goal; that of several labels brings its own."""
    return (goal.search if isinstance(goal, JointGoal) else Search)(networks, cohorts, goal, within)
