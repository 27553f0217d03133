"""Files of a repaired network: the original keys and shapes, weights that load without Equipoise, ONNX that agrees with torch."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from equipoise.errors import BadInput, MissingExtra
from equipoise.models import BiasScore, Checkpoint, OneOutput, export, load_heads, load_model, save_weights, to_onnx
from equipoise.models.export import HEADS_FILE, MASKED_LOADING, ExportFailed, state_like
from equipoise.models.units import MASK_SUFFIX, find_units, switch_off
from equipoise.models.weights import read_checkpoint
from support.facts import facts
from support.hospital import CODE, network
from support.torch_alone import Run

X = torch.from_numpy(np.random.default_rng(0).normal(size=(9, 1, 12, 12)).astype(np.float32))


def masked() -> nn.Module:
    """The convolutional network, a third of the units of its convolutions switched off."""
    model = network("cnn").eval()
    layers = find_units(model, X, ["0", "3"])
    total = layers[-1].start + layers[-1].size
    switch_off(model, layers, torch.arange(total) % 3 == 0)
    return model


def headed(inner: nn.Module | None = None, layer: str = "2") -> BiasScore:
    """The network of three inputs with heads of random numbers around it, which read its inputs and its last layer."""
    plain = {"kind": "bias-score", "layers": [layer], "inputs": True, "labels": [1, None], "output": "logit", "features": 11, "groups": 2}
    model = BiasScore.from_dict(inner or network("build").eval(), plain)
    heads = {key: torch.randn(value.shape) for key, value in model.state_dict().items() if not key.startswith("network.")}
    model.load_state_dict(heads, strict=False)
    return model.eval()


def elsewhere(alone: Run, folder: Path, code: str) -> object:
    """Runs code in a Python process without Equipoise and returns its output."""
    (folder / "net.py").write_text(CODE)
    return alone(folder, f"import json\nimport torch\nimport net\n{code}\nprint(json.dumps(found))")


# keys and shapes


def test_keys_their_order_and_their_prefix_are_those_of_the_original():
    came = {f"module.{key}": value for key, value in reversed(network("build").state_dict().items())}
    model = network("build")
    with torch.no_grad():
        model[0].weight += 1
    state = state_like(came, model)
    assert list(state) == list(came)
    assert torch.equal(state["module.0.weight"], model[0].weight)


def test_weights_written_do_not_change_with_the_network():
    model = network("build")
    state = state_like(model.state_dict(), model)
    before = state["0.bias"].clone()
    with torch.no_grad():
        model[0].bias += 1
    assert torch.equal(state["0.bias"], before)


def test_an_adapter_leaves_the_keys_unchanged():
    came = network("build").state_dict()
    assert list(state_like(came, OneOutput(network("build"), 0))) == list(came)
    own = OneOutput(network("build"), 0)  # the user's own wrapper stays
    assert list(state_like(own.state_dict(), own)) == list(own.state_dict())


def test_every_misfit_is_listed():
    came = {"0.weight": torch.ones(5, 3), "gone": torch.ones(1)}
    with pytest.raises(BadInput) as caught:
        state_like(came, network("build"))
    for part in ("'gone'", "'0.weight' was (5, 3) and is now (8, 3)", "'2.bias' is not among"):
        assert part in str(caught.value)


def test_masks_are_extra_keys_with_the_prefix():
    came = {f"module.{key}": value for key, value in network("cnn").state_dict().items()}
    state = state_like(came, masked())
    assert list(state)[: len(came)] == list(came)
    assert [key for key in state if key.endswith(MASK_SUFFIX)] == [f"module.{k}{MASK_SUFFIX}" for k in (0, 3)]


# files


def test_a_torch_file_keeps_its_nesting_and_other_content(tmp_path):
    model = network("build")
    wrapped = {f"module.{key}": value for key, value in model.state_dict().items()}
    torch.save({"epoch": 7, "model_state_dict": wrapped, "optimizer": {"lr": 0.1}}, tmp_path / "net.pt")
    with torch.no_grad():
        model[0].bias += 1
    names = save_weights(model, tmp_path, read_checkpoint(tmp_path / "net.pt"))["files"]
    assert names == ["repaired.safetensors", "repaired.pt"]
    found = torch.load(tmp_path / "repaired.pt", weights_only=True)
    assert (found["epoch"], found["optimizer"], list(found["model_state_dict"])) == (7, {"lr": 0.1}, list(wrapped))
    assert torch.equal(found["model_state_dict"]["module.0.bias"], model[0].bias)
    assert list(load_file(tmp_path / "repaired.safetensors")) == sorted(wrapped)


def test_safetensors_are_written_only_as_safetensors(tmp_path):
    model = network("build")
    assert save_weights(model, tmp_path, Checkpoint(model.state_dict()))["files"] == ["repaired.safetensors"]


def test_tied_weights_can_be_written(tmp_path):
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    save_weights(model, tmp_path)
    assert torch.equal(load_file(tmp_path / "repaired.safetensors")["1.weight"], model[0].weight)


@pytest.mark.parametrize("nested", [False, True])
def test_repaired_weights_load_strictly_without_equipoise(alone, tmp_path, nested):
    model = network("cnn").eval()
    switch_off(model, find_units(model, X, granularity="channel"), torch.arange(13) % 3 == 0)  # whole channels and linear units: no mask
    torch.save({"state_dict": network("cnn").state_dict()} if nested else network("cnn").state_dict(), tmp_path / "net.pt")
    save_weights(model, tmp_path, read_checkpoint(tmp_path / "net.pt"))
    torch.save(X, tmp_path / "x.pt")
    inside = '["state_dict"]' if nested else ""
    code = f"""
