"""Vision backbones and adapters."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from equipoise.data import Cohort
from equipoise.errors import BadInput, UnknownName
from equipoise.models import BACKBONES, OneOutput, Repeated, backbone, check_repairable, predict
from equipoise.models.vision import import_torchvision
from support.facts import facts, says, suggests
from support.phantoms import phantom_parts
from support.published import debias


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


def test_weights_of_a_colour_network_with_other_classes_are_loaded(tmp_path):
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
    with pytest.raises(BadInput, match="backbone"):
        backbone("squeezenet", weights=tmp_path / "resnet.safetensors")
    with pytest.raises(UnknownName, match=suggests("resnet-18")):
        backbone("resnet18")


def test_published_weights_of_torchvision_come_from_its_cache_or_the_error_has_advice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = import_torchvision().models
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setattr(torch.hub, "_hub_dir", None)

    def unreachable(*_args: object, **_kwargs: object) -> None:
        raise OSError("no route to host")

    monkeypatch.setattr(torch.hub, "download_url_to_file", unreachable)
    with pytest.raises(BadInput, match=facts("resnet18-f37072fd.pth", "--pretrained", "resnet-18=FILE")) as error:
        backbone("resnet-18", pretrained=True)
    assert "equipoise[pretrained]" in str(error.value)
    torch.manual_seed(0)
    (tmp_path / "hub" / "checkpoints").mkdir(parents=True, exist_ok=True)
    kept = models.resnet18(weights=None).state_dict()
    torch.save(kept, tmp_path / "hub" / "checkpoints" / "resnet18-f37072fd.pth")
    network = backbone("resnet-18", channels=3, pretrained=True)
    assert torch.equal(network.state_dict()["layer3.0.conv1.weight"], kept["layer3.0.conv1.weight"])
    dense = models.densenet121(weights=None).state_dict()
    old = {re.sub(r"(norm|conv)([12]\.)", r"\1.\2", key): value for key, value in dense.items() if "num_batches" not in key}
    assert "features.denseblock2.denselayer3.conv.2.weight" in old  # as in the published file
    torch.save(old, tmp_path / "hub" / "checkpoints" / "densenet121-a639ec97.pth")
    found = backbone("densenet-121", channels=3, pretrained=True).state_dict()
    assert all(torch.equal(found[key], value) for key, value in dense.items() if not key.startswith("classifier"))


def test_one_output_by_name_or_number_and_gray_images_for_a_colour_network():
    many = nn.Sequential(nn.Flatten(), nn.Linear(3 * 16, 4))
    many.pathologies = ["Edema", "Effusion", "Mass", "Hernia"]
    x = torch.randn(5, 1, 4, 4)
    by_name, by_number = (Repeated(OneOutput(many, which)) for which in ("Effusion", 1))
    torch.testing.assert_close(by_name(x), many(x.expand(-1, 3, -1, -1))[:, 1])
    torch.testing.assert_close(by_name(x), by_number(x))
    assert by_name.output == "auto"  # found out, where nothing is said
    assert Repeated(OneOutput(many, 1, output="logit")).output == "logit"
    with pytest.raises(UnknownName, match=suggests("Effusion")):
        OneOutput(many, "Efusion")
    with pytest.raises(BadInput, match="outputs"):
        OneOutput(nn.Linear(2, 2), "Mass")
    with pytest.raises(BadInput, match=facts(7, "(5, 4)")):
        OneOutput(many, 7)(x.expand(-1, 3, -1, -1))
    many.pathologies[2] = ""
    with pytest.raises(BadInput, match=facts(2, "Edema", "Effusion", "Hernia")):
        OneOutput(many, 2)


class Xray(nn.Module):
    """A network with the interface of torchxrayvision's: it calibrates itself if it has thresholds, and gives 0.5 for a missing one."""

    def __init__(self, thresholds: list[float] | None, apply_sigmoid: bool = False) -> None:
        super().__init__()
        self.targets = ["Edema", "Effusion", "Mass"]
        self.apply_sigmoid = apply_sigmoid
        self.layer = nn.Linear(4, 3)
        self.register_buffer("op_threshs", None if thresholds is None else torch.tensor(thresholds))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits = self.layer(x)
        if self.op_threshs is None:
            return logits.sigmoid() if self.apply_sigmoid else logits
        p, rows = logits.sigmoid(), []
        for row in p:
            moved = []
            for value, t in zip(row, self.op_threshs, strict=True):
                if t.isnan():
                    moved.append(value * 0 + 0.5)
                else:
                    moved.append(value / (2 * t) if value < t else 0.5 + (value - t) / (2 * (1 - t)))
            rows.append(torch.stack(moved))
        return torch.stack(rows)


