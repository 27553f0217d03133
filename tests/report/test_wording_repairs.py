"""A repair in words: its goal, and the outcome with its name first, the numbers of the judgement and the user's words for groups."""

from dataclasses import replace

import pytest

from equipoise.comparison import Balance
from equipoise.measures import Baseline, BaselineComparison, Estimate, Shift
from equipoise.methods import Goal, Judgement, Note, Outcome
from equipoise.methods.outcome import JudgedGap
from equipoise.report.text import MINUS
from equipoise.report.wording.audits import baseline_words
from equipoise.report.wording.repairs import balance_words, contribution_words, goal_words, more_errors_words, outcome_words, outcomes_words
from support import facts
from support.goals import paper_goal

NAN = float("nan")
NAMES = {"F": "women", "M": "men"}


def says(text: str, *expected: object) -> bool:
    """Whether a text names every fact, with a true minus."""
    return facts.says(text, *(str(fact).replace("-", MINUS) for fact in expected))


def _estimate(value: float, half: float = 0.02) -> Estimate:
    return Estimate(value, value - half, value + half, simultaneous_low=value - half, simultaneous_high=value + half)


def _gap(group: str, before: float, after: float) -> JudgedGap:
    return JudgedGap(group, "M", _estimate(before), _estimate(after), _estimate(after - before))


def _judgement(outcome: Outcome, *gaps: JudgedGap, **changes: object) -> Judgement:
    found = Judgement(
        outcome=outcome,
        source="held-out",
        measure="eod",
        performance="balanced_accuracy",
        max_gap=0.05,
        gaps=gaps or (_gap("F", -0.221, -0.008),),
        performance_before=_estimate(0.598),
        performance_after=_estimate(0.590),
        performance_change=_estimate(-0.008),
        performance_limit=0.578,
        harms=(),
        possible_harms=(),
        changed=40,
        patients=300,
        patients_needed=None,
        met=None,
    )
    return replace(found, **changes)


BELOW = Note("performance_below_limit", "balanced_accuracy", {"before": 0.598, "after": 0.527, "limit": 0.578, "clear": True})
LARGER = Note("larger_gap", "F", {"measure": "eod", "reference": "M", "before": -0.03, "after": -0.09})
WORSE = Note("rate_worse", "F", {"rate": "tpr", "before": 0.801, "after": 0.702, "limit": 0.801})


@pytest.mark.parametrize(
    ("judgement", "expected"),
    [
        (_judgement(Outcome.CLOSED), ("women", "men", "-22.1", "-0.8", "±5.0")),
        (_judgement(Outcome.REDUCED, _gap("F", -0.221, -0.08)), ("-22.1", "-8.0", "±5.0")),
        (_judgement(Outcome.UNCLEAR, patients_needed=2400), ("300", "2,400", "-22.1", "-0.8")),
        (_judgement(Outcome.UNCLEAR, _gap("F", -0.02, -0.03)), ("larger", "-2.0", "-3.0")),
        (_judgement(Outcome.UNCHANGED, changed=0), ("no decision", "-22.1")),
        (_judgement(Outcome.HARM, harms=(BELOW,), performance_after=_estimate(0.527)), ("59.8%", "52.7%", "57.8%", "fell")),
        (_judgement(Outcome.HARM, harms=(LARGER,)), ("women", "men", "-3.0", "-9.0", "larger")),
        (_judgement(Outcome.HARM, harms=(WORSE,)), ("sensitivity", "women", "80.1%", "70.2%")),
    ],
)
def test_every_outcome_has_a_sentence_with_its_numbers(judgement: Judgement, expected: tuple[str, ...]):
    words = outcome_words(judgement, names=NAMES)
    assert words.startswith(f"{judgement.outcome.value.capitalize()}: ")
    assert says(words, *expected)
    assert words.endswith(".")
    assert ". " not in words  # one sentence


def test_all_harms_are_named_and_nothing_else():
    words = outcome_words(_judgement(Outcome.HARM, harms=(BELOW, LARGER, WORSE), performance_after=_estimate(0.527)), names=NAMES)
    assert says(words, "52.7%", "-9.0", "70.2%")
    assert "losed" not in words


def test_of_several_groups_the_largest_before_and_after_are_named():
    words = outcome_words(_judgement(Outcome.REDUCED, _gap("F", -0.2, -0.01), _gap("X", 0.1, 0.07)))
    assert says(words, "largest", "M", "-20.0 (F)", "+7.0 (X)")


def test_groups_with_too_few_patients_are_named():
    few = JudgedGap("X", "M", *[Estimate(NAN, NAN, NAN)] * 3)
    assert says(outcome_words(_judgement(Outcome.UNCLEAR, few, patients_needed=880)), "X", "880")
    assert says(outcome_words(_judgement(Outcome.UNCLEAR, few, _gap("F", -0.2, -0.1))), "X", "too few", "-20.0")


