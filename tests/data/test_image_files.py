"""The image of a row is exactly the named file inside the folder; any other name is missing, ambiguous or refused."""

import os
import unicodedata
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from equipoise.data import Cohort, find_files
from equipoise.data.image_files import IMAGE_SUFFIXES, file_state
from equipoise.errors import BadInput
from support.facts import facts, says


def _made(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(name.encode())
    return folder


def _found(folder: Path, *names: object, **options) -> list[str | None]:
    """The file of each name, relative to the folder; None for a missing image."""
    paths = find_files(pd.Series(names, dtype=object), folder, "image", **options)
    return [str(path.relative_to(folder)) if file_state(path) else None for path in paths]


@pytest.mark.parametrize(
    "name", ["patA/view1.png", "patA/view1", "./patA/view1.png", "patA\\view1.png", "view1.png/", "patB/view1", "/view1.png"]
)
def test_a_path_is_that_path_or_missing_and_never_another_patients_file(tmp_path, name):
    folder = _made(tmp_path / "in", "patB/view1.png", "patB/view2.png")
    if name == "/view1.png":
        with pytest.raises(BadInput, match="outside"):
            _found(folder, name, "patB/view2.png")
    else:
        assert _found(folder, name, "patB/view2.png") == [None, "patB/view2.png"]


def test_an_absolute_path_is_that_path(tmp_path):
    folder = _made(tmp_path / "in", "patB/view1.png", "patB/view2.png")
    assert _found(folder, str(folder / "patB/view2.png")) == ["patB/view2.png"]
    assert _found(folder, str(folder / "patA/view1.png"), "view2.png") == [None, "patB/view2.png"]
    paths = find_files(pd.Series([str(tmp_path / "patA/view1.png"), "view2.png"]), folder, "image", allow_outside=True)
    assert [path.is_file() for path in paths] == [False, True]


def test_the_last_component_of_a_uid_is_no_suffix(tmp_path):
    folder = _made(tmp_path, "a/1.2.840.5.1", "b/1.2.840.6.1.dcm", "c/good.png")
    assert _found(folder, "1.2.840.5", "1.2.840.6", "good") == [None, None, "c/good.png"]
    assert _found(folder, "1.2.840.5.1", "1.2.840.6.1") == ["a/1.2.840.5.1", "b/1.2.840.6.1.dcm"]


@pytest.mark.parametrize("suffix", [*sorted(IMAGE_SUFFIXES), ".DCM", ".Png"])
def test_a_bare_name_may_lack_the_suffix_of_an_image(tmp_path, suffix):
    folder = _made(tmp_path, f"deep/00012{suffix}", f"12{suffix}", "deep/00013.txt", "deep/00014.csv", "deep/00015.tar.gz")
    assert _found(folder, "00012", "12", "0012", "00013", "00014", "00015") == [
        f"deep/00012{suffix}",
        f"12{suffix}",
        None,
        None,
        None,
        None,
    ]


def test_a_name_with_an_image_suffix_gets_no_second_one(tmp_path):
    folder = _made(tmp_path, "a/x.png.jpg", "a/y.png")
    assert _found(folder, "x.png", "y.jpg", "y") == [None, None, "a/y.png"]
    assert _found(folder, "x.png.jpg") == ["a/x.png.jpg"]


def test_names_are_compared_byte_by_byte(tmp_path):
    composed, taken_apart = (unicodedata.normalize(form, "Zoë.png") for form in ("NFC", "NFD"))
    folder = _made(tmp_path, f"a/{composed}", "a/good.png", "a/Upper.PNG")
    for wrong in (taken_apart, "good.png ", " good.png", "Good.png", "GOOD", "good.PNG", "upper", "Upper.png", "goo?.png", "*.png", "a\0b"):
        assert _found(folder, wrong, composed) == [None, f"a/{composed}"], wrong
    assert _found(folder, "x" * 5000, "good") == [None, "a/good.png"]
    assert _found(folder, "a/" + "x" * 5000, "good") == [None, "a/good.png"]


def test_a_name_is_text_and_not_a_number(tmp_path):
    folder = _made(tmp_path, *(f"a/{name}.png" for name in ("12", "00012", "1e5", "100000", "True", "NA", "null", "12.0")))
    assert _found(folder, "00012", "12", "1e5", "True", "NA", "null", "12.0") == [
        f"a/{name}.png" for name in ("00012", "12", "1e5", "True", "NA", "null", "12.0")
    ]
    assert _found(folder, 12) == ["a/12.png"]


def test_a_bare_name_must_be_unique_below_the_folder(tmp_path):
    folder = _made(tmp_path, "a/1.png", "b/1.png", "2.png", "b/2.png", "c/3", "c/3.png")
    with pytest.raises(BadInput) as caught:
        find_files(pd.Series(["1.png", "2.png", "3", "1"]), folder, "image", rows=[11, 12, 13, 14])
    assert len(caught.value.problems) == 3
    for problem, row, name in zip(caught.value.problems, (11, 13, 14), ("1.png", "3", "1"), strict=True):
        assert f"row {row} " in problem
        assert repr(name) in problem
        assert "2 files" in problem
    assert _found(folder, "2.png", "b/2.png", "a/1.png") == ["2.png", "b/2.png", "a/1.png"]  # which are paths


@pytest.mark.parametrize(
    "names", [("1", "1.png"), ("a/1.png", "1.png"), ("a/1.png", "./a/1.png"), ("1", "a/../a/1.png"), ("1", "link.png")]
)
def test_two_names_never_share_a_file(tmp_path, names):
    folder = _made(tmp_path, "a/1.png", "a/2.png")
    (folder / "link.png").symlink_to(folder / "a" / "1.png")
    with pytest.raises(BadInput) as caught:
        find_files(pd.Series([names[0], "2", names[1]]), folder, "image")
    [problem] = caught.value.problems
    for part in (*map(repr, names), "row 1 ", "row 3 ", "1.png"):
        assert part in problem
    assert _found(folder, "1", "2", "1") == ["a/1.png", "a/2.png", "a/1.png"]  # one name twice is for the check of ids


def _outside(tmp_path: Path) -> Path:
    folder = _made(tmp_path / "in", "good.png", "deep/in.png")
    _made(tmp_path, "secret.png", "elsewhere/far.png", "in-too/x.png")
    (folder / "link.png").symlink_to(tmp_path / "secret.png")
    (folder / "deep" / "below.png").symlink_to("../../secret.png")
    (folder / "dir").symlink_to(tmp_path / "elsewhere")
    (folder / "within.png").symlink_to("deep/in.png")
    return folder


OUTSIDE = [
    "../secret.png",
    "deep/../../secret.png",
    "{}/secret.png",
    "link.png",
    "link",
    "deep/below.png",
    "below",
    "dir/far.png",
    "../in-too/x.png",
]


@pytest.mark.parametrize("name", [*OUTSIDE, "../absent.png", "/dev/zero", ".."])
def test_a_path_outside_the_folder_is_refused_with_its_row(tmp_path, name):
    folder, name = _outside(tmp_path), name.format(tmp_path)
    with pytest.raises(BadInput) as caught:
        find_files(pd.Series(["good.png", name]), folder, "image", rows=[5, 9])
    [problem] = caught.value.problems
    for part in ("row 9 ", repr(name), "--set", "images.allow_outside=true"):
        assert part in problem


@pytest.mark.parametrize("name", OUTSIDE)
def test_a_path_outside_the_folder_can_be_allowed(tmp_path, name):
    folder, name = _outside(tmp_path), name.format(tmp_path)
    paths = find_files(pd.Series(["good.png", name]), folder, "image", allow_outside=True)
    assert paths[1].resolve().read_bytes() in (b"secret.png", b"elsewhere/far.png", b"in-too/x.png")


def test_dots_and_links_inside_the_folder_are_allowed(tmp_path):
    folder = _outside(tmp_path)
    assert _found(folder, "deep/../good.png") == ["deep/../good.png"]
    assert _found(folder, "within.png") == ["within.png"]
    (tmp_path / "alias").symlink_to(folder)
    assert _found(tmp_path / "alias", "good.png", "in") == ["good.png", "deep/in.png"]
    assert _found(tmp_path / "alias", "absent.png", "in") == [None, "deep/in.png"]


def test_at_most_a_hundred_wrong_names_are_listed(tmp_path):
    _made(tmp_path, "good.png")
    with pytest.raises(BadInput) as caught:
        find_files(pd.Series(["good.png", *(f"../{k}.png" for k in range(150))]), tmp_path, "image")
    assert len(caught.value.problems) == 101
    assert "50 more" in caught.value.problems[-1]


def test_devices_and_folders_are_missing_images(tmp_path):
    folder = _made(tmp_path, "good.png", "deep/in.png")
    os.mkfifo(folder / "pipe.png")
    assert _found(folder, "pipe.png", "deep", ".", "good.png") == [None, None, None, "good.png"]


def test_a_cohort_never_gets_the_image_of_another_patient(tmp_path):
    for name, value in {"patB/view1.png": 200, "patC/view1.png": 50, "patC/view2.png": 60, "patB/view2.png": 70}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.fromarray(np.full((8, 8), value, np.uint8)).save(tmp_path / name)
    frame = pd.DataFrame(
        {
            "image": ["patA/view1.png", "patB/view1.png", "patB/view2.png", "patC/view1.png"],
            "sick": [0, 1, 0, 1],
            "sex": ["F", "M", "M", "F"],
            "pid": ["A", "B", "B", "C"],
        }
    )
    options = {"folder": tmp_path, "image": "image", "label": "sick", "group": "sex", "patient": "pid", "size": 8}
    with pytest.raises(BadInput) as caught:
        Cohort.from_images(frame, **options)
    assert "row 1 " in caught.value.problems[0]
    assert says(caught.value.problems[0], "patA/view1.png")
    cohort = Cohort.from_images(frame, **options, skip_broken=True)
    assert cohort.patients.tolist() == ["B", "B", "C"]
    assert cohort.source.raw(slice(None))[:, 0, 0].tolist() == [200, 70, 50]


def test_an_ambiguous_name_is_not_reported_as_missing(tmp_path):
    with pytest.raises(BadInput, match=facts(2, "files")) as refused:
        _found(_made(tmp_path / "in", "a.png", "a.dcm"), "a")
    assert len(refused.value.problems) == 1
