"""Predictive parity: values against scikit-learn, slopes against small steps, the sweep against brute force, and the audit."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import sklearn.metrics as sk
from hypothesis import given
from hypothesis import strategies as st

from equipoise.comparison import audit
from equipoise.data import Attribute, Scores
from equipoise.errors import BadInput, EmptyCell
from equipoise.measures import GAPS, Cells, at_threshold, linearise, sweep
from equipoise.measures.sweeps import gap_functional
from support.facts import facts, says
from support.random_scores import Sample, places, samples

QUOTIENTS = ("ppv_gap", "npv_gap")

LABEL = {"ppv_gap": 1, "npv_gap": 0}


def _by_hand(measure: str, decisions: np.ndarray, sample: Sample) -> np.ndarray:
    """The gaps by scikit-learn, a group at a time; NaN where nobody is decided so."""
    label, shares = LABEL[measure], []
    for code in range(len(sample.attribute.levels)):
        own = sample.attribute.codes == code
        any_so = (decisions[own] == label).any()
        shares.append(sk.precision_score(sample.y[own], decisions[own], pos_label=label) if any_so else np.nan)
    return np.array(shares[1:]) - shares[0]


def _counted(measure: str, decisions: np.ndarray, sample: Sample) -> np.ndarray:
    """The same by counting, which is a hundred times faster."""
    label, shares = LABEL[measure], []
    for code in range(len(sample.attribute.levels)):
        so = (sample.attribute.codes == code) & (decisions == label)
        shares.append((sample.y[so] == label).mean() if so.any() else np.nan)
    return np.array(shares[1:]) - shares[0]


def _told(measure: str, decisions: np.ndarray, sample: Sample) -> bool:
    """Whether five of every group are decided so, or all of a smaller one."""
    owns = [sample.attribute.codes == code for code in range(len(sample.attribute.levels))]
    return all((decisions[own] == LABEL[measure]).sum() >= min(5, own.sum()) for own in owns)


@pytest.mark.parametrize("measure", QUOTIENTS)
@given(sample=samples(), cut=st.floats(0, 1))
def test_values_are_those_of_scikit_learn(measure: str, sample: Sample, cut: float):
    decisions = at_threshold(sample.score, cut)
    cells = Cells.of(decisions, sample.y, sample.attribute)
    expected = _by_hand(measure, decisions, sample)
    np.testing.assert_allclose(_counted(measure, decisions, sample), expected, atol=1e-12)
    np.testing.assert_allclose(cells.gaps(measure), expected, atol=1e-12)
    assert np.isnan(cells.worst_gap(measure)) == (not _told(measure, decisions, sample))
    if _told(measure, decisions, sample):
        assert abs(cells.worst_gap(measure)) == pytest.approx(np.abs(expected).max(), abs=1e-12)


@pytest.mark.parametrize("measure", QUOTIENTS)
@given(sample=samples(missing=True), seed=st.integers(0, 99))
def test_the_linearised_gap_has_its_value_and_its_slopes(measure: str, sample: Sample, seed: int):
    f = np.random.default_rng(seed).uniform(0.2, 0.8, len(sample.y))
    codes = sample.attribute.codes
    cells = Cells.of(f, sample.y, sample.attribute)
    for group in range(1, len(sample.attribute.levels)):
        affine = linearise(measure, cells, group)
        value = cells.gaps(measure)[group - 1]
        assert float(affine(cells)) == pytest.approx(value, abs=1e-10)
        w = affine.weights(sample.y, codes)
        for row in range(0, len(f), max(1, len(f) // 5)):
            moved = [f.copy(), f.copy()]
            moved[0][row] -= 1e-6
            moved[1][row] += 1e-6
            low, high = (Cells.of(g, sample.y, sample.attribute).gaps(measure)[group - 1] for g in moved)
            assert w[row] == pytest.approx((high - low) / 2e-6, abs=1e-5)


@pytest.mark.parametrize("gap", [*GAPS, "tpr-2fpr"])
@given(sample=samples())
def test_of_a_sum_of_rates_it_is_the_gap_itself(gap: str, sample: Sample):
    cells = Cells.of(sample.score, sample.y, sample.attribute)
    one, other = linearise(gap, cells, 1), gap_functional(gap, cells.n, 1)
    assert np.array_equal(one.w, other.w)
    assert np.array_equal(one.offset, other.offset)


def test_replicates_are_a_loop_and_counts_alone_will_not_do():
    rng = np.random.default_rng(0)
    n = rng.integers(5, 20, (4, 3, 2)).astype(float)
    cells = Cells(("a", "b"), n, n * rng.uniform(0.1, 0.9, n.shape))
    for measure in QUOTIENTS:
        many = linearise(measure, cells, 1)
        for r in range(4):
            one = linearise(measure, Cells(cells.levels, cells.n[r], cells.s[r]), 1)
            np.testing.assert_allclose(many.w[r], one.w)
            assert many.offset[r] == pytest.approx(float(one.offset))
        with pytest.raises(BadInput, match="linearise"):
            gap_functional(measure, n, 1)


@given(sample=samples(missing=True), max_gap=st.floats(0, 0.5))
def test_the_sweep_equals_brute_force_and_passes_over_what_has_no_value(sample: Sample, max_gap: float):
    swept = sweep(sample.score, sample.y, sample.attribute, (*QUOTIENTS, "balanced_accuracy"))
    for measure in QUOTIENTS:
        for k in places(len(swept.thresholds)):
            decisions = at_threshold(sample.score, swept.thresholds[k])
            gaps = _counted(measure, decisions, sample)
            if not _told(measure, decisions, sample):
                assert np.isnan(swept.values[measure][k])
            else:
                assert abs(swept.values[measure][k]) == pytest.approx(np.abs(gaps).max(), abs=1e-12)
        real = ~np.isnan(swept.values[measure])
        assert real.any()  # everybody is decided positive at one end and negative at the other
        free = swept.best("balanced_accuracy", gap=measure)
        assert free.values["balanced_accuracy"] == pytest.approx(swept.values["balanced_accuracy"][real].max(), abs=1e-12)
        assert not np.isnan(free.values[measure])
        bounded = swept.best("balanced_accuracy", gap=measure, max_gap=max_gap)
        inside = real & (np.abs(np.nan_to_num(swept.values[measure], nan=9.0)) <= max_gap)
        assert bool(bounded.met) == bool(inside.any())
        assert not np.isnan(bounded.values[measure])


def _scores(n: int = 900, seed: int = 0) -> Scores:
    rng = np.random.default_rng(seed)
    woman = rng.random(n) < 0.4
    y = (rng.random(n) < np.where(woman, 0.25, 0.5)).astype(int)
    score = np.clip(0.5 + 0.2 * (2 * y - 1) + rng.normal(0, 0.25, n), 0, 1)
    frame = pd.DataFrame({"y": y, "p": score, "sex": np.where(woman, "F", "M")})
    return Scores.from_frame(frame, label="y", score="p", group="sex", reference="M")


def test_the_audit_has_it_with_an_interval_where_it_is_asked_for():
    scores = _scores()
    usual = audit(scores, threshold=0.5)
    assert "ppv_gap" not in usual.estimates
    found = audit(scores, threshold=0.5, also=["ppv_gap", "npv_gap", "tpr - fpr"])
    for name, estimate in usual.estimates.items():  # the same, but for what counts the comparisons
        same = replace(found[name], p_adjusted=estimate.p_adjusted, clear=estimate.clear)
        same = replace(same, simultaneous_low=estimate.simultaneous_low, simultaneous_high=estimate.simultaneous_high)
        assert estimate == same or np.isnan(estimate.value)
    assert found.comparisons > usual.comparisons
    assert found["eod"].p_adjusted >= usual["eod"].p_adjusted
    for measure, rate in (("ppv_gap", "ppv"), ("npv_gap", "npv")):
        assert found[measure].value == pytest.approx(found.groups.loc["F", rate] - found.groups.loc["M", rate], abs=1e-12)
        assert found[measure].low < found[measure].value < found[measure].high
    assert found["ppv_gap"].high < 0  # the rarer finding has the lower predictive value
    assert found["tpr-fpr"].value == pytest.approx(found["eod"].value - found["fpr_gap"].value)
    assert found[{"tpr": 1.0, "fpr": -1.0}] == found["tpr - fpr"]
    assert set(found.gaps["measure"]) == {*GAPS, *QUOTIENTS, "tpr-fpr"}
    # By the delta method: the variance of either PPV is p (1 - p) over those decided positive.
    decided = scores.score >= 0.5
    parts = [(decided & (scores.attribute.codes == k)).sum() for k in (0, 1)]
    variance = sum(p * (1 - p) / m for p, m in zip(found.groups.loc[list(scores.attribute.levels), "ppv"], parts, strict=True))
    assert (found["ppv_gap"].high - found["ppv_gap"].low) / (2 * 1.96) == pytest.approx(variance**0.5, rel=0.25)


def test_the_audit_says_where_nobody_is_decided_so():
    scores = Scores.from_arrays([1, 0, 1, 0] * 10, [0.9, 0.2, 0.3, 0.1] * 10, ["M", "M", "F", "F"] * 10, reference="M")
    found = audit(scores, threshold=0.5, also=["ppv_gap"])
    assert np.isnan(found["ppv_gap"].value)
    assert says(found["ppv_gap"].note, 5, "'F'")
    with pytest.raises(EmptyCell, match=facts("ppv_gap", "F", 20)):
        audit(scores, threshold=0.5, measures=["ppv_gap"])
    cells = Cells.of(at_threshold(scores.score, 0.5), scores.y, scores.attribute)
    assert cells.rate("ppv").tolist() == pytest.approx([1.0, np.nan], nan_ok=True)


@pytest.mark.parametrize("few", [0, 4, 5])
def test_a_group_of_which_hardly_anybody_is_decided_positive_is_no_way_to_a_small_gap(few: int):
    three = Attribute.of(np.repeat(["a", "b", "c"], 12), reference="a")
    y = np.tile([1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0], 3)
    first = np.tile([1, 1, 1, 0, 0, 0], 2)  # half of them are right
    cells = Cells.of([*first, *first, *(np.arange(12) < few)], y, three)
    assert cells.gaps("ppv_gap").tolist() == pytest.approx([0.0, 0.5 if few else np.nan], nan_ok=True)
    assert float(cells.worst_gap("ppv_gap")) == pytest.approx(0.5 if few == 5 else np.nan, nan_ok=True)
    assert cells.worst_gap("eod") == pytest.approx(few / 6 - 0.5)
