"""Ratios, ranges, worst groups and differences in measures of scores: fairlearn's and scikit-learn's values, and intervals that cover."""

import json

import numpy as np
import pandas as pd
import pytest
from fairlearn import metrics
from sklearn.metrics import brier_score_loss, precision_score, roc_auc_score

import equipoise as eq
from equipoise.measures import SUMMARIES, AuditSpec, measure_of, moments_of
from equipoise.measures.summaries import summaries_of

CUT = 0.4
WORSE_IF_HIGHER = ("fpr", "fnr", "brier")


def rows_of(n: int = 2000, seed: int = 0, lower: float = 0.5) -> pd.DataFrame:
    """Three groups, whose scores differ."""
    rng = np.random.default_rng(seed)
    group, y = rng.choice(["a", "b", "c"], n, p=[0.5, 0.3, 0.2]), (rng.random(n) < 0.3).astype(int)
    score = 1 / (1 + np.exp(-(rng.normal(size=n) + 1.5 * y - 1 - lower * (group == "b"))))
    return pd.DataFrame({"y": y, "p": score, "g": group, "patient": (np.arange(n) // 2).astype(str)})


def audit_of(frame: pd.DataFrame, *measures: str, **options: object) -> eq.Audit:
    scores = eq.Scores.from_frame(frame, label="y", score="p", group="g", reference="a", **options)
    return eq.audit(scores, threshold=CUT, measures=measures or tuple(SUMMARIES))


@pytest.fixture(scope="module")
def found() -> eq.Audit:
    return audit_of(rows_of())


@pytest.mark.parametrize(
    ("rate", "function"),
    [
        ("selection_rate", metrics.selection_rate),
        ("tpr", metrics.true_positive_rate),
        ("fpr", metrics.false_positive_rate),
        ("tnr", metrics.true_negative_rate),
        ("fnr", metrics.false_negative_rate),
        ("ppv", precision_score),
    ],
)
def test_rates_are_compared_as_fairlearn_does(found, rate, function):
    frame = rows_of()
    theirs = metrics.MetricFrame(metrics=function, y_true=frame["y"], y_pred=frame["p"] >= CUT, sensitive_features=frame["g"])
    assert found[f"{rate}_min_ratio"].value == pytest.approx(theirs.ratio())
    assert found[f"{rate}_range"].value == pytest.approx(theirs.difference())
    worst = theirs.group_max() if rate in WORSE_IF_HIGHER else theirs.group_min()
    assert found[f"{rate}_worst"].value == pytest.approx(worst)
    assert found[f"{rate}_worst"].group == theirs.by_group.index[(theirs.by_group == worst).argmax()]
    ratios = found.summaries[found.summaries["measure"] == f"{rate}_ratio"].set_index("group")["value"]
    assert ratios.to_dict() == pytest.approx((theirs.by_group / theirs.by_group["a"]).drop("a").to_dict())


def test_named_functions_of_fairlearn(found):
    frame = rows_of()
    of = {"y_true": frame["y"], "y_pred": frame["p"] >= CUT, "sensitive_features": frame["g"]}
    assert found["selection_rate_min_ratio"].value == pytest.approx(metrics.demographic_parity_ratio(**of))
    assert found["selection_rate_range"].value == pytest.approx(metrics.demographic_parity_difference(**of))
    assert max(found[f"{rate}_range"].value for rate in ("tpr", "fpr")) == pytest.approx(metrics.equalized_odds_difference(**of))
    assert min(found[f"{rate}_min_ratio"].value for rate in ("tpr", "fpr")) == pytest.approx(metrics.equalized_odds_ratio(**of))


def test_scores_are_compared_as_scikit_learn_measures_them(found):
    by_group = dict(iter(rows_of().groupby("g")))
    functions = {"auroc": roc_auc_score, "brier": brier_score_loss, "calibration": lambda y, p: p.mean() - y.mean()}
    for short, function in functions.items():
        value = {group: function(own["y"], own["p"]) for group, own in by_group.items()}
        gaps = found.summaries[found.summaries["measure"] == f"{short}_gap"].set_index("group")["value"]
        assert gaps.to_dict() == pytest.approx({group: value[group] - value["a"] for group in ("b", "c")})
        assert found[f"{short}_range"].value == pytest.approx(max(value.values()) - min(value.values()))
    assert found["auroc_worst"].value == pytest.approx(min(roc_auc_score(own["y"], own["p"]) for own in by_group.values()))
    assert found["brier_worst"].value == pytest.approx(max(brier_score_loss(own["y"], own["p"]) for own in by_group.values()))


@pytest.mark.parametrize("patient", [None, "patient"])
@pytest.mark.parametrize(("rate", "gap"), [("tpr", "eod"), ("selection_rate", "spd"), ("fnr", "fnr_gap"), ("ppv", "ppv_gap")])
@pytest.mark.parametrize("seed", range(4))
def test_a_ratio_is_the_same_comparison_as_its_difference(rate, gap, patient, seed):
    frame = rows_of(400, seed, lower=0.25)
    audit = audit_of(frame, f"{rate}_ratio", gap, **({} if patient is None else {"patient": patient}))
    difference, ratios = audit.gaps.set_index("group"), audit.summaries.set_index("group")
    for group in ("b", "c"):
        ratio, own = ratios.loc[group], difference.loc[group]
        assert ratio["p_value"] == pytest.approx(own["p_value"], abs=1e-9)
        assert (ratio["low"] > 1 or ratio["high"] < 1) == (own["low"] > 0 or own["high"] < 0)
        assert ratio["low"] < ratio["value"] < ratio["high"]


def test_of_two_groups_a_range_excludes_zero_if_the_difference_does():
    for seed in range(12):
        frame = rows_of(500, seed, lower=0.3)
        audit = audit_of(frame[frame["g"] != "c"], "eod", "tpr_range", "tpr_min_ratio")
        clear = audit["eod"].low > 0 or audit["eod"].high < 0
        assert (audit["tpr_range"].low > 0, audit["tpr_min_ratio"].high < 1) == (clear, clear)
        assert audit["tpr_range"].value == pytest.approx(abs(audit["eod"].value))


def test_intervals_cover_and_a_range_of_nothing_is_rarely_above_zero():
    rng, groups, draws = np.random.default_rng(3), 4, 120
    sizes = np.array([300, 120, 80, 60])
    names = ["tpr_worst", "tpr_range", "tpr_min_ratio", "tpr_ratio"]
    for rates in ([0.8] * 4, [0.8, 0.6, 0.75, 0.85], [0.15, 0.1, 0.1, 0.1]):
        true = {"tpr_worst": min(rates), "tpr_range": max(rates) - min(rates), "tpr_min_ratio": min(rates) / max(rates)}
        covered: dict[str, list[bool]] = {name: [] for name in names}
        for _ in range(draws):
            code = np.repeat(np.arange(groups), sizes)
            f = (rng.random(len(code)) < np.asarray(rates)[code]).astype(float)
            sums = moments_of(f, np.ones(len(code), int), code, groups, np.arange(len(code)))
            frame = summaries_of(names, "g", list("abcd"), sums, {}, AuditSpec())
            for row in frame.itertuples():
                truth = true.get(row.measure, rates["abcd".index(row.group)] / rates[0])
                covered[row.measure].append(row.low - 1e-12 <= truth <= row.high + 1e-12)
        shares = {name: np.mean(own) for name, own in covered.items()}
        assert min(shares.values()) > 0.91, (rates, shares)


def test_a_saved_audit_and_conditions_have_them(found, tmp_path):
    path = tmp_path / "audit.json"
    path.write_text(json.dumps(found.to_dict()))
    again = eq.read_audit(path)
    pd.testing.assert_frame_equal(again.summaries, found.summaries)
    assert again["tpr_worst"].to_dict() == found["tpr_worst"].to_dict()
    assert str(again["tpr_ratio"]).endswith(f"({again['tpr_ratio'].group} divided by a)")


def test_a_group_with_too_few_patients_is_left_out_and_named():
    frame = rows_of(600)
    frame.loc[(frame["g"] == "c") & (frame["y"] == 1), "y"] = 0
    audit = audit_of(frame, "tpr_worst", "tpr_ratio", "tpr_range", "auroc_gap")
    assert audit["tpr_worst"].note == "1 of 3 groups have insufficient data"
    of_c = audit.summaries[audit.summaries["group"] == "c"].set_index("measure")
    assert of_c["value"].isna().all()
    assert of_c["note"].str.contains("fewer than 5 patients in 'c'").all()


def test_a_rate_of_zero_has_no_ratio():
    frame = rows_of(400)
    frame.loc[frame["g"] == "a", "p"] = 0.0
    audit = audit_of(frame, "selection_rate_ratio", "selection_rate_min_ratio")
    assert audit.summaries.query("measure == 'selection_rate_ratio'")["note"].str.contains("the rate of 'a' is 0").all()
    assert audit["selection_rate_min_ratio"].value == 0.0
    assert audit["selection_rate_min_ratio"].high > 0.0
    nobody = audit_of(frame.assign(p=0.0), "selection_rate_min_ratio")
    assert np.isnan(nobody["selection_rate_min_ratio"].value)
    assert "0 in all groups" in nobody["selection_rate_min_ratio"].note


@pytest.mark.parametrize("name", ["tpr_worst", "selection_rate_ratio", "auroc_gap", "fpr_range"])
def test_no_summary_is_a_goal_or_a_primary_measure_and_the_error_names_what_is(name):
    for call in (lambda: eq.Goal(name), lambda: AuditSpec(primary=name), lambda: measure_of(name)):
        with pytest.raises(eq.BadInput, match=f"{name} is reported by audits.*Possible are spd, eod"):
            call()


def test_models_and_sites_are_compared_by_them():
    frame = rows_of(1500)
    names = ("tpr_worst", "tpr_ratio", "selection_rate_range", "auroc_gap")
    columns = {"label": "y", "score": "p", "group": "g", "reference": "a", "patient": "patient"}
    old, new = (eq.Scores.from_frame(rows, **columns) for rows in (frame, frame.assign(p=np.minimum(frame["p"] * 1.2, 1.0))))
    site = eq.Scores.from_frame(rows_of(1200, seed=1).assign(patient=lambda rows: "x" + rows["patient"]), **columns)
    first, second, other = (eq.audit(each, threshold=CUT, measures=names) for each in (old, new, site))
    compared = {
        second: eq.compare({"old": old, "new": new}, threshold=CUT, measures=names),
        other: eq.compare({"here": first, "there": other}),
    }
    for subject, comparison in compared.items():
        changes = comparison.changes.summaries
        assert set(changes["measure"]) == set(names)
        for row in changes.itertuples():
            sides = []
            for audit in (first, subject):
                own = audit.summaries[audit.summaries["measure"] == row.measure]
                sides.append(float((own[own["group"] == row.group] if row.group else own)["value"].iloc[0]))
            assert [row.first, row.second] == pytest.approx(sides)
            assert row.value == pytest.approx(sides[1] - sides[0])
            assert row.low < row.value < row.high
        assert len(comparison.changes.to_dict()["summaries"]) == len(changes)
    assert abs(compared[second].changes.summaries.set_index("measure").loc["selection_rate_range", "value"]) > 0


def test_ratios_are_followed_over_time_and_what_is_not_says_so(tmp_path):
    audits = {f"2026-0{month}": audit_of(rows_of(1500, month, lower=0.8), "eod") for month in range(1, 7)}
    followed = eq.history(audits).monitor(["eod", "tpr_ratio"])
    rows = {measure: own.set_index("group") for measure, own in followed.gaps.groupby("measure")}
    for group in ("b", "c"):
        ratio, gap = rows["tpr_ratio"].loc[group], rows["eod"].loc[group]
        assert ratio["low"] < ratio["value"] < ratio["high"]
        assert (ratio["value"] < 1) == (gap["value"] < 0)
    assert bool(rows["tpr_ratio"].loc["b", "shown"])
    assert rows["tpr_ratio"].loc["b", "high"] < 1
    json.dumps(followed.to_dict(), allow_nan=False)
    page = followed.report(tmp_path / "course.html").read_text()
    assert "Ratio of sensitivity" in page
    assert "divided by a" in str(followed)
    with pytest.raises(eq.BadInput, match=r"tpr_worst is reported by audits.*the difference in the same rate is eod"):
        eq.history(audits).monitor(["tpr_worst"])
