"""Rules and audits of several labels at once."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from equipoise.data import Cohort, Scores
from equipoise.errors import BadInput
from equipoise.measures import LabelRules, Threshold
from equipoise.repair import audit
from support.facts import facts, says


@pytest.fixture
def cohort() -> Cohort:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 2)).astype(np.float32)
    y = np.where(rng.random((300, 2)) < 0.2, -1, (x + rng.normal(size=(300, 2)) > 0))
    return Cohort.from_arrays(x, y, rng.choice(["F", "M"], 300), reference="M", labels=["a", "b"])


def test_each_label_is_audited_as_it_would_be_alone(cohort):
    found = audit(nn.Identity(), cohort, threshold=0.6, draws=10)
    assert list(found) == ["a", "b"]
    for at, label in enumerate("ab"):
        part = cohort.labelled(label)
        score = torch.sigmoid(cohort.inputs[torch.from_numpy(cohort.column(label) >= 0), at].double()).numpy()
        alone = audit(Scores.of(part, score), threshold=0.6, draws=10)
        both = [pd.json_normalize(each.to_dict(), record_path=part) for part in ("groups", "gaps") for each in (found[label], alone)]
        for together, single in (both[:2], both[2:]):
            pd.testing.assert_frame_equal(together, single, rtol=1e-12)
        for measure in alone.estimates:
            assert found[label][measure].value == pytest.approx(alone[measure].value, rel=1e-12, nan_ok=True)
    assert all(str(found[label]) in str(found) for label in found)
    assert json.loads(json.dumps(found.to_dict()))["labels"]["a"]["eod"]["value"] == found["a"]["eod"].value
    with pytest.raises(BadInput, match=facts("label", "'c'")):
        found["c"]


def test_thresholds_are_chosen_a_label_on_validation_data(cohort):
    found = audit(nn.Identity(), cohort, valid=cohort, draws=2)
    assert found["a"].rule.value != found["b"].rule.value
    assert found["a"]["balanced_accuracy"].value >= audit(nn.Identity(), cohort, draws=2)["a"]["balanced_accuracy"].value


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


def test_rules_are_told_a_label(cohort):
    rules = LabelRules({"a": Threshold(0.3), "b": Threshold(0.7)})
    assert rules["b"].value == 0.7
    assert says(rules.describe(), f"a: {rules['a'].describe()}", f"b: {rules['b'].describe()}")
    assert not rules.needs_group
    with pytest.raises(BadInput, match=facts("rule[label].decide")):
        rules.decide(Scores.of(cohort.labelled("a"), np.zeros(len(cohort.labelled("a")))))
