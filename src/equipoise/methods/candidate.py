"""The result of a debiasing method: a candidate with its network, rule, trace, reasons and outcome.

Every method sees validation data only, changes none of its arguments, leaves no hook behind, and gives the same result for the same seed.
If nothing satisfies the goal, it returns the best step. Whether a goal was met is judged on rows that were not used for fitting: on
held-out rows, or on cross-fitted decisions (`Candidate.held_out`).
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pandas as pd

from equipoise.data import FloatArray, Identities, Rows, Scores
from equipoise.errors import BadInput, pick
from equipoise.measures import Calibration, LogitMap, Rule
from equipoise.methods.goal import Goal, Note, Why
from equipoise.methods.outcome import Judgement, Outcome, Source, joint_met, joint_outcome, judge
from equipoise.models import is_network, predict
from equipoise.presenting import notebook_html, reasons_in_words

if TYPE_CHECKING:
    from torch import nn

    from equipoise.models import Predictor

Progress = Callable[[int, int], None]  # steps done, maximum number of steps
SHARED_FIELDS = ("method", "ran", "seed", "settings", "pace")  # what the candidates of all labels of one result have in common


@dataclass(frozen=True, eq=False)
class HeldOutDecisions:
    """Cross-fitted decisions on every row of the repair set, by networks, rules and thresholds that were not fitted to that row."""

    before: FloatArray  # (n,) by the original
    after: FloatArray  # (n,) by the repaired classifier; probabilities of a positive decision if the rule is randomised
    rows: Rows | None = field(default=None, repr=False)  # these rows; None if the decisions are not to be judged
    goal: Goal | None = None  # as given
    labels: int = 1  # judged together
    nested: bool = False  # whether the choice of the repair was cross-fitted too (see `cross_test`)
    spread: Mapping[str, float] = field(default_factory=dict)  # then: further standard errors of changes, by group and of performance ("")


@dataclass(frozen=True)
class Expected:
    """What a repair is expected to do for one label, next to the original: the values that it was chosen or declined by (see `choosing`).

    Rates of groups have a posterior distribution, and the change by the repair is cross-fitted.
    """

    gap_before: float  # expected largest |gap| of the original
    gap: float  # of the repair
    gain: float  # decrease, or that of what exceeds the maximum gap
    room: float  # what an ideal change of the rates could still gain
    performance: float  # change
    performance_error: float  # standard error of that change
    fall: float  # largest loss of any group: of sensitivity, ...
    rise: Mapping[str, float]  # largest rise of any group's false positive rate ("fpr") and share decided positive ("selection")
    net: float  # gain and performance less the losses
    lacks: tuple[str, ...]  # the limits that it does not keep with one standard error: performance, rates, fpr, selection

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


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
            "before": asdict(self.before),
            "after": asdict(self.after),
            "rows": self.rows,
            "checked": self.checked,
            "folded": self.folded,
            "rule_before": self.rule_before.describe(),
        }


@dataclass(frozen=True, eq=False)
class LabelCandidate:
    """The result of a method for one label: a network (none for scores), a rule, the steps tried, and the outcome on held-out rows.

    `met` and `outcome` come from the judgement of cross-fitted decisions. Both are None with selection="paper", which has no held-out rows
    before a test set is used; `met` is also None for a goal without a maximum gap.
    """

    method: str
    model: "nn.Module | Predictor | None"  # None: a rule for scores without a classifier
    rule: Rule
    trace: pd.DataFrame  # one row per step: step, gap, performance, threshold; cross-fitted selection adds corrected values
    chosen: int  # row of the trace
    why: Why
    met_in_sample: bool  # whether the chosen step satisfies the goal on the rows that it was chosen on: for choosing, not for reporting
    goal: Goal
    seed: int
    settings: Mapping[str, object] = field(default_factory=dict)
    notes: tuple[Note, ...] = ()
    pace: float = 1.0  # of one step of the trace, in the method's unit (`METHODS[method].unit(settings)`): units pruned, epochs
    ran_as: str = ""  # the method that made this trace, if another one chose it
    held_out: HeldOutDecisions | None = None  # with cross-fitted selection
    expected: Expected | None = None  # then too: of the chosen step or, if the original was kept, of the best step that was declined
    recalibration: Recalibration | None = None  # of the scores of a changed network
    # The sets that it was fitted to by role, "repair" and "training"; none for a classifier that was given.
    fitted_to: Mapping[str, Identities] = field(default_factory=dict, repr=False)

    @cached_property
    def judgement(self) -> Judgement | None:
        """The judgement of the held-out decisions, made when it is first asked for: most candidates are compared without it."""
        held = self.held_out
        if held is None or held.rows is None or held.goal is None:
            return None
        rows = held.rows if isinstance(held.rows, Scores) else Scores.of(held.rows, held.before)  # the score itself is not used
        source: Source = "nested" if held.nested else "cross-fitted"
        return judge(rows, held.before, rows, held.after, held.goal, source=source, labels=held.labels, spread=held.spread)

    @property
    def outcome(self) -> Outcome | None:
        """The outcome of the repair by cross-fitted decisions. None with selection="paper"."""
        return None if self.judgement is None else self.judgement.outcome

    @property
    def met(self) -> bool | None:
        """Whether every limit of the goal is kept on held-out rows; None without held-out rows or a maximum gap."""
        return None if self.judgement is None else self.judgement.met

    @property
    def rule_only(self) -> bool:
        """Whether it is a rule without a new network, for scores or for another kind of classifier."""
        return not is_network(self.model)

    @property
    def network(self) -> "nn.Module":
        """The network; raises `BadInput` for a rule that was fitted to scores."""
        if not is_network(self.model):
            raise BadInput("this is a rule for scores, and has no network: use its `rule`")
        return self.model

    def decide(self, rows: Rows) -> FloatArray:
        """The decisions on these rows by the classifier, if they have no scores, and the rule."""
        return self.rule.decide(predict(self.model, rows))

    @property
    def ran(self) -> str:
        """The method that made this trace: for `auto`, the method that it chose."""
        return self.ran_as or self.method

    def _repr_html_(self) -> str:
        return notebook_html(Candidate({"": self}, self.model))

    def __str__(self) -> str:
        held_out = "held_out_gap" in self.trace  # probes also report values of held-out rows
        values = self.trace[["held_out_gap", "held_out_performance"] if held_out else ["gap", "performance"]].to_numpy()
        (gap, performance), (gap_after, performance_after) = values[0], values[self.chosen]
        state = "in-sample" if self.outcome is None else str(self.outcome)
        return (
            f"{self.method}: {self.goal.measure} {gap:+.3f} -> {gap_after:+.3f}, "
            f"{self.goal.performance.replace('_', ' ')} {performance:.3f} -> {performance_after:.3f} "
            f"on {'held-out rows of ' if held_out else ''}the repair set; {state}; {reasons_in_words(self.why)}"
        )


@dataclass(frozen=True, eq=False)
class Candidate:
    """The result of a method: `labels` has the result of each label, and `model` is the network with all its outputs.

    The result of one label has all that the result of this label has: `result.rule`, `result.why`, `result.goal`, `result.judgement`. Of
    several labels, `result.labels["Effusion"].rule` is the rule of one, and `result.trace` has the largest gap of all labels.
    """

    labels: Mapping[str, LabelCandidate]  # one label without a name has the key ""
    model: "nn.Module | Predictor | None"  # None: rules for scores without a classifier
    # One row per step: the largest gap of all labels and their mean performance; of one label, always its trace.
    trace: pd.DataFrame = field(default_factory=pd.DataFrame)
    chosen: int = 0  # row of the trace

    def __post_init__(self) -> None:
        if len(self.labels) == 1:
            for name in ("trace", "chosen"):
                object.__setattr__(self, name, getattr(self.only, name))

    @property
    def only(self) -> LabelCandidate:
        """The result of the label; raises an error that names the labels if there are several."""
        if len(self.labels) > 1:
            first = next(iter(self.labels))
            raise BadInput(f"this result has several labels: {', '.join(self.labels)}. Take one of them: result[{first!r}]")
        return next(iter(self.labels.values()))

    def __getitem__(self, label: str) -> "Candidate":
        """The result of one of several labels, as a result of its own."""
        own = self.labels[pick("label of this result", label, self.labels)]
        return Candidate({label: own}, own.model)

    __iter__ = None  # a result is no sequence: iterate over `labels`

    @property
    def met_in_sample(self) -> bool:
        """Whether the chosen step satisfies the goal of every label on the rows that it was chosen on."""
        return all(own.met_in_sample for own in self.labels.values())

    @property
    def outcome(self) -> Outcome | None:
        """The outcome of the repair by cross-fitted decisions, over all labels. None with selection="paper"."""
        outcomes = [own.outcome for own in self.labels.values()]
        known = [outcome for outcome in outcomes if outcome is not None]
        return joint_outcome(known) if len(known) == len(outcomes) else None

    @property
    def met(self) -> bool | None:
        """Whether every limit of every goal is kept on held-out rows; None without held-out rows or a maximum gap."""
        return None if self.outcome is None else joint_met(own.met for own in self.labels.values())

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or not (name in LabelCandidate.__dataclass_fields__ or hasattr(LabelCandidate, name)):
            raise AttributeError(f"the result of a repair has no {name!r}")
        return getattr(next(iter(self.labels.values())) if name in SHARED_FIELDS else self.only, name)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *LabelCandidate.__dataclass_fields__, *vars(LabelCandidate)})

    def __repr__(self) -> str:
        outcome, goals = "" if self.outcome is None else f"{self.outcome}: ", {name: str(own.goal) for name, own in self.labels.items()}
        same = len(set(goals.values())) == 1
        words = next(iter(goals.values())) if same else "; ".join(f"{name}: {text}" for name, text in goals.items())
        return f"Candidate({self.method}, {len(self.trace):,} steps, {outcome}{words})"

    def _repr_html_(self) -> str:
        return notebook_html(self)

    def __str__(self) -> str:
        return "\n".join(f"{label}: {own}" if label else str(own) for label, own in self.labels.items())
