"""A scikit-learn meta-estimator: `FairClassifier` fits an estimator, and then a decision rule on held-out rows."""

import importlib
import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from numbers import Integral
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.special import expit
from sklearn import get_config
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone
from sklearn.metrics import accuracy_score
from sklearn.model_selection import check_cv
from sklearn.utils import Tags, check_random_state, get_tags
from sklearn.utils._indexing import _safe_indexing
from sklearn.utils.metadata_routing import MetadataRouter, MethodMapping, process_routing
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import (
    _check_method_params,
    _check_sample_weight,
    check_consistent_length,
    check_is_fitted,
    column_or_1d,
    has_fit_parameter,
    validate_data,
)

from equipoise.data import Attribute, FeatureTable, FloatArray, Scores, assign_folds, generator
from equipoise.errors import BadInput, first_line, pick
from equipoise.measures import Gap, Rule
from equipoise.methods import DEFAULT_MEASURE, METHODS, Candidate, Outcome, debias, make_settings

PASSED_ON = ("method", "measure", "max_gap", "max_loss", "min_performance", "allow_worse", "max_rise", "threshold", "force")
PREFIT = "prefit"
AUTO = "auto"
DECISION = "decision"  # the name of a series of decisions
CROSSED = " & "  # between the parts of a group of several attributes
PARTS = 20  # folds of which `repair_size` are the repair set
NO_IDS = "which draws each decision from the id of the row: give X as a frame with an index of text, X.set_index('id')"
Rows = Any  # a frame, an array or a sparse matrix of rows


class NothingRepaired(UserWarning):
    """No group was given, so the classifier decides as its estimator does."""


def _estimator_has(name: str) -> Callable[["FairClassifier"], bool]:
    return lambda self: hasattr(self.estimator_ if hasattr(self, "estimator_") else self.estimator, name)


