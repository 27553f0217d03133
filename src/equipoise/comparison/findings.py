"""The findings of a comparison as numbers: audits before and after on the test set, the largest gap, groups that got worse, all methods.

Every output (report, cards, audit.json, terminal) is written from one `Findings`, so they agree number by number. Candidates are chosen on
the repair set. The test set is scored once per candidate and has no influence on the choice.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pandas as pd

from equipoise import measures
from equipoise.data import MISSING, Attribute, FloatArray, Identities, Scores
from equipoise.errors import BadInput
from equipoise.measures import (
    MEASURES,
    AuditSpec,
    Clusters,
    Estimate,
    LabelAudit,
    PairedDecisions,
    Rule,
    Shift,
    ShownGroups,
    SignedSum,
    units_of,
)
from equipoise.methods import FoldRule, Goal, HeldOutDecisions, Judgement, LabelCandidate, Progress, judge, widened

BALANCE = ({"corrected": 1.0}, {"spoiled": 1.0}, {"accuracy": 1.0}, {"true": -1.0}, {"false": 1.0})  # the last two: missed findings, alarms
BeforeAfter = dict[str, dict[str, dict[str, tuple[Estimate, Estimate]]]]  # by attribute, measure and group
MOST_PERIODS, PERIOD_PATIENTS = 4, 100  # of the test set; a period has at least so many patients
REPORTED_RATES = (*measures.GROUP_MEASURES, *measures.SCORE_MEASURES, measures.CALIBRATION_ERROR)


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


@dataclass(frozen=True, eq=False)
class ScoredCandidate:
    """A candidate under its name, with its scores on the repair set (None if unknown) and on the test set."""

    candidate: LabelCandidate
    valid: Scores | None
    test: Scores
    seconds: float = 0.0
    units: Mapping[str, FloatArray] = field(default_factory=dict)  # by layer: the share of channels that pruning left on (height, width)
    called: str = ""  # default: the method

    @property
    def name(self) -> str:
        """The name in tables and reports."""
        return self.called or self.candidate.method

    @property
    def chosen_row(self) -> "pd.Series[float]":
        """The chosen step on the repair set."""
        return cast("pd.Series[float]", self.candidate.trace.iloc[self.candidate.chosen])

    def decisions(self) -> FloatArray:
        """The decisions on the test set, or the probabilities of a randomised 1."""
        return self.rule.decide(self.test)

    @property
    def nested(self) -> HeldOutDecisions | None:
        """The decisions by repairs fitted without the row, if the test set is the repair set (`repair.test = "cross"`)."""
        held = self.candidate.held_out
        return held if held is not None and held.nested else None

    def decides_as(self, other: "ScoredCandidate") -> bool:
        """Whether both are the same rule on the same scores, whatever they are called and why they were chosen."""
        return self.test is other.test and self.candidate.rule is other.candidate.rule and self.nested is other.nested

    @property
    def rule(self) -> Rule:
        """The rule as it is tested."""
        tested, held = self.candidate.rule, self.nested
        return tested if held is None else cast(Rule, FoldRule(tested, self.test.ids, held.after))


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


@dataclass(frozen=True)
class Period:
    """The gap before and after in patients of the test set who were first seen in one period, and its paired change."""

    first: str  # the first month, as in 2026-01: a day would be that of one patient
    last: str
    patients: int
    before: float
    after: float
    change: Estimate


@dataclass(frozen=True)
class PeriodChanges:
    """The change of a gap in consecutive periods of the test set, and Cochran's test of whether it is the same in all of them."""

    group: str
    periods: tuple[Period, ...]
    p_value: float  # NaN unless two periods have an estimate

    def to_dict(self) -> dict[str, object]:
        """Plain values for JSON."""
        rows = [vars(each) | {"change": each.change.to_dict()} for each in self.periods]
        return {"group": self.group, "periods": rows, "p_value": None if np.isnan(self.p_value) else self.p_value}


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
    contributions: tuple[Shift, ...]
    rates: BeforeAfter  # the reference group first
    gaps: BeforeAfter  # the measure of the goal first
    cohort: dict[str, tuple[CohortRow, ...]]
    affected: tuple[Affected, ...]
    balances: dict[str, tuple[Balance, ...]]  # by attribute: better and worse decisions of each group
    methods: tuple[MethodRow, ...]
    judgement: Judgement  # of the chosen candidate, from its decisions on the test set
    settings: AuditSpec
    periods: PeriodChanges | None = None  # of the largest gap before, if the days of the test rows are known

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
        shrank = abs(self.valid_after) < abs(self.valid_before) - measures.NEGLIGIBLE_CHANGE
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
    def levelled(self) -> tuple[Shift, ...]:
        """Contributions that made the gap smaller by making a group worse; empty if the gap did not get smaller."""
        if self.seen not in ("smaller", "unclear"):
            return ()
        return tuple(part for part in self.contributions if part.worse and part.towards > 0)

    def rate_of(self, group: str) -> tuple[Estimate, Estimate] | None:
        """One group's rate that the goal's measure compares, before and after; None for a mean of two rates."""
        return self.rates[self.main].get(self.rate or "", {}).get(group)

    @property
    def main(self) -> str:
        """The attribute whose groups the goal compares: the intersection if there are several."""
        return next(reversed(self.rates))

    @property
    def rate(self) -> str | None:
        """The rate that the goal's measure compares."""
        measure = next(iter(self.gaps[self.main]))
        return MEASURES[measure].rate or None if measure in MEASURES else None


