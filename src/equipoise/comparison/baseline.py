"""The baseline: a logistic regression on the same inputs, compared with the original network and with the repaired classifier.

A repair is limited by its network. A logistic regression with light L2 regularisation on the network's inputs takes seconds to fit. If it
performs clearly better than the network, or clearly better than the repaired classifier at as small a gap, another model is worth
considering. For a small gap it is fitted to costs (Agarwal et al. 2018, grid search): each row's weight is the amount by which a positive
decision raises performance minus a multiple of the gap, and its label is the sign of that amount.

Of images it sees 16 x 16 pixels and a few statistics: less than the network, but enough to expose a network that learnt little.
"""

import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from equipoise import measures
from equipoise.data import Cohort, FloatArray, IntArray, Scores, generator
from equipoise.measures import Audit, AuditSpec, Baseline, Cells, Rule, cell_index, choose_rule, sweep, units_of
from equipoise.methods import Goal

STRENGTHS = (0.01, 0.1, 1.0)  # values of C in scikit-learn, chosen by log loss on rows outside the fit
MULTIPLES = (0.0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4)  # of the gap in the cost of a decision
BASELINE_FOLDS = 5
FEWEST = 50  # rows with each label to fit on
CELLS = 1_000_000  # largest rows x features of a fit in folds, twice that for a single fit; beyond it patients are sampled
MOST_HELD_OUT, MOST_IMAGES = 20_000, 5_000  # most rows to choose thresholds and to evaluate on
SMALL_SIDE = 16  # pixels on each side
PIXEL_QUANTILES = (0.05, 0.25, 0.75, 0.95)  # of the small image's pixels
STATISTICS = 2 + len(PIXEL_QUANTILES)
NEAR = 0.01  # a gap on the repair set that counts as none
EXTREME = 1e-6  # lower limit of probabilities in the log loss


