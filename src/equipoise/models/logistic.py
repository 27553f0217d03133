"""Ridge-penalised logistic regressions for several penalties and all folds: the fits behind probes.

With two classes and many more rows than features, Newton's method needs a few steps, and its Hessian is a sum over folds: one pass gives
those of all rows and, by subtraction, of all rows without each fold, from which the regressions without a fold are a few cheap steps
away. Otherwise each is scikit-learn's, with any number of classes. Both minimise the same objective, penalty * sum of losses + |w|^2 / 2.
On the validation set of Adult (9,044 rows, 98 features, 5 folds, one core) a probe takes 0.65 s this way and 2.1 s by scikit-learn alone.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve
from scipy.special import expit

from equipoise.models.protocol import BoolArray, FloatArray

IntArray = np.typing.NDArray[np.int64]
TALL = 10  # rows per feature from which Newton's method is faster
SMALL = 1e-5  # largest gradient of the mean loss at convergence; scikit-learn's tolerance is 1e-4
NEWTON_STEPS = 50  # at most
CHEAP = 5  # steps with a Hessian from elsewhere before it is computed again
RISE = 1e-12  # relative rise of the loss that counts as rounding


@dataclass(frozen=True, eq=False)
class Fit:
    """A regression with one penalty."""

    penalty: float
    held_out: FloatArray  # (n, classes): the probabilities of all rows, from regressions without their fold
    final: Callable[[], tuple[FloatArray, FloatArray]]  # the weights (classes, d) and biases (classes,) from all rows


def fits(
    z: FloatArray, target: IntArray, classes: int, folds: IntArray, known: BoolArray, counts: FloatArray, penalties: Sequence[float]
) -> Iterator[Fit]:
    """The regressions of a target on standardised features (n, d), fitted to the `known` rows with the weights in `counts`.

    Rows in a fold below 0 are never held out. Give the penalties from the strongest to the weakest.
    """
    trained = [known & (folds != fold) for fold in range(int(folds.max()) + 1)]
    if classes == 2 and known.sum() >= TALL * z.shape[1] and all(len(np.unique(target[rows])) == 2 for rows in trained):
        quick = _Newton(z[known], target[known], folds[known], counts[known])
        while penalties:
            found = quick.fit(penalties[0])
            if found is None:  # not converged
                break
            whole, without = found
            raw = z @ whole[:-1] + whole[-1]
            for fold, own in enumerate(without):
                raw[folds == fold] = z[folds == fold] @ own[:-1] + own[-1]
            chance = expit(raw)
            yield Fit(penalties[0], np.column_stack([1 - chance, chance]), partial(_of_two, whole))
            penalties = penalties[1:]
    yield from _one_by_one(z, target, classes, folds, known, counts, penalties)


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

    def __init__(self, z: FloatArray, target: IntArray, folds: IntArray, counts: FloatArray) -> None:
        order = np.argsort(folds, kind="stable")  # so that a fold's rows are contiguous
        self.x = np.column_stack([z, np.ones(len(z))])[order]
        self.y, self.counts = target[order].astype(np.float64), counts[order]
        edges = np.searchsorted(folds[order], np.arange(int(folds.max()) + 2))
        self.never, self.folds = slice(0, edges[0]), [slice(a, b) for a, b in pairwise(edges)]
        self.without = np.repeat(self.counts[:, None], len(self.folds), 1)  # (n, folds): the rows' weights without a fold
        for k, fold in enumerate(self.folds):
            self.without[fold, k] = 0.0
        self.ridge = np.ones(self.x.shape[1])
        self.ridge[-1] = 0.0  # of the intercept
        self.theta = np.zeros(self.x.shape[1])
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
            chance = expit(self.x @ self.theta)
            slope = self.x.T @ (self.counts * (chance - self.y)) + ridge * self.theta
            if step and np.abs(slope).max() <= self.enough:
                return [hessian - part for part in parts]
            roots = np.sqrt(self.counts * chance * (1 - chance))[:, None] * self.x
            parts = [roots[fold].T @ roots[fold] for fold in self.folds]
            hessian = roots[self.never].T @ roots[self.never] + sum(parts) + np.diag(ridge)
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
            chance = expit(self.x @ theta)
            slope = self.x.T @ (self.without * (chance - self.y[:, None])) + ridge[:, None] * theta
            going = np.flatnonzero(np.abs(slope).max(0) > self.enough)
            if not len(going):
                return theta.T
            for k in going:
                if step % CHEAP == 0:
                    roots = np.sqrt(self.without[:, k] * chance[:, k] * (1 - chance[:, k]))[:, None] * self.x
                    factors[k] = cho_factor(roots.T @ roots + np.diag(ridge))
                theta[:, k] -= cho_solve(factors[k], slope[:, k])
        return None

    def _loss(self, theta: FloatArray, ridge: FloatArray) -> float:
        raw = self.x @ theta
        return float(self.counts @ (np.logaddexp(0, raw) - self.y * raw) + ridge @ theta**2 / 2)