def test_a_network_that_never_had_its_performance_is_not_said_to_be_close_to_done():
    low = _judgement(Outcome.REDUCED, performance_limit=0.7, performance_before=_estimate(0.6), performance_after=_estimate(0.65))
    assert says(outcome_words(low), "60.0%", "65.0%", "70.0%")


def test_clear_changes_are_counted_for_the_better_and_for_the_worse():
    men = Balance("M", True, 500, *[_estimate(0.01)] * 3, 0.03, 0.07, _estimate(0.04), 0.1, 0.11, _estimate(0.01))
    women = Balance("F", False, 500, *[_estimate(0.01)] * 3, 0.15, 0.06, _estimate(-0.09), 0.07, 0.12, _estimate(0.05))
    found = balance_words([men, women, replace(men, group=None)], "patients", 0, NAMES)
    [better] = found["gain"]
    first, second = found["loss"]
    assert says(better, "women", 90, "missed", "70 to 110")
    assert says(first, "men", 40, "missed", "20 to 60")
    assert says(second, "women", 50, "false alarms")


def test_only_a_large_and_clear_rise_of_errors_is_named_the_largest_of_each_kind():
    small = Balance("M", True, 500, *[_estimate(0.01)] * 3, 0.03, 0.07, _estimate(0.04), 0.1, 0.11, _estimate(0.01))
    women = Balance("F", False, 500, *[_estimate(0.01)] * 3, 0.15, 0.06, _estimate(-0.09), 0.07, 0.12, _estimate(0.364))
    unclear = replace(women, group="X", alarms=_estimate(0.4, half=0.5))
    less = replace(women, group="Y", alarms=_estimate(0.2))
    assert more_errors_words([small, replace(women, group=None), unclear], "patients") == ""
    assert says(more_errors_words([small, less, women], "patients", NAMES), "women", "500 patients", "364 more false alarms")
    both = more_errors_words([replace(women, missed=_estimate(0.06))], "rows")
    assert says(both, "F", "60 more missed findings", "364 more false alarms")


def test_a_simple_model_is_mentioned_only_where_it_is_clearly_better():
    ahead, level = BaselineComparison(0.66, 0.62, _estimate(0.04), 0.02, 0.03), BaselineComparison(0.62, 0.62, _estimate(0.0), 0.02, 0.03)
    found = Baseline("table", "repair set", 900, 800, "balanced_accuracy", "eod", ahead, ahead)
    first, second = baseline_words(found)
    assert says(first, "66.0%", "4.0 points", "2.0 to 6.0", 800)
    assert says(second, "66.0%", "+2.0", "+3.0")
    assert baseline_words(replace(found, original=level, repaired=level)) == []
    assert baseline_words(replace(found, original=level, repaired=replace(ahead, gap=0.2))) == []  # more performance at a larger gap
    assert baseline_words(None) == []


def test_several_labels_are_one_sentence_with_harm_first():
    found = {"Mass": _judgement(Outcome.CLOSED), "Edema": _judgement(Outcome.HARM, harms=(BELOW,)), "Nodule": _judgement(Outcome.CLOSED)}
    assert says(outcomes_words(found), "Harm", "1 of 3", "Edema", "closed in 2")
    assert says(outcomes_words({"Mass": found["Mass"], "Nodule": found["Nodule"]}, "classes"), "Closed", "all 2 classes")


def test_few_patients_and_no_changed_decision_are_unchanged():
    few = JudgedGap("X", "M", *[Estimate(NAN, NAN, NAN)] * 3)
    assert outcome_words(_judgement(Outcome.UNCHANGED, few, changed=0)).startswith("Unchanged: ")


def test_a_difference_that_may_only_have_changed_sides_is_said_to():
    assert says(outcome_words(_judgement(Outcome.UNCLEAR, _gap("F", -0.16, 0.04))), "changed sides")
    assert "sides" not in outcome_words(_judgement(Outcome.UNCLEAR, _gap("F", -0.16, -0.04)))


@pytest.mark.parametrize(
    ("goal", "words"),
    [
        (paper_goal("spd", min_performance=0.7), "the smallest difference in share flagged with balanced accuracy of at least 70.0%"),
        (paper_goal("eod", max_gap=0.05), "the best balanced accuracy with a difference in sensitivity of at most 5.0 points"),
        (
            paper_goal("eod").settled(0.554),
            "the smallest difference in sensitivity with balanced accuracy at most 2.0 points below the original's "
            "(55.4% on the repair set)",
        ),
        (
            paper_goal("eod", "f1", min_performance=0.4, max_gap=0.05),
            "a difference in sensitivity of at most 5.0 points with F1 of at least 40.0%",
        ),
    ],
)
def test_a_goal_in_words(goal: Goal, words: str):
    assert goal_words(goal) == words


def test_a_part_of_a_change_in_words():
    parts = [Shift("F", False, rate, 0.5, 0.6, _estimate(change)) for rate in ("tpr", "fpr", "selection") for change in (0.1, -0.1)]
    assert len({contribution_words(part) for part in parts}) == 6
    assert contribution_words(parts[1]) == "fewer of those with the finding are detected"
