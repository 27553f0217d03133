"""Pruning by bias influence: Algorithm 1 of Marcinkevics, Ozkan and Vogt (2022).

Units are switched off step by step, starting with those whose pre-activation has the largest influence on the gap (equation 5, by the sign
of the original's gap; with more than two groups, of the gap furthest from zero at the last step). The influence is computed again after
each step. Of all states, the one with the smallest |gap| and sufficient performance is returned. Departures from the published code: a
pruned unit is never chosen again (`reselect=True` allows it, and the step then changes nothing); influence is weighted by the counts of the
whole split; thresholds are swept exactly. Pruning a unit sets its pre-activation to zero (the paper's text for convolutions, its code
for every layer); `cut="outgoing"` zeroes its outgoing weights instead (the paper's text for linear layers), which differs if batch norm
follows the activation.

Beyond the paper: other criteria of a unit's influence (`criterion`, defined in models.units), and other units (`granularity`): columns
of the input of a table, which drops variables, and heads of attention.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import numpy as np

from equipoise.data import Cohort
from equipoise.errors import pick, raise_all
from equipoise.methods.contract import ALL_AT_ONCE, MARCINKEVICS, Rng, Speed, Step, Steps, Work, method, unknown_work
from equipoise.methods.evaluation import Data
from equipoise.methods.goal import Goal, Note

if TYPE_CHECKING:
    from torch import Tensor

    from equipoise.models import Repairable

UNIT_NAMES = {"unit": "units", "channel": "units", "input": "columns of the input", "head": "heads of attention"}


@dataclass(frozen=True)
class PruningSettings:
    """`units` per step, or a number of `steps` in all (B in the paper); `layers` is a name pattern, or several."""

    units: int | None = None  # switched off per step
    steps: int | None = None  # in all, in place of units: B in the paper
    layers: str | tuple[str, ...] = "*"  # a name pattern, or several
    granularity: str = "unit"  # or channel: whole channels of convolutions, which needs no mask; input: columns of a table; head
    criterion: str = "gradient"  # equation (5); or taylor, second-order, difference
    cut: str = "pre-activation"  # or outgoing
    stop_below: float = 0.52  # the run ends if performance falls below this
    max_steps: int | None = None  # limit on the steps, for networks with many units
    reselect: bool = False  # a pruned unit may be chosen again, as in the published code

    def __post_init__(self) -> None:
        from equipoise.models import Repairable

        pick("granularity", self.granularity, Repairable.granularities)
        pick("criterion", self.criterion, Repairable.criteria)
        pick("cut", self.cut, ("pre-activation", "outgoing"))
        problems = []
        if self.units is not None and self.steps is not None:
            problems.append("pruning takes units per step or a number of steps, not both")
        if self.granularity == "input" and self.layers != "*":
            problems.append(f'granularity="input" prunes columns of the input, not of layers; got layers={self.layers!r}, leave it out')
        if self.granularity in ("input", "head") and self.cut == "outgoing":
            problems.append(
                f'cut="outgoing" is for units of hidden layers; granularity={self.granularity!r} has one way to cut, leave it out'
            )
        if self.granularity == "head" and self.criterion not in ("gradient", "taylor"):
            problems.append(f'granularity="head" takes criterion gradient or taylor; got {self.criterion!r}')
        if min(1 if n is None else n for n in (self.units, self.steps, self.max_steps)) < 1:
            given = f"units={self.units}, steps={self.steps}, max_steps={self.max_steps}"
            problems.append(f"pruning needs at least one unit per step and one step; got {given}")
        raise_all(problems)

    def units_per_step(self, total: int) -> int:
        """The number of units that one step switches off."""
        if self.units is not None:
            return self.units
        return max(1, -(-total // self.steps)) if self.steps is not None else max(1, total // 350)


def pruning_cost(speed: Speed, settings: PruningSettings) -> Work:
    """The work: one pass with gradients per step."""
    import torch

    from equipoise.models import find_units

    if speed.model is None:
        return unknown_work(speed, settings)
    with torch.no_grad():
        layers = find_units(speed.model, cast(Cohort, speed.repair).inputs[:2], settings.layers, settings.granularity)
    total, rows = layers[-1].start + layers[-1].size, len(speed.repair)
    each = settings.units_per_step(total)
    steps = min(-(-total // each), settings.max_steps or total)
    return Work(rows * (1 + speed.backward * (1 + steps)), steps, f"at most {steps} steps of {each:,} of {total:,} units")


@method(
    "pruning",
    settings=PruningSettings,
    title="switching off the units that drive the gap (the paper's Algorithm 1)",
    paper=MARCINKEVICS,
    counts="units pruned",
    needs_gap=True,
    needs_layers=True,
    labels=ALL_AT_ONCE,
    cost=pruning_cost,
    effort=3.0,
)
def pruning(model: Repairable, data: Data, goal: Goal, settings: PruningSettings, rng: Rng) -> Steps:
    """A step per set of units that is switched off."""
    import torch

    total = model.units(settings.layers, settings.granularity)
    each = settings.units_per_step(total)
    steps = min(-(-total // each), settings.max_steps or total)
    pull = data.pull(data.start)
    _, influence = model.influence(pull, settings.criterion)
    pruned = torch.zeros_like(influence, dtype=torch.bool)
    for step in range(1, steps + 1):
        closed = torch.zeros_like(pruned) if settings.reselect else pruned
        chosen = most_influential(influence, closed, each)
        model.prune(chosen, settings.cut == "outgoing")
        pruned |= chosen
        scores, influence = model.influence(pull, settings.criterion)
        off = {"switched_off": min(step * each, total), "of": total, "reselected": settings.reselect}
        now = yield Step(
            step,
            (step, steps),
            float(each),
            scores=scores,
            stop_below=settings.stop_below,
            notes=(Note("pruned", UNIT_NAMES[settings.granularity], off),),
        )
        if data.moving:  # the largest gap may be another one now; its influence is used from the next step on
            pull = data.pull(now)


def most_influential(influence: Tensor, pruned: Tensor, count: int) -> Tensor:
    """The `count` units with the largest influence among those not pruned yet, marked (units,), on their device."""
    import torch

    open_ = influence.masked_fill(pruned, -torch.inf)
    count = min(count, len(open_))
    if open_.is_cuda:
        top = open_.topk(count, sorted=False).indices
    else:  # an order of magnitude faster there
        top = torch.from_numpy(np.argpartition(-open_.numpy(), count - 1)[:count])
    return torch.zeros_like(pruned).scatter_(0, top, True) & ~pruned
