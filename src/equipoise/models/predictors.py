"""Classifiers that are not networks: scikit-learn estimators and pipelines, those of XGBoost, LightGBM and CatBoost, and functions.

They take rows as they stand in the user's table: raw columns, which a pipeline encodes itself, or arrays. What comes back is one
probability per row. A repair changes nothing in them; it is a decision rule on their scores.
"""

import re
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from typing import Any

import numpy as np
import pandas as pd

from equipoise.data import Cohort, Images, Scores, Table
from equipoise.errors import BadInput, Misuse, did_you_mean, first_line, raise_all
from equipoise.measures import FloatArray

ESTIMATOR, FUNCTION = "estimator", "function"
READS = ("predict_proba", "decision_function")  # the first that an estimator has gives its scores
OBVIOUS = ({0, 1}, {-1, 1}, {"0", "1"})  # classes of which the larger is the positive one
UNNAMED = re.compile(r"(Column_|f|x)?\d+")  # names that a library gave to the columns of an array
BATCH = 256  # images at a time
NOT_ONE = {  # what is given in place of a classifier, and what to do
    "Booster": "Its predictions are those of a function: eq.audit(lambda rows: booster.predict(rows), cohort), or use the "
    "library's scikit-learn class (XGBClassifier, LGBMClassifier).",
    "RegressorMixin": "It predicts a number, not a class. If that is a probability: eq.audit(lambda rows: model.predict(rows), cohort).",
    "ClassifierMixin": "It has neither predict_proba nor decision_function, so that there are no scores. Use probability=True or "
    "sklearn.calibration.CalibratedClassifierCV.",
}


