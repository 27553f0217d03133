"""Looking at replicates on validation data, keeping the best state of each, and choosing a step by the goal."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from torch import nn

from equipoise.data.cohort import Cohort
from equipoise.errors import BadInput
from equipoise.measures.cells import Cells, FloatArray, IntArray, tabulate, tabulate_codes
from equipoise.measures.decision import Threshold
from equipoise.measures.functional import gap_values, linearised, require_cells
from equipoise.measures.gaps import is_quotient
from equipoise.measures.sweep import Sweep, sweep
from equipoise.methods.base import BEFORE, Candidate, Goal
from equipoise.methods.folds import Decided, Fold, Verdict
from equipoise.methods.level_up import NOISE, Keep, highest_thresholds, kept_rates, limits, spare
from equipoise.models.protocol import Replicas
from equipoise.models.score import predict


@dataclass(frozen=True, eq=False)
class Labels:
    """Labels and groups of R validation parts of equal size, as arrays (R, n), and what follows from their counts."""

    y: IntArray
    codes: IntArray
    levels: tuple[str, ...]
    measure: str
    performance: str
    keep: Keep = field(default_factory=dict)

    @classmethod
    def of(cls, cohorts: Sequence[Cohort], goal: Goal) -> "Labels":
        """The labels of these parts; an EmptyCell error where a part lacks what the measure needs."""
        for cohort in cohorts:
            attribute = cohort.attribute
            cells = tabulate(np.zeros(len(cohort)), cohort.y, attribute)
            require_cells(goal.measure, cells, cohort.name)
            for rate in goal.keep:
                require_cells({rate: 1.0}, cells, cohort.name)
            if len(np.unique(cohort.y)) < 2:
                raise BadInput(
                    f"{goal.performance} needs positives and negatives; {cohort.name!r} holds one label in all {len(cohort):,} rows"
                )
        levels = cohorts[0].attribute.levels
        different = [c.name for c in cohorts if c.attribute.levels != levels or len(c) != len(cohorts[0])]
        if different:
            raise BadInput(f"replicates need the same groups and sizes; these differ from {cohorts[0].name!r}: {', '.join(different[:5])}")
        y, codes = np.stack([c.y for c in cohorts]), np.stack([c.attribute.codes for c in cohorts])
        return cls(y, codes, levels, goal.measure, goal.performance, goal.keep)

    def look(self, scores: FloatArray, bound: float | None = None, least: FloatArray | None = None) -> "Look":
        """Gap, performance and threshold (R,) of scores (R, n): the best performance, within a bound on |gap| if one is given.

        Where rates are to be kept, `least` (R, rates * groups) says at what, and thresholds that are too high for that are passed over.
        """
        swept = sweep(scores, self.y, self.codes, self.levels, (self.measure, self.performance))
        if least is not None:
            highest = highest_thresholds(self.keep, scores, self.y, self.codes, len(self.levels), least)
            low = swept.thresholds <= highest[:, None]
            swept = Sweep(swept.thresholds, {name: np.where(low, value, np.nan) for name, value in swept.values.items()})
        # A threshold at which a quotient has no value is passed over; everybody is decided positive at the lowest, so that there is one.
        counts = bound is not None or is_quotient(self.measure)
        choice = swept.best(self.performance, gap=self.measure if counts else None, bound=bound)
        left = None if least is None else spare(self.rates(scores, choice.threshold), least)
        return Look(choice.values[self.measure], choice.values[self.performance], choice.threshold, left)

    def rates(self, scores: FloatArray, thresholds: FloatArray) -> FloatArray:
        """The rates that are to be kept, of every group, at these thresholds (R, rates * groups)."""
        decisions = decided_at(scores, thresholds)
        return kept_rates(self.keep, tabulate_codes(decisions, self.y, self.codes, self.levels))

    @property
    def moving(self) -> bool:
        """Whether the weights change with the decisions: of a quotient, and with many groups."""
        return len(self.levels) > 2 or is_quotient(self.measure)

    def weights(self, scores: FloatArray, thresholds: FloatArray) -> FloatArray:
        """The weights w (R, n) of each replicate's gap; with many groups, of the group whose gap is now the largest."""
        return self.functional(scores, thresholds)[1]

    def functional(self, scores: FloatArray, thresholds: FloatArray) -> tuple[FloatArray, FloatArray]:
        """The offset (R,) and the weights w (R, n) of each replicate's gap around its decisions at these thresholds."""
        decisions = decided_at(scores, thresholds)
        cells = tabulate_codes(decisions, self.y, self.codes, self.levels)
        worst = np.nanargmax(np.abs(gap_values(self.measure, cells)), axis=-1) + 1
        rows, offsets = np.empty(self.y.shape), np.empty(len(self.y))
        for r, group in enumerate(worst):
            affine = linearised(self.measure, Cells(self.levels, cells.n[r], cells.s[r]), int(group))
            offsets[r], rows[r] = affine.offset, affine.weights(self.y[r], self.codes[r])
        return offsets, rows

    @property
    def parts(self) -> "list[tuple[slice | IntArray, Labels]]":
        """The labels that there are, each with the rows that it has: one, with all of them."""
        return [(slice(None), self)]

    def centre(self, thresholds: FloatArray) -> FloatArray:
        """The scores around which the task loss is to be centred, where these are the thresholds."""
        return thresholds


