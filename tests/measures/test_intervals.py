"""Intervals: textbook formulas written again, known cases, clusters, and no interval that is a point."""

import math

import numpy as np
import pandas as pd
import pytest
import sklearn.metrics as sk
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.stats import binom, binomtest, chi2, norm, t

import equipoise as eq
from equipoise.data import Scores
from equipoise.errors import BadInput
from equipoise.measures import AuditSpec, PairedDecisions
from equipoise.measures.intervals import auroc_interval, bisect, combine_limits, detectable_gap, quantile, student, tango, wilson
from equipoise.measures.moments import Clusters, moments_of, moments_of_change
from equipoise.measures.score_measures import Ranking
from support.facts import facts

Z = quantile(0.95)


@pytest.mark.parametrize("level", [0.9, 0.95, 0.99])
@pytest.mark.parametrize(("k", "n"), [(0, 10), (10, 10), (7, 10), (4, 9), (40, 60), (0, 3)])
def test_a_proportion_equals_scipy_away_from_the_ends(k: int, n: int, level: float):
    expected = binomtest(k, n).proportion_ci(level, method="wilson")
    low, high = wilson(k / n, n, level)
    assert float(low) == pytest.approx(expected.low, abs=1e-12)
    assert float(high) == pytest.approx(expected.high, abs=1e-12)


def test_with_one_event_the_lower_limit_is_that_of_brown_cai_and_dasgupta():
    low, high = wilson([0.01, 0.99], 100)
    for events, level in ((1, 0.95), (2.4, 0.95), (3.4, 0.9), (1.7, 0.9995)):
        assert wilson(events / 100, 100, level)[0] == pytest.approx(chi2.ppf(1 - level, 2 * events) / 2 / 100, rel=1e-9)
    assert high[1] == pytest.approx(1 - low[0])
    assert low[0] < binomtest(1, 100).proportion_ci(method="wilson").low


@pytest.mark.parametrize("level", [0.9, 0.95, 0.999])
def test_quantiles_of_students_t_equal_scipy(level: float):
    degrees = np.array([1, 2, 3, 4, 5, 7, 12, 30, 200, 5000])
    np.testing.assert_allclose(student(degrees, level), t.ppf((1 + level) / 2, degrees), rtol=2e-4)


def test_quantiles_of_few_degrees_have_the_published_accuracy():
    """Six digits for three and four degrees of freedom, whose correction has a term of its own."""
    np.testing.assert_allclose(student([3, 4], 0.8), t.ppf(0.9, [3, 4]), rtol=1e-6)


@pytest.mark.parametrize("level", [0.5, 0.683])
@pytest.mark.parametrize("events", [1.0, 2.0, 2.4, 3.0])
def test_near_the_ends_the_lower_limit_is_the_smaller_of_two_at_low_levels_too(events: float, level: float):
    poisson, score = chi2.ppf(1 - level, 2 * events) / 2 / 100, _wilson_low(events / 100, 100, level)
    assert wilson(events / 100, 100, level)[0] == pytest.approx(min(poisson, score), rel=1e-9)


def _wilson_low(p: float, n: int, level: float) -> float:
    """The smaller solution of (p - t)^2 = z^2 t (1 - t) / n."""
    z = norm.ppf((1 + level) / 2)
    return float(min(np.roots([1 + z**2 / n, -(2 * p + z**2 / n), p**2])))


def test_a_difference_of_proportions_equals_the_published_example():
    """Newcombe 1998, table II, method 10: 56/70 minus 48/80 is 0.2 [0.0524, 0.3339]."""
    ends = [wilson(p, n) for p, n in ((56 / 70, 70), (48 / 80, 80))]
    low, high = (np.array([float(end[side]) for end in ends]) for side in (0, 1))
    assert [round(float(x), 4) for x in combine_limits([1, -1], np.array([0.8, 0.6]), low, high)] == [0.2, 0.0524, 0.3339]


