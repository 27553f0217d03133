"""The best attribute-blind rule of `bias_score`: probes of label and groups, and the multipliers of the gaps, from a linear program.

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

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
from scipy.special import logit as logit_of

from equipoise import measures
from equipoise.data import MISSING, BoolArray, Cohort, FloatArray, IntArray, Rows, Scores
from equipoise.errors import BadInput
from equipoise.measures import MEASURES, RATES, Cells, measure_of, sweep
from equipoise.methods.evaluation import RATE_NOISE, LabelResult
from equipoise.methods.goal import Goal

if TYPE_CHECKING:
    from torch import device as Device
    from torch import nn

    from equipoise.models import FeatureCache, FeatureChoice, Heads, Probe

FAINT_FEATURE = 0.01  # features of images that vary by less than this share of the median standard deviation are treated as rounding noise
FINEST_SCORE = 1e-6  # scores are clipped to this distance from 0 and 1, which have no finite logit
FEW_WITH_LABEL = 2_000  # rows with a label, up to which probes of all rows and of the training set are tried as well
FIRST_PROGRAM_ROWS = 60  # rows in the first program, plus as many for each gap
WORTH_TOLERANCE = 1e-9  # smallest value of a row that counts, relative to the largest |u|
TINY_DIVISOR = 1e-300  # avoids division by zero
MULTIPLIER_PASSES = 2  # passes in which the multipliers of a bound are corrected by the gaps that the last ones left
COMMON_LEVELS = 7  # common levels tried for each bound
LEVELS_BEYOND_VALUES = 0.5  # how far outside the groups' values levels are tried, relative to the distance between them
EDGE_LEVEL = 0.01  # levels closer than this to 0 or 1 are not tried


def finite_logit(score: FloatArray) -> FloatArray:
    """The logit of each score, clipped so that it is finite."""
    finite: FloatArray = logit_of(np.clip(score, FINEST_SCORE, 1 - FINEST_SCORE))
    return finite


@dataclass(frozen=True, eq=False)
class Posteriors:
    """Predicted probabilities of all rows: of the label (n,), and of each group, one array (n, groups) per rate."""

    chance: FloatArray
    groups: tuple[FloatArray, ...]


@dataclass(frozen=True, eq=False)
class Problem:
    """A repair set with its probes."""

    cohort: Rows
    goal: Goal
    heads: Heads
    held_out: Posteriors
    fitted: Posteriors
    slope: float  # value of a positive decision per unit of P(1|x) above the centre

    @cached_property
    def stakes(self) -> FloatArray:
        """(gaps, rates, groups): the weight of each group's posterior in each gap."""
        levels, n = self.cohort.attribute.levels, self.cells(np.zeros(())).n[:-1]
        weights = np.zeros((len(levels) - 1, len(self.heads.labels), len(levels)))
        for r, (rate, sign) in enumerate(measure_of(self.goal.measure).rates.items()):
            label = RATES[rate]
            counts = n.sum(1) if label is None else n[:, label]
            for k in range(1, len(levels)):
                weights[k - 1, r, k], weights[k - 1, r, 0] = sign / counts[k], -sign / counts[0]
        # Rows without a group count for performance only; the probes of the groups are fitted to the other rows.
        scaled: FloatArray = weights * n.sum()
        return scaled

    def worth(self, posteriors: Posteriors) -> tuple[FloatArray, FloatArray]:
        """u (n,) and g (gaps, n), each times the number of rows."""
        chance = posteriors.chance
        label_chances = [np.ones_like(chance) if label is None else chance if label == 1 else 1 - chance for label in self.heads.labels]
        joint = np.stack([p[:, None] * group for p, group in zip(label_chances, posteriors.groups, strict=True)])  # (rates, n, groups)
        return self.slope * (chance - self.heads.centre), np.einsum("krg,rng->kn", self.stakes, joint)

    def priced(self, posteriors: Posteriors, cost: FloatArray) -> FloatArray:
        """The score (n,) with these costs (rates, groups) of the groups' posteriors."""
        return self.heads.scores(posteriors.chance, posteriors.groups, cost)

    def cells(self, decisions: FloatArray) -> Cells:
        """The cell table of decisions (n,) on these rows."""
        return measures.Cells.of(decisions, self.cohort.y, self.cohort.attribute)

    def gaps(self, decisions: FloatArray) -> FloatArray:
        """The gaps (gaps,) of decisions (n,) on these rows."""
        return self.cells(decisions).gaps(self.goal.measure)


