"""Calibration of scores per group: intercept and slope of a logistic recalibration, the mean difference, the Brier score.

A score of 0.2 should mean that 20 of 100 such patients have the finding. Cox (1958) tests this with logit P(y = 1) = a + b logit(score):

- calibration_intercept: a with b = 1; above zero, the finding is more frequent than the scores predict (calibration in the large)
- calibration_slope: b with a free; below 1, the scores are too extreme
- calibration_in_the_large: mean score minus prevalence, the same on the scale of the scores
- brier: mean squared difference between score and label

All groups are fitted at once. Variances are cluster-robust (sums by patient). The interval of the intercept inverts its score test, which
keeps its level with few events, unlike value ± 2 standard errors. If patients have several rows, variances are estimated from few clusters
of different sizes, so Student's t is used with Satterthwaite's (1946) degrees of freedom.

Scores are recalibrated by Platt scaling with the same model (Platt 1999), with his smoothed targets for labels, slightly inside 0 and 1, so
that the slope stays finite if the scores separate the labels. It has only two parameters because a repair set has too few rows for a
flexible curve, and because an affine map of the logit can be part of a network's last layer.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from equipoise.data import FloatArray, IntArray
from equipoise.measures.cells import ratio, sums_at
from equipoise.measures.intervals import Limits, bisect, fewer_clusters, student, wilson
from equipoise.measures.measure_table import Ratio
from equipoise.measures.moments import Clusters, sum_columns

NEWTON_STEPS = 50  # iterations at most; five are usual, near separation it takes more
HALVINGS = 40  # of the distance to a limit, far more precise than what is printed
NEWTON_TOLERANCE = 1e-10
INTERCEPT_BINS = 1024  # bins of the logit per group, for the limits of the intercept: the sums over rows are smooth in the logit
MANY_SURPRISES = 30  # with fewer, and fewer rows than these that the scores say are, scores are nearly certain
MANY_CLAIMED = 10
FAR_INTERCEPT = 30.0
SURPRISES = {"surprise": Ratio((0, 1, -1), (1, 0, 0), (0, 1, 1))}  # columns: rows, surprises above and below 1/2
MAX_LEVERAGE_FACTOR = 4.0  # largest factor by which a patient's contribution to a variance is increased for the leverage of that patient
ENOUGH, TOO_FEW, CONSTANT, SEPARATED, CERTAIN = "", "few", "constant", "separated", "certain"
WITHHELD = "withheld"  # because the measures of a smaller group would follow
REASONS = {  # in words, after the name of a measure
    TOO_FEW: "too few patients with or without the finding",
    CONSTANT: "all scores are equal",
    SEPARATED: "the scores separate the labels completely",
    CERTAIN: "scores of exactly 0 or 1 that are wrong",
}


@dataclass(frozen=True, eq=False)
class ScoredRows:
    """The rows of every group, grouped by patient, for all measures of the scores."""

    clusters: Clusters
    score: FloatArray  # (k,) of the rows that have a group
    y: FloatArray
    weight: FloatArray
    rank: FloatArray  # (k,) values by which rows are ranked: the scores, or their logits
    rarer: FloatArray  # (groups,) patients with the finding or without it, whichever are fewer

    @classmethod
    def of(
        cls,
        score: npt.ArrayLike,
        y: npt.ArrayLike,
        codes: IntArray,
        groups: int,
        units: IntArray,
        weight: FloatArray | None = None,
        logit: FloatArray | None = None,
    ) -> "ScoredRows":
        """The rows that have a group (a code >= 0), by group and patient."""
        clusters = Clusters.of(codes, groups, units)
        p, label = (np.asarray(values, dtype=np.float64)[clusters.rows] for values in (score, y))
        w, rank = np.ones(len(p)) if weight is None else weight[clusters.rows], p if logit is None else logit[clusters.rows]
        return cls(
            replace(clusters, rows=np.arange(len(p))),
            p,
            label,
            w,
            rank,
            np.minimum(clusters.patients(label == 0), clusters.patients(label == 1)),
        )


def brier(rows: ScoredRows, level: float, least: int) -> Limits:
    """The Brier score of each group, with an interval on the logit scale, which keeps it between 0 and 1."""
    clusters, w = rows.clusters, rows.weight
    total = clusters.sum(w)
    loss = (rows.score - rows.y) ** 2
    value, variance, degrees = clusters.mean(loss, w)
    patients = clusters.patients()
    # If the scores are nearly certain and no row is wrong, the observed variance is smaller than the scores imply.
    expected = rows.score * (1 - rows.score)
    expected_mean = ratio(clusters.sum(w * expected), total)
    spread = (expected - expected_mean[clusters.code]) ** 2 + expected * (1 - 2 * rows.score) ** 2
    implied = ratio(clusters.sum(w**2 * spread), total**2)
    underestimated = implied > variance
    variance = np.maximum(variance, implied)
    with np.errstate(invalid="ignore", divide="ignore"):
        middle, half = logit(value), student(degrees, level) * np.sqrt(variance) / (value * (1 - value))
        low, high = expit(middle - half), expit(middle + half)
        least_loss = np.maximum(value, expected_mean)
        size = fewer_clusters(least_loss * (1 - least_loss) / variance, degrees, level)
        high = np.where(underestimated, np.minimum(high, wilson(value, size, level)[1]), high)
    exact = (value <= 0) | (value >= 1)
    low, high = np.where(exact, value, low), np.where(exact, value, high)
    return _where_known(value, low, high, patients, np.where(patients < least, TOO_FEW, ENOUGH))


def recalibration_limits(rows: ScoredRows, level: float, least: int) -> tuple[Limits, Limits, Limits]:
    """The calibration intercept, the calibration slope and calibration in the large of each group."""
    clusters, label, w = rows.clusters, rows.y, rows.weight
    with np.errstate(divide="ignore"):
        position = logit(rows.score)
    certain = np.isinf(position)
    wrong = clusters.sum(certain & ((position > 0) != (label == 1))) > 0
    usable = np.where(certain, 0.0, w)  # a score of 0 or 1 that is right has no information on intercept or slope
    x = np.where(certain, 0.0, position)
    rarer, patients = rows.rarer, clusters.patients()
    low, high = np.full((2, clusters.groups), np.inf), np.full((2, clusters.groups), -np.inf)  # of the scores, by label
    for k in (0, 1):
        own = (usable > 0) & (label == k)
        np.minimum.at(low[k], clusters.code[own], x[own])
        np.maximum.at(high[k], clusters.code[own], x[own])
    constant = low.min(0) == high.max(0)
    separated = (low[1] >= high[0]) | (low[0] >= high[1])  # by a threshold, in either direction
    few = rarer < least

    offset, lowest, highest = _intercepts(clusters, x, label, usable, level)
    one_label = np.isinf(offset)  # among the scores other than exactly 0 or 1
    intercept_why = np.select([few | one_label, wrong], [TOO_FEW, CERTAIN], ENOUGH)
    intercept = _where_known(offset, lowest, highest, rarer, intercept_why)

    why = np.select([few, wrong, constant, separated], [TOO_FEW, CERTAIN, CONSTANT, SEPARATED], ENOUGH)
    slope, variance, degrees = _slope(clusters, x, label, usable, why == ENOUGH)
    half = student(np.where(clusters.repeated, degrees, np.inf), level) * np.sqrt(variance)
    slopes = _where_known(slope, slope - half, slope + half, rarer, why)

    total = clusters.sum(w)
    ones = clusters.sum(np.where(certain & (position > 0), w, 0.0))  # a score of exactly 1 stays 1 at any intercept
    difference = ratio(clusters.sum(w * (rows.score - label)), total)
    mean = ratio(clusters.sum(w * rows.score), total)
    ends = []
    for end in (highest, lowest):  # a higher intercept means that the scores are too low
        expected = clusters.sum(usable * expit(x + end[clusters.code])) + ones
        ends.append(mean - ratio(expected, total))
    # The limits of an intercept are conditional on the scores in the sample. If the scores of some patients are more wrong than those of
    # others, the mean difference also depends on which patients are sampled: by the standard error of the mean change of the scores by
    # recalibration. The share of its square that is within the margin of error of the difference is removed.
    known, margin = np.isfinite(offset), (ends[1] - ends[0]) / 2
    mu = expit(x + np.where(known, offset, 0.0)[clusters.code])
    residual = w * (np.where(np.isin(rows.score, (0.0, 1.0)), 0.0, rows.score - mu) - difference[clusters.code])
    variance = ratio(clusters.squares(residual), total**2)
    share = np.maximum(1 - np.nan_to_num(ratio(margin**2, difference**2), nan=1.0), 0.0)
    _, spread, degrees = clusters.mean(rows.score - label, w)
    t = student(degrees, level)
    shift = t * np.where(known, np.sqrt(variance * share), 0.0)
    ends = [difference + sign * np.hypot(end - difference, shift) for sign, end in zip((-1.0, 1.0), ends, strict=True)]
    # Scores of exactly 0 or 1 that are wrong have no place on the logit scale: value ± t standard errors.
    half = t * np.sqrt(spread)
    ends = [np.where(wrong, difference + sign * half, end) for sign, end in zip((-1, 1), ends, strict=True)]
    certain_scores, *certain_ends = _nearly_certain(rows, level)
    low, high = (np.where(certain_scores, one, end) for one, end in zip(certain_ends, ends, strict=True))
    if certain_scores.any():  # the intercepts at which the mean score would be off by no more than these limits

        def above(a: FloatArray) -> npt.NDArray[np.bool_]:
            by_group = np.stack([clusters.sum(usable * expit(x + each[clusters.code])) for each in a.reshape(-1, clusters.groups)])
            found: npt.NDArray[np.bool_] = by_group.reshape(a.shape) + ones > (mean - np.stack([high, low])) * total
            return found

        far = np.full((2, clusters.groups), FAR_INTERCEPT)
        at = [
            np.where(certain_scores, end, known)
            for end, known in zip(bisect(above, -far, far, HALVINGS)[0], (lowest, highest), strict=True)
        ]
        intercept = _where_known(offset, np.fmin(at[0], offset), np.fmax(at[1], offset), rarer, intercept_why)
    why = np.where(patients < least, TOO_FEW, ENOUGH)
    return intercept, slopes, _where_known(difference, np.fmin(low, difference), np.fmax(high, difference), patients, why)


def _nearly_certain(rows: ScoredRows, level: float) -> tuple[npt.NDArray[np.bool_], FloatArray, FloatArray]:
    """Whether the scores of each group are nearly certain and few labels are surprises, and limits for that case (groups,).

    A surprise is a label on the other side of 1/2 than its score. With r the nearer of 0 and 1, mean(score - label) = mean(score - r) +
    mean(r - label). The first is known well. The second is the share of surprises with r = 1 minus that with r = 0, which has Tango's
    limits; the distances of both are added like standard errors. Neither limit implies a share of labels beyond 0 and 1.
    """
    clusters, w, nearer = rows.clusters, rows.weight, (rows.score >= 0.5).astype(np.float64)
    columns = [np.ones(len(w)), nearer * (1 - rows.y), (1 - nearer) * rows.y]
    surprise = sum_columns(SURPRISES, columns, clusters, w)
    size = surprise["surprise"].size
    found, claimed = surprise["surprise"].either * size, ratio(clusters.sum(w * np.abs(rows.score - nearer)), clusters.sum(w)) * size
    certain = (found < MANY_SURPRISES) & (claimed < np.maximum(MANY_CLAIMED, found / 2))
    if not certain.any():
        return certain, size, size
    means = [clusters.mean(values, w) for values in (rows.score - nearer, rows.score)]
    (value, half), (mean, half_mean) = ((each, student(df, level) * np.sqrt(np.nan_to_num(v))) for each, v, df in means)
    share, low, high = surprise.signed({"surprise": 1.0}).limits(level)
    ends = [value + share + sign * np.hypot(end - share, half) for sign, end in ((-1, low), (1, high))]
    return certain, np.maximum(ends[0], mean - half_mean - 1), np.minimum(ends[1], mean + half_mean)


def _intercepts(clusters: Clusters, x: FloatArray, y: FloatArray, w: FloatArray, level: float) -> tuple[FloatArray, FloatArray, FloatArray]:
    """The solution a of sum of w (y - expit(a + x)) = 0 for each group, with its limits (groups,); infinite if all labels are equal.

    The limits are the intercepts at which (observed - expected positives)^2 = t^2 times its variance: that of independent labels, times the
    design effect at the estimate. If all labels are equal, the rows of a patient count as one.
    """
    positives, at = clusters.sum(w * y), _shifts(clusters, x, y, w)
    mu = expit(x + at[clusters.code])
    residual = w * (y - mu)
    model, unclustered = clusters.sum(w**2 * mu * (1 - mu)), clusters.sum(residual**2)
    own, information = clusters.by_patient(residual), clusters.by_patient(w * mu * (1 - mu))
    clustered = clusters.spread(
        own, np.nan_to_num(ratio(information, sums_at(clusters.group, information, clusters.groups)[clusters.group]))
    )
    clustered = np.where(clusters.repeated, clustered, clusters.squares(residual))
    known = np.isfinite(at)
    effect = np.maximum(ratio(unclustered, model), 1.0) * np.maximum(np.nan_to_num(ratio(clustered, unclustered)), 1.0)
    effect = np.where(known, effect, ratio(clusters.squares(w), clusters.sum(w**2)))
    degrees = clusters.degrees(own, w * np.sqrt(mu * (1 - mu)))
    t = student(np.where(clusters.repeated, degrees, np.inf), level)
    scale = t * np.sqrt(effect)

    least, most = float(x.min(initial=0.0)), float(x.max(initial=0.0))
    bins = np.minimum(((x - least) / max(most - least, 1e-9) * INTERCEPT_BINS).astype(np.int64), INTERCEPT_BINS - 1)
    cells, place = np.unique(clusters.code * INTERCEPT_BINS + bins, return_inverse=True)
    code, weight, squared = cells // INTERCEPT_BINS, *(sums_at(place, values, len(cells)) for values in (w, w**2))
    point = np.nan_to_num(ratio(sums_at(place, w * x, len(cells)), weight))  # the mean x of each bin
    sign = np.array([[-1.0], [1.0]])  # below the estimate, and above it

    def beyond(a: FloatArray) -> npt.NDArray[np.bool_]:
        """Whether intercepts a (..., 2, groups) are rejected: observed and expected positives differ by more than the critical value."""
        share = expit(point + a[..., code])
        place = (np.arange(int(np.prod(a.shape[:-1])))[:, None] * clusters.groups + code).ravel()
        expected, variance = (
            sums_at(place, values.ravel(), a.size).reshape(a.shape) for values in (weight * share, squared * share * (1 - share))
        )
        with np.errstate(invalid="ignore", divide="ignore"):
            rejected: npt.NDArray[np.bool_] = -sign * ((positives - expected) / (scale * np.sqrt(variance))) > 1.0
        return rejected

    inner = np.where(known, np.nan_to_num(at), -sign * 60.0)  # without an estimate, search the whole line
    outer, reach = inner, 1.0
    for _ in range(12):
        outside = beyond(outer)
        if outside.all():
            break
        outer, reach = np.where(outside, outer, outer + sign * reach), reach * 1.7
    inner, outer = bisect(beyond, inner, outer, HALVINGS, each=len(code) // max(clusters.groups, 1) + 1)
    ends = (inner + outer) / 2
    low = np.where(np.isneginf(at), -np.inf, ends[0])
    high = np.where(np.isposinf(at), np.inf, ends[1])
    return at, low, high


def _shifts(clusters: Clusters, x: FloatArray, y: FloatArray, w: FloatArray) -> FloatArray:
    """The shifts of the logits x at which the expected positives of each group are those observed; infinite if all labels are equal."""
    positives, total = clusters.sum(w * y), clusters.sum(w)
    inside = (positives > 0) & (positives < total)
    fit = _fit(clusters, x, y, w, inside, slope=False)
    return np.where(inside, fit.beta[0] - fit.mean, np.where(total > 0, np.where(positives > 0, np.inf, -np.inf), np.nan))


def match_positives(x: FloatArray, y: IntArray, codes: IntArray, groups: int) -> FloatArray:
    """Probabilities (n,) of the logits x, shifted so that those of each group, and of rows without one, add up to its positives.

    - `y`, `codes`: the labels and the groups (n,); -1 for a row without a group.
    - `groups`: the number of groups.

    >>> match_positives(np.zeros(4), np.array([1, 0, 0, 0]), np.zeros(4, int), 1).round(6).tolist()
    [0.25, 0.25, 0.25, 0.25]
    """
    clusters = Clusters.of(codes + 1, groups + 1, np.arange(len(x)))  # the first group is that of rows without one (-1)
    return expit(x + _shifts(clusters, x, y.astype(np.float64), np.ones(len(x)))[codes + 1])


def _slope(clusters: Clusters, x: FloatArray, y: FloatArray, w: FloatArray, estimable: npt.NDArray[np.bool_]) -> tuple[FloatArray, ...]:
    """The slope of each group (groups,), with its variance and degrees of freedom.

    The variance is the sum of squares of the changes without each patient (CR3), or that of the fitted model, whichever is larger: with few
    events, residuals underestimate the variance.
    """
    fit = _fit(clusters, x, y, w, estimable)
    (h00, h01, h11), det, z, group = fit.information, fit.determinant, fit.z, clusters.group
    score0, score1 = clusters.by_patient(w * (y - fit.mu)), clusters.by_patient(w * (y - fit.mu) * z)
    influence = np.nan_to_num(ratio(h00[group] * score1 - h01[group] * score0, det[group]))
    v = w * fit.mu * (1 - fit.mu)
    # The information of all other patients.
    others = [entry[group] - clusters.by_patient(v * z**k) for k, entry in enumerate((h00, h01, h11))]
    others_det = others[0] * others[2] - others[1] ** 2
    deletion = np.nan_to_num(ratio(others[0] * score1 - others[1] * score0, others_det))  # the change of the slope without the patient
    limit = MAX_LEVERAGE_FACTOR * np.abs(influence)
    deletion = np.clip(np.where(others_det > 0, deletion, MAX_LEVERAGE_FACTOR * influence), -limit, limit)
    robust = sums_at(group, deletion**2, clusters.groups) * np.nan_to_num(clusters.finite)
    contribution = (h00[clusters.code] * z - h01[clusters.code]) / np.where(det > 0, det, np.nan)[clusters.code]
    model = clusters.sum(w * v * contribution**2)
    variance = np.maximum(robust, model)
    degrees = clusters.degrees(influence, np.nan_to_num(contribution * np.sqrt(w * v)))
    slope = np.where(estimable, fit.beta[1] / fit.sd, np.nan)
    return slope, np.where(estimable, variance / fit.sd**2, np.nan), degrees


class _Fit(NamedTuple):
    """A logistic regression in each group: logit P(y = 1) = beta[0] + beta[1] * z, with z = (x - mean) / sd."""

    mean: FloatArray  # (groups,)
    sd: FloatArray  # (groups,)
    z: FloatArray  # (k,)
    beta: FloatArray  # (2, groups)
    mu: FloatArray  # (k,) fitted probabilities
    likelihood: FloatArray  # (groups,) its logarithm
    information: tuple[FloatArray, FloatArray, FloatArray]  # entries 00, 01 and 11 of the matrix (groups,)
    determinant: FloatArray  # (groups,) of that matrix


def _fit(clusters: Clusters, x: FloatArray, y: FloatArray, w: FloatArray, estimable: npt.NDArray[np.bool_], *, slope: bool = True) -> _Fit:
    """The regressions of the estimable groups by Newton's method, halving steps that overshoot, from slope 1 and intercept 0 on.

    With slope=False, only the intercept is fitted.
    """
    total = clusters.sum(w)
    mean = np.nan_to_num(ratio(clusters.sum(w * x), total))
    sd = np.sqrt(np.nan_to_num(ratio(clusters.sum(w * (x - mean[clusters.code]) ** 2), total)))
    sd = np.where(sd > 0, sd, 1.0)
    z = (x - mean[clusters.code]) / sd[clusters.code]

    def at(b: FloatArray) -> _Fit:
        eta = b[0][clusters.code] + b[1][clusters.code] * z
        mu = expit(eta)
        v = w * mu * (1 - mu)
        h00, h01, h11 = clusters.sum(v), clusters.sum(v * z), clusters.sum(v * z * z)
        likelihood = clusters.sum(w * (y * eta - np.logaddexp(0.0, eta)))
        return _Fit(mean, sd, z, b, mu, likelihood, (h00, h01, h11), np.asarray(h00 * h11 - h01**2))

    fit = at(np.stack([mean, sd]))
    for _ in range(NEWTON_STEPS):
        residual, (h00, h01, h11), det = w * (y - fit.mu), fit.information, fit.determinant
        g0, g1 = clusters.sum(residual), clusters.sum(residual * z)
        both = np.stack([ratio(h11 * g0 - h01 * g1, det), ratio(h00 * g1 - h01 * g0, det)] if slope else [ratio(g0, h00), 0.0 * g1])
        step = np.where(estimable & ((det if slope else h00) > 0), both, 0.0)
        for _ in range(30):
            tried = at(fit.beta + step)
            worse = tried.likelihood < fit.likelihood - 1e-9 * np.abs(fit.likelihood)
            if not worse.any():
                break
            step = np.where(worse, step / 2, step)
        fit = tried
        if np.abs(step).max(initial=0.0) < NEWTON_TOLERANCE:
            break
    return fit


def logit(p: FloatArray) -> FloatArray:
    """log(p / (1 - p)); infinite at 0 and 1."""
    x: FloatArray = np.log(p) - np.log1p(-p)
    return x


def expit(x: FloatArray) -> FloatArray:
    """1 / (1 + exp(-x)) without overflow; importing SciPy's would take longer than an audit.

    >>> expit(np.array([-800.0, 0.0, 800.0])).tolist()
    [0.0, 0.5, 1.0]
    """
    small = np.exp(-np.abs(x))
    p: FloatArray = np.where(x >= 0, 1.0, small) / (1.0 + small)
    return p


def _where_known(value: FloatArray, low: FloatArray, high: FloatArray, patients: FloatArray, why: npt.NDArray[np.str_]) -> Limits:
    """The limits; NaN if `why` gives a reason."""
    value, low, high = (np.where(why == ENOUGH, each, np.nan) for each in (value, low, high))
    return Limits(value, low, high, patients, tuple(why.tolist()))


SHARE_BINS = 10  # of equal width
SCORE_EDGE = 1e-6  # scores are clipped to [SCORE_EDGE, 1 - SCORE_EDGE], so that their logits are finite


@dataclass(frozen=True)
class LogitMap:
    """A strictly increasing map of scores: logit(new) = slope * logit(old) + intercept, with slope > 0.

    >>> LogitMap(1.0, 0.0)(np.array([0.2, 0.9])).round(6).tolist()
    [0.2, 0.9]
    """

    slope: float
    intercept: float

    def __call__(self, score: FloatArray) -> FloatArray:
        """The new scores."""
        return expit(self.slope * clipped_logit(score) + self.intercept)


@dataclass(frozen=True)
class Calibration:
    """The calibration of scores against labels or probabilities."""

    in_the_large: float  # mean score minus mean target
    slope: float  # of the logits; NaN if it cannot be estimated
    error: float  # mean distance over ten bins

    @classmethod
    def of(cls, score: FloatArray, target: FloatArray | IntArray, weight: FloatArray | None = None) -> "Calibration":
        """The calibration of all rows together, against labels or probabilities."""
        w = np.ones(len(score)) if weight is None else weight
        place = np.minimum((score * SHARE_BINS).astype(np.int64), SHARE_BINS - 1)
        difference = sums_at(place, w * (score - target), SHARE_BINS)
        fitted = _logistic_regression(score, np.asarray(target, dtype=np.float64), w)
        slope = np.nan if fitted is None else fitted[0]
        return cls(float(difference.sum() / w.sum()), slope, float(np.abs(difference).sum() / w.sum()))


def clipped_logit(score: FloatArray) -> FloatArray:
    """The logits of scores, finite even at 0 and 1."""
    return logit(np.clip(score, SCORE_EDGE, 1 - SCORE_EDGE))


def logit_map(score: FloatArray, target: FloatArray | IntArray, weight: FloatArray | None = None) -> LogitMap | None:
    """The map that fits the scores best to these labels or probabilities; None if it is not increasing or cannot be estimated.

    - `score`: (n,) in [0, 1].
    - `target`: labels, which are smoothed as by Platt, or probabilities (n,).
    - `weight`: sample weights.

    >>> rng = np.random.default_rng(0)
    >>> z, u = rng.normal(size=20_000), rng.random(20_000)
    >>> fitted = logit_map(expit(2 * z + 1), (u < expit(z)).astype(int))  # the scores are too extreme, and too high
    >>> round(fitted.slope, 1), round(fitted.intercept, 1)
    (0.5, -0.5)
    """
    w, smoothed = np.ones(len(score)) if weight is None else weight, np.asarray(target, dtype=np.float64)
    if np.isin(smoothed, (0.0, 1.0)).all():
        positives, negatives = float(w @ smoothed), float(w @ (1 - smoothed))
        if min(positives, negatives) <= 0:
            return None
        smoothed = np.where(smoothed == 1, (positives + 1) / (positives + 2), 1 / (negatives + 2))
    fitted = _logistic_regression(score, smoothed, w)
    return None if fitted is None or not fitted[0] > 0 else LogitMap(*fitted)


def _logistic_regression(score: FloatArray, target: FloatArray, w: FloatArray) -> tuple[float, float] | None:
    """Slope and intercept of the logistic regression of targets in [0, 1] on the logits of scores; None if it cannot be estimated."""
    x = clipped_logit(score)
    if np.ptp(x) == 0 or np.ptp(target) == 0:
        return None
    fit = _fit(Clusters.of(np.zeros(len(x), np.int64), 1, np.arange(len(x))), x, target, w, np.ones(1, bool))
    slope = float(fit.beta[1, 0] / fit.sd[0])
    fitted = slope, float(fit.beta[0, 0] - slope * fit.mean[0])
    return fitted if np.isfinite(fitted).all() else None
