"""Networks by name: the architecture from a factory, a backbone or an exported program, the weights from a file that cannot run code."""

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from equipoise.data import ImageFolder, Transform, as_transform
from equipoise.errors import BadInput, raise_all
from equipoise.models.exported import PROGRAM, exported_in, exported_object
from equipoise.models.hugging_face import HuggingFaceNetwork, is_folder, load_hugging_face
from equipoise.models.many_outputs import OneOutput, output_named
from equipoise.models.onnx_network import OnnxNetwork, load_onnx, onnx_file_and_output
from equipoise.models.predictors import is_network, made_by
from equipoise.models.units import MASK, MASKED
from equipoise.models.user_code import Code, code_of, factory_in, own_folder, running
from equipoise.models.vision import BACKBONES, backbone
from equipoise.models.weights import bare, load_weights, prefix_of


def taken_in(subject: object) -> nn.Module | None:
    """The network that an object of torch, transformers or onnxruntime is, or that a file or folder holds; None if there is none."""
    if isinstance(subject, (str, Path)):
        return load_model(str(subject)) if includes_weights(str(subject)) or is_folder(str(subject)) else None
    if made_by(subject, "onnxruntime", "InferenceSession"):
        return OnnxNetwork(b"", "an ONNX session", session=subject)
    if not is_network(subject):
        return exported_object(subject)
    return HuggingFaceNetwork(subject) if made_by(subject, "transformers", "PreTrainedModel") else subject


def load_model(
    factory: str,
    weights: str | Path | None = None,
    *,
    output_name: int | str | None = None,
    code: Code | None = None,
    running: Callable[[Code | None], None] | None = None,
) -> nn.Module:
    """The network that `file.py:factory` or `package.module:factory` builds, with these weights, in eval mode.

    Also loads a backbone by name (`resnet-18`), an exported program (`net.pt2`) or an ONNX file (`net.onnx`), which include their weights,
    or a folder with an image classifier of transformers. Masks that pruning added to the weights of convolutions are applied.

    With `output_name`, the network has only that output. `code` is the factory's code, if it was read before. An exported program is a data
    file that contains code, so `running` is called with that code before it is run.
    """
    code = code or code_of(factory)
    if weights is not None and includes_weights(factory):
        raise BadInput(f"{factory} includes its weights. Omit {weights}.")
    state = None if weights is None else load_weights(weights)
    if running is not None and factory.endswith(PROGRAM):
        running(code)
    network = network_with(factory, code, state, str(weights))
    return network if output_name is None else OneOutput(network, output_named(str(output_name))).eval()


def load_network(
    model: str,
    weights: str | Path | None,
    images: ImageFolder,
    *,
    output_name: int | str | None = None,
    code: Code | None = None,
    running: Callable[[Code | None], None] | None = None,
) -> nn.Module:
    """The network of `load_model` for the rows of a file; raises an error if they are not the inputs it was trained on.

    That is so for a backbone without weights or images, and for torchxrayvision's networks if the pixels are not in their range.
    """
    if model in BACKBONES and (weights is None or images.folder is None):
        lacking = [name for name, value in (("--weights (weights=)", weights), ("--images (images=)", images.folder)) if value is None]
        raise BadInput(f"the model {model} is an untrained backbone for images; add {' and '.join(lacking)}")
    network = load_model(model, weights, output_name=output_name, code=code, running=running)
    normalised = images.normalise or images.preset or images.transform
    from_torchxrayvision = any(type(module).__module__.partition(".")[0] == "torchxrayvision" for module in network.modules())
    if images.folder is not None and not normalised and from_torchxrayvision:
        raise BadInput(
            "the network is one of torchxrayvision, which are trained on pixels from -1024 to 1024: add images.preset = "
            "torchxrayvision (--set images.preset=torchxrayvision) or images.normalise = xray; or unit if yours scales them itself"
        )
    return network


def includes_weights(factory: str) -> bool:
    """Whether a name is that of a file that contains the weights too: an exported program or an ONNX file."""
    return factory.endswith(PROGRAM) or onnx_file_and_output(factory) is not None


def network_with(factory: str, code: Code | None, state: Mapping[str, Tensor] | None, source: str) -> nn.Module:
    """The network that this code builds, with these weights, in eval mode; without code, the backbone of that name."""
    model = build(factory, state, code)
    if state is not None:  # weights of a network of transformers have the names of the inner module
        fit_weights(model.inner if isinstance(model, HuggingFaceNetwork) else model, state, source)
    return model.eval()


