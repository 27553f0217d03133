"""A label that is sometimes wrong, next to an adjudicated one: gaps by both, and of all rows as the second would show it."""

import json

import numpy as np
import pandas as pd
import pytest

import equipoise as eq
from equipoise.measures import AuditSpec
from equipoise.measures.label_noise import label_gaps

ROLES = {"label": "mined", "score": "p", "group": "sex", "reference": "M"}
TRUE_GAPS = {"eod": -0.10, "fpr_gap": 0.02}


def read_films(rows: int = 2500, adjudicated: int = 600, seed: int = 0) -> pd.DataFrame:
    """Reports that miss the finding more often in women; experts looked mostly at rows that are labelled, or decided positive."""
    rng = np.random.default_rng(seed)
    sex = np.repeat(["F", "M"], rows)
    women, truth = sex == "F", rng.random(2 * rows) < 0.15
    mined = np.where(truth, rng.random(2 * rows) < np.where(women, 0.45, 0.65), rng.random(2 * rows) < 0.03)
    decided = rng.random(2 * rows) < np.where(truth, np.where(women, 0.65, 0.75), np.where(women, 0.12, 0.10))
    wanted = np.where(mined, 6.0, 1.0) * np.where(decided, 2.0, 1.0)
    seen = rng.random(2 * rows) < adjudicated * wanted / wanted.sum()
    frame = pd.DataFrame({"mined": mined.astype(int), "p": decided.astype(float), "sex": sex, "truth": truth.astype(int)})
    return frame.assign(expert=frame["truth"].where(seen), patient=np.arange(2 * rows).astype(str))


def test_the_corrected_interval_covers_the_gap_by_the_true_label():
    covered, error = [], []
    for seed in range(200):
        frame = read_films(seed=seed)
        scores = eq.Scores.from_frame(frame, audit_label="expert", **ROLES)
        found = label_gaps(scores, frame["p"].to_numpy(), scores.attributes, AuditSpec(measures=tuple(TRUE_GAPS)))
        truth = list(TRUE_GAPS.values())
        covered.append((found["corrected_low"] <= truth) & (found["corrected_high"] >= truth))
        error.append(found["corrected"] - truth)
    shares, bias = np.nanmean(covered, axis=0), np.nanmean(error, axis=0)
    assert ((shares > 0.90) & (shares < 0.995)).all(), shares
    assert (np.abs(bias) < 0.02).all(), bias


def test_if_all_rows_are_adjudicated_the_corrected_gap_is_that_of_the_adjudicated_label():
    frame = read_films().assign(expert=lambda rows: rows["truth"])
    found = eq.audit(eq.Scores.from_frame(frame, audit_label="expert", **ROLES), threshold=0.5)
    true = eq.audit(eq.Scores.from_frame(frame, **{**ROLES, "label": "truth"}), threshold=0.5).gaps.set_index("measure").drop("spd")
    by = found.label_gaps.set_index("measure")
    for column in ("adjudicated", "corrected"):
        assert by[column].to_dict() == pytest.approx(true["value"].to_dict())
    assert by["label"].to_dict() == pytest.approx(found.gaps.set_index("measure")["value"].drop("spd").to_dict())
    assert by["label_adjudicated"].to_dict() == pytest.approx(by["label"].to_dict())
    for end in ("low", "high"):
        assert by[f"adjudicated_{end}"].to_dict() == pytest.approx(true[end].to_dict(), abs=1e-6)


def test_groups_show_how_many_positives_carry_the_label_and_how_many_labels_are_confirmed():
    frame = read_films(adjudicated=1500)
    scores = eq.Scores.from_frame(frame, audit_label="expert", patient="patient", **ROLES)
    found, seen = eq.audit(scores, threshold=0.5).label_groups.set_index("group"), frame[frame["expert"].notna()]
    for group, own in seen.groupby("sex"):
        ill, labelled = own[own["expert"] == 1], own[own["mined"] == 1]
        row = found.loc[group]
        assert (row["rows"], row["positives"], row["labelled"]) == (len(own), len(ill), len(labelled))
        assert (row["carried"], row["confirmed"]) == pytest.approx((ill["mined"].mean(), labelled["expert"].mean()))
        assert row["carried_low"] < row["carried"] < row["carried_high"]
    assert found.index[0] == "M"