@dataclass(frozen=True, eq=False)
class Predictor:
    """A classifier that is no torch.nn.Module, and what is known of it. `scores(rows)` is the probability of the positive class.

    >>> found = predictor(lambda rows: rows["age"] / 100)
    >>> found.kind, found.scores(pd.DataFrame({"age": [30, 50]})).tolist()
    ('function', [0.3, 0.5])
    """

    model: Any
    kind: str  # estimator or function
    reads: str  # the method that gives the scores; empty for a function
    libraries: Mapping[str, str]  # that the classifier is from, with their versions
    columns: tuple[str, ...] | None = None  # that it was fitted on, in their order; None where it has no names for them
    width: int | None = None  # the number of columns that it was fitted on
    classes: tuple[object, ...] = ()  # as it names them
    positive: object = None  # the class whose probability is the score
    output: str = "auto"  # of a function: probability, or logit

    def __repr__(self) -> str:
        shown = "" if self.columns is None else f", {len(self.columns)} columns"
        return f"Predictor({type(self.model).__name__}, {self.reads or self.kind}{shown})"

    def scores(self, rows: object) -> FloatArray:
        """The probability of the positive class for each row: of a frame with the columns it was fitted on, or of an array (n, ...)."""
        if isinstance(rows, Images):
            parts = [self._scored(rows[start : start + BATCH]) for start in range(0, len(rows), BATCH)]
            return np.concatenate(parts) if parts else np.empty(0)
        return self._scored(rows)

    def _scored(self, rows: object) -> FloatArray:
        given = self._given(rows)
        asked = self.model if self.kind == FUNCTION else getattr(self.model, self.reads)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of the library, about its own future
                raw = asked(given)
        except BadInput:
            raise
        except Exception as error:  # a model may raise anything; what it was given helps more than a traceback
            raise self._failed(error, given) from error
        return self._positive(raw, len(given))

    def _given(self, rows: object) -> Any:
        """The rows as the classifier takes them: the columns it was fitted on, in their order."""
        if isinstance(rows, Table):
            rows = rows.frame
        if is_tensor(rows):
            return rows if self.kind == FUNCTION else self._wide_enough(_array(rows))
        if not isinstance(rows, pd.DataFrame):
            try:
                return self._wide_enough(np.asarray(rows))
            except (TypeError, ValueError):
                raise Misuse("the scores of a classifier", "rows as a pandas frame or an array", rows) from None
        if self.columns is not None:
            there = list(map(str, rows.columns))
            raise_all(
                [
                    f"no column {name!r}, which the model was fitted on.{did_you_mean(name, there, 0.6)} Add it; where it is the group, "
                    "keep it as an input (attribute_as_input=True, or --feature)."
                    for name in self.columns
                    if name not in there
                ]
            )
            return rows.set_axis(there, axis=1)[list(self.columns)]
        if self.kind == FUNCTION or self.width is None:
            return rows
        text = [str(name) for name in rows.columns if not pd.api.types.is_numeric_dtype(rows[name])]
        if text:
            raise BadInput(
                f"the model was fitted on an array of {self.width} numbers per row, and {', '.join(map(repr, text))} hold text. "
                "Name the columns that are its inputs, in their order: features=[...] (--feature)."
            )
        return self._wide_enough(rows.to_numpy(dtype=float, na_value=np.nan), list(map(str, rows.columns)))

    def _wide_enough(self, rows: Any, names: Sequence[str] = ()) -> Any:
        if self.kind == ESTIMATOR and self.width is not None and rows.ndim == 2 and rows.shape[1] != self.width:
            shown = f" ({', '.join(names)})" if names else ""
            raise BadInput(
                f"the model was fitted on {self.width} columns and the rows have {rows.shape[1]}{shown}. "
                "Name those that are its inputs, in their order: features=[...] (--feature)."
            )
        return rows

    def _failed(self, error: Exception, given: Any) -> BadInput:
        kind = type(error).__name__
        if kind == "NotFittedError":
            return BadInput(f"the {type(self.model).__name__} is not fitted. Fit it before it is audited or repaired.")
        reason = first_line(error)
        what = f"columns {', '.join(map(str, given.columns))}" if isinstance(given, pd.DataFrame) else f"shape {tuple(given.shape)}"
        return BadInput(
            f"the model raised {kind} on {len(given):,} rows with {what}: {reason}. "
            "Give it the rows that it was trained on, in the same form."
        )

    def _positive(self, raw: object, rows: int) -> FloatArray:
        """One probability per row from what the classifier returned."""
        try:
            values = np.asarray(_array(raw) if is_tensor(raw) else raw, dtype=np.float64)
        except (TypeError, ValueError):
            raise BadInput(f"the model must return numbers, one per row; it returned {type(raw).__name__}.") from None
        if values.ndim == 2 and values.shape == (rows, 2) and self.output != "logit":
            at = self.classes.index(self.positive) if self.classes else 1
            values = values[:, at]
        elif values.shape in ((rows,), (rows, 1)):
            values = values.reshape(rows)
        else:
            raise BadInput(
                f"the model must return one probability per row, shape ({rows},), or those of two classes, ({rows}, 2); it returned "
                f"{values.shape}. Wrap it in a function that returns only the positive class."
            )
        if bad := int((~np.isfinite(values)).sum()):
            raise BadInput(f"the model gave NaN or infinity for {bad:,} of {rows:,} rows. Check them for missing values.")
        if self.reads == "decision_function":
            values = values if not self.classes or self.positive == self.classes[-1] else -values
        if self.reads == "decision_function" or self.output == "logit":
            from scipy.special import expit

            return np.asarray(expit(values))
        outside = (values < 0) | (values > 1)
        if outside.any():
            raise BadInput(
                f"the model must return probabilities; {int(outside.sum()):,} of {rows:,} lie outside [0, 1], from {values.min():g} to "
                f'{values.max():g}. If they are logits: eq.predictor(model, output="logit").'
            )
        return values


def predictor(model: object, *, positive: object = None, output: str = "auto") -> Predictor:
    """A fitted estimator, or a function from rows to probabilities, as `eq.audit` and `eq.debias` take it.

    An estimator has `predict_proba`, or `decision_function`, whose values the logistic function maps to scores: 0, where it decides,
    becomes 0.5. `positive` names the class that a score is the probability of, where that does not follow from the classes (0 and 1, -1
    and 1, False and True). A function gets the raw columns of a table as a frame, or a tensor; `output="logit"`: it returns logits.
    """
    if isinstance(model, Predictor):
        return model
    reads = None if isinstance(model, type) else next((name for name in READS if callable(getattr(model, name, None))), None)
    if not can_predict(model):
        advice = "Give a fitted instance of it, not the class." if isinstance(model, type) else ""
        raise Misuse("eq.predictor", "a fitted estimator with predict_proba, or a function of rows", model, {"type": advice} | NOT_ONE)
    if output not in ("auto", "probability", "logit"):
        raise BadInput(f"output must be auto, probability or logit; got {output!r}")
    if reads is None:
        return Predictor(model, FUNCTION, "", libraries_of(model), output=output)
    classes = _classes(model)
    columns, width = _columns(model)
    if classes and positive is None:
        positive = _obvious(classes)
    if classes and positive not in classes:  # a word from a command line may stand for a number
        positive = next((own for own in classes if str(own) == positive), positive)
    if classes and positive not in classes:
        raise BadInput(f"positive={positive!r} is none of the model's classes, {', '.join(map(repr, classes))}. Name one of them.")
    return Predictor(model, ESTIMATOR, reads, libraries_of(model), columns, width, classes, positive, output)


