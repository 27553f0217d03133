"""The contract of every debiasing method: a goal goes in, a candidate comes out, and the trace says how it was chosen.

A method is `method(model, cohort, goal, *, seed, ...) -> Candidate`. It sees validation data only, changes none of its arguments, leaves
no hook behind, and gives the same result for the same seed. If nothing satisfies the goal it returns the best it saw. Whether a goal was
met is judged on rows that were not used for fitting: on held-out rows, or on cross-fitted decisions (`Candidate.held_out`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pandas as pd
from torch import nn

from equipoise.errors import BadInput
from equipoise.measures import Calibration, FloatArray, LogitMap, Rule
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
    """What a method found: a network (none for scores alone), a rule, the steps it tried, and what held-out rows say of it.

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
