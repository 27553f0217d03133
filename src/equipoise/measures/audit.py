"""The result of an audit, for one label or several: rates of every group and gaps between groups, with intervals and tests.

`to_dict` writes it for JSON, and `read_audit` reads the file that `audit --out` wrote, for a report or a comparison without the data. There
is no schema besides `to_dict`: a file is accepted if the audit made from it would be written as it is in the file. What that does not show
is checked as well: the range of numbers, and names that must agree with each other.
"""

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, get_args

import pandas as pd

from equipoise.data import CONFLICTS, GroupConflicts, LabelKind
from equipoise.disk import write_text
from equipoise.errors import BadInput, UnknownName, first_line
from equipoise.measures.audit_spec import AuditSpec
from equipoise.measures.calibration import REASONS, TOO_FEW, WITHHELD
from equipoise.measures.disclosure import table_from, table_to_dict
from equipoise.measures.families import comparisons_of, shrunken_gaps
from equipoise.measures.intervals import INSUFFICIENT_DATA, Estimate
from equipoise.measures.measure_table import GROUP_RATES, MEASURES, OVERALL, SUMMARIES, Gap, canonical_name
from equipoise.measures.moments import Moments
from equipoise.measures.score_measures import ALL_ROWS, CURVE_COLUMNS, SCORE_MEASURES
from equipoise.measures.thresholds import DescribedRule, Rule, Threshold
from equipoise.presenting import Presented

if TYPE_CHECKING:
    from equipoise.measures.paired_changes import Baseline

GROUP_MEASURES = (*GROUP_RATES, "auroc")
FEW_PATIENTS = 30  # estimates from fewer are marked
CALIBRATION_ERROR = "calibration_error"  # has the band of a calibrated model instead of an interval
GAP_COLUMNS = [
    *("measure", "attribute", "group", "reference", "value", "low", "high"),
    *("simultaneous_low", "simultaneous_high", "p_value", "p_adjusted", "clear", "in_overview"),
    *("detectable", "patients", "few", "note"),
]
WITHIN_COLUMNS = (
    "within",
    "measure",
    "attribute",
    "group",
    "reference",
    "value",
    "low",
    "high",
    "crude",
    "strata",
    "patients",
    "left_out",
    "note",
)
SUMMARY_COLUMNS = ("measure", "attribute", "group", "reference", "value", "low", "high", "p_value", "patients", "few", "note")
LABEL_GAP_COLUMNS = (
    *("measure", "attribute", "group", "reference"),
    *(f"{of}{end}" for of in ("label", "label_adjudicated", "adjudicated", "corrected") for end in ("", "_low", "_high")),
    "note",
)
LABEL_GROUP_COLUMNS = (
    *("attribute", "group", "reference", "rows", "patients", "positives", "labelled"),
    *(f"{of}{end}" for of in ("carried", "confirmed") for end in ("", "_low", "_high")),
)
AUDIT_SCHEMA, AUDITS_SCHEMA = "equipoise.audit", "equipoise.audits"  # schemas of the audit of one label, and of several
SCHEMA_VERSION = 7
SAVED_SETTINGS = ("level", "seed", "min_patients", "specificity", "sensitivity")  # in JSON; thresholds are in `curves`


def protection(least: int, unit: str) -> str:
    """Why a group with enough patients has no numbers."""
    return f"withheld, because those of a group with fewer than {least} {unit} would follow"


def lacking_note(lacking: Mapping[str, str], least: int, unit: str) -> str:
    """The measures of a group that are missing, in words, from the reason of each.

    - `lacking`: by measure, the reason why it is missing.
    - `least`, `unit`: how many patients (or rows) a measure needs.
    """
    common = {TOO_FEW: f"fewer than {least} {unit}", WITHHELD: protection(least, unit)}
    listed = {why: ", ".join(name for name, reason in lacking.items() if reason == why) for why in common}
    parts = [f"{INSUFFICIENT_DATA} ({common[why]}): {names}" for why, names in listed.items() if names]
    others = ", ".join(f"{name} ({REASONS[reason]})" for name, reason in lacking.items() if reason not in common)
    return "; ".join([*parts, *([f"{INSUFFICIENT_DATA}: {others}"] if others else [])])


