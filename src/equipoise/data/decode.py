"""Decodes one image to 8-bit gray or colour at one size, or by a user's transform to the input of the network.

Gray is one channel: colour by its luminance, a palette through its colours, transparency over black. 16-bit and float images are scaled by
their own range (minimum 0, maximum 255), DICOM by its header (see `dicom`). For resizing and cropping see `preprocessing`.
An image with several frames (animated GIF, multi-page TIFF) is refused because the right frame is not known, and so is one with more pixels
than the limit, which is checked before decoding.

A transform is called with a Pillow image, unless its parameter is annotated as a path or an array. A MONAI transform is called with the
path if it contains LoadImage, otherwise with an array. The result is a tensor or array of floating-point numbers without NaN, of one shape
for all images, and the same each time.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps, UnidentifiedImageError

from equipoise.data.dicom import is_dicom, read_pixels, row_blocks, scaled_to_8_bits
from equipoise.data.image_files import RAISE_LIMIT, BadImage, Broken, ImageLimit, Make, NoRoom, Pixels, Source, file_state
from equipoise.data.preprocessing import BadTransform, Preprocessing, Transform
from equipoise.errors import BadInput, MissingExtra, first_line

FORMATS = ("PNG", "JPEG", "TIFF", "BMP", "GIF", "WEBP", "JPEG2000", "PPM")  # importing their plugins registers them with Pillow
BYTES_PER_PIXEL = {"1": 1, "L": 1, "P": 1, "I;16": 2, "I;16B": 2, "I;16L": 2, "I;16N": 2}  # by mode of Pillow; 4 in other modes

logging.getLogger("PIL").addHandler(logging.NullHandler())  # Pillow logs some errors as well as raising them
_thread = threading.local()  # `row`: the one that the thread decodes
_process_settings = threading.RLock()  # guards Pillow's pixel limit and the handling of warnings, which belong to the whole process


class _StandardErrorSilenced:
    """Redirects the standard error of the process to nowhere while any thread is inside: libtiff prints to it directly."""

    def __init__(self) -> None:
        self.lock, self.inside, self.original = threading.Lock(), 0, -1

    def __enter__(self) -> None:
        with self.lock:
            self.inside += 1
            if self.inside == 1:
                with suppress(OSError, ValueError, AttributeError):  # standard error may be closed or missing
                    sys.stderr.flush()
                    self.original = os.dup(2)
                    nowhere = os.open(os.devnull, os.O_WRONLY)
                    os.dup2(nowhere, 2)
                    os.close(nowhere)

    def __exit__(self, *_: object) -> None:
        with self.lock:
            self.inside -= 1
            if not self.inside and self.original >= 0:
                os.dup2(self.original, 2)
                os.close(self.original)
                self.original = -1


_silenced = _StandardErrorSilenced()


class ColourFound(Exception):
    """An image has colours, and decoding it to gray would lose them for a network with colour inputs."""


def decode(
    source: Source, how: Preprocessing, limit: ImageLimit = ImageLimit(), *, colour: bool = False, gray_only: bool = False
) -> Pixels:
    """The image as 8-bit gray (height, width) or colour (height, width, 3). Raises `BadImage` if it cannot be used.

    With `gray_only`, an image that is not gray raises `ColourFound`.
    """
    with open_image(source, limit) as image:
        if gray_only and _has_colours(image):
            raise ColourFound
        return np.asarray(how.applied(convert(image, "RGB" if colour else "L")), dtype=np.uint8)


def decode_for_xray_network(source: Source, side: int, limit: ImageLimit = ImageLimit()) -> Row:
    """The central square of an image (1, side, side) from -1024 to 1024, as by torchxrayvision's XRayCenterCrop and XRayResizer.

    The resizing is scikit-image's: a Gaussian filter, then linear interpolation, with 0 outside of the image.
    """
    from scipy import ndimage

    with open_image(source, limit) as image:
        pixels = (2 * (np.asarray(convert(image, "L"), dtype=np.float32) / 255) - 1) * 1024
    height, width = pixels.shape
    square = min(height, width)
    top, left = height // 2 - square // 2, width // 2 - square // 2
    pixels = pixels[top : top + square, left : left + square]
    low, high = float(pixels.min()), float(pixels.max())
    if square > side:
        pixels = ndimage.gaussian_filter(pixels, (square / side - 1) / 2, mode="constant")
    if square != side:
        pixels = ndimage.zoom(pixels, side / square, order=1, mode="grid-constant", grid_mode=True)
        if pixels.min() <= 0 <= pixels.max():  # pixels outside of the image count as 0
            low, high = min(low, 0.0), max(high, 0.0)
        pixels = pixels.clip(low, high)
    return pixels[None].astype(np.float32)


@contextmanager
def open_image(source: Source, limit: ImageLimit = ImageLimit(), *, upright: bool = True) -> Iterator[Image.Image]:
    """The decoded image at its own size; `upright` applies the orientation in its header. Raises `BadImage` if it cannot be used."""
    state = file_state(source)
    if state is None:
        raise BadImage("missing", "no such file")
    limit.check_bytes(state.st_size)
    with limit.room(state.st_size):
        content = Path(source).read_bytes()
        if not content:
            raise BadImage("empty", "is empty (0 bytes)")
        if is_dicom(content, Path(source).suffix):
            yield Image.fromarray(read_pixels(content, limit))
            return
        with Image.open(BytesIO(content), formats=FORMATS) as image:
            limit.check(*image.size)
            if (frames := getattr(image, "n_frames", 1)) > 1:
                raise BadImage(
                    "several frames", f"holds {frames} frames (animated or several pages); save the right one as a separate image"
                )
            with limit.room(image.width * image.height * (BYTES_PER_PIXEL.get(image.mode, 4) + 1)):
                with _silenced if image.format == "TIFF" else nullcontext():
                    image.load()
                if upright:
                    ImageOps.exif_transpose(image, in_place=True)  # otherwise it copies
                yield image


def convert(image: Image.Image, mode: str) -> Image.Image:
    """The image in the mode "L" (gray) or "RGB"."""
    if image.mode == mode:
        return image
    if image.mode.startswith(("I", "F")):
        values = np.asarray(image)
        image = Image.fromarray(scaled_to_8_bits(values, lambda block: block, (float(values.min()), float(values.max()))))
        return image if mode == "L" else image.convert(mode)
    blocks = row_blocks(image.height, image.width)
    if len(blocks) == 1:
        return _convert_block(image, mode, blocks[0])
    converted = Image.new(mode, image.size)
    for rows in blocks:
        converted.paste(_convert_block(image, mode, rows), (0, rows.start))
    return converted


def _convert_block(image: Image.Image, mode: str, rows: slice) -> Image.Image:
    if rows != slice(0, image.height):
        image = image.crop((0, rows.start, image.width, rows.stop))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, (0, 0, 0, 255)), image).convert(mode)
    return image.convert("RGB").convert(mode) if image.mode == "P" else image.convert(mode)


def _has_colours(image: Image.Image) -> bool:
    """Whether any pixel is not a shade of gray."""
    if image.mode in ("1", "L", "LA") or image.mode.startswith(("I", "F")):
        return False
    for rows in row_blocks(image.height, image.width):
        red, green, blue = np.moveaxis(np.asarray(_convert_block(image, "RGB", rows)), 2, 0)
        if (red != green).any() or (green != blue).any():
            return True
    return False


def attempt(source: Source, make: Make, limit: ImageLimit, row: int) -> tuple[npt.NDArray[Any], None] | tuple[None, Broken]:
    """What `make` returns for the image of a row, or the fault of that image. The reason does not contain the file name."""
    _thread.row = row
    try:
        return make(source), None
    except (MissingExtra, BadTransform, NoRoom, ColourFound):  # not the fault of this image
        raise
    except BadImage as error:
        fault = Broken(error.kind, str(error))
    except BadInput as error:
        fault = Broken("damaged", str(error))
    except UnidentifiedImageError:
        fault = Broken("not an image", f"cannot be read as an image ({', '.join(FORMATS)} or DICOM)")
    except Image.DecompressionBombError:
        fault = Broken("too large", f"has more than {limit.pixels:,} pixels, the limit. {RAISE_LIMIT}")
    except OSError as error:
        fault = Broken("damaged", f"cannot be read: {error.strerror}" if error.errno else f"cannot be decoded: {_printable_line(error)}")
    except Exception as error:  # decoders of a dozen formats raise all kinds of errors on unexpected bytes
        fault = Broken("damaged", f"cannot be decoded: {_printable_line(error)}")
    finally:
        _thread.row = None
    return None, fault


def _printable_line(error: BaseException) -> str:
    """The first 200 characters of an error's first line, without characters that could disturb a terminal."""
    return "".join(c if c.isprintable() else "?" for c in first_line(error))[:200]


