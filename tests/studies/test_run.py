"""A run can be stopped at any moment and resumed; a failed task does not affect the others."""

import json
import random
import signal
import subprocess
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import torch

from equipoise.errors import BadInput
from equipoise.studies import Event, StudyPlan, open_study, read_rows, run, run_study
from equipoise.studies.plan import tasks_of
from equipoise.studies.run import TasksFailed
from support.command import ran
from support.facts import facts, says

SCRIPT = """
import json, signal, sys
from equipoise.studies import make_plan
from equipoise.studies import run_study

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background shell has it ignored
    plan, folder, runner = json.loads(sys.argv[1]), *sys.argv[2:]
    run_study(make_plan(plan), folder, runner=runner, workers=2, progress=lambda event: print(event.done, event.total, flush=True))
"""


def start(plan: StudyPlan, folder: Path, runner: str, script: Path) -> "subprocess.Popen[str]":
    script.write_text(SCRIPT)
    command = [sys.executable, str(script), plan.model_dump_json(), str(folder), runner]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def reported(plan: StudyPlan, folder: Path, done: "Connection[Any, Any]") -> None:
    """Runs a study in another process, which sends each event before it continues."""
    run_study(plan, folder, runner="serial", progress=lambda event: done.send(event.done))


def test_a_run_killed_during_a_task_resumes_to_the_same_rows(tiny, everything, serial, forks, tmp_path: Path) -> None:
    plan, rng = tiny(), random.Random(0)
    stopped_at = []
    for _ in range(2):
        ours, theirs = forks.Pipe(duplex=False)
        process = forks.Process(target=reported, args=(plan, tmp_path / "cut", theirs))
        process.start()
        theirs.close()
        for _ in range(rng.randint(1, 3)):  # tasks finished before the process is killed during the next
            ours.recv()
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL
        stopped_at.append(len(list((tmp_path / "cut").rglob("*.*"))))
    assert sorted(stopped_at) == stopped_at  # finished tasks stay finished
    last = run_study(plan, tmp_path / "cut", runner="serial")
    pd.testing.assert_frame_equal(serial, everything(last), check_exact=True)


def test_an_interrupt_ends_the_workers_too(tiny, tmp_path: Path) -> None:
    endless = {"method": "bias-gda", "settings": {"epochs": 100_000, "stop_below": 0.0, "schedule": "paper"}}  # longer than the test
    plan = tiny(methods=[endless], data=[{"source": "loh", "options": {"n": 400}}], splits=2)
    with start(plan, tmp_path / "out", "processes", tmp_path / "script.py") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        while (line := process.stdout.readline()).split()[:1] != ["2"]:  # the trainings are done, so both workers are up
            assert line, process.stderr.read()
        workers = _workers(process.pid)
        process.send_signal(signal.SIGINT)
        try:
            process.wait(timeout=60)
        finally:
            process.kill()  # otherwise the test would wait forever for a run that ignores it
        said = process.stderr.read()
    assert len(workers) == 2
    assert not any(Path(f"/proc/{pid}").exists() for pid in workers)
    assert said.count("Traceback") == 1  # the parent's own, which the command line turns into a message
    assert "KeyboardInterrupt" in said
    assert len(list((tmp_path / "out/models").iterdir())) == 2


def _workers(pid: int) -> list[int]:
    listing = Path(f"/proc/{pid}/task/{pid}/children")
    if not listing.exists():
        pytest.skip("the system does not list children of processes")
    return [int(child) for child in listing.read_text().split() if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()]


def test_failed_tasks_are_named_at_the_end_and_other_results_kept(tiny, tmp_path: Path) -> None:
    bad = tmp_path / "bad.csv"
    bad.write_text("x,sex,y\n" + "".join(f"{k},{'FM'[k % 2]},{int(k % 2 and k % 3 == 0)}\n" for k in range(60)))  # no woman is positive
    data = [{"source": "loh", "options": {"n": 300}}, {"file": str(bad), "label": "y", "group": "sex", "reference": "M"}]
    plan = tiny(data=data, methods=["standard"], splits=2)
    events: list[Event] = []
    with pytest.raises(TasksFailed) as caught:
        run_study(plan, tmp_path / "out", runner="serial", progress=events.append)
    assert says(caught.value, 2, "'tiny'", "bad", 0, 1, "standard", "eod", "positives", "'F'")
    assert len(read_rows(open_study(tmp_path / "out"))) == 3 * 2
    assert (events[-1].done, events[-1].total) == (10, 12)


def test_unreadable_data_do_not_stop_the_other_data(tiny, tmp_path: Path) -> None:
    (tmp_path / "bad.csv").write_text("x,sex,y\n1,F,2\n2,M,3\n")
    data = [{"file": str(tmp_path / "bad.csv"), "label": "y", "group": "sex"}, {"source": "loh", "options": {"n": 300}}]
    with pytest.raises(TasksFailed, match=facts("bad", 0, "training", 5)):
        run_study(tiny(data=data, methods=["standard"], splits=2), tmp_path / "out", runner="serial")
    assert set(read_rows(open_study(tmp_path / "out"))["data"]) == {"loh"}


def test_the_number_of_workers_fits_the_memory_of_the_gpu(tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    images = tiny(data=["phantom"], methods=["standard"], model="resnet-18")
    monkeypatch.setattr(run, "cores", lambda: 16)
    monkeypatch.delenv("EQUIPOISE_DEVICE")
    assert run._workers_on_gpu(images, None) is None or torch.cuda.is_available()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for gibibytes, workers in ((8, 1), (24, 2), (140, 14), (400, 16)):
        card = SimpleNamespace(total_memory=gibibytes * 2**30)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _, card=card: card)
        assert run._workers_on_gpu(images, None) == workers
    assert run._workers_on_gpu(tiny(), None) is None  # tables stay on the cores
    assert run._workers_on_gpu(images, "cpu") is None
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=24 * 2**30))
    assert run._workers_on_gpu(tiny(), "cuda") == 12  # unless a GPU is requested


def test_a_missing_device_is_refused_before_anything_runs(tiny, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cuda:99"):
        run_study(tiny(), tmp_path / "out", runner="serial", device="cuda:99")
    assert not (tmp_path / "out").exists()


def test_rows_name_the_requested_device(calm) -> None:
    assert set(read_rows(calm[0])["device"]) == {"cpu"}


def test_progress_reports_the_share_of_work_done(tiny, calm) -> None:
    folder, events = calm
    shares = [event.share for event in events]
    assert shares == sorted(shares)
    assert (shares[0], shares[-1]) == (0, 1)
    assert events[0].left is None
    assert events[-1].left == 0
    assert [e.done for e in events] == list(range(len(tasks_of(tiny())) + 1))
    assert events[0].running == ("drawn, split 0: training",)
    assert json.loads((folder.path / "study.json").read_text())["fingerprint"]


def test_a_study_of_no_rows_is_an_error_and_not_a_traceback(tmp_path):
    plan = tmp_path / "none.toml"
    methods, data = 'methods = ["standard"]', 'data = [{ source = "loh", options = { n = 0 } }]'
    plan.write_text(f'name = "none"\nmeasures = ["eod"]\nsplits = 1\n{methods}\n{data}\n')
    done = ran("study", "run", plan, "--out", tmp_path / "out", "--runner", "serial")
    assert done.code in (1, 2)
    assert says(done.err + done.out, "loh")
