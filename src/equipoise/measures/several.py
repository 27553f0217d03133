"""Several labels, or the classes of one label: a rule for each of them, and an audit for each of them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from equipoise.data import Scores
from equipoise.errors import BadInput, UnknownName
from equipoise.measures.cells import FloatArray
from equipoise.measures.decision import Rule

ARGMAX = "argmax: the margin of this class over the next"  # where the threshold of a class comes from


@dataclass(frozen=True, eq=False)
class LabelRules(Mapping[str, Rule]):
    """A decision rule for each label; classes are decided by argmax, of which each class's rule is a part."""

    rules: Mapping[str, Rule]
    kind: str = "labels"

    def __getitem__(self, label: str) -> Rule:
        if label not in self.rules:
            raise UnknownName("label of this rule", label, self.rules)
        return self.rules[label]

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
        """One line a label."""
        if self.kind == "classes":
            return f"argmax of {', '.join(self.rules)}"
        return "; ".join(f"{label}: {rule.describe()}" for label, rule in self.rules.items())

    def cuts(self, group: str) -> tuple[float, ...]:
        """The thresholds of all labels for a group."""
        return tuple(cut for rule in self.rules.values() for cut in rule.cuts(group))

    def to_dict(self) -> dict[str, object]:
        """The rule of each label as plain values."""
        return {"kind": self.kind, "labels": {label: rule.to_dict() for label, rule in self.rules.items()}}
