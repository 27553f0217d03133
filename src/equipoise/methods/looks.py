"""Looks at replicates on validation data: gap, performance and threshold of each, and the trace of them, step by step."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pandas as pd

from equipoise.data import Cohort
from equipoise.errors import BadInput
from equipoise.measures import (
    Cells,
    FloatArray,
    IntArray,
    Sweep,
    gap_values,
    is_quotient,
    linearised,
    require_cells,
    sweep,
    tabulate,
    tabulate_codes,
)
from equipoise.methods.base import Goal
from equipoise.methods.level_up import Keep, highest_thresholds, kept_rates, spare


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

    def look(self, scores: FloatArray, max_gap: float | None = None, least: FloatArray | None = None) -> "Look":
        """Gap, performance and threshold (R,) of scores (R, n): the best performance, within a maximum |gap| if one is given.

        Where rates are to be kept, `least` (R, rates * groups) says at what, and thresholds that are too high for that are passed over.
        """
        swept = sweep(scores, self.y, self.codes, self.levels, (self.measure, self.performance))
        if least is not None:
            highest = highest_thresholds(self.keep, scores, self.y, self.codes, len(self.levels), least)
            low = swept.thresholds <= highest[:, None]
            swept = Sweep(swept.thresholds, {name: np.where(low, value, np.nan) for name, value in swept.values.items()})
        # A threshold at which a quotient has no value is passed over; everybody is decided positive at the lowest, so that there is one.
        counts = max_gap is not None or is_quotient(self.measure)
        choice = swept.best(self.performance, gap=self.measure if counts else None, max_gap=max_gap)
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
