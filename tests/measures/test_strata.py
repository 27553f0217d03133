"""Gaps within strata: the estimate of Mantel and Haenszel, its interval by patient, and what has no comparable patients."""

import numpy as np
import pandas as pd
import pytest

import equipoise as eq
from equipoise.measures import AuditSpec
from equipoise.measures.strata import gaps_within

ROLES = {"label": "y", "score": "p", "group": "sex", "reference": "M"}


def films(patients: int = 300, gap: float = 0.0, seed: int = 0, visits: float = 1.0) -> pd.DataFrame:
    """Decisions that depend on the view, which women have more often from AP, and by `gap` on the sex; patients have 1 / visits rows."""
    rng = np.random.default_rng(seed)
    patient = np.repeat(np.arange(2 * patients), rng.geometric(visits, 2 * patients))
    sex = np.where(patient < patients, "F", "M")
    ap = rng.random(len(patient)) < np.where(sex == "F", 0.7, 0.3)
    y = (rng.random(len(patient)) < np.where(ap, 0.5, 0.3)).astype(int)
    rate = np.where(y == 1, np.where(ap, 0.5, 0.8), np.where(ap, 0.3, 0.1)) - gap * (sex == "F") * y
    share = rng.beta(2, 2, 2 * patients)[patient]  # of one patient's luck in all of the rows
    luck = np.where(rng.random(len(patient)) < 0.4, share, rng.random(len(patient)))
    p, view = (luck < rate).astype(float), np.where(ap, "AP", "PA")
    return pd.DataFrame({"y": y, "p": p, "sex": sex, "view": view, "patient": patient.astype(str)})


def mantel_haenszel(frame: pd.DataFrame, top: pd.Series, rows: pd.Series) -> tuple[float, float]:
    """The risk difference and its standard error, as in Greenland and Robins (Biometrics 1985;41:55), from a loop over the strata."""
    weight = value = variance = 0.0
    for _, own in frame[rows].groupby("view"):
        f, m = (top[own.index[own["sex"] == sex]] for sex in ("F", "M"))
        w = len(f) * len(m) / (len(f) + len(m))
        weight, value = weight + w, value + w * (f.mean() - m.mean())
        variance += w**2 * (f.mean() * (1 - f.mean()) / len(f) + m.mean() * (1 - m.mean()) / len(m))
    return value / weight, float(np.sqrt(variance)) / weight


@pytest.mark.parametrize("measure", ["eod", "fpr_gap", "spd", "ppv_gap", "npv_gap"])
def test_it_is_the_difference_of_mantel_and_haenszel(measure):
    frame = films(800, gap=0.1)
    within = eq.audit(eq.Scores.from_frame(frame, within="view", **ROLES), threshold=0.5, measures=[measure]).within.iloc[0]
    label, decided = frame["y"] == 1, frame["p"] >= 0.5
    of = {"eod": (decided, label), "fpr_gap": (decided, ~label), "spd": (decided, label | True)}
    of |= {"ppv_gap": (label, decided), "npv_gap": (~label, ~decided)}
    value, error = mantel_haenszel(frame, *of[measure])
    assert within["value"] == pytest.approx(value, abs=1e-12)
    assert (within["high"] - within["low"]) / 3.92 == pytest.approx(error, rel=0.04)


def test_a_gap_that_is_one_of_views_disappears_within_them():
    audit = eq.audit(eq.Scores.from_frame(films(2000), within="view", patient="patient", **ROLES), threshold=0.5)
    within = audit.within.set_index("measure")
    assert within["crude"].to_dict() == audit.gaps.set_index("measure")["value"].to_dict()
    for measure in ("eod", "fpr_gap"):
        assert abs(within.loc[measure, "crude"]) > 0.04
        assert within.loc[measure, "low"] < 0 < within.loc[measure, "high"]
        assert abs(within.loc[measure, "value"]) < 0.03


@pytest.mark.parametrize("visits", [1.0, 0.4])
@pytest.mark.parametrize("measure", ["eod", "aod", "ppv_gap", "spd"])
def test_one_stratum_gives_the_interval_of_all_patients(visits, measure):
    frame = films(60, gap=0.1, visits=visits).assign(view=lambda rows: np.where(np.arange(len(rows)) < 2, "lateral", "PA"))
    sides = (frame, "view"), (frame[2:], None)
    both, of_one = (eq.Scores.from_frame(rows, patient="patient", within=view, **ROLES) for rows, view in sides)
    within = eq.audit(both, threshold=0.5, measures=[measure]).within.iloc[0]
    crude = eq.audit(of_one, threshold=0.5, measures=[measure]).gaps.iloc[0]
    assert within["left_out"] == 2
    assert [within[end] for end in ("value", "low", "high")] == pytest.approx([crude[end] for end in ("value", "low", "high")], abs=1e-4)


