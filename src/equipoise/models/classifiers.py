"""Classifiers: whatever gives rows a score. A network, a file that holds one, a fitted estimator, or a function.

`classifier` takes in a user's object or file once: a network becomes a torch.nn.Module, which offers layers and gradients too
(`is_network`), and everything else a `Predictor`: scikit-learn estimators and pipelines, those of XGBoost, LightGBM and CatBoost, and
functions. They take rows as they stand in the user's table: raw columns, which a pipeline encodes itself, or arrays. A repair does not
change them: it is a decision rule on their scores. `predict` gives the scores of either; scores by themselves pass through it unchanged.

Estimators are read from .skops files, which list every type they would build, and from pickles (.pkl, .pickle, .joblib), which run code
when read. A pickle is read only if the user declares it trusted; a .skops file with types other than those of scikit-learn and numpy only
if the user names each of them. Torch is imported only if there is a network.
"""

import logging
import re
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from equipoise.data import Cohort, FloatArray, Rows, Scores
from equipoise.errors import BadInput, MissingExtra, Misuse, Untrusted, did_you_mean, first_line, pip_advice, raise_all

if TYPE_CHECKING:
    from torch import Tensor, nn
    from typing_extensions import TypeIs

ESTIMATOR, FUNCTION = "estimator", "function"
SCORE_METHODS = ("predict_proba", "decision_function")  # scores come from the first of these methods that an estimator has
OBVIOUS_CLASSES = ({0, 1}, {-1, 1}, {"0", "1"})  # pairs of classes whose larger one is the positive class
LIBRARY_NAMES = re.compile(r"(Column_|f|x)?\d+")  # names that a library gave to the columns of an array
SKOPS, PICKLES = ".skops", (".pkl", ".pickle", ".joblib")
# Arrays of scikit-learn and types of NumPy that skops does not know; reading them runs no code.
TRUSTED_TYPES = ("sklearn.ensemble._hist_gradient_boosting.predictor.TreePredictor", "numpy.dtype")
log = logging.getLogger(__name__)
packages_of_modules = cache(packages_distributions)  # cached, since reading the metadata of all installed packages takes half a second
NOT_A_CLASSIFIER = {  # by type: what to do with objects that are no classifiers
    "type": "Give a fitted instance of it, not the class.",
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
        (inputs, shown), function = self._inputs(rows), getattr(self.model, self.reads) if self.reads else self.model
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # deprecations inside the library
                raw = function(inputs)
        except BadInput:
            raise
        except Exception as error:  # a library or a function may raise anything; the columns help more than a traceback
            if (kind := type(error).__name__) == "NotFittedError":
                raise BadInput(f"the {type(self.model).__name__} is not fitted. Fit it before it is audited or repaired.") from error
            raise BadInput(
                f"the model raised {kind} on {len(inputs):,} rows with {shown}: {first_line(error)}. "
                "Give it the rows that it was trained on, in the same form."
            ) from error
        count = len(inputs)
        try:
            values = np.asarray(_array(raw), dtype=np.float64)
        except (TypeError, ValueError):
            raise BadInput(f"the model must return numbers, one per row; it returned {type(raw).__name__}.") from None
        if values.shape == (count, 2) and self.output != "logit":
            values = values[:, self.classes.index(self.positive) if self.classes else 1]
        elif values.shape in ((count,), (count, 1)):
            values = values.reshape(count)
        else:
            positive = "raw[:, 1] - raw[:, 0], the logit" if values.shape == (count, 2) else "the probability"  # two logits, by `output`
            raise BadInput(
                f"the model must return one probability per row, shape ({count},), or those of two classes, ({count}, 2); it returned "
                f"{values.shape}. Wrap it in a function that returns {positive} of the positive class."
            )
        if bad := int((~np.isfinite(values)).sum()):
            raise BadInput(f"the model gave NaN or infinity for {bad:,} of {count:,} rows. Check them for missing values.")
        if self.reads == "decision_function" or self.output == "logit":
            from scipy.special import expit

            first = self.reads == "decision_function" and self.classes and self.positive != self.classes[-1]
            return np.asarray(expit(-values if first else values))
        if outside := int(((values < 0) | (values > 1)).sum()):
            raise BadInput(
                f"the model must return probabilities; {outside:,} of {count:,} lie outside [0, 1], from {values.min():g} to "
                f'{values.max():g}. If they are logits: eq.predictor(model, output="logit").'
            )
        return values

    def predict(self, cohort: Cohort, output: str = "auto") -> Scores:
        """The cohort's scores, with the columns of the table for rules that read features."""
        if cohort.several:
            raise BadInput(
                f"{self!r} gives one score per row and {cohort.name!r} has {len(cohort.labels)} {cohort.kind}. Take one of them: "
                f"cohort.labelled({cohort.labels[0]!r}), with the classifier of that label."
            )
        model = self if output == "auto" or self.kind == ESTIMATOR else replace(self, output=output)
        scores = Scores.of(cohort, np.concatenate([np.empty(0), *map(model.scores, cohort.source.plain())]))
        groups = [attribute.name for attribute in cohort.attributes]
        features = cohort.source.features(self.columns).drop(columns=groups, errors="ignore")
        return scores.with_features(features) if features.shape[1] else scores

    def to_file(self) -> tuple[str, bytes, list[str]]:
        """An estimator as name and content of a file, by skops or as a pickle, and the types in it that its reader has to trust."""
        try:
            import skops.io

            content = skops.io.dumps(self.model)
            return f"predictor{SKOPS}", content, [n for n in skops.io.get_untrusted_types(data=content) if n not in TRUSTED_TYPES]
        except Exception:  # not installed, or a type that it cannot write
            import joblib

            joblib.dump(self.model, stream := BytesIO())
            return "predictor.joblib", stream.getvalue(), []

    def _inputs(self, rows: Any) -> tuple[Any, str]:
        """The rows as the classifier takes them, the columns it was fitted on in their order, and these columns or their shape in words."""
        shown = ""
        if isinstance(rows, pd.DataFrame):
            names = list(map(str, rows.columns))
            if self.columns is not None:
                advice = "Add it; where it is the group, keep it as an input (attribute_as_input=True, or data.features)."
                missing = {name: did_you_mean(name, names, 0.6) for name in self.columns if name not in names}
                raise_all([f"no column {name!r}, which the model was fitted on.{guess} {advice}" for name, guess in missing.items()])
                return rows.set_axis(names, axis=1)[list(self.columns)], f"columns {', '.join(self.columns)}"
            if self.width is None:
                return rows, f"columns {', '.join(names)}"
            if text := [str(name) for name in rows.columns if not pd.api.types.is_numeric_dtype(rows[name])]:
                raise BadInput(
                    f"the model was fitted on an array of {self.width} numbers per row, and {', '.join(map(repr, text))} hold text. "
                    "Name the columns that are its inputs, in their order: features=[...] (data.features)."
                )
            shown, rows = f" ({', '.join(names)})", rows.to_numpy(dtype=float, na_value=np.nan)
        try:
            array = rows if self.kind == FUNCTION and made_by(rows, "torch", "Tensor") else _array(rows)
        except (TypeError, ValueError):
            raise Misuse("the scores of a classifier", "rows as a pandas frame or an array", rows) from None
        if self.width is not None and array.ndim == 2 and array.shape[1] != self.width:
            raise BadInput(
                f"the model was fitted on {self.width} columns and the rows have {array.shape[1]}{shown}. "
                "Name those that are its inputs, in their order: features=[...] (data.features)."
            )
        return array, f"shape {tuple(array.shape)}"


def predictor(model: object, *, positive: object = None, output: str = "auto") -> Predictor:
    """A fitted estimator, or a function from rows to probabilities, as `eq.audit` and `eq.debias` take it.

    An estimator has `predict_proba`, or `decision_function`, whose values the logistic function maps to scores: the decision threshold 0
    becomes 0.5. `positive` names the positive class, unless the classes are 0 and 1, -1 and 1, or False and True. A function gets the raw
    columns of a table as a frame, or a tensor; give `output="logit"` if it returns logits.
    """
    if output not in ("auto", "probability", "logit"):
        raise BadInput(f"output must be auto, probability or logit; got {output!r}")
    if (found := _predictor(model, positive, output)) is None:
        raise Misuse("eq.predictor", "a fitted estimator with predict_proba, or a function of rows", model, NOT_A_CLASSIFIER)
    return found


def _predictor(model: object, positive: object = None, output: str = "auto") -> Predictor | None:
    """An estimator or a function as a predictor; None for anything else, such as a network or a class."""
    if isinstance(model, Predictor):
        return model
    if isinstance(model, type) or is_network(model):
        return None
    if (reads := next((name for name in SCORE_METHODS if callable(getattr(model, name, None))), None)) is not None:
        return Predictor(model, ESTIMATOR, reads, libraries_of(model), *_columns(model), *_classes(model, positive), output)
    return Predictor(model, FUNCTION, "", libraries_of(model), output=output) if callable(model) else None


def _array(values: Any) -> Any:
    """Values, which may be a tensor on any device, as an array."""
    return np.asarray(values.detach().cpu() if made_by(values, "torch", "Tensor") else values)


def _classes(model: Any, positive: object) -> tuple[tuple[object, ...], object]:
    """The two classes of an estimator, if it names them, and the positive one."""
    names = _attribute(model, "classes_")
    if names is None:
        return (), positive
    if len(names) and np.ndim(names[0]):
        raise BadInput("the model has several outputs. Give a model of one label, or a function that returns the probability of one.")
    classes = tuple(np.asarray(names).tolist())
    if len(classes) != 2:
        shown = ", ".join(map(repr, classes[:8]))
        raise BadInput(
            f"the model has {len(classes)} classes ({shown}); an audit needs two. Give a function that returns the probability of the one "
            "that is the label: lambda rows: model.predict_proba(rows)[:, k]."
        )
    if positive is None and set(classes) not in OBVIOUS_CLASSES:
        raise BadInput(
            f"the model's classes are {classes[0]!r} and {classes[1]!r}; which of them is the positive one, as 1 is in the label? Name it: "
            f"--set data.positive={classes[0]} or {classes[1]} (in Python eq.predictor(model, positive={classes[0]!r}))."
        )
    if positive is None:
        return classes, max(classes)  # True == 1
    if positive not in classes:  # a word from a command line may stand for a number
        positive = next((name for name in classes if str(name) == positive), positive)
    if positive not in classes:
        raise BadInput(f"positive={positive!r} is none of the model's classes, {', '.join(map(repr, classes))}. Name one of them.")
    return classes, positive


def _columns(model: Any) -> tuple[tuple[str, ...] | None, int | None]:
    """The names of the columns that an estimator was fitted on, if it has them, and their number."""
    width = _attribute(model, "n_features_in_")
    count = None if width is None else int(width)
    for names in (_attribute(model, "feature_names_in_"), _attribute(model, "feature_names_")):
        if names is not None and len(names) and not all(LIBRARY_NAMES.fullmatch(str(name)) for name in names):
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
    steps = parameters(deep=True).values() if callable(parameters) else ()
    modules = {type(part).__module__.partition(".")[0] for part in (model, *steps)}
    packages, versions = packages_of_modules(), {}
    for module in sorted(modules - {"builtins", "__main__", "numpy"}):
        for package in packages.get(module, [])[:1]:
            with suppress(PackageNotFoundError):
                versions[package] = version(package)
    return versions


def load_predictor(
    path: str | Path,
    *,
    content: bytes | None = None,
    trusted: Sequence[str] = (),
    trust_pickle: bool = False,
    positive: object = None,
) -> Predictor:
    """The classifier in a file of an estimator, or in its content, if that was read before.

    `trusted` names types in a .skops file, `trust_pickle` lets a pickle run its code.
    """
    source = str(path)
    if content is None:
        if not Path(path).is_file():
            raise BadInput(f"no such file: {path}. Name the file with the estimator ({SKOPS}, or {', '.join(PICKLES)}).")
        content = Path(path).read_bytes()
    if not source.endswith(SKOPS) and not trust_pickle:
        raise Untrusted(
            f"{source} is a pickle, which can run any code when it is read. Save the estimator with skops instead: "
            f"skops.io.dump(model, 'model{SKOPS}'). If you know who wrote the file, read it with --set model.trust_pickle=true "
            "(Python: trust_pickle=True)."
        )
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            if source.endswith(SKOPS):
                import skops.io

                known = [*trusted, *TRUSTED_TYPES]
                if unknown := [name for name in skops.io.get_untrusted_types(data=content) if name not in known]:
                    options = " ".join(f"--set model.trust_types={name}" for name in unknown)
                    raise Untrusted(
                        f"{source} holds types that are not known to be harmless: {', '.join(unknown)}. Find out what they are; those that "
                        f"you trust can be named: {options} (Python: trusted={unknown!r})."
                    )
                model = skops.io.loads(content, trusted=known)
            else:
                import joblib

                model = joblib.load(BytesIO(content))
    except Untrusted:
        raise
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] == "skops":
            raise MissingExtra("skops", "sklearn", f"reading {source}") from error
        raise BadInput(f"{source} cannot be read: no module named {error.name!r}.{pip_advice(error)}") from error
    except Exception as error:  # a damaged archive, or a pickle, which may raise anything
        raise BadInput(f"{source} cannot be read: {type(error).__name__}: {first_line(error)}. Save the estimator again.") from error
    messages = [str(warning.message) for warning in caught]
    for text in dict.fromkeys(message.splitlines()[0] for message in messages if "version" in message):
        log.warning("%s: %s", source, text)
    if (found := _predictor(model, positive)) is None:
        raise BadInput(
            f"{source} holds an object of type {type(model).__name__}, which has neither predict_proba nor decision_function. "
            "Save a fitted classifier by itself."
        )
    return found


