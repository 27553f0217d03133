"""DICOM files: 8-bit gray pixels as a viewer shows them, and sex, age and view from the header. Needs pydicom.

Stored values are rescaled (modality LUT), then mapped by the first VOI LUT or window, and its output range becomes 0 to 255. Without
either, the range of the image itself does, not counting padding. MONOCHROME1 (white is low) is inverted. Colour becomes luminance.

Sizes are checked before anything is inflated or decoded: that of a deflated file, the pixels in the header, and the size in the compressed
pixel data, which must agree with the header.
"""

import logging
import struct
import warnings
import zlib
from collections.abc import Callable, Sequence
from importlib import import_module
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from equipoise.data.image_files import BadImage, Broken, ImageLimit, Pixels, file_state
from equipoise.errors import BadInput, MissingExtra, first_line

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger(__name__)

DICOM_SUFFIXES = (".dcm", ".dicom")
KEYWORDS = {"patient": "PatientID", "sex": "PatientSex", "age": "PatientAge", "view": "ViewPosition"}
CHARACTER_SET = "SpecificCharacterSet"
# Errors of pydicom on bytes that are not DICOM, or on a value of the wrong type.
UNREADABLE = (ValueError, LookupError, AttributeError, TypeError, NotImplementedError, ArithmeticError, EOFError, struct.error, zlib.error)
FROM_HEADER = ("sex", "age", "view")  # columns that a header can supply
YEARS = {"Y": 1.0, "M": 1 / 12, "W": 7 / 365.25, "D": 1 / 365.25}  # by unit of an age
LUMA = np.array([0.299, 0.587, 0.114])
PIXELS_PER_BLOCK = 2**20  # pixels mapped or converted at a time, to limit the memory that a large image takes
INFLATED_BYTES = 2**16  # bytes of a deflated file inflated at a time
LARGE_ELEMENT = 2**20  # bytes from which an element is not read if only the header is needed
NULL_HANDLER = logging.NullHandler()
WINDOW_WIDTHS = 50  # in widths from the centre of a window, where a window of any shape has reached its limit
Values = npt.NDArray[Any]


def is_dicom(content: bytes, suffix: str = "") -> bool:
    """Whether a file is DICOM, by its prefix or, for old files without one, by its suffix."""
    return content[128:132] == b"DICM" or suffix.lower() in DICOM_SUFFIXES


