"""Scores without a network: every rule method, auto, bias-score with named columns, several labels; and what is refused."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import equipoise as eq
from equipoise.methods import METHODS, Kind, read_rule, rule_to_dict
from support.facts import facts

RULES = sorted(name for name, own in METHODS.items() if own.kind == Kind.RULE)


def _frame(n: int = 800, seed: int = 0) -> pd.DataFrame:
    """Scores that miss the positives of F more often; weight tells much of the group, age nothing."""
    rng = np.random.default_rng(seed)
    sex, y = rng.choice(["F", "M"], n), rng.integers(0, 2, n)
    z = rng.normal(0, 1, n) + 1.6 * y - 1.2 * (sex == "F") * y
    more = {"weight": 70 + 9 * (sex == "M") + rng.normal(0, 3, n), "age": rng.normal(60, 10, n), "ward": rng.choice(["a", "b"], n)}
    return pd.DataFrame({"y": y, "p": 1 / (1 + np.exp(0.5 - z)), "sex": sex, "id": np.arange(n) // 2, **more})


def _scores(frame: pd.DataFrame, **more: object) -> eq.Scores:
    return eq.Scores.from_frame(frame, label="y", score="p", group="sex", reference="M", patient="id", **more)


@pytest.fixture(scope="module")
def frame():
    return _frame()


@pytest.mark.parametrize("name", RULES)
def test_a_rule_is_the_same_with_scores_and_with_the_network_that_gave_them(frame, name):
    """The oracle is the path of a network, through one whose scores are these."""
    import torch

    scores = _scores(frame)
    logit = np.log(scores.score / (1 - scores.score))
    cohort = eq.Cohort.from_arrays(
        torch.tensor(logit[:, None]), scores.y, frame["sex"], reference="M", patients=frame["id"], attribute="sex"
    )
    network = torch.nn.Linear(1, 1).double()
    with torch.no_grad():
        network.weight.fill_(1.0)
        network.bias.zero_()
    alone = eq.debias(scores, method=name, threshold=0.5)
    through = eq.debias(network, cohort, method=name, threshold=0.5)
    assert alone.model is None
    assert alone.outcome == through.outcome
    np.testing.assert_array_equal(alone.held_out.after, through.held_out.after)
    np.testing.assert_allclose(alone.trace[["gap", "performance"]], through.trace[["gap", "performance"]])


def test_auto_tries_every_rule_and_keeps_the_judgement_of_the_one_it_takes(frame):
    found = eq.debias(_scores(frame), threshold=0.5)
    tried = {note.subject for note in found.notes if note.kind == "tried"}
    assert tried | {name for note in found.notes if note.kind == "not_tried" for name in note.numbers["methods"]} == set(RULES)
    assert found.judgement is not None
    assert str(found.outcome) in ("closed", "reduced")
    assert abs(found.judgement.gaps[0].after.value) < abs(found.judgement.gaps[0].before.value)


def test_the_threshold_in_use_decides_for_the_original(frame):
    found = eq.debias(_scores(frame), method="group-thresholds", threshold=0.3)
    np.testing.assert_array_equal(found.held_out.before, frame["p"] >= 0.3)
    assert found.trace["threshold"].iloc[0] == 0.3


@pytest.fixture(scope="module")
def corrected(frame):
    scores = _scores(frame, features=["weight", "ward"])
    goal = eq.Goal("eod", threshold=0.5, max_loss=0.1, max_rise={"fpr": 1.0, "selection": 1.0}, allow_worse=True)
    return scores, eq.debias(scores, method="bias-score", goal=goal)


def test_bias_score_lowers_the_gap_without_the_group(corrected):
    scores, found = corrected
    assert found.chosen > 0
    assert not found.rule.needs_group
    before, after = found.trace.iloc[0], found.trace.iloc[found.chosen]
    assert abs(after["gap"]) < 0.5 * abs(before["gap"])
    others = replace(scores, attributes=(scores.attribute.take(np.arange(len(scores))[::-1]),))
    np.testing.assert_array_equal(found.rule.decide(scores), found.rule.decide(others))  # whatever the group is said to be


def test_the_rule_of_bias_score_comes_back_from_its_json(corrected):
    scores, found = corrected
    again = read_rule(json.dumps(rule_to_dict(found.rule)).encode(), "rule.json")
    assert again == found.rule
    np.testing.assert_array_equal(again.decide(scores), found.rule.decide(scores))


def test_a_damaged_rule_of_bias_score_is_refused(corrected):
    plain = rule_to_dict(corrected[1].rule)
    with pytest.raises(eq.BadInput, match=facts("coefficients", 3, 3)):
        read_rule(json.dumps({**plain, "coefficients": plain["coefficients"][1:]}).encode(), "rule.json")


def test_new_rows_are_encoded_as_the_repair_set_was(frame, corrected):
    """A subset decides as the same rows of the whole, and an unknown level or a missing number is no error."""
    scores, found = corrected
    some = np.arange(0, 300)
    np.testing.assert_array_equal(found.rule.decide(scores.take(some)), found.rule.decide(scores)[some])
    odd = frame.assign(
        ward=np.where(np.arange(len(frame)) < 2, "new", frame["ward"]), weight=frame["weight"].where(np.arange(len(frame)) != 5)
    )
    assert set(found.rule.decide(_scores(odd, features=["weight", "ward"]))) <= {0.0, 1.0}


def test_features_can_be_given_next_to_the_scores(frame):
    quick = {"method": "bias-score", "threshold": 0.5, "max_loss": 0.1, "selection": "paper"}
    beforehand = eq.debias(_scores(frame, features=["weight", "ward"]), **quick)
    assert eq.debias(_scores(frame), features=frame[["weight", "ward"]], **quick).rule == beforehand.rule


def test_several_labels_get_a_rule_each_and_share_the_error(frame):
    other = _scores(_frame(seed=3))
    found = eq.debias({"a": _scores(frame), "b": other}, method="group-thresholds", threshold=0.5)
    assert list(found.labels) == ["a", "b"]
    assert found.model is None
    alone = eq.debias(other, method="group-thresholds", threshold=0.5)
    assert found.labels["b"].rule == alone.rule
    wide, narrow = (own.judgement.gaps[0].change for own in (found.labels["b"], alone))
    assert wide.simultaneous_high - wide.simultaneous_low > narrow.simultaneous_high - narrow.simultaneous_low


def test_no_finding_in_a_world_without_a_gap_is_a_repair():
    rng = np.random.default_rng(5)
    n = 600
    y, sex = rng.integers(0, 2, n), rng.choice(["F", "M"], n)
    p = 1 / (1 + np.exp(-rng.normal(y - 0.5, 1)))
    found = eq.debias(eq.Scores.from_arrays(y, p, sex, reference="M"), threshold=0.5, methods=("single-threshold", "group-thresholds"))
    assert str(found.outcome) in ("unchanged", "unclear")


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda s, f: eq.debias(s, method="bias-gda"), ["bias-gda", "group-thresholds"]),
        (lambda s, f: eq.debias(s, method="bias-score"), ["bias-score", "features"]),
        (lambda s, f: eq.debias(s, features=f[["sex"]]), ["sex", "group-thresholds"]),
        (lambda s, f: eq.debias(s, features=f[["age"]][:-1]), [800, 799]),
        (lambda s, f: eq.debias(s, s), ["cohort"]),
        (lambda s, f: eq.debias(s, goals={"a": eq.Goal()}), ["goals"]),
        (lambda s, f: eq.debias({"a": s}, goals={"b": eq.Goal()}), ["b"]),
        (lambda s, f: eq.debias(f), ["DataFrame"]),
        (lambda s, f: s.labelled("Mass"), ["Mass"]),
    ],
)
def test_what_scores_alone_cannot_have_is_refused(frame, call, told):
    with pytest.raises(eq.BadInput, match=facts(*told)):
        call(_scores(frame), frame)


def test_logits_are_mapped_where_they_are_declared(frame):
    logits = frame.assign(p=np.log(frame["p"] / (1 - frame["p"])))
    np.testing.assert_allclose(_scores(logits, logits=True).score, frame["p"])
    with pytest.raises(eq.BadInput, match=facts("p", "logits")):
        _scores(logits)
