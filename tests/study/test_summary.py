"""The comparison across splits, against plain numpy and scipy."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from equipoise.errors import BadInput
from equipoise.study import compare, summarise
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
    return pd.DataFrame(rows).assign(met=True, seconds=1.0).sample(frac=1, random_state=1)


def cell(rows: pd.DataFrame, method: str) -> pd.DataFrame:
    chosen = rows[(rows["data"] == "b") & (rows["measure"] == "eod") & (rows["method"] == method)]
    return chosen.sort_values("seed")


def test_means_and_spreads() -> None:
    rows = frame()
    line = cell(summarise(rows).assign(seed=0), "pruning").iloc[0]
    gaps = cell(rows, "pruning")["gap"].to_numpy()
    assert line["splits"] == 12
    assert line["gap_mean"] == pytest.approx(gaps.mean())
    assert line["gap_sd"] == pytest.approx(gaps.std(ddof=1))
    assert line["abs_gap_mean"] == pytest.approx(np.abs(gaps).mean())


def test_the_validation_part_and_the_noise_floor() -> None:
    rows = frame()
    assert summarise(rows)["noise"].isna().all()  # of results from before there was one
    rows = rows.assign(
        valid_gap=rows["gap"] + 1, valid_performance=rows["performance"] / 2, noise=0.1, valid_noise=rows["seed"].astype(float)
    )
    test, valid = (summarise(rows, part) for part in ("test", "validation"))
    assert valid["gap_mean"].to_numpy() == pytest.approx(test["gap_mean"] + 1)
    assert valid["performance_mean"].to_numpy() == pytest.approx(test["performance_mean"] / 2)
    assert test["noise"].to_numpy() == pytest.approx(0.1)
    assert valid["noise"].to_numpy() == pytest.approx(5.5)
    difference = compare(rows, part="validation").query("quantity == 'performance'")["difference"]
    assert difference.to_numpy() == pytest.approx(compare(rows).query("quantity == 'performance'")["difference"] / 2)
    with pytest.raises(BadInput, match=facts("train")):
        summarise(rows, "train")


def test_differences_are_paired_by_split() -> None:
    rows = frame()
    found = compare(rows)
    line = found[
        (found["data"] == "b") & (found["measure"] == "eod") & (found["method"] == "bias-gda") & (found["quantity"] == "abs_gap")
    ].iloc[0]
    ours, theirs = (np.abs(cell(rows, m)["gap"].to_numpy()) for m in ("bias-gda", "standard"))
    interval = stats.ttest_rel(ours, theirs).confidence_interval(0.95)
    assert line["difference"] == pytest.approx((ours - theirs).mean())
    assert (line["low"], line["high"]) == pytest.approx((interval.low, interval.high))
    assert line["p"] == pytest.approx(stats.wilcoxon(ours, theirs).pvalue)
    assert len(found) == 2 * 2 * 2 * 2


def test_only_common_splits_count() -> None:
    rows = frame()
    fewer = rows[~((rows["method"] == "pruning") & (rows["seed"] > 4))]
    found = compare(fewer)
    assert set(found[found["method"] == "pruning"]["splits"]) == {5}


def test_nothing_differs() -> None:
    rows = frame()
    rows["gap"], rows["performance"] = 0.1, 0.8
    found = compare(rows)
    assert (found["p"] == 1).all()
    assert (found["low"] == 0).all()


def test_one_split_has_no_interval() -> None:
    found = compare(frame(splits=1))
    assert found["difference"].notna().all()
    assert found[["low", "high", "p"]].isna().all(axis=None)


def test_an_unknown_baseline_is_named() -> None:
    with pytest.raises(BadInput, match=suggests("standard")):
        compare(frame(), "standrad")
