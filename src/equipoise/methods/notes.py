"""Notes of a repair: what a reader should know beyond its numbers, as values. Sentences are made of them in report.wording.

A note has a kind, a subject (a group, an attribute, a measure, a method) and numbers. Code that needs to know what a note is about asks for
its kind; no code reads sentences.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Note:
    """One thing to know about a repair.

    >>> Note("pruned", "units", {"switched_off": 12, "of": 40}).to_dict()
    {'kind': 'pruned', 'subject': 'units', 'switched_off': 12, 'of': 40}
    """

    kind: str
    subject: str = ""
    numbers: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {"kind": self.kind, "subject": self.subject, **self.numbers}