def classifier(subject: object) -> "nn.Module | Predictor | None":
    """The network or predictor that an object is, or that a file holds; None for anything that cannot classify rows.

    Files are exported programs (.pt2), ONNX files (.onnx), estimators (.skops) and folders of transformers.
    """
    if isinstance(subject, (str, Path)):
        if (name := str(subject)).endswith((SKOPS, *PICKLES)):
            return load_predictor(name)
        from equipoise.models.loading import includes_weights, load_model
        from equipoise.models.vision import is_folder

        return load_model(name) if includes_weights(name) or is_folder(name) else None
    if is_network(subject):
        from equipoise.models.vision import HuggingFaceNetwork

        return HuggingFaceNetwork(subject) if made_by(subject, "transformers", "PreTrainedModel") else subject
    from_session = made_by(subject, "onnxruntime", "InferenceSession")
    if from_session or made_by(subject, "torch", "ExportedProgram"):
        from equipoise.models.programs import OnnxNetwork, exported_object

        return OnnxNetwork(b"", "an ONNX session", session=subject) if from_session else exported_object(subject)
    return _predictor(subject)


def predict(model: "nn.Module | Predictor | None", cohort: Rows, *, output: str = "auto", raw: "Tensor | None" = None) -> Scores:
    """The cohort's scores by a classifier of one label; `Scores` are returned unchanged.

    `output` says whether a network or function returns logits or probabilities. `raw` are a network's outputs for these rows if they are
    known already, so that it does not run again.
    """
    if isinstance(cohort, Scores):
        return cohort
    if model is None:
        raise BadInput(f"a rule without a network decides from scores; {cohort.name!r} is a cohort. Give eq.Scores.of(cohort, score).")
    if not is_network(model):
        return model.predict(cohort, output)
    from equipoise.models.score import network_scores

    return network_scores(model, cohort, output, raw)


def scores_by_label(
    model: Any, cohort: Cohort, labels: Sequence[str], output: str = "auto", outputs: Mapping[str, int | str] | None = None
) -> dict[str, Scores]:
    """The scores of each label, from one pass of a network over the rows, or of any classifier for the only label.

    `outputs` maps several labels to the network's outputs, if names or numbers do not show it.
    """
    if len(labels) == 1 or not is_network(model):  # which raises an error for several labels
        return {labels[0]: predict(model, cohort, output=output)}
    from equipoise.models.score import chosen_outputs, scores_of, set_output

    set_output(model, output)
    chosen = chosen_outputs(model, cohort.inputs, cohort.labels, cohort.kind, outputs)
    return scores_of({label: chosen.view(at) for at, label in enumerate(cohort.labels)}, cohort)