def can_predict(model: object) -> bool:
    """Whether an object is an estimator with scores, or a function; a network or a class is neither."""
    if isinstance(model, type) or any(kind.__name__ == "Module" and kind.__module__.startswith("torch.") for kind in type(model).__mro__):
        return False
    return callable(model) or any(callable(getattr(model, name, None)) for name in READS)


def is_tensor(value: object) -> bool:
    """Whether a value is a tensor, without importing torch: where there is one, it has been imported."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _array(tensor: Any) -> Any:
    return tensor.detach().cpu().numpy()


def _classes(model: Any) -> tuple[object, ...]:
    try:
        found = getattr(model, "classes_", None)
    except Exception:  # a property of an estimator that is not fitted
        return ()
    if found is None:
        return ()
    if isinstance(found, list) and found and not np.isscalar(found[0]):
        raise BadInput("the model has several outputs. Give a model of one label, or a function that returns the probability of one.")
    classes = tuple(np.asarray(found).tolist())
    if len(classes) != 2:
        shown = ", ".join(map(repr, classes[:8]))
        raise BadInput(
            f"the model has {len(classes)} classes ({shown}); an audit is of two. Give a function that returns the probability of the one "
            "that is the label: lambda rows: model.predict_proba(rows)[:, k]."
        )
    return classes


def _obvious(classes: tuple[object, ...]) -> object:
    if any(set(classes) == one for one in OBVIOUS):  # True == 1
        return max(classes)  # type: ignore[type-var]
    shown = " and ".join(map(repr, classes))
    raise BadInput(
        f"the model's classes are {shown}; which of them is the positive one, as 1 is in the label? Name it: --positive {classes[0]} or "
        f"--positive {classes[1]} (in Python eq.predictor(model, positive={classes[0]!r}) or positive={classes[1]!r})."
    )


def _columns(model: Any) -> tuple[tuple[str, ...] | None, int | None]:
    """The columns that an estimator was fitted on, where it has names for them, and their number."""
    names = None
    for attribute in ("feature_names_in_", "feature_names_"):
        found = _attribute(model, attribute)
        if found is not None and len(found) and not all(UNNAMED.fullmatch(str(name)) for name in found):
            names = tuple(map(str, found))
            break
    width = _attribute(model, "n_features_in_")
    return names, None if width is None else int(width)


def _attribute(model: Any, name: str) -> Any:
    try:
        return getattr(model, name, None)
    except Exception:  # each library's own (CatBoostError, ...), from a property of one that is not fitted or was fitted on an array
        return None


def libraries_of(model: object) -> dict[str, str]:
    """The libraries whose classes a classifier is made of, with their versions; those inside a pipeline as well."""
    parameters = getattr(model, "get_params", None)
    inside = parameters(deep=True).values() if callable(parameters) and not isinstance(model, type) else ()
    modules = {type(part).__module__.partition(".")[0] for part in (model, *inside)}
    known, found = _packages(), {}
    for module in sorted(modules - {"builtins", "__main__", "numpy"}):
        for package in known.get(module, [])[:1]:
            try:
                found[package] = version(package)
            except PackageNotFoundError:
                continue
    return found


@cache
def _packages() -> Mapping[str, list[str]]:
    """The packages that each module comes from. The files of all that are installed are read for it, which takes half a second."""
    return packages_distributions()


def predicted(model: Predictor, cohort: Cohort) -> Scores:
    """The cohort's scores by a classifier that is not a network, with the columns that a rule may read as well."""
    if cohort.targets is not None:
        raise BadInput(
            f"{model!r} gives one score per row and {cohort.name!r} has {len(cohort.labels)} {cohort.kind}. Take one of them: "
            f"cohort.labelled({cohort.labels[0]!r}), with the classifier of that label."
        )
    found = Scores.of(cohort, model.scores(cohort.source))
    groups = {attribute.name for attribute in cohort.attributes}
    if isinstance(cohort.source, Table):
        columns = [name for name in cohort.source.frame.columns if name not in groups]
        return found.with_features(cohort.source.frame[columns]) if columns else found
    return found.with_features(_array(cohort.source)) if is_tensor(cohort.source) and len(cohort.source.shape) == 2 else found


def with_output(model: Predictor, output: str) -> Predictor:
    """The same classifier with its output read as a logit or a probability; `auto` leaves it as it is."""
    if output == "auto" or model.kind == ESTIMATOR:
        return model
    return replace(model, output=output)
