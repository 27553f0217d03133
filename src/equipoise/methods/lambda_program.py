"""The multipliers of the best attribute-blind rule, by a linear program that is solved on the few rows that are in doubt.

Given x_i, a positive decision is worth u_i to performance and adds g_ki to gap k. The best randomised decisions f_i in [0, 1] with every
gap between `low` and `high` solve a linear program with one row per gap, and its dual variables say that f_i is 1 where
u_i > sum_k lambda_k g_ki and 0 where it is less: the rule for anybody with the same x. All but a few rows are far from that line and need
not change sides again: they are held at the side where an earlier solution has them, the program is solved for the rest, and rows that
the new lambda puts on the other side join them until there are none. The solution is that of the whole program, for any number of groups.
With one gap, that of two groups, no solver is needed: rows give way in the order of u / g, what they are worth for what they add.
"""

from dataclasses import dataclass

import numpy as np

from equipoise.measures import FloatArray

DOUBTFUL = 60  # rows to begin with, and as many again for each gap
TOLERANCE = 1e-9  # of the largest |u|: what a row is worth beyond this is worth something
TINY = 1e-300  # so that nothing is divided by zero


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
