"""Regressions for all folds and penalties: each equals a separate fit of scikit-learn."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from equipoise.models import probes as logistic
from equipoise.models.probes import PenaltyFit, fits, probabilities

PENALTIES = (1e-4, 1e-2, 1.0)


def _case(seed: int, n: int = 900, d: int = 12, far: float = 0.5, classes: int = 2):
    rng = np.random.default_rng(seed)
    target = rng.integers(0, classes, n)
    z = rng.normal(size=(n, d)) + far * target[:, None] * (np.arange(d) < 4)
    z[:, 0] *= 30  # a feature that is hardly penalised
    folds = rng.integers(-1, 5, n)  # some rows are never held out
    known = (rng.random(n) < 0.8) | (folds < 0)
    counts = np.where(folds < 0, rng.uniform(0.3, 3.0, n), 1.0)
    return z, target, classes, folds, known, counts


def _oracle(z, target, counts, penalty):
    return LogisticRegression(C=penalty, tol=1e-9, max_iter=100_000).fit(z, target, sample_weight=counts)


def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_):
        raise AssertionError("scikit-learn was asked")

    monkeypatch.setattr(logistic, "regression", never)


@pytest.mark.parametrize(("n", "d"), [(900, 12), (100, 30)])
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("far", [0.0, 0.5, 3.0])
def test_newton_agrees_with_scikit_learn(seed: int, far: float, n: int, d: int, monkeypatch: pytest.MonkeyPatch):
    z, target, _classes, folds, known, counts = case = _case(seed, n, d, far=far)
    _quick(monkeypatch)
    found = list(fits(*case, PENALTIES))
    assert [fit.penalty for fit in found] == list(PENALTIES)
    for fit in found:
        whole = _oracle(z[known], target[known], counts[known], fit.penalty)
        assert probabilities(*fit.final(), z) == pytest.approx(whole.predict_proba(z), abs=2e-3)
        for fold in range(5):
            own, out = known & (folds != fold), folds == fold
            expected = _oracle(z[own], target[own], counts[own], fit.penalty).predict_proba(z[out])
            assert fit.held_out[out] == pytest.approx(expected, abs=2e-3)


def test_three_classes_and_many_features_use_scikit_learn(monkeypatch: pytest.MonkeyPatch):
    asked = []
    real = logistic.regression
    monkeypatch.setattr(logistic, "regression", lambda *given: asked.append(given) or real(*given))
    assert len(list(fits(*_case(0, classes=3), PENALTIES))) == 3
    assert len(asked) == 15  # five folds each; the final one is made when it is asked for
    list(fits(*_case(0, n=100, d=logistic.NARROW_FEATURES + 1), PENALTIES))
    assert len(asked) == 30


def test_a_class_found_only_in_one_fold_has_probability_zero_without_it():
    z, _, _, folds, known, counts = _case(0)
    target = (folds == 2).astype(int)  # all of one class in one fold: without it there is nothing to learn
    fit = next(fits(z, target, 2, folds, known, counts, (1e-2,)))
    assert (fit.held_out[folds == 2, 1] == 0).all()


def test_without_convergence_scikit_learn_takes_over(monkeypatch: pytest.MonkeyPatch):
    case = _case(1)
    quick: list[PenaltyFit] = list(fits(*case, PENALTIES))
    monkeypatch.setattr(logistic._Newton, "fit", lambda self, penalty: None)
    slow = list(fits(*case, PENALTIES))
    assert [fit.penalty for fit in slow] == list(PENALTIES)
    for one, other in zip(quick, slow, strict=True):
        held_out = case[3] >= 0
        assert one.held_out[held_out] == pytest.approx(other.held_out[held_out], abs=5e-3)


def test_separable_classes_converge(monkeypatch: pytest.MonkeyPatch):
    """A table that has the group among its columns: only the ridge penalty keeps the weights finite."""
    z, target, classes, folds, known, counts = _case(2)
    z[:, 1] = 8 * target
    _quick(monkeypatch)
    found = list(fits(z, target, classes, folds, known, counts, (1e-5, 1e-3, 1e-1, 1.0, 1e3)))
    assert len(found) == 5
    assert found[-1].held_out[folds >= 0][np.arange((folds >= 0).sum()), target[folds >= 0]].min() > 0.99
