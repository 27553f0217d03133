"""Estimators from files: no code runs without the user's consent, and a missing library is named with its pip command."""

import copy
import pickle

import joblib
import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler

from equipoise.errors import BadInput, Untrusted
from equipoise.models.classifiers import load_predictor

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(50, 2)), RNG.integers(0, 2, 50)


def fitted(*before):
    return make_pipeline(*before, LogisticRegression()).fit(X, Y)


class Bomb:
    """Creates a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (self.path, "w")


def test_a_skops_file_of_scikit_learn(tmp_path):
    skops = pytest.importorskip("skops.io", reason="skops is not installed")
    model = fitted(StandardScaler())
    skops.dump(model, tmp_path / "model.skops")
    np.testing.assert_array_equal(load_predictor(tmp_path / "model.skops").scores(X), model.predict_proba(X)[:, 1])
    (tmp_path / "model.skops").write_bytes(b"nothing")
    with pytest.raises(BadInput, match=r"model\.skops cannot be read"):
        load_predictor(tmp_path / "model.skops")


def test_boosted_trees_of_scikit_learn_need_no_trust(tmp_path):
    skops = pytest.importorskip("skops.io", reason="skops is not installed")
    model = HistGradientBoostingClassifier(max_iter=2).fit(X, Y)
    skops.dump(model, tmp_path / "model.skops")
    np.testing.assert_array_equal(load_predictor(tmp_path / "model.skops").scores(X), model.predict_proba(X)[:, 1])


def test_types_that_skops_does_not_know_are_listed_and_nothing_is_read(tmp_path):
    skops = pytest.importorskip("skops.io", reason="skops is not installed")
    skops.dump(fitted(FunctionTransformer(copy.copy)), tmp_path / "model.skops")
    with pytest.raises(Untrusted) as error:
        load_predictor(tmp_path / "model.skops")
    named = skops.get_untrusted_types(file=tmp_path / "model.skops")
    assert named
    assert all(f"model.trust_types={name}" in str(error.value) for name in named)
    assert load_predictor(tmp_path / "model.skops", trusted=named).width == 2


@pytest.mark.parametrize("suffix", [".pkl", ".pickle", ".joblib"])
def test_a_pickle_is_read_only_if_it_is_trusted(tmp_path, suffix):
    path, mark = tmp_path / f"model{suffix}", tmp_path / "ran"
    path.write_bytes(pickle.dumps(Bomb(str(mark))))
    with pytest.raises(Untrusted, match=r"model\.trust_pickle=true"):
        load_predictor(path)
    assert not mark.exists()
    model = fitted()
    joblib.dump(model, path)
    np.testing.assert_array_equal(load_predictor(path, trust_pickle=True).scores(X), model.predict_proba(X)[:, 1])


def test_a_library_that_is_not_installed_is_named(tmp_path):
    # The protocol's own opcodes: a class of a module that does not exist.
    (tmp_path / "model.pkl").write_bytes(b"cnotalibrary.trees\nModel\n.")
    with pytest.raises(BadInput, match="pip install notalibrary"):
        load_predictor(tmp_path / "model.pkl", trust_pickle=True)


def test_objects_that_are_no_classifiers_are_refused(tmp_path):
    joblib.dump({"model": fitted()}, tmp_path / "model.joblib")
    with pytest.raises(BadInput, match=r"dict.*predict_proba"):
        load_predictor(tmp_path / "model.joblib", trust_pickle=True)
    with pytest.raises(BadInput, match="no such file"):
        load_predictor(tmp_path / "nowhere.skops")


def test_a_pipeline_with_an_imputer_needs_no_trust(tmp_path):
    skops = pytest.importorskip("skops.io", reason="skops is not installed")
    model = fitted(SimpleImputer(), StandardScaler())
    skops.dump(model, tmp_path / "model.skops")
    np.testing.assert_array_equal(load_predictor(tmp_path / "model.skops").scores(X), model.predict_proba(X)[:, 1])
