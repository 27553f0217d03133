"""Images as network inputs: decoded once to 8-bit gray at one size, kept as bytes in memory or in a file, made float by the batch.

How one image is decoded: see `decode`; how the rows of a frame find their files: see `image_files`.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np

from equipoise.data.attribute import IntArray
from equipoise.data.faults import MAX_PIXELS, Broken, Limit
from equipoise.data.files import replacing
from equipoise.data.image_cache import cache_folder, mark_used
from equipoise.data.image_files import Pixels, Source, file_state
from equipoise.errors import BadInput, raise_all

if TYPE_CHECKING:
    import torch
    from torch import Tensor

log = logging.getLogger(__name__)
warned = logging.getLogger(f"{__name__}.decoding")


class Norm(TypedDict):
    """How pixels in [0, 1] become what a network sees: (pixel - mean) / std, one number per channel."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


class Decoding(TypedDict, total=False):
    """The options of `Images.open` that the makers of cohorts pass on."""

    size: int
    channels: int
    mean: Sequence[float]
    std: Sequence[float]
    skip_broken: bool
    max_pixels: int
    cache: str | Path | None
    workers: int | None
    progress: Callable[[int], None] | None


XRAY_RANGE = Norm(mean=(0.5,), std=(1 / 2048,))  # -1024 to 1024, as torchxrayvision's networks are trained on, with one channel
UNIT_RANGE = Norm(mean=(0.0,), std=(1.0,))  # 0 to 1
NORMS = {  # channels: mean and standard deviation of pixels in [0, 1]; those of ImageNet for 3, round numbers for 1
    1: ((0.5,), (0.25,)),
    3: ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
}
IN_MEMORY = 2**28  # bytes of pixels that are kept in memory unless a cache is named: 5,349 images at 224 px
SMALL = 2**16  # bytes of a file that is known by its content; a larger one by path, length and times of change, to spare reading it
BROKEN_ADVICE = "Fix or remove those rows, or leave the images out: skip_broken=True (--skip-broken)."
CHUNK = 32  # images that one thread takes at a time
VERSION = 2  # of the decoding; another one makes other pixels


