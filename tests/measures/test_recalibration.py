"""The increasing map of scores: Platt's, against scikit-learn's logistic regression on his targets."""

import numpy as np
import pytest
from scipy.special import expit, logit
from sklearn.linear_model import LogisticRegression

from equipoise.measures import Calibration, LogitMap, logit_map


def _scores(n: int = 800, slope: float = 2.0, shift: float = 1.0, seed: int = 0):
    rng = np.random.default_rng(seed)
    z = rng.normal(size=n)
    return expit(slope * z + shift), (rng.random(n) < expit(z)).astype(int), rng.integers(1, 4, n).astype(float)


@pytest.mark.parametrize("weighted", [False, True])
def test_the_map_is_the_logistic_regression_on_platts_targets(weighted):
    score, y, weight = _scores()
    w = weight if weighted else np.ones(len(y))
    high, low = (w @ y + 1) / (w @ y + 2), 1 / (w @ (1 - y) + 2)
    target = np.where(y == 1, high, low)
    rows = np.concatenate([logit(score), logit(score)])[:, None]  # each row as a share of either label
    theirs = LogisticRegression(C=1e12, tol=1e-10, max_iter=1000)
    theirs.fit(rows, np.repeat([1, 0], len(y)), sample_weight=np.concatenate([w * target, w * (1 - target)]))
    found = logit_map(score, y, weight if weighted else None)
    assert found.slope == pytest.approx(theirs.coef_[0, 0], abs=1e-4)
    assert found.intercept == pytest.approx(theirs.intercept_[0], abs=1e-4)


def test_recalibrated_scores_fit_the_labels_and_keep_their_order():
    score, y, _ = _scores(5000)
    found = logit_map(score, y)
    new = found(score)
    assert np.array_equal(np.argsort(score, kind="stable"), np.argsort(new, kind="stable"))
    before, after = Calibration.of(score, y), Calibration.of(new, y)
    assert before.in_the_large > 0.1
    assert before.slope == pytest.approx(0.5, abs=0.05)
    assert (after.in_the_large, after.slope) == pytest.approx((0.0, 1.0), abs=2e-3)
    assert after.error < 0.03 < before.error


def test_scores_that_separate_the_labels_or_are_certain_have_a_finite_map():
    found = logit_map(np.array([0.0, 0.2, 0.8, 1.0]), np.array([0, 0, 1, 1]))
    assert np.isfinite([found.slope, found.intercept]).all()
    assert found.slope > 0


def test_there_is_no_map_where_none_increases():
    score, y, _ = _scores()
    assert logit_map(score, 1 - y) is None
    assert logit_map(np.full(10, 0.3), np.arange(10) % 2) is None
    assert logit_map(score, np.ones(len(y), int)) is None


def test_a_map_is_what_it_says():
    z = np.linspace(-4, 4, 9)
    np.testing.assert_allclose(logit(LogitMap(0.5, -1.0)(expit(z))), 0.5 * z - 1.0, atol=1e-9)
