"""The measures of the scores themselves, whatever the threshold in use: operating points, decision curves, calibration error and, from
`calibration`, the Brier score, intercept and slope.

Operating points: the ROC curve of a group's rows is read at the given point, linearly between its corners. Two things are uncertain, each
with a Wilson interval of its effective sample size: the rate that is read, and, since the threshold comes from the same rows, the rate at
which it is read. Both distances are added like standard errors (Zou and Donner 2008), as the rows of the two labels are different ones.

Decision curves: with the threshold t, a false positive costs t / (1 - t) of what a true positive is worth (Vickers and Elkin 2006):

    net benefit = true positives / n - false positives / n * t / (1 - t)

It is compared with deciding all patients positive (treat_all) and none (treat_none, which is 0). The interval combines the Wilson intervals
of both proportions (both are parts of one n, so they are negatively correlated), with the effective number of rows of several rows per
patient or unequal weights. It treats the threshold as given, not as chosen on these rows.

The binned calibration error is the mean distance of the score from the share with the finding over ten bins. It is positive for a
calibrated model too, so it comes with the band in which 95 % of calibrated models would lie on the same scores.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from equipoise.data import Attribute, Scores, generator
from equipoise.measures.calibration import ENOUGH, REASONS, Scored, brier, recalibrated
from equipoise.measures.calibration import FEW as TOO_FEW
from equipoise.measures.cells import FloatArray, IntArray, ratio, sums_at
from equipoise.measures.estimates import CALIBRATION_ERROR, FEW, INSUFFICIENT, Estimate, Settings
from equipoise.measures.intervals import Limits, combined, fewer_clusters, wilson
from equipoise.measures.moments import moments_of

CLOSE = 1e-12  # positions on a curve are sums of shares: the last bits say nothing


@dataclass(frozen=True, eq=False)
class _Curve:
    """The ROC curve of a group, from no patient decided positive to all; the score of a corner is the lowest that is."""

    fpr: FloatArray
    tpr: FloatArray
    score: FloatArray


def operating_points(rows: Scored, specificity: float, sensitivity: float, level: float, least: int) -> tuple[Limits, Limits]:
    """The sensitivity of each group at this specificity, and its specificity at this sensitivity."""
    curves = _curves(rows)
    first = _read(rows, [(c.fpr, c.tpr, c.score) for c in curves], 1 - specificity, ("fpr", "tpr"), level, least)
    found = _read(rows, [(c.tpr, c.fpr, c.score) for c in curves], sensitivity, ("tpr", "fpr"), level, least)
    return first, Limits(1 - found.value, 1 - found.high, 1 - found.low, found.patients, found.why)


def _read(
    rows: Scored, curves: list[tuple[FloatArray, FloatArray, FloatArray]], at: float, rates: tuple[str, str], level: float, least: int
) -> Limits:
    """The second rate of each group where the first is `at`."""
    of = rows.clusters
    known = rows.rarer >= least
    value, cut = np.full(of.groups, np.nan), np.zeros(of.groups)
    for k in np.flatnonzero(known):
        across, up, score = curves[k]
        value[k] = _height(at, across, up, lowest=rates[1] == "fpr")
        cut[k] = score[min(int(np.searchsorted(across, at - CLOSE, side="left")), len(score) - 1)]
    decided = (rows.score >= cut[of.code]).astype(np.float64)
    units = np.arange(len(of.code)) if of.place is None else of.place
    sums = moments_of(decided, rows.y, of.code, of.groups, units, rows.weight)
    size, other = (fewer_clusters(sums.size(rate), sums.degrees(rate), level) for rate in rates)
    low, high = wilson(value, other, level)
    near = wilson(np.where(known, at, np.nan), size, level)
    ends = []
    for rate, own, sign in zip(near, (low, high), (-1.0, 1.0), strict=True):
        reached = value.copy()
        for k in np.flatnonzero(known):
            across, up, _ = curves[k]
            reached[k] = np.interp(rate[k], *_smoothed(across, up, size[k]))
        ends.append(np.clip(value + sign * np.hypot(own - value, reached - value), 0.0, 1.0))
    why = tuple(ENOUGH if enough else TOO_FEW for enough in known)
    return Limits(value, ends[0], ends[1], rows.rarer, why)


def _height(at: float, across: FloatArray, up: FloatArray, *, lowest: bool) -> float:
    """The height of a curve at a position, linearly between its corners; where it rises straight, its lower or its upper end."""
    first, last = int(np.searchsorted(across, at - CLOSE, side="left")), int(np.searchsorted(across, at + CLOSE, side="right"))
    if first < last:  # corners at this very position
        return float(up[first] if lowest else up[last - 1])
    return float(np.interp(at, across, up))


def _smoothed(across: FloatArray, up: FloatArray, size: float) -> tuple[FloatArray, FloatArray]:
    """The curve through the middles of its steps, the i-th of m at i / (m + 1), so that it says something beyond the outermost scores.

    The next patient's score lies above the highest of m once in m + 1 times: where a curve starts and ends, few rows cannot tell.
    """
    moves = np.flatnonzero(np.diff(across) > 0)
    middle = ((across[moves] + across[moves + 1]) / 2 * size + 0.5) / (size + 1)
    height = (up[moves] + up[moves + 1]) / 2
    return np.concatenate([[0.0], middle, [1.0]]), np.concatenate([[0.0], height, [1.0]])


def _curves(rows: Scored) -> list[_Curve]:
    """The ROC curve of each group."""
    of = rows.clusters
    order = np.argsort(-rows.score)
    narrow = of.code.astype(np.int16) if of.groups < 2**15 else of.code  # which NumPy sorts by radix
    order = order[np.argsort(narrow[order], kind="stable")]
    starts = np.searchsorted(of.code[order], np.arange(of.groups + 1))
    found = []
    for first, last in itertools.pairwise(starts):
        own = order[first:last]
        score, y, w = rows.score[own], rows.y[own], rows.weight[own]
        ends = np.flatnonzero(np.append(np.diff(score) != 0, True)) if len(own) else np.zeros(0, np.int64)
        sides = []
        for label in (0.0, 1.0):
            sums = np.append(0.0, np.cumsum(w * (y == label))[ends])
            sides.append(sums / sums[-1] if sums[-1] > 0 else sums)
        found.append(_Curve(sides[0], sides[1], np.append(np.inf, score[ends])))
    return found


CURVES = ["attribute", "group", "threshold", "net_benefit", "low", "high", "treat_all", "treat_none"]


def decision_curves(
    rows: Scored, attribute: str, levels: Sequence[str], thresholds: Sequence[float], level: float, least: int
) -> pd.DataFrame:
    """One row per group and threshold; a group with too few patients has no net benefit."""
    of, w, y = rows.clusters, rows.weight, rows.y
    cuts = np.asarray(thresholds, dtype=np.float64)
    total, patients = of.sum(w), of.patients()
    value, between = _proportions(rows, cuts)
    size = _size(rows, value, between)
    degrees = np.where(of.several(), np.maximum(patients - 1, 1.0), np.inf)
    low, high = wilson(value, fewer_clusters(size, degrees[:, None], level), level)
    odds = cuts / (1 - cuts)
    a, b = value[..., 0], value[..., 1]
    r = -np.sqrt(np.nan_to_num(ratio(a * b, (1 - a) * (1 - b))))
    correlation = np.stack([np.stack([np.ones_like(r), r], -1), np.stack([r, np.ones_like(r)], -1)], -2)
    signs = np.stack([np.ones_like(odds), -odds], -1)[:, None, :]
    benefit, below, above = combined(signs, value, low, high, correlation)
    share = ratio(of.sum(w * y), total)
    treat_all = share - (1 - share) * odds[:, None]
    enough = rows.rarer >= least
    known = [np.where(enough, v, np.nan).T.ravel() for v in (benefit, below, above, treat_all)]  # by group, then by threshold
    return pd.DataFrame(
        {
            "attribute": attribute,
            "group": np.repeat(np.asarray(levels, dtype=object), len(cuts)),
            "threshold": np.tile(cuts, of.groups),
            **dict(zip(("net_benefit", "low", "high", "treat_all"), known, strict=True)),
            "treat_none": 0.0,
        },
        columns=CURVES,
    )


def _proportions(rows: Scored, cuts: FloatArray) -> tuple[FloatArray, FloatArray]:
    """True and false positives per row (thresholds, groups, 2), and the sums of squares of patients' contributions around them."""
    of, w, y = rows.clusters, rows.weight, rows.y
    total = of.sum(w)[:, None]
    # In one pass: how many thresholds each score reaches, by group and label; then sums from the highest threshold down.
    cell = (of.code * 2 + (1 - y).astype(np.int64)) * (len(cuts) + 1) + np.searchsorted(cuts, rows.score, side="right")
    sums = []
    for values in (w, w**2):
        reached = sums_at(cell, values, of.groups * 2 * (len(cuts) + 1)).reshape(of.groups, 2, -1)
        sums.append(reached[..., ::-1].cumsum(-1)[..., ::-1][..., 1:].transpose(2, 0, 1))  # (thresholds, groups, 2)
    value = np.nan_to_num(ratio(sums[0], total))
    if of.place is None:
        return value, sums[1] * (1 - 2 * value) + value**2 * of.sum(w**2)[:, None]
    mass, between = of.by_patient(w), np.zeros_like(value)
    for at, cut in enumerate(cuts):
        decided = w * (rows.score >= cut)
        for k, part in enumerate((decided * y, decided * (1 - y))):
            between[at, :, k] = sums_at(of.group, (of.by_patient(part) - value[at, of.group, k] * mass) ** 2, of.groups)
    return value, between


