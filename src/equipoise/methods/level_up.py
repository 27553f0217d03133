"""Level up: groups that are behind get a lower threshold, until the expected rates of all groups meet; no threshold rises.

The rate is the one that the measure compares and that is a benefit: sensitivity for eod and aod, the share flagged for spd. The observed
rates of groups differ by chance too, and the group with the highest one is the luckiest: levelling up to it would overshoot. So groups meet
in the means of the posterior distribution of their rates (see `choosing`). Step k moves a common level by k/20 of the way from the
lowest mean to the highest, and every group below it is raised by the difference: those furthest behind come first. The decisions of no
patient change from positive to negative, so no group's sensitivity falls, on these rows or others; the price are false alarms. The rule
needs each patient's group. Without it, `bias-score` and `single-threshold` level up under the same limits (`Goal.keep`).
"""

import numpy as np

from equipoise.data import Scores
from equipoise.errors import BadInput
from equipoise.measures import RATES, Cells, Rule, estimated_rate, moments_of_scores
from equipoise.methods.choosing import NO_GAP, TrueRates, select
from equipoise.methods.contract import ONE_BY_ONE, Fit, Kind, NoSettings, method, rule_work
from equipoise.methods.goal import Goal, Note, unharmed
from equipoise.methods.rules import REMOVED_SHARES, original_rule, rule_trace
from equipoise.methods.thresholds import GroupThresholds

LEVEL_UP = "level-up"


@method(
    LEVEL_UP,
    title="a lower threshold for groups that are behind, until expected rates meet; no threshold rises",
    kind=Kind.RULE,
    needs_group=True,
    without_group="the original threshold",
    quotients=False,
    labels=ONE_BY_ONE,
    cost=rule_work,
    effort=0.1,
    in_auto=1,
    in_auto_scores=2,
)
def level_up(scores: Scores, goal: Goal, _settings: NoSettings = NoSettings()) -> Fit:
    """Thresholds that level up the rate of the measure on these scores, which should be validation scores."""
    if goal.capacity is not None:
        raise BadInput(f"{LEVEL_UP} flags more patients, which a capacity does not allow: use group-thresholds")
    original, settled = original_rule(LEVEL_UP, scores, goal)
    kept, harms = unharmed(goal.measure)
    rate, codes, levels = next(iter(kept)), scores.attribute.codes, scores.attribute.levels
    decided = original.decide(scores)
    observed = Cells.of(decided, scores.y, scores.attribute).rate(rate)
    known = ~np.isnan(observed) & (not harms)
    means = observed.copy()
    if known.any():
        variance = moments_of_scores(scores, decided).signed({estimated_rate(rate): 1.0}).variance
        means[known] = TrueRates.of(observed[known], variance[known], NO_GAP).means
    low, high = (means[known].min(), means[known].max()) if known.any() else (0.0, 0.0)
    rows = [codes == code if RATES[rate] is None else (codes == code) & (scores.y == RATES[rate]) for code in range(len(levels))]
    ranked = [-np.sort(-scores.score[own]) for own in rows]  # of each group, the highest score first

    def rule_at(share: float) -> GroupThresholds:
        """The rule that levels up by this share of the way."""
        cuts = [original.value] * len(levels)
        for k in np.flatnonzero(known):
            above, missing = int((ranked[k] >= original.value).sum()), round((low + share * (high - low) - means[k]) * len(ranked[k]))
            if missing > 0 and above < len(ranked[k]):
                last = ranked[k][min(above + missing, len(ranked[k])) - 1]
                below = ranked[k][ranked[k] < last]
                cuts[k] = min(original.value, float((last + below[0]) / 2 if len(below) else last))
        about = f"{LEVEL_UP} by {share:.0%} of the way on {len(scores):,} rows of {scores.name}"
        return GroupThresholds(levels, tuple(cuts), original.value, about)

    def grid() -> list[Rule]:
        return [rule_at(share) for share in REMOVED_SHARES]

    rule = rule_at(1.0)
    trace = rule_trace([original, rule], scores, settled)
    chosen = select(trace.iloc[1:], settled)
    return Fit(rule, trace, 1, chosen.why, chosen.met, settled, (Note("needs_group"),), grid=grid)
