"""What a model card says about groups: the audits of the test part before and after, and who got worse by the reckoning of the report."""

from dataclasses import dataclass

from equipoise.measures import Audit, Estimate
from equipoise.methods import Goal
from equipoise.report.affected import Affected, Part, Shift
from equipoise.report.case import Case, Repair
from equipoise.report.findings import Findings


@dataclass(frozen=True, eq=False)
class CardFindings:
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


def card_findings(case: Case, found: Findings) -> CardFindings:
    """What a card says of the findings of the report: the same audits and the same pairing of decisions before and after."""
    return CardFindings(
        case,
        found.before,
        found.after,
        (found.gap_before, found.gap_after),
        found.gap_change,
        found.shifts,
        found.parts,
        found.affected[-1],
        _shared(case.result),
    )


def _shared(repair: Repair) -> int | None:
    if repair.valid.patients is None or repair.test.patients is None:
        return None
    return len(set(repair.valid.patients) & set(repair.test.patients))