@given(k=st.integers(0, 30), other=st.integers(0, 12), rho=st.floats(-1, 1))
def test_a_difference_changes_sign_with_its_terms_and_stays_around_its_value(k: int, other: int, rho: float):
    value = np.array([k / 30, other / 12])
    low, high = wilson(value, np.array([30, 12]))
    correlation = np.array([[1, rho], [rho, 1]])
    gap, below, above = combine_limits([1, -1], value, low, high, correlation)
    back, down, up = combine_limits([-1, 1], value, low, high, correlation)
    assert (gap, below, above) == pytest.approx((-back, -up, -down), abs=1e-12)
    assert below <= gap <= above


@pytest.mark.parametrize(("area", "m", "n"), [(0.994, 6, 200), (1.0, 6, 200), (0.7, 20, 30), (0.5, 5, 5), (0.0, 10, 10)])
def test_auroc_limits_solve_newcombes_equation(area: float, m: int, n: int):
    def beyond(t: float) -> float:
        mean = (m + n) / 2 - 1
        return (t - area) ** 2 - Z**2 * t * (1 - t) * (1 + mean * (1 - t) / (2 - t) + mean * t / (1 + t)) / (m * n)

    low, high = (float(end) for end in auroc_interval(area, m, n))
    assert low == pytest.approx(0 if area == 0 else brentq(beyond, 1e-9, area - 1e-9), abs=1e-8)
    assert high == pytest.approx(1 if area == 1 else brentq(beyond, area + 1e-9, 1 - 1e-12), abs=1e-8)


@pytest.mark.parametrize(("m", "n"), [(0, 10), (10, 0), (0, 0)])
def test_an_auroc_without_both_labels_has_no_limits(m: int, n: int):
    assert all(np.isnan(end) for end in auroc_interval(0.5, m, n))


def _frame(y: list[int], p: list[float], sex: list[str]) -> Scores:
    return Scores.from_frame(pd.DataFrame({"y": y, "p": p, "sex": sex}), label="y", score="p", group="sex", reference="M")


def _perfect(n: int = 10) -> Scores:
    return _frame([1] * n + [0] * n + [1] * n + [0] * n, ([0.9] * n + [0.1] * n) * 2, ["F"] * 2 * n + ["M"] * 2 * n)


def test_perfect_separation_is_no_proof_of_an_auroc_of_one():
    found = eq.audit(_perfect())
    for name in ("auroc", "tpr"):
        assert found.groups.loc["F", name] == found.groups.loc["F", f"{name}_high"] == 1
        assert 0.6 < found.groups.loc["F", f"{name}_low"] < 0.85
    for name in ("balanced_accuracy", "accuracy", "f1", "auroc", "average_precision"):
        assert found[name].value == found[name].high == 1
        assert 0.8 < found[name].low < 0.95, name


@pytest.mark.parametrize(("intervals", "each"), [(3, 1), (3, 1000), (0, 1), (20_000, 1)])
def test_points_tried_together_give_the_ends_of_halving_one_by_one(intervals: int, each: int) -> None:
    """Also where the outside has holes, and whichever end is the larger one."""
    rng = np.random.default_rng(0)
    inner, outer, border = rng.normal(size=(3, intervals))

    def outside(x: np.ndarray) -> np.ndarray:
        return np.asarray(np.sin(50 * (x - border)) > 0)

    low, high = inner, outer
    for _ in range(13):
        middle = (low + high) / 2
        low, high = np.where(outside(middle), low, middle), np.where(outside(middle), middle, high)
    found = bisect(outside, inner, outer, 13, each=each)
    np.testing.assert_array_equal(found[0], low)
    np.testing.assert_array_equal(found[1], high)


