"""The network of an ONNX file rebuilt in torch, so that its weights can be repaired and its layers read.

onnxruntime runs a graph without gradients. Here its convolutions, linear layers and normalisations become torch's layers with the file's
weights, named after their nodes; everything else is a function. Integers (shapes, axes, indices) are numbers of Python, so that a reshape
that was computed from the number of rows holds for any number of them. The rebuilt network is used only where its outputs equal those of
onnxruntime on rows of the repair set, and an operator that is not known here is an error that names it.

The library onnx2torch (1.5.15, of 2024) was tried first: of nine small and common networks it converted two multilayer perceptrons and the
chest X-ray network that this was built for, which could then not be exported again; it knows operators up to the versions of 2022.
"""

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from equipoise.data import Images
from equipoise.errors import BadInput
from equipoise.models.programs import OnnxNetwork, onnx_in, quiet
from equipoise.models.score import evaluating, modules_of

EQUAL = 1e-4  # largest difference from onnxruntime, relative to the largest output, or to 1 if that is larger
ROWS_COMPARED = 32
LEAVE_WEIGHTS = "Use a method that leaves the weights as they are (bias-score, level-up, group-thresholds)"
Function = Callable[..., Any]  # of the values of a node's inputs: tensors, or arrays of Python's integers
Attributes = dict[str, Any]
Constant = Callable[[int], "np.ndarray[Any, Any] | None"]  # the value of an input that does not depend on the rows


class BatchNorm(nn.modules.batchnorm._BatchNorm):
    """Batch normalisation of any number of axes."""

    def _check_input_dim(self, input: Tensor) -> None: ...


