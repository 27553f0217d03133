"""Weights in a file: safetensors, or a torch file of tensors and plain values; a pickle that could run code is refused.

torch loads tensors and built-in values. Training scripts also save NumPy's scalars, arrays and dtypes, times, paths and argparse's options,
which are plain values too, but NumPy's own functions to rebuild them trust the file. So these are read by functions of this module, under
the names that a pickle uses for them. Anything else is refused, and the error lists its places in the file.
"""

import argparse
import collections
import copy
import datetime as dt
import pickle
import warnings
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, _weights_only_unpickler

from equipoise.errors import BadInput, raise_all

NESTED = ("state_dict", "model_state_dict", "model")  # where training scripts put the weights inside a checkpoint
WRAPPERS = ("module.", "_orig_mod.", "model.")  # before every key of weights saved from nn.DataParallel, torch.compile or Lightning
LEGACY = 0x1950A86A20F9469CFC6C  # first value of a torch file written before torch 1.6
KINDS = "biufcSUMm"  # of NumPy's dtypes: numbers, text and times; no objects, no records


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """The weights in a file, and their place in it, so that repaired weights can be written in the same way."""

    state: dict[str, Tensor]  # keys as in the file
    whole: object = None  # the whole content of a torch file; None for safetensors
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
    whole = state = _load_pickle(path)
    under = None
    if isinstance(whole, dict):
        under = next((key for key in NESTED if isinstance(whole.get(key), dict)), None)
        state = whole if under is None else whole[under]
    if not isinstance(state, dict) or not state or not all(isinstance(k, str) and isinstance(v, Tensor) for k, v in state.items()):
        raise BadInput(f"{path} holds no state dict (names and tensors) but {_describe(state)}. Save only model.state_dict().")
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


def _describe(content: object) -> str:
    if not isinstance(content, dict):
        return f"a {type(content).__name__}"
    others = [f"{key!r}, of type {type(value).__name__}" for key, value in content.items() if not isinstance(value, Tensor)]
    tensors = len(content) - len(others)
    if tensors and others:
        return f"{tensors} tensors and also {', '.join(others[:3])}"
    return f"the keys {', '.join(map(str, list(content)[:5]))}"


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
    try:
        with warnings.catch_warnings(), harmless():
            warnings.simplefilter("ignore")  # about pickle protocols; the error is enough
            with path.open("rb") as file:
                archive = file.read(4) == b"PK\x03\x04"  # zipfile.is_zipfile also looks at the end, and not all versions alike
            if archive:
                zipfile.ZipFile(path).close()  # torch reads some archives whose list of files is damaged
            whole = torch.load(path, map_location="cpu", weights_only=True)
            levels = [level for level in (whole, *whole.values()) if isinstance(level, dict)] if isinstance(whole, dict) else []
            weights = {id(value): value for level in levels for value in level.values() if isinstance(value, Tensor)}
            return copy.deepcopy(whole, weights)  # with NumPy's own arrays and dtypes in place of ours; weights are not copied
    except Exception as error:
        if isinstance(error, pickle.UnpicklingError) and _is_pickle(path):
            refused = ", ".join(f"{key} of type {kind}" for key, kind in list(_refused_keys(path).items())[:5])
            raise BadInput(
                f"{path} holds more than weights and could run code when loaded; it is refused{f': {refused}' if refused else ''}. "
                f"Save only model.state_dict(), or {'leave these out' if refused else 'use safetensors'}, "
                "and give the architecture with --model."
            ) from error
        if isinstance(error, zipfile.BadZipFile):
            raise BadInput(f"{path} is a damaged torch file: {error}. Copy or save it again, and compare checksums.") from error
        raise BadInput(f"{path} is not a readable torch file. Save model.state_dict() with torch.save, or as safetensors.") from error


def _is_pickle(path: Path) -> bool:
    """Whether the first bytes are those of a zip archive, as torch writes it, or of a pickle of protocol 2 or above."""
    with path.open("rb") as file:
        start = file.read(2)
    return start == b"PK" or (start[:1] == b"\x80" and start[1:] in (b"\x02", b"\x03", b"\x04", b"\x05"))


def prefix_of(keys: Iterable[str], network_keys: Iterable[str]) -> str:
    """The prefix that a wrapper added to every key of saved weights and that the network's keys lack.

    >>> prefix_of(["module.weight", "module.bias"], ["weight", "bias"])
    'module.'
    """
    keys, network_keys, prefix = list(keys), list(network_keys), ""
    while wrapper := next((w for w in WRAPPERS if keys and all(key.startswith(prefix + w) for key in keys)), ""):
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
    while wrapper := next((w for w in WRAPPERS if key.startswith(w)), ""):
        key = key.removeprefix(wrapper)
    return key