def fit_baseline(
    test: Cohort,
    original: tuple[Scores, FloatArray],
    known: Cohort,
    goal: Goal,
    *,
    train: Cohort | None = None,
    repaired: tuple[FloatArray, float] | None = None,
    fitted_on: str = "repair set",
    settings: AuditSpec = AuditSpec(),
    seed: int = 0,
) -> Baseline | None:
    """The baseline on held-out rows; None if the inputs are neither a table nor images, or there are too few rows.

    `original` has the network's scores of the test rows and its decisions; `repaired` the decisions of the repaired classifier, and its gap
    on `known`, the rows on which thresholds are chosen. Without `train` the baseline is fitted to `known`, which the report calls
    `fitted_on`, and chosen by cross-validation.
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
    images = _is_images(test)
    max_rows = MOST_IMAGES if images else MOST_HELD_OUT
    chosen_on = fit if train is None else known.take(_sampled(known, max_rows, rng))
    sampled = _sampled(test, max_rows, rng)
    tests = test.take(sampled)
    choice_features = None if train is None else _features(chosen_on)
    test_features = _features(tests)
    units = units_of(fit.patients, len(fit))
    folds = (rng.permutation(int(units.max()) + 1) % BASELINE_FOLDS)[units]  # all rows of a patient are in the same fold
    model = _Regression(_features(fit), fit.y, fit.weight, choice_features, folds)
    rows = Scores.of(tests, original[0].score[sampled])
    shown = measures.shown_scores(rows, settings.min_patients)

    def compare_with(decisions: FloatArray, score: FloatArray, rule: Rule) -> Any:
        decided = decisions[sampled][shown.kept], rule.decide(replace(rows, score=score))[shown.kept]
        return measures.PairedDecisions(shown.scores, decided, settings).baseline(goal.performance, goal.measure)

    choice_score, test_score = model.choose_strength(test_features, chosen_on.y)
    rule = choose_rule(valid=Scores.of(chosen_on, choice_score), optimise=goal.performance)
    plain, fair = compare_with(original[1], test_score, rule), None
    affine = measures.is_affine_performance(goal.performance) and not measures.measure_of(goal.measure).is_quotient
    if repaired is not None and affine and len(fit.attribute.levels) == 2:
        decisions, gap = repaired
        constrained = _constrained(model, test_features, fit, chosen_on, goal, max(abs(gap), NEAR))
        fair = None if constrained is None else compare_with(decisions, constrained[0], choose_rule(constrained[1]))
    source = fitted_on if train is None else "training set"
    return Baseline("pixels" if images else "table", source, len(fit), len(tests), goal.performance, goal.measure, plain, fair)


def with_baselines(audit: Audit, scores: Mapping[str, Scores], cohort: Cohort, train: Cohort) -> Audit:
    """The audit of a network on a cohort, with a simple model fitted to the training set for each label."""
    labels = {}
    for (label, own), rows, fitted_rows in zip(audit.labels.items(), cohort.by_label.values(), train.by_label.values(), strict=True):
        if fitted_rows.encoder is not None and (encoder := rows.encoder) is not None:
            fitted_rows = fitted_rows.encoded_by(encoder)
        original, spec = (scores[label], own.rule.decide(scores[label])), own.settings
        baseline = fit_baseline(rows, original, fitted_rows, Goal(), fitted_on="training set", settings=spec, seed=spec.seed)
        labels[label] = replace(own, baseline=baseline)
    return replace(audit, labels=labels)


class _Regression:
    """Logistic regressions on the same standardised rows, with scores of rows outside the fit.

    `choice_rows` are the rows on which strengths and thresholds are chosen; None to choose by cross-validation in `folds`.
    """

    def __init__(self, x: FloatArray, y: IntArray, weight: FloatArray | None, choice_rows: FloatArray | None, folds: IntArray) -> None:
        mean, scale = x.mean(0), x.std(0)
        self.varying = scale > 0
        self.mean, self.scale = mean[self.varying], scale[self.varying]
        self.x, self.y, self.weight, self.folds = self.standardise(x), y, np.ones(len(y)) if weight is None else weight, folds
        self.choice_rows = None if choice_rows is None else self.standardise(choice_rows)
        self.strength = 1.0

    def standardise(self, rows: FloatArray) -> FloatArray:
        """Rows on the scale of the fit, without constant columns."""
        return np.asarray(np.clip((rows[:, self.varying] - self.mean) / self.scale, -10, 10))

    def choose_strength(self, new: FloatArray, y: IntArray) -> tuple[FloatArray, FloatArray]:
        """Scores of the rows to choose on, whose labels are y, and of new rows, at the best strength."""
        losses = []
        for strength in STRENGTHS:
            score = self.choice_scores(self.y, self.weight, strength)
            p = np.clip(np.where(y == 1, score, 1 - score), EXTREME, 1.0)
            losses.append((-float(np.log(p).mean()), strength, score))
        _, self.strength, score = min(losses, key=lambda entry: entry[0])
        return score, self.scores(self.y, self.weight, self.standardise(new), self.strength)

    def choice_scores(self, y: IntArray, weight: FloatArray, strength: float) -> FloatArray:
        """Scores of the rows to choose on, by a fit to other rows: the training set, or the other folds."""
        if self.choice_rows is not None:
            return self.scores(y, weight, self.choice_rows, strength)
        score = np.empty(len(y))
        for fold in range(BASELINE_FOLDS):
            inside = self.folds == fold
            score[inside] = self.scores(y, weight, self.x[inside], strength, ~inside)
        return score

    def scores(self, y: IntArray, weight: FloatArray, rows: FloatArray, strength: float, fitted: Any = slice(None)) -> FloatArray:
        """Scores of standardised rows by a fit to the rows `fitted`; constant if these have only one label."""
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.linear_model import LogisticRegression  # late: it takes a second to import

        y, weight = y[fitted], weight[fitted]
        if len(np.unique(y[weight > 0])) < 2:
            return np.full(len(rows), float(y[weight > 0].mean()) if (weight > 0).any() else 0.5)
        model = LogisticRegression(C=strength, max_iter=100, tol=1e-3)
        with warnings.catch_warnings():  # strengths are compared on other rows, so a fit that has not converged is compared like any other
            warnings.simplefilter("ignore", ConvergenceWarning)
            model.fit(self.x[fitted], y, sample_weight=weight / weight.mean())
        return np.asarray(model.predict_proba(rows)[:, 1])


def _constrained(
    model: _Regression, new: FloatArray, fit: Cohort, chosen_on: Cohort, goal: Goal, max_gap: float
) -> tuple[FloatArray, float] | None:
    """Scores of new rows and the threshold with the best performance whose |gap| is within `max_gap`; None if no multiple has one."""
    cells = Cells.of(np.zeros(len(fit)), fit.y, fit.attribute, fit.weight)
    at = cell_index(fit.y, fit.attribute.codes, 2)
    gain = measures.performance_functional(goal.performance, cells.n).w.ravel()[at]
    gap = measures.gap_functional(goal.measure, cells.n, 1).w.ravel()[at]

    def labels_and_weights(multiple: float) -> tuple[IntArray, FloatArray]:
        value = (gain - multiple * direction * gap) * model.weight
        return (value > 0).astype(np.int64), np.abs(value)

    wanted = (goal.measure, goal.performance)
    best: tuple[float, float, float] | None = None
    direction = 0.0
    for multiple in MULTIPLES:
        score = model.choice_scores(*labels_and_weights(multiple), model.strength)
        choices = sweep(score, chosen_on.y, chosen_on.attribute, wanted, weight=chosen_on.weight)
        if not direction:  # the sign of the gap at the best performance, from the first multiple, which is 0
            direction = float(np.sign(choices.best(goal.performance).values[goal.measure]))
        choice = choices.best(goal.performance, gap=goal.measure, max_gap=max_gap)
        if bool(choice.met) and (best is None or float(choice.values[goal.performance]) > best[0]):
            best = (float(choice.values[goal.performance]), multiple, float(choice.threshold))
    if best is None:
        return None
    _, multiple, threshold = best
    return model.scores(*labels_and_weights(multiple), model.standardise(new), model.strength), threshold


def _sampled(cohort: Cohort, most: int, rng: np.random.Generator) -> IntArray:
    """Positions of at most about `most` rows: those of randomly sampled patients."""
    if len(cohort) <= most:
        return np.arange(len(cohort))
    units = units_of(cohort.patients, len(cohort))
    count = int(units.max()) + 1
    kept = np.zeros(count, bool)
    kept[rng.permutation(count)[: max(1, count * most // len(cohort))]] = True
    return np.flatnonzero(kept[units])


def _is_images(cohort: Cohort) -> bool:
    return len(cohort.inputs.shape) == 4


def _width(cohort: Cohort) -> int | None:
    """The number of features of the baseline; None for inputs of another kind."""
    if _is_images(cohort):
        return SMALL_SIDE * SMALL_SIDE + STATISTICS
    shape = cohort.inputs.shape
    return int(shape[1]) if len(shape) == 2 else None


def _features(cohort: Cohort) -> FloatArray:
    """The features of the baseline (n, features): the encoded table, or small images with mean, standard deviation and quantiles."""
    if not _is_images(cohort):
        return np.nan_to_num(cohort.inputs[:].numpy().astype(np.float64))
    import torch

    parts = []
    for start in range(0, len(cohort), 1024):
        rows = np.arange(start, min(start + 1024, len(cohort)))
        gray = cohort.source.gray(rows)
        small = torch.nn.functional.adaptive_avg_pool2d(gray[:, None], SMALL_SIDE).flatten(1)
        spread = torch.stack([gray.mean((1, 2)), gray.std((1, 2), correction=0)], dim=1)
        quantiles = torch.quantile(small, torch.tensor(PIXEL_QUANTILES), dim=1).T
        parts.append(torch.cat([small, spread, quantiles], dim=1).double().numpy())
    return np.concatenate(parts)