class RebuiltNetwork(nn.Module):
    """An ONNX graph as a module with weights: rows in, the chosen output of the graph out."""

    def __init__(self, file: OnnxNetwork) -> None:
        super().__init__()
        self.content, self.source, self.which, self.output = file.content, file.source, file.which, file.output
        self._select, self.input = file.select_output, file.input
        self._steps: list[tuple[Function | str, tuple[str, ...], tuple[str, ...]]] = []  # function or layer, inputs, outputs
        self._integers: dict[str, np.ndarray[Any, Any]] = {}
        self._stored: dict[str, str] = {}  # the parameter or buffer of a constant

    def store(self, name: str, value: "np.ndarray[Any, Any]", trained: bool) -> None:
        """Keeps a constant: weights as a parameter, other floating-point numbers as a buffer, and integers as they are."""
        if value.dtype.kind in "iub":
            self._integers[name] = value.astype(object) if value.dtype.kind != "b" else value
            return
        own = self._stored[name] = f"constant_{len(self._stored)}"
        tensor = torch.from_numpy(np.array(value, np.float32))
        if trained and tensor.numel() > 1:
            self.register_parameter(own, nn.Parameter(tensor))
        else:
            self.register_buffer(own, tensor, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        values: dict[str, Any] = {**self._integers, **{name: getattr(self, own) for name, own in self._stored.items()}}
        values |= {"": None, self.input: x.float()}
        last = {name: at for at, (_, inputs, _) in enumerate(self._steps) for name in inputs}
        for at, (call, inputs, outputs) in enumerate(self._steps):
            found = (self.get_submodule(call) if isinstance(call, str) else call)(*(values[name] for name in inputs))
            values.update(zip(outputs, found if isinstance(found, (tuple, list)) else (found,), strict=False))
            for name in inputs:
                if last[name] == at and name not in ("", self.which):
                    del values[name]  # the memory of one layer at a time, where no gradient needs it
                    last[name] = -1  # an input may be named twice
        return self._select(values[self.which])


def rebuilt_in(model: nn.Module) -> RebuiltNetwork | None:
    """The rebuilt network that a network is or wraps, if any."""
    return next(iter(modules_of(model, RebuiltNetwork).values()), None)


def with_weights(model: nn.Module, inputs: Tensor | Images) -> nn.Module:
    """The network; or, around an ONNX file, the same with the file rebuilt in torch, which is compared on some of these inputs.

    Raises `BadInput` if an operator is not known, or if the outputs are not equal.
    """
    file = onnx_in(model)
    if file is None:
        return model
    new, few = rebuild(file), inputs[:ROWS_COMPARED]
    with evaluating(new), torch.no_grad():
        expected, found = file(few).double(), new(few).double()
    largest = max(1.0, float(expected.abs().max())) if len(few) else 1.0
    if found.shape != expected.shape or not bool(((found - expected).abs() <= EQUAL * largest).all()):
        apart = "their shapes differ" if found.shape != expected.shape else f"they differ by {float((found - expected).abs().max()):.2g}"
        raise BadInput(
            f"the network rebuilt from {file.source} must return what onnxruntime does; {apart} on {len(few)} rows. {LEAVE_WEIGHTS}, or "
            "give the network itself (--model file.py:factory)."
        )
    if model is file:
        return new
    model = copy.deepcopy(model)
    parent, _, own = next(iter(modules_of(model, OnnxNetwork))).rpartition(".")
    setattr(model.get_submodule(parent), own, new)
    return model


def rebuild(file: OnnxNetwork) -> RebuiltNetwork:
    """The graph of an ONNX file in torch, in eval mode; `BadInput` names the first operator that is not known."""
    import onnx
    from onnx import inliner, numpy_helper

    if not file.content:
        raise BadInput(f"a session of onnxruntime holds no weights to repair. {LEAVE_WEIGHTS}, or give the file, 'net.onnx', in its place.")
    with quiet():
        model = onnx.load_model_from_string(file.content)
        if model.functions:
            model = inliner.inline_local_functions(model)
    version = next((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), 1)
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    weights, new = set(constants), RebuiltNetwork(file)
    readers: dict[str, list[Any]] = {}
    for node in model.graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    skipped: dict[str, str] = {}  # outputs of additions that became the bias of a layer, and what they are equal to
    for number, node in enumerate(model.graph.node):
        given = {attribute.name: _attribute_value(onnx.helper.get_attribute_value(attribute), numpy_helper) for attribute in node.attribute}
        if node.op_type == "Constant" and not node.domain:
            constants[node.output[0]] = np.asarray(next(iter(given.values())))
            continue
        if node.op_type == "Identity" and not node.domain and node.input[0] in constants:  # weights that are used twice
            constants[node.output[0]] = constants[node.input[0]]
            weights |= {node.output[0]} if node.input[0] in weights else set()
            continue
        if node.output[0] in skipped:
            new._steps.append((_same, (skipped[node.output[0]],), (node.output[0],)))
            continue
        inputs = list(node.input)
        constant = lambda at, inputs=inputs: constants.get(inputs[at]) if at < len(inputs) else None  # noqa: E731
        given |= {"opset": version, "rows": file.rows, "outputs": len(node.output)}
        name = (node.name or f"{node.op_type}_{number}").strip("/").replace(".", "_")
        name = name if name and not hasattr(new, name) else f"{name}_{number}"
        try:
            if node.domain not in ("", "ai.onnx"):
                raise _Unknown(f"of {node.domain}")
            layer = LAYERS[node.op_type](given, constant) if node.op_type in LAYERS else None
            if layer is not None:
                if node.op_type == "MatMul":
                    _take_bias(layer, node, readers, constants, skipped)
                if (pads := _pads_before(node.op_type, given)) is not None:
                    new._steps.append((pads, (inputs[0],), (f"{name}/padded",)))
                    inputs[0] = f"{name}/padded"
                new.add_module(name, layer)
                new._steps.append((name, (inputs[0],), tuple(node.output[:1])))
                continue
            function = FUNCTIONS[node.op_type](given, constant)
        except (KeyError, _Unknown) as error:
            why = f" {error}" if isinstance(error, _Unknown) else ""
            raise BadInput(
                f"{file.source} cannot be rebuilt in torch to repair its weights: the operator {node.op_type}{why} (node {node.name!r}) is "
                f"not supported. {LEAVE_WEIGHTS}, or give the network itself (--model file.py:factory)."
            ) from None
        new._steps.append((function, tuple(inputs), tuple(node.output)))
    needed = {name for _, inputs, _ in new._steps for name in inputs} & constants.keys()
    for name in sorted(needed):
        new.store(name, constants[name], name in weights)
    return new.eval()


class _Unknown(Exception):
    """A form of an operator that is not supported; the text says which."""


def _attribute_value(value: Any, numpy_helper: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode()
    return numpy_helper.to_array(value) if hasattr(value, "dims") and hasattr(value, "data_type") else value


# Layers: with weights from the file, of one input


def _convolution(given: Attributes, constant: Constant) -> nn.Module:
    weight, bias = constant(1), constant(2)
    if weight is None or not 3 <= weight.ndim <= 5:
        raise _Unknown("without constant weights of 1 to 3 dimensions")
    kind = cast(Any, {3: nn.Conv1d, 4: nn.Conv2d, 5: nn.Conv3d}[weight.ndim])
    dims, groups = weight.ndim - 2, given.get("group", 1)
    before, after = _pads(given, dims)
    how = {"stride": tuple(given.get("strides", [1] * dims)), "dilation": tuple(given.get("dilations", [1] * dims)), "groups": groups}
    given["kernel_shape"] = weight.shape[2:]
    padding = tuple(before) if before == after and not _same_size(given) else 0
    layer = kind(weight.shape[1] * groups, weight.shape[0], weight.shape[2:], padding=padding, bias=bias is not None, **how)
    return _with_parameters(layer, weight, bias)


def _gemm(given: Attributes, constant: Constant) -> nn.Module | None:
    weight, bias = constant(1), constant(2)
    if weight is None or given.get("transA") or weight.ndim != 2:
        return None
    weight = (weight if given.get("transB") else weight.T) * np.float32(given.get("alpha", 1.0))
    if bias is not None:
        bias = np.broadcast_to(bias.reshape(-1), weight.shape[:1]) * np.float32(given.get("beta", 1.0))
    return _with_parameters(nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None), weight, bias)


def _product(_given: Attributes, constant: Constant) -> nn.Module | None:
    weight = constant(1)
    if weight is None or weight.ndim != 2:
        return None
    return _with_parameters(nn.Linear(weight.shape[0], weight.shape[1], bias=False), weight.T, None)


def _batch_normalization(given: Attributes, constant: Constant) -> nn.Module:
    scale, shift, mean, variance = (constant(at) for at in range(1, 5))
    if scale is None or shift is None or mean is None or variance is None or given["outputs"] > 1 or given.get("training_mode"):
        raise _Unknown("in training mode, or without constant weights")
    layer = BatchNorm(len(scale), eps=given.get("epsilon", 1e-5), momentum=1 - given.get("momentum", 0.9))
    with torch.no_grad():
        cast(Tensor, layer.running_mean).copy_(torch.tensor(mean))
        cast(Tensor, layer.running_var).copy_(torch.tensor(variance))
    return _with_parameters(layer, scale, shift)


def _layer_norm(given: Attributes, constant: Constant) -> nn.Module:
    scale, shift = constant(1), constant(2)
    if scale is None or (given.get("axis", -1) not in (-1, -scale.ndim)) or given["outputs"] > 1:
        raise _Unknown("without a constant scale of the last axes")
    layer = nn.LayerNorm(scale.shape, eps=given.get("epsilon", 1e-5), bias=shift is not None)
    return _with_parameters(layer, scale, shift)


def _with_parameters(layer: Any, weight: "np.ndarray[Any, Any]", bias: "np.ndarray[Any, Any] | None") -> nn.Module:
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(np.array(weight, np.float32)))
        if bias is not None:
            layer.bias.copy_(torch.from_numpy(np.array(bias, np.float32)))
    return cast(nn.Module, layer)


