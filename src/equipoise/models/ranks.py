"""Several processes on one job, under torchrun: each processes its share of every batch, and the results are summed.

Sums of w_i f_i and of gradients add up over shards because w comes from the counts of the whole split (averages of per-shard gaps would
not). One process and several take the same steps, up to the order of floating-point sums. In a script:

    from equipoise.models import ranks
    ranks.begin()                      # reads torchrun's settings; does nothing without them
    model = eq.train(...); result = eq.debias(...)
"""

import os
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch import distributed as dist

from equipoise.models.devices import requested_device


def begin() -> None:
    """Joins the processes that torchrun started; each uses the GPU of its local rank, unless there is none or EQUIPOISE_DEVICE is cpu."""
    if "RANK" not in os.environ or size() > 1:
        return
    requested = requested_device()
    gpu = torch.cuda.is_available() if requested is None else requested.type == "cuda"
    if gpu:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group("nccl" if gpu else "gloo")


def size() -> int:
    """The number of processes."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """The rank of this process, from 0."""
    return dist.get_rank() if size() > 1 else 0


def share(index: Tensor) -> Tensor:
    """This process's share of some positions."""
    return index[rank() :: size()]


def add_up(tensors: Sequence[Tensor]) -> None:
    """Replaces each tensor by its sum over the processes."""
    if size() == 1 or not tensors:
        return
    flat = torch.cat([t.reshape(-1) for t in tensors])  # one message instead of one per tensor
    dist.all_reduce(flat)
    start = 0
    for t in tensors:
        t.copy_(flat[start : start + t.numel()].view_as(t))
        start += t.numel()


def add_up_gradients(parameters: Sequence[nn.Parameter]) -> None:
    """Sums the gradients over the processes; a process without rows contributes zero."""
    if size() == 1:
        return
    for p in parameters:
        if p.grad is None:
            p.grad = torch.zeros_like(p)
    add_up([p.grad for p in parameters if p.grad is not None])


def agree(model: nn.Module) -> None:
    """Copies the weights and buffers of the first process to all."""
    if size() > 1:
        for tensor in model.state_dict().values():
            dist.broadcast(tensor, 0)
