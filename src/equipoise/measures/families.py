"""Families of comparisons: one decision per gap, from which its mark, its adjusted p-value and its simultaneous interval are read.

Each label of an audit has an error of 1 - level, which is spent in the order in which people ask. First come the gaps of single attributes
in the primary measures: by default missed findings and false alarms (eod, fpr_gap), otherwise those that were asked for. Intersections of
attributes come after them, with what they leave of the error (`Family.left`): nothing if no single attribute is marked, all of it if all
are. Other measures (spd, aod, predictive values) follow from these and from the prevalence; they are reported and not tested. So the
probability of any false mark of a label is at most 1 - level. In an overview of several labels, the expected share of false ones among the
labels with a mark is at most 1 - level (`overview_error`). A measure that mirrors another (fnr_gap is -eod, tnr_gap is -fpr_gap) is the
same comparison and counts once.

The evidence of a gap is z, the number of standard errors at which its interval ends at zero, so that its p-value agrees with the interval
even in small cells. Its adjusted p-value is P(max |Z| >= z), the probability that the largest of the family is as far from zero if no gap
is: Z is normal with the correlations of the gaps of an attribute. Attributes and labels count as independent, which is conservative; gaps
of a cell of fewer than 30 patients are too small to have a normal distribution and add their own probability (Bonferroni). The largest gap
is compared with all, the next one with the rest, and so on (step-down; Westfall and Young 1993), unless others are tested after them:
then each is compared with all (single step), which is what `Family.left` rests on.

A gap is marked (`clear`) if its adjusted p-value is at most 1 - level. Simultaneous intervals all cover with probability `level`: they are
those at the critical value of the whole family. The end next to zero of a gap that is marked only because larger ones were taken out is
that at the critical value of the rest. So an interval excludes zero if, and only if, its gap is marked.

Shrunken gaps of many small groups are by parametric empirical Bayes (Morris 1983, J Am Stat Assoc 78:47): the rates of the groups of an
attribute vary around a common mean with a variance that is estimated from them (Paule and Mandel 1982). They are more accurate on average,
but biased towards zero for a group that really differs, and reported next to the plain gaps, which they never replace.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import erfc, sqrt
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from equipoise.data import FloatArray, IntArray, generator
from equipoise.measures.intervals import bisect, quantile
from equipoise.measures.measure_table import ESTIMATED_RATES, measure_of
from equipoise.measures.moments import SignedSum, level_of

NORMAL_DRAWS, LEAST_DRAWS = 20_000, 2_000  # of correlated normal variables; fewer for many gaps, so that memory does not grow
NUMBERS_DRAWN = 20_000_000
FEW_REACHED = 20  # draws beyond a value; with fewer, its probability is bounded instead
LARGEST_BLOCK = 400  # gaps of an attribute; with more, they are bounded as if independent (Sidak 1967)
CRITICAL_HALVINGS = 40
SECOND_STEP_GRID = 321  # critical values at which the error that is left is computed
LEAST_GROUPS = 4  # with fewer, the variance between groups cannot be estimated
SHRINKING_HALVINGS = 60

Correlations = Sequence[tuple[int, Callable[[], FloatArray]]]  # for each attribute: the number of gaps, and what returns their correlations


def family_decisions(
    gaps: pd.DataFrame, sums: SignedSum, level: float, correlations: Correlations = (), step: IntArray | None = None
) -> pd.DataFrame:
    """The gaps with p-values, adjusted p-values, marks (`clear`; with steps also `in_overview`) and simultaneous intervals.

    gaps: one row per gap with its measure, attribute, group, value and `few`, in the order of `sums`.
    correlations: those of the gaps of each attribute; without them, gaps have any dependence (Bonferroni and Holm).
    step: when each gap is tested: 0 first, 1 with what the first leave of the error, -1 never. Each `label` has an error of its own.
        Without it, all gaps are one family.
    """
    comparison, known = comparisons_of(gaps), gaps["value"].notna().to_numpy()
    z, few, error = np.where(known, sums.z_values(), np.nan), gaps["few"].to_numpy(dtype=bool), 1 - level
    p_adjusted, near, critical = (np.full(len(gaps), np.nan) for _ in range(3))
    label = gaps["label"].to_numpy() if step is not None else np.zeros(len(gaps), np.int64)
    steps = np.zeros(len(gaps), np.int64) if step is None else step
    for own in np.unique(label[known]):
        members = [known & (label == own) & (steps == k) for k in (0, 1)]
        first = None
        for rows in (rows for rows in members if rows.any()):
            within = np.full(len(gaps), -1, dtype=np.int64)
            within[rows] = np.unique(comparison[rows], return_inverse=True)[1]
            family = Family.of(within, z, few, correlations)
            if first is None and members[0].any() and members[1].any():
                p, ends, whole = *family.single_step(error), family.critical(0, error)
                first = family
            else:
                left = error if first is None else first.left(error)
                p, ends = family.step_down(left or error)
                p, whole = (p if first is None else first.as_second_step(p)), family.critical(0, left or error)
            p_adjusted[rows], near[rows], critical[rows] = p[within[rows]], ends[within[rows]], whole
    clear = p_adjusted <= error + 1e-12
    total, low, high = sums.limits(level_of(np.nan_to_num(critical, nan=1.0)))
    _, low_near, high_near = sums.limits(level_of(np.nan_to_num(near, nan=1.0)))
    low, high = np.where(clear & (total > 0), low_near, low), np.where(clear & (total < 0), high_near, high)
    least = np.finfo(float).tiny  # next to a critical value, rounding must not decide otherwise
    low = np.where(clear & (total > 0), np.maximum(low, least), np.where(clear, low, np.minimum(low, 0.0)))
    high = np.where(clear & (total < 0), np.minimum(high, -least), np.where(clear, high, np.maximum(high, 0.0)))
    tested = ~np.isnan(critical)
    limits = {"simultaneous_low": np.where(tested, low, np.nan), "simultaneous_high": np.where(tested, high, np.nan)}
    gaps = gaps.assign(p_value=_p_of(z), p_adjusted=p_adjusted, clear=clear, **limits)
    return gaps if step is None else gaps.assign(in_overview=p_adjusted <= overview_error(p_adjusted, label, error) + 1e-12)


def overview_error(p_adjusted: FloatArray, label: npt.NDArray[Any], error: float) -> float:
    """The error of each label in an overview of all: its share is that of the labels that have a finding at this error.

    Labels are selected by Benjamini and Hochberg (1995) by their smallest adjusted p-value, and tested at the share of labels that are
    selected (Benjamini and Bogomolov 2014, J R Stat Soc B 76:297).

    >>> overview_error(np.array([0.001, 0.3, 0.04, 0.9]), np.array([0, 0, 1, 2]), 0.05)
    0.016666666666666666
    """
    smallest = np.sort([np.nanmin(p_adjusted[label == own]) for own in np.unique(label[~np.isnan(p_adjusted)])])
    reached = np.flatnonzero(smallest <= error * np.arange(1, len(smallest) + 1) / max(len(smallest), 1) + 1e-12)
    return float(error * (reached[-1] + 1) / len(smallest)) if len(reached) else 0.0


def critical_value(known: npt.NDArray[np.bool_], few: npt.NDArray[np.bool_], correlations: Correlations, level: float) -> float:
    """The number of standard errors of simultaneous intervals of the known gaps."""
    if not known.any():
        return 0.0
    return Family.of(np.where(known, np.cumsum(known) - 1, -1), np.zeros(len(known)), few, correlations).critical(0, 1 - level)


@dataclass(frozen=True, eq=False)
class Family:
    """The comparisons of a family in the order of their evidence, largest first."""

    z: FloatArray  # (m,)
    place: IntArray  # (m,) of each comparison in this order
    single: IntArray  # (m + 1,) from each one on: comparisons in cells of few patients
    apart: IntArray  # (m + 1,) from each one on: comparisons that are bounded as if independent
    largest: npt.NDArray[np.float32]  # (draws, m) of correlated normal variables, the largest absolute value from each one on

    @classmethod
    def of(cls, comparison: IntArray, z: FloatArray, few: npt.NDArray[np.bool_], correlations: Correlations) -> "Family":
        """The family of gaps with these comparisons (-1: none); a comparison is that of its first gap."""
        known = np.flatnonzero(comparison >= 0)
        numbers, first = np.unique(comparison[known], return_index=True)
        first = known[first]
        evidence = np.nan_to_num(z[first])
        order = np.argsort(-evidence, kind="stable")
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        few_any = np.isin(numbers, comparison[few & (comparison >= 0)]) if correlations else np.ones(len(numbers), bool)
        drawn, blocks, start = np.zeros(len(order), bool), list[tuple[IntArray, FloatArray]](), 0
        for size, matrix in correlations:
            inside = np.flatnonzero((first >= start) & (first < start + size) & ~few_any)
            if 1 < len(inside) <= LARGEST_BLOCK:
                drawn[place[inside]] = True
                rows = first[inside] - start
                blocks.append((place[inside], matrix()[np.ix_(rows, rows)]))
            start += size
        single = few_any[order]
        count = int(np.clip(NUMBERS_DRAWN // max(len(order), 1), LEAST_DRAWS, NORMAL_DRAWS))
        largest = np.zeros((count if blocks else 1, len(order)), np.float32, order="F")
        rng = generator(0, "max-T")
        for columns, correlation in blocks:
            values, vectors = np.linalg.eigh(correlation)
            root = (vectors * np.sqrt(np.maximum(values, 0.0))).astype(np.float32)
            largest[:, columns] = np.abs(rng.standard_normal((count, len(columns)), dtype=np.float32) @ root.T)
        np.maximum.accumulate(largest[:, ::-1], axis=1, out=largest[:, ::-1])

        def from_each_on(marked: npt.NDArray[np.bool_]) -> IntArray:
            return np.append(marked[::-1].cumsum()[::-1], 0)

        return cls(evidence[order], place, from_each_on(single), from_each_on(~single & ~drawn), largest)

    def exceeded(self, stage: int, z: float) -> float:
        """The probability that the largest evidence of the comparisons from a stage on is at least z, if no gap differs from zero."""
        p, m = erfc(z / sqrt(2)), len(self.z) - stage
        bounded = m - int(self.single[stage]) - int(self.apart[stage])
        by_draws = 0.0
        if bounded:
            reached, draws = int((self.largest[:, stage] >= z).sum()), len(self.largest)
            by_draws = min(reached if reached >= FEW_REACHED else FEW_REACHED, draws) / draws
            by_draws = min(by_draws, 1 - (1 - p) ** bounded)
        return min(1 - (1 - by_draws) * (1 - p) ** int(self.apart[stage]) + int(self.single[stage]) * p, 1.0)

    def critical(self, stage: int, error: float) -> float:
        """The smallest evidence that is exceeded with at most this probability of error by the comparisons from a stage on."""

        def accepted(z: FloatArray) -> npt.NDArray[np.bool_]:
            return np.array([self.exceeded(stage, float(each)) <= error for each in z.ravel()]).reshape(z.shape)

        return float(bisect(accepted, np.zeros(1), np.full(1, 8.0), CRITICAL_HALVINGS, each=10_000)[1][0])

    def single_step(self, error: float) -> tuple[FloatArray, FloatArray]:
        """The adjusted p-value of each comparison next to all others, and the critical value that it was compared with (comparisons,)."""
        p = np.array([self.exceeded(0, float(z)) for z in self.z])
        return np.maximum(p, _p_of(self.z))[self.place], np.full(len(self.z), self.critical(0, error))

    def left(self, error: float) -> float:
        """The part of an error that comparisons marked in a single step leave to others: all of it if every comparison is marked.

        It is what the others, were none different from zero, would not use (Dmitrienko, Tamhane and Wiens 2008, Biometrical J 50:667).
        """
        critical = self.critical(0, error)
        return max(error - self.exceeded(int((self.z >= critical).sum()), critical), 0.0) if (self.z >= critical).any() else 0.0

    def as_second_step(self, p: FloatArray) -> FloatArray:
        """For p-values in a family that is tested with what this one leaves: the smallest errors at which they are reached."""
        grid = np.unique(np.append(np.linspace(0.0, 8.0, SECOND_STEP_GRID), self.z))[::-1]
        errors = np.array([self.exceeded(0, float(c)) for c in grid])
        marked = np.array([int((self.z >= c).sum()) for c in grid])
        left = np.array([e - self.exceeded(k, float(c)) if k else 0.0 for e, k, c in zip(errors, marked, grid, strict=True)])
        left = np.maximum.accumulate(left)
        place = np.searchsorted(left, p)
        return np.where(place < len(grid), np.maximum(np.append(errors, 1.0)[place], p), 1.0)

    def step_down(self, error: float) -> tuple[FloatArray, FloatArray]:
        """The adjusted p-value of each comparison, and the critical value that it was compared with (comparisons,)."""
        p = np.array([self.exceeded(stage, float(z)) for stage, z in enumerate(self.z)])
        p_adjusted = np.maximum.accumulate(np.maximum(p, _p_of(self.z)))
        whole = self.critical(0, error)
        stages = [k for k, z in enumerate(self.z) if p_adjusted[k] <= error + 1e-12 and z < whole]
        critical = np.full(len(self.z), whole)
        critical[stages] = [min(self.critical(k, error), whole) for k in stages]
        return p_adjusted[self.place], critical[self.place]


def _p_of(z: FloatArray) -> FloatArray:
    """The two-sided p-values of normal variables."""
    return np.asarray(np.vectorize(lambda each: erfc(each / sqrt(2)), otypes=[np.float64])(z))


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


def shrunken_gaps(groups: pd.DataFrame, gaps: pd.DataFrame, level: float = 0.95) -> pd.DataFrame:
    """One row per gap: its value, the shrunken value and the interval of the latter; NaN if the attribute has fewer than four groups.

    `groups` and `gaps` are the frames of an audit with intervals of this level.
    """
    rows = []
    for attribute, frame in groups.groupby("attribute", sort=False):
        place = {str(name): k for k, name in enumerate(frame.index)}
        shrunken = {}
        for rate in ESTIMATED_RATES:
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
