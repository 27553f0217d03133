"""Methods repair networks of timm and MONAI without changes to them: convolutions, attention, dense blocks."""

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import nn

import equipoise as eq
from equipoise.models.vision import import_torchvision
from support.published import debias


def _timm_resnet() -> nn.Module:
    import_torchvision()  # which timm imports, and cannot where torch and torchvision were built for different devices
    timm = pytest.importorskip("timm")
    return timm.create_model("test_resnet", pretrained=False, in_chans=1, num_classes=1)


def _timm_vit() -> nn.Module:
    import_torchvision()
    timm = pytest.importorskip("timm")
    return timm.create_model("test_vit", pretrained=False, in_chans=1, num_classes=1, img_size=32, patch_size=8)


def _monai() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what it might use and does not find
        nets = pytest.importorskip("monai.networks.nets")
    return nets.DenseNet(spatial_dims=2, in_channels=1, out_channels=1, init_features=8, growth_rate=4, block_config=(2, 2))


@pytest.mark.parametrize("make", [_timm_resnet, _timm_vit, _monai])
def test_networks_of_other_libraries_are_repaired(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    parts = eq.split(eq.load("phantom", n=300, size=32), seed=0)
    model = eq.train(parts.train, parts.valid, seed=0, model=make(), settings=eq.Training(epochs=1, batch=32, learning_rate=1e-3))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    settings = {
        "bias-gda": {"epochs": 1, "learning_rate": 1e-4},
        "pruning": {"max_steps": 2},
        "constrained": {"epochs": 1},
        "bias-score": {"steps": 2},
    }
    for method, own in settings.items():
        found = debias(model, parts.valid, method=method, measure="eod", min_performance=0.0, **own)
        assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
        again = eq.audit(found, parts.valid)["eod"].value
        assert again == pytest.approx(found.trace["gap"].iloc[found.chosen], abs=1e-9)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
