"""Influence is equation (5), and pruning sets pre-activations to zero exactly."""

import copy
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from equipoise.errors import BadInput
from equipoise.measures.functional import proxy
from equipoise.methods.base import Goal
from equipoise.methods.pruning import Settings, most_influential
from equipoise.methods.registry import debias
from equipoise.methods.selection import Labels
from equipoise.models.replicas import replicas
from equipoise.models.single import SingleReplica

sys.path.insert(0, str(Path(__file__).parent))
from networks import trained


@pytest.mark.parametrize("measure", ["spd", "eod"])
def test_influence_equals_finite_differences_of_the_proxy(measure: str):
    """Adding a small number to a unit's pre-activation at every input moves the proxy by N times its influence."""
    model, parts = trained("mlp")
    labels = Labels.of([parts.valid], Goal(measure))
    for networks in (replicas([model], [parts.valid]), SingleReplica(model, parts.valid.inputs)):
        assert networks.units("linears.*") == 24
        scores = networks.evaluate()
        look = labels.look(scores)
        w = labels.weights(scores, look.threshold)
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
                moved.append(float(proxy(f, torch.from_numpy(w[0]))))
            slope = (moved[0] - moved[1]) / 2e-6
            assert influence[0, unit] * len(parts.valid) == pytest.approx(slope, abs=2e-4)


def test_pruned_units_are_exactly_off_and_the_state_dict_keeps_its_shape():
    model, parts = trained("mlp")
    result = debias(model, parts.valid, method="pruning", measure="spd", floor=0.0, units=2, layers="linears.1")
    assert {k: v.shape for k, v in result.model.state_dict().items()} == {k: v.shape for k, v in model.state_dict().items()}
    off = (result.model.linears[1].weight == 0).all(1)
    steps = int(result.trace["step"].iloc[result.chosen])
    assert int(off.sum()) == 2 * steps
    assert (result.model.linears[1].bias[off] == 0).all()
    assert torch.equal(result.model.linears[0].weight, model.linears[0].weight)
    assert f"{2 * steps} of 8 units" in result.notes[-1]


def test_a_pruned_unit_is_never_chosen_again():
    pruned = torch.tensor([[True, False, False, False], [False, False, False, True]])
    influence = torch.tensor([[9.0, 1.0, 3.0, 2.0], [1.0, 4.0, 2.0, 8.0]])
    marked = most_influential(influence, pruned, 2)
    assert marked.tolist() == [[False, False, True, True], [False, True, True, False]]
    everything = most_influential(influence, torch.ones(2, 4, dtype=torch.bool), 2)
    assert not everything.any()


def test_settings():
    assert Settings(units=5).a_step(352) == 5
    assert Settings(steps=10).a_step(352) == 36
    assert Settings().a_step(352) == 1
    assert Settings().a_step(35_000) == 100
    with pytest.raises(BadInput, match="not both"):
        Settings(units=1, steps=2)
    with pytest.raises(BadInput, match="at least one"):
        Settings(units=0)
    with pytest.raises(BadInput, match="at_most=0"):
        Settings(at_most=0)


def test_steps_can_be_limited():
    model, parts = trained("mlp")
    result = debias(model, parts.valid, method="pruning", measure="spd", floor=0.0, units=1, layers="linears.1", at_most=3, stop=0.0)
    assert result.trace["step"].tolist() == [0, 1, 2, 3]


def test_outgoing_weights_can_be_cut_instead_and_differ_through_batch_norm():
    model, parts = trained("mlp")
    settings = {"method": "pruning", "measure": "spd", "floor": 0.0, "units": 1, "layers": "linears.1"}
    result = debias(model, parts.valid, cut="outgoing", **settings)
    off = (result.model.linears[2].weight == 0).all(0).nonzero()[:, 0]
    assert len(off) == int(result.trace["step"].iloc[result.chosen])
    assert torch.equal(result.model.linears[1].weight, model.linears[1].weight)
    # A unit whose outgoing weights are zero has no say: whatever its pre-activation, the output stays.
    changed = copy.deepcopy(result.model)
    with torch.no_grad():
        changed.linears[1].bias[off] += 3.0
        assert torch.equal(changed(parts.valid.inputs), result.model(parts.valid.inputs))
    assert not result.trace["gap"].equals(debias(model, parts.valid, **settings).trace["gap"])
    own, own_parts = trained("perceptron")
    with pytest.raises(BadInput, match="known for the MLP alone"):
        debias(own, own_parts.valid, method="pruning", measure="spd", cut="outgoing", steps=2)


def test_the_influence_of_a_channel_is_the_sum_over_its_units():
    model, parts = trained("cnn")
    labels = Labels.of([parts.valid], Goal("spd"))
    influences = []
    for channels in (False, True):
        network = SingleReplica(model, parts.valid.inputs)
        count = network.units("0", channels)
        scores = network.evaluate()
        influences.append(network.influence(labels.weights(scores, labels.look(scores).threshold))[1][0])
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
    labels = Labels.of([parts.valid], Goal("eod"))
    networks = SingleReplica(told, parts.valid.inputs) if kind == "cnn" else replicas([told], [parts.valid])
    networks.units("*")
    w = labels.weights(model_scores := SingleReplica(model, parts.valid.inputs).evaluate(), labels.look(model_scores).threshold)
    assert len(np.unique(w == 0)) == 2
    scores, _ = networks.influence(w)
    assert len(np.unique(scores)) == 1
    np.testing.assert_array_equal(scores, networks.evaluate())
    assert labels.look(scores).performance == pytest.approx(0.5)