def find(
    original: ScoredCandidate,
    candidates: Sequence[ScoredCandidate],
    chosen: int,
    settings: AuditSpec,
    labels: int = 1,
    forced: bool = False,
    audited: list[tuple[ScoredCandidate, AuditSpec, LabelAudit]] | None = None,
    progress: Progress | None = None,
) -> Findings:
    """The findings on the test set: the original and each candidate audited once, in that order, and each candidate judged.

    `labels` is the number of labels repaired together, over which simultaneous intervals hold; `forced` means that a cell has too few
    patients for any claim. `audited` holds what was audited before, and receives the other audits.
    """
    audited = [] if audited is None else audited
    entries, result, audits = (original, *candidates), candidates[chosen], list[LabelAudit]()
    for tried in entries:
        if not np.array_equal(original.test.ids, tried.test.ids) or not np.array_equal(original.test.y, tried.test.y):
            raise BadInput(
                f"a comparison needs the same rows before and after; {original.test.name!r} and {tried.test.name!r} differ in ids, labels "
                "or order. Score both networks on the same cohort."
            )
    for tried in entries:
        spec = settings.changed(also=(tried.candidate.goal.measure,))
        known = next((audit for other, about, audit in audited if about == spec and other.decides_as(tried)), None)
        if known is None:
            known = measures.audit_labels({"": tried.test}, {"": tried.rule}, spec).only
            audited.append((tried, spec, known))
        audits.append(known)
        if progress is not None:
            progress(len(audits), len(entries))
    shown = measures.shown_scores(original.test, settings.min_patients, settings.intersections)
    goal, test, main = result.candidate.goal, shown.scores, original.test.attribute.name
    before, after = audits[0], audits[1 + chosen]
    decided = [(shown.like(tried.test), tried.decisions()[shown.kept]) for tried in entries]
    decisions = decided[0][1], decided[1 + chosen][1]
    pair = PairedDecisions(test, decisions, settings)
    spread: Mapping[str, float] = {} if result.nested is None else result.nested.spread
    judgements: list[Judgement | None] = [None]  # the original is not judged
    for tried, own in zip(candidates, decided[1:], strict=True):
        limits: dict[str, Any] = {"settings": settings, "labels": labels, "forced": forced}
        limits["later"] = tested_later(tried)
        limits |= {"source": "held-out"} if tried.nested is None else {"source": "nested", "spread": tried.nested.spread}
        judgements.append(judge(*decided[0], *own, tried.candidate.goal, **limits))
    if goal.performance in before.estimates:
        performances = [audit[goal.performance] for audit in audits]
    else:  # at odds of the goal, which no audit knows
        performances = [measures.estimate_performance(own, f, [goal.performance], settings)[goal.performance] for own, f in decided]
    methods = list[MethodRow]()
    for tried, (_, own_decisions), judgement, audit in zip(entries, decided, judgements, audits, strict=True):
        gap, performance = largest_estimate(audit, goal.measure, main, goal.groups), performances[len(methods)]
        attribute = with_sufficient_data(test.attribute.only(goal.groups), audit, goal.measure)
        methods.append(
            MethodRow(
                name=tried.name,
                chosen=tried is result,
                judgement=judgement,
                valid_gap=float(tried.chosen_row["gap"]),
                valid_performance=float(tried.chosen_row["performance"]),
                gap=gap,
                performance=performance,
                below=below_upper_bound(test, goal, gap.value, performance.value, attribute),
                needs_group=tried.candidate.rule.needs_group,
                changed=float((decisions[0] + own_decisions - 2 * decisions[0] * own_decisions).sum()),
                expected=bool((own_decisions % 1 != 0).any()),
            )
        )
    gap_before, gap_after = methods[0].gap, methods[1 + chosen].gap
    worst_group = gap_before.group if not np.isnan(gap_before.value) else ""
    additive = worst_group and not measures.measure_of(goal.measure).is_quotient
    contributions = tuple(pair.contributions(goal.measure, worst_group)) if additive else ()
    rates, gaps = BeforeAfter(), BeforeAfter()
    for a in shown.attributes:
        by_group = [audit.groups[audit.groups["attribute"] == a.name] for audit in (before, after)]
        rates[a.name] = {rate: {} for rate in REPORTED_RATES}
        for rate, (k, group) in product(REPORTED_RATES, enumerate(a.levels)):
            rate_before, rate_after = (measures.group_estimate(frame.iloc[k], rate) for frame in by_group)
            rates[a.name][rate][group] = rate_before, rate_after
        gaps[a.name] = {goal.measure: {}}
        for rows in zip(*(audit.gaps[audit.gaps["attribute"] == a.name].to_dict("records") for audit in (before, after)), strict=True):
            gap, later = map(Estimate.of_gap, rows)
            gaps[a.name].setdefault(str(rows[0]["measure"]), {})[gap.group] = gap, later
    return Findings(
        before=before,
        after=after,
        audits=tuple(audits),
        gap_before=gap_before,
        gap_after=gap_after,
        valid_before=methods[0].valid_gap,
        valid_after=methods[1 + chosen].valid_gap,
        performance_before=performances[0],
        performance_after=performances[1 + chosen],
        gap_change=widened(pair.gap_change(goal.measure, worst_group), spread.get(worst_group, 0.0)),
        performance_change=widened(pair.performance_change(goal.performance), spread.get("", 0.0)),
        shifts=tuple(pair.shifts()),
        contributions=contributions,
        rates=rates,
        gaps=gaps,
        cohort=_group_sizes(original.valid, original.test, settings.min_patients),
        affected=tuple(affected(test, *decisions, shown.attributes)),
        balances={each.attribute.name: balances(test, each, *decisions, settings) for each in shown.groups},
        methods=tuple(methods),
        judgement=cast(Judgement, judgements[1 + chosen]),
        settings=settings,
        periods=changes_by_period(pair, goal.measure, worst_group),
    )


