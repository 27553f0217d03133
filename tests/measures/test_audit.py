"""The audit: frames, JSON, thresholds and their origin, insufficient data, missing attributes, intersections."""

import json

import numpy as np
import pandas as pd
import pytest
import sklearn.metrics as sk
import torch
from torch import nn

from equipoise.comparison import audit
from equipoise.data import Cohort, Scores
from equipoise.errors import BadInput, EmptyCell, UnknownName
from equipoise.measures import GAPS, GROUP_MEASURES, Threshold, choose_rule, p_values
from equipoise.measures.measure_table import PERFORMANCE
from support.facts import facts, says, suggests


def _frame(n: int = 600, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({"y": rng.integers(0, 2, n), "sex": rng.choice(["F", "M"], n), "race": rng.choice(["a", "b", "c"], n)})
    lift = 0.2 * frame.y - 0.1 * (frame.sex == "F")
    return frame.assign(p=np.clip(rng.normal(0.5 + lift, 0.2), 0, 1))


def _scores(frame: pd.DataFrame, **names) -> Scores:
    return Scores.from_frame(frame, **({"label": "y", "score": "p", "group": "sex", "reference": "M"} | names))


def test_the_frame_of_groups_equals_scikit_learn():
    frame = _frame()
    found = audit(_scores(frame), threshold=0.5)
    assert list(found.groups.index) == ["M", "F"]
    for sex, rows in frame.groupby("sex"):
        decided = rows.p >= 0.5
        tn, fp, fn, tp = sk.confusion_matrix(rows.y, decided).ravel()
        expected = {
            "n": len(rows),
            "positives": rows.y.sum(),
            "selection_rate": decided.mean(),
            "tpr": tp / (tp + fn),
            "fpr": fp / (fp + tn),
            "tnr": tn / (fp + tn),
            "fnr": fn / (tp + fn),
            "ppv": tp / (tp + fp),
            "npv": tn / (tn + fn),
            "auroc": sk.roc_auc_score(rows.y, rows.p),
        }
        bins = np.minimum((rows.p * 10).astype(int), 9)
        expected["calibration_error"] = sum(abs(part.p.mean() - part.y.mean()) * len(part) for _, part in rows.groupby(bins)) / len(rows)
        for name, value in expected.items():
            assert found.groups.loc[sex, name] == pytest.approx(value, abs=1e-12), name
        for name in GROUP_MEASURES:
            row = found.groups.loc[sex]
            assert row[f"{name}_low"] <= row[name] <= row[f"{name}_high"]
            assert row[f"{name}_low"] < row[f"{name}_high"]


def test_json_holds_value_low_high_under_each_name_and_survives_a_round_trip():
    found = audit(_scores(_frame()), threshold=0.5)
    plain = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert plain["schema_version"] == 7
    for name in (*GAPS, *PERFORMANCE):
        assert plain[name]["low"] <= plain[name]["value"] <= plain[name]["high"]
        assert plain[name]["value"] == found[name].value
    assert plain["eod"]["direction"] == "group minus reference"
    assert plain["groups"][1]["group"] == "F"
    assert plain["threshold"] == 0.5


def test_the_gap_is_other_minus_reference():
    found = audit(_scores(_frame()), threshold=0.5)
    swapped = audit(_scores(_frame(), reference="F"), threshold=0.5)
    assert found["eod"].value < 0
    assert found["eod"].value == pytest.approx(-swapped["eod"].value, abs=1e-15)
    assert (found["eod"].group, found["eod"].reference) == ("F", "M")


def test_the_threshold_and_where_it_came_from():
    train, valid = _scores(_frame(seed=1)), _scores(_frame(seed=2))
    default, given = (audit(train, threshold=value).rule for value in (None, 0.3))
    assert given == Threshold(0.3, "given")
    assert default.value == 0.5
    assert says(default.origin, "default")
    chosen = audit(train, valid=valid).rule
    assert chosen == choose_rule(valid=valid)
    assert says(chosen.describe(), "balanced accuracy", 600)
    with pytest.raises(BadInput, match=facts("threshold", "validation")):
        audit(train, threshold=0.5, valid=valid)


def test_too_few_patients_are_insufficient_data_never_zero():
    frame = pd.concat([_frame(), pd.DataFrame({"y": [0, 0, 1], "sex": "X", "race": "a", "p": [0.2, 0.7, 0.8]})])
    found = audit(_scores(frame), threshold=0.5)
    row = found.groups.loc["X"]
    assert np.isnan(row["tpr"])
    assert row["note"]
    gaps = found.gaps.set_index(["measure", "group"])
    assert np.isnan(gaps.loc[("eod", "X"), "value"])
    assert "'X'" in gaps.loc[("eod", "X"), "note"]
    assert found["eod"].group == "F"
    assert says(found["eod"].note, "1 of 2")
    assert found.to_dict()["groups"][2]["tpr"] is None


def test_ten_images_of_one_patient_are_one_patient():
    frame = pd.concat(
        [_frame().assign(pid=lambda d: np.arange(len(d))), pd.DataFrame({"y": [0, 1] * 10, "sex": "X", "race": "a", "p": 0.4, "pid": -1})]
    )
    found = audit(_scores(frame, patient="pid"), threshold=0.5)
    assert np.isnan(found.groups.loc["X", "selection_rate"])
    assert found.patients == 601


def test_a_measure_that_is_asked_for_needs_its_cells():
    frame = _frame()
    frame.loc[frame.sex == "F", "y"] = 0
    with pytest.raises(EmptyCell, match=facts("F")):
        audit(_scores(frame), measures=["eod"], threshold=0.5)
    found = audit(_scores(frame), threshold=0.5)
    assert np.isnan(found["eod"].value)
    assert says(str(found["eod"]), found["eod"].note)
    assert list(audit(_scores(frame), measures=["spd"], threshold=0.5).estimates) == ["spd"]
    with pytest.raises(BadInput, match=suggests("eod")):
        audit(_scores(frame), measures=["eodd"])
    with pytest.raises(UnknownName, match="measure"):
        found["nonsense"]


def test_rows_without_a_group_count_for_performance_only():
    frame = _frame()
    holed = frame.assign(sex=frame.sex.where(np.arange(len(frame)) % 10 > 0))
    found = audit(_scores(holed), threshold=0.5)
    assert found.missing == {"sex": 0.1}
    assert found.groups["n"].sum() == 540
    assert found["accuracy"].value == pytest.approx(sk.accuracy_score(frame.y, frame.p >= 0.5))
    rest = audit(_scores(frame[np.arange(len(frame)) % 10 > 0]), threshold=0.5)
    assert found["eod"].value == pytest.approx(rest["eod"].value, abs=1e-15)


def test_several_attributes_and_their_intersections():
    frame = _frame(2000)
    found = audit(_scores(frame, group=["sex", "race"], reference=["M", "a"]), threshold=0.5)
    assert list(found.groups["attribute"].unique()) == ["sex", "race", "sex & race"]
    assert len(found.groups) == 2 + 3 + 6
    both = frame[(frame.sex == "F") & (frame.race == "b")]
    assert found.groups.loc["F & b", "n"] == len(both)
    row = found.gaps.set_index(["measure", "group"]).loc[("spd", "F & b")]
    base = frame[(frame.sex == "M") & (frame.race == "a")]
    assert row["value"] == pytest.approx((both.p >= 0.5).mean() - (base.p >= 0.5).mean(), abs=1e-12)
    assert abs(found["spd"].value) == found.gaps.query("measure == 'spd'")["value"].abs().max()


def test_the_smallest_detectable_gap_shrinks_with_the_square_root_of_the_patients():
    small, large = (audit(_scores(_frame(n)), threshold=0.5)["eod"].detectable for n in (500, 8000))
    assert small / large == pytest.approx(4, rel=0.25)


def test_a_network_is_audited_on_a_cohort_and_left_as_it_was():
    rng = np.random.default_rng(0)
    cohort = Cohort.from_arrays(
        torch.from_numpy(rng.normal(size=(200, 3)).astype(np.float32)), rng.integers(0, 2, 200), rng.choice(["F", "M"], 200)
    )
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 1)).train()
    model[1].eval()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    found = audit(model, cohort)
    assert found["auroc"].value == audit(model, cohort)["auroc"].value  # eval mode: no dropout
    assert [m.training for m in model] == [True, False, True, True]
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    with pytest.raises(BadInput, match=facts("(200,)", "(200, 1)", "(200, 2)")):
        audit(nn.Linear(3, 2), cohort)
    with pytest.raises(BadInput, match="cohort"):
        audit(model)
    with pytest.raises(BadInput, match=facts("str")):
        audit("scores.csv")


