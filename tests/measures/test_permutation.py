"""Permutation p-values: against enumeration and against other implementations, uniform without a gap, for rows and for patients."""

from itertools import combinations

import numpy as np
import pytest
from scipy import stats

from equipoise.measures import largest_gap_p_value, p_values
from equipoise.measures.permutation import hypergeometric_p

LEVELS = ("M", "F")
ROWS = {"eod": lambda f, y: y == 1, "fpr_gap": lambda f, y: y == 0, "ppv_gap": lambda f, y: f == 1, "npv_gap": lambda f, y: f == 0}
EVENT = {"ppv_gap": lambda f, y: y, "npv_gap": lambda f, y: 1 - y}


def one(f, y, codes, measure: str, patients=None, **more) -> float:
    return float(p_values(f, y, codes, LEVELS, patients, [measure], **more)[measure][0])


@pytest.mark.parametrize("measure", ["spd", "eod", "fpr_gap", "ppv_gap", "npv_gap"])
def test_with_one_row_per_patient_it_is_the_share_of_all_assignments(measure: str) -> None:
    rng = np.random.default_rng(3)
    f, y, codes = rng.integers(0, 2, 14).astype(float), rng.integers(0, 2, 14), np.arange(14) % 2
    used = np.flatnonzero(ROWS.get(measure, lambda f, y: y >= 0)(f, y))
    event = EVENT.get(measure, lambda f, y: f)(f, y)[used]
    women = codes[used] == 1

    def size(chosen: np.ndarray) -> float:
        return abs(event[chosen].mean() - event[~chosen].mean())

    every = []
    for places in combinations(range(len(used)), int(women.sum())):
        chosen = np.zeros(len(used), bool)
        chosen[list(places)] = True
        every.append(size(chosen) >= size(women) - 1e-12)
    assert one(f, y, codes, measure) == pytest.approx(np.mean(every))
    ids = np.array([f"p{k}" for k in range(14)], dtype=object)
    assert one(f, y, codes, measure, ids) == pytest.approx(np.mean(every))


def test_the_exact_distribution_is_scipy_s() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        n, m = rng.integers(1, 80, 2)
        a, b = rng.integers(0, n + 1), rng.integers(0, m + 1)
        x = np.arange(n + 1)
        as_large = np.abs(x / n - (a + b - x) / m) >= abs(a / n - b / m) - 1e-12
        assert hypergeometric_p(a, n, b, m) == pytest.approx(stats.hypergeom(n + m, a + b, n).pmf(x)[as_large].sum(), abs=1e-9)
    large = stats.norm.sf(0.001 / np.sqrt(0.5995 * 0.4005 * 2e-6)) * 2
    assert hypergeometric_p(600_000, 1_000_000, 599_000, 1_000_000) == pytest.approx(large, rel=0.02)
    assert 0 < hypergeometric_p(900_000, 1_000_000, 100_000, 1_000_000) < 1e-100


def test_mirrors_have_one_p_value_and_two_labels_their_own() -> None:
    rng = np.random.default_rng(1)
    f, y, codes = rng.integers(0, 2, 200).astype(float), rng.integers(0, 2, 200), rng.integers(0, 2, 200)
    found = p_values(f, y, codes, LEVELS, None, ["eod", "fnr_gap", "fpr_gap", "tnr_gap", "2*tpr"])
    assert found["eod"] == found["fnr_gap"] == found["2*tpr"] != found["fpr_gap"]
    assert found["fpr_gap"] == found["tnr_gap"]


