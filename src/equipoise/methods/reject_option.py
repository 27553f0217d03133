"""Reject option classification (ROC): Kamiran, Karim and Zhang, "Decision theory for discrimination-aware classification", ICDM 2012.

Inside a band around the threshold, where the network is least certain, the disadvantaged group gets the positive decision and everybody
else the negative one. The rule needs each patient's group. Threshold and margin are chosen over a grid as in AIF360, which the paper used:
the best performance among those with |gap| <= 0.05; if there is none, the smallest |gap|.

Departures from AIF360:
- The band favours the group that is disadvantaged by the gap. AIF360 always favours the groups other than the reference, which widens a gap
  that is in their favour already (COMPAS); so does `direction="kamiran"`.
- The grid has its 100 thresholds, 100 quantiles of the scores, and the network's best threshold, which at margin 0 is the original itself;
  `quantiles=0` uses only its 100.
- A score on an edge counts as above it, as everywhere in Equipoise: the band is t - margin <= score < t + margin. So a margin of 0 is the
  plain threshold t, and the rule consists of two thresholds: t - margin for the favoured groups and t + margin for the others.
- If nothing is within the maximum gap, the smallest |gap| is taken; AIF360 takes the most negative gap.
- A minimum performance comes first: a point below it is taken only if all are. The maximum gap of a goal replaces that of the settings.
- With more than two groups, the band favours those with the lowest rates; the search also chooses their number.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import pandas as pd

from equipoise.data import FloatArray, IntArray, Scores
from equipoise.errors import BadInput, pick
from equipoise.measures import Cells, Rule, cell_index, cells_at, measure_of, normalise_weights
from equipoise.methods.choosing import selected
from equipoise.methods.contract import ONE_BY_ONE, Fit, Kind, method, rule_work
from equipoise.methods.goal import Goal, Note
from equipoise.methods.rules import Cut, Groups, RuleByGroup, Share, gap_windows, original_rule, rule_trace

REJECT_OPTION = "reject-option"
KAMIRAN = """@inproceedings{kamiran2012decision,
  title     = {Decision Theory for Discrimination-Aware Classification},
  author    = {Kamiran, Faisal and Karim, Asim and Zhang, Xiangliang},
  booktitle = {IEEE International Conference on Data Mining},
  year      = {2012}
}"""
GRID_POINT = "point (threshold, margin)"
BAND_DIRECTIONS = ("auto", "kamiran")
LOWEST_THRESHOLD, HIGHEST_THRESHOLD = 0.01, 0.99  # of the thresholds, as in AIF360
COUNT_NOISE = 1e-12  # tolerance in comparisons of sums of counts


@dataclass(frozen=True)
class RejectOptionSettings:
    """The maximum |gap| if the goal has none, and the size of the grid."""

    max_gap: float = 0.05
    thresholds: int = 100  # of the grid
    margins: int = 50  # of the grid: widths of the band
    quantiles: int = 100  # further thresholds, at quantiles of the scores, and the network's best; with 0 only AIF360's grid
    direction: str = "auto"  # the band favours disadvantaged groups; "kamiran": all groups but the reference

    def __post_init__(self) -> None:
        pick("direction of the reject option", self.direction, BAND_DIRECTIONS)
        if not 0 <= self.max_gap <= 1:
            raise BadInput(f"the maximum gap of the reject option lies in [0, 1]; got {self.max_gap}")
        if self.thresholds < 1 or self.margins < 1 or self.quantiles < 0:
            raise BadInput(
                "the reject option needs at least 1 threshold, 1 margin and 0 quantiles; "
                f"got {self.thresholds}, {self.margins} and {self.quantiles}"
            )


@dataclass(frozen=True)
class RejectOption(RuleByGroup):
    """Positive where score >= threshold, but inside the band the favoured groups get the positive decision and all others the negative.

    A row without a group gets the plain threshold.

    >>> RejectOption(0.5, 0.125, favoured=("F",), groups=("M", "F")).describe()
    'score >= 0.375 for F, >= 0.625 for M, >= 0.5 without a group: threshold 0.5 with a band of 0.125 to each side (given)'
    """

    threshold: Cut
    margin: Share
    favoured: tuple[str, ...]
    groups: Groups
    origin: str = "given"
    others: tuple[str, ...] = ()
    KIND: ClassVar[str] = REJECT_OPTION

    @property
    def missing(self) -> float:  # type: ignore[override]
        """The threshold of a row without a group."""
        return self.threshold

    def problems(self) -> list[str]:
        strange = sorted(set(self.favoured) - set(self.groups))
        return [*super().problems(), *([f"favours {', '.join(strange)}, not among its `groups`"] if strange else [])]

    def describe(self) -> str:
        others = [group for group in self.groups if group not in self.favoured]
        return (
            f"score >= {self.threshold - self.margin:.4g} for {', '.join(self.favoured)}, "
            f">= {self.threshold + self.margin:.4g} for {', '.join(others)}, "
            f">= {self.threshold:.4g} {self.without}: "
            f"threshold {self.threshold:.4g} with a band of {self.margin:.4g} to each side ({self.origin})"
        )

    def cuts(self, group: str) -> tuple[float, ...]:
        if group not in self.groups:
            return (self.threshold,) if group in self.others else ()
        return (self.threshold - self.margin if group in self.favoured else self.threshold + self.margin,)


@method(
    REJECT_OPTION,
    settings=RejectOptionSettings,
    title="a band around the threshold decided by group (Kamiran)",
    kind=Kind.RULE,
    paper=KAMIRAN,
    needs_group=True,
    without_group="its threshold without the band",
    labels=ONE_BY_ONE,
    rules=(RejectOption,),
    weights=True,
    cost=rule_work,
    effort=0.2,
    in_auto_scores=4,
)
def reject_option(scores: Scores, goal: Goal, settings: RejectOptionSettings = RejectOptionSettings()) -> Fit:
    """The best threshold and margin for these scores, which should be validation scores."""
    original, settled = original_rule(REJECT_OPTION, scores, goal)
    levels, max_gap = scores.attribute.levels, settings.max_gap if goal.max_gap is None else goal.max_gap
    thresholds = np.linspace(LOWEST_THRESHOLD, HIGHEST_THRESHOLD, settings.thresholds)  # (t,)
    if settings.quantiles:
        shares = (np.arange(settings.quantiles) + 0.5) / settings.quantiles
        thresholds = np.unique(np.concatenate([thresholds, np.quantile(scores.score, shares), [original.value]]))
    widest = np.clip(np.minimum(thresholds, 1 - thresholds), 0.0, None)
    margins = np.linspace(np.zeros_like(widest), widest, settings.margins, axis=-1)  # (t, m), evenly spaced up to the nearer end of [0, 1]
    # The sets of groups that the band may favour (sets, groups): the k groups with the lowest rates, for each k.
    groups, before = len(levels), cells_at(scores, original.value)
    sides = np.arange(groups)[None] > 0
    if settings.direction != "kamiran":
        # A miss rate falls as positive decisions are added, and so does a PPV, since scores at the threshold are the least certain: who is
        # disadvantaged follows from positive decisions, not from the sign of the measure.
        measure = measure_of(goal.measure)
        quotient = measure.is_quotient
        sign = (-1.0 if measure.decided else 1.0) if quotient else np.sign(sum(measure.rates.values())) or 1.0
        ahead = np.append(sign * before.gaps(goal.measure), 0.0)
        order = np.append(np.arange(1, groups), 0)[np.argsort(ahead, kind="stable")]  # the reference last among equals
        sides = np.argsort(order) < np.arange(1, groups)[:, None]
    gap, performance = _evaluate(scores, thresholds, margins, sides, goal)
    # 2: minimum performance and maximum gap are kept; 1: only the minimum performance; 0: neither; -1: the gap is undefined.
    least = settled.min_performance
    enough = np.ones(gap.shape, bool) if least is None else performance >= least - COUNT_NOISE
    rank = np.where(np.isnan(gap), -1, np.where(enough, 1 + (np.abs(gap) <= max_gap + COUNT_NOISE), 0))
    best = _best(rank, gap, performance)  # for each margin, over thresholds and sides
    steps = np.arange(len(best))
    at = best % len(thresholds)
    columns = [steps + 1, gap[steps, best], performance[steps, best], thresholds[at], margins[at, steps]]
    first = rule_trace([original], scores, settled.derived(keep={})).assign(margin=0.0)
    trace = pd.concat([first, pd.DataFrame(dict(zip(first, columns, strict=True)))], ignore_index=True)

    def rule_at(step: int, point: int, origin: str) -> RejectOption:
        side, at = np.divmod(point, len(thresholds))
        favoured = tuple(level for level, helped in zip(levels, sides[side], strict=True) if helped)
        about = f"{origin} on {len(scores):,} rows of {scores.name}"
        return RejectOption(float(thresholds[at]), float(margins[at, step]), favoured, levels, about)

    def grid() -> list[Rule]:
        rules: list[Rule] = []
        for share, low, high in gap_windows(scores, goal, original.value):
            inside = np.where(np.isnan(gap), -1, np.where((gap >= low - COUNT_NOISE) & (gap <= high + COUNT_NOISE), 2, 1))
            point = int(_best(inside.reshape(-1), gap.reshape(-1), performance.reshape(-1)))
            step, point = divmod(point, gap.shape[1])
            rules.append(rule_at(step, point, f"{REJECT_OPTION} that removes {share:.0%} of the gap"))
        return rules

    step = int(_best(rank[steps, best], gap[steps, best], performance[steps, best]))
    rule, top = rule_at(step, int(best[step]), f"chosen by {REJECT_OPTION} with {settled}"), int(rank[step, best[step]])
    limits = settled.derived(max_gap=max_gap, max_loss=None)
    if top == 1:
        why = selected(GRID_POINT, "gap", limits, 0, rank.size, abs(gap[step, best[step]]))
    else:
        limits = limits if top == 2 else settled.derived(max_gap=None)
        why = selected(GRID_POINT, "performance", limits, int((rank == 2).sum()), rank.size, performance[step, best[step]])
    met, notes = top == 2 or (top == 1 and goal.max_gap is None), (Note("needs_group"), Note("band", ", ".join(rule.favoured)))
    return Fit(rule, trace, step + 1, (why,), met, settled, notes, grid=grid)


def _evaluate(
    scores: Scores, thresholds: FloatArray, margins: FloatArray, sides: npt.NDArray[np.bool_], goal: Goal
) -> tuple[FloatArray, FloatArray]:
    """Gap and performance at every point of the grid, (margins, sets * thresholds), by three lookups in one table of counts."""
    attribute = scores.attribute
    order = np.argsort(scores.score)
    ranked = scores.score[order]
    groups = len(attribute.levels)
    at_place = np.zeros((len(scores) + 1, 2 * (groups + 1)))  # the row at each place in score order, in the column of its cell
    weight = normalise_weights(scores.weight)
    at_place[np.arange(len(scores)), cell_index(scores.y, attribute.codes, groups)[order]] = 1.0 if weight is None else weight[order]
    above = at_place[::-1].cumsum(0)[::-1].reshape(-1, groups + 1, 2)  # rows of each cell at this place or higher

    middle = thresholds[:, None]
    low, high, plain = (above[np.searchsorted(ranked, cut)].swapaxes(0, 1) for cut in (middle - margins, middle + margins, middle))
    missing = np.arange(groups + 1) == groups
    gaps, performances = [], []
    for side in sides:
        favoured = np.append(side, False)[:, None]
        cells = Cells(attribute.levels, above[0], np.where(missing[:, None], plain, np.where(favoured, low, high)))  # (m, t, groups + 1, 2)
        gaps.append(cells.worst_gap(goal.measure))
        performances.append(cells.performance(goal.performance))
    return np.concatenate(gaps, -1), np.concatenate(performances, -1)


def _best(rank: IntArray, gap: FloatArray, performance: FloatArray) -> IntArray:
    """The best point of each row (..., points): highest rank; then best performance, or smallest |gap| in rank 1; then smallest |gap|."""
    size = np.where(np.isnan(gap), np.inf, np.abs(gap))
    value = np.where(rank == rank.max(-1, keepdims=True), np.where(rank == 1, -size, performance), -np.inf)
    level = value >= value.max(-1, keepdims=True) - COUNT_NOISE
    index: IntArray = np.where(level, size, np.inf).argmin(-1)
    return index