def read_pixels(content: bytes, limit: ImageLimit = ImageLimit()) -> Pixels:
    """The image (rows, columns) in the content of a DICOM file. Raises `BadImage` if it cannot be used."""
    pydicom = _pydicom()
    _check_inflated(pydicom, BytesIO(content), limit)
    data = pydicom.dcmread(BytesIO(content), force=True)
    if not any(keyword in data for keyword in ("PixelData", "FloatPixelData", "DoubleFloatPixelData")):
        raise BadImage("not an image", "is a DICOM file without pixel data" if len(data) else "is no DICOM file")
    if "TransferSyntaxUID" not in data.file_meta:  # an old file without that header, for which the standard assumes this syntax
        data.file_meta.TransferSyntaxUID = pydicom.uid.ImplicitVRLittleEndian
    if (frames := int(data.get("NumberOfFrames") or 1)) > 1:
        raise BadImage("several frames", f"is a DICOM file of {frames} frames; save the right one as a separate file")
    width, height = int(data.Columns), int(data.Rows)
    samples, bits = int(data.get("SamplesPerPixel") or 1), int(data.get("BitsAllocated") or 8)
    limit.check(width, height)
    size = width * height * samples * max(1, bits // 8)
    limit.check_bytes(size, "holds")
    with limit.room(size + width * height):
        syntax = data.file_meta.TransferSyntaxUID
        try:
            if syntax.is_compressed and not pydicom.pixels.get_decoder(syntax).is_available:
                raise BadImage("damaged", f"is compressed as {syntax.name}, for which no codec is installed: pip install 'pylibjpeg[all]'")
        except NotImplementedError:
            raise BadImage("damaged", f"is compressed as {syntax.name}, which pydicom cannot decode. Convert it first.") from None
        if syntax.is_encapsulated:
            _check_compressed(pydicom, data, size)
        stored: Values = pydicom.pixels.pixel_array(data)  # (rows, columns), or (rows, columns, 3) for colour
        if not stored.size or stored.ndim not in (2, 3) or (stored.ndim == 3 and stored.shape[2] != len(LUMA)):
            raise BadImage("damaged", f"cannot be decoded: its pixels are of shape {stored.shape}")
        mapped, value_range = _mapping(pydicom, data, stored)
        value_range = value_range or _range_without_padding(stored, mapped, data.get("PixelPaddingValue"))
        return scaled_to_8_bits(stored, mapped, value_range, data.get("PhotometricInterpretation") == "MONOCHROME1" and stored.ndim == 2)


def scaled_to_8_bits(
    stored: Values, mapped: Callable[[Values], Values], value_range: tuple[float, float], inverted: bool = False
) -> Pixels:
    """The mapped values (rows, columns), scaled so that their range becomes 0 to 255; zeros if all values are equal."""
    low, high = map(float, value_range)
    gray = np.empty(stored.shape[:2], np.uint8)
    with np.errstate(invalid="ignore"):
        for rows in row_blocks(*stored.shape[:2]):
            scaled = (mapped(stored[rows]).astype(np.float64) - low) * (255 / (high - low) if high > low else 0.0)
            if not np.isfinite(scaled).all():
                raise BadImage("damaged", "holds NaN or infinite pixels")
            scaled = np.clip(scaled, 0, 255)
            gray[rows] = np.rint(255 - scaled if inverted else scaled).astype(np.uint8)
    return gray


def row_blocks(height: int, width: int) -> list[slice]:
    """The rows of an image in blocks of at most about PIXELS_PER_BLOCK pixels."""
    step = max(1, PIXELS_PER_BLOCK // max(1, width))
    return [slice(top, min(top + step, height)) for top in range(0, height, step)]


def _mapping(pydicom: Any, data: Any, stored: Values) -> tuple[Callable[[Values], Values], tuple[float, float] | None]:
    """The function from stored to displayed values, and the range that becomes 0 to 255; None if that is the range of the image."""
    pixels = pydicom.pixels

    def rescale(block: Values) -> Values:
        return np.asarray(pixels.apply_modality_lut(block, data))

    if data.get("PhotometricInterpretation") == "PALETTE COLOR":
        high = 2.0 ** int(data.BitsStored) - 1
        palette_high = 2 ** int(data.RedPaletteColorLookupTableDescriptor[2]) - 1  # its entries have another number of bits
        return lambda block: np.asarray(pixels.apply_color_lut(block, data)[..., :3] / palette_high * high @ LUMA), (0.0, high)
    if stored.ndim == 3:
        return lambda block: np.asarray(block @ LUMA), (0.0, 2.0 ** int(data.BitsStored) - 1)
    if data.get("VOILUTSequence"):
        high = 2.0 ** int(data.VOILUTSequence[0].LUTDescriptor[2]) - 1
        return lambda block: np.asarray(pixels.apply_voi_lut(rescale(block), data)), (0.0, high)
    if data.get("WindowCenter") is not None and data.get("WindowWidth") is not None:
        centre, width = (float(np.atleast_1d(data[name].value)[0]) for name in ("WindowCenter", "WindowWidth"))
        low, high = pixels.apply_windowing(np.array([centre - WINDOW_WIDTHS * width, centre + WINDOW_WIDTHS * width]), data)
        return lambda block: np.asarray(pixels.apply_windowing(rescale(block).astype(np.float64), data)), (low, high)
    return rescale, None


def _range_without_padding(stored: Values, mapped: Callable[[Values], Values], padding: object) -> tuple[float, float]:
    """The minimum and maximum of the mapped values, without padding unless there is nothing else."""
    padded = padding is not None and bool((stored != padding).any())
    ends = list[float]()
    for rows in row_blocks(*stored.shape[:2]):
        values = mapped(stored[rows])
        values = values[stored[rows] != padding] if padded else values
        ends += [float(values.min()), float(values.max())] if values.size else []
    return min(ends), max(ends)


def _check_inflated(pydicom: Any, file: Any, limit: ImageLimit) -> None:
    """Raises `BadImage` if a deflated file holds more than an image may. Inflates it piece by piece, which pydicom does not."""
    file.seek(128)
    file.seek(132 if file.read(4) == b"DICM" else 0)
    meta = pydicom.filereader.read_dataset(file, False, True, stop_when=lambda tag, _vr, _length: tag.group != 2)
    if meta.get("TransferSyntaxUID") != pydicom.uid.DeflatedExplicitVRLittleEndian:
        return
    inflater, size = zlib.decompressobj(-zlib.MAX_WBITS), 0
    piece = file.read(INFLATED_BYTES)
    while piece and not inflater.eof:
        size += len(inflater.decompress(piece, 2**20))
        limit.check_bytes(size, "inflates to")
        piece = inflater.unconsumed_tail or file.read(INFLATED_BYTES)


def _check_compressed(pydicom: Any, data: Any, size: int) -> None:
    """Raises `BadImage` if the image in the compressed pixel data is of another size than in the header, and so needs other memory."""
    frame = next(pydicom.encaps.generate_frames(data.PixelData, number_of_frames=1))
    if data.file_meta.TransferSyntaxUID == pydicom.uid.RLELossless:
        count, *offsets = struct.unpack("<16L", frame[:64])
        pixels = int(data.Rows) * int(data.Columns)
        for start, end in pairwise([*offsets[: min(count, 15)], len(frame)]):
            at, decoded, segment = 0, 0, frame[start:end]
            while at < len(segment):
                code = segment[at]
                decoded += 257 - code if code > 128 else code + 1 if code < 128 else 0
                at += 2 if code > 128 else code + 2 if code < 128 else 1
                if decoded > pixels + 1:
                    raise BadImage("damaged", f"cannot be decoded: its run-length data hold more than the {size:,} bytes of its pixels")
        return
    found = codestream_size(frame)
    if found is not None and found != (int(data.Columns), int(data.Rows)):
        raise BadImage(
            "damaged",
            f"cannot be decoded: its compressed pixel data are {found[0]:,} x {found[1]:,}, its header says "
            f"{int(data.Columns):,} x {int(data.Rows):,}",
        )


def codestream_size(frame: bytes) -> tuple[int, int] | None:
    """Width and height in the header of a JPEG, JPEG-LS or JPEG 2000 codestream; None for anything else."""
    start = frame.find(b"\xff\x4f\xff\x51", 0, 4096)
    if start >= 0 and len(frame) >= start + 24:
        x, y, left, top = struct.unpack(">4L", frame[start + 8 : start + 24])
        return x - left, y - top
    at = 2
    while frame[:2] == b"\xff\xd8" and at + 9 <= len(frame) and frame[at] == 0xFF:
        marker = frame[at + 1]
        if marker == 0xFF or 0xD0 <= marker <= 0xD8 or marker == 0x01:  # fill, or a marker without content
            at += 1 if marker == 0xFF else 2
        elif (0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC)) or marker == 0xF7:
            height, width = struct.unpack(">2H", frame[at + 5 : at + 9])
            return width, height
        else:
            at += 2 + struct.unpack(">H", frame[at + 2 : at + 4])[0]
    return None


def header(file: str | Path, limit: ImageLimit = ImageLimit()) -> dict[str, object]:
    """Patient, sex, age and view in the header of one DICOM file. Raises `BadImage` if it cannot be read."""
    pydicom = _pydicom()
    state = file_state(file)
    if state is None:
        raise BadImage("missing", "no such file")
    if not state.st_size:
        raise BadImage("empty", "is empty (0 bytes)")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # pydicom warns of every value that violates the standard; those we use are checked here
            with Path(file).open("rb") as opened:
                _check_inflated(pydicom, opened, limit)
            data = pydicom.dcmread(file, stop_before_pixels=True, defer_size=LARGE_ELEMENT)
            values = {keyword: data.get(keyword) for keyword in (*KEYWORDS.values(), CHARACTER_SET)}  # decodes them
    except BadInput:  # from `_check_inflated`
        raise
    except OSError as error:
        raise BadImage("damaged", f"cannot be read: {error.strerror or type(error).__name__}") from error
    except (*UNREADABLE, pydicom.errors.InvalidDicomError) as error:
        raise BadImage("damaged", f"cannot be read as DICOM: {first_line(error)[:200]}") from error
    fields: dict[str, Any] = {name: _text(values[keyword]) for name, keyword in KEYWORDS.items()}
    if "\ufffd" in (fields["patient"] or ""):  # a lost character could make two patients the same
        raise BadImage(
            "damaged",
            f"its {KEYWORDS['patient']} is not in the character set that it names ({values[CHARACTER_SET] or 'none'}), so that patients "
            "could be mixed up",
        )
    return fields | {"age": age_in_years(fields["age"])}


def add_dicom_columns(
    frame: "pd.DataFrame",
    files: Sequence[str | Path],
    progress: Callable[[int], None] | None = None,
    limit: ImageLimit | None = None,
    patient: str | None = None,
) -> "tuple[pd.DataFrame, dict[int, Broken]]":
    """The frame with the missing ones of the columns sex, age and view read from the files, and the broken files by position.

    Warns if the headers and the column `patient` distinguish patients differently: a row may name the image of another patient.
    """
    missing = [name for name in FROM_HEADER if name not in frame.columns]
    headers: list[dict[str, object]] = []
    broken: dict[int, Broken] = {}
    for at, file in enumerate(files) if missing else ():
        try:
            headers.append(header(file, limit or ImageLimit()))
        except BadImage as error:
            headers.append({})
            broken[at] = Broken(error.kind, str(error), name=str(file))
        if progress is not None:
            progress(1)
    if patient is not None and patient in frame.columns and headers:
        column = frame[patient]
        both = column.astype(object).map(str).rename("table").reset_index(drop=True).to_frame()
        both = both.assign(header=[fields.get("patient") for fields in headers])
        both = both[column.notna().to_numpy() & both["header"].notna()]
        different = both.index[both["table"] != both["header"]]
        several = int((both.drop_duplicates().groupby("table").size() > 1).sum())
        # The warnings contain no identifier.
        if 0 < len(different) < len(both):
            log.warning(
                "%s of %s DICOM headers name another patient than column %r, with which the others agree; the first is in row %s below the "
                "header. Check that those rows name the right images.",
                *(f"{len(different):,}", f"{len(both):,}", patient, f"{different[0] + 1:,}"),
            )
        elif several:
            log.warning(
                "%s patients of column %r have images whose DICOM headers name more than one patient. Check that rows name the right "
                "images.",
                *(f"{several:,}", patient),
            )
    return frame.assign(**{name: [fields.get(name) for fields in headers] for name in missing}), broken


def age_in_years(text: str | None) -> float | None:
    """The years in an age such as 045Y, 006M, 03W or 010D; None if it is missing.

    >>> age_in_years("045Y"), age_in_years("006M"), age_in_years(None)
    (45.0, 0.5, None)
    """
    if text is None or not text.strip():
        return None
    number, unit = text.strip()[:-1], text.strip()[-1].upper()
    if unit.isdigit():  # some scanners leave the unit out
        number, unit = text.strip(), "Y"
    if unit not in YEARS or not number.isdigit():
        raise BadImage("damaged", f"the age is {text!r}; expected digits and one of {', '.join(YEARS)}, such as 045Y")
    return int(number) * YEARS[unit]


def _text(value: Any) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) and hasattr(value, "__iter__"):  # pydicom splits a text at each backslash
        value = "\\".join(map(str, value))
    return str(value).strip() or None


def _pydicom() -> Any:
    try:
        pydicom = import_module("pydicom")
        import_module("pydicom.pixels")
    except ImportError as error:
        raise MissingExtra("pydicom", "dicom", "reading DICOM files") from error
    logging.getLogger("pydicom").addHandler(NULL_HANDLER)  # pydicom logs its warnings, which without a handler appear on the terminal
    return pydicom
