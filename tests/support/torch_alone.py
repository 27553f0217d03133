"""A Python with torch and nothing of Equipoise, which runs pieces of code: torch is imported once, and each piece runs in a copy of it."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

SERVER = """
import contextlib, io, json, os, sys, traceback
import safetensors.torch, torch

for line in sys.stdin:
    folder, code = json.loads(line)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        said, failed = io.StringIO(), ""
        try:
            os.chdir(folder)
            with contextlib.redirect_stdout(said):
                exec(compile(code, "code", "exec"), {"__name__": "__main__"})
        except BaseException:
            failed = traceback.format_exc()
        names = [name for name in sys.modules if name.partition(".")[0] == "equipoise"]
        with open(writer, "w") as out:
            json.dump([said.getvalue(), failed, names], out)
        os._exit(0)
    os.close(writer)
    with open(reader) as answer:
        text = answer.read()
    os.waitpid(child, 0)
    print(text, flush=True)
"""


Run = Callable[[Path, str], object]


@contextmanager
def started() -> Iterator[Run]:
    """A function that gives what code prints, as JSON, run in a folder whose files it may import; it must not import Equipoise."""
    command, alone = [sys.executable, "-c", SERVER], {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=alone) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        asked, answers = server.stdin, server.stdout

        def run(folder: Path, code: str) -> object:
            asked.write(json.dumps([str(folder), code]) + "\n")
            asked.flush()
            said, failed, ours = json.loads(answers.readline())
            assert failed == ""
            assert ours == []
            return json.loads(said)

        yield run
