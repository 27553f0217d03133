"""Rows made of images, in memory or in a file: filled by threads, found again in a cache, or in a file that goes with the process.

Threads wait for each other in Python's own part of opening an image. Where images are many, each thread hands them to another process.

Pixels of 8 bits are found again as long as the files are the same. What a user's code makes is not: the code may call other code that has
changed, so its rows are kept for one process only. A cached file is marked as used whenever it is opened; none is removed unless asked for.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from equipoise.data.faults import Broken, Limit
from equipoise.data.files import replacing, user_cache
from equipoise.data.image_files import Pixels, Source, file_state
from equipoise.data.processes import Gone, Processes
from equipoise.errors import BadInput

log = logging.getLogger(__name__)
PLENTY = 50 * 2**30  # bytes in one folder from which on a warning is logged
DAY = 86_400
# A folder that the user named may hold other files, which are none of ours.
PIXELS = re.compile(r"[0-9a-f]{32}\.npy")
LEFTOVER = re.compile(r"\.equipoise\..+\.tmp")  # of a process that was killed while it decoded
IN_MEMORY = 2**28  # bytes of rows that are kept in memory unless a cache is named: 5,349 gray images of 8 bits at 224 px
SMALL = 2**16  # bytes of a file that is known by its content; a larger one by path, length and times of change, to spare reading it
CHUNK = 32  # images that one thread takes at a time
MANY = 4096  # images from which processes are started to decode them, which takes about half a second
SEVERAL = 4  # threads from which they would wait for each other
VERSION = 3  # of the decoding; another one makes other pixels
Make = Callable[[Source], npt.NDArray[Any]]
warned = logging.getLogger("equipoise.data.images.decoding")


@dataclass(frozen=True)
class ImageCache:
    """The pixels of one list of images at one size, in a file."""

    path: Path
    images: int  # 0 for one that was never finished or is damaged
    size: int  # pixels per side
    bytes: int
    used: float  # seconds since 1970

    @property
    def days(self) -> float:
        """Days since it was last opened."""
        return (time.time() - self.used) / DAY


def cache_folder(folder: str | Path | None = None) -> Path:
    """Where images are cached: in the named folder, or in the user's cache."""
    return Path(folder).expanduser() if folder else user_cache() / "images"


def image_caches(folder: str | Path | None = None) -> list[ImageCache]:
    """What is cached in a folder (by default the user's), most recently used first."""
    place, found = cache_folder(folder), []
    for path in place.iterdir() if place.is_dir() else ():
        finished = bool(PIXELS.fullmatch(path.name))
        if not path.is_symlink() and (finished or LEFTOVER.fullmatch(path.name)):  # a link is none of ours
            with suppress(FileNotFoundError):  # another process may remove one meanwhile
                cache = _described(path)
                # A young leftover may still be written to.
                found += [cache] if finished or cache.days > 1 else []
    return sorted(found, key=lambda cache: -cache.used)


def clear_caches(found: Iterable[ImageCache]) -> int:
    """Removes these caches; how many bytes that freed. A process that has one open keeps it until it ends."""
    freed, problems = 0, []
    for cache in found:
        try:
            cache.path.unlink(missing_ok=True)
            _notes(cache.path).unlink(missing_ok=True)
            freed += cache.bytes
        except OSError as error:
            problems.append(f"cannot remove {cache.path}: {error.strerror or error}")
    if problems:
        raise BadInput(*problems)
    return freed


def mark_used(path: Path) -> None:
    """Records that a cache was opened, and warns where its folder has grown large."""
    with suppress(OSError):  # a folder that may only be read
        os.utime(path)
    total = sum(cache.bytes for cache in image_caches(path.parent))
    if total > PLENTY:
        other = "" if path.parent == cache_folder() else f" --folder {path.parent}"
        log.warning(
            "the cached images in %s take %.0f GiB. To see them: equipoise data cache%s; to remove old ones: add --clear --older-than 30",
            path.parent,
            total / 2**30,
            other,
        )


def _notes(path: Path) -> Path:
    """The file next to the pixels that lists the broken images."""
    return path.with_suffix(".json")


def _described(path: Path) -> ImageCache:
    state = path.stat()
    images, size = 0, 0
    with suppress(OSError, ValueError):
        images, size = np.load(path, mmap_mode="r").shape[:2] if path.suffix == ".npy" else (0, 0)
    notes = _notes(path).stat().st_size if path.suffix == ".npy" and _notes(path).is_file() else 0
    return ImageCache(path, images, size, state.st_size + notes, state.st_mtime)


