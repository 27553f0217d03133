"""What a goal asks for by default: no group worse off by the measure, and bounded rises of false alarms and of flagged patients."""

import pytest

import equipoise as eq
from equipoise.errors import BadInput
from equipoise.methods import Goal


@pytest.mark.parametrize(
    ("measure", "kept", "rising"),
    [
        ("eod", {"tpr": "before"}, {"fpr": 0.1, "selection": 0.1}),
        ("aod", {"tpr": "before"}, {"fpr": 0.1, "selection": 0.1}),
        ("spd", {"selection": "before"}, {"fpr": 0.1}),
        ("fpr_gap", {"tpr": "before"}, {"fpr": 0.0, "selection": 0.1}),
        ("ppv_gap", {}, {"fpr": 0.1, "selection": 0.1}),
    ],
)
def test_no_group_may_be_worse_off_by_the_measure(measure: str, kept: dict[str, str], rising: dict[str, float]):
    goal = Goal(measure)
    assert (goal.keep, goal.rises) == (kept, rising)
    assert goal == Goal(measure).changed(max_loss=None)  # a default is no part of what was given
    for free in (Goal(measure, allow_worse=True), Goal(measure, selection="paper"), goal.changed(selection="paper")):
        assert free.keep == {}
        assert free.rises["fpr"] == 0.1


def test_limits_that_are_given_replace_their_default_alone():
    goal = Goal("eod", keep={"tpr": 0.8}, max_rise={"fpr": 0.2}, max_rate={"selection": 0.3})
    assert goal.keep == {"tpr": 0.8}
    assert goal.rises == {"fpr": 0.2, "selection": 0.1}
    assert Goal("eod", keep={}).keep == {}


def test_every_wrong_limit_is_named():
    with pytest.raises(BadInput) as raised:
        Goal("eod", max_rise={"fp": 0.1, "fpr": 2}, max_rate=[0.1])
    assert all(fact in str(raised.value) for fact in ("'fp'", "2 for fpr", "[0.1]"))


def test_a_group_without_positives_is_no_reason_to_refuse_a_gap_in_false_alarms():
    """The sensitivity that is kept by default does not exist there; one that is asked for must."""
    y, group, score = [0, 1, 0, 1] * 10 + [0] * 20, ["M"] * 40 + ["F"] * 20, [0.2, 0.8, 0.6, 0.4] * 15
    scores = eq.Scores.from_arrays(y, score, group, reference="M")
    assert eq.debias(scores, method="single-threshold", measure="fpr_gap", force=True).rule is not None
    with pytest.raises(BadInput):
        eq.debias(scores, method="single-threshold", measure="fpr_gap", keep={"tpr": "before"}, force=True)
