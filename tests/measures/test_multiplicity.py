"""Many comparisons: Holm against a definition, mirrors count once, and findings by chance stay rare over a whole family."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import equipoise as eq
from equipoise.data import Attribute, Scores
from equipoise.measures import Cells, concatenate_sums, measure_of, p_values
from equipoise.measures.moments import moments_of
from equipoise.measures.permutation import adjusted, comparisons_of, holm, joint_levels, max_t

MEASURES = ["spd", "eod", "aod", "fpr_gap", "tnr_gap", "fnr_gap"]
LEVELS = tuple("abcdef")


def test_holm_rejects_what_its_definition_rejects() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        p = rng.random(8) ** 3
        order, rejected = np.argsort(p), np.zeros(8, bool)
        for k, place in enumerate(order):  # until the first that is not below its share
            if p[place] > 0.05 / (8 - k):
                break
            rejected[place] = True
        np.testing.assert_array_equal(holm(p) <= 0.05, rejected)
        assert (holm(p) >= p).all()
    assert np.isnan(holm([np.nan, 0.01])).tolist() == [True, False]
    assert holm([]).tolist() == []


def test_the_critical_value_is_between_that_of_one_and_that_of_independent_comparisons() -> None:
    one = stats.norm.ppf(0.975)
    assert max_t([np.eye(1)], 0.95) == pytest.approx(one, abs=0.03)
    assert max_t([np.ones((6, 6))], 0.95) == pytest.approx(one, abs=0.03)
    independent = stats.norm.ppf((1 + 0.95 ** (1 / 6)) / 2)
    assert max_t([np.eye(6)], 0.95) == pytest.approx(independent, abs=0.03)
    assert max_t([np.eye(3), np.eye(3)], 0.95) == pytest.approx(independent, abs=0.03)
    shared = np.full((6, 6), 0.5) + 0.5 * np.eye(6)  # a reference as large as each group
    draws = np.random.default_rng(0).multivariate_normal(np.zeros(6), shared, 100_000)
    assert max_t([shared], 0.95) == pytest.approx(np.quantile(np.abs(draws).max(1), 0.95), abs=0.03)


def _family(
    f: np.ndarray, y: np.ndarray, codes: np.ndarray, seed: int, patients: np.ndarray | None = None, intervals: bool = True
) -> pd.DataFrame:
    """The gaps of an audit with p-values and simultaneous intervals, without its rates and performance."""
    attribute = Attribute("g", LEVELS, codes)
    units = np.arange(len(y)) if patients is None else patients
    sums = moments_of(f, y, codes, len(LEVELS), units)
    cells = Cells.of(f, y, attribute)
    p = p_values(f, y, codes, LEVELS, None if patients is None else patients.astype(object), MEASURES, seed=seed, comparisons=20)
    frame = pd.concat(
        [
            pd.DataFrame(
                {
                    **{"measure": name, "attribute": "g", "group": LEVELS[1:], "value": cells.gaps(name), "p_value": p[name]},
                    "few": np.min(
                        [np.minimum(n[1:], n[0]) for n in (sums[rate].patients for rate in measure_of(name).coefficients)], axis=0
                    )
                    < 30,
                }
            )
            for name in MEASURES
        ],
        ignore_index=True,
    )
    if not intervals:
        return adjusted(frame)
    signed = {name: measure_of(name).coefficients for name in MEASURES}
    few, blocks = frame["few"].to_numpy(dtype=bool), [(len(frame), lambda: sums.gap_correlation(signed))]
    levels = joint_levels(comparisons_of(frame), few, blocks, 0.95)
    gaps, known = concatenate_sums([sums.gap(each) for each in signed.values()]), ~np.isnan(levels)
    _, low, high = (np.where(known, end, np.nan) for end in gaps.limits(np.where(known, levels, 0.5)))
    return adjusted(frame).assign(simultaneous_low=low, simultaneous_high=high)


@pytest.mark.parametrize("clustered", [False, True])
def test_without_a_gap_few_data_sets_have_a_finding_or_an_interval_that_misses_zero(
    clustered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six groups, the smallest with about 25 patients, and six measures, of which four are different comparisons."""
    monkeypatch.setattr("equipoise.measures.permutation.NORMAL_DRAWS", 4000)
    rng = np.random.default_rng(1)
    sets = 60
    found, missed, alone = 0, 0, 0
    for seed in range(sets):
        patients = np.repeat(np.arange(500), 2) if clustered else np.arange(600)
        size = patients.max() + 1
        codes = rng.choice(6, size, p=np.arange(6, 0, -1) / 21)[patients]
        y = (rng.random(len(patients)) < 0.4).astype(np.int64)
        u = np.where(rng.random(len(patients)) < 0.5 * clustered, rng.random(size)[patients], rng.random(len(patients)))
        gaps = _family((u < 0.2 + 0.5 * y).astype(float), y, codes, seed, patients if clustered else None, intervals=not clustered)
        assert comparisons_of(gaps).max() == 19
        found += gaps["clear"].any()
        missed += 0 if clustered else ((gaps["simultaneous_low"] > 0) | (gaps["simultaneous_high"] < 0)).any()
        alone += (gaps["p_value"] <= 0.05).any()
    chance = 0.05 + 2.6 * np.sqrt(0.05 * 0.95 / sets)  # 0.123; the seed is fixed, and the benchmark of coverage has more data sets
    assert found / sets <= chance
    assert missed / sets <= chance
    assert alone / sets > 0.2  # what is prevented


def test_a_gap_that_is_there_is_found_and_its_mirror_with_it() -> None:
    rng = np.random.default_rng(2)
    codes, y = rng.integers(0, 6, 4000), rng.integers(0, 2, 4000)
    f = (rng.random(4000) < 0.2 + 0.5 * y - 0.35 * y * (codes == 3)).astype(float)
    gaps = _family(f, y, codes, 0)
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
