"""One and two processes take the same steps: training, bias-gda, influence and pruning, over gloo with the settings of torchrun."""

import os
import socket
from multiprocessing.context import ForkServerContext
from pathlib import Path

import numpy as np
import pytest
import torch

from equipoise.errors import BadInput
from equipoise.models import join_processes, ranks
from support import shared_job
from support.facts import facts


def joined(path: Path, rank: int, processes: int, port: int) -> None:
    """Runs the job as one of several processes, with the settings of torchrun."""
    torchrun = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": processes, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in torchrun.items()}, GLOO_SOCKET_IFNAME="lo", EQUIPOISE_DEVICE="cpu")
    shared_job.main(str(path))


def results(path: Path, processes: int, forks: ForkServerContext) -> dict[str, np.ndarray]:
    if processes == 1:
        with torch.random.fork_rng(devices=[]):
            shared_job.main(str(path))
    else:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        started = [forks.Process(target=joined, args=(path, rank, processes, port)) for rank in range(processes)]
        for process in started:
            process.start()
        for process in started:
            process.join(120)
            process.kill()  # or one whose partner has died is waited for without end
        assert [process.exitcode for process in started] == [0] * processes
    with np.load(path) as found:
        return dict(found)


def test_two_processes_and_one_agree(tmp_path: Path, forks, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("EQUIPOISE_DEVICE", "cpu")
    alone, together = results(tmp_path / "one.npz", 1, forks), results(tmp_path / "two.npz", 2, forks)
    assert (int(alone.pop("processes")), int(together.pop("processes"))) == (1, 2)
    assert np.abs(alone["gradient"]).max() > 0
    assert np.abs(alone["tuned"] - alone["trained"]).max() > 1e-3
    assert np.abs(alone["without"] - alone["scores"]).max() > 1e-6
    for name, value in alone.items():
        scale = np.abs(value).max()
        np.testing.assert_allclose(together[name], value, atol=2e-5 * max(scale, 1e-3), rtol=1e-4, err_msg=name)


@pytest.mark.parametrize(("device", "expected"), [("cpu", [(), ("gloo",)]), ("", [(1,), ("cpu:gloo,cuda:nccl",)])])
def test_processes_take_their_own_gpu_and_none_on_the_cpu(monkeypatch: pytest.MonkeyPatch, device: str, expected: list[tuple]):
    devices, backends = [], []
    for name, value in {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "EQUIPOISE_DEVICE": device}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(ranks, "_joined", ranks._Joined())
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", devices.append)
    monkeypatch.setattr(torch.distributed, "rendezvous", lambda *_, **__: iter([(torch.distributed.HashStore(), 1, 2)]))
    monkeypatch.setattr(torch.distributed, "init_process_group", lambda backend, **_: backends.append(backend))
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 1)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    assert join_processes() == 1
    assert [tuple(devices), tuple(backends)] == expected


def test_a_process_without_a_gpu_is_an_error(monkeypatch: pytest.MonkeyPatch):
    for name, value in {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "EQUIPOISE_DEVICE": ""}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(BadInput, match=facts("--nproc-per-node", "1")):
        join_processes()
