"""What a report says: audits before and after on the test part, the headline gap, who got worse, the cohort, all methods side by side."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from equipoise.data import MISSING, Attribute, Scores
from equipoise.measures import (
    GROUP_MEASURES,
    Audit,
    Cells,
    Estimate,
    Settings,
    audit_scores,
    bootstrap_cells,
    interval,
    is_quotient,
    ratio,
    tabulate,
    units_of,
)
from equipoise.methods import Progress
from equipoise.report.affected import Affected, Part, Shift, affected, all_attributes, paired
from equipoise.report.case import Case, Repair
from equipoise.report.limits import below_limit, with_enough_data
from equipoise.report.words import ALMOST, RATE_OF_GAP, RATES

NONE = Estimate(float("nan"), float("nan"), float("nan"))


@dataclass(frozen=True)
class GroupRate:
    """One rate of one group before and after."""

    group: str
    reference: bool
    before: Estimate
    after: Estimate


@dataclass(frozen=True)
class RateBlock:
    """One rate of all groups of an attribute."""

    rate: str
    rows: tuple[GroupRate, ...]


@dataclass(frozen=True)
class GapRow:
    """One gap before and after; `target` is the one that the goal names."""

    measure: str
    group: str
    reference: str
    before: Estimate
    after: Estimate
    target: bool


@dataclass(frozen=True)
class Size:
    """How many there are in one part."""

    rows: int
    patients: int | None
    positives: int
    negatives: int


@dataclass(frozen=True)
class CohortRow:
    """A group in the validation and the test part; the group is None for everybody and empty where it is missing."""

    group: str | None
    reference: bool
    valid: Size
    test: Size


@dataclass(frozen=True)
class MethodRow:
    """One method on the test part, beside what it reached on validation."""

    name: str
    chosen: bool
    met: bool
    valid_gap: float
    valid_performance: float
    gap: Estimate
    performance: Estimate
    below: float | None  # the best rule that knows the group, on the scores as they came; None where there is none to compare with
    needs_group: bool
    changed: float
    expected: bool


@dataclass(frozen=True, eq=False)
class Findings:
    """All that the page's sections say, as numbers."""

    before: Audit
    after: Audit
    gap_before: Estimate  # of the goal's measure on the test part, the largest over the groups
    gap_after: Estimate
    valid_before: float  # the same on the validation part, as the methods saw it
    valid_after: float
    performance_before: Estimate
    performance_after: Estimate
    gap_change: Estimate  # of its size; below zero it got smaller
    performance_change: Estimate
    shifts: tuple[Shift, ...]
    parts: tuple[Part, ...]
    rates: dict[str, tuple[RateBlock, ...]]  # by attribute
    gaps: dict[str, tuple[GapRow, ...]]
    cohort: dict[str, tuple[CohortRow, ...]]
    affected: tuple[Affected, ...]
    methods: tuple[MethodRow, ...]
    settings: Settings

    @property
    def seen(self) -> str:
        """What the test part shows of the gap: insufficient, unchanged, larger, smaller, or unclear (smaller, but chance could do that)."""
        change = self.gap_change
        if np.isnan(change.value) or np.isnan(self.gap_before.value):
            return "insufficient"
        if self.affected[0].counts[-1].changed == 0:
            return "unchanged"
        if change.value >= 0:
            return "larger"
        return "smaller" if change.high < 0 else "unclear"

    @property
    def contradicts(self) -> bool:
        """The gap shrank on the validation part, and did not on the test part."""
        shrank = abs(self.valid_after) < abs(self.valid_before) - ALMOST
        return bool(shrank and self.seen in ("larger", "unchanged"))

    @property
    def remains(self) -> bool:
        """The interval of the gap after repair leaves out zero."""
        return bool(self.gap_after.low > 0 or self.gap_after.high < 0)

    @property
    def worse(self) -> tuple[Shift, ...]:
        """Rates of groups that got worse, the clear changes first."""
        return tuple(sorted((s for s in self.shifts if s.worse), key=lambda s: (not s.clear, -abs(s.change.value))))

    @property
    def levelled(self) -> tuple[Part, ...]:
        """What made the gap smaller by making somebody worse; empty where the gap did not get smaller."""
        if self.seen not in ("smaller", "unclear"):
            return ()
        return tuple(part for part in self.parts if part.harm and part.towards > 0)

    @property
    def levelled_points(self) -> float:
        """How much of the gap closed that way."""
        return sum(part.towards for part in self.levelled)

    def rate_of(self, group: str) -> tuple[Estimate, Estimate] | None:
        """The rate that the goal's measure compares, of one group, before and after; None for a mean of two rates."""
        for block in self.rates[self.main]:
            for row in block.rows:
                if block.rate == self.rate and row.group == group:
                    return row.before, row.after
        return None

    @property
    def main(self) -> str:
        """The attribute whose groups the goal compares: the intersection where there are several."""
        return next(reversed(self.rates))

    @property
    def rate(self) -> str | None:
        """The rate that the goal's measure compares."""
        targets = [row.measure for row in self.gaps[self.main] if row.target]
        return RATE_OF_GAP.get(targets[0]) if targets else None


