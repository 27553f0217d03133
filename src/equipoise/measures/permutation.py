"""Tests of gaps: permutation p-values, and adjustments that control false findings over the whole audit.

**P-values.** The null hypothesis of a gap determines what may be permuted. For a difference in sensitivity, groups are permuted only among
patients with positives: permuting across labels would test prevalence and sensitivity together. Likewise negatives for the false positive
rate, rows decided positive (negative) for PPV (NPV), and all rows for the selection rate. A patient is permuted as a whole, once in each
group, and each group is compared with the reference separately. A sum of sensitivity and false positive rate permutes patients within their
pattern of labels (positives only, negatives only, both), which preserves the sizes of all cells and the correlation of a patient's rates.

With one row per patient and hard decisions the distribution of one rate is hypergeometric, and the p-value exact. Otherwise groups are
permuted at random, and p = (1 + number of draws with |g*| >= |g|) / (1 + draws). If patients have several rows or decisions are randomised,
gaps are divided by their cluster-robust standard error, which keeps the level if groups differ in rows per patient (Chung and Romano 2013).
With many patients in every cell that statistic is normal, and no draws are needed. That level is asymptotic: with few patients and unequal
numbers of rows, levels of up to 0.28 instead of 0.05 were measured. A p-value of at most 0.2 from draws is therefore compared with that of
the cluster-robust interval of the gap, and the larger one is reported: a gap is a finding only if both agree.

**Multiplicity.** The family is all gaps of an audit that have a value, over all attributes and all labels. A measure that mirrors another
(fnr_gap is -eod, tnr_gap is -fpr_gap) is the same comparison and counts once.

- p_adjusted: Holm's step-down adjustment. The probability of any false `clear` gap is at most 1 - level, whatever the dependence.
- simultaneous intervals: all of them cover with probability `level`. Critical values are those of the largest studentised gap (max-T), from
  the correlations of the gaps of an attribute; attributes and labels count as independent, which is conservative. A cell of fewer than 30
  patients is too small to studentise: its gaps get Bonferroni's share of the error instead, and intervals for small samples.
- shrunken gaps of many small groups, by parametric empirical Bayes (Morris 1983, J Am Stat Assoc 78:47): the rates of the groups of an
  attribute vary around a common mean with a variance that is estimated from them (Paule and Mandel 1982). They are more accurate on
  average, but biased towards zero for a group that really differs, and reported next to the plain gaps, which they never replace.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt
import pandas as pd

from equipoise.data import FloatArray, IntArray, generator
from equipoise.measures.cells import kish, ratio
from equipoise.measures.intervals import bisect, quantile
from equipoise.measures.measure_table import measure_of
from equipoise.measures.moments import Clusters, Moments, concatenate_sums, moments_of, units_of

PERMUTATION_DRAWS = 999
FEW_EXCEED = 10  # if fewer draws are at least as extreme, more draws determine how small the p-value is
MOST_DRAWS = 99_999
MANY_COMPARISONS, FIRST_DRAWS = 500, 99  # with more comparisons, gaps reached in 20 of the first draws (p > 0.2) get no further draws
NO_SIGN = 0.2  # p-values of intervals above this save the draws; p-values from draws below it are compared with that of the interval
PER_COMPARISON = 100  # draws per comparison adjusted for, so that the smallest adjusted p-value is about 0.01
MOST_WORK = 2_000_000  # further draws times kinds of patients
MANY_PATIENTS = 500  # effective patients in every cell, and
MANY_EVENTS = 50  # patients with and without an event: the statistic is then normal
DRAWN_AT_ONCE = 4_000_000  # numbers in one block of draws
FAR_TAIL = 40  # standard deviations from the mean, beyond which a hypergeometric tail is computed as a normal one (0 in print)
NANOSECONDS = (90, 12_000, 35)  # measured cost of a draw: per kind of patient; for sampling patients one by one; per sampled patient
NORMAL_DRAWS = 20_000  # of the maximum of correlated standard normal variables
LARGEST_BLOCK = 400  # gaps of an attribute; with more, they are bounded as if independent (Sidak 1967)
LEAST_GROUPS = 4  # with fewer, the variance between groups cannot be estimated
SHRINKING_HALVINGS = 60


def p_values(
    decisions: npt.ArrayLike,
    y: npt.ArrayLike,
    codes: npt.ArrayLike,
    levels: tuple[str, ...],
    patients: npt.NDArray[np.object_] | None,
    measures: Sequence[str],
    *,
    weight: npt.ArrayLike | None = None,
    comparisons: int = 1,
    draws: int = PERMUTATION_DRAWS,
    seed: int = 0,
) -> dict[str, FloatArray]:
    """The p-value of the gap of every group except the reference, (groups - 1,) for each measure; NaN if a cell is empty.

    `comparisons` is the number of p-values adjusted together: p-values that are small after `draws` draws get up to 100 more for each.

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
    most = int(min(max(draws, PER_COMPARISON * comparisons), max(draws, MOST_DRAWS)))
    first = draws if comparisons <= MANY_COMPARISONS else min(FIRST_DRAWS, draws)
    others, by_signature = (
        range(1, len(levels)),
        {measure_of(measure).signature: measure for measure in reversed(measures)},
    )  # mirrors are equal
    tables = {measure: _table(measure, f, label, w, clusters, units[known]) for measure in reversed(by_signature.values())}
    drawn = {measure: np.array([not table.known(k) for k in others], dtype=bool) for measure, table in tables.items()}
    found = dict.fromkeys(tables, unknown)

    def interval_p(chosen: Sequence[str]) -> dict[str, FloatArray]:
        """The p-values of the cluster-robust intervals of these measures."""
        if not chosen:
            return {}
        moments = moments_of(decisions, y, code, len(levels), units, weight)
        joined = concatenate_sums([*(moments.gap(measure_of(measure).coefficients) for measure in chosen)]).p_values()
        return dict(zip(chosen, joined.reshape(len(chosen), -1), strict=True))

    lowest = interval_p([measure for measure in tables if first < draws and drawn[measure].any()])
    for measure, table in tables.items():
        lower, names = lowest.get(measure, unknown), [f"permutation {measure} {level}" for level in levels]
        found[measure] = np.array([table.p_value(k, lower[k - 1], first, draws, most, seed, names[k]) for k in others])
    unsure = {measure: drawn[measure] & (p <= NO_SIGN) for measure, p in found.items()}
    lowest |= interval_p([measure for measure in tables if measure not in lowest and unsure[measure].any()])
    for measure, lower in lowest.items():
        found[measure] = np.where(unsure[measure], np.fmax(found[measure], lower), found[measure])
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

    def known(self, group: int) -> bool:
        """Whether the distribution for a group is hypergeometric (one rate, one row per patient) or normal: no draws are needed."""
        if self.single and len(self.sign) == 1:
            return True
        for k in (group, 0):
            n, s = (values[self.start[k] : self.start[k + 1]] for values in (self.n, self.s))
            many = (n > 0).sum(0).min() >= MANY_PATIENTS and (s > 0).sum(0).min() >= MANY_EVENTS and (s < n).sum(0).min() >= MANY_EVENTS
            if not many or (n.max() > 1 and kish(n.sum(0), (n**2).sum(0)).min() < MANY_PATIENTS):
                return False
        return True

    def p_value(self, group: int, lowest: float, first: int, draws: int, most: int, seed: int, name: str) -> float:
        """The p-value of one group against the reference; `lowest`, a lower bound, if it is no finding, which saves the draws."""
        sides = [slice(self.start[k], self.start[k + 1]) for k in (group, 0)]
        sums = [np.array([values[side].sum(0) for side in sides]) for values in (self.n, self.s)]
        if not (sums[0] > 0).all():
            return float("nan")
        if self.single and len(self.sign) == 1:
            (rows, other_rows), (hits, other_hits) = sums[0][:, 0], sums[1][:, 0]
            return hypergeometric_p(int(hits), int(rows), int(other_hits), int(other_rows))
        normal = self.known(group)
        if not normal and lowest > NO_SIGN:
            return lowest
        n, s, stratum = (np.concatenate([values[side] for side in sides]) for values in (self.n, self.s, self.stratum))
        e = s - n * ratio(s.sum(0), n.sum(0))  # residuals from the rates of both groups
        squares = [e[:, [r]] * e[:, [q]] for r in range(n.shape[1]) for q in range(n.shape[1])]
        columns = np.concatenate([n, e, *squares], axis=1)  # their sums over units determine the statistic
        in_group = np.arange(len(n)) < sides[0].stop - sides[0].start
        total, studentised = columns.sum(0), normal or not self.single
        observed = _statistic(columns[in_group].sum(0), total, self.sign, studentised)
        if normal:
            return math.erfc(float(observed) / math.sqrt(2))
        units, rng = np.concatenate([n, s], axis=1), generator(seed, name)
        strata = [_sampler(columns[rows], units[rows], in_group[rows]) for rows in (stratum == k for k in np.unique(stratum))]
        width = max(kinds for kinds, _ in strata)

        def count_extreme(number: int) -> int:
            block, count = max(1, DRAWN_AT_ONCE // width), 0
            for begin in range(0, number, block):
                drawn = np.sum([draw(min(block, number - begin), rng) for _, draw in strata], axis=0)
                permuted = _statistic(drawn, total, self.sign, studentised)
                count += int((~(permuted < observed * (1 - 1e-9) - 1e-12)).sum())  # NaN, for lack of a cell, counts as extreme
            return count

        count = count_extreme(first)
        if first < draws and count >= FEW_EXCEED * 2:  # the p-value is above 0.2: no finding, whatever further draws show
            return (1 + count) / (1 + first)
        count += count_extreme(draws - first)
        if count < FEW_EXCEED:
            further = max(min(most, max(draws, MOST_WORK // width)) - draws, 0)
            count, draws = count + count_extreme(further), draws + further
        return (1 + count) / (1 + draws)


def _table(measure: str, f: FloatArray, y: FloatArray, w: FloatArray, clusters: Clusters, units: IntArray) -> _Table:
    signed = measure_of(measure).coefficients
    denominator = {"selection_rate": np.ones_like(f), "tpr": y, "fpr": 1 - y, "ppv": f, "npv": 1 - f}
    event = {"selection_rate": f, "tpr": f, "fpr": f, "ppv": y, "npv": 1 - y}
    n: FloatArray = np.stack([clusters.by_patient(w * denominator[rate]) for rate in signed], axis=1)
    s: FloatArray = np.stack([clusters.by_patient(w * denominator[rate] * event[rate]) for rate in signed], axis=1)
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


def large_cell_p_values(moments: Moments, measure: str, *, weighted: bool) -> FloatArray:
    """The p-values that `p_values` computes without draws in large cells, from sums alone (groups - 1,); NaN if a cell is not large."""
    signed = measure_of(measure).coefficients
    top, bottom = (np.array([moments.ratios[name][side] for name in signed], dtype=np.float64) for side in (0, 1))
    value, patients, rows = (
        np.stack([getattr(moments[name], kind) for name in signed], axis=-1) for kind in ("value", "effective", "rows")
    )
    with np.errstate(invalid="ignore"):
        large = np.logical_and.reduce((patients >= MANY_PATIENTS) & (np.minimum(value, 1 - value) * patients >= MANY_EVENTS), axis=-1)
    exact = not weighted and len(signed) == 1 and bool((rows == patients).all())
    found = np.full(len(moments.total) - 1, np.nan)
    for k in (int(group) + 1 for group in np.flatnonzero(large[1:] & large[0])):
        sides = moments.total[[k, 0]]  # (2, columns): the group and the reference
        n, s = sides @ bottom.T, sides @ top.T  # (2, rates)
        if exact:
            found[k - 1] = hypergeometric_p(*(round(float(x)) for x in (s[0, 0], n[0, 0], s[1, 0], n[1, 0])))
            continue
        residual = top - (s.sum(0) / n.sum(0))[:, None] * bottom  # from the rates of both groups together
        products = (residual @ moments.second[[k, 0]] @ residual.T).reshape(2, -1)
        sums = np.concatenate([n, sides @ residual.T, products], axis=1)
        found[k - 1] = math.erfc(float(_statistic(sums[0], sums.sum(0), np.array(list(signed.values())), True)) / math.sqrt(2))
    return found


def holm(p_values: npt.ArrayLike) -> FloatArray:
    """The p-values adjusted by Holm's method; NaN stays NaN and does not count.

    >>> holm([0.01, 0.04, 0.03, float("nan")]).round(3).tolist()
    [0.03, 0.06, 0.06, nan]
    """
    p = np.asarray(p_values, dtype=np.float64)
    known = np.flatnonzero(~np.isnan(p))
    order = known[np.argsort(p[known], kind="stable")]
    p_adjusted = np.full(p.shape, np.nan)
    p_adjusted[order] = np.minimum(np.maximum.accumulate(p[order] * np.arange(len(order), 0, -1)), 1.0)
    return p_adjusted


def comparisons_of(gaps: pd.DataFrame) -> IntArray:
    """The comparison that each row of gaps belongs to, 0 .. m-1, shared by measures that mirror each other; -1 for NaN gaps.

    >>> rows = pd.DataFrame({"measure": ["eod", "fnr_gap", "spd"], "attribute": "sex", "group": "F", "value": [0.1, -0.1, np.nan]})
    >>> comparisons_of(rows).tolist()
    [0, 0, -1]
    """
    signatures = {measure: measure_of(measure).signature for measure in gaps["measure"].unique()}
    numbers: dict[tuple[object, ...], int] = {}
    comparison = np.full(len(gaps), -1, dtype=np.int64)
    keys = [name for name in ("label", "attribute", "group") if name in gaps]
    for k, (measure, value, *where) in enumerate(zip(*(gaps[name] for name in ("measure", "value", *keys)), strict=True)):
        if not np.isnan(value):
            comparison[k] = numbers.setdefault((*where, signatures[measure]), len(numbers))
    return comparison


def adjusted(gaps: pd.DataFrame, level: float = 0.95) -> pd.DataFrame:
    """The gaps with p-values adjusted for all of them (`p_adjusted`), and whether that makes them a finding (`clear`)."""
    comparison = comparisons_of(gaps)
    known, first = np.unique(comparison, return_index=True)
    first = first[known >= 0]
    p = np.full(len(first) + 1, np.nan)  # the last is for NaN gaps, whose comparison is -1
    p[:-1] = holm(gaps["p_value"].to_numpy(dtype=np.float64)[first])
    p_adjusted = p[comparison]
    return gaps.assign(p_adjusted=p_adjusted, clear=p_adjusted <= 1 - level + 1e-12)


Correlations = Sequence[tuple[int, Callable[[], FloatArray]]]  # for each attribute: the number of gaps, and what returns their correlations


def joint_levels(comparison: IntArray, few: npt.NDArray[np.bool_], correlations: Correlations, level: float) -> FloatArray:
    """The level of each gap's pointwise interval at which all of them cover with probability `level`; NaN for NaN gaps.

    `comparison` is that of each gap (-1: none), and `few` whether it rests on few patients.
    """
    small = np.unique(comparison[few & (comparison >= 0)])
    large = np.setdiff1d(comparison[comparison >= 0], small)
    count = len(small) + len(large)
    levels = np.full(len(comparison), np.nan)
    if not count:
        return levels
    share = (1 - level) / count  # of the error probability, for each gap
    levels[comparison >= 0] = 1 - share
    if len(large):
        blocks, start = list[FloatArray](), 0
        for size, matrix in correlations:
            rows = np.arange(start, start + size)
            start += size
            _, first = np.unique(comparison[rows], return_index=True)
            first = np.sort(first[np.isin(comparison[rows][first], large)])
            blocks.append(matrix()[np.ix_(first, first)] if len(first) <= LARGEST_BLOCK else np.zeros((len(first), 0)))
        z = max_t(blocks, 1 - share * len(large))
        levels[np.isin(comparison, large)] = 2 * NormalDist().cdf(z) - 1
    return levels


def max_t(correlations: Sequence[FloatArray], level: float, seed: int = 0) -> float:
    """The critical value of the largest |z| of standard normal variables with these correlations, in independent blocks.

    A block without columns is of variables of unknown correlation, bounded as if independent.

    >>> apart, together = np.eye(10), np.full((10, 10), 0.99) + 0.01 * np.eye(10)
    >>> 2.75 < max_t([apart], 0.95) < 2.85, 1.95 < max_t([together], 0.95) < 2.15
    (True, True)
    """
    size = sum(map(len, correlations))
    bound = NormalDist().inv_cdf((1 + level ** (1 / max(size, 1))) / 2)  # Sidak: conservative
    if any(len(block) and not block.shape[1] for block in correlations):
        return bound
    rng = generator(seed, "max-T")
    largest = np.zeros(NORMAL_DRAWS)
    for matrix in filter(len, correlations):
        values, vectors = np.linalg.eigh(matrix)
        root = vectors * np.sqrt(np.maximum(values, 0.0))
        largest = np.maximum(largest, np.abs(rng.standard_normal((NORMAL_DRAWS, len(matrix))) @ root.T).max(1))
    return min(float(np.quantile(largest, level)), bound)


def shrunken_gaps(groups: pd.DataFrame, gaps: pd.DataFrame, level: float = 0.95) -> pd.DataFrame:
    """One row per gap: its value, the shrunken value and the interval of the latter; NaN if the attribute has fewer than four groups.

    `groups` and `gaps` are the frames of an audit with intervals of this level.
    """
    rows = []
    for attribute, frame in groups.groupby("attribute", sort=False):
        place = {str(name): k for k, name in enumerate(frame.index)}
        shrunken = {}
        for rate in ("selection_rate", "tpr", "fpr", "ppv", "npv"):
            limits = (frame[f"{rate}{end}"].to_numpy(dtype=np.float64) for end in ("", "_low", "_high"))
            shrunken[rate] = shrunken_rates(*limits, level=level)
        for row in gaps[gaps["attribute"] == attribute].itertuples():
            k, reference = place[str(row.group)], place[str(row.reference)]
            value, variance = 0.0, 0.0
            for rate, sign in measure_of(str(row.measure)).coefficients.items():
                mean, error = shrunken[rate]
                value += sign * (mean[k] - mean[reference])
                variance += sign**2 * (error[k] ** 2 + error[reference] ** 2)
            half = float(quantile(level)) * variance**0.5
            ends = (np.nan,) * 3 if np.isnan(row.value) else (value, value - half, value + half)
            rows.append((row.measure, attribute, row.group, row.reference, row.value, *ends))
    return pd.DataFrame(rows, columns=["measure", "attribute", "group", "reference", "value", "shrunken", "low", "high"])


def shrunken_rates(value: FloatArray, low: FloatArray, high: FloatArray, *, level: float = 0.95) -> tuple[FloatArray, FloatArray]:
    """The shrunken rates of groups and their standard errors (groups,), from rates with intervals; NaN for groups without a rate.

    >>> rate = np.array([0.5, 0.6, 0.7, 0.8, 0.9])
    >>> precise, imprecise = (shrunken_rates(rate, rate - width, rate + width)[0] for width in (0.01, 0.5))
    >>> precise.round(2).tolist(), imprecise.round(2).tolist()
    ([0.5, 0.6, 0.7, 0.8, 0.9], [0.6, 0.65, 0.7, 0.75, 0.8])
    """
    known = ~(np.isnan(value) | np.isnan(low) | np.isnan(high))
    count = int(known.sum())
    shrunken, error = np.full(value.shape, np.nan), np.full(value.shape, np.nan)
    if count < LEAST_GROUPS:
        return shrunken, error
    q = value[known]
    variance = np.maximum(((high - low)[known] / (2 * quantile(level))) ** 2, 1e-12)

    def settled(between: FloatArray) -> npt.NDArray[np.bool_]:
        """Whether the weighted sum of squares is at most its expectation, for variances between groups (...,)."""
        weight = 1 / (variance + between[..., None])
        mean = (weight * q).sum(-1) / weight.sum(-1)
        reached: npt.NDArray[np.bool_] = (weight * (q - mean[..., None]) ** 2).sum(-1) - (count - 1) <= 0
        return reached

    none, most = np.zeros(1), np.full(1, (q.max() - q.min()) ** 2 + 1e-12)
    between = 0.0 if settled(none)[0] else float(bisect(settled, none, most, SHRINKING_HALVINGS)[1][0])
    weight = 1 / (variance + between)
    mean = (weight * q).sum() / weight.sum()
    share = (count - 3) / (count - 1) * variance * weight  # of the distance from the mean that shrinkage removes
    shrunken[known] = q - share * (q - mean)
    error[known] = np.sqrt(variance * (1 - (count - 1) / count * share) + 2 / (count - 3) * (share * (q - mean)) ** 2)
    return shrunken, error
