"""Why an image cannot be used, and the limit on its size that is checked before it is decoded.

The kind of a fault contains nothing about a patient and may be counted and shown to anyone; the reason and the file name may identify one.
A small file can claim or hold far more pixels than a machine has memory for. This module imports neither numpy nor pandas, because the
command line needs `MAX_PIXELS` for its help.
"""

import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from equipoise.errors import BadInput

MAX_PIXELS = 100_000_000  # a film of 35 x 43 cm digitised at 50 micrometres has 60 million
MAX_BYTES_PER_PIXEL = 8  # four channels of 16 bits, or a double
OVERHEAD = 2**26  # bytes of a file that are not pixels
RAISE = "If that is right, raise the limit: max_pixels (images.max_pixels)."
BROKEN_ADVICE = "Fix or remove those rows, or leave them out: skip_broken=True (--set images.skip_broken=true; studies: --skip-broken)."
KINDS = ("missing", "empty", "not an image", "several frames", "too large", "damaged")


class BadImage(BadInput):
    """An image that cannot be used; `kind` is one of KINDS."""

    def __init__(self, kind: str, reason: str) -> None:
        assert kind in KINDS
        self.kind = kind
        super().__init__(reason)


class NoRoom(Exception):
    """A large image needs the lock of the main process, which a worker process does not have."""


class BadTransform(BadInput):
    """The user's transform raised an error or returned an invalid result."""


@dataclass(frozen=True)
class Broken:
    """An image that was left out. Only `kind` contains nothing about a patient."""

    kind: str
    reason: str = field(repr=False)
    place: str = field(default="", repr=False)  # where the image was named, such as a row of the table
    name: str = field(default="", repr=False)

    def __str__(self) -> str:
        where = ", ".join(filter(None, (self.place, self.name)))
        return f"{where}: {self.reason}" if where else self.reason


def count_by_kind(broken: Iterable[Broken]) -> dict[str, int]:
    """The number of broken images of each kind, in the order of KINDS; kinds that do not occur are left out."""
    counts = Counter(fault.kind for fault in broken)
    return {kind: counts[kind] for kind in KINDS if counts[kind]}


@dataclass(frozen=True)
class ImageLimit:
    """The largest number of pixels of one image, and a lock that lets only one image near that size be decoded at a time.

    A pickled limit, as sent to a worker process, has no lock: an image that needs it raises `NoRoom` there and is left to the main process.
    """

    pixels: int = MAX_PIXELS
    threads: int = 1
    _lock: Any = field(default_factory=threading.RLock, repr=False, compare=False)  # None in a worker process

    def __post_init__(self) -> None:
        if self.pixels < 1:
            raise BadInput(f"max_pixels must be at least 1; got {self.pixels}")

    def __reduce__(self) -> tuple[Any, ...]:
        return ImageLimit, (self.pixels, self.threads, None)

    @property
    def bytes(self) -> int:
        """The largest size of a file, and of its content once it is inflated."""
        return self.pixels * MAX_BYTES_PER_PIXEL + OVERHEAD

    def check(self, width: int, height: int) -> None:
        """Raises `BadImage` if an image has more pixels than the limit."""
        if width * height > self.pixels:
            raise BadImage("too large", f"has {width:,} x {height:,} pixels, and the limit is {self.pixels:,}. {RAISE}")

    def check_bytes(self, size: int, verb: str = "has") -> None:
        """Raises `BadImage` if a file, or its inflated content, is larger than an image within the limit can be."""
        if size > self.bytes:
            raise BadImage(
                "too large", f"{verb} more than {self.bytes / 2**20:,.0f} MiB, too many for {self.pixels:,} pixels, the limit. {RAISE}"
            )

    @contextmanager
    def room(self, size: int) -> Iterator[None]:
        """Waits for the lock if `size` bytes are more than one thread's share of the memory."""
        if size * self.threads <= self.bytes:
            yield
        elif self._lock is None:
            raise NoRoom
        else:
            with self._lock:
                yield
