"""Permutation tests of gaps: a second figure next to the p-values of intervals (`families`), with fewer assumptions.

The null hypothesis of a gap determines what may be permuted. For a difference in sensitivity, groups are permuted only among patients with
positives: permuting across labels would test prevalence and sensitivity together. Likewise negatives for the false positive rate, rows
decided positive (negative) for PPV (NPV), and all rows for the selection rate. A patient is permuted as a whole, once in each group, and
each group is compared with the reference separately. A sum of sensitivity and false positive rate permutes patients within their pattern
of labels (positives only, negatives only, both), which preserves the sizes of all cells and the correlation of a patient's rates.

With one row per patient and hard decisions the distribution of one rate is hypergeometric, and the p-value exact. Otherwise groups are
permuted at random, and p = (1 + number of draws with |g*| >= |g|) / (1 + draws). If patients have several rows or decisions are randomised,
gaps are divided by their cluster-robust standard error, which keeps the level if groups differ in rows per patient (Chung and Romano 2013).
With many patients in every cell that statistic is normal, and no draws are needed. That level is asymptotic: with few patients and unequal
numbers of rows, levels of up to 0.28 instead of 0.05 were measured.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from equipoise.data import FloatArray, IntArray, generator
from equipoise.measures.cells import kish, ratio
from equipoise.measures.measure_table import RATIOS, measure_of
from equipoise.measures.moments import Clusters, units_of

PERMUTATION_DRAWS = 999
MANY_PATIENTS = 500  # effective patients in every cell, and
MANY_EVENTS = 50  # patients with and without an event: the statistic is then normal
DRAWN_AT_ONCE = 4_000_000  # numbers in one block of draws
FAR_TAIL = 40  # standard deviations from the mean, beyond which a hypergeometric tail is computed as a normal one (0 in print)
NANOSECONDS = (90, 12_000, 35)  # measured cost of a draw: per kind of patient; for sampling patients one by one; per sampled patient


def p_values(
    decisions: npt.ArrayLike,
    y: npt.ArrayLike,
    codes: npt.ArrayLike,
    levels: tuple[str, ...],
    patients: npt.NDArray[np.object_] | None,
    measures: Sequence[str],
    *,
    weight: npt.ArrayLike | None = None,
    draws: int = PERMUTATION_DRAWS,
    seed: int = 0,
) -> dict[str, FloatArray]:
    """The p-value of the gap of every group except the reference, (groups - 1,) for each measure; NaN if a cell is empty.

    - `decisions`, `y`, `codes`: of each row (n,).
    - `levels`: the groups, the reference first.
    - `patients`: ids, among whom groups are permuted; None for rows.
    - `measures`: names of gaps.
    - `weight`: sample weights.
    - `draws`, `seed`: of permutations, where no exact distribution is known.

    >>> p = p_values([1, 1, 1, 0, 0, 0], [1] * 6, [0, 0, 0, 1, 1, 1], ("M", "F"), None, ["eod", "spd"])
    >>> p["eod"].round(3).tolist()  # 2 of the 20 ways to choose who is F
    [0.1]
    """
    code = np.asarray(codes, dtype=np.int64)
    units = units_of(patients, len(code))
    clusters = Clusters.of(code, len(levels), units)
    known, unknown = clusters.rows, np.full(max(len(levels) - 1, 0), np.nan)
    if not len(known):
        return dict.fromkeys(measures, unknown)
    f, label = (np.asarray(each, dtype=np.float64)[known] for each in (decisions, y))
    w = np.ones(len(f)) if weight is None else np.asarray(weight, dtype=np.float64)[known]
    by_signature = {measure_of(measure).signature: measure for measure in reversed(measures)}  # mirrors are equal
    found = {}
    for measure in reversed(by_signature.values()):
        table = _table(measure, f, label, w, clusters, units[known])
        found[measure] = np.array(
            [table.p_value(k, draws, generator(seed, f"permutation {measure} {levels[k]}")) for k in range(1, len(levels))]
        )
    return {measure: found[by_signature[measure_of(measure).signature]] for measure in measures}


def largest_gap_p_value(by_group: FloatArray) -> float:
    """The p-value of the largest |gap|: the smallest of the groups' p-values times their number; NaN if no group has one.

    >>> largest_gap_p_value(np.array([0.3, 0.05, np.nan]))
    0.1
    """
    known = by_group[~np.isnan(by_group)]
    return round(min(1.0, float(known.min()) * len(known)), 12) if len(known) else float("nan")


@dataclass(frozen=True, eq=False)
class _Table:
    """The contribution of each unit (a patient in a group) to each rate of a gap, units sorted by group."""

    sign: FloatArray  # (rates,) of the signed sum
    n: FloatArray  # (units, rates) denominators
    s: FloatArray  # (units, rates) numerators
    stratum: IntArray  # (units,) groups are permuted within strata
    start: IntArray  # (groups + 1,) the position of each group's first unit
    single: bool  # every unit is one row, decided 0 or 1

    def is_normal(self, group: int) -> bool:
        """Whether the statistic of a group is normal, so that no draws are needed."""
        for k in (group, 0):
            n, s = (values[self.start[k] : self.start[k + 1]] for values in (self.n, self.s))
            many = (n > 0).sum(0).min() >= MANY_PATIENTS and (s > 0).sum(0).min() >= MANY_EVENTS and (s < n).sum(0).min() >= MANY_EVENTS
            if not many or (n.max() > 1 and kish(n.sum(0), (n**2).sum(0)).min() < MANY_PATIENTS):
                return False
        return True

    def p_value(self, group: int, draws: int, rng: np.random.Generator) -> float:
        """The p-value of one group against the reference."""
        sides = [slice(self.start[k], self.start[k + 1]) for k in (group, 0)]
        sums = [np.array([values[side].sum(0) for side in sides]) for values in (self.n, self.s)]
        if not (sums[0] > 0).all():
            return float("nan")
        if self.single and len(self.sign) == 1:
            (rows, other_rows), (hits, other_hits) = sums[0][:, 0], sums[1][:, 0]
            return hypergeometric_p(int(hits), int(rows), int(other_hits), int(other_rows))
        normal = self.is_normal(group)
        n, s, stratum = (np.concatenate([values[side] for side in sides]) for values in (self.n, self.s, self.stratum))
        e = s - n * ratio(s.sum(0), n.sum(0))  # residuals from the rates of both groups
        squares = [e[:, [r]] * e[:, [q]] for r in range(n.shape[1]) for q in range(n.shape[1])]
        columns = np.concatenate([n, e, *squares], axis=1)  # their sums over units determine the statistic
        in_group = np.arange(len(n)) < sides[0].stop - sides[0].start
        total, studentised = columns.sum(0), normal or not self.single
        observed = _statistic(columns[in_group].sum(0), total, self.sign, studentised)
        if normal:
            return math.erfc(float(observed) / math.sqrt(2))
        units = np.concatenate([n, s], axis=1)
        strata = [_sampler(columns[rows], units[rows], in_group[rows]) for rows in (stratum == k for k in np.unique(stratum))]
        block, count = max(1, DRAWN_AT_ONCE // max(kinds for kinds, _ in strata)), 0
        for begin in range(0, draws, block):
            drawn = np.sum([draw(min(block, draws - begin), rng) for _, draw in strata], axis=0)
            permuted = _statistic(drawn, total, self.sign, studentised)
            count += int((~(permuted < observed * (1 - 1e-9) - 1e-12)).sum())  # NaN, for lack of a cell, counts as extreme
        return (1 + count) / (1 + draws)


def _table(measure: str, f: FloatArray, y: FloatArray, w: FloatArray, clusters: Clusters, units: IntArray) -> _Table:
    signed = measure_of(measure).coefficients
    columns = np.stack([1 - y, y, f * (1 - y), f * y])  # of `RATIOS`
    n, s = (np.stack([clusters.by_patient(w * (np.array(RATIOS[rate][side]) @ columns)) for rate in signed], axis=1) for side in (1, 0))
    order = np.lexsort((units, clusters.code)) if clusters.place is None else np.arange(len(n))
    order = order[(n[order] > 0).any(1)]
    n, s, group = n[order], s[order], clusters.group[order]
    pattern = np.zeros(len(n), np.int64) if "selection_rate" in signed else (n > 0) @ (1 << np.arange(len(signed)))
    single = bool(((n == 0) | (n == 1)).all() and ((s == 0) | (s == 1)).all() and (n.sum(1) == 1).all())
    start = np.searchsorted(group, np.arange(clusters.groups + 1))
    return _Table(np.array(list(signed.values())), n, s, pattern, start, single)


def hypergeometric_p(hits: int, rows: int, other_hits: int, other_rows: int) -> float:
    """The exact two-sided p-value of a difference of two proportions, over all ways to choose `rows` of all rows.

    >>> round(hypergeometric_p(3, 3, 0, 3), 9), hypergeometric_p(1, 2, 1, 2)
    (0.1, 1.0)
    """
    total, all_rows = hits + other_hits, rows + other_rows
    mean = total * rows / all_rows
    sd = math.sqrt(max(mean * (all_rows - total) * other_rows / all_rows / max(all_rows - 1, 1), 0.0))
    distance = abs(hits - mean) - 1e-9 * max(mean, 1.0)
    if sd == 0 or distance <= 0:
        return 1.0
    if distance > FAR_TAIL * sd:
        return max(math.erfc(distance / sd / math.sqrt(2)), math.ulp(0.0))
    reach = distance + 12 * sd + 2
    low, high = max(0, total - other_rows, math.floor(mean - reach)), min(total, rows, math.ceil(mean + reach))
    x = np.arange(low, high + 1, dtype=np.float64)
    before = x[:-1]
    steps = np.log((total - before) * (rows - before)) - np.log((before + 1) * (other_rows - total + before + 1))
    log = np.concatenate([[0.0], np.cumsum(steps)])
    probability = np.exp(log - log.max())
    return min(1.0, float(probability[np.abs(x - mean) >= distance].sum() / probability.sum()))


def _statistic(group_sums: FloatArray, total: FloatArray, sign: FloatArray, studentised: bool) -> FloatArray:
    """|gap| (...) from the sums of one group (..., columns) and of both groups; divided by its standard error if `studentised`."""
    rates = len(sign)
    gap, variance = np.zeros(group_sums.shape[:-1]), np.zeros(group_sums.shape[:-1])
    for sums, side in ((group_sums, 1.0), (total - group_sums, -1.0)):
        share = sign / np.where(sums[..., :rates] > 1e-12, sums[..., :rates], np.nan)
        gap += side * (share * sums[..., rates : 2 * rates]).sum(-1)
        products = sums[..., 2 * rates :].reshape(*sums.shape[:-1], rates, rates)
        variance += np.einsum("...r,...rq,...q->...", share, products, share)
    size = np.abs(gap)
    if not studentised:
        return size
    scale = np.sqrt(np.maximum(variance, 0.0))
    return np.where(size <= 1e-12, size, np.divide(size, scale, out=np.full_like(size, np.inf), where=~(scale <= 1e-15)))


def _sampler(columns: FloatArray, units: FloatArray, in_group: npt.NDArray[np.bool_]) -> tuple[int, Callable[..., FloatArray]]:
    """The number of kinds of units in a stratum, in which two groups are permuted, and a function that draws permutations.

    `draw(draws, rng)` gives the sums of the columns over the units that a random permutation assigns to the group, (draws, columns). Units
    of the same kind are interchangeable and counted, if that is faster.
    """
    count, chosen = len(units), int(in_group.sum())
    fewer = min(chosen, count - chosen)
    key = np.zeros(count, np.int64)
    for column in units.T:
        values, place = np.unique(column, return_inverse=True)
        if len(values) > 1:
            key = np.unique(key * len(values) + place, return_inverse=True)[1]  # renumbered, so that many columns do not overflow
    _, first, counts = np.unique(key, return_index=True, return_counts=True)
    per_kind, per_draw, per_unit = NANOSECONDS
    by_kind = per_kind * len(first) <= per_draw + per_unit * fewer

    def draw(draws: int, rng: np.random.Generator) -> FloatArray:
        if by_kind:
            sampled = rng.multivariate_hypergeometric(counts.astype(np.int64), chosen, size=draws, method="marginals")
            return np.asarray(sampled @ columns[first], dtype=np.float64)
        sums = np.array([columns[rng.choice(count, fewer, replace=False, shuffle=False)].sum(0) for _ in range(draws)])
        return sums if fewer == chosen else columns.sum(0) - sums

    return len(first) if by_kind else count, draw
