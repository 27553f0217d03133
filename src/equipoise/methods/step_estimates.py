"""Gap, performance and rates of held-out decisions with standard errors, for all steps at once.

Each of these is a smooth function of the cell table, so its error is a sum over patients: a row contributes w_i (f_i - rate of its cell) to
a gap, and the variance is the sum of the squared sums of the patients. With one row per patient this is the exact binomial variance of the
cell rates; with several rows it is the limit of the patient bootstrap. The difference between two steps with similar decisions has a much
smaller standard error than either value: `against` gives the standard error of that difference.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from equipoise import measures
from equipoise.data import Attribute, FloatArray, IntArray, Rows
from equipoise.measures import BLOCK_ELEMENTS, MEASURES, RATES, Cells, Clusters, SignedSum, measure_of, normalise_weights, ratio
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
    def mass(self) -> FloatArray:
        """The sample weight of each row, 1 on average."""
        weight = normalise_weights(self.weight)
        return np.ones(len(self.y)) if weight is None else weight

    @cached_property
    def cells(self) -> Cells:
        """One cell table per step."""
        return measures.Cells.of(self.f, self.y, Attribute("", self.levels, self.codes), normalise_weights(self.weight))

    @property
    def original(self) -> SignedSum:
        """What the measure compares between groups, for the original's decisions on rows that its threshold was not fitted to."""
        before = (self.f if self.held is None else self.held)[0]
        sums = measures.moments_of(before, self.y, self.codes, len(self.levels), self.units, self.weight)
        return sums.signed(measure_of(self.goal.measure).coefficients)

    @cached_property
    def values(self) -> FloatArray:
        """What the measure compares between groups, (steps, groups): a rate, or a signed sum of rates; NaN if it is undefined."""
        measure = measure_of(self.goal.measure)
        values: FloatArray = np.sum([sign * self.cells.rate(name) for name, sign in measure.coefficients.items()], axis=0)
        return values if measure.decided is None else np.where(self.cells.enough_decided(measure.decided), values, np.nan)

    @cached_property
    def gap(self) -> FloatArray:
        """The signed gap of the largest absolute value, (steps,); NaN if a quotient rests on too few decisions in some group."""
        taken: FloatArray = np.take_along_axis(self.cells.gaps(self.goal.measure), self._worst[:, None], 1)[:, 0]
        decided = measure_of(self.goal.measure).decided
        return taken if decided is None else np.where(self.cells.enough_decided(decided).all(-1), taken, np.nan)

    @cached_property
    def performance(self) -> FloatArray:
        """The goal's performance, (steps,)."""
        return self.cells.performance(self.goal.performance)

    def gap_se(self) -> FloatArray:
        """The standard error of the gap, (steps,)."""
        variance, measure = self._spread(self._gap_parts) ** 2, measure_of(self.goal.measure)
        for rate, weight in ({measure.rate: 1.0} if measure.is_quotient else measure.rates).items():
            extra = self._unseen(rate)
            variance = variance + weight**2 * (np.take_along_axis(extra, self._worst[:, None] + 1, 1)[:, 0] + extra[:, 0])
        return np.sqrt(variance)

    def performance_se(self, against: int | None = None) -> FloatArray:
        """The standard error of the performance, or of its difference from that of another step, (steps,)."""
        return self._spread(self._performance_parts, against)

    def rate_se(self, name: str, against: int | None = None) -> FloatArray:
        """The standard errors of a rate of each group, or of its differences from those of another step, (steps, groups)."""
        clusters, label, rate = Clusters.of(self.codes, len(self.levels), self.units), RATES[name], self.cells.rate(name)
        rows, code, patients = clusters.rows, clusters.code, int(self.units.max()) + 1
        counted = (self.mass if label is None else self.mass * (self.y == label))[rows]
        share = ratio(counted, clusters.sum(counted)[code])
        other = (0.0, 0.0) if against is None else (self.f[against], rate[against])
        squares = [clusters.squares(share * ((f - other[0])[rows] - (own - other[1])[code])) for f, own in zip(self.f, rate, strict=True)]
        spread: FloatArray = np.sqrt(np.stack(squares) * (patients / max(patients - 1, 1)))
        return spread if against is not None else np.sqrt(spread**2 + self._unseen(name))

    def _unseen(self, name: str) -> FloatArray:
        """The variance of rates that are exactly 0 or 1, (steps, groups), as in the bootstrap of the audit; 0 for other rates.

        It is that of the Jeffreys posterior Beta(1/2, n + 1/2) of a rate of n rows, or of n decisions of one kind for PPV and NPV.
        """
        cells, rate = self.cells.n[:, :-1], self.cells.rate(name)
        n: FloatArray = cells.sum(-1)
        if measure_of(self.goal.measure).is_quotient and name == MEASURES[self.goal.measure].rate:
            positive = self.cells.s[:, :-1].sum(-1)
            n = positive if measure_of(self.goal.measure).decided else n - positive
        elif RATES[name] is not None:
            n = cells[..., RATES[name]]
        variance: FloatArray = np.where((rate == 0) | (rate == 1), 0.5 * (n + 0.5) / ((n + 1) ** 2 * (n + 2)), 0.0)
        return variance

    @cached_property
    def _worst(self) -> IntArray:
        """The group with the largest |gap|, counted without the reference, (steps,)."""
        gaps = self.cells.gaps(self.goal.measure)
        worst: IntArray = np.where(np.isnan(gaps), -1.0, np.abs(gaps)).argmax(-1)
        return worst

    def _gap_parts(self, steps: slice) -> FloatArray:
        """Contributions to the signed gap; NaN if it is undefined."""
        reference = np.zeros_like(self._worst)
        if measure_of(self.goal.measure).is_quotient:
            quotients = self._quotient_parts(self._worst + 1, steps) - self._quotient_parts(reference, steps)
            return np.where(np.isnan(self.gap[steps])[:, None], np.nan, quotients)
        parts = np.zeros((len(self.gap[steps]), len(self.y)))
        for rate, weight in measure_of(self.goal.measure).rates.items():
            parts += weight * (self._rate_parts(rate, self._worst + 1, steps) - self._rate_parts(rate, reference, steps))
        return parts

    def _rate_parts(self, name: str, group: IntArray, steps: slice) -> FloatArray:
        """Contributions to the rate of one group per step: (f - rate) / n for its rows with the label."""
        label = RATES[name]
        here = (self.codes == group[steps, None]) & ((self.y == label) if label is not None else True)
        rate = np.take_along_axis(self.cells.rate(name)[steps], group[steps, None], 1)
        counted = here * self.mass
        parts: FloatArray = counted * (self.f[steps] - rate) / counted.sum(1, keepdims=True)
        return parts

    def _quotient_parts(self, group: IntArray, steps: slice) -> FloatArray:
        """Contributions to PPV or NPV of one group per step: numerator less value times denominator, over the denominator."""
        label = measure_of(self.goal.measure).decided
        decided = self.f[steps] if label else 1 - self.f[steps]
        here = np.where(self.codes == group[steps, None], decided, 0.0) * self.mass
        value = np.take_along_axis(self.cells.rate(MEASURES[self.goal.measure].rate)[steps], group[steps, None], 1)
        return measures.ratio(here * ((self.y == label) - value), here.sum(1, keepdims=True))

    def _performance_parts(self, steps: slice) -> FloatArray:
        """Contributions to the goal's performance."""
        f, y, mass = self.f[steps], self.y, self.mass
        if self.goal.performance == "f1":  # a quotient: its numerator less F1 times its denominator, over the denominator
            f1: FloatArray = mass * (2 * f * y - self.performance[steps, None] * (f + y)) / (mass * (f + y)).sum(1, keepdims=True)
            return f1
        right = np.where(y == 1, f, 1 - f)
        sides = [np.ones(len(y), bool)] if self.goal.performance == "accuracy" else [y == 1, y != 1]
        parts = np.zeros_like(right)
        for rows in sides:
            share = np.average(right[:, rows], axis=1, weights=mass[rows])[:, None]
            parts[:, rows] = mass[rows] * (right[:, rows] - share) / mass[rows].sum() / len(sides)
        return parts

    def _spread(self, parts: Callable[[slice], FloatArray], against: int | None = None) -> FloatArray:
        """The root of the sum of squares of the patients' sums of `parts`, the contributions of each row at some steps (b, n).

        Computed for a few steps at a time.
        """
        patients = int(self.units.max()) + 1
        order, starts = np.argsort(self.units, kind="stable"), np.searchsorted(np.sort(self.units), np.arange(patients))
        other = 0.0 if against is None else parts(slice(against, against + 1))
        total, block = len(self.f), max(1, BLOCK_ELEMENTS // len(self.y))
        squares = np.empty(total)
        for start in range(0, total, block):
            steps = slice(start, min(start + block, total))
            sums = parts(steps) - other
            if patients < len(self.y):
                sums = np.add.reduceat(sums[:, order], starts, axis=1)
            squares[steps] = np.einsum("ij,ij->i", sums, sums)
        spread: FloatArray = np.sqrt(squares * (patients / max(patients - 1, 1)))
        return spread


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
