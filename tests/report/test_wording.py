"""Wording: numbers in the format that a committee reads, and names that cannot break the page."""

import math
from dataclasses import replace

import pytest

from equipoise.measures import GAPS, MEASURES
from equipoise.methods import METHODS, Note
from equipoise.report import repair_set_words, why_words
from equipoise.report.model_card import cards
from equipoise.report.text import LONGEST, MINUS, amount, count, number, plain, short, span
from equipoise.report.wording.names import gap_words, share_words
from equipoise.report.wording.repairs import method_words
from support.cases import small_case
from support.pages import repair_page


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (0.7824, "share", "78.2%"),
        (0.8614, "area", "0.861"),
        (-0.2214, "points", f"{MINUS}22.1"),
        (0.05, "points", "+5.0"),
        (-0.0001, "points", "0.0"),
        (0.0001, "points", "0.0"),
        (0.142, "size", "14.2"),
        (math.nan, "share", "insufficient data"),
    ],
)
def test_an_amount_is_written_in_the_way_of_its_kind(value: float, kind: str, text: str):
    assert amount(value, kind) == text


def test_an_interval_has_both_ends_and_an_unknown_one_none():
    assert span(-0.3, 0.02, "points") == f"{MINUS}30.0 to +2.0"
    assert span(0.71, 0.841) == "71.0 to 84.1"
    assert span(math.nan, math.nan) == ""


def test_counts_by_lot_are_rounded_and_have_a_decimal_in_a_table():
    assert (count(1234), count(12.34, expected=True), count(12.34, expected=True, exact=True)) == ("1,234", "about 12", "12.3")
    assert (count(0, expected=True), count(0.4, expected=True)) == ("0", "about 0.4")
    assert number(-1234.5, 1) == f"{MINUS}1,234.5"


def test_names_stand_on_one_line_are_short_and_keep_their_direction():
    assert plain("a\nb\u202ec") == "a\\nb\\u202ec"
    assert len(short("M" * 10_000)) <= LONGEST
    assert short("x" * LONGEST) == "x" * LONGEST


def test_every_measure_has_words_and_a_new_one_its_own_name():
    assert set(MEASURES) == {*GAPS, "ppv_gap", "npv_gap"}
    assert all(each.question[0] and each.short for each in MEASURES.values())
    assert gap_words("my_gap") == "my_gap"
    assert share_words("my_gap") == ("my_gap, in the detection of ", "")


def test_where_no_method_changes_anything_no_numbers_are_repeated():
    own = {"measure": "eod", "gap": -0.148, "of": "balanced_accuracy", "performance": 0.825}
    numbers = {"tried": 2, "changed": False, "met": False, "reached": {"standard": own, "group-thresholds": own}}
    same = why_words([Note("best_of_methods", "standard", numbers)])
    assert "original stays" in same
    assert "0.148" not in same
    other = {**numbers, "changed": True, "reached": {"standard": own, "group-thresholds": {**own, "gap": -0.02}}}
    assert "group-thresholds is nearest" in why_words([Note("best_of_methods", "group-thresholds", other)])


def test_a_method_that_changes_nothing_is_not_told_to_miss_a_goal():
    numbers = {"taken": False, "changed": False, "met": False, "best": "bias-score", "measure": "eod", "of": "accuracy"}
    numbers |= {"gap_before": -0.1, "gap": -0.1, "performance_before": 0.8, "performance": 0.8}
    assert "changes nothing" in why_words([Note("tried", "reject-option", numbers)])
    assert "changes nothing" not in why_words([Note("tried", "reject-option", {**numbers, "changed": True})])  # with the same numbers


@pytest.mark.parametrize(("called", "words"), [("", "bias-score, chosen by auto"), ("ours", "ours (bias-score, chosen by auto)")])
def test_a_method_that_another_one_chose_is_named_with_it_in_report_card_and_readme(called: str, words: str):
    case = small_case(methods=("bias-gda",))
    (own,) = case.candidates
    assert method_words(own) == "bias-gda"
    chosen = replace(own, called=called, candidate=replace(own.candidate, method="auto", ran_as="bias-score"))
    told = replace(case, classifiers=(case.original, chosen))
    assert method_words(chosen) == words
    page, card = repair_page(told), cards(told)["card.md"]
    assert page.count(f"repaired by {words}") == 2  # the head of the page, and the facts
    assert f"with {words}\n" in card
    assert METHODS["bias-score"].title in card
    assert words in repair_set_words(told)
    kept = replace(chosen, candidate=replace(chosen.candidate, ran_as="standard", chosen=0))
    assert "standard" not in method_words(kept)
    assert "kept the original" in repair_set_words(replace(case, classifiers=(case.original, kept)))
