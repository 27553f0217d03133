"""Layer-wise optimisation: the third intra-processing method of Savani, White and Govindarajulu (2020).

One layer after another, a zeroth-order optimiser searches for better values of its parameters, within two standard deviations of their
mean. Its model of the objective are gradient-boosted regression trees for three quantiles, and it evaluates the candidate with the largest
expected improvement. The best values of a layer are kept before the next layer is searched. The objective is theirs: the performance at the
best threshold with |gap| within the maximum gap less a margin, zero if there is none. Departures: of a large layer only `elements` numbers,
drawn at random, are searched, as trees of a handful of evaluations cannot use more; gaps and thresholds are exact.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from equipoise.data import FloatArray
from equipoise.errors import raise_all
from equipoise.methods.baselines import SAVANI
from equipoise.methods.contract import Rng, Speed, Step, Steps, Work, method, unknown_work, within_gap
from equipoise.methods.evaluation import Data
from equipoise.methods.goal import Goal

if TYPE_CHECKING:
    from equipoise.models import Repairable

TREE_QUANTILES = (0.16, 0.5, 0.84)  # of the trees: a median, and a standard deviation on either side
TREES, DRAWN = 30, 500  # trees per quantile, and candidates that they are asked about
SPAN = 2.0  # of the search, in standard deviations of a layer's parameters


@dataclass(frozen=True)
class LayerWiseSettings:
    """`calls` evaluations per layer, of them `first` at random; `elements` parameters of a layer at most. `layers` from the last one."""

    calls: int = 20  # evaluations per layer
    first: int = 10  # of these, at random
    elements: int = 500  # parameters of a layer that are searched, at most
    layers: int | None = None  # all
    max_gap: float = 0.05
    margin: float = 0.01

    def __post_init__(self) -> None:
        given = {"calls": self.calls, "first": self.first, "elements": self.elements, "layers": 1 if self.layers is None else self.layers}
        raise_all([f"layer-wise.{name} must be at least 1; got {value}" for name, value in given.items() if value < 1])


def layer_wise_cost(speed: Speed, settings: LayerWiseSettings) -> Work:
    """The work: a number of evaluations per tensor of parameters."""
    if speed.model is None:
        return unknown_work(speed, settings)
    tensors = sum(p.requires_grad for p in speed.model.parameters())
    steps = settings.calls * min(tensors, settings.layers or tensors)
    return Work(len(speed.repair) * (1 + steps), steps, f"{steps} networks, {settings.calls} per layer", 0.05 * steps)


@method(
    "layer-wise",
    settings=LayerWiseSettings,
    title="zeroth-order search of one layer after another (Savani et al.)",
    paper=SAVANI,
    within=within_gap,
    cost=layer_wise_cost,
    effort=10.0,
)
def layer_wise(model: Repairable, data: Data, goal: Goal, settings: LayerWiseSettings, rng: Rng) -> Steps:
    """A step per candidate for a layer."""
    import torch

    draw, limit = rng("layer-wise"), within_gap([goal], settings)
    layers = list(model.tensors().values())[-(settings.layers or 0) :]
    number = 0
    for tensor in layers:
        flat = tensor.view(-1)
        chosen = np.sort(draw.choice(len(flat), min(len(flat), settings.elements), replace=False))
        index, start = torch.from_numpy(chosen).to(flat.device), flat.double().cpu().numpy()
        centre, spread = start.mean(), start.std() or abs(start.mean()) or 1.0
        search = boosted_search(centre - SPAN * spread, centre + SPAN * spread, start[chosen], settings.calls, settings.first, draw)
        values = next(search)
        while values is not None:
            flat[index] = torch.from_numpy(values).to(flat)
            number += 1
            result = (yield Step(number, (number, len(layers) * settings.calls))).each[0]
            values = search.send(result.performance if result.size <= limit else 0.0)
        flat[index] = torch.from_numpy(next(search)).to(flat)  # the best of the layer


def boosted_search(
    low: float, high: float, start: FloatArray, calls: int, first: int, draw: np.random.Generator
) -> Generator[FloatArray | None, float, None]:
    """Yields points (k,) to evaluate, gets their objective, and ends with None and the best point, the start included.

    The start is evaluated first, so that it counts as one of the calls.
    """
    points, found = [start], [(yield start)]
    while len(points) < calls:
        if len(points) < first:
            point = draw.uniform(low, high, len(start))
        else:
            drawn = draw.uniform(low, high, (DRAWN, len(start)))
            point = drawn[int(np.argmax(expected_improvement(np.array(points), np.array(found), drawn)))]
        points.append(point)
        found.append((yield point))
    yield None
    yield points[int(np.argmax(found))]


def expected_improvement(points: FloatArray, found: FloatArray, drawn: FloatArray) -> FloatArray:
    """The expected improvement (m,) of drawn points (m, k) over the best of those that were evaluated, by boosted trees."""
    from scipy.stats import norm
    from sklearn.ensemble import GradientBoostingRegressor  # late: it takes a second to import

    low, middle, high = (
        GradientBoostingRegressor(loss="quantile", alpha=quantile, n_estimators=TREES, random_state=0).fit(points, found).predict(drawn)
        for quantile in TREE_QUANTILES
    )
    spread, gain = np.maximum((high - low) / 2, 1e-9), middle - found.max()
    improvement: FloatArray = gain * norm.cdf(gain / spread) + spread * norm.pdf(gain / spread)
    return improvement
