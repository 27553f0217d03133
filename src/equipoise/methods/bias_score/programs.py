"""The multipliers of the best attribute-blind rule, from a linear program that is solved on the few rows near its decision boundary.

Given x_i, a positive decision adds u_i to performance and g_ki to gap k. The best randomised decisions f_i in [0, 1] with every gap between
`low` and `high` solve a linear program with one row per gap. By its dual variables lambda, f_i is 1 where u_i > sum_k lambda_k g_ki and 0
where it is less, which is a rule for any x. Most rows are far from this boundary: they are fixed at their side of an earlier solution, the
program is solved for the rest, and rows that change sides under the new lambda are added until there are none. The result solves the whole
program, for any number of groups. With one gap (two groups) no solver is needed: rows change sides in the order of u / g.

Predictive parity: a gap in PPV is a difference of quotients, not a sum of weights. But for a common level p, |PPV_g - p| <= b / 2 for all
groups, which bounds every gap by b, is linear in the decisions:

    (1 - p - b/2) TP_g - (p + b/2) FP_g <= 0 <= (1 - p + b/2) TP_g - (p - b/2) FP_g

with TP_g the sum of f P(1|x) P(g|x, 1) and FP_g that of f P(0|x) P(g|x, 0): two linear constraints per group. Their multipliers give a cost
of each group's posterior among the rows with and without the label, as for any other measure. The level is searched: a few values around
the original PPVs of the groups, of which the best on held-out rows is used for each bound. NPV is the same with 1 - f in place of f. As for
other measures, the program bounds the expected sums plus the difference observed for the decisions of the last multipliers.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from equipoise.measures import MEASURES, QUOTIENTS, FloatArray, worst_gap
from equipoise.methods.bias_score.problem import Problem
from equipoise.methods.evaluation import LabelResult
from equipoise.methods.kept_rates import NOISE

DOUBTFUL = 60  # rows in the first program, plus as many for each gap
TOLERANCE = 1e-9  # smallest value of a row that counts, relative to the largest |u|
TINY = 1e-300  # avoids division by zero
CORRECTIONS = 2  # passes in which the multipliers of a bound are corrected by the gaps that the last ones left
LEVELS = 7  # common levels tried for each bound
BEYOND = 0.5  # how far outside the groups' values levels are tried, relative to the distance between them
EDGE = 0.01  # levels closer than this to 0 or 1 are not tried


@dataclass(frozen=True, eq=False)
class Solution:
    """The multipliers (k,), the decisions (n,), of which at most k are fractions, and the value of the decisions."""

    multipliers: FloatArray
    decisions: FloatArray
    value: float


def solve(u: FloatArray, g: FloatArray, low: FloatArray, high: FloatArray, start: FloatArray | None = None) -> Solution | None:
    """The best decisions for values u (n,) with the gaps g (k, n) @ f between low and high (k,); None if there are none.

    `start` is an initial guess of the multipliers, such as those of a slightly wider bound.

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
        fixed = np.where(doubtful, 0.0, margin > 0)
        solved = _program(u[doubtful], g[:, doubtful], low - g @ fixed, high - g @ fixed)
        if solved is None:  # the fixed rows may make it infeasible
            if doubtful.all():
                return None
            many *= 4
            doubtful[nearest[:many]] = True
            continue
        multipliers, decisions = solved
        price = u - multipliers @ g
        crossed = ~doubtful & np.where(fixed > 0, price < -noise, price > noise)
        if not crossed.any():
            fixed[doubtful] = decisions
            return Solution(multipliers, fixed, float(u @ fixed))
        doubtful |= crossed


def _one_gap(u: FloatArray, g: FloatArray, low: float, high: float) -> Solution | None:
    """The solution for a single gap, by flipping decisions in the order of what they cost."""
    decisions = (u > 0).astype(np.float64)
    gap = float(g @ decisions)
    if low <= gap <= high:
        return Solution(np.zeros(1), decisions, float(u @ decisions))
    sign = 1.0 if gap > high else -1.0
    excess = gap - high if gap > high else low - gap
    rows = np.flatnonzero(np.where(decisions > 0, sign * g > 0, sign * g < 0))  # flipping these reduces the excess
    price = sign * u[rows] / g[rows]
    rows, price = rows[order := np.argsort(price, kind="stable")], price[order]
    removed = np.cumsum(np.abs(g[rows]))
    if not len(rows) or removed[-1] * (1 + TOLERANCE) < excess:
        return None
    last = min(int(np.searchsorted(removed, excess)), len(rows) - 1)
    decisions[rows[:last]] = 1 - decisions[rows[:last]]
    share = min(1.0, (excess - (removed[last - 1] if last else 0.0)) / abs(g[rows[last]]))
    decisions[rows[last]] += share * (1 - 2 * decisions[rows[last]])
    return Solution(np.array([sign * price[last]]), decisions, float(u @ decisions))


def _program(u: FloatArray, g: FloatArray, low: FloatArray, high: FloatArray) -> tuple[FloatArray, FloatArray] | None:
    """Multipliers and decisions of the program over these rows, in which the gaps are bounded variables; None if it is infeasible."""
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
    if not solved.success:  # bounded and feasible, so the solver failed
        raise RuntimeError(f"the linear program of the bias score was not solved: {solved.message}")
    multipliers: FloatArray = -solved.eqlin.marginals * scale[0] / scale[1]
    return multipliers, np.clip(solved.x[:rows], 0.0, 1.0)


