"""One image as 8-bit gray at one size.

Every image becomes one channel: colour by its luminance, a palette through its colours, transparency over black. 16-bit and float
images are scaled by their own range (least value 0, greatest 255); DICOM as its header says (see `dicom`). Other shapes than a square are
stretched. Resizing is bilinear with antialiasing; a JPEG more than four times too large is first decoded at a fraction of its size.
An image of several frames (animated GIF, multi-page TIFF) is refused, since it is not known which one was meant; so is one with more pixels
than the limit (see `decode_limit`), which is checked before it is decoded.
"""

import logging
import os
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping
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
from equipoise.data.faults import RAISE, BadImage, Broken, Limit
from equipoise.data.image_files import Pixels, Source, file_state
from equipoise.errors import BadInput, MissingExtra

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


def decode(source: Source, size: int, limit: Limit = Limit()) -> Pixels:
    """One image as 8-bit gray (size, size), or an error: what is wrong with it."""
    if isinstance(source, bytes):
        return _decoded(source, "", size, limit)
    state = file_state(source)
    if state is None:
        raise BadImage("missing", "no such file")
    limit.check_bytes(state.st_size)
    with limit.room(state.st_size):
        return _decoded(Path(source).read_bytes(), Path(source).suffix, size, limit)


def _decoded(content: bytes, suffix: str, size: int, limit: Limit) -> Pixels:
    if not content:
        raise BadImage("empty", "is empty (0 bytes)")
    if is_dicom(content, suffix):
        gray = Image.fromarray(read_pixels(content, limit))
    else:
        with Image.open(BytesIO(content), formats=FORMATS) as image:
            limit.check(*image.size)
            frames = getattr(image, "n_frames", 1)
            if frames > 1:
                raise BadImage(
                    "several frames",
                    f"holds {frames} frames (animated or several pages); save the one that is meant as an image of its own",
                )
            image.draft("L", (2 * size, 2 * size))  # lets a JPEG be decoded at a half, a quarter or an eighth of a much larger size
            speaks = nullcontext() if image.format != "TIFF" else _silenced
            with limit.room(image.width * image.height * (BYTES.get(image.mode, 4) + 1)), speaks:
                ImageOps.exif_transpose(image, in_place=True)  # otherwise it copies
                gray = _gray(image)
    if gray.size != (size, size):
        gray = gray.resize((size, size), Image.Resampling.BILINEAR, reducing_gap=3.0)
    return np.asarray(gray, dtype=np.uint8)


def _gray(image: Image.Image) -> Image.Image:
    if image.mode.startswith(("I", "F")):
        return Image.fromarray(_stretched(np.asarray(image)))
    if image.width * image.height <= BLOCK:
        return _gray_block(image)
    whole, height = Image.new("L", image.size), max(1, BLOCK // image.width)
    image.load()
    for top in range(0, image.height, height):
        whole.paste(_gray_block(image.crop((0, top, image.width, min(top + height, image.height)))), (0, top))
    return whole


def _gray_block(image: Image.Image) -> Image.Image:
    if image.has_transparency_data:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, (0, 0, 0, 255)), image).convert("L")
    return image.convert("RGB").convert("L") if image.mode == "P" else image.convert("L")


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


def fault(source: Source, size: int, out: Pixels, limit: Limit = Limit()) -> Broken | None:
    """Decodes one image into `out` (size, size); what was wrong with it, or nothing. The reason holds no name."""
    try:
        out[:] = decode(source, size, limit)
    except MissingExtra:  # no fault of the image
        raise
    except BadImage as error:
        return Broken(error.kind, str(error))
    except BadInput as error:
        return Broken("damaged", str(error))
    except UnidentifiedImageError:
        return Broken("not an image", f"is no image that can be read ({', '.join(FORMATS)} or DICOM)")
    except Image.DecompressionBombError:
        return Broken("too large", f"has more than {limit.pixels:,} pixels, the limit. {RAISE}")
    except OSError as error:
        return Broken("damaged", f"cannot be read: {error.strerror}" if error.errno else f"cannot be decoded: {_line(error)}")
    except Exception as error:  # decoders of a dozen formats raise what they like at bytes that they do not expect
        return Broken("damaged", f"cannot be decoded: {_line(error)}")
    return None


def _line(error: BaseException) -> str:
    """The first line of an error, without what could mess up a terminal, and not longer than a line."""
    text = (str(error).splitlines() or [""])[0].strip() or type(error).__name__
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
