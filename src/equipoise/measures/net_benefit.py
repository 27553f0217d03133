"""Decision curves: the net benefit of deciding by a score at a range of thresholds, per group.

With the threshold t, a false positive costs t / (1 - t) of what a true positive is worth (Vickers and Elkin 2006):

    net benefit = true positives / n - false positives / n * t / (1 - t)

It is compared with deciding all patients positive (treat_all) and none (treat_none, which is 0). The interval combines the Wilson intervals
of both proportions (Zou and Donner 2008; both are parts of one n, so they are negatively correlated), with the effective number of rows of
several rows per patient or unequal weights. It treats the threshold as given, not as chosen on these rows.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from equipoise.measures.calibration import Scored
from equipoise.measures.cells import FloatArray, ratio, sums_at
from equipoise.measures.intervals import combined, fewer_clusters, wilson

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
