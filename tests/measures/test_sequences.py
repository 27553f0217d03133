"""Confidence sequences and evidence of change: their level over all periods in simulation, their power, and brute-force oracles."""

from itertools import accumulate

import numpy as np
import pytest

from equipoise.measures import SignedSum
from equipoise.measures.histories import change_evidence, confidence_sequence, first_period
from equipoise.measures.moments import DECISION_RATIOS, Moments

SIGNS, ALPHA = {"tpr": 1.0}, 0.05


def periods(rates: np.ndarray, sizes: tuple[int, int], repetitions: int, seed: int = 0) -> list[Moments]:
    """Moments of positives only, one row per patient: the repetitions of the reference, then those of the group. `rates` (T, 2)."""
    rng, found = np.random.default_rng(seed), []
    for pair in rates:
        n = np.repeat(sizes, repetitions).astype(float)
        hits = rng.binomial(n.astype(int), np.repeat(pair, repetitions)).astype(float)
        total, second = np.zeros((len(n), 4)), np.zeros((len(n), 4, 4))
        total[:, 1], total[:, 3] = n, hits
        second[:, 1, 1], second[:, 3, 3], second[:, 1, 3], second[:, 3, 1] = n, hits, hits, hits
        held = np.zeros((len(n), len(DECISION_RATIOS)))
        held[:, list(DECISION_RATIOS).index("tpr")] = n
        found.append(Moments(DECISION_RATIOS, total, second, held, held))
    return found


def gaps(sums: Moments, repetitions: int) -> SignedSum:
    each = sums.signed(SIGNS)
    return each[repetitions:].minus(each[:repetitions])


@pytest.mark.parametrize(("rates", "sizes"), [((0.8, 0.8), (20, 10)), ((0.8, 0.7), (60, 30)), ((0.97, 0.97), (40, 20))])
def test_a_stable_gap_that_is_audited_fifty_times_raises_few_alarms(rates, sizes):
    repetitions = 400
    found = periods(np.tile(rates, (50, 1)), sizes, repetitions)
    missed = []
    for so_far in accumulate(found):
        _, low, high = confidence_sequence(gaps(so_far, repetitions), ALPHA)
        missed.append((low > rates[1] - rates[0]) | (high < rates[1] - rates[0]))
    evidence = change_evidence(found, SIGNS, ALPHA, shape=(2, repetitions)).value[:, 0]
    assert (first_period(np.array(missed)) >= 0).mean() <= 0.05
    assert (first_period(evidence >= 1 / ALPHA) >= 0).mean() <= 0.05
    naive = [gaps(own, repetitions).limits(0.95) for own in found]
    outside = first_period(np.array([(low > rates[1] - rates[0]) | (high < rates[1] - rates[0]) for _, low, high in naive]))
    assert (outside >= 0).mean() > 0.15  # what repeated tests at 5 % would do


def test_a_gap_that_appears_is_reported_and_dated():
    repetitions = 100
    rates = np.array([[0.8, 0.8]] * 10 + [[0.8, 0.6]] * 10)
    found = change_evidence(periods(rates, (200, 200), repetitions), SIGNS, ALPHA, shape=(2, repetitions))
    first = first_period(found.value[:, 0] >= 1 / ALPHA)
    assert np.quantile(first, [0.1, 0.9]).tolist() == pytest.approx([10, 11], abs=1.01)
    assert (found.since[-1, 0] == 10).mean() > 0.9
    assert np.mean(found.before[-1]) == pytest.approx(0.0, abs=0.01)
    assert np.mean(found.after[-1]) == pytest.approx(-0.2, abs=0.01)


def test_the_evidence_is_the_weighted_mean_of_likelihood_ratios():
    """Brute force for three periods: B_k by the densities of a normal distribution."""
    repetitions, s2 = 5, 0.01
    found = periods(np.full((3, 2), 0.7), (80, 50), repetitions, seed=3)
    wanted = np.zeros(repetitions)
    whole = sum(found[1:], found[0]).signed(SIGNS)
    p = (whole.value * whole.size + 1) / (whole.size + 2)
    spread = (p * (1 - p))[:, 0]
    for k in (1, 2):
        before, after = sum(found[1:k], found[0]).total, sum(found[k + 1 :], found[k]).total
        rates = [part[:, 3] / part[:, 1] for part in (before, after)]
        difference = (rates[1] - rates[0])[repetitions:] - (rates[1] - rates[0])[:repetitions]
        variance = sum(spread / part[:, 1] for part in (before, after))
        v = variance[repetitions:] + variance[:repetitions]
        density = [np.exp(-(difference**2) / 2 / w) / np.sqrt(w) for w in (v + s2, v)]
        wanted += density[0] / density[1] / (k * (k + 1))
    evidence = change_evidence(found, SIGNS, ALPHA, shape=(2, repetitions))
    assert evidence.value[-1, 0] == pytest.approx(wanted + 1 / 3)


def test_a_period_beyond_its_limits_raises_the_alarm_on_its_own():
    found = periods(np.array([[0.8, 0.8]] * 6), (300, 300), 1)
    limits = change_evidence(found, SIGNS, ALPHA)
    low = limits.limit_low[-1, 0]
    reference = found[-1].total[0, 3] / found[-1].total[0, 1]
    for step, alarm in ((-0.02, True), (0.02, False)):
        last = found[-1].total.copy()
        last[1, 3] = (low + step + reference) * last[1, 1]
        changed = [*found[:-1], Moments(DECISION_RATIOS, last, found[-1].second, found[-1].rows, found[-1].units)]
        assert (change_evidence(changed, SIGNS, ALPHA).value[-1, 0] >= 1 / ALPHA) == alarm


def test_limits_narrow_with_patients_and_cover_everything_without_them():
    few, many = SignedSum.of([1.0, -1.0], [[0.5, 0.5]], [[2.0]]), SignedSum.of([1.0, -1.0], [[0.5, 0.5]], [[9000.0]])
    assert [float(end[0]) for end in confidence_sequence(few, ALPHA)[1:]] == [-1.0, 1.0]
    _, low, high = confidence_sequence(many, ALPHA)
    assert 0 < float(high[0]) < 0.03
    assert float(low[0]) == pytest.approx(-float(high[0]))


def test_parts_with_few_patients_do_not_count():
    found = periods(np.array([[0.9, 0.9], [0.9, 0.1]]), (50, 4), 20)
    assert change_evidence(found, SIGNS, ALPHA, shape=(2, 20)).value[-1] == pytest.approx(1.0)
