"""A network that carries probes: its score is the probability of the label minus a cost for the posteriors of the groups.

The network itself runs unchanged and the probes are small linear heads next to it, so that the whole is an ordinary module: it can be
saved, copied and exported, and does not need the group.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.special import expit
from torch import Tensor, nn
from torch.nn import functional as F

from equipoise.data import Images
from equipoise.errors import BadInput
from equipoise.models.devices import Feed, compute_device, device_of
from equipoise.models.probes import Probe
from equipoise.models.protocol import FloatArray
from equipoise.models.readings import Reading, logit_of, read, read_all
from equipoise.models.score import evaluating, in_pieces, sigmoid

STEEP = 4.0  # the slope that makes a score move as fast around 1/2 as a probability does
NEVER = -1e4  # the bias of a class without rows: not every file format can hold minus infinity


@dataclass(frozen=True, eq=False)
class Heads:
    """What a BiasScore adds to a network: the probes, and the probability at which a decision breaks even."""

    task: Probe  # of the label, from the features and the logit
    groups: tuple[Probe, ...]  # of the group, one per rate
    labels: tuple[int | None, ...]  # the label that each rate is conditional on
    centre: float  # the probability at which a positive decision is worth nothing


class BiasScore(nn.Module):
    """A network whose score is P(y=1|x) minus the cost of the groups' posteriors; at 1/2 a positive decision breaks even.

    score = sigmoid(4 (P(1|x) - centre - sum over rates and groups of cost * P(label|x) P(group|x, label))), with probes for the
    probabilities, until it is recalibrated. It returns a logit or a probability, as the network does, and of the same shape.
    """

    cost: Tensor
    centre: Tensor
    slope: Tensor
    shift: Tensor

    def __init__(self, network: nn.Module, reading: Reading, heads: Heads, cost: FloatArray, output: str) -> None:
        super().__init__()
        self.network, self.reading, self.output = network, reading, output
        self.labels = heads.labels
        like = next((p for p in network.parameters()), torch.empty(0))
        # Two classes: the label's logit is one row less the other, so that one output is enough.
        self.task = _linear(np.diff(heads.task.weight, axis=0), np.diff(heads.task.bias), like)
        self.groups = nn.ModuleList(_linear(probe.weight, probe.bias, like) for probe in heads.groups)
        self.register_buffer("cost", torch.from_numpy(cost).to(like))  # (rates, groups)
        self.register_buffer("centre", torch.tensor(heads.centre).to(like))
        self.register_buffer("slope", torch.tensor(STEEP).to(like))
        self.register_buffer("shift", torch.tensor(0.0).to(like))

    def recalibrate(self, slope: float, intercept: float) -> None:
        """Maps its logit from here on: slope * logit + intercept."""
        self.shift.copy_(self.shift.double() * slope + intercept)
        self.slope.copy_(self.slope.double() * slope)

    def to_dict(self) -> dict[str, object]:
        """The structure as plain values for JSON; the numbers are in the state dict."""
        shape = {"features": self.task.in_features - 1, "groups": self.cost.shape[1]}
        reading = {"layers": list(self.reading.layers), "inputs": self.reading.inputs}
        return {"kind": "bias-score", **reading, "labels": list(self.labels), "output": self.output, **shape}

    @classmethod
    def from_dict(cls, network: nn.Module, plain: Mapping[str, Any]) -> "BiasScore":
        """A module built as `to_dict` says around a network, for a state dict to be loaded into."""
        if plain.get("kind") != "bias-score":
            raise BadInput(f"expected a network of kind 'bias-score'; got {plain.get('kind')!r}")
        size, groups, labels = int(plain["features"]), int(plain["groups"]), tuple(plain["labels"])
        empty = np.empty((0, 0))
        task = Probe(np.zeros((2, size + 1)), np.zeros(2), empty, 0.0, 0.0)
        each = Probe(np.zeros((groups, size)), np.zeros(groups), empty, 0.0, 0.0)
        reading = Reading(tuple(plain["layers"]), bool(plain["inputs"]))
        return cls(network, reading, Heads(task, (each,) * len(labels), labels, 0.0), np.zeros((len(labels), groups)), str(plain["output"]))

    def forward(self, x: Tensor) -> Tensor:
        return self.score(*read(self.network, x, self.reading))

    def score(self, raw: Tensor, seen: Tensor) -> Tensor:
        """Its output, in the shape of the network's raw one, from that and the features (rows, d)."""
        seen = seen.to(self.task.weight.dtype)
        logit = logit_of(raw.reshape(seen.shape[0], 1).to(seen.dtype), self.output == "probability")
        chance = torch.sigmoid(self.task(torch.cat([seen, logit], dim=1)))[:, 0]
        value = chance - self.centre
        for label, head, cost in zip(self.labels, self.groups, self.cost, strict=True):
            share = 1.0 if label is None else chance if label == 1 else 1 - chance
            value = value - share * (F.softmax(head(seen), dim=1) * cost).sum(1)
        z = (self.slope * value + self.shift).reshape(raw.shape)
        return torch.sigmoid(z) if self.output == "probability" else z


