"""One process and two take the same steps: training, bias-gda, influence and pruning, over gloo as torchrun starts it."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import equipoise
from support import shared_job


def results(path: Path, processes: int) -> dict[str, np.ndarray]:
    if processes == 1:
        with torch.random.fork_rng(devices=[]):
            shared_job.main(str(path))
    else:
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
        source = os.pathsep.join(str(Path(file).parents[1]) for file in (equipoise.__file__, shared_job.__file__))
        environment = os.environ | {"PYTHONPATH": source, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        command = [sys.executable, *launcher, shared_job.__file__, str(path)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
    with np.load(path) as found:
        return dict(found)


def test_two_processes_and_one_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("EQUIPOISE_DEVICE", "cpu")
    alone, together = results(tmp_path / "one.npz", 1), results(tmp_path / "two.npz", 2)
    assert (int(alone.pop("processes")), int(together.pop("processes"))) == (1, 2)
    assert np.abs(alone["gradient"]).max() > 0
    assert np.abs(alone["tuned"] - alone["trained"]).max() > 1e-3
    assert np.abs(alone["without"] - alone["scores"]).max() > 1e-6
    for name, value in alone.items():
        scale = np.abs(value).max()
        np.testing.assert_allclose(together[name], value, atol=2e-5 * max(scale, 1e-3), rtol=1e-4, err_msg=name)
