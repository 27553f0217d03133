"""`equipoise audit` with a folder of images and a network, and `equipoise data cache`."""

import json
import os
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from equipoise.data import Images
from equipoise.models import backbone
from support.facts import says

COLUMNS = 120  # of the terminal
ROWS = 48
BUILD = """
import torch
from torch import nn

def build():
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1, 1))

def colour():
    return nn.Sequential(nn.Conv2d(3, 1, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())

def fixed():
    return nn.Sequential(nn.Flatten(), nn.Linear(96 * 96, 1))

class Many(nn.Module):
    def __init__(self):
        super().__init__()
        self.pathologies = ["Edema", "Effusion"]
        self.layer = nn.Linear(1, 2)

    def forward(self, x):
        return torch.stack([x.mean((1, 2, 3)), -x.mean((1, 2, 3))], 1) + 0 * self.layer.bias

class Foreign(nn.Linear):
    __module__ = "torchxrayvision.models"

def foreign():
    return Foreign(1, 1)
"""
AUDIT = ["--images", "xrays", "--label", "sick", "--group", "sex", "--reference", "M", "--patient", "pid", "--size", 8]
MODEL = ["--model", "net.py:build", "--weights", "w.safetensors"]


def _frame() -> pd.DataFrame:
    rows = np.arange(ROWS)
    return pd.DataFrame(
        {
            "image": [f"{k:02}.png" for k in rows],
            "sick": rows % 2,
            "sex": np.where(rows % 4 < 2, "F", "M"),
            "pid": [f"p{k // 2}" for k in rows],
            "view": np.where(rows % 12 == 11, "LATERAL", "PA"),
        }
    )


@pytest.fixture
def xrays(run, tmp_path) -> pd.DataFrame:
    """A folder of images whose brightness is known, a data file, a network and its weights."""
    frame, rng = _frame(), np.random.default_rng(0)
    frame["brightness"] = rng.integers(60, 160, ROWS) + 30 * frame["sick"]
    (tmp_path / "xrays" / "deep").mkdir(parents=True)
    for k, (name, value) in enumerate(zip(frame["image"], frame["brightness"], strict=True)):
        place = tmp_path / "xrays" / ("deep" if k % 3 else ".") / name
        Image.fromarray(np.full((8 + k % 5, 12), value, np.uint8)).save(place)  # of mixed size
    frame.drop(columns="brightness").to_csv("local.csv", index=False)
    (tmp_path / "net.py").write_text(BUILD)
    save_file({"2.weight": torch.tensor([[4.0]]), "2.bias": torch.tensor([0.0])}, "w.safetensors")
    return frame


