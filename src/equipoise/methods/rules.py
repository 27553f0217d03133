"""Decision rules as plain values: written to `rule.json`, read from it and checked.

A kind of rule is a frozen dataclass with a name, `KIND`, which the registration of its method lists. Its fields are checked against their
types when a file is read; its `__post_init__` checks combinations of fields.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Annotated, Any, Protocol, runtime_checkable

from annotated_types import Ge, Le, MinLen

from equipoise.errors import BadInput, pick, raise_all, validation_problems
from equipoise.measures import NEVER, Rule, Threshold
from equipoise.methods.contract import METHODS

if TYPE_CHECKING:
    from pydantic import ConfigDict

SCHEMA, SCHEMA_VERSION = "equipoise.rule", 2
STRICT: "ConfigDict" = {"extra": "forbid", "strict": True}  # for files: no unknown fields and no type conversion
Cut = Annotated[float, Ge(0.0), Le(NEVER)]
Share = Annotated[float, Ge(0.0), Le(1.0)]
Groups = Annotated[tuple[str, ...], MinLen(1)]
MoveCut = Callable[[float, Sequence[str]], float]  # a cut and the groups whose rows it decides ("": rows without a group) -> the new cut


@runtime_checkable
class Movable(Protocol):
    """A rule whose cuts can be moved to other scores of the same rows without changing a decision."""

    def moved(self, move: MoveCut) -> Rule:
        """The rule with every cut moved."""
        ...


def rule_to_dict(rule: Rule) -> dict[str, object]:
    """Plain values for JSON: the rule's fields, and a description for readers without Equipoise.

    >>> rule_to_dict(Threshold(0.5))["kind"], rule_to_dict(Threshold(0.5))["words"]
    ('threshold', 'score >= 0.5 (given)')
    """
    return {**_about(rule), "words": rule.describe(), **rule.to_dict()}


def _about(rule: "Rule | type[Rule]") -> dict[str, object]:
    """The entries that every rule has in a file."""
    return {"schema": SCHEMA, "schema_version": SCHEMA_VERSION, "needs_group": rule.needs_group, "randomised": rule.randomised}


def rule_from_dict(plain: object, source: str = "rule.json") -> Rule:
    """The rule that `rule_to_dict` wrote; raises one error that lists all problems."""
    if not isinstance(plain, dict) or plain.get("schema") != SCHEMA:
        raise BadInput(f"{source} holds no decision rule of Equipoise (schema {SCHEMA!r}). Name the folder that `equipoise debias` wrote.")
    if plain.get("schema_version") != SCHEMA_VERSION:
        raise BadInput(
            f"{source} has version {plain.get('schema_version')!r}; this Equipoise reads {SCHEMA_VERSION}. Use the one that wrote it."
        )
    kinds: dict[str, type[Any]] = {kind.KIND: kind for method in METHODS.values() for kind in method.rules}
    kinds[Threshold.KIND] = Threshold
    return _checked(kinds[pick(f"kind of rule in {source}:", str(plain.get("kind")), kinds)], plain, source)


def _checked(kind: type[Any], plain: Mapping[str, Any], source: str) -> Rule:
    """The rule of this kind with these values; raises one error that lists all problems."""
    from pydantic import TypeAdapter, ValidationError  # late: `import equipoise` does not need it

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
    except BadInput as error:
        raise_all([*problems, *error.problems], source)
        raise
    raise_all(problems, source)
    return rule


def plain_values(rule: Any) -> dict[str, object]:
    """The fields of a rule as lists and numbers, with its kind."""
    return {"kind": rule.KIND, **json.loads(json.dumps(asdict(rule)))}


def repeated(groups: Sequence[str]) -> list[str]:
    """The problem with groups that are named twice."""
    return [] if len(set(groups)) == len(groups) else ["names a group twice in `groups`"]


def unknown(named: Sequence[str], groups: Sequence[str], what: str) -> list[str]:
    """The problem with names that are not among the groups."""
    strange = sorted(set(named) - set(groups))
    return [f"{what} {', '.join(strange)}, not among its `groups`"] if strange else []


def of_every_group(groups: Sequence[str], **values: Sequence[object]) -> list[str]:
    """The problems with fields that do not have one entry per group."""
    return [f"has {len(own)} `{name}` for {len(groups)} `groups`" for name, own in values.items() if len(own) != len(groups)]


def read_rule(content: bytes, source: str) -> Rule:
    """The rule in the bytes of a file."""
    try:
        plain = json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{source} is not readable as JSON: {error}.") from error
    return rule_from_dict(plain, source)