def fill(
    out: npt.NDArray[Any],
    sources: Sequence[Source],
    make: Make,
    limit: Limit,
    progress: Callable[[int], None] | None,
    processes: Processes | None = None,
) -> dict[int, Broken]:
    """Puts what is made of each image into `out` (n, ...); what was wrong, by position. Pillow frees Python's lock while it decodes.

    With `processes`, which need `out` to be a mapped file, a thread decodes only those images that its process leaves to it.
    """
    from equipoise.data.decode import fault, watching  # brings Pillow, which a cohort without images does not need

    broken: dict[int, Broken] = {}
    doing: dict[int, int] = {}  # thread: row
    remarks: dict[int, str] = {}

    def work(start: int) -> int:
        rows = range(start, min(start + CHUNK, len(sources)))
        left: Iterable[int] = rows
        if processes is not None:
            with suppress(Gone):
                done = processes.call(decoded, str(out.filename), start, sources[start : rows.stop], make, limit)  # type: ignore[attr-defined]
                broken.update(done.broken)
                remarks.update(done.remarks)
                left = done.left
        for row in left:
            doing[threading.get_ident()] = row
            wrong = fault(sources[row], make, out[row], limit)
            if wrong:
                broken[row] = wrong
        return len(rows)

    with watching(limit, doing, remarks), ThreadPoolExecutor(limit.threads) as pool:
        tasks = [pool.submit(work, start) for start in range(0, len(sources), CHUNK)]
        try:
            for task in tasks:
                done = task.result()
                if progress is not None:
                    progress(done)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    remarked = sorted(remarks.keys() - broken.keys())
    if remarked:
        first = f"{name_of(sources[remarked[0]], remarked[0])}: {remarks[remarked[0]]}"
        warned.warning("%s of %s images were decoded with a warning; the first: %s", f"{len(remarked):,}", f"{len(sources):,}", first)
    return broken


@dataclass(frozen=True)
class Decoded:
    """What came of some images: what was wrong and what was remarked, by row, and which are left to the caller."""

    broken: dict[int, Broken]
    remarks: dict[int, str]
    left: list[int]


def decoded(path: str, start: int, sources: Sequence[Source], make: Make, limit: Limit) -> Decoded:
    """What came of the images from row `start` on, which are put into a mapped file. In a process of its own.

    What is no fault of an image, such as a missing library, is left to the caller, which comes upon it too; and so are images that are to
    be decoded one at a time.
    """
    from equipoise.data.decode import fault, watching

    out = np.lib.format.open_memmap(path, mode="r+")
    found = Decoded({}, {}, [])
    doing: dict[int, int] = {}
    with watching(limit, doing, found.remarks):
        for row, source in enumerate(sources, start):
            doing[threading.get_ident()] = row
            try:
                wrong = fault(source, make, out[row], limit)
            except Exception:  # no fault of the image: the caller tries it too, and says what it is
                found.left.append(row)
                found.remarks.pop(row, None)
                continue
            if wrong:
                found.broken[row] = wrong
    return found


def cached(
    sources: Sequence[Source],
    make: Make,
    about: object,
    shape: tuple[int, ...],
    folder: Path,
    limit: Limit,
    progress: Callable[[int], None] | None,
) -> tuple[Pixels, dict[int, Broken]]:
    """The pixels mapped from the cache, decoded into it first if they are not there; and what was wrong, by position.

    `about` tells how they are made, and `shape` is that of one image.
    """
    from equipoise.data.decode import fault, watching

    many = len(sources) >= MANY and limit.threads >= SEVERAL and not any(isinstance(source, bytes) for source in sources)
    with Processes() if many else nullcontext() as processes:
        key = blake2b(repr((VERSION, about, shape, limit.pixels)).encode(), digest_size=16)
        for identity in _identities_of(sources, limit.threads, processes):
            key.update(len(identity).to_bytes(4, "big") + identity)
        path, notes = folder / f"{key.hexdigest()}.npy", folder / f"{key.hexdigest()}.json"
        with suppress(OSError, ValueError, TypeError, AttributeError):  # not there, or damaged: it is made again
            broken = {int(at): Broken(*map(str, one)) for at, one in json.loads(notes.read_text(encoding="utf-8")).items()}
            if path.is_symlink() or notes.is_symlink():  # somebody else's file: pixels are made again, in place of the link
                raise FileNotFoundError(path)
            pixels = np.load(path, mmap_mode="r")
            blank = np.empty(shape, np.uint8)
            # A codec may have been installed since: what is broken must still be.
            with watching(limit, dict.fromkeys([threading.get_ident()], 0), {}):
                still = all(fault(sources[at], make, blank, limit) for at in broken)
            if pixels.shape == (len(sources), *shape) and pixels.dtype == np.uint8 and still:
                if progress is not None:
                    progress(len(sources))
                mark_used(path)
                return pixels, broken
        with replacing(path, follow=False) as temporary:
            check_room(folder, (len(sources), *shape), np.uint8)
            store = np.lib.format.open_memmap(temporary, mode="w+", dtype=np.uint8, shape=(len(sources), *shape))
            broken = fill(store, sources, make, limit, progress, processes)
            store.flush()
            del store
            with replacing(notes, follow=False) as listed:  # first, so that pixels never lie there without them
                listed.write_text(json.dumps({at: [one.kind, one.reason] for at, one in broken.items()}), encoding="utf-8")
        mark_used(path)
        return np.load(path, mmap_mode="r"), broken


