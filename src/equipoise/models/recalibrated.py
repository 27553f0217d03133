"""Networks with recalibrated outputs: the map is part of the last linear layer where that is possible, and a module around it where not.

slope * (w x + b) + intercept is a linear layer again, so that the network keeps its keys and shapes, and whoever loads the weights gets the
recalibrated scores without knowing of them. That needs a linear layer with a bias whose outputs are the network's logits, or the logits of
its probabilities, which is determined by running the network on a few rows.
"""

import copy
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from equipoise.data import Images
from equipoise.errors import BadInput
from equipoise.models.bias_network import BiasScore, ManyBiasScores
from equipoise.models.many_outputs import as_matrix
from equipoise.models.readings import logit_of
from equipoise.models.score import outputs
from equipoise.models.vision import OneOutput

FEW = 64  # rows to compare on
SAME = 1e-5  # relative to the outputs, or to 1 if these are smaller
Maps = Mapping[int, tuple[float, float]]  # slope and intercept of an output, by its number


class Recalibrated(nn.Module):
    """A network around which its logit is mapped: slope * logit + intercept. It returns what the network does, a logit or a probability."""

    slope: Tensor
    intercept: Tensor

    def __init__(self, network: nn.Module, slope: float, intercept: float, output: str) -> None:
        super().__init__()
        self.network, self.output = network, output
        like = next((p for p in network.parameters() if p.is_floating_point()), torch.empty(0))
        self.register_buffer("slope", torch.tensor(slope).to(like))
        self.register_buffer("intercept", torch.tensor(intercept).to(like))

    def forward(self, x: Tensor) -> Tensor:
        raw: Tensor = self.network(x)
        z = self.slope * logit_of(raw, self.output == "probability") + self.intercept
        return torch.sigmoid(z) if self.output == "probability" else z

    def to_dict(self) -> dict[str, object]:
        """The structure as plain values for JSON; the numbers are in the state dict."""
        return {"kind": "recalibrated", "layers": [], "output": self.output}

    @classmethod
    def from_dict(cls, network: nn.Module, plain: Mapping[str, Any]) -> "Recalibrated":
        """A module built as `to_dict` says around a network, for a state dict to be loaded into."""
        if plain.get("kind") != "recalibrated":
            raise BadInput(f"expected a network of kind 'recalibrated'; got {plain.get('kind')!r}")
        return cls(network, 1.0, 0.0, str(plain["output"]))


def recalibrated_network(
    network: nn.Module, inputs: Tensor | Images, slope: float, intercept: float, output: str
) -> tuple[nn.Module, bool]:
    """A copy of a network with one output per row whose logit is slope * logit + intercept, and whether its keys are the same."""
    folded = folded_outputs(network, inputs, {0: (slope, intercept)}, output)
    if folded is not None:
        return folded, True
    return Recalibrated(copy.deepcopy(network), slope, intercept, output).train(network.training), False


def folded_outputs(network: nn.Module, inputs: Tensor | Images, maps: Maps, output: str) -> nn.Module | None:
    """A copy of a network in which the logits of some outputs are mapped, with the same keys and shapes; None where that is impossible."""
    changed = copy.deepcopy(network)
    if isinstance(changed, BiasScore):
        changed.recalibrate(*maps[0])
        return changed
    inner = changed.inner if isinstance(changed, OneOutput) else changed
    if isinstance(inner, ManyBiasScores):
        heads = inner.heads_by_output
        wanted = {int(changed.which): pair for pair in maps.values()} if isinstance(changed, OneOutput) else maps
        if not wanted.keys() <= heads.keys():
            return None
        for column, pair in wanted.items():
            heads[column].recalibrate(*pair)
        return changed
    before, (layer, sums) = _last_layer(changed, inputs[: min(FEW, len(inputs))])
    if layer is None or layer.bias is None:
        return None
    expected = before.clone()
    for column, (slope, intercept) in maps.items():
        own = before[:, column]
        shown = torch.sigmoid(sums) if output == "probability" else sums
        places = [k for k in range(sums.shape[1]) if _close(shown[:, k], own)]
        if len(places) != 1:
            return None
        _scale(layer, places[0], slope, intercept)
        z = slope * sums[:, places[0]] + intercept
        expected[:, column] = torch.sigmoid(z) if output == "probability" else z
    after, _ = _last_layer(changed, inputs[: min(FEW, len(inputs))])
    return changed if _close(after, expected) else None


def _close(found: Tensor, expected: Tensor) -> bool:
    return bool(torch.allclose(found, expected, rtol=SAME, atol=SAME))


def _scale(layer: nn.Linear, row: int, slope: float, intercept: float) -> None:
    with torch.no_grad():  # in double precision, so that each number is rounded once
        layer.weight[row] = (layer.weight[row].double() * slope).to(layer.weight.dtype)
        layer.bias[row] = (layer.bias[row].double() * slope + intercept).to(layer.bias.dtype)


def _last_layer(network: nn.Module, few: Tensor) -> tuple[Tensor, tuple[nn.Linear | None, Tensor]]:
    """The outputs (rows, outputs) for a few inputs, and the linear layer that ran last, with its own."""
    last: list[tuple[str, Tensor]] = []  # by name: what runs may be a copy of the network on another device

    def watch(name: str) -> Callable[[nn.Module, object, Tensor], None]:
        return lambda _module, _inputs, given: last.append((name, given.detach()))

    layers = {name: module for name, module in network.named_modules() if isinstance(module, nn.Linear)}
    with ExitStack() as hooks:
        for name, layer in layers.items():
            hooks.enter_context(layer.register_forward_hook(watch(name)))
        raw = outputs(network, few, taken=as_matrix)
    if not last:
        return raw, (None, raw)
    name, sums = last[-1]
    once = sum(other == name for other, _ in last) == 1
    return raw, (layers[name] if once and sums.ndim == 2 and len(sums) == len(raw) else None, sums.float().cpu())
