"""Looking at replicates on validation data, keeping the best state of each, and choosing a step by the goal."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from torch import nn

from equipoise.data.cohort import Cohort
from equipoise.errors import BadInput
from equipoise.measures.cells import FloatArray, IntArray, tabulate, tabulate_codes
from equipoise.measures.decision import Threshold
from equipoise.measures.functional import gap_functional, gap_values, require_cells
from equipoise.measures.sweep import sweep
from equipoise.methods.base import Candidate, Goal
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

    @classmethod
    def of(cls, cohorts: Sequence[Cohort], goal: Goal) -> "Labels":
        """The labels of these parts; an EmptyCell error where a part lacks what the measure needs."""
        for cohort in cohorts:
            attribute = cohort.attribute
            require_cells(goal.measure, tabulate(np.zeros(len(cohort)), cohort.y, attribute), cohort.name)
            if len(np.unique(cohort.y)) < 2:
                raise BadInput(
                    f"{goal.performance} needs positives and negatives; {cohort.name!r} holds one label in all {len(cohort):,} rows"
                )
        levels = cohorts[0].attribute.levels
        different = [c.name for c in cohorts if c.attribute.levels != levels or len(c) != len(cohorts[0])]
        if different:
            raise BadInput(f"replicates need the same groups and sizes; these differ from {cohorts[0].name!r}: {', '.join(different[:5])}")
        y, codes = np.stack([c.y for c in cohorts]), np.stack([c.attribute.codes for c in cohorts])
        return cls(y, codes, levels, goal.measure, goal.performance)

    def look(self, scores: FloatArray, bound: float | None = None) -> "Look":
        """Gap, performance and threshold (R,) of scores (R, n): the best performance, within a bound on |gap| if one is given."""
        swept = sweep(scores, self.y, self.codes, self.levels, (self.measure, self.performance))
        choice = swept.best(self.performance, gap=self.measure if bound is not None else None, bound=bound)
        return Look(choice.values[self.measure], choice.values[self.performance], choice.threshold)

    def weights(self, scores: FloatArray, thresholds: FloatArray) -> FloatArray:
        """The weights w (R, n) of each replicate's gap; with many groups, of the group whose gap is now the largest."""
        decisions = (scores >= thresholds[:, None]).astype(np.float64)
        cells = tabulate_codes(decisions, self.y, self.codes, self.levels)
        worst = np.nanargmax(np.abs(gap_values(self.measure, cells)), axis=-1) + 1
        rows = np.empty(self.y.shape)
        for r, group in enumerate(worst):
            rows[r] = gap_functional(self.measure, cells.n[r], int(group)).weights(self.y[r], self.codes[r])
        return rows


@dataclass(frozen=True, eq=False)
class Look:
    """One look at all replicates: gap, performance and threshold, each (R,)."""

    gap: FloatArray
    performance: FloatArray
    threshold: FloatArray


class Traces:
    """The steps of R replicates, some of which end early."""

    def __init__(self, replicates: int) -> None:
        self.rows: list[list[tuple[int, float, float, float]]] = [[] for _ in range(replicates)]

    def add(self, step: int, look: Look, active: npt.NDArray[np.bool_] | None = None) -> None:
        """One more step of the replicates that still go on."""
        for r, rows in enumerate(self.rows):
            if active is None or active[r]:
                rows.append((step, float(look.gap[r]), float(look.performance[r]), float(look.threshold[r])))

    def frame(self, replicate: int) -> pd.DataFrame:
        """The trace of one replicate."""
        return pd.DataFrame(self.rows[replicate], columns=["step", "gap", "performance", "threshold"])


@dataclass(frozen=True)
class Selection:
    """Which row of a trace was chosen, why, and whether it meets the goal."""

    row: int
    why: str
    met: bool


def select(trace: pd.DataFrame, goal: Goal) -> Selection:
    """The paper's rule: the smallest |gap| among steps whose performance is at least the floor.

    With a bound alone: the best performance among steps within it. Where no step will do: the best performance (floor) or the smallest
    |gap| (bound), and `met` is False.
    """
    size, performance = trace["gap"].abs().to_numpy(), trace["performance"].to_numpy()
    name = goal.performance.replace("_", " ")
    if goal.floor is None:
        assert goal.bound is not None  # a settled goal has one of them
        inside = size <= goal.bound
        if inside.any():
            row = int(np.where(inside, performance, -np.inf).argmax())
            return Selection(row, f"best {name} of {int(inside.sum())} steps with |gap| <= {goal.bound:g}", True)
        return Selection(
            int(np.nanargmin(size)), f"no step of {len(trace)} has |gap| <= {goal.bound:g}; the smallest |gap| was taken", False
        )
    enough = performance >= goal.floor
    if not enough.any():
        best = int(np.nanargmax(performance))
        why = f"no step of {len(trace)} reaches {name} {goal.floor:.3g} (the best has {performance[best]:.3f}); the best was taken"
        return Selection(best, why, False)
    row = int(np.where(enough, size, np.inf).argmin())
    why = f"smallest |gap| of {int(enough.sum())} steps with {name} >= {goal.floor:.3g}"
    if goal.bound is not None and size[row] > goal.bound:
        return Selection(row, f"{why}, but it is above the bound {goal.bound:g}", False)
    return Selection(row, why, True)


