"""A small study is killed with SIGKILL at random moments and restarted until it ends; its rows must equal those of an undisturbed run.

Usage: python tests/robustness/resume.py [kills, 30] [runner, processes]
"""

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pandas as pd

from equipoise.studies import StudyFolder, make_plan, open_study, read_rows, read_traces, run_study
from equipoise.studies.plan import tasks_of
from equipoise.studies.results import TIMINGS

PLAN = {
    "name": "resume",
    "data": [
        {"source": "loh", "options": {"n": 2000, "alpha": 2.0}},
        {"source": "zafar", "options": {"n": 600, "features": 40}, "redraw": True},
    ],
    "methods": [
        "standard",
        {"method": "pruning", "settings": {"units": 4}, "min_performance": 0.5},
        {"method": "bias-gda", "settings": {"schedule": "paper", "epochs": 40}, "min_performance": 0.5},
        {"method": "random", "settings": {"trials": 31}},
        "reject-option",
        "equalised-odds",
    ],
    "splits": 12,
    "training": {"epochs": 12},
}


def main() -> int:
    kills, runner = int((sys.argv[1:] or ["30"])[0]), (sys.argv[2:] or ["processes"])[0]
    rng = random.Random(0)
    with tempfile.TemporaryDirectory() as place:
        began = time.perf_counter()
        calm = run_study(make_plan(PLAN), Path(place) / "calm", runner=runner)
        whole = time.perf_counter() - began
        print(f"undisturbed: {whole:.1f} s, {len(read_rows(calm))} rows", flush=True)
        tasks, done, hits = len(tasks_of(calm.plan)), 0, 0
        for kill in range(kills):
            # Some tasks further on, and then anywhere in the next one.
            steps, wait = rng.randint(1, max(2, tasks // kills)), rng.uniform(0, 2 * whole / tasks)
            hit, done = _cut(Path(place) / "cut", runner, steps, wait)
            hits += hit
            print(f"kill {kill + 1}: {steps} tasks and {wait:.2f} s on, {done} of {tasks} files are there", flush=True)
        last = run_study(make_plan(PLAN), Path(place) / "cut", runner=runner)
        same = _same(calm, open_study(last.path))
    verdict = "identical" if same else "DIFFER"
    print(f"{kills} kills, {hits} of them at work, with runner {runner}; {done} of {tasks} files before the last run: rows {verdict}")
    return 0 if same else 1


def _cut(folder: Path, runner: str, steps: int, wait: float) -> tuple[bool, int]:
    """Starts the study in a process of its own, kills it after some steps and seconds; whether it was at work, and the files."""
    code = "import json, sys; sys.path.insert(0, sys.argv[4]); from resume import work; work(*sys.argv[1:4])"
    command = [sys.executable, "-c", code, json.dumps(PLAN), str(folder), runner, str(Path(__file__).parent)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        for _ in range(steps):
            process.stdout.readline()
        time.sleep(wait)
        at_work = process.poll() is None
        process.kill()
    return at_work, len([*folder.glob("rows/*.parquet"), *folder.glob("models/*.safetensors")])


def work(plan: str, folder: str, runner: str) -> None:
    """What the killed process does."""
    run_study(make_plan(json.loads(plan)), folder, runner=runner, progress=lambda event: print(event.done, flush=True))


def _same(first: StudyFolder, second: StudyFolder) -> bool:
    try:
        pd.testing.assert_frame_equal(*(read_rows(f).drop(columns=list(TIMINGS)) for f in (first, second)), check_exact=True)
        pd.testing.assert_frame_equal(*(read_traces(f) for f in (first, second)), check_exact=True)
    except AssertionError as error:
        print(error)
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
