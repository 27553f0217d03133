"""The measures of scores in an audit: every group and all rows, weights, notes, and underdiagnosis."""

import json

import numpy as np
import pandas as pd
import pytest

import equipoise as eq
from equipoise.errors import BadInput
from equipoise.measures import OVERALL_SCORE_MEASURES, SCORE_MEASURES, Threshold
from support.facts import facts, says

COUNTS = ("n", "positives", "negatives", "sampled", "lacking", "few", "note")  # of rows, or about them


def table(rows: int = 600, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    x = rng.normal(-1, 1.3, rows)
    p = 1 / (1 + np.exp(-x))
    return pd.DataFrame(
        {
            "p": p.round(4),
            "y": (rng.random(rows) < p).astype(int),
            "sex": rng.choice(["F", "M"], rows),
            "site": rng.choice(["north", "south", "west"], rows),
            "patient": [f"p{k // 2}" for k in range(rows)],
            "w": rng.integers(1, 4, rows),
        }
    )


def scores(frame: pd.DataFrame, **more: object) -> eq.Scores:
    return eq.Scores.from_frame(frame, label="y", score="p", group=["sex", "site"], reference=["M", "north"], **more)


def test_every_group_and_all_rows_have_every_measure() -> None:
    found = eq.audit(scores(table(), patient="patient"), specificity=0.8, sensitivity=0.85, thresholds="0.1:0.3:0.1")
    for name in SCORE_MEASURES:
        assert (found.groups[f"{name}_low"] <= found.groups[name]).all()
        assert (found.groups[name] <= found.groups[f"{name}_high"]).all()
    assert (found.groups["calibration_error_expected_low"] < found.groups["calibration_error_expected_high"]).all()
    for name in OVERALL_SCORE_MEASURES:
        assert found[name].low < found[name].value < found[name].high
    assert list(found.groups.columns[-2:]) == ["few", "note"]
    assert sorted(found.curves["attribute"].unique()) == ["all", "sex", "sex & site", "site"]
    assert sorted(found.curves["threshold"].unique()) == [0.1, 0.2, 0.3]
    told = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert told["calibration_slope"]["value"] == found["calibration_slope"].value
    assert told["settings"]["specificity"] == 0.8
    assert len(told["curves"]) == len(found.curves)
    assert told["curves"][0].keys() == dict.fromkeys(found.curves.columns).keys()
    assert told["groups"][0]["brier"] == found.groups["brier"].iloc[0]


def test_measures_of_scores_can_be_asked_for_alone() -> None:
    found = eq.audit(scores(table()), measures=["eod", "calibration_slope"])
    assert list(found.estimates) == ["eod", "calibration_slope"]


def test_integer_weights_give_the_estimates_of_replicated_rows() -> None:
    frame = table()
    copies = frame.loc[np.repeat(frame.index, frame["w"])].reset_index(drop=True)
    weighted, replicated = eq.audit(scores(frame, weight="w"), threshold=0.4), eq.audit(scores(copies), threshold=0.4)
    assert weighted.weighted
    assert not replicated.weighted
    plain = [c for c in weighted.groups if c not in COUNTS and not c.endswith(("_low", "_high"))]
    pd.testing.assert_frame_equal(weighted.groups[plain], replicated.groups[plain], atol=1e-7)
    for found in (weighted, replicated):
        assert found.groups["sampled"].tolist() == found.groups["n"].tolist()  # all rows of each group, and no copies for weights
    assert weighted.gaps["value"].to_numpy() == pytest.approx(replicated.gaps["value"].to_numpy(), abs=1e-9)
    for name, estimate in weighted.estimates.items():
        assert estimate.value == pytest.approx(replicated[name].value, abs=1e-7), name
        assert estimate.high - estimate.low > 0.95 * (replicated[name].high - replicated[name].low), name  # copies seem to be more
    kept = ["net_benefit", "treat_all"]
    assert weighted.curves[kept].to_numpy() == pytest.approx(replicated.curves[kept].to_numpy(), abs=1e-9)


def test_weights_of_one_change_nothing() -> None:
    frame = table(300).assign(w=1)
    without, ones = eq.audit(scores(frame, patient="patient")), eq.audit(scores(frame, patient="patient", weight="w"))
    pd.testing.assert_frame_equal(ones.groups, without.groups, rtol=1e-12)
    pd.testing.assert_frame_equal(ones.gaps, without.gaps, rtol=1e-12)
    pd.testing.assert_frame_equal(ones.curves, without.curves, rtol=1e-12)
    assert str(ones) == str(without)


def test_unequal_weights_lower_the_effective_sample_size() -> None:
    frame = table().assign(w=lambda f: np.where(np.arange(len(f)) % 20 == 0, 40.0, 1.0))
    plain, uneven = eq.audit(scores(frame)), eq.audit(scores(frame, weight="w"))
    for name in ("tpr", "fpr", "auroc", "brier", "calibration_slope", "sensitivity_at_specificity"):
        wider = (uneven.groups[f"{name}_high"] - uneven.groups[f"{name}_low"]) / (
            plain.groups[f"{name}_high"] - plain.groups[f"{name}_low"]
        )
        assert wider.median() > 1.5, name
    gap = [a.gaps[a.gaps["measure"] == "spd"] for a in (plain, uneven)]
    assert ((gap[1]["high"] - gap[1]["low"]).to_numpy() > 1.5 * (gap[0]["high"] - gap[0]["low"]).to_numpy()).all()


def test_what_cannot_be_estimated_is_said_and_few_patients_are_marked() -> None:
    frame = table(200)
    frame = pd.concat([frame, table(60, 1).assign(sex="X", site="north"), table(40, 2).assign(sex="Y", y=0)], ignore_index=True)
    one = eq.Scores.from_frame(frame, label="y", score="p", group="sex", reference="M")
    groups = eq.audit(one).groups
    assert says(groups.loc["Y", "note"], "calibration_slope", "brier") is False  # the Brier score needs no positives
    assert "calibration_slope" in groups.loc["Y", "note"]
    assert np.isnan(groups.loc["Y", "calibration_slope"])
    assert "calibration_slope" in groups.loc["X", "few"].split(", ")
    assert groups.loc["M", "few"] == "" or "brier" not in groups.loc["M", "few"]


@pytest.mark.parametrize(
    ("option", "value"), [("specificity", 1.0), ("sensitivity", 0.0), ("thresholds", "0.5"), ("thresholds", [0.2, 1.0])]
)
def test_options_out_of_range_are_refused(option: str, value: object) -> None:
    with pytest.raises(BadInput, match=option.removesuffix("s")):
        eq.audit(scores(table(100)), **{option: value})


def two_labels(rows: int = 400) -> dict[str, eq.Scores]:
    rng = np.random.default_rng(5)
    sex = rng.choice(["F", "M"], rows)
    found = {}
    for name, mean in (("a", -1.0), ("b", -2.0)):
        x = rng.normal(mean, 1.5, rows)
        y = rng.random(rows) < 1 / (1 + np.exp(-x))
        found[name] = eq.Scores.from_arrays(y.astype(int), 1 / (1 + np.exp(-x)), sex, reference="M", attribute="sex")
    return found


def test_underdiagnosis_is_the_share_with_a_finding_that_no_label_flags() -> None:
    labels = two_labels()
    found = eq.audit(labels, threshold=0.3, no_finding="none of the labels")
    clear = found.no_finding
    assert clear is not None
    a, b = labels["a"], labels["b"]
    for row in clear.underdiagnosis.itertuples():
        own = (a.groups == row.group) & ((a.y == 1) | (b.y == 1))
        missed = (a.score < 0.3) & (b.score < 0.3)
        assert row.with_finding == own.sum()
        assert row.rate == pytest.approx(missed[own].mean())
        assert row.low < row.rate < row.high
    women = clear.underdiagnosis.set_index("group").loc["F"]
    men = clear.underdiagnosis.set_index("group").loc["M"]
    assert women["gap"] == pytest.approx(women["rate"] - men["rate"])
    assert men["reference"]
    assert clear.comparisons == 1
    assert "brier" not in clear.groups  # a decision has no calibration
    told = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert told["no_finding"]["underdiagnosis"][0]["rate"] == clear.underdiagnosis["rate"].iloc[0]
    assert set(told["labels"]) == {"a", "b"}


def test_a_label_may_mean_no_finding() -> None:
    labels = two_labels()
    found = eq.audit(labels, threshold=0.3, no_finding="b")
    assert found.no_finding is found.labels["b"]
    assert found.no_finding.underdiagnosis["rate"].tolist() == found["b"].groups["fpr"].tolist()
    with pytest.raises(BadInput, match=facts("no finding", "c")):
        eq.audit(labels, no_finding="c")
    with pytest.raises(BadInput, match="no_finding"):
        eq.audit(labels["a"], no_finding="none of the labels")
    with pytest.raises(BadInput, match="several"):
        eq.audit({"a": labels["a"]}, no_finding="none of the labels")


def test_no_finding_is_derived_on_rows_with_all_labels_known() -> None:
    labels = two_labels()
    a, b = labels["a"], labels["b"]
    rows = np.arange(0, 400, 2)
    some = eq.Scores(b.y[rows], b.score[rows], tuple(x.take(rows) for x in b.attributes), None, b.ids[rows])
    found = eq.audit({"a": a, "b": some}, threshold=0.3, no_finding="none of the labels")
    assert found.no_finding is not None
    assert found.no_finding.rows == 200
    assert isinstance(found["a"].rule, Threshold)