def _size(rows: Scored, value: FloatArray, between: FloatArray) -> FloatArray:
    """The effective number of rows of proportions (thresholds, groups, 2), no more than there are; at 0 and 1 patients count as one."""
    of = rows.clusters
    total, patients = of.sum(rows.weight)[:, None], of.patients()[:, None]
    count = of.sum(1.0)[:, None]
    kish = np.minimum(ratio(total**2, of.squares(rows.weight)[:, None]), of.effective(rows.weight)[:, None])
    variance = np.nan_to_num(ratio(between, total**2) * ratio(patients, np.maximum(patients - 1, 0.0)))
    independent = ratio(value * (1 - value), np.maximum(count - 1, 1.0))
    seen = variance > 0
    effect = np.maximum(np.where(seen, np.nan_to_num(ratio(variance, independent), nan=1.0), 1.0), 1.0)
    return np.where(seen, count / effect, kish)


BINS = 10  # of equal width
RESAMPLES = 999  # of the labels of a calibrated model


def binned_error(rows: Scored, level: float, seed: int, least: int = 1) -> Limits:
    """The calibration error of each group over ten bins of equal width, with the band in which it lies for a calibrated model.

    Labels are resampled from the scores, for all rows of a bin at once: of n rows with mean score p, Binomial(n, p) are positive. With
    several rows per patient or unequal weights, n is the effective number, rows by Kish divided by the design effect of the residuals; bins
    then vary together, as the sums of residuals of the same patients do (by reordering the resamples: Iman and Conover 1982).
    """
    of, w = rows.clusters, rows.weight
    place = np.minimum((rows.score * BINS).astype(np.int64), BINS - 1)
    wide = of.groups * BINS
    cell = of.code * BINS + place
    weight, squared, mean, error = (
        sums_at(cell, values, wide).reshape(-1, BINS) for values in (w, w**2, w * rows.score, w * (rows.score - rows.y))
    )
    total = of.sum(w)
    value = ratio(np.abs(error).sum(-1), total)

    residual = w * (rows.score - rows.y)
    single = of.sum(residual**2)
    together, products = single, None
    if of.place is not None:  # sums by patient and bin
        sums = sums_at(of.place * BINS + place, residual, len(of.group) * BINS).reshape(-1, BINS)
        products = np.zeros((of.groups, BINS, BINS))
        for a in range(BINS):
            for b in range(a + 1):
                products[:, a, b] = products[:, b, a] = sums_at(of.group, sums[:, a] * sums[:, b], of.groups)
        together = np.trace(products, axis1=1, axis2=2)
    effect = np.maximum(np.nan_to_num(ratio(together, single), nan=1.0), 1.0)
    size = np.nan_to_num(ratio(weight**2, squared)) / effect[:, None]
    share = np.clip(np.nan_to_num(ratio(mean, weight)), 0.0, 1.0)
    n = np.maximum(np.round(size), (weight > 0).astype(float)).astype(np.int64)
    rng = generator(seed, "calibrated labels")
    drawn = rng.binomial(n, share, (RESAMPLES, of.groups, BINS))
    if products is not None:
        drawn = _varying_together(drawn, products, rng)
    off = np.abs(share - drawn / np.maximum(n, 1)) * weight
    simulated = ratio(off.sum(-1), total)
    tail = (1 - level) / 2
    low, high = np.quantile(simulated, [tail, 1 - tail], axis=0)
    patients = of.patients()
    enough = patients >= least
    shown = [np.where(enough & ~np.isnan(value), v, np.nan) for v in (value, low, high)]
    return Limits(shown[0], shown[1], shown[2], patients)


