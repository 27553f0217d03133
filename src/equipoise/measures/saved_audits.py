"""Audits read from the JSON file that `audit --out` wrote, for a report or a comparison without the data."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd

from equipoise.data import GroupConflicts, LabelKind, Scores
from equipoise.errors import BadInput
from equipoise.measures.audit import SCHEMA_VERSION, Audit, LabelAudit
from equipoise.measures.audit_schema import audit_problems, labels_of
from equipoise.measures.audit_spec import AuditSpec
from equipoise.measures.by_threshold import table_from
from equipoise.measures.cells import FloatArray
from equipoise.measures.checksum import has_checksum, read_json
from equipoise.measures.estimates import Estimate
from equipoise.measures.moments import Moments
from equipoise.measures.paired_changes import Baseline, BaselineComparison
from equipoise.measures.score_measures import CURVES
from equipoise.measures.thresholds import Rule, Threshold

ONE, SEVERAL = "equipoise.audit", "equipoise.audits"  # schemas of the audit of one label, and of several
TEXT = ("group", "attribute", "measure", "lacking", "note")  # columns that hold no numbers, even if they look like them
COUNTS = ("positives", "negatives")  # of groups; missing if they are withheld
MOST_PROBLEMS = 5  # of a file that are listed
MADE_BY = "Write one with `equipoise audit ... --out audit.json`."


@dataclass(frozen=True)
class Described:
    """The decision rule of a saved audit, if it is not a threshold: only its description is known."""

    words: str
    needs_group: bool = False
    randomised: bool = False
    KIND: ClassVar[str] = "described"
    shared: ClassVar[float | None] = None
    argmax: ClassVar[bool] = False
    origin: ClassVar[str] = ""

    def decide(self, scores: Scores) -> FloatArray:
        """Raises an error: the file has only the description of the rule."""
        raise BadInput(f"{scores.name!r} cannot be decided by a rule that was read from an audit: {self.words}. Load the rule's own file.")

    def describe(self) -> str:
        return self.words

    def cuts(self, group: str) -> tuple[float, ...]:  # noqa: ARG002 (they are not known)
        return ()

    def to_dict(self) -> dict[str, object]:
        """Plain values for JSON."""
        return {"kind": self.KIND, "words": self.words}


def read_audit(path: str | Path) -> Audit:
    """The audit in a JSON file that `audit --out` wrote; raises an error for any other file."""
    file = Path(path)
    try:
        document = read_json(file.read_text(encoding="utf-8"))
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
        unchanged = has_checksum(document)
    except (TypeError, ValueError, RecursionError):  # values that JSON has not
        unchanged = False
    if not unchanged:
        raise BadInput(
            f"{where} was changed or damaged after it was written: its values do not match its checksum. "
            "Restore a copy of it, or run the audit again; do not edit its file."
        )
    if problems := audit_problems(document):
        raise BadInput(*problems[:MOST_PROBLEMS], source=where, advice="It is not a complete audit. Run the audit again.")
    labels = {str(label): _audit(each) for label, each in labels_of(document).items()}
    underdiagnosis = document.get("no_finding")
    no_finding = None
    if underdiagnosis is not None:
        no_finding = labels[underdiagnosis["label"]] if underdiagnosis.get("label") else _audit(underdiagnosis["audit"])
    return Audit(labels, LabelKind(document.get("kind", "labels")), str(document["name"]), no_finding)


def _audit(plain: Mapping[str, Any]) -> LabelAudit:
    curves = _frame(plain["curves"], CURVES)
    cuts = tuple(sorted(curves["threshold"].unique())) if len(curves) else ()
    settings = AuditSpec(**plain["settings"], thresholds=cuts, shrink="shrunken_gaps" in plain)
    varying = tuple(GroupConflicts(name, int(count), plain["conflicts"]) for name, count in plain["patients_in_several_groups"].items())
    groups_by_attribute = Counter(row["attribute"] for row in plain["groups"])
    return LabelAudit(
        estimates={
            name: _estimate(each) for name, each in plain.items() if isinstance(each, Mapping) and {"value", "low", "high"} <= set(each)
        },
        groups=_frame(plain["groups"]).set_index("group"),
        gaps=_frame(plain["gaps"]),
        rule=_rule(plain),
        missing=dict(plain["missing_attribute_share"]),
        references=dict(plain["references"]),
        assumed=tuple(plain["references_assumed"]),
        intersections=tuple(plain["intersections"]),
        rows=int(plain["rows"]),
        patients=None if plain["patients"] is None else int(plain["patients"]),
        name=str(plain["name"]),
        settings=settings,
        varying=varying,
        comparisons=int(plain["comparisons"]),
        curves=curves,
        by_threshold=table_from(plain["by_threshold"]),
        weighted=bool(plain["weighted"]),
        baseline=_baseline(plain.get("baseline")),
        label=str(plain["label"]),
        sums={name: Moments.from_dict(each, groups_by_attribute[name]) for name, each in plain["sums"].items()},
        digest=plain["digest"],
        left_out=int(plain["rows_in_no_number"]),
    )


def _estimate(plain: Mapping[str, Any]) -> Estimate:
    names = {field.name for field in fields(Estimate)}
    values: dict[str, Any] = {name: math.nan if value is None else value for name, value in plain.items() if name in names}
    return Estimate(**values)


def _frame(records: Sequence[Mapping[str, Any]], columns: Sequence[str] | None = None) -> pd.DataFrame:
    """The frame of records; None becomes NaN in columns of numbers."""
    frame = pd.DataFrame(records, columns=columns if not records else None)
    for name in frame.columns:
        is_text = name in TEXT or frame[name].map(lambda value: isinstance(value, str)).any()
        is_whole = frame[name].map(lambda value: isinstance(value, (bool, int))).all()
        if not is_text and not is_whole:
            frame[name] = frame[name].astype("Int64" if name in COUNTS else float)
    return frame


def _rule(plain: Mapping[str, Any]) -> Rule:
    cut = plain["threshold"]
    if cut is None:
        return Described(str(plain["decision"]), bool(plain["needs_group"]))
    return Threshold(float(cut), str(plain["threshold_origin"]), bool(plain["argmax"]))


def _baseline(plain: Mapping[str, Any] | None) -> Baseline | None:
    if plain is None:
        return None
    values = {field.name: plain[field.name] for field in fields(Baseline)}
    values |= {"original": _versus(plain["original"]), "repaired": None if not plain["repaired"] else _versus(plain["repaired"])}
    return Baseline(**values)


def _versus(plain: Mapping[str, Any]) -> BaselineComparison:
    numbers = {name: math.nan if plain[name] is None else float(plain[name]) for name in ("value", "other", "gap", "other_gap")}
    return BaselineComparison(**numbers, difference=_estimate(plain["difference"]))
