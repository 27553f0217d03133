"""Networks without code: exported programs (`torch.export.save`, a .pt2 file) and ONNX files.

An exported program is a graph that torch builds from the file and runs, so it is code: name only a file that you would run, as for a
factory. torch loads the pickles inside the file without a check, so they are checked first, and a pickle with more than tensors is refused.
A program has weights and a graph of operators but no layers: it can be scored, fine-tuned and given another rule, but not pruned.

An ONNX file is data: it names standard operators and contains no Python code; its graph runs in onnxruntime, where it can be audited, given
another decision rule, or given the probes of a bias score; methods that change weights use `onnx_layers`. The result is one ONNX file
again. For that, torch exports the part around the user's graph with the graph's output as a second input; then both graphs are
joined. The user's graph is unchanged, except for a prefix before its names and a conversion to the operators' version that torch writes.
"""

import copy
import importlib.util
import json
import logging
import math
import os
import re
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from functools import cache
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from equipoise.errors import BadInput, MissingExtra, did_you_mean, first_line, raise_all
from equipoise.models.score import modules_of
from equipoise.models.weights import file_content

PROGRAM = ".pt2"  # suffix of an exported program
NAME_ONE = f"Name the exported program, a {PROGRAM} file."
SAVE_AGAIN = "Save it again with torch.export.save, from a network in eval mode and with a dynamic first axis."
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
    return next(iter(modules_of(model, ExportedNetwork).values()), None)


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
    problems = []
    with _loading(source):  # torch can read some graphs that it cannot build a module from
        names = set(program.graph_signature.user_inputs)
        inputs = [node for node in program.graph.nodes if node.op == "placeholder" and node.name in names]
        if len(inputs) != 1:
            problems.append(f"the program takes {len(inputs)} inputs; one tensor of rows is needed. Export a network that takes one.")
        elif (shape := getattr(inputs[0].meta.get("val"), "shape", ())) and isinstance(shape[0], int):
            problems.append(
                f"the program takes batches of exactly {shape[0]} rows. "
                "Export it with dynamic_shapes=({0: torch.export.Dim.DYNAMIC},) for batches of any size."
            )
        calls = [(str(node.target).removeprefix("aten.").partition(".")[0].rstrip("_"), node.args) for node in program.graph.nodes]
        training = {name for name, args in calls if name in MODES and args[MODES[name] : MODES[name] + 1] == (True,)}
        if training:
            problems.append(f"the program was exported in training mode ({', '.join(sorted(training))}). Export model.eval().")
        network = ExportedNetwork(program, source, content if keep else None)
    raise_all(problems, source)
    return network


def save_exported(model: ExportedNetwork, path: Path) -> None:
    """Writes the network's program with its present weights."""
    program = _load(model.content or file_content(Path(model.source), NAME_ONE), model.source)
    weights = weights_of(model)
    with torch.no_grad():
        for key, value in program.state_dict.items():
            value.copy_(weights[key])
    for module in modules_of(program.graph_module, torch.fx.GraphModule).values():
        for node in module.graph.nodes:
            node.meta.pop("stack_trace", None)  # it names folders of the machine that exported it
    with quiet():
        torch.export.save(program, path)


def _load(content: bytes, source: str) -> ExportedProgram:
    if not zipfile.is_zipfile(BytesIO(content)):
        raise BadInput(f"{source} is not an exported program. {SAVE_AGAIN}")
    try:
        unsafe, checked = _checked_archive(content)
    except Exception as error:  # a damaged archive, or damaged lists in it
        raise BadInput(f"{source} is damaged: {type(error).__name__}: {error}. {SAVE_AGAIN}") from error
    if unsafe:
        more = f"more than tensors and a graph ({unsafe.partition('/')[2]})"
        raise BadInput(f"{source} holds {more} and could run code when loaded; it is refused. {SAVE_AGAIN}")
    with _loading(source), quiet():
        return torch.export.load(checked)


@contextmanager
def _loading(source: str) -> Iterator[None]:
    """One error for the many ways in which a damaged file, or one of another version of torch, fails."""
    try:
        yield
    except Exception as error:
        what = f"{type(error).__name__}: {first_line(error)}"
        raise BadInput(f"{source} cannot be loaded by torch {torch.__version__}: {what}. {SAVE_AGAIN}") from error


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


