"""Pruning by bias influence: Algorithm 1 of Marcinkevics, Ozkan and Vogt (2022).

Units are switched off one step after another, those whose pre-activation drives the gap most first (equation 5, by the sign of the
original's gap, or with more than two groups of the one that is furthest from the reference at the step before); the influence is computed
again after each step. Of all the states, the one with the smallest |gap| and enough
performance is returned. Where we depart from the published code: a pruned unit is never chosen again (`reselect=True`: it may be, and the
step then changes nothing); influence is weighted by the
counts of the whole split; thresholds are swept exactly. Pruning a unit sets its pre-activation to zero (the paper's text for
convolutions, its code for every layer); `cut="outgoing"` zeroes its outgoing weights instead (the paper's text for linear layers),
which differs where batch norm follows the activation.

Beyond the paper: other criteria of a unit's influence (`criterion`, defined in models.influence), and other units (`granularity`): columns
of the input of a table, which drops variables, and heads of attention.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from equipoise.data import Cohort
from equipoise.errors import pick, raise_all
from equipoise.methods.base import Candidate, Goal, Progress
from equipoise.methods.contract import ALL_AT_ONCE, Task, Work, method
from equipoise.methods.papers import MARCINKEVICS
from equipoise.methods.selection import search_for
from equipoise.models import CRITERIA, GRANULARITIES, find_units, replicas

NAMES = {"unit": "units", "channel": "units", "input": "columns of the input", "head": "heads of attention"}


@dataclass(frozen=True)
class Settings:
    """`units` a step, or a number of `steps` in all (B in the paper); `layers` is a name pattern, or several."""

    units: int | None = None
    steps: int | None = None
    layers: str | tuple[str, ...] = "*"
    granularity: str = "unit"  # or channel: whole channels of convolutions, which needs no mask; input: columns of a table; head
    criterion: str = "gradient"  # equation (5); or taylor, second-order, difference
    cut: str = "pre-activation"  # or outgoing
    stop_below: float = 0.52  # performance under which a replicate ends
    max_steps: int | None = None  # steps, where there are more units than there is time
    reselect: bool = False  # a pruned unit may be chosen again, as in the published code

    def __post_init__(self) -> None:
        pick("granularity", self.granularity, GRANULARITIES)
        pick("criterion", self.criterion, CRITERIA)
        pick("cut", self.cut, ("pre-activation", "outgoing"))
        problems = []
        if self.units is not None and self.steps is not None:
            problems.append("pruning takes units a step or a number of steps, not both")
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
            problems.append(f"pruning needs at least one unit a step and one step; got {given}")
        raise_all(problems)

    def a_step(self, total: int) -> int:
        """How many units one step switches off."""
        if self.units is not None:
            return self.units
        return max(1, -(-total // self.steps)) if self.steps is not None else max(1, total // 350)


def cost(task: Task, settings: Settings) -> Work:
    """The work: one pass with gradients per step."""
    with torch.no_grad():
        layers = find_units(task.model, task.repair.inputs[:2], settings.layers, settings.granularity)
    total, rows = layers[-1].start + layers[-1].size, len(task.repair)
    each = settings.a_step(total)
    steps = min(-(-total // each), settings.max_steps or total)
    return Work(rows * (1 + task.backward * (1 + steps)), steps, f"at most {steps} steps of {each:,} of {total:,} units")


@method(
    "pruning",
    settings=Settings,
    title="switching off the units that drive the gap (the paper's Algorithm 1)",
    paper=MARCINKEVICS,
    counts="units pruned",
    needs_layers=True,
    labels=ALL_AT_ONCE,
    classes=True,
    cost=cost,
    effort=3.0,
    in_auto=3,
)
def run(
    models: Sequence[nn.Module],
    cohorts: Sequence[Cohort],
    goal: Goal,
    *,
    seeds: Sequence[int],
    settings: Settings,
    progress: Progress | None = None,
) -> list[Candidate]:
    """The pruned networks."""
    networks = replicas(models, cohorts)
    total = networks.units(settings.layers, settings.granularity)
    a_step = settings.a_step(total)
    search = search_for(networks, cohorts, goal)
    search.pace = float(a_step)
    scores = networks.evaluate()
    look = search.begin(scores)
    weights = search.labels.weights(scores, look.threshold) * np.sign(look.gap)[:, None]
    search.active = look.gap != 0
    _, influence = networks.influence(weights, settings.criterion)
    pruned = torch.zeros_like(influence, dtype=torch.bool)
    steps = min(-(-total // a_step), settings.max_steps or total)
    for step in range(1, steps + 1):
        if not search.active.any():
            break
        going = torch.from_numpy(search.active).to(pruned.device)
        closed = torch.zeros_like(pruned) if settings.reselect else pruned
        chosen = most_influential(influence, closed, a_step) & going[:, None]
        networks.prune(chosen, settings.cut == "outgoing")
        pruned |= chosen
        scores, influence = networks.influence(weights, settings.criterion)
        look = search.step(step, scores)
        if search.labels.moving:  # the group that is furthest from the reference now; its influence is known a step later
            weights = search.labels.weights(scores, look.threshold) * np.sign(look.gap)[:, None]
        search.active &= look.performance >= settings.stop_below
        if progress:
            progress(step, steps)
    if progress:
        progress(steps, steps)
    what, most = NAMES[settings.granularity], "at most " if settings.reselect else ""
    return search.candidates("pruning", seeds, settings, lambda step: f"{most}{min(step * a_step, total)} of {total} {what} switched off")


def most_influential(influence: Tensor, pruned: Tensor, count: int) -> Tensor:
    """The `count` units of each replicate with the largest influence among those not pruned yet, marked (R, units), on their device."""
    open_ = influence.masked_fill(pruned, -torch.inf)
    count = min(count, open_.shape[1])
    if open_.is_cuda:
        top = open_.topk(count, dim=1, sorted=False).indices
    else:  # an order of magnitude faster there
        top = torch.from_numpy(np.argpartition(-open_.numpy(), count - 1, axis=1)[:, :count])
    return torch.zeros_like(pruned).scatter_(1, top, True) & ~pruned
