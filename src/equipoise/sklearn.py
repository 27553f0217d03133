"""A scikit-learn meta-estimator: `FairClassifier` fits an estimator, and then a decision rule on held-out rows."""

import warnings
from collections.abc import Callable, Mapping
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.special import expit
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone
from sklearn.utils import Tags, get_tags
from sklearn.utils._indexing import _safe_indexing
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import check_consistent_length, check_is_fitted, column_or_1d, validate_data

from equipoise.data import MISSING, Attribute, Scores, Table, assign_folds, generator
from equipoise.errors import BadInput
from equipoise.measures import FloatArray, Gap, Rule
from equipoise.methods import DEFAULT_MEASURE, Candidate, Outcome, debias

PREFIT = "prefit"
PARTS = 20  # folds of which `repair_size` are the repair set
Rows = Any  # a frame, an array or a sparse matrix of rows


class NothingRepaired(UserWarning):
    """No group was given, so the classifier decides as its estimator does."""


def _estimator_has(name: str) -> Callable[["FairClassifier"], bool]:
    return lambda self: hasattr(self.estimator_ if hasattr(self, "estimator_") else self.estimator, name)


class FairClassifier(MetaEstimatorMixin, ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A binary classifier that reduces a difference between groups by its decision rule, within scikit-learn's conventions.

    `fit` fits the estimator on some of the rows and a decision rule on the scores of the others, with `eq.debias` (`measure`, `max_gap`,
    `max_loss`, `min_performance`, `method` and `threshold` as there). `predict` decides by the rule; `predict_proba` and
    `decision_function` are those of the estimator.

    The group of each row is a column of X (`group`, a name or a position), which the estimator gets only with `attribute_as_input=True`; or
    it is given to `fit` as `sensitive_features`. `predict` needs it only if the rule does (`rule_.needs_group`); `allow_group=False`
    allows only rules that do not. Without any group nothing is repaired, and a warning is shown.

    `cv=None` holds out `repair_size` of the rows for the rule; `cv=5` fits the rule on out-of-fold scores and the estimator on all rows;
    `cv="prefit"` takes a fitted estimator, and X and y as the repair set. `patients` given to `fit` stay on one side of every split.

    `pos_label` is the positive class of the measure; the second of `classes_` unless given.

    Fitted attributes: `estimator_`, `classes_`, `rule_`, `candidate_`, and `outcome_`, the outcome of the repair on cross-fitted decisions.

    >>> from sklearn.linear_model import LogisticRegression
    >>> rng = np.random.default_rng(0)
    >>> X = pd.DataFrame({"age": rng.normal(size=400), "sex": rng.choice(["F", "M"], 400)})
    >>> fair = FairClassifier(LogisticRegression(), group="sex", method="group-thresholds").fit(X, X["age"] + rng.normal(size=400) > 0)
    >>> fair.predict(X).shape
    (400,)
    """

    def __init__(
        self,
        estimator: Any,
        *,
        group: str | int | None = None,
        reference: str | None = None,
        measure: Gap = DEFAULT_MEASURE,
        max_gap: float | None = None,
        max_loss: float | None = None,
        min_performance: float | None = None,
        method: str = "auto",
        settings: Mapping[str, Any] | None = None,
        allow_group: bool = True,
        attribute_as_input: bool = False,
        threshold: float | None = None,
        cv: int | str | None = None,
        repair_size: float = 0.3,
        force: bool = False,
        pos_label: Any = None,
        random_state: int = 0,
    ) -> None:
        self.estimator = estimator
        self.group = group
        self.reference = reference
        self.measure = measure
        self.max_gap = max_gap
        self.max_loss = max_loss
        self.min_performance = min_performance
        self.method = method
        self.settings = settings
        self.allow_group = allow_group
        self.attribute_as_input = attribute_as_input
        self.threshold = threshold
        self.cv = cv
        self.repair_size = repair_size
        self.force = force
        self.pos_label = pos_label
        self.random_state = random_state

    def fit(self, X: Rows, y: Any, *, sensitive_features: Any = None, patients: Any = None) -> Self:
        """The fitted classifier: the estimator, and a rule fitted to its scores on rows outside the estimator's fit."""
        X = _table(X)
        validate_data(self, X=X, y=y, skip_check_array=True)
        check_consistent_length(X, y, sensitive_features, patients)
        y = column_or_1d(y, warn=True)
        check_classification_targets(y)
        self.classes_ = np.unique(y)
        if len(self.classes_) > 2:
            kind = type_of_target(y, input_name="y")
            raise ValueError(f"Only binary classification is supported. The type of the target is {kind}.")
        if self.pos_label is not None and self.pos_label not in self.classes_:
            raise BadInput(f"pos_label={self.pos_label!r} is none of the classes, {', '.join(map(repr, self.classes_.tolist()))}.")
        self.candidate_: Candidate | None = None
        groups = self._groups(X, sensitive_features)
        if groups is None:
            warnings.warn(
                "no group was given: nothing is repaired. Name its column, FairClassifier(..., group='sex'), or give "
                "fit(X, y, sensitive_features=...).",
                NothingRepaired,
                stacklevel=2,
            )
            self.estimator_ = self.estimator if self.cv == PREFIT else clone(self.estimator).fit(self._inputs(X), y)
            return self
        if len(self.classes_) < 2:
            raise ValueError(f"a repair needs two classes; y has one class, {self.classes_[0]!r}, in all {len(y):,} rows.")
        rows, score = self._fit_estimator(X, y, self._scores_of(X, y, groups, patients, np.zeros(len(y))))
        repair_patients = None if patients is None else np.asarray(patients, dtype=object)[rows]
        scores = self._scores_of(_safe_indexing(X, rows), y[rows], groups[rows], repair_patients, score)
        settings = dict(self.settings or {})
        if not self.allow_group and self.method == "auto":
            settings = {"allow_group": False, **settings}
        self.candidate_ = debias(
            scores,
            method=self.method,
            measure=self.measure,
            max_gap=self.max_gap,
            max_loss=self.max_loss,
            min_performance=self.min_performance,
            threshold=self.threshold,
            force=self.force,
            seed=self.random_state,
            **settings,
        )
        if not self.allow_group and self.candidate_.rule.needs_group:
            raise BadInput(f"{self.method} found a rule that needs each row's group, and allow_group is False. Use auto or bias-score.")
        return self

    def _fit_estimator(self, X: Rows, y: npt.NDArray[Any], all_rows: Scores) -> tuple[npt.NDArray[np.int64], FloatArray]:
        """Fits the estimator; returns the rows for the rule and their scores by estimators that were fitted to other rows."""
        inputs, rng = self._inputs(X), generator(self.random_state, "repair set")
        if self.cv == PREFIT:
            check_is_fitted(self.estimator)
            self.estimator_ = self.estimator
            return np.arange(len(y)), self._score(inputs)
        if self.cv is None:
            if not 0 < self.repair_size < 1:
                raise BadInput(f"repair_size must lie between 0 and 1; got {self.repair_size}")
            held_out = assign_folds(all_rows, PARTS, rng) < max(1, round(self.repair_size * PARTS))
            return np.flatnonzero(held_out), self._fit_and_score(inputs, y, held_out)
        if isinstance(self.cv, str) or self.cv < 2:
            raise BadInput(f"cv must be None, 'prefit' or a number of folds of at least 2; got {self.cv!r}")
        folds, score = assign_folds(all_rows, self.cv, rng), np.empty(len(y))
        for fold in range(self.cv):
            score[folds == fold] = self._fit_and_score(inputs, y, folds == fold)
        self.estimator_ = clone(self.estimator).fit(inputs, y)
        return np.arange(len(y)), score

    def _fit_and_score(self, inputs: Rows, y: npt.NDArray[Any], held_out: npt.NDArray[np.bool_]) -> FloatArray:
        """The scores of the held-out rows by an estimator that is fitted to the others."""
        fitted = np.flatnonzero(~held_out)
        self.estimator_ = clone(self.estimator).fit(_safe_indexing(inputs, fitted), y[fitted])
        return self._score(_safe_indexing(inputs, np.flatnonzero(held_out)))

    def predict(self, X: Rows, *, sensitive_features: Any = None) -> npt.NDArray[Any]:
        """The decision for each row by the rule; `sensitive_features` is needed only if the rule needs the group."""
        X = self._validated(X)
        if self.candidate_ is None:
            predicted: npt.NDArray[Any] = self.estimator_.predict(self._inputs(X))
            return predicted
        rule = self.candidate_.rule
        groups = self._groups(X, sensitive_features)
        if groups is None and rule.needs_group:
            raise BadInput(
                "the rule needs each row's group: predict(X, sensitive_features=...). Or fit with allow_group=False, which allows only "
                "rules that need none, or name the column of X that holds it: FairClassifier(..., group=...)."
            )
        groups = np.full(X.shape[0], self.candidate_.goal.measure, dtype=object) if groups is None or not rule.needs_group else groups
        scores = _unlabelled(self._score(self._inputs(X)), groups, self._features(X))
        decided = rule.draw(scores, self.random_state) if rule.randomised else rule.decide(scores)  # type: ignore[attr-defined]
        classes: npt.NDArray[Any] = self.classes_[np.where(decided == 1, self._positive, 1 - self._positive)]
        return classes

    @property
    def _positive(self) -> int:
        """The position of the positive class."""
        return 1 if self.pos_label is None else int(np.flatnonzero(self.classes_ == self.pos_label)[0])

    @available_if(_estimator_has("predict_proba"))  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Rows) -> FloatArray:
        """The estimator's probabilities, to which the rule is applied; the repair does not change them."""
        inputs = self._inputs(self._validated(X))
        return np.asarray(self.estimator_.predict_proba(inputs))

    @available_if(_estimator_has("decision_function"))  # type: ignore[untyped-decorator]
    def decision_function(self, X: Rows) -> FloatArray:
        """The estimator's decision function; the repair does not change it."""
        inputs = self._inputs(self._validated(X))
        return np.asarray(self.estimator_.decision_function(inputs))

    def _validated(self, X: Rows) -> Rows:
        """New rows, checked to have the columns of the fit."""
        check_is_fitted(self)
        X = _table(X)
        validate_data(self, X=X, reset=False, skip_check_array=True)
        return X

    @property
    def rule_(self) -> Rule | None:
        """The decision rule; None if nothing was repaired."""
        check_is_fitted(self)
        return None if self.candidate_ is None else self.candidate_.rule

    @property
    def outcome_(self) -> Outcome | None:
        """The outcome of the repair on cross-fitted decisions; None if nothing was repaired."""
        check_is_fitted(self)
        return None if self.candidate_ is None else self.candidate_.outcome

    def __sklearn_tags__(self) -> Tags:
        tags, estimator_tags = super().__sklearn_tags__(), get_tags(self.estimator)
        tags.classifier_tags.multi_class = False
        tags.input_tags.allow_nan = estimator_tags.input_tags.allow_nan
        tags.input_tags.sparse = estimator_tags.input_tags.sparse
        return tags

    def _score(self, inputs: Rows) -> FloatArray:
        """The probability of the positive class, or the logistic function of the decision function for it."""
        if hasattr(self.estimator_, "predict_proba"):
            return np.asarray(self.estimator_.predict_proba(inputs)[:, self._positive], dtype=np.float64)
        values = np.asarray(self.estimator_.decision_function(inputs), dtype=np.float64)
        return np.asarray(expit(values if self._positive else -values))

    def _groups(self, X: Rows, sensitive_features: Any) -> npt.NDArray[Any] | None:
        """The group of each row as text, from `sensitive_features` or from its column; None without either."""
        if sensitive_features is None and self.group is not None:
            frame = isinstance(X, pd.DataFrame)
            if frame and self.group not in X.columns and isinstance(self.group, str):
                raise BadInput(f"no column {self.group!r} with the group. The columns are: {', '.join(map(str, X.columns))}.")
            if not frame and isinstance(self.group, str):
                raise BadInput(f"group={self.group!r} is the name of a column, and X is an array. Give a frame, or the column's position.")
            sensitive_features = X[self.group] if frame and self.group in X.columns else _safe_indexing(X, self.group, axis=1)
        if sensitive_features is None:
            return None
        values = pd.Series(np.asarray(sensitive_features, dtype=object).reshape(-1))
        groups: npt.NDArray[Any] = values.where(values.isna(), values.map(str)).to_numpy(dtype=object)
        return groups

    def _inputs(self, X: Rows) -> Rows:
        """The columns that the estimator gets."""
        if self.group is None or self.attribute_as_input:
            return X
        if isinstance(X, pd.DataFrame):
            return X.drop(columns=[self.group if self.group in X.columns else X.columns[int(self.group)]])
        keep = [k for k in range(X.shape[1]) if k != int(self.group) % X.shape[1]]
        return X[:, keep]

    def _scores_of(self, X: Rows, y: Any, groups: Any, patients: Any, score: FloatArray) -> Scores:
        """Scores of labelled rows with their groups, and with the other columns, which a rule may read."""
        positive = (np.asarray(y) == self.classes_[self._positive]).astype(np.int64)
        names = pd.Series(groups).dropna().unique()
        reference = self.reference if self.reference in names else None
        features = self._features(X)
        if len(np.unique(positive)) < 2 or len(names) < 2:
            return _unlabelled(score, groups, features)
        scores = Scores.from_arrays(positive, score, groups, reference=reference, patients=patients)
        return scores if features is None else scores.with_features(features)

    def _features(self, X: Rows) -> pd.DataFrame | None:
        """The columns other than the group; None if they are not a dense table."""
        if isinstance(X, pd.DataFrame):
            rest = self._inputs(X) if not self.attribute_as_input else X.drop(columns=[self.group] if self.group in X.columns else [])
            frame = rest.reset_index(drop=True)
            return frame.set_axis([str(name) for name in frame.columns], axis=1) if frame.shape[1] else None
        if not isinstance(X, np.ndarray) or X.dtype.kind not in "biuf" or X.ndim != 2:
            return None
        keep = [k for k in range(X.shape[1]) if self.group is None or k != int(self.group) % X.shape[1]]
        return pd.DataFrame({f"feature {k + 1}": X[:, k].astype(float) for k in keep}) if keep else None


def _unlabelled(score: FloatArray, groups: Any, features: pd.DataFrame | None) -> Scores:
    """Scores of rows without labels, which may all be of one group."""
    codes, levels = pd.factorize(pd.Series(groups))
    attribute = Attribute("group", tuple(map(str, levels)) or ("(none)",), np.where(codes < 0, MISSING, codes).astype(np.int64))
    labels, ids = np.zeros(len(score), np.int64), np.arange(len(score)).astype(object)
    return Scores(labels, score, (attribute,), None, ids, features=None if features is None else Table(features))


def _table(X: Rows) -> Rows:
    """The rows as a frame or an array with two axes; raises scikit-learn's error for any other shape."""
    X = X if hasattr(X, "shape") else np.asarray(X)
    if len(X.shape) != 2:
        raise ValueError(
            f"Expected 2D array, got an array of shape {tuple(X.shape)} instead. "
            "Reshape your data: one row per sample, one column per feature."
        )
    return X
