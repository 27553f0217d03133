"""Decisions that a repair changed on the same held-out rows: counts by group and label, and the balance of each group per patient."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from equipoise.data import MISSING, Attribute, Scores
from equipoise.measures import Cells, Estimate, FloatArray, Settings, moments_of_change, tabulate_codes, units_of

BALANCE = ({"corrected": 1.0}, {"spoiled": 1.0}, {"accuracy": 1.0}, {"true": -1.0}, {"false": 1.0})  # the last: missed findings, alarms
NONE = Estimate(np.nan, np.nan, np.nan)


@dataclass(frozen=True)
class Counts:
    """Decisions of one group that a repair changed; expected numbers where a rule is randomised."""

    group: str | None  # None: all patients; "": group unknown
    positives: int
    negatives: int
    detected: float  # had the finding, flagged now and not before
    missed: float  # had the finding, flagged before and not now
    cleared: float  # did not have it, flagged before and not now
    alarmed: float  # did not have it, flagged now and not before

    @property
    def changed(self) -> float:
        """The number of changed decisions."""
        return self.detected + self.missed + self.cleared + self.alarmed


@dataclass(frozen=True)
class Affected:
    """The changed decisions of an attribute's groups; the last entry is all patients."""

    attribute: str
    counts: tuple[Counts, ...]
    expected: bool  # some decisions are randomised, so counts are expectations
    patients: int | None  # distinct patients with a changed decision; None without patient ids or with randomised decisions


@dataclass(frozen=True)
class Balance:
    """What a repair changes for one group, as shares of all its rows, paired; expected where a rule is randomised."""

    group: str | None  # None: all patients
    reference: bool
    rows: int
    corrected: Estimate  # decisions that are right now and were wrong
    spoiled: Estimate  # decisions that are wrong now and were right
    net: Estimate  # corrected minus spoiled
    missed_before: float  # rows with the finding that are not flagged
    missed_after: float
    missed: Estimate  # after minus before
    alarms_before: float  # rows without the finding that are flagged
    alarms_after: float
    alarms: Estimate


def balances(scores: Scores, attribute: Attribute, before: FloatArray, after: FloatArray, settings: Settings) -> tuple[Balance, ...]:
    """The balance of each group of an attribute, and of all patients last; NaN for a group with fewer patients than an estimate needs."""
    units, everyone = units_of(scores.patients, len(scores)), np.zeros(len(scores), dtype=np.int64)
    found = []
    for codes, names in ((attribute.codes, attribute.levels), (everyone, (None,))):
        moments = moments_of_change(before, after, scores.y, codes, len(names), units, scores.weight)
        sums = [moments.sums(signs, settings.level) for signs in BALANCE]
        tables = [tabulate_codes(decided, scores.y, codes, tuple(map(str, names)), scores.weight) for decided in (before, after)]
        enough = moments.patients("true") >= settings.min_patients
        for k, name in enumerate(names):
            corrected, spoiled, net, missed, alarms = (_estimate(each, k) if enough[k] else NONE for each in sums)
            was, now = (_wrong(cells, k) if enough[k] else (np.nan, np.nan) for cells in tables)
            rows, reference = int((codes == k).sum()), name is not None and k == 0
            found.append(Balance(name, reference, rows, corrected, spoiled, net, was[0], now[0], missed, was[1], now[1], alarms))
    return tuple(found)


def _estimate(ends: Sequence[FloatArray], k: int) -> Estimate:
    value, low, high = (float(end[k]) for end in ends)
    return Estimate(value, low, high)


def _wrong(cells: Cells, k: int) -> tuple[float, float]:
    """Of all rows of a group, the shares with a missed finding and with a false alarm."""
    n = float(cells.n[k].sum())
    return float(cells.n[k, 1] - cells.s[k, 1]) / n, float(cells.s[k, 0]) / n


def affected(scores: Scores, before: FloatArray, after: FloatArray) -> list[Affected]:
    """Changed decisions on these rows, for every attribute and, where there are several, their intersection."""
    expected = bool(((before % 1 != 0) | (after % 1 != 0)).any())
    patients = None
    if scores.patients is not None and not expected:
        patients = len(set(scores.patients[before != after]))
    return [
        Affected(attribute.name, tuple(_counts(scores, attribute, before, after)), expected, patients)
        for attribute in all_attributes(scores)
    ]


def all_attributes(scores: Scores) -> list[Attribute]:
    """The attributes, followed by their intersection where there is more than one: the order of an audit."""
    return [*scores.attributes, *([scores.attribute] if len(scores.attributes) > 1 else [])]


def _counts(scores: Scores, attribute: Attribute, before: FloatArray, after: FloatArray) -> Sequence[Counts]:
    gained, lost = after * (1 - before), before * (1 - after)  # where both are randomised, each is drawn independently
    groups: list[tuple[str | None, npt.NDArray[np.bool_]]] = [(level, attribute.codes == k) for k, level in enumerate(attribute.levels)]
    if (attribute.codes == MISSING).any():
        groups.append(("", attribute.codes == MISSING))
    groups.append((None, np.ones(len(scores), bool)))
    found = []
    for group, rows in groups:
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
