"""equipoise audit of DICOM files: groups and views from their headers."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from support.bright_images import AUDIT, MODEL, ROWS
from support.facts import says

COLUMNS = 120  # of the terminal


def _dicom(path: Path, value: int, **tags) -> None:
    from pydicom.dataset import Dataset, FileMetaDataset
    from pydicom.uid import ComputedRadiographyImageStorage, ExplicitVRLittleEndian, generate_uid

    data = Dataset()
    data.file_meta = FileMetaDataset()
    data.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    data.file_meta.MediaStorageSOPClassUID = data.SOPClassUID = ComputedRadiographyImageStorage
    data.file_meta.MediaStorageSOPInstanceUID = data.SOPInstanceUID = generate_uid()
    data.PhotometricInterpretation, data.SamplesPerPixel, data.PixelRepresentation = "MONOCHROME2", 1, 0
    data.Rows = data.Columns = 8
    data.BitsAllocated = data.BitsStored = 8
    data.HighBit = 7
    data.WindowCenter, data.WindowWidth = 128, 256
    data.PixelData = np.full((8, 8), value, np.uint8).tobytes()
    for name, tag in tags.items():
        setattr(data, name, tag)
    data.save_as(path, enforce_file_format=True)


@pytest.fixture
def scans(run, xrays, tmp_path) -> pd.DataFrame:
    """DICOM files with sex, age and view, and a table with labels and patients."""
    pytest.importorskip("pydicom", reason="DICOM needs pip install 'equipoise[dicom]'")
    frame = xrays.assign(image=lambda d: d["image"].str.replace("png", "dcm"))
    (tmp_path / "scans").mkdir()
    for row in frame.itertuples():
        _dicom(tmp_path / "scans" / row.image, row.brightness, PatientSex=row.sex, PatientAge="045Y", ViewPosition=row.view)
    frame[["image", "sick", "pid"]].to_csv("scans.csv", index=False)
    return frame


SCANS = [*AUDIT[2:], "--images", "scans", *MODEL]


def test_sex_and_view_come_from_the_headers(run, scans):
    code, out, err = run("audit", "scans.csv", *SCANS, "--set", "images.from_headers=true", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert (found["rows"], found["not_frontal"]) == (ROWS - 4, 4)
    kept = scans[scans["view"] == "PA"]
    assert {row["group"]: row["n"] for row in found["groups"]} == kept["sex"].value_counts().to_dict()
    assert says(run("audit", "scans.csv", *SCANS).err, "'sex'")


def test_a_column_of_the_file_overrides_the_header(run, scans):
    scans.assign(sex=lambda d: d["sex"].map({"F": "woman", "M": "man"}))[["image", "sick", "pid", "sex"]].to_csv("scans.csv", index=False)
    found = json.loads(run("audit", "scans.csv", *SCANS, "--reference", "man", "--set", "images.from_headers=true", "--json").out or "{}")
    assert not found  # two references were given
    arguments = [a if a != "M" else "man" for a in SCANS]
    found = json.loads(run("audit", "scans.csv", *arguments, "--set", "images.from_headers=true", "--json").out)
    assert {row["group"] for row in found["groups"]} == {"man", "woman"}


def _make_old(path: Path) -> None:
    """Writes an invalid age, which pydicom would refuse."""
    assert path.read_bytes().count(b"045Y") == 1
    path.write_bytes(path.read_bytes().replace(b"045Y", b"old "))


def test_bad_headers_and_bad_pixels_come_in_one_message_and_can_be_skipped(run, scans, tmp_path):
    folder = tmp_path / "scans"
    _make_old(folder / "01.dcm")
    (folder / "02.dcm").write_bytes(b"")
    (folder / "05.dcm").write_bytes(b"no dicom at all" * 20)
    (folder / "06.dcm").unlink()
    _dicom(folder / "08.dcm", 9, PatientSex="F", ViewPosition="PA", NumberOfFrames=4)
    code, out, err = run("audit", "scans.csv", *SCANS, "--set", "images.from_headers=true")
    assert (code, out) == (2, "")
    assert says(err.splitlines()[0], "error", 5, "scans.csv")
    for name, reason in {
        "01.dcm": ("row 2", "'old'", "045Y"),
        "02.dcm": ("row 3", "0 bytes"),
        "05.dcm": ("row 6", "DICOM"),
        "06.dcm": ("row 7",),
        "08.dcm": ("row 9", "4 frames"),
    }.items():
        [line] = [line for line in err.splitlines() if says(line, f"scans/{name}", reason[0])]
        assert says(line, *reason)
    assert err.count("images.skip_broken=true") == 1
    found = json.loads(
        run("audit", "scans.csv", *SCANS, "--set", "images.from_headers=true", "--set", "images.skip_broken=true", "--json").out
    )
    assert (found["left_out_count"], found["not_frontal"], found["rows"]) == (5, 4, ROWS - 9)


def test_bad_headers_are_reported_with_the_remedy(run, scans, tmp_path):
    _make_old(tmp_path / "scans" / "01.dcm")
    ran = run("audit", "scans.csv", *SCANS, "--set", "images.from_headers=true")
    assert ran.code == 2
    assert says(ran.err.splitlines()[0], "error", 2, "scans.csv")
    assert "images.skip_broken" in ran.err


def test_a_patient_with_two_sexes_in_the_headers_is_reported(run, scans, tmp_path):
    _dicom(tmp_path / "scans" / "00.dcm", 9, PatientSex="M", ViewPosition="PA")
    ran = run("audit", "scans.csv", *SCANS, "--set", "images.from_headers=true", "--set", "data.conflicts=error")
    assert ran.code == 2
    assert says(ran.err, "'pid'", "1 of 24", "'sex'", "p0")
    ran = run("audit", "scans.csv", *SCANS, "--set", "images.from_headers=true", "--json")
    assert json.loads(ran.out)["patients_in_several_groups"] == {"sex": 1}
