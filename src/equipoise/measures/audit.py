"""What an audit found: rates of every group and gaps between them, with error bars, of one label or of several."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

from equipoise.data import CONFLICTS, Varying
from equipoise.errors import BadInput, UnknownName
from equipoise.measures.baseline import Baseline
from equipoise.measures.decision import Rule, Threshold
from equipoise.measures.estimates import Estimate, Settings
from equipoise.measures.gaps import Gap, named
from equipoise.measures.multiplicity import comparisons_of
from equipoise.measures.net_benefit import CURVES
from equipoise.measures.no_finding import underdiagnosis
from equipoise.measures.shrinkage import shrunken_gaps
from equipoise.presenting import presenter

SCHEMA_VERSION = 5


@dataclass(frozen=True, eq=False)
class Audit:
    """What an audit found. `audit["eod"]` is a gap or a performance measure with its interval; `groups` has one row per group.

    With more than two groups (or several attributes) `audit["eod"]` is the gap with the largest absolute value; `gaps` has all, each with
    its permutation p-value. `clear` marks those that are findings after adjustment for all `comparisons` of the audit, which of several
    labels are those of all of them.
    """

    estimates: dict[str, Estimate]
    groups: pd.DataFrame
    gaps: pd.DataFrame
    rule: Rule
    missing: dict[str, float]  # attribute: share of rows without it
    references: dict[str, str]
    assumed: tuple[str, ...]  # attributes without a named reference: the largest group was taken
    rows: int
    patients: int | None
    name: str
    settings: Settings
    varying: tuple[Varying, ...] = ()  # attributes with more than one group in some patients
    comparisons: int = 0  # gaps that were adjusted for, of all labels; measures that mirror each other count once
    curves: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=CURVES))  # decision curves: one row per group and threshold
    weighted: bool = False  # by sample weights
    shrink: bool = False  # whether shrunken gaps are reported
    baseline: Baseline | None = None  # a simple model on the inputs of the network; None where none was fitted

    def __getitem__(self, measure: Gap) -> Estimate:
        name = measure if isinstance(measure, str) and measure in self.estimates else _named(measure)
        if name not in self.estimates:
            raise UnknownName("measure in this audit", name, self.estimates)
        return self.estimates[name]

    @property
    def underdiagnosis(self) -> pd.DataFrame:
        """One row per group, where this is the audit of "no finding": the share of those with a finding who are cleared, and its gap."""
        return underdiagnosis(self.groups, self.gaps)

    @property
    def own_comparisons(self) -> int:
        """How many of the comparisons are between groups of this audit, not of another label's."""
        return int(comparisons_of(self.gaps).max(initial=-1)) + 1

    @property
    def findings(self) -> int:
        """How many of its own comparisons are clear after adjustment."""
        return len(set(comparisons_of(self.gaps)[self.gaps["clear"].to_numpy(dtype=bool)]))

    def __repr__(self) -> str:
        patients = "" if self.patients is None else f" of {self.patients:,} patients"
        return f"Audit({self.name!r}, {self.rows:,} rows{patients}, {', '.join(self.estimates)})"

    def __str__(self) -> str:
        lines = [f"Audit of {self.name}: {self.rows:,} rows; positive if {self.rule.describe()}"]
        lines += [f"  {name}: {estimate}" for name, estimate in self.estimates.items()]
        lines += [f"  {each.patients:,} patients have more than one {each.attribute}; {CONFLICTS[each.rule]}" for each in self.varying]
        return "\n".join(lines)

    def shrunken(self) -> pd.DataFrame:
        """The gaps with shrunken values next to them (empirical Bayes), for many small groups such as intersections; NaN for few groups.

        They are better guesses on average and biased towards no gap, so they complement `gaps` and have no p-values.
        """
        return shrunken_gaps(self.groups, self.gaps, self.settings.level)

    def report(self, path: str | Path, *, group_names: Mapping[str, str] | None = None) -> Path:
        """The path of the HTML report of this audit, which is written there, with the user's words for groups: {"F": "women"}."""
        return Path(presenter("write_audit_page")(self, Path(path), group_names=group_names))

    def to_dict(self) -> dict[str, object]:
        """Plain values for JSON: for each measure, an object with value, low and high under its name; shrunken gaps if asked for."""
        return {
            "schema": "equipoise.audit",
            "schema_version": SCHEMA_VERSION,
            "name": self.name,
            "rows": self.rows,
            "patients": self.patients,
            "resampled": "rows" if self.patients is None else "patients",
            "decision": self.rule.describe(),
            "threshold": self.rule.value if isinstance(self.rule, Threshold) else None,
            "needs_group": self.rule.needs_group,
            "references": self.references,
            "references_assumed": list(self.assumed),
            "missing_attribute_share": self.missing,
            "patients_in_several_groups": {each.attribute: each.patients for each in self.varying},
            "conflicts": next((each.rule for each in self.varying), "row"),
            "settings": {
                "level": self.settings.level,
                "seed": self.settings.seed,
                "min_patients": self.settings.min_patients,
                "specificity": self.settings.specificity,
                "sensitivity": self.settings.sensitivity,
            },
            "weighted": self.weighted,
            "comparisons": self.comparisons,
            "own_comparisons": self.own_comparisons,
            "findings": self.findings,
            **({} if self.baseline is None else {"baseline": self.baseline.to_dict()}),
            **{name: estimate.to_dict() for name, estimate in self.estimates.items()},
            "groups": _records(self.groups.rename_axis("group").reset_index()),
            "gaps": _records(self.gaps),
            **({"shrunken_gaps": _records(self.shrunken())} if self.shrink else {}),
            "curves": _records(self.curves),
        }


