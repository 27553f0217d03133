"""The input and output of the driver: a job is a method with a network, rows and goals; a run is its candidate."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import nn

from equipoise.data import BoolArray, Cohort, IntArray, Rows
from equipoise.errors import BadInput
from equipoise.methods.candidate import Candidate, Progress
from equipoise.methods.choosing import Verdict
from equipoise.methods.contract import Method
from equipoise.methods.goal import Goal


@dataclass(frozen=True, eq=False)
class Half:
    """A half of the rows to repair on, and the rows that are held out from it."""

    cohort: Cohort  # the rows to repair on, possibly repeated
    own: IntArray  # their positions in the whole set, each once
    held: IntArray  # the positions of the held-out rows
    elsewhere: Cohort | None = None  # the held-out rows, repeated to the same length; None if no rows are held out


@dataclass(frozen=True, eq=False)
class Record:
    """The decisions of each step on all rows of the whole set, in its order."""

    steps: list[int] = field(default_factory=list)
    decisions: list[BoolArray] = field(default_factory=list)  # one (rows, labels) per step


@dataclass(frozen=True, eq=False)
class Run:
    """The candidate of a job, and the decisions of its steps on a half and on the rows held out from it."""

    candidate: Candidate
    record: Record


@dataclass(frozen=True, eq=False)
class Job:
    """The input of a run: a method, a network with its repair set, the goal of each label, a seed, settings, and the training set."""

    method: Method
    model: nn.Module | None  # None: scores without a network
    rows: Rows
    goals: Mapping[str, Goal]  # by label
    seed: int
    settings: Any
    train: Cohort | None = None
    progress: Progress | None = None
    half: Half | None = None
    verdict: Verdict | None = None
    deadline: float | None = None  # by time.monotonic(), after which no further step is taken; None: no limit
    refuse_constant: bool = False  # steps with constant decisions are not chosen

    @property
    def network(self) -> nn.Module:
        """The network; raises `BadInput` for scores without a network."""
        if self.model is None:
            raise BadInput(f"{self.method.name} changes a network, and scores have none")
        return self.model

    @property
    def cohort(self) -> Cohort:
        """The rows that the network takes; raises `BadInput` for scores without a network."""
        if not isinstance(self.rows, Cohort):
            raise BadInput(f"{self.method.name} shows rows to a network, and scores have none")
        return self.rows

    def within(self, share: float) -> "Job":
        """The job with this share of the remaining time."""
        now = time.monotonic()
        return self if self.deadline is None else replace(self, deadline=now + share * max(0.0, self.deadline - now))
