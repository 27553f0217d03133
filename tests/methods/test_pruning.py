"""Influence is equation (5), and pruning sets pre-activations to zero exactly."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from equipoise.data import Parts
from equipoise.errors import BadInput
from equipoise.methods import METHODS, Label, Note
from equipoise.methods.pruning import PruningSettings, most_influential
from equipoise.models import Repairable, repairable, under_repair
from equipoise.models.units import CRITERIA
from support.facts import facts
from support.finite_differences import SMALLEST_GAP, gap_weights, shrunk
from support.goals import paper_goal
from support.networks import trained
from support.published import as_chosen, debias


@pytest.mark.parametrize("measure", ["spd", "eod"])
def test_influence_equals_finite_differences_of_the_proxy(measure: str):
    """Adding a small number to a unit's pre-activation at every input moves the proxy by N times its influence."""
    model, parts = trained("mlp")
    labels = Label.of(parts.valid, paper_goal(measure))
    for networks in (under_repair(model, parts.valid), Repairable(model, parts.valid.inputs)):
        assert networks.units("linears.*") == 24
        scores = networks.evaluate()
        look = labels.evaluate(scores)
        w = labels.functional(scores >= look.threshold)[1]
        seen, influence = networks.influence(w)
        np.testing.assert_allclose(seen, scores, atol=1e-6)
        for unit in (0, 9, 17, 23):
            layer, column = divmod(unit, 8)
            moved = []
            for step in (1e-6, -1e-6):
                changed = copy.deepcopy(model).double().eval()
                with torch.no_grad():
                    changed.linears[layer].bias[column] += step
                    f = torch.sigmoid(changed(parts.valid.inputs.double()))
                moved.append(float((f * torch.from_numpy(w).to(f)).sum()))
            slope = (moved[0] - moved[1]) / 2e-6
            assert influence[unit] * len(parts.valid) == pytest.approx(slope, abs=2e-4)


def test_pruned_units_are_exactly_off_and_the_state_dict_keeps_its_shape():
    model, parts = trained("mlp")
    result = as_chosen(model, parts.valid, "pruning", SMALLEST_GAP, units=2, layers="linears.1")
    assert {k: v.shape for k, v in result.model.state_dict().items()} == {k: v.shape for k, v in model.state_dict().items()}
    off = (result.model.linears[1].weight == 0).all(1)
    steps = int(result.trace["step"].iloc[result.chosen])
    assert int(off.sum()) == 2 * steps > 0
    assert (result.model.linears[1].bias[off] == 0).all()
    assert torch.equal(result.model.linears[0].weight, model.linears[0].weight)
    assert result.notes[-1] == Note("pruned", "units", {"switched_off": 2 * steps, "of": 8, "reselected": False})


def test_a_pruned_unit_is_never_chosen_again():
    influence = torch.tensor([9.0, 1.0, 3.0, 2.0])
    assert most_influential(influence, torch.tensor([True, False, False, False]), 2).tolist() == [False, False, True, True]
    assert not most_influential(influence, torch.ones(4, dtype=torch.bool), 2).any()


def test_a_pruned_unit_may_be_chosen_again_as_published():
    """At a pruned unit the influence is zero, so that it is chosen again once all others would widen the gap; then nothing changes."""
    model, parts = trained("mlp")
    ours, theirs = (
        as_chosen(model, parts.valid, "pruning", SMALLEST_GAP, units=1, layers="linears.1", stop_below=0.0, reselect=again)
        for again in (False, True)
    )
    assert len(ours.trace) == len(theirs.trace) == 9
    same = int((ours.trace["gap"] == theirs.trace["gap"]).cumprod().sum())
    assert 1 < same < 9  # they part once a unit is chosen again
    level = theirs.trace[["gap", "performance", "threshold"]].diff().abs().sum(axis=1) == 0
    assert level.iloc[same]
    assert not (ours.trace[["gap", "performance", "threshold"]].diff().abs().sum(axis=1) == 0).iloc[same]
    assert theirs.notes[-1].numbers["reselected"]