def build(factory: str, state: Mapping[str, Tensor] | None = None, code: Code | None = None) -> nn.Module:
    """The module that a factory without arguments returns. The factory is the user's own code and is run.

    A backbone gets as many channels as the weights in `state` have, or one.
    """
    code = code or code_of(factory)
    if (graph := onnx_file_and_output(factory)) is not None:
        return load_onnx(*graph)
    if code is None and is_folder(factory):
        return load_hugging_face(factory, weights=state is None)
    if code is None:
        kernels = next((value for key, value in (state or {}).items() if bare(key) == f"{BACKBONES[factory].first}.weight"), None)
        return backbone(factory, channels=1 if kernels is None or kernels.ndim < 2 else kernels.shape[1])
    if factory.endswith(PROGRAM):
        return exported_in(code.content, str(code.path))
    with own_folder(code):
        return _call_factory(factory_in(code), factory, code)


def _call_factory(function: object, factory: str, code: Code) -> nn.Module:
    if isinstance(function, nn.Module):
        return function
    if not callable(function):
        raise BadInput(f"{factory} is of type {type(function).__name__}. Name a function or class that returns a torch.nn.Module.")
    if arguments := _required_arguments(function):
        raise BadInput(f"{factory} needs the arguments {', '.join(arguments)}. Name a function without arguments that calls it.")
    with running(code):
        model = function()
    if not isinstance(model, nn.Module):
        raise BadInput(f"{factory} returned an object of type {type(model).__name__}. Return a torch.nn.Module.")
    return model


def load_transform(named: str, code: Code | None = None) -> Transform:
    """The transform that `file.py:name` names, with the checksum of its file: a callable, or the result of a function without arguments.

    This runs the user's code.
    """
    if not named.rpartition(":")[0]:
        raise BadInput(f"a transform is named as file.py:transform or package.module:transform; got {named!r}. Add the missing part.")
    code = code or code_of(named)
    assert code is not None  # a name with a colon is no backbone
    with own_folder(code):
        transform = factory_in(code)
        is_factory = inspect.isclass(transform) or (inspect.isfunction(transform) and not inspect.signature(transform).parameters)
        if is_factory and callable(transform) and not _required_arguments(transform):
            with running(code):
                transform = transform()
    return as_transform(transform, named, code.path, code.sha256)


def _required_arguments(function: Callable[..., object]) -> list[str]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # some classes written in C have no signature
        return []
    return [p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]


def fit_weights(model: nn.Module, weights: Mapping[str, Tensor], source: str) -> nn.Module:
    """The network with these weights and the masks among them; raises one error if they do not fit."""
    state = dict(weights)
    if prefix := prefix_of(state, model.state_dict()):
        state = {key.removeprefix(prefix): value for key, value in state.items()}
    _add_masks(model, state)
    expected = model.state_dict()
    shared = sorted(expected.keys() & state.keys())
    reshaped = [
        f"{key} {tuple(state[key].shape)}, not {tuple(expected[key].shape)}" for key in shared if expected[key].shape != state[key].shape
    ]
    problems = [
        f"{len(keys)} {what}: {', '.join(keys[:5])}{' ...' if len(keys) > 5 else ''}. Name the network that they were saved from."
        for what, keys in (
            ("weights of the network are not in the file", sorted(expected.keys() - state.keys())),
            ("weights in the file fit nothing in the network", sorted(state.keys() - expected.keys())),
            ("weights in the file have another shape than the network's", reshaped),
        )
        if keys
    ]
    complex_keys = [key for key in shared if state[key].is_complex() and not expected[key].is_complex()]
    if complex_keys:
        problems.append(f"{len(complex_keys)} weights in the file are complex and the network's are real: {', '.join(complex_keys[:5])}.")
    raise_all(problems, source)
    model.load_state_dict(state)
    return model


def _add_masks(model: nn.Module, state: dict[str, Tensor]) -> None:
    """Turns every convolution that has a mask among these weights into a masked one. Other masks appear in the error of `fit_weights`."""
    convolutions = {name: module for name, module in model.named_modules() if type(module) in MASKED}
    for key, mask in state.items():
        module = convolutions.get(key.removesuffix(MASK)) if key.endswith(MASK) else None
        if module is not None:
            module.__class__ = MASKED[type(module)]
            module.register_buffer("unit_mask", torch.ones_like(mask))
