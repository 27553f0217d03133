"""DICOM: tags that say something else, damaged files, other transfer syntaxes, and files of gigabytes.

What does not concern the pixels must not change the score; the scores of the other rows never change.
"""

import io
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from fuzz.base import NEW, image_names, serving
from fuzz.bytes import mutated
from fuzz.case import Case
from fuzz.families.images import judged, scores, table

TAGS: list[tuple[str, list[Any]]] = [
    ("Rows", [0, 1, 15, 17, 65535]),
    ("Columns", [0, 1, 8, 65535]),
    ("BitsAllocated", [0, 1, 7, 12, 16, 32, 64]),
    ("BitsStored", [0, 4, 9, 16, 60000]),
    ("HighBit", [0, 15, 60000]),
    ("PixelRepresentation", [1, 7]),
    ("SamplesPerPixel", [0, 2, 3, 60000]),
    ("PhotometricInterpretation", ["MONOCHROME1", "RGB", "PALETTE COLOR", "YBR_FULL", "", "x" * 200]),
    ("NumberOfFrames", ["2", "0", "-1", "99999999", "x"]),
    ("RescaleSlope", ["0", "2", "-1", "1e308", "x", "nan"]),
    ("RescaleIntercept", ["-1024", "1e308", "x"]),
    ("WindowWidth", ["0", "1", "-5", "1e308", "x"]),
    ("WindowCenter", ["0", "128", "1e308", "x"]),
    ("PixelPaddingValue", [0, 255, 65535]),
    ("PlanarConfiguration", [1, 9]),
]
BENIGN: list[tuple[str, Any]] = [
    ("PatientName", "Smith^J\u00f6rg"), ("PatientID", "=cmd()"), ("PatientAge", "???"), ("StudyDate", "not a date"), ("Modality", "CR"),
    ("InstitutionName", "x" * 400), ("PatientSex", "Z"), ("ViewPosition", "LL"), ("SeriesNumber", "99999999999999"),
]  # fmt: skip


def case(base: Path, place: Path, rng: np.random.Generator) -> Case:
    import pydicom
    from pydicom.uid import DeflatedExplicitVRLittleEndian, ImplicitVRLittleEndian

    known = [str(Path(name).with_suffix(".dcm")) for name in image_names()[:NEW]]
    own = scores(base, np.load(base / "pixels.npy")[:NEW])
    expected: dict[str, float | None] = {name: float(score) for name, score in zip(known, own, strict=True)}
    root = place / "dicoms"
    shutil.copytree(base / "dicoms", root)
    at = int(rng.integers(NEW))
    path, kind = root / known[at], rng.random()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        data = pydicom.dcmread(path)
        if kind < 0.25:
            name, value = BENIGN[int(rng.integers(len(BENIGN)))]
            setattr(data, name, value)
            data.SpecificCharacterSet = "ISO_IR 192"
            what = f"{name} = {str(value)[:20]!r}"
            if rng.random() < 0.3:
                data.file_meta.TransferSyntaxUID = ImplicitVRLittleEndian
                what += ", implicit VR"
            data.save_as(path, enforce_file_format=True)
        elif kind < 0.55:
            what = ""
            for _ in range(int(rng.integers(1, 3))):
                name, values = TAGS[int(rng.integers(len(TAGS)))]
                value = values[int(rng.integers(len(values)))]
                what += f"{name} = {str(value)[:20]!r} "
                try:
                    setattr(data, name, value)
                except Exception:  # a value that pydicom itself does not let in
                    continue
            try:
                data.save_as(path, enforce_file_format=True)
            except Exception:  # pydicom cannot write such a value: the bytes of the file are changed instead
                what, content = mutated(path.read_bytes(), rng)
                path.write_bytes(content)
            expected[known[at]] = None
        elif kind < 0.6:
            data.Rows, data.Columns, data.PixelData = 30_000, 30_000, bytes(30_000 * 300)
            data.file_meta.TransferSyntaxUID = DeflatedExplicitVRLittleEndian
            data.save_as(path, enforce_file_format=True)
            what = "a deflated file of 30,000 pixels a side"
            del expected[known[at]]
        else:
            what, content = mutated(path.read_bytes(), rng)
            path.write_bytes(content)
            if not _readable(content):
                del expected[known[at]]
            elif not _same_pixels(content, np.load(base / "pixels.npy")[at]):
                expected[known[at]] = None
    skip = rng.random() < 0.4
    file = table(base, place, known, "dicoms")
    command = [*serving(base, base / "bundles" / "images", "images", file, root), *(["--set", "images.skip_broken=true"] if skip else [])]
    return Case(what, command, lambda outcome: judged(outcome, known, expected, skip))


def _readable(content: bytes) -> bool:
    import pydicom

    try:
        data = pydicom.dcmread(io.BytesIO(content), force=True)
        if "TransferSyntaxUID" not in data.file_meta:
            data.file_meta.TransferSyntaxUID = pydicom.uid.ImplicitVRLittleEndian
        return bool(data.pixel_array.size)
    except Exception:  # whatever pydicom raises for these bytes
        return False


def _same_pixels(content: bytes, pixels: Any) -> bool:
    """Whether the pixels, and everything that says how they are shown, are those of the sound file."""
    import pydicom

    data = pydicom.dcmread(io.BytesIO(content), force=True)
    if "TransferSyntaxUID" not in data.file_meta:
        return False
    plain = not any(name in data for name, _ in TAGS if name.startswith(("Rescale", "Window", "PixelPadding", "NumberOf")))
    plain &= data.get("PhotometricInterpretation") == "MONOCHROME2" and "VOILUTSequence" not in data and "ModalityLUTSequence" not in data
    return bool(plain and np.array_equal(data.pixel_array, pixels))
