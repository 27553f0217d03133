"""The goal of a repair, the rates that it keeps in every group, and notes: typed values for everything worth reporting."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import Any

import numpy as np

from equipoise.errors import BadInput, pick, raise_all
from equipoise.measures import AT_THRESHOLD, RATES, Cells, FloatArray, IntArray, canonical_name, thresholds_by_name
from equipoise.methods.defaults import DEFAULT_MAX_LOSS, DEFAULT_MEASURE, DEFAULT_PERFORMANCE, DEFAULT_SELECTION

BEFORE = "before"  # the limit of a kept rate is its value for the original network
SELECTIONS = ("paper", "honest", "one-se")
NOISE = 1e-9  # tolerance in comparisons of rates, which are counts over counts
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


def is_real(value: object) -> bool:
    """Whether a value is a number, which True, False and text are not."""
    return isinstance(value, Real) and not isinstance(value, bool)


def _is_share(value: Any) -> bool:
    return is_real(value) and bool(0 <= value <= 1)


def _measure_name(measure: Any) -> str:
    """The canonical name of a measure; raises `BadInput` if it is neither a name nor a signed sum of rates."""
    if not isinstance(measure, (str, Mapping)):
        expected = "one measure: the name of a gap, such as 'eod', or a signed sum of rates, such as 'tpr-fpr' or {'tpr': 1, 'fpr': -1}"
        raise BadInput(f"measure must be {expected}; got {measure!r}")
    return canonical_name(measure)


Why = tuple[Note, ...]  # the reasons for choosing a step, and the parts of the goal that it misses


@dataclass(frozen=True)
class Goal:
    """The goal of a repair: the smallest |gap| that keeps performance; with `max_gap`, a |gap| of at most that.

    - `measure`: the name of a gap, or a signed sum of rates, "tpr-fpr" or {"tpr": 1, "fpr": -1}, which is stored as 'tpr-fpr'.
    - `min_performance`: the lowest performance to accept. Without it, performance may fall by `max_loss` (0.02).
    - `max_gap`: the largest |gap| to accept.
    - `keep`: no group's rate may fall below its original value, {"tpr": "before"}, or below a minimum, {"tpr": 0.8}.
    - `selection`: how a step is chosen. "honest": by cross-fitted values; "one-se": the best performance among steps within one standard
      error of the best cross-fitted |gap|; "paper": by values on the rows the method was fitted to, where a goal with only `max_gap` means
      the best performance with |gap| <= `max_gap`.
    - `threshold`: the threshold in use today, at which the original is evaluated. Without it, the one of best performance.

    The defaults are those of every repair: `eq.debias`, `equipoise debias`, studies and `FairClassifier`. `str(goal)` is a formula.

    >>> print(Goal("eod", max_gap=0.05, max_loss=0.02, keep={"tpr": 0.8}))
    |eod| <= 0.05, balanced_accuracy >= original - 0.02, tpr >= 0.8
    """

    measure: str = DEFAULT_MEASURE
    performance: str = DEFAULT_PERFORMANCE
    min_performance: float | None = None
    max_gap: float | None = None
    keep: Keep = field(default_factory=dict, hash=False)
    selection: str = DEFAULT_SELECTION
    max_loss: float | None = None
    threshold: float | None = None
    original: float | None = field(default=None, compare=False)  # the original's performance, if `min_performance` was derived from it

    def __post_init__(self) -> None:
        errors: list[BadInput] = []
        with keeping(errors):
            object.__setattr__(self, "measure", _measure_name(self.measure))
        with keeping(errors):
            pick("performance measure", self.performance, AT_THRESHOLD)
        with keeping(errors):
            pick("selection", self.selection, SELECTIONS)
        problems = []
        for name in ("min_performance", "max_gap", "max_loss", "threshold"):
            value = getattr(self, name)
            if value is not None and not _is_share(value):
                problems.append(f"{name} must be a number between 0 and 1; got {value if is_real(value) else repr(value)}")
        if self.max_loss is not None and self.min_performance is not None:
            given = f"max_loss={self.max_loss} with min_performance={self.min_performance}"
            problems.append(f"max_loss cannot be combined with min_performance; got {given}. Leave one of them out")
        keep: Any = self.keep  # of any type, if the caller has no type checker
        if not isinstance(keep, Mapping):
            problems.append(f"keep must be a mapping of rates to minimums, such as {{'tpr': {BEFORE!r}}}; got {keep!r}")
            keep = {}
        for rate, least in keep.items():
            with keeping(errors):
                pick("rate to keep", rate, RATES)
            if least != BEFORE and not _is_share(least):
                problems.append(f"a rate is kept at its value {BEFORE!r} or at a minimum in [0, 1]; got {least!r} for {rate}")
        raise_together([*errors, *([BadInput(*problems)] if problems else [])])
        object.__setattr__(self, "keep", dict(self.keep))  # a copy, so that the caller cannot change it

    @property
    def each(self) -> "tuple[Goal, ...]":
        """The goal of every label; with one label, the goal itself."""
        return (self,)

    @property
    def allowed_loss(self) -> float:
        """The allowed loss of performance, for a goal without a minimum performance."""
        return DEFAULT_MAX_LOSS if self.max_loss is None else self.max_loss

    @property
    def keeps_performance(self) -> bool:
        """Whether a minimum performance applies: always, except for selection="paper" with only a maximum gap."""
        return self.min_performance is not None or self.max_loss is not None or self.max_gap is None or self.selection != "paper"

    def settled(self, original: float) -> "Goal":
        """The goal with its minimum performance: the one given, or the original's performance less the allowed loss."""
        if self.min_performance is None and self.keeps_performance:
            return replace(self, min_performance=max(0.0, original - self.allowed_loss), max_loss=None, original=original)
        return self

    def for_steps(self) -> "Goal":
        """The goal for running the method itself, which chooses in-sample; cross-fitted selection among its steps comes afterwards."""
        if self.selection == "paper":
            return self
        return replace(self, selection="paper", max_loss=self.allowed_loss if self.min_performance is None else None)

    def __str__(self) -> str:
        parts = [f"min |{self.measure}|" if self.max_gap is None else f"|{self.measure}| <= {self.max_gap:g}"]
        if self.min_performance is not None:
            parts.append(f"{self.performance} >= {self.min_performance:.3g}")
        if self.max_loss is not None:
            parts.append(f"{self.performance} >= original - {self.max_loss:g}")
        return ", ".join([*parts, *(f"{rate} >= {least if least == BEFORE else f'{least:g}'}" for rate, least in self.keep.items())])


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
        """The joint goal of these labels."""
        first = next(iter(goals.values()))
        limit = min((goal.max_gap for goal in goals.values() if goal.max_gap is not None), default=None)
        names, each = tuple(goals), tuple(goals.values())
        return cls(first.measure, first.performance, max_gap=limit, selection=first.selection, names=names, goals=each)

    def __str__(self) -> str:
        each = {name: str(goal) for name, goal in zip(self.names, self.goals, strict=True)}
        return next(iter(each.values())) if len(set(each.values())) == 1 else "; ".join(f"{name}: {text}" for name, text in each.items())


