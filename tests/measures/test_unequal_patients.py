"""Patients with unequal numbers of rows or unequal weights: intervals cover the truth, and equal patients count as before."""

from statistics import NormalDist

import numpy as np
import pytest

from equipoise.data import Attribute, Scores
from equipoise.measures import Ranking
from equipoise.measures.moments import Moments, moments_of
from equipoise.measures.permutation import p_values
from equipoise.measures.score_measures import aurocs

SAMPLES = 400


def _clustered(rng: np.random.Generator, patients: int, spread: float) -> tuple[np.ndarray, ...]:
    """Labels, scores and patients of `SAMPLES` samples with a lognormal number of rows per patient, whose rows are alike."""
    count = SAMPLES * patients
    rows = np.maximum(1, np.round(np.exp(rng.normal(0.7, spread, count)))).astype(int)
    unit = np.repeat(np.arange(count), rows)
    y = (rng.random(len(unit)) < rng.beta(0.5, 0.5, count)[unit]).astype(int)
    x = rng.normal(0, 1, count)[unit] + rng.normal(0, 0.6, len(unit)) + 1.2 * y - 0.6
    return y, x, unit


def _covered(sums: Moments, name: str, truth: float) -> float:
    _, low, high = sums.signed({name: 1.0}).limits(0.95)
    known = ~np.isnan(low)
    return float(((low <= truth) & (truth <= high))[known].mean())


@pytest.mark.parametrize(("patients", "spread"), [(30, 1.5), (100, 1.5), (30, 1.0)])
def test_rates_of_patients_with_unequal_rows_cover_the_truth(patients: int, spread: float) -> None:
    rng = np.random.default_rng(1)
    y, x, unit = _clustered(rng, 3000, spread)
    flagged = x >= 0
    truths = {"tpr": flagged[y == 1].mean(), "fpr": flagged[y == 0].mean(), "selection_rate": flagged.mean(), "ppv": y[flagged].mean()}
    y, x, unit = _clustered(rng, patients, spread)
    sums = moments_of(x >= 0, y, unit // patients, SAMPLES, unit)
    for name, truth in truths.items():
        assert _covered(sums, name, truth) > 0.92, name


@pytest.mark.parametrize(("rows", "share", "heavy"), [(45, 0.1, 20.0), (150, 0.05, 50.0), (200, 0.5, 3.0)])
def test_rates_of_weighted_rows_cover_the_truth(rows: int, share: float, heavy: float) -> None:
    rng = np.random.default_rng(2)
    codes = np.repeat(np.arange(SAMPLES), rows)
    decided, weight = rng.random(len(codes)) < 0.7, np.where(rng.random(len(codes)) < share, heavy, 1.0)
    sums = moments_of(decided, np.ones(len(codes)), codes, SAMPLES, np.arange(len(codes)), weight)
    assert _covered(sums, "tpr", 0.7) > 0.93
    _, low, high = sums.gap({"tpr": 1.0}).limits(0.95)
    assert ((low <= 0) & (high >= 0)).mean() > 0.93


def test_equal_patients_and_equal_weights_have_all_degrees_of_freedom() -> None:
    rng = np.random.default_rng(3)
    y, f, codes = np.ones(600), rng.integers(0, 2, 600), np.zeros(600, np.int64)
    for units, patients, degrees in ((np.arange(600), 600, np.inf), (np.arange(600) // 4, 150, 149)):
        plain, weighted = (moments_of(f, y, codes, 1, units, weight) for weight in (None, np.full(600, 0.3)))
        for sums in (plain, weighted):
            assert sums["tpr"].effective[0] == pytest.approx(patients)
            assert sums["tpr"].degrees[0] == degrees
        np.testing.assert_allclose(*(sums.signed({"tpr": 1.0}).limits(0.95) for sums in (plain, weighted)))


def test_few_patients_with_most_of_the_rows_are_few() -> None:
    units = np.r_[np.repeat([0, 1], 50), np.arange(2, 60)]
    sums = moments_of(np.resize([1, 0, 1], len(units)), np.ones(len(units)), np.zeros(len(units), np.int64), 1, units)
    assert sums["tpr"].patients[0] == 60
    assert sums["tpr"].effective[0] == pytest.approx(158**2 / (2 * 50**2 + 58))
    assert sums["tpr"].degrees[0] == pytest.approx(158**2 / (2 * 50**2 + 58) - 1)


def test_p_values_of_unequal_patients_hold_their_level() -> None:
    rng, found = np.random.default_rng(4), []
    for _ in range(120):
        spread = np.where(np.arange(200) < 40, 1.5, 0.5)
        unit = np.repeat(np.arange(200), np.maximum(1, np.round(np.exp(rng.normal(0.7, spread)))).astype(int))
        decided = rng.normal(0, 1, 200)[unit] + 0.3 * rng.normal(0, 1, len(unit)) > -0.6
        codes = (unit < 40).astype(int)
        found.append(p_values(decided, np.ones(len(unit)), codes, ("M", "F"), unit.astype(object), ["eod"])["eod"][0])
    assert np.mean(np.array(found) <= 0.05) <= 0.085


def test_p_values_without_draws_need_many_effective_patients() -> None:
    rng = np.random.default_rng(5)
    heavy = np.arange(1200) % 400 == 0  # three patients of M, with 150 rows each, all flagged
    unit = np.repeat(np.arange(1200), np.where(heavy, 150, 1))
    decided = (heavy | (rng.random(1200) < 0.5))[unit]
    assert p_values(decided, np.ones(len(unit)), unit % 2, ("M", "F"), unit.astype(object), ["eod"])["eod"][0] > 0.05


@pytest.mark.parametrize(("sd", "shift"), [(2.0, 1.5), (3.0, 2.0), (1.0, 1.5)])
def test_aurocs_of_unequal_spreads_and_a_rare_label_cover_the_truth(sd: float, shift: float) -> None:
    rng, positives, negatives = np.random.default_rng(8), 50, 500
    y = np.tile(np.repeat([1, 0], [positives, negatives]), SAMPLES)
    x = rng.normal(shift * y, np.where(y == 1, sd, 1.0))
    truth = NormalDist().cdf(shift / np.hypot(sd, 1.0))
    attribute = Attribute("g", tuple(map(str, range(SAMPLES))), np.repeat(np.arange(SAMPLES), positives + negatives))
    ids = np.arange(len(y)).astype(object)
    limits = aurocs(Scores(y, 1 / (1 + np.exp(-x)), (attribute,), None, ids, "simulated"), attribute, np.arange(len(y)), 0.95)
    assert ((limits.low <= truth) & (truth <= limits.high)).mean() > 0.92


def test_aurocs_of_patients_with_unequal_rows_cover_the_truth() -> None:
    rng = np.random.default_rng(7)
    y, x, _ = _clustered(rng, 500, 1.5)
    truth = float(Ranking(x, y).ranks().auroc)
    y, x, unit = _clustered(rng, 40, 1.5)
    attribute, ids = Attribute("g", tuple(map(str, range(SAMPLES))), unit // 40), np.arange(len(y)).astype(object)
    limits = aurocs(Scores(y, 1 / (1 + np.exp(-x)), (attribute,), unit.astype(object), ids, "simulated"), attribute, unit, 0.95)
    known = ~np.isnan(limits.value)
    assert ((limits.low <= truth) & (truth <= limits.high))[known].mean() > 0.925