def test_a_network_that_calibrates_itself_gives_probabilities_and_the_threshold_is_a_half():
    torch.manual_seed(0)
    network, x = Xray([0.1, 0.3, float("nan")]), torch.randn(40, 4)
    one = OneOutput(network, "Effusion")
    assert one.output == "probability"
    torch.testing.assert_close(one(x), network(x)[:, 1])
    plain = network.layer(x).sigmoid()[:, 1]
    assert ((one(x) >= 0.5) == (plain >= 0.3)).all()
    assert [OneOutput(Xray(None, apply), 0).output for apply in (True, False)] == ["probability", "logit"]


def test_a_pathology_without_a_threshold_keeps_its_plain_probability_with_a_warning(caplog):
    torch.manual_seed(0)
    network, x = Xray([0.1, 0.3, float("nan")]), torch.randn(6, 4)
    one = OneOutput(network, "Mass")
    assert says(caplog.text, "threshold", "'Mass'")
    torch.testing.assert_close(one(x), network.layer(x).sigmoid()[:, 2])
    assert network(x)[:, 2].eq(0.5).all()  # the network itself is as it was
    assert network.op_threshs.isnan().tolist() == [False, False, True]
    one(x).sum().backward()
    assert network.layer.weight.grad[2].abs().sum() > 0
    caplog.clear()
    OneOutput(network, "Edema")
    assert not caplog.records


def test_torchxrayvisions_own_network():
    import_torchvision()  # first, since torchxrayvision imports it without care for builds that do not fit
    xrv = pytest.importorskip("torchxrayvision", reason="torchxrayvision needs pip install 'equipoise[xray]'")
    torch.manual_seed(0)
    thresholds = torch.full((18,), 0.4)
    thresholds[3] = float("nan")
    network = xrv.models.DenseNet(weights=None, op_threshs=thresholds).eval()
    nn.init.normal_(network.classifier.weight)
    x = 1024 * (2 * torch.rand(4, 1, 64, 64) - 1)
    with torch.no_grad():
        given = network(x)
        effusion, bare = OneOutput(network, "Effusion"), OneOutput(network, "Pneumothorax")
        torch.testing.assert_close(effusion(x), given[:, 7])
        network.op_threshs = None
        logits = network(x)
        assert OneOutput(network, "Effusion").output == "logit"
        network.op_threshs = thresholds
        torch.testing.assert_close(bare(x), logits[:, 3].sigmoid())
        assert given[:, 3].eq(0.5).all()


def _square(size: int, channels: int = 1) -> nn.Module:
    return nn.Sequential(nn.Conv2d(channels, 2, 3, padding=1), nn.Flatten(), nn.Linear(2 * size * size, 1))


