"""Confidence sequences and evidence of change: their level over all periods in simulation, their power, and brute-force oracles."""

from dataclasses import replace

import numpy as np
import pytest

from equipoise.measures import SignedSum
from equipoise.measures.moments import DECISION_RATIOS, Moments
from equipoise.measures.monitoring import Strata, change_evidence, confidence_sequence, first_period

SIGNS, ALPHA = {"tpr": 1.0}, 0.05


def periods(rates: np.ndarray, sizes: np.ndarray | tuple[int, int], repetitions: int, seed: int = 0) -> list[Moments]:
    """Moments of positives only, one row per patient: the repetitions of the reference, then those of the group. `rates` (T, 2)."""
    rng, found = np.random.default_rng(seed), []
    for pair, size in zip(rates, np.broadcast_to(sizes, rates.shape), strict=True):
        n = np.repeat(size, repetitions).astype(float)
        hits = rng.binomial(n.astype(int), np.repeat(pair, repetitions)).astype(float)
        total, second = np.zeros((len(n), 4)), np.zeros((len(n), 4, 4))
        total[:, 1], total[:, 3] = n, hits
        second[:, 1, 1], second[:, 3, 3], second[:, 1, 3], second[:, 3, 1] = n, hits, hits, hits
        held = np.zeros((len(n), len(DECISION_RATIOS)))
        held[:, list(DECISION_RATIOS).index("tpr")] = n
        found.append(Moments(DECISION_RATIOS, total, second, held, held, np.zeros((*held.shape, 6)), np.zeros_like(second)))
    return found


def gaps(sums: Moments, repetitions: int) -> SignedSum:
    each = sums.signed(SIGNS)
    return each[repetitions:].minus(each[:repetitions])


@pytest.mark.parametrize(("rates", "sizes"), [((0.8, 0.8), (20, 10)), ((0.8, 0.7), (60, 30)), ((0.97, 0.97), (40, 20))])
def test_a_stable_gap_that_is_audited_fifty_times_raises_few_alarms(rates, sizes):
    repetitions = 400
    found = periods(np.tile(rates, (50, 1)), sizes, repetitions)
    strata = Strata.of(found, SIGNS, shape=(2, repetitions))
    _, low, high = (each[:, 0] for each in confidence_sequence(strata.gaps(), ALPHA))
    evidence = change_evidence(strata, ALPHA).value[:, 0]
    assert (first_period((low > rates[1] - rates[0]) | (high < rates[1] - rates[0])) >= 0).mean() <= 0.05
    assert (first_period(evidence >= 1 / ALPHA) >= 0).mean() <= 0.05
    naive = [gaps(own, repetitions).limits(0.95) for own in found]
    outside = first_period(np.array([(low > rates[1] - rates[0]) | (high < rates[1] - rates[0]) for _, low, high in naive]))
    assert (outside >= 0).mean() > 0.15  # what repeated tests at 5 % would do


@pytest.mark.parametrize("patients", [200, 1000])
@pytest.mark.parametrize("ends", [(0.9, 0.6), (0.6, 0.9)])
def test_a_rate_that_drifts_in_both_groups_while_their_shares_change_is_no_gap(patients: int, ends: tuple[float, float]):
    """Simpson's paradox: the gap is zero in every period, and not zero over all of them pooled."""
    repetitions, share = 200, np.linspace(0.2, 0.8, 50)
    rates = np.repeat(np.linspace(*ends, 50)[:, None], 2, axis=1)
    sizes = np.stack([patients * (1 - share), patients * share], axis=1).round().astype(int)
    found = periods(rates, sizes, repetitions)
    strata = Strata.of(found, SIGNS, shape=(2, repetitions))
    _, low, high = (each[:, 0] for each in confidence_sequence(strata.gaps(), ALPHA / 2))
    alarm = (low > 0) | (high < 0) | (change_evidence(strata, ALPHA / 2).value[:, 0] >= 2 / ALPHA)
    assert alarm.any(0).mean() <= 0.05
    pooled = gaps(sum(found[1:], found[0]), repetitions)
    assert np.mean(np.abs(pooled.total)) > 0.05


def test_a_gap_that_appears_is_reported_and_dated():
    repetitions = 100
    rates = np.array([[0.8, 0.8]] * 10 + [[0.8, 0.6]] * 10)
    found = change_evidence(Strata.of(periods(rates, (200, 200), repetitions), SIGNS, shape=(2, repetitions)), ALPHA)
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
    p = ((whole.value * whole.size + 1) / (whole.size + 2))[:, 0]
    for k in (1, 2):
        before, after = sum(found[1:k], found[0]).total, sum(found[k + 1 :], found[k]).total
        rates = [part[:, 3] / part[:, 1] for part in (before, after)]
        difference = (rates[1] - rates[0])[repetitions:] - (rates[1] - rates[0])[:repetitions]
        own = [(part[:, 3] + 2 * p) / (part[:, 1] + 2) for part in (before, after)]
        variance = sum(np.maximum(q * (1 - q), p * (1 - p)) / part[:, 1] for q, part in zip(own, (before, after), strict=True))
        v = variance[repetitions:] + variance[:repetitions]
        density = [np.exp(-(difference**2) / 2 / w) / np.sqrt(w) for w in (v + s2, v)]
        wanted += density[0] / density[1] / (k * (k + 1))
    evidence = change_evidence(Strata.of(found, SIGNS, shape=(2, repetitions)), ALPHA)
    assert evidence.value[-1, 0] == pytest.approx(wanted + 1 / 3)


