"""Networks by name: the architecture from a factory, a backbone or an exported program, the weights from a file that cannot run code.

A factory is the user's code, which has all rights of the user: `code_of` finds it with its checksum and runs nothing; `factory_in` runs the
very bytes that were found.
"""

import importlib
import importlib.machinery
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from equipoise.data import ImageFolder, Transform
from equipoise.disk import sha256
from equipoise.errors import BadInput, did_you_mean, pip_advice, raise_all
from equipoise.models.programs import ONNX, PROGRAM, exported_in, load_onnx, onnx_file_and_output
from equipoise.models.score import OneOutput, output_named
from equipoise.models.units import MASK_SUFFIX, MASKED_KINDS
from equipoise.models.vision import BACKBONES, HuggingFaceNetwork, backbone, is_folder, load_hugging_face, prepare_torchvision
from equipoise.models.weights import bare, file_content, load_weights, misfits, prefix_of


@dataclass(frozen=True)
class Code:
    """A file that is run to build a network, with its content."""

    named: str  # as given to `load_model`
    path: Path | None  # absolute; None for a module that is part of Python itself
    sha256: str
    content: bytes = field(repr=False, default=b"")
    searched_here: bool = True  # whether a module may be in the current folder

    def __str__(self) -> str:
        where = "part of Python itself" if self.path is None else str(self.path)
        if self.is_program:
            return f"the exported program {where}"
        name = self.named.rpartition(":")[2]
        return f"{name!r} in {where}" if self.in_file else f"{name!r} in the module {self.place}, {where}"

    @property
    def place(self) -> str:
        """The file or module, without the name of the factory."""
        return self.named.rpartition(":")[0]

    @property
    def is_program(self) -> bool:
        """Whether it is an exported program, not Python code."""
        return self.named.endswith(PROGRAM)

    @property
    def in_file(self) -> bool:
        """Whether the place is a file, not a module."""
        return self.place.endswith(".py") or "/" in self.place


def code_of(named: str, *, here: bool = True) -> Code | None:
    """The code behind a model's name, or None for a backbone, an ONNX file or a folder of transformers. Nothing is run.

    `here`: whether `package.module` is also searched for in the current folder, as for a name given on the command line.
    """
    place, _, name = named.rpartition(":")
    if (not place and named in BACKBONES) or onnx_file_and_output(named) is not None or is_folder(named):
        return None
    path: Path | None
    if not place and named.endswith(PROGRAM):
        path = Path(named)
        content = file_content(path, f"Name the exported program, a {PROGRAM} file.")
    elif not place or not name:
        raise BadInput(
            f"a model is named as file.py:factory or package.module:factory, as an exported program (net{PROGRAM}), an ONNX file "
            f"(net{ONNX}), a folder of transformers, or as a backbone ({', '.join(BACKBONES)}); got {named!r}. Add the missing part."
        )
    elif place.endswith(".py") or "/" in place:
        path = Path(place)
        content = file_content(path, "Name the Python file with the factory, as file.py:factory.")
        if path.suffix != ".py":
            raise BadInput(f"{path} is not a Python file. Name a file that ends in .py.")
    else:
        path = _find_module(place, here)
        if path is None:
            return Code(named, None, "", b"", here)
        content = file_content(path, "Install the module again.")
    return Code(named, path.absolute(), sha256(content), content, here)


def _find_module(module: str, here: bool) -> Path | None:
    """The file of a module, without importing it or its parent packages; None for a module without a file."""
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
    return Path(spec.origin)


@contextmanager
def _searching(here: bool, own: Path | None = None) -> Iterator[None]:
    """Python's search path during the block: with a folder in front or, without one, with the current folder in front or without it."""
    before, current = list(sys.path), str(Path.cwd())
    rest = [path for path in before if path not in ("", ".") and str(Path(path).absolute()) != current]
    sys.path[:] = [str(own), *before] if own is not None else [current, *rest] if here else rest
    try:
        yield
    finally:
        sys.path[:] = before


