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

from equipoise import measures
from equipoise.data import MISSING, FloatArray, Scores
from equipoise.errors import BadInput, EmptyCell, pick
from equipoise.measures import Cells, Rule, cells_at, group_positions, measure_of, normalise_weights, row_draws, sql_number, sums_at
from equipoise.methods.choosing import missed_limits, select
from equipoise.methods.contract import ONE_BY_ONE, Fit, Kind, method, rule_work
from equipoise.methods.evaluation import LabelResult
from equipoise.methods.goal import Goal, Note
from equipoise.methods.rules import REMOVED_SHARES, Cut, Groups, RuleByGroup, Share, of_every_group, original_rule, rule_trace, sql_by_group

EQUALISED_ODDS = "equalised-odds"
HARDT = """@inproceedings{hardt2016equality,
  title     = {Equality of Opportunity in Supervised Learning},
  author    = {Hardt, Moritz and Price, Eric and Srebro, Nathan},
  booktitle = {Advances in Neural Information Processing Systems},
  year      = {2016}
}"""
BASES = ("score", "threshold")
SOLVER_TOLERANCE = 1e-10  # the tightest that HiGHS accepts
SOLVER_ROUNDING = 1e-9  # a gap below this is rounding error of the solver


@dataclass(frozen=True)
class EqualisedOddsSettings:
    """The input of the derived predictor: the score, or whether it reaches a threshold."""

    base: str = "score"  # what is derived from: score, or decision at the threshold
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
    others: tuple[str, ...] = ()
    KIND: ClassVar[str] = EQUALISED_ODDS
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
        codes = group_positions(self.groups, scores, EQUALISED_ODDS, self.others)
        places = [np.searchsorted(np.array(own.thresholds), scores.score, side="right") for own in self.steps]
        chances = np.stack([np.array(own.probabilities)[place] for own, place in zip(self.steps, places, strict=True)])
        chances = np.concatenate([chances, (np.array(self.shares) @ chances)[None]])  # the last is for a missing group, code -1
        rows: FloatArray = chances[codes, np.arange(len(scores))]
        return np.clip(rows, 0.0, 1.0)

    def draw(self, scores: Scores, seed: int) -> FloatArray:
        """Randomised decisions, 0 or 1, which depend only on the seed and on each row's id, score and group; see `row_draws`."""
        return (row_draws(scores, seed) < self.decide(scores)).astype(np.float64)

    def describe(self) -> str:
        parts = [f"{group}: {steps}" for group, steps in zip(self.groups, self.steps, strict=True)]
        shares = ", ".join(f"{group} {share:.3g}" for group, share in zip(self.groups, self.shares, strict=True))
        return f"positive with probability: {'; '.join(parts)}; {self.without}: the mean of these, weighted {shares} ({self.origin})"

    def cuts(self, group: str) -> tuple[float, ...]:
        return self.steps[self.groups.index(group)].thresholds if group in self.groups else ()

    def sql(self, score: str = "score", group: str = "group_name") -> str:
        """The probability of a positive decision in SQL; NULL for a group that the rule was not fitted on."""
        chances = []
        for own in self.steps:
            steps = [
                f"when {score} < {sql_number(cut)} then {sql_number(p)}" for cut, p in zip(own.thresholds, own.probabilities, strict=False)
            ]
            last = sql_number(own.probabilities[-1])
            chances.append(f"case {' '.join(steps)} else {last} end" if steps else last)
        mixed = " + ".join(f"{sql_number(share)} * {chance}" for share, chance in zip(self.shares, chances, strict=True))
        return sql_by_group(group, dict(zip(self.groups, chances, strict=True)), mixed, self.others)


@dataclass(frozen=True, eq=False)
class Corners:
    """The components of one group's mixture: decisions by block of scores, and the value of each."""

    cuts: FloatArray  # (blocks - 1,) thresholds between blocks of scores
    decisions: FloatArray  # (corners, blocks) 0 or 1
    rates: FloatArray  # (corners, 2) false positive rate and sensitivity in this group
    worth: FloatArray  # (corners, 2) false and true positives, those without a group included by this group's share


