"""Weights in a file: safetensors, or a torch file of tensors and plain values; a pickle that could run code is refused.

torch loads tensors, built-in values and what is on its list of allowed types. Training scripts also save NumPy's numbers and arrays, times,
paths and argparse's options, which are plain values too and are put on the list while a file is read.
"""

import argparse
import datetime as dt
import pickle
import re
import warnings
import zipfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from equipoise.errors import BadInput, raise_all

NESTED_KEYS = ("state_dict", "model_state_dict", "model")  # where training scripts put the weights inside a checkpoint
WRAPPER_PREFIXES = ("module.", "_orig_mod.", "model.")  # before every key of weights saved from nn.DataParallel, torch.compile or Lightning
PICKLE_START = re.compile(
    rb"PK|\x80[\x02-\x05]"
)  # the first bytes of a zip archive, as torch writes it, or of a pickle of protocol 2 or above


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """The weights in a file, and their place in it, so that repaired weights can be written in the same way."""

    state: dict[str, Tensor]  # keys as in the file
    whole: dict[str, Any] | None = None  # the whole content of a torch file; None for safetensors
    under: str | None = None  # the key of the weights in `whole`


class _Dtype:
    """A NumPy dtype in a pickle, by its code. NumPy's own reader would trust the flags in the file, by which bytes can pass for objects."""

    def __init__(self, code: object, *_: object) -> None:
        self.dtype = np.dtype(str(code))
        if self.dtype.kind not in "biufcSU" or self.dtype.subdtype is not None:
            raise pickle.UnpicklingError(f"a NumPy dtype {code!r} is not of numbers or text")

    def __setstate__(self, state: Any) -> None:
        self.dtype = self.dtype.newbyteorder(">" if state[1] == ">" else "=")

    def __reduce__(self) -> Any:  # written as NumPy's
        return self.dtype.__reduce__()


class _Array(np.ndarray):
    """A NumPy array in a pickle."""

    def __new__(cls, *_: object) -> "_Array":  # a type, a shape and a dtype, which the state repeats
        return np.zeros(0).view(cls)

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, fortran, raw = state
        checked: Any = np.frombuffer(raw, kind.dtype).reshape(shape, order="F" if fortran else "C").__reduce__()[2]
        super().__setstate__(checked)

    def __reduce_ex__(self, protocol: Any) -> Any:  # written as NumPy's
        return self.view(np.ndarray).__reduce_ex__(protocol)


def _scalar(kind: _Dtype, raw: bytes) -> Any:
    return np.frombuffer(raw, kind.dtype)[0]


PATH_TYPES = ("Path", "PosixPath", "PurePosixPath", "WindowsPath", "PureWindowsPath", "PurePath")
ALLOWED_TYPES: list[Any] = [  # besides torch's own; some with the name that a pickle has for them
    *(argparse.Namespace, dt.datetime, dt.date, dt.time, dt.timedelta, dt.timezone),
    *((Path, f"{module}.{name}") for module in ("pathlib", "pathlib._local") for name in PATH_TYPES),
    *((_scalar, f"numpy.{core}.multiarray.scalar") for core in ("core", "_core")),
    *((_Array, f"numpy.{name}") for name in ("ndarray", "core.multiarray._reconstruct", "_core.multiarray._reconstruct")),
    (_Dtype, "numpy.dtype"),
]


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
    whole: Any = _load_pickle(path)
    content = whole if isinstance(whole, dict) else {}
    under = next((key for key in NESTED_KEYS if isinstance(content.get(key), dict)), None)
    state: dict[str, Any] = content if under is None else content[under]
    others = [f"{key!r}, of type {type(value).__name__}" for key, value in state.items() if not isinstance(value, Tensor)]
    if not state or others or not all(isinstance(key, str) for key in state):
        found = f"the keys {', '.join(map(str, list(state)[:5]))}" if whole is content else f"a {type(whole).__name__}"
        if others and len(others) < len(state):
            found = f"{len(state) - len(others)} tensors and also {', '.join(others[:3])}"
        raise BadInput(f"{path} holds no state dict (names and tensors) but {found}. Save only model.state_dict().")
    raise_all(_unusable_weights(state), str(path))
    return Checkpoint(state, whole, under)


