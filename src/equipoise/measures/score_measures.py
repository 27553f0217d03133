"""Measures of the scores themselves, whatever the threshold in use: AUROC, average precision, operating points, decision curves,
calibration error and, from `calibration`, the Brier score, intercept and slope.

The interval of AUROC is Newcombe's, whose variance is that of a model in which both labels have similar spreads. It takes effective numbers
of positives and negatives: both numbers divided by the larger of two design effects, at least 1: the variance between patients (DeLong's
placements, summed by patient) relative to the same variance of independent rows, and relative to the variance of the model. The
interval is thus never narrower than the observed variance implies, as it would be with unequal spreads and a rare label.

Operating points: the ROC curve of a group is read at the given point, by linear interpolation. Two rates are uncertain, each with a Wilson
interval of its effective sample size: the rate that is read, and, since the threshold comes from the same rows, the rate at which it is
read. The two labels have different rows, so both distances are added like standard errors (Zou and Donner 2008).

Decision curves: at the threshold t, a false positive costs t / (1 - t) of the value of a true positive (Vickers and Elkin 2006):

    net benefit = true positives / n - false positives / n * t / (1 - t)

It is compared with deciding all patients positive (treat_all) and none (treat_none, which is 0). The interval combines the Wilson intervals
of both proportions (both are parts of one n, so they are negatively correlated). With several rows per patient or unequal weights, n is
the effective number of rows. The threshold is treated as given, not as chosen on these rows.

The binned calibration error is the mean distance between score and prevalence over ten bins. It is positive even for a calibrated model,
so it is reported with the band in which 95 % of calibrated models with the same scores would lie.

These take many passes over the rows, so those of a large group are estimated from `SAMPLED_ROWS`, which determine a share of one half to
within 0.002. Brier score and calibration in the large are means over rows: they use all rows, by sums over patients, with the intervals of
large samples.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from equipoise.data import Attribute, FloatArray, IntArray, Scores, generator, splitmix64
from equipoise.measures.audit_spec import AuditSpec
from equipoise.measures.calibration import ENOUGH, SHARE_BINS, TOO_FEW, ScoredRows, brier, expit, logit, recalibration_limits
from equipoise.measures.cells import distinct_keys, kish, ratio, sums_at
from equipoise.measures.intervals import Limits, auroc_design_effect, auroc_interval, fewer_clusters, quantile, wilson
from equipoise.measures.measure_table import OVERALL_SCORE_MEASURES, Ratio
from equipoise.measures.moments import LEAST_REST, Clusters, Columns, Moments, concatenate_sums, moments_of, sum_columns

SAME_POSITION = 1e-12  # positions on a curve are sums of shares: the last bits are rounding
CURVE_COLUMNS = ["attribute", "group", "threshold", "net_benefit", "low", "high", "treat_all", "treat_none"]
RESAMPLES = 999  # of the labels of a calibrated model
SCORE_MEASURES = (*OVERALL_SCORE_MEASURES, "sensitivity_at_specificity", "specificity_at_sensitivity")  # each with an interval
ALL_ROWS = "all"  # the attribute and the group of all rows together, including rows without a group
RANK_MEASURES = ("auroc", "average_precision")  # measures of the order of the scores
SAMPLED_ROWS = 200_000  # expected in the sample of a larger group; smaller groups are used in full


@dataclass(frozen=True, eq=False)
class Ranks:
    """The weight of the negatives and positives at each distinct score, or in each bin of scores, in ascending order (..., bins)."""

    negative: FloatArray
    positive: FloatArray

    @cached_property
    def auroc(self) -> FloatArray:
        """The probability that a positive scores above a negative, ties counting half (...); NaN unless both labels occur."""
        below = np.cumsum(self.negative, axis=-1) - self.negative / 2
        return ratio(np.einsum("...i,...i->...", self.positive, below), self.positive.sum(-1) * self.negative.sum(-1))

    @cached_property
    def decided(self) -> tuple[FloatArray, FloatArray]:
        """The weight of the positives and of the negatives that score at least as high as each bin (..., bins)."""
        hits, alarms = (np.cumsum(side[..., ::-1], axis=-1)[..., ::-1] for side in (self.positive, self.negative))
        return hits, alarms

    @cached_property
    def average_precision(self) -> FloatArray:
        """The precision at each distinct score, averaged with the sensitivity gained there (...); NaN without positives."""
        hits, alarms = self.decided
        precision = np.nan_to_num(ratio(hits, hits + alarms))
        return ratio(np.einsum("...i,...i->...", self.positive, precision), self.positive.sum(-1))

    def influence(self, measure: str) -> FloatArray:
        """The influence of a row of each label and bin on a measure, centred (..., 2, bins), to first order.

        That on AUROC are the placements of DeLong, DeLong and Clarke-Pearson 1988. The sum of the squares is the variance of the measure;
        those of one patient are added before they are squared (Obuchowski 1997).
        """
        q, p = self.negative, self.positive
        negatives, positives = q.sum(-1, keepdims=True), p.sum(-1, keepdims=True)
        if measure == "auroc":
            above, below = positives - np.cumsum(p, axis=-1) + p / 2, np.cumsum(q, axis=-1) - q / 2
            area = self.auroc[..., None]
            sides = ratio(ratio(above, positives) - area, negatives), ratio(ratio(below, negatives) - area, positives)
        else:
            hits, alarms = self.decided
            decided = hits + alarms
            precision = np.nan_to_num(ratio(hits, decided)) - self.average_precision[..., None]
            raised, lowered = (ratio(np.cumsum(np.nan_to_num(ratio(p * side, decided**2)), axis=-1), positives) for side in (alarms, hits))
            sides = -lowered, ratio(precision, positives) + raised
        return np.nan_to_num(np.stack(sides, axis=-2))

    def unclustered(self, measure: str) -> FloatArray:
        """The variance of a measure if all rows are independent (...)."""
        variance: FloatArray = (np.stack([self.negative, self.positive], axis=-2) * self.influence(measure) ** 2).sum((-2, -1))
        return variance


class Ranking:
    """Rows of both labels sorted by score once, for AUROC and average precision with cluster-robust limits, and for many weightings.

    `units` are the patients of the rows (codes 0 .. P-1); without them, each row is its own.

    >>> float(Ranking([0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1]).ranks().auroc)
    0.75
    """

    def __init__(self, score: npt.ArrayLike, y: npt.ArrayLike, units: IntArray | None = None, weight: FloatArray | None = None) -> None:
        values, self.y = np.asarray(score, dtype=np.float64), np.asarray(y, dtype=np.int64)
        self.units, self.weight = np.arange(len(values)) if units is None else units, np.ones(len(values)) if weight is None else weight
        self.order = np.argsort(values)
        new = np.append(True, np.diff(values[self.order]) != 0)[: len(values)]  # whether a score is higher than the one before
        self.starts, self.place = np.flatnonzero(new), np.empty(len(values), np.int64)
        self.place[self.order] = np.cumsum(new) - 1  # the bin of each score
        self.weighted = self.ranks(self.weight)
        self.clusters = Clusters.of(self.y, 2, self.units)  # by label
        self.effective = kish(self.clusters.sum(self.weight), self.clusters.squares(self.weight))  # patients of each label

    def ranks(self, weight: npt.ArrayLike | None = None) -> Ranks:
        """The weight of both labels at each distinct score (..., bins), for weights of the rows (..., n); without weights, their number."""
        w = np.ones(len(self.order)) if weight is None else np.asarray(weight, dtype=np.float64)
        ordered, positive = w[..., self.order], self.y[self.order] == 1
        negatives = np.add.reduceat(np.where(positive, 0.0, ordered), self.starts, axis=-1)
        return Ranks(negatives, np.add.reduceat(np.where(positive, ordered, 0.0), self.starts, axis=-1))

    def by_patient(self, influence: FloatArray) -> FloatArray:
        """The sum of the influences (2, bins) of the rows of each patient (patients,)."""
        return np.bincount(self.units, self.weight * influence[self.y, self.place]).astype(np.float64, copy=False)

    def variance(self, influence: FloatArray) -> tuple[float, float]:
        """The variance of a measure between patients, from the influence of each row, and its degrees of freedom."""
        clusters, patients = self.clusters, self.clusters.patients()
        rows = self.weight * influence[self.y, self.place]
        if np.bincount(self.units).max() == 1 and (self.effective > patients * (1 - 1e-9)).all():
            return float((rows**2).sum()), np.inf
        own, mass = clusters.by_patient(rows), clusters.by_patient(self.weight)
        share = mass / clusters.sum(self.weight)[clusters.group]
        of_rows = np.sqrt(ratio(clusters.sum(rows**2), clusters.sum(self.weight**2)))
        of_rows = np.where(of_rows > 0, of_rows, 1.0)
        degrees, by_label = clusters.degrees(own, self.weight * of_rows[clusters.code]), np.nan_to_num(clusters.spread(own, share))
        total = float((by_label**2 / degrees).sum())
        raised = own / np.maximum(1 - share, LEAST_REST)  # a patient may have rows of both labels
        by_patient = raised if clusters.unit is None else np.bincount(clusters.unit, raised)
        count = max(len(np.unique(self.units)), 2)
        variance = float((by_patient**2).sum()) * (count - 1) / count
        return variance, float(by_label.sum() ** 2 / total) if total > 0 else float(degrees.min())

    def auroc(self, level: float) -> tuple[float, float, float]:
        """AUROC with its limits (Newcombe's method 5)."""
        area, sizes = float(self.weighted.auroc), self.effective
        unclustered = float(self.ranks().unclustered("auroc"))
        variance, degrees = self.variance(self.weighted.influence("auroc"))
        if unclustered > 0 and 0 < area < 1:
            rows = self.clusters.sum(1.0)
            sizes = rows / auroc_design_effect(area, variance, unclustered, *rows)
        negatives, positives = fewer_clusters(sizes, degrees, level).tolist()
        low, high = auroc_interval(area, positives, negatives, level)
        return area, float(low), float(high)

    def average_precision(self, level: float) -> tuple[float, float, float]:
        """Average precision with the limits of a proportion whose variance is that of average precision between patients.

        Average precision is biased upwards in small samples, because each positive counts among those that score no lower than itself. The
        lower limit therefore allows for the value in which no positive counts for its own precision.
        """
        value, size = float(self.weighted.average_precision), float(self.effective[1])
        variance, degrees = self.variance(self.weighted.influence("average_precision"))
        positive = np.flatnonzero(self.y == 1)
        if 0 < value < 1 and variance > 0:
            size = min(len(positive), value * (1 - value) / variance)
        unbiased = value
        if len(positive) > 1:
            w, total = self.weight[positive], float(self.weighted.positive.sum())
            hits, alarms = (side[self.place[positive]] for side in self.weighted.decided)
            others = (hits - w) * total / (total - w)
            precision = np.divide(others, others + alarms, out=np.ones_like(others), where=others + alarms > 0)
            unbiased = min(value, float((w * precision).sum() / total))
        low, high = wilson([unbiased, value], fewer_clusters(size, degrees, level), level)
        return value, float(low[0]), float(high[1])


def aurocs(scores: Scores, attribute: Attribute, units: IntArray, level: float) -> Limits:
    """The AUROC of each group with its interval."""
    order = np.argsort(attribute.codes, kind="stable")
    rows_by_group = np.split(order, np.searchsorted(attribute.codes[order], np.arange(len(attribute.levels) + 1)))[1:-1]
    found = np.full((len(rows_by_group), 4), np.nan)
    for k, rows in enumerate(rows_by_group):  # one group at a time, to save memory
        found[k, 3] = 0.0
        if len(rows):
            patients = distinct_keys(units[rows], int(units.max(initial=0)) + 1)[1]
            ranked = Ranking(scores.rank[rows], scores.y[rows], patients, None if scores.weight is None else scores.weight[rows])
            found[k] = *ranked.auroc(level), ranked.clusters.patients().min()  # patients of the rarer label
    return Limits(*found.T)


def operating_points(rows: ScoredRows, specificity: float, sensitivity: float, level: float, least: int) -> tuple[Limits, Limits]:
    """The sensitivity of each group at this specificity, and its specificity at this sensitivity."""
    clusters, known, curves = rows.clusters, rows.rarer >= least, _roc_curves(rows)
    units = np.arange(len(clusters.code)) if clusters.place is None else clusters.place
    found = []
    for at, rates in ((1 - specificity, ("fpr", "tpr")), (sensitivity, ("tpr", "fpr"))):  # the second rate where the first is `at`
        value, cut = np.full(clusters.groups, np.nan), np.zeros(clusters.groups)
        for k in np.flatnonzero(known).tolist():
            x, height, score = (curves[k][name] for name in (*rates, "score"))
            first = int(np.searchsorted(x, at - SAME_POSITION))
            last = int(np.searchsorted(x, at + SAME_POSITION, side="right"))
            cut[k] = score[min(first, len(score) - 1)]
            if first < last:  # points at exactly this position: the lower or the upper end of a vertical segment
                value[k] = height[first] if rates[1] == "fpr" else height[last - 1]
            else:
                value[k] = np.interp(at, x, height)
        decided = (rows.rank >= cut[clusters.code]).astype(np.float64)
        sums = moments_of(decided, rows.y, clusters.code, clusters.groups, units, rows.weight)
        size_at, size = (fewer_clusters(sums[rate].size, sums[rate].degrees, level) for rate in rates)
        limits_at, limits, ends = wilson(np.where(known, at, np.nan), size_at, level), wilson(value, size, level), []
        for limit_at, limit, sign in zip(limits_at, limits, (-1, 1), strict=True):
            there = value.copy()  # the height of the curve at the limit of the first rate
            for k in np.flatnonzero(known).tolist():
                # The curve through the midpoints of its steps, the i-th of m at i / (m + 1): the score of a new patient exceeds the highest
                # of m scores with probability 1 / (m + 1), so few rows leave both ends uncertain.
                x, height = (curves[k][name] for name in rates)
                steps = np.flatnonzero(np.diff(x) > 0)
                middle = np.concatenate([[0.0], ((x[steps] + x[steps + 1]) / 2 * size_at[k] + 0.5) / (size_at[k] + 1), [1.0]])
                mean_height = np.concatenate([[0.0], (height[steps] + height[steps + 1]) / 2, [1.0]])
                there[k] = np.interp(limit_at[k], middle, mean_height)
            ends.append(np.clip(value + sign * np.hypot(limit - value, there - value), 0.0, 1.0))
        found.append(Limits(value, ends[0], ends[1], rows.rarer, tuple(ENOUGH if enough else TOO_FEW for enough in known)))
    tpr, fpr = found
    return tpr, replace(fpr, value=1 - fpr.value, low=1 - fpr.high, high=1 - fpr.low)


def _roc_curves(rows: ScoredRows) -> list[dict[str, FloatArray]]:
    """The ROC curve of each group, from no patient decided positive to all, with the lowest score (or logit) decided positive."""
    clusters = rows.clusters
    order = np.argsort(-rows.rank)
    narrow = clusters.code.astype(np.int16) if clusters.groups < 2**15 else clusters.code  # NumPy sorts 16-bit integers by radix
    order = order[np.argsort(narrow[order], kind="stable")]
    curves = []
    for first, last in pairwise(np.searchsorted(clusters.code[order], np.arange(clusters.groups + 1))):
        own = order[first:last]
        ends = np.flatnonzero(np.append(np.diff(rows.rank[own]) != 0, True)[: len(own)])
        curve = {"score": np.append(np.inf, rows.rank[own][ends])}
        for label, name in enumerate(("fpr", "tpr")):
            sums = np.append(0.0, np.cumsum(rows.weight[own] * (rows.y[own] == label))[ends])
            curve[name] = sums / sums[-1] if sums[-1] > 0 else sums
        curves.append(curve)
    return curves


def decision_curves(
    rows: ScoredRows, attribute: str, levels: Sequence[str], thresholds: Sequence[float], level: float, least: int
) -> pd.DataFrame:
    """One row per group and threshold; a group with too few patients has no net benefit."""
    cuts, clusters = np.asarray(thresholds, dtype=np.float64), rows.clusters
    odds, sums = cuts / (1 - cuts), []
    for cut, price in zip(cuts, odds.tolist(), strict=True):
        decided = (rows.score >= cut).astype(np.float64)
        columns = [np.ones(len(decided)), decided * rows.y, decided * (1 - rows.y)]
        sums.append(sum_columns(NET_BENEFIT, columns, clusters, rows.weight).signed({"true": 1.0, "false": -price}))
    benefit, below, above = (end.reshape(len(cuts), -1) for end in concatenate_sums(sums).limits(level))
    share = ratio(clusters.sum(rows.weight * rows.y), clusters.sum(rows.weight))
    treat_all = share - (1 - share) * odds[:, None]
    enough = rows.rarer >= least
    known = [np.where(enough, v, np.nan).T.ravel() for v in (benefit, below, above, treat_all)]  # by group, then by threshold
    groups = np.repeat(np.asarray(levels, dtype=object), len(cuts))
    return pd.DataFrame(
        dict(zip(CURVE_COLUMNS, (attribute, groups, np.tile(cuts, clusters.groups), *known, 0.0), strict=True)), columns=CURVE_COLUMNS
    )


def binned_error(rows: ScoredRows, level: float, seed: int, least: int = 1) -> Limits:
    """The calibration error of each group over ten bins of equal width, with the band in which it would lie for a calibrated model.

    Labels are resampled from the scores, for all rows of a bin at once: of n rows with mean score p, Binomial(n, p) are positive. With
    several rows per patient or unequal weights, n is the effective number of rows divided by the design effect of the residuals.
    Bins are then correlated like the sums of residuals of the same patients, by reordering the resamples (Iman and Conover 1982).
    """
    clusters, w, bins = rows.clusters, rows.weight, SHARE_BINS
    place = np.minimum((rows.score * bins).astype(np.int64), bins - 1)
    cell, residual = clusters.code * bins + place, w * (rows.score - rows.y)
    weight, squared, mean, error = (
        sums_at(cell, values, clusters.groups * bins).reshape(-1, bins) for values in (w, w**2, w * rows.score, residual)
    )
    total = clusters.sum(w)
    value = ratio(np.abs(error).sum(-1), total)
    unclustered = clusters.sum(residual**2)
    clustered, products = unclustered, None
    if clusters.place is not None:  # sums by patient and bin
        sums = sums_at(clusters.place * bins + place, residual, len(clusters.group) * bins).reshape(-1, bins)
        products = np.zeros((clusters.groups, bins, bins))
        for a in range(bins):
            for b in range(a + 1):
                products[:, a, b] = products[:, b, a] = sums_at(clusters.group, sums[:, a] * sums[:, b], clusters.groups)
        clustered = np.trace(products, axis1=1, axis2=2)
    effect = np.maximum(np.nan_to_num(ratio(clustered, unclustered), nan=1.0), 1.0)
    size = np.nan_to_num(kish(weight, squared)) / effect[:, None]
    share = np.clip(np.nan_to_num(ratio(mean, weight)), 0.0, 1.0)
    n = np.maximum(np.round(size), (weight > 0).astype(float)).astype(np.int64)
    rng = generator(seed, "calibrated labels")
    drawn = rng.binomial(n, share, (RESAMPLES, clusters.groups, bins))
    if products is not None:
        values, vectors = np.linalg.eigh(products)
        root = (vectors * np.sqrt(np.maximum(values, 0.0))[:, None, :]).astype(np.float32)
        normal = root @ rng.standard_normal((*products.shape[:-1], RESAMPLES), dtype=np.float32)  # (groups, bins, draws)
        ordered = np.sort(np.moveaxis(drawn, 0, -1).astype(np.int32), axis=-1)
        reordered = np.empty_like(ordered)  # the ranks of the draws are those of the normal variables
        np.put_along_axis(reordered, normal.argsort(axis=-1), ordered, axis=-1)
        drawn = np.moveaxis(reordered, -1, 0).astype(np.int64)
    simulated = ratio((np.abs(share - drawn / np.maximum(n, 1)) * weight).sum(-1), total)
    low, high = np.quantile(simulated, [(1 - level) / 2, 1 - (1 - level) / 2], axis=0)
    patients = clusters.patients()
    known = (patients >= least) & ~np.isnan(value)
    value, low, high = (np.where(known, each, np.nan) for each in (value, low, high))
    return Limits(value, low, high, patients)


MeasuredRows = tuple[
    ScoredRows, dict[str, Limits]
]  # rows of the groups of one attribute, or a sample of them, and the limits of their measures


def sample_of(scores: Scores, attribute: Attribute, units: IntArray) -> tuple[Scores, Attribute, IntArray]:
    """A random sample of whole patients of each group with more than `SAMPLED_ROWS` rows, with all rows of the other groups."""
    counts = np.bincount(attribute.codes[attribute.codes >= 0], minlength=len(attribute.levels))
    if (counts <= SAMPLED_ROWS).all():
        return scores, attribute, units
    share = np.append(SAMPLED_ROWS / np.maximum(counts, SAMPLED_ROWS), 0.0)  # the last is of rows without a group
    uniform = splitmix64(np.arange(int(units.max()) + 1, dtype=np.uint64)).astype(np.float64) / 2.0**64  # one number per patient
    rows = np.flatnonzero(uniform[units] < share[attribute.codes])
    groups, patients = attribute.take(rows), distinct_keys(units[rows], int(units.max()) + 1)[1]
    return replace(scores.take(rows), attributes=(groups,)), groups, patients


NET_BENEFIT: Columns = {  # columns: rows, true positives, false positives
    "true": Ratio((0, 1, 0), (1, 0, 0)),
    "false": Ratio((0, 0, 1), (1, 0, 0)),
}
LOSS_RATIOS: Columns = {  # columns: rows, squared errors, errors
    "brier": Ratio((0, 1, 0), (1, 0, 0)),
    "calibration_in_the_large": Ratio((0, 0, 1), (1, 0, 0)),
}


def losses_of(
    score: npt.NDArray[Any], y: IntArray, codes: IntArray, groups: int, units: IntArray, weight: FloatArray | None = None
) -> Moments:
    """The sums of squared errors and errors of scores, by group and patient."""
    error = score - y
    return sum_columns(LOSS_RATIOS, [np.ones(len(error)), error**2, error], Clusters.of(codes, groups, units), weight)


def estimate_scores(scores: Scores, attribute: Attribute, units: IntArray, spec: AuditSpec, losses: Moments | None = None) -> MeasuredRows:
    """The measures of the scores of each group; if they are a sample, Brier score and calibration in the large from the sums of all rows.

    The limits of the Brier score from `losses` are computed on the logit scale, which keeps it between 0 and 1.
    """
    level, least = spec.level, spec.min_patients
    rows = ScoredRows.of(scores.score, scores.y, attribute.codes, len(attribute.levels), units, scores.weight, scores.logit)
    limits = dict(zip(OVERALL_SCORE_MEASURES, (brier(rows, level, least), *recalibration_limits(rows, level, least)), strict=True))
    if losses is None:
        return rows, limits
    patients, total = losses.units[:, 0], losses.total[:, 0]
    replaced = (rows.clusters.sum(1.0) < losses.rows[:, 0]) & (patients >= least)
    for k, name in enumerate(LOSS_RATIOS, 1):
        value = ratio(losses.total[:, k], total)
        squares = losses.second[:, k, k] - 2 * value * losses.second[:, k, 0] + value**2 * losses.second[:, 0, 0]
        half = quantile(level) * np.sqrt(np.maximum(squares, 0.0)) / np.where(total > 0, total, np.nan)
        low, high = value - half, value + half
        if name == "brier":
            inside = (value > 0) & (value < 1)
            p = np.where(inside, value, 0.5)
            low, high = (np.where(inside, expit(logit(p) + sign * half / (p * (1 - p))), value) for sign in (-1, 1))
        limits[name] = replace(Limits(value, low, high, patients).where(replaced, limits[name]), why=limits[name].why)
    return rows, limits