@dataclass(frozen=True, eq=False)
class Audits(Mapping[str, Audit]):
    """The audit of each label: `audits["Effusion"]["eod"]`. P-values and simultaneous intervals are adjusted for all labels together."""

    audits: Mapping[str, Audit]
    kind: str
    name: str
    no_finding: Audit | None = None  # of "no finding", one of the labels or derived from them, where it was asked for

    def __getitem__(self, label: str) -> Audit:
        if label not in self.audits:
            raise UnknownName("label in this audit", label, self.audits)
        return self.audits[label]

    def __contains__(self, label: object) -> bool:
        return label in self.audits

    def __iter__(self) -> Iterator[str]:
        return iter(self.audits)

    def __len__(self) -> int:
        return len(self.audits)

    def __str__(self) -> str:
        return "\n".join(f"{label}: {audit}" for label, audit in self.audits.items())

    def report(self, path: str | Path, *, group_names: Mapping[str, str] | None = None) -> Path:
        """The path of the HTML report of all labels, which is written there; the page of each is in a folder next to it."""
        return Path(presenter("write_audits_page")(self, Path(path), group_names=group_names))

    @property
    def comparisons(self) -> int:
        """How many gaps were adjusted for, of all labels."""
        return max((audit.comparisons for audit in self.audits.values()), default=0)

    @property
    def findings(self) -> int:
        """How many of the labels' comparisons are clear after adjustment."""
        return sum(audit.findings for audit in self.audits.values())

    def to_dict(self) -> dict[str, object]:
        """Plain values for JSON: the audit of each label under its name."""
        return {
            "schema": "equipoise.audits",
            "schema_version": SCHEMA_VERSION,
            "name": self.name,
            "kind": self.kind,
            "comparisons": self.comparisons,
            "findings": self.findings,
            "labels": {k: v.to_dict() for k, v in self.audits.items()},
            **no_finding_dict(self.no_finding, next((label for label, own in self.audits.items() if own is self.no_finding), None)),
        }


def no_finding_dict(audit: Audit | None, label: str | None = None) -> dict[str, object]:
    """Plain values for JSON of the audit of "no finding": underdiagnosis by group, and the decision; empty without one.

    `label` is the label that means it; without one it is derived, and its audit is written out.
    """
    if audit is None:
        return {}
    told = {"decision": audit.rule.describe(), "rows": audit.rows, "comparisons": audit.comparisons, "label": label}
    whole = {} if label is not None else {"audit": audit.to_dict()}
    return {"no_finding": told | {"underdiagnosis": _records(audit.underdiagnosis)} | whole}


def _named(measure: Gap) -> str:
    """The name of a measure; what cannot be read stays as it is, for an error that lists what there is."""
    try:
        return named(measure)
    except BadInput:
        return str(measure)


def _records(frame: pd.DataFrame) -> list[dict[str, object]]:
    plain = frame.astype(object).where(frame.notna(), None)
    return [{str(k): (v.item() if isinstance(v, np.generic) else v) for k, v in row.items()} for row in plain.to_dict("records")]