def _vit(size: int) -> nn.Module:
    kind = import_torchvision().models.VisionTransformer
    return kind(size, size // 4, num_layers=1, num_heads=1, hidden_dim=8, mlp_dim=8, num_classes=1)


@pytest.mark.parametrize(
    ("network", "parts"),
    [
        (_square(96), ["shape (1, 32, 32)", "mat1 and mat2", "shape (1, 96, 96)", "size=96 (--set images.size=96)."]),
        (_vit(224), ["shape (3, 224, 224)", "images.size=224", "images.channels=3", "models.Repeated"]),
        (Repeated(_vit(128)), ["Wrong image height! Expected 128 but got 32", "images.size=128"]),
        (_square(32, 3), ["shape (3, 32, 32)", "images.channels=3", "models.Repeated"]),
        (_square(50), ["images.size (size=)"]),
    ],
    ids=["flattened", "attention", "gray attention", "colour", "unusual"],
)
def test_advice_for_a_network_with_a_fixed_size_or_other_channels(network: nn.Module, parts: list[str]):
    cohort = phantom_parts(120, size=32, seed=0).valid
    network.train()
    for call in (
        lambda: check_repairable(network, cohort),
        lambda: debias(network, cohort, method="bias-gda", measure="eod", min_performance=0.5),
    ):
        with pytest.raises(BadInput) as caught:
            call()
        for part in ("on inputs of shape (1, 32, 32)", cohort.name, *parts):
            assert part in str(caught.value)
    assert network.training


def test_no_advice_if_the_shape_is_not_the_problem():
    class Failing(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x.any():
                raise RuntimeError("not these")
            return x.flatten(1).sum(1)

    with pytest.raises(BadInput, match="not these") as caught:
        check_repairable(Failing(), phantom_parts(120, size=32, seed=0).valid, changed=False)
    assert "images.size" not in str(caught.value)
    with pytest.raises(BadInput, match=facts("(2,)", "arrays")):
        check_repairable(nn.Linear(3, 1), Cohort.from_arrays(torch.zeros(4, 2), [0, 1, 0, 1], ["a", "a", "b", "b"]))


def test_a_resnet_with_skip_connections_is_repaired_on_phantoms():
    parts = phantom_parts(240, size=32, seed=0)
    torch.manual_seed(0)
    network = backbone("resnet-18").eval()
    before = predict(network, parts.valid).score
    for method, settings in (("bias-gda", {"epochs": 1, "learning_rate": 1e-4, "batch": 32}), ("pruning", {"layers": "conv1", "steps": 3})):
        result = debias(network, parts.valid, method=method, measure="spd", min_performance=0.0, **settings)
        assert np.isfinite(predict(result.model, parts.test).score).all()
        assert len(result.trace) > 1
    np.testing.assert_array_equal(predict(network, parts.valid).score, before)


def test_importing_equipoise_does_not_import_torchvision():
    code = "import sys, equipoise, equipoise.models.vision; sys.exit('torchvision' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("method", ["bias-gda", "pruning", "random", "adversarial-finetune"])
def test_methods_do_not_change_a_given_attention_network(method: str):
    quick = {"bias-gda": {"epochs": 1, "learning_rate": 1e-3, "batch": 32}, "pruning": {"steps": 3}, "random": {"trials": 2}}
    settings = quick.get(method, {"epochs": 1, "critic_steps": 2, "actor_steps": 2, "batch": 16})
    parts = phantom_parts(200, size=32, seed=1)
    torch.manual_seed(1)
    vit = import_torchvision().models.VisionTransformer(32, 8, num_layers=2, num_heads=2, hidden_dim=16, mlp_dim=32, num_classes=1)
    nn.init.normal_(vit.heads.head.weight)  # torchvision starts it at zero, where nothing differs
    network = Repeated(vit).eval()
    state = {k: v.clone() for k, v in network.state_dict().items()}
    result = debias(network, parts.valid, method=method, measure="spd", max_gap=0.5, **settings)
    assert all(torch.equal(v, state[k]) for k, v in network.state_dict().items())
    assert not any(m._forward_hooks or m._forward_pre_hooks for n in (network, result.model) for m in n.modules())
    assert result.model.state_dict().keys() >= state.keys()
    assert len(result.trace) > 1