def _varying_together(drawn: IntArray, products: FloatArray, rng: np.random.Generator) -> IntArray:
    """The draws (draws, groups, k) of each place, reordered so that places rank together as normal variables with these covariances do."""
    values, vectors = np.linalg.eigh(products)
    root = (vectors * np.sqrt(np.maximum(values, 0.0))[:, None, :]).astype(np.float32)
    normal = root @ rng.standard_normal((*products.shape[:-1], len(drawn)), dtype=np.float32)  # (groups, k, draws)
    ordered = np.sort(np.moveaxis(drawn, 0, -1).astype(np.int32), axis=-1)
    reordered = np.empty_like(ordered)
    np.put_along_axis(reordered, normal.argsort(axis=-1), ordered, axis=-1)
    return np.moveaxis(reordered, -1, 0).astype(np.int64)


OF_ALL = ("brier", "calibration_intercept", "calibration_slope", "calibration_in_the_large")  # also estimated for all rows together
AT_POINTS = ("sensitivity_at_specificity", "specificity_at_sensitivity")
SCORE_MEASURES = (*OF_ALL, *AT_POINTS)  # each with an interval; the calibration error has a band instead
SAMPLED_MEASURES = ("calibration_intercept", "calibration_slope")  # of all rows together, those that may come from a sample
EVERYONE = "all"  # attribute and group of all rows together, with or without a group


