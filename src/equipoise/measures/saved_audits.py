"""Audits read from the JSON file that `audit --out` wrote, for a report or a comparison without the data.

There is no schema besides `Audit.to_dict`: a file is accepted if the audit made from it would be written as it is in the file. What that
does not show is checked as well: the range of numbers, and names that must agree with each other.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

import pandas as pd

from equipoise.data import CONFLICTS, GroupConflicts, LabelKind
from equipoise.errors import BadInput, first_line
from equipoise.measures.audit import (
    CALIBRATION_ERROR,
    GAP_COLUMNS,
    GROUP_MEASURES,
    SCHEMA_VERSION,
    Audit,
    LabelAudit,
    with_checksum,
)
from equipoise.measures.audit_spec import AuditSpec
from equipoise.measures.calibration import REASONS, WITHHELD
from equipoise.measures.disclosure import table_from
from equipoise.measures.gaps import GAPS, OVERALL, QUOTIENTS, canonical_name
from equipoise.measures.intervals import Estimate
from equipoise.measures.moments import Moments
from equipoise.measures.paired_changes import Baseline
from equipoise.measures.score_measures import ALL_ROWS, CURVES, SCORE_MEASURES
from equipoise.measures.thresholds import Described, Rule, Threshold

ONE, SEVERAL = "equipoise.audit", "equipoise.audits"  # schemas of the audit of one label, and of several
MOST_PROBLEMS = 5  # of a file that are listed
MADE_BY = "Write one with `equipoise audit ... --out audit.json`."
ROUNDED = 1e-9
Kinds = dict[str, tuple[type, ...]]
COMPUTED = ("checksum", "shrunken_gaps")  # from the other values
BLANKS = re.compile(r'("(?:[^"\\]|\\.)*")|\s+')  # outside of texts; another spelling of a number (1E-05) is refused too


def read_audit(path: str | Path) -> Audit:
    """The audit in a JSON file that `audit --out` wrote; raises an error for any other file."""
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8")
        document = json.loads(text)
        if BLANKS.sub(r"\1", text) != json.dumps(document, separators=(",", ":")):
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
    if schema not in (ONE, SEVERAL):
        found = f"the schema {schema!r}" if schema else "no schema"
        raise BadInput(f"{where}: expected the JSON of an audit (schema {ONE!r} or {SEVERAL!r}); it has {found}. {MADE_BY}")
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
    several, of_no_finding = document["schema"] == SEVERAL, document.get("no_finding")
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
        if name not in COMPUTED and (name not in plain or json.dumps(value, sort_keys=True) != json.dumps(plain[name], sort_keys=True)):
            yield f"{name}: is missing, or not as an audit writes it; got {str(plain.get(name))[:60]!r}"


NUMBER, COUNT, TEXT, FLAG = (int, float, type(None)), (int,), (str,), (bool,)  # types of the values of a column
ENDS = ("", "_low", "_high")
NAMED = dict.fromkeys(("attribute", "group", "note"), TEXT)
OF_GROUPS: Kinds = {
    **{**NAMED, "few": TEXT, "reference": FLAG, "lacking": (dict,), "n": COUNT},
    **dict.fromkeys(("positives", "negatives"), (int, type(None))),
    **{f"{name}{end}": NUMBER for name in GROUP_MEASURES for end in ENDS},
}
OF_SCORES: Kinds = {
    **{f"{name}{end}": NUMBER for name in SCORE_MEASURES for end in ENDS},
    **{f"{CALIBRATION_ERROR}{end}": NUMBER for end in ("", "_expected_low", "_expected_high")},
    "sampled": COUNT,
}
OF_GAPS: Kinds = {
    **{**dict.fromkeys(GAP_COLUMNS, NUMBER), **NAMED, "measure": TEXT, "reference": TEXT},
    **{"clear": FLAG, "few": FLAG, "patients": COUNT},
}
OF_CURVES: Kinds = {**dict.fromkeys(CURVES, NUMBER), "attribute": TEXT, "group": TEXT}
SHARES = {f"{name}{end}" for name in GROUP_MEASURES for end in ENDS} | {"p_value", "p_adjusted", "threshold"}


def _frame(name: str, records: Sequence[Mapping[str, Any]], kinds: Kinds) -> pd.DataFrame:
    """The frame of records; None becomes NaN in columns of numbers. Raises a ValueError for other columns or values."""
    for row in records:
        if wrong := {*kinds} ^ {*row} or {key for key, value in row.items() if type(value) not in kinds[key]}:
            raise ValueError(f"{name}: missing, unknown or invalid {', '.join(sorted(wrong))} of {row.get('group')!r}")
    frame = pd.DataFrame(records, columns=list(records[0]) if records else list(kinds))
    frame = frame.astype({key: float for key, kind in kinds.items() if kind is NUMBER})
    counts = [key for key, kind in kinds.items() if int in kind and float not in kind]
    shares, numbers = frame[[key for key in kinds if key in SHARES]], frame[counts].fillna(0)
    if ((shares < -ROUNDED) | (shares > 1 + ROUNDED)).any(axis=None) or ((numbers < 0) | (numbers > 2**53)).any(axis=None):
        raise ValueError(f"{name}: a share is outside of 0 to 1, or a number of rows or patients is negative")
    return frame.astype({key: "Int64" for key in counts if frame[key].isna().any()})


def _label(plain: Mapping[str, Any]) -> LabelAudit:
    curves = _frame("curves", plain["curves"], OF_CURVES)
    kinds = OF_GROUPS | OF_SCORES if "sampled" in plain["groups"][0] else OF_GROUPS
    groups = _frame("groups", plain["groups"], kinds).set_index("group")
    measures = {*OVERALL, *GAPS, *QUOTIENTS}  # other measures are sums of rates, known by their form
    estimates = {
        name: each
        for name, each in plain.items()
        if name in measures or (isinstance(each, Mapping) and {"value", "low", "high"} <= {*each})
    }
    sizes = groups["attribute"].value_counts()
    varying, conflicts, threshold = plain["patients_in_several_groups"], plain["conflicts"], plain["threshold"]
    rule: Rule = Described(str(plain["decision"]), bool(plain["needs_group"]))
    if threshold is not None:
        if not 0 <= threshold <= 1 + ROUNDED:
            raise ValueError(f"threshold: must be between 0 and 1; got {threshold}")
        rule = Threshold(float(threshold), str(plain["threshold_origin"]), bool(plain["argmax"]))
    return LabelAudit(
        estimates={name: _read_dataclass(Estimate, each) for name, each in estimates.items()},
        groups=groups,
        gaps=_frame("gaps", plain["gaps"], OF_GAPS),
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
        details={"curves": curves.copy, "by_threshold": table_from(plain["by_threshold"]).copy},
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
    for field in fields(kind):
        if field.name in plain:
            value, own = plain[field.name], (get_args(field.type) or (field.type,))[0]
            if value is None:
                value = math.nan if own is float else None
            values[field.name] = _read_dataclass(own, value) if isinstance(value, Mapping) else value if value is None else own(value)
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
    if not all(-ROUNDED <= share <= 1 + ROUNDED for share in audit.missing.values()):
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
        ascending = cuts.iloc[0] == 0 and (cuts.diff()[1:] > 0).all() and cuts.max() <= 1 + ROUNDED
        if not ascending or not (steps["above"] >= 0).all() or pair[2] not in (0, 1):
            yield f"by_threshold.{'.'.join(map(str, pair))}: needs ascending thresholds from 0 to 1, with a number of rows for each"
    for name, each in audit.estimates.items():
        if not (name in OVERALL or _is_measure(name)) or not {each.group, each.reference} <= {"", *audit.groups.index}:
            yield f"{name}: is no measure, or compares groups that are not in `groups`"
        if each.p_value < -ROUNDED or each.p_value > 1 + ROUNDED:
            yield f"{name}: has a p-value outside of 0 to 1"
    yield from _differences(audit.to_dict(), plain)


def _is_measure(name: str) -> bool:
    try:
        return canonical_name(name) == name
    except BadInput:
        return False


def _quoted_names(names: Any) -> str:
    return ", ".join(map(repr, sorted(names))) or "nothing"
