"""Changes of predictive values, F1 and AUROC on the same patients: mirrored, bounded, equal to a bootstrap, and covering the truth."""

from collections.abc import Callable
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import equipoise as eq
from equipoise.comparison.changes import _auroc_change
from equipoise.data import Attribute, Scores
from equipoise.measures import AuditSpec, PairedDecisions

FEW_ROWS = st.lists(st.tuples(st.booleans(), st.booleans(), st.booleans(), st.integers(0, 4)), min_size=4, max_size=40)
Draw = Callable[[np.random.Generator, int], tuple[np.ndarray, np.ndarray, np.ndarray]]


def _pair(y: np.ndarray, before: np.ndarray, after: np.ndarray, codes: np.ndarray, units: np.ndarray) -> PairedDecisions:
    levels = tuple(f"g{k}" for k in range(int(codes.max()) + 1))
    ids = units.astype(str).astype(object)
    scores = Scores(y.astype(int), np.full(len(y), 0.5), (Attribute("g", levels, codes),), ids, ids, "simulated")
    return PairedDecisions(scores, (before.astype(float), after.astype(float)), AuditSpec(min_patients=1))


def _all_rows(y: np.ndarray, before: np.ndarray, after: np.ndarray, units: np.ndarray) -> PairedDecisions:
    return _pair(y, before, after, np.zeros(len(y), np.int64), units)


def _ratios(y: np.ndarray, f: np.ndarray) -> np.ndarray:
    """PPV, NPV and F1."""
    return np.array([y[f == 1].mean(), 1 - y[f == 0].mean(), 2 * (f * y).sum() / (f.sum() + y.sum())])


def _changes(pair: PairedDecisions) -> list[tuple[float, float, float]]:
    """The changes of PPV and NPV of the first group, and of F1 of all patients, with their limits."""
    f1 = pair.performance_change("f1")
    quotients = [pair.signed(measure).limits(0.95) for measure in ("ppv_gap", "npv_gap")]
    return [*((float(v[0]), float(low[0]), float(high[0])) for v, low, high in quotients), (f1.value, f1.low, f1.high)]


@given(rows=FEW_ROWS)
def test_swapped_decisions_mirror_the_change_and_limits_are_possible_values(rows: list[tuple[bool, bool, bool, int]]) -> None:
    y, before, after, units = (np.array(column, dtype=int) for column in zip(*rows, strict=True))
    there, back = (_changes(_all_rows(y, *decisions, units)) for decisions in ((before, after), (after, before)))
    for (value, low, high), (mirrored, other_low, other_high) in zip(there, back, strict=True):
        assert (value, low, high) == pytest.approx((-mirrored, -other_high, -other_low), abs=1e-9, nan_ok=True)
        assert np.isnan(value) or -1 - 1e-9 <= low <= value <= high <= 1 + 1e-9


def test_changes_have_the_standard_error_of_a_bootstrap_of_patients() -> None:
    rng = np.random.default_rng(0)
    units = np.repeat(np.arange(2000), rng.integers(1, 4, 2000))
    y = (rng.random(len(units)) < 0.3).astype(int)
    x = 1.5 * y + rng.normal(0, 0.7, 2000)[units] + rng.normal(0, 0.7, len(units))
    before, after = (x >= 1.6).astype(int), (x + rng.normal(0, 0.3, len(x)) >= 0.4).astype(int)
    rows_of = np.split(np.arange(len(units)), np.flatnonzero(np.diff(units)) + 1)
    drawn = []
    for _ in range(400):
        rows = np.concatenate([rows_of[k] for k in rng.integers(0, 2000, 2000)])
        drawn.append(_ratios(y[rows], after[rows]) - _ratios(y[rows], before[rows]))
    for (value, low, high), expected, sd in zip(
        _changes(_all_rows(y, before, after, units)), _ratios(y, after) - _ratios(y, before), np.std(drawn, axis=0), strict=True
    ):
        assert value == pytest.approx(expected)
        assert (high - low) / 2 == pytest.approx(1.96 * sd, rel=0.12)


