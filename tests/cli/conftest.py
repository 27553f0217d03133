"""One way to run a command: in a folder of its own, with a cache of its own, whatever the machine has set."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from equipoise import cli
from equipoise.repair import baseline
from support import hospital, published
from support.command import Ran


@pytest.fixture(scope="module", autouse=True)
def _small_baseline() -> Iterator[None]:
    """The simple model next to the network is fitted 7 times, not 52; tests/repair/test_baseline.py has it as it is."""
    with pytest.MonkeyPatch.context() as patch:
        for name, fewer in {"MULTIPLES": (0.0, 0.2), "STRENGTHS": (0.1,), "FOLDS": 2}.items():
            patch.setattr(baseline, name, fewer)
        yield


@pytest.fixture
def run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, request: pytest.FixtureRequest
) -> Callable[..., Ran]:
    """Runs one command in an empty folder; the terminal is as wide as the file's COLUMNS says."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", str(getattr(request.module, "COLUMNS", 100)))
    monkeypatch.setenv("EQUIPOISE_CACHE", str(tmp_path / "cache"))
    for name in ("EQUIPOISE_DATA", "EQUIPOISE_DEVICE"):
        monkeypatch.delenv(name, raising=False)

    def call(*arguments: object) -> Ran:
        capsys.readouterr()
        given = [str(a) for a in arguments]
        if given and given[0] == "debias" and "--out" in given:  # quick; the defaults are tested with --selection honest
            given += published.options(given)
        return Ran(cli.run(given), *capsys.readouterr())

    return call


@pytest.fixture
def table(run, tmp_path):
    """The run of a command in a folder with a table and its network."""
    hospital.table(tmp_path)
    return run
