"""ONNX files as networks: the same scores as the network they were exported from, whatever batch size they fix."""

import copy

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import nn

import equipoise as eq
from equipoise.errors import BadInput
from equipoise.models import load_model, outputs, predict, to_onnx
from equipoise.models.export import ExportFailed
from equipoise.models.programs import OnnxNetwork, load_onnx

pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
import onnx
from onnx import TensorProto, helper

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 3)).astype(np.float32)
Y, SEX = RNG.integers(0, 2, 60), RNG.choice(["F", "M"], 60)
COHORT = eq.Cohort.from_arrays(torch.from_numpy(X), Y, SEX, reference="M")


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1)).eval()
    path = tmp_path_factory.mktemp("onnx") / "net.onnx"
    to_onnx(network, torch.from_numpy(X), path)
    return network, path


def test_scores_equal_those_of_the_network(pair):
    network, path = pair
    found = load_model(str(path))
    np.testing.assert_allclose(outputs(found, COHORT.inputs), outputs(network, COHORT.inputs), atol=1e-6)
    assert eq.audit(str(path), COHORT)["eod"].value == eq.audit(network, COHORT)["eod"].value
    assert eq.audit(copy.deepcopy(found), COHORT)["eod"].value == eq.audit(network, COHORT)["eod"].value


def test_a_session_is_audited_as_well(pair):
    import onnxruntime

    network, path = pair
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    assert eq.audit(session, COHORT)["spd"].value == eq.audit(network, COHORT)["spd"].value


def linear(rows, *, outputs=(("y", TensorProto.FLOAT),), kind=TensorProto.FLOAT, inputs=1):
    """The bytes of a graph that sums each row; all of its outputs are equal."""
    given = [helper.make_tensor_value_info(f"x{k}", kind, [rows, 3]) for k in range(inputs)]
    nodes = [helper.make_node("ReduceSum", ["x0", "axes"], [name], keepdims=0) for name, _ in outputs]
    found = [helper.make_tensor_value_info(name, kind, [rows]) for name, kind in outputs]
    axes = helper.make_tensor("axes", TensorProto.INT64, [1], [1])
    graph = helper.make_graph(nodes, "g", given, found, [axes])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9).SerializeToString()


def test_a_fixed_batch_size_is_run_in_batches():
    np.testing.assert_allclose(outputs(OnnxNetwork(linear(7), "net.onnx"), torch.from_numpy(X)), X.sum(1), rtol=1e-5)


def test_several_outputs_need_a_name(tmp_path):
    two = linear("n", outputs=(("risk", TensorProto.FLOAT), ("other", TensorProto.FLOAT)))
    (tmp_path / "net.onnx").write_bytes(two)
    with pytest.raises(BadInput, match=r"risk, other.*net\.onnx:risk"):
        load_onnx(tmp_path / "net.onnx")
    assert load_model(f"{tmp_path / 'net.onnx'}:other").which == "other"
    with pytest.raises(BadInput, match=r"'risks'.*risk"):
        load_model(f"{tmp_path / 'net.onnx'}:risks")


def test_unusable_graphs_are_refused(tmp_path):
    with pytest.raises(BadInput, match="2 inputs"):
        OnnxNetwork(linear("n", inputs=2), "net.onnx")
    with pytest.raises(BadInput, match="int64"):
        OnnxNetwork(linear("n", kind=TensorProto.INT64, outputs=(("y", TensorProto.INT64),)), "net.onnx")
    with pytest.raises(BadInput, match=r"rows of 3 .* these are 4"):
        eq.audit(OnnxNetwork(linear("n"), "net.onnx"), eq.Cohort.from_arrays(torch.zeros(60, 4), Y, SEX, reference="M"))
    (tmp_path / "net.onnx").write_bytes(b"no graph")
    with pytest.raises(BadInput, match=r"net\.onnx"):
        load_onnx(tmp_path / "net.onnx")
    with pytest.raises(BadInput, match="no such file"):
        load_model("nowhere.onnx")
    with pytest.raises(BadInput, match="includes its weights"):
        load_model(str(tmp_path / "net.onnx"), "weights.pt")


