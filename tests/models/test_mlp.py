"""A flat MLP takes the steps of the network that it was made from: gradients by autograd, Adam by torch, dropout by its own generator."""

import copy

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from equipoise.models import MLP, initial_mlp
from equipoise.models.mlp import FlatAdam, FlatMLP


def _network(inputs: int = 5) -> MLP:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = MLP(inputs, width=8, depth=3, dropout=0.0).double()
        network.train()(torch.randn(40, inputs, dtype=torch.float64))  # batch statistics of its own
    return network


def test_a_flat_mlp_is_a_copy_and_gives_the_network_back():
    network = _network()
    before = copy.deepcopy(network.state_dict())
    flat = FlatMLP(network)
    for name, value in flat.trained().state_dict().items():
        assert torch.equal(value, before[name]), name
    with torch.no_grad():
        flat.theta.add_(1.0)
    for name, parameter in flat.trained().named_parameters():
        assert torch.equal(parameter, before[name] + 1), name
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


def test_its_steps_equal_those_of_the_network_with_torch_adam():
    network = _network()
    flat, rate = FlatMLP(network), 2.0**-7  # exact in single precision
    ours, theirs = FlatAdam(flat, rate), torch.optim.Adam(network.parameters(), lr=rate)
    g = torch.Generator().manual_seed(1)
    for _ in range(5):
        x = torch.randn(16, 5, generator=g, dtype=torch.float64)
        y = (torch.rand(16, generator=g) > 0.5).double()
        F.binary_cross_entropy_with_logits(flat.logits(x, training=True), y).backward()
        ours.step()
        theirs.zero_grad()
        F.binary_cross_entropy_with_logits(network.train()(x), y).backward()
        theirs.step()
    x = torch.randn(700, 5, generator=g, dtype=torch.float64)
    torch.testing.assert_close(flat.evaluate(x), network.eval()(x).detach(), rtol=1e-9, atol=1e-9)


def test_dropout_masks_have_the_right_share_and_depend_on_the_generator():
    flat = FlatMLP(MLP(5))
    one, again, other = (flat.masks(64, np.random.default_rng(seed)) for seed in (0, 0, 1))
    assert one.shape == (11, 32, 64)
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    assert float((one == 0).float().mean()) == pytest.approx(0.05, abs=0.005)
    assert float(one.mean()) == pytest.approx(1.0, abs=0.01)


def test_initial_weights_depend_only_on_the_seed_and_not_on_the_global_generator():
    state = torch.random.get_rng_state()
    one, two, other = initial_mlp(4, 7), initial_mlp(4, 7), initial_mlp(4, 8)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.equal(one.out.weight, two.out.weight)
    assert not torch.equal(one.out.weight, other.out.weight)


@pytest.mark.parametrize("training", [True, False])
def test_the_gradient_by_hand_equals_autograd(training: bool):
    by_hand, recorded = FlatMLP(_network()), FlatMLP(_network())
    g = torch.Generator().manual_seed(0)
    x = torch.randn(16, 5, generator=g, dtype=torch.float64)
    y = (torch.rand(16, generator=g) > 0.5).double()
    by_hand.kept = 1 / (1 - round(0.05 * 65536) / 65536)
    masks = (torch.rand(4, 8, 16, generator=g) > 0.05).double() * by_hand.kept if training else None
    F.binary_cross_entropy_with_logits(recorded.logits(x, masks=masks, training=training), y).backward()
    by_hand.fill_gradient(x, lambda logits: (torch.sigmoid(logits) - y) / 16, masks=masks, training=training)
    torch.testing.assert_close(by_hand.gradient, recorded.gradient, rtol=1e-9, atol=1e-12)
    for mine, theirs in zip((*by_hand.means, *by_hand.variances), (*recorded.means, *recorded.variances), strict=True):
        torch.testing.assert_close(mine, theirs)
