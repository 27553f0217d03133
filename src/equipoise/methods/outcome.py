"""The outcome of a repair on rows that no fitting or choice has used: closed, reduced, unclear, harm or unchanged.

`judge` compares the decisions of the original with those of the delivered classifier on the same rows. Held-out rows are those of a test
set, or all rows of the repair set with cross-fitted decisions. The first of these that applies:

- unchanged: no decision differs.
- harm: performance is clearly below its limit (if the original is below it too: below the original's performance less the allowed loss);
  or a gap is larger and the interval of its change excludes zero (if the gap changed sides, the mean of the gaps before and after must also
  lie at least one standard error on the new side); or a rate that the goal keeps is clearly below its limit; or the share flagged is
  clearly above the capacity.
- closed: the simultaneous interval of every gap lies within ±max_gap (0.05 unless the goal has one), and performance reaches its limit.
- reduced: the largest gap is clearly smaller. That needs every group (an intersection-union test, whose level is shared by groups and
  labels): its gap is clearly smaller than it was itself (the interval of its change excludes zero, and the mean of before and after is
  clearly on the original side of zero, so that the gap has not merely changed sides), or than the worst gap was before, by the MOVER limit
  of the difference of two estimates (Zou and Donner 2008). That limit treats the estimates as independent. The reference, which both share,
  makes the difference less variable if both gaps have the same sign; otherwise more, and the distances to their limits are added.
- unclear: everything else, including any group with too few patients. `patients_needed` is the approximate number for a clear outcome.

`closed` and `reduced` are each wrong in at most 5 % of cases, whatever the truth. If performance is below its limit, but by no more than
sampling error explains, the outcome is `unclear` at best, and the possible harm is reported first (`possible_harms`).
Each test is expressed as the factor by which its intervals must shrink to pass it, which is below 1 if it is passed already.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from statistics import NormalDist
from typing import Any, Literal, cast

import numpy as np

from equipoise import measures
from equipoise.data import FloatArray, Scores
from equipoise.errors import BadInput
from equipoise.measures import (
    FEW_PATIENTS,
    AuditSpec,
    Estimate,
    PairedDecisions,
    estimated_rate,
    moments_of_scores,
    simultaneous_gaps,
    units_of,
)
from equipoise.methods.evaluation import RATE_NOISE
from equipoise.methods.goal import BEFORE, Goal, Note

ONE_SE = 2 * NormalDist().cdf(1.0) - 1  # level of an interval of plus and minus one standard error
DEFAULT_MAX_GAP = 0.05  # largest |gap| that counts as closed, if the goal has no maximum
TWO_SIDED = NormalDist().inv_cdf(0.975)  # standard errors on either side of a 95 % interval
MOST_SCALE = 3.0  # of a simultaneous interval, next to a pointwise one: more is that of a change without decisions
UNCHANGED_GAP = 0.005  # a change of a gap by less than half a point: practically the same
MOST_NEEDED = 100_000  # patients: a larger number for a clear outcome is none that a hospital could use
Source = Literal["held-out", "cross-fitted", "nested"]


class Outcome(StrEnum):
    """The outcome of a repair on rows that were not used for fitting."""

    CLOSED = "closed"
    REDUCED = "reduced"
    UNCLEAR = "unclear"
    HARM = "harm"
    UNCHANGED = "unchanged"


@dataclass(frozen=True)
class JudgedGap:
    """The gap of one group before and after on the same rows, and its change; NaN if the group has too few patients.

    Each has a confidence interval, and a simultaneous one for all groups and labels together.
    """

    group: str
    reference: str
    before: Estimate
    after: Estimate
    change: Estimate  # signed: after minus before
    level: float = 0.95  # of the intervals

    @property
    def known(self) -> bool:
        """Whether there are enough patients for a value before and after."""
        return not (math.isnan(self.before.value) or math.isnan(self.after.value) or math.isnan(self.change.value))

    @property
    def expected(self) -> float:
        """The mean of |gap| after, as far as it is known: a gap near zero was made so by these patients, and is larger in others.

        This is the mean of the folded normal distribution around the gap, with its standard error.
        """
        gap, error = abs(self.after.value), (self.after.high - self.after.low) / (2 * NormalDist().inv_cdf((1 + self.level) / 2))
        return gap if not error else 2 * error * NormalDist().pdf(gap / error) + gap * (2 * NormalDist().cdf(gap / error) - 1)

    def to_dict(self) -> dict[str, object]:
        """Plain values for JSON."""
        sides = {"before": self.before.to_dict(), "after": self.after.to_dict(), "change": self.change.to_dict()}
        return {"group": self.group, "reference": self.reference, **sides, "expected": self.expected}


@dataclass(frozen=True)
class Judgement:
    """The outcome of a repair with the numbers behind it."""

    outcome: Outcome
    source: Source
    measure: str
    performance: str
    max_gap: float
    gaps: tuple[JudgedGap, ...]
    performance_before: Estimate
    performance_after: Estimate
    performance_change: Estimate
    performance_limit: float
    harms: tuple[Note, ...]  # what is clear: performance_below_limit, larger_gap, rate_worse, capacity_exceeded
    possible_harms: tuple[Note, ...]  # performance below its limit by no more than sampling error explains: performance_below_limit
    changed: int  # decisions that differ; for a randomised rule, rows whose probability differs
    patients: int  # rows if there are no patient ids
    patients_needed: int | None  # approximate number for a clear outcome, if it is unclear; None above 100,000
    met: bool | None  # every limit of the goal is kept on these rows; None for a goal without a maximum gap
    later: bool = False  # the rows are of patients who are all later than the rows that the repair was fitted to

    @property
    def largest(self) -> JudgedGap | None:
        """The gap that was furthest from zero before; None if no group has enough patients."""
        known = [gap for gap in self.gaps if gap.known]
        return max(known, key=lambda gap: abs(gap.before.value)) if known else None

    @property
    def clear_loss(self) -> bool | None:
        """Whether performance is below its limit by more than sampling error explains; None if it is not below."""
        if any(note.kind == "performance_below_limit" for note in self.harms):
            return True
        return False if self.possible_harms else None

    @property
    def short(self) -> tuple[str, ...]:
        """Groups whose gap is not estimated, because they or the reference have too few patients."""
        return tuple(gap.group for gap in self.gaps if not gap.known)

    @property
    def larger(self) -> bool:
        """Whether the largest |gap| is larger than before, clearly or not."""
        known = [gap for gap in self.gaps if gap.known]
        return bool(known) and max(abs(gap.after.value) for gap in known) > max(abs(gap.before.value) for gap in known) + RATE_NOISE

    @property
    def same(self) -> bool:
        """Whether the largest gap before is practically the same after, and no other gap exceeds it by more."""
        largest = self.largest
        if largest is None:
            return False
        excess = max(abs(gap.after.value) for gap in self.gaps if gap.known) - abs(largest.before.value)
        return abs(largest.after.value - largest.before.value) < UNCHANGED_GAP and excess < UNCHANGED_GAP

    @property
    def clear_before(self) -> bool:
        """Whether the simultaneous interval of the largest gap before excludes zero."""
        largest = self.largest
        return largest is not None and bool(largest.before.simultaneous_low > 0 or largest.before.simultaneous_high < 0)

    def to_dict(self) -> dict[str, object]:
        """Plain values for JSON."""
        return {
            "outcome": str(self.outcome),
            "source": self.source,
            "measure": self.measure,
            "max_gap": self.max_gap,
            "gaps": [gap.to_dict() for gap in self.gaps],
            "performance": {
                "measure": self.performance,
                "limit": self.performance_limit,
                "clear_loss": self.clear_loss,
                "before": self.performance_before.to_dict(),
                "after": self.performance_after.to_dict(),
                "change": self.performance_change.to_dict(),
            },
            "harms": [note.to_dict() for note in self.harms],
            "possible_harms": [note.to_dict() for note in self.possible_harms],
            "changed_decisions": self.changed,
            "patients": self.patients,
            "patients_needed": self.patients_needed,
            "met": self.met,
            "later": self.later,
        }


def judge(
    scores_before: Scores,
    decisions_before: FloatArray,
    scores_after: Scores,
    decisions_after: FloatArray,
    goal: Goal,
    *,
    source: Source,
    settings: AuditSpec = AuditSpec(),
    labels: int = 1,
    forced: bool = False,
    spread: Mapping[str, float] | None = None,
    later: bool = False,
) -> Judgement:
    """The judgement of decisions before and after a repair on the same rows, which must not have been used to fit either.

    Decisions are 0 or 1, or probabilities of a positive decision. `labels` is the number of labels repaired together, which share the error
    rate of the claims. A repair that was `forced` with too few patients is never called closed or reduced. `later` states that the rows are
    of later patients than those of the repair. `spread` are further standard errors of changes, of the gap of each group and of the
    performance (""): those of another repair than the one that decided.

    - `scores_before`, `decisions_before`: of the original on these rows.
    - `scores_after`, `decisions_after`: of the repaired classifier on the same rows, in the same order.
    - `goal`: its measure, performance and limits are judged.
    - `settings`: level and least number of patients.

    >>> import numpy as np
    >>> y, groups = np.array([1, 1, 0, 0] * 1000), np.array(["F", "M"] * 2000)
    >>> rows = Scores.from_arrays(y, np.full(4000, 0.5), groups, reference="M")
    >>> before = np.where((groups == "F") & (np.arange(4000) % 5 == 0), 0, y)
    >>> judge(rows, before, rows, y, Goal("eod"), source="held-out").outcome
    <Outcome.CLOSED: 'closed'>
    """
    before, after = np.asarray(decisions_before, dtype=np.float64), np.asarray(decisions_after, dtype=np.float64)
    scores, name = scores_before, scores_before.name
    if scores is not scores_after and not (np.array_equal(scores.ids, scores_after.ids) and np.array_equal(scores.y, scores_after.y)):
        raise BadInput(
            f"a judgement needs the same rows before and after; {name!r} and {scores_after.name!r} differ in ids, labels or order. "
            "Score both classifiers on the same cohort."
        )
    for f in (before, after):
        if f.shape != (len(scores),):
            raise BadInput(f"a judgement needs one decision per row: {len(scores):,} of {name!r}; got an array of shape {f.shape}")
        if not ((f >= 0) & (f <= 1)).all():  # NaN is outside as well
            raise BadInput(f"decisions on {name!r} must be 0, 1 or probabilities between them; some are not")
    further = spread or {}
    compared = scores.comparing(goal.groups)
    pair = PairedDecisions(compared, (before, after), settings)
    simultaneous, judged = _at_level(pair, labels * max(len(compared.attribute.others), 1)), []
    for was, now in zip(*(simultaneous_gaps(compared, f, goal.measure, settings, labels) for f in (before, after)), strict=True):
        wide, about = simultaneous.gap_change(goal.measure, was.group), {"group": was.group, "reference": was.reference}
        ends = {"simultaneous_low": wide.low, "simultaneous_high": wide.high, "patients": was.patients}
        moved = replace(pair.gap_change(goal.measure, was.group), **about, **ends)
        more = further.get(was.group, 0.0)
        judged.append(JudgedGap(was.group, was.reference, was, widened(now, more), widened(moved, more), settings.level))
    gaps, rates = tuple(judged), _kept_rates(replace(pair, scores=scores), after, goal, labels) if goal.keep else []
    old, new = (measures.estimate_performance(scores, f, [goal.performance], settings)[goal.performance] for f in (before, after))
    limit, change = performance_limit(goal, old.value), widened(pair.performance_change(goal.performance), further.get("", 0.0))
    level = max(1 - 2 * (1 - settings.level) / (labels * max(len(gaps), 1)), 0.5)  # one-sided, shared by groups and labels
    increase, reduce = _factors(gaps, compared, before, after, goal.measure, level)
    kept = bool(new.value >= limit - RATE_NOISE)
    met = None
    if goal.max_gap is not None:
        within = all(gap.known and bool(abs(gap.after.value) <= goal.max_gap + RATE_NOISE) for gap in gaps)
        met = kept and all(reached for reached, _, _ in rates) and within
    harms, possible_harms = list[Note](), list[Note]()
    least = min(limit, old.value if old.value >= limit else old.value - goal.allowed_loss)
    if new.value < least - RATE_NOISE:  # undefined performance is no harm
        relative = goal.min_performance is None or goal.original is not None or old.value < limit  # counted from the original on these rows
        clear = old.value + change.high < least if relative else new.high < least
        numbers = {"before": old.value, "after": new.value, "limit": limit, "change": change.value, "low": change.low, "high": change.high}
        (harms if clear else possible_harms).append(Note("performance_below_limit", goal.performance, numbers))
    for gap, factor in zip(gaps, increase, strict=True):
        if factor < 1:  # larger than chance explains
            sides = {"change": gap.change.value, "low": gap.change.simultaneous_low, "high": gap.change.simultaneous_high}
            values = {"measure": goal.measure, "reference": gap.reference, "before": gap.before.value, "after": gap.after.value}
            harms.append(Note("larger_gap", gap.group, {**values, **sides}))
    if goal.capacity is not None:
        weight = measures.normalise_weights(scores.weight)
        flagged, mass = float(np.average(after, weights=weight)), np.ones(len(after)) if weight is None else weight
        sums = np.bincount(units_of(scores.patients, len(scores)), mass * (after - flagged))
        low = flagged - NormalDist().inv_cdf(settings.level) * float(np.sqrt((sums**2).sum())) / mass.sum()
        if low > goal.capacity:
            harms.append(Note("capacity_exceeded", numbers={"flagged": flagged, "low": low, "capacity": goal.capacity}))
            met = None if met is None else False
    judgement = Judgement(
        outcome=Outcome.UNCHANGED,
        source=source,
        measure=goal.measure,
        performance=goal.performance,
        max_gap=DEFAULT_MAX_GAP if goal.max_gap is None else goal.max_gap,
        gaps=gaps,
        performance_before=old,
        performance_after=new,
        performance_change=change,
        performance_limit=limit,
        harms=(*harms, *(note for _, harm, note in rates if harm)),
        possible_harms=tuple(possible_harms),
        changed=int((before != after).sum()),
        patients=int(units_of(scores.patients, len(scores)).max(initial=-1)) + 1,
        patients_needed=None,
        met=met,
        later=later,
    )
    if not judgement.changed or judgement.harms:
        return replace(judgement, outcome=Outcome.HARM if judgement.changed else Outcome.UNCHANGED)
    if not judgement.short and not forced and not possible_harms:
        bound = judgement.max_gap
        if kept and all(-bound <= gap.after.simultaneous_low and gap.after.simultaneous_high <= bound for gap in gaps):
            return replace(judgement, outcome=Outcome.CLOSED)
        if gaps and not judgement.larger and all(factor < 1 for factor in reduce):
            return replace(judgement, outcome=Outcome.REDUCED)
    return replace(judgement, outcome=Outcome.UNCLEAR, patients_needed=_patients_needed(judgement, increase, reduce))


def widened(estimate: Estimate, spread: float) -> Estimate:
    """The estimate with the intervals of its standard error and a further one, which is independent of it."""
    if not spread:
        return estimate
    half, ends = max((estimate.high - estimate.low) / 2, 1e-12), dict[str, float]()
    for end in ("low", "high", "simultaneous_low", "simultaneous_high"):
        apart = getattr(estimate, end) - estimate.value
        scale = max(1.0, (estimate.simultaneous_high - estimate.simultaneous_low) / 2 / half) if "simultaneous" in end else 1.0
        ends[end] = estimate.value + (1 if end.endswith("high") else -1) * math.hypot(apart, min(scale, MOST_SCALE) * TWO_SIDED * spread)
    return replace(estimate, **cast(Any, ends))


def performance_limit(goal: Goal, original: float) -> float:
    """The minimum performance of a goal, or the original's performance on the same rows less the allowed loss."""
    if goal.min_performance is None:
        return goal.less(original, goal.allowed_loss)
    if goal.original is None:
        return goal.min_performance
    return goal.less(original, goal.original - goal.min_performance)  # a minimum that was derived on other rows


