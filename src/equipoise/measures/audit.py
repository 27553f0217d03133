"""The result of an audit, for one label or several: rates of every group and gaps between groups, with intervals and tests."""

import hashlib
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pandas as pd

from equipoise.data import CONFLICTS, GroupConflicts, LabelKind
from equipoise.errors import BadInput, UnknownName
from equipoise.measures.audit_spec import AuditSpec
from equipoise.measures.calibration import REASONS, TOO_FEW, WITHHELD
from equipoise.measures.disclosure import table_to_dict
from equipoise.measures.gaps import Gap, canonical_name
from equipoise.measures.intervals import INSUFFICIENT, Estimate
from equipoise.measures.moments import Moments
from equipoise.measures.permutation import comparisons_of, shrunken_gaps
from equipoise.measures.thresholds import Rule
from equipoise.presenting import html_of, write_page

if TYPE_CHECKING:
    from equipoise.measures.paired_changes import Baseline

GROUP_MEASURES = ("selection_rate", "tpr", "fpr", "tnr", "fnr", "ppv", "npv", "auroc")
FEW_PATIENTS = 30  # estimates from fewer are marked
CALIBRATION_ERROR = "calibration_error"  # has the band of a calibrated model instead of an interval
GAP_COLUMNS = [
    *("measure", "attribute", "group", "reference", "value", "low", "high"),
    *("simultaneous_low", "simultaneous_high", "p_value", "p_adjusted", "clear"),
    *("detectable", "patients", "few", "note"),
]
SCHEMA_VERSION = 6
SETTINGS = ("level", "seed", "min_patients", "specificity", "sensitivity")  # in JSON; thresholds are in `curves`


def protection(least: int, unit: str) -> str:
    """Why a group with enough patients has no numbers."""
    return f"withheld, because those of a group with fewer than {least} {unit} would follow"


def lacking_note(lacking: Mapping[str, str], least: int, unit: str) -> str:
    """The measures of a group that are missing, in words, from the reason of each."""
    common = {TOO_FEW: f"fewer than {least} {unit}", WITHHELD: protection(least, unit)}
    listed = {why: ", ".join(name for name, reason in lacking.items() if reason == why) for why in common}
    parts = [f"{INSUFFICIENT} ({common[why]}): {names}" for why, names in listed.items() if names]
    others = ", ".join(f"{name} ({REASONS[reason]})" for name, reason in lacking.items() if reason not in common)
    return "; ".join([*parts, *([f"{INSUFFICIENT}: {others}"] if others else [])])


def group_estimate(row: "pd.Series[float]", rate: str) -> Estimate:
    """A rate of a group, from its row in `Audit.groups`; the limits of the calibration error are those expected of a calibrated model."""
    few = rate in str(row["few"]).split(", ")
    limits = f"{rate}_expected" if rate == CALIBRATION_ERROR else rate
    return Estimate(float(row[rate]), float(row[f"{limits}_low"]), float(row[f"{limits}_high"]), few=few)


