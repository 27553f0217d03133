"""Ctrl-C at any moment: one line, exit code 130, no traceback. If it is ignored, the command continues."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from equipoise import cli

# A command that is interrupted at the n-th import of a module: the handler runs in the middle of that import.
SCRIPT = """
import builtins, os, signal, sys

at, seen, original = int(sys.argv[1]), 0, builtins.__import__

def importing(name, *rest):
    global seen
    seen += 1
    if seen == at:
        os.kill(os.getpid(), signal.SIGINT)
    return original(name, *rest)

from equipoise.cli import main
builtins.__import__ = importing
sys.argv = ["equipoise", "data", "list"]
main()
"""


# An audit in batches that is killed while its rows are in temporary files.
STREAMED = """
import os, sys
import equipoise as eq
from equipoise.data import scans

scans.ROWS_HELD = 100
scores = eq.scan(sys.argv[1], label="y", score="p", group="sex", reference="M")
eq.audit(scores, threshold=0.5, progress=lambda *done: os.kill(os.getpid(), int(sys.argv[2])))
"""


def _start(*command: str, ignored: bool = False) -> "subprocess.Popen[str]":
    """A process that handles SIGINT independently of the shell that runs the tests, or ignores it."""
    how = signal.SIG_IGN if ignored else signal.SIG_DFL
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        preexec_fn=lambda: signal.signal(signal.SIGINT, how),
    )


@pytest.mark.parametrize("at", [1, 900, 4000])
def test_an_interruption_during_an_import_is_one_line(tmp_path: Path, at: int):
    (tmp_path / "script.py").write_text(SCRIPT)
    with _start(sys.executable, str(tmp_path / "script.py"), str(at)) as process:
        out, err = process.communicate(timeout=120)
    assert (process.returncode, out, err) == (130, "", "Stopped.\n")


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_killed_audit_leaves_nothing_in_the_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: signal.Signals):
    rng, temporary = np.random.default_rng(0), tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    frame = pd.DataFrame({"y": rng.integers(0, 2, 2000), "p": rng.random(2000), "sex": rng.choice(["F", "M"], 2000)})
    frame.to_parquet(tmp_path / "scores.parquet")
    with _start(sys.executable, "-c", STREAMED, str(tmp_path / "scores.parquet"), str(int(how))) as process:
        _, err = process.communicate(timeout=120)
    assert process.returncode == -how, err
    assert list(temporary.iterdir()) == []


def test_the_entry_point_imports_nothing_heavy():
    """Until the entry point is called, Python handles Ctrl-C with a traceback, so that time must be short."""
    code = "import sys, equipoise.cli; print(sorted({'torch', 'numpy', 'pandas', 'typer', 'rich', 'pydantic'} & set(sys.modules)))"
    with _start(sys.executable, "-c", code) as process:
        assert process.communicate(timeout=60) == ("[]\n", "")


@pytest.mark.parametrize("error", [ImportError("half a module"), SystemError("returned a result with an exception set")])
def test_an_interruption_that_a_library_turns_into_another_error_still_stops(monkeypatch, capsys, error):
    def interrupted(_: object) -> int:
        try:
            os.kill(os.getpid(), signal.SIGINT)  # handled before the call returns
        except KeyboardInterrupt:
            raise error from None
        return 0

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        monkeypatch.setattr("equipoise.cli.app.run_command", interrupted)
        assert cli.run(["--help"]) == 130
        assert capsys.readouterr().err == "Stopped.\n"
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_an_error_without_an_interruption_is_raised(monkeypatch):
    def broken(_: object) -> int:
        raise SystemError("a defect")

    monkeypatch.setattr("equipoise.cli.app.run_command", broken)
    with pytest.raises(SystemError):
        cli.run(["--help"])


def test_ignored_interrupts_stay_ignored():
    code = "import os, signal, sys; from equipoise.cli import main; os.kill(os.getpid(), signal.SIGINT); "
    code += "sys.argv = ['equipoise', '--version']; main()"
    with _start(sys.executable, "-c", code, ignored=True) as process:
        out, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (0, "")
    assert out.strip()


def test_a_command_in_another_thread_does_not_touch_signals():
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(cli.run(["--help"])))
    thread.start()
    thread.join()
    assert codes == [0]
