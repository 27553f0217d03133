"""MIMIC-CXR-JPG on a tiny tree with the real layout: labels, views and groups are joined by id."""

import gzip
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from equipoise.errors import BadInput, UnknownName
from equipoise.studies.sets.chest_xrays import CHEXPERT_FINDINGS, mimic_cxr
from support.facts import facts, says, suggests

# dicom_id, subject_id, study_id, view; the value of the pixels is ten times the place in this list
IMAGES = [
    ("02aa804e-bde0afdd", 10000032, 50414267, "PA"),
    ("174413ec-4ec4c1f7", 10000032, 50414267, "LATERAL"),
    ("2a2277a9-b0ded155", 10000032, 53189527, "AP"),
    ("e084de3b-be89b11e", 10000764, 57375967, "AP"),
    ("096052b7-d256dc40", 10000898, 50771383, "PA"),
    ("8959e402-2175d68d", 10001122, 53957785, "PA"),
    ("aa2f5acb-0b9b5cc8", 10001176, 53186264, "PA"),
    ("3a7ed0a9-7c8f9c1d", 10001217, 58913004, ""),
]
METADATA = "dicom_id,subject_id,study_id,PerformedProcedureStepDescription,ViewPosition,Rows,Columns\n" + "".join(
    f'{d},{p},{s},"CHEST (PA AND LAT)",{v},3056,2544\n' for d, p, s, v in reversed(IMAGES)
)
CHEXPERT = """subject_id,study_id,Atelectasis,Enlarged Cardiomediastinum,No Finding,Pneumonia
10000032,50414267,,,1.0,
10000032,53189527,,1.0,,
10000764,57375967,,-1.0,,1.0
10000898,50771383,1.0,1.0,,1.0
10001122,53957785,,,1.0,
10001176,53186264,,1.0,,1.0
10001217,58913004,,,1.0,
"""
SPLIT = "dicom_id,study_id,subject_id,split\n" + "".join(f"{d},{s},{p},{'test' if p == 10001176 else 'train'}\n" for d, p, s, _ in IMAGES)
PATIENTS = "subject_id,gender,anchor_age\n10000032,F,52\n10000764,M,86\n10000898,F,79\n10001122,M,40\n10001217,F,55\n10001176,M,64\n"
ADMISSIONS = """subject_id,hadm_id,race
10000032,1,WHITE
10000032,2,WHITE - RUSSIAN
10000764,3,HISPANIC/LATINO - PUERTO RICAN
10000898,4,BLACK/AFRICAN AMERICAN
10001122,5,HISPANIC OR LATINO
10001122,6,UNKNOWN
10001176,7,WHITE
10001176,8,HISPANIC/LATINO - CUBAN
"""


@pytest.fixture
def root(tmp_path) -> Path:
    for k, (image, patient, study, _) in enumerate(IMAGES):
        place = tmp_path / "files" / f"p{str(patient)[:2]}" / f"p{patient}" / f"s{study}"
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((20, 16), 10 * k, np.uint8)).save(place / f"{image}.jpg")
    for name, text in {"metadata": METADATA, "chexpert": CHEXPERT, "split": SPLIT}.items():
        (tmp_path / f"mimic-cxr-2.0.0-{name}.csv.gz").write_bytes(gzip.compress(text.encode()))
    (tmp_path / "hosp").mkdir()
    (tmp_path / "hosp" / "patients.csv.gz").write_bytes(gzip.compress(PATIENTS.encode()))
    (tmp_path / "hosp" / "admissions.csv").write_text(ADMISSIONS)
    return tmp_path


def _rows(cohort) -> dict[int, tuple[int, str, int]]:
    """Label, group and patient by position in IMAGES, which the pixels encode."""
    pixels = (cohort.source.raw(slice(None))[:, 0, 0].numpy() / 10).round().astype(int)
    return {int(k): (int(y), g, p) for k, y, g, p in zip(pixels, cohort.y, cohort.groups, cohort.patients, strict=True)}


