"""Classifiers that are not networks: their scores are those of the library, and models without scores are refused with the reason."""

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.special import expit
from sklearn.compose import make_column_transformer
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.multioutput import MultiOutputClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.svm import LinearSVC

import equipoise as eq
from equipoise.data import FeatureTable
from equipoise.errors import BadInput, Misuse
from equipoise.models import predictor

RNG = np.random.default_rng(0)
FRAME = pd.DataFrame(
    {
        "age": RNG.integers(20, 90, 400).astype(float),
        "ward": RNG.choice(["medical", "surgical"], 400),
        "sex": RNG.choice(["F", "M"], 400),
        "sick": RNG.integers(0, 2, 400),
    }
)
ROLES = {"label": "sick", "group": "sex", "reference": "M"}
COHORT = eq.Cohort.from_frame(FRAME, **ROLES)
INPUTS = ["age", "ward"]


def pipeline():
    encode = make_column_transformer((OneHotEncoder(), ["ward"]), (StandardScaler(), ["age"]))
    return make_pipeline(encode, LogisticRegression())


@pytest.fixture(scope="module")
def fitted():
    return pipeline().fit(FRAME[INPUTS], FRAME["sick"])


def test_a_pipeline_gets_the_raw_columns_it_was_fitted_on(fitted):
    want = fitted.predict_proba(FRAME[INPUTS])[:, 1]
    np.testing.assert_array_equal(predictor(fitted).scores(FRAME[["sick", "ward", "sex", "age"]]), want)
    found = eq.audit(fitted, COHORT, threshold=0.5)
    assert found["eod"].value == eq.audit(eq.Scores.of(COHORT, want), threshold=0.5)["eod"].value
    parts = eq.split(COHORT, seed=0)
    assert isinstance(parts.test.source, FeatureTable)
    assert eq.audit(fitted, parts.test, valid=parts.valid).rows == len(parts.test)


def test_attributes_of_a_pipeline(fitted):
    found = predictor(fitted)
    assert (found.kind, found.reads, found.columns, found.positive) == ("estimator", "predict_proba", ("age", "ward"), 1)
    assert set(found.libraries) == {"scikit-learn"}
    assert predictor(found) is found


def test_an_estimator_of_arrays_gets_arrays():
    x = FRAME[["age"]].to_numpy()
    fitted = LogisticRegression().fit(x, FRAME["sick"])
    want = fitted.predict_proba(x)[:, 1]
    np.testing.assert_array_equal(predictor(fitted).scores(FRAME[["age"]]), want)
    np.testing.assert_array_equal(predictor(fitted).scores(torch.tensor(x)), want)
    with pytest.raises(BadInput, match=r"fitted on 1 columns.*2 \(age, more\)"):
        predictor(fitted).scores(FRAME[["age"]].assign(more=1.0))
    with pytest.raises(BadInput, match="'ward' hold text"):
        predictor(fitted).scores(FRAME[["ward"]])


def test_an_array_of_another_width_is_refused_with_both_widths():
    model = LogisticRegression().fit(np.random.default_rng(0).normal(size=(20, 2)), np.arange(20) % 2)
    with pytest.raises(BadInput, match=r"fitted on 2 columns and the rows have 4"):
        predictor(model).scores(np.zeros((3, 4)))


def test_a_decision_function_is_mapped_so_that_its_decision_is_at_a_half():
    fitted = LinearSVC().fit(FRAME[["age"]], FRAME["sick"])
    found = predictor(fitted).scores(FRAME)
    np.testing.assert_allclose(found, expit(fitted.decision_function(FRAME[["age"]])))
    assert ((found >= 0.5) == (fitted.predict(FRAME[["age"]]) == 1)).all()


def test_the_positive_class_of_words_must_be_named():
    words = np.where(FRAME["sick"], "ill", "well")
    fitted = LogisticRegression().fit(FRAME[["age"]], words)
    with pytest.raises(BadInput, match=r"'ill' and 'well'.*positive="):
        eq.audit(fitted, COHORT)
    np.testing.assert_array_equal(eq.predictor(fitted, positive="ill").scores(FRAME), fitted.predict_proba(FRAME[["age"]])[:, 0])
    machine = LinearSVC().fit(FRAME[["age"]], words)
    np.testing.assert_allclose(predictor(machine, positive="ill").scores(FRAME), expit(-machine.decision_function(FRAME[["age"]])))
    with pytest.raises(BadInput, match="'dead' is none of"):
        predictor(fitted, positive="dead")


