"""Pruning of attention heads, and layers that cannot be pruned."""

import copy

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from equipoise.errors import BadInput
from equipoise.methods import Note
from equipoise.models import Repairable
from support.facts import facts
from support.finite_differences import SMALLEST_GAP, gap_weights, shrunk
from support.networks import trained
from support.published import as_chosen, debias


class Around(nn.Module):
    """A network that sees its input twice."""

    output = "logit"

    def __init__(self) -> None:
        super().__init__()
        self.first, self.out = nn.Linear(6, 4), nn.Linear(10, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.cat([torch.relu(self.first(x)), x], 1))


def test_columns_need_a_linear_layer_that_takes_in_the_whole_input():
    model, parts = trained("cnn")
    with pytest.raises(BadInput, match=facts("(1, 8, 8)")):
        debias(model, parts.valid, method="pruning", measure="spd", granularity="input")
    _, parts = trained("perceptron")
    with pytest.raises(BadInput, match=facts("Sequential", "inputs")):
        debias(nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 1)), parts.valid, method="pruning", measure="spd", granularity="input")
    with pytest.raises(BadInput, match=facts("first")):
        debias(Around(), parts.valid, method="pruning", measure="spd", granularity="input")


class Attentive(nn.Module):
    """The six columns as tokens, one layer of attention with four heads of three, and the mean of what it says."""

    output = "logit"

    def __init__(self, bias: bool = True) -> None:
        super().__init__()
        self.spread = nn.Parameter(torch.randn(6, 12))
        self.attention = nn.MultiheadAttention(12, 4, batch_first=True, bias=bias)
        self.out = nn.Linear(12, 1)

    def forward(self, x: Tensor) -> Tensor:
        tokens = torch.tanh(x[:, :, None] * self.spread)
        return self.out(torch.relu(self.attention(tokens, tokens, tokens, need_weights=False)[0]).mean(1))

    def by_hand(self, x: Tensor, head: int, scale: float, shift: float) -> Tensor:
        """The logits if what a head says is scaled and shifted before it is projected, without torch's attention."""
        tokens = torch.tanh(x[:, :, None] * self.spread)
        q, k, v = (tokens @ self.attention.in_proj_weight.T + self.attention.in_proj_bias).chunk(3, -1)
        q, k, v = (t.unflatten(-1, (4, 3)).transpose(1, 2) for t in (q, k, v))
        said = torch.softmax(q @ k.transpose(-1, -2) / 3**0.5, -1) @ v
        said = torch.stack([said[:, h] * scale + shift if h == head else said[:, h] for h in range(4)], 2).flatten(2)
        return self.out(torch.relu(said @ self.attention.out_proj.weight.T + self.attention.out_proj.bias).mean(1))[:, 0]


def attentive(bias: bool = True) -> Attentive:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return Attentive(bias).eval()


def test_the_influence_of_heads_equals_finite_differences_of_an_attention_by_hand():
    _, parts = trained("perceptron")
    model, step = attentive(), 1e-5
    network = Repairable(model, parts.valid.inputs)
    assert network.units("*", "head") == 4
    w, exact, x = gap_weights(network, parts, "eod"), copy.deepcopy(model).double(), parts.valid.inputs.double()
    np.testing.assert_allclose(network.influence(w)[0], network.evaluate(), atol=1e-6)
    for criterion, moved in (("taylor", lambda t: (1 + t, 0.0)), ("gradient", lambda t: (1.0, t))):
        influence = network.influence(w, criterion)[1] * len(parts.valid)
        for head in range(4):
            with torch.no_grad():
                up, down = ((torch.sigmoid(exact.by_hand(x, head, *moved(t))) * torch.from_numpy(w)).sum() for t in (step, -step))
            assert float(influence[head]) == pytest.approx(float(up - down) / (2 * step), abs=1e-5)


def test_pruned_heads_have_no_say_and_the_state_dict_keeps_its_shape():
    _, parts = trained("perceptron")
    model = attentive()
    result = as_chosen(model, parts.valid, "pruning", SMALLEST_GAP, units=1, stop_below=0.0, granularity="head", criterion="taylor")
    assert {k: v.shape for k, v in result.model.state_dict().items()} == {k: v.shape for k, v in model.state_dict().items()}
    off = (result.model.attention.out_proj.weight == 0).all(0).view(4, 3)
    step = int(result.trace["step"].iloc[result.chosen])
    assert int(off.all(1).sum()) == int(off.any(1).sum()) == step > 0
    assert result.notes[-1] == Note("pruned", "heads of attention", {"switched_off": step, "of": 4, "reselected": False})
    network = Repairable(model, parts.valid.inputs)
    network.units("attention", "head")
    network.prune(torch.tensor([False, True, False, False]))
    with torch.no_grad():
        torch.testing.assert_close(network.model(parts.valid.inputs)[:, 0], model.by_hand(parts.valid.inputs, 1, 0.0, 0.0))


def test_heads_need_attention_and_for_the_gradient_a_bias():
    model, parts = trained("perceptron")
    with pytest.raises(BadInput, match=facts("nn.MultiheadAttention", "*")):
        debias(model, parts.valid, method="pruning", measure="spd", granularity="head")
    with pytest.raises(BadInput, match="taylor"):
        debias(attentive(bias=False), parts.valid, method="pruning", measure="spd", granularity="head")


class TokensFirst(nn.Module):
    """A layer whose output has the rows second."""

    output = "logit"

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.out = nn.Linear(1, 4), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.relu(self.inner(x.T[:, :, None])).mean(0))


def test_a_layer_in_which_rows_cannot_be_told_apart_is_named_where_that_matters():
    _, parts = trained("perceptron")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = TokensFirst()
    with pytest.raises(BadInput, match=facts("inner")):
        debias(model, parts.valid, method="pruning", measure="spd", criterion="second-order")
    network, x = Repairable(model, parts.valid.inputs), parts.valid.inputs
    network.units("inner")
    w = gap_weights(network, parts, "spd")
    influence = network.influence(w, "taylor")[1] * len(x)
    for unit in range(4):
        slope = (shrunk(model, "inner", unit, x, w, 1e-5) - shrunk(model, "inner", unit, x, w, -1e-5)) / 2e-5
        assert float(influence[unit]) == pytest.approx(-slope, abs=1e-5)
