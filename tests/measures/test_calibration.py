"""Calibration per group: against scikit-learn's logistic regression, laws of weights and clusters, and error rates by simulation."""

import numpy as np
import pytest
from scipy.special import expit, logit
from scipy.stats import norm
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import brier_score_loss

from equipoise.measures.calibration import CERTAIN, CONSTANT, SEPARATED, TOO_FEW, ScoredRows, brier, recalibration_limits
from equipoise.measures.cells import FloatArray, IntArray
from equipoise.measures.score_measures import binned_error


def simulated(
    rows: int, groups: int, seed: int, *, slope: float = 1.0, offset: float = 0.0, mean: float = -1.5, each: int = 1
) -> tuple[FloatArray, IntArray, IntArray, IntArray]:
    """Scores, labels, groups and patients of `groups` groups with `rows` rows each; labels of a patient are correlated."""
    rng = np.random.default_rng(seed)
    n = rows * groups
    code, patient = np.repeat(np.arange(groups), rows), np.arange(n) // each
    own = rng.normal(size=(2, n // each))[:, patient] if each > 1 else np.zeros((2, n))
    share = np.sqrt(0.5) if each > 1 else 1.0
    x = mean + 1.2 * (np.sqrt(1 - share**2) * own[0] + share * rng.normal(size=n))
    chance = expit(offset + slope * x)
    y = norm.cdf(np.sqrt(1 - share**2) * own[1] + share * rng.normal(size=n)) < chance
    return expit(x), y.astype(np.int64), code, patient


def test_slope_intercept_and_brier_of_each_group_are_those_of_scikit_learn() -> None:
    p, y, code, patient = simulated(400, 3, 0, slope=0.7, offset=0.4)
    weight = np.random.default_rng(1).uniform(0.5, 3.0, len(p))
    for w in (None, weight):
        rows = ScoredRows.of(p, y, code, 3, patient, w)
        intercept, slope, large = recalibration_limits(rows, 0.95, 5)
        loss = brier(rows, 0.95, 5)
        for k in range(3):
            own = code == k
            weights = None if w is None else w[own]
            fitted = LogisticRegression(C=np.inf, tol=1e-10, max_iter=1000).fit(logit(p[own])[:, None], y[own], sample_weight=weights)
            assert slope.value[k] == pytest.approx(fitted.coef_[0, 0], abs=1e-5)
            shifted = expit(intercept.value[k] + logit(p[own]))
            assert np.average(shifted - y[own], weights=weights) == pytest.approx(0.0, abs=1e-9)
            assert large.value[k] == pytest.approx(np.average(p[own] - y[own], weights=weights), abs=1e-12)
            assert loss.value[k] == pytest.approx(brier_score_loss(y[own], p[own], sample_weight=weights), abs=1e-12)
        for found in (intercept, slope, large, loss):
            assert (found.low < found.value).all()
            assert (found.value < found.high).all()


def test_integer_weights_give_the_values_of_replicated_rows_and_weights_of_one_change_nothing() -> None:
    p, y, code, patient = simulated(200, 2, 3)
    times = np.random.default_rng(2).integers(1, 4, len(p))
    rows = np.repeat(np.arange(len(p)), times)
    plain = ScoredRows.of(p, y, code, 2, patient)
    weighted = ScoredRows.of(p, y, code, 2, patient, times.astype(float))
    replicated = ScoredRows.of(p[rows], y[rows], code[rows], 2, patient[rows])
    for one, other in zip(
        (*recalibration_limits(weighted, 0.95, 5), brier(weighted, 0.95, 5)),
        (*recalibration_limits(replicated, 0.95, 5), brier(replicated, 0.95, 5)),
        strict=True,
    ):
        assert one.value == pytest.approx(other.value, abs=1e-8)
    assert binned_error(weighted, 0.95, 0).value == pytest.approx(binned_error(replicated, 0.95, 0).value, abs=1e-12)
    unit = ScoredRows.of(p, y, code, 2, patient, np.ones(len(p)))
    for one, other in zip(
        (*recalibration_limits(unit, 0.95, 5), brier(unit, 0.95, 5)),
        (*recalibration_limits(plain, 0.95, 5), brier(plain, 0.95, 5)),
        strict=True,
    ):
        assert one.value.tolist() == other.value.tolist()
        assert one.low.tolist() == other.low.tolist()
    scaled = ScoredRows.of(p, y, code, 2, patient, 7.5 * times)
    for one, other in zip(recalibration_limits(scaled, 0.95, 5), recalibration_limits(weighted, 0.95, 5), strict=True):
        assert one.low == pytest.approx(other.low, abs=1e-8)
        assert one.high == pytest.approx(other.high, abs=1e-8)


def test_unequal_weights_and_repeated_rows_of_a_patient_widen_the_intervals() -> None:
    p, y, code, patient = simulated(300, 1, 5)
    alone = recalibration_limits(ScoredRows.of(p, y, code, 1, patient), 0.95, 5)
    twice = np.repeat(np.arange(300), 2)
    copied = recalibration_limits(ScoredRows.of(p[twice], y[twice], code[twice], 1, patient[twice]), 0.95, 5)
    for one, other in zip(alone, copied, strict=True):
        assert other.value == pytest.approx(one.value, abs=1e-8)
        assert other.high - other.low == pytest.approx(one.high - one.low, rel=0.1)  # copies change what the model says of the variance
    heavy = np.where(np.arange(300) % 10 == 0, 20.0, 1.0)
    uneven = recalibration_limits(ScoredRows.of(p, y, code, 1, patient, heavy), 0.95, 5)
    for one, other in zip(alone, uneven, strict=True):
        assert (other.high - other.low > 1.3 * (one.high - one.low)).all()


def test_what_cannot_be_fitted_has_a_reason_instead_of_a_number() -> None:
    half = np.arange(40) % 2
    spread = np.linspace(0.1, 0.9, 40)
    cases = {
        TOO_FEW: (spread, (np.arange(40) < 3).astype(int)),
        CONSTANT: (np.full(40, 0.3), half),
        SEPARATED: (spread, (spread > 0.5).astype(int)),
        CERTAIN: (np.append(spread[1:], 0.0), np.append(half[1:], 1)),
    }
    for reason, (p, y) in cases.items():
        intercept, slope, large = recalibration_limits(ScoredRows.of(p, y, np.zeros(40, int), 1, np.arange(40)), 0.95, 5)
        assert slope.why == (reason,)
        assert np.isnan([slope.value[0], slope.low[0], slope.high[0]]).all()
        assert np.isnan(intercept.value[0]) == (reason in (TOO_FEW, CERTAIN))
        assert large.low[0] <= large.value[0] <= large.high[0]
    backwards = recalibration_limits(ScoredRows.of(spread, (spread < 0.5).astype(int), np.zeros(40, int), 1, np.arange(40)), 0.95, 5)[1]
    assert backwards.why == (SEPARATED,)


def test_certain_scores_that_are_right_say_nothing_about_the_slope() -> None:
    p, y, code, patient = simulated(200, 1, 7)
    more = np.concatenate([p, np.zeros(30), np.ones(10)])
    labels = np.concatenate([y, np.zeros(30, int), np.ones(10, int)])
    without = recalibration_limits(ScoredRows.of(p, y, code, 1, patient), 0.95, 5)
    with_them = recalibration_limits(ScoredRows.of(more, labels, np.zeros(240, int), 1, np.arange(240)), 0.95, 5)
    for one, other in zip(without[:2], with_them[:2], strict=True):
        assert other.value == pytest.approx(one.value, abs=1e-8)


def test_without_any_event_the_mean_difference_still_has_an_interval() -> None:
    p = np.full(100, 0.03)
    large = recalibration_limits(ScoredRows.of(p, np.zeros(100), np.zeros(100, int), 1, np.arange(100)), 0.95, 5)[2]
    assert large.value[0] == pytest.approx(0.03)
    assert large.high[0] == pytest.approx(0.03)  # there cannot be fewer than none
    assert -0.02 < large.low[0] < 0.03 - 0.02  # up to 3.7 of 100 may have the finding (Wilson), or 5 (twice the standard error of 3)


@pytest.mark.parametrize("wrong", [0.01, 0.05])
def test_with_nearly_certain_scores_of_which_few_are_wrong_the_mean_difference_and_the_intercept_cover(wrong: float) -> None:
    rng, samples, rows = np.random.default_rng(31), 400, 200
    y = (rng.random(samples * rows) < 0.3).astype(float)
    side = np.where((rng.random(len(y)) >= wrong) == (y == 1), 1, -1)
    p = 1 / (1 + np.exp(-side * rng.uniform(5, 9, len(y))))
    code = np.repeat(np.arange(samples), rows)
    intercept, _, large = recalibration_limits(ScoredRows.of(p, y, code, samples, np.arange(len(y))), 0.95, 5)
    truth = wrong * 0.4 * (1 - 2 * expit(-7.0))  # the wrong among 70 % negatives, less those among 30 % positives
    assert ((large.low <= truth) & (truth <= large.high)).mean() > 0.93
    assert (large.high - large.low).mean() < 0.1
    known = ~np.isnan(intercept.low)
    x = np.log(p / (1 - p))
    shift = np.linspace(-12, 12, 241)
    at = shift[np.argmin(np.abs([expit(x + each).mean() - 0.3 for each in shift]))]
    assert ((intercept.low <= at + 0.1) & (at - 0.1 <= intercept.high))[known].mean() > 0.93


@pytest.mark.parametrize(("rows", "each", "mean"), [(60, 1, -0.8), (200, 1, -2.5), (300, 3, -1.4)])
def test_a_calibrated_model_is_seldom_called_miscalibrated(rows: int, each: int, mean: float) -> None:
    p, y, code, patient = simulated(rows, 300, 11, mean=mean, each=each)
    found = ScoredRows.of(p, y, code, 300, patient)
    intercept, slope, large = recalibration_limits(found, 0.95, 5)
    for limits, truth in ((intercept, 0.0), (slope, 1.0), (large, 0.0)):
        known = np.array([not why for why in limits.why])
        assert known.mean() > 0.95
        false = 1 - np.mean((limits.low <= truth) & (truth <= limits.high), where=known)
        assert 0.01 < false < 0.09  # 5 %, within three standard errors of 300 repetitions
    band = binned_error(found, 0.95, 0)
    assert (band.value > band.high).mean() < 0.05
    assert (band.value < band.low).mean() < 0.05


def test_a_miscalibrated_model_is_found() -> None:
    p, y, code, patient = simulated(400, 100, 13, slope=0.5)
    found = ScoredRows.of(p, y, code, 100, patient)
    slope = recalibration_limits(found, 0.95, 5)[1]
    assert np.mean(slope.high < 1) > 0.95
    band = binned_error(found, 0.95, 0)
    assert np.mean(band.value > band.high) > 0.9
    assert slope.value.mean() == pytest.approx(0.5, abs=0.05)


def test_the_mean_difference_covers_where_scores_are_wrong_by_more_in_some_patients_than_in_others() -> None:
    """About 10 of 200 have the finding, and the scores say 90 to 100: which scores are in the sample matters as much as the labels."""
    p, y, code, patient = simulated(200, 600, 17, offset=-3.5, mean=0.0)
    large = recalibration_limits(ScoredRows.of(p, y, code, 600, patient), 0.95, 5)[2]
    x = np.linspace(-10, 10, 4001)
    truth = np.average(expit(x) - expit(x - 3.5), weights=norm.pdf(x / 1.2))
    missed = np.mean((truth < large.low) | (truth > large.high))
    assert 0.02 < missed < 0.09  # 0.16 if the scores are taken as given


def test_few_patients_with_several_rows_of_one_label_each_keep_the_level() -> None:
    """As in the design 'clustered' of experiments/coverage/simulate.py: four rows per patient, of one label, with correlated scores."""
    groups, patients, rng = 400, 25, np.random.default_rng(25)
    count = groups * patients
    label, size = (rng.random(count) < 0.5).astype(np.int64), 1 + rng.poisson(3, count)
    unit = np.repeat(np.arange(count), size)
    y, code = label[unit], unit // patients
    x = np.sqrt(0.5) * (rng.normal(size=count)[unit] + rng.normal(size=len(unit))) + 1.8 * (y - 0.5)  # logit P(y = 1) is 1.8 x
    found = ScoredRows.of(expit(1.8 * x), y, code, groups, unit)
    _, slope, _ = recalibration_limits(found, 0.95, 5)
    known = np.array([not why for why in slope.why])
    assert known.mean() > 0.95
    assert 0.015 < np.mean((slope.low > 1) | (slope.high < 1), where=known) < 0.075  # 0.08 to 0.10 without the correction
    loss = brier(found, 0.95, 5)
    grid = np.linspace(-10, 10, 4001)
    truth = np.average((expit(1.8 * grid)) ** 2, weights=norm.pdf(grid + 0.9))  # of negatives; positives are their mirror image
    assert np.mean((loss.low > truth) | (loss.high < truth)) < 0.075
    band = binned_error(found, 0.95, 0)
    assert 0.02 < np.mean((band.value < band.low - 1e-12) | (band.value > band.high + 1e-12)) < 0.075