def test_weights_in_a_second_file_are_read_too(pair, tmp_path):
    network, path = pair
    model = onnx.load(path)
    onnx.save_model(model, tmp_path / "net.onnx", save_as_external_data=True, location="net.data", size_threshold=0)
    found = load_onnx(tmp_path / "net.onnx")
    (tmp_path / "net.data").unlink()
    np.testing.assert_allclose(outputs(found, COHORT.inputs), outputs(network, COHORT.inputs), atol=1e-6)


def test_a_converted_scikit_learn_classifier(tmp_path):
    convert = pytest.importorskip("skl2onnx", reason="skl2onnx is not installed")
    fitted = LogisticRegression().fit(X, Y)
    found = convert.to_onnx(fitted, X[:1], options={"zipmap": False})
    (tmp_path / "net.onnx").write_bytes(found.SerializeToString())
    np.testing.assert_allclose(outputs(load_onnx(tmp_path / "net.onnx"), COHORT.inputs), fitted.predict_proba(X)[:, 1], atol=1e-6)
    assert eq.audit(tmp_path / "net.onnx", COHORT)["spd"].value == eq.audit(fitted, COHORT)["spd"].value


def served(path, x):
    import onnxruntime

    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(["score", "decision"], {"input": x})


def test_a_repair_is_one_file_again(pair, tmp_path):
    """Score and decision of the file are those of the repaired network, with the user's graph and the probes inside."""
    _, path = pair
    rng = np.random.default_rng(0)
    sex, y = rng.choice(["F", "M"], 600), rng.integers(0, 2, 600)
    x = (rng.normal(size=(600, 3)) + np.column_stack([y * np.where(sex == "F", 0.6, 2.0), sex == "F", y])).astype(np.float32)
    cohort = eq.Cohort.from_arrays(torch.from_numpy(x), y, sex, reference="M")
    result = eq.debias(path, cohort, method="bias-score", max_loss=0.2, selection="paper", recalibrate=False)
    written = to_onnx(result.model, cohort.inputs, tmp_path / "model.onnx", result.rule.value)
    assert written.agrees
    score, decision = served(tmp_path / "model.onnx", x)
    scores = predict(result.model, cohort)
    np.testing.assert_allclose(score, scores.score, atol=1e-6)
    clear = np.abs(score - result.rule.value) > 1e-6
    np.testing.assert_array_equal(decision[clear], result.rule.decide(scores)[clear])
    assert 0 < decision.mean() < 1


def test_an_older_graph_of_scikit_learn_is_merged(tmp_path):
    convert = pytest.importorskip("skl2onnx", reason="skl2onnx is not installed")
    fitted = LogisticRegression().fit(X, Y)
    found = convert.to_onnx(fitted, X[:1], options={"zipmap": False}, target_opset={"": 13, "ai.onnx.ml": 3})
    (tmp_path / "net.onnx").write_bytes(found.SerializeToString())
    network = load_onnx(tmp_path / "net.onnx")
    to_onnx(network, COHORT.inputs, tmp_path / "model.onnx", 0.5, output="probability")
    score, decision = served(tmp_path / "model.onnx", X)
    np.testing.assert_allclose(score, fitted.predict_proba(X)[:, 1], atol=1e-6)
    np.testing.assert_array_equal(decision, fitted.predict(X))


def test_a_graph_of_a_fixed_batch_size_is_not_written(tmp_path):
    with pytest.raises(ExportFailed, match="batches of exactly 7 rows"):
        to_onnx(OnnxNetwork(linear(7), "net.onnx"), torch.from_numpy(X[:7]), tmp_path / "model.onnx", 0.5)
    assert not (tmp_path / "model.onnx").exists()
