"""What a method is run on, and what comes of it: networks with their rows, the halves of cross-fitted selection, and records of steps."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import nn

from equipoise.data import BoolArray, Cohort, IntArray, Rows
from equipoise.errors import BadInput
from equipoise.methods.base import Candidate, Progress
from equipoise.methods.contract import Method
from equipoise.methods.goal import Goal, Why


@dataclass(frozen=True)
class Verdict:
    """The step to keep, where that is decided already, and for each label why, whether it meets its goal, and that goal."""

    step: int
    why: tuple[Why, ...]
    met: tuple[bool, ...]
    goals: tuple[Goal, ...]


@dataclass(frozen=True, eq=False)
class Half:
    """Rows to repair on, repeated until they are as many as the whole set has, and the rows that are held out."""

    cohort: Cohort
    own: IntArray  # where its rows stand in the whole set, each once
    held: IntArray  # ... and those that are held out
    elsewhere: Cohort | None = None  # the rows held out, repeated to one length for all halves; None where all rows are repaired on


@dataclass(frozen=True, eq=False)
class Record:
    """How the steps of one network decide on all rows of the whole set, in its order."""

    steps: list[int] = field(default_factory=list)
    decisions: list[BoolArray] = field(default_factory=list)  # one (rows, labels) per step


@dataclass(frozen=True, eq=False)
class Run:
    """What came of one network: the candidate, and how its steps decide on a half and on the rows held out from it."""

    candidate: Candidate
    record: Record


@dataclass(frozen=True, eq=False)
class Job:
    """What a method is run on: networks with their repair sets, one goal per label, seeds and settings; and the training sets."""

    method: Method
    models: Sequence[nn.Module | None]  # None: of scores alone
    cohorts: Sequence[Rows]
    goals: Sequence[Goal]
    seeds: Sequence[int]
    settings: Any
    trains: Sequence[Cohort] | None = None
    progress: Progress | None = None
    halves: Sequence[Half] | None = None
    verdicts: Sequence[Verdict] | None = None
    deadline: float | None = None  # by time.monotonic(), after which no further step is taken; None: no limit
    refuse_constant: bool = False  # whether a step that decides the same for everybody cannot be chosen

    @property
    def networks(self) -> list[nn.Module]:
        """The networks, or an error where there are scores alone."""
        found = [model for model in self.models if model is not None]
        if len(found) < len(self.models):
            raise BadInput(f"{self.method.name} changes a network, and scores have none")
        return found

    @property
    def inputs(self) -> list[Cohort]:
        """The cohorts that networks are shown, or an error where there are scores alone."""
        found = [cohort for cohort in self.cohorts if isinstance(cohort, Cohort)]
        if len(found) < len(self.cohorts):
            raise BadInput(f"{self.method.name} shows rows to a network, and scores have none")
        return found

    def within(self, share: float) -> "Job":
        """The job with only this share of the time that is left."""
        now = time.monotonic()
        return self if self.deadline is None else replace(self, deadline=now + share * max(0.0, self.deadline - now))

    def some(self, which: slice) -> "Job":
        """The job of some of the networks."""
        names = ("models", "cohorts", "seeds", "trains", "halves", "verdicts")
        theirs: dict[str, Any] = {name: None if (own := getattr(self, name)) is None else own[which] for name in names}
        return replace(self, **theirs)
