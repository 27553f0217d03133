"""What makes an image unusable: the kinds of faults, and how large an image may be before it is decoded.

The kind of a fault may be counted and shown to anyone; the reason and the name are the user's. A small file can name or hold far more
pixels than a machine has memory for. Needs neither numpy nor pandas: the options of the command line name the limit.
"""

import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from equipoise.errors import BadInput

MAX_PIXELS = 100_000_000  # a film of 35 x 43 cm digitised at 50 micrometres has 60 million
DEEPEST = 8  # bytes of one pixel: four channels of 16 bits, or a double
OVERHEAD = 2**26  # bytes of a file that are not pixels
RAISE = "If that is right, raise the limit: max_pixels (--max-pixels)."
KINDS = ("missing", "empty", "not an image", "several frames", "too large", "damaged")


class BadImage(BadInput):
    """An image that cannot be used, with one of KINDS."""

    def __init__(self, kind: str, reason: str) -> None:
        assert kind in KINDS
        self.kind = kind
        super().__init__(reason)


class NoRoom(Exception):
    """An image is to be decoded while no other such one is, which a process on its own cannot know."""


class BadTransform(BadInput):
    """A transform of the user's that cannot be used: what it raised or returned."""


@dataclass(frozen=True)
class Broken:
    """An image that was left out. Only the kind holds nothing about a patient."""

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


class _Elsewhere:
    """In place of the lock of another process."""

    def __enter__(self) -> None:
        raise NoRoom

    def __exit__(self, *_: object) -> None:
        pass


@dataclass(frozen=True)
class Limit:
    """The most pixels of an image; and room for one image of that size, whatever the number of threads.

    In another process the lock is not there: an image that would need it raises `NoRoom`, and is for the process that has it.
    """

    pixels: int = MAX_PIXELS
    threads: int = 1
    _large: Any = field(default_factory=threading.RLock, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.pixels < 1:
            raise BadInput(f"max_pixels must be at least 1; got {self.pixels}")

    def __reduce__(self) -> tuple[Any, ...]:
        return Limit, (self.pixels, self.threads, _Elsewhere())

    @property
    def bytes(self) -> int:
        """The most bytes of a file, and of what is inside it when it is inflated."""
        return self.pixels * DEEPEST + OVERHEAD

    def check(self, width: int, height: int) -> None:
        """Raises where an image has more pixels than the limit."""
        if width * height > self.pixels:
            raise BadImage("too large", f"has {width:,} x {height:,} pixels, and the limit is {self.pixels:,}. {RAISE}")

    def check_bytes(self, size: int, what: str = "has") -> None:
        """Raises where a file, or what is inside it, is larger than an image of that many pixels can be."""
        if size > self.bytes:
            raise BadImage(
                "too large", f"{what} more than {self.bytes / 2**20:,.0f} MiB, too many for {self.pixels:,} pixels, the limit. {RAISE}"
            )

    @contextmanager
    def room(self, size: int) -> Iterator[None]:
        """Waits until as many bytes may be used: an image above a thread's share is decoded while no other such one is."""
        if size * self.threads > self.bytes:
            with self._large:
                yield
        else:
            yield