def fits_in_memory(rows: int, shape: tuple[int, ...], kind: npt.DTypeLike) -> bool:
    """Whether so many rows of this shape and type are kept in memory."""
    return rows * int(np.prod(shape)) * np.dtype(kind).itemsize <= IN_MEMORY


def float_rows(shape: tuple[int, ...], cache: str | Path | None) -> npt.NDArray[np.float32]:
    """Empty float rows (n, ...): in memory where they fit and no cache is named, otherwise in a file that goes with the process."""
    kept = cache is None and fits_in_memory(shape[0], shape[1:], np.float32)
    return np.zeros(shape, np.float32) if kept else temporary_rows(shape, cache_folder(cache))


def temporary_rows(shape: tuple[int, ...], folder: Path) -> npt.NDArray[np.float32]:
    """Rows of zeros in a file in this folder, which is removed when they are no longer used."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        check_room(folder, shape, np.float32)
        handle, name = tempfile.mkstemp(prefix=".equipoise.rows.", suffix=".tmp", dir=folder)
    except OSError as error:
        raise BadInput(f"cannot write to {folder}: {error.strerror or error}. Name another folder (cache=, --cache).") from error
    os.close(handle)
    found = np.lib.format.open_memmap(name, mode="w+", dtype=np.float32, shape=shape)
    weakref.finalize(found, Path(name).unlink, missing_ok=True)
    return found


def check_room(folder: Path, shape: tuple[int, ...], kind: npt.DTypeLike) -> None:
    """Raises where a folder has no room for rows: writing to a mapped file on a full disk kills the process."""
    needed, free = int(np.prod(shape)) * np.dtype(kind).itemsize, shutil.disk_usage(folder).free
    if free < needed:
        raise BadInput(
            f"{shape[0]:,} images of shape {shape[1:]} need {needed / 2**30:.2f} GiB in {folder}, where {free / 2**30:.2f} GiB are free. "
            "Name another folder (cache=, or EQUIPOISE_CACHE), or use a smaller size."
        )


def _identities_of(sources: Sequence[Source], threads: int, processes: Processes | None) -> Iterator[bytes]:
    """What tells each file from others, in their order."""

    def work(start: int) -> list[bytes]:
        some = sources[start : start + CHUNK]
        if processes is not None:
            with suppress(Gone):
                return processes.call(_identities, some)
        return _identities(some)

    with ThreadPoolExecutor(threads) as pool:
        for some in pool.map(work, range(0, len(sources), CHUNK)):
            yield from some


def _identities(sources: Sequence[Source]) -> list[bytes]:
    return [_identity(source) for source in sources]


def _identity(source: Source) -> bytes:
    """What tells a file from others: its content if it is small, its place, length and times of change if not.

    A tool may set the time of modification back (cp -p, rsync -t), but not that of the last change of the file's entry.
    """
    if isinstance(source, bytes):
        return blake2b(source, digest_size=16).digest()
    state = file_state(source)
    if state is None:  # nothing, or no ordinary file: reading a named pipe would never end
        return repr((str(source), "no file")).encode()
    try:
        if state.st_size <= SMALL:
            return blake2b(Path(source).read_bytes(), digest_size=16).digest()
    except (OSError, ValueError) as error:
        return repr((str(source), type(error).__name__)).encode()
    return repr((str(Path(source).absolute()), state.st_size, state.st_mtime_ns, state.st_ctime_ns, state.st_ino)).encode()


def name_of(source: Source, at: int) -> str:
    """How a source is named in messages."""
    return f"image {at + 1}" if isinstance(source, bytes) else str(source)
