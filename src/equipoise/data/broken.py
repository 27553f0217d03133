"""What was wrong with an image: its kind, which may be counted and shown to anyone, and the reason and the name, which are the user's."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from equipoise.errors import BadInput

KINDS = ("missing", "empty", "not an image", "several frames", "too large", "damaged")


class BadImage(BadInput):
    """An image that cannot be used, with one of KINDS."""

    def __init__(self, kind: str, reason: str) -> None:
        assert kind in KINDS
        self.kind = kind
        super().__init__(reason)


@dataclass(frozen=True)
class Broken:
    """An image that was left out. Only the kind says nothing of a patient."""

    kind: str
    reason: str = field(repr=False)
    place: str = field(default="", repr=False)  # where it was named, such as a row of the table
    name: str = field(default="", repr=False)

    def __str__(self) -> str:
        where = ", ".join(filter(None, (self.place, self.name)))
        return f"{where}: {self.reason}" if where else self.reason


def counted(broken: Iterable[Broken]) -> dict[str, int]:
    """How many images of each kind, in the order of KINDS; kinds without one are left out."""
    found = Counter(one.kind for one in broken)
    return {kind: found[kind] for kind in KINDS if found[kind]}
