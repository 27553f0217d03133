"""Rows made from images, in memory, in a mapped file or in a cache on disk, by threads or, for many images, by worker processes.

Pillow releases Python's global lock while it decodes, but opening a small image takes about as long, so 16 threads are hardly faster than
two; each thread hands its images to a worker process instead. The processes are joblib's: one forked from a process with threads or a GPU
may hang, and one started by multiprocessing runs the user's script again.

Only 8-bit pixels are cached, since the code of a user's transform may call other code that has changed. A cache is marked as used whenever
it is opened, and removed only on request. A checksum is stored next to the pixels and compared whenever they are opened, which takes 0.07 s
for 5,000 gray images of 224 px; pixels that have changed since are decoded again.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import tempfile
import time
import weakref
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Executor, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from equipoise.data.files import atomic_path, user_cache
from equipoise.data.image_files import Broken, ImageLimit, Make, Pixels, Source, file_state
from equipoise.errors import BadInput

IN_MEMORY = 2**28  # bytes of rows that are kept in memory unless a cache is named: 5,349 gray images of 8 bits at 224 px
CHUNK = 32  # images that one thread takes at a time
Chunk = Mapping[int, Source]  # some images by row
decoding_log = logging.getLogger("equipoise.data.images.decoding")
log = logging.getLogger(__name__)
LARGE_CACHE = 50 * 2**30  # bytes in one folder above which a warning is logged
DAY = 86_400
# A folder that the user named may hold other files, which must not be listed or removed.
PIXELS = re.compile(r"[0-9a-f]{32}\.npy")
LEFTOVER = re.compile(r"\.equipoise\..+\.tmp")  # of a process that was killed while it decoded
SMALL_FILE = 2**16  # bytes up to which a file is identified by its content; a larger one by path, size and times, to avoid reading it
MANY = 4096  # images from which worker processes are started, which takes about half a second
SEVERAL = 4  # threads from which they would wait for each other
VERSION = 3  # of the decoding; to be raised when the pixels change
BLOCK = 2**24  # bytes of pixels that are read at a time for the checksum


@dataclass(frozen=True)
class Job:
    """The images to decode and how to do it; `progress` is called with the number of images done since the last call."""

    sources: Sequence[Source]
    limit: ImageLimit
    cache: str | Path | None
    progress: Callable[[int], None] | None

    def report(self, images: int) -> None:
        if self.progress is not None:
            self.progress(images)


def fill(out: npt.NDArray[Any], job: Job, make: Make, workers: Executor | None = None) -> dict[int, Broken]:
    """Puts the row that `make` returns for each image into `out` (n, ...), in threads. Returns the broken images by position.

    With `workers`, processes for which `out` must be a mapped file, a thread decodes only the images that a process leaves or loses.
    """
    from equipoise.data.decode import collect_warnings  # late: a cohort without images does not need Pillow

    sources, limit = job.sources, job.limit
    broken: dict[int, Broken] = {}
    remarks: dict[int, str] = {}

    def fill_chunk(start: int) -> int:
        chunk: Chunk = dict(enumerate(sources[start : start + CHUNK], start))
        remaining = chunk
        if workers is not None:
            with suppress(BrokenExecutor, OSError):
                path: str = out.filename  # type: ignore[attr-defined]
                remaining, faults, said = workers.submit(fill_mapped, path, chunk, make, limit).result()
                broken.update(faults)
                remarks.update(said)
        broken.update(_fill_rows(out, remaining, make, limit))
        return len(chunk)

    with collect_warnings(limit, remarks), ThreadPoolExecutor(limit.threads) as pool:
        tasks = [pool.submit(fill_chunk, start) for start in range(0, len(sources), CHUNK)]
        try:
            for task in tasks:
                job.report(task.result())
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    remarked = sorted(remarks.keys() - broken.keys())
    if remarked:
        first = f"{sources[remarked[0]]}: {remarks[remarked[0]]}"
        decoding_log.warning("%s of %s images were decoded with a warning; the first: %s", f"{len(remarked):,}", f"{len(sources):,}", first)
    return broken


def _fill_rows(out: npt.NDArray[Any], chunk: Chunk, make: Make, limit: ImageLimit) -> dict[int, Broken]:
    """Puts the rows of some images into `out`; returns the broken images."""
    from equipoise.data.decode import attempt

    broken = {}
    for row, source in chunk.items():
        pixels, fault = attempt(source, make, limit, row)
        if fault is not None:
            broken[row] = fault
        else:
            out[row] = pixels
    return broken


def fill_mapped(path: str, chunk: Chunk, make: Make, limit: ImageLimit) -> tuple[Chunk, dict[int, Broken], dict[int, str]]:
    """Fills rows of a mapped file in a worker process; returns the images that are left to the caller, broken images, and remarks.

    An image that fails for another reason than its own fault (a missing library, or a large image that needs the caller's lock) is left to
    the caller, which raises the same error or has the lock.
    """
    from equipoise.data.decode import collect_warnings

    out = np.lib.format.open_memmap(path, mode="r+")
    remaining: dict[int, Source] = {}
    broken: dict[int, Broken] = {}
    remarks: dict[int, str] = {}
    with collect_warnings(limit, remarks):
        for row, source in chunk.items():
            try:
                broken |= _fill_rows(out, {row: source}, make, limit)
            except Exception:  # of any kind: the caller tries the image again and raises it
                remaining[row] = source
                remarks.pop(row, None)
    return remaining, broken, remarks


@contextmanager
def worker_processes(count: int) -> Iterator[Executor]:
    """Processes that call functions of importable modules. They import none of the user's code, and end with the block."""
    from joblib.externals.loky import ProcessPoolExecutor

    workers = ProcessPoolExecutor(count, env={"OMP_NUM_THREADS": "1"})
    try:
        yield workers
    finally:
        workers.shutdown(kill_workers=True)


def fits_in_memory(rows: int, shape: tuple[int, ...], dtype: npt.DTypeLike) -> bool:
    """Whether rows of this shape and type are kept in memory by default."""
    return rows * int(np.prod(shape)) * np.dtype(dtype).itemsize <= IN_MEMORY


def float_rows(shape: tuple[int, ...], cache: str | Path | None) -> npt.NDArray[np.float32]:
    """Zeros of this shape: in memory if they fit and no cache is named, otherwise in a mapped file that is removed after use."""
    if cache is None and fits_in_memory(shape[0], shape[1:], np.float32):
        return np.zeros(shape, np.float32)
    folder = cache_folder(cache)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        check_disk_space(folder, shape, np.float32)
        handle, name = tempfile.mkstemp(prefix=".equipoise.rows.", suffix=".tmp", dir=folder)
    except OSError as error:
        raise BadInput(f"cannot write to {folder}: {error.strerror or error}. Name another folder (cache=, images.cache).") from error
    os.close(handle)
    rows = np.lib.format.open_memmap(name, mode="w+", dtype=np.float32, shape=shape)
    weakref.finalize(rows, Path(name).unlink, missing_ok=True)
    return rows


def check_disk_space(folder: Path, shape: tuple[int, ...], dtype: npt.DTypeLike) -> None:
    """Raises `BadInput` if a folder has too little space: writing to a mapped file on a full disk kills the process."""
    needed, free = int(np.prod(shape)) * np.dtype(dtype).itemsize, shutil.disk_usage(folder).free
    if free < needed:
        raise BadInput(
            f"{shape[0]:,} images of shape {shape[1:]} need {needed / 2**30:.2f} GiB in {folder}, where {free / 2**30:.2f} GiB are free. "
            "Name another folder (cache=, or EQUIPOISE_CACHE), or use a smaller size."
        )


def cache_folder(folder: str | Path | None = None) -> Path:
    """The folder of cached images: the named one, or the default in the user's cache."""
    return Path(folder).expanduser() if folder else user_cache() / "images"


@dataclass(frozen=True)
class ImageCache:
    """A file with the pixels of one list of images at one size."""

    path: Path
    images: int  # 0 if it was never finished or is damaged
    size: int  # pixels per side
    bytes: int
    used: float  # seconds since 1970

    @property
    def days(self) -> float:
        """Days since it was last opened."""
        return (time.time() - self.used) / DAY


def image_caches(folder: str | Path | None = None) -> list[ImageCache]:
    """The image caches in a folder (by default the user's), most recently used first."""
    root, caches = cache_folder(folder), []
    for path in root.iterdir() if root.is_dir() else ():
        finished = bool(PIXELS.fullmatch(path.name))
        if not path.is_symlink() and (finished or LEFTOVER.fullmatch(path.name)):  # Equipoise makes no links
            with suppress(FileNotFoundError):  # another process may remove one meanwhile
                cache = _describe(path)
                # A recent leftover may still be written to.
                caches += [cache] if finished or cache.days > 1 else []
    return sorted(caches, key=lambda cache: -cache.used)


def clear_caches(found: Iterable[ImageCache]) -> int:
    """Removes these caches and returns the number of bytes freed. A process that has one open keeps it until it ends."""
    freed, problems = 0, []
    for cache in found:
        try:
            cache.path.unlink(missing_ok=True)
            _faults_file(cache.path).unlink(missing_ok=True)
            freed += cache.bytes
        except OSError as error:
            problems.append(f"cannot remove {cache.path}: {error.strerror or error}")
    if problems:
        raise BadInput(*problems)
    return freed


def _mark_used(path: Path) -> None:
    """Records that a cache was opened, and warns if its folder has grown large."""
    with suppress(OSError):  # a read-only folder
        os.utime(path)
    total = sum(cache.bytes for cache in image_caches(path.parent))
    if total > LARGE_CACHE:
        log.warning(
            "the cached images in %s take %.0f GiB. To see them: equipoise data cache%s; to remove old ones: add --clear --older-than 30",
            path.parent,
            total / 2**30,
            "" if path.parent == cache_folder() else f" --folder {path.parent}",
        )


def _faults_file(path: Path) -> Path:
    """The file next to the pixels with their checksum and a list of the broken images."""
    return path.with_suffix(".json")


def _describe(path: Path) -> ImageCache:
    state, images, size, faults = path.stat(), 0, 0, 0
    if path.suffix == ".npy":
        with suppress(OSError, ValueError):  # damaged
            images, size = np.load(path, mmap_mode="r").shape[:2]
        faults = _faults_file(path).stat().st_size if _faults_file(path).is_file() else 0
    return ImageCache(path, images, size, state.st_size + faults, state.st_mtime)


def cached(job: Job, make: Make, settings: object, shape: tuple[int, ...]) -> tuple[Pixels, dict[int, Broken]]:
    """The pixels (n, *shape) mapped from the cache, decoded into it first if they are not there; and the broken images by position.

    The representation of `settings` must distinguish all ways in which the pixels can be made.
    """
    sources, limit, folder = job.sources, job.limit, cache_folder(job.cache)
    many = len(sources) >= MANY and limit.threads >= SEVERAL
    with worker_processes(limit.threads) if many else nullcontext() as workers:
        key = blake2b(repr((VERSION, settings, shape, limit.pixels)).encode(), digest_size=16)
        for identity in _identities(sources, limit.threads, workers):
            key.update(len(identity).to_bytes(4, "big") + identity)
        path = folder / f"{key.hexdigest()}.npy"
        stored = _read_cached(path, job, make, shape)
        if stored is not None:
            job.report(len(sources))
            _mark_used(path)
            return stored
        with atomic_path(path, follow=False) as temporary:
            check_disk_space(folder, (len(sources), *shape), np.uint8)
            out = np.lib.format.open_memmap(temporary, mode="w+", dtype=np.uint8, shape=(len(sources), *shape))
            broken = fill(out, job, make, workers)
            out.flush()
            faults = {str(row): [fault.kind, fault.reason] for row, fault in broken.items()}
            document = {"checksum": _checksum(out, faults), "broken": faults}
            del out
            with atomic_path(_faults_file(path), follow=False) as note:  # first, so that there are never pixels without it
                note.write_text(json.dumps(document), encoding="utf-8")
        _mark_used(path)
        return np.load(path, mmap_mode="r"), broken


def _read_cached(path: Path, job: Job, make: Make, shape: tuple[int, ...]) -> tuple[Pixels, dict[int, Broken]] | None:
    """The pixels in a cache and its broken images by position; None if it does not exist, is damaged or is out of date."""
    from equipoise.data.decode import attempt, collect_warnings

    if path.is_symlink() or _faults_file(path).is_symlink():  # not made by Equipoise: the link is replaced
        return None
    try:
        document = json.loads(_faults_file(path).read_text(encoding="utf-8"))
        pixels = np.load(path, mmap_mode="r")
        broken = {int(row): Broken(*map(str, fault)) for row, fault in document["broken"].items()}
        same = pixels.shape == (len(job.sources), *shape) and document["checksum"] == _checksum(pixels, document["broken"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, AttributeError, LookupError, EOFError, RecursionError, zipfile.BadZipFile):
        same = False
    if not same:
        log.warning("the cached images in %s have changed since they were decoded, so they are decoded again from the image files", path)
        return None
    # A codec may have been installed since, so images that were broken are tried again.
    with collect_warnings(job.limit, {}):
        still_broken = all(attempt(job.sources[row], make, job.limit, row)[1] for row in broken)
    return (pixels, broken) if still_broken else None


def _checksum(pixels: Pixels, broken: Mapping[str, Sequence[str]]) -> str:
    """A checksum of the pixels and of the list of broken images. It detects damage, not a forger, who could write both files."""
    found = zlib.crc32(json.dumps([broken, pixels.dtype.str]).encode())
    flat = memoryview(np.ascontiguousarray(pixels).data).cast("B") if pixels.size else memoryview(b"")
    for start in range(0, len(flat), BLOCK):
        found = zlib.crc32(flat[start : start + BLOCK], found)
    return f"crc32:{found:08x}"


def _identities(sources: Sequence[Source], threads: int, workers: Executor | None) -> Iterator[bytes]:
    """The identity of each file, in order."""

    def identify(start: int) -> list[bytes]:
        chunk = sources[start : start + CHUNK]
        if workers is not None:
            with suppress(BrokenExecutor, OSError):
                return workers.submit(identify_chunk, chunk).result()
        return identify_chunk(chunk)

    with ThreadPoolExecutor(threads) as pool:
        for identities in pool.map(identify, range(0, len(sources), CHUNK)):
            yield from identities


def identify_chunk(sources: Sequence[Source]) -> list[bytes]:
    """The identities of some files. May run in a worker process."""
    return [_identity(source) for source in sources]


def _identity(source: Source) -> bytes:
    """What distinguishes a file: its content if it is small, otherwise path, size and times, of which tools cannot set back the last."""
    state = file_state(source)
    if state is None:  # missing, or not a regular file: reading a named pipe would never end
        return repr((str(source), "no file")).encode()
    try:
        if state.st_size <= SMALL_FILE:
            return blake2b(Path(source).read_bytes(), digest_size=16).digest()
    except (OSError, ValueError) as error:
        return repr((str(source), type(error).__name__)).encode()
    return repr((str(Path(source).absolute()), state.st_size, state.st_mtime_ns, state.st_ctime_ns, state.st_ino)).encode()