def test_steps_are_counted_in_units():
    model, parts = trained("mlp")
    result = debias(
        model, parts.valid, method="pruning", measure="spd", min_performance=0.0, units=3, layers="linears.1", max_steps=2, stop_below=0.0
    )
    assert METHODS[result.method].counts == "units pruned"
    assert (result.trace["step"] * result.pace).tolist() == [0, 3, 6]


def test_settings():
    assert PruningSettings(units=5).units_per_step(352) == 5
    assert PruningSettings(steps=10).units_per_step(352) == 36
    assert PruningSettings().units_per_step(352) == 1
    assert PruningSettings().units_per_step(35_000) == 100
    with pytest.raises(BadInput, match=facts("units", "steps")):
        PruningSettings(units=1, steps=2)
    with pytest.raises(BadInput, match=facts("units", 0)):
        PruningSettings(units=0)
    with pytest.raises(BadInput, match="max_steps=0"):
        PruningSettings(max_steps=0)
    with pytest.raises(BadInput, match="taylor"):
        PruningSettings(criterion="tailor")
    with pytest.raises(BadInput, match=facts("layers", "cut")) as several:
        PruningSettings(granularity="input", layers="linears.*", cut="outgoing")
    assert len(several.value.problems) == 2
    with pytest.raises(BadInput, match=facts("gradient", "taylor", "second-order")):
        PruningSettings(granularity="head", criterion="second-order")


def test_steps_can_be_limited():
    model, parts = trained("mlp")
    result = debias(
        model, parts.valid, method="pruning", measure="spd", min_performance=0.0, units=1, layers="linears.1", max_steps=3, stop_below=0.0
    )
    assert result.trace["step"].tolist() == [0, 1, 2, 3]


def test_outgoing_weights_can_be_cut_instead_and_differ_through_batch_norm():
    model, parts = trained("mlp")
    settings = {"units": 1, "layers": "linears.1"}
    result = as_chosen(model, parts.valid, "pruning", SMALLEST_GAP, cut="outgoing", **settings)
    off = (result.model.linears[2].weight == 0).all(0).nonzero()[:, 0]
    assert len(off) == int(result.trace["step"].iloc[result.chosen]) > 0
    assert torch.equal(result.model.linears[1].weight, model.linears[1].weight)
    # A unit whose outgoing weights are zero has no say: whatever its pre-activation, the output stays.
    changed = copy.deepcopy(result.model)
    with torch.no_grad():
        changed.linears[1].bias[off] += 3.0
        assert torch.equal(changed(parts.valid.inputs), result.model(parts.valid.inputs))
    assert not result.trace["gap"].equals(as_chosen(model, parts.valid, "pruning", SMALLEST_GAP, **settings).trace["gap"])
    own, own_parts = trained("perceptron")
    with pytest.raises(BadInput, match=facts("MLP")):
        debias(own, own_parts.valid, method="pruning", measure="spd", cut="outgoing", steps=2)


