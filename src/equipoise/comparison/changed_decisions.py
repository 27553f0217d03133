"""Decisions that a repair changed on the same held-out rows: counts by group and label, and the balance of each group per patient."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from equipoise.data import MISSING, Attribute, Scores
from equipoise.measures import AuditSpec, Cells, Estimate, FloatArray, Shown, moments_of_change, tabulate_codes, units_of

BALANCE = ({"corrected": 1.0}, {"spoiled": 1.0}, {"accuracy": 1.0}, {"true": -1.0}, {"false": 1.0})  # the last two: missed findings, alarms
UNKNOWN = Estimate(np.nan, np.nan, np.nan)


@dataclass(frozen=True)
class Counts:
    """Decisions of one group that a repair changed; expected numbers if a rule is randomised."""

    group: str | None  # None: all patients; "": group unknown
    positives: int
    negatives: int
    detected: float  # with the finding: flagged after the repair, not before
    missed: float  # with the finding: flagged before, not after
    cleared: float  # without the finding: flagged before, not after
    alarmed: float  # without the finding: flagged after, not before

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
    """Changes that a repair makes for one group, as shares of all its rows, paired; expectations if a rule is randomised."""

    group: str | None  # None: all patients
    reference: bool
    rows: int
    corrected: Estimate  # decisions that were wrong before and are right after
    spoiled: Estimate  # decisions that were right before and are wrong after
    net: Estimate  # corrected minus spoiled
    missed_before: float  # rows with the finding that are not flagged
    missed_after: float
    missed: Estimate  # after minus before
    alarms_before: float  # rows without the finding that are flagged
    alarms_after: float
    alarms: Estimate


def balances(scores: Scores, shown: Shown, before: FloatArray, after: FloatArray, settings: AuditSpec) -> tuple[Balance, ...]:
    """The balance of each group of an attribute, and of all patients last; NaN for a group with fewer patients than an estimate needs."""
    units, all_patients = units_of(scores.patients, len(scores)), np.zeros(len(scores), dtype=np.int64)
    found, attribute = [], shown.attribute
    for codes, names, rows in ((attribute.codes, attribute.levels, shown.rows), (all_patients, (None,), [len(scores)])):
        moments = moments_of_change(before, after, scores.y, codes, len(names), units, scores.weight)
        sums = [moments.signed(signs).limits(settings.level) for signs in BALANCE]
        tables = [tabulate_codes(decided, scores.y, codes, tuple(map(str, names)), scores.weight) for decided in (before, after)]
        enough = moments["true"].patients >= settings.min_patients
        for k, name in enumerate(names):
            corrected, spoiled, net, missed, alarms = (
                Estimate(float(value[k]), float(low[k]), float(high[k])) if enough[k] else UNKNOWN for value, low, high in sums
            )
            errors = [_error_shares(cells, k) if enough[k] else (np.nan, np.nan) for cells in tables]
            (missed_before, alarms_before), (missed_after, alarms_after) = errors
            found.append(
                Balance(
                    group=name,
                    reference=name is not None and k == 0,
                    rows=int(rows[k]),
                    corrected=corrected,
                    spoiled=spoiled,
                    net=net,
                    missed_before=missed_before,
                    missed_after=missed_after,
                    missed=missed,
                    alarms_before=alarms_before,
                    alarms_after=alarms_after,
                    alarms=alarms,
                )
            )
    return tuple(found)


def _error_shares(cells: Cells, k: int) -> tuple[float, float]:
    """The shares of a group's rows with a missed finding and with a false alarm."""
    n = float(cells.n[k].sum())
    return float(cells.n[k, 1] - cells.s[k, 1]) / n, float(cells.s[k, 0]) / n


def affected(scores: Scores, before: FloatArray, after: FloatArray, attributes: Sequence[Attribute]) -> list[Affected]:
    """Changed decisions on these rows, by the groups of each attribute that have rows."""
    expected = bool(((before % 1 != 0) | (after % 1 != 0)).any())
    patients = None
    if scores.patients is not None and not expected:
        patients = len(set(scores.patients[before != after]))
    return [Affected(attribute.name, tuple(_counts(scores, attribute, before, after)), expected, patients) for attribute in attributes]


def all_attributes(scores: Scores) -> list[Attribute]:
    """The attributes, followed by their intersection if there is more than one, as in an audit."""
    return [*scores.attributes, *([scores.attribute] if len(scores.attributes) > 1 else [])]


def _counts(scores: Scores, attribute: Attribute, before: FloatArray, after: FloatArray) -> Sequence[Counts]:
    gained, lost = np.maximum(after - before, 0.0), np.maximum(before - after, 0.0)  # randomised rules share the draw of a row
    present = set(attribute.codes.tolist())
    groups: list[tuple[str | None, npt.NDArray[np.bool_]]] = [
        (level, attribute.codes == k) for k, level in enumerate(attribute.levels) if k in present
    ]
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