def goals_at(threshold: Mapping[str, float], labels: Sequence[str], goal: Goal, goals: Mapping[str, Goal] | None) -> dict[str, Goal]:
    """The goal of each label: the one for all of them, at the threshold of the label."""
    if len(labels) < 2 or goals is not None:
        why = "goals was given, which has them too" if goals is not None else "there is one label"
        raise BadInput(f"a threshold for each label is for one goal of several labels; {why}. Give one number, or put it into goals")
    return {label: replace(goal, threshold=own) for label, own in thresholds_by_name(threshold, labels).items()}


def kept_rates(keep: Keep, cells: Cells) -> FloatArray:
    """The kept rates of every group (..., rates * groups)."""
    return np.concatenate([cells.rate(RATES[name]) for name in keep], axis=-1)


def limits_of(keep: Keep, before: FloatArray) -> FloatArray:
    """The lower limits of the kept rates (..., rates * groups), from their values for the original network."""
    minimum = np.repeat([np.nan if least == BEFORE else float(least) for least in keep.values()], before.shape[-1] // len(keep))
    return np.where(np.isnan(minimum), before, minimum)


def spare(rates: FloatArray, least: FloatArray) -> FloatArray:
    """The smallest margin (...) of the rates over their limits; negative if one is too low. Undefined rates do not count."""
    margin = rates - least
    smallest: FloatArray = np.where(np.isnan(margin), np.inf, margin).min(-1)
    return smallest


def highest_threshold(keep: Keep, scores: FloatArray, y: IntArray, codes: IntArray, groups: int, least: FloatArray) -> float:
    """The highest threshold at which no rate of scores (n,) is below its limit (rates * groups,).

    Every rate is a share of positive decisions and can only rise as the threshold falls, so limits on rates are a limit on the threshold.

    >>> highest_threshold({"tpr": 0.5}, np.array([0.9, 0.4, 0.2]), np.array([1, 1, 0]), np.zeros(3, int), 1, np.array([0.5]))
    0.9
    """
    highest = np.inf
    for at, (name, group) in enumerate((name, group) for name in keep for group in range(groups)):
        label = RATES[name]
        group_scores = scores[(codes == group) & ((y == label) if label is not None else True)]
        count = len(group_scores)
        needed = int(np.ceil(least[at] * count - NOISE)) if count else 0
        if needed > 0:
            highest = min(highest, float(np.partition(group_scores, count - needed)[count - needed]))
    return highest
