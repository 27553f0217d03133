"""Looking at replicates on validation data, keeping the best state of each, and choosing a step by the goal."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

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


def constrained_candidate(
    method: str,
    model: nn.Module,
    traces: Traces,
    replicate: int,
    cohort: Cohort,
    goal: Goal,
    inner: Goal,
    seed: int,
    settings: object,
    notes: tuple[str, ...],
) -> Candidate:
    """The candidate of a method that maximises performance within a bound: chosen among the steps after the original."""
    trace = traces.frame(replicate)
    selection = select(trace.iloc[1:], inner)
    row = selection.row + 1
    met, why = selection.met, selection.why
    performance = float(trace["performance"].iloc[row])
    if goal.floor is not None and performance < goal.floor:
        met, why = False, f"{why}, but its {goal.performance.replace('_', ' ')} {performance:.3f} is under the floor {goal.floor:g}"
    settled = goal if goal.bound is not None or goal.floor is not None else inner
    rule = plain_rule(method, trace, row, cohort, inner)
    return Candidate(method, model, rule, trace, row, why, met, settled, seed, asdict(settings), notes)  # type: ignore[call-overload]
