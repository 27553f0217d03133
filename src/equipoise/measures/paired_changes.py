"""Paired changes: the decisions of two classifiers on the same rows, before and after a repair, or of a simple model and a network.

The denominator of a rate is the same before and after, so its change is a share of decisions gained minus a share lost (Tango 1998). The
denominators of predictive values and of F1 are themselves decisions: their change is the difference of two correlated ratios. The limits of
both are combined with their correlation (Zou and Donner 2008), so they stay between -1 and 1 and are mirrored if the decisions are swapped.
The variance of the change includes half a changed decision of each kind (a true and a false one gained, a true and a false one lost), after
Agresti and Min 2005 (Stat Med 24:729): if no decision changed, those on other patients still might.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from equipoise.data import FloatArray, IntArray, Scores
from equipoise.measures.audit_spec import AuditSpec
from equipoise.measures.cells import Cells, estimated_rates, largest_gap, ratio, sums_at
from equipoise.measures.intervals import Estimate, combine_limits
from equipoise.measures.measure_table import MEASURES, measure_of
from equipoise.measures.moments import (
    BEFORE_AND_AFTER,
    BLOCK_ELEMENTS,
    CHANGE_RATIOS,
    DECISION_RATIOS,
    Clusters,
    Moments,
    SignedSum,
    moments_of,
    moments_of_change,
    units_of,
)

SAME_GAP = 0.01  # by how much a gap may be larger and still count as equal
NEGLIGIBLE_CHANGE = 5e-4  # smaller changes count as none: they would be printed as 0.0 or 0.1 points
HARMFUL = {"tpr": -1.0, "fpr": 1.0}  # the direction in which a change of a rate is harmful; a change of the selection rate is neither


@dataclass(frozen=True)
class Shift:
    """One rate of one group before and after a repair, and the paired change with its interval."""

    group: str
    reference: bool
    rate: str  # tpr or fpr
    before: float
    after: float
    change: Estimate
    towards: float = np.nan  # by how much the change reduced a gap; negative if it increased it

    @property
    def clear(self) -> bool:
        """Whether the interval of the change excludes zero."""
        return self.change.low > 0 or self.change.high < 0

    @property
    def worse(self) -> bool:
        """Whether the change is harmful."""
        return self.change.value * HARMFUL.get(self.rate, 0.0) > NEGLIGIBLE_CHANGE


@dataclass(frozen=True, eq=False)
class PairedDecisions:
    """The comparison of decisions before and after on the same rows."""

    scores: Scores
    decisions: tuple[FloatArray, FloatArray]  # on each row, before and after
    settings: AuditSpec

    @cached_property
    def cells(self) -> tuple[Cells, Cells]:
        """The cell tables of the decisions before and after."""
        before, after = (Cells.of(f, self.scores.y, self.scores.attribute, self.scores.weight) for f in self.decisions)
        return before, after

    @cached_property
    def change(self) -> Moments:
        """The moments of the positive decisions gained and lost in each group."""
        return self._moments()

    def _moments(self, names: Sequence[str] = tuple(CHANGE_RATIOS), *, overall: bool = False) -> Moments:
        """Moments of the decisions before and after, of each group or of all patients."""
        scores, attribute = self.scores, self.scores.attribute
        codes, groups = (np.zeros(len(scores), np.int64), 1) if overall else (attribute.codes, len(attribute.levels))
        clusters = Clusters.of(codes, groups, units_of(scores.patients, len(scores)))
        return moments_of_change(*self.decisions, scores.y, clusters, scores.weight, names)

    def shifts(self) -> list[Shift]:
        """The changes of sensitivity and false positive rate of every group with enough patients."""
        shifts = []
        for rate in ("tpr", "fpr"):
            before, after = (cells.rate(rate) for cells in self.cells)
            changes = self.rate_changes(rate)
            for k, level in enumerate(self.scores.attribute.levels):
                if self.change[rate].patients[k] >= self.settings.min_patients:
                    shifts.append(Shift(level, k == 0, rate, float(before[k]), float(after[k]), changes[k]))
        return shifts

    def gap_change(self, measure: str, group: str) -> Estimate:
        """The signed change of one group's gap, after minus before, on the same patients; NaN if there are too few of them.

        The change is signed because |gap| has a kink at zero, near which no interval of its change has the nominal coverage.
        """
        k, patients = [*self.scores.attribute.levels, group].index(group), self.patients(measure)
        if not 0 < k < len(patients) or min(patients[k], patients[0]) < self.settings.min_patients:
            return Estimate(np.nan, np.nan, np.nan)
        signed = self.signed(measure)
        return Estimate.each(signed[1:].minus(signed[:1]).limits(self.settings.level))[k - 1]

    def signed(self, measure: str) -> SignedSum:
        """The change of the rate, or sum of rates, that a measure compares, for each group (groups,), the reference first."""
        if measure_of(measure).is_quotient:
            return _ratio_change(self._moments(tuple(BEFORE_AND_AFTER)), MEASURES[measure].rate)
        return self.change.signed(measure_of(measure).rates)

    def rates(self, measure: str) -> tuple[FloatArray, FloatArray]:
        """The rate, or sum of rates, that a measure compares, for each group (groups,), before and after."""
        before, after = (
            np.sum([sign * cells.rate(rate) for rate, sign in measure_of(measure).coefficients.items()], axis=0) for cells in self.cells
        )
        return before, after

    def performance(self, name: str) -> tuple[float, float]:
        """The performance over all patients before and after."""
        before, after = (float(cells.performance(name)) for cells in self.cells)
        return before, after

    def patients(self, measure: str) -> FloatArray:
        """The number of patients in each group that a measure rests on (groups,)."""
        counts: FloatArray = np.min([self.change[rate].patients for rate in measure_of(measure).rates or ("selection",)], axis=0)
        return counts

    def performance_change(self, name: str) -> Estimate:
        """The change of the performance over all patients."""
        level = self.settings.level
        if name == "f1":  # 2 J / (1 + J), from the limits of the Jaccard index J before and after and their correlation
            jaccard = _ratio_change(self._moments(tuple(BEFORE_AND_AFTER), overall=True), "jaccard")
            f1, below, above = (2 * j / (1 + j) for j in (jaccard.value, *jaccard.term_limits(level)))
            ends = combine_limits(jaccard.signs, f1, below, above, jaccard.correlation)
        else:
            signed = estimated_rates(name, self.cells[0].n.sum(0))
            ends = self._moments(overall=True).signed(signed).limits(level)
        return Estimate.each(ends)[0]

    def baseline(self, performance: str, measure: str) -> "BaselineComparison":
        """The decisions after, of a simple model, compared with those before, of another classifier."""
        other_value, value = self.performance(performance)
        other_gap, gap = (float(largest_gap(cells.gaps(measure))) for cells in self.cells)
        return BaselineComparison(value, other_value, self.performance_change(performance), gap, other_gap)

    def contributions(self, measure: str, group: str) -> list[Shift]:
        """The contributions to the change of a gap, one for each rate in the measure, of the group and of the reference."""
        k = self.scores.attribute.levels.index(group)
        direction = np.sign(self.cells[0].gaps(measure)[k - 1])
        contributions = []
        for rate, weight in measure_of(measure).rates.items():
            changes = self.rate_changes(rate)
            for code, side in ((k, 1.0), (0, -1.0)):
                towards = float(-direction * weight * side * changes[code].value)
                contributions.append(Shift(self.scores.attribute.levels[code], code == 0, rate, np.nan, np.nan, changes[code], towards))
        return contributions

    def rate_changes(self, rate: str) -> list[Estimate]:
        """The change of one rate of every group, the reference first."""
        return Estimate.each(self.change.signed({rate: 1.0}).limits(self.settings.level))


def moments_by_step(
    f: FloatArray,
    y: IntArray,
    codes: IntArray,
    groups: int,
    units: IntArray,
    weight: FloatArray | None = None,
    names: Sequence[str] = tuple(DECISION_RATIOS),
    before: FloatArray | None = None,
) -> Iterator[Moments]:
    """The moments of several decisions f (steps, n) on the same rows, with the groups of each step in turn; for a few steps at a time.

    With decisions `before` (n,), they are those of the changes (see `moments_of_change`). The other arguments are those of `moments_of`.
    """
    for part in np.array_split(f, -(-f.size // (BLOCK_ELEMENTS // 20))):
        steps, step = len(part), np.repeat(np.arange(len(part)), len(y))
        group, mass = np.tile(codes, steps), None if weight is None else np.tile(weight, steps)
        place, people = np.where(group < 0, -1, group + groups * step), np.tile(units, steps) + (int(units.max(initial=0)) + 1) * step
        label, decisions = np.tile(y, steps), part.ravel()
        if before is None:
            yield moments_of(decisions, label, place, groups * steps, people, mass, names)
        else:
            clusters = Clusters.of(place, groups * steps, people)
            yield moments_of_change(np.tile(before, steps), decisions, label, clusters, mass, names)


def performance_errors(
    name: str, f: FloatArray, y: IntArray, units: IntArray, weight: FloatArray | None = None, before: FloatArray | None = None
) -> FloatArray:
    """The standard errors (steps,) of the performance of decisions f (steps, n) over all rows, or of its changes from decisions `before`.

    - `name`: of a measure of performance at a threshold.
    - `y`, `units`: label and patient of each row.
    - `weight`: sample weights.
    """
    f1 = name == "f1"  # 2 J / (1 + J), whose slope in J is 2 / (1 + J)^2
    signs = {"jaccard": 1.0} if f1 else estimated_rates(name, sums_at(y, 1.0 if weight is None else weight, 2))
    if f1 and before is not None:
        signs = {"jaccard_after": 1.0, "jaccard_before": -1.0}
    errors = []
    for sums in moments_by_step(f, y, np.zeros(len(y), np.int64), 1, units, weight, tuple(signs), before):
        slopes = np.stack([2 / (1 + sums[each].value) ** 2 if f1 else np.ones(len(sums.total)) for each in signs], axis=-1)
        if before is None:
            errors.append(slopes[:, 0] * np.sqrt(sums.signed(signs).variance))
        else:
            slopes = slopes * [*signs.values()]
            variance = np.einsum("sk,skl,sl->s", slopes, sums.covariance([*signs]), slopes)
            errors.append(np.sqrt(np.maximum(variance, 0.0)))
    return np.concatenate(errors)


def _ratio_change(both: Moments, name: str) -> SignedSum:
    """The change of each group's PPV, NPV or Jaccard index: the ratio after minus the ratio before, with their correlation."""
    names = f"{name}_after", f"{name}_before"
    change = both.signed({names[0]: 1.0, names[1]: -1.0})
    sd = np.sqrt(np.maximum(np.diagonal(both.covariance(names), axis1=-2, axis2=-1), 0.0))
    added = np.zeros(len(sd))  # variance of half a changed decision of each kind, by one patient
    for ratio_name in names:
        value, patients = both[ratio_name].value, both[ratio_name].effective
        of_true = np.ones_like(value) if name == "jaccard" else 1 - value  # influence on the numerator minus value times the denominator
        added += np.nan_to_num(ratio((of_true**2 + value**2) / 2, patients**2))
    r = change.correlation[:, 0, 1]
    smaller = r - np.nan_to_num(ratio(added, 2 * sd[:, 0] * sd[:, 1]))
    correlation = change.correlation.copy()
    correlation[:, 0, 1] = correlation[:, 1, 0] = np.maximum(smaller, np.minimum(r, 0.0))
    return replace(change, correlation=correlation)


