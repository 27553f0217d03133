"""Several processes on one job, under torchrun: each processes its share of every batch, and the results are summed.

Sums of w_i f_i and of gradients add up over shards because w comes from the counts of the whole split (averages of per-shard gaps would
not). One process and several take the same steps, up to the order of floating-point sums. All of them run the same program, so whatever
depends on the time is decided by the first one (`first_decides`), and only the first one prints and writes.

Torch is imported when processes are joined, since a repair of scores asks for its rank too.
"""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from equipoise.errors import BadInput

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch._C._distributed_c10d import Store

START_TIMEOUT = timedelta(minutes=5)  # the longest wait for the other processes to start
END_SECONDS = 1800.0  # seconds that a process waits for the others to end
GRACE_SECONDS = 5.0  # seconds in which processes that fail for the same reason do so


@dataclass
class _Joined:
    """The place of this process among those of the job."""

    rank: int = 0
    size: int = 1
    store: "Store | None" = None  # where the processes leave their exit codes


_joined = _Joined()


def process_count() -> int:
    """The number of processes that torchrun has started for this job; 1 without torchrun."""
    return int(os.environ.get("WORLD_SIZE", "1")) if "RANK" in os.environ else 1


def join_processes() -> int:
    """The rank of this process, from 0, after it has joined the others that torchrun started; 0 without torchrun.

    To be called once, before `eq.train` or `eq.debias`. Only the process of rank 0 should print and write. Each uses the GPU of its local
    rank, unless there is none or EQUIPOISE_DEVICE is cpu.

    >>> join_processes()
    0
    """
    if process_count() == 1 or size() > 1:
        return rank()
    import torch
    from torch import distributed as dist

    from equipoise.models.devices import requested_device

    requested = requested_device()
    gpu = torch.cuda.is_available() if requested is None else requested.type == "cuda"
    if gpu:
        local, gpus = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
        if local >= gpus:
            raise BadInput(
                f"there is no GPU for process {local + 1} of this machine: PyTorch finds {gpus}. Start at most {gpus} processes here "
                "(--nproc-per-node), or compute on the CPU (EQUIPOISE_DEVICE=cpu)."
            )
        torch.cuda.set_device(local)
    try:
        if not dist.is_initialized():
            store, own, count = next(dist.rendezvous("env://", timeout=START_TIMEOUT))  # type: ignore[attr-defined]
            _joined.store = dist.PrefixStore("equipoise", store)  # type: ignore[attr-defined]
            dist.init_process_group("cpu:gloo,cuda:nccl" if gpu else "gloo", store=store, rank=own, world_size=count)
    except (RuntimeError, ValueError) as error:
        raise BadInput(
            f"the {process_count()} processes of this job could not be connected ({error}). Start them with torchrun, or start one process "
            "without it."
        ) from error
    _joined.rank, _joined.size = dist.get_rank(), dist.get_world_size()
    return rank()


def leave_processes(code: int | None) -> tuple[int, int | None]:
    """The exit code of all processes, given that of this one's work, and the rank of the process that failed, or None.

    A process that succeeded waits for the others, unless one of them fails; one that failed ends the work of the others. `code` is None
    for a process that was interrupted by an unexpected error, such as the loss of a connection to one that failed.
    """
    store, own, count, start = _joined.store, rank(), size(), time.monotonic()
    codes = {own: code}
    if store is not None:
        from torch import distributed as dist

        try:
            store.set(f"code {own}", "" if code is None else str(code))
            if code != 0 and dist.get_backend() == "gloo":
                dist.destroy_process_group()  # the others stop waiting for this process at once
            while len(codes) < count and time.monotonic() < start + (
                END_SECONDS if not any(c != 0 for c in codes.values()) else GRACE_SECONDS
            ):
                ended = [k for k in range(count) if store.check([f"code {k}"])]
                codes |= {k: int(found) if (found := store.get(f"code {k}")) else None for k in ended}
                time.sleep(0.02)
            store.set(f"left {own}", "")
            while own == 0 and time.monotonic() < start + GRACE_SECONDS and not all(store.check([f"left {k}"]) for k in range(count)):
                time.sleep(0.02)  # the store may be in this process
        except RuntimeError:  # the process that held the store is gone
            codes.setdefault(0, None)
    failed = next((k for k in sorted(codes) if codes[k]), None)
    if failed is not None:
        return codes[failed] or 1, failed
    return int(len(codes) < count or None in codes.values()), None


def size() -> int:
    """The number of processes."""
    return _joined.size


def rank() -> int:
    """The rank of this process, from 0."""
    return _joined.rank


def share(index: "Tensor") -> "Tensor":
    """This process's share of some positions."""
    return index[rank() :: size()]


def add_up(tensors: "Sequence[Tensor]") -> None:
    """Replaces each tensor by its sum over the processes."""
    if size() == 1 or not tensors:
        return
    import torch

    flat = torch.cat([t.reshape(-1) for t in tensors])  # one message instead of one per tensor
    torch.distributed.all_reduce(flat)
    start = 0
    for t in tensors:
        t.copy_(flat[start : start + t.numel()].view_as(t))
        start += t.numel()


def add_up_gradients(parameters: "Sequence[nn.Parameter]") -> None:
    """Sums the gradients over the processes; a process without rows contributes zero."""
    if size() == 1:
        return
    import torch

    for p in parameters:
        if p.grad is None:
            p.grad = torch.zeros_like(p)
    add_up([p.grad for p in parameters if p.grad is not None])


def agree(model: "nn.Module") -> None:
    """Copies the weights and buffers of the first process to all."""
    if size() > 1:
        from torch import distributed as dist

        for tensor in model.state_dict().values():
            dist.broadcast(tensor, 0)


def first_decides(decision: bool) -> bool:
    """The decision of the first process, in all of them. For decisions that depend on the time, which differs between processes."""
    if size() == 1:
        return decision
    import torch

    shared = torch.tensor([decision])
    torch.distributed.broadcast(shared, 0)
    return bool(shared)
