"""Exported programs (`torch.export.save`, a .pt2 file) as networks.

A program is a graph that torch builds from the file and runs, so it is code: name only a file that you would run, as for a factory. torch
loads the pickles inside the file without a check, so they are checked first, and a pickle with more than tensors is refused. A program has
weights and a graph of operators but no layers: it can be scored, fine-tuned and given another rule, but not pruned.
"""

import copy
import json
import logging
import re
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from equipoise.errors import BadInput, first_line, raise_all
from equipoise.models.weights import file_content

PROGRAM = ".pt2"  # suffix of an exported program
NAME_ONE = f"Name the exported program, a {PROGRAM} file."
AGAIN = "Save it again with torch.export.save, from a network in eval mode and with a dynamic first axis."
LISTS = re.compile(r".*/(weights|constants)/[^/]*_config\.json")  # members that list the weights or the constants
TENSOR = re.compile(r"(weight|tensor)_\d+")  # the names under which torch stores tensors; under others it unpickles whatever is there
WORD = re.compile(rb"[\w.-]{0,64}\s*")  # a version or a format
MODES = {"batch_norm": 5, "dropout": 2}  # operators that differ in training: the position of the argument that sets the mode


class ExportedNetwork(nn.Module):
    """An exported program as a module. `train()` and `eval()` have no effect: the mode was fixed when it was exported."""

    def __init__(self, program: ExportedProgram, source: str, content: bytes | None = None) -> None:
        super().__init__()
        self.source = source
        self.content = content  # the bytes of a program that was given as an object, not as a file
        with quiet():
            self.graph: nn.Module = program.module()

    def forward(self, x: Tensor) -> Tensor:
        raw: Tensor = self.graph(x)
        return raw

    def train(self, mode: bool = True) -> "ExportedNetwork":
        self.training = mode  # the graph itself would raise an error
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> "ExportedNetwork":
        new = type(self).__new__(type(self))
        memo[id(self)] = new
        with quiet():
            new.__dict__.update({key: copy.deepcopy(value, memo) for key, value in self.__dict__.items()})
        return new


def program_in(model: nn.Module) -> ExportedNetwork | None:
    """The exported program that a network is or wraps, if any."""
    return next((module for module in model.modules() if isinstance(module, ExportedNetwork)), None)


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """The state dict of a network; that of the program inside for an exported one."""
    program = program_in(model)
    return dict((model if program is None else program.graph).state_dict())


def exported_object(program: Any) -> ExportedNetwork:
    """The network of a program in memory: a copy, so that no repair changes the original."""
    content = BytesIO()
    with quiet():
        torch.export.save(program, content)
    return exported_in(content.getvalue(), "the exported program", keep=True)


def exported_in(content: bytes, source: str, *, keep: bool = False) -> ExportedNetwork:
    """The network in the bytes of a .pt2 file; with `keep`, it holds them, since there is no file to read again."""
    program = _load(content, source)
    try:
        problems, network = _program_problems(program), ExportedNetwork(program, source, content if keep else None)
    except Exception as error:  # torch can read the graph but cannot build a module from it
        raise _cannot_load(source, error) from error
    raise_all(problems, source)
    return network


def save_exported(model: ExportedNetwork, path: Path) -> None:
    """Writes the network's program with its present weights."""
    program = _load(model.content or file_content(Path(model.source), NAME_ONE), model.source)
    weights = weights_of(model)
    with torch.no_grad():
        for key, value in program.state_dict.items():
            value.copy_(weights[key])
    for module in program.graph_module.modules():
        for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ():
            node.meta.pop("stack_trace", None)  # it names folders of the machine that exported it
    with quiet():
        torch.export.save(program, path)


