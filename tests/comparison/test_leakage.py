"""Patients, or rows, that are in two of the training, repair and test sets are an error of every function that gets both."""

import numpy as np
import pandas as pd
import pytest

import equipoise as eq
from support.facts import facts


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    x = pd.DataFrame(rng.normal(size=(600, 3)), columns=list("abc"))
    return x.assign(sex=rng.choice(["F", "M"], 600), sick=rng.integers(0, 2, 600), pid=[f"p{k // 2}" for k in range(600)])


def _cohort(frame: pd.DataFrame, patient: str | None, name: str = "table") -> eq.Cohort:
    rows = frame if patient else frame.drop(columns="pid")
    return eq.Cohort.from_frame(rows, label="sick", group="sex", reference="M", patient=patient, name=name)


@pytest.mark.parametrize(("patient", "unit"), [("pid", "patients"), (None, "rows")])
def test_sets_that_overlap_are_refused_and_parts_of_one_set_are_not(frame, patient, unit):
    """The parts of a split pass everywhere; with the whole table in one of the places, every call names how many are in both."""
    whole, quick = _cohort(frame, patient), eq.Training(epochs=1)
    parts = eq.split(whole)
    model = eq.train(parts.train, parts.valid, settings=quick)
    with pytest.raises(eq.BadInput, match=facts(unit, "validation set", "training set")):
        eq.train(whole, parts.valid, settings=quick)
    result = eq.debias(model, parts.valid, train=parts.train, method="bias-score", selection="paper")
    with pytest.raises(eq.BadInput, match=facts(unit, "repair set", "training set")):
        eq.debias(model, parts.valid, train=whole, method="bias-score")
    assert eq.compare({"original": model, "repaired": result}, parts.test, valid=parts.valid).found.after.rows == len(parts.test)
    with pytest.raises(eq.BadInput, match=facts(unit, "test set", "repair set")):
        eq.compare({"original": model, "other": model}, parts.test, valid=whole)
    for place, role in ((parts.valid, "repair"), (parts.train, "training")):
        with pytest.raises(eq.BadInput, match=facts(unit, f"{role} set of 'repaired'")):
            eq.compare({"original": model, "repaired": result}, place)
    assert eq.audit(model, parts.test, train=parts.train).baseline is not None
    with pytest.raises(eq.BadInput, match=facts(unit, "test set", "training set")):
        eq.audit(model, parts.test, train=whole)


def test_rows_read_separately_are_compared_by_what_they_contain(frame):
    """Whatever the order of rows and columns, and whether a column was read as integers or, since one is missing, as numbers."""
    aged = frame.assign(age=np.arange(600) % 70)
    train, test = aged.head(400), aged.iloc[395:].sample(frac=1, random_state=0)[aged.columns[::-1]]
    test = test.astype({"age": float})
    test.loc[599, "age"] = np.nan
    with pytest.raises(eq.BadInput, match=facts("5 of 205 rows", "validation set 'test.csv'", "training set 'train.csv'")):
        eq.train(_cohort(train, None, "train.csv"), _cohort(test, None, "test.csv"), settings=eq.Training(epochs=0))


def test_a_negative_zero_is_zero(frame):
    zero = frame.head(400).assign(c=0.0)
    with pytest.raises(eq.BadInput, match=facts("400 of 400 rows")):
        eq.train(
            _cohort(zero, None, "train.csv"),
            _cohort(zero.sample(frac=1, random_state=0).assign(c=-0.0), None, "test.csv"),
            settings=eq.Training(epochs=0),
        )


@pytest.mark.parametrize(("values", "unit"), [(3, 1), (50, 1), (50, np.pi / 7)], ids=["few", "more", "many digits"])
def test_equal_rows_of_a_coarse_table_may_be_of_different_patients(values, unit):
    rng = np.random.default_rng(1)

    def coarse(n: int) -> eq.Cohort:
        frame = pd.DataFrame({"a": unit * rng.integers(0, values, n), "b": rng.integers(0, 4, n), "sex": ["F", "M"] * (n // 2)})
        return eq.Cohort.from_frame(frame.assign(sick=rng.integers(0, 2, n)), label="sick", group="sex")

    train, valid = coarse(400), coarse(100)
    assert len(train.source.frame.merge(valid.source.frame)) > 100
    eq.train(train, valid, settings=eq.Training(epochs=0))
    with pytest.raises(eq.BadInput, match=facts("400 of 400 rows")):  # in the same order, they are the same
        eq.train(train, train, settings=eq.Training(epochs=0))
