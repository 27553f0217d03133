"""The comparison across splits, against plain numpy and scipy."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from equipoise.errors import BadInput
from equipoise.studies import summarise
from equipoise.studies.summary import compare_methods, corrected_t_test
from support.facts import facts, suggests


def frame(splits: int = 12) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    rows = [
        {"data": data, "measure": measure, "method": method, "seed": seed, "gap": rng.normal(0, 0.1), "performance": rng.uniform(0.5, 1)}
        for data in ("a", "b")
        for measure in ("spd", "eod")
        for method in ("standard", "pruning", "bias-gda")
        for seed in range(splits)
    ]
    sizes = {"train_rows": 60.0, "valid_rows": 20.0, "test_rows": 20.0}
    return pd.DataFrame(rows).assign(met=True, seconds=1.0, **sizes).sample(frac=1, random_state=1)


def cell(rows: pd.DataFrame, method: str) -> pd.DataFrame:
    chosen = rows[(rows["data"] == "b") & (rows["measure"] == "eod") & (rows["method"] == method)]
    return chosen.sort_values("seed")


def test_means_and_standard_deviations() -> None:
    rows = frame()
    line = cell(summarise(rows).assign(seed=0), "pruning").iloc[0]
    gaps = cell(rows, "pruning")["gap"].to_numpy()
    assert line["splits"] == 12
    assert line["gap_mean"] == pytest.approx(gaps.mean())
    assert line["gap_sd"] == pytest.approx(gaps.std(ddof=1))
    assert line["abs_gap_mean"] == pytest.approx(np.abs(gaps).mean())


def test_the_validation_set_and_p_values() -> None:
    rows = frame()
    assert summarise(rows)["p_value"].isna().all()  # of rows without
    rows = rows.assign(valid_gap=rows["gap"] + 1, valid_performance=rows["performance"] / 2, p_value=0.1, valid_p_value=rows["seed"] / 40)
    test, valid = (summarise(rows, part) for part in ("test", "validation"))
    assert valid["gap_mean"].to_numpy() == pytest.approx(test["gap_mean"] + 1)
    assert valid["performance_mean"].to_numpy() == pytest.approx(test["performance_mean"] / 2)
    assert test["p_value"].to_numpy() == pytest.approx(0.2)  # twice the median
    assert valid["p_value"].to_numpy() == pytest.approx(2 * 5.5 / 40)
    difference = compare_methods(rows, part="validation").query("quantity == 'performance'")["difference"]
    assert difference.to_numpy() == pytest.approx(compare_methods(rows).query("quantity == 'performance'")["difference"] / 2)
    with pytest.raises(BadInput, match=facts("train")):
        summarise(rows, "train")


def test_differences_are_paired_by_split() -> None:
    rows = frame()
    found = compare_methods(rows)
    line = found[
        (found["data"] == "b") & (found["measure"] == "eod") & (found["method"] == "bias-gda") & (found["quantity"] == "abs_gap")
    ].iloc[0]
    ours, theirs = (np.abs(cell(rows, m)["gap"].to_numpy()) for m in ("bias-gda", "standard"))
    mean, error = (ours - theirs).mean(), stats.sem(ours - theirs)
    wider = error * np.sqrt(1 + 12 * 20 / 80)  # 12 splits; 20 rows are tested and 80 are not
    assert line["shared"] == 20 / 80
    assert line["difference"] == pytest.approx(mean)
    assert (line["low"], line["high"]) == pytest.approx(stats.t.interval(0.95, 11, mean, wider))
    assert line["p"] == pytest.approx(2 * stats.t.sf(abs(mean) / wider, 11))
    assert len(found) == 2 * 2 * 2 * 2
    apart = compare_methods(rows, redrawn=["b"]).loc[line.name]  # simulations that are drawn again share no rows
    plain = stats.ttest_rel(ours, theirs)
    assert (apart["low"], apart["high"]) == pytest.approx(tuple(plain.confidence_interval(0.95)))
    assert apart["p"] == pytest.approx(plain.pvalue)
    unknown = compare_methods(rows.drop(columns="train_rows"))
    assert unknown["difference"].notna().all()
    assert unknown[["shared", "low", "high", "p"]].isna().all(axis=None)


def test_the_corrected_interval_covers_where_splits_share_rows() -> None:
    """Accuracy of a threshold that is learned on 80 of 100 rows, minus that of a fixed one, over 20 splits of the same rows."""
    rng = np.random.default_rng(0)

    def difference(x: np.ndarray, y: np.ndarray) -> float:
        """On the last 20 rows, of a threshold halfway between the class means of the others."""
        middle = (x[:80][y[:80] == 1].mean() + x[:80][y[:80] == 0].mean()) / 2
        test = slice(80, None)
        return float(((x[test] > middle) == y[test]).mean() - ((x[test] > 1.5) == y[test]).mean())

    def data() -> tuple[np.ndarray, np.ndarray]:
        y = rng.random(100) < 0.5
        return rng.normal(size=100) + y, y

    truth = np.mean([difference(*data()) for _ in range(20_000)])
    covered = []
    for _ in range(300):
        x, y = data()
        splits = np.array([difference(x[order], y[order]) for order in (rng.permutation(100) for _ in range(20))])
        ends = [corrected_t_test(splits, shared) for shared in (0.0, 20 / 80)]
        covered.append([end["low"] <= truth <= end["high"] for end in ends])
    plain, corrected = np.mean(covered, axis=0)
    assert plain < 0.85
    assert 0.92 <= corrected <= 0.995


def test_only_common_splits_count() -> None:
    rows = frame()
    fewer = rows[~((rows["method"] == "pruning") & (rows["seed"] > 4))]
    found = compare_methods(fewer)
    assert set(found[found["method"] == "pruning"]["splits"]) == {5}


def test_nothing_differs() -> None:
    rows = frame()
    rows["gap"], rows["performance"] = 0.1, 0.8
    found = compare_methods(rows)
    assert (found["p"] == 1).all()
    assert (found["low"] == 0).all()


def test_one_split_has_no_interval() -> None:
    found = compare_methods(frame(splits=1))
    assert found["difference"].notna().all()
    assert found[["low", "high", "p"]].isna().all(axis=None)


def test_an_unknown_baseline_is_named() -> None:
    with pytest.raises(BadInput, match=suggests("standard")):
        compare_methods(frame(), "standrad")
