"""Folds of a validation part: the rows that a method tunes on, and with them the rows that are held out.

A method is handed a fold as it is handed any cohort and need not know. What looks at its steps (`Search`) does: it writes down how each
step decides on the fold's own rows and on those held out. A fold repeats its rows until it is as long as the whole part, so that an epoch
has as many mini-batches and step 100 of a fold is as far from the original as step 100 on the whole part; counts double with the rows, so
that the weights of gaps and losses stay what they are. Fold and Decided are the only two kinds of cohort beside Cohort itself, because
what belongs to the rows of one replicate must travel with them through every method.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from equipoise.data import Cohort, IntArray, keep_aside
from equipoise.methods.base import Goal


@dataclass(frozen=True, eq=False)
class Record:
    """How the steps of one network decided on all rows of the whole part, in its order."""

    steps: list[int] = field(default_factory=list)
    decisions: list[npt.NDArray[np.bool_]] = field(default_factory=list)  # one (n,) a step

    def add(self, step: int, decisions: npt.NDArray[np.bool_]) -> None:
        """One more step."""
        self.steps.append(step)
        self.decisions.append(decisions)


@dataclass(frozen=True)
class Verdict:
    """The step to keep, why, whether it meets the goal, and the goal with its minimum performance."""

    step: int
    why: str
    met: bool
    goal: Goal


@dataclass(frozen=True, eq=False)
class Fold(Cohort):
    """Rows to tune on, over again until they are as many as the whole part has, and the rows that are held out."""

    own: IntArray = field(default_factory=lambda: np.empty(0, np.int64))  # where its rows stand in the whole part, each once
    held: IntArray = field(default_factory=lambda: np.empty(0, np.int64))  # ... and those held out
    elsewhere: Cohort | None = None  # the rows held out, over again to one length for all folds; None where all rows are tuned on
    record: Record = field(default_factory=Record)

    def add(self, step: int, own: npt.NDArray[np.bool_], elsewhere: npt.NDArray[np.bool_] | None) -> None:
        """How one step decides on the fold's rows and on those held out."""
        decisions = np.empty(len(self.own) + len(self.held), bool)
        decisions[self.own] = own[: len(self.own)]
        if elsewhere is not None:
            decisions[self.held] = elsewhere[: len(self.held)]
        self.record.add(step, decisions)


@dataclass(frozen=True, eq=False)
class Decided(Cohort):
    """The whole part, for which the step to keep is known already."""

    verdict: Verdict | None = None


def as_inputs(cohort: Cohort) -> Cohort:
    """The cohort with its encoded inputs alone, so that taking rows cannot change their encoding."""
    return replace(cohort, source=cohort.inputs)


def two_folds(cohorts: Sequence[Cohort], seeds: Sequence[int]) -> list[tuple[Fold, Fold]]:
    """Two folds of each cohort, by patient and stratified: each is tuned on one half, and the other is held out."""
    halves = []
    for cohort, seed in zip(cohorts, seeds, strict=True):
        numbered = replace(cohort, ids=np.arange(len(cohort)).astype(object))
        halves.append([part.ids.astype(np.int64) for part in keep_aside(numbered, 0.5, seed=seed)])
    longest = max(len(rows) for pair in halves for rows in pair)  # one length, so that equal networks can still go as one
    made = []
    for cohort, pair in zip(cohorts, halves, strict=True):
        made.append(tuple(_fold(cohort, pair[k], pair[1 - k], longest, k + 1) for k in (0, 1)))
    return made  # type: ignore[return-value]


def whole_fold(cohort: Cohort) -> Fold:
    """A fold of all rows, with nothing held out."""
    return Fold(**_fields(cohort), own=np.arange(len(cohort)))


def _fold(cohort: Cohort, own: IntArray, held: IntArray, length: int, number: int) -> Fold:
    rows = cohort.take(np.resize(own, len(cohort)), f"{cohort.name}/fold {number}")
    return Fold(**_fields(rows), own=own, held=held, elsewhere=cohort.take(np.resize(held, length)))


def decided(cohort: Cohort, verdict: Verdict) -> Decided:
    """The cohort with what was decided."""
    return Decided(**_fields(cohort), verdict=verdict)


def _fields(cohort: Cohort) -> dict[str, Any]:
    return {name: getattr(cohort, name) for name in Cohort.__dataclass_fields__}
