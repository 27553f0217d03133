"""ONNX files as networks: the graph runs in onnxruntime, and what comes in and out are tensors.

A file is data: it names standard operators, and nothing in it is Python code. It has no weights that could be tuned and no layers to read,
so that it is audited, given another decision rule, or given the probes of a bias score; what comes out is one ONNX file again. The part
around the file is exported by torch with the output of the file as a second input; then both graphs are joined. The user's graph stays as
it was, with a prefix before its names, converted to the version of the operators that torch writes.
"""

import copy
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from equipoise.errors import BadInput, MissingExtra, did_you_mean, first_line, raise_all

ONNX = ".onnx"  # how the name of such a file ends
ORIGINAL_ONNX = "original.onnx"  # the user's file in the folder of its repair
PREFERRED = ("output", "logits", "logit", "score", "scores", "probabilities", "probability", "output_probability")
KINDS = {"tensor(float)": np.float32, "tensor(double)": np.float64, "tensor(float16)": np.float16, "tensor(uint8)": np.uint8}
BOTH = re.compile(r"(output_)?probabilit(y|ies)")  # the output of a converted scikit-learn classifier: of both classes
AGAIN = "Export it again with one input of rows, (n, ...), of floating-point numbers."
PREFIX = "original/"  # before the names of the user's graph
RAW = "raw"  # the output of the user's graph, as the part around it takes it


class OnnxNetwork(nn.Module):
    """An ONNX file as a module without weights: rows in, the chosen output of the graph out."""

    def __init__(self, content: bytes, source: str, which: str | None = None, *, session: Any = None) -> None:
        super().__init__()
        self.content, self.source = content, source  # without content, of a session, it can be used but not written
        self._session = _session(content, source) if session is None else session
        given, found = self._session.get_inputs(), self._session.get_outputs()
        raise_all(_problems(given), source)
        self.input, self.kind = str(given[0].name), KINDS[given[0].type]
        self.shape = tuple(given[0].shape)
        self.which = _chosen([(each.name, each.type) for each in found], which, source)
        self.both = bool(BOTH.fullmatch(self.which))
        self.rows = self.shape[0] if isinstance(self.shape[0], int) else None  # of every batch, where the graph fixes it
        self.output = "probability" if self.both or self.which in ("score", "scores") else "auto"

    def forward(self, x: Tensor) -> Tensor:
        self._check(x)
        values = x.detach().cpu().numpy().astype(self.kind, copy=False)
        if self.rows is None:
            raw = self._run(values)
        else:
            parts = [self._run(_filled(values[at : at + self.rows], self.rows)) for at in range(0, len(values), self.rows)]
            raw = np.concatenate(parts)[: len(values)]
        return self.taken(torch.from_numpy(np.ascontiguousarray(raw)).to(x.device))

    def taken(self, raw: Tensor) -> Tensor:
        """What is used of the graph's output: of the probabilities of two classes, those of the second."""
        return (raw[:, 1] if self.both and raw.ndim == 2 and raw.shape[1] == 2 else raw).float()

    def raw(self, x: Tensor) -> Tensor:
        """The graph's output for a few rows, as it is."""
        return torch.from_numpy(np.ascontiguousarray(self._run(x.detach().cpu().numpy().astype(self.kind, copy=False))))

    def _run(self, values: Any) -> Any:
        return self._session.run([self.which], {self.input: values})[0]

    def _check(self, x: Tensor) -> None:
        wanted = self.shape[1:]
        fits = x.ndim - 1 == len(wanted) and all(not isinstance(w, int) or w == n for w, n in zip(wanted, x.shape[1:], strict=True))
        if not fits:
            shown = " x ".join(str(w) if isinstance(w, int) else "any" for w in wanted)
            raise BadInput(
                f"{self.source} takes rows of {shown} in its input {self.input!r}; these are {' x '.join(map(str, x.shape[1:]))}. "
                "Give it the inputs that it was trained on (--size, --channels, --feature)."
            )

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


def is_session(value: object) -> bool:
    """Whether a value is a session of onnxruntime, without importing it."""
    return type(value).__name__ == "InferenceSession" and type(value).__module__.startswith("onnxruntime")


def load_onnx(path: str | Path, which: str | None = None) -> OnnxNetwork:
    """The network in an ONNX file; `which` names one of its outputs, where there are several."""
    path = Path(path)
    if not path.is_file():
        raise BadInput(f"no such file: {path}. Name the ONNX file.")
    return OnnxNetwork(_whole(path.read_bytes(), path), str(path), which)


def place_of(named: str) -> tuple[str, str | None] | None:
    """The file and the output that a name such as net.onnx or net.onnx:logits stands for; None for other names."""
    place, colon, which = named.rpartition(":")
    if colon and place.endswith(ONNX):
        return place, which or None
    return (named, None) if named.endswith(ONNX) else None


def _whole(content: bytes, path: Path) -> bytes:
    """The bytes of a file with its weights inside, also where they were in files next to it."""
    onnx = _library("onnx", f"reading {path.name}")
    try:
        model = onnx.load_model_from_string(content)
        if not any(onnx.external_data_helper.uses_external_data(tensor) for tensor in model.graph.initializer):
            return content
        onnx.external_data_helper.load_external_data_for_model(model, str(path.parent))
        return bytes(model.SerializeToString())
    except Exception as error:  # protobuf and onnx have their own
        reason = first_line(error)
        raise BadInput(f"{path} cannot be read as ONNX: {type(error).__name__}: {reason}. {AGAIN}") from error


def _library(name: str, purpose: str) -> Any:
    from importlib import import_module
    from importlib.util import find_spec

    if find_spec(name) is None:
        raise MissingExtra(name, "onnx", purpose)
    return import_module(name)


