"""What a repair is judged by: the gaps of one measure together, how far they may be off, and paired changes on the same rows.

A `Baseline` is a simple model next to the classifier: where it clearly does better, the classifier itself limits a repair.

Margins are half of the widest 95 % interval. The decisions of a step of a repair are not kept, so its rates are unknown: these are the
intervals of rates of a half, for the number of patients, not of rows; with sample weights, for as many patients of equal weight as they
amount to (Kish).
"""

from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from equipoise.data import Attribute, BoolArray, Scores
from equipoise.measures.cells import Cells, FloatArray, ratio, sums_at, tabulate
from equipoise.measures.clusters import units_of
from equipoise.measures.estimates import FEW, INSUFFICIENT, Estimate, Settings, coefficients
from equipoise.measures.functional import gap_values, largest, performance_values, predictive
from equipoise.measures.gaps import QUOTIENTS, RATES, is_quotient, terms
from equipoise.measures.moments import Moments, Signed, moments_of, moments_of_change
from equipoise.measures.multiplicity import max_t
from equipoise.measures.signed_sums import SignedSum


def gaps_together(scores: Scores, f: FloatArray, measure: str, settings: Settings, labels: int = 1) -> list[Estimate]:
    """The gap of every group but the reference, with its own limits and simultaneous ones; NaN where a group has too few patients.

    All simultaneous intervals of the measure cover with probability `settings.level`, over as many `labels` as are judged together.

    >>> some = Scores.from_arrays([1, 1, 1, 1, 0] * 40, [0.5] * 200, ["F", "M"] * 100, reference="M")
    >>> (gap,) = gaps_together(some, np.tile([0.0, 1.0, 1.0, 1.0], 50), "spd", Settings())
    >>> gap.value, gap.low == gap.simultaneous_low < gap.value
    (-0.5, True)
    """
    attribute = scores.attribute
    sums = _moments(scores, f)
    signed = coefficients(measure)
    value, low, high = sums.gaps(signed, settings.level)
    counts = np.min([sums.patients(name) for name in signed], axis=0)
    patients = np.minimum(counts[1:], counts[0])
    known = (patients >= settings.min_patients) & ~np.isnan(value)
    levels = _levels(sums, measure, known, patients < FEW, 1 - (1 - settings.level) / labels)
    together = {level: sums.gaps(signed, level)[1:] for level in np.unique(levels[known]).tolist()}
    found = []
    for k, group in enumerate(attribute.others):
        estimate = Estimate(np.nan, np.nan, np.nan, INSUFFICIENT)
        if known[k]:
            wide = together[float(levels[k])]
            own = Estimate(float(value[k]), float(low[k]), float(high[k]), few=bool(patients[k] < FEW))
            estimate = replace(own, simultaneous_low=float(wide[0][k]), simultaneous_high=float(wide[1][k]))
        found.append(replace(estimate, group=group, reference=attribute.reference, patients=int(patients[k])))
    return found


def pooled_gaps(scores: Scores, before: FloatArray, after: FloatArray, measure: str, level: float) -> tuple[FloatArray, FloatArray]:
    """The limits of the mean of the gaps before and after of every group but the reference, which is the gap of the pooled decisions.

    |after| is smaller than |before| where the gap moved towards zero and this mean is still on the side of zero that the gap came from.
    """
    _, low, high = _moments(scores, (before + after) / 2).gaps(coefficients(measure), level)
    return low, high


def _moments(scores: Scores, f: FloatArray) -> Moments:
    attribute = scores.attribute
    return moments_of(f, scores.y, attribute.codes, len(attribute.levels), units_of(scores.patients, len(scores)), scores.weight)


def _levels(sums: Moments, measure: str, known: BoolArray, few: BoolArray, level: float) -> FloatArray:
    """The level of each gap's own interval at which all of them cover together, as in `multiplicity`, for one measure."""
    count = int(known.sum())
    levels = np.full(len(known), 1 - (1 - level) / max(count, 1))
    large = np.flatnonzero(known & ~few)
    if len(large) > 1:
        correlation = sums.gap_correlation({measure: coefficients(measure)})[np.ix_(large, large)]
        z = max_t([correlation], 1 - (1 - level) * len(large) / count)
        levels[large] = 2 * NormalDist().cdf(z) - 1
    return levels


