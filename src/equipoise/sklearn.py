"""A scikit-learn meta-estimator: `FairClassifier` fits an estimator, and then a decision rule on held-out rows."""

import inspect
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from numbers import Integral
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.special import expit
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone
from sklearn.metrics import accuracy_score
from sklearn.utils import Tags, check_random_state, get_tags
from sklearn.utils._indexing import _safe_indexing
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import check_consistent_length, check_is_fitted, column_or_1d, validate_data

from equipoise.data import Attribute, FeatureTable, FloatArray, Scores, assign_folds, generator
from equipoise.errors import BadInput, pick
from equipoise.measures import Gap, Rule
from equipoise.methods import DEFAULT_MEASURE, METHODS, Candidate, Outcome, debias, make_settings

PASSED_ON = ("method", "measure", "max_gap", "max_loss", "min_performance", "allow_worse", "max_rise", "threshold", "force")
PREFIT = "prefit"
AUTO = "auto"
PARTS = 20  # folds of which `repair_size` are the repair set
NO_IDS = "which draws each decision from the id of the row: give X as a frame with an index of text, X.set_index('id')"
Rows = Any  # a frame, an array or a sparse matrix of rows


class NothingRepaired(UserWarning):
    """No group was given, so the classifier decides as its estimator does."""


def _estimator_has(name: str) -> Callable[["FairClassifier"], bool]:
    return lambda self: hasattr(self.estimator_ if hasattr(self, "estimator_") else self.estimator, name)


