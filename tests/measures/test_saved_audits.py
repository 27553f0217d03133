"""An audit that is read back from its JSON is the audit that was written."""

import json

import numpy as np
import pandas as pd
import pytest

from equipoise.comparison import audit
from equipoise.data import Scores
from equipoise.errors import BadInput
from equipoise.measures import read_audit, with_checksum
from equipoise.measures.audit import audit_from
from equipoise.measures.audit_spec import thresholds_of
from support.audits import audit_of, frame_of
from support.facts import says


def _scores(seed: int = 0) -> Scores:
    rng = np.random.default_rng(seed)
    frame = pd.concat([frame_of(["F", "M"], 80), pd.DataFrame({"sex": "X", "y": [0, 1, 1], "p": 0.5})], ignore_index=True)
    frame["age"], frame["id"] = rng.choice(["old", "young"], len(frame)), np.arange(len(frame)) // 2
    return Scores.from_frame(frame, label="y", score="p", group=["sex", "age"], reference=["M", "old"], patient="id", name="some.csv")


def test_reading_and_writing_an_audit_again_changes_nothing(tmp_path):
    found = audit(_scores(), threshold=0.4, shrink=True)
    plain = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    (tmp_path / "audit.json").write_text(json.dumps(plain))
    again = read_audit(tmp_path / "audit.json")
    assert again.to_dict() == plain
    assert again["eod"] == found["eod"]
    asked = found.settings.changed(thresholds=thresholds_of(found.settings.thresholds))
    assert (again.rule, again.settings, again.findings) == (found.rule, asked, found.findings)
    pd.testing.assert_frame_equal(again.gaps, found.gaps, check_dtype=False)
    pd.testing.assert_frame_equal(again.groups, found.groups, check_dtype=False)


@pytest.mark.parametrize("no_finding", [None, "none of the labels", "b"])
def test_the_same_for_several_labels_with_and_without_no_finding(no_finding):
    found = audit({"a": _scores(), "b": _scores(1)}, threshold=0.5, no_finding=no_finding)
    plain = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    again = audit_from(plain)
    assert list(again.labels) == ["a", "b"]
    assert again.to_dict() == plain
    assert (again.no_finding is None) == (no_finding is None)


def test_another_file_is_an_error_that_says_what_it_is(tmp_path):
    found = audit_of(frame_of(["F", "M"]))[1].to_dict()
    cases = {"no schema": {}, "equipoise.study": {"schema": "equipoise.study"}, "3": found | {"schema_version": 3}}
    cases["gaps"] = with_checksum({name: value for name, value in found.items() if name != "gaps"})
    cases["checksum"] = {name: value for name, value in found.items() if name != "gaps"}
    for fact, plain in cases.items():
        (tmp_path / "found.json").write_text(json.dumps(plain))
        with pytest.raises(BadInput) as error:
            read_audit(tmp_path / "found.json")
        assert says(str(error.value), "found.json", fact)
    (tmp_path / "found.json").write_text("a,b\n")
    with pytest.raises(BadInput, match=r"found\.json"):
        read_audit(tmp_path / "found.json")
    with pytest.raises(BadInput, match=r"none\.json"):
        read_audit(tmp_path / "none.json")


def test_a_rule_that_was_read_has_words_and_decides_nothing():
    found = audit_of(frame_of(["F", "M"]))[1].to_dict()
    plain = with_checksum(found | {"threshold": None, "threshold_origin": None, "decision": "two thresholds", "needs_group": True})
    rule = audit_from(plain).rule
    assert (rule.describe(), rule.needs_group, rule.cuts("F")) == ("two thresholds", True, ())
    with pytest.raises(BadInput, match="two thresholds"):
        rule.decide(_scores())
