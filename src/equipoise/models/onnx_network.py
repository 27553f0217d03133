"""ONNX files as networks: the graph runs in onnxruntime, with tensors as input and output.

A file is data: it names standard operators and contains no Python code. It has no weights that could be tuned and no layers to read, so it
can be audited, given another decision rule, or given the probes of a bias score; the result is one ONNX file again. For that, torch exports
the part around the user's graph with the graph's output as a second input; then both graphs are joined. The user's graph is unchanged,
except for a prefix before its names and a conversion to the version of the operators that torch writes.
"""

import copy
import importlib.util
import math
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from equipoise.errors import BadInput, MissingExtra, did_you_mean, first_line
from equipoise.models.weights import file_content

ONNX = ".onnx"  # suffix of such a file
ORIGINAL_ONNX = "original.onnx"  # the user's file in the folder of its repair
PREFERRED = ("output", "logits", "logit", "score", "scores", "probabilities", "probability", "output_probability")
KINDS = {"tensor(float)": np.float32, "tensor(double)": np.float64, "tensor(float16)": np.float16, "tensor(uint8)": np.uint8}
BOTH_CLASSES = re.compile(r"(output_)?probabilit(y|ies)")  # the output of a converted scikit-learn classifier: one column per class
AGAIN = "Export it again with one input of rows, (n, ...), of floating-point numbers."
NO_MEMORY = re.compile(r"smaller than requested|failed to allocate|bad_?alloc", re.IGNORECASE)  # in messages of onnxruntime
MAX_MEMORY = 2**34  # bytes that a graph may ask for: one of 200 bytes can ask for any number
MAX_EXPANSION = 100  # of sparse weights, from the bytes of the file to numbers in memory
PREFIX = "original/"  # for the names of the user's graph
RAW = "raw"  # the output of the user's graph, as an input of the part around it


class OnnxNetwork(nn.Module):
    """An ONNX file as a module without weights: rows in, the chosen output of the graph out."""

    def __init__(self, content: bytes, source: str, which: str | None = None, *, session: Any = None) -> None:
        super().__init__()
        self.content, self.source = content, source  # empty content for a session, which can be run but not saved
        self._session = open_session(content, source) if session is None else session
        inputs, outputs = self._session.get_inputs(), self._session.get_outputs()
        if len(inputs) != 1:
            names = ", ".join(repr(node.name) for node in inputs)
            raise BadInput(f"the graph has {len(inputs)} inputs ({names}); one tensor of rows is needed. {AGAIN}", source=source)
        if inputs[0].type not in KINDS:
            raise BadInput(f"the input {inputs[0].name!r} is of type {inputs[0].type}. {AGAIN}", source=source)
        self.input, self.kind = str(inputs[0].name), KINDS[inputs[0].type]
        self.shape = tuple(inputs[0].shape)
        self.which = _choose_output([(output.name, output.type) for output in outputs], which, source)
        self.both_classes = bool(BOTH_CLASSES.fullmatch(self.which))
        self.rows = self.shape[0] if isinstance(self.shape[0], int) else None  # of every batch, if the graph fixes their number
        self.output = "probability" if self.both_classes or self.which in ("score", "scores") else "auto"

    def forward(self, x: Tensor) -> Tensor:
        expected = self.shape[1:]
        fits = x.ndim - 1 == len(expected) and all(not isinstance(w, int) or w == n for w, n in zip(expected, x.shape[1:], strict=True))
        if not fits:
            shown = " x ".join(str(w) if isinstance(w, int) else "any" for w in expected)
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
            found = self._session.run([self.which], {self.input: values})[0]
        except Exception as error:  # onnxruntime raises its own, one per status code
            if NO_MEMORY.search(str(error)):  # the caller goes on with fewer rows
                needed = f"{self.source} needs more than {max_memory():,} bytes for {len(x):,} row{'s' if len(x) > 1 else ''}"
                raise torch.OutOfMemoryError(needed) from error
            raise
        return torch.from_numpy(np.ascontiguousarray(found))

    def __deepcopy__(self, memo: dict[int, Any]) -> "OnnxNetwork":
        new = type(self).__new__(type(self))
        nn.Module.__init__(new)
        memo[id(self)] = new
        new.__dict__.update({key: value for key, value in self.__dict__.items() if not key.startswith("_") or key == "_session"})
        new.training = self.training
        return new


def onnx_in(model: nn.Module) -> OnnxNetwork | None:
    """The ONNX file that a network is or wraps, if any."""
    return next((module for module in model.modules() if isinstance(module, OnnxNetwork)), None)


def load_onnx(path: str | Path, which: str | None = None) -> OnnxNetwork:
    """The network in an ONNX file; `which` names one of its outputs, if there are several."""
    path = Path(path)
    return OnnxNetwork(_with_weights(file_content(path, "Name the ONNX file."), path), str(path), which)


def onnx_file_and_output(named: str) -> tuple[str, str | None] | None:
    """The file and the output in a name such as net.onnx or net.onnx:logits; None for other names."""
    place, colon, which = named.rpartition(":")
    if colon and place.endswith(ONNX):
        return place, which or None
    return (named, None) if named.endswith(ONNX) else None


