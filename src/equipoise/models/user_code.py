"""The user's code that builds a network: found with its checksum, then run from the very bytes that were found.

`code_of` runs nothing. `factory_in` runs the code, which, with everything it imports, has all rights of the user.
"""

import importlib
import importlib.machinery
import importlib.util
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, redirect_stdout, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from equipoise.data import sha256
from equipoise.errors import BadInput, did_you_mean
from equipoise.models.exported import PROGRAM
from equipoise.models.hugging_face import is_folder
from equipoise.models.onnx_network import ONNX, onnx_file_and_output
from equipoise.models.predictors import pip_advice
from equipoise.models.vision import BACKBONES, prepare_torchvision
from equipoise.models.weights import file_content


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
        if self.named.endswith(PROGRAM):
            return f"the exported program {where}"
        name = self.named.rpartition(":")[2]
        return f"{name!r} in {where}" if self.in_file else f"{name!r} in the module {self.place}, {where}"

    @property
    def place(self) -> str:
        """The file or module, without the name of the factory."""
        return self.named.rpartition(":")[0]

    @property
    def in_file(self) -> bool:
        """Whether the place is a file, not a module."""
        return _is_file(self.place)


def _is_file(place: str) -> bool:
    return place.endswith(".py") or "/" in place


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
    elif _is_file(place):
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
def _search_path(folders: Sequence[str]) -> Iterator[None]:
    """Sets Python's search path during the block."""
    before = list(sys.path)
    sys.path[:] = folders
    try:
        yield
    finally:
        sys.path[:] = before


def _searching(here: bool) -> AbstractContextManager[None]:
    """Python's search path with the current folder in front, or without it."""
    current = str(Path.cwd())
    rest = [path for path in sys.path if path not in ("", ".") and str(Path(path).absolute()) != current]
    return _search_path([current, *rest] if here else rest)


def own_folder(code: Code) -> AbstractContextManager[None]:
    """Lets code import from its own folder, as when Python runs it; a module named on the command line, from the current folder."""
    if code.path is None or not code.in_file:
        return _searching(code.searched_here)
    return _search_path([str(code.path.parent), *sys.path])


def factory_in(code: Code) -> object:
    """The object that the code defines under the requested name. This runs the code."""
    name = code.named.rpartition(":")[2]
    prepare_torchvision()  # otherwise the user's own `import torchvision` may fail
    with running(code):
        module = _run_file(code) if code.in_file else _import_module(code)
        factory = getattr(module, name, None)  # a module may have its own __getattr__
    if factory is None:
        raise BadInput(f"{code.place} defines no {name!r}.{did_you_mean(name, vars(module))} Name a function or class in it.")
    return factory


class _ContentLoader(importlib.machinery.SourceFileLoader):
    """Compiles given bytes, so that the code that runs is the code whose checksum was taken, whatever the disk or a cache now holds."""

    def __init__(self, name: str, path: str, content: bytes) -> None:
        super().__init__(name, path)
        self.content = content

    def get_code(self, fullname: str) -> CodeType:  # noqa: ARG002 (the loader's signature)
        code: CodeType = self.source_to_code(self.content, self.path)
        return code


def _run_file(code: Code) -> ModuleType:
    assert code.path is not None  # it is a file
    name = f"equipoise_user_{code.path.stem}"
    spec = importlib.util.spec_from_file_location(name, code.path, loader=_ContentLoader(name, str(code.path), code.content))
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


def _import_module(code: Code) -> ModuleType:
    with _searching(code.searched_here):
        module = importlib.import_module(code.place)
    file = getattr(module, "__file__", None)
    if code.path is not None and (file is None or Path(file).absolute() != code.path or sha256(code.path.read_bytes()) != code.sha256):
        raise BadInput(
            f"the module {code.place} was imported from {file}, not from {code.path} as it was found. Name the file: "
            "--model file.py:factory"
        )
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
        raise _user_error(code, error) from error


def _user_error(code: Code, error: BaseException) -> BadInput:
    """The error of the user's code, with the last line in their file, or the last line of all."""
    file, line = _failing_line(code, error)
    description = kind = type(error).__name__
    with suppress(Exception):  # its own __str__ may fail
        description = f"{kind}: {error}" if str(error) else kind
    install = pip_advice(error) if isinstance(error, ModuleNotFoundError) else ""
    ended = " It ended the program; guard that with `if __name__ == '__main__':`." if isinstance(error, SystemExit) else ""
    again = f"python {code.path}" if code.in_file else f"python -c 'import {code.place}'"
    return BadInput(f"{code.named} raised {description} ({file}, line {line}).{install}{ended} The whole traceback: {again}")


def _failing_line(code: Code, error: BaseException) -> tuple[str, int]:
    if isinstance(error, SyntaxError) and error.filename:
        return error.filename, error.lineno or 0
    frames = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    in_user_file = [frame for frame in frames if frame[0] == str(code.path)]
    return (in_user_file or frames or [(str(code.path), 0)])[-1]
