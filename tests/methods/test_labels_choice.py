"""Several labels: a goal per label, and the choice of the step and of the method for all of them."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import equipoise as eq
from equipoise.data import Cohort
from equipoise.errors import BadInput, EmptyCell, UnknownName
from equipoise.measures import Cells
from equipoise.methods import ALL_AT_ONCE, METHODS
from equipoise.models import predict
from support.facts import facts, says
from support.multilabel import LABELS, QUICK, fitted, labels_frame, network
from support.notes import note_of
from support.published import debias


def test_a_goal_a_label(labels):
    model, cohort = labels
    goals = {"Mass": eq.Goal("spd", max_gap=0.08), "Effusion": eq.Goal("eod", min_performance=0.74)}
    result = debias(model, cohort, method="constrained", goals=goals)
    assert result.met_in_sample
    effusion, mass = (result.labels[name] for name in LABELS)
    assert (effusion.goal.measure, mass.goal.measure) == ("eod", "spd")
    assert effusion.trace["performance"].iloc[effusion.chosen] >= 0.74
    assert abs(mass.trace["gap"].iloc[mass.chosen]) <= 0.08 + 1e-9
    # Among steps that have both, the one with the smallest EOD of Effusion: Mass has its maximum gap, and no more is asked of it.
    fit = (effusion.trace["performance"] >= 0.74) & (mass.trace["gap"].abs() <= 0.08 + 1e-9)
    assert abs(effusion.trace["gap"].iloc[effusion.chosen]) == effusion.trace["gap"].abs()[fit].min()


def test_a_floor_that_one_label_misses_is_said_and_the_nearest_is_returned(labels):
    model, cohort = labels
    result = debias(
        model,
        cohort,
        goals={"Effusion": eq.Goal("eod", min_performance=0.7), "Mass": eq.Goal("eod", min_performance=0.99)},
        **QUICK["bias-gda"],
    )
    assert not result.met_in_sample
    assert result.labels["Effusion"].met_in_sample
    assert not result.labels["Mass"].met_in_sample
    assert note_of(result.labels["Mass"].why, "too_low").numbers["least"] == 0.99
    assert [line.split(":")[0] for line in str(result).splitlines()] == LABELS


def test_goals_and_methods_that_cannot_be(labels, classes):
    model, cohort = labels
    with pytest.raises(BadInput) as caught:
        debias(model, cohort, goals={"Efusion": eq.Goal("eod")}, min_performance=0.7)
    text = str(caught.value)
    assert says(text, "'Effusion'", "Effusion, Mass", "balanced_accuracy >= 0.7")
    for method in ("adversarial-finetune", "adversarial-training"):
        with pytest.raises(BadInput, match=facts(method, "labels", "constrained")):
            debias(model, cohort, method=method)
    one = cohort.labelled("Mass")
    with pytest.raises(BadInput, match=facts("goals", "outputs")):
        debias(model, one, goals={}, outputs={})
    with pytest.raises(BadInput, match=facts(3, "classes", "outputs")):
        debias(network(6, 4), classes[1], outputs={"none": 0, "pneumonia": 1, "effusion": 2})
    sigmoids = nn.Sequential(network(6, 3), nn.Sigmoid())
    with pytest.raises(BadInput, match=facts(1)):
        debias(sigmoids, classes[1])
    with pytest.raises(BadInput, match=facts("(6,)")):
        debias(network(5, 2), cohort)
    empty = cohort.take((cohort.groups == "M") | (cohort.column("Mass") == 0))
    with pytest.raises(EmptyCell, match=facts("F")):
        debias(model, empty, method="constrained")


@pytest.mark.parametrize("method", ["pruning", "group-thresholds"])
def test_cross_fitted_selection_corrects_every_label(labels, method: str):
    model, cohort = labels
    result = debias(model, cohort, method=method, min_performance=0.5, selection="honest", seed=1, **QUICK.get(method, {}))
    assert set(result.labels) == set(LABELS)
    for name, own in result.labels.items():
        assert {"gap_honest", "gap_se", "performance_honest", "performance_se"} <= set(own.trace)
        assert np.isfinite(own.trace["gap_honest"].iloc[[0, own.chosen]]).all()
        assert own.goal.selection == "honest"
        # What the trace says of the chosen step on all rows is true of the network and the rule that came back.
        scores = predict(own.model, cohort.labelled(name))
        cells = Cells.of(own.rule.decide(scores), scores.y, scores.attribute)
        assert float(cells.worst_gap("eod")) == pytest.approx(own.trace["gap"].iloc[own.chosen], abs=5e-3)
    if METHODS[method].labels == ALL_AT_ONCE:  # one step for all labels
        assert len({own.chosen for own in result.labels.values()}) == 1
    if result.chosen == 0:
        assert all(torch.equal(v, model.state_dict()[k]) for k, v in result.model.state_dict().items())


def test_the_correction_of_one_label_is_that_of_the_label_alone():
    """The axis of labels has length one: the same steps, values and choice."""
    frame = labels_frame(900, 3).drop(columns="Mass")
    one = Cohort.from_frame(frame, label="Effusion", group="sex", reference="M", scale=False)
    many = replace(one, labels=("Effusion",), targets=one.y[:, None])
    net = fitted(network(one.inputs.shape[1], 1), many)
    goal = {"min_performance": 0.5, "selection": "honest", "seed": 1, "steps": 4}
    alone = debias(net, one, method="pruning", **goal)
    axis = debias(net, many, method="pruning", **goal).labels["Effusion"]
    for column in ("gap", "gap_honest", "gap_se", "performance_honest"):
        np.testing.assert_allclose(axis.trace[column], alone.trace[column], atol=1e-6)
    assert (axis.chosen, axis.met_in_sample) == (alone.chosen, alone.met_in_sample)


@pytest.mark.parametrize("kind", ["labels", "classes"])
def test_auto_takes_the_best_method_for_all(kind: str, labels, classes):
    model, cohort = labels if kind == "labels" else classes
    tried = ("pruning", "bias-gda")
    settings = {name: QUICK.get(name, {}) for name in tried}
    result = debias(model, cohort, method="auto", min_performance=0.4, seed=1, methods=tried, settings=settings)
    assert (result.method, result.ran in ("standard", *tried)) == ("auto", True)
    assert {own.ran for own in result.labels.values()} == {result.ran}
    alone = {
        name: debias(model, cohort, method=name, min_performance=0.4, seed=1, **settings.get(name, {})) for name in ("standard", *tried)
    }
    largest = {
        name: max(abs(own.trace["gap"].iloc[own.chosen]) for own in each.labels.values())
        for name, each in alone.items()
        if each.met_in_sample
    }
    if result.met_in_sample and set(largest) == {"standard", *tried}:
        reached = max(abs(own.trace["gap"].iloc[own.chosen]) for own in result.labels.values())
        assert reached <= max(largest.values())
    with pytest.raises(UnknownName):
        debias(model, cohort, method="auto", methods=("prunning",))
