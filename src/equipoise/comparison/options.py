"""What a committee can choose from, each judged on the same held-out rows; and what limits every decision rule on these scores.

Options are the original, the chosen result, the other candidates, and three rules for the original's scores: thresholds by group that only
fall (level up), thresholds by group with the smallest gap, and one threshold for everybody. Each is fitted to the repair set with the
goal's limit on performance there. What was chosen is marked; the others are for comparison, and none of them was chosen by these numbers.

Rules cannot change how well scores separate patients with the finding from those without it within a group. Where that differs between
groups, by AUROC, the groups' rates can only be equal at a price: the false alarms for each further case that is found.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from equipoise import measures
from equipoise.comparison.findings import Balance, ScoredCandidate, balances
from equipoise.data import BoolArray, FloatArray, Scores
from equipoise.errors import EquipoiseError
from equipoise.measures import AuditSpec, Estimate, Ranking, combine_limits, units_of
from equipoise.methods import Goal, judge, run_method

KEEP_ORIGINAL, LEVEL_UP, SMALLEST_GAP, WITHOUT_GROUP = "keep the original", "level up", "smallest gap", "without the group"
FREE: dict[str, Any] = {"selection": "paper", "keep": {}, "max_rise": {"fpr": 1.0, "selection": 1.0}, "max_gap": None}
RULES = {LEVEL_UP: "level-up", SMALLEST_GAP: "group-thresholds", WITHOUT_GROUP: "single-threshold"}


@dataclass(frozen=True, eq=False)
class Option:
    """One option on the held-out rows."""

    name: str
    tried: ScoredCandidate
    chosen: bool
    gap: Estimate  # the largest
    performance: Estimate
    balances: tuple[Balance, ...]  # errors of each group and of all patients (the last), next to the original's


@dataclass(frozen=True)
class Exchange:
    """What a group's scores allow: its AUROC, and the price in false alarms of finding more of its cases."""

    group: str
    auroc: Estimate
    sensitivity: float  # at the original threshold
    wanted: float  # that of the group with the highest sensitivity
    threshold: float  # at which it is reached; NaN for that group
    alarms_per_case: float  # more false alarms per further case found at that threshold
    cheapest: float  # the lowest such price at any lower threshold


@dataclass(frozen=True)
class RepairLimits:
    """What limits decision rules on the original's scores: the groups' exchanges, and the clearly worse separation in one of them."""

    exchanges: tuple[Exchange, ...]
    worse: Estimate | None  # AUROC of `group` minus that of `reference`, the widest clear difference; None if none is clear


def options_of(
    original: ScoredCandidate, candidates: Sequence[ScoredCandidate], chosen: int, settings: AuditSpec, labels: int, seed: int
) -> tuple[Option, ...]:
    """The original, rules for its scores, and the candidates; of those with the same decisions on the held-out rows only the first."""
    valid, goal = original.valid, candidates[chosen].candidate.goal
    named = [(KEEP_ORIGINAL, original)]
    cut = original.candidate.rule.shared
    # On the rows that they were fitted to (`repair.test = "cross"`), rules would seem better than they are.
    apart = valid is not None and not np.array_equal(valid.score, original.test.score)
    if valid is not None and apart and cut is not None and not original.candidate.rule.argmax:
        for name, method in RULES.items():  # those that have no meaning at a capacity cannot be fitted
            with suppress(EquipoiseError):  # this rule cannot be fitted to these rows, or not for this measure
                keeps = {"keep": Goal(goal.measure).keep} if name == LEVEL_UP else {}
                own = goal.changed(**FREE | keeps, threshold=cut)
                candidate = run_method(method, None, valid, {"": own}, seed=seed).only
                named.append((name, ScoredCandidate(candidate, valid, original.test, called=name)))
    named += [(tried.name, tried) for tried in candidates]
    shown, test = measures.shown_scores(original.test, settings.min_patients), original.test
    before, result = original.decisions(), candidates[chosen].decisions()
    options, seen = list[Option](), list[FloatArray]()
    for name, tried in named:
        after = tried.decisions()
        if any(np.array_equal(after, other) for other in seen):
            continue
        seen.append(after)
        judged = judge(test, before, tried.test, after, goal, source="held-out", settings=settings, labels=labels)
        known = [gap.after for gap in judged.gaps if gap.known]
        largest = max(known, key=lambda gap: abs(gap.value)) if known else judged.gaps[0].after
        decisions = before[shown.kept], after[shown.kept]
        own_balances = balances(shown.scores, shown.groups[-1], *decisions, settings)
        options.append(Option(name, tried, np.array_equal(after, result), largest, judged.performance_after, own_balances))
    return tuple(options)


