"""A user's transform from an image to the input of the network: the kind of image that it is called with, and what it may return.

A function is called with a Pillow image, unless its parameter is annotated as a path or an array. A MONAI transform is called with the path
if it contains LoadImage, otherwise with an array. The result is a tensor or array of floating-point numbers without NaN, of one shape for
all images, and the same each time.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from equipoise.data.faults import BadImage, BadTransform, ImageLimit
from equipoise.data.image_files import Source
from equipoise.errors import first_line

Row = npt.NDArray[np.float32]  # the network input of one image
CHECKED = 8  # images on which a transform is called three times: a random flip goes unnoticed in 1 of 65,536 cases
CALLS = 3
RANDOM = ("Rand", "AutoAugment", "TrivialAugment", "AugMix", "ColorJitter", "GaussianNoise")  # beginnings of the names of random transforms


@dataclass(frozen=True, eq=False)
class Transform:
    """A callable from an image to an array, and the file of its code."""

    function: Callable[[Any], Any] = field(repr=False)
    named: str  # as given on the command line, or the name of the callable
    path: Path | None = None  # None for a callable of this process
    sha256: str = ""
    takes: str = "image"  # or "array" or "path"

    def to_dict(self) -> dict[str, object]:
        """The name, file and checksum as plain values."""
        return {"named": self.named, "path": None if self.path is None else str(self.path), "sha256": self.sha256}


_one_at_a_time = threading.Lock()  # the user's code may not be safe to run in several threads


def as_transform(given: object, named: str | None = None, path: Path | None = None, sha256: str = "") -> Transform:
    """The callable as a `Transform`. Raises `BadTransform` if it cannot be called or contains random transforms."""
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
    return Transform(given, name, path, sha256, _argument_kind(given))


def _parts(transform: object, depth: int = 0) -> Iterator[object]:
    """The transform and the transforms that it is composed of."""
    yield transform
    inner = getattr(transform, "transforms", None)
    if isinstance(inner, (list, tuple)) and depth < 10:
        for part in inner:
            yield from _parts(part, depth + 1)


def _argument_kind(transform: Any) -> str:
    """What the transform is called with: an "image", an "array" or a "path"."""
    if type(transform).__module__.partition(".")[0] == "monai":
        return "path" if any(type(part).__name__ == "LoadImage" for part in _parts(transform)) else "array"
    try:
        first = next(iter(inspect.signature(transform, eval_str=True).parameters.values()), None)
    except (ValueError, TypeError, NameError):  # a signature that cannot be read
        return "image"
    if first is None or first.annotation is first.empty:
        return "image"
    annotation = str(getattr(first.annotation, "__name__", first.annotation))
    if annotation in ("str", "Path", "PathLike"):
        return "path"
    return "array" if "ndarray" in annotation or "NDArray" in annotation else "image"


def transformed(source: Source, transform: Transform, channels: int | None, limit: ImageLimit) -> Row:
    """The result of a transform on one image, which is first converted to gray (`channels` 1) or RGB (3) unless `channels` is None."""
    from equipoise.data.decode import open_image

    if transform.takes == "path":
        if not Path(source).is_file():
            raise BadImage("missing", "no such file")
        return _call(transform, str(source), source)
    with open_image(source, limit, upright=False) as image:
        converted = image if channels is None else image.convert({1: "L", 3: "RGB"}[channels])
        return _call(transform, np.array(converted) if transform.takes == "array" else converted.copy(), source)


def _call(transform: Transform, argument: object, source: Source) -> Row:
    try:
        with _one_at_a_time:
            result = transform.function(argument)
    except Exception as error:  # the user's code may raise anything
        reason = f"{type(error).__name__}: {first_line(error)}"
        kind = {"image": f"a Pillow image of mode {getattr(argument, 'mode', '')}", "array": "an array", "path": "a path"}[transform.takes]
        raise BadTransform(
            f"the transform {transform.named} raised {reason} on {source}. It was called with {kind}; channels=1 or 3 (images.channels) "
            "converts images to gray or RGB first, and an annotation of its parameter (np.ndarray, Path) asks for another kind."
        ) from error
    return as_row(result, f"the transform {transform.named}", f" on {source}")


def as_row(value: object, what: str, where: str) -> Row:
    """A tensor or array of one row as float32. Raises `BadTransform` if it is neither, not floating-point or not finite."""
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    if not isinstance(value, np.ndarray) or value.ndim < 1:
        raise BadTransform(
            f"{what} returned {type(value).__name__}{where}; expected a tensor or array, as in shape (channels, height, width)"
        )
    if value.dtype.kind != "f":
        raise BadTransform(
            f"{what} returned {value.dtype} numbers{where}; expected floating-point numbers. Convert and scale them, as ToTensor does."
        )
    row = value.astype(np.float32)
    if bad := int((~np.isfinite(row)).sum()):
        raise BadTransform(f"{what} returned NaN or infinity for {bad:,} of {row.size:,} numbers{where}. Correct it, or leave the row out.")
    return row


def check_repeatable(call: Callable[[int], Row], rows: Sequence[int], what: str) -> None:
    """Raises `BadTransform` if calls for the same row give different results, as with augmentation."""
    for row in rows:
        first = call(row)
        for _ in range(CALLS - 1):
            again = call(row)
            if again.shape != first.shape or not np.array_equal(again, first):
                raise BadTransform(
                    f"{what} is random: called again on row {row + 1}, it gave another result. An audit needs the preprocessing of "
                    "evaluation, without augmentation; name that one."
                )
