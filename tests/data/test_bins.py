"""Bins: a column of numbers cut into groups with readable names, in ascending order, the same for new rows."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise import Cohort, Scores, audit
from equipoise.data import Attribute, Bins, Columns
from equipoise.data.attribute import parse_edges
from equipoise.errors import BadInput, UnknownName
from support.facts import facts, suggests


def test_integer_bins_have_short_names_in_ascending_order():
    age = Attribute.of([85, 12, 40, 59, 60, 79, 80, None], name="age", reference="40-59", edges=[40, 60, 80])
    assert age.levels == ("40-59", "<40", "60-79", "80+")
    assert age.names.tolist() == ["80+", "<40", "40-59", "40-59", "60-79", "60-79", "80+", None]
    assert age.bins == Bins((40.0, 60.0, 80.0), whole=True)


def test_bins_are_ordered_numerically_and_not_alphabetically():
    age = Attribute.of([1, 9, 10, 100, 1000, 1000], name="age", edges=[5, 10, 100])
    assert age.levels == ("100+", "<5", "5-9", "10-99")


@pytest.mark.parametrize(
    ("values", "edges", "names"),
    [
        ([1, 2, 3], [2, 3], ("<2", "2", "3+")),
        ([-20, 0, 20], [-10, 10], ("<-10", "-10 to 9", "10+")),
        ([0.5, 45.5, 90], [40, 60], ("<40", "40 to <60", ">=60")),
        ([1, 2, 3], [1.5, 2.5], ("<1.5", "1.5 to <2.5", ">=2.5")),
        (["41", "59", "81"], [60, 80], ("<60", "60-79", "80+")),
        ([1, 10**6, 2 * 10**6], [10**6, 1500000], ("<1000000", "1000000-1499999", "1500000+")),
    ],
)
def test_names_follow_the_values_and_the_edges(values, edges, names):
    assert Attribute.of(values, edges=edges).bins.names == names


@given(st.lists(st.integers(-(10**6), 10**6), min_size=1, max_size=8, unique=True).map(sorted), st.booleans())
def test_names_of_bins_are_unique_and_every_number_has_a_bin(edges, whole):
    bins = Bins(tuple(map(float, edges)), whole)
    assert len(set(bins.names)) == len(edges) + 1
    values = np.array([edges[0] - 1, *edges, edges[-1] + 1, np.nan], dtype=float)
    codes = bins.codes(values)
    assert codes.tolist() == [0, *range(1, len(edges) + 1), len(edges), -1]


@pytest.mark.parametrize(
    ("edges", "expected"),
    [
        ([60, 40], facts("age", "ascending", "60, 40")),
        ([40, 40], facts("age", "ascending")),
        ([], facts("age", "edge")),
        (["a"], facts("age", "numbers")),
        ([np.nan], facts("age", "finite")),
        ([np.inf], facts("age", "finite")),
        (40, facts("age", "list", 40)),
        ("40,60", facts("age", "list")),
    ],
)
def test_bad_edges(edges, expected):
    with pytest.raises(BadInput, match=expected):
        parse_edges(edges, "age")


@pytest.mark.parametrize("text", ["age", "age=", "=40", "age=a,b", "age=60,40", "age=40,,60", ""])
def test_bad_options(text):
    with pytest.raises(BadInput, match=r"age=40,60,80"):
        Columns(bins=[text])


def test_a_name_with_an_equals_sign_is_a_column():
    assert Columns(bins="a=b=1, 2.5").bins == {"a=b": (1.0, 2.5)}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([30, "old", 50, "NA"], facts("age", 2, 4, "'old'")),
        ([30, np.inf, 50, 60], facts("age", 1, 4, "'inf'")),
        (pd.to_datetime(["2020-01-01"] * 4), facts("age", "dates")),
        (["057Y", "1_0", "٣", "4"], facts("age", 3, 4)),
        ([41, 42, 43, 44], facts("age", 4, "40-59", 41, 44)),
        ([None] * 4, facts("age", "missing")),
    ],
)
def test_values_that_cannot_be_binned(values, expected):
    with pytest.raises(BadInput, match=expected):
        Attribute.of(values, name="age", edges=[40, 60])


@pytest.mark.parametrize(("code", "group"), [(999, "80+"), (99999, "80+"), (-1, "<40"), (-99, "<40")])
def test_a_code_for_missing_is_refused_unless_it_has_its_own_bin(code, group):
    ages = [18, 35, 52, 97, 81, code, code, None]
    with pytest.raises(BadInput, match=facts("age", f"{code} in 2 rows", group)):
        Attribute.of(ages, name="age", edges=[40, 60, 80])
    levels = Attribute.of(ages, name="age", edges=[0, 40, 60, 80, 999]).levels
    assert ("<0" in levels) == (code < 0)
    assert ("999+" in levels) == (code > 0)


@pytest.mark.parametrize("values", [[20, 50, 97, 99], [-9, -1, 30, -4, 50], [999, 1050, 400, 1200], [99, 999], [0.5, 98.6, 104, 99]])
def test_numbers_of_nines_within_the_range_are_not_missing_codes(values):
    assert len(Attribute.of(values, edges=[np.median(values)]).levels) == 2


def test_an_unknown_reference_suggests_the_closest_bin():
    with pytest.raises(UnknownName, match=suggests("40-59")):
        Attribute.of([30, 45], name="age", reference="40-60", edges=[40, 60])


def _frame(n: int = 200) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {"y": np.tile([0, 1], n // 2), "p": rng.random(n), "age": rng.integers(20, 95, n), "sex": rng.choice(["F", "M"], n)}
    )


def test_frames_and_arrays_accept_bins():
    frame = _frame()
    bins = {"age": [40, 60, 80]}
    scores = Scores.from_frame(frame, label="y", score="p", group=["sex", "age"], reference=["M", "<40"], bins=bins)
    counts = audit(scores).groups.query("attribute == 'age'")["n"].to_dict()
    expected = pd.cut(frame["age"], [-1, 39, 59, 79, 200], labels=["<40", "40-59", "60-79", "80+"]).value_counts()
    assert counts == expected.to_dict()
    cohort = Cohort.from_frame(frame, label="y", group="age", reference="<40", bins=bins, features=["p"])
    assert cohort.attribute.levels == ("<40", "40-59", "60-79", "80+")
    arrays = Cohort.from_arrays(np.zeros((200, 1), np.float32), frame.y, frame.age, bins=[40, 60, 80], reference="<40")
    assert arrays.groups.tolist() == cohort.groups.tolist()
    arrays = Scores.from_arrays(frame.y, frame.p, frame.age, bins=[40, 60, 80], reference="<40")
    assert arrays.groups.tolist() == cohort.groups.tolist()


def test_bins_of_a_column_that_is_not_a_group_are_refused():
    with pytest.raises(BadInput, match=suggests("age")):
        Scores.from_frame(_frame(), label="y", score="p", group="age", bins={"ages": [40]})


def test_all_problems_of_bins_are_in_one_error():
    with pytest.raises(BadInput) as caught:
        Scores.from_frame(_frame(), label="y", score="p", group=["sex", "age"], bins={"age": [60, 40], "race": [1]})
    assert len(caught.value.problems) == 2
