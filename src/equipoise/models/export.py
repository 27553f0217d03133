"""Files of a repaired network: weights under the original keys, safetensors, and ONNX that is checked against torch.

Keys and shapes are those of the original, with one exception: switching off single units of a convolution adds a mask to its weights,
`<layer>.unit_mask`. `MASKED_LOADING` are the five lines that load such weights with only torch; in ONNX the mask is a constant. What a
repair puts around a network (BiasScore, or Recalibrated where no layer can hold the map) has a file of its own, `HEADS`: the structure as
JSON in its metadata, the numbers as tensors. `load_heads` puts it around the network again; in ONNX it is included.
"""

import copy
import errno
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from equipoise.errors import BadInput, EquipoiseError, MissingExtra, first_line, raise_all
from equipoise.models.exported import PROGRAM, program_in, quiet, save_exported, weights_of
from equipoise.models.heads import BiasScore, Recalibrated
from equipoise.models.many_outputs import WRAPPED, as_matrix
from equipoise.models.onnx_network import ORIGINAL_ONNX, RAW, AroundOnnx, OnnxNetwork, check_mergeable, onnx_in, write_merged
from equipoise.models.score import evaluating
from equipoise.models.units import MASK
from equipoise.models.weights import Checkpoint, bare, prefix_of

TOLERANCE = 1e-5  # relative to the largest output, or to 1 if that is larger
HEADS = "heads.safetensors"  # next to the weights of a network with heads
Around = BiasScore | Recalibrated  # what a repair may put around a network
KINDS: dict[str, type[BiasScore] | type[Recalibrated]] = {"bias-score": BiasScore, "recalibrated": Recalibrated}
INSIDE = "network."  # prefix of the keys of the network inside the heads
ONE_FILE = 2**30  # bytes; the weights of a larger network go into a second file next to the ONNX file
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
    largest: float  # output in absolute value
    opset: int
    rows: int

    @property
    def agrees(self) -> bool:
        """Whether the difference is within rounding."""
        return self.max_difference <= TOLERANCE * max(1.0, self.largest)


