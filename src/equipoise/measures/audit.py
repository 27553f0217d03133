"""What an audit found: rates of every group and gaps between them, with error bars, of one label or of several.

Underdiagnosis is, of the patients who have a finding, the share that is decided to have none (Seyyed-Kalantari et al. 2021): the false
positive rate of "no finding". A multi-label model either has such a label, or it follows from the others: a row has no finding where no
label is positive, and is decided so where no label is decided positive. Rows on which a label is not known are left out.

`AuditSums` is all that comparing an audit with another one, or following it over time, needs, and nothing about a patient.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from equipoise.data import CONFLICTS, Scores, Varying
from equipoise.errors import BadInput, UnknownName
from equipoise.measures.by_threshold import COLUMNS, table_to_dict
from equipoise.measures.cells import FloatArray
from equipoise.measures.estimates import Estimate, Settings
from equipoise.measures.gaps import Gap, named
from equipoise.measures.moments import Moments
from equipoise.measures.multiplicity import comparisons_of, shrunken_gaps
from equipoise.measures.performance import PERFORMANCE
from equipoise.measures.score_measures import CURVES
from equipoise.measures.target_gaps import Baseline
from equipoise.measures.thresholds import Rule, Threshold
from equipoise.presenting import presenter

DERIVED = "derived"  # in place of the name of a label: no finding is none of the labels
NO_FINDING = "no finding"


@dataclass(frozen=True)
class NoneOf:
    """Decided "no finding" where none of these labels is decided positive; the scores are these decisions already."""

    labels: tuple[str, ...]
    KIND: ClassVar[str] = "none of the labels"
    needs_group: ClassVar[bool] = False
    randomised: ClassVar[bool] = False

    def decide(self, scores: Scores) -> FloatArray:
        return scores.score

    def describe(self) -> str:
        return f"none of {len(self.labels)} labels is decided positive: {', '.join(self.labels)}"

    def cuts(self, group: str) -> tuple[float, ...]:  # noqa: ARG002 (there is no score to cut)
        return ()

    def to_dict(self) -> dict[str, object]:
        """Plain values for JSON."""
        return {"kind": self.KIND, "labels": list(self.labels)}


def none_of(scores: Mapping[str, Scores], rules: Mapping[str, Rule]) -> Scores:
    """The label "no finding" and the decision on it, as scores, on the rows in which every label is known.

    >>> one = Scores.from_arrays([1, 0, 0, 0], [0.9, 0.2, 0.4, 0.3], ["F", "F", "M", "M"])
    >>> other = Scores.from_arrays([0, 0, 1, 0], [0.1, 0.7, 0.2, 0.1], ["F", "F", "M", "M"])
    >>> from equipoise.measures.thresholds import Threshold
    >>> found = none_of({"a": one, "b": other}, {"a": Threshold(0.5), "b": Threshold(0.5)})
    >>> found.y.tolist(), found.score.tolist()
    ([0, 1, 0, 1], [0.0, 0.0, 1.0, 1.0])
    """
    if len(scores) < 2:
        raise BadInput(
            f"no finding is derived from several labels; got {', '.join(scores) or 'none'}. Name the label that means it instead."
        )
    first = next(iter(scores.values()))
    places = [{row: k for k, row in enumerate(own.ids)} for own in scores.values()]
    shared = [row for row in first.ids if all(row in place for place in places)]
    if not shared:
        raise BadInput("no row has all labels known, so that no finding cannot be derived. Name fewer labels.")
    taken = {label: own.take([place[row] for row in shared]) for (label, own), place in zip(scores.items(), places, strict=True)}
    return none_of_rows(taken, rules)


def none_of_rows(scores: Mapping[str, Scores], rules: Mapping[str, Rule]) -> Scores:
    """The same of labels that are known on the same rows."""
    first = next(iter(scores.values()))
    y = np.prod([1 - own.y for own in scores.values()], axis=0)
    clear = np.prod([1 - rules[label].decide(own) for label, own in scores.items()], axis=0)
    return replace(first, y=y, score=clear, name=NO_FINDING)


def underdiagnosis(groups: pd.DataFrame, gaps: pd.DataFrame) -> pd.DataFrame:
    """One row per group: the share of its patients with a finding that is decided to have none, and the gap to the reference.

    `groups` and `gaps` are those of the audit of "no finding", of which it is the false positive rate.
    """
    rates = groups.rename_axis("group").reset_index()
    rates = rates[["attribute", "group", "reference", "negatives", "fpr", "fpr_low", "fpr_high"]]
    names = {"negatives": "with_finding", "fpr": "rate", "fpr_low": "low", "fpr_high": "high"}
    own = gaps[gaps["measure"] == "fpr_gap"]
    compared = own[["attribute", "group", "value", "low", "high", "p_adjusted", "clear", "patients", "few"]]
    compared = compared.rename(columns={"value": "gap", "low": "gap_low", "high": "gap_high"})
    return rates.rename(columns=names).merge(compared, on=["attribute", "group"], how="left")


SCHEMA_VERSION = 5


@dataclass(frozen=True, eq=False)
class Audit:
    """What an audit found. `audit["eod"]` is a gap or a performance measure with its interval; `groups` has one row per group.

    With more than two groups (or several attributes) `audit["eod"]` is the gap with the largest absolute value; `gaps` has all, each with
    its permutation p-value. `clear` marks findings after adjustment for all `comparisons`, of all labels together.
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
    by_threshold: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=COLUMNS))  # decisions at others; empty where unknown
    weighted: bool = False  # by sample weights
    shrink: bool = False  # whether shrunken gaps are reported
    baseline: Baseline | None = None  # a simple model on the inputs of the network; None where none was fitted
    label: str = ""  # the column that was audited, where it has a name
    sums: Mapping[str, Moments] = field(default_factory=dict, repr=False)  # of each attribute, groups in the order of `groups`
    digest: str | None = None  # of the patients (or rows) and their labels; None for a table that was read in batches

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
        """The number of comparisons of this label, where several are audited together."""
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

    def _repr_html_(self) -> str:
        return str(presenter("audit_html")(self))

    def shrunken(self) -> pd.DataFrame:
        """The gaps with shrunken values next to them (empirical Bayes), for many small groups such as intersections; NaN for few groups.

        They are better guesses on average and biased towards no gap, so they complement `gaps` and have no p-values.
        """
        return shrunken_gaps(self.groups, self.gaps, self.settings.level)

    def report(self, path: str | Path, *, group_names: Mapping[str, str] | None = None) -> Path:
        """The path of the report of this audit, a page (.html) or a PDF (.pdf) by its ending, with the user's words: {"F": "women"}."""
        return Path(presenter("write_audit_page")(self, Path(path), group_names=group_names))

    def to_dict(self) -> dict[str, object]:
        """Plain values for JSON: for each measure, an object with value, low and high under its name; shrunken gaps if asked for."""
        return {
            "schema": "equipoise.audit",
            "schema_version": SCHEMA_VERSION,
            "name": self.name,
            "label": self.label,
            "rows": self.rows,
            "patients": self.patients,
            "digest": self.digest,
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
            "groups": records(self.groups.rename_axis("group").reset_index()),
            "gaps": records(self.gaps),
            **({"shrunken_gaps": records(self.shrunken())} if self.shrink else {}),
            "curves": records(self.curves),
            "by_threshold": table_to_dict(self.by_threshold),
            "sums": {name: moments.to_dict() for name, moments in self.sums.items()},
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

    def _repr_html_(self) -> str:
        return str(presenter("audits_html")(self))

    def report(self, path: str | Path, *, group_names: Mapping[str, str] | None = None) -> Path:
        """The path of the report of all labels, which is written there; the page of each is next to it. A PDF (.pdf) has the overview."""
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
    return {"no_finding": told | {"underdiagnosis": records(audit.underdiagnosis)} | whole}


def _named(measure: Gap) -> str:
    """The name of a measure; what cannot be read stays as it is, for an error that lists what there is."""
    try:
        return named(measure)
    except BadInput:
        return str(measure)


def records(frame: pd.DataFrame) -> list[dict[str, object]]:
    """The rows of a frame as plain values for JSON; None for NaN."""
    names = [str(name) for name in frame.columns]
    columns = [_plain(column) for _, column in frame.items()]  # rows of mixed types would take ten times the time
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _plain(column: "pd.Series[Any]") -> list[object]:
    if isinstance(column.dtype, np.dtype) and column.dtype.kind in "fiub":
        return [None if value != value else value for value in column.to_numpy().tolist()]
    values = zip(column.to_list(), column.isna().to_list(), strict=True)
    return [None if unknown else value.item() if isinstance(value, np.generic) else value for value, unknown in values]


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
