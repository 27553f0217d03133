"""The goal of a repair, and notes: typed values for everything worth reporting. This module imports neither numpy nor torch."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import AfterValidator, BeforeValidator, ValidationInfo, model_validator

from equipoise.errors import BadInput, pick, raise_all
from equipoise.measures import AT_THRESHOLD, RATES, Gap, canonical_name, is_performance, measure_of, missed_case_worth
from equipoise.specification import Share, Specification, is_share, one_of, setting

DEFAULT_MEASURE = "eod"
DEFAULT_PERFORMANCE = "balanced_accuracy"
DEFAULT_SELECTION = "honest"
DEFAULT_MAX_LOSS = 0.02  # of the original's performance, for a goal with neither min_performance nor max_loss
BEFORE = "before"  # the limit of a kept rate is its value for the original network
SELECTIONS = ("paper", "honest")
DEFAULT_MAX_RISE = {"fpr": 0.1, "selection": 0.1}  # of any group: false alarms among those without the finding, and patients flagged
Keep = Mapping[str, float | str]


@dataclass(frozen=True)
class Note:
    """A remark about a repair as a value: a kind, a subject (a group, a measure, a method) and numbers.

    The report turns notes into sentences; code checks the kind of a note.

    >>> Note("pruned", "units", {"switched_off": 12, "of": 40}).to_dict()
    {'kind': 'pruned', 'subject': 'units', 'switched_off': 12, 'of': 40}
    """

    kind: str
    subject: str = ""
    numbers: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {"kind": self.kind, "subject": self.subject, **self.numbers}


@contextmanager
def keeping(errors: list[BadInput]) -> Iterator[None]:
    """Adds a `BadInput` of the block to the list instead of raising it."""
    try:
        yield
    except BadInput as error:
        errors.append(error)


def raise_together(errors: Sequence[BadInput]) -> None:
    """Raises one error unchanged, because its type shows what is wrong, and several as one `BadInput` with all problems."""
    if len(errors) == 1:
        raise errors[0]
    raise_all([problem for error in errors for problem in error.problems])


Why = tuple[Note, ...]  # the reasons for choosing a step, and the parts of the goal that it misses


def _goal_measure(measure: Any) -> str:
    """The canonical name of a measure; raises `BadInput` if it is neither a name nor a signed sum of rates."""
    if not isinstance(measure, (str, Mapping)):
        expected = "one measure: the name of a gap, such as 'eod', or a signed sum of rates, such as 'tpr-fpr' or {'tpr': 1, 'fpr': -1}"
        raise BadInput(f"measure must be {expected}; got {measure!r}")
    return canonical_name(measure)


def _performance_name(name: str) -> str:
    """The name of a measure of performance; raises `BadInput` if it is none."""
    return name if is_performance(name) else pick("performance measure", name, AT_THRESHOLD)


def _kept(keep: Any) -> dict[str, float | str]:
    """A copy of the limits of rates; raises `BadInput` with every rate and limit that is not one."""
    if not isinstance(keep, Mapping):
        raise BadInput(f"keep must be a mapping of rates to minimums, such as {{'tpr': {BEFORE!r}}}; got {keep!r}")
    errors: list[BadInput] = []
    for rate, least in keep.items():
        with keeping(errors):
            pick("rate to keep", rate, RATES)
        if least != BEFORE and not is_share(least):
            errors.append(BadInput(f"a rate is kept at its value {BEFORE!r} or at a minimum in [0, 1]; got {least!r} for {rate}"))
    raise_together(errors)
    return dict(keep)


def _limits(limits: Any, info: ValidationInfo) -> dict[str, float]:
    """A copy of the upper limits of rates; raises `BadInput` with every rate and limit that is not one."""
    if not isinstance(limits, Mapping):
        raise BadInput(f"{info.field_name} must be limits by rate, such as {{'fpr': 0.25}}; got {limits!r}")
    errors: list[BadInput] = []
    for rate, most in limits.items():
        with keeping(errors):
            pick(f"rate in {info.field_name}", rate, RATES)
        if not is_share(most):
            errors.append(BadInput(f"{info.field_name} limits a rate by a number in [0, 1]; got {most!r} for {rate}"))
    raise_together(errors)
    return dict(limits)


def unharmed(measure: str) -> tuple[dict[str, float | str], dict[str, float]]:
    """The rates that no repair for a measure may lower in any group, and the largest rise of rates that it may not raise.

    A measure of benefit compares sensitivities or shares flagged, which may not fall. One of harm compares false positive rates, which may
    not rise, and sensitivity may not fall for it. Predictive values depend on both, and have no such rate.

    >>> unharmed("eod"), unharmed("fpr_gap")
    (({'tpr': 'before'}, {}), ({'tpr': 'before'}, {'fpr': 0.0}))
    """
    if measure_of(measure).is_quotient:
        return {}, {}
    benefits = [rate for rate in measure_of(measure).rates if rate != "fpr"]
    return dict.fromkeys(benefits or ["tpr"], BEFORE), {} if benefits else {"fpr": 0.0}


class Goal(Specification):
    """The goal of a repair: the smallest |gap| that keeps performance; with `max_gap`, a |gap| of at most that.

    - `measure`: the name of a gap, or a signed sum of rates, "tpr-fpr" or {"tpr": 1, "fpr": -1}, which is stored as 'tpr-fpr'.
    - `missed_case_worth`: how many false alarms one missed case is worth, by clinical judgement. Performance is then net benefit at these
      odds: (true positives - false positives / worth) / positives, 1 for a perfect classifier and 0 for one that flags no patient. Balanced
      accuracy sets the odds to negatives per positive, 49 at a prevalence of 2 %.
    - `min_performance`: the lowest performance to accept. Without it, performance may fall by `max_loss` (0.02).
    - `max_gap`: the largest |gap| to accept.
    - `keep`: no group's rate may fall below its original value, {"tpr": "before"}, or below a minimum, {"tpr": 0.8}. By default, no group
      may be worse off by the measure: for eod no group's sensitivity falls, for spd no share flagged, for fpr_gap no sensitivity falls and
      no false positive rate rises. `allow_worse=True` permits it, as does selection="paper".
    - `max_rise`: by how much a rate of any group may rise, {"fpr": 0.05, "selection": 0.2}; 0.1 each where not given, 1 for no limit.
      A measure that compares the share flagged, as spd does, has no limit on its rise where none is given.
    - `max_rate`: how high a rate of any group may be, {"fpr": 0.25}; where the original's is higher, it may not rise.
    - `capacity`: the share of patients that is flagged, 0.2, before and after: thresholds are those that flag this share of the repair set.
      Where one group's sensitivity rises, another's then falls, so no rate is kept unless `keep` names it.
    - `groups`: the groups that the measure compares, ["M", "F"], with the reference; all by default. Other groups decide nothing: they are
      reported, keep their threshold in rules by group, and are protected by `keep` and `max_rise` like any group.
    - `selection`: how a step is chosen. "honest": by expected loss, from cross-fitted values; "paper": by values on the rows the method was
      fitted to, where a goal with only `max_gap` means the best performance with |gap| <= `max_gap`.
    - `threshold`: the threshold in use today, at which the original is evaluated. Without it, the one of best performance.

    The defaults are those of every repair: `eq.debias`, `equipoise debias`, studies and `FairClassifier`. `str(goal)` is a formula.

    >>> print(Goal("eod", max_gap=0.05, max_loss=0.02, keep={"tpr": 0.8}))
    |eod| <= 0.05, balanced_accuracy >= original - 0.02, tpr >= 0.8
    """

    measure: Annotated[str, BeforeValidator(_goal_measure)] = setting(
        "gap to reduce: eod, spd, aod, fpr_gap, ppv_gap, ... or a sum of rates such as tpr-fpr", DEFAULT_MEASURE, flag="--measure"
    )
    performance: Annotated[str, AfterValidator(_performance_name)] = setting(
        "performance to preserve: balanced_accuracy, accuracy or f1", DEFAULT_PERFORMANCE
    )
    min_performance: Share | None = setting("lowest performance to accept, in place of max_loss", None)
    max_gap: Share | None = setting("largest |gap| to accept", None, flag="--max-gap", shown="as small as possible")
    keep: Annotated[dict[str, float | str], BeforeValidator(_kept)] = setting(
        'rates that may not fall in any group: { tpr = "before" }, or a minimum, { tpr = 0.8 }',
        default_factory=dict,
        shown="no group may be worse off by the measure",
    )
    allow_worse: bool = setting("a group may be worse off by the measure than before", False, flag="--allow-worse")
    max_rise: Annotated[dict[str, float], BeforeValidator(_limits)] = setting(
        "largest rise of a rate in any group: { fpr = 0.05, selection = 0.1 }; 1 for no limit",
        default_factory=dict,
        shown="0.1 each; spd: of fpr",
    )
    max_rate: Annotated[dict[str, float], BeforeValidator(_limits)] = setting(
        "highest rate in any group: { fpr = 0.25 }", default_factory=dict
    )
    capacity: Share | None = setting("share of patients that is flagged, before and after", None, gt=0, lt=1, shown="not fixed")
    groups: tuple[str, ...] = setting("groups that the measure compares; others are reported and protected", (), shown="all")
    selection: Annotated[str, one_of("selection", SELECTIONS)] = setting(
        "how a step is chosen: honest, by expected loss from cross-fitted values; paper, on the rows the method was fitted to",
        DEFAULT_SELECTION,
    )
    max_loss: Share | None = setting(
        "loss of performance to accept, compared with the original", None, flag="--max-loss", shown=str(DEFAULT_MAX_LOSS)
    )
    missed_case_worth: float | None = setting(
        "false alarms that one missed case is worth; the performance is then net benefit", None, flag="--missed-case-worth", gt=0
    )
    threshold: Share | None = setting("threshold in use today, at which the original is evaluated", None, shown="that of best performance")
    original: float | None = setting("performance of the original, if min_performance was derived from it", None, hidden=True)

    if TYPE_CHECKING:  # the measure may be given without its name

        def __init__(self, measure: Gap = ..., **others: Any) -> None: ...

    @model_validator(mode="after")
    def _one_limit(self) -> Self:
        if self.max_loss is not None and self.min_performance is not None:
            given = f"max_loss={self.max_loss} with min_performance={self.min_performance}"
            raise BadInput(f"max_loss cannot be combined with min_performance; got {given}. Leave one of them out")
        if self.missed_case_worth is not None:
            name = f"net_benefit_{self.missed_case_worth:g}"
            if "performance" in self.model_fields_set and self.performance != name:
                given = f"performance={self.performance!r} with missed_case_worth={self.missed_case_worth:g}"
                raise BadInput(f"missed_case_worth makes net benefit the measure of performance; got {given}. Leave one of them out")
            self.__dict__["performance"] = name
        if self.capacity is not None and self.threshold is not None:
            given = f"capacity={self.capacity:g} with the threshold {self.threshold:g}"
            raise BadInput(f"a capacity determines the threshold; got {given}. Leave one of them out")
        if self.keeps_all and "keep" not in self.model_fields_set:
            self.__dict__["keep"] = unharmed(self.measure)[0]  # and not among the fields that were set
        return self

    def __eq__(self, other: object) -> bool:
        """Whether the goals ask for the same, wherever a minimum performance comes from."""
        if not isinstance(other, Goal):
            return NotImplemented
        return {**vars(self), "original": None} == {**vars(other), "original": None}

    def __hash__(self) -> int:
        return hash((self.measure, self.performance, self.min_performance, self.max_gap, self.selection, self.max_loss, self.threshold))

    @property
    def keeps_all(self) -> bool:
        """Whether no group may be worse off by the measure."""
        return self.selection != "paper" and not self.allow_worse and self.capacity is None

    @property
    def rises(self) -> dict[str, float]:
        """The largest rise of each limited rate in any group."""
        compared = measure_of(self.measure).rates  # a rise of the share flagged is what a repair for it is
        most = {name: most for name, most in DEFAULT_MAX_RISE.items() if name == "fpr" or name not in compared}
        return {**most, **(unharmed(self.measure)[1] if self.keeps_all else {}), **self.max_rise}

    @property
    def allowed_loss(self) -> float:
        """The allowed loss of performance, for a goal without a minimum performance."""
        return DEFAULT_MAX_LOSS if self.max_loss is None else self.max_loss

    def less(self, original: float, loss: float) -> float:
        """The original's performance less a loss; only net benefit can be below 0."""
        return original - loss if missed_case_worth(self.performance) else max(0.0, original - loss)

    def derived(self, **values: Any) -> "Goal":
        """The goal with other values, which are known to be valid and are not checked again."""
        return self.model_copy(update=values)

    def settled(self, original: float) -> "Goal":
        """The goal with its minimum performance: the one given, or the original's performance less the allowed loss.

        With selection="paper" and only a maximum gap, there is none.
        """
        keeps = self.max_loss is not None or self.max_gap is None or self.selection != "paper"
        if self.min_performance is None and keeps:
            return self.derived(min_performance=self.less(original, self.allowed_loss), max_loss=None, original=original)
        return self

    def for_steps(self) -> "Goal":
        """The goal for running the method itself, which chooses in-sample; cross-fitted selection among its steps comes afterwards."""
        if self.selection == "paper":
            return self
        return self.derived(selection="paper", max_loss=self.allowed_loss if self.min_performance is None else None)

    def __str__(self) -> str:
        parts = [f"min |{self.measure}|" if self.max_gap is None else f"|{self.measure}| <= {self.max_gap:g}"]
        if self.min_performance is not None:
            parts.append(f"{self.performance} >= {self.min_performance:.3g}")
        if self.max_loss is not None:
            parts.append(f"{self.performance} >= original - {self.max_loss:g}")
        parts += [f"{self.capacity:.3g} flagged"] if self.capacity is not None else []
        parts += [f"groups {', '.join(self.groups)}"] if self.groups else []
        return ", ".join([*parts, *(f"{rate} >= {least if least == BEFORE else f'{least:g}'}" for rate, least in self.keep.items())])
