"""Weights: damaged files, keys and shapes that do not fit, values that are not finite, and pickles that run code.

The oracle reads the same file with safetensors or torch alone and computes the audit by hand. Code in a pickle must never run.
"""

import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from fuzz.base import FEATURES
from fuzz.bytes import mutated
from fuzz.case import Case, Outcome
from fuzz.recount import compared, rows_of


class Marks:
    """An object that leaves a file behind when it is unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, (self.path,)


def case(base: Path, place: Path, rng: np.random.Generator) -> Case:
    kind = rng.random()
    mark = place / "ran"
    if kind < 0.5:
        source = base / str(rng.choice(["net.safetensors", "net.pt", "net-nested.pt"]))
        what, content = mutated(source.read_bytes(), rng)
        path = place / f"mutated{source.suffix}"
        path.write_bytes(content)
        what = f"{source.name}, {what}"
    elif kind < 0.6:
        path, what = place / "mutated.pt", "a pickle that runs code"
        content = {"weight": torch.tensor([[1.0, 0.5]]), "bias": Marks(str(mark))}
        if rng.random() < 0.5:
            torch.save(content, path)
        else:
            path.write_bytes(pickle.dumps(content))
    else:
        path, what = _state(place, rng)
    command = ["audit", str(base / "scores.csv"), "--label", "y", "--group", "sex", "--patient", "patient", *FEATURES]
    command += ["--model", f"{base / 'net.py'}:linear", "--weights", path.name, "--set", "model.output=logit"]
    command += ["--set", "audit.min_patients=1", "--json"]
    content = path.read_bytes()
    return Case(what, command, lambda outcome: _judged(outcome, base, content, path, mark))


def _state(place: Path, rng: np.random.Generator) -> tuple[Path, str]:
    """A state dict that was changed before it was saved."""
    weight, bias = torch.tensor([[1.0, 0.5]]), torch.tensor([-1.1])
    changes: dict[str, dict[str, Any]] = {
        "as it is": {"weight": weight, "bias": bias},
        "float64": {"weight": weight.double(), "bias": bias.double()},
        "float16": {"weight": weight.half(), "bias": bias.half()},
        "whole numbers": {"weight": weight.int(), "bias": bias.int()},
        "complex numbers": {"weight": weight.to(torch.complex64), "bias": bias},
        "NaN": {"weight": weight * np.nan, "bias": bias},
        "infinity": {"weight": weight, "bias": bias * np.inf},
        "no bias": {"weight": weight},
        "another shape": {"weight": weight.repeat(1, 2), "bias": bias},
        "transposed": {"weight": weight.T.contiguous(), "bias": bias},
        "a key more": {"weight": weight, "bias": bias, "more": bias.clone()},
        "a prefix": {"net.weight": weight, "net.bias": bias},
        "other names": {"w": weight, "b": bias},
        "sparse": {"weight": weight.to_sparse(), "bias": bias},
        "a NumPy scalar": {"weight": weight, "bias": bias, "best_auc": np.float64(0.91)},
        "a NumPy array": {"weight": weight.numpy(), "bias": bias.numpy()},
        "a list": {"weight": weight.tolist(), "bias": bias},
        "nothing": {},
        "a huge number": {"weight": weight * 1e38, "bias": bias * 1e38},
        "an expanded tensor": {"weight": torch.ones(1).expand(1, 2), "bias": bias},
        "a meta tensor": {"weight": weight.to("meta"), "bias": bias},
        "nested twice": {"model": {"state_dict": {"weight": weight, "bias": bias}}},
        "two networks": {"student": {"weight": weight, "bias": bias}, "teacher": {"weight": weight * 2, "bias": bias}},
    }
    what = str(rng.choice(list(changes)))
    state = changes[what]
    plain = state and all(isinstance(v, torch.Tensor) and not v.is_sparse and v.device.type == "cpu" for v in state.values())
    if plain and rng.random() < 0.5:
        path = place / "mutated.safetensors"
        save_file({k: v.contiguous() for k, v in state.items()}, path)
    else:
        path = place / "mutated.pt"
        torch.save(state, path)
    if rng.random() < 0.1:
        path = path.rename(path.with_suffix(str(rng.choice([".pt", ".safetensors", ".bin", ".pth", ".onnx"]))))
        what += f" as {path.suffix}"
    return path, what


def _judged(outcome: Outcome, base: Path, content: bytes, path: Path, mark: Path) -> str:
    if mark.exists():
        return "the code in the pickle was run"
    try:
        state = _read(content, path)
    except Exception as error:  # whatever the libraries raise for these bytes
        return f"accepted, although {type(error).__name__}: {error}"
    weight, bias = (np.asarray(state[name], dtype=np.float32) for name in ("weight", "bias"))
    if not (np.isfinite(weight).all() and np.isfinite(bias).all()):
        return "accepted, although a weight is not finite"
    rows = rows_of((base / "scores.csv").read_bytes())
    x = np.array([[row["a"], row["b"]] for row in rows], dtype=np.float64)
    with np.errstate(over="ignore"):
        logit = x @ weight[0].astype(np.float64) + float(bias[0])
        score = 1 / (1 + np.exp(-logit))
    near = np.abs(logit) < 1e-5 * (1 + np.abs(x @ np.abs(weight[0]))).clip(1)
    if near.any():  # a decision may turn by the last bit
        return ""
    return compared(outcome.out, [{**row, "p": repr(float(p))} for row, p in zip(rows, score, strict=True)])


def _read(content: bytes, path: Path) -> dict[str, Any]:
    """The two tensors in a file, by its library alone."""
    place = path.parent / ".read"
    place.write_bytes(content)
    try:
        if zipfile.is_zipfile(place) or content[:1] == b"\x80":
            import numpy.dtypes

            safe = [
                np.dtype,
                np.float64,
                np._core.multiarray.scalar,
                np._core.multiarray._reconstruct,
                np.ndarray,
                numpy.dtypes.Float64DType,
            ]  # type: ignore[attr-defined]
            with torch.serialization.safe_globals(safe):
                found: Any = torch.load(place, weights_only=True)
        else:
            with safe_open(place, "pt") as file:
                found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    finally:
        place.unlink()
    while isinstance(found, dict) and not any(name.endswith("weight") for name in map(str, found)):
        [found] = [value for value in found.values() if isinstance(value, dict)]
    state = {str(name).rpartition(".")[2]: value for name, value in found.items() if str(name).endswith(("weight", "bias"))}
    if tuple(state["weight"].shape) != (1, 2) or tuple(state["bias"].shape) != (1,):
        raise ValueError("the shapes do not fit")
    if any(torch.as_tensor(value).is_complex() for value in state.values()):
        raise ValueError("complex numbers")
    return {name: torch.as_tensor(value).to_dense().double().numpy() for name, value in state.items()}
