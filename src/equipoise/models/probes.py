"""Probes: cross-fitted, ridge-penalised logistic regressions of a label or a group on a network's features.

With two classes, and few features or many more rows than features, Newton's method needs a few steps, and its Hessian is a sum over folds:
one pass gives the Hessian of all rows and, by subtraction, of all rows without each fold, from which the regressions without a fold are a
few cheap steps away. Otherwise each regression is scikit-learn's, with any number of classes. Both minimise the same objective,
penalty * sum of losses + |w|^2 / 2. On the validation set of Adult (9,044 rows, 98 features, 5 folds, one core) a probe takes 0.65 s this
way and 2.1 s with scikit-learn; for 150 rows and 40 features 0.01 s and 0.17 s, most of which scikit-learn spends checking its input.

Nearly all of the time of Newton's method goes into products with the features, by numpy or, for many images, by torch in double precision
on the GPU that the network computes on. With few features they are computed by one thread: on two loaded cores, two threads took up to 30
times as long.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve
from scipy.special import expit

from equipoise.data import BoolArray, FloatArray, IntArray, Rows, assign_folds, generator

if TYPE_CHECKING:
    import torch

PENALTIES = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)  # C of scikit-learn for standardised features: the larger, the weaker the penalty
WORSE_LOSS = 1.02  # ratio to the best loss beyond which weaker penalties are not tried
FREE_SCALE = 30.0  # scale of the network's own logit, large enough that the penalty hardly affects it
NEVER_HELD_OUT = -1  # the fold of rows that are never held out
FEW_NUMBERS = 2**22  # numbers below which numpy's threads would take longer to synchronise than to compute
LEAST_GROWTH = 0.2  # smallest share of the time of a fit that is assumed to grow with the rows, whatever a short measurement shows
NARROW_FEATURES = 120  # number of features up to which Newton's method is always faster
TALL_RATIO = 10  # rows per feature above which it is faster with more features
SMALL_GRADIENT = 1e-5  # largest gradient of the mean loss at convergence; scikit-learn's tolerance is 1e-4
NEWTON_STEPS = 50  # at most
CHEAP_STEPS = 5  # steps with the same Hessian before it is computed again
LOSS_ROUNDING = 1e-12  # relative rise of the loss that counts as rounding
SCORE_SLOPE = 4.0  # makes the derivative of the score at 1/2 equal to that of the probability
DEPTHS = ("auto", "inputs", "last", "inputs and last", "hidden", "all")  # of the features of a network that probes read
AUROC_LABELS: dict[str, int | None] = {"auroc": None, "auroc_positives": 1, "auroc_negatives": 0}  # column: the label of its rows


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

    def loss_on(self, rows: BoolArray, target: IntArray) -> float:
        """The mean log loss of the held-out probabilities of some rows (n,), with a target (n,)."""
        return log_loss(self.held_out[rows], target[rows])


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

    The penalty is the one with the best held-out log loss.

    folds: the fold (n,) of each row, by `folds_of`.
    rows: those to fit to (n,), by default all.
    free: the number of features, the last ones, that are hardly penalised.
    more: features and targets of additional rows for the fit, weighted so that each class keeps the share that it has here.
    finest: a feature that varies by no more is not used: standardised, it would be rounding that the probe reads.
    device: where products with the features are computed, by default by numpy.
    """
    n = len(x)
    known = np.ones(n, bool) if rows is None else rows
    counts = np.ones(n)
    if more is not None:
        counts = np.concatenate([counts, _shares(target[known], classes)[more[1]] / _shares(more[1], classes)[more[1]]])
        x, target = np.concatenate([x, more[0]]), np.concatenate([target, more[1]])
        known, folds = np.concatenate([known, np.ones(len(more[1]), bool)]), np.concatenate([folds, np.full(len(more[1]), NEVER_HELD_OUT)])
    features = Features(x, device)
    mean, spread = features[known].moments()
    scale = np.where(spread > np.maximum(1e-6 * (1 + np.abs(mean)), finest), spread, np.inf)  # a constant carries no information
    if free:
        scale[-free:] /= FREE_SCALE
    z = features.standardised(mean, scale).x
    best: tuple[float, PenaltyFit] | None = None
    with _thread_pools().limit(limits=1) if x.size < FEW_NUMBERS else nullcontext():
        for fit in fits(z, target, classes, folds, known, counts, PENALTIES):
            loss = log_loss(fit.held_out[:n][known[:n]], target[:n][known[:n]])
            if best is None or loss < best[0]:
                best = loss, fit
            elif loss > WORSE_LOSS * best[0]:
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


