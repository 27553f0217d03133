"""Repairs of classifiers that are not networks: a rule on their scores, judged and compared as any other repair."""

import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.compose import make_column_transformer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import equipoise as eq
from equipoise.errors import BadInput, Misuse, Untrusted
from equipoise.models import load_model, predict, to_onnx
from support.ward import patients

ROLES = {"label": "sick", "group": "sex", "reference": "M"}


@pytest.fixture(scope="module")
def case():
    frame = patients(2700)
    encode = make_column_transformer((OneHotEncoder(), ["ward"]), (StandardScaler(), ["marker"]))
    model = make_pipeline(encode, LogisticRegression()).fit(*[frame.iloc[:300][c] for c in (["marker", "ward"], "sick")])
    cohort = eq.Cohort.from_frame(frame.iloc[300:], **ROLES)
    thirds = [cohort.take(range(at, at + 800)) for at in (0, 800, 1600)]
    return model, eq.Parts(*thirds)


@pytest.fixture(scope="module")
def blind(case):
    model, parts = case
    return eq.debias(model, parts.valid, method="bias-score", max_loss=0.1)


def test_a_rule_by_group(case):
    model, parts = case
    result = eq.debias(model, parts.valid, method="group-thresholds", max_loss=0.1)
    assert result.model.model is model
    assert result.rule.needs_group
    before, after = (abs(eq.audit(each, parts.test)["eod"].value) for each in (model, result))
    assert after < before
    scores = eq.Scores.of(parts.test, model.predict_proba(parts.test.source.frame)[:, 1])
    assert eq.audit(result, parts.test)["eod"].value == eq.audit(scores, rule=result.rule)["eod"].value
    assert eq.audit(result, scores)["eod"].value == eq.audit(scores, rule=result.rule)["eod"].value
    rule = eq.debias(eq.Scores.of(parts.valid, model.predict_proba(parts.valid.source.frame)[:, 1]), method="group-thresholds")
    assert rule.model is None
    assert eq.audit(rule, scores).to_dict() == eq.audit(scores, rule=rule.rule).to_dict()


def test_bias_score_reads_the_raw_columns_and_no_group(case, blind):
    model, parts = case
    assert not blind.rule.needs_group
    assert blind.rule.columns == ("marker", "ward")
    assert abs(eq.audit(blind, parts.test)["eod"].value) < abs(eq.audit(model, parts.test)["eod"].value)


def test_bias_score_reads_only_columns_that_the_model_was_fitted_on(case):
    model, parts = case
    source = parts.valid.source
    leaking = replace(parts.valid, source=replace(source, frame=source.frame.assign(sick01=parts.valid.y)))
    result = eq.debias(model, leaking, method="bias-score", max_loss=0.1)
    assert result.rule.columns == ("marker", "ward")


def test_compared_with_the_original(case, blind, tmp_path):
    model, parts = case
    both = eq.compare({"original": model, "repaired": blind}, parts.test, valid=parts.valid)
    assert both.outcome == both.judgement.outcome
    assert both.found.after.rows == len(parts.test)
    assert both.report(tmp_path / "report.html").stat().st_size > 10_000


def test_arrays_and_functions(case):
    rng = np.random.default_rng(1)
    x, y, sex = rng.normal(size=(400, 3)), rng.integers(0, 2, 400), rng.choice(["F", "M"], 400)
    cohort = eq.Cohort.from_arrays(torch.from_numpy(x), y, sex, reference="M")
    model = LogisticRegression().fit(x, y)
    assert eq.debias(model, cohort, method="group-thresholds").model.model is model
    found = eq.debias(lambda rows: torch.sigmoid(rows[:, 0]), cohort, method="single-threshold")
    assert found.model.kind == "function"


def test_arguments_for_networks_are_rejected(case):
    model, parts = case
    with pytest.raises(BadInput, match="train"):
        eq.debias(model, parts.valid, train=parts.train)
    with pytest.raises(BadInput, match=r"bias-gda"):
        eq.debias(model, parts.valid, method="bias-gda")
    with pytest.raises(Misuse, match="fitted instance"):
        eq.debias(LogisticRegression, parts.valid)


@pytest.mark.parametrize("method", ["group-thresholds", "bias-score"])
def test_a_bundle_decides_on_raw_rows(case, blind, tmp_path, method):
    pytest.importorskip("skops", reason="skops is not installed")
    model, parts = case
    result = blind if method == "bias-score" else eq.debias(model, parts.valid, method=method, max_loss=0.1)
    folder = eq.compare({"original": model, "repaired": result}, parts.test).save(tmp_path / "bundle")
    bundle = eq.Bundle.load(folder)
    assert bundle.predictor.columns == ("marker", "ward")
    new = patients(50, seed=9)
    found = bundle.decide(new.drop(columns=["sick"] + ([] if result.rule.needs_group else ["sex"])))
    np.testing.assert_array_equal(found["score"], model.predict_proba(new)[:, 1])
    cohort = eq.Cohort.from_frame(new, **ROLES)
    np.testing.assert_array_equal(found["decision"], result.rule.decide(predict(result.model, cohort)))
    np.testing.assert_array_equal(bundle.decide(cohort)["decision"], found["decision"])
    (folder / "predictor.skops").write_bytes(b"damaged")
    with pytest.raises(BadInput, match=r"predictor\.skops is not the file"):
        eq.Bundle.load(folder)


