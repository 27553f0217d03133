"""What is left of a folder when a run is killed: SIGKILL at random moments and before every single operation of a swap.

`make kills`, or for a short one: python tests/robustness/kills.py --debias 2 --study 2 --every 5

- debias: `equipoise debias --overwrite` replaces the folder of one repair by that of another and is killed, half of the time at any
  moment, half of the time from the moment on that its hidden folder is there. Then `equipoise apply` must accept the folder and decide
  for every new patient exactly as one of the two repairs does.
- swap: the same for a process that does nothing but the swap and is killed before its n-th call of the system, for every n; once with the
  exchange of two folders in one step and once, as on systems without it, with two renames.
- study: `equipoise study run` is killed with its workers and run again until it is done; its rows must be those of a study that was left
  alone, bit for bit but for the timings.
Anything else is a failure: it is named, and the exit code is 1.
"""

import argparse
import collections
import contextlib
import io
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from safetensors.torch import save_file
from torch import nn

from equipoise import cli
from equipoise.case import folder as swapping
from equipoise.errors import BadInput
from equipoise.studies import open_study, read_rows, read_traces
from equipoise.studies.results import TIMINGS

EQUIPOISE = [sys.executable, "-m", "equipoise"]
CODE = "from torch import nn\n\ndef build():\n    return nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1))\n"
CALLS = ("rename", "replace", "link", "unlink", "rmdir", "mkdir", "fsync", "chmod", "open", "close", "scandir")
REPAIRS = {
    "one": ["--method", "bias-gda", "--set", "bias-gda.schedule=paper", "--set", "bias-gda.epochs=2"],
    "other": ["--method", "group-thresholds"],
}
STUDY = """
name = "kills"
data = [{ source = "loh", options = { n = 400, alpha = 2.0 } }, { source = "loh", name = "drawn", options = { n = 300 }, redraw = true }]
methods = ["standard", { method = "bias-gda", settings = { schedule = "paper", epochs = 2 } }, "equalised-odds"]
measures = ["spd", "eod"]
splits = 6
training = { epochs = 3 }
"""


@dataclass
class Counts:
    """What came of the kills of one kind."""

    kind: str
    outcomes: collections.Counter[str] = field(default_factory=collections.Counter)
    failures: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        found = ", ".join(f"{name} {count}" for name, count in sorted(self.outcomes.items()))
        return f"| {self.kind} | {sum(self.outcomes.values())} | {found} | {len(self.failures)} |"


def hospital(folder: Path, rows: int = 240) -> None:
    """A network's code and weights, a table to repair it on, and new patients."""
    for name, seed in (("local.csv", 0), ("new.csv", 1)):
        rng = np.random.default_rng(seed)
        sex = np.where(rng.random(rows) < 0.5, "M", "F")
        y = (rng.random(rows) < 0.35 + 0.3 * (sex == "M")).astype(int)
        x = rng.normal(size=(rows, 3)) + np.stack([1.2 * y, 1.5 * (sex == "M"), 0 * y], axis=1)
        table = pd.DataFrame({"id": [f"r{k:04}" for k in range(rows)], "sex": sex, "sick": y, "a": x[:, 0], "b": x[:, 1], "c": x[:, 2]})
        table.to_csv(folder / name, index=False)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1))
    local = pd.read_csv(folder / "local.csv")
    inputs, labels = torch.tensor(local[["a", "b", "c"]].to_numpy(np.float32)), torch.tensor(local["sick"].to_numpy(np.float32))
    optimiser = torch.optim.Adam(model.parameters(), 0.02)
    for _ in range(60):
        optimiser.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(model(inputs)[:, 0], labels).backward()
        optimiser.step()
    (folder / "net.py").write_text(CODE)
    save_file(model.state_dict(), folder / "net.safetensors")