def training_rows(model: nn.Module, train: Cohort, cohort: Cohort, reading: FeatureChoice) -> tuple[FloatArray, IntArray, IntArray]:
    """Features (n, d), groups and labels of the training rows whose group is one of the cohort's, for the groups' probes.

    Raises an error if a patient is in both sets, since held-out rows must be unseen.
    """
    from equipoise.models import FeatureCache

    shape, repair_shape = tuple(train.inputs.shape[1:]), tuple(cohort.inputs.shape[1:])
    if shape != repair_shape:
        raise BadInput(f"the training set {train.name!r} holds inputs of shape {shape}, the repair set {cohort.name!r} of {repair_shape}")
    if train.patients is not None and cohort.patients is not None and (shared := set(train.patients) & set(cohort.patients)):
        raise BadInput(
            f"{len(shared):,} patients are in the training set and in the repair set, such as {min(map(str, shared))!r}; "
            "probes cannot be fitted and tested on the same patients. Use sets of different patients, as split() makes them."
        )
    place, names = {level: code for code, level in enumerate(cohort.attribute.levels)}, train.attribute.levels
    codes = np.array([*(place.get(name, MISSING) for name in names), MISSING], dtype=np.int64)[train.attribute.codes]  # MISSING is -1
    rows = train.take(np.flatnonzero(codes != MISSING))
    if not len(rows):
        raise BadInput(f"no row of the training set {train.name!r} is in the groups {', '.join(place)}; it has {', '.join(names)}")
    return FeatureCache(model, rows.inputs).read(reading).arrays()[1], codes[codes != MISSING], rows.y


def probe_inputs(rows: Rows, reading: FeatureChoice | None, network: FeatureCache | None) -> tuple[FloatArray, FloatArray]:
    """Inputs of the groups' probes (n, d) and of the label's probe (n, e), whose last column is the logit.

    `network` is the network of a cohort on these rows. For scores without a network, both are the named columns and the logit of the score.
    """
    if isinstance(rows, Scores):
        if rows.features is None:
            raise BadInput(
                f"bias-score reads further columns next to the score, and {rows.name!r} has none. Name them: --set data.features=age "
                "(Python: features=...), or use a method that decides by the score."
            )
        columns = np.column_stack([rows.features.fitted().numbers(rows.features.frame), finite_logit(rows.score)])
        return columns, columns
    assert network is not None  # a cohort comes with a network
    assert reading is not None
    logit, x = network.read(reading).arrays()
    return x, np.column_stack([x, logit])


def fit_probes(
    cohort: Rows,
    goal: Goal,
    reading: FeatureChoice | None,
    folds: IntArray,
    network: FeatureCache | None = None,
    train: Cohort | None = None,
) -> Problem:
    """The problem with cross-fitted probes of the label and of the groups; the groups' probes may use a training set too."""
    from equipoise.models import Heads, fit_probe

    x, label_inputs = probe_inputs(cohort, reading, network)
    device = None if network is None else network.product_device(x.size)
    y, codes, groups = cohort.y, cohort.attribute.codes, len(cohort.attribute.levels)
    images = network is not None and len(network.inputs.shape) > 2
    finest = FAINT_FEATURE * float(np.median(x.std(0))) if images else 0.0
    task = fit_probe(label_inputs, y, 2, folds, free=1, finest=finest, device=device)
    labels = (1, 0) if measure_of(goal.measure).is_quotient else tuple(RATES[rate] for rate in measure_of(goal.measure).rates)
    rows = [(codes >= 0) & ((y == label) if label is not None else True) for label in labels]
    more = None
    if train is not None and network is not None and reading is not None and min(here.sum() for here in rows) <= FEW_WITH_LABEL:
        more = training_rows(network.model, train, cast(Cohort, cohort), reading)
    probes = tuple(
        _group_probe(x, codes, groups, folds, here, label, more, finest, device) for here, label in zip(rows, labels, strict=True)
    )
    held_out = Posteriors(task.held_out[:, 1], tuple(probe.held_out for probe in probes))
    fitted = Posteriors(task(label_inputs)[:, 1], tuple(probe(x) for probe in probes))
    slope, centre = _line(goal.performance, held_out.chance, cohort)
    return Problem(cohort, goal, Heads(task, probes, labels, centre), held_out, fitted, slope)