@contextmanager
def collect_warnings(limit: ImageLimit, remarks: dict[int, str]) -> Iterator[None]:
    """Puts the first warning of a decoder about each image that is attempted into `remarks`, by row, instead of printing it.

    Pillow's own pixel limit is set to ours meanwhile. That limit and the handling of warnings belong to the whole process, so only one
    caller decodes at a time.
    """
    with _process_settings, warnings.catch_warnings():
        pillow_limit, show_warning = Image.MAX_IMAGE_PIXELS, warnings.showwarning
        warnings.simplefilter("always")

        def record(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
            row = getattr(_thread, "row", None)
            if row is None:  # a thread of the program that decodes nothing
                show_warning(message, category, *place, **more)
            else:
                remarks.setdefault(row, _printable_line(Warning(message)))

        warnings.showwarning = record
        Image.MAX_IMAGE_PIXELS = limit.pixels
        try:
            yield
        finally:
            Image.MAX_IMAGE_PIXELS = pillow_limit


Row = npt.NDArray[np.float32]  # the network input of one image
CHECKED = 8  # images on which a transform is called three times: a random flip goes unnoticed in 1 of 65,536 cases
CALLS = 3


_one_at_a_time = threading.Lock()  # the user's code may not be safe to run in several threads


def transformed(source: Source, transform: Transform, channels: int | None, limit: ImageLimit) -> Row:
    """The result of a transform on one image, which is first converted to gray (`channels` 1) or RGB (3) unless `channels` is None."""
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
