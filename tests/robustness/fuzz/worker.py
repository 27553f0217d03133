"""A process that runs one mutated input after another: `python -m fuzz.worker BASE SEED`. Names come in, one line of JSON each goes out.

Each input has a folder of its own, what it prints is caught below Python so that C libraries are heard too, and the address space is
limited, so that a file that asks for gigabytes is an error of that input and not of the machine.
"""

import contextlib
import importlib
import json
import os
import resource
import shutil
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path

import numpy as np

from fuzz.case import Case, Outcome
from fuzz.families import FAMILIES

HEADROOM = 2**31  # bytes that one input may take beside what the libraries hold


def main() -> None:
    base, seed = Path(sys.argv[1]), int(sys.argv[2])
    answers = os.fdopen(os.dup(1), "w")  # the pipe to the parent; 1 and 2 are about to be the input's own
    for module in (
        "equipoise.cli.app",
        *(f"equipoise.cli.{name}" for name in ("audit", "debias", "apply", "demo", "data", "study")),
        "equipoise.case.bundle",
        "equipoise.case.save",
        "equipoise.studies.results",
        "pydicom.pixels",
    ):
        importlib.import_module(module)
    limit = _memory("VmSize") + HEADROOM
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    answers.write(json.dumps({"ready": True, "held": _memory("VmRSS")}) + "\n")
    answers.flush()
    for line in sys.stdin:
        family, _, number = line.strip().partition(":")
        answers.write(json.dumps(run_case(base, seed, family, int(number))) + "\n")
        answers.flush()


def run_case(base: Path, seed: int, family: str, number: int) -> dict[str, object]:
    """What came of one input, as plain values."""
    start, worked = time.perf_counter(), time.process_time()
    _reset_peak()
    home = Path.cwd()
    place = Path(tempfile.mkdtemp(prefix="equipoise-fuzz-"))
    os.environ["EQUIPOISE_CACHE"] = str(place / "cache")
    os.chdir(place)
    try:
        rng = np.random.default_rng([seed, sorted(FAMILIES).index(family), number])
        try:
            case: Case = FAMILIES[family](base, place, rng)
        except Exception:  # a mistake of the harness, which must not pass for one of the command
            return {**blank(family, number, "harness", traceback.format_exc()[-2500:]), "seconds": time.perf_counter() - start}
        outcome = execute(case.command, place)
        kind, wrong = judged(case, outcome)
    finally:
        os.chdir(home)
        shutil.rmtree(place, ignore_errors=True)
    return {
        "family": family,
        "number": number,
        "what": case.what,
        "command": case.command,
        "code": outcome.code,
        "kind": kind,
        "wrong": wrong,
        "err": outcome.err[-600:],
        "peak": _memory("VmHWM"),
        "seconds": time.perf_counter() - start,
        "cpu": time.process_time() - worked,
    }


def blank(family: str, number: int, kind: str, wrong: str) -> dict[str, object]:
    """An answer for an input without an outcome."""
    return {"family": family, "number": number, "what": "", "command": [], "code": None, "kind": kind, "wrong": wrong, "err": "",
            "peak": 0, "seconds": 0.0, "cpu": 0.0}  # fmt: skip


def judged(case: Case, outcome: Outcome) -> tuple[str, str]:
    """The kind of an outcome, empty where all is well, and what is wrong with it."""
    if outcome.trace:
        memory = "MemoryError" in outcome.trace.splitlines()[-1] or "can't allocate memory" in outcome.trace
        return ("memory" if memory else "traceback"), outcome.trace[-2500:]
    if "Traceback (most recent call last)" in outcome.err + outcome.out:
        return "traceback", outcome.err[-2500:]
    if outcome.code not in (0, 1, 2):
        return "exit code", f"exit code {outcome.code}"
    if outcome.code != 0:
        return ("", "") if (outcome.err + outcome.out).strip() else ("silent", f"exit code {outcome.code} without a message")
    wrong = case.judge(outcome)
    if wrong:
        return "wrong", wrong
    noisy = [line for line in outcome.err.splitlines() if "Warning: " in line and line.split(":")[0].endswith(".py")]
    return ("library warning", noisy[0]) if noisy else ("", "")


def execute(arguments: list[str], place: Path) -> Outcome:
    """Runs one command in this process, with everything that it prints in two files."""
    from equipoise.cli import run

    paths = [place / ".fuzz-out", place / ".fuzz-err"]
    kept = [os.dup(1), os.dup(2)]
    streams, before = [path.open("w+", encoding="utf-8", errors="surrogateescape") for path in paths], (sys.stdout, sys.stderr)
    trace, code = "", -1
    try:
        for fd, stream in zip((1, 2), streams, strict=True):
            os.dup2(stream.fileno(), fd)
        sys.stdout, sys.stderr = streams
        with warnings.catch_warnings():
            warnings.simplefilter("default")
            try:
                code = run(arguments)
            except BaseException:
                trace = traceback.format_exc()
    finally:
        for stream in streams:
            stream.flush()
        sys.stdout, sys.stderr = before
        for fd, old in zip((1, 2), kept, strict=True):
            os.dup2(old, fd)
            os.close(old)
        for stream in streams:
            stream.close()
    out, err = (path.read_bytes().decode("utf-8", errors="replace") for path in paths)
    return Outcome(code, out, err, trace)


def _memory(field: str) -> int:
    """A field of this process's memory in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    return 0


def _reset_peak() -> None:
    with contextlib.suppress(OSError):  # where that is not allowed, the peak is that of the process so far
        Path("/proc/self/clear_refs").write_text("5")


if __name__ == "__main__":
    main()