def _group_probe(
    x: FloatArray,
    codes: IntArray,
    groups: int,
    folds: IntArray,
    rows: BoolArray,
    label: int | None,
    train: tuple[FloatArray, IntArray, IntArray] | None = None,
    finest: float = 0.0,
    device: Device | None = None,
) -> Probe:
    """The posterior of the group given x among the rows with a label.

    If these are few, probes of all rows and probes that also use the training set are fitted as well (given x, the label adds little
    information about the group). Returns the one with the smallest held-out log loss on the rows with the label.
    """
    from equipoise.models import fit_probe

    subsets = [(rows, label)]  # rows to fit to, and the label of the training rows to add
    if rows.sum() <= FEW_WITH_LABEL and not (rows == (codes >= 0)).all():
        subsets.append((codes >= 0, None))
    probes = [fit_probe(x, codes, groups, folds, here, finest=finest, device=device) for here, _ in subsets]
    if rows.sum() <= FEW_WITH_LABEL and train is not None:
        features, train_codes, y = train
        for here, which in subsets:
            taken = np.ones(len(y), bool) if which is None else y == which
            if taken.any():
                more = features[taken], train_codes[taken]
                probes.append(fit_probe(x, codes, groups, folds, here, more=more, finest=finest, device=device))
    return min(probes, key=lambda probe: probe.loss_on(rows, codes))


def _line(performance: str, chance: FloatArray, cohort: Rows) -> tuple[float, float]:
    """Slope and centre of the value of a positive decision, slope * (P(1|x) - centre), times the number of rows."""
    if not measures.is_affine_performance(performance):
        # F1 is a quotient; near its best value F, its numerator less F times its denominator has the same best rule:
        # 2 TP - F (TP + FP + P).
        best = sweep(chance, cohort.y, cohort.attribute, (performance,)).best(performance)
        return 2.0, float(best.values[performance]) / 2
    n = np.bincount(cohort.y, minlength=2).astype(np.float64)[None]
    negative, positive = measures.performance_functional(performance, n).w[0] * n.sum()
    return float(positive - negative), float(-negative / (positive - negative))


class Solution(NamedTuple):
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
    many = FIRST_PROGRAM_ROWS * (len(g) + 1)
    doubtful = np.zeros(len(u), dtype=bool)
    doubtful[nearest[:many]] = True
    noise = WORTH_TOLERANCE * max(float(np.abs(u).max()), TINY_DIVISOR)
    while True:
        fixed = np.where(doubtful, 0.0, margin > 0)
        solved = _linear_program(u[doubtful], g[:, doubtful], low - g @ fixed, high - g @ fixed)
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
    if not len(rows) or removed[-1] * (1 + WORTH_TOLERANCE) < excess:
        return None
    last = min(int(np.searchsorted(removed, excess)), len(rows) - 1)
    decisions[rows[:last]] = 1 - decisions[rows[:last]]
    share = min(1.0, (excess - (removed[last - 1] if last else 0.0)) / abs(g[rows[last]]))
    decisions[rows[last]] += share * (1 - 2 * decisions[rows[last]])
    return Solution(np.array([sign * price[last]]), decisions, float(u @ decisions))


def _linear_program(u: FloatArray, g: FloatArray, low: FloatArray, high: FloatArray) -> tuple[FloatArray, FloatArray] | None:
    """Multipliers and decisions of the program over these rows, in which the gaps are bounded variables; None if it is infeasible."""
    from scipy.optimize import linprog

    gaps, rows = g.shape
    scale = max(float(np.abs(u).max()), TINY_DIVISOR), max(float(np.abs(g).max()), TINY_DIVISOR)  # the solver's tolerances are absolute
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


class PathStep(NamedTuple):
    """A step of the path: its bound on |gap|, the costs of the groups' posteriors, and the numbers of its note."""

    max_gap: float
    costs: FloatArray  # (rates, groups)
    about: Mapping[str, Any]