class FairClassifier(MetaEstimatorMixin, ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A binary classifier that reduces a difference between groups by its decision rule, within scikit-learn's conventions.

    `fit` fits the estimator on some of the rows and a decision rule on the scores of the others, with `eq.debias` (`measure`, `max_gap`,
    `max_loss`, `min_performance`, `allow_worse`, `max_rise`, `method`, `threshold`). `predict` decides by the rule; `predict_proba`
    and `decision_function` are those of the estimator.

    The group of each row is a column of X (`group`, a name or a position), which the estimator gets only with `attribute_as_input=True`; or
    it is given to `fit` as `sensitive_features`. `predict` needs it only if the rule does (`rule_.needs_group`); `allow_group=False`
    allows only rules that do not. Without any group nothing is repaired, and a warning is shown.

    `cv=None` holds out `repair_size` of the rows for the rule; `cv=5` fits the rule on out-of-fold scores and the estimator on all rows;
    `cv="prefit"` takes a fitted estimator, and X and y as the repair set. `patients` given to `fit` stay on one side of every split.

    A randomised rule (`method="equalised-odds"`) draws each decision from the id of its row: the index of X, a frame with an index of text.
    Without such ids, `method="auto"` tries no randomised rule.

    `pos_label` is the positive class of the measure; the second of `classes_` unless given. `reference` is the reference group; the largest
    group unless given. In a search with `sensitive_features`, `score` needs them as well: `set_config(enable_metadata_routing=True)`, and
    `set_fit_request(sensitive_features=True).set_score_request(sensitive_features=True)` on this classifier.

    Fitted attributes: `estimator_`, `classes_`, `rule_`, `candidate_`, `seed_` (made from `random_state`), and `outcome_`, the outcome of
    the repair on cross-fitted decisions.

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
        reference: object = None,
        measure: Gap = DEFAULT_MEASURE,
        max_gap: float | None = None,
        max_loss: float | None = None,
        min_performance: float | None = None,
        allow_worse: bool = False,
        max_rise: Mapping[str, float] | None = None,
        method: str = AUTO,
        settings: Mapping[str, Any] | None = None,
        allow_group: bool = True,
        attribute_as_input: bool = False,
        threshold: float | None = None,
        cv: Any = None,
        repair_size: float = 0.3,
        force: bool = False,
        pos_label: Any = None,
        random_state: Any = 0,
    ) -> None:
        given = dict(locals())
        self.__dict__.update({name: given[name] for name in inspect.signature(FairClassifier.__init__).parameters if name != "self"})

    def fit(self, X: Rows, y: Any, *, sensitive_features: Any = None, patients: Any = None) -> Self:
        """The fitted classifier: the estimator, and a rule fitted to its scores on rows outside the estimator's fit."""
        X = _with_two_axes(X)
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
        self.seed_ = _seed(self.random_state)
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
        if self.reference is not None:
            pick("reference group", str(self.reference), sorted(pd.Series(groups).dropna().unique()))
        rows, score = self._fit_estimator(X, y, self._scores_of(X, y, groups, patients, np.zeros(len(y))))
        of_rows = None if patients is None else np.asarray(patients, dtype=object)[rows]
        scores = self._scores_of(_safe_indexing(X, rows), y[rows], groups[rows], of_rows, score)
        passed = {name: value for name in PASSED_ON if (value := getattr(self, name)) is not None}
        self.candidate_ = debias(scores, seed=self.seed_, **passed, **self._settings(X, scores))
        if not self.allow_group and self.candidate_.rule.needs_group:
            raise BadInput(f"{self.method} found a rule that needs each row's group, and allow_group is False. Use auto or bias-score.")
        if self.candidate_.rule.randomised and _ids(X) is None:
            raise BadInput(f"{self.method} found a randomised rule, {NO_IDS}; or use a method without one, such as group-thresholds.")
        return self

    def _settings(self, X: Rows, scores: Scores) -> dict[str, Any]:
        """The settings of the method; auto leaves out methods whose rules cannot decide rows like these."""
        settings = dict(self.settings or {})
        if self.method != AUTO:
            return settings
        settings = settings if self.allow_group else {"allow_group": False, **settings}
        if "methods" not in settings and _ids(X) is None:
            names = make_settings(AUTO, settings).order(scores)
            settings["methods"] = tuple(name for name in names if not any(rule.randomised for rule in METHODS[name].rules))
        return settings

    def _fit_estimator(self, X: Rows, y: npt.NDArray[Any], all_rows: Scores) -> tuple[npt.NDArray[np.int64], FloatArray]:
        """Fits the estimator; returns the rows for the rule and their scores by estimators that were fitted to other rows."""
        inputs, rng = self._inputs(X), generator(self.seed_, "repair set")
        if self.cv == PREFIT:
            check_is_fitted(self.estimator)
            self.estimator_ = self.estimator
            return np.arange(len(y)), self._score(inputs)
        if self.cv is None:
            if not 0 < self.repair_size < 1:
                raise BadInput(f"repair_size must lie between 0 and 1; got {self.repair_size}")
            held_out = assign_folds(all_rows, PARTS, rng) < max(1, round(self.repair_size * PARTS))
            return np.flatnonzero(held_out), self._fit_and_score(inputs, y, held_out)
        if not isinstance(self.cv, Integral) or int(self.cv) < 2:
            raise BadInput(
                f"cv must be None, 'prefit' or a number of folds of at least 2; got {self.cv!r}. The rows of a patient stay in one "
                "fold with fit(X, y, patients=...)."
            )
        count = int(self.cv)
        folds, score = assign_folds(all_rows, count, rng), np.empty(len(y))
        for fold in range(count):
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
            return np.asarray(self.estimator_.predict(self._inputs(X)))
        rule = self.candidate_.rule
        groups = self._groups(X, sensitive_features)
        if groups is None and rule.needs_group:
            raise BadInput(
                "the rule needs each row's group: predict(X, sensitive_features=...), score(X, y, sensitive_features=...). Or fit with "
                "allow_group=False, which allows only rules that need none, or name the column of X that holds it: "
                "FairClassifier(..., group=...). A search gives it with set_score_request(sensitive_features=True)."
            )
        groups = np.full(X.shape[0], self.candidate_.goal.measure, dtype=object) if groups is None or not rule.needs_group else groups
        scores, ids = _unlabelled(self._score(self._inputs(X)), groups, self._features(X)), _ids(X)
        if rule.randomised and ids is None:
            raise BadInput(f"the rule is randomised, {NO_IDS}.")
        named = scores if ids is None else replace(scores, ids=ids)
        decided = rule.draw(named, self.seed_) if rule.randomised else rule.decide(scores)
        return np.asarray(self.classes_[np.where(decided == 1, self._positive, 1 - self._positive)])

    def score(self, X: Rows, y: Any, sample_weight: Any = None, *, sensitive_features: Any = None) -> float:
        """The accuracy of the decisions; `sensitive_features` is needed only if the rule needs the group."""
        decided = self.predict(X, sensitive_features=sensitive_features)
        return float(accuracy_score(y, decided, sample_weight=sample_weight))

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
        X = _with_two_axes(X)
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
            sensitive_features = _safe_indexing(X, self._position(X), axis=1)
        if sensitive_features is None:
            return None
        given = np.asarray(sensitive_features, dtype=object)
        if given.shape not in ((X.shape[0],), (X.shape[0], 1)):
            raise BadInput(
                f"sensitive_features must hold one group per row, {X.shape[0]:,} values; got the shape {given.shape}. Join several columns "
                "to one: X['sex'] + ' & ' + X['race']."
            )
        values = pd.Series(given.reshape(-1))
        return np.asarray(values.where(values.isna(), values.map(str)), dtype=object)

    def _position(self, X: Rows) -> int | None:
        """The position of the column of X that holds the group; None if none was named."""
        columns = list(getattr(X, "columns", ()))
        if self.group is None or self.group in columns:
            return None if self.group is None else columns.index(self.group)
        if isinstance(self.group, str):
            where = f"The columns are: {', '.join(map(str, columns))}." if columns else "X is an array: give a frame, or its position."
            raise BadInput(f"no column {self.group!r} with the group. {where}")
        return int(self.group) % int(X.shape[1])

    def _without_group(self, X: Rows) -> Rows:
        position = self._position(X)
        return X if position is None else _safe_indexing(X, [k for k in range(X.shape[1]) if k != position], axis=1)

    def _inputs(self, X: Rows) -> Rows:
        """The columns that the estimator gets."""
        return X if self.attribute_as_input else self._without_group(X)

    def _scores_of(self, X: Rows, y: Any, groups: Any, patients: Any, score: FloatArray) -> Scores:
        """Scores of labelled rows with their groups, and with the other columns, which a rule may read."""
        positive = (np.asarray(y) == self.classes_[self._positive]).astype(np.int64)
        names = pd.Series(groups).dropna().unique()
        reference = None if self.reference is None else str(self.reference)
        features = self._features(X)
        if len(np.unique(positive)) < 2 or len(names) < 2:
            return _unlabelled(score, groups, features)
        scores = Scores.from_arrays(positive, score, groups, reference=reference, patients=patients)
        return scores if features is None else scores.with_features(features)

    def _features(self, X: Rows) -> pd.DataFrame | None:
        """The columns other than the group; None if they are not a dense table."""
        frame = _as_frame(X)
        if frame is None or not (rest := self._without_group(frame)).shape[1]:
            return None
        return rest.reset_index(drop=True).set_axis([str(name) for name in rest.columns], axis=1)


