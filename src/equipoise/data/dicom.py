"""DICOM files: 8-bit gray pixels as a viewer shows them, and sex, age and view from the header. Needs pydicom.

Stored values are rescaled (modality LUT), then mapped by the first VOI LUT or window, whose output range becomes 0 to 255; without either,
the image's own range does, padding left out. MONOCHROME1 (white is low) is inverted. Colour becomes luminance.
"""

import warnings
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from equipoise.data.image_files import file_state
from equipoise.errors import BadInput, MissingExtra, raise_all

SUFFIXES = (".dcm", ".dicom")
FROM_HEADER = ("sex", "age", "view")  # columns that a header can give
YEARS = {"Y": 1.0, "M": 1 / 12, "W": 7 / 365.25, "D": 1 / 365.25}  # what an age counts in
LUMA = np.array([0.299, 0.587, 0.114])
FAR = 50  # widths from the centre of a window, where it has reached its end whatever its shape


def is_dicom(content: bytes, suffix: str = "") -> bool:
    """Whether a file is DICOM: by its mark, or by its name for old files that have none."""
    return content[128:132] == b"DICM" or suffix.lower() in SUFFIXES


def read_pixels(content: bytes) -> npt.NDArray[np.uint8]:
    """The image (rows, columns) in the content of a DICOM file, or an error that says what is wrong with it."""
    pydicom = _pydicom()
    data = pydicom.dcmread(BytesIO(content), force=True)
    if not any(keyword in data for keyword in ("PixelData", "FloatPixelData", "DoubleFloatPixelData")):
        raise BadInput("is a DICOM file without pixel data" if len(data) else "is no DICOM file")
    if "TransferSyntaxUID" not in data.file_meta:  # an old file without the part that tells; this is what the standard then assumes
        data.file_meta.TransferSyntaxUID = pydicom.uid.ImplicitVRLittleEndian
    frames = int(data.get("NumberOfFrames") or 1)
    if frames > 1:
        raise BadInput(f"is a DICOM file of {frames} frames; save the one that is meant as a file of its own")
    stored = _stored(pydicom, data)
    if stored.ndim == 3:
        return np.rint(_full_range(stored @ LUMA, 0, 2 ** int(data.BitsStored) - 1)).astype(np.uint8)
    values = pydicom.pixels.apply_modality_lut(stored, data)
    if data.get("VOILUTSequence"):
        gray = _full_range(pydicom.pixels.apply_voi_lut(values, data), 0, 2 ** int(data.VOILUTSequence[0].LUTDescriptor[2]) - 1)
    elif data.get("WindowCenter") is not None and data.get("WindowWidth") is not None:
        centre, width = (float(np.atleast_1d(data[name].value)[0]) for name in ("WindowCenter", "WindowWidth"))
        ends = pydicom.pixels.apply_windowing(np.array([centre - FAR * width, centre + FAR * width]), data)
        gray = _full_range(pydicom.pixels.apply_windowing(values.astype(np.float64), data), *ends)
    else:
        padding = data.get("PixelPaddingValue")
        inside = values[stored != padding] if padding is not None and (stored != padding).any() else values
        gray = _full_range(values, inside.min(), inside.max())
    inverted = data.get("PhotometricInterpretation") == "MONOCHROME1"
    return np.rint(255 - gray if inverted else gray).astype(np.uint8)


def headers(files: Iterable[str | Path]) -> pd.DataFrame:
    """One row a DICOM file: image (its path), patient, sex (F, M or O), age in years and view, each None where it is not told.

    This is a frame for `Cohort.from_images(..., image="image", patient="patient", view="view")` once a label stands beside it.
    """
    rows, problems = [], []
    for file in files:
        try:
            rows.append({"image": str(file), **header(file)})
        except BadInput as error:
            problems.append(f"{file} {error}")
    raise_all(problems)
    return pd.DataFrame(rows, columns=["image", "patient", "sex", "age", "view"])


def header(file: str | Path) -> dict[str, object]:
    """Patient, sex, age and view in the header of one DICOM file, or an error that says what is wrong with it."""
    pydicom = _pydicom()
    state = file_state(file)
    if state is None:
        raise BadInput("no such file")
    if not state.st_size:
        raise BadInput("is empty (0 bytes)")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pydicom warns of every value that is not to the standard; ours are checked here
        try:
            data = pydicom.dcmread(file, stop_before_pixels=True)
            return {
                "patient": _text(data, "PatientID"),
                "sex": _text(data, "PatientSex"),
                "age": age(_text(data, "PatientAge")),
                "view": _text(data, "ViewPosition"),
            }
        except BadInput:
            raise
        except Exception as error:  # any bytes, so any error
            raise BadInput(f"cannot be read as DICOM: {(str(error).splitlines() or [type(error).__name__])[0]}") from error


def with_headers(
    frame: pd.DataFrame, files: Sequence[str | Path], progress: Callable[[int], None] | None = None
) -> tuple[pd.DataFrame, dict[int, str]]:
    """The frame with those of the columns sex, age and view that it lacks, from its rows' files; and what was wrong, by position."""
    lacking = [name for name in FROM_HEADER if name not in frame.columns]
    read: list[dict[str, object]] = []
    broken: dict[int, str] = {}
    for at, file in enumerate(files) if lacking else ():
        try:
            read.append(header(file))
        except BadInput as error:
            read.append({})
            broken[at] = str(error)
        if progress is not None:
            progress(1)
    return frame.assign(**{name: [row.get(name) for row in read] for name in lacking}), broken


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
    return pydicom


def _stored(pydicom: Any, data: Any) -> npt.NDArray[Any]:
    """The stored values (rows, columns), or (rows, columns, 3) for colour."""
    syntax = data.file_meta.TransferSyntaxUID
    try:
        if syntax.is_compressed and not pydicom.pixels.get_decoder(syntax).is_available:
            raise BadInput(f"is compressed as {syntax.name}, for which no codec is installed: pip install 'pylibjpeg[all]'")
    except NotImplementedError:
        raise BadInput(f"is compressed as {syntax.name}, which pydicom cannot decode. Convert it first.") from None
    values: npt.NDArray[Any] = pydicom.pixels.pixel_array(data)
    if data.get("PhotometricInterpretation") == "PALETTE COLOR":
        coloured = pydicom.pixels.apply_color_lut(values, data)[..., :3]
        # The colours of a palette have bits of their own.
        return np.asarray(coloured / (2 ** int(data.RedPaletteColorLookupTableDescriptor[2]) - 1) * (2 ** int(data.BitsStored) - 1))
    return values


def _full_range(values: npt.NDArray[Any], low: float, high: float) -> npt.NDArray[np.float64]:
    scaled = (values.astype(np.float64) - float(low)) * (255 / (float(high) - float(low)) if high > low else 0.0)
    return np.clip(scaled, 0, 255)


def _text(data: Any, keyword: str) -> str | None:
    value = data.get(keyword)
    return str(value).strip() or None if value is not None else None