def test_a_bundle_of_an_estimator_without_names_reads_the_features_of_the_repair_from_a_wider_table(tmp_path):
    pytest.importorskip("skops", reason="skops is not installed")
    frame, later = patients(900), patients(50, seed=9)
    model = LogisticRegression().fit(frame[["marker"]].to_numpy(), frame["sick"])
    valid, test = (eq.Cohort.from_frame(rows, **ROLES, features=["marker"]) for rows in (frame.iloc[:500], frame.iloc[500:]))
    result = eq.debias(model, valid, method="group-thresholds", max_loss=0.1)
    bundle = eq.Bundle.load(eq.compare({"original": model, "repaired": result}, test).save(tmp_path / "bundle"))
    assert {"ward", "sex"} < set(later)
    np.testing.assert_array_equal(bundle.decide(later)["score"], model.predict_proba(later[["marker"]].to_numpy())[:, 1])


def test_a_pickled_estimator_and_a_function_in_a_bundle(case, tmp_path, monkeypatch):
    model, parts = case
    monkeypatch.setitem(sys.modules, "skops", None)
    monkeypatch.setitem(sys.modules, "skops.io", None)
    result = eq.debias(model, parts.valid, method="group-thresholds", max_loss=0.1)
    folder = eq.compare({"original": model, "repaired": result}, parts.test).save(tmp_path / "bundle")
    with pytest.raises(Untrusted, match="trust"):
        eq.Bundle.load(folder)
    assert len(eq.Bundle.load(folder, trust=True).decide(patients(20))) == 20

    def marker(rows):
        return 1 / (1 + np.exp(-rows["marker"]))

    result = eq.debias(marker, parts.valid, method="group-thresholds", max_loss=0.1)
    folder = eq.compare({"original": marker, "repaired": result}, parts.test).save(tmp_path / "function")
    with pytest.raises(BadInput, match="model=function"):
        eq.Bundle.load(folder)
    assert len(eq.Bundle.load(folder, model=marker).decide(patients(20))) == 20


@pytest.mark.parametrize(
    ("library", "name"), [("xgboost", "XGBClassifier"), ("lightgbm", "LGBMClassifier"), ("catboost", "CatBoostClassifier")]
)
@pytest.mark.filterwarnings("ignore")
def test_boosted_trees_of_other_libraries_are_repaired_and_served(library, name, tmp_path):
    module = pytest.importorskip(library, reason=f"{library} is not installed")
    quiet = {"verbose": 0, "allow_writing_files": False} if library == "catboost" else {"n_jobs": 1}
    frame = patients(1500).assign(age=np.arange(1500) % 60)
    model = getattr(module, name)(n_estimators=5, max_depth=2, **quiet).fit(frame.iloc[:300][["marker", "age"]], frame.iloc[:300]["sick"])
    repair, test = (eq.Cohort.from_frame(frame.iloc[rows], **ROLES) for rows in (slice(300, 900), slice(900, 1500)))
    result = eq.debias(model, repair, method="group-thresholds", max_loss=0.1)
    assert abs(eq.audit(result, test)["eod"].value) < abs(eq.audit(model, test)["eod"].value)
    folder = eq.compare({"original": model, "repaired": result}, test).save(tmp_path / "bundle")
    new = patients(40, seed=5).assign(age=30)
    found = eq.Bundle.load(folder, trust=True).decide(new.drop(columns="sick"))
    np.testing.assert_allclose(found["score"], model.predict_proba(new[["marker", "age"]])[:, 1], rtol=1e-6)


def test_a_bundle_of_an_onnx_file(tmp_path):
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    import onnxruntime

    frame = patients(1200)
    x = np.column_stack([frame["marker"], frame["ward"] == "medical"]).astype(np.float32)
    cohort = eq.Cohort.from_arrays(torch.from_numpy(x), frame["sick"], frame["sex"], reference="M")
    network = torch.nn.Linear(2, 1)
    with torch.no_grad():
        network.weight.copy_(torch.tensor([[1.0, 0.0]]))
    to_onnx(network, cohort.inputs, tmp_path / "net.onnx")
    repair, test = cohort.take(range(700)), cohort.take(range(700, 1200))
    model = load_model(str(tmp_path / "net.onnx"))
    result = eq.debias(model, repair, method="bias-score", max_loss=0.2, recalibrate=False)
    folder = eq.compare({"original": model, "repaired": result}, test).save(tmp_path / "bundle")
    (tmp_path / "net.onnx").unlink()
    want = result.rule.decide(predict(result.model, test))
    np.testing.assert_array_equal(eq.Bundle.load(folder).decide(test)["decision"], want)
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"), providers=["CPUExecutionProvider"])
    np.testing.assert_array_equal(session.run(["decision"], {"input": x[700:]})[0], want)
