"""Classifiers that are not networks: scikit-learn estimators and pipelines, those of XGBoost, LightGBM and CatBoost, and functions.

They take rows as they stand in the user's table: raw columns, which a pipeline encodes itself, or arrays. A repair does not change them: it
is a decision rule on their scores. Estimators are read from .skops files, which list every type they would build, and from pickles (.pkl,
.pickle, .joblib), which run code when read. A pickle is read only if the user declares it trusted; a .skops file with types other than
those of scikit-learn and numpy only if the user names each of them. This module does not import torch.
"""

import importlib.util
import logging
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from equipoise.data import Cohort, Columns, Images, Scores, Table
from equipoise.errors import BadInput, MissingExtra, Misuse, Untrusted, did_you_mean, first_line, raise_all
from equipoise.measures import FloatArray

if TYPE_CHECKING:
    from torch import nn
    from typing_extensions import TypeIs

ESTIMATOR, FUNCTION = "estimator", "function"
READS = ("predict_proba", "decision_function")  # scores come from the first of these methods that an estimator has
OBVIOUS = ({0, 1}, {-1, 1}, {"0", "1"})  # pairs of classes whose larger one is the positive class
UNNAMED = re.compile(r"(Column_|f|x)?\d+")  # names that a library gave to the columns of an array
BATCH = 256  # images at a time
SKOPS, PICKLES = ".skops", (".pkl", ".pickle", ".joblib")
# Arrays of scikit-learn and types of NumPy that skops does not know; reading them runs no code.
TRUSTED_TYPES = ("sklearn.ensemble._hist_gradient_boosting.predictor.TreePredictor", "numpy.dtype")
PACKAGES = {"sklearn": "scikit-learn", "PIL": "pillow", "cv2": "opencv-python", "skimage": "scikit-image", "yaml": "pyyaml"}
log = logging.getLogger(__name__)
NOT_A_CLASSIFIER = {  # by type: what to do with objects that are no classifiers
    "Booster": "Its predictions are those of a function: eq.audit(lambda rows: booster.predict(rows), cohort), or use the "
    "library's scikit-learn class (XGBClassifier, LGBMClassifier).",
    "RegressorMixin": "It predicts a number, not a class. If that is a probability: eq.audit(lambda rows: model.predict(rows), cohort).",
    "ClassifierMixin": "It has neither predict_proba nor decision_function, so that there are no scores. Use probability=True or "
    "sklearn.calibration.CalibratedClassifierCV.",
}


def made_by(value: object, package: str, name: str) -> bool:
    """Whether a value's class, or one that it derives from, has this name in a package; the package is not imported for it."""
    return any(kind.__name__ == name and kind.__module__.partition(".")[0] == package for kind in type(value).__mro__)


def is_network(model: object) -> "TypeIs[nn.Module]":
    """Whether a model is a torch.nn.Module, which has layers and gradients. Does not import torch."""
    return made_by(model, "torch", "Module")


