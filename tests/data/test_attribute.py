"""Attributes: names of groups, the reference group, and columns that are not groups."""

import numpy as np
import pandas as pd
import pytest

from equipoise.data import MISSING, Attribute
from equipoise.errors import BadInput, UnknownName
from support.facts import facts, says, suggests


def test_the_reference_comes_first_and_the_others_in_order():
    race = Attribute.of(["c", "a", "b", "a"], name="race", reference="b")
    assert race.levels == ("b", "a", "c")
    assert race.codes.tolist() == [2, 1, 0, 1]
    assert (race.reference, race.others, race.named) == ("b", ("a", "c"), True)


def test_the_reference_defaults_to_the_largest_group():
    sex = Attribute.of(["F", "M", "F"])
    assert (sex.reference, sex.named) == ("F", False)


@pytest.mark.parametrize("blank", [None, np.nan, "", "  "])
def test_empty_and_blank_cells_are_missing(blank):
    sex = Attribute.of(["F", blank, "M", "M"], reference="M")
    assert sex.codes.tolist() == [1, MISSING, 0, 0]
    assert sex.names.tolist() == ["F", None, "M", "M"]
    assert sex.missing == 0.25


@pytest.mark.parametrize(
    ("values", "levels"),
    [
        ([0, 1, 1], ("1", "0")),
        ([0.0, 1.0, 1.0, np.nan], ("1", "0")),  # pandas reads integers with a missing cell as floating-point numbers
        ([True, True, False], ("True", "False")),
        (pd.Categorical(["a", "b", "b"]), ("b", "a")),
        (["1", "1.0", "01", "1"], ("1", "01", "1.0")),
    ],
)
def test_values_of_any_type_are_converted_to_names(values, levels):
    assert Attribute.of(values).levels == levels


@pytest.mark.parametrize("reference", ["1", 1, 1.0])
def test_the_reference_may_be_a_number(reference):
    assert Attribute.of([0, 1, 0], reference=reference).reference == "1"


def test_an_unknown_reference_lists_the_groups_and_the_closest():
    with pytest.raises(UnknownName, match=suggests("Male")):
        Attribute.of(["Female", "Male"], name="sex", reference="male")


def test_a_single_group_is_an_error_with_its_count():
    with pytest.raises(BadInput, match=facts("sex", "F", 3)):
        Attribute.of(["F", "F", None, "F"], name="sex")


def test_a_column_without_any_value_is_an_error():
    with pytest.raises(BadInput, match=facts("sex", 2)):
        Attribute.of([None, np.nan], name="sex")


@pytest.mark.parametrize("kind", [int, str, object, float])
def test_a_column_of_many_numbers_must_be_binned_for_any_dtype(kind):
    with pytest.raises(BadInput, match=facts("age", 21, "--bins age=5,10,15", "bins={'age': [5, 10, 15]}")):
        Attribute.of(np.arange(21).astype(kind), name="age")
    assert len(Attribute.of(list(range(20)) * 2, name="age").levels) == 20


def test_a_few_fractional_numbers_must_be_binned_but_a_few_integers_need_not():
    with pytest.raises(BadInput, match=facts("bmi", 5)):
        Attribute.of([21.5, 30.1, 24.4, None, 27.9, 33.0], name="bmi")
    assert Attribute.of([0.5, 1.5, 0.5, 1.5]).levels == ("0.5", "1.5")
    assert Attribute.of([1, 2, 3]).levels == ("1", "2", "3")


@pytest.mark.parametrize("written", ["%Y-%m-%d", "%d.%m.%Y", "%m/%d/%Y", "%Y-%m-%d %H:%M", None])
def test_dates_are_not_groups_but_a_few_years_are(written: str | None):
    dates = pd.Series(pd.date_range("2020-01-01", periods=30))
    column = dates if written is None else dates.dt.strftime(written)
    with pytest.raises(BadInput, match=facts("seen", 30, "pd.to_datetime", "dt.year")):
        Attribute.of(column, name="seen")
    assert Attribute.of([2020, 2020, 2021, 2022]).levels == ("2020", "2021", "2022")
    assert len(Attribute.of(pd.to_datetime(["2020-01-01", "2021-01-01"] * 4)).levels) == 2


def test_an_identifier_is_not_a_group_but_many_sites_are():
    with pytest.raises(BadInput, match=facts("name", 30)):
        Attribute.of([f"p{i}" for i in range(30)], name="name")
    assert len(Attribute.of([f"site {i}" for i in range(30)] * 10).levels) == 30


def test_the_error_for_many_small_groups_lists_the_large_ones():
    values = ["a"] * 40 + ["b"] * 10 + [f"c{k}" for k in range(20) for _ in range(3)]
    with pytest.raises(BadInput) as caught:
        Attribute.of(values, name="origin")
    assert says(caught.value, "'origin'", 22, 20, 10, "'a' (40)", "'b' (10)", "'other'")
    assert len(Attribute.of(["a"] * 40 + [f"c{k}" for k in range(19) for _ in range(3)]).levels) == 20
    with pytest.raises(BadInput, match=facts(30, 90, 10)):
        Attribute.of([f"c{k}" for k in range(30)] * 3)


def test_an_intersection_has_the_combinations_that_occur_and_both_references():
    sex = Attribute.of(["F", "F", "M", "M"], name="sex", reference="M")
    race = Attribute.of(["a", "b", "a", "a"], name="race", reference="a")
    both = Attribute.crossed([sex, race])
    assert both.name == "sex & race"
    assert both.levels == ("M & a", "F & a", "F & b")
    assert both.names.tolist() == ["F & a", "F & b", "M & a", "M & a"]
    assert both.reference == "M & a"


def test_an_intersection_keeps_its_reference_even_without_rows():
    sex = Attribute.of(["F", "M"], reference="M")
    race = Attribute.of(["a", "b"], reference="a")
    both = Attribute.crossed([sex, race])
    assert both.levels == ("M & a", "M & b", "F & a")
    assert both.names.tolist() == ["F & a", "M & b"]


def test_an_intersection_is_missing_if_any_attribute_is_and_named_if_all_are():
    sex = Attribute.of(["F", None, "M"], reference="M")
    race = Attribute.of(["a", "a", "b"])
    both = Attribute.crossed([sex, race])
    assert both.names.tolist() == ["F & a", None, "M & b"]
    assert not both.named


def test_take_keeps_every_level():
    taken = Attribute.of(["F", "M", "X"], reference="M").take(np.array([0, 2]))
    assert taken.levels == ("M", "F", "X")
    assert taken.names.tolist() == ["F", "X"]
