"""Runs commands in a temporary folder with a temporary cache, independent of the environment of the machine."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from equipoise import cli
from equipoise.comparison import baseline
from support import hospital, published
from support.bright_images import BUILD, ROWS, rows_frame
from support.command import Ran

TWO = """
from torch import nn

def build():
    return nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
"""


@pytest.fixture(scope="module", autouse=True)
def _small_baseline() -> Iterator[None]:
    """Fits the simple model of data.train 7 times instead of 52; tests/repair/test_baseline.py tests the default."""
    with pytest.MonkeyPatch.context() as patch:
        for name, fewer in {"MULTIPLES": (0.0, 0.2), "STRENGTHS": (0.1,), "BASELINE_FOLDS": 2}.items():
            patch.setattr(baseline, name, fewer)
        yield


@pytest.fixture
def run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, request: pytest.FixtureRequest
) -> Callable[..., Ran]:
    """Runs a command in an empty folder; the width of the terminal is COLUMNS of the test file."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", str(getattr(request.module, "COLUMNS", 100)))
    monkeypatch.setenv("EQUIPOISE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("EQUIPOISE_DATA", raising=False)

    def call(*arguments: object) -> Ran:
        capsys.readouterr()
        given = [str(a) for a in arguments]
        if given and given[0] == "debias" and "--out" in given:  # quick; the defaults are tested with goal.selection=honest
            given += published.options(given)
        return Ran(cli.run(given), *capsys.readouterr())

    return call


@pytest.fixture
def table(run, tmp_path):
    """Runs a command in a folder with a table and its network."""
    hospital.table(tmp_path)
    return run


@pytest.fixture
def xrays(run, tmp_path) -> pd.DataFrame:
    """A folder of images whose brightness is known, a data file, a network and its weights."""
    frame, rng = rows_frame(), np.random.default_rng(0)
    frame["brightness"] = rng.integers(60, 160, ROWS) + 30 * frame["sick"]
    (tmp_path / "xrays" / "deep").mkdir(parents=True)
    for k, (name, value) in enumerate(zip(frame["image"], frame["brightness"], strict=True)):
        place = tmp_path / "xrays" / ("deep" if k % 3 else ".") / name
        Image.fromarray(np.full((8 + k % 5, 12), value, np.uint8)).save(place)  # of mixed size
    frame.drop(columns="brightness").to_csv("local.csv", index=False)
    (tmp_path / "net.py").write_text(BUILD)
    save_file({"2.weight": torch.tensor([[4.0]]), "2.bias": torch.tensor([0.0])}, "w.safetensors")
    return frame


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with a table of two labels and the networks."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    hospital.table(tmp_path)
    frame = pd.read_csv("local.csv")
    rng = np.random.default_rng(3)
    frame = frame.assign(ward=np.where(frame["pid"] % 3 == 0, "north", "south"), Effusion=frame["sick"])
    frame["Mass"] = (rng.random(len(frame)) < 0.3 + 0.3 * (frame["sex"] == "F")).astype(int)
    frame.to_csv("local.csv", index=False)
    (tmp_path / "two.py").write_text(TWO)
    place: dict[str, Any] = {}
    exec(TWO, place)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        torch.save(place["build"]().state_dict(), "two.pt")
    return tmp_path
