"""`goal.capacity`: a fixed share of patients is flagged, before and after a repair, with and without the group."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import equipoise as eq
from equipoise.measures import threshold_at_capacity
from equipoise.methods import judge
from support.facts import says

ROLES = {"label": "y", "score": "p", "group": "sex", "reference": "M"}
CAPACITY = 0.2


def _frame(seed: int, n: int = 8000, prevalence: float = 0.2) -> pd.DataFrame:
    """Women have lower scores, and are older."""
    rng = np.random.default_rng(seed)
    sex, y = rng.choice(["M", "F"], n, p=[0.6, 0.4]), (rng.random(n) < prevalence).astype(int)
    p = 1 / (1 + np.exp(-(1.8 * y - 2 - 1.0 * (sex == "F") + rng.normal(size=n))))
    return pd.DataFrame({"y": y, "p": p, "sex": sex, "age": rng.normal(50, 10, n) + 8 * (sex == "F")})


def _scores(frame: pd.DataFrame) -> eq.Scores:
    return eq.Scores.from_frame(frame, **ROLES, features=["age"])


@pytest.fixture(scope="module")
def repair() -> eq.Scores:
    return _scores(_frame(3))


@pytest.fixture(scope="module")
def new() -> eq.Scores:
    return _scores(_frame(4, n=40_000))


@given(st.lists(st.integers(0, 9), min_size=1, max_size=40), st.floats(0.01, 0.99))
def test_as_many_as_possible_are_flagged_and_ties_are_not_separated(values, capacity):
    scores = np.array(values) / 10
    flagged = scores >= threshold_at_capacity(scores, capacity)
    shares = sorted((scores >= cut).mean() for cut in [*np.unique(scores), 2.0])
    assert flagged.mean() == max(share for share in shares if share <= capacity + 1e-9)


@pytest.mark.parametrize("measure", ["eod", "spd", "fpr_gap"])
@pytest.mark.parametrize("allow_group", [True, False])
def test_the_share_flagged_stays_and_the_gap_falls(repair, new, measure, allow_group):
    found = eq.debias(repair, measure=measure, capacity=CAPACITY, allow_group=allow_group)
    assert found.chosen > 0
    assert found.rule.needs_group == allow_group
    cut = found.trace["threshold"].iloc[0]
    before, after = new.score >= cut, found.decide(new)
    assert abs((repair.score >= cut).mean() - CAPACITY) <= 1 / len(repair)
    assert abs(after.mean() - before.mean()) < 0.012  # three standard errors of a share of 8,000 rows
    gaps = [_gap(new, decided, measure) for decided in (before, after)]
    assert abs(gaps[1]) < abs(gaps[0]) - 0.02


def _gap(scores: eq.Scores, decided: np.ndarray, measure: str) -> float:
    rows = {"eod": scores.y == 1, "fpr_gap": scores.y == 0, "spd": scores.y >= 0}[measure]
    first, second = (decided[rows & (scores.groups == group)].mean() for group in "FM")
    return float(first - second)


def test_thresholds_by_group_equalise_the_rate_at_that_share(repair):
    found = eq.debias(repair, method="group-thresholds", capacity=CAPACITY, selection="paper", max_loss=1.0)
    decided = found.decide(repair)
    assert CAPACITY - 3 / len(repair) <= decided.mean() <= CAPACITY
    assert abs(_gap(repair, decided, "eod")) <= 2 / min((repair.y[repair.groups == group] == 1).sum() for group in "FM")


def test_more_than_the_capacity_on_held_out_rows_is_harm(new):
    goal, sick = eq.Goal("eod", capacity=CAPACITY), _scores(_frame(5, prevalence=0.6))
    cut = threshold_at_capacity(new.score, CAPACITY)
    for rows, expected in ((_scores(_frame(6)), False), (sick, True)):
        before, after = rows.score >= cut, rows.score >= cut - 0.001
        found = judge(rows, before, rows, after, goal, source="held-out")
        assert ("capacity_exceeded" in [note.kind for note in found.harms]) == expected


@pytest.mark.parametrize(
    ("how", "facts"),
    [({"threshold": 0.5}, ("threshold", "capacity")), ({"method": "level-up"}, ("group-thresholds",)), ({"capacity": 1.5}, ("capacity",))],
)
def test_what_a_capacity_cannot_be_combined_with(repair, how, facts):
    with pytest.raises(eq.BadInput) as caught:
        eq.debias(repair, **{"capacity": CAPACITY, **how})
    assert says(caught.value, *facts)
