"""The findings of a comparison as numbers: audits before and after on the test set, the largest gap, groups that got worse, all methods.

Every output (report, cards, audit.json, terminal) is written from one `Findings`, so they agree number by number.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from equipoise.comparison.candidates import ScoredCandidate
from equipoise.comparison.changed_decisions import Affected, Balance, affected, all_attributes, balances
from equipoise.comparison.pairing import same_rows
from equipoise.data import MISSING, Attribute, Scores
from equipoise.measures import (
    CALIBRATION_ERROR,
    GROUP_MEASURES,
    MEASURES,
    NEGLIGIBLE_CHANGE,
    SCORE_MEASURES,
    AuditSpec,
    Contribution,
    Estimate,
    FloatArray,
    LabelAudit,
    Shift,
    ShownScores,
    audit_labels,
    group_estimate,
    is_quotient,
    paired,
    shown_scores,
    upper_bound,
)
from equipoise.methods import Goal, Judgement, Progress, judge

RATES_SHOWN = (*GROUP_MEASURES, *SCORE_MEASURES, CALIBRATION_ERROR)


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
    """One gap before and after; `target` marks the measure of the goal."""

    measure: str
    group: str
    reference: str
    before: Estimate
    after: Estimate
    target: bool


@dataclass(frozen=True)
class Size:
    """The size of one group in one set."""

    rows: int
    patients: int | None
    positives: int | None  # None if they are withheld, because the group has too few patients
    negatives: int | None


@dataclass(frozen=True)
class CohortRow:
    """A group in the repair set (None if unknown) and in the test set; the group is None for all patients and empty if unknown."""

    group: str | None
    reference: bool
    valid: Size | None
    test: Size


@dataclass(frozen=True)
class MethodRow:
    """One method on the test set, with its chosen step on the repair set."""

    name: str
    chosen: bool
    judgement: Judgement | None  # of its decisions on the test set; None for the original
    valid_gap: float
    valid_performance: float
    gap: Estimate
    performance: Estimate
    below: float | None  # distance to the group-aware upper bound on the original scores; None if there is no bound
    needs_group: bool
    changed: float  # number of decisions that differ from the original
    expected: bool  # `changed` is an expectation, because decisions are randomised


@dataclass(frozen=True, eq=False)
class Findings:
    """All numbers of a report."""

    before: LabelAudit
    after: LabelAudit
    audits: tuple[LabelAudit, ...]  # of the original and of every candidate
    gap_before: Estimate  # of the goal's measure on the test set, the largest over the groups
    gap_after: Estimate
    valid_before: float  # the gap on the repair set; NaN if unknown
    valid_after: float
    performance_before: Estimate
    performance_after: Estimate
    gap_change: Estimate  # signed, after minus before, of the group with the largest gap before
    performance_change: Estimate
    shifts: tuple[Shift, ...]
    contributions: tuple[Contribution, ...]
    rates: dict[str, tuple[RateBlock, ...]]  # by attribute
    gaps: dict[str, tuple[GapRow, ...]]
    cohort: dict[str, tuple[CohortRow, ...]]
    affected: tuple[Affected, ...]
    balances: dict[str, tuple[Balance, ...]]  # by attribute: better and worse decisions of each group
    methods: tuple[MethodRow, ...]
    judgement: Judgement  # of the chosen candidate, from its decisions on the test set
    settings: AuditSpec

    @property
    def seen(self) -> str:
        """The change of the gap on the test set: insufficient, unchanged, larger, smaller, or unclear (smaller, perhaps by chance)."""
        change, before, after = self.gap_change, self.gap_before.value, self.gap_after.value
        if np.isnan(change.value) or np.isnan(before):
            return "insufficient"
        if self.affected[0].counts[-1].changed == 0:
            return "unchanged"
        if np.isnan(after) or abs(after) >= abs(before):
            return "larger"
        return "smaller" if change.low > 0 or change.high < 0 else "unclear"

    @property
    def contradicts(self) -> bool:
        """Whether the gap got smaller on the repair set but not on the test set, by a change that excludes that of the repair set."""
        shrank = abs(self.valid_after) < abs(self.valid_before) - NEGLIGIBLE_CHANGE
        there, here = self.valid_after - self.valid_before, self.gap_change
        excluded = not here.low <= there <= here.high
        return bool(shrank and excluded and self.seen in ("larger", "unchanged"))

    @property
    def remains(self) -> bool:
        """Whether the interval of the gap after the repair excludes zero."""
        return bool(self.gap_after.low > 0 or self.gap_after.high < 0)

    @property
    def worse(self) -> tuple[Shift, ...]:
        """Rates of groups that got worse, clear changes first."""
        return tuple(sorted((s for s in self.shifts if s.worse), key=lambda s: (not s.clear, -abs(s.change.value))))

    @property
    def levelled(self) -> tuple[Contribution, ...]:
        """Contributions that made the gap smaller by making a group worse; empty if the gap did not get smaller."""
        if self.seen not in ("smaller", "unclear"):
            return ()
        return tuple(part for part in self.contributions if part.harm and part.towards > 0)

    def rate_of(self, group: str) -> tuple[Estimate, Estimate] | None:
        """One group's rate that the goal's measure compares, before and after; None for a mean of two rates."""
        for block in self.rates[self.main]:
            for row in block.rows:
                if block.rate == self.rate and row.group == group:
                    return row.before, row.after
        return None

    @property
    def main(self) -> str:
        """The attribute whose groups the goal compares: the intersection if there are several."""
        return next(reversed(self.rates))

    @property
    def rate(self) -> str | None:
        """The rate that the goal's measure compares."""
        targets = [row.measure for row in self.gaps[self.main] if row.target]
        return MEASURES[targets[0]].rate or None if targets and targets[0] in MEASURES else None


