"""Vision networks: torchvision backbones with a one-logit head, and adapters for networks that came with another shape.

The paper uses VGG-16 and ResNet-18; DenseNet-121 and SqueezeNet, which it names as missing, are here too.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from equipoise.errors import BadInput, pick
from equipoise.models.checkpoint import load_weights
from equipoise.models.torchvision_import import import_torchvision

BACKBONES: dict[str, tuple[str, str, str]] = {  # name: torchvision's name, its first convolution, the layer that gives the classes
    "resnet-18": ("resnet18", "conv1", "fc"),
    "vgg-16": ("vgg16", "features.0", "classifier.6"),
    "densenet-121": ("densenet121", "features.conv0", "classifier"),
    "squeezenet": ("squeezenet1_1", "features.0", "classifier.1"),
}


def backbone(name: str, *, channels: int = 1, weights: str | Path | None = None) -> nn.Module:
    """A torchvision network for images of so many channels that gives one logit a row.

    `weights` is a file with the backbone's own weights (safetensors or a torch state dict, for example torchvision's ImageNet ones, saved
    before): all but the last layer are taken; for one channel the first convolution's kernels are summed over its colours.
    """
    function, first, last = BACKBONES[pick("backbone", name, BACKBONES)]
    if channels < 1:
        raise BadInput(f"an image has at least one channel; got channels={channels}")
    network: nn.Module = getattr(import_torchvision().models, function)(weights=None)
    if weights is not None:
        _fill(network, load_weights(weights), last, str(weights))
    _replace(network, first, lambda layer: _with_channels(layer, channels))
    _replace(network, last, _with_one_output)
    network.output = "logit"  # type: ignore[assignment]
    return network


def _fill(network: nn.Module, state: dict[str, Tensor], last: str, source: str) -> None:
    """The network's weights from a state dict, whatever number of classes its last layer had."""
    body = {k: v for k, v in state.items() if not k.startswith(f"{last}.")}
    own = {k: v for k, v in network.state_dict().items() if not k.startswith(f"{last}.")}
    lacking = sorted(own.keys() - body.keys())
    misfits = sorted(k for k in own.keys() & body.keys() if own[k].shape != body[k].shape)
    if lacking or misfits:
        shown = ", ".join([*lacking, *misfits][:5])
        raise BadInput(
            f"{source} does not fit this backbone: {len(lacking)} weights are missing, {len(misfits)} differ in shape ({shown} ...)"
        )
    network.load_state_dict({k: body[k] for k in own}, strict=False)


def _with_channels(layer: nn.Module, channels: int) -> nn.Module:
    if not isinstance(layer, nn.Conv2d) or layer.in_channels == channels:
        return layer
    new = nn.Conv2d(
        channels,
        layer.out_channels,
        layer.kernel_size,  # type: ignore[arg-type]
        stride=layer.stride,  # type: ignore[arg-type]
        padding=layer.padding,  # type: ignore[arg-type]
        bias=layer.bias is not None,
    )
    with torch.no_grad():
        # The same answer for a gray image as the colour network gives for it in every channel.
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
    """Puts a changed layer where one of that name was."""
    parent, _, child = name.rpartition(".")
    holder = network.get_submodule(parent)
    holder.add_module(child, change(network.get_submodule(name)))  # takes the place of the old one, in its order


class OneOutput(nn.Module):
    """One output of a network with many, such as one of torchxrayvision's 18 pathologies.

    >>> OneOutput(nn.Linear(4, 3), "Effusion", names=["Edema", "Effusion", "Mass"])(torch.zeros(5, 4)).shape
    torch.Size([5])
    """

    def __init__(self, inner: nn.Module, which: int | str, *, names: Sequence[str] | None = None, output: str = "logit") -> None:
        super().__init__()
        known: Any = names if names is not None else getattr(inner, "pathologies", getattr(inner, "targets", None))
        if isinstance(which, str):
            if known is None:
                raise BadInput(f"the network does not name its outputs, so {which!r} cannot be found; give names=[...] or a number")
            which = [str(n) for n in known].index(pick("output of the network", which, [str(n) for n in known]))
        self.inner, self.which, self.output = inner, which, output

    def forward(self, x: Tensor) -> Tensor:
        raw: Tensor = self.inner(x)
        if raw.ndim != 2 or not -raw.shape[1] <= self.which < raw.shape[1]:
            raise BadInput(f"output {self.which} was asked of a network that returned shape {tuple(raw.shape)}; (rows, outputs) is needed")
        return raw[:, self.which]


class Repeated(nn.Module):
    """A network for colour images shown gray ones: the one channel is repeated."""

    def __init__(self, inner: nn.Module, channels: int = 3) -> None:
        super().__init__()
        self.inner, self.channels = inner, channels
        if isinstance(said := getattr(inner, "output", None), str):
            self.output = said

    def forward(self, x: Tensor) -> Tensor:
        shown: Tensor = self.inner(x.expand(-1, self.channels, *x.shape[2:]) if x.shape[1] == 1 else x)
        return shown
