"""Recalibration of scores by Platt scaling, logit P(y = 1) = intercept + slope * logit(score), and a summary of calibration.

Platt, "Probabilistic outputs for support vector machines", 1999, with his smoothed targets for labels, slightly inside 0 and 1, so that the
slope stays finite if the scores separate the labels. The target may also be a probability. The map has only two parameters because a repair
set has too few rows for a flexible curve, and because an affine map of the logit can be part of a network's last layer.
"""

from dataclasses import asdict, dataclass

import numpy as np

from equipoise.measures.calibration import NEWTON, expit, logit
from equipoise.measures.cells import FloatArray, IntArray, sums_at
from equipoise.measures.score_measures import BINS

EDGE = 1e-6  # scores are clipped to [EDGE, 1 - EDGE], so that their logits are finite
CONVERGED = 1e-9
HALVINGS = 30


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
        place = np.minimum((score * BINS).astype(np.int64), BINS - 1)
        difference = sums_at(place, w * (score - target), BINS)
        fitted = _logistic_regression(score, np.asarray(target, dtype=np.float64), w)
        slope = np.nan if fitted is None else fitted[0]
        return cls(float(difference.sum() / w.sum()), slope, float(np.abs(difference).sum() / w.sum()))

    def to_dict(self) -> dict[str, float]:
        """Plain values for JSON."""
        return asdict(self)


def clipped_logit(score: FloatArray) -> FloatArray:
    """The logits of scores, finite even at 0 and 1."""
    return logit(np.clip(score, EDGE, 1 - EDGE))


def logit_map(score: FloatArray, target: FloatArray | IntArray, weight: FloatArray | None = None) -> LogitMap | None:
    """The map that fits the scores best to these labels or probabilities; None if it is not increasing or cannot be estimated.

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
    mean, sd = np.average(x, weights=w), x.std()
    z = np.column_stack([(x - mean) / sd, np.ones(len(x))])
    theta = np.array([sd, mean])  # slope 1 and intercept 0 on the original scale

    def loss(theta: FloatArray) -> float:
        eta = z @ theta
        return float(w @ (np.logaddexp(0, eta) - target * eta))

    reached = loss(theta)
    for _ in range(NEWTON):
        mu = expit(z @ theta)
        gradient = z.T @ (w * (mu - target))
        step = np.linalg.lstsq((z * (w * mu * (1 - mu))[:, None]).T @ z, gradient, rcond=None)[0]
        for _ in range(HALVINGS):
            if loss(theta - step) <= reached + CONVERGED:
                break
            step = step / 2
        theta, reached = theta - step, loss(theta - step)
        if np.abs(step).max() < CONVERGED:
            break
    fitted = float(theta[0] / sd), float(theta[1] - theta[0] * mean / sd)
    return fitted if np.isfinite(fitted).all() else None
