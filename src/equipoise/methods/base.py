"""The contract of every debiasing method: a goal goes in, a candidate comes out, and the trace says how it was chosen.

A method is `method(model, cohort, goal, *, seed, ...) -> Candidate`. It sees validation data only, changes none of its arguments, leaves
no hook behind, and gives the same result for the same seed. If nothing satisfies the goal it returns the best it saw. Whether a goal was
met is judged on rows that were not used for fitting: on held-out rows, or on cross-fitted decisions (`Candidate.held_out`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pandas as pd
from torch import nn

from equipoise.errors import pick, raise_all
from equipoise.measures import AT_THRESHOLD, RATES, Calibration, FloatArray, LogitMap, Rule, named
from equipoise.presenting import presenter

if TYPE_CHECKING:
    from equipoise.methods.outcome import Judgement, Outcome

Progress = Callable[[int, int], None]  # steps done, steps at most
DEFAULT_MAX_LOSS = 0.02  # of the original's performance, for a goal that has neither min_performance nor max_loss
BEFORE = "before"  # of a rate that is kept: its value under the original network
SELECTIONS = ("paper", "honest", "one-se")


@dataclass(frozen=True)
class Note:
    """One thing to know about a repair beyond its numbers, as a value: a kind, a subject (a group, a measure, a method) and numbers.

    Sentences are made of notes in the room that presents; code that needs to know what a note is about asks for its kind.

    >>> Note("pruned", "units", {"switched_off": 12, "of": 40}).to_dict()
    {'kind': 'pruned', 'subject': 'units', 'switched_off': 12, 'of': 40}
    """

    kind: str
    subject: str = ""
    numbers: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {"kind": self.kind, "subject": self.subject, **self.numbers}


Why = tuple[Note, ...]  # why a step was chosen, and what it lacks


@dataclass(frozen=True)
class Goal:
    """What to reach: the smallest |gap| whose performance is kept, and where `max_gap` is given, a |gap| of at most that.

    `measure` is the name of a gap or a signed sum of rates, "tpr-fpr" or {"tpr": 1, "fpr": -1}, which gets a name too: 'tpr-fpr'.
    `keep` protects groups: no group's rate may fall below its value before, {"tpr": "before"}, or below a minimum, {"tpr": 0.8}.
    `selection` says how a step is chosen: "paper", by its values on the data it was tuned on; "honest", by confidence bounds on values
    that held-out rows have corrected; "one-se", as honest, but of all steps within a standard error of the best the best performing one.
    Performance is kept at `min_performance`, or at the original's less `max_loss`, which is 0.02 unless given. Only with "paper", as
    published, a goal with nothing but `max_gap` keeps no performance: it asks for the best performance with |gap| <= `max_gap`.
    `threshold` is the one in use today, at which the original decides; left out, the original has the threshold of best performance.

    >>> Goal("eod", max_gap=0.05, keep={"tpr": 0.8}).describe()
    '|eod| <= 0.05 with tpr >= 0.8 in every group'
    """

    measure: str = "eod"
    performance: str = "balanced_accuracy"
    min_performance: float | None = None
    max_gap: float | None = None
    keep: Mapping[str, float | str] = field(default_factory=dict, hash=False)
    selection: str = "paper"
    max_loss: float | None = None
    threshold: float | None = None
    original: float | None = field(default=None, compare=False)  # the original's performance, where `min_performance` follows from it

    def __post_init__(self) -> None:
        object.__setattr__(self, "measure", named(self.measure))
        pick("performance measure", self.performance, AT_THRESHOLD)
        pick("selection", self.selection, SELECTIONS)
        problems = []
        for name in ("min_performance", "max_gap", "max_loss", "threshold"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= 1:
                problems.append(f"{name} must be between 0 and 1; got {value}")
        if self.max_loss is not None and self.min_performance is not None:
            given = f"max_loss={self.max_loss} with min_performance={self.min_performance}"
            problems.append(f"max_loss cannot be combined with min_performance; got {given}. Leave one of them out")
        for rate, least in self.keep.items():
            pick("rate to keep", rate, RATES)
            if least != BEFORE and (isinstance(least, (str, bool)) or not 0 <= least <= 1):
                problems.append(f"a rate is kept at its value {BEFORE!r} or at a minimum in [0, 1]; got {least!r} for {rate}")
        raise_all(problems)
        object.__setattr__(self, "keep", dict(self.keep))  # a copy, so that it cannot be changed

    @property
    def each(self) -> "tuple[Goal, ...]":
        """The goal of every label; of one label, itself."""
        return (self,)

    @property
    def allowed_loss(self) -> float:
        """How far performance may fall below the original's where there is no minimum performance."""
        return DEFAULT_MAX_LOSS if self.max_loss is None else self.max_loss

    @property
    def keeps_performance(self) -> bool:
        """Whether a least performance is asked for, as it is but for a published goal with only a maximum gap."""
        return self.min_performance is not None or self.max_loss is not None or self.max_gap is None or self.selection != "paper"

    def settled(self, original: float) -> "Goal":
        """The goal with its minimum performance: the one given, or the original's performance less what may be lost."""
        if self.min_performance is None and self.keeps_performance:
            return replace(self, min_performance=max(0.0, original - self.allowed_loss), max_loss=None, original=original)
        return self

    def for_steps(self) -> "Goal":
        """The same goal for a method whose steps are chosen by cross-fitting elsewhere: its own choice is made in-sample."""
        if self.selection == "paper":
            return self
        return replace(self, selection="paper", max_loss=self.allowed_loss if self.min_performance is None else None)

    def describe(self) -> str:
        """One line in words."""
        parts = [f"smallest |{self.measure}|" if self.max_gap is None else f"|{self.measure}| <= {self.max_gap:g}"]
        if self.min_performance is not None:
            parts.append(f"{self.performance.replace('_', ' ')} >= {self.min_performance:.3g}")
        if self.max_loss is not None:
            parts.append(f"{self.performance.replace('_', ' ')} at most {self.max_loss:g} lower")
        parts += [
            f"no group's {rate} lower than before" if least == BEFORE else f"{rate} >= {least:g} in every group"
            for rate, least in self.keep.items()
        ]
        return " with ".join([parts[0], " and ".join(parts[1:])] if parts[1:] else parts)


