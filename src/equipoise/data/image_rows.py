"""Arrays of rows made from images: in memory or in a mapped file, filled by threads or, for many images, by worker processes.

Pillow releases Python's global lock while it decodes, but opening a small image takes about as long, so 16 threads are hardly faster than
two; each thread hands its images to a worker process instead. A process forked from one with threads or a GPU may hang, and one started by
multiprocessing runs the user's script again. These workers are started from the interpreter's command line, import none of the user's
code, and end when their pipe is closed.
"""

from __future__ import annotations

import logging
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from equipoise.data.faults import Broken, ImageLimit
from equipoise.data.files import user_cache
from equipoise.data.image_files import Make, Source
from equipoise.errors import BadInput, first_line

IN_MEMORY = 2**28  # bytes of rows that are kept in memory unless a cache is named: 5,349 gray images of 8 bits at 224 px
CHUNK = 32  # images that one thread takes at a time
COMMAND = "from equipoise.data.image_rows import serve; serve()"
Result = TypeVar("Result")
log = logging.getLogger(__name__)
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


def fill(out: npt.NDArray[Any], job: Job, make: Make, processes: Processes | None = None) -> dict[int, Broken]:
    """Puts the row that `make` returns for each image into `out` (n, ...), in threads. Returns the broken images by position.

    With `processes`, for which `out` must be a mapped file, a thread decodes only the images that its process leaves to it.
    """
    from equipoise.data.decode import attempt, collect_warnings  # late: a cohort without images does not need Pillow

    sources, limit = job.sources, job.limit
    broken: dict[int, Broken] = {}
    current_row: dict[int, int] = {}  # by thread
    remarks: dict[int, str] = {}

    def fill_chunk(start: int) -> int:
        rows = range(start, min(start + CHUNK, len(sources)))
        remaining: Iterable[int] = rows
        if processes is not None:
            with suppress(Gone):
                result = processes.call(fill_mapped, str(out.filename), start, sources[start : rows.stop], make, limit)  # type: ignore[attr-defined]
                broken.update(result.broken)
                remarks.update(result.remarks)
                remaining = result.remaining
        for row in remaining:
            current_row[threading.get_ident()] = row
            pixels = attempt(sources[row], make, limit)
            if isinstance(pixels, Broken):
                broken[row] = pixels
            else:
                out[row] = pixels
        return len(rows)

    with collect_warnings(limit, current_row, remarks), ThreadPoolExecutor(limit.threads) as pool:
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


@dataclass(frozen=True)
class Filled:
    """The result of a worker process, by row: broken images, remarks of decoders, and rows that are left to the caller."""

    broken: dict[int, Broken] = field(default_factory=dict)
    remarks: dict[int, str] = field(default_factory=dict)
    remaining: list[int] = field(default_factory=list)


def fill_mapped(path: str, start: int, sources: Sequence[Source], make: Make, limit: ImageLimit) -> Filled:
    """Fills the rows of a mapped file from `start` on. Runs in a worker process.

    An image that fails for another reason than its own fault (a missing library, or a large image that needs the caller's lock) is left to
    the caller, which raises the same error or has the lock.
    """
    from equipoise.data.decode import attempt, collect_warnings

    out = np.lib.format.open_memmap(path, mode="r+")
    filled = Filled()
    current_row: dict[int, int] = {}
    with collect_warnings(limit, current_row, filled.remarks):
        for row, source in enumerate(sources, start):
            current_row[threading.get_ident()] = row
            try:
                pixels = attempt(source, make, limit)
            except Exception:
                filled.remaining.append(row)
                filled.remarks.pop(row, None)
                continue
            if isinstance(pixels, Broken):
                filled.broken[row] = pixels
            else:
                out[row] = pixels
    return filled


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


def source_name(source: Source, position: int) -> str:
    """The name of a source in messages."""
    return f"image {position + 1}" if isinstance(source, bytes) else str(source)


class Gone(Exception):
    """A worker process could not be started, or ended before it answered."""


class Processes:
    """Worker processes that call functions of importable modules, one for each concurrent call. They end with the block."""

    def __init__(self) -> None:
        self._all: list[subprocess.Popen[bytes]] = []
        self._idle: list[subprocess.Popen[bytes]] = []
        self._failed = False

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for worker in self._all:
            with suppress(OSError):
                _pipes(worker)[0].close()
            if kind is not None:
                worker.kill()
        for worker in self._all:
            worker.wait()
            _pipes(worker)[1].close()

    def call(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Returns or raises what the function does in a worker process. Raises `Gone` once any worker has ended without an answer."""
        if self._failed:
            raise Gone
        try:
            try:
                worker = self._idle.pop()
            except IndexError:
                worker = _start_worker()
                self._all.append(worker)
            requests, answers = _pipes(worker)
            pickle.dump((function, arguments), requests)
            requests.flush()
            succeeded, answer = pickle.load(answers)
        except (OSError, EOFError, pickle.PickleError) as error:
            self._failed = True
            log.info("a process of this interpreter could not be used (%s); its work is done by threads", first_line(error))
            raise Gone from error
        self._idle.append(worker)
        if not succeeded:
            raise answer
        result: Result = answer
        return result


def _start_worker() -> subprocess.Popen[bytes]:
    if not sys.executable or getattr(sys, "frozen", False):
        raise OSError("there is no interpreter to start")
    path = os.pathsep.join(folder or str(Path.cwd()) for folder in sys.path)
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-P", "-c", COMMAND]  # -P: import no module from the current folder
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment)


def _pipes(worker: subprocess.Popen[bytes]) -> tuple[Any, Any]:
    """The pipe for requests and the pipe for answers."""
    assert worker.stdin is not None
    assert worker.stdout is not None
    return worker.stdin, worker.stdout


def serve() -> None:
    """The loop of a worker process: calls each function that it is sent and sends back the result or error, until the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of a terminal; the caller ends this one
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # keeps the output of libraries out of the pipe
    with requests, answers:
        while True:
            try:
                function, arguments = pickle.load(requests)
            except EOFError:
                return
            try:
                answer = True, function(*arguments)
            except Exception as error:
                answer = False, error
            answers.write(pickle.dumps(answer))
            answers.flush()
