"""DICOM files: 8-bit gray pixels as a viewer shows them, and sex, age and view from the header. Needs pydicom.

Stored values are rescaled (modality LUT), then mapped by the first VOI LUT or window, whose output range becomes 0 to 255; without either,
the image's own range does, padding left out. MONOCHROME1 (white is low) is inverted. Colour becomes luminance.

Before anything is inflated or decoded, its size is checked: that of a deflated file, the pixels in the header, and those that compressed
pixel data name themselves, which must be as many as in the header.
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

from equipoise.data.faults import BadImage, Broken, Limit
from equipoise.data.image_files import file_state
from equipoise.errors import BadInput, MissingExtra, first_line

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger(__name__)

SUFFIXES = (".dcm", ".dicom")
KEYWORDS = {"patient": "PatientID", "sex": "PatientSex", "age": "PatientAge", "view": "ViewPosition"}
CHARACTERS = "SpecificCharacterSet"
# What pydicom raises for bytes that are no DICOM, or a value that is not what its type says.
UNREADABLE = (ValueError, LookupError, AttributeError, TypeError, NotImplementedError, ArithmeticError, EOFError, struct.error, zlib.error)
FROM_HEADER = ("sex", "age", "view")  # columns that a header can give
YEARS = {"Y": 1.0, "M": 1 / 12, "W": 7 / 365.25, "D": 1 / 365.25}  # what an age counts in
LUMA = np.array([0.299, 0.587, 0.114])
BLOCK = 2**20  # pixels that are mapped at a time, to spare memory for large images
PIECE = 2**16  # bytes of a deflated file that are inflated at a time
LARGE = 2**20  # bytes of an element that is not read where only the header is needed
QUIET = logging.NullHandler()
FAR = 50  # widths from the centre of a window, where it has reached its end whatever its shape


def is_dicom(content: bytes, suffix: str = "") -> bool:
    """Whether a file is DICOM: by its mark, or by its name for old files that have none."""
    return content[128:132] == b"DICM" or suffix.lower() in SUFFIXES


def read_pixels(content: bytes, limit: Limit = Limit()) -> npt.NDArray[np.uint8]:
    """The image (rows, columns) in the content of a DICOM file, or an error: what is wrong with it."""
    pydicom = _pydicom()
    _check_inflated(pydicom, BytesIO(content), limit)
    data = pydicom.dcmread(BytesIO(content), force=True)
    if not any(keyword in data for keyword in ("PixelData", "FloatPixelData", "DoubleFloatPixelData")):
        raise BadImage("not an image", "is a DICOM file without pixel data" if len(data) else "is no DICOM file")
    if "TransferSyntaxUID" not in data.file_meta:  # an old file without that header; this is what the standard then assumes
        data.file_meta.TransferSyntaxUID = pydicom.uid.ImplicitVRLittleEndian
    frames = int(data.get("NumberOfFrames") or 1)
    if frames > 1:
        raise BadImage("several frames", f"is a DICOM file of {frames} frames; save the right one as a separate file")
    width, height = int(data.Columns), int(data.Rows)
    samples, bits = int(data.get("SamplesPerPixel") or 1), int(data.get("BitsAllocated") or 8)
    limit.check(width, height)
    expected = width * height * samples * max(1, bits // 8)
    limit.check_bytes(expected, "holds")
    with limit.room(expected + width * height):
        stored = _stored(pydicom, data, expected)
        return _shown(pydicom, data, stored)


def _shown(pydicom: Any, data: Any, stored: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """What a viewer shows of the stored values, a block of rows at a time."""
    step = max(1, BLOCK // max(1, stored.shape[1]))
    blocks = [slice(top, top + step) for top in range(0, len(stored), step)]
    palette = data.get("PhotometricInterpretation") == "PALETTE COLOR"
    inverted = data.get("PhotometricInterpretation") == "MONOCHROME1" and stored.ndim == 2
    low, high = 0.0, 0.0
    if palette:
        mapped, high = _of_palette(pydicom, data), 2.0 ** int(data.BitsStored) - 1
    elif stored.ndim == 3:
        high = 2.0 ** int(data.BitsStored) - 1
        mapped = lambda block: block @ LUMA  # noqa: E731 (as the others)
    elif data.get("VOILUTSequence"):
        mapped = lambda block: pydicom.pixels.apply_voi_lut(pydicom.pixels.apply_modality_lut(block, data), data)  # noqa: E731
        high = 2.0 ** int(data.VOILUTSequence[0].LUTDescriptor[2]) - 1
    elif data.get("WindowCenter") is not None and data.get("WindowWidth") is not None:
        centre, width = (float(np.atleast_1d(data[name].value)[0]) for name in ("WindowCenter", "WindowWidth"))
        low, high = pydicom.pixels.apply_windowing(np.array([centre - FAR * width, centre + FAR * width]), data)
        mapped = lambda block: pydicom.pixels.apply_windowing(  # noqa: E731
            pydicom.pixels.apply_modality_lut(block, data).astype(np.float64), data
        )
    else:
        mapped = lambda block: pydicom.pixels.apply_modality_lut(block, data)  # noqa: E731
        padding = data.get("PixelPaddingValue")
        padded = padding is not None and bool((stored != padding).any())
        ends = []
        for rows in blocks:
            values = mapped(stored[rows])
            values = values[stored[rows] != padding] if padded else values
            ends += [(float(values.min()), float(values.max()))] if values.size else []
        low, high = min(first for first, _ in ends), max(last for _, last in ends)
    out = np.empty(stored.shape[:2], np.uint8)
    for rows in blocks:
        gray = _full_range(mapped(stored[rows]), low, high)
        out[rows] = np.rint(255 - gray if inverted else gray).astype(np.uint8)
    return out


def _of_palette(pydicom: Any, data: Any) -> Callable[[npt.NDArray[Any]], npt.NDArray[Any]]:
    """The luminance of the colours that a palette has for stored values. They have bits of their own."""
    own, bits = 2 ** int(data.RedPaletteColorLookupTableDescriptor[2]) - 1, 2 ** int(data.BitsStored) - 1
    return lambda block: np.asarray(pydicom.pixels.apply_color_lut(block, data)[..., :3] / own * bits @ LUMA)


def _check_inflated(pydicom: Any, file: Any, limit: Limit) -> None:
    """Raises where a deflated file holds more than an image may; inflates it a piece at a time, which pydicom does not."""
    file.seek(128)
    file.seek(132 if file.read(4) == b"DICM" else 0)
    about = pydicom.filereader.read_dataset(file, False, True, stop_when=lambda tag, _vr, _length: tag.group != 2)
    if about.get("TransferSyntaxUID") != pydicom.uid.DeflatedExplicitVRLittleEndian:
        return
    inflater, size = zlib.decompressobj(-zlib.MAX_WBITS), 0
    piece = file.read(PIECE)
    while piece and not inflater.eof:
        size += len(inflater.decompress(piece, 2**20))
        limit.check_bytes(size, "inflates to")
        piece = inflater.unconsumed_tail or file.read(PIECE)


def _check_compressed(pydicom: Any, data: Any, expected: int) -> None:
    """Raises where compressed pixel data say that they are another image than the header does, and so need other memory."""
    frame = next(pydicom.encaps.generate_frames(data.PixelData, number_of_frames=1))
    if data.file_meta.TransferSyntaxUID == pydicom.uid.RLELossless:
        told = struct.unpack("<16L", frame[:64])
        ends = [*told[1 : 1 + min(told[0], 15)], len(frame)]
        each = int(data.Rows) * int(data.Columns)
        if any(_run_length(frame[start:end], 2 * each + 2) > each + 1 for start, end in pairwise(ends)):
            raise BadImage("damaged", f"cannot be decoded: its run-length data hold more than the {expected:,} bytes of its pixels")
        return
    found = codestream_size(frame)
    if found is not None and found != (int(data.Columns), int(data.Rows)):
        raise BadImage(
            "damaged",
            f"cannot be decoded: its compressed pixel data are {found[0]:,} x {found[1]:,}, its header says "
            f"{int(data.Columns):,} x {int(data.Rows):,}",
        )


def _run_length(segment: bytes, most: int) -> int:
    """How many bytes a run-length encoded segment decodes to; counting stops above `most`."""
    at, size = 0, 0
    while at < len(segment) and size <= most:
        code = segment[at]
        size += 257 - code if code > 128 else code + 1 if code < 128 else 0
        at += 2 if code > 128 else code + 2 if code < 128 else 1
    return size


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


def header(file: str | Path, limit: Limit = Limit()) -> dict[str, object]:
    """Patient, sex, age and view in the header of one DICOM file, or an error: what is wrong with it."""
    pydicom = _pydicom()
    state = file_state(file)
    if state is None:
        raise BadImage("missing", "no such file")
    if not state.st_size:
        raise BadImage("empty", "is empty (0 bytes)")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # pydicom warns of every value that is not to the standard; ours are checked here
            with Path(file).open("rb") as opened:
                _check_inflated(pydicom, opened, limit)
            data = pydicom.dcmread(file, stop_before_pixels=True, defer_size=LARGE)
            held = {keyword: data.get(keyword) for keyword in (*KEYWORDS.values(), CHARACTERS)}  # they are decoded here
    except BadInput:  # it inflates to too much
        raise
    except OSError as error:
        raise BadImage("damaged", f"cannot be read: {error.strerror or type(error).__name__}") from error
    except (*UNREADABLE, pydicom.errors.InvalidDicomError) as error:
        raise BadImage("damaged", f"cannot be read as DICOM: {first_line(error)[:200]}") from error
    found: dict[str, Any] = {name: _text(held[keyword]) for name, keyword in KEYWORDS.items()}
    if "\ufffd" in (found["patient"] or ""):  # it tells patients apart, so that none of its characters may be lost
        raise BadImage(
            "damaged",
            f"its {KEYWORDS['patient']} is not in the character set that it names ({held[CHARACTERS] or 'none'}), so that patients "
            "could be mixed up",
        )
    return found | {"age": age(found["age"])}


def with_headers(
    frame: "pd.DataFrame",
    files: Sequence[str | Path],
    progress: Callable[[int], None] | None = None,
    limit: Limit | None = None,
    patient: str | None = None,
) -> "tuple[pd.DataFrame, dict[int, Broken]]":
    """The frame with those of the columns sex, age and view that it lacks, from its rows' files; and what was wrong, by position.

    Warns where the headers that were read tell other patients apart than the column `patient` does: a row may name another's image.
    """
    lacking = [name for name in FROM_HEADER if name not in frame.columns]
    read: list[dict[str, object]] = []
    broken: dict[int, Broken] = {}
    for at, file in enumerate(files) if lacking else ():
        try:
            read.append(header(file, limit or Limit()))
        except BadInput as error:
            read.append({})
            broken[at] = Broken(error.kind if isinstance(error, BadImage) else "damaged", str(error), name=str(file))
        if progress is not None:
            progress(1)
    if patient is not None and patient in frame.columns and read:
        _compare_patients(frame[patient], [row.get("patient") for row in read])
    return frame.assign(**{name: [row.get(name) for row in read] for name in lacking}), broken


def _compare_patients(column: "pd.Series[Any]", headers: Sequence[object]) -> None:
    """Warns where headers name other patients than a table, or several for one of its patients. Names none of them."""
    both = column.astype(object).map(str).rename("table").reset_index(drop=True).to_frame().assign(header=headers)
    both = both[column.notna().to_numpy() & both["header"].notna()]
    other = both.index[both["table"] != both["header"]]
    several = int((both.drop_duplicates().groupby("table").size() > 1).sum())
    if 0 < len(other) < len(both):
        log.warning(
            "%s of %s DICOM headers name another patient than column %r, with which the others agree; the first is in row %s below the "
            "header. Check that those rows name the right images.",
            *(f"{len(other):,}", f"{len(both):,}", column.name, f"{other[0] + 1:,}"),
        )
    elif several:
        log.warning(
            "%s patients of column %r have images whose DICOM headers name more than one patient. Check that rows name the right images.",
            *(f"{several:,}", column.name),
        )


def age(text: str | None) -> float | None:
    """The years in an age such as 045Y, 006M, 03W or 010D; None where it is missing.

    >>> age("045Y"), age("006M"), age(None)
    (45.0, 0.5, None)
    """
    if text is None or not text.strip():
        return None
    number, unit = text.strip()[:-1], text.strip()[-1].upper()
    if unit.isdigit():  # some scanners leave the unit out
        number, unit = text.strip(), "Y"
    if unit not in YEARS or not number.isdigit():
        raise BadInput(f"the age is {text!r}; expected digits and one of {', '.join(YEARS)}, such as 045Y")
    return int(number) * YEARS[unit]


def _pydicom() -> Any:
    try:
        pydicom = import_module("pydicom")
        import_module("pydicom.pixels")
    except ImportError as error:
        raise MissingExtra("pydicom", "dicom", "reading DICOM files") from error
    logging.getLogger("pydicom").addHandler(QUIET)  # it logs what it warns of, and without a handler that lands on the terminal
    return pydicom


def _stored(pydicom: Any, data: Any, expected: int) -> npt.NDArray[Any]:
    """The stored values (rows, columns), or (rows, columns, 3) for colour."""
    syntax = data.file_meta.TransferSyntaxUID
    try:
        if syntax.is_compressed and not pydicom.pixels.get_decoder(syntax).is_available:
            raise BadImage("damaged", f"is compressed as {syntax.name}, for which no codec is installed: pip install 'pylibjpeg[all]'")
    except NotImplementedError:
        raise BadImage("damaged", f"is compressed as {syntax.name}, which pydicom cannot decode. Convert it first.") from None
    if syntax.is_encapsulated:
        _check_compressed(pydicom, data, expected)
    values: npt.NDArray[Any] = pydicom.pixels.pixel_array(data)
    if not values.size or values.ndim not in (2, 3) or (values.ndim == 3 and values.shape[2] != len(LUMA)):
        raise BadImage("damaged", f"cannot be decoded: its pixels are of shape {values.shape}")
    return values


def _full_range(values: npt.NDArray[Any], low: float, high: float) -> npt.NDArray[np.float64]:
    scaled = (values.astype(np.float64) - float(low)) * (255 / (float(high) - float(low)) if high > low else 0.0)
    if not np.isfinite(scaled).all():
        raise BadImage("damaged", "holds NaN or infinite pixels")
    return np.clip(scaled, 0, 255)


def _text(value: Any) -> str | None:
    if value is not None and not isinstance(value, str) and hasattr(value, "__iter__"):  # pydicom cuts a text at each backslash
        value = "\\".join(map(str, value))
    return str(value).strip() or None if value is not None else None