def state_like(original: Mapping[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """The network's weights under the keys, in the order and with the prefix of the original's. Masks of convolutions come last.

    Heads around the network are not included: `heads_of` returns them, and `save_weights` writes them to their own file.

    >>> list(state_like({"module.weight": torch.ones(1, 2), "module.bias": torch.ones(1)}, nn.Linear(2, 1)))
    ['module.weight', 'module.bias']
    """
    own = {key: value.detach().cpu().contiguous().clone() for key, value in _unwrapped(original, model).items()}
    prefix = state_prefix(original, model)
    wanted = {key: key.removeprefix(prefix) for key in original}
    masks = {f"{prefix}{key}": own[key] for key in own if key.endswith(MASK) and key not in wanted.values()}
    problems = [f"the repaired network has no weights for {key!r}" for key in original if wanted[key] not in own]
    problems += [
        f"{key!r} was {tuple(original[key].shape)} and is now {tuple(own[wanted[key]].shape)}"
        for key in original
        if wanted[key] in own and own[wanted[key]].shape != original[key].shape
    ]
    problems += [f"{key!r} is not among the original weights" for key in own.keys() - set(wanted.values()) if f"{prefix}{key}" not in masks]
    raise_all(problems, "weights to write")
    return {key: own[name] for key, name in wanted.items()} | masks


def state_prefix(original: Mapping[str, Tensor], model: nn.Module) -> str:
    """The prefix of the original's keys that the network's keys lack, such as `module.`; empty if there is none."""
    return prefix_of(original, _unwrapped(original, model))


def _unwrapped(original: Mapping[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    heads = heads_of(model, original)
    own = weights_of(model if heads is None else heads.network)
    while own and all(key.startswith(WRAPPED) for key in own) and not any(bare(key).startswith(WRAPPED) for key in original):
        own = {key.removeprefix(WRAPPED): value for key, value in own.items()}
    return own


def heads_of(model: nn.Module, original: Mapping[str, Tensor] | None = None) -> Around | None:
    """The heads that a repair has put around a network, with the network inside; None for heads that the original already had."""
    if not isinstance(model, Around):
        return None
    came = {bare(key) for key in original or ()}
    return None if came >= model.state_dict().keys() else model


def plain_weights(model: nn.Module, came: Checkpoint | None = None) -> Mapping[str, Tensor]:
    """The original weights or, without a checkpoint, those of the network without heads."""
    if came is not None:
        return came.state
    heads = heads_of(model)
    return weights_of(model if heads is None else heads.network)


def masks_in(state: Mapping[str, Tensor]) -> list[str]:
    """The names of the layers that have a mask among these weights."""
    return [key.removesuffix(MASK) for key in state if key.endswith(MASK)]


def save_weights(model: nn.Module, folder: Path, came: Checkpoint | None = None) -> list[Path]:
    """Writes `repaired.safetensors`, and a file of the original's kind: `repaired.pt` with the same nesting, or `repaired.pt2`.

    Heads around the network go into `heads.safetensors`. Returns the paths.
    """
    from safetensors.torch import save_file

    original = plain_weights(model, came)
    state = state_like(original, model)
    plain = folder / "repaired.safetensors"
    with writing(plain):
        save_file(state, plain)
    written = [plain]
    if (graph := onnx_in(model)) is not None:
        if not graph.content:
            raise BadInput("a session of onnxruntime cannot be saved. Give the file that it was made of, 'net.onnx', in its place.")
        written.append(folder / ORIGINAL_ONNX)
        with writing(written[-1]):
            written[-1].write_bytes(graph.content)
    if program := program_in(model):
        written.append(folder / f"repaired{PROGRAM}")
        with writing(written[-1]):
            save_exported(program, written[-1])
    elif came is not None and came.whole is not None:
        written.append(folder / "repaired.pt")
        whole = state if came.under is None else {**_as_dict(came.whole), came.under: state}
        with writing(written[-1]):
            torch.save(whole, written[-1])
    if heads := heads_of(model, original):
        written.append(folder / HEADS)
        with writing(written[-1]):
            save_file(_head_weights(heads), written[-1], {"format": "pt", "heads": json.dumps(heads.to_dict())})
    return written


def _head_weights(heads: Around) -> dict[str, Tensor]:
    return {key: value.detach().cpu().contiguous().clone() for key, value in heads.state_dict().items() if not key.startswith(INSIDE)}


def load_heads(network: nn.Module, path: str | Path) -> Around:
    """The network with the heads in a file around it, in eval mode; an error if the file does not fit the network."""
    path = Path(path)
    if not path.is_file():
        raise BadInput(f"no such file: {path}. Without it the network is not repaired. Name the file that was written next to the weights.")
    return heads_in(network, path.read_bytes(), str(path))


def heads_in(network: nn.Module, content: bytes, path: str) -> Around:
    """The network with the heads in the bytes of a file around it."""
    from safetensors.torch import load

    try:
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        plain = json.loads(header["__metadata__"]["heads"])
        state = load(content)
        layers = plain["layers"]
        found = KINDS[plain["kind"]].from_dict(network, plain)
    except BadInput:
        raise
    except Exception as error:  # another file, or a damaged one: safetensors, JSON and torch each raise their own
        reason = first_line(error)
        raise BadInput(
            f"{path} does not contain the heads of a network: {type(error).__name__}: {reason}. Use the file that Equipoise wrote."
        ) from error
    there = {name for name, _ in network.named_modules()}
    problems = [f"the heads read the input of the layer {name!r}, which this network does not have" for name in layers if name not in there]
    wanted = _head_weights(found)
    problems += [f"{key!r} is missing" for key in wanted if key not in state] + [
        f"{key!r} fits nothing" for key in state if key not in wanted
    ]
    problems += [
        f"{key!r} is {tuple(state[key].shape)}, not {tuple(wanted[key].shape)}"
        for key in wanted
        if key in state and state[key].shape != wanted[key].shape
    ]
    raise_all(problems, f"{path}, heads for a network")
    found.load_state_dict(state, strict=False)  # the network inside already has its weights
    return found.eval()


def _as_dict(whole: object) -> dict[Any, Any]:
    assert isinstance(whole, dict)  # the weights were under one of its keys
    return whole


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Replaces what torch and safetensors raise when a file cannot be written by one error that names the file."""
    try:
        yield
    except EquipoiseError:
        raise
    except OSError as error:
        error.filename = error.filename or str(path)
        raise
    except Exception as error:  # each library raises its own
        code = int(found[1]) if (found := re.search(r"\(os error (\d+)\)", str(error))) else 0
        if code or shutil.disk_usage(path.parent).free < 2**20:
            raise OSError(code or errno.ENOSPC, os.strerror(code or errno.ENOSPC), str(path)) from error
        reason = first_line(error)
        raise BadInput(f"cannot write {path}: {reason}. Choose another place.") from error


class _Served(nn.Module):
    """The network's output and, with a threshold, the score and the decision (in double precision, as in the decision rule)."""

    def __init__(self, network: nn.Module, threshold: float | None, probability: bool) -> None:
        super().__init__()
        self.network, self.threshold, self.probability = network, threshold, probability

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor, Tensor]:
        raw: Tensor = self.network(x)
        if self.threshold is None:
            return raw
        score = raw.reshape(x.shape[0]).double()
        score = score if self.probability else torch.sigmoid(score)
        return raw, score, (score >= self.threshold).to(torch.int64)


def to_onnx(model: nn.Module, sample: Tensor, path: str | Path, threshold: float | None = None, *, output: str = "logit") -> Exported:
    """Writes an ONNX file with one input, `input`, for any number of rows, and returns how it compares with torch on the sample.

    The output of the network is `output`. With a threshold there are also `score` (the sigmoid of the output, if that is a logit) and
    `decision` (0 or 1). Raises ExportFailed if an operator has no ONNX counterpart.
    """
    require_onnx()
    path = Path(path)
    names = ["output"] if threshold is None else ["output", "score", "decision"]
    few = sample[: min(len(sample), 3)]
    few = torch.cat([few, few]) if len(few) < 2 else few  # the exporter treats an axis of length 1 as fixed
    model, few = copy.deepcopy(model).cpu(), few.cpu()
    own = onnx_in(model)
    if own is not None:
        return _checked(model, sample, path, _merged(model, own, few, path, threshold, names, output))
    large = sum(value.numel() * value.element_size() for value in weights_of(model).values()) > ONE_FILE
    try:
        program = _program(_Served(model, threshold, output == "probability"), {"input": few}, names)
        with quiet():
            program.save(str(path), external_data=large)
    except OSError:
        raise
    except Exception as error:  # the exporter runs a network of any kind through four libraries
        for leftover in (path, path.with_name(f"{path.name}.data")):
            leftover.unlink(missing_ok=True)
        raise ExportFailed(f"the network cannot be written as ONNX: {_root(error)}") from error
    return _checked(model, sample, path, program.model.opset_imports.get("", 0))


def _merged(model: nn.Module, own: OnnxNetwork, few: Tensor, path: Path, threshold: float | None, names: list[str], output: str) -> int:
    """Writes the user's ONNX file and what is around it as one, and returns its opset."""
    try:
        check_mergeable(own)
        program = _program(AroundOnnx(_Served(model, threshold, output == "probability")), {"input": few, RAW: own.raw(few)}, names)
        with quiet():
            return write_merged(own, program.model_proto, path)
    except OSError:
        raise
    except Exception as error:  # torch, onnx and its converter each raise their own
        path.unlink(missing_ok=True)
        raise ExportFailed(f"the repaired model cannot be written as one ONNX file: {_root(error)}") from error


def _program(module: nn.Module, inputs: Mapping[str, Tensor], names: list[str]) -> "torch.onnx.ONNXProgram":
    """The module as an ONNX program for any number of rows, without the exporter's metadata."""
    with evaluating(module), torch.no_grad(), quiet():
        found = torch.onnx.export(
            module,
            tuple(inputs.values()),
            dynamo=True,
            dynamic_shapes=tuple({0: torch.export.Dim.DYNAMIC} for _ in inputs),
            input_names=list(inputs),
            output_names=names,
            verbose=False,
        )
    assert found is not None  # dynamo always returns one
    _without_places(found.model)
    return found


def _without_places(model: Any) -> None:
    """Removes the exporter's metadata, which names folders of this machine for every node."""
    for part in (model, model.graph, *model.functions.values()):
        part.doc_string = None
        part.metadata_props.clear()
    for graph in (model.graph, *model.functions.values()):
        for node in graph.all_nodes():  # including those of subgraphs
            node.doc_string = None
            node.metadata_props.clear()
            for value in node.outputs:
                value.doc_string = None
                value.metadata_props.clear()
        for value in (*graph.inputs, *getattr(graph, "initializers", {}).values()):
            value.doc_string = None
            value.metadata_props.clear()


def require_onnx() -> None:
    """Raises an error with the pip command if a library for ONNX is not installed."""
    from importlib.util import find_spec

    lacking = [name for name in ("onnx", "onnxscript", "onnxruntime") if find_spec(name) is None]
    if lacking:
        raise MissingExtra(", ".join(lacking), "onnx", "writing and checking an ONNX file")


def _checked(model: nn.Module, sample: Tensor, path: Path, opset: int) -> Exported:
    import onnxruntime  # type: ignore[import-untyped]

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = torch.get_num_threads()
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        found = torch.from_numpy(session.run(["output"], {"input": sample.cpu().numpy()})[0]).reshape(-1).double()
    except Exception as error:  # onnxruntime has its own, one per status code
        path.unlink(missing_ok=True)
        raise ExportFailed(f"onnxruntime cannot run the ONNX file: {_root(error)}") from error
    with evaluating(model), torch.no_grad():
        expected = as_matrix(model(sample.cpu()), len(sample)).reshape(-1).double()  # one output per row, or several
    return Exported(path, float((found - expected).abs().max()), float(expected.abs().max()), opset, len(sample))


def _root(error: BaseException) -> str:
    """The first line of the innermost error, which names the operator; the outer ones say how to report a bug."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = " ".join(lines[:2]) if lines and lines[0].endswith(":") else (lines or [""])[0]
    return f"{type(error).__name__}: {said[:400]}"
