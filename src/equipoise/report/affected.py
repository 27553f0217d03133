"""Who is affected: whose decision a repair changes, by group and label, and whether a gap shrank because somebody got worse."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from equipoise.data import MISSING, Attribute, Scores
from equipoise.errors import BadInput
from equipoise.measures import (
    RATES,
    Cells,
    Estimate,
    FloatArray,
    Settings,
    bootstrap_cells,
    gap_values,
    interval,
    labels_needed,
    patients_in_cells,
    performance_values,
    tabulate,
    terms,
    units_of,
)
from equipoise.report.case import Case, Repair
from equipoise.report.words import ALMOST

HARMFUL = {"tpr": -1.0, "fpr": 1.0, "selection": 0.0}  # the direction in which a rate's change does harm; being flagged is neither


@dataclass(frozen=True)
class Counts:
    """Decisions of one group that a repair changed; expected ones where a rule decides by lot."""

    group: str | None  # None: everybody; "": no group known
    positives: int
    negatives: int
    detected: float  # had the finding, flagged now and not before
    missed: float  # had the finding, flagged before and not now
    cleared: float  # did not have it, flagged before and not now
    alarmed: float  # did not have it, flagged now and not before

    @property
    def changed(self) -> float:
        """All that changed."""
        return self.detected + self.missed + self.cleared + self.alarmed


@dataclass(frozen=True)
class Affected:
    """The changed decisions of an attribute's groups, the last entry being everybody."""

    attribute: str
    counts: tuple[Counts, ...]
    expected: bool  # some decision is by lot, so that counts are expectations
    patients: int | None  # different patients with a changed decision; unknown where there are no ids or decisions are by lot


@dataclass(frozen=True)
class Shift:
    """What a repair did to one rate of one group: before, after and the change with its interval over the same patients."""

    group: str
    reference: bool
    rate: str  # tpr or fpr, as in the cell table
    before: float
    after: float
    change: Estimate

    @property
    def clear(self) -> bool:
        """The interval of the change leaves out zero."""
        return self.change.low > 0 or self.change.high < 0

    @property
    def worse(self) -> bool:
        """The change does harm."""
        return self.change.value * HARMFUL.get(self.rate, 0.0) > ALMOST


@dataclass(frozen=True)
class Part:
    """A part of a gap's change: what one group's rate moved it towards zero, in points of the gap."""

    group: str
    rate: str
    change: float  # of the rate
    towards: float  # above zero: the gap got smaller by this much
    harm: bool
    clear: bool  # the interval of the change leaves out zero


@dataclass(frozen=True, eq=False)
class Paired:
    """Cell tables before and after on the same rows, and on the same bootstrap draws of patients."""

    attribute: Attribute
    before: Cells
    after: Cells
    drawn_before: Cells
    drawn_after: Cells
    enough: FloatArray  # (groups, 3) patients with negative rows, with positive rows, and with either
    settings: Settings

    def shifts(self) -> list[Shift]:
        """The change of sensitivity and of the false positive rate of every group that has the patients for it."""
        found = []
        for rate in ("tpr", "fpr"):
            label = RATES[rate]
            old, new = self.before.rate(label), self.after.rate(label)
            drawn = self.drawn_after.rate(label) - self.drawn_before.rate(label)
            for k, level in enumerate(self.attribute.levels):
                if self.enough[k, label or 0] >= self.settings.min_patients:
                    change = self._estimate(new[k] - old[k], drawn[:, k])
                    found.append(Shift(level, k == 0, rate, float(old[k]), float(new[k]), change))
        return found

    def usable(self, measure: str) -> list[int]:
        """Positions of the groups, the reference aside, whose gap has the patients for it."""
        needed = labels_needed(measure)
        counts = self.enough[:, list(needed)].min(-1) if needed else self.enough[:, 2]
        enough = counts >= self.settings.min_patients
        return [k for k in range(1, len(counts)) if enough[k] and enough[0]]

    def gap_change(self, measure: str) -> Estimate:
        """How much the largest |gap| changed: below zero it got smaller."""
        places = [k - 1 for k in self.usable(measure)]
        if not places:
            return Estimate(np.nan, np.nan, np.nan)
        old, new, drawn_old, drawn_new = (
            np.abs(gap_values(measure, cells)[..., places]).max(-1)
            for cells in (self.before, self.after, self.drawn_before, self.drawn_after)
        )
        return self._estimate(float(new - old), drawn_new - drawn_old)

    def performance_change(self, name: str) -> Estimate:
        """How much the performance of everybody together changed."""
        old, new, drawn_old, drawn_new = (
            performance_values(name, cells) for cells in (self.before, self.after, self.drawn_before, self.drawn_after)
        )
        return self._estimate(float(new - old), drawn_new - drawn_old)

    def parts(self, measure: str, group: str) -> list[Part]:
        """What moved the gap between a group and the reference: every rate of either that the measure is made of."""
        k = self.attribute.levels.index(group)
        direction = np.sign(gap_values(measure, self.before)[k - 1])
        found = []
        for rate, weight in terms(measure).items():
            label = RATES[rate]
            drawn = self.drawn_after.rate(label) - self.drawn_before.rate(label)
            for place, side in ((k, 1.0), (0, -1.0)):
                change = self._estimate(float((self.after.rate(label) - self.before.rate(label))[place]), drawn[:, place])
                towards = float(-direction * weight * side * change.value)
                harm = change.value * HARMFUL.get(rate, 0.0) > ALMOST
                found.append(Part(self.attribute.levels[place], rate, change.value, towards, harm, change.low > 0 or change.high < 0))
        return found

    def _estimate(self, value: float, draws: FloatArray) -> Estimate:
        low, high = interval(draws[:, None], np.array([value]), self.settings.level)
        return Estimate(float(value), float(low[0]), float(high[0]))


