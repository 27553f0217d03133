"""NIH ChestX-ray14 in both layouts: tiny trees that the test writes, then a few of the real images."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from equipoise.errors import BadInput, UnknownName
from equipoise.studies.sets.chest_xrays import nih
from support.facts import facts, suggests

# image, finding, patient, age, sex, view
ROWS = [
    ("00000001_000", "Effusion|Mass", 1, 57, "M", "PA"),
    ("00000001_001", "No Finding", 1, 61, "M", "AP"),
    ("00000002_000", "Effusion", 2, 80, "F", "PA"),
    ("00000003_000", "No Finding", 3, 30, "F", "PA"),
    ("00000004_000", "Hernia", 4, 70, "F", "PA"),
    ("00000005_000", "No Finding", 5, 414, "M", "LL"),
    ("00000006_000", "No Finding", 6, 414, "M", "PA"),
]
OURS = "image,patient,sex,age,view,finding\n"
# The header of the official file, with its commas inside names and its comma at the end.
OFFICIAL = "Image Index,Finding Labels,Follow-up #,Patient ID,Patient Age,Patient Gender,View Position,OriginalImage[Width,Height],\n"
RELEASED = "Image Index,Finding Labels,Follow-up #,Patient ID,Patient Age,Patient Sex,View Position,OriginalImage[Width,Height]\n"


def _images(folder: Path, suffix: str, rows=range(7)) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for k in rows:
        Image.fromarray(np.full((8, 8), 10 * k, np.uint8)).save(folder / f"{ROWS[k][0]}{suffix}")


@pytest.fixture
def ours(tmp_path) -> Path:
    _images(tmp_path / "images", ".png")
    (tmp_path / "metadata.csv").write_text(OURS + "".join(f"{i}.png,{p:08},{s},{a},{v},{f}\n" for i, f, p, a, s, v in ROWS))
    return tmp_path


@pytest.fixture(params=["Data_Entry_2017.csv", "Data_Entry_2017_v2020.csv"])
def official(tmp_path, request) -> Path:
    _images(tmp_path / "images_001" / "images", ".png", range(4))
    _images(tmp_path / "images_002" / "images", ".png", range(4, 7))
    header, end = (OFFICIAL, ",") if request.param == "Data_Entry_2017.csv" else (RELEASED, "")
    (tmp_path / request.param).write_text(
        header + "".join(f"{i}.png,{f},0,{p},{a:03}Y,{s},{v},2682,2749{end}\n" for i, f, p, a, s, v in ROWS)
    )
    return tmp_path


def _pixels(cohort) -> list[int]:
    return cohort.source.raw(slice(None))[:, 0, 0].tolist()


def test_any_finding_against_none_on_frontal_views(ours):
    cohort = nih(ours, size=8)
    assert cohort.ids.tolist() == [f"{ROWS[k][0]}.png" for k in (0, 1, 2, 3, 4, 6)]
    assert cohort.y.tolist() == [1, 0, 1, 0, 1, 0]
    assert cohort.groups.tolist() == ["M", "M", "F", "F", "F", "M"]
    assert cohort.attribute.reference == "M"
    assert _pixels(cohort) == [0, 10, 20, 30, 40, 60]
    assert cohort.patients[0] == cohort.patients[1] != cohort.patients[2]


def test_the_official_layout_gives_the_same_rows(official):
    cohort = nih(official, finding="effusion", size=8)
    assert cohort.y.tolist() == [1, 0, 1, 0, 0]  # the hernia is neither positive nor negative
    assert _pixels(cohort) == [0, 10, 20, 30, 60]
    assert nih(official, size=8, channels=3).inputs.shape == (6, 3, 8, 8)


def test_age_is_that_of_the_first_image_and_a_typing_error_is_missing(ours):
    cohort = nih(ours, attribute="age", size=8)
    assert cohort.groups.tolist() == ["<60", "<60", ">=60", "<60", ">=60", None]
    assert cohort.attribute.reference == ">=60"  # the older, as in the paper's MIMIC-III


def test_the_age_limit_between_the_groups_can_be_chosen(ours):
    cohort = nih(ours, attribute="age", older=75, size=8)
    assert cohort.groups.tolist() == ["<75", "<75", ">=75", "<75", "<75", None]
    assert cohort.attribute.reference == ">=75"
    with pytest.raises(BadInput, match=facts(1, 120, 0)):
        nih(ours, attribute="age", older=0)


def test_one_view_can_be_selected(ours):
    assert "00000001_001.png" not in nih(ours, views="PA", size=8).ids


def test_an_absent_image_is_named_with_the_row_of_the_csv(ours):
    (ours / "images" / "00000006_000.png").unlink()
    with pytest.raises(BadInput, match=facts(7, "00000006_000.png")):
        nih(ours, size=8)
    assert len(nih(ours, size=8, skip_broken=True)) == 5


def test_all_problems_of_the_input_are_reported(ours, tmp_path):
    with pytest.raises(UnknownName, match=suggests("effusion")):
        nih(ours, finding="efusion")
    with pytest.raises(UnknownName, match=facts("attribute", "nih")):
        nih(ours, attribute="race")
    with pytest.raises(BadInput, match=facts("metadata.csv")):
        nih(tmp_path / "images")
    table = ours / "metadata.csv"
    text = table.read_text()
    table.write_text(text.replace(",57,", ",old,").replace(",30,", ",?,"))
    with pytest.raises(BadInput, match=facts(2, 1, "old", 4)):
        nih(ours, size=8)
    table.write_text(text.replace("finding", "label").replace("sex", "gender"))
    with pytest.raises(BadInput, match=facts("sex", "Patient Sex", "finding")):
        nih(ours)


def test_real_images(data_root):
    if not (data_root / "cxr-nih" / "metadata.csv").is_file():
        pytest.skip("no cxr-nih in EQUIPOISE_DATA")
    cohort = nih(data_root / "cxr-nih", finding="effusion", views="AP", size=32)
    assert set(cohort.groups) == {"F", "M"}
    assert 0.2 < cohort.inputs[:64].std().item() < 2
    assert len(set(cohort.patients)) < len(cohort)