def find(
    original: ScoredCandidate,
    candidates: Sequence[ScoredCandidate],
    chosen: int,
    settings: AuditSpec,
    labels: int = 1,
    forced: bool = False,
    progress: Progress | None = None,
) -> Findings:
    """The findings on the test set: the original and each candidate audited once, in that order, and each candidate judged.

    `labels` is the number of labels repaired together, over which simultaneous intervals hold; `forced` means that a cell has too few
    patients for any claim.
    """
    entries, result = (original, *candidates), candidates[chosen]
    for tried in candidates:
        same_rows(original.test, tried.test)
    audits = []
    for tried in entries:
        asked = settings.changed(also=(tried.candidate.goal.measure,))
        audits.append(audit_labels({"": tried.test}, {"": tried.candidate.rule}, asked).only)
        if progress is not None:
            progress(len(audits), len(entries))
    shown = shown_scores(original.test, settings.min_patients)
    goal, test, attribute = result.candidate.goal, shown.scores, original.test.attribute
    before, after = audits[0], audits[1 + chosen]
    decided = [(shown.like(tried.test), tried.decisions()[shown.kept]) for tried in entries]
    decisions = decided[0][1], decided[1 + chosen][1]
    pair = paired(test, *decisions, settings)
    judgements = [
        judge(*decided[0], *own, tried.candidate.goal, source="held-out", settings=settings, labels=labels, forced=forced)
        for tried, own in zip(candidates, decided[1:], strict=True)
    ]
    gap_before, gap_after = (largest_gap(audit, goal.measure, attribute.name) for audit in (before, after))
    worst_group = gap_before.group if not np.isnan(gap_before.value) else ""
    return Findings(
        before=before,
        after=after,
        audits=tuple(audits),
        gap_before=gap_before,
        gap_after=gap_after,
        valid_before=float(original.chosen_row["gap"]),
        valid_after=float(result.chosen_row["gap"]),
        performance_before=before[goal.performance],
        performance_after=after[goal.performance],
        gap_change=pair.gap_change(goal.measure, worst_group),
        performance_change=pair.performance_change(goal.performance),
        shifts=tuple(pair.shifts()),
        contributions=tuple(pair.contributions(goal.measure, worst_group)) if worst_group and not is_quotient(goal.measure) else (),
        rates={a.name: _rates(a, before, after) for a in shown.attributes},
        gaps={a.name: _gaps(a, before, after, goal.measure, a.name == attribute.name) for a in shown.attributes},
        cohort=_cohort(original.valid, original.test, settings.min_patients),
        affected=tuple(affected(test, *decisions, shown.attributes)),
        balances={each.attribute.name: balances(test, each, *decisions, settings) for each in shown.groups},
        methods=tuple(
            _method_row(tried, decided[0], own, judgement, tried is result, goal, audit)
            for tried, own, judgement, audit in zip(entries, decided, (None, *judgements), audits, strict=True)
        ),
        judgement=judgements[chosen],
        settings=settings,
    )


