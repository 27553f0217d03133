"""Sensitivity at a fixed specificity and the reverse: against scikit-learn's ROC curve, and coverage by simulation."""

import numpy as np
import pytest
from scipy.special import expit
from sklearn.metrics import roc_curve

from equipoise.measures.calibration import TOO_FEW, ScoredRows
from equipoise.measures.score_measures import operating_points


def test_the_values_lie_on_the_roc_curve_of_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    n = 900
    code, x = np.arange(n) % 3, rng.normal(size=n)
    y, p = (rng.random(n) < expit(x - 1)).astype(int), np.round(expit(x), 2)  # with ties
    weight = rng.uniform(0.5, 2, n)
    for w in (None, weight):
        sensitivity, specificity = operating_points(ScoredRows.of(p, y, code, 3, np.arange(n), w), 0.9, 0.8, 0.95, 5)
        for k in range(3):
            own = code == k
            fpr, tpr, _ = roc_curve(y[own], p[own], sample_weight=None if w is None else w[own], drop_intermediate=False)
            assert sensitivity.value[k] == pytest.approx(np.interp(0.1, fpr, tpr), abs=1e-9)
            assert specificity.value[k] == pytest.approx(1 - np.interp(0.8, tpr, fpr), abs=1e-9)


def test_a_perfect_score_is_not_certain() -> None:
    p, y = np.linspace(0.01, 0.99, 60), (np.arange(60) >= 40).astype(int)
    sensitivity, specificity = operating_points(ScoredRows.of(p, y, np.zeros(60, int), 1, np.arange(60)), 0.9, 0.9, 0.95, 5)
    for found in (sensitivity, specificity):
        assert found.value[0] == 1.0
        assert found.low[0] < 0.9
        assert found.high[0] == 1.0


def test_few_patients_of_one_label_are_insufficient() -> None:
    p, y = np.linspace(0.01, 0.99, 60), (np.arange(60) >= 57).astype(int)
    for found in operating_points(ScoredRows.of(p, y, np.zeros(60, int), 1, np.arange(60)), 0.9, 0.9, 0.95, 5):
        assert found.why == (TOO_FEW,)
        assert np.isnan(found.value[0])


def test_copies_of_rows_of_the_same_patients_add_no_precision() -> None:
    rng = np.random.default_rng(4)
    x = rng.normal(size=200)
    y, p = (rng.random(200) < expit(x)).astype(int), expit(x)
    one = operating_points(ScoredRows.of(p, y, np.zeros(200, int), 1, np.arange(200)), 0.9, 0.9, 0.95, 5)
    again = np.tile(np.arange(200), 3)
    three = operating_points(ScoredRows.of(p[again], y[again], np.zeros(600, int), 1, again), 0.9, 0.9, 0.95, 5)
    for single, copied in zip(one, three, strict=True):
        assert copied.value == pytest.approx(single.value)
        assert copied.high - copied.low == pytest.approx(single.high - single.low, rel=0.1)


@pytest.mark.parametrize(("rows", "shift"), [(80, -0.8), (300, -2.0), (1000, -1.0)])
def test_coverage(rows: int, shift: float) -> None:
    def drawn(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng(seed)
        x = shift + 1.2 * rng.normal(size=n)
        return expit(x), (rng.random(n) < expit(x)).astype(int)

    p, y = drawn(400_000, 1)
    fpr, tpr, _ = roc_curve(y, p)
    groups = 300
    p, y = drawn(rows * groups, 2)
    found = operating_points(ScoredRows.of(p, y, np.repeat(np.arange(groups), rows), groups, np.arange(rows * groups)), 0.9, 0.8, 0.95, 5)
    for limits, truth in zip(found, (np.interp(0.1, fpr, tpr), 1 - np.interp(0.8, tpr, fpr)), strict=True):
        known = np.array([not why for why in limits.why])
        covered = np.mean((limits.low <= truth) & (truth <= limits.high), where=known)
        assert covered > 0.92  # with few of the rarer label it is above 0.95: what lies beyond the outermost score is not known