def better(look: Look, best: "Look | None", goals: Sequence[Goal]) -> npt.NDArray[np.bool_]:
    """Which replicates (R,) are now better, by the rule of `select`, than the best so far, so that a copy is to be kept."""
    if best is None:
        return np.ones(len(look.gap), bool)
    now, before = (_merit(x, goals) for x in (look, best))
    improved: npt.NDArray[np.bool_] = (now[:, 0] > before[:, 0]) | ((now[:, 0] == before[:, 0]) & (now[:, 1] > before[:, 1]))
    return improved


def _merit(look: Look, goals: Sequence[Goal]) -> FloatArray:
    """(R, 2): feasible or not, and how good among its like."""
    rows = []
    for gap, performance, goal in zip(np.abs(look.gap), look.performance, goals, strict=True):
        if goal.floor is None:
            feasible = goal.bound is not None and gap <= goal.bound
            rows.append((float(feasible), performance if feasible else -gap))
        else:
            feasible = performance >= goal.floor
            rows.append((float(feasible), -gap if feasible else performance))
    return np.array(rows)


def keep_best(best: "Look | None", look: Look, improved: npt.NDArray[np.bool_]) -> Look:
    """The best look so far, replicate by replicate."""
    if best is None:
        return look
    return Look(
        np.where(improved, look.gap, best.gap),
        np.where(improved, look.performance, best.performance),
        np.where(improved, look.threshold, best.threshold),
    )


def plain_rule(method: str, trace: pd.DataFrame, row: int, cohort: Cohort, goal: Goal) -> Threshold:
    """The threshold of the chosen step."""
    origin = f"chosen by {method} with {goal.describe()} on {len(cohort):,} rows of {cohort.name}"
    return Threshold(float(trace["threshold"].iloc[row]), origin)


class Search:
    """The steps that a method tries on R networks: looks at them, keeps a copy of the best state of each, and makes the candidates.

    With `within`, a bound on |gap|, the method maximises performance inside it (the constrained objective of Savani et al.) and must
    leave the original behind; without, the goal decides, and the original counts as a step too.
    """

    def __init__(self, networks: Replicas, cohorts: Sequence[Cohort], goal: Goal, within: float | None = None) -> None:
        self.networks, self.cohorts, self.goal, self.within = networks, cohorts, goal, within
        self.labels = Labels.of(cohorts, goal)
        self.traces = Traces(networks.size)
        self.active = np.ones(networks.size, bool)  # replicates that go on
        self.goals: list[Goal] = []
        self._best: Look | None = None

    def begin(self, scores: FloatArray) -> Look:
        """The look at the original networks, step 0."""
        look = self.labels.look(scores)
        self.traces.add(0, look)
        if self.within is None:
            self.goals = [self.goal.settled(float(p)) for p in look.performance]
            self._best = look
        else:
            self.goals = [replace(self.goal, floor=None, bound=self.within)] * self.networks.size
        return look

    def step(self, number: int, scores: FloatArray) -> Look:
        """The look at one more step of the replicates that go on; those that improved are kept."""
        look = self.labels.look(scores, bound=self.within)
        self.traces.add(number, look, self.active)
        improved = better(look, self._best, self.goals) & self.active
        self._best = keep_best(self._best, look, improved)
        self.networks.keep(improved)
        return look

    def _exact(self, trace: pd.DataFrame, row: int, model: nn.Module, cohort: Cohort) -> pd.DataFrame:
        """The trace with its chosen row looked at again in full precision, which is how the network will be used."""
        look = self.labels.look(predict(model, cohort).score[None], bound=self.within)
        exact = trace.copy()
        exact.loc[row, ["gap", "performance", "threshold"]] = [look.gap[0], look.performance[0], look.threshold[0]]
        return exact

    def candidates(self, method: str, seeds: Sequence[int], settings: Any, note: Callable[[int], str] | None = None) -> list[Candidate]:
        """What was found for each network; `note` makes a remark from the number of the chosen step."""
        found = []
        for r, (model, cohort, seed) in enumerate(zip(self.networks.kept(), self.cohorts, seeds, strict=True)):
            trace, goal = self.traces.frame(r), self.goals[r]
            first = 0 if self.within is None else 1
            selection = select(trace.iloc[first:], goal)
            row, met, why = selection.row + first, selection.met, selection.why
            if self.networks.reduced:
                trace = self._exact(trace, row, model, cohort)
                met = select(trace.iloc[[row]], goal).met
            performance = float(trace["performance"].iloc[row])
            if self.within is not None and self.goal.floor is not None and performance < self.goal.floor:
                met = False
                why += f", but its {goal.performance.replace('_', ' ')} {performance:.3f} is under the floor {self.goal.floor:g}"
            asked = goal if (self.goal.floor is None and self.goal.bound is None) or self.within is None else self.goal
            notes = (*self.networks.notes, note(int(trace["step"].iloc[row]))) if note else self.networks.notes
            rule = plain_rule(method, trace, row, cohort, goal)
            found.append(Candidate(method, model, rule, trace, row, why, met, asked, seed, asdict(settings), notes))
        return found
