"""Findings: the numbers are those of audits, and the conclusion on the test set follows from them."""

from dataclasses import replace

import numpy as np
import pytest

import equipoise as eq
from equipoise.comparison import Comparison
from equipoise.data import Scores
from equipoise.measures import Threshold
from equipoise.methods import Goal
from support.cases import GOAL, small_case
from support.goals import paper_goal


def _on_test(case: Comparison, before: Scores, after: Scores) -> Comparison:
    original, repair = replace(case.original, test=before), replace(case.result, test=after)
    return replace(case, classifiers=(original, repair, *case.candidates[1:]))


def test_gaps_and_performance_are_those_of_an_audit():
    case = small_case()
    found = case.found
    for repair, gap, performance in (
        (case.original, found.gap_before, found.performance_before),
        (case.result, found.gap_after, found.performance_after),
    ):
        expected = eq.audit(repair.test, threshold=repair.candidate.rule.value)
        assert (gap.value, gap.low, gap.high, gap.detectable) == (
            expected["eod"].value,
            expected["eod"].low,
            expected["eod"].high,
            expected["eod"].detectable,
        )
        assert performance == expected["balanced_accuracy"]


def test_a_clear_repair_makes_the_gap_smaller_within_the_interval_of_the_change():
    found = small_case(rows=2000).found
    assert found.seen == "smaller"
    assert not found.contradicts
    change = found.gap_change
    assert change.value == pytest.approx(found.gap_after.value - found.gap_before.value)
    assert change.value * found.gap_before.value < 0
    assert change.low <= change.value <= change.high
    assert change.low > 0 or change.high < 0


def test_a_repair_that_widens_the_gap_on_test_contradicts_validation():
    case = small_case(rows=1000, methods=("bias-gda",))
    after, before = case.original.test, case.result.test  # the other way round
    rule = Threshold(0.45)
    turned = _on_test(case, before, after)
    turned = replace(
        turned,
        classifiers=tuple(replace(each, candidate=replace(each.candidate, rule=rule)) for each in (turned.original, turned.result)),
    )
    found = turned.found
    assert found.seen == "larger"
    assert found.contradicts
    assert found.levelled == ()


def test_no_changed_decision_is_unchanged():
    case = small_case(methods=("bias-gda",))
    same = replace(case.original, candidate=replace(case.original.candidate, method="bias-gda"))
    found = replace(case, classifiers=(case.original, same)).found
    assert (found.seen, found.worse, found.levelled, found.contradicts) == ("unchanged", (), (), False)


def test_too_few_patients_are_insufficient_not_zero():
    found = small_case(rows=40, groups=("M", "F"), shares=(0.95, 0.05), methods=("bias-gda",), seed=3).found
    assert found.seen == "insufficient"
    assert np.isnan(found.gap_after.value)
    assert "insufficient" in found.gap_after.note


def test_levelling_down_is_reported_in_points():
    found = small_case(rows=3000, harm=1.0, cure=0.3, goal=paper_goal("eod", min_performance=0.6), methods=("bias-gda",)).found
    assert [part.group for part in found.levelled] == ["M"]
    fell = next(s for s in found.worse if (s.group, s.rate) == ("M", "tpr"))
    assert fell.clear
    assert sum(part.towards for part in found.levelled) == pytest.approx(fell.before - fell.after)


def test_with_more_groups_the_headline_is_the_largest():
    found = small_case(rows=1500, groups=("A", "B", "C", "D")).found
    rows = next(iter(found.gaps["sex"].values()))  # the measure of the goal
    assert len(rows) == 3
    assert abs(found.gap_before.value) == max(abs(before.value) for before, _ in rows.values())


def test_two_attributes_are_judged_by_their_intersection():
    case = small_case(rows=1500, second=True)
    found = case.found
    assert found.main == "sex & age"
    assert list(found.rates) == list(found.gaps) == list(found.cohort) == ["sex", "age", "sex & age"]
    assert found.gap_before.reference == "M & under 60"
    assert next(iter(found.gaps[found.main])) == case.goal.measure


def test_calibration_in_the_large_is_the_mean_score_minus_the_share():
    case = small_case(missing=0.1)
    found = case.found
    scores = case.result.test
    for group, (_, after) in found.rates["sex"]["calibration_in_the_large"].items():
        rows = scores.groups == group
        assert after.value == pytest.approx(scores.score[rows].mean() - scores.y[rows].mean())
        assert after.low < after.value < after.high


def test_the_cohort_counts_rows_patients_and_labels():
    case = small_case(missing=0.2)
    rows = {row.group: row for row in case.found.cohort["sex"]}
    test = case.original.test
    women = test.groups == "F"
    assert rows["F"].test.rows == women.sum()
    assert rows["F"].test.positives == test.y[women].sum()
    assert rows["F"].test.patients == len(set(test.patients[women]))
    assert rows[""].valid.rows == sum(g is None for g in case.original.valid.groups)
    assert rows[None].test.rows == len(test)
    assert rows["M"].reference


def test_every_method_is_evaluated_on_the_test_set():
    case = small_case()
    found = case.found
    assert [row.name for row in found.methods] == ["standard", "bias-gda", "pruning", "reject-option", "equalised-odds"]
    assert [row.chosen for row in found.methods] == [False, True, False, False, False]
    assert [row.needs_group for row in found.methods] == [False, False, False, True, True]
    assert found.methods[0].changed == 0
    assert found.methods[1].changed == (case.original.decisions() != case.result.decisions()).sum()
    assert found.methods[1].gap.value == found.gap_after.value
    assert found.methods[4].expected


@pytest.mark.parametrize(
    "goal", [GOAL, paper_goal("fpr_gap", max_gap=0.1), paper_goal("aod", "accuracy", min_performance=0.5, max_gap=0.2)]
)
def test_the_rate_of_a_group_belongs_to_the_measure(goal: Goal):
    found = small_case(goal=goal).found
    pair = found.rate_of("F")
    if goal.measure == "aod":
        assert pair is None
    else:
        reference = found.rate_of("M")
        assert pair[1].value - reference[1].value == pytest.approx(found.gap_after.value)
