"""Probes: cross-fitted, ridge-penalised logistic regressions of a label or a group on a network's features, for several penalties.

With two classes, and few features or many more rows than features, Newton's method needs a few steps, and its Hessian is a sum over
folds: one pass gives those of all rows and, by subtraction, of all rows without each fold, from which the regressions without a fold are
a few cheap steps away. Otherwise each is scikit-learn's, with any number of classes. Both minimise the same objective, penalty * sum of
losses + |w|^2 / 2. On the validation set of Adult (9,044 rows, 98 features, 5 folds, one core) a probe takes 0.65 s this way and 2.1 s by
scikit-learn alone; of 150 rows and 40 features 0.01 s and 0.17 s, most of which are scikit-learn's checks of its input.

Nearly all of the time of Newton's method goes into products with the features. Those of many images are computed on the GPU that the
network computes on, in double precision as by numpy; all else is the same code. Those of few features are computed by one thread: on two
loaded cores, two threads took up to 30 times as long.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve
from scipy.special import expit

from equipoise.data import IntArray, Rows, assign_folds, generator
from equipoise.models.products import Features
from equipoise.models.protocol import BoolArray, FloatArray

if TYPE_CHECKING:  # probes of scores alone need no torch
    import torch

PENALTIES = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)  # C of scikit-learn for standardised features: the larger, the weaker the penalty
WORSE = 1.02  # times the best loss: beyond it, weaker penalties are not tried
FREE = 30.0  # scale of the network's own logit, large enough that the penalty hardly affects it
NEVER = -1  # the fold of rows that are never held out
NARROW = 120  # features up to which Newton's method is always faster
TALL = 10  # rows per feature from which it is faster with more features
SMALL = 1e-5  # largest gradient of the mean loss at convergence; scikit-learn's tolerance is 1e-4
NEWTON_STEPS = 50  # at most
CHEAP = 5  # steps with a Hessian from elsewhere before it is computed again
RISE = 1e-12  # relative rise of the loss that counts as rounding
FEW = 2**22  # numbers below which threads of numpy would take longer to agree than to compute
USUAL_STEPS = 4  # of Newton's method, for one penalty
BLOCK = 2**21  # numbers that products are measured with
LEAST = 0.2  # of the time of a fit that grows with the rows, whatever a short measurement finds


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
        return chances(self.weight, self.bias, x)


def fit_probe(
    x: FloatArray,
    target: IntArray,
    classes: int,
    folds: IntArray,
    rows: BoolArray | None = None,
    free: int = 0,
    more: tuple[FloatArray, IntArray] | None = None,
    finest: float = 0.0,
    device: "torch.device | None" = None,
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
    with _threads(x.size):
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


def _threads(numbers: int) -> AbstractContextManager[object]:
    """The threads of numpy's products with so many numbers: one where they are few, otherwise as many as there are."""
    return _libraries().limit(limits=1) if numbers < FEW else nullcontext()


@cache
def _libraries() -> Any:
    from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

    return ThreadpoolController()


def probe_seconds(x: FloatArray, target: IntArray, classes: int, folds: int, rows: int, device: "torch.device | None" = None) -> float:
    """About how long `fit_probe` takes on so many rows like these, on this machine.

    Probes of these rows and of a quarter of them are fitted: what is the same for both is not for more rows either. Where so many rows are
    fitted in another way than these few, the products of that way are measured instead.
    """
    few, many = (classes == 2 and _by_newton(n, x.shape[1]) for n in (len(x), rows))
    if many and (device is not None or not few):
        return _newton_seconds(x, folds, rows, device)
    known = target >= 0
    if len(np.unique(target[known])) > 1:
        x, target = x[known], target[known]
    else:  # these few happen to be of one group
        target = np.arange(len(x)) % classes

    def fitted(step: int) -> float:
        part = slice(None, None, step)
        return _timed(lambda: fit_probe(x[part], target[part], classes, np.arange(len(x[part])) % folds))

    fitted(1)  # the first fit loads libraries
    whole = fitted(1)
    fewer = fitted(4) if len(x) >= 8 * folds else 0.0
    each = max(whole - fewer, LEAST * whole) / (0.75 * len(x))
    return whole + max(0, rows - len(x)) * each


