"""The code behind a network's name: which file or module it is, with its checksum, and how it is run.

`code_of` finds it and runs nothing; `factory_in` runs the very bytes that were found. A network's code runs with all rights of whoever
called Equipoise, and so does what it imports.
"""

import importlib
import importlib.machinery
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from equipoise.data import sha256
from equipoise.errors import BadInput, did_you_mean
from equipoise.models.torchvision_import import declare_operators

PROGRAM = ".pt2"  # how the name of an exported program ends


@dataclass(frozen=True)
class Code:
    """A file that is run to build a network, as it is now."""

    named: str  # as `load_model` takes it
    path: Path | None  # absolute; None for a module that is part of Python itself
    sha256: str
    content: bytes = field(repr=False, default=b"")
    searched_here: bool = True  # whether a module may lie in the current folder

    def __str__(self) -> str:
        where = "part of Python itself" if self.path is None else str(self.path)
        place, _, name = self.named.rpartition(":")
        if self.named.endswith(PROGRAM):
            return f"the exported program {where}"
        return f"{name!r} in {where}" if _is_file(place) else f"{name!r} in the module {place}, {where}"


def code_of(named: str, *, here: bool = True) -> Code | None:
    """The code that a model's name stands for, or None for a backbone, which is code of Equipoise. Nothing is run.

    `here` says whether `package.module` is looked for in the current folder as well, as fits a name that someone has just typed.
    """
    from equipoise.models.vision import BACKBONES  # it reads weights from `checkpoint`, which imports this

    place, _, name = named.rpartition(":")
    if not place and named in BACKBONES:
        return None
    if not place and named.endswith(PROGRAM):
        path = Path(named)
    elif not place or not name:
        raise BadInput(
            f"a model is named as file.py:factory or package.module:factory, as an exported program (net{PROGRAM}), or as a backbone "
            f"({', '.join(BACKBONES)}); got {named!r}. Add what is missing."
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
    """What the code defines under the name that was asked for. This runs the code."""
    place, _, name = code.named.rpartition(":")
    declare_operators()  # or the user's own `import torchvision` fails where ours does not
    with running(code):
        module = _run_file(code) if _is_file(place) else _import(code, place)
        found = getattr(module, name, None)  # which a module may find in its own way
    if found is None:
        raise BadInput(f"{place} defines no {name!r}.{did_you_mean(name, vars(module))} Name a function or class in it.")
    return found


class _Found(importlib.machinery.SourceFileLoader):
    """Compiles the bytes whose checksum is known, not what the disk or a cache of compiled files holds by now."""

    def __init__(self, name: str, path: str, content: bytes) -> None:
        super().__init__(name, path)
        self.content = content

    def get_code(self, fullname: str) -> CodeType:  # noqa: ARG002 (as the loader's is called)
        found: CodeType = self.source_to_code(self.content, self.path)
        return found


def _run_file(code: Code) -> ModuleType:
    assert code.path is not None  # a file has one
    name = f"equipoise_user_{code.path.stem}"
    spec = importlib.util.spec_from_file_location(name, code.path, loader=_Found(name, str(code.path), code.content))
    assert spec is not None  # with a loader there is one
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        with beside(code):
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
def beside(code: Code) -> Iterator[None]:
    """Lets code in a file import what lies beside it, as it can when Python runs it; a typed module, what lies in the current folder."""
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
    """Turns whatever the user's code raises but Ctrl-C into one error, and puts what it prints on standard error, next to no result."""
    try:
        with redirect_stdout(sys.stderr):
            yield
    except (BadInput, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise _raised(code, error) from error


def _raised(code: Code, error: BaseException) -> BadInput:
    """What the user's code raised, with the line: the last one in their file, or the last of all."""
    place, line = _place_of(code, error)
    said = kind = type(error).__name__
    with suppress(Exception):  # it may not even be able to say what it is
        said = f"{kind}: {error}" if str(error) else kind
    ended = " It ended the program; guard that with `if __name__ == '__main__':`." if isinstance(error, SystemExit) else ""
    again = f"python {code.path}" if _is_file(code.named.rpartition(":")[0]) else f"python -c 'import {code.named.rpartition(':')[0]}'"
    return BadInput(f"{code.named} raised {said} ({place}, line {line}).{ended} The whole traceback: {again}")


def _place_of(code: Code, error: BaseException) -> tuple[str, int]:
    if isinstance(error, SyntaxError) and error.filename:
        return error.filename, error.lineno or 0
    frames, trace = [], error.__traceback__
    while trace is not None:
        frames.append((trace.tb_frame.f_code.co_filename, trace.tb_lineno))
        trace = trace.tb_next
    theirs = [frame for frame in frames if frame[0] == str(code.path)]
    return (theirs or frames or [(str(code.path), 0)])[-1]
