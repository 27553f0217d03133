"""Vision backbones and adapters."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from equipoise.data.phantom import phantom_parts
from equipoise.errors import BadInput, UnknownName
from equipoise.methods.registry import debias
from equipoise.models.score import predict
from equipoise.models.torchvision_import import import_torchvision
from equipoise.models.vision import BACKBONES, OneOutput, Repeated, backbone


@pytest.mark.parametrize("name", [n for n in BACKBONES if n != "vgg-16"])
def test_a_backbone_gives_one_logit_for_gray_and_for_colour(name: str):
    for channels in (1, 3):
        network = backbone(name, channels=channels).eval()
        with torch.no_grad():
            assert network(torch.zeros(2, channels, 64, 64)).reshape(-1).shape == (2,)


def test_vgg_16_has_thirteen_convolutions_and_a_one_logit_head():
    with torch.device("meta"):
        network = backbone("vgg-16")
    assert sum(isinstance(m, nn.Conv2d) for m in network.modules()) == 13
    assert network.get_submodule("classifier.6").out_features == 1
    assert network.get_submodule("features.0").in_channels == 1


def test_weights_of_a_colour_network_with_other_classes_are_taken_over(tmp_path):
    torch.manual_seed(0)
    original = import_torchvision().models.resnet18(weights=None, num_classes=10).eval()
    save_file(original.state_dict(), tmp_path / "resnet.safetensors")
    gray = backbone("resnet-18", weights=tmp_path / "resnet.safetensors").eval()
    x = torch.randn(2, 1, 64, 64)
    features = []
    for network, shown in ((original, x.expand(-1, 3, -1, -1)), (gray, x)):
        handle = network.avgpool.register_forward_hook(lambda _m, _i, out: features.append(out))
        with torch.no_grad():
            network(shown)
        handle.remove()
    torch.testing.assert_close(features[0], features[1], rtol=1e-4, atol=1e-4)
    with pytest.raises(BadInput, match="does not fit this backbone"):
        backbone("squeezenet", weights=tmp_path / "resnet.safetensors")
    with pytest.raises(UnknownName, match="Did you mean 'resnet-18'"):
        backbone("resnet18")


def test_one_output_by_name_or_number_and_gray_images_for_a_colour_network():
    many = nn.Sequential(nn.Flatten(), nn.Linear(3 * 16, 4))
    many.pathologies = ["Edema", "Effusion", "Mass", "Hernia"]
    x = torch.randn(5, 1, 4, 4)
    by_name, by_number = (Repeated(OneOutput(many, which)) for which in ("Effusion", 1))
    torch.testing.assert_close(by_name(x), many(x.expand(-1, 3, -1, -1))[:, 1])
    torch.testing.assert_close(by_name(x), by_number(x))
    assert by_name.output == "logit"
    with pytest.raises(UnknownName, match="Did you mean 'Effusion'"):
        OneOutput(many, "Efusion")
    with pytest.raises(BadInput, match="does not name its outputs"):
        OneOutput(nn.Linear(2, 2), "Mass")
    with pytest.raises(BadInput, match=r"output 7 was asked of a network that returned shape \(5, 4\)"):
        OneOutput(many, 7)(x.expand(-1, 3, -1, -1))


def test_a_resnet_is_repaired_on_phantoms_and_skip_connections_survive():
    parts = phantom_parts(240, size=32, seed=0, hardness=0.5)
    torch.manual_seed(0)
    network = backbone("resnet-18").eval()
    before = predict(network, parts.valid).score
    for method, settings in (("bias-gda", {"epochs": 1, "rate": 1e-4, "batch": 32}), ("pruning", {"layers": "conv1", "steps": 3})):
        result = debias(network, parts.valid, method=method, measure="spd", floor=0.0, **settings)
        assert np.isfinite(predict(result.model, parts.test).score).all()
        assert len(result.trace) > 1
    np.testing.assert_array_equal(predict(network, parts.valid).score, before)


def test_importing_equipoise_does_not_import_torchvision():
    code = "import sys, equipoise, equipoise.models.vision; sys.exit('torchvision' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("method", ["bias-gda", "pruning", "random", "adversarial-finetune"])
def test_an_attention_network_goes_through_the_methods_untouched(method: str):
    quick = {"bias-gda": {"epochs": 1, "rate": 1e-3, "batch": 32}, "pruning": {"steps": 3}, "random": {"trials": 2}}
    settings = quick.get(method, {"epochs": 1, "critic_steps": 2, "actor_steps": 2, "batch": 16})
    parts = phantom_parts(200, size=32, seed=1)
    torch.manual_seed(1)
    vit = import_torchvision().models.VisionTransformer(32, 8, num_layers=2, num_heads=2, hidden_dim=16, mlp_dim=32, num_classes=1)
    nn.init.normal_(vit.heads.head.weight)  # torchvision starts it at zero, where nothing differs
    network = Repeated(vit).eval()
    state = {k: v.clone() for k, v in network.state_dict().items()}
    result = debias(network, parts.valid, method=method, measure="spd", bound=0.5, **settings)
    assert all(torch.equal(v, state[k]) for k, v in network.state_dict().items())
    assert not any(m._forward_hooks or m._forward_pre_hooks for n in (network, result.model) for m in n.modules())
    assert result.model.state_dict().keys() >= state.keys()
    assert len(result.trace) > 1