def _take_bias(layer: Any, node: Any, readers: Mapping[str, list[Any]], constants: Mapping[str, Any], skipped: dict[str, str]) -> None:
    """Makes an addition of a constant, if it alone reads a product with weights, the bias of the linear layer."""
    following = readers.get(node.output[0], [])
    if len(following) != 1 or following[0].op_type != "Add":
        return
    bias = next((constants[name] for name in following[0].input if name in constants), None)
    if bias is not None and bias.shape == (layer.out_features,):
        layer.bias = nn.Parameter(torch.from_numpy(np.array(bias, np.float32)))
        skipped[following[0].output[0]] = node.output[0]


LAYERS: dict[str, Callable[[Attributes, Constant], nn.Module | None]] = {
    "Conv": _convolution,
    "Gemm": _gemm,
    "MatMul": _product,
    "BatchNormalization": _batch_normalization,
    "LayerNormalization": _layer_norm,
}

# Padding


def _pads(given: Attributes, dims: int) -> tuple[list[int], list[int]]:
    """The padding before and after each dimension."""
    pads = list(given.get("pads", [0] * 2 * dims)) if given.get("auto_pad", "NOTSET") in ("NOTSET", "") else [0] * 2 * dims
    return pads[:dims], pads[dims:]


def _same_size(given: Attributes) -> bool:
    return str(given.get("auto_pad", "")).startswith("SAME")


