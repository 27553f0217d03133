"""Decision rules as plain values: what `rule.json` holds, and the rule again from it.

A kind of rule is a frozen dataclass with a name, `KIND`; the method that fits it names it in its registration. Its fields are checked
against their types when a file is read, and its `__post_init__` checks what concerns more than one field.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Annotated, Any

from annotated_types import Ge, Le, MinLen

from equipoise.errors import BadInput, pick, raise_all
from equipoise.measures import NEVER, Rule, Threshold
from equipoise.methods.contract import METHODS

if TYPE_CHECKING:
    from pydantic import ConfigDict, ValidationError

SCHEMA, SCHEMA_VERSION = "equipoise.rule", 1
STRICT: "ConfigDict" = {"extra": "forbid", "strict": True}  # of files: no field that is not known, and no value of another type
Cut = Annotated[float, Ge(0.0), Le(NEVER)]
Share = Annotated[float, Ge(0.0), Le(1.0)]
Groups = Annotated[tuple[str, ...], MinLen(1)]


def rule_kinds() -> dict[str, type[Any]]:
    """Every kind of rule by the name under which it is written: a plain threshold, and those that methods fit."""
    fitted: list[type[Any]] = [kind for method in METHODS.values() for kind in method.rules]
    fitted.append(Threshold)
    return {kind.KIND: kind for kind in fitted}


def rule_to_dict(rule: Rule) -> dict[str, object]:
    """Plain values for JSON: the rule's own, and what a reader without Equipoise must know of it.

    >>> rule_to_dict(Threshold(0.5))["kind"], rule_to_dict(Threshold(0.5))["words"]
    ('threshold', 'score >= 0.5 (given)')
    """
    return {**_about(rule), "words": rule.describe(), **rule.to_dict()}


def _about(rule: "Rule | type[Rule]") -> dict[str, object]:
    """What a file says of a rule whatever its kind."""
    return {"schema": SCHEMA, "schema_version": SCHEMA_VERSION, "needs_group": rule.needs_group, "randomised": rule.randomised}


def rule_from_dict(plain: object, source: str = "rule.json") -> Rule:
    """The rule that `rule_to_dict` wrote, or an error that lists everything that is wrong with it."""
    if not isinstance(plain, dict) or plain.get("schema") != SCHEMA:
        raise BadInput(f"{source} holds no decision rule of Equipoise (schema {SCHEMA!r}). Name the folder that `equipoise debias` wrote.")
    if plain.get("schema_version") != SCHEMA_VERSION:
        raise BadInput(
            f"{source} has version {plain.get('schema_version')!r}; this Equipoise reads {SCHEMA_VERSION}. Use the one that wrote it."
        )
    kinds = rule_kinds()
    return _checked(kinds[pick(f"kind of rule in {source}:", str(plain.get("kind")), kinds)], plain, source)


def _checked(kind: type[Any], plain: Mapping[str, Any], source: str) -> Rule:
    from pydantic import TypeAdapter, ValidationError  # late: `import equipoise` does not need it

    about, own = {**_about(kind), "kind": kind.KIND}, {each.name for each in fields(kind)}
    problems = [f"{key}: expected {value!r}; got {plain.get(key)!r}" for key, value in about.items() if plain.get(key) != value]
    problems += [f"{key}: unexpected" for key in plain if key not in {*about, *own, "words"}]
    problems += [f"{key}: missing" for key in sorted(own) if key not in plain]
    if not isinstance(plain.get("words"), str):
        problems.append(f"words: expected text; got {plain.get('words')!r}")
    try:
        rule: Rule = TypeAdapter(kind).validate_json(json.dumps({key: plain[key] for key in own if key in plain}, default=str), strict=True)
    except ValidationError as error:
        raise_all([*problems, *described(error, skip=0)], source)
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
    """The problem of groups that are named twice."""
    return [] if len(set(groups)) == len(groups) else ["names a group twice in `groups`"]


def unknown(named: Sequence[str], groups: Sequence[str], what: str) -> list[str]:
    """The problem of names that are not among the groups."""
    strange = sorted(set(named) - set(groups))
    return [f"{what} {', '.join(strange)}, not among its `groups`"] if strange else []


def of_every_group(groups: Sequence[str], **each: Sequence[object]) -> list[str]:
    """The problems of fields that do not have one entry per group."""
    return [f"has {len(own)} `{name}` for {len(groups)} `groups`" for name, own in each.items() if len(own) != len(groups)]


def described(error: "ValidationError", skip: int = 1) -> list[str]:
    """The problems that pydantic found, each with its key, what was expected and what was found; `skip` parts of the place are not keys."""
    problems = []
    for found in error.errors(include_url=False):
        key = ".".join(map(str, found["loc"][skip:]))
        said = found["msg"].removeprefix("Value error, ")
        got = "" if found["type"] in ("missing", "value_error") else f"; got {str(found['input'])[:60]!r}"
        problems.append(f"{key}: {said[:1].lower()}{said[1:]}{got}" if key else f"{said[:1].lower()}{said[1:]}{got}")
    return problems


def rule_in(content: bytes, source: str) -> Rule:
    """The rule in the bytes of a file."""
    try:
        plain = json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{source} is not readable as JSON: {error}.") from error
    return rule_from_dict(plain, source)
