"""The sums behind an audit: all that comparing it with another audit, or following it over time, needs, and nothing about a patient."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from equipoise.data import Scores
from equipoise.measures.audit import Audit, Audits
from equipoise.measures.estimates import Estimate
from equipoise.measures.moments import Moments
from equipoise.measures.performance import PERFORMANCE


@dataclass(frozen=True, eq=False)
class AuditSums:
    """The sums of one label of one audit, and what must agree before they are compared with others."""

    name: str
    label: str
    decision: str
    level: float
    min_patients: int
    weighted: bool
    rows: int
    patients: int | None
    digest: str | None
    measures: tuple[str, ...]
    groups: Mapping[str, tuple[str, ...]]  # by attribute, the reference first
    sums: Mapping[str, Moments]
    performance: Mapping[str, Estimate]

    @classmethod
    def of(cls, audit: Audit, label: str | None = None) -> "AuditSums":
        """The sums of an audit."""
        groups = {str(a): tuple(map(str, rows.index)) for a, rows in audit.groups.groupby("attribute", sort=False)}
        return cls(
            audit.name,
            audit.label if label is None else label,
            audit.rule.describe(),
            audit.settings.level,
            audit.settings.min_patients,
            audit.weighted,
            audit.rows,
            audit.patients,
            audit.digest,
            tuple(dict.fromkeys(map(str, audit.gaps["measure"]))),
            groups,
            {name: own.normalised() for name, own in audit.sums.items()} if audit.weighted else audit.sums,
            {name: audit.estimates[name] for name in PERFORMANCE if name in audit.estimates},
        )

    @property
    def references(self) -> dict[str, str]:
        """The reference of each attribute."""
        return {name: levels[0] for name, levels in self.groups.items()}


def sums_of(subject: Audit | Audits) -> dict[str, AuditSums]:
    """The sums of an audit by label."""
    each = {subject.label: subject} if isinstance(subject, Audit) else dict(subject)
    return {label: AuditSums.of(own, label) for label, own in each.items()}


def digest_of(scores: Scores) -> str:
    """A number that two audits share if they are of the same patients (or rows) and labels, in any order; it identifies no patient."""
    keys = scores.ids if scores.patients is None else scores.patients
    hashed = pd.util.hash_array(np.asarray(keys, dtype=object)) * np.uint64(2) + scores.y.astype(np.uint64)
    return f"{len(scores)}-{int((hashed * (hashed >> np.uint64(7) | np.uint64(1))).sum(dtype=np.uint64)):016x}"
