"""Equalised odds by post-processing: Hardt, Price and Srebro, "Equality of opportunity in supervised learning", NeurIPS 2016, section 4.

Every group gets a mixture of thresholds, the corners of the convex hull of its ROC curve, so that sensitivity and false positive rate are
equal in all groups, with the best possible performance. That is a linear program in the mixture weights. Decisions are randomised: `decide`
returns the probability of a positive decision, `draw` draws decisions. The rule needs each patient's group.

`base="threshold"` is the derived predictor of section 4.1, which the paper used through AIF360: it sees only whether score >= 0.5, and the
program chooses the probability of a positive decision given that and the group.

Departures from Hardt and from AIF360:
- Any number of groups. The goal's performance is what is maximised, over all rows, so accuracy is Hardt's expected 0/1 loss; AIF360
  maximises the sum of TPR - FPR over both groups, which for equal odds is the same as balanced accuracy. F1 is a quotient, and goes through
  the same program after Charnes and Cooper's change of variables.
- The corners of a hull are the blocks of the isotonic regression of label on score, so ties and constant scores are no special case.
- A row without a group gets the mixture of all groups' rules, each weighted by its share of the fitted rows.
- AIF360 flips a fixed share of the given rows; `draw` decides each row by a hash of its id, whichever rows are given with it.
The program does not use the goal's measure: a gap in selection rate (spd) remains if the groups differ in prevalence. A gap in PPV or NPV
is then determined by the prevalences and cannot be a goal of this method.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.optimize import isotonic_regression, linprog

from equipoise.data import MISSING, Scores
from equipoise.errors import BadInput, EmptyCell, pick
from equipoise.measures import (
    AFFINE_PERFORMANCE,
    FloatArray,
    IntArray,
    Rule,
    cells_at,
    group_positions,
    normalised,
    performance_functional,
    row_draws,
    sums_at,
    tabulate,
    terms,
)
from equipoise.methods.choosing import select, too_large, too_low
from equipoise.methods.contract import ONE_BY_ONE, Fit, Kind, method, rule_work
from equipoise.methods.frontier import SHARES, original_rule, rule_trace
from equipoise.methods.goal import Goal, Note
from equipoise.methods.rules import Cut, Groups, RuleByGroup, Share, of_every_group

KIND = "equalised-odds"
PAPER = """@inproceedings{hardt2016equality,
  title     = {Equality of Opportunity in Supervised Learning},
  author    = {Hardt, Moritz and Price, Eric and Srebro, Nathan},
  booktitle = {Advances in Neural Information Processing Systems},
  year      = {2016}
}"""
BASES = ("score", "threshold")
TOLERANCE = 1e-10  # the tightest that HiGHS accepts
DUST = 1e-9  # a gap below this is rounding error of the solver


@dataclass(frozen=True)
class Settings:
    """The input of the derived predictor: the score, or whether it reaches a threshold."""

    base: str = "score"
    threshold: float = 0.5  # for base="threshold"

    def __post_init__(self) -> None:
        pick("base of equalised odds", self.base, BASES)
        if not 0 <= self.threshold <= 1:
            raise BadInput(f"the threshold of equalised odds lies in [0, 1]; got {self.threshold}")


@dataclass(frozen=True)
class Steps:
    """The probability of a positive decision of one group: a step function of the score."""

    thresholds: tuple[Cut, ...]  # ascending
    probabilities: tuple[Share, ...]  # one more: below the first threshold, from the first on, ...

    def __call__(self, score: FloatArray) -> FloatArray:
        place = np.searchsorted(np.array(self.thresholds), score, side="right")
        chance: FloatArray = np.array(self.probabilities)[place]
        return chance

    def __str__(self) -> str:
        later = [f"{p:.3g} from score {t:.4g}" for t, p in zip(self.thresholds, self.probabilities[1:], strict=True)]
        return ", then ".join([f"{self.probabilities[0]:.3g}", *later])


@dataclass(frozen=True)
class EqualisedOdds(RuleByGroup):
    """Positive with a probability that is a step function of the score, one function per group.

    >>> EqualisedOdds(("M", "F"), (Steps((0.5,), (0.0, 1.0)), Steps((0.4, 0.6), (0.0, 0.25, 1.0))), (0.5, 0.5)).describe()
    'positive with probability: M: 0, then 1 from score 0.5; F: 0, then 0.25 from score 0.4, then 1 from score 0.6; without a group: the \
mean of these, weighted M 0.5, F 0.5 (given)'

    A row without a group gets the average of all groups' probabilities, weighted by `shares`.
    """

    groups: Groups
    steps: tuple[Steps, ...]
    shares: tuple[Share, ...]  # of each group among the fitted rows
    origin: str = "given"
    KIND: ClassVar[str] = KIND
    randomised: ClassVar[bool] = True

    def problems(self) -> list[str]:
        found = [*super().problems(), *of_every_group(self.groups, steps=self.steps, shares=self.shares)]
        if abs(sum(self.shares) - 1.0) > 1e-6:
            found.append(f"has `shares` that add up to {sum(self.shares):.6g}, not to 1")
        for k, own in enumerate(self.steps):
            if len(own.probabilities) != len(own.thresholds) + 1:
                found.append(f"steps.{k}: needs one probability more than thresholds")
            if tuple(sorted(own.thresholds)) != own.thresholds:
                found.append(f"steps.{k}: has thresholds that do not ascend")
        return found

    def decide(self, scores: Scores) -> FloatArray:
        """The probability of a positive decision, the expectation of `draw`."""
        codes = group_positions(self.groups, scores, KIND)
        chances = np.stack([steps(scores.score) for steps in self.steps])
        chances = np.concatenate([chances, (np.array(self.shares) @ chances)[None]])  # the last is for a missing group, code -1
        rows: FloatArray = chances[codes, np.arange(len(scores))]
        return np.clip(rows, 0.0, 1.0)

    def draw(self, scores: Scores, seed: int) -> FloatArray:
        """Randomised decisions, 0 or 1, which depend only on the seed and on each row's id, score and group; see `row_draws`."""
        return (row_draws(scores, seed) < self.decide(scores)).astype(np.float64)

    def describe(self) -> str:
        parts = [f"{group}: {steps}" for group, steps in zip(self.groups, self.steps, strict=True)]
        shares = ", ".join(f"{group} {share:.3g}" for group, share in zip(self.groups, self.shares, strict=True))
        return f"positive with probability: {'; '.join(parts)}; without a group: the mean of these, weighted {shares} ({self.origin})"

    def cuts(self, group: str) -> tuple[float, ...]:
        return self.steps[self.groups.index(group)].thresholds if group in self.groups else ()


