"""Image files: matched to rows by name, never by position; why one cannot be used; and the limit on its size, checked before it is decoded.

The kind of a fault contains nothing about a patient and may be counted and shown to anyone; the reason and the file name may identify one.
A small file can claim or hold far more pixels than a machine has memory for.
"""

import os
import stat
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from equipoise.data.preprocessing import MAX_PIXELS
from equipoise.errors import BadInput, pick, raise_all

if TYPE_CHECKING:
    import pandas as pd

MAX_BYTES_PER_PIXEL = 8  # four channels of 16 bits, or a double
OVERHEAD = 2**26  # bytes of a file that are not pixels
RAISE_LIMIT = "If that is right, raise the limit: max_pixels (images.max_pixels)."
BROKEN_ADVICE = "Fix or remove those rows, or leave them out: skip_broken=True (--set images.skip_broken=true; studies: --skip-broken)."
FAULT_KINDS = ("missing", "empty", "not an image", "several frames", "too large", "damaged")


class BadImage(BadInput):
    """An image that cannot be used; `kind` is one of FAULT_KINDS."""

    def __init__(self, kind: str, reason: str) -> None:
        self.kind = kind
        super().__init__(reason)


class NoRoom(Exception):
    """A large image needs the lock of the main process, which a worker process does not have."""


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
    """The number of broken images of each kind, in the order of FAULT_KINDS; kinds that do not occur are left out."""
    counts = Counter(fault.kind for fault in broken)
    return {kind: counts[kind] for kind in FAULT_KINDS if counts[kind]}


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
            raise BadImage("too large", f"has {width:,} x {height:,} pixels, and the limit is {self.pixels:,}. {RAISE_LIMIT}")

    def check_bytes(self, size: int, verb: str = "has") -> None:
        """Raises `BadImage` if a file, or its inflated content, is larger than an image within the limit can be."""
        if size > self.bytes:
            raise BadImage(
                "too large",
                f"{verb} more than {self.bytes / 2**20:,.0f} MiB, too many for {self.pixels:,} pixels, the limit. {RAISE_LIMIT}",
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


Pixels = npt.NDArray[np.uint8]  # (..., size, size)
Source = str | Path  # an image file
Make = Callable[[Source], npt.NDArray[Any]]  # makes the row of one image
VIEWS = {  # view: how its names begin; more may follow, as in AP PORTABLE
    "frontal": r"(?i)\s*(?:PA|AP|FRONTAL|POSTERO-?ANTERIOR|ANTERO-?POSTERIOR)\b",
    "PA": r"(?i)\s*(?:PA|POSTERO-?ANTERIOR)\b",
    "AP": r"(?i)\s*(?:AP|ANTERO-?POSTERIOR)\b",
}
# Suffixes that a name in the table may omit. The last component of a DICOM UID is not one of them.
IMAGE_SUFFIXES = frozenset(f".{s}" for s in ("png", "jpg", "jpeg", "jpe", "jfif", "tif", "tiff", "bmp", "gif", "webp", "dcm", "dicom"))
IMAGE_SUFFIXES |= {".jp2", ".j2k", ".jpx", ".jpf", ".pbm", ".pgm", ".ppm", ".pnm"}
NAMES_LISTED = 100  # names in one message; a table may hold many thousand wrong ones


def is_view(column: "pd.Series[Any]", view: str = "frontal") -> npt.NDArray[np.bool_]:
    """A mask of the rows of a `column` whose `view` is frontal (PA, AP or frontal, in any case), or only one of these."""
    return np.asarray(column.astype("string").str.match(VIEWS[pick("view", view, VIEWS)]).fillna(False), dtype=bool)


def find_files(
    names: "pd.Series[Any]", folder: str | Path, column: str, *, allow_outside: bool = False, rows: Sequence[int] | None = None
) -> list[Path]:
    """The file of each name in a `column`. Raises one `BadInput` for all names that are ambiguous, share a file or lie outside the folder.

    A name with a separator is a path: exactly that file, relative to the folder unless it is absolute. A bare name is that file in the
    folder, or else the only file below it with that name, or with that name and the suffix of an image. Names are compared byte by byte.
    A file outside the folder (by `..`, an absolute path or a link) is refused unless `allow_outside`.

    A name without a file is returned as a path in the folder, to be reported with the broken images, unless no name has a file. `rows` are
    the row numbers used in messages, by default 1, 2, ...
    """
    root = Path(folder).expanduser()
    if not root.is_dir():
        raise BadInput(f"no such folder: {folder}. Name the one that holds the images.")
    numbers = range(1, len(names) + 1) if rows is None else rows
    empty = names.isna().to_numpy() | (names.astype(object) == "").to_numpy()
    problems = []
    if empty.any():
        problems.append(f"image column {column!r}: {empty.sum():,} of {len(names):,} rows are empty. Fill them in or leave them out.")
    texts = ["" if missing else str(name) for name, missing in zip(names, empty, strict=True)]
    real_root, folders = Path(os.path.realpath(root)), dict[Path, bool]()

    def is_inside(path: Path) -> bool:
        """Whether a file lies in the folder once links are followed. Results are kept by parent folder, since many files share one."""
        try:
            if path.name in ("", "..") or path.is_symlink():
                return Path(os.path.realpath(path)).is_relative_to(real_root)
            if path.parent not in folders:
                folders[path.parent] = Path(os.path.realpath(path.parent)).is_relative_to(real_root)
            return folders[path.parent] or Path(os.path.realpath(path)) == real_root  # the folder itself, which is not an image
        except (OSError, ValueError):  # not a possible file name: too long, or with a NUL in it
            return path.is_relative_to(root) and ".." not in path.relative_to(root).parts

    paths, states = [root / text for text in texts], {}
    for row, path in enumerate(paths):
        # A path outside is not even stat-ed, so that a table cannot be used to probe which files exist there.
        if texts[row] and (allow_outside or is_inside(path)):
            states[row] = file_state(path)
    outside = [row for row in range(len(paths)) if texts[row] and row not in states]
    absent = [row for row, state in states.items() if state is None]
    below = _files_below(root) if any(_is_bare(texts[row]) for row in absent) else {}
    ambiguous = []
    for row in absent:
        candidates = below.get(texts[row], []) if _is_bare(texts[row]) else []
        if len(candidates) > 1:
            shown = ", ".join(repr(str(path.relative_to(root))) for path in sorted(candidates)[:3])
            ambiguous.append(
                f"row {numbers[row]} below the header: image {texts[row]!r} may be any of {len(candidates)} files below {root}: {shown}. "
                "Write the path instead."
            )
        elif candidates and not allow_outside and not is_inside(candidates[0]):
            outside.append(row)
        elif candidates:
            paths[row], states[row] = candidates[0], file_state(candidates[0])
    elsewhere = [
        f"row {numbers[row]} below the header: image {texts[row]!r} lies outside {root}. "
        "Name files in the folder, or allow it: allow_outside=True (--set images.allow_outside=true)."
        for row in sorted(outside)
    ]
    for found in (ambiguous, elsewhere, _shared_files(texts, paths, states, numbers)):
        more = len(found) - NAMES_LISTED
        problems += [*found[:NAMES_LISTED], *([f"... and {more:,} more of this kind"] if more > 0 else [])]
    if absent and not outside and not ambiguous and not any(states.values()):
        first = texts[absent[0]]
        where = "or below it" if _is_bare(first) else "(a name with a folder in it is a path relative to that one)"
        problems.append(f"no image of column {column!r} is in {root} {where}; the first is {first!r}. Name another folder or column.")
    raise_all(problems)
    return paths


def file_state(path: str | Path) -> os.stat_result | None:
    """The `stat` of a regular file; None if there is no such file, or the name is not a valid one."""
    try:
        state = Path(path).stat()
    except (OSError, ValueError):
        return None
    return state if stat.S_ISREG(state.st_mode) else None


def _is_bare(text: str) -> bool:
    return not {"/", "\\", os.sep} & set(text) and not Path(text).is_absolute()


def _files_below(root: Path) -> dict[str, list[Path]]:
    """The files below a folder by name and, for images, also by name without the suffix."""
    files: dict[str, list[Path]] = {}
    for folder, _, names in os.walk(root):
        for name in names:
            stem, dot, suffix = name.rpartition(".")
            files.setdefault(name, []).append(Path(folder) / name)
            # The name a.png never means a.png.jpg.
            if stem and dot + suffix.lower() in IMAGE_SUFFIXES and Path(stem).suffix.lower() not in IMAGE_SUFFIXES:
                files.setdefault(stem, []).append(Path(folder) / name)
    return files


def _shared_files(
    texts: Sequence[str], paths: Sequence[Path], states: Mapping[int, os.stat_result | None], numbers: Sequence[int]
) -> list[str]:
    """One problem for each file that several names lead to, by a link or on a disk that ignores case."""
    rows_of_file: dict[object, dict[str, int]] = {}  # file: each of its names, with the first row of that name
    for row, state in states.items():
        if state is not None:
            file = (state.st_dev, state.st_ino) if state.st_ino else os.path.realpath(paths[row])
            rows_of_file.setdefault(file, {}).setdefault(texts[row], row)
    return [
        " and ".join(f"image {text!r} (row {numbers[row]} below the header)" for text, row in rows.items())
        + f" are the same file, {paths[next(iter(rows.values()))]}. Give each row its own image, under one name."
        for rows in rows_of_file.values()
        if len(rows) > 1
    ]
