"""The bias score for predictive parity: for a common level p, to have every group's PPV near it is linear in the decisions.

A gap in PPV is a difference of quotients, and no sum of weights. But |PPV_g - p| <= b / 2 for all groups, which bounds every gap by b, says

    (1 - p - b/2) TP_g - (p + b/2) FP_g <= 0 <= (1 - p + b/2) TP_g - (p - b/2) FP_g

with TP_g the sum of f P(1|x) P(g|x, 1) and FP_g that of f P(0|x) P(g|x, 0): two linear constraints per group, whose multipliers the program
of lambda_program finds, and a price for each group's posterior among those with and without the label, as for any other measure. The level
is searched: a few values around the groups' PPVs before, and of each bound the one that is best on held-out rows. NPV is the same
with 1 - f in place of f. As for other measures, the sums that the program bounds are those of the probabilities plus what decisions by the
last multipliers show on the rows beyond that.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from equipoise.measures import QUOTIENTS, Cells, FloatArray, furthest, predictive, tabulate_codes
from equipoise.methods.bias_problem import Problem
from equipoise.methods.evaluation import NOISE, Found
from equipoise.methods.lambda_program import solve

LEVELS = 7  # common levels that are tried for each bound
BEYOND = 0.5  # of the distance between the groups' values: how far outside of them levels are tried
EDGE = 0.01  # of [0, 1], where no level is tried
CORRECTIONS = 2  # times that the multipliers are corrected by what the last ones left


@dataclass(frozen=True, eq=False)
class Priced:
    """The best prices (rates, groups) for one bound on |gap|, and the common level that they hold the groups to."""

    max_gap: float
    cost: FloatArray
    level: float


def parity_path(problem: Problem, steps: int, evaluate: Callable[[FloatArray, float], Found]) -> list[Priced]:
    """Prices for bounds from the gap at the start down to zero. `evaluate` takes held-out scores (n,) and a bound on |gap|."""
    u = problem.slope * (problem.held_out.chance - problem.heads.centre)
    cells = _table(problem, (u > 0).astype(np.float64))
    widest, values = abs(float(furthest(problem.goal.measure, cells))), predictive(QUOTIENTS[problem.goal.measure], cells)
    if np.isnan(widest):  # none of a group is decided so even before; there is nothing to begin with
        return []
    spread = BEYOND * (values.max() - values.min())
    levels = np.unique(np.clip(np.linspace(values.min() - spread, values.max() + spread, LEVELS), EDGE, 1 - EDGE))
    starts: list[FloatArray | None] = [None] * len(levels)
    found = []
    for max_gap in np.linspace(widest, 0.0, steps + 1)[1:] if widest else [0.0]:
        tried = []
        for k, level in enumerate(levels):
            solved = _solved(problem, u, level, max_gap, starts[k])
            if solved is None:
                continue
            starts[k], cost = solved
            tried.append(
                (_merit(evaluate(problem.priced(problem.held_out, cost), max_gap), max_gap), Priced(float(max_gap), cost, float(level)))
            )
        if not tried:
            break
        found.append(max(tried, key=lambda pair: pair[0])[1])
    return found


def _solved(
    problem: Problem, u: FloatArray, level: float, max_gap: float, start: FloatArray | None
) -> tuple[FloatArray, FloatArray] | None:
    """The multipliers, two per group, that hold every group within half a bound of the level, and the prices; None where nothing does."""
    label = QUOTIENTS[problem.goal.measure]
    stakes = _stakes(label, level, max_gap / 2, len(problem.cohort.attribute.levels))
    chance, (with_label, without) = problem.held_out.chance, problem.held_out.groups
    seen = np.stack([chance[:, None] * with_label, (1 - chance)[:, None] * without])  # (labels 1 and 0, n, groups)
    a = np.einsum("crg,rng->cn", stakes, seen)
    upper = np.arange(len(a)) % 2 == 0
    multipliers = np.zeros(len(a)) if start is None else start
    for _ in range(CORRECTIONS):
        f = (u - multipliers @ a > 0).astype(np.float64)
        cells = _table(problem, f)
        side = cells.s if label else cells.n - cells.s
        shown = np.einsum("crg,gr->c", stakes, side[:-1, ::-1])
        left = shown - a @ (f if label else 1 - f)
        # The sum over those decided so is at most -left (upper) or at least that (lower); over 1 - f the sides change places.
        limit, above = (-left, upper) if label else (a.sum(1) + left, ~upper)
        solution = solve(u, a, np.where(above, -np.inf, limit), np.where(above, limit, np.inf), multipliers)
        if solution is None:
            return None
        multipliers = solution.multipliers
    return multipliers, np.einsum("c,crg->rg", multipliers, stakes) / problem.slope


def _stakes(label: int, level: float, half: float, groups: int) -> FloatArray:
    """(constraints, labels 1 and 0, groups): what a row of a label adds to each constraint; of each group the upper, then the lower one."""
    found = np.zeros((2 * groups, 2, groups))
    right, wrong = (0, 1) if label else (1, 0)
    for g in range(groups):
        for place, edge in ((2 * g, level + half), (2 * g + 1, level - half)):
            found[place, right, g], found[place, wrong, g] = 1 - edge, -edge
    return found


def _merit(found: Found, max_gap: float) -> tuple[bool, bool, float]:
    """Sorts the best last: rates kept, within the bound, performance; or the smallest |gap| where that is not within it."""
    size, kept = abs(float(found.gap[0])), found.spare is None or bool(found.spare[0] >= -NOISE)
    inside = size <= max_gap + NOISE
    return kept, inside, float(found.performance[0]) if inside else -size


def _table(problem: Problem, f: FloatArray) -> Cells:
    attribute = problem.cohort.attribute
    return tabulate_codes(f, problem.cohort.y, attribute.codes, attribute.levels)
