"""Networks from outside: the architecture from a factory that the user names, the weights from a file that cannot run code."""

import importlib
import importlib.util
import inspect
import pickle
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor, nn

from equipoise.errors import BadInput, did_you_mean, raise_all

NESTED = ("state_dict", "model_state_dict", "model")  # where training scripts put the weights inside a checkpoint


def load_model(factory: str, weights: str | Path | None = None) -> nn.Module:
    """The network that `file.py:factory` or `package.module:factory` builds, with these weights, in eval mode."""
    model = build(factory)
    if weights is not None:
        _fit(model, load_weights(weights), str(weights))
    return model.eval()


def build(factory: str) -> nn.Module:
    """The module that a factory without arguments returns. The factory is the user's own code and is run."""
    place, _, name = factory.rpartition(":")
    if not place or not name:
        raise BadInput(f"a model is named as file.py:factory or package.module:factory; got {factory!r}. Add what is missing.")
    is_file = place.endswith(".py") or "/" in place
    with _importable(Path(place).absolute().parent if is_file else Path.cwd()):
        module = _run_file(Path(place)) if is_file else _import(place)
        function = getattr(module, name, None)
        if function is None:
            raise BadInput(f"{place} defines no {name!r}.{did_you_mean(name, vars(module))} Name a function or class in it.")
        return _called(function, factory)


def _called(function: object, factory: str) -> nn.Module:
    if isinstance(function, nn.Module):
        return function
    if not callable(function):
        raise BadInput(f"{factory} is of type {type(function).__name__}. Name a function or class that returns a torch.nn.Module.")
    if needed := _required(function):
        raise BadInput(f"{factory} needs the arguments {', '.join(needed)}. Name a function without arguments that calls it.")
    try:
        model = function()
    except Exception as error:  # the user's code may raise anything; the message must say that it was theirs
        raise BadInput(f"{factory} raised {type(error).__name__}: {error}. Mend it; Equipoise only called it.") from error
    if not isinstance(model, nn.Module):
        raise BadInput(f"{factory} returned an object of type {type(model).__name__}. Return a torch.nn.Module.")
    return model


def _required(function: Callable[..., object]) -> list[str]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # some classes written in C do not tell
        return []
    return [p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]


def load_weights(path: str | Path) -> dict[str, Tensor]:
    """The state dict in a safetensors file or a torch file. A pickle that wants to run code is refused."""
    path = Path(path)
    if not path.is_file():
        raise BadInput(f"no such file: {path}. Name the file with the weights.")
    if path.suffix.lower() == ".safetensors":
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            return load_file(path)
        except (SafetensorError, OSError) as error:
            raise BadInput(f"{path} is not a readable safetensors file: {error}. Save it again.") from error
    found = _load_pickle(path)
    if isinstance(found, dict):
        found = next((found[key] for key in NESTED if isinstance(found.get(key), dict)), found)
    if not isinstance(found, dict) or not found or not all(isinstance(v, Tensor) for v in found.values()):
        holds = f"the keys {', '.join(map(str, list(found)[:5]))}" if isinstance(found, dict) else f"a {type(found).__name__}"
        raise BadInput(f"{path} holds no state dict (names and tensors) but {holds}. Save model.state_dict() alone.")
    return found


def _load_pickle(path: Path) -> object:
    """What a torch file holds, if it is plain data. Pickle fails in many ways on a file that is none, so anything is caught."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about pickle protocols, of no use beside the error
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        if isinstance(error, pickle.UnpicklingError) and _is_pickle(path):
            raise BadInput(
                f"{path} holds more than weights and could run code when loaded; it is refused. "
                "Save model.state_dict() alone, or as safetensors, and give the architecture with --model."
            ) from error
        raise BadInput(f"{path} is not a readable torch file. Save model.state_dict() with torch.save, or as safetensors.") from error


def _is_pickle(path: Path) -> bool:
    """A zip archive, as torch writes it, or a pickle of protocol 2 or above, by the first bytes."""
    with path.open("rb") as file:
        start = file.read(2)
    return start == b"PK" or (start[:1] == b"\x80" and start[1:] in (b"\x02", b"\x03", b"\x04", b"\x05"))


def _fit(model: nn.Module, state: dict[str, Tensor], source: str) -> None:
    own = model.state_dict()
    if all(key.startswith("module.") for key in state) and not any(key.startswith("module.") for key in own):
        state = {key.removeprefix("module."): value for key, value in state.items()}  # saved from nn.DataParallel
    differing = {
        k: f"{k} {tuple(state[k].shape)}, not {tuple(own[k].shape)}" for k in own.keys() & state.keys() if own[k].shape != state[k].shape
    }
    problems = [
        f"{len(found)} {what}: {', '.join(found[:5])}{' ...' if len(found) > 5 else ''}. Name the network that they were saved from."
        for what, found in (
            ("weights of the network are not in the file", sorted(own.keys() - state.keys())),
            ("weights in the file fit nothing in the network", sorted(state.keys() - own.keys())),
            ("weights in the file have another shape than the network's", [differing[k] for k in sorted(differing)]),
        )
        if found
    ]
    raise_all(problems, source)
    model.load_state_dict(state)


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """Lets the user's code import what lies beside it, as it can when Python runs it."""
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        with suppress(ValueError):
            sys.path.remove(str(folder))


def _run_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise BadInput(f"no such file: {path}. Name the Python file with the factory, as file.py:factory.")
    spec = importlib.util.spec_from_file_location(f"equipoise_user_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise BadInput(f"{path} is not a Python file. Name a file that ends in .py.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # the user's code
        raise BadInput(f"{path} raised {type(error).__name__} when it was run: {error}. Mend it; Equipoise only ran it.") from error
    return module


def _import(place: str) -> ModuleType:
    try:
        return importlib.import_module(place)
    except Exception as error:  # the user's code
        raise BadInput(f"cannot import {place}: {type(error).__name__}: {error}. Install it, or name a file as file.py:factory.") from error
