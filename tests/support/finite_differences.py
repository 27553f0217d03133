"""What a small change of a unit does to the proxy of a gap: an oracle for influence."""

import copy

import torch
from torch import Tensor, nn

from equipoise.data import FloatArray, Parts
from equipoise.methods import Label
from equipoise.models import Repairable
from support.goals import paper_goal

SMALLEST_GAP = paper_goal("spd", min_performance=0.0)  # the smallest gap, be it of constant decisions


def gap_weights(network: Repairable, parts: Parts, measure: str) -> FloatArray:
    labels = Label.of(parts.valid, paper_goal(measure))
    scores = network.evaluate()
    return labels.functional(scores >= labels.evaluate(scores).threshold)[1]


def shrunk(model: nn.Module, layer: str, unit: int, x: Tensor, w: FloatArray, share: float) -> float:
    """The proxy if the pre-activation of a unit (or channel) is scaled by 1 - share at every input."""
    changed = copy.deepcopy(model).double().eval()
    with torch.no_grad():
        for parameter in changed.get_submodule(layer).parameters():
            parameter[unit] *= 1 - share
        return float((torch.sigmoid(changed(x.double()).reshape(-1)) * torch.from_numpy(w)).sum())
