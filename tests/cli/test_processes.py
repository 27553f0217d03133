"""`torchrun -m equipoise debias`: the processes share one job; the first prints and writes, and all end with the same exit code."""

import os
import socket
import sys
from contextlib import redirect_stderr, redirect_stdout
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn

from equipoise import cli

NETWORK = """
import os
from torch import nn

def build():
    print("built in process", os.environ["RANK"])
    return nn.Sequential(nn.Conv2d(1, 3, 3, stride=2, bias=False), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(27, 1))

def build_in_the_first():
    if os.environ["RANK"] == "1":
        raise RuntimeError("no driver on this machine")
    return build()
"""


class Ran(NamedTuple):
    """What one process of a command left."""

    code: int | None
    out: str
    err: str


def _process(rank: int, processes: int, port: int, folder: Path, arguments: list[str]) -> None:
    """One process of a command, with the settings of torchrun."""
    torchrun = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": processes, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in torchrun.items()}, GLOO_SOCKET_IFNAME="lo", EQUIPOISE_DEVICE="cpu")
    os.chdir(folder)
    torch.set_num_threads(1)
    sys.argv = ["equipoise", *arguments]
    with Path(f"out{rank}").open("w") as out, Path(f"err{rank}").open("w") as err, redirect_stdout(out), redirect_stderr(err):
        cli.main()


def ran(forks: ForkServerContext, folder: Path, *arguments: str, processes: int = 2) -> list[Ran]:
    """Runs a command in several processes, for a minute and a half at most."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    started = [forks.Process(target=_process, args=(k, processes, port, folder, list(arguments))) for k in range(processes)]
    for process in started:
        process.start()
    for process in started:
        process.join(90)
        process.kill()
    return [Ran(process.exitcode, *((folder / f"{name}{k}").read_text() for name in ("out", "err"))) for k, process in enumerate(started)]


@pytest.fixture(scope="module")
def ward(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with images of bright and dark squares, their table and a network with batch norm."""
    folder, rng, rows = tmp_path_factory.mktemp("ward"), np.random.default_rng(0), 120
    table = pd.DataFrame(
        {"image": [f"{k}.png" for k in range(rows)], "sick": np.arange(rows) % 2, "sex": np.where(rng.random(rows) < 0.5, "F", "M")}
    )
    (folder / "xrays").mkdir()
    for name, sick, sex in table.itertuples(index=False):
        Image.fromarray(rng.integers(0, 120 + 60 * sick * (sex == "M"), (8, 8), dtype=np.uint8)).save(folder / "xrays" / name)
    table.to_csv(folder / "local.csv", index=False)
    (folder / "net.py").write_text(NETWORK)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 3, 3, stride=2, bias=False), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(27, 1))
    save_file(net.state_dict(), folder / "net.safetensors")
    return folder


def debias(out: str, model: str = "net.py:build") -> list[str]:
    options = {"--images": "xrays", "--label": "sick", "--group": "sex", "--reference": "M", "--model": model}
    options |= {"--weights": "net.safetensors", "--measure": "spd", "--method": "bias-gda", "--out": out}
    return [
        "debias",
        "local.csv",
        "--set",
        "repair.force=true",
        "--set",
        "report.onnx=false",
        *(word for option in options.items() for word in option),
        *("--set", "images.size=8", "--set", "model.output=logit"),
    ]


def test_two_processes_repair_as_one_and_the_first_one_prints_and_writes(ward: Path, forks: ForkServerContext):
    (alone,) = ran(forks, ward, *debias("by-1"), processes=1)
    first, second = ran(forks, ward, *debias("by-2"))
    assert [alone.code, first.code, second.code] == [0, 0, 0], first.err + second.err
    assert (second.out, second.err) == ("", "")
    assert first.out == alone.out.replace("by-1", "by-2")
    assert sorted(path.name for path in (ward / "by-2").iterdir()) == sorted(path.name for path in (ward / "by-1").iterdir())
    traces = [pd.read_csv(ward / name / "trace.csv").select_dtypes("number") for name in ("by-1", "by-2")]
    assert len(traces[0]) > 2
    np.testing.assert_allclose(*traces, atol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "failed", "said"),
    [
        (["debias", "none.csv", "--label", "sick", "--group", "sex", "--score", "p", "--out", "new"], 0, "none.csv"),
        (debias("xrays"), 0, "xrays is not empty"),
        (debias("new", "net.py:build_in_the_first"), 1, "no driver on this machine"),
        (["audit", "local.csv", "--label", "sick", "--group", "sex", "--score", "p"], 0, "without torchrun"),
    ],
    ids=["in all processes", "in the first", "in the second", "a command that is not shared"],
)
def test_an_error_ends_all_processes_with_one_message(ward: Path, forks: ForkServerContext, arguments: list[str], failed: int, said: str):
    both = ran(forks, ward, *arguments)
    assert [process.code for process in both] == [2, 2], both
    assert said in both[failed].err
    assert "error" not in both[1 - failed].err
    assert not (ward / "new").exists()