def _newton_seconds(x: FloatArray, folds: int, rows: int, device: "torch.device | None") -> float:
    """The usual number of Newton's steps for every penalty, each with a Hessian of all rows, its solution, and products for each fold."""
    block = np.resize(x, (max(len(x), min(rows, BLOCK // x.shape[1])), x.shape[1]))
    features = Features.on(block, device).with_ones()
    weight, theta = np.full(len(block), 0.25), np.zeros((x.shape[1] + 1, folds))

    def products() -> None:
        features.against(expit(features.times(theta)))

    with _threads(rows * x.shape[1]):
        hessian = features.gram(weight, slice(None)) + np.eye(len(theta)) * len(block)
        products()
        gram, product = _timed(lambda: features.gram(weight, slice(None))), _timed(products)
        solved = _timed(lambda: cho_factor(hessian))
    step = rows / len(block) * (gram + 2 * product) + solved
    return len(PENALTIES) * (USUAL_STEPS * step + folds * solved)


def _timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _by_newton(rows: int, features: int) -> bool:
    """Whether Newton's method is faster with so many rows and features."""
    return features <= max(NARROW, rows / TALL)


def _shares(target: IntArray, classes: int) -> FloatArray:
    shares: FloatArray = np.bincount(target, minlength=classes) / len(target)
    return shares


def log_loss(chances: FloatArray, target: IntArray) -> float:
    """The mean log loss of probabilities (n, classes)."""
    return float(-np.log(np.clip(chances[np.arange(len(target)), target], 1e-12, None)).mean())


@dataclass(frozen=True, eq=False)
class Fit:
    """A regression with one penalty."""

    penalty: float
    held_out: FloatArray  # (n, classes): the probabilities of all rows, from regressions without their fold
    final: Callable[[], tuple[FloatArray, FloatArray]]  # the weights (classes, d) and biases (classes,) from all rows


def fits(
    z: "FloatArray | torch.Tensor",
    target: IntArray,
    classes: int,
    folds: IntArray,
    known: BoolArray,
    counts: FloatArray,
    penalties: Sequence[float],
) -> Iterator[Fit]:
    """The regressions of a target on standardised features (n, d), fitted to the `known` rows with the weights in `counts`.

    Products with features in a tensor are computed on its device. Rows in a fold below 0 are never held out. Give the penalties from the
    strongest to the weakest.
    """
    trained = [known & (folds != fold) for fold in range(int(folds.max()) + 1)]
    if classes == 2 and _by_newton(int(known.sum()), z.shape[1]) and all(len(np.unique(target[rows])) == 2 for rows in trained):
        features = Features(z)
        quick = _Newton(features[known], target[known], folds[known], counts[known])
        while penalties:
            found = quick.fit(penalties[0])
            if found is None:  # not converged
                break
            whole, without = found
            raw = features.times(whole[:-1]) + whole[-1]
            for fold, own in enumerate(without):
                raw[folds == fold] = features[folds == fold].times(own[:-1]) + own[-1]
            chance = expit(raw)
            yield Fit(penalties[0], np.column_stack([1 - chance, chance]), partial(_of_two, whole))
            penalties = penalties[1:]
    yield from _one_by_one(Features(z).array(), target, classes, folds, known, counts, penalties)


def _of_two(theta: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Weights and biases of two classes, the second against the first."""
    return np.stack([np.zeros(len(theta) - 1), theta[:-1]]), np.array([0.0, theta[-1]])


def _one_by_one(
    z: FloatArray, target: IntArray, classes: int, folds: IntArray, known: BoolArray, counts: FloatArray, penalties: Sequence[float]
) -> Iterator[Fit]:
    def fitted(own: BoolArray, penalty: float) -> tuple[FloatArray, FloatArray]:
        return regression(z[own], target[own], classes, penalty, counts[own])

    for penalty in penalties:
        held_out = np.empty((len(z), classes))
        for fold in range(int(folds.max()) + 1):
            held_out[folds == fold] = chances(*fitted(known & (folds != fold), penalty), z[folds == fold])
        yield Fit(penalty, held_out, partial(fitted, known, penalty))


def regression(z: FloatArray, target: IntArray, classes: int, penalty: float, counts: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Weights (classes, d) and biases by scikit-learn; a class without rows has probability 0."""
    from sklearn.linear_model import LogisticRegression

    weight, bias = np.zeros((classes, z.shape[1])), np.full(classes, -np.inf)
    there = np.unique(target)
    bias[there] = 0.0
    if len(there) > 1:
        model = LogisticRegression(C=penalty, max_iter=1000, tol=1e-4).fit(z, target, sample_weight=counts)
        first = 1 if len(there) == 2 else 0  # of two, the second against the first
        weight[there[first:]], bias[there[first:]] = model.coef_, model.intercept_
    return weight, bias


def chances(weight: FloatArray, bias: FloatArray, z: FloatArray) -> FloatArray:
    """The probabilities (n, classes)."""
    raw = z @ weight.T + bias
    e = np.exp(raw - raw.max(1, keepdims=True))
    found: FloatArray = e / e.sum(1, keepdims=True)
    return found


class _Newton:
    """Regressions of a binary label with one penalty after another, each started from the solution of the last."""

    def __init__(self, z: Features, target: IntArray, folds: IntArray, counts: FloatArray) -> None:
        order = np.argsort(folds, kind="stable")  # so that a fold's rows are contiguous
        self.x = z.with_ones()[order]
        self.y, self.counts = target[order].astype(np.float64), counts[order]
        edges = np.searchsorted(folds[order], np.arange(int(folds.max()) + 2))
        self.never, self.folds = slice(0, edges[0]), [slice(a, b) for a, b in pairwise(edges)]
        self.without = np.repeat(self.counts[:, None], len(self.folds), 1)  # (n, folds): the rows' weights without a fold
        for k, fold in enumerate(self.folds):
            self.without[fold, k] = 0.0
        self.ridge = np.ones(self.x.x.shape[1])
        self.ridge[-1] = 0.0  # of the intercept
        self.theta = np.zeros(len(self.ridge))
        self.enough = SMALL * counts.sum()

    def fit(self, penalty: float) -> tuple[FloatArray, FloatArray] | None:
        """Slopes and intercept (d + 1,) of all rows, and (folds, d + 1) without each fold; None if they do not converge."""
        ridge = self.ridge / penalty
        try:
            hessians = self._whole(ridge)
            each = None if hessians is None else self._folds(hessians, ridge)
        except LinAlgError:
            return None
        return None if each is None else (self.theta, each)

    def _whole(self, ridge: FloatArray) -> list[FloatArray] | None:
        """The Hessians without each fold at the solution, or one step before it; the solution is in `theta`. None without convergence."""
        hessian, parts = np.empty(0), list[FloatArray]()
        loss = self._loss(self.theta, ridge)
        for step in range(NEWTON_STEPS):
            chance = expit(self.x.times(self.theta))
            slope = self.x.against(self.counts * (chance - self.y)) + ridge * self.theta
            if step and np.abs(slope).max() <= self.enough:
                return [hessian - part for part in parts]
            weight = self.counts * chance * (1 - chance)
            parts = [self.x.gram(weight, fold) for fold in self.folds]
            hessian = self.x.gram(weight, self.never) + sum(parts) + np.diag(ridge)
            move = cho_solve(cho_factor(hessian), slope)
            for _ in range(NEWTON_STEPS):  # halve the step while the loss would rise
                further = self.theta - move
                found = self._loss(further, ridge)
                if found <= loss * (1 + RISE):
                    break
                move = move / 2
            self.theta, loss = further, found
        return None

    def _folds(self, hessians: Sequence[FloatArray], ridge: FloatArray) -> FloatArray | None:
        """The solutions (folds, d + 1) without each fold, from that of the whole and the Hessians there."""
        theta = np.repeat(self.theta[:, None], len(self.folds), 1)
        factors = [cho_factor(hessian) for hessian in hessians]
        for step in range(1, NEWTON_STEPS):
            chance = expit(self.x.times(theta))
            slope = self.x.against(self.without * (chance - self.y[:, None])) + ridge[:, None] * theta
            going = np.flatnonzero(np.abs(slope).max(0) > self.enough)
            if not len(going):
                return theta.T
            for k in going:
                if step % CHEAP == 0:
                    weight = self.without[:, k] * chance[:, k] * (1 - chance[:, k])
                    factors[k] = cho_factor(self.x.gram(weight, slice(None)) + np.diag(ridge))
                theta[:, k] -= cho_solve(factors[k], slope[:, k])
        return None

    def _loss(self, theta: FloatArray, ridge: FloatArray) -> float:
        raw = self.x.times(theta)
        return float(self.counts @ (np.logaddexp(0, raw) - self.y * raw) + ridge @ theta**2 / 2)
