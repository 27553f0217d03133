"""What tells one study from another: all that its numbers depend on, and a fingerprint of that."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from equipoise.data import sha256
from equipoise.errors import BadInput, raise_all
from equipoise.study.entries import Own
from equipoise.study.schema import Plan
from equipoise.study.sources import signature

COSMETIC = ("title", "published", "optional", "about", "keep_networks")  # changes no number


def identity(plan: Plan, root: str | Path | None) -> dict[str, Any]:
    """All that the numbers of a study depend on, as plain values: its definition without titles, and the checksums of its files.

    Raises one error with every data set whose files are missing.
    """
    content = json.loads(TypeAdapter(Plan).dump_json(plan))
    problems: list[str] = []
    for entry, data in zip(content["data"], plan.data, strict=True):
        try:
            entry["content"] = sha256(data.path.read_bytes()) if isinstance(data, Own) else signature(data.source, root, data.options)
            entry["model"] = plan.network(data.name).content()
        except (BadInput, OSError) as error:
            problems.append(str(error))
        del entry["pretrained"]  # its content is told with the model
        if isinstance(data, Own):
            entry["file"] = data.path.name
        else:
            entry["options"].pop("mimic_iv", None)  # a place, whose content is told
    raise_all(list(dict.fromkeys(problems)), plan.name)
    for told in ("model", "pretrained"):
        del content[told]
    del content["name"]
    plain: dict[str, Any] = _without(content, COSMETIC)
    return plain


def fingerprint(identity: Mapping[str, Any]) -> str:
    """Sixteen digits that stand for an identity."""
    return sha256(json.dumps(identity, sort_keys=True).encode())[:16]


def differences(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    """Where two identities differ, in words."""

    def shown(value: Any) -> str:
        if isinstance(value, list) and value and isinstance(value[0], dict):
            value = [entry.get("name") for entry in value]
        return json.dumps(value)

    found = []
    for key in dict.fromkeys([*ours, *theirs]):
        mine, other = ours.get(key), theirs.get(key)
        if mine == other:
            continue
        same = shown(mine) == shown(other)
        found.append(
            f"{key} (entries of the same names differ inside)" if same else f"{key} is {shown(other)} there and {shown(mine)} here"
        )
    return found


def _without(value: Any, keys: Sequence[str]) -> Any:
    if isinstance(value, dict):
        return {k: _without(v, keys) for k, v in value.items() if k not in keys}
    return [_without(v, keys) for v in value] if isinstance(value, list) else value
