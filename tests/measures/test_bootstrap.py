"""Bootstrap draws: whole patients, the same result as a loop, honest coverage, no interval that is a point."""

import numpy as np
import pandas as pd
import pytest

from equipoise.comparison import audit
from equipoise.data import Attribute, Scores
from equipoise.measures import Cells, Ranking, measure_of, percentile_interval, resample_counts, units_of
from equipoise.measures.moments import moments_of
from equipoise.measures.permutation import MANY_PATIENTS
from equipoise.measures.score_measures import aurocs
from support.bootstrap import bootstrap_cells


def _data(rng: np.random.Generator, n: int = 300, patients: int = 90):
    patient = rng.integers(0, patients, n)
    codes = patient % 3
    y = rng.integers(0, 2, n)
    f = (rng.random(n) < 0.3 + 0.2 * y + 0.1 * codes).astype(float)
    return f, y, Attribute("g", ("a", "b", "c"), codes), patient


def test_draws_equal_a_loop_that_repeats_the_rows_of_each_drawn_patient():
    f, y, attribute, patient = _data(np.random.default_rng(0))
    units = units_of(patient.astype(object), len(y))
    drawn = bootstrap_cells(f, y, attribute.codes, attribute.levels, units, draws=20, seed=3)
    counts = np.concatenate(list(resample_counts(units.max() + 1, 20, 3)))
    for k in range(20):
        rows = np.repeat(np.arange(len(y)), counts[k][units].astype(int))
        loop = Cells.of(f[rows], y[rows], attribute.take(rows))
        np.testing.assert_allclose(drawn.n[k], loop.n)
        np.testing.assert_allclose(drawn.gaps("eod")[k], loop.gaps("eod"), atol=1e-12)


def test_multiplicities_sum_to_the_units_and_do_not_depend_on_the_block(monkeypatch: pytest.MonkeyPatch):
    whole = np.concatenate(list(resample_counts(50, 30, 7)))
    assert (whole.sum(1) == 50).all()
    monkeypatch.setattr("equipoise.measures.moments.BLOCK_ELEMENTS", 120)
    np.testing.assert_array_equal(np.concatenate(list(resample_counts(50, 30, 7))), whole)
    assert not np.array_equal(np.concatenate(list(resample_counts(50, 30, 8))), whole)
    assert not np.array_equal(np.concatenate(list(resample_counts(50, 30, 7, "another use"))), whole)


def test_many_images_of_one_patient_do_not_make_the_interval_narrow():
    rng = np.random.default_rng(1)
    patients = pd.DataFrame({"p": np.arange(60), "sex": np.where(np.arange(60) % 2, "F", "M"), "s": rng.random(60)})
    frame = patients.loc[patients.index.repeat(20)].assign(y=lambda d: (np.arange(len(d)) // 20 % 4 < 2).astype(int))
    names = {"label": "y", "score": "s", "group": "sex", "reference": "M"}
    by_row = audit(Scores.from_frame(frame, **names), threshold=0.5)["spd"]
    by_patient = audit(Scores.from_frame(frame, patient="p", **names), threshold=0.5)["spd"]
    assert by_row.value == by_patient.value
    assert by_patient.high - by_patient.low > 3 * (by_row.high - by_row.low)


def test_the_interval_covers_the_true_gap_about_as_often_as_it_says():
    truth, hits, runs = -0.2, 0, 200
    rng = np.random.default_rng(2)
    for run in range(runs):
        n = 400
        codes, y = rng.integers(0, 2, n), np.ones(n, np.int64)
        f = (rng.random(n) < np.where(codes == 1, 0.5, 0.7)).astype(float)
        drawn = bootstrap_cells(f, y, codes, ("ref", "other"), np.arange(n), draws=300, seed=run)
        value = Cells.of(f, y, Attribute("g", ("ref", "other"), codes)).gaps("eod")
        low, high = percentile_interval(drawn.gaps("eod"), value)
        hits += bool(low[0] <= truth <= high[0])
    assert 0.90 <= hits / runs <= 0.99


def test_interval_is_nan_where_the_value_is_and_skips_empty_draws():
    low, high = percentile_interval(np.array([[np.nan, 1.0], [2.0, 1.0], [4.0, 1.0]]), np.array([3.0, np.nan]))
    assert low[0] == pytest.approx(2.05)
    assert high[0] == pytest.approx(3.95)
    assert np.isnan(low[1])
    assert np.isnan(high[1])


def test_intervals_from_sums_agree_with_resampling_patients_in_large_cells() -> None:
    """Cells of 500 patients with 50 events and 50 non-events or more, two to four rows per patient: within a tenth of the width."""
    rng = np.random.default_rng(5)
    patients = 2400
    units = np.repeat(np.arange(patients), rng.integers(2, 5, patients))
    codes = (np.arange(patients) % 2)[units]
    y = (rng.random(patients) < 0.5).astype(np.int64)[units]
    x = 1.5 * y + 0.3 * codes + rng.normal(size=patients)[units] + rng.normal(size=len(units))
    f = (x > 1.2).astype(float)
    sums = moments_of(f, y, codes, 2, units)
    assert min(sums[name].patients.min() for name in ("tpr", "fpr")) >= MANY_PATIENTS
    drawn = bootstrap_cells(f, y, codes, ("M", "F"), units, draws=2000)
    for measure in ("spd", "eod", "aod", "fpr_gap", "ppv_gap", "npv_gap"):
        value, low, high = (float(end[0]) for end in sums.gap(measure_of(measure).coefficients).limits(0.95))
        resampled = percentile_interval(drawn.gaps(measure), np.array([value]))
        for end, other in zip((low, high), resampled, strict=True):
            assert abs(end - float(other[0])) < 0.1 * (high - low), measure
    scores = Scores(y, x, (Attribute("sex", ("M", "F"), codes),), units.astype(object), units.astype(object), "simulated")
    area = aurocs(scores, scores.attribute, units, 0.95)
    for k in (0, 1):
        own = codes == k
        ranking = Ranking(x[own], y[own])
        times = np.concatenate(list(resample_counts(patients, 400, 0)))
        ends = np.quantile([ranking.ranks(each[units[own]]).auroc for each in times], [0.025, 0.975])
        assert np.abs(ends - [area.low[k], area.high[k]]).max() < 0.15 * (area.high[k] - area.low[k])  # 400 draws
