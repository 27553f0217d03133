"""Rules and audits of several labels at once."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from equipoise.comparison import audit
from equipoise.data import Cohort, Scores
from equipoise.errors import BadInput
from equipoise.measures import AuditSpec, Threshold, audit_labels
from support.facts import facts


@pytest.fixture
def cohort() -> Cohort:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 2)).astype(np.float32)
    y = np.where(rng.random((300, 2)) < 0.2, -1, (x + rng.normal(size=(300, 2)) > 0))
    return Cohort.from_arrays(x, y, rng.choice(["F", "M"], 300), reference="M", labels=["a", "b"])


TOGETHER = ["simultaneous_low", "simultaneous_high", "p_adjusted", "clear"]


def test_each_label_is_audited_as_it_would_be_alone_except_for_the_adjustment(cohort):
    found = audit(nn.Identity(), cohort, threshold=0.6)
    assert list(found.labels) == ["a", "b"]
    for at, label in enumerate("ab"):
        part = cohort.labelled(label)
        score = torch.sigmoid(cohort.inputs[torch.from_numpy(cohort.column(label) >= 0), at].double()).numpy()
        alone = audit(Scores.of(part, score), threshold=0.6)
        both = [pd.json_normalize(each.to_dict(), record_path=part) for part in ("groups", "gaps") for each in (found[label], alone)]
        both = [frame.drop(columns=[name for name in TOGETHER if name in frame]) for frame in both]
        for together, single in (both[:2], both[2:]):
            pd.testing.assert_frame_equal(together, single, rtol=1e-12)
        for measure in alone.estimates:
            assert found[label][measure].value == pytest.approx(alone[measure].value, rel=1e-12, nan_ok=True)
    assert all(str(found[label]) in str(found) for label in found.labels)
    assert json.loads(json.dumps(found.to_dict()))["labels"]["a"]["eod"]["value"] == found["a"]["eod"].value
    with pytest.raises(BadInput, match=facts("label", "'c'")):
        found["c"]


def test_thresholds_are_chosen_a_label_on_validation_data(cohort):
    found = audit(nn.Identity(), cohort, valid=cohort)
    assert found["a"].rule.value != found["b"].rule.value
    assert found["a"]["balanced_accuracy"].value >= audit(nn.Identity(), cohort)["a"]["balanced_accuracy"].value


def test_what_cannot_be_audited_is_said(cohort):
    with pytest.raises(BadInput, match=facts("threshold", "validation")):
        audit(nn.Identity(), cohort, threshold=0.5, valid=cohort)
    with pytest.raises(BadInput, match=facts("torch.nn.Module")):
        audit("network", cohort)
    classes = Cohort.from_arrays(cohort.inputs, np.arange(300) % 2, cohort.groups, classes=["no", "yes"])
    with pytest.raises(BadInput, match="argmax"):
        audit(nn.Identity(), classes, threshold=0.4)
    with pytest.raises(BadInput, match=facts("NaN")):
        audit(nn.Identity(), Cohort.from_arrays(cohort.inputs * torch.nan, cohort.targets, cohort.groups, labels=["a", "b"]))


def test_each_label_has_its_own_error_and_the_overview_one_for_all():
    """Marks of a label are those of its audit alone; those of the overview are at the share of labels with a mark."""
    rng = np.random.default_rng(3)
    sex = np.array(["F", "M"])[rng.integers(0, 2, 500)]
    scores = {
        name: Scores.from_arrays(rng.integers(0, 2, 500), np.clip(rng.random(500) + shift * (sex == "F"), 0, 1), sex, reference="M")
        for name, shift in (("a", 0.14), ("b", 0.0), ("c", 0.0))
    }
    found = audit(scores, no_finding="none of the labels")
    assert {each.comparisons for each in found.labels.values()} == {2}  # missed findings and false alarms
    assert (found.comparisons, found.no_finding.comparisons) == (6, 1)
    for name, own in scores.items():
        alone = audit(own)
        for gap in ("eod", "fpr_gap", "spd"):
            assert found[name][gap].p_adjusted == pytest.approx(alone[gap].p_adjusted, nan_ok=True)
            assert found[name][gap].simultaneous_low == pytest.approx(alone[gap].simultaneous_low, nan_ok=True)
    smallest = sorted(np.nanmin(each.gaps["p_adjusted"]) for each in (*found.labels.values(), found.no_finding))
    selected = max((k for k, p in enumerate(smallest, start=1) if p <= 0.05 * k / 4), default=0)
    for name, own in found.labels.items():
        shown = found.overview[name].gaps["clear"]
        assert shown.equals(own.gaps["p_adjusted"] <= 0.05 * selected / 4)
    assert found["a"].gaps["clear"].any()
    plain = found.to_dict()
    assert (plain["comparisons"], plain["findings"]) == (found.comparisons, sum(each.findings for each in found.overview.values()))


def test_a_label_may_have_the_name_that_is_used_for_derived_decisions():
    rng = np.random.default_rng(1)
    groups = rng.choice(["F", "M"], 200)
    scores = {label: Scores.from_arrays(rng.integers(0, 2, 200), rng.random(200), groups) for label in ("no finding", "edema")}
    found = audit_labels(scores, dict.fromkeys(scores, Threshold(0.5)), AuditSpec(no_finding="none of the labels"), "labels", "scores")
    assert list(found.labels) == ["no finding", "edema"]
    assert found["no finding"].rule == found["edema"].rule == Threshold(0.5)
    assert found.no_finding is not None
    assert found.no_finding.rule.describe().startswith("none of 2 labels")