@dataclass(frozen=True, eq=False)
class Corners:
    """The components of one group's mixture: decisions by block of scores, and the value of each."""

    cuts: FloatArray  # (blocks - 1,) thresholds between blocks of scores
    decisions: FloatArray  # (corners, blocks) 0 or 1
    rates: FloatArray  # (corners, 2) false positive rate and sensitivity in this group
    worth: FloatArray  # (corners, 2) false and true positives, those without a group included by this group's share


@method(
    KIND,
    settings=Settings,
    title="randomised thresholds with equal TPR and FPR (Hardt)",
    kind=Kind.RULE,
    paper=PAPER,
    needs_group=True,
    without_group="the mean of all groups' probabilities, weighted by the groups' sizes",
    quotients=False,
    labels=ONE_BY_ONE,
    rules=(EqualisedOdds,),
    weights=True,
    cost=rule_work,
    effort=0.2,
    in_auto_scores=5,
)
def fit(scores: Scores, goal: Goal, settings: Settings = Settings()) -> Fit:
    """The rule of equal odds with the best performance on these scores, which should be validation scores."""
    n, attribute, weight = tabulate(scores.score, scores.y, scores.attribute).n, scores.attribute, normalised(scores.weight)
    if problems := [
        f"equalised odds needs positives and negatives in every group; {level!r} has {int(n[code, 1])} and {int(n[code, 0])} "
        f"in {scores.name}. Use more data or merge groups"
        for code, level in enumerate(attribute.levels)
        if not n[code].all()
    ]:
        raise EmptyCell(*problems)
    original, settled = original_rule(KIND, scores, goal)
    mass = np.ones(len(scores)) if weight is None else weight
    known = attribute.codes >= 0
    counts = sums_at(attribute.codes[known], mass[known], len(attribute.levels))
    shares, totals = counts / counts.sum(), sums_at(scores.y, mass, 2)
    corners = [_corners(scores, mass, code, share, settings) for code, share in enumerate(shares)]

    def solved(origin: str, low: FloatArray | None = None, high: FloatArray | None = None) -> EqualisedOdds:
        weights = _solve(corners, totals, goal.performance, low, high)
        steps = tuple(_steps(part, own) for part, own in zip(corners, weights, strict=True))
        return EqualisedOdds(attribute.levels, steps, tuple(shares.tolist()), f"{origin} on {len(scores):,} rows of {scores.name}")

    def grid() -> list[Rule]:
        before = cells_at(scores, original.value)
        rates = np.stack([before.rate("fpr"), before.rate("tpr")], axis=-1)  # (groups, 2)
        left = [(share, (1.0 - share) * (rates - rates[0])) for share in SHARES]
        origin = f"{KIND} that removes {{:.0%}} of the gaps in TPR and FPR"
        return [solved(origin.format(share), np.minimum(gaps, 0.0), np.maximum(gaps, 0.0)) for share, gaps in left]

    rule = solved(f"{KIND} with the best {goal.performance.replace('_', ' ')}")
    trace = rule_trace([original, rule], scores, settled.derived(keep={}))
    trace.loc[trace["gap"].abs() < DUST, "gap"] = 0.0
    notes = [Note("needs_group"), Note("randomised")]
    if "selection" in terms(goal.measure):
        notes.append(Note("not_its_target", goal.measure))
    why = [Note("equal_odds", goal.performance.replace("_", " "), {"groups": len(rule.steps)})]
    _, gap, performance, _ = trace.iloc[1]
    if settled.min_performance is not None and performance < settled.min_performance:
        why.append(too_low(goal.performance, performance, settled.min_performance))
    if settled.max_gap is not None and abs(gap) > settled.max_gap:
        why.append(too_large(goal.measure, abs(gap), settled.max_gap))
    return Fit(rule, trace, 1, tuple(why), select(trace.iloc[1:], settled).met, settled, tuple(notes), grid=grid)


