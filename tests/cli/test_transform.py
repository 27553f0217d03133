"""The user's transform in the repair and for new patients: recorded with its checksum, and refused if it has changed."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from equipoise.case import Bundle
from support import hospital
from support.facts import says

TRANSFORM = f"""
import numpy as np
import torch

def transform(image):
    small = np.array(image.convert("L").resize(({hospital.SIDE + 2},) * 2))[1:-1, 1:-1]
    return (torch.from_numpy(small)[None].float() / 255 - 0.5) / 0.25

def makes():
    return transform
"""
ROLES = ["--label", "sick", "--group", "sex", "--reference", "M", "--patient", "pid", "--images", "xrays"]
NETWORK = ["--model", "net.py:cnn", "--weights", "cnn.safetensors"]
REPAIR = [
    "--method",
    "group-thresholds",
    "--measure",
    "spd",
    "--set",
    "goal.min_performance=0.5",
    "--set",
    "report.onnx=false",
    "--set",
    "repair.force=true",
    "--out",
    "repaired",
]


@pytest.fixture
def folder(run, tmp_path) -> Path:
    hospital.images(tmp_path)
    (tmp_path / "prepare.py").write_text(TRANSFORM)
    return tmp_path


def _plain(folder: Path) -> np.ndarray:
    """The scores by plain PyTorch code."""
    place: dict = {}
    exec(TRANSFORM, place)
    network = hospital.network("cnn")
    network.load_state_dict(load_file(folder / "cnn.safetensors"))
    names = pd.read_csv(folder / "images.csv")["image"]
    rows = torch.stack([place["transform"](Image.open(folder / "xrays" / name)) for name in names])
    with torch.no_grad():
        return torch.sigmoid(network.eval()(rows)[:, 0].double()).numpy()


def test_new_patients_get_the_transform_of_the_repair(run, folder):
    frame = pd.read_csv(folder / "images.csv")
    frame[["image"]].assign(p=_plain(folder)).to_csv("known.csv", index=False)
    check = ["--set", "model.check_scores=known.csv", "--set", "model.known=p"]
    ran = run("debias", "images.csv", *ROLES, *NETWORK, "--set", f"images.size={hospital.SIDE}", *check, *REPAIR)
    assert (ran.code, (folder / "repaired").exists()) == (2, False)
    assert says(ran.err, "known.csv", "differ", "AUROC")
    code, out, _ = run("debias", "images.csv", *ROLES, *NETWORK, "--set", "images.transform=prepare.py:transform", *check, *REPAIR)
    assert code == 0
    assert says(out, "prepare.py:transform", "agree", f"{len(frame)} rows")
    document = json.loads((folder / "repaired" / "run.json").read_text())
    recorded = document["inputs"]["images"]["transform"]
    assert recorded["path"] == str(folder / "prepare.py")
    assert document["provenance"]["hashes"]["prepare.py"] == recorded["sha256"]
    card = (folder / "repaired" / "card.md").read_text()
    assert says(card, "prepare.py:transform", recorded["sha256"][:12])

    frame.drop(columns="sick").to_csv("new.csv", index=False)
    given = ["apply", "repaired", "new.csv", "--images", "xrays", "--model", "net.py:cnn"]
    ran = run(*given)
    assert ran.code == 2
    assert says(ran.err, "prepare.py", recorded["sha256"], "--trust", "images.transform")
    for allowed in (["--trust"], ["--set", "images.transform=prepare.py:transform"]):
        assert run(*given, *allowed, "--out", "decisions.csv").code == 0
        assert abs(pd.read_csv("decisions.csv")["score"] - _plain(folder)).max() < 1e-6
    place: dict = {}
    exec(TRANSFORM, place)
    bundle = Bundle.load("repaired", model="net.py:cnn", transform=place["transform"])
    assert abs(bundle.decide(frame, images="xrays")["score"] - _plain(folder)).max() < 1e-6
    (folder / "prepare.py").write_text(TRANSFORM + "\n# changed\n")
    for allowed in (["--trust"], ["--set", "images.transform=prepare.py:transform"]):
        ran = run(*given, *allowed)
        assert ran.code == 2
        assert says(ran.err, "changed", recorded["sha256"])


def test_a_function_that_returns_a_transform_is_called(run, folder):
    ran = run("audit", "images.csv", *ROLES, *NETWORK, "--set", "images.transform=prepare.py:makes", "--json")
    assert ran.code == 0
    y, score = pd.read_csv("images.csv")["sick"], _plain(folder)
    assert json.loads(ran.out)["accuracy"]["value"] == pytest.approx(((score >= 0.5) == y).mean())


def test_a_bundle_without_a_transform_takes_none(run, folder):
    assert (
        run(
            "debias",
            "images.csv",
            *ROLES,
            *NETWORK,
            "--set",
            f"images.resize={hospital.SIDE + 2}",
            "--set",
            f"images.crop={hospital.SIDE}",
            *REPAIR,
        ).code
        == 0
    )
    how = json.loads((folder / "repaired" / "run.json").read_text())["inputs"]["images"]
    assert (how["resize"], how["crop"]) == (hospital.SIDE + 2, hospital.SIDE)
    given = ["apply", "repaired", "images.csv", "--images", "xrays", "--trust"]
    assert run(*given, "--out", "decisions.csv").code == 0
    ran = run(*given, "--set", "images.transform=prepare.py:transform")
    assert ran.code == 2
    assert says(ran.err, "images.transform")