@dataclass(frozen=True, eq=False)
class LabelAudit:
    """The audit of one label. `["eod"]` is a gap or a performance measure with its interval; `groups` has one row per group.

    With more than two groups (or several attributes) `["eod"]` is the gap with the largest absolute value; `gaps` has all, each with
    its permutation p-value. `clear` marks findings after adjustment for all `comparisons`, of all labels together.
    """

    estimates: dict[str, Estimate]
    groups: pd.DataFrame
    gaps: pd.DataFrame
    rule: Rule
    missing: dict[str, float]  # by attribute: the share of rows without a group
    references: dict[str, str]
    assumed: tuple[str, ...]  # attributes without a named reference: the largest group is used
    rows: int
    patients: int | None
    name: str
    settings: AuditSpec
    intersections: tuple[str, ...] = ()  # attributes that are the intersection of others
    varying: tuple[GroupConflicts, ...] = ()  # attributes of which some patients have more than one group
    comparisons: int = 0  # gaps adjusted for, over all labels; measures that mirror each other count once
    weighted: bool = False  # by sample weights
    baseline: "Baseline | None" = None  # a simple model on the inputs of the network, if one was fitted
    label: str = ""  # the audited column, if it has a name
    sums: Mapping[str, Moments] = field(default_factory=dict, repr=False)  # by attribute, with groups in the order of `groups`
    digest: str | None = None  # of the patients (or rows) and their labels; None for a table that was read in batches
    left_out: int = 0  # rows of groups with too few patients that are in no number, because subtraction would give back theirs
    details: Mapping[str, Callable[[], pd.DataFrame]] = field(default_factory=dict, repr=False)  # of pages and JSON: computed if asked for

    @cached_property
    def curves(self) -> pd.DataFrame:
        """Decision curves: one row per group and threshold."""
        return self.details["curves"]()

    @cached_property
    def by_threshold(self) -> pd.DataFrame:
        """Decisions at other thresholds: one row per group, label and threshold; none of a table that was read in batches."""
        return self.details["by_threshold"]()

    def __getstate__(self) -> dict[str, Any]:
        """The values without the rows of patients from which details are computed."""
        return {**vars(self), "details": {name: getattr(self, name).copy for name in self.details}}

    def __getitem__(self, measure: Gap) -> Estimate:
        name = str(measure)
        with suppress(BadInput):  # an invalid measure is an error below, which lists those of the audit
            name = name if name in self.estimates else canonical_name(measure)
        if name not in self.estimates:
            raise UnknownName("measure in this audit", name, self.estimates)
        return self.estimates[name]

    @property
    def underdiagnosis(self) -> pd.DataFrame:
        """One row per group of the audit of "no finding": the share with a finding that is decided to have none, and its gap.

        That is the false positive rate of the label "no finding" (Seyyed-Kalantari et al. 2021).
        """
        rates = self.groups.rename_axis("group").reset_index()
        rates = rates[["attribute", "group", "reference", "negatives", "fpr", "fpr_low", "fpr_high"]]
        rates = rates.rename(columns={"negatives": "with_finding", "fpr": "rate", "fpr_low": "low", "fpr_high": "high"})
        compared = self.gaps[self.gaps["measure"] == "fpr_gap"]
        compared = compared[["attribute", "group", "value", "low", "high", "p_adjusted", "clear", "patients", "few"]]
        compared = compared.rename(columns={"value": "gap", "low": "gap_low", "high": "gap_high"})
        return rates.merge(compared, on=["attribute", "group"], how="left")

    @property
    def own_comparisons(self) -> int:
        """The number of comparisons of this label; `comparisons` counts those of all labels audited together."""
        return int(comparisons_of(self.gaps).max(initial=-1)) + 1

    @property
    def findings(self) -> int:
        """The number of comparisons of this label that are clear after adjustment."""
        return len(set(comparisons_of(self.gaps)[self.gaps["clear"].to_numpy(dtype=bool)]))

    def __str__(self) -> str:
        lines = [f"Audit of {self.name}: {self.rows:,} rows; positive if {self.rule.describe()}"]
        lines += [f"  {name}: {estimate}" for name, estimate in self.estimates.items()]
        lines += [f"  {each.patients:,} patients have more than one {each.attribute}; {CONFLICTS[each.rule]}" for each in self.varying]
        return "\n".join(lines)

    def shrunken(self) -> pd.DataFrame:
        """The gaps next to their shrunken values (empirical Bayes), for many small groups such as intersections; NaN for few groups.

        Shrunken gaps are more accurate on average but biased towards zero, so they complement `gaps` and have no p-values.
        """
        return shrunken_gaps(self.groups, self.gaps, self.settings.level)

    def to_dict(self) -> dict[str, object]:
        """Plain values for JSON: an object with value, low and high under the name of each measure; shrunken gaps if requested.

        The checksum is that of all other values; a file in which they have changed is not read.
        """
        document = {
            "schema": "equipoise.audit",
            "schema_version": SCHEMA_VERSION,
            "name": self.name,
            "label": self.label,
            "rows": self.rows,
            "patients": self.patients,
            "rows_in_no_number": self.left_out,
            "digest": self.digest,
            "resampled": "rows" if self.patients is None else "patients",
            "decision": self.rule.describe(),
            "threshold": self.rule.shared,
            "threshold_origin": None if self.rule.shared is None else self.rule.origin,
            "argmax": self.rule.argmax,
            "needs_group": self.rule.needs_group,
            "references": self.references,
            "references_assumed": list(self.assumed),
            "intersections": list(self.intersections),
            "missing_attribute_share": self.missing,
            "patients_in_several_groups": {each.attribute: each.patients for each in self.varying},
            "conflicts": next((each.rule for each in self.varying), "row"),
            "settings": {name: getattr(self.settings, name) for name in SETTINGS},
            "weighted": self.weighted,
            "comparisons": self.comparisons,
            "own_comparisons": self.own_comparisons,
            "findings": self.findings,
            **({} if self.baseline is None else {"baseline": self.baseline.to_dict()}),
            **{name: estimate.to_dict() for name, estimate in self.estimates.items()},
            "groups": records(self.groups.rename_axis("group").reset_index()),
            "gaps": records(self.gaps),
            **({"shrunken_gaps": records(self.shrunken())} if self.settings.shrink else {}),
            "curves": records(self.curves),
            "by_threshold": table_to_dict(self.by_threshold),
            "sums": {name: moments.to_dict() for name, moments in self.sums.items()},
        }
        return with_checksum(document)


