"""Weights in a file: safetensors, or a torch file of tensors and plain values; a pickle that could run code is refused."""

import pickle
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from equipoise.errors import BadInput, raise_all
from equipoise.models.pickled import harmless, plain, refused_keys

NESTED = ("state_dict", "model_state_dict", "model")  # where training scripts put the weights inside a checkpoint
WRAPPERS = ("module.", "_orig_mod.", "model.")  # before every key of weights saved from nn.DataParallel, torch.compile or Lightning


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """The weights in a file, and their place in it, so that repaired weights can be written in the same way."""

    state: dict[str, Tensor]  # keys as in the file
    whole: object = None  # all that a torch file holds; None for safetensors
    under: str | None = None  # the key of the weights in `whole`


def load_weights(path: str | Path) -> dict[str, Tensor]:
    """The state dict in a safetensors file or a torch file. A pickle that could run code is refused."""
    return read_checkpoint(path).state


def read_checkpoint(path: str | Path) -> Checkpoint:
    """The weights in a safetensors file or a torch file, and their place in it. A pickle that could run code is refused."""
    path = Path(path)
    if not path.is_file():
        raise BadInput(f"no such file: {path}. Name the file with the weights.")
    if path.suffix.lower() == ".safetensors":
        return Checkpoint(safetensors_in(path.read_bytes(), str(path)))
    whole = found = _load_pickle(path)
    under = None
    if isinstance(whole, dict):
        under = next((key for key in NESTED if isinstance(whole.get(key), dict)), None)
        found = whole if under is None else whole[under]
    if not isinstance(found, dict) or not found or not all(isinstance(k, str) and isinstance(v, Tensor) for k, v in found.items()):
        raise BadInput(f"{path} holds no state dict (names and tensors) but {_held(found)}. Save only model.state_dict().")
    raise_all(_unusual(found), str(path))
    return Checkpoint(found, whole, under)


def _held(found: object) -> str:
    if not isinstance(found, dict):
        return f"a {type(found).__name__}"
    odd = [f"{key!r}, of type {type(value).__name__}" for key, value in found.items() if not isinstance(value, Tensor)]
    tensors = len(found) - len(odd)
    if tensors and odd:
        return f"{tensors} tensors and also {', '.join(odd[:3])}"
    return f"the keys {', '.join(map(str, list(found)[:5]))}"


def safetensors_in(content: bytes, source: str) -> dict[str, Tensor]:
    """The state dict in the bytes of a safetensors file."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        found: dict[str, Tensor] = load(content)
    except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError, OverflowError) as error:  # one for each kind of damage
        raise BadInput(f"{source} is not a readable safetensors file: {error}. Save it again.") from error
    raise_all(_unusual(found), source)
    return found


def _unusual(state: Mapping[str, Tensor]) -> list[str]:
    """The problems with weights that cannot be loaded into a network, by kind, with what to do."""
    kinds: dict[str, list[str]] = {}
    for key, value in state.items():
        if value.is_meta:
            kind = "have no values (they are on torch's meta device). Save the network after its weights were loaded."
        elif value.is_quantized:
            kind = "are quantised. Save the network before it is quantised, or call .dequantize() on them."
        elif value.layout != torch.strided or getattr(value, "is_nested", False):
            kind = "are sparse or nested. Call .to_dense() on them before saving."
        else:
            continue
        kinds.setdefault(kind, []).append(key)
    return [f"{len(keys)} of the weights ({', '.join(keys[:5])}{' ...' if len(keys) > 5 else ''}) {kind}" for kind, keys in kinds.items()]


def _load_pickle(path: Path) -> object:
    """The content of a torch file, if it is plain data. Pickle fails in many ways on other files, so any error is caught."""
    try:
        with warnings.catch_warnings(), harmless():
            warnings.simplefilter("ignore")  # about pickle protocols; the error is enough
            return plain(torch.load(path, map_location="cpu", weights_only=True))
    except Exception as error:
        if isinstance(error, pickle.UnpicklingError) and _is_pickle(path):
            if found := refused_keys(path):
                shown = ", ".join(f"{key} of type {kind}" for key, kind in list(found.items())[:5])
                raise BadInput(
                    f"{path} holds more than weights and could run code when loaded; it is refused: {shown}. "
                    "Save only model.state_dict(), or leave these out, and give the architecture with --model."
                ) from error
            raise BadInput(
                f"{path} holds more than weights and could run code when loaded; it is refused. "
                "Save only model.state_dict(), or use safetensors, and give the architecture with --model."
            ) from error
        raise BadInput(f"{path} is not a readable torch file. Save model.state_dict() with torch.save, or as safetensors.") from error


def _is_pickle(path: Path) -> bool:
    """A zip archive, as torch writes it, or a pickle of protocol 2 or above, by the first bytes."""
    with path.open("rb") as file:
        start = file.read(2)
    return start == b"PK" or (start[:1] == b"\x80" and start[1:] in (b"\x02", b"\x03", b"\x04", b"\x05"))


def prefix_of(keys: Iterable[str], own: Iterable[str]) -> str:
    """The prefix that a wrapper added to every key of saved weights and that the network's own keys lack.

    >>> prefix_of(["module.weight", "module.bias"], ["weight", "bias"])
    'module.'
    """
    keys, own, prefix = list(keys), list(own), ""
    while found := next((w for w in WRAPPERS if keys and all(key.startswith(prefix + w) for key in keys)), ""):
        if any(key.startswith(found) for key in own):
            break
        prefix += found
    return prefix


def bare(key: str) -> str:
    """A key without the prefixes of wrappers.

    >>> bare("module._orig_mod.features.weight")
    'features.weight'
    """
    while found := next((w for w in WRAPPERS if key.startswith(w)), ""):
        key = key.removeprefix(found)
    return key