def limits_of(scores: Scores, cut: float, level: float, min_patients: int) -> RepairLimits:
    """The limits of rules on scores, by group of the attribute that the goal compares, next to decisions at one threshold."""
    shown = measures.shown_scores(scores, min_patients)
    rows, attribute = shown.scores, shown.groups[-1].attribute
    masks = {group: attribute.codes == k for k, group in enumerate(attribute.levels)}
    enough = {group: mask for group, mask in masks.items() if all((rows.y[mask] == label).sum() >= min_patients for label in (0, 1))}
    pairs = max(len(enough) * (len(enough) - 1) // 2, 1)
    areas = {group: Estimate(*_auroc(rows, mask, 1 - (1 - level) / pairs)) for group, mask in enough.items()}
    worse, order = None, sorted(areas, key=lambda group: areas[group].value)
    if len(order) > 1:
        low, high = areas[order[0]], areas[order[-1]]
        ends = ((side.value, side.low, side.high) for side in (low, high))
        value, *limits = map(float, combine_limits([1.0, -1.0], *np.array(list(ends)).T))
        worse = Estimate(value, limits[0], limits[1], group=order[0], reference=order[-1]) if limits[1] < 0 else None
    cells = {group: _counts_above(rows, mask) for group, mask in enough.items()}
    sensitivities = {group: float(above[0][cuts >= cut][-1:].sum() / above[0][-1]) for group, (cuts, above) in cells.items()}
    wanted = max(sensitivities.values(), default=np.nan)
    exchanges = []
    for group, (cuts, above) in cells.items():
        used = int((cuts >= cut).sum()) - 1
        found, alarms = above[:, used + 1 :] - (above[:, [used]] if used >= 0 else 0.0)  # at each lower threshold
        price = np.divide(alarms, found, out=np.full(len(found), np.nan), where=found >= min_patients)
        reached = np.flatnonzero(sensitivities[group] * above[0, -1] + found >= wanted * above[0, -1] - 1e-9)
        level_at, at_level = (np.nan, np.nan)
        if sensitivities[group] < wanted and len(reached):
            level_at = float(cuts[used + 1 + reached[0]])
            at_level = float(alarms[reached[0]] / found[reached[0]])
        cheapest = float(np.nanmin(price)) if not np.isnan(price).all() else np.nan
        exchanges.append(Exchange(group, areas[group], sensitivities[group], wanted, level_at, at_level, cheapest))
    return RepairLimits(tuple(exchanges), worse)


def _weight(rows: Scores, mask: BoolArray) -> FloatArray:
    return np.ones(int(mask.sum())) if rows.weight is None else rows.weight[mask]


def _auroc(rows: Scores, mask: BoolArray, level: float) -> tuple[float, float, float]:
    patients = None if rows.patients is None else rows.patients[mask]
    return Ranking(rows.score[mask], rows.y[mask], units_of(patients, int(mask.sum())), _weight(rows, mask)).auroc(level)


def _counts_above(rows: Scores, mask: BoolArray) -> tuple[FloatArray, FloatArray]:
    """The scores of a group from high to low (cuts,), and its rows with and without the finding at or above each (2, cuts)."""
    cuts, place = np.unique(-rows.score[mask], return_inverse=True)
    sides = [np.bincount(place, _weight(rows, mask) * (rows.y[mask] == label), len(cuts)) for label in (1, 0)]
    return -cuts, np.cumsum(sides, axis=1)
