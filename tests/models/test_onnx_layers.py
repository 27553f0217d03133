"""ONNX files rebuilt in torch: the same outputs, weights that can be repaired, and an error for what is not known."""

import copy
import os
import warnings
from io import BytesIO
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import equipoise as eq
from equipoise.errors import BadInput
from equipoise.models import OneOutput, find_units, outputs, rebuilt_in, to_onnx, with_weights
from equipoise.models.programs import OnnxNetwork

pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
pytest.importorskip("onnxscript", reason="onnxscript is not installed")
from onnx import TensorProto, helper

DATA = Path(os.environ.get("EQUIPOISE_DATA", "nowhere"))


class Squeezed(nn.Module):
    """A block of a MobileNet: a depthwise convolution, squeeze and excitation, and a shortcut."""

    def __init__(self):
        super().__init__()
        self.wide, self.deep, self.norm = nn.Conv2d(4, 8, 1, bias=False), nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.BatchNorm2d(8)
        self.gate = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(8, 2, 1), nn.ReLU(), nn.Conv2d(2, 8, 1), nn.Hardsigmoid())
        self.narrow = nn.Conv2d(8, 4, 1)

    def forward(self, x):
        y = nn.functional.hardswish(self.norm(self.deep(self.wide(x))))
        return x + self.narrow(y * self.gate(y))


class Attended(nn.Module):
    """Tokens with a learned position, one layer of attention, and the first token's output."""

    def __init__(self):
        super().__init__()
        self.place, self.inner, self.last = (
            nn.Parameter(torch.randn(1, 3, 8)),
            nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True),
            nn.Linear(8, 2),
        )

    def forward(self, x):
        return self.last(self.inner(x.reshape(x.shape[0], 3, 8) + self.place)[:, 0])


def networks():
    torch.manual_seed(0)
    image = torch.rand(5, 1, 16, 16)
    blocks = nn.Sequential(nn.Conv2d(1, 4, 3, 2), nn.ReLU6(), Squeezed(), nn.MaxPool2d(2), nn.AvgPool2d(3), nn.Flatten(), nn.Linear(4, 2))
    norm = nn.Sequential(
        nn.Conv2d(1, 4, 5), nn.GroupNorm(2, 4), nn.GELU(), nn.BatchNorm2d(4), nn.LeakyReLU(0.2), nn.Flatten(1), nn.Linear(576, 1)
    )
    table = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.SiLU(), nn.Linear(8, 3), nn.Softmax(1))
    return {
        "blocks": (blocks, image),
        "norm": (norm, image),
        "table": (table, torch.randn(7, 6)),
        "attended": (Attended(), torch.randn(5, 24)),
    }


def exported(network, x, how):
    file = BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if how == "new":
            torch.onnx.export(network.eval(), (x,), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},), dynamo=True, verbose=False).save(file)
        else:
            axes = None if how == "fixed" else {"x": {0: "n"}}
            torch.onnx.export(network.eval(), (x[:2],), file, dynamo=False, dynamic_axes=axes, input_names=["x"])
    return file.getvalue()