@pytest.mark.parametrize(
    ("library", "name"), [("xgboost", "XGBClassifier"), ("lightgbm", "LGBMClassifier"), ("catboost", "CatBoostClassifier")]
)
@pytest.mark.filterwarnings("ignore")
def test_boosted_trees_of_other_libraries(library, name):
    module = pytest.importorskip(library, reason=f"{library} is not installed")
    quiet = {"verbose": 0, "allow_writing_files": False} if library == "catboost" else {"n_jobs": 1}
    fitted = getattr(module, name)(n_estimators=3, **quiet).fit(FRAME[["age"]], FRAME["sick"])
    np.testing.assert_allclose(predictor(fitted).scores(FRAME), fitted.predict_proba(FRAME[["age"]])[:, 1])
    assert predictor(fitted).columns == ("age",)
    assert set(predictor(fitted).libraries) == {library}
    of_arrays = getattr(module, name)(n_estimators=3, **quiet).fit(FRAME[["age"]].to_numpy(), FRAME["sick"])
    np.testing.assert_allclose(predictor(of_arrays).scores(FRAME[["age"]]), fitted.predict_proba(FRAME[["age"]])[:, 1])


def test_a_function_gets_the_frame_or_the_tensor():
    np.testing.assert_allclose(predictor(lambda rows: rows["age"] / 100).scores(FRAME), FRAME["age"] / 100)
    tensor = torch.rand(5, 3)
    np.testing.assert_allclose(predictor(lambda x: x[:, 0]).scores(tensor), tensor[:, 0])
    two = np.stack([1 - FRAME["age"] / 100, FRAME["age"] / 100], 1)
    np.testing.assert_allclose(predictor(lambda _rows: two).scores(FRAME), FRAME["age"] / 100)
    logits = eq.audit(lambda rows: rows["age"] - 50, COHORT, output="logit", threshold=0.5)
    assert logits["spd"].value == eq.audit(lambda rows: expit(rows["age"] - 50), COHORT, threshold=0.5)["spd"].value


def test_invalid_outputs_of_a_function_are_refused():
    with pytest.raises(BadInput, match=r"outside \[0, 1\].*logit"):
        eq.audit(lambda rows: rows["age"], COHORT)
    with pytest.raises(BadInput, match=r"\(400, 3\)"):
        eq.audit(lambda rows: np.zeros((len(rows), 3)), COHORT)
    with pytest.raises(BadInput, match="NaN or infinity for 400"):
        eq.audit(lambda rows: rows["age"] * np.nan, COHORT)
    with pytest.raises(BadInput, match=r"KeyError.*age, ward"):
        eq.audit(lambda rows: rows["weight"], COHORT)


def test_a_model_that_reads_the_group_needs_it_as_an_input():
    both = FRAME.assign(sex=(FRAME["sex"] == "F").astype(int))
    fitted = LogisticRegression().fit(both[["age", "sex"]], both["sick"])
    with pytest.raises(BadInput, match=r"'sex'.*attribute_as_input=True"):
        eq.audit(fitted, eq.Cohort.from_frame(both, **ROLES | {"reference": "0"}))
    with_it = eq.Cohort.from_frame(both, attribute_as_input=True, **ROLES | {"reference": "0"})
    assert eq.audit(fitted, with_it).rows == 400


def test_models_without_scores_are_refused():
    with pytest.raises(BadInput, match="LogisticRegression is not fitted"):
        eq.audit(LogisticRegression(), COHORT)
    with pytest.raises(Misuse, match="fitted instance"):
        eq.audit(LogisticRegression, COHORT)
    with pytest.raises(Misuse, match="predicts a number"):
        predictor(LinearRegression())
    with pytest.raises(BadInput, match="3 classes"):
        predictor(LogisticRegression().fit(FRAME[["age"]], np.arange(400) % 3))
    several = MultiOutputClassifier(LogisticRegression()).fit(FRAME[["age"]], np.stack([FRAME["sick"]] * 2, 1))
    with pytest.raises(BadInput, match="several outputs"):
        predictor(several)
    labels = eq.Cohort.from_frame(FRAME.assign(tired=FRAME["sick"]), label=["sick", "tired"], group="sex", reference="M")
    with pytest.raises(BadInput, match=r"2 labels.*labelled\('sick'\)"):
        eq.audit(LogisticRegression().fit(FRAME[["age"]], FRAME["sick"]), labels)
