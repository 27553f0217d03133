"""Measures of the scores themselves, whatever the threshold in use: operating points, decision curves, calibration error and, from
`calibration`, the Brier score, intercept and slope.

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

These take many passes over the rows, so those of a large group are estimated from `SAMPLED` rows, which determine a share of one half to
within 0.002. Brier score and calibration in the large are means over rows: they use all rows, by sums over patients, with the intervals of
large samples.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from equipoise.data import Attribute, Scores, generator, splitmix64
from equipoise.measures.audit_spec import AuditSpec
from equipoise.measures.calibration import ENOUGH, REASONS, SHARE_BINS, TOO_FEW, Scored, brier, expit, logit, recalibrated
from equipoise.measures.cells import FloatArray, IntArray, grouped, kish, ratio, sums_at
from equipoise.measures.estimates import INSUFFICIENT, Estimate, ScoreMeasures
from equipoise.measures.gaps import OVERALL_SCORE_MEASURES, Ratio
from equipoise.measures.intervals import Limits, combined, fewer_clusters, quantile, wilson
from equipoise.measures.moments import Columns, Moments, moments_of, sum_columns

CLOSE = 1e-12  # positions on a curve are sums of shares: the last bits are rounding
CURVES = ["attribute", "group", "threshold", "net_benefit", "low", "high", "treat_all", "treat_none"]
RESAMPLES = 999  # of the labels of a calibrated model
SCORE_MEASURES = (*OVERALL_SCORE_MEASURES, "sensitivity_at_specificity", "specificity_at_sensitivity")  # each with an interval
SAMPLED_MEASURES = ("calibration_intercept", "calibration_slope")  # those of all rows together that a sample of many rows is used for
ALL_ROWS = "all"  # the attribute and the group of all rows together, including rows without a group
SAMPLED = 200_000  # expected rows in the sample of a larger group; smaller groups are used in full


def operating_points(rows: Scored, specificity: float, sensitivity: float, level: float, least: int) -> tuple[Limits, Limits]:
    """The sensitivity of each group at this specificity, and its specificity at this sensitivity."""
    curves = _curves(rows)
    tpr = _read_curves(rows, curves, 1 - specificity, ("fpr", "tpr"), level, least)
    fpr = _read_curves(rows, curves, sensitivity, ("tpr", "fpr"), level, least)
    return tpr, replace(fpr, value=1 - fpr.value, low=1 - fpr.high, high=1 - fpr.low)


def _read_curves(
    rows: Scored, curves: Sequence[dict[str, FloatArray]], at: float, rates: tuple[str, str], level: float, least: int
) -> Limits:
    """The second rate of each group at the point where the first is `at`."""
    clusters = rows.clusters
    known = rows.rarer >= least
    value, cut = np.full(clusters.groups, np.nan), np.zeros(clusters.groups)
    for k in np.flatnonzero(known).tolist():
        x, height, score = (curves[k][name] for name in (*rates, "score"))
        first, last = int(np.searchsorted(x, at - CLOSE, side="left")), int(np.searchsorted(x, at + CLOSE, side="right"))
        cut[k] = score[min(first, len(score) - 1)]
        if first < last:  # points at exactly this position: the lower or the upper end of a vertical segment
            value[k] = height[first] if rates[1] == "fpr" else height[last - 1]
        else:
            value[k] = np.interp(at, x, height)
    decided = (rows.rank >= cut[clusters.code]).astype(np.float64)
    units = np.arange(len(clusters.code)) if clusters.place is None else clusters.place
    sums = moments_of(decided, rows.y, clusters.code, clusters.groups, units, rows.weight)
    size_at, size = (fewer_clusters(sums[rate].size, sums[rate].degrees, level) for rate in rates)
    ends = []
    for limit_at, limit, sign in zip(wilson(np.where(known, at, np.nan), size_at, level), wilson(value, size, level), (-1, 1), strict=True):
        there = value.copy()  # the height of the curve at the limit of the first rate
        for k in np.flatnonzero(known).tolist():
            there[k] = np.interp(limit_at[k], *_smoothed(curves[k][rates[0]], curves[k][rates[1]], size_at[k]))
        ends.append(np.clip(value + sign * np.hypot(limit - value, there - value), 0.0, 1.0))
    return Limits(value, ends[0], ends[1], rows.rarer, tuple(ENOUGH if enough else TOO_FEW for enough in known))


def _smoothed(x: FloatArray, height: FloatArray, size: float) -> tuple[FloatArray, FloatArray]:
    """The curve through the midpoints of its steps, the i-th of m at i / (m + 1), which extends beyond the outermost scores.

    The score of a new patient exceeds the highest of m scores with probability 1 / (m + 1), so few rows leave both ends uncertain.
    """
    steps = np.flatnonzero(np.diff(x) > 0)
    middle = ((x[steps] + x[steps + 1]) / 2 * size + 0.5) / (size + 1)
    mean_height = (height[steps] + height[steps + 1]) / 2
    return np.concatenate([[0.0], middle, [1.0]]), np.concatenate([[0.0], mean_height, [1.0]])


def _curves(rows: Scored) -> list[dict[str, FloatArray]]:
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
    rows: Scored, attribute: str, levels: Sequence[str], thresholds: Sequence[float], level: float, least: int
) -> pd.DataFrame:
    """One row per group and threshold; a group with too few patients has no net benefit."""
    clusters = rows.clusters
    cuts = np.asarray(thresholds, dtype=np.float64)
    value, size = _proportions(rows, cuts)
    degrees = np.where(clusters.several(), np.maximum(clusters.effective_patients() - 1, 1.0), np.inf)
    low, high = wilson(value, fewer_clusters(size, degrees[:, None], level), level)
    odds = cuts / (1 - cuts)
    a, b = value[..., 0], value[..., 1]
    r = -np.sqrt(np.nan_to_num(ratio(a * b, (1 - a) * (1 - b))))
    correlation = np.stack([np.stack([np.ones_like(r), r], -1), np.stack([r, np.ones_like(r)], -1)], -2)
    signs = np.stack([np.ones_like(odds), -odds], -1)[:, None, :]
    benefit, below, above = combined(signs, value, low, high, correlation)
    share = ratio(clusters.sum(rows.weight * rows.y), clusters.sum(rows.weight))
    treat_all = share - (1 - share) * odds[:, None]
    enough = rows.rarer >= least
    known = [np.where(enough, v, np.nan).T.ravel() for v in (benefit, below, above, treat_all)]  # by group, then by threshold
    groups = np.repeat(np.asarray(levels, dtype=object), len(cuts))
    return pd.DataFrame(dict(zip(CURVES, (attribute, groups, np.tile(cuts, clusters.groups), *known, 0.0), strict=True)), columns=CURVES)


def _proportions(rows: Scored, cuts: FloatArray) -> tuple[FloatArray, FloatArray]:
    """True and false positives per row, and their effective numbers of rows (thresholds, groups, 2): at most all rows; at 0 and 1 a patient
    counts as one row."""
    clusters, w, y = rows.clusters, rows.weight, rows.y
    total, patients, count = (each[:, None] for each in (clusters.sum(w), clusters.patients(), clusters.sum(1.0)))
    squares = clusters.sum(w**2)[:, None]
    # In one pass: the number of thresholds that each score reaches, by group and label; then sums from the highest threshold down.
    cell = (clusters.code * 2 + (1 - y).astype(np.int64)) * (len(cuts) + 1) + np.searchsorted(cuts, rows.score, side="right")
    sums = []
    for values in (w, w**2):
        reached = sums_at(cell, values, clusters.groups * 2 * (len(cuts) + 1)).reshape(clusters.groups, 2, -1)
        sums.append(reached[..., ::-1].cumsum(-1)[..., ::-1][..., 1:].transpose(2, 0, 1))  # (thresholds, groups, 2)
    value = np.nan_to_num(ratio(sums[0], total))
    between = sums[1] * (1 - 2 * value) + value**2 * squares  # sums of squares between patients
    if clusters.place is not None:
        mass = clusters.by_patient(w)
        for t, cut in enumerate(cuts):
            decided = w * (rows.score >= cut)
            for k, positives in enumerate((decided * y, decided * (1 - y))):
                residual = clusters.by_patient(positives) - value[t, clusters.group, k] * mass
                between[t, :, k] = sums_at(clusters.group, residual**2, clusters.groups)
    variance = np.nan_to_num(ratio(between, total**2) * ratio(patients, np.maximum(patients - 1, 0.0)))
    independent = ratio(value * (1 - value), np.maximum(count - 1, 1.0))
    effect = np.maximum(np.where(variance > 0, np.nan_to_num(ratio(variance, independent), nan=1.0), 1.0), 1.0)
    effective = np.minimum(kish(total, clusters.squares(w)[:, None]), kish(total, squares))
    return value, np.where(variance > 0, count / effect, effective)


def binned_error(rows: Scored, level: float, seed: int, least: int = 1) -> Limits:
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
        drawn = _correlated(drawn, products, rng)
    simulated = ratio((np.abs(share - drawn / np.maximum(n, 1)) * weight).sum(-1), total)
    low, high = np.quantile(simulated, [(1 - level) / 2, 1 - (1 - level) / 2], axis=0)
    patients = clusters.patients()
    known = (patients >= least) & ~np.isnan(value)
    value, low, high = (np.where(known, each, np.nan) for each in (value, low, high))
    return Limits(value, low, high, patients)


def _correlated(drawn: IntArray, products: FloatArray, rng: np.random.Generator) -> IntArray:
    """The draws (draws, groups, k), reordered so that their ranks are those of normal variables with these covariances."""
    values, vectors = np.linalg.eigh(products)
    root = (vectors * np.sqrt(np.maximum(values, 0.0))[:, None, :]).astype(np.float32)
    normal = root @ rng.standard_normal((*products.shape[:-1], len(drawn)), dtype=np.float32)  # (groups, k, draws)
    ordered = np.sort(np.moveaxis(drawn, 0, -1).astype(np.int32), axis=-1)
    reordered = np.empty_like(ordered)
    np.put_along_axis(reordered, normal.argsort(axis=-1), ordered, axis=-1)
    return np.moveaxis(reordered, -1, 0).astype(np.int64)


def estimate_scores(scores: Scores, attribute: Attribute, units: IntArray, spec: AuditSpec) -> ScoreMeasures:
    """The measures of the scores of each group."""
    level, least = spec.level, spec.min_patients
    rows = Scored.of(scores.score, scores.y, attribute.codes, len(attribute.levels), units, scores.weight, scores.logit)
    limits = (
        brier(rows, level, least),
        *recalibrated(rows, level, least),
        *operating_points(rows, spec.specificity, spec.sensitivity, level, least),
    )
    return ScoreMeasures(
        dict(zip(SCORE_MEASURES, limits, strict=True)),
        binned_error(rows, level, spec.seed, least),
        decision_curves(rows, attribute.name, attribute.levels, spec.curve_thresholds, level, least),
        rows_by_group(attribute),
    )


def estimate_sampled_scores(scores: Scores, attribute: Attribute, units: IntArray, spec: AuditSpec) -> ScoreMeasures:
    """The measures of the scores of each group, from a sample of large groups."""
    sample = sample_of(scores, attribute, units)
    measures = estimate_scores(*sample, spec)
    if sample[0] is scores:
        return measures
    losses = losses_of(scores.score, scores.y, attribute.codes, len(attribute.levels), units, scores.weight)
    return with_losses(measures, losses, rows_by_group(attribute), spec)


def sample_of(scores: Scores, attribute: Attribute, units: IntArray) -> tuple[Scores, Attribute, IntArray]:
    """A random sample of whole patients of each group with more than `SAMPLED` rows, with all rows of the other groups."""
    counts = rows_by_group(attribute)
    if (counts <= SAMPLED).all():
        return scores, attribute, units
    share = np.append(SAMPLED / np.maximum(counts, SAMPLED), 0.0)  # the last is of rows without a group
    uniform = splitmix64(np.arange(int(units.max()) + 1, dtype=np.uint64)).astype(np.float64) / 2.0**64  # one number per patient
    rows = np.flatnonzero(uniform[units] < share[attribute.codes])
    groups, patients = attribute.take(rows), grouped(units[rows], int(units.max()) + 1)[1]
    return replace(scores.take(rows), attributes=(groups,)), groups, patients


def rows_by_group(attribute: Attribute) -> IntArray:
    """The number of rows of each group (groups,)."""
    return np.bincount(attribute.codes[attribute.codes >= 0], minlength=len(attribute.levels))


LOSSES: Columns = {  # columns: rows, squared errors, errors
    "brier": Ratio((0, 1, 0), (1, 0, 0)),
    "calibration_in_the_large": Ratio((0, 0, 1), (1, 0, 0)),
}


def losses_of(
    score: npt.NDArray[Any], y: IntArray, codes: IntArray, groups: int, units: IntArray, weight: FloatArray | None = None
) -> Moments:
    """The sums of squared errors and errors of scores, by group and patient."""
    error = score - y
    return sum_columns(LOSSES, [np.ones(len(error)), error**2, error], codes, groups, units, weight)


def with_losses(measures: ScoreMeasures, losses: Moments, rows: npt.NDArray[Any], spec: AuditSpec) -> ScoreMeasures:
    """The measures of a sample, with Brier score and calibration in the large from all `rows` of the groups that were sampled.

    The limits of the Brier score are computed on the logit scale, which keeps it between 0 and 1.
    """
    limits, patients, total = dict(measures.limits), losses.units[:, 0], losses.total[:, 0]
    replaced = (measures.rows < rows) & (patients >= spec.min_patients)
    for k, name in enumerate(LOSSES, 1):
        value = ratio(losses.total[:, k], total)
        squares = losses.second[:, k, k] - 2 * value * losses.second[:, k, 0] + value**2 * losses.second[:, 0, 0]
        half = quantile(spec.level) * np.sqrt(np.maximum(squares, 0.0)) / np.where(total > 0, total, np.nan)
        low, high = value - half, value + half
        if name == "brier":
            inside = (value > 0) & (value < 1)
            p = np.where(inside, value, 0.5)
            low, high = (np.where(inside, expit(logit(p) + sign * half / (p * (1 - p))), value) for sign in (-1, 1))
        limits[name] = replace(Limits(value, low, high, patients).where(replaced, limits[name]), why=limits[name].why)
    return replace(measures, limits=limits)


def overall_measures(measures: ScoreMeasures, rows: int, names: Collection[str]) -> dict[str, Estimate]:
    """Those of the named measures that are estimated for all rows together, with a note if they come from a sample of the rows."""
    sampled = f"from a random sample of {int(measures.rows[0]):,} of {rows:,} rows (whole patients)" if measures.rows[0] < rows else ""
    estimates = {}
    for name in (name for name in OVERALL_SCORE_MEASURES if name in names):
        limits = measures.limits[name]
        note = f"{INSUFFICIENT}: {REASONS[limits.why[0]]}" if limits.why[0] else sampled if name in SAMPLED_MEASURES else ""
        estimates[name] = Estimate(float(limits.value[0]), float(limits.low[0]), float(limits.high[0]), note)
    return estimates


def everyone(rows: int) -> Attribute:
    """An attribute with one group that holds all rows."""
    return Attribute(ALL_ROWS, (ALL_ROWS,), np.zeros(rows, np.int64))
