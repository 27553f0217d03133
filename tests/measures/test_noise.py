"""The noise floor is that of dealing the groups out again to patients, by hand and by enumeration, and shrinks with the rows."""

from itertools import permutations

import numpy as np
import pytest

from equipoise.data.attribute import Attribute
from equipoise.measures.cells import tabulate
from equipoise.measures.functional import gap_values
from equipoise.measures.noise import noise_floor

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
    assert noise_floor(f, y, codes, LEVELS, None, measure, draws=20_000) == pytest.approx(expected, abs=0.01)
    ids = np.array([f"p{k}" for k in range(6)], dtype=object)
    assert noise_floor(f, y, codes, LEVELS, ids, measure, draws=20_000) == pytest.approx(expected, abs=0.01)


def test_the_rows_of_a_patient_get_one_group() -> None:
    rng = np.random.default_rng(0)
    patient = np.repeat(np.arange(30), rng.integers(1, 6, 30))
    group, sick = rng.permutation(np.arange(30) % 3), rng.random(30) < 0.6
    f, y, codes, levels = (rng.random(30) < 0.5)[patient].astype(float), sick[patient].astype(int), group[patient], ("a", "b", "c")
    drawn = []
    for _ in range(4_000):
        drawn.append(_gap("eod", f, y, rng.permutation(group)[patient], levels))
    found = noise_floor(f, y, codes, levels, patient.astype(object), "eod", draws=4_000)
    assert found == pytest.approx(np.nanmean(drawn), abs=0.012)
    apart = noise_floor(f, y, codes, levels, None, "eod", draws=4_000)
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
            floor.append(noise_floor(f, y, codes, LEVELS, None, "eod", draws=50, seed=seed))
        floors[n] = np.mean(floor)
        assert floors[n] == pytest.approx(np.mean(seen), rel=0.25)
    assert floors[200] / floors[3_200] == pytest.approx(4, rel=0.1)


def test_a_gap_that_is_there_does_not_raise_the_floor_to_itself() -> None:
    y, codes = np.ones(400, int), np.arange(400) % 2
    assert noise_floor(codes.astype(float), y, codes, LEVELS, None, "eod") < 0.1  # the gap is 1


def test_a_patient_in_two_groups_counts_as_two() -> None:
    f, y, codes = np.array([1.0, 1, 0, 0]), np.ones(4, int), np.array([0, 1, 0, 1])
    patient = np.array(["p", "p", "q", "r"], dtype=object)
    every = [_gap("eod", f, y, np.array(deal)) for deal in set(permutations(codes.tolist()))]
    assert noise_floor(f, y, codes, LEVELS, patient, "eod", draws=5_000) == pytest.approx(np.mean(every), abs=0.02)


def test_rows_without_a_group_keep_out_and_nothing_is_no_number() -> None:
    f, y, codes = np.array([1.0, 0, 1, 0, 1]), np.ones(5, int), np.array([0, 0, 1, 1, -1])
    whole, without = (noise_floor(f[:n], y[:n], codes[:n], LEVELS, None, "eod", draws=500) for n in (5, 4))
    assert whole == without
    assert np.isnan(noise_floor([1.0], [1], [-1], LEVELS, None, "eod"))
    assert np.isnan(noise_floor([1.0, 0.0], [0, 0], [0, 1], LEVELS, None, "eod"))  # nobody is positive


def test_the_seed_decides_and_blocks_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(2)
    f, y, codes = rng.random(50), rng.integers(0, 2, 50), rng.integers(0, 2, 50)
    one, other = (noise_floor(f, y, codes, LEVELS, None, "aod", seed=s) for s in (1, 2))
    assert one != other
    monkeypatch.setattr("equipoise.measures.noise.BLOCK", 700)
    assert noise_floor(f, y, codes, LEVELS, None, "aod", seed=1) == pytest.approx(one, rel=1e-12)
