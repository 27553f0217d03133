"""Audits read back from their JSON, with the numbers that were written, so that a page or a comparison can be made from the file."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd

from equipoise.data import Scores, Varying
from equipoise.errors import BadInput
from equipoise.measures.audit import SCHEMA_VERSION, Audit, Audits
from equipoise.measures.by_threshold import table_from
from equipoise.measures.cells import FloatArray
from equipoise.measures.estimates import Estimate, Settings
from equipoise.measures.moments import Moments
from equipoise.measures.paired_changes import Baseline, Versus
from equipoise.measures.rules import Rule, Threshold
from equipoise.measures.score_measures import CURVES

ONE, SEVERAL = "equipoise.audit", "equipoise.audits"  # schemas
TEXT = ("group", "attribute", "measure", "note")
MADE_BY = "Write one with `equipoise audit ... --out audit.json`."


@dataclass(frozen=True)
class Described:
    """The rule of a saved audit that is not a threshold: its words are known, its decisions are not."""

    words: str
    needs_group: bool = False
    randomised: bool = False
    KIND: ClassVar[str] = "described"

    def decide(self, scores: Scores) -> FloatArray:
        """An error: the file has the words of the rule only."""
        raise BadInput(f"{scores.name!r} cannot be decided by a rule that was read from an audit: {self.words}. Load the rule's own file.")

    def describe(self) -> str:
        return self.words

    def cuts(self, group: str) -> tuple[float, ...]:  # noqa: ARG002 (they are not known)
        return ()

    def to_dict(self) -> dict[str, object]:
        """Plain values for JSON."""
        return {"kind": self.KIND, "words": self.words}


def read_audit(path: str | Path) -> Audit | Audits:
    """The audit, or the audits of several labels, in a JSON file that `audit --out` wrote.

    Raises an error that says what the file is instead, or by which version it was written.
    """
    place = Path(path)
    try:
        plain = json.loads(place.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BadInput(f"{place} does not exist. {MADE_BY}") from None
    except (ValueError, OSError, RecursionError) as error:
        raise BadInput(f"{place} is not a JSON file of an audit: {error}. {MADE_BY}") from None
    return audit_from(plain, str(place))


def audit_from(plain: object, where: str = "the audit") -> Audit | Audits:
    """The audit in the plain values of `Audit.to_dict` or `Audits.to_dict`."""
    known: Mapping[str, Any] = plain if isinstance(plain, Mapping) else {}
    schema, version = known.get("schema"), known.get("schema_version")
    if schema not in (ONE, SEVERAL):
        found = f"the schema {schema!r}" if schema else "no schema"
        raise BadInput(f"{where}: expected the JSON of an audit (schema {ONE!r} or {SEVERAL!r}); it has {found}. {MADE_BY}")
    if version != SCHEMA_VERSION:
        raise BadInput(f"{where} has schema_version {version!r}; this version of Equipoise reads {SCHEMA_VERSION}. Run the audit again.")
    try:
        return _audits(known) if schema == SEVERAL else _audit(known)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        problem = f"{type(error).__name__}: {error}"
        raise BadInput(f"{where} is not a complete audit ({problem}). Run the audit again, and do not edit its file.") from None


def _audits(plain: Mapping[str, Any]) -> Audits:
    audits = {str(label): _audit(own) for label, own in plain["labels"].items()}
    told = plain.get("no_finding")
    clear = None if told is None else audits[told["label"]] if told.get("label") else _audit(told["audit"])
    return Audits(audits, str(plain["kind"]), str(plain["name"]), clear)


def _audit(plain: Mapping[str, Any]) -> Audit:
    estimates = {name: _estimate(own) for name, own in plain.items() if isinstance(own, Mapping) and {"value", "low", "high"} <= set(own)}
    curves = _frame(plain["curves"], CURVES)
    numbers = {field.name for field in fields(Settings)} & set(plain["settings"])
    cuts = tuple(sorted(curves["threshold"].unique())) if len(curves) else ()
    settings = Settings(**{name: plain["settings"][name] for name in numbers}, thresholds=cuts)
    varying = tuple(Varying(name, int(count), plain["conflicts"]) for name, count in plain["patients_in_several_groups"].items())
    return Audit(
        estimates=estimates,
        groups=_frame(plain["groups"]).set_index("group"),
        gaps=_frame(plain["gaps"]),
        rule=_rule(plain),
        missing=dict(plain["missing_attribute_share"]),
        references=dict(plain["references"]),
        assumed=tuple(plain["references_assumed"]),
        rows=int(plain["rows"]),
        patients=None if plain["patients"] is None else int(plain["patients"]),
        name=str(plain["name"]),
        settings=settings,
        varying=varying,
        comparisons=int(plain["comparisons"]),
        curves=curves,
        by_threshold=table_from(plain["by_threshold"]),
        weighted=bool(plain["weighted"]),
        shrink="shrunken_gaps" in plain,
        baseline=_baseline(plain.get("baseline")),
        label=str(plain["label"]),
        sums={name: _sums(own, name, plain["groups"]) for name, own in plain["sums"].items()},
        digest=plain["digest"],
    )


def _sums(plain: Mapping[str, Any], attribute: str, groups: Sequence[Mapping[str, Any]]) -> Moments:
    return Moments.from_dict(plain, sum(row["attribute"] == attribute for row in groups))


def _estimate(plain: Mapping[str, Any]) -> Estimate:
    names = {field.name for field in fields(Estimate)}
    known: dict[str, Any] = {name: math.nan if value is None else value for name, value in plain.items() if name in names}
    return Estimate(**known)


def _frame(records: Sequence[Mapping[str, Any]], columns: Sequence[str] | None = None) -> pd.DataFrame:
    """A frame of records, in which None stands for NaN in columns of numbers."""
    frame = pd.DataFrame(records, columns=columns if not records else None)
    for name in frame.columns:
        texts = name in TEXT or frame[name].map(lambda value: isinstance(value, str)).any()
        whole = frame[name].map(lambda value: isinstance(value, (bool, int))).all()
        if not texts and not whole:
            frame[name] = frame[name].astype(float)
    return frame


def _rule(plain: Mapping[str, Any]) -> Rule:
    words, cut = str(plain["decision"]), plain["threshold"]
    if cut is None:
        return Described(words, bool(plain["needs_group"]))
    return Threshold(float(cut), words.partition("(")[2].removesuffix(")"))


def _baseline(plain: Mapping[str, Any] | None) -> Baseline | None:
    if plain is None:
        return None
    about = {field.name: plain[field.name] for field in fields(Baseline) if field.name not in ("original", "repaired")}
    return Baseline(**about, original=_versus(plain["original"]), repaired=None if not plain["repaired"] else _versus(plain["repaired"]))


def _versus(plain: Mapping[str, Any]) -> Versus:
    numbers = {name: math.nan if plain[name] is None else float(plain[name]) for name in ("value", "other", "gap", "other_gap")}
    return Versus(**numbers, difference=_estimate(plain["difference"]))
