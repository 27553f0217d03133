"""Whether the model is the limit: a logistic regression on the same inputs, against the original network and the repaired classifier.

A repair cannot do better than the network allows. A logistic regression with light L2 on what the network sees takes seconds to fit; where
it clearly has more performance, or as small a gap with clearly more performance than the repaired classifier, another model is worth
considering. With a gap to hold down it is fitted for costs (Agarwal et al. 2018, grid search): rows whose positive decision raises
performance plus a multiple of the smaller gap count as positive, by how much they raise it.

Of images it sees 16 x 16 pixels and a few statistics of each: less than the network, and enough to show a network that learnt little.
"""

import warnings
from dataclasses import replace
from typing import Any

import numpy as np

from equipoise.data import Cohort, Images, Scores, generator
from equipoise.measures import (
    AFFINE_PERFORMANCE,
    Baseline,
    FloatArray,
    IntArray,
    Rule,
    Settings,
    cell_index,
    choose_rule,
    gap_functional,
    is_quotient,
    performance_functional,
    sweep,
    tabulate,
    units_of,
    versus,
)
from equipoise.methods import Goal

STRENGTHS = (0.01, 0.1, 1.0)  # inverse weights of L2, chosen by log loss on rows that were not fitted to
MULTIPLES = (0.0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4)  # of the gap next to performance
FOLDS = 5
FEWEST = 50  # rows with each label to fit on
CELLS = 1_000_000  # numbers to fit to in folds, and twice as many at once; of more rows, patients are sampled, so that it takes seconds
HELD_OUT, OF_IMAGES = 20_000, 5_000  # rows to choose and to judge on, at most
SMALL = 16  # pixels on each side
QUANTILES = (0.05, 0.25, 0.75, 0.95)  # of the small image's pixels
STATISTICS = 2 + len(QUANTILES)
NEAR = 0.01  # a gap on the repair set that counts as none
EXTREME = 1e-6  # nearest that a probability comes to 0 or 1 in the log loss