def _pads_before(kind: str, given: Attributes) -> Function | None:
    """The padding of a convolution that its layer cannot do itself: of different lengths on both sides, or as the size requires."""
    if kind != "Conv":
        return None
    before, after = _pads(given, len(given["kernel_shape"]))
    if before == after and not _same_size(given):
        return None
    return lambda x: F.pad(x, _lengths(given, x.shape[2:]))


def _lengths(given: Attributes, size: Sequence[int]) -> list[int]:
    """The padding of the last dimensions, as torch takes it: the last first, before and after."""
    dims = len(given["kernel_shape"])
    before, after = _pads(given, dims)
    if _same_size(given):
        steps, spread = given.get("strides", [1] * dims), given.get("dilations", [1] * dims)
        total = [
            max(0, (math.ceil(n / s) - 1) * s + (k - 1) * d + 1 - n)
            for n, s, k, d in zip(size, steps, given["kernel_shape"], spread, strict=True)
        ]
        before = [(t + 1) // 2 if given["auto_pad"] == "SAME_LOWER" else t // 2 for t in total]
        after = [t - b for t, b in zip(total, before, strict=True)]
    return [length for pair in zip(reversed(before), reversed(after), strict=True) for length in pair]


def _max_pool(given: Attributes, _constant: Constant) -> Function:
    dims = len(given["kernel_shape"])
    pool: Any = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}[dims]
    if given["outputs"] > 1:
        raise _Unknown("with indices")
    how = {"stride": given.get("strides", [1] * dims), "dilation": given.get("dilations", [1] * dims)}
    before, after = _pads(given, dims)
    if before == after and not _same_size(given):
        rest = {"padding": before, "ceil_mode": bool(given.get("ceil_mode")), **how}
        return lambda x: pool(x, list(given["kernel_shape"]), **rest)
    return lambda x: pool(F.pad(x, _lengths(given, x.shape[2:]), value=-math.inf), list(given["kernel_shape"]), **how)


def _average_pool(given: Attributes, _constant: Constant) -> Function:
    dims = len(given["kernel_shape"])
    pool: Any = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}[dims]
    before, after = _pads(given, dims)
    if before != after or _same_size(given) or any(step != 1 for step in given.get("dilations", [])):
        raise _Unknown("with different padding on both sides, or dilated")
    how = {"ceil_mode": bool(given.get("ceil_mode")), "count_include_pad": bool(given.get("count_include_pad"))}
    return lambda x: pool(x, list(given["kernel_shape"]), list(given.get("strides", [1] * dims)), before, **how)


# Functions


def _same(x: Any, *_rest: object) -> Any:
    return x


def _integers_like(value: Any, like: Tensor) -> Any:
    """Integers as a tensor on the device of another."""
    return torch.as_tensor(value.tolist(), device=like.device) if isinstance(value, np.ndarray) else value


def _each(on_tensors: Function, on_integers: Function | None = None) -> Callable[[Attributes, Constant], Function]:
    """A function of tensors by element; of integers, it is another one."""

    def call(*values: Any) -> Any:
        like = next((value for value in values if isinstance(value, Tensor)), None)
        if like is not None:
            return on_tensors(*(_integers_like(value, like) for value in values))
        if on_integers is None:
            return on_tensors(*(torch.as_tensor(value.tolist()) for value in values))
        return on_integers(*values)

    return lambda _given, _constant: call


def _axes(given: Attributes, constant: Constant, at: int = 1) -> list[int] | None:
    """Axes, which are an attribute or, in later versions, an input."""
    found = constant(at) if "axes" not in given else np.asarray(given["axes"])
    return None if found is None else [int(axis) for axis in found.reshape(-1)]