@dataclass(frozen=True)
class BaselineComparison:
    """A simple model compared with a classifier on the same rows."""

    value: float  # performance of the simple model
    other: float  # performance of the classifier
    difference: Estimate  # the first minus the second, paired
    gap: float  # of the simple model, the largest over the groups; NaN if no group has one
    other_gap: float  # of the classifier

    @property
    def clear(self) -> bool:
        """Whether the interval of the difference shows that the simple model is better."""
        return self.difference.low > 0

    def to_dict(self) -> dict[str, object]:
        """Plain values for JSON."""
        gaps = {name: None if np.isnan(value) else value for name, value in (("gap", self.gap), ("other_gap", self.other_gap))}
        return {"value": self.value, "other": self.other, "difference": self.difference.to_dict(), **gaps, "clear": self.clear}


@dataclass(frozen=True)
class Baseline:
    """A logistic regression on the inputs of a network, at its best threshold, judged on the same held-out rows as the network.

    If it performs clearly better than the network, the network itself limits what a repair can reach.
    """

    inputs: str  # "table", or "pixels": images reduced to 16 x 16 pixels and a few statistics
    fitted_on: str  # "training set" or "repair set"
    fitted_rows: int
    rows: int  # held-out rows that both were judged on
    performance: str
    measure: str
    original: BaselineComparison  # compared with the original network
    repaired: BaselineComparison | None  # with its gap constrained too, compared with the repaired classifier; None if there is none

    @property
    def beats_original(self) -> bool:
        """Whether it performs clearly better than the original network."""
        return self.original.clear

    @property
    def beats_repaired(self) -> bool:
        """Whether it performs clearly better than the repaired classifier, with a gap that is no larger."""
        other = self.repaired
        return other is not None and other.clear and abs(other.gap) <= abs(other.other_gap) + SAME_GAP

    def to_dict(self) -> dict[str, object]:
        """Plain values for JSON."""
        return {
            **vars(self),
            "original": self.original.to_dict(),
            "repaired": None if self.repaired is None else self.repaired.to_dict(),
            "beats_original": self.beats_original,
            "beats_repaired": self.beats_repaired,
        }
