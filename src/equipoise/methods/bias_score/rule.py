"""Bias score as a rule for scores without a network: the score, corrected by columns known at prediction time, against one threshold.

The logit of the given score takes the place of the network, and the named columns are the features: the probability of the label given
score and columns, less a cost for the posteriors of the groups. The group itself is not needed. The rule consists of plain numbers and is
saved as JSON, with the encoding of its columns.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.special import expit, softmax

from equipoise.data import Encoder, Scores
from equipoise.errors import BadInput, raise_all
from equipoise.measures import FloatArray
from equipoise.methods.bias_score.problem import Problem, finite_logit
from equipoise.methods.rules import Cut, Groups, plain_values
from equipoise.models import STEEP

KIND = "bias-score"
NEVER = -1e4  # the intercept of a group without rows: JSON has no infinity
Numbers = tuple[float, ...]


@dataclass(frozen=True)
class GroupHead:
    """The posterior of the groups among the rows with a label (None: among all rows), and the cost of each group."""

    label: int | None
    coefficients: tuple[Numbers, ...]  # (groups, columns + 1), the last for the logit
    intercepts: Numbers
    costs: Numbers


@dataclass(frozen=True)
class BiasScoreRule:
    """Positive where the corrected score is at least the threshold. Needs the named columns and no group."""

    threshold: Cut
    groups: Groups  # groups in the repair set, the reference first
    columns: Groups  # columns read next to the score
    numeric: Mapping[str, tuple[float, float]]  # column: mean and scale for standardising
    levels: Mapping[str, tuple[str, ...]]  # column: its levels, one-hot encoded
    coefficients: Numbers  # of the label's probe: the encoded columns, then the logit of the score
    intercept: float
    heads: tuple[GroupHead, ...]
    centre: float  # the probability of the label at which a positive decision breaks even
    origin: str = "given"
    KIND: ClassVar[str] = KIND
    shared: ClassVar[float | None] = None
    argmax: ClassVar[bool] = False
    needs_group: ClassVar[bool] = False
    randomised: ClassVar[bool] = False

    def __post_init__(self) -> None:
        problems = []
        if {*self.numeric, *self.levels} != {*self.columns}:
            problems.append("has an encoding of other columns than its `columns`")
        width = len(self.numeric) + sum(map(len, self.levels.values())) + 1
        if len(self.coefficients) != width:
            problems.append(f"has {len(self.coefficients)} coefficients for {width - 1} encoded columns and the logit")
        for head in self.heads:
            sizes = {len(head.coefficients), len(head.intercepts), len(head.costs)}
            if sizes != {len(self.groups)} or any(len(row) != width for row in head.coefficients):
                problems.append(f"has a head of another size than {len(self.groups)} groups with {width} coefficients each")
        if zero := [name for name, (_, scale) in self.numeric.items() if scale <= 0]:
            problems.append(f"has scales that are not positive: {', '.join(zero)}")
        raise_all(problems)

    @property
    def encoder(self) -> Encoder:
        """The encoder of its columns."""
        return Encoder(dict(self.numeric), dict(self.levels), self.columns)

    def corrected(self, scores: Scores) -> FloatArray:
        """The corrected score of each row."""
        if scores.features is None:
            named = ", ".join(map(repr, self.columns))
            raise BadInput(f"the rule reads {named} next to the score; {scores.name!r} has no such columns. Name them: features=[...]")
        x = np.column_stack([self.encoder.numbers(scores.features.frame), finite_logit(scores.score)])
        chance = expit(x @ np.array(self.coefficients) + self.intercept)
        value = chance - self.centre
        for head in self.heads:
            posterior = softmax(x @ np.array(head.coefficients).T + np.array(head.intercepts), axis=1)
            share = 1.0 if head.label is None else chance if head.label == 1 else 1 - chance
            value = value - share * (posterior @ np.array(head.costs))
        score: FloatArray = expit(STEEP * value)
        return score

    def decide(self, scores: Scores) -> FloatArray:
        return (self.corrected(scores) >= self.threshold).astype(np.float64)

    def describe(self) -> str:
        return f"score corrected by {', '.join(self.columns)} >= {self.threshold:.4g} ({self.origin})"

    def cuts(self, group: str) -> tuple[float, ...]:  # noqa: ARG002 (where the decision changes depends on the columns)
        return ()

    def to_dict(self) -> dict[str, object]:
        """Plain values for JSON."""
        return plain_values(self)


def rule_of(problem: Problem, prices: FloatArray, threshold: float, origin: str) -> BiasScoreRule:
    """The rule of probes that were fitted to scores and their columns, with these costs (rates, groups)."""
    scores, heads = problem.cohort, problem.heads
    assert isinstance(scores, Scores)  # a cohort gets a network with heads instead
    assert scores.features is not None  # checked before the probes were fitted
    encoder, task = scores.features.fitted(), heads.task
    return BiasScoreRule(
        threshold,
        scores.attribute.levels,
        encoder.order,
        {name: (float(mean), float(scale)) for name, (mean, scale) in encoder.numeric.items()},
        {name: tuple(levels) for name, levels in encoder.levels.items()},
        tuple(np.diff(task.weight, axis=0)[0].tolist()),
        float(np.diff(task.bias)[0]),
        tuple(
            GroupHead(
                label,
                tuple(tuple(row) for row in probe.weight.tolist()),
                tuple(np.maximum(probe.bias, NEVER).tolist()),
                tuple(price.tolist()),
            )
            for label, probe, price in zip(heads.labels, heads.groups, prices, strict=True)
        ),
        heads.centre,
        origin,
    )
