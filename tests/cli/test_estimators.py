"""`equipoise audit`, `debias` and `apply` with a model other than a torch network: an estimator in a file, and an ONNX file."""

import json

import joblib
import numpy as np
import pandas as pd
import pytest
from sklearn.compose import make_column_transformer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import equipoise as eq
from support.facts import says

ROLES = ("--label", "sick", "--group", "sex", "--reference", "M", "--patient", "patient")
RULE = ("--method", "group-thresholds", "--max-loss", "0.1")


def patients(rows, seed):
    rng = np.random.default_rng(seed)
    sex, sick = rng.choice(["F", "M"], rows), rng.integers(0, 2, rows)
    ward = np.where(rng.random(rows) < np.where(sex == "F", 0.9, 0.1), "gynaecology", "medical")
    marker = sick * np.where(sex == "F", 0.6, 2.0) + rng.normal(size=rows)
    return pd.DataFrame({"patient": [f"{k:04}" for k in range(rows)], "marker": marker, "ward": ward, "sex": sex, "sick": sick})


TRAIN, LOCAL = patients(300, 1), patients(900, 2)
MODEL = make_pipeline(make_column_transformer((OneHotEncoder(), ["ward"]), (StandardScaler(), ["marker"])), LogisticRegression())
MODEL.fit(TRAIN[["marker", "ward"]], TRAIN["sick"])


@pytest.fixture
def local(tmp_path):
    LOCAL.to_csv(tmp_path / "local.csv", index=False)
    joblib.dump(MODEL, tmp_path / "model.joblib")
    return tmp_path


def test_an_estimator_is_audited_on_its_raw_columns(run, local):
    ran = run("audit", "local.csv", *ROLES, "--model", "model.joblib", "--set", "model.trust_pickle=true", "--json")
    assert ran.code == 0, ran.err
    want = eq.audit(MODEL, eq.Cohort.from_frame(LOCAL, label="sick", group="sex", reference="M", patient="patient"))
    gap = next(each for each in json.loads(ran.out)["gaps"] if each["measure"] == "eod")
    assert gap["value"] == pytest.approx(want["eod"].value)


def test_a_pickle_is_refused_unless_it_is_trusted(run, local):
    ran = run("audit", "local.csv", *ROLES, "--model", "model.joblib")
    assert ran.code == 2
    assert "model.trust_pickle" in ran.err
    ran = run("audit", "local.csv", *ROLES, "--model", "net.onnx", "--set", "model.trust_pickle=true")
    assert ran.code == 2
    assert "model.trust_pickle" in ran.err


def test_an_estimator_is_repaired_saved_and_applied(run, local):
    skops = pytest.importorskip("skops.io", reason="skops is not installed")
    skops.dump(MODEL, local / "model.skops")
    ran = run("debias", "local.csv", *ROLES, "--model", "model.skops", *RULE, "--out", "repaired", "--json")
    assert ran.code == 0, ran.err
    assert json.loads((local / "repaired" / "run.json").read_text())["predictor"] is not None
    assert "predictor.skops" in (local / "repaired" / "README.txt").read_text()
    new = patients(40, 3).drop(columns="sick")
    new.to_csv(local / "new.csv", index=False)
    ran = run("apply", "repaired", "new.csv", "--out", "decisions.csv")
    assert ran.code == 0, ran.err
    found = pd.read_csv(local / "decisions.csv", dtype={"patient": str})
    assert found["patient"].tolist() == new["patient"].tolist()
    np.testing.assert_allclose(found["score"], MODEL.predict_proba(new)[:, 1])
    rule = eq.Bundle.load(local / "repaired").rule
    assert rule.needs_group
    assert set(found["decision"]) == {0, 1}