def bias_scores(networks: Sequence[BiasScore], inputs: Tensor | Images) -> list[FloatArray]:
    """The scores (n,) of several bias scores around one network that read the same features: the network runs once for all of them."""
    first = networks[0]
    if any(own.network is not first.network or own.reading != first.reading or own.output != first.output for own in networks):
        raise BadInput("scores at once are for bias scores around one network with one reading; use predict for each of them")
    device = compute_device(first, inputs)
    feed, working = Feed(inputs, device), list(networks)
    if device_of(first) != device:
        working = [own.to(device) for own in copy.deepcopy(working)]  # all at once, so that the copies share one network too
    found: list[Tensor] = []

    def show(rows: Tensor) -> None:
        raw, seen = read(working[0].network, feed(rows), first.reading)
        found.append(torch.stack([own.score(raw, seen).reshape(len(rows)).float().cpu() for own in working]))

    with evaluating(working[0]), torch.no_grad():
        in_pieces(show, torch.arange(len(inputs)), feed)
    raw = torch.cat(found, dim=1).double()
    return list((sigmoid(raw) if first.output == "logit" else raw).numpy())


def _linear(weight: FloatArray, bias: FloatArray, like: Tensor) -> nn.Linear:
    layer: nn.Linear = nn.utils.skip_init(
        nn.Linear, weight.shape[1], weight.shape[0], device=like.device, dtype=like.dtype
    )  # draws no numbers
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(weight))
        layer.bias.copy_(torch.from_numpy(np.maximum(bias, NEVER)))
    return layer


def value_of(chance: FloatArray, posteriors: Sequence[FloatArray], heads: Heads, cost: FloatArray) -> FloatArray:
    """The score (n,) of a BiasScore from the probabilities of the label (n,) and of the groups (n, groups), one array per rate."""
    value = chance - heads.centre
    for label, posterior, price in zip(heads.labels, posteriors, cost, strict=True):
        share = 1.0 if label is None else chance if label == 1 else 1 - chance
        value = value - share * (posterior @ price)
    score: FloatArray = expit(STEEP * value)  # which does not overflow
    return score


class ManyBiasScores(nn.Module):
    """A multi-label network in which the heads of bias scores replace some outputs; the others are unchanged.

    The network runs once. Shape and names of the outputs are unchanged.
    """

    def __init__(self, network: nn.Module, heads: Mapping[int, BiasScore], output: str) -> None:
        super().__init__()
        self.network, self.output, self.columns = network, output, list(heads)
        self.heads = nn.ModuleList(heads.values())  # around no network of their own
        for name in ("pathologies", "targets"):
            if (told := getattr(network, name, None)) is not None:
                setattr(self, name, told)

    @classmethod
    def of(cls, network: nn.Module, found: Mapping[int, BiasScore], output: str, inside: str = "") -> "ManyBiasScores":
        """The heads of bias scores that were found for one output each; `inside` comes before the network's own names in their readings."""
        heads = {}
        for column, one in found.items():
            head = copy.deepcopy(one)
            head.network = nn.Identity()
            head.reading = Reading(tuple(name.removeprefix(inside) for name in one.reading.layers), one.reading.inputs)
            heads[column] = head
        return cls(network, heads, output)

    def to_dict(self) -> dict[str, object]:
        """The structure as plain values for JSON; the numbers are in the state dict."""
        each = {str(column): head.to_dict() for column, head in zip(self.columns, self._heads, strict=True)}
        return {"kind": "many-bias-scores", "output": self.output, "heads": each}

    @classmethod
    def from_dict(cls, network: nn.Module, plain: Mapping[str, Any]) -> "ManyBiasScores":
        """A module built as `to_dict` says around a network, for a state dict to be loaded into."""
        if plain.get("kind") != "many-bias-scores":
            raise BadInput(f"expected a network of kind 'many-bias-scores'; got {plain.get('kind')!r}")
        heads = {int(column): BiasScore.from_dict(nn.Identity(), head) for column, head in plain["heads"].items()}
        return cls(network, heads, str(plain["output"]))

    @property
    def heads_by_output(self) -> dict[int, BiasScore]:
        """The head of each output that has one."""
        return dict(zip(self.columns, self._heads, strict=True))

    @property
    def _heads(self) -> list[BiasScore]:
        return [head for head in self.heads if isinstance(head, BiasScore)]

    def forward(self, x: Tensor) -> Tensor:
        raw, seen = read_all(self.network, x, [head.reading for head in self._heads])
        columns = list(raw.unbind(1))
        for column, head, features in zip(self.columns, self._heads, seen, strict=True):
            columns[column] = head.score(columns[column], features)
        return torch.stack(columns, dim=1)
