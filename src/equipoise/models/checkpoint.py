"""Networks from outside: the architecture from a factory that the user names, the weights from a file that cannot run code."""

import importlib
import importlib.util
import inspect
import pickle
import sys
from pathlib import Path

import torch
from torch import Tensor, nn

from equipoise.errors import BadInput


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
        raise BadInput(f"a model is named as file.py:factory or package.module:factory; got {factory!r}")
    function = getattr(_module(place), name, None)
    if function is None:
        raise BadInput(f"{place} defines no {name!r}")
    if isinstance(function, nn.Module):
        return function
    if not callable(function):
        raise BadInput(f"{factory} is a {type(function).__name__}; a function or class that returns a torch.nn.Module is needed")
    needed = [
        p.name
        for p in inspect.signature(function).parameters.values()
        if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    ]
    if needed:
        raise BadInput(f"{factory} needs the arguments {', '.join(needed)}; name a function without arguments that calls it")
    try:
        model = function()
    except Exception as error:  # the user's code may raise anything; the message must say that it was theirs
        raise BadInput(f"{factory} raised {type(error).__name__}: {error}") from error
    if not isinstance(model, nn.Module):
        raise BadInput(f"{factory} returned a {type(model).__name__}; a torch.nn.Module is needed")
    return model


def load_weights(path: str | Path) -> dict[str, Tensor]:
    """The state dict in a safetensors file or a torch file. A pickle that wants to run code is refused."""
    path = Path(path)
    if not path.is_file():
        raise BadInput(f"no such file: {path}")
    if path.suffix == ".safetensors":
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            return load_file(path)
        except (SafetensorError, OSError) as error:
            raise BadInput(f"{path} is not a readable safetensors file: {error}") from error
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise BadInput(
            f"{path} holds more than weights and could run code when loaded; it is refused. "
            "Save model.state_dict() alone, or as safetensors, and give the architecture with --model"
        ) from error
    except (RuntimeError, EOFError, OSError, ValueError, KeyError) as error:
        raise BadInput(
            f"{path} is not a readable torch file: {str(error).splitlines()[0] if str(error) else type(error).__name__}"
        ) from error
    if isinstance(found, dict) and isinstance(found.get("state_dict"), dict):
        found = found["state_dict"]
    if not isinstance(found, dict) or not found or not all(isinstance(v, Tensor) for v in found.values()):
        raise BadInput(f"{path} holds no state dict (a mapping of names to tensors)")
    return found


def _fit(model: nn.Module, state: dict[str, Tensor], source: str) -> None:
    own = model.state_dict()
    missing, unexpected = sorted(own.keys() - state.keys()), sorted(state.keys() - own.keys())
    shapes = sorted(k for k in own.keys() & state.keys() if own[k].shape != state[k].shape)
    problems = [
        f"{len(keys)} {what}: {', '.join(keys[:5])}{' ...' if len(keys) > 5 else ''}"
        for what, keys in (("weights of the network are missing", missing), ("weights fit nothing in the network", unexpected))
        if keys
    ]
    problems += [f"{k} has shape {tuple(state[k].shape)}, the network's is {tuple(own[k].shape)}" for k in shapes[:5]]
    if problems:
        raise BadInput(*problems, source=source)
    model.load_state_dict(state)


def _module(place: str) -> object:
    if place.endswith(".py") or "/" in place:
        path = Path(place)
        if not path.is_file():
            raise BadInput(f"no such file: {path}")
        spec = importlib.util.spec_from_file_location(f"equipoise_user_{path.stem}", path)
        if spec is None or spec.loader is None:
            raise BadInput(f"{path} is not a Python file")
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        try:
            spec.loader.exec_module(module)
        except Exception as error:  # the user's code
            raise BadInput(f"{path} raised {type(error).__name__} when it was run: {error}") from error
        return module
    try:
        return importlib.import_module(place)
    except ImportError as error:
        raise BadInput(f"cannot import {place}: {error}") from error
