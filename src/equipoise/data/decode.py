"""One image as 8-bit gray, or colour, at one size.

Gray is one channel: colour by its luminance, a palette through its colours, transparency over black. 16-bit and float images are scaled by
their own range (least value 0, greatest 255); DICOM as its header says (see `dicom`). How it is resized and cropped: see `preprocessing`.
An image of several frames (animated GIF, multi-page TIFF) is refused, since it is not known which one was meant; so is one with more pixels
than the limit (see `decode_limit`), which is checked before it is decoded.
"""

import logging
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import (  # noqa: F401
    BmpImagePlugin,
    GifImagePlugin,
    Image,
    ImageOps,
    Jpeg2KImagePlugin,
    JpegImagePlugin,
    PngImagePlugin,
    PpmImagePlugin,
    TiffImagePlugin,
    UnidentifiedImageError,
    WebPImagePlugin,
)

from equipoise.data.dicom import is_dicom, read_pixels
from equipoise.data.faults import RAISE, BadImage, BadTransform, Broken, Limit, NoRoom
from equipoise.data.image_files import Pixels, Source, file_state
from equipoise.data.preprocessing import Geometry
from equipoise.errors import BadInput, MissingExtra, first_line

FORMATS = ("PNG", "JPEG", "TIFF", "BMP", "GIF", "WEBP", "JPEG2000", "PPM")  # importing their plugins makes them known to Pillow
BLOCK = 2**20  # pixels that are turned into gray at a time, to spare memory for large images
BYTES = {"1": 1, "L": 1, "P": 1, "I;16": 2, "I;16B": 2, "I;16L": 2, "I;16N": 2}  # of a pixel in Pillow; 4 in other modes

logging.getLogger("PIL").addHandler(logging.NullHandler())  # Pillow logs some errors as well as raising them
_quiet = threading.RLock()  # for what is one for the whole process: Pillow's own limit, and where warnings go


class _Silenced:
    """Without standard error of the process while any thread is inside: libtiff prints there whatever Python does."""

    def __init__(self) -> None:
        self.lock, self.inside, self.kept = threading.Lock(), 0, -1

    def __enter__(self) -> None:
        with self.lock:
            self.inside += 1
            if self.inside == 1:
                with suppress(OSError, ValueError, AttributeError):  # it may be closed, or not there
                    sys.stderr.flush()
                    self.kept = os.dup(2)
                    nowhere = os.open(os.devnull, os.O_WRONLY)
                    os.dup2(nowhere, 2)
                    os.close(nowhere)

    def __exit__(self, *_: object) -> None:
        with self.lock:
            self.inside -= 1
            if not self.inside and self.kept >= 0:
                os.dup2(self.kept, 2)
                os.close(self.kept)
                self.kept = -1


_silenced = _Silenced()


class Coloured(Exception):
    """An image has colours and was to be decoded as gray for a network that takes colour."""


def decode(source: Source, geometry: Geometry, limit: Limit = Limit(), *, colour: bool = False, gray_only: bool = False) -> Pixels:
    """One image as 8-bit gray (height, width) or colour (height, width, 3), or an error: what is wrong with it.

    With `gray_only`, `Coloured` is raised where gray would lose something.
    """
    with opened(source, limit) as image:
        if gray_only and _has_colours(image):
            raise Coloured
        return np.asarray(geometry.applied(_converted(image, "RGB" if colour else "L")), dtype=np.uint8)


@contextmanager
def opened(source: Source, limit: Limit = Limit(), *, upright: bool = True) -> Iterator[Image.Image]:
    """The image in a file, decoded at its own size; `upright` turns it as its header says. Or an error: what is wrong with it."""
    state = None if isinstance(source, bytes) else file_state(source)
    if state is None and not isinstance(source, bytes):
        raise BadImage("missing", "no such file")
    if state is not None:
        limit.check_bytes(state.st_size)
    with limit.room(0 if state is None else state.st_size):
        content, suffix = (source, "") if isinstance(source, bytes) else (Path(source).read_bytes(), Path(source).suffix)
        if not content:
            raise BadImage("empty", "is empty (0 bytes)")
        if is_dicom(content, suffix):
            yield Image.fromarray(read_pixels(content, limit))
            return
        with Image.open(BytesIO(content), formats=FORMATS) as image:
            limit.check(*image.size)
            frames = getattr(image, "n_frames", 1)
            if frames > 1:
                raise BadImage(
                    "several frames",
                    f"holds {frames} frames (animated or several pages); save the right one as a separate image",
                )
            speaks = nullcontext() if image.format != "TIFF" else _silenced
            with limit.room(image.width * image.height * (BYTES.get(image.mode, 4) + 1)):
                with speaks:
                    image.load()
                if upright:
                    ImageOps.exif_transpose(image, in_place=True)  # otherwise it copies
                yield image