def test_a_dry_run_and_a_rule_without_the_group(run, local):
    given = ("debias", "local.csv", *ROLES, "--model", "model.joblib", "--set", "model.trust_pickle=true")
    ran = run(*given, "--out", "repaired", "--dry-run", "--json")
    assert ran.code == 0, ran.err
    assert not (local / "repaired").exists()
    ran = run(*given, "--method", "bias-score", "--max-loss", "0.1", "--out", "repaired", "--json")
    assert ran.code == 0, ran.err
    assert json.loads((local / "repaired" / "rule.json").read_text())["columns"] == ["marker", "ward"]


def test_options_of_networks_are_refused(run, local):
    ran = run(
        "debias",
        "local.csv",
        *ROLES,
        "--model",
        "model.joblib",
        "--set",
        "model.trust_pickle=true",
        "--out",
        "repaired",
        "--set",
        "repair.probe=true",
    )
    assert ran.code == 2
    assert "repair.probe" in ran.err


def test_an_onnx_file_is_audited_and_repaired(run, local):
    convert = pytest.importorskip("skl2onnx", reason="skl2onnx is not installed")
    import onnxruntime

    frame = LOCAL.assign(ward=(LOCAL["ward"] == "medical").astype(int))
    frame.to_csv(local / "local.csv", index=False)
    x = frame[["marker", "ward"]].to_numpy(np.float32)
    fitted = LogisticRegression().fit(x, frame["sick"])
    (local / "net.onnx").write_bytes(convert.to_onnx(fitted, x[:1], options={"zipmap": False}).SerializeToString())
    given = ("local.csv", *ROLES, "--model", "net.onnx", "--set", "data.features=marker", "--set", "data.features=ward")
    ran = run("audit", *given, "--json")
    assert ran.code == 0, ran.err
    assert json.loads(ran.out)["rows"] == 900
    ran = run(
        "debias", *given, "--method", "bias-score", "--max-loss", "0.1", "--out", "repaired", "--set", "repair.recalibrate=false", "--json"
    )
    assert ran.code == 0, ran.err
    (local / "net.onnx").unlink()
    ran = run("apply", "repaired", "local.csv", "--out", "decisions.csv")
    assert ran.code == 0, ran.err
    found = pd.read_csv(local / "decisions.csv")
    session = onnxruntime.InferenceSession(str(local / "repaired" / "model.onnx"), providers=["CPUExecutionProvider"])
    score, decision = session.run(["score", "decision"], {"input": x})
    np.testing.assert_allclose(found["score"], score, atol=1e-6)
    clear = np.abs(found["score"] - json.loads((local / "repaired" / "rule.json").read_text())["value"]) > 1e-6
    np.testing.assert_array_equal(found["decision"][clear], decision[clear])


@pytest.mark.parametrize(("method", "outputs"), [("bias-gda", 1), ("bias-gda", 2), ("pruning", 1)])
def test_the_weights_of_an_onnx_file_are_repaired(run, local, method, outputs):
    """The network of another is fine-tuned or pruned, applied without its file, and written as ONNX again."""
    pytest.importorskip("onnxscript", reason="onnxscript is not installed")
    import onnxruntime
    import torch

    from equipoise.models import to_onnx

    frame = LOCAL.assign(ward=(LOCAL["ward"] == "medical").astype(int))
    frame.to_csv(local / "local.csv", index=False)
    x = frame[["marker", "ward"]].to_numpy(np.float32)
    network = torch.nn.Sequential(torch.nn.Linear(2, 6), torch.nn.ReLU(), torch.nn.Linear(6, outputs))
    torch.manual_seed(0)
    optimiser, y = torch.optim.Adam(network.parameters(), 0.05), torch.tensor(frame["sick"].to_numpy(np.float32))
    for _ in range(60):
        loss = torch.nn.functional.binary_cross_entropy_with_logits(network(torch.from_numpy(x))[:, -1], y)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    to_onnx(network, torch.from_numpy(x), local / "net.onnx")
    original = (local / "net.onnx").read_bytes()
    given = ("local.csv", *ROLES, "--model", "net.onnx", "--set", "data.features=marker", "--set", "data.features=ward")
    given += ("--set", "model.outputs=1", "--set", "model.output=logit") if outputs > 1 else ()
    quick = (
        "--method",
        method,
        "--max-loss",
        "0.2",
        "--set",
        "goal.selection=paper",
        "--set",
        "repair.draws=20",
        "--set",
        "repair.budget=5",
    )
    ran = run("debias", *given, *quick, "--out", "repaired", "--json")
    assert ran.code == 0, ran.err
    assert json.loads((local / "repaired" / "run.json").read_text())["method"] == method
    assert (local / "repaired" / "original.onnx").read_bytes() == original
    (local / "net.onnx").unlink()
    ran = run("apply", "repaired", "local.csv", "--out", "decisions.csv")
    assert ran.code == 0, ran.err
    found = pd.read_csv(local / "decisions.csv")
    with torch.no_grad():
        before = torch.sigmoid(network(torch.from_numpy(x))[:, -1]).numpy()
    assert np.abs(found["score"] - before).max() > 0.001
    session = onnxruntime.InferenceSession(str(local / "repaired" / "model.onnx"), providers=["CPUExecutionProvider"])
    score, decision = session.run(["score", "decision"], {"input": x})
    np.testing.assert_allclose(found["score"], score, atol=1e-6)
    clear = np.abs(found["score"] - json.loads((local / "repaired" / "rule.json").read_text())["value"]) > 1e-6
    np.testing.assert_array_equal(found["decision"][clear], decision[clear])


