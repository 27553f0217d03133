"""A short version of tests/robustness/kills.py: a process that is really killed, by SIGKILL, in the middle of a swap."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SCRIPT = """
import sys
from pathlib import Path
import kills
from support import bundles
from equipoise.measures.thresholds import Threshold
from equipoise.case import Bundle

home = Path(sys.argv[1])
one, other = bundles.write(home / "one"), bundles.write(home / "other", rule=Threshold(0.75), seed=1)
weights = {name: Bundle.load(home / name, trust=True).model.weight for name in ("one", "other")}

def same(out):
    found = Bundle.load(out, trust=True)
    is_one = [found.rule.value == 0.5, found.model.weight.equal(weights["one"])]
    return "one" if all(is_one) else "a mixture" if any(is_one) else "other"

for exchange in (True, False):
    counts = kills.kill_swap(one, other, home, same, exchange=exchange, every=3)
    print(sum(counts.outcomes.values()), sorted(counts.outcomes), counts.failures)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_process_killed_in_the_swap_leaves_the_old_folder_or_the_new(tmp_path):
    place = os.pathsep.join([str(HERE / "robustness"), *sys.path])
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": place}, timeout=300
    )
    assert ran.returncode == 0, ran.stderr
    lines = ran.stdout.splitlines()
    assert len(lines) == 2
    for line in lines:
        times, _, rest = line.partition(" ")
        assert int(times) > 10
        assert rest == "['the new', 'the old'] []"
