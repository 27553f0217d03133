"""What the templates are given: a goal and a part of a change in words."""

import pytest

from equipoise.methods.base import Goal
from equipoise.report.affected import Part
from equipoise.report.views import goal_words, part_words


@pytest.mark.parametrize(
    ("goal", "words"),
    [
        (Goal("spd", floor=0.7), "the smallest difference in share flagged with balanced accuracy of at least 70.0%"),
        (Goal("eod", bound=0.05), "the best balanced accuracy with a difference in sensitivity of at most 5.0 points"),
        (Goal("eod", "f1", 0.4, 0.05), "a difference in sensitivity of at most 5.0 points with F1 of at least 40.0%"),
    ],
)
def test_a_goal_in_words(goal: Goal, words: str):
    assert goal_words(goal) == words


def test_a_part_of_a_change_in_words():
    parts = [Part("F", rate, change, 0.1, False, True) for rate in ("tpr", "fpr", "selection") for change in (0.1, -0.1)]
    assert len({part_words(part) for part in parts}) == 6
    assert part_words(parts[1]) == "fewer of those with the finding are detected"