@contextmanager
def factory_in(code: Code) -> Iterator[object]:
    """The object that the code defines under the requested name. This runs the code.

    During the block, code can import from its own folder, as when Python runs it; a module named on the command line, from the current one.
    """
    name = code.named.rpartition(":")[2]
    prepare_torchvision()  # otherwise the user's own `import torchvision` may fail
    with _searching(code.searched_here, code.path.parent if code.path is not None and code.in_file else None):
        with running(code):
            module = _module_of(code)
            factory = getattr(module, name, None)  # a module may have its own __getattr__
        if factory is None:
            raise BadInput(f"{code.place} defines no {name!r}.{did_you_mean(name, vars(module))} Name a function or class in it.")
        yield factory


class _ContentLoader(importlib.machinery.SourceFileLoader):
    """Compiles given bytes, so that the code that runs is the code whose checksum was taken, whatever the disk or a cache now holds."""

    def __init__(self, name: str, path: str, content: bytes) -> None:
        super().__init__(name, path)
        self.content = content

    def get_code(self, fullname: str) -> CodeType:  # noqa: ARG002 (the loader's signature)
        code: CodeType = self.source_to_code(self.content, self.path)
        return code


def _module_of(code: Code) -> ModuleType:
    """The module that the code is, run from the very bytes that were found."""
    if not code.in_file:
        module = importlib.import_module(code.place)
        file = getattr(module, "__file__", None)
        if code.path is not None and (file is None or Path(file).absolute() != code.path or sha256(code.path.read_bytes()) != code.sha256):
            raise BadInput(
                f"the module {code.place} was imported from {file}, not from {code.path} as it was found. Name the file: "
                "--model file.py:factory"
            )
        return module
    assert code.path is not None  # it is a file
    name = f"equipoise_user_{code.path.stem}"
    loader = _ContentLoader(name, str(code.path), code.content)
    spec = importlib.util.spec_from_file_location(name, code.path, loader=loader)
    assert spec is not None  # there is a loader
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


@contextmanager
def running(code: Code) -> Iterator[None]:
    """Replaces whatever the user's code raises, except Ctrl-C, by one error, and sends what it prints to standard error."""
    try:
        with redirect_stdout(sys.stderr):
            yield
    except (BadInput, KeyboardInterrupt):
        raise
    except BaseException as error:
        frames = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
        in_user_file = [frame for frame in frames if frame[0] == str(code.path)]
        file, line = (in_user_file or frames or [(str(code.path), 0)])[-1]
        if isinstance(error, SyntaxError) and error.filename:
            file, line = error.filename, error.lineno or 0
        description = kind = type(error).__name__
        with suppress(Exception):  # its own __str__ may fail
            description = f"{kind}: {error}" if str(error) else kind
        advice = pip_advice(error) if isinstance(error, ModuleNotFoundError) else ""
        if isinstance(error, SystemExit):
            advice = " It ended the program; guard that with `if __name__ == '__main__':`."
        again = f"python {code.path}" if code.in_file else f"python -c 'import {code.place}'"
        raise BadInput(f"{code.named} raised {description} ({file}, line {line}).{advice} The whole traceback: {again}") from error


def load_model(
    factory: str,
    weights: str | Path | None = None,
    *,
    images: ImageFolder | None = None,
    output_name: int | str | None = None,
    code: Code | None = None,
    running: Callable[[Code | None], None] | None = None,
) -> nn.Module:
    """The network that `file.py:factory` or `package.module:factory` builds, with these weights, in eval mode.

    Also loads a backbone by name (`resnet-18`), an exported program (`net.pt2`) or an ONNX file (`net.onnx`), which include their weights,
    or a folder with an image classifier of transformers. Masks that pruning added to the weights of convolutions are applied.

    With `images`, raises an error if these are not the inputs that it was trained on: for a backbone without weights or images, and for
    torchxrayvision's networks if the pixels are not in their range. With `output_name`, the network has only that output. `code` is the
    factory's code, if it was read before. An exported program is a data file that contains code, so `running` is called with it before.
    """
    if images is not None and factory in BACKBONES and (weights is None or images.folder is None):
        lacking = [name for name, value in (("--weights (weights=)", weights), ("--images (images=)", images.folder)) if value is None]
        raise BadInput(f"the model {factory} is an untrained backbone for images; add {' and '.join(lacking)}")
    code = code or code_of(factory)
    if weights is not None and includes_weights(factory):
        raise BadInput(f"{factory} includes its weights. Omit {weights}.")
    state = None if weights is None else load_weights(weights)
    if running is not None and factory.endswith(PROGRAM):
        running(code)
    network = network_with(factory, code, state, str(weights))
    unscaled = images is not None and images.folder is not None and not (images.normalise or images.preset or images.transform)
    if unscaled and any(type(module).__module__.partition(".")[0] == "torchxrayvision" for module in network.modules()):
        raise BadInput(
            "the network is one of torchxrayvision, which are trained on pixels from -1024 to 1024: add images.preset = "
            "torchxrayvision (--set images.preset=torchxrayvision) or images.normalise = xray; or unit if yours scales them itself"
        )
    return network if output_name is None else OneOutput(network, output_named(str(output_name))).eval()


