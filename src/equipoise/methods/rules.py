"""Decision rules as plain values: what `rule.json` holds, and the rule again from it."""

import json
from pathlib import Path
from typing import Any

from equipoise.errors import BadInput, pick, raise_all
from equipoise.measures import THRESHOLD, Rule, Threshold
from equipoise.methods.contract import METHODS

SCHEMA, SCHEMA_VERSION = "equipoise.rule", 1


def rule_kinds() -> dict[str, type[Any]]:
    """Every kind of rule by the name under which it is written: a plain threshold, and those that methods fit."""
    return {THRESHOLD: Threshold, **{kind.KIND: kind for method in METHODS.values() for kind in method.rules}}


def rule_to_dict(rule: Rule) -> dict[str, object]:
    """Plain values for JSON: the rule's own, and what a reader without Equipoise must know of it.

    >>> rule_to_dict(Threshold(0.5))["kind"], rule_to_dict(Threshold(0.5))["words"]
    ('threshold', 'score >= 0.5 (given)')
    """
    about = {"schema": SCHEMA, "schema_version": SCHEMA_VERSION, "words": rule.describe(), "needs_group": rule.needs_group}
    return {**about, "randomised": rule.randomised, **rule.to_dict()}


def rule_from_dict(plain: object, source: str = "rule.json") -> Rule:
    """The rule that `rule_to_dict` wrote down, or an error that says what is wrong with it."""
    if not isinstance(plain, dict) or plain.get("schema") != SCHEMA:
        raise BadInput(f"{source} holds no decision rule of Equipoise (schema {SCHEMA!r}). Name the folder that `equipoise debias` wrote.")
    if plain.get("schema_version") != SCHEMA_VERSION:
        raise BadInput(
            f"{source} has version {plain.get('schema_version')!r}; this Equipoise reads {SCHEMA_VERSION}. Use the one that wrote it."
        )
    from equipoise.methods.rule_schema import rule_problems  # pydantic is not needed by `import equipoise`

    kind = pick(f"kind of rule in {source}:", str(plain.get("kind")), rule_kinds())
    raise_all(rule_problems(plain), source)
    rule: Rule = rule_kinds()[kind].from_dict(plain)
    return rule


def read_rule(path: Path) -> Rule:
    """The rule in a file."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise BadInput(f"no such file: {path}. Name the folder that `equipoise debias` wrote.") from None
    return rule_in(content, str(path))


def rule_in(content: bytes, source: str) -> Rule:
    """The rule in the bytes of a file."""
    try:
        plain = json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{source} is not readable as JSON: {error}.") from error
    return rule_from_dict(plain, source)
