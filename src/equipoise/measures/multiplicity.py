"""Multiple comparisons: Holm-adjusted p-values and simultaneous intervals control false findings over the whole audit.

An audit of ten groups and six measures has 54 gaps; even without any difference, some of their 95 % intervals exclude zero. The family is
all gaps of an audit that have a value, over all attributes and all labels. A measure that mirrors another (fnr_gap is -eod, tnr_gap is
-fpr_gap) is the same comparison and counts once.

- p_adjusted: Holm's step-down adjustment of the permutation p-values. The probability of any false `clear` gap is at most 1 - level,
  whatever the dependence.
- simultaneous intervals: all of them cover with probability `level`. Critical values are those of the largest studentised gap (max-T), from
  the correlations of the gaps of an attribute; attributes and labels count as independent, which is conservative. A cell of fewer than 30
  patients is too small to studentise: its gaps get Bonferroni's share of the error instead, and intervals for small samples.
- shrunken gaps of many small groups, by parametric empirical Bayes (Morris 1983, J Am Stat Assoc 78:47): the rates of the groups of an
  attribute vary around a common mean with a variance that is estimated from them (Paule and Mandel 1982). The largest of many noisy gaps is
  usually an overestimate; shrunken gaps are more accurate on average, but biased towards zero for a group that really differs. They are
  reported next to the plain gaps, labelled as such, and never replace them.
"""

from collections.abc import Callable, Sequence
from statistics import NormalDist

import numpy as np
import numpy.typing as npt
import pandas as pd

from equipoise.data import generator
from equipoise.measures.cells import FloatArray, IntArray
from equipoise.measures.gaps import MEASURES, is_quotient, signature, terms

NORMAL_DRAWS = 20_000  # of the maximum of correlated standard normal variables
LARGEST_BLOCK = 400  # gaps of an attribute; with more, they are bounded as if independent (Sidak 1967)


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
    signatures = {measure: signature(measure) for measure in gaps["measure"].unique()}
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


def critical_levels(gaps: pd.DataFrame, correlations: Sequence[tuple[int, Callable[[], FloatArray]]], level: float = 0.95) -> FloatArray:
    """The level of each gap's pointwise interval at which all of them cover with probability `level`; NaN for NaN gaps.

    `correlations` has, for each attribute in the order of the rows, the number of gaps and a function that returns their correlations.
    """
    comparison = comparisons_of(gaps)
    few = gaps["few"].to_numpy(dtype=bool)
    small = np.unique(comparison[few & (comparison >= 0)])
    large = np.setdiff1d(comparison[comparison >= 0], small)
    count = len(small) + len(large)
    levels = np.full(len(gaps), np.nan)
    if not count:
        return levels
    share = (1 - level) / count  # of the error probability, for each gap
    levels[comparison >= 0] = 1 - share
    if len(large):
        blocks: list[FloatArray | int] = []
        start = 0
        for size, matrix in correlations:
            rows = np.arange(start, start + size)
            start += size
            _, first = np.unique(comparison[rows], return_index=True)
            first = np.sort(first[np.isin(comparison[rows][first], large)])
            blocks.append(matrix()[np.ix_(first, first)] if len(first) <= LARGEST_BLOCK else len(first))
        z = max_t(blocks, 1 - share * len(large))
        levels[np.isin(comparison, large)] = 2 * NormalDist().cdf(z) - 1
    return levels


def max_t(correlations: Sequence[FloatArray | int], level: float, seed: int = 0) -> float:
    """The critical value of the largest |z| of standard normal variables with these correlations, in independent blocks.

    A block given as a number is that many variables of unknown correlation, bounded as if independent.

    >>> apart, together = np.eye(10), np.full((10, 10), 0.99) + 0.01 * np.eye(10)
    >>> 2.75 < max_t([apart], 0.95) < 2.85, 1.95 < max_t([together], 0.95) < 2.15
    (True, True)
    """
    size = sum(block if isinstance(block, int) else len(block) for block in correlations)
    bound = NormalDist().inv_cdf((1 + level ** (1 / max(size, 1))) / 2)  # Sidak: conservative
    matrices = [block for block in correlations if not isinstance(block, int)]
    if len(matrices) < len(correlations):
        return bound
    rng = generator(seed, "max-T")
    largest = np.zeros(NORMAL_DRAWS)
    for matrix in matrices:
        if not len(matrix):
            continue
        values, vectors = np.linalg.eigh(matrix)
        root = vectors * np.sqrt(np.maximum(values, 0.0))
        largest = np.maximum(largest, np.abs(rng.standard_normal((NORMAL_DRAWS, len(matrix))) @ root.T).max(1))
    return min(float(np.quantile(largest, level)), bound)


LEAST_GROUPS = 4  # with fewer, the variance between groups cannot be estimated
HALVINGS = 60
COLUMNS = ["measure", "attribute", "group", "reference", "value", "shrunken", "low", "high"]


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
            measure = str(row.measure)
            signed = {MEASURES[measure].rate: 1.0} if is_quotient(measure) else terms(measure)
            k, reference = place[str(row.group)], place[str(row.reference)]
            value, variance = 0.0, 0.0
            for rate, sign in signed.items():
                mean, error = shrunken["selection_rate" if rate == "selection" else rate]
                value += sign * (mean[k] - mean[reference])
                variance += sign**2 * (error[k] ** 2 + error[reference] ** 2)
            half = NormalDist().inv_cdf((1 + level) / 2) * variance**0.5
            known = not np.isnan(row.value)
            ends = (value, value - half, value + half) if known else (np.nan,) * 3
            rows.append((measure, attribute, row.group, row.reference, row.value, *ends))
    return pd.DataFrame(rows, columns=COLUMNS)


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
    variance = np.maximum(((high - low)[known] / (2 * NormalDist().inv_cdf((1 + level) / 2))) ** 2, 1e-12)
    between = _variance_between(q, variance)
    weight = 1 / (variance + between)
    mean = (weight * q).sum() / weight.sum()
    share = (count - 3) / (count - 1) * variance * weight  # of the distance from the mean that shrinkage removes
    shrunken[known] = q - share * (q - mean)
    error[known] = np.sqrt(variance * (1 - (count - 1) / count * share) + 2 / (count - 3) * (share * (q - mean)) ** 2)
    return shrunken, error


def _variance_between(q: FloatArray, variance: FloatArray) -> float:
    """The variance between groups at which the weighted sum of squares equals its expectation; 0 if it is always smaller."""

    def excess(between: float) -> float:
        weight = 1 / (variance + between)
        mean = (weight * q).sum() / weight.sum()
        return float((weight * (q - mean) ** 2).sum() - (len(q) - 1))

    low, high = 0.0, float((q.max() - q.min()) ** 2) + 1e-12
    if excess(low) <= 0:
        return 0.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) > 0 else (low, middle)
    return high
