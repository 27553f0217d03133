"""Recalibration of scores by a strictly increasing map: Platt's, logit P(y = 1) = intercept + slope * logit(score), and what it is worth.

Platt, "Probabilistic outputs for support vector machines", 1999, with his targets for labels, which are a little short of 0 and 1, so that
the slope stays finite where the scores separate the labels. The target may be a probability as well. Two numbers: more rows than a repair
has would be needed to fit a bent curve without its dents, and an affine map of the logit can be part of a network's last layer.
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
    """How far scores are from labels, or from probabilities: mean difference, slope of the logits, mean distance over ten bins."""

    in_the_large: float
    slope: float  # NaN where it cannot be estimated
    error: float

    @classmethod
    def of(cls, score: FloatArray, target: FloatArray | IntArray, weight: FloatArray | None = None) -> "Calibration":
        """The calibration of all rows together, against labels or probabilities."""
        w = np.ones(len(score)) if weight is None else weight
        place = np.minimum((score * BINS).astype(np.int64), BINS - 1)
        off = sums_at(place, w * (score - target), BINS)
        fitted = _regression(score, np.asarray(target, dtype=np.float64), w)
        return cls(float(off.sum() / w.sum()), np.nan if fitted is None else fitted[0], float(np.abs(off).sum() / w.sum()))

    def to_dict(self) -> dict[str, float]:
        """Plain values for JSON."""
        return asdict(self)


def clipped_logit(score: FloatArray) -> FloatArray:
    """The logits of scores, finite at 0 and 1 too."""
    return logit(np.clip(score, EDGE, 1 - EDGE))


def logit_map(score: FloatArray, target: FloatArray | IntArray, weight: FloatArray | None = None) -> LogitMap | None:
    """The map that makes these scores fit these labels, or probabilities, best; None where none that increases does.

    >>> rng = np.random.default_rng(0)
    >>> z, u = rng.normal(size=20_000), rng.random(20_000)
    >>> found = logit_map(expit(2 * z + 1), (u < expit(z)).astype(int))  # scores that are too extreme, and too high
    >>> round(found.slope, 1), round(found.intercept, 1)
    (0.5, -0.5)
    """
    w, wanted = np.ones(len(score)) if weight is None else weight, np.asarray(target, dtype=np.float64)
    if np.isin(wanted, (0.0, 1.0)).all():
        positives, negatives = float(w @ wanted), float(w @ (1 - wanted))
        if min(positives, negatives) <= 0:
            return None
        wanted = np.where(wanted == 1, (positives + 1) / (positives + 2), 1 / (negatives + 2))
    fitted = _regression(score, wanted, w)
    return None if fitted is None or not fitted[0] > 0 else LogitMap(*fitted)


def _regression(score: FloatArray, target: FloatArray, w: FloatArray) -> tuple[float, float] | None:
    """Slope and intercept of the logistic regression of targets in [0, 1] on the logits of scores; None where there is none."""
    x = clipped_logit(score)
    if np.ptp(x) == 0 or np.ptp(target) == 0:
        return None
    mean, spread = np.average(x, weights=w), x.std()
    z = np.column_stack([(x - mean) / spread, np.ones(len(x))])
    theta = np.array([spread, mean])  # the scores as they are

    def loss(at: FloatArray) -> float:
        raw = z @ at
        return float(w @ (np.logaddexp(0, raw) - target * raw))

    reached = loss(theta)
    for _ in range(NEWTON):
        mu = expit(z @ theta)
        slope = z.T @ (w * (mu - target))
        step = np.linalg.lstsq((z * (w * mu * (1 - mu))[:, None]).T @ z, slope, rcond=None)[0]
        for _ in range(HALVINGS):
            if loss(theta - step) <= reached + CONVERGED:
                break
            step = step / 2
        theta, reached = theta - step, loss(theta - step)
        if np.abs(step).max() < CONVERGED:
            break
    found = float(theta[0] / spread), float(theta[1] - theta[0] * mean / spread)
    return found if np.isfinite(found).all() else None