def test_a_cell_without_an_adjudicated_row_leaves_bounds_that_hold_for_any_truth_there():
    frame = read_films(adjudicated=2000)
    cell = (frame["sex"] == "F") & (frame["mined"] == 0) & (frame["p"] == 1)
    frame.loc[cell, "expert"] = np.nan
    found = eq.audit(eq.Scores.from_frame(frame, audit_label="expert", **ROLES), threshold=0.5).label_gaps.set_index("measure").loc["eod"]
    assert np.isnan(found["corrected"])
    assert "bounds" in found["note"]
    ends = []
    for truth in (0, 1):
        scores = eq.Scores.from_frame(frame.assign(expert=frame["expert"].mask(cell, truth)), audit_label="expert", **ROLES)
        whole = eq.audit(scores, threshold=0.5)
        ends.append(whole.label_gaps.set_index("measure").loc["eod", "corrected"])
    assert (found["corrected_low"], found["corrected_high"]) == pytest.approx(tuple(sorted(ends)))


def test_a_saved_audit_keeps_them(tmp_path):
    audit = eq.audit(eq.Scores.from_frame(read_films(), audit_label="expert", **ROLES), threshold=0.5)
    (tmp_path / "audit.json").write_text(json.dumps(audit.to_dict()))
    saved = eq.read_audit(tmp_path / "audit.json")
    pd.testing.assert_frame_equal(saved.label_gaps, audit.label_gaps)
    pd.testing.assert_frame_equal(saved.label_groups, audit.label_groups, check_dtype=False)


def test_few_adjudicated_patients_are_no_number():
    frame = read_films()
    frame.loc[frame.index[frame["sex"] == "M"][6:], "expert"] = np.nan
    frame.loc[frame.index[frame["sex"] == "M"][:6], "expert"] = 0
    found = eq.audit(eq.Scores.from_frame(frame, audit_label="expert", **ROLES), threshold=0.5).label_gaps.set_index("measure")
    assert found.loc["eod", ["label_adjudicated", "adjudicated", "corrected"]].isna().all()
    assert not np.isnan(found.loc["eod", "label"])


@pytest.mark.parametrize(
    ("expert", "roles", "fact"),
    [
        (np.nan, {"audit_label": "expert"}, "'expert' has no known value"),
        (1, {"audit_label": "expert"}, "'expert' holds only positives"),
        ("yes", {"audit_label": "expert"}, "'expert' must hold 0 and 1"),
        (0, {"audit_label": "experts"}, "Did you mean 'expert'"),
        (0, {"audit_label": ["expert", "truth"]}, "1 label and 2 audit_label"),
        (0, {"audit_label": "mined"}, "more than one role"),
    ],
)
def test_a_wrong_second_label_is_an_error(expert, roles, fact):
    with pytest.raises(eq.BadInput, match=fact):
        eq.Scores.from_frame(read_films(100).assign(expert=expert), **roles, **ROLES)


def test_several_labels_have_one_each():
    frame = pd.concat([read_films(), read_films(seed=1).add_suffix("2")], axis=1)
    roles = {"label": ["mined", "mined2"], "audit_label": ["expert", "expert2"], "group": "sex", "reference": "M"}
    cohort = eq.Cohort.from_frame(frame[["mined", "mined2", "expert", "expert2", "sex", "p"]], **roles)
    assert (cohort.labelled("mined2").adjudicated[:, 0] == frame["expert2"].fillna(-1)).all()
    assert (eq.Scores.of(cohort.labelled("mined2"), frame["p2"]).adjudicated == frame["expert2"].fillna(-1)).all()
