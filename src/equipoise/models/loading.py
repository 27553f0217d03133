"""Networks by name: the architecture from a factory, a backbone or an exported program, the weights from a file that cannot run code.

`code_of` finds the code behind a name, with its checksum, and runs nothing; `load_model` and `build` run the very bytes that were found. A
network's code, and what it imports, runs with all rights of the user.
"""

import importlib
import importlib.machinery
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from equipoise.data import Transform, as_transform, sha256
from equipoise.errors import BadInput, did_you_mean, raise_all
from equipoise.models.exported import PROGRAM, exported_in
from equipoise.models.hugging_face import HuggingFaceNetwork, is_folder, load_hugging_face
from equipoise.models.onnx_network import ONNX, load_onnx, place_of
from equipoise.models.units import MASK, MASKED
from equipoise.models.vision import BACKBONES, backbone, declare_operators
from equipoise.models.weights import bare, load_weights, prefix_of

PACKAGES = {"sklearn": "scikit-learn", "PIL": "pillow", "cv2": "opencv-python", "skimage": "scikit-image", "yaml": "pyyaml"}


@dataclass(frozen=True)
class Code:
    """A file that is run to build a network, with its present content."""

    named: str  # as given to `load_model`
    path: Path | None  # absolute; None for a module that is part of Python itself
    sha256: str
    content: bytes = field(repr=False, default=b"")
    searched_here: bool = True  # whether a module may be in the current folder

    def __str__(self) -> str:
        where = "part of Python itself" if self.path is None else str(self.path)
        place, _, name = self.named.rpartition(":")
        if self.named.endswith(PROGRAM):
            return f"the exported program {where}"
        return f"{name!r} in {where}" if _is_file(place) else f"{name!r} in the module {place}, {where}"


def code_of(named: str, *, here: bool = True) -> Code | None:
    """The code that a model's name stands for, or None for a backbone, an ONNX file or a folder of transformers. Nothing is run.

    `here`: whether `package.module` is also searched for in the current folder, as for a name given on the command line.
    """
    place, _, name = named.rpartition(":")
    if (not place and named in BACKBONES) or place_of(named) is not None or is_folder(named):
        return None
    if not place and named.endswith(PROGRAM):
        path = Path(named)
    elif not place or not name:
        raise BadInput(
            f"a model is named as file.py:factory or package.module:factory, as an exported program (net{PROGRAM}), an ONNX file "
            f"(net{ONNX}), a folder of transformers, or as a backbone ({', '.join(BACKBONES)}); got {named!r}. Add the missing part."
        )
    elif _is_file(place):
        path = Path(place)
    else:
        found = _located(place, here)
        content = b"" if found is None else _content(found, "Install the module again.")
        return Code(named, found, sha256(content) if found else "", content, here)
    what = f"Name the exported program, a {PROGRAM} file." if not place else "Name the Python file with the factory, as file.py:factory."
    content = _content(path, what)
    if place and path.suffix != ".py":
        raise BadInput(f"{path} is not a Python file. Name a file that ends in .py.")
    return Code(named, path.absolute(), sha256(content), content, here)


def _is_file(place: str) -> bool:
    return place.endswith(".py") or "/" in place


def _content(path: Path, todo: str) -> bytes:
    if not path.is_file():
        raise BadInput(f"no such file: {path}. {todo}")
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror or error}. {todo}") from error


def _located(module: str, here: bool) -> Path | None:
    """The file of a module, without importing it or the packages that it is in."""
    search: Any = None
    spec: importlib.machinery.ModuleSpec | None = None
    parts = module.split(".")
    importlib.invalidate_caches()
    with _searching(here):
        for end in range(1, len(parts) + 1):
            name = ".".join(parts[:end])
            finders = [finder for finder in sys.meta_path if hasattr(finder, "find_spec")]
            spec = next((found for finder in finders if (found := finder.find_spec(name, search)) is not None), None)
            if spec is None or (end < len(parts) and spec.submodule_search_locations is None):
                where = "" if here else " The current folder is not searched for a module that a folder names."
                raise BadInput(
                    f"cannot import {module}: there is no module {name!r}.{where} Install it, or name a file as file.py:factory."
                )
            search = spec.submodule_search_locations
    if spec is None or spec.origin is None or not spec.has_location:
        return None
    return Path(spec.origin).absolute()


@contextmanager
def _searching(here: bool) -> Iterator[None]:
    """Python's search path with the current folder in front, or without it."""
    before, folder = list(sys.path), str(Path.cwd())
    rest = [path for path in before if path not in ("", ".") and str(Path(path).absolute()) != folder]
    sys.path[:] = [folder, *rest] if here else rest
    try:
        yield
    finally:
        sys.path[:] = before


