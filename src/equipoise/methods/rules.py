"""Decision rules that methods fit, as plain values: written to `rule.json`, read from it and checked.

A kind of rule is a frozen dataclass with a name, `KIND`, which the registration of its method lists. When a file is read, its fields are
checked against their types, and `problems` checks combinations of fields.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np
from annotated_types import Ge, Le, MinLen

from equipoise.data import Scores
from equipoise.errors import BadInput, pick, raise_all, validation_problems
from equipoise.measures import NEVER, FloatArray, Rule, Threshold, group_positions
from equipoise.methods.contract import METHODS

if TYPE_CHECKING:
    from pydantic import ConfigDict

SCHEMA, SCHEMA_VERSION = "equipoise.rule", 2
STRICT: "ConfigDict" = {"extra": "forbid", "strict": True}  # for files: no unknown fields and no type conversion
Cut = Annotated[float, Ge(0.0), Le(NEVER)]
Share = Annotated[float, Ge(0.0), Le(1.0)]
Groups = Annotated[tuple[str, ...], MinLen(1)]


class FittedRule:
    """The base of the rules that methods fit."""

    KIND: ClassVar[str]
    shared: ClassVar[float | None] = None
    argmax: ClassVar[bool] = False
    needs_group: ClassVar[bool] = False
    randomised: ClassVar[bool] = False

    def problems(self) -> list[str]:
        """What is wrong with the fields of a rule that was read from a file, beyond their types."""
        return []

    def to_dict(self) -> dict[str, object]:
        """Plain values for JSON."""
        return {"kind": self.KIND, **json.loads(json.dumps(asdict(self)))}  # type: ignore[call-overload]


class RuleByGroup(FittedRule):
    """The base of rules that need each patient's group; a group that the rule was not fitted to is an error."""

    needs_group: ClassVar[bool] = True
    groups: Groups  # all that were seen, the reference first
    missing: Cut  # for a row without a group

    def cuts(self, group: str) -> tuple[float, ...]:
        """The scores at which the decision on a row of this group changes."""
        raise NotImplementedError

    def decide(self, scores: Scores) -> FloatArray:
        """Positive where score >= the threshold of the row's group."""
        cuts = np.array([*(self.cuts(group)[0] for group in self.groups), self.missing])  # a missing group has code -1, the last cut
        return (scores.score >= cuts[group_positions(self.groups, scores, self.KIND)]).astype(np.float64)

    def problems(self) -> list[str]:
        return [] if len(set(self.groups)) == len(self.groups) else ["names a group twice in `groups`"]


def of_every_group(groups: Sequence[str], **values: Sequence[object]) -> list[str]:
    """The problems with fields that do not have one entry per group."""
    return [f"has {len(own)} `{name}` for {len(groups)} `groups`" for name, own in values.items() if len(own) != len(groups)]


def rule_to_dict(rule: Rule) -> dict[str, object]:
    """Plain values for JSON: the rule's fields, and a description for readers without Equipoise.

    >>> rule_to_dict(Threshold(0.5))["kind"], rule_to_dict(Threshold(0.5))["words"]
    ('threshold', 'score >= 0.5 (given)')
    """
    return {**_about(rule), "words": rule.describe(), **rule.to_dict()}


def _about(rule: "Rule | type[Rule]") -> dict[str, object]:
    """The entries that every rule has in a file."""
    return {"schema": SCHEMA, "schema_version": SCHEMA_VERSION, "needs_group": rule.needs_group, "randomised": rule.randomised}


def read_rule(content: bytes, source: str) -> Rule:
    """The rule in the bytes of a file."""
    try:
        plain = json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{source} is not readable as JSON: {error}.") from error
    return rule_from_dict(plain, source)


def rule_from_dict(plain: object, source: str = "rule.json") -> Rule:
    """The rule that `rule_to_dict` wrote; raises one error that lists all problems."""
    from pydantic import TypeAdapter, ValidationError  # late: `import equipoise` does not need it

    if not isinstance(plain, dict) or plain.get("schema") != SCHEMA:
        raise BadInput(f"{source} holds no decision rule of Equipoise (schema {SCHEMA!r}). Name the folder that `equipoise debias` wrote.")
    if plain.get("schema_version") != SCHEMA_VERSION:
        raise BadInput(
            f"{source} has version {plain.get('schema_version')!r}; this Equipoise reads {SCHEMA_VERSION}. Use the one that wrote it."
        )
    kinds: dict[str, type[Any]] = {kind.KIND: kind for method in METHODS.values() for kind in method.rules} | {Threshold.KIND: Threshold}
    kind = kinds[pick(f"kind of rule in {source}:", str(plain.get("kind")), kinds)]
    about, names = {**_about(kind), "kind": kind.KIND}, {f.name for f in fields(kind)}
    problems = [f"{key}: expected {value!r}; got {plain.get(key)!r}" for key, value in about.items() if plain.get(key) != value]
    problems += [f"{key}: unexpected" for key in plain if key not in {*about, *names, "words"}]
    problems += [f"{key}: missing" for key in sorted(names) if key not in plain]
    if not isinstance(plain.get("words"), str):
        problems.append(f"words: expected text; got {plain.get('words')!r}")
    values = json.dumps({key: plain[key] for key in names if key in plain}, default=str)
    try:
        rule: Rule = TypeAdapter(kind).validate_json(values, strict=True)
    except ValidationError as error:
        raise_all([*problems, *validation_problems(error, skip=0)], source)
        raise
    if isinstance(rule, FittedRule):
        problems += rule.problems()
    raise_all(problems, source)
    return rule
