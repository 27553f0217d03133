"""The bias score with the training set: probes learn from its rows where the repair set is small."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import nn

from equipoise.data import Cohort
from equipoise.errors import BadInput
from equipoise.methods import Note
from equipoise.methods import blind_rule as bias_problem
from equipoise.methods.blind_rule import fit_probes
from equipoise.models import FeatureCache, FeatureChoice, fit_probe, folds_of
from support.facts import facts
from support.goals import paper_goal
from support.published import debias


def _pictures(rng: np.random.Generator, n: int, women: float, levels: str = "MF") -> Cohort:
    """Rows of 40 numbers of which five tell the sex, and one the label."""
    codes = (rng.random(n) < women).astype(int)
    y = rng.integers(0, 2, n)
    x = rng.normal(size=(n, 40))
    x[:, :5] += 0.6 * codes[:, None]
    x[:, 5] += 1.5 * y + 0.7 * codes * y
    return Cohort.from_arrays(torch.from_numpy(x).float(), y, np.array(list(levels))[codes], reference=levels[0])


def _sees_one() -> nn.Module:
    model = nn.Sequential(nn.Linear(40, 1)).eval()
    with torch.no_grad():
        model[0].weight.copy_(torch.eye(40)[5:6])
        model[0].bias.zero_()
    return model


def test_the_train_part_helps_to_tell_the_groups_apart():
    rng = np.random.default_rng(3)
    valid, train, test = _pictures(rng, 160, 0.5), _pictures(rng, 1500, 0.25), _pictures(rng, 4000, 0.5)
    model = _sees_one()
    reading, folds = FeatureChoice.of(model, valid.inputs, "inputs"), folds_of(valid, 5, 0)
    alone, helped = (
        fit_probes(valid, paper_goal("eod"), reading, folds, FeatureCache(model, valid.inputs), part).heads.groups[0]
        for part in (None, train)
    )
    x = test.inputs.double().numpy()
    loss = [-np.log(probe(x)[np.arange(len(x)), test.attribute.codes]).mean() for probe in (alone, helped)]
    assert (alone.more, helped.more > 0) == (0, True)
    assert loss[1] < loss[0] - 0.02
    # A quarter of the train part are women: the probe gives them the share that they have among the positives here.
    assert helped(x[test.y == 1])[:, 1].mean() == pytest.approx((valid.attribute.codes[valid.y == 1] == 1).mean(), abs=0.05)
    told = debias(model, valid, method="bias-score", measure="eod", depth="inputs", train=train, recalibrate=False).notes
    assert (told[-1].kind, told[-1].numbers["rows"] > 0) == ("training_set", True)


def test_a_probe_with_rows_from_elsewhere_is_a_weighted_regression_on_all_of_them():
    rng = np.random.default_rng(5)
    here, there = _pictures(rng, 200, 0.5), _pictures(rng, 300, 0.2)
    x, more = (part.inputs.double().numpy() for part in (here, there))
    codes, others, folds = here.attribute.codes, there.attribute.codes, np.arange(200) % 5
    found = fit_probe(x, codes, 2, folds, more=(more, others))
    both, target = np.concatenate([x, more]), np.concatenate([codes, others])
    weight = np.ones(500)
    for code in (0, 1):
        weight[200:][others == code] = (codes == code).mean() / (others == code).mean()
    z = (both - both.mean(0)) / both.std(0)
    oracle = LogisticRegression(C=found.penalty, tol=1e-8, max_iter=5000)
    assert found(x)[:, 1] == pytest.approx(oracle.fit(z, target, sample_weight=weight).predict_proba(z[:200])[:, 1], abs=2e-3)
    kept = np.concatenate([folds != 2, np.ones(300, bool)])  # rows from elsewhere are never held out
    held_out = oracle.fit(z[kept], target[kept], sample_weight=weight[kept]).predict_proba(z[:200][folds == 2])[:, 1]
    assert found.held_out[folds == 2, 1] == pytest.approx(held_out, abs=2e-3)
    assert found.held_out.shape == (200, 2)


def test_groups_of_the_train_part_go_by_name():
    """Another order of the groups, and one that the rows here do not have, change nothing."""
    rng = np.random.default_rng(3)
    valid, train = _pictures(rng, 160, 0.5), _pictures(rng, 400, 0.5)
    names = train.groups
    turned = Cohort.from_arrays(train.inputs, train.y, names, reference="F")
    third = np.concatenate([names, np.full(50, "X")])
    wider = Cohort.from_arrays(
        torch.cat([train.inputs, torch.randn(50, 40)]), np.concatenate([train.y, np.ones(50, int)]), third, reference="M"
    )
    model = _sees_one()
    reading, folds = FeatureChoice.of(model, valid.inputs, "inputs"), folds_of(valid, 5, 0)
    found = [
        fit_probes(valid, paper_goal("eod"), reading, folds, FeatureCache(model, valid.inputs), part).heads.groups[0]
        for part in (train, turned, wider)
    ]
    assert all(probe.more for probe in found)
    for probe in found[1:]:
        assert probe.weight == pytest.approx(found[0].weight)


def test_what_is_wrong_with_a_train_part_is_said():
    rng = np.random.default_rng(3)
    valid, train = _pictures(rng, 160, 0.5), _pictures(rng, 400, 0.5)
    model = _sees_one()
    shared = [replace(part, patients=np.arange(len(part)).astype(str).astype(object)) for part in (valid, train)]
    with pytest.raises(BadInput, match=facts(160, "patients")):
        debias(model, shared[0], method="bias-score", measure="eod", train=shared[1])
    apart = replace(train, patients=np.arange(1000, 1400).astype(str).astype(object))
    assert debias(model, shared[0], method="bias-score", measure="eod", train=apart, recalibrate=False).notes[-1].numbers["rows"] > 0
    narrow = Cohort.from_arrays(train.inputs[:, :7], train.y, train.groups, reference="M")
    with pytest.raises(BadInput, match=facts("(7,)", "(40,)")):
        debias(model, valid, method="bias-score", measure="eod", train=narrow)


def test_a_train_part_without_the_label_or_without_the_groups():
    rng = np.random.default_rng(3)
    valid, train = _pictures(rng, 160, 0.5), _pictures(rng, 400, 0.5)
    negatives = train.take(np.flatnonzero(train.y == 0))
    assert (
        debias(_sees_one(), valid, method="bias-score", measure="eod", train=negatives, recalibrate=False).notes[-1].kind == "training_set"
    )
    strangers = Cohort.from_arrays(train.inputs, train.y, np.where(train.groups == "M", "X", "Y"), reference="X")
    with pytest.raises(BadInput, match=facts("M, F", "X, Y")):
        debias(_sees_one(), valid, method="bias-score", measure="eod", train=strangers)


def test_enough_rows_need_no_train_part(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(bias_problem, "FEW_WITH_LABEL", 10)
    rng = np.random.default_rng(3)
    valid, train = _pictures(rng, 160, 0.5), _pictures(rng, 400, 0.5)
    found = debias(_sees_one(), valid, method="bias-score", measure="eod", train=train, recalibrate=False)
    assert found.notes[-1] == Note("training_set", numbers={"rows": 0})


@pytest.mark.parametrize("more", [{"method": "auto", "methods": ["bias-score"]}, {"method": "bias-score", "selection": "honest"}])
def test_the_train_part_goes_through_auto_and_honest_selection(more: dict):
    rng = np.random.default_rng(3)
    valid, train = _pictures(rng, 300, 0.5), _pictures(rng, 600, 0.25)
    found = debias(_sees_one(), valid, measure="eod", train=train, **more)
    assert any(note.kind == "training_set" and note.numbers["rows"] for note in found.notes)