def path(problem: Problem, steps: int) -> list[PathStep]:
    """Bounds from the original gap down to zero, and the multipliers (gaps,) of each, from held-out probabilities."""
    u, g = problem.worth(problem.held_out)
    rows, groups = len(u), problem.cohort.attribute.others
    multipliers = np.zeros(len(g))
    widest = float(np.abs(problem.gaps((u > 0).astype(np.float64))).max())
    found: list[PathStep] = []
    for max_gap in np.linspace(widest, 0.0, steps + 1)[1:] if widest else [0.0]:
        for _ in range(MULTIPLIER_PASSES):
            decisions = (u - multipliers @ g > 0).astype(np.float64)
            left = (problem.gaps(decisions) - g @ decisions / rows) * rows
            solution = solve(u, g, -max_gap * rows - left, max_gap * rows - left, multipliers)
            if solution is None and not found:  # weak probes: the observed correction is larger than any decisions could offset
                solution = solve(u, g, np.full(len(g), -max_gap * rows), np.full(len(g), max_gap * rows), multipliers)
            if solution is None:
                return found  # smaller bounds are infeasible too
            multipliers = solution.multipliers
        costs = np.einsum("k,krg->rg", multipliers, problem.stakes) / problem.slope  # in units of P(1|x)
        found.append(PathStep(float(max_gap), costs, {"multipliers": dict(zip(groups, multipliers.tolist(), strict=True))}))
    return found


def parity_path(problem: Problem, steps: int, evaluate: Callable[[FloatArray, float], LabelResult]) -> list[PathStep]:
    """Costs for bounds from the original gap down to zero. `evaluate` takes held-out scores (n,) and a bound on |gap|."""
    measure, u = problem.goal.measure, problem.slope * (problem.held_out.chance - problem.heads.centre)
    cells = problem.cells((u > 0).astype(np.float64))
    widest, values = abs(float(cells.worst_gap(measure))), cells.rate(MEASURES[measure].rate)
    if np.isnan(widest):  # a group has no such decisions even before the repair, so its predictive value is undefined
        return []
    spread = LEVELS_BEYOND_VALUES * (values.max() - values.min())
    levels = np.unique(np.clip(np.linspace(values.min() - spread, values.max() + spread, COMMON_LEVELS), EDGE_LEVEL, 1 - EDGE_LEVEL))
    starts: list[FloatArray | None] = [None] * len(levels)
    found: list[PathStep] = []
    for max_gap in np.linspace(widest, 0.0, steps + 1)[1:] if widest else [0.0]:
        tried = []  # the best has its rates kept, then |gap| within the bound, then performance, or the smallest |gap| outside the bound
        for k, level in enumerate(levels):
            if (solved := _solve_parity(problem, u, level, max_gap, starts[k])) is not None:
                starts[k], costs = solved
                result = evaluate(problem.priced(problem.held_out, costs), max_gap)
                inside, kept = result.size <= max_gap + RATE_NOISE, result.spare is None or result.spare >= -RATE_NOISE
                key = kept, inside, result.performance if inside else -result.size
                about = {"rate": "PPV" if measure_of(measure).decided else "NPV", "level": float(level)}
                tried.append((key, PathStep(float(max_gap), costs, about)))
        if not tried:
            break
        found.append(max(tried, key=lambda pair: pair[0])[1])
    return found


def _solve_parity(
    problem: Problem, u: FloatArray, level: float, max_gap: float, start: FloatArray | None
) -> tuple[FloatArray, FloatArray] | None:
    """Multipliers, two per group, that keep every group within half a bound of the level, and the costs; None if there are none."""
    label = measure_of(problem.goal.measure).decided
    groups, (right, wrong) = len(problem.cohort.attribute.levels), (0, 1) if label else (1, 0)
    stakes = np.zeros((2 * groups, 2, groups))  # the weight of a row in each constraint: upper, then lower limit of each group
    for g in range(groups):
        for place, edge in ((2 * g, level + max_gap / 2), (2 * g + 1, level - max_gap / 2)):
            stakes[place, right, g], stakes[place, wrong, g] = 1 - edge, -edge
    chance, (with_label, without) = problem.held_out.chance, problem.held_out.groups
    joint = np.stack([chance[:, None] * with_label, (1 - chance)[:, None] * without])  # (labels 1 and 0, n, groups)
    a = np.einsum("crg,rng->cn", stakes, joint)
    upper = np.arange(len(a)) % 2 == 0
    multipliers = np.zeros(len(a)) if start is None else start
    for _ in range(MULTIPLIER_PASSES):
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
