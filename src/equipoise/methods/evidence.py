"""Gap, performance and rates of held-out decisions with standard errors, for all steps at once.

Each of these is a smooth function of the cell table, so its error is a sum over patients: a row contributes w_i (f_i - rate of its cell) to
a gap, and the variance is the sum of the squared sums of the patients. With one row per patient this is the exact binomial variance of the
cell rates; with several rows it is the limit of the patient bootstrap. The difference between two steps with similar decisions has a much
smaller standard error than either value: `against` gives the standard error of that difference.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from equipoise.data import Rows
from equipoise.measures import (
    BLOCK,
    MEASURES,
    QUOTIENTS,
    RATES,
    Cells,
    FloatArray,
    IntArray,
    enough_decided,
    gap_values,
    is_quotient,
    normalised,
    performance_values,
    ratio,
    tabulate_codes,
    terms,
    units_of,
)
from equipoise.methods.goal import Goal

CAUTION = 2.0  # decisions of either kind that are added to a cell
Parts = Callable[[slice], FloatArray]  # the contribution of each row to the error of a quantity at these steps, (b, n)


@dataclass(frozen=True, eq=False)
class Evidence:
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
    def of(cls, f: FloatArray, rows: Rows, goal: Goal, held: FloatArray | None = None) -> "Evidence":
        """Decisions (steps, n) on the rows of a cohort, or of scores."""
        attribute, units = rows.attribute, units_of(rows.patients, len(rows))
        return cls(f, rows.y, attribute.codes, attribute.levels, units, goal, rows.weight, held)

    @cached_property
    def mass(self) -> FloatArray:
        """The sample weight of each row, 1 on average."""
        weight = normalised(self.weight)
        return np.ones(len(self.y)) if weight is None else weight

    @cached_property
    def cells(self) -> Cells:
        """One cell table per step."""
        return tabulate_codes(self.f, self.y, self.codes, self.levels, normalised(self.weight))

    @cached_property
    def gap(self) -> FloatArray:
        """The signed gap of the largest absolute value, (steps,); NaN if a quotient rests on too few decisions in some group."""
        taken: FloatArray = np.take_along_axis(self._gaps, self._worst[:, None], 1)[:, 0]
        if is_quotient(self.goal.measure):
            return np.where(enough_decided(QUOTIENTS[self.goal.measure], self.cells).all(-1), taken, np.nan)
        return taken

    @cached_property
    def performance(self) -> FloatArray:
        """The goal's performance, (steps,)."""
        return performance_values(self.goal.performance, self.cells)

    def rate(self, name: str) -> FloatArray:
        """A rate of each group, (steps, groups)."""
        return self.cells.rate(name)

    def gap_se(self, against: int | None = None) -> FloatArray:
        """The standard error of |gap|, or of its difference from that of another step, (steps,)."""
        if against is not None:
            return self._spread(self._gap_parts, against)
        spread = self._spread(self._signed_parts, None)  # of the signed gap, since a gap of exactly 0 is not more certain than others
        unseen = np.zeros(len(spread))
        for weight, extra in self._unseen_terms():
            unseen += weight**2 * (np.take_along_axis(extra, self._worst[:, None] + 1, 1)[:, 0] + extra[:, 0])
        return np.sqrt(spread**2 + unseen)

    def change_se(self) -> FloatArray:
        """The standard error of the change from the original's signed gap, (steps,).

        The standard error of the difference in |gap| is unsuitable for steps beyond zero, where the two errors add up.
        """
        return self._spread(self._signed_parts, 0)

    def cautious_se(self) -> float:
        """The standard error of the original's gap, at least that of rates with two more decisions of either kind (Agresti and Coull).

        If all of five patients are positive, the plain standard error is close to zero, and a gap by chance is many times larger.
        """
        error = float(self.gap_se()[0])
        if is_quotient(self.goal.measure):
            return error
        variance, cells = 0.0, self.cells.n[0, :-1]
        for name, weight in terms(self.goal.measure).items():
            label, rates = RATES[name], np.clip(self.rate(name)[0], 0.0, 1.0)
            for group in (0, int(self._worst[0]) + 1):
                n = float(cells[group].sum() if label is None else cells[group, label])
                rate = (n * float(rates[group]) + CAUTION) / (n + 2 * CAUTION)
                variance += weight**2 * rate * (1 - rate) / max(n, 1.0)
        return max(error, float(np.sqrt(variance)))

    def _unseen_terms(self) -> list[tuple[float, FloatArray]]:
        """The weight of each rate in the measure, and its variance where it is exactly 0 or 1."""
        if not is_quotient(self.goal.measure):
            return [(weight, self._unseen(rate)) for rate, weight in terms(self.goal.measure).items()]
        positive, n = self.cells.s[:, :-1].sum(-1), self.cells.n[:, :-1].sum(-1)
        return [(1.0, _jeffreys(self._predictive, positive if QUOTIENTS[self.goal.measure] else n - positive))]

    def performance_se(self, against: int | None = None) -> FloatArray:
        """The standard error of the performance, or of its difference from that of another step, (steps,)."""
        return self._spread(self._performance_parts, against)

    def rate_se(self, name: str, against: int | None = None) -> FloatArray:
        """The standard errors of a rate of each group, or of its differences from those of another step, (steps, groups)."""

        def parts(group: int) -> Parts:
            return lambda steps: self._rate_parts(name, np.full(len(self.gap), group), steps)

        spread = np.stack([self._spread(parts(group), against) for group in range(len(self.levels))], axis=-1)
        return spread if against is not None else np.sqrt(spread**2 + self._unseen(name))

    def _unseen(self, name: str) -> FloatArray:
        """The variance of rates that are exactly 0 or 1, (steps, groups), as in the bootstrap of the audit; 0 for other rates."""
        label, cells = RATES[name], self.cells.n[:, :-1]
        return _jeffreys(self.rate(name), cells.sum(-1) if label is None else cells[..., label])

    @cached_property
    def _gaps(self) -> FloatArray:
        return gap_values(self.goal.measure, self.cells)

    @cached_property
    def _worst(self) -> IntArray:
        worst: IntArray = np.where(np.isnan(self._gaps), -1.0, np.abs(self._gaps)).argmax(-1)
        return worst

    @cached_property
    def _predictive(self) -> FloatArray:
        """PPV or NPV of every group, (steps, groups), for a measure that compares them."""
        return self.cells.rate(MEASURES[self.goal.measure].rate)

    def _gap_parts(self, steps: slice) -> FloatArray:
        """Contributions to |gap|, whose sign is taken as known; 0 for a gap of exactly 0."""
        parts: FloatArray = np.sign(self.gap[steps])[:, None] * self._signed_parts(steps)
        return parts

    def _signed_parts(self, steps: slice) -> FloatArray:
        """Contributions to the signed gap; NaN if it is undefined."""
        reference = np.zeros_like(self._worst)
        if is_quotient(self.goal.measure):
            quotients = self._quotient_parts(self._worst + 1, steps) - self._quotient_parts(reference, steps)
            return np.where(np.isnan(self.gap[steps])[:, None], np.nan, quotients)
        parts = np.zeros((len(self.gap[steps]), len(self.y)))
        for rate, weight in terms(self.goal.measure).items():
            parts += weight * (self._rate_parts(rate, self._worst + 1, steps) - self._rate_parts(rate, reference, steps))
        return parts

    def _rate_parts(self, name: str, group: IntArray, steps: slice) -> FloatArray:
        """Contributions to the rate of one group per step: (f - rate) / n for its rows with the label."""
        label = RATES[name]
        here = self.codes == group[steps, None]
        if label is not None:
            here = here & (self.y == label)
        rate = np.take_along_axis(self.rate(name)[steps], group[steps, None], 1)
        counted = here * self.mass
        parts: FloatArray = counted * (self.f[steps] - rate) / counted.sum(1, keepdims=True)
        return parts

    def _quotient_parts(self, group: IntArray, steps: slice) -> FloatArray:
        """Contributions to PPV or NPV of one group per step: numerator less value times denominator, over the denominator."""
        label = QUOTIENTS[self.goal.measure]
        decided = self.f[steps] if label else 1 - self.f[steps]
        here = np.where(self.codes == group[steps, None], decided, 0.0) * self.mass
        value = np.take_along_axis(self._predictive[steps], group[steps, None], 1)
        return ratio(here * ((self.y == label) - value), here.sum(1, keepdims=True))

    def _performance_parts(self, steps: slice) -> FloatArray:
        """Contributions to the goal's performance."""
        f, y, mass = self.f[steps], self.y, self.mass
        parts: FloatArray
        if self.goal.performance == "f1":  # a quotient: its numerator less F1 times its denominator, over the denominator
            parts = mass * (2 * f * y - self.performance[steps, None] * (f + y)) / (mass * (f + y)).sum(1, keepdims=True)
            return parts
        right = np.where(y == 1, f, 1 - f)
        if self.goal.performance == "accuracy":
            parts = mass * (right - np.average(right, axis=1, weights=mass)[:, None]) / mass.sum()
            return parts
        positive = y == 1
        parts = np.zeros_like(right)
        for rows in (positive, ~positive):
            share = np.average(right[:, rows], axis=1, weights=mass[rows])[:, None]
            parts[:, rows] = mass[rows] * (right[:, rows] - share) / mass[rows].sum() / 2
        return parts

    def _spread(self, parts: Parts, against: int | None) -> FloatArray:
        """The root of the sum of squares of the patients' sums, computed for a few steps at a time."""
        patients = int(self.units.max()) + 1
        order, starts = np.argsort(self.units, kind="stable"), np.searchsorted(np.sort(self.units), np.arange(patients))
        other = None if against is None else parts(slice(against, against + 1))
        total, block = len(self.f), max(1, BLOCK // len(self.y))
        squares = np.empty(total)
        for start in range(0, total, block):
            steps = slice(start, min(start + block, total))
            sums = parts(steps) if other is None else parts(steps) - other
            if patients < len(self.y):
                sums = np.add.reduceat(sums[:, order], starts, axis=1)
            squares[steps] = np.einsum("ij,ij->i", sums, sums)
        spread: FloatArray = np.sqrt(squares * (patients / max(patients - 1, 1)))
        return spread


def _jeffreys(rate: FloatArray, n: FloatArray) -> FloatArray:
    """The variance of the Jeffreys posterior Beta(1/2, n + 1/2) if a rate of n rows is exactly 0 or 1, otherwise 0."""
    variance: FloatArray = np.where((rate == 0) | (rate == 1), 0.5 * (n + 0.5) / ((n + 1) ** 2 * (n + 2)), 0.0)
    return variance