def _reduction(on_tensor: Callable[[Tensor, list[int], bool], Tensor], on_integers: Function | None = None) -> Any:
    def build(given: Attributes, constant: Constant) -> Function:
        axes, keep = _axes(given, constant), bool(given.get("keepdims", 1))

        def call(x: Any, *_rest: object) -> Any:
            if axes is None and given.get("noop_with_empty_axes"):
                return x
            if isinstance(x, np.ndarray):
                if on_integers is None:
                    raise TypeError("a reduction of integers")
                return np.asarray(on_integers(x, axis=None if axes is None else tuple(axes), keepdims=keep), object)
            return on_tensor(x, list(range(x.ndim)) if axes is None else axes, keep)

        return call

    return build


def _softmax(function: Function) -> Callable[[Attributes, Constant], Function]:
    def build(given: Attributes, _constant: Constant) -> Function:
        if given["opset"] >= 13:
            return lambda x: function(x, given.get("axis", -1))
        return lambda x: function(x.flatten(given.get("axis", 1)), -1).reshape(x.shape)  # of the axis and all after it

    return build


def _clip(given: Attributes, constant: Constant) -> Function:
    least, most = constant(1), constant(2)
    low = given.get("min") if least is None else float(least)
    high = given.get("max") if most is None else float(most)

    def call(x: Any, *rest: Any) -> Any:
        lower, upper = (*rest, None, None)[:2]
        return torch.clamp(x, lower if low is None else low, upper if high is None else high)

    return _same if low is high is None and constant(1) is constant(2) is None and given["opset"] < 11 else call


def _gelu(given: Attributes, _constant: Constant) -> Function:
    return lambda x: F.gelu(x, approximate=given.get("approximate", "none"))


def _flatten(given: Attributes, _constant: Constant) -> Function:
    axis = given.get("axis", 1)
    return lambda x: x.flatten(1) if axis == 1 else x.reshape(math.prod(x.shape[:axis]), -1)


def _reshape(given: Attributes, _constant: Constant) -> Function:
    def call(x: Any, shape: Any) -> Any:
        lengths = list(shape)
        if given["rows"] is not None and lengths and lengths[0] == given["rows"]:
            lengths[0] = x.shape[0]  # the number of rows that the file was exported with
        if not given.get("allowzero"):
            lengths = [x.shape[at] if isinstance(n, int) and n == 0 else n for at, n in enumerate(lengths)]
        return x.reshape(lengths)

    return call


def _shape(given: Attributes, _constant: Constant) -> Function:
    def call(x: Any) -> Any:
        lengths = list(x.shape)[given.get("start", 0) : given.get("end")]
        found = np.empty(len(lengths), object)
        for at, length in enumerate(lengths):
            found[at] = length
        return found

    return call


def _squeeze(given: Attributes, constant: Constant) -> Function:
    axes = _axes(given, constant)

    def call(x: Any, *_rest: object) -> Any:
        if isinstance(x, np.ndarray):
            return np.squeeze(x, None if axes is None else tuple(axes))
        return x.squeeze() if axes is None else x.squeeze(tuple(axes))

    return call


def _unsqueeze(given: Attributes, constant: Constant) -> Function:
    axes = _axes(given, constant)
    if axes is None:
        raise _Unknown("with axes that depend on the rows")

    def call(x: Any, *_rest: object) -> Any:
        if isinstance(x, np.ndarray):
            return np.expand_dims(x, tuple(axes))
        ends = sorted(axis % (x.ndim + len(axes)) for axis in axes)
        for axis in ends:
            x = x.unsqueeze(axis)
        return x

    return call


def _concat(given: Attributes, _constant: Constant) -> Function:
    def call(*values: Any) -> Any:
        like = next((value for value in values if isinstance(value, Tensor)), None)
        if like is None:
            return np.concatenate(values, given["axis"])
        return torch.cat([_integers_like(value, like) for value in values], given["axis"])

    return call


def _slice(given: Attributes, constant: Constant) -> Function:
    def call(x: Any, *rest: Any) -> Any:
        starts, ends, axes, steps = (*rest, *[None] * 4)[:4] if rest else (given["starts"], given["ends"], given.get("axes"), None)
        axes = range(len(starts)) if axes is None else axes
        where = [slice(None)] * x.ndim
        for at, axis in enumerate(axes):
            where[axis] = slice(starts[at], ends[at], None if steps is None else steps[at])
        return x[tuple(where)]

    if (steps := constant(4)) is not None and min(steps, default=1) < 1:
        raise _Unknown("backwards")
    return call


