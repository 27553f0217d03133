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

Measures of scores for any number of rows: from sums over patients, from binned scores, or from a sample of whole patients.

Brier score and calibration in the large are means over rows, so value and cluster-robust standard error follow from the sums of each
patient and their second moments. The intervals are those of large samples; smaller groups have the intervals of `calibration`.

AUROC and average precision come from counts of scores in narrow bins. Scores in the same bin count as ties, so the error of AUROC is at
most half the sum over bins of (share of positives) * (share of negatives). This bound, about 1e-5, is reported. The variances are those of
DeLong between patients, from each row's placement among the bins.

Calibration intercept, slope and error, operating points and decision curves take many passes over the rows, so they are estimated from
`SAMPLED` rows, which determine a share of one half to within 0.002. Rates, gaps, tests, performance, AUROC, Brier score and calibration in
the large always use all rows.
"""

import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from equipoise.data import Attribute, Scores, generator, splitmix64
from equipoise.measures.audit_spec import AuditSpec
from equipoise.measures.calibration import ENOUGH, REASONS, SHARE_BINS, TOO_FEW, WITHHELD, Scored, brier, expit, logit, recalibrated
from equipoise.measures.cells import FloatArray, IntArray, grouped, ratio, sums_at
from equipoise.measures.estimates import CALIBRATION_ERROR, FEW, INSUFFICIENT, Estimate, lacking_note
from equipoise.measures.gaps import OVERALL_SCORE_MEASURES
from equipoise.measures.intervals import Limits, combined, fewer_clusters, quantile, wilson
from equipoise.measures.moments import moments_of

CLOSE = 1e-12  # positions on a curve are sums of shares: the last bits are rounding


@dataclass(frozen=True, eq=False)
class _Curve:
    """The ROC curve of a group, from no patient decided positive to all; the score (or logit) of a point is the lowest decided positive."""

    fpr: FloatArray
    tpr: FloatArray
    score: FloatArray


def operating_points(rows: Scored, specificity: float, sensitivity: float, level: float, least: int) -> tuple[Limits, Limits]:
    """The sensitivity of each group at this specificity, and its specificity at this sensitivity."""
    curves = _curves(rows)
    tpr = _read_curves(rows, [(c.fpr, c.tpr, c.score) for c in curves], 1 - specificity, ("fpr", "tpr"), level, least)
    fpr = _read_curves(rows, [(c.tpr, c.fpr, c.score) for c in curves], sensitivity, ("tpr", "fpr"), level, least)
    return tpr, Limits(1 - fpr.value, 1 - fpr.high, 1 - fpr.low, fpr.patients, fpr.why)


def _read_curves(
    rows: Scored, curves: list[tuple[FloatArray, FloatArray, FloatArray]], at: float, rates: tuple[str, str], level: float, least: int
) -> Limits:
    """The second rate of each group at the point where the first is `at`. A curve has the first rate, the second rate and the scores."""
    clusters = rows.clusters
    known = rows.rarer >= least
    value, cut = np.full(clusters.groups, np.nan), np.zeros(clusters.groups)
    for k in np.flatnonzero(known):
        x, height, score = curves[k]
        value[k] = _height(at, x, height, lowest=rates[1] == "fpr")
        cut[k] = score[min(int(np.searchsorted(x, at - CLOSE, side="left")), len(score) - 1)]
    decided = (rows.rank >= cut[clusters.code]).astype(np.float64)
    units = np.arange(len(clusters.code)) if clusters.place is None else clusters.place
    sums = moments_of(decided, rows.y, clusters.code, clusters.groups, units, rows.weight)
    size_at = fewer_clusters(sums.size(rates[0]), sums.degrees(rates[0]), level)
    size = fewer_clusters(sums.size(rates[1]), sums.degrees(rates[1]), level)
    limits = wilson(value, size, level)
    limits_at = wilson(np.where(known, at, np.nan), size_at, level)
    ends = []
    for limit_at, limit, sign in zip(limits_at, limits, (-1.0, 1.0), strict=True):
        height_there = value.copy()
        for k in np.flatnonzero(known):
            x, height, _ = curves[k]
            height_there[k] = np.interp(limit_at[k], *_smoothed(x, height, size_at[k]))
        ends.append(np.clip(value + sign * np.hypot(limit - value, height_there - value), 0.0, 1.0))
    why = tuple(ENOUGH if enough else TOO_FEW for enough in known)
    return Limits(value, ends[0], ends[1], rows.rarer, why)


def _height(at: float, x: FloatArray, height: FloatArray, *, lowest: bool) -> float:
    """The height of a curve at a position, by linear interpolation; on a vertical segment, its lower or its upper end."""
    first, last = int(np.searchsorted(x, at - CLOSE, side="left")), int(np.searchsorted(x, at + CLOSE, side="right"))
    if first < last:  # points at exactly this position
        return float(height[first] if lowest else height[last - 1])
    return float(np.interp(at, x, height))


def _smoothed(x: FloatArray, height: FloatArray, size: float) -> tuple[FloatArray, FloatArray]:
    """The curve through the midpoints of its steps, the i-th of m at i / (m + 1), which extends beyond the outermost scores.

    The score of a new patient exceeds the highest of m scores with probability 1 / (m + 1), so few rows leave both ends uncertain.
    """
    steps = np.flatnonzero(np.diff(x) > 0)
    middle = ((x[steps] + x[steps + 1]) / 2 * size + 0.5) / (size + 1)
    mean_height = (height[steps] + height[steps + 1]) / 2
    return np.concatenate([[0.0], middle, [1.0]]), np.concatenate([[0.0], mean_height, [1.0]])


def _curves(rows: Scored) -> list[_Curve]:
    """The ROC curve of each group."""
    clusters = rows.clusters
    order = np.argsort(-rows.rank)
    narrow = clusters.code.astype(np.int16) if clusters.groups < 2**15 else clusters.code  # NumPy sorts 16-bit integers by radix
    order = order[np.argsort(narrow[order], kind="stable")]
    starts = np.searchsorted(clusters.code[order], np.arange(clusters.groups + 1))
    curves = []
    for first, last in itertools.pairwise(starts):
        group_rows = order[first:last]
        score, y, w = rows.rank[group_rows], rows.y[group_rows], rows.weight[group_rows]
        ends = np.flatnonzero(np.append(np.diff(score) != 0, True)) if len(group_rows) else np.zeros(0, np.int64)
        rates = []
        for label in (0.0, 1.0):
            sums = np.append(0.0, np.cumsum(w * (y == label))[ends])
            rates.append(sums / sums[-1] if sums[-1] > 0 else sums)
        curves.append(_Curve(rates[0], rates[1], np.append(np.inf, score[ends])))
    return curves


CURVES = ["attribute", "group", "threshold", "net_benefit", "low", "high", "treat_all", "treat_none"]


def decision_curves(
    rows: Scored, attribute: str, levels: Sequence[str], thresholds: Sequence[float], level: float, least: int
) -> pd.DataFrame:
    """One row per group and threshold; a group with too few patients has no net benefit."""
    clusters, w, y = rows.clusters, rows.weight, rows.y
    cuts = np.asarray(thresholds, dtype=np.float64)
    total = clusters.sum(w)
    value, between = _proportions(rows, cuts)
    size = _effective_rows(rows, value, between)
    degrees = np.where(clusters.several(), np.maximum(clusters.effective_patients() - 1, 1.0), np.inf)
    low, high = wilson(value, fewer_clusters(size, degrees[:, None], level), level)
    odds = cuts / (1 - cuts)
    a, b = value[..., 0], value[..., 1]
    r = -np.sqrt(np.nan_to_num(ratio(a * b, (1 - a) * (1 - b))))
    correlation = np.stack([np.stack([np.ones_like(r), r], -1), np.stack([r, np.ones_like(r)], -1)], -2)
    signs = np.stack([np.ones_like(odds), -odds], -1)[:, None, :]
    benefit, below, above = combined(signs, value, low, high, correlation)
    share = ratio(clusters.sum(w * y), total)
    treat_all = share - (1 - share) * odds[:, None]
    enough = rows.rarer >= least
    known = [np.where(enough, v, np.nan).T.ravel() for v in (benefit, below, above, treat_all)]  # by group, then by threshold
    return pd.DataFrame(
        {
            "attribute": attribute,
            "group": np.repeat(np.asarray(levels, dtype=object), len(cuts)),
            "threshold": np.tile(cuts, clusters.groups),
            **dict(zip(("net_benefit", "low", "high", "treat_all"), known, strict=True)),
            "treat_none": 0.0,
        },
        columns=CURVES,
    )


def _proportions(rows: Scored, cuts: FloatArray) -> tuple[FloatArray, FloatArray]:
    """True and false positives per row (thresholds, groups, 2), and the sums of squares between patients around them."""
    clusters, w, y = rows.clusters, rows.weight, rows.y
    total = clusters.sum(w)[:, None]
    # In one pass: the number of thresholds that each score reaches, by group and label; then sums from the highest threshold down.
    cell = (clusters.code * 2 + (1 - y).astype(np.int64)) * (len(cuts) + 1) + np.searchsorted(cuts, rows.score, side="right")
    sums = []
    for values in (w, w**2):
        reached = sums_at(cell, values, clusters.groups * 2 * (len(cuts) + 1)).reshape(clusters.groups, 2, -1)
        sums.append(reached[..., ::-1].cumsum(-1)[..., ::-1][..., 1:].transpose(2, 0, 1))  # (thresholds, groups, 2)
    value = np.nan_to_num(ratio(sums[0], total))
    if clusters.place is None:
        return value, sums[1] * (1 - 2 * value) + value**2 * clusters.sum(w**2)[:, None]
    mass, between = clusters.by_patient(w), np.zeros_like(value)
    for t, cut in enumerate(cuts):
        decided = w * (rows.score >= cut)
        for k, positives in enumerate((decided * y, decided * (1 - y))):
            residual = clusters.by_patient(positives) - value[t, clusters.group, k] * mass
            between[t, :, k] = sums_at(clusters.group, residual**2, clusters.groups)
    return value, between


def _effective_rows(rows: Scored, value: FloatArray, between: FloatArray) -> FloatArray:
    """The effective number of rows of proportions (thresholds, groups, 2), at most all rows; at 0 and 1 a patient counts as one row."""
    clusters = rows.clusters
    total, patients = clusters.sum(rows.weight)[:, None], clusters.patients()[:, None]
    count = clusters.sum(1.0)[:, None]
    kish = np.minimum(ratio(total**2, clusters.squares(rows.weight)[:, None]), clusters.effective(rows.weight)[:, None])
    variance = np.nan_to_num(ratio(between, total**2) * ratio(patients, np.maximum(patients - 1, 0.0)))
    independent = ratio(value * (1 - value), np.maximum(count - 1, 1.0))
    varies = variance > 0
    effect = np.maximum(np.where(varies, np.nan_to_num(ratio(variance, independent), nan=1.0), 1.0), 1.0)
    return np.where(varies, count / effect, kish)


RESAMPLES = 999  # of the labels of a calibrated model


def binned_error(rows: Scored, level: float, seed: int, least: int = 1) -> Limits:
    """The calibration error of each group over ten bins of equal width, with the band in which it would lie for a calibrated model.

    Labels are resampled from the scores, for all rows of a bin at once: of n rows with mean score p, Binomial(n, p) are positive. With
    several rows per patient or unequal weights, n is the effective number of rows (Kish) divided by the design effect of the residuals.
    Bins are then correlated like the sums of residuals of the same patients, by reordering the resamples (Iman and Conover 1982).
    """
    clusters, w = rows.clusters, rows.weight
    place = np.minimum((rows.score * SHARE_BINS).astype(np.int64), SHARE_BINS - 1)
    wide = clusters.groups * SHARE_BINS
    cell = clusters.code * SHARE_BINS + place
    weight, squared, mean, error = (
        sums_at(cell, values, wide).reshape(-1, SHARE_BINS) for values in (w, w**2, w * rows.score, w * (rows.score - rows.y))
    )
    total = clusters.sum(w)
    value = ratio(np.abs(error).sum(-1), total)

    residual = w * (rows.score - rows.y)
    unclustered = clusters.sum(residual**2)
    clustered, products = unclustered, None
    if clusters.place is not None:  # sums by patient and bin
        sums = sums_at(clusters.place * SHARE_BINS + place, residual, len(clusters.group) * SHARE_BINS).reshape(-1, SHARE_BINS)
        products = np.zeros((clusters.groups, SHARE_BINS, SHARE_BINS))
        for a in range(SHARE_BINS):
            for b in range(a + 1):
                products[:, a, b] = products[:, b, a] = sums_at(clusters.group, sums[:, a] * sums[:, b], clusters.groups)
        clustered = np.trace(products, axis1=1, axis2=2)
    effect = np.maximum(np.nan_to_num(ratio(clustered, unclustered), nan=1.0), 1.0)
    size = np.nan_to_num(ratio(weight**2, squared)) / effect[:, None]
    share = np.clip(np.nan_to_num(ratio(mean, weight)), 0.0, 1.0)
    n = np.maximum(np.round(size), (weight > 0).astype(float)).astype(np.int64)
    rng = generator(seed, "calibrated labels")
    drawn = rng.binomial(n, share, (RESAMPLES, clusters.groups, SHARE_BINS))
    if products is not None:
        drawn = _correlated(drawn, products, rng)
    distance = np.abs(share - drawn / np.maximum(n, 1)) * weight
    simulated = ratio(distance.sum(-1), total)
    tail = (1 - level) / 2
    low, high = np.quantile(simulated, [tail, 1 - tail], axis=0)
    patients = clusters.patients()
    enough = patients >= least
    shown = [np.where(enough & ~np.isnan(value), v, np.nan) for v in (value, low, high)]
    return Limits(shown[0], shown[1], shown[2], patients)


def _correlated(drawn: IntArray, products: FloatArray, rng: np.random.Generator) -> IntArray:
    """The draws (draws, groups, k), reordered so that their ranks are those of normal variables with these covariances."""
    values, vectors = np.linalg.eigh(products)
    root = (vectors * np.sqrt(np.maximum(values, 0.0))[:, None, :]).astype(np.float32)
    normal = root @ rng.standard_normal((*products.shape[:-1], len(drawn)), dtype=np.float32)  # (groups, k, draws)
    ordered = np.sort(np.moveaxis(drawn, 0, -1).astype(np.int32), axis=-1)
    reordered = np.empty_like(ordered)
    np.put_along_axis(reordered, normal.argsort(axis=-1), ordered, axis=-1)
    return np.moveaxis(reordered, -1, 0).astype(np.int64)


AT_POINTS = ("sensitivity_at_specificity", "specificity_at_sensitivity")
SCORE_MEASURES = (*OVERALL_SCORE_MEASURES, *AT_POINTS)  # each with an interval; the calibration error has a band instead
SAMPLED_MEASURES = ("calibration_intercept", "calibration_slope")  # those of OF_ALL that are estimated from a sample of many rows
ALL_ROWS = "all"  # the attribute and the group of all rows together, including rows without a group


@dataclass(frozen=True, eq=False)
class ScoreMeasures:
    """The measures of the scores for the groups of one attribute."""

    limits: dict[str, Limits]  # by measure
    error: Limits  # the binned calibration error, with the band of a calibrated model instead of an interval
    curves: pd.DataFrame  # decision curves: one row per group and threshold
    rows: IntArray  # (groups,) rows that they are estimated from: all of them, or a sample


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


def rows_by_group(attribute: Attribute) -> IntArray:
    """The number of rows of each group (groups,)."""
    return np.bincount(attribute.codes[attribute.codes >= 0], minlength=len(attribute.levels))


def with_score_measures(groups: pd.DataFrame, measures: ScoreMeasures, least: int, unit: str) -> pd.DataFrame:
    """The frame of groups with the columns of these measures; their names are added to `few`, or to `lacking` and `note`."""
    columns: dict[str, npt.NDArray[Any]] = {}
    few: list[list[str]] = [[] for _ in range(len(groups))]
    lacking: list[dict[str, str]] = [dict(before) for before in groups["lacking"]]
    for name, limits in measures.limits.items():
        columns |= {name: limits.value, f"{name}_low": limits.low, f"{name}_high": limits.high}
        for k, why in enumerate(limits.why):
            if why:
                lacking[k][name] = WITHHELD if WITHHELD in lacking[k].values() else why
            elif limits.patients[k] < FEW:
                few[k].append(name)
    error = measures.error
    columns |= {
        CALIBRATION_ERROR: error.value,
        f"{CALIBRATION_ERROR}_expected_low": error.low,
        f"{CALIBRATION_ERROR}_expected_high": error.high,
        "sampled": measures.rows,
    }
    for reasons, value in zip(lacking, error.value, strict=True):
        if np.isnan(value):
            reasons[CALIBRATION_ERROR] = WITHHELD if WITHHELD in reasons.values() else TOO_FEW
    notes = [lacking_note(reasons, least, unit) for reasons in lacking]
    marked = [", ".join(filter(None, (before, *names))) for before, names in zip(groups["few"], few, strict=True)]
    added = pd.DataFrame({**columns, "lacking": lacking, "few": marked, "note": notes}, index=groups.index)
    return pd.concat([groups.drop(columns=["lacking", "few", "note"]), added], axis=1)


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


@dataclass(frozen=True, eq=False)
class Losses:
    """Sums of weights, squared errors and errors over patients, per group. The sums of disjoint sets of patients can be added."""

    total: FloatArray  # (groups, 3)
    second: FloatArray  # (groups, 3, 3): sums over patients of the products of their sums
    patients: FloatArray  # (groups,)

    @classmethod
    def zeros(cls, groups: int) -> "Losses":
        """The sums of no rows."""
        return cls(np.zeros((groups, 3)), np.zeros((groups, 3, 3)), np.zeros(groups))

    def __add__(self, other: "Losses") -> "Losses":
        return Losses(self.total + other.total, self.second + other.second, self.patients + other.patients)

    def limits(self, level: float) -> dict[str, Limits]:
        """The Brier score, with limits on the logit scale to keep it between 0 and 1, and calibration in the large."""
        z, limits = quantile(level), {}
        for name, k in (("brier", 1), ("calibration_in_the_large", 2)):
            value = ratio(self.total[:, k], self.total[:, 0])
            squares = self.second[:, k, k] - 2 * value * self.second[:, k, 0] + value**2 * self.second[:, 0, 0]
            half = z * np.sqrt(np.maximum(squares, 0.0)) / np.where(self.total[:, 0] > 0, self.total[:, 0], np.nan)
            low, high = value - half, value + half
            if name == "brier":
                inside = (value > 0) & (value < 1)
                p = np.where(inside, value, 0.5)
                low, high = (np.where(inside, expit(logit(p) + sign * half / (p * (1 - p))), value) for sign in (-1, 1))
            limits[name] = Limits(value, low, high, self.patients, tuple(ENOUGH for _ in value))
        return limits


def losses_of(rows: Scored) -> Losses:
    """The losses of the rows of every group.

    >>> losses = losses_of(Scored.of([0.5, 0.5], [1, 0], np.zeros(2, int), 1, np.arange(2)))
    >>> float(losses.limits(0.95)["brier"].value[0])
    0.25
    """
    clusters, error = rows.clusters, rows.score - rows.y
    sums = [clusters.by_patient(rows.weight * values) for values in (1.0, error**2, error)]
    total = np.stack([sums_at(clusters.group, by_patient, clusters.groups) for by_patient in sums], axis=-1)
    second = np.stack([np.stack([sums_at(clusters.group, a * b, clusters.groups) for b in sums], axis=-1) for a in sums], axis=-2)
    return Losses(total, second, clusters.patients())


MANTISSA = 13  # bits of a score, or of 1 - score if that is smaller, that its bin keeps: 8,192 bins from 0.25 to 0.5
SMALLEST = 24  # scores closer than 2 ** -24 to 0 or 1 share a bin, except those that are exactly 0 or 1
SCORE_BINS = 2 * (SMALLEST * 2**MANTISSA + 2)


def score_bins(score: FloatArray) -> npt.NDArray[np.int32]:
    """The bin of each score (n,), ascending. Bins are narrower towards 0 and 1, where scores of rare findings lie close together.

    >>> score_bins(np.array([0.0, 0.25, 0.5, 0.75, 1.0])).tolist() == sorted(score_bins(np.array([0.0, 0.25, 0.5, 0.75, 1.0])).tolist())
    True
    """
    upper = score > 0.5
    distance = np.where(upper, 1 - score, score).astype(np.float32)  # from the nearer of 0 and 1
    bits = distance.view(np.int32) >> (23 - MANTISSA)
    lowest = (127 - SMALLEST) << MANTISSA
    place = np.where(distance == 0, 0, np.clip(bits - lowest, 0, SMALLEST * 2**MANTISSA) + 1).astype(np.int32)
    bins: npt.NDArray[np.int32] = np.where(upper, SCORE_BINS - 1 - place, place)
    return bins


FAR, OCTAVES = 16.0, 8  # logits beyond +-16 have further bins, by their size up to 2 ** 8 times that
TAIL = OCTAVES * 2**MANTISSA


def bins_of(scores: Scores) -> IntArray:
    """The bin of each row by its score (one of `SCORE_BINS`), or by its logit (one of `SCORE_BINS + 2 * TAIL`) if there is one."""
    return score_bins(scores.score).astype(np.int64) if scores.logit is None else logit_bins(scores.logit)


def logit_bins(logit: FloatArray) -> IntArray:
    """The bin of each logit (n,), ascending: that of its score up to +-16, where different logits begin to have the same score.

    >>> logit_bins(np.array([-90.0, -40.0, 0.0, 2.0, 40.0, 90.0])).argsort().tolist()
    [0, 1, 2, 3, 4, 5]
    """
    size = np.minimum(np.abs(logit), FAR * 2.0**OCTAVES)
    beyond = (size.astype(np.float32).view(np.int32) >> (23 - MANTISSA)) - (np.float32(FAR).view(np.int32) >> (23 - MANTISSA))
    place = np.where(size > FAR, TAIL - 1 - np.minimum(beyond, TAIL - 1), TAIL + score_bins(expit(-size)))  # from the nearer end
    bins: IntArray = np.where(logit > 0, SCORE_BINS + 2 * TAIL - 1 - place, place).astype(np.int64)
    return bins


@dataclass(eq=False)
class Binned:
    """AUROC and average precision of each group from binned scores, with their variances between patients (groups,)."""

    influence: dict[str, FloatArray]  # by measure: the influence of a row of each group, label and bin (groups, 2, bins)
    value: dict[str, FloatArray]
    unclustered: dict[str, FloatArray]  # variance of independent rows
    variance: dict[str, FloatArray]  # accumulated by `add`
    bound: FloatArray  # on the error of AUROC

    @classmethod
    def of(cls, counts: FloatArray, rows: FloatArray | None = None) -> "Binned":
        """AUROC and average precision from the weight of the rows by group, label and bin (groups, 2, bins).

        With sample weights, `rows` are the counts without weights, from which the variance of independent rows is taken.
        """
        binned = cls._from_counts(counts)
        return binned if rows is None else replace(binned, unclustered=cls._from_counts(rows).unclustered)

    @classmethod
    def _from_counts(cls, counts: FloatArray) -> "Binned":
        q, p = counts[:, 0], counts[:, 1]
        total_q, total_p = q.sum(-1, keepdims=True), p.sum(-1, keepdims=True)
        below = np.cumsum(q, axis=-1) - q / 2
        above = total_p - np.cumsum(p, axis=-1) + p / 2
        area = ratio((p * below).sum(-1), (total_p * total_q)[:, 0])[:, None]
        auroc = np.stack([ratio(ratio(above, total_p) - area, total_q), ratio(ratio(below, total_q) - area, total_p)], axis=1)
        hits, alarms = (np.cumsum(side[:, ::-1], axis=-1)[:, ::-1] for side in (p, q))
        decided = hits + alarms
        precision = np.nan_to_num(ratio(hits, decided))
        average = ratio((p * precision).sum(-1), total_p[:, 0])[:, None]
        raised, lowered = (ratio(np.cumsum(np.nan_to_num(ratio(p * side, decided**2)), axis=-1), total_p) for side in (alarms, hits))
        precisions = np.stack([-lowered, ratio(precision - average, total_p) + raised], axis=1)
        influence = {"auroc": np.nan_to_num(auroc), "average_precision": np.nan_to_num(precisions)}
        rows = np.stack([q, p], axis=1)
        return cls(
            influence,
            {"auroc": area[:, 0], "average_precision": average[:, 0]},
            {name: (rows * each**2).sum((-2, -1)) for name, each in influence.items()},
            {name: np.zeros(len(counts)) for name in influence},
            ratio((p * q).sum(-1), 2 * (total_p * total_q)[:, 0]),
        )

    def add(self, y: IntArray, bins: IntArray, codes: IntArray, units: IntArray, w: FloatArray | None) -> None:
        """Adds the squared sums of some patients to the variances, given all rows of these patients."""
        groups = len(self.bound)
        known = np.flatnonzero(codes >= 0)
        width = int(units.max(initial=0)) + 1
        pairs, pair_of_row = grouped(codes[known] * width + units[known], groups * width)
        for name in self.influence if groups == 1 else ("auroc",):
            values = self.influence[name][codes[known], y[known], bins[known]]
            sums = np.bincount(pair_of_row, values if w is None else values * w[known], len(pairs))
            self.variance[name] += np.bincount(pairs // width, sums**2, groups)


SAMPLED = 200_000  # expected rows in the sample of a larger group; smaller groups are used in full


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


def estimate_sampled_scores(scores: Scores, attribute: Attribute, units: IntArray, settings: AuditSpec) -> ScoreMeasures:
    """The measures of the scores of each group, from a sample of large groups."""
    sample = sample_of(scores, attribute, units)
    measures = estimate_scores(*sample, settings)
    if sample[0] is scores:
        return measures
    rows = Scored.of(scores.score, scores.y, attribute.codes, len(attribute.levels), units, scores.weight)
    return with_losses(measures, losses_of(rows), rows_by_group(attribute), settings)


def with_losses(measures: ScoreMeasures, losses: Losses, rows: npt.NDArray[Any], settings: AuditSpec) -> ScoreMeasures:
    """The measures of a sample, with Brier score and calibration in the large from all `rows` of the groups that were sampled."""
    replaced = (measures.rows < rows) & (losses.patients >= settings.min_patients)
    limits = dict(measures.limits)
    for name, exact in losses.limits(settings.level).items():
        limits[name] = replace(exact.where(replaced, limits[name]), why=limits[name].why)
    return replace(measures, limits=limits)