@pytest.mark.parametrize("how", ["new", "old", "fixed"])
@pytest.mark.parametrize("name", ["blocks", "norm", "table", "attended"])
def test_the_outputs_are_those_of_the_network(name, how):
    if name == "attended" and how != "new":
        pytest.skip("the older exporter cannot trace attention")
    network, x = networks()[name]
    found = with_weights(OnnxNetwork(exported(network, x, how), "net.onnx"), x)
    with torch.no_grad():
        torch.testing.assert_close(found(x), network(x), atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(found(x[:1]), network(x[:1]), atol=1e-5, rtol=1e-5)  # another number of rows
    kinds = (nn.Linear, nn.Conv2d)
    layers = {type(module) for module in network.modules()} & set(kinds)
    assert layers <= {type(module) for module in found.modules()}
    found(x).sum().backward()
    assert all(p.grad is not None for p in found.parameters())


def test_layers_have_the_names_of_nodes_and_units():
    network, x = networks()["blocks"]
    found = with_weights(OnnxNetwork(exported(network, x, "old"), "net.onnx"), x)
    layers = find_units(found, x, outputs=2)
    assert [layer.shape for layer in layers] == [layer.shape for layer in find_units(network, x, outputs=2)]
    assert all("Conv" in layer.name for layer in layers)


def test_a_wrapped_file_is_rebuilt_inside_and_exported_again(tmp_path):
    network, x = networks()["blocks"]
    around = OneOutput(OnnxNetwork(exported(network, x, "new"), "net.onnx"), 1)
    found = with_weights(around, x)
    assert type(found) is OneOutput
    assert rebuilt_in(found) is not None
    assert rebuilt_in(around) is None  # the argument is not changed
    with torch.no_grad():
        for p in found.parameters():
            p.mul_(1.1)
    written = to_onnx(found, x, tmp_path / "again.onnx")
    assert written.agrees
    assert not np.allclose(outputs(found, x), outputs(around, x))
    assert np.allclose(outputs(copy.deepcopy(found), x), outputs(found, x))


def graph(operator, domain=""):
    node = helper.make_node(operator, ["x"], ["y"], name="odd", domain=domain)
    rows = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 3]) for name in "xy"]
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(helper.make_graph([node], "g", rows[:1], rows[1:]), opset_imports=opsets, ir_version=9).SerializeToString()


def test_an_unknown_operator_is_named():
    with pytest.raises(BadInput, match=r"net\.onnx.*operator Hardmax.*'odd'.*bias-score"):
        with_weights(OnnxNetwork(graph("Hardmax"), "net.onnx"), torch.zeros(4, 3))
    with pytest.raises(BadInput, match=r"operator QuickGelu of com\.microsoft"):
        with_weights(OnnxNetwork(graph("QuickGelu", "com.microsoft"), "net.onnx"), torch.zeros(4, 3))


def test_a_network_that_differs_is_refused(monkeypatch):
    """Rows decide whether the rebuilt network is used: here an operator is made to do something else."""
    from equipoise.models import onnx_layers

    file, x = OnnxNetwork(graph("Softsign"), "net.onnx"), torch.randn(4, 3)
    torch.testing.assert_close(with_weights(file, x)(x), nn.functional.softsign(x))
    monkeypatch.setitem(onnx_layers.FUNCTIONS, "Softsign", lambda _given, _constant: torch.tanh)
    with pytest.raises(BadInput, match="differ by"):
        with_weights(file, x)


def test_auto_fine_tunes_an_onnx_file_only_if_it_can_be_rebuilt():
    rng = np.random.default_rng(0)
    x, y, sex = torch.randn(60, 3), rng.integers(0, 2, 60), rng.choice(["F", "M"], 60)
    cohort = eq.Cohort.from_arrays(x, y, sex, reference="M")
    linear = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    for content, has in ((exported(linear, x, "new"), True), (exported(nn.Sequential(linear, nn.Hardtanh()), x, "new"), True)):
        from equipoise.methods.auto import _has_weights

        assert _has_weights(OnnxNetwork(content, "net.onnx"), cohort) is has
    assert not _has_weights(OnnxNetwork(graph("Hardmax"), "net.onnx"), cohort)


@pytest.mark.skipif(not (DATA / "mobilenetv3-nih").exists(), reason="EQUIPOISE_DATA has no mobilenetv3-nih")
def test_a_third_partys_network_returns_its_published_logits():
    known = pd.read_csv(DATA / "mobilenetv3-nih" / "reference_logits.csv.gz").head(12)
    known = known.assign(y=[0, 1] * 6, path=known.image)
    images = eq.Cohort.from_images(
        known,
        folder=DATA / "cxr-nih" / "images",
        label="y",
        group="sex",
        reference="M",
        image="image",
        size=224,
        mean=(0.485,),
        std=(0.229,),
        channels=1,
    )
    path = DATA / "mobilenetv3-nih" / "model_float.onnx"
    found = with_weights(OnnxNetwork(path.read_bytes(), str(path)), images.inputs)
    with torch.no_grad():
        logits = found(images.inputs[:])
    columns = [column for column in known if column.startswith("logit_")]
    np.testing.assert_allclose(logits.numpy(), known[columns].to_numpy(), atol=2e-3)