@dataclass(frozen=True, eq=False)
class Predictor:
    """A classifier that is not a torch.nn.Module. `scores(rows)` is the probability of the positive class.

    >>> found = predictor(lambda rows: rows["age"] / 100)
    >>> found.kind, found.scores(pd.DataFrame({"age": [30, 50]})).tolist()
    ('function', [0.3, 0.5])
    """

    model: Any
    kind: str  # estimator or function
    reads: str  # the method that gives the scores; empty for a function
    libraries: Mapping[str, str]  # the libraries of its classes, with their versions
    columns: tuple[str, ...] | None = None  # the columns that it was fitted on, in order; None if it has no names for them
    width: int | None = None  # the number of columns that it was fitted on
    classes: tuple[object, ...] = ()  # as in `classes_`
    positive: object = None  # the class whose probability is the score
    output: str = "auto"  # the output of a function: probability or logit

    def __repr__(self) -> str:
        shown = "" if self.columns is None else f", {len(self.columns)} columns"
        return f"Predictor({type(self.model).__name__}, {self.reads or self.kind}{shown})"

    def scores(self, rows: object) -> FloatArray:
        """The probability of the positive class for each row: of a frame with the columns it was fitted on, or of an array (n, ...)."""
        if isinstance(rows, Images):
            parts = [self._batch_scores(rows[start : start + BATCH]) for start in range(0, len(rows), BATCH)]
            return np.concatenate(parts) if parts else np.empty(0)
        return self._batch_scores(rows)

    def predict(self, cohort: Cohort, output: str = "auto") -> Scores:
        """The cohort's scores, with the columns of the table for rules that read features."""
        if cohort.several:
            raise BadInput(
                f"{self!r} gives one score per row and {cohort.name!r} has {len(cohort.labels)} {cohort.kind}. Take one of them: "
                f"cohort.labelled({cohort.labels[0]!r}), with the classifier of that label."
            )
        plain = cohort.source.plain()
        model = self if output == "auto" or self.kind == ESTIMATOR else replace(self, output=output)
        scores = Scores.of(cohort, model.scores(plain))
        if isinstance(cohort.source, Table):
            groups = {attribute.name for attribute in cohort.attributes}
            frame = cohort.source.frame  # may have columns that the model was not fitted on, and that determine the label
            columns = [name for name in frame.columns if name not in groups and (self.columns is None or str(name) in self.columns)]
            return scores.with_features(frame[columns]) if columns else scores
        return scores.with_features(_array(plain)) if made_by(plain, "torch", "Tensor") and len(plain.shape) == 2 else scores

    def _batch_scores(self, rows: object) -> FloatArray:
        inputs = self._inputs(rows)
        function = self.model if self.kind == FUNCTION else getattr(self.model, self.reads)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # deprecations inside the library
                raw = function(inputs)
        except BadInput:
            raise
        except Exception as error:  # a model may raise anything; a description of its inputs helps more than a traceback
            raise self._model_error(error, inputs) from error
        return self._positive_probability(raw, len(inputs))

    def _inputs(self, rows: object) -> Any:
        """The rows as the classifier takes them: the columns it was fitted on, in their order."""
        if made_by(rows, "torch", "Tensor"):
            return rows if self.kind == FUNCTION else self._check_width(_array(rows))
        if not isinstance(rows, pd.DataFrame):
            try:
                array = np.asarray(rows)
            except (TypeError, ValueError):
                raise Misuse("the scores of a classifier", "rows as a pandas frame or an array", rows) from None
            return self._check_width(array)
        if self.columns is not None:
            names = list(map(str, rows.columns))
            raise_all(
                [
                    f"no column {name!r}, which the model was fitted on.{did_you_mean(name, names, 0.6)} Add it; where it is the group, "
                    "keep it as an input (attribute_as_input=True, or data.features)."
                    for name in self.columns
                    if name not in names
                ]
            )
            return rows.set_axis(names, axis=1)[list(self.columns)]
        if self.kind == FUNCTION or self.width is None:
            return rows
        text = [str(name) for name in rows.columns if not pd.api.types.is_numeric_dtype(rows[name])]
        if text:
            raise BadInput(
                f"the model was fitted on an array of {self.width} numbers per row, and {', '.join(map(repr, text))} hold text. "
                "Name the columns that are its inputs, in their order: features=[...] (data.features)."
            )
        return self._check_width(rows.to_numpy(dtype=float, na_value=np.nan), list(map(str, rows.columns)))

    def _check_width(self, rows: Any, names: Sequence[str] = ()) -> Any:
        """The rows, if they have as many columns as the estimator was fitted on."""
        if self.kind == ESTIMATOR and self.width is not None and rows.ndim == 2 and rows.shape[1] != self.width:
            shown = f" ({', '.join(names)})" if names else ""
            raise BadInput(
                f"the model was fitted on {self.width} columns and the rows have {rows.shape[1]}{shown}. "
                "Name those that are its inputs, in their order: features=[...] (data.features)."
            )
        return rows

    def _model_error(self, error: Exception, inputs: Any) -> BadInput:
        kind = type(error).__name__
        if kind == "NotFittedError":
            return BadInput(f"the {type(self.model).__name__} is not fitted. Fit it before it is audited or repaired.")
        what = f"columns {', '.join(map(str, inputs.columns))}" if isinstance(inputs, pd.DataFrame) else f"shape {tuple(inputs.shape)}"
        return BadInput(
            f"the model raised {kind} on {len(inputs):,} rows with {what}: {first_line(error)}. "
            "Give it the rows that it was trained on, in the same form."
        )

    def _positive_probability(self, raw: object, rows: int) -> FloatArray:
        """One probability per row from the output of the classifier."""
        try:
            values = np.asarray(_array(raw) if made_by(raw, "torch", "Tensor") else raw, dtype=np.float64)
        except (TypeError, ValueError):
            raise BadInput(f"the model must return numbers, one per row; it returned {type(raw).__name__}.") from None
        if values.ndim == 2 and values.shape == (rows, 2) and self.output != "logit":
            values = values[:, self.classes.index(self.positive) if self.classes else 1]
        elif values.shape in ((rows,), (rows, 1)):
            values = values.reshape(rows)
        else:
            positive = "raw[:, 1] - raw[:, 0], the logit" if values.shape == (rows, 2) else "the probability"  # two logits, by `output`
            raise BadInput(
                f"the model must return one probability per row, shape ({rows},), or those of two classes, ({rows}, 2); it returned "
                f"{values.shape}. Wrap it in a function that returns {positive} of the positive class."
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

    An estimator has `predict_proba`, or `decision_function`, whose values the logistic function maps to scores: the decision threshold 0
    becomes 0.5. `positive` names the positive class, unless the classes are 0 and 1, -1 and 1, or False and True. A function gets the raw
    columns of a table as a frame, or a tensor; give `output="logit"` if it returns logits.
    """
    if isinstance(model, Predictor):
        return model
    reads = None if isinstance(model, type) else next((name for name in READS if callable(getattr(model, name, None))), None)
    if not can_predict(model):
        advice = "Give a fitted instance of it, not the class." if isinstance(model, type) else ""
        raise Misuse(
            "eq.predictor", "a fitted estimator with predict_proba, or a function of rows", model, {"type": advice} | NOT_A_CLASSIFIER
        )
    if output not in ("auto", "probability", "logit"):
        raise BadInput(f"output must be auto, probability or logit; got {output!r}")
    if reads is None:
        return Predictor(model, FUNCTION, "", libraries_of(model), output=output)
    classes = _classes(model)
    if classes:
        positive = _default_positive(classes) if positive is None else positive
        if positive not in classes:  # a word from a command line may stand for a number
            positive = next((name for name in classes if str(name) == positive), positive)
        if positive not in classes:
            raise BadInput(f"positive={positive!r} is none of the model's classes, {', '.join(map(repr, classes))}. Name one of them.")
    return Predictor(model, ESTIMATOR, reads, libraries_of(model), *_columns(model), classes, positive, output)


def can_predict(model: object) -> bool:
    """Whether an object is an estimator with scores, or a function; a network or a class is neither."""
    if isinstance(model, type) or is_network(model):
        return False
    return callable(model) or any(callable(getattr(model, name, None)) for name in READS)


def _array(tensor: Any) -> Any:
    return tensor.detach().cpu().numpy()


def _classes(model: Any) -> tuple[object, ...]:
    names = _attribute(model, "classes_")
    if names is None:
        return ()
    if isinstance(names, list) and names and not np.isscalar(names[0]):
        raise BadInput("the model has several outputs. Give a model of one label, or a function that returns the probability of one.")
    classes = tuple(np.asarray(names).tolist())
    if len(classes) != 2:
        shown = ", ".join(map(repr, classes[:8]))
        raise BadInput(
            f"the model has {len(classes)} classes ({shown}); an audit needs two. Give a function that returns the probability of the one "
            "that is the label: lambda rows: model.predict_proba(rows)[:, k]."
        )
    return classes


def _default_positive(classes: tuple[object, ...]) -> object:
    if set(classes) in OBVIOUS:  # True == 1
        return max(classes)  # type: ignore[type-var]
    shown = " and ".join(map(repr, classes))
    raise BadInput(
        f"the model's classes are {shown}; which of them is the positive one, as 1 is in the label? Name it: "
        f"--set data.positive={classes[0]} or {classes[1]} (in Python eq.predictor(model, positive={classes[0]!r}))."
    )


def _columns(model: Any) -> tuple[tuple[str, ...] | None, int | None]:
    """The names of the columns that an estimator was fitted on, if it has them, and their number."""
    width = _attribute(model, "n_features_in_")
    count = None if width is None else int(width)
    for names in (_attribute(model, "feature_names_in_"), _attribute(model, "feature_names_")):
        if names is not None and len(names) and not all(UNNAMED.fullmatch(str(name)) for name in names):
            return tuple(map(str, names)), count
    return None, count


def _attribute(model: Any, name: str) -> Any:
    try:
        return getattr(model, name, None)
    except Exception:  # each library's own (CatBoostError, ...), from a property of an estimator that is not fitted or has no names
        return None


def libraries_of(model: object) -> dict[str, str]:
    """The libraries of a classifier's classes, including those of a pipeline's steps, with their versions."""
    parameters = getattr(model, "get_params", None)
    steps = parameters(deep=True).values() if callable(parameters) and not isinstance(model, type) else ()
    modules = {type(part).__module__.partition(".")[0] for part in (model, *steps)}
    packages, versions = _packages(), {}
    for module in sorted(modules - {"builtins", "__main__", "numpy"}):
        for package in packages.get(module, [])[:1]:
            with suppress(PackageNotFoundError):
                versions[package] = version(package)
    return versions


@cache
def _packages() -> Mapping[str, list[str]]:
    """The packages that provide each module. Cached, since reading the metadata of all installed packages takes half a second."""
    return packages_distributions()


def is_estimator_file(named: str | Path) -> bool:
    """Whether a name is that of a file with an estimator."""
    return str(named).endswith((SKOPS, *PICKLES))


def load_predictor(path: str | Path, *, trusted: Sequence[str] = (), trust_pickle: bool = False, positive: object = None) -> Predictor:
    """The classifier in a file of an estimator; `trusted` names types in a .skops file, `trust_pickle` lets a pickle run its code."""
    path = Path(path)
    if not path.is_file():
        raise BadInput(f"no such file: {path}. Name the file with the estimator ({SKOPS}, or {', '.join(PICKLES)}).")
    return predictor_in(path.read_bytes(), str(path), trusted=trusted, trust_pickle=trust_pickle, positive=positive)


def load_estimator(
    path: str | Path, columns: Columns, *, trusted: Sequence[str] = (), trust_pickle: bool = False
) -> tuple[Predictor, Columns]:
    """The estimator in a file, and the raw columns that it reads: the given features, or the columns it was fitted on."""
    estimator = load_predictor(path, positive=columns.positive, trusted=trusted, trust_pickle=trust_pickle)
    return estimator, columns.changed(features=columns.features or estimator.columns, raw=True)


def predictor_in(
    content: bytes, source: str, *, trusted: Sequence[str] = (), trust_pickle: bool = False, positive: object = None
) -> Predictor:
    """The classifier in the bytes of such a file."""
    if source.endswith(SKOPS):
        model = _load_skops(content, source, [*trusted, *TRUSTED_TYPES])
    elif trust_pickle:
        import joblib

        model = _load(lambda: joblib.load(BytesIO(content)), source)
    else:
        raise Untrusted(
            f"{source} is a pickle, which can run any code when it is read. Save the estimator with skops instead: "
            f"skops.io.dump(model, 'model{SKOPS}'). If you know who wrote the file, read it with --set model.trust_pickle=true "
            "(Python: trust_pickle=True)."
        )
    if not can_predict(model):
        raise BadInput(
            f"{source} holds an object of type {type(model).__name__}, which has neither predict_proba nor decision_function. "
            "Save a fitted classifier by itself."
        )
    return predictor(model, positive=positive)


def _load_skops(content: bytes, source: str, trusted: list[str]) -> Any:
    try:
        import skops.io
    except ImportError as error:
        raise MissingExtra("skops", "sklearn", f"reading {source}") from error
    try:
        unknown = [name for name in skops.io.get_untrusted_types(data=content) if name not in trusted]
    except Exception as error:  # no archive, or a damaged one
        raise _unreadable(source, error) from error
    if unknown:
        options = " ".join(f"--set model.trust_types={name}" for name in unknown)
        raise Untrusted(
            f"{source} holds types that are not known to be harmless: {', '.join(unknown)}. Find out what they are; those that you trust "
            f"can be named: {options} (Python: trusted={unknown!r})."
        )
    return _load(lambda: skops.io.loads(content, trusted=trusted), source)


def _load(load: Callable[[], Any], source: str) -> Any:
    """The object that `load` returns. An error names a missing library; warnings about versions are logged in one line each."""
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model = load()
    except ModuleNotFoundError as error:
        raise BadInput(f"{source} cannot be read: no module named {error.name!r}.{pip_advice(error)}") from error
    except Exception as error:  # a pickle may raise anything
        raise _unreadable(source, error) from error
    messages = [str(warning.message) for warning in caught]
    for text in dict.fromkeys(message.splitlines()[0] for message in messages if "version" in message):
        log.warning("%s: %s", source, text)
    return model


def _unreadable(source: str, error: Exception) -> BadInput:
    return BadInput(f"{source} cannot be read: {type(error).__name__}: {first_line(error)}. Save the estimator again.")


def pip_advice(error: ModuleNotFoundError) -> str:
    """The pip command for a library that is not installed, as an addition to a message; empty if the name is not that of a library.

    >>> pip_advice(ModuleNotFoundError(name="nowhere_to_be_found.layers"))
    ' It needs the library nowhere_to_be_found, which is not installed: pip install nowhere_to_be_found'
    """
    module = (error.name or "").partition(".")[0]
    if not module or importlib.util.find_spec(module) is not None:
        return ""
    package = PACKAGES.get(module, module)
    return f" It needs the library {package}, which is not installed: pip install {package}"