def includes_weights(factory: str) -> bool:
    """Whether a name is that of a file that contains the weights too: an exported program or an ONNX file."""
    return factory.endswith(PROGRAM) or onnx_file_and_output(factory) is not None


def network_with(factory: str, code: Code | None, state: Mapping[str, Tensor] | None, source: str) -> nn.Module:
    """The network that this code builds, with these weights, in eval mode; without code, the backbone of that name."""
    model = network_from(factory, state, code)
    if state is not None:  # weights of a network of transformers have the names of the inner module
        fit_weights(model.inner if isinstance(model, HuggingFaceNetwork) else model, state, source)
    return model.eval()


def network_from(factory: str, state: Mapping[str, Tensor] | None = None, code: Code | None = None) -> nn.Module:
    """The module that a factory without arguments returns. The factory is the user's own code and is run.

    A backbone gets as many channels as the weights in `state` have, or one.
    """
    code = code or code_of(factory)
    if (graph := onnx_file_and_output(factory)) is not None:
        return load_onnx(*graph)
    if code is None and is_folder(factory):
        return load_hugging_face(factory, weights=state is None)
    if code is None:
        kernels = next((value for key, value in (state or {}).items() if bare(key) == f"{BACKBONES[factory].first}.weight"), None)
        return backbone(factory, channels=1 if kernels is None or kernels.ndim < 2 else kernels.shape[1])
    if factory.endswith(PROGRAM):
        return exported_in(code.content, str(code.path))
    with factory_in(code) as function:
        if isinstance(function, nn.Module):
            return function
        if not callable(function):
            raise BadInput(f"{factory} is of type {type(function).__name__}. Name a function or class that returns a torch.nn.Module.")
        if arguments := _required_arguments(function):
            raise BadInput(f"{factory} needs the arguments {', '.join(arguments)}. Name a function without arguments that calls it.")
        with running(code):
            model = function()
        if not isinstance(model, nn.Module):
            raise BadInput(f"{factory} returned an object of type {type(model).__name__}. Return a torch.nn.Module.")
        return model


def load_transform(named: str, code: Code | None = None) -> Transform:
    """The transform that `file.py:name` names, with the checksum of its file: a callable, or the result of a function without arguments.

    This runs the user's code.
    """
    if not named.rpartition(":")[0]:
        raise BadInput(f"a transform is named as file.py:transform or package.module:transform; got {named!r}. Add the missing part.")
    code = code or code_of(named)
    assert code is not None  # a name with a colon is no backbone
    with factory_in(code) as transform:
        is_factory = inspect.isclass(transform) or (inspect.isfunction(transform) and not inspect.signature(transform).parameters)
        if is_factory and callable(transform) and not _required_arguments(transform):
            with running(code):
                transform = transform()
    return Transform.of(transform, named, code.path, code.sha256)


def _required_arguments(function: Callable[..., object]) -> list[str]:
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
    convolutions = {f"{name}{MASK_SUFFIX}": module for name, module in model.named_modules() if type(module) in MASKED_KINDS}
    for key in state.keys() & convolutions.keys():  # other masks are among the problems below
        convolutions[key].__class__ = MASKED_KINDS[type(convolutions[key])]
        convolutions[key].register_buffer("unit_mask", torch.ones_like(state[key]))
    expected = model.state_dict()
    problems = misfits(expected, state)
    complex_keys = [key for key in sorted(expected.keys() & state.keys()) if state[key].is_complex() and not expected[key].is_complex()]
    if complex_keys:
        problems.append(f"{len(complex_keys)} weights in the file are complex and the network's are real: {', '.join(complex_keys[:5])}.")
    raise_all(problems, source)
    model.load_state_dict(state)
    return model