def decided_at(scores: FloatArray, thresholds: FloatArray) -> FloatArray:
    """Hard decisions (R, n) of scores, by thresholds (R,) or by one for every row (R, n)."""
    return (scores >= (thresholds if thresholds.ndim > 1 else thresholds[:, None])).astype(np.float64)


@dataclass(frozen=True, eq=False)
class Look:
    """One look at all replicates: gap, performance and threshold, each (R,)."""

    gap: FloatArray
    performance: FloatArray
    threshold: FloatArray
    spare: FloatArray | None = None  # where rates are to be kept: by how much the scarcest of them is


class Traces:
    """The steps of R replicates, some of which end early."""

    def __init__(self, replicates: int) -> None:
        self.rows: list[list[tuple[float, ...]]] = [[] for _ in range(replicates)]

    def add(self, step: int, look: Look, active: npt.NDArray[np.bool_] | None = None) -> None:
        """One more step of the replicates that still go on."""
        for r, rows in enumerate(self.rows):
            if active is None or active[r]:
                values = [look.gap, look.performance, look.threshold] + ([] if look.spare is None else [look.spare])
                rows.append((step, *(float(value[r]) for value in values)))

    def frame(self, replicate: int) -> pd.DataFrame:
        """The trace of one replicate."""
        rows = self.rows[replicate]
        return pd.DataFrame(rows, columns=["step", "gap", "performance", "threshold", "spare"][: len(rows[0])])


@dataclass(frozen=True)
class Selection:
    """Which row of a trace was chosen, why, and whether it meets the goal."""

    row: int
    why: str
    met: bool


def select(trace: pd.DataFrame, goal: Goal) -> Selection:
    """The paper's rule: the smallest |gap| among steps whose performance is at least the floor.

    With a bound alone: the best performance among steps within it. Where no step will do: the best performance (floor) or the smallest
    |gap| (bound), and `met` is False. Where rates are to be kept, steps that do not keep them are out, and come last if all are.
    """
    size, performance = trace["gap"].abs().fillna(np.inf).to_numpy(), trace["performance"].to_numpy()  # no value is no small gap
    name = goal.performance.replace("_", " ")
    kept = trace["spare"].to_numpy() >= -NOISE if "spare" in trace and goal.keep else np.ones(len(trace), bool)
    pool = kept if kept.any() else np.ones(len(trace), bool)
    if goal.floor is None:
        assert goal.bound is not None  # a settled goal has one of them
        inside = size <= goal.bound + NOISE
        if (inside & kept).any():
            row = int(np.where(inside & kept, performance, -np.inf).argmax())
            return Selection(row, f"best {name} of {_steps(inside & kept)} with |gap| <= {goal.bound:g}{keeping(goal)}", True)
        lacking = f"has |gap| <= {goal.bound:g}{keeping(goal, 'with')}"
        nearest = int(np.nanargmin(np.where(pool, size, np.inf)))
        return Selection(nearest, f"no step of {len(trace)} {lacking}; the smallest |gap| was taken", False)
    enough = performance >= goal.floor - NOISE
    if not (enough & kept).any():
        best = int(np.nanargmax(np.where(pool, performance, -np.inf)))
        lacking = f"reaches {name} {goal.floor:.3g}{keeping(goal, 'with')}"
        which = "the best that keeps this" if goal.keep and kept.any() else "the best"
        return Selection(best, f"no step of {len(trace)} {lacking}; {which} has {performance[best]:.3f} and was taken", False)
    row = int(np.where(enough & kept, size, np.inf).argmin())
    why = f"smallest |gap| of {_steps(enough & kept)} with {name} >= {goal.floor:.3g}{keeping(goal)}"
    if goal.bound is not None and size[row] > goal.bound + NOISE:
        return Selection(row, f"{why}, but it is above the bound {goal.bound:g}", False)
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
        if goal.floor is None:
            feasible = keeps and goal.bound is not None and gap <= goal.bound + NOISE
            rows.append((float(keeps) + feasible, performance if feasible else -gap))
        else:
            feasible = keeps and performance >= goal.floor - NOISE
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

    With `within`, a bound on |gap|, the method maximises performance inside it (the constrained objective of Savani et al.) and must
    leave the original behind; without, the goal decides, and the original counts as a step too. On a fold the decisions of each step are
    written down as well; on a part whose verdict is known the state of that step is kept, and nothing is done after it.
    """

    def __init__(self, networks: Replicas, cohorts: Sequence[Cohort], goal: Goal, within: float | None = None) -> None:
        self.networks, self.cohorts, self.goal, self.within = networks, cohorts, goal, within
        self.labels = self._labelled()
        self.traces = Traces(networks.size)
        self.active = np.ones(networks.size, bool)  # replicates that go on
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
            self.goals = [replace(self.goal, floor=None, bound=self.within, lose=None)] * self.networks.size
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
            improved = better(look, self._best, self.goals) & self.active
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
            if not self._verdicts and self.within is not None and self.goal.floor is not None and performance < self.goal.floor:
                met = False
                why += f", but its {goal.performance.replace('_', ' ')} {performance:.3f} is under the floor {self.goal.floor:g}"
            asked = goal if (self.goal.floor is None and self.goal.bound is None) or self.within is None else self.goal
            notes = (*self.networks.notes, note(int(trace["step"].iloc[row]))) if note else self.networks.notes
            rule = plain_rule(method, trace, row, cohort, goal)
            found.append(Candidate(method, model, rule, trace, row, why, met, asked, seed, asdict(settings), notes))
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
