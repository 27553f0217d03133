"""Splits: no patient in two sets, requested sizes, stratification, reproducibility, encoders fitted to the training set only."""

from collections import Counter

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from equipoise.data import Attribute, Cohort, Parts, Scores, assign_folds, split
from equipoise.errors import BadInput
from support.facts import facts

FRACTIONS = st.sampled_from([(0.6, 0.2, 0.2), (0.5, 0.25, 0.25), (0.8, 0.1, 0.1), (1 / 3, 1 / 3, 1 / 3)])


@st.composite
def cohorts(draw, with_patients: bool = False) -> Cohort:
    """20 to 150 rows in 2 to 4 groups, some without a group; or at least 80 rows of patients with one group and a few rows each."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n, groups = draw(st.integers(80 if with_patients else 20, 150)), draw(st.integers(2, 4))
    patients = np.sort(rng.integers(0, n // 2, n)) if with_patients else np.arange(n)
    group_of = rng.integers(-1, groups, n)
    attribute = Attribute("g", tuple(f"g{k}" for k in range(groups)), group_of[patients])
    y = (rng.random(n) < draw(st.sampled_from([0.05, 0.5, 0.9]))).astype(np.int64)
    return Cohort(torch.arange(n)[:, None].float(), y, (attribute,), patients.astype(object) if with_patients else None)


def _rows(parts: Parts) -> list[list[object]]:
    return [part.ids.tolist() for part in parts]


@given(cohorts(), FRACTIONS, st.integers(0, 5))
def test_every_row_is_in_exactly_one_set_in_the_original_order(cohort, fractions, seed):
    rows = _rows(split(cohort, seed=seed, fractions=fractions))
    assert sorted(row for part in rows for row in part) == list(range(len(cohort)))
    assert all(part == sorted(part) for part in rows)


@given(cohorts(with_patients=True), st.integers(0, 5))
def test_no_patient_is_in_two_sets(cohort, seed):
    train, valid, test = (set(part.patients) for part in split(cohort, seed=seed))
    assert len(train) + len(valid) + len(test) == len(train | valid | test) == len(set(cohort.patients))


@given(cohorts(), FRACTIONS)
def test_without_patients_the_sizes_are_exact(cohort, fractions):
    n, parts = len(cohort), split(cohort, fractions=fractions)
    assert len(parts.train) == int(fractions[0] * n + 1e-9)
    assert abs(len(parts.valid) - fractions[1] * n) < 1
    assert abs(len(parts.test) - fractions[2] * n) < 1.5


@given(cohorts(with_patients=True))
def test_with_patients_the_sizes_are_off_by_less_than_one_patient(cohort):
    largest = max(Counter(cohort.patients).values())
    n, parts = len(cohort), split(cohort)
    assert -1 <= len(parts.train) - 0.6 * n < largest
    assert -largest < len(parts.test) - 0.2 * n <= 1.5


@given(cohorts(), FRACTIONS, st.integers(0, 5))
def test_every_set_has_its_share_of_each_stratum(cohort, fractions, seed):
    """Within one row for small strata. All strata compete for the places in a set, so a large one may lose a row to each other."""
    strata = Counter(zip(cohort.groups, cohort.y, strict=True))
    parts = split(cohort, seed=seed, fractions=fractions)
    for part, fraction in ((parts.train, fractions[0]), (parts.test, fractions[2])):
        found = Counter(zip(part.groups, part.y, strict=True))
        for stratum, total in strata.items():
            assert abs(found[stratum] - fraction * total) <= 1 + len(strata) * total / len(cohort)


@given(cohorts(with_patients=True), st.integers(0, 5))
def test_the_same_seed_gives_the_same_split(cohort, seed):
    assert _rows(split(cohort, seed=seed)) == _rows(split(cohort, seed=seed))


@given(cohorts(), st.integers(0, 5))
def test_another_seed_gives_another_split(cohort, seed):
    assert _rows(split(cohort, seed=seed)) != _rows(split(cohort, seed=seed + 1))


def _table(n: int = 50) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame({"age": rng.normal(60, 10, n), "sex": rng.choice(["F", "M"], n), "sick": rng.integers(0, 2, n), "ward": "a"})


def _from(frame: pd.DataFrame) -> Cohort:
    return Cohort.from_frame(frame, label="sick", group="sex", reference="M", name="ward")


def test_scales_are_learned_from_the_training_set_only():
    frame = _table()
    parts = split(_from(frame))
    spoilt = frame.copy()
    spoilt.loc[parts.test.ids.astype(int), "age"] = 1e6
    again = split(_from(spoilt))
    assert torch.equal(parts.train.inputs, again.train.inputs)
    assert torch.equal(parts.valid.inputs, again.valid.inputs)
    assert parts.train.inputs[:, 0].mean() == pytest.approx(0, abs=1e-6)
    assert parts.train.encoder is parts.valid.encoder is parts.test.encoder


def test_levels_that_the_training_set_lacks_are_reported_by_set():
    frame = _table()
    parts = split(_from(frame))
    frame.loc[parts.valid.ids.astype(int)[:2], "ward"] = "b"
    frame.loc[parts.test.ids.astype(int)[:3], "ward"] = "c"
    again = split(_from(frame))
    assert again.unseen == {"valid": {"ward": {"b": 2}}, "test": {"ward": {"c": 3}}}
    assert again.train.encoder.columns == ("age", "ward=a")
    assert again.test.inputs[:3, 1].tolist() == [0, 0, 0]


def test_sets_are_named_after_the_cohort_and_can_be_unpacked():
    train, valid, test = split(_from(_table()))
    assert [part.name for part in (train, valid, test)] == ["ward/train", "ward/valid", "ward/test"]


@pytest.mark.parametrize("fractions", [(0.6, 0.4), (0.6, 0.2, 0.3), (1.0, 0.0, 0.0), (0.6, 0.6, -0.2), (float("nan"), 0.5, 0.5)])
def test_fractions_must_be_three_positive_numbers_that_add_up_to_one(fractions):
    with pytest.raises(BadInput, match=facts("fractions", 1)):
        split(_from(_table()), fractions=fractions)


def test_too_few_rows_or_patients_for_three_sets_are_reported_with_their_number():
    with pytest.raises(BadInput, match=facts(2, "ward")):
        split(_from(_table()).take([0, 1]))
    cohort = Cohort.from_arrays(torch.zeros(20, 1), [0, 1] * 10, ["F", "M"] * 10, patients=[1, 2] * 10)
    with pytest.raises(BadInput, match=facts(2, 20, "arrays")):
        split(cohort)


@given(cohorts(with_patients=True), st.sampled_from([0.2, 0.3, 0.5]), st.integers(0, 5))
def test_held_out_patients_are_not_in_the_repair_set_and_make_up_the_fraction(cohort, fraction, seed):
    repair, test = cohort.hold_out(fraction, seed=seed)
    assert sorted([*repair.ids, *test.ids]) == list(range(len(cohort)))
    assert not set(repair.patients) & set(test.patients)
    patients = len(set(cohort.patients))
    assert abs(len(set(test.patients)) - fraction * patients) < 1  # of patients, however many rows each has


@given(cohorts())
def test_each_stratum_is_held_out_in_its_share(cohort):
    _, test = cohort.hold_out(0.5)
    strata, kept = (Counter(zip(part.groups, part.y, strict=True)) for part in (cohort, test))
    assert all(abs(kept[key] - count / 2) <= 1.5 for key, count in strata.items())


def test_hold_out_keeps_the_encoding_of_a_table():
    frame = pd.DataFrame({"ward": ["a", "b", "c", "d"] * 5, "age": np.arange(20.0), "sex": ["F", "M"] * 10, "y": [0, 0, 1, 1] * 5})
    cohort = Cohort.from_frame(frame, label="y", group="sex", scale=False)
    for part in cohort.hold_out(0.3):
        assert torch.equal(part.inputs, cohort.inputs[torch.tensor(part.ids.astype(int))])


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.1])
def test_a_fraction_that_holds_out_no_patient_or_every_patient_is_refused(fraction):
    cohort = Cohort.from_arrays(torch.zeros(4, 1), [0, 1, 0, 1], ["F", "F", "M", "M"])
    with pytest.raises(BadInput, match=facts(fraction)):
        cohort.hold_out(fraction)


def test_one_patient_is_too_few_to_hold_out():
    cohort = Cohort(
        torch.zeros(3, 1), np.array([0, 1, 0]), (Attribute("sex", ("M", "F"), np.zeros(3, int)),), np.array(["p"] * 3, dtype=object)
    )
    with pytest.raises(BadInput, match=facts(1, 3, "cohort", "0.3")):
        cohort.hold_out(0.3)


@given(cohorts(with_patients=True), st.integers(2, 5))
def test_folds_hold_whole_patients_and_as_many_of_each(cohort, folds):
    found = assign_folds(cohort, folds, np.random.default_rng(0))
    of_patient = dict(zip(cohort.patients, found, strict=True))
    assert found.tolist() == [of_patient[patient] for patient in cohort.patients]
    sizes = np.bincount(list(of_patient.values()), minlength=folds)
    assert len(sizes) == folds
    assert sizes.max() - sizes.min() <= 1


@given(cohorts(), st.integers(2, 5))
def test_folds_share_every_stratum_and_do_not_depend_on_the_order_of_rows(cohort, folds):
    found = assign_folds(cohort, folds, np.random.default_rng(0))
    for stratum in set(zip(cohort.groups, cohort.y, strict=True)):
        inside = [fold for fold, *own in zip(found, cohort.groups, cohort.y, strict=True) if tuple(own) == stratum]
        sizes = np.bincount(inside, minlength=folds)
        assert sizes.max() - sizes.min() <= 1
    order = np.random.default_rng(1).permutation(len(cohort))
    assert assign_folds(cohort.take(order), folds, np.random.default_rng(0)).tolist() == found[order].tolist()


def test_a_test_set_has_the_group_codes_of_the_repair_set_and_no_other_groups():
    repair = Scores.from_arrays([0, 1, 0, 1, 0, 1], [0.5] * 6, ["F", "M", "X"] * 2, reference="M", attribute="sex", name="repair")
    test = Scores.from_arrays([0, 1, 0, 1], [0.5] * 4, ["X", None, "M", "X"], reference="X", attribute="sex", name="later")
    found = test.with_groups_of(repair)
    assert (found.attribute.levels, found.groups.tolist()) == (repair.attribute.levels, ["X", None, "M", "X"])
    other = Scores.from_arrays([0, 1, 0, 1], [0.5] * 4, ["M", "D", "M", "U"], reference="M", attribute="sex", name="later")
    with pytest.raises(BadInput, match=facts("'later'", "'sex'", "'repair'", "'D', 'U'")):
        other.with_groups_of(repair)


@pytest.mark.parametrize("seed", range(4))
def test_several_labels_are_stratified_by_whether_a_row_has_any(seed):
    a, b = np.arange(100) % 5 == 0, np.arange(100) % 25 == 1
    frame = pd.DataFrame({"x": np.arange(100.0), "sex": ["F", "M"] * 50, "a": a * 1, "b": b * 1})
    cohort = Cohort.from_frame(frame, label=["a", "b"], group="sex", reference="M")
    assert cohort.y.sum() == 24
    for part, share in zip(split(cohort, seed=seed), (0.6, 0.2, 0.2), strict=True):
        assert abs(part.y.sum() - 24 * share) < 2
