"""Comparisons of scores and audits: paired for the same patients, by sums for different patients, an error for a mixture."""

import json

import numpy as np
import pandas as pd
import pytest

import equipoise as eq
from equipoise.measures import AuditSpec, PairedDecisions, read_audit
from support.facts import facts

NO_CURVES = {"thresholds": "0.2:0.3", "measures": ["eod", "spd"]}


def frame(seed: int, rows: int = 300, shift: float = 0.0, tag: str = "a") -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    found = pd.DataFrame({"y": rng.integers(0, 2, rows), "sex": rng.choice(["F", "M"], rows), "id": [f"{tag}{k}" for k in range(rows)]})
    found["p"] = np.clip(0.3 + 0.4 * found.y - shift * ((found.sex == "F") & (found.y == 1)) + rng.normal(0, 0.2, rows), 0, 1)
    return found.assign(q=lambda f: np.clip(f.p - 0.1 * (f.sex == "F"), 0, 1))


def scores(table: pd.DataFrame, score: str = "p", **roles: str) -> eq.Scores:
    return eq.Scores.from_frame(table, label="y", score=score, group="sex", reference="M", **{"id": "id"} | roles)


def row(found: "pd.DataFrame", **where: str) -> "pd.Series[float]":
    chosen = found[np.logical_and.reduce([found[name] == value for name, value in where.items()])]
    assert len(chosen) == 1
    return chosen.iloc[0]


def test_two_models_on_the_same_patients_are_matched_by_id_in_any_order():
    table = frame(0)
    one, other = scores(table), scores(table.sample(frac=1, random_state=1), "q")
    found = eq.compare({"old": one, "new": other})
    assert found.changes.paired
    gap = row(found.changes.gaps, measure="eod")
    expected = [eq.audit(subject, measures=["eod"], thresholds="0.2:0.3")["eod"].value for subject in (one, other)]
    assert [gap["first"], gap["second"]] == pytest.approx(expected)
    both = PairedDecisions(one, ((table.p >= 0.5).to_numpy(float), (table.q >= 0.5).to_numpy(float)), AuditSpec()).gap_change("eod", "F")
    assert (gap["value"], gap["low"], gap["high"]) == pytest.approx((both.value, both.low, both.high))
    changed = (table.p >= 0.5) != (table.q >= 0.5)
    assert found.changes.affected["new"][0].counts[-1].changed == changed.sum()
    assert gap["clear"]
    assert row(found.changes.performance, measure="auroc")["value"] < 0


def test_a_paired_interval_is_narrower_than_that_of_different_patients():
    table, elsewhere = frame(0), frame(1, tag="b")
    same = eq.compare({"old": scores(table), "new": scores(table, "q")}).changes.gaps
    other = eq.compare({"old": scores(table), "new": scores(elsewhere, "q")}).changes.gaps
    widths = [float((row(f, measure="eod")[["low", "high"]]).diff().iloc[1]) for f in (same, other)]
    assert widths[0] < 0.6 * widths[1]


def test_two_sites_differ_by_the_gap_that_one_of_them_has():
    found = eq.compare({"a": scores(frame(0, 3000)), "b": scores(frame(1, 3000, shift=0.2, tag="b"))})
    gap = row(found.changes.gaps, measure="eod")
    assert not found.changes.paired
    assert gap["clear"]
    assert gap["simultaneous_high"] < 0
    assert gap["simultaneous_low"] < gap["low"] < gap["value"] < gap["high"] < gap["simultaneous_high"]
    assert list(found.changes.rates[found.changes.rates["rate"] == "tpr"].set_index("group")["clear"][["F", "M"]]) == [True, False]
    assert found.changes.affected == {}


def test_the_p_value_is_one_minus_the_level_at_which_the_interval_ends_at_zero():
    table = eq.compare({"a": scores(frame(0)), "b": scores(frame(1, tag="b"))}).changes.gaps
    p = float(row(table, measure="spd")["p_value"])
    at = eq.compare({"a": scores(frame(0)), "b": scores(frame(1, tag="b"))}, level=1 - p).changes.gaps
    assert min(abs(row(at, measure="spd")[["low", "high"]])) < 1e-3


def test_audits_and_their_json_give_the_same_comparison(tmp_path):
    audits = {
        name: eq.audit(scores(frame(k, 200, tag=name)), measures=["eod", "accuracy"], thresholds="0.2:0.3") for k, name in enumerate("ab")
    }
    written = {}
    for name, audit in audits.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(audit.to_dict()))
        written[name] = read_audit(tmp_path / f"{name}.json")
    pd.testing.assert_frame_equal(eq.compare(audits).changes.gaps, eq.compare(written).changes.gaps)
    pd.testing.assert_frame_equal(eq.compare(audits).changes.performance, eq.compare(written).changes.performance)


