"""Concept erasure: Belrose et al. (2023), "least-squares concept erasure", before the last linear layer.

Of all affine maps of the features after which no linear model can tell the groups apart, theirs changes the features least. A linear layer
after that map is a linear layer of the original features, and the map then reduces to one change of its weights w:

    w' = w - S^-1 C (C^T S^-1 C)^-1 C^T w      S: covariance of the features, C: their covariance with the groups (pseudo-inverses)

so that the network needs no group and keeps its shape. Logits then have the same mean in all groups. Departures: the groups are those that
the measure compares (for eod among the positives; for a sum of rates within both labels), as with equalised odds; and the steps are on the
way from the original layer to the new one, so that the goal decides how far to go.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from equipoise.data import FloatArray
from equipoise.errors import BadInput
from equipoise.measures import measure_of
from equipoise.methods.contract import Rng, Step, Steps, Work, method
from equipoise.methods.evaluation import Data, Label
from equipoise.methods.goal import Goal

if TYPE_CHECKING:
    from equipoise.models import Repairable

BELROSE = """@inproceedings{belrose2023leace,
  title     = {{LEACE}: Perfect Linear Concept Erasure in Closed Form},
  author    = {Belrose, Nora and Schneider-Joseph, David and Ravfogel, Shauli and Cotterell, Ryan and Raff, Edward and Biderman, Stella},
  booktitle = {Advances in Neural Information Processing Systems},
  year      = {2023}
}"""
SMALLEST_EIGENVALUE = 1e-9  # of a covariance, as a share of the largest; smaller ones count as zero


@dataclass(frozen=True)
class ConceptErasureSettings:
    """The number of `steps` on the way to the new layer."""

    steps: int = 10  # on the way to the new layer

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise BadInput(f"concept-erasure.steps must be at least 1; got {self.steps}")


@method(
    "concept-erasure",
    settings=ConceptErasureSettings,
    title="the group erased from the inputs of the last layer (Belrose et al.)",
    paper=BELROSE,
    counts="steps of the way",
    needs_layers=True,
    cost=lambda speed, settings: Work(2 * len(speed.repair), settings.steps, "one linear system of the last features"),
    effort=1.0,
)
def concept_erasure(model: Repairable, data: Data, goal: Goal, settings: ConceptErasureSettings, rng: Rng) -> Steps:
    """A step per part of the way from the original last layer to the one without the group."""
    layer = model.last_layer()
    weight, mean = erased(layer.features, layer.weight, data.labels[0])
    bias = layer.bias + float(mean @ (layer.weight - weight))  # keeps the mean logit
    for step in range(1, settings.steps + 1):
        yield Step(step, (step, settings.steps), scores=layer.move(step / settings.steps, weight, bias))


def erased(features: FloatArray, weight: FloatArray, label: Label) -> tuple[FloatArray, FloatArray]:
    """The weights (k,) of a linear layer after erasure, and the mean features (k,) of the rows that the measure compares."""
    within = measure_of(label.measure).labels
    among = label.y if within else np.zeros_like(label.y)  # rows are compared with those of the same label, or with all
    values = within or (0,)
    known = (label.attribute.codes >= 0) & np.isin(among, values)
    x, codes, among = features[known], label.attribute.codes[known], among[known]
    mean, groups = x.mean(0), np.eye(len(label.attribute.levels))[codes]
    x, groups = x.copy(), groups.copy()
    for value in values:
        rows = among == value
        x[rows] -= x[rows].mean(0)
        groups[rows] -= groups[rows].mean(0)
    between = x.T @ groups / len(x)
    inverse = np.linalg.pinv(x.T @ x / len(x), rcond=SMALLEST_EIGENVALUE, hermitian=True) @ between
    change = inverse @ np.linalg.pinv(between.T @ inverse, rcond=SMALLEST_EIGENVALUE, hermitian=True) @ (between.T @ weight)
    return weight - change, mean