def test_known_scores_of_an_estimator_are_checked_before_its_repair(run, local):
    known = LOCAL[["patient"]].assign(p=MODEL.predict_proba(LOCAL[["marker", "ward"]])[:, 1])
    known.to_csv(local / "known.csv", index=False)
    known.assign(p=1 - known.p).to_csv(local / "wrong.csv", index=False)
    repair = (
        "debias",
        "local.csv",
        *ROLES,
        "--set",
        "data.id=patient",
        "--model",
        "model.joblib",
        "--set",
        "model.trust_pickle=true",
        *RULE,
        "--set",
        "model.known=p",
    )
    wrong = run(*repair, "--set", "model.check_scores=wrong.csv", "--out", "repaired")
    assert wrong.code == 2
    assert says(wrong.err, "wrong.csv", "900 of 900", "negative class")
    assert not (local / "repaired").exists()
    right = run(*repair, "--set", "model.check_scores=known.csv", "--out", "repaired")
    assert right.code == 0, right.err
    assert says(right.out, "known.csv", "900 rows")
    assert "900 rows" in (local / "repaired" / "report.html").read_text()


def test_known_scores_of_an_onnx_file_are_checked_before_its_repair(run, local):
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    convert = pytest.importorskip("skl2onnx", reason="skl2onnx is not installed")
    plain = LogisticRegression().fit(TRAIN[["marker"]].to_numpy(np.float32), TRAIN["sick"])
    network = convert.to_onnx(plain, TRAIN[["marker"]].to_numpy(np.float32)[:1], options={"zipmap": False})
    (local / "net.onnx").write_bytes(network.SerializeToString())
    p = plain.predict_proba(LOCAL[["marker"]].to_numpy(np.float32))[:, 1]
    LOCAL[["patient"]].assign(p=p, q=p + 0.01).to_csv(local / "known.csv", index=False)
    repair = (
        "debias",
        "local.csv",
        *ROLES,
        "--set",
        "data.id=patient",
        "--set",
        "data.features=marker",
        "--model",
        "net.onnx",
        *RULE,
        "--set",
        "report.onnx=false",
    )
    wrong = run(*repair, "--set", "model.check_scores=known.csv", "--set", "model.known=q", "--out", "repaired")
    assert wrong.code == 2, wrong.err
    assert says(wrong.err, "known.csv", "900 of 900")
    right = run(*repair, "--set", "model.check_scores=known.csv", "--set", "model.known=p", "--out", "repaired")
    assert right.code == 0, right.err
    assert says(right.out, "known.csv", "900 rows")
