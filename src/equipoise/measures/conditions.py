"""Conditions on results, for pipelines: `eod > 0.1`, `|eod| > 0.1 and eod.clear`, `tpr[F] < 0.8`, `changed`. No code is executed.

    condition = clause { ("and" | "or") clause }           "and" binds more tightly
    clause    = value ("<" | "<=" | ">" | ">=") number, or a value that is true or false
    value     = name [ "." field ] [ "[" group "]" ], or that between bars for its absolute value

A name is a measure ('tpr-fpr' in quotation marks), a rate of the groups, a performance measure, or `findings`. A clause about a gap or a
rate holds if it holds for any group; clauses that are joined by "and" must hold for the same group.
"""

import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from equipoise.errors import BadInput, UnknownName
from equipoise.measures.audit import Audit, Audits
from equipoise.measures.estimates import GROUP_MEASURES
from equipoise.measures.monitoring import Monitoring

OPERATORS: dict[str, Callable[[float, float], bool]] = {"<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt}
FLAGS = ("clear", "changed", "shown", "few")
FIELDS = (
    *("value", "low", "high", "simultaneous_low", "simultaneous_high", "p_value", "p_adjusted", "detectable", "patients"),
    *("first", "second", "before", "after", "evidence"),
)
EXAMPLES = "such as 'eod > 0.1', '|eod| > 0.1 and eod.clear', 'tpr[F] < 0.8' or 'changed'"
_TOKEN = re.compile(
    r"\s*(?:(?P<number>-?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)(?P<percent>%?)|(?P<operator><=|>=|<|>)|'(?P<quoted>[^']+)'|\[(?P<group>[^\]]*)\]"
    r"|(?P<name>[A-Za-z_]\w*)|(?P<mark>[|.]))"
)


class Fact(NamedTuple):
    """The numbers of one measure, of a group or of all patients; `where` says which, and clauses joined by "and" must share it."""

    name: str
    fields: Mapping[str, float]
    where: tuple[str, ...] = ()  # label, name of the compared, attribute, group
    group: str = ""
    reference: str = ""


class Clause(NamedTuple):
    """One comparison of a value with a number; without an operator, a field that is true or false."""

    name: str | None  # None: any measure
    field: str
    group: str | None
    absolute: bool
    operator: str
    number: float
    text: str

    def value(self, fact: Fact) -> float:
        """The number of a fact that this clause is about; NaN where it is not."""
        if (self.name is not None and fact.name != self.name) or (self.group is not None and fact.group != self.group):
            return math.nan
        found = fact.fields.get(self.field, math.nan)
        return abs(found) if self.absolute else found

    def holds(self, fact: Fact) -> bool:
        """Whether it holds of a fact."""
        found = self.value(fact)
        return not math.isnan(found) and (bool(found) if not self.operator else OPERATORS[self.operator](found, self.number))


class Held(NamedTuple):
    """A clause that holds, of a fact, with its number."""

    clause: Clause
    fact: Fact
    value: float


@dataclass(frozen=True)
class Verdict:
    """Whether a condition holds, why (the first facts of which it does), and what could not be checked for lack of data."""

    holds: bool
    why: tuple[Held, ...] = ()
    unknown: tuple[Clause, ...] = ()  # clauses without a single known value


@dataclass(frozen=True)
class Condition:
    """A condition on a result: alternatives of clauses that must hold together."""

    text: str
    alternatives: tuple[tuple[Clause, ...], ...]

    def check(self, facts: Sequence[Fact]) -> Verdict:
        """Whether it holds of these facts; raises an error where a name or a group is not among them."""
        clauses = [clause for each in self.alternatives for clause in each]
        for clause in clauses:
            self._check_known(clause, facts)
        unknown = tuple(clause for clause in clauses if all(math.isnan(clause.value(fact)) for fact in facts))
        places = dict.fromkeys(fact.where for fact in facts)
        for together in self.alternatives:
            for where in places:
                held = [self._held(clause, facts, where) for clause in together]
                if all(held):
                    return Verdict(True, tuple(each for each in held if each is not None), unknown)
        return Verdict(False, (), unknown)

    def _held(self, clause: Clause, facts: Sequence[Fact], where: tuple[str, ...]) -> Held | None:
        for fact in facts:
            if fact.where in (where, ()) and clause.holds(fact):
                return Held(clause, fact, clause.value(fact))
        return None

    def _check_known(self, clause: Clause, facts: Sequence[Fact]) -> None:
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
    """The condition in a text; raises an error that shows where it cannot be read.

    >>> read_condition("|eod.low| > 10% and clear").alternatives[0][0][:6]
    ('eod', 'low', None, True, '>', 0.1)
    """
    tokens, at = [], 0
    while text[at:].strip():
        match = _TOKEN.match(text, at)
        if match is None:
            raise _unreadable(text, at)
        tokens.append(match)
        at = match.end()
    alternatives: list[list[Clause]] = [[]]
    place = 0
    while place < len(tokens):
        clause, place = _clause(text, tokens, place)
        alternatives[-1].append(clause)
        if place == len(tokens):
            return Condition(text, tuple(map(tuple, alternatives)))
        word = (tokens[place]["name"] or "").lower()
        if word not in ("and", "or"):
            raise _unreadable(text, tokens[place].start())
        if word == "or":
            alternatives.append([])
        place += 1
    raise _unreadable(text, len(text))


def _clause(text: str, tokens: Sequence["re.Match[str]"], place: int) -> tuple[Clause, int]:
    """The clause that begins at a token, and the place after it."""

    def token(kind: str, wanted: str | None = None) -> str | None:
        nonlocal place
        if place < len(tokens) and tokens[place][kind] is not None and wanted in (None, tokens[place][kind]):
            place += 1
            return str(tokens[place - 1][kind])
        return None

    start = tokens[place].start()
    absolute = token("mark", "|") is not None
    quoted = token("quoted")
    name: str | None = quoted or token("name")
    if name is None or (quoted is None and name.lower() in ("and", "or")):
        raise _unreadable(text, tokens[place].start() if place < len(tokens) else len(text))
    field, group, dotted = "value", None, False
    if quoted is None and name in FLAGS:
        field, dotted = name, True
        name = None
    for _ in range(2):  # the group before or after the field
        if not dotted and token("mark", "."):
            dotted, field = True, token("name") or ""
            if field not in (*FIELDS, *FLAGS):
                raise UnknownName(f"field in the condition {text!r}:", field, (*FIELDS, *FLAGS))
        if group is None:
            group = token("group")
    if absolute and token("mark", "|") is None:
        raise _unreadable(text, tokens[place].start() if place < len(tokens) else len(text))
    sign = token("operator")
    number = math.nan
    if sign is not None:
        at = place
        told = token("number")
        if told is None:
            raise _unreadable(text, tokens[place].start() if place < len(tokens) else len(text))
        number = float(told) / (100 if tokens[at]["percent"] else 1)
    elif field not in FLAGS:
        raise _unreadable(text, tokens[place].start() if place < len(tokens) else len(text))
    end = tokens[place - 1].end()
    return Clause(name, field, group, absolute, sign or "", number, text[start:end].strip()), place


def _unreadable(text: str, at: int) -> BadInput:
    before = text[:at].strip()
    where = f" after {before!r}" if before else ""
    return BadInput(f"the condition {text!r} cannot be read{where}: expected a comparison with a number, {EXAMPLES}")


def audit_facts(subject: Audit | Audits) -> list[Fact]:
    """All numbers of an audit, or of several labels, that a condition may be about."""
    several = isinstance(subject, Audits)
    found = [Fact("findings", {"value": float(subject.findings)})]
    for label, audit in subject.items() if isinstance(subject, Audits) else [("", subject)]:
        found += gap_facts(audit.gaps.to_dict("records"), label)
        for group, row in audit.groups.iterrows():
            place = (label, "", str(row["attribute"]), str(group))
            few = str(row["few"]).split(", ")
            for rate in GROUP_MEASURES:
                fields = {end: float(row[f"{rate}{tail}"]) for end, tail in (("value", ""), ("low", "_low"), ("high", "_high"))}
                found.append(Fact(rate, fields | {"few": float(rate in few)}, place, str(group)))
        for name, each in audit.estimates.items():
            if not each.group:
                of_label = (label, "", "", "") if several else ()
                found.append(Fact(name, {"value": each.value, "low": each.low, "high": each.high}, of_label))
    return found


def monitoring_facts(subject: Monitoring) -> list[Fact]:
    """All numbers of gaps over time that a condition may be about."""
    return [Fact("alarms", {"value": float(subject.alarms)}), *gap_facts(subject.gaps.to_dict("records"))]


def gap_facts(rows: Iterable[Mapping[Any, Any]], label: str = "", measure: str = "measure") -> list[Fact]:
    """One fact per row of a table of gaps, or of other measures of groups."""
    found = []
    for row in rows:
        fields = {name: float(row[name]) for name in (*FIELDS, *FLAGS) if name in row}
        place = (
            str(row.get("label", label) or label),
            str(row.get("compared", "")),
            str(row.get("attribute", "")),
            str(row.get("group", "")),
        )
        found.append(Fact(str(row[measure]), fields, place, str(row.get("group", "")), str(row.get("reference", ""))))
    return found