def file_content(path: Path, advice: str) -> bytes:
    """The bytes of a file; an error with this advice if it cannot be read."""
    if not path.is_file():
        raise BadInput(f"no such file: {path}. {advice}")
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror or error}. {advice}") from error


def safetensors_in(content: bytes, source: str) -> dict[str, Tensor]:
    """The state dict in the bytes of a safetensors file."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        state: dict[str, Tensor] = load(content)
    except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError, OverflowError) as error:  # one for each kind of damage
        raise BadInput(f"{source} is not a readable safetensors file: {error}. Save it again.") from error
    raise_all(_unusable_weights(state), source)
    return state


def _unusable_weights(state: Mapping[str, Tensor]) -> list[str]:
    """One problem for each kind of weights that cannot be loaded into a network, with the remedy."""
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
    """The content of a torch file if it is plain data. Pickle fails in many ways on other files, so any error is caught."""
    with warnings.catch_warnings(), torch.serialization.safe_globals(ALLOWED_TYPES):
        warnings.simplefilter("ignore")  # about pickle protocols; the error is enough
        try:
            with path.open("rb") as file:
                start = file.read(4)
            if start == b"PK\x03\x04":  # zipfile.is_zipfile also looks at the end, and not all versions alike
                zipfile.ZipFile(path).close()  # torch reads some archives whose list of files is damaged
            return torch.load(path, map_location="cpu", weights_only=True)
        except zipfile.BadZipFile as error:
            raise BadInput(f"{path} is a damaged torch file: {error}. Copy or save it again, and compare checksums.") from error
        except Exception as error:
            if not isinstance(error, pickle.UnpicklingError) or not PICKLE_START.match(start):
                raise BadInput(
                    f"{path} is not a readable torch file. Save model.state_dict() with torch.save, or as safetensors."
                ) from error
            refused = re.findall(r"GLOBAL (\S+)", str(error))[:1]  # the first type that is not allowed
            with suppress(Exception):  # all of them, for a file of torch 1.6 or later
                refused = sorted(torch.serialization.get_unsafe_globals_in_checkpoint(path)) or refused
            reason, advice = (f" because of {', '.join(refused[:5])}", "leave these out") if refused else ("", "use safetensors")
            raise BadInput(
                f"{path} holds more than weights and could run code when loaded; it is refused{reason}. "
                f"Save only model.state_dict(), or {advice}, and give the architecture with --model."
            ) from error


def prefix_of(keys: Iterable[str], network_keys: Iterable[str]) -> str:
    """The prefix that a wrapper added to every key of saved weights and that the network's keys lack.

    >>> prefix_of(["module.weight", "module.bias"], ["weight", "bias"])
    'module.'
    """
    keys, network_keys, prefix = list(keys), list(network_keys), ""
    while wrapper := next((w for w in WRAPPER_PREFIXES if keys and all(key.startswith(prefix + w) for key in keys)), ""):
        if any(key.startswith(wrapper) for key in network_keys):
            break
        prefix += wrapper
    return prefix


def misfits(expected: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> list[str]:
    """One problem for each way in which weights do not fit those that a network expects."""
    reshaped = [
        f"{key} {tuple(state[key].shape)}, not {tuple(expected[key].shape)}"
        for key in sorted(expected.keys() & state.keys())
        if expected[key].shape != state[key].shape
    ]
    return [
        f"{len(keys)} {what}: {', '.join(keys[:5])}{' ...' if len(keys) > 5 else ''}. Name the network that they were saved from."
        for what, keys in (
            ("weights of the network are not in the file", sorted(expected.keys() - state.keys())),
            ("weights in the file fit nothing in the network", sorted(state.keys() - expected.keys())),
            ("weights in the file have another shape than the network's", reshaped),
        )
        if keys
    ]


def bare(key: str) -> str:
    """A key without the prefixes of wrappers.

    >>> bare("module._orig_mod.features.weight")
    'features.weight'
    """
    while wrapper := next((w for w in WRAPPER_PREFIXES if key.startswith(w)), ""):
        key = key.removeprefix(wrapper)
    return key
