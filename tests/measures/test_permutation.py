"""The noise floor is that of dealing the groups out again to patients, by hand and by enumeration, and shrinks with the rows."""

from itertools import permutations

import numpy as np
import pytest

from equipoise.data import Attribute
from equipoise.measures import gap_values, mean_permuted_gap, tabulate
from equipoise.measures.permutation import mean_size, permuted_gaps

LEVELS = ("M", "F")


def _gap(measure: str, f: np.ndarray, y: np.ndarray, codes: np.ndarray, levels: tuple[str, ...] = LEVELS) -> float:
    """The largest |gap|, from rates taken row by row."""
    rows = {"eod": y == 1, "fpr_gap": y == 0, "spd": np.ones(len(y), bool)}[measure]
    rates = [f[rows & (codes == k)].mean() if (rows & (codes == k)).any() else np.nan for k in range(len(levels))]
    return float(np.nanmax(np.abs(np.array(rates[1:]) - rates[0]))) if not np.isnan(np.array(rates[1:]) - rates[0]).all() else np.nan


@pytest.mark.parametrize("measure", ["spd", "eod", "fpr_gap"])
def test_with_one_row_a_patient_it_is_the_mean_over_every_deal(measure: str) -> None:
    f, y = np.array([1.0, 0, 1, 0, 1, 0.5]), np.array([1, 1, 1, 0, 1, 0])
    codes = np.array([0, 0, 0, 1, 1, 1])
    every = [_gap(measure, f, y, np.array(deal)) for deal in set(permutations(codes.tolist()))]
    expected = np.nanmean(every)
    assert mean_permuted_gap(f, y, codes, LEVELS, None, measure, draws=20_000) == pytest.approx(expected, abs=0.01)
    ids = np.array([f"p{k}" for k in range(6)], dtype=object)
    assert mean_permuted_gap(f, y, codes, LEVELS, ids, measure, draws=20_000) == pytest.approx(expected, abs=0.01)


def test_the_rows_of_a_patient_get_one_group() -> None:
    rng = np.random.default_rng(0)
    patient = np.repeat(np.arange(30), rng.integers(1, 6, 30))
    group, sick = rng.permutation(np.arange(30) % 3), rng.random(30) < 0.6
    f, y, codes, levels = (rng.random(30) < 0.5)[patient].astype(float), sick[patient].astype(int), group[patient], ("a", "b", "c")
    drawn = []
    for _ in range(4_000):
        drawn.append(_gap("eod", f, y, rng.permutation(group)[patient], levels))
    found = mean_permuted_gap(f, y, codes, levels, patient.astype(object), "eod", draws=4_000)
    assert found == pytest.approx(np.nanmean(drawn), abs=0.012)
    apart = mean_permuted_gap(f, y, codes, levels, None, "eod", draws=4_000)
    assert apart < 0.8 * found  # rows dealt to one by one would feign three times as many patients


def test_it_is_what_an_unbiased_classifier_shows_and_falls_with_the_root_of_the_rows() -> None:
    rng = np.random.default_rng(1)
    floors = {}
    for n in (200, 3_200):
        seen, floor = [], []
        for seed in range(60):
            y, codes = rng.integers(0, 2, n), rng.integers(0, 2, n)
            f = (rng.random(n) < 0.2 + 0.5 * y).astype(float)
            seen.append(abs(gap_values("eod", tabulate(f, y, Attribute("g", LEVELS, codes)))[0]))
            floor.append(mean_permuted_gap(f, y, codes, LEVELS, None, "eod", draws=50, seed=seed))
        floors[n] = np.mean(floor)
        assert floors[n] == pytest.approx(np.mean(seen), rel=0.25)
    assert floors[200] / floors[3_200] == pytest.approx(4, rel=0.1)


def test_a_gap_that_is_there_does_not_raise_the_floor_to_itself() -> None:
    y, codes = np.ones(400, int), np.arange(400) % 2
    assert mean_permuted_gap(codes.astype(float), y, codes, LEVELS, None, "eod") < 0.1  # the gap is 1