@pytest.mark.parametrize("intervals", [1, 3, 100, 5000])
def test_points_tried_together_are_a_few_thousand_numbers(intervals: int) -> None:
    """So that memory stays bounded: 4,096 numbers in a call, or one point of each interval."""
    sizes = []

    def outside(x: np.ndarray) -> np.ndarray:
        sizes.append(x.size)
        return np.asarray(x > 0.3)

    bisect(outside, np.zeros(intervals), np.ones(intervals), 13)
    assert 2048 <= max(sizes) <= max(4096, intervals)


def test_a_measure_of_two_rates_at_their_ends_is_uncertain_in_both():
    """TPR 1 and FPR 0 in both groups: tpr - fpr has a gap of 0 whose interval is as wide as both rates are uncertain."""
    found = eq.audit(_perfect(), also=["tpr-fpr"])
    eod, both, mean = found["eod"], found["tpr - fpr"], found["aod"]
    assert eod.value == both.value == 0
    assert eod.high == pytest.approx(1 - wilson(1.0, 10)[0])
    assert both.high == pytest.approx(np.sqrt(2) * eod.high)
    assert mean.high == pytest.approx(eod.high / np.sqrt(2))


def test_unchanged_decisions_of_ten_patients_do_not_prove_that_nothing_changes():
    y, codes = np.ones(20, np.int64), np.repeat([0, 1], 10)
    same = moments_of_change(y, y, y, Clusters.of(codes, 2, np.arange(20)))
    value, low, high = same.gap({"tpr": 1.0}).limits(0.95)
    assert value[0] == 0
    assert low[0] < -0.2
    assert high[0] > 0.2


def test_a_paired_change_is_narrower_than_unpaired_rates_and_equals_mcnemar_in_large_samples():
    rng = np.random.default_rng(0)
    n = 5000
    before = (rng.random(n) < 0.6).astype(float)
    after = np.where(rng.random(n) < 0.1, 1 - before, before)
    y, codes = np.ones(n, np.int64), np.zeros(n, np.int64)
    value, low, high = (
        float(x[0]) for x in moments_of_change(before, after, y, Clusters.of(codes, 1, np.arange(n))).signed({"tpr": 1.0}).limits(0.95)
    )
    step = after - before
    assert value == pytest.approx(step.mean())
    assert high - low == pytest.approx(2 * Z * step.std() / np.sqrt(n), rel=0.01)


def _clustered(rng: np.random.Generator, patients: int, rows: int) -> tuple[np.ndarray, ...]:
    f = np.repeat((rng.random(patients) < 0.6).astype(float), rows)
    return f, np.ones(len(f), np.int64), np.zeros(len(f), np.int64), np.repeat(np.arange(patients), rows)


def test_equal_rows_of_a_patient_count_once():
    f, y, codes, units = _clustered(np.random.default_rng(0), 40, 5)
    sums = moments_of(f, y, codes, 1, units)
    assert sums["tpr"].size[0] == pytest.approx(40, rel=0.03)
    assert sums["tpr"].patients[0] == 40
    always = moments_of(np.ones(200), y, codes, 1, units)  # the variance shows nothing at a rate of 1
    assert always["tpr"].size[0] == 40
    alone = moments_of(f, y, codes, 1, np.arange(200))
    assert alone["tpr"].size[0] == pytest.approx(200)


def test_integer_weights_equal_repeated_rows_of_a_patient():
    rng = np.random.default_rng(1)
    f, y, weight = rng.integers(0, 2, 60), rng.integers(0, 2, 60), rng.integers(1, 4, 60)
    codes = np.zeros(60, np.int64)
    weighted = moments_of(f, y, codes, 1, np.arange(60), weight)
    repeated = moments_of(*(np.repeat(x, weight) for x in (f, y, codes)), 1, np.repeat(np.arange(60), weight))  # type: ignore[call-arg]
    names = ("tpr", "fpr", "ppv", "accuracy")
    for name in names:
        assert weighted[name].value[0] == pytest.approx(repeated[name].value[0])
        assert weighted[name].patients[0] == repeated[name].patients[0]
    np.testing.assert_allclose(weighted.covariance(names), repeated.covariance(names), rtol=1e-12)
    assert weighted["tpr"].size[0] < 60