def test_a_sum_of_both_labels_is_that_of_scipy_s_permutations() -> None:
    rng = np.random.default_rng(2)
    n = 60
    y, codes = rng.integers(0, 2, n), rng.integers(0, 2, n)
    f = (rng.random(n) < 0.3 + 0.3 * y + 0.2 * codes).astype(float)
    sides = [f[y == k] for k in (0, 1)]
    chosen = [codes[y == k] for k in (0, 1)]

    def size(assigned: list[np.ndarray]) -> float:
        return abs(sum(side[who == 1].mean() - side[who == 0].mean() for side, who in zip(sides, assigned, strict=True)) / 2)

    drawn = np.array([size([rng.permutation(who) for who in chosen]) for _ in range(4000)])
    expected = (1 + (drawn >= size(chosen) - 1e-12).sum()) / 4001
    assert one(f, y, codes, "aod", draws=3999) == pytest.approx(expected, abs=0.03)


def test_with_other_prevalences_and_no_gap_p_values_are_uniform() -> None:
    """Half of the men and 5 % of the women are positive; sensitivity and false positive rate are the same for both."""
    rng = np.random.default_rng(4)
    measures = ("eod", "fpr_gap", "aod")
    found = {measure: [] for measure in measures}
    for seed in range(400):
        codes = rng.integers(0, 2, 600)
        y = (rng.random(600) < np.where(codes == 1, 0.05, 0.5)).astype(int)
        f = (rng.random(600) < 0.2 + 0.6 * y).astype(float)
        p = p_values(f, y, codes, LEVELS, None, measures, seed=seed)
        for measure in measures:
            found[measure].append(float(p[measure][0]))
    for measure in measures:
        p = np.array(found[measure])
        for level in (0.05, 0.1, 0.25, 0.5):  # a discrete p-value is at most uniform: about 15 women are positive
            below = (p <= level).mean()
            assert below <= level + 3 * np.sqrt(level * (1 - level) / 400), (measure, level)
            assert below >= 0.6 * level - 2.5 * np.sqrt(level * (1 - level) / 400), (measure, level)
    assert stats.kstest(found["aod"], "uniform").pvalue > 0.001  # of many values, so nearly continuous


@pytest.mark.parametrize("more_rows_in", ["M", "F"])
def test_with_clustered_rows_the_level_is_kept_where_groups_differ_in_rows_per_patient(more_rows_in: str) -> None:
    """Rows of a patient are alike, a sixth are women, and one group has 5 to 9 rows per patient, the other one or two."""
    rng = np.random.default_rng(5)
    measures = ("eod", "aod", "fpr_gap")
    found = []
    for seed in range(200):
        women = rng.random(240) < 1 / 6
        many = ~women if more_rows_in == "M" else women
        patient = np.repeat(np.arange(240), np.where(many, rng.integers(5, 10, 240), rng.integers(1, 3, 240)))
        codes = women[patient].astype(int)
        y = (rng.random(len(patient)) < np.where(codes == 1, 0.3, 0.6)).astype(int)  # patients have rows of both labels
        alike = rng.random(240)[patient]
        u = np.where(rng.random(len(patient)) < 0.6, alike, rng.random(len(patient)))
        f = (u < 0.3 + 0.4 * y).astype(float)
        p = p_values(f, y, codes, LEVELS, patient.astype(object), measures, seed=seed, draws=199)
        found.append([float(p[measure][0]) for measure in measures])
    share = (np.array(found) <= 0.05).mean(0)
    assert (share <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 200)).all(), share  # 0.096
    assert ((np.array(found) <= 0.5).mean(0) > 0.35).all()


def test_rows_of_one_patient_are_not_evidence_of_many() -> None:
    """Ten rows each of eight patients with one decision per patient: by rows the gap looks certain, by patients it is chance."""
    patient = np.repeat(np.arange(8), 10)
    f, codes, y = np.array([0, 0, 0, 1, 1, 1, 1, 0.0])[patient], np.arange(8)[patient] // 4, np.ones(80, int)
    assert one(f, y, codes, "eod") < 0.01
    assert one(f, y, codes, "eod", patient.astype(object)) > 0.05


