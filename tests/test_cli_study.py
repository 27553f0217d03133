"""The study commands as users type them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from equipoise import cli

STUDY = """
splits = 2
stack = 2
training = { epochs = 2 }
methods = ["standard", { method = "pruning", settings = { steps = 4 }, floor = 0.5 }]
[[data]]
source = "loh"
options = { n = 300 }
[[data]]
source = "loh"
name = "strong"
title = "Loh, strong"
options = { n = 300, alpha = 2.0 }
"""


class Ran(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Ran]:
    """Runs one command in a folder that holds a study."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("EQUIPOISE_DATA", raising=False)
    monkeypatch.setenv("EQUIPOISE_CACHE", str(tmp_path / "cache"))
    Path("mine.toml").write_text(STUDY)

    def call(*arguments: str) -> Ran:
        capsys.readouterr()
        return Ran(cli.run(["study", *arguments]), *capsys.readouterr())

    return call


def test_list(run: Callable[..., Ran]) -> None:
    found = run("list")
    assert found.code == 0
    assert "paper-tabular: Table 1" in found.out
    listed = json.loads(run("list", "--json").out)
    assert [study["name"] for study in listed] == ["paper-tabular", "paper-sensitivity", "paper-mimic-iii"]


def test_run_and_show(run: Callable[..., Ran], tmp_path: Path) -> None:
    ran = run("run", "mine.toml", "--out", "results", "--runner", "serial")
    assert (ran.code, ran.err) == (0, "")
    assert "Loh, strong" in ran.out
    assert {p.name for p in (tmp_path / "results").iterdir()} == {"study.json", ".lock", "models", "rows", "summary.csv", "summary.txt"}
    again = run("run", "mine.toml", "--out", "results", "--runner", "serial")
    assert again.out == ran.out
    shown = run("show", "results", "--csv", "csv", "--latex", "tex", "--figures", "fig")
    assert shown.code == 0
    assert "Loh, strong" in shown.out
    assert {p.name for p in Path("csv").iterdir()} == {"rows.csv", "table.csv", "comparison.csv"}
    assert {p.name for p in Path("tex").iterdir()} == {"spd-bias.tex", "spd-performance.tex", "eod-bias.tex", "eod-performance.tex"}
    assert {p.name for p in Path("fig").iterdir()} == {f"trajectories-{d}.{kind}" for d in ("loh", "strong") for kind in ("png", "svg")}
    told = json.loads(run("show", "results", "--json").out)
    assert (told["study"], told["rows"], len(told["table"])) == ("mine", 2 * 2 * 2 * 2, 8)
    assert {line["quantity"] for line in told["comparison"]} == {"abs_gap", "performance"}
    assert {line["method"] for line in told["timings"]} == {"training", "standard", "pruning"}


def test_some_of_a_study(run: Callable[..., Ran]) -> None:
    arguments = ("--splits", "1", "--data", "strong", "--methods", "standard", "--measures", "eod", "--runner", "serial")
    assert run("run", "mine.toml", "--out", "few", *arguments).code == 0
    assert json.loads(run("show", "few", "--json").out)["rows"] == 1
    refused = run("run", "mine.toml", "--out", "few", "--runner", "serial")
    assert refused.code == 2
    assert "holds another study" in refused.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("run", "mine.tml", "--out", "x"), "unknown study 'mine.tml'"),
        (("run", "mine.toml", "--out", "x", "--methods", "prunning"), "Did you mean 'pruning'?"),
        (("run", "mine.toml", "--out", "x", "--runner", "threads"), "unknown runner 'threads'"),
        (("run", "paper-tabular", "--out", "x"), "equipoise data fetch adult"),
        (("run", "paper-mimic-iii", "--out", "x", "--root", "nowhere"), "physionet.org"),
        (("show", "nowhere"), "nowhere holds no study"),
    ],
)
def test_bad_input_is_one_message(run: Callable[..., Ran], arguments: tuple[str, ...], said: str) -> None:
    found = run(*arguments)
    assert found.code == 2
    assert said in found.err
    assert "Traceback" not in found.err
    assert not list(Path("x").glob("rows/*"))


@pytest.mark.parametrize("command", ["list", "run", "show"])
def test_help_has_an_example(run: Callable[..., Ran], command: str) -> None:
    assert f"Example: equipoise study {command}" in run(command, "--help").out
