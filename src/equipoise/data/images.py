"""Images as network inputs: 8-bit pixels or the results of a transform, in memory or in a mapped file, made float batch by batch.

See `decode` for the decoding of one image, `preprocessing` for size and normalisation, `image_files` for matching rows to files.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np
import numpy.typing as npt

from equipoise.data.attribute import IntArray
from equipoise.data.image_files import BROKEN_ADVICE, BadTransform, Broken, ImageLimit, Source
from equipoise.data.image_rows import Job, cached, fill, fits_in_memory, float_rows
from equipoise.data.preprocessing import MAX_PIXELS, XRAY_PRESET, Geometry, Preprocessing, make_preprocessing, xray_resized
from equipoise.data.table import Inputs
from equipoise.errors import BadInput, raise_all

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from equipoise.data.decode import Row, Transform

log = logging.getLogger(__name__)


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
    geometry: Geometry | None = None  # how the images were resized and cropped
    preset: str | None = None
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
        sizing = {"size": size, "resize": resize, "crop": crop, "interpolation": interpolation, "centre": centre, "preset": preset}
        norm = {"mean": tuple(mean), "std": tuple(std)}
        if transform is not None and (unused := [name for name, value in (sizing | norm).items() if value not in (None, ())]):
            raise BadInput(f"a transform does all of the preprocessing; leave out {', '.join(unused)}, or the transform")
        how = Preprocessing(channels=channels or 1) if transform is not None else make_preprocessing(**sizing, channels=channels, **norm)  # type: ignore[arg-type]
        raise_all([] if len(sources) else ["no image was given"])
        job = Job(sources, ImageLimit(max_pixels, max(1, workers or min(16, os.cpu_count() or 1))), cache, progress)
        if transform is not None:
            images = _open_by_transform(job, transform, channels)
        elif preset == XRAY_PRESET:
            images = _open_for_torchxrayvision(job, how)
        else:
            images = _open_pixels(job, how)
        broken = {
            at: replace(fault, place=places[at] if places else "", name=str(sources[at])) for at, fault in sorted(images.broken.items())
        }
        if broken and (not skip_broken or len(broken) == len(sources)):
            advice = BROKEN_ADVICE if len(broken) < len(sources) else ""
            raise BadInput(*map(str, broken.values()), source=f"{len(sources):,} images", advice=advice)
        if broken:
            log.warning("left out %s of %s images; the first: %s", f"{len(broken):,}", f"{len(sources):,}", next(iter(broken.values())))
        rows = np.array([at for at in range(len(sources)) if at not in broken])
        return replace(images, rows=rows, broken=broken, files=tuple(sources))

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        left_out = f", {len(self.broken):,} left out" if self.broken else ""
        return f"Images({len(self):,} of shape {tuple(self.shape[1:])}{left_out})"

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

    plain = tensor

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
        return rows[0] if isinstance(index, (int, np.integer)) else rows

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
        if self.ready and self.preset is None:
            return None
        geometry = self.geometry or Geometry((int(self.shape[-2]), int(self.shape[-1])))
        return Preprocessing(geometry, self.channels, self.mean, self.std, self.preset).to_dict()

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


def _open_pixels(job: Job, how: Preprocessing) -> Images:
    """8-bit pixels. For a network with colour inputs they are stored as gray as long as no image has colours."""
    from equipoise.data.decode import ColourFound, decode

    done = reported = 0

    def report(more: int) -> None:
        """Reports only progress beyond that of an earlier pass."""
        nonlocal done, reported
        done += more
        if done > reported:
            job.report(done - reported)
            reported = done

    def decode_all(colour: bool) -> tuple[npt.NDArray[Any], dict[int, Broken]]:
        make = partial(decode, geometry=how.geometry, limit=job.limit, colour=colour, gray_only=how.channels == 3 and not colour)
        shape = (*how.geometry.shape, *((3,) if colour else ()))
        reporting = replace(job, progress=report)
        if job.cache is None and fits_in_memory(len(job.sources), shape, np.uint8):
            out = np.zeros((len(job.sources), *shape), np.uint8)
            return out, fill(out, reporting, make)
        return cached(reporting, make, (how.geometry, how.channels), shape)

    try:
        pixels, broken = decode_all(colour=False)
    except ColourFound:
        done = 0
        pixels, broken = decode_all(colour=True)
    return Images(pixels, how.channels, how.mean, how.std, broken=broken, geometry=how.geometry, preset=how.preset)


def _open_for_torchxrayvision(job: Job, how: Preprocessing) -> Images:
    """Float rows as torchxrayvision makes them."""
    from equipoise.data.decode import convert, open_image

    side = how.geometry.shape[0]

    def make(source: Source) -> Row:
        with open_image(source, job.limit) as image:
            return xray_resized(convert(image, "L"), side)

    pixels = float_rows((len(job.sources), 1, side, side), job.cache)
    broken = fill(pixels, job, make)
    return Images(pixels, 1, how.mean, how.std, broken=broken, ready=True, geometry=how.geometry, preset=how.preset)


def _open_by_transform(job: Job, given: Callable[[Any], Any] | Transform, channels: int | None) -> Images:
    """The results of the user's transform, which must all have the shape of the first."""
    from equipoise.data.decode import CHECKED, as_transform, attempt, check_repeatable, collect_warnings, transformed

    transform = as_transform(given)

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

    pixels = float_rows((len(job.sources), *(shape or (1,))), job.cache)
    broken = fill(pixels, job, make_in_shape)
    return Images(pixels, channels or 1, broken=broken, ready=True, transform=transform, fixed_channels=channels is not None)