def test_moments_of_disjoint_patients_add_up():
    rng = np.random.default_rng(2)
    f, y, codes, units = rng.random(200), rng.integers(0, 2, 200), rng.integers(-1, 3, 200), np.arange(200) // 2
    whole = moments_of(f, y, codes, 3, units)
    first = units < 40
    parts = moments_of(f[first], y[first], codes[first], 3, units[first]) + moments_of(
        f[~first], y[~first], codes[~first], 3, units[~first]
    )
    for mine, theirs in zip(whole.arrays(), parts.arrays(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-12)


def test_covariances_equal_those_of_the_bootstrap():
    rng = np.random.default_rng(3)
    patients = 300
    units = np.repeat(np.arange(patients), 3)
    codes = np.repeat(rng.integers(0, 2, patients), 3)
    lean = np.repeat(rng.normal(size=patients), 3)
    y = (rng.random(len(units)) < 0.5).astype(np.int64)
    f = (lean + rng.normal(size=len(units)) + y > 0.5).astype(float)
    sums = moments_of(f, y, codes, 2, units)
    names = ("tpr", "fpr", "ppv")
    draws = []
    for _ in range(1500):
        times = np.bincount(rng.integers(0, patients, patients), minlength=patients)
        rows = np.repeat(np.arange(len(units)), times[units])
        drawn = moments_of(f[rows], y[rows], codes[rows], 2, np.arange(len(rows)))
        draws.append([drawn[name].value[1] for name in names])
    np.testing.assert_allclose(sums.covariance(names)[1], np.cov(np.transpose(draws)), atol=0.12 * sums.covariance(names)[1].max())
    correlation = sums.gap_correlation({"eod": {"tpr": 1.0}, "fpr_gap": {"fpr": 1.0}, "fnr_gap": {"tpr": -1.0}})
    assert correlation[0, 2] == pytest.approx(-1)
    assert correlation[0, 1] > 0.1


def test_influence_equals_the_derivative_by_the_weight_of_a_row():
    rng = np.random.default_rng(4)
    score, y, weight = rng.random(40).round(1), rng.integers(0, 2, 40), rng.random(40) + 0.5
    ranking = Ranking(score, y)
    for name in ("auroc", "average_precision"):
        influence = ranking.ranks(weight).influence(name)
        for row in range(40):
            step = np.zeros(40)
            step[row] = 1e-6 * weight[row]
            slope = (getattr(ranking.ranks(weight + step), name) - getattr(ranking.ranks(weight - step), name)) / 2e-6
            assert weight[row] * influence[y[row], ranking.place[row]] == pytest.approx(slope, abs=1e-8)


@pytest.mark.parametrize(("rate", "n0", "n1"), [(0.6, 80, 40), (0.97, 60, 60), (0.15, 100, 190), (0.5, 30, 30), (0.02, 200, 30)])
def test_the_detectable_gap_has_the_power_that_it_states(rate: float, n0: int, n1: int) -> None:
    """The share of all outcomes whose interval excludes zero, by the binomial distributions of both groups."""
    d = float(detectable_gap([1.0], np.array([rate]), np.array([float(n0)]), np.array([float(n1)])))
    x0, x1 = np.arange(n0 + 1)[:, None], np.arange(n1 + 1)
    rates = np.stack(np.broadcast_arrays(x1 / n1, x0 / n0), axis=-1)
    _, low, high = combine_limits([1.0, -1.0], rates, *wilson(rates, np.array([n1, n0])))
    p0 = (rate * n0 + 1) / (n0 + 2)
    power = []
    for p1 in (p0 - d, p0 + d):
        if 0 <= p1 <= 1:
            chance = binom.pmf(x0, n0, p0) * binom.pmf(x1, n1, p1)
            power.append(chance[(low > 0) | (high < 0)].sum())
    assert 0.75 < min(power) < 0.88


@pytest.mark.parametrize("coefficients", [[1.0], [-1.0], [0.5, 0.5], [1.0, -1.0]])
@pytest.mark.parametrize("times", [0.25, 3.0])
def test_the_detectable_gap_of_a_multiple_of_a_measure_is_that_multiple(coefficients: list[float], times: float) -> None:
    rates, sizes = np.array([0.6, 0.3][: len(coefficients)]), np.array([150.0, 90.0][: len(coefficients)])
    one, many = (float(detectable_gap(np.multiply(coefficients, by), rates, sizes, sizes)) for by in (1.0, times))
    assert many == pytest.approx(times * one, rel=1e-5)  # to which it is searched
    assert 0.05 < one < 0.5


def test_where_no_gap_is_large_enough_there_is_no_detectable_one() -> None:
    assert np.isnan(detectable_gap([1.0], np.array([0.5]), np.array([5.0]), np.array([5.0])))
    both = detectable_gap([0.5, 0.5], np.array([0.5, 0.5]), np.array([200.0, 200.0]), np.array([100.0, 100.0]))
    assert float(both) < float(detectable_gap([1.0], np.array([0.5]), np.array([200.0]), np.array([100.0])))


def test_the_p_value_of_an_interval_is_where_it_ends_at_zero() -> None:
    rng = np.random.default_rng(9)
    units = np.repeat(np.arange(240), 3)
    codes, y = units % 4, rng.integers(0, 2, 720)
    f = (rng.random(720) < 0.3 + 0.3 * y + 0.1 * codes).astype(float)
    sums = moments_of(f, y, codes, 4, units)
    for signed in ({"tpr": 1.0}, {"tpr": 0.5, "fpr": 0.5}, {"ppv": 1.0}):
        p = sums.gap(signed).p_values()
        assert ((p > 0) & (p < 1)).all()
        for k in range(3):
            for close, inside in ((0.98, True), (1.02, False)):
                _, low, high = sums.gap(signed).limits(1 - close * p[k])
                assert (low[k] <= 0 <= high[k]) == inside
    same = moments_of(np.ones(20), np.ones(20), np.arange(20) % 2, 2, np.arange(20))
    assert same.gap({"tpr": 1.0}).p_values().tolist() == [1.0]
    assert np.isnan(same.gap({"fpr": 1.0}).p_values()).all()


def test_few_patients_are_marked_in_frames_and_json():
    rng = np.random.default_rng(5)
    sizes = {"M": 200, "F": 100, "X": 20, "Y": 3}
    sex = np.repeat(list(sizes), list(sizes.values()))
    y = np.arange(len(sex)) % 2
    found = eq.audit(_frame(y.tolist(), rng.random(len(sex)).tolist(), sex.tolist()))
    gaps = found.gaps.set_index(["measure", "group"])
    assert gaps.loc[("spd", "F"), ["patients", "few"]].tolist() == [100, False]
    assert gaps.loc[("spd", "X"), ["patients", "few"]].tolist() == [20, True]
    assert gaps.loc[("eod", "X"), ["patients", "few"]].tolist() == [10, True]
    assert gaps.loc[("spd", "Y"), ["patients", "few"]].tolist() == [0, False]  # withheld, so nothing to mark
    assert "tpr" in found.groups.loc["X", "few"].split(", ")
    assert found.groups.loc["M", "few"] == ""
    plain = found.to_dict()
    assert [row["few"] for row in plain["gaps"] if row["measure"] == "spd"] == [False, True, False]
    assert plain["spd"]["patients"] == found["spd"].patients


def test_the_limits_of_a_paired_difference_are_where_its_score_statistic_is_z() -> None:
    """With the share lost that is most likely given the difference, found by a search over the multinomial likelihood."""
    for gained, lost, n in ((12, 2, 50), (3, 0, 100), (9, 0, 40), (7, 7, 60), (0, 5, 30)):
        for limit in tango(gained / n, lost / n, n):
            d = float(limit)
            q = np.linspace(max(0.0, -d), (1 - d) / 2, 400_001)[1:-1]  # q lost, q + d gained
            likelihood = gained * np.log(q + d) + lost * np.log(q) + (n - gained - lost) * np.log(1 - 2 * q - d)
            share = q[likelihood.argmax()]
            assert (gained / n - lost / n - d) ** 2 == pytest.approx(Z**2 * (2 * share + d - d * d) / n, rel=2e-3)
    assert [round(float(end), 6) for end in tango(0.0, 0.0, 20)] == pytest.approx([-(Z**2) / (20 + Z**2), Z**2 / (20 + Z**2)], abs=1e-6)
    assert np.isnan(tango(np.nan, np.nan, 10)[0])


@pytest.mark.parametrize(("n", "gained", "lost"), [(60, 0.15, 0.1), (200, 0.06, 0.03), (1000, 0.02, 0.0)])
def test_a_paired_difference_covers_neither_too_seldom_nor_always(n: int, gained: float, lost: float) -> None:
    counts = np.random.default_rng(n).multinomial(n, [gained, lost, 1 - gained - lost], 4000)
    low, high = tango(counts[:, 0] / n, counts[:, 1] / n, n)
    assert 0.935 < np.mean((low <= gained - lost) & (gained - lost <= high)) < 0.975


def test_changes_of_patients_with_several_rows_cover() -> None:
    rng = np.random.default_rng(8)
    groups, patients = 800, 60
    unit = np.repeat(np.arange(groups * patients), 3)
    x = np.sqrt(0.5) * (rng.normal(size=groups * patients)[unit] + rng.normal(size=len(unit)))
    before, after = (x > 0.0).astype(float), (x + 0.4 * rng.normal(size=len(unit)) > -0.1).astype(float)
    change = moments_of_change(before, after, np.ones(len(unit)), Clusters.of(unit // patients, groups, unit))
    truth = norm.cdf(0.1 / np.sqrt(1.16)) - 0.5
    _, low, high = change.signed({"tpr": 1.0}).limits(0.95)
    assert 0.93 < np.mean((low <= truth) & (truth <= high)) < 0.98


def test_changes_of_quotients_equal_their_differences_and_are_no_points() -> None:
    rng = np.random.default_rng(6)
    n = 300
    y, codes = rng.integers(0, 2, n), rng.integers(0, 2, n)
    before = (rng.random(n) < 0.2 + 0.5 * y).astype(float)
    after = np.where(rng.random(n) < 0.15, 1 - before, before)
    scores = Scores.from_arrays(y, rng.random(n), np.array(["M", "F"])[codes], reference="M")
    pair = PairedDecisions(scores, (before, after), AuditSpec())
    for measure in ("ppv_gap", "npv_gap"):
        old, new = (cells.gaps(measure)[0] for cells in pair.cells)
        change = pair.gap_change(measure, "F")
        assert change.value == pytest.approx(new - old, abs=1e-12)
        assert change.low < change.value < change.high
    change = pair.performance_change("f1")
    assert change.value == pytest.approx(sk.f1_score(y, after) - sk.f1_score(y, before), abs=1e-12)
    same = PairedDecisions(scores, (before, before), AuditSpec()).performance_change("f1")
    assert same.value == 0
    assert same.low < 0 < same.high


@pytest.mark.parametrize("level", [0.0, 1e-300, 1 - 1e-16, 1.0, math.nan])
def test_a_level_whose_quantile_is_zero_or_infinite_is_refused(level: float):
    with pytest.raises(BadInput, match=facts("level", level)):
        AuditSpec(level=level)