def test_a_patient_in_two_groups_counts_as_two() -> None:
    f, y, codes = np.array([1.0, 1, 0, 0]), np.ones(4, int), np.array([0, 1, 0, 1])
    patient = np.array(["p", "p", "q", "r"], dtype=object)
    every = [_gap("eod", f, y, np.array(deal)) for deal in set(permutations(codes.tolist()))]
    assert mean_permuted_gap(f, y, codes, LEVELS, patient, "eod", draws=5_000) == pytest.approx(np.mean(every), abs=0.02)


def test_rows_without_a_group_keep_out_and_nothing_is_no_number() -> None:
    f, y, codes = np.array([1.0, 0, 1, 0, 1]), np.ones(5, int), np.array([0, 0, 1, 1, -1])
    whole, without = (mean_permuted_gap(f[:n], y[:n], codes[:n], LEVELS, None, "eod", draws=500) for n in (5, 4))
    assert whole == without
    assert np.isnan(mean_permuted_gap([1.0], [1], [-1], LEVELS, None, "eod"))
    assert np.isnan(mean_permuted_gap([1.0, 0.0], [0, 0], [0, 1], LEVELS, None, "eod"))  # nobody is positive


def test_the_seed_decides_and_blocks_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(2)
    f, y, codes = rng.random(50), rng.integers(0, 2, 50), rng.integers(0, 2, 50)
    one, other = (mean_permuted_gap(f, y, codes, LEVELS, None, "aod", seed=s) for s in (1, 2))
    assert one != other
    monkeypatch.setattr("equipoise.measures.permutation.BLOCK", 700)
    assert mean_permuted_gap(f, y, codes, LEVELS, None, "aod", seed=1) == pytest.approx(one, rel=1e-12)


def _many_gaps(draws: int, seed: int = 0) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(1)
    patient = rng.integers(0, 60, 120)
    f, y, codes = rng.integers(0, 2, 120).astype(float), rng.integers(0, 2, 120), patient % 3
    return (
        f,
        y,
        codes,
        patient.astype(object),
        permuted_gaps(f, y, codes, ("a", "b", "c"), patient.astype(object), ["eod", "spd"], draws, seed),
    )


def test_deals_by_kind_of_patient_are_those_of_the_patients(monkeypatch: pytest.MonkeyPatch) -> None:
    *data, by_kind = _many_gaps(4_000)
    monkeypatch.setattr("equipoise.measures.permutation.MOST_KINDS", 0)
    monkeypatch.setattr("equipoise.measures.permutation.MOST_PERMUTATIONS", 4_000)
    *_, by_patient = _many_gaps(4_000)
    for measure in ("eod", "spd"):
        assert by_kind[measure].shape == by_patient[measure].shape == (4_000, 2)
        np.testing.assert_allclose(by_kind[measure].mean(0), 0, atol=0.01)
        np.testing.assert_allclose(by_kind[measure].std(0), by_patient[measure].std(0), rtol=0.05)
        correlation = [np.corrcoef(found[measure].T)[0, 1] for found in (by_kind, by_patient)]
        assert correlation[0] == pytest.approx(correlation[1], abs=0.05)  # both have the reference in common
        f, y, codes, patients = data
        floor = mean_permuted_gap(f, y, codes, ("a", "b", "c"), patients, measure, draws=4_000)
        assert mean_size(by_kind[measure]) == pytest.approx(floor, rel=0.05)


@pytest.mark.parametrize("measure", ["spd", "eod", "fpr_gap"])
def test_deals_by_kind_have_the_mean_over_every_deal(measure: str) -> None:
    f, y = np.array([1.0, 0, 1, 0, 1, 0.5]), np.array([1, 1, 1, 0, 1, 0])
    codes = np.array([0, 0, 0, 1, 1, 1])
    every = [_gap(measure, f, y, np.array(deal)) for deal in set(permutations(codes.tolist()))]
    assert mean_size(permuted_gaps(f, y, codes, LEVELS, None, [measure], 20_000)[measure]) == pytest.approx(np.nanmean(every), abs=0.01)


def test_deals_are_the_same_for_the_same_seed_and_have_no_gap_without_groups() -> None:
    one, again, other = (_many_gaps(50, seed)[-1]["eod"] for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, again)
    assert (one != other).any()
    assert np.isnan(permuted_gaps([1.0], [1], [-1], LEVELS, None, ["eod"], 5)["eod"]).all()
    assert np.isnan(mean_size(np.zeros((5, 0))))
