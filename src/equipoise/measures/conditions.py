"""Conditions on results, for pipelines: `eod > 0.1`, `|eod| > 0.1 and eod.clear`, `tpr[F] < 0.8`, `changed`. No code is executed.

    condition = clause { "and" clause }
    clause    = value ("<" | "<=" | ">" | ">=") number, or a value that is true or false
    value     = name [ "." field ] [ "[" group "]" ], or the same between bars for its absolute value

A name is a measure ('tpr-fpr' in quotation marks), a rate of the groups, a performance measure, or `findings`. A clause about a gap or a
rate holds if it holds for any group; clauses joined by "and" must hold for the same group.
"""

import math
import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from equipoise.errors import BadInput, UnknownName
from equipoise.measures.audit import GROUP_MEASURES, Audit
from equipoise.measures.monitoring import Monitoring

OPERATORS = {"<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt}
OUTCOMES = ("harm", "unclear", "reduced", "closed", "unchanged")  # of a repair, in the order in which several labels are named
TRUE_OR_FALSE_FIELDS = ("clear", "changed", "shown", "unwatched", "few", *OUTCOMES)  # fields that are true or false
NUMBER_FIELDS = (
    *("value", "low", "high", "simultaneous_low", "simultaneous_high", "p_value", "p_adjusted", "detectable", "patients"),
    *("first", "second", "before", "after", "evidence"),
)
CONDITION_EXAMPLES = "such as 'eod > 0.1', '|eod| > 0.1 and eod.clear', 'tpr[F] < 0.8' or 'changed'"
_JOIN = re.compile(r"(?:^|\s+)and\s+(?![^\[]*\])", re.IGNORECASE)  # not in the name of a group
_CLAUSE = re.compile(
    r"(?P<bar>\|)?\s*(?:'(?P<quoted>[^']+)'|(?P<name>[A-Za-z_]\w*))(?:\.(?P<field>\w+))?(?:\[(?P<group>[^\]]*)\])?\s*(?(bar)\|)"
    r"(?:\s*(?P<operator><=|>=|<|>)\s*(?P<number>-?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?))?",
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
        return not math.isnan(value) and (bool(value) if not self.operator else bool(OPERATORS[self.operator](value, self.number)))


@dataclass(frozen=True)
class Verdict:
    """Whether a condition holds, and why: clauses that could not be checked for lack of data are unknown."""

    holds: bool
    why: tuple[tuple[Clause, Fact, float], ...] = ()  # each clause, the first fact for which it holds, and the number tested
    unknown: tuple[Clause, ...] = ()


@dataclass(frozen=True)
class Condition:
    """A condition on a result: it holds if all of its clauses hold together."""

    text: str
    clauses: tuple[Clause, ...]

    def check(self, facts: Sequence[Fact]) -> Verdict:
        """Whether the condition holds for these facts; raises an error if it names a measure, field or group that is not among them."""
        for clause in self.clauses:
            about = [fact for fact in facts if clause.name in (None, fact.name)]
            known = {
                "measure": (clause.name, [fact.name for fact in facts]),
                f"field of {clause.name or 'any measure'}": (clause.field, [field for fact in about for field in fact.fields]),
                "group": (clause.group, [fact.group for fact in about if fact.group]),
            }
            for what, (name, names) in known.items():
                if name is not None and name not in names:
                    raise UnknownName(f"{what} in the condition {self.text!r}:", name, dict.fromkeys(names))
        unknown = tuple(clause for clause in self.clauses if all(math.isnan(clause.value(fact)) for fact in facts))
        for where in dict.fromkeys(fact.where for fact in facts):
            there = [fact for fact in facts if fact.where in (where, ())]
            held = [next(((clause, fact, clause.value(fact)) for fact in there if clause.holds(fact)), None) for clause in self.clauses]
            if None not in held:
                return Verdict(True, tuple(each for each in held if each is not None), unknown)
        return Verdict(False, (), unknown)


def read_condition(text: str) -> Condition:
    """The condition in a text; raises an error that shows the part that cannot be read.

    >>> read_condition("|eod.low| > 0.1 and clear").clauses[0][:6]
    ('eod', 'low', None, True, '>', 0.1)
    """
    clauses = []
    for part in map(str.strip, _JOIN.split(text)):
        match = _CLAUSE.fullmatch(part)
        name, field = ("", "") if match is None else (match["quoted"] or match["name"], match["field"] or "value")
        if match is not None and match["name"] in TRUE_OR_FALSE_FIELDS:
            name, field = None, match["name"]
        if match is None or (not match["operator"] and field not in TRUE_OR_FALSE_FIELDS and field in NUMBER_FIELDS):
            raise BadInput(f"the condition {text!r} cannot be read at {part!r}: expected a comparison with a number, {CONDITION_EXAMPLES}")
        if field not in (*NUMBER_FIELDS, *TRUE_OR_FALSE_FIELDS):
            raise UnknownName(f"field in the condition {text!r}:", field, (*NUMBER_FIELDS, *TRUE_OR_FALSE_FIELDS))
        number = float(match["number"] or math.nan)
        clauses.append(Clause(name, field, match["group"], match["bar"] is not None, match["operator"] or "", number, part))
    return Condition(text, tuple(clauses))


def audit_facts(subject: Audit) -> list[Fact]:
    """All numbers of an audit that a condition can test."""
    facts = [Fact("findings", {"value": float(subject.findings)})]
    for label, audit in subject.prefixed.items():
        facts += gap_facts([*audit.gaps.to_dict("records"), *audit.summaries.to_dict("records")], label)
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


def outcome_facts(outcomes: Mapping[str, str]) -> list[Fact]:
    """The outcomes of a repair by label; without labels, one fact that is not known, which shows what a condition may name."""
    known = [Fact("outcome", {name: float(name == outcome) for name in OUTCOMES}, (label,)) for label, outcome in outcomes.items()]
    return known or [Fact("outcome", dict.fromkeys(OUTCOMES, math.nan))]


def gap_facts(rows: Iterable[Mapping[Any, Any]], label: str = "", measure: str = "measure") -> list[Fact]:
    """One fact per row of a table of gaps, or of other measures of groups.

    - `rows`: of the table.
    - `label`: of the audit they belong to, empty for the only one.
    - `measure`: the column with the name of what was measured.
    """
    facts = []
    for row in rows:
        fields = {name: float(row[name]) for name in (*NUMBER_FIELDS, *TRUE_OR_FALSE_FIELDS) if name in row}
        compared, attribute, group, reference = (str(row.get(name, "")) for name in ("compared", "attribute", "group", "reference"))
        where = (str(row.get("label", label) or label), compared, attribute, group)
        facts.append(Fact(str(row[measure]), fields, where, group, reference))
    return facts