def joint_outcome(outcomes: Iterable[Outcome]) -> Outcome:
    """The joint outcome of several labels: harm or unclear if any label is, closed if all are.

    >>> joint_outcome([Outcome.CLOSED, Outcome.REDUCED]), joint_outcome([Outcome.CLOSED, Outcome.HARM, Outcome.UNCLEAR])
    (<Outcome.REDUCED: 'reduced'>, <Outcome.HARM: 'harm'>)
    """
    distinct = set(outcomes)
    for outcome in (Outcome.HARM, Outcome.UNCLEAR):
        if outcome in distinct:
            return outcome
    return next(iter(distinct)) if len(distinct) == 1 else Outcome.REDUCED


def joint_met(met: Iterable[bool | None]) -> bool | None:
    """Whether the goals of all labels are met; None if no label's goal has a maximum gap."""
    known = [own for own in met if own is not None]
    return all(known) if known else None


def _at_level(pair: PairedDecisions, claims: int) -> PairedDecisions:
    """The pair with simultaneous intervals for this number of claims (Bonferroni)."""
    return replace(pair, settings=pair.settings.model_copy(update={"level": 1 - (1 - pair.settings.level) / claims}))


def _factors(
    gaps: Sequence[JudgedGap], scores: Scores, before: FloatArray, after: FloatArray, measure: str, level: float
) -> tuple[FloatArray, FloatArray]:
    """The factors by which intervals must shrink to show that each gap is larger than before, and that it is below the worst before.

    A factor is infinite if the gap is not larger, or not below. One-sided tests use the ends of intervals at this level.
    """
    if not gaps:
        return np.empty(0), np.empty(0)
    old, new, change = (np.array([getattr(gap, side).value for gap in gaps]) for side in ("before", "after", "change"))
    low, high = (np.array([getattr(gap.change, end) for gap in gaps]) for end in ("simultaneous_low", "simultaneous_high"))
    mean, known = (old + new) / 2, np.array([gap.known for gap in gaps])

    def limits(f: FloatArray, at: float = level) -> tuple[FloatArray, FloatArray]:
        return moments_of_scores(scores, f).gap(measures.measure_of(measure).coefficients).limits(at)[1:]

    def from_zero(at: float) -> FloatArray:  # the mean of both gaps is the gap of the pooled decisions
        ends = limits((before + after) / 2, at)
        factor: FloatArray = np.where(mean > 0, mean - ends[0], ends[1] - mean) / np.abs(mean)
        return factor

    with np.errstate(divide="ignore", invalid="ignore"):
        to_change = np.where(change < 0, high - change, change - low) / np.abs(change)
        aside = from_zero(ONE_SE)  # a gap that changed sides must lie clearly on the new one
        larger = np.where(old * new < 0, np.maximum(to_change, aside), to_change)
        increase = np.where(known & (np.abs(new) > np.abs(old) + RATE_NOISE), larger, np.inf)
        own = np.maximum(to_change, from_zero(level))
        below_itself = np.where(np.abs(new) >= np.abs(old) - RATE_NOISE, np.inf, own)
        worst = int(np.where(known, np.abs(old), -1.0).argmax())
        old_low, old_high = (ends[worst] for ends in limits(before))
        new_low, new_high = limits(after)
        down, up = old[worst] - old_low if old[worst] > 0 else old_high - old[worst], np.where(new > 0, new_high - new, new - new_low)
        difference = np.abs(old[worst]) - np.abs(new)
        below_worst = np.where(old[worst] * new > 0, np.hypot(down, up), down + up) / difference
        below_worst[(difference <= RATE_NOISE) | (np.arange(len(gaps)) == worst)] = np.inf
    return increase, np.minimum(below_itself, below_worst)