ONNX = ".onnx"  # suffix of such a file
ORIGINAL_ONNX = "original.onnx"  # the user's file in the folder of its repair
PREFERRED_OUTPUTS = ("output", "logits", "logit", "score", "scores", "probabilities", "probability", "output_probability")
TENSOR_KINDS = {"tensor(float)": np.float32, "tensor(double)": np.float64, "tensor(float16)": np.float16, "tensor(uint8)": np.uint8}
BOTH_CLASSES = re.compile(r"(output_)?probabilit(y|ies)")  # the output of a converted scikit-learn classifier: one column per class
EXPORT_AGAIN = "Export it again with one input of rows, (n, ...), of floating-point numbers."
NO_MEMORY = re.compile(r"smaller than requested|failed to allocate|bad_?alloc", re.IGNORECASE)  # in messages of onnxruntime
MAX_MEMORY = 2**34  # bytes that a graph may ask for: one of 200 bytes can ask for any number
MAX_EXPANSION = 100  # of sparse weights, from the bytes of the file to numbers in memory


class OnnxNetwork(nn.Module):
    """An ONNX file in onnxruntime, as a module without weights: rows in, the chosen output of the graph out."""

    def __init__(self, content: bytes, source: str, which: str | None = None, *, session: Any = None) -> None:
        super().__init__()
        self.content, self.source = content, source  # empty content for a session, which can be run but not saved
        session = open_session(content, source) if session is None else session
        inputs, outputs = session.get_inputs(), session.get_outputs()
        if len(inputs) != 1:
            names = ", ".join(repr(node.name) for node in inputs)
            raise BadInput(f"the graph has {len(inputs)} inputs ({names}); one tensor of rows is needed. {EXPORT_AGAIN}", source=source)
        if inputs[0].type not in TENSOR_KINDS:
            raise BadInput(f"the input {inputs[0].name!r} is of type {inputs[0].type}. {EXPORT_AGAIN}", source=source)
        self.input, self.kind = str(inputs[0].name), TENSOR_KINDS[inputs[0].type]
        # A function, so that copies of the network share the session, which cannot be copied.
        self._run: Callable[[str, Mapping[str, Any]], Any] = lambda which, values: session.run([which], values)[0]
        self.shape = [length if isinstance(length, int) else None for length in inputs[0].shape]  # None: of any length
        self.which = _choose_output([(output.name, output.type) for output in outputs], which, source)
        self.both_classes = bool(BOTH_CLASSES.fullmatch(self.which))
        self.rows = self.shape[0]  # of every batch, if the graph fixes their number
        self.output = "probability" if self.both_classes or self.which in ("score", "scores") else "auto"
        self.given: Tensor | None = None  # the graph's output for the rows of this pass, where it is not to be run

    def forward(self, x: Tensor) -> Tensor:
        if self.given is not None:
            return self.select_output(self.given)
        expected = self.shape[1:]
        if x.ndim - 1 != len(expected) or any(w not in (None, n) for w, n in zip(expected, x.shape[1:], strict=True)):
            shown = " x ".join("any" if w is None else str(w) for w in expected)
            raise BadInput(
                f"{self.source} takes rows of {shown} in its input {self.input!r}; these are {' x '.join(map(str, x.shape[1:]))}. "
                "Give it the inputs that it was trained on (images.size, images.channels, data.features)."
            )
        if (rows := self.rows) is None:
            raw = self.raw(x)
        else:  # the last row is repeated
            padded = torch.cat([x, x[-1:].expand(-len(x) % rows, *x.shape[1:])])
            raw = torch.cat([self.raw(part) for part in padded.split(rows)])[: len(x)]
        return self.select_output(raw.to(x.device))

    def select_output(self, raw: Tensor) -> Tensor:
        """The part of the graph's output that is used: of the probabilities of two classes, those of the second."""
        return (raw[:, 1] if self.both_classes and raw.ndim == 2 and raw.shape[1] == 2 else raw).float()

    def raw(self, x: Tensor) -> Tensor:
        """The graph's output for one batch, on the CPU."""
        values = x.detach().cpu().numpy().astype(self.kind, copy=False)
        try:
            found = self._run(self.which, {self.input: values})
        except Exception as error:  # onnxruntime raises its own, one per status code
            if NO_MEMORY.search(str(error)):  # the caller goes on with fewer rows
                needed = f"{self.source} needs more than {max_memory():,} bytes for {len(x):,} row{'s' if len(x) > 1 else ''}"
                raise torch.OutOfMemoryError(needed) from error
            raise
        return torch.from_numpy(np.ascontiguousarray(found))


def onnx_in(model: nn.Module) -> OnnxNetwork | None:
    """The ONNX file that a network is or wraps, if any."""
    return next(iter(modules_of(model, OnnxNetwork).values()), None)


def onnx_file_and_output(named: str) -> tuple[str, str | None] | None:
    """The file and the output in a name such as net.onnx or net.onnx:logits; None for other names."""
    place, colon, which = named.rpartition(":")
    if colon and place.endswith(ONNX):
        return place, which or None
    return (named, None) if named.endswith(ONNX) else None