def test_another_group_does_not_matter() -> None:
    rng = np.random.default_rng(6)
    f, y, codes = rng.integers(0, 2, 120).astype(float), np.ones(120, int), np.arange(120) % 3
    alone = codes < 2
    three = p_values(f, y, codes, ("M", "F", "X"), None, ["eod"])["eod"]
    f[codes == 2] = 1.0
    changed = p_values(f, y, codes, ("M", "F", "X"), None, ["eod"])["eod"]
    assert three[0] == changed[0] == one(f[alone], y[alone], codes[alone], "eod")
    assert changed[1] < three[1]


def test_large_samples_need_no_draws_and_agree_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(8)
    patient = rng.integers(0, 3000, 9000)
    codes, y = patient % 2, rng.integers(0, 2, 9000)
    f = (rng.random(9000) < 0.3 + 0.2 * y + 0.02 * codes).astype(float)
    normal = [one(f, y, codes, measure, patient.astype(object)) for measure in ("eod", "aod", "spd", "ppv_gap")]
    monkeypatch.setattr("equipoise.measures.permutation.MANY_PATIENTS", np.inf)
    drawn = [one(f, y, codes, measure, patient.astype(object), draws=3999) for measure in ("eod", "aod", "spd", "ppv_gap")]
    np.testing.assert_allclose(normal, drawn, atol=0.03)


def test_patients_one_by_one_and_by_kind_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(9)
    patient = rng.integers(0, 60, 120)
    f, y, codes = rng.integers(0, 2, 120).astype(float), rng.integers(0, 2, 120), patient % 3 % 2
    by_kind = [one(f, y, codes, measure, patient.astype(object), draws=3999) for measure in ("eod", "aod")]
    monkeypatch.setattr("equipoise.measures.permutation.NANOSECONDS", (1_000_000, 0, 1))
    one_by_one = [one(f, y, codes, measure, patient.astype(object), draws=3999) for measure in ("eod", "aod")]
    np.testing.assert_allclose(by_kind, one_by_one, atol=0.03)


def test_integer_weights_are_rows_of_one_patient() -> None:
    rng = np.random.default_rng(10)
    f, y, codes, w = rng.integers(0, 2, 60).astype(float), rng.integers(0, 2, 60), np.arange(60) % 2, rng.integers(1, 4, 60)
    rows = np.repeat(np.arange(60), w)
    weighted = one(f, y, codes, "eod", weight=w, draws=1999)
    repeated = one(f[rows], y[rows], codes[rows], "eod", rows.astype(object), draws=1999)
    assert weighted == pytest.approx(repeated, abs=0.04)
    assert one(f, y, codes, "eod", weight=np.ones(60)) == one(f, y, codes, "eod")


def test_rows_without_a_group_are_left_out_and_an_empty_cell_has_no_p_value() -> None:
    f, y, codes = np.array([1.0, 0, 1, 0, 1]), np.ones(5, int), np.array([0, 0, 1, 1, -1])
    assert one(f, y, codes, "eod") == one(f[:4], y[:4], codes[:4], "eod")
    assert np.isnan(one([1.0], [1], [-1], "eod"))
    assert np.isnan(one([1.0, 0.0], [0, 0], [0, 1], "eod"))  # nobody is positive
    assert np.isnan(largest_gap_p_value(p_values([1.0, 0.0], [0, 0], [0, 1], LEVELS, None, ["eod"])["eod"]))


def test_of_several_groups_the_smallest_p_value_is_adjusted_for_their_number() -> None:
    rng = np.random.default_rng(11)
    f, y, codes = rng.integers(0, 2, 90).astype(float), np.ones(90, int), np.arange(90) % 3
    each = p_values(f, y, codes, ("a", "b", "c"), None, ["eod"])["eod"]
    assert largest_gap_p_value(each) == pytest.approx(min(1, 2 * each.min()))


def test_the_seed_decides() -> None:
    rng = np.random.default_rng(12)
    patient = rng.integers(0, 40, 90)
    f, y, codes = rng.integers(0, 2, 90).astype(float), rng.integers(0, 2, 90), patient % 2
    first, again, other = (one(f, y, codes, "aod", patient.astype(object), seed=s) for s in (1, 1, 2))
    assert first == again != other
