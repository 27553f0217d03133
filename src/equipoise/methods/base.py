"""The contract of every debiasing method: a goal goes in, a candidate comes out, and the trace says how it was chosen.

A method is `method(model, cohort, goal, *, seed, ...) -> Candidate`. It sees validation data alone, changes none of its arguments, leaves
no hook behind, and gives the same result for the same seed. If nothing meets the goal it returns the best it saw with `met=False`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pandas as pd
from torch import nn

from equipoise.data.cohort import Cohort
from equipoise.errors import BadInput, pick
from equipoise.measures.cells import FloatArray, IntArray, tabulate, tabulate_codes
from equipoise.measures.decision import Rule, Threshold
from equipoise.measures.functional import gap_functional, gap_values, require_cells
from equipoise.measures.gaps import GAPS
from equipoise.measures.performance import AT_THRESHOLD
from equipoise.measures.sweep import sweep

Progress = Callable[[int, int], None]  # steps done, steps at most
KEEP = 0.02  # what a goal without a floor or a bound may lose of the original's performance


@dataclass(frozen=True)
class Goal:
    """What to reach: the smallest |gap| with performance at least `floor`; or the best performance with |gap| within `bound`; or both."""

    measure: str = "eod"
    performance: str = "balanced_accuracy"
    floor: float | None = None
    bound: float | None = None

    def __post_init__(self) -> None:
        pick("measure", self.measure, GAPS)
        pick("performance measure", self.performance, AT_THRESHOLD)
        for name in ("floor", "bound"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= 1:
                raise BadInput(f"the {name} of a goal lies in [0, 1]; got {value}")

    def settled(self, original: float) -> "Goal":
        """The goal itself, or with a floor a little under the original's performance where it has neither floor nor bound."""
        if self.floor is None and self.bound is None:
            return replace(self, floor=max(0.0, original - KEEP))
        return self

    def describe(self) -> str:
        """One line in words."""
        parts = [f"smallest |{self.measure}|" if self.bound is None else f"|{self.measure}| <= {self.bound:g}"]
        if self.floor is not None:
            parts.append(f"{self.performance.replace('_', ' ')} >= {self.floor:.3g}")
        return " with ".join(parts)


@dataclass(frozen=True, eq=False)
class Candidate:
    """What a method found: a network, a decision rule, the steps it tried on validation data, and whether the goal was met."""

    method: str
    model: nn.Module
    rule: Rule
    trace: pd.DataFrame  # one row a step: step, gap, performance, threshold
    chosen: int  # the row of the trace that was chosen
    why: str
    met: bool
    goal: Goal
    seed: int
    settings: Mapping[str, object] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        row = self.trace.iloc[self.chosen]
        state = "goal met" if self.met else "goal NOT met"
        return (
            f"{self.method}: {self.goal.measure} {self.trace['gap'].iloc[0]:+.3f} -> {row['gap']:+.3f}, "
            f"{self.goal.performance.replace('_', ' ')} {self.trace['performance'].iloc[0]:.3f} -> {row['performance']:.3f} "
            f"on validation; {state}; {self.why}"
        )


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
