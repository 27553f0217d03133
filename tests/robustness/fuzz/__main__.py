"""`python -m fuzz`: every family, on two cores, with a table of what came of it. `--only FAMILY:NUMBER` runs one input."""

import argparse
import contextlib
import json
import math
import os
import queue
import select
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import equipoise
from fuzz.base import build
from fuzz.families import SHARES
from fuzz.worker import blank

TIMEOUT = 120  # seconds of one input; on an idle core the slowest takes two
RECHECKED = 10  # failures that are run once more, alone
HERE = Path(__file__).parents[1]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=11_000, help="how many inputs in all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--families", nargs="*", choices=sorted(SHARES), default=sorted(SHARES))
    parser.add_argument("--only", help="FAMILY:NUMBER")
    parser.add_argument("--timeout", type=float, default=TIMEOUT, help="seconds of one input")
    parser.add_argument("--minutes", type=float, default=math.inf, help="stop early, after so many minutes")
    parser.add_argument("--failures", type=Path, default=Path("fuzz-failures"), help="folder for what failed")
    parser.add_argument("--summary", type=Path, help="JSON file for the table")
    asked = parser.parse_args()
    start = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="equipoise-fuzz-base-") as folder:
        with Path(os.devnull).open("w") as quiet, contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet):
            build(Path(folder))
        names = [asked.only] if asked.only else planned(asked.cases, asked.families)
        found, held = run_all(
            names, Path(folder), asked.seed, 1 if asked.only else asked.workers, asked.timeout, start + 60 * asked.minutes
        )
        failed = [one for one in found if one["kind"]]
        for one in [one for one in failed if one["kind"] != "wrong"][:RECHECKED]:  # in a fresh process: does it fail only after others?
            [again], _ = run_all([f"{one['family']}:{one['number']}"], Path(folder), asked.seed, 1, asked.timeout)
            one["alone"] = again["kind"]
    if asked.only:
        print(json.dumps(found[0], indent=1))
        return 1 if failed else 0
    summary = summarised(found, held, asked, time.perf_counter() - start)
    print(table(summary))
    for one in failed:
        asked.failures.mkdir(exist_ok=True)
        one["reproduce"] = f"python -m fuzz --seed {asked.seed} --only {one['family']}:{one['number']}"
        (asked.failures / f"{one['family']}-{one['number']}.json").write_text(json.dumps(one, indent=1) + "\n")
        last = (str(one["wrong"]).strip().splitlines() or [""])[-1]
        print(f"{one['kind']}: {one['family']}:{one['number']} ({one['what']}): {last[:200]}\n    {one['reproduce']}")
    if asked.summary:
        asked.summary.parent.mkdir(parents=True, exist_ok=True)
        asked.summary.write_text(json.dumps(summary, indent=1) + "\n")
    return 1 if failed else 0


def planned(cases: int, families: list[str]) -> list[str]:
    """The names of the inputs: every family has its share, and they take turns, so that an early stop has seen all of them."""
    total = sum(SHARES[name] for name in families)
    names = [(k / max(1, n), f"{name}:{k}") for name in families for n in [round(cases * SHARES[name] / total)] for k in range(n)]
    return [name for _, name in sorted(names)]


def run_all(
    names: list[str], base: Path, seed: int, workers: int, timeout: float, until: float = math.inf
) -> tuple[list[dict[str, Any]], int]:
    """What came of each input, and the memory that a process holds before the first of them."""
    todo: queue.SimpleQueue[str] = queue.SimpleQueue()
    for name in names:
        todo.put(name)
    found: list[dict[str, Any]] = []
    held: list[int] = []
    crew = [threading.Thread(target=_work, args=(todo, found, held, base, seed, timeout, until)) for _ in range(min(workers, len(names)))]
    for thread in crew:
        thread.start()
    for thread in crew:
        thread.join()
    return sorted(found, key=lambda one: (one["family"], one["number"])), max(held, default=0)


def _work(
    todo: "queue.SimpleQueue[str]", found: list[dict[str, Any]], held: list[int], base: Path, seed: int, timeout: float, until: float
) -> None:
    worker: _Worker | None = None
    while not todo.empty() and time.perf_counter() < until:
        try:
            name = todo.get_nowait()
        except queue.Empty:
            break
        if worker is None:
            worker = _Worker(base, seed)
            held.append(int(worker.read(600)["held"]))
        answer = worker.ask(name, timeout)
        if answer is None:  # it hangs, or it is gone
            code = worker.end()
            kind = "hang" if code is None else "crash"
            wrong = f"no answer in {timeout:g} s" if code is None else f"the process ended with {code}"
            family, _, number = name.partition(":")
            answer = blank(family, int(number), kind, wrong) | {"seconds": timeout}
            worker = None
        found.append(answer)
        if answer["kind"]:
            print(f"{answer['kind']}: {name} ({answer['what']})", file=sys.stderr, flush=True)
    if worker is not None:
        worker.end()