def _kept_rates(pair: PairedDecisions, after: FloatArray, goal: Goal, labels: int) -> list[tuple[bool, bool, Note]]:
    """Whether each kept rate of each group with enough patients reaches its limit, and is clearly below it, with a note.

    Intervals are simultaneous for all of these and all labels.
    """
    scores, attribute = pair.scores, pair.scores.attribute
    wide = _at_level(pair, labels * max(len(goal.keep) * len(attribute.levels), 1))
    sums = moments_of_scores(scores, after)
    rates = []
    for rate, least in goal.keep.items():
        name = estimated_rate(rate)
        high = sums.signed({name: 1.0}).limits(wide.settings.level)[2]
        old, new = (cells.rate(rate) for cells in pair.cells)
        for k, change in enumerate(wide.rate_changes(rate)):
            if sums[name].patients[k] < pair.settings.min_patients:
                continue
            limit = float(old[k]) if least == BEFORE else float(least)
            below = float(new[k]) < limit - RATE_NOISE
            clear = change.high < 0 if least == BEFORE else bool(high[k] < limit and new[k] < old[k] - RATE_NOISE)
            numbers = {"rate": rate, "before": float(old[k]), "after": float(new[k]), "limit": limit}
            note = Note("rate_worse", attribute.levels[k], {**numbers, "change": change.value, "low": change.low, "high": change.high})
            rates.append((not below, below and clear, note))
    return rates