def changes_by_period(pair: PairedDecisions, measure: str, group: str) -> PeriodChanges | None:
    """The change of a group's gap in up to `MOST_PERIODS` periods with as many patients each; None without dates or with few patients.

    A patient belongs to the period of the first visit, so that the changes are independent.
    """
    rows, codes = pair.scores, units_of(pair.scores.patients, len(pair.scores))
    patients = int(codes.max(initial=-1)) + 1
    count = min(MOST_PERIODS, patients // PERIOD_PATIENTS)
    if rows.dates is None or group not in rows.attribute.others or count < 2:
        return None
    first = np.full(patients, rows.dates.max())
    np.minimum.at(first, codes, rows.dates)
    starts = np.unique(np.sort(first)[np.arange(1, count) * patients // count])
    place, k, periods = np.searchsorted(starts, first, side="right"), rows.attribute.levels.index(group), list[Period]()
    pooled, changes, variances = pair.signed(measure), list[float](), list[float]()
    for each in np.unique(place):
        own, days = (place == each)[codes], first[place == each]
        part = replace(pair, scores=rows.take(own), decisions=(pair.decisions[0][own], pair.decisions[1][own]))
        before, after = (float(rates[k] - rates[0]) for rates in part.rates(measure))
        months = days.astype("datetime64[M]")
        change = part.gap_change(measure, group)
        periods.append(Period(str(months.min()), str(months.max()), len(days), before, after, change))
        if not np.isnan(periods[-1].change.value):
            changes.append(periods[-1].change.value)
            variances.append(sum(_variance(part.signed(measure), pooled)[[0, k]]))
    p_value = np.nan
    if len(changes) > 1 and min(variances) > 0:
        from scipy.special import chdtrc  # late: most test sets have no dates

        precision = 1 / np.array(variances)
        deviations = np.array(changes) - np.average(changes, weights=precision)
        p_value = float(chdtrc(len(changes) - 1, float((precision * deviations**2).sum())))
    return PeriodChanges(group, tuple(periods), p_value)


def _variance(part: SignedSum, pooled: SignedSum) -> FloatArray:
    """The variance of each group's change in a part of the patients (groups,), if rows vary and are correlated as in all of them.

    Few changed decisions in a part say little about their variance; that of all patients is also that under the same change everywhere.
    """
    value = pooled.value
    spread = np.where(np.isnan(pooled.either), value * (1 - value), pooled.either - value**2)
    sd = part.signs * np.sqrt(np.maximum(spread, 0.0) / part.size)
    variance: FloatArray = np.einsum("...i,...ij,...j->...", sd, pooled.correlation, sd)
    return variance


def tested_later(tried: ScoredCandidate) -> bool:
    """Whether every test row is later than all rows that the candidate was fitted to, as far as their dates are known."""
    fitted = [*tried.candidate.fitted_to.values(), *([] if tried.valid is None else [Identities.of(tried.valid, content=False)])]
    return bool(fitted) and all(rows.before(tried.test) for rows in fitted)


def largest_estimate(audit: LabelAudit, measure: str, attribute: str, groups: Sequence[str] = ()) -> Estimate:
    """The gap of one attribute with the largest absolute value, among the groups (all, if none is named) with sufficient data."""
    rows = audit.gaps[(audit.gaps["measure"] == measure) & (audit.gaps["attribute"] == attribute)]
    rows = rows[rows["group"].isin(groups)] if groups else rows
    known = rows[rows["value"].notna()]
    row = known.loc[known["value"].abs().idxmax()] if len(known) else rows.iloc[0]
    unknown = len(rows) - len(known)
    note = f"{unknown} of {len(rows)} groups have insufficient data" if unknown and len(known) else str(row["note"])
    return Estimate.of_gap(row, note)


def _group_sizes(valid: Scores | None, test: Scores, min_patients: int) -> dict[str, tuple[CohortRow, ...]]:
    """The sizes of all groups in both sets, by attribute: also of all patients (None), and of rows whose group is unknown ("").

    Positives and negatives are those of the rows that are shown; None for a group that is withheld.
    """
    absent = -2  # a code that no row has
    given = {"valid": valid, "test": test}
    sets = {name: (rows, measures.shown_scores(rows, min_patients)) for name, rows in given.items() if rows is not None}
    table = {}
    for k, in_test in enumerate(all_attributes(test)):
        attributes = {name: all_attributes(rows)[k] for name, (rows, _) in sets.items()}
        # An intersection may be in one set only.
        groups: list[str | None] = list(dict.fromkeys(level for attribute in attributes.values() for level in attribute.levels))
        if any((attribute.codes == MISSING).any() for attribute in attributes.values()):
            groups.append("")
        groups.append(None)
        rows_of = []
        for group in groups:
            sizes = {}
            for name, (scores, shown) in sets.items():
                attribute = attributes[name]
                code = MISSING if group == "" else attribute.levels.index(group) if group in attribute.levels else absent
                rows = np.ones(len(scores), bool) if group is None else attribute.codes == code
                patients = None if scores.patients is None else len(set(scores.patients[rows]))
                told, positives, negatives = rows & shown.kept, None, None
                withheld = code >= 0 and group is not None and bool(shown.groups[k].withheld[code])
                if (told.any() or not rows.any()) and not withheld:
                    positives = int(scores.y[told].sum())
                    negatives = int(told.sum()) - positives
                sizes[name] = Size(int(rows.sum()), patients, positives, negatives)
            rows_of.append(CohortRow(group, group == in_test.reference, sizes.get("valid"), sizes["test"]))
        table[in_test.name] = tuple(rows_of)
    return table


# Decisions that a repair changed on the same held-out rows


def balances(scores: Scores, shown: ShownGroups, before: FloatArray, after: FloatArray, settings: AuditSpec) -> tuple[Balance, ...]:
    """The balance of each group of an attribute, and of all patients last; NaN for a group with fewer patients than an estimate needs."""
    units, all_patients = measures.units_of(scores.patients, len(scores)), np.zeros(len(scores), dtype=np.int64)
    found, attribute = [], shown.attribute
    for codes, names, rows in ((attribute.codes, attribute.levels, shown.rows), (all_patients, (None,), [len(scores)])):
        moments = measures.moments_of_change(before, after, scores.y, Clusters.of(codes, len(names), units), scores.weight)
        enough = moments["true"].patients >= settings.min_patients
        limits = (moments.signed(signs).limits(settings.level) for signs in BALANCE)  # value, low and high: (3, groups)
        sums = [np.where(enough, each, np.nan) for each in limits]
        groups = Attribute("", tuple(map(str, names)), codes)
        tables = [measures.Cells.of(decided, scores.y, groups, scores.weight) for decided in (before, after)]
        with np.errstate(invalid="ignore"):  # groups without rows; the last entry of a table is of rows without a group
            errors = [np.array([cells.n[:, 1] - cells.s[:, 1], cells.s[:, 0]]) / cells.n.sum(1) for cells in tables]
        shares = [np.where(enough, error[:, : len(names)], np.nan) for error in errors]
        (missed_before, alarms_before), (missed_after, alarms_after) = shares
        for k, name in enumerate(names):
            corrected, spoiled, net, missed, alarms = (Estimate(*each[:, k].tolist()) for each in sums)
            found.append(
                Balance(
                    group=name,
                    reference=name is not None and k == 0,
                    rows=int(rows[k]),
                    corrected=corrected,
                    spoiled=spoiled,
                    net=net,
                    missed_before=float(missed_before[k]),
                    missed_after=float(missed_after[k]),
                    missed=missed,
                    alarms_before=float(alarms_before[k]),
                    alarms_after=float(alarms_after[k]),
                    alarms=alarms,
                )
            )
    return tuple(found)


def affected(scores: Scores, before: FloatArray, after: FloatArray, attributes: Sequence[Attribute]) -> list[Affected]:
    """Changed decisions on these rows, by the groups of each attribute that have rows."""
    expected = bool(((before % 1 != 0) | (after % 1 != 0)).any())
    patients = None if scores.patients is None or expected else len(set(scores.patients[before != after]))
    gained, lost = np.maximum(after - before, 0.0), np.maximum(before - after, 0.0)  # randomised rules share the draw of a row
    found = []
    for attribute in attributes:
        names = [*attribute.levels, ""]  # the last for rows of unknown group, whose code is -1
        groups: list[tuple[str | None, npt.NDArray[np.bool_]]] = [
            (names[code], attribute.codes == code) for code in (*range(len(attribute.levels)), MISSING) if (attribute.codes == code).any()
        ]
        counts = []
        for group, rows in [*groups, (None, np.ones(len(scores), bool))]:
            sick, well = rows & (scores.y == 1), rows & (scores.y == 0)
            detected, missed, cleared, alarmed = (
                float(moved[of].sum()) for moved, of in ((gained, sick), (lost, sick), (lost, well), (gained, well))
            )
            counts.append(Counts(group, int(sick.sum()), int(well.sum()), detected, missed, cleared, alarmed))
        found.append(Affected(attribute.name, tuple(counts), expected, patients))
    return found


def all_attributes(scores: Scores) -> list[Attribute]:
    """The attributes, followed by their intersection if there is more than one, as in an audit."""
    return [*scores.attributes, *([scores.attribute] if len(scores.attributes) > 1 else [])]


# The group-aware upper bound


def upper_bound_at(scores: Scores, goal: Goal, gaps: npt.ArrayLike, attribute: Attribute | None = None) -> FloatArray | None:
    """The performance of the upper bound on these scores at each |gap|; NaN for a gap that is NaN. None if the bound is not defined."""
    sizes = np.abs(np.atleast_1d(np.asarray(gaps, dtype=np.float64)))
    known = ~np.isnan(sizes)
    groups = attribute or scores.attribute
    of = groups.codes, groups.levels, goal.measure, goal.performance, sizes[known]
    best = measures.upper_bound(scores.score, scores.y, *of, weight=scores.weight)
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
    levels = [level for level in attribute.levels if level not in insufficient]
    return attribute if len(levels) < 2 or attribute.reference not in levels else attribute.only(levels)