def _load(content: bytes, source: str) -> ExportedProgram:
    if not zipfile.is_zipfile(BytesIO(content)):
        raise BadInput(f"{source} is not an exported program. {AGAIN}")
    try:
        unsafe, checked = _checked_archive(content)
    except Exception as error:  # a damaged archive, or damaged lists in it
        raise BadInput(f"{source} is damaged: {type(error).__name__}: {error}. {AGAIN}") from error
    if unsafe:
        raise BadInput(
            f"{source} holds more than tensors and a graph ({unsafe.partition('/')[2]}) and could run code when loaded; "
            f"it is refused. {AGAIN}"
        )
    try:
        with quiet():
            return torch.export.load(checked)
    except Exception as error:  # a damaged file, or one of another version of torch, fails in many ways
        raise _cannot_load(source, error) from error


def _cannot_load(source: str, error: Exception) -> BadInput:
    return BadInput(f"{source} cannot be loaded by torch {torch.__version__}: {type(error).__name__}: {first_line(error)}. {AGAIN}")


def _checked_archive(content: bytes) -> tuple[str, BytesIO]:
    """The name of a member that holds more than tensors (a pickle, a library, a custom object; empty if there is none), and the archive.

    A member is judged by its content, whatever its name. The archive is written again from what was checked, because torch reads archives
    with other code, which may find another member under the same name.
    """
    with zipfile.ZipFile(BytesIO(content)) as archive:
        members = [(info.filename, archive.read(info)) for info in archive.infolist()]
    lists = [(name, json.loads(inner).get("config", {})) for name, inner in members if LISTS.fullmatch(name)]
    listed = [(f"{name.rpartition('/')[0]}/{entry['path_name']}", entry) for name, config in lists for entry in config.values()]
    for name, entry in listed:
        if not TENSOR.fullmatch(entry["path_name"]):
            return name, BytesIO()
    pickled = {name.casefold() for name, entry in listed if entry.get("use_pickle", True)}  # torch ignores case
    raw = {name for name, _ in listed} - {name for name, _ in members if name.casefold() in pickled}
    checked, seen = BytesIO(), set[str]()
    with zipfile.ZipFile(checked, "w") as again:
        for name, inner in members:
            if name.casefold() in seen or not (name in raw or _harmless(inner)):
                return name, BytesIO()
            seen.add(name.casefold())
            again.writestr(name, inner)
    checked.seek(0)
    return "", checked


def _harmless(content: bytes) -> bool:
    """Whether a member is JSON or one word, neither of which is a pickle that names a function, or a pickle of tensors only."""
    with suppress(ValueError, RecursionError):
        json.loads(content.decode())
        return True
    with suppress(Exception), quiet():  # not a pickle, a broken one, or one that asks for more
        torch.load(BytesIO(content), map_location="cpu", weights_only=True)
        return True
    return WORD.fullmatch(content) is not None


def _program_problems(program: ExportedProgram) -> list[str]:
    names = set(program.graph_signature.user_inputs)
    inputs = [node for node in program.graph.nodes if node.op == "placeholder" and node.name in names]
    problems = []
    if len(inputs) != 1:
        problems.append(f"the program takes {len(inputs)} inputs; one tensor of rows is needed. Export a network that takes one.")
    elif isinstance(value := inputs[0].meta.get("val"), Tensor) and value.ndim and isinstance(value.shape[0], int):
        problems.append(
            f"the program takes batches of exactly {value.shape[0]} rows. "
            "Export it with dynamic_shapes=({0: torch.export.Dim.DYNAMIC},) for batches of any size."
        )
    training = set()
    for node in program.graph.nodes:
        name = str(node.target).removeprefix("aten.").partition(".")[0].rstrip("_")
        if name in MODES and node.args[MODES[name] : MODES[name] + 1] == (True,):
            training.add(name)
    if training:
        problems.append(f"the program was exported in training mode ({', '.join(sorted(training))}). Export model.eval().")
    return problems


@contextmanager
def quiet() -> Iterator[None]:
    """Suppresses torch's output, warnings and logs about its internals, such as a traceback for a file that it fails to load."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