def test_enlarged_cardiomediastinum_and_sex(root):
    cohort = mimic_cxr(root, size=8)
    # Without the lateral view, the uncertain label and the image without a view.
    assert _rows(cohort) == {
        0: (0, "F", "10000032"),
        2: (1, "F", "10000032"),
        4: (1, "F", "10000898"),
        5: (0, "M", "10001122"),
        6: (1, "M", "10001176"),
    }
    assert cohort.attribute.reference == "M"
    assert cohort.inputs.shape == (5, 1, 8, 8)
    assert "files/p10/p10000032/s50414267/02aa804e-bde0afdd.jpg" in cohort.ids


@pytest.mark.parametrize("column", ["race", "ethnicity"])
def test_pneumonia_and_ethnicity(root, column):
    (root / "hosp" / "admissions.csv").write_text(ADMISSIONS.replace("race", column))
    cohort = mimic_cxr(root, finding="Pneumonia", attribute="ethnicity", size=8)
    # 10000898 is of neither group, 10001176 of both in different admissions.
    assert _rows(cohort) == {0: (0, "white", "10000032"), 3: (1, "Hispanic/Latino", "10000764"), 5: (0, "Hispanic/Latino", "10001122")}
    assert cohort.attribute.reference == "white"


def test_one_part_of_the_official_split(root):
    assert set(_rows(mimic_cxr(root, official="train", size=8))) == {0, 2, 4, 5}


def test_tables_of_mimic_iv_may_be_elsewhere(root, tmp_path_factory):
    other = tmp_path_factory.mktemp("mimic-iv")
    (root / "hosp").rename(other / "core")
    assert len(mimic_cxr(root, mimic_iv=other, size=8)) == 5


def test_an_absent_image_is_named(root):
    gone = root / "files/p10/p10000898/s50771383/096052b7-d256dc40.jpg"
    gone.unlink()
    with pytest.raises(BadInput, match=facts("096052b7-d256dc40.jpg")):
        mimic_cxr(root, size=8)
    assert set(_rows(mimic_cxr(root, size=8, skip_broken=True))) == {0, 2, 5, 6}


def test_everything_that_is_missing_comes_in_one_message(root):
    (root / "mimic-cxr-2.0.0-metadata.csv.gz").unlink()
    (root / "hosp" / "patients.csv.gz").unlink()
    (root / "mimic-cxr-2.0.0-chexpert.csv.gz").write_bytes(gzip.compress(CHEXPERT.replace("Enlarged ", "").encode()))
    with pytest.raises(BadInput) as caught:
        mimic_cxr(root)
    assert len(caught.value.problems) == 3
    text = str(caught.value)
    assert says(text, "mimic-cxr-2.0.0-metadata.csv", "mimic-cxr-2.0.0-metadata.csv.gz")
    assert says(text, "mimic-cxr-2.0.0-chexpert.csv.gz", "'Enlarged Cardiomediastinum'")
    assert says(text, "patients.csv", "patients.csv.gz", "mimic_iv")


def test_tables_of_other_patients_are_refused(root):
    (root / "hosp" / "patients.csv.gz").write_bytes(gzip.compress(b"subject_id,gender\n1,F\n2,M\n"))
    with pytest.raises(BadInput, match="sex"):
        mimic_cxr(root, size=8)


def test_names_are_checked(root):
    with pytest.raises(UnknownName, match=suggests("pneumonia")):
        mimic_cxr(root, finding="pneumonai")
    with pytest.raises(UnknownName, match=facts("attribute", "mimic-cxr")):
        mimic_cxr(root, attribute="race")


def test_all_13_findings_of_the_table_can_be_selected():
    assert len(CHEXPERT_FINDINGS) == 13
    assert CHEXPERT_FINDINGS["support devices"] == "Support Devices"
