"""Shrunken gaps: nearer to the truth on average, with intervals that cover, and only where there are groups enough."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from lxml import html

import equipoise as eq
from equipoise.data import Scores
from equipoise.measures.families import shrunken_rates
from equipoise.measures.intervals import wilson


def test_shrunken_rates_are_nearer_to_the_truth_and_their_intervals_cover() -> None:
    rng = np.random.default_rng(0)
    size = np.array([400, 200, 150, 100, 80, 60, 50, 40, 30, 30])
    plain, better, covered = [], [], []
    for _ in range(400):
        truth = np.clip(rng.normal(0.7, 0.05, 10), 0.01, 0.99)
        rate = rng.binomial(size, truth) / size
        found, error = shrunken_rates(rate, *wilson(rate, size))
        plain.append((rate - truth) ** 2)
        better.append((found - truth) ** 2)
        covered.append(np.abs(found - truth) <= 1.96 * error)
    assert np.mean(better) < 0.75 * np.mean(plain)
    assert 0.93 <= np.mean(covered) <= 0.98


def test_equal_groups_are_drawn_together_and_different_ones_are_not() -> None:
    half = np.full(6, 0.1)
    equal = np.array([0.7, 0.71, 0.69, 0.7, 0.72, 0.68])
    found, _ = shrunken_rates(equal, equal - half, equal + half)
    assert np.ptp(found) == pytest.approx((1 - 3 / 5) * np.ptp(equal))  # no variance between groups is left
    apart = np.array([0.1, 0.3, 0.5, 0.7, 0.9, 0.2])
    found, error = shrunken_rates(apart, apart - half, apart + half)
    np.testing.assert_allclose(found, apart, atol=0.02)
    assert (error <= 0.1 / 1.95).all()


def _frame(groups: int) -> pd.DataFrame:
    rng = np.random.default_rng(1)
    group = rng.integers(0, groups, 1500)
    y = rng.integers(0, 2, 1500)
    p = np.clip(rng.normal(0.4 + 0.25 * y, 0.2), 0, 1)
    return pd.DataFrame({"y": y, "p": p, "group": [f"g{k}" for k in group]})


def test_an_audit_has_them_next_to_the_plain_gaps() -> None:
    found = eq.audit(Scores.from_frame(_frame(6), label="y", score="p", group="group", reference="g0"))
    shrunken = found.shrunken()
    assert shrunken["value"].tolist() == found.gaps["value"].tolist()
    assert (
        shrunken["shrunken"].abs().groupby(shrunken["measure"]).max() < shrunken["value"].abs().groupby(shrunken["measure"]).max()
    ).all()
    assert (shrunken["low"] < shrunken["shrunken"]).all()
    assert (shrunken["shrunken"] < shrunken["high"]).all()
    mirrored = shrunken.set_index(["measure", "group"])["shrunken"]
    np.testing.assert_allclose(mirrored["eod"], -mirrored["fnr_gap"])
    few = eq.audit(Scores.from_frame(_frame(3), label="y", score="p", group="group", reference="g0")).shrunken()
    assert few["value"].notna().all()
    assert few["shrunken"].isna().all()


def test_they_are_in_the_json_and_on_the_page_where_they_were_asked_for(tmp_path: Path) -> None:
    scores = Scores.from_frame(_frame(6), label="y", score="p", group="group", reference="g0")
    found = eq.audit(scores, shrink=True)
    rows = found.shrunken().to_dict("records")
    assert found.to_dict()["shrunken_gaps"] == rows
    page = html.fromstring(found.report(tmp_path / "audit.html").read_text(encoding="utf-8"))
    (table,) = page.xpath("//table[@class='shrunken']")
    assert "empirical Bayes" in table.xpath("./caption")[0].text_content()
    shown = [line.xpath("./td")[2].text_content().split()[0].replace("\u2212", "-") for line in table.xpath("./tbody/tr")]
    expected = [100 * row["shrunken"] for row in rows if row["measure"] not in ("fnr_gap", "tnr_gap")]
    assert [float(text) for text in shown] == pytest.approx(expected, abs=0.051)
    plain = eq.audit(scores)
    assert "shrunken_gaps" not in plain.to_dict()
    assert "empirical Bayes" not in plain.report(tmp_path / "plain.html").read_text(encoding="utf-8")
