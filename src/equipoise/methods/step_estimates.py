"""Gap, performance and rates of held-out decisions with standard errors, for all steps at once.

Standard errors are those of the audit (see `measures.moments`): sums over patients, with one success and one failure added to each rate,
so that an observed 0 or 1 is not certain. The change from the original, whose decisions are similar, has a much smaller standard error than
either value; it is 0 if no decision differs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from equipoise import measures
from equipoise.data import Attribute, BoolArray, FloatArray, IntArray, Rows
from equipoise.measures import RATES, Cells, Moments, SignedSum, estimated_rate, measure_of, normalise_weights
from equipoise.methods.goal import Goal


@dataclass(frozen=True, eq=False)
class StepEstimates:
    """Decisions of all steps on the same rows, the original's first, with estimates of the goal's measure and performance."""

    f: FloatArray  # (steps, n) in [0, 1]
    y: IntArray  # (n,)
    codes: IntArray  # (n,)
    levels: tuple[str, ...]
    units: IntArray  # (n,) patients, or rows
    goal: Goal
    weight: FloatArray | None = None  # (n,) sample weights
    held: FloatArray | None = None  # (steps, n) decisions by fits without the row, by which the outcome will be judged

    @classmethod
    def of(cls, f: FloatArray, rows: Rows, goal: Goal, held: FloatArray | None = None) -> "StepEstimates":
        """Decisions (steps, n) on the rows of a cohort, or of scores."""
        attribute, units = rows.attribute, measures.units_of(rows.patients, len(rows))
        return cls(f, rows.y, attribute.codes, attribute.levels, units, goal, rows.weight, held)

    @cached_property
    def cells(self) -> Cells:
        """One cell table per step."""
        return measures.Cells.of(self.f, self.y, Attribute("", self.levels, self.codes), normalise_weights(self.weight))

    @cached_property
    def compared(self) -> BoolArray:
        """The groups that the goal's measure compares (groups,)."""
        groups = self.goal.groups or self.levels
        return np.array([level in groups for level in self.levels])

    @property
    def original(self) -> SignedSum:
        """What the measure compares between groups, for the original's decisions on rows that its threshold was not fitted to."""
        coefficients = measure_of(self.goal.measure).coefficients
        return measures.moments_of((self.f if self.held is None else self.held)[0], *self._rows, tuple(coefficients)).signed(coefficients)

    @cached_property
    def values(self) -> FloatArray:
        """What the measure compares between groups, (steps, groups): a rate, or a signed sum of rates; NaN if it is undefined."""
        measure = measure_of(self.goal.measure)
        values: FloatArray = np.sum([sign * self.cells.rate(name) for name, sign in measure.coefficients.items()], axis=0)
        return values if measure.decided is None else np.where(self.cells.enough_decided(measure.decided), values, np.nan)

    @cached_property
    def gap(self) -> FloatArray:
        """The signed gap of the largest absolute value, (steps,); NaN if a quotient rests on too few decisions in some group."""
        if self.compared.all():
            return self.cells.worst_gap(self.goal.measure)
        attribute = Attribute("", self.levels, self.codes).only(self.goal.groups)
        return measures.Cells.of(self.f, self.y, attribute, normalise_weights(self.weight)).worst_gap(self.goal.measure)

    @cached_property
    def performance(self) -> FloatArray:
        """The goal's performance, (steps,)."""
        return self.cells.performance(self.goal.performance)

    def gap_se(self) -> FloatArray:
        """The standard error of the gap of the group with the largest one, (steps,); NaN if the gap is."""
        gaps, coefficients = self.cells.gaps(self.goal.measure), measure_of(self.goal.measure).coefficients
        worst = np.where(np.isnan(gaps) | ~self.compared[1:], -1.0, np.abs(gaps)).argmax(-1)
        sums = (measures.moments_of(f, *self._rows, tuple(coefficients)) for f in self.f)
        variance = [own.gap(coefficients).variance[k] for own, k in zip(sums, worst, strict=True)]
        return np.where(np.isnan(self.gap), np.nan, np.sqrt(variance))

    def performance_se(self, change: bool = False) -> FloatArray:
        """The standard error of the performance, or of its change from that of the original, (steps,)."""
        before = self.f[0] if change else None
        return measures.performance_errors(self.goal.performance, self.f, self.y, self.units, self.weight, before)

    def rate_se(self, name: str, change: bool = False) -> FloatArray:
        """The standard errors of a rate of each group, or of its change from that of the original, (steps, groups)."""
        if change:
            errors = [moved.standard_error({name: 1.0}) for moved in self._changes]
        else:
            rate = {estimated_rate(name): 1.0}
            errors = [np.sqrt(sums.signed(rate).variance) for sums in measures.moments_by_step(self.f, *self._rows, tuple(rate))]
        return np.concatenate(errors).reshape(len(self.f), len(self.levels))

    @property
    def _rows(self) -> tuple[IntArray, IntArray, int, IntArray, FloatArray | None]:
        """Labels, groups and their number, patients and weights of the rows."""
        return self.y, self.codes, len(self.levels), self.units, self.weight

    @cached_property
    def _changes(self) -> list[Moments]:
        """The sums over patients of the decisions of the original that each step changes."""
        return [*measures.moments_by_step(self.f, *self._rows, tuple(RATES), self.f[0])]


def correct_optimism(whole: FloatArray, held: FloatArray, tuned: FloatArray, parts: int, at: Sequence[float], grows: bool) -> FloatArray:
    """The decisions (steps, n) of a fit to all rows, corrected for optimism by those of fits to parts of the rows.

    The optimism is smoothed over the steps: its mean or, if it grows with the steps, a line through them at these positions. The first step
    is the original. If no fit moves its decisions, as with a threshold in use, it was not fitted: it needs no correction, and is no
    evidence of the optimism of the others.

    >>> whole, held, tuned = np.zeros((3, 1)), np.array([[1.0], [4.0], [4.0]]), np.ones((3, 1))
    >>> [correct_optimism(whole, held - [[0.5], [0], [0]], tuned, 2, [0, 1, 2], own)[:, 0].round(6).tolist() for own in (False, True)]
    [[0.916667, 0.916667, 0.916667], [0.041667, 0.916667, 1.791667]]
    """
    optimism = held - tuned
    fitted = slice(0 if len(optimism) < 2 or optimism[0].any() else 1, None)
    decisions, kept = whole.copy(), optimism[fitted]
    smooth: FloatArray = np.broadcast_to(kept.mean(axis=0), kept.shape)
    if grows and len(kept) > 1:
        positions = np.asarray(at[fitted], dtype=np.float64)
        basis = np.stack([np.ones(len(positions)), positions], axis=1)
        smooth = basis @ (np.linalg.pinv(basis) @ kept)
    decisions[fitted] += (1 - 1 / parts) * smooth
    return decisions