def audits_of(case: Case, *, draws: int = 1000, progress: Progress | None = None) -> tuple[Audit, ...]:
    """The audits of the original and of each repair on the test set, in that order. All outputs of a case are written from these."""
    repairs, audits = (case.original, *case.repairs), []
    for repair in repairs:
        rule, also = repair.candidate.rule, [repair.candidate.goal.measure]
        audits.append(audit_scores(repair.test, rule=rule, also=also, draws=draws, seed=case.provenance.seed))
        if progress is not None:
            progress(len(audits), len(repairs))
    return tuple(audits)


def find(case: Case, audits: Sequence[Audit] | None = None, *, draws: int = 1000) -> Findings:
    """The numbers of a report and of a model card, from the audits of the case (see `audits_of`); without them it is audited here."""
    goal, result = case.result.candidate.goal, case.result
    audits = audits_of(case, draws=draws) if audits is None else audits
    before, after = audits[0], audits[1 + case.chosen]
    settings = before.settings
    attribute = case.original.test.attribute
    pair = paired(case.original, result, settings)
    gap_before, gap_after = (headline(found, goal.measure, attribute.name) for found in (before, after))
    furthest = gap_before.group if not np.isnan(gap_before.value) else ""
    return Findings(
        before=before,
        after=after,
        gap_before=gap_before,
        gap_after=gap_after,
        valid_before=float(_chosen_row(case.original)["gap"]),
        valid_after=float(_chosen_row(result)["gap"]),
        performance_before=before[goal.performance],
        performance_after=after[goal.performance],
        gap_change=pair.gap_change(goal.measure),
        performance_change=pair.performance_change(goal.performance),
        shifts=tuple(pair.shifts()),
        parts=tuple(pair.parts(goal.measure, furthest)) if furthest and not is_quotient(goal.measure) else (),
        rates={a.name: _rates(case, a, before, after, settings) for a in all_attributes(case.original.test)},
        gaps={a.name: _gaps(a, before, after, goal.measure, a.name == attribute.name) for a in all_attributes(case.original.test)},
        cohort=_cohort(case.original.valid, case.original.test),
        affected=tuple(affected(case)),
        methods=tuple(
            _method(case, repair, found, attribute.name) for repair, found in zip((case.original, *case.repairs), audits, strict=True)
        ),
        settings=settings,
    )


def headline(found: Audit, measure: str, attribute: str) -> Estimate:
    """The gap of one attribute with the largest absolute value, among the groups that have the patients for one."""
    rows = found.gaps[(found.gaps["measure"] == measure) & (found.gaps["attribute"] == attribute)]
    known = rows[rows["value"].notna()]
    row = known.loc[known["value"].abs().idxmax()] if len(known) else rows.iloc[0]
    short = len(rows) - len(known)
    note = f"{short} of {len(rows)} groups have insufficient data" if short and len(known) else str(row["note"])
    return Estimate(
        float(row["value"]),
        float(row["low"]),
        float(row["high"]),
        note,
        str(row["group"]),
        str(row["reference"]),
        float(row["detectable"]),
        float(row["noise_of_largest"]),
    )


def _chosen_row(repair: Repair) -> "pd.Series[float]":
    row: pd.Series[float] = repair.candidate.trace.iloc[repair.candidate.chosen]
    return row


def _rates(case: Case, attribute: Attribute, before: Audit, after: Audit, settings: Settings) -> tuple[RateBlock, ...]:
    frames = [found.groups[found.groups["attribute"] == attribute.name] for found in (before, after)]
    level = [_calibration_in_the_large(repair.test, attribute, settings) for repair in (case.original, case.result)]
    blocks = []
    wanted = [*RATES, *(rate for rate in ("selection_rate", "fpr", "fnr") if rate not in RATES)]
    for rate in wanted:
        rows = []
        for k, group in enumerate(attribute.levels):
            if rate in GROUP_MEASURES:
                ends = [_estimate(frame.iloc[k], rate) for frame in frames]
            else:
                ends = [found[k] for found in level]
            rows.append(GroupRate(group, k == 0, *ends))
        blocks.append(RateBlock(rate, tuple(rows)))
    return tuple(blocks)


