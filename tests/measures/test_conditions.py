"""Conditions for pipelines: what they hold for, and that nothing but the grammar is read."""

import math

import pytest

from equipoise.errors import BadInput
from equipoise.measures import Fact, read_condition
from support.facts import facts

FACTS = [
    Fact("eod", {"value": -0.2, "low": -0.3, "high": -0.1, "p_adjusted": 0.01, "clear": 1.0}, ("", "", "sex", "F"), "F", "M"),
    Fact("eod", {"value": 0.15, "low": -0.05, "high": 0.35, "p_adjusted": 0.2, "clear": 0.0}, ("", "", "sex", "X"), "X", "M"),
    Fact("tpr", {"value": 0.6}, ("", "", "sex", "F"), "F"),
    Fact("tpr", {"value": 0.9}, ("", "", "sex", "X"), "X"),
    Fact("tpr-fpr", {"value": 0.5}, ("", "", "sex", "F"), "F"),
    Fact("spd", {"value": math.nan, "clear": 0.0}, ("", "", "sex", "F"), "F", "M"),
    Fact("auroc", {"value": 0.7}),
]


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("eod > 0.1", True),  # of any group, not only of the largest gap
        ("eod < -0.25", False),
        ("|eod| >= 0.2", True),
        ("eod.low > -0.1", True),
        ("eod.clear", True),
        ("clear", True),
        ("eod > 0.1 and eod.clear", False),  # of different groups
        ("eod < -0.1 and eod.clear", True),
        ("eod > 0.1 and tpr > 0.8", True),
        ("eod < 0 and tpr > 0.8", False),
        ("eod[F] > 0", False),
        ("eod.p_adjusted[F] < 0.05", True),
        ("tpr[F] < 0.8 and auroc < 0.8", True),
        ("'tpr-fpr' > .4", True),
        ("auroc > 7e-1", False),
        ("EOD > 1", None),
        ("spd > 0", False),
    ],
)
def test_a_condition_holds_for_any_group_and_together_for_the_same(text, holds):
    if holds is None:
        with pytest.raises(BadInput, match=facts("EOD", "eod")):
            read_condition(text).check(FACTS)
    else:
        assert read_condition(text).check(FACTS).holds == holds


def test_the_verdict_names_the_group_and_its_number():
    ((clause, fact, value),) = read_condition("|eod| > 0.1").check(FACTS).why
    assert (fact.group, value, clause.text) == ("F", 0.2, "|eod| > 0.1")


def test_what_no_group_has_data_for_is_reported():
    assert [clause.text for clause in read_condition("spd > 0 and eod > 9").check(FACTS).unknown] == ["spd > 0"]


@pytest.mark.parametrize(
    "text",
    [
        *("", "eod", "eod >", "> 0.1", "0.1 < eod", "eod > 0.1 and", "eod > 0.1 eod", "|eod > 0.1", "eod > x", "eod = 1", "eod.x > 1"),
        *(
            "and > 1",
            "__import__('os').system('true')",
            "eod > 0.1; import os",
            "eod[F > 1",
            "eod ! 1",
            "eod > 0.1 and and spd > 1",
            "eod > 0.1 or spd > 1",
            "eod > 10%",
        ),
    ],
)
def test_anything_else_is_one_error_that_shows_the_condition(text):
    with pytest.raises(BadInput, match="condition"):
        read_condition(text)


@pytest.mark.parametrize(("text", "fact"), [("tpr[Q] < 1", "Q"), ("auroc.clear", "clear"), ("eodd > 1", "eodd")])
def test_names_that_the_result_lacks_are_errors(text, fact):
    with pytest.raises(BadInput, match=facts(fact)):
        read_condition(text).check(FACTS)