@dataclass(frozen=True, eq=False)
class Audit:
    """An audit: `labels` is the audit of each label. P-values and simultaneous intervals are adjusted for all labels together.

    An audit of one label has all that the audit of this label has: `audit["eod"].value`, `audit.groups`, `audit.gaps`. Of several labels,
    `audit["Effusion"]` is the audit of one of them.
    """

    labels: Mapping[str, LabelAudit]  # one label without a name has the key ""
    kind: LabelKind
    name: str
    no_finding: LabelAudit | None = None  # the audit of "no finding", one of the labels or derived from them, if requested

    @property
    def only(self) -> LabelAudit:
        """The audit of the label; raises an error that names the labels if there are several."""
        if len(self.labels) > 1:
            raise BadInput(
                f"this audit has several {self.kind}. Choose one, such as audit[{next(iter(self.labels))!r}]: {', '.join(self.labels)}"
            )
        return next(iter(self.labels.values()))

    @property
    def prefixed(self) -> dict[str, LabelAudit]:
        """The audit of each label by what to call it next to the others: nothing if there are no others."""
        return dict(self.labels) if len(self.labels) > 1 else {"": self.only}

    def __getitem__(self, name: Gap) -> Any:
        if isinstance(name, str) and name in self.labels and (len(self.labels) > 1 or name not in self.only.estimates):
            return Audit({name: self.labels[name]}, self.kind, self.labels[name].name)
        if len(self.labels) > 1:
            raise UnknownName("label in this audit", name, self.labels)
        return self.only[name]

    __iter__ = None  # an audit is no sequence: iterate over `labels`

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or not (name in LabelAudit.__dataclass_fields__ or hasattr(LabelAudit, name)):
            raise AttributeError(f"an audit has no {name!r}")
        return getattr(self.only, name)

    def __repr__(self) -> str:
        if len(self.labels) > 1:
            return f"Audit({self.name!r}, {len(self.labels)} {self.kind}: {', '.join(self.labels)})"
        patients = "" if self.patients is None else f" of {self.patients:,} patients"
        return f"Audit({self.name!r}, {self.rows:,} rows{patients}, {', '.join(self.estimates)})"

    def __str__(self) -> str:
        return "\n".join(f"{f'{label}: ' if label else ''}{audit}" for label, audit in self.prefixed.items())

    def _repr_html_(self) -> str:
        return html_of(self)

    def report(self, path: str | Path, *, group_names: Mapping[str, str] | None = None) -> Path:
        """Writes the report, HTML or PDF (.pdf), and returns its path. `group_names` are words for groups: {"F": "women"}.

        Of several labels, the HTML report is an overview with one page per label next to it, and a PDF the overview.
        """
        return write_page(self, path, group_names=group_names)

    @property
    def comparisons(self) -> int:
        """The number of gaps adjusted for, over all labels."""
        return max(audit.comparisons for audit in self.labels.values())

    @property
    def findings(self) -> int:
        """The number of comparisons, over all labels, that are clear after adjustment."""
        return sum(audit.findings for audit in self.labels.values())

    def to_dict(self) -> dict[str, object]:
        """Plain values for JSON: those of the label, or under `labels` those of each; and the checksum of all other values.

        Under `no_finding`, underdiagnosis by group and the decision; if "no finding" is derived from the labels, its whole audit.
        """
        if len(self.labels) == 1:
            document = self.only.to_dict()
        else:
            document = {
                "schema": "equipoise.audits",
                "schema_version": SCHEMA_VERSION,
                "name": self.name,
                "kind": self.kind,
                "comparisons": self.comparisons,
                "findings": self.findings,
                "labels": {label: audit.to_dict() for label, audit in self.labels.items()},
            }
        audit = self.no_finding
        if audit is not None:
            label = audit.label if audit.label in self.labels else None
            document["no_finding"] = {
                "decision": audit.rule.describe(),
                "rows": audit.rows,
                "comparisons": audit.comparisons,
                "label": label,
                "underdiagnosis": records(audit.underdiagnosis),
                **({} if label is not None else {"audit": audit.to_dict()}),  # derived from the labels: its whole audit
            }
        return with_checksum(document)


def with_checksum(document: Mapping[str, Any]) -> dict[str, Any]:
    """The document with a checksum of all its other values as its last key; it does not depend on the order of keys or on blanks."""
    rest = {key: value for key, value in document.items() if key != "checksum"}
    return rest | {"checksum": hashlib.sha256(json.dumps(rest, sort_keys=True, allow_nan=False).encode()).hexdigest()}


def records(frame: pd.DataFrame) -> list[dict[str, object]]:
    """The rows of a frame as plain values for JSON; None for NaN."""
    plain = frame.astype(object).where(frame.notna(), None).rename(columns=str)
    return cast("list[dict[str, object]]", plain.to_dict("records"))