def group_estimate(row: "pd.Series[float]", rate: str) -> Estimate:
    """A rate of a group, from its row in `Audit.groups`; the limits of the calibration error are those expected of a calibrated model."""
    few = rate in str(row["few"]).split(", ")
    limits = f"{rate}_expected" if rate == CALIBRATION_ERROR else rate
    return Estimate(float(row[rate]), float(row[f"{limits}_low"]), float(row[f"{limits}_high"]), few=few)


@dataclass(frozen=True, eq=False)
class LabelAudit:
    """The audit of one label. `["eod"]` is a gap or a performance measure with its interval; `groups` has one row per group.

    With more than two groups (or several attributes) `["eod"]` is the gap with the largest absolute value; `gaps` has all, each with
    its p-value. `clear` marks findings after adjustment for all `comparisons` of the label, `in_overview` in an overview of all labels.
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
    comparisons: int = 0  # gaps that are tested; measures that mirror each other count once
    weighted: bool = False  # by sample weights
    baseline: "Baseline | None" = None  # a simple model on the inputs of the network, if one was fitted
    label: str = ""  # the audited column, if it has a name
    sums: Mapping[str, Moments] = field(default_factory=dict, repr=False)  # by attribute, with groups in the order of `groups`
    digest: str | None = None  # of the patients (or rows) and their labels; None for a table that was added up where it is
    left_out: int = 0  # rows of groups with too few patients that are in no number, because subtraction would give back theirs
    details: Mapping[str, Callable[[], pd.DataFrame]] = field(default_factory=dict, repr=False)  # of pages and JSON: computed if asked for

    @cached_property
    def curves(self) -> pd.DataFrame:
        """Decision curves: one row per group and threshold."""
        return self.details["curves"]()

    @cached_property
    def by_threshold(self) -> pd.DataFrame:
        """Decisions at other thresholds: one row per group, label and threshold; none of a table that was added up where it is."""
        return self.details["by_threshold"]()

    @cached_property
    def permutation(self) -> pd.DataFrame:
        """The permutation p-value of each row of `gaps` (`p_permutation`); NaN for a table that was added up where it is."""
        return self.details["permutation"]()

    @cached_property
    def summaries(self) -> pd.DataFrame:
        """Ratios, ranges, worst groups and differences in measures of scores, of those that were asked for (see `SUMMARIES`)."""
        return self.details.get("summaries", partial(pd.DataFrame, columns=SUMMARY_COLUMNS))()

    @cached_property
    def within(self) -> pd.DataFrame:
        """Gaps within the strata that make patients comparable, next to the crude ones; no rows without strata."""
        return self.details.get("within", pd.DataFrame)()

    @cached_property
    def label_gaps(self) -> pd.DataFrame:
        """Gaps by the label, by the adjudicated label of some rows, and as that would show all rows; no rows without such a label."""
        return self.details.get("label_gaps", pd.DataFrame)()

    @cached_property
    def label_groups(self) -> pd.DataFrame:
        """How well the label agrees with the adjudicated one in each group; no rows without an adjudicated label."""
        return self.details.get("label_groups", pd.DataFrame)()

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
    def in_overview(self) -> "LabelAudit":
        """The same audit with the marks that it has in an overview of all labels."""
        return replace(self, gaps=self.gaps.assign(clear=self.gaps["in_overview"]))

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
            "schema": AUDIT_SCHEMA,
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
            "settings": {name: getattr(self.settings, name) for name in SAVED_SETTINGS},
            "weighted": self.weighted,
            "comparisons": self.comparisons,
            "findings": self.findings,
            **({} if self.baseline is None else {"baseline": self.baseline.to_dict()}),
            **{name: estimate.to_dict() for name, estimate in self.estimates.items()},
            "groups": records(self.groups.rename_axis("group").reset_index()),
            "gaps": records(self.gaps.join(self.permutation)),
            **({"shrunken_gaps": records(self.shrunken())} if self.settings.shrink else {}),
            **{name: records(getattr(self, name)) for name in OF_DETAILS if name in self.details},
            "curves": records(self.curves),
            "by_threshold": table_to_dict(self.by_threshold),
            "sums": {name: moments.to_dict() for name, moments in self.sums.items()},
        }
        return with_checksum(document)


@dataclass(frozen=True, eq=False)
class Audit(Presented):
    """An audit: `labels` is the audit of each label, adjusted for its own comparisons, and `overview` has the marks for all labels at once.

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

    def __contains__(self, name: object) -> bool:
        """Whether `audit[name]` is there: a measure of the only label, or a label.

        >>> import equipoise as eq
        >>> audit = eq.audit(eq.Scores.from_arrays([0, 1] * 20, [0.2, 0.9] * 20, ["F", "F", "M", "M"] * 10))
        >>> "eod" in audit, "sex" in audit
        (True, False)
        """
        try:
            return self[name] is not None  # type: ignore[index]
        except (BadInput, TypeError, AttributeError):
            return False

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

    @property
    def comparisons(self) -> int:
        """The number of gaps that are tested, over all labels."""
        return sum(audit.comparisons for audit in self.labels.values())

    @property
    def overview(self) -> Mapping[str, LabelAudit]:
        """The audit of each label with the marks of an overview of all; that of the only label."""
        return self.labels if len(self.labels) == 1 else {label: audit.in_overview for label, audit in self.labels.items()}

    @property
    def findings(self) -> int:
        """The number of comparisons, over all labels, that are clear after adjustment, in an overview of the labels."""
        return sum(audit.findings for audit in self.overview.values())

    def save(self, path: str | Path) -> Path:
        """Writes the audit as JSON, which `eq.read_audit` and `equipoise report` read; returns the path."""
        return write_text(Path(path), json.dumps(with_checksum(self.to_dict()), indent=2, allow_nan=False) + "\n")

    def to_dict(self) -> dict[str, object]:
        """Plain values for JSON: those of the label, or under `labels` those of each; and the checksum of all other values.

        Under `no_finding`, underdiagnosis by group and the decision; if "no finding" is derived from the labels, its whole audit.
        """
        if len(self.labels) == 1:
            document = self.only.to_dict()
        else:
            document = {
                "schema": AUDITS_SCHEMA,
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


MOST_PROBLEMS = 5  # of a file that are listed
MADE_BY = "Write one with `equipoise audit ... --out audit.json`."
ROUNDING_ERROR = 1e-9
Kinds = dict[str, tuple[type, ...]]
COMPUTED_KEYS = ("checksum", "shrunken_gaps")  # from the other values
BLANKS_OUTSIDE_TEXTS = re.compile(r'("(?:[^"\\]|\\.)*")|\s+')  # outside of texts; another spelling of a number (1E-05) is refused too


def read_audit(path: str | Path) -> Audit:
    """The audit in a JSON file that `audit --out` wrote; raises an error for any other file."""
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8")
        document = json.loads(text)
        if BLANKS_OUTSIDE_TEXTS.sub(r"\1", text) != json.dumps(document, separators=(",", ":")):
            raise ValueError("a key is repeated, or a number or a character is not spelt as an audit writes it")
    except FileNotFoundError:
        raise BadInput(f"{file} does not exist. {MADE_BY}") from None
    except (ValueError, OSError, RecursionError) as error:
        raise BadInput(f"{file} is not a JSON file of an audit: {error}. {MADE_BY}") from None
    return audit_from(document, str(file))


def audit_from(plain: object, where: str = "the audit") -> Audit:
    """The audit from the plain values of `Audit.to_dict`; raises an error if they are not as these wrote them."""
    document: Mapping[str, Any] = plain if isinstance(plain, Mapping) else {}
    schema, version = document.get("schema"), document.get("schema_version")
    if schema not in (AUDIT_SCHEMA, AUDITS_SCHEMA):
        found = f"the schema {schema!r}" if schema else "no schema"
        raise BadInput(f"{where}: expected the JSON of an audit (schema {AUDIT_SCHEMA!r} or {AUDITS_SCHEMA!r}); it has {found}. {MADE_BY}")
    if version != SCHEMA_VERSION:
        raise BadInput(f"{where} has schema_version {version!r}; this version of Equipoise reads {SCHEMA_VERSION}. Run the audit again.")
    try:
        unchanged = with_checksum(document)["checksum"] == document.get("checksum")
    except (TypeError, ValueError, RecursionError):  # values that JSON has not
        unchanged = False
    if not unchanged:
        raise BadInput(
            f"{where} was changed or damaged after it was written: its values do not match its checksum. "
            "Restore a copy of it, or run the audit again; do not edit its file."
        )
    try:
        audit, problems = _audit(document)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        problems = [f"{'misses ' if isinstance(error, KeyError) else ''}{first_line(error)}"]
    if problems:
        raise BadInput(*problems[:MOST_PROBLEMS], source=where, advice="It is not a complete audit. Run the audit again.")
    return audit


def _audit(document: Mapping[str, Any]) -> tuple[Audit, list[str]]:
    """The audit, and what is wrong with it."""
    several, of_no_finding = document["schema"] == AUDITS_SCHEMA, document.get("no_finding")
    by_label = document["labels"] if several else {document["label"]: document}
    labels = {name: _label(each) for name, each in by_label.items()}
    read = {f"labels.{name}: " if several else "": (own, by_label[name]) for name, own in labels.items()}
    no_finding = None
    if of_no_finding is not None and of_no_finding["label"] is not None:
        no_finding = labels[of_no_finding["label"]]
    elif of_no_finding is not None:
        no_finding = _label(of_no_finding["audit"])
        read["no_finding: "] = no_finding, of_no_finding["audit"]
    audit = Audit(labels, LabelKind(document["kind"] if several else "labels"), str(document["name"]), no_finding)
    problems = [f"{place}{problem}" for place, (own, plain) in read.items() for problem in _problems(own, plain)]
    rest = {key: value for key, value in audit.to_dict().items() if key not in ("labels", "no_finding")}
    return audit, problems or [*_differences(rest, document)]


def _differences(written: Mapping[str, object], plain: Mapping[str, Any]) -> Iterator[str]:
    """The keys whose values are not as they would be written; 1, 1.0 and true differ."""
    for name, value in written.items():
        if name not in COMPUTED_KEYS and (
            name not in plain or json.dumps(value, sort_keys=True) != json.dumps(plain[name], sort_keys=True)
        ):
            yield f"{name}: is missing, or not as an audit writes it; got {str(plain.get(name))[:60]!r}"


NUMBER, COUNT, TEXT, FLAG = (int, float, type(None)), (int,), (str,), (bool,)  # types of the values of a column
VALUE_AND_LIMITS = ("", "_low", "_high")
NAME_COLUMNS = dict.fromkeys(("attribute", "group", "note"), TEXT)
OF_RATES: Kinds = {f"{name}{end}": NUMBER for name in GROUP_MEASURES for end in VALUE_AND_LIMITS}
OF_GROUPS: Kinds = {
    **{**NAME_COLUMNS, "few": TEXT, "reference": FLAG, "lacking": (dict,), "n": COUNT},
    **dict.fromkeys(("positives", "negatives"), (int, type(None))),
    **OF_RATES,
}
OF_SCORES: Kinds = {
    **{f"{name}{end}": NUMBER for name in SCORE_MEASURES for end in VALUE_AND_LIMITS},
    **{f"{CALIBRATION_ERROR}{end}": NUMBER for end in ("", "_expected_low", "_expected_high")},
    "sampled": COUNT,
}
OF_GAPS: Kinds = {
    **{**dict.fromkeys(GAP_COLUMNS, NUMBER), **NAME_COLUMNS, "measure": TEXT, "reference": TEXT},
    **{"clear": FLAG, "in_overview": FLAG, "few": FLAG, "patients": COUNT, "p_permutation": NUMBER},
}
OF_CURVES: Kinds = {**dict.fromkeys(CURVE_COLUMNS, NUMBER), "attribute": TEXT, "group": TEXT}
NAMES_OF_GAP = {**NAME_COLUMNS, "measure": TEXT, "reference": TEXT}
OF_DETAILS: dict[str, Kinds] = {  # in the file if summaries were asked for, or the rows have strata, or an adjudicated label
    "summaries": {**dict.fromkeys(SUMMARY_COLUMNS, NUMBER), **NAMES_OF_GAP, "patients": COUNT, "few": FLAG},
    "within": {
        **dict.fromkeys(WITHIN_COLUMNS, NUMBER),
        **dict.fromkeys(("strata", "patients", "left_out"), COUNT),
        **NAMES_OF_GAP,
        "within": TEXT,
    },
    "label_gaps": {**dict.fromkeys(LABEL_GAP_COLUMNS, NUMBER), **NAMES_OF_GAP},
    "label_groups": {
        **{**dict.fromkeys(LABEL_GROUP_COLUMNS, NUMBER), "attribute": TEXT, "group": TEXT, "reference": FLAG},
        **dict.fromkeys(("rows", "patients", "positives", "labelled"), COUNT),
    },
}
SHARE_COLUMNS = {*OF_RATES, "p_value", "p_adjusted", "p_permutation", "threshold"}


def _frame(name: str, records: Sequence[Mapping[str, Any]], kinds: Kinds) -> pd.DataFrame:
    """The frame of records; None becomes NaN in columns of numbers. Raises a ValueError for other columns or values."""
    for row in records:
        if wrong := {*kinds} ^ {*row} or {key for key, value in row.items() if type(value) not in kinds[key]}:
            raise ValueError(f"{name}: missing, unknown or invalid {', '.join(sorted(wrong))} of {row.get('group')!r}")
    frame = pd.DataFrame(records, columns=list(records[0]) if records else list(kinds))
    frame = frame.astype({key: float for key, kind in kinds.items() if kind is NUMBER})
    counts = [key for key, kind in kinds.items() if int in kind and float not in kind]
    shares, numbers = frame[[key for key in kinds if key in SHARE_COLUMNS]], frame[counts].fillna(0)
    if ((shares < -ROUNDING_ERROR) | (shares > 1 + ROUNDING_ERROR)).any(axis=None) or ((numbers < 0) | (numbers > 2**53)).any(axis=None):
        raise ValueError(f"{name}: a share is outside of 0 to 1, or a number of rows or patients is negative")
    return frame.astype({key: "Int64" for key in counts if frame[key].isna().any()})


def _label(plain: Mapping[str, Any]) -> LabelAudit:
    from equipoise.measures.paired_changes import Baseline  # only for a saved audit

    curves = _frame("curves", plain["curves"], OF_CURVES)
    kinds = OF_GROUPS | OF_SCORES if "sampled" in plain["groups"][0] else OF_GROUPS
    groups, gaps = _frame("groups", plain["groups"], kinds).set_index("group"), _frame("gaps", plain["gaps"], OF_GAPS)
    measures = {*OVERALL, *MEASURES}  # other measures are sums of rates, known by their form
    estimates = {
        name: each
        for name, each in plain.items()
        if name in measures or (isinstance(each, Mapping) and {"value", "low", "high"} <= {*each})
    }
    sizes = groups["attribute"].value_counts()
    varying, conflicts, threshold = plain["patients_in_several_groups"], plain["conflicts"], plain["threshold"]
    rule: Rule = DescribedRule(str(plain["decision"]), bool(plain["needs_group"]))
    if threshold is not None:
        if not 0 <= threshold <= 1 + ROUNDING_ERROR:
            raise ValueError(f"threshold: must be between 0 and 1; got {threshold}")
        rule = Threshold(float(threshold), str(plain["threshold_origin"]), bool(plain["argmax"]))
    return LabelAudit(
        estimates={name: _read_dataclass(Estimate, each) for name, each in estimates.items()},
        groups=groups,
        gaps=gaps.drop(columns="p_permutation"),
        rule=rule,
        missing=dict(plain["missing_attribute_share"]),
        references=dict(plain["references"]),
        assumed=tuple(plain["references_assumed"]),
        intersections=tuple(plain["intersections"]),
        rows=int(plain["rows"]),
        patients=None if plain["patients"] is None else int(plain["patients"]),
        name=str(plain["name"]),
        settings=AuditSpec(**plain["settings"], thresholds=tuple(sorted(curves["threshold"].unique())), shrink="shrunken_gaps" in plain),
        varying=tuple(GroupConflicts(name, int(count), conflicts) for name, count in varying.items() if conflicts in CONFLICTS),
        comparisons=int(plain["comparisons"]),
        details={
            "permutation": gaps[["p_permutation"]].copy,
            "curves": curves.copy,
            "by_threshold": table_from(plain["by_threshold"]).copy,
        }
        | {name: _frame(name, plain[name], kinds).copy for name, kinds in OF_DETAILS.items() if name in plain},
        weighted=bool(plain["weighted"]),
        baseline=None if plain.get("baseline") is None else _read_dataclass(Baseline, plain["baseline"]),
        label=str(plain["label"]),
        sums={name: Moments.from_dict(each, int(sizes.get(name, 0))) for name, each in plain["sums"].items()},
        digest=None if plain["digest"] is None else str(plain["digest"]),
        left_out=int(plain["rows_in_no_number"]),
    )


def _read_dataclass(kind: Any, plain: Mapping[str, Any]) -> Any:
    """A dataclass of texts, numbers and other dataclasses from its plain values; None is NaN."""
    values = {}
    for each in fields(kind):
        if each.name in plain:
            value, own = plain[each.name], (get_args(each.type) or (each.type,))[0]
            if value is None:
                value = math.nan if own is float else None
            values[each.name] = _read_dataclass(own, value) if isinstance(value, Mapping) else value if value is None else own(value)
    return kind(**values)


def _problems(audit: LabelAudit, plain: Mapping[str, Any]) -> Iterator[str]:
    """Numbers out of range, names that do not agree with each other, and values that would be written otherwise."""
    groups = {str(name): list(rows.index) for name, rows in audit.groups.groupby("attribute", sort=False)}
    listed = list(zip(audit.groups["attribute"], audit.groups.index, strict=True))
    references = {(name, audit.references.get(name)) for name in groups}
    counts = [audit.rows, audit.patients or 0, audit.left_out, audit.comparisons, *(each.patients for each in audit.varying)]
    for name, found in (("references", audit.references), ("missing_attribute_share", audit.missing), ("sums", audit.sums)):
        if set(found) != set(groups):
            yield f"{name}: has {_quoted_names(found)} instead of the attributes of `groups`, {_quoted_names(groups)}"
    some = {"references_assumed": audit.assumed, "intersections": audit.intersections}
    some["patients_in_several_groups"] = tuple(each.attribute for each in audit.varying)
    for name, names in some.items():
        if surplus := set(names) - set(groups):
            yield f"{name}: {_quoted_names(surplus)} is no attribute of `groups`"
    if min(counts) < 0 or max(counts) > 2**53 or max(audit.left_out, audit.patients or 0) > audit.rows:
        yield "rows: a number of rows or patients is negative, or larger than that of all rows"
    if not all(-ROUNDING_ERROR <= share <= 1 + ROUNDING_ERROR for share in audit.missing.values()):
        yield "missing_attribute_share: must be between 0 and 1"
    if not {reason for lacking in audit.groups["lacking"] for reason in lacking.values()} <= {*REASONS, WITHHELD}:
        yield "groups: a reason in `lacking` is not known"
    if len(set(listed)) < len(listed) or any(levels[0] != audit.references.get(name) for name, levels in groups.items()):
        yield "groups: repeats a group, or does not begin with the reference of each attribute"
    if [pair in references for pair in listed] != audit.groups["reference"].tolist():
        yield "groups: disagrees with `references` on the references"
    if audit.gaps.duplicated(["measure", "attribute", "group"]).any():
        yield "gaps: repeats a gap"
    for measure, attribute, group, reference in zip(*(audit.gaps[name] for name in GAP_COLUMNS[:4]), strict=True):
        known = groups.get(attribute, [""])
        if group not in known[1:] or reference != known[0] or not _is_measure(measure):
            yield f"gaps: {measure} of {group!r} and {reference!r} by {attribute!r} is no gap of `groups`"
    for name, frame in (("curves", audit.curves), ("by_threshold", audit.by_threshold)):
        for pair in sorted({*zip(frame["attribute"], frame["group"], strict=True)} - {(ALL_ROWS, ALL_ROWS), *listed}):
            yield f"{name}: {pair[1]!r} of {pair[0]!r} is no group of `groups`"
    for pair, steps in audit.by_threshold.groupby(["attribute", "group", "label"]):
        cuts = steps["threshold"]
        ascending = cuts.iloc[0] == 0 and (cuts.diff()[1:] > 0).all() and cuts.max() <= 1 + ROUNDING_ERROR
        if not ascending or not (steps["above"] >= 0).all() or pair[2] not in (0, 1):
            yield f"by_threshold.{'.'.join(map(str, pair))}: needs ascending thresholds from 0 to 1, with a number of rows for each"
    for name, each in audit.estimates.items():
        if not (name in OVERALL or _is_measure(name)) or not {each.group, each.reference} <= {"", *audit.groups.index}:
            yield f"{name}: is no measure, or compares groups that are not in `groups`"
        if each.p_value < -ROUNDING_ERROR or each.p_value > 1 + ROUNDING_ERROR:
            yield f"{name}: has a p-value outside of 0 to 1"
    yield from _differences(audit.to_dict(), plain)


def _is_measure(name: str) -> bool:
    try:
        return name in SUMMARIES or canonical_name(name) == name
    except BadInput:
        return False


def _quoted_names(names: Any) -> str:
    return ", ".join(map(repr, sorted(names))) or "nothing"
