"""Decision curves: against the textbook formula row by row, laws, and coverage by simulation."""

import numpy as np
import pandas as pd
import pytest
from scipy.special import expit

from equipoise.errors import BadInput
from equipoise.measures.audit_spec import thresholds_of
from equipoise.measures.calibration import ScoredRows
from equipoise.measures.score_measures import CURVE_COLUMNS, decision_curves

THRESHOLDS = (0.05, 0.1, 0.2, 0.35, 0.5)


def rows(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = -1 + 1.3 * rng.normal(size=n)
    return np.round(expit(x), 2), (rng.random(n) < expit(x)).astype(int)


def curve(p: np.ndarray, y: np.ndarray, code: np.ndarray, units: np.ndarray | None = None, w: np.ndarray | None = None) -> pd.DataFrame:
    groups = int(code.max()) + 1
    scored = ScoredRows.of(p, y, code, groups, np.arange(len(p)) if units is None else units, w)
    return decision_curves(scored, "sex", [f"g{k}" for k in range(groups)], THRESHOLDS, 0.95, 5)


def test_net_benefit_is_the_sum_over_rows() -> None:
    p, y = rows(500)
    code = np.arange(500) % 2
    weight = np.random.default_rng(1).uniform(0.2, 3, 500)
    for w in (None, weight):
        found = curve(p, y, code, w=w)
        assert list(found.columns) == CURVE_COLUMNS
        assert len(found) == 2 * len(THRESHOLDS)
        for row in found.itertuples():
            own = code == int(row.group[1:])
            each = [1.0 if label else -row.threshold / (1 - row.threshold) for label in y[own]]
            mass = np.ones(own.sum()) if w is None else w[own]
            gained = sum(m * worth for m, worth, score in zip(mass, each, p[own], strict=True) if score >= row.threshold)
            assert row.net_benefit == pytest.approx(gained / mass.sum(), abs=1e-12)
            assert row.treat_all == pytest.approx(np.average(each, weights=mass), abs=1e-12)
            assert row.treat_none == 0.0
            assert row.low < row.net_benefit < row.high


def test_a_threshold_that_nobody_reaches_has_an_interval_that_is_no_point() -> None:
    p, y = np.full(60, 0.01), (np.arange(60) < 20).astype(int)
    found = curve(p, y, np.zeros(60, int))
    assert (found["net_benefit"] == 0).all()
    assert (found["low"] < 0).all()
    assert (found["high"] > 0).all()


def test_copies_of_rows_of_the_same_patients_add_no_precision() -> None:
    p, y = rows(300)
    again = np.tile(np.arange(300), 2)
    one = curve(p, y, np.zeros(300, int))
    two = curve(p[again], y[again], np.zeros(600, int), again)
    assert two["net_benefit"].to_numpy() == pytest.approx(one["net_benefit"].to_numpy())
    assert (two["high"] - two["low"]).to_numpy() == pytest.approx((one["high"] - one["low"]).to_numpy(), rel=0.05)


def test_weights_of_one_change_nothing() -> None:
    p, y = rows(200)
    pd.testing.assert_frame_equal(curve(p, y, np.zeros(200, int)), curve(p, y, np.zeros(200, int), w=np.ones(200)))


@pytest.mark.parametrize("text", ["", "0.1", "0.5:0.1", "0:0.5", "0.1:1", "a:b", "0.1:0.2:0", "0.1:0.2:0.1:5", "0.1:0.9:0.0001", "nan:0.5"])
def test_a_range_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(BadInput):
        thresholds_of(text)


def test_coverage() -> None:
    groups, n = 300, 150
    p, y = rows(groups * n, 5)
    large, truth_y = rows(1_000_000, 6)
    found = curve(p, y, np.repeat(np.arange(groups), n))
    for t in THRESHOLDS:
        truth = np.mean((large >= t) * np.where(truth_y == 1, 1.0, -t / (1 - t)))
        own = found[found["threshold"] == t]
        assert 0.91 < np.mean((own["low"] <= truth) & (truth <= own["high"])) < 0.99
