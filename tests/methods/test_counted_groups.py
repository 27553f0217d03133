"""`goal.groups`: the groups that a repair compares; others decide nothing, are reported, and are protected like any group."""

import numpy as np
import pandas as pd
import pytest

import equipoise as eq
from support.facts import says

ROLES = {"label": "y", "score": "p", "group": "sex", "reference": "M"}
COUNTED = ("M", "F")


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    """Women are behind men, and X, of whom there are a hundred, far more."""
    rng, n = np.random.default_rng(1), 6000
    sex, y = rng.choice(["M", "F", "X"], n, p=[0.5, 0.48, 0.02]), rng.integers(0, 5, n) < 2
    p = 1 / (1 + np.exp(-(1.6 * y - 0.8 - 0.9 * (sex == "F") - 2.5 * (sex == "X") + rng.normal(size=n))))
    return pd.DataFrame({"y": y.astype(int), "p": p.round(5), "sex": sex})


def _scores(frame: pd.DataFrame) -> eq.Scores:
    return eq.Scores.from_frame(frame, **ROLES)


@pytest.mark.parametrize("method", ["auto", "level-up", "group-thresholds", "reject-option", "equalised-odds"])
def test_other_groups_decide_nothing_and_keep_their_threshold(frame, method):
    every, apart = _scores(frame), _scores(frame.assign(sex=frame["sex"].where(frame["sex"] != "X", None)))
    how = {"method": method, "threshold": 0.5, "allow_worse": True, "max_rise": {"fpr": 1.0, "selection": 1.0}}
    found, expected = eq.debias(every, groups=COUNTED, **how), eq.debias(apart, **how)
    assert found.chosen == expected.chosen > 0
    assert [gap.group for gap in found.judgement.gaps] == ["F"]
    decided = found.decide(every)
    assert np.array_equal(decided, expected.decide(apart))  # as rows without a group
    assert set(found.rule.others) == {"X"}


def test_other_groups_are_protected():
    """A higher threshold closes the gap between women and men, and would find half of X, which is less than the goal keeps."""
    rng, n = np.random.default_rng(0), 6000
    sex, y = rng.choice(["M", "F", "X"], n, p=[0.45, 0.45, 0.1]), rng.integers(0, 2, n)
    between = rng.random(n) < np.select([y == 0, sex == "M", sex == "X"], [0.3, 0.2, 0.5], 0.0)  # of the two thresholds
    found = rng.random(n) < np.select([y == 0, sex == "M"], [0.1, 0.95], 0.76)
    p = np.where(between, 0.55, np.where(found, 0.8, 0.2)) + rng.uniform(-0.05, 0.05, n)
    rows = pd.DataFrame({"y": y, "p": p, "sex": sex})
    every, apart = _scores(rows), _scores(rows.assign(sex=rows["sex"].where(rows["sex"] != "X", None)))
    how = {"method": "single-threshold", "threshold": 0.5, "keep": {"tpr": 0.6}}
    kept, moved = eq.debias(every, groups=COUNTED, **how), eq.debias(apart, **how)
    assert moved.chosen > 0
    assert moved.decide(apart)[(y == 1) & (sex == "X")].mean() < 0.6
    assert kept.decide(every)[(y == 1) & (sex == "X")].mean() >= 0.6


@pytest.mark.parametrize(("groups", "facts"), [(["M", "W"], ("W", "F")), (["F", "X"], ("reference", "M"))])
def test_groups_must_be_known_and_have_the_reference(frame, groups, facts):
    with pytest.raises(eq.BadInput) as caught:
        eq.debias(_scores(frame), groups=groups)
    assert says(caught.value, *facts)
