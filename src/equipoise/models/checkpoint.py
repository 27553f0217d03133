"""Networks from outside: the architecture from a factory that the user names, the weights from a file that cannot run code.

The architecture is code and is run: a factory, a backbone's name, or an exported program (see `exported`).
"""

import importlib
import importlib.util
import inspect
import pickle
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor, nn

from equipoise.errors import BadInput, did_you_mean, raise_all
from equipoise.models.exported import SUFFIX, load_exported
from equipoise.models.units import MASKED

NESTED = ("state_dict", "model_state_dict", "model")  # where training scripts put the weights inside a checkpoint
PREFIX = "module."  # of every key, where the weights were saved from nn.DataParallel
MASK = ".unit_mask"  # how the key of a convolution's mask ends


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """The weights in a file, and how they lay in it, so that others can be written in their place."""

    state: dict[str, Tensor]  # keys as in the file
    whole: object = None  # all that a torch file holds; None for safetensors
    under: str | None = None  # the key in `whole` that the weights lie under


def load_model(factory: str, weights: str | Path | None = None) -> nn.Module:
    """The network that `file.py:factory` or `package.module:factory` builds, with these weights, in eval mode.

    The name of a backbone (`resnet-18`) and an exported program (`net.pt2`, which has its weights with it) will do as well. Masks that
    pruning left beside the weights of convolutions are put in place.
    """
    if weights is not None and factory.endswith(SUFFIX):
        raise BadInput(f"the exported program {factory} has its weights with it. Leave out {weights}.")
    state = None if weights is None else load_weights(weights)
    model = build(factory, state)
    if state is not None:
        _fit(model, state, str(weights))
    return model.eval()


def build(factory: str, state: dict[str, Tensor] | None = None) -> nn.Module:
    """The module that a factory without arguments returns. The factory is the user's own code and is run.

    A backbone gets as many channels as the weights in `state` have, or one.
    """
    place, _, name = factory.rpartition(":")
    if not place and factory.endswith(SUFFIX):
        return load_exported(factory)
    if not place and (network := _backbone(factory, state)) is not None:
        return network
    if not place or not name:
        from equipoise.models.vision import BACKBONES

        raise BadInput(
            f"a model is named as file.py:factory or package.module:factory, as an exported program (net{SUFFIX}), or as a backbone "
            f"({', '.join(BACKBONES)}); got {factory!r}. Add what is missing."
        )
    is_file = place.endswith(".py") or "/" in place
    with _importable(Path(place).absolute().parent if is_file else Path.cwd()):
        module = _run_file(Path(place)) if is_file else _import(place)
        function = getattr(module, name, None)
        if function is None:
            raise BadInput(f"{place} defines no {name!r}.{did_you_mean(name, vars(module))} Name a function or class in it.")
        return _called(function, factory)


def _backbone(name: str, state: dict[str, Tensor] | None) -> nn.Module | None:
    from equipoise.models.vision import BACKBONES, backbone  # it reads weights from here

    if name not in BACKBONES:
        return None
    first = (state or {}).get(f"{BACKBONES[name][1]}.weight")
    if first is None:
        first = (state or {}).get(f"{PREFIX}{BACKBONES[name][1]}.weight")
    return backbone(name, channels=1 if first is None or first.ndim < 2 else first.shape[1])


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
    return read_checkpoint(path).state


def read_checkpoint(path: str | Path) -> Checkpoint:
    """The weights in a safetensors file or a torch file, and where in it they lay. A pickle that wants to run code is refused."""
    path = Path(path)
    if not path.is_file():
        raise BadInput(f"no such file: {path}. Name the file with the weights.")
    if path.suffix.lower() == ".safetensors":
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            return Checkpoint(load_file(path))
        except (SafetensorError, OSError) as error:
            raise BadInput(f"{path} is not a readable safetensors file: {error}. Save it again.") from error
    whole = found = _load_pickle(path)
    under = None
    if isinstance(whole, dict):
        under = next((key for key in NESTED if isinstance(whole.get(key), dict)), None)
        found = whole if under is None else whole[under]
    if not isinstance(found, dict) or not found or not all(isinstance(v, Tensor) for v in found.values()):
        holds = f"the keys {', '.join(map(str, list(found)[:5]))}" if isinstance(found, dict) else f"a {type(found).__name__}"
        raise BadInput(f"{path} holds no state dict (names and tensors) but {holds}. Save model.state_dict() alone.")
    return Checkpoint(found, whole, under)


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
    if prefix := prefix_of(state, model.state_dict()):
        state = {key.removeprefix(prefix): value for key, value in state.items()}
    _put_masks(model, state)
    own = model.state_dict()
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


def prefix_of(keys: Iterable[str], own: Iterable[str]) -> str:
    """What stands before every key of weights that were saved from nn.DataParallel, and not before the network's own.

    >>> prefix_of(["module.weight", "module.bias"], ["weight", "bias"])
    'module.'
    """
    wrapped = all(key.startswith(PREFIX) for key in keys) and not any(key.startswith(PREFIX) for key in own)
    return PREFIX if wrapped else ""


def _put_masks(model: nn.Module, state: dict[str, Tensor]) -> None:
    """Makes a convolution that has a mask among these weights a masked one. What fits no convolution stays, to be complained about."""
    convolutions = {name: module for name, module in model.named_modules() if type(module) in MASKED}
    for key, mask in state.items():
        module = convolutions.get(key.removesuffix(MASK)) if key.endswith(MASK) else None
        if module is not None:
            module.__class__ = MASKED[type(module)]
            module.register_buffer("unit_mask", torch.ones_like(mask))


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