def _gather(given: Attributes, _constant: Constant) -> Function:
    axis = given.get("axis", 0)

    def call(x: Any, index: Any) -> Any:
        if isinstance(x, np.ndarray):
            return np.asarray(np.take(x, np.asarray(index, np.int64), axis), object)
        if isinstance(index, np.ndarray) and index.ndim == 0:
            return x.select(axis, int(index))
        where = _integers_like(index, x)
        where = torch.where(where < 0, where + x.shape[axis], where)
        return x.index_select(axis, where.reshape(-1)).reshape(*x.shape[:axis], *where.shape, *x.shape[axis:][1:])

    return call


def _split(given: Attributes, constant: Constant) -> Function:
    axis, sizes = given.get("axis", 0), given.get("split", constant(1))

    def call(x: Any, *_rest: object) -> Any:
        if sizes is None:
            return x.split(math.ceil(x.shape[axis] / given["outputs"]), axis)
        return x.split([int(n) for n in sizes], axis)

    return call


def _cast(given: Attributes, _constant: Constant) -> Function:
    kind = {1: torch.float32, 10: torch.float32, 11: torch.float32, 16: torch.float32, 6: torch.int32, 7: torch.int64, 9: torch.bool}
    if given["to"] not in kind:
        raise _Unknown(f"to type {given['to']}")
    to = kind[given["to"]]

    def call(x: Any) -> Any:
        if isinstance(x, np.ndarray):
            return torch.as_tensor(x.tolist(), dtype=to) if to.is_floating_point else x
        return x.to(to)

    return call


def _pad(given: Attributes, constant: Constant) -> Function:
    pads, value = given.get("pads", constant(1)), constant(2)
    mode = {"constant": "constant", "reflect": "reflect", "edge": "replicate"}.get(given.get("mode", "constant"))
    if pads is None or mode is None or constant(3) is not None:
        raise _Unknown("with lengths that depend on the rows, or for some axes only")
    dims = len(pads) // 2
    lengths = [int(n) for pair in zip(reversed(list(pads[:dims])), reversed(list(pads[dims:])), strict=True) for n in pair]
    while lengths and lengths[-2:] == [0, 0]:
        del lengths[-2:]
    fill = {"value": float(given.get("value", 0.0) if value is None else value)} if mode == "constant" else {}
    return lambda x, *_rest: F.pad(x, lengths, mode=mode, **fill)


def _filled_with(given: Attributes, _constant: Constant) -> Function:
    value = np.asarray(given.get("value", np.zeros(1, np.float32))).reshape(-1)[0]

    def call(shape: Any) -> Any:
        if np.issubdtype(type(value), np.integer):
            return np.full([int(n) for n in shape], int(value), object)
        return torch.full(list(shape), float(value))

    return call


def _whole_product(given: Attributes, _constant: Constant) -> Function:
    """A Gemm whose second matrix is not a weight."""

    def call(a: Tensor, b: Tensor, c: Tensor | None = None) -> Tensor:
        found: Tensor = given.get("alpha", 1.0) * ((a.T if given.get("transA") else a) @ (b.T if given.get("transB") else b))
        return found if c is None else found + given.get("beta", 1.0) * c

    return call


def _hard_sigmoid(given: Attributes, _constant: Constant) -> Function:
    slope, shift = given.get("alpha", 0.2), given.get("beta", 0.5)
    return lambda x: torch.clamp(slope * x + shift, 0.0, 1.0)


def _simple(function: Function) -> Callable[[Attributes, Constant], Function]:
    return lambda _given, _constant: function


def _spatial(x: Tensor) -> list[int]:
    return list(range(2, x.ndim))