def _unlabelled(score: FloatArray, groups: Any, features: pd.DataFrame | None) -> Scores:
    """Scores of rows without labels, which may all be of one group."""
    attribute = Attribute.of_new_rows(pd.Series(groups), "group")
    return Scores(np.zeros(len(score), np.int64), score, (attribute,), None, features=None if features is None else FeatureTable(features))


def _ids(X: Rows) -> npt.NDArray[np.object_] | None:
    """The ids of the rows, in an index of text; None for arrays and for other indices, which usually number the rows."""
    frame = _as_frame(X)
    if frame is None or pd.api.types.infer_dtype(frame.index, skipna=False) != "string":
        return None
    return np.asarray(frame.index, dtype=object)


def _as_frame(X: Rows) -> pd.DataFrame | None:
    """The rows as a frame, in which the columns of an array are numbered; None if they are not a dense table."""
    if isinstance(X, np.ndarray):
        return pd.DataFrame(X.astype(float), columns=[f"feature {k + 1}" for k in range(X.shape[1])]) if X.dtype.kind in "biuf" else None
    return X if isinstance(X, pd.DataFrame) else None


def _seed(random_state: Any) -> int:
    """An integer seed; from None or a RandomState, a random one."""
    if isinstance(random_state, Integral) and int(random_state) >= 0:
        return int(random_state)
    return int(check_random_state(random_state).randint(2**31))


def _with_two_axes(X: Rows) -> Rows:
    """The rows as a frame or an array with two axes; raises scikit-learn's error for any other shape."""
    X = X if hasattr(X, "shape") else np.asarray(X)
    if len(X.shape) != 2:
        raise ValueError(
            f"Expected 2D array, got an array of shape {tuple(X.shape)} instead. "
            "Reshape your data: one row per sample, one column per feature."
        )
    return X
