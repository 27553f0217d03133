"""The input and output of the driver: a job is a method with networks, rows and goals; a run is the candidate of one network."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import nn

from equipoise.data import BoolArray, Cohort, IntArray, Rows
from equipoise.errors import BadInput
from equipoise.methods.candidate import Candidate, Progress
from equipoise.methods.contract import Method
from equipoise.methods.goal import Goal, Why


@dataclass(frozen=True)
class Verdict:
    """A choice that is already made: the step to keep, and for each label the reasons, whether it meets its goal, and that goal."""

    step: int
    why: tuple[Why, ...]
    met: tuple[bool, ...]
    goals: tuple[Goal, ...]


@dataclass(frozen=True, eq=False)
class Half:
    """A half of the rows to repair on, and the rows that are held out from it."""

    cohort: Cohort  # the rows to repair on, possibly repeated
    own: IntArray  # their positions in the whole set, each once
    held: IntArray  # the positions of the held-out rows
    elsewhere: Cohort | None = None  # the held-out rows, repeated to one length for all halves; None if no rows are held out


@dataclass(frozen=True, eq=False)
class Record:
    """The decisions of each step of one network on all rows of the whole set, in its order."""

    steps: list[int] = field(default_factory=list)
    decisions: list[BoolArray] = field(default_factory=list)  # one (rows, labels) per step


@dataclass(frozen=True, eq=False)
class Run:
    """The candidate of one network, and the decisions of its steps on a half and on the rows held out from it."""

    candidate: Candidate
    record: Record


@dataclass(frozen=True, eq=False)
class Job:
    """The input of a run: a method, networks with their repair sets, one goal per label, seeds, settings, and the training sets."""

    method: Method
    models: Sequence[nn.Module | None]  # None: scores without a network
    cohorts: Sequence[Rows]
    goals: Sequence[Goal]
    seeds: Sequence[int]
    settings: Any
    trains: Sequence[Cohort] | None = None
    progress: Progress | None = None
    halves: Sequence[Half] | None = None
    verdicts: Sequence[Verdict] | None = None
    deadline: float | None = None  # by time.monotonic(), after which no further step is taken; None: no limit
    refuse_constant: bool = False  # steps with constant decisions are not chosen

    @property
    def networks(self) -> list[nn.Module]:
        """The networks; raises `BadInput` for scores without a network."""
        networks = [model for model in self.models if model is not None]
        if len(networks) < len(self.models):
            raise BadInput(f"{self.method.name} changes a network, and scores have none")
        return networks

    @property
    def inputs(self) -> list[Cohort]:
        """The cohorts; raises `BadInput` for scores without a network."""
        cohorts = [cohort for cohort in self.cohorts if isinstance(cohort, Cohort)]
        if len(cohorts) < len(self.cohorts):
            raise BadInput(f"{self.method.name} shows rows to a network, and scores have none")
        return cohorts

    def within(self, share: float) -> "Job":
        """The job with this share of the remaining time."""
        now = time.monotonic()
        return self if self.deadline is None else replace(self, deadline=now + share * max(0.0, self.deadline - now))

    def take(self, indices: Sequence[int]) -> "Job":
        """The job of the networks at these indices."""
        names = ("models", "cohorts", "seeds", "trains", "halves", "verdicts")
        taken: dict[str, Any] = {name: None if (own := getattr(self, name)) is None else [own[k] for k in indices] for name in names}
        return replace(self, **taken)
