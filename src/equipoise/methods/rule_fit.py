"""What methods that leave the network as it is have in common: a rule is fitted to its scores, and comes back beside a copy of it."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Generic, TypeVar

import pandas as pd
from torch import nn

from equipoise.data import Cohort, Scores
from equipoise.measures import Rule
from equipoise.methods.base import Candidate, Goal, Progress
from equipoise.methods.looks import Labels
from equipoise.models import predict

R = TypeVar("R", bound=Rule)


@dataclass(frozen=True, eq=False)
class Fit(Generic[R]):
    """A rule and how it was found."""

    rule: R
    trace: pd.DataFrame  # step, gap, performance, threshold, and what else the method tells of a step
    chosen: int
    why: str
    met: bool
    goal: Goal


def with_rules(
    kind: str,
    fit: Callable[[Scores], Fit[R]],
    notes: Callable[[R], Sequence[str]],
    models: Sequence[nn.Module],
    cohorts: Sequence[Cohort],
    goal: Goal,
    *,
    seeds: Sequence[int],
    settings: Any,
    progress: Progress | None = None,
) -> list[Candidate]:
    """The networks as they are, each with the rule that `fit` finds on its scores; `notes` says what to know of a rule."""
    found = []
    for r, (model, cohort, seed) in enumerate(zip(models, cohorts, seeds, strict=True)):
        Labels.of([cohort], goal)  # raises where the part lacks what the measure needs
        f = fit(predict(model, cohort))
        told = tuple(notes(f.rule))
        found.append(Candidate(kind, copy.deepcopy(model), f.rule, f.trace, f.chosen, f.why, f.met, f.goal, seed, asdict(settings), told))
        if progress:
            progress(r + 1, len(models))
    return found
