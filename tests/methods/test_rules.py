"""Rules on paper: what is read back decides as what was written down, and a damaged file says so."""

import json

import numpy as np
import pytest

from equipoise.data import Scores
from equipoise.errors import BadInput
from equipoise.measures import Threshold
from equipoise.methods import equalised_odds, reject_option, rule_to_dict
from equipoise.methods.rules import rule_from_dict
from support.bundles import rule_in_file
from support.facts import facts
from support.goals import paper_goal


def _scores(n: int = 300) -> Scores:
    rng = np.random.default_rng(0)
    group = np.where(rng.random(n) < 0.5, "M", "F")
    y = (rng.random(n) < 0.5).astype(int)
    score = 1 / (1 + np.exp(-(2 * y - 1 + (group == "M") + rng.normal(size=n))))
    return Scores.from_arrays(y, score, group, reference="M")


RULES = {
    "threshold": Threshold(1 / 3, "given"),
    "reject-option": reject_option.reject_option(_scores(), paper_goal("eod")).rule,
    "equalised-odds": equalised_odds.equalised_odds(_scores(), paper_goal("eod")).rule,
}


@pytest.mark.parametrize("kind", RULES)
def test_a_rule_is_the_same_after_a_file(tmp_path, kind):
    rule, scores = RULES[kind], _scores()
    plain = rule_to_dict(rule)
    (tmp_path / "rule.json").write_text(json.dumps(plain, allow_nan=False))
    again = rule_in_file(tmp_path / "rule.json")
    assert again == rule
    assert (again.decide(scores) == rule.decide(scores)).all()
    assert (plain["kind"], plain["needs_group"], plain["randomised"]) == (kind, kind != "threshold", kind == "equalised-odds")
    assert plain["words"] == rule.describe()


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"schema": "other"}, "holds no decision rule"),
        ({"schema_version": 9}, "has version 9"),
        ({"kind": "threshhold"}, "Did you mean 'threshold'?"),
        ({"value": None}, "value"),
        ({"value": "high"}, "'high'"),
    ],
)
def test_what_is_no_rule_says_why(change, expected):
    with pytest.raises(BadInput) as caught:
        rule_from_dict({**rule_to_dict(RULES["threshold"]), **change})
    assert expected in str(caught.value)


def test_a_file_that_is_no_json_says_so(tmp_path):
    (tmp_path / "rule.json").write_text("{")
    with pytest.raises(BadInput, match=facts("JSON")):
        rule_in_file(tmp_path / "rule.json")