def test_the_comparison_is_json_and_text():
    found = eq.compare({"a": scores(frame(0)), "b": scores(frame(1, tag="b"))})
    plain = json.loads(json.dumps(found.changes.to_dict(), allow_nan=False))
    assert (plain["first"], plain["others"], plain["paired"], len(plain["gaps"])) == ("a", ["b"], False, len(found.changes.gaps))
    assert "eod of F minus M" in str(found)


def test_three_periods_are_one_family():
    found = eq.compare({name: scores(frame(k, tag=name)) for k, name in enumerate("abc")}, measures=["eod", "spd"])
    assert found.changes.others == ("b", "c")
    assert found.changes.comparisons == 4
    smallest = found.changes.gaps["p_value"].idxmin()
    assert found.changes.gaps["p_adjusted"][smallest] == pytest.approx(min(4 * found.changes.gaps["p_value"][smallest], 1.0))


def test_incompatible_audits_are_rejected_with_their_differences():
    a = scores(frame(0))
    audits = {"a": eq.audit(a, **NO_CURVES)}
    other = frame(1, tag="b")
    renamed = scores(other.assign(sex=other.sex.replace({"F": "female"})))
    swapped = eq.Scores.from_frame(other, label="y", score="p", group="sex", reference="F", id="id")
    for found, expected in [
        (eq.audit(scores(other), measures=["eod"], thresholds="0.2:0.3"), ("measures", "spd")),
        (eq.audit(renamed, **NO_CURVES), ("groups", "F", "female")),
        (eq.audit(swapped, **NO_CURVES), ("references", "F", "M")),
        (eq.audit(scores(other), level=0.9, **NO_CURVES), ("levels", 0.9, 0.95)),
        (eq.audit(scores(frame(0), "q"), **NO_CURVES), ("same", 300, "--score")),
    ]:
        with pytest.raises(eq.BadInput, match=facts(*expected)):
            eq.compare(audits | {"b": found})


def test_groups_that_are_not_in_both_can_be_left_out():
    other = frame(1, tag="b")
    with_third = other.assign(sex=np.where(np.arange(len(other)) % 10 == 0, "X", other.sex))
    audits = {"a": eq.audit(scores(frame(0)), **NO_CURVES), "b": eq.audit(scores(with_third), **NO_CURVES)}
    with pytest.raises(eq.BadInput, match=facts("X", "--set", "compare.common_groups=true")):
        eq.compare(audits)
    assert set(eq.compare(audits, common_groups=True).changes.rates["group"]) == {"F", "M"}


def test_shared_patients_are_rejected_and_rows_without_ids_need_paired():
    table = frame(0)
    half = table.iloc[150:].reset_index(drop=True)
    with pytest.raises(eq.BadInput, match=facts(150)):
        eq.compare({"a": scores(table), "b": scores(half)})
    with pytest.raises(eq.BadInput, match=facts(300)):
        eq.compare({"a": scores(table), "b": scores(table, "q")}, paired=False)
    numbered = [eq.Scores.from_frame(f, label="y", score="p", group="sex", reference="M") for f in (table, frame(1))]
    with pytest.raises(eq.BadInput, match=facts("--set", "compare.paired=true", "false")):
        eq.compare({"a": numbered[0], "b": numbered[1]})
    assert not eq.compare({"a": numbered[0], "b": numbered[1]}, paired=False, measures=["eod"]).changes.paired
    with pytest.raises(eq.BadInput, match="label"):
        eq.compare({"a": numbered[0], "b": numbered[1]}, paired=True)
    by_number = [eq.Scores.from_frame(table, label="y", score=s, group="sex", reference="M") for s in ("p", "q")]
    assert eq.compare(dict(zip("ab", by_number, strict=True))).changes.paired


def test_subjects_of_different_kinds_are_rejected():
    one = scores(frame(0))
    with pytest.raises(eq.BadInput, match=facts("Audit", "Scores")):
        eq.compare({"a": one, "b": eq.audit(one, **NO_CURVES)})
    with pytest.raises(eq.BadInput, match="cohort"):
        eq.compare({"a": frame(0), "b": frame(1)})


def test_the_sums_of_a_saved_audit_must_be_those_of_its_groups(tmp_path):
    plain = eq.audit(scores(frame(0, 100)), **NO_CURVES).to_dict()
    for damaged in (
        {k: v for k, v in plain.items() if k != "sums"},
        plain | {"sums": {"sex": {"total": [1], "second": [], "rows": [], "units": []}}},
    ):
        (tmp_path / "a.json").write_text(json.dumps(damaged))
        with pytest.raises(eq.BadInput, match=r"a\.json"):
            read_audit(tmp_path / "a.json")
