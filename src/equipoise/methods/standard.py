"""STANDARD: the original network with the threshold of best performance on validation data. What every method is compared with."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import nn

from equipoise.data import Cohort
from equipoise.methods.base import Candidate, Goal, Progress
from equipoise.methods.contract import ALL_AT_ONCE, Work, method
from equipoise.methods.looks import Labels, Traces
from equipoise.methods.selection import plain_rule, select
from equipoise.models import predict


@dataclass(frozen=True)
class Settings:
    """Nothing to set."""


@method(
    "standard",
    settings=Settings,
    title="the original network, threshold by best performance",
    selects=False,
    labels=ALL_AT_ONCE,
    classes=True,
    cost=lambda task, _: Work(len(task.repair), 1, "the original network"),
    effort=0.1,
    in_auto=0,
)
def run(
    models: Sequence[nn.Module],
    cohorts: Sequence[Cohort],
    goal: Goal,
    *,
    seeds: Sequence[int],
    settings: Settings,  # noqa: ARG001 (every method has some)
    progress: Progress | None = None,
) -> list[Candidate]:
    """The networks as they are."""
    scores = np.stack([predict(model, cohort).score for model, cohort in zip(models, cohorts, strict=True)])
    look = Labels.of(cohorts, goal).look(scores)
    traces = Traces(len(models))
    traces.add(0, look)
    found = []
    for r, (model, cohort, seed) in enumerate(zip(models, cohorts, seeds, strict=True)):
        trace = traces.frame(r)
        settled = goal.settled(float(look.performance[r]))
        selection = select(trace, settled)
        why = "the original network" if selection.met else f"the original network; {selection.why}"
        rule = plain_rule("standard", trace, 0, cohort, settled)
        found.append(Candidate("standard", copy.deepcopy(model), rule, trace, 0, why, selection.met, settled, seed))
    if progress:
        progress(1, 1)
    return found
