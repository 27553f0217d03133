"""The audit of tables on disk: of each label from its rows, where they are held in memory, or from sums over their parts.

Several labels of one table are read together and measured one after another, in the memory of one; they are one family of comparisons.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Unpack

from equipoise.data import Attribute, Scan, Scores, Stored, read_labels
from equipoise.errors import BadInput
from equipoise.measures.asked import Asked, AuditOptions
from equipoise.measures.audit import Audits
from equipoise.measures.auditing import Measured, Progress, audits_of, measured, no_finding_asked
from equipoise.measures.decision import Rule
from equipoise.measures.no_finding import DERIVED, NO_FINDING, none_of_rows
from equipoise.measures.streamed import Source, measured_in_parts


def audit_scans(
    scans: Mapping[str, Scan],
    *,
    valid: Mapping[str, Scores] | None = None,
    progress: Callable[[str], Progress] | None = None,
    **options: Unpack[AuditOptions],
) -> Audits:
    """The audits of the labels of one table on disk, which is read once; the keywords are those of `audit_scores`."""
    asked = {label: Asked.of(options).decided((valid or {}).get(label)) for label in scans}
    wanted, labels = next(iter(asked.values())).no_finding, list(scans)
    with read_labels(scans) as stored:
        each = {label: _measured(own, asked[label], progress and progress(label)) for label, own in stored.items()}
        if wanted == DERIVED:
            if len(labels) < 2:
                raise BadInput(f"no finding is derived from several labels; got {labels[0]}. Name the label that means it instead.")
            rules = {label: own.decision for label, own in asked.items()}
            each[NO_FINDING] = _measured(_NoFinding(stored[labels[0]], rules), no_finding_asked(asked), None, scored=False)
        return audits_of(each, "labels", stored[labels[0]].name, wanted)


@dataclass(frozen=True, eq=False)
class _NoFinding:
    """Derived decisions on "no finding", part by part, on the rows in which every label is known."""

    stored: Stored
    rules: Mapping[str, Rule]
    name: str = NO_FINDING

    @property
    def attributes(self) -> tuple[Attribute, ...]:
        return self.stored.attributes

    @property
    def whole(self) -> bool:
        return self.stored.whole

    @property
    def count(self) -> int:
        return self.stored.count

    def parts(self) -> Iterator[Scores]:
        for each in self.stored.parts_of_all():
            yield none_of_rows(dict(zip(self.rules, each, strict=True)), self.rules)


def _measured(source: Source, asked: Asked, progress: Progress | None, *, scored: bool = True) -> Measured:
    """Every estimate of the audit of one label: from its rows where they are in memory, otherwise from sums over the parts."""
    if source.whole:
        return measured(next(source.parts()), asked, progress, scored=scored)
    return measured_in_parts(source, asked, progress, scored=scored)
