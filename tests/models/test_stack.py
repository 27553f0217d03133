"""A stack of networks gives the same results as the networks in a loop."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from equipoise.data import Cohort, Parts, split
from equipoise.models import MLP, Training, initial_mlp
from equipoise.models.optimisers import StackedAdam
from equipoise.models.stack import Snapshot, Stack
from equipoise.models.training import _StackedRun


def _networks(count: int, inputs: int = 5) -> list[MLP]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return [MLP(inputs, width=8, depth=3, dropout=0.0).double() for _ in range(count)]


def _parts(seed: int, n: int = 300) -> Parts:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 4)).astype(np.float32)
    y = (x[:, 0] + rng.normal(size=n) > 0).astype(int)
    return split(Cohort.from_arrays(torch.from_numpy(x), y, rng.choice(["F", "M"], n)), seed=seed)


def test_stacking_and_unstacking_changes_nothing():
    networks = _networks(3)
    for network in networks:
        network(torch.randn(32, 5, dtype=torch.float64))  # batch statistics of their own
    for original, back in zip(networks, Stack(networks, torch.float64).unstack(), strict=True):
        for name, value in original.state_dict().items():
            if "num_batches" not in name:
                assert torch.equal(back.state_dict()[name], value), name


def test_steps_of_a_stack_equal_steps_of_each_network_with_torch_adam():
    networks = _networks(3)
    stack = Stack(networks, torch.float64)
    ours = StackedAdam(stack, torch.tensor([1e-2, 1e-3, 1e-2], dtype=torch.float64))
    theirs = [torch.optim.Adam(m.parameters(), lr=lr) for m, lr in zip(networks, (1e-2, 1e-3, 1e-2), strict=True)]
    g = torch.Generator().manual_seed(1)
    for _ in range(5):
        x = torch.randn(3, 16, 5, generator=g, dtype=torch.float64)
        y = (torch.rand(3, 16, generator=g) > 0.5).double()
        F.binary_cross_entropy_with_logits(stack.logits(x, training=True), y, reduction="none").mean(1).sum().backward()
        ours.step()
        for k, (network, optimiser) in enumerate(zip(networks, theirs, strict=True)):
            optimiser.zero_grad()
            F.binary_cross_entropy_with_logits(network.train()(x[k]), y[k]).backward()
            optimiser.step()
    x = torch.randn(3, 700, 5, generator=g, dtype=torch.float64)
    expected = torch.stack([m.eval()(x[k]) for k, m in enumerate(networks)])
    torch.testing.assert_close(stack.evaluate(x), expected, rtol=1e-9, atol=1e-9)


def test_dropout_masks_have_the_right_share_and_depend_on_the_replicate():
    stack = Stack([MLP(5) for _ in range(3)])

    def masks(count: int) -> torch.Tensor:
        return Stack([MLP(5)] * count).masks(64, [np.random.default_rng(k) for k in range(count)])

    three, one = masks(3), masks(1)
    assert torch.equal(three[:, :1], one)
    assert float((three == 0).float().mean()) == pytest.approx(0.05, abs=0.005)
    assert float(three.mean()) == pytest.approx(1.0, abs=0.01)
    assert not torch.equal(three[:, 0], three[:, 1])
    assert stack.masks(8, [np.random.default_rng(0)] * 3).shape == (11, 3, 32, 8)


def test_a_snapshot_is_a_copy_and_is_restored_per_replicate():
    stack = Stack(_networks(2), torch.float64)
    before = stack.theta.detach().clone()
    kept = Snapshot.of(stack)
    with torch.no_grad():
        stack.theta.add_(1.0)
    stack.load(kept, torch.tensor([1]))
    changed = stack.owner == 0
    assert torch.equal(stack.theta[~changed], before[~changed])
    assert torch.equal(stack.theta[changed], before[changed] + 1)
    kept.update(stack, torch.tensor([0]))
    assert torch.equal(kept.theta, stack.theta)


def test_a_stack_trains_each_replicate_as_a_single_network_with_early_stopping():
    """In double precision, where rounding does not grow into another network over 25 epochs."""
    parts = [_parts(seed) for seed in range(4)]
    settings = Training(epochs=25, patience=3, plateau=1, batch=32)

    def run(chosen: list[int], seen: list[int]) -> list[MLP]:
        stack = Stack([initial_mlp(4, k).double() for k in chosen], torch.float64)
        data = []
        for part in ("train", "valid"):
            cohorts = [getattr(parts[k], part) for k in chosen]
            data += [torch.stack([c.inputs for c in cohorts]).double(), torch.from_numpy(np.stack([c.y for c in cohorts])).double()]
        return _StackedRun(stack, *data, chosen, settings).run(lambda epoch, _: seen.append(epoch))

    together = run([0, 1, 2, 3], [])
    epochs = []
    for k, p in enumerate(parts):
        seen: list[int] = []
        alone = run([k], seen)[0]
        epochs.append(seen[-1])
        with torch.no_grad():
            x = p.test.inputs.double()
            torch.testing.assert_close(together[k](x), alone(x), rtol=1e-6, atol=1e-6)
    assert len(set(epochs)) > 1  # they did stop at different times


def test_initial_weights_depend_only_on_the_seed_and_not_on_the_global_generator():
    state = torch.random.get_rng_state()
    one, two, other = initial_mlp(4, 7), initial_mlp(4, 7), initial_mlp(4, 8)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.equal(one.out.weight, two.out.weight)
    assert not torch.equal(one.out.weight, other.out.weight)


@pytest.mark.parametrize("training", [True, False])
def test_the_gradient_by_hand_equals_autograd(training: bool):
    networks = _networks(3)
    for network in networks:
        network.train()(torch.randn(40, 5, dtype=torch.float64))
    by_hand, recorded = Stack(networks, torch.float64), Stack(networks, torch.float64)
    g = torch.Generator().manual_seed(0)
    x = torch.randn(3, 16, 5, generator=g, dtype=torch.float64)
    y = (torch.rand(3, 16, generator=g) > 0.5).double()
    limit = round(0.05 * 65536) / 65536
    for stack in (by_hand, recorded):
        stack.dropout = 0.05
    masks = (torch.rand(4, 3, 8, 16, generator=g) > 0.05).double() / (1 - limit) if training else None
    F.binary_cross_entropy_with_logits(recorded.logits(x, masks=masks, training=training), y, reduction="none").mean(1).sum().backward()
    by_hand.fill_gradient(x, lambda logits: (torch.sigmoid(logits) - y) / 16, masks=masks, training=training)
    torch.testing.assert_close(by_hand.gradient, recorded.gradient, rtol=1e-9, atol=1e-12)
    for mine, theirs in zip((*by_hand.means, *by_hand.variances), (*recorded.means, *recorded.variances), strict=True):
        torch.testing.assert_close(mine, theirs)