def test_the_influence_of_a_channel_is_the_sum_over_its_units():
    model, parts = trained("cnn")
    labels = Label.of(parts.valid, paper_goal("spd"))
    influences = []
    for granularity in ("unit", "channel"):
        network = Repairable(model, parts.valid.inputs)
        count = network.units("0", granularity)
        scores = network.evaluate()
        influences.append(network.influence(labels.functional(scores >= labels.evaluate(scores).threshold)[1])[1])
        assert len(influences[-1]) == count
    assert len(influences[0]) == 4 * 8 * 8
    np.testing.assert_allclose(influences[0].reshape(4, -1).sum(1), influences[1], rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize("kind", ["mlp", "cnn"])
def test_scores_beside_influence_tell_nothing_that_the_network_does_not(kind: str):
    """Positives go through a pass with gradients and negatives, for eod, through one without: rounding must not tell them apart."""
    model, parts = trained(kind)
    told = copy.deepcopy(model)
    with torch.no_grad():
        last = [m for m in told.modules() if isinstance(m, torch.nn.Linear)][-1]
        last.weight.zero_()
        last.bias.fill_(0.1234567)
    labels = Label.of(parts.valid, paper_goal("eod"))
    networks = Repairable(told, parts.valid.inputs) if kind == "cnn" else under_repair(told, parts.valid)
    networks.units("*")
    model_scores = Repairable(model, parts.valid.inputs).evaluate()
    w = labels.functional(model_scores >= labels.evaluate(model_scores).threshold)[1]
    assert len(np.unique(w == 0)) == 2
    scores, _ = networks.influence(w)
    assert len(np.unique(scores)) == 1
    np.testing.assert_array_equal(scores, networks.evaluate())
    assert labels.evaluate(scores).performance == pytest.approx(0.5)


def paths(kind: str, parts: Parts, model: nn.Module) -> list[Repairable]:
    """Every way in which a network of this kind may be under repair."""
    alone = Repairable(model, parts.valid.inputs)
    return [alone, under_repair(model, parts.valid)] if kind == "mlp" else [alone]


UNITS = {"mlp": [("linears.0", 3), ("linears.1", 1), ("linears.2", 7)], "cnn": [("0", 2), ("3", 1), ("6", 5)]}
STARTS = {"mlp": {"linears.0": 0, "linears.1": 8, "linears.2": 16}, "cnn": {"0": 0, "3": 4, "6": 8}}


@pytest.mark.parametrize("kind", ["mlp", "cnn"])
@pytest.mark.parametrize("measure", ["spd", "eod"])
def test_taylor_and_second_order_equal_finite_differences_of_the_proxy(kind: str, measure: str):
    """What the proxy does when a unit is scaled by 1 - share: its slope and its curvature in the share, at 0."""
    model, parts = trained(kind)
    x, n, step = parts.valid.inputs, len(parts.valid), 1e-5
    for network in paths(kind, parts, model):
        network.units("*", "channel")
        w = gap_weights(network, parts, measure)
        first, second = (network.influence(w, criterion)[1] * n for criterion in ("taylor", "second-order"))
        assert float((first - second).abs().max()) > 1e-3
        for layer, unit in UNITS[kind]:
            below, here, above = (shrunk(model, layer, unit, x, w, share) for share in (-step, 0.0, step))
            slope, curvature = (above - below) / (2 * step), (above - 2 * here + below) / step**2
            at = STARTS[kind][layer] + unit
            assert float(first[at]) == pytest.approx(-slope, abs=1e-5)
            assert float(second[at]) == pytest.approx(-(slope + curvature / 2), abs=1e-4)


def test_the_second_order_says_better_than_the_first_what_pruning_does():
    """In the last hidden layer, where the logit is linear in each unit."""
    model, parts = trained("mlp")
    (network,) = paths("mlp", parts, model)[:1]
    network.units("linears.2")
    w, n, x = gap_weights(network, parts, "spd"), len(parts.valid), parts.valid.inputs
    true = [shrunk(model, "linears.2", unit, x, w, 0.0) - shrunk(model, "linears.2", unit, x, w, 1.0) for unit in range(8)]
    errors = [np.abs(network.influence(w, c)[1].numpy() * n - true).max() for c in ("gradient", "taylor", "second-order")]
    assert errors[2] < errors[1] < errors[0]


@pytest.mark.parametrize("kind", ["mlp", "cnn"])
def test_difference_equals_a_direct_computation(kind: str):
    """The mean pre-activation of one group less that of the other, turned by whether the unit raises scores."""
    model, parts = trained(kind)
    layer = UNITS[kind][1][0]
    cohort, seen = parts.valid, []
    with torch.no_grad():  # a unit that lowers scores is to be among them
        model.get_submodule(layer).weight[0] *= -1
    handle = model.get_submodule(layer).register_forward_hook(lambda _m, _i, output: seen.append(output) or output.clone())
    f = torch.sigmoid(model.eval()(cohort.inputs).reshape(-1))
    handle.remove()
    positive, second = cohort.y == 1, cohort.attribute.codes == 1
    groups = [torch.from_numpy(positive & (second == which)) for which in (False, True)]
    slope = torch.autograd.grad(sum(f[rows].mean() for rows in groups), seen[0])[0]
    over = (2, 3) if kind == "cnn" else ()
    a, g = (t.detach().sum(over) if over else t.detach() for t in (seen[0], slope))
    expected = (a[groups[1]].mean(0) - a[groups[0]].mean(0)) * g.sum(0).sign()
    assert len(g.sum(0).sign().unique()) == 2
    for network in paths(kind, parts, model):
        network.units(layer, "channel")
        w = gap_weights(network, parts, "eod")
        found = network.influence(w, "difference")[1] * len(cohort)
        sign = np.sign(w[(positive & second).argmax()])  # which of the two is taken from the other
        np.testing.assert_allclose(found, expected * sign, atol=2e-5)


@pytest.mark.parametrize("criterion", CRITERIA)
@pytest.mark.parametrize("granularity", ["unit", "input"])
def test_in_pieces_and_flat_every_criterion_is_the_same(criterion: str, granularity: str, monkeypatch: pytest.MonkeyPatch):
    model, parts = trained("mlp")
    alone, flat = paths("mlp", parts, model)
    found = []
    for network, at_once in ((alone, 2**21), (alone, 1), (flat, 1)):
        monkeypatch.setattr(repairable, "VALUES_WITH_GRAPH", {"cpu": at_once})
        assert network.units("*", granularity) == (6 if granularity == "input" else 24)
        found.append(network.influence(gap_weights(network, parts, "eod"), criterion)[1])
    for other in found[1:]:
        torch.testing.assert_close(found[0].double(), other.double(), rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("criterion", CRITERIA)
@pytest.mark.parametrize("kind", ["mlp", "perceptron"])
def test_dropped_columns_of_the_input_have_no_say(kind: str, criterion: str):
    model, parts = trained(kind)
    result = as_chosen(model, parts.valid, "pruning", SMALLEST_GAP, units=1, stop_below=0.0, granularity="input", criterion=criterion)
    assert {k: v.shape for k, v in result.model.state_dict().items()} == {k: v.shape for k, v in model.state_dict().items()}
    first, before = ((m.linears if kind == "mlp" else m)[0] for m in (result.model, model))
    off = (first.weight == 0).all(0)
    step = int(result.trace["step"].iloc[result.chosen])
    assert step == int(off.sum()) > 0
    assert len(result.trace) == 7
    assert result.notes[-1] == Note("pruned", "columns of the input", {"switched_off": step, "of": 6, "reselected": False})
    assert torch.equal(first.weight[:, ~off], before.weight[:, ~off])
    assert torch.equal(first.bias, before.bias)
    changed = parts.valid.inputs.clone()
    changed[:, off] = 7.0
    with torch.no_grad():
        assert torch.equal(result.model(changed), result.model(parts.valid.inputs))


def test_the_column_that_holds_the_group_goes_first():
    """Column 1 of the cohort is the group and noise, and nothing else depends on the group but by way of the label."""
    model, parts = trained("perceptron")
    network = Repairable(model, parts.valid.inputs)
    network.units("*", "input")
    w = gap_weights(network, parts, "eod")
    gap = Label.of(parts.valid, paper_goal("eod")).evaluate(network.evaluate()).gap
    for criterion in ("taylor", "second-order", "difference"):
        assert int((network.influence(w, criterion)[1] * np.sign(gap)).argmax()) == 1