def load_onnx(path: str | Path, which: str | None = None) -> OnnxNetwork:
    """The network in an ONNX file, including weights in files next to it; `which` names one of its outputs, if there are several.

    Raises `BadInput` if sparse weights, of which a file holds only a few numbers, would take far more memory than the file.
    """
    path = Path(path)
    content = file_content(path, "Name the ONNX file.")
    require_onnx(["onnx"], f"reading {path.name}")
    import onnx  # type: ignore[import-not-found, unused-ignore]

    try:
        model = onnx.load_model_from_string(content)
        dense, limit = 0, max(2**28, MAX_EXPANSION * len(content))
        parts: list[Any] = [model.graph, *model.functions]  # a node may hold further graphs
        while parts:
            part = parts.pop()
            sparse = list(getattr(part, "sparse_initializer", ()))
            for attribute in (attribute for node in part.node for attribute in node.attribute):
                parts += [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]
                sparse += [*([attribute.sparse_tensor] if attribute.HasField("sparse_tensor") else []), *attribute.sparse_tensors]
            dense += sum(8 * math.prod(tensor.dims) for tensor in sparse)
        if dense > limit:
            raise BadInput(
                f"{path} holds sparse weights that need {dense:,} bytes in memory; the limit is {limit:,}. Export it with dense weights."
            )
        if any(onnx.external_data_helper.uses_external_data(tensor) for tensor in model.graph.initializer):
            onnx.external_data_helper.load_external_data_for_model(model, str(path.parent))
            content = bytes(model.SerializeToString())
    except BadInput:
        raise
    except Exception as error:  # protobuf and onnx raise their own
        raise BadInput(f"{path} cannot be read as ONNX: {type(error).__name__}: {first_line(error)}. {EXPORT_AGAIN}") from error
    return OnnxNetwork(content, str(path), which)


def max_memory() -> int:
    """The bytes that onnxruntime may take for a graph: half of this machine's memory, at most `MAX_MEMORY`."""
    with suppress(AttributeError, ValueError, OSError):  # on Windows, there is no `sysconf`
        return min(MAX_MEMORY, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2)
    return MAX_MEMORY


@cache
def _limit_memory() -> None:
    """Registers, once per process, an allocator with a limit, which the sessions of `open_session` use."""
    import onnxruntime  # type: ignore[import-untyped, unused-ignore]

    memory = onnxruntime.OrtMemoryInfo("Cpu", onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, onnxruntime.OrtMemType.DEFAULT)
    default = dict.fromkeys(("arena_extend_strategy", "initial_chunk_size_bytes", "max_dead_bytes_per_chunk"), -1)
    with suppress(RuntimeError):  # the user's code has registered its own
        onnxruntime.create_and_register_allocator(memory, onnxruntime.OrtArenaCfg({"max_mem": max_memory(), **default}))


def require_onnx(libraries: Sequence[str], purpose: str) -> None:
    """Raises an error with the pip command if one of these libraries for ONNX is not installed."""
    missing = [name for name in libraries if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingExtra(", ".join(missing), "onnx", purpose)


def open_session(content: bytes | str, source: str) -> Any:
    """A session of onnxruntime for the content of a file, or for its path."""
    require_onnx(["onnxruntime"], f"running {Path(source).name}")
    import onnxruntime  # type: ignore[import-untyped, unused-ignore]

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # the error is enough
    options.intra_op_num_threads = torch.get_num_threads()
    _limit_memory()
    options.add_session_config_entry("session.use_env_allocators", "1")
    try:
        return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime raises its own, one per status code
        raise BadInput(f"{source} cannot be run by onnxruntime {onnxruntime.__version__}: {first_line(error)}") from error


def _choose_output(outputs: Sequence[tuple[str, str]], which: str | None, source: str) -> str:
    """The output to use: the named one; the only one with numbers; or the first with a usual name."""
    numbers = [name for name, kind in outputs if kind in TENSOR_KINDS and kind != "tensor(uint8)"]
    if which is not None:
        if which not in numbers:
            raise BadInput(f"{source} has no output {which!r} of numbers.{did_you_mean(which, numbers)} It has: {', '.join(numbers)}.")
        return which
    if not numbers:
        shown = ", ".join(f"{name} ({kind})" for name, kind in outputs)
        maps = " Convert the scikit-learn model with options={'zipmap': False}." if any("map" in kind for _, kind in outputs) else ""
        raise BadInput(f"{source} has no output that is a tensor of numbers; it has {shown}.{maps}")
    usual = [name for name in PREFERRED_OUTPUTS if name in numbers]
    if len(numbers) > 1 and not usual:
        raise BadInput(f"{source} has several outputs: {', '.join(numbers)}. Name one: {source}:{numbers[0]}")
    return numbers[0] if len(numbers) == 1 else usual[0]