def _corners(scores: Scores, mass: FloatArray, code: int, share: float, settings: Settings) -> Corners:
    """The corners of one group."""
    sides = (scores.attribute.codes == which for which in (code, MISSING))
    own, stray = ((scores.score[rows], scores.y[rows], mass[rows]) for rows in sides)
    if settings.base == "threshold":
        cuts = np.array([settings.threshold])
        # None, those above, all, and those below, for a group whose score is worse than chance.
        decisions = np.array([[0.0, 0.0], [0.0, 1.0], [1.0, 1.0], [1.0, 0.0]])
    else:
        cuts = _hull_cuts(*own)
        decisions = np.tri(len(cuts) + 2, len(cuts) + 1, -1)[:, ::-1]  # none, then one block more at a time from the top
    table, strays = (_by_block(cuts, *rows) for rows in (own, stray))
    return Corners(cuts, decisions, decisions @ (table / table.sum(0)), decisions @ (table + share * strays))


def _hull_cuts(score: FloatArray, y: IntArray, weight: FloatArray) -> FloatArray:
    """The thresholds at the corners of the ROC curve's convex hull: where the isotonic regression of label on score takes a step."""
    values, place = np.unique(score, return_inverse=True)
    counts = sums_at(place, weight, len(values))
    share = sums_at(place, weight * y, len(values)) / counts
    first = isotonic_regression(share, weights=counts).blocks[1:-1]  # the lowest score of each block but the bottom one
    below, above = values[first - 1], values[first]
    middle = below + (above - below) / 2
    cuts: FloatArray = np.where(middle > below, middle, above)  # two neighbouring floats have nothing between them
    return cuts


