"""What the templates are given: a goal and a part of a change in words, and what probes read."""

import pytest

from equipoise.measures import Contribution
from equipoise.methods import Goal
from equipoise.report.repair_page import probe_views
from equipoise.report.wording.repairs import contribution_words, goal_words
from support.cases import some_probes


@pytest.mark.parametrize(
    ("goal", "words"),
    [
        (Goal("spd", min_performance=0.7), "the smallest difference in share flagged with balanced accuracy of at least 70.0%"),
        (Goal("eod", max_gap=0.05), "the best balanced accuracy with a difference in sensitivity of at most 5.0 points"),
        (Goal("eod", "f1", 0.4, 0.05), "a difference in sensitivity of at most 5.0 points with F1 of at least 40.0%"),
    ],
)
def test_a_goal_in_words(goal: Goal, words: str):
    assert goal_words(goal) == words


def test_a_part_of_a_change_in_words():
    parts = [Contribution("F", rate, change, 0.1, False, True) for rate in ("tpr", "fpr", "selection") for change in (0.1, -0.1)]
    assert len({contribution_words(part) for part in parts}) == 6
    assert contribution_words(parts[1]) == "fewer of those with the finding are detected"


def test_probes_stand_side_by_side_layer_by_layer():
    view = probe_views(some_probes())["sex"]
    assert [block.among for block in view.blocks] == ["Among all patients", "Among those with the finding", "Among those without it"]
    everybody = view.blocks[0].rows
    assert [(row.layer, row.width) for row in everybody] == [("inputs", 2), ("2", 3), ("output", 4)]
    assert [row.before.value for row in everybody] == pytest.approx([0.6, 0.64, 0.68])
    assert [row.after.value for row in everybody] == pytest.approx([0.5, 0.54, 0.58])
    assert view.scale.low <= 0.48
    assert probe_views(None) == {}


def test_a_layer_that_only_the_repaired_network_has_stays_empty_before():
    view = probe_views(some_probes(layers=("inputs", "2", "output"), after=("inputs", "2", "head", "output")))["sex"]
    rows = {row.layer: row for row in view.blocks[0].rows}
    assert list(rows) == ["inputs", "2", "head", "output"]
    assert rows["head"].before.value != rows["head"].before.value  # NaN
    assert rows["head"].after.value == pytest.approx(0.58)