WIDEST = 0.25  # the variance of a rate of a half
Z = 1.96


def gap_margin(scores: Scores, measure: str) -> float | None:
    """Half of the widest interval of a gap; None if a cell is empty, or if decisions select the patients.

    >>> four = Scores.from_arrays([1, 0] * 800, [0.5] * 1600, ["F"] * 800 + ["M"] * 800, reference="M")
    >>> round(gap_margin(four, "eod"), 4), round(performance_margin(four, "balanced_accuracy"), 4)  # 1.96 * sqrt(0.5 / 400), ...
    (0.0693, 0.0245)
    """
    if is_quotient(measure):
        return None
    codes, widest = scores.attribute.codes, 0.0
    for other in range(1, len(scores.attribute.levels)):
        cells = [
            (weight, (codes == code) & _of_label(scores, RATES[rate])) for rate, weight in terms(measure).items() for code in (0, other)
        ]
        found = _margin(scores, cells)
        if found is None:
            return None
        widest = max(widest, found)
    return widest


def performance_margin(scores: Scores, performance: str) -> float | None:
    """The same for balanced accuracy and accuracy; None for a performance that is not a mean of rates."""
    shares = {"balanced_accuracy": ((0.5, 1), (0.5, 0)), "accuracy": ((1.0, None),)}.get(performance)
    return None if shares is None else _margin(scores, [(weight, _of_label(scores, label)) for weight, label in shares])


def _margin(scores: Scores, cells: list[tuple[float, npt.NDArray[np.bool_]]]) -> float | None:
    """Half of the widest interval of a signed sum of rates, each over some rows; None where one has no rows."""
    counts = [(weight, _patients(scores, rows)) for weight, rows in cells]
    return None if any(n == 0 for _, n in counts) else Z * float(sum(weight**2 * WIDEST / n for weight, n in counts) ** 0.5)


def _of_label(scores: Scores, label: int | None) -> npt.NDArray[np.bool_]:
    return np.ones(len(scores), bool) if label is None else scores.y == label


def _patients(scores: Scores, rows: npt.NDArray[np.bool_]) -> float:
    """How many patients of equal weight have these rows; a patient weighs as much as their rows do in the mean."""
    units = units_of(scores.patients, len(scores))[rows]
    if not len(units):
        return 0.0
    count = np.bincount(units)
    weight = count.astype(np.float64) if scores.weight is None else sums_at(units, scores.weight[rows], len(count))
    mean = weight[count > 0] / count[count > 0]
    return float(mean.sum() ** 2 / (mean**2).sum())


ALMOST = 5e-4  # a smaller change would be printed as 0.0 or 0.1 points, and counts as none
HARMFUL = {"tpr": -1.0, "fpr": 1.0, "selection": 0.0}  # the direction in which a change of a rate is harmful; being flagged is neither


@dataclass(frozen=True)
class Shift:
    """One rate of one group before and after a repair, and the paired change with its interval."""

    group: str
    reference: bool
    rate: str  # tpr or fpr, as in the cell table
    before: float
    after: float
    change: Estimate

    @property
    def clear(self) -> bool:
        """Whether the interval of the change excludes zero."""
        return self.change.low > 0 or self.change.high < 0

    @property
    def worse(self) -> bool:
        """Whether the change is harmful."""
        return self.change.value * HARMFUL.get(self.rate, 0.0) > ALMOST


@dataclass(frozen=True)
class Contribution:
    """How far one group's rate moved a gap towards zero."""

    group: str
    rate: str
    change: float  # of the rate
    towards: float  # how much smaller it made the gap; negative if it made it larger
    harm: bool
    clear: bool  # the interval of the change excludes zero


