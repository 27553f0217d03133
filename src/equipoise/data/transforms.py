"""A transform of the user's, from an image to what the network takes: which kind of image it gets, and what it may return.

A function gets a Pillow image, unless its parameter is annotated as a path or an array. A transform of MONAI gets the path if it begins
with LoadImage, otherwise an array. The result is a tensor or array of floating-point numbers without NaN, of one shape for all images, and
the same each time. torchxrayvision's own resizing is here too, since it is no resizing of Pillow's.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from equipoise.data.faults import BadImage, BadTransform, Limit
from equipoise.data.image_files import Source
from equipoise.errors import first_line

if TYPE_CHECKING:
    from PIL import Image

Rows = npt.NDArray[np.float32]
CHECKED = 8  # images on which a transform is called three times: a flip of every second image goes unnoticed in 1 of 65,536 cases
CALLS = 3
RANDOM = ("Rand", "AutoAugment", "TrivialAugment", "AugMix", "ColorJitter", "GaussianNoise")  # how names of random ones begin


@dataclass(frozen=True, eq=False)
class Transform:
    """A callable from an image to an array, and where its code is."""

    function: Callable[[Any], Any] = field(repr=False)
    named: str  # as on the command line, or the name of a callable in Python
    path: Path | None = None  # of its file; None for a callable in this process
    sha256: str = ""
    takes: str = "image"

    def to_dict(self) -> dict[str, object]:
        """Plain values: where the code is and its checksum."""
        return {"named": self.named, "path": None if self.path is None else str(self.path), "sha256": self.sha256}


_one_at_a_time = threading.Lock()  # nothing is known of whether the user's code may run in several threads


def as_transform(given: object, named: str | None = None, path: Path | None = None, sha256: str = "") -> Transform:
    """The transform that a callable is; an error where it is none or is random."""
    if isinstance(given, Transform):
        return given
    name = named or str(getattr(given, "__name__", type(given).__name__))
    if not callable(given):
        raise BadTransform(
            f"the transform {name} is of type {type(given).__name__}. Name a function or object that is called with an image."
        )
    if random := sorted({type(part).__name__ for part in _parts(given) if type(part).__name__.startswith(RANDOM)}):
        raise BadTransform(
            f"the transform {name} is random: it contains {', '.join(random)}. Name the transform for evaluation, not the one for training."
        )
    return Transform(given, name, path, sha256, _taken(given))


def _parts(transform: object, depth: int = 0) -> Iterator[object]:
    """The transform and those that it is composed of."""
    yield transform
    inner = getattr(transform, "transforms", None)
    if isinstance(inner, (list, tuple)) and depth < 10:
        for part in inner:
            yield from _parts(part, depth + 1)


def _taken(given: Any) -> str:
    """What the transform is called with."""
    parts = list(_parts(given))
    if type(given).__module__.partition(".")[0] == "monai":
        return "path" if any(type(part).__name__ == "LoadImage" for part in parts) else "array"
    try:
        first = next(iter(inspect.signature(given, eval_str=True).parameters.values()), None)
    except (ValueError, TypeError, NameError):  # a signature that cannot be read
        return "image"
    told = "" if first is None or first.annotation is first.empty else str(getattr(first.annotation, "__name__", first.annotation))
    return "path" if told in ("str", "Path", "PathLike") else "array" if "ndarray" in told or "NDArray" in told else "image"


def transformed(source: Source, transform: Transform, channels: int | None, limit: Limit) -> Rows:
    """What a transform makes of one image; converted to gray (1) or RGB (3) first where `channels` says so."""
    from equipoise.data.decode import opened

    if transform.takes == "path":
        if isinstance(source, bytes):
            raise BadTransform(f"the transform {transform.named} takes a path, and there are no files")
        if not Path(source).is_file():
            raise BadImage("missing", "no such file")
        return _called(transform, str(source), source)
    with opened(source, limit, upright=False) as image:
        shown = image if channels is None else image.convert({1: "L", 3: "RGB"}[channels])
        given: Image.Image | npt.NDArray[Any] = np.array(shown) if transform.takes == "array" else shown.copy()
        return _called(transform, given, source)


def _called(transform: Transform, given: object, source: Source) -> Rows:
    where = "" if isinstance(source, bytes) else f" on {source}"
    try:
        with _one_at_a_time:
            found = transform.function(given)
    except Exception as error:  # the user's code may raise anything
        reason = f"{type(error).__name__}: {first_line(error)}"
        kind = {"image": f"a Pillow image of mode {getattr(given, 'mode', '')}", "array": "an array", "path": "a path"}[transform.takes]
        raise BadTransform(
            f"the transform {transform.named} raised {reason}{where}. It was called with {kind}; channels=1 or 3 (--channels) "
            "converts images to gray or RGB first, and an annotation of its parameter (np.ndarray, Path) asks for another kind."
        ) from error
    return as_row(found, f"the transform {transform.named}", where)


def as_row(found: object, what: str, where: str) -> Rows:
    """A tensor or array of one row as float32, or an error that says what is wrong with it."""
    if hasattr(found, "detach"):
        found = found.detach().cpu().numpy()
    if not isinstance(found, np.ndarray) or found.ndim < 1:
        raise BadTransform(
            f"{what} returned {type(found).__name__}{where}; expected a tensor or array, as in shape (channels, height, width)"
        )
    if found.dtype.kind != "f":
        raise BadTransform(
            f"{what} returned {found.dtype} numbers{where}; expected floating-point numbers. Convert and scale them, as ToTensor does."
        )
    row = found.astype(np.float32)
    if bad := int((~np.isfinite(row)).sum()):
        raise BadTransform(f"{what} returned NaN or infinity for {bad:,} of {row.size:,} numbers{where}. Correct it, or leave the row out.")
    return row


def check_repeatable(call: Callable[[int], Rows], rows: Sequence[int], what: str) -> None:
    """Raises where the same row does not come out the same each time, as under augmentation."""
    for row in rows:
        first = call(row)
        for _ in range(CALLS - 1):
            again = call(row)
            if again.shape != first.shape or not np.array_equal(again, first):
                raise BadTransform(
                    f"{what} is random: called again on row {row + 1}, it gave another result. An audit needs the preprocessing of "
                    "evaluation, without augmentation; name that one."
                )


def xray_resized(image: Image.Image, size: int) -> Rows:
    """A gray image (1, size, size) as torchxrayvision's XRayCenterCrop and XRayResizer make it: from -1024 to 1024, the central square.

    Its resizing is that of scikit-image: a Gaussian filter, then linear interpolation, with 0 outside of the image.
    """
    from scipy import ndimage

    pixels = (2 * (np.asarray(image, dtype=np.float32) / 255) - 1) * 1024
    height, width = pixels.shape
    side = min(height, width)
    top, left = height // 2 - side // 2, width // 2 - side // 2
    pixels = pixels[top : top + side, left : left + side]
    low, high = float(pixels.min()), float(pixels.max())
    if side > size:
        pixels = ndimage.gaussian_filter(pixels, (side / size - 1) / 2, mode="constant")
    if side != size:
        pixels = ndimage.zoom(pixels, size / side, order=1, mode="grid-constant", grid_mode=True)
        if pixels.min() <= 0 <= pixels.max():  # what is outside of the image counts as 0
            low, high = min(low, 0.0), max(high, 0.0)
        pixels = pixels.clip(low, high)
    return pixels[None].astype(np.float32)
