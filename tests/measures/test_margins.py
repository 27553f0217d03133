"""Margins of steps whose decisions are not kept: the widest interval on these patients."""

from dataclasses import replace

import numpy as np
import pytest

from equipoise.comparison import audit
from equipoise.data import Scores
from equipoise.measures import margin


def _scores(groups: tuple[str, ...], rows: int = 600) -> Scores:
    rng = np.random.default_rng(0)
    return Scores.from_arrays(
        rng.integers(0, 2, rows), rng.random(rows), rng.choice(groups, rows), reference="M", patients=np.arange(rows) // 2
    )


@pytest.mark.parametrize("groups", [("M", "F"), ("M", "F", "X")])
def test_margins_are_no_narrower_than_the_intervals_of_the_same_patients(groups):
    scores = _scores(groups)
    found = audit(scores, threshold=float(np.median(scores.score)))
    for name, half in (("eod", margin(scores, "eod")), ("balanced_accuracy", margin(scores, "balanced_accuracy"))):
        assert (found[name].high - found[name].low) / 2 < 1.1 * half


def test_unequal_weights_widen_them_and_equal_ones_do_not():
    scores = _scores(("M", "F"))
    plain = margin(scores, "eod")
    assert margin(replace(scores, weight=np.full(len(scores), 7.0)), "eod") == pytest.approx(plain)
    weight = np.where(np.arange(len(scores)) // 2 % 2, 1.0, 3.0)  # by patient: 4 of 5 of them count (Kish), (1 + 3)^2 / 2 / (1 + 9)
    assert margin(replace(scores, weight=weight), "eod") == pytest.approx(plain / 0.8**0.5, rel=0.01)
    assert margin(replace(scores, weight=weight), "accuracy") == pytest.approx(margin(scores, "accuracy") / 0.8**0.5)


def test_a_cell_without_patients_has_no_margin():
    scores = Scores.from_arrays([1, 0, 0, 0], [0.5] * 4, ["M", "M", "F", "F"], reference="M")
    assert margin(scores, "eod") is None
    assert margin(scores, "spd") == pytest.approx(1.96 * (0.5 / 2) ** 0.5)
    assert margin(scores, "f1") is None