def test_every_empty_cell_is_named_at_once_and_rows_are_not_called_patients():
    frame = _frame()
    frame.loc[frame.sex == "F", "y"] = 0
    frame.loc[frame.sex == "M", "y"] = 1
    with pytest.raises(EmptyCell) as caught:
        audit(_scores(frame), measures=["eod", "fpr_gap"], threshold=0.5)
    assert len(caught.value.problems) == 2
    notes = audit(_scores(frame), threshold=0.5).gaps.set_index("measure")["note"]
    assert says(notes["eod"], 5, "positives", "'F'")
    assert "patients" not in notes["eod"]
    grouped = audit(_scores(frame.assign(pid=range(len(frame))), patient="pid"), threshold=0.5).gaps.set_index("measure")["note"]
    assert says(grouped["eod"], 5, "patients", "positives", "'F'")


def test_each_gap_has_its_p_value_and_the_adjusted_one():
    frame = _frame(2000)
    found = audit(_scores(frame), threshold=0.5)
    decided, y, codes = (frame["p"] >= 0.5).astype(float), frame["y"], (frame["sex"] == "F").astype(int)
    permuted = p_values(decided, y, codes, ("M", "F"), None, list(found.gaps["measure"]))
    saved = {each["measure"]: each for each in found.to_dict()["gaps"]}
    assert found.comparisons == 2  # eod and fpr_gap; tnr_gap and fnr_gap mirror them, the others are not tested
    for row in found.gaps.itertuples():
        assert saved[row.measure]["p_permutation"] == permuted[row.measure][0] == pytest.approx(row.p_value, abs=0.03)
        if row.measure in ("spd", "aod"):
            assert saved[row.measure]["p_adjusted"] is None
            continue
        told = found[row.measure].to_dict()
        assert (told["p_value"], told["p_adjusted"], told["clear"]) == (row.p_value, row.p_adjusted, row.clear)
        assert row.clear == (row.p_adjusted <= 0.05)
    own = found.gaps.set_index("measure").loc[["eod", "fpr_gap"]]
    assert own["p_adjusted"].between(own["p_value"], np.minimum(2.0001 * own["p_value"], 1.0)).all()
    assert found.findings == own["clear"].sum()
    assert "p_value" not in found["accuracy"].to_dict()


