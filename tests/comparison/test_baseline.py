"""The baseline on the same inputs: better than a network that learnt little, and not better than one that learnt everything."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from equipoise.comparison.baseline import MOST_HELD_OUT, SMALL_SIDE, STATISTICS, _features, _sampled, fit_baseline
from equipoise.data import Attribute, Cohort, FloatArray, Images, Scores
from equipoise.measures import Baseline
from support.goals import paper_goal

GOAL = paper_goal("eod")


def _table(rows: int, seed: int, bias: float = 0.0) -> Cohort:
    """Two inputs: the label depends on the first, the group on the second; scores of group F are lower by `bias`."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 2, rows)
    y = rng.integers(0, 2, rows)
    x = np.stack([rng.normal(1.5 * y - bias * codes, 1.0), rng.normal(3.0 * codes, 0.5)], axis=1)
    return Cohort(torch.from_numpy(x).float(), y, (Attribute("sex", ("M", "F"), codes),))


def _against(score: Callable[[FloatArray], FloatArray], **options: object) -> Baseline:
    known, test = _table(1500, 0), _table(1500, 1)
    scores = Scores.of(test, score(test.inputs.numpy().astype(float)))
    found = fit_baseline(test, (scores, (scores.score >= 0.5).astype(float)), known, GOAL, **options)
    assert found is not None
    return found


def _logistic(z: FloatArray) -> FloatArray:
    return 1 / (1 + np.exp(-z))


def test_the_baseline_beats_a_poor_network_and_not_an_optimal_one():
    weak = _against(lambda x: _logistic(0.3 * np.random.default_rng(2).normal(size=len(x)) + 0.1 * x[:, 0]))
    assert weak.beats_original
    assert weak.original.difference.low > 0
    assert weak.original.value == pytest.approx(weak.original.other + weak.original.difference.value)
    best = _against(lambda x: _logistic(1.5 * (x[:, 0] - 0.75)))
    assert not best.beats_original
    assert best.repaired is None
    assert not best.beats_repaired


def test_the_baseline_is_rarely_called_better_than_an_equal_model():
    """With two equally good models, the share of false claims is at most that of the confidence level."""
    found = 0
    for seed in range(40):
        known, test = _table(400, 100 + seed), _table(400, 200 + seed)
        scores = Scores.of(test, _logistic(1.5 * (test.inputs[:, 0].numpy().astype(float) - 0.75)))
        made = fit_baseline(test, (scores, (scores.score >= 0.5).astype(float)), known, GOAL, seed=seed)
        assert made is not None
        found += made.beats_original
    assert found <= 3


def test_with_a_training_set_the_baseline_is_fitted_to_it():
    found = _against(lambda x: _logistic(x[:, 0] - 0.75), train=_table(3000, 3))
    assert (found.fitted_on, found.fitted_rows, found.rows, found.inputs) == ("training set", 3000, 1500, "table")
    assert found.to_dict()["beats_original"] is found.beats_original


def test_the_constrained_baseline_has_a_small_gap_and_beats_a_repair_with_poor_performance():
    known, test = _table(4000, 4, bias=1.0), _table(4000, 5, bias=1.0)
    scores = Scores.of(test, _logistic(test.inputs[:, 0].numpy().astype(float) - 0.5))
    before = (scores.score >= 0.5).astype(float)
    wasted = np.random.default_rng(6).integers(0, 2, len(test)).astype(float)  # random decisions: no gap and no performance
    found = fit_baseline(test, (scores, before), known, GOAL, repaired=(wasted, 0.0))
    assert found is not None
    assert found.repaired is not None
    assert abs(found.original.other_gap) > 0.25
    assert abs(found.repaired.gap) < 0.05
    assert found.repaired.value > 0.7
    assert found.beats_repaired
    good = fit_baseline(test, (scores, before), known, GOAL, repaired=((test.y == 1).astype(float), 0.0))
    assert good is not None
    assert not good.beats_repaired


def test_lower_performance_or_a_larger_gap_is_not_better():
    known, test = _table(1500, 7, bias=1.0), _table(1500, 8, bias=1.0)
    scores = Scores.of(test, np.full(len(test), 0.5))
    perfect = test.y.astype(float)
    found = fit_baseline(test, (scores, perfect), known, GOAL, repaired=(perfect, 0.0))
    assert found is not None
    assert not found.beats_original
    assert not found.beats_repaired


def test_features_of_images_are_small_pixels_and_statistics():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 300)
    pixels = rng.integers(0, 100, (300, 32, 32), dtype=np.uint8)
    pixels[y == 1, :16, :16] += 60
    cohort = Cohort(Images(pixels), y, (Attribute("sex", ("M", "F"), rng.integers(0, 2, 300)),))
    seen = _features(cohort)
    assert seen.shape == (300, SMALL_SIDE * SMALL_SIDE + STATISTICS)
    assert seen[:, SMALL_SIDE * SMALL_SIDE] == pytest.approx(pixels.mean((1, 2)) / 255)
    scores = Scores.of(cohort, rng.random(300))
    found = fit_baseline(
        cohort.take(range(150)), (Scores.of(cohort.take(range(150)), scores.score[:150]), np.ones(150)), cohort.take(range(150, 300)), GOAL
    )
    assert found is not None
    assert found.inputs == "pixels"
    assert found.beats_original


def test_there_is_no_baseline_for_few_rows_or_unsupported_inputs():
    few, test = _table(60, 0), _table(200, 1)
    scores = Scores.of(test, np.full(200, 0.5))
    assert fit_baseline(test, (scores, np.ones(200)), few, GOAL) is None
    series = Cohort(torch.zeros(200, 3, 4), test.y, test.attributes)
    assert fit_baseline(series, (scores, np.ones(200)), series, GOAL) is None


def test_whole_patients_are_sampled_if_there_are_many_rows():
    cohort = _table(1000, 0)
    patients = Cohort(cohort.source, cohort.y, cohort.attributes, np.repeat(np.arange(250), 4).astype(str).astype(object))
    rows = _sampled(patients, 400, np.random.default_rng(0))
    assert len(rows) == 400
    assert len({patients.patients[row] for row in rows}) == 100
    assert len(_sampled(patients, MOST_HELD_OUT, np.random.default_rng(0))) == 1000
