"""DICOM: pixels as a viewer shows them, and the header's sex, age and view."""

import sys
from functools import partial
from io import BytesIO
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from equipoise.data import Cohort, Images
from equipoise.data.decode import attempt, decode
from equipoise.data.dicom import add_dicom_columns, age_in_years, header, is_dicom, read_pixels
from equipoise.data.image_files import Broken, ImageLimit
from equipoise.data.preprocessing import Preprocessing
from equipoise.errors import BadInput, MissingExtra
from support.facts import facts, says
from support.image_files import file_of, files_of

pydicom = pytest.importorskip("pydicom", reason="DICOM needs pip install 'equipoise[dicom]'")

RAMP = np.tile(np.arange(8, dtype=np.uint16) * 500, (8, 1))  # 0 to 3500 of 4095, dark on the left


def _dicom(pixels: np.ndarray | None = RAMP, **tags) -> bytes:
    """The content of a small radiograph, with these tags set."""
    from pydicom.dataset import Dataset, FileMetaDataset
    from pydicom.uid import ComputedRadiographyImageStorage, ExplicitVRLittleEndian, generate_uid

    data = Dataset()
    data.file_meta = FileMetaDataset()
    data.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    data.file_meta.MediaStorageSOPClassUID = data.SOPClassUID = ComputedRadiographyImageStorage
    data.file_meta.MediaStorageSOPInstanceUID = data.SOPInstanceUID = generate_uid()
    data.PhotometricInterpretation = "MONOCHROME2"
    if pixels is not None:
        data.Rows, data.Columns = pixels.shape[:2]
        data.SamplesPerPixel, data.PixelRepresentation = 1, int(pixels.dtype.kind == "i")
        data.BitsAllocated = 8 * pixels.dtype.itemsize
        data.BitsStored = 12 if data.BitsAllocated == 16 else 8
        data.HighBit = data.BitsStored - 1
        data.PixelData = pixels.tobytes()
    for name, value in tags.items():
        setattr(data, name, value)
    target = BytesIO()
    data.save_as(target, enforce_file_format=True)
    return target.getvalue()


def test_without_a_window_the_range_of_the_image_is_used():
    assert (read_pixels(_dicom()) == np.rint(RAMP * (255 / 3500))).all()


def test_padding_does_not_count_for_the_range():
    padded = RAMP + 100
    padded[0] = 4095
    found = read_pixels(_dicom(padded, PixelPaddingValue=4095))
    assert (found[1:] == np.rint(RAMP[1:] * (255 / 3500))).all()


def test_a_window_clips_and_its_ends_are_black_and_white():
    found = read_pixels(_dicom(WindowCenter=1750.0, WindowWidth=1001.0))[0]
    assert found[:3].tolist() == [0, 0, 0]
    assert found[3] < 128 < found[4]
    assert found[5:].tolist() == [255, 255, 255]
    wide = read_pixels(_dicom(WindowCenter="2048", WindowWidth="4096"))[0]
    assert abs(wide - RAMP[0] * (255 / 4095)).max() < 1  # a window wider than the values is not stretched to them
    several = read_pixels(_dicom(WindowCenter=[1750.0, 0.0], WindowWidth=[1001.0, 1.0]))[0]
    assert (several == found).all()


def test_a_sigmoid_window():
    found = read_pixels(_dicom(WindowCenter=1750.0, WindowWidth=2000.0, VOILUTFunction="SIGMOID"))[0]
    assert abs(found - 255 / (1 + np.exp(-4 * (RAMP[0].astype(float) - 1750) / 2000))).max() <= 1


def test_the_window_applies_to_rescaled_values():
    plain = read_pixels(_dicom(WindowCenter=1750.0, WindowWidth=2001.0))
    moved = read_pixels(_dicom(RescaleSlope=2.0, RescaleIntercept=-1000.0, WindowCenter=2500.0, WindowWidth=4001.0))
    assert abs(plain.astype(int) - moved).max() <= 1