@cache
def _thread_pools() -> Any:
    from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

    return ThreadpoolController()


def probe_seconds(x: FloatArray, target: IntArray, classes: int, folds: int, rows: int, device: "torch.device | None" = None) -> float:
    """Estimated duration of `fit_probe` on `rows` rows like those in `x`, on this machine.

    Times probes of these rows and of a quarter of them; the part of the time that both share does not grow with the rows.
    """
    known = target >= 0
    if len(np.unique(target[known])) > 1:
        x, target = x[known], target[known]
    else:  # these few happen to be of one group
        target = np.arange(len(x)) % classes

    def fit_seconds(step: int) -> float:
        part, start = slice(None, None, step), time.perf_counter()
        fit_probe(x[part], target[part], classes, np.arange(len(x[part])) % folds, device=device)
        return time.perf_counter() - start

    fit_seconds(1)  # the first fit loads libraries
    whole = fit_seconds(1)
    quarter = fit_seconds(4) if len(x) >= 8 * folds else 0.0
    return whole + max(0, rows - len(x)) * max(whole - quarter, LEAST_GROWTH * whole) / (0.75 * len(x))


def _tensor(values: Any, device: "torch.device") -> "torch.Tensor":
    import torch

    return torch.from_numpy(np.ascontiguousarray(values)).to(device)


class Features:
    """Features (n, d) and products with them, by numpy, or by torch on a device. Arguments and results are numpy arrays."""

    def __init__(self, x: Any, device: "torch.device | None" = None) -> None:
        self.numpy = isinstance(x, np.ndarray) and device is None
        self.x = x if device is None else _tensor(x, device)

    def _to_device(self, values: Any) -> Any:
        return values if self.numpy else _tensor(values, self.x.device)

    def to_numpy(self, values: Any = None) -> FloatArray:
        """Values on the device as an array; by default the features."""
        values = self.x if values is None else values
        array: FloatArray = values if self.numpy else values.cpu().numpy()
        return array

    def __getitem__(self, rows: BoolArray | IntArray) -> "Features":
        return Features(self.x[self._to_device(rows)])

    def moments(self) -> tuple[FloatArray, FloatArray]:
        """The mean and the standard deviation of each feature (d,)."""
        spread = self.x.std(0) if self.numpy else self.x.std(0, correction=0)
        return self.to_numpy(self.x.mean(0)), self.to_numpy(spread)

    def standardised(self, mean: FloatArray, scale: FloatArray) -> "Features":
        """The features minus a mean (d,), divided by a scale (d,)."""
        return Features((self.x - self._to_device(mean)) / self._to_device(scale))

    def with_ones(self) -> "Features":
        """The features and a column of ones, for an intercept."""
        if self.numpy:
            return Features(np.column_stack([self.x, np.ones(len(self.x))]))
        wider = self.x.new_ones(len(self.x), self.x.shape[1] + 1)
        wider[:, :-1] = self.x
        return Features(wider)

    def times(self, theta: FloatArray) -> FloatArray:
        """x theta (n,) or (n, k)."""
        return self.to_numpy(self.x @ self._to_device(theta))

    def against(self, values: FloatArray) -> FloatArray:
        """The sum over the rows of values (n,) or (n, k) times the features: (d,) or (d, k)."""
        return self.to_numpy(self.x.T @ self._to_device(values))

    def gram(self, weight: FloatArray, rows: slice) -> FloatArray:
        """The sum over some rows of weight * x x' (d, d); `weight` (n,) covers all rows."""
        roots = self._to_device(np.sqrt(weight[rows]))[:, None] * self.x[rows]
        return self.to_numpy(roots.T @ roots)


