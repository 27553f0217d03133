"""Files of a repaired network: weights under the original keys, safetensors, and ONNX that is checked against torch.

Keys and shapes are those of the original, with one exception: switching off single units of a convolution adds a mask to its weights,
`<layer>.unit_mask`. `MASKED_LOADING` are the five lines that load such weights with only torch; in ONNX the mask is a constant. A module
that a repair wraps around a network (BiasScore, or Recalibrated if no layer can absorb the map) has a file of its own, `HEADS_FILE`: the
structure as JSON in its metadata, the numbers as tensors. `load_heads` wraps it around the network again; ONNX files include it.
"""

import copy
import errno
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from equipoise.errors import BadInput, EquipoiseError, first_line, raise_all
from equipoise.models import programs
from equipoise.models.features import BiasScore, Recalibrated
from equipoise.models.loading import Code, fit_weights, network_with
from equipoise.models.mlp import MLP
from equipoise.models.onnx_layers import rebuild, rebuilt_in
from equipoise.models.programs import ORIGINAL_ONNX, PROGRAM, OnnxNetwork, onnx_file_and_output, onnx_in, quiet, weights_of
from equipoise.models.score import INNER_PREFIX, OneClass, OneOutput, as_matrix, evaluating, output_named
from equipoise.models.units import MASK_SUFFIX
from equipoise.models.vision import HuggingFaceNetwork
from equipoise.models.weights import Checkpoint, bare, file_content, misfits, prefix_of, read_checkpoint, safetensors_in

ONNX_TOLERANCE = 1e-5  # relative to the largest output, or to 1 if that is larger
REPAIRED_WEIGHTS, REPAIRED_PROGRAM = "repaired.safetensors", f"repaired{PROGRAM}"
HEADS_FILE = "heads.safetensors"  # next to the weights of a network with heads
Around = BiasScore | Recalibrated  # modules that a repair may wrap around a network
HEAD_KINDS: dict[str, type[BiasScore] | type[Recalibrated]] = {kind.kind: kind for kind in (BiasScore, Recalibrated)}
NETWORK_PREFIX = "network."  # prefix of the keys of the network inside the heads
ONE_FILE = 2**30  # bytes; the weights of a larger network go into a second file next to the ONNX file
GRAPH_PREFIX = "original/"  # for the names of a user's ONNX graph
RAW_INPUT = "raw"  # the output of that graph, as an input of the part around it
MASKED_LOADING = """\
masks = {k.removesuffix(".unit_mask"): state.pop(k) for k in list(state) if k.endswith(".unit_mask")}
model.load_state_dict(state, strict=True)
model.eval()
for name, mask in masks.items():
    model.get_submodule(name).register_forward_hook(lambda _module, _inputs, output, mask=mask: output * mask)
"""


class ExportFailed(EquipoiseError):
    """The network cannot be written in another format; the message names the operator or the reason."""


@dataclass(frozen=True)
class Exported:
    """An ONNX file, and the largest difference of its outputs from torch's on the rows of the check."""

    path: Path
    max_difference: float
    largest: float  # largest absolute value of an output
    opset: int
    rows: int

    @property
    def agrees(self) -> bool:
        """Whether the difference is within rounding."""
        return self.max_difference <= ONNX_TOLERANCE * max(1.0, self.largest)