def _moved(rng: np.random.Generator, rows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A threshold that is moved far down."""
    y = (rng.random(rows) < 0.3).astype(int)
    x = 1.5 * y - 1 + rng.normal(0, 1, rows)
    return y, x >= 1.2, x >= -0.3


def _noisy(rng: np.random.Generator, rows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A few decisions that change in both directions."""
    y = (rng.random(rows) < 0.3).astype(int)
    x = 1.5 * y - 1 + rng.normal(0, 1, rows)
    return y, x >= 0, x + rng.normal(0, 0.15, rows) >= -0.05


@pytest.mark.parametrize("draw", [_moved, _noisy])
def test_changes_of_predictive_values_cover_the_truth(draw: Draw) -> None:
    rng, samples, rows = np.random.default_rng(3), 400, 200
    y, before, after = draw(rng, 2_000_000)
    truth = _ratios(y, after) - _ratios(y, before)
    y, before, after = draw(rng, samples * rows)
    pair = _pair(y, before, after, np.arange(len(y)) // rows, np.arange(len(y)))
    for measure, change in (("ppv_gap", truth[0]), ("npv_gap", truth[1])):
        signed = pair.signed(measure)
        value, low, high = signed.limits(0.95)
        known = ~np.isnan(value)
        assert ((low <= change) & (change <= high))[known].mean() > 0.93
        gaps = signed[1::2].minus(signed[::2])
        value, low, high = gaps.limits(0.95)
        known = ~np.isnan(value)
        outside = ((low > 0) | (high < 0))[known]
        assert outside.mean() < 0.07
        assert ((gaps.p_values() < 0.05)[known] == outside).mean() > 0.99


def test_changes_of_rates_do_not_depend_on_quotients_tested_with_them() -> None:
    rng = np.random.default_rng(5)
    y, before, after = _noisy(rng, 400)
    sex = np.where(rng.random(400) < 0.5, "F", "M")
    first, second = (eq.Scores.from_arrays(y, np.where(f, 0.7, 0.3), sex, reference="M") for f in (before, after))
    alone, together = (eq.compare({"a": first, "b": second}, paired=True, measures=names) for names in (["eod"], ["eod", "ppv_gap"]))
    columns = ["value", "low", "high", "p_value"]
    np.testing.assert_array_equal(alone.changes.gaps[columns].iloc[0], together.changes.gaps[columns].iloc[0])


def _scores(y: np.ndarray, score: np.ndarray) -> Scores:
    attribute = Attribute("sex", ("M", "F"), np.arange(len(y)) % 2)
    return Scores(y, score, (attribute,), None, np.arange(len(y)).astype(object), "simulated")


def test_two_aurocs_of_one_do_not_prove_that_other_patients_are_separated_alike() -> None:
    y = np.repeat([1, 0], [8, 12])
    scores = [_scores(y, np.r_[np.linspace(0.7, 0.9, 8), np.linspace(0.1, top, 12)]) for top in (0.4, 0.5)]
    before, after, change, low, high = _auroc_change(*scores, 0.95)
    assert (before, after, change) == (1.0, 1.0, 0.0)
    assert low < -0.1
    assert high > 0.1


def test_swapped_scores_mirror_the_change_of_auroc_and_unchanged_scores_change_little() -> None:
    rng = np.random.default_rng(4)
    y = np.repeat([1, 0], [30, 70])
    x = y + rng.normal(0, 1, 100)
    first, second = (_scores(y, 1 / (1 + np.exp(-each))) for each in (x, x + rng.normal(0, 0.5, 100)))
    there, back = _auroc_change(first, second, 0.95)[2:], _auroc_change(second, first, 0.95)[2:]
    assert there == pytest.approx((-back[0], -back[2], -back[1]))
    value, low, high = _auroc_change(first, first, 0.95)[2:]
    assert value == 0
    assert high - low < 0.7 * (there[2] - there[1])


@pytest.mark.parametrize(("shift", "noise"), [(1.5, 0.5), (4.0, 1.0)])
def test_changes_of_auroc_cover_the_truth(shift: float, noise: float) -> None:
    rng, normal = np.random.default_rng(6), NormalDist().cdf
    truth = normal(shift / np.sqrt(2 * (1 + noise**2))) - normal(shift / np.sqrt(2))
    y, covered = np.repeat([1, 0], [20, 40]), []
    for _ in range(250):
        x = shift * y + rng.normal(0, 1, 60)
        first, second = (_scores(y, 1 / (1 + np.exp(-each))) for each in (x, x + rng.normal(0, noise, 60)))
        _, _, _, low, high = _auroc_change(first, second, 0.95)
        covered.append(low <= truth <= high)
    assert np.mean(covered) > 0.92