def test_a_period_beyond_its_limits_raises_the_alarm_on_its_own():
    found = periods(np.array([[0.8, 0.8]] * 6), (300, 300), 1)
    limits = change_evidence(Strata.of(found, SIGNS), ALPHA)
    low = limits.limit_low[-1, 0]
    reference = found[-1].total[0, 3] / found[-1].total[0, 1]
    for step, alarm in ((-0.02, True), (0.02, False)):
        last = found[-1].total.copy()
        last[1, 3] = (low + step + reference) * last[1, 1]
        changed = [*found[:-1], replace(found[-1], total=last)]
        assert (change_evidence(Strata.of(changed, SIGNS), ALPHA).value[-1, 0] >= 1 / ALPHA) == alarm


def test_limits_narrow_with_patients_and_cover_everything_without_them():
    few, many = SignedSum.of([1.0, -1.0], [[0.5, 0.5]], [[2.0]]), SignedSum.of([1.0, -1.0], [[0.5, 0.5]], [[9000.0]])
    assert [float(end[0]) for end in confidence_sequence(few, ALPHA)[1:]] == [-1.0, 1.0]
    _, low, high = confidence_sequence(many, ALPHA)
    assert 0 < float(high[0]) < 0.03
    assert float(low[0]) == pytest.approx(-float(high[0]))


def test_parts_with_few_patients_do_not_count():
    found = periods(np.array([[0.9, 0.9], [0.9, 0.1]]), (50, 4), 20)
    assert change_evidence(Strata.of(found, SIGNS, shape=(2, 20)), ALPHA).value[-1] == pytest.approx(1.0)


@pytest.mark.parametrize("patients", [200, 1000])
def test_a_ppv_that_follows_the_prevalence_of_both_groups_is_no_gap(patients: int):
    """Positive decisions and their PPV in each period; the prevalence falls while the share of the group rises."""
    repetitions, share, rng = 200, np.linspace(0.2, 0.8, 50), np.random.default_rng(1)
    found = []
    for p, s in zip(np.linspace(0.5, 0.15, 50), share, strict=True):
        n = np.repeat(np.round([patients * (1 - s), patients * s]), repetitions)
        sick = rng.binomial(n.astype(int), p).astype(float)
        true, false = rng.binomial(sick.astype(int), 0.8).astype(float), rng.binomial((n - sick).astype(int), 0.1).astype(float)
        total = np.stack([n - sick, sick, false, true], axis=1)
        second = np.zeros((len(n), 4, 4))
        second[:, range(4), range(4)] = total
        for a, b in ((0, 2), (1, 3)):
            second[:, a, b] = second[:, b, a] = total[:, b]
        held = np.stack([total @ np.array(each.bottom, dtype=float) for each in DECISION_RATIOS.values()], axis=1)
        found.append(Moments(DECISION_RATIOS, total, second, held, held, np.zeros((*held.shape, 6)), np.zeros_like(second)))
    strata = Strata.of(found, {"ppv": 1.0}, shape=(2, repetitions))
    _, low, high = (each[:, 0] for each in confidence_sequence(strata.gaps(), ALPHA / 2))
    alarm = (low > 0) | (high < 0) | (change_evidence(strata, ALPHA / 2).value[:, 0] >= 2 / ALPHA)
    assert alarm.any(0).mean() <= 0.05


def test_limits_of_a_single_period_that_no_gap_can_reach_are_unknown():
    found = change_evidence(Strata.of(periods(np.full((4, 2), 0.8), (6, 5), 1), SIGNS), ALPHA)
    assert np.isnan([found.limit_low, found.limit_high]).all()
    large = change_evidence(Strata.of(periods(np.full((4, 2), 0.8), (600, 500), 1), SIGNS), ALPHA)
    assert ((large.limit_low[1:] > -1) & (large.limit_low[1:] < 0)).all()


@pytest.mark.parametrize("sizes", [(24, 12), (160, 80), (800, 400)])
@pytest.mark.parametrize(("first", "last"), [(0.9, 0.6), (0.1, 0.1), (0.1, 0.3)])
@pytest.mark.parametrize("true", [1.0, 0.75])
def test_a_ratio_that_stays_while_the_rates_drift_raises_few_alarms(first, last, true, sizes):
    repetitions, reference = 200, np.linspace(first, last, 50)
    found = periods(np.stack([reference, true * reference], axis=1), sizes, repetitions)
    strata = Strata.of(found, SIGNS, shape=(2, repetitions))
    _, low, high = (each[:, 0] for each in confidence_sequence(strata.gaps(), ALPHA / 2, is_ratio=True))
    changed = change_evidence(strata, ALPHA / 2, is_ratio=True).value[:, 0] >= 2 / ALPHA
    assert ((low > true) | (high < true) | changed).any(0).mean() <= 0.05


def test_a_ratio_that_falls_is_reported_and_dated():
    rates = np.repeat([[0.8, 0.8], [0.8, 0.6]], [12, 24], axis=0)
    strata = Strata.of(periods(rates, (150, 80), 50), SIGNS, shape=(2, 50))
    evidence = change_evidence(strata, ALPHA / 2, is_ratio=True)
    first = first_period(evidence.value[:, 0] >= 2 / ALPHA)
    assert (first >= 12).mean() > 0.9
    assert np.median(evidence.since[-1, 0]) == 12
    assert evidence.before[-1, 0].mean() == pytest.approx(1.0, abs=0.03)
    assert evidence.after[-1, 0].mean() == pytest.approx(0.75, abs=0.03)
    _, _, high = (each[:, 0] for each in confidence_sequence(strata.gaps(), ALPHA / 2, is_ratio=True))
    assert (high[-1] < 1).mean() > 0.9