FUNCTIONS: dict[str, Callable[[Attributes, Constant], Function]] = {
    "Abs": _each(torch.abs),
    "Add": _each(torch.add, np.add),
    "And": _each(torch.logical_and),
    "AveragePool": _average_pool,
    "Cast": _cast,
    "Ceil": _each(torch.ceil),
    "Celu": lambda given, _constant: lambda x: F.celu(x, given.get("alpha", 1.0)),
    "Clip": _clip,
    "Concat": _concat,
    "ConstantOfShape": _filled_with,
    "Cos": _each(torch.cos),
    "Div": _each(torch.div, np.floor_divide),
    "Dropout": _simple(_same),
    "Einsum": lambda given, _constant: lambda *values: torch.einsum(given["equation"], *values),
    "Elu": lambda given, _constant: lambda x: F.elu(x, given.get("alpha", 1.0)),
    "Equal": _each(torch.eq, np.equal),
    "Erf": _each(torch.erf),
    "Exp": _each(torch.exp),
    "Expand": _simple(lambda x, shape: x * torch.ones(list(shape), device=x.device, dtype=x.dtype)),
    "Flatten": _flatten,
    "Floor": _each(torch.floor),
    "Gather": _gather,
    "Gelu": _gelu,
    "Gemm": _whole_product,
    "GlobalAveragePool": _simple(lambda x: x.mean(_spatial(x), keepdim=True)),
    "GlobalMaxPool": _simple(lambda x: x.amax(_spatial(x), keepdim=True)),
    "Greater": _each(torch.gt, np.greater),
    "GreaterOrEqual": _each(torch.ge, np.greater_equal),
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": _simple(F.hardswish),
    "Identity": _simple(_same),
    "InstanceNormalization": lambda given, _constant: lambda x, w, b: F.instance_norm(x, weight=w, bias=b, eps=given.get("epsilon", 1e-5)),
    "LeakyRelu": lambda given, _constant: lambda x: F.leaky_relu(x, given.get("alpha", 0.01)),
    "Less": _each(torch.lt, np.less),
    "LessOrEqual": _each(torch.le, np.less_equal),
    "Log": _each(torch.log),
    "LogSoftmax": _softmax(torch.log_softmax),
    "MatMul": _each(torch.matmul),
    "Max": _each(lambda first, *rest: _chained(torch.maximum, first, rest)),
    "MaxPool": _max_pool,
    "Min": _each(lambda first, *rest: _chained(torch.minimum, first, rest)),
    "Mish": _simple(F.mish),
    "Mod": _each(torch.remainder, np.mod),
    "Mul": _each(torch.mul, np.multiply),
    "Neg": _each(torch.neg, np.negative),
    "Not": _each(torch.logical_not),
    "Or": _each(torch.logical_or),
    "PRelu": _simple(lambda x, slope: torch.where(x < 0, x * slope, x)),
    "Pad": _pad,
    "Pow": _each(torch.pow),
    "Reciprocal": _each(torch.reciprocal),
    "ReduceL2": _reduction(lambda x, axes, keep: x.square().sum(axes, keepdim=keep).sqrt()),
    "ReduceMax": _reduction(lambda x, axes, keep: x.amax(axes, keepdim=keep), np.max),
    "ReduceMean": _reduction(lambda x, axes, keep: x.mean(axes, keepdim=keep)),
    "ReduceMin": _reduction(lambda x, axes, keep: x.amin(axes, keepdim=keep), np.min),
    "ReduceProd": _reduction(lambda x, axes, keep: x.prod(axes[0], keepdim=keep), np.prod),
    "ReduceSum": _reduction(lambda x, axes, keep: x.sum(axes, keepdim=keep), np.sum),
    "Relu": _simple(F.relu),
    "Reshape": _reshape,
    "Selu": _simple(F.selu),
    "Shape": _shape,
    "Sigmoid": _simple(torch.sigmoid),
    "Sin": _each(torch.sin),
    "Slice": _slice,
    "Softmax": _softmax(torch.softmax),
    "Softplus": _simple(F.softplus),
    "Softsign": _simple(F.softsign),
    "Split": _split,
    "Sqrt": _each(torch.sqrt),
    "Squeeze": _squeeze,
    "Sub": _each(torch.sub, np.subtract),
    "Sum": _each(lambda first, *rest: _chained(torch.add, first, rest)),
    "Tanh": _simple(torch.tanh),
    "Tile": _simple(lambda x, repeats: x.repeat(list(repeats))),
    "Transpose": lambda given, _constant: lambda x: x.permute(given.get("perm", list(range(x.ndim))[::-1])),
    "Unsqueeze": _unsqueeze,
    "Where": _each(torch.where),
}


def _chained(function: Function, first: Any, rest: Sequence[Any]) -> Any:
    for value in rest:
        first = function(first, value)
    return first
