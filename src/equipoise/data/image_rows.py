"""Arrays of rows made from images: in memory or in a mapped file, filled by threads or, for many images, by worker processes.

Pillow releases Python's global lock while it decodes, but opening a small image takes about as long, so 16 threads are hardly faster than
two; each thread hands its images to a worker process instead. The processes are joblib's: one forked from a process with threads or a GPU
may hang, and one started by multiprocessing runs the user's script again.
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Executor, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from equipoise.data.faults import Broken, ImageLimit
from equipoise.data.files import user_cache
from equipoise.data.image_files import Make, Source
from equipoise.errors import BadInput

IN_MEMORY = 2**28  # bytes of rows that are kept in memory unless a cache is named: 5,349 gray images of 8 bits at 224 px
CHUNK = 32  # images that one thread takes at a time
Chunk = Mapping[int, Source]  # some images by row
decoding_log = logging.getLogger("equipoise.data.images.decoding")


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
        first = f"{source_name(sources[remarked[0]], remarked[0])}: {remarks[remarked[0]]}"
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
            except Exception:
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
        raise BadInput(f"cannot write to {folder}: {error.strerror or error}. Name another folder (cache=, --cache).") from error
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


def source_name(source: Source, position: int) -> str:
    """The name of a source in messages."""
    return f"image {position + 1}" if isinstance(source, bytes) else str(source)
