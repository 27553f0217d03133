"""An image classifier of transformers from a folder on the command line: its own preprocessing, its repair, the bundle and `apply`."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from equipoise.models import vision
from support.command import ran
from support.facts import says

vision.prepare_torchvision()
transformers = pytest.importorskip("transformers", reason="transformers is not installed")
ROWS, SIDE = 120, 14
ROLES = ["--images", "images", "--label", "sick", "--group", "sex", "--reference", "M", "--patient", "pid", "--set", "images.column=file"]
COLUMNS = 300


@pytest.fixture(scope="module")
def hospital(tmp_path_factory) -> Path:
    """A folder with a tiny network, its preprocessor, images and their table."""
    place = tmp_path_factory.mktemp("hospital")
    rng = np.random.default_rng(0)
    sex, y = rng.choice(["F", "M"], ROWS), rng.integers(0, 2, ROWS)
    (place / "images").mkdir()
    brightness = rng.normal(60, 20, ROWS) + 40 * y * np.where(sex == "F", 0.4, 1.0)
    pixels = np.clip(rng.integers(0, 60, (ROWS, 20, 18, 3)) + brightness[:, None, None, None], 0, 255)
    for k in range(ROWS):
        Image.fromarray(pixels[k].astype(np.uint8)).save(place / "images" / f"{k}.png")
    frame = pd.DataFrame({"file": [f"{k}.png" for k in range(ROWS)], "sex": sex, "sick": y, "pid": np.arange(ROWS)})
    frame.to_csv(place / "local.csv", index=False)
    frame.drop(columns="sick").to_csv(place / "new.csv", index=False)
    torch.manual_seed(0)
    config = transformers.ResNetConfig(embedding_size=4, hidden_sizes=[4, 4], depths=[1, 1], num_labels=2)
    network = transformers.ResNetForImageClassification(config)
    processor = transformers.CLIPImageProcessorPil(size={"shortest_edge": 15}, crop_size={"height": SIDE, "width": SIDE})
    x = torch.stack([processor(Image.open(place / "images" / f"{k}.png"), return_tensors="pt")["pixel_values"][0] for k in range(ROWS)])
    optimiser = torch.optim.Adam(network.parameters(), 0.02)
    for _ in range(25):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(network(pixel_values=x).logits, torch.tensor(y)).backward()
        optimiser.step()
    network.eval().save_pretrained(place / "net")
    processor.save_pretrained(place / "net")
    with torch.no_grad():
        known = network(pixel_values=x).logits.softmax(1)[:, 1].numpy()
    frame.assign(p=known).to_csv(place / "known.csv", index=False)
    return place


@pytest.fixture
def command(hospital, monkeypatch):
    monkeypatch.chdir(hospital)
    monkeypatch.setenv("COLUMNS", "300")
    return ran


def test_the_preprocessing_of_the_folder_is_adopted_and_reported(command):
    done = command("audit", "local.csv", *ROLES, "--model", "net", "--set", "model.check_scores=known.csv", "--score", "p")
    assert done.code == 0, done.err
    line = next(line for line in done.out.splitlines() if line.startswith("images: "))
    assert says(line, 15, SIDE, "bicubic", "preprocessor_config.json")
    other = command("audit", "local.csv", *ROLES, "--model", "net", "--set", "images.crop=13", "--json")
    assert json.loads(other.out)["preprocessing"]["crop"] == 13
    assert json.loads(other.out)["preprocessing"]["resize"] == 15


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        (["--set", "images.size=16"], {"resize": [16, 16], "crop": None, "interpolation": "bicubic"}),
        (
            ["--set", "images.normalise=unit", "--set", "images.interpolation=nearest"],
            {"resize": 15, "mean": [0, 0, 0], "interpolation": "nearest"},
        ),
        (["--set", "images.preset=torchvision"], {"resize": 256, "crop": 224, "interpolation": "bilinear"}),
    ],
)
def test_options_override_the_folder_and_are_named(command, options, wanted):
    done = command("audit", "local.csv", *ROLES, "--model", "net", "--out", "audit.json", *options)
    assert done.code == 0, done.err
    found = json.loads(Path("audit.json").read_text())["preprocessing"]
    assert {key: found[key] for key in wanted} == wanted
    line = next(line for line in done.out.splitlines() if line.startswith("images: "))
    assert says(line, "preprocessor_config.json", *(() if "images.preset" in options else options[::2]))


def test_other_channels_and_unknown_steps_are_refused(command, hospital):
    done = command("audit", "local.csv", *ROLES, "--model", "net", "--set", "images.channels=1")
    assert done.code == 2
    assert says(done.err, "--set", "images.channels=1", 3)
    path = hospital / "net" / "preprocessor_config.json"
    plain = path.read_text()
    try:
        path.write_text(json.dumps(json.loads(plain) | {"do_pad": True}))
        refused = command("audit", "local.csv", *ROLES, "--model", "net")
    finally:
        path.write_text(plain)
    assert refused.code == 2
    assert says(refused.err, "do_pad", "images.transform")


def test_a_network_of_transformers_is_repaired_saved_and_applied(command, hospital):
    repair = [
        "debias",
        "local.csv",
        *ROLES,
        "--model",
        "net",
        "--method",
        "bias-gda",
        "--set",
        "bias-gda.epochs=2",
        "--set",
        "report.onnx=false",
    ]
    repair += ["--set", "bias-gda.schedule=paper", "--set", "repair.recalibrate=false"]
    done = command(
        *repair,
        "--set",
        "goal.selection=paper",
        "--set",
        "goal.min_performance=0",
        "--threshold",
        "0.5",
        "--set",
        "repair.force=true",
        "--out",
        "repaired",
    )
    assert done.code == 0, done.err
    run = json.loads((hospital / "repaired" / "run.json").read_text())
    assert run["inputs"]["images"] | {"resize": 15, "crop": SIDE, "centre": "floor"} == run["inputs"]["images"]
    applied = command("apply", "repaired", "new.csv", "--images", "images", "--trust", "--out", "decided.csv")
    assert applied.code == 0, applied.err
    network = transformers.AutoModelForImageClassification.from_pretrained(hospital / "net")
    before, after = dict(network.state_dict()), load_file(hospital / "repaired" / "repaired.safetensors")
    assert set(after) == set(before)
    assert any(not torch.equal(before[name], after[name]) for name in after)
    network.load_state_dict(after)
    images = [Image.open(hospital / "images" / f"{k}.png") for k in range(ROWS)]
    with torch.no_grad():
        logits = network(**transformers.CLIPImageProcessorPil.from_pretrained(hospital / "net")(images, return_tensors="pt")).logits
    decided = pd.read_csv(hospital / "decided.csv")
    np.testing.assert_allclose(decided["score"], logits.softmax(1)[:, 1], atol=1e-5)