@contextmanager
def opened_as(source: Source, mode: str, limit: Limit = Limit()) -> Iterator[Image.Image]:
    """The image in a file in a mode of Pillow's, at its own size; or an error: what is wrong with it."""
    with opened(source, limit) as image:
        yield _converted(image, mode)


def _converted(image: Image.Image, mode: str) -> Image.Image:
    if image.mode == mode:
        return image
    if image.mode.startswith(("I", "F")):
        image = Image.fromarray(_stretched(np.asarray(image)))
        return image if mode == "L" else image.convert(mode)
    if image.width * image.height <= BLOCK:
        return _converted_block(image, mode)
    whole = Image.new(mode, image.size)
    for box in _blocks(image):
        whole.paste(_converted_block(image.crop(box), mode), box[:2])
    return whole


def _blocks(image: Image.Image) -> Iterator[tuple[int, int, int, int]]:
    """Boxes of whole rows of at most about BLOCK pixels."""
    height = max(1, BLOCK // image.width)
    for top in range(0, image.height, height):
        yield 0, top, image.width, min(top + height, image.height)


def _converted_block(image: Image.Image, mode: str) -> Image.Image:
    if image.has_transparency_data:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, (0, 0, 0, 255)), image).convert(mode)
    return image.convert("RGB").convert(mode) if image.mode == "P" else image.convert(mode)


def _has_colours(image: Image.Image) -> bool:
    """Whether any pixel is not a shade of gray."""
    if image.mode in ("1", "L", "LA") or image.mode.startswith(("I", "F")):
        return False
    for box in _blocks(image):
        red, green, blue = np.moveaxis(np.asarray(_converted_block(image.crop(box), "RGB")), 2, 0)
        if (red != green).any() or (green != blue).any():
            return True
    return False


def _stretched(values: npt.NDArray[np.generic]) -> Pixels:
    """Numbers scaled so that the least is 0 and the greatest 255; all zeros where there is one value only."""
    low, high = float(values.min()), float(values.max())
    if not np.isfinite([low, high]).all():
        raise BadImage("damaged", "holds NaN or infinite pixels")
    factor, step = 255 / (high - low) if high > low else 0.0, max(1, BLOCK // values.shape[1])
    out = np.empty(values.shape, np.uint8)
    for top in range(0, len(values), step):
        out[top : top + step] = np.rint((values[top : top + step].astype(np.float64) - low) * factor).astype(np.uint8)
    return out


def fault(source: Source, make: Callable[[Source], npt.NDArray[Any]], out: npt.NDArray[Any], limit: Limit = Limit()) -> Broken | None:
    """Puts what is made of one image into `out`; what was wrong with it, or nothing. The reason holds no name."""
    try:
        out[:] = make(source)
    except (MissingExtra, BadTransform, NoRoom, Coloured):  # no fault of the image
        raise
    except BadImage as error:
        return Broken(error.kind, str(error))
    except BadInput as error:
        return Broken("damaged", str(error))
    except UnidentifiedImageError:
        return Broken("not an image", f"cannot be read as an image ({', '.join(FORMATS)} or DICOM)")
    except Image.DecompressionBombError:
        return Broken("too large", f"has more than {limit.pixels:,} pixels, the limit. {RAISE}")
    except OSError as error:
        return Broken("damaged", f"cannot be read: {error.strerror}" if error.errno else f"cannot be decoded: {_line(error)}")
    except Exception as error:  # decoders of a dozen formats raise what they like at bytes that they do not expect
        return Broken("damaged", f"cannot be decoded: {_line(error)}")
    return None


def _line(error: BaseException) -> str:
    """The first line of an error, without what could mess up a terminal, and not longer than a line."""
    text = first_line(error)
    return "".join(c if c.isprintable() else "?" for c in text)[:200]


@contextmanager
def watching(limit: Limit, doing: Mapping[int, int], remarks: dict[int, str]) -> Iterator[None]:
    """Turns what decoders warn of into `remarks`, by the row that `doing` has for a thread; nothing of it reaches the terminal.

    Pillow has a limit of its own, which must not be below ours. It and the warnings are those of the whole process, so that images are
    decoded for one caller at a time.
    """
    with _quiet, warnings.catch_warnings():
        before, show = Image.MAX_IMAGE_PIXELS, warnings.showwarning
        warnings.simplefilter("always")

        def told(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
            row = doing.get(threading.get_ident())
            if row is None:  # of another thread of the program
                show(message, category, *place, **more)
            else:
                remarks.setdefault(row, _line(message) if isinstance(message, Warning) else str(message))

        warnings.showwarning = told
        Image.MAX_IMAGE_PIXELS = limit.pixels
        try:
            yield
        finally:
            Image.MAX_IMAGE_PIXELS = before