@dataclass(frozen=True, eq=False)
class PenaltyFit:
    """A regression with one penalty."""

    penalty: float
    held_out: FloatArray  # (n, classes): the probabilities of all rows, from regressions without their fold
    final: Callable[[], tuple[FloatArray, FloatArray]]  # the weights (classes, d) and biases (classes,) from all rows


def fits(
    z: Any, target: IntArray, classes: int, folds: IntArray, known: BoolArray, counts: FloatArray, penalties: Sequence[float]
) -> Iterator[PenaltyFit]:
    """The regressions of a target on standardised features (n, d), fitted to the `known` rows with the weights in `counts`.

    Products with features in a tensor are computed on its device. Rows in a fold below 0 are never held out. Give the penalties from the
    strongest to the weakest.
    """
    features, held = Features(z), range(int(folds.max()) + 1)
    trained = [known & (folds != fold) for fold in held]
    narrow = z.shape[1] <= max(NARROW_FEATURES, int(known.sum()) / TALL_RATIO)
    if classes == 2 and narrow and all(len(np.unique(target[rows])) == 2 for rows in trained):
        newton = _Newton(features[known], target[known], folds[known], counts[known])
        while penalties:
            try:
                solution = newton.fit(penalties[0])
            except LinAlgError:
                break
            if solution is None:  # not converged
                break
            whole, without_fold = solution
            weights = np.stack([np.zeros(len(whole) - 1), whole[:-1]]), np.array([0.0, whole[-1]])  # the second class against the first
            final: Callable[[], Any] = partial(tuple, weights)
            logits = features.times(whole[:-1]) + whole[-1]
            for fold, theta in enumerate(without_fold):
                logits[folds == fold] = features[folds == fold].times(theta[:-1]) + theta[-1]
            positive = expit(logits)
            yield PenaltyFit(penalties[0], np.column_stack([1 - positive, positive]), final)
            penalties = penalties[1:]
    x = features.to_numpy()

    def fitted(rows: BoolArray, penalty: float) -> tuple[FloatArray, FloatArray]:
        return regression(x[rows], target[rows], classes, penalty, counts[rows])

    for penalty in penalties:
        held_out = np.empty((len(x), classes))
        for fold in held:
            held_out[folds == fold] = probabilities(*fitted(trained[fold], penalty), x[folds == fold])
        yield PenaltyFit(penalty, held_out, partial(fitted, known, penalty))


