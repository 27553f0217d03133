"""Recalibrated repairs: scores are probabilities again, and every decision is the same."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import equipoise as eq
from equipoise.data import Cohort, Scores
from equipoise.measures import Calibration, LogitMap, Threshold, logit_map
from equipoise.methods import Candidate, LabelCandidate, recalibrate_result
from equipoise.methods.recalibration import _between
from equipoise.models import OneOutput, predict
from support.goals import paper_goal
from support.multilabel import LABELS, fitted, labels_cohort, network
from support.networks import biased_cohort, trained
from support.notes import note_of


def _shifted(model: nn.Module, rule: Threshold, method: str = "bias-gda", chosen: int = 1) -> Candidate:
    """A candidate as a repair would leave it."""
    trace = pd.DataFrame({"step": [0, 1], "gap": [0.2, 0.0], "performance": [0.7, 0.7], "threshold": [0.5, rule.value]})
    return Candidate({"": LabelCandidate(method, model, rule, trace, chosen, (), True, paper_goal("eod"), 0)}, model)


def _linear(bias: float = 0.0, sign: float = 1.0) -> nn.Module:
    model = nn.Linear(6, 1)
    with torch.no_grad():
        model.weight.copy_(sign * torch.tensor([[3.0, 1.5, 0.1, 0.0, 0.0, 0.0]]))
        model.bias.fill_(bias)
    return model.eval()


def test_scores_become_probabilities_and_no_decision_changes():
    repair, test = biased_cohort(900, 1), biased_cohort(4000, 2)
    before = _shifted(_linear(2.0), Threshold(0.97))
    found = recalibrate_result(before, {"": _linear()}, repair)
    for cohort in (repair, test):
        old, new = predict(before.model, cohort), predict(found.model, cohort)
        assert np.array_equal(before.rule.decide(old), found.rule.decide(new))
        assert np.array_equal(np.argsort(old.score, kind="stable"), np.argsort(new.score, kind="stable"))
    about = found.recalibration
    assert about.folded
    assert {key: value.shape for key, value in found.model.state_dict().items()} == {
        k: v.shape for k, v in before.model.state_dict().items()
    }
    labels = Calibration.of(predict(before.model, repair).score, repair.y)
    assert about.before.in_the_large == pytest.approx(labels.in_the_large, abs=0.01)
    assert about.before.in_the_large > 0.2
    assert abs(about.after.in_the_large) < 0.02
    real = Calibration.of(predict(found.model, test).score, test.y)
    assert (real.in_the_large, real.slope) == pytest.approx((0.0, 1.0), abs=0.15)
    assert about.to_dict()["rows"] == about.to_dict()["checked"] == len(repair)
    assert recalibrate_result(before, {"": _linear()}, repair, also=[test]).recalibration.checked == len(repair) + len(test)
    assert found.trace["threshold"].iloc[1] == found.rule.value  # what the trace says of the chosen step is true of what is delivered
    assert found.rule.origin == before.rule.origin


def test_the_original_and_rules_for_it_are_left_as_they_are():
    repair = biased_cohort(300)
    for candidate in (
        _shifted(_linear(), Threshold(0.6), chosen=0),
        _shifted(_linear(), Threshold(0.6), "group-thresholds"),
        Candidate({"": replace(_shifted(_linear(), Threshold(0.6)).only, method="auto", ran_as="equalised-odds")}, _linear()),
    ):
        assert recalibrate_result(candidate, {"": _linear()}, repair) is candidate


def test_scores_that_fall_with_the_risk_are_left_with_a_note():
    found = recalibrate_result(_shifted(_linear(sign=-1.0), Threshold(0.4)), {"": _linear()}, biased_cohort(400))
    assert found.recalibration is None
    assert note_of(found.notes, "not_recalibrated").subject == "no_increasing_map"


def test_scores_that_become_one_by_rounding_are_left_with_a_note():
    rng = np.random.default_rng(0)
    x = rng.normal(0, 3, 600).astype(np.float32)
    x[:2] = 1.0, np.nextafter(np.float32(1.0), np.float32(2.0))  # neighbours, with the threshold between them
    y = (rng.random(600) < 1 / (1 + np.exp(2 - 0.1 * x))).astype(int)
    cohort = Cohort.from_arrays(torch.from_numpy(x)[:, None], y, np.where(np.arange(600) % 2, "M", "F"), reference="M")
    model = nn.Linear(1, 1)
    with torch.no_grad():
        model.weight.fill_(1.0)
        model.bias.fill_(0.0)
    lower, upper = predict(model, cohort).score[:2]
    assert lower < upper
    before = _shifted(model, Threshold((lower + upper) / 2))
    found = recalibrate_result(before, {"": model}, cohort)
    assert note_of(found.notes, "not_recalibrated").subject == "scores_collide"
    assert (found.model, found.rule, found.recalibration) == (before.model, before.rule, None)


@pytest.mark.parametrize("rule", [Threshold(0.7), Threshold(0.0)])
def test_a_threshold_decides_the_same_on_mapped_scores(rule):
    rng = np.random.default_rng(0)
    group = np.where(np.arange(400) % 2, "M", "F").astype(object)
    group[::17] = None
    old = Scores.from_arrays(rng.integers(0, 2, 400), rng.random(400), group, reference="M")
    found = LogitMap(0.3, -2.0)
    new = replace(old, score=found(old.score))
    assert np.array_equal(rule.decide(old), replace(rule, value=_between(rule.value, old.score, new.score, found)).decide(new))


def test_a_repair_is_recalibrated_unless_it_is_not_wanted():
    model, parts = trained("mlp")
    options = {"method": "constrained", "measure": "spd", "selection": "paper", "max_loss": 0.1, "seed": 1, "epochs": 5}
    plain, found = (eq.debias(model, parts.valid, recalibrate=wanted, **options) for wanted in (False, True))
    assert plain.recalibration is None
    assert found.chosen == plain.chosen > 0
    assert found.recalibration.rule_before == plain.rule
    assert np.array_equal(plain.rule.decide(predict(plain.model, parts.test)), found.rule.decide(predict(found.model, parts.test)))


def test_every_label_has_a_map_of_its_own():
    cohort, test = labels_cohort(900), labels_cohort(900, 1)
    model = fitted(network(cohort.inputs.shape[1], 2), cohort)
    options = {"method": "constrained", "measure": "eod", "selection": "paper", "max_loss": 0.1, "epochs": 4}
    plain = eq.debias(model, cohort, recalibrate=False, **options)
    assert plain.chosen > 0
    found = recalibrate_result(plain, {name: OneOutput(model, at, output="logit") for at, name in enumerate(LABELS)}, cohort, also=[test])
    maps = {found.labels[name].recalibration.map for name in LABELS}
    assert len(maps) == len(LABELS)
    assert list(found.model.state_dict()) == list(plain.model.state_dict())
    for name in LABELS:
        own = found.labels[name]
        assert own.model.inner is found.model
        for rows in (cohort.labelled(name), test.labelled(name)):
            before = plain.labels[name].rule.decide(predict(plain.labels[name].model, rows))
            assert np.array_equal(before, own.rule.decide(predict(own.model, rows)))


def test_a_network_without_a_layer_for_it_is_wrapped_and_several_labels_of_one_are_left():
    cohort = labels_cohort(600)
    bare = nn.Sequential(nn.Linear(cohort.inputs.shape[1], 4), nn.ReLU(), nn.Linear(4, 2, bias=False))
    model = fitted(bare, cohort)
    result = eq.debias(model, cohort, method="constrained", measure="eod", selection="paper", max_loss=0.2, epochs=3)
    assert result.chosen > 0
    for own in result.labels.values():
        assert own.recalibration is None
        assert note_of(own.notes, "not_recalibrated").subject == "no_layer_for_it"
    one = cohort.labelled(LABELS[0])
    view = OneOutput(model, 0, output="logit")
    alone = recalibrate_result(_shifted(view, Threshold(0.5)), {"": view}, one)
    assert not alone.recalibration.folded
    assert isinstance(one, Cohort)


def test_labels_that_the_network_has_learnt_by_heart_do_not_make_it_sure():
    """A network that was tuned on the repair set tells its labels apart better than any others; the map must not believe it."""
    repair, test = biased_cohort(300, 1), biased_cohort(6000, 2)
    secret = torch.where(torch.from_numpy(repair.y) == 1, 0.35, -0.35)[:, None]
    known = replace(repair, source=torch.cat([repair.inputs[:, :5], secret], 1))
    model = _linear()
    with torch.no_grad():
        model.weight[0, 5] = 6.0  # reads what only these rows have
    new = replace(test, source=torch.cat([test.inputs[:, :5], torch.zeros(len(test), 1)], 1))
    original = _linear(-2.0)
    found = recalibrate_result(_shifted(model, Threshold(0.5)), {"": original}, known)
    scores = predict(found.model, new)
    right = Calibration.of(scores.score, new.y)
    hard = logit_map(predict(model, known).score, known.y)(predict(model, new).score)
    assert right.error < Calibration.of(hard, new.y).error
    assert right.slope > 0.7