class FairClassifier(MetaEstimatorMixin, ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier that reduces a difference between groups by its decision rule, within scikit-learn's conventions.

    `fit` fits the estimator on some of the rows and a decision rule on the scores of the others, with `eq.debias` (`measure`, `max_gap`,
    `max_loss`, `min_performance`, `allow_worse`, `max_rise`, `method`, `threshold`). `predict` decides by the rule; `predict_proba`
    and `decision_function` are those of the estimator.

    The group of each row is a column of X (`group`, a name or a position), which the estimator gets only with `attribute_as_input=True`; or
    it is given to `fit` as `sensitive_features`. Several columns are crossed: `group=["sex", "ward"]` has groups such as "F & north".
    `predict` needs groups only if the rule does (`rule_.needs_group`); `allow_group=False` allows only rules that do not. Without any group
    nothing is repaired, and a warning is shown.

    `cv=None` holds out `repair_size` of the rows for the rule; `cv=5`, or a splitter such as `StratifiedGroupKFold(5)`, fits the rule on
    out-of-fold scores and the estimator on all rows; `cv="prefit"` takes a fitted estimator, and X and y as the repair set. `patients`
    given to `fit` stay on one side of every split, and are the groups of a splitter. `sample_weight` weights the rows of both.

    With more than two classes, `pos_label` names the one that is decided by the rule, against all others; a row that is not decided to be
    of it gets the most probable of the others. The differences between groups in the other classes are not repaired.

    A randomised rule (`method="equalised-odds"`) draws each decision from the id of its row: the index of X, a frame with an index of text.
    Without such ids, `method="auto"` tries no randomised rule.

    `pos_label` is the positive class of the measure; the second of two `classes_` unless given. `reference` is the reference group; the
    largest group unless given. Metadata are routed as scikit-learn does: after `set_config(enable_metadata_routing=True)`, a search gives
    groups to `fit` and `score` with `set_fit_request(sensitive_features=True).set_score_request(sensitive_features=True)` on this
    classifier, and further arguments of `fit` go to the estimator if it requests them.

    Frames of pandas and polars are read by the names of their columns, and `set_output(transform="pandas")` gives decisions and
    probabilities as frames, with the index of the rows.

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
        group: str | int | Sequence[str | int] | None = None,
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

    def fit(
        self, X: Rows, y: Any, sample_weight: Any = None, *, sensitive_features: Any = None, patients: Any = None, **params: Any
    ) -> Self:
        """The fitted classifier: the estimator, and a rule fitted to its scores on rows outside the estimator's fit.

        - `sample_weight`: of each row, for the estimator and for the rule; a row of weight 0 counts for neither.
        - `sensitive_features`: the group of each row; several columns are crossed.
        - `patients`: the patient of each row, whose rows stay together.
        - `params`: for the estimator, with metadata routing.
        """
        X = _with_two_axes(X)
        validate_data(self, X=X, y=y, skip_check_array=True)
        check_consistent_length(X, y, sensitive_features, patients, sample_weight)
        y = column_or_1d(y, warn=True)
        check_classification_targets(y)
        self.classes_ = np.unique(y)
        if len(self.classes_) > 2 and self.pos_label is None:
            kind = type_of_target(y, input_name="y")
            raise ValueError(
                f"Only binary classification is supported. The type of the target is {kind}. Name the class that is to be decided against "
                "all others: FairClassifier(..., pos_label=...)."
            )
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
            of_estimator = self._to_estimator(sample_weight, params)
            self.estimator_ = self.estimator if self.cv == PREFIT else clone(self.estimator).fit(self._inputs(X), y, **of_estimator)
            return self
        if len(self.classes_) < 2:
            raise ValueError(f"a repair needs two classes; y has one class, {self.classes_[0]!r}, in all {len(y):,} rows.")
        if self.reference is not None:
            pick("reference group", self._reference, sorted(pd.Series(groups).dropna().unique()))
        all_rows = self._scores_of(X, y, groups, patients, np.zeros(len(y)))
        rows, score = self._fit_estimator(X, y, all_rows, patients, self._to_estimator(sample_weight, params))
        weights = None if sample_weight is None else _check_sample_weight(sample_weight, X)[rows]
        if weights is not None:
            rows, score, weights = rows[weights > 0], score[weights > 0], weights[weights > 0]
        of_rows = None if patients is None else np.asarray(patients, dtype=object)[rows]
        scores = self._scores_of(_safe_indexing(X, rows), y[rows], groups[rows], of_rows, score, weights)
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

    def _to_estimator(self, sample_weight: Any, params: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of the estimator's fit, by what it requests; without metadata routing, weights if it takes any."""
        given = {**params} if sample_weight is None else {"sample_weight": sample_weight, **params}
        if not given or self.cv == PREFIT:
            return {}
        if get_config()["enable_metadata_routing"]:
            return dict(process_routing(self, "fit", **given).estimator.fit)
        refused = [name for name in given if name != "sample_weight" or not has_fit_parameter(self.estimator, name)]
        if refused:
            raise BadInput(
                f"{type(self.estimator).__name__}.fit is not given {', '.join(refused)} without metadata routing. Switch it on with "
                "sklearn.set_config(enable_metadata_routing=True), and let the estimator request it: set_fit_request(sample_weight=True)."
            )
        return given

    def get_metadata_routing(self) -> MetadataRouter:
        """What this classifier and its estimator request, as scikit-learn asks for it."""
        mapping = MethodMapping().add(caller="fit", callee="fit")
        return MetadataRouter(owner=self).add_self_request(self).add(estimator=self.estimator, method_mapping=mapping)

    def _fit_estimator(
        self, X: Rows, y: npt.NDArray[Any], all_rows: Scores, patients: Any, params: Mapping[str, Any]
    ) -> tuple[npt.NDArray[np.int64], FloatArray]:
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
            fitted, rows = np.flatnonzero(~held_out), np.flatnonzero(held_out)
            return rows, self._fit_and_score(inputs, y, fitted, rows, params)
        score, times = np.empty(len(y)), np.zeros(len(y), int)
        for fitted, rows in self._splits(inputs, y, all_rows, patients, rng):
            score[rows] = self._fit_and_score(inputs, y, fitted, rows, params)
            times[rows] += 1
        if (times != 1).any():
            raise BadInput(
                f"cv={self.cv!r} must hold out every row once; it left out {(times == 0).sum():,} and repeated {(times > 1).sum():,}."
            )
        self.estimator_ = clone(self.estimator).fit(inputs, y, **params)
        return np.arange(len(y)), score

    def _splits(self, inputs: Rows, y: npt.NDArray[Any], all_rows: Scores, patients: Any, rng: np.random.Generator) -> Iterator[Any]:
        """The rows to fit the estimator on and those held out, of each fold; patients are the groups of a splitter."""
        if isinstance(self.cv, Integral) and int(self.cv) >= 2:
            folds = assign_folds(all_rows, int(self.cv), rng)
            return ((np.flatnonzero(folds != fold), np.flatnonzero(folds == fold)) for fold in range(int(self.cv)))
        try:
            if isinstance(self.cv, Integral):
                raise ValueError("fewer than two folds")
            return iter([*check_cv(self.cv).split(inputs, y, patients)])
        except (TypeError, ValueError) as error:
            raise BadInput(
                f"cv must be None, 'prefit', a number of folds of at least 2, or a splitter of scikit-learn; got {self.cv!r} "
                f"({first_line(error)}). A splitter by group needs fit(X, y, patients=...)."
            ) from error

    def _fit_and_score(self, inputs: Rows, y: npt.NDArray[Any], fitted: Any, rows: Any, params: Mapping[str, Any]) -> FloatArray:
        """The scores of rows by an estimator that is fitted to others."""
        given = _check_method_params(inputs, params, indices=fitted)
        self.estimator_ = clone(self.estimator).fit(_safe_indexing(inputs, fitted), y[fitted], **given)
        return self._score(_safe_indexing(inputs, rows))

    def predict(self, X: Rows, *, sensitive_features: Any = None) -> Any:
        """The decision for each row by the rule; `sensitive_features` is needed only if the rule needs the group."""
        X = self._validated(X)
        if self.candidate_ is None:
            return self._as_asked(np.asarray(self.estimator_.predict(self._inputs(X))), X)
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
        return self._as_asked(np.asarray(self.classes_[np.where(decided == 1, self._positive, self._other(X))]), X)

    def set_output(self, *, transform: str | None = None) -> Self:
        """The classifier, whose decisions and probabilities are given as "pandas" (with the index of X), "polars" or "default", arrays."""
        if transform is not None:
            self._sklearn_output_config = {"transform": pick("output", transform, ("default", "pandas", "polars"))}  # which `clone` copies
        return self

    def _as_asked(self, values: npt.NDArray[Any], X: Rows) -> Any:
        """Decisions (n,) or probabilities (n, classes) in the form that `set_output` names."""
        form, index = getattr(self, "_sklearn_output_config", {}).get("transform", "default"), getattr(X, "index", None)
        if form == "default":
            return values
        if form == "pandas":
            return pd.Series(values, index, name=DECISION) if values.ndim == 1 else pd.DataFrame(values, index, columns=self.classes_)
        polars: Any = importlib.import_module("polars")
        return polars.Series(DECISION, values) if values.ndim == 1 else polars.DataFrame(values, schema=[str(c) for c in self.classes_])

    def score(self, X: Rows, y: Any, sample_weight: Any = None, *, sensitive_features: Any = None) -> float:
        """The accuracy of the decisions; `sensitive_features` is needed only if the rule needs the group."""
        decided = self.predict(X, sensitive_features=sensitive_features)
        return float(accuracy_score(y, decided, sample_weight=sample_weight))

    def _other(self, X: Rows) -> Any:
        """The position of the class of rows that are not decided to be positive: the most probable one of several."""
        if len(self.classes_) == 2:
            return 1 - self._positive
        chances = np.array(self._class_scores(self._inputs(X)))
        chances[:, self._positive] = -np.inf
        return chances.argmax(1)

    @property
    def _positive(self) -> int:
        """The position of the positive class."""
        return 1 if self.pos_label is None else int(np.flatnonzero(self.classes_ == self.pos_label)[0])

    @available_if(_estimator_has("predict_proba"))  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Rows) -> Any:
        """The estimator's probabilities, to which the rule is applied; the repair does not change them."""
        X = self._validated(X)
        return self._as_asked(np.asarray(self.estimator_.predict_proba(self._inputs(X))), X)

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
    def _reference(self) -> str:
        """The reference group as text; of several attributes, one value of each is crossed as the groups are."""
        return CROSSED.join(map(str, self.reference)) if isinstance(self.reference, (tuple, list)) else str(self.reference)

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
        tags.classifier_tags.multi_class = self.pos_label is not None
        tags.input_tags.allow_nan = estimator_tags.input_tags.allow_nan
        tags.input_tags.sparse = estimator_tags.input_tags.sparse
        return tags

    def _score(self, inputs: Rows) -> FloatArray:
        """The probability of the positive class, or the logistic function of the decision function for it."""
        return np.asarray(self._class_scores(inputs)[:, self._positive])

    def _class_scores(self, inputs: Rows) -> FloatArray:
        """The probability of each class (n, classes), or the logistic function of the decision function for it."""
        if hasattr(self.estimator_, "predict_proba"):
            return np.asarray(self.estimator_.predict_proba(inputs), dtype=np.float64)
        values = np.asarray(self.estimator_.decision_function(inputs), dtype=np.float64)
        return np.asarray(expit(np.column_stack([-values, values]) if values.ndim == 1 else values))

    def _groups(self, X: Rows, sensitive_features: Any) -> npt.NDArray[Any] | None:
        """The group of each row as text, from `sensitive_features` or from its columns, which are crossed; None without either."""
        if sensitive_features is None and self.group is not None:
            sensitive_features = np.column_stack([np.asarray(_safe_indexing(X, at, axis=1), dtype=object) for at in self._positions(X)])
        if sensitive_features is None:
            return None
        given = np.asarray(sensitive_features, dtype=object)
        given = given[:, None] if given.ndim == 1 else given
        if given.ndim != 2 or len(given) != X.shape[0] or not given.shape[1]:
            raise BadInput(
                f"sensitive_features must hold one group per row, {X.shape[0]:,} values, or one column per attribute; got the shape "
                f"{np.shape(sensitive_features)}."
            )
        values, missing = pd.DataFrame(given), pd.isna(given).any(axis=1)  # unknown if one of its parts is
        crossed = values.map(str).agg(CROSSED.join, axis=1) if given.shape[1] > 1 else values[0].map(str)
        return np.asarray(crossed.where(~missing, None), dtype=object)

    def _positions(self, X: Rows) -> list[int]:
        """The positions of the columns of X that hold groups; none if none was named."""
        columns, found = list(getattr(X, "columns", ())), list[int]()
        named = [] if self.group is None else [self.group] if isinstance(self.group, (str, Integral)) else [*self.group]
        for name in named:
            if name not in columns and isinstance(name, str):
                where = f"The columns are: {', '.join(map(str, columns))}." if columns else "X is an array: give a frame, or its position."
                raise BadInput(f"no column {name!r} with the group. {where}")
            found.append(columns.index(name) if name in columns else int(name) % int(X.shape[1]))
        return found

    def _without_group(self, X: Rows) -> Rows:
        positions = self._positions(X)
        return X if not positions else _safe_indexing(X, [k for k in range(X.shape[1]) if k not in positions], axis=1)

    def _inputs(self, X: Rows) -> Rows:
        """The columns that the estimator gets."""
        return X if self.attribute_as_input else self._without_group(X)

    def _scores_of(self, X: Rows, y: Any, groups: Any, patients: Any, score: FloatArray, weights: FloatArray | None = None) -> Scores:
        """Scores of labelled rows with their groups, and with the other columns, which a rule may read."""
        positive = (np.asarray(y) == self.classes_[self._positive]).astype(np.int64)
        names = pd.Series(groups).dropna().unique()
        reference = None if self.reference is None else self._reference
        features = self._features(X)
        if len(np.unique(positive)) < 2 or len(names) < 2:
            return _unlabelled(score, groups, features)
        scores = Scores.from_arrays(positive, score, groups, reference=reference, patients=patients, weights=weights)
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
    if type(X).__module__.partition(".")[0] == "polars":
        return pd.DataFrame(X.to_dict(as_series=False))
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
