"""One ONNX file out of the user's own and what a repair put around it: score, decision, and the probes of a bias score.

The part around the file is exported by torch with the output of the file as a second input; then both graphs are joined. The user's graph
stays as it was, with a prefix before its names, converted to the version of the operators that torch writes.
"""

import copy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from equipoise.models.onnx_network import OnnxNetwork, onnx_in

PREFIX = "original/"  # before the names of the user's graph
RAW = "raw"  # the output of the user's graph, as the part around it takes it


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
