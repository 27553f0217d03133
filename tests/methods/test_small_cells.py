"""Cells that are too small: which they are, the standard error of their gap, and what to merge."""

import numpy as np
import pandas as pd
import pytest
import torch

from equipoise.data import FEW_ROWS, Cohort
from equipoise.measures import moments_of, units_of
from equipoise.methods.small_cells import advice, advise_merging, cells_of
from support.facts import says
from support.goals import paper_goal


def _cohort(reference: str = "a", patients: bool = False, **cells: tuple[int, int]) -> Cohort:
    """Rows of groups with so many negatives and positives each; as patients, of two rows each."""
    rows = [(group, label) for group, counts in cells.items() for label, count in enumerate(counts) for _ in range(count)]
    groups, y = zip(*rows, strict=True)
    ids = [f"{group}{label}-{k // 2}" for k, (group, label) in enumerate(rows)] if patients else None
    return Cohort.from_arrays(torch.zeros(len(y), 1), y, groups, reference=reference, patients=ids, name="ward")


def _advice(cohort: Cohort, measure: str = "eod", **goal: object) -> str:
    return " ".join(advice(cohort, paper_goal(measure, **goal)))


def test_the_cells_that_a_goal_needs_are_those_of_its_measure_and_of_what_it_keeps():
    cohort = _cohort(a=(20, 30), b=(4, 5))
    assert [(c.group, c.label, c.count) for c in cells_of(cohort, ("tpr",))] == [("a", 1, 30), ("b", 1, 5)]
    assert [(c.group, c.label, c.count) for c in cells_of(cohort, ("selection", "tpr"))] == [
        ("a", None, 50), ("b", None, 9), ("a", 1, 30), ("b", 1, 5),
    ]  # fmt: skip
    assert len(cells_of(cohort, ("tpr", "fpr", "tpr"))) == 4


def test_patients_are_counted_and_not_their_rows():
    cells = cells_of(_cohort(patients=True, a=(40, 40), b=(40, 12)), ("tpr",))
    assert [cell.counted for cell in cells] == ["20 patients with positives", "6 patients with positives"]


def test_nothing_is_said_of_cells_that_are_large_enough():
    assert _advice(_cohort(a=(FEW_ROWS, FEW_ROWS), b=(FEW_ROWS, FEW_ROWS))) == ""
    assert _advice(_cohort(a=(FEW_ROWS, FEW_ROWS), b=(FEW_ROWS, FEW_ROWS - 1))) != ""


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        ({"b": (20, 3), "c": (20, 8)}, ["'b' (3 positives) and 'c' (8 positives)", "'other'"]),
        ({"b": (20, 3), "c": (20, 40), "d": (20, 30)}, ["'b' (3 positives) and 'd' (30 positives)", "'other'"]),
        ({"b": (20, 3), "c": (20, 4), "d": (20, 30)}, ["'b' (3 positives), 'c' (4 positives) and 'd' (30 positives)", "'other'"]),
        ({"b": (20, 3), "c": (20, 4)}, ["'b' (3 positives) and 'c' (4 positives)", "'other'", "more rows"]),
        ({"b": (20, 1)}, ["more rows", "'b'"]),
    ],
)
def test_as_few_groups_are_merged_as_make_enough(cells: dict[str, tuple[int, int]], expected: list[str]):
    assert says(_advice(_cohort(a=(30, 30), **cells)), *expected)


def test_a_small_reference_is_to_be_replaced_by_the_largest_group():
    said = _advice(_cohort(a=(30, 2), b=(20, 20), c=(30, 40)))
    assert says(said, "'a' has 2", "'c' (40 positives)")


def test_both_labels_count_where_the_measure_needs_both():
    said = _advice(_cohort(a=(30, 30), b=(4, 20), c=(20, 5)), "aod")
    assert says(said, "'b' has 4", "'c' has 5", "'b' (4 negatives) and 'c' (5 positives)")  # together they have 24 and 25


def test_of_an_intersection_the_attributes_alone_are_offered():
    frame = pd.DataFrame({"x": 0.0, "y": [0, 1] * 40, "sex": ["F", "F", "M", "M"] * 20, "race": ["a"] * 70 + ["b"] * 10})
    cohort = Cohort.from_frame(frame, label="y", group=["sex", "race"], reference=["M", "a"])
    said = advise_merging(cohort, cells_of(cohort, ("selection",)))
    assert says(said, "'F & b' (4 rows) and 'M & b' (6 rows)", "sex, race")


def test_a_long_list_is_cut():
    said = _advice(_cohort(a=(30, 30), **{f"g{k}": (5, 2) for k in range(10)}))
    assert said.count("4 more") == 2  # of the cells, and of what to merge
    assert says(said, "'g5'")
    assert not says(said, "'g6'")


def test_the_error_of_a_gap_is_that_of_many_samples():
    """Rows drawn anew and coins tossed anew: the gap of a randomised rule spreads as much as the error says."""
    rng = np.random.default_rng(0)
    codes, y = np.repeat([0, 1, 2], [60, 8, 30]), np.ones(98, int)
    f = np.where(codes == 1, rng.choice([0.2, 0.9], 98), 0.7)
    gaps = moments_of(f, y, codes, 3, units_of(None, 98)).gap({"tpr": 1.0})
    drawn = np.empty(4000)
    for k in range(len(drawn)):
        some = [rng.choice(f[codes == code], (codes == code).sum()) for code in (0, 1)]
        reference, other = ((rng.random(len(part)) < part).mean() for part in some)
        drawn[k] = other - reference
    assert np.sqrt(gaps.variance[0]) == pytest.approx(drawn.std(), rel=0.1)