model = net.cnn()
model.load_state_dict(torch.load("repaired.pt", weights_only=True){inside}, strict=True)
found = torch.sigmoid(model.eval()(torch.load("x.pt")))[:, 0].tolist()
"""
    with torch.no_grad():
        assert elsewhere(alone, tmp_path, code) == torch.sigmoid(model(X))[:, 0].tolist()


def test_masks_load_with_five_lines_of_torch(alone, tmp_path):
    model = masked()
    save_weights(model, tmp_path, Checkpoint(network("cnn").state_dict()))
    torch.save(X, tmp_path / "x.pt")
    code = f"""
from safetensors.torch import load_file
model, state = net.cnn(), load_file("repaired.safetensors")
{MASKED_LOADING}
found = torch.sigmoid(model(torch.load("x.pt")))[:, 0].tolist()
"""
    assert len(MASKED_LOADING.splitlines()) == 5
    with torch.no_grad():
        expected = torch.sigmoid(model(X))[:, 0].tolist()
        assert expected != torch.sigmoid(network("cnn").eval()(X))[:, 0].tolist()
    assert elsewhere(alone, tmp_path, code) == expected


def test_masks_are_applied_when_weights_are_loaded(tmp_path):
    model = masked()
    (tmp_path / "net.py").write_text(CODE)
    save_weights(model, tmp_path)
    again = load_model(f"{tmp_path}/net.py:cnn", tmp_path / "repaired.safetensors")
    with torch.no_grad():
        assert torch.equal(again(X), model(X))


def test_a_mask_that_fits_no_convolution_is_an_error(tmp_path):
    (tmp_path / "net.py").write_text(CODE)
    torch.save({**network("build").state_dict(), "0.unit_mask": torch.ones(8)}, tmp_path / "net.pt")
    with pytest.raises(BadInput, match=facts("0.unit_mask")):
        load_model(f"{tmp_path}/net.py:build", tmp_path / "net.pt")


def test_a_file_that_cannot_be_written_is_a_clear_error(tmp_path, monkeypatch):
    def fails(*_: object) -> None:
        raise RuntimeError("PytorchStreamWriter failed writing file data/0: file write failed")

    monkeypatch.setattr(torch, "save", fails)
    with pytest.raises(BadInput, match=facts("repaired.pt")):
        save_weights(network("build"), tmp_path, Checkpoint(network("build").state_dict(), whole={}))


# heads around a network


def test_heads_are_saved_next_to_the_original_weights_and_load_again(tmp_path):
    model, x = headed(), torch.randn(7, 3)
    plain = network("build").state_dict()
    came = Checkpoint({f"module.{key}": value for key, value in plain.items()}, {"epoch": 7, "state_dict": {}}, "state_dict")
    written = save_weights(model, tmp_path, came)
    assert set(written["files"]) == {"repaired.safetensors", "repaired.pt", HEADS_FILE}
    nested = torch.load(tmp_path / "repaired.pt", weights_only=True)["state_dict"]
    assert list(nested) == list(came.state)
    fresh = network("build")
    fresh.load_state_dict({key.removeprefix("module."): value for key, value in nested.items()}, strict=True)
    assert all(torch.equal(value, plain[key]) for key, value in fresh.state_dict().items())
    with torch.no_grad():
        assert torch.equal(load_heads(fresh.eval(), tmp_path / HEADS_FILE)(x), model(x))
        assert not torch.allclose(fresh(x), model(x))


def test_heads_around_an_adapter_leave_the_original_keys(tmp_path):
    inner = network("build")
    model = headed(OneOutput(inner, 0), "inner.2")
    save_weights(model, tmp_path, Checkpoint(inner.state_dict()))
    assert set(load_file(tmp_path / "repaired.safetensors")) == set(inner.state_dict())
    x = torch.randn(5, 3)
    with torch.no_grad():
        assert torch.equal(load_heads(OneOutput(network("build"), 0), tmp_path / HEADS_FILE)(x), model(x))


def test_heads_of_the_original_network_are_ordinary_weights(tmp_path):
    model = headed()
    assert set(state_like(model.state_dict(), model)) == set(model.state_dict())
    assert save_weights(model, tmp_path, Checkpoint(model.state_dict()))["files"] == ["repaired.safetensors"]


def test_heads_that_do_not_fit_are_refused(tmp_path):
    model = headed()
    save_weights(model, tmp_path)
    with pytest.raises(BadInput, match=facts("layer", "'2'")):
        load_heads(nn.Linear(3, 1), tmp_path / HEADS_FILE)
    with pytest.raises(BadInput, match="none"):
        load_heads(network("build"), tmp_path / "none.safetensors")
    with pytest.raises(BadInput, match="heads"):
        load_heads(network("build"), tmp_path / "repaired.safetensors")
    state = load_file(tmp_path / HEADS_FILE)
    state["task.weight"], state["more"] = state["task.weight"][:, 1:].contiguous(), state.pop("centre")
    save_file(state, tmp_path / "other.safetensors", {"heads": json.dumps(model.to_dict())})
    with pytest.raises(BadInput, match="3 problems") as caught:
        load_heads(network("build"), tmp_path / "other.safetensors")
    for part in (
        "1 weights of the network are not in the file: centre",
        "fit nothing in the network: more",
        "task.weight (1, 11), not (1, 12)",
    ):
        assert part in str(caught.value)


def test_onnx_includes_the_heads(tmp_path):
    pytest.importorskip("onnxscript")
    assert to_onnx(headed(), torch.randn(9, 3), tmp_path / "model.onnx").max_difference < 1e-5


# ONNX


def _run(path: Path, inputs: torch.Tensor) -> dict[str, np.ndarray]:
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, {"input": inputs.numpy()}), strict=True))


@pytest.mark.parametrize("kind", ["cnn", "masked"])
def test_onnx_agrees_with_torch_for_batches_of_any_size(tmp_path, kind):
    pytest.importorskip("onnxscript")
    model = masked() if kind == "masked" else network("cnn").eval()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    found = to_onnx(model, X[:4], tmp_path / "model.onnx")
    assert found.max_difference <= 1e-5
    assert found.agrees
    assert found.rows == 4
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]
    for rows in (1, 9):
        with torch.no_grad():
            np.testing.assert_allclose(_run(tmp_path / "model.onnx", X[:rows])["output"], model(X[:rows]).numpy(), atol=1e-5)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


@pytest.mark.parametrize("output", ["logit", "probability"])
def test_the_decision_can_be_an_output_of_the_onnx_file(tmp_path, output):
    pytest.importorskip("onnxscript")
    model = nn.Sequential(network("build"), nn.Sigmoid()) if output == "probability" else network("build")
    x = torch.randn(50, 3, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        raw = model.eval()(x)[:, 0].double()
    score = raw if output == "probability" else torch.sigmoid(raw)
    threshold = float(score.median()) + 1e-6
    to_onnx(model, x, tmp_path / "model.onnx", threshold, output=output)
    found = _run(tmp_path / "model.onnx", x)
    assert list(found) == ["output", "score", "decision"]
    np.testing.assert_allclose(found["score"], score.numpy(), atol=1e-6)
    assert found["decision"].tolist() == (score >= threshold).long().tolist()
    assert 0 < sum(found["decision"]) < 50


def test_an_operator_without_a_counterpart_is_named_without_a_file_or_output(tmp_path, capfd):
    pytest.importorskip("onnxscript")
    with pytest.raises(ExportFailed, match="bessel_j0"):
        to_onnx(network("Odd"), torch.randn(4, 3), tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr() == ("", "")


def test_a_network_for_one_batch_size_cannot_be_exported(tmp_path):
    pytest.importorskip("onnxscript")

    class Rows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cat([self.layer(x[k : k + 1]) for k in range(len(x))])

    with pytest.raises(ExportFailed, match="shape"):
        to_onnx(Rows(), torch.randn(4, 3), tmp_path / "model.onnx")


def test_a_missing_library_is_named_with_the_pip_command(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "onnxruntime" else object())
    with pytest.raises(MissingExtra, match=facts("onnxruntime", "pip install 'equipoise[onnx]'")):
        to_onnx(network("build"), torch.randn(4, 3), tmp_path / "model.onnx")
    assert export.ONNX_TOLERANCE == 1e-5
