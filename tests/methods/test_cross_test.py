"""Nested cross-fitting: every patient is judged by a repair that was fitted and chosen without them."""

import numpy as np
import pytest

import equipoise as eq
from equipoise.data import assign_folds, generator
from equipoise.errors import BadInput
from equipoise.methods import run_method
from support.networks import trained


def world(n: int, seed: int, behind: float = 1.0, rows: int = 1) -> eq.Scores:
    rng = np.random.default_rng(seed)
    code, y = np.repeat(rng.integers(0, 2, n), rows), rng.random(n * rows) < 0.35
    logit = rng.normal(size=n * rows) + np.where(y, 2.0 - behind * code, 0.0)
    patients = np.repeat([f"p{k}" for k in range(n)], rows)
    return eq.Scores.from_arrays(y.astype(int), 1 / (1 + np.exp(1 - logit)), np.array(["M", "F"])[code], reference="M", patients=patients)


WIDE = {"max_rise": {"fpr": 1, "selection": 1}, "threshold": 0.5}


def test_every_patient_is_judged_by_a_rule_that_was_fitted_without_them():
    """Made again by hand, with several rows per patient."""
    scores = world(300, 1, rows=2)
    result = eq.debias(scores, method="level-up", test="cross", seed=3, **WIDE)
    outer = assign_folds(scores, 5, generator(3, "cross test"))
    assert all(len(set(outer[scores.patients == patient])) == 1 for patient in scores.patients[:20])
    for fold in range(5):
        inside = np.flatnonzero(outer == fold)
        inner = scores.take(np.flatnonzero(outer != fold))
        own = run_method("level-up", None, inner, {"": eq.Goal("eod", **WIDE)}, seed=3, refuse_constant=True).only
        np.testing.assert_array_equal(result.held_out.after[inside], own.decide(scores.take(inside)))
    np.testing.assert_array_equal(result.held_out.before, scores.score >= 0.5)
    assert result.judgement.source == "nested"
    assert result.judgement.patients == 300


def test_the_rule_is_that_of_all_patients_and_its_intervals_are_wider():
    scores = world(400, 2)
    plain, tested = (eq.debias(scores, method="level-up", test=test, **WIDE) for test in (None, "cross"))
    assert tested.rule == plain.rule
    assert min(tested.held_out.spread.values()) > 0
    change = tested.judgement.gaps[0].change
    narrow = plain.judgement.gaps[0].change
    assert change.high - change.low > narrow.high - narrow.low


def test_networks_and_several_labels_are_tested_too():
    model, parts = trained("mlp")
    result = eq.debias(model, parts.valid, method="group-thresholds", measure="spd", test="cross", allow_worse=True)
    assert result.judgement.source == "nested"
    both = eq.debias({"a": world(300, 4), "b": world(300, 5)}, method="level-up", test="cross", **WIDE)
    assert {own.judgement.source for own in both.labels.values()} == {"nested"}


def test_another_test_is_an_error():
    with pytest.raises(BadInput, match="cross"):
        eq.debias(world(100, 6), test="crossed")


def test_a_claim_of_a_smaller_gap_is_rarely_wrong_without_one():
    """Without a gap, hardly any repair may be called closed or reduced for having changed it."""
    outcomes = [str(eq.debias(world(250, 50 + seed, behind=0.0), method="level-up", test="cross", **WIDE).outcome) for seed in range(20)]
    assert outcomes.count("reduced") <= 1