@dataclass(frozen=True, eq=False)
class Paired:
    """Cell tables before and after on the same rows, and the moments of the decisions that were gained and lost between them."""

    scores: Scores
    before: Cells
    after: Cells
    change: Moments  # of each group
    overall: Moments  # of all patients
    settings: Settings

    @property
    def attribute(self) -> Attribute:
        """The attribute whose groups are compared."""
        return self.scores.attribute

    def shifts(self) -> list[Shift]:
        """The changes of sensitivity and of the false positive rate of every group with enough patients."""
        found = []
        for rate in ("tpr", "fpr"):
            old, new = (cells.rate(RATES[rate]) for cells in (self.before, self.after))
            changes = self.rate_changes(rate)
            for k, level in enumerate(self.attribute.levels):
                if self.change.patients(rate)[k] >= self.settings.min_patients:
                    found.append(Shift(level, k == 0, rate, float(old[k]), float(new[k]), changes[k]))
        return found

    def usable(self, measure: str) -> list[int]:
        """Positions of the groups, except the reference, with enough patients for a gap."""
        counts = self.patients(measure)
        enough = counts >= self.settings.min_patients
        return [k for k in range(1, len(counts)) if enough[k] and enough[0]]

    def gap_change(self, measure: str, group: str) -> Estimate:
        """The signed change of one group's gap, after minus before, on the same patients; NaN where it has too few of them.

        |gap| has a kink at zero, next to which no interval of its change covers; that of a signed change does.
        """
        k = self.attribute.levels.index(group) if group in self.attribute.levels else 0
        if k not in self.usable(measure):
            return Estimate(np.nan, np.nan, np.nan)
        value, low, high = self.change.gaps(self._coefficients(measure), self.settings.level)
        return Estimate(float(value[k - 1]), float(low[k - 1]), float(high[k - 1]))

    def signed(self, measure: str) -> SignedSum:
        """The change of what a measure compares, of each group (groups,), the reference first."""
        return self.change.signed(self._coefficients(measure))

    def rates(self, measure: str) -> tuple[FloatArray, FloatArray]:
        """What a measure compares, of each group (groups,), before and after."""
        if is_quotient(measure):
            return predictive(QUOTIENTS[measure], self.before), predictive(QUOTIENTS[measure], self.after)
        before, after = (
            np.sum([sign * cells.rate(RATES[rate]) for rate, sign in terms(measure).items()], axis=0) for cells in (self.before, self.after)
        )
        return before, after

    def performance(self, name: str) -> tuple[float, float]:
        """The performance over all patients before and after."""
        return float(performance_values(name, self.before)), float(performance_values(name, self.after))

    def patients(self, measure: str) -> FloatArray:
        """How many patients of each group it rests on (groups,)."""
        found: FloatArray = np.min([self.change.patients(rate) for rate in terms(measure) or ("selection",)], axis=0)
        return found

    def _coefficients(self, measure: str) -> Signed:
        return _quotient_change(QUOTIENTS[measure], self.before, self.after) if is_quotient(measure) else terms(measure)

    def performance_change(self, name: str) -> Estimate:
        """The change of the performance over all patients."""
        if name == "f1":
            signed: Signed = _f1_change(self.before, self.after)
        else:
            signed = {"balanced_accuracy": {"tpr": 0.5, "fpr": -0.5}, "accuracy": {"accuracy": 1.0}}[name]
        value, low, high = self.overall.sums(signed, self.settings.level)
        return Estimate(float(value[0]), float(low[0]), float(high[0]))

    def contributions(self, measure: str, group: str) -> list[Contribution]:
        """The contributions to the change of a gap: every rate of the group and of the reference that the measure consists of."""
        k = self.attribute.levels.index(group)
        direction = np.sign(gap_values(measure, self.before)[k - 1])
        found = []
        for rate, weight in terms(measure).items():
            changes = self.rate_changes(rate)
            for place, side in ((k, 1.0), (0, -1.0)):
                change = changes[place]
                towards = float(-direction * weight * side * change.value)
                harm = change.value * HARMFUL.get(rate, 0.0) > ALMOST
                found.append(
                    Contribution(self.attribute.levels[place], rate, change.value, towards, harm, change.low > 0 or change.high < 0)
                )
        return found

    def rate_changes(self, rate: str) -> list[Estimate]:
        """The change of one rate of every group, the reference first."""
        ends = self.change.sums({rate: 1.0}, self.settings.level)
        return [Estimate(float(value), float(low), float(high)) for value, low, high in zip(*ends, strict=True)]