def _by_block(cuts: FloatArray, score: FloatArray, y: IntArray, weight: FloatArray) -> FloatArray:
    """The weighted number of negatives and positives in each block of scores (blocks, 2)."""
    place = np.searchsorted(cuts, score, side="right")
    return sums_at(2 * place + y, weight, 2 * (len(cuts) + 1)).reshape(-1, 2)


def _solve(
    corners: Sequence[Corners], totals: FloatArray, performance: str, low: FloatArray | None = None, high: FloatArray | None = None
) -> list[FloatArray]:
    """The weight of each corner of each group: z and the scale s solve the program, z / s are the weights.

    With `low` and `high` (groups, 2), the rates of a group may differ from the common ones within these limits. Variables: z of all groups,
    the common rates (2), s. For accuracy and balanced accuracy s = 1; for F1, 2 TP / (TP + FP + P), the denominator is fixed at P instead,
    which makes the quotient linear.
    """
    sizes = [len(part.rates) for part in corners]
    ends = np.cumsum(sizes)
    width = int(ends[-1]) + 3
    equal, scale = slice(width - 3, width - 1), width - 1
    rows = []
    for part, end, size in zip(corners, ends, sizes, strict=True):
        block = np.zeros((3, width))
        block[:2, end - size : end] = part.rates.T
        block[:2, equal] = -np.eye(2)
        block[2, end - size : end], block[2, scale] = 1.0, -1.0
        rows.append(block)
    last, target = np.zeros((1, width)), np.zeros(width)
    worth = np.concatenate([part.worth for part in corners])  # (z, 2)
    last[0, scale] = 1.0
    if performance in AFFINE_PERFORMANCE:
        target[: width - 3] = worth @ performance_functional(performance, totals[None]).w[0]
    else:
        last[0, : width - 3] = worth.sum(-1) / totals[1]
        target[: width - 3] = 2.0 * worth[:, 1] / totals[1]
    right = np.zeros(3 * len(corners) + 1)
    right[-1] = 1.0
    equations, limits = np.concatenate([*rows, last]), None
    if low is not None and high is not None:
        unequal = np.stack([block[:2] for block in rows])  # (groups, 2, width): a group's rates less the common ones
        above, below = unequal.copy(), -unequal
        above[:, :, scale] -= high
        below[:, :, scale] += low
        limits = np.concatenate([above, below]).reshape(-1, width)
        equations, right = np.concatenate([*(block[2:] for block in rows), last]), np.append(np.zeros(len(corners)), 1.0)
    options = {"primal_feasibility_tolerance": TOLERANCE, "dual_feasibility_tolerance": TOLERANCE}
    solved = linprog(
        -target,
        A_ub=limits,
        b_ub=None if limits is None else np.zeros(len(limits)),
        A_eq=equations,
        b_eq=right,
        bounds=(0, None),
        method="highs",
        options=options,
    )
    if not solved.success:  # no positive decisions are always feasible, so the solver failed
        raise RuntimeError(f"the linear program of equalised odds was not solved: {solved.message}")
    parts = np.split(solved.x[: width - 3], ends[:-1])
    kept = [np.where(z > TOLERANCE * z.sum(), z, 0.0) for z in parts]  # without the solver's rounding errors
    return [z / z.sum() for z in kept]


def _steps(part: Corners, weights: FloatArray) -> Steps:
    """The mixture as one probability per block; neighbouring blocks with equal probabilities are joined."""
    chance = np.clip(weights @ part.decisions, 0.0, 1.0)
    changes = np.flatnonzero(np.abs(np.diff(chance)) > TOLERANCE)
    kept = np.append(chance[changes], chance[-1])
    return Steps(tuple(part.cuts[changes].tolist()), tuple(kept.tolist()))
