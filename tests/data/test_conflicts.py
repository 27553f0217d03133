"""Patients with more than one recorded group: the rules for their rows, and splits that keep all their rows together."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise import Cohort, Scores, audit, split
from equipoise.data import CONFLICTS, Attribute, assign_folds
from equipoise.data.attribute import main_group, varying_units
from equipoise.errors import BadInput
from equipoise.measures.moments import moments_of, units_of
from support.bootstrap import bootstrap_cells
from support.facts import facts

#         patient 1: F F M    2: M .   3: a tie, M first    4: always F
PATIENTS = ["1", "1", "1", "2", "2", "3", "3", "4", "4"]
SEX = ["M", "F", "F", "M", None, "M", "F", "F", "F"]


def _resolved(rule: str) -> Attribute:
    return Attribute.of(SEX, "sex", "M", patients=pd.Series(PATIENTS, name="pid"), conflicts=rule)


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("row", SEX),
        ("first", ["M", "M", "M", "M", None, "M", "M", "F", "F"]),
        ("majority", ["F", "F", "F", "M", None, "M", "M", "F", "F"]),
        ("blank", [None, None, None, "M", None, None, None, "F", "F"]),
    ],
)
def test_each_rule(rule, expected):
    found = _resolved(rule)
    assert found.names.tolist() == expected
    assert (found.varied, found.conflicts) == (2, rule)


def test_an_error_names_the_patients_and_the_rules():
    with pytest.raises(BadInput, match=facts("pid", 2, 4, "sex", 1, 3, "data.conflicts")):
        _resolved("error")


def test_a_rule_may_leave_no_second_group():
    with pytest.raises(BadInput, match=facts("M")):
        Attribute.of(["F", "M", "F"], "sex", "F", patients=pd.Series(["1", "1", "2"]), conflicts="blank")


def test_a_group_without_rows_is_dropped():
    patients = pd.Series(["1", "1", "1", "2", "2"])
    found = Attribute.of(["a", "b", "a", "c", "c"], "race", "a", patients=patients, conflicts="majority")
    assert found.levels == ("a", "c")
    assert found.names.tolist() == ["a", "a", "a", "c", "c"]


rows = st.lists(st.tuples(st.integers(0, 5), st.integers(-1, 3)), min_size=1, max_size=40)


@given(rows)
def test_varying_and_main_groups_agree_with_pandas(pairs):
    units, codes = (np.array(column, dtype=np.int64) for column in zip(*pairs, strict=True))
    units = pd.factorize(units)[0].astype(np.int64)
    known = pd.DataFrame({"unit": units, "code": codes}).query("code >= 0")
    counts = known.groupby("unit")["code"].nunique().reindex(range(units.max() + 1), fill_value=0)
    assert varying_units(codes, units).tolist() == (counts > 1).tolist()
    for unit in range(units.max() + 1):
        groups = known.loc[known["unit"] == unit, "code"].tolist()
        best = max(groups, key=groups.count) if groups else -1  # the first of equal counts
        assert main_group(codes, units)[unit] == best


@pytest.mark.parametrize("rule", CONFLICTS)
def test_frames_and_arrays_accept_the_rule(rule):
    frame = pd.DataFrame({"pid": PATIENTS, "sex": SEX, "y": [0, 1, 0, 1, 0, 1, 0, 1, 0], "p": 0.5, "x": 1.0})
    columns = {"label": "y", "group": "sex", "reference": "M", "patient": "pid", "conflicts": rule}
    made = [
        lambda: Scores.from_frame(frame, score="p", **columns),
        lambda: Cohort.from_frame(frame, features=["x"], **columns),
        lambda: Scores.from_arrays(frame.y, frame.p, frame.sex, reference="M", patients=frame.pid, conflicts=rule),
        lambda: Cohort.from_arrays(np.zeros((9, 1), np.float32), frame.y, frame.sex, reference="M", patients=frame.pid, conflicts=rule),
    ]
    for make in made:
        if rule == "error":
            with pytest.raises(BadInput, match=facts(2, 4, "patients")):
                make()
        else:
            assert make().groups.tolist() == _resolved(rule).names.tolist()


def _cohort(seed: int = 0, patients: int = 300) -> Cohort:
    """One to five rows per patient; the age group of about a third of the patients changes between their rows."""
    rng = np.random.default_rng(seed)
    pid = np.repeat([f"{k:03d}" for k in range(patients)], rng.integers(1, 6, patients))
    start = dict(zip(np.unique(pid), rng.integers(20, 90, patients), strict=True))
    age = [start[p] + 3 * k for p, k in zip(pid, pd.Series(pid).groupby(pid).cumcount(), strict=True)]
    y = (rng.random(len(pid)) < 0.3).astype(int)
    return Cohort.from_arrays(rng.normal(size=(len(pid), 2)).astype(np.float32), y, age, bins=[40, 60, 80], patients=pid, attribute="age")


def test_a_patient_in_two_groups_is_in_one_set_and_in_one_fold():
    cohort = _cohort()
    assert cohort.varying[0] > 30
    for parts in (split(cohort, seed=3), cohort.hold_out(seed=3)):
        patients = [set(part.patients) for part in parts]
        assert sum(map(len, patients)) == len(set.union(*patients)) == 300
    fold = assign_folds(cohort, 5, np.random.default_rng(0))
    assert pd.Series(fold).groupby(cohort.patients).nunique().max() == 1


def test_sets_are_stratified_by_the_most_frequent_group_of_a_patient():
    cohort = _cohort(patients=1000)
    whole = pd.Series(cohort.groups).value_counts(normalize=True)
    for part in split(cohort, seed=1):
        assert (pd.Series(part.groups).value_counts(normalize=True) - whole).abs().max() < 0.03
    # The order of a patient's rows does not matter.
    shuffled = cohort.take(np.lexsort((np.random.default_rng(0).random(len(cohort)), pd.factorize(cohort.patients)[0])))
    units, again = (pd.factorize(c.patients)[0].astype(np.int64) for c in (cohort, shuffled))
    tied = main_group(cohort.attribute.codes, units) != main_group(shuffled.attribute.codes, again)
    counts = pd.crosstab(units[np.isin(units, np.flatnonzero(tied))], cohort.attribute.codes[np.isin(units, np.flatnonzero(tied))])
    assert (counts.apply(lambda row: (row == row.max()).sum(), axis=1) > 1).all()  # only where two groups are equally frequent


def test_a_patient_counts_once_in_every_cell_with_one_of_their_rows():
    attribute = Attribute.of(["a", "a", "b", "b", "b", "a", None], "g", "a")
    y = np.array([1, 0, 1, 1, 1, 1, 0])
    units = units_of(np.array(["1", "1", "1", "2", "2", "3", "3"], dtype=object), 7)
    #            negative, positive, either: patient 1 has rows of both labels in a, and one in b
    sums = moments_of(np.ones(7), y, attribute.codes, 2, units)
    assert np.stack([sums[rate].patients for rate in ("fpr", "tpr", "selection_rate")], axis=1).tolist() == [[1, 2, 2], [0, 2, 2]]


def test_patients_with_rows_of_both_labels_are_not_counted_twice():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"pid": np.repeat([f"p{k}" for k in range(23)], 2), "y": [0, 1] * 23, "p": rng.random(46)})
    frame["sex"] = np.where(frame["pid"].isin(["p0", "p1", "p2"]), "F", "M")
    found = audit(Scores.from_frame(frame, label="y", score="p", group="sex", reference="M", patient="pid"), min_patients=5)
    assert np.isnan(found.groups.loc["F", "selection_rate"])  # 3 patients, though 3 with positives and 3 with negatives
    assert np.isnan(found["spd"].value)


def test_a_resampled_patient_has_the_rows_of_all_their_groups():
    cohort = _cohort()
    units = units_of(cohort.patients, len(cohort))
    attribute = cohort.attribute
    drawn = bootstrap_cells(np.ones(len(cohort)), cohort.y, attribute.codes, attribute.levels, units, draws=3000, seed=0)
    table = np.zeros((units.max() + 1, len(attribute.levels)))  # rows of each patient by group
    np.add.at(table, (units, attribute.codes), 1)
    centred = table - table.mean(0)
    expected = centred.T @ centred  # the covariance of the group sizes if patients are resampled
    found = np.cov(drawn.n[:, :-1].sum(-1).T)
    scale = np.sqrt(np.outer(np.diag(expected), np.diag(expected)))
    assert np.abs(found - expected).max() < 0.08 * scale.max()
    np.testing.assert_allclose(np.diag(found), np.diag(expected), rtol=0.12)


def test_an_audit_reports_the_number_of_patients_in_several_groups():
    cohort = _cohort()
    scores = Scores.of(cohort, np.full(len(cohort), 0.5))
    expected = int((pd.Series(cohort.groups).groupby(cohort.patients).nunique() > 1).sum())  # noqa: PD101
    found = audit(scores)
    assert found.to_dict()["patients_in_several_groups"] == {"age": expected}
    assert found.to_dict()["conflicts"] == "row"
    assert f"{expected:,} patients" in str(found)
    # A subset reports its own number.
    subset = cohort.take(cohort.patients < "100")
    fewer = audit(Scores.of(subset, np.full(len(subset), 0.5))).to_dict()["patients_in_several_groups"]["age"]
    assert fewer == int((pd.Series(subset.groups).groupby(subset.patients).nunique() > 1).sum()) < expected  # noqa: PD101


# names of intersections

names = st.text(st.sampled_from('ab &"'), min_size=1, max_size=6)


@given(st.lists(st.tuples(names, names), min_size=2, max_size=6, unique=True))
def test_different_intersections_have_different_names(pairs):
    assert len({Attribute.crossed_name(pair) for pair in pairs}) == len(pairs)


@given(st.lists(st.lists(names, min_size=3, max_size=3).map(tuple), min_size=2, max_size=5, unique=True))
def test_different_intersections_of_three_attributes_have_different_names(triples):
    assert len({Attribute.crossed_name(triple) for triple in triples}) == len(triples)


@given(st.lists(names, min_size=2, max_size=4, unique=True))
def test_an_intersection_never_has_the_name_of_one_of_its_attributes(columns):
    assert Attribute.crossed_name(columns) not in columns


def test_groups_with_an_ampersand_are_kept_apart():
    a = Attribute.of(["x & y", "x", "x & y", "x"], "a", "x")
    b = Attribute.of(["z", "y & z", "y & z", "z"], "b", "z")
    both = Attribute.crossed([a, b])
    assert len(set(both.levels)) == len(both.levels) == 4
    assert both.names.tolist() == ['"x & y" & z', 'x & "y & z"', '"x & y" & "y & z"', "x & z"]
