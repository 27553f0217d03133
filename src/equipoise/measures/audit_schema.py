"""The schema of the JSON file of an audit: every key with its type and range, and names that must agree with each other."""

import json
import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as checked

from equipoise.data import CONFLICTS
from equipoise.errors import BadInput, validation_problems
from equipoise.measures.audit import SETTINGS
from equipoise.measures.audit_spec import AuditSpec
from equipoise.measures.calibration import CERTAIN, CONSTANT, SEPARATED, TOO_FEW, WITHHELD
from equipoise.measures.estimates import CALIBRATION_ERROR, GROUP_MEASURES
from equipoise.measures.gaps import GAPS, OVERALL, QUOTIENTS, canonical_name
from equipoise.measures.moments import DECISIONS
from equipoise.measures.score_measures import ALL_ROWS, SCORE_MEASURES
from equipoise.measures.thresholds import NEVER

OPEN = ConfigDict(extra="allow", strict=True)  # estimates have their own names, and commands add keys
CLOSED = ConfigDict(extra="forbid", strict=True)
Count = Annotated[int, Field(ge=0, le=2**53)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
ROUNDING = 1e-9
Share = Annotated[float, Field(ge=-ROUNDING, le=1 + ROUNDING)]
Number = Finite | None
MaybeShare = Share | None
Sum = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Text = str
ENDS = dict.fromkeys((*GROUP_MEASURES, *SCORE_MEASURES), ("", "_low", "_high")) | {
    CALIBRATION_ERROR: ("", "_expected_low", "_expected_high")
}
RATES, OF_SCORES = (
    {f"{name}{end}" for name in names for end in ENDS[name]} for names in (GROUP_MEASURES, (*SCORE_MEASURES, CALIBRATION_ERROR))
)
ESTIMATE = {"value", "low", "high"}


@checked(config=CLOSED, kw_only=True)
class _Estimate:
    value: Number
    low: Number
    high: Number
    simultaneous_low: Number = None
    simultaneous_high: Number = None
    p_value: MaybeShare = None
    p_adjusted: MaybeShare = None
    detectable: Number = None
    group: Text = ""
    reference: Text = ""
    direction: Text = ""
    clear: bool = False
    patients: Count = 0
    few: bool = False
    note: Text = ""


@checked(config=OPEN, kw_only=True)
class _GroupRow:
    group: Text
    attribute: Text
    reference: bool
    n: Count
    positives: Count | None
    negatives: Count | None
    lacking: dict[str, Literal[TOO_FEW, WITHHELD, CONSTANT, SEPARATED, CERTAIN]]  # type: ignore[valid-type]
    few: Text
    note: Text
    sampled: Count = 0


@checked(config=CLOSED, kw_only=True)
class _GapRow:
    measure: Text
    attribute: Text
    group: Text
    reference: Text
    value: Number
    low: Number
    high: Number
    simultaneous_low: Number
    simultaneous_high: Number
    p_value: MaybeShare
    p_adjusted: MaybeShare
    clear: bool
    detectable: Number
    patients: Count
    few: bool
    note: Text


@checked(config=CLOSED, kw_only=True)
class _CurveRow:
    attribute: Text
    group: Text
    threshold: Annotated[float, Field(ge=0, lt=1)]
    net_benefit: Number
    low: Number
    high: Number
    treat_all: Number
    treat_none: Finite


@checked(config=CLOSED, kw_only=True)
class _Steps:
    threshold: list[Share]
    above: list[Sum]
    score: list[MaybeShare]


@checked(config=CLOSED, kw_only=True)
class _Sums:
    total: list[list[Sum]]
    second: list[list[list[Sum]]]
    rows: list[list[Sum]]
    units: list[list[Sum]]


@checked(config=CLOSED, kw_only=True)
class _Versus:
    value: Finite
    other: Finite
    difference: _Estimate
    gap: Number
    other_gap: Number
    clear: bool


@checked(config=CLOSED, kw_only=True)
class _Baseline:
    inputs: Text
    fitted_on: Text
    fitted_rows: Count
    rows: Count
    performance: Text
    measure: Text
    original: _Versus
    repaired: _Versus | None
    beats_original: bool
    beats_repaired: bool


@checked(config=OPEN, kw_only=True)
class _Audit:
    schema: Literal["equipoise.audit"]
    name: Text
    label: Text
    rows: Count
    patients: Count | None
    rows_in_no_number: Count
    digest: Text | None
    resampled: Literal["rows", "patients"]
    decision: Text
    threshold: Annotated[float, Field(ge=0, le=NEVER)] | None
    threshold_origin: Text | None
    argmax: bool
    needs_group: bool
    references: dict[str, str]
    references_assumed: list[str]
    intersections: list[str]
    missing_attribute_share: dict[str, Share]
    patients_in_several_groups: dict[str, Count]
    conflicts: Literal[tuple(CONFLICTS)]  # type: ignore[valid-type]
    settings: AuditSpec
    weighted: bool
    comparisons: Count
    own_comparisons: Count
    findings: Count
    groups: Annotated[list[_GroupRow], Field(min_length=1)]
    gaps: list[_GapRow]
    curves: list[_CurveRow]
    by_threshold: dict[str, dict[str, dict[Literal["0", "1"], _Steps]]]
    sums: dict[str, _Sums]
    baseline: _Baseline | None = None
    shrunken_gaps: list[dict[str, Any]] | None = None
    no_finding: "_NoFinding | None" = None


@checked(config=OPEN, kw_only=True)
class _NoFinding:
    label: Text | None
    audit: _Audit | None = None


@checked(config=OPEN, kw_only=True)
class _Audits:
    schema: Literal["equipoise.audits"]
    name: Text
    kind: Literal["labels", "classes"]
    comparisons: Count
    findings: Count
    labels: Annotated[dict[str, _Audit], Field(min_length=1)]
    no_finding: _NoFinding | None = None


_DOCUMENTS: dict[str, TypeAdapter[Any]] = {"equipoise.audit": TypeAdapter(_Audit), "equipoise.audits": TypeAdapter(_Audits)}
_ESTIMATE: TypeAdapter[Any] = TypeAdapter(_Estimate)


def labels_of(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """The plain values of the audit of each label: a document of one label is that of the label."""
    return document["labels"] if document["schema"] == "equipoise.audits" else {document["label"]: document}


def audit_problems(document: Mapping[str, Any]) -> list[str]:
    """Everything that is wrong with the plain values of an audit."""
    try:
        _DOCUMENTS[document["schema"]].validate_json(json.dumps(document))
    except ValidationError as error:
        return validation_problems(error, 0)
    labels, no_finding = labels_of(document), document.get("no_finding")
    places = {"" if each is document else f"labels.{label}: ": each for label, each in labels.items()}
    problems = []
    if no_finding is not None:
        derived = no_finding.get("audit")
        if (derived is None) == (no_finding["label"] is None) or no_finding["label"] not in (None, *labels):
            problems.append("no_finding: needs one of the labels, or an audit")
        places |= {} if derived is None else {"no_finding.audit: ": derived}
    return [f"{place}{problem}" for place, each in places.items() for problem in _one_audit(each)] + problems


def _one_audit(plain: Mapping[str, Any]) -> Iterator[str]:
    """The names and numbers of one audit that do not agree with each other."""
    groups: dict[str, list[str]] = {}
    for row in plain["groups"]:
        groups.setdefault(row["attribute"], []).append(row["group"])
    yield from _group_rows(plain, groups)
    if set(plain["settings"]) != set(SETTINGS):
        yield f"settings: has {_listed(plain['settings'])} instead of {_listed(SETTINGS)}"
    for key in ("references", "missing_attribute_share", "sums"):
        if set(plain[key]) != set(groups):
            yield f"{key}: has {_listed(plain[key])} instead of the attributes of `groups`, {_listed(groups)}"
    for key in ("references_assumed", "patients_in_several_groups", "intersections"):
        if surplus := {*plain[key]} - set(groups):
            yield f"{key}: {_listed(surplus)} is no attribute of `groups`"
    if (plain["threshold"] is None) != (plain["threshold_origin"] is None):
        yield "threshold_origin: needs a threshold, and a threshold needs its origin"
    if plain["rows_in_no_number"] > plain["rows"] or (plain["patients"] or 0) > plain["rows"]:
        yield "rows: is smaller than `patients` or `rows_in_no_number`"
    pairs = {(row["measure"], row["attribute"], row["group"]) for row in plain["gaps"]}
    if len(pairs) < len(plain["gaps"]):
        yield "gaps: repeats a gap"
    for row in plain["gaps"]:
        known = groups.get(row["attribute"], [""])
        if row["group"] not in known[1:] or row["reference"] != known[0] or not _is_measure(row["measure"]):
            yield f"gaps: {row['measure']} of {row['group']!r} and {row['reference']!r} by {row['attribute']!r} is no gap of `groups`"
    for key, found in (("curves", {(row["attribute"], row["group"]) for row in plain["curves"]}), ("by_threshold", _cells(plain))):
        for attribute, group in sorted(found - {(ALL_ROWS, ALL_ROWS)}):
            if group not in groups.get(attribute, ()):
                yield f"{key}: {group!r} of {attribute!r} is no group of `groups`"
    for attribute, levels in groups.items():
        if attribute in plain["sums"] and not _fits(plain["sums"][attribute], len(levels)):
            yield f"sums.{attribute}: expected sums of {len(levels)} groups"
    yield from _steps(plain)
    yield from _estimates(plain, {level for levels in groups.values() for level in levels})


def _group_rows(plain: Mapping[str, Any], groups: Mapping[str, list[str]]) -> Iterator[str]:
    own = {"group", "attribute", "reference", "n", "positives", "negatives", "lacking", "few", "note"}
    columns = set(plain["groups"][0])
    if columns not in (own | RATES, own | RATES | OF_SCORES | {"sampled"}):
        yield f"groups: misses {_listed((own | RATES) - columns)}, or has unknown columns {_listed(columns - own - RATES - OF_SCORES)}"
        return
    for row in plain["groups"]:
        if set(row) != columns or not all(_is_number(row[name]) for name in columns - own - {"sampled"}):
            yield f"groups: the row of {row['group']!r} lacks a column or has a value that is no number"
        elif not all(row[name] is None or -ROUNDING <= row[name] <= 1 + ROUNDING for name in RATES):
            yield f"groups: the row of {row['group']!r} has a rate outside of 0 to 1"
        elif row["reference"] != (row["group"] == plain["references"].get(row["attribute"])):
            yield f"groups: {row['group']!r} and `references` disagree on the reference of {row['attribute']!r}"
    for attribute, levels in groups.items():
        if len(set(levels)) < len(levels) or levels[0] != plain["references"].get(attribute):
            yield f"groups: {attribute!r} repeats a group, or does not begin with its reference"


def _steps(plain: Mapping[str, Any]) -> Iterator[str]:
    for attribute, groups in plain["by_threshold"].items():
        for group, labels in groups.items():
            for label, steps in labels.items():
                cuts = steps["threshold"]
                if not len(cuts) == len(steps["above"]) == len(steps["score"]) > 0 or cuts[0] != 0 or sorted(set(cuts)) != cuts:
                    yield f"by_threshold.{attribute}.{group}.{label}: needs ascending thresholds from 0, with one count and score for each"


def _estimates(plain: Mapping[str, Any], groups: set[str]) -> Iterator[str]:
    for name, value in plain.items():
        if not (name in OVERALL or name in GAPS or name in QUOTIENTS or (isinstance(value, dict) and set(value) >= ESTIMATE)):
            continue
        try:
            _ESTIMATE.validate_json(json.dumps(value))
        except ValidationError as error:
            yield from (f"{name}: {problem}" for problem in validation_problems(error, 0))
            continue
        if not (name in OVERALL or _is_measure(name)):
            yield f"{name}: is no measure"
        elif not {value.get("group", ""), value.get("reference", "")} <= {"", *groups}:
            yield f"{name}: compares groups that are not in `groups`"


def _cells(plain: Mapping[str, Any]) -> set[tuple[str, str]]:
    return {(attribute, group) for attribute, groups in plain["by_threshold"].items() for group in groups}


def _fits(sums: Mapping[str, Any], groups: int) -> bool:
    """Whether sums have the shape of this number of groups."""
    columns, ratios = len(next(iter(DECISIONS.values())).top), len(DECISIONS)
    widths = {"total": columns, "second": columns, "rows": ratios, "units": ratios}
    flat = all(len(sums[name]) == groups and all(len(row) == width for row in sums[name]) for name, width in widths.items())
    return flat and all(len(row) == columns for group in sums["second"] for row in group)


def _is_measure(name: str) -> bool:
    try:
        return canonical_name(name) == name
    except BadInput:
        return False


def _is_number(value: object) -> bool:
    return value is None or (isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value))


def _listed(names: Any) -> str:
    return ", ".join(map(repr, sorted(names))) or "nothing"
