"""The contract of every debiasing method: a job with its goals goes in, candidates come out, and the trace says how each was chosen.

A method is `method(model, cohort, goal, *, seed, ...) -> Candidate`. It sees validation data only, changes none of its arguments, leaves
no hook behind, and gives the same result for the same seed. If nothing satisfies the goal it returns the best it saw. Whether a goal was
met is judged on rows that were not used for fitting: on held-out rows, or on cross-fitted decisions (`Candidate.held_out`).
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd
from torch import nn

from equipoise.data import BoolArray, Cohort, IntArray, Rows
from equipoise.errors import BadInput
from equipoise.measures import Calibration, FloatArray, LogitMap, Rule
from equipoise.methods.contract import Method
from equipoise.methods.goal import Goal, Note, Why
from equipoise.methods.outcome import Judgement, Outcome, joint_met, joint_outcome
from equipoise.models import Predictor
from equipoise.presenting import presenter

Progress = Callable[[int, int], None]  # steps done, steps at most


@dataclass(frozen=True, eq=False)
class HeldOut:
    """For every row of the repair set the decisions before and after by networks, rules and thresholds that were not fitted to that row."""

    before: FloatArray  # (n,) of the original
    after: FloatArray  # (n,) of the repaired classifier; probabilities of a positive decision where the rule is randomised


@dataclass(frozen=True)
class Recalibration:
    """The increasing map of a repaired network's scores that was fitted on the repair set; it changes no decision.

    `before` and `after` are against the risk by the original network, recalibrated on the labels of the repair set, since the repaired one
    knows something of these labels. `after` is cross-fitted: each fold of the patients by a map of the others.
    """

    map: LogitMap
    before: Calibration
    after: Calibration
    rows: int  # of the repair set
    checked: int  # rows on which every decision is the same as before
    folded: bool  # into the last layer, so that keys and shapes are those of the original
    rule_before: Rule  # on the scores before

    def to_dict(self) -> dict[str, object]:
        """Plain values for JSON."""
        told = {"slope": self.map.slope, "intercept": self.map.intercept, "before": self.before.to_dict(), "after": self.after.to_dict()}
        return {**told, "rows": self.rows, "checked": self.checked, "folded": self.folded, "rule_before": self.rule_before.describe()}


@dataclass(frozen=True, eq=False)
class Candidate:
    """What a method found: a network (none for scores alone), a rule, the steps it tried, and its outcome on held-out rows.

    `met` and `outcome` come from the judgement of cross-fitted decisions. Both are None with selection="paper", which has no held-out rows
    before a test set is used; `met` is None as well for a goal without a maximum gap.
    """

    method: str
    model: nn.Module | Predictor | None  # None: a rule for scores that came without a classifier
    rule: Rule
    trace: pd.DataFrame  # one row per step: step, gap, performance, threshold; cross-fitted selection adds corrected values
    chosen: int  # the row of the trace that was chosen
    why: Why
    met_in_sample: bool  # whether the chosen step satisfies the goal on the rows that it was chosen on: for choosing, not for reporting
    goal: Goal
    seed: int
    settings: Mapping[str, object] = field(default_factory=dict)
    notes: tuple[Note, ...] = ()
    labels: Mapping[str, "Candidate"] = field(default_factory=dict)  # of a network with several outputs: what was found for each label
    pace: float = 1.0  # of one step of the trace, in what the method counts (`METHODS[method].unit(settings)`): units pruned, epochs
    ran_as: str = ""  # the method whose trace this is, where another one chose it
    held_out: HeldOut | None = None  # with cross-fitted selection; of several labels, each label has its own
    judgement: Judgement | None = None  # what the held-out decisions show; of several labels, each label has its own
    recalibration: Recalibration | None = None  # of the scores of a network that was changed; of several labels, each label has its own

    @property
    def rule_only(self) -> bool:
        """Whether it is a rule without a network of its own, for scores or for another kind of classifier."""
        return not isinstance(self.model, nn.Module)

    @property
    def network(self) -> nn.Module:
        """The network, or an error for a rule that was fitted to scores alone."""
        if not isinstance(self.model, nn.Module):
            raise BadInput("this is a rule for scores, and has no network: use its `rule`")
        return self.model

    @property
    def outcome(self) -> Outcome | None:
        """What the repair achieved, by cross-fitted decisions; of several labels, for all of them. None with selection="paper"."""
        each = [own.judgement for own in self.each]
        known = [judgement.outcome for judgement in each if judgement is not None]
        return joint_outcome(known) if len(known) == len(each) else None

    @property
    def met(self) -> bool | None:
        """Whether every limit of the goal is kept on held-out rows; None where there are none, or no maximum gap."""
        each = [own.judgement for own in self.each]
        return joint_met([judgement.met for judgement in each if judgement is not None]) if None not in each else None

    @property
    def ran(self) -> str:
        """The method whose trace this is: of `auto`, the one that it chose."""
        return self.ran_as or self.method

    @property
    def each(self) -> "tuple[Candidate, ...]":
        """The candidate of every label; of one label, itself."""
        return tuple(self.labels.values()) or (self,)

    def __repr__(self) -> str:
        outcome = "" if self.outcome is None else f"{self.outcome}: "
        return f"Candidate({self.method}, {len(self.trace):,} steps, {outcome}{self.goal})"

    def _repr_html_(self) -> str:
        return str(presenter("candidate_html")(self))

    def __str__(self) -> str:
        if self.labels:
            return "\n".join(f"{label}: {found}" for label, found in self.labels.items())
        held_out = "held_out_gap" in self.trace  # a method with probes: what they say of rows that they have not seen
        told = self.trace[["held_out_gap", "held_out_performance"] if held_out else ["gap", "performance"]].to_numpy()
        (gap, performance), (found, kept) = told[0], told[self.chosen]
        state = "in-sample" if self.outcome is None else str(self.outcome)
        return (
            f"{self.method}: {self.goal.measure} {gap:+.3f} -> {found:+.3f}, "
            f"{self.goal.performance.replace('_', ' ')} {performance:.3f} -> {kept:.3f} "
            f"on {'held-out rows of ' if held_out else ''}the repair set; {state}; {presenter('why_words')(self.why)}"
        )


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
