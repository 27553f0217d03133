"""Conditions on results, for pipelines: `eod > 0.1`, `|eod| > 0.1 and eod.clear`, `tpr[F] < 0.8`, `changed`. No code is executed.

    condition = clause { ("and" | "or") clause }           "and" binds more tightly
    clause    = value ("<" | "<=" | ">" | ">=") number, or a value that is true or false
    value     = name [ "." field ] [ "[" group "]" ], or the same between bars for its absolute value

A name is a measure ('tpr-fpr' in quotation marks), a rate of the groups, a performance measure, or `findings`. A clause about a gap or a
rate holds if it holds for any group; clauses joined by "and" must hold for the same group.
"""

import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from equipoise.errors import BadInput, UnknownName
from equipoise.measures.audit import Audit
from equipoise.measures.estimates import GROUP_MEASURES
from equipoise.measures.monitoring import Monitoring

OPERATORS: dict[str, Callable[[float, float], bool]] = {"<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt}
FLAGS = ("clear", "changed", "shown", "few")
FIELDS = (
    *("value", "low", "high", "simultaneous_low", "simultaneous_high", "p_value", "p_adjusted", "detectable", "patients"),
    *("first", "second", "before", "after", "evidence"),
)
EXAMPLES = "such as 'eod > 0.1', '|eod| > 0.1 and eod.clear', 'tpr[F] < 0.8' or 'changed'"
_CLAUSE = re.compile(
    r"\s*(?P<clause>(?P<bar>\|)?\s*(?:'(?P<quoted>[^']+)'|(?P<name>[A-Za-z_]\w*))"
    r"(?:\.(?P<field>\w+))?(?:\[(?P<group>[^\]]*)\])?(?:\.(?P<last>\w+))?\s*(?(bar)\|)"
    r"(?:\s*(?P<operator><=|>=|<|>)\s*(?P<number>-?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)(?P<percent>%?))?)\s*(?P<join>(?:and|or)\b)?",
    re.IGNORECASE,
)


class Fact(NamedTuple):
    """The numbers of one measure, for a group or for all patients; clauses joined by "and" must hold for the same `where`."""

    name: str
    fields: Mapping[str, float]
    where: tuple[str, ...] = ()  # label, name of the compared result, attribute, group
    group: str = ""
    reference: str = ""


class Clause(NamedTuple):
    """A comparison of a value with a number; without an operator, a field that is true or false."""

    name: str | None  # None: any measure
    field: str
    group: str | None
    absolute: bool
    operator: str
    number: float
    text: str

    def value(self, fact: Fact) -> float:
        """The number that this clause tests; NaN if the fact is about another measure or group."""
        if (self.name is not None and fact.name != self.name) or (self.group is not None and fact.group != self.group):
            return math.nan
        value = fact.fields.get(self.field, math.nan)
        return abs(value) if self.absolute else value

    def holds(self, fact: Fact) -> bool:
        """Whether the clause holds for a fact."""
        value = self.value(fact)
        return not math.isnan(value) and (bool(value) if not self.operator else OPERATORS[self.operator](value, self.number))


class Held(NamedTuple):
    """A clause, a fact for which it holds, and the number tested."""

    clause: Clause
    fact: Fact
    value: float


@dataclass(frozen=True)
class Verdict:
    """Whether a condition holds, the first facts for which it does, and clauses that could not be checked for lack of data."""

    holds: bool
    why: tuple[Held, ...] = ()
    unknown: tuple[Clause, ...] = ()


@dataclass(frozen=True)
class Condition:
    """A condition on a result: it holds if all clauses of one of its alternatives hold together."""

    text: str
    alternatives: tuple[tuple[Clause, ...], ...]

    def check(self, facts: Sequence[Fact]) -> Verdict:
        """Whether the condition holds for these facts; raises an error if it names a measure, field or group that is not among them."""
        clauses = [clause for alternative in self.alternatives for clause in alternative]
        for clause in clauses:
            self._require_known(clause, facts)
        unknown = tuple(clause for clause in clauses if all(math.isnan(clause.value(fact)) for fact in facts))
        for alternative in self.alternatives:
            for where in dict.fromkeys(fact.where for fact in facts):
                there = [fact for fact in facts if fact.where in (where, ())]
                held = [next((fact for fact in there if clause.holds(fact)), None) for clause in alternative]
                why = tuple(Held(clause, fact, clause.value(fact)) for clause, fact in zip(alternative, held, strict=True) if fact)
                if len(why) == len(alternative):
                    return Verdict(True, why, unknown)
        return Verdict(False, (), unknown)

    def _require_known(self, clause: Clause, facts: Sequence[Fact]) -> None:
        names = dict.fromkeys(fact.name for fact in facts)
        if clause.name is not None and clause.name not in names:
            raise UnknownName(f"measure in the condition {self.text!r}:", clause.name, names)
        about = [fact for fact in facts if clause.name in (None, fact.name)]
        fields = dict.fromkeys(field for fact in about for field in fact.fields)
        if clause.field not in fields:
            raise UnknownName(f"field of {clause.name or 'any measure'} in the condition {self.text!r}:", clause.field, fields)
        groups = dict.fromkeys(fact.group for fact in about if fact.group)
        if clause.group is not None and clause.group not in groups:
            raise UnknownName(f"group in the condition {self.text!r}:", clause.group, groups)


def read_condition(text: str) -> Condition:
    """The condition in a text; raises an error that shows the position at which it cannot be parsed.

    >>> read_condition("|eod.low| > 10% and clear").alternatives[0][0][:6]
    ('eod', 'low', None, True, '>', 0.1)
    """
    alternatives: list[list[Clause]] = [[]]
    join, at = "and", 0
    while join:
        match = _CLAUSE.match(text, at)
        name, field = (None, "value") if match is None else (match["quoted"] or match["name"], match["field"] or match["last"] or "value")
        if match is not None and name in FLAGS and not match["quoted"]:
            name, field = None, str(name)
        if match is None or (match["field"] and match["last"]) or str(match["name"]).lower() in ("and", "or"):
            raise _unreadable(text, at)
        if field not in (*FIELDS, *FLAGS):
            raise UnknownName(f"field in the condition {text!r}:", field, (*FIELDS, *FLAGS))
        if not match["operator"] and field not in FLAGS:
            raise _unreadable(text, match.end("clause"))
        number = float(match["number"]) / (100 if match["percent"] else 1) if match["operator"] else math.nan
        clause = Clause(name, field, match["group"], match["bar"] is not None, match["operator"] or "", number, match["clause"].strip())
        alternatives[-1].append(clause)
        join, at = (match["join"] or "").lower(), match.end()
        if join == "or":
            alternatives.append([])
    if at < len(text):
        raise _unreadable(text, at)
    return Condition(text, tuple(map(tuple, alternatives)))


def _unreadable(text: str, at: int) -> BadInput:
    before = text[:at].strip()
    where = f" after {before!r}" if before else ""
    return BadInput(f"the condition {text!r} cannot be read{where}: expected a comparison with a number, {EXAMPLES}")


def audit_facts(subject: Audit) -> list[Fact]:
    """All numbers of an audit that a condition can test."""
    facts = [Fact("findings", {"value": float(subject.findings)})]
    for label, audit in subject.prefixed.items():
        facts += gap_facts(audit.gaps.to_dict("records"), label)
        for group, row in audit.groups.iterrows():
            where = (label, "", str(row["attribute"]), str(group))
            few = str(row["few"]).split(", ")
            for rate in GROUP_MEASURES:
                fields = {end: float(row[f"{rate}{tail}"]) for end, tail in (("value", ""), ("low", "_low"), ("high", "_high"))}
                facts.append(Fact(rate, fields | {"few": float(rate in few)}, where, str(group)))
        for name, estimate in audit.estimates.items():
            if not estimate.group:
                fields = {"value": estimate.value, "low": estimate.low, "high": estimate.high}
                facts.append(Fact(name, fields, (label, "", "", "") if label else ()))
    return facts


def monitoring_facts(subject: Monitoring) -> list[Fact]:
    """All numbers of gaps over time that a condition can test."""
    return [Fact("alarms", {"value": float(subject.alarms)}), *gap_facts(subject.gaps.to_dict("records"))]


def gap_facts(rows: Iterable[Mapping[Any, Any]], label: str = "", measure: str = "measure") -> list[Fact]:
    """One fact per row of a table of gaps, or of other measures of groups."""
    facts = []
    for row in rows:
        fields = {name: float(row[name]) for name in (*FIELDS, *FLAGS) if name in row}
        compared, attribute, group, reference = (str(row.get(name, "")) for name in ("compared", "attribute", "group", "reference"))
        where = (str(row.get("label", label) or label), compared, attribute, group)
        facts.append(Fact(str(row[measure]), fields, where, group, reference))
    return facts
