"""The trained networks of a block of splits, as one safetensors file: exact, checked when it is read, unable to run code."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from equipoise.errors import BadInput


def to_bytes(models: Sequence[nn.Module], seeds: Sequence[int], about: Mapping[str, Any]) -> bytes:
    """The weights of one network a seed, and what to know about them."""
    from safetensors.torch import save

    tensors = {
        f"{seed}/{k}": v.detach().cpu().contiguous().clone()
        for seed, m in zip(seeds, models, strict=True)
        for k, v in m.state_dict().items()
    }
    thresholds = [getattr(model, "threshold", None) for model in models]
    notes = {**about, "seeds": list(seeds), "thresholds": thresholds, "sha256": _digest(tensors)}
    return bytes(save(tensors, {"equipoise": json.dumps(notes)}))


def from_bytes(content: bytes, source: str) -> tuple[dict[int, dict[str, Tensor]], dict[str, Any]]:
    """The state dict of each seed and what was noted, or an error that names the file if it is damaged."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        tensors = load(content)
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        about = json.loads(header["__metadata__"]["equipoise"])
        if about["sha256"] != _digest(tensors):
            raise ValueError("its checksum is wrong")
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise BadInput(f"{source} is damaged ({error}). Run the study again to have it redone.") from error
    states: dict[int, dict[str, Tensor]] = {int(seed): {} for seed in about["seeds"]}
    for key, tensor in tensors.items():
        seed, _, name = key.partition("/")
        states[int(seed)][name] = tensor
    return states, about


def read_about(path: Path) -> dict[str, Any]:
    """What was noted in a file of networks, without reading their weights."""
    try:
        with path.open("rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        about: dict[str, Any] = json.loads(header["__metadata__"]["equipoise"])
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise BadInput(f"{path} is damaged ({error}). Run the study again to have it redone.") from error
    return about


def _digest(tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