def _patients_needed(judgement: Judgement, increase: FloatArray, reduce: FloatArray) -> int | None:
    """The approximate number of patients for a clear outcome, from intervals that shrink with its root; None above `MOST_NEEDED`."""
    gaps, limit, patients = judgement.gaps, judgement.max_gap, 0.0
    if not gaps or judgement.short:
        least = min((gap.before.patients for gap in gaps), default=0)
        patients = judgement.patients * FEW_PATIENTS / least if least and least < FEW_PATIENTS else 0.0
    else:
        factors = [float(min(increase) if judgement.larger else max(reduce))]
        if judgement.performance_after.value >= judgement.performance_limit - RATE_NOISE and all(
            abs(gap.after.value) < limit for gap in gaps
        ):
            ends = [(gap.after.value, gap.after.simultaneous_low, gap.after.simultaneous_high) for gap in gaps]
            to_close = [max((high - value) / (limit - value), (value - low) / (limit + value)) for value, low, high in ends]
            factors.append(max(to_close))
        patients = judgement.patients * min(factors) ** 2 if min(factors) > 1 else 0.0
    if not patients or patients > MOST_NEEDED:
        return None
    unit = 10 ** max(int(math.log10(max(patients, 1.0))) - 1, 0)  # rounded up to two digits
    return int(math.ceil(patients / unit) * unit)
