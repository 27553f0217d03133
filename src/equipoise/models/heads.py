"""Modules that a repair wraps around a network: the probes of a bias score, or a recalibration of its outputs.

A bias score is the probability of the label minus a cost for the posteriors of the groups. The network itself runs unchanged and the probes
are small linear heads next to it, so that the whole is an ordinary module: it can be saved, copied and exported, and does not need the
group.

A recalibration is folded into the last linear layer if possible, and is a module around the network otherwise: slope * (w x + b) +
intercept is a linear layer again, so that the network keeps its keys and shapes, and its weights can be loaded as before. That needs a
linear layer with a bias whose outputs are the network's logits, or the logits of its probabilities, which is determined by running the
network on a few rows.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch
from scipy.special import expit
from torch import Tensor, nn
from torch.nn import functional as F

from equipoise.data import FloatArray, Images
from equipoise.errors import BadInput
from equipoise.models.devices import device_of
from equipoise.models.probes import Probe
from equipoise.models.readings import Reading, Shown, read
from equipoise.models.score import WRAPPED, OneOutput, as_matrix, as_scores, logit_of, outputs, recorded_outputs

STEEP = 4.0  # makes the derivative of the score at 1/2 equal to that of the probability
NEVER_BIAS = -1e4  # the bias of a class without rows: not every file format can hold minus infinity
FOLDED_ROWS = 64  # rows on which a folded network is compared with the expected outputs
SCORED_AT_ONCE = 4096  # rows whose features are scored at a time
SAME_OUTPUT = 1e-5  # relative to the outputs, or to 1 if these are smaller
Maps = Mapping[int, tuple[float, float]]  # slope and intercept of an output, by its number


@dataclass(frozen=True, eq=False)
class Heads:
    """The parts that a BiasScore adds to a network: the probes, and the probability at which a decision breaks even."""

    task: Probe  # predicts the label from the features and the logit
    groups: tuple[Probe, ...]  # predict the group, one per rate
    labels: tuple[int | None, ...]  # the label that each rate is conditional on
    centre: float  # the probability at which a positive decision is worth nothing


class BiasScore(nn.Module):
    """A network whose score is P(y=1|x) minus the cost of the groups' posteriors; at 1/2 a positive decision breaks even.

    score = sigmoid(4 (P(1|x) - centre - sum over rates and groups of cost * P(label|x) P(group|x, label))), with probes for the
    probabilities, until it is recalibrated. It returns a logit or a probability, as the network does, and of the same shape.
    """

    kind = "bias-score"
    cost: Tensor
    centre: Tensor
    slope: Tensor
    shift: Tensor

    def __init__(self, network: nn.Module, reading: Reading, heads: Heads, cost: FloatArray, output: str) -> None:
        super().__init__()
        self.network, self.reading, self.output = network, reading, output
        self.labels = heads.labels
        like = next((p for p in network.parameters()), torch.empty(0))
        # Two classes: the label's logit is the difference of the two rows, so that one output is enough.
        self.task = _linear(np.diff(heads.task.weight, axis=0), np.diff(heads.task.bias), like)
        self.groups = nn.ModuleList(_linear(probe.weight, probe.bias, like) for probe in heads.groups)
        self.register_buffer("cost", torch.from_numpy(cost).to(like))  # (rates, groups)
        self.register_buffer("centre", torch.tensor(heads.centre).to(like))
        self.register_buffer("slope", torch.tensor(STEEP).to(like))
        self.register_buffer("shift", torch.tensor(0.0).to(like))

    def recalibrate(self, slope: float, intercept: float) -> None:
        """Replaces the logit by slope * logit + intercept, in place."""
        self.shift.copy_(self.shift.double() * slope + intercept)
        self.slope.copy_(self.slope.double() * slope)

    def to_dict(self) -> dict[str, object]:
        """The structure as plain values for JSON; the numbers are in the state dict."""
        shape = {"features": self.task.in_features - 1, "groups": self.cost.shape[1]}
        reading = {"layers": list(self.reading.layers), "inputs": self.reading.inputs}
        return {"kind": self.kind, **reading, "labels": list(self.labels), "output": self.output, **shape}

    @classmethod
    def from_dict(cls, network: nn.Module, plain: Mapping[str, Any]) -> "BiasScore":
        """A module of the structure in `plain` around a network; load its state dict afterwards."""
        size, groups, labels = int(plain["features"]), int(plain["groups"]), tuple(plain["labels"])
        empty = np.empty((0, 0))
        task = Probe(np.zeros((2, size + 1)), np.zeros(2), empty, 0.0, 0.0)
        group = Probe(np.zeros((groups, size)), np.zeros(groups), empty, 0.0, 0.0)
        heads = Heads(task, (group,) * len(labels), labels, 0.0)
        reading = Reading(tuple(plain["layers"]), bool(plain["inputs"]))
        return cls(network, reading, heads, np.zeros((len(labels), groups)), str(plain["output"]))

    def forward(self, x: Tensor) -> Tensor:
        raw, features = read(self.network, x, self.reading)
        return self.score(raw, features)

    def score(self, raw: Tensor, features: Tensor) -> Tensor:
        """The module's output, in the shape of the network's raw output, from that and the features (rows, d)."""
        features = features.to(self.task.weight.dtype)
        logit = logit_of(raw.reshape(features.shape[0], 1).to(features.dtype), self.output == "probability")
        p = torch.sigmoid(self.task(torch.cat([features, logit], dim=1)))[:, 0]
        value = p - self.centre
        for label, head, cost in zip(self.labels, self.groups, self.cost, strict=True):
            label_p = 1.0 if label is None else p if label == 1 else 1 - p
            value = value - label_p * (F.softmax(head(features), dim=1) * cost).sum(1)
        z = (self.slope * value + self.shift).reshape(raw.shape)
        return torch.sigmoid(z) if self.output == "probability" else z


def bias_scores(networks: Sequence[BiasScore], shown: Shown) -> list[FloatArray]:
    """The scores (n,) of several bias scores around one network, from its outputs and features: the network does not run again."""
    first = networks[0]
    if any(b.network is not first.network or b.reading != shown.reading or b.output != shown.output for b in networks):
        raise BadInput("scores at once are for bias scores around one network with one reading; use predict for each of them")
    modules = list(networks)
    if device_of(first) != shown.device:
        modules = [module.to(shown.device) for module in copy.deepcopy(modules)]  # in one copy, so that they still share one network
    batches: list[Tensor] = []
    with torch.no_grad():
        for raw, features in zip(shown.raw.split(SCORED_AT_ONCE), shown.seen.split(SCORED_AT_ONCE), strict=True):
            raw, features = raw.to(shown.device), features.to(shown.device)
            batches.append(torch.stack([module.score(raw, features).float() for module in modules]).cpu())
    return list(as_scores(torch.cat(batches, dim=1), first.output).numpy())


def _linear(weight: FloatArray, bias: FloatArray, like: Tensor) -> nn.Linear:
    # skip_init draws no random numbers.
    layer: nn.Linear = nn.utils.skip_init(nn.Linear, weight.shape[1], weight.shape[0], device=like.device, dtype=like.dtype)
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(weight))
        layer.bias.copy_(torch.from_numpy(np.maximum(bias, NEVER_BIAS)))
    return layer


def value_of(chance: FloatArray, posteriors: Sequence[FloatArray], heads: Heads, cost: FloatArray) -> FloatArray:
    """The score (n,) of a BiasScore from the probabilities of the label (n,) and of the groups (n, groups), one array per rate."""
    value = chance - heads.centre
    for label, posterior, group_cost in zip(heads.labels, posteriors, cost, strict=True):
        label_p = 1.0 if label is None else chance if label == 1 else 1 - chance
        value = value - label_p * (posterior @ group_cost)
    score: FloatArray = expit(STEEP * value)
    return score


class ManyBiasScores(nn.Module):
    """A multi-label network in which the heads of bias scores replace some outputs; the others are unchanged.

    The network runs once. Shape and names of the outputs are unchanged. The heads are those of one bias score per output, whose layers are
    named as in the network inside `OneOutput`.
    """

    def __init__(self, network: nn.Module, scores: Mapping[int, BiasScore], output: str) -> None:
        super().__init__()
        self.network, self.output, self.columns = network, output, list(scores)
        self.heads = nn.ModuleList(copy.deepcopy(score) for score in scores.values())
        for head in self.heads_by_output.values():
            head.network = nn.Identity()  # they share the network
            head.reading = replace(head.reading, layers=tuple(name.removeprefix(WRAPPED) for name in head.reading.layers))
        for name in ("pathologies", "targets"):
            if (names := getattr(network, name, None)) is not None:
                setattr(self, name, names)

    @property
    def heads_by_output(self) -> dict[int, BiasScore]:
        """The head of each output that has one."""
        return dict(zip(self.columns, cast(Sequence[BiasScore], self.heads), strict=True))

    def forward(self, x: Tensor) -> Tensor:
        heads = self.heads_by_output
        raw, *readings = read(self.network, x, *(head.reading for head in heads.values()))
        columns = list(raw.unbind(1))
        for (column, head), features in zip(heads.items(), readings, strict=True):
            columns[column] = head.score(columns[column], features)
        return torch.stack(columns, dim=1)


class Recalibrated(nn.Module):
    """A network whose logit is replaced by slope * logit + intercept. It returns a logit or a probability, as the network does."""

    kind, reading = "recalibrated", ""  # it reads no features
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
        return {"kind": self.kind, "layers": [], "output": self.output}

    @classmethod
    def from_dict(cls, network: nn.Module, plain: Mapping[str, Any]) -> "Recalibrated":
        """A module of the structure in `plain` around a network; load its state dict afterwards."""
        return cls(network, 1.0, 0.0, str(plain["output"]))


def recalibrated_network(
    network: nn.Module, inputs: Tensor | Images, maps: Maps, output: str, *, wrap: bool
) -> tuple[nn.Module | None, bool]:
    """A copy of a network with the logits slope * logit + intercept of some outputs, and whether its keys and shapes are unchanged.

    If no layer can absorb the map, a network with one output is wrapped (`wrap`), and there is none with several.
    """
    folded = _folded(network, inputs, maps, output)
    if folded is not None or not wrap:
        return folded, folded is not None
    return Recalibrated(copy.deepcopy(network), *maps[0], output).train(network.training), False


def _folded(network: nn.Module, inputs: Tensor | Images, maps: Maps, output: str) -> nn.Module | None:
    """A copy of a network with recalibrated logits of some outputs, with the same keys and shapes; None if that is impossible."""
    changed = copy.deepcopy(network)
    if isinstance(changed, BiasScore):
        changed.recalibrate(*maps[0])
        return changed
    which = int(changed.which) if isinstance(changed, OneOutput) else None
    inner = changed if which is None else changed.inner
    if isinstance(inner, ManyBiasScores):
        by_output = maps if which is None else {which: maps[0]}
        if not by_output.keys() <= inner.heads_by_output.keys():
            return None
        for column, pair in by_output.items():
            inner.heads_by_output[column].recalibrate(*pair)
        return changed
    few = inputs[: min(FOLDED_ROWS, len(inputs))]
    with recorded_outputs(changed, (nn.Linear,)) as calls:
        before = outputs(changed, few, taken=as_matrix)
    name, last = calls[-1] if calls else ("", before)
    if sum(called == name for called, _ in calls) != 1 or last.ndim != 2 or len(last) != len(before):
        return None  # no linear layer ran last, or it ran several times
    layer, sums = cast(nn.Linear, changed.get_submodule(name)), last.float().cpu()
    if layer.bias is None:
        return None  # type: ignore[unreachable]
    expected = before.clone()
    for column, (slope, intercept) in maps.items():
        layer_outputs = torch.sigmoid(sums) if output == "probability" else sums
        matches = [k for k in range(sums.shape[1]) if _close(layer_outputs[:, k], before[:, column])]
        if len(matches) != 1:
            return None
        row = matches[0]
        with torch.no_grad():  # in double precision, so that each number is rounded once
            layer.weight[row] = (layer.weight[row].double() * slope).to(layer.weight.dtype)
            layer.bias[row] = (layer.bias[row].double() * slope + intercept).to(layer.bias.dtype)
        z = slope * sums[:, row] + intercept
        expected[:, column] = torch.sigmoid(z) if output == "probability" else z
    return changed if _close(outputs(changed, few, taken=as_matrix), expected) else None


def _close(a: Tensor, b: Tensor) -> bool:
    return bool(torch.allclose(a, b, rtol=SAME_OUTPUT, atol=SAME_OUTPUT))