@dataclass(frozen=True, eq=False)
class Images:
    """Rows of images that become float32 tensors (b, channels, size, size) when they are asked for by a slice, positions or a mask.

    >>> gray = Images(np.full((3, 8, 8), 255, np.uint8))
    >>> len(gray), gray.shape, gray[:2].shape, gray[:2].max().item()
    (3, torch.Size([3, 1, 8, 8]), torch.Size([2, 1, 8, 8]), 2.0)

    Other networks want other numbers: torchxrayvision's take one channel from -1024 to 1024, which is mean=0.5, std=1/2048.

    >>> Images(np.full((3, 8, 8), 255, np.uint8), **XRAY_RANGE)[:2].max().item()
    1024.0
    """

    pixels: Pixels = field(repr=False)  # (m, size, size), in memory or mapped from a file
    channels: int = 1
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    rows: IntArray = field(default_factory=lambda: np.empty(0, np.int64), repr=False)  # (n,) where in `pixels` each row is
    broken: Mapping[int, Broken] = field(default_factory=dict, repr=False)  # position in the list that was opened: what was wrong with it

    def __post_init__(self) -> None:
        problems = [] if self.channels in NORMS else [f"channels must be one of {', '.join(map(str, NORMS))}; got {self.channels}"]
        for at, name in enumerate(("mean", "std")):
            if not problems and not getattr(self, name):
                object.__setattr__(self, name, NORMS[self.channels][at])
            if not problems and len(getattr(self, name)) != self.channels:
                problems.append(f"{name} must hold one number per channel, {self.channels}; got {getattr(self, name)}")
        if any(not s > 0 for s in self.std):
            problems.append(f"std must be positive; got {self.std}")
        raise_all(problems)
        if not len(self.rows):
            object.__setattr__(self, "rows", np.arange(len(self.pixels)))

    @classmethod
    def open(
        cls,
        sources: Sequence[Source],
        *,
        size: int = 224,
        channels: int = 1,
        mean: Sequence[float] = (),
        std: Sequence[float] = (),
        places: Sequence[str] | None = None,
        skip_broken: bool = False,
        max_pixels: int = MAX_PIXELS,
        cache: str | Path | None = None,
        workers: int | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> Images:
        """The images in these files, decoded by `workers` threads (by default one per core); `progress` gets how many more are done.

        Broken and missing ones are listed in one error, with the `places` where they were named; `skip_broken` leaves them out and lists
        them in `broken`. An image of more than `max_pixels` is not decoded and counts as broken. No more than one image of that size is
        decoded at a time.
        The pixels stay in memory up to 256 MiB. Beyond that, and wherever a folder is named as `cache`, they lie in a file in it (by
        default in the user's cache) that is mapped, not read, and found again as long as the files are the same.
        """
        checked = cls(np.empty((0, 1, 1), np.uint8), channels, tuple(mean), tuple(std))
        problems = [] if size >= 1 else [f"size must be at least 1 pixel; got {size}"]
        if not len(sources):
            problems.append("no image was given")
        raise_all(problems)
        limit = Limit(max_pixels, max(1, workers or min(16, os.cpu_count() or 1)))
        if cache is None and len(sources) * size * size <= IN_MEMORY:
            pixels = np.zeros((len(sources), size, size), np.uint8)
            broken = _fill(pixels, sources, limit, progress)
        else:
            pixels, broken = _cached(sources, size, cache_folder(cache), limit, progress)
        named = {at: replace(one, place=places[at] if places else "", name=_name(sources[at], at)) for at, one in sorted(broken.items())}
        if named and (not skip_broken or len(named) == len(sources)):
            advice = [BROKEN_ADVICE] if len(named) < len(sources) else []
            raise BadInput(*map(str, named.values()), *advice, source=f"{len(sources):,} images")
        if named:
            log.warning("left out %s of %s images; the first: %s", f"{len(named):,}", f"{len(sources):,}", next(iter(named.values())))
        return replace(checked, pixels=pixels, rows=np.array([k for k in range(len(sources)) if k not in broken]), broken=named)

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        left_out = f", {len(self.broken):,} left out" if self.broken else ""
        return f"Images({len(self):,} of shape {tuple(self.shape[1:])}{left_out})"

    @property
    def shape(self) -> torch.Size:
        """(n, channels, size, size), as the network sees them."""
        import torch

        return torch.Size((len(self), self.channels, *self.pixels.shape[1:]))

    @property
    def dtype(self) -> torch.dtype:
        """That of the tensors that come out."""
        import torch

        return torch.float32

    def is_floating_point(self) -> bool:
        """True, as for the tensors that come out."""
        return True

    def __getitem__(self, index: object) -> Tensor:
        """The normalised rows (b, channels, size, size); without the first axis for a single position."""
        found = self.normalise(self.raw(index))
        return found[0] if isinstance(index, (int, np.integer)) else found

    def raw(self, index: object) -> Tensor:
        """The rows as they are kept (b, size, size), uint8."""
        import torch

        return torch.from_numpy(np.ascontiguousarray(self.pixels[np.atleast_1d(self.rows[_index(index)])]))

    def normalise(self, raw: Tensor, scale: tuple[Tensor, Tensor] | None = None) -> Tensor:
        """What the network sees of raw rows, on the device where they are: a quarter of the bytes travel that way."""
        mean, std = scale or self.scale(raw.device)
        return (raw[:, None].float() / 255 - mean) / std

    def scale(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of the channels (channels, 1, 1), for `normalise` on that device."""
        import torch

        mean, std = (torch.tensor(v, device=device)[:, None, None] for v in (self.mean, self.std))
        return mean, std

    def take(self, index: object) -> Images:
        """Some of the rows; the pixels are shared, not copied."""
        rows = self.rows[_index(index)]
        # Without rows of its own a value would have them all.
        return replace(self, rows=rows, pixels=self.pixels if len(rows) else self.pixels[:0])

    def __getstate__(self) -> dict[str, object]:
        """A mapped file travels to another process as its name; of pixels in memory, those of the rows do."""
        if isinstance(self.pixels, np.memmap):
            return self.__dict__ | {"pixels": Path(str(self.pixels.filename))}
        return self.__dict__ | {"pixels": self.pixels[self.rows], "rows": np.arange(len(self))}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        if isinstance(state["pixels"], Path):
            self.__dict__["pixels"] = np.load(state["pixels"], mmap_mode="r")


def _fill(out: Pixels, sources: Sequence[Source], limit: Limit, progress: Callable[[int], None] | None) -> dict[int, Broken]:
    """Decodes into `out` (n, size, size); what was wrong, by position. Pillow lets go of Python's lock while it decodes and resizes."""
    from equipoise.data.decode import fault, watching  # brings Pillow, which a cohort without images does not need

    broken: dict[int, Broken] = {}
    doing: dict[int, int] = {}  # thread: row
    remarks: dict[int, str] = {}

    def work(start: int) -> int:
        rows = range(start, min(start + CHUNK, len(sources)))
        for row in rows:
            doing[threading.get_ident()] = row
            wrong = fault(sources[row], out.shape[1], out[row], limit)
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
        first = f"{_name(sources[remarked[0]], remarked[0])}: {remarks[remarked[0]]}"
        warned.warning("%s of %s images were decoded with a warning; the first: %s", f"{len(remarked):,}", f"{len(sources):,}", first)
    return broken


def _cached(
    sources: Sequence[Source], size: int, folder: Path, limit: Limit, progress: Callable[[int], None] | None
) -> tuple[Pixels, dict[int, Broken]]:
    """The pixels mapped from the cache, decoded into it first if they are not there; and what was wrong, by position."""
    from equipoise.data.decode import fault, watching

    key = blake2b(repr((VERSION, size, limit.pixels)).encode(), digest_size=16)
    with ThreadPoolExecutor(limit.threads) as pool:
        for identity in pool.map(_identity, sources, chunksize=CHUNK):
            key.update(len(identity).to_bytes(4, "big") + identity)
    path, notes = folder / f"{key.hexdigest()}.npy", folder / f"{key.hexdigest()}.json"
    with suppress(OSError, ValueError, TypeError, AttributeError):  # not there, or damaged: it is made again
        broken = {int(at): Broken(*map(str, one)) for at, one in json.loads(notes.read_text(encoding="utf-8")).items()}
        if path.is_symlink() or notes.is_symlink():  # somebody else's file: pixels are made again, in place of the link
            raise FileNotFoundError(path)
        pixels = np.load(path, mmap_mode="r")
        blank = np.empty((size, size), np.uint8)
        # A codec may have been installed since: what is broken must still be.
        with watching(limit, dict.fromkeys([threading.get_ident()], 0), {}):
            still = all(fault(sources[at], size, blank, limit) for at in broken)
        if pixels.shape == (len(sources), size, size) and pixels.dtype == np.uint8 and still:
            if progress is not None:
                progress(len(sources))
            mark_used(path)
            return pixels, broken
    needed = len(sources) * size * size
    with replacing(path, follow=False) as temporary:
        free = shutil.disk_usage(folder).free
        if free < needed:  # writing to a mapped file on a full disk kills the process
            raise BadInput(
                f"{len(sources):,} images at {size} px need {needed / 2**30:.2f} GiB in {folder}, where {free / 2**30:.2f} GiB are free. "
                "Name another folder (cache=, or EQUIPOISE_CACHE), or use a smaller size."
            )
        store = np.lib.format.open_memmap(temporary, mode="w+", dtype=np.uint8, shape=(len(sources), size, size))
        broken = _fill(store, sources, limit, progress)
        store.flush()
        del store
        with replacing(notes, follow=False) as listed:  # first, so that pixels never lie there without them
            listed.write_text(json.dumps({at: [one.kind, one.reason] for at, one in broken.items()}), encoding="utf-8")
    mark_used(path)
    return np.load(path, mmap_mode="r"), broken


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


def _index(index: object) -> Any:
    return index.cpu().numpy() if hasattr(index, "cpu") else index  # a tensor


def _name(source: Source, at: int) -> str:
    return f"image {at + 1}" if isinstance(source, bytes) else str(source)
