"""Known scores are compared with those of the network, and the usual reasons for a difference are found."""

import json

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from scipy.special import expit, logit
from torch import nn

import equipoise as eq
from equipoise import cli
from equipoise.case.score_checks import ScoresDiffer
from equipoise.data import Cohort
from equipoise.models import OneOutput, predict
from support.facts import facts, says

N, SIDE = 40, 16
NETWORK = f"""
import torch
from torch import nn

def build(outputs=1):
    with torch.random.fork_rng():
        torch.manual_seed(5)
        network = nn.Sequential(nn.Conv2d(1, 3, 5, stride=3), nn.ReLU(), nn.Flatten(), nn.Linear(48, outputs))
        nn.init.normal_(network[3].weight)
    network.output = "logit"
    return network

def transform(image):
    from torchvision import transforms
    kinds = [transforms.Resize(20), transforms.CenterCrop({SIDE}), transforms.ToTensor(), transforms.Normalize(0.5, 0.25)]
    return transforms.Compose(kinds)(image)

def random(image):
    return transform(image) + torch.rand(1)

def wide(image):
    return torch.zeros(1, 30, 30)
"""
place: dict = {}
exec(NETWORK, place)
RIGHT = {"resize": 20, "crop": SIDE}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Images, a table and the network's scores with the preprocessing of its training."""
    root, rng = tmp_path_factory.mktemp("hospital"), np.random.default_rng(0)
    (root / "xrays").mkdir()
    frame = pd.DataFrame({"image": [f"{at:02}.png" for at in range(N)], "sick": [0, 1] * (N // 2), "sex": ["F", "F", "M", "M"] * (N // 4)})
    for name in frame["image"]:
        small = Image.fromarray(rng.integers(0, 256, (7, 7), dtype=np.uint8))
        small.resize((33, 27), Image.Resampling.BICUBIC).save(root / "xrays" / name)
    frame.to_csv(root / "local.csv", index=False)
    (root / "net.py").write_text(NETWORK)
    frame.assign(p=_known(root, **RIGHT)).to_csv(root / "known.csv", index=False)
    return root


def _cohort(root, **options) -> Cohort:
    frame = pd.read_csv(root / "local.csv")
    return Cohort.from_images(frame, folder=root / "xrays", image="image", label="sick", group="sex", reference="M", **options)


def _known(root, network: nn.Module | None = None, **options) -> np.ndarray:
    return predict(network or place["build"]().eval(), _cohort(root, **options)).score


def test_the_same_preprocessing_gives_the_known_scores(folder):
    known = pd.read_csv(folder / "known.csv")
    found = eq.check_scores(place["build"](), _cohort(folder, **RIGHT), known, score="p", id="image")
    assert (found.agrees, found.rows, found.differing, found.without) == (True, N, 0, 0)
    assert found.largest < 1e-6
    assert found.auroc == found.known_auroc
    part = eq.check_scores(place["build"](), _cohort(folder, **RIGHT), known.set_index("image")["p"][:10])
    assert (part.rows, part.without) == (10, N - 10)


def test_the_wrong_crop_raises_an_error_with_the_differences_and_what_to_check(folder):
    known = pd.read_csv(folder / "known.csv")
    with pytest.raises(ScoresDiffer, match=facts("40", "AUROC", "00.png", "images.resize", "images.crop")) as raised:
        eq.check_scores(place["build"](), _cohort(folder, size=SIDE), known, score="p", id="image")
    check = raised.value.checks[0]
    wrong = abs(_known(folder, size=SIDE) - known["p"])
    assert check.differing == (wrong > 1e-4).sum() > 30
    assert check.largest == pytest.approx(wrong.max())
    assert check.median == pytest.approx(np.median(wrong))
    assert check.correlation < 0.999
    assert len(check.first) == 5
    assert "00.png" not in json.dumps(check.to_dict())


def _scores(values) -> dict[str, float]:
    return {f"{at:02}.png": float(value) for at, value in enumerate(values)}


@pytest.mark.parametrize(
    ("changed", "hint"),
    [
        (logit, "logits"),
        (lambda p: 1 - p, "negative class"),
        (lambda p: 100 * p, "percentages"),
        (expit, "model.output=logit"),
        (lambda p: p.round(2), "model.tolerance=0.0051"),
        (np.roll, "other rows"),
        (lambda p: p**3, "rank the rows alike"),
        (lambda p: np.random.default_rng(1).random(len(p)), "None of the usual reasons"),
    ],
)
def test_reasons_that_the_numbers_show_are_named(folder, changed, hint):
    correct = _known(folder, size=SIDE)
    known = _scores(np.roll(correct, 1) if changed is np.roll else changed(correct))
    with pytest.raises(ScoresDiffer, match=facts(hint)):
        eq.check_scores(place["build"](), _cohort(folder, size=SIDE), known)


def test_another_output_of_the_network_is_named(folder):
    network = place["build"](outputs=3)
    network.pathologies = ["Edema", "Effusion", "Mass"]
    known = _scores(_known(folder, OneOutput(network, "Mass", output="logit"), size=SIDE))
    with pytest.raises(ScoresDiffer, match=facts("model.outputs=Mass")):
        eq.check_scores(OneOutput(network, "Edema", output="logit"), _cohort(folder, size=SIDE), known)


@pytest.mark.parametrize(
    ("known", "parts"),
    [
        (pd.DataFrame({"image": ["00.png"], "p": [0.1]}), ["id=", "score="]),
        (pd.Series([0.1, 0.2], index=["00.png", "00.png"]), ["more than once", "00.png"]),
        (pd.Series(["0,1", "0,2"], index=["00.png", "01.png"]), ["2 of 2", "0,1"]),
        ({"other.png": 0.1}, ["00.png", "other.png"]),
        (3, ["int", "mapping"]),
    ],
)
def test_known_scores_that_cannot_be_joined_are_rejected(folder, known, parts):
    with pytest.raises(eq.BadInput, match=facts(*parts)):
        eq.check_scores(place["build"](), _cohort(folder, size=SIDE), known)


def _run(folder, capsys, monkeypatch, *arguments: object) -> tuple[int, str, str]:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "200")
    capsys.readouterr()
    code = cli.run(
        ["audit", "local.csv", "--images", "xrays", "--label", "sick", "--group", "sex", "--model", "net.py:build", *map(str, arguments)]
    )
    return code, *capsys.readouterr()


CHECK = ("--set", "model.check_scores=known.csv", "--set", "model.known=p")


def test_the_command_stops_at_the_wrong_crop_and_continues_with_the_right_one(folder, capsys, monkeypatch):
    code, out, err = _run(folder, capsys, monkeypatch, "--set", f"images.size={SIDE}", *CHECK)
    assert (code, out) == (2, "")
    assert says(err, "known.csv", "images.resize", "images.crop")
    for options in (("--set", "images.resize=20", "--set", f"images.crop={SIDE}"), ("--set", "images.transform=net.py:transform")):
        code, out, _ = _run(folder, capsys, monkeypatch, *options, *CHECK, "--json")
        found = json.loads(out)
        assert code == 0
        assert found["checked_scores"][0]["rows"] == N
        assert found["preprocessing"]["transform" if "images.transform=net.py:transform" in options else "crop"]
    code, out, _ = _run(folder, capsys, monkeypatch, "--set", "images.resize=20", "--set", f"images.crop={SIDE}")
    assert code == 0
    assert says(out, "resized to 20 pixels", "central 16 x 16", "not compared", "model.check_scores")


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (("--set", f"images.size={SIDE}", "--set", "model.check_scores=known.csv"), ["model.check_scores", "model.known", "got 0"]),
        (("--set", f"images.size={SIDE}", "--set", "model.tolerance=0.1"), ["model.tolerance", "model.check_scores"]),
        (("--set", f"images.size={SIDE}", *CHECK, "--set", "model.tolerance=0"), ["model.tolerance", "greater than 0"]),
        (("--set", f"images.size={SIDE}", "--set", "model.check_scores=nown.csv", "--set", "model.known=p"), ["nown.csv", "known.csv"]),
        (
            ("--set", f"images.size={SIDE}", "--set", "model.check_scores=known.csv", "--set", "model.known=q"),
            ["'q'", "image, sick, sex, p"],
        ),
        (("--set", "images.transform=net.py:transfrom"), ["transfrom", "transform"]),
        (("--set", "images.transform=net.py:random"), ["random", "row 1"]),
        (("--set", "images.transform=net.py:wide"), ["net.py:wide", "(1, 30, 30)", "images.channels"]),
        (("--set", "images.transform=net.py:transform", "--set", f"images.size={SIDE}"), ["images.transform", "images.size"]),
        (("--set", "images.transform=transform"), ["file.py:transform"]),
        (("--set", "images.resize=20y20"), ["resize", "20y20"]),
        (("--set", "images.preset=tim"), ["tim", "timm"]),
    ],
)
def test_unusable_options_are_rejected_in_one_message(folder, capsys, monkeypatch, options, parts):
    code, out, err = _run(folder, capsys, monkeypatch, *options)
    assert (code, out) == (2, "")
    assert says(err, *parts)