def factory_in(code: Code) -> object:
    """What the code defines under the requested name. This runs the code."""
    place, _, name = code.named.rpartition(":")
    declare_operators()  # otherwise the user's own `import torchvision` may fail
    with running(code):
        module = _run_file(code) if _is_file(place) else _import(code, place)
        found = getattr(module, name, None)  # a module may have its own __getattr__
    if found is None:
        raise BadInput(f"{place} defines no {name!r}.{did_you_mean(name, vars(module))} Name a function or class in it.")
    return found


class _Found(importlib.machinery.SourceFileLoader):
    """Compiles the bytes whose checksum is known, not the present content of the disk or of a cache of compiled files."""

    def __init__(self, name: str, path: str, content: bytes) -> None:
        super().__init__(name, path)
        self.content = content

    def get_code(self, fullname: str) -> CodeType:  # noqa: ARG002 (the loader's signature)
        found: CodeType = self.source_to_code(self.content, self.path)
        return found


def _run_file(code: Code) -> ModuleType:
    assert code.path is not None  # it is a file
    name = f"equipoise_user_{code.path.stem}"
    spec = importlib.util.spec_from_file_location(name, code.path, loader=_Found(name, str(code.path), code.content))
    assert spec is not None  # there is a loader
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        with own_folder(code):
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _import(code: Code, place: str) -> ModuleType:
    with _searching(code.searched_here):
        module = importlib.import_module(place)
    found = getattr(module, "__file__", None)
    if code.path is not None and (found is None or Path(found).absolute() != code.path or sha256(code.path.read_bytes()) != code.sha256):
        raise BadInput(
            f"the module {place} was imported from {found}, not from {code.path} as it was found. Name the file: --model file.py:factory"
        )
    return module


@contextmanager
def own_folder(code: Code) -> Iterator[None]:
    """Lets code import from its own folder, as when Python runs it; a module named on the command line, from the current folder."""
    if code.path is None or not _is_file(code.named.rpartition(":")[0]):
        with _searching(code.searched_here):
            yield
        return
    before = list(sys.path)
    sys.path.insert(0, str(code.path.parent))
    try:
        yield
    finally:
        sys.path[:] = before