def largest_gap(audit: LabelAudit, measure: str, attribute: str) -> Estimate:
    """The gap of one attribute with the largest absolute value, among the groups with sufficient data."""
    rows = audit.gaps[(audit.gaps["measure"] == measure) & (audit.gaps["attribute"] == attribute)]
    known = rows[rows["value"].notna()]
    row = known.loc[known["value"].abs().idxmax()] if len(known) else rows.iloc[0]
    unknown = len(rows) - len(known)
    note = f"{unknown} of {len(rows)} groups have insufficient data" if unknown and len(known) else str(row["note"])
    return Estimate.of_gap(row, note)


def _rates(attribute: Attribute, before: LabelAudit, after: LabelAudit) -> tuple[RateBlock, ...]:
    frames = [audit.groups[audit.groups["attribute"] == attribute.name] for audit in (before, after)]
    return tuple(
        RateBlock(
            rate,
            tuple(
                GroupRate(group, k == 0, *(group_estimate(frame.iloc[k], rate) for frame in frames))
                for k, group in enumerate(attribute.levels)
            ),
        )
        for rate in RATES_SHOWN
    )


def _gaps(attribute: Attribute, before: LabelAudit, after: LabelAudit, measure: str, main: bool) -> tuple[GapRow, ...]:
    frames = (audit.gaps[audit.gaps["attribute"] == attribute.name].to_dict("records") for audit in (before, after))
    rows: dict[str, list[GapRow]] = {measure: []}  # the goal's measure comes first
    for row_before, row_after in zip(*frames, strict=True):
        name, gap = str(row_before["measure"]), Estimate.of_gap(row_before)
        row = GapRow(name, gap.group, gap.reference, gap, Estimate.of_gap(row_after), main and name == measure)
        rows.setdefault(name, []).append(row)
    return tuple(chain.from_iterable(rows.values()))


def _cohort(valid: Scores | None, test: Scores, least: int) -> dict[str, tuple[CohortRow, ...]]:
    """The sizes of all groups in both sets, by attribute."""
    table = {}
    sets = [None if scores is None else (scores, shown_scores(scores, least)) for scores in (valid, test)]
    valid_attributes = [None] * len(all_attributes(test)) if valid is None else all_attributes(valid)
    for k, (in_valid, in_test) in enumerate(zip(valid_attributes, all_attributes(test), strict=True)):
        groups: list[str | None] = list(in_test.levels)
        if in_valid is not None:  # an intersection may be in one set only
            groups = list(dict.fromkeys([*in_valid.levels, *in_test.levels]))
        if any(a is not None and (a.codes == MISSING).any() for a in (in_valid, in_test)):
            groups.append("")
        groups.append(None)
        attributes = (in_valid, in_test)
        table[in_test.name] = tuple(
            CohortRow(group, group == in_test.reference, *(_size(own, k, a, group) for own, a in zip(sets, attributes, strict=True)))
            for group in groups
        )
    return table


