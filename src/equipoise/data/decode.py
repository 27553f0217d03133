"""One image as 8-bit gray at one size.

Every image becomes one channel: colour by its luminance, a palette through its colours, transparency over black. 16-bit and float
images are scaled by their own range (least value 0, greatest 255); DICOM as its header says (see `dicom`). Other shapes than a square are
stretched. Resizing is bilinear with antialiasing; a JPEG more than four times too large is first decoded at a fraction of its size.
An image of several frames (animated GIF, multi-page TIFF) is refused, since nobody knows which one was meant.
"""

from io import BytesIO
from pathlib import Path

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
from equipoise.data.image_files import file_state
from equipoise.errors import BadInput, MissingExtra

Pixels = npt.NDArray[np.uint8]
Source = str | Path | bytes  # a file, or its content
FORMATS = ("PNG", "JPEG", "TIFF", "BMP", "GIF", "WEBP", "JPEG2000", "PPM")  # importing their plugins makes them known to Pillow


def decode(source: Source, size: int) -> Pixels:
    """One image as 8-bit gray (size, size), or an error that says what is wrong with it."""
    if not isinstance(source, bytes) and file_state(source) is None:
        raise BadInput("no such file")
    content = source if isinstance(source, bytes) else Path(source).read_bytes()
    if not content:
        raise BadInput("is empty (0 bytes)")
    if is_dicom(content, "" if isinstance(source, bytes) else Path(source).suffix):
        gray = Image.fromarray(read_pixels(content))
    else:
        with Image.open(BytesIO(content), formats=FORMATS) as image:
            frames = getattr(image, "n_frames", 1)
            if frames > 1:
                raise BadInput(f"holds {frames} frames (animated or several pages); save the one that is meant as an image of its own")
            image.draft("L", (2 * size, 2 * size))  # lets a JPEG be decoded at a half, a quarter or an eighth of a much larger size
            ImageOps.exif_transpose(image, in_place=True)  # otherwise it copies
            gray = _gray(image)
    if gray.size != (size, size):
        gray = gray.resize((size, size), Image.Resampling.BILINEAR, reducing_gap=3.0)
    return np.asarray(gray, dtype=np.uint8)


def _gray(image: Image.Image) -> Image.Image:
    if image.mode.startswith(("I", "F")):
        return Image.fromarray(_stretched(np.asarray(image)))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, (0, 0, 0, 255)), image).convert("L")
    return image.convert("RGB").convert("L") if image.mode == "P" else image.convert("L")


def _stretched(values: npt.NDArray[np.generic]) -> Pixels:
    """Numbers scaled so that the least is 0 and the greatest 255; all zeros where there is one value only."""
    numbers = values.astype(np.float64)
    low, high = float(numbers.min()), float(numbers.max())
    if not np.isfinite([low, high]).all():
        raise BadInput("holds NaN or infinite pixels")
    return np.rint((numbers - low) * (255 / (high - low) if high > low else 0.0)).astype(np.uint8)


def fault(source: Source, size: int, out: Pixels) -> str:
    """Decodes one image into `out` (size, size); what was wrong with it, or nothing."""
    try:
        out[:] = decode(source, size)
    except MissingExtra:  # no fault of the image
        raise
    except BadInput as error:
        return str(error)
    except UnidentifiedImageError:
        return f"is no image that can be read ({', '.join(FORMATS)} or DICOM)"
    except Exception as error:  # decoders of a dozen formats raise what they like at bytes that they do not expect
        return f"cannot be decoded: {(str(error).splitlines() or [type(error).__name__])[0]}"
    return ""