@method(
    EQUALISED_ODDS,
    settings=EqualisedOddsSettings,
    title="randomised thresholds with equal TPR and FPR (Hardt)",
    kind=Kind.RULE,
    paper=HARDT,
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
def equalised_odds(scores: Scores, goal: Goal, settings: EqualisedOddsSettings = EqualisedOddsSettings()) -> Fit:
    """The rule of equal odds with the best performance on these scores, which should be validation scores."""
    n, attribute, weight = Cells.of(scores.score, scores.y, scores.attribute).n, scores.attribute, normalise_weights(scores.weight)
    if problems := [
        f"equalised odds needs positives and negatives in every group; {level!r} has {int(n[code, 1])} and {int(n[code, 0])} "
        f"in {scores.name}. Use more data or merge groups (data.merge)"
        for code, level in enumerate(attribute.levels)
        if not n[code].all()
    ]:
        raise EmptyCell(*problems)
    original, settled = original_rule(EQUALISED_ODDS, scores, goal)
    mass = np.ones(len(scores)) if weight is None else weight
    known = attribute.codes >= 0
    counts = sums_at(attribute.codes[known], mass[known], len(attribute.levels))
    shares, totals = counts / counts.sum(), sums_at(scores.y, mass, 2)
    corners: list[Corners] = []
    for code, share in enumerate(shares):
        sides = (attribute.codes == which for which in (code, MISSING))
        (score, y, own_mass), stray = ((scores.score[rows], scores.y[rows], mass[rows]) for rows in sides)
        if settings.base == "threshold":
            cuts = np.array([settings.threshold])
            # None, those above, all, and those below, for a group whose score is worse than chance.
            decisions = np.array([[0.0, 0.0], [0.0, 1.0], [1.0, 1.0], [1.0, 0.0]])
        else:  # the corners of the ROC curve's convex hull: where the isotonic regression of label on score takes a step
            values, place = np.unique(score, return_inverse=True)
            sizes = sums_at(place, own_mass, len(values))
            risks = sums_at(place, own_mass * y, len(values)) / sizes
            first = isotonic_regression(risks, weights=sizes).blocks[1:-1]  # of each block's scores
            below, above = values[first - 1], values[first]
            middle = below + (above - below) / 2
            cuts = np.where(middle > below, middle, above)  # two neighbouring floats have nothing between them
            decisions = np.tri(len(cuts) + 2, len(cuts) + 1, -1)[:, ::-1]  # none, then one block more at a time from the top
        # The weighted number of negatives and positives in each block of scores (blocks, 2), of this group and of rows without one.
        table, strays = (
            sums_at(2 * np.searchsorted(cuts, own, side="right") + labels, masses, 2 * (len(cuts) + 1)).reshape(-1, 2)
            for own, labels, masses in ((score, y, own_mass), stray)
        )
        corners.append(Corners(cuts, decisions, decisions @ (table / table.sum(0)), decisions @ (table + share * strays)))

    def solved(origin: str, low: FloatArray | None = None, high: FloatArray | None = None) -> EqualisedOdds:
        steps = []  # the mixture as one probability per block; neighbouring blocks with equal probabilities are joined
        for part, weights in zip(corners, _solve(corners, totals, goal.performance, low, high), strict=True):
            chance = np.clip(weights @ part.decisions, 0.0, 1.0)
            changes = np.flatnonzero(np.abs(np.diff(chance)) > SOLVER_TOLERANCE)
            steps.append(Steps(tuple(part.cuts[changes].tolist()), tuple(np.append(chance[changes], chance[-1]).tolist())))
        return EqualisedOdds(attribute.levels, tuple(steps), tuple(shares.tolist()), f"{origin} on {len(scores):,} rows of {scores.name}")

    def grid() -> list[Rule]:
        before = cells_at(scores, original.value)
        rates = np.stack([before.rate("fpr"), before.rate("tpr")], axis=-1)  # (groups, 2)
        left = [(share, (1.0 - share) * (rates - rates[0])) for share in REMOVED_SHARES]
        origin = f"{EQUALISED_ODDS} that removes {{:.0%}} of the gaps in TPR and FPR"
        return [solved(origin.format(share), np.minimum(gaps, 0.0), np.maximum(gaps, 0.0)) for share, gaps in left]

    rule = solved(f"{EQUALISED_ODDS} with the best {goal.performance.replace('_', ' ')}")
    trace = rule_trace([original, rule], scores, settled.derived(keep={}))
    trace.loc[trace["gap"].abs() < SOLVER_ROUNDING, "gap"] = 0.0
    notes = [Note("needs_group"), Note("randomised")]
    if "selection" in measure_of(goal.measure).rates:
        notes.append(Note("not_its_target", goal.measure))
    best = Note("equal_odds", goal.performance.replace("_", " "), {"groups": len(rule.steps)})
    _, gap, performance, _ = trace.iloc[1]
    missed = missed_limits(LabelResult(gap, performance, np.nan), settled, settled)
    return Fit(rule, trace, 1, (best, *missed), select(trace.iloc[1:], settled).met, settled, tuple(notes), grid=grid)


def _solve(
    corners: Sequence[Corners], totals: FloatArray, performance: str, low: FloatArray | None = None, high: FloatArray | None = None
) -> list[FloatArray]:
    """The weight of each corner of each group: z and the scale s solve the program, z / s are the weights.

    With `low` and `high` (groups, 2), the rates of a group may differ from the common ones within these limits. Variables: z of all groups,
    the common rates (2), s. For accuracy and balanced accuracy s = 1; for F1, 2 TP / (TP + FP + P), the denominator is fixed at P instead,
    which makes the quotient linear.
    """
    ends = np.cumsum([len(part.rates) for part in corners])
    groups, width = len(corners), int(ends[-1]) + 3
    unequal, sums = np.zeros((groups, 2, width)), np.zeros((groups + 1, width))  # a group's rates less the common ones; its sum of z less s
    for k, (part, end) in enumerate(zip(corners, ends, strict=True)):
        own = slice(end - len(part.rates), end)
        unequal[k, :, own], unequal[k, :, -3:-1] = part.rates.T, -np.eye(2)
        sums[k, own], sums[k, -1] = 1.0, -1.0
    target, worth = np.zeros(width), np.concatenate([part.worth for part in corners])  # (z, 2)
    sums[-1, -1] = 1.0
    if measures.is_affine_performance(performance):
        target[:-3] = worth @ measures.performance_functional(performance, totals[None]).w[0]
    else:
        sums[-1, :-3] = worth.sum(-1) / totals[1]
        target[:-3] = 2.0 * worth[:, 1] / totals[1]
    if low is None or high is None:
        equations = np.concatenate([*(np.concatenate([unequal[k], sums[k : k + 1]]) for k in range(groups)), sums[-1:]])
        limits = np.empty((0, width))
    else:
        above, below = unequal.copy(), -unequal
        above[:, :, -1] -= high
        below[:, :, -1] += low
        equations, limits = sums, np.concatenate([above, below]).reshape(-1, width)
    solved = linprog(
        -target,
        A_ub=limits,
        b_ub=np.zeros(len(limits)),
        A_eq=equations,
        b_eq=np.eye(len(equations))[-1],
        bounds=(0, None),
        method="highs",
        options={"primal_feasibility_tolerance": SOLVER_TOLERANCE, "dual_feasibility_tolerance": SOLVER_TOLERANCE},
    )
    if not solved.success:  # no positive decisions are always feasible, so the solver failed
        raise RuntimeError(f"the linear program of equalised odds was not solved: {solved.message}")
    # without the solver's rounding errors
    kept = [np.where(z > SOLVER_TOLERANCE * z.sum(), z, 0.0) for z in np.split(solved.x[:-3], ends[:-1])]
    return [z / z.sum() for z in kept]