def test_a_voi_lut_takes_precedence_over_a_window():
    from pydicom.dataset import Dataset
    from pydicom.sequence import Sequence

    table = Dataset()
    table.LUTDescriptor = [4096, 0, 16]
    table.LUTData = np.where(np.arange(4096) < 1200, 10 * 257, 200 * 257).astype("<u2").tobytes()
    found = read_pixels(_dicom(VOILUTSequence=Sequence([table]), WindowCenter=1.0, WindowWidth=2.0))[0]
    assert found.tolist() == [10, 10, 10, 200, 200, 200, 200, 200]


def test_monochrome1_is_inverted():
    one, two = (read_pixels(_dicom(PhotometricInterpretation=f"MONOCHROME{k}")) for k in (1, 2))
    assert (one.astype(int) + two == 255).all()


def test_signed_values():
    found = read_pixels(_dicom(RAMP.astype(np.int16) // 2 - 1000))
    assert (found == np.rint(RAMP * (255 / 3500))).all()


def test_colour_becomes_luminance():
    red = np.zeros((4, 4, 3), np.uint8)
    red[..., 0] = 255
    assert set(read_pixels(_dicom(red, PhotometricInterpretation="RGB", SamplesPerPixel=3, PlanarConfiguration=0)).ravel()) == {76}


def test_images_read_dicom_by_content_or_name(tmp_path):
    (tmp_path / "a.dcm").write_bytes(_dicom())
    (tmp_path / "b").write_bytes(_dicom())
    images = Images.open([tmp_path / "a.dcm", tmp_path / "b"], size=4)
    assert (images.raw(0) == images.raw(1)).all()
    assert images.raw(0)[0, 0, 0] < images.raw(0)[0, 0, 3]
    assert is_dicom(_dicom())
    assert not is_dicom(b"PNG")


def test_an_old_file_without_preamble(tmp_path):
    from pydicom.uid import ImplicitVRLittleEndian

    data = pydicom.dcmread(BytesIO(_dicom()))
    data.file_meta.TransferSyntaxUID = ImplicitVRLittleEndian
    whole = BytesIO()
    pydicom.dcmwrite(whole, data, implicit_vr=True, little_endian=True)
    bare = pydicom.dataset.Dataset(data)
    stream = pydicom.filebase.DicomBytesIO()
    stream.is_little_endian, stream.is_implicit_VR = True, True
    pydicom.filewriter.write_dataset(stream, bare)
    path = tmp_path / "old.dcm"
    path.write_bytes(stream.getvalue())
    assert (decode(path, Preprocessing((8, 8))) == read_pixels(_dicom())).all()


def test_bad_files_are_listed_with_the_reason(tmp_path):
    from pydicom.encaps import encapsulate
    from pydicom.uid import JPEGLSLossless

    packed = pydicom.dcmread(BytesIO(_dicom()))
    packed.file_meta.TransferSyntaxUID = JPEGLSLossless
    packed.PixelData = encapsulate([b"\x00\x01"])
    packed["PixelData"].is_undefined_length = True
    target = BytesIO()
    packed.save_as(target, enforce_file_format=True)
    contents = {
        "report.dcm": _dicom(None),
        "packed.dcm": target.getvalue(),
        "cine.dcm": _dicom(np.concatenate([RAMP, RAMP]), NumberOfFrames=2, Rows=8),
        "cut.dcm": _dicom()[:-20],
        "text.dcm": b"",
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(BadInput) as caught:
        Images.open([tmp_path / name for name in contents], size=8)
    wrong = {name: next((line for line in str(caught.value).splitlines() if says(line, name)), "") for name in contents}
    if pydicom.pixels.get_decoder(JPEGLSLossless).is_available:
        wrong.pop("packed.dcm")
    else:
        assert says(wrong["packed.dcm"], "JPEG-LS", "pip install")
    assert all(wrong.values())
    assert says(wrong["cine.dcm"], 2)
    assert len({line.partition(": ")[2] for line in wrong.values()}) == len(wrong)  # each has a reason of its own


def test_a_missing_codec_is_reported_with_the_command_that_installs_it(monkeypatch):
    from pydicom.encaps import encapsulate
    from pydicom.uid import JPEGBaseline8Bit

    packed = pydicom.dcmread(BytesIO(_dicom()))
    packed.file_meta.TransferSyntaxUID = JPEGBaseline8Bit
    packed.PixelData = encapsulate([b"\x00\x01"])
    packed["PixelData"].is_undefined_length = True
    target = BytesIO()
    packed.save_as(target, enforce_file_format=True)
    monkeypatch.setattr("pydicom.pixels.get_decoder", lambda _: type("Decoder", (), {"is_available": False}))
    with pytest.raises(BadInput, match=facts("JPEG Baseline", "pip install 'pylibjpeg[all]'")):
        read_pixels(target.getvalue())


@pytest.mark.parametrize(
    ("text", "expected"), [("045Y", 45.0), ("006M", 0.5), ("104W", 1.993), ("010D", 0.027), ("45", 45.0), ("", None), (None, None)]
)
def test_ages(text, expected):
    assert age_in_years(text) == (None if expected is None else pytest.approx(expected, abs=1e-3))


def test_an_invalid_age_is_refused():
    with pytest.raises(BadInput, match=facts("old")):
        age_in_years("old")


def test_the_header_is_a_frame_that_makes_a_cohort(tmp_path):
    people = [
        ("p1", "F", "045Y", "PA"),
        ("p1", "F", "045Y", "LL"),
        ("p2", "M", "", "AP"),
        ("p3", "M", "006M", "PA"),
        ("p4", "", None, "PA"),
    ]
    for k, (patient, sex, years, view) in enumerate(people):
        tags = {"PatientID": patient, "PatientSex": sex, "ViewPosition": view} | ({} if years is None else {"PatientAge": years})
        (tmp_path / f"{k}.dcm").write_bytes(_dicom(**tags))
    frame = pd.DataFrame([{"image": str(path), **header(path)} for path in sorted(tmp_path.glob("*.dcm"))])
    assert frame["sex"].tolist()[:4] == ["F", "F", "M", "M"]
    assert pd.isna(frame["sex"][4])
    assert frame["age"].tolist()[:2] == [45.0, 45.0]
    assert frame["age"].isna().tolist() == [False, False, True, False, True]
    frame["sick"] = [1, 0, 0, 1, 0]
    cohort = Cohort.from_images(
        frame, folder=tmp_path, image="image", label="sick", group="sex", reference="M", patient="patient", view="view", size=8
    )
    assert [Path(name).name for name in cohort.ids] == ["0.dcm", "2.dcm", "3.dcm", "4.dcm"]
    assert cohort.groups.tolist() == ["F", "M", "M", None]


def test_headers_that_cannot_be_read_are_all_listed(tmp_path):
    (tmp_path / "a.dcm").write_bytes(b"nothing")
    (tmp_path / "b.dcm").write_bytes(_dicom(PatientAge="999Y"))
    (tmp_path / "c.dcm").write_bytes(_dicom().replace(b"DICM", b"DICX"))
    filled, broken = add_dicom_columns(pd.DataFrame({"image": list("abc")}), sorted(tmp_path.glob("*.dcm")))
    assert {at: (one.kind, Path(one.name).name) for at, one in broken.items()} == {0: ("damaged", "a.dcm"), 2: ("damaged", "c.dcm")}
    assert filled["age"].isna().tolist() == [True, False, True]


def test_only_missing_columns_come_from_the_headers(tmp_path):
    for name, tags in {"a": {"PatientSex": "F", "PatientAge": "045Y"}, "b": {"PatientSex": "M", "ViewPosition": "PA"}}.items():
        (tmp_path / name).write_bytes(_dicom(**tags))
    (tmp_path / "c").write_bytes(b"")
    frame = pd.DataFrame({"image": ["a", "b", "c", "d"], "sex": ["woman", "man", None, None]})
    seen: list[int] = []
    filled, broken = add_dicom_columns(frame, [tmp_path / name for name in frame["image"]], seen.append)
    assert filled["sex"].tolist()[:2] == ["woman", "man"]
    assert filled["age"].tolist()[0] == 45.0
    assert filled["age"].isna().tolist() == [False, True, True, True]
    assert filled["view"].tolist()[1] == "PA"
    assert {at: (one.kind, one.reason) for at, one in broken.items()} == {
        2: ("empty", "is empty (0 bytes)"),
        3: ("missing", "no such file"),
    }
    assert sum(seen) == 4
    assert list(frame.columns) == ["image", "sex"]
    whole, none = add_dicom_columns(filled, ["nowhere"] * 4)  # nothing is lacking, so no file is opened
    assert (whole.equals(filled), none) == (True, {})


def test_without_pydicom_the_error_names_the_pip_command(monkeypatch):
    content = _dicom()
    monkeypatch.setitem(sys.modules, "pydicom", None)
    with pytest.raises(MissingExtra, match=facts("pip install 'equipoise[dicom]'")):
        Images.open(files_of([content]), size=8)


def test_a_palette_goes_through_its_colours():
    ramp = (np.arange(256, dtype="<u2") * 257).tobytes()
    colours = {f"{c}PaletteColorLookupTableDescriptor": [256, 0, 16] for c in ("Red", "Green", "Blue")}
    tables = {f"{c}PaletteColorLookupTableData": ramp for c in ("Red", "Green", "Blue")}
    index = np.tile(np.arange(0, 256, 32, dtype=np.uint8), (8, 1))
    assert (read_pixels(_dicom(index, PhotometricInterpretation="PALETTE COLOR", **colours, **tables)) == index).all()


def _encapsulated(frame: bytes, syntax, side: int = 8) -> bytes:
    from pydicom.encaps import encapsulate

    data = pydicom.dcmread(BytesIO(_dicom(np.zeros((side, side), np.uint8))))
    data.file_meta.TransferSyntaxUID = syntax
    data["PixelData"] = pydicom.DataElement(0x7FE00010, "OB", encapsulate([frame]))
    data["PixelData"].is_undefined_length = True
    target = BytesIO()
    data.save_as(target, enforce_file_format=True)
    return target.getvalue()


def _wrong(content: bytes, pixels: int = 10_000) -> tuple[str, str]:
    found = attempt(file_of(content), partial(decode, how=Preprocessing((8, 8)), limit=ImageLimit(pixels)), ImageLimit(pixels), 0)[1]
    return (found.kind, found.reason) if isinstance(found, Broken) else ("", "")


@pytest.fixture
def small(monkeypatch):
    """Allows very few bytes in a file in addition to the pixels."""
    monkeypatch.setattr("equipoise.data.image_files.OVERHEAD", 2**14)


def test_the_pixels_that_a_header_names_are_checked_first():
    kind, reason = _wrong(_dicom(Rows=65535, Columns=65535))
    assert (kind, "65,535 x 65,535" in reason) == ("too large", True)
    kind, reason = _wrong(_dicom(Rows=90, Columns=90))
    assert (kind, "\n" in reason) == ("damaged", False)  # within the limit, and too short
    assert _wrong(_dicom(NumberOfFrames=2**31 - 1))[0] == "several frames"


@pytest.mark.parametrize("where", ["pixels", "beside"])
def test_inflating_a_deflated_file_stops_at_the_limit(where, small, tmp_path):
    from pydicom.uid import DeflatedExplicitVRLittleEndian

    def deflated(size: int) -> bytes:
        data = pydicom.dcmread(BytesIO(_dicom()))
        data.file_meta.TransferSyntaxUID = DeflatedExplicitVRLittleEndian
        if where == "beside":
            data.EncapsulatedDocument = bytes(size)
        else:
            data.Rows, data.Columns, data.PixelData = size // 4000, 2000, bytes(size)
        target = BytesIO()
        data.save_as(target, enforce_file_format=True)
        return target.getvalue()

    bomb = deflated(4_000_000)
    assert len(bomb) < 10_000
    assert _wrong(bomb)[0] == "too large"
    assert _wrong(deflated(4_000)) == ("", "")
    (tmp_path / "bomb.dcm").write_bytes(bomb)
    with pytest.raises(BadInput, match="inflates"):
        header(tmp_path / "bomb.dcm", ImageLimit(10_000))
    (tmp_path / "fine.dcm").write_bytes(deflated(4_000))
    assert header(tmp_path / "fine.dcm", ImageLimit(10_000))["patient"] is None


@pytest.mark.parametrize("kind", ["JPEG", "JPEG2000"])
def test_the_size_of_compressed_pixels_must_agree_with_the_header(kind):
    from PIL import Image
    from pydicom.uid import JPEG2000, JPEGBaseline8Bit

    target = BytesIO()
    Image.new("L", (40, 24), 200).save(target, kind)
    found = _wrong(_encapsulated(target.getvalue(), JPEGBaseline8Bit if kind == "JPEG" else JPEG2000))
    assert found[0] == "damaged"
    assert "40 x 24" in found[1]
    assert "8 x 8" in found[1]
    target = BytesIO()
    Image.new("L", (8, 8), 200).save(target, kind)
    assert _wrong(_encapsulated(target.getvalue(), JPEGBaseline8Bit if kind == "JPEG" else JPEG2000)) == ("", "")


def test_run_lengths_are_counted_before_they_are_decoded():
    from pydicom.uid import RLELossless

    start = np.array([1, 64, *[0] * 14], "<u4").tobytes()
    assert "run-length" in _wrong(_encapsulated(start + b"\x81\x07" * 5000, RLELossless))[1]
    assert _wrong(_encapsulated(start + b"\xc1\x07", RLELossless)) == ("", "")  # 64 bytes


def test_pixels_do_not_depend_on_the_block_size(monkeypatch):
    rng = np.random.default_rng(0)
    deep = rng.integers(0, 4096, (37, 23)).astype(np.uint16)
    contents = [
        _dicom(deep),
        _dicom(deep, PixelPaddingValue=int(deep[0, 0])),
        _dicom(deep, WindowCenter=1750.0, WindowWidth=1001.0, RescaleSlope=2.0, RescaleIntercept=-100.0),
        _dicom(deep, PhotometricInterpretation="MONOCHROME1"),
        _dicom(
            rng.integers(0, 256, (37, 23, 3), dtype=np.uint8), SamplesPerPixel=3, PlanarConfiguration=0, PhotometricInterpretation="RGB"
        ),
    ]
    whole = [read_pixels(content) for content in contents]
    monkeypatch.setattr("equipoise.data.dicom.PIXELS_PER_BLOCK", 100)
    for content, expected in zip(contents, whole, strict=True):
        assert expected.std() > 10
        assert (read_pixels(content) == expected).all()


def test_nan_and_infinite_pixels_are_refused():
    assert _wrong(_dicom(RescaleSlope="1e308", RescaleIntercept="1e308"))[0] == "damaged"


def test_a_patient_id_with_undecodable_characters_is_an_error(tmp_path):
    content = _dicom(SpecificCharacterSet="ISO_IR 192", PatientID="ABCD")
    (tmp_path / "a.dcm").write_bytes(content.replace(b"ABCD", b"\xffBCD"))
    with pytest.raises(BadInput, match="PatientID"):
        header(tmp_path / "a.dcm")
    (tmp_path / "a.dcm").write_bytes(content)
    assert header(tmp_path / "a.dcm")["patient"] == "ABCD"


def test_headers_that_name_other_patients_than_the_table_are_warned_about(tmp_path, caplog):
    table = ["0012", "0012", "0034", "0034"]

    def said(*told: str) -> str:
        files = []
        for at, patient in enumerate(told):
            files.append(tmp_path / f"{at}.dcm")
            files[-1].write_bytes(_dicom(PatientID=patient, PatientSex="F"))
        caplog.clear()
        frame = pd.DataFrame({"image": [file.name for file in files], "pid": table})
        assert add_dicom_columns(frame, files, patient="pid")[0]["sex"].tolist() == ["F"] * 4
        return caplog.text

    assert said(*table) == ""
    assert said("a", "a", "b", "b") == said("", "", "", "") == said("anonymous", "anonymous", "anonymous", "anonymous") == ""
    mixed = said("0012", "0034", "0034", "0012")
    assert "2 of 4" in mixed
    assert says(mixed, "row 2")
    assert "0034" not in mixed
    assert says(said("a", "b", "b", "a"), 2, "'pid'")


def test_a_backslash_in_the_header_is_kept(tmp_path):
    (tmp_path / "a.dcm").write_bytes(_dicom(PatientID="A\\1", PatientSex="M\\F"))
    found = header(tmp_path / "a.dcm")
    assert (found["patient"], found["sex"]) == ("A\\1", "M\\F")
