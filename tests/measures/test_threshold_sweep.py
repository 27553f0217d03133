"""The sweep equals brute force at every threshold."""

import numpy as np
import pytest
import sklearn.metrics as sk
from hypothesis import given
from hypothesis import strategies as st

from equipoise.data import Attribute
from equipoise.errors import UnknownName
from equipoise.measures import GAPS, Cells, at_threshold, largest_gap, sweep
from support.facts import suggests
from support.random_scores import Sample, places, samples

ALL = (*GAPS, "accuracy", "balanced_accuracy", "f1")


@given(sample=samples())
def test_thresholds_equal_brute_force(sample: Sample):
    swept = sweep(sample.score, sample.y, sample.attribute, ALL)
    assert len(swept.thresholds) == len(np.unique(sample.score)) + 1
    for k in places(len(swept.thresholds)):
        decision = at_threshold(sample.score, swept.thresholds[k])
        cells = Cells.of(decision, sample.y, sample.attribute)
        for gap in GAPS:
            assert abs(swept.values[gap][k]) == pytest.approx(abs(float(largest_gap(cells.gaps(gap)))), abs=1e-12)
            assert swept.values[gap][k] == pytest.approx(float(largest_gap(cells.gaps(gap))), abs=1e-9) or len(sample.attribute.levels) > 2
        assert swept.values["accuracy"][k] == pytest.approx(sk.accuracy_score(sample.y, decision), abs=1e-12)
        assert swept.values["balanced_accuracy"][k] == pytest.approx(sk.balanced_accuracy_score(sample.y, decision), abs=1e-12)
        assert swept.values["f1"][k] == pytest.approx(sk.f1_score(sample.y, decision, zero_division=0.0), abs=1e-12)


@given(sample=samples(), max_gap=st.floats(0, 0.5))
def test_best_threshold_equals_brute_force(sample: Sample, max_gap: float):
    swept = sweep(sample.score, sample.y, sample.attribute, ("eod", "balanced_accuracy"))
    free = swept.best("balanced_accuracy")
    assert free.values["balanced_accuracy"] == pytest.approx(swept.values["balanced_accuracy"].max(), abs=1e-12)
    bounded = swept.best("balanced_accuracy", gap="eod", max_gap=max_gap)
    inside = np.abs(swept.values["eod"]) <= max_gap
    assert bool(bounded.met) == bool(inside.any())  # deciding nobody positive has no gap, so a bound is always met
    assert bounded.values["balanced_accuracy"] == pytest.approx(swept.values["balanced_accuracy"][inside].max(), abs=1e-9)
    assert abs(bounded.values["eod"]) <= max_gap


def test_a_bound_that_cannot_be_met_gives_the_smallest_gap_and_says_so():
    attribute = Attribute.of(["F", "M"], reference="M")
    swept = sweep([0.5, 0.5], [1, 1], attribute, ("eod", "accuracy"))
    choice = swept.best("accuracy", gap="eod", max_gap=-1.0)
    assert not choice.met
    assert choice.values["eod"] == 0.0


def test_neighbouring_floats_are_told_apart():
    low = 0.3
    high = float(np.nextafter(low, 1))
    attribute = Attribute.of(["F", "M"], reference="M")
    swept = sweep([low, high], [0, 1], attribute, ("accuracy",))
    best = swept.best("accuracy")
    assert best.values["accuracy"] == 1.0
    assert at_threshold([low, high], best.threshold).tolist() == [0.0, 1.0]


def test_sums_of_rates_and_unknown_names():
    attribute = Attribute.of(["F", "F", "M", "M"], reference="M")
    swept = sweep([0.9, 0.1, 0.8, 0.2], [1, 0, 1, 0], attribute, ("2*selection", "spd"))
    np.testing.assert_allclose(swept.values["2*selection"], 2 * swept.values["spd"])
    with pytest.raises(UnknownName, match=suggests("spd")):
        sweep([0.5, 0.1], [1, 0], attribute.take([0, 1]), ("spdd",))


def test_scores_within_the_rounding_are_one_threshold():
    attribute = Attribute("sex", ("F", "M"), np.array([0, 1, 0, 1]))
    swept = sweep([0.4, 0.4 * (1 + 1e-7), 0.8, 0.8 - 1e-3], [0, 1, 1, 0], attribute, ("accuracy",), rounding=1e-6)
    assert len(swept.thresholds) == 4
    assert swept.values["accuracy"].tolist() == [0.5, 0.75, 0.5, 0.5]
