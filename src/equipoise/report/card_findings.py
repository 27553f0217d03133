"""What a model card says about groups: the audits of the test part before and after, and who got worse by the reckoning of the report."""

from dataclasses import dataclass

import numpy as np

from equipoise.measures.audit import Audit, audit
from equipoise.measures.estimates import Estimate
from equipoise.measures.gaps import is_quotient
from equipoise.methods.base import Goal
from equipoise.report.affected import Affected, Part, Shift, affected, paired
from equipoise.report.case import Case, Repair
from equipoise.report.findings import Decided, headline


@dataclass(frozen=True, eq=False)
class Findings:
    """All numbers of a card."""

    case: Case
    before: Audit
    after: Audit
    gap: tuple[Estimate, Estimate]  # the goal's, before and after, over the groups that the goal compares
    gap_change: Estimate  # of its size; below zero it got smaller
    shifts: tuple[Shift, ...]
    parts: tuple[Part, ...]
    affected: Affected
    shared_patients: int | None  # in both the validation and the test part; None: there are no patient ids

    @property
    def goal(self) -> Goal:
        """What was asked for."""
        return self.case.result.candidate.goal

    @property
    def attribute(self) -> str:
        """The attribute whose groups the goal compares: the intersection where there are several."""
        return self.affected.attribute

    @property
    def performance(self) -> tuple[Estimate, Estimate]:
        """The goal's performance before and after."""
        return self.before[self.goal.performance], self.after[self.goal.performance]

    @property
    def worse(self) -> tuple[Shift, ...]:
        """Rates of groups that got worse, the clear changes first."""
        return tuple(sorted((s for s in self.shifts if s.worse), key=lambda s: (not s.clear, -abs(s.change.value))))

    @property
    def levelled(self) -> tuple[Part, ...]:
        """What made the gap smaller by making somebody worse; empty where the gap did not get smaller."""
        return tuple(part for part in self.parts if part.harm and part.towards > 0) if self.gap_change.value < 0 else ()


def find(case: Case, before: Audit | None = None, after: Audit | None = None) -> Findings:
    """The findings on the test part; audits that were made already need not be made again."""
    before, after = before or audit_of(case.original), after or audit_of(case.result)
    measure = case.result.candidate.goal.measure
    turned = affected(case)[-1]
    first, last = (headline(found, measure, turned.attribute) for found in (before, after))
    pair = paired(case.original, case.result, after.settings)
    return Findings(
        case,
        before,
        after,
        (first, last),
        pair.gap_change(measure),
        tuple(pair.shifts()),
        () if np.isnan(first.value) or is_quotient(measure) else tuple(pair.parts(measure, first.group)),
        turned,
        _shared(case.result),
    )


def audit_of(repair: Repair) -> Audit:
    """The audit of a repair on the test part, with its own decision rule."""
    return audit(Decided(repair.test, repair.candidate.rule), also=[repair.candidate.goal.measure])


def _shared(repair: Repair) -> int | None:
    if repair.valid.patients is None or repair.test.patients is None:
        return None
    return len(set(repair.valid.patients) & set(repair.test.patients))