def _with_weights(content: bytes, path: Path) -> bytes:
    """The bytes of the file, including weights that are stored in files next to it."""
    require_onnx(["onnx"], f"reading {path.name}")
    import onnx  # type: ignore[import-not-found, unused-ignore]

    try:
        model = onnx.load_model_from_string(content)
        _check_sparse(model, len(content), path)
        if not any(onnx.external_data_helper.uses_external_data(tensor) for tensor in model.graph.initializer):
            return content
        onnx.external_data_helper.load_external_data_for_model(model, str(path.parent))
        return bytes(model.SerializeToString())
    except BadInput:
        raise
    except Exception as error:  # protobuf and onnx raise their own
        raise BadInput(f"{path} cannot be read as ONNX: {type(error).__name__}: {first_line(error)}. {AGAIN}") from error


def _check_sparse(model: Any, size: int, path: Path) -> None:
    """Raises `BadInput` if sparse weights, of which a file holds only a few numbers, would take far more memory than the file."""
    dense, limit = 0, max(2**28, MAX_EXPANSION * size)
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
    numbers = [name for name, kind in outputs if kind in KINDS and kind != "tensor(uint8)"]
    if which is not None:
        if which not in numbers:
            raise BadInput(f"{source} has no output {which!r} of numbers.{did_you_mean(which, numbers)} It has: {', '.join(numbers)}.")
        return which
    if not numbers:
        shown = ", ".join(f"{name} ({kind})" for name, kind in outputs)
        maps = " Convert the scikit-learn model with options={'zipmap': False}." if any("map" in kind for _, kind in outputs) else ""
        raise BadInput(f"{source} has no output that is a tensor of numbers; it has {shown}.{maps}")
    usual = [name for name in PREFERRED if name in numbers]
    if len(numbers) > 1 and not usual:
        raise BadInput(f"{source} has several outputs: {', '.join(numbers)}. Name one: {source}:{numbers[0]}")
    return numbers[0] if len(numbers) == 1 else usual[0]


class _OnnxOutput(nn.Module):
    """Replaces the ONNX file inside a network: returns the file's output for the rows of this pass, set in `raw`."""

    def __init__(self, network: OnnxNetwork) -> None:
        super().__init__()
        self.select_output = network.select_output
        self.raw = torch.empty(0)
        for name in ("output", "targets"):
            if hasattr(network, name):
                setattr(self, name, getattr(network, name))

    def forward(self, x: Tensor) -> Tensor:  # noqa: ARG002 (a network is called with the rows)
        return self.select_output(self.raw)


class AroundOnnx(nn.Module):
    """A network around an ONNX file, as a function of the rows and of the file's output for them."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = copy.deepcopy(model)
        inside = [name for name, module in self.named_modules(remove_duplicate=False) if isinstance(module, OnnxNetwork)]
        self.replacement = _OnnxOutput(cast(OnnxNetwork, self.get_submodule(inside[0])))
        for name in inside:
            self.set_submodule(name, self.replacement)

    def forward(self, x: Tensor, raw: Tensor) -> Any:
        self.replacement.raw = raw
        return self.model(x)


def check_mergeable(network: OnnxNetwork) -> None:
    """Raises an error if a graph cannot be part of another one."""
    if not network.content:
        raise ValueError("a session of onnxruntime cannot be written; give the file: eq.debias('net.onnx', ...)")
    if network.rows is not None:
        raise ValueError(f"{network.source} takes batches of exactly {network.rows} rows; export it with a dynamic first axis")


def write_merged(network: OnnxNetwork, around: Any, path: Path) -> int:
    """Writes the user's graph and an exported one around it (input, raw) as one file with one input, and returns its opset."""
    import onnx
    from onnx import compose, helper, version_converter

    opset = next(entry.version for entry in around.opset_import if entry.domain in ("", "ai.onnx"))
    original = onnx.load_model_from_string(network.content)
    original_opset = next((entry.version for entry in original.opset_import if entry.domain in ("", "ai.onnx")), opset)
    if original_opset > opset:
        around, opset = version_converter.convert_version(around, original_opset), original_opset
    elif original_opset < opset:
        original = version_converter.convert_version(original, opset)
    for part in (original, original.graph):
        part.doc_string = ""
    original = compose.add_prefix(original, PREFIX)
    rows, original_input = around.graph.input[0], original.graph.input[0]
    cast = helper.make_node("Cast", [rows.name], [original_input.name], to=original_input.type.tensor_type.elem_type)
    connect = helper.make_node("Identity", [f"{PREFIX}{network.which}"], [around.graph.input[1].name])
    graph = helper.make_graph(
        [cast, *original.graph.node, connect, *around.graph.node],
        "repaired",
        [copy.deepcopy(rows)],
        list(around.graph.output),
        [*original.graph.initializer, *around.graph.initializer],
    )
    graph.sparse_initializer.extend(original.graph.sparse_initializer)
    versions = {entry.domain: entry.version for entry in (*original.opset_import, *around.opset_import)} | {"": opset}
    joined = helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid(domain, number) for domain, number in versions.items() if domain != "ai.onnx"],
        functions=[*original.functions, *around.functions],
        ir_version=max(original.ir_version, around.ir_version),
        producer_name="equipoise",
    )
    onnx.checker.check_model(joined)
    path.write_bytes(joined.SerializeToString())
    return int(opset)