class _Dtype:
    """A NumPy dtype as described in a pickle, checked before NumPy creates it; `copy.deepcopy` returns the dtype."""

    def __init__(self, code: object, *_: object) -> None:
        self.dtype = np.dtype(_text(code))
        if self.dtype.kind not in KINDS or self.dtype.subdtype is not None or self.dtype.names is not None:
            raise pickle.UnpicklingError(f"a NumPy dtype {code!r} is not plain")

    def __setstate__(self, state: Any) -> None:
        order, *rest = state[1:5]
        if any(part is not None for part in rest):
            raise pickle.UnpicklingError("a NumPy dtype with fields is not plain")
        if self.dtype.kind in "Mm" and len(state) > 8:
            unit, number = state[8][1][:2]
            self.dtype = np.dtype(f"{self.dtype.kind}8[{int(number)}{_text(unit)}]")
        if _text(order) == ">":
            self.dtype = self.dtype.newbyteorder(">")

    def read(self, raw: Any) -> Any:
        """The numbers in bytes, which an old protocol stores as text."""
        return np.frombuffer(raw.encode("latin1") if isinstance(raw, str) else bytes(raw), self.dtype)

    def __deepcopy__(self, _: object) -> Any:
        return self.dtype


class _Array:
    """A NumPy array as described in a pickle, by its state or, in protocol 5, its buffer; `copy.deepcopy` returns the array."""

    def __init__(self, *content: Any) -> None:
        self.value = np.zeros(0)
        if len(content) == 4:  # otherwise a type, a shape and a dtype, which the state repeats
            self.__setstate__((1, content[2], content[1], content[3] == "F", content[0]))

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, fortran, raw = state
        self.value = dtype.read(raw).reshape(shape, order="F" if fortran else "C").copy()

    def __deepcopy__(self, _: object) -> Any:
        return self.value


def _text(value: object) -> str:
    return value.decode("ascii") if isinstance(value, bytes) else str(value)


PATHS = ("Path", "PosixPath", "PurePosixPath", "WindowsPath", "PureWindowsPath", "PurePath")
NUMPY = {"multiarray.scalar": lambda dtype, raw=b"": dtype.read(raw)[0], "multiarray._reconstruct": _Array, "numeric._frombuffer": _Array}
NAMED: dict[str, Callable[..., object]] = {  # by the name that a pickle uses
    **{f"numpy.{core}.{name}": function for core in ("core", "_core") for name, function in NUMPY.items()},
    "numpy.dtype": _Dtype,
    "numpy.ndarray": _Array,
    **{f"numpy.{kind.__name__}": kind for kind in {np.dtype(code).type for code in np.typecodes["All"] if code not in "OV"}},
    "numpy.bool_": np.bool_,
    "argparse.Namespace": argparse.Namespace,
    **{f"builtins.{kind.__name__}": kind for kind in (int, float, str, bool, list, dict, tuple, frozenset)},
    **{f"datetime.{kind.__name__}": kind for kind in (dt.datetime, dt.date, dt.time, dt.timedelta, dt.timezone)},
    **{f"{module}.{name}": lambda *parts: Path(*map(str, parts)) for module in ("pathlib", "pathlib._local") for name in PATHS},
}


def harmless() -> AbstractContextManager[None]:
    """Lets torch load the values in NAMED as well during the block."""
    allowed: AbstractContextManager[None] = torch.serialization.safe_globals([(function, name) for name, function in NAMED.items()])
    return allowed


class _Stub:
    """Placeholder for anything that a pickle names; nothing is run."""

    kind = ""

    def __init__(self, *_: object, **__: object) -> None: ...

    __setstate__ = __setitem__ = append = extend = __init__

    def __hash__(self) -> int:
        return id(self)


class _Reader(pickle._Unpickler):
    """Reads the structure of a pickle with a stub in place of every function and class."""

    def find_class(self, module: str, name: str) -> type:
        full = f"{'builtins' if module == '__builtin__' else module}.{name}"
        if full in ("collections.OrderedDict", "builtins.set"):
            return set if name == "set" else collections.OrderedDict
        allowed = full in NAMED or full in _weights_only_unpickler._get_allowed_globals()
        return type("Stub", (_Stub,), {"kind": "" if allowed else full})

    def persistent_load(self, _: object) -> _Stub:
        return _Stub()


def _refused_keys(path: Path) -> dict[str, str]:
    """The keys of a torch file that hold refused values, with their types; empty if they cannot be determined."""
    try:
        with path.open("rb") as file, zipfile.ZipFile(file) if zipfile.is_zipfile(file) else nullcontext() as archive:
            if archive is not None:
                whole = _Reader(BytesIO(archive.read(next(name for name in archive.namelist() if name.endswith("/data.pkl"))))).load()
            else:
                file.seek(0)
                whole = _Reader(file).load()
                if whole == LEGACY:  # followed by the version, the machine, and the saved value
                    whole = [_Reader(file).load() for _ in range(3)][-1]
        return dict(_stubs(whole, "", set()))
    except Exception:  # the file is refused already; this only locates the reason
        return {}


def _stubs(value: object, where: str, seen: set[int], depth: int = 0) -> Iterator[tuple[str, str]]:
    """The location of every stub, once, and the type that it stands for."""
    if id(value) in seen or depth > 8:
        return
    seen.add(id(value))
    if kind := getattr(value, "kind", "") if isinstance(value, (_Stub, type)) else "":
        yield where or "the whole file", kind
    items = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, (list, tuple)) else ()
    for key, inner in items:
        yield from _stubs(inner, f"{where}[{key!r}]" if where or not isinstance(value, Mapping) else repr(key), seen, depth + 1)