def test_a_group_with_too_few_patients_is_no_comparison():
    frame = _frame(2000)
    few = pd.DataFrame({"y": [1, 0, 1], "p": [0.9, 0.2, 0.1], "sex": "X"})
    two = audit(_scores(frame), threshold=0.5)
    three = audit(_scores(pd.concat([frame, few.reindex(columns=frame.columns)], ignore_index=True)), threshold=0.5)
    assert three.comparisons == two.comparisons
    assert three["eod"].p_adjusted == two["eod"].p_adjusted
    short = three.gaps[three.gaps["group"] == "X"]
    assert short[["value", "p_value", "p_adjusted"]].isna().all(axis=None)
    assert not short["clear"].any()


def test_draws_that_lack_a_cell_give_no_warning() -> None:
    """Of one patient with all positives of a group few draws have a gap: there is then no spread of it, and nothing is warned of."""
    frame = pd.DataFrame({"y": [1, 0, 1, 0], "p": [0.9, 0.1, 0.8, 0.3], "sex": ["F", "F", "M", "M"], "pid": ["a", "b", "c", "d"]})
    scores = Scores.from_frame(frame, label="y", score="p", group="sex", reference="M", patient="pid")
    for seed in range(3):
        found = audit(scores, seed=seed, min_patients=1)
        assert np.isnan(found.gaps["detectable"]).any() or (found.gaps["detectable"] >= 0).all()


def test_a_group_with_certain_scores_and_one_other_label_has_no_calibration_intercept():
    rows = {"y": [0, 0, 1, 0, 0, 1, 1, 0], "p": [0.5, 0.18, 0.71, 0.78, 0.23, 0.28, 0.99, 0.0], "sex": list("FFFFFFMM")}
    found = audit(Scores.from_frame(pd.DataFrame(rows), label="y", score="p", group="sex"), min_patients=1)
    json.dumps(found.to_dict(), allow_nan=False)
    men = next(group for group in found.to_dict()["groups"] if group["group"] == "M")
    assert men["calibration_intercept"] is None