def _estimate(row: "pd.Series[float]", rate: str) -> Estimate:
    return Estimate(float(row[rate]), float(row[f"{rate}_low"]), float(row[f"{rate}_high"]))


def _calibration_in_the_large(scores: Scores, attribute: Attribute, settings: Settings) -> list[Estimate]:
    """Mean score minus share of positives of each group: both follow from the cell table of the scores themselves."""
    units = units_of(scores.patients, len(scores))
    cells = tabulate(scores.score, scores.y, attribute)
    drawn = bootstrap_cells(scores.score, scores.y, attribute.codes, attribute.levels, units, draws=settings.draws, seed=settings.seed)

    def difference(table: Cells) -> np.typing.NDArray[np.float64]:
        n, s = table.n[..., :-1, :], table.s[..., :-1, :]
        return ratio(s.sum(-1) - n[..., 1], n.sum(-1)) + 0.0

    patients = np.array([len(np.unique(units[attribute.codes == k])) for k in range(len(attribute.levels))])
    value = np.where(patients >= settings.min_patients, difference(cells), np.nan)
    low, high = interval(difference(drawn), value, settings.level)
    return [Estimate(float(v), float(a), float(b)) for v, a, b in zip(value, low, high, strict=True)]


def _gaps(attribute: Attribute, before: Audit, after: Audit, measure: str, main: bool) -> tuple[GapRow, ...]:
    rows = []
    for name in dict.fromkeys([measure, *before.gaps["measure"]]):
        pairs = (found.gaps[(found.gaps["measure"] == name) & (found.gaps["attribute"] == attribute.name)] for found in (before, after))
        for old, new in zip(*(frame.itertuples() for frame in pairs), strict=True):
            first, last = (Estimate(r.value, r.low, r.high, r.note, r.group, r.reference, r.detectable, r.noise) for r in (old, new))
            rows.append(GapRow(name, old.group, old.reference, first, last, main and name == measure))
    return tuple(rows)


def _cohort(valid: Scores, test: Scores) -> dict[str, tuple[CohortRow, ...]]:
    found = {}
    for old, new in zip(all_attributes(valid), all_attributes(test), strict=True):
        levels = list(dict.fromkeys([*old.levels, *new.levels]))  # an intersection may be in one part alone
        rows = [
            CohortRow(level, level == new.reference, *(_size(part, _coded(a, level)) for part, a in ((valid, old), (test, new))))
            for level in levels
        ]
        if any((a.codes == MISSING).any() for a in (old, new)):
            rows.append(CohortRow("", False, *(_size(part, a.codes == MISSING) for part, a in ((valid, old), (test, new)))))
        rows.append(CohortRow(None, False, *(_size(part, np.ones(len(part), bool)) for part in (valid, test))))
        found[new.name] = tuple(rows)
    return found


def _coded(attribute: Attribute, level: str) -> np.typing.NDArray[np.bool_]:
    code = attribute.levels.index(level) if level in attribute.levels else -2
    return np.asarray(attribute.codes == code)


def _size(scores: Scores, rows: np.typing.NDArray[np.bool_]) -> Size:
    patients = None if scores.patients is None else len(set(scores.patients[rows]))
    positives = int(scores.y[rows].sum())
    return Size(int(rows.sum()), patients, positives, int(rows.sum()) - positives)


def _method(case: Case, repair: Repair, found: Audit, attribute: str) -> MethodRow:
    candidate, goal = repair.candidate, case.result.candidate.goal
    row = _chosen_row(repair)
    gap = headline(found, goal.measure, attribute)
    among = with_enough_data(case.original.test.attribute, found, goal.measure)
    before, after = case.original.decisions(), repair.decisions()
    return MethodRow(
        repair.name,
        repair is case.result,
        candidate.met,
        float(row["gap"]),
        float(row["performance"]),
        gap,
        found[goal.performance],
        below_limit(case.original.test, goal, gap.value, found[goal.performance].value, among),
        candidate.rule.needs_group,
        float((before + after - 2 * before * after).sum()),
        bool((after % 1 != 0).any()),
    )
