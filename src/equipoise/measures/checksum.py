"""The checksum of a document of plain values, and JSON that is read only as it was written."""

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

CHECKSUM = "checksum"
# A flipped bit may change a number or a character into another spelling of itself (1e-05 and 1E-05), which is refused too.
_OTHER_ESCAPE = re.compile(r"(?<!\\)(?:\\\\)*\\u[0-9a-f]{0,3}[A-F]")


def with_checksum(document: Mapping[str, Any]) -> dict[str, Any]:
    """The document with a checksum of all its other values as its last key."""
    rest = {key: value for key, value in document.items() if key != CHECKSUM}
    return rest | {CHECKSUM: _checksum_of(rest)}


def has_checksum(document: Mapping[str, Any]) -> bool:
    """Whether the document has the checksum of its other values."""
    return bool(with_checksum(document)[CHECKSUM] == document.get(CHECKSUM))


def _checksum_of(plain: Mapping[str, Any]) -> str:
    """The checksum does not depend on the order of keys, nor on blanks and line ends in a file."""
    return hashlib.sha256(json.dumps(plain, sort_keys=True, allow_nan=False).encode()).hexdigest()


def read_json(text: str) -> Any:
    """The document in a text; raises a ValueError for JSON that Python does not write: repeated keys, NaN, other spellings of numbers."""
    if _OTHER_ESCAPE.search(text):
        raise ValueError("it has an escape sequence with capital letters")
    return json.loads(text, object_pairs_hook=_once, parse_constant=_no_constant, parse_float=_as_written, parse_int=_as_written)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(name for name in names if names.count(name) > 1)!r} is repeated")
    return document


def _no_constant(text: str) -> object:
    raise ValueError(f"{text} is not a JSON number")


def _as_written(text: str) -> int | float:
    value = float(text) if any(mark in text for mark in ".eE") else int(text)
    if repr(value) != text:
        raise ValueError(f"the number {text[:40]} would be written as {repr(value)[:40]}")
    return value