def fit_baseline(
    test: Cohort,
    original: tuple[Scores, FloatArray],
    known: Cohort,
    goal: Goal,
    *,
    train: Cohort | None = None,
    repaired: tuple[FloatArray, float] | None = None,
    fitted_on: str = "repair set",
    settings: Settings = Settings(),
    seed: int = 0,
) -> Baseline | None:
    """The baseline on held-out rows; None where the inputs are neither a table nor images, or there are too few rows.

    `original` has the network's scores of the test rows and its decisions; `repaired` the decisions of the repaired classifier, and its gap
    on `known`, the rows on which thresholds are chosen. Without `train` it is fitted to `known`, whose name is `fitted_on`, and chosen by
    held-out folds of it.
    """
    rng = generator(seed, "baseline")
    fit = known if train is None else train
    if min(int((fit.y == k).sum()) for k in (0, 1)) < FEWEST:
        return None
    columns = _width(fit)
    if columns is None or columns != _width(known) or columns != _width(test):
        return None
    most = max(CELLS * (1 if train is None else 2) // columns, 4 * FEWEST)
    fit = fit.take(_sampled(fit, most, rng))
    kind = "pixels" if _pictures(test) else "table"
    enough = OF_IMAGES if kind == "pixels" else HELD_OUT
    chosen_on = fit if train is None else known.take(_sampled(known, enough, rng))
    held_out = _sampled(test, enough, rng)
    tests = test.take(held_out)
    x, seen, unseen = _features(fit), None if train is None else _features(chosen_on), _features(tests)
    model = _Fitted(x, fit.y, fit.weight, seen, _folds(fit, rng))
    rows = Scores.of(tests, original[0].score[held_out])

    def judged(score: FloatArray, other: FloatArray, rule: Rule) -> Any:
        return versus(rows, rule.decide(replace(rows, score=score)), other[held_out], goal.performance, goal.measure, settings)

    score, held = model.plain(unseen, chosen_on.y)
    plain = judged(held, original[1], choose_rule(valid=Scores.of(chosen_on, score), optimise=goal.performance))
    fair = None
    if repaired is not None and len(fit.attribute.levels) == 2 and not is_quotient(goal.measure) and goal.performance in AFFINE_PERFORMANCE:
        found = _fair(model, unseen, fit, chosen_on, goal, max(abs(repaired[1]), NEAR))
        fair = None if found is None else judged(found[0], repaired[0], choose_rule(found[1]))
    source = fitted_on if train is None else "training set"
    return Baseline(kind, source, len(fit), len(tests), goal.performance, goal.measure, plain, fair)


class _Fitted:
    """Logistic regressions on the same standardised rows: scores of rows that were not fitted to, and of new rows."""

    def __init__(self, x: FloatArray, y: IntArray, weight: FloatArray | None, seen: FloatArray | None, folds: IntArray) -> None:
        centre, spread = x.mean(0), x.std(0)
        self.keep = spread > 0
        self.centre, self.spread = centre[self.keep], spread[self.keep]
        self.x, self.y, self.weight, self.folds = self._scaled(x), y, np.ones(len(y)) if weight is None else weight, folds
        self.seen = None if seen is None else self._scaled(seen)
        self.strength = 1.0

    def plain(self, new: FloatArray, y: IntArray) -> tuple[FloatArray, FloatArray]:
        """Scores of the rows to choose on, whose labels are y, and of new rows, at the best strength."""
        found = []
        for strength in STRENGTHS:
            score = self.unseen(self.y, self.weight, strength)
            p = np.clip(np.where(y == 1, score, 1 - score), EXTREME, 1.0)
            found.append((-float(np.log(p).mean()), strength, score))
        _, self.strength, score = min(found, key=lambda each: each[0])
        return score, self.score(self.y, self.weight, self._scaled(new))

    def unseen(self, y: IntArray, weight: FloatArray, strength: float | None = None) -> FloatArray:
        """Scores of the rows to choose on, by a fit to other rows: the training set, or the other folds."""
        if self.seen is not None:
            return self.score(y, weight, self.seen, strength)
        found = np.empty(len(y))
        for fold in range(FOLDS):
            own = self.folds == fold
            found[own] = self.score(y, weight, self.x[own], strength, ~own)
        return found

    def score(
        self, y: IntArray, weight: FloatArray, rows: FloatArray, strength: float | None = None, among: Any = slice(None)
    ) -> FloatArray:
        """Scores of scaled rows by a fit to some of the rows; all alike where those have one label."""
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.linear_model import LogisticRegression  # late: it takes a second to import

        own, counts = y[among], weight[among]
        if len(np.unique(own[counts > 0])) < 2:
            return np.full(len(rows), float(own[counts > 0].mean()) if (counts > 0).any() else 0.5)
        model = LogisticRegression(C=self.strength if strength is None else strength, max_iter=100, tol=1e-3)
        with warnings.catch_warnings():  # strengths are compared on other rows, so that an unfinished fit is judged like any other
            warnings.simplefilter("ignore", ConvergenceWarning)
            model.fit(self.x[among], own, sample_weight=counts / counts.mean())
        found: FloatArray = model.predict_proba(rows)[:, 1]
        return found

    def scaled(self, rows: FloatArray) -> FloatArray:
        """New rows on the scale of the fit."""
        return self._scaled(rows)

    def _scaled(self, rows: FloatArray) -> FloatArray:
        found: FloatArray = np.clip((rows[:, self.keep] - self.centre) / self.spread, -10, 10)
        return found


def _fair(model: _Fitted, new: FloatArray, fit: Cohort, chosen_on: Cohort, goal: Goal, most: float) -> tuple[FloatArray, float] | None:
    """Scores of new rows and the threshold with the best performance whose |gap| is within `most`; None where no multiple has one."""
    cells = tabulate(np.zeros(len(fit)), fit.y, fit.attribute, fit.weight)
    at = cell_index(fit.y, fit.attribute.codes, 2)
    gain, gap = (w.ravel()[at] for w in (performance_functional(goal.performance, cells.n).w, gap_functional(goal.measure, cells.n, 1).w))
    on, asked = chosen_on.attribute, (goal.measure, goal.performance)
    best: tuple[float, float, float] | None = None
    direction = 0.0
    for multiple in MULTIPLES:
        value = (gain - multiple * direction * gap) * model.weight
        score = model.unseen((value > 0).astype(np.int64), np.abs(value))
        choices = sweep(score, chosen_on.y, on.codes, on.levels, asked, weight=chosen_on.weight)
        if not direction:  # of the first, which asks for performance only
            direction = float(np.sign(choices.best(goal.performance).values[goal.measure]))
        choice = choices.best(goal.performance, gap=goal.measure, max_gap=most)
        if bool(choice.met) and (best is None or float(choice.values[goal.performance]) > best[0]):
            best = (float(choice.values[goal.performance]), multiple, float(choice.threshold))
    if best is None:
        return None
    value = (gain - best[1] * direction * gap) * model.weight
    return model.score((value > 0).astype(np.int64), np.abs(value), model.scaled(new)), best[2]


def _folds(cohort: Cohort, rng: np.random.Generator) -> IntArray:
    """The fold of each row; all rows of a patient are in one."""
    units = units_of(cohort.patients, len(cohort))
    fold = rng.permutation(int(units.max()) + 1) % FOLDS
    found: IntArray = fold[units]
    return found


def _sampled(cohort: Cohort, most: int, rng: np.random.Generator) -> IntArray:
    """Positions of at most about so many rows: those of patients taken at random."""
    if len(cohort) <= most:
        return np.arange(len(cohort))
    units = units_of(cohort.patients, len(cohort))
    count = int(units.max()) + 1
    kept = np.zeros(count, bool)
    kept[rng.permutation(count)[: max(1, count * most // len(cohort))]] = True
    return np.flatnonzero(kept[units])


def _pictures(cohort: Cohort) -> bool:
    return len(cohort.inputs.shape) == 4


def _width(cohort: Cohort) -> int | None:
    """How many features the baseline sees; None for inputs of another kind."""
    if _pictures(cohort):
        return SMALL * SMALL + STATISTICS
    shape = cohort.inputs.shape
    return int(shape[1]) if len(shape) == 2 else None


def _features(cohort: Cohort) -> FloatArray:
    """What the baseline sees (n, features): the encoded table, or small images with their mean, spread and quantiles."""
    if not _pictures(cohort):
        return np.nan_to_num(cohort.inputs[:].numpy().astype(np.float64))
    import torch

    parts = []
    for start in range(0, len(cohort), 1024):
        rows = np.arange(start, min(start + 1024, len(cohort)))
        if isinstance(cohort.source, Images):
            gray = cohort.source.gray(rows)
        else:
            gray = cohort.inputs[torch.from_numpy(rows)].float().mean(1)
        small = torch.nn.functional.adaptive_avg_pool2d(gray[:, None], SMALL).flatten(1)
        spread = torch.stack([gray.mean((1, 2)), gray.std((1, 2), correction=0)], dim=1)
        quantiles = torch.quantile(small, torch.tensor(QUANTILES), dim=1).T
        parts.append(torch.cat([small, spread, quantiles], dim=1).double().numpy())
    return np.concatenate(parts)
