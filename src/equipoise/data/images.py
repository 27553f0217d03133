"""Images as network inputs: decoded once to 8 bits, or made by a transform; kept in memory or in a file, made float by the batch.

How one image is decoded: see `decode`; its size and normalisation: see `preprocessing`; how the rows of a frame find their files: see
`image_files`.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np
import numpy.typing as npt

from equipoise.data.attribute import IntArray
from equipoise.data.faults import MAX_PIXELS, BadTransform, Broken, Limit
from equipoise.data.image_cache import cache_folder, cached, fill, fits_in_memory, float_rows, name_of
from equipoise.data.image_files import Source
from equipoise.data.preprocessing import XRAY_PRESET, Geometry, Preprocessing, preprocessing_of
from equipoise.data.transforms import CHECKED, Transform, as_transform, check_repeatable, transformed, xray_resized
from equipoise.errors import BadInput, raise_all

if TYPE_CHECKING:
    import torch
    from torch import Tensor

log = logging.getLogger(__name__)
BROKEN_ADVICE = "Fix or remove those rows, or leave the images out: skip_broken=True (--skip-broken)."


class Decoding(TypedDict, total=False):
    """The options of `Images.open` that the makers of cohorts pass on."""

    size: int | None
    resize: int | tuple[int, int] | None
    crop: int | str | None
    interpolation: str | None
    centre: str | None
    channels: int | None
    mean: Sequence[float]
    std: Sequence[float]
    preset: str | None
    transform: Callable[[Any], Any] | Transform | None
    skip_broken: bool
    max_pixels: int
    cache: str | Path | None
    workers: int | None
    progress: Callable[[int], None] | None


@dataclass(frozen=True, eq=False)
class Images:
    """Rows of images that become float32 tensors (b, channels, height, width) when they are asked for by a slice, positions or a mask.

    >>> gray = Images(np.full((3, 8, 8), 255, np.uint8))
    >>> len(gray), gray.shape, gray[:2].shape, gray[:2].max().item()
    (3, torch.Size([3, 1, 8, 8]), torch.Size([2, 1, 8, 8]), 2.0)

    Other networks want other numbers: torchxrayvision's take one channel from -1024 to 1024, which is mean=0.5, std=1/2048.

    >>> Images(np.full((3, 8, 8), 255, np.uint8), mean=(0.5,), std=(1 / 2048,))[:2].max().item()
    1024.0
    """

    pixels: npt.NDArray[Any] = field(repr=False)  # (m, height, width) or (m, height, width, 3), 8 bits; or float32 rows that are `ready`
    channels: int = 1
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    rows: IntArray = field(default_factory=lambda: np.empty(0, np.int64), repr=False)  # (n,) where in `pixels` each row is
    broken: Mapping[int, Broken] = field(default_factory=dict, repr=False)  # position in the list that was opened: what was wrong with it
    ready: bool = False  # the rows are what the network takes
    geometry: Geometry | None = None  # how they came to their size
    preset: str | None = None
    transform: Transform | None = None
    fixed_channels: bool = False  # images were converted to so many channels before the transform
    files: Sequence[Source] = field(default=(), repr=False)  # of `pixels`, in this process, to try another preprocessing on

    def __post_init__(self) -> None:
        how = Preprocessing(channels=self.channels, mean=self.mean, std=self.std)
        object.__setattr__(self, "mean", how.mean)
        object.__setattr__(self, "std", how.std)
        if not len(self.rows):
            object.__setattr__(self, "rows", np.arange(len(self.pixels)))

    @classmethod
    def open(
        cls,
        sources: Sequence[Source],
        *,
        size: int | None = None,
        resize: int | tuple[int, int] | None = None,
        crop: int | str | None = None,
        interpolation: str | None = None,
        centre: str | None = None,
        channels: int | None = None,
        mean: Sequence[float] = (),
        std: Sequence[float] = (),
        preset: str | None = None,
        transform: Callable[[Any], Any] | Transform | None = None,
        places: Sequence[str] | None = None,
        skip_broken: bool = False,
        max_pixels: int = MAX_PIXELS,
        cache: str | Path | None = None,
        workers: int | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> Images:
        """The images in these files, decoded by `workers` threads (by default one per core, at most 16), or by as many processes where
        images are many; `progress` gets how many more are done.

        `size` stretches them to a square, by default of 224 pixels. `resize` is the length of the shorter side, or (height, width), `crop`
        the side of the central square that is taken then, or "square": the largest one, taken before; `centre="floor"` begins it where
        transformers does, which is one pixel before torchvision's crop of some images. `preset` names the values of
        torchvision, timm or torchxrayvision. With `transform`, a function from a Pillow image to a tensor does all that instead;
        `channels` then says whether images are converted to gray (1) or RGB (3) before (see `transforms`).

        Broken and missing ones are listed in one error, with the `places` where they were named; `skip_broken` leaves them out and lists
        them in `broken`. An image of more than `max_pixels` is not decoded and counts as broken. No more than one image of that size is
        decoded at a time.
        The pixels stay in memory up to 256 MiB. Beyond that, and wherever a folder is named as `cache`, they lie in a file in it (by
        default in the user's cache) that is mapped, not read; pixels of 8 bits are found again as long as the files are the same.
        """
        given = {"size": size, "resize": resize, "crop": crop, "interpolation": interpolation, "centre": centre, "preset": preset}
        norm = {"mean": tuple(mean), "std": tuple(std)}
        if transform is not None and (taken := [name for name, value in (given | norm).items() if value not in (None, ())]):
            raise BadInput(f"a transform does all of the preprocessing; leave out {', '.join(taken)}, or the transform")
        how = Preprocessing(channels=channels or 1) if transform is not None else preprocessing_of(**given, channels=channels, **norm)  # type: ignore[arg-type]
        raise_all([] if len(sources) else ["no image was given"])
        limit = Limit(max_pixels, max(1, workers or min(16, os.cpu_count() or 1)))
        work = _Work(sources, limit, cache, progress)
        if transform is not None:
            whole = _of_transform(work, as_transform(transform), channels)
        elif preset == XRAY_PRESET:
            whole = _of_preset(work, how)
        else:
            whole = _of_pixels(work, how)
        named = {
            at: replace(one, place=places[at] if places else "", name=name_of(sources[at], at)) for at, one in sorted(whole.broken.items())
        }
        if named and (not skip_broken or len(named) == len(sources)):
            advice = [BROKEN_ADVICE] if len(named) < len(sources) else []
            raise BadInput(*map(str, named.values()), *advice, source=f"{len(sources):,} images")
        if named:
            log.warning("left out %s of %s images; the first: %s", f"{len(named):,}", f"{len(sources):,}", next(iter(named.values())))
        rows = np.array([k for k in range(len(sources)) if k not in named])
        files = () if any(isinstance(source, bytes) for source in sources) else tuple(sources)
        return replace(whole, rows=rows, broken=named, files=files)

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        left_out = f", {len(self.broken):,} left out" if self.broken else ""
        return f"Images({len(self):,} of shape {tuple(self.shape[1:])}{left_out})"

    @property
    def shape(self) -> torch.Size:
        """(n, channels, height, width), as the network sees them."""
        import torch

        return torch.Size((len(self), *(self.pixels.shape[1:] if self.ready else (self.channels, *self.pixels.shape[1:3]))))

    @property
    def nbytes(self) -> int:
        """Bytes of the rows as they are kept."""
        return len(self) * int(np.prod(self.pixels.shape[1:])) * self.pixels.itemsize

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
        """The rows as they are kept: 8 bits (b, height, width) or (b, height, width, 3), or what the network takes."""
        import torch

        return torch.from_numpy(np.ascontiguousarray(self.pixels[np.atleast_1d(self.rows[_index(index)])]))

    def normalise(self, raw: Tensor, scale: tuple[Tensor, Tensor] | None = None) -> Tensor:
        """What the network sees of raw rows, on the device where they are: a quarter of the bytes travel that way."""
        if self.ready:
            return raw
        mean, std = scale or self.scale(raw.device)
        return ((raw[:, None] if raw.ndim == 3 else raw.movedim(3, 1)).float() / 255 - mean) / std

    def gray(self, index: object) -> Tensor:
        """The rows as pictures (b, height, width) from 0 to 1; those of a transform by their own range."""
        rows = self.raw(index).float()
        if not self.ready:
            return (rows if rows.ndim == 3 else rows.mean(3)) / 255
        rows = rows.mean(1) if rows.ndim == 4 else rows
        low, high = rows.amin((1, 2), keepdim=True), rows.amax((1, 2), keepdim=True)
        return (rows - low) / (high - low).clamp(min=1e-12)

    def to_dict(self) -> dict[str, object] | None:
        """How pixels became inputs, as plain values that `open` takes; None where that is not known, as of a data set's rows."""
        if self.transform is not None:
            return {"transform": self.transform.to_dict(), "channels": self.channels if self.fixed_channels else None}
        if self.ready and self.preset is None:
            return None
        geometry = self.geometry or Geometry((int(self.shape[-2]), int(self.shape[-1])))
        return Preprocessing(geometry, self.channels, self.mean, self.std, self.preset).to_dict()

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
            return self.__dict__ | {"pixels": Path(str(self.pixels.filename)), "files": ()}
        return self.__dict__ | {"pixels": self.pixels[self.rows], "rows": np.arange(len(self)), "files": ()}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        if isinstance(state["pixels"], Path):
            self.__dict__["pixels"] = np.load(state["pixels"], mmap_mode="r")


def _index(index: object) -> Any:
    return index.cpu().numpy() if hasattr(index, "cpu") else index  # a tensor


@dataclass(frozen=True)
class _Work:
    """The images to open, and how."""

    sources: Sequence[Source]
    limit: Limit
    cache: str | Path | None
    progress: Callable[[int], None] | None

    def floats(
        self, make: Callable[[Source], npt.NDArray[np.float32]], shape: tuple[int, ...]
    ) -> tuple[npt.NDArray[np.float32], dict[int, Broken]]:
        """Float rows of these images, and what was wrong, by position."""
        out = float_rows((len(self.sources), *shape), self.cache)
        return out, fill(out, self.sources, make, self.limit, self.progress)


def _of_pixels(work: _Work, how: Preprocessing) -> Images:
    """Pixels of 8 bits. Those of a network that takes colour are kept as gray as long as no image has colours."""
    from equipoise.data.decode import Coloured, decode

    done = [0]

    def counted(more: int) -> None:
        done[0] += more
        if work.progress is not None:
            work.progress(more)

    def made(colour: bool, progress: Callable[[int], None]) -> tuple[npt.NDArray[Any], dict[int, Broken]]:
        make = partial(decode, geometry=how.geometry, limit=work.limit, colour=colour, gray_only=how.channels == 3 and not colour)
        shape = (*how.geometry.shape, *((3,) if colour else ()))
        if work.cache is None and fits_in_memory(len(work.sources), shape, np.uint8):
            out = np.zeros((len(work.sources), *shape), np.uint8)
            return out, fill(out, work.sources, make, work.limit, progress)
        return cached(work.sources, make, (how.geometry, how.channels), shape, cache_folder(work.cache), work.limit, progress)

    try:
        pixels, broken = made(False, counted)
    except Coloured:
        seen, done[0] = done[0], 0

        def counted_again(more: int) -> None:
            before, done[0] = done[0], done[0] + more
            if work.progress is not None and done[0] > seen:
                work.progress(done[0] - max(before, seen))

        pixels, broken = made(True, counted_again)
    return Images(pixels, how.channels, how.mean, how.std, broken=broken, geometry=how.geometry, preset=how.preset)


def _of_preset(work: _Work, how: Preprocessing) -> Images:
    """Rows as torchxrayvision makes them, in floating point."""
    from equipoise.data.decode import opened_as

    side = how.geometry.shape[0]

    def make(source: Source) -> npt.NDArray[np.float32]:
        with opened_as(source, "L", work.limit) as image:
            return xray_resized(image, side)

    pixels, broken = work.floats(make, (1, side, side))
    return Images(pixels, 1, how.mean, how.std, broken=broken, ready=True, geometry=how.geometry, preset=how.preset)


def _of_transform(work: _Work, transform: Transform, channels: int | None) -> Images:
    """Rows as the user's transform makes them; all of the shape of the first."""
    from equipoise.data.decode import fault, watching

    def make(source: Source) -> npt.NDArray[np.float32]:
        return transformed(source, transform, channels, work.limit)

    shape: tuple[int, ...] | None = None
    usable: list[int] = []
    for at, source in enumerate(work.sources):
        first: list[tuple[int, ...]] = []

        def see(one: Source, first: list[tuple[int, ...]] = first) -> npt.NDArray[np.float32]:
            first.append((found := make(one)).shape)
            return found.reshape(-1)[:1]

        with watching(work.limit, {threading.get_ident(): at}, {}):
            if fault(source, see, np.empty(1, np.float32), work.limit) is None:
                shape = shape or first[0]
                usable.append(at)
        if len(usable) == CHECKED:
            break
    with watching(work.limit, {threading.get_ident(): 0}, {}):
        check_repeatable(lambda at: make(work.sources[at]), usable, f"the transform {transform.named}")

    def of_shape(source: Source) -> npt.NDArray[np.float32]:
        found = make(source)
        if found.shape != shape:
            where = "" if isinstance(source, bytes) else f" for {source}"
            raise BadTransform(
                f"the transform {transform.named} returned shape {found.shape}{where} and {shape} for the first image. Return one shape, "
                "as with Resize((height, width)) or CenterCrop."
            )
        return found

    pixels, broken = work.floats(of_shape, shape or (1,))
    return Images(pixels, channels or 1, broken=broken, ready=True, transform=transform, fixed_channels=channels is not None)