class _Worker:
    """A process of `fuzz.worker`, asked one input at a time."""

    def __init__(self, base: Path, seed: int) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        command = [sys.executable, "-m", "fuzz.worker", str(base), str(seed)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=HERE, env=environment
        )

    def ask(self, name: str, timeout: float) -> dict[str, Any] | None:
        try:
            self.process.stdin.write(f"{name}\n")  # type: ignore[union-attr]
            self.process.stdin.flush()  # type: ignore[union-attr]
        except BrokenPipeError:
            return None
        return self.read(timeout) or None

    def read(self, timeout: float) -> dict[str, Any]:
        ready, _, _ = select.select([self.process.stdout], [], [], timeout)
        line = self.process.stdout.readline() if ready else ""  # type: ignore[union-attr]
        return json.loads(line) if line else {}

    def end(self) -> int | None:
        """Ends the process; its exit code where it had ended by itself."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self.process.wait(0.2)
            self._close()
            return code
        self.process.kill()
        self.process.wait()
        self._close()
        return None

    def _close(self) -> None:
        for stream in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(OSError):
                stream.close()  # type: ignore[union-attr]


def summarised(found: list[dict[str, Any]], held: int, asked: argparse.Namespace, seconds: float) -> dict[str, Any]:
    """The counts by family and exit code, what failed, the time and the memory."""
    families = {}
    for name in sorted({one["family"] for one in found}):
        own = [one for one in found if one["family"] == name]
        codes = Counter(str(one["code"]) for one in own)
        families[name] = {
            "inputs": len(own),
            "exit_codes": dict(sorted(codes.items())),
            "failures": dict(Counter(one["kind"] for one in own if one["kind"])),
            "cpu_seconds": round(sum(one["cpu"] for one in own), 1),
            "slowest": round(max(one["seconds"] for one in own), 2),
            "peak_mib": round(max(one["peak"] for one in own) / 2**20),
        }
    return {
        "schema": "equipoise.fuzz",
        "schema_version": 1,
        "command": f"python -m fuzz --cases {asked.cases} --seed {asked.seed} --workers {asked.workers}",
        "version": equipoise.__version__,
        "minutes": asked.minutes if math.isfinite(asked.minutes) else None,  # after which it was to stop
        "inputs": len(found),
        "seed": asked.seed,
        "workers": asked.workers,
        "seconds": round(seconds, 1),
        "cpu_seconds": round(sum(one["cpu"] for one in found), 1),
        "held_mib": round(held / 2**20),
        "peak_mib": max(family["peak_mib"] for family in families.values()),
        "failures": dict(Counter(one["kind"] for one in found if one["kind"])),
        "families": families,
    }


def table(summary: dict[str, Any]) -> str:
    """The summary as text."""
    lines = [f"{'family':<9}{'inputs':>8}{'exit 0':>8}{'exit 1':>8}{'exit 2':>8}{'other':>7}{'failed':>8}{'slowest':>9}{'peak MiB':>10}"]
    for name, one in summary["families"].items():
        codes = one["exit_codes"]
        other = sum(n for code, n in codes.items() if code not in ("0", "1", "2"))
        numbers = [one["inputs"], *(codes.get(code, 0) for code in "012"), other, sum(one["failures"].values())]
        shown = "".join(f"{n:>{w}}" for n, w in zip(numbers, (8, 8, 8, 8, 7, 8), strict=True))
        lines.append(f"{name:<9}{shown}{one['slowest']:>8.1f}s{one['peak_mib']:>10,}")
    failures = ", ".join(f"{n} {kind}" for kind, n in summary["failures"].items()) or "none"
    lines.append(
        f"{summary['inputs']:,} inputs in {summary['seconds']:.0f} s with {summary['workers']} processes "
        f"({summary['cpu_seconds']:.0f} s of computing); peak memory "
        f"{summary['peak_mib']:,} MiB, of which the libraries hold {summary['held_mib']:,} MiB; failures: {failures}"
    )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
