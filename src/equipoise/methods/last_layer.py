"""Last-layer retraining on group-balanced data: Kirichenko, Izmailov and Wilson (2023), "deep feature reweighting".

The features before the last linear layer stay as they are. A logistic regression is fitted to them, standardised, on subsets of the repair
set in which every group has as many positives and as many negatives as every other; the mean over subsets is the new layer. Departures: the
penalty is L2 (theirs is L1) and a setting (theirs is tuned on half of the rows); and the steps are on the straight line from the original
layer to the new one, so that the goal decides how far to go (logits are linear in the layer).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from equipoise.errors import raise_all
from equipoise.methods.contract import Rng, Speed, Step, Steps, Work, method
from equipoise.methods.evaluation import Data
from equipoise.methods.goal import Goal

if TYPE_CHECKING:
    from equipoise.models import Repairable

KIRICHENKO = """@inproceedings{kirichenko2023last,
  title     = {Last Layer Re-Training is Sufficient for Robustness to Spurious Correlations},
  author    = {Kirichenko, Polina and Izmailov, Pavel and Wilson, Andrew Gordon},
  booktitle = {International Conference on Learning Representations},
  year      = {2023}
}"""
LEAST_SCALE = 1e-6  # of a feature; one that varies less is left out


@dataclass(frozen=True)
class LastLayerSettings:
    """The number of balanced `subsets`, the inverse strength C of the `penalty`, and the number of `steps` on the way to the new layer."""

    subsets: int = 10  # balanced subsets whose layers are averaged
    penalty: float = 1.0  # C: the larger, the weaker
    steps: int = 10  # on the way to the new layer

    def __post_init__(self) -> None:
        given = {"subsets": self.subsets >= 1, "steps": self.steps >= 1, "penalty": self.penalty > 0}
        raise_all([f"last-layer.{name} must be positive; got {getattr(self, name)}" for name, right in given.items() if not right])


def last_layer_cost(speed: Speed, settings: LastLayerSettings) -> Work:
    """The work: one pass for the features, and small regressions; the scores of a step follow from the features."""
    return Work(2 * len(speed.repair), settings.steps, f"{settings.subsets} regressions on the last features", 0.05 * settings.subsets)


@method(
    "last-layer",
    settings=LastLayerSettings,
    title="the last layer retrained on group-balanced rows (Kirichenko et al.)",
    paper=KIRICHENKO,
    counts="steps of the way",
    needs_layers=True,
    cost=last_layer_cost,
    effort=1.0,
)
def last_layer(model: Repairable, data: Data, goal: Goal, settings: LastLayerSettings, rng: Rng) -> Steps:
    """A step per part of the way from the original last layer to the retrained one."""
    from equipoise.models import regression

    layer, label, draw = model.last_layer(), data.labels[0], rng("last-layer")
    codes, y, features = label.attribute.codes, label.y, layer.features
    centre, scale = features.mean(0), features.std(0)
    used = scale > LEAST_SCALE
    x = (features[:, used] - centre[used]) / scale[used]
    cells = [np.flatnonzero((codes == group) & (y == value)) for group, value in product(range(len(label.attribute.levels)), (0, 1))]
    cells = [cell for cell in cells if len(cell)]
    size = min(map(len, cells))
    weight, bias = np.zeros(features.shape[1]), 0.0
    for _ in range(settings.subsets):
        rows = np.concatenate([draw.choice(cell, size, replace=False) for cell in cells])
        slopes, intercepts = regression(x[rows], y[rows], 2, settings.penalty, np.ones(len(rows)))
        slope = slopes[1] / scale[used] / settings.subsets
        weight[used] += slope
        bias += float(intercepts[1]) / settings.subsets - float(slope @ centre[used])
    for step in range(1, settings.steps + 1):
        scores = layer.move(step / settings.steps, weight, bias)
        yield Step(step, (step, settings.steps), scores=scores)
