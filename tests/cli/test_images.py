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
from support.bright_images import AUDIT, MODEL, ROWS, rows_frame
from support.command import instead
from support.facts import says

COLUMNS = 120  # of the terminal


def test_images_are_joined_to_rows_by_name(run, xrays):
    code, out, err = run("audit", "local.csv", *AUDIT, *MODEL, "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    decided = xrays["brightness"] / 255 >= 0.5  # the logit is 4 (pixel - 0.5) / 0.25
    assert found["accuracy"]["value"] == pytest.approx((decided == xrays["sick"]).mean())
    rate = decided[xrays["sick"] == 1].groupby(xrays["sex"]).mean()
    assert found["eod"]["value"] == pytest.approx(rate["F"] - rate["M"])
    assert (found["patients"], found["left_out"], found["left_out_count"], found["not_frontal"]) == (24, [], 0, 0)


def test_only_frontal_views_are_used_and_the_others_reported(run, xrays):
    code, out, _ = run("audit", "local.csv", *AUDIT, *MODEL, "--set", "data.view=view")
    assert code == 0
    assert says(out, "local.csv", f"{ROWS - 4} rows", "4 rows", "frontal")
    assert json.loads(run("audit", "local.csv", *AUDIT, *MODEL, "--set", "data.view=view", "--json").out)["not_frontal"] == 4


@pytest.mark.parametrize("name", ["path", "file", "filename", "Image Index", "scan"])
def test_the_image_column_is_found_or_named(run, xrays, name):
    rows_frame().rename(columns={"image": name}).to_csv("local.csv", index=False)
    code, _, err = run("audit", "local.csv", *AUDIT, *MODEL, *(["--set", "images.column=scan"] if name == "scan" else []))
    assert (code, err) == (0, "")
    if name == "scan":
        code, _, err = run("audit", "local.csv", *AUDIT, *MODEL)
        assert code == 2
        assert says(err, "images.column", "scan, sick")
        assert says(run("audit", "local.csv", *AUDIT, *MODEL, "--set", "images.column=scn").err, "'scn'", "'scan'")


def _break(folder: Path) -> dict[str, str]:
    """Damages images in every way; returns the reason by row."""
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
        "row 13 below the header, xrays/12.png": "cannot be read as an image",
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
    assert says(err.splitlines()[0], "error", len(broken), ROWS)
    for place, reason in broken.items():
        assert f"- {place}: {reason}" in err
    assert "images.skip_broken" in err
    assert not (tmp_path / "result.json").exists()


def test_skipped_images_are_counted_and_listed(run, broken):
    code, out, err = run("audit", "local.csv", *AUDIT, *MODEL, "--set", "images.skip_broken=true", "--json", "--out", "result.json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert (found["rows"], found["left_out_count"]) == (ROWS - 5, 5)
    assert found["left_out_kinds"] == {"missing": 1, "empty": 1, "not an image": 1, "several frames": 1, "damaged": 1}
    assert [reason.split(": ")[0] for reason in found.pop("left_out")] == [place.split(",")[0] for place in broken]
    assert ".png" not in out  # names of images are in the table of the user
    shared = json.loads(Path("result.json").read_text())  # may be shared, and has only the counts
    assert shared | {"checksum": ""} == found | {"checksum": ""}
    out = run("audit", "local.csv", *AUDIT, *MODEL, "--set", "images.skip_broken=true").out
    assert says(out, "local.csv", 5, "row 13", "xrays/12.png")


def test_images_outside_the_folder_are_refused_unless_allowed(run, xrays, tmp_path):
    (tmp_path / "xrays" / "00.png").rename(tmp_path / "00.png")
    frame = rows_frame().assign(image=lambda d: ["../00.png", *d["image"][1:]])
    frame.to_csv("local.csv", index=False)
    code, out, err = run("audit", "local.csv", *AUDIT, *MODEL, "--set", "images.skip_broken=true")
    assert (code, out) == (2, "")
    for part in ("row 1 below the header", "'../00.png'", "--set", "images.allow_outside=true"):
        assert part in err
    assert run("audit", "local.csv", *AUDIT, *MODEL, "--set", "images.allow_outside=true").code == 0
    assert says(
        run("audit", "local.csv", *AUDIT[2:], *MODEL, "--set", "images.allow_outside=true").err,
        "images.allow_outside",
        "--images",
    )


def test_at_most_a_hundred_reasons_are_listed(run, xrays):
    more = pd.concat(
        [
            rows_frame(),
            rows_frame().assign(image=[f"no{k}" for k in range(ROWS)]),
            rows_frame().assign(image=[f"x{k}" for k in range(ROWS)]),
        ]
    )
    more = pd.concat([more, rows_frame().head(8).assign(image=[f"z{k}" for k in range(8)])])
    more.to_csv("local.csv", index=False)
    found = json.loads(run("audit", "local.csv", *AUDIT, *MODEL, "--set", "images.skip_broken=true", "--json").out)
    assert (len(found["left_out"]), found["left_out_count"], found["rows"]) == (100, 104, ROWS)
    assert says(run("audit", "local.csv", *AUDIT, *MODEL, "--set", "images.skip_broken=true").out, 99)


def test_images_of_every_kind_and_size_are_read(run, xrays, tmp_path):
    ramp = np.tile(np.arange(0, 256, 16, dtype=np.uint8), (16, 1))
    kinds = [Image.fromarray(ramp).convert(mode) for mode in ("RGB", "RGBA", "P", "LA", "1")]
    kinds.append(Image.fromarray(ramp.astype(np.uint16) * 200))
    for k, image in enumerate(kinds):
        image.save(tmp_path / "xrays" / f"{3 * k:02}.png")
    assert run("audit", "local.csv", *AUDIT, *MODEL).code == 0


def test_a_threshold_is_chosen_on_other_images(run, xrays):
    rows_frame().head(16).assign(image=lambda d: ["lost", *d["image"][1:]]).to_csv("valid.csv", index=False)
    code, out, _ = run("audit", "local.csv", *AUDIT, *MODEL, "--valid", "valid.csv", "--set", "images.skip_broken=true", "--json")
    assert code == 0
    found = json.loads(out)
    assert says(found["decision"], 15, "valid.csv")
    assert (found["left_out_count"], found["valid_left_out_count"]) == (0, 1)


def test_a_named_cache_is_used(run, xrays, tmp_path):
    assert run("audit", "local.csv", *AUDIT, *MODEL, "--set", "images.cache=kept").code == 0
    [pixels] = (tmp_path / "kept").glob("*.npy")
    assert np.load(pixels).shape == (ROWS, 8, 8)


# networks


def test_a_backbone_by_name_with_its_weights(run, xrays):
    torch.manual_seed(0)
    network = backbone("resnet-18").eval()
    save_file(network.state_dict(), "resnet.safetensors")
    arguments = ["audit", "local.csv", *instead(AUDIT, "--set", "images.size=32"), "--measure", "auroc", "--model", "resnet-18"]
    code, out, err = run(*arguments, "--weights", "resnet.safetensors", "--json")
    assert (code, err) == (0, "")
    images = Images.open([next(Path("xrays").rglob(name)) for name in xrays["image"]], size=32)
    with torch.no_grad():
        logits = network(images[:])[:, 0]
    sick = torch.tensor(xrays["sick"].to_numpy()) == 1
    above = (logits[sick][:, None] > logits[~sick]).double() + 0.5 * (logits[sick][:, None] == logits[~sick])
    assert json.loads(out)["auroc"]["value"] == pytest.approx(above.mean().item(), abs=2e-3)
    for more, said in (
        (["--model", "resnet18"], "densenet-121, squeezenet); got 'resnet18'"),
        ([], "untrained backbone for images; add --weights"),
        (["--weights", "w.safetensors"], "weights of the network are not in the file"),
        (
            ["--weights", "resnet.safetensors", "--set", "images.channels=3"],
            "It takes images of shape (1, 32, 32): read them with channels=1",
        ),
    ):
        ran = run(*instead(arguments, *more))
        assert ran.code == 2
        assert said in ran.err


def test_one_of_many_outputs_by_name_or_number(run, xrays):
    found = {}
    for which in ("Edema", "Effusion", 0, 1):
        ran = run("audit", "local.csv", *AUDIT, "--model", "net.py:Many", "--set", f"model.outputs={which}", "--json")
        assert ran.code == 0
        found[which] = json.loads(ran.out)["auroc"]["value"]
    assert found["Edema"] == found[0] == pytest.approx(1 - found["Effusion"])
    assert found["Effusion"] == found[1]
    ran = run("audit", "local.csv", *AUDIT, "--model", "net.py:Many", "--set", "model.outputs=Efusion")
    assert ran.code == 2
    assert says(ran.err, "'Efusion'", "'Effusion'")
    assert "returned (48, 2)" in run("audit", "local.csv", *AUDIT, "--model", "net.py:Many").err


@pytest.mark.parametrize(("norm", "least"), [("xray", 0.5), ("unit", 0.0), ("0.4/0.5", 0.4)])
def test_a_norm_reaches_the_network(run, xrays, norm, least):
    found = json.loads(run("audit", "local.csv", *AUDIT, *MODEL, "--set", f"images.normalise={norm}", "--json").out)
    decided = xrays["brightness"] / 255 >= least  # where the logit changes its sign
    assert found["accuracy"]["value"] == pytest.approx((decided == xrays["sick"]).mean())


def test_a_network_of_torchxrayvision_needs_its_pixel_range(run, xrays):
    ran = run("audit", "local.csv", *AUDIT, "--model", "net.py:foreign")
    assert ran.code == 2
    assert says(ran.err, -1024, 1024, "images.normalise", "xray")


@pytest.mark.parametrize(
    ("factory", "parts"),
    [
        ("fixed", ["shape (1, 8, 8)", "shape (1, 96, 96)", "images.size=96"]),
        ("colour", ["shape (1, 8, 8)", "images.channels=3"]),
    ],
)
def test_an_error_of_shape_says_which_images_the_network_takes(run, xrays, factory, parts):
    ran = run("audit", "local.csv", *AUDIT, "--model", f"net.py:{factory}")
    assert ran.code == 2
    for part in parts:
        assert part in ran.err
    assert ran.err.count("error: ") == 1


BAD = {
    "options without images": (
        ["--model", "net.py:build", "--set", "images.size=8", "--set", "images.skip_broken=true", "--set", "images.normalise=xray"],
        ["images.size requires", "images.skip_broken requires", "images.normalise requires"],
    ),
    "scores and images": (["--images", "xrays", "--score", "sick"], ["(--images) requires"]),
    "features and images": (["--images", "xrays", *MODEL, "--set", "data.features=sick"], ["data.features", "images"]),
    "an id and images": (["--images", "xrays", *MODEL, "--set", "data.id=image"], ["the image name is the id"]),
    "an unknown norm": (
        ["--images", "xrays", *MODEL, "--set", "images.normalise=xrays"],
        ["normalise must be imagenet, xray, unit, inception, clip or MEAN/STD", "Did you mean 'xray'?"],
    ),
    "a std of nought": (["--images", "xrays", *MODEL, "--set", "images.normalise=0.5/0"], ["std must be positive"]),
    "two channels": (["--images", "xrays", *MODEL, "--set", "images.channels=2"], ["channels must be one of 1, 3; got 2"]),
    "no size": (["--images", "xrays", *MODEL, "--set", "images.size=0"], ["size must be at least 1 pixel; got 0"]),
    "no folder": (["--images", "absent", *MODEL, "--patient", "pid"], ["no such folder: absent"]),
    "no such view column": (["--images", "xrays", *MODEL, "--set", "data.view=vew"], ["no column 'vew'. Did you mean 'view'?"]),
    "a backbone for a table": (["--model", "resnet-18", "--weights", "w.safetensors"], ["for images; add --images"]),
}


@pytest.mark.parametrize("case", BAD)
def test_options_that_cannot_be_combined_get_one_message(run, xrays, case):
    arguments, expected = BAD[case]
    code, out, err = run("audit", "local.csv", "--label", "sick", "--group", "sex", *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    for part in expected:
        assert part in err


# the cache


def _age(path: Path, days: float) -> None:
    os.utime(path, (time.time() - days * 86_400,) * 2)


def test_caches_are_listed_and_cleared_by_age(run, xrays, tmp_path, monkeypatch):
    assert run("data", "cache").out == f"0 caches, 0.0 MiB, in {tmp_path / 'cache' / 'images'}\n"
    monkeypatch.setattr("equipoise.data.images.IN_MEMORY", 0)
    for size in (8, 16):
        assert run("audit", "local.csv", *instead(AUDIT, "--set", f"images.size={size}"), *MODEL).code == 0
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
    assert run("audit", "local.csv", *AUDIT, *MODEL).code == 0  # and it is made again


def test_a_named_cache_folder_and_bad_options(run, xrays, tmp_path):
    run("audit", "local.csv", *AUDIT, *MODEL, "--set", "images.cache=kept")
    assert len(json.loads(run("data", "cache", "--folder", "kept", "--json").out)["caches"]) == 1
    assert says(run("data", "cache", "--folder", "absent").err, "absent")
    ran = run("data", "cache", "--older-than", "-1")
    assert (ran.code, "--older-than" in ran.err and "got -1" in ran.err) == (2, True)


def test_a_large_cache_is_reported_on_stderr_and_stdout_stays_json(run, xrays, monkeypatch):
    monkeypatch.setattr("equipoise.data.images.LARGE_CACHE", 10)
    code, out, err = run("audit", "local.csv", *AUDIT, *MODEL, "--set", "images.cache=kept", "--json")
    assert code == 0
    assert json.loads(out)["rows"] == ROWS
    assert says(err, "kept", "GiB", "equipoise data cache --folder kept")


def test_altered_pixels_in_a_cache_are_decoded_again_with_a_warning(run, xrays):
    first = run("audit", "local.csv", *AUDIT, *MODEL, "--set", "images.cache=kept", "--json")
    (pixels,) = Path("kept").glob("*.npy")
    beside = pixels.with_suffix(".json")
    good, notes = pixels.read_bytes(), beside.read_text()
    zeros = good[:-64] + bytes(64)
    flipped = good[:-5] + bytes([good[-5] ^ 1]) + good[-4:]
    for content, note in (
        (zeros, notes),
        (flipped, notes),
        (good[:-1], notes),
        (good, "{}"),
        (good, notes.replace("{}", '{"7": ["a", "b"]}')),
    ):
        pixels.write_bytes(content)
        beside.write_text(note)
        again = run("audit", "local.csv", *AUDIT, *MODEL, "--set", "images.cache=kept", "--json")
        assert (again.code, again.out) == (0, first.out)
        assert says(again.err, pixels.name, "decoded again")
        assert (pixels.read_bytes(), beside.read_text()) == (good, notes)
    assert run("audit", "local.csv", *AUDIT, *MODEL, "--set", "images.cache=kept", "--json").err == ""
