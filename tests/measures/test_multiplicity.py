"""Families of comparisons: one decision per gap, in marks, p-values and intervals, and findings by chance stay rare over a whole family."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import equipoise as eq
from equipoise.data import Attribute, Scores
from equipoise.measures import Cells, comparisons_of, concatenate_sums, family_decisions, measure_of
from equipoise.measures.families import Family
from equipoise.measures.moments import moments_of

MEASURES = ["spd", "eod", "aod", "fpr_gap", "tnr_gap", "fnr_gap"]
LEVELS = tuple("abcdef")


def _family_of(z: np.ndarray, *correlations: np.ndarray) -> Family:
    blocks = [(len(matrix), lambda matrix=matrix: matrix) for matrix in correlations]
    return Family.of(np.arange(len(z)), z, np.zeros(len(z), bool), blocks)


def test_without_correlations_the_adjustment_is_that_of_holm() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        p = rng.random(8) ** 3
        order, rejected = np.argsort(p), np.zeros(8, bool)
        for k, place in enumerate(order):  # until the first that is not below its share
            if p[place] > 0.05 / (8 - k):
                break
            rejected[place] = True
        adjusted, critical = _family_of(stats.norm.isf(p / 2)).step_down(0.05)
        np.testing.assert_array_equal(adjusted <= 0.05, rejected)
        assert (adjusted >= p - 1e-12).all()
        np.testing.assert_array_equal(stats.norm.isf(p / 2) >= critical, rejected)


def test_the_critical_value_is_between_that_of_one_and_that_of_independent_comparisons() -> None:
    one = stats.norm.ppf(0.975)
    assert _family_of(np.ones(1), np.eye(1)).critical(0, 0.05) == pytest.approx(one, abs=1e-6)
    assert _family_of(np.ones(6), np.ones((6, 6))).critical(0, 0.05) == pytest.approx(one, abs=0.03)
    independent = stats.norm.ppf((1 + 0.95 ** (1 / 6)) / 2)
    assert _family_of(np.ones(6), np.eye(6)).critical(0, 0.05) == pytest.approx(independent, abs=0.03)
    assert _family_of(np.ones(6), np.eye(3), np.eye(3)).critical(0, 0.05) == pytest.approx(independent, abs=0.03)
    shared = np.full((6, 6), 0.5) + 0.5 * np.eye(6)  # a reference as large as each group
    draws = np.random.default_rng(0).multivariate_normal(np.zeros(6), shared, 100_000)
    assert _family_of(np.ones(6), shared).critical(0, 0.05) == pytest.approx(np.quantile(np.abs(draws).max(1), 0.95), abs=0.03)


def test_the_largest_gap_is_compared_with_all_and_the_next_with_the_rest() -> None:
    z, matrix = np.array([2.4, 3.5, 1.0, 2.3]), np.full((4, 4), 0.5) + 0.5 * np.eye(4)
    adjusted, _ = _family_of(z, matrix).step_down(0.05)
    draws = np.abs(np.random.default_rng(1).multivariate_normal(np.zeros(4), matrix, 200_000))
    expected = [(draws[:, [0, 2, 3]].max(1) >= 2.4).mean(), (draws.max(1) >= 3.5).mean(), (draws[:, 2] >= 1.0).mean()]
    assert adjusted[:3] == pytest.approx(expected, abs=0.006)
    assert adjusted[3] >= adjusted[0]


def _family(f: np.ndarray, y: np.ndarray, codes: np.ndarray, patients: np.ndarray | None = None) -> pd.DataFrame:
    """The gaps of an audit with p-values and simultaneous intervals, without its rates and performance."""
    sums = moments_of(f, y, codes, len(LEVELS), np.arange(len(y)) if patients is None else patients)
    cells, signed = Cells.of(f, y, Attribute("g", LEVELS, codes)), {name: measure_of(name).coefficients for name in MEASURES}
    frames = []
    for name, rates in signed.items():
        least = np.min([np.minimum(n[1:], n[0]) for n in (sums[rate].patients for rate in rates)], axis=0)
        frames.append(pd.DataFrame({"measure": name, "attribute": "g", "group": LEVELS[1:], "value": cells.gaps(name), "few": least < 30}))
    frame, gaps = pd.concat(frames, ignore_index=True), concatenate_sums([sums.gap(each) for each in signed.values()])
    return family_decisions(frame, gaps, 0.95, [(len(frame), lambda: sums.gap_correlation(signed))])


def _excludes_zero(gaps: pd.DataFrame) -> pd.Series:
    return (gaps["simultaneous_low"] > 0) | (gaps["simultaneous_high"] < 0)


def test_mark_p_value_and_simultaneous_interval_never_contradict_each_other() -> None:
    rng, marked = np.random.default_rng(3), 0
    for _ in range(60):
        codes, y = rng.integers(0, 6, 700), rng.integers(0, 2, 700)
        shift = rng.uniform(0, 0.35)
        f = (rng.random(700) < 0.3 + 0.4 * y - shift * (codes == 3)).astype(float)
        gaps = _family(f, y, codes)
        assert (gaps["clear"] == (gaps["p_adjusted"] <= 0.05)).all()
        assert (gaps["clear"] == _excludes_zero(gaps)).all()
        marked += int(gaps["clear"].sum())
    assert marked > 20


@pytest.mark.parametrize("clustered", [False, True])
def test_without_a_gap_few_data_sets_have_a_finding(clustered: bool) -> None:
    """Six groups, the smallest with about 25 patients, and six measures, of which four are different comparisons."""
    rng = np.random.default_rng(1)
    sets = 60
    found, alone = 0, 0
    for _ in range(sets):
        patients = np.repeat(np.arange(500), 2) if clustered else np.arange(600)
        size = patients.max() + 1
        codes = rng.choice(6, size, p=np.arange(6, 0, -1) / 21)[patients]
        y = (rng.random(len(patients)) < 0.4).astype(np.int64)
        u = np.where(rng.random(len(patients)) < 0.5 * clustered, rng.random(size)[patients], rng.random(len(patients)))
        gaps = _family((u < 0.2 + 0.5 * y).astype(float), y, codes, patients if clustered else None)
        assert comparisons_of(gaps).max() == 19
        found += gaps["clear"].any()
        assert (gaps["clear"] == _excludes_zero(gaps)).all()
        alone += (gaps["p_value"] <= 0.05).any()
    chance = 0.05 + 2.6 * np.sqrt(0.05 * 0.95 / sets)  # 0.123; the seed is fixed, and the benchmark of coverage has more data sets
    assert found / sets <= chance
    assert alone / sets > 0.2  # what is prevented


def test_a_gap_that_is_there_is_found_and_its_mirror_with_it() -> None:
    rng = np.random.default_rng(2)
    codes, y = rng.integers(0, 6, 4000), rng.integers(0, 2, 4000)
    f = (rng.random(4000) < 0.2 + 0.5 * y - 0.35 * y * (codes == 3)).astype(float)
    gaps = _family(f, y, codes)
    clear = gaps[gaps["clear"]]
    assert set(clear["group"]) == {"d"}
    assert {"eod", "fnr_gap", "aod"} <= set(clear["measure"])
    eod, mirror = (gaps[(gaps["measure"] == name) & (gaps["group"] == "d")].iloc[0] for name in ("eod", "fnr_gap"))
    assert eod["p_adjusted"] == mirror["p_adjusted"]
    assert (eod["simultaneous_low"], eod["simultaneous_high"]) == pytest.approx((-mirror["simultaneous_high"], -mirror["simultaneous_low"]))
    assert eod["simultaneous_high"] < 0


def test_the_family_is_all_attributes_and_the_simultaneous_interval_holds_the_other() -> None:
    rng = np.random.default_rng(3)
    n = 900
    frame = pd.DataFrame(
        {"y": rng.integers(0, 2, n), "p": rng.random(n), "sex": rng.choice(["F", "M"], n), "age": rng.choice(["o", "y"], n)}
    )
    scores = Scores.from_frame(frame, label="y", score="p", group=["sex", "age"], reference=["M", "y"])
    both = eq.audit(scores)
    assert both.comparisons == 4 * (1 + 1 + 3)  # sex, age, and three intersections next to the reference
    one = eq.audit(Scores.from_frame(frame, label="y", score="p", group="sex", reference="M"))
    assert one.comparisons == 4
    for found in (one, both):
        gaps = found.gaps[found.gaps["value"].notna()]
        assert (gaps["simultaneous_low"] < gaps["low"]).all()
        assert (gaps["simultaneous_high"] > gaps["high"]).all()
        assert (gaps["p_adjusted"] >= gaps["p_value"]).all()
    by_sex = both.gaps[both.gaps["attribute"] == "sex"]
    widths = [gaps["simultaneous_high"] - gaps["simultaneous_low"] for gaps in (one.gaps, by_sex)]
    assert (widths[1].to_numpy() > widths[0].to_numpy()).all()  # more comparisons, wider intervals
