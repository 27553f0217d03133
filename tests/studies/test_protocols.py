"""The paper's sets: by patient, balanced labels, 75 % of the training set in the reference group and 50 % of the others."""

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from equipoise.data import Cohort, split
from equipoise.errors import BadInput
from equipoise.studies.worker import balanced_parts, fold_parts
from support.facts import facts, says


def _cohort(n: int = 800, positive: float = 0.3, reference: float = 0.6, seed: int = 0, groups=("F",)) -> Cohort:
    rng = np.random.default_rng(seed)
    patients = rng.integers(0, n // 3, n)
    sex = np.where(rng.random(n // 3) < reference, "M", rng.choice(groups, n // 3))
    return Cohort.from_arrays(
        torch.arange(n)[:, None].float(), (rng.random(n) < positive).astype(int), sex[patients], reference="M", patients=patients
    )


@given(st.integers(0, 20), st.sampled_from([0.2, 0.5, 0.8]), st.sampled_from([0.3, 0.5, 0.7]), st.sampled_from([0.6, 0.75, 0.9]))
def test_label_and_group_are_balanced_and_no_patient_is_in_two_sets(seed, positive, reference, share):
    parts = balanced_parts(_cohort(positive=positive, reference=reference, seed=seed), seed=seed, privileged=(share, 0.5, 0.5))
    for part, wanted in zip(parts, (share, 0.5, 0.5), strict=True):
        for y in (0, 1):
            assert (part.y == y).sum() * 2 == len(part)
            assert abs((part.groups[part.y == y] == "M").sum() - wanted * len(part) / 2) <= 0.5
    assert sum(len(set(part.patients)) for part in parts) == len({p for part in parts for p in part.patients})


def test_the_sample_is_the_largest_with_the_balance():
    cohort = _cohort(3000)
    part = balanced_parts(cohort, seed=1).valid
    cells = {(g, y): int(((part.groups == g) & (part.y == y)).sum()) for g in "FM" for y in (0, 1)}
    assert len(set(cells.values())) == 1
    whole = split(cohort, seed=1, fractions=(0.5, 0.25, 0.25)).valid
    assert min(int(((whole.groups == g) & (whole.y == y)).sum()) for g in "FM" for y in (0, 1)) == cells["F", 0]


def test_the_sets_depend_only_on_the_seed():
    cohort = _cohort()
    first, again, other = (balanced_parts(cohort, seed=s) for s in (3, 3, 4))
    assert all((a.ids == b.ids).all() for a, b in zip(first, again, strict=True))
    assert set(first.test.ids) != set(other.test.ids)


def test_rows_without_a_group_are_left_out_and_other_groups_count_as_one():
    cohort = _cohort(groups=("F", "X", None))
    train = balanced_parts(cohort, seed=0).train
    assert None not in set(train.groups)
    assert {"F", "X"} < set(train.groups)
    assert (train.groups == "M").mean() == pytest.approx(0.75, abs=1 / len(train))


def test_a_cell_that_is_too_small_is_reported():
    y = np.tile([0, 1], 40)
    groups = np.where(np.arange(80) < 78, "M", "F")
    y[78:] = 0
    cohort = Cohort.from_arrays(torch.zeros(80, 1), y, groups, reference="M")
    with pytest.raises(BadInput) as caught:
        balanced_parts(cohort, seed=0)
    for part in ("train", "test"):
        assert any(says(problem, part, 0, "'F'") for problem in caught.value.problems)


@pytest.mark.parametrize("shares", [(0.75, 0.5), (1.0, 0.5, 0.5), (0.75, 0.5, 0.0)])
def test_shares_are_checked(shares):
    with pytest.raises(BadInput, match=facts("privileged", 0, 1)):
        balanced_parts(_cohort(), privileged=shares)


@given(st.integers(0, 14), st.sampled_from([0.3, 0.6]))
def test_every_patient_is_in_one_test_set_of_an_assignment(seed: int, positive: float):
    cohort = _cohort(positive=positive, seed=seed)
    folds = [fold_parts(cohort, seed=seed // 5 * 5 + k) for k in range(5)]
    tested = [set(parts.test.patients) for parts in folds]
    assert sorted(p for patients in tested for p in patients) == sorted(set(cohort.patients))
    assert sum(len(parts.test) for parts in folds) == len(cohort)
    for parts in folds:
        assert not set(parts.train.patients) & set(parts.valid.patients)
        assert not set(parts.test.patients) & (set(parts.train.patients) | set(parts.valid.patients))
        for part, share in ((parts.train, 0.75), (parts.valid, 0.5)):
            assert part.y.sum() * 2 == len(part)
            assert abs((part.groups == "M").mean() - share) <= 1 / len(part) + 1e-9
    sizes = list(map(len, tested))
    assert max(sizes) - min(sizes) <= 1


def test_assignments_differ_and_are_reproducible():
    cohort = _cohort()
    first, again, other = (set(fold_parts(cohort, seed=seed).test.patients) for seed in (0, 0, 5))
    assert first == again
    assert first != other


def test_folds_of_tables_are_encoded_by_their_training_set():
    frame = pd.DataFrame({"x": np.arange(400.0), "sex": list("FM") * 200, "sick": [0, 0, 1, 1] * 100})
    parts = fold_parts(Cohort.from_frame(frame, label="sick", group="sex", reference="M"), seed=1)
    assert abs(float(parts.train.inputs.mean())) < 0.3
    assert parts.test.inputs.shape == (80, 1)


def test_too_few_patients_for_folds():
    with pytest.raises(BadInput, match=facts(4, 5, "folds")):
        fold_parts(Cohort.from_arrays(torch.zeros(8, 1), [0, 1] * 4, list("FFFFMMMM"), reference="M", patients=[1, 1, 2, 2, 3, 3, 4, 4]))
