"""Decisions at other thresholds: exact where they are given, and never so fine that a few patients could be read from them."""

from itertools import pairwise

import numpy as np
import pandas as pd
import pytest

import equipoise as eq
from equipoise.data import Scores
from equipoise.measures.disclosure import MIN_BETWEEN


def _scores(n: int = 300, seed: int = 0, *, groups: tuple[str, ...] = ("F", "M"), rows: int = 1, **columns) -> Scores:
    """Rows of patients with `rows` rows each; scores that are often small, as of a rare finding."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, n * rows)
    frame = pd.DataFrame({"y": y, "p": np.clip(rng.beta(1 + y, 6, n * rows).round(3), 0, 1)})
    frame["sex"], frame["id"] = rng.choice(groups, n)[np.arange(n * rows) // rows], [str(k // rows) for k in range(n * rows)]
    for name, make in columns.items():
        frame[name] = make(rng, n * rows)
    others = [name for name in columns if name != "w"]
    weight = "w" if "w" in columns else None
    return Scores.from_frame(frame, label="y", score="p", group=["sex", *others], patient="id", weight=weight)


def _cells(found) -> dict:
    return dict(iter(found.by_threshold.groupby(["attribute", "group", "label"], sort=False)))


def _rows_of(scores: Scores, attribute: str, group: str, label: int) -> np.ndarray:
    [own] = [a for a in scores.attributes if a.name == attribute]
    return (own.codes == own.levels.index(group)) & (scores.y == label)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("n", [40, 400])
@pytest.mark.parametrize("cut", [0.0, 0.2, 0.5, 0.9])
def test_between_two_thresholds_are_no_rows_or_at_least_five_patients(n: int, rows: int, cut: float):
    scores = _scores(n, rows=rows, groups=("F", "M", "X") if n > 40 else ("F", "M"))
    for (attribute, group, label), table in _cells(eq.audit(scores, threshold=cut)).items():
        own = _rows_of(scores, attribute, group, label)
        cuts = [*table["threshold"], np.inf]
        assert cuts[0] == 0
        assert cut in cuts
        for low, high in pairwise(cuts):
            inside = own & (scores.score >= low) & (scores.score < high)
            few = len(set(scores.patients[inside]))
            above_and_below = {cut, 0.0} >= {low} and {cut, np.inf} >= {high}  # what the rates of the audit itself tell
            assert few == 0 or few >= MIN_BETWEEN or above_and_below, (group, label, low, high)


@pytest.mark.parametrize("weights", [{}, {"w": lambda rng, n: rng.uniform(0.5, 3, n)}])
def test_rates_at_kept_thresholds_are_those_of_an_audit_at_that_threshold(weights: dict):
    scores = _scores(600, **weights)
    cells = _cells(eq.audit(scores, threshold=0.2))
    cut = sorted(set(cells["sex", "F", 1]["threshold"]) & set(cells["sex", "M", 0]["threshold"]) - {0.0, 0.2})[2]
    there = eq.audit(scores, threshold=cut).groups
    for group, label, rate in (("F", 1, "tpr"), ("M", 0, "fpr")):
        table = cells["sex", group, label].set_index("threshold")
        assert table.loc[cut, "above"] / table.loc[0.0, "above"] == pytest.approx(there.loc[group, rate])


def test_a_fine_grid_is_left_where_there_are_many_patients():
    table = _cells(eq.audit(_scores(20_000)))["sex", "F", 1]
    assert len(table) > 60
    assert table["threshold"].is_monotonic_increasing
    assert table["above"].is_monotonic_decreasing


def test_a_small_group_cannot_be_found_by_subtraction_from_another_attribute():
    rare = {"ward": lambda rng, n: np.where(rng.random(n) < 0.02, "rare", rng.choice(["a", "b"], n))}
    scores = _scores(600, **rare)
    found = eq.audit(scores, threshold=0.2).by_threshold
    assert list(found["attribute"].unique()) == ["sex"]  # shared thresholds would be too few
    plenty = eq.audit(_scores(4000, age=lambda rng, n: rng.choice(["old", "young"], n)), threshold=0.2).by_threshold
    assert set(plenty["attribute"]) == {"sex", "age"}
    for label in (0, 1):  # every group of every attribute has the same thresholds, so no count is left to subtract
        own = plenty[plenty["label"] == label].groupby(["attribute", "group"])["threshold"].apply(tuple)
        assert len(set(own)) == 1


def test_patients_of_unknown_group_cannot_be_found_by_subtraction():
    missing = {"age": lambda rng, n: np.where(np.arange(n) < 3, None, rng.choice(["old", "young"], n))}
    found = eq.audit(_scores(4000, **missing), threshold=0.2).by_threshold
    totals = found[found["threshold"] == 0].groupby("attribute")["above"].sum()
    assert totals.tolist() == [3997, 3997]  # of both attributes, without the three
    missing = {"age": lambda rng, n: np.where(np.arange(n) < 30, None, rng.choice(["old", "young"], n))}
    found = eq.audit(_scores(4000, **missing), threshold=0.2).by_threshold
    assert list(found["attribute"].unique()) == ["sex"]


def test_a_cell_of_fewer_than_five_patients_is_left_out_and_so_is_the_mean_score_of_fewer():
    scores = _scores(30, seed=3)
    tables = _cells(eq.audit(scores, threshold=0.35))
    sizes = {(g, y): int(_rows_of(scores, "sex", g, y).sum()) for g in "FM" for y in (0, 1)}
    assert {(g, y) for _, g, y in tables} == {cell for cell, size in sizes.items() if size >= MIN_BETWEEN}
    for (_, group, label), table in tables.items():
        cuts = [*table["threshold"], np.inf]
        for low, high, mean in zip(cuts, cuts[1:], table["score"], strict=False):
            own = scores.score[_rows_of(scores, "sex", group, label) & (scores.score >= low) & (scores.score < high)]
            assert np.isnan(mean) == (len(own) < MIN_BETWEEN)
            assert np.isnan(mean) or mean == pytest.approx(own.mean())
    assert any(table["score"].isna().any() for table in tables.values())


class TwoCuts:
    """Decided by lot between two thresholds of each group: the audit reports no rates at either of them."""

    needs_group, randomised = True, True
    shared, argmax, origin = None, False, ""

    def decide(self, scores: Scores) -> np.ndarray:
        return np.where(scores.score >= 0.05, np.where(scores.score >= 0.3, 1.0, 0.5), 0.0)

    def describe(self) -> str:
        return "by lot between two thresholds"

    def cuts(self, group: str) -> tuple[float, ...]:
        return (0.05, 0.3)

    def to_dict(self) -> dict[str, object]:
        return {}


def test_thresholds_of_a_randomised_rule_are_kept_only_where_enough_patients_lie_between():
    scores = _scores(200)
    for (_, group, label), table in _cells(eq.audit(scores, rule=TwoCuts())).items():
        own = scores.score[_rows_of(scores, "sex", group, label)]
        counts = [int(((own >= low) & (own < high)).sum()) for low, high in pairwise([*table["threshold"], np.inf])]
        assert all(count == 0 or count >= MIN_BETWEEN for count in counts)
    assert 0 < (scores.score[_rows_of(scores, "sex", "F", 1)] < 0.05).sum() < MIN_BETWEEN  # the cut would have told


def test_more_patients_are_kept_together_where_the_audit_asks_for_more():
    few, many = (eq.audit(_scores(600), min_patients=least).by_threshold for least in (5, 40))
    assert len(many) < len(few) / 3
