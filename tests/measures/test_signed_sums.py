"""Signed sums of ratios: limits and p-values agree, differences add variances, and the level holds in simulation."""

import numpy as np
import pytest

from equipoise.measures.moments import SignedSum, moments_of


def _gap(successes: np.ndarray, sizes: np.ndarray) -> SignedSum:
    """The gap of the second of two proportions minus the first (n, 2)."""
    each = [SignedSum.of([1.0], (successes[:, k] / sizes[k])[:, None], float(sizes[k])) for k in (1, 0)]
    return each[0].minus(each[1])


def test_the_change_of_a_gap_between_two_sites_covers_no_change_at_its_level():
    rng, sizes = np.random.default_rng(0), np.array([80, 40])
    sites = [_gap(rng.binomial(sizes, [0.8, 0.7], (4000, 2)), sizes) for _ in range(2)]
    change = sites[1].minus(sites[0])
    _, low, high = change.limits(0.95)
    outside = float(((low > 0) | (high < 0)).mean())
    assert 0.03 < outside < 0.06
    assert ((change.p_values() < 0.05) == ((low > 0) | (high < 0))).mean() > 0.999


def test_a_difference_is_as_wide_as_both_together():
    rng, sizes = np.random.default_rng(1), np.array([900, 900])
    one, other = (_gap(rng.binomial(sizes, 0.5, (1, 2)), sizes) for _ in range(2))
    assert other.minus(one).variance == pytest.approx(one.variance + other.variance)


def test_the_gaps_of_moments_are_those_of_their_signed_sums():
    rng = np.random.default_rng(2)
    sums = moments_of(rng.integers(0, 2, 600), rng.integers(0, 2, 600), np.repeat(rng.integers(0, 3, 300), 2), 3, np.arange(600) // 2)
    for signs in ({"tpr": 1.0}, {"tpr": 0.5, "fpr": 0.5}, {"ppv": 1.0}):
        signed = sums.signed(signs)
        gaps = signed[1:].minus(signed[:1])
        for mine, theirs in zip(gaps.limits(0.9), sums.gap(signs).limits(0.9), strict=True):
            assert mine == pytest.approx(theirs)
        at = np.array([0.9, 0.99])
        assert [ends[k] for ends in gaps.limits(at) for k in (0, 1)] == pytest.approx(
            [
                ends[k]
                for ends in zip(*(sums.gap(signs).limits(float(level)) for level in at), strict=True)
                for ends, k in ((ends[0], 0), (ends[1], 1))
            ]
        )


def test_a_rate_of_one_has_a_variance():
    assert SignedSum.of([[1.0]], [[1.0]], [[20.0]]).variance[0] > 0