def debias_command(home: Path, out: Path, repair: str) -> list[str]:
    """The command that writes a folder."""
    roles = ["--label", "sick", "--group", "sex", "--reference", "M", "--set", "data.id=id"]
    network = [
        "--model",
        str(home / "net.py:build"),
        "--weights",
        str(home / "net.safetensors"),
        "--set",
        "report.onnx=false",
        "--set",
        "repair.draws=10",
    ]
    quick = ["--set", "goal.selection=paper", "--set", "repair.force=true"]  # two repairs that decide differently, from few patients
    return ["debias", str(home / "local.csv"), *roles, *network, *quick, *REPAIRS[repair], "--out", str(out), "--overwrite"]


def decisions(home: Path, folder: Path) -> str:
    """What `apply` writes for the new patients; an error where it does not accept the folder."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(io.StringIO()):
        code = cli.run(["apply", str(folder), str(home / "new.csv"), "--trust", "--json"])
    if code:
        raise BadInput(f"apply ended with {code}")
    return said.getvalue()


def started(command: list[str], **options: Any) -> "subprocess.Popen[bytes]":
    """A process in a group of its own, to be killed with all that it has started."""
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True, **options)


def kill(process: "subprocess.Popen[bytes]") -> bool:
    """Whether it was still running."""
    alive = process.poll() is None
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return alive


def kill_debias(times: int, rng: random.Random, home: Path) -> Counts:
    """SIGKILLs of `debias --overwrite`."""
    counts, known = Counts("debias --overwrite"), {}
    for name in REPAIRS:
        began = time.perf_counter()
        subprocess.run([*EQUIPOISE, *debias_command(home, home / name, name)], check=True, stdout=subprocess.DEVNULL)
        takes = time.perf_counter() - began
        known[decisions(home, home / name)] = name
    assert len(known) == 2, "the two repairs decide alike, so that nothing could be told from them"
    out = home / "out"
    shutil.copytree(home / "one", out)
    there, at = "one", 0
    while sum(counts.outcomes.values()) < times:
        at += 1
        coming = "other" if there == "one" else "one"
        process = started([*EQUIPOISE, *debias_command(home, out, coming)])
        if at % 2:
            time.sleep(rng.uniform(0, takes))
        else:
            while process.poll() is None and not any(path.name.startswith(swapping.HIDDEN) for path in home.iterdir()):
                time.sleep(0.001)
            time.sleep(rng.uniform(0, takes / 10))
        alive = kill(process)
        try:
            found = known.get(decisions(home, out), "a mixture")
        except Exception as error:
            found = f"nothing: {error}"
        if alive:  # a run that was done before is no kill
            counts.outcomes[{there: "the old", coming: "the new"}.get(found, found)] += 1
        if found not in REPAIRS:
            counts.failures.append(f"run {at}: {found}")
            break
        there = found
    swapping.remove_leftovers(out)
    return counts


def _copy(source: Path, out: Path) -> None:
    with swapping.filling(out) as place:
        for path in source.iterdir():
            shutil.copyfile(path, place / path.name)


@contextlib.contextmanager
def _dying(at: int) -> Iterator[None]:
    """Kills this process before its n-th call of the system."""
    seen = 0

    def deadly(call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **options: Any) -> Any:
            nonlocal seen
            seen += 1
            if seen > at:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*arguments, **options)

        return wrapped

    for name in CALLS:
        setattr(os, name, deadly(getattr(os, name)))
    swapping._exchange = deadly(swapping._exchange)
    yield


def kill_swap(one: Path, other: Path, home: Path, same: Callable[[Path], str], *, exchange: bool, every: int = 1) -> Counts:
    """SIGKILLs before every operation of a swap; `same` names the repair that a folder is."""
    counts = Counts(f"swap, {'one step' if exchange else 'two renames'}")
    at = 0
    while True:
        out = home / f"swap-{exchange}-{at}" / "out"
        out.parent.mkdir()
        shutil.copytree(one, out)
        (out / "notes.txt").write_text("mine")
        child = os.fork()
        if child == 0:
            try:
                if not exchange:
                    swapping._exchange = lambda *_: False
                with _dying(at):
                    _copy(other, out)
            finally:
                os._exit(0)
        killed = os.waitpid(child, 0)[1] != 0
        try:
            found = same(out)  # as a reader does, which puts a folder back that was moved aside
            if (out / "notes.txt").read_text() != "mine":
                found = "a folder without the notes"
        except Exception as error:
            found = f"nothing: {error}"
        if killed:
            counts.outcomes[{"one": "the old", "other": "the new"}.get(found, found)] += 1
        _copy(other, out)
        left = sorted(path.name for path in out.parent.iterdir())
        if found not in ("one", "other") or left != ["out"] or same(out) != "other":
            counts.failures.append(f"before call {at}: {found}; after the next run: {', '.join(left)}")
        shutil.rmtree(out.parent)
        if not killed:
            return counts
        at += every


def kill_study(times: int, rng: random.Random, home: Path) -> Counts:
    """SIGKILLs of `study run`, until there were enough; every study is finished and compared."""
    counts = Counts("study run")
    (home / "study.toml").write_text(STUDY)
    command = [*EQUIPOISE, "study", "run", str(home / "study.toml"), "--workers", "2", "--out"]
    began = time.perf_counter()
    subprocess.run([*command, str(home / "calm")], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    takes = time.perf_counter() - began
    calm, study = everything(home / "calm"), 0
    while sum(counts.outcomes.values()) < times:
        out, kills, done = home / f"study-{study}", 0, False
        while not done:
            process = started([*command, str(out)])
            if sum(counts.outcomes.values()) + kills < times:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(rng.uniform(takes / 4, takes))
                if kill(process):
                    kills += 1
                    continue
            done = process.wait() == 0
            if not done:
                counts.failures.append(f"study {study}: it cannot be resumed (exit code {process.returncode})")
                break
        equal = done and everything(out).equals(calm)
        counts.outcomes["resumed, rows identical" if equal else "rows differ"] += kills
        if done and not equal:
            counts.failures.append(f"study {study}: its rows are not those of the study that was left alone")
        if left := [str(path) for path in out.rglob(".equipoise.*")]:
            counts.failures.append(f"study {study}: left behind {', '.join(left)}")
        study += 1
        if counts.failures:
            break
    return counts


def everything(folder: Path) -> pd.DataFrame:
    """All rows and traces of a study but for the timings."""
    study = open_study(folder)
    rows = read_rows(study).drop(columns=list(TIMINGS))
    return rows.merge(read_traces(study), on=["data", "seed", "method", "measure"], how="outer", suffixes=("", "_trace"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--debias", type=int, default=30, help="SIGKILLs of `debias --overwrite`")
    parser.add_argument("--study", type=int, default=30, help="SIGKILLs of `study run`")
    parser.add_argument("--every", type=int, default=1, help="of the operations inside the swap, every how many (0: none)")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    rng, found = random.Random(given.seed), []
    print("| killed | times | what was there then | failures |\n|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory(prefix="equipoise-kills-") as temporary:
        home = Path(temporary)
        hospital(home)
        if given.debias:
            found.append(kill_debias(given.debias, rng, home))
            print(found[-1], flush=True)
        if given.every:
            for name in REPAIRS:
                if not (home / name).exists():
                    subprocess.run([*EQUIPOISE, *debias_command(home, home / name, name)], check=True, stdout=subprocess.DEVNULL)
            known = {decisions(home, home / name): name for name in REPAIRS}
            for exchange in (True, False):
                same = lambda out: known.get(decisions(home, out), "a mixture")  # noqa: E731
                found.append(kill_swap(home / "one", home / "other", home, same, exchange=exchange, every=given.every))
                print(found[-1], flush=True)
        if given.study:
            found.append(kill_study(given.study, rng, home))
            print(found[-1], flush=True)
    failures = [f"{counts.kind}: {failure}" for counts in found for failure in counts.failures]
    print("\n".join(failures))
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