def path(problem: Problem, steps: int) -> tuple[list[float], list[FloatArray]]:
    """Bounds from the original gap down to zero, and the multipliers (gaps,) of each, from held-out probabilities."""
    u, g = problem.worth(problem.held_out)
    rows = len(u)
    multipliers = np.zeros(len(g))
    widest = float(np.abs(problem.gaps((u > 0).astype(np.float64))).max())
    bounds: list[float] = []
    solutions: list[FloatArray] = []
    for max_gap in np.linspace(widest, 0.0, steps + 1)[1:] if widest else [0.0]:
        for _ in range(CORRECTIONS):
            decisions = (u - multipliers @ g > 0).astype(np.float64)
            left = (problem.gaps(decisions) - g @ decisions / rows) * rows
            solution = solve(u, g, -max_gap * rows - left, max_gap * rows - left, multipliers)
            if solution is None and not bounds:  # weak probes: the observed correction is larger than any decisions could offset
                solution = solve(u, g, np.full(len(g), -max_gap * rows), np.full(len(g), max_gap * rows), multipliers)
            if solution is None:
                return bounds, solutions  # smaller bounds are infeasible too
            multipliers = solution.multipliers
        bounds.append(float(max_gap))
        solutions.append(multipliers)
    return bounds, solutions


@dataclass(frozen=True, eq=False)
class Priced:
    """The best costs (rates, groups) for one bound on |gap|, and the common level of all groups that they aim at."""

    max_gap: float
    cost: FloatArray
    level: float


def parity_path(problem: Problem, steps: int, evaluate: Callable[[FloatArray, float], LabelResult]) -> list[Priced]:
    """Costs for bounds from the original gap down to zero. `evaluate` takes held-out scores (n,) and a bound on |gap|."""
    u = problem.slope * (problem.held_out.chance - problem.heads.centre)
    cells = problem.cells((u > 0).astype(np.float64))
    widest, values = abs(float(worst_gap(problem.goal.measure, cells))), cells.rate(MEASURES[problem.goal.measure].rate)
    if np.isnan(widest):  # a group has no such decisions even before the repair, so its predictive value is undefined
        return []
    spread = BEYOND * (values.max() - values.min())
    levels = np.unique(np.clip(np.linspace(values.min() - spread, values.max() + spread, LEVELS), EDGE, 1 - EDGE))
    starts: list[FloatArray | None] = [None] * len(levels)
    best = []
    for max_gap in np.linspace(widest, 0.0, steps + 1)[1:] if widest else [0.0]:
        tried = []
        for k, level in enumerate(levels):
            solved = _solve_parity(problem, u, level, max_gap, starts[k])
            if solved is not None:
                starts[k], cost = solved
                merit = _merit(evaluate(problem.priced(problem.held_out, cost), max_gap), max_gap)
                tried.append((merit, Priced(float(max_gap), cost, float(level))))
        if not tried:
            break
        best.append(max(tried, key=lambda pair: pair[0])[1])
    return best


def _solve_parity(
    problem: Problem, u: FloatArray, level: float, max_gap: float, start: FloatArray | None
) -> tuple[FloatArray, FloatArray] | None:
    """Multipliers, two per group, that keep every group within half a bound of the level, and the costs; None if there are none."""
    label = QUOTIENTS[problem.goal.measure]
    stakes = _parity_stakes(label, level, max_gap / 2, len(problem.cohort.attribute.levels))
    chance, (with_label, without) = problem.held_out.chance, problem.held_out.groups
    joint = np.stack([chance[:, None] * with_label, (1 - chance)[:, None] * without])  # (labels 1 and 0, n, groups)
    a = np.einsum("crg,rng->cn", stakes, joint)
    upper = np.arange(len(a)) % 2 == 0
    multipliers = np.zeros(len(a)) if start is None else start
    for _ in range(CORRECTIONS):
        f = (u - multipliers @ a > 0).astype(np.float64)
        cells = problem.cells(f)
        side = cells.s if label else cells.n - cells.s
        observed = np.einsum("crg,gr->c", stakes, side[:-1, ::-1])
        left = observed - a @ (f if label else 1 - f)
        # The sum over positive decisions (PPV) is at most -left (upper) or at least -left (lower); over 1 - f (NPV) the sides swap.
        limit, above = (-left, upper) if label else (a.sum(1) + left, ~upper)
        solution = solve(u, a, np.where(above, -np.inf, limit), np.where(above, limit, np.inf), multipliers)
        if solution is None:
            return None
        multipliers = solution.multipliers
    return multipliers, np.einsum("c,crg->rg", multipliers, stakes) / problem.slope


def _parity_stakes(label: int, level: float, half: float, groups: int) -> FloatArray:
    """(constraints, labels 1 and 0, groups): the weight of a row in each constraint; upper, then lower limit of each group."""
    stakes = np.zeros((2 * groups, 2, groups))
    right, wrong = (0, 1) if label else (1, 0)
    for g in range(groups):
        for place, edge in ((2 * g, level + half), (2 * g + 1, level - half)):
            stakes[place, right, g], stakes[place, wrong, g] = 1 - edge, -edge
    return stakes


def _merit(result: LabelResult, max_gap: float) -> tuple[bool, bool, float]:
    """A key that sorts the best last: rates kept, |gap| within the bound, then performance, or the smallest |gap| outside the bound."""
    size, kept = abs(result.gap), result.spare is None or result.spare >= -NOISE
    inside = size <= max_gap + NOISE
    return kept, inside, result.performance if inside else -size
