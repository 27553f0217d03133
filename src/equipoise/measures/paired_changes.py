"""Changes of rates, gaps and performance between two sets of decisions on the same rows, with paired intervals."""

from dataclasses import dataclass

import numpy as np

from equipoise.data import Attribute, Scores
from equipoise.measures.bootstrap import units_of
from equipoise.measures.cells import Cells, FloatArray, ratio, tabulate
from equipoise.measures.estimates import Estimate, Settings
from equipoise.measures.functional import gap_values, performance_values, predictive
from equipoise.measures.gaps import QUOTIENTS, RATES, is_quotient, terms
from equipoise.measures.moments import Moments, Signed, moments_of_change

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
        counts = np.min([self.change.patients(rate) for rate in terms(measure) or ("selection",)], axis=0)
        enough = counts >= self.settings.min_patients
        return [k for k in range(1, len(counts)) if enough[k] and enough[0]]

    def gap_change(self, measure: str, group: str) -> Estimate:
        """The signed change of one group's gap, after minus before, on the same patients; NaN where it has too few of them.

        |gap| has a kink at zero, next to which no interval of its change covers; that of a signed change does.
        """
        k = self.attribute.levels.index(group) if group in self.attribute.levels else 0
        if k not in self.usable(measure):
            return Estimate(np.nan, np.nan, np.nan)
        if is_quotient(measure):
            signed: Signed = _quotient_change(QUOTIENTS[measure], self.before, self.after)
        else:
            signed = terms(measure)
        value, low, high = self.change.gaps(signed, self.settings.level)
        return Estimate(float(value[k - 1]), float(low[k - 1]), float(high[k - 1]))

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