def regression(z: FloatArray, target: IntArray, classes: int, penalty: float, counts: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Weights (classes, d) and biases by scikit-learn; a class without rows has probability 0."""
    from sklearn.linear_model import LogisticRegression

    weight, bias = np.zeros((classes, z.shape[1])), np.full(classes, -np.inf)
    present = np.unique(target)
    bias[present] = 0.0
    if len(present) > 1:
        model = LogisticRegression(C=penalty, max_iter=1000, tol=1e-4).fit(z, target, sample_weight=counts)
        first = 1 if len(present) == 2 else 0  # with two classes, scikit-learn has the weights of the second against the first
        weight[present[first:]], bias[present[first:]] = model.coef_, model.intercept_
    return weight, bias


def probabilities(weight: FloatArray, bias: FloatArray, z: FloatArray) -> FloatArray:
    """The probabilities (n, classes) of a multinomial regression."""
    logits = z @ weight.T + bias
    e = np.exp(logits - logits.max(1, keepdims=True))
    softmax: FloatArray = e / e.sum(1, keepdims=True)
    return softmax


class _Newton:
    """Regressions of a binary label with one penalty after another, each started from the solution of the last."""

    def __init__(self, z: Features, target: IntArray, folds: IntArray, counts: FloatArray) -> None:
        order = np.argsort(folds, kind="stable")  # so that a fold's rows are contiguous
        self.x = z.with_ones()[order]
        self.y, self.counts = target[order].astype(np.float64), counts[order]
        edges = np.searchsorted(folds[order], np.arange(int(folds.max()) + 2))
        self.never_held_out, self.folds = slice(0, edges[0]), [slice(a, b) for a, b in pairwise(edges)]
        self.counts_without = np.repeat(self.counts[:, None], len(self.folds), 1)  # (n, folds): the rows' weights without each fold
        for k, fold in enumerate(self.folds):
            self.counts_without[fold, k] = 0.0
        self.ridge = np.ones(self.x.x.shape[1])
        self.ridge[-1] = 0.0  # the intercept is not penalised
        self.theta = np.zeros(len(self.ridge))
        self.tolerance = SMALL_GRADIENT * counts.sum()

    def fit(self, penalty: float) -> tuple[FloatArray, FloatArray] | None:
        """Slopes and intercept (d + 1,) of all rows, and (folds, d + 1) without each fold; None if they do not converge."""
        ridge = self.ridge / penalty
        hessian, fold_hessians = np.empty(0), list[FloatArray]()
        loss = self._loss(self.theta, ridge)
        for step in range(NEWTON_STEPS):
            p = expit(self.x.times(self.theta))
            gradient = self.x.against(self.counts * (p - self.y)) + ridge * self.theta
            if step and np.abs(gradient).max() <= self.tolerance:
                break
            weight = self.counts * p * (1 - p)
            fold_hessians = [self.x.gram(weight, fold) for fold in self.folds]
            hessian = self.x.gram(weight, self.never_held_out) + sum(fold_hessians) + np.diag(ridge)
            move = cho_solve(cho_factor(hessian), gradient)
            for _ in range(NEWTON_STEPS):  # halve the step while the loss would rise
                candidate = self.theta - move
                candidate_loss = self._loss(candidate, ridge)
                if candidate_loss <= loss * (1 + LOSS_ROUNDING):
                    break
                move = move / 2
            self.theta, loss = candidate, candidate_loss
        else:
            return None
        # Without each fold, started from the solution of all rows and the Hessians there, or one step before.
        theta = np.repeat(self.theta[:, None], len(self.folds), 1)
        factors = [cho_factor(hessian - part) for part in fold_hessians]
        for step in range(1, NEWTON_STEPS):
            p = expit(self.x.times(theta))
            gradient = self.x.against(self.counts_without * (p - self.y[:, None])) + ridge[:, None] * theta
            unfinished = np.flatnonzero(np.abs(gradient).max(0) > self.tolerance)
            if not len(unfinished):
                return self.theta, theta.T
            for k in unfinished:
                if step % CHEAP_STEPS == 0:
                    weight = self.counts_without[:, k] * p[:, k] * (1 - p[:, k])
                    factors[k] = cho_factor(self.x.gram(weight, slice(None)) + np.diag(ridge))
                theta[:, k] -= cho_solve(factors[k], gradient[:, k])
        return None

    def _loss(self, theta: FloatArray, ridge: FloatArray) -> float:
        logits = self.x.times(theta)
        return float(self.counts @ (np.logaddexp(0, logits) - self.y * logits) + ridge @ theta**2 / 2)


@dataclass(frozen=True, eq=False)
class Heads:
    """The parts that a BiasScore adds to a network: the probes, and the probability at which a decision breaks even."""

    task: Probe  # predicts the label from the features and the logit
    groups: tuple[Probe, ...]  # predict the group, one per rate
    labels: tuple[int | None, ...]  # the label that each rate is conditional on
    centre: float  # the probability at which a positive decision is worth nothing

    def scores(self, chance: FloatArray, posteriors: Sequence[FloatArray], cost: FloatArray) -> FloatArray:
        """The score (n,) of a BiasScore from the probabilities of the label (n,) and of the groups (n, groups), one array per rate."""
        value = chance - self.centre
        for label, posterior, group_cost in zip(self.labels, posteriors, cost, strict=True):
            label_p = 1.0 if label is None else chance if label == 1 else 1 - chance
            value = value - label_p * (posterior @ group_cost)
        score: FloatArray = expit(SCORE_SLOPE * value)
        return score
