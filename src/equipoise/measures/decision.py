"""Decision rules: how a score becomes a decision f in [0, 1]."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, ClassVar, Protocol, runtime_checkable

import numpy as np
from annotated_types import Ge, Le

from equipoise.data import MISSING, IntArray, Scores
from equipoise.errors import BadInput, UnknownName
from equipoise.measures.cells import FloatArray, normalised
from equipoise.measures.threshold_sweep import at_threshold, sweep

NEVER = math.nextafter(1.0, 2.0)  # the threshold that no score reaches: the number after 1
THRESHOLD = "threshold"  # the kind of rule, where one is written down
ARGMAX = "argmax: the margin of this class over the next"  # where the threshold of a class comes from


@runtime_checkable
class Rule(Protocol):
    """Turns scores into decisions; `needs_group`: whether it needs each patient's group."""

    @property
    def needs_group(self) -> bool: ...

    @property
    def randomised(self) -> bool:
        """Whether `decide` gives probabilities, from which `draw(scores, seed)` makes decisions."""
        ...

    def decide(self, scores: Scores) -> FloatArray:
        """The decision of each row: 0, 1, or the probability of a randomised 1."""
        ...

    def describe(self) -> str:
        """One line: which rule this is and where it came from."""
        ...

    def cuts(self, group: str) -> tuple[float, ...]:
        """The scores at which the decision on a row of this group changes; none for a group that the rule does not know."""
        ...

    def to_dict(self) -> dict[str, object]:
        """Plain values for JSON, with the kind of the rule under `kind`."""
        ...


@dataclass(frozen=True)
class Threshold:
    """Positive where score >= value, for everybody."""

    value: Annotated[float, Ge(0.0), Le(NEVER)]
    origin: str = "given"
    KIND: ClassVar[str] = THRESHOLD
    needs_group: ClassVar[bool] = False
    randomised: ClassVar[bool] = False

    def decide(self, scores: Scores) -> FloatArray:
        return at_threshold(scores.score, self.value)

    def describe(self) -> str:
        return f"score >= {self.value:.4g} ({self.origin})"

    def cuts(self, group: str) -> tuple[float, ...]:  # noqa: ARG002 (the same for every group)
        return (self.value,)

    def to_dict(self) -> dict[str, object]:
        """Plain values for JSON."""
        return {"kind": THRESHOLD, **asdict(self)}


@dataclass(frozen=True, eq=False)
class LabelRules(Mapping[str, Rule]):
    """A decision rule for each label; classes are decided by argmax, to which each class's rule belongs."""

    rules: Mapping[str, Rule]
    kind: str = "labels"

    def __getitem__(self, label: str) -> Rule:
        if label not in self.rules:
            raise UnknownName("label of this rule", label, self.rules)
        return self.rules[label]

    def __contains__(self, label: object) -> bool:
        return label in self.rules

    def __iter__(self) -> Iterator[str]:
        return iter(self.rules)

    def __len__(self) -> int:
        return len(self.rules)

    @property
    def needs_group(self) -> bool:
        """Whether any of them must know each patient's group."""
        return any(rule.needs_group for rule in self.rules.values())

    @property
    def randomised(self) -> bool:
        """Whether any of them gives probabilities."""
        return any(rule.randomised for rule in self.rules.values())

    def decide(self, scores: Scores) -> FloatArray:
        """An error: scores are those of one label, and so is a rule."""
        raise BadInput(
            f"these are rules of {', '.join(self.rules)}, and {scores.name!r} holds scores of one label; use rule[label].decide(scores)"
        )

    def describe(self) -> str:
        """One line per label."""
        if self.kind == "classes":
            return f"argmax of {', '.join(self.rules)}"
        return "; ".join(f"{label}: {rule.describe()}" for label, rule in self.rules.items())

    def cuts(self, group: str) -> tuple[float, ...]:
        """The thresholds of all labels for a group."""
        return tuple(cut for rule in self.rules.values() for cut in rule.cuts(group))

    def to_dict(self) -> dict[str, object]:
        """The rule of each label as plain values."""
        return {"kind": self.kind, "labels": {label: rule.to_dict() for label, rule in self.rules.items()}}


def best_threshold(scores: Scores, performance: str = "balanced_accuracy") -> Threshold:
    """The threshold with the best performance on these scores, which should be validation scores."""
    if len(np.unique(scores.y)) < 2:
        raise BadInput(
            f"a threshold by {performance} needs positives and negatives; {scores.name!r} has one label in all {len(scores):,} rows"
        )
    attribute = scores.attribute
    weight = normalised(scores.weight)
    choice = sweep(scores.score, scores.y, attribute.codes, attribute.levels, (performance,), weight=weight).best(performance)
    return Threshold(float(choice.threshold), f"chosen by best {performance.replace('_', ' ')} on {len(scores):,} rows of {scores.name}")


def choose_rule(threshold: float | None = None, valid: Scores | None = None, optimise: str = "balanced_accuracy") -> Threshold:
    """The threshold as given; or the best by `optimise` on the validation scores; or 0.5. Its `origin` names which."""
    if threshold is not None and valid is not None:
        raise BadInput("give a threshold or validation data to choose one, not both")
    if threshold is not None:
        if isinstance(threshold, bool) or not isinstance(threshold, (int, float, np.integer, np.floating)):
            raise BadInput(f"threshold must be a number, from which score on a decision is positive; got {threshold!r}")
        return Threshold(float(threshold), "given")
    if valid is not None:
        if not isinstance(valid, Scores):
            raise BadInput(f"with scores, valid is scores too: valid=eq.Scores.from_frame(...); got {type(valid).__name__}")
        return best_threshold(valid, optimise)
    return Threshold(0.5, "the default; none was given or chosen on validation data")


def codes_among(groups: tuple[str, ...], scores: Scores, who: str) -> IntArray:
    """Where each row's group stands among a rule's groups, -1 if it is missing; an error that names groups the rule never saw."""
    attribute = scores.attribute
    unseen = [attribute.levels[code] for code in np.unique(attribute.codes) if code != MISSING and attribute.levels[code] not in groups]
    if unseen:
        raise BadInput(
            f"{who} was fitted on the groups {', '.join(groups)}; {scores.name!r} holds rows of {', '.join(unseen)}, which it never saw. "
            "Fit it again on validation data with rows of every group."
        )
    place = [groups.index(level) if level in groups else MISSING for level in attribute.levels]
    codes: IntArray = np.array([*place, MISSING], dtype=np.int64)[attribute.codes]
    return codes