@dataclass(frozen=True)
class JointGoal(Goal):
    """The goals of several labels, or classes, at once; measure, performance and selection are those of the first."""

    names: tuple[str, ...] = ()
    goals: tuple[Goal, ...] = ()

    @property
    def each(self) -> tuple[Goal, ...]:
        """The goal of every label."""
        return self.goals

    @classmethod
    def of(cls, goals: Mapping[str, Goal]) -> "JointGoal":
        """The goals of these labels as one."""
        first = next(iter(goals.values()))
        largest = [goal.max_gap for goal in goals.values() if goal.max_gap is not None]
        names, each = tuple(goals), tuple(goals.values())
        limit = min(largest, default=None)
        return cls(first.measure, first.performance, max_gap=limit, selection=first.selection, names=names, goals=each)

    def describe(self) -> str:
        """One line in words."""
        told = {name: goal.describe() for name, goal in zip(self.names, self.goals, strict=True)}
        return next(iter(told.values())) if len(set(told.values())) == 1 else "; ".join(f"{name}: {text}" for name, text in told.items())


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
    """What a method found: a network, a decision rule, the steps it tried on validation data, and what held-out rows say of it.

    `met` and `outcome` come from the judgement of cross-fitted decisions. Both are None with selection="paper", which has no held-out rows
    before a test set is used; `met` is None as well for a goal without a maximum gap.
    """

    method: str
    model: nn.Module
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
    judgement: "Judgement | None" = None  # what the held-out decisions show; of several labels, each label has its own
    recalibration: Recalibration | None = None  # of the scores of a network that was changed; of several labels, each label has its own

    @property
    def outcome(self) -> "Outcome | None":
        """What the repair achieved, by cross-fitted decisions; of several labels, for all of them. None with selection="paper"."""
        from equipoise.methods.outcome import joint_outcome

        each = [own.judgement for own in self.each]
        known = [judgement.outcome for judgement in each if judgement is not None]
        return joint_outcome(known) if len(known) == len(each) else None

    @property
    def met(self) -> bool | None:
        """Whether every limit of the goal is kept on held-out rows; None where there are none, or no maximum gap."""
        from equipoise.methods.outcome import joint_met

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
        return f"Candidate({self.method}, {len(self.trace):,} steps, {outcome}{self.goal.describe()})"

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