def _size(rows_of: tuple[Scores, ShownScores] | None, k: int, attribute: Attribute | None, group: str | None) -> Any:
    """The size of a group of the k-th attribute, of all patients (None), or of rows whose group is unknown ("").

    Positives and negatives are those of the rows that are shown; None for a group that is withheld.
    """
    if rows_of is None or attribute is None:
        return None
    scores, shown = rows_of
    absent = -2  # a code that no row has
    code = MISSING if group == "" else attribute.levels.index(group) if group in attribute.levels else absent
    rows = np.ones(len(scores), bool) if group is None else attribute.codes == code
    patients = None if scores.patients is None else len(set(scores.patients[rows]))
    told = rows & shown.kept
    withheld = (rows.any() and not told.any()) or (code >= 0 and group is not None and bool(shown.groups[k].withheld[code]))
    if withheld:
        return Size(int(rows.sum()), patients, None, None)
    positives = int(scores.y[told].sum())
    return Size(int(rows.sum()), patients, positives, int(told.sum()) - positives)


def _method_row(
    tried: ScoredCandidate,
    original: tuple[Scores, FloatArray],
    own: tuple[Scores, FloatArray],
    judgement: Judgement | None,
    chosen: bool,
    goal: Goal,
    audit: LabelAudit,
) -> MethodRow:
    (scores, before), (_, after) = original, own
    gap = largest_gap(audit, goal.measure, tried.test.attribute.name)
    attribute = with_sufficient_data(scores.attribute, audit, goal.measure)
    return MethodRow(
        tried.name,
        chosen,
        judgement,
        float(tried.chosen_row["gap"]),
        float(tried.chosen_row["performance"]),
        gap,
        audit[goal.performance],
        below_upper_bound(scores, goal, gap.value, audit[goal.performance].value, attribute),
        tried.candidate.rule.needs_group,
        float((before + after - 2 * before * after).sum()),
        bool((after % 1 != 0).any()),
    )


# The group-aware upper bound


def upper_bound_at(scores: Scores, goal: Goal, gaps: npt.ArrayLike, attribute: Attribute | None = None) -> FloatArray | None:
    """The performance of the upper bound on these scores at each |gap|; NaN for a gap that is NaN. None if the bound is not defined."""
    sizes = np.abs(np.atleast_1d(np.asarray(gaps, dtype=np.float64)))
    known = ~np.isnan(sizes)
    groups = attribute or scores.attribute
    measures = goal.measure, goal.performance
    best = upper_bound(scores.score, scores.y, groups.codes, groups.levels, *measures, sizes[known], weight=scores.weight)
    if best is None:
        return None
    limits = np.full(len(sizes), np.nan)
    limits[known] = best
    return limits


def below_upper_bound(scores: Scores, goal: Goal, gap: float, performance: float, attribute: Attribute | None = None) -> float | None:
    """The distance of a performance below the upper bound at the same |gap|; negative if it is above. None without a bound or a gap."""
    best = upper_bound_at(scores, goal, gap, attribute)
    below = np.nan if best is None else float(best[0]) - performance
    return None if np.isnan(below) else below


def with_sufficient_data(attribute: Attribute, audit: LabelAudit, gap: str) -> Attribute:
    """The attribute without groups that have insufficient data in the audit: their gaps would dominate the others."""
    rows = audit.gaps[(audit.gaps["measure"] == gap) & (audit.gaps["attribute"] == attribute.name)]
    insufficient = set(rows.loc[rows["value"].isna(), "group"])
    levels = tuple(level for level in attribute.levels if level not in insufficient)
    if len(levels) < 2:
        return attribute
    codes = np.array([*(levels.index(level) if level in levels else MISSING for level in attribute.levels), MISSING])
    return Attribute(attribute.name, levels, codes[attribute.codes], attribute.named)
