"""Words: numbers as a committee reads them, and names that cannot steer the page."""

import math

import pytest

from equipoise.measures import GAPS, MEASURES, QUOTIENTS
from equipoise.methods import Note
from equipoise.report import why_words
from equipoise.report.measure_words import gap_words, share_words
from equipoise.report.text import LONGEST, MINUS, amount, count, number, plain, short, span


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


def test_counts_by_lot_have_a_decimal():
    assert (count(1234), count(12.34, expected=True)) == ("1,234", "12.3")
    assert number(-1234.5, 1) == f"{MINUS}1,234.5"


def test_names_stand_on_one_line_are_short_and_keep_their_direction():
    assert plain("a\nb\u202ec") == "a\\nb\\u202ec"
    assert len(short("M" * 10_000)) <= LONGEST
    assert short("x" * LONGEST) == "x" * LONGEST


def test_every_measure_has_words_and_a_new_one_its_own_name():
    assert set(MEASURES) == {*GAPS, *QUOTIENTS}
    assert all(each.question[0] and each.short for each in MEASURES.values())
    assert gap_words("my_gap") == "my_gap"
    assert share_words("my_gap") == ("my_gap, in the detection of ", "")


def test_where_no_method_changes_anything_no_numbers_are_repeated():
    own = {"measure": "eod", "gap": -0.148, "of": "balanced_accuracy", "performance": 0.825}
    numbers = {"tried": 2, "met": False, "reached": {"standard": own, "group-thresholds": own}}
    same = why_words([Note("best_of_methods", "standard", numbers)])
    assert "original stays" in same
    assert "0.148" not in same
    other = {**numbers, "reached": {"standard": own, "group-thresholds": {**own, "gap": -0.02}}}
    assert "-0.020" in why_words([Note("best_of_methods", "group-thresholds", other)])