def _session(content: bytes, source: str) -> Any:
    runtime = _library("onnxruntime", f"running {Path(source).name}")
    options = runtime.SessionOptions()
    options.log_severity_level = 4  # what is wrong is in the error
    options.intra_op_num_threads = torch.get_num_threads()
    try:
        return runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime has its own, one per status code
        reason = first_line(error)
        raise BadInput(f"{source} cannot be run by onnxruntime {runtime.__version__}: {reason}") from error


def _problems(given: Sequence[Any]) -> list[str]:
    if len(given) != 1:
        names = ", ".join(f"{each.name!r}" for each in given)
        return [f"the graph has {len(given)} inputs ({names}); one tensor of rows is needed. {AGAIN}"]
    if given[0].type not in KINDS:
        return [f"the input {given[0].name!r} is of type {given[0].type}. {AGAIN}"]
    return []


def _chosen(found: Sequence[tuple[str, str]], which: str | None, source: str) -> str:
    """The output that is used: as named; the only one of numbers; or the first with a usual name."""
    numbers = [name for name, kind in found if kind in KINDS and kind != "tensor(uint8)"]
    if which is not None:
        if which not in numbers:
            raise BadInput(f"{source} has no output {which!r} of numbers.{did_you_mean(which, numbers)} It has: {', '.join(numbers)}.")
        return which
    if not numbers:
        shown = ", ".join(f"{name} ({kind})" for name, kind in found)
        maps = " Convert the scikit-learn model with options={'zipmap': False}." if any("map" in kind for _, kind in found) else ""
        raise BadInput(f"{source} has no output that is a tensor of numbers; it has {shown}.{maps}")
    usual = [name for name in PREFERRED if name in numbers]
    if len(numbers) > 1 and not usual:
        raise BadInput(f"{source} has several outputs: {', '.join(numbers)}. Name one: {source}:{numbers[0]}")
    return numbers[0] if len(numbers) == 1 else usual[0]


def _filled(values: Any, rows: int) -> Any:
    """A batch of the size that the graph takes; its last row is repeated where there are too few."""
    lacking = rows - len(values)
    return values if not lacking else np.concatenate([values, np.repeat(values[-1:], lacking, axis=0)])


class _Given(nn.Module):
    """Stands in for the ONNX file: what the file gave for the rows of this pass."""

    def __init__(self, network: OnnxNetwork) -> None:
        super().__init__()
        self.taken = network.taken
        self.raw = torch.empty(0)
        for name in ("output", "targets"):
            if hasattr(network, name):
                setattr(self, name, getattr(network, name))

    def forward(self, x: Tensor) -> Tensor:  # noqa: ARG002 (what it is called with)
        return self.taken(self.raw)


class AroundOnnx(nn.Module):
    """A network around an ONNX file, as a function of the rows and of what the file gave for them."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        network = onnx_in(model)
        assert network is not None  # the caller has looked
        self.given = _Given(network)
        self.model = _with(copy.deepcopy(model), self.given)

    def forward(self, x: Tensor, raw: Tensor) -> Any:
        self.given.raw = raw
        return self.model(x)


def _with(model: nn.Module, given: _Given) -> nn.Module:
    """The network with the ONNX file in it replaced."""
    if isinstance(model, OnnxNetwork):
        return given
    for name, child in list(model.named_children()):
        setattr(model, name, _with(child, given))
    return model


def check_mergeable(network: OnnxNetwork) -> None:
    """Raises where a graph cannot be part of another one."""
    if not network.content:
        raise ValueError("a session of onnxruntime cannot be written; give the file: eq.debias('net.onnx', ...)")
    if network.rows is not None:
        raise ValueError(f"{network.source} takes batches of exactly {network.rows} rows; export it with a dynamic first axis")


def write_merged(network: OnnxNetwork, around: Any, path: Path) -> int:
    """Writes the user's graph and an exported one around it (input, raw) as one file with one input, and returns its opset."""
    import onnx  # type: ignore[import-not-found, unused-ignore]
    from onnx import compose, helper, version_converter

    opset = next(each.version for each in around.opset_import if each.domain in ("", "ai.onnx"))
    own = onnx.load_model_from_string(network.content)
    had = next((each.version for each in own.opset_import if each.domain in ("", "ai.onnx")), opset)
    if had > opset:
        around, opset = version_converter.convert_version(around, had), had
    elif had < opset:
        own = version_converter.convert_version(own, opset)
    for part in (own, own.graph):
        part.doc_string = ""
    own = compose.add_prefix(own, PREFIX)
    rows, kind = around.graph.input[0], own.graph.input[0].type.tensor_type.elem_type
    first = [helper.make_node("Cast", [rows.name], [own.graph.input[0].name], to=kind)]
    raw = [helper.make_node("Identity", [f"{PREFIX}{network.which}"], [around.graph.input[1].name])]
    shaped = copy.deepcopy(rows)
    graph = helper.make_graph(
        [*first, *own.graph.node, *raw, *around.graph.node],
        "repaired",
        [shaped],
        list(around.graph.output),
        [*own.graph.initializer, *around.graph.initializer],
    )
    graph.sparse_initializer.extend(own.graph.sparse_initializer)
    versions = {each.domain: each.version for each in (*own.opset_import, *around.opset_import)} | {"": opset}
    imports = [helper.make_opsetid(domain, number) for domain, number in versions.items() if domain != "ai.onnx"]
    functions = [*own.functions, *around.functions]
    joined = helper.make_model(
        graph, opset_imports=imports, functions=functions, ir_version=max(own.ir_version, around.ir_version), producer_name="equipoise"
    )
    onnx.checker.check_model(joined)
    path.write_bytes(joined.SerializeToString())
    return int(opset)
