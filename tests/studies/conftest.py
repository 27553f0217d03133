"""Studies that run in a second, and fixtures to read their results."""

from collections.abc import Callable
from multiprocessing.context import ForkServerContext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from equipoise.studies import Event, StudyFolder, StudyPlan, make_plan, read_rows, read_traces, run, run_study
from equipoise.studies.results import TIMINGS
from support.xray_trees import network, write_mimic_cxr, write_nih

TINY: dict[str, Any] = {
    "name": "tiny",
    "data": [
        {"source": "loh", "options": {"n": 400, "alpha": 2.0}},
        {"source": "loh", "name": "drawn", "options": {"n": 300}, "redraw": True},
    ],
    "methods": [
        {"method": "standard", "selection": "paper"},
        {"method": "bias-gda", "selection": "paper", "settings": {"schedule": "paper", "epochs": 2}, "min_performance": {"drawn": 0.5}},
        {"method": "equalised-odds", "selection": "paper"},
    ],
    "measures": ["spd", "eod"],
    "splits": 3,
    "training": {"epochs": 2},
}
Made = Callable[..., StudyPlan]


@pytest.fixture(scope="session")
def tiny() -> Made:
    """A tiny study, with changes."""
    return lambda **changes: make_plan({**TINY, **changes})


@pytest.fixture(scope="session")
def everything() -> Callable[[StudyFolder], pd.DataFrame]:
    """All results of a study except timings: the rows with their traces."""

    def collect(folder: StudyFolder) -> pd.DataFrame:
        rows = read_rows(folder).drop(columns=list(TIMINGS))
        return rows.merge(read_traces(folder), on=["data", "seed", "method", "measure"], how="outer", suffixes=("", "_trace"))

    return collect


@pytest.fixture(scope="session")
def calm(tiny: Made, tmp_path_factory: pytest.TempPathFactory) -> tuple[StudyFolder, list[Event]]:
    """The tiny study run in this process, and the events it reported."""
    events: list[Event] = []
    return run_study(tiny(), tmp_path_factory.mktemp("serial"), runner="serial", device="cpu", progress=events.append), events


@pytest.fixture(scope="session")
def serial(calm: tuple[StudyFolder, list[Event]], everything: Callable[[StudyFolder], pd.DataFrame]) -> pd.DataFrame:
    """The results of the tiny study run in this process."""
    return everything(calm[0])


@pytest.fixture
def forked(forks: ForkServerContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """Starts workers of the runner `processes` from a fork server, with the environment of the first test that uses it."""
    monkeypatch.setattr(run, "multiprocessing", SimpleNamespace(get_context=lambda _: forks))


@pytest.fixture
def mortal(tmp_path: Path) -> Callable[[], dict[str, Any]]:
    """A study with a network that kills its process once, in the middle of the first training."""
    code = tmp_path / "mortal.py"
    code.write_text(
        f"""
import os, signal
from pathlib import Path
from torch import nn

MARK = Path({str(tmp_path / "died")!r})

class Mortal(nn.Module):
    output = "logit"

    def __init__(self):
        super().__init__()
        self.layers, self.calls = nn.Sequential(nn.Linear(21, 8), nn.ReLU(), nn.Linear(8, 1)), 0

    def forward(self, x):
        self.calls += 1
        if self.calls == 5 and not MARK.exists():
            MARK.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return self.layers(x)[:, 0]
"""
    )

    def make() -> dict[str, Any]:
        (tmp_path / "died").unlink(missing_ok=True)
        return {"model": f"{code}:Mortal", "data": TINY["data"][:1], "splits": 2, "methods": ["standard", "equalised-odds"]}

    return make


@pytest.fixture(scope="session")
def xrays(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data root with tiny NIH and MIMIC-CXR trees, and a tiny network next to them."""
    root = tmp_path_factory.mktemp("xrays")
    write_nih(root / "cxr-nih")
    write_mimic_cxr(root / "mimic-cxr")
    network(root)
    return root


@pytest.fixture
def tiny_xrays(xrays: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Made:
    """A study of those trees, with changes; decoded pixels are cached in the folder of the test."""
    monkeypatch.setenv("EQUIPOISE_CACHE", str(tmp_path / "cache"))
    raw = {
        "name": "xrays",
        "data": [{"source": "nih", "options": {"finding": "effusion", "size": 16}}],
        "methods": ["standard", {"method": "bias-gda", "settings": {"schedule": "paper", "epochs": 1, "batch": 16}}],
        "measures": ["eod"],
        "splits": 2,
        "protocol": "balanced",
        "model": f"{xrays / 'net.py'}:make",
        "training": {"epochs": 2, "batch": 16, "learning_rate": 0.01, "augment": False},
    }
    return lambda **changes: make_plan({**raw, **changes})