@contextmanager
def running(code: Code) -> Iterator[None]:
    """Replaces whatever the user's code raises, except Ctrl-C, by one error, and sends what it prints to standard error."""
    try:
        with redirect_stdout(sys.stderr):
            yield
    except (BadInput, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise _raised(code, error) from error


def _raised(code: Code, error: BaseException) -> BadInput:
    """The error of the user's code, with the last line in their file, or the last line of all."""
    place, line = _place_of(code, error)
    said = kind = type(error).__name__
    with suppress(Exception):  # its own __str__ may fail
        said = f"{kind}: {error}" if str(error) else kind
    lacking = pip_advice(error) if isinstance(error, ModuleNotFoundError) else ""
    ended = " It ended the program; guard that with `if __name__ == '__main__':`." if isinstance(error, SystemExit) else ""
    again = f"python {code.path}" if _is_file(code.named.rpartition(":")[0]) else f"python -c 'import {code.named.rpartition(':')[0]}'"
    return BadInput(f"{code.named} raised {said} ({place}, line {line}).{lacking}{ended} The whole traceback: {again}")


def pip_advice(error: ModuleNotFoundError) -> str:
    """The pip command for a library that is not installed, to be added to a message; empty where the name is not that of a library.

    >>> pip_advice(ModuleNotFoundError(name="nowhere_to_be_found.layers"))
    ' It needs the library nowhere_to_be_found, which is not installed: pip install nowhere_to_be_found'
    """
    module = (error.name or "").partition(".")[0]
    if not module or importlib.util.find_spec(module) is not None:
        return ""
    package = PACKAGES.get(module, module)
    return f" It needs the library {package}, which is not installed: pip install {package}"


def _place_of(code: Code, error: BaseException) -> tuple[str, int]:
    if isinstance(error, SyntaxError) and error.filename:
        return error.filename, error.lineno or 0
    frames, trace = [], error.__traceback__
    while trace is not None:
        frames.append((trace.tb_frame.f_code.co_filename, trace.tb_lineno))
        trace = trace.tb_next
    theirs = [frame for frame in frames if frame[0] == str(code.path)]
    return (theirs or frames or [(str(code.path), 0)])[-1]


def load_model(factory: str, weights: str | Path | None = None) -> nn.Module:
    """The network that `file.py:factory` or `package.module:factory` builds, with these weights, in eval mode.

    Also the name of a backbone (`resnet-18`), an exported program (`net.pt2`) or an ONNX file (`net.onnx`), which include their weights, or
    a folder with an image classifier of transformers. Masks that pruning added to the weights of convolutions are applied.
    """
    if weights is not None and includes_weights(factory):
        raise BadInput(f"{factory} includes its weights. Leave out {weights}.")
    state = None if weights is None else load_weights(weights)
    return network_with(factory, code_of(factory), state, str(weights))


def includes_weights(factory: str) -> bool:
    """Whether a name is that of a file with the network and its weights: an exported program or an ONNX file."""
    return factory.endswith(PROGRAM) or place_of(factory) is not None


def network_with(factory: str, code: Code | None, state: Mapping[str, Tensor] | None, source: str) -> nn.Module:
    """The network that this code builds, with these weights, in eval mode; without code, the backbone of that name."""
    model = build(factory, state, code)
    if state is not None:  # that of a network of transformers has its own names, not those of the module around it
        fit_weights(model.inner if isinstance(model, HuggingFaceNetwork) else model, state, source)
    return model.eval()


def build(factory: str, state: Mapping[str, Tensor] | None = None, code: Code | None = None) -> nn.Module:
    """The module that a factory without arguments returns. The factory is the user's own code and is run.

    A backbone gets as many channels as the weights in `state` have, or one.
    """
    code = code or code_of(factory)
    if (graph := place_of(factory)) is not None:
        return load_onnx(*graph)
    if code is None and is_folder(factory):
        return load_hugging_face(factory, weights=state is None)
    if code is None:
        return _backbone(factory, state)
    if factory.endswith(PROGRAM):
        return exported_in(code.content, str(code.path))
    with own_folder(code):
        return _called(factory_in(code), factory, code)


def _backbone(name: str, state: Mapping[str, Tensor] | None) -> nn.Module:
    first = next((value for key, value in (state or {}).items() if bare(key) == f"{BACKBONES[name][1]}.weight"), None)
    return backbone(name, channels=1 if first is None or first.ndim < 2 else first.shape[1])


def _called(function: object, factory: str, code: Code) -> nn.Module:
    if isinstance(function, nn.Module):
        return function
    if not callable(function):
        raise BadInput(f"{factory} is of type {type(function).__name__}. Name a function or class that returns a torch.nn.Module.")
    if needed := _required(function):
        raise BadInput(f"{factory} needs the arguments {', '.join(needed)}. Name a function without arguments that calls it.")
    with running(code):
        model = function()
    if not isinstance(model, nn.Module):
        raise BadInput(f"{factory} returned an object of type {type(model).__name__}. Return a torch.nn.Module.")
    return model


def load_transform(named: str, code: Code | None = None) -> Transform:
    """The transform that `file.py:name` names, with the checksum of its file: a callable, or what a function without arguments returns.

    It is the user's own code and is run.
    """
    if not named.rpartition(":")[0]:
        raise BadInput(f"a transform is named as file.py:transform or package.module:transform; got {named!r}. Add the missing part.")
    code = code or code_of(named)
    assert code is not None  # a name with a colon is no backbone
    with own_folder(code):
        found = factory_in(code)
        makes = inspect.isclass(found) or (inspect.isfunction(found) and not inspect.signature(found).parameters)
        if makes and callable(found) and not _required(found):
            with running(code):
                found = found()
    return as_transform(found, named, code.path, code.sha256)


def _required(function: Callable[..., object]) -> list[str]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # some classes written in C have no signature
        return []
    return [p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]


def fit_weights(model: nn.Module, weights: Mapping[str, Tensor], source: str) -> nn.Module:
    """The network with these weights and the masks among them; raises one error if they do not fit."""
    state = dict(weights)
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
    casts = [key for key in own.keys() & state.keys() if state[key].is_complex() and not own[key].is_complex()]
    if casts:
        problems.append(f"{len(casts)} weights in the file are complex and the network's are real: {', '.join(sorted(casts)[:5])}.")
    raise_all(problems, source)
    model.load_state_dict(state)
    return model


def _put_masks(model: nn.Module, state: dict[str, Tensor]) -> None:
    """Turns every convolution that has a mask among these weights into a masked one. Other masks are left for the error about misfits."""
    convolutions = {name: module for name, module in model.named_modules() if type(module) in MASKED}
    for key, mask in state.items():
        module = convolutions.get(key.removesuffix(MASK)) if key.endswith(MASK) else None
        if module is not None:
            module.__class__ = MASKED[type(module)]
            module.register_buffer("unit_mask", torch.ones_like(mask))