def state_like(original: Mapping[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """The network's weights under the keys, in the order and with the prefix of the original's. Masks of convolutions come last.

    Heads around the network are not included: `heads_of` returns them, and `save_weights` writes them to their own file.

    >>> list(state_like({"module.weight": torch.ones(1, 2), "module.bias": torch.ones(1)}, nn.Linear(2, 1)))
    ['module.weight', 'module.bias']
    """
    weights = {key: value.detach().cpu().contiguous().clone() for key, value in _unwrapped(original, model).items()}
    prefix = prefix_of(original, weights)
    names = {key: key.removeprefix(prefix) for key in original}  # the network's key for each key of the original
    added = weights.keys() - set(names.values())
    masks = {f"{prefix}{key}": weights[key] for key in weights if key in added and key.endswith(MASK_SUFFIX)}
    problems = [f"the repaired network has no weights for {key!r}" for key, name in names.items() if name not in weights]
    problems += [
        f"{key!r} was {tuple(original[key].shape)} and is now {tuple(weights[name].shape)}"
        for key, name in names.items()
        if name in weights and weights[name].shape != original[key].shape
    ]
    problems += [f"{key!r} is not among the original weights" for key in added if not key.endswith(MASK_SUFFIX)]
    raise_all(problems, "weights to write")
    return {key: weights[name] for key, name in names.items()} | masks


def original_weights(network: Any, weights: str | Path | None) -> tuple[Checkpoint | None, str]:
    """The original weights of a network as in their file, for `save_weights`; None with the reason if its keys cannot be kept.

    Without a file of `weights`, they are those of the network inside its adapters.
    """
    if weights is None:
        while isinstance(network, (OneOutput, HuggingFaceNetwork)):
            network = network.inner
        return Checkpoint(weights_of(network)), ""
    checkpoint = read_checkpoint(weights)
    try:
        state_like(checkpoint.state, network)
    except BadInput as error:
        return None, error.problems[0]
    return checkpoint, ""


def _unwrapped(original: Mapping[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """The network's weights without heads, and without the prefix of an adapter such as OneOutput."""
    heads = heads_of(model, original)
    weights = weights_of(model if heads is None else heads.network)
    while (
        weights and all(key.startswith(INNER_PREFIX) for key in weights) and not any(bare(key).startswith(INNER_PREFIX) for key in original)
    ):
        weights = {key.removeprefix(INNER_PREFIX): value for key, value in weights.items()}
    return weights


def heads_of(model: nn.Module, original: Mapping[str, Tensor] | None = None) -> Around | None:
    """The heads that a repair has put around a network, with the network inside; None for heads that the original already had."""
    if not isinstance(model, Around):
        return None
    original_keys = {bare(key) for key in original or ()}
    return None if original_keys >= model.state_dict().keys() else model


def save_weights(model: nn.Module, folder: Path, checkpoint: Checkpoint | None = None) -> dict[str, Any]:
    """Writes `repaired.safetensors`, and a file of the original's kind: `repaired.pt` with the same nesting, or `repaired.pt2`.

    Heads around the network go into `heads.safetensors`. Returns what one needs to know to load the weights: the names of the files,
    nesting, prefix, masks, and what the heads are.
    """
    from safetensors.torch import save_file

    rebuilt = rebuilt_in(model)
    checkpoint = checkpoint if rebuilt is None else None  # an ONNX file has no weights under names of torch
    outermost = heads_of(model)  # without a checkpoint, the original weights are those of the network without heads
    inside = model if outermost is None else outermost.network
    # Of a rebuilt file, the names without the prefix of an adapter.
    original = checkpoint.state if checkpoint is not None else weights_of(inside if rebuilt is None else rebuilt)
    state, heads = state_like(original, model), heads_of(model, original)
    written: list[str] = []

    def write(name: str, save: Callable[[Path], object]) -> None:
        with writing(folder / name):
            save(folder / name)
        written.append(name)

    write(REPAIRED_WEIGHTS, lambda path: save_file(state, path))
    if (graph := onnx_in(model) or rebuilt) is not None:
        content = graph.content
        if not content:
            raise BadInput("a session of onnxruntime cannot be saved. Give the file that it was made of, 'net.onnx', in its place.")
        write(ORIGINAL_ONNX, lambda path: path.write_bytes(content))
    if (program := programs.program_in(model)) is not None:
        write(REPAIRED_PROGRAM, partial(programs.save_exported, program))
    elif checkpoint is not None and checkpoint.whole is not None:
        whole = state if checkpoint.under is None else {**checkpoint.whole, checkpoint.under: state}
        write("repaired.pt", partial(torch.save, whole))
    if heads is not None:
        metadata = {"format": "pt", "heads": json.dumps(heads.to_dict())}
        write(HEADS_FILE, lambda path: save_file(_head_weights(heads), path, metadata))
    return {
        "files": written,
        "program": None if program is None else REPAIRED_PROGRAM,
        "heads": None if heads is None else HEADS_FILE,
        "structure": None if heads is None else heads.to_dict(),
        "reading": "" if heads is None else str(heads.reading),
        "recalibrated": heads is not None and heads.kind == Recalibrated.kind,
        "under": None if checkpoint is None else checkpoint.under,
        "prefix": prefix_of(original, _unwrapped(original, model)),
        "masks": [key.removesuffix(MASK_SUFFIX) for key in state if key.endswith(MASK_SUFFIX)],
        "masked_loading": MASKED_LOADING.rstrip(),
    }


def saved_network(
    contents: Mapping[str, bytes],
    source: Callable[[str], str],
    load: str | None,
    code: Code | None,
    given: nn.Module | None,
    *,
    output_name: str | None = None,
    one_class: tuple[Sequence[int], int, str] | None = None,
    heads: bool = False,
) -> nn.Module:
    """The network in files that `save_weights` wrote, in eval mode.

    `contents` are the files by name, and `source` names one of them in errors. The network is built by `load` and its `code`, or is that of
    `train` for tables (load=None), or a copy of the `given` one. With `output_name` it has only this output, with `one_class` (the columns
    of the classes, the position of one of them, the kind of output) the margin of a class, and with `heads` those of the repair.
    """
    network = _network_inside(contents, source, load, code, given)
    if output_name is not None:
        network = OneOutput(network, output_named(output_name)).eval()
    if one_class is not None:
        network = OneClass(network, *one_class).eval()
    return load_heads(network, source(HEADS_FILE), contents[HEADS_FILE]) if heads else network


def _network_inside(
    contents: Mapping[str, bytes], source: Callable[[str], str], load: str | None, code: Code | None, given: nn.Module | None
) -> nn.Module:
    if ORIGINAL_ONNX in contents:
        graph = onnx_file_and_output(load or "")
        file = OnnxNetwork(contents[ORIGINAL_ONNX], source(ORIGINAL_ONNX), graph[1] if graph else None)
        state = safetensors_in(contents[REPAIRED_WEIGHTS], source(REPAIRED_WEIGHTS))
        return fit_weights(rebuild(file), state, source(REPAIRED_WEIGHTS)).eval() if state else file
    if code is not None and code.is_program:
        return network_with(code.named, code, None, str(code.path))
    place = source(REPAIRED_WEIGHTS)
    state = safetensors_in(contents[REPAIRED_WEIGHTS], place)
    if given is not None:
        return fit_weights(copy.deepcopy(given), state, place).eval()
    if load is not None:
        return network_with(load, code, state, place)
    first = state.get("linears.0.weight")
    if first is None or first.ndim != 2:
        raise BadInput(f"{place} does not hold the weights of the network that eq.train builds. Copy the folder again, or repair again.")
    depth = sum(key.startswith("linears.") and key.endswith(".weight") for key in state) - 1
    return fit_weights(MLP(first.shape[1], first.shape[0], depth), state, place).eval()


def _head_weights(heads: Around) -> dict[str, Tensor]:
    return {
        key: value.detach().cpu().contiguous().clone() for key, value in heads.state_dict().items() if not key.startswith(NETWORK_PREFIX)
    }


def load_heads(network: nn.Module, path: str | Path, content: bytes | None = None) -> Around:
    """The network with the heads in a file around it, in eval mode; an error if the file does not fit the network.

    `content` is the file's, if it was read before.
    """
    from safetensors.torch import load

    if content is None:
        advice = "Without it the network is not repaired. Name the file that was written next to the weights."
        content = file_content(Path(path), advice)
    try:
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        plain = json.loads(header["__metadata__"]["heads"])
        state = load(content)
        layers = plain["layers"]
        heads = HEAD_KINDS[plain["kind"]].from_dict(network, plain)
    except BadInput:
        raise
    except Exception as error:  # another file, or a damaged one: safetensors, JSON and torch each raise their own
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise BadInput(f"{path} does not contain the heads of a network: {reason}. Use the file that Equipoise wrote.") from error
    names = {name for name, _ in network.named_modules()}
    problems = [f"the heads read the input of the layer {name!r}, which this network does not have" for name in layers if name not in names]
    problems += misfits(_head_weights(heads), state)
    raise_all(problems, f"{path}, heads for a network")
    heads.load_state_dict(state, strict=False)  # the network inside already has its weights
    return heads.eval()


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Replaces the errors of torch and safetensors, if a file cannot be written, by one error that names the file."""
    try:
        yield
    except EquipoiseError:
        raise
    except OSError as error:
        error.filename = error.filename or str(path)
        raise
    except Exception as error:  # each library raises its own
        match = re.search(r"\(os error (\d+)\)", str(error))
        code = int(match[1]) if match else errno.ENOSPC
        if match or shutil.disk_usage(path.parent).free < 2**20:
            raise OSError(code, os.strerror(code), str(path)) from error
        raise BadInput(f"cannot write {path}: {first_line(error)}. Choose another place.") from error


class _Served(nn.Module):
    """The network's output and, with a threshold, the score and the decision (in double precision, as in the decision rule).

    A network around an ONNX file is a function of the rows and of the file's output for them.
    """

    def __init__(self, network: nn.Module, threshold: float | None, probability: bool) -> None:
        super().__init__()
        self.network, self.threshold, self.probability = network, threshold, probability

    def forward(self, x: Tensor, of_graph: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor, Tensor]:
        graph = onnx_in(self.network)
        if graph is not None:
            graph.given = of_graph
        raw: Tensor = self.network(x)
        if graph is not None:
            graph.given = None
        if self.threshold is None:
            return raw
        score = raw.reshape(x.shape[0]).double()
        score = score if self.probability else torch.sigmoid(score)
        return raw, score, (score >= self.threshold).to(torch.int64)


def to_onnx(model: nn.Module, sample: Tensor, path: str | Path, threshold: float | None = None, *, output: str = "logit") -> Exported:
    """Writes an ONNX file with one input, `input`, for any number of rows, and returns its largest difference from torch on the sample.

    sample: rows of inputs to trace the network with and to compare on.
    threshold: with one, the file also returns `score` (the sigmoid of the output, if that is a logit) and `decision` (0 or 1).
    output: what the network returns, logit or probability.

    Raises ExportFailed if an operator has no ONNX counterpart.
    """
    programs.require_onnx(("onnx", "onnxscript", "onnxruntime"), "writing and checking an ONNX file")
    path = Path(path)
    names = ["output"] if threshold is None else ["output", "score", "decision"]
    few = sample[: min(len(sample), 3)]
    few = torch.cat([few, few]) if len(few) < 2 else few  # the exporter treats an axis of length 1 as fixed
    model, few = copy.deepcopy(model).cpu(), few.cpu()
    served, graph = _Served(model, threshold, output == "probability"), onnx_in(model)
    try:
        if graph is None:
            large = sum(value.numel() * value.element_size() for value in weights_of(model).values()) > ONE_FILE
            program = _program(served, {"input": few}, names)
            with quiet():
                program.save(str(path), external_data=large)
            opset = int(program.model.opset_imports.get("", 0))
        else:  # the user's ONNX file and the modules around it as one file
            if not graph.content:
                raise ValueError("a session of onnxruntime cannot be written; give the file: eq.debias('net.onnx', ...)")
            if graph.rows is not None:
                raise ValueError(f"{graph.source} takes batches of exactly {graph.rows} rows; export it with a dynamic first axis")
            program = _program(served, {"input": few, RAW_INPUT: graph.raw(few)}, names)
            with quiet():
                opset = _write_merged(graph, program.model_proto, path)
    except OSError:
        raise
    except Exception as error:  # the exporter runs a network of any kind through four libraries, which raise their own errors
        for leftover in (path, path.with_name(f"{path.name}.data")):
            leftover.unlink(missing_ok=True)
        what = "the network cannot be written as ONNX" if graph is None else "the repaired model cannot be written as one ONNX file"
        raise ExportFailed(f"{what}: {_root_cause(error)}") from error
    try:
        session = programs.open_session(str(path), str(path))
        written = torch.from_numpy(session.run(["output"], {"input": sample.cpu().numpy()})[0]).reshape(-1).double()
    except Exception as error:  # onnxruntime raises its own, one per status code
        path.unlink(missing_ok=True)
        raise ExportFailed(f"onnxruntime cannot run the ONNX file: {_root_cause(error)}") from error
    with evaluating(model), torch.no_grad():
        expected = as_matrix(model(sample.cpu()), len(sample)).reshape(-1).double()  # one output per row, or several
    return Exported(path, float((written - expected).abs().max()), float(expected.abs().max()), opset, len(sample))


def _program(module: nn.Module, inputs: Mapping[str, Tensor], names: list[str]) -> "torch.onnx.ONNXProgram":
    """The module as an ONNX program for any number of rows, without the exporter's metadata."""
    with evaluating(module), torch.no_grad(), quiet():
        program = torch.onnx.export(
            module,
            tuple(inputs.values()),
            dynamo=True,
            dynamic_shapes=tuple({0: torch.export.Dim.DYNAMIC} for _ in inputs),
            input_names=list(inputs),
            output_names=names,
            verbose=False,
        )
    assert program is not None  # dynamo always returns one
    model: Any = program.model  # whose metadata names folders of this machine for every node
    parts = [model]
    for graph in (model.graph, *model.functions.values()):
        parts += [graph, *graph.inputs, *getattr(graph, "initializers", {}).values()]
        for node in graph.all_nodes():  # including those of subgraphs
            parts += [node, *node.outputs]
    for part in parts:
        part.doc_string = None
        part.metadata_props.clear()
    return program


def _write_merged(network: OnnxNetwork, around: Any, path: Path) -> int:
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
    original = compose.add_prefix(original, GRAPH_PREFIX)
    rows, original_input = around.graph.input[0], original.graph.input[0]
    cast = helper.make_node("Cast", [rows.name], [original_input.name], to=original_input.type.tensor_type.elem_type)
    connect = helper.make_node("Identity", [f"{GRAPH_PREFIX}{network.which}"], [around.graph.input[1].name])
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


def _root_cause(error: BaseException) -> str:
    """The first line of the innermost error, which names the operator; the outer ones only describe how to report a bug."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    message = " ".join(lines[:2]) if lines and lines[0].endswith(":") else (lines or [""])[0]
    return f"{type(error).__name__}: {message[:400]}"
