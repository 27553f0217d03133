"""Patients with unequal numbers of rows or unequal weights: intervals cover the truth, and equal patients count as before."""

from statistics import NormalDist

import numpy as np
import pytest

from equipoise.data import Attribute, Scores
from equipoise.measures import Ranking
from equipoise.measures.moments import Moments, moments_of
from equipoise.measures.permutation import measure_of, p_values
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
    for units, patients, degrees in ((np.arange(600), 600, np.inf), (np.arange(600) // 4, 150, 150)):
        plain, weighted = (moments_of(f, y, codes, 1, units, weight) for weight in (None, np.full(600, 0.3)))
        for sums in (plain, weighted):
            assert sums["tpr"].effective[0] == pytest.approx(patients)
            assert sums["tpr"].degrees[0] == pytest.approx(degrees)
        np.testing.assert_allclose(*(sums.signed({"tpr": 1.0}).limits(0.95) for sums in (plain, weighted)))


def test_few_patients_with_most_of_the_rows_are_few() -> None:
    units = np.r_[np.repeat([0, 1], 50), np.arange(2, 60)]
    sums = moments_of(np.resize([1, 0, 1], len(units)), np.ones(len(units)), np.zeros(len(units), np.int64), 1, units)
    assert sums["tpr"].patients[0] == 60
    assert sums["tpr"].effective[0] == pytest.approx(158**2 / (2 * 50**2 + 58))
    rows, share = np.bincount(units), sums["tpr"].value[0]
    e = np.bincount(units, np.resize([1, 0, 1], len(units))) - share * rows
    rho = np.clip(((e**2).sum() / (share * (1 - share)) - 158) / (rows * (rows - 1)).sum(), 0, 1)
    v = (rows / 158) ** 2 * (rho + (1 - rho) / rows)
    assert sums["tpr"].degrees[0] == pytest.approx(v.sum() ** 2 / (v**2).sum())  # Satterthwaite


def test_the_variance_between_patients_is_corrected_for_the_share_of_each() -> None:
    rng = np.random.default_rng(6)
    units = np.repeat(np.arange(40), rng.geometric(0.2, 40))
    f, weight = (rng.random(len(units)) < rng.random(40)[units]).astype(float), rng.uniform(0.5, 2, len(units))
    for w in (np.ones(len(units)), weight):
        sums = moments_of(f, np.ones(len(units)), np.zeros(len(units), np.int64), 1, units, w)
        a, b = np.bincount(units, w * f), np.bincount(units, w)
        e = a - a.sum() / b.sum() * b
        expected = 39 / 40 * ((e / (1 - b / b.sum())) ** 2).sum() / b.sum() ** 2  # CR3
        assert sums.covariance(["tpr"])[0, 0, 0] == pytest.approx(expected, rel=0.005)


def test_a_patient_in_both_groups_has_one_influence_on_their_gap() -> None:
    """Patients whose age group changes: the gap between their own rows varies less than that between different patients."""
    rng, gaps, widths = np.random.default_rng(9), [], []
    for _ in range(300):
        units, codes = np.repeat(np.arange(150), 4), np.tile([0, 0, 1, 1], 150)
        f = (rng.random(600) < rng.beta(1, 1, 150)[units]).astype(float)
        gap = moments_of(f, np.ones(600), codes, 2, units).gap({"tpr": 1.0})
        value, low, high = (float(end[0]) for end in gap.limits(0.95))
        gaps.append(value)
        widths.append((high - low) / 2 / 1.96)
    assert np.mean(widths) == pytest.approx(np.std(gaps), rel=0.1)


def test_p_values_of_unequal_patients_hold_their_level() -> None:
    rng, found = np.random.default_rng(4), []
    for _ in range(120):
        spread = np.where(np.arange(200) < 40, 1.5, 0.5)
        unit = np.repeat(np.arange(200), np.maximum(1, np.round(np.exp(rng.normal(0.7, spread)))).astype(int))
        decided = rng.normal(0, 1, 200)[unit] + 0.3 * rng.normal(0, 1, len(unit)) > -0.6
        codes = (unit < 40).astype(int)
        found.append(moments_of(decided, np.ones(len(unit)), codes, 2, unit).gap({"tpr": 1.0}).p_values()[0])
    assert np.mean(np.array(found) <= 0.05) <= 0.085


def unequal(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    """Decisions, labels, groups and patients: 40 women with 2 to 19 rows each and 160 men with one, alike within a patient; no gap."""
    women = np.arange(200) < 40
    patient = np.repeat(np.arange(200), np.where(women, rng.integers(2, 20, 200), 1))
    codes = women[patient].astype(int)
    y = (rng.random(len(patient)) < np.where(women[patient], 0.6, 0.3)).astype(int)
    u = np.where(rng.random(len(patient)) < 0.9, rng.random(200)[patient], rng.random(len(patient)))
    return (u < 0.2 + 0.6 * y).astype(float), y, codes, patient.astype(object)


def test_the_level_is_kept_where_only_one_group_has_patients_with_rows_of_both_labels() -> None:
    """Permutations within patterns of labels alone give a level of 0.28 for aod."""
    rng, found = np.random.default_rng(13), []
    for _ in range(200):
        f, y, codes, patients = unequal(rng)
        sums = moments_of(f, y, codes, 2, patients.astype(int))
        found.append([sums.gap(measure_of(name).coefficients).p_values()[0] for name in ("aod", "eod")])
    share = (np.array(found) <= 0.05).mean(0)
    assert (share <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 200)).all(), share  # 0.096
    assert (np.array(found) <= 0.3).mean() > 0.1


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
