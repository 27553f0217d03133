"""Images as network inputs: 8-bit pixels or the results of a transform, in memory or in a mapped file, made float batch by batch.

See `decode` for the decoding of one image, `preprocessing` for size and normalisation, `image_files` for matching rows to files.

Images are decoded by threads or, if there are many, by worker processes: Pillow releases Python's global lock while it decodes, but opening
a small image takes about as long, so 16 threads are hardly faster than two. The processes are joblib's: one forked from a process with
threads or a GPU may hang, and one started by multiprocessing runs the user's script again.

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
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import numpy as np
import numpy.typing as npt

from equipoise.data.attribute import IntArray
from equipoise.data.image_files import BROKEN_ADVICE, Broken, ImageLimit, Make, Pixels, Source, count_by_kind, file_state
from equipoise.data.preprocessing import MAX_PIXELS, XRAY_PRESET, BadTransform, Preprocessing, Transform, make_preprocessing
from equipoise.data.table import Inputs
from equipoise.disk import atomic_path, user_cache
from equipoise.errors import BadInput, needing, raise_all

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from equipoise.data.decode import Row

log = logging.getLogger(__name__)
decoding_log = logging.getLogger(f"{__name__}.decoding")
IN_MEMORY = 2**28  # bytes of rows that are kept in memory unless a cache is named: 5,349 gray images of 8 bits at 224 px
IMAGES_AT_ONCE = 32  # that one thread takes at a time
IMAGES_PER_PART = 256  # that a classifier takes at a time
LARGE_CACHE = 50 * 2**30  # bytes in one folder above which a warning is logged
# A folder that the user named may hold other files, which must not be listed or removed.
CACHED_PIXELS = re.compile(r"[0-9a-f]{32}\.npy")
LEFTOVER = re.compile(r"\.equipoise\..+\.tmp")  # of a process that was killed while it decoded
SMALL_FILE = 2**16  # bytes up to which a file is identified by its content; a larger one by path, size and times, to avoid reading it
MANY_IMAGES = 4096  # from which worker processes are started, which takes about half a second
SEVERAL_THREADS = 4  # from which they would wait for each other
DECODING_VERSION = 3  # to be raised when the pixels change
CHECKSUM_BLOCK = 2**24  # bytes of pixels that are read at a time
Chunk = Mapping[int, Source]  # some images by row


class Decoding(TypedDict, total=False):
    """The options that `Cohort.from_images` and the image data sets pass on to `Images.open`."""

    size: int | None
    resize: int | tuple[int, int] | None
    crop: int | str | None
    interpolation: str | None
    centre: str | None
    channels: int | None
    mean: Sequence[float]
    std: Sequence[float]
    preset: str | None
    transform: Any  # a callable, or a `Transform`
    skip_broken: bool
    max_pixels: int
    cache: str | Path | None
    workers: int | None
    progress: Callable[[int], None] | None


@dataclass(frozen=True, eq=False)
class Images(Inputs):
    """Rows of images; indexing by a slice, positions or a mask gives a float32 tensor (b, channels, height, width).

    >>> gray = Images(np.full((3, 8, 8), 255, np.uint8))
    >>> len(gray), gray.shape, gray[:2].shape, gray[:2].max().item()
    (3, torch.Size([3, 1, 8, 8]), torch.Size([2, 1, 8, 8]), 2.0)

    Some networks expect another range: torchxrayvision's take one channel from -1024 to 1024, which is mean=0.5, std=1/2048.

    >>> Images(np.full((3, 8, 8), 255, np.uint8), mean=(0.5,), std=(1 / 2048,))[:2].max().item()
    1024.0
    """

    pixels: npt.NDArray[Any] = field(repr=False)  # (m, height, width) or (m, height, width, 3), 8 bits; or float32 if `ready`
    channels: int = 1
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    rows: IntArray = field(default_factory=lambda: np.empty(0, np.int64), repr=False)  # (n,) the position of each row in `pixels`
    broken: Mapping[int, Broken] = field(default_factory=dict, repr=False)  # by position in the list of files
    ready: bool = False  # the rows are network inputs already
    how: Preprocessing | None = None  # how the images were resized and cropped
    transform: Transform | None = None
    fixed_channels: bool = False  # images were converted to `channels` before the transform
    files: Sequence[Source] = field(default=(), repr=False)  # of `pixels`, to try another preprocessing; not pickled

    def __post_init__(self) -> None:
        how = Preprocessing(channels=self.channels, mean=self.mean, std=self.std)
        object.__setattr__(self, "mean", how.mean)
        object.__setattr__(self, "std", how.std)
        if not len(self.rows):
            object.__setattr__(self, "rows", np.arange(len(self.pixels)))

    @classmethod
    @needing("reading images")
    def open(cls, sources: Sequence[Source], *, places: Sequence[str] | None = None, **decoding: Unpack[Decoding]) -> Images:
        """Decodes the images in `workers` threads (by default one per core, at most 16), or in as many processes if there are many.

        `size` stretches them to a square, by default of 224 pixels. `resize` is the length of the shorter side, or (height, width). `crop`
        is the side of the central square that is taken afterwards; "square" takes the largest one before resizing instead.
        `centre="floor"` starts the crop at the same pixel as transformers, which for some images is one before torchvision's. `preset`
        selects the values of torchvision, timm or torchxrayvision. A `transform`, a function from a Pillow image to a tensor, replaces all
        of these; `channels` then converts images to gray (1) or RGB (3) before it is called (see `decode`).

        Broken and missing images are listed in one error, with the `places` where they were named; `skip_broken` leaves them out and
        records them in `broken`. An image of more than `max_pixels` counts as broken. Only one image near that size is decoded at a time.
        Pixels stay in memory up to 256 MiB. If there are more, or a folder is named as `cache`, they lie in a mapped file in that folder
        (by default in the user's cache), and 8-bit pixels are reused as long as the files are the same. `progress` is called with the
        number of images done since the last call.
        """
        options: dict[str, Any] = dict(decoding)
        transform, skip_broken = options.pop("transform", None), options.pop("skip_broken", False)
        threads = max(1, options.pop("workers", None) or min(16, os.cpu_count() or 1))
        limit = ImageLimit(options.pop("max_pixels", MAX_PIXELS), threads)
        job = DecodingJob(sources, limit, options.pop("cache", None), options.pop("progress", None) or (lambda _: None))
        channels = options.get("channels")
        given = [name for name, value in options.items() if value is not None and len(np.atleast_1d(value)) and name != "channels"]
        if transform is not None and given:
            raise BadInput(f"a transform does all of the preprocessing; leave out {', '.join(given)}, or the transform")
        how = make_preprocessing(**options) if transform is None else Preprocessing(channels=channels or 1)
        raise_all([] if len(sources) else ["no image was given"])
        ready = transform is not None or how.preset == XRAY_PRESET
        if not ready:
            pixels, broken = _decode_pixels(job, how)
        else:
            from equipoise.data.decode import decode_for_xray_network

            if transform is not None:
                transform = Transform.of(transform)
                make, shape = _make_by_transform(job, transform, channels)
            else:
                make, shape = partial(decode_for_xray_network, side=how.shape[0], limit=limit), (1, *how.shape)
            pixels = float_rows((len(sources), *shape), job.cache)
            broken = fill(pixels, job, make)
        broken = {at: replace(fault, place=places[at] if places else "", name=str(sources[at])) for at, fault in sorted(broken.items())}
        if broken and (not skip_broken or len(broken) == len(sources)):
            advice = BROKEN_ADVICE if len(broken) < len(sources) else ""
            raise BadInput(*map(str, broken.values()), source=f"{len(sources):,} images", advice=advice)
        if broken:
            log.warning("left out %s of %s images; the first: %s", f"{len(broken):,}", f"{len(sources):,}", next(iter(broken.values())))
        return cls(
            pixels,
            *(how.channels, how.mean, how.std),
            rows=np.array([at for at in range(len(sources)) if at not in broken]),
            broken=broken,
            ready=ready,
            how=how if transform is None else None,
            transform=transform,
            fixed_channels=transform is not None and channels is not None,
            files=tuple(sources),
        )

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        left_out = f", {len(self.broken):,} left out" if self.broken else ""
        return f"Images({len(self):,} of shape {tuple(self.shape[1:])}{left_out})"

    @property
    def broken_kinds(self) -> dict[str, int]:
        """The number of broken images by the kind of their fault."""
        return count_by_kind(self.broken.values())

    @property
    def shape(self) -> torch.Size:
        """The shape of the network inputs: (n, channels, height, width)."""
        import torch

        return torch.Size((len(self), *(self.pixels.shape[1:] if self.ready else (self.channels, *self.pixels.shape[1:3]))))

    def described(self) -> str:
        """The shape of an image."""
        return f"images: {tuple(self.shape[1:])}"

    def tensor(self) -> Images:
        """The images themselves, which behave like a tensor (length, shape, dtype, indexing)."""
        return self

    def plain(self) -> Iterator[Tensor]:
        """Some of the images at a time, as tensors."""
        return (self[start : start + IMAGES_PER_PART] for start in range(0, len(self), IMAGES_PER_PART))

    def stored(self) -> tuple[str, Any, IntArray]:
        """The pixels, and the position of each row among them."""
        return f"images {self.pixels.shape[1:]} {self.pixels.dtype}", self.pixels, self.rows

    @property
    def nbytes(self) -> int:
        """The size of the stored rows in bytes."""
        return len(self) * int(np.prod(self.pixels.shape[1:])) * self.pixels.itemsize

    @property
    def dtype(self) -> torch.dtype:
        """The type of the tensors that indexing returns."""
        import torch

        return torch.float32

    def is_floating_point(self) -> bool:
        """True, as for the tensors that indexing returns."""
        return True

    def __getitem__(self, index: object) -> Tensor:
        """The normalised rows (b, channels, size, size); without the first axis for a single position."""
        rows = self.normalise(self.raw(index))
        return rows[0] if np.ndim(self.rows[_index(index)]) == 0 else rows

    def raw(self, index: object) -> Tensor:
        """The rows as stored: 8 bits (b, height, width) or (b, height, width, 3), or network inputs if `ready`."""
        import torch

        return torch.from_numpy(np.ascontiguousarray(self.pixels[np.atleast_1d(self.rows[_index(index)])]))

    def normalise(self, raw: Tensor, scale: tuple[Tensor, Tensor] | None = None) -> Tensor:
        """The network inputs for raw rows, computed on their device, so that only a quarter of the bytes are moved to it."""
        if self.ready:
            return raw
        mean, std = scale or self.scale(raw.device)
        return ((raw[:, None] if raw.ndim == 3 else raw.movedim(3, 1)).float() / 255 - mean) / std

    def gray(self, index: object) -> Tensor:
        """The rows as gray pictures (b, height, width) from 0 to 1; results of a transform are scaled by their own range."""
        rows = self.raw(index).float()
        if not self.ready:
            return (rows if rows.ndim == 3 else rows.mean(3)) / 255
        rows = rows.mean(1) if rows.ndim == 4 else rows
        low, high = rows.amin((1, 2), keepdim=True), rows.amax((1, 2), keepdim=True)
        return (rows - low) / (high - low).clamp(min=1e-12)

    def to_dict(self) -> dict[str, object] | None:
        """The preprocessing as options of `open`; None if it is unknown, as for the rows of a PyTorch Dataset."""
        if self.transform is not None:
            return {"transform": self.transform.to_dict(), "channels": self.channels if self.fixed_channels else None}
        if self.how is not None:
            return self.how.to_dict()
        return None if self.ready else Preprocessing(self.shape[-2:], channels=self.channels, mean=self.mean, std=self.std).to_dict()

    def scale(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation (channels, 1, 1) on a device, for `normalise`."""
        import torch

        mean, std = (torch.tensor(v, device=device)[:, None, None] for v in (self.mean, self.std))
        return mean, std

    def take(self, index: object) -> Images:
        """Some of the rows; the pixels are shared, not copied."""
        rows = self.rows[_index(index)]
        # An empty `rows` would stand for all pixels.
        return replace(self, rows=rows, pixels=self.pixels if len(rows) else self.pixels[:0])

    def __getstate__(self) -> dict[str, object]:
        """A mapped file is pickled as its name, and of pixels in memory only those of the rows."""
        if isinstance(self.pixels, np.memmap):
            return self.__dict__ | {"pixels": Path(str(self.pixels.filename)), "files": ()}
        return self.__dict__ | {"pixels": self.pixels[self.rows], "rows": np.arange(len(self)), "files": ()}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        if isinstance(state["pixels"], Path):
            self.__dict__["pixels"] = np.load(state["pixels"], mmap_mode="r")


def _index(index: object) -> Any:
    return index.cpu().numpy() if hasattr(index, "cpu") else index  # a tensor


@dataclass(frozen=True)
class DecodingJob:
    """The images to decode and how to do it; `progress` is called with the number of images done since the last call."""

    sources: Sequence[Source]
    limit: ImageLimit
    cache: str | Path | None
    progress: Callable[[int], None]


def _decode_pixels(job: DecodingJob, how: Preprocessing) -> tuple[npt.NDArray[Any], dict[int, Broken]]:
    """8-bit pixels, and the broken images. For a network with colour inputs they are stored as gray as long as no image has colours."""
    from equipoise.data.decode import ColourFound, decode

    done = reported = 0

    def report(more: int) -> None:
        """Reports only progress beyond that of an earlier pass."""
        nonlocal done, reported
        done += more
        if done > reported:
            job.progress(done - reported)
            reported = done

    def decode_all(colour: bool) -> tuple[npt.NDArray[Any], dict[int, Broken]]:
        make = partial(decode, how=how, limit=job.limit, colour=colour, gray_only=how.channels == 3 and not colour)
        shape = (len(job.sources), *how.shape, *((3,) if colour else ()))
        reporting = replace(job, progress=report)
        if job.cache is None and fits_in_memory(shape, np.uint8):
            out = np.zeros(shape, np.uint8)
            return out, fill(out, reporting, make)
        return cached(reporting, make, (how.resize, how.crop, how.interpolation, how.centre, how.channels), shape)

    try:
        return decode_all(colour=False)
    except ColourFound:
        done = 0
        return decode_all(colour=True)


def _make_by_transform(job: DecodingJob, transform: Transform, channels: int | None) -> tuple[Make, tuple[int, ...]]:
    """The function that makes a row by the user's transform, whose results must all have the shape of the first; and that shape."""
    from equipoise.data.decode import CHECKED, attempt, check_repeatable, collect_warnings, transformed

    def make(source: Source) -> Row:
        return transformed(source, transform, channels, job.limit)

    shape: tuple[int, ...] | None = None
    usable: list[int] = []
    with collect_warnings(job.limit, {}):
        for at, source in enumerate(job.sources):
            row, _ = attempt(source, make, job.limit, at)
            if row is not None and row.size:
                shape = shape or row.shape
                usable.append(at)
            if len(usable) == CHECKED:
                break
        check_repeatable(lambda at: make(job.sources[at]), usable, f"the transform {transform.named}")

    def make_in_shape(source: Source) -> Row:
        row = make(source)
        if row.shape != shape:
            raise BadTransform(
                f"the transform {transform.named} returned shape {row.shape} for {source} and {shape} for the first image. Return one "
                "shape, as with Resize((height, width)) or CenterCrop."
            )
        return row

    return make_in_shape, shape or (1,)


def fill(out: npt.NDArray[Any], job: DecodingJob, make: Make, workers: Executor | None = None) -> dict[int, Broken]:
    """Puts the row that `make` returns for each image into `out` (n, ...), in threads. Returns the broken images by position.

    With `workers`, processes for which `out` must be a mapped file, a thread decodes only the images that a process leaves or loses.
    """
    from equipoise.data.decode import collect_warnings  # late: a cohort without images does not need Pillow

    sources, limit = job.sources, job.limit
    broken: dict[int, Broken] = {}
    remarks: dict[int, str] = {}

    def fill_chunk(start: int) -> int:
        chunk: Chunk = dict(enumerate(sources[start : start + IMAGES_AT_ONCE], start))
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
        tasks = [pool.submit(fill_chunk, start) for start in range(0, len(sources), IMAGES_AT_ONCE)]
        try:
            for task in tasks:
                job.progress(task.result())
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    if remarked := sorted(remarks.keys() - broken.keys()):
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


def fits_in_memory(shape: tuple[int, ...], dtype: npt.DTypeLike) -> bool:
    """Whether rows of this shape and type are kept in memory by default."""
    return int(np.prod(shape)) * np.dtype(dtype).itemsize <= IN_MEMORY


def float_rows(shape: tuple[int, ...], cache: str | Path | None) -> npt.NDArray[np.float32]:
    """Zeros of this shape: in memory if they fit and no cache is named, otherwise in a mapped file that is removed after use."""
    if cache is None and fits_in_memory(shape, np.float32):
        return np.zeros(shape, np.float32)
    folder = ImageCache.folder(cache)
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
        return (time.time() - self.used) / 86_400

    @staticmethod
    def folder(folder: str | Path | None = None) -> Path:
        """The folder of cached images: the named one, or the default in the user's cache."""
        return Path(folder).expanduser() if folder else user_cache() / "images"

    @classmethod
    def found(cls, folder: str | Path | None = None) -> list[ImageCache]:
        """The image caches in a folder (by default the user's), most recently used first."""
        root, caches = cls.folder(folder), []
        for path in root.iterdir() if root.is_dir() else ():
            finished = bool(CACHED_PIXELS.fullmatch(path.name))
            if path.is_symlink() or not (finished or LEFTOVER.fullmatch(path.name)):  # Equipoise makes no links
                continue
            with suppress(FileNotFoundError):  # another process may remove one meanwhile
                state, images, size, faults = path.stat(), 0, 0, 0
                if finished:
                    with suppress(OSError, ValueError):  # damaged
                        images, size = np.load(path, mmap_mode="r").shape[:2]
                    faults = _faults_file(path).stat().st_size if _faults_file(path).is_file() else 0
                cache = cls(path, images, size, state.st_size + faults, state.st_mtime)
                # A recent leftover may still be written to.
                caches += [cache] if finished or cache.days > 1 else []
        return sorted(caches, key=lambda cache: -cache.used)

    @staticmethod
    def clear(found: Iterable[ImageCache]) -> int:
        """Removes these caches and returns the number of bytes freed. A process that has one open keeps it until it ends."""
        freed, problems = 0, []
        for cache in found:
            try:
                cache.path.unlink(missing_ok=True)
                _faults_file(cache.path).unlink(missing_ok=True)
                freed += cache.bytes
            except OSError as error:
                problems.append(f"cannot remove {cache.path}: {error.strerror or error}")
        raise_all(problems)
        return freed


def _faults_file(path: Path) -> Path:
    """The file next to the pixels with their checksum and a list of the broken images."""
    return path.with_suffix(".json")


def cached(job: DecodingJob, make: Make, settings: object, shape: tuple[int, ...]) -> tuple[Pixels, dict[int, Broken]]:
    """The pixels of this shape mapped from the cache, decoded into it first if they are not there; and the broken images by position.

    The representation of `settings` must distinguish all ways in which the pixels can be made.
    """
    sources, limit, folder = job.sources, job.limit, ImageCache.folder(job.cache)
    many = len(sources) >= MANY_IMAGES and limit.threads >= SEVERAL_THREADS
    with worker_processes(limit.threads) if many else nullcontext() as workers:

        def identify(start: int) -> list[bytes]:
            chunk = sources[start : start + IMAGES_AT_ONCE]
            if workers is not None:
                with suppress(BrokenExecutor, OSError):
                    return workers.submit(identify_files, chunk).result()
            return identify_files(chunk)

        key = blake2b(repr((DECODING_VERSION, settings, shape[1:], limit.pixels)).encode(), digest_size=16)
        with ThreadPoolExecutor(limit.threads) as pool:
            for identities in pool.map(identify, range(0, len(sources), IMAGES_AT_ONCE)):
                for identity in identities:
                    key.update(len(identity).to_bytes(4, "big") + identity)
        path = folder / f"{key.hexdigest()}.npy"
        stored = _read_cached(path, job, make, shape)
        if stored is not None:
            job.progress(len(sources))
        else:
            with atomic_path(path, follow=False) as temporary:
                check_disk_space(folder, shape, np.uint8)
                out = np.lib.format.open_memmap(temporary, mode="w+", dtype=np.uint8, shape=shape)
                broken = fill(out, job, make, workers)
                out.flush()
                faults = {str(row): [fault.kind, fault.reason] for row, fault in broken.items()}
                document = {"checksum": _checksum(out, faults), "broken": faults}
                del out
                with atomic_path(_faults_file(path), follow=False) as note:  # first, so that there are never pixels without it
                    note.write_text(json.dumps(document), encoding="utf-8")
            stored = np.load(path, mmap_mode="r"), broken
    with suppress(OSError):  # a read-only folder
        os.utime(path)
    if (total := sum(cache.bytes for cache in ImageCache.found(folder))) > LARGE_CACHE:
        decoding_log.warning(
            "the cached images in %s take %.0f GiB. To see them: equipoise data cache%s; to remove old ones: add --clear --older-than 30",
            *(folder, total / 2**30, "" if folder == ImageCache.folder() else f" --folder {folder}"),
        )
    return stored


def _read_cached(path: Path, job: DecodingJob, make: Make, shape: tuple[int, ...]) -> tuple[Pixels, dict[int, Broken]] | None:
    """The pixels in a cache and its broken images by position; None if it does not exist, is damaged or is out of date."""
    from equipoise.data.decode import attempt, collect_warnings

    if path.is_symlink() or _faults_file(path).is_symlink():  # not made by Equipoise: the link is replaced
        return None
    try:
        document = json.loads(_faults_file(path).read_text(encoding="utf-8"))
        pixels = np.load(path, mmap_mode="r")
        broken = {int(row): Broken(*map(str, fault)) for row, fault in document["broken"].items()}
        same = pixels.shape == shape and document["checksum"] == _checksum(pixels, document["broken"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, AttributeError, LookupError, EOFError, RecursionError, zipfile.BadZipFile):
        same = False
    if not same:
        decoding_log.warning(
            "the cached images in %s have changed since they were decoded, so they are decoded again from the image files", path
        )
        return None
    # A codec may have been installed since, so images that were broken are tried again.
    with collect_warnings(job.limit, {}):
        still_broken = all(attempt(job.sources[row], make, job.limit, row)[1] for row in broken)
    return (pixels, broken) if still_broken else None


def _checksum(pixels: Pixels, broken: Mapping[str, Sequence[str]]) -> str:
    """A checksum of the pixels and of the list of broken images. It detects damage, not a forger, who could write both files."""
    found = zlib.crc32(json.dumps([broken, pixels.dtype.str]).encode())
    flat = memoryview(np.ascontiguousarray(pixels).data).cast("B") if pixels.size else memoryview(b"")
    for start in range(0, len(flat), CHECKSUM_BLOCK):
        found = zlib.crc32(flat[start : start + CHECKSUM_BLOCK], found)
    return f"crc32:{found:08x}"


def identify_files(sources: Sequence[Source]) -> list[bytes]:
    """What distinguishes each file: its content if it is small, otherwise path, size and times, of which tools cannot set back the last.

    May run in a worker process.
    """
    identities = []
    for source in sources:
        state, fault = file_state(source), "no file"  # missing, or not a regular file: reading a named pipe would never end
        if state is not None and state.st_size <= SMALL_FILE:
            try:
                identities.append(blake2b(Path(source).read_bytes(), digest_size=16).digest())
                continue
            except (OSError, ValueError) as error:
                state, fault = None, type(error).__name__
        if state is None:
            identities.append(repr((str(source), fault)).encode())
        else:
            times = (state.st_mtime_ns, state.st_ctime_ns, state.st_ino)
            identities.append(repr((str(Path(source).absolute()), state.st_size, *times)).encode())
    return identities
