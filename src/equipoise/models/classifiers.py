"""Anything that classifies rows, in the form that audits and repairs take: a network, or a `Predictor`, in memory or in a file.

Estimators come from .skops files, which name every type they would build, and from pickles (.pkl, .pickle, .joblib), which run code when
read. A pickle is read only where the user says that they trust it. A .skops file with types beyond those of scikit-learn and numpy is read
only where each of them is named.
"""

import logging
import warnings
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from torch import nn
from torch.export import ExportedProgram

from equipoise.errors import BadInput, MissingExtra, Untrusted, first_line
from equipoise.models.exported import exported_object
from equipoise.models.hugging_face import HuggingFaceNetwork, is_classifier, is_folder
from equipoise.models.loading import includes_weights, load_model, pip_advice
from equipoise.models.onnx_network import OnnxNetwork, is_session
from equipoise.models.predictors import Predictor, can_predict, predictor

SKOPS, PICKLES = ".skops", (".pkl", ".pickle", ".joblib")
HARMLESS = ("sklearn.ensemble._hist_gradient_boosting.predictor.TreePredictor",)  # arrays of scikit-learn that skops does not know
log = logging.getLogger(__name__)


def is_estimator_file(named: str | Path) -> bool:
    """Whether a name is that of a file with an estimator."""
    return str(named).endswith((SKOPS, *PICKLES))


def load_predictor(path: str | Path, *, trusted: Sequence[str] = (), trust_pickle: bool = False, positive: object = None) -> Predictor:
    """The classifier in a file of an estimator; `trusted` names types in a .skops file, `trust_pickle` lets a pickle run its code."""
    path = Path(path)
    if not path.is_file():
        raise BadInput(f"no such file: {path}. Name the file with the estimator ({SKOPS}, or {', '.join(PICKLES)}).")
    return predictor_in(path.read_bytes(), str(path), trusted=trusted, trust_pickle=trust_pickle, positive=positive)


def predictor_in(
    content: bytes, source: str, *, trusted: Sequence[str] = (), trust_pickle: bool = False, positive: object = None
) -> Predictor:
    """The classifier in the bytes of such a file."""
    if source.endswith(SKOPS):
        found = _of_skops(content, source, trusted)
    elif trust_pickle:
        found = _of_pickle(content, source)
    else:
        raise Untrusted(
            f"{source} is a pickle, which can run any code when it is read. Save the estimator with skops instead: "
            f"skops.io.dump(model, 'model{SKOPS}'). If you know who wrote the file, read it with --trust-pickle "
            "(Python: trust_pickle=True)."
        )
    if not can_predict(found):
        raise BadInput(
            f"{source} holds an object of type {type(found).__name__}, which has neither predict_proba nor decision_function. "
            "Save a fitted classifier by itself."
        )
    return predictor(found, positive=positive)


def _of_skops(content: bytes, source: str, trusted: Sequence[str]) -> Any:
    try:
        import skops.io
    except ImportError as error:
        raise MissingExtra("skops", "sklearn", f"reading {source}") from error
    try:
        trusted = [*trusted, *HARMLESS]
        unknown = [name for name in skops.io.get_untrusted_types(data=content) if name not in trusted]
    except Exception as error:  # no archive, or a damaged one
        raise _unreadable(source, error) from error
    if unknown:
        asked = " ".join(f"--trust-type {name}" for name in unknown)
        raise Untrusted(
            f"{source} holds types that are not known to be harmless: {', '.join(unknown)}. Find out what they are; those that you trust "
            f"can be named: {asked} (Python: trusted={unknown!r})."
        )
    return _read(lambda: skops.io.loads(content, trusted=list(trusted)), source)


def _of_pickle(content: bytes, source: str) -> Any:
    import joblib

    return _read(lambda: joblib.load(BytesIO(content)), source)


def _read(load: Any, source: str) -> Any:
    """What a library reads; a library that is missing is named, and what it warns of is logged in one line."""
    try:
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            found = load()
    except ModuleNotFoundError as error:
        raise BadInput(f"{source} cannot be read: no module named {error.name!r}.{pip_advice(error)}") from error
    except Exception as error:  # a pickle may raise anything
        raise _unreadable(source, error) from error
    for text in dict.fromkeys(str(one.message).splitlines()[0] for one in heard if "version" in str(one.message)):
        log.warning("%s: %s", source, text)
    return found


def _unreadable(source: str, error: Exception) -> BadInput:
    reason = first_line(error)
    return BadInput(f"{source} cannot be read: {type(error).__name__}: {reason}. Save the estimator again.")


def classifier(subject: object) -> nn.Module | Predictor | None:
    """The network or predictor that an object is, or that a file holds; None for anything that cannot classify rows.

    A file is an exported program (.pt2), an ONNX file (.onnx), an estimator (.skops) or a folder of transformers.
    """
    if isinstance(subject, nn.Module):
        return HuggingFaceNetwork(subject) if is_classifier(subject) else subject
    if isinstance(subject, Predictor):
        return subject
    if isinstance(subject, ExportedProgram):
        return exported_object(subject)
    if is_session(subject):
        return OnnxNetwork(b"", "an ONNX session", session=subject)
    if isinstance(subject, (str, Path)):
        named = str(subject)
        if is_estimator_file(named):
            return load_predictor(named)
        return load_model(named) if includes_weights(named) or is_folder(named) else None
    return predictor(subject) if can_predict(subject) else None