@pytest.mark.parametrize("patients", [60, 200])
def test_the_interval_counts_patients_and_covers(patients):
    covered, truth = [], [-0.1, 0.0, -0.05]
    for seed in range(200):
        frame = films(patients, gap=0.1, seed=seed, visits=0.4)
        scores = eq.Scores.from_frame(frame, within="view", patient="patient", **ROLES)
        within = gaps_within(scores, frame["p"].to_numpy(), scores.attributes, AuditSpec(measures=("eod", "fpr_gap", "aod")))
        covered.append((within["low"] <= truth) & (within["high"] >= truth))
    shares = np.mean(covered, axis=0)
    assert ((shares > 0.90) & (shares < 0.995)).all(), shares


def test_the_order_of_rows_and_the_names_of_strata_do_not_matter():
    frame = films(200, gap=0.1, visits=0.5)
    shuffled = frame.sample(frac=1, random_state=1).assign(view=lambda rows: rows["view"].map({"AP": "1", "PA": "0"}))
    first, second = (
        eq.audit(eq.Scores.from_frame(each, within="view", patient="patient", **ROLES), threshold=0.5).within for each in (frame, shuffled)
    )
    numbers = ["value", "low", "high", "patients", "left_out"]
    pd.testing.assert_frame_equal(first[numbers], second[numbers])


def test_rows_without_a_comparable_patient_are_counted_and_left_out():
    frame = films(200)
    frame.loc[frame.index[frame["sex"] == "F"][:7], "view"] = "LATERAL"  # no man has one
    frame.loc[frame.index[frame["sex"] == "F"][7:10], "view"] = None
    within = eq.audit(eq.Scores.from_frame(frame, within="view", **ROLES), threshold=0.5, measures=["spd"]).within.iloc[0]
    assert (within["strata"], within["left_out"]) == (2, 10)
    rest = frame[frame["view"].isin(["AP", "PA"])]
    assert within["value"] == pytest.approx(mantel_haenszel(rest, rest["p"] >= 0.5, rest["y"] >= 0)[0])


def test_without_any_comparable_patients_there_is_no_number():
    frame = films(200).assign(view=lambda rows: rows["sex"])
    within = eq.audit(eq.Scores.from_frame(frame, within="view", **ROLES), threshold=0.5).within
    assert within["value"].isna().all()
    assert within["note"].str.contains("no patients of both groups with the same view").all()


def test_several_columns_are_crossed_and_numbers_are_cut():
    frame = films(400).assign(age=np.arange(len(films(400))) % 80)
    roles = {**ROLES, "group": ["sex", "age"], "reference": ["M", "<40"], "bins": {"age": [40]}}
    audit = eq.audit(eq.Scores.from_frame(frame, within=["view", "age"], **roles), threshold=0.5, measures=["eod"])
    by = audit.within.set_index("attribute")
    assert set(by["within"]) == {"view & age"}
    assert by.loc["sex", "strata"] == 4


def test_a_saved_audit_keeps_them(tmp_path):
    audit = eq.audit(eq.Scores.from_frame(films(), within="view", **ROLES), threshold=0.5)
    (tmp_path / "audit.json").write_text(__import__("json").dumps(audit.to_dict()))
    pd.testing.assert_frame_equal(eq.read_audit(tmp_path / "audit.json").within, audit.within, check_dtype=False)


@pytest.mark.parametrize(
    ("changed", "fact"),
    [
        ({"view": "PA"}, "'view' holds a single group, 'PA'"),
        ({"view": None}, "all 600 values are missing"),
        ({"view": np.arange(600) / 7}, "600 different numbers"),
    ],
)
def test_a_column_that_makes_nobody_comparable_is_an_error(changed, fact):
    with pytest.raises(eq.BadInput, match=fact) as raised:
        eq.Scores.from_frame(films().assign(**changed), within="view", **ROLES)
    assert "--within" in str(raised.value)


def test_an_unknown_column_is_an_error():
    with pytest.raises(eq.BadInput, match="Did you mean 'view'"):
        eq.Scores.from_frame(films(), within="veiw", **ROLES)


def test_arrays_have_strata_and_an_adjudicated_label_too():
    frame = films(200, gap=0.1, visits=0.5).assign(truth=lambda rows: rows["y"].where(np.arange(len(rows)) % 3 == 0))
    columns = eq.Scores.from_frame(frame, patient="patient", within="view", audit_label="truth", **ROLES)
    patients, view, truth = frame["patient"], frame["view"].to_numpy(), frame["truth"].to_numpy()
    of_rows = {"patients": patients, "reference": "M", "attribute": "sex", "within": view, "audit_label": truth}
    first, second = (
        eq.audit(rows, threshold=0.5) for rows in (columns, eq.Scores.from_arrays(frame["y"], frame["p"], frame["sex"], **of_rows))
    )
    pd.testing.assert_frame_equal(first.within.drop(columns="within"), second.within.drop(columns="within"))
    pd.testing.assert_frame_equal(first.label_gaps, second.label_gaps)


@pytest.mark.parametrize("role", ["within", "audit_label", "patient"])
def test_a_column_that_is_given_to_the_audit_is_named_where_rows_are_read(role):
    with pytest.raises(eq.BadInput, match=f"from_frame.*{role}="):
        eq.audit(eq.Scores.from_frame(films(), **ROLES), **{role: "view"})
