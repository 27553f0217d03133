"""The binned calibration error: the mean distance of the score from the share with the finding over ten bins.

It is positive for a calibrated model too, so it comes with the band in which 95 % of calibrated models would lie on the same scores.
"""

from dataclasses import dataclass

import numpy as np

from equipoise.data import generator
from equipoise.measures.calibration import Scored
from equipoise.measures.cells import FloatArray, IntArray, ratio, sums_at

BINS = 10  # of equal width
RESAMPLES = 999  # of the labels of a calibrated model


@dataclass(frozen=True, eq=False)
class Band:
    """The calibration error of each group and the band of a calibrated model (groups,)."""

    value: FloatArray
    low: FloatArray
    high: FloatArray


def binned_error(rows: Scored, level: float, seed: int, least: int = 1) -> Band:
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
    enough = of.patients() >= least
    shown = [np.where(enough & ~np.isnan(value), v, np.nan) for v in (value, low, high)]
    return Band(shown[0], shown[1], shown[2])


def _varying_together(drawn: IntArray, products: FloatArray, rng: np.random.Generator) -> IntArray:
    """The draws (draws, groups, k) of each place, reordered so that places rank together as normal variables with these covariances do."""
    values, vectors = np.linalg.eigh(products)
    root = (vectors * np.sqrt(np.maximum(values, 0.0))[:, None, :]).astype(np.float32)
    normal = root @ rng.standard_normal((*products.shape[:-1], len(drawn)), dtype=np.float32)  # (groups, k, draws)
    ordered = np.sort(np.moveaxis(drawn, 0, -1).astype(np.int32), axis=-1)
    reordered = np.empty_like(ordered)
    np.put_along_axis(reordered, normal.argsort(axis=-1), ordered, axis=-1)
    return np.moveaxis(reordered, -1, 0).astype(np.int64)
