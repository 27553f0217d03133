"""Recalibrated networks: the map is folded into the last layer, with the same keys and shapes, or wrapped around the network."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from equipoise.models import (
    MLP,
    BiasScore,
    Checkpoint,
    FeatureCache,
    FeatureChoice,
    Heads,
    ManyBiasScores,
    OneOutput,
    fit_probe,
    load_heads,
    recalibrated_network,
    save_weights,
)
from equipoise.models.export import HEADS_FILE
from equipoise.models.features import Recalibrated

SLOPE, SHIFT = 1.7, -0.4


class TwoClasses(nn.Module):
    """The difference of two outputs: no column of the last layer is the logit."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        return self.head(x)[:, 1] - self.head(x)[:, 0]


def _networks() -> dict[str, tuple[nn.Module, str, bool]]:
    torch.manual_seed(0)
    return {
        "mlp": (MLP(4, width=5, depth=2), "logit", True),
        "sequential": (nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 1)), "logit", True),
        "sigmoid": (nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 1), nn.Sigmoid()), "probability", True),
        "one of several": (OneOutput(nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)), 1, output="logit"), "logit", True),
        "no bias": (nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 1, bias=False)), "logit", False),
        "bent afterwards": (nn.Sequential(nn.Linear(4, 1), nn.Softplus()), "logit", False),
        "two classes": (TwoClasses(), "logit", False),
    }


def _logit(raw: torch.Tensor, output: str) -> torch.Tensor:
    return torch.logit(raw.double()) if output == "probability" else raw.double()


@pytest.mark.parametrize("name", list(_networks()))
def test_the_logit_is_mapped_and_the_keys_are_unchanged_if_a_layer_can_absorb_it(name):
    network, output, foldable = _networks()[name]
    network.eval()
    x, before = torch.randn(50, 4), copy.deepcopy(network.state_dict())
    found, folded = recalibrated_network(network, x, {0: (SLOPE, SHIFT)}, output, wrap=True)
    assert folded == foldable
    with torch.no_grad():
        expected, got = SLOPE * _logit(network(x), output) + SHIFT, _logit(found(x), output)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
    assert found(x).shape == network(x).shape
    assert all(torch.equal(value, before[key]) for key, value in network.state_dict().items())  # the one given in is not changed
    if folded:
        assert {k: v.shape for k, v in found.state_dict().items()} == {k: v.shape for k, v in before.items()}
    else:
        assert isinstance(found, Recalibrated)
    assert not any(module._forward_hooks for module in (*network.modules(), *found.modules()))


def test_several_outputs_have_their_own_maps_and_others_are_unchanged():
    torch.manual_seed(1)
    network, x = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 4)).eval(), torch.randn(40, 4)
    found, folded = recalibrated_network(network, x, {1: (2.0, 0.5), 3: (0.5, -1.0)}, "logit", wrap=False)
    assert folded
    with torch.no_grad():
        old, new = network(x), found(x)
    torch.testing.assert_close(new[:, 1], 2.0 * old[:, 1] + 0.5)
    torch.testing.assert_close(new[:, 3], 0.5 * old[:, 3] - 1.0)
    assert torch.equal(new[:, [0, 2]], old[:, [0, 2]])


def _bias_score(network: nn.Module, x: torch.Tensor) -> BiasScore:
    reading = FeatureChoice.of(network, x, "inputs")
    logits, seen = FeatureCache(network, x).read(reading).arrays()
    rng = np.random.default_rng(0)
    folds = np.arange(len(x)) % 3
    task = fit_probe(np.column_stack([seen, logits]), rng.integers(0, 2, len(x)), 2, folds, free=1)
    group = fit_probe(seen, rng.integers(0, 2, len(x)), 2, folds)
    return BiasScore(network, reading, Heads(task, (group,), (1,), 0.4), np.array([[0.3, -0.2]]), "logit").eval()


def test_bias_scores_absorb_the_map(tmp_path):
    torch.manual_seed(2)
    network, x = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 1)).eval(), torch.randn(60, 4)
    model = _bias_score(network, x)
    found, folded = recalibrated_network(model, x, {0: (SLOPE, SHIFT)}, "logit", wrap=True)
    assert folded
    with torch.no_grad():
        torch.testing.assert_close(found(x), SLOPE * model(x) + SHIFT)
    again, _ = recalibrated_network(found, x, {0: (2.0, 1.0)}, "logit", wrap=True)
    with torch.no_grad():
        torch.testing.assert_close(again(x), 2.0 * found(x) + 1.0)
    save_weights(found, tmp_path)
    with torch.no_grad():
        assert torch.equal(load_heads(copy.deepcopy(network), tmp_path / HEADS_FILE)(x), found(x))


def test_one_head_of_many_is_recalibrated():
    torch.manual_seed(3)
    network, x = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2)).eval(), torch.randn(60, 4)
    head = _bias_score(OneOutput(network, 1, output="logit"), x)
    many = ManyBiasScores(network, {1: head}, "logit").eval()
    found, _ = recalibrated_network(many, x, {1: (SLOPE, SHIFT)}, "logit", wrap=False)
    with torch.no_grad():
        torch.testing.assert_close(found(x)[:, 1], SLOPE * many(x)[:, 1] + SHIFT)
        assert torch.equal(found(x)[:, 0], many(x)[:, 0])
    other = recalibrated_network(many, x, {0: (SLOPE, SHIFT)}, "logit", wrap=False)
    assert other == (None, False)  # an output that no repair has changed


def test_a_map_around_a_network_is_saved_and_loaded(tmp_path):
    network = _networks()["no bias"][0].eval()
    x = torch.randn(9, 4)
    found, _ = recalibrated_network(network, x, {0: (SLOPE, SHIFT)}, "logit", wrap=True)
    written = save_weights(found, tmp_path, Checkpoint(network.state_dict()))
    assert set(written["files"]) == {"repaired.safetensors", HEADS_FILE}
    with torch.no_grad():
        assert torch.equal(load_heads(copy.deepcopy(network), tmp_path / HEADS_FILE)(x), found(x))