def paired(original: Repair, repair: Repair, settings: Settings) -> Paired:
    """Before and after on the test part, with the same draws of patients for both."""
    scores, attribute = original.test, original.test.attribute
    same_rows(original.test, repair.test)
    units = units_of(scores.patients, len(scores))
    f = (original.decisions(), repair.decisions())
    before, after = (tabulate(part, scores.y, attribute) for part in f)
    drawn_before, drawn_after = (
        bootstrap_cells(part, scores.y, attribute.codes, attribute.levels, units, draws=settings.draws, seed=settings.seed) for part in f
    )
    enough = patients_in_cells(units, scores.y, attribute)
    return Paired(attribute, before, after, drawn_before, drawn_after, enough, settings)


def affected(case: Case) -> list[Affected]:
    """Changed decisions on the test part, for every attribute and, where there are several, their intersection."""
    scores = case.original.test
    same_rows(scores, case.result.test)
    before, after = case.original.decisions(), case.result.decisions()
    expected = bool(((before % 1 != 0) | (after % 1 != 0)).any())
    patients = None
    if scores.patients is not None and not expected:
        patients = len(set(scores.patients[before != after]))
    return [
        Affected(attribute.name, tuple(_counts(scores, attribute, before, after)), expected, patients)
        for attribute in all_attributes(scores)
    ]


def all_attributes(scores: Scores) -> list[Attribute]:
    """The attributes, and behind several of them their intersection: the order of an audit."""
    several = len(scores.attributes) > 1
    return [*scores.attributes, *([scores.attribute] if several else [])]


def most_changed(case: Case, count: int) -> list[int]:
    """The rows of the test part whose decision, and then whose score, a repair changed most."""
    decision = np.abs(case.result.decisions() - case.original.decisions())
    score = np.abs(case.result.test.score - case.original.test.score)
    order = np.lexsort((-score, -decision))
    return [int(row) for row in order[:count] if decision[row] > 0 or score[row] > 0]


def same_rows(before: Scores, after: Scores) -> None:
    """Raises where two sets of scores are not of the same rows in the same order."""
    if not np.array_equal(before.ids, after.ids) or not np.array_equal(before.y, after.y):
        raise BadInput(
            f"a report compares the same rows before and after; {before.name!r} and {after.name!r} differ in their ids, labels or order. "
            "Score both networks on the same part."
        )


def _counts(scores: Scores, attribute: Attribute, before: FloatArray, after: FloatArray) -> Sequence[Counts]:
    gained, lost = after * (1 - before), before * (1 - after)  # where both are by lot, each is drawn on its own
    everybody = np.ones(len(scores), bool)
    parts: list[tuple[str | None, np.typing.NDArray[np.bool_]]] = [
        (level, attribute.codes == k) for k, level in enumerate(attribute.levels)
    ]
    if (attribute.codes == MISSING).any():
        parts.append(("", attribute.codes == MISSING))
    found = []
    for group, rows in [*parts, (None, everybody)]:
        sick, well = rows & (scores.y == 1), rows & (scores.y == 0)
        found.append(
            Counts(
                group,
                int(sick.sum()),
                int(well.sum()),
                detected=float(gained[sick].sum()),
                missed=float(lost[sick].sum()),
                cleared=float(lost[well].sum()),
                alarmed=float(gained[well].sum()),
            )
        )
    return found
