"""The multipliers of the best attribute-blind rule, by a linear program that is solved on the few rows that are in doubt.

Given x_i, a positive decision is worth u_i to performance and adds g_ki to gap k. The best randomised decisions f_i in [0, 1] with every
gap between `low` and `high` solve a linear program with one row per gap, and its dual variables say that f_i is 1 where
u_i > sum_k lambda_k g_ki and 0 where it is less: the rule for anybody with the same x. All but a few rows are far from that line and need
not change sides again: they are held at the side where an earlier solution has them, the program is solved for the rest, and rows that
the new lambda puts on the other side join them until there are none. The solution is that of the whole program, for any number of groups.
With one gap, that of two groups, no solver is needed: rows give way in the order of u / g, what they are worth for what they add.

Predictive parity: for a common level p, to have every group's PPV near it is linear in the decisions.
A gap in PPV is a difference of quotients, and no sum of weights. But |PPV_g - p| <= b / 2 for all groups, which bounds every gap by b, says

    (1 - p - b/2) TP_g - (p + b/2) FP_g <= 0 <= (1 - p + b/2) TP_g - (p - b/2) FP_g

with TP_g the sum of f P(1|x) P(g|x, 1) and FP_g that of f P(0|x) P(g|x, 0): two linear constraints per group, whose multipliers the program
finds, and a price for each group's posterior among those with and without the label, as for any other measure. The level
is searched: a few values around the groups' PPVs before, and of each bound the one that is best on held-out rows. NPV is the same
with 1 - f in place of f. As for other measures, the sums that the program bounds are those of the probabilities plus what decisions by the
last multipliers show on the rows beyond that.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from equipoise.measures import QUOTIENTS, Cells, FloatArray, furthest, predictive, tabulate_codes
from equipoise.methods.bias_problem import Problem
from equipoise.methods.evaluation import Found
from equipoise.methods.goal import NOISE

DOUBTFUL = 60  # rows to begin with, and as many again for each gap
TOLERANCE = 1e-9  # of the largest |u|: what a row is worth beyond this is worth something
TINY = 1e-300  # so that nothing is divided by zero
CORRECTIONS = 2  # times that the multipliers of a bound are corrected by what the last ones left
LEVELS = 7  # common levels that are tried for each bound
BEYOND = 0.5  # of the distance between the groups' values: how far outside of them levels are tried
EDGE = 0.01  # of [0, 1], where no level is tried


@dataclass(frozen=True, eq=False)
class Solution:
    """The multipliers (k,), the decisions (n,), of which at most k are fractions, and what the decisions are worth."""

    multipliers: FloatArray
    decisions: FloatArray
    value: float


def solve(u: FloatArray, g: FloatArray, low: FloatArray, high: FloatArray, start: FloatArray | None = None) -> Solution | None:
    """The best decisions for worth u (n,) with the gaps g (k, n) @ f between low and high (k,); None where no decisions are.

    `start` is a guess at the multipliers, such as those for a slightly wider bound.

    >>> u, g = np.array([3.0, 2.0, 1.0, -1.0]), np.array([[1.0, 1.0, -1.0, -1.0]])
    >>> found = solve(u, g, np.array([0.0]), np.array([0.0]))
    >>> found.decisions.tolist(), found.multipliers.tolist(), found.value
    ([1.0, 1.0, 1.0, 1.0], [1.0], 5.0)
    """
    if len(g) == 1:
        return _one_gap(u, g[0], float(low[0]), float(high[0]))
    guess = np.zeros(len(g)) if start is None else start
    margin = u - guess @ g
    nearest = np.argsort(np.abs(margin), kind="stable")
    many = DOUBTFUL * (len(g) + 1)
    doubtful = np.zeros(len(u), dtype=bool)
    doubtful[nearest[:many]] = True
    noise = TOLERANCE * max(float(np.abs(u).max()), TINY)
    while True:
        held = np.where(doubtful, 0.0, margin > 0)
        found = _program(u[doubtful], g[:, doubtful], low - g @ held, high - g @ held)
        if found is None:  # what is held may be what forbids it
            if doubtful.all():
                return None
            many *= 4
            doubtful[nearest[:many]] = True
            continue
        multipliers, decisions = found
        price = u - multipliers @ g
        crossed = ~doubtful & np.where(held > 0, price < -noise, price > noise)
        if not crossed.any():
            held[doubtful] = decisions
            return Solution(multipliers, held, float(u @ held))
        doubtful |= crossed


def _one_gap(u: FloatArray, g: FloatArray, low: float, high: float) -> Solution | None:
    decisions = (u > 0).astype(np.float64)
    gap = float(g @ decisions)
    if low <= gap <= high:
        return Solution(np.zeros(1), decisions, float(u @ decisions))
    sign = 1.0 if gap > high else -1.0
    excess = gap - high if gap > high else low - gap
    rows = np.flatnonzero(np.where(decisions > 0, sign * g > 0, sign * g < 0))  # whose other decision takes some of it away
    price = sign * u[rows] / g[rows]
    rows, price = rows[order := np.argsort(price, kind="stable")], price[order]
    taken = np.cumsum(np.abs(g[rows]))
    if not len(rows) or taken[-1] * (1 + TOLERANCE) < excess:
        return None
    last = min(int(np.searchsorted(taken, excess)), len(rows) - 1)
    decisions[rows[:last]] = 1 - decisions[rows[:last]]
    share = min(1.0, (excess - (taken[last - 1] if last else 0.0)) / abs(g[rows[last]]))
    decisions[rows[last]] += share * (1 - 2 * decisions[rows[last]])
    return Solution(np.array([sign * price[last]]), decisions, float(u @ decisions))


def _program(u: FloatArray, g: FloatArray, low: FloatArray, high: FloatArray) -> tuple[FloatArray, FloatArray] | None:
    """Multipliers and decisions of the program over these rows, the gaps being variables with bounds of their own."""
    from scipy.optimize import linprog

    gaps, rows = g.shape
    scale = max(float(np.abs(u).max()), TINY), max(float(np.abs(g).max()), TINY)  # the solver's tolerances are absolute
    bounds = np.empty((rows + gaps, 2))
    bounds[:rows] = 0.0, 1.0
    bounds[rows:, 0], bounds[rows:, 1] = low / scale[1], high / scale[1]
    solved = linprog(
        np.append(-u / scale[0], np.zeros(gaps)),
        A_eq=np.hstack([g / scale[1], -np.eye(gaps)]),
        b_eq=np.zeros(gaps),
        bounds=bounds,
        method="highs",
    )
    if solved.status == 2:
        return None
    if not solved.success:  # bounded and feasible, so this is a fault of the solver
        raise RuntimeError(f"the linear program of the bias score was not solved: {solved.message}")
    multipliers: FloatArray = -solved.eqlin.marginals * scale[0] / scale[1]
    return multipliers, np.clip(solved.x[:rows], 0.0, 1.0)


def path(problem: Problem, steps: int) -> tuple[list[float], list[FloatArray]]:
    """Bounds from the gap at the start down to zero, and the multipliers (gaps,) of each, found on held-out rows."""
    u, g = problem.worth(problem.held_out)
    rows = len(u)
    multipliers = np.zeros(len(g))
    widest = float(np.abs(problem.gaps((u > 0).astype(np.float64))).max())
    bounds: list[float] = []
    found: list[FloatArray] = []
    for max_gap in np.linspace(widest, 0.0, steps + 1)[1:] if widest else [0.0]:
        for _ in range(CORRECTIONS):
            decisions = (u - multipliers @ g > 0).astype(np.float64)
            left = (problem.gaps(decisions) - g @ decisions / rows) * rows
            solution = solve(u, g, -max_gap * rows - left, max_gap * rows - left, multipliers)
            if solution is None and not bounds:  # weak probes: what they miss at the start is more than they can make up for
                solution = solve(u, g, np.full(len(g), -max_gap * rows), np.full(len(g), max_gap * rows), multipliers)
            if solution is None:
                return bounds, found  # nor will there be one for a smaller bound
            multipliers = solution.multipliers
        bounds.append(float(max_gap))
        found.append(multipliers)
    return bounds, found


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