def _quotient_change(label: int, before: Cells, after: Cells) -> dict[str, FloatArray]:
    """The change of each group's PPV (label 1) or NPV (label 0), from the changes of right and wrong positive decisions per row.

    With T right and S all positive decisions, PPV' - PPV = (T' - T - PPV (S' - S)) / S'. The like holds for NPV and F1.
    """
    rows = after.n[:-1].sum(-1)
    old, selected = predictive(label, before), after.s[:-1].sum(-1)
    decided = selected if label else rows - selected
    true, false = ((1 - old) * rows, -old * rows) if label else (old * rows, -(1 - old) * rows)
    return {"true": ratio(true, decided), "false": ratio(false, decided)}


def _f1_change(before: Cells, after: Cells) -> dict[str, FloatArray]:
    """The change of F1 over all patients, from the changes of right and wrong positive decisions per row."""
    rows, old = after.n.sum(), float(performance_values("f1", before))
    decided = after.s.sum() + after.n[:, 1].sum()
    return {"true": ratio(np.array([(2 - old) * rows]), decided), "false": ratio(np.array([-old * rows]), decided)}


def paired(scores: Scores, old: FloatArray, new: FloatArray, settings: Settings) -> Paired:
    """Decisions before and after on the same rows."""
    attribute = scores.attribute
    units = units_of(scores.patients, len(scores))
    before, after = (tabulate(decisions, scores.y, attribute, scores.weight) for decisions in (old, new))
    change, overall = (
        moments_of_change(old, new, scores.y, codes, groups, units, scores.weight)
        for codes, groups in ((attribute.codes, len(attribute.levels)), (np.zeros(len(scores), np.int64), 1))
    )
    return Paired(scores, before, after, change, overall, settings)


SAME_GAP = 0.01  # by how much a gap may be larger and still count as the same


@dataclass(frozen=True)
class Versus:
    """Decisions of a simple model against those of a classifier on the same rows."""

    value: float  # performance of the simple model
    other: float  # of the classifier
    difference: Estimate  # the first minus the second, paired
    gap: float  # of the goal's measure, the largest over the groups; NaN where there is none
    other_gap: float

    @property
    def clear(self) -> bool:
        """Whether the simple model is better by more than chance explains."""
        return self.difference.low > 0

    def to_dict(self) -> dict[str, object]:
        """Plain values for JSON."""
        gaps = {name: None if np.isnan(value) else value for name, value in (("gap", self.gap), ("other_gap", self.other_gap))}
        return {"value": self.value, "other": self.other, "difference": self.difference.to_dict(), **gaps, "clear": self.clear}


@dataclass(frozen=True)
class Baseline:
    """A logistic regression on the inputs of a network, at its best threshold, judged on the same held-out rows as the network."""

    inputs: str  # "table", or "pixels": images reduced to 16 x 16 pixels and a few statistics
    fitted_on: str  # "training set" or "repair set"
    fitted_rows: int
    rows: int  # held-out rows that both were judged on
    performance: str
    measure: str
    original: Versus  # against the original network
    repaired: Versus | None  # with its own gap held down, against the repaired classifier; None where that was not asked for

    @property
    def beats_original(self) -> bool:
        """Whether it clearly has more performance than the original network."""
        return self.original.clear

    @property
    def beats_repaired(self) -> bool:
        """Whether it clearly has more performance than the repaired classifier, with a gap that is no larger."""
        other = self.repaired
        return other is not None and other.clear and abs(other.gap) <= abs(other.other_gap) + SAME_GAP

    def to_dict(self) -> dict[str, object]:
        """Plain values for JSON."""
        about = {name: getattr(self, name) for name in ("inputs", "fitted_on", "fitted_rows", "rows", "performance", "measure")}
        sides = {name: None if (side := getattr(self, name)) is None else side.to_dict() for name in ("original", "repaired")}
        return {**about, **sides, "beats_original": self.beats_original, "beats_repaired": self.beats_repaired}


def versus(scores: Scores, decided: FloatArray, other: FloatArray, performance: str, measure: str, settings: Settings) -> Versus:
    """What decisions of a simple model are worth against those of another classifier on the same rows."""
    tables = [tabulate(f, scores.y, scores.attribute, scores.weight) for f in (decided, other)]
    mine, theirs = (float(performance_values(performance, cells)) for cells in tables)
    gap, other_gap = (float(largest(gap_values(measure, cells))) for cells in tables)
    return Versus(mine, theirs, paired(scores, other, decided, settings).performance_change(performance), gap, other_gap)