def test_images_and_a_network_are_audited_by_the_names_of_the_rows(run, xrays):
    code, out, err = run("audit", "local.csv", *AUDIT, *MODEL, "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    decided = xrays["brightness"] / 255 >= 0.5  # the logit is 4 (pixel - 0.5) / 0.25
    assert found["accuracy"]["value"] == pytest.approx((decided == xrays["sick"]).mean())
    rate = decided[xrays["sick"] == 1].groupby(xrays["sex"]).mean()
    assert found["eod"]["value"] == pytest.approx(rate["F"] - rate["M"])
    assert (found["patients"], found["left_out"], found["left_out_count"], found["not_frontal"]) == (24, [], 0, 0)


def test_only_frontal_views_and_it_is_said(run, xrays):
    code, out, _ = run("audit", "local.csv", *AUDIT, *MODEL, "--view-column", "view")
    assert code == 0
    assert says(out, "local.csv", f"{ROWS - 4} rows", "4 rows", "frontal")
    assert json.loads(run("audit", "local.csv", *AUDIT, *MODEL, "--view-column", "view", "--json").out)["not_frontal"] == 4


@pytest.mark.parametrize("name", ["path", "file", "filename", "Image Index", "scan"])
def test_the_image_column_is_found_or_named(run, xrays, name):
    _frame().rename(columns={"image": name}).to_csv("local.csv", index=False)
    code, _, err = run("audit", "local.csv", *AUDIT, *MODEL, *(["--image-column", "scan"] if name == "scan" else []))
    assert (code, err) == (0, "")
    if name == "scan":
        code, _, err = run("audit", "local.csv", *AUDIT, *MODEL)
        assert code == 2
        assert says(err, "--image-column", "scan, sick")
        assert says(run("audit", "local.csv", *AUDIT, *MODEL, "--image-column", "scn").err, "'scn'", "'scan'")


def _break(folder: Path) -> dict[str, str]:
    """Makes images bad in every way; row and reason of each."""
    good = (folder / "00.png").read_bytes()
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64), dtype=np.uint8))
    noise.save(folder / "06.png")
    whole = (folder / "06.png").read_bytes()
    (folder / "06.png").write_bytes(whole[: len(whole) // 2])
    (folder / "03.png").write_bytes(b"")
    Image.fromarray(np.zeros((4, 4), np.uint8)).save(folder / "09.gif", save_all=True, append_images=[Image.new("L", (4, 4), 255)])
    (folder / "09.gif").replace(folder / "09.png")
    (folder / "12.png").write_bytes(b"no image")
    (folder / "15.png").unlink()
    assert (folder / "00.png").read_bytes() == good
    return {
        "row 4 below the header, xrays/03.png": "is empty (0 bytes)",
        "row 7 below the header, xrays/06.png": "cannot be decoded: image file is truncated",
        "row 10 below the header, xrays/09.png": "holds 2 frames (animated or several pages)",
        "row 13 below the header, xrays/12.png": "is no image that can be read",
        "row 16 below the header, xrays/15.png": "no such file",
    }


@pytest.fixture
def broken(xrays, tmp_path) -> dict[str, str]:
    for k in (3, 6, 9, 12, 15):
        assert (tmp_path / "xrays" / f"{k:02}.png").is_file()
    return _break(tmp_path / "xrays")


def test_every_broken_image_of_a_folder_is_in_one_message(run, broken, tmp_path):
    code, out, err = run("audit", "local.csv", *AUDIT, *MODEL, "--out", "result.json")
    assert (code, out) == (2, "")
    assert says(err.splitlines()[0], "error", 6, ROWS)
    for place, reason in broken.items():
        assert f"- {place}: {reason}" in err
    assert "--skip-broken" in err
    assert not (tmp_path / "result.json").exists()


def test_skipped_images_are_counted_and_listed(run, broken):
    code, out, err = run("audit", "local.csv", *AUDIT, *MODEL, "--skip-broken", "--json", "--out", "result.json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert (found["rows"], found["left_out_count"]) == (ROWS - 5, 5)
    assert found["left_out_kinds"] == {"missing": 1, "empty": 1, "not an image": 1, "several frames": 1, "damaged": 1}
    assert [reason.split(": ")[0] for reason in found.pop("left_out")] == [place.split(",")[0] for place in broken]
    assert ".png" not in out  # the rows tell whose they are, in the user's own table
    assert json.loads(Path("result.json").read_text()) == found  # which is passed on, and has the counts alone
    out = run("audit", "local.csv", *AUDIT, *MODEL, "--skip-broken").out
    assert says(out, "local.csv", 5, "row 13", "xrays/12.png")


def test_images_outside_the_folder_are_refused_unless_allowed(run, xrays, tmp_path):
    (tmp_path / "xrays" / "00.png").rename(tmp_path / "00.png")
    frame = _frame().assign(image=lambda d: ["../00.png", *d["image"][1:]])
    frame.to_csv("local.csv", index=False)
    code, out, err = run("audit", "local.csv", *AUDIT, *MODEL, "--skip-broken")
    assert (code, out) == (2, "")
    for part in ("row 1 below the header", "'../00.png'", "--allow-outside"):
        assert part in err
    assert run("audit", "local.csv", *AUDIT, *MODEL, "--allow-outside").code == 0
    assert says(run("audit", "local.csv", *AUDIT[2:], *MODEL, "--allow-outside").err, "--allow-outside", "--images")


def test_of_very_many_reasons_a_hundred_are_listed(run, xrays):
    more = pd.concat(
        [_frame(), _frame().assign(image=[f"no{k}" for k in range(ROWS)]), _frame().assign(image=[f"x{k}" for k in range(ROWS)])]
    )
    more = pd.concat([more, _frame().head(8).assign(image=[f"z{k}" for k in range(8)])])
    more.to_csv("local.csv", index=False)
    found = json.loads(run("audit", "local.csv", *AUDIT, *MODEL, "--skip-broken", "--json").out)
    assert (len(found["left_out"]), found["left_out_count"], found["rows"]) == (100, 104, ROWS)
    assert says(run("audit", "local.csv", *AUDIT, *MODEL, "--skip-broken").out, 99)


def test_images_of_every_kind_and_size_go_through(run, xrays, tmp_path):
    ramp = np.tile(np.arange(0, 256, 16, dtype=np.uint8), (16, 1))
    kinds = [Image.fromarray(ramp).convert(mode) for mode in ("RGB", "RGBA", "P", "LA", "1")]
    kinds.append(Image.fromarray(ramp.astype(np.uint16) * 200))
    for k, image in enumerate(kinds):
        image.save(tmp_path / "xrays" / f"{3 * k:02}.png")
    assert run("audit", "local.csv", *AUDIT, *MODEL).code == 0


def test_a_threshold_is_chosen_on_other_images(run, xrays):
    _frame().head(16).assign(image=lambda d: ["lost", *d["image"][1:]]).to_csv("valid.csv", index=False)
    code, out, _ = run("audit", "local.csv", *AUDIT, *MODEL, "--valid", "valid.csv", "--skip-broken", "--json")
    assert code == 0
    found = json.loads(out)
    assert says(found["decision"], 15, "valid.csv")
    assert (found["left_out_count"], found["valid_left_out_count"]) == (0, 1)


def test_the_cache_is_used_when_it_is_named(run, xrays, tmp_path):
    assert run("audit", "local.csv", *AUDIT, *MODEL, "--cache", "kept").code == 0
    [pixels] = (tmp_path / "kept").glob("*.npy")
    assert np.load(pixels).shape == (ROWS, 8, 8)


# networks


def test_a_backbone_by_name_with_its_weights(run, xrays):
    torch.manual_seed(0)
    network = backbone("resnet-18").eval()
    save_file(network.state_dict(), "resnet.safetensors")
    arguments = ["audit", "local.csv", *AUDIT, "--size", 32, "--measure", "auroc", "--model", "resnet-18"]
    code, out, err = run(*arguments, "--weights", "resnet.safetensors", "--json")
    assert (code, err) == (0, "")
    images = Images.open([next(Path("xrays").rglob(name)) for name in xrays["image"]], size=32)
    with torch.no_grad():
        logits = network(images[:])[:, 0]
    sick = torch.tensor(xrays["sick"].to_numpy()) == 1
    above = (logits[sick][:, None] > logits[~sick]).double() + 0.5 * (logits[sick][:, None] == logits[~sick])
    assert json.loads(out)["auroc"]["value"] == pytest.approx(above.mean().item(), abs=2e-3)
    for more, said in (
        (["--model", "resnet18"], "squeezenet, efficientnet-lite0, efficientnet-lite1); got 'resnet18'"),
        ([], "untrained backbone for images; add --weights"),
        (["--weights", "w.safetensors"], "weights of the network are not in the file"),
        (["--weights", "resnet.safetensors", "--channels", 3], "It takes images of shape (1, 32, 32): read them with channels=1"),
    ):
        ran = run(*arguments, *more)
        assert ran.code == 2
        assert said in ran.err


def test_one_of_many_outputs_by_name_or_number(run, xrays):
    found = {}
    for which in ("Edema", "Effusion", 0, 1):
        ran = run("audit", "local.csv", *AUDIT, "--model", "net.py:Many", "--output-name", which, "--json")
        assert ran.code == 0
        found[which] = json.loads(ran.out)["auroc"]["value"]
    assert found["Edema"] == found[0] == pytest.approx(1 - found["Effusion"])
    assert found["Effusion"] == found[1]
    ran = run("audit", "local.csv", *AUDIT, "--model", "net.py:Many", "--output-name", "Efusion")
    assert ran.code == 2
    assert says(ran.err, "'Efusion'", "'Effusion'")
    assert "returned (48, 2)" in run("audit", "local.csv", *AUDIT, "--model", "net.py:Many").err


@pytest.mark.parametrize(("norm", "least"), [("xray", 0.5), ("unit", 0.0), ("0.4/0.5", 0.4)])
def test_a_norm_reaches_the_network(run, xrays, norm, least):
    found = json.loads(run("audit", "local.csv", *AUDIT, *MODEL, "--normalise", norm, "--json").out)
    decided = xrays["brightness"] / 255 >= least  # where the logit changes its sign
    assert found["accuracy"]["value"] == pytest.approx((decided == xrays["sick"]).mean())


def test_a_network_of_torchxrayvision_must_be_told_its_range(run, xrays):
    ran = run("audit", "local.csv", *AUDIT, "--model", "net.py:foreign")
    assert ran.code == 2
    assert says(ran.err, -1024, 1024, "--normalise xray")


@pytest.mark.parametrize(
    ("factory", "parts"),
    [
        ("fixed", ["shape (1, 8, 8)", "shape (1, 96, 96)", "--size 96"]),
        ("colour", ["shape (1, 8, 8)", "--channels 3"]),
    ],
)
def test_a_network_for_other_images_says_which(run, xrays, factory, parts):
    ran = run("audit", "local.csv", *AUDIT, "--model", f"net.py:{factory}")
    assert ran.code == 2
    for part in parts:
        assert part in ran.err
    assert ran.err.count("error: ") == 1


BAD = {
    "options without images": (
        ["--model", "net.py:build", "--size", 8, "--skip-broken", "--normalise", "xray"],
        ["--size requires --images", "--skip-broken requires --images", "--normalise requires --images"],
    ),
    "scores and images": (["--images", "xrays", "--score", "sick"], ["--images requires --model"]),
    "features and images": (["--images", "xrays", *MODEL, "--feature", "sick"], ["--feature", "--images"]),
    "an id and images": (["--images", "xrays", *MODEL, "--id", "image"], ["with --images the image name is the id"]),
    "an unknown norm": (
        ["--images", "xrays", *MODEL, "--normalise", "xrays"],
        ["--normalise must be imagenet, xray, unit, inception, clip or MEAN/STD", "Did you mean 'xray'?"],
    ),
    "a std of nought": (["--images", "xrays", *MODEL, "--normalise", "0.5/0"], ["std must be positive"]),
    "two channels": (["--images", "xrays", *MODEL, "--channels", 2], ["channels must be one of 1, 3; got 2"]),
    "no size": (["--images", "xrays", *MODEL, "--size", 0], ["size must be at least 1 pixel; got 0"]),
    "no folder": (["--images", "absent", *MODEL], ["no such folder: absent"]),
    "no such view column": (["--images", "xrays", *MODEL, "--view-column", "vew"], ["no column 'vew'. Did you mean 'view'?"]),
    "a backbone for a table": (["--model", "resnet-18", "--weights", "w.safetensors"], ["for images; add --images"]),
}


@pytest.mark.parametrize("case", BAD)
def test_options_that_do_not_go_together_get_one_message(run, xrays, case):
    arguments, expected = BAD[case]
    code, out, err = run("audit", "local.csv", "--label", "sick", "--group", "sex", *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    for part in expected:
        assert part in err


# DICOM headers


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
    """DICOM files that alone know sex, age and view; labels and patients in a file."""
    pytest.importorskip("pydicom", reason="DICOM needs pip install 'equipoise[dicom]'")
    frame = xrays.assign(image=lambda d: d["image"].str.replace("png", "dcm"))
    (tmp_path / "scans").mkdir()
    for row in frame.itertuples():
        _dicom(tmp_path / "scans" / row.image, row.brightness, PatientSex=row.sex, PatientAge="045Y", ViewPosition=row.view)
    frame[["image", "sick", "pid"]].to_csv("scans.csv", index=False)
    return frame


SCANS = [*AUDIT[2:], "--images", "scans", *MODEL]


def test_sex_and_view_come_from_the_headers(run, scans):
    code, out, err = run("audit", "scans.csv", *SCANS, "--from-headers", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert (found["rows"], found["not_frontal"]) == (ROWS - 4, 4)
    kept = scans[scans["view"] == "PA"]
    assert {row["group"]: row["n"] for row in found["groups"]} == kept["sex"].value_counts().to_dict()
    assert says(run("audit", "scans.csv", *SCANS).err, "'sex'")


def test_a_column_of_the_file_goes_before_the_header(run, scans):
    scans.assign(sex=lambda d: d["sex"].map({"F": "woman", "M": "man"}))[["image", "sick", "pid", "sex"]].to_csv("scans.csv", index=False)
    found = json.loads(run("audit", "scans.csv", *SCANS, "--reference", "man", "--from-headers", "--json").out or "{}")
    assert not found  # two references were given
    arguments = [a if a != "M" else "man" for a in SCANS]
    found = json.loads(run("audit", "scans.csv", *arguments, "--from-headers", "--json").out)
    assert {row["group"] for row in found["groups"]} == {"man", "woman"}


def _make_old(path: Path) -> None:
    """An age that is none, which pydicom would not write."""
    assert path.read_bytes().count(b"045Y") == 1
    path.write_bytes(path.read_bytes().replace(b"045Y", b"old "))


def test_bad_headers_and_bad_pixels_come_in_one_message_and_can_be_skipped(run, scans, tmp_path):
    folder = tmp_path / "scans"
    _make_old(folder / "01.dcm")
    (folder / "02.dcm").write_bytes(b"")
    (folder / "05.dcm").write_bytes(b"no dicom at all" * 20)
    (folder / "06.dcm").unlink()
    _dicom(folder / "08.dcm", 9, PatientSex="F", ViewPosition="PA", NumberOfFrames=4)
    code, out, err = run("audit", "scans.csv", *SCANS, "--from-headers")
    assert (code, out) == (2, "")
    assert says(err.splitlines()[0], "error", 6, "scans.csv")
    for name, reason in {
        "01.dcm": ("row 2", "'old'", "045Y"),
        "02.dcm": ("row 3", "0 bytes"),
        "05.dcm": ("row 6", "DICOM"),
        "06.dcm": ("row 7",),
        "08.dcm": ("row 9", "4 frames"),
    }.items():
        [line] = [line for line in err.splitlines() if says(line, f"scans/{name}", reason[0])]
        assert says(line, *reason)
    assert err.count("--skip-broken") == 1
    found = json.loads(run("audit", "scans.csv", *SCANS, "--from-headers", "--skip-broken", "--json").out)
    assert (found["left_out_count"], found["not_frontal"], found["rows"]) == (5, 4, ROWS - 9)


def test_bad_headers_alone_are_told_with_the_remedy(run, scans, tmp_path):
    _make_old(tmp_path / "scans" / "01.dcm")
    ran = run("audit", "scans.csv", *SCANS, "--from-headers")
    assert ran.code == 2
    assert says(ran.err.splitlines()[0], "error", 2, "scans.csv")
    assert "--skip-broken" in ran.err


def test_a_patient_with_two_sexes_in_the_headers_is_reported(run, scans, tmp_path):
    _dicom(tmp_path / "scans" / "00.dcm", 9, PatientSex="M", ViewPosition="PA")
    ran = run("audit", "scans.csv", *SCANS, "--from-headers", "--conflicts", "error")
    assert ran.code == 2
    assert says(ran.err, "'pid'", "1 of 24", "'sex'", "p0")
    ran = run("audit", "scans.csv", *SCANS, "--from-headers", "--json")
    assert json.loads(ran.out)["patients_in_several_groups"] == {"sex": 1}


# the cache


def _age(path: Path, days: float) -> None:
    os.utime(path, (time.time() - days * 86_400,) * 2)


def test_caches_are_listed_and_cleared_by_age(run, xrays, tmp_path, monkeypatch):
    assert run("data", "cache").out == f"0 caches, 0.0 MiB, in {tmp_path / 'cache' / 'images'}\n"
    monkeypatch.setattr("equipoise.data.image_cache.IN_MEMORY", 0)
    for size in (8, 16):
        assert run("audit", "local.csv", *AUDIT, *MODEL, "--size", size).code == 0
    listed = json.loads(run("data", "cache", "--json").out)
    assert sorted((c["images"], c["size"], c["removed"]) for c in listed["caches"]) == [(ROWS, 8, False), (ROWS, 16, False)]
    assert listed["bytes"] == sum(p.stat().st_size for p in (tmp_path / "cache" / "images").iterdir())
    small = Path(next(c["path"] for c in listed["caches"] if c["size"] == 8))
    _age(small, 40)
    shown = run("data", "cache").out.splitlines()
    assert says(shown[1], small, ROWS, "8 px", "0.0 MiB", "40 days")
    code, out, _ = run("data", "cache", "--clear", "--older-than", 30)
    assert (code, out.splitlines()[-1]) == (0, f"removed 1 caches, 0.0 MiB, in {small.parent}")
    assert not small.exists()
    assert not small.with_suffix(".json").exists()
    assert len(json.loads(run("data", "cache", "--json").out)["caches"]) == 1
    assert run("data", "cache", "--clear").code == 0
    assert not list(small.parent.iterdir())
    assert run("audit", "local.csv", *AUDIT, *MODEL).code == 0  # and it is made anew


def test_a_named_cache_folder_and_bad_options(run, xrays, tmp_path):
    run("audit", "local.csv", *AUDIT, *MODEL, "--cache", "kept")
    assert len(json.loads(run("data", "cache", "--folder", "kept", "--json").out)["caches"]) == 1
    assert says(run("data", "cache", "--folder", "absent").err, "absent")
    ran = run("data", "cache", "--older-than", "-1")
    assert (ran.code, "--older-than" in ran.err and "got -1" in ran.err) == (2, True)


def test_a_large_cache_is_said_on_stderr_and_stdout_stays_json(run, xrays, monkeypatch):
    monkeypatch.setattr("equipoise.data.image_cache.PLENTY", 10)
    code, out, err = run("audit", "local.csv", *AUDIT, *MODEL, "--cache", "kept", "--json")
    assert code == 0
    assert json.loads(out)["rows"] == ROWS
    assert says(err, "kept", "GiB", "equipoise data cache --folder kept")