@dataclass(frozen=True, eq=False)
class ScoreMeasures:
    """What was found for the groups of one attribute."""

    limits: dict[str, Limits]  # by measure
    error: Limits  # the binned calibration error, with the band of a calibrated model in place of an interval
    curves: pd.DataFrame  # one row per group and threshold


def estimate_scores(
    scores: Scores,
    attribute: Attribute,
    units: IntArray,
    settings: Settings,
) -> ScoreMeasures:
    """The measures of the scores of each group."""
    level, least = settings.level, settings.min_patients
    rows = Scored.of(scores.score, scores.y, attribute.codes, len(attribute.levels), units, scores.weight)
    intercept, slope, large = recalibrated(rows, level, least)
    found = (
        brier(rows, level, least),
        intercept,
        slope,
        large,
        *operating_points(rows, settings.specificity, settings.sensitivity, level, least),
    )
    curves = decision_curves(rows, attribute.name, attribute.levels, settings.thresholds, level, least)
    return ScoreMeasures(dict(zip(SCORE_MEASURES, found, strict=True)), binned_error(rows, level, settings.seed, least), curves)


def with_score_measures(groups: pd.DataFrame, found: ScoreMeasures, least: int, unit: str, used: IntArray) -> pd.DataFrame:
    """The frame of groups with the columns of these measures; those of few patients, and reasons, next to those of the others.

    `used` are the rows of each group that they come from, all of them or a sample (column "sampled").
    """
    columns: dict[str, npt.NDArray[Any]] = {}
    rare: list[list[str]] = [[] for _ in range(len(groups))]
    short: list[list[str]] = [[] for _ in range(len(groups))]
    lacking: list[list[str]] = [[] for _ in range(len(groups))]
    for name, limits in found.limits.items():
        columns |= {name: limits.value, f"{name}_low": limits.low, f"{name}_high": limits.high}
        for k, why in enumerate(limits.why):
            if why == TOO_FEW:
                short[k].append(name)
            elif why:
                lacking[k].append(f"{name} ({REASONS[why]})")
            elif limits.patients[k] < FEW:
                rare[k].append(name)
    columns[CALIBRATION_ERROR] = found.error.value
    columns |= {f"{CALIBRATION_ERROR}_expected_{end}": ends for end, ends in (("low", found.error.low), ("high", found.error.high))}
    for names, value in zip(short, found.error.value, strict=True):
        if np.isnan(value):
            names.append(CALIBRATION_ERROR)
    few = [", ".join(filter(None, (old, *new))) for old, new in zip(groups["few"], rare, strict=True)]
    notes = []
    for old, names, other in zip(groups["note"], short, lacking, strict=True):
        start = [old] if old or not names else [f"{INSUFFICIENT} (fewer than {least} {unit}): {names.pop(0)}"]
        notes.append("; ".join(filter(None, (", ".join([*start, *names]), f"{INSUFFICIENT}: {', '.join(other)}" if other else ""))))
    added = pd.DataFrame({**columns, "sampled": used, "few": few, "note": notes}, index=groups.index)
    return pd.concat([groups.drop(columns=["few", "note"]), added], axis=1)


def overall(found: ScoreMeasures, name: str, sampled: str = "") -> Estimate:
    """A measure of all rows together; `sampled` is the note on one that comes from a sample of them."""
    limits = found.limits[name]
    note = f"{INSUFFICIENT}: {REASONS[limits.why[0]]}" if limits.why[0] else sampled if name in SAMPLED_MEASURES else ""
    return Estimate(float(limits.value[0]), float(limits.low[0]), float(limits.high[0]), note)


def everyone(rows: int) -> Attribute:
    """An attribute with one group that holds all rows."""
    return Attribute(EVERYONE, (EVERYONE,), np.zeros(rows, np.int64))
