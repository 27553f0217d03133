"""Probes: cross-fitted, ridge-penalised logistic regressions of a label or a group on a network's features (see `logistic`).

For many images, products with the features are computed on the GPU that the network computes on. With few features they are computed by
one thread: on two loaded cores, two threads took up to 30 times as long.
"""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from scipy.linalg import cho_factor
from scipy.special import expit

from equipoise.data import BoolArray, FloatArray, IntArray, Rows, assign_folds, generator
from equipoise.models.logistic import Features, Fit, fits, newton_is_faster, probabilities

PENALTIES = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)  # C of scikit-learn for standardised features: the larger, the weaker the penalty
WORSE = 1.02  # ratio to the best loss beyond which weaker penalties are not tried
FREE = 30.0  # scale of the network's own logit, large enough that the penalty hardly affects it
NEVER = -1  # the fold of rows that are never held out
FEW = 2**22  # numbers below which numpy's threads would take longer to synchronise than to compute
USUAL_STEPS = 4  # of Newton's method, for one penalty
BLOCK = 2**21  # numbers that products are timed with
LEAST = 0.2  # smallest share of the time of a fit that is assumed to grow with the rows, whatever a short measurement shows


def folds_of(cohort: Rows, count: int, seed: int) -> IntArray:
    """The fold (n,) of each row, by patient."""
    return assign_folds(cohort, count, generator(seed, "probe folds"))


@dataclass(frozen=True, eq=False)
class Probe:
    """A multinomial logistic regression on features, and the cross-fitted probabilities of the rows."""

    weight: FloatArray  # (classes, d), for features that are not standardised
    bias: FloatArray  # (classes,)
    held_out: FloatArray  # (n, classes)
    loss: float  # log loss of the held-out probabilities
    penalty: float
    more: int = 0  # additional rows in the fit, from outside the cohort

    def __call__(self, x: FloatArray) -> FloatArray:
        """The probabilities (n, classes) of the final model."""
        return probabilities(self.weight, self.bias, x)


def fit_probe(
    x: FloatArray,
    target: IntArray,
    classes: int,
    folds: IntArray,
    rows: BoolArray | None = None,
    free: int = 0,
    more: tuple[FloatArray, IntArray] | None = None,
    finest: float = 0.0,
    device: torch.device | None = None,
) -> Probe:
    """The probe of a target in 0..classes-1 from features (n, d), fitted to some of the rows and applied to all.

    The penalty is the one with the best held-out log loss. The last `free` features are hardly penalised. `more` holds features and
    targets of additional rows for the fit, weighted so that each class keeps the share that it has here. A feature that varies by no more
    than `finest` is not used: standardised, it would be rounding that the probe reads. With a `device`, products with the features are
    computed there.
    """
    n = len(x)
    known = np.ones(n, bool) if rows is None else rows
    counts = np.ones(n)
    if more is not None:
        counts = np.concatenate([counts, _shares(target[known], classes)[more[1]] / _shares(more[1], classes)[more[1]]])
        x, target = np.concatenate([x, more[0]]), np.concatenate([target, more[1]])
        known, folds = np.concatenate([known, np.ones(len(more[1]), bool)]), np.concatenate([folds, np.full(len(more[1]), NEVER)])
    features = Features.on(x, device)
    mean, spread = features[known].moments()
    scale = np.where(spread > np.maximum(1e-6 * (1 + np.abs(mean)), finest), spread, np.inf)  # a constant carries no information
    if free:
        scale[-free:] /= FREE
    z = features.standardised(mean, scale).x
    best: tuple[float, Fit] | None = None
    with _limited_threads(x.size):
        for fit in fits(z, target, classes, folds, known, counts, PENALTIES):
            loss = log_loss(fit.held_out[:n][known[:n]], target[:n][known[:n]])
            if best is None or loss < best[0]:
                best = loss, fit
            elif loss > WORSE * best[0]:
                break
        assert best is not None  # there are penalties
        loss, fit = best
        weight, bias = fit.final()
    weight = weight / scale
    return Probe(weight, bias - weight @ mean, fit.held_out[:n], loss, fit.penalty, len(x) - n)


def _shares(target: IntArray, classes: int) -> FloatArray:
    shares: FloatArray = np.bincount(target, minlength=classes) / len(target)
    return shares


def log_loss(chances: FloatArray, target: IntArray) -> float:
    """The mean log loss of probabilities (n, classes)."""
    return float(-np.log(np.clip(chances[np.arange(len(target)), target], 1e-12, None)).mean())


def _limited_threads(numbers: int) -> AbstractContextManager[object]:
    """One thread for numpy's products with few numbers; otherwise all threads."""
    return _thread_pools().limit(limits=1) if numbers < FEW else nullcontext()


@cache
def _thread_pools() -> Any:
    from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

    return ThreadpoolController()


def probe_seconds(x: FloatArray, target: IntArray, classes: int, folds: int, rows: int, device: torch.device | None = None) -> float:
    """Estimated duration of `fit_probe` on `rows` rows like those in `x`, on this machine.

    Times probes of these rows and of a quarter of them; the part of the time that both share does not grow with the rows. If `rows` rows
    would be fitted by Newton's method and these by scikit-learn, times the products of Newton's method instead.
    """
    newton_here, newton_there = (classes == 2 and newton_is_faster(n, x.shape[1]) for n in (len(x), rows))
    if newton_there and (device is not None or not newton_here):
        return _newton_seconds(x, folds, rows, device)
    known = target >= 0
    if len(np.unique(target[known])) > 1:
        x, target = x[known], target[known]
    else:  # these few happen to be of one group
        target = np.arange(len(x)) % classes

    def fit_seconds(step: int) -> float:
        part = slice(None, None, step)
        return _timed(lambda: fit_probe(x[part], target[part], classes, np.arange(len(x[part])) % folds))

    fit_seconds(1)  # the first fit loads libraries
    whole = fit_seconds(1)
    quarter = fit_seconds(4) if len(x) >= 8 * folds else 0.0
    per_row = max(whole - quarter, LEAST * whole) / (0.75 * len(x))
    return whole + max(0, rows - len(x)) * per_row


def _newton_seconds(x: FloatArray, folds: int, rows: int, device: torch.device | None) -> float:
    """Duration of the usual number of Newton steps for every penalty: a Hessian of all rows, its solution, and products for each fold."""
    block = np.resize(x, (max(len(x), min(rows, BLOCK // x.shape[1])), x.shape[1]))
    features = Features.on(block, device).with_ones()
    weight, theta = np.full(len(block), 0.25), np.zeros((x.shape[1] + 1, folds))

    def products() -> None:
        features.against(expit(features.times(theta)))

    with _limited_threads(rows * x.shape[1]):
        hessian = features.gram(weight, slice(None)) + np.eye(len(theta)) * len(block)
        products()
        gram, product = _timed(lambda: features.gram(weight, slice(None))), _timed(products)
        solution = _timed(lambda: cho_factor(hessian))
    step = rows / len(block) * (gram + 2 * product) + solution
    return len(PENALTIES) * (USUAL_STEPS * step + folds * solution)


def _timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
