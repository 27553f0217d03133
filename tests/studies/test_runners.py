"""Every runner gives bit-identical rows, also if workers die."""

import importlib
import importlib.util
import os
import sys
from multiprocessing.process import BaseProcess
from pathlib import Path

import pandas as pd
import pytest

from equipoise.errors import BadInput, MissingExtra
from equipoise.studies import Event, run, run_study
from equipoise.studies.run import Processes, TasksFailed, started_runner
from support.facts import facts, says, suggests

needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed")


@pytest.mark.usefixtures("forked")
def test_processes_give_the_same_rows(tiny, everything, serial, tmp_path: Path) -> None:
    spawned = run_study(tiny(), tmp_path / "processes", runner="processes", workers=2)
    pd.testing.assert_frame_equal(serial, everything(spawned), check_exact=True)


@pytest.mark.usefixtures("forked")
def test_workers_that_are_killed_at_work_or_idle_are_reported_and_replaced(tiny, everything, mortal, tmp_path: Path, monkeypatch) -> None:
    plan, events, original, killed = tiny(**mortal()), list[Event](), Processes.next, list[BaseProcess]()

    def kill_the_first_idle(self: Processes) -> object:
        found = original(self)
        for process in [process for pipe, process in self._processes.items() if pipe not in self._busy and not killed]:
            process.kill()
            process.join()
            killed.append(process)
        return found

    monkeypatch.setattr(Processes, "next", kill_the_first_idle)
    survived = run_study(plan, tmp_path / "killed", runner="processes", workers=1, progress=events.append)
    assert killed
    assert sum(says(event.note, "-9") for event in events) == 2  # the one at work, and the idle one when it is given a task
    calm = run_study(plan, tmp_path / "calm", runner="serial")
    pd.testing.assert_frame_equal(everything(calm), everything(survived), check_exact=True)


@needs_ray
def test_ray_gives_the_same_rows_and_survives_a_killed_worker(tiny, everything, mortal, tmp_path: Path) -> None:
    changes = mortal()
    tuned = {"method": "bias-gda", "settings": {"schedule": "paper", "epochs": 2}}
    plan = tiny(**changes | {"methods": [*changes["methods"], tuned]})
    with started_runner("ray", workers=1):
        survived = run_study(plan, tmp_path / "killed", runner="ray")
    assert (tmp_path / "died").exists()
    assert not sys.modules["ray"].is_initialized()
    pd.testing.assert_frame_equal(everything(run_study(plan, tmp_path / "calm", runner="serial")), everything(survived), check_exact=True)


@pytest.mark.usefixtures("forked")
def test_a_task_that_always_kills_its_worker_ends_the_run(tiny, mortal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "MAX_LOST_WORKERS", 1)
    settings = mortal()
    code = tmp_path / "mortal.py"
    code.write_text(code.read_text().replace("MARK.touch()", "pass"))
    with pytest.raises(TasksFailed, match=facts("worker", 1)):
        run_study(tiny(**settings), tmp_path / "out", runner="processes", workers=1)


def test_a_worker_whose_task_failed_is_replaced_and_none_imports_from_the_current_folder(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "types.py").write_text("open('it_ran', 'w')\nraise SystemExit(3)\n")  # a module that Python imports at startup
    monkeypatch.chdir(tmp_path)
    workforce = Processes(1)
    try:
        for _ in range(2):
            workforce.submit(None, None)  # type: ignore[arg-type]  # no task: it fails
            (process,) = workforce._processes.values()
            assert workforce.next()[1].problem
            assert not workforce._processes
            process.join(30)
            assert not process.is_alive()
    finally:
        workforce.close()
    assert not (tmp_path / "it_ran").exists()
    assert "PYTHONSAFEPATH" not in os.environ


def test_a_missing_ray_is_reported_with_the_pip_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtra, match=facts("pip install 'equipoise[ray]'")), started_runner("ray"):
        pass


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("procesess",), suggests("processes")),
        (("processes", 0), facts("workers", 1, 0)),
        (("serial", None, "auto"), facts("address", "serial")),
    ],
)
def test_bad_arguments(arguments: tuple[object, ...], said: str) -> None:
    with pytest.raises(BadInput, match=said), started_runner(*arguments):
        pass
