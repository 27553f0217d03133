"""The result of a debiasing method: a candidate with its network, rule, trace, reasons and outcome.

Every method sees validation data only, changes none of its arguments, leaves no hook behind, and gives the same result for the same seed.
If nothing satisfies the goal, it returns the best step. Whether a goal was met is judged on rows that were not used for fitting: on
held-out rows, or on cross-fitted decisions (`Candidate.held_out`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import pandas as pd
from torch import nn

from equipoise.data import Identities, Scores
from equipoise.errors import BadInput
from equipoise.measures import Calibration, FloatArray, LogitMap, Rule
from equipoise.methods.goal import Goal, Note, Why
from equipoise.methods.outcome import Judgement, Outcome, joint_met, joint_outcome, judge
from equipoise.models import Predictor
from equipoise.presenting import presenter

Progress = Callable[[int, int], None]  # steps done, maximum number of steps


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Cross-fitted decisions on every row of the repair set, by networks, rules and thresholds that were not fitted to that row."""

    before: FloatArray  # (n,) by the original
    after: FloatArray  # (n,) by the repaired classifier; probabilities of a positive decision if the rule is randomised
    judged_on: "tuple[Scores, Goal, int] | None" = field(default=None, repr=False)  # these rows, the goal, and the labels judged together

    @cached_property
    def judgement(self) -> Judgement | None:
        """The judgement of these decisions, made when it is first asked for: most candidates are compared without it."""
        if self.judged_on is None:
            return None
        rows, goal, labels = self.judged_on
        return judge(rows, self.before, rows, self.after, goal, source="cross-fitted", labels=labels)


@dataclass(frozen=True)
class Recalibration:
    """The increasing map of a repaired network's scores that was fitted on the repair set; it changes no decision.

    `before` and `after` compare the scores with the risk by the original network, recalibrated on the labels of the repair set, because the
    repaired network was fitted to these labels. `after` is cross-fitted by patient.
    """

    map: LogitMap
    before: Calibration
    after: Calibration
    rows: int  # of the repair set
    checked: int  # rows on which the decisions were found unchanged
    folded: bool  # into the last layer, so that keys and shapes are those of the original
    rule_before: Rule  # on the scores before recalibration

    def to_dict(self) -> dict[str, object]:
        """Plain values for JSON."""
        return {
            "slope": self.map.slope,
            "intercept": self.map.intercept,
            "before": self.before.to_dict(),
            "after": self.after.to_dict(),
            "rows": self.rows,
            "checked": self.checked,
            "folded": self.folded,
            "rule_before": self.rule_before.describe(),
        }


@dataclass(frozen=True, eq=False)
class Candidate:
    """The result of a method: a network (none for scores), a rule, the steps tried, and the outcome on held-out rows.

    `met` and `outcome` come from the judgement of cross-fitted decisions. Both are None with selection="paper", which has no held-out rows
    before a test set is used; `met` is also None for a goal without a maximum gap.
    """

    method: str
    model: nn.Module | Predictor | None  # None: a rule for scores without a classifier
    rule: Rule
    trace: pd.DataFrame  # one row per step: step, gap, performance, threshold; cross-fitted selection adds corrected values
    chosen: int  # row of the trace
    why: Why
    met_in_sample: bool  # whether the chosen step satisfies the goal on the rows that it was chosen on: for choosing, not for reporting
    goal: Goal
    seed: int
    settings: Mapping[str, object] = field(default_factory=dict)
    notes: tuple[Note, ...] = ()
    labels: Mapping[str, "Candidate"] = field(default_factory=dict)  # with several labels: the candidate of each
    pace: float = 1.0  # of one step of the trace, in the method's unit (`METHODS[method].unit(settings)`): units pruned, epochs
    ran_as: str = ""  # the method that made this trace, if another one chose it
    held_out: HeldOut | None = None  # with cross-fitted selection; with several labels, one per label
    recalibration: Recalibration | None = None  # of the scores of a changed network; with several labels, one per label
    # The sets that it was fitted to by role, "repair" and "training"; none for a classifier that was given. With several labels, by label.
    fitted_to: Mapping[str, Identities] = field(default_factory=dict, repr=False)

    @property
    def judgement(self) -> Judgement | None:
        """The judgement of the held-out decisions; with several labels, each has its own."""
        return None if self.held_out is None else self.held_out.judgement

    @property
    def rule_only(self) -> bool:
        """Whether it is a rule without a new network, for scores or for another kind of classifier."""
        return not isinstance(self.model, nn.Module)

    @property
    def network(self) -> nn.Module:
        """The network; raises `BadInput` for a rule that was fitted to scores."""
        if not isinstance(self.model, nn.Module):
            raise BadInput("this is a rule for scores, and has no network: use its `rule`")
        return self.model

    @property
    def outcome(self) -> Outcome | None:
        """The outcome of the repair by cross-fitted decisions, over all labels. None with selection="paper"."""
        judgements = [own.judgement for own in self.each]
        outcomes = [judgement.outcome for judgement in judgements if judgement is not None]
        return joint_outcome(outcomes) if len(outcomes) == len(judgements) else None

    @property
    def met(self) -> bool | None:
        """Whether every limit of the goal is kept on held-out rows; None without held-out rows or a maximum gap."""
        judgements = [own.judgement for own in self.each]
        return joint_met([own.met for own in judgements if own is not None]) if None not in judgements else None

    @property
    def ran(self) -> str:
        """The method that made this trace: for `auto`, the method that it chose."""
        return self.ran_as or self.method

    @property
    def each(self) -> "tuple[Candidate, ...]":
        """The candidate of every label; with one label, the candidate itself."""
        return tuple(self.labels.values()) or (self,)

    def __repr__(self) -> str:
        outcome = "" if self.outcome is None else f"{self.outcome}: "
        return f"Candidate({self.method}, {len(self.trace):,} steps, {outcome}{self.goal})"

    def _repr_html_(self) -> str:
        return str(presenter("candidate_html")(self))

    def __str__(self) -> str:
        if self.labels:
            return "\n".join(f"{label}: {own}" for label, own in self.labels.items())
        held_out = "held_out_gap" in self.trace  # probes also report values of held-out rows
        values = self.trace[["held_out_gap", "held_out_performance"] if held_out else ["gap", "performance"]].to_numpy()
        (gap, performance), (gap_after, performance_after) = values[0], values[self.chosen]
        state = "in-sample" if self.outcome is None else str(self.outcome)
        return (
            f"{self.method}: {self.goal.measure} {gap:+.3f} -> {gap_after:+.3f}, "
            f"{self.goal.performance.replace('_', ' ')} {performance:.3f} -> {performance_after:.3f} "
            f"on {'held-out rows of ' if held_out else ''}the repair set; {state}; {presenter('why_words')(self.why)}"
        )
